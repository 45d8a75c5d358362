/* compare.h: a model that trains on one batch again and again, on two engines. It has to learn the
 * batch on both, and its weights have to go the same way: how far they are apart is measured
 * against how far training has moved them, so that an update which is wrong, or not there, shows
 * however small it is beside the weights. */
#ifndef KUBEML_COMPARE_H
#define KUBEML_COMPARE_H

#include "common/base/rng.h"
#include "kernels/engine.h"
#include "test.h"

enum { COMPARE_STEPS = 20, COMPARE_SHORT = 5 /* the step with three samples less */ };

typedef struct comparison {
    double first; /* between the first losses, which training has not parted: relative */
    double fell;  /* last loss by first, of the engine that did worse */
    double apart; /* |w - w_truth| / |w_truth - w_begin|, over all parameters */
} comparison;

/* What the second engine allows the first. */
typedef struct bounds {
    double first, apart;
} bounds;

/* The least that is learned. */
static const double fell_max = 0.9;

static inline double parameters_apart(engine *m, const float *a, const float *b)
{
    size_t count;
    double sum = 0;
    const engine_var *vars = engine_layout(m, &count);
    for (size_t v = 0; v < count; v++)
        for (size_t i = 0; vars[v].kind == VAR_PARAM && i < vars[v].count; i++) {
            double d = (double)a[vars[v].offset + i] - (double)b[vars[v].offset + i];
            sum += d * d;
        }
    return sqrt(sum);
}

/* Samples and labels for `n` of that shape; free x. */
static inline engine_batch fixed_batch(shape s, int n, int classes, float **x, int32_t *labels)
{
    rng r;
    size_t count = shape_count(s) * (size_t)n;
    rng_init(&r, 3, RNG_TEST, 0, 0);
    *x = malloc(count * sizeof **x);
    CHECK(*x);
    for (size_t i = 0; i < count; i++)
        (*x)[i] = 2 * rng_uniform(&r) - 1;
    for (int i = 0; i < n; i++)
        labels[i] = (int32_t)rng_below(&r, (uint32_t)classes);
    return (engine_batch){.n = n, .x = *x, .labels = labels};
}

/* lr[0] is m's, lr[1] the truth's: one number, but in tests of this. */
static inline comparison compare(engine *m, engine *truth, const engine_batch *b,
                                 const double lr[2])
{
    engine *both[2] = {m, truth};
    engine_result r, first[2], last[2];
    err e = ERR_INIT;
    size_t bytes = engine_state_floats(truth) * sizeof(float);
    float *begin = malloc(bytes);
    CHECK(begin && engine_floats(truth, &e));
    memcpy(begin, engine_floats(truth, &e), bytes);
    for (int i = 0; i < COMPARE_STEPS; i++)
        for (int k = 0; k < 2; k++) {
            engine_batch now = *b;
            now.n -= i == COMPARE_SHORT ? 3 : 0;
            CHECK_OK(engine_train(both[k], &now, lr[k], &r, &e), e);
            if (i == 0)
                first[k] = r;
            last[k] = r;
        }
    const float *w = engine_floats(m, &e), *want = engine_floats(truth, &e);
    CHECK(w && want);
    comparison c = {.first = fabs(first[0].loss - first[1].loss) / fmax(1, fabs(first[1].loss)),
                    .fell = fmax(last[0].loss / first[0].loss, last[1].loss / first[1].loss),
                    .apart = parameters_apart(m, w, want) / parameters_apart(truth, want, begin)};
    free(begin);
    return c;
}

/* Not a number is out of every bound. */
static inline bool agrees(const comparison *c, bounds most)
{
    return c->first <= most.first && c->fell <= fell_max && c->apart <= most.apart;
}

#endif
