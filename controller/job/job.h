/* job.h: the controller's logic for the lifecycle of all jobs, as a pure state machine.
 *
 * The machine has the queue, slots, pods, restarts of kubeml-ps, cancellation, and the one reason
 * why a job waits or has ended. `jobs_step(machine, event)` gives the actions to carry out, in
 * order. The machine has no I/O, no clock and no thread. The controller turns frames of kubeml-ps,
 * changes of the cluster and results into events, and actions into frames, calls of cluster.h and
 * records. job.c has the state diagram and the invariants.
 *
 * The controller has the warm pool: JOB_TAKE asks for a pod, warm or newly started, and
 * JOB_POD_READY answers once the pod's control address has sent `welcome`. Before JOB_POD_READY the
 * controller labels the pod (cluster assign), so that a restarted controller finds it again.
 *
 * After a restart: jobs_restore for every record, JOB_POD_FOUND for every labelled pod of the
 * cluster's list, JOB_PS_BEFORE for every history, then JOB_ADOPT once. Jobs go on where they are;
 * pods of no known job are stopped. */
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
    JOB_KUBEML_PS = -1,    /* `function` of a job's kubeml-ps; its incarnation: the generation */
};

typedef enum job_state {
    JOB_QUEUED,
    JOB_STARTING, /* has its slots; kubeml-ps and functions start */
    JOB_RUNNING,  /* kubeml-ps trains */
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_CANCELLED,
    /* stopped at a merge; ended, as far as this machine goes, until it is submitted again */
    JOB_SUSPENDED,
} job_state;

typedef struct job_condition {
    char type[JOB_REASON_BYTES]; /* "Straggler", "PoolEmpty", ... */
    bool status;
    char reason[JOB_REASON_BYTES];
    char message[ERR_MESSAGE_BYTES];
    int64_t since_wall_ms; /* lastTransitionTime: when `status` last changed */
} job_condition;

/* A pod of the job, from the request for it to its end. */
typedef enum job_pod_phase {
    JOB_POD_WANTED,      /* waits until `due_ms` for its next TAKE or, with a name, for its work */
    JOB_POD_TAKING,      /* JOB_TAKE is out */
    JOB_POD_TOLD,        /* JOB_SEND, JOB_ATTACH or JOB_SPECIALISE is out */
    JOB_POD_GIVEN,       /* works for the job */
    JOB_POD_STOPPING,    /* JOB_STOP is out; its end is awaited */
    JOB_POD_GONE,        /* ended; JOB_TELL_LOST to kubeml-ps is due */
} job_pod_phase;

typedef struct job_pod {
    int function, incarnation;
    job_pod_phase phase;
    char name[JOB_POD_BYTES]; /* "" while none is taken */
    int64_t due_ms;           /* the phase's deadline, or when to try again */
    int64_t since_ms;         /* when it was first wanted */
    /* TAKING, the cluster has no room for it: when the job begins without it; 0: there is room */
    int64_t room_ms;
    int tries;
    int unplaced;             /* how often its pod came on a GPU without room for it */
    uint8_t gpu;              /* its GPU, counted from 1; 0: not known, or job->gpu has it */
    bool cold;                /* no warm pod was there */
    bool unwanted;            /* TAKING, JOB_UNTAKE is out; if the pod comes, it is stopped */
    bool mute;                /* adopted, and its node has not answered since */
    bool found;               /* adopted: it may have its work or not */
    /* GONE: the reason for JOB_TELL_LOST. Set before only where a found pod was sent its work
     * again: then the reason of its later end */
    char reason[JOB_REASON_BYTES];
    /* the message to `reason`; TAKING: what the pod waits for; STOPPING: the pod's fault, if any */
    char message[ERR_MESSAGE_BYTES];
} job_pod;

