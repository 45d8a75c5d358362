/* shard_plan.h: which samples each function sees in an epoch, and in which order.
 *
 * Pure arithmetic on (seed, epoch, parallelism): every program computes the same deal and nobody
 * sends lists. Epoch e permutes the chunks of the training set and deals them out one by one, each
 * to the function that has the fewest samples so far (the lowest index among equals). So every
 * sample is dealt exactly once whatever the parallelism, and shares differ by at most one chunk.
 * With more functions than chunks some shares are empty.
 *
 * A share is its chunks one after the other; the set's short chunk, if it is in there, stands last,
 * so that sample i of a share lies in chunk i / chunk_samples of the list. Each function shuffles
 * the samples of its share by (seed, epoch, function) and cuts that order into batches; the last
 * batch may be shorter.
 *
 * Nothing here allocates, except shard_plan_init; wrong numbers are refused by shard_plan_check,
 * and everything after it cannot fail. */
#ifndef KUBEML_SHARD_PLAN_H
#define KUBEML_SHARD_PLAN_H

#include <stdint.h>

#include "common/base/err.h"

enum {
    SHARD_PLAN_FUNCTIONS_MAX = 256,
    SHARD_PLAN_CHUNKS_MAX = 1 << 24,
};
#define SHARD_PLAN_SAMPLES_MAX ((uint64_t)1 << 31) /* indices into a share fit u32 */

/* What fixes the deal of one epoch. */
typedef struct shard_plan_spec {
    uint64_t seed;
    uint64_t samples;       /* of the training set */
    uint32_t chunk_samples; /* of every chunk but the last */
    uint32_t batch_size;
    int parallelism;
    uint32_t epoch; /* from 0 */
} shard_plan_spec;

/* One epoch, dealt. Owned by whoever called shard_plan_init. */
typedef struct shard_plan {
    shard_plan_spec spec;
    uint32_t chunks;
    uint32_t *chunk; /* (chunks): the shares' chunk lists, one function after the other */
    uint32_t *begin; /* (parallelism + 1): where each function's list begins in `chunk` */
    uint64_t *share; /* (parallelism): samples of each function */
} shard_plan;

/* ERR_INVALID naming the field: 0 samples, chunks, batch or parallelism, or one over its limit. */
int shard_plan_check(const shard_plan_spec *spec, err *e);
/* Chunks the set has: samples / chunk_samples, rounded up. */
uint32_t shard_plan_chunks(uint64_t samples, uint32_t chunk_samples);
/* Checks and deals. O(chunks * log(parallelism)). ERR_INVALID, ERR_NOMEM. */
int shard_plan_init(shard_plan *d, const shard_plan_spec *spec, err *e);
void shard_plan_free(shard_plan *d); /* a zeroed one is fine */

/* The chunks of function f: a list of shard_plan_chunk_count entries, owned by the deal. */
const uint32_t *shard_plan_chunk_list(const shard_plan *d, int f);
uint32_t shard_plan_chunk_count(const shard_plan *d, int f);
/* The shuffled order of the share: order[0 .. share[f]) becomes a permutation of 0 .. share[f]-1.
 * `order` is the caller's and holds share[f] entries. */
void shard_plan_order(const shard_plan *d, int f, uint32_t *order);
/* Where sample `index` of the share of f (an entry of shard_plan_order) lies. index < share[f]. */
void shard_plan_locate(const shard_plan *d, int f, uint32_t index, uint32_t *chunk,
                       uint32_t *offset);

/* Batches of function f in the epoch; 0 for an empty share. */
uint32_t shard_plan_batches(const shard_plan *d, int f);
/* Merges of the epoch for K local steps: the most batches of any function / k, rounded up; 1 for
 * k = -1. */
uint32_t shard_plan_rounds(const shard_plan *d, int k);
/* The batches function f trains in a round without faults; *count is 0 when its share is done. */
void shard_plan_range(const shard_plan *d, int f, int k, uint32_t round, uint32_t *begin,
                      uint32_t *count);
/* The positions [*begin, *end) of shard_plan_order that batches [batch, batch + count) cover. */
void shard_plan_samples(const shard_plan *d, int f, uint32_t batch, uint32_t count, uint64_t *begin,
                        uint64_t *end);

/* Validation: function f of `parallelism` takes the contiguous chunks [*begin, *end) of the test
 * set, which hold *samples samples. Every chunk belongs to exactly one function. */
void shard_plan_test_share(uint64_t test_samples, uint32_t chunk_samples, int parallelism, int f,
                           uint32_t *begin, uint32_t *end, uint64_t *samples);

#endif
