/* kube_status.h: writes the status of our custom resources, also where their CRD is older.
 *
 * Helm never changes CRDs, so that the CRD of an older version may lack fields. The API server
 * refuses to apply a status with such a field; it accepts a patch, and drops the field. Such a
 * status is not written again while it stays the same and the object has what was left of it. Now
 * and then one of these statuses is applied again, in case the CRD has changed. A kube_status is
 * for one kind and belongs to one thread. */
#ifndef KUBEML_KUBE_STATUS_H
#define KUBEML_KUBE_STATUS_H

#include <stdatomic.h>

#include "kube_client.h"

enum { KUBE_STATUS_PROBE_MS = 60000 };

typedef struct kube_status kube_status;

/* `collection`: the path; `lacking` (may be NULL) counts the kinds whose CRD lacks fields, and
 * outlives it. `probe_ms` 0: KUBE_STATUS_PROBE_MS. NULL: no memory. */
kube_status *kube_status_open(const char *collection, const char *kind, int probe_ms,
                              atomic_int *lacking);
void kube_status_close(kube_status *s); /* NULL is fine */

/* 1: the object has it already, as far as the CRD allows; 0: it is written; -1. */
int kube_status_write(kube_status *s, kube_client *c, const json_t *object, const json_t *status,
                      int64_t deadline_ms, err *e);
/* Forgets all objects but these, by name. */
void kube_status_keep(kube_status *s, const json_t *objects);

#endif
