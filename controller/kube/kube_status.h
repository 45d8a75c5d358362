/* kube_status.h: the status of our custom resources, kept as what we say of it.
 *
 * Helm never changes CRDs, so that those of an older version may not have all of its fields. The
 * API server refuses to apply a status with one that they lack; a patch it takes, and drops that
 * field. Such a status is then not written again as long as it says the same and stands there as it
 * was left: only one of them all is applied once more now and then, in case the CRD is another by
 * now. One of these is for one kind, and one thread's. */
#ifndef KUBEML_KUBE_STATUS_H
#define KUBEML_KUBE_STATUS_H

#include <stdatomic.h>

#include "kube_client.h"

enum { KUBE_STATUS_PROBE_MS = 60000 };

typedef struct kube_status kube_status;

/* `collection`: the path; `lacking` (may be NULL) counts those whose CRD lacks fields, and outlives
 * it. `probe_ms` 0: KUBE_STATUS_PROBE_MS. NULL: no memory. */
kube_status *kube_status_open(const char *collection, const char *kind, int probe_ms,
                              atomic_int *lacking);
void kube_status_close(kube_status *s); /* NULL is fine */

/* 1: it stands there already, as far as the CRD has it; 0: it is written; -1. */
int kube_status_write(kube_status *s, kube_client *c, const json_t *object, const json_t *status,
                      int64_t deadline_ms, err *e);
/* What is remembered of others than these, by their names, is forgotten. */
void kube_status_keep(kube_status *s, const json_t *objects);

#endif
