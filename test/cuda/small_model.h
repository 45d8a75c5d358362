/* small_model.h: a small convolutional network, batches for it, and how far its training is from
 * the reference's. For the tests of the CUDA backend. */
#ifndef KUBEML_SMALL_MODEL_H
#define KUBEML_SMALL_MODEL_H

#include "common/base/rng.h"
#include "kernels/engine.h"
#include "test.h"

enum { BATCH = 4, CLASSES = 10 };

void cuda_algorithms_forget(void); /* cuda_autotune.c, for tests */

static inline int small(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_conv2d(g, x, (conv2d_options){.filters = 6, .kernel = 3, .padding = 1});
    x = graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){0}));
    x = graph_max_pool2d(g, x, (pool_options){.kernel = 2});
    x = graph_conv2d(g, x, (conv2d_options){.filters = 8, .kernel = 3});
    x = graph_flatten(g, graph_relu(g, x));
    return graph_linear(g, x, outputs, (linear_options){0});
}

static inline engine_config config(const char *on)
{
    return (engine_config){.build = small,
                           .input = {3, 2, 12, 12},
                           .outputs = CLASSES,
                           .batch = BATCH,
                           .backend = on,
                           .optim = {.kind = OPTIM_SGD, .momentum = 0.9},
                           .seed = 3};
}

typedef struct work {
    float x[BATCH * 2 * 12 * 12];
    int32_t labels[BATCH];
    engine_batch b;
} work;

static inline void draw_work(work *w, uint64_t key, int n)
{
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, key);
    for (size_t i = 0; i < sizeof w->x / sizeof *w->x; i++)
        w->x[i] = 2 * rng_uniform(&r) - 1;
    for (int i = 0; i < BATCH; i++)
        w->labels[i] = (int32_t)rng_below(&r, CLASSES);
    w->b = (engine_batch){.n = n, .x = w->x, .labels = w->labels};
}

/* Relative distance of the states of two models after some steps. */
static inline double distance(engine *a, engine *b, int steps)
{
    static work w;
    err e = ERR_INIT;
    engine_result r;
    for (int i = 0; i < steps; i++) {
        draw_work(&w, (uint64_t)i, i == 1 ? BATCH - 1 : BATCH);
        CHECK_OK(engine_train(a, &w.b, 0.05, &r, &e), e);
        CHECK_OK(engine_train(b, &w.b, 0.05, &r, &e), e);
    }
    const float *x = engine_floats(a, &e), *y = engine_floats(b, &e);
    double apart = 0, scale = 0;
    for (size_t i = 0; i < engine_weights_floats(a); i++) {
        apart += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        scale += (double)y[i] * (double)y[i];
    }
    return sqrt(apart / scale);
}

static inline double train_apart(engine_config c, int steps)
{
    err e = ERR_INIT;
    engine *m, *truth;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    c.backend = "reference", c.precision = PRECISION_FP32;
    CHECK_OK(engine_compile(&c, &truth, &e), e);
    double apart = distance(m, truth, steps);
    engine_free(m);
    engine_free(truth);
    return apart;
}

#endif
