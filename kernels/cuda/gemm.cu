/* gemm.cu: convolutions and linear layers as one tiled matrix product over gathered operands; see
 * cuda_kernels.h. The kernels serve every shape in full fp32. They run where cuDNN has nothing to
 * offer, and where they are faster, as for small models (cuda_algo.c measures).
 *
 *   forward  Y(npq, k)  = X~(npq, rsc)  W(k, rsc)^T    X~: the gathered windows
 *   data     dX(nhw, c) = dY~(nhw, rsk) W(rsk, c)      dY~: the outputs that saw (n,h,w) at (r,s)
 *   weights  dW(k, rsc) = dY(npq, k)^T X~(npq, rsc)
 *
 * A block computes a tile of 64 rows and 64 or 16 columns; long inner sums are split over blocks
 * and their parts added in order by a second kernel. */
#include "device.cuh"

enum { TILE_M = 64, TILE_K = 16, SIDE = 16, EACH_M = TILE_M / SIDE, SPLIT_MAX = 64 };

/* ---- operands: element (row, k) of the left one, (k, column) of the right one ---------------- */

/* What one product multiplies; rows x columns, summed over `inner`, once for each group. */
typedef struct extent {
    int rows, columns, inner;
} extent;

static __host__ __device__ int tiles(int count, int side)
{
    return (count - 1) / side + 1;
}

static __host__ __device__ extent extent_of(const conv_shape &s, int pass)
{
    int c = s.c / s.groups, k = s.k / s.groups, taps = s.r * s.s;
    if (pass == CONV_FORWARD)
        return {s.n * s.p * s.q, k, taps * c};
    if (pass == CONV_DATA)
        return {s.n * s.h * s.w, c, taps * k};
    return {k, taps * c, s.n * s.p * s.q};
}

/* A row of the left operand, or an element of the inner sum of the right operand, is a pixel of a
 * sample. An element beside it is one tap of a filter and one channel. Finding these parts of an
 * index takes divisions, which cost more than the products: each division is made once for all
 * elements that it serves.
 *
 * pixel.sample counts pixels, so that all of an activation's places fit an int (cuda_plan.c). */
typedef struct pixel {
    int sample, h, w;
} pixel;

typedef struct tap {
    int h, w, channel;
} tap;

enum { NOWHERE = -(1 << 30) }; /* no tap leads from there into a sample */

static __device__ __forceinline__ tap tap_of(const conv_shape &s, int channels, int inner)
{
    divided channel = divide((size_t)inner, channels), row = divide(channel.times, s.s);
    return {(int)row.times * s.dil_h, (int)row.rest * s.dil_w, (int)channel.rest};
}

/* Where output pixel `npq` begins to read x. */
static __device__ __forceinline__ pixel window_at(const conv_shape &s, int npq)
{
    divided column = divide((size_t)npq, s.q), row = divide(column.times, s.p);
    return {(int)row.times * s.h * s.w, (int)row.rest * s.stride_h - s.pad_h,
            (int)column.rest * s.stride_w - s.pad_w};
}

/* x at that tap of the window; 0 in the padding. */
template <class T>
static __device__ __forceinline__ float window(const conv_shape &s, int first, const T *x, pixel at,
                                               tap t)
{
    int h = at.h + t.h, w = at.w + t.w;
    if (h < 0 || h >= s.h || w < 0 || w >= s.w)
        return 0;
    return to_float(x[(at.sample + h * s.w + w) * s.c + first + t.channel]);
}

/* The window at 0, 0 that would begin at input pixel `nhw`. */
static __device__ __forceinline__ pixel reader_at(const conv_shape &s, int nhw)
{
    divided column = divide((size_t)nhw, s.w), row = divide(column.times, s.h);
    return {(int)row.times * s.p * s.q, (int)row.rest + s.pad_h, (int)column.rest + s.pad_w};
}

