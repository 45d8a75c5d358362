/* shim.h: just enough of CUDA for our kernels' bodies to run on the host, one thread after the
 * other.
 *
 * LAUNCH runs a kernel's threads in a loop. LAUNCH_BLOCK gives each thread of a block a fiber:
 * __syncthreads and the shuffles hand over to the next one, and a barrier that some threads never
 * reach ends the program with the reason, as does a barrier in a kernel that was started by LAUNCH.
 * A "stream" is a shim_stream: while it captures, launches are kept, and run when the graph
 * does.
 *
 * The threads of a block take turns in their order, so that a result is right here although a
 * barrier is missing. What they touch meanwhile is watched in programs that races.cc is linked to.
 */
#ifndef KUBEML_SHIM_H
#define KUBEML_SHIM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#ifdef __SANITIZE_THREAD__ /* by which races.cc knows shared memory */
#define __shared__ static thread_local
#else
#define __shared__ static
#endif
#define __restrict__    __restrict
/* x86 bears what a GPU refuses. */
#define MULTIPLE_OF(at, bytes) shim_multiple_of(at, bytes)
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;
/* Blocks in a grid's second and third direction; as CUDA's, unless a test sets fewer. */
extern "C" unsigned shim_grid_most;

/* Where the threads are. `now` grows with each block and barrier: two accesses at the same `now`
 * have no barrier between them. */
struct shim_clock {
    uint32_t launch, block, now; /* `now` as the launch and the block began */
    int thread;                  /* of the block; -1 outside of kernels */
    const char *kernel;
};
extern shim_clock shim_at;
extern thread_local bool shim_inside; /* it is this thread of the host that runs a kernel */
/* Told of each access by an atomic function, where somebody watches. */
extern void (*shim_atomic_seen)(const void *at, size_t bytes);
/* Whether `at` lies on a fiber's stack. */
bool shim_on_stack(const void *at);

struct shim_stream {
    bool capturing = false;
    std::vector<std::function<void()>> kept;
    bool branching = false; // what is enqueued is kept apart, until a join
    std::vector<std::function<void()>> branch;
    long launches = 0;
};

void shim_multiple_of(const void *at, size_t bytes);

/* Now, or when the graph that is being captured runs. */
void shim_enqueue(void *stream, std::function<void()> work);
void shim_run_loop(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &thread);
void shim_run_fibers(const char *kernel, dim3 grid, dim3 block,
                     const std::function<void()> &thread);

/* By value, as a launch takes its arguments. */
#define LAUNCH_ON(run, kernel, grid, block, stream, ...)                                           \
    do {                                                                                           \
        dim3 grid_ = grid, block_ = block;                                                         \
        shim_enqueue(stream,                                                                       \
                     [=]() { run(#kernel, grid_, block_, [=]() { kernel(__VA_ARGS__); }); });      \
    } while (0)
#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
    LAUNCH_ON(shim_run_loop, kernel, grid, block, stream, __VA_ARGS__)
#define LAUNCH_BLOCK(kernel, grid, block, stream, ...)                                             \
    LAUNCH_ON(shim_run_fibers, kernel, grid, block, stream, __VA_ARGS__)

void __syncthreads(void);

/* Gives `mine` and gets what lane `from` of the same warp gave; all 32 lanes must take part. */
uint64_t shim_shuffle(uint64_t mine, int from);
int shim_lane(void);

template <class T> static inline T shim_shuffle_as(T value, int from)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = shim_shuffle(word, from);
    memcpy(&value, &word, sizeof value);
    return value;
}

template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask)
{
    return shim_shuffle_as(value, shim_lane() ^ mask);
}

template <class T> static inline T __shfl_down_sync(unsigned, T value, int delta)
{
    int from = shim_lane() + delta;
    return shim_shuffle_as(value, from < 32 ? from : shim_lane());
}

template <class T> static inline T __shfl_sync(unsigned, T value, int from)
{
    return shim_shuffle_as(value, from & 31);
}

int atomicAnd(int *at, int value);
unsigned long long atomicAdd(unsigned long long *at, unsigned long long value);
unsigned atomicInc(unsigned *at, unsigned most);

static inline double rsqrt(double x)
{
    return 1 / sqrt(x);
}

static inline double __ldcg(const double *at)
{
    return *at;
}

/* As the last of the blocks that atomicInc counts, a block sees what the others wrote before their
 * fences; races.cc asks whether that holds of what was done at `then`. */
void __threadfence(void);
bool shim_sees(uint32_t then);

static inline float __uint_as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The host's compiler is told not to contract (the Makefile), so that these round as CUDA's do. */
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

using std::isfinite;
using std::isnan;

static inline int min(int a, int b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
}

#endif
