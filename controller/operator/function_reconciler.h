/* function_reconciler.h: makes the platform agree with Functions and Datasets (charts/kubeml/crds).
 *
 * A Function that a user creates or changes is registered under its name, and compiled as an upload
 * is. Deleting it deletes the function that it made, unless a job uses that; where the store is
 * away or no controller leads, that happens later. A Dataset describes a dataset that is uploaded
 * through the API: its status shows whether there is one and how large it is, and deleting it
 * deletes nothing. What is made through the API alone has no object. Objects of another
 * installation in the namespace are left alone (kube_claim.h). */
#ifndef KUBEML_FUNCTION_RECONCILER_H
#define KUBEML_FUNCTION_RECONCILER_H

#include "common/kube/kube_config.h"
#include "controller/controller.h"

enum { FUNCTION_RECONCILER_TURN_MS = 2000 };

typedef struct function_reconciler function_reconciler;

/* `access` outlives it. Waits for nothing: while the API server is away, or the CRDs are not
 * installed or cannot be read, it goes on trying. */
int function_reconciler_start(const kube_config *access, const char *install, controller *c,
                              function_reconciler **out, err *e);
void function_reconciler_stop(function_reconciler *k); /* NULL is fine */

#endif
