/* frame_out.h: makes the frames that a job sends to controllers and functions. Pure.
 *
 * docs/internals/protocol.md has the messages. Each call returns a new reference; NULL: there was
 * no memory. */
#ifndef KUBEML_PS_FRAME_OUT_H
#define KUBEML_PS_FRAME_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "averaging.h"
#include "common/base/err.h"
#include "common/round/round.h"
#include "ps/storage/history.h"

/* A frame with nothing but its type: "accepted", "begun", "welcome", "stop". */
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

/* The parts of a task that its action does not have. */
typedef struct frame_task {
    double lr;
    json_t *losses; /* of earlier epochs, for functions that need them; borrowed. NULL: none */
    averaging_task on_gpu;
} frame_task;

/* Of ROUND_TRAIN and VALIDATE. */
json_t *frame_out_task(const round_action *a, const frame_task *t);
/* Adds the task of one function of a shared process to the frame `so_far` (stolen; NULL: there is
 * none yet). A step sends all its tasks for such a process in one frame, since the functions begin
 * and end together. */
json_t *frame_out_shared_task(json_t *so_far, const round_action *a, const frame_task *t);

#endif
