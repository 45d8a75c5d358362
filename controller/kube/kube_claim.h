/* kube_claim.h: which platform of a namespace a TrainJob, a Function or a Dataset belongs to.
 *
 * The label kubeml.dev/install names the installation. An object without the label belongs to the
 * first platform that sets it; a second platform finds it taken. */
#ifndef KUBEML_KUBE_CLAIM_H
#define KUBEML_KUBE_CLAIM_H

#include <jansson.h>
#include <stdbool.h>

#include "kube_client.h"
#include "kube_pods.h"

/* Whether the object has another installation's label. */
bool kube_claim_is_others(const json_t *object, const char *install);
/* Sets our label on the object at `path`, and the label of its job (`job` NULL: leaves that label).
 * Sends nothing where the object has them. ERR_CONFLICT: it has changed since it was seen. */
int kube_claim_note(kube_client *c, const char *path, const json_t *object, const char *install,
                    const char *job, int64_t deadline_ms, err *e);
/* Our namespace's uid, which distinguishes it from a deleted namespace of the same name; "": we may
 * not read it. -1: the API server does not answer now. */
int kube_claim_namespace(kube_client *c, const char *name, int64_t deadline_ms,
                         char uid[KUBE_UID_BYTES], err *e);
/* Whether the namespace of that uid exists and is not being deleted ("": unknown, counts as
 * existing). Then an object that is deleted was not deleted with its namespace. */
bool kube_claim_stands(kube_client *c, const char *name, const char *uid, int64_t deadline_ms);

#endif
