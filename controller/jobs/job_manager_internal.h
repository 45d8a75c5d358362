/* job_manager_internal.h: what the files of the job manager share; nobody else includes it.
 *
 * job_manager.c             the thread, its queue of calls, events and actions of job.h
 * pool.c                    pods and the connections to them
 * pool_fill.c               how many warm pods there are
 * pool_gpu.c                the GPUs that pods have reported
 * pool_talk.c               frames to and from pods
 * job_context.c             what the controller has of a job beside the machine; records
 * job_log.c                 logs of jobs: which pods, merging, the store
 * log_reader.c              the thread that reads logs
 * job_manager_api.c         calls of job_manager.h: submit, stop, resume (job_manager_call.h)
 * job_query.c               calls that show jobs, logs and figures
 * job_delete.c              calls that delete what no job uses
 * job_manager_follow.c      event streams
 * job_manager_usage.c       what functions use now
 * job_manager_algorithms.c  what functions have measured on GPUs
 *
 * Only the job manager's thread touches what is declared here, except `lock` and the fields that
 * it guards, and the log reader's own. */
#ifndef KUBEML_JOB_MANAGER_INTERNAL_H
#define KUBEML_JOB_MANAGER_INTERNAL_H

#include <pthread.h>

#include "common/base/name.h"
#include "common/contract/reduce_placement.h"
#include "controller/job/job.h"
#include "job_manager.h"

enum {
    MEASURED_MAX = 256, /* kinds of functions whose shapes have been measured */
    POOL_TOKEN_BYTES = 65,
    JOB_SECRET_TEXT_BYTES = 65,
    POD_DIAL_MS = 5, /* between two dials of a pod that starts */
    POD_DIAL_MS_MAX = 100,
    /* Both waits together take at most 4 s, so that recovery begins within 5 s of a node's loss.
     * The first ends a connection, which costs nothing where the pod lives: the controller dials it
     * again during the whole second wait. */
    POD_DEAD_MS = 2000, /* without a sign of its node: a pod's connection is over */
    /* then, in a cluster, until an unreachable kubeml-ps is replaced */
    POD_LOST_MS = 1500,
    /* The same wait of a controller that has just begun to lead: the leader before may have been
     * lost with that node, and the lease's time-out is part of the total. A node that lives answers
     * at once, whatever its pod does. */
    POD_ADOPT_MS = 700,
    POD_HELLO_MS = 60000, /* a started pod that accepts no connection is replaced */
    POD_GRACE_MS = 1000,  /* for a generic pod to end by itself */
    /* of listening without a message from a kubeml-ps, which sends one every two seconds: its
     * process stands still for good */
    POD_HUNG_MS = 120000,
    POD_LISTEN_MS = 5000, /* at most so much of the time between two polls counts as listening */
    LOG_EVIDENCE_BYTES = 2048, /* of a pod's log, in the message of its end */
};

/* ---- pods ------------------------------------------------------------------------------------ */

typedef enum pod_use {
    USE_STARTING, /* dialled until it sends `welcome` */
    USE_WARM,     /* generic, idle, in the pool */
    USE_JOB,      /* given to a job */
    USE_SERVE,    /* given away for /infer */
    USE_STOPPING, /* the cluster was asked to stop it */
} pod_use;

/* What the controller awaits on a pod's connection. */
typedef enum pod_talk {
    TALK_NONE,
    TALK_WELCOME,     /* `welcome` */
    TALK_ACCEPTED,    /* `accepted`, or the answer to `attach` */
    TALK_TURN,        /* another function's measurements, before `specialise` is sent */
    TALK_SPECIALISED, /* `specialised` */
    TALK_LIVE         /* nothing: kubeml-ps reports on its job */
} pod_talk;

