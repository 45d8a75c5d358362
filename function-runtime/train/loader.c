/* loader.c: see loader.h. */
#include "loader.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/prefetch.h"
#include "common/contract/shard_plan.h"

typedef struct slot {
    int n;
    const void **rows;
    int32_t *labels;
    float *targets;
    uint64_t *sample;
    unsigned char *moved; /* (batch, C, H, W), where a transform moves bytes; else NULL */
} slot;

/* The open run: positions [at, end) of the share's order, or of the test set. */
typedef struct run {
    bool open, training;
    uint32_t epoch;
    int function;
    uint64_t at, end;
    uint32_t test_chunk;
} run;

struct loader {
    loader_config config;
    const dataset_info *info;
    size_t sample_bytes, each;
    float *scale, *shift;
    slot slot;

    shard_plan shard_plan; /* of the last (epoch, parallelism), which only saves making it again */
    bool dealt;            /* there is a shard plan */
    uint32_t *order; /* of the last function's share */
    int ordered;     /* the function of `order`; -1: none */

    dataset_chunk *chunks; /* views of the run, by place in chunk_list */
    bool *viewed;
    uint32_t chunk_count;
    const uint32_t *chunk_list; /* NULL: consecutive from run.test_chunk */

    run run;

    bool lent; /* the engine reads a chunk of the training set, as rows of a share */
    uint32_t lent_chunk;
    uint64_t *keys; /* of that chunk's samples; NULL until loader_share */
};

_Static_assert(DATASET_SAMPLES_MAX <= INT32_MAX, "rows of a share are counted in 32 bits");

/* ---- memory ---------------------------------------------------------------------------------- */

static int slot_init(loader *l, slot *s, bool moves, err *e)
{
    size_t n = (size_t)l->config.batch, targets = l->info->targets;
    s->rows = calloc(n, sizeof *s->rows);
    s->labels = calloc(n, sizeof *s->labels);
    s->sample = calloc(n, sizeof *s->sample);
    s->targets = targets ? calloc(n * targets, sizeof *s->targets) : NULL;
    s->moved = moves ? malloc(n * l->sample_bytes) : NULL;
    if (!s->rows || !s->labels || !s->sample || (targets && !s->targets) || (moves && !s->moved))
        return err_set(e, ERR_NOMEM, "no memory for a batch of %zu samples", n);
    return 0;
}

static void slot_free(slot *s)
{
    free(s->rows);
    free(s->labels);
    free(s->sample);
    free(s->targets);
    free(s->moved);
}

static void release_views(loader *l)
{
    dataset_split split = l->run.training ? DATASET_TRAIN : DATASET_TEST;
    for (uint32_t i = 0; i < l->chunk_count; i++)
        if (l->viewed[i])
            dataset_release(l->config.data, split,
                            l->chunk_list ? l->chunk_list[i] : l->run.test_chunk + i);
    free(l->chunks);
    free(l->viewed);
    l->chunks = NULL;
    l->viewed = NULL;
    l->chunk_count = 0;
}

static void end_ipc_handle(loader *l)
{
    if (l->lent)
        dataset_release(l->config.data, DATASET_TRAIN, l->lent_chunk);
    l->lent = false;
}

static int make_views(loader *l, const uint32_t *list, uint32_t count, err *e)
{
    l->chunk_list = list;
    l->chunks = calloc(count ? count : 1, sizeof *l->chunks);
    l->viewed = calloc(count ? count : 1, sizeof *l->viewed);
    if (!l->chunks || !l->viewed) {
        release_views(l);
        return err_set(e, ERR_NOMEM, "no memory for %u chunks", count);
    }
    l->chunk_count = count;
    return 0;
}

/* ---- filling a batch ------------------------------------------------------------------------- */

/* The chunk at place `i` of the run's list, viewed at its first use. */
static const dataset_chunk *chunk_at(loader *l, uint32_t i, err *e)
{
    if (l->viewed[i])
        return &l->chunks[i];
    dataset_split split = l->run.training ? DATASET_TRAIN : DATASET_TEST;
    uint32_t chunk = l->chunk_list ? l->chunk_list[i] : l->run.test_chunk + i;
    if (dataset_view(l->config.data, split, chunk, &l->chunks[i], e) != 0)
        return NULL;
    l->viewed[i] = true;
    return &l->chunks[i];
}

/* Sets place `i` of the slot to sample `at` of the run, without a copy. */
static int fill_one(loader *l, slot *s, int i, uint64_t at, err *e)
{
    uint64_t index = l->run.training ? l->order[at] : at;
    uint32_t per_chunk = l->info->chunk_samples;
    const dataset_chunk *c = chunk_at(l, (uint32_t)(index / per_chunk), e);
    if (!c)
        return -1;
    uint32_t offset = (uint32_t)(index % per_chunk);
    if (offset >= c->samples)
        return err_set(e, ERR_CORRUPT, "a chunk of the %s set has %u samples, sample %u is needed",
                       dataset_split_name(l->run.training ? DATASET_TRAIN : DATASET_TEST),
                       c->samples, offset);
    const unsigned char *bytes = (const unsigned char *)c->data + offset * l->sample_bytes;
    s->sample[i] = c->index[offset];
    if (c->labels)
        s->labels[i] = c->labels[offset];
    if (c->targets)
        memcpy(s->targets + (size_t)i * l->info->targets,
               c->targets + (size_t)offset * l->info->targets,
               l->info->targets * sizeof *s->targets);
    s->rows[i] = bytes;
    return 0;
}

