/* job.h: the controller's side of all jobs' lifecycle, as a pure state machine.
 *
 * Queue, slots, pods, kubeml-ps's restarts, cancellation, and the one reason a job waits or ended.
 * `jobs_step(machine, event)` gives the actions to carry out, in order; there is no I/O, no clock
 * and no thread in it. The controller turns frames of kubeml-ps, the cluster's changes and results
 * into events, and actions into frames, calls of cluster.h and records. job.c has the state diagram
 * and the invariants.
 *
 * The warm pool is the controller's: JOB_TAKE asks for a pod, warm or started anew, and
 * JOB_POD_READY answers once its control address said welcome. The controller labels it (cluster
 * assign) before it says so, which is what lets a restarted controller find it again.
 *
 * After a restart: jobs_restore for every record, JOB_POD_FOUND for every labelled pod of the
 * cluster's list, JOB_PS_BEFORE for every history, then JOB_ADOPT once. Jobs go on where they are;
 * pods nobody knows are stopped. */
#ifndef KUBEML_JOB_H
#define KUBEML_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/limits.h"
#include "common/contract/request.h"

enum {
    JOB_ID_BYTES = 40,
    JOB_POD_BYTES = 64,
    JOB_REASON_BYTES = 48,
    JOB_CONDITIONS_MAX = 12,
    JOB_COUNT_MAX = 10000, /* queued, running or not yet forgotten */
    JOB_THREADS_MAX = LIMITS_THREADS_MAX, /* of a function */
    JOB_KUBEML_PS = -1,    /* `function` of a job's kubeml-ps; its incarnation is the generation */
};

typedef enum job_state {
    JOB_QUEUED,
    JOB_STARTING, /* has its slots; kubeml-ps and functions are being started */
    JOB_RUNNING,  /* kubeml-ps trains */
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_CANCELLED,
    /* stopped at a merge; ended as the others here, until it is submitted again to go on */
    JOB_SUSPENDED,
} job_state;

typedef struct job_condition {
    char type[JOB_REASON_BYTES]; /* "Straggler", "PoolEmpty", ... */
    bool status;
    char reason[JOB_REASON_BYTES];
    char message[ERR_MESSAGE_BYTES];
    int64_t since_wall_ms; /* lastTransitionTime: when `status` last changed */
} job_condition;

/* A pod of the job, from the wish for it to its end. */
typedef enum job_pod_phase {
    JOB_POD_WANTED,      /* waits: for the next try at `due_ms`, with a name to tell it anew */
    JOB_POD_TAKING,      /* JOB_TAKE is out */
    JOB_POD_TOLD,        /* JOB_SEND, JOB_ATTACH or JOB_SPECIALISE is out */
    JOB_POD_GIVEN,       /* works for the job */
    JOB_POD_STOPPING,    /* JOB_STOP is out; its end is awaited */
    JOB_POD_GONE,        /* ended; kubeml-ps is still to be told */
} job_pod_phase;

typedef struct job_pod {
    int function, incarnation;
    job_pod_phase phase;
    char name[JOB_POD_BYTES]; /* "" while none is taken */
    int64_t due_ms;           /* the phase's deadline, or when to try again */
    int64_t since_ms;         /* when it was first wanted */
    int64_t room_ms;          /* TAKING, no room for it: when the job begins without; 0: there is */
    int tries;
    int unplaced;             /* times that one came on a GPU without room for it */
    uint8_t gpu;              /* where it is, counted from 1; 0: not known, or its function's */
    bool cold;                /* no warm pod was there */
    bool unwanted;            /* TAKING, JOB_UNTAKE is out; stopped if it is there all the same */
    bool mute;                /* adopted, and its node has not answered since */
    bool found;               /* adopted: it may or may not have been told what to do */
    /* GONE: what kubeml-ps is to be told; before, of one that was found and told again what to do:
     * what its end will be for */
    char reason[JOB_REASON_BYTES];
    /* that too; TAKING: what it waits for; STOPPING: why, where that was its doing */
    char message[ERR_MESSAGE_BYTES];
} job_pod;

