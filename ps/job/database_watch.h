/* database_watch.h: watches the job's database (ps/redis/database.h) as long as the job is there:
 * prepares it, pings it, kills it when it hangs, and restarts it when it has ended. Belongs to the
 * owner thread. Calls that block are tasks of a worker, one at a time. */
#ifndef KUBEML_PS_DATABASE_WATCH_H
#define KUBEML_PS_DATABASE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "ps/conn/worker.h"
#include "ps/redis/database.h"

enum {
    DATABASE_REVIVE_RETRY_MS = 250,
    DATABASE_PING_EVERY_MS = 5000,
    /* After so many lost pings in a row, 45 s, redis-server counts as hung. A lost ping counts once
     * however long it took, so that a pause of kubeml-ps does not count. Redis does long work on
     * threads of its own, and answers meanwhile. */
    DATABASE_PINGS_LOST_MAX = 9,
};

typedef struct database_watch {
    database *database;
    worker *worker;
    bool busy;             /* a task is out: the database is left alone */
    bool down;             /* it has ended, and the round machine has no report that it is back */
    bool back;             /* it runs again, but a task that used the old one may be out */
    int64_t revive_due_ms; /* when to try again to restart it */
    int64_t ping_due_ms;   /* INT64_MAX: a ping is out, it has ended, or another container has it */
    bool pings;            /* the task that is out is a ping */
    int pings_lost;        /* in a row */
} database_watch;

void database_watch_init(database_watch *w, database *d, worker *runs);
/* Posts the task that makes the Redis user of the job's functions; `kind` is the model store's.
 * ERR_NOMEM. */
int database_watch_prepare(database_watch *w, const char *job, const char *kind,
                           const char *shm_dir, err *e);
void database_watch_begin(database_watch *w); /* it is prepared: pings it from now on */
/* It has ended: writes why, for people, to `text`. The caller restarts it by database_watch_revive.
 */
void database_watch_died(database_watch *w, const char *message, char *text, size_t bytes);
void database_watch_revive(database_watch *w);
/* Handles a ping or a restart that has come back; the caller handles PREPARE. */
void database_watch_done(database_watch *w, const database_task *t);
/* When database_watch_tick is due; INT64_MAX: not at all. `asks`: pings are wanted. */
int64_t database_watch_deadline(const database_watch *w, bool asks);
void database_watch_tick(database_watch *w, int64_t now_ms, bool asks);

#endif
