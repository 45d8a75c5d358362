/* round.h: kubeml-ps's side of a whole job, as a pure state machine.
 *
 * `round_step(machine, event)` gives the actions to carry out, in order. There is no I/O, no clock
 * and no thread in it: events carry the monotonic time, and round_deadline says when the next
 * ROUND_TICK is due at the latest. kubeml-ps turns frames and results into events and actions into
 * frames and calls; the simulator does the same with a fake world. round.c has the state diagram
 * and the invariants.
 *
 * Counting: epochs and rounds from 0, on the wire too. Version 0 is the initial model, every merge
 * adds one. A round number counts the merges of its epoch.
 *
 * Incarnations: a function index is filled by one process at a time, its incarnation. A lost one is
 * followed by the next number; those of each kubeml-ps begin anew (incarnation.h).
 *
 * A shared process (request.process): all functions live in function 0's process. It is needed,
 * joins, is heard of, lost and released as function 0, and that counts for all of them; they train,
 * publish and validate each its own share, and what they published is merged as one contribution,
 * function 0's. */
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

/* All waits. round_limits_default fills in what stands beside. */
typedef struct round_limits {
    int64_t heartbeat_ms;       /* 3.5 s of silence, seven heartbeats: the function is lost */
    int64_t stall_ms;           /* 180 s of heartbeats without progress: lost too */
    /* 600 s for a needed function to join, else the job fails; an elastic one that is to begin, or
     * to go on with another epoch after a resume, does without all but function 0 */
    int64_t function_wait_ms;
    /* 1 s until another try with a GPU that failed, then twice as long each time: MPS takes no new
     * client while old ones of one that failed are there */
    int64_t gpu_wait_ms;
    int64_t end_wait_ms;        /* 3 s to learn how one ended, not ready or lost before; then more */
    int64_t grow_wait_ms;       /* 30 s for an additional function; then the epoch goes without */
    int64_t ask_ms;             /* 3 s for the controller's answer on parallelism */
    int64_t store_ms;           /* 60 s of back-off for the model store or the store */
    int64_t straggler_ms;       /* 2 s: the least lateness that is called a straggler */
    /* 2 ends in a row before `ready`, where none is known as a crash, or as the cluster's or the
     * GPU's doing */
    int start_failures_max;
    int losses_max;             /* 5 losses of one function without a merged contribution */
    int crashes_max;            /* 2 of those losses, where they are known as crashes */
    int redis_ends_max;         /* 5 ends of Redis without a merge */
} round_limits;
void round_limits_default(round_limits *l);

typedef struct round_config {
    request request;
    int parallelism;          /* of the first epoch, as the scheduler granted it */
    int functions_max;        /* most functions there can ever be; sizes the machine's arrays */
    const int *plan;          /* recorded parallelism per epoch to replay, or NULL; copied */
    int plan_epochs;
    uint64_t train_samples, test_samples; /* test_samples 0: no validation */
    uint32_t chunk_samples;
    int generation; /* how often the job's kubeml-ps was started before this one */
    round_limits limits;
} round_config;

/* ---- what has been committed ------------------------------------------------------------- */

/* One row of the ledger: what one function put into one merge. Rows of an epoch tile each share
 * [0, share samples) without gap or overlap. */
typedef struct round_row {
    int epoch, round, function, incarnation;
    /* positions in shard_plan_order; end - begin == samples */
    uint64_t samples, sample_begin, sample_end;
    double loss_sum;                            /* over the samples */
    uint32_t batches;
    int slot;      /* where in the model store the contribution lies */
    bool complete; /* ends its share: the share's chunks (shard_plan_chunk_list) all count from here
                      on */
} round_row;

/* One merge: base_version and these rows make base_version + 1. Rows are in function order, which
 * is the order of the sum; `samples` is the divisor and the sum of the rows' samples. */
