/* merge.c: rules, choice of the variant, and the merge of whole blocks.
 *
 * A block is merged piece by piece (block.h): the piece of every input is hashed, merged, and the
 * output's hashed, all while it lies in the core's cache. Pieces are independent of each other, so
 * threads take them in any order without a difference in the bits. */
#include "merge.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/parallel.h"
#include "merge_variants.h"

/* ---- rules ---------------------------------------------------------------------------------- */

static void weights_mean(const uint64_t *samples, int n, double *weight)
{
    uint64_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += samples[k];
    for (int k = 0; k < n; k++)
        weight[k] = (double)samples[k] / (double)sum;
}

static void weights_uniform(const uint64_t *samples, int n, double *weight)
{
    (void)samples;
    for (int k = 0; k < n; k++)
        weight[k] = 1.0 / (double)n;
}

static const merge_rule rules[] = {
    {"mean", weights_mean},
    {"uniform", weights_uniform},
};

const merge_rule *merge_rule_default(void)
{
    return &rules[0];
}

int merge_rule_find(const char *name, const merge_rule **out, err *e)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strcmp(rules[i].name, name) == 0) {
            *out = &rules[i];
            return 0;
        }
    }
    return err_set(e, ERR_UNSUPPORTED, "no merge rule \"%.32s\"; there are: mean, uniform", name);
}

/* ---- variants ------------------------------------------------------------------------------- */

int merge_variants(merge_variant out[MERGE_VARIANTS])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        out[n++] = (merge_variant){"avx512", merge_floats_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = (merge_variant){"avx2", merge_floats_avx2};
#endif
    out[n++] = (merge_variant){"generic", merge_floats_generic};
    return n;
}

void merge_counters(int64_t *out, const void *const *in, int n, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t largest = ((const int64_anywhere *)in[0])[i];
        for (int k = 1; k < n; k++) {
            int64_t x = ((const int64_anywhere *)in[k])[i];
            largest = x > largest ? x : largest;
        }
        out[i] = largest;
    }
}

/* ---- a whole block -------------------------------------------------------------------------- */

typedef struct run {
    block_shape shape;
    size_t float_pieces, pieces;
    merge_floats_function floats;
    block out;
    int n; /* inputs with samples */
    const merge_input *in[MERGE_INPUTS_MAX];
    int index[MERGE_INPUTS_MAX]; /* where each stands in the caller's list */
    double weight[MERGE_INPUTS_MAX];
    uint64_t *hash; /* (n + 1, pieces): the inputs', then the output's */
    bool *finite;   /* (float_pieces) */
} run;

static size_t piece_len(const run *r, size_t piece, size_t *at)
{
    bool counters = piece >= r->float_pieces;
    size_t end = counters ? r->shape.counters * sizeof(int64_t) : r->shape.floats * sizeof(float);
    *at = (counters ? piece - r->float_pieces : piece) * BLOCK_PIECE_BYTES;
    return end - *at < BLOCK_PIECE_BYTES ? end - *at : BLOCK_PIECE_BYTES;
}

static const void *piece_of(const run *r, const merge_input *in, size_t piece, size_t at)
{
    const void *const *chunk = piece >= r->float_pieces ? in->counter_chunks : in->float_chunks;
    return (const char *)chunk[at / in->chunk_bytes] + at % in->chunk_bytes;
}

static void run_piece(size_t piece, void *user)
{
    run *r = user;
    const void *in[MERGE_INPUTS_MAX];
    size_t at, len = piece_len(r, piece, &at);
    for (int k = 0; k < r->n; k++) {
        in[k] = piece_of(r, r->in[k], piece, at);
        r->hash[(size_t)k * r->pieces + piece] = block_piece_hash(in[k], len);
    }
    char *out = (piece >= r->float_pieces ? (char *)r->out.counters : (char *)r->out.floats) + at;
    if (piece >= r->float_pieces)
        merge_counters((int64_t *)(void *)out, in, r->n, len / sizeof(int64_t));
    else
        r->finite[piece] =
            r->floats((float *)(void *)out, in, r->weight, r->n, len / sizeof(float));
    r->hash[(size_t)r->n * r->pieces + piece] = block_piece_hash(out, len);
}

