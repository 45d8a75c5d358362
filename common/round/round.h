/* round.h: kubeml-ps's logic for a whole job, as a pure state machine.
 *
 * `round_step(machine, event)` gives the actions to carry out, in order. The machine has no I/O, no
 * clock and no thread: events carry the monotonic time, and round_deadline gives when the next
 * ROUND_TICK is due at the latest. kubeml-ps turns frames and results into events and actions into
 * frames and calls; the simulator does the same with a fake world. round.c has the state diagram
 * and the invariants.
 *
 * Counting: epochs and rounds from 0, on the wire too. Version 0 is the initial model, every merge
 * adds one. A round number counts the merges of its epoch.
 *
 * Incarnations: one process at a time fills a function index, its incarnation. The replacement of a
 * lost process has the next number; each kubeml-ps begins at a number of its own (incarnation.h).
 *
 * A shared process (request.process): all functions live in function 0's process. The process is
 * needed, joins, is heard, lost and released as function 0, which counts for all functions. Each
 * function trains, publishes and validates its own share. The published shares are merged as one
 * contribution, function 0's. */
#ifndef KUBEML_ROUND_H
#define KUBEML_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/incarnation.h"
#include "common/contract/request.h"

enum {
    ROUND_FUNCTIONS_MAX = REQUEST_PARALLELISM_MAX,
    ROUND_REASON_BYTES = 48,
    ROUND_DIGEST_BYTES = 72,
};

/* All waits and bounds. round_limits_default fills in the values that the comments give. */
typedef struct round_limits {
    int64_t heartbeat_ms;       /* 3.5 s of silence, seven heartbeats: the function is lost */
    int64_t stall_ms;           /* 180 s of heartbeats without progress: lost too */
    /* 600 s for a needed function to join, else the job fails. An elastic job that begins, or that
     * goes on with another epoch after a resume, needs function 0 alone. */
    int64_t function_wait_ms;
    /* 1 s until another try with a GPU that failed, then twice as long each time: MPS takes no new
     * client while old clients of a failed process are there */
    int64_t gpu_wait_ms;
    /* 3 s to learn the exit cause of a function that was not ready or was lost before; then more */
    int64_t end_wait_ms;
    int64_t grow_wait_ms;       /* 30 s for an additional function; then the epoch goes without */
    int64_t ask_ms;             /* 3 s for the controller's answer on parallelism */
    int64_t store_ms;           /* 60 s of back-off for the model store or the store */
    int64_t straggler_ms;       /* 2 s: a function that is less late is no straggler */
    /* 2 ends in a row before `ready`, not counting crashes and ends that the cluster or the GPU
     * caused */
    int start_failures_max;
    int losses_max;             /* 5 losses of one function without a merged contribution */
    int crashes_max;            /* 2 of those losses that are crashes */
    int redis_ends_max;         /* 5 ends of Redis without a merge */
} round_limits;
void round_limits_default(round_limits *l);

typedef struct round_config {
    request request;
    int parallelism;          /* of the first epoch, as the scheduler granted it */
    int functions_max;        /* the most functions of any epoch; sizes the machine's arrays */
    const int *plan;          /* recorded parallelism per epoch to replay, or NULL; copied */
    int plan_epochs;
    uint64_t train_samples, test_samples; /* test_samples 0: no validation */
    uint32_t chunk_samples;
    int generation; /* how often the job's kubeml-ps was started before this process */
    round_limits limits;
} round_config;

/* ---- what has been committed ------------------------------------------------------------- */

/* One row of the ledger: one function's contribution to one merge. The rows of an epoch tile each
 * share [0, share samples) without gap or overlap. */
typedef struct round_row {
    int epoch, round, function, incarnation;
    /* positions in shard_plan_order; end - begin == samples */
    uint64_t samples, sample_begin, sample_end;
    double loss_sum;                            /* over the samples */
    uint32_t batches;
    int slot;      /* where in the model store the contribution lies */
    bool complete; /* ends its share: all chunks of the share (shard_plan_chunk_list) are merged */
} round_row;

/* One merge: base_version and these rows make base_version + 1. The rows are in function order,
 * which is the order of the sum; `samples` is the divisor and the sum of the rows' samples. */
typedef struct round_merge {
    int epoch, round, parallelism;
    int next_epoch, next_round; /* the round that this merge opens; (epoch + 1, 0) after the last */
    int64_t base_version;
    uint64_t samples;
    bool
        as_one; /* the shared process has averaged the rows: one contribution, function 0's */
    size_t count;
    const round_row *rows; /* the machine's, valid until the next step */
} round_merge;

