/* kube_lease.h: which of several controllers leads, by a Lease of Kubernetes.
 *
 * Held for KUBE_LEASE_S and renewed every KUBE_LEASE_RENEW_MS. Another's lease is taken over when
 * it has not changed before our own eyes for as long as it says: clocks of two machines are never
 * compared. Time in which we could not look is not counted, so that the holder, who could not
 * renew, has a second left to do so. Every write names the version it saw, so that of two that try
 * one gets 409. Who cannot renew for KUBE_LEASE_LOST_MS has lost it, before anybody else may take
 * it; who has not been followed by another can renew it still. The annotation kubeml.dev/api says
 * where the leader's API answers. */
#ifndef KUBEML_KUBE_LEASE_H
#define KUBEML_KUBE_LEASE_H

#include "kube_client.h"

enum {
    KUBE_LEASE_S = 3,
    KUBE_LEASE_RENEW_MS = 500, /* a standby looks as often */
    KUBE_LEASE_CALL_MS = 800,  /* for one answer of the API server */
    KUBE_LEASE_LOST_MS = 2200,
    KUBE_LEASE_GAP_MS = 1000, /* between two looks that succeed no more than that counts */
    KUBE_LEASE_ADDRESS_BYTES = 160,
};

typedef struct kube_lease kube_lease;

/* `me`: this replica, the pod's name; `address`: of its API, for the annotation. `access` outlives
 * it. */
int kube_lease_open(const kube_config *access, const char *name, const char *me,
                    const char *address, kube_lease **out, err *e);
/* For who has not held it: one look and at most one write. 1 we lead, 0 another does, -1 nobody
 * knows (the server is away). */
int kube_lease_try(kube_lease *l, int64_t now_ms, err *e);
/* For who has held it, however long ago: 1 it is ours and nobody's else since, 0 another has held
 * it since, -1 nobody knows. */
int kube_lease_renew(kube_lease *l, int64_t now_ms, err *e);
/* When to do that again, after a try that began at `now_ms`: another's lease may end before it
 * would be renewed. */
int64_t kube_lease_next_ms(const kube_lease *l, int64_t now_ms);
bool kube_lease_held(const kube_lease *l, int64_t now_ms);
const char *kube_lease_leader(const kube_lease *l); /* the other's address, as last seen; "" */
/* Lets go, so that another need not wait. */
void kube_lease_close(kube_lease *l, bool release);

#endif
