/* norm.cu: batch norm over NHWC; see cuda_kernels.h.
 *
 * Sums run in two stages: a block sums some rows of up to 32 channels in double precision, then a
 * block for as many channels adds the first blocks' sums; both in a fixed order. Double keeps
 * sum-of-squares minus square-of-sum exact enough (a float has 24 bits, their squares 48, a double
 * 53).
 *
 * A thread asks for several values before it uses the first, or it would wait for memory once a
 * value: the sums for some rows at once, the rest for four channels side by side where it can. */
#include "cuda/device.cuh"

/* Blocks: four for each of a large GPU's 132 multiprocessors. */
enum { CHANNELS = 32, ROWS_EACH = 128, BLOCKS_WANTED = 528, ROWS_AT_ONCE = 4, SPLITS_AT_ONCE = 8 };

/* A block is so many channels wide, and has THREADS threads. */
static inline unsigned width_of(int C)
{
    return C > CHANNELS / 2 ? CHANNELS : C > CHANNELS / 4 ? CHANNELS / 2 : CHANNELS / 4;
}

static inline unsigned channel_blocks(int C)
{
    return ((unsigned)C + width_of(C) - 1) / width_of(C);
}

static inline dim3 block_of(int C)
{
    return dim3(width_of(C), THREADS / width_of(C));
}

static inline unsigned splits_of(norm_shape s)
{
    size_t rows = (size_t)s.n * (size_t)s.hw, splits = (rows + ROWS_EACH - 1) / ROWS_EACH;
    size_t most = BLOCKS_WANTED / channel_blocks(s.c);
    splits = splits > most ? most : splits;
    return (unsigned)(splits ? splits : 1);
}

size_t cuda_norm_scratch(norm_shape s)
{
    return 2 * (size_t)splits_of(s) * (size_t)s.c;
}

/* Sums two numbers a channel over this block's lines; the first line of threads gets the sums. */
static __device__ void sum_lines(double *first, double *second)
{
    __shared__ double lines[2][THREADS];
    unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
    lines[0][at] = *first;
    lines[1][at] = *second;
    __syncthreads();
    if (threadIdx.y == 0)
        for (at += blockDim.x; at < THREADS; at += blockDim.x) {
            *first += lines[0][at];
            *second += lines[1][at];
        }
}

/* What rows from `row` on, `step` apart, are to their channel's sums; in order. */
template <class T, bool BACKWARD>
static __device__ __forceinline__ void
add_rows(norm_shape s, size_t row, size_t step, size_t rows, int c, const T *x, const T *y,
         const T *dy, float mean, float inverse, double *first, double *second)
{
    float value[ROWS_AT_ONCE], out[ROWS_AT_ONCE], back[ROWS_AT_ONCE];
    for (int j = 0; j < ROWS_AT_ONCE; j++) {
        size_t at = (row + (size_t)j * step) * (size_t)s.c + (size_t)c;
        bool there = row + (size_t)j * step < rows;
        value[j] = there ? to_float(x[at]) : 0.0f;
        if (!BACKWARD)
            continue;
        out[j] = y && there ? to_float(y[at]) : 1.0f;
        back[j] = there ? to_float(dy[at]) : 0.0f;
    }
    for (int j = 0; j < ROWS_AT_ONCE; j++) {
        if (BACKWARD) {
            float d = out[j] > 0 ? back[j] : 0.0f;
            *first += (double)d;
            *second += (double)d * (double)((value[j] - mean) * inverse);
        } else {
            *first += (double)value[j];
            *second += (double)value[j] * (double)value[j];
        }
    }
}

/* scratch (splits, 2, C): sum x and sum x*x; backward sum dy and sum dy * u. */
template <class T, bool BACKWARD>
static __global__ void __launch_bounds__(THREADS)
    partial_sums(const step_args *a, norm_shape s, const T *x, const T *y, const float *saved,
                 const T *dy, double *scratch)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    size_t rows = (size_t)a->n * (size_t)s.hw, step = (size_t)gridDim.y * blockDim.y;
    double first = 0, second = 0;
    if (c < s.c) {
        float mean = BACKWARD ? saved[c] : 0.0f, inverse = BACKWARD ? saved[s.c + c] : 0.0f;
        for (size_t row = blockIdx.y * blockDim.y + threadIdx.y; row < rows;
             row += ROWS_AT_ONCE * step)
            add_rows<T, BACKWARD>(s, row, step, rows, c, x, y, dy, mean, inverse, &first, &second);
    }
    sum_lines(&first, &second);
    if (threadIdx.y == 0 && c < s.c) {
        size_t at = 2 * (size_t)blockIdx.y * (size_t)s.c + (size_t)c;
        scratch[at] = first;
        scratch[at + (size_t)s.c] = second;
    }
}