/* One finished epoch, for the history record and the controller. */
typedef struct round_epoch {
    int epoch, parallelism, rounds;
    int64_t version;
    double train_loss;              /* mean over the epoch's samples */
    bool validated;
    double validation_loss, accuracy; /* percent */
    double seconds;                 /* first task to last merge */
    uint64_t samples;
} round_epoch;

/* Where to go on: the history's entry on the epoch in which the job was suspended, or else on the
 * last checkpoint. */
typedef struct round_resume {
    int epoch, parallelism;
    int64_t version;
    const round_row *rows; /* of this epoch, as merged so far; borrowed for the step */
    size_t count;
    bool committed;        /* this epoch is checkpointed and in the history already */
    bool validated;        /* it has an accuracy */
    double accuracy;       /* percent */
    double seconds;        /* spent in this epoch before, 0 if unknown */
} round_resume;

/* ---- events -------------------------------------------------------------------------------- */

typedef enum round_event_type {
    ROUND_TICK, /* time passed, and every frame that functions had sent by then was given */
    /* Begin. `resume` NULL: a fresh job. Otherwise the model of resume->version lies in the model
     * store already. `reason` and `message`: why the job is no longer exact; "": it is exact */
    ROUND_START,
    ROUND_HELLO,       /* function, incarnation: it dialled; answered by WELCOME or REFUSE */
    ROUND_READY,       /* function, incarnation, layout, algorithms */
    ROUND_INITIALISED, /* function, incarnation: function 0 made version 0, which is merged */
    /* ROUND_LOAD succeeded; or RESTORE did, version: -1 where version 0 must be made again */
    ROUND_LOADED,
    ROUND_LOAD_FAILED, /* code, message: of LOAD, INIT's first merge or RESTORE */
    ROUND_PUBLISHED,   /* function, incarnation, epoch, round, samples .. batches */
    ROUND_VALIDATED,   /* function, incarnation, epoch, samples, loss_sum, correct */
    ROUND_HEARTBEAT,   /* function, incarnation, phase, batches */
    ROUND_FAILED,      /* function, incarnation, code, reason, message: it sent `failed` */
    /* function, incarnation, reason, message; `ended`: the process is known dead */
    ROUND_LOST,
    /* epoch, round, version: that merge is committed (now or by an earlier try) */
    ROUND_MERGED,
    /* epoch, round, code, message, function or -1. A round that an earlier try merged is MERGED
     * instead.
     *   ERR_CORRUPT, ERR_NOT_FOUND, ERR_CONFLICT  the contribution of `function` (-1: all) is not
     *                                             there and is trained again
     *   ERR_INVALID                               the contribution is not finite
     *   ERR_STALE                                 another kubeml-ps has gone on, this one ends */
    ROUND_MERGE_FAILED,
    ROUND_COMMITTED,     /* epoch: checkpoint and history are durable */
    ROUND_COMMIT_FAILED, /* code, message */
    /* epoch, value: the controller's answer to ASK. A second, smaller value means that no more
     * functions will come; about an elastic job's first functions it has epoch -1 */
    ROUND_PARALLELISM,
    ROUND_REDIS_GONE, /* message: the model store does not answer; kubeml-ps restarts Redis */
    /* message: Redis runs again, so that the wait for its restart ends; BACK follows when the last
     * call to the old process has returned */
    ROUND_REDIS_RUNS,
    /* Redis answers again. `empty`: its data is gone (RESTORE follows) */
    ROUND_REDIS_BACK,
    ROUND_STOP, /* message: the job is cancelled */
    /* message: the job ends after the next merge, to be resumed there; at once if no merge is under
     * way */
    ROUND_SUSPEND,
} round_event_type;

typedef struct round_event {
    round_event_type type;
    int64_t now_ms; /* clock_monotonic_ms */
    int function, incarnation;
    int epoch, round;
    int64_t version;
    uint64_t samples, sample_begin, sample_end, correct;
    double loss_sum;
    uint32_t batches;
    int value; /* START: functions lost in earlier runs */
    bool ended, empty;
    err_code code;
    const char *phase, *reason, *message;   /* NULL: "" */
    /* digests; READY. START: the algorithms of the job's first run, if it had one */
    const char *layout, *algorithms;
    const round_resume *resume;             /* START, LOADED after RESTORE (NULL: as it was) */
} round_event;

/* ---- actions ------------------------------------------------------------------------------- */

/* The slow actions (LOAD, MERGE, COMMIT, RESTORE and the merge before INITIALISED) are carried out
 * one after the other, in the order given, and each is answered once, in that order. */

