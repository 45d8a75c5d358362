/* loss.cuh: one sample's softmax cross-entropy, by the 32 lanes of a warp; loss.cu's and
 * head.cu's. */
#ifndef KUBEML_LOSS_CUH
#define KUBEML_LOSS_CUH

#include "cuda/device.cuh"

enum { LANES = 32 };
#define ALL_LANES 0xffffffffu

static __device__ __forceinline__ float lanes_most(float x)
{
    for (int step = LANES / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

static __device__ __forceinline__ float lanes_total(float x)
{
    for (int step = LANES / 2; step; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* The first place of the largest value, over all lanes. */
static __device__ __forceinline__ int first_largest(float value, int at)
{
    for (int step = LANES / 2; step; step /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, value, step);
        int place = __shfl_xor_sync(ALL_LANES, at, step);
        if (other > value || (other == value && place < at)) {
            value = other;
            at = place;
        }
    }
    return at;
}

/* -log softmax(z)[label], by the largest logit so that exp cannot overflow; dz (or NULL) = softmax
 * - onehot, divided by n. The row of a sample from n on has dz = 0 and counts for nothing. */
template <class Z, class D>
static __device__ __forceinline__ void cross_entropy_row(const step_args *a, int row, int outputs,
                                                         const Z *z, const int32_t *labels, D *dz,
                                                         step_result *per_row)
{
    int lane = (int)threadIdx.x % LANES;
    bool live = row < a->n;
    int label = live ? labels[row] : 0, best = outputs;
    float top = -INFINITY, sum = 0;
    for (int o = lane; o < outputs; o += LANES) {
        float value = to_float(z[o]);
        if (value > top || best == outputs) {
            top = value;
            best = o;
        }
    }
    best = first_largest(top, best);
    top = lanes_most(top);
    for (int o = lane; o < outputs; o += LANES)
        sum += expf(to_float(z[o]) - top);
    sum = lanes_total(sum);
    float weight = live ? 1.0f / (float)a->n : 0.0f;
    for (int o = lane; dz && o < outputs; o += LANES) {
        float p = expf(to_float(z[o]) - top) / sum;
        put(&dz[o], live ? weight * (p - (o == label ? 1.0f : 0.0f)) : 0.0f);
    }
    if (lane == 0) {
        per_row[row].loss_sum = live ? (double)(logf(sum) - (to_float(z[label]) - top)) : 0.0;
        per_row[row].correct = live && best == label;
    }
}

#endif
