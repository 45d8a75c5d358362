/* norm.cu: batch norm over NHWC; see cuda_kernels.h.
 *
 * Forward and backward are two kernels each: sums over each channel, then a pass over all values. A
 * block sums some rows of up to 32 channels. The last block of those channels to end adds the
 * blocks' sums, in their order, and computes what the second kernel needs. Where a channel has few
 * values, one block does all of it for a few channels.
 *
 * Values are summed about the channel's first value. The sum of squares minus the square of the sum
 * then keeps its digits however far from zero the channel is. A few rows at a time may therefore be
 * summed in floats (a GPU turns few floats into doubles a cycle), and these sums in doubles.
 *
 * A thread loads several values before it uses the first, or it would wait for memory once a value.
 * It stays with its channels, whose numbers it reads once. */
#include "device.cuh"

/* Blocks that sum: about one for each of a large GPU's 132 multiprocessors, each with many threads,
 * as the last one reads what each of them has left. */
enum {
    CHANNELS = 32,
    SUM_THREADS = 512,
    WARPS = SUM_THREADS / LANES,
    ROWS_EACH = 128,
    SUM_BLOCKS = 128,
    FEW_ROWS = 2048,
    SECTOR_BYTES = 32, /* what memory is read in */
    COUNTERS = 2048,   /* of blocks that have ended; as many groups of channels in a launch */
    COUNTER_DOUBLES = COUNTERS / 2,
};

/* Channels that a block sums. */
static inline unsigned width_of(int C)
{
    return C > CHANNELS / 2 ? CHANNELS : C > CHANNELS / 4 ? CHANNELS / 2 : CHANNELS / 4;
}

static inline unsigned channel_blocks(int C, unsigned width)
{
    return ((unsigned)C + width - 1) / width;
}

static inline size_t rows_of(norm_shape s)
{
    return (size_t)s.n * (size_t)s.hw;
}

static inline unsigned splits_of(norm_shape s)
{
    size_t splits = (rows_of(s) + ROWS_EACH - 1) / ROWS_EACH;
    size_t most = SUM_BLOCKS / channel_blocks(s.c, width_of(s.c));
    splits = splits > most ? most : splits;
    return (unsigned)(splits ? splits : 1);
}

/* The counters, and then (splits, 2, C). */
size_t cuda_norm_scratch(norm_shape s)
{
    return COUNTER_DOUBLES + 2 * (size_t)splits_of(s) * (size_t)s.c;
}

/* Calls body<EACH, T>. EACH is how many values a pass over all values reads and writes at once: 8
 * (of bf16 alone), 4 or 1. */
