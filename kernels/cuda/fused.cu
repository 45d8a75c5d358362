/* fused.cu: a small convolution with its bias, ReLU and max pooling as one kernel, and their
 * backward as two; see cuda_kernels.h. The kernels here take any geometry; fused_tiles.cu has those
 * for the usual one. The last kernel is the same for both.
 *
 * A block computes one sample, or a part of a sample where there are fewer samples than a GPU has
 * processors; the sample's input and all weights lie in its shared memory. The convolution's result
 * is kept nowhere: forward keeps for each window which place has won, and only these places have a
 * gradient. Gradients of weights are summed in each block over its windows and then over the
 * blocks, in a fixed order. The kernel that sums over the blocks reads no weights, so that the
 * weights can take their step there. */
#include "fused.cuh"
#include "optim.cuh"

/* Static shared memory is 48 KiB. A place is its row and its column, of eight bits each. Blocks:
 * two for each of a large GPU's 132 multiprocessors. */
enum {
    FUSED_FLOATS = 10240,
    FUSED_WINDOWS = 2560,
    FUSED_PRODUCTS = 1 << 19,
    SIDE_MAX = 256,
    BLOCKS_WANTED = 264,
    SHARES_MAX = 8,
};

static __device__ __host__ __forceinline__ int sample_floats(const conv_shape &s)
{
    return s.h * s.w * s.c;
}

static __device__ __host__ __forceinline__ int weight_floats(const conv_shape &s)
{
    return s.k * s.r * s.s * s.c;
}

static __device__ __host__ __forceinline__ int windows(const conv_shape &s, const pool_shape &o)
{
    return o.p * o.q * s.k;
}

bool cuda_conv_pool_fits(conv_shape s, pool_shape o)
{
    int64_t sample = (int64_t)s.h * s.w * s.c, weights = (int64_t)s.k * s.r * s.s * s.c;
    int64_t sends = (int64_t)o.p * o.q * s.k, places = (int64_t)s.p * s.q;
    if (s.groups != 1 || o.adaptive || o.pad_h || o.pad_w || o.stride_h < o.kernel_h ||
        o.stride_w < o.kernel_w)
        return false; /* a place is in one window at most */
    return sample + weights + sends <= FUSED_FLOATS && sends <= FUSED_WINDOWS && s.p <= SIDE_MAX &&
           s.q <= SIDE_MAX && places * weights <= FUSED_PRODUCTS;
}

