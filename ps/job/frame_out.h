/* frame_out.h: what a job says to controllers and functions, as frames. Pure.
 *
 * docs/internals/protocol.md has the messages. Each function gives a new reference; NULL: memory was
 * gone. */
#ifndef KUBEML_PS_FRAME_OUT_H
#define KUBEML_PS_FRAME_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "averaging.h"
#include "common/base/err.h"
#include "common/round/round.h"
#include "ps/storage/history.h"

/* Those that have nothing but their type: "accepted", "begun", "welcome", "stop". */
json_t *frame_out_plain(const char *type);
/* `reason` may be NULL. */
json_t *frame_out_refused(err_code code, const char *reason, const char *message);

/* ---- to controllers ---- */

json_t *frame_out_access(const char *address, json_t *to_model); /* steals `to_model` */
/* Of ROUND_NEED, RELEASE, PHASE and ASK. */
json_t *frame_out_of(const round_action *a);
json_t *frame_out_condition(const char *name, bool status, const char *reason, const char *message);
json_t *frame_out_epoch(const epoch_result *r);
json_t *frame_out_averaging(reduce_path path, const char *text);
json_t *frame_out_finished(const char *state, const char *reason, const char *message, int epochs,
                           const char *sha256);

/* ---- to functions ---- */

json_t *frame_out_init(uint64_t seed, int slot);

/* What a task has that its action does not. */
typedef struct frame_task {
    double lr;
    json_t *losses; /* of the epochs before, for functions that need them; borrowed. NULL: none */
    averaging_task on_gpu;
} frame_task;

/* Of ROUND_TRAIN and VALIDATE. */
json_t *frame_out_task(const round_action *a, const frame_task *t);
/* The same for one function of a shared process, which gets what a step gives its functions to do
 * as one frame: they begin and end together. `so_far` (stolen): of those before in this step, NULL
 * for the first. */
json_t *frame_out_shared_task(json_t *so_far, const round_action *a, const frame_task *t);

#endif
