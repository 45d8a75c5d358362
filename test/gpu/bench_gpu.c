/* bench_gpu.c: our side of `make bench-gpu`; bench_gpu.py drives it beside PyTorch.
 *
 *   bench_gpu gpu                                    the device
 *   bench_gpu step MODEL BATCH PRECISION [N]         N functions (threads, a stream each) of that
 *   bench_gpu share MODEL BATCH PRECISION            one function, its samples on the device
 *   bench_gpu start MODEL BATCH PRECISION            a warm process's first batch
 *   bench_gpu parts MODEL BATCH PRECISION            what compiling takes of that, for people
 *   bench_gpu merge MODELS FLOATS                    averaging beside a plain copy
 *   bench_gpu norm CHANNELS SIDE BATCH PRECISION     batch norm beside cuDNN's
 *   bench_gpu watch                                  what the GPU does until the input ends
 *
 * gpu: its name, then after a | the libraries and which kernels of ours there are. The others write
 * one line of numbers. step: median microseconds a step of one function, samples a second of all,
 * then as watch; share: the first two. start: milliseconds of making the process warm, of
 * compiling the model, of its weights, of the first batch with its graph, and of these three
 * together. parts: lines of a name and milliseconds. merge: bytes
 * a second moved by the merge and by a copy. norm: see bench_norm.h. watch: the GPU's utilisation
 * in percent and its watts, means over time, and the most MiB taken, all of NVML's and -1 where it
 * does not tell. Exit status 77: no GPU; 3: not in this build. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/rng.h"
#include "common/contract/nvml.h"
#include "host_share.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_program.h"
#include "kernels/cuda/driver.h"
#include "kernels/engine.h"
#include "kernels/zoo/zoo.h"
#ifndef ON_SHIM
#include "bench_norm.h"
#endif

enum { FUNCTIONS_MAX = 64, ROUNDS = 9, CLASSES = 10, SAMPLE_MS = 20, NOT_BUILT = 3 };
#ifdef ON_SHIM /* where nothing is to be learnt from how long it takes */
enum {
    WARM_STEPS = 1,
    STEPS_LEAST = 1,
    STEPS_EACH = 1,
    ROUND_US = 1,
    SETTLING_US = 0,
    MERGES_EACH = 1
};
#else
/* NVML tells of the last second or less: what is measured lasts some of them, and the first does
 * not count. */
enum {
    WARM_STEPS = 20,
    STEPS_LEAST = 10, /* of a round */
    STEPS_EACH = 50,  /* of a call over a share */
    ROUND_US = 250000,
    SETTLING_US = 1000000,
    MERGES_EACH = 50
};
#endif

