/* bench_engine.c: one model on the engine, timed on request; bench_engine.py drives it beside
 * PyTorch.
 *
 *   bench_engine MODEL BATCH THREADS [BACKEND [bf16]]
 *
 * MODEL: of the zoo, a LeNet of the table below, lenet:CHANNELS:SIDE:KERNEL:FIRST:SECOND, one of
 * other extents, or conv:CHANNELS:SIDE:KERNEL:LAYERS, a chain of like convolutions. Reads "train K"
 * or "infer K" from stdin (the latter of a model compiled for that alone, as /infer has it; "check
 * K" of the one that trains, as validation has it), does K steps ("draw K": draws the first weights
 * as often), and writes the seconds they took by the wall clock and of CPU time; "choices" writes
 * the algorithm table. The batch is made of fixed pseudo-random floats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "kernels/engine.h"
#include "kernels/zoo/zoo.h"

typedef struct bench_model {
    const char *name;
    shape input;
    int first, second, kernel, pad; /* filters of the two convolutions */
} bench_model;

/* LeNet's plan with other extents. */
static const bench_model models[] = {
    {"lenet", {3, 1, 28, 28}, 6, 16, 5, 2},
    {"lenet-3x3-8-20", {3, 1, 28, 28}, 8, 20, 3, 1},
    {"lenet-rgb32", {3, 3, 32, 32}, 6, 16, 5, 2},
    {"lenet-rgb32-3x3-8-20", {3, 3, 32, 32}, 8, 20, 3, 1},
};

static int build_lenet(graph *g, int x, int outputs, void *user)
{
    const bench_model *b = user;
    x = graph_conv2d(g, x,
                     (conv2d_options){.filters = b->first, .kernel = b->kernel, .padding = b->pad});
    x = graph_max_pool2d(g, graph_relu(g, x), (pool_options){.kernel = 2});
    x = graph_conv2d(g, x, (conv2d_options){.filters = b->second, .kernel = b->kernel});
    x = graph_max_pool2d(g, graph_relu(g, x), (pool_options){.kernel = 2});
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 120, (linear_options){0}));
    x = graph_relu(g, graph_linear(g, x, 84, (linear_options){0}));
    return graph_linear(g, x, outputs, (linear_options){0});
}

typedef struct chain {
    int channels, side, kernel, layers;
} chain;

static int build_chain(graph *g, int x, int outputs, void *user)
{
    const chain *c = user;
    for (int i = 0; i < c->layers; i++)
        x = graph_conv2d(g, x,
                         (conv2d_options){.filters = c->channels, .kernel = c->kernel,
                                          .padding = c->kernel / 2, .no_bias = true});
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs, (linear_options){0});
}

static int fail(const err *e)
{
    fprintf(stderr, "bench_engine: %s\n", e->message);
    return 1;
}

static int configure(const char *name, engine_config *c, err *e)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(models[i].name, name) != 0)
            continue;
        c->build = build_lenet, c->user = (void *)(uintptr_t)&models[i];
        c->input = models[i].input, c->outputs = 10;
        return 0;
    }
    static chain h; /* read until the engine is compiled */
    static bench_model l;
    if (sscanf(name, "conv:%d:%d:%d:%d", &h.channels, &h.side, &h.kernel, &h.layers) == 4) {
        c->build = build_chain, c->user = &h;
        c->input = (shape){3, h.channels, h.side, h.side}, c->outputs = 10;
        return 0;
    }
    if (sscanf(name, "lenet:%d:%d:%d:%d:%d", &l.input.c, &l.input.h, &l.kernel, &l.first,
               &l.second) == 5) {
        l.pad = l.kernel / 2, l.input.rank = 3, l.input.w = l.input.h;
        c->build = build_lenet, c->user = &l;
        c->input = l.input, c->outputs = 10;
        return 0;
    }
    const zoo_model *z = zoo_find(name, e);
    if (!z)
        return -1;
    c->build = z->build;
    int side = z->height < 32 ? z->height : 32; /* the zoo's large models in their CIFAR form */
    c->input = (shape){3, z->channels, side, side}, c->outputs = 10;
    return 0;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One of what begins with that letter. */
static int step(engine *m, const engine_batch *b, char what, float *logits, err *e)
{
    engine_result r;
    if (what == 'd')
        return engine_draw(m, e);
    return what == 't' ? engine_train(m, b, 0.01, &r, e) : engine_infer(m, b, logits, e);
}

static int run(engine *m, const engine_batch *b, char what, long steps, float *logits, err *e)
{
    double cpu = cpu_seconds();
    int64_t begin = clock_monotonic_ns();
    for (long i = 0; i < steps; i++)
        if (step(m, b, what, logits, e) != 0)
            return -1;
    printf("%.9f %.9f\n", (double)(clock_monotonic_ns() - begin) * 1e-9, cpu_seconds() - cpu);
    return 0;
}

/* With the weights of m. */
static int compile_lean(engine_config c, engine *m, engine **out, err *e)
{
    c.inference = true;
    return engine_compile(&c, out, e) ||
           engine_import_weights(*out, engine_floats(m, e), engine_counters(m, e), e);
}

static int serve(const engine_config *c, engine *m, const engine_batch *b, float *logits)
{
    err e = ERR_INIT;
    char line[64];
    engine *lean = NULL;
    int rc = 0;
    while (rc == 0 && fgets(line, sizeof line, stdin)) {
        long steps = strtol(line + strcspn(line, " "), NULL, 10);
        bool infers = line[0] == 'i';
        if (strncmp(line, "choices", 7) == 0)
            printf("%s\n", engine_choices(m));
        else
            rc = (infers && !lean && compile_lean(*c, m, &lean, &e)) ||
                 run(infers ? lean : m, b, line[0], steps, logits, &e);
        fflush(stdout);
    }
    engine_free(lean);
    return rc ? fail(&e) : 0;
}

int main(int argc, char **argv)
{
    err e = ERR_INIT;
    engine *m = NULL;
    if (argc < 4) {
        fprintf(stderr, "usage: bench_engine MODEL BATCH THREADS [BACKEND [bf16]]\n");
        return 2;
    }
    engine_config c = {
        .batch = (int)strtol(argv[2], NULL, 10), .threads = (int)strtol(argv[3], NULL, 10),
        .backend = argc > 4 ? argv[4] : NULL,
        .precision = argc > 5 && strcmp(argv[5], "bf16") == 0 ? PRECISION_BF16 : PRECISION_FP32,
        .optim = {.kind = OPTIM_SGD, .momentum = 0.9}};
    if (configure(argv[1], &c, &e) != 0 || engine_compile(&c, &m, &e) != 0)
        return fail(&e);
    size_t count = (size_t)c.batch * shape_count(c.input);
    float *x = malloc(count * sizeof *x),
          *logits = malloc((size_t)c.batch * (size_t)c.outputs * sizeof *x);
    int32_t *labels = malloc((size_t)c.batch * sizeof *labels);
    if (!x || !logits || !labels)
        return 1;
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(rng_u32(&r) >> 8) * 0x1p-23f - 1;
    for (int i = 0; i < c.batch; i++)
        labels[i] = (int32_t)(rng_u32(&r) % (uint32_t)c.outputs);
    engine_batch b = {.n = c.batch, .type = INPUT_FLOAT, .x = x, .labels = labels};
    int status = serve(&c, m, &b, logits);
    engine_free(m);
    free(x), free(logits), free(labels);
    return status;
}