typedef struct link_pod {
    char name[CLUSTER_NAME_BYTES];
    pod_role role;
    char address[CLUSTER_ADDRESS_BYTES];
    pod_use use;
    pod_talk talk;
    wire *wire;
    wire *dialled;          /* the connection being made, to become `wire`; or NULL */
    bool more;              /* `wire` may hold messages already read, which poll cannot see */
    char job[JOB_ID_BYTES]; /* "" */
    int function, incarnation;
    bool attach;     /* send `attach` after `welcome` */
    bool found;      /* started by an earlier controller: not made ready here */
    int64_t dial_ms; /* next dial, or the deadline of this one; INT64_MAX: none */
    int64_t dial_wait_ms;
    int64_t since_ms;  /* when this use began */
    int64_t silent_ms; /* since when its node answers no dial; INT64_MAX: it does */
    int64_t heard_ms;  /* kubeml-ps: listened_ms at its last message */
    /* The GPU on which it was made ready, or, where others place pods, which it has reported. -1:
     * none; it can still be given any, or has reported none. */
    int gpu;
    bool vain;                  /* warm, on a GPU without room for the job that waits for a GPU */
    struct take_waiter *waiter; /* of job_manager_take_function */
    bool untaken;               /* its node has not accepted it yet */
    bool kept_back;             /* replace it by a pod that may run on any node */
    char waits_reason[32];      /* why it does not start, as the cluster reports; "" */
    char waits_message[CLUSTER_MESSAGE_BYTES];
    struct link_pod *next;
} link_pod;

/* ---- jobs ------------------------------------------------------------------------------------ */

/* When each part of a job's start was done, in clock_monotonic_ms; 0: not yet. */
typedef struct job_times {
    int64_t submitted, granted, ps, functions, training;
} job_times;

enum { JOB_CONTEXT_HASHES = 1024 };

typedef struct job_context {
    char id[JOB_ID_BYTES];
    char secret[JOB_SECRET_TEXT_BYTES];
    char user[NAME_BYTES]; /* who asked for the job; "" */
    json_t *function;      /* {"name", "version", "digest", "object"} */
    json_t
        *dataset; /* as the `job` message has it; with "locator" while job_context_access holds */
    json_t *info; /* dataset_info_json, for serving the trained model */
    json_t *access; /* of kubeml-ps, opaque; NULL */
    json_t *epochs; /* epoch messages as the API shows them */
    json_t *usage;  /* what its functions use, by kubeml-ps's last report; NULL */
    json_t *plan;   /* recorded parallelism to replay, NULL */
    char sha256[72];
    char averaging[REDUCE_TEXT_BYTES]; /* where its models are averaged; "": not decided yet */
    blob *object;                      /* open while functions may be started */
    char object_path[FS_PATH_BYTES];
    char locator[STORE_LOCATOR_BYTES]; /* of the store for kubeml-ps; "": there is none */
    job_times times;
    json_t *start_ms; /* kept with the record */
    uint64_t version; /* of the record as last read or written; STORE_NEW: there is none */
    bool ended;       /* its end is counted, and in its history */
    struct job_context *next, *next_of_hash;
} job_context;

/* ---- events ---------------------------------------------------------------------------------- */

/* A queued event with its own copies of texts. */
typedef struct event {
    job_event e;
    char job[JOB_ID_BYTES], pod[JOB_POD_BYTES], phase[16], name[JOB_REASON_BYTES];
    char reason[JOB_REASON_BYTES], message[ERR_MESSAGE_BYTES];
    struct event *next;
} event;

/* A call of another thread. */
typedef struct call {
    void (*run)(job_manager *o, void *arg);
    void *arg;
    bool done;
    pthread_cond_t changed;
    struct call *next;
} call;

typedef struct take_waiter {
    wire *wire;
    char pod[CLUSTER_NAME_BYTES];
    bool done;
    err why;
} take_waiter;

/* ---- followers ------------------------------------------------------------------------------- */

enum { LOG_MARK_BYTES = 512 };

typedef struct log_position {
    char pod[CLUSTER_NAME_BYTES];
    uint64_t seen;             /* of all that the pod wrote; or CLUSTER_LOG_FROM_UNKNOWN */
    char mark[LOG_MARK_BYTES]; /* its last bytes, to find the place in a tail of unknown offset */
    size_t mark_len;
    struct log_position *next;
} log_position;

