/* loss.cu: losses and their gradients; see cuda_kernels.h. A warp computes a sample; then one block
 * adds the samples' results in a fixed tree. */
#include "loss.cuh"

enum { SUM_THREADS = 256 };

template <class T>
static __global__ void cross_entropy(const step_args *a, int outputs, const T *logits,
                                     const int32_t *labels, T *dlogits, step_result *per_row)
{
    int row = (int)blockIdx.x;
    size_t at = (size_t)row * (size_t)outputs;
    const answer is = answer_of(a, row, labels);
    const row_sums sums = sums_of_row(outputs, logits + at);
    if (dlogits)
        cross_entropy_gradient(sums, is, outputs, logits + at, dlogits + at);
    cross_entropy_result(sums, is, outputs, logits + at, &per_row[row]);
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
    sum = lanes_total(sum);
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

void cuda_add_rows(void *stream, int cap, const step_result *per_row, step_result *sum)
{
    LAUNCH_BLOCK(add_rows, 1, SUM_THREADS, stream, cap, per_row, sum);
}

void cuda_cross_entropy(void *stream, element t, const step_args *a, int cap, int outputs,
                        const void *logits, const int32_t *labels, void *dlogits,
                        step_result *per_row, step_result *sum)
{
    BY_ELEMENT(t, LAUNCH_BLOCK(cross_entropy<T>, (unsigned)cap, LANES, stream, a, outputs,
                               (const T *)logits, labels, (T *)dlogits, per_row));
    cuda_add_rows(stream, cap, per_row, sum);
}

void cuda_squared_error(void *stream, element t, const step_args *a, int cap, int outputs,
                        const void *y, const float *targets, void *dy, step_result *per_row,
                        step_result *sum)
{
    BY_ELEMENT(t, LAUNCH_BLOCK(squared_error<T>, (unsigned)cap, LANES, stream, a, outputs,
                               (const T *)y, targets, (T *)dy, per_row));
    cuda_add_rows(stream, cap, per_row, sum);
}