/* Read-only for everybody but job.c. */
typedef struct job {
    char id[JOB_ID_BYTES];
    request request;
    job_state state;
    char reason[JOB_REASON_BYTES]; /* of a terminal state */
    char message[ERR_MESSAGE_BYTES];
    int64_t created_wall_ms, started_wall_ms, finished_wall_ms; /* 0: not yet */
    uint64_t order;    /* place in the queue among equal priorities */
    int parallelism;   /* granted functions, 0 while queued */
    uint8_t gpu[REQUEST_PARALLELISM_MAX]; /* of each function, counted from 1; 0: none (job_gpu) */
    int gpu_functions; /* no function from here on has one */
    int chunks;        /* of what it trains on, each of which is one function's; 0: not known */
    int functions_max; /* most it can ever have; `slots_max` of the message to kubeml-ps */
    int threads;       /* of each function, from its first start on; 0: it was not started yet */
    int epochs;        /* committed */
    double reference_seconds; /* of the epoch that the policy measures by (policy.h) */
    int decided_epoch; /* the epoch that `parallelism` was decided after; -1 */
    int trained;       /* functions in that epoch: those from here on are additional */
    int64_t grow_ms, grow_wait_ms; /* until then no more functions than `most`; how long that was */
    int most;          /* it had when an additional one could not be had, */
    char no_more[ERR_MESSAGE_BYTES]; /* and why; "" */
    int generation;    /* kubeml-ps of this job started before the present one */
    int restarts;      /* of kubeml-ps since the last committed epoch */
    bool resumed;      /* kubeml-ps is to look for a ledger or checkpoint */
    bool access;       /* kubeml-ps said how functions join */
    bool connected;    /* to kubeml-ps */
    bool attaching;    /* JOB_ATTACH is out */
    bool verdict;      /* the end is decided: verdict_state, reason, message; not yet carried out */
    job_state verdict_state;
    char phase[16];    /* kubeml-ps's: "training", ... */
    int epoch, round;
    job_condition condition[JOB_CONDITIONS_MAX];
    int conditions;
    job_pod *pod;      /* (pods) */
    int pods, pods_max;
    int64_t due_ms;    /* of the verdict */
    int64_t begun_ms;  /* first started, for active_deadline_seconds; 0: not yet */
    /* QUEUED after a failure: not before; the calendar's for the record */
    int64_t again_ms, again_wall_ms;
    int retries;       /* of backoff_limit */
    bool unsaved, done_told;
} job;

typedef struct job_limits {
    int64_t pod_ms;        /* 300 s until a taken pod answers */
    int64_t told_ms;       /* 60 s for `accepted` or `specialised` */
    int64_t attach_ms;     /* 15 s without a connection to a living kubeml-ps: it is replaced */
    int64_t adopt_ms;      /* the same of one that was adopted, and whose node has not answered */
    int64_t stop_ms;       /* 10 s from `stop` to `finished`; then the pods are killed */
    int64_t end_ms;        /* 30 s for a stopped pod to end, then it is stopped again */
    int64_t retry_ms;      /* 200 ms to the second try for a pod, doubling to 5 s */
    int ps_restarts_max;   /* 5 without a committed epoch in between */
    int pod_tries_max;     /* 8 for one place in a job */
    int64_t again_ms;      /* 10 s until a failed job's first retry, doubling to 6 min */
    /* 5 s after an additional function could not be had until another is asked for, doubling to a
     * minute, and to ten where it could not start */
    int64_t grow_again_ms;
    /* 5 s until an elastic job begins without a function that there is no room for: the pods of
     * jobs before may be ending */
    int64_t room_ms;
    int grace_ms;          /* 2 s given to a pod that is asked to end */
} job_limits;
void job_limits_default(job_limits *l);

/* ---- events -------------------------------------------------------------------------------- */

typedef enum job_event_type {
    JOB_TICK,
    JOB_SLOTS,   /* value: function slots of the cluster */
    JOB_CANCEL,  /* job, message */
    JOB_SUSPEND, /* job, message: stop at the next merge */
    /* the cluster and the pool; `function` JOB_KUBEML_PS for kubeml-ps */
    JOB_POD_FOUND, /* after a restart: job, function, incarnation, pod, value: its GPU, from 1 */
    /* then: job, incarnation: the generation of the kubeml-ps that wrote its history last */
    JOB_PS_BEFORE,
    JOB_ADOPT, /* all found pods are told */
    /* job, function, incarnation, reason, message: no warm one, a cold one is starting, or why it
     * does not (Unschedulable, ImageNotPulled, QuotaExceeded, ...) */
    JOB_POD_WAITING,
    JOB_POD_READY, /* job, function, incarnation, pod: taken, labelled, said welcome */
    /* job, function, incarnation, code, message: TAKE did not work, or was taken back
     * (ERR_CANCELLED) */
    JOB_POD_FAILED,
    /* job, function, incarnation, message: what TAKE started came on a GPU without room for it */
    JOB_POD_UNPLACED,
    JOB_POD_ENDED, /* pod, reason, message (with exit status and the log's end) */
    /* answers to specialise */
    JOB_SPECIALISED,   /* job, function, incarnation, message: why it does not use its GPU, or "" */
    JOB_UNSPECIALISED, /* job, function, incarnation, code, reason, message: `failed`, or the
                        * connection broke (ERR_UNAVAILABLE: it is stopped, and kubeml-ps told) */
    /* kubeml-ps */
    JOB_PS_ACCEPTED, /* job: `accepted`, or the attach was answered */
    /* job, code, reason, message; ERR_NOT_FOUND for an attach: it has no job yet. For a SEND also
     * from the controller, which has nothing to send */
    JOB_PS_REFUSED,
    JOB_PS_CLOSED, /* job, code: it broke or was not made; ERR_TIMEOUT: its node is silent */
    JOB_PS_SILENT, /* job, message: its connection stands, and nothing was said on it for long */
    JOB_PS_ACCESS, /* job; the controller keeps the contents */
    JOB_PS_NEED,   /* job, function, incarnation, reason */
    /* job, function, incarnation, message: why the job goes on without it, or "" */
    JOB_PS_RELEASE,
    JOB_PS_PHASE,     /* job, phase, epoch, round */
    JOB_PS_EPOCH,     /* job, epoch, value: parallelism, seconds */
    JOB_PS_ASK,       /* job, epoch, value: parallelism, seconds */
    JOB_PS_CONDITION, /* job, name, status, reason, message */
    JOB_PS_FINISHED,  /* job, state, reason, message, value: epochs */
} job_event_type;

