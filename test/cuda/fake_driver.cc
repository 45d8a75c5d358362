// fake_driver.cc: a device of the tests' own behind driver.h, on the host.
//
// Its memory is the host's, of a size that a test sets; its stream runs work at once or, while a graph
// is captured, keeps it. It offers two ways for every convolution, computed by plain loops in double
// precision ("direct" and "reversed", which sums the other way round), so that the backend's choosing,
// caching and running of the libraries' ways is exercised; which one seems the fastest is a test's to
// say. Nothing of cuDNN's or cuBLAS's own behaviour is imitated beyond that.
//
// From the first device that is opened on the process holds descriptors, as CUDA does, and each call refuses without them.
//
// With KUBEML_FAKE_GPU its memory is that file's, which all processes map that name it: they can open each other's, where they reach
// the abstract socket that the other one has, as CUDA does.
// KUBEML_FAKE_GPU_FAILS=N beside it: of the process that is the first to make N copies, replays and waits it fails for good;
// KUBEML_FAKE_GPU_FULL: it has no memory for the first one that asks.
#include "fake_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "shim.h"

extern "C" {
#include "common/base/err.h"
}

struct device {
    shim_stream stream;
    int marks[2], ordinal;
    long number; // no other device had it
    bool timing; // between two marks
    int timed; // graphs that were replayed there
    int run_us; // of what is captured, if it is one way of a convolution
    bool spoilt; // the capture
    std::vector<std::pair<char *, char *>> aside; // workspaces of a branch that is not joined yet
    bool pending; // an error that the next wait tells of
};

struct device_graph {
    std::vector<std::function<void()>> work;
    int us; // if it is one way of a convolution
};

static std::mutex gate;
static size_t memory_bytes = (size_t)8 << 30, memory_used;
static std::atomic<long> measured, listed, captures, replays, opens, sums, copies_in, bytes_in,
    bytes_out, branches;
static int gpus = 1;
static bool is_away;
static bool refuses; // sharing
static int opened;
static std::atomic<int> fail_after{-1};
static int favourite = 2;
static int clock_us;
static const int own_us = 100; // our own kernel's time, unless one of the offers runs
static bool few_launches = true;
static int broken = -1, uncapturable = -1, asleep_us;
static std::set<std::array<int, 5>> ran; // of the libraries' ways; under the gate
static long first_captured;
static std::set<std::vector<long>> ran_on; // devices; under the gate
static long first_runs;
static int start_ms;
static std::atomic<long> launches;

// Tests that name no cache of algorithms have none: what one learns is not the next one's business.
__attribute__((constructor)) static void no_cache()
{
    setenv("KUBEML_CUDA_CACHE", "", 0);
}

void fake_memory(size_t bytes)
{
    memory_bytes = bytes;
}

size_t fake_memory_used(void)
{
    return memory_used;
}

void fake_favourite(int offer)
{
    favourite = offer;
}

void fake_break(int offer)
{
    broken = offer;
}

void fake_break_capture(int offer)
{
    uncapturable = offer;
}

void fake_asleep(int us)
{
    asleep_us = us;
}

long fake_first_runs_captured(void)
{
    std::lock_guard<std::mutex> hold(gate);
    long count = first_captured;
    first_captured = 0;
    ran.clear();
    return count;
}

long fake_first_runs(void)
{
    std::lock_guard<std::mutex> hold(gate);
    return first_runs;
}

void fake_slow_start(int ms)
{
    start_ms = ms;
}

long fake_measurements(void)
{
    return measured;
}

long fake_listings(void)
{
    return listed;
}

long fake_captures(void)
{
    return captures;
}

long fake_branches(void)
{
    return branches;
}

long fake_bytes_in(void)
{
    return bytes_in;
}

long fake_bytes_out(void)
{
    return bytes_out;
}

void fake_favour_few_launches(bool few)
{
    few_launches = few;
}

long fake_launches(void)
{
    return launches;
}

void fake_gpus(int count)
{
    gpus = count;
}

void fake_away(bool away)
{
    is_away = away;
}

