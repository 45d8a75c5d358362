/* job_manager_call.h: what the files behind job_manager.h's calls share. Each call packs its
 * arguments, runs in the owner's thread (job_manager_run) and waits.
 *
 * job_manager_api.c: submit, stop, resume; job_query.c: what the API shows; job_delete.c: what may
 * be deleted, and what is held while it is. */
#ifndef KUBEML_JOB_MANAGER_CALL_H
#define KUBEML_JOB_MANAGER_CALL_H

#include "job_manager_internal.h"

typedef struct job_manager_call {
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
} job_manager_call;

/* What the call has come to, as its caller returns it. */
int job_manager_call_end(job_manager_call *c, err *e);

/* In the owner's thread. */

/* A job's record as it was saved last, in the store or waiting for it; a new reference.
 * ERR_NOT_FOUND, or the store's errors. */
int job_query_record(job_manager *o, const char *id, json_t **out, err *e);
/* ERR_CONFLICT: that function or dataset (`kind`) is being deleted. */
int held_check(const job_manager *o, const char *kind, const char *name, err *e);

/* In the caller's thread. */

/* Waits until a job that has ended or is stopped is let go by the machine; at most
 * JOB_MANAGER_DRAIN_MS.
 */
void job_delete_wait_drained(job_manager *o, const char *id);

#endif
