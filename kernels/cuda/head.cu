/* head.cu: the linear layers at a small model's end, their ReLUs and the loss as one kernel, with
 * what flows back through them, and the gradients of all their parameters as another; see
 * cuda_kernels.h.
 *
 * A block computes a sample, whose values lie in shared memory, layer after layer: a warp an output
 * forward, a thread an input backward. What parameters' gradients need of a sample goes to the
 * tensors that the layers have anyway; the second kernel sums it over the samples, a thread a
 * parameter, in order. It reads no parameter, so that there a parameter can take its step. */
#include "cuda/loss.cuh"
#include "cuda/optim.cuh"

/* Static shared memory is 48 KiB: values and gradients. A block reads all weights, so they are to
 * stay in a GPU's cache. */
enum { HEAD_FLOATS = 5120, HEAD_WEIGHTS = 1 << 18 };
/* A warp waits for an output's weights, so that more of them wait at the same time. */
enum { HEAD_THREADS = 1024 };

bool cuda_head_fits(const head_shape *h)
{
    int64_t floats = h->layer[0].c, weights = 0;
    for (int i = 0; i < h->layers; i++) {
        floats += h->layer[i].k;
        weights += (int64_t)h->layer[i].c * h->layer[i].k;
    }
    return floats <= HEAD_FLOATS && weights <= HEAD_WEIGHTS;
}

/* As it is when it is read again. */
template <class T> static __device__ float rounded(float x)
{
    T stored;
    put(&stored, x);
    return to_float(stored);
}

template <class T>
static __device__ void head_forward(const head_layer &l, int n, const float *x, float *y)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES,
        warps = (int)blockDim.x / LANES;
    for (int k = warp; k < l.k; k += warps) {
        const T *w = (const T *)l.w + (size_t)k * (size_t)l.c;
        float sum = 0;
        for (int c = lane; c < l.c; c += LANES)
            sum += x[c] * to_float(w[c]);
        sum = lanes_total(sum) + (l.bias ? l.bias[k] : 0.0f);
        sum = l.relu && sum < 0 ? 0.0f : sum;
        if (lane == 0) {
            put((T *)l.y + (size_t)n * (size_t)l.k + (size_t)k, sum);
            y[k] = rounded<T>(sum);
        }
    }
}

/* dy as the ReLU lets it through, which the parameters' gradients read; then dx, which may be NULL:
 * nobody needs it. */
template <class T>
static __device__ void head_backward(const head_layer &l, int n, const float *y, float *dy,
                                     float *dx)
{
    for (int k = (int)threadIdx.x; k < l.k; k += (int)blockDim.x) {
        dy[k] = l.relu && !(y[k] > 0) ? 0.0f : dy[k];
        put((T *)l.dy + (size_t)n * (size_t)l.k + (size_t)k, dy[k]);
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; dx && c < l.c; c += (int)blockDim.x) {
        float sum = 0;
        for (int k = 0; k < l.k; k++)
            sum += dy[k] * to_float(((const T *)l.w)[(size_t)k * (size_t)l.c + (size_t)c]);
        dx[c] = rounded<T>(sum);
    }
    __syncthreads();
}

template <class T>
static __global__ void __launch_bounds__(HEAD_THREADS)
    head(const step_args *a, head_shape h, const T *x, const int32_t *labels, bool training, T *dx,
         step_result *per_row)
{
    __shared__ float value[HEAD_FLOATS], gradient[HEAD_FLOATS];
    int n = (int)blockIdx.x, c = h.layer[0].c, at = 0;
    for (int i = (int)threadIdx.x; i < c; i += (int)blockDim.x)
        value[i] = to_float(x[(size_t)n * (size_t)c + (size_t)i]);
    __syncthreads();
    for (int i = 0; i < h.layers; i++) {
        head_forward<T>(h.layer[i], n, value + at, value + at + h.layer[i].c);
        __syncthreads();
        at += h.layer[i].c;
    }
    int outputs = h.layer[h.layers - 1].k;
    if (threadIdx.x < LANES)
        cross_entropy_row(a, n, outputs, value + at, labels, training ? gradient + at : nullptr,
                          per_row);
    __syncthreads();
    if (!training)
        return;
    for (int i = (int)threadIdx.x; i < outputs; i += (int)blockDim.x)
        gradient[at + i] = rounded<T>(gradient[at + i]);
    __syncthreads();
    for (int i = h.layers - 1; i >= 0; i--) {
        const head_layer &l = h.layer[i];
        at -= l.c;
        head_backward<T>(l, n, value + at + l.c, gradient + at + l.c,
                         i > 0 || dx ? gradient + at : nullptr);
    }
    for (int i = (int)threadIdx.x; dx && i < c; i += (int)blockDim.x)
        put(&dx[(size_t)n * (size_t)c + (size_t)i], gradient[i]);
}

