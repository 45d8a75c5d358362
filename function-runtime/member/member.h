/* member.h: one function of a job: a runtime that was specialised.
 *
 * member_open does the steps that happen once: it opens the dataset, enters the sandbox, loads the
 * code and compiles the model. member_run joins kubeml-ps and does its tasks until `stop`: fetch
 * version r, train the share, publish; validate; make version 0. Between two tasks it has no state
 * that a replacement would not have. */
#ifndef KUBEML_MEMBER_H
#define KUBEML_MEMBER_H

#include <jansson.h>

#include "common/base/err.h"
#include "function-runtime/train/trainer.h"

enum {
    /* How long a call of the model store is retried, and how long each chunk of a model may
     * take. */
    MEMBER_STORE_MS = 60000,
    MEMBER_ROOM_MS = 3000, /* wait for other functions' fetches to leave a full model store */
    MEMBER_ADDRESS_BYTES = 160,
    MEMBER_JOB_BYTES = 64,
};

typedef struct member member;

/* `order` is the message `specialise`. Call with one thread alive; afterwards the process cannot
 * start programs. On error `reason` names the cause: "ShapeMismatch", "LoadFailed", "DataError",
 * "GpuMemory", "GpuFailed", "NoGpu". *out is set all the same if the order could be read:
 * member_run then reports `failed` to kubeml-ps. */
int member_open(const json_t *order, member **out, char reason[TRAINER_REASON_BYTES], err *e);
/* Runs until `stop` (0), or until an error after which this function is of no use (-1). */
int member_run(member *m, err *e);
/* Where the models of a shared process are averaged, for people; NULL: every function has its own
 * process. */
const char *member_averaging(const member *m);
/* Why the function computes on the CPU although it has a place on a GPU; NULL: it does not. */
const char *member_without_gpu(const member *m);
/* New measurements of algorithms on its GPU (backend_autotune_dump), which the caller frees; NULL:
 * none. */
char *member_autotune_dump(const member *m);
void member_close(member *m); /* NULL is fine */

#endif
