/* fused_tiles.cu: a convolution whose pooling has windows of 2x2, as LeNet's are; see fused.cu.
 *
 * A tile is 2x2 places of two filters, a thread's sum in registers: R + 1 rows of R + 1 values and
 * R rows of weights make 8 R^2 products, without a branch. The tensor's part that a block needs
 * lies in shared memory, a plane a channel, with zeros for the padding. Where the channels are
 * several they are dealt to groups of threads, whose sums are added in the groups' order; how many
 * groups there are depends on the layer alone, not on the batch.
 *
 * forward:         a tile of places is a window of the pooling.
 * dx:              the same over tiles of the input: what the windows send lies as planes, a filter
 *                  each, zero but where a place has won, and the weights lie turned around.
 * dw:              of one sample and two filters; a thread sums a row of taps over some windows.
 *
 * dx and dw need nothing of each other: they are blocks of one launch. */
#include "cuda/fused.cuh"

/* 24 KiB of shared memory: several blocks to a multiprocessor, as for several functions on a GPU.
 */
enum {
    PAIR = 2, /* filters, or channels of dx, to a block */
    TILE_THREADS = 256,
    TILE_FLOATS = 6144,
    TILE_SENDS = 512,
    GROUPS_MAX = 8,
    GROUPS_OF_WINDOWS_MAX = 32,
    PROCESSORS = 132, /* a large GPU's */
    BANKS = 32,
};

/* i / d for i * d < 2^31 as one product; a GPU divides by some twenty instructions. */
struct divisor {
    uint32_t d, times;
};

static divisor divisor_of(int d)
{
    divisor by = {(uint32_t)d, ((1u << 31) - 1) / (uint32_t)d + 1};
    return by;
}

static __device__ __forceinline__ divided over(int i, const divisor &by)
{
    divided r;
    r.times = (uint32_t)(((uint64_t)(2 * (uint32_t)i) * by.times) >> 32);
    r.rest = (uint32_t)i - r.times * by.d;
    return r;
}

/* Tiles of a map, `wide` by `high` of them: a block has (columns, rows, groups) threads. */
struct tiling {
    int wide, high, columns, rows, groups, parts;
    int width, pitch, plane; /* of the values that a block's tiles read; floats */
};

/* What all blocks of a launch know. */
struct tile_args {
    conv_shape s;
    pool_shape o;
    tiling places, inputs;            /* of forward, of dx */
    int data_blocks, pairs_of_inputs; /* of a sample; 0: there is no dx */
    int pitch, plane;                 /* dw's, of the sample */
    int rows_of_taps,
        window_groups; /* dw: (filter, channel, r); groups that windows are dealt to */
    divisor w, c, k, q, lines, channel; /* rows_of_taps; channel: rows of taps of a filter */
};

/* A row of weights of two filters, in whole vectors of four. */
template <int R> struct row {
    enum { FLOATS = (R * PAIR + 3) / 4 * 4 };
};

static int row_floats_of(int r)
{
    return (r * PAIR + 3) / 4 * 4;
}

static int up(int x, int to)
{
    return (x + to - 1) / to * to;
}

/* The next from x on that leaves `rest` when divided by `by`. */
static int up_to_rest(int x, int rest, int by)
{
    return x + ((rest - x) % by + by) % by;
}

/* `blocks`: the launch has so many without dividing rows. No rows: it does not fit. Columns are
 * even and rows of tiles follow each other in the banks, so that 16 threads, which ask for two
 * floats each, meet in none. */
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

static int pairs(int count)
{
    return (count + PAIR - 1) / PAIR;
}

static tile_args args_of(const conv_shape &s, const pool_shape &o)
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
    tile_args a = args_of(s, o);
    int64_t sample = (int64_t)a.plane * s.c;
    int sums = a.window_groups > 1 ? a.window_groups * a.rows_of_taps * (s.r + 1) : 0;
    return a.places.rows > 0 && a.inputs.rows > 0 && o.p * o.q * PAIR <= TILE_SENDS &&
           up((int)sample, 4) + sums <= TILE_FLOATS;
}

/* ---- a tile ---------------------------------------------------------------------------------- */

typedef pack<float, 4> quad;

static __device__ __forceinline__ float *floats_of(quad *room)
{
    return (float *)room;
}

