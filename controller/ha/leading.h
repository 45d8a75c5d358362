/* leading.h: whether this controller may act, asked from any thread before it does. */
#ifndef KUBEML_CONTROLLER_LEADING_H
#define KUBEML_CONTROLLER_LEADING_H

#include "controller/controller.h"
#include "leader.h"

/* Whether nobody else may act on jobs and pods at this moment; a kube_config's `may_write`. */
static inline bool controller_may_act(const void *c)
{
    const leader *l = ((const controller *)c)->leader;
    return !l || leader_is_us(l);
}

/* Whether what is about jobs and pods can be answered here. */
static inline bool controller_leads(const controller *c)
{
    return atomic_load(&c->leads) && controller_may_act(c);
}

#endif
