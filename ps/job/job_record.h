/* job_record.h: what a job has done so far: its history, and the books of the epoch that is open.
 *
 * The books are the ledger's digest, who contributed which samples, what each function has in the
 * merges so far and where the seconds went. They become an entry of the history when the epoch is
 * over, and are part of it (`open`) where a job is suspended before. The owner thread's; no I/O:
 * copies of the history go to the worker that writes them. */
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

/* Where an epoch's seconds went; the functions' are sums over them. */
typedef struct job_seconds {
    double fetch, load, convert, train, publish, merge;
} job_seconds;

typedef struct job_record {
    history *history;
    bool of_targets; /* accuracy is of classes alone */
    int told_epochs; /* of the history's: the last one may still wait for its checkpoint */
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

/* Who put what into the merge that has just been committed, and how long that took. */
void job_record_merge(job_record *r, const round_merge *merge, const round_row *rows,
                      double seconds);
/* What `functions` functions have reported together. */
void job_record_seconds(job_record *r, const job_seconds *s, size_t functions);
void job_record_validates(job_record *r, int64_t now_ms);
void job_record_reset_epoch(job_record *r);

/* ---- epochs ---- */

/* The epoch is over: the next entry of the history, unless it has one. */
int job_record_epoch(job_record *r, const round_epoch *epoch, job_usage *usage, int64_t now_ms,
                     err *e);
/* Its checkpoint is there. */
void job_record_committed(job_record *r, int epoch, double checkpoint_seconds);
void job_record_begin_again(job_record *r); /* no merge so far counts */
/* The validation losses of the epochs before, null where one was not validated; borrowed. */
json_t *job_record_losses(job_record *r, int epoch);

/* ---- ends, and what a later kubeml-ps goes on from ---- */

/* What comes after `epochs` epochs is no part of the history. */
void job_record_cut(job_record *r, int epochs);
/* The open epoch's merges, as the history keeps them; NULL: none. `version` is that of the last
 * one, `seconds` those that the epoch took so far. */
json_t *job_record_open(const job_record *r, int epoch, int64_t version, double seconds);
/* Takes over what an earlier kubeml-ps wrote, up to the checkpoint; later epochs are forgotten.
 * ERR_CORRUPT. */
int job_record_restore(job_record *r, const json_t *record, const checkpoint_info *info, err *e);
/* Where the round machine goes on: after that checkpoint, */
round_resume job_record_resume(const job_record *r, const checkpoint_info *info);
/* or within the epoch that `open` tells of. The rows of `out` are the caller's to free.
 * ERR_CORRUPT. */
int job_record_resume_open(job_record *r, const json_t *open, round_resume *out, err *e);

/* The digest of what functions compute with, from an object with "cpu", "threads" and "algorithms":
 * same text, same bits. Other members are not looked at; without one of the three, "". */
int job_record_algorithms(const json_t *about, char out[DIGEST_HEX_BYTES], err *e);

#endif
