/* job_record.h: records what a job has done so far: its history, and the open epoch.
 *
 * The open epoch has the ledger's digest, the samples of each contribution, the sums of each
 * function over the merges so far, and the seconds of each stage. It becomes an entry of the
 * history when the epoch is over. Where the job is suspended before, it is `open` in the history.
 * Belongs to the owner thread. Does no I/O: copies of the history go to the worker that writes
 * them. */
#ifndef KUBEML_PS_JOB_RECORD_H
#define KUBEML_PS_JOB_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/digest.h"
#include "common/base/err.h"
#include "common/round/round.h"
#include "job_spec.h"
#include "job_usage.h"
#include "ps/storage/checkpoint.h"
#include "ps/storage/history.h"

/* An epoch's seconds by stage; all but `merge` are sums over the functions. */
typedef struct job_seconds {
    double fetch, load, convert, train, publish, merge;
} job_seconds;

typedef struct job_record {
    history *history;
    bool of_targets; /* the data set has targets, not classes: there is no accuracy */
    int told_epochs; /* reported; the history's last epoch may still wait for its checkpoint */
    /* the open epoch */
    char ledger[DIGEST_HEX_BYTES];
    json_t *shares;
    round_row open[ROUND_FUNCTIONS_MAX]; /* of each function; batches 0: nothing */
    int open_parallelism;
    job_seconds seconds;
    int64_t validating_since_ms; /* 0: not yet */
    json_t *losses;              /* of the epochs before `losses_epoch` */
    int losses_epoch;
} job_record;

int job_record_init(job_record *r, const job_spec *spec, err *e);
void job_record_free(job_record *r);

/* ---- the open epoch ---- */

/* Adds the contributions of a merge that has just been committed, and the seconds that it took. */
void job_record_merge(job_record *r, const round_merge *merge, const round_row *rows,
                      double seconds);
/* Adds the seconds that `functions` functions have reported together. */
void job_record_seconds(job_record *r, const job_seconds *s, size_t functions);
void job_record_validates(job_record *r, int64_t now_ms);
void job_record_reset_epoch(job_record *r);

/* ---- epochs ---- */

/* The epoch is over: adds it to the history, unless the history has it. */
int job_record_epoch(job_record *r, const round_epoch *epoch, job_usage *usage, int64_t now_ms,
                     err *e);
/* The epoch's checkpoint is written. */
void job_record_committed(job_record *r, int epoch, double checkpoint_seconds);
void job_record_begin_again(job_record *r); /* no merge so far counts */
/* The validation losses of the epochs before `epoch`, null where one was not validated; borrowed.
 */
json_t *job_record_losses(job_record *r, int epoch);

/* ---- ends, and resuming in a later kubeml-ps ---- */

/* Drops all after the first `epochs` epochs from the history. */
void job_record_cut(job_record *r, int epochs);
/* The open epoch's merges, in the form of the history; NULL: none. `version`: of the last merge;
 * `seconds`: how long the epoch took so far. */
json_t *job_record_open(const job_record *r, int epoch, int64_t version, double seconds);
/* Takes over what an earlier kubeml-ps wrote, up to the checkpoint, and forgets later epochs.
 * ERR_CORRUPT. */
int job_record_restore(job_record *r, const json_t *record, const checkpoint_info *info, err *e);
/* Where the round machine goes on after the checkpoint. */
round_resume job_record_resume(const job_record *r, const checkpoint_info *info);
/* Where the round machine goes on within the epoch that `open` describes. The caller frees the rows
 * of `out`. ERR_CORRUPT. */
int job_record_resume_open(job_record *r, const json_t *open, round_resume *out, err *e);

/* The digest of what functions compute with, from an object with "cpu", "threads" and "algorithms":
 * same text, same bits. Ignores other keys; "" where one of the three is missing. */
int job_record_algorithms(const json_t *about, char out[DIGEST_HEX_BYTES], err *e);

#endif