#define BY_PACKS(packs, T, ...)                                                                    \
    do {                                                                                           \
        if ((packs) == 8) {                                                                        \
            enum { EACH = sizeof(T) == sizeof(float) ? 4 : 8 };                                    \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            BY_FOURS((packs) == 4, __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)

/* How many values are read at once, sixteen bytes at most. Addresses are ored: `values` those of
 * values of element t, `floats` those of floats. */
static int pack_of(norm_shape s, element t, uintptr_t values, uintptr_t floats)
{
    if (t == ELEMENT_BF16 && s.c % 8 == 0 && values % 16 == 0 && floats % 32 == 0)
        return 8;
    return in_fours((size_t)s.c, element_bytes(t), values) &&
                   in_fours((size_t)s.c, sizeof(float), floats)
               ? 4
               : 1;
}

/* ---- what a value becomes -------------------------------------------------------------------- */

/* The numbers of a thread's channels; scale is w * inverse. */
template <int EACH> struct scaling {
    pack<float, EACH> mean, scale, shift;
};

template <int EACH>
static __device__ __forceinline__ scaling<EACH> scaling_of(const float *saved, const float *w,
                                                           const float *b, int C, size_t c)
{
    scaling<EACH> of = {take<EACH>(saved, c), take<EACH>(saved, (size_t)C + c), take<EACH>(b, c)};
    pack<float, EACH> of_w = take<EACH>(w, c);
    UNROLL
    for (int k = 0; k < EACH; k++)
        of.scale.at[k] *= of_w.at[k];
    return of;
}

/* One expression for both directions, so that backward finds the zeros that forward's ReLU made. */
template <int EACH>
static __device__ __forceinline__ float normalised(const scaling<EACH> &of, int k, float x)
{
    return fmaf(x - of.mean.at[k], of.scale.at[k], of.shift.at[k]);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The inputs of a batch norm that a kernel reads. Forward sums read x alone. */
template <class T> struct norm_input {
    const step_args *a;
    norm_shape s;
    const T *x, *dy;
    const T *y; /* where something was added before the ReLU: its output; otherwise nullptr */
    const float *saved, *w, *b;
    bool relu;
};

/* dy as the ReLU lets it through. */
template <int EACH, class T>
static __device__ __forceinline__ float
let_through(const norm_input<T> &in, const scaling<EACH> &of, int k, float x, T y, T dy)
{
    bool kept = !in.relu || (in.y ? to_float(y) > 0 : normalised(of, k, x) > 0);
    return kept ? to_float(dy) : 0.0f;
}

/* A thread's two sums of each of its channels: forward of x - base and its square, backward of
 * what the ReLU lets through and of that times x - mean. */
template <int EACH> struct channel_sums {
    pack<double, EACH> first, second;
};

template <int EACH, int AT_ONCE, class T, bool BACKWARD>
static __device__ __forceinline__ void add_rows(const norm_input<T> &in, const scaling<EACH> &of,
                                                size_t at, size_t step, size_t end,
                                                channel_sums<EACH> *sums)
{
    pack<T, EACH> value[AT_ONCE] = {}, out[AT_ONCE] = {}, back[AT_ONCE] = {};
    pack<float, EACH> first = {}, second = {};
    UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        if (at + (size_t)j * step >= end)
            continue;
        value[j] = take<EACH>(in.x, at + (size_t)j * step);
        if (BACKWARD)
            back[j] = take<EACH>(in.dy, at + (size_t)j * step);
        if (BACKWARD && in.y)
            out[j] = take<EACH>(in.y, at + (size_t)j * step);
    }
    UNROLL
    for (int j = 0; j < AT_ONCE; j++) {
        if (at + (size_t)j * step >= end)
            continue;
        UNROLL
        for (int k = 0; k < EACH; k++) {
            float x = to_float(value[j].at[k]), apart = x - of.mean.at[k];
            float a =
                BACKWARD ? let_through<EACH, T>(in, of, k, x, out[j].at[k], back[j].at[k]) : apart;
            first.at[k] += a;
            second.at[k] += a * apart;
        }
    }
    UNROLL
    for (int k = 0; k < EACH; k++) {
        sums->first.at[k] += (double)first.at[k];
        sums->second.at[k] += (double)second.at[k];
    }
}

/* Every `lines`th row from `line` on of channels c to c + EACH. */
template <int EACH, class T, bool BACKWARD>
static __device__ __forceinline__ void sum_rows(const norm_input<T> &in, const scaling<EACH> &of,
                                                int c, size_t line, size_t lines,
                                                channel_sums<EACH> *sums)
{
    enum { AT_ONCE = BACKWARD || sizeof(T) == sizeof(float) ? 4 : 8 };
    size_t C = (size_t)in.s.c, rows = (size_t)in.a->n * (size_t)in.s.hw;
    for (size_t row = line; row < rows; row += AT_ONCE * lines)
        add_rows<EACH, AT_ONCE, T, BACKWARD>(in, of, row * C + (size_t)c, lines * C, rows * C,
                                             sums);
}

/* The value about which a thread's channels are summed: forward their first value, backward the
 * mean. */
template <int EACH, class T, bool BACKWARD>
static __device__ __forceinline__ scaling<EACH> about(const norm_input<T> &in, int c)
{
    if (BACKWARD)
        return scaling_of<EACH>(in.saved, in.w, in.b, in.s.c, (size_t)c);
    scaling<EACH> of = {};
    pack<T, EACH> first_row = take<EACH>(in.x, (size_t)c);
    UNROLL
    for (int k = 0; k < EACH; k++)
        of.mean.at[k] = to_float(first_row.at[k]);
    return of;
}

static __device__ __forceinline__ unsigned thread_of_block(void)
{
    return threadIdx.y * blockDim.x + threadIdx.x;
}

struct two_sums {
    double first, second;
};

/* Over this block's lines, in a fixed order. Thread t gets the sums of the block's channel t. */
template <int EACH> static __device__ two_sums sum_lines(channel_sums<EACH> mine)
{
    __shared__ two_sums room[WARPS][CHANNELS];
    unsigned t = thread_of_block(), lane = t % LANES, width = blockDim.x * EACH;
    for (unsigned apart = blockDim.x; apart < LANES; apart *= 2) {
        UNROLL
        for (int k = 0; k < EACH; k++) {
            mine.first.at[k] += __shfl_xor_sync(ALL_LANES, mine.first.at[k], (int)apart);
            mine.second.at[k] += __shfl_xor_sync(ALL_LANES, mine.second.at[k], (int)apart);
        }
    }
    __syncthreads(); /* the sums before these have been read */
    UNROLL
    for (int k = 0; k < EACH && lane < blockDim.x; k++)
        room[t / LANES][lane * EACH + (unsigned)k] = {mine.first.at[k], mine.second.at[k]};
    __syncthreads();
    two_sums all = {0, 0};
    UNROLL
    for (int w = 0; w < WARPS; w++) {
        if (t >= width)
            break;
        all.first += room[w][t].first;
        all.second += room[w][t].second;
    }
    return all;
}

/* Where sums go: forward saved, the running statistics and the counter; backward dw and db. */
struct norm_sums {
    float *saved, *running_mean, *running_var;
    int64_t *counter;
    float *dw, *db;
};

/* base: what channel c was summed about. */
static __device__ __forceinline__ void finish_forward(const step_args *a, const norm_shape &s,
                                                      const norm_sums &to, int c, double base,
                                                      const two_sums &sums)
{
    double count = (double)a->n * (double)s.hw, share = 1 / count;
    double apart = sums.first * share, mean = base + apart;
    double var = sums.second * share - apart * apart;
    var = var < 0 ? 0 : var; /* NaN stays */
    to.saved[c] = (float)mean;
    to.saved[s.c + c] = (float)rsqrt(var + s.eps);
    if (count > 1) {
        double m = s.momentum, unbiased = var * (count / (count - 1));
        to.running_mean[c] = (float)((1 - m) * (double)to.running_mean[c] + m * mean);
        to.running_var[c] = (float)((1 - m) * (double)to.running_var[c] + m * unbiased);
    }
    if (c == 0)
        ++*to.counter;
}

/* Writes the results of channel c: dw = sum dy u and db = sum dy, u = (x - mean) * inverse. */
template <class T, bool BACKWARD>
static __device__ __forceinline__ void finish(const norm_input<T> &in, const norm_sums &to, int c,
                                              const two_sums &sums)
{
    if (BACKWARD) {
        to.db[c] = (float)sums.first;
        to.dw[c] = (float)(sums.second * (double)in.saved[in.s.c + c]);
    } else {
        finish_forward(in.a, in.s, to, c, (double)to_float(in.x[c]), sums);
    }
}

/* Adds the sums of this thread's channels, of every `blockDim.y`th block. */
template <int EACH>
static __device__ __forceinline__ channel_sums<EACH> add_splits(const double *scratch, int C, int c)
{
    channel_sums<EACH> sums = {};
    for (unsigned i = threadIdx.y; c < C && i < gridDim.y; i += blockDim.y) {
        size_t at = 2 * (size_t)i * (size_t)C + (size_t)c;
        pack<double, EACH> first = take_shared<EACH>(scratch, at),
                           second = take_shared<EACH>(scratch, at + (size_t)C);
        UNROLL
        for (int k = 0; k < EACH; k++) {
            sums.first.at[k] += first.at[k];
            sums.second.at[k] += second.at[k];
        }
    }
    return sums;
}

/* Blocks take the channels in groups of their width; `from` is the first group of this launch. */
template <int EACH, class T, bool BACKWARD>
static __global__ void __launch_bounds__(SUM_THREADS, 1)
    sum_channels(norm_input<T> in, unsigned from, unsigned *counters, double *scratch, norm_sums to)
{
    int C = in.s.c, width = (int)blockDim.x * EACH;
    int first = (int)(from + blockIdx.x) * width, c = first + (int)threadIdx.x * EACH;
    int mine = first + (int)thread_of_block(); /* whose sums this thread gets */
    bool sums_up = (int)thread_of_block() < width && mine < C;
    channel_sums<EACH> rows = {};
    if (c < C)
        sum_rows<EACH, T, BACKWARD>(in, about<EACH, T, BACKWARD>(in, c), c,
                                    blockIdx.y * blockDim.y + threadIdx.y,
                                    (size_t)gridDim.y * blockDim.y, &rows);
    two_sums all = sum_lines<EACH>(rows);
    if (sums_up) {
        size_t at = 2 * (size_t)blockIdx.y * (size_t)C + (size_t)mine;
        scratch[at] = all.first;
        scratch[at + (size_t)C] = all.second;
    }
    if (!is_last_block(&counters[blockIdx.x], gridDim.y))
        return;
    all = sum_lines<EACH>(add_splits<EACH>(scratch, C, c));
    if (sums_up)
        finish<T, BACKWARD>(in, to, mine, all);
}

template <class T, bool BACKWARD>
static void launch_sums(void *stream, element t, const norm_input<T> &in, double *scratch,
                        norm_sums to)
{
    unsigned width = width_of(in.s.c), all = channel_blocks(in.s.c, width);
    unsigned splits = splits_of(in.s), most = COUNTERS, *counters = (unsigned *)(void *)scratch;
    double *sums = scratch + COUNTER_DOUBLES;
    bool fours =
        pack_of(in.s, t, (uintptr_t)in.x | (uintptr_t)in.y | (uintptr_t)in.dy,
                (uintptr_t)in.saved | (uintptr_t)in.w | (uintptr_t)in.b | (uintptr_t)sums) > 1;
    for (unsigned from = 0; from < all; from += most) {
        unsigned blocks = all - from < most ? all - from : most;
        BY_FOURS(fours, LAUNCH_BLOCK((sum_channels<EACH, T, BACKWARD>), dim3(blocks, splits),
                                     dim3(width / EACH, SUM_THREADS * EACH / width), stream, in,
                                     from, counters, sums, to));
    }
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

/* What forward adds, and where to. */
template <class T> struct norm_output {
    const T *also;
    T *y;
};

/* The last of from, from + far, from + 2 far ... before `count`; from < count. */
static __device__ __forceinline__ size_t last_before(size_t count, size_t from, size_t far)
{
    return from + (count - 1 - from) / far * far;
}

/* Applies the norm to every `step`th pack from `from` on, of `count` packs; packs from `live` on
 * are zero. The last pack comes first: of a tensor that is larger than the cache, the sums have
 * left the end in the cache. This pass leaves the beginning there, where the next layer begins. */
template <int EACH, class T>
static __device__ __forceinline__ void
apply_packs(const norm_input<T> &in, const norm_output<T> &out, const scaling<EACH> &of,
            size_t from, size_t step, size_t live, size_t count)
{
    enum { AT_ONCE = 4 };
    if (from >= count)
        return;
    /* A loop that counts takes half as many registers more. */
    for (size_t i = last_before(count, from, AT_ONCE * step);; i -= AT_ONCE * step) {
        pack<T, EACH> value[AT_ONCE] = {}, more[AT_ONCE] = {};
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            if (at >= live)
                continue;
            value[j] = take<EACH>(in.x, at);
            if (out.also)
                more[j] = take<EACH>(out.also, at);
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            pack<T, EACH> result = {};
            UNROLL
            for (int k = 0; k < EACH; k++) {
                float y = normalised(of, k, to_float(value[j].at[k])) + to_float(more[j].at[k]);
                y = in.relu && y < 0 ? 0.0f : y;
                put(&result.at[k], at < live ? y : 0.0f);
            }
            if (at < count)
                store<EACH>(out.y, at, result);
        }
        if (i == from)
            return;
    }
}

/* Where a gradient goes, and whether something is there already. */
template <class T> struct norm_gradients {
    T *dx;
    bool add;
    T *dalso;
    bool add_also;
};

/* dx = w * inverse * (dy - db/count - u * dw/count), u = (x - mean) * inverse; of_w and of_b are
 * dw * inverse / count and db / count. As apply_packs. */
template <int EACH, class T>
static __device__ __forceinline__ void
send_packs(const norm_input<T> &in, const norm_gradients<T> &out, const scaling<EACH> &of,
           const pack<float, EACH> &of_w, const pack<float, EACH> &of_b, size_t from, size_t step,
           size_t live, size_t count)
{
    enum { AT_ONCE = EACH == 8 ? 1 : 2 };
    if (from >= count)
        return;
    for (size_t i = last_before(count, from, AT_ONCE * step);; i -= AT_ONCE * step) {
        pack<T, EACH> value[AT_ONCE] = {}, sent[AT_ONCE] = {}, y[AT_ONCE] = {};
        pack<T, EACH> before[AT_ONCE] = {}, before_also[AT_ONCE] = {};
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            if (at < live) {
                value[j] = take<EACH>(in.x, at);
                sent[j] = take<EACH>(in.dy, at);
                if (in.y)
                    y[j] = take<EACH>(in.y, at);
            }
            if (out.dx && out.add && at < count)
                before[j] = take<EACH>((const T *)out.dx, at);
            if (out.dalso && out.add_also && at < count)
                before_also[j] = take<EACH>((const T *)out.dalso, at);
        }
        UNROLL
        for (int j = 0; j < AT_ONCE; j++) {
            size_t at = i + (size_t)j * step;
            pack<T, EACH> result = {}, passed = {};
            UNROLL
            for (int k = 0; k < EACH; k++) {
                float x = to_float(value[j].at[k]);
                float d = let_through<EACH, T>(in, of, k, x, y[j].at[k], sent[j].at[k]);
                float back = of.scale.at[k] * (d - of_b.at[k] - (x - of.mean.at[k]) * of_w.at[k]);
                put(&result.at[k], to_float(before[j].at[k]) + (at < live ? back : 0.0f));
                put(&passed.at[k], to_float(before_also[j].at[k]) + (at < live ? d : 0.0f));
            }
            if (out.dx && at < count)
                store<EACH>(out.dx, at, result);
            if (out.dalso && at < count)
                store<EACH>(out.dalso, at, passed);
        }
        if (i == from)
            return;
    }
}

static __device__ __forceinline__ size_t live_values(const step_args *a, const norm_shape &s)
{
    return (size_t)a->n * (size_t)s.hw * (size_t)s.c;
}

/* What send_packs needs of a channel. */
template <int EACH, class T>
static __device__ __forceinline__ void shares_of(const norm_input<T> &in, const float *dw,
                                                 const float *db, size_t c, pack<float, EACH> *of_w,
                                                 pack<float, EACH> *of_b)
{
    float share = 1 / ((float)in.a->n * (float)in.s.hw);
    pack<float, EACH> inverse = take<EACH>(in.saved, (size_t)in.s.c + c);
    *of_w = take<EACH>(dw, c), *of_b = take<EACH>(db, c);
    UNROLL
    for (int k = 0; k < EACH; k++) {
        of_b->at[k] *= share;
        of_w->at[k] *= share * inverse.at[k];
    }
}

template <int EACH, class T>
static __global__ void __launch_bounds__(THREADS)
    apply(norm_input<T> in, size_t count, norm_output<T> out)
{
    size_t from = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    size_t step = (size_t)gridDim.x * blockDim.x * EACH, c = divide(from, in.s.c).rest;
    apply_packs<EACH, T>(in, out, scaling_of<EACH>(in.saved, in.w, in.b, in.s.c, c), from, step,
                         live_values(in.a, in.s), count);
}

template <int EACH, class T>
static __global__ void __launch_bounds__(THREADS)
    send(norm_input<T> in, size_t count, const float *dw, const float *db, norm_gradients<T> out)
{
    size_t from = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    size_t step = (size_t)gridDim.x * blockDim.x * EACH, c = divide(from, in.s.c).rest;
    pack<float, EACH> of_w, of_b;
    shares_of<EACH, T>(in, dw, db, c, &of_w, &of_b);
    send_packs<EACH, T>(in, out, scaling_of<EACH>(in.saved, in.w, in.b, in.s.c, c), of_w, of_b,
                        from, step, live_values(in.a, in.s), count);
}

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

/* ---- channels of few values ------------------------------------------------------------------ */

/* A block has all rows of as many channels as one read of memory has. */
template <int EACH, class T>
static __global__ void __launch_bounds__(SUM_THREADS, 1)
    norm_at_once(norm_input<T> in, size_t count, norm_sums to, norm_output<T> out)
{
    int C = in.s.c, width = (int)blockDim.x * EACH, first = (int)blockIdx.x * width;
    int c = first + (int)threadIdx.x * EACH, mine = first + (int)thread_of_block();
    channel_sums<EACH> rows = {};
    if (c < C)
        sum_rows<EACH, T, false>(in, about<EACH, T, false>(in, c), c, threadIdx.y, blockDim.y,
                                 &rows);
    two_sums all = sum_lines<EACH>(rows);
    if (mine < first + width && mine < C)
        finish<T, false>(in, to, mine, all);
    __syncthreads(); /* and `saved` is there for all of the block */
    if (c < C)
        apply_packs<EACH, T>(in, out, scaling_of<EACH>(to.saved, in.w, in.b, C, (size_t)c),
                             (size_t)threadIdx.y * (size_t)C + (size_t)c,
                             (size_t)blockDim.y * (size_t)C, live_values(in.a, in.s), count);
}

template <int EACH, class T>
static __global__ void __launch_bounds__(SUM_THREADS, 1)
    send_at_once(norm_input<T> in, size_t count, norm_sums to, norm_gradients<T> out)
{
    int C = in.s.c, width = (int)blockDim.x * EACH, first = (int)blockIdx.x * width;
    int c = first + (int)threadIdx.x * EACH, mine = first + (int)thread_of_block();
    channel_sums<EACH> rows = {};
    scaling<EACH> of = {};
    if (c < C) {
        of = about<EACH, T, true>(in, c);
        sum_rows<EACH, T, true>(in, of, c, threadIdx.y, blockDim.y, &rows);
    }
    two_sums all = sum_lines<EACH>(rows);
    if (mine < first + width && mine < C)
        finish<T, true>(in, to, mine, all);
    __syncthreads();
    if (c >= C || (!out.dx && !out.dalso))
        return;
    pack<float, EACH> of_w, of_b;
    shares_of<EACH, T>(in, to.dw, to.db, (size_t)c, &of_w, &of_b);
    send_packs<EACH, T>(in, out, of, of_w, of_b, (size_t)threadIdx.y * (size_t)C + (size_t)c,
                        (size_t)blockDim.y * (size_t)C, live_values(in.a, in.s), count);
}

static bool goes_at_once(norm_shape s)
{
    return rows_of(s) <= FEW_ROWS;
}

/* Channels of a block, in the kernel that does all at once. */
static unsigned narrow_width(norm_shape s, element t)
{
    unsigned most = SECTOR_BYTES / (unsigned)element_bytes(t), width = width_of(s.c);
    return width < most ? width : most;
}

/* ---- the calls ------------------------------------------------------------------------------- */

template <class T>
static void forward(void *stream, element t, const norm_input<T> &in, double *scratch,
                    const norm_sums &to, const norm_output<T> &out)
{
    size_t count = rows_of(in.s) * (size_t)in.s.c;
    int packs = pack_of(in.s, t, (uintptr_t)in.x | (uintptr_t)out.also | (uintptr_t)out.y,
                        (uintptr_t)in.saved | (uintptr_t)in.w | (uintptr_t)in.b);
    unsigned width = narrow_width(in.s, t);
    if (to.saved && goes_at_once(in.s)) {
        BY_FOURS(packs > 1, LAUNCH_BLOCK((norm_at_once<EACH, T>), channel_blocks(in.s.c, width),
                                         dim3(width / EACH, SUM_THREADS * EACH / width), stream, in,
                                         count, to, out));
        return;
    }
    if (to.saved)
        launch_sums<T, false>(stream, t, in, scratch, to);
    BY_PACKS(packs, T,
             LAUNCH((apply<EACH, T>), pass_blocks(count / EACH, (unsigned)in.s.c / EACH), THREADS,
                    stream, in, count, out));
}

void cuda_norm_forward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                       double *scratch, float *saved, float *running_mean, float *running_var,
                       int64_t *counter, const float *w, const float *b, const void *also,
                       bool relu, void *y)
{
    norm_sums to = {saved, running_mean, running_var, counter, nullptr, nullptr};
    BY_ELEMENT(t, norm_input<T> in = {a, s, (const T *)x, nullptr, nullptr, saved, w, b, relu};
               norm_output<T> out = {(const T *)also, (T *)y};
               forward<T>(stream, t, in, scratch, to, out));
}

