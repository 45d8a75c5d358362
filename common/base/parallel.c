/* parallel.c: see parallel.h. */
#include "parallel.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

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

/* Starts the helpers with all signals blocked: signals go to the program's own threads. */
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

/* Reads a cpu.max file. "200000 100000": time in each period; "max 100000": no limit. */
static int quota_of(const char *path)
{
    long long quota, period;
    cleanup_fclose FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%lld %lld", &quota, &period) != 2 || quota < 1 || period < 1)
        return INT_MAX;
    long long whole = quota / period;
    return whole < 1 ? 1 : whole < INT_MAX ? (int)whole : INT_MAX;
}

int parallel_quota(const char *root, const char *group)
{
    char path[PATH_MAX];
    size_t len = strlen(group);
    int least = INT_MAX;
    for (;;) {
        snprintf(path, sizeof path, "%s%.*s/cpu.max", root, (int)len, group);
        int quota = quota_of(path);
        least = quota < least ? quota : least;
        if (len == 0)
            return least;
        while (len > 0 && group[--len] != '/')
            ;
    }
}

static int own_quota; /* read once, because each merge asks for it */

static void read_own_quota(void)
{
    char line[PATH_MAX] = "";
    cleanup_fclose FILE *f = fopen("/proc/self/cgroup", "re");
    own_quota = INT_MAX;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0)
            own_quota = parallel_quota("/sys/fs/cgroup", line + 3);
    }
}

int parallel_cores(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    cpu_set_t set;
    pthread_once(&once, read_own_quota);
    /* fails on the largest machines, for which a cpu_set_t of the usual size is too small */
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                         : sysconf(_SC_NPROCESSORS_ONLN);
    n = n < own_quota ? n : own_quota;
    return n > 0 ? (int)n : 1;
}
