/* leader.h: whether this controller leads, and which controller does otherwise.
 *
 * A thread takes the Lease (kube_lease.h), renews it, and looks at it while another controller
 * holds it. A controller that could not renew it in time holds still: its threads ask
 * `leader_is_us` before they act, and wait. It goes on when the lease is renewed and no other
 * controller held it in between. It has lost the lease for good, and must end, when another
 * controller held it, or after LEADER_HOLDS_MS, since jobs get on better without a controller than
 * with one that does not answer. Both depend on the clock alone, so that a process that was stopped
 * for long knows it before it has sent anything. */
#ifndef KUBEML_LEADER_H
#define KUBEML_LEADER_H

#include "controller/kube/kube_lease.h"

enum { LEADER_HOLDS_MS = 10000 };

typedef struct leader leader;

/* The thread calls `won` once, when this controller gets the lease. `won` only wakes the caller:
 * the lease may have run out by then, where the process was stopped meanwhile, and only
 * `leader_is_us` counts. `access` outlives the leader. */
int leader_start(const kube_config *access, const char *name, const char *me, const char *address,
                 void (*won)(void *context), void *context, leader **out, err *e);
/* Releases a held lease, so that another controller need not wait. NULL is fine. */
void leader_stop(leader *l);
/* The same, but frees nothing: other threads may still ask `l`. */
void leader_release(leader *l);

bool leader_is_us(const leader *l);
/* This controller led once, and has lost the lease for good. */
bool leader_lost(const leader *l);
/* The leader's API address; false where no leader is known. */
bool leader_where(leader *l, char out[KUBE_LEASE_ADDRESS_BYTES]);

#endif
