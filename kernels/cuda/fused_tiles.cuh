/* fused_tiles.cuh: what fused_tiles.cu and fused_tiles_backward.cu share: how a layer is cut into
 * tiles, and a tile's sum.
 *
 * A tile is 2x2 places of two filters, a thread's sum in registers: R + 1 rows of R + 1 values and
 * R rows of weights make 8 R^2 products, without a branch. The tensor's part that a block needs
 * lies in shared memory, a plane a channel, with zeros for the padding. Several channels are
 * divided among groups of threads, whose sums are added in the groups' order. The number of groups
 * depends on the layer alone, not on the batch. */
#ifndef KUBEML_FUSED_TILES_CUH
#define KUBEML_FUSED_TILES_CUH

#include "fused.cuh"

/* 24 KiB of shared memory: a multiprocessor holds several blocks, as of several functions on a GPU.
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

/* i / d for i * d < 2^31 as one product; a division takes a GPU some twenty instructions. */
struct divisor {
    uint32_t d, times;
};

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

/* The arguments of all blocks of a launch. */
struct tile_args {
    conv_shape s;
    pool_shape o;
    tiling places, inputs;            /* of forward, of dx */
    int data_blocks, pairs_of_inputs; /* of a sample; 0: there is no dx */
    int pitch, plane;                 /* dw's, of the sample */
    int rows_of_taps,
        window_groups; /* dw: (filter, channel, r); groups that share the windows */
    divisor w, c, k, q, lines, channel; /* rows_of_taps; channel: rows of taps of a filter */
};

/* A row of weights of two filters, in whole vectors of four. */
template <int R> struct row {
    enum { FLOATS = (R * PAIR + 3) / 4 * 4 };
};

tile_args cuda_tile_args(const conv_shape &s, const pool_shape &o);

static inline int pairs(int count)
{
    return (count + PAIR - 1) / PAIR;
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

/* A tile's sum over all channels, which only the first group gets. Overwrites `room`. */
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

/* Where value i of the rows from `row` of a plane on goes. */
static __device__ __forceinline__ int place_of(const tile_args &a, int i, int row, int pitch,
                                               int plane, int width)
{
    divided pixel = over(i, a.c), line = over((int)pixel.times, a.w);
    int column = (int)line.rest + a.s.pad_w;
    int at = (int)pixel.rest * plane + ((int)line.times + row) * pitch + column;
    return column < width ? at : -1;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The call with R, the taps of a side. */
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

static inline dim3 block_of(const tiling &t)
{
    return dim3((unsigned)t.columns, (unsigned)t.rows, (unsigned)t.groups);
}

#endif