long fake_sums(void)
{
    return sums;
}

void fake_refuse_sharing(bool refuse)
{
    refuses = refuse;
}

int fake_opened(void)
{
    return opened;
}

long fake_opens(void)
{
    return opens;
}

long fake_replays(void)
{
    return replays;
}

long fake_copies_in(void)
{
    return copies_in;
}

void fake_fail_after(int calls)
{
    fail_after = calls;
}

static void (*interruption)(void *);
static void *interrupted;
static int interrupt_after;

void fake_interrupt(int calls, void (*what)(void *user), void *user)
{
    interruption = what;
    interrupted = user;
    interrupt_after = calls;
}

static void (*at_alloc)(void);
static int allocs_left;

void fake_at_alloc(int n, void (*what)(void))
{
    allocs_left = n;
    at_alloc = what;
}

static bool fails_first(void);

static int held[2] = {-1, -1}; // a pipe's ends, until the process ends
static ino_t held_pipe; // which nothing else has

static int hold_descriptors(err *e)
{
    std::lock_guard<std::mutex> hold(gate);
    struct stat now;
    if (held[0] >= 0)
        return 0;
    if (pipe2(held, O_CLOEXEC) || fstat(held[0], &now))
        return err_set(e, ERR_IO, "no descriptors for the fake GPU");
    held_pipe = now.st_ino;
    return 0;
}

// What has their numbers by now may be another's.
static int lost(err *e)
{
    for (int fd : held) {
        struct stat now;
        if (fstat(fd, &now) || !S_ISFIFO(now.st_mode) || now.st_ino != held_pipe)
            return err_set(e, ERR_UNAVAILABLE, "the GPU says: its descriptor %d was closed, or is another's: fake", fd);
    }
    return 0;
}

// True when a test wants this call to fail, or it cannot do without the descriptors.
static int failing(err *e)
{
    if (lost(e))
        return -1;
    if (interruption && interrupt_after-- == 0) {
        void (*now)(void *) = interruption;
        interruption = nullptr; // it makes calls itself
        now(interrupted);
    }
    if (fails_first())
        fail_after = 0;
    int left = fail_after.load();
    if (left < 0 || fail_after.fetch_sub(1) > 0)
        return 0;
    fail_after = 0;
    return err_set(e, ERR_UNAVAILABLE, "the GPU says: GPU failed: fake");
}

static int fake_missing(err *e)
{
    if (!is_away)
        return 0;
    return err_set(e, ERR_UNAVAILABLE, "looking for a GPU: the GPU says: fake");
}

enum { HEAD = 256 };
static const size_t common_bytes = (size_t)4 << 30; // of a file with holes
static char *common; // all processes'; begins with `commons`. NULL: this process's memory is its own
struct commons {
    size_t used;
    int failed, full; // once, as KUBEML_FAKE_GPU_FAILS and _FULL say
};

// What a process hands its memory over by.
static socklen_t name_socket(pid_t process, sockaddr_un *at)
{
    *at = {};
    at->sun_family = AF_UNIX;
    int n = snprintf(at->sun_path + 1, sizeof at->sun_path - 1, "kubeml-fake-gpu-%d", (int)process);
    return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool listens(void)
{
    sockaddr_un at;
    socklen_t len = name_socket(getpid(), &at);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0); // to the process's end
    return fd >= 0 && bind(fd, (sockaddr *)&at, len) == 0;
}

static bool reaches(pid_t process)
{
    sockaddr_un at;
    socklen_t len = name_socket(process, &at);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool reached = fd >= 0 && connect(fd, (sockaddr *)&at, len) == 0;
    if (fd >= 0)
        close(fd);
    return reached;
}

// At the first device: later a function may no longer open files.
static int map_common(err *e)
{
    const char *path = getenv("KUBEML_FAKE_GPU");
    std::lock_guard<std::mutex> hold(gate);
    if (common || !path || !*path)
        return 0;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)common_bytes))
        return err_set(e, ERR_IO, "the fake GPU's file %s", path);
    void *at = mmap(nullptr, common_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "no room for the fake GPU's file");
    if (!listens())
        return err_set(e, ERR_IO, "the fake GPU's socket: %s", strerror(errno));
    common = (char *)at;
    return 0;
}