void cuda_norm_apply(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                     const float *saved, const float *w, const float *b, const void *also,
                     bool relu, void *y)
{
    norm_sums nowhere = {};
    BY_ELEMENT(t, norm_input<T> in = {a, s, (const T *)x, nullptr, nullptr, saved, w, b, relu};
               norm_output<T> out = {(const T *)also, (T *)y};
               forward<T>(stream, t, in, nullptr, nowhere, out));
}

template <class T>
static void backward(void *stream, element t, const norm_input<T> &in, double *scratch,
                     const norm_sums &to, const norm_gradients<T> &out)
{
    size_t count = rows_of(in.s) * (size_t)in.s.c;
    uintptr_t values = (uintptr_t)in.x | (uintptr_t)in.y | (uintptr_t)in.dy | (uintptr_t)out.dx |
                       (uintptr_t)out.dalso;
    int packs = pack_of(in.s, t, values,
                        (uintptr_t)in.saved | (uintptr_t)in.w | (uintptr_t)in.b | (uintptr_t)to.dw |
                            (uintptr_t)to.db);
    unsigned width = narrow_width(in.s, t);
    if (goes_at_once(in.s)) {
        BY_FOURS(packs > 1, LAUNCH_BLOCK((send_at_once<EACH, T>), channel_blocks(in.s.c, width),
                                         dim3(width / EACH, SUM_THREADS * EACH / width), stream, in,
                                         count, to, out));
        return;
    }
    launch_sums<T, true>(stream, t, in, scratch, to);
    if (!out.dx && !out.dalso)
        return;
    BY_PACKS(packs, T,
             LAUNCH((send<EACH, T>), pass_blocks(count / EACH, (unsigned)in.s.c / EACH), THREADS,
                    stream, in, count, to.dw, to.db, out));
}

void cuda_norm_backward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                        bool relu, const void *y, const float *saved, const float *w,
                        const float *b, const void *dy, double *scratch, float *dw, float *db,
                        void *dx, bool add, void *dalso, bool add_also)
{
    norm_sums to = {nullptr, nullptr, nullptr, nullptr, dw, db};
    BY_ELEMENT(
        t, norm_input<T> in = {a, s, (const T *)x, (const T *)dy, (const T *)y, saved, w, b, relu};
        norm_gradients<T> out = {(T *)dx, add, (T *)dalso, add_also};
        backward<T>(stream, t, in, scratch, to, out));
}
