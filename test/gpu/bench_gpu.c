/* bench_gpu.c: our side of `make bench-gpu`; bench_gpu.py drives it beside PyTorch.
 *
 *   bench_gpu gpu                                    the device's name
 *   bench_gpu step MODEL BATCH PRECISION [N]         N functions (threads, a stream each) of that
 *   bench_gpu share MODEL BATCH PRECISION            one function, its samples on the device
 *   bench_gpu merge MODELS FLOATS                    averaging beside a plain copy
 *
 * Writes one line of numbers: step: median microseconds a step of one function, samples a second of
 * all; merge: bytes a second moved by the merge and by a copy. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/cuda_memory.h"
#include "cuda/driver.h"
#include "engine.h"
#include "rng.h"
#include "zoo/zoo.h"

enum { FUNCTIONS_MAX = 64, WARM_STEPS = 20, ROUNDS = 9, STEPS_EACH = 50, CLASSES = 10 };

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

/* ---- training steps -------------------------------------------------------------------------- */

typedef struct function {
    pthread_t thread;
    engine_config c;
    double median_us;
    err e;
    int failed;
} function;

static pthread_barrier_t ready;

static void time_steps(function *f, engine *m, const engine_batch *b)
{
    double rounds[ROUNDS];
    engine_result r;
    for (int i = 0; !f->failed && i < WARM_STEPS; i++)
        f->failed = engine_train(m, b, 0.01, &r, &f->e);
    pthread_barrier_wait(&ready);
    for (int i = 0; i < ROUNDS; i++) {
        double begin = now_us();
        for (int j = 0; !f->failed && j < STEPS_EACH; j++)
            f->failed = engine_train(m, b, 0.01, &r, &f->e);
        rounds[i] = (now_us() - begin) / STEPS_EACH;
    }
    pthread_barrier_wait(&ready);
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    f->median_us = rounds[ROUNDS / 2];
}

static void *run(void *arg)
{
    function *f = arg;
    engine *m = NULL;
    int batch = f->c.batch;
    size_t floats = shape_count(f->c.input) * (size_t)batch;
    float *x = calloc(floats, sizeof *x);
    int32_t *labels = calloc((size_t)batch, sizeof *labels);
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (size_t i = 0; x && i < floats; i++)
        x[i] = rng_uniform(&r);
    for (int i = 0; labels && i < batch; i++)
        labels[i] = (int32_t)rng_below(&r, CLASSES);
    f->failed = !x || !labels ? err_set(&f->e, ERR_NOMEM, "no memory")
                              : engine_compile(&f->c, &m, &f->e);
    engine_batch b = {.n = batch, .x = x, .labels = labels};
    time_steps(f, m, &b);
    engine_free(m);
    free(x);
    free(labels);
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
    pthread_barrier_wait(&ready);
    double begin = now_us();
    pthread_barrier_wait(&ready);
    double all_us = now_us() - begin, median = 0;
    for (int i = 0; i < functions; i++) {
        pthread_join(f[i].thread, NULL);
        if (f[i].failed)
            return fail(&f[i].e);
        median = f[i].median_us > median ? f[i].median_us : median;
    }
    double samples = (double)functions * c.batch * STEPS_EACH * ROUNDS;
    printf("%.2f %.1f\n", median, samples / all_us * 1e6);
    return 0;
}

/* ---- steps over a share on the device -------------------------------------------------------- */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if (call)                                                                                  \
            return fail(&e);                                                                       \
    } while (0)