/* All threads of a block come here; those of the first line get the sums. */
static __device__ void add_splits(const double *scratch, unsigned splits, int C, int c,
                                  double *first, double *second)
{
    *first = *second = 0;
    for (unsigned i = threadIdx.y; c < C && i < splits; i += SPLITS_AT_ONCE * blockDim.y) {
        double sum[SPLITS_AT_ONCE][2];
        for (unsigned j = 0; j < SPLITS_AT_ONCE; j++) {
            size_t at = 2 * (size_t)(i + j * blockDim.y) * (size_t)C + (size_t)c;
            bool there = i + j * blockDim.y < splits;
            sum[j][0] = there ? scratch[at] : 0;
            sum[j][1] = there ? scratch[at + (size_t)C] : 0;
        }
        for (unsigned j = 0; j < SPLITS_AT_ONCE; j++) {
            *first += sum[j][0];
            *second += sum[j][1];
        }
    }
    sum_lines(first, second);
}

static __global__ void __launch_bounds__(THREADS)
    finish_forward(const step_args *a, norm_shape s, unsigned splits, const double *scratch,
                   float *saved, float *running_mean, float *running_var, int64_t *counter)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    double sum, squares, count = (double)a->n * (double)s.hw;
    add_splits(scratch, splits, s.c, c, &sum, &squares);
    if (threadIdx.y > 0 || c >= s.c)
        return;
    double mean = sum / count, var = squares / count - mean * mean;
    var = var < 0 ? 0 : var; /* NaN stays */
    saved[c] = (float)mean;
    saved[s.c + c] = (float)(1 / sqrt(var + s.eps));
    if (count > 1) {
        double m = s.momentum;
        running_mean[c] = (float)((1 - m) * (double)running_mean[c] + m * mean);
        running_var[c] = (float)((1 - m) * (double)running_var[c] + m * var * count / (count - 1));
    }
    if (c == 0)
        ++*counter;
}

void cuda_norm_statistics(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                          double *scratch, float *saved, float *running_mean, float *running_var,
                          int64_t *counter)
{
    unsigned splits = splits_of(s);
    BY_ELEMENT(t, LAUNCH_BLOCK((partial_sums<T, false>), dim3(channel_blocks(s.c), splits),
                               block_of(s.c), stream, a, s, (const T *)x, (const T *)nullptr,
                               nullptr, (const T *)nullptr, scratch));
    LAUNCH_BLOCK(finish_forward, channel_blocks(s.c), block_of(s.c), stream, a, s, splits, scratch,
                 saved, running_mean, running_var, counter);
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

/* ---- over all values ------------------------------------------------------------------------- */

/* Addresses are ored: of values of element t, and of floats. */
static bool channels_in_fours(norm_shape s, element t, uintptr_t values, uintptr_t floats)
{
    return in_fours((size_t)s.c, element_bytes(t), values) &&
           in_fours((size_t)s.c, sizeof(float), floats);
}

template <int EACH, class T>
static __global__ void __launch_bounds__(THREADS)
    apply(const step_args *a, norm_shape s, size_t count, const T *x, const float *saved,
          const float *w, const float *b, const T *also, bool relu, T *y)
{
    size_t live = (size_t)a->n * (size_t)s.hw * (size_t)s.c;
    FOR_EACH(k, count / EACH)
    {
        size_t i = k * EACH, c = (size_t)divide(k, s.c / EACH).rest * EACH;
        pack<T, EACH> result, in = {}, more = {};
        if (i < live) {
            in = take<EACH>(x, i);
            if (also)
                more = take<EACH>(also, i);
        }
        pack<float, EACH> mean = take<EACH>(saved, c), inverse = take<EACH>(saved + s.c, c),
                          scale = take<EACH>(w, c), shift = take<EACH>(b, c);
        for (int j = 0; j < EACH; j++) {
            float value = (to_float(in.at[j]) - mean.at[j]) * inverse.at[j] * scale.at[j] +
                          shift.at[j] + to_float(more.at[j]);
            if (relu && value < 0)
                value = 0;
            put(&result.at[j], i < live ? value : 0.0f);
        }
        store<EACH>(y, i, result);
    }
}

void cuda_norm_apply(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                     const float *saved, const float *w, const float *b, const void *also,
                     bool relu, void *y)
{
    size_t count = (size_t)s.n * (size_t)s.hw * (size_t)s.c;
    bool fours = channels_in_fours(s, t, (uintptr_t)x | (uintptr_t)also | (uintptr_t)y,
                                   (uintptr_t)saved | (uintptr_t)w | (uintptr_t)b);
    BY_ELEMENT(t, BY_FOURS(fours, LAUNCH((apply<EACH, T>), blocks_for(count / EACH), THREADS,
                                         stream, a, s, count, (const T *)x, saved, w, b,
                                         (const T *)also, relu, (T *)y)));
}

/* With u = (x - mean) * inverse:  dw = sum dy u,  db = sum dy. */
static __global__ void __launch_bounds__(THREADS)
    finish_backward(norm_shape s, unsigned splits, const double *scratch, float *dw, float *db)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    double sum, sum_u;
    add_splits(scratch, splits, s.c, c, &sum, &sum_u);
    if (threadIdx.y > 0 || c >= s.c)
        return;
    db[c] = (float)sum;
    dw[c] = (float)sum_u;
}