/* Read-only outside job*.c. */
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
    int gpu_functions; /* no function from this index on has a GPU */
    int chunks;        /* of its training data; a chunk belongs to one function; 0: not known */
    int functions_max; /* most it can ever have; `slots_max` of the message to kubeml-ps */
    int threads;       /* of each function, fixed at the first start; 0: not started yet */
    int epochs;        /* committed */
    double reference_seconds; /* of the epoch that the policy measures by (policy.h) */
    int decided_epoch; /* the epoch after which `parallelism` was decided; -1: none */
    int trained;       /* functions in that epoch: functions from this index on are additional */
    int64_t grow_ms, grow_wait_ms; /* no more than `most` functions until grow_ms; that wait */
    int most;          /* functions it had when an additional function could not be had */
    char no_more[ERR_MESSAGE_BYTES]; /* why not; "": nothing was refused */
    int generation;    /* how often its kubeml-ps was started before the present process */
    int restarts;      /* of kubeml-ps since the last committed epoch */
    bool resumed;      /* kubeml-ps looks for a ledger or checkpoint */
    bool access;       /* kubeml-ps has sent `access`: how functions join */
    bool connected;    /* to kubeml-ps */
    bool attaching;    /* JOB_ATTACH is out */
    bool verdict;      /* the end is decided: verdict_state, reason, message; not yet carried out */
    job_state verdict_state;
    char phase[16];    /* as kubeml-ps reports it: "training", ... */
    int epoch, round;
    job_condition condition[JOB_CONDITIONS_MAX];
    int conditions;
    job_pod *pod;      /* (pods) */
    int pods, pods_max;
    int64_t due_ms;    /* when the verdict is carried out without kubeml-ps */
    int64_t begun_ms;  /* first started, for active_deadline_seconds; 0: not yet */
    /* QUEUED after a failure: not started before; again_wall_ms is for the record */
    int64_t again_ms, again_wall_ms;
    int retries;       /* so far, of backoff_limit */
    bool unsaved, done_told;
} job;

typedef struct job_limits {
    int64_t pod_ms;        /* 300 s until a taken pod answers */
    int64_t told_ms;       /* 60 s for `accepted` or `specialised` */
    int64_t attach_ms;     /* 15 s without a connection to a living kubeml-ps: it is replaced */
    int64_t adopt_ms;      /* the same for an adopted kubeml-ps whose node has not answered */
    int64_t stop_ms;       /* 10 s from `stop` to `finished`; then the pods are killed */
    int64_t end_ms;        /* 30 s for a stopped pod to end, then it is stopped again */
    int64_t retry_ms;      /* 200 ms to the second try for a pod, doubling to 5 s */
    int ps_restarts_max;   /* 5 without a committed epoch in between */
    int pod_tries_max;     /* 8 for one place in a job */
    int64_t again_ms;      /* 10 s until a failed job's first retry, doubling to 6 min */
    /* 5 s from an additional function that could not be had to the next request for one, doubling
     * to 1 min, or to 10 min if it could not start */
    int64_t grow_again_ms;
    /* 5 s until an elastic job begins without a function that there is no room for: pods of earlier
     * jobs may be ending */
    int64_t room_ms;
    int grace_ms;          /* 2 s for a pod that is asked to end */
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
    JOB_ADOPT, /* JOB_POD_FOUND was given for all pods */
    /* job, function, incarnation, reason, message: there is no warm pod. A cold pod is starting, or
     * the reason why it does not (Unschedulable, ImageNotPulled, QuotaExceeded, ...) */
    JOB_POD_WAITING,
    JOB_POD_READY, /* job, function, incarnation, pod: taken and labelled, has sent `welcome` */
    /* job, function, incarnation, code, message: TAKE failed, or was undone by UNTAKE
     * (ERR_CANCELLED) */
    JOB_POD_FAILED,
    /* job, function, incarnation, message: the pod of TAKE came on a GPU without room for it */
    JOB_POD_UNPLACED,
    JOB_POD_ENDED, /* pod, reason, message (with exit status and the log's end) */
    /* answers to specialise */
    JOB_SPECIALISED,   /* job, function, incarnation, message: why it does not use its GPU, or "" */
    JOB_UNSPECIALISED, /* job, function, incarnation, code, reason, message: `failed`, or the
                        * connection broke (ERR_UNAVAILABLE: the pod is stopped, and kubeml-ps gets
                        * JOB_TELL_LOST) */
    /* kubeml-ps */
    JOB_PS_ACCEPTED, /* job: `accepted`, or the answer to `attach` */
    /* job, code, reason, message; ERR_NOT_FOUND to an attach: it has no job yet. To a SEND also
     * from the controller, if it has nothing to send */
    JOB_PS_REFUSED,
    JOB_PS_CLOSED, /* job, code: the connection broke or failed; ERR_TIMEOUT: its node is silent */
    JOB_PS_SILENT, /* job, message: its connection is open, but no frame has come for long */
    JOB_PS_ACCESS, /* job; the controller stores the contents */
    JOB_PS_NEED,   /* job, function, incarnation, reason */
    /* job, function, incarnation, message: why the job goes on without the function, or "" */
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
    int64_t wall_ms; /* clock_wall_ms, for times that people read */
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
    /* write the job's record (job_record) before the actions that follow. If the store is away, the
     * actions do not wait: pods' labels and the history then show that there was a kubeml-ps */
    JOB_SAVE,
    JOB_TAKE, /* get a pod for function, incarnation; -> POD_READY or POD_FAILED */
    /* that pod is no longer wanted, or (value 1) its time is over: -> POD_FAILED, unless POD_READY
     * is on its way */
    JOB_UNTAKE,
    /* send `job` to kubeml-ps `pod`, with job->resumed, ->generation, ->parallelism */
    JOB_SEND,
    JOB_ATTACH,     /* dial kubeml-ps `pod`, `attach`; -> PS_ACCEPTED, PS_REFUSED or PS_CLOSED */
    JOB_SPECIALISE, /* send `specialise` to `pod`; -> SPECIALISED or UNSPECIALISED */
    JOB_TELL_LOST,  /* to kubeml-ps: function, incarnation, reason, message */
    /* to kubeml-ps: epoch, value; sent again with a smaller value: do not wait for more */
    JOB_TELL_PARALLELISM,
    JOB_TELL_STOP, /* to kubeml-ps: reason; value 1: at the next merge */
    JOB_TELL_BYE,  /* to kubeml-ps */
    JOB_STOP,      /* cluster stop `pod` with grace value ms */
    JOB_CHANGED,   /* state, phase or a condition changed: for clients that follow the job */
    JOB_DONE,      /* ended, no pod left: read what is needed, then jobs_forget */
} job_action_type;

