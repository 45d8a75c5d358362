/* shard_plan.h: which samples each function trains in an epoch, and in which order.
 *
 * Pure arithmetic on (seed, epoch, parallelism): every program computes the same plan, and no lists
 * are sent. Epoch e permutes the chunks of the training set and assigns them one by one, each to
 * the function with the fewest samples so far (the lowest index among equals). So every sample is
 * in exactly one shard, whatever the parallelism, and shards differ by at most one chunk. With more
 * functions than chunks some shards are empty.
 *
 * A shard is its chunks one after the other. The set's short chunk stands last in its shard, so
 * that sample i of a shard is in chunk i / chunk_samples of the list. Each function shuffles the
 * samples of its shard by (seed, epoch, function) and cuts that order into batches; the last batch
 * may be shorter.
 *
 * Only shard_plan_init allocates. shard_plan_check refuses wrong numbers; the other functions
 * cannot fail. */
#ifndef KUBEML_SHARD_PLAN_H
#define KUBEML_SHARD_PLAN_H

#include <stdint.h>

#include "common/base/err.h"

enum {
    SHARD_PLAN_FUNCTIONS_MAX = 256,
    SHARD_PLAN_CHUNKS_MAX = 1 << 24,
};
#define SHARD_PLAN_SAMPLES_MAX ((uint64_t)1 << 31) /* indices into a shard fit u32 */

/* Determines the plan of one epoch. */
typedef struct shard_plan_spec {
    uint64_t seed;
    uint64_t samples;       /* of the training set */
    uint32_t chunk_samples; /* of every chunk but the last */
    uint32_t batch_size;
    int parallelism;
    uint32_t epoch; /* from 0 */
} shard_plan_spec;

/* The plan of one epoch. The caller of shard_plan_init owns it. */
typedef struct shard_plan {
    shard_plan_spec spec;
    uint32_t chunks;
    uint32_t *chunk; /* (chunks): the shards' chunk lists, one function after the other */
    uint32_t *begin; /* (parallelism + 1): where each function's list begins in `chunk` */
    uint64_t *share; /* (parallelism): samples in each function's shard */
} shard_plan;

/* ERR_INVALID naming a field that is 0 or over its limit. */
int shard_plan_check(const shard_plan_spec *spec, err *e);
/* The set's number of chunks: samples / chunk_samples, rounded up. */
uint32_t shard_plan_chunks(uint64_t samples, uint32_t chunk_samples);
/* Checks `spec` and makes the plan. O(chunks * log(parallelism)). ERR_INVALID, ERR_NOMEM. */
int shard_plan_init(shard_plan *d, const shard_plan_spec *spec, err *e);
void shard_plan_free(shard_plan *d); /* a zeroed plan is fine */

/* The chunks of function f: a list of shard_plan_chunk_count entries, owned by the plan. */
const uint32_t *shard_plan_chunk_list(const shard_plan *d, int f);
uint32_t shard_plan_chunk_count(const shard_plan *d, int f);
/* The shuffled order of the shard: order[0 .. share[f]) becomes a permutation of 0 .. share[f]-1.
 * `order` is the caller's and holds share[f] entries. */
void shard_plan_order(const shard_plan *d, int f, uint32_t *order);
/* Finds the chunk of sample `index` of f's shard (an entry of shard_plan_order), and the sample's
 * offset in the chunk, in samples. index < share[f]. */
void shard_plan_locate(const shard_plan *d, int f, uint32_t index, uint32_t *chunk,
                       uint32_t *offset);

/* Batches of function f in the epoch; 0 for an empty shard. */
uint32_t shard_plan_batches(const shard_plan *d, int f);
/* Rounds (merges) of the epoch for k local steps: the most batches of any function / k, rounded up;
 * 1 for k = -1. */
uint32_t shard_plan_rounds(const shard_plan *d, int k);
/* The batches [*begin, *begin + *count) of function f in a round without faults; *count is 0 when
 * its shard is done. */
void shard_plan_range(const shard_plan *d, int f, int k, uint32_t round, uint32_t *begin,
                      uint32_t *count);
/* The positions [*begin, *end) of shard_plan_order that batches [batch, batch + count) cover. */
void shard_plan_samples(const shard_plan *d, int f, uint32_t batch, uint32_t count, uint64_t *begin,
                        uint64_t *end);

/* Validation: the contiguous chunks [*begin, *end) of the test set for function f of `parallelism`,
 * and their number of samples. Every chunk belongs to exactly one function. */
void shard_plan_test_share(uint64_t test_samples, uint32_t chunk_samples, int parallelism, int f,
                           uint32_t *begin, uint32_t *end, uint64_t *samples);

#endif
