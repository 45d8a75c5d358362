/* ps_job.h: a running job: the round machine (round.h) with hands and ears.
 *
 * Frames, results of the workers and the clock become events; actions become frames and tasks. All
 * of it on the owner thread, and nothing here blocks. What it is doing:
 *
 *   PREPARING  the database makes the functions' user; the controller waits for `accepted`
 *   OPENING    a resumed job: the keeper brings the checkpoint back
 *   RUNNING    the machine decides
 *   FINISHING  the final model and the history are written
 *   OVER       `finished` was told; it is repeated to whoever attaches */
#ifndef KUBEML_PS_JOB_H
#define KUBEML_PS_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "ps/conn/connections.h"
#include "ps/conn/worker.h"
#include "ps/redis/database.h"
#include "ps/storage/storage_worker.h"

typedef struct job job;

/* What a job works with; outlives it. */
typedef struct job_host {
    connections *connections;
    database *database;
    worker *nurse;                    /* runs the database's tasks */
    worker *storage_worker;           /* runs the keeper's tasks */
    char address[WIRE_ADDRESS_BYTES]; /* where functions dial */
} job_host;

/* Takes on the job of a controller's `job` message; the answer goes to `c`. NULL: refused, `e` says
 * why and the caller tells. */
job *job_begin(const job_host *host, conn *c, const json_t *message, err *e);
/* After the keeper's worker has been stopped; `kept`: the model store keeps its contents. */
void job_free(job *j, bool kept);

const char *job_id(const job *j);
const char *job_shm_dir(const job *j);
bool job_secret_is(const job *j, const char *token);

/* Messages after a believed hello. */
void job_from_controller(job *j, conn *c, const json_t *message);
void job_hello(job *j, conn *c, const json_t *message);
void job_from_function(job *j, conn *c, const json_t *message);
void job_closed(job *j, conn *c, const err *why);

void job_task_done(job *j, task *t);              /* frees it */
void job_database_done(job *j, database_task *t); /* frees it */
void job_database_died(job *j, const char *message);
bool job_database_busy(const job *j); /* a task is out: leave the database alone */
bool job_pings_database(const job *j); /* it only asks Redis, which may not answer */

int64_t job_deadline(const job *j);
/* What is due, as of when the connections were polled: what had come by then was told. */
void job_tick(job *j, int64_t polled_ms);
bool job_over(const job *j);    /* `finished` was told */
bool job_refused(const job *j); /* it never began; the controller knows */

#endif
