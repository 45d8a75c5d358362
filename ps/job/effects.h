/* effects.h: posts a job's tasks to the storage worker (ps/storage/storage_worker.h), and makes
 * events of the round machine of their outcomes.
 *
 * Tasks run one after the other in the order of posting, and come back in that order, each once.
 * Each may be repeated. A task that cannot be posted for lack of memory is logged; the round
 * machine's deadlines handle that. Belongs to the owner thread. */
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
    int init_incarnation, init_slot; /* of the function 0 that makes version 0; -1: none does */
} effects;

/* `slots` of the model store, see round_slots. Borrows `spec`. */
int effects_init(effects *f, const job_spec *spec, worker *runs, int slots, err *e);
/* After the worker has been stopped; `kept`: the model store keeps its contents. */
void effects_free(effects *f, bool kept);

/* ---- out ---- */

/* `last`: the last try, which skips what cannot be read. */
void effects_open(effects *f, const modelstore_access *access, bool last);
/* Makes an empty model store, for version 0 of function 0's `incarnation`. */
void effects_create(effects *f, int incarnation, int slot);
void effects_load(effects *f);
/* Function 0's `incarnation` has published version 0: merges it, if that incarnation was asked. */
void effects_initialised(effects *f, int incarnation);
/* `mean_of` >= 0: the rows were averaged already, and function 0's incarnation `mean_of` published
 * the mean. */
void effects_merge(effects *f, const round_merge *merge, int mean_of);
/* Asks whether the model store has room for the function's contributions. The event READY is made
 * of the answer. ERR_NOMEM. */
int effects_room(effects *f, const round_event *ready, int slot, err *e);
/* `record` (stolen): the history. */
void effects_commit(effects *f, const checkpoint_info *info, json_t *record);
void effects_restore(effects *f, bool last);
void effects_finish(effects *f, const checkpoint_info *info, bool keep_model, json_t *record);
/* The model store is empty and is restored: no function is making version 0 any more. */
void effects_forget_init(effects *f);

/* ---- back ---- */

/* Makes the round machine's event of `t`, which has come back; borrows the task's texts. False:
 * there is none for OPEN and FINISH, nor for CREATE where function 0 is to be sent `init` now.
 * `database_down`: a failure is ERR_UNAVAILABLE, since the database comes back. */
bool effects_event(effects *f, const task *t, bool database_down, round_event *out);

#endif
