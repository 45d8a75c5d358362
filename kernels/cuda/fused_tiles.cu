/* fused_tiles.cu: a convolution whose pooling has windows of 2x2, like LeNet's, forward: a tile of
 * places (fused_tiles.cuh) is a window of the pooling. Also how a layer is cut, for both ways. */
#include "fused_tiles.cuh"

static divisor divisor_of(int d)
{
    divisor by = {(uint32_t)d, ((1u << 31) - 1) / (uint32_t)d + 1};
    return by;
}

static int row_floats_of(int r)
{
    return (r * PAIR + 3) / 4 * 4;
}

static int up(int x, int to)
{
    return (x + to - 1) / to * to;
}

/* The next number from x on that leaves `rest` when divided by `by`. */
static int up_to_rest(int x, int rest, int by)
{
    return x + ((rest - x) % by + by) % by;
}

/* `blocks`: of the launch, before rows are divided. No rows: the layer does not fit. Columns are
 * even and rows of tiles follow each other in the banks, so that 16 threads, which load two floats
 * each, never meet in a bank. */
static tiling tiling_of(int width, int height, int channels, int r, int64_t blocks)
{
    tiling t = {};
    t.wide = (width + 1) / 2, t.high = (height + 1) / 2;
    t.columns = up(t.wide, 2);
    t.groups = channels < GROUPS_MAX ? channels : GROUPS_MAX;
    if (t.groups > TILE_THREADS / t.columns)
        t.groups = TILE_THREADS / t.columns;
    if (t.groups < 1)
        return t;
    t.width = 2 * t.wide + r - 1;
    t.pitch = up_to_rest(t.width, t.columns % (BANKS / 2), BANKS / 2);
    int room = (TILE_FLOATS - channels * r * row_floats_of(r)) / (channels * t.pitch);
    int most = TILE_THREADS / (t.columns * t.groups), fit = (room - r + 1) / 2;
    most = most < fit ? most : fit;
    if (most < 1)
        return t;
    int64_t wanted = PROCESSORS / blocks;
    t.parts = (t.high + most - 1) / most;
    if (t.parts < wanted)
        t.parts = (int)(wanted < t.high ? wanted : t.high);
    t.rows = (t.high + t.parts - 1) / t.parts;
    t.parts = (t.high + t.rows - 1) / t.rows;
    t.plane = (2 * t.rows + r - 1) * t.pitch;
    return t;
}

tile_args cuda_tile_args(const conv_shape &s, const pool_shape &o)
{
    tile_args a = {};
    a.s = s, a.o = o;
    a.places = tiling_of(2 * o.q, 2 * o.p, s.c, s.r, (int64_t)s.n * pairs(s.k));
    a.inputs = tiling_of(s.w, s.h, s.k, s.r, (int64_t)s.n * pairs(s.c));
    a.pairs_of_inputs = pairs(s.c);
    a.data_blocks = a.pairs_of_inputs * a.inputs.parts;
    /* threads take rows of taps in a row: each begins one bank further */
    a.pitch = up_to_rest(s.w + 2 * s.pad_w, 1, BANKS);
    a.plane = up_to_rest((s.h + 2 * s.pad_h) * a.pitch, s.r, BANKS);
    a.rows_of_taps = PAIR * s.c * s.r;
    int most = TILE_THREADS / a.rows_of_taps, all = o.p * o.q;
    most = most < GROUPS_OF_WINDOWS_MAX ? most : (int)GROUPS_OF_WINDOWS_MAX;
    most = most < all ? most : all;
    a.window_groups = most < 1 ? 1 : most;
    a.w = divisor_of(s.w), a.c = divisor_of(s.c), a.k = divisor_of(s.k), a.q = divisor_of(o.q);
    a.lines = divisor_of(a.rows_of_taps), a.channel = divisor_of(s.c * s.r);
    return a;
}

