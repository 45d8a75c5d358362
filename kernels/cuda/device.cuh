/* device.cuh: what every .cu file begins with. Under nvcc it is CUDA; under the host's compiler the
 * shim of the tests (-include) takes its place: the same bodies run without a GPU.
 *
 * Launches go through two macros: LAUNCH for kernels whose threads never meet, LAUNCH_BLOCK for
 * those with block barriers or warp shuffles. To nvcc they are the same; the shim gives each thread
 * of the second kind a fiber. Launches return nothing: the driver asks for errors once, after all
 * of them. */
#ifndef KUBEML_DEVICE_CUH
#define KUBEML_DEVICE_CUH

#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
    kernel<<<grid, block, 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#define LAUNCH_BLOCK LAUNCH
#define MULTIPLE_OF(at, bytes) ((void)0)
/* Before a loop over an array of a thread's own: registers have no addresses, and a loop that is
 * not unrolled would put the array in memory. */
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_4 _Pragma("unroll 4")
/* Before a loop that hardly ever runs twice: unneeded instructions are fetched, too. */
#define ROLLED _Pragma("unroll 1")
#else
#define UNROLL
#define UNROLL_BY_4
#define ROLLED
#endif

#include "cuda_kernels.h"

/* Of a warp. */
enum { LANES = 32 };
#define ALL_LANES 0xffffffffu

/* bfloat16 as its bits: the upper half of a float's. */
struct bf16 {
    uint16_t bits;
};

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

static __device__ __forceinline__ void put(float *at, float x)
{
    *at = x;
}

/* To the nearest, ties to even; a NaN stays one. */
static __device__ __forceinline__ void put(bf16 *at, float x)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        at->bits = (uint16_t)((bits >> 16) | 0x40u);
    else
        at->bits = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <class T> static __device__ __forceinline__ void put_or_add(T *at, float x, bool add)
{
    put(at, add ? to_float(*at) + x : x);
}

/* Philox4x32-10 with common/base/rng.h's counter: the same bits as rng_draw. */
static __device__ __forceinline__ void draw(uint64_t seed, uint32_t use, uint32_t a, uint64_t b,
                                            uint32_t c, uint32_t out[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    out[0] = c;
    out[1] = (uint32_t)b;
    out[2] = (uint32_t)(b >> 32);
    out[3] = (use << 28) | (a & 0x0FFFFFFFu);
    for (int round = 0; round < 10; round++) {
        uint64_t low = (uint64_t)0xD2511F53u * out[0], high = (uint64_t)0xCD9E8D57u * out[2];
        uint32_t next0 = (uint32_t)(high >> 32) ^ out[1] ^ key0;
        uint32_t next2 = (uint32_t)(low >> 32) ^ out[3] ^ key1;
        out[0] = next0;
        out[1] = (uint32_t)high;
        out[2] = next2;
        out[3] = (uint32_t)low;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* A multiprocessor has 65,536 registers and a thread 255 at most: a block of THREADS starts
 * whatever its kernel needs. Kernels of larger blocks say so (__launch_bounds__), or they might not
 * start. */
enum { THREADS = 256, GRID_MAX = 1 << 16 };

/* Blocks of THREADS for `count` elements; kernels stride over the grid, so that any count fits. */
static inline unsigned blocks_for(size_t count)
{
    size_t blocks = (count + THREADS - 1) / THREADS, most = GRID_MAX;
    return (unsigned)(blocks > most ? most : blocks ? blocks : 1);
}

#define FOR_EACH(i, count)                                                                         \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count);                    \
         i += (size_t)gridDim.x * blockDim.x)

/* i / d and i % d. Activations have less than 2^31 elements (cuda_plan.c checks), and a GPU divides
 * 32 bits several times as fast as 64. */
typedef struct divided {
    uint32_t times, rest;
} divided;

static __device__ __forceinline__ divided divide(size_t i, int d)
{
    divided r;
    r.times = (uint32_t)i / (uint32_t)d;
    r.rest = (uint32_t)i - r.times * (uint32_t)d;
    return r;
}

/* Which of places `stride` apart lies at `at`; below 0: none. */
static __device__ __forceinline__ int step_at(int at, int stride, int count)
{
    if (stride > 1 && at >= 0)
        at = at % stride ? -1 : at / stride;
    return at < count ? at : -1;
}

/* ---- four values a thread -------------------------------------------------------------------- */

/* A thread that loads one value at a time leaves most of a GPU's memory idle, the more so where a
 * value is two bytes. EACH values side by side are one load, and one store. */
template <class T, int EACH> struct alignas(EACH * sizeof(T)) pack {
    T at[EACH];
};

template <int EACH, class T>
static __device__ __forceinline__ pack<T, EACH> take(const T *from, size_t i)
{
    MULTIPLE_OF(from + i, sizeof(pack<T, EACH>));
    return *(const pack<T, EACH> *)(from + i);
}

template <int EACH, class T>
static __device__ __forceinline__ void store(T *to, size_t i, const pack<T, EACH> &values)
{
    MULTIPLE_OF(to + i, sizeof values);
    *(pack<T, EACH> *)(to + i) = values;
}

template <int EACH, class T>
static __device__ __forceinline__ void give(T *to, size_t i, const pack<float, EACH> &from,
                                            bool add)
{
    pack<T, EACH> result = {};
    if (add)
        result = take<EACH>((const T *)to, i);
    for (int j = 0; j < EACH; j++)
        put_or_add(&result.at[j], from.at[j], add);
    store(to, i, result);
}

/* Whether `count` values of so many bytes can go by fours from all of these addresses, which are
 * ored. */
static inline bool in_fours(size_t count, size_t bytes, uintptr_t addresses)
{
    return count % 4 == 0 && addresses % (4 * bytes) == 0;
}

/* Like `take`, for what another block of the same launch has written: reads past this
 * multiprocessor's own cache, which may hold older values. */
template <int EACH>
static __device__ __forceinline__ pack<double, EACH> take_shared(const double *from, size_t i)
{
    pack<double, EACH> values;
    UNROLL
    for (int j = 0; j < EACH; j++)
        values.at[j] = __ldcg(&from[i + (size_t)j]);
    return values;
}

/* Whether this block is the last of `blocks` to call this; they share a counter. The last block
 * sees what all of them have written before. All threads of a block call this. The counter is 0
 * before the first block, and again after the last. */
static __device__ __forceinline__ bool is_last_block(unsigned *counter, unsigned blocks)
{
    __shared__ bool last;
    __threadfence(); /* what this thread wrote comes before its block is counted */
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0)
        last = atomicInc(counter, blocks - 1) == blocks - 1;
    __syncthreads();
    if (last)
        __threadfence();
    return last;
}

/* Calls body<EACH> with 4 or 1. */
#define BY_FOURS(yes, ...)                                                                         \
    do {                                                                                           \
        if (yes) {                                                                                 \
            enum { EACH = 4 };                                                                     \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            enum { EACH = 1 };                                                                     \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Calls body<float> or body<bf16> by the element type. */
#define BY_ELEMENT(element, ...)                                                                   \
    do {                                                                                           \
        if ((element) == ELEMENT_BF16) {                                                           \
            typedef bf16 T;                                                                        \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
