/* job_manager_internal.h: what the files of the owner share; nobody else includes it.
 *
 * job_manager.c         the thread, its queue of calls, events and actions of job.h
 * pool.c          pods and the connections to them
 * pool_fill.c     how many warm ones there are
 * pool_gpu.c      the GPUs that pods have shown
 * pool_talk.c     what is said to pods and what they say
 * job_context.c    what the controller keeps of a job beside the machine; records
 * job_log.c    jobs' logs: which pods, merging, the store
 * log_reader.c  the thread that reads them
 * job_manager_api.c     calls of job_manager.h: submit, stop, resume (job_manager_call.h)
 * job_query.c    calls that show jobs, logs and figures
 * job_delete.c    calls that delete what no job uses
 * job_manager_follow.c  event streams
 * job_manager_usage.c   what functions use now
 * job_manager_algorithms.c  what they have measured on GPUs
 *
 * Everything here is touched by the owner's thread alone, except `lock` and what stands behind
 * it, and what the logs' thread has of its own. */
#ifndef KUBEML_JOB_MANAGER_INTERNAL_H
#define KUBEML_JOB_MANAGER_INTERNAL_H

#include <pthread.h>

#include "common/base/name.h"
#include "common/contract/reduce_placement.h"
#include "controller/job/job.h"
#include "job_manager.h"

enum {
    MEASURED_MAX = 256, /* sorts of functions whose shapes are known to be measured */
    POOL_TOKEN_BYTES = 65,
    JOB_SECRET_TEXT_BYTES = 65,
    POD_DIAL_MS = 5, /* between two tries to reach a pod that starts */
    POD_DIAL_MS_MAX = 100,
    /* Together at most 4 s, so that what follows has begun 5 s after a node's loss. The first ends
     * a connection, which costs nothing where the pod lives: it is dialled again all through the
     * second. */
    POD_DEAD_MS = 2000, /* without a sign of its node a pod's connection is over */
    /* then, in a cluster, until a kubeml-ps that cannot be reached is replaced */
    POD_LOST_MS = 1500,
    /* Or, where the controller before may have been lost with the same node, this long: together
     * with the lease's end. A node that lives answers at once, whatever its pod does. */
    POD_ADOPT_MS = 700,
    POD_HELLO_MS = 60000, /* a started pod that takes no connection is replaced */
    POD_GRACE_MS = 1000,  /* for one that is generic to end by itself */
    /* of listening without a word from a kubeml-ps, which says something every two seconds: its
     * process stands still for good */
    POD_HUNG_MS = 120000,
    POD_LISTEN_MS = 5000, /* counts as listening from one look at the connections to the next */
    LOG_EVIDENCE_BYTES = 2048, /* of a pod's log, in the message of its end */
};

/* ---- pods ------------------------------------------------------------------------------------ */

typedef enum pod_use {
    USE_STARTING, /* dialled until it says welcome */
    USE_WARM,     /* generic, idle, in the pool */
    USE_JOB,      /* given to a job */
    USE_SERVE,    /* given away for /infer */
    USE_STOPPING, /* cluster stop was called */
} pod_use;

/* What is awaited on its connection; TURN: it is told nothing while another function measures;
 * LIVE: nothing, it talks of its job. */
typedef enum pod_talk {
    TALK_NONE,
    TALK_WELCOME,
    TALK_ACCEPTED,
    TALK_TURN,
    TALK_SPECIALISED,
    TALK_LIVE
} pod_talk;

typedef struct link_pod {
    char name[CLUSTER_NAME_BYTES];
    pod_role role;
    char address[CLUSTER_ADDRESS_BYTES];
    pod_use use;
    pod_talk talk;
    wire *wire;
    wire *dialled;          /* what `wire` is to be: the connection is begun; or NULL */
    bool more;              /* `wire` may hold messages that have been read: poll knows of none */
    char job[JOB_ID_BYTES]; /* "" */
    int function, incarnation;
    bool attach;     /* say `attach` after welcome */
    bool found;      /* of an earlier controller: it is not ours to make ready */
    int64_t dial_ms; /* next try, or the end of this one; INT64_MAX: none */
    int64_t dial_wait_ms;
    int64_t since_ms;  /* in this use */
    int64_t silent_ms; /* since when its node answers no dial; INT64_MAX: it does */
    int64_t heard_ms;  /* kubeml-ps: the owner's listened_ms when it last said something */
    /* That it was made ready on, or that it has, being elsewhere; -1: none, it can be told any, or
     * it has shown none. */
    int gpu;
    bool vain;                  /* warm, on a GPU without room for the job that waits for one */
    struct take_waiter *waiter; /* of job_manager_take_function */
    bool untaken;               /* by the node that it is placed on */
    bool kept_back;             /* another is to start in its place, anywhere */
    char waits_reason[32];      /* why it does not start, as the cluster says; "" */
    char waits_message[CLUSTER_MESSAGE_BYTES];
    struct link_pod *next;
} link_pod;

