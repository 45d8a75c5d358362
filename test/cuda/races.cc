// races.cc: finds what the shim's order of threads hides. A kernel that lacks a barrier computes
// the right thing on the host, where the threads of a block take turns.
//
// The kernels of such a program are compiled with -fsanitize=thread, which has each access to
// memory call a function __tsan_...; these are ours, and know blocks and barriers instead of the
// host's threads. Two accesses of a place, one of them a write, end the program where
//
//  - two threads of a block make them with no barrier between (shuffles order nothing);
//  - two blocks of a launch make them, unless both are atomic, or the later one is the last of
//    counted blocks (device.cuh's is_last_block) and the other made its own before its fence;
//
// and so does a read of shared memory that nobody in that block has written: it is as the block
// before left it, which on a GPU may be another kernel's. Launches are in order, as in one stream:
// what several streams do to each other is not looked at. Nor are the stacks, where a thread's own
// variables are, nor whether one access takes a word and the other a byte of it: words and what is
// smaller have histories of their own, which is several times as fast.
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <unordered_map>

namespace
{

// In a thread's place.
constexpr uint16_t NOBODY = 0xffff, ATOMIC = 0xfffe, SEVERAL = 0xfffd;

// Of a word, or of a byte. Times are shim_at.now's; those before the launch count for nothing, of
// shared memory those before the block.
struct touched {
    uint32_t written, read;
    uint32_t read_before;       // by a block before the one of `read`
    uint32_t write_pc, read_pc; // offsets in the program
    uint16_t writer, reader;    // threads of their blocks
};

enum { WORD = 4, PLACES = 1024, RECENT = 256 };
struct page {
    touched places[PLACES];
};

// The histories of places of SIZE bytes.
template <unsigned SIZE> class history
{
    std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
    struct {
        uintptr_t number;
        page *p;
    } recent[RECENT] = {};

  public:
    touched *of(uintptr_t at)
    {
        uintptr_t place = at / SIZE, number = place / PLACES;
        auto *slot = &recent[number % RECENT];
        if (!slot->p || slot->number != number) {
            auto &owned = pages[number];
            if (!owned)
                owned.reset(new page()); // all zero: before any launch
            *slot = {number, owned.get()};
        }
        return &slot->p->places[place % PLACES];
    }
};
history<WORD> words;
history<1> bytes_of_words;

extern "C" char __executable_start;

uint32_t offset_of(const void *pc)
{
    return (uint32_t)((const char *)pc - &__executable_start);
}

// The stack of this thread of the host, on which kernels without fibers run.
bool on_host_stack(const void *at)
{
    static thread_local const char *bottom, *top;
    if (!top) {
        pthread_attr_t a;
        void *from;
        size_t bytes;
        pthread_getattr_np(pthread_self(), &a);
        pthread_attr_getstack(&a, &from, &bytes);
        pthread_attr_destroy(&a);
        bottom = (const char *)from;
        top = bottom + bytes;
    }
    return (const char *)at >= bottom && (const char *)at < top;
}

// A kernel's shared arrays are thread_local here (shim.h), as nothing else is that it touches.
bool is_shared_memory(const void *at)
{
    static thread_local const char *from, *to;
    if (!from)
        dl_iterate_phdr(
            [](dl_phdr_info *object, size_t, void *) {
                for (int i = 0; i < object->dlpi_phnum; i++)
                    if (object->dlpi_phdr[i].p_type == PT_TLS) {
                        from = (const char *)object->dlpi_tls_data;
                        to = from + object->dlpi_phdr[i].p_memsz;
                    }
                return 1; // the program is the first one
            },
            nullptr);
    return (const char *)at >= from && (const char *)at < to;
}

void show(const char *what, uint32_t pc)
{
    Dl_info program;
    char command[1024];
    fprintf(stderr, "  %s:\n", what);
    if (!dladdr(&__executable_start, &program))
        return;
    snprintf(command, sizeof command, "addr2line -sfCe '%s' %#x >&2", program.dli_fname, pc - 1);
    if (system(command) != 0)
        fprintf(stderr, "    %s+%#x\n", program.dli_fname, pc);
}

struct access {
    const void *at, *pc;
    uint16_t thread;
    bool shared;
    uint32_t since; // what was done before it counts for nothing
};

[[noreturn]] void die(const char *why, const access &a, uint16_t other, uint32_t other_pc)
{
    fprintf(stderr, "CUDA race: %s (%s, block %u,%u,%u, thread %d, at %p", why, shim_at.kernel,
            blockIdx.x, blockIdx.y, blockIdx.z, shim_at.thread, a.at);
    if (other < SEVERAL)
        fprintf(stderr, "; the other is thread %d", other);
    fprintf(stderr, ")\n");
    show("this access", offset_of(a.pc));
    if (other_pc)
        show("the other", other_pc);
    abort();
}

// Ends the program where what `who` did at `then` is unordered with `a`.
void check(const access &a, uint32_t then, uint16_t who, uint32_t pc)
{
    if (then < a.since || (who == ATOMIC && a.thread == ATOMIC))
        return;
    if (then < shim_at.block && !shim_sees(then))
        die("two blocks of one launch touch it", a, who, pc);
    if (then == shim_at.now && (who != a.thread || who == ATOMIC))
        die("two threads touch it without a barrier between", a, who, pc);
}

void wrote(touched *b, const access &a)
{
    check(a, b->written, b->writer, b->write_pc);
    check(a, b->read, b->reader, b->read_pc);
    check(a, b->read_before, NOBODY, 0);
    b->written = shim_at.now;
    b->writer = a.thread;
    b->write_pc = offset_of(a.pc);
}

void read(touched *b, const access &a)
{
    if (b->read == shim_at.now && (b->reader == a.thread || b->reader == SEVERAL) &&
        b->written < shim_at.now)
        return; // nothing new since it was found to be right
    check(a, b->written, b->writer, b->write_pc);
    if (a.shared && b->written < a.since)
        die("shared memory that nobody in this block has written is read", a, NOBODY, 0);
    if (b->read < shim_at.block)
        b->read_before = b->read;
    b->reader = b->read == shim_at.now && b->reader != a.thread ? SEVERAL : a.thread;
    b->read = shim_at.now;
    b->read_pc = offset_of(a.pc);
}

template <void (*SEE)(touched *, const access &)>
void each(const void *at, size_t bytes, const void *pc, uint16_t thread)
{
    if (!shim_inside)
        return;
    bool shared = is_shared_memory(at);
    if (!shared && (shim_on_stack(at) || on_host_stack(at)))
        return;
    access a = {at, pc, thread, shared, shared ? shim_at.block : shim_at.launch};
    bool whole = bytes >= WORD;
    for (size_t i = 0; i < bytes; i += whole ? WORD : 1) {
        a.at = (const char *)at + i;
        SEE(whole ? words.of((uintptr_t)a.at) : bytes_of_words.of((uintptr_t)a.at), a);
    }
}

void atomic_seen(const void *at, size_t bytes)
{
    each<wrote>(at, bytes, __builtin_return_address(0), ATOMIC);
}

__attribute__((constructor)) void begin()
{
    shim_atomic_seen = atomic_seen;
}

} // namespace

