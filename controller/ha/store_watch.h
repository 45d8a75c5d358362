/* store_watch.h: whether the store answers, for those who would rather not wait to find out.
 *
 * An operation on a database that is away is tried again until its patience is over. A thread of
 * the watch asks a MongoDB store every second with little patience, so that the API can say at once
 * what is wrong, /ready too, and that the owner learns when it is back. Other stores are on this
 * host's disk and are taken to answer; there a stopped writer may hold up the owner's writes
 * (store_lmdb_writer.h), and only from then on is the store asked, until it can be written
 * again. */
#ifndef KUBEML_CONTROLLER_STORE_WATCH_H
#define KUBEML_CONTROLLER_STORE_WATCH_H

#include "controller/controller.h"

enum { STORE_WATCH_EVERY_MS = 1000, STORE_WATCH_PATIENCE_MS = 3000 };

/* At first it says that the controller starts. The watch's thread calls `back` with `c->owner` when
 * the store answers again, while this controller leads: job_manager_store_back. NULL when memory is
 * gone. */
store_watch *store_watch_new(controller *c, void (*back)(job_manager *o));
bool store_watch_is_far(const store_watch *w); /* is there anything to watch? */
/* Asks once, and keeps the answer: what store_watch_up then says. Only before store_watch_start. */
int store_watch_try(store_watch *w, err *e);
/* `c->store` is open: from here on store_watch_writable allows the owner to write. */
void store_watch_opened(store_watch *w);
/* From here on store_watch_up allows requests, and the thread asks. */
int store_watch_start(store_watch *w, err *e);
/* False: `why` (may be NULL) says what is wrong, with ERR_UNAVAILABLE. */
bool store_watch_up(store_watch *w, err *why);
/* As store_watch_up for the owner, who does not try what would only make it wait: false too since
 * store_watch_failed told of a write that failed, until the store has answered again. The owner
 * learns of that by `back`, and has its records ready. */
bool store_watch_writable(store_watch *w, err *why);
void store_watch_failed(store_watch *w, const err *why);
/* Was it started? Until then there are neither store nor owner. */
bool store_watch_started(const store_watch *w);
void store_watch_stop(store_watch *w);  /* no call into the owner after it; NULL is fine */
void store_watch_free(store_watch *w);  /* NULL is fine */

#endif