/* Blocks for each sample; at most `most`. */
static unsigned shares_of(int n, int most)
{
    int wanted = BLOCKS_WANTED / n;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

size_t cuda_conv_pool_scratch(conv_shape s)
{
    return (size_t)s.n * shares_of(s.n, SHARES_MAX) * ((size_t)weight_floats(s) + (size_t)s.k);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* One row of a window. Where nothing lies between its taps they are one run of values. */
static __device__ __forceinline__ float convolve_row(const conv_shape &s, const float *row,
                                                     const float *w, int v, float sum)
{
    if (s.dil_w == 1) {
        int to = min(s.s, s.w - v) * s.c;
        for (int i = max(0, -v) * s.c; i < to; i++)
            sum += row[v * s.c + i] * w[i];
        return sum;
    }
    for (int q = 0; q < s.s; q++, v += s.dil_w)
        for (int c = 0; v >= 0 && v < s.w && c < s.c; c++)
            sum += row[v * s.c + c] * w[q * s.c + c];
    return sum;
}

/* The convolution at place (i, j) for filter k, without bias. x (h, w, c), w (k, r, s, c). */
static __device__ float convolve_at(const conv_shape &s, const float *x, const float *w, int i,
                                    int j, int k)
{
    float sum = 0;
    for (int r = 0; r < s.r; r++) {
        int h = i * s.stride_h - s.pad_h + r * s.dil_h;
        if (h >= 0 && h < s.h)
            sum = convolve_row(s, x + h * s.w * s.c, w + (k * s.r + r) * s.s * s.c,
                               j * s.stride_w - s.pad_w, sum);
    }
    return sum;
}

/* As max_forward: the first of equals wins, a NaN wins over what came before it. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    conv_pool_forward(conv_shape s, pool_shape o, const T *x, const T *w, const float *bias,
                      bool relu, uint16_t *winner, T *y)
{
    __shared__ float room[FUSED_FLOATS];
    int n = (int)blockIdx.x, floats = sample_floats(s), weights = weight_floats(s),
        outputs = windows(s, o);
    float *sample = room, *filters = room + floats;
    for (int i = (int)threadIdx.x; i < floats; i += (int)blockDim.x)
        sample[i] = to_float(x[(size_t)n * (size_t)floats + (size_t)i]);
    for (int i = (int)threadIdx.x; i < weights; i += (int)blockDim.x)
        filters[i] = to_float(w[i]);
    __syncthreads();
    for (int at = (int)(blockIdx.y * blockDim.x + threadIdx.x); at < outputs;
         at += (int)(gridDim.y * blockDim.x)) {
        int k = at % s.k, q = at / s.k % o.q, p = at / s.k / o.q, won = 0;
        float best = 0;
        for (int i = 0; i < o.kernel_h && p * o.stride_h + i < s.p; i++)
            for (int j = 0; j < o.kernel_w && q * o.stride_w + j < s.q; j++) {
                float z =
                    convolve_at(s, sample, filters, p * o.stride_h + i, q * o.stride_w + j, k);
                z += bias ? bias[k] : 0.0f;
                z = relu && z < 0 ? 0.0f : z;
                if ((i == 0 && j == 0) || z > best || isnan(z)) {
                    best = z;
                    won = i * o.kernel_w + j;
                }
            }
        size_t to = (size_t)n * (size_t)outputs + (size_t)at;
        put(&y[to], best);
        if (winner)
            winner[to] = (uint16_t)won;
    }
}

void cuda_conv_pool_forward(void *stream, element t, conv_shape s, pool_shape o, const void *x,
                            const void *w, const float *bias, bool relu, uint16_t *winner, void *y)
{
    if (cuda_tiles_fit(s, o)) {
        cuda_tiles_forward(stream, t, s, o, x, w, bias, relu, winner, y);
        return;
    }
    unsigned shares = shares_of(s.n, (windows(s, o) + THREADS - 1) / THREADS);
    BY_ELEMENT(t, LAUNCH_BLOCK(conv_pool_forward<T>, dim3((unsigned)s.n, shares), THREADS, stream,
                               s, o, (const T *)x, (const T *)w, bias, relu, winner, (T *)y));
}

/* ---- backward -------------------------------------------------------------------------------- */

/* What a window sends back, and to which place of the convolution. */
struct sent {
    float *value;
    uint16_t *place;
};

static __device__ __forceinline__ int place_of(int i, int j)
{
    return i * SIDE_MAX + j;
}

/* Filter k's weight (r, q, c): the sum over the windows [first, end). */
static __device__ float weight_sum(const conv_shape &s, const float *x, sent from, int first,
                                   int end, int k, int r, int q, int c)
{
    float sum = 0;
    for (int at = first * s.k + k; at < end * s.k; at += s.k) {
        int place = from.place[at], i = place / SIDE_MAX, j = place % SIDE_MAX;
        int h = i * s.stride_h - s.pad_h + r * s.dil_h, v = j * s.stride_w - s.pad_w + q * s.dil_w;
        if (h >= 0 && h < s.h && v >= 0 && v < s.w)
            sum += from.value[at] * x[(h * s.w + v) * s.c + c];
    }
    return sum;
}

/* The sum over all filters of what place (i, j) sends to the input (h, v, c), which the place had
 * read with weight (r, q). */
static __device__ float place_sum(const conv_shape &s, const pool_shape &o, const float *w,
                                  sent from, int i, int j, int r, int q, int c)
{
    int p = i / o.stride_h, u = j / o.stride_w;
    float sum = 0;
    if (p >= o.p || u >= o.q)
        return 0;
    for (int k = 0; k < s.k; k++) {
        int at = (p * o.q + u) * s.k + k;
        if ((int)from.place[at] == place_of(i, j))
            sum += from.value[at] * w[((k * s.r + r) * s.s + q) * s.c + c];
    }
    return sum;
}

static __device__ float input_sum(const conv_shape &s, const pool_shape &o, const float *w,
                                  sent from, int h, int v, int c)
{
    float sum = 0;
    for (int r = 0; r < s.r; r++) {
        int i = step_at(h + s.pad_h - r * s.dil_h, s.stride_h, s.p);
        for (int q = 0; i >= 0 && q < s.s; q++) {
            int j = step_at(v + s.pad_w - q * s.dil_w, s.stride_w, s.q);
            if (j >= 0)
                sum += place_sum(s, o, w, from, i, j, r, q, c);
        }
    }
    return sum;
}

/* part: each block's gradient of the weights over its windows, and then that of the biases. dx may
 * be NULL. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    conv_pool_backward(conv_shape s, pool_shape o, const T *x, const T *w, const uint16_t *winner,
                       const T *y, bool relu, const T *dy, float *part, T *dx, bool add)
{
    __shared__ float room[FUSED_FLOATS];
    __shared__ uint16_t place[FUSED_WINDOWS];
    int n = (int)blockIdx.x, floats = sample_floats(s), weights = weight_floats(s),
        outputs = windows(s, o);
    float *sample = room, *filters = room + floats;
    sent from = {room + floats + weights, place};
    for (int i = (int)threadIdx.x; i < floats; i += (int)blockDim.x)
        sample[i] = to_float(x[(size_t)n * (size_t)floats + (size_t)i]);
    for (int i = (int)threadIdx.x; i < weights; i += (int)blockDim.x)
        filters[i] = to_float(w[i]);
    for (int at = (int)threadIdx.x; at < outputs; at += (int)blockDim.x) {
        size_t in = (size_t)n * (size_t)outputs + (size_t)at;
        int q = at / s.k % o.q, p = at / s.k / o.q, won = winner[in];
        from.value[at] = relu && !(to_float(y[in]) > 0) ? 0.0f : to_float(dy[in]);
        place[at] = (uint16_t)place_of(p * o.stride_h + won / o.kernel_w,
                                       q * o.stride_w + won % o.kernel_w);
    }
    __syncthreads();
    int share = (int)blockIdx.y, shares = (int)gridDim.y, all = o.p * o.q;
    int first = all * share / shares, end = all * (share + 1) / shares;
    part += ((size_t)n * (size_t)shares + (size_t)share) * (size_t)(weights + s.k);
    for (int i = (int)threadIdx.x; i < weights + s.k; i += (int)blockDim.x) {
        float sum = 0;
        if (i < weights)
            sum = weight_sum(s, sample, from, first, end, i / (s.r * s.s * s.c),
                             i / (s.s * s.c) % s.r, i / s.c % s.s, i % s.c);
        else
            for (int at = first * s.k + i - weights; at < end * s.k; at += s.k)
                sum += from.value[at];
        part[i] = sum;
    }
    for (int i = share * (int)blockDim.x + (int)threadIdx.x; dx && i < floats;
         i += shares * (int)blockDim.x)
        put_or_add(&dx[(size_t)n * (size_t)floats + (size_t)i],
                   input_sum(s, o, filters, from, i / (s.w * s.c), i / s.c % s.w, i % s.c), add);
}

enum { SUM_COLUMNS = 32, SUM_LINES = 8, PARTS_AT_ONCE = 8 };

/* Sums the blocks' parts. A line of threads takes every eighth part, and loads some before it adds
 * the first; the first line adds the lines. The numbers of a parameter's step are loaded before the
 * parts, so that the step waits for nothing. */
static __global__ void __launch_bounds__(SUM_COLUMNS *SUM_LINES)
    sum_parts(int parts, int weights, int each, const float *part, float *dw, float *db,
              optim_block update)
{
    __shared__ double lines[SUM_LINES][SUM_COLUMNS];
    int line = (int)threadIdx.y, i = (int)(blockIdx.x * SUM_COLUMNS + threadIdx.x);
    float *to = i < weights ? &dw[i] : db && i < each ? &db[i - weights] : NULL;
    bool steps = line == 0 && to && update.w;
    parameters<1> was = {};
    step_args now = step_args();
    if (steps) {
        was = take_parameters<1>(update, (size_t)(to - update.g));
        now = *update.a;
    }
    double sum = 0;
    for (int k = line; i < each && k < parts; k += PARTS_AT_ONCE * SUM_LINES) {
        float value[PARTS_AT_ONCE];
        UNROLL
        for (int j = 0; j < PARTS_AT_ONCE; j++) {
            int at = k + j * SUM_LINES;
            value[j] = at < parts ? part[(size_t)at * (size_t)each + (size_t)i] : 0.0f;
        }
        UNROLL
        for (int j = 0; j < PARTS_AT_ONCE; j++)
            sum += (double)value[j];
    }
    lines[line][threadIdx.x] = sum;
    __syncthreads();
    if (line > 0 || !to)
        return;
    UNROLL
    for (int j = 1; j < SUM_LINES; j++)
        sum += lines[j][threadIdx.x];
    const pack<float, 1> g = {{(float)sum}};
    *to = g.at[0];
    if (steps)
        step_from(update, now, (size_t)(to - update.g), g, was);
}

/* Leaves the blocks' parts in scratch; returns how many there are. */
static int backward_parts(void *stream, element t, const conv_shape &s, const pool_shape &o,
                          const void *x, const void *w, const uint16_t *winner, const void *y,
                          bool relu, const void *dy, float *scratch, void *dx, bool add)
{
    if (cuda_tiles_fit(s, o)) {
        cuda_tiles_backward(stream, t, s, o, x, w, winner, y, relu, dy, scratch, dx, add);
        return s.n;
    }
    unsigned shares = shares_of(s.n, SHARES_MAX);
    BY_ELEMENT(t, LAUNCH_BLOCK(conv_pool_backward<T>, dim3((unsigned)s.n, shares), THREADS, stream,
                               s, o, (const T *)x, (const T *)w, winner, (const T *)y, relu,
                               (const T *)dy, scratch, (T *)dx, add));
    return s.n * (int)shares;
}

void cuda_conv_pool_backward(void *stream, element t, conv_shape s, pool_shape o, const void *x,
                             const void *w, const uint16_t *winner, const void *y, bool relu,
                             const void *dy, float *scratch, float *dw, float *db, void *dx,
                             bool add, const optim_block *update)
{
    optim_block block = update ? *update : optim_block();
    int weights = weight_floats(s), each = weights + s.k;
    int parts = backward_parts(stream, t, s, o, x, w, winner, y, relu, dy, scratch, dx, add);
    LAUNCH_BLOCK(sum_parts, (unsigned)((each + SUM_COLUMNS - 1) / SUM_COLUMNS),
                 dim3(SUM_COLUMNS, SUM_LINES), stream, parts, weights, each, scratch, dw, db,
                 block);
}
