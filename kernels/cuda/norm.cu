/* norm.cu: batch norm over NHWC; see cuda_kernels.h.
 *
 * Forward and backward are two kernels each: sums over each channel, then a pass over all values. A
 * block sums some rows of up to 32 channels; the last block of those channels to end adds the
 * blocks' sums, in their order, and makes of them what the second kernel needs. What is summed lies
 * about the channel's first value: the sum of squares minus the square of the sum then keeps its
 * digits however far from zero the channel is, so that a few rows at a time may be summed in floats
 * (a GPU turns few floats into doubles a cycle), and those in doubles.
 *
 * A thread asks for several values before it uses the first, or it would wait for memory once a
 * value; and it stays with its channels, whose numbers it reads once. */
#include "cuda/device.cuh"

/* Blocks that sum: one for each of a large GPU's 132 multiprocessors, each with many threads, as
 * the last one reads what each of them has left. */
enum {
    CHANNELS = 32,
    SUM_THREADS = 512,
    ROWS_EACH = 128,
    SUM_BLOCKS = 132,
    SPLITS_AT_ONCE = 3,
    COUNTERS = 2048, /* of blocks that have ended; as many groups of channels in a launch */
    COUNTER_DOUBLES = COUNTERS / 2,
};

/* A block is so many channels wide. */
static inline unsigned width_of(int C)
{
    return C > CHANNELS / 2 ? CHANNELS : C > CHANNELS / 4 ? CHANNELS / 2 : CHANNELS / 4;
}

static inline unsigned channel_blocks(int C)
{
    return ((unsigned)C + width_of(C) - 1) / width_of(C);
}

static inline unsigned splits_of(norm_shape s)
{
    size_t rows = (size_t)s.n * (size_t)s.hw, splits = (rows + ROWS_EACH - 1) / ROWS_EACH;
    size_t most = SUM_BLOCKS / channel_blocks(s.c);
    splits = splits > most ? most : splits;
    return (unsigned)(splits ? splits : 1);
}

/* The counters, and then (splits, 2, C). */
size_t cuda_norm_scratch(norm_shape s)
{
    return COUNTER_DOUBLES + 2 * (size_t)splits_of(s) * (size_t)s.c;
}

/* What a pass over the values of a shape reads and writes in packs of. */
#define BY_PACKS(packs, element, call)                                                             \
    do {                                                                                           \
        if ((packs) == 8) {                                                                        \
            enum { EACH = 8 };                                                                     \
            typedef bf16 T;                                                                        \
            call;                                                                                  \
        } else {                                                                                   \
            BY_ELEMENT(element, BY_FOURS((packs) == 4, call));                                     \
        }                                                                                          \
    } while (0)

/* Addresses are ored: of values of element t, and of floats. Sixteen bytes at most. */
static int pack_of(norm_shape s, element t, uintptr_t values, uintptr_t floats)
{
    if (t == ELEMENT_BF16 && s.c % 8 == 0 && values % 16 == 0 && floats % 32 == 0)
        return 8;
    return in_fours((size_t)s.c, element_bytes(t), values) &&
                   in_fours((size_t)s.c, sizeof(float), floats)
               ? 4
               : 1;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A thread's two sums of each of its channels. */
template <int EACH> struct channel_sums {
    pack<double, EACH> first, second;
};

/* Over this block's lines, in a fixed order; the first line of threads gets the sums. */
template <int EACH> static __device__ void sum_lines(channel_sums<EACH> *mine)
{
    __shared__ double room[2 * EACH][SUM_THREADS];
    unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
    UNROLL
    for (int j = 0; j < EACH; j++) {
        room[2 * j][at] = mine->first.at[j];
        room[2 * j + 1][at] = mine->second.at[j];
    }
    for (unsigned half = blockDim.y / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.y >= half)
            continue;
        UNROLL
        for (int j = 0; j < 2 * EACH; j++)
            room[j][at] += room[j][at + half * blockDim.x];
    }
    if (threadIdx.y > 0)
        return;
    UNROLL
    for (int j = 0; j < EACH; j++) {
        mine->first.at[j] = room[2 * j][at];
        mine->second.at[j] = room[2 * j + 1][at];
    }
}

/* What is summed of each row. Forward: x - base and its square; backward: dy as the ReLU lets it
 * through, and that times u = (x - mean) * inverse. */
template <int EACH, class T> struct summed {
    const T *x, *y, *dy;
    pack<float, EACH> base, inverse;
};

