/* leader.h: whether this controller leads, and which one does otherwise.
 *
 * A thread of its own takes the Lease (kube_lease.h), renews it, and looks at it while another
 * holds it. Who could not renew it in time holds still: whoever acts asks `leader_is_us` first, and
 * waits. It leads on when the lease is renewed and was nobody else's in between. It has lost it for
 * good, and must end, when another held it, or after LEADER_HOLDS_MS, since jobs get on better
 * without a controller than with one that does not answer. Both depend on the clock alone, so that
 * a process that was stopped for long knows it before it has spoken to anybody. */
#ifndef KUBEML_LEADER_H
#define KUBEML_LEADER_H

#include "controller/kube/kube_lease.h"

enum { LEADER_HOLDS_MS = 10000 };

typedef struct leader leader;

/* `won` is called once, from the thread, when the lease is ours: it only wakes, for a process that
 * was stopped meanwhile may hear of it after it has run out, and `leader_is_us` is the word that
 * counts. `access` outlives it. */
int leader_start(const kube_config *access, const char *name, const char *me, const char *address,
                 void (*won)(void *context), void *context, leader **out, err *e);
/* Lets go of what is held, so that another need not wait. NULL is fine. */
void leader_stop(leader *l);
/* The same, and frees nothing: others may still ask `l`. */
void leader_release(leader *l);

bool leader_is_us(const leader *l);
/* It was ours and is not any more, for good. */
bool leader_lost(const leader *l);
/* Where the other's API answers; false when nobody leads, as far as is known. */
bool leader_where(leader *l, char out[KUBE_LEASE_ADDRESS_BYTES]);

#endif