static void move_all(const loader *l, slot *s)
{
    const dataset_info *d = l->info;
    for (int i = 0; i < s->n; i++) {
        unsigned char *to = s->moved + (size_t)i * l->sample_bytes;
        if (i + 1 < s->n)
            prefetch_bytes(s->rows[i + 1], l->sample_bytes);
        transform_move(l->config.transform, l->config.seed, l->run.epoch, s->sample[i],
                       (int)d->channels, (int)d->height, (int)d->width, l->each, s->rows[i], to);
        s->rows[i] = to;
    }
}

/* Fills a batch. 1: filled; 0: nothing is left. */
static int fill(loader *l, slot *s, err *e)
{
    uint64_t left = l->run.end - l->run.at;
    s->n = (int)(left < (uint64_t)l->config.batch ? left : (uint64_t)l->config.batch);
    for (int i = 0; i < s->n; i++)
        if (fill_one(l, s, i, l->run.at + (uint64_t)i, e) != 0)
            return -1;
    if (s->moved && l->run.training)
        move_all(l, s);
    l->run.at += (uint64_t)s->n;
    return s->n > 0;
}

static backend_type input_type(const loader *l)
{
    return l->info->dtype == DATASET_U8 ? INPUT_UINT8 : INPUT_FLOAT;
}

static void describe(loader *l, const slot *s, engine_batch *out)
{
    *out = (engine_batch){
        .n = s->n,
        .type = input_type(l),
        .rows = s->rows,
        .scale = l->scale,
        .shift = l->shift,
        .labels = l->config.regression ? NULL : s->labels,
        .targets = l->config.regression ? s->targets : NULL,
        .sample = s->sample,
        .epoch = l->run.epoch,
    };
}

/* Announces the run's chunks to a store over the network, in the order of their first use. */
static void announce(loader *l)
{
    if (!dataset_prefetches(l->config.data))
        return;
    uint32_t *chunks = calloc(l->chunk_count ? l->chunk_count : 1, sizeof *chunks);
    bool *listed = calloc(l->chunk_count ? l->chunk_count : 1, sizeof *listed);
    size_t count = 0;
    for (uint64_t at = l->run.at; chunks && listed && at < l->run.end && count < l->chunk_count;
         at++) {
        uint64_t place = (l->run.training ? l->order[at] : at) / l->info->chunk_samples;
        if (listed[place])
            continue;
        listed[place] = true;
        chunks[count++] =
            l->chunk_list ? l->chunk_list[place] : l->run.test_chunk + (uint32_t)place;
    }
    if (count) /* without memory for the list, chunks are fetched when they are viewed */
        dataset_prefetch(l->config.data, l->run.training ? DATASET_TRAIN : DATASET_TEST, chunks,
                         count);
    free(chunks);
    free(listed);
}

/* ---- the loader ------------------------------------------------------------------------------ */

int loader_open(const loader_config *c, loader **out, err *e)
{
    loader *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for the loader");
    l->config = *c;
    l->info = dataset_get_info(c->data);
    l->ordered = -1;
    l->sample_bytes = dataset_sample_bytes(l->info);
    l->each = l->info->dtype == DATASET_U8 ? 1 : sizeof(float);
    l->scale = calloc(l->info->channels, sizeof *l->scale);
    l->shift = calloc(l->info->channels, sizeof *l->shift);
    if (!l->scale || !l->shift)
        err_set(e, ERR_NOMEM, "no memory for the loader");
    int rc = l->scale && l->shift ? slot_init(l, &l->slot, transform_moves(c->transform), e) : -1;
    if (rc != 0) {
        loader_close(l);
        return -1;
    }
    transform_scale(c->transform, l->info, l->scale, l->shift);
    *out = l;
    return 0;
}

void loader_close(loader *l)
{
    if (!l)
        return;
    loader_end(l);
    slot_free(&l->slot);
    free(l->order);
    shard_plan_free(&l->shard_plan);
    free(l->scale);
    free(l->shift);
    free(l->keys);
    free(l);
}

static int shard_plan_epoch(loader *l, uint32_t epoch, int parallelism, err *e)
{
    if (l->dealt && l->shard_plan.spec.epoch == epoch &&
        l->shard_plan.spec.parallelism == parallelism)
        return 0;
    loader_end(l); /* an open run uses the list of chunks in the shard plan */
    shard_plan_free(&l->shard_plan);
    l->shard_plan = (shard_plan){0};
    l->dealt = false;
    l->ordered = -1;
    shard_plan_spec spec = {.seed = l->config.seed,
                            .samples = l->info->samples[DATASET_TRAIN],
                            .chunk_samples = l->info->chunk_samples,
                            .batch_size = (uint32_t)l->config.batch,
                            .parallelism = parallelism,
                            .epoch = epoch};
    if (shard_plan_init(&l->shard_plan, &spec, e) != 0)
        return -1;
    l->dealt = true;
    return 0;
}