typedef struct round_merge {
    int epoch, round, parallelism;
    int next_epoch, next_round; /* the round that this merge opens; (epoch + 1, 0) after the last */
    int64_t base_version;
    uint64_t samples;
    bool
        as_one; /* the rows were averaged where they were trained: one contribution, function 0's */
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

/* Where to go on: what the history says of the epoch that the job was suspended in, or else of the
 * last checkpoint. */
typedef struct round_resume {
    int epoch, parallelism;
    int64_t version;
    const round_row *rows; /* of this epoch, as merged so far; borrowed for the step */
    size_t count;
    bool committed;        /* this epoch is checkpointed and in the history already */
    bool validated;        /* and its accuracy is: */
    double accuracy;
    double seconds;        /* spent in this epoch before, 0 if unknown */
} round_resume;

/* ---- events -------------------------------------------------------------------------------- */

typedef enum round_event_type {
    ROUND_TICK, /* time passed, and whatever functions had said by then was told */
    /* Begin. `resume` NULL: a fresh job. Otherwise the model of resume->version lies in the model
     * store already. `reason` and `message`: why it is not exact any more; "": it is */
    ROUND_START,
    ROUND_HELLO,       /* function, incarnation: it dialled; answered by WELCOME or REFUSE */
    ROUND_READY,       /* function, incarnation, layout, algorithms */
    ROUND_INITIALISED, /* function, incarnation: function 0 made version 0, and it is merged */
    /* ROUND_LOAD succeeded; or RESTORE, version: -1 where version 0 is to be made again */
    ROUND_LOADED,
    ROUND_LOAD_FAILED, /* code, message: of LOAD, INIT's first merge or RESTORE */
    ROUND_PUBLISHED,   /* function, incarnation, epoch, round, samples .. batches */
    ROUND_VALIDATED,   /* function, incarnation, epoch, samples, loss_sum, correct */
    ROUND_HEARTBEAT,   /* function, incarnation, phase, batches */
    ROUND_FAILED,      /* function, incarnation, code, reason, message: its own "failed" */
    /* function, incarnation, reason, message; `ended`: the process is known dead */
    ROUND_LOST,
    /* epoch, round, version: that merge is committed (now or by an earlier try) */
    ROUND_MERGED,
    /* epoch, round, code, message, function or -1. ERR_CORRUPT, ERR_NOT_FOUND, ERR_CONFLICT: the
     * contribution of `function` (-1: all) is not there and is trained again; ERR_INVALID: it is
     * not finite; ERR_STALE: some other kubeml-ps has gone on, this one ends at once. A round
     * merged by an earlier try is MERGED instead */
    ROUND_MERGE_FAILED,
    ROUND_COMMITTED,     /* epoch: checkpoint and history are durable */
    ROUND_COMMIT_FAILED, /* code, message */
    /* epoch, value: the controller's answer to ASK; once more, with less: there is no more to wait
     * for. Of an elastic job's first functions that is told with epoch -1 */
    ROUND_PARALLELISM,
    ROUND_REDIS_GONE, /* message: the model store does not answer; kubeml-ps restarts Redis */
    /* message: Redis runs again and need not come back any more; BACK follows when the last call to
     * the old one has returned */
    ROUND_REDIS_RUNS,
    /* Redis answers again. `empty`: its data is gone (RESTORE follows) */
    ROUND_REDIS_BACK,
    ROUND_STOP, /* message: somebody wants the end */
    /* message: the end after the next merge, to be resumed there; at once where none is under
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
    const round_resume *resume;             /* START, LOADED after a put-back (NULL: as it was) */
} round_event;

/* ---- actions ------------------------------------------------------------------------------- */

/* The slow ones (LOAD, MERGE, COMMIT, RESTORE and the merge behind INITIALISED) are carried out
 * one after the other, in the order given, and each is answered once, in that order. */

typedef enum round_action_type {
    ROUND_NEED, /* tell the controller: function, incarnation, reason */
    /* tell the controller to stop the pod of (function, incarnation); `message`, unless it is "":
     * why the job goes on without that function */
    ROUND_RELEASE,
    ROUND_WELCOME, /* answer the hello of this step */
    ROUND_REFUSE,  /* answer the hello of this step: code, message; close that connection only */
    ROUND_CLOSE,   /* close the connection of (function, incarnation), if there is one */
    /* create the model store empty if it is not there, send `init` with the seed and slot to
     * function 0; its `initialised` is merged, then told as INITIALISED, or as LOAD_FAILED */
    ROUND_INIT,
    ROUND_LOAD,     /* put the model `request.init` names into the model store as version 0 */
    ROUND_TRAIN,    /* send `train`: function, incarnation, epoch, round, version, parallelism,
                     * batch_begin, batch_count, slot */
    ROUND_VALIDATE, /* send `validate`: function, incarnation, epoch, version, parallelism */
    ROUND_MERGE,    /* merge; again and again the same until MERGED: it must be idempotent */
    /* write checkpoint and history entry `record`; idempotent by its epoch. Only with the weights
     * of record.version: ERR_UNAVAILABLE when the store is not there */
    ROUND_COMMIT,
    /* Redis is empty: put version `version` (epoch, round) back, or the newest checkpoint; answer
     * LOADED, with `resume` if it is an older state; the `last` try passes over what its disk does
     * not give. Where there is none: what INIT finds (version -1 of the action), or needs (of the
     * answer) */
    ROUND_RESTORE,
    ROUND_PHASE,     /* tell the controller: phase, epoch, round */
    ROUND_EPOCH,     /* tell the controller: record */
    ROUND_ASK,       /* ask the controller: epoch (the finished one), parallelism, seconds */
    ROUND_CONDITION, /* tell the controller: name, status, reason, message */
    ROUND_HALT,      /* send `stop` to (function, incarnation) */
    /* state, reason, message, epochs: write the final record (not when `superseded`) and tell the
     * controller. No event changes anything any more */
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

/* Takes one event. Returns how many actions are to be done and where they are; they stay valid
 * until the next step. Cannot fail: what is wrong or late is refused, by an action where somebody
 * waits for an answer. */
size_t round_step(round_machine *m, const round_event *event, const round_action **actions);
/* When the next ROUND_TICK is due; INT64_MAX: no wait is open. An event that comes much later than
 * that shows that nobody listened meanwhile. */
int64_t round_deadline(const round_machine *m);

/* ---- to look at ------------------------------------------------------------------------------ */

int round_slots(const round_config *config); /* contribution slots the model store must have */
bool round_finished(const round_machine *m);
/* That function is not awaited any more, and not because it was lost: its end is no news. */
bool round_dismissed(const round_machine *m, int function, int incarnation);
int64_t round_version(const round_machine *m);
double round_seconds(const round_machine *m); /* of the open epoch so far */
int round_losses(const round_machine *m);     /* of functions, in all of the job */
/* Its slot, where that function is waited for and the job trains on without it if it fails now; -1.
 */
int round_waits_for(const round_machine *m, int function);
/* For a controller that attaches: the open needs, the present phase and every condition that is, or
 * was, raised, as actions (valid until the next step). ACCESS and past epochs are kubeml-ps's to
 * tell. */
size_t round_tell(round_machine *m, const round_action **actions);

const char *round_event_name(round_event_type t);
const char *round_action_name(round_action_type t);
const char *round_state_name(round_state s); /* "succeeded", "failed", "cancelled", "suspended" */

#endif
