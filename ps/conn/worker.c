/* worker.c: see worker.h. */
#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

typedef struct queue {
    work *first, **last;
} queue;

struct worker {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the queues and `ending` */
    pthread_cond_t changed;
    queue todo, done;
    bool ending;
    int fd;
};

static void queue_init(queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

static void queue_put(queue *q, work *job)
{
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
}

static work *queue_take(queue *q)
{
    work *job = q->first;
    if (job && !(q->first = job->next))
        q->last = &q->first;
    return job;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        work *job = queue_take(&w->todo);
        if (!job) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        int64_t begun = clock_monotonic_ns();
        job->run(job);
        job->seconds = (double)(clock_monotonic_ns() - begun) / 1e9;
        pthread_mutex_lock(&w->lock);
        queue_put(&w->done, job);
        uint64_t one = 1;
        ssize_t written = write(w->fd, &one, sizeof one);
        (void)written; /* only a counter at its maximum refuses: then it polls readable anyway */
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals belong to the owner's signalfd, never to this thread. */
static int start_thread(worker *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    int status = pthread_create(&w->thread, &attributes, worker_main, w);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

worker *worker_start(err *e)
{
    worker *w = calloc(1, sizeof *w);
    if (!w) {
        err_set(e, ERR_NOMEM, "no memory for the worker");
        return NULL;
    }
    queue_init(&w->todo);
    queue_init(&w->done);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int status = w->fd < 0 ? errno : start_thread(w);
    if (status == 0)
        return w;
    err_set_errno(e, status, "cannot start the worker");
    if (w->fd >= 0)
        close(w->fd);
    free(w);
    return NULL;
}

/* pthread_timedjoin_np wants the wall clock; its steps only make this wait longer or shorter. */
static bool join(worker *w, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)timeout_ms * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    return pthread_timedjoin_np(w->thread, NULL, &until) == 0;
}

bool worker_stop(worker *w, void (*drop)(work *dropped), int timeout_ms)
{
    if (!w)
        return true;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!join(w, timeout_ms))
        return false;
    work *job;
    while ((job = queue_take(&w->done)) || (job = queue_take(&w->todo)))
        drop(job);
    close(w->fd);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return true;
}

void worker_post(worker *w, work *job)
{
    pthread_mutex_lock(&w->lock);
    queue_put(&w->todo, job);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

int worker_fd(const worker *w)
{
    return w->fd;
}

work *worker_take(worker *w)
{
    pthread_mutex_lock(&w->lock);
    work *job = queue_take(&w->done);
    if (!w->done.first) {
        uint64_t count;
        ssize_t got = read(w->fd, &count, sizeof count);
        (void)got; /* nothing to read is fine */
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}
