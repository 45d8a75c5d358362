/* averaging_internal.h: the averaging machine's parts, for averaging*.c alone.
 *
 * averaging.c        the step; who is the root; rounds that are kept on GPUs; a mean by CUDA IPC
 * averaging_ranks.c  communicators of NCCL, and a mean by them */
#ifndef KUBEML_PS_AVERAGING_INTERNAL_H
#define KUBEML_PS_AVERAGING_INTERNAL_H

#include "averaging.h"

/* In one step each function is sent a few frames at most: leave, connect or average. */
enum { AVERAGING_ACTIONS_MAX = 4 * ROUND_FUNCTIONS_MAX + 16 };

/* What one function has on its GPU. */
typedef struct gpu_model {
    bool here;                           /* the process that joined last is connected */
    char handle[AVERAGING_HANDLE_BYTES]; /* "": others cannot read its model */
    char gpu[AVERAGING_GPU_BYTES];       /* "": it is no rank */
    int incarnation, slot;               /* of the process that joined last */
    int task_epoch, task_round;          /* of what it was last told to train */
    struct { /* of what was trained last and kept there, by this process or one before */
        bool is;
        int incarnation, epoch, round;
        char sum[AVERAGING_SUM_BYTES];
        json_int_t step;
    } fingerprint;
} gpu_model;

/* NO_ROOT ── all handles ──► ASKED ── it leads ──► ON_GPU
 * NO_ROOT ── all ranks, no two on one GPU ───────► ON_GPU
 * A root that ends: NO_ROOT. A refusal, or what fails again and again: ON_HOST, for good. */
typedef enum averaging_stage {
    AVERAGING_NO_ROOT,
    AVERAGING_ASKED,   /* function 0 was asked to be the root */
    AVERAGING_ON_GPU,  /* what is trained stays on the GPUs */
    AVERAGING_ON_HOST, /* from now on */
} averaging_stage;

typedef enum ranks_stage { RANKS_NONE, RANKS_IDENTIFY, RANKS_CONNECT, RANKS_READY } ranks_stage;

typedef struct averaging_ranks {
    bool chosen; /* the job's models are averaged so */
    ranks_stage stage;
    int set, count, joined; /* the communicator's number; its ranks; how many have said so */
    int function[ROUND_FUNCTIONS_MAX], incarnation[ROUND_FUNCTIONS_MAX]; /* by rank */
} averaging_ranks;

struct averaging {
    averaging_config config;
    int64_t now_ms;
    averaging_stage stage;
    averaging_ranks ranks;
    int root, functions; /* the root's incarnation; functions of the epoch */
    gpu_model of[ROUND_FUNCTIONS_MAX];
    bool keep; /* of the open round's tasks: what is trained is kept */
    int keep_epoch, keep_round;
    /* the merge that is worked on, or was */
    bool out, averaged;
    int ask, failures; /* failures: one after the other, whose cause no function's end was */
    int64_t due_ms;    /* INT64_MAX: none is out */
    round_merge merge;
    round_row rows[ROUND_FUNCTIONS_MAX];
    json_t *mean;    /* for tasks from `version` on: {"loan"|"ask","sum","step","checksum"} */
    int64_t version; /* -1: the reference is in no function's memory */
    char mean_handle[AVERAGING_HANDLE_BYTES];
    /* what the round machine is told at SETTLE: no step begins within another */
    bool failed;
    round_event failure;
    char message[ERR_MESSAGE_BYTES];
    reduce_path path;
    char text[REDUCE_TEXT_BYTES], said[ERR_MESSAGE_BYTES + 64];
    bool inexact; /* a mean was summed in another order than the host's */
    averaging_action actions[AVERAGING_ACTIONS_MAX];
    size_t count;
};

averaging_action *averaging_emit(averaging *a, averaging_action_type type);
/* Steals `frame`; NULL: memory was gone, and the question's deadline sees to it. */
void averaging_send(averaging *a, int function, json_t *frame);
void averaging_log(averaging *a, averaging_action_type type, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool averaging_is_here(const averaging *a, int function, int incarnation);
/* From now on: REDUCE_HOST (and why), REDUCE_IPC, REDUCE_NCCL. */
void averaging_choose(averaging *a, reduce_path path, const char *why);
void averaging_ask_root(averaging *a);
/* The question for the open merge's mean, the next one; a new reference. */
json_t *averaging_question(averaging *a);
/* The open merge: that function's contribution (-1: everybody's) has to be trained again. */
void averaging_give_up(averaging *a, err_code code, int function, const char *message);
/* Nothing that is tried again mends that. */
bool averaging_never(err_code code);

/* ---- averaging_ranks.c ---- */

void ranks_offer(averaging *a, const averaging_event *event);
bool ranks_have_root(const averaging *a); /* function 0 can be the open merge's root */
/* The open merge, all of whose contributions are on the GPUs. */
void ranks_merge(averaging *a);
void ranks_identified(averaging *a, const averaging_event *event);
void ranks_connected(averaging *a, const averaging_event *event);
/* Function `about` (-1: unknown) is why there is no mean. */
void ranks_failed(averaging *a, err_code code, int about, const char *message);
void ranks_settle(averaging *a); /* a rank has ended: gives up what was in hand */
/* The event is of a process that is a rank of the communicator. */
bool ranks_have(const averaging *a, const averaging_event *event);

#endif
