/* unsandboxed_thread.c: see unsandboxed_thread.h. `lock` guards all of the struct. */
#include "unsandboxed_thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

struct unsandboxed_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int (*what)(void *of, err *e); /* NULL: nothing to do */
    void *of;
    err *e;
    int rc;
    bool closing;
};

static void *serve(void *arg)
{
    unsandboxed_thread *o = arg;
    pthread_mutex_lock(&o->lock);
    for (;;) {
        while (!o->what && !o->closing)
            pthread_cond_wait(&o->changed, &o->lock);
        if (!o->what)
            break;
        pthread_mutex_unlock(&o->lock);
        int rc = o->what(o->of, o->e);
        pthread_mutex_lock(&o->lock);
        o->rc = rc;
        o->what = NULL;
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

int unsandboxed_thread_open(unsandboxed_thread **out, err *e)
{
    unsandboxed_thread *o = calloc(1, sizeof *o);
    sigset_t all, before;
    if (!o)
        return err_set(e, ERR_NOMEM, "no memory for a thread");
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    /* Signals go to the computing thread, which has the signal stack for crash.c. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&o->thread, NULL, serve, o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) {
        *out = o;
        return 0;
    }
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
    free(o);
    return err_set_errno(e, code, "a thread outside the sandbox");
}

void unsandboxed_thread_close(unsandboxed_thread *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    o->closing = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

int unsandboxed_thread_run(unsandboxed_thread *o, int (*what)(void *of, err *e), void *of, err *e)
{
    if (!o)
        return what(of, e);
    pthread_mutex_lock(&o->lock);
    o->of = of;
    o->e = e;
    o->what = what;
    pthread_cond_broadcast(&o->changed);
    while (o->what)
        pthread_cond_wait(&o->changed, &o->lock);
    int rc = o->rc;
    pthread_mutex_unlock(&o->lock);
    return rc;
}