/* dx = w * inverse * (dy - db/count - u * dw/count) */
template <int EACH, class T>
static __global__ void __launch_bounds__(THREADS)
    apply_backward(const step_args *a, norm_shape s, size_t count, const T *x, const T *y,
                   const float *saved, const float *w, const T *dy, const float *dw,
                   const float *db, T *dx, bool add, T *dalso, bool add_also)
{
    size_t live = (size_t)a->n * (size_t)s.hw * (size_t)s.c;
    float share = 1 / ((float)a->n * (float)s.hw);
    FOR_EACH(k, count / EACH)
    {
        size_t i = k * EACH, c = (size_t)divide(k, s.c / EACH).rest * EACH;
        pack<float, EACH> d = {}, back = {};
        if (i < live) {
            pack<T, EACH> in = take<EACH>(x, i), sent = take<EACH>(dy, i), out = sent;
            if (y)
                out = take<EACH>(y, i);
            pack<float, EACH> mean = take<EACH>(saved, c), inverse = take<EACH>(saved + s.c, c),
                              scale = take<EACH>(w, c), of_w = take<EACH>(dw, c),
                              of_b = take<EACH>(db, c);
            for (int j = 0; j < EACH; j++) {
                float u = (to_float(in.at[j]) - mean.at[j]) * inverse.at[j];
                d.at[j] = y && !(to_float(out.at[j]) > 0) ? 0.0f : to_float(sent.at[j]);
                back.at[j] = scale.at[j] * inverse.at[j] *
                             (d.at[j] - of_b.at[j] * share - u * (of_w.at[j] * share));
            }
        }
        if (dx)
            give<EACH>(dx, i, back, add);
        if (dalso)
            give<EACH>(dalso, i, d, add_also);
    }
}

void cuda_norm_backward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                        const void *y, const float *saved, const float *w, const void *dy,
                        double *scratch, float *dw, float *db, void *dx, bool add, void *dalso,
                        bool add_also)
{
    unsigned splits = splits_of(s);
    size_t count = (size_t)s.n * (size_t)s.hw * (size_t)s.c;
    BY_ELEMENT(t, LAUNCH_BLOCK((partial_sums<T, true>), dim3(channel_blocks(s.c), splits),
                               block_of(s.c), stream, a, s, (const T *)x, (const T *)y, saved,
                               (const T *)dy, scratch));
    LAUNCH_BLOCK(finish_backward, channel_blocks(s.c), block_of(s.c), stream, s, splits, scratch,
                 dw, db);
    if (!dx && !dalso)
        return;
    bool fours = channels_in_fours(
        s, t, (uintptr_t)x | (uintptr_t)y | (uintptr_t)dy | (uintptr_t)dx | (uintptr_t)dalso,
        (uintptr_t)saved | (uintptr_t)w | (uintptr_t)dw | (uintptr_t)db);
    BY_ELEMENT(t,
               BY_FOURS(fours, LAUNCH((apply_backward<EACH, T>), blocks_for(count / EACH), THREADS,
                                      stream, a, s, count, (const T *)x, (const T *)y, saved, w,
                                      (const T *)dy, dw, db, (T *)dx, add, (T *)dalso, add_also)));
}
