/* job_manager.h: the one thread that owns jobs, pods and the connections to them.
 *
 * It turns what comes in - requests of the API, frames of pods, changes in the cluster, time - into
 * events of job.h, and its actions into frames, calls of cluster.h and records. Everybody else asks
 * by `job_manager_run` or one of the calls below, all of which block their caller until the owner
 * has answered (it waits for the store and the cluster alone, each with a deadline). What they
 * return belongs to the caller. */
#ifndef KUBEML_JOB_MANAGER_H
#define KUBEML_JOB_MANAGER_H

#include <jansson.h>

#include "common/contract/request.h"
#include "common/net/wire.h"
#include "common/store/list_page.h"
#include "controller/cluster/cluster.h"
#include "controller/controller.h"

enum {
    JOB_MANAGER_FOLLOWERS_MAX = 512, /* open event and log streams */
    JOB_MANAGER_SERVERS_MAX = 4,     /* runtimes kept for /infer */
    JOB_MANAGER_SERVER_IDLE_MS = 60000,
    JOB_MANAGER_POOL_IDLE_MS = 60000, /* a warm pod above the floor ends after so long */
    JOB_MANAGER_DRAIN_MS = 15000,     /* waited for the end of a job that is stopped, and of pods */
    JOB_MANAGER_LOG_POLL_MS = 250,
    JOB_MANAGER_LOG_TAILS_MAX = 64
                                << 20, /* of the logs of all of a job's pods, when they are read */
    JOB_MANAGER_LOG_BYTES_MAX = 128 << 20, /* of a job's log, with that of its runs before */
    JOB_MANAGER_LOGS_HELD_MAX = 256 << 20, /* of all logs that clients have not taken yet */
    JOB_MANAGER_STREAM_PING_MS = 15000,
    JOB_MANAGER_PASTS_EPOCHS_MAX = 300000, /* of jobs that have ended, on their way to clients */
};

#define JOB_MANAGER_SEGMENT_DIR "/dev/shm" /* of a job's shared memory on this host */

typedef struct follower follower;

/* Opens the cluster, restores all jobs from the store, adopts what runs, and starts the thread. */
int job_manager_start(controller *c, job_manager **out, err *e);
/* The store was away and answers again: what could not be written then is written. */
void job_manager_store_back(job_manager *o);
/* Ends the thread. `stop_pods`: and every pod; jobs stay in their records and go on at the next
 * start. NULL is fine. */
void job_manager_stop(job_manager *o, bool stop_pods);
/* Ends the thread and every pod and frees nothing, for a process that ends now while others may
 * still hold `o`: their calls fail, or do not return. NULL is fine. */
void job_manager_leave(job_manager *o);
void job_manager_random_hex(char *out, size_t bytes); /* bytes - 1 digits, unguessable */

/* Puts a job into the queue; `id` receives its id, `note` what of the request is in vain (a text,
 * or null). `user` asks for it, "": it is not known who.
 * ERR_NOT_FOUND for function, dataset or init; ERR_UNSUPPORTED for what they cannot be together. */
int job_manager_submit(job_manager *o, const request *r, const char *user, char id[40],
                       json_t **note, err *e);
/* Under a given id, so that who asks again after a lost answer makes no second one: ERR_EXISTS. */
int job_manager_submit_as(job_manager *o, const request *r, const char *id, err *e);
/* A suspended job too. ERR_CONFLICT: it has ended. */
int job_manager_cancel(job_manager *o, const char *id, err *e);
/* At its next merge; fine where it is suspended already. ERR_CONFLICT: it has ended. */
int job_manager_suspend(job_manager *o, const char *id, err *e);
/* A job that ended goes on from its newest checkpoint. ERR_CONFLICT while it has not ended. */
int job_manager_resume(job_manager *o, const char *id, err *e);
/* As the API shows it: GET /tasks/{id}, and all. `active`: those that have not ended, all of them
 * on the first page; `ended`: those too that have, a page of them. `page` NULL: of those that have,
 * the ones whose pods have not. */
int job_query_task(job_manager *o, const char *id, json_t **out, err *e);
int job_query_tasks(job_manager *o, bool active, bool ended, list_page *page, json_t **out, err *e);
/* The ids of the jobs that job_manager_submit has made since the last call, whatever became of
 * them; the first call gives none and has them kept from then on. NULL: no memory. */
json_t *job_query_news(job_manager *o);
/* What functions use now, [{"job", "function", "incarnation", "cpu_percent", "memory_bytes",
 * "gpu"}...]: GET /usage. */
int job_query_usage(job_manager *o, json_t **out, err *e);
int job_query_explain(job_manager *o, const char *id, json_t **out, err *e);
/* The job's log so far, all pods' lines in order of time; ERR_UNAVAILABLE while too much is held by
 * others. The caller gives it back. Other logs are waited for, and no job waits for it. */
int job_query_logs(job_manager *o, const char *id, char **out, size_t *len, err *e);
void job_query_logs_give_back(job_manager *o, char *text, size_t len); /* text NULL is fine */
/* A place for one stream more, taken before that is opened: what is wrong can be said then alone.
 * For job_manager_follow. ERR_NOT_FOUND; ERR_UNAVAILABLE: all JOB_MANAGER_FOLLOWERS_MAX are taken.
 */
int job_manager_follow_events(job_manager *o, const char *id, follower **out, err *e);
int job_manager_follow_logs(job_manager *o, const char *id, follower **out, err *e);
/* Takes both: the stream gets what happens, and is closed at the job's end. NULL: it was not
 * opened. */
void job_manager_follow(job_manager *o, follower *f, http_stream *stream);
/* No job begins to use it meanwhile. ERR_CONFLICT naming the job that does, or another deletes it
 * already; ERR_NOT_FOUND. */
int job_delete_function(job_manager *o, const char *name, err *e);
int job_delete_dataset(job_manager *o, const char *name, err *e);
bool job_query_runs(job_manager *o, const char *id);   /* the job, or its last pods */
bool job_query_trains(job_manager *o, const char *id); /* the job, which has not ended */
bool jobs_record_ended(const json_t *record);
/* For who deletes what a job left: the job has ended, with its pods, or is unknown, and is not
 * resumed until job_delete_let_go. ERR_CONFLICT: it has not ended, is suspended, a job begins with
 * its model, or another deletes. */
int job_delete_hold(job_manager *o, const char *id, err *e);
void job_delete_let_go(job_manager *o, const char *id);
/* Drops the record of a job that is held, and its log. */
int job_delete_forget(job_manager *o, const char *id, err *e);

/* A generic runtime for /infer: its open connection, which is the caller's until it is given back
 * by job_manager_release_function. Blocks until one is there or the deadline. */
int job_manager_take_function(job_manager *o, int64_t deadline_ms, wire **out,
                              char name[CLUSTER_NAME_BYTES], err *e);
void job_manager_release_function(job_manager *o,
                                  const char *name); /* ends it: it has loaded user's code */

/* {"slots", "slots_free", "queued", "running", "pool": {...}}: for /ready and metrics. */
int job_query_status(job_manager *o, json_t **out, err *e);
void job_query_update_metrics(job_manager *o);

#endif
