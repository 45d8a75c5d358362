/* fused_tiles_backward.cu: what fused_tiles.cu runs forward, backward.
 *
 * dx: forward's tiles, of the input: what the windows send lies as planes, a filter each, zero but
 *     where a place has won, and the weights lie turned around.
 * dw: of one sample and two filters; a thread sums a row of taps over some windows.
 *
 * dx and dw need nothing of each other: they are blocks of one launch. */
#include "fused_tiles.cuh"

/* What forward left of a sample, and its output's gradient. Where there is no ReLU nothing needs y,
 * and dy stands in its place. */
template <class T> struct windows {
    const uint16_t *winner;
    const T *y, *dy;
    bool relu;
};

/* One window as it was read. */
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

/* Puts what the windows send at their places in their filters' planes, and the weights of channels
 * c0 on, each place's R x R taps from last to first. */
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

void cuda_tiles_backward(void *stream, element t, const conv_shape &s, const pool_shape &o,
                         const void *x, const void *w, const uint16_t *winner, const void *y,
                         bool relu, const void *dy, float *part, void *dx, bool add)
{
    tile_args a = cuda_tile_args(s, o);
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
