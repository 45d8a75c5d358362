/* worker.h: one thread that makes the calls that block, so that the owner thread's loop never does.
 *
 * The owner posts works; the worker runs them one after the other in order of posting; the owner
 * takes back those that are done, in the same order. While a work is posted and not taken back it
 * belongs to the worker: the owner does not touch it. */
#ifndef KUBEML_PS_WORKER_H
#define KUBEML_PS_WORKER_H

#include <stdbool.h>

#include "common/base/err.h"

typedef struct work work;
struct work {
    void (*run)(work *w); /* on the worker thread; leaves its outcome in the work around it */
    work *next;           /* the worker's own */
    double seconds;       /* how long `run` took */
};

typedef struct worker worker;

worker *worker_start(err *e); /* NULL on error */
/* Lets the running work end, calls `drop` for each work not begun or not taken back, joins and
 * frees. NULL is fine. False: the running work did not end within `timeout_ms`. The worker and its
 * works are then left as they are, and the process is to end. */
bool worker_stop(worker *w, void (*drop)(work *dropped), int timeout_ms);
void worker_post(worker *w, work *job);
int worker_fd(const worker *w); /* polls readable when worker_take has something */
work *worker_take(worker *w);   /* NULL when none is done */

#endif
