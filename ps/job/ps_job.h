/* ps_job.h: the job of a kubeml-ps, from the controller's `job` message to its end.
 *
 * Frames, results of the workers and the clock become events of the round machine (round.h); its
 * actions become frames and tasks. ps_job_internal.h says which file does what. All of it is the
 * owner thread's, and nothing here blocks. The stages of a job:
 *
 *   PREPARING  the database makes the functions' user; the controller waits for `accepted`
 *   OPENING    a resumed job: the keeper brings the checkpoint back
 *   RUNNING    the round machine decides
 *   FINISHING  the final model and the history are written
 *   OVER       `finished` was told; it is repeated to whoever attaches
 *   REFUSED    it never began */
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
bool job_database_busy(const job *j);  /* a task is out: leave the database alone */
bool job_pings_database(const job *j); /* it only asks Redis, which may not answer */

int64_t job_deadline(const job *j);
/* What is due, as of when the connections were polled: what had come by then was told. */
void job_tick(job *j, int64_t polled_ms);
bool job_over(const job *j);    /* `finished` was told */
bool job_refused(const job *j); /* it never began; the controller knows */

#endif
