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
    REDUCE_DEVICE, /* on the one GPU that all have, in function order, with the host's bits */
    REDUCE_IPC,    /* the same between processes: the leader reads the others' memory (CUDA IPC) */
    REDUCE_NCCL,   /* over several GPUs, in an order of NCCL's own: not exact */
} reduce_path;

typedef struct reduce_facts {
    int functions;
    bool one_process;
    /* of each function: its GPU, counted from 0; -1: it computes on a CPU. NULL: all do */
    const int *device;
    /* what carries models between processes: "shm" or "tcp"; NULL in one process */
    const char *tensor_path;
    reduce_wish wish;
    bool weights_alone; /* the optimizer's state is not averaged with them: the host does it */
    /* processes: the leader can read all of their models on the GPU that they have */
    bool lent;
    /* processes: each is on a GPU of its own, and NCCL was asked for and is there */
    bool ranks;
    const char *why_not; /* processes: why it cannot, if that was tried; else NULL */
} reduce_facts;

typedef struct reduce_placement {
    reduce_path path;
    bool exact;                   /* the same plan gives the same bits */
    char text[REDUCE_TEXT_BYTES]; /* for people: where, in which order, why */
} reduce_placement;

const char *reduce_path_name(reduce_path path); /* "host", "device", "ipc", "nccl" */
/* ERR_UNSUPPORTED: NCCL was asked for, and functions of one process are on a CPU, or average
 * weights alone. (It refuses two ranks of one device: those of one process on one device are summed
 * in order before, processes are averaged on the host then, and on one GPU alone it has nothing to
 * do.) */
int reduce_placement_choose(const reduce_facts *f, reduce_placement *out, err *e);

#endif
