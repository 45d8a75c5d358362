/* sweeper.h: removes what dead writers left in the store, again and again. Once an hour it removes
 * what no record has named for a day: uploaded models that no job uses (upload.h), and objects and
 * sources of functions (code_blob.h).
 *
 * A writer's locks and leases end some time after the writer: the locks of a killed process are
 * released one by one while it ends, and a lease in a database runs out. So the sweep at the start
 * may leave something, and writers may die later; later sweeps remove that. */
#ifndef KUBEML_CONTROLLER_SWEEPER_H
#define KUBEML_CONTROLLER_SWEEPER_H

#include "controller.h"

/* The first sweep comes SWEEPER_FIRST_MS after the start; each pause is twice as long as the one
 * before, up to SWEEPER_MOST_MS. */
enum { SWEEPER_FIRST_MS = 2000, SWEEPER_MOST_MS = 60000, SWEEPER_UNNAMED_MS = 3600000 };

/* `c->store` and `c->watch` outlive it; it tries nothing while the store is away. NULL:
 * ERR_NOMEM. */
sweeper *sweeper_start(controller *c, err *e);
/* Waits for a sweep that is in progress. NULL is fine. */
void sweeper_stop(sweeper *s);
/* One sweep, which logs what it removed. */
int sweeper_sweep(store *s, err *e);

#endif