// Once, in one of the processes.
static bool happens(int commons::*what)
{
    return common && __atomic_exchange_n(&(((commons *)(void *)common)->*what), 1, __ATOMIC_SEQ_CST) == 0;
}

static bool fails_first(void)
{
    static std::atomic<long> calls;
    const char *wanted = getenv("KUBEML_FAKE_GPU_FAILS");
    return wanted && ++calls >= atol(wanted) && happens(&commons::failed);
}

static bool is_full(void)
{
    static const bool first = getenv("KUBEML_FAKE_GPU_FULL") && happens(&commons::full);
    return first;
}

static char *take(size_t bytes)
{
    if (!common)
        return (char *)aligned_alloc(256, bytes);
    size_t at = HEAD + __atomic_fetch_add(&((commons *)(void *)common)->used, bytes, __ATOMIC_SEQ_CST);
    return at + bytes <= common_bytes ? common + at : nullptr;
}

static int fake_open(int ordinal, device **out, err *e)
{
    if (map_common(e) || hold_descriptors(e) || lost(e))
        return -1;
    if (ordinal >= gpus)
        return err_set(e, ERR_UNSUPPORTED, "there is no GPU %d: this machine has %d", ordinal, gpus);
    *out = new device();
    (*out)->number = ++opens;
    (*out)->ordinal = ordinal;
    return 0;
}

static void fake_close(device *d)
{
    delete d;
}

static int fake_facts(device *d, device_facts *f, err *)
{
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "fake");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    snprintf((char *)f->uuid, sizeof f->uuid, "%d %.12s", d->ordinal, visible ? visible : "");
    snprintf(f->libraries, sizeof f->libraries, "none");
    f->multiprocessors = 1;
    f->memory_bytes = memory_bytes;
    f->free_bytes = memory_bytes - memory_used;
    return 0;
}

// ---- memory --------------------------------------------------------------------------------------

// Before each allocation. Memory that its owner gives up while others have it open stays taken, with other contents,
// until they close it.
struct head {
    size_t bytes;
    int opened;
    bool given_up;
};

static std::set<void *> living; // what is allocated, by its address; under the gate

static head *head_of(void *p)
{
    return (head *)(void *)((char *)p - HEAD);
}

// CUDA's rules of a capture: no memory is taken and nothing is waited for; and the host's memory
// may be other when the graph runs.
static int refused(const device *d, const char *what, err *e)
{
    return d->stream.capturing ? err_set(e, ERR_INTERNAL, "%s while a graph is captured: fake", what) : 0;
}

static int fake_alloc(device *d, size_t bytes, void **out, err *e)
{
    if (refused(d, "memory is taken", e) || lost(e))
        return -1;
    std::lock_guard<std::mutex> hold(gate);
    if (bytes > memory_bytes - memory_used || is_full())
        return err_set(e, ERR_NOMEM, "the GPU says: the GPU has %zu MiB left", (memory_bytes - memory_used) >> 20);
    char *at = take((bytes + HEAD + 255) / 256 * 256);
    if (!at)
        return err_set(e, ERR_NOMEM, "no memory for the fake GPU");
    *(head *)(void *)at = {bytes, 0, false};
    living.insert(at + HEAD);
    memory_used += bytes;
    memset(at + HEAD, 0xff, bytes); // NaN: what is used before it is written shows
    *out = at + HEAD;
    if (at_alloc && --allocs_left == 0)
        at_alloc();
    return 0;
}

static void fake_free(device *, void *p)
{
    std::lock_guard<std::mutex> hold(gate);
    head *h = head_of(p);
    living.erase(p);
    h->given_up = true;
    memory_used -= h->opened ? 0 : h->bytes;
    if (h->opened || common)
        memset(p, 0xee, h->bytes);
    else
        free(h);
}

