/* job_device.h: rounds of functions that are processes of their own on GPUs, averaged there: on the
 * one GPU that all have, by CUDA IPC, as this page says; or between GPUs (job_ranks.h).
 *
 * Every function says at `ready` where its model lies (a loan). When all are there, function 0 is
 * asked to lead: it opens what they lent and takes memory for the mean. From then on functions
 * leave what they trained where it is and tell its seal instead of publishing it; when all have,
 * the leader averages them in function order and publishes the mean, which is merged as one
 * contribution. So model store, ledger and checkpoints hold what they always hold, and whoever
 * cannot take the mean from the leader's memory fetches it.
 *
 * What is kept on a device is gone with its function, and may turn out to be unreadable. To the
 * round machine that is a contribution which the model store does not have: one function trains
 * again, or all do, and publish as ever. */
#ifndef KUBEML_PS_JOB_DEVICE_H
#define KUBEML_PS_JOB_DEVICE_H

#include <jansson.h>

#include "common/contract/reduce_placement.h"
#include "common/round/round.h"
#include "ps_job.h"
#include "job_ranks.h"
#include "ps/conn/connections.h"

enum {
    JOB_DEVICE_IPC_HANDLE_BYTES = 512,
    JOB_DEVICE_SUM_BYTES = 20,
    JOB_DEVICE_CALL_MS = 60000,
    JOB_DEVICE_FAILURES_MAX = 3
};

/* What one function has on the device. */
typedef struct device_model {
    char ipc_handle[JOB_DEVICE_IPC_HANDLE_BYTES]; /* "": nothing that others can read */
    int incarnation, slot;            /* of the process that lends; the slot it was welcomed with */
    int task_epoch, task_round;       /* of what it was last told to train */
    struct { /* of what was trained last and kept there, by this process or one before */
        bool is;
        int incarnation, epoch, round;
        char sum[JOB_DEVICE_SUM_BYTES];
        json_int_t step;
    } fingerprint;
} device_model;

typedef enum device_stage {
    DEVICE_NONE,        /* nobody leads */
    DEVICE_ASKED,       /* function 0 was asked to */
    DEVICE_REDUCE_ROOT, /* what is trained stays on the GPUs */
    DEVICE_REFUSED,     /* on the host, from now on */
} device_stage;

typedef struct job_device {
    device_stage stage;
    job_ranks ranks;
    int leader, functions; /* the leader's incarnation; functions of the epoch */
    device_model of[ROUND_FUNCTIONS_MAX];
    bool keep; /* of the open round's tasks: kept on the device */
    int keep_epoch, keep_round;
    /* the merge that the leader works on, or has worked on */
    bool out, averaged;
    int ask, failures; /* failures: one after the other, whose cause no function's end was */
    int64_t due_ms;    /* INT64_MAX: none is out */
    round_merge merge;
    round_row rows[ROUND_FUNCTIONS_MAX];
    json_t *mean;    /* for tasks from `version` on: {"loan","sum","step","checksum"} */
    int64_t version; /* -1: the reference is not in the leader's memory */
    char leader_mean[JOB_DEVICE_IPC_HANDLE_BYTES];
    /* what the machine is told when its step is over: no step begins within another */
    bool failed;
    round_event failure;
    char message[ERR_MESSAGE_BYTES], text[REDUCE_TEXT_BYTES];
    reduce_path path; /* that `text` is of */
    bool inexact; /* a mean was summed in another order than the host's */
} job_device;

void job_device_init(job_device *d);
void job_device_free(job_device *d);
void job_device_welcome(job *j, const round_action *a);
/* What `ready` says of the GPU; NULL: nothing. */
typedef struct device_offer {
    const char *ipc_handle,
        *no_ipc_handle;         /* one of both, or neither: why a model on a GPU cannot be lent */
    const char *rank, *no_rank; /* of `merge: nccl`: one of both */
} device_offer;
/* Before the machine hears of it: who is asked to lead is so before its first task. */
void job_device_ready(job *j, const conn *c, const device_offer *offer);
/* Adds to a `train` or `validate` frame what lies on the device. */
void job_device_task(job *j, const round_action *a, json_t *frame);
/* Of `published`; `seal` NULL: it lies in the model store. ERR_INVALID. */
int job_device_published(job *j, const conn *c, int epoch, int round, const json_t *fingerprint,
                         err *e);
/* True: the merge is seen to. False: the contributions lie in the model store. */
bool job_device_merge(job *j, const round_merge *merge);
/* The model store was put back: what lies on the device is no reference of it. */
void job_device_restore(job *j);
/* When a step is over: gives up what a lost leader had in hand, and tells the machine. */
void job_device_settle(job *j);
int job_device_reduce_root_ready(job *j, conn *c, const json_t *m, err *e);
int job_device_averaged(job *j, conn *c, const json_t *m, err *e);
void job_device_tick(job *j, int64_t now_ms);
/* For a controller that attaches (NULL: all): where models are averaged, if it is not as it was at
 * the start. */
void job_device_tell(job *j, conn *only);

/* ---- for job_ranks.c ---- */

/* From now on: REDUCE_HOST (and why), REDUCE_IPC, REDUCE_NCCL. */
void job_device_settle_on(job *j, reduce_path path, const char *why);
void job_device_ask_reduce_root(job *j);
/* The question for the open merge's mean, the next one; a new reference. */
json_t *job_device_average_frame(job *j);
/* The open merge: that function's contribution (-1: everybody's) has to be trained again. */
void job_device_give_up(job *j, err_code code, int function, const char *message);

#endif
