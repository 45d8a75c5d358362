/* job_manager.h: the job manager, one thread that owns jobs, pods and the connections to pods.
 *
 * The thread turns requests of the API, frames of pods, changes of the cluster and time into events
 * of job.h, and the actions of job.h into frames, calls of cluster.h and records. Other threads ask
 * by `job_manager_run` or by the calls below. Each call blocks its caller until the job manager has
 * answered; the job manager itself waits for the store and the cluster alone, each with a deadline.
 * What a call returns belongs to the caller. */
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
    JOB_MANAGER_POOL_IDLE_MS = 60000, /* a warm pod above the pool's floor ends after this time */
    JOB_MANAGER_DRAIN_MS = 15000,     /* for a stopped job, and the pods of an ended one, to end */
    JOB_MANAGER_LOG_POLL_MS = 250,
    JOB_MANAGER_LOG_TAILS_MAX = 64 << 20,  /* of all pods' logs of a job, in one reading */
    JOB_MANAGER_LOG_BYTES_MAX = 128 << 20, /* of a job's log, with the logs of its earlier runs */
    JOB_MANAGER_LOGS_HELD_MAX = 256 << 20, /* of all logs that clients have not read yet */
    JOB_MANAGER_STREAM_PING_MS = 15000,
    JOB_MANAGER_PASTS_EPOCHS_MAX = 300000, /* of ended jobs, waiting for clients to read them */
};

#define JOB_MANAGER_SEGMENT_DIR "/dev/shm" /* of a job's shared memory on this host */

typedef struct follower follower;

/* Opens the cluster, restores all jobs from the store, adopts running pods, and starts the
 * thread. */
int job_manager_start(controller *c, job_manager **out, err *e);
/* The store answers again: writes all records and histories that it did not take meanwhile. */
void job_manager_store_back(job_manager *o);
/* Ends the thread, and with `stop_pods` every pod. Jobs stay in their records and go on at the next
 * start. NULL is fine. */
void job_manager_stop(job_manager *o, bool stop_pods);
/* Ends the thread and every pod, but frees nothing: for a process that exits now, while other
 * threads may still hold `o`. Their calls fail or do not return. NULL is fine. */
void job_manager_leave(job_manager *o);
void job_manager_random_hex(char *out, size_t bytes); /* bytes - 1 digits, unguessable */

/* Puts a job into the queue. `id` receives its id, `note` a text about what the request asks for in
 * vain, or null. `user` is who asks; "" where that is unknown. ERR_NOT_FOUND for function, dataset
 * or init; ERR_UNSUPPORTED where they do not fit together. */
int job_manager_submit(job_manager *o, const request *r, const char *user, char id[40],
                       json_t **note, err *e);
/* The same under a given id, so that a repeated request makes no second job: ERR_EXISTS. */
int job_manager_submit_as(job_manager *o, const request *r, const char *id, err *e);
/* Stops a job; a suspended one too. ERR_CONFLICT: it has ended. */
int job_manager_cancel(job_manager *o, const char *id, err *e);
/* Suspends a job at its next merge; 0 for a suspended job too. ERR_CONFLICT: it has ended. */
int job_manager_suspend(job_manager *o, const char *id, err *e);
/* Continues an ended job from its newest checkpoint. ERR_CONFLICT while it has not ended. */
int job_manager_resume(job_manager *o, const char *id, err *e);
/* Tasks as the API shows them: GET /tasks/{id}, and the list. `active` adds all jobs that have not
 * ended, on the first page; `ended` adds a page of the ended jobs. With `page` NULL it adds only
 * the ended jobs that still have pods. */
int job_query_task(job_manager *o, const char *id, json_t **out, err *e);
int job_query_tasks(job_manager *o, bool active, bool ended, list_page *page, json_t **out, err *e);
/* The ids of all jobs that job_manager_submit has made since the last call, whatever their state.
 * The first call returns none; ids are collected from then on. NULL: no memory. */
json_t *job_query_news(job_manager *o);
/* What functions use now: [{"job", "function", "incarnation", "cpu_percent", "memory_bytes",
 * "gpu"}...], for GET /usage. */
int job_query_usage(job_manager *o, json_t **out, err *e);
int job_query_explain(job_manager *o, const char *id, json_t **out, err *e);
/* The job's log so far, the lines of all pods in order of time. ERR_UNAVAILABLE while clients hold
 * too much of other logs. The caller returns the text by job_query_logs_give_back. A call waits for
 * other logs that are being read; no job waits for it. */
int job_query_logs(job_manager *o, const char *id, char **out, size_t *len, err *e);
void job_query_logs_give_back(job_manager *o, char *text, size_t len); /* text NULL is fine */
/* Takes a place for one more stream, for job_manager_follow. Callers do so before they open the
 * stream, since an error can be sent only before that. ERR_NOT_FOUND; ERR_UNAVAILABLE: all
 * JOB_MANAGER_FOLLOWERS_MAX places are taken. */
int job_manager_follow_events(job_manager *o, const char *id, follower **out, err *e);
int job_manager_follow_logs(job_manager *o, const char *id, follower **out, err *e);
/* Takes ownership of both. The stream receives the job's events or log, and is closed at the job's
 * end. `stream` NULL: it was not opened, and the place is free again. */
void job_manager_follow(job_manager *o, follower *f, http_stream *stream);
/* Deletes a function or a dataset, while no job can begin to use it. ERR_CONFLICT: a job, which the
 * message names, uses it, or another call is deleting it; ERR_NOT_FOUND. */
int job_delete_function(job_manager *o, const char *name, err *e);
int job_delete_dataset(job_manager *o, const char *name, err *e);
bool job_query_runs(job_manager *o, const char *id);   /* the job runs, or its last pods do */
bool job_query_trains(job_manager *o, const char *id); /* the job has not ended */
bool jobs_record_ended(const json_t *record);
/* Holds a job so that the caller may delete what the job left: a job that has ended with its pods,
 * or is unknown. It cannot be resumed until job_delete_let_go. ERR_CONFLICT: the job has not ended,
 * is suspended, another job begins with its model, or another call deletes. */
int job_delete_hold(job_manager *o, const char *id, err *e);
void job_delete_let_go(job_manager *o, const char *id);
/* Deletes the record and the log of a held job. */
int job_delete_forget(job_manager *o, const char *id, err *e);

/* Takes a generic runtime for /infer, its open connection, and its name; blocks until there is one,
 * or the deadline. The caller owns the connection, and returns the runtime by
 * job_manager_release_function. */
int job_manager_take_function(job_manager *o, int64_t deadline_ms, wire **out,
                              char name[CLUSTER_NAME_BYTES], err *e);
void job_manager_release_function(job_manager *o,
                                  const char *name); /* ends the pod: it has loaded user code */

/* {"slots", "slots_free", "queued", "running", "pool": {...}}: for /ready and metrics. */
int job_query_status(job_manager *o, json_t **out, err *e);
void job_query_update_metrics(job_manager *o);

#endif
