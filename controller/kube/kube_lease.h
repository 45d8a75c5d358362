/* kube_lease.h: which of several controllers leads, by a Lease of Kubernetes.
 *
 * A lease lasts KUBE_LEASE_S, and its holder renews it every KUBE_LEASE_RENEW_MS. A standby takes
 * the lease when it has seen it unchanged for as long as the lease lasts: the clocks of two
 * machines are never compared. Time in which the standby could not look does not count, so that a
 * holder which could not renew either has a second left to do so. Every write names the version
 * that was seen, so that of two writers one gets 409. A holder that cannot renew for
 * KUBE_LEASE_LOST_MS has lost the lease, before anybody else may take it; it can still renew the
 * lease if no other controller has held it since. The annotation kubeml.dev/api has the address of
 * the leader's API. */
#ifndef KUBEML_KUBE_LEASE_H
#define KUBEML_KUBE_LEASE_H

#include "kube_client.h"

enum {
    KUBE_LEASE_S = 3,
    KUBE_LEASE_RENEW_MS = 500, /* a standby looks as often */
    KUBE_LEASE_CALL_MS = 800,  /* for one response of the API server */
    KUBE_LEASE_LOST_MS = 2200,
    KUBE_LEASE_GAP_MS = 1000, /* most time that counts between two looks that succeed */
    KUBE_LEASE_ADDRESS_BYTES = 160,
};

typedef struct kube_lease kube_lease;

/* `me`: this replica, by its pod's name; `address`: its API's, for the annotation. `access`
 * outlives the lease. */
int kube_lease_open(const kube_config *access, const char *name, const char *me,
                    const char *address, kube_lease **out, err *e);
/* For a controller that has not held the lease: looks once and writes at most once. 1: we lead, 0:
 * another leads, -1: unknown (the server is away). */
int kube_lease_try(kube_lease *l, int64_t now_ms, err *e);
/* For a controller that has held it, however long ago: 1: it is ours, and was no other's since; 0:
 * another has held it since; -1: unknown. */
int kube_lease_renew(kube_lease *l, int64_t now_ms, err *e);
/* When to call one of these again, after a call that began at `now_ms`: another's lease may end
 * before the next renewal is due. */
int64_t kube_lease_next_ms(const kube_lease *l, int64_t now_ms);
bool kube_lease_held(const kube_lease *l, int64_t now_ms);
const char *kube_lease_leader(const kube_lease *l); /* another leader's address, as last seen; "" */
/* Frees it; `release`: gives the lease up, so that another controller need not wait. */
void kube_lease_close(kube_lease *l, bool release);

#endif