static int fail(const err *e)
{
    fprintf(stderr, "bench_gpu: %s\n", e->message);
    return 1;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- what the GPU does ----------------------------------------------------------------------- */

typedef struct watch {
    nvml *gpu; /* NULL: there is no NVML */
    double begin_us;
    int samples;
    double busy_percent, watts, most_mib; /* sums of the first two */
} watch;

static void watch_begin(watch *w)
{
    err ignored = ERR_INIT;
    *w = (watch){.most_mib = -1};
    if (nvml_open(&w->gpu, &ignored))
        w->gpu = NULL;
    w->begin_us = now_us(); /* opening takes its time */
}

static void watch_sample(watch *w)
{
    nvml_sample s;
    err ignored = ERR_INIT;
    if (!w->gpu || now_us() - w->begin_us < SETTLING_US || nvml_read(w->gpu, &s, &ignored))
        return;
    double mib = s.memory_total ? (double)s.memory_bytes / 0x1p20 : -1;
    w->samples++;
    w->busy_percent += s.busy_percent;
    w->watts += s.watts;
    w->most_mib = mib > w->most_mib ? mib : w->most_mib;
}

static void watch_print(watch *w)
{
    double n = w->samples;
    if (w->samples)
        printf("%.1f %.1f %.0f\n", w->busy_percent / n, w->watts / n, w->most_mib);
    else
        printf("-1 -1 -1\n");
    nvml_close(w->gpu);
}

static int watch_input(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    watch w;
    watch_begin(&w);
    while (poll(&input, 1, SAMPLE_MS) == 0)
        watch_sample(&w);
    watch_print(&w);
    return 0;
}

/* ---- training steps -------------------------------------------------------------------------- */

typedef struct function {
    pthread_t thread;
    engine_config c;
    double warm_us, median_us, end_us;
    err e;
    int failed;
} function;

static pthread_barrier_t ready; /* all are warm; then, all know how many steps */
static int steps_each;          /* of a round, for all alike; written between the two */
static atomic_int ended;

/* Microseconds a step. */
static double time_round(function *f, engine *m, const engine_batch *b, int steps)
{
    engine_result r;
    double begin = now_us();
    for (int i = 0; !f->failed && i < steps; i++)
        f->failed = engine_train(m, b, 0.01, &r, &f->e);
    return (now_us() - begin) / steps;
}

static void time_steps(function *f, engine *m, const engine_batch *b)
{
    double rounds[ROUNDS];
    time_round(f, m, b, WARM_STEPS);
    f->warm_us = time_round(f, m, b, WARM_STEPS);
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&ready);
    for (int i = 0; i < ROUNDS; i++)
        rounds[i] = time_round(f, m, b, steps_each);
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    f->median_us = rounds[ROUNDS / 2];
    f->end_us = now_us();
    atomic_fetch_add(&ended, 1);
}

typedef struct drawn_batch {
    engine_batch b;
    float *x;
    int32_t *labels;
} drawn_batch;

static int draw_batch(const engine_config *c, drawn_batch *out, err *e)
{
    int n = c->batch;
    size_t floats = shape_count(c->input) * (size_t)n;
    rng r;
    out->x = calloc(floats, sizeof *out->x);
    out->labels = calloc((size_t)n, sizeof *out->labels);
    out->b = (engine_batch){.n = n, .x = out->x, .labels = out->labels};
    if (!out->x || !out->labels)
        return err_set(e, ERR_NOMEM, "no memory for a batch");
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (size_t i = 0; i < floats; i++)
        out->x[i] = rng_uniform(&r);
    for (int i = 0; i < n; i++)
        out->labels[i] = (int32_t)rng_below(&r, CLASSES);
    return 0;
}

static void free_batch(drawn_batch *b)
{
    free(b->x);
    free(b->labels);
}

static void *run(void *arg)
{
    function *f = arg;
    engine *m = NULL;
    drawn_batch b;
    f->failed = draw_batch(&f->c, &b, &f->e) || engine_compile(&f->c, &m, &f->e);
    time_steps(f, m, &b.b);
    engine_free(m);
    free_batch(&b);
    return NULL;
}

/* MODEL BATCH PRECISION */
static int configure(char **args, engine_config *c, err *e)
{
    static const char *const precisions[] = {"fp32", "tf32", "bf16"};
    const zoo_model *z = zoo_find(args[0], e);
    int precision = 0, batch = atoi(args[1]);
    if (!z)
        return -1;
    while (precision < 3 && strcmp(precisions[precision], args[2]) != 0)
        precision++;
    if (precision == 3 || batch < 1)
        return err_set(e, ERR_INVALID, "a wrong precision or batch");
    bool small = z->height <= 32;
    *c = (engine_config){.build = z->build,
                         .input = {3, z->channels, small ? z->height : 32, small ? z->width : 32},
                         .outputs = CLASSES,
                         .batch = batch,
                         .backend = "cuda",
                         .precision = (backend_precision)precision,
                         .optim = {.kind = OPTIM_SGD, .momentum = 0.9},
                         .seed = 1};
    return 0;
}

