/* database.h: the job's Redis as kubeml-ps sees it: warm before there is a job, brought back when
 * it dies.
 *
 * `database_start` runs at the program's start. Afterwards the handle belongs to the worker thread
 * that runs its tasks; the owner thread looks at it (database_death_fd, ...) only while no task is
 * out. */
#ifndef KUBEML_PS_DATABASE_H
#define KUBEML_PS_DATABASE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "common/modelstore/modelstore.h"
#include "ps/conn/worker.h"

enum { DATABASE_START_MS = 10000, DATABASE_PING_MS = 5000 };

typedef struct database_config {
    const char *program; /* redis-server; NULL: the one in PATH */
    const char *folder;  /* of its own, or shared with the container that runs it: */
    bool joined;         /* redis-server is another container's (redis_serve.h) */
    const char *module;  /* NULL: none */
    const char *shm_dir; /* until a job names another one */
    const char *listen;  /* "host:port" beside the Unix socket, or NULL */
    bool socket;         /* tensors travel through sockets, not through shared memory */
} database_config;

typedef struct database database;

typedef enum database_task_kind {
    DATABASE_PREPARE,
    DATABASE_REVIVE,
    DATABASE_PING, /* ERR_TIMEOUT: no answer within DATABASE_PING_MS */
} database_task_kind;

typedef struct database_task {
    work work; /* first */
    database_task_kind kind;
    database *database;
    /* PREPARE: makes the user of the job's functions. in: */
    char job[MODELSTORE_NAME_BYTES], kind_name[MODELSTORE_NAME_BYTES],
        shm_dir[MODELSTORE_PATH_BYTES];
    /* out: for kubeml-ps itself, and for its functions */
    modelstore_access owner, member;
    int status;
    err e;
} database_task;

/* Never NULL unless memory is gone: a Redis that does not start is `e`, and tried again by PREPARE.
 */
database *database_start(const database_config *config, err *e);
void database_stop(database *d);          /* NULL is fine */
int database_death_fd(const database *d); /* -1 while it does not run */
/* Why it died, and how. */
void database_epitaph(database *d, char *out, size_t bytes);
pid_t database_pid(const database *d); /* -1: it does not run, or is another container's */
void database_kill(const database *d); /* one that does not answer, if it is our own */

database_task *database_task_new(database *d, database_task_kind kind); /* NULL: no memory */
void database_task_drop(work *w);

#endif
