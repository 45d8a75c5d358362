/* job_manager_call.h: what the files behind job_manager.h's calls share. Each call packs its
 * arguments, runs in the job manager's thread (job_manager_run) and waits.
 *
 * job_manager_api.c: submit, stop, resume; job_query.c: what the API shows; job_delete.c:
 * deletions, and holding what is being deleted. */
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

/* The call's result, as its function returns it. */
int job_manager_call_end(job_manager_call *c, err *e);

/* In the job manager's thread. */

/* A job's newest record, from the store or from the records that wait for it; a new reference.
 * ERR_NOT_FOUND, or the store's errors. */
int job_query_record(job_manager *o, const char *id, json_t **out, err *e);
/* ERR_CONFLICT: the function or dataset (`kind`) is being deleted. */
int held_check(const job_manager *o, const char *kind, const char *name, err *e);

/* In the caller's thread. */

/* Waits until the machine has dropped a job that has ended or is being stopped; at most
 * JOB_MANAGER_DRAIN_MS. */
void job_delete_wait_drained(job_manager *o, const char *id);

#endif