static int fake_alloc_host(device *d, size_t bytes, void **out, err *e)
{
    if (refused(d, "memory is taken", e) || lost(e))
        return -1;
    *out = malloc(bytes);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory");
}

static void fake_free_host(device *, void *p)
{
    free(p);
}

static int fake_copy(device *d, void *to, const void *from, size_t bytes, copy_way way, err *e)
{
    if ((way != COPY_WITHIN && refused(d, "the host's memory is copied", e)) || failing(e))
        return -1;
    copies_in += way == COPY_IN;
    bytes_in += way == COPY_IN ? (long)bytes : 0;
    bytes_out += way == COPY_OUT ? (long)bytes : 0;
    if (bytes)
        shim_enqueue(&d->stream, [=]() { memcpy(to, from, bytes); });
    return 0;
}

static int fake_zero(device *d, void *to, size_t bytes, err *e)
{
    if (lost(e))
        return -1;
    clock_us += d->timing ? 2000 : 0;
    shim_enqueue(&d->stream, [=]() { memset(to, 0, bytes); });
    return 0;
}

static void *fake_stream(device *d)
{
    return &d->stream;
}

static int fake_wait(device *d, err *e)
{
    if (refused(d, "something is waited for", e))
        return -1;
    if (d->pending) {
        d->pending = false;
        return err_set(e, ERR_UNAVAILABLE, "what ran before on the GPU: fake");
    }
    return failing(e);
}

static int fake_record(device *d, int, err *e)
{
    return refused(d, "an event is recorded", e);
}

static int fake_await(device *d, int, err *e)
{
    return refused(d, "an event is waited for", e) ? -1 : failing(e);
}

// ---- graphs and time -----------------------------------------------------------------------------

static int fake_capture(device *d, err *)
{
    captures++;
    d->stream.capturing = true;
    d->run_us = own_us;
    d->spoilt = false;
    return 0;
}

static int fake_captured(device *d, device_graph **out, err *e)
{
    d->stream.capturing = false;
    d->spoilt |= d->stream.branching || !d->stream.branch.empty(); // a branch that nobody joined
    d->stream.branching = false;
    d->aside.clear();
    if (d->spoilt) {
        d->stream.kept.clear();
        d->stream.branch.clear();
        return err_set(e, ERR_UNAVAILABLE, "capturing: something in it is not allowed: fake");
    }
    *out = new device_graph{std::move(d->stream.kept), d->run_us};
    d->stream.kept.clear();
    return 0;
}

// A branch runs as late as it may: whoever writes meanwhile to what it reads is found by what it
// computes.
static int fake_branch(device *d, err *)
{
    branches++;
    d->stream.branching = true;
    return 0;
}

static int fake_trunk(device *d, err *)
{
    d->stream.branching = false;
    return 0;
}

static int fake_join(device *d, err *)
{
    for (auto &work : d->stream.branch)
        d->stream.kept.push_back(std::move(work));
    d->stream.branch.clear();
    d->aside.clear();
    return 0;
}

// Both may run at the same time, so that each needs a workspace of its own.
static bool is_of_a_branch(const device *d, char *begin, char *end)
{
    return std::any_of(d->aside.begin(), d->aside.end(),
                       [=](const std::pair<char *, char *> &of) { return begin < of.second && of.first < end; });
}

static int fake_replay(device *d, device_graph *g, err *e)
{
    if (failing(e))
        return -1;
    launches = (long)g->work.size();
    if (d->timing) { // nobody looks at what is computed meanwhile, and the fibers are slow
        // One graph is the runs of a way; several are a step's, whose launches count.
        clock_us = d->timed++ == 0 ? g->us
                   : few_launches ? (int)launches : 1000000 / (1 + (int)launches);
        return 0;
    }
    replays++;
    for (const auto &work : g->work)
        shim_enqueue(&d->stream, work);
    return 0;
}

static void fake_release(device *, device_graph *g)
{
    delete g;
}

