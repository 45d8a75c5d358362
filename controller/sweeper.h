/* sweeper.h: takes away, again and again, what dead writers left in the store, and once an hour
 * what nobody names a day later: models that were uploaded for jobs that there are not (upload.h),
 * objects and sources of functions (code_blob.h).
 *
 * A writer's locks and leases end some time after it: those of a process that is killed are
 * released one by one while it ends, a lease in a database runs out. What the sweep at the start
 * leaves for that reason, and what writers leave that die later, a later one takes. */
#ifndef KUBEML_CONTROLLER_SWEEPER_H
#define KUBEML_CONTROLLER_SWEEPER_H

#include "controller.h"

/* The first one SWEEPER_FIRST_MS after the start, each pause twice as long as the one before, up to
 * SWEEPER_MOST_MS. */
enum { SWEEPER_FIRST_MS = 2000, SWEEPER_MOST_MS = 60000, SWEEPER_UNNAMED_MS = 3600000 };

/* `c->store` and `c->watch` outlive it: while the watch says that the store is away nothing is
 * tried. NULL: ERR_NOMEM. */
sweeper *sweeper_start(controller *c, err *e);
/* Waits for a sweep that is under way. NULL is fine. */
void sweeper_stop(sweeper *s);
/* One sweep, which tells the log what it took. */
int sweeper_sweep(store *s, err *e);

#endif