/* A state that the follower receives after so many epochs. */
typedef struct state_due {
    size_t after;
    json_t *task;
    struct state_due *next;
} state_due;

struct follower {
    char id[JOB_ID_BYTES];
    http_stream *stream;
    bool logs;        /* belongs to the log reader */
    bool ended;       /* nothing new comes */
    buf pending;      /* what the stream had no room for */
    int64_t stuck_ms; /* http_stream_push's */
    /* of events */
    json_t *epochs;    /* the job's; the list grows while the job runs */
    size_t told;       /* how many of them have been sent */
    state_due *states; /* to be sent, in their order */
    char said[512];    /* essence of the newest state */
    size_t recalled;   /* its share of pasts_epochs */
    bool gone;         /* its client no longer reads */
    int64_t ping_ms, push_ms;
    /* of logs */
    log_position *positions;
    size_t held;     /* its share of what the log reader holds */
    int64_t look_ms; /* when the job's log is read next */
    follower *next;
};

typedef struct log_reader log_reader;

struct job_manager {
    controller *controller;
    cluster *cluster;
    jobs *machine;
    char pool_token[POOL_TOKEN_BYTES];
    char shm_dir[PATH_MAX / 4];
    pthread_t thread;
    bool running;

    link_pod *pods;
    job_context *contexts; /* all, and by the hash of their ids */
    job_context *job_context_by_id[JOB_CONTEXT_HASHES];
    follower *followers;        /* of events */
    atomic_int follower_count;  /* also of logs, and of places without a stream yet */
    atomic_size_t pasts_epochs; /* of ended jobs, held for followers */
    log_reader *reader;
    event *events, **events_end;
    int slots;
    cluster_gpu gpu[GPU_COUNT_MAX]; /* by the machine's index */
    int gpus;
    bool mps;            /* the MPS daemon runs */
    bool gpus_elsewhere; /* `gpu` is by pods' reports (0 bytes: gone); `gpus`, `mps` are 0 */
    /* While a job waits for room on a GPU: when to start the next pod that may show another GPU,
     * and the wait after that. */
    int64_t look_ms, look_wait_ms;
    bool pumping;
    uint32_t names; /* pods named so far */
    json_t *held;   /* being deleted: jobs' ids, and functions and datasets as "function/NAME" */
    json_t
        *beginners; /* of jobs suspended before a checkpoint: the id of the model to begin with */
    json_t *algorithms;              /* a text: job_manager_algorithms.c; NULL: not read yet */
    uint64_t measured[MEASURED_MAX]; /* kinds of functions, likewise */
    unsigned measured_count;         /* ever; new ones replace the oldest */
    json_t *unsaved;                 /* records of jobs by id, to write when the store is back */
    json_t *unrecorded_ends; /* likewise the ends of jobs that their histories lack */
    err unrecorded_why; /* why the store just refused one of them */
    json_t *news;   /* ids for job_query_news; NULL: nobody has asked */
    int64_t pool_retry_ms;
    int64_t pool_wait_ms; /* until the pool tries again; doubled with each failed start */
    int patience;         /* doubled when pods are stuck: a node may only be slow */
    int64_t polled_ms;    /* when the connections were polled last */
    /* Time spent listening. This clock stands still while the controller does: stopped, frozen with
     * its machine, or held up by a store. */
    int64_t listened_ms;
    bool stop_pods;

    int wake_fd; /* eventfd */
    pthread_mutex_t lock;
    call *calls, **calls_end;
    bool stopping;
    uint64_t jobs_done;   /* dropped so far */
    pthread_cond_t taken; /* there is a runtime for /infer, or jobs_done has grown */
};