static int fake_mark(device *d, int which, err *)
{
    if (which == 0)
        clock_us = own_us, d->timed = 0;
    d->marks[which] = clock_us;
    d->timing = which == 0;
    return 0;
}

static int fake_elapsed(device *, float *us, err *)
{
    measured++;
    *us = (float)clock_us;
    if (asleep_us > 0) {
        *us *= 20;
        asleep_us -= (int)*us;
    }
    return 0;
}

// ---- convolutions --------------------------------------------------------------------------------

static double value_at(element t, const void *p, size_t i)
{
    if (t == ELEMENT_F32)
        return (double)((const float *)p)[i];
    return (double)__uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
}

static void put_at(element t, void *p, size_t i, double x)
{
    if (t == ELEMENT_F32) {
        ((float *)p)[i] = (float)x;
        return;
    }
    uint32_t bits = __float_as_uint((float)x);
    ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Calls use(output index, input index, weight index) for every product of the convolution.
template <class F> static void each_product(const conv_shape &s, bool reversed, F use)
{
    int c_each = s.c / s.groups, k_each = s.k / s.groups, taps = s.r * s.s;
    for (int n = 0; n < s.n; n++)
        for (int p = 0; p < s.p; p++)
            for (int q = 0; q < s.q; q++)
                for (int i = 0; i < taps; i++) {
                    int tap = reversed ? taps - 1 - i : i;
                    int h = p * s.stride_h - s.pad_h + tap / s.s * s.dil_h;
                    int w = q * s.stride_w - s.pad_w + tap % s.s * s.dil_w;
                    if (h < 0 || h >= s.h || w < 0 || w >= s.w)
                        continue;
                    for (int k = 0; k < s.k; k++)
                        for (int c = 0; c < c_each; c++)
                            use((((size_t)n * s.p + p) * s.q + q) * s.k + k,
                                (((size_t)n * s.h + h) * s.w + w) * s.c + k / k_each * c_each + c,
                                ((size_t)k * taps + tap) * c_each + c);
                }
}

static void convolve(conv_task t, bool reversed, conv_operands o)
{
    const conv_shape &s = t.s;
    size_t y = (size_t)s.n * s.p * s.q * s.k, x = (size_t)s.n * s.h * s.w * s.c;
    size_t w = (size_t)s.k * s.r * s.s * (s.c / s.groups);
    size_t count = t.pass == CONV_FORWARD ? y : t.pass == CONV_DATA ? x : w;
    element out = t.pass == CONV_WEIGHTS ? ELEMENT_F32 : t.t;
    std::vector<double> sum(count, 0.0);
    each_product(s, reversed, [&](size_t yi, size_t xi, size_t wi) {
        if (t.pass == CONV_FORWARD)
            sum[yi] += value_at(t.t, o.a, xi) * value_at(t.t, o.b, wi);
        else if (t.pass == CONV_DATA)
            sum[xi] += value_at(t.t, o.a, yi) * value_at(t.t, o.b, wi);
        else
            sum[wi] += value_at(t.t, o.a, xi) * value_at(t.t, o.b, yi);
    });
    for (size_t i = 0; i < count; i++) {
        double z = sum[i];
        if (t.bias)
            z += (double)o.bias[i % (size_t)s.k];
        if (t.relu && z < 0)
            z = 0;
        if (t.add)
            z += value_at(out, o.out, i);
        put_at(out, o.out, i, z);
    }
    if (o.workspace_bytes)
        memset(o.workspace, 0x55, o.workspace_bytes); // as a library might
}

static int fake_offers(device *, const conv_task *t, conv_offer *list, int room)
{
    if (room < 2 || t->s.groups > 1)
        return 0; // the libraries have nothing for some shapes
    list[0].id = 10;
    list[0].workspace = 0;
    snprintf(list[0].name, sizeof list[0].name, "direct");
    list[1].id = 11;
    list[1].workspace = (size_t)(t->s.k) * 64;
    snprintf(list[1].name, sizeof list[1].name, "reversed");
    return 2;
}

static int fake_list(device *d, const conv_task *t, conv_offer *list, int room)
{
    listed++;
    return fake_offers(d, t, list, room);
}

static int fake_offer(device *d, const conv_task *t, const char *name, conv_offer *out)
{
    conv_offer list[2];
    return conv_offer_find(list, fake_offers(d, t, list, 2), name, out);
}

static int fake_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    size_t needs = id == 11 ? (size_t)t->s.k * 64 : 0;
    if (o->workspace_bytes < needs)
        return err_set(e, ERR_INTERNAL, "a workspace of %zu bytes for a way that needs %zu",
                       o->workspace_bytes, needs);
    usleep((useconds_t)start_ms * 1000);
    {
        const conv_shape &s = t->s;
        std::lock_guard<std::mutex> hold(gate);
        first_runs += ran_on.insert({d->number, id, t->pass, t->t, t->precision, t->bias, t->relu, t->add, s.n, s.c,
                                     s.h, s.w, s.k, s.r, s.s, s.p, s.q, s.stride_h, s.stride_w, s.pad_h, s.pad_w,
                                     s.dil_h, s.dil_w, s.groups}).second;
        first_captured += ran.insert({id, (int)t->pass, t->s.c, t->s.k, t->s.h}).second && d->stream.capturing;
    }
    if (uncapturable == id - 10 && d->stream.capturing) {
        d->spoilt = d->pending = true;
        return err_set(e, ERR_UNAVAILABLE, "the library's way waits for the stream: fake");
    }
    if (broken == id - 10 || broken == FAKE_EVERY) {
        d->pending = true;
        return err_set(e, ERR_UNAVAILABLE, "the library's way failed: fake");
    }
    char *begin = (char *)o->workspace, *end = begin + needs;
    if (is_of_a_branch(d, begin, end)) {
        d->spoilt = true;
        return err_set(e, ERR_INTERNAL, "a workspace that a branch uses: fake");
    }
    if (d->stream.branching)
        d->aside.push_back({begin, end});
    d->run_us = favourite == 2 ? 50 + (t->s.k + (int)t->pass + id) % 3 * 40 : favourite == id - 10 ? 10 : 200;
    conv_task task = *t;
    conv_operands operands = *o;
    operands.workspace_bytes = needs;
    shim_enqueue(&d->stream, [=]() { convolve(task, id == 11, operands); });
    return 0;
}