/* Watches the GPU until all have ended; returns when the last of them did. */
static double watch_functions(const function *f, int functions, watch *w)
{
    double end = 0;
    while (atomic_load(&ended) < functions) {
        nanosleep(&(struct timespec){.tv_nsec = SAMPLE_MS * 1000000L}, NULL);
        watch_sample(w);
    }
    for (int i = 0; i < functions; i++)
        end = f[i].end_us > end ? f[i].end_us : end;
    return end;
}

static int time_functions(function *f, int functions, err *e)
{
    watch w;
    double slowest = 1, median = 0;
    pthread_barrier_wait(&ready);
    for (int i = 0; i < functions; i++)
        slowest = f[i].warm_us > slowest ? f[i].warm_us : slowest;
    steps_each = ROUND_US / slowest > STEPS_LEAST ? (int)(ROUND_US / slowest) : STEPS_LEAST;
    watch_begin(&w);
    pthread_barrier_wait(&ready);
    double all_us = watch_functions(f, functions, &w) - w.begin_us;
    for (int i = 0; i < functions; i++) {
        pthread_join(f[i].thread, NULL);
        if (f[i].failed) {
            *e = f[i].e;
            return -1;
        }
        median = f[i].median_us > median ? f[i].median_us : median;
    }
    double samples = (double)functions * f->c.batch * steps_each * ROUNDS;
    printf("%.2f %.1f ", median, samples / all_us * 1e6);
    watch_print(&w);
    return 0;
}

static int bench_step(int argc, char **argv)
{
    static function f[FUNCTIONS_MAX];
    err e = ERR_INIT;
    engine_config c;
    int functions = argc > 5 ? atoi(argv[5]) : 1;
    if (configure(argv + 2, &c, &e))
        return fail(&e);
    if (functions < 1 || functions > FUNCTIONS_MAX)
        return err_set(&e, ERR_INVALID, "a wrong number of functions"), fail(&e);
    pthread_barrier_init(&ready, NULL, (unsigned)functions + 1);
    for (int i = 0; i < functions; i++) {
        f[i].c = c;
        if (pthread_create(&f[i].thread, NULL, run, &f[i]))
            return err_set(&e, ERR_UNAVAILABLE, "no thread"), fail(&e);
    }
    return time_functions(f, functions, &e) ? fail(&e) : 0;
}

/* ---- steps over a share on the device -------------------------------------------------------- */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if (call)                                                                                  \
            return fail(&e);                                                                       \
    } while (0)

/* Microseconds a step, of as many calls as last a round. */
static int time_calls(engine *m, const backend_steps *s, int calls, double *us, err *e)
{
    engine_result r;
    double begin = now_us();
    for (int i = 0; i < calls; i++)
        if (engine_train_share(m, s, &r, e))
            return -1;
    *us = (now_us() - begin) / (calls * STEPS_EACH);
    return 0;
}