typedef enum round_action_type {
    ROUND_NEED, /* ask the controller for a pod: function, incarnation, reason */
    /* ask the controller to stop the pod of (function, incarnation); `message`, unless it is "":
     * why the job goes on without that function */
    ROUND_RELEASE,
    ROUND_WELCOME, /* answer the hello of this step */
    ROUND_REFUSE,  /* answer the hello of this step: code, message; close that connection only */
    ROUND_CLOSE,   /* close the connection of (function, incarnation), if there is one */
    /* create the model store empty if it is not there, send `init` with the seed and slot to
     * function 0; its `initialised` is merged, then becomes INITIALISED or LOAD_FAILED */
    ROUND_INIT,
    ROUND_LOAD,     /* put the model that `request.init` names into the model store as version 0 */
    ROUND_TRAIN,    /* send `train`: function, incarnation, epoch, round, version, parallelism,
                     * batch_begin, batch_count, slot */
    ROUND_VALIDATE, /* send `validate`: function, incarnation, epoch, version, parallelism */
    ROUND_MERGE,    /* merge; repeated unchanged until MERGED, so it must be idempotent */
    /* write checkpoint and history entry `record`; idempotent by its epoch. Only with the weights
     * of record.version: ERR_UNAVAILABLE when the store is not there */
    ROUND_COMMIT,
    /* Redis is empty: restore version `version` (epoch, round), or the newest checkpoint. Answer
     * LOADED, with `resume` if the state is an older one. The `last` try skips files that the disk
     * does not give. Version -1 in the action: no model is merged yet, INIT follows. Version -1 in
     * the answer alone: no copy of the model is left, INIT makes it again */
    ROUND_RESTORE,
    ROUND_PHASE,     /* report to the controller: phase, epoch, round */
    ROUND_EPOCH,     /* report to the controller: record */
    ROUND_ASK,       /* ask the controller: epoch (which is finished), parallelism, seconds */
    ROUND_CONDITION, /* report to the controller: name, status, reason, message */
    ROUND_HALT,      /* send `stop` to (function, incarnation) */
    /* state, reason, message, epochs: write the final record (not when `superseded`) and report to
     * the controller. Later events change nothing */
    ROUND_FINISHED,
} round_action_type;

typedef enum round_state {
    ROUND_SUCCEEDED,
    ROUND_FAILED_STATE,
    ROUND_CANCELLED,
    ROUND_SUSPENDED
} round_state;

typedef struct round_action {
    round_action_type type;
    int function, incarnation;
    int epoch, round, parallelism, slot;
    int64_t version;
    uint32_t batch_begin, batch_count;
    uint64_t seed;
    double seconds;
    round_merge merge;
    round_epoch record;
    err_code code;
    round_state state;
    int epochs;      /* FINISHED: committed epochs */
    bool superseded; /* FINISHED: another kubeml-ps owns the job; write nothing */
    bool status;     /* CONDITION */
    bool last;       /* RESTORE */
    const char *phase, *name; /* static texts */
    char reason[ROUND_REASON_BYTES];
    char message[ERR_MESSAGE_BYTES];
} round_action;

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct round_machine round_machine;

/* ERR_INVALID naming the field, ERR_NOMEM. */
int round_open(const round_config *config, round_machine **out, err *e);
void round_close(round_machine *m); /* NULL is fine */

/* Takes one event. Returns the number of actions to carry out, and the actions in *actions; they
 * stay valid until the next step. Cannot fail: wrong or late events are ignored, or refused by an
 * action where a process waits for an answer. */
size_t round_step(round_machine *m, const round_event *event, const round_action **actions);
/* When the next ROUND_TICK is due; INT64_MAX: no wait is open. An event that comes much later shows
 * that this process did not run meanwhile. */
int64_t round_deadline(const round_machine *m);

/* ---- to look at ------------------------------------------------------------------------------ */

int round_slots(const round_config *config); /* contribution slots the model store must have */
bool round_finished(const round_machine *m);
/* Whether the job no longer needs that function and did not lose it: its end is expected. */
bool round_dismissed(const round_machine *m, int function, int incarnation);
int64_t round_version(const round_machine *m);
double round_seconds(const round_machine *m); /* of the open epoch so far */
int round_losses(const round_machine *m);     /* of functions, since the job began */
/* The slot of that function, if the job waits for it and would train without it if it failed now;
 * else -1. */
int round_waits_for(const round_machine *m, int function);
/* For a controller that attaches: the open needs, the present phase and every condition that is, or
 * was, raised, as actions (valid until the next step). kubeml-ps itself reports ACCESS and past
 * epochs. */
size_t round_tell(round_machine *m, const round_action **actions);

const char *round_event_name(round_event_type t);
const char *round_action_name(round_action_type t);
const char *round_state_name(round_state s); /* "succeeded", "failed", "cancelled", "suspended" */

#endif
