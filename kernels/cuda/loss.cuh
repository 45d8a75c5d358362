/* loss.cuh: one sample's softmax cross-entropy, by the 32 lanes of a warp; loss.cu's and
 * head.cu's. */
#ifndef KUBEML_LOSS_CUH
#define KUBEML_LOSS_CUH

#include "device.cuh"

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

/* A sample's label and the number of samples in the batch; samples from n on count for nothing. A
 * caller that needs them late loads them early: they are two of the loads that a loss waits for. */
struct answer {
    int n, label;
    bool live;
};

static __device__ __forceinline__ answer answer_of(const step_args *a, int row,
                                                   const int32_t *labels)
{
    answer r;
    r.n = a->n;
    r.label = labels[row];
    r.live = row < r.n;
    r.label = r.live ? r.label : 0;
    return r;
}

/* Of one row: the largest logit, so that exp cannot overflow, and the sum of exp(z - top); a lane's
 * first logit, and its exp. */
struct row_sums {
    float top, sum, first, power;
};

template <class Z> static __device__ __forceinline__ row_sums sums_of_row(int outputs, const Z *z)
{
    int lane = (int)threadIdx.x % LANES;
    row_sums r;
    r.first = lane < outputs ? to_float(z[lane]) : -INFINITY;
    r.top = r.first;
    ROLLED
    for (int o = lane + LANES; o < outputs; o += LANES) {
        float value = to_float(z[o]);
        r.top = value > r.top ? value : r.top;
    }
    r.top = lanes_most(r.top);
    r.power = lane < outputs ? expf(r.first - r.top) : 0.0f;
    r.sum = r.power;
    ROLLED
    for (int o = lane + LANES; o < outputs; o += LANES)
        r.sum += expf(to_float(z[o]) - r.top);
    r.sum = lanes_total(r.sum);
    return r;
}

/* dz = (softmax - onehot) / n; of a sample that counts for nothing 0. */
template <class Z, class D>
static __device__ __forceinline__ void cross_entropy_gradient(const row_sums &r, const answer &is,
                                                              int outputs, const Z *z, D *dz)
{
    int lane = (int)threadIdx.x % LANES;
    float weight = is.live ? 1.0f / (float)is.n : 0.0f;
    ROLLED
    for (int o = lane; o < outputs; o += LANES) {
        float p = (o == lane ? r.power : expf(to_float(z[o]) - r.top)) / r.sum;
        put(&dz[o], is.live ? weight * (p - (o == is.label ? 1.0f : 0.0f)) : 0.0f);
    }
}

/* -log softmax(z)[label], and whether the label's logit is the largest, the first of equals. */
template <class Z>
static __device__ __forceinline__ void cross_entropy_result(const row_sums &r, const answer &is,
                                                            int outputs, const Z *z,
                                                            step_result *result)
{
    int lane = (int)threadIdx.x % LANES, best = lane < outputs ? lane : outputs;
    float top = r.first;
    ROLLED
    for (int o = lane + LANES; o < outputs; o += LANES) {
        float value = to_float(z[o]);
        if (value > top) {
            top = value;
            best = o;
        }
    }
    best = first_largest(top, best);
    if (lane == 0) {
        result->loss_sum = is.live ? (double)(logf(r.sum) - (to_float(z[is.label]) - r.top)) : 0.0;
        result->correct = is.live && best == is.label;
    }
}

#endif