static int bench_share(char **argv)
{
    err e = ERR_INIT;
    engine_config c;
    engine *m;
    static double lr[STEPS_EACH], rounds[ROUNDS];
    TRY(configure(argv + 2, &c, &e));
    TRY(engine_compile(&c, &m, &e));
    uint32_t rows = (uint32_t)c.batch * STEPS_EACH;
    uint8_t *x = calloc(rows, shape_count(c.input));
    int32_t *labels = calloc(rows, sizeof *labels);
    uint64_t *keys = calloc(rows, sizeof *keys);
    uint32_t *order = calloc(rows, sizeof *order);
    if (!x || !labels || !keys || !order)
        return err_set(&e, ERR_NOMEM, "no memory"), fail(&e);
    rng random;
    rng_init(&random, 1, RNG_TEST, 0, 0);
    rng_permutation(&random, order, rows);
    for (size_t i = 0; i < rows * shape_count(c.input); i++)
        x[i] = (uint8_t)rng_u32(&random);
    for (uint32_t i = 0; i < rows; i++) {
        labels[i] = (int32_t)rng_below(&random, CLASSES);
        keys[i] = i;
    }
    for (int i = 0; i < STEPS_EACH; i++)
        lr[i] = 0.01;
    host_share host = {
        .x = x, .sample_bytes = shape_count(c.input), .labels = labels, .keys = keys};
    static const float scale[3] = {1 / 255.0f, 1 / 255.0f, 1 / 255.0f}, shift[3];
    backend_share samples = {.rows = rows,
                           .rows_each = rows,
                           .type = INPUT_UINT8,
                           .reader = {host_share_read, &host},
                           .scale = scale,
                           .shift = shift,
                           .flip = true,
                           .crop = 4};
    TRY(engine_share(m, &samples, &e));
    TRY(engine_bring(m, order, rows, &e));
    backend_steps steps = {.order = order, .rows = rows, .batch = c.batch, .lr = lr};
    double warm;
    TRY(time_calls(m, &steps, 1, &warm, &e));
    TRY(time_calls(m, &steps, 1, &warm, &e));
    int calls = 1 + (int)(ROUND_US / (warm * STEPS_EACH));
    TRY(time_calls(m, &steps, calls, &warm, &e)); /* clocks rise while something runs */
    for (int i = 0; i < ROUNDS; i++)
        TRY(time_calls(m, &steps, calls, &rounds[i], &e));
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    printf("%.2f %.1f\n", rounds[ROUNDS / 2], c.batch / rounds[ROUNDS / 2] * 1e6);
    engine_free(m);
    free(x);
    free(labels);
    free(keys);
    free(order);
    return 0;
}

/* ---- a warm process's first batch ------------------------------------------------------------ */

/* What a function of the pool has before a job asks for it (context, stream, handles, cache of
 * algorithms), then what it does from the model on; its code, its data and the model that it
 * fetches are the platform's. */
static int bench_start(char **argv)
{
    err e = ERR_INIT;
    engine_config c;
    engine *m, *reference;
    engine_result r;
    drawn_batch b;
    TRY(configure(argv + 2, &c, &e));
    TRY(draw_batch(&c, &b, &e));
    engine_config host = c;
    host.backend = "reference";
    host.precision = PRECISION_FP32;
    TRY(engine_compile(&host, &reference, &e));
    c.blank = true;
    double begin = now_us();
    TRY(backend_warm("cuda", 0, &e));
    backend_preload("cuda", 0);
    double warm = now_us();
    TRY(engine_compile(&c, &m, &e));
    double compiled = now_us();
    TRY(engine_import(m, engine_floats(reference, &e), engine_counters(reference, &e), &e));
    double loaded = now_us();
    TRY(engine_train(m, &b.b, 0.01, &r, &e));
    double end = now_us();
    printf("%.2f %.2f %.2f %.2f %.2f\n", (warm - begin) / 1e3, (compiled - warm) / 1e3,
           (loaded - compiled) / 1e3, (end - loaded) / 1e3, (end - warm) / 1e3);
    engine_free(m);
    engine_free(reference);
    free_batch(&b);
    return 0;
}

/* Prints what the time since *since went to, and begins anew. */
static void print_part(const char *name, double *since)
{
    printf("%-32s %8.2f\n", name, (now_us() - *since) / 1e3);
    *since = now_us();
}

/* The backend's side of engine_compile and of a first training batch, step by step as prepare and
 * the first step take them; what the engine does itself is left out. */
static int prepare_parts(const graph *g, const backend_config *c, program **out, err *e)
{
    uint32_t apart;
    double since = now_us();
    if (backend_warm("cuda", 0, e))
        return -1;
    print_part("making the process warm", &since);
    backend_preload("cuda", 0);
    print_part("running what is known", &since);
    if (cuda_fuse(g, c, &apart, e))
        return -1;
    print_part("what is fused", &since);
    if (cuda_begin(g, c, apart, out, e))
        return -1;
    print_part("the device and layers", &since);
    if (cuda_plan_memory(*out, e))
        return -1;
    print_part("memory", &since);
    if (cuda_choose(*out, e))
        return -1;
    print_part("algorithms and their first runs", &since);
    if (cuda_driver->wait((*out)->dev, e))
        return -1;
    print_part("waiting for these", &since);
    if (cuda_graph(*out, RUN_STEP, e))
        return -1;
    print_part("a step's graph", &since);
    if (cuda_driver->replay((*out)->dev, (*out)->graphs[RUN_STEP], e))
        return -1;
    print_part("its first start", &since);
    if (cuda_driver->wait((*out)->dev, e))
        return -1;
    print_part("its first run", &since);
    return 0;
}