/* ---- jobs ------------------------------------------------------------------------------------ */

/* When what of a job's start was done, in clock_monotonic_ms; 0: not yet. */
typedef struct job_times {
    int64_t submitted, granted, ps, functions, training;
} job_times;

enum { JOB_CONTEXT_HASHES = 1024 };

typedef struct job_context {
    char id[JOB_ID_BYTES];
    char secret[JOB_SECRET_TEXT_BYTES];
    char user[NAME_BYTES]; /* who asked for it; "" */
    json_t *function;      /* {"name", "version", "digest", "object"} */
    json_t
        *dataset; /* as the `job` message wants it; with "locator" while job_context_access holds */
    json_t *info; /* dataset_info_json: a trained model is served by it */
    json_t *access; /* of kubeml-ps, opaque; NULL */
    json_t *epochs; /* epoch messages as the API shows them */
    json_t *usage;  /* what its functions use, as kubeml-ps told last; NULL */
    json_t *plan;   /* recorded parallelism to replay, NULL */
    char sha256[72];
    char averaging[REDUCE_TEXT_BYTES]; /* where its models are averaged; "": not decided yet */
    blob *object;                      /* open while functions may be started */
    char object_path[FS_PATH_BYTES];
    char locator[STORE_LOCATOR_BYTES]; /* of the store for kubeml-ps; "": none was made */
    job_times times;
    json_t *start_ms; /* kept with the record */
    uint64_t version; /* of the record as we know it; STORE_NEW: there is none yet */
    bool ended;       /* it is counted, and its history says so */
    struct job_context *next, *next_of_hash;
} job_context;

/* ---- events ---------------------------------------------------------------------------------- */

/* An event with its own texts, waiting for its step. */
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
    uint64_t seen;             /* of all that it wrote; or CLUSTER_LOG_FROM_UNKNOWN */
    char mark[LOG_MARK_BYTES]; /* the last of it: finds the place in a tail of unknown offset */
    size_t mark_len;
    struct log_position *next;
} log_position;

/* A state that is told after so many epochs. */
typedef struct state_due {
    size_t after;
    json_t *task;
    struct state_due *next;
} state_due;

