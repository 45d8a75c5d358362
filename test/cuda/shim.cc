// shim.cc: see shim.h. A fiber per thread of a block; who has to wait hands over to the next one that
// can run.
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
shim_clock shim_at = {0, 0, 0, -1, nullptr};
thread_local bool shim_inside;
void (*shim_atomic_seen)(const void *at, size_t bytes);

unsigned shim_grid_most = 65535;

enum { THREADS_MAX = 1024, STACK_BYTES = 128 << 10, WARP = 32 };

// ---- switching -----------------------------------------------------------------------------------

#if defined(__x86_64__)
// Saves what a call must keep, leaves its stack in *from and goes on at `to`.
extern "C" __attribute__((visibility("hidden"))) void shim_switch(void **from, void *to);
__asm__(".text\n.globl shim_switch\n.hidden shim_switch\n.type shim_switch,@function\nshim_switch:\n"
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
    state s;
    dim3 index;
    uint64_t given[2]; // of one shuffle and of the next
    unsigned shuffles;
};

static std::recursive_mutex gate; // the "GPU": one launch at a time
static fiber fibers[THREADS_MAX];
static int threads; // of the block that runs
static char *stacks;
static place launcher; // who waits for the block
static const std::function<void()> *body;

[[noreturn]] static void die(const char *why)
{
    fprintf(stderr, "CUDA shim: %s (%s, block %u,%u,%u, thread %d)\n", why,
            shim_at.kernel ? shim_at.kernel : "no kernel", blockIdx.x, blockIdx.y, blockIdx.z,
            shim_at.thread);
    abort();
}

// AddressSanitizer is told of the stacks of all fibers as of one: what it is told from switch to
// switch takes longer than most threads run between two barriers.
#if FIBER_ASAN
static const void *launcher_bottom;
static size_t launcher_bytes;
static void *launcher_fake;

static void leaving_launcher()
{
    __sanitizer_start_switch_fiber(&launcher_fake, stacks, (size_t)THREADS_MAX * STACK_BYTES);
}

static void entered_fibers()
{
    __sanitizer_finish_switch_fiber(nullptr, &launcher_bottom, &launcher_bytes);
}

static void leaving_fibers()
{
    __sanitizer_start_switch_fiber(nullptr, launcher_bottom, launcher_bytes);
}

static void entered_launcher()
{
    __sanitizer_finish_switch_fiber(launcher_fake, nullptr, nullptr);
}
#else
static void leaving_launcher() {}
static void entered_fibers() {}
static void leaving_fibers() {}
static void entered_launcher() {}
#endif

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

static bool all_done()
{
    for (int t = 0; t < threads; t++)
        if (fibers[t].s != DONE)
            return false;
    return true;
}

// The thread after `t` that can run, the first ones again after the last; -1: all are done.
static int after(int t)
{
    for (;;) {
        while (++t < threads)
            if (fibers[t].s == FRESH || fibers[t].s == RUNNING)
                return t;
        if (all_done())
            return -1;
        bool moved = release(0, threads, AT_BLOCK);
        shim_at.now += moved;
        for (t = 0; t < threads; t += WARP)
            moved |= release(t, t + WARP < threads ? t + WARP : threads, AT_WARP);
        if (!moved)
            die("a barrier that not all threads reach");
        t = -1;
    }
}

static void begin_thread();

static void go_on(place *from, int t)
{
    fiber *f = &fibers[t];
    shim_at.thread = t;
    threadIdx = f->index;
    if (f->s == FRESH)
        place_begin(&f->at, f->stack, begin_thread);
    f->s = RUNNING;
    if (from != &f->at)
        place_switch(from, &f->at);
}

static void leave(state s)
{
    fiber *f = &fibers[shim_at.thread];
    f->s = s;
    int next = after(shim_at.thread);
    if (next >= 0) {
        go_on(&f->at, next);
        return;
    }
    leaving_fibers();
    place_switch(&f->at, &launcher);
}

static void begin_thread()
{
    if (shim_at.thread == 0) // nobody goes before it
        entered_fibers();
    (*body)();
    leave(DONE);
    die("a finished thread went on");
}

