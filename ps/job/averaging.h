/* averaging.h: averages models on GPUs, where every function is a process of its own: a pure state
 * machine beside the round machine (round.h).
 *
 * `averaging_step(machine, event)` returns the actions to carry out, in order. The machine does no
 * I/O, reads no clock, starts no thread and calls nobody. It reports failures to the round machine
 * by the action AVERAGING_FAILED. ps/job/job_step.c feeds it and carries its actions out.
 *
 * On one GPU (averaging.c) functions average by CUDA IPC:
 *   1. In `ready`, each function reports an IPC handle of its model (`loan` on the wire).
 *   2. When all handles are there, function 0 is asked to be the reduce root (`lead` on the wire):
 *      it opens the handles and allocates memory for the mean.
 *   3. From then on functions leave trained models on the GPU. Instead of publishing them they
 *      report fingerprints (`seal` on the wire).
 *   4. When all fingerprints are there, the root averages the models in function order and
 *      publishes the mean, which is merged as one contribution.
 * So the model store, the ledger and the checkpoints hold what they always hold. A function that
 * cannot take the mean from the root's memory fetches it from the model store.
 *
 * On several GPUs (averaging_ranks.c), where the job has `merge: nccl`, functions average by NCCL:
 *   1. In `ready`, each function reports the GPU on which it would be a rank.
 *   2. When all have, and no two are on one GPU, trained models stay on the GPUs.
 *   3. When a round is to be merged, all functions that are not training form a communicator:
 *      function 0 makes its id (`identify`), and all join (`connect`). The communicator stays as
 *      long as these are the same processes.
 *   4. All ranks are asked to average. Function 0, rank 0, publishes the mean.
 * A rank that ends, or an error of NCCL, ends the communicator. The other ranks are sent `leave`,
 * which they receive while they wait, and their trained models stay. The next communicator is tried
 * when the lost contribution is there again.
 *
 * A model on a GPU is lost with its function, and may turn out to be unreadable. To the round
 * machine this is a contribution that the model store does not have: one function trains again, or
 * all do. After AVERAGING_FAILURES_MAX failures in a row the host averages. */
#ifndef KUBEML_PS_AVERAGING_H
#define KUBEML_PS_AVERAGING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/reduce_placement.h"
#include "common/round/round.h"

enum {
    AVERAGING_HANDLE_BYTES = 512,
    AVERAGING_GPU_BYTES = 64,
    AVERAGING_SUM_BYTES = 20,
    AVERAGING_CALL_MS = 60000,  /* for the functions' answers to a question */
    AVERAGING_FAILURES_MAX = 3, /* in a row; then the host averages */
};

typedef struct averaging averaging;

typedef struct averaging_config {
    int parallelism;    /* of the first epoch */
    bool own_processes; /* no function shares its process with another */
    bool whole_state;   /* the optimizer's state is averaged with the weights */
    bool nccl;          /* `merge: nccl` */
    /* How models travel where the host averages, see reduce_placement.h; borrowed, and read from
     * the first event on. */
    const char *tensor_path;
} averaging_config;

/* What `ready` reports of the GPU; NULL: not reported. */
typedef struct averaging_offer {
    /* at most one of both; no_handle: why other processes cannot read the model */
    const char *handle, *no_handle;
    /* one of both with `merge: nccl`; no_gpu: why the function cannot be a rank */
    const char *gpu, *no_gpu;
} averaging_offer;

typedef enum averaging_event_type {
    AVERAGING_WELCOME, /* function, incarnation, slot: that process has joined */
    AVERAGING_GONE,    /* function, incarnation: its connection has ended; handled at SETTLE */
    /* function, offer. Comes before the round machine's READY, so that function 0 is asked to be
     * the root before its first task. */
    AVERAGING_OFFER,
    AVERAGING_TRAIN, /* function, epoch, round, parallelism: this task is about to be sent */
    /* function, incarnation, epoch, round; sum, step: the fingerprint of the model that stays on
     * the GPU. sum NULL: the model is in the model store. */
    AVERAGING_PUBLISHED,
    AVERAGING_MERGE, /* merge: answered by POST, now or later, or by FAILED at SETTLE */
    /* Functions' answers, each with function and incarnation, and with code and message where there
     * is nothing else to report. */
    AVERAGING_LEADS,      /* handle: of the memory for the mean */
    AVERAGING_AVERAGED,   /* ask; sum, step, checksum; or about, unpublished; store_down */
    AVERAGING_IDENTIFIED, /* set, id */
    AVERAGING_CONNECTED,  /* set */
    /* The model store was restored: a mean on a GPU is not its reference any more. */
    AVERAGING_RESTORE,
    AVERAGING_TICK, /* store_down: averaging_deadline has come */
    /* A step of the round machine is over, or an event outside a step. Gives up the work of lost
     * processes and reports a failure. */
    AVERAGING_SETTLE,
} averaging_event_type;

typedef struct averaging_event {
    averaging_event_type type;
    int64_t now_ms;
    int function, incarnation;
    int slot, epoch, round, parallelism;
    averaging_offer offer;
    const round_merge *merge;
    const char *sum, *checksum, *handle, *id; /* all texts are borrowed for the step */
    json_int_t step;
    int ask, set;
    int about;        /* the function whose model caused the failure; -1: unknown */
    bool unpublished; /* there was a mean, which could not be published */
    bool store_down;  /* the model store may have caused the failure, which is not counted */
    err_code code;    /* ERR_NONE: success */
    const char *message;
} averaging_event;

typedef enum averaging_action_type {
    AVERAGING_SEND, /* `frame` (borrowed) to `function`, which is connected */
    /* Merge `merge`: the mean that function 0's incarnation `mean_of` published; -1: the
     * contributions in the model store */
    AVERAGING_POST,
    AVERAGING_FAILED,  /* report `failure` to the round machine */
    AVERAGING_PATH,    /* report to controllers, and log: path, text */
    AVERAGING_INEXACT, /* the condition Exact is False from now on: reason, text */
    AVERAGING_INFO,    /* text, for the log */
    AVERAGING_WARN,    /* the same */
} averaging_action_type;

/* Texts, frames and merges are the machine's, or the event's, until the next step. */
typedef struct averaging_action {
    averaging_action_type type;
    int function;
    json_t *frame;
    const round_merge *merge;
    int mean_of;
    const round_event *failure;
    reduce_path path;
    const char *reason, *text;
} averaging_action;

/* The GPU's part of a `train` or `validate` task. */
typedef struct averaging_task {
    bool keep;    /* the trained model stays on the GPU */
    json_t *mean; /* where the task's version is on a GPU; borrowed. NULL: on none */
} averaging_task;

averaging *averaging_open(const averaging_config *config, err *e); /* NULL: ERR_NOMEM */
void averaging_close(averaging *a);                                /* NULL is fine */
size_t averaging_step(averaging *a, const averaging_event *event, const averaging_action **actions);
/* The GPU's part of `task`. A training task comes after its AVERAGING_TRAIN. */
averaging_task averaging_task_of(const averaging *a, const round_action *task);
/* For a controller that attaches: where models are averaged, if it was ever decided. */
size_t averaging_tell(averaging *a, const averaging_action **actions);
/* The deadline of the next TICK. INT64_MAX: nothing is awaited. */
int64_t averaging_deadline(const averaging *a);

#endif