/* `job` belongs to the machine and is valid until its next step. It is NULL in a JOB_STOP of a pod
 * that belongs to no known job. */
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

/* ERR_NOMEM. */
int jobs_open(const job_limits *limits, int slots, jobs **out, err *e);
/* The GPUs that functions are placed on (at most GPU_COUNT_MAX; none until this is called), and
 * whether threads count: they do where MPS limits functions to their share. Call before
 * jobs_restore and the first step. */
void jobs_gpus(jobs *m, gpu_policy policy, bool limits_threads, const uint64_t *memory_bytes,
               int count);
/* Another program assigns GPUs (Kubernetes' device plugin). A GPU is known once a pod shows that it
 * has it; while none is known, functions are not placed. */
void jobs_gpus_elsewhere(jobs *m, gpu_policy policy);
/* The CPUs that functions compute on (1 until this is called): of all functions together, or, with
 * `of_each_pod`, of each function's pod. Call before jobs_restore and the first step. */
void jobs_cpus(jobs *m, int cpus, bool of_each_pod);
void jobs_close(jobs *m);

/* Puts a job into the queue; the next step (a TICK will do) saves and perhaps starts it.
 * ERR_EXISTS, ERR_LIMIT, ERR_NOMEM. */
int jobs_submit(jobs *m, const char *id, const request *r, bool resumed, int64_t wall_ms, err *e);
/* Puts a job that has ended into the queue again, to go on. `generation`, `epochs` (done),
 * `threads` and `wall_ms` (created) come from its record; the next generation fences processes of
 * the job that may still run. Errors as above. */
int jobs_resubmit(jobs *m, const char *id, const request *r, int generation, int epochs,
                  int threads, int64_t wall_ms, err *e);
