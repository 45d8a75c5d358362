/* average.h: where the models of a job's functions are averaged; decided once, at the job's start. Pure. */
#ifndef KUBEML_AVERAGE_H
#define KUBEML_AVERAGE_H

#include <stdbool.h>

#include "err.h"

enum { AVERAGE_TEXT_BYTES = 320, AVERAGE_FUNCTIONS_MAX = 256 };

typedef enum average_wish { AVERAGE_ANY, AVERAGE_NCCL_WANTED } average_wish;

typedef enum average_path {
    AVERAGE_HOST,   /* in function order, by common/merge.h */
    AVERAGE_DEVICE, /* on the one GPU that all have, in function order, with the host's bits */
    AVERAGE_LENT,   /* the same between processes: the leader reads the others' memory (CUDA IPC) */
    AVERAGE_NCCL,   /* over several GPUs, in an order of NCCL's own: not exact */
} average_path;

typedef struct average_facts {
    int functions;
    bool one_process;
    const int *device;   /* of each function: its GPU, counted from 0; -1: it computes on a CPU. NULL: all do */
    const char *carrier; /* what carries models between processes: "shm" or "tcp"; NULL in one process */
    average_wish wish;
    bool weights_alone; /* the optimizer's state is not averaged with them: the host does it */
    bool lent;           /* processes: the leader can read all of their models on the GPU that they have */
    const char *why_not; /* processes: why it cannot, if that was tried; else NULL */
} average_facts;

typedef struct average_choice {
    average_path path;
    bool exact;                    /* the same plan gives the same bits */
    char text[AVERAGE_TEXT_BYTES]; /* for people: where, in which order, why */
} average_choice;

/* ERR_UNSUPPORTED: NCCL was asked for, and functions are in processes of their own, on a CPU, or
 * average weights alone. (It refuses two ranks of one device: the functions of one are summed in
 * order before, and on one GPU alone it has nothing to do.) */
int average_choose(const average_facts *f, average_choice *out, err *e);

#endif