static int order_share(loader *l, int function, err *e)
{
    if (l->ordered == function)
        return 0;
    size_t n = (size_t)l->shard_plan.share[function];
    uint32_t *order = realloc(l->order, (n ? n : 1) * sizeof *order);
    if (!order)
        return err_set(e, ERR_NOMEM, "no memory for the order of %zu samples", n);
    l->order = order;
    shard_plan_order(&l->shard_plan, function, order);
    l->ordered = function;
    return 0;
}

int loader_batches(loader *l, uint32_t epoch, int parallelism, int function, uint32_t *out, err *e)
{
    if (shard_plan_epoch(l, epoch, parallelism, e) != 0)
        return -1;
    *out = shard_plan_batches(&l->shard_plan, function);
    return 0;
}

int loader_train(loader *l, uint32_t epoch, int parallelism, int function, uint32_t batch_begin,
                 uint32_t batch_count, uint64_t *begin, uint64_t *end, err *e)
{
    loader_end(l);
    if (function < 0 || function >= parallelism)
        return err_set(e, ERR_INVALID, "function %d of %d", function, parallelism);
    if (shard_plan_epoch(l, epoch, parallelism, e) != 0 || order_share(l, function, e) != 0)
        return -1;
    uint32_t batches = shard_plan_batches(&l->shard_plan, function);
    if (batch_begin > batches || batch_count > batches - batch_begin)
        return err_set(e, ERR_INVALID, "batches %u to %u of a share that has %u", batch_begin,
                       batch_begin + batch_count, batches);
    shard_plan_samples(&l->shard_plan, function, batch_begin, batch_count, begin, end);
    if (make_views(l, shard_plan_chunk_list(&l->shard_plan, function),
                   shard_plan_chunk_count(&l->shard_plan, function), e) != 0)
        return -1;
    l->run = (run){.open = true, .training = true, .epoch = epoch, .function = function,
                   .at = *begin, .end = *end};
    announce(l);
    return 0;
}

int loader_test(loader *l, int parallelism, int function, uint64_t *samples, err *e)
{
    loader_end(l);
    if (parallelism < 1 || function < 0 || function >= parallelism)
        return err_set(e, ERR_INVALID, "function %d of %d", function, parallelism);
    uint32_t begin = 0, end = 0;
    *samples = 0;
    if (l->info->samples[DATASET_TEST])
        shard_plan_test_share(l->info->samples[DATASET_TEST], l->info->chunk_samples, parallelism,
                              function, &begin, &end, samples);
    if (make_views(l, NULL, end - begin, e) != 0)
        return -1;
    l->run = (run){.open = true, .function = function, .end = *samples, .test_chunk = begin};
    announce(l);
    return 0;
}

int loader_next(loader *l, engine_batch *out, err *e)
{
    if (!l->run.open)
        return 0;
    int rc = fill(l, &l->slot, e);
    if (rc > 0)
        describe(l, &l->slot, out);
    return rc;
}

void loader_end(loader *l)
{
    end_ipc_handle(l);
    if (!l->run.open)
        return;
    release_views(l);
    l->run.open = false;
}

/* ---- for an engine that keeps the samples itself --------------------------------------------- */

/* Gives the engine a chunk of the share, and releases the chunk before. */
static int lend_chunk(void *from, uint32_t first, backend_rows *out, err *e)
{
    loader *l = from;
    dataset_chunk c;
    end_ipc_handle(l);
    uint32_t chunk = first / l->info->chunk_samples;
    if (dataset_view(l->config.data, DATASET_TRAIN, chunk, &c, e) != 0)
        return -1;
    l->lent = true;
    l->lent_chunk = chunk;
    for (uint32_t i = 0; i < c.samples; i++)
        l->keys[i] = c.index[i];
    *out = (backend_rows){.x = c.data, .labels = c.labels, .targets = c.targets, .sample = l->keys};
    return 0;
}

int loader_share(loader *l, backend_share *out, err *e)
{
    if (!l->keys && !(l->keys = calloc(l->info->chunk_samples, sizeof *l->keys)))
        return err_set(e, ERR_NOMEM, "no memory for a chunk of %u samples", l->info->chunk_samples);
    *out = (backend_share){.rows = (uint32_t)l->info->samples[DATASET_TRAIN],
                           .rows_each = l->info->chunk_samples,
                           .type = input_type(l),
                           .set = l->info->digest[0] ? l->info->digest : NULL,
                           .reader = {lend_chunk, l},
                           .scale = l->scale,
                           .shift = l->shift,
                           .flip = l->config.transform->flip,
                           .crop = l->config.transform->crop,
                           .seed = l->config.seed};
    return 0;
}

void loader_rows(const loader *l, uint32_t *out)
{
    uint32_t each = l->info->chunk_samples;
    for (uint64_t at = l->run.at; at < l->run.end; at++)
        out[at - l->run.at] = l->chunk_list[l->order[at] / each] * each + l->order[at] % each;
}