/* job_manager.c */
/* Drops a job from the machine: its pods have ended and its log is in the store. */
void job_archived(job_manager *o, const char *id);
void job_manager_run(job_manager *o, void (*run)(job_manager *o, void *arg), void *arg);
/* Queues an event and copies its texts. job_manager_pump steps through all queued events. */
void job_manager_event(job_manager *o, const job_event *e);
void job_manager_pump(job_manager *o);
/* Returns at once while this controller leads. Waits while another may lead, and ends the process
 * where another did or the lease is lost for good: a controller that was stopped meanwhile must not
 * go on in the middle of its work. Called in every turn, and within a turn, which may wait for
 * long, right before a write that could replace what another leader has written. */
void job_manager_hold_if_fenced(const job_manager *o);

/* pool.c */
link_pod *pool_find(job_manager *o, const char *name);
link_pod *pool_of(job_manager *o, const char *id, int function, int incarnation);
void pool_take(job_manager *o, const job_action *a);
/* Ends a pod that pool_take has started and that is not ready yet. */
void pool_untake(job_manager *o, const job_action *a);
void pool_stop(job_manager *o, const char *name, int grace_ms);
void pool_ended(job_manager *o, const pod *p);
void pool_changed(job_manager *o, const pod *p); /* its address is known, or why it waits */
void pool_find_all(job_manager *o);              /* at start: the pods that the cluster has */
void pool_dialled(job_manager *o, link_pod *p,
                  int64_t now_ms); /* `dialled` is writable, or the dial's time is over */
/* The connections were polled: what had arrived is read in this turn, before pool_timers. */
void pool_listened(job_manager *o, int64_t polled_ms);
void pool_timers(job_manager *o, int64_t now_ms);
int64_t pool_deadline(const job_manager *o);
void pool_counts(const job_manager *o, int *functions, int *ps, int *all);
void pool_take_function(job_manager *o, take_waiter *w);
void pool_close(job_manager *o);

/* for pool_talk.c and pool_fill.c */
void pool_use(link_pod *p, pod_use use);
void pool_hang_up(link_pod *p);
/* An event of the machine about this pod. */
void pool_event(job_manager *o, const link_pod *p, job_event_type type, err_code code,
                const char *reason, const char *message);
void pool_welcome(job_manager *o, link_pod *p, const json_t *m); /* `m`: its first frame */
/* `gpu` -1: any, or none. NULL with the cluster's errors, ERR_NOMEM. */
link_pod *pool_start(job_manager *o, pod_role role, int gpu, err *e);
void pool_retry_later(job_manager *o); /* a pod of the pool did not start */
bool pool_is_generic(const link_pod *p, pod_role role, pod_use use); /* and nobody waits for it */
bool pool_waits_for_room(const link_pod *p);

/* pool_fill.c */
void pool_fill(job_manager *o); /* starts missing pods, ends surplus ones */

/* pool_gpu.c */
bool pool_pods_have_gpus(const job_manager *o); /* the cluster gives each function's pod a GPU */
/* The machine's index of the GPU that a pod has reported; -1: none. */
int pool_gpu_shown(job_manager *o, const cluster_gpu *gpu);
int pool_gpu_told(job_manager *o, const json_t *told); /* the same, by `welcome`'s `gpu`, or NULL */
void pool_gpu_forget(job_manager *o, int gpu);         /* if no pod is on it any more */

/* pool_talk.c */
void pool_send_job(job_manager *o, const job_action *a);
void pool_attach(job_manager *o, const job_action *a);
void pool_specialise(job_manager *o, const job_action *a);
void pool_specialise_waiting(job_manager *o);                    /* pods whose turn has come */
void pool_tell(job_manager *o, const char *id, json_t *message); /* to its kubeml-ps; steals */
void pool_send(job_manager *o, link_pod *p, json_t *message);    /* steals */
void pool_send_autotuned(job_manager *o, link_pod *p); /* measured algorithms, to a warm GPU pod */
void pool_broken(job_manager *o, link_pod *p, const err *why); /* its connection has ended */
void pool_readable(job_manager *o, link_pod *p);
/* A job's pod has ended: takes the messages that it sent before, since the cluster may report the
 * end before they have been read. */
