/* parallel.c: see parallel.h. */
#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

typedef struct loop {
    atomic_size_t next;
    size_t count;
    void (*work)(size_t i, void *user);
    void *user;
} loop;

static void *loop_run(void *arg)
{
    loop *l = arg;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
        if (i >= l->count)
            return NULL;
        l->work(i, l->user);
    }
}

/* The helpers take no signals: those are for the program's own threads. */
static int start_helpers(pthread_t *helper, int wanted, loop *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0;
    while (started < wanted && pthread_create(&helper[started], NULL, loop_run, l) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void parallel_for(size_t count, int threads, void (*work)(size_t i, void *user), void *user)
{
    loop l = {.count = count, .work = work, .user = user};
    pthread_t helper[PARALLEL_THREADS_MAX];
    int wanted = threads > PARALLEL_THREADS_MAX ? PARALLEL_THREADS_MAX : threads;
    if ((size_t)(wanted > 0 ? wanted : 0) > count)
        wanted = (int)count;
    int started = wanted > 1 ? start_helpers(helper, wanted - 1, &l) : 0;
    loop_run(&l);
    for (int i = 0; i < started; i++)
        pthread_join(helper[i], NULL);
}

int parallel_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