typedef struct job_event {
    job_event_type type;
    int64_t now_ms;  /* clock_monotonic_ms */
    int64_t wall_ms; /* clock_wall_ms, for what people read */
    const char *job, *pod;
    int function, incarnation;
    int epoch, round, value;
    double seconds;
    bool status;
    err_code code;
    job_state state;
    const char *phase, *name, *reason, *message; /* NULL: "" */
} job_event;

/* ---- actions ------------------------------------------------------------------------------- */

typedef enum job_action_type {
    /* write the job's record (job_record) before what follows, which waits for no store that is
     * away: pods' labels and the history know of a kubeml-ps then */
    JOB_SAVE,
    JOB_TAKE, /* get a pod for function, incarnation; -> POD_READY or POD_FAILED */
    /* that pod is wanted no more, or (value 1) has had its time: -> POD_FAILED, unless it is on its
     * way already */
    JOB_UNTAKE,
    /* send `job` to kubeml-ps `pod`, with job->resumed, ->generation, ->parallelism */
    JOB_SEND,
    JOB_ATTACH,     /* dial kubeml-ps `pod`, `attach`; -> PS_ACCEPTED, PS_REFUSED or PS_CLOSED */
    JOB_SPECIALISE, /* send `specialise` to `pod`; -> SPECIALISED or UNSPECIALISED */
    JOB_TELL_LOST,  /* to kubeml-ps: function, incarnation, reason, message */
    /* to kubeml-ps: epoch, value; a second time, with less: do not wait for more */
    JOB_TELL_PARALLELISM,
    JOB_TELL_STOP, /* to kubeml-ps: reason; value 1: at the next merge */
    JOB_TELL_BYE,  /* to kubeml-ps */
    JOB_STOP,      /* cluster stop `pod` with grace value ms */
    JOB_CHANGED,   /* state, phase or a condition changed: for those who follow the job */
    JOB_DONE,      /* ended, no pod left: take what is needed, then jobs_forget */
} job_action_type;

/* `job` belongs to the machine and is valid until its next step. `job` is NULL in a JOB_STOP of a
 * pod that no known job has. */
typedef struct job_action {
    job_action_type type;
    const job *job;
    char pod[JOB_POD_BYTES];
    int function, incarnation;
    int epoch, value;
    char reason[JOB_REASON_BYTES], message[ERR_MESSAGE_BYTES];
} job_action;

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct jobs jobs;

int jobs_open(const job_limits *limits, int slots, jobs **out, err *e);
/* The GPUs that functions are placed on (at most GPU_COUNT_MAX; none until this is called), and
 * whether threads count, which they do where MPS holds functions to them. Before jobs_restore and
 * the first step. */
void jobs_gpus(jobs *m, gpu_policy policy, bool limits_threads, const uint64_t *memory_bytes,
               int count);
/* Somebody else hands out GPUs (Kubernetes' device plugin), and none is known until a pod shows the
 * one that it has: while none is known, functions are not placed. */
void jobs_gpus_elsewhere(jobs *m, gpu_policy policy);
/* The CPUs that functions compute on (1 until this is called): all of them together, or, where
 * `of_each_pod`, each one's pod for itself. Before jobs_restore and the first step. */
void jobs_cpus(jobs *m, int cpus, bool of_each_pod);
void jobs_close(jobs *m);

/* Puts a job into the queue; the next step (a TICK will do) saves and perhaps starts it.
 * ERR_EXISTS, ERR_LIMIT, ERR_NOMEM. */
int jobs_submit(jobs *m, const char *id, const request *r, bool resumed, int64_t wall_ms, err *e);
/* Puts one that has ended into the queue again, to go on; `generation`, `epochs` (done), `threads`
 * and `wall_ms` (created) are those of its record: the next generation fences what may still run of
 * it. Errors as above. */
