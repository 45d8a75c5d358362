/* operator_start.h: starts what makes the controller's jobs and TrainJobs (kube_jobs.h), and
 * functions and Functions, agree, on a cluster that has the custom resources. */
#ifndef KUBEML_OPERATOR_START_H
#define KUBEML_OPERATOR_START_H

#include "common/kube/kube_config.h"
#include "controller/controller.h"

typedef struct operator operator;

/* The API server and the pods' namespace. The caller frees it with kube_config_free. */
int operator_access(const controller *c, kube_config *out, err *e);

/* Waits for nothing. Where the custom resources are not installed or cannot be read, or the API
 * server does not list them, the log and /ready show it, and it goes on trying; the API works
 * without them. `may_write` is the kube_config's, called with `c`. NULL, with a logged line: no
 * memory. */
operator* operator_start(controller *c, bool (*may_write)(const void *c));
void operator_stop(operator* m); /* NULL is fine */

#endif
