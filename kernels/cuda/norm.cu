/* norm.cu: batch norm over NHWC; see cuda_kernels.h.
 *
 * Sums run in two stages: a block sums some rows of 32 channels in double precision, then a thread
 * a channel adds the blocks' sums in order. Double keeps sum-of-squares minus square-of-sum exact
 * enough (a float has 24 bits, their squares 48, a double 53). */
#include "cuda/device.cuh"

enum { CHANNELS = 32, LINES = 8, ROWS_EACH = 128 };

static inline unsigned channel_blocks(int C)
{
    return (unsigned)((C + CHANNELS - 1) / CHANNELS);
}

static inline unsigned splits_of(norm_shape s)
{
    size_t rows = (size_t)s.n * (size_t)s.hw, splits = (rows + ROWS_EACH - 1) / ROWS_EACH;
    size_t most = NORM_SPLITS_MAX;
    return (unsigned)(splits > most ? most : splits ? splits : 1);
}

size_t cuda_norm_scratch(norm_shape s)
{
    return 2 * (size_t)splits_of(s) * (size_t)s.c;
}

/* Sums two numbers a channel over this block's lines; the first line of threads gets the sums. */
static __device__ void sum_lines(double *first, double *second)
{
    __shared__ double lines[2][LINES][CHANNELS];
    lines[0][threadIdx.y][threadIdx.x] = *first;
    lines[1][threadIdx.y][threadIdx.x] = *second;
    __syncthreads();
    if (threadIdx.y == 0)
        for (int i = 1; i < LINES; i++) {
            *first += lines[0][i][threadIdx.x];
            *second += lines[1][i][threadIdx.x];
        }
}

/* scratch (splits, 2, C): sum x and sum x*x forward; with dy sum dy and sum dy * u backward. */
template <class T>
static __global__ void partial_sums(const step_args *a, norm_shape s, const T *x, const T *y,
                                    const float *saved, const T *dy, double *scratch)
{
    int c = (int)(blockIdx.x * CHANNELS + threadIdx.x);
    size_t rows = (size_t)a->n * (size_t)s.hw, step = (size_t)gridDim.y * LINES;
    double first = 0, second = 0;
    if (c < s.c) {
        float mean = dy ? saved[c] : 0.0f, inverse = dy ? saved[s.c + c] : 0.0f;
        for (size_t row = blockIdx.y * LINES + threadIdx.y; row < rows; row += step) {
            size_t at = row * (size_t)s.c + (size_t)c;
            float value = to_float(x[at]);
            if (!dy) {
                first += (double)value;
                second += (double)value * (double)value;
                continue;
            }
            float d = y && !(to_float(y[at]) > 0) ? 0.0f : to_float(dy[at]);
            first += (double)d;
            second += (double)d * (double)((value - mean) * inverse);
        }
    }
    sum_lines(&first, &second);
    if (threadIdx.y == 0 && c < s.c) {
        size_t at = 2 * (size_t)blockIdx.y * (size_t)s.c + (size_t)c;
        scratch[at] = first;
        scratch[at + (size_t)s.c] = second;
    }
}

static __device__ void add_splits(const double *scratch, unsigned splits, int C, size_t c,
                                  double *first, double *second)
{
    *first = *second = 0;
    for (unsigned i = 0; i < splits; i++) {
        *first += scratch[2 * (size_t)i * (size_t)C + c];
        *second += scratch[(2 * (size_t)i + 1) * (size_t)C + c];
    }
}

static __global__ void finish_forward(const step_args *a, norm_shape s, unsigned splits,
                                      const double *scratch, float *saved, float *running_mean,
                                      float *running_var, int64_t *counter)
{
    FOR_EACH(c, (size_t)s.c)
    {
        double sum, squares, count = (double)a->n * (double)s.hw;
        add_splits(scratch, splits, s.c, c, &sum, &squares);
        double mean = sum / count, var = squares / count - mean * mean;
        var = var < 0 ? 0 : var; /* NaN stays */
        saved[c] = (float)mean;
        saved[(size_t)s.c + c] = (float)(1 / sqrt(var + s.eps));
        if (count > 1) {
            double m = s.momentum;
            running_mean[c] = (float)((1 - m) * (double)running_mean[c] + m * mean);
            running_var[c] =
                (float)((1 - m) * (double)running_var[c] + m * var * count / (count - 1));
        }
        if (c == 0)
            ++*counter;
    }
}

