/* bench_epoch.c: what an epoch costs the engine alone, for the same batches as a job's.
 *
 * usage: bench_epoch LOCATOR PARALLELISM BATCH EPOCHS
 *
 * Forks PARALLELISM processes of one thread. Each takes the share that shard_plan.h deals it, in
 * the job's order, from samples that lie in memory, trains LeNet-5 on every batch and then
 * evaluates its share of the test set; all wait for each other after each epoch, as a job's
 * functions do. No store, no model store, no merge. Prints the seconds of every epoch but the
 * first, which warms the caches. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/contract/shard_plan.h"
#include "common/dataset/dataset.h"
#include "kernels/engine.h"
#include "kernels/zoo/zoo.h"

enum { BATCH_MAX = 1024 };

typedef struct bench {
    dataset *data;
    const dataset_info *info;
    engine *model;
    dataset_chunk *views[DATASET_SPLITS];
    int parallelism, function, batch;
    float scale[3], shift[3];
} bench;

static void die(const err *e)
{
    fprintf(stderr, "bench_epoch: %s\n", e->message);
    exit(1);
}

/* All chunks of the set, verified once and kept: the samples lie in memory. */
static void view_all(bench *b, dataset_split split)
{
    err e = ERR_INIT;
    b->views[split] = calloc(b->info->chunks[split], sizeof *b->views[split]);
    for (uint32_t i = 0; i < b->info->chunks[split]; i++)
        if (!b->views[split] || dataset_view(b->data, split, i, &b->views[split][i], &e))
            die(&e);
}

static const char *sample_at(const bench *b, dataset_split split, uint32_t chunk, uint32_t offset,
                             int32_t *label)
{
    const dataset_chunk *view = &b->views[split][chunk];
    *label = view->labels[offset];
    return (const char *)view->data +
           (size_t)offset * b->info->channels * b->info->height * b->info->width;
}

static void run_batch(bench *b, const void **rows, const int32_t *labels, int n, bool train)
{
    err e = ERR_INIT;
    engine_result result;
    engine_batch batch = {.n = n, .type = INPUT_UINT8, .rows = rows, .scale = b->scale,
                          .shift = b->shift, .labels = labels};
    if (train ? engine_train(b->model, &batch, 0.01, &result, &e)
              : engine_eval(b->model, &batch, &result, &e))
        die(&e);
}

static void train_epoch(bench *b, const shard_plan *d, const uint32_t *order)
{
    const void *rows[BATCH_MAX];
    int32_t labels[BATCH_MAX];
    int n = 0;
    for (uint64_t i = 0; i < d->share[b->function]; i++) {
        uint32_t chunk, offset;
        shard_plan_locate(d, b->function, order[i], &chunk, &offset);
        rows[n] = sample_at(b, DATASET_TRAIN, chunk, offset, &labels[n]);
        if (++n == b->batch || i + 1 == d->share[b->function]) {
            run_batch(b, rows, labels, n, true);
            n = 0;
        }
    }
}

static void test_epoch(bench *b)
{
    const void *rows[BATCH_MAX];
    int32_t labels[BATCH_MAX];
    uint32_t begin, end;
    uint64_t samples;
    int n = 0;
    shard_plan_test_share(b->info->samples[DATASET_TEST], b->info->chunk_samples, b->parallelism,
                          b->function, &begin, &end, &samples);
    for (uint64_t i = 0; i < samples; i++) {
        uint32_t in_chunk = (uint32_t)(i % b->info->chunk_samples);
        uint32_t chunk = begin + (uint32_t)(i / b->info->chunk_samples);
        rows[n] = sample_at(b, DATASET_TEST, chunk, in_chunk, &labels[n]);
        if (++n == b->batch || i + 1 == samples) {
            run_batch(b, rows, labels, n, false);
            n = 0;
        }
    }
}

static void open_bench(bench *b, const char *locator)
{
    err e = ERR_INIT;
    zoo_options options = {.stem = ZOO_STEM_AUTO};
    const zoo_model *zoo = zoo_find("lenet5", &e);
    if (!zoo || dataset_open(locator, &b->data, &e))
        die(&e);
    b->info = dataset_get_info(b->data);
    view_all(b, DATASET_TRAIN);
    view_all(b, DATASET_TEST);
    engine_config c = {.build = zoo->build,
                       .user = &options,
                       .input =
                           {3, (int)b->info->channels, (int)b->info->height, (int)b->info->width},
                       .outputs = (int)b->info->classes,
                       .batch = b->batch,
                       .threads = 1,
                       .optim = optim_default(OPTIM_SGD)};
    c.optim.momentum = 0.9;
    c.optim.weight_decay = 1e-4;
    if (engine_compile(&c, &b->model, &e))
        die(&e);
    for (uint32_t i = 0; i < b->info->channels; i++) {
        b->scale[i] = 1 / 255.0f / b->info->std[i];
        b->shift[i] = -b->info->mean[i] / b->info->std[i];
    }
}

static void run_function(bench *b, const char *locator, int epochs, pthread_barrier_t *together)
{
    err e = ERR_INIT;
    open_bench(b, locator);
    int64_t started = 0;
    for (int epoch = 0; epoch < epochs; epoch++) {
        shard_plan d = {0};
        shard_plan_spec spec = {.samples = b->info->samples[DATASET_TRAIN],
                                .chunk_samples = b->info->chunk_samples,
                                .batch_size = (uint32_t)b->batch,
                                .parallelism = b->parallelism,
                                .epoch = (uint32_t)epoch};
        if (shard_plan_init(&d, &spec, &e))
            die(&e);
        uint32_t *order = malloc(d.share[b->function] * sizeof *order);
        if (!order)
            exit(1);
        shard_plan_order(&d, b->function, order);
        pthread_barrier_wait(together);
        if (b->function == 0)
            started = clock_monotonic_ns();
        train_epoch(b, &d, order);
        pthread_barrier_wait(together);
        test_epoch(b);
        pthread_barrier_wait(together);
        if (b->function == 0 && epoch > 0)
            printf("%.6f\n", (double)(clock_monotonic_ns() - started) * 1e-9);
        free(order);
        shard_plan_free(&d);
    }
    engine_free(b->model);
    dataset_close(b->data); /* the views lie in it */
    free(b->views[DATASET_TRAIN]);
    free(b->views[DATASET_TEST]);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: bench_epoch LOCATOR PARALLELISM BATCH EPOCHS\n");
        return 2;
    }
    int parallelism = (int)strtol(argv[2], NULL, 10), batch = (int)strtol(argv[3], NULL, 10);
    int epochs = (int)strtol(argv[4], NULL, 10);
    if (parallelism < 1 || parallelism > SHARD_PLAN_FUNCTIONS_MAX || batch < 1 || batch > BATCH_MAX)
        return 2;
    pthread_barrier_t *together = mmap(NULL, sizeof *together, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(together, &shared, (unsigned)parallelism);
    for (int f = 0; f < parallelism; f++) {
        if (fork() != 0)
            continue;
        bench b = {.parallelism = parallelism, .function = f, .batch = batch};
        run_function(&b, argv[1], epochs, together);
        fflush(NULL);
        _exit(0);
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
