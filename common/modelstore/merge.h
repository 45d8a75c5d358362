/* merge.h: how the published blocks of a round become the next reference.
 *
 * One code for kubeml-ps, the Redis module and the fake, with the same bits from each and from
 * every variant (generic, AVX2, AVX-512; chosen once at run time) and any number of threads:
 *
 *   w_k    = (double)samples_k / (double)(sum of all samples)          (rule "mean")
 *   out[i] = (float)((((w_0 * x_0[i]) + w_1 * x_1[i]) + w_2 * x_2[i]) + ...)
 *
 * in the order of the functions, the x converted to double, every product and sum rounded to
 * double, one rounding to float at the end; no fused multiply-add, no sum across lanes. So the
 * merge of equal models is that model, bit for bit. Contributions of 0 samples have no weight and
 * are not read. Counters: the largest. Non-finite numbers never enter the reference: an infinite or
 * NaN input always gives a non-finite sum, whose cause is then looked for and named.
 *
 * The input's bytes are verified against their checksums while they are merged, piece by piece; the
 * output is only valid when merge_run says so. */
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
    const char *name; /* "mean": by samples; "uniform": every contribution alike */
    /* Fills `weight` for n >= 1 inputs with samples > 0. */
    void (*weights)(const uint64_t *samples, int n, double *weight);
} merge_rule;

/* The rule of every job: the mean. Also the rule by which a round's only contribution becomes the
 * reference as it is. Callers that choose a rule ask here. */
const merge_rule *merge_rule_default(void);
/* ERR_UNSUPPORTED naming the rule and those there are. */
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

/* Those this machine can run, the fastest first; the last is "generic". */
int merge_variants(merge_variant out[MERGE_VARIANTS]);
void merge_counters(int64_t *out, const void *const *in, int n, size_t count);

/* ---- a whole block --------------------------------------------------------------------------- */

/* One contribution. Its bytes lie in chunks of `chunk_bytes` (a multiple of 64 KiB; a contiguous
 * block has one chunk): float chunk i holds floats from i * chunk_bytes / 4 on, and so the
 * counters'. Only the last of each kind is shorter. */
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
    err_code why;      /* ERR_CORRUPT: its bytes are not those of its checksum;
                          ERR_INVALID: it holds NaN or infinity */
} merge_result;

/* Merges `n` inputs, in the given order, into `out`. Blocks; `threads` helpers at most (1: the
 * caller's own). -1 with ERR_CORRUPT or ERR_INVALID naming function and incarnation (result->bad
 * tells which; a corrupt one is named before a non-finite one, the first in order), ERR_INVALID
 * when no input has samples, ERR_NOMEM. `out` is then undefined. */
int merge_run(const merge_rule *rule, block_shape shape, const merge_input *in, int n, block out,
              int threads, merge_result *result, err *e);
/* As merge_run for inputs that lie in one piece each. */
void merge_input_contiguous(merge_input *in, const block *b, const void *chunks[2]);
/* Threads worth using for a block of that shape and n inputs on this machine. */
int merge_threads(block_shape shape, int n);

#endif