// Returns when every thread is done.
static void run_block()
{
    for (int t = 0; t < threads; t++)
        fibers[t].s = FRESH;
    leaving_launcher();
    go_on(&launcher, 0);
    entered_launcher();
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

bool shim_on_stack(const void *at)
{
    return stacks && (const char *)at >= stacks &&
           (const char *)at < stacks + (size_t)THREADS_MAX * STACK_BYTES;
}

// Of each block of this launch when it last said that what it had written comes before what
// follows.
struct fence {
    uint32_t block, now;
};
static std::vector<fence> fences;
static bool counted_last; // this block, by atomicInc

template <class F> static void each_block(dim3 grid, dim3 block, F run)
{
    gridDim = grid;
    blockDim = block;
    shim_at.launch = shim_at.now + 1;
    shim_inside = true;
    fences.clear();
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                shim_at.block = ++shim_at.now;
                counted_last = false;
                run();
            }
    shim_inside = false;
    shim_at.thread = -1;
}

static void step(dim3 *index, dim3 block)
{
    if (++index->x < block.x)
        return;
    index->x = 0;
    if (++index->y < block.y)
        return;
    index->y = 0;
    index->z++;
}

static void check_launch(const char *kernel, dim3 grid, dim3 block)
{
    shim_at.kernel = kernel;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > THREADS_MAX || !grid.x || !grid.y || !grid.z ||
        grid.x > 0x7fffffff || grid.y > shim_grid_most || grid.z > shim_grid_most)
        die("a launch that CUDA refuses: block or grid out of range");
}

void shim_run_loop(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &thread)
{
    check_launch(kernel, grid, block);
    int count = (int)(block.x * block.y * block.z);
    each_block(grid, block, [&]() {
        threadIdx = dim3(0, 0, 0);
        for (int t = 0; t < count; t++, step(&threadIdx, block)) {
            shim_at.thread = t;
            thread();
        }
    });
}

void shim_run_fibers(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &thread)
{
    check_launch(kernel, grid, block);
    take_stacks();
    body = &thread;
    threads = (int)(block.x * block.y * block.z);
    dim3 index(0, 0, 0);
    for (int t = 0; t < threads; t++, step(&index, block)) {
        fibers[t].index = index;
        fibers[t].shuffles = 0;
    }
    each_block(grid, block, run_block);
}

void __syncthreads(void)
{
    if (!body || shim_at.thread < 0 || fibers[shim_at.thread].s != RUNNING)
        die("a barrier in a kernel without fibers: LAUNCH_BLOCK starts those");
    leave(AT_BLOCK);
}

int shim_lane(void)
{
    return shim_at.thread % WARP;
}

uint64_t shim_shuffle(uint64_t mine, int from)
{
    if (!body || shim_at.thread < 0 || fibers[shim_at.thread].s != RUNNING)
        die("a shuffle in a kernel without fibers: LAUNCH_BLOCK starts those");
    fiber *f = &fibers[shim_at.thread];
    const fiber *giver = &fibers[shim_at.thread / WARP * WARP + from];
    unsigned slot = f->shuffles++ % 2; // when all give again, all have taken from the other one
    f->given[slot] = mine;
    leave(AT_WARP);
    return giver->given[slot];
}

void shim_multiple_of(const void *at, size_t bytes)
{
    if ((uintptr_t)at % bytes != 0)
        die("several values at an address that is no multiple of them");
}

// ---- atomics: on the host nothing comes between ----------------------------------------------

int atomicAnd(int *at, int value)
{
    if (shim_atomic_seen)
        shim_atomic_seen(at, sizeof *at);
    int before = *at;
    *at &= value;
    return before;
}

unsigned long long atomicAdd(unsigned long long *at, unsigned long long value)
{
    if (shim_atomic_seen)
        shim_atomic_seen(at, sizeof *at);
    unsigned long long before = *at;
    *at += value;
    return before;
}

unsigned atomicInc(unsigned *at, unsigned most)
{
    if (shim_atomic_seen)
        shim_atomic_seen(at, sizeof *at);
    unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    counted_last |= before == most;
    return before;
}

void __threadfence(void)
{
    if (fences.empty() || fences.back().block != shim_at.block)
        fences.push_back({shim_at.block, 0});
    fences.back().now = shim_at.now;
}

bool shim_sees(uint32_t then)
{
    if (!counted_last)
        return false;
    for (const fence &f : fences)
        if (then >= f.block && then <= f.now)
            return true;
    return false;
}

// ---- streams -------------------------------------------------------------------------------------

void shim_enqueue(void *stream, std::function<void()> work)
{
    shim_stream *s = (shim_stream *)stream;
    if (s && s->capturing) {
        (s->branching ? s->branch : s->kept).push_back(std::move(work));
        return;
    }
    std::lock_guard<std::recursive_mutex> hold(gate);
    if (s)
        s->launches++;
    work();
    body = nullptr;
}