void pool_hear_out(job_manager *o, const char *name);

/* job_context.c */
job_context *job_context_find(job_manager *o, const char *id);
job_context *job_context_new(job_manager *o, const char *id);
void job_context_drop(job_manager *o, const char *id);
json_t *job_context_record(const job_manager *o, const job_context *s,
                           const job *j); /* new reference */
/* Renumbers the GPUs in a record by their names, which stay, while numbers may change. Older
 * records have no names. */
void job_context_find_gpus(const job_manager *o, json_t *record);
int job_context_restore(job_manager *o, const json_t *record, job_context **out, err *e);
/* Sets the job's gauges to the figures of its newest epochs, from `from` on. A null figure, as the
 * losses of an epoch that was not validated, leaves the gauge as it is. */
void job_context_show(job_manager *o, const job_context *s, size_t from);
/* Makes the locators by which the job's pods use the store, and saves them in the job's record
 * before a pod receives them. */
int job_context_access(job_manager *o, job_context *s, const job *j, err *e);
/* Revokes them. */
void job_context_revoke(job_manager *o, job_context *s);
/* Revokes the locators of jobs that are gone: those of a crash, and those that ended while the
 * store was away. */
void job_context_revoke_others(job_manager *o);
int job_context_open_object(job_manager *o, job_context *s, err *e);
json_t *jobs_task_json(const json_t *record); /* a record as the API shows it */
/* False: the record has no state. */
bool jobs_record_state(const json_t *record, job_state *out);
/* the same for a job of the machine, with its reason */
json_t *jobs_live_json(job_manager *o, jobs_look *look, const job *j);
jobs_look job_manager_look(const job_manager *o);
void jobs_save(job_manager *o, const job *j);
/* Saves a job that the caller has not announced yet, and drops where this fails: ERR_UNAVAILABLE
 * with the cause, ERR_INVALID, ERR_LIMIT, ERR_NOMEM. */
int jobs_save_new(job_manager *o, const job *j, err *e);
/* How a job ended, in its record and in its history. */
typedef struct job_ending {
    job_state state;
    const char *reason, *message;
} job_ending;

void job_ending_set(const job_ending *ending, json_t *out);
/* Writes how a job ended into its history, so that history and record agree. kubeml-ps writes the
 * history, but does not always know the reason of a stop, and may have been gone by then. Does
 * nothing without a history. Where the store does not take the write, the job manager tries again
 * when the store is back. */
void history_end(job_manager *o, const char *id, const job_ending *ending);
/* Reports to the watch a write of history_end that failed. Called after the records are written:
 * the watch stops all writes when it knows of a failure, and a record may be small enough where a
 * history is not. */
void history_try_again(job_manager *o);
void jobs_save_record(job_manager *o, const char *id, json_t *record); /* borrows it */
/* Notes the model that a job begins with, from its newest record (`saved` is its "job"), for
 * job_delete_hold. */
void held_note(job_manager *o, const char *id, const json_t *saved);
void jobs_save_unsaved(job_manager *o); /* and the ends of jobs, in their histories */
json_t *epochs_of_history(store *st, const char *id);
/* Finds the function and the dataset in their present versions. ERR_NOT_FOUND; ERR_UNSUPPORTED: the
 * request has a goal that no job on that dataset reaches. */
int job_context_resolve(job_manager *o, job_context *s, const request *r, err *e);
/* Checks that the model takes the dataset's samples and labels: ERR_UNSUPPORTED. From any thread;
 * may take seconds. */
int job_context_shape_check(const job_manager *o, const request *r, err *e);
/* Gives the machine the number of training chunks: no more functions have work. */
void job_context_tell_chunks(job_manager *o, const job_context *s);
/* A sentence about what the request asks for in vain: more functions than the dataset has chunks. A
 * new reference; null where there is nothing. */
json_t *job_context_note(const json_t *data, const json_t *asked);

