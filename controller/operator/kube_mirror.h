/* kube_mirror.h: the controller's jobs and TrainJobs kept alike (kube_jobs.h), on a cluster that
 * has the custom resources. */
#ifndef KUBEML_KUBE_MIRROR_H
#define KUBEML_KUBE_MIRROR_H

#include "common/kube/kube_config.h"
#include "controller/controller.h"

typedef struct kube_mirror kube_mirror;

/* The API server and the namespace that the pods are in. Freed with kube_config_free. */
int kube_mirror_access(const controller *c, kube_config *out, err *e);

/* Waits for nothing: where the custom resources are not installed or may not be read, or the API
 * server does not list them, a line in the log and /ready say so, and it goes on trying; the API
 * works without them. NULL, with a line in the log: there is no memory. */
kube_mirror *kube_mirror_start(controller *c);
void kube_mirror_stop(kube_mirror *m); /* NULL is fine */

#endif