// ---- sharing -------------------------------------------------------------------------------------

// A handle is an address and its owner, in the common memory where there is one.
static int fake_share(device *, void *p, unsigned char handle[BACKEND_HANDLE_BYTES], err *e)
{
    if (refuses)
        return err_set(e, ERR_UNSUPPORTED, "the GPU's memory is not shared between these processes: fake");
    size_t at = common ? (size_t)((char *)p - common) : (size_t)p;
    memset(handle, 0, BACKEND_HANDLE_BYTES);
    pid_t owner = getpid();
    memcpy(handle, &at, sizeof at);
    memcpy(handle + sizeof at, &owner, sizeof owner);
    return 0;
}

static int fake_open_shared(device *, const unsigned char handle[BACKEND_HANDLE_BYTES], void **out, err *e)
{
    std::lock_guard<std::mutex> hold(gate);
    pid_t owner;
    memcpy(out, handle, sizeof *out);
    memcpy(&owner, handle + sizeof *out, sizeof owner);
    if (common && !refuses && reaches(owner)) {
        *out = common + (size_t)*out;
        return 0; // whoever gives it up leaves it to all of them
    }
    if (refuses || common || !living.count(*out))
        return err_set(e, ERR_UNSUPPORTED, "the GPU's memory is not shared between these processes: fake");
    head_of(*out)->opened++;
    opened++;
    return 0;
}

static void fake_close_shared(device *, void *p)
{
    std::lock_guard<std::mutex> hold(gate);
    head *h = head_of(p);
    if (common)
        return;
    opened--;
    if (--h->opened > 0 || !h->given_up)
        return;
    memory_used -= h->bytes;
    free(h);
}