static int bench_parts(char **argv)
{
    err e = ERR_INIT;
    engine_config c;
    program *p = NULL;
    TRY(configure(argv + 2, &c, &e));
    graph *g = graph_new(c.input);
    if (!g)
        return err_set(&e, ERR_NOMEM, "no memory for the model's graph"), fail(&e);
    TRY(graph_finish(g, c.build(g, 0, c.outputs, c.user), c.outputs, &e));
    backend_config b = {
        .batch = c.batch, .threads = 1, .precision = c.precision, .optim = c.optim, .seed = c.seed};
    TRY(prepare_parts(g, &b, &p, &e));
    cuda_release(&p->base);
    graph_free(g);
    return 0;
}

/* ---- averaging ------------------------------------------------------------------------------- */

/* What is averaged, and where to; random, as zeros may be faster than life. */
typedef struct merging {
    device *dev;
    int models;
    size_t floats;
    void *in[CUDA_MERGE_MAX], *out, *finite;
    double weight[CUDA_MERGE_MAX];
} merging;

static int fill_models(merging *g, err *e)
{
    size_t bytes = g->floats * sizeof(float);
    cleanup_free float *drawn = malloc(bytes);
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    if (!drawn)
        return err_set(e, ERR_NOMEM, "no memory for a model");
    for (size_t i = 0; i < g->floats; i++)
        drawn[i] = rng_uniform(&r);
    for (int k = 0; k < g->models; k++) {
        if (cuda_memory_take(cuda_driver, g->dev, bytes, "a model", &g->in[k], e) ||
            cuda_driver->copy(g->dev, g->in[k], drawn, bytes, COPY_IN, e) ||
            cuda_driver->wait(g->dev, e))
            return -1;
        g->weight[k] = 1.0 / g->models;
    }
    return cuda_memory_take(cuda_driver, g->dev, bytes, "the mean", &g->out, e) ||
                   cuda_memory_take(cuda_driver, g->dev, 256, "a flag", &g->finite, e)
               ? -1
               : 0;
}

/* Every model once to the mean's place. */
static int copy_models(const merging *g, err *e)
{
    for (int k = 0; k < g->models; k++)
        if (cuda_driver->copy(g->dev, g->out, g->in[k], g->floats * sizeof(float), COPY_WITHIN, e))
            return -1;
    return 0;
}

static int merge_models(const merging *g, err *e)
{
    (void)e;
    cuda_merge(cuda_driver->stream(g->dev), g->models, (const float *const *)(const void *)g->in,
               g->weight, g->floats, g->out, g->finite);
    return 0;
}

/* Microseconds of each, of MERGES_EACH in a row. */
static int time_merging(const merging *g, int (*f)(const merging *g, err *e), double *us, err *e)
{
    float all;
    if (cuda_driver->mark(g->dev, 0, e))
        return -1;
    for (int i = 0; i < MERGES_EACH; i++)
        if (f(g, e))
            return -1;
    if (cuda_driver->mark(g->dev, 1, e) || cuda_driver->elapsed(g->dev, &all, e))
        return -1;
    *us = (double)all / MERGES_EACH;
    return 0;
}