struct follower {
    char id[JOB_ID_BYTES];
    http_stream *stream;
    bool logs;        /* it is the logs' thread's */
    bool ended;       /* nothing new comes */
    buf pending;      /* what the stream had no room for */
    int64_t stuck_ms; /* http_stream_push's */
    /* of events */
    json_t *epochs;    /* the job's, which become more while it runs */
    size_t told;       /* of them */
    state_due *states; /* to be told, in their order */
    char said[512];    /* the last of them */
    size_t recalled;   /* as how many epochs of the past it is counted */
    bool gone;         /* nobody reads it any more */
    int64_t ping_ms, push_ms;
    /* of logs */
    log_position *positions;
    size_t held;     /* as what it is counted */
    int64_t look_ms; /* when it is looked at again */
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
    job_context *sides; /* all, and by the hash of their ids */
    job_context *job_context_by_id[JOB_CONTEXT_HASHES];
    follower *followers;        /* of events */
    atomic_int follower_count;  /* of logs too, and those whose stream is yet to come */
    atomic_size_t pasts_epochs; /* of jobs that have ended, that followers hold */
    log_reader *reader;
    event *events, **events_end;
    int slots;
    cluster_gpu gpu[GPU_COUNT_MAX]; /* where functions are placed, by the machine's index */
    int gpus;
    bool mps;            /* its daemon runs */
    bool gpus_elsewhere; /* `gpu` is what pods have shown, of 0 bytes what is gone; the others 0 */
    /* while a job waits for one: when the next pod is started to learn of another, and the wait
     * after that */
    int64_t look_ms, look_wait_ms;
    bool pumping;
    uint32_t names; /* pods named so far */
    json_t *held;   /* jobs of which something is being deleted, by their id, and functions and
                       datasets that are, as "function/NAME" */
    json_t
        *beginners; /* of jobs suspended before a checkpoint: the id of the model to begin with */
    json_t *algorithms;              /* a text: job_manager_algorithms.c; NULL: not read yet */
    uint64_t measured[MEASURED_MAX]; /* sorts of functions, likewise */
    unsigned measured_count;         /* ever; the oldest give way */
    json_t *unsaved;                 /* records of jobs by their id, for when the store is back */
    json_t *untold; /* likewise how they ended, of which their histories do not say it */
    err untold_why; /* why the store did not take one of these just now */
    json_t *news;   /* ids for job_query_news; NULL: nobody asks */
    int64_t pool_retry_ms;
    int64_t pool_wait_ms; /* until the pool tries again, doubled with each pod that did not start */
    int patience;         /* doubled with pods that were stuck: a node may be slow, too */
    int64_t polled_ms;    /* when the connections were looked at last */
    /* How long they have been listened to: a clock that stands still when we do, stopped, frozen
     * with the machine, or held up by a store. */
    int64_t listened_ms;
    bool stop_pods;

    int wake_fd; /* eventfd */
    pthread_mutex_t lock;
    call *calls, **calls_end;
    bool stopping;
    uint64_t jobs_done;   /* let go so far */
    pthread_cond_t taken; /* a runtime for /infer, or one more of jobs_done */
};

/* job_manager.c */
/* The log of a job that is done has been put away: lets the job go. */
void job_archived(job_manager *o, const char *id);
void job_manager_run(job_manager *o, void (*run)(job_manager *o, void *arg), void *arg);
/* Queues an event; texts are copied. job_manager_pump steps through all of them. */
void job_manager_event(job_manager *o, const job_event *e);
void job_manager_pump(job_manager *o);
/* While another may lead nothing is done; where one did, or for good, the process ends: one that
 * was stopped meanwhile must not go on where it was either. Asked at every turn, and within a turn,
 * which may wait for long, right before what another leader may have written is written over. */
void job_manager_hold_if_fenced(const job_manager *o);

/* pool.c */
link_pod *pool_find(job_manager *o, const char *name);
link_pod *pool_of(job_manager *o, const char *id, int function, int incarnation);
void pool_take(job_manager *o, const job_action *a);
/* of what pool_take started and is not there yet */
void pool_untake(job_manager *o, const job_action *a);
void pool_stop(job_manager *o, const char *name, int grace_ms);
void pool_ended(job_manager *o, const pod *p);
void pool_changed(job_manager *o, const pod *p); /* its address is known, or why it waits */
void pool_find_all(job_manager *o);              /* at start: what the cluster has */
void pool_dialled(job_manager *o, link_pod *p,
                  int64_t now_ms); /* it is writable, or its time is over */
/* The connections were looked at: what had come by then is read in this turn, before
 * pool_timers. */
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
void pool_welcome(job_manager *o, link_pod *p, const json_t *m); /* the first frame it sends */
/* `gpu` -1: for any, or none. NULL with the cluster's errors, ERR_NOMEM. */
link_pod *pool_start(job_manager *o, pod_role role, int gpu, err *e);
void pool_retry_later(job_manager *o); /* one of the pool did not start */
bool pool_is_generic(const link_pod *p, pod_role role, pod_use use); /* and nobody asks for it */
bool pool_waits_for_room(const link_pod *p);

/* pool_fill.c */
void pool_fill(job_manager *o); /* starts what is missing, ends what is too much */

/* pool_gpu.c */
bool pool_pods_have_gpus(const job_manager *o); /* whoever starts one gives each a GPU */
/* The machine's index of the GPU that a pod has shown; -1: none. */
int pool_gpu_shown(job_manager *o, const cluster_gpu *gpu);
int pool_gpu_told(job_manager *o, const json_t *told); /* the same of `gpu` of a welcome, or NULL */
void pool_gpu_forget(job_manager *o, int gpu);         /* if no pod is on it any more */

