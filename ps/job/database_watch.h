/* database_watch.h: the job's database (ps/redis/database.h) while the job is there: it is
 * prepared, asked now and then whether it answers, killed where it stands still, and restarted when
 * it has ended. The owner thread's; what blocks are tasks of a worker, one at a time. */
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
    /* Without an answer that many times in a row, 45 s, it stands still for good. Each counts once
     * however long it took: no pause of our own is held against it. What it does for long it does
     * on threads of its own. */
    DATABASE_PINGS_LOST_MAX = 9,
};

typedef struct database_watch {
    database *database;
    worker *worker;
    bool busy;             /* a task is out: the database is left alone */
    bool down;             /* it has ended, and the round machine has not heard that it is back */
    bool back;             /* it is, but a task that spoke to the old one may be out */
    int64_t revive_due_ms; /* when to try again to restart it */
    int64_t ping_due_ms;   /* INT64_MAX: it is being asked, is gone, or is another container's */
    bool pings;            /* the task that is out asks it */
    int pings_lost;        /* in a row */
} database_watch;

void database_watch_init(database_watch *w, database *d, worker *runs);
/* Makes the user of the job's functions; `kind` of the model store. ERR_NOMEM. */
int database_watch_prepare(database_watch *w, const char *job, const char *kind,
                           const char *shm_dir, err *e);
void database_watch_begin(database_watch *w); /* it was prepared: is asked from now on */
/* It has ended: why, for people, into `text`. It is restarted by database_watch_revive. */
void database_watch_died(database_watch *w, const char *message, char *text, size_t bytes);
void database_watch_revive(database_watch *w);
/* A ping or a revival has come back; PREPARE is the caller's. */
void database_watch_done(database_watch *w, const database_task *t);
/* When database_watch_tick is due; INT64_MAX: not at all. `asks`: the job is one that needs it. */
int64_t database_watch_deadline(const database_watch *w, bool asks);
void database_watch_tick(database_watch *w, int64_t now_ms, bool asks);

#endif