bool cuda_tiles_fit(const conv_shape &s, const pool_shape &o)
{
    if ((s.r != 3 && s.r != 5) || s.s != s.r || s.stride_h != 1 || s.stride_w != 1 ||
        s.dil_h != 1 || s.dil_w != 1 || o.kernel_h != 2 || o.kernel_w != 2 || o.stride_h != 2 ||
        o.stride_w != 2)
        return false;
    if (s.pad_h >= s.r || s.pad_w >= s.r) /* every place reads something of the sample */
        return false;
    tile_args a = cuda_tile_args(s, o);
    int64_t sample = (int64_t)a.plane * s.c;
    int sums = a.window_groups > 1 ? a.window_groups * a.rows_of_taps * (s.r + 1) : 0;
    return a.places.rows > 0 && a.inputs.rows > 0 && o.p * o.q * PAIR <= TILE_SENDS &&
           up((int)sample, 4) + sums <= TILE_FLOATS;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* A thread loads all that it brings before it writes the first value: a block waits for memory
 * once. Meanwhile it computes where each value goes; below 0: nowhere. */
enum { SAMPLE_AT_ONCE = 8, WEIGHTS_AT_ONCE = 2 };

/* The rows of sample n that a block's tiles read, and the weights of filters k0 on. */
template <class T, int R>
static __device__ __forceinline__ void bring_places(const tile_args &a, int k0, const T *x,
                                                    const T *w, quad *room, float *weights)
{
    const conv_shape &s = a.s;
    const tiling &t = a.places;
    int first = 2 * (int)blockIdx.z * t.rows - s.pad_h;
    int from = max(0, first), rows = max(0, min(s.h, first + 2 * t.rows + R - 1) - from);
    int values = rows * s.w * s.c, per = R * R * s.c, taps = min(PAIR, s.k - k0) * per;
    x += ((size_t)blockIdx.x * (size_t)s.h + (size_t)from) * (size_t)(s.w * s.c);
    w += (size_t)k0 * (size_t)per;
    clear(room, t.plane * s.c + s.c * R * row<R>::FLOATS);
    int me = flat_thread(), step = flat_threads();
    for (int base = 0; base * SAMPLE_AT_ONCE < values || base * WEIGHTS_AT_ONCE < taps;
         base += step) {
        T value[SAMPLE_AT_ONCE], tap[WEIGHTS_AT_ONCE];
        int to[SAMPLE_AT_ONCE], tap_to[WEIGHTS_AT_ONCE];
        UNROLL
        for (int j = 0; j < SAMPLE_AT_ONCE; j++) {
            int i = base * SAMPLE_AT_ONCE + j * step + me;
            value[j] = x[min(i, values - 1)];
        }
        UNROLL
        for (int j = 0; j < WEIGHTS_AT_ONCE; j++) {
            int i = base * WEIGHTS_AT_ONCE + j * step + me;
            tap[j] = w[min(i, taps - 1)];
        }
        UNROLL
        for (int j = 0; j < SAMPLE_AT_ONCE; j++) {
            int i = base * SAMPLE_AT_ONCE + j * step + me;
            to[j] = place_of(a, i, from - first, t.pitch, t.plane, t.width);
            to[j] = i < values ? to[j] : -1;
        }
        UNROLL
        for (int j = 0; j < WEIGHTS_AT_ONCE; j++) {
            int i = base * WEIGHTS_AT_ONCE + j * step + me, f = i >= per;
            divided at = over(i - f * per, a.c);
            int r = (int)at.times / R, q = (int)at.times % R;
            tap_to[j] = ((int)at.rest * R + r) * row<R>::FLOATS + q * PAIR + f;
            tap_to[j] = i < taps ? tap_to[j] : -1;
        }
        __syncthreads();
        UNROLL
        for (int j = 0; j < SAMPLE_AT_ONCE; j++)
            if (to[j] >= 0)
                floats_of(room)[to[j]] = to_float(value[j]);
        UNROLL
        for (int j = 0; j < WEIGHTS_AT_ONCE; j++)
            if (tap_to[j] >= 0)
                weights[tap_to[j]] = to_float(tap[j]);
    }
    __syncthreads();
}

/* As max_forward: the first of equals wins, a NaN wins over what came before it. */
template <class T, int R>
static __global__ void __launch_bounds__(TILE_THREADS, 2)
    tiles_forward(tile_args a, const T *x, const T *w, const float *bias, bool relu,
                  uint16_t *winner, T *y)
{
    __shared__ quad room[TILE_FLOATS / 4];
    const conv_shape &s = a.s;
    int k0 = (int)blockIdx.y * PAIR;
    float *weights = floats_of(room) + a.places.plane * s.c, shift[PAIR] = {};
    UNROLL
    for (int f = 0; f < PAIR; f++)
        if (bias && k0 + f < s.k)
            shift[f] = bias[k0 + f];
    bring_places<T, R>(a, k0, x, w, room, weights);
    tile at = tile_of(a.places, (int)blockIdx.z);
    quad sum[2] = {};
    if (!sum_tile<R>(a.places, s.c, at, room, weights, sum))
        return;
    size_t to = (((size_t)blockIdx.x * (size_t)a.o.p + (size_t)at.row) * (size_t)a.o.q +
                 (size_t)at.column) *
                    (size_t)s.k +
                (size_t)k0;
    bool right = 2 * at.column + 1 < s.q, below = 2 * at.row + 1 < s.p;
    UNROLL
    for (int f = 0; f < PAIR; f++) {
        float best = 0;
        int won = 0;
        UNROLL
        for (int i = 0; i < 4; i++) {
            float z = sum[i / 2].at[i % 2 * 2 + f] + shift[f];
            z = relu && z < 0 ? 0.0f : z;
            bool there = (i % 2 == 0 || right) && (i < 2 || below);
            if (i == 0 || (there && (z > best || isnan(z)))) {
                best = z;
                won = i;
            }
        }
        if (k0 + f < s.k) {
            put(&y[to + (size_t)f], best);
            if (winner)
                winner[to + (size_t)f] = (uint16_t)won;
        }
    }
}

void cuda_tiles_forward(void *stream, element t, const conv_shape &s, const pool_shape &o,
                        const void *x, const void *w, const float *bias, bool relu,
                        uint16_t *winner, void *y)
{
    tile_args a = cuda_tile_args(s, o);
    dim3 grid((unsigned)s.n, (unsigned)pairs(s.k), (unsigned)a.places.parts);
    BY_ELEMENT(
        t, BY_KERNEL(s.r, LAUNCH_BLOCK((tiles_forward<T, R>), grid, block_of(a.places), stream, a,
                                       (const T *)x, (const T *)w, bias, relu, winner, (T *)y)));
}
