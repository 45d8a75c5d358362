/* function_reconciler.h: Functions and Datasets (charts/kubeml/crds) and what the platform has of
 * them.
 *
 * A Function that somebody makes or changes is registered under its name, compiled as an upload is;
 * deleting it deletes what it has made, unless a job uses that, later where the store is away or
 * nobody leads. A Dataset describes one that is uploaded through the API: its status says whether
 * there is one and how large it is, and deleting it deletes nothing. What is made through the API
 * alone has no object. Those of another installation in the namespace are left alone
 * (kube_claim.h). */
#ifndef KUBEML_FUNCTION_RECONCILER_H
#define KUBEML_FUNCTION_RECONCILER_H

#include "common/kube/kube_config.h"
#include "controller/controller.h"

enum { FUNCTION_RECONCILER_TURN_MS = 2000 };

typedef struct function_reconciler function_reconciler;

/* `access` outlives it. Waits for nothing: while the API server is away, or the CRDs are not
 * installed or may not be read, it goes on trying. */
int function_reconciler_start(const kube_config *access, const char *install, controller *c,
                              function_reconciler **out, err *e);
void function_reconciler_stop(function_reconciler *k); /* NULL is fine */

#endif
