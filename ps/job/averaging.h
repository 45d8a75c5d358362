/* averaging.h: where the models of functions that are processes of their own on GPUs are averaged:
 * a pure state machine beside the round machine (round.h).
 *
 * `averaging_step(machine, event)` gives the actions to carry out, in order. There is no I/O, no
 * clock and no thread in it, and it calls nobody: what the round machine has to hear of it is the
 * action AVERAGING_FAILED. ps/job/job_step.c feeds it and carries its actions out.
 *
 * On one GPU (averaging.c), by CUDA IPC. Every function says at `ready` how other processes reach
 * its model there (an IPC handle; `loan` on the wire). When all have, function 0 is asked to be the
 * root of the reduction (`lead`): it opens their handles and takes memory for the mean. From then
 * on functions keep what they trained where it is and report its fingerprint (`seal`) instead of
 * publishing it. When all have, the root averages the models in function order and publishes the
 * mean, which is merged as one contribution. So model store, ledger and checkpoints hold what they
 * always hold, and a function that cannot take the mean from the root's memory fetches it.
 *
 * On GPUs of their own (averaging_ranks.c), by NCCL, where `merge: nccl` asks for it. Every
 * function says at `ready` which GPU it would be a rank on. When all have, and no two are on one
 * GPU, what they train stays where it is. A communicator is made when a round is to be merged, of
 * all functions that are not at work: function 0 names it (`identify`), all join (`connect`), and
 * it stays as long as those are the same processes. Then all are asked to average; function 0, rank
 * 0, publishes the mean. A rank that ends, or an error of NCCL's, ends the communicator: the others
 * are told to `leave`, which they hear while they wait, and keep what they trained. Once the lost
 * contribution is there again the next communicator is tried.
 *
 * What is kept on a GPU is gone with its function, and may turn out to be unreadable. To the round
 * machine that is a contribution which the model store does not have: one function trains again, or
 * all do. What fails again and again is averaged on the host from then on. */
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
    AVERAGING_CALL_MS = 60000,  /* a question to the functions */
    AVERAGING_FAILURES_MAX = 3, /* one after the other; then the host averages */
};

typedef struct averaging averaging;

typedef struct averaging_config {
    int parallelism;    /* of the first epoch */
    bool own_processes; /* no function shares its process with another */
    bool whole_state;   /* the optimizer's state is averaged with the weights */
    bool nccl;          /* `merge: nccl` */
    /* What carries models otherwise, see reduce_placement.h; borrowed, and read from the first
     * event on. */
    const char *tensor_path;
} averaging_config;

/* What `ready` says of the GPU; NULL: nothing. */
typedef struct averaging_offer {
    const char *handle, *no_handle; /* one of both, or neither: why others cannot read its model */
    const char *gpu, *no_gpu;       /* of `merge: nccl`, one of both: why it cannot be a rank */
} averaging_offer;

typedef enum averaging_event_type {
    AVERAGING_WELCOME, /* function, incarnation, slot: that process has joined */
    AVERAGING_GONE,    /* function, incarnation: its connection has ended; seen to at SETTLE */
    /* function, offer; before the round machine hears of `ready`: who is asked to be the root is so
     * before its first task */
    AVERAGING_OFFER,
    AVERAGING_TRAIN, /* function, epoch, round, parallelism: this task is about to be sent */
    /* function, incarnation, epoch, round; sum, step: the fingerprint of what it keeps on the GPU.
     * sum NULL: what it trained lies in the model store */
    AVERAGING_PUBLISHED,
    AVERAGING_MERGE, /* merge: answered by POST, now or later, or by FAILED at SETTLE */
    /* Functions' answers, each with function and incarnation, and with code and message where there
     * is nothing else to report. */
    AVERAGING_LEADS,      /* handle: of the memory for the mean */
    AVERAGING_AVERAGED,   /* ask; sum, step, checksum; or about, unpublished; store_down */
    AVERAGING_IDENTIFIED, /* set, id */
    AVERAGING_CONNECTED,  /* set */
    /* The model store was put back: what lies on a GPU is no reference of it. */
    AVERAGING_RESTORE,
    AVERAGING_TICK, /* store_down: that time has come */
    /* The step of the round machine is over, or an event from outside of one: what a lost process
     * had in hand is given up, and what has failed is reported. */
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
    int about;        /* the function whose model is the trouble; -1: unknown */
    bool unpublished; /* there was a mean, which could not be published */
    bool store_down;  /* what fails now may be the model store's doing, and is not counted */
    err_code code;    /* ERR_NONE: it was done */
    const char *message;
} averaging_event;

typedef enum averaging_action_type {
    AVERAGING_SEND, /* `frame` (borrowed) to that function, which is there */
    /* Merge `merge`: the mean that function 0's incarnation `mean_of` published; -1: the
     * contributions in the model store */
    AVERAGING_POST,
    AVERAGING_FAILED,  /* tell the round machine `failure` */
    AVERAGING_PATH,    /* tell controllers, and the log: path, text */
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

/* What a `train` or `validate` task has beside the rest. */
typedef struct averaging_task {
    bool keep;    /* what is trained stays on the GPU */
    json_t *mean; /* where the task's version lies on a GPU; borrowed. NULL: nowhere */
} averaging_task;

averaging *averaging_open(const averaging_config *config, err *e); /* NULL: ERR_NOMEM */
void averaging_close(averaging *a);                                /* NULL is fine */
size_t averaging_step(averaging *a, const averaging_event *event, const averaging_action **actions);
/* Of a task that AVERAGING_TRAIN was told of, if it is one to train. */
averaging_task averaging_task_of(const averaging *a, const round_action *task);
/* For a controller that attaches: where models are averaged, if it was ever decided. */
size_t averaging_tell(averaging *a, const averaging_action **actions);
int64_t
averaging_deadline(const averaging *a); /* of the next TICK; INT64_MAX: nothing is awaited */

#endif
