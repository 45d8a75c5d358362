// shim.cc: see shim.h. A fiber per thread of a block; the scheduler runs them in turn.
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define FIBER_ASAN 1
#else
#define FIBER_ASAN 0
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

unsigned shim_grid_most = 65535;

enum { THREADS_MAX = 1024, STACK_BYTES = 128 << 10, WARP = 32 };

// ---- switching -----------------------------------------------------------------------------------

#if defined(__x86_64__)
// Saves what a call must keep, leaves its stack in *from and goes on at `to`.
extern "C" void shim_switch(void **from, void *to);
__asm__(".text\n.globl shim_switch\n.type shim_switch,@function\nshim_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size shim_switch,.-shim_switch\n");

typedef void *place;

static void place_begin(place *p, char *stack, void (*entry)(void))
{
    void **top = (void **)(((uintptr_t)stack + STACK_BYTES) & ~(uintptr_t)15);
    *--top = nullptr; // where entry would return to; it never does
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    *p = top;
}

static void place_switch(place *from, place *to)
{
    shim_switch(from, *to);
}
#else
#include <ucontext.h>
typedef ucontext_t place;

static void place_begin(place *p, char *stack, void (*entry)(void))
{
    getcontext(p);
    p->uc_stack.ss_sp = stack;
    p->uc_stack.ss_size = STACK_BYTES;
    p->uc_link = nullptr;
    makecontext(p, entry, 0);
}

static void place_switch(place *from, place *to)
{
    swapcontext(from, to);
}
#endif

// ---- fibers --------------------------------------------------------------------------------------

enum state { FRESH, RUNNING, AT_BLOCK, AT_WARP, DONE };

struct fiber {
    place at;
    char *stack;
    void *fake; // AddressSanitizer's
    state s;
    uint64_t given;
};

static std::recursive_mutex gate; // the "GPU": one launch at a time
static fiber fibers[THREADS_MAX];
static char *stacks;
static place scheduler;
#if FIBER_ASAN
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif
static int current = -1;
static const std::function<void()> *body;

[[noreturn]] static void die(const char *why)
{
    fprintf(stderr, "CUDA shim: %s (block %u,%u,%u thread %d)\n", why, blockIdx.x, blockIdx.y,
            blockIdx.z, current);
    abort();
}

static void leave(state s)
{
    fiber *f = &fibers[current];
    f->s = s;
#if FIBER_ASAN
    __sanitizer_start_switch_fiber(s == DONE ? nullptr : &f->fake, scheduler_bottom, scheduler_size);
#endif
    place_switch(&f->at, &scheduler);
#if FIBER_ASAN
    __sanitizer_finish_switch_fiber(f->fake, nullptr, nullptr);
#endif
}

static void begin_thread()
{
#if FIBER_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
    (*body)();
    leave(DONE);
    die("a finished thread went on");
}

static void set_thread(int t)
{
    current = t;
    unsigned i = (unsigned)t;
    threadIdx = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
}

static void resume(int t)
{
    fiber *f = &fibers[t];
    set_thread(t);
    if (f->s == FRESH)
        place_begin(&f->at, f->stack, begin_thread);
    f->s = RUNNING;
#if FIBER_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
    place_switch(&scheduler, &f->at);
#if FIBER_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    current = -1;
}

// Lets the threads [from, to) go on when all of them wait in `s`.
static bool release(int from, int to, state s)
{
    for (int t = from; t < to; t++)
        if (fibers[t].s != s)
            return false;
    for (int t = from; t < to; t++)
        fibers[t].s = RUNNING;
    return true;
}

// Returns when every thread is done.
static void run_block(int threads)
{
    for (int t = 0; t < threads; t++)
        fibers[t].s = FRESH;
    for (;;) {
        int done = 0;
        for (int t = 0; t < threads; t++)
            if (fibers[t].s == FRESH || fibers[t].s == RUNNING)
                resume(t);
        for (int t = 0; t < threads; t++)
            done += fibers[t].s == DONE;
        if (done == threads)
            return;
        bool moved = release(0, threads, AT_BLOCK);
        for (int t = 0; t < threads; t += WARP)
            moved |= release(t, t + WARP < threads ? t + WARP : threads, AT_WARP);
        if (!moved)
            die("a barrier that not all threads reach");
    }
}

static void take_stacks()
{
    if (stacks)
        return;
    void *at = mmap(nullptr, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        die("no memory for stacks");
    stacks = (char *)at;
    for (int t = 0; t < THREADS_MAX; t++)
        fibers[t].stack = stacks + (size_t)t * STACK_BYTES;
}

template <class F> static void each_block(dim3 grid, dim3 block, F run)
{
    gridDim = grid;
    blockDim = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                run((int)(block.x * block.y * block.z));
            }
}

static void check_launch(dim3 grid, dim3 block)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > THREADS_MAX || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffff || grid.y > shim_grid_most || grid.z > shim_grid_most)
        die("a launch that CUDA refuses: block or grid out of range");
}

void shim_run_loop(dim3 grid, dim3 block, const std::function<void()> &thread)
{
    check_launch(grid, block);
    current = -1;
    each_block(grid, block, [&](int threads) {
        for (int t = 0; t < threads; t++) {
            set_thread(t);
            thread();
        }
    });
    current = -1;
}

void shim_run_fibers(dim3 grid, dim3 block, const std::function<void()> &thread)
{
    check_launch(grid, block);
    take_stacks();
    body = &thread;
    each_block(grid, block, [&](int threads) { run_block(threads); });
}

void __syncthreads(void)
{
    if (!body || current < 0 || fibers[current].s != RUNNING)
        die("a barrier in a kernel without fibers: LAUNCH_BLOCK starts those");
    leave(AT_BLOCK);
}

int shim_lane(void)
{
    return current % WARP;
}

uint64_t shim_shuffle(uint64_t mine, int from)
{
    if (!body || current < 0 || fibers[current].s != RUNNING)
        die("a shuffle in a kernel without fibers: LAUNCH_BLOCK starts those");
    int warp = current / WARP * WARP;
    fibers[current].given = mine;
    leave(AT_WARP);
    uint64_t got = fibers[warp + from].given;
    leave(AT_WARP); // nobody gives again before all have taken
    return got;
}

// ---- streams -------------------------------------------------------------------------------------

void shim_enqueue(void *stream, std::function<void()> work)
{
    shim_stream *s = (shim_stream *)stream;
    if (s && s->capturing) {
        s->kept.push_back(std::move(work));
        return;
    }
    std::lock_guard<std::recursive_mutex> hold(gate);
    if (s)
        s->launches++;
    work();
    body = nullptr;
}