template <int EACH, int AT_ONCE, class T, bool BACKWARD>
static __device__ __forceinline__ void add_rows(const summed<EACH, T> &of, size_t at, size_t step,
                                                size_t end, channel_sums<EACH> *sums)
{
    pack<T, EACH> value[AT_ONCE] = {}, out[AT_ONCE] = {}, back[AT_ONCE] = {};
    pack<float, EACH> first = {}, second = {};
    UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        if (at + (size_t)j * step >= end)
            continue;
        value[j] = take<EACH>(of.x, at + (size_t)j * step);
        if (BACKWARD)
            back[j] = take<EACH>(of.dy, at + (size_t)j * step);
        if (BACKWARD && of.y)
            out[j] = take<EACH>(of.y, at + (size_t)j * step);
    }
    UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        if (at + (size_t)j * step >= end)
            continue;
        UNROLL
        for (int k = 0; k < EACH; k++) {
            float a = to_float(value[j].at[k]) - of.base.at[k], b = a;
            if (BACKWARD) {
                b = a * of.inverse.at[k];
                a = of.y && !(to_float(out[j].at[k]) > 0) ? 0.0f : to_float(back[j].at[k]);
            }
            first.at[k] += a;
            second.at[k] += a * b;
        }
    }
    UNROLL
    for (int k = 0; k < EACH; k++) {
        sums->first.at[k] += (double)first.at[k];
        sums->second.at[k] += (double)second.at[k];
    }
}

/* Where sums go: forward saved, the running statistics and the counter; backward dw and db. */
struct norm_sums {
    float *saved, *running_mean, *running_var;
    int64_t *counter;
    float *dw, *db;
};

static __device__ void finish_forward(const step_args *a, const norm_shape &s, const norm_sums &to,
                                      int c, double base, double sum, double squares)
{
    double count = (double)a->n * (double)s.hw, apart = sum / count, mean = base + apart;
    double var = squares / count - apart * apart;
    var = var < 0 ? 0 : var; /* NaN stays */
    to.saved[c] = (float)mean;
    to.saved[s.c + c] = (float)(1 / sqrt(var + s.eps));
    if (count > 1) {
        double m = s.momentum;
        to.running_mean[c] = (float)((1 - m) * (double)to.running_mean[c] + m * mean);
        to.running_var[c] =
            (float)((1 - m) * (double)to.running_var[c] + m * var * count / (count - 1));
    }
    if (c == 0)
        ++*to.counter;
}

/* Of this thread's channels, over all blocks. */
template <int EACH>
static __device__ void add_splits(const double *scratch, int C, int c, channel_sums<EACH> *sums)
{
    *sums = channel_sums<EACH>();
    for (unsigned i = threadIdx.y; c < C && i < gridDim.y; i += SPLITS_AT_ONCE * blockDim.y) {
        channel_sums<EACH> of[SPLITS_AT_ONCE] = {};
        UNROLL
        for (unsigned j = 0; j < SPLITS_AT_ONCE; j++) {
            size_t at = 2 * (size_t)(i + j * blockDim.y) * (size_t)C + (size_t)c;
            if (i + j * blockDim.y >= gridDim.y)
                continue;
            of[j].first = take_shared<EACH>(scratch, at);
            of[j].second = take_shared<EACH>(scratch, at + (size_t)C);
        }
        UNROLL
        for (unsigned j = 0; j < SPLITS_AT_ONCE; j++)
            for (int k = 0; k < EACH; k++) {
                sums->first.at[k] += of[j].first.at[k];
                sums->second.at[k] += of[j].second.at[k];
            }
    }
    sum_lines<EACH>(sums);
}

/* Channels from block `from` of them on. saved: backward, what forward left there. */
template <int EACH, class T, bool BACKWARD>
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_channels(const step_args *a, norm_shape s, unsigned from, const T *x, const T *y,
                 const float *saved, const T *dy, unsigned *counters, double *scratch, norm_sums to)
{
    enum { AT_ONCE = BACKWARD || sizeof(T) == sizeof(float) ? 4 : 8 };
    int c = (int)((from + blockIdx.x) * blockDim.x + threadIdx.x) * EACH;
    size_t C = (size_t)s.c, rows = (size_t)a->n * (size_t)s.hw, step = gridDim.y * blockDim.y;
    channel_sums<EACH> sums = {};
    summed<EACH, T> of = {x + c, y ? y + c : nullptr, dy + c, {}, {}};
    if (c < s.c) {
        pack<T, EACH> first_row = {};
        if (BACKWARD) {
            of.base = take<EACH>(saved, (size_t)c);
            of.inverse = take<EACH>(saved, C + (size_t)c);
        } else {
            first_row = take<EACH>(x, (size_t)c);
            for (int k = 0; k < EACH; k++)
                of.base.at[k] = to_float(first_row.at[k]);
        }
        for (size_t row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += AT_ONCE * step)
            add_rows<EACH, AT_ONCE, T, BACKWARD>(of, row * C, step * C, rows * C, &sums);
    }
    sum_lines<EACH>(&sums);
    if (threadIdx.y == 0 && c < s.c) {
        size_t at = 2 * (size_t)blockIdx.y * C + (size_t)c;
        store<EACH>(scratch, at, sums.first);
        store<EACH>(scratch, at + C, sums.second);
    }
    if (!is_last_block(&counters[blockIdx.x], gridDim.y))
        return;
    add_splits<EACH>(scratch, s.c, c, &sums);
    if (threadIdx.y > 0 || c >= s.c)
        return;
    for (int k = 0; k < EACH; k++) {
        if (BACKWARD) { /* dw = sum dy u,  db = sum dy */
            to.db[c + k] = (float)sums.first.at[k];
            to.dw[c + k] = (float)sums.second.at[k];
        } else {
            finish_forward(a, s, to, c + k, (double)of.base.at[k], sums.first.at[k],
                           sums.second.at[k]);
        }
    }
}

