/* kube_claim.h: which platform of a namespace a TrainJob, a Function or a Dataset is for.
 *
 * It is the one whose installation the label kubeml.dev/install names. An object without that label
 * is the first platform's that notes itself there; whoever comes second finds it taken. */
#ifndef KUBEML_KUBE_CLAIM_H
#define KUBEML_KUBE_CLAIM_H

#include <jansson.h>
#include <stdbool.h>

#include "kube_client.h"
#include "kube_pods.h"

/* Whether another installation's label is on it. */
bool kube_claim_is_others(const json_t *object, const char *install);
/* Notes us on the object at `path`, and which job it stands for (NULL: that is not said). Nothing
 * is asked where all of that stands there. ERR_CONFLICT: it is another by now than the one that was
 * seen. */
int kube_claim_note(kube_client *c, const char *path, const json_t *object, const char *install,
                    const char *job, int64_t deadline_ms, err *e);
/* Our namespace's uid, which tells it from one of its name that was deleted; "": we may not read
 * it. -1: not now. */
int kube_claim_namespace(kube_client *c, const char *name, int64_t deadline_ms,
                         char uid[KUBE_UID_BYTES], err *e);
/* Whether the namespace of that uid stands ("": nobody knows, and it is taken to): what is deleted
 * in it now is not deleted with it. */
bool kube_claim_stands(kube_client *c, const char *name, const char *uid, int64_t deadline_ms);

#endif