// ---- what the compiler calls ----------------------------------------------------------------

#define SEEN(name, see, bytes)                                                                     \
    extern "C" void __tsan_##name(void *at);                                                       \
    void __tsan_##name(void *at)                                                                   \
    {                                                                                              \
        each<see>(at, bytes, __builtin_return_address(0), (uint16_t)shim_at.thread);               \
    }
#define SEEN_BOTH(bytes)                                                                           \
    SEEN(read##bytes, read, bytes)                                                                 \
    SEEN(write##bytes, wrote, bytes)
#define SEEN_UNALIGNED(bytes)                                                                      \
    SEEN(unaligned_read##bytes, read, bytes)                                                       \
    SEEN(unaligned_write##bytes, wrote, bytes)
SEEN_BOTH(1)
SEEN_BOTH(2)
SEEN_BOTH(4)
SEEN_BOTH(8)
SEEN_BOTH(16)
SEEN_UNALIGNED(2)
SEEN_UNALIGNED(4)
SEEN_UNALIGNED(8)
SEEN_UNALIGNED(16)

#define SEEN_RANGE(name, see)                                                                      \
    extern "C" void __tsan_##name(void *at, size_t bytes);                                         \
    void __tsan_##name(void *at, size_t bytes)                                                     \
    {                                                                                              \
        each<see>(at, bytes, __builtin_return_address(0), (uint16_t)shim_at.thread);               \
    }
SEEN_RANGE(read_range, read)
SEEN_RANGE(write_range, wrote)

#define IGNORED(name, ...)                                                                         \
    extern "C" void __tsan_##name(__VA_ARGS__);                                                    \
    void __tsan_##name(__VA_ARGS__)                                                                \
    {                                                                                              \
    }
IGNORED(init, void)
IGNORED(func_entry, void *)
IGNORED(func_exit, void)
IGNORED(vptr_read, void **)
IGNORED(vptr_update, void **, void *)