// From the last to the first: whoever relies on the order sees it.
static int fake_sum(device **, float **blocks, int n, size_t count, err *e)
{
    if (failing(e))
        return -1;
    sums++;
    for (size_t i = 0; i < count; i++) {
        float sum = blocks[n - 1][i];
        for (int k = n - 2; k >= 0; k--)
            sum += blocks[k][i];
        for (int k = 0; k < n; k++)
            blocks[k][i] = sum;
    }
    return 0;
}

// ---- communicators between processes -------------------------------------------------------------

// KUBEML_FAKE_NCCL, a word or several with a comma between: "missing"; "init": no communicator comes about; "init:N",
// "reduce:N": this process's Nth such call meets an error of another rank's; "odd": a rank's sums are not the others'.
static bool nccl_fault(const char *what, int count)
{
    const char *all = getenv("KUBEML_FAKE_NCCL");
    char now[32];
    snprintf(now, sizeof now, "%s:%d", what, count);
    for (const char *at = all; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        size_t n = strcspn(at, ",");
        if ((n == strlen(what) && !strncmp(at, what, n)) || (n == strlen(now) && !strncmp(at, now, n)))
            return true;
    }
    return false;
}

enum { RANKS_MAX = 16, PARTS_MAX = 8 };

// In memory that all ranks see. A reduction: each rank says what it has and sums what all have; when all have done so,
// nobody reads any more, and each replaces its own.
struct meeting {
    meeting *before; // one that may still be in use: nobody says when all have left
    int joined[RANKS_MAX];
    unsigned char device[RANKS_MAX][BACKEND_DEVICE_BYTES];
    size_t at[RANKS_MAX][PARTS_MAX]; // from the common memory's begin, or addresses
    long has[RANKS_MAX], read[RANKS_MAX];
};

struct device_comm {
    meeting *m;
    int rank, ranks, parts, stage; // 0: joins, 1: waits for the others' parts, 2: for them to have read, 3: idle
    long number;
    bool broken;
    comm_part part[PARTS_MAX];
    std::vector<std::vector<char>> result;
};

static std::atomic<int> inits, reductions;
static std::atomic<meeting *> last_meeting;

static size_t name_of(const void *p)
{
    return common ? (size_t)((const char *)p - common) : (size_t)p;
}

static char *behind(size_t name)
{
    return common ? common + name : (char *)name;
}

static const char *fake_comm_missing(void)
{
    return nccl_fault("missing", 0) ? "NCCL is not installed: fake" : nullptr;
}

static int fake_comm_id(unsigned char id[BACKEND_COMM_ID_BYTES], err *e)
{
    char *at = take((sizeof(meeting) + 255) / 256 * 256);
    if (!at)
        return err_set(e, ERR_NOMEM, "no memory for a communicator");
    memset(at, 0, sizeof(meeting));
    ((meeting *)(void *)at)->before = last_meeting.exchange((meeting *)(void *)at);
    size_t name = name_of(at);
    memset(id, 0x5a, BACKEND_COMM_ID_BYTES);
    memcpy(id, &name, sizeof name);
    return 0;
}

static int fake_comm_begin(device *d, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int ranks,
                           device_comm **out, err *e)
{
    size_t name;
    device_facts f;
    memcpy(&name, id, sizeof name);
    if (ranks > RANKS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "more than %d ranks", RANKS_MAX);
    device_comm *c = new device_comm();
    c->m = (meeting *)(void *)behind(name);
    c->rank = rank;
    c->ranks = ranks;
    c->broken = nccl_fault("init", ++inits);
    fake_facts(d, &f, e);
    memcpy(c->m->device[rank], f.uuid, sizeof f.uuid);
    __atomic_store_n(&c->m->joined[rank], 1, __ATOMIC_SEQ_CST);
    *out = c;
    return 0;
}

