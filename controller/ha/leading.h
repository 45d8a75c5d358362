/* leading.h: whether this controller may act; any thread asks before it does. */
#ifndef KUBEML_CONTROLLER_LEADING_H
#define KUBEML_CONTROLLER_LEADING_H

#include "controller/controller.h"
#include "leader.h"

/* Whether no other controller may act on jobs and pods now; a kube_config's `may_write`. */
static inline bool controller_may_act(const void *c)
{
    const leader *l = ((const controller *)c)->leader;
    return !l || leader_is_us(l);
}

/* Whether this controller can answer requests about jobs and pods. */
static inline bool controller_leads(const controller *c)
{
    return atomic_load(&c->leads) && controller_may_act(c);
}

#endif
