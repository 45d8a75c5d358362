/* operator_start.h: the controller's jobs and TrainJobs kept alike (kube_jobs.h), on a cluster that
 * has the custom resources. */
#ifndef KUBEML_OPERATOR_START_H
#define KUBEML_OPERATOR_START_H

#include "common/kube/kube_config.h"
#include "controller/controller.h"

typedef struct operator operator;

/* The API server and the namespace that the pods are in. Freed with kube_config_free. */
int operator_access(const controller *c, kube_config *out, err *e);

/* Waits for nothing: where the custom resources are not installed or may not be read, or the API
 * server does not list them, a line in the log and /ready say so, and it goes on trying; the API
 * works without them. `may_write` is the kube_config's, asked with `c`. NULL, with a logged line:
 * there is no memory. */
operator* operator_start(controller *c, bool (*may_write)(const void *c));
void operator_stop(operator* m); /* NULL is fine */

#endif
