/* effects.h: the work that a job hands to the keeper's thread (ps/storage/storage_worker.h), and
 * what comes back of it as events of the round machine.
 *
 * Tasks are carried out one after the other in the order of posting, each may be repeated, and each
 * comes back once, in that order. What cannot be posted for lack of memory is logged; the round
 * machine's deadlines see to it. The owner thread's. */
#ifndef KUBEML_PS_EFFECTS_H
#define KUBEML_PS_EFFECTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/modelstore/modelstore.h"
#include "common/round/round.h"
#include "job_spec.h"
#include "ps/conn/worker.h"
#include "ps/storage/checkpoint.h"
#include "ps/storage/storage_worker.h"

typedef struct effects {
    worker *worker;
    storage_worker *storage_worker;
    const job_spec *spec;
    int out;           /* tasks that have not come back */
    char *layout;      /* of the model: canonical text, from the first `ready`; NULL before */
    bool initial_done; /* version 0 is merged */
    int init_incarnation, init_slot; /* of function 0, which is to make version 0; -1: nobody's */
} effects;

/* `slots` of the model store, see round_slots. Borrows `spec`. */
int effects_init(effects *f, const job_spec *spec, worker *runs, int slots, err *e);
/* After the worker has been stopped; `kept`: the model store keeps its contents. */
void effects_free(effects *f, bool kept);

/* ---- out ---- */

/* `last`: the last try, which does without what cannot be read. */
void effects_open(effects *f, const modelstore_access *access, bool last);
/* An empty model store, for the version 0 of that function 0. */
void effects_create(effects *f, int incarnation, int slot);
void effects_load(effects *f);
/* Version 0 is published by function 0's incarnation: merged, if it was asked for. */
void effects_initialised(effects *f, int incarnation);
/* `mean_of` >= 0: the rows were averaged already, and function 0's incarnation `mean_of` published
 * the mean. */
void effects_merge(effects *f, const round_merge *merge, int mean_of);
/* Is there room for what that function publishes: its READY waits for the answer. ERR_NOMEM. */
int effects_room(effects *f, const round_event *ready, int slot, err *e);
/* `record` (stolen): the history. */
void effects_commit(effects *f, const checkpoint_info *info, json_t *record);
void effects_restore(effects *f, bool last);
void effects_finish(effects *f, const checkpoint_info *info, bool keep_model, json_t *record);
/* The model store is empty and is put back: nobody is making version 0 any more. */
void effects_forget_init(effects *f);

/* ---- back ---- */

/* `t` has come back: what the round machine is told of it; its texts are the task's. False: of
 * OPEN and FINISH, which are not its; and of CREATE where function 0 is to be sent `init` now.
 * `database_down`: a failure may be that of a database which comes back. */
bool effects_event(effects *f, const task *t, bool database_down, round_event *out);

#endif