/* Parameter i of a layer: its weights (k, c), then its biases. */
template <class T>
static __device__ void head_parameter(const head_layer &l, int cap, const T *x, size_t i,
                                      const optim_block &update, const step_args &now)
{
    size_t weights = (size_t)l.k * (size_t)l.c;
    const T *dy = (const T *)l.dy;
    float sum = 0;
    if (i < weights) {
        divided output = divide(i, l.c);
        size_t k = output.times, c = output.rest;
        for (int n = 0; n < cap; n++)
            sum += to_float(dy[(size_t)n * (size_t)l.k + k]) *
                   to_float(x[(size_t)n * (size_t)l.c + c]);
        put_gradient(update, now, &l.dw[i], sum);
        return;
    }
    for (int n = 0; n < cap; n++)
        sum += to_float(dy[(size_t)n * (size_t)l.k + (i - weights)]);
    put_gradient(update, now, &l.db[i - weights], sum);
}

static __device__ __host__ __forceinline__ size_t head_parameters(const head_layer &l)
{
    return (size_t)l.k * ((size_t)l.c + (l.db ? 1 : 0));
}

/* The losses' sum: beside what a thread here does for one parameter it is little. */
static __device__ void add_in_order(int cap, const step_result *per_row, step_result *total)
{
    step_result sum = {0, 0};
    for (int n = 0; n < cap; n++) {
        sum.loss_sum += per_row[n].loss_sum;
        sum.correct += per_row[n].correct;
    }
    *total = sum;
}

/* A thread a parameter, and a block more for the losses. */
template <class T>
static __global__ void head_gradients(head_shape h, int cap, const T *x, size_t count,
                                      const step_result *per_row, step_result *total,
                                      optim_block update)
{
    if (blockIdx.x == gridDim.x - 1) {
        if (threadIdx.x == 0)
            add_in_order(cap, per_row, total);
        return;
    }
    const step_args now = numbers_of(update);
    size_t left = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    int layer = 0;
    if (left >= count)
        return;
    while (left >= head_parameters(h.layer[layer]))
        left -= head_parameters(h.layer[layer++]);
    head_parameter(h.layer[layer], cap, layer ? (const T *)h.layer[layer - 1].y : x, left, update,
                   now);
}

void cuda_head(void *stream, element t, const step_args *a, int cap, const head_shape *h,
               const void *x, const int32_t *labels, bool training, void *dx, step_result *per_row,
               step_result *sum)
{
    head_shape shape = *h;
    BY_ELEMENT(t, LAUNCH_BLOCK(head<T>, (unsigned)cap, HEAD_THREADS, stream, a, shape, (const T *)x,
                               labels, training, (T *)dx, per_row));
    if (!training)
        cuda_add_rows(stream, cap, per_row, sum);
}

void cuda_head_gradients(void *stream, element t, int cap, const head_shape *h, const void *x,
                         const step_result *per_row, step_result *sum, const optim_block *update)
{
    head_shape shape = *h;
    optim_block block = update ? *update : optim_block();
    size_t count = 0;
    for (int i = 0; i < h->layers; i++)
        count += head_parameters(h->layer[i]);
    unsigned blocks = (unsigned)((count + THREADS - 1) / THREADS);
    BY_ELEMENT(t, LAUNCH(head_gradients<T>, blocks + 1, THREADS, stream, shape, cap, (const T *)x,
                         count, per_row, sum, block));
}