void cuda_norm_statistics(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                          double *scratch, float *saved, float *running_mean, float *running_var,
                          int64_t *counter)
{
    unsigned splits = splits_of(s);
    BY_ELEMENT(t, LAUNCH_BLOCK(partial_sums<T>, dim3(channel_blocks(s.c), splits),
                               dim3(CHANNELS, LINES), stream, a, s, (const T *)x,
                               (const T *)nullptr, nullptr, (const T *)nullptr, scratch));
    LAUNCH(finish_forward, blocks_for((size_t)s.c), THREADS, stream, a, s, splits, scratch, saved,
           running_mean, running_var, counter);
}

static __global__ void from_running(norm_shape s, const float *mean, const float *var, float *saved)
{
    FOR_EACH(c, (size_t)s.c)
    {
        saved[c] = mean[c];
        saved[(size_t)s.c + c] = (float)(1 / sqrt((double)var[c] + s.eps));
    }
}

void cuda_norm_running(void *stream, norm_shape s, const float *running_mean,
                       const float *running_var, float *saved)
{
    LAUNCH(from_running, blocks_for((size_t)s.c), THREADS, stream, s, running_mean, running_var,
           saved);
}

template <class T>
static __global__ void apply(const step_args *a, norm_shape s, size_t count, const T *x,
                             const float *saved, const float *w, const float *b, const T *also,
                             bool relu, T *y)
{
    size_t live = (size_t)a->n * (size_t)s.hw * (size_t)s.c;
    FOR_EACH(i, count)
    {
        size_t c = divide(i, s.c).rest;
        float value = 0;
        if (i < live) {
            value = (to_float(x[i]) - saved[c]) * saved[(size_t)s.c + c] * w[c] + b[c];
            if (also)
                value += to_float(also[i]);
            if (relu && value < 0)
                value = 0;
        }
        put(&y[i], value);
    }
}

void cuda_norm_apply(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                     const float *saved, const float *w, const float *b, const void *also,
                     bool relu, void *y)
{
    size_t count = (size_t)s.n * (size_t)s.hw * (size_t)s.c;
    BY_ELEMENT(t, LAUNCH(apply<T>, blocks_for(count), THREADS, stream, a, s, count, (const T *)x,
                         saved, w, b, (const T *)also, relu, (T *)y));
}

/* With u = (x - mean) * inverse:  dw = sum dy u,  db = sum dy. */
static __global__ void finish_backward(norm_shape s, unsigned splits, const double *scratch,
                                       float *dw, float *db)
{
    FOR_EACH(c, (size_t)s.c)
    {
        double sum, sum_u;
        add_splits(scratch, splits, s.c, c, &sum, &sum_u);
        db[c] = (float)sum;
        dw[c] = (float)sum_u;
    }
}

/* dx = w * inverse * (dy - db/count - u * dw/count) */
template <class T>
static __global__ void apply_backward(const step_args *a, norm_shape s, size_t count, const T *x,
                                      const T *y, const float *saved, const float *w, const T *dy,
                                      const float *dw, const float *db, T *dx, bool add, T *dalso,
                                      bool add_also)
{
    size_t live = (size_t)a->n * (size_t)s.hw * (size_t)s.c;
    float values = (float)a->n * (float)s.hw;
    FOR_EACH(i, count)
    {
        size_t c = divide(i, s.c).rest;
        float d = 0, back = 0;
        if (i < live) {
            float inverse = saved[(size_t)s.c + c], u = (to_float(x[i]) - saved[c]) * inverse;
            d = y && !(to_float(y[i]) > 0) ? 0.0f : to_float(dy[i]);
            back = w[c] * inverse * (d - db[c] / values - u * (dw[c] / values));
        }
        if (dx)
            put_or_add(&dx[i], back, add);
        if (dalso)
            put_or_add(&dalso[i], d, add_also);
    }
}

void cuda_norm_backward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                        const void *y, const float *saved, const float *w, const void *dy,
                        double *scratch, float *dw, float *db, void *dx, bool add, void *dalso,
                        bool add_also)
{
    unsigned splits = splits_of(s);
    size_t count = (size_t)s.n * (size_t)s.hw * (size_t)s.c;
    BY_ELEMENT(t, LAUNCH_BLOCK(partial_sums<T>, dim3(channel_blocks(s.c), splits),
                               dim3(CHANNELS, LINES), stream, a, s, (const T *)x, (const T *)y,
                               saved, (const T *)dy, scratch));
    LAUNCH(finish_backward, blocks_for((size_t)s.c), THREADS, stream, s, splits, scratch, dw, db);
    if (!dx && !dalso)
        return;
    BY_ELEMENT(t, LAUNCH(apply_backward<T>, blocks_for(count), THREADS, stream, a, s, count,
                         (const T *)x, (const T *)y, saved, w, (const T *)dy, dw, db, (T *)dx, add,
                         (T *)dalso, add_also));
}