/* dy at the output pixel that read this input pixel at that tap; 0 where there is none. */
template <class T>
static __device__ __forceinline__ float reader(const conv_shape &s, int first, const T *dy,
                                               pixel at, tap t)
{
    int p = step_at(at.h - t.h, s.stride_h, s.p), q = step_at(at.w - t.w, s.stride_w, s.q);
    if (p < 0 || q < 0)
        return 0;
    return to_float(dy[(at.sample + p * s.q + q) * s.k + first + t.channel]);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Threads run along what lies side by side in memory. In the forward and data passes each thread
 * therefore has EACH_M rows of the left tile, and of each row one element a tile; `rows` are their
 * pixels. */
template <int PASS>
static __device__ __forceinline__ void left_rows(const conv_shape &s, extent e, int row0,
                                                 pixel rows[EACH_M])
{
    for (int j = 0; j < EACH_M && PASS != CONV_WEIGHTS; j++) {
        int row = row0 + (int)threadIdx.x / TILE_K + j * SIDE;
        rows[j] = {0, NOWHERE, NOWHERE};
        if (row < e.rows)
            rows[j] = PASS == CONV_FORWARD ? window_at(s, row) : reader_at(s, row);
    }
}

/* The place of this thread's element j in a tile. */
typedef struct cell {
    int inner, outer;
} cell;

template <int PASS> static __device__ __forceinline__ cell left_cell(int j)
{
    int i = (int)threadIdx.x + j * SIDE * SIDE;
    if (PASS == CONV_WEIGHTS)
        return {i / TILE_M, i % TILE_M};
    return {i % TILE_K, i / TILE_K};
}

template <int PASS, int TILE_N> static __device__ __forceinline__ cell right_cell(int j)
{
    int i = (int)threadIdx.x + j * SIDE * SIDE;
    if (PASS == CONV_FORWARD)
        return {i % TILE_K, i / TILE_K};
    return {i / TILE_N, i % TILE_N};
}

template <int PASS, class T>
static __device__ __forceinline__ void fetch_left(const conv_shape &s, int group, const T *a,
                                                  extent e, int row0, const pixel rows[EACH_M],
                                                  int k0, int k_end, float value[EACH_M])
{
    int channels = (PASS == CONV_FORWARD ? s.c : s.k) / s.groups, first = group * channels;
    tap t = {};
    if (PASS != CONV_WEIGHTS)
        t = tap_of(s, channels, k0 + left_cell<PASS>(0).inner);
    for (int j = 0; j < EACH_M; j++) {
        cell at = left_cell<PASS>(j);
        int row = row0 + at.outer, k = k0 + at.inner;
        value[j] = 0;
        if (k >= k_end)
            continue;
        if (PASS == CONV_FORWARD)
            value[j] = window(s, first, a, rows[j], t);
        else if (PASS == CONV_DATA)
            value[j] = reader(s, first, a, rows[j], t);
        else if (row < e.rows)
            value[j] = to_float(a[k * s.k + first + row]);
    }
}

/* In the weights pass the right operand is x, at one tap for each thread: `column`. */
template <int PASS, int TILE_N, class T>
static __device__ __forceinline__ void fetch_right(const conv_shape &s, int group, const T *b,
                                                   extent e, int column0, tap column, int k0,
                                                   int k_end, float value[TILE_N / SIDE])
{
    int c_each = s.c / s.groups, k_each = s.k / s.groups;
    size_t filter = (size_t)(s.r * s.s * c_each);
    for (int j = 0; j < TILE_N / SIDE; j++) {
        cell at = right_cell<PASS, TILE_N>(j);
        int n = column0 + at.outer, k = k0 + at.inner;
        value[j] = 0;
        if (n >= e.columns || k >= k_end)
            continue;
        if (PASS == CONV_FORWARD) {
            value[j] = to_float(b[(size_t)(group * k_each + n) * filter + (size_t)k]);
        } else if (PASS == CONV_DATA) {
            divided from = divide((size_t)k, k_each);
            value[j] = to_float(b[(size_t)(group * k_each + (int)from.rest) * filter +
                                  (size_t)((int)from.times * c_each + n)]);
        } else {
            value[j] = window(s, group * c_each, b, window_at(s, k), column);
        }
    }
}

/* Two tiles of each operand: one is multiplied while the next one is loaded. */
template <int TILE_N> struct tiles_of {
    float left[2][TILE_K][TILE_M + 1], right[2][TILE_K][TILE_N + 1];
};

template <int PASS, int TILE_N>
static __device__ __forceinline__ void put_tiles(tiles_of<TILE_N> &to, int which,
                                                 const float left[EACH_M],
                                                 const float right[TILE_N / SIDE])
{
    for (int j = 0; j < EACH_M; j++) {
        cell at = left_cell<PASS>(j);
        to.left[which][at.inner][at.outer] = left[j];
    }
    for (int j = 0; j < TILE_N / SIDE; j++) {
        cell at = right_cell<PASS, TILE_N>(j);
        to.right[which][at.inner][at.outer] = right[j];
    }
}

typedef struct tail {
    const float *bias; /* forward alone */
    bool relu, add;
    float *parts; /* where splits leave their sums; NULL: there is one split */
} tail;

/* Where the result's element lies: one tensor for all groups. */
template <int PASS>
static __device__ size_t place(const conv_shape &s, extent e, int group, int row, int column)
{
    if (PASS == CONV_WEIGHTS)
        return (size_t)(group * e.rows + row) * (size_t)e.columns + (size_t)column;
    return (size_t)row * (size_t)(e.columns * s.groups) + (size_t)(group * e.columns + column);
}

template <class Out>
static __device__ void finish(const tail &t, size_t at, int column, float sum, Out *out)
{
    if (t.bias)
        sum += t.bias[column];
    if (t.relu && sum < 0)
        sum = 0;
    put_or_add(&out[at], sum, t.add);
}

template <int EACH_N>
static __device__ __forceinline__ void add_products(const float *left, const float *right,
                                                    float sum[EACH_M][EACH_N])
{
    UNROLL
    for (int i = 0; i < EACH_M; i++) {
        UNROLL
        for (int j = 0; j < EACH_N; j++)
            sum[i][j] += left[i * SIDE] * right[j * SIDE];
    }
}

template <int PASS, int TILE_N, class T, class Out>
static __global__ void __launch_bounds__(SIDE *SIDE, 3)
    product(conv_shape s, const T *a, const T *b, Out *out, tail t, int splits)
{
    enum { EACH_N = TILE_N / SIDE };
    __shared__ tiles_of<TILE_N> tile;
    extent e = extent_of(s, PASS);
    divided by_row = divide(blockIdx.x, tiles(e.rows, TILE_M));
    divided by_column = divide(by_row.times, tiles(e.columns, TILE_N));
    int group = (int)by_column.times / splits, split = (int)by_column.times % splits;
    int row0 = (int)by_row.rest * TILE_M, column0 = (int)by_column.rest * TILE_N;
    int share = ((e.inner + splits - 1) / splits + TILE_K - 1) / TILE_K * TILE_K;
    int k0 = split * share, k_end = min(e.inner, k0 + share);
    int m0 = (int)threadIdx.x / SIDE, n0 = (int)threadIdx.x % SIDE;
    float sum[EACH_M][EACH_N] = {}, next_left[EACH_M], next_right[EACH_N];
    pixel rows[EACH_M] = {};
    tap column = {};
    left_rows<PASS>(s, e, row0, rows);
    if (PASS == CONV_WEIGHTS)
        column = tap_of(s, s.c / s.groups, column0 + right_cell<PASS, TILE_N>(0).outer);
    fetch_left<PASS>(s, group, a, e, row0, rows, k0, k_end, next_left);
    fetch_right<PASS, TILE_N>(s, group, b, e, column0, column, k0, k_end, next_right);
    for (int now = 0; k0 < k_end; now ^= 1) {
        put_tiles<PASS>(tile, now, next_left, next_right);
        __syncthreads(); /* and all threads are done with the tile that is put next */
        k0 += TILE_K;
        fetch_left<PASS>(s, group, a, e, row0, rows, k0, k_end, next_left);
        fetch_right<PASS, TILE_N>(s, group, b, e, column0, column, k0, k_end, next_right);
        UNROLL_BY_4
        for (int k = 0; k < TILE_K; k++)
            add_products(tile.left[now][k] + m0, tile.right[now][k] + n0, sum);
    }
    size_t whole = (size_t)e.rows * (size_t)e.columns * (size_t)s.groups;
    UNROLL
    for (int i = 0; i < EACH_M; i++) {
        UNROLL
        for (int j = 0; j < EACH_N; j++) {
            int row = row0 + m0 + i * SIDE, column = column0 + n0 + j * SIDE;
            if (row >= e.rows || column >= e.columns)
                continue;
            size_t at = place<PASS>(s, e, group, row, column);
            if (t.parts)
                t.parts[(size_t)split * whole + at] = sum[i][j];
            else
                finish(t, at, group * e.columns + column, sum[i][j], out);
        }
    }
}

/* Adds the splits' parts in order. `columns` of the whole result, all groups. */
template <class Out>
static __global__ void add_parts(size_t count, int columns, int splits, tail t, Out *out)
{
    FOR_EACH(i, count)
    {
        float sum = 0;
        for (int j = 0; j < splits; j++)
            sum += t.parts[(size_t)j * count + i];
        finish(t, i, t.bias ? (int)divide(i, columns).rest : 0, sum, out);
    }
}

static int tile_columns(extent e)
{
    return e.columns > SIDE ? 64 : SIDE;
}

/* Enough blocks for a large GPU's 132 multiprocessors, and at least 4 tiles of inner sum each. */
static int splits_of(conv_shape s, extent e)
{
    enum { BLOCKS_WANTED = 264, TILES_LEAST = 4 };
    int64_t blocks = (int64_t)tiles(e.rows, TILE_M) * tiles(e.columns, tile_columns(e)) * s.groups;
    int64_t wanted = BLOCKS_WANTED / blocks, most = e.inner / (TILE_K * TILES_LEAST);
    int64_t splits = wanted < most ? wanted : most;
    return splits < 1 ? 1 : splits > SPLIT_MAX ? SPLIT_MAX : (int)splits;
}

size_t cuda_conv_scratch(conv_shape s, conv_pass pass)
{
    extent e = extent_of(s, pass);
    int splits = splits_of(s, e);
    return splits == 1 ? 0 : (size_t)splits * (size_t)e.rows * (size_t)e.columns * (size_t)s.groups;
}

template <int PASS, class T, class Out>
static void multiply(void *stream, conv_shape s, const T *a, const T *b, Out *out, tail t,
                     float *scratch)
{
    extent e = extent_of(s, PASS);
    int splits = splits_of(s, e), wide = tile_columns(e);
    t.parts = splits > 1 ? scratch : nullptr;
    /* Rows first, then columns, then groups and splits, all in one direction: CUDA takes no more
     * than 65,535 blocks in the others, and 2^31 - 1 in this one. Those are enough: a block has
     * elements of the result of its own, and where it is split there are few. */
    unsigned grid = (unsigned)tiles(e.rows, TILE_M) * (unsigned)tiles(e.columns, wide) *
                    (unsigned)(s.groups * splits);
    if (wide == SIDE)
        LAUNCH_BLOCK((product<PASS, SIDE, T, Out>), grid, SIDE * SIDE, stream, s, a, b, out, t,
                     splits);
    else
        LAUNCH_BLOCK((product<PASS, 64, T, Out>), grid, SIDE * SIDE, stream, s, a, b, out, t,
                     splits);
    if (splits == 1)
        return;
    size_t count = (size_t)e.rows * (size_t)e.columns * (size_t)s.groups;
    LAUNCH(add_parts<Out>, blocks_for(count), THREADS, stream, count, e.columns * s.groups, splits,
           t, out);
}

void cuda_conv_forward(void *stream, element t, conv_shape s, const void *x, const void *w,
                       const float *bias, bool relu, float *scratch, void *y)
{
    tail end = {bias, relu, false, nullptr};
    BY_ELEMENT(t, (multiply<CONV_FORWARD, T, T>(stream, s, (const T *)x, (const T *)w, (T *)y, end,
                                                scratch)));
}

void cuda_conv_data(void *stream, element t, conv_shape s, const void *dy, const void *w,
                    float *scratch, void *dx, bool add)
{
    tail end = {nullptr, false, add, nullptr};
    BY_ELEMENT(t, (multiply<CONV_DATA, T, T>(stream, s, (const T *)dy, (const T *)w, (T *)dx, end,
                                             scratch)));
}

void cuda_conv_weights(void *stream, element t, conv_shape s, const void *x, const void *dy,
                       float *scratch, float *dw)
{
    tail end = {nullptr, false, false, nullptr};
    BY_ELEMENT(t, (multiply<CONV_WEIGHTS, T, float>(stream, s, (const T *)dy, (const T *)x, dw, end,
                                                    scratch)));
}

/* ---- biases ---------------------------------------------------------------------------------- */

template <class T>
static __global__ void add_bias(size_t count, int columns, const float *bias, bool relu, T *y)
{
    FOR_EACH(i, count)
    {
        float value = to_float(y[i]) + (bias ? bias[divide(i, columns).rest] : 0.0f);
        put(&y[i], relu && value < 0 ? 0.0f : value);
    }
}

void cuda_bias(void *stream, element t, size_t rows, int columns, const float *bias, bool relu,
               void *y)
{
    size_t count = rows * (size_t)columns;
    BY_ELEMENT(t, LAUNCH(add_bias<T>, blocks_for(count), THREADS, stream, count, columns, bias,
                         relu, (T *)y));
}

/* In two stages, as batch norm's sums (norm.cu): a thread loads several values before it uses the
 * first. */
enum {
    SUM_COLUMNS = 32,
    SUM_LINES = THREADS / SUM_COLUMNS,
    SUM_ROWS = 128,
    SUM_SPLITS = 256,
    SUM_AT_ONCE = 8,
};

static unsigned sum_splits(size_t rows)
{
    size_t splits = (rows + SUM_ROWS - 1) / SUM_ROWS, most = SUM_SPLITS;
    return (unsigned)(splits > most ? most : splits ? splits : 1);
}

size_t cuda_column_scratch(size_t rows, int columns)
{
    return sum_splits(rows) * (size_t)columns;
}

/* sums (gridDim.y, columns): each of a block's share of x's rows. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    sum_columns(size_t rows, int columns, const T *x, float *sums)
{
    __shared__ float lines[SUM_LINES][SUM_COLUMNS];
    int column = (int)(blockIdx.x * SUM_COLUMNS + threadIdx.x);
    size_t step = (size_t)gridDim.y * SUM_LINES;
    float sum = 0;
    for (size_t row = blockIdx.y * SUM_LINES + threadIdx.y; column < columns && row < rows;
         row += SUM_AT_ONCE * step) {
        float value[SUM_AT_ONCE];
        for (int j = 0; j < SUM_AT_ONCE; j++) {
            size_t at = row + (size_t)j * step;
            value[j] = at < rows ? to_float(x[at * (size_t)columns + (size_t)column]) : 0.0f;
        }
        for (int j = 0; j < SUM_AT_ONCE; j++)
            sum += value[j];
    }
    lines[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns)
        return;
    for (int i = 1; i < SUM_LINES; i++)
        sum += lines[i][threadIdx.x];
    sums[(size_t)blockIdx.y * (size_t)columns + (size_t)column] = sum;
}

void cuda_column_sums(void *stream, element t, size_t rows, int columns, const void *x,
                      float *scratch, float *sum)
{
    unsigned splits = sum_splits(rows), across = (unsigned)tiles(columns, SUM_COLUMNS);
    dim3 block(SUM_COLUMNS, SUM_LINES);
    BY_ELEMENT(t, LAUNCH_BLOCK(sum_columns<T>, dim3(across, splits), block, stream, rows, columns,
                               (const T *)x, splits > 1 ? scratch : sum));
    if (splits > 1)
        LAUNCH_BLOCK(sum_columns<float>, dim3(across, 1), block, stream, (size_t)splits, columns,
                     (const float *)scratch, sum);
}
