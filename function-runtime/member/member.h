/* member.h: one function of a job: a runtime that was specialised.
 *
 * member_open does all that may fail once: opens the dataset, gives up what it does not need
 * (sandbox.h), loads the code, compiles the model. member_run joins kubeml-ps and does its tasks
 * until it is told to stop: fetch version r, train the share, publish; validate; make version 0.
 * Between two tasks it keeps nothing that a replacement would not have. */
#ifndef KUBEML_MEMBER_H
#define KUBEML_MEMBER_H

#include <jansson.h>

#include "common/base/err.h"
#include "function-runtime/train/trainer.h"

enum {
    /* How long one call of the model store is tried again, and each chunk of a model waited for. */
    MEMBER_STORE_MS = 60000,
    MEMBER_ROOM_MS = 3000, /* for others' fetches to leave a full model store */
    MEMBER_ADDRESS_BYTES = 160,
    MEMBER_JOB_BYTES = 64,
};

typedef struct member member;

/* `order` is the message `specialise`. Call with one thread alive: the process can start no other
 * program afterwards. When the dataset, the code or the model is at fault `reason` says which
 * ("ShapeMismatch", "LoadFailed", "DataError"), and *out is set all the same where kubeml-ps can be
 * told (member_run then says `failed` to it). */
int member_open(const json_t *order, member **out, char reason[TRAINER_REASON_BYTES], err *e);
/* Until `stop` (0), or an error after which this function is of no use: -1. */
int member_run(member *m, err *e);
/* Where the models of a shared process are averaged, for people; NULL: every function has a process
 * of its own. */
const char *member_averaging(const member *m);
/* That a GPU was given and that it computes on the CPU, and why; NULL: there is no such thing. */
const char *member_without_gpu(const member *m);
/* What it has measured on its GPU that it had not been told (backend_autotune_dump); the caller's
 * to free; NULL: nothing. */
char *member_autotune_dump(const member *m);
void member_close(member *m); /* NULL is fine */

#endif
