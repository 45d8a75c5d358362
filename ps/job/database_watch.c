/* database_watch.c: see database_watch.h. */
#include "database_watch.h"

#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"

void database_watch_init(database_watch *w, database *d, worker *runs)
{
    *w = (database_watch){
        .database = d, .worker = runs, .revive_due_ms = INT64_MAX, .ping_due_ms = INT64_MAX};
}

static void post(database_watch *w, database_task *t)
{
    w->busy = true;
    worker_post(w->worker, &t->work);
}

int database_watch_prepare(database_watch *w, const char *job, const char *kind,
                           const char *shm_dir, err *e)
{
    database_task *t = database_task_new(w->database, DATABASE_PREPARE);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for the job's first task");
    snprintf(t->job, sizeof t->job, "%s", job);
    snprintf(t->kind_name, sizeof t->kind_name, "%s", kind);
    snprintf(t->shm_dir, sizeof t->shm_dir, "%s", shm_dir);
    post(w, t);
    return 0;
}

/* ---- does it answer -------------------------------------------------------------------------- */

/* Where it is another container's, the cluster asks it, and ends it. */
static void ping_later(database_watch *w, int64_t wait_ms)
{
    bool own = database_pid(w->database) > 0;
    w->ping_due_ms = own ? clock_deadline_ms(wait_ms) : INT64_MAX;
}

static void ping(database_watch *w)
{
    database_task *t = database_task_new(w->database, DATABASE_PING);
    w->ping_due_ms = t ? INT64_MAX : clock_deadline_ms(DATABASE_PING_EVERY_MS);
    if (!t)
        return;
    w->pings = true;
    post(w, t);
}

static bool hangs(const database_watch *w)
{
    return w->pings_lost >= DATABASE_PINGS_LOST_MAX;
}

/* One that stands still keeps its connections: it is killed, and its end brings the next one. */
static void pinged(database_watch *w, const database_task *t)
{
    bool lost = t->status && t->e.code == ERR_TIMEOUT;
    w->pings = false;
    w->pings_lost = lost ? w->pings_lost + 1 : 0;
    if (hangs(w))
        database_kill(w->database);
    else
        ping_later(w, lost ? 0 : DATABASE_PING_EVERY_MS);
}

void database_watch_begin(database_watch *w)
{
    ping_later(w, DATABASE_PING_EVERY_MS);
}

/* ---- it ends, and is restarted --------------------------------------------------------------- */

void database_watch_revive(database_watch *w)
{
    database_task *t = database_task_new(w->database, DATABASE_REVIVE);
    w->revive_due_ms = t ? INT64_MAX : clock_deadline_ms(DATABASE_REVIVE_RETRY_MS);
    if (t)
        post(w, t);
}

static void revived(database_watch *w, const database_task *t)
{
    if (t->status) {
        w->revive_due_ms = clock_deadline_ms(DATABASE_REVIVE_RETRY_MS);
        return;
    }
    log_info("redis-server runs again");
    ping_later(w, DATABASE_PING_EVERY_MS);
    w->back = true;
}

void database_watch_died(database_watch *w, const char *message, char *text, size_t bytes)
{
    if (hangs(w))
        snprintf(text, bytes, "the job's redis-server answered nothing for %d s: killed",
                 DATABASE_PINGS_LOST_MAX * DATABASE_PING_MS / 1000);
    else
        snprintf(text, bytes, "the job's redis-server %s", message);
    w->ping_due_ms = INT64_MAX;
    w->pings_lost = 0;
    w->down = true;
    w->back = false;
}

void database_watch_done(database_watch *w, const database_task *t)
{
    w->busy = false;
    if (t->kind == DATABASE_PING)
        pinged(w, t);
    else if (t->kind == DATABASE_REVIVE)
        revived(w, t);
}

/* ---- time ------------------------------------------------------------------------------------ */

int64_t database_watch_deadline(const database_watch *w, bool asks)
{
    int64_t ping_due_ms = asks ? w->ping_due_ms : INT64_MAX;
    return w->revive_due_ms < ping_due_ms ? w->revive_due_ms : ping_due_ms;
}

void database_watch_tick(database_watch *w, int64_t now_ms, bool asks)
{
    if (now_ms >= w->revive_due_ms)
        database_watch_revive(w);
    if (asks && now_ms >= w->ping_due_ms)
        ping(w);
}
