/* average.h: where the models of a job's functions are averaged; decided once, at the job's start.
 * Pure. */
#ifndef KUBEML_AVERAGE_H
#define KUBEML_AVERAGE_H

#include <stdbool.h>

#include "common/base/err.h"

enum { AVERAGE_TEXT_BYTES = 320, AVERAGE_FUNCTIONS_MAX = 256 };

typedef enum average_wish { AVERAGE_ANY, AVERAGE_NCCL_WANTED } average_wish;

typedef enum average_path {
    AVERAGE_HOST,   /* in function order, by common/modelstore/merge.h */
    AVERAGE_DEVICE, /* on the one GPU that all have, in function order, with the host's bits */
    AVERAGE_LENT,   /* the same between processes: the leader reads the others' memory (CUDA IPC) */
    AVERAGE_NCCL,   /* over several GPUs, in an order of NCCL's own: not exact */
} average_path;

typedef struct average_facts {
    int functions;
    bool one_process;
    /* of each function: its GPU, counted from 0; -1: it computes on a CPU. NULL: all do */
    const int *device;
    /* what carries models between processes: "shm" or "tcp"; NULL in one process */
    const char *carrier;
    average_wish wish;
    bool weights_alone; /* the optimizer's state is not averaged with them: the host does it */
    /* processes: the leader can read all of their models on the GPU that they have */
    bool lent;
    /* processes: each is on a GPU of its own, and NCCL was asked for and is there */
    bool ranks;
    const char *why_not; /* processes: why it cannot, if that was tried; else NULL */
} average_facts;

typedef struct average_choice {
    average_path path;
    bool exact;                    /* the same plan gives the same bits */
    char text[AVERAGE_TEXT_BYTES]; /* for people: where, in which order, why */
} average_choice;

const char *average_path_name(average_path path); /* "host", "device", "ipc", "nccl" */
/* ERR_UNSUPPORTED: NCCL was asked for, and functions of one process are on a CPU, or average
 * weights alone. (It refuses two ranks of one device: those of one process on one device are summed
 * in order before, processes are averaged on the host then, and on one GPU alone it has nothing to
 * do.) */
int average_choose(const average_facts *f, average_choice *out, err *e);

#endif
