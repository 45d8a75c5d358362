/* loss.cu: losses and their gradients; see cuda_kernels.h. A warp a sample; then one block adds the
 * samples' results in a fixed tree. */
#include "cuda/device.cuh"

enum { LANES = 32, SUM_THREADS = 256 };
#define ALL_LANES 0xffffffffu

static __device__ float most(float x)
{
    for (int step = LANES / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

static __device__ float total(float x)
{
    for (int step = LANES / 2; step; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* The first place of the largest value, over all lanes. */
static __device__ int first_largest(float value, int at)
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

/* -log softmax(z)[label], by the largest logit so that exp cannot overflow; dz = softmax - onehot,
 * divided by n. Samples from n on get dz = 0. */
template <class T>
static __global__ void cross_entropy(const step_args *a, int outputs, const T *logits,
                                     const int32_t *labels, T *dlogits, step_result *per_row)
{
    int row = (int)blockIdx.x, lane = (int)threadIdx.x;
    const T *z = logits + (size_t)row * (size_t)outputs;
    T *dz = dlogits ? dlogits + (size_t)row * (size_t)outputs : nullptr;
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
    top = most(top);
    for (int o = lane; o < outputs; o += LANES)
        sum += expf(to_float(z[o]) - top);
    sum = total(sum);
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

/* dy = 2 (y - target) / outputs / n */
template <class T>
static __global__ void squared_error(const step_args *a, int outputs, const T *y,
                                     const float *targets, T *dy, step_result *per_row)
{
    int row = (int)blockIdx.x, lane = (int)threadIdx.x;
    bool live = row < a->n;
    float sum = 0;
    for (int o = lane; o < outputs; o += LANES) {
        size_t at = (size_t)row * (size_t)outputs + (size_t)o;
        float d = live ? to_float(y[at]) - targets[at] : 0.0f;
        sum += d * d / (float)outputs;
        if (dy)
            put(&dy[at], 2 * d / (float)outputs / (float)a->n);
    }
    sum = total(sum);
    if (lane == 0) {
        per_row[row].loss_sum = (double)sum;
        per_row[row].correct = 0;
    }
}

static __global__ void add_rows(int cap, const step_result *per_row, step_result *sum)
{
    __shared__ double losses[SUM_THREADS];
    __shared__ int64_t corrects[SUM_THREADS];
    int t = (int)threadIdx.x;
    double loss = 0;
    int64_t correct = 0;
    for (int i = t; i < cap; i += SUM_THREADS) {
        loss += per_row[i].loss_sum;
        correct += per_row[i].correct;
    }
    losses[t] = loss;
    corrects[t] = correct;
    __syncthreads();
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        if (t < half) {
            losses[t] += losses[t + half];
            corrects[t] += corrects[t + half];
        }
        __syncthreads();
    }
    if (t == 0) {
        sum->loss_sum = losses[0];
        sum->correct = corrects[0];
    }
}

void cuda_cross_entropy(void *stream, element t, const step_args *a, int cap, int outputs,
                        const void *logits, const int32_t *labels, void *dlogits,
                        step_result *per_row, step_result *sum)
{
    BY_ELEMENT(t, LAUNCH_BLOCK(cross_entropy<T>, (unsigned)cap, LANES, stream, a, outputs,
                               (const T *)logits, labels, (T *)dlogits, per_row));
    LAUNCH_BLOCK(add_rows, 1, SUM_THREADS, stream, cap, per_row, sum);
}

void cuda_squared_error(void *stream, element t, const step_args *a, int cap, int outputs,
                        const void *y, const float *targets, void *dy, step_result *per_row,
                        step_result *sum)
{
    BY_ELEMENT(t, LAUNCH_BLOCK(squared_error<T>, (unsigned)cap, LANES, stream, a, outputs,
                               (const T *)y, targets, (T *)dy, per_row));
    LAUNCH_BLOCK(add_rows, 1, SUM_THREADS, stream, cap, per_row, sum);
}
