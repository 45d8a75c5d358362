/* reduce_placement.h: where the models of a job's functions are averaged; decided once, at the
 * job's start. Pure. */
#ifndef KUBEML_REDUCE_PLACEMENT_H
#define KUBEML_REDUCE_PLACEMENT_H

#include <stdbool.h>

#include "common/base/err.h"

enum { REDUCE_TEXT_BYTES = 320, REDUCE_FUNCTIONS_MAX = 256 };

typedef enum reduce_wish { REDUCE_ANY, REDUCE_NCCL_WANTED } reduce_wish;

typedef enum reduce_path {
    REDUCE_HOST,   /* in function order, by common/modelstore/merge.h */
    REDUCE_DEVICE, /* on the functions' one GPU, in function order, with the host's bits */
    REDUCE_IPC,    /* the same between processes: the reduce root reads the others' GPU memory by
                    * CUDA IPC */
    REDUCE_NCCL,   /* over several GPUs, in NCCL's own order: not exact */
} reduce_path;

typedef struct reduce_facts {
    int functions;
    bool one_process;
    /* (functions): the GPU of each function, counted from 0, or -1 for a CPU. NULL: all on CPUs */
    const int *device;
    /* how models travel between processes: "shm" or "tcp"; NULL in one process */
    const char *tensor_path;
    reduce_wish wish;
    bool weights_alone; /* the optimizer's state is not averaged: only the host can do that */
    /* for processes: the reduce root can read all models on their one GPU */
    bool ipc;
    /* for processes: each is on a GPU of its own, and NCCL was requested and is available */
    bool ranks;
    const char *why_not; /* for processes: why a tried GPU path does not work; else NULL */
} reduce_facts;

typedef struct reduce_placement {
    reduce_path path;
    bool exact;                   /* the same plan gives the same bits */
    char text[REDUCE_TEXT_BYTES]; /* for people: the place, the order, the reason */
} reduce_placement;

const char *reduce_path_name(reduce_path path); /* "host", "device", "ipc", "nccl" */
/* Chooses the placement. ERR_UNSUPPORTED: NCCL was requested, and functions of one process are on a
 * CPU, or average weights alone.
 *
 * NCCL refuses two ranks on one device. So functions of one process on one device are summed in
 * order first, and processes that share a device are averaged on the host. On one GPU NCCL is not
 * used. */
int reduce_placement_choose(const reduce_facts *f, reduce_placement *out, err *e);

#endif
