/* gemm.cu: convolutions and linear layers as one tiled matrix product over gathered operands; see
 * cuda_kernels.h. They serve every shape in full fp32, run where cuDNN has nothing to offer, and
 * for small models are the faster choice (cuda_algo.c measures).
 *
 *   forward  Y(npq, k)  = X~(npq, rsc)  W(k, rsc)^T       X~: the gathered windows
 *   data     dX(nhw, c) = dY~(nhw, rsk) W(rsk, c)         dY~: the outputs that saw (n,h,w) at (r,s)
 *   weights  dW(k, rsc) = dY(npq, k)^T X~(npq, rsc)
 *
 * A block computes a tile of 64 rows and 64 or 16 columns; long inner sums are split over blocks
 * and their parts added in order by a second kernel. */
#include "cuda/device.cuh"

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

/* x at output pixel `npq` and tap `rsc` of the group; 0 in the padding. */
template <class T>
static __device__ float window(const conv_shape &s, int group, const T *x, int npq, int rsc)
{
    int c_each = s.c / s.groups, c = rsc % c_each, tap = rsc / c_each;
    int q = npq % s.q, p = npq / s.q % s.p, n = npq / (s.q * s.p);
    int h = p * s.stride_h - s.pad_h + tap / s.s * s.dil_h;
    int w = q * s.stride_w - s.pad_w + tap % s.s * s.dil_w;
    if (h < 0 || h >= s.h || w < 0 || w >= s.w)
        return 0;
    return to_float(x[(((size_t)n * (size_t)s.h + (size_t)h) * (size_t)s.w + (size_t)w) *
                          (size_t)s.c + (size_t)(group * c_each + c)]);
}

/* dy at the output pixel that saw input pixel `nhw` at tap r, s of `rsk`; 0 where there is none. */
template <class T>
static __device__ float reader(const conv_shape &s, int group, const T *dy, int nhw, int rsk)
{
    int k_each = s.k / s.groups, k = rsk % k_each, tap = rsk / k_each;
    int w = nhw % s.w, h = nhw / s.w % s.h, n = nhw / (s.w * s.h);
    int down = h + s.pad_h - tap / s.s * s.dil_h, right = w + s.pad_w - tap % s.s * s.dil_w;
    if (down < 0 || right < 0 || down % s.stride_h || right % s.stride_w)
        return 0;
    int p = down / s.stride_h, q = right / s.stride_w;
    if (p >= s.p || q >= s.q)
        return 0;
    return to_float(dy[(((size_t)n * (size_t)s.p + (size_t)p) * (size_t)s.q + (size_t)q) *
                           (size_t)s.k + (size_t)(group * k_each + k)]);
}

template <int PASS, class T>
static __device__ float left_at(const conv_shape &s, int group, const T *a, int row, int inner)
{
    if (PASS == CONV_FORWARD)
        return window(s, group, a, row, inner);
    if (PASS == CONV_DATA)
        return reader(s, group, a, row, inner);
    int k_each = s.k / s.groups;
    return to_float(a[(size_t)inner * (size_t)s.k + (size_t)(group * k_each + row)]);
}

template <int PASS, class T>
static __device__ float right_at(const conv_shape &s, int group, const T *b, int inner, int column)
{
    int c_each = s.c / s.groups, k_each = s.k / s.groups;
    size_t filter = (size_t)(s.r * s.s * c_each);
    if (PASS == CONV_FORWARD)
        return to_float(b[(size_t)(group * k_each + column) * filter + (size_t)inner]);
    if (PASS == CONV_DATA) {
        int k = inner % k_each, tap = inner / k_each;
        return to_float(b[(size_t)(group * k_each + k) * filter + (size_t)(tap * c_each + column)]);
    }
    return window(s, group, b, inner, column);
}

/* ---- the product ----------------------------------------------------------------------------- */

/* Loads a tile of the left operand: threads run along what lies side by side in memory. */
template <int PASS, class T>
static __device__ void load_left(const conv_shape &s, int group, const T *a, extent e, int row0,
                                 int k0, int k_end, float (*tile)[TILE_M + 1])
{
    for (int i = (int)threadIdx.x; i < TILE_M * TILE_K; i += SIDE * SIDE) {
        int k = PASS == CONV_WEIGHTS ? i / TILE_M : i % TILE_K;
        int m = PASS == CONV_WEIGHTS ? i % TILE_M : i / TILE_K;
        bool inside = row0 + m < e.rows && k0 + k < k_end;
        tile[k][m] = inside ? left_at<PASS>(s, group, a, row0 + m, k0 + k) : 0.0f;
    }
}