template <bool BACKWARD>
static void launch_sums(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                        const void *y, const float *saved, const void *dy, double *scratch,
                        norm_sums to)
{
    unsigned all = channel_blocks(s.c), splits = splits_of(s), width = width_of(s.c);
    unsigned *counters = (unsigned *)(void *)scratch;
    double *sums = scratch + COUNTER_DOUBLES;
    int packs = pack_of(s, t, (uintptr_t)x | (uintptr_t)y | (uintptr_t)dy,
                        (uintptr_t)saved | (uintptr_t)sums);
    for (unsigned from = 0; from < all; from += COUNTERS) {
        unsigned most = COUNTERS, blocks = all - from < most ? all - from : most;
        BY_ELEMENT(t, BY_FOURS(packs > 1,
                               LAUNCH_BLOCK((sum_channels<EACH, T, BACKWARD>), dim3(blocks, splits),
                                            dim3(width / EACH, SUM_THREADS * EACH / width), stream,
                                            a, s, from, (const T *)x, (const T *)y, saved,
                                            (const T *)dy, counters, sums, to)));
    }
}

void cuda_norm_statistics(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                          double *scratch, float *saved, float *running_mean, float *running_var,
                          int64_t *counter)
{
    launch_sums<false>(stream, t, a, s, x, nullptr, nullptr, nullptr, scratch,
                       {saved, running_mean, running_var, counter, nullptr, nullptr});
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

/* Eight blocks for each of a large GPU's multiprocessors. */
enum { PASS_BLOCKS = 1056 };

/* Blocks for so many packs, `wide` of them a row: all threads together step over whole rows, so
 * that each stays with its channels. */
static inline unsigned pass_blocks(size_t packs, unsigned wide)
{
    size_t blocks = (packs + THREADS - 1) / THREADS, most = PASS_BLOCKS;
    unsigned a = wide, b = THREADS;
    while (b) {
        unsigned rest = a % b;
        a = b;
        b = rest;
    }
    unsigned unit = wide / a;
    blocks = blocks > most ? most : blocks;
    return ((unsigned)blocks + unit - 1) / unit * unit;
}

template <int EACH, class T>
static __global__ void __launch_bounds__(THREADS)
    apply(const step_args *a, norm_shape s, size_t count, const T *x, const float *saved,
          const float *w, const float *b, const T *also, bool relu, T *y)
{
    enum { AT_ONCE = 4 };
    size_t live = (size_t)a->n * (size_t)s.hw * (size_t)s.c;
    size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    size_t step = (size_t)gridDim.x * blockDim.x * EACH, c = divide(first, s.c).rest;
    const pack<float, EACH> mean = take<EACH>(saved, c), shift = take<EACH>(b, c);
    pack<float, EACH> scale = take<EACH>(saved, (size_t)s.c + c), of_w = take<EACH>(w, c);
    UNROLL
    for (int k = 0; k < EACH; k++)
        scale.at[k] *= of_w.at[k];
    for (size_t i = first; i < count; i += AT_ONCE * step) {
        pack<T, EACH> in[AT_ONCE] = {}, more[AT_ONCE] = {};
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            if (at >= live)
                continue;
            in[j] = take<EACH>(x, at);
            if (also)
                more[j] = take<EACH>(also, at);
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            pack<T, EACH> result = {};
            UNROLL
            for (int k = 0; k < EACH; k++) {
                float value = (to_float(in[j].at[k]) - mean.at[k]) * scale.at[k] + shift.at[k] +
                              to_float(more[j].at[k]);
                if (relu && value < 0)
                    value = 0;
                put(&result.at[k], at < live ? value : 0.0f);
            }
            if (at < count)
                store<EACH>(y, at, result);
        }
    }
}

