// races_planted.cc: kernels with a mistake each, every one of which computes the right thing on the
// host; races.cc must end the program at each, and at none of their mended twins.
#include "shim.h" // in the place of CUDA

#include "kernels/cuda/device.cuh"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "test.h"
}

enum { MANY = 64 };

// Each thread writes its place and reads its neighbour's on the left.
static __global__ void left_neighbour(bool mended, int *out)
{
    __shared__ int line[MANY];
    int t = (int)threadIdx.x;
    line[t] = t;
    if (mended)
        __syncthreads();
    out[blockIdx.x * MANY + threadIdx.x] = t ? line[t - 1] : 0;
    __syncthreads();
}

// A tile is filled again although somebody may still read what it held.
static __global__ void refilled(bool mended, int *out)
{
    __shared__ int tile[MANY];
    int t = (int)threadIdx.x, sum = 0;
    for (int round = 0; round < 2; round++) {
        tile[t] = t + round;
        __syncthreads();
        sum += tile[MANY - 1 - t];
        if (mended)
            __syncthreads();
    }
    out[blockIdx.x * MANY + threadIdx.x] = sum;
}

// A shuffle is no barrier for what lies in memory.
static __global__ void shuffled(bool mended, int *out)
{
    __shared__ int line[MANY];
    int t = (int)threadIdx.x;
    line[t] = t;
    int seen = __shfl_xor_sync(0xffffffffu, t, 1);
    if (mended)
        __syncthreads();
    out[blockIdx.x * MANY + threadIdx.x] = seen + line[t ^ 1];
}

// Shared memory is not zero when a block begins.
static __global__ void counted(bool mended, int *out)
{
    __shared__ int count[MANY];
    if (mended)
        count[threadIdx.x] = 0;
    count[threadIdx.x]++;
    out[blockIdx.x * MANY + threadIdx.x] = count[threadIdx.x];
    __syncthreads();
}

// Every block adds to the same word.
static __global__ void added(bool mended, unsigned long long *sum)
{
    if (mended)
        atomicAdd(sum, 1ull);
    else
        *sum += 1;
}

// A block reads what another one of the same launch writes.
static __global__ void chained(bool mended, int *out)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, last = gridDim.x * blockDim.x;
    out[i] = mended ? 1 : 1 + (i >= blockDim.x ? out[i - blockDim.x] : 0);
    if (mended && i == last)
        out[0] = 0;
}

// The last block to end reads what all have written; without a fence that may not be there yet.
static __global__ void totalled(bool mended, int *out)
{
    static unsigned counter, unfenced;
    bool last = false;
    out[blockIdx.x * MANY + threadIdx.x] = 1;
    if (mended) {
        last = is_last_block(&counter, gridDim.x);
    } else {
        __syncthreads();
        last = threadIdx.x == 0 && atomicInc(&unfenced, gridDim.x - 1) == gridDim.x - 1;
    }
    if (last && threadIdx.x == 0)
        out[0] += out[MANY];
}

// Another block than the last one reads what the first has written.
static __global__ void hasty(bool mended, int *out)
{
    static unsigned counter;
    out[blockIdx.x * MANY + threadIdx.x] = 1;
    bool last = is_last_block(&counter, gridDim.x + (mended ? 0 : 1));
    if ((last || !mended) && blockIdx.x > 0 && threadIdx.x == 0)
        out[MANY] += out[0];
}

// Four values at once, from an address that only one value may have.
static __global__ void misplaced(bool mended, float *sums)
{
    if (threadIdx.x == 0) {
        pack<float, 4> four = take<4>((const float *)sums, mended ? 4 : 3);
        sums[0] = four.at[0] + four.at[3];
    }
}

typedef void planted(bool mended);
alignas(16) static int out[2 * MANY];

#define PLANTED(kernel, launch, to)                                                                \
    static void run_##kernel(bool mended)                                                          \
    {                                                                                              \
        launch(kernel, 2, MANY, nullptr, mended, to);                                              \
    }
PLANTED(left_neighbour, LAUNCH_BLOCK, out)
PLANTED(refilled, LAUNCH_BLOCK, out)
PLANTED(shuffled, LAUNCH_BLOCK, out)
PLANTED(counted, LAUNCH_BLOCK, out)
PLANTED(totalled, LAUNCH_BLOCK, out)
PLANTED(hasty, LAUNCH_BLOCK, out)
PLANTED(added, LAUNCH, (unsigned long long *)out)
PLANTED(chained, LAUNCH, out)

static void run_misplaced(bool mended)
{
    LAUNCH(misplaced, 1, MANY, nullptr, mended, (float *)out);
}

// Runs it in a child; what that says before it ends itself, empty if it ends as it should.
static void said_by(planted *run, bool mended, char *text, size_t bytes)
{
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[1]);
        run(mended);
        _exit(0);
    }
    close(ends[1]);
    size_t have = 0;
    for (ssize_t n; (n = read(ends[0], text + have, bytes - 1 - have)) > 0;)
        have += (size_t)n;
    text[have] = 0;
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(have > 0 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT : status == 0);
}

static void is_found(planted *run, const char *why)
{
    char text[8192];
    said_by(run, false, text, sizeof text);
    CHECK_CONTAINS(text, why);
    CHECK_CONTAINS(text, "races_planted.cc:"); // where
    said_by(run, true, text, sizeof text);
    CHECK_STR(text, "");
}

TEST(a_missing_barrier_is_found)
{
    is_found(run_left_neighbour, "two threads touch it without a barrier between (left_neighbour");
    is_found(run_refilled, "two threads touch it without a barrier between (refilled");
    is_found(run_shuffled, "two threads touch it without a barrier between (shuffled");
}

TEST(shared_memory_that_is_taken_for_zero_is_found)
{
    is_found(run_counted, "shared memory that nobody in this block has written is read (counted");
}

TEST(an_address_that_a_gpu_refuses_is_found)
{
    char text[8192];
    said_by(run_misplaced, false, text, sizeof text);
    CHECK_CONTAINS(text, "several values at an address that is no multiple of them (misplaced");
    said_by(run_misplaced, true, text, sizeof text);
    CHECK_STR(text, "");
}

TEST(blocks_that_touch_the_same_are_found)
{
    is_found(run_added, "two threads touch it without a barrier between (added");
    is_found(run_chained, "two blocks of one launch touch it (chained");
    is_found(run_totalled, "two blocks of one launch touch it (totalled");
    is_found(run_hasty, "two blocks of one launch touch it (hasty");
}
