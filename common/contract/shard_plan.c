/* shard_plan.c: see shard_plan.h. */
#include "shard_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/rng.h"

uint32_t shard_plan_chunks(uint64_t samples, uint32_t chunk_samples)
{
    assert(chunk_samples > 0);
    return (uint32_t)((samples + chunk_samples - 1) / chunk_samples);
}

int shard_plan_check(const shard_plan_spec *s, err *e)
{
    if (s->samples == 0 || s->samples > SHARD_PLAN_SAMPLES_MAX)
        return err_set(e, ERR_INVALID, "samples: %llu is not within 1 to %llu",
                       (unsigned long long)s->samples, (unsigned long long)SHARD_PLAN_SAMPLES_MAX);
    if (s->chunk_samples == 0)
        return err_set(e, ERR_INVALID, "chunk_samples: must not be 0");
    if ((s->samples + s->chunk_samples - 1) / s->chunk_samples > SHARD_PLAN_CHUNKS_MAX)
        return err_set(e, ERR_INVALID, "chunk_samples: more than %d chunks", SHARD_PLAN_CHUNKS_MAX);
    if (s->batch_size == 0)
        return err_set(e, ERR_INVALID, "batch_size: must not be 0");
    if (s->parallelism < 1 || s->parallelism > SHARD_PLAN_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "parallelism: %d is not within 1 to %d", s->parallelism,
                       SHARD_PLAN_FUNCTIONS_MAX);
    return 0;
}

static uint32_t chunk_size(const shard_plan_spec *s, uint32_t chunks, uint32_t chunk)
{
    if (chunk + 1 < chunks)
        return s->chunk_samples;
    return (uint32_t)(s->samples - (uint64_t)(chunks - 1) * s->chunk_samples);
}

/* The functions form a binary heap by (samples, index): the root takes the next chunk. */
static bool takes_before(const uint64_t *share, int a, int b)
{
    return share[a] != share[b] ? share[a] < share[b] : a < b;
}

static void heap_sink(int *heap, int count, const uint64_t *share)
{
    for (int at = 0;;) {
        int least = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (takes_before(share, heap[child], heap[least]))
                least = child;
        if (least == at)
            return;
        int swap = heap[at];
        heap[at] = heap[least];
        heap[least] = swap;
        at = least;
    }
}

/* Chooses the function of each chunk in the permuted order; fills `share` and counts in `begin`. */
static void shard_plan_out(shard_plan *d, const uint32_t *order, uint16_t *taker)
{
    int heap[SHARD_PLAN_FUNCTIONS_MAX];
    for (int f = 0; f < d->spec.parallelism; f++)
        heap[f] = f;
    for (uint32_t i = 0; i < d->chunks; i++) {
        taker[i] = (uint16_t)heap[0];
        d->share[heap[0]] += chunk_size(&d->spec, d->chunks, order[i]);
        d->begin[heap[0] + 1]++;
        heap_sink(heap, d->spec.parallelism, d->share);
    }
}

/* Sorts the chunks by function; in a shard they keep the permuted order, the short chunk last. */
static void make_lists(shard_plan *d, const uint32_t *order, const uint16_t *taker)
{
    uint32_t fill[SHARD_PLAN_FUNCTIONS_MAX];
    for (int f = 0; f < d->spec.parallelism; f++) {
        d->begin[f + 1] += d->begin[f];
        fill[f] = d->begin[f];
    }
    for (uint32_t i = 0; i < d->chunks; i++)
        if (order[i] != d->chunks - 1)
            d->chunk[fill[taker[i]]++] = order[i];
    for (uint32_t i = 0; i < d->chunks; i++)
        if (order[i] == d->chunks - 1)
            d->chunk[fill[taker[i]]++] = MUTATE(12, order[i], order[0]);
}