void cuda_norm_apply(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                     const float *saved, const float *w, const float *b, const void *also,
                     bool relu, void *y)
{
    size_t count = (size_t)s.n * (size_t)s.hw * (size_t)s.c;
    int packs = pack_of(s, t, (uintptr_t)x | (uintptr_t)also | (uintptr_t)y,
                        (uintptr_t)saved | (uintptr_t)w | (uintptr_t)b);
    BY_PACKS(packs, t,
             LAUNCH((apply<EACH, T>), pass_blocks(count / EACH, (unsigned)s.c / EACH), THREADS,
                    stream, a, s, count, (const T *)x, saved, w, b, (const T *)also, relu, (T *)y));
}

/* dx = w * inverse * (dy - db/count - u * dw/count), u = (x - mean) * inverse. */
template <int EACH, class T>
static __global__ void __launch_bounds__(THREADS)
    apply_backward(const step_args *a, norm_shape s, size_t count, const T *x, const T *y,
                   const float *saved, const float *w, const T *dy, const float *dw,
                   const float *db, T *dx, bool add, T *dalso, bool add_also)
{
    enum { AT_ONCE = 2 };
    size_t live = (size_t)a->n * (size_t)s.hw * (size_t)s.c;
    float share = 1 / ((float)a->n * (float)s.hw);
    size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    size_t step = (size_t)gridDim.x * blockDim.x * EACH, c = divide(first, s.c).rest;
    const pack<float, EACH> mean = take<EACH>(saved, c), inverse = take<EACH>(saved, s.c + c);
    pack<float, EACH> scale = take<EACH>(w, c), of_w = take<EACH>(dw, c), of_b = take<EACH>(db, c);
    UNROLL
    for (int k = 0; k < EACH; k++) { /* dx = scale * (d - of_b - (x - mean) * of_w) */
        scale.at[k] *= inverse.at[k];
        of_b.at[k] *= share;
        of_w.at[k] *= share * inverse.at[k];
    }
    for (size_t i = first; i < count; i += AT_ONCE * step) {
        pack<T, EACH> in[AT_ONCE] = {}, sent[AT_ONCE] = {}, out[AT_ONCE] = {};
        pack<T, EACH> before[AT_ONCE] = {}, before_also[AT_ONCE] = {};
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            if (at < live) {
                in[j] = take<EACH>(x, at);
                sent[j] = take<EACH>(dy, at);
                if (y)
                    out[j] = take<EACH>(y, at);
            }
            if (dx && add && at < count)
                before[j] = take<EACH>((const T *)dx, at);
            if (dalso && add_also && at < count)
                before_also[j] = take<EACH>((const T *)dalso, at);
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            pack<T, EACH> result = {}, passed = {};
            UNROLL
            for (int k = 0; k < EACH; k++) {
                float d = y && !(to_float(out[j].at[k]) > 0) ? 0.0f : to_float(sent[j].at[k]);
                float back = scale.at[k] *
                             (d - of_b.at[k] - (to_float(in[j].at[k]) - mean.at[k]) * of_w.at[k]);
                back = at < live ? back : 0.0f;
                put(&result.at[k], to_float(before[j].at[k]) + back);
                put(&passed.at[k], to_float(before_also[j].at[k]) + d);
            }
            if (dx && at < count)
                store<EACH>(dx, at, result);
            if (dalso && at < count)
                store<EACH>(dalso, at, passed);
        }
    }
}

void cuda_norm_backward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                        const void *y, const float *saved, const float *w, const void *dy,
                        double *scratch, float *dw, float *db, void *dx, bool add, void *dalso,
                        bool add_also)
{
    size_t count = (size_t)s.n * (size_t)s.hw * (size_t)s.c;
    launch_sums<true>(stream, t, a, s, x, y, saved, dy, scratch,
                      {nullptr, nullptr, nullptr, nullptr, dw, db});
    if (!dx && !dalso)
        return;
    int packs = pack_of(
        s, t, (uintptr_t)x | (uintptr_t)y | (uintptr_t)dy | (uintptr_t)dx | (uintptr_t)dalso,
        (uintptr_t)saved | (uintptr_t)w | (uintptr_t)dw | (uintptr_t)db);
    BY_PACKS(packs, t,
             LAUNCH((apply_backward<EACH, T>), pass_blocks(count / EACH, (unsigned)s.c / EACH),
                    THREADS, stream, a, s, count, (const T *)x, (const T *)y, saved, w,
                    (const T *)dy, dw, db, (T *)dx, add, (T *)dalso, add_also));
}
