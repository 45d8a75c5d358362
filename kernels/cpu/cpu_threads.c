/* cpu_threads.c: see cpu_threads.h.
 *
 * Work is cut into `count` parts whatever the threads do, so that the sums inside a part, and with
 * them the bits, do not depend on the thread that computes the part. A thread claims the part of
 * its own number, whose data its core's caches still have from the round before, and then parts
 * that no thread has claimed: where the system has no core for a worker at the moment, the caller
 * computes that part too instead of waiting. A part is claimed by setting its round. A claimed part
 * keeps the round open, so that `work` and `arg` do not change while a thread reads them. Both
 * sides sleep on the one mutex when spinning has not helped. */
#include "cpu_threads.h"

#include "cpu_denormals.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { SPINS = 4000, LINE = 64 };

typedef struct part {
    _Alignas(LINE) _Atomic uint32_t round; /* the last round in which the part was claimed */
    cpu_threads *of;
    pthread_t thread; /* the thread of this number; part 0 is the caller's */
} part;

struct cpu_threads {
    int count, started;
    part *parts;
    cpu_work *work;
    void *arg;
    _Atomic uint32_t round;
    atomic_int left; /* parts of this round that are not done */
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t begin, done;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* waits a while, as pause does; arm64's yield does not */
#endif
}

static uint32_t round_of(cpu_threads *t)
{
    return atomic_load_explicit(&t->round, memory_order_acquire);
}

static uint32_t wait_round(cpu_threads *t, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t now = round_of(t);
        if (now != seen)
            return now;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while (round_of(t) == seen)
        pthread_cond_wait(&t->begin, &t->lock);
    uint32_t now = round_of(t);
    pthread_mutex_unlock(&t->lock);
    return now;
}

/* False: another thread has claimed the part, or `round` is over, in which every part was
 * claimed. */
static bool claim(part *p, uint32_t round)
{
    uint32_t before = round - 1;
    return atomic_compare_exchange_strong_explicit(&p->round, &before, round, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

/* Computes parts of that round until all are claimed. */
static void take_parts(cpu_threads *t, int own, uint32_t round)
{
    for (int i = 0; i < t->count; i++) {
        int at = (own + i) % t->count;
        if (!claim(&t->parts[at], round))
            continue;
        t->work(t->arg, at, t->count);
        if (atomic_fetch_sub_explicit(&t->left, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->done);
            pthread_mutex_unlock(&t->lock);
        }
    }
}

static void *run_worker(void *arg)
{
    part *own = arg;
    cpu_threads *t = own->of;
    (void)flush_begin(); /* for the life of the thread */
    for (uint32_t seen = 0;;) {
        seen = wait_round(t, seen);
        if (atomic_load(&t->stop))
            return NULL;
        take_parts(t, (int)(own - t->parts), seen);
    }
}

static uint32_t next_round(cpu_threads *t)
{
    pthread_mutex_lock(&t->lock);
    uint32_t round = atomic_load_explicit(&t->round, memory_order_relaxed) + 1;
    atomic_store_explicit(&t->round, round, memory_order_release);
    pthread_cond_broadcast(&t->begin);
    pthread_mutex_unlock(&t->lock);
    return round;
}

int cpu_threads_start(int threads, cpu_threads **out, err *e)
{
    cpu_threads *t = calloc(1, sizeof *t);
    if (t)
        t->parts = aligned_alloc(LINE, (size_t)threads * sizeof *t->parts);
    if (!t || !t->parts) {
        free(t);
        return err_set(e, ERR_NOMEM, "no memory for %d threads", threads);
    }
    t->count = threads;
    for (int i = 0; i < threads; i++) {
        atomic_init(&t->parts[i].round, 0);
        t->parts[i].of = t;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->begin, NULL);
    pthread_cond_init(&t->done, NULL);
    for (int i = 1; i < threads; i++) {
        if (pthread_create(&t->parts[i].thread, NULL, run_worker, &t->parts[i]) != 0) {
            cpu_threads_stop(t);
            return err_set(e, ERR_UNAVAILABLE, "cannot start %d threads", threads);
        }
        t->started = i;
    }
    *out = t;
    return 0;
}

void cpu_threads_stop(cpu_threads *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    next_round(t);
    for (int i = 1; i <= t->started; i++)
        pthread_join(t->parts[i].thread, NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->begin);
    pthread_cond_destroy(&t->done);
    free(t->parts);
    free(t);
}

int cpu_threads_count(const cpu_threads *t)
{
    return t->count;
}

void cpu_threads_run(cpu_threads *t, cpu_work *work, void *arg)
{
    if (t->count == 1) {
        work(arg, 0, 1);
        return;
    }
    t->work = work;
    t->arg = arg;
    atomic_store(&t->left, t->count);
    take_parts(t, 0, next_round(t));
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&t->left, memory_order_acquire) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->left) != 0)
        pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}