/* pool_talk.c */
void pool_send_job(job_manager *o, const job_action *a);
void pool_attach(job_manager *o, const job_action *a);
void pool_specialise(job_manager *o, const job_action *a);
void pool_specialise_waiting(job_manager *o);                    /* whose turn has come */
void pool_tell(job_manager *o, const char *id, json_t *message); /* to its kubeml-ps; steals */
void pool_send(job_manager *o, link_pod *p, json_t *message);    /* steals */
void pool_tell_known(job_manager *o, link_pod *p); /* what is measured, where it waits on a GPU */
void pool_broken(job_manager *o, link_pod *p, const err *why); /* its connection has ended */
void pool_readable(job_manager *o, link_pod *p);
/* A job's pod has ended: what it said before that is taken first, since the news of its end may
 * come before its last words have been read. */
void pool_hear_out(job_manager *o, const char *name);

/* job_context.c */
job_context *job_context_find(job_manager *o, const char *id);
job_context *job_context_new(job_manager *o, const char *id);
void job_context_drop(job_manager *o, const char *id);
json_t *job_context_record(const job_manager *o, const job_context *s,
                           const job *j); /* new reference */
/* Gives a record the numbers that its GPUs, which it names, have now; older ones name none. */
void job_context_find_gpus(const job_manager *o, json_t *record);
int job_context_restore(job_manager *o, const json_t *record, job_context **out, err *e);
/* Sets the job's gauges to what its last epochs say, those before `from` left out; what is null in
 * one, as the losses of an epoch that was not validated, leaves what was. */
void job_context_show(job_manager *o, const job_context *s, size_t from);
/* What the job's pods read and write by: made and kept in the job's record, before the first is
 * told. */
int job_context_access(job_manager *o, job_context *s, const job *j, err *e);
/* Takes that back. */
void job_context_revoke(job_manager *o, job_context *s);
/* What was given to jobs that are not here, before a crash or while the store was away, is taken
 * back. */
void job_context_revoke_others(job_manager *o);
int job_context_open_object(job_manager *o, job_context *s, err *e);
json_t *jobs_task_json(const json_t *record); /* a record as the API shows it */
/* False: it says none. */
bool jobs_record_state(const json_t *record, job_state *out);
/* the same for one in the machine, with its reason */
json_t *jobs_live_json(job_manager *o, jobs_look *look, const job *j);
jobs_look job_manager_look(const job_manager *o);
void jobs_save(job_manager *o, const job *j);
/* Of a job that nobody was promised yet, and that is not to be where this fails: ERR_UNAVAILABLE,
 * with the cause, ERR_INVALID, ERR_LIMIT, ERR_NOMEM. */
int jobs_save_new(job_manager *o, const job *j, err *e);
/* How a job ended, in its record and in its history. */
typedef struct job_ending {
    job_state state;
    const char *reason, *message;
} job_ending;

void job_ending_set(const job_ending *ending, json_t *out);
/* The history is kubeml-ps's, which knows of a stop and not always of what it is for, or was gone
 * by then: it says what the record says. Without a history nothing is done; where the store does
 * not take it, it is kept until that is back. */
void history_end(job_manager *o, const char *id, const job_ending *ending);
/* Tells the watch of what history_end tried in vain: behind the records, which may be small enough
 * where a history is not, and are not written while the watch knows of a failure. */
void history_try_again(job_manager *o);
void jobs_save_record(job_manager *o, const char *id, json_t *record); /* borrows it */
/* What a job's newest record (its "job") says of the model that it begins with, for
 * job_delete_hold. */
void held_note(job_manager *o, const char *id, const json_t *saved);
void jobs_save_unsaved(job_manager *o); /* and how jobs ended, in their histories */
json_t *epochs_of_history(store *st, const char *id);
/* Function and dataset as they are now; ERR_NOT_FOUND; ERR_UNSUPPORTED: a goal that no job on that
 * dataset reaches. */
int job_context_resolve(job_manager *o, job_context *s, const request *r, err *e);
/* ERR_UNSUPPORTED: a model that does not take the dataset's samples or labels. From any thread; may
 * take seconds. */
