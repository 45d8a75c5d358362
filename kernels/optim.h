/* optim.h: the optimizers, which turn gradients into new parameters. PyTorch's formulas
 * (torch.optim, version 2).
 *
 * An update runs over the whole parameter block, gaps included: a gap has weight and gradient 0 and
 * stays 0. The module holds no state: the caller owns the block of optim_slots() * n floats and the
 * count of updates, so that both can be published, averaged and checkpointed. */
#ifndef KUBEML_OPTIM_H
#define KUBEML_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

typedef enum optim_kind { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW } optim_kind;

typedef struct optim {
    optim_kind kind;
    double weight_decay; /* SGD, Adam: added to the gradient; AdamW: w -= lr * weight_decay * w */
    double momentum, dampening;
    bool nesterov;
    double beta1, beta2, eps;
} optim;

/* PyTorch's defaults for that kind (Adam: 0.9, 0.999, 1e-8; AdamW with weight decay 0.01). */
optim optim_default(optim_kind kind);
/* Checks the ranges: momentum and betas in [0, 1), eps > 0, Nesterov with momentum and without
 * dampening. ERR_INVALID. */
int optim_check(const optim *o, err *e);
/* Floats of state for each parameter: SGD 0, with momentum 1 ("momentum_buffer"); Adam 2. */
int optim_slots(const optim *o);
const char *optim_slot_name(const optim *o,
                            int slot); /* "momentum_buffer", "exp_avg", "exp_avg_sq" */

/* One update of n parameters. `step` is 1 for the first update since the state was zeroed. `state`
 * holds the slots one after the other, `state_stride` floats apart (so that a part of the block can
 * be updated by a thread of its own). Neither blocks nor fails.
 *
 *     SGD    g += wd*w;  b = step == 1 ? g : momentum*b + (1-dampening)*g;
 *            w -= lr*(nesterov ? g+momentum*b : b)
 *     Adam   g += wd*w;  m += (1-beta1)(g-m);  v = beta2*v + (1-beta2)*g*g;
 *            w -= lr/(1-beta1^step) * m / (sqrt(v)/sqrt(1-beta2^step) + eps)
 *     AdamW  w *= 1 - lr*wd, then Adam without wd */
void optim_update(const optim *o, double lr, int64_t step, size_t n, float *w, const float *g,
                  float *state, size_t state_stride);

#endif
