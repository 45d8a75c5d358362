/* cpu_threads.c: see the header.
 *
 * Work is cut into `count` parts whatever the threads do, so that the sums inside a part, and with
 * them the bits, do not depend on who computes it. Each thread claims the next part until none is
 * left: where the system has no core for a worker at the moment, the caller does its part too
 * instead of waiting for it. `state` is the round in the upper half and the next part in the lower;
 * a claimed part keeps its round open, so that `work` and `arg` stand still while anybody reads
 * them. Both ends sleep on the one mutex when spinning has not helped. */
#include "cpu_threads.h"

#include "cpu_flush.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { SPINS = 4000 };

struct cpu_threads {
    int count, started;
    pthread_t *ids;
    cpu_work *work;
    void *arg;
    _Atomic uint64_t state;
    atomic_int left; /* parts of this round that are not done */
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t begin, done;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t round_of(cpu_threads *t)
{
    return (uint32_t)(atomic_load_explicit(&t->state, memory_order_acquire) >> 32);
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

/* Computes parts of the present round until all are claimed. */
static void take_parts(cpu_threads *t)
{
    uint64_t state = atomic_load_explicit(&t->state, memory_order_acquire);
    while ((uint32_t)state < (uint32_t)t->count) {
        if (!atomic_compare_exchange_weak_explicit(&t->state, &state, state + 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        t->work(t->arg, (int)(uint32_t)state, t->count);
        if (atomic_fetch_sub_explicit(&t->left, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->done);
            pthread_mutex_unlock(&t->lock);
        }
        state = atomic_load_explicit(&t->state, memory_order_acquire);
    }
}

static void *run_worker(void *arg)
{
    cpu_threads *t = arg;
    (void)flush_begin(); /* it computes nothing else */
    for (uint32_t seen = 0;;) {
        seen = wait_round(t, seen);
        if (atomic_load(&t->stop))
            return NULL;
        take_parts(t);
    }
}

/* Begins a round whose first unclaimed part is `part`. */
static void next_round(cpu_threads *t, uint32_t part)
{
    pthread_mutex_lock(&t->lock);
    uint64_t round = (atomic_load(&t->state) >> 32) + 1;
    atomic_store_explicit(&t->state, round << 32 | part, memory_order_release);
    pthread_cond_broadcast(&t->begin);
    pthread_mutex_unlock(&t->lock);
}

int cpu_threads_start(int threads, cpu_threads **out, err *e)
{
    cpu_threads *t = calloc(1, sizeof *t);
    if (t)
        t->ids = calloc((size_t)threads, sizeof *t->ids);
    if (!t || !t->ids) {
        free(t);
        return err_set(e, ERR_NOMEM, "no memory for %d threads", threads);
    }
    t->count = threads;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->begin, NULL);
    pthread_cond_init(&t->done, NULL);
    for (int i = 1; i < threads; i++) {
        if (pthread_create(&t->ids[i], NULL, run_worker, t) != 0) {
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
    next_round(t, (uint32_t)t->count); /* nothing to claim */
    for (int i = 1; i <= t->started; i++)
        pthread_join(t->ids[i], NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->begin);
    pthread_cond_destroy(&t->done);
    free(t->ids);
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
    next_round(t, 0);
    take_parts(t);
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