int jobs_resubmit(jobs *m, const char *id, const request *r, int generation, int epochs,
                  int threads, int64_t wall_ms, err *e);
/* What made its weights other ones than its request's stays so: of one that was resubmitted, by its
 * record. */
void jobs_recall(jobs *m, const char *id, const json_t *record);
/* The training chunks of its data set: an elastic job comes to no more functions than have work.
 * Before the first step after jobs_submit, jobs_resubmit or jobs_restore; it is in no record. */
void jobs_chunks(jobs *m, const char *id, int chunks);
/* Takes back a job from its record, fields it does not know left aside; no step starts anything
 * until JOB_ADOPT. ERR_INVALID naming the field, ERR_EXISTS, ERR_LIMIT, ERR_NOMEM. */
int jobs_restore(jobs *m, const json_t *record, err *e);
/* Drops a job after JOB_DONE, or one that no step has seen yet. ERR_NOT_FOUND; ERR_CONFLICT while
 * it has not ended. */
int jobs_forget(jobs *m, const char *id, err *e);

/* ---- GPUs of pods, after jobs_gpus_elsewhere; between steps ---------------------------------- */

/* A GPU that a pod shows and that none had: its index, until that is another's; -1: there are too
 * many. `was`, or -1: the index that it had before it was gone, at which functions may be booked
 * still. */
int jobs_gpu_add(jobs *m, int was, uint64_t memory_bytes, bool limits_threads);
void jobs_gpu_gone(jobs *m, int gpu); /* no pod has it any more: nothing new goes there */
bool jobs_gpu_places(const jobs *m, const char *id); /* its functions go by what GPUs have */
/* Which of the GPUs offered, by idle pods, a function that JOB_TAKE asks a pod for is to be on; -1:
 * none has room for it. */
int jobs_gpu_choose(const jobs *m, const char *id, int function, const bool offered[GPU_COUNT_MAX]);
bool jobs_gpu_fits(const jobs *m, const char *id, int function, int gpu); /* may be there */
/* Books it where the pod is that it gets, before JOB_POD_READY. */
void jobs_gpu_book(jobs *m, const char *id, int function, int incarnation, int gpu);
/* The next job of the queue, where it is for want of room on the known GPUs alone that it does not
 * start, and how many pods it needs; otherwise one before it that none of them could hold, and that
 * holds nobody up. NULL: none waits for that. */
const job *jobs_gpu_waiting(const jobs *m, int *pods);
/* Books what one pod of the job takes; false: there is no room. */
bool job_gpu_fill(const job *j, gpu_state *gpu);

size_t jobs_step(jobs *m, const job_event *event, const job_action **actions);
int64_t jobs_deadline(const jobs *m); /* the next TICK; INT64_MAX: no wait is open */

/* ---- to look at ------------------------------------------------------------------------------ */

const job *jobs_find(const jobs *m, const char *id); /* NULL: unknown */
size_t jobs_count(const jobs *m);
const job *jobs_at(const jobs *m, size_t index); /* in order of submission */
int job_gpu(const job *j, int function);         /* the index of its GPU; -1: none */
void jobs_gpu_states(const jobs *m, gpu_state out[GPU_COUNT_MAX]); /* what is booked on each */
int jobs_slots_free(const jobs *m);
bool jobs_waiting(const jobs *m); /* a queued job waits for slots: do not refill the pool */

/* Everything that survives a restart; the caller may add fields of its own. New reference, NULL
 * when memory is gone. */
json_t *job_record(const job *j);
const char *job_state_name(job_state s);
bool job_state_from_name(const char *name, job_state *out);
bool job_ended(const job *j);

/* The one dominant reason why the job is where it is, with its evidence. */
typedef struct job_reason {
    /* NoFreeSlot, NoGpuMemory, PoolEmpty, Straggler, RedisGone, NaNLoss, ... */
    char reason[JOB_REASON_BYTES];
    char message[ERR_MESSAGE_BYTES];
} job_reason;
void jobs_explain(const jobs *m, const job *j, int64_t now_ms, job_reason *out);

/* One look at a machine, of which many jobs are explained: what those that wait have in common is
 * found out once. Begins with machine and now_ms alone, and is good until the machine's next step;
 * one at a time. */
typedef struct jobs_look {
    const jobs *machine;
    int64_t now_ms;
    bool known;    /* and with it what follows */
    size_t queued; /* that wait for slots and may get them, in the machine's `queue` */
    int slots_free;
    char holders[128];                   /* "a (2), b (1)" */
    char first_reason[JOB_REASON_BYTES]; /* of the first that is queued */
    gpu_state gpu[GPU_COUNT_MAX];
} jobs_look;
void jobs_explain_in(jobs_look *l, const job *j, job_reason *out);

#endif