/* job_log.c */
/* A job's pods and what each has written by now: read once, merged for each reader. */
typedef struct log_look {
    pod *pods;
    cluster_log *tails; /* .text NULL: it is not available */
    size_t count;
} log_look;

/* Lists the job's pods, in the job manager's thread. `ended_only`: for a job that runs again. The
 * caller calls logs_free in any case. */
int logs_pods(cluster *c, const char *id, bool ended_only, log_look *out, err *e);
/* Reads what the pods have written. From another thread, since each pod may take seconds. */
void logs_read(cluster *c, log_look *l);
/* Appends the merged logs to `out`. Each pod gets the same share of `out`'s room and fills it with
 * its last lines; a line says how much was left out. With `positions`, merges only what came after
 * them, in whole lines, and moves them on. NULL: everything. */
int logs_merge(const log_look *l, log_position **positions, buf *out, err *e);
/* Lets the cluster delete the logs of pods that had ended; in the job manager's thread. */
void logs_forget(cluster *c, const log_look *l);
void logs_free(log_look *l);
/* Appends a job's stored logs to `out`, one part for each earlier run. Leaves out the oldest parts
 * that do not fit; a line, for which `out` has room, says so. From any thread, as the next
 * three. */
int logs_stored(job_manager *o, const char *id, buf *out, err *e);
int logs_store(job_manager *o, const char *id, const char *text, size_t len, err *e);
int logs_delete(job_manager *o, const char *id, err *e); /* the stored logs */
/* The stored logs, and then all that the job's pods have written. Frees `l`. */
int logs_whole(job_manager *o, const char *id, log_look *l, buf *out, err *e);

/* log_reader.c */
int log_reader_open(job_manager *o, err *e);  /* accepts work from here on */
int log_reader_start(job_manager *o, err *e); /* its thread; the job manager's runs already */
/* Ends the thread, before the job manager's thread ends: stores the logs of ended jobs and does
 * nothing else. */
void log_reader_stop(job_manager *o);
void log_reader_close(job_manager *o);
/* A job's log, from a thread that may wait; ERR_NOT_FOUND, ERR_UNAVAILABLE. The caller returns it
 * by log_reader_give_back. */
int log_reader_read(job_manager *o, const char *id, char **text, size_t *len, err *e);
void log_reader_give_back(job_manager *o, char *text, size_t len);
void log_reader_follow(job_manager *o, follower *f); /* takes it */
/* Puts the logs of the job's pods into the store. `done`: then calls job_archived. */
void log_reader_archive(job_manager *o, const char *id, bool done);

/* job_manager_follow.c */
int follow_place(job_manager *o, const char *id, bool logs, follower **out, err *e);
/* Reads the epochs of an ended job, in the caller's thread, before follow_begin. ERR_UNAVAILABLE:
 * there is no room for them. */
int follow_recall(job_manager *o, follower *f, err *e);
void follow_begin(job_manager *o,
                  follower *f); /* takes it; without a stream, frees its place */
void follow_free(job_manager *o, follower *f); /* closes its stream; from any thread */
void follow_state(job_manager *o, const char *id);
void follow_end(job_manager *o, const char *id); /* after the last event */
void follow_timers(job_manager *o, int64_t now_ms);
int64_t follow_deadline(const job_manager *o);
void follow_close(job_manager *o);

/* job_manager_algorithms.c */
json_t *algorithms_text(job_manager *o); /* a text, a new reference; NULL: none */
/* Stores the measurements that a function reports; "": none. */
void algorithms_take(job_manager *o, const char *told);
/* Whether a function of the same code, data and batch size has measured while this controller
 * ran. */
bool algorithms_measured(const job_manager *o, const job_context *s, const job *j);
void algorithms_note(job_manager *o, const job_context *s, const job *j); /* one has */

/* job_manager_usage.c: what functions use */
/* Borrows `rows` of kubeml-ps's message. */
void usage_take(job_manager *o, const char *id, const json_t *rows);
void usage_drop(job_manager *o, const char *id);

#endif
