/* leader.h: whether this controller leads, and which one does otherwise.
 *
 * A thread of its own takes the Lease (kube_lease.h), renews it, and looks at it while another
 * holds it. What was won is kept until it is lost; who has lost it must end, since another may act
 * already: `leader_lost` is what everybody who acts asks first. It depends on the clock alone, so
 * that a process that was stopped for long knows it before it has spoken to anybody. */
#ifndef KUBEML_LEADER_H
#define KUBEML_LEADER_H

#include "kube_lease.h"

typedef struct leader leader;

/* `won` is called once, from the thread, when the lease is ours. `access` outlives it. */
int leader_start(const kube_config *access, const char *name, const char *me, const char *address,
                 void (*won)(void *context), void *context, leader **out, err *e);
/* Lets go of what is held, so that another need not wait. NULL is fine. */
void leader_stop(leader *l);
/* The same, and frees nothing: others may still ask `l`. */
void leader_release(leader *l);

bool leader_is_us(const leader *l);
/* It was ours and is not any more. */
bool leader_lost(const leader *l);
/* Where the other's API answers; false when nobody leads, as far as is known. */
bool leader_where(leader *l, char out[KUBE_LEASE_ADDRESS_BYTES]);

#endif