template <int PASS, int TILE_N, class T>
static __device__ void load_right(const conv_shape &s, int group, const T *b, extent e, int column0,
                                  int k0, int k_end, float (*tile)[TILE_N + 1])
{
    for (int i = (int)threadIdx.x; i < TILE_N * TILE_K; i += SIDE * SIDE) {
        int k = PASS == CONV_FORWARD ? i % TILE_K : i / TILE_N;
        int n = PASS == CONV_FORWARD ? i / TILE_K : i % TILE_N;
        bool inside = column0 + n < e.columns && k0 + k < k_end;
        tile[k][n] = inside ? right_at<PASS>(s, group, b, k0 + k, column0 + n) : 0.0f;
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

template <int PASS, int TILE_N, class T, class Out>
static __global__ void __launch_bounds__(SIDE *SIDE)
    product(conv_shape s, const T *a, const T *b, Out *out, tail t, int splits)
{
    enum { EACH_N = TILE_N / SIDE };
    __shared__ float left[TILE_K][TILE_M + 1];
    __shared__ float right[TILE_K][TILE_N + 1];
    extent e = extent_of(s, PASS);
    divided by_row = divide(blockIdx.x, tiles(e.rows, TILE_M));
    divided by_column = divide(by_row.times, tiles(e.columns, TILE_N));
    int group = (int)by_column.times / splits, split = (int)by_column.times % splits;
    int row0 = (int)by_row.rest * TILE_M, column0 = (int)by_column.rest * TILE_N;
    int share = ((e.inner + splits - 1) / splits + TILE_K - 1) / TILE_K * TILE_K;
    int k_end = min(e.inner, (split + 1) * share);
    int m0 = (int)threadIdx.x / SIDE, n0 = (int)threadIdx.x % SIDE;
    float sum[EACH_M][EACH_N] = {};
    for (int k0 = split * share; k0 < k_end; k0 += TILE_K) {
        load_left<PASS>(s, group, a, e, row0, k0, k_end, left);
        load_right<PASS, TILE_N>(s, group, b, e, column0, k0, k_end, right);
        __syncthreads();
        for (int k = 0; k < TILE_K; k++)
            for (int i = 0; i < EACH_M; i++)
                for (int j = 0; j < EACH_N; j++)
                    sum[i][j] += left[k][m0 + i * SIDE] * right[k][n0 + j * SIDE];
        __syncthreads();
    }
    size_t whole = (size_t)e.rows * (size_t)e.columns * (size_t)s.groups;
    for (int i = 0; i < EACH_M; i++)
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
    return splits == 1 ? 0
                       : (size_t)splits * (size_t)e.rows * (size_t)e.columns * (size_t)s.groups;
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
        LAUNCH_BLOCK((product<PASS, SIDE, T, Out>), grid, SIDE *SIDE, stream, s, a, b, out, t,
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

enum { SUM_COLUMNS = 32, SUM_LINES = 8, SUM_ROWS = 256 };

static unsigned sum_splits(size_t rows)
{
    size_t splits = (rows + SUM_ROWS - 1) / SUM_ROWS;
    return (unsigned)(splits > 256 ? 256 : splits ? splits : 1);
}

size_t cuda_column_scratch(size_t rows, int columns)
{
    return sum_splits(rows) * (size_t)columns;
}

template <class T>
static __global__ void sum_columns(size_t rows, int columns, const T *x, float *parts)
{
    __shared__ float lines[SUM_LINES][SUM_COLUMNS];
    int column = (int)(blockIdx.x * SUM_COLUMNS + threadIdx.x);
    float sum = 0;
    if (column < columns)
        for (size_t row = blockIdx.y * SUM_LINES + threadIdx.y; row < rows;
             row += (size_t)gridDim.y * SUM_LINES)
            sum += to_float(x[row * (size_t)columns + (size_t)column]);
    lines[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int i = 1; i < SUM_LINES; i++)
            sum += lines[i][threadIdx.x];
        parts[(size_t)blockIdx.y * (size_t)columns + (size_t)column] = sum;
    }
}

void cuda_column_sums(void *stream, element t, size_t rows, int columns, const void *x,
                      float *scratch, float *sum)
{
    unsigned splits = sum_splits(rows);
    tail end = {nullptr, false, false, scratch};
    BY_ELEMENT(t, LAUNCH_BLOCK(sum_columns<T>,
                               dim3((unsigned)((columns + SUM_COLUMNS - 1) / SUM_COLUMNS), splits),
                               dim3(SUM_COLUMNS, SUM_LINES), stream, rows, columns, (const T *)x,
                               scratch));
    LAUNCH(add_parts<float>, blocks_for((size_t)columns), THREADS, stream, (size_t)columns, columns,
           (int)splits, end, sum);
}