/* sum[i]: of row i of the tile, place 0 of both filters and then place 1. */
template <int R>
static __device__ __forceinline__ void add_products(const float *x, int pitch, const float *w,
                                                    quad sum[2])
{
    enum { ROW = row<R>::FLOATS };
    float now[ROW] = {}, before[ROW] = {}, at[R + 1];
    UNROLL
    for (int h = 0; h <= R; h++) {
        UNROLL
        for (int i = 0; i <= R; i += 2) {
            pack<float, 2> two = take<2>(x, (size_t)(h * pitch + i));
            at[i] = two.at[0], at[i + 1] = two.at[1];
        }
        UNROLL
        for (int i = 0; i < ROW; i += 4) {
            quad four = {};
            if (h < R)
                four = take<4>(w, (size_t)(h * ROW + i));
            UNROLL
            for (int j = 0; j < 4; j++) {
                before[i + j] = now[i + j];
                now[i + j] = four.at[j];
            }
        }
        UNROLL
        for (int i = 0; i < R * 4; i++) {
            int q = i / 4, j = i / 2 % 2, f = i % 2;
            if (h < R)
                sum[0].at[j * 2 + f] += at[q + j] * now[q * PAIR + f];
            if (h > 0)
                sum[1].at[j * 2 + f] += at[q + j] * before[q * PAIR + f];
        }
    }
}

/* Where a thread's tile lies. */
struct tile {
    int row, column; /* of all tiles */
    bool live;
};

static __device__ __forceinline__ tile tile_of(const tiling &t, int part)
{
    tile at;
    at.row = part * t.rows + (int)threadIdx.y;
    at.column = (int)threadIdx.x;
    at.live = at.row < t.high && at.column < t.wide;
    return at;
}

static __device__ __forceinline__ int flat_thread(void)
{
    return (int)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}

static __device__ __forceinline__ int flat_threads(void)
{
    return (int)(blockDim.x * blockDim.y * blockDim.z);
}

static __device__ __forceinline__ void clear(quad *room, int floats)
{
    const quad zero = {};
    for (int i = flat_thread(); 4 * i < floats; i += flat_threads())
        room[i] = zero;
}