int shard_plan_init(shard_plan *d, const shard_plan_spec *spec, err *e)
{
    *d = (shard_plan){.spec = *spec};
    if (shard_plan_check(spec, e) < 0)
        return -1;
    d->chunks = shard_plan_chunks(spec->samples, spec->chunk_samples);
    uint32_t *order = calloc(d->chunks, sizeof *order);
    uint16_t *taker = calloc(d->chunks, sizeof *taker);
    d->chunk = calloc(d->chunks, sizeof *d->chunk);
    d->begin = calloc((size_t)spec->parallelism + 1, sizeof *d->begin);
    d->share = calloc((size_t)spec->parallelism, sizeof *d->share);
    if (!order || !taker || !d->chunk || !d->begin || !d->share) {
        free(order);
        free(taker);
        shard_plan_free(d);
        return err_set(e, ERR_NOMEM, "no memory to deal %u chunks", d->chunks);
    }
    rng r;
    rng_init(&r, spec->seed, RNG_SHARD_PLAN, spec->epoch, 0);
    rng_permutation(&r, order, d->chunks);
    shard_plan_out(d, order, taker);
    make_lists(d, order, taker);
    free(order);
    free(taker);
    return 0;
}

void shard_plan_free(shard_plan *d)
{
    free(d->chunk);
    free(d->begin);
    free(d->share);
    d->chunk = NULL;
    d->begin = NULL;
    d->share = NULL;
}

const uint32_t *shard_plan_chunk_list(const shard_plan *d, int f)
{
    assert(f >= 0 && f < d->spec.parallelism);
    return d->chunk + d->begin[f];
}

uint32_t shard_plan_chunk_count(const shard_plan *d, int f)
{
    assert(f >= 0 && f < d->spec.parallelism);
    return d->begin[f + 1] - d->begin[f];
}

void shard_plan_order(const shard_plan *d, int f, uint32_t *order)
{
    assert(f >= 0 && f < d->spec.parallelism);
    rng r;
    rng_init(&r, d->spec.seed, RNG_SHUFFLE, d->spec.epoch, (uint64_t)f);
    rng_permutation(&r, order, d->share[f]);
}

void shard_plan_locate(const shard_plan *d, int f, uint32_t index, uint32_t *chunk,
                       uint32_t *offset)
{
    assert(f >= 0 && f < d->spec.parallelism && index < d->share[f]);
    *chunk = d->chunk[d->begin[f] + index / d->spec.chunk_samples];
    *offset = index % d->spec.chunk_samples;
}

uint32_t shard_plan_batches(const shard_plan *d, int f)
{
    assert(f >= 0 && f < d->spec.parallelism);
    return (uint32_t)((d->share[f] + d->spec.batch_size - 1) / d->spec.batch_size);
}

uint32_t shard_plan_rounds(const shard_plan *d, int k)
{
    assert(k == -1 || k > 0);
    uint32_t most = 0;
    for (int f = 0; f < d->spec.parallelism; f++)
        if (shard_plan_batches(d, f) > most)
            most = shard_plan_batches(d, f);
    return k == -1 ? 1 : (most + (uint32_t)k - 1) / (uint32_t)k;
}

void shard_plan_range(const shard_plan *d, int f, int k, uint32_t round, uint32_t *begin,
                      uint32_t *count)
{
    uint32_t batches = shard_plan_batches(d, f);
    uint64_t step = k == -1 ? batches : (uint64_t)k;
    uint64_t first = step * round;
    *begin = first < batches ? (uint32_t)first : batches;
    *count = step < batches - *begin ? (uint32_t)step : batches - *begin;
}

void shard_plan_samples(const shard_plan *d, int f, uint32_t batch, uint32_t count, uint64_t *begin,
                        uint64_t *end)
{
    assert(f >= 0 && f < d->spec.parallelism);
    uint64_t size = d->spec.batch_size, share = d->share[f];
    uint64_t from = batch * size, to = from + count * size;
    *begin = from < share ? from : share;
    *end = to < share ? to : share;
}

void shard_plan_test_share(uint64_t test_samples, uint32_t chunk_samples, int parallelism, int f,
                           uint32_t *begin, uint32_t *end, uint64_t *samples)
{
    assert(parallelism > 0 && f >= 0 && f < parallelism);
    uint64_t chunks = shard_plan_chunks(test_samples, chunk_samples);
    uint64_t from = chunks * (uint64_t)f / (uint64_t)parallelism;
    uint64_t to = chunks * ((uint64_t)f + 1) / (uint64_t)parallelism;
    uint64_t last = to * chunk_samples < test_samples ? to * chunk_samples : test_samples;
    *begin = (uint32_t)from;
    *end = (uint32_t)to;
    *samples = to > from ? last - from * chunk_samples : 0;
}
