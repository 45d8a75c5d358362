/* optim.c: see optim.h. */
#include "optim.h"

#include <assert.h>
#include <float.h>
#include <math.h>

optim optim_default(optim_kind kind)
{
    optim o = {.kind = kind};
    if (kind != OPTIM_SGD) {
        o.beta1 = 0.9;
        o.beta2 = 0.999;
        o.eps = 1e-8;
    }
    if (kind == OPTIM_ADAMW)
        o.weight_decay = 0.01;
    return o;
}

static int check_range(const char *name, double value, err *e)
{
    if (value >= 0 && value < 1)
        return 0;
    return err_set(e, ERR_INVALID, "optimizer: %s %g is not in [0, 1)", name, value);
}

int optim_check(const optim *o, err *e)
{
    if (!(o->weight_decay >= 0 && isfinite(o->weight_decay)))
        return err_set(e, ERR_INVALID, "optimizer: weight decay %g is negative or not finite",
                       o->weight_decay);
    if (o->kind == OPTIM_SGD) {
        if (check_range("momentum", o->momentum, e) || check_range("dampening", o->dampening, e))
            return -1;
        if (o->nesterov && (o->momentum <= 0 || o->dampening > 0))
            return err_set(e, ERR_INVALID, "optimizer: Nesterov needs momentum and no dampening");
        return 0;
    }
    if (o->kind != OPTIM_ADAM && o->kind != OPTIM_ADAMW)
        return err_set(e, ERR_INVALID, "optimizer %d does not exist", (int)o->kind);
    if (check_range("beta1", o->beta1, e) || check_range("beta2", o->beta2, e))
        return -1;
    if (!(o->eps >= FLT_MIN && o->eps <= FLT_MAX)) /* 0 / 0 where there was no gradient yet */
        return err_set(e, ERR_INVALID, "optimizer: eps %g is not a float above %g", o->eps,
                       (double)FLT_MIN);
    return 0;
}

int optim_slots(const optim *o)
{
    if (o->kind == OPTIM_SGD)
        return o->momentum > 0 ? 1 : 0;
    return 2;
}

const char *optim_slot_name(const optim *o, int slot)
{
    assert(slot >= 0 && slot < optim_slots(o));
    if (o->kind == OPTIM_SGD)
        return "momentum_buffer";
    return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

static void update_sgd(const optim *o, float lr, bool first, size_t n, float *w, const float *g,
                       float *b)
{
    float decay = (float)o->weight_decay, momentum = (float)o->momentum;
    float fresh = first ? 1.0f : (float)(1 - o->dampening), kept = first ? 0.0f : momentum;
    for (size_t i = 0; i < n; i++) {
        float d = g[i] + decay * w[i];
        if (b) {
            b[i] = kept * b[i] + fresh * d;
            d = o->nesterov ? d + momentum * b[i] : b[i];
        }
        w[i] -= lr * d;
    }
}

static void update_adam(const optim *o, double lr, int64_t step, size_t n, float *w, const float *g,
                        float *m, float *v)
{
    double correct1 = 1 - pow(o->beta1, (double)step), correct2 = 1 - pow(o->beta2, (double)step);
    float rate = (float)(lr / correct1), root2 = (float)sqrt(correct2), eps = (float)o->eps;
    float fresh1 = (float)(1 - o->beta1), beta2 = (float)o->beta2, fresh2 = (float)(1 - o->beta2);
    float shrink = o->kind == OPTIM_ADAMW ? (float)(1 - lr * o->weight_decay) : 1.0f;
    float decay = o->kind == OPTIM_ADAM ? (float)o->weight_decay : 0.0f;
    for (size_t i = 0; i < n; i++) {
        float d = g[i] + decay * w[i];
        m[i] += fresh1 * (d - m[i]);
        v[i] = beta2 * v[i] + fresh2 * d * d;
        w[i] = w[i] * shrink - rate * m[i] / (sqrtf(v[i]) / root2 + eps);
    }
}

void optim_update(const optim *o, double lr, int64_t step, size_t n, float *w, const float *g,
                  float *state, size_t state_stride)
{
    assert(step >= 1);
    if (o->kind == OPTIM_SGD)
        update_sgd(o, (float)lr, step == 1, n, w, g, optim_slots(o) ? state : NULL);
    else
        update_adam(o, lr, step, n, w, g, state, state + state_stride);
}