/* Takes the condition Exact of a resubmitted job from its record: once inexact, a job stays so. */
void jobs_recall(jobs *m, const char *id, const json_t *record);
/* The number of training chunks in the job's dataset: an elastic job gets no more functions than
 * chunks. Call before the first step after jobs_submit, jobs_resubmit or jobs_restore; records do
 * not have the number. */
void jobs_chunks(jobs *m, const char *id, int chunks);
/* Restores a job from its record, ignoring unknown fields; no step starts anything until JOB_ADOPT.
 * ERR_INVALID naming the field, ERR_EXISTS, ERR_LIMIT, ERR_NOMEM. */
int jobs_restore(jobs *m, const json_t *record, err *e);
/* Drops a job after JOB_DONE, or a job that no step has seen yet. ERR_NOT_FOUND; ERR_CONFLICT while
 * it has not ended. */
int jobs_forget(jobs *m, const char *id, err *e);

/* ---- GPUs of pods, after jobs_gpus_elsewhere; between steps ---------------------------------- */

/* Adds a GPU that a pod shows for the first time. Returns its index, which another GPU may get once
 * this GPU is gone; -1: there are too many. `was`: the index that the GPU had before it was gone,
 * at which functions may still be booked; -1: none. */
int jobs_gpu_add(jobs *m, int was, uint64_t memory_bytes, bool limits_threads);
void jobs_gpu_gone(jobs *m, int gpu); /* no pod has it any more: no function is placed on it */
bool jobs_gpu_places(const jobs *m, const char *id); /* its functions are placed on GPUs */
/* The GPU for a function whose JOB_TAKE is out, chosen among the GPUs that idle pods offer; -1:
 * none has room for it. */
int jobs_gpu_choose(const jobs *m, const char *id, int function, const bool offered[GPU_COUNT_MAX]);
bool jobs_gpu_fits(const jobs *m, const char *id, int function, int gpu); /* may be on it */
/* Books the function on the GPU of its pod, before JOB_POD_READY. */
void jobs_gpu_book(jobs *m, const char *id, int function, int incarnation, int gpu);
/* A queued job that does not start only because the known GPUs lack room, and the pods that it
 * needs: the next of the queue; else the first of the queue, if no known GPU could hold it (other
 * jobs overtake it). NULL: there is none. */
const job *jobs_gpu_waiting(const jobs *m, int *pods);
/* Books the share of one pod of the job; false: there is no room. */
bool job_gpu_fill(const job *j, gpu_state *gpu);

/* Takes one event. Returns the number of actions to carry out, and the actions in *actions, which
 * stay valid until the next step. */
size_t jobs_step(jobs *m, const job_event *event, const job_action **actions);
int64_t jobs_deadline(const jobs *m); /* the next TICK; INT64_MAX: no wait is open */

/* ---- to look at ------------------------------------------------------------------------------ */

const job *jobs_find(const jobs *m, const char *id); /* NULL: unknown */
size_t jobs_count(const jobs *m);
const job *jobs_at(const jobs *m, size_t index); /* in order of submission */
int job_gpu(const job *j, int function);         /* the index of the function's GPU; -1: none */
void jobs_gpu_states(const jobs *m, gpu_state out[GPU_COUNT_MAX]); /* what is booked on each */
int jobs_slots_free(const jobs *m);
bool jobs_waiting(const jobs *m); /* a queued job waits for slots: do not refill the pool */

/* The fields of a job that survive a restart; the caller may add its own. A new reference, NULL
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

/* A look at a machine, by which jobs_explain_in explains many jobs: it finds out once what waiting
 * jobs have in common. Begin with machine and now_ms alone. Valid until the machine's next step; a
 * machine has one look at a time. */
typedef struct jobs_look {
    const jobs *machine;
    int64_t now_ms;
    bool known;    /* the fields below are filled in */
    size_t queued; /* jobs in the machine's `queue`: they wait for slots and may get them */
    int slots_free;
    char holders[128];                   /* "a (2), b (1)" */
    char first_reason[JOB_REASON_BYTES]; /* of the first queued job */
    gpu_state gpu[GPU_COUNT_MAX];
} jobs_look;
void jobs_explain_in(jobs_look *l, const job *j, job_reason *out);

#endif
