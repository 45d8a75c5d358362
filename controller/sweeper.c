/* sweeper.c: see sweeper.h. */
#include "sweeper.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "controller/functions/code_blob.h"
#include "controller/functions/upload.h"
#include "controller/ha/leading.h"
#include "controller/ha/store_watch.h"
#include "controller/jobs/job_manager.h"

struct sweeper {
    controller *controller;
    pthread_t thread;
    pthread_mutex_t lock; /* guards `ending` */
    pthread_cond_t changed;
    bool ending;
};

int sweeper_sweep(store *s, err *e)
{
    size_t removed = 0;
    if (store_sweep(s, &removed, e))
        return -1;
    if (removed)
        log_info("swept %zu things that dead writers left", removed);
    return 0;
}

/* False when the sweeper is to end. */
static bool pause_for(sweeper *s, int64_t ms)
{
    int64_t next = clock_deadline_ms(ms);
    pthread_mutex_lock(&s->lock);
    while (!s->ending && clock_cond_wait(&s->changed, &s->lock, next))
        ;
    bool on = !s->ending;
    pthread_mutex_unlock(&s->lock);
    return on;
}

/* Deletes unused uploads, as the leader: only it knows all jobs, and can hold a model so that no
 * job begins with it meanwhile. */
static int sweep_uploads(controller *c, err *e)
{
    cleanup_json json_t *left = NULL;
    json_t *ignored;
    const char *id;
    if (!controller_leads(c))
        return 0;
    if (upload_find_left(c->store, clock_wall_ms(), &left, e))
        return -1;
    json_object_foreach (left, id, ignored) {
        if (job_delete_hold(c->job_manager, id, e))
            return -1;
        int status = upload_drop(c->store, id, e);
        job_delete_let_go(c->job_manager, id);
        if (status)
            return -1;
    }
    return 0;
}

static int sweep_code(controller *c, err *e)
{
    size_t removed = 0;
    int status = controller_leads(c) ? code_blob_sweep(c->store, clock_wall_ms(), &removed, e) : 0;
    if (removed)
        log_info("removed %zu objects and sources that no function and no job names", removed);
    return status;
}

static void *sweep(void *arg)
{
    sweeper *s = arg;
    int64_t ms = SWEEPER_FIRST_MS, unnamed_ms = 0;
    while (pause_for(s, ms)) {
        err e = ERR_INIT;
        ms = 2 * ms < SWEEPER_MOST_MS ? 2 * ms : SWEEPER_MOST_MS;
        if (store_watch_up(s->controller->watch, NULL) && sweeper_sweep(s->controller->store, &e))
            log_warn("what dead writers left stays for now: %s", e.message);
        if (clock_monotonic_ms() < unnamed_ms || !store_watch_up(s->controller->watch, NULL))
            continue;
        unnamed_ms = clock_deadline_ms(SWEEPER_UNNAMED_MS);
        err_clear(&e);
        if (sweep_uploads(s->controller, &e))
            log_warn("models that were uploaded in vain stay for now: %s", e.message);
        err_clear(&e);
        if (sweep_code(s->controller, &e))
            log_warn("code that nobody names stays for now: %s", e.message);
    }
    return NULL;
}

static void sweeper_free(sweeper *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

sweeper *sweeper_start(controller *c, err *e)
{
    sweeper *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(e, ERR_NOMEM, "no memory to sweep the store");
        return NULL;
    }
    s->controller = c;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    if (pthread_create(&s->thread, NULL, sweep, s) == 0)
        return s;
    sweeper_free(s);
    err_set(e, ERR_NOMEM, "no thread to sweep the store");
    return NULL;
}

void sweeper_stop(sweeper *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    sweeper_free(s);
}
