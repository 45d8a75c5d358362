/* owner_call.h: what the files behind owner.h's calls share. Each call packs its arguments, runs in
 * the owner's thread (owner_run) and waits.
 *
 * owner_api.c: submit, stop, resume; owner_look.c: what the API shows; owner_held.c: what may be
 * deleted, and what is held while it is. */
#ifndef KUBEML_OWNER_CALL_H
#define KUBEML_OWNER_CALL_H

#include "owner_internal.h"

typedef struct owner_call {
    const request *request;
    const char *id, *user;
    char *new_id;
    follower *follower;
    const char *function, *dataset;
    bool active, ended, drains;
    json_t **out, *unsaved;
    take_waiter *waiter;
    const char *pod;
    int status;
    err why;
} owner_call;

/* What the call has come to, as its caller returns it. */
int owner_call_end(owner_call *c, err *e);

/* In the owner's thread. */

/* A job's record as it was saved last, in the store or waiting for it; a new reference.
 * ERR_NOT_FOUND, or the store's errors. */
int owner_record(owner *o, const char *id, json_t **out, err *e);
/* ERR_CONFLICT: that function or dataset (`kind`) is being deleted. */
int held_check(const owner *o, const char *kind, const char *name, err *e);

/* In the caller's thread. */

/* Waits until a job that has ended or is stopped is let go by the machine; at most OWNER_DRAIN_MS.
 */
void owner_wait_drained(owner *o, const char *id);

#endif