static int fake_comm_reduce(device *d, device_comm *c, const comm_part *part, int parts, err *e)
{
    if (failing(e))
        return -1;
    for (int i = 0; i < parts; i++) {
        c->part[i] = part[i];
        c->m->at[c->rank][i] = name_of(part[i].at);
    }
    c->parts = parts;
    c->number++;
    c->stage = 1;
    c->broken = nccl_fault("reduce", ++reductions);
    if (!c->broken)
        __atomic_store_n(&c->m->has[c->rank], c->number, __ATOMIC_SEQ_CST);
    (void)d;
    return 0;
}

static bool all_have(const device_comm *c, const long *what, long number)
{
    for (int r = 0; r < c->ranks; r++)
        if (__atomic_load_n(&what[r], __ATOMIC_SEQ_CST) < number)
            return false;
    return true;
}

// From the last rank to the first: whoever relies on the order sees it.
static void sum_ranks(device_comm *c)
{
    c->result.assign((size_t)c->parts, {});
    for (int i = 0; i < c->parts; i++) {
        const comm_part &p = c->part[i];
        c->result[(size_t)i].resize(p.count * (p.largest ? 8 : 4));
        for (size_t k = 0; k < p.count; k++) {
            float sum = 0;
            int64_t most = INT64_MIN;
            for (int r = c->ranks - 1; r >= 0; r--) {
                const char *at = behind(c->m->at[r][i]);
                if (p.largest)
                    most = std::max(most, ((const int64_t *)(const void *)at)[k]);
                else
                    sum += ((const float *)(const void *)at)[k];
            }
            if (p.largest)
                memcpy(&c->result[(size_t)i][k * 8], &most, 8);
            else
                memcpy(&c->result[(size_t)i][k * 4], &sum, 4);
        }
    }
    if (c->rank == c->ranks - 1 && nccl_fault("odd", 0))
        c->result[0][0] ^= 1;
}

static int fake_joined(device_comm *c, bool *done, err *e)
{
    for (int r = 0; r < c->ranks; r++)
        if (!__atomic_load_n(&c->m->joined[r], __ATOMIC_SEQ_CST))
            return 0;
    for (int r = 0; r < c->ranks; r++)
        if (r != c->rank && memcmp(c->m->device[r], c->m->device[c->rank], BACKEND_DEVICE_BYTES) == 0)
            return err_set(e, ERR_UNSUPPORTED, "NCCL says: two ranks on one device: fake");
    c->stage = 3;
    *done = true;
    return 0;
}

static int fake_comm_poll(device *, device_comm *c, bool *done, err *e)
{
    *done = false;
    if (c->broken)
        return err_set(e, ERR_UNAVAILABLE, "NCCL says: remote process exited or there was a network error: fake");
    if (c->stage == 0)
        return fake_joined(c, done, e);
    if (c->stage == 1 && all_have(c, c->m->has, c->number)) {
        sum_ranks(c);
        __atomic_store_n(&c->m->read[c->rank], c->number, __ATOMIC_SEQ_CST);
        c->stage = 2;
    }
    if (c->stage == 2 && all_have(c, c->m->read, c->number)) {
        for (int i = 0; i < c->parts; i++)
            memcpy(c->part[i].at, c->result[(size_t)i].data(), c->result[(size_t)i].size());
        c->stage = 3;
    }
    *done = c->stage == 3;
    return 0;
}

static void fake_comm_abort(device *, device_comm *c)
{
    delete c; // the meeting stays with the memory it lies in
}

static const driver fake = {
    "fake",       fake_missing,     fake_open,         fake_close,     fake_facts,
    fake_alloc,   fake_free,        fake_alloc_host,   fake_free_host, fake_copy,
    fake_zero,    fake_stream,      fake_wait,         fake_record,    fake_await,
    fake_capture, fake_captured,
    fake_branch,  fake_trunk,       fake_join,         fake_replay,    fake_release,
    fake_mark,    fake_elapsed,     fake_list,         fake_offer,     fake_run,
    fake_share,   fake_open_shared, fake_close_shared, fake_sum,       fake_comm_missing,
    fake_comm_id, fake_comm_begin,  fake_comm_reduce,  fake_comm_poll, fake_comm_abort,
};

extern "C" const driver *const cuda_driver = &fake;
