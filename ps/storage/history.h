/* history.h: the record `history/<job>`: what a job did, epoch by epoch, and the plan that gives
 * the same bits again.
 *
 * The shape is the first KubeML's ({"id", "task", "data": {...}}: one entry an epoch, accuracy in
 * percent, null where an epoch was not validated or there are targets instead of classes) with more
 * beside it. There is always room for the next epoch: what lets the record grow beyond what a store
 * takes (who contributed what, ledger, seconds, usage) is left out of the first epochs then, and
 * `left_out` says of how many. The owner thread keeps it; `history_json` gives the worker a copy of
 * its own to write. */
#ifndef KUBEML_PS_HISTORY_H
#define KUBEML_PS_HISTORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/digest.h"
#include "common/base/err.h"

#define HISTORY_COLLECTION "history"

typedef struct epoch_result {
    int epoch; /* from 0 */
    double train_loss;
    bool validated;
    double validation_loss, accuracy; /* percent; NAN: of targets, or not validated */
    int parallelism;
    double seconds;
    uint64_t version, samples;
    char ledger[DIGEST_HEX_BYTES]; /* of the rows merged up to this epoch, chained */
    /* where the seconds went; functions' sums are divided by their number */
    double fetch_s, load_s, convert_s, train_s, publish_s, merge_s, validate_s, checkpoint_s;
    /* what functions used: means, and of memory the most; NAN and UINT64_MAX where nothing is
     * known */
    double cpu_percent, gpu_percent, gpu_watts;
    uint64_t memory_bytes, gpu_memory_bytes;
} epoch_result;

/* Of whom the record is, and what is needed to do the same again; borrowed, the objects are kept by
 * reference. */
typedef struct history_subject {
    const char *job;
    uint64_t seed;
    json_t *task; /* the request as the controller gave it */
    json_t *function, *dataset;
} history_subject;

typedef struct history history;

history *history_new(const history_subject *of, err *e);
void history_free(history *h); /* NULL is fine */

/* Takes over the first `epochs` epochs of an earlier record of this job. ERR_CORRUPT when it has
 * fewer, or no ledger of the last of them. Borrows `record`. */
int history_restore(history *h, const json_t *record, int epochs, err *e);
/* The next epoch. `shares` (stolen): who contributed what, [[function, incarnation, begin, end]...]
 */
int history_add(history *h, const epoch_result *r, json_t *shares, err *e);
void history_cut(history *h, int epochs); /* forgets what comes after the first `epochs` */
/* How long writing an epoch's checkpoint took, known only after it. */
void history_checkpoint_seconds(history *h, int epoch, double seconds);
int history_epochs(const history *h);
/* The validation losses of the first `epochs` epochs, null of one that was not validated; a new
 * reference. */
json_t *history_losses(const history *h, int epochs);
/* 0, or -1 when there is no such epoch. What is null or left out there is 0 here, NAN where
 * epoch_result says so. */
int history_at(const history *h, int epoch, epoch_result *out);

/* Of the plan: "cpu", "threads", "algorithms", "layout_digest", ... Steals `value`. The first value
 * stays; -1 when another one comes. */
int history_plan(history *h, const char *key, json_t *value);
/* Sets or changes a condition in the style of Kubernetes. */
void history_condition(history *h, const char *name, const char *status, const char *reason,
                       const char *message);
/* How often functions were lost; 0 is not written. */
void history_lost(history *h, int times);
/* `state` "running" until the end; `sha256` may be "". */
void history_state(history *h, const char *state, const char *reason, const char *message,
                   const char *sha256);
/* The same of a record that is not ours yet: the end that it tells of was an earlier try's. */
void history_set_running(json_t *record);
/* Where an epoch stands that the job was suspended in. Steals; NULL: none. */
void history_open(history *h, json_t *open);
json_t *history_json(const history *h); /* a deep copy; NULL when memory is gone */

#endif
