/* merge.h: how the published blocks of a round become the next reference.
 *
 * kubeml-ps, the Redis module and the model store of the tests all use this code. The bits are the
 * same from every variant (generic, AVX2, AVX-512; chosen at run time) and any number of threads:
 *
 *   w_k    = (double)samples_k / (double)(sum of all samples)          (rule "mean")
 *   out[i] = (float)((((w_0 * x_0[i]) + w_1 * x_1[i]) + w_2 * x_2[i]) + ...)
 *
 * in the order of the functions. Each x is converted to double, every product and sum is rounded to
 * double, and the result is rounded to float once; no fused multiply-add, no sum across lanes. So
 * the merge of equal models is that model, bit for bit. Contributions of 0 samples have no weight
 * and are not read. Of counters the largest is taken. Non-finite numbers never enter the reference:
 * an infinite or NaN input always gives a non-finite sum, and the merge then fails and names the
 * input.
 *
 * The inputs' bytes are verified against their checksums while they are merged, piece by piece. The
 * output is valid only after merge_run has returned 0. */
#ifndef KUBEML_MERGE_H
#define KUBEML_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "common/base/err.h"

enum {
    MERGE_INPUTS_MAX = 1024,
    MERGE_THREADS_MAX = 64,
    MERGE_VARIANTS = 3,
};

/* ---- the seam: rules ------------------------------------------------------------------------ */

typedef struct merge_rule {
    const char *name; /* "mean": by samples; "uniform": equal weights */
    /* Fills `weight` for n >= 1 inputs with samples > 0. */
    void (*weights)(const uint64_t *samples, int n, double *weight);
} merge_rule;

/* The rule of every job: the mean. Callers that choose a rule take this one. It also makes a
 * round's only contribution the reference, unchanged. */
const merge_rule *merge_rule_default(void);
/* ERR_UNSUPPORTED naming the rule, and the rules that exist. */
int merge_rule_find(const char *name, const merge_rule **out, err *e);

/* ---- one range of numbers: what the variants implement --------------------------------------- */

/* out[i] for i in [0, count) as above. Inputs may be unaligned, out is aligned to 4 and overlaps no
 * input. Returns false when an output is not finite. */
typedef bool (*merge_floats_function)(float *out, const void *const *in, const double *weight,
                                      int n, size_t count);
typedef struct merge_variant {
    const char *name; /* "generic", "avx2", "avx512" */
    merge_floats_function floats;
} merge_variant;

/* The variants that this machine can run, the fastest first; the last is "generic". Returns how
 * many. */
int merge_variants(merge_variant out[MERGE_VARIANTS]);
void merge_counters(int64_t *out, const void *const *in, int n, size_t count);

/* ---- a whole block --------------------------------------------------------------------------- */

/* One contribution. Its bytes lie in chunks of `chunk_bytes` (a multiple of 64 KiB; a contiguous
 * block has one chunk). Float chunk i holds the floats from i * chunk_bytes / 4 on, counter chunk i
 * the counters from i * chunk_bytes / 8 on. Only the last chunk of each kind is shorter. */
typedef struct merge_input {
    int function, incarnation; /* for messages */
    uint64_t samples, checksum;
    size_t chunk_bytes;
    const void *const *float_chunks, *const *counter_chunks;
} merge_input;

typedef struct merge_result {
    uint64_t checksum; /* of the output */
    uint64_t samples;  /* sum over the inputs */
    int bad;           /* index of the input that was refused, -1: none */
    err_code why;      /* ERR_CORRUPT: its bytes do not match its checksum;
                          ERR_INVALID: it holds NaN or infinity */
} merge_result;

/* Merges `n` inputs, in the given order, into `out`. Blocks; at most `threads` threads (1: the
 * caller's own). Errors, after which `out` is undefined:
 *   ERR_CORRUPT, ERR_INVALID  an input is refused; the message names its function and incarnation,
 *                             result->bad its index. Corrupt inputs are found before non-finite
 *                             ones, and the first of each kind is named.
 *   ERR_INVALID               no input has samples
 *   ERR_LIMIT                 too many inputs or samples
 *   ERR_NOMEM */
int merge_run(const merge_rule *rule, block_shape shape, const merge_input *in, int n, block out,
              int threads, merge_result *result, err *e);
/* Fills in the chunks of an input that is one contiguous block. */
void merge_input_contiguous(merge_input *in, const block *b, const void *chunks[2]);
/* How many threads pay for n inputs of that shape on this machine. */
int merge_threads(block_shape shape, int n);

#endif