static int run_init(run *r, const merge_rule *rule, const merge_input *in, int n,
                    merge_result *result, err *e)
{
    if (n < 1 || n > MERGE_INPUTS_MAX)
        return err_set(e, ERR_LIMIT, "%d contributions to merge, 1 to %d are allowed", n,
                       MERGE_INPUTS_MAX);
    uint64_t samples[MERGE_INPUTS_MAX];
    for (int k = 0; k < n; k++) {
        if (in[k].samples == 0)
            continue;
        samples[r->n] = in[k].samples;
        r->in[r->n] = &in[k];
        r->index[r->n++] = k;
        if (__builtin_add_overflow(result->samples, in[k].samples, &result->samples))
            return err_set(e, ERR_LIMIT, "the sum of samples is over 2^64");
    }
    if (r->n == 0)
        return err_set(e, ERR_INVALID, "nothing to merge: no contribution has samples");
    rule->weights(samples, r->n, r->weight);
    merge_variant variant[MERGE_VARIANTS];
    merge_variants(variant);
    r->floats = variant[0].floats;
    return 0;
}

static int refuse(const run *r, int k, err_code why, merge_result *result, err *e, const char *what)
{
    result->bad = r->index[k];
    result->why = why;
    return err_set(e, why, "function %d (incarnation %d) published %s", r->in[k]->function,
                   r->in[k]->incarnation, what);
}

static int check_hashes(const run *r, merge_result *result, err *e)
{
    for (int k = 0; k < r->n; k++)
        if (block_root_hash(r->hash + (size_t)k * r->pieces, r->pieces) != r->in[k]->checksum)
            return refuse(r, k, ERR_CORRUPT, result, e, "bytes that do not match their checksum");
    return 0;
}

static bool input_finite(const run *r, int k, size_t piece)
{
    size_t at, len = piece_len(r, piece, &at);
    const float_anywhere *x = piece_of(r, r->in[k], piece, at);
    for (size_t i = 0; i < len / sizeof(float); i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Looks for the cause of non-finite sums: the first input, in order, that holds such a number. */
static int check_finite(const run *r, merge_result *result, err *e)
{
    int first = r->n;
    bool all = true;
    for (size_t piece = 0; piece < r->float_pieces; piece++) {
        all = all && r->finite[piece];
        for (int k = 0; k < first && !r->finite[piece]; k++)
            if (!input_finite(r, k, piece))
                first = k;
    }
    if (first < r->n)
        return refuse(r, first, ERR_INVALID, result, e, "numbers that are NaN or infinite");
    return all ? 0 : err_set(e, ERR_INTERNAL, "the merge of finite numbers is not finite");
}

int merge_run(const merge_rule *rule, block_shape shape, const merge_input *in, int n, block out,
              int threads, merge_result *result, err *e)
{
    *result = (merge_result){.bad = -1};
    cleanup_free run *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory to merge");
    r->shape = shape;
    r->out = out;
    r->float_pieces = block_float_pieces(shape);
    r->pieces = block_pieces(shape);
    if (run_init(r, rule, in, n, result, e))
        return -1;
    cleanup_free uint64_t *hash = calloc((size_t)r->n + 1, r->pieces * sizeof *hash);
    cleanup_free bool *finite = calloc(r->float_pieces, sizeof *finite);
    if (!hash || !finite)
        return err_set(e, ERR_NOMEM, "no memory for the hashes of %zu pieces", r->pieces);
    r->hash = hash;
    r->finite = finite;
    parallel_for(r->pieces, threads, run_piece, r);
    if (check_hashes(r, result, e) || check_finite(r, result, e))
        return -1;
    result->checksum = block_root_hash(hash + (size_t)r->n * r->pieces, r->pieces);
    return 0;
}

void merge_input_contiguous(merge_input *in, const block *b, const void *chunks[2])
{
    chunks[0] = b->floats;
    chunks[1] = b->counters;
    in->chunk_bytes = SIZE_MAX / BLOCK_PIECE_BYTES * BLOCK_PIECE_BYTES;
    in->float_chunks = chunks;
    in->counter_chunks = chunks + 1;
}

/* Starting a thread costs about 50 us; a core merges some 2 GB/s. */
int merge_threads(block_shape shape, int n)
{
    size_t pays = block_bytes(shape) * (size_t)(n > 0 ? n : 1) / (2 << 20);
    int cores = parallel_cores();
    if (cores > MERGE_THREADS_MAX)
        cores = MERGE_THREADS_MAX;
    return pays < 1 ? 1 : pays < (size_t)cores ? (int)pays : cores;
}