static int bench_share(char **argv)
{
    err e = ERR_INIT;
    engine_config c;
    engine *m;
    engine_result r;
    static double lr[STEPS_EACH], rounds[ROUNDS];
    TRY(configure(argv + 2, &c, &e));
    TRY(engine_compile(&c, &m, &e));
    uint32_t rows = (uint32_t)c.batch * STEPS_EACH;
    uint8_t *x = calloc(rows, shape_count(c.input));
    const uint8_t **each = calloc(rows, sizeof *each);
    int32_t *labels = calloc(rows, sizeof *labels);
    uint64_t *keys = calloc(rows, sizeof *keys);
    uint32_t *order = calloc(rows, sizeof *order);
    if (!x || !each || !labels || !keys || !order)
        return err_set(&e, ERR_NOMEM, "no memory"), fail(&e);
    rng random;
    rng_init(&random, 1, RNG_TEST, 0, 0);
    rng_permutation(&random, order, rows);
    for (uint32_t i = 0; i < rows; i++) {
        each[i] = x + i * shape_count(c.input);
        labels[i] = (int32_t)rng_below(&random, CLASSES);
        keys[i] = i;
    }
    for (int i = 0; i < STEPS_EACH; i++)
        lr[i] = 0.01;
    backend_share share = {.rows = rows, .x = each, .labels = labels, .sample = keys, .flip = true,
                           .crop = 4};
    TRY(engine_share(m, &share, &e));
    backend_steps steps = {.order = order, .rows = rows, .batch = c.batch, .lr = lr};
    TRY(engine_train_share(m, &steps, &r, &e));
    for (int i = 0; i < ROUNDS; i++) {
        double begin = now_us();
        TRY(engine_train_share(m, &steps, &r, &e));
        rounds[i] = (now_us() - begin) / STEPS_EACH;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    printf("%.2f %.1f\n", rounds[ROUNDS / 2], c.batch / rounds[ROUNDS / 2] * 1e6);
    engine_free(m);
    free(x);
    free(each);
    free(labels);
    free(keys);
    free(order);
    return 0;
}

/* ---- averaging ------------------------------------------------------------------------------- */

static int bench_merge(char **argv)
{
    err e = ERR_INIT;
    const driver *d = cuda_driver;
    device *dev;
    int models = atoi(argv[2]);
    size_t floats = (size_t)atoll(argv[3]), bytes = floats * sizeof(float);
    if (models < 1 || models > CUDA_MERGE_MAX || floats < 1)
        return err_set(&e, ERR_INVALID, "a wrong number of models or floats"), fail(&e);
    void *in[CUDA_MERGE_MAX], *out, *finite;
    double weight[CUDA_MERGE_MAX];
    TRY(d->open(0, &dev, &e));
    for (int k = 0; k < models; k++) {
        TRY(cuda_memory_take(d, dev, bytes, "a model", &in[k], &e));
        TRY(d->zero(dev, in[k], bytes, &e));
        weight[k] = 1.0 / models;
    }
    TRY(cuda_memory_take(d, dev, bytes, "the mean", &out, &e));
    TRY(cuda_memory_take(d, dev, 256, "a flag", &finite, &e));
    double merged[ROUNDS], copied[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) {
        float us;
        TRY(d->mark(dev, 0, &e));
        cuda_merge(d->stream(dev), models, (const float *const *)(void *)in, weight, floats, out,
                   finite);
        TRY(d->mark(dev, 1, &e));
        TRY(d->elapsed(dev, &us, &e));
        merged[i < 0 ? 0 : i] = (double)(models + 1) * (double)bytes / (double)us * 1e6;
        TRY(d->mark(dev, 0, &e));
        for (int k = 0; k < models; k++)
            TRY(d->copy(dev, out, in[k], bytes, COPY_WITHIN, &e));
        TRY(d->mark(dev, 1, &e));
        TRY(d->elapsed(dev, &us, &e));
        copied[i < 0 ? 0 : i] = 2.0 * models * (double)bytes / (double)us * 1e6;
    }
    qsort(merged, ROUNDS, sizeof *merged, compare);
    qsort(copied, ROUNDS, sizeof *copied, compare);
    printf("%.0f %.0f\n", merged[ROUNDS / 2], copied[ROUNDS / 2]);
    return 0;
}

static int print_gpu(void)
{
    err e = ERR_INIT;
    device *dev;
    device_facts f;
    const char *why = cuda_driver->missing();
    if (why) {
        fprintf(stderr, "bench_gpu: %s\n", why);
        return 77;
    }
    TRY(cuda_driver->open(0, &dev, &e));
    TRY(cuda_driver->facts(dev, &f, &e));
    printf("%s|%s\n", f.name, f.libraries);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "gpu") == 0)
        return print_gpu();
    if ((argc == 5 || argc == 6) && strcmp(argv[1], "step") == 0)
        return bench_step(argc, argv);
    if (argc == 5 && strcmp(argv[1], "share") == 0)
        return bench_share(argv);
    if (argc == 4 && strcmp(argv[1], "merge") == 0)
        return bench_merge(argv);
    fprintf(stderr, "usage: bench_gpu gpu | step MODEL BATCH PRECISION [N] |\n"
                    "       share MODEL BATCH PRECISION | merge MODELS FLOATS\n");
    return 2;
}
