/* job_usage.h: collects what a job's functions use, from their heartbeats. Reports it to
 * controllers every JOB_USAGE_TELL_MS, and at once for a new function. Sums it up over an epoch for
 * the history. Belongs to the owner thread.
 *
 * The report is sent without functions, too: it shows controllers that this process does not hang.
 */
#ifndef KUBEML_PS_JOB_USAGE_H
#define KUBEML_PS_JOB_USAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/round/round.h"
#include "ps/storage/history.h"

enum { JOB_USAGE_TELL_MS = 2000, JOB_USAGE_STALE_MS = 5000 };

typedef struct usage_row {
    /* {"function", "incarnation", "cpu_percent", "memory_bytes", "gpu"?}; NULL: none yet */
    json_t *last;
    int64_t heard_ms;
} usage_row;

/* Sums over an epoch's heartbeats. */
typedef struct usage_sums {
    int count, gpu_percent_count, gpu_watts_count; /* NVML may not report a GPU's */
    double cpu_percent, gpu_percent, gpu_watts;
    uint64_t memory_bytes, gpu_memory_bytes; /* the most; of a GPU 0: not reported */
} usage_sums;

typedef struct job_usage {
    usage_row rows[ROUND_FUNCTIONS_MAX];
    usage_sums sums;
    int64_t tell_ms;
} job_usage;

/* Takes a heartbeat's "usage". ERR_INVALID: its form is not that of function-runtime/base/usage.h.
 */
int job_usage_take(job_usage *u, int function, int incarnation, const json_t *usage, int64_t now_ms,
                   err *e);
/* The next message for controllers, when it is due (`tell_ms`): {"type":"usage","functions":[...]};
 * else NULL. */
json_t *job_usage_message(job_usage *u, int64_t now_ms);
/* Fills in what the epoch used, and begins the next epoch. An epoch without a heartbeat gets the
 * functions' last ones. */
void job_usage_epoch(job_usage *u, epoch_result *out);
void job_usage_clear(job_usage *u);

#endif