/* A tile's sum over all channels, which only the first group gets. What is in `room` is lost. */
template <int R>
static __device__ __forceinline__ bool sum_tile(const tiling &t, int channels, const tile &at,
                                                quad *room, const float *weights, quad sum[2])
{
    const float *x = floats_of(room) + 2 * (int)threadIdx.y * t.pitch + 2 * at.column;
    for (int c = (int)threadIdx.z; at.live && c < channels; c += t.groups)
        add_products<R>(x + c * t.plane, t.pitch, weights + c * R * row<R>::FLOATS, sum);
    if (t.groups > 1) {
        int tiles = t.columns * t.rows, mine = (int)threadIdx.y * t.columns + at.column;
        __syncthreads();
        if (at.live && threadIdx.z > 0) {
            room[2 * (int)threadIdx.z * tiles + mine] = sum[0];
            room[(2 * (int)threadIdx.z + 1) * tiles + mine] = sum[1];
        }
        __syncthreads();
        for (int g = 1; at.live && threadIdx.z == 0 && g < t.groups; g++) {
            quad first = room[2 * g * tiles + mine], second = room[(2 * g + 1) * tiles + mine];
            UNROLL
            for (int i = 0; i < 4; i++) {
                sum[0].at[i] += first.at[i];
                sum[1].at[i] += second.at[i];
            }
        }
    }
    return at.live && threadIdx.z == 0;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* A thread asks for all that it brings before it writes the first: a block waits for memory once.
 * Where each value goes is found out meanwhile; below 0: nowhere. */
enum { SAMPLE_AT_ONCE = 8, WEIGHTS_AT_ONCE = 2 };

/* Where value i of the rows from `row` of a plane on goes. */
static __device__ __forceinline__ int place_of(const tile_args &a, int i, int row, int pitch,
                                               int plane, int width)
{
    divided pixel = over(i, a.c), line = over((int)pixel.times, a.w);
    int column = (int)line.rest + a.s.pad_w;
    int at = (int)pixel.rest * plane + ((int)line.times + row) * pitch + column;
    return column < width ? at : -1;
}

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

/* ---- backward -------------------------------------------------------------------------------- */

/* What forward left of a sample, and its output's gradient, which stands for y too where no ReLU
 * asks for y. */
template <class T> struct windows {
    const uint16_t *winner;
    const T *y, *dy;
    bool relu;
};

/* One window's, as they were read. */
template <class T> struct window {
    int won;
    T y, dy;
};

template <class T>
static __device__ __forceinline__ window<T> read_window(const windows<T> &from, int i)
{
    window<T> v = {(int)from.winner[i], from.y[i], from.dy[i]};
    return v;
}

template <class T> static __device__ __forceinline__ float sent(const window<T> &v, bool relu)
{
    return relu && !(to_float(v.y) > 0) ? 0.0f : to_float(v.dy);
}

enum { DATA_AT_ONCE = 4 };

/* What the windows send, each to where its place lies in its filter's plane; and the weights of
 * channels c0 on, for a place's R x R last to first. */
template <class T, int R>
static __device__ __forceinline__ void bring_sent(const tile_args &a, int part, int c0, const T *w,
                                                  const windows<T> &from, quad *room,
                                                  float *weights)
{
    const conv_shape &s = a.s;
    const tiling &t = a.inputs;
    int outputs = a.o.p * a.o.q * s.k, taps = s.k * R * R * PAIR, all = max(outputs, taps);
    int above = R - 1 - s.pad_h - 2 * part * t.rows, left = R - 1 - s.pad_w;
    int me = flat_thread(), step = flat_threads(), rows = 2 * t.rows + R - 1;
    clear(room, t.plane * s.k + s.k * R * row<R>::FLOATS);
    for (int base = 0; base < all; base += DATA_AT_ONCE * step) {
        window<T> v[DATA_AT_ONCE];
        T tap[DATA_AT_ONCE];
        int row_to[DATA_AT_ONCE], column_to[DATA_AT_ONCE], plane_to[DATA_AT_ONCE];
        int tap_to[DATA_AT_ONCE];
        UNROLL
        for (int j = 0; j < DATA_AT_ONCE; j++) {
            int i = base + j * step + me;
            int weight = min(i, taps - 1), c = min(c0 + weight % PAIR, s.c - 1);
            v[j] = read_window(from, min(i, outputs - 1));
            tap[j] = w[weight / PAIR * s.c + c];
        }
        UNROLL
        for (int j = 0; j < DATA_AT_ONCE; j++) {
            int i = base + j * step + me;
            divided at = over(i, a.k), line = over((int)at.times, a.q);
            row_to[j] = i < outputs ? 2 * (int)line.times + above : rows;
            column_to[j] = 2 * (int)line.rest + left;
            plane_to[j] = (int)at.rest * t.plane;
            int k = i / (PAIR * R * R), last = R * R - 1 - i / PAIR % (R * R);
            tap_to[j] = (k * R + last / R) * row<R>::FLOATS + last % R * PAIR + i % PAIR;
            tap_to[j] = i < taps ? tap_to[j] : -1;
        }
        __syncthreads();
        UNROLL
        for (int j = 0; j < DATA_AT_ONCE; j++) {
            int r = row_to[j] + v[j].won / 2, q = column_to[j] + v[j].won % 2;
            if (r >= 0 && r < rows && q >= 0 && q < t.width)
                floats_of(room)[plane_to[j] + r * t.pitch + q] = sent(v[j], from.relu);
            if (tap_to[j] >= 0)
                weights[tap_to[j]] = to_float(tap[j]);
        }
    }
    __syncthreads();
}

template <class T, int R>
static __device__ __forceinline__ void input_tiles(const tile_args &a, int block, const T *w,
                                                   const windows<T> &from, quad *room, T *dx,
                                                   bool add)
{
    const conv_shape &s = a.s;
    int part = block / a.pairs_of_inputs, c0 = block % a.pairs_of_inputs * PAIR;
    float *weights = floats_of(room) + a.inputs.plane * s.k;
    bring_sent<T, R>(a, part, c0, w, from, room, weights);
    tile at = tile_of(a.inputs, part);
    quad sum[2] = {};
    if (!sum_tile<R>(a.inputs, s.k, at, room, weights, sum))
        return;
    dx += (size_t)blockIdx.x * (size_t)(s.h * s.w * s.c);
    UNROLL
    for (int i = 0; i < 4 * PAIR; i++) {
        int h = 2 * at.row + i / 4, v = 2 * at.column + i / 2 % 2, c = c0 + i % 2;
        if (h < s.h && v < s.w && c < s.c)
            put_or_add(&dx[(h * s.w + v) * s.c + c], sum[i / 4].at[i % 4], add);
    }
}

/* What a window sends, and where in a plane of the sample its place's taps begin. */
struct alignas(8) send {
    float value;
    int at;
};

enum { VALUES_AT_ONCE = 6, SENDS_AT_ONCE = 2 };

/* Sample n, and what filters k0 on of its windows send: sends (PAIR, windows). */
template <class T>
static __device__ __forceinline__ void bring_sample(const tile_args &a, int k0, const T *x,
                                                    const windows<T> &from, quad *room, send *sends)
{
    const conv_shape &s = a.s;
    int values = s.h * s.w * s.c, all = a.o.p * a.o.q, sending = all * PAIR;
    int me = flat_thread(), step = flat_threads();
    x += (size_t)blockIdx.x * (size_t)values;
    clear(room, a.plane * s.c);
    for (int base = 0; base * VALUES_AT_ONCE < values || base * SENDS_AT_ONCE < sending;
         base += step) {
        T value[VALUES_AT_ONCE];
        window<T> v[SENDS_AT_ONCE];
        int to[VALUES_AT_ONCE], window_at[SENDS_AT_ONCE];
        UNROLL
        for (int j = 0; j < SENDS_AT_ONCE; j++) {
            int i = min(base * SENDS_AT_ONCE + j * step + me, sending - 1);
            v[j] = read_window(from, i / PAIR * s.k + min(k0 + i % PAIR, s.k - 1));
        }
        UNROLL
        for (int j = 0; j < VALUES_AT_ONCE; j++) {
            int i = base * VALUES_AT_ONCE + j * step + me;
            value[j] = x[min(i, values - 1)];
        }
        UNROLL
        for (int j = 0; j < SENDS_AT_ONCE; j++) {
            divided line = over((base * SENDS_AT_ONCE + j * step + me) / PAIR, a.q);
            window_at[j] = 2 * (int)line.times * a.pitch + 2 * (int)line.rest;
        }
        UNROLL
        for (int j = 0; j < VALUES_AT_ONCE; j++) {
            int i = base * VALUES_AT_ONCE + j * step + me;
            to[j] = i < values ? place_of(a, i, s.pad_h, a.pitch, a.plane, a.pitch) : -1;
        }
        __syncthreads();
        UNROLL
        for (int j = 0; j < SENDS_AT_ONCE; j++) {
            int i = base * SENDS_AT_ONCE + j * step + me;
            const send one = {sent(v[j], from.relu),
                              window_at[j] + v[j].won / 2 * a.pitch + v[j].won % 2};
            if (i < sending)
                sends[i % PAIR * all + i / PAIR] = one;
        }
        UNROLL
        for (int j = 0; j < VALUES_AT_ONCE; j++)
            if (to[j] >= 0)
                floats_of(room)[to[j]] = to_float(value[j]);
    }
    __syncthreads();
}

enum { TAPS_AT_ONCE = 4 };

/* A row of taps over every window_groups-th window, and then what these send. */
template <int R>
static __device__ __forceinline__ void sum_taps(const tile_args &a, const float *x,
                                                const send *sends, int first, float sum[R + 1])
{
    int all = a.o.p * a.o.q;
    for (int i = first; i < all; i += TAPS_AT_ONCE * a.window_groups) {
        send one[TAPS_AT_ONCE];
        float at[TAPS_AT_ONCE][R];
        UNROLL
        for (int j = 0; j < TAPS_AT_ONCE; j++) {
            int from = i + j * a.window_groups;
            one[j] = sends[min(from, all - 1)];
            one[j].value = from < all ? one[j].value : 0.0f;
        }
        UNROLL
        for (int j = 0; j < TAPS_AT_ONCE * R; j++)
            at[j / R][j % R] = x[one[j / R].at + j % R];
        UNROLL
        for (int j = 0; j < TAPS_AT_ONCE * R; j++)
            sum[j % R] += one[j / R].value * at[j / R][j % R];
        UNROLL
        for (int j = 0; j < TAPS_AT_ONCE; j++)
            sum[R] += one[j].value;
    }
}

/* Tap q of a row of taps, or with q = R, of a filter's first row alone, the bias. */
template <int R>
static __device__ __forceinline__ void put_tap(const tile_args &a, int k0, int line, int q,
                                               float sum, float *part)
{
    const conv_shape &s = a.s;
    divided filter = over(line, a.channel);
    int k = k0 + (int)filter.times, c = (int)filter.rest / R, r = (int)filter.rest % R;
    if (k < s.k && q < R)
        part[((k * R + r) * R + q) * s.c + c] = sum;
    else if (k < s.k && filter.rest == 0)
        part[s.k * R * R * s.c + k] = sum;
}

template <class T, int R>
static __device__ __forceinline__ void weight_tiles(const tile_args &a, int block, const T *x,
                                                    const windows<T> &from, quad *room, send *sends,
                                                    float *part)
{
    const conv_shape &s = a.s;
    int k0 = block * PAIR, all = a.o.p * a.o.q, groups = a.window_groups;
    int threads = flat_threads(), units = a.rows_of_taps * groups;
    float *sums = floats_of(room) + (a.plane * s.c + 3) / 4 * 4;
    bring_sample(a, k0, x, from, room, sends);
    part += (size_t)blockIdx.x * (size_t)(s.k * R * R * s.c + s.k);
    for (int unit = flat_thread(); unit < units; unit += threads) {
        divided group = over(unit, a.lines), filter = over((int)group.rest, a.channel);
        int c = (int)filter.rest / R, r = (int)filter.rest % R;
        float sum[R + 1] = {};
        sum_taps<R>(a, floats_of(room) + c * a.plane + r * a.pitch, sends + (int)filter.times * all,
                    (int)group.times, sum);
        UNROLL
        for (int q = 0; groups > 1 && q <= R; q++)
            sums[q * units + unit] = sum[q];
        UNROLL
        for (int q = 0; groups == 1 && q <= R; q++)
            put_tap<R>(a, k0, unit, q, sum[q], part);
    }
    if (groups == 1)
        return;
    __syncthreads();
    for (int i = flat_thread(); i < a.rows_of_taps * (R + 1); i += threads) {
        divided tap = over(i, a.lines);
        float sum = 0;
        for (int g = 0; g < groups; g++)
            sum += sums[(int)tap.times * units + g * a.rows_of_taps + (int)tap.rest];
        put_tap<R>(a, k0, (int)tap.rest, (int)tap.times, sum, part);
    }
}

template <class T, int R>
static __global__ void __launch_bounds__(TILE_THREADS, 2)
    tiles_backward(tile_args a, const T *x, const T *w, const uint16_t *winner, const T *y,
                   bool relu, const T *dy, float *part, T *dx, bool add)
{
    __shared__ quad room[TILE_FLOATS / 4];
    __shared__ send sends[TILE_SENDS];
    size_t sample = (size_t)blockIdx.x * (size_t)(a.o.p * a.o.q * a.s.k);
    const windows<T> from = {winner + sample, (relu ? y : dy) + sample, dy + sample, relu};
    int block = (int)blockIdx.y;
    if (block < a.data_blocks)
        input_tiles<T, R>(a, block, w, from, room, dx, add);
    else
        weight_tiles<T, R>(a, block - a.data_blocks, x, from, room, sends, part);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Calls body<R>. */
#define BY_KERNEL(r, call)                                                                         \
    do {                                                                                           \
        if ((r) == 5) {                                                                            \
            enum { R = 5 };                                                                        \
            call;                                                                                  \
        } else {                                                                                   \
            enum { R = 3 };                                                                        \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

static dim3 block_of(const tiling &t)
{
    return dim3((unsigned)t.columns, (unsigned)t.rows, (unsigned)t.groups);
}

void cuda_tiles_forward(void *stream, element t, const conv_shape &s, const pool_shape &o,
                        const void *x, const void *w, const float *bias, bool relu,
                        uint16_t *winner, void *y)
{
    tile_args a = args_of(s, o);
    dim3 grid((unsigned)s.n, (unsigned)pairs(s.k), (unsigned)a.places.parts);
    BY_ELEMENT(
        t, BY_KERNEL(s.r, LAUNCH_BLOCK((tiles_forward<T, R>), grid, block_of(a.places), stream, a,
                                       (const T *)x, (const T *)w, bias, relu, winner, (T *)y)));
}

void cuda_tiles_backward(void *stream, element t, const conv_shape &s, const pool_shape &o,
                         const void *x, const void *w, const uint16_t *winner, const void *y,
                         bool relu, const void *dy, float *part, void *dx, bool add)
{
    tile_args a = args_of(s, o);
    dim3 block = block_of(a.inputs);
    if (!dx) {
        a.data_blocks = 0;
        block = dim3(TILE_THREADS);
    }
    dim3 grid((unsigned)s.n, (unsigned)(a.data_blocks + pairs(s.k)));
    BY_ELEMENT(t, BY_KERNEL(s.r, LAUNCH_BLOCK((tiles_backward<T, R>), grid, block, stream, a,
                                              (const T *)x, (const T *)w, winner, (const T *)y,
                                              relu, (const T *)dy, part, (T *)dx, add)));
}
