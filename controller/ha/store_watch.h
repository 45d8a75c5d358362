/* store_watch.h: whether the store answers, for callers that must not wait to find out.
 *
 * An operation on a database that is away is retried until its patience is over. So a thread of the
 * watch asks a MongoDB store every second with little patience: the API and /ready can report at
 * once what is wrong, and the job manager learns when the store is back. Other stores are on this
 * host's disk and are taken to answer. There a stopped writer may hold up the job manager's writes
 * (store_lmdb_writer.h); the watch asks such a store only after a failed write, until it can be
 * written again. */
#ifndef KUBEML_CONTROLLER_STORE_WATCH_H
#define KUBEML_CONTROLLER_STORE_WATCH_H

#include "controller/controller.h"

enum { STORE_WATCH_EVERY_MS = 1000, STORE_WATCH_PATIENCE_MS = 3000 };

/* At first the watch reports that the controller starts. Its thread calls `back` with
 * `c->job_manager` when the store answers again, while this controller leads:
 * job_manager_store_back. NULL: no memory. */
store_watch *store_watch_new(controller *c, void (*back)(job_manager *o));
bool store_watch_is_far(const store_watch *w); /* whether there is anything to watch */
/* Asks once, and keeps the answer for store_watch_up. Only before store_watch_start. */
int store_watch_try(store_watch *w, err *e);
/* `c->store` is open: from here on store_watch_writable allows the job manager to write. */
void store_watch_opened(store_watch *w);
/* From here on store_watch_up allows requests, and the thread asks. */
int store_watch_start(store_watch *w, err *e);
/* False: `why` (may be NULL) has the cause, with ERR_UNAVAILABLE. */
bool store_watch_up(store_watch *w, err *why);
/* The same for the job manager's writes, which it does not try where they would only make it wait:
 * also false after store_watch_failed, until the store has answered again. Then `back` is called,
 * and the job manager writes the records that it kept. */
bool store_watch_writable(store_watch *w, err *why);
void store_watch_failed(store_watch *w, const err *why);
/* Whether store_watch_start was called. Before, there are neither store nor job manager. */
bool store_watch_started(const store_watch *w);
void store_watch_stop(store_watch *w);  /* no call of `back` after it; NULL is fine */
void store_watch_free(store_watch *w);  /* NULL is fine */

#endif