int job_context_shape_check(const job_manager *o, const request *r, err *e);
/* The machine of how many functions have work. */
void job_context_tell_chunks(job_manager *o, const job_context *s);
/* What the request asks for in vain, a sentence: more functions than the dataset has chunks. A new
 * reference, null where there is nothing. */
json_t *job_context_note(const json_t *data, const json_t *asked);

/* job_log.c */
/* A job's pods and what each has written by now: read once, merged for each who wants it. */
typedef struct log_look {
    pod *pods;
    cluster_log *tails; /* .text NULL: it cannot be had */
    size_t count;
} log_look;

/* Which pods; in the owner's thread. `ended_only`: of a job that runs again. logs_free in any
 * case. */
int logs_pods(cluster *c, const char *id, bool ended_only, log_look *out, err *e);
/* What they have written: from another thread, since it may take seconds for each of them. */
void logs_read(cluster *c, log_look *l);
/* Merged, to the end of `out`: of each as much of its end as fits when all get the same share of
 * `out`'s room; a line says how much was left out. With `positions` only what came after them,
 * which are moved on; whole lines. NULL: everything. */
int logs_merge(const log_look *l, log_position **positions, buf *out, err *e);
/* The cluster need not keep the logs of those that had ended; in the owner's thread. */
void logs_forget(cluster *c, const log_look *l);
void logs_free(log_look *l);
/* What was put into the store of a job's logs, of pods that are gone, a part for each run; to the
 * end of `out`, which has room for a line. Of the oldest parts as many are left out as do not fit,
 * and a line says so. From any thread, as the next three. */
int logs_stored(job_manager *o, const char *id, buf *out, err *e);
int logs_store(job_manager *o, const char *id, const char *text, size_t len, err *e);
int logs_delete(job_manager *o, const char *id, err *e); /* what was stored */
/* The two together: what was stored, and then all that its pods have written. Frees `l`. */
int logs_whole(job_manager *o, const char *id, log_look *l, buf *out, err *e);

/* log_reader.c */
int log_reader_open(job_manager *o, err *e);  /* takes work from here on */
int log_reader_start(job_manager *o, err *e); /* its thread; the owner's is there */
/* Before the owner's thread ends: what is to be put away is, nothing else is done any more. */
void log_reader_stop(job_manager *o);
void log_reader_close(job_manager *o);
/* A job's log, from a thread that may wait; ERR_NOT_FOUND, ERR_UNAVAILABLE. The caller gives it
 * back. */
int log_reader_read(job_manager *o, const char *id, char **text, size_t *len, err *e);
void log_reader_give_back(job_manager *o, char *text, size_t len);
void log_reader_follow(job_manager *o, follower *f); /* takes it */
/* Puts the logs of its pods into the store. `done`: calls job_archived then. */
void log_reader_archive(job_manager *o, const char *id, bool done);

/* job_manager_follow.c */
int follow_place(job_manager *o, const char *id, bool logs, follower **out, err *e);
/* Reads the past of a job that has ended, in the thread that asks: before follow_begin.
 * ERR_UNAVAILABLE: there is no room for it. */
int follow_recall(job_manager *o, follower *f, err *e);
void follow_begin(job_manager *o,
                  follower *f); /* takes it; without a stream its place is free again */
void follow_free(job_manager *o, follower *f); /* closes its stream; from any thread */
void follow_state(job_manager *o, const char *id);
void follow_end(job_manager *o, const char *id); /* after the last word */
void follow_timers(job_manager *o, int64_t now_ms);
int64_t follow_deadline(const job_manager *o);
void follow_close(job_manager *o);

/* job_manager_algorithms.c */
json_t *algorithms_known(job_manager *o); /* a text, a new reference; NULL: nothing is */
/* what a function says that it measured; "": nothing */
void algorithms_take(job_manager *o, const char *told);
/* Whether a function of that job has been through measuring, with the same code, data and batch,
 * while this controller ran. */
bool algorithms_measured(const job_manager *o, const job_context *s, const job *j);
void algorithms_note(job_manager *o, const job_context *s, const job *j); /* one has */

/* job_manager_usage.c: what functions use */
/* borrows `rows`, of kubeml-ps's message */
void usage_take(job_manager *o, const char *id, const json_t *rows);
void usage_drop(job_manager *o, const char *id);

#endif