static int bench_merge(char **argv)
{
    err e = ERR_INIT;
    merging g = {.models = atoi(argv[2]), .floats = (size_t)atoll(argv[3])};
    double merged[ROUNDS], copied[ROUNDS], bytes = (double)g.floats * sizeof(float);
    if (g.models < 1 || g.models > CUDA_MERGE_MAX || g.floats < 1)
        return err_set(&e, ERR_INVALID, "a wrong number of models or floats"), fail(&e);
    TRY(cuda_driver->open(0, &g.dev, &e));
    TRY(fill_models(&g, &e));
    for (int i = -2; i < ROUNDS; i++) { /* two of each for the clocks */
        int at = i < 0 ? 0 : i;
        TRY(time_merging(&g, merge_models, &merged[at], &e));
        TRY(time_merging(&g, copy_models, &copied[at], &e));
    }
    qsort(merged, ROUNDS, sizeof *merged, compare);
    qsort(copied, ROUNDS, sizeof *copied, compare);
    printf("%.0f %.0f\n", (g.models + 1) * bytes / merged[ROUNDS / 2] * 1e6,
           2 * g.models * bytes / copied[ROUNDS / 2] * 1e6);
    for (int k = 0; k < g.models; k++)
        cuda_memory_give(cuda_driver, g.dev, g.in[k], g.floats * sizeof(float));
    cuda_memory_give(cuda_driver, g.dev, g.out, g.floats * sizeof(float));
    cuda_memory_give(cuda_driver, g.dev, g.finite, 256);
    cuda_driver->close(g.dev);
    return 0;
}

/* ---- batch norm ------------------------------------------------------------------------------ */

#ifdef ON_SHIM
static int norm_beside_cudnn(char **argv)
{
    (void)argv;
    fprintf(stderr, "bench_gpu: norm is not in this build, which has no cuDNN\n");
    return NOT_BUILT;
}
#else
static int norm_beside_cudnn(char **argv)
{
    err e = ERR_INIT;
    bool bf16 = strcmp(argv[5], "bf16") == 0;
    if (!bf16 && strcmp(argv[5], "fp32") != 0)
        return err_set(&e, ERR_INVALID, "a wrong precision"), fail(&e);
    TRY(bench_norm(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), bf16 ? ELEMENT_BF16 : ELEMENT_F32,
                   &e));
    return 0;
}
#endif

static int print_gpu(void)
{
    err e = ERR_INIT;
    device *dev;
    device_facts f;
    char key[KEY_BYTES];
    TRY(cuda_driver->open(0, &dev, &e));
    TRY(cuda_driver->facts(dev, &f, &e));
    cuda_begin_key(&f, key);
    printf("%.*s\n", (int)strlen(key) - 1, key); /* without the last | */
    cuda_driver->close(dev);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    err why = ERR_INIT;
    if (cuda_driver->missing(&why) != 0) {
        fprintf(stderr, "bench_gpu: %s\n", why.message);
        return 77;
    }
    if (argc == 2 && strcmp(what, "gpu") == 0)
        return print_gpu();
    if (argc == 2 && strcmp(what, "watch") == 0)
        return watch_input();
    if ((argc == 5 || argc == 6) && strcmp(what, "step") == 0)
        return bench_step(argc, argv);
    if (argc == 5 && strcmp(what, "share") == 0)
        return bench_share(argv);
    if (argc == 5 && strcmp(what, "start") == 0)
        return bench_start(argv);
    if (argc == 5 && strcmp(what, "parts") == 0)
        return bench_parts(argv);
    if (argc == 4 && strcmp(what, "merge") == 0)
        return bench_merge(argv);
    if (argc == 6 && strcmp(what, "norm") == 0)
        return norm_beside_cudnn(argv);
    fprintf(stderr, "usage: bench_gpu gpu | step MODEL BATCH PRECISION [N] | watch |\n"
                    "       share MODEL BATCH PRECISION | start MODEL BATCH PRECISION |\n"
                    "       parts MODEL BATCH PRECISION | merge MODELS FLOATS |\n"
                    "       norm CHANNELS SIDE BATCH PRECISION\n");
    return 2;
}
