/* cuda_kernels.h: our own kernels, as the C side calls them.
 *
 * Every function only enqueues work on `stream` (a cudaStream_t) and returns; all pointers are the
 * device's. Activations are NHWC of `element`; parameters, gradients and statistics are floats.
 * `cap` is the batch that the program was compiled for: kernels always run over the whole of it,
 * and samples from step_args.n on hold zeros or numbers that nothing reads, so that one captured
 * CUDA graph serves short batches too. Every sum has a fixed order: same input, same bits. */
#ifndef KUBEML_CUDA_KERNELS_H
#define KUBEML_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum element { ELEMENT_F32, ELEMENT_BF16 } element;

static inline size_t element_bytes(element e)
{
    return e == ELEMENT_BF16 ? 2 : 4;
}

/* What differs from one step to the next; lies in device memory, so that a captured graph need not
 * change. The optimizer's numbers are computed as in kernels/optim.c. */
typedef struct step_args {
    int32_t n;     /* samples of this batch */
    int32_t uint8; /* the input's type */
    uint32_t epoch;
    float lr, kept, fresh;       /* SGD: b = kept * b + fresh * d */
    float rate, root2, shrink;   /* Adam, AdamW */
    /* Over a share, see cuda_gather: */
    int32_t row;   /* the first of this step's in the order */
    int32_t next;  /* where the next step's numbers stand in the list; 0: nothing follows */
    int32_t first; /* of the steps whose results are added */
    uint64_t seed; /* of dropout */
} step_args;

typedef struct step_result {
    double loss_sum;
    int64_t correct;
} step_result;

/* ---- input.cu -------------------------------------------------------------------------------- */

/* y (cap, HW, C) = raw (n, C, HW) * scale_shift[c] + scale_shift[C + c]; 0 from sample n on. */
void cuda_input(void *stream, const step_args *a, const void *raw, const float *scale_shift,
                int cap, int C, int HW, element t, void *y);

typedef struct augmentation {
    int flip, crop, c, h, w;
    uint64_t seed;
} augmentation;

/* Samples where they lie, a row each. */
typedef struct cuda_rows {
    void *x;         /* (rows, C, H, W), of step_args.uint8's type */
    int32_t *labels; /* (rows); or */
    float *targets;  /* (rows, outputs) */
    uint64_t *keys;
} cuda_rows;
/* How a step over a share begins without the host: its batch, and the work between the step before
 * and the step after. */
typedef struct gathering {
    const step_args *a;
    augmentation augment;
    bool uint8;  /* the share's type */
    int outputs; /* targets a row; 0: labels */
    cuda_rows share;
    const uint32_t *order;
    const float *scale_shift;
    cuda_rows batch; /* labels or targets, and keys; x goes to the network's input */
    const step_args *list;
    step_args *next;           /* where the next step reads its numbers, and this step does not */
    const step_result *before; /* the last step's result */
    step_result *total;
} gathering;
/* Takes row order[a->row + i] of the share as sample i: flipped and shifted as transform_move does,
 * then to y as cuda_input does, with its label, or where there are outputs its targets, and its
 * key. *next = list[a->next]; *total += *before, or where a->first 0. */
void cuda_gather(void *stream, const gathering *g, int cap, element t, void *y);
/* *sum = *total + *last */
void cuda_add_results(void *stream, const step_result *total, const step_result *last,
                      step_result *sum);

/* ---- pointwise.cu ---------------------------------------------------------------------------- */

/* graph_act, for files that C++ compiles; cuda_run.c asserts that they agree. */
typedef enum cuda_act {
    CUDA_RELU,
    CUDA_RELU6,
    CUDA_LEAKY_RELU,
    CUDA_HARDSIGMOID,
    CUDA_HARDSWISH,
    CUDA_SIGMOID,
    CUDA_TANH,
    CUDA_GELU,
    CUDA_SILU,
} cuda_act;

void cuda_activation_forward(void *stream, element t, int kind, float slope, size_t count,
                             const void *x, void *y);
/* dx = dy * f'(x), or += with `add`. */
void cuda_activation_backward(void *stream, element t, int kind, float slope, size_t count,
                              const void *x, const void *dy, void *dx, bool add);
/* dy = y > 0 ? dy : 0, in place: the backward of a ReLU that was fused into what made y. */
void cuda_relu_mask(void *stream, element t, size_t count, const void *y, void *dy);

/* y = a op b; b has a's shape or, `broadcast`, is (cap, C). ReLU after it where asked for. */
void cuda_pair_forward(void *stream, element t, bool multiply, bool relu, bool broadcast, int cap,
                       int C, int HW, const void *a, const void *b, void *y);
/* dx = dy (multiply: dy * other). other_broadcast: `other` is (cap, C). */
void cuda_pair_backward(void *stream, element t, bool multiply, bool other_broadcast, int cap,
                        int C, int HW, const void *other, const void *dy, void *dx, bool add);
/* db (cap, C) = sum over the plane of dy (multiply: dy * a). */
void cuda_pair_backward_broadcast(void *stream, element t, bool multiply, int cap, int C, int HW,
                                  const void *a, const void *dy, void *db, bool add);

/* Channels [at, at + part) of y's C: from x (rows, part) forward, to dx backward. */
void cuda_part_forward(void *stream, element t, size_t rows, int part, int C, int at, const void *x,
                       void *y);
void cuda_part_backward(void *stream, element t, size_t rows, int part, int C, int at,
                        const void *dy, void *dx, bool add);

/* Forward with x and y, backward with dy and dx. Elements count in NCHW order, as in graph.h. */
void cuda_dropout(void *stream, element t, const step_args *a, const uint64_t *keys, double p,
                  uint32_t layer, int cap, int C, int HW, const void *x, void *y, bool add);

/* (N, rows, columns) -> (N, columns, rows); NHWC to NCHW with rows = HW, columns = C. */
void cuda_transpose(void *stream, element t, int N, int rows, int columns, const void *x, void *y,
                    bool add);
void cuda_copy(void *stream, element t, size_t count, const void *x, void *y, bool add);
void cuda_to_bf16(void *stream, size_t count, const float *x, void *y);
void cuda_from_bf16(void *stream, size_t count, const void *x, float *y, bool add);
/* y = x as floats. */
void cuda_to_float(void *stream, element t, size_t count, const void *x, float *y);

/* ---- pool.cu --------------------------------------------------------------------------------- */

typedef struct pool_shape {
    int n, c, h, w, p, q; /* (n, h, w, c) -> (n, p, q, c) */
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    int count_pad, adaptive;
} pool_shape;

enum { POOL_WINDOW_MAX = 65535 };

/* winner: the maximum's place in its window, r * kernel_w + s; NULL: not kept. */
void cuda_max_pool_forward(void *stream, element t, pool_shape s, const void *x, uint16_t *winner,
                           void *y);
void cuda_max_pool_backward(void *stream, element t, pool_shape s, const uint16_t *winner,
                            const void *dy, void *dx, bool add);
void cuda_avg_pool_forward(void *stream, element t, pool_shape s, const void *x, void *y);
void cuda_avg_pool_backward(void *stream, element t, pool_shape s, const void *dy, void *dx,
                            bool add);

/* ---- norm.cu --------------------------------------------------------------------------------- */

typedef struct norm_shape {
    int n, c, hw; /* n: cap */
    double eps, momentum;
} norm_shape;

/* Doubles of scratch that the functions below need. All are zero before the first call, and nothing
 * else writes them: blocks are counted there. */
size_t cuda_norm_scratch(norm_shape s);
/* saved (2, C): mean and 1/sqrt(var + eps) of the batch's first n samples; the running statistics
 * and the counter move on as in graph.h. Then as cuda_norm_apply. */
void cuda_norm_forward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                       double *scratch, float *saved, float *running_mean, float *running_var,
                       int64_t *counter, const float *w, const float *b, const void *also,
                       bool relu, void *y);
/* saved from the running statistics. */
void cuda_norm_running(void *stream, norm_shape s, const float *running_mean,
                       const float *running_var, float *saved);
/* y = (x - mean) * inverse * w + b, + also (or NULL), then ReLU where asked for; 0 from sample
 * n. */
void cuda_norm_apply(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                     const float *saved, const float *w, const float *b, const void *also,
                     bool relu, void *y);
/* dw, db and dx. relu: forward's. y: forward's output where something was added before the ReLU;
 * otherwise NULL, and x decides which values the ReLU let through. dalso (or NULL) gets the dy of
 * these values, the gradient of `also`. dx may be NULL. */
void cuda_norm_backward(void *stream, element t, const step_args *a, norm_shape s, const void *x,
                        bool relu, const void *y, const float *saved, const float *w,
                        const float *b, const void *dy, double *scratch, float *dw, float *db,
                        void *dx, bool add, void *dalso, bool add_also);

/* ---- gemm.cu --------------------------------------------------------------------------------- */

/* One convolution: (n, h, w, c) with weights (k, r, s, c / groups) to (n, p, q, k). A linear layer
 * is one with h = w = r = s = p = q = 1. */
typedef struct conv_shape {
    int n, c, h, w, k, r, s, p, q;
    int stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups;
} conv_shape;

typedef enum conv_pass { CONV_FORWARD, CONV_DATA, CONV_WEIGHTS, CONV_PASSES } conv_pass;

/* Floats of scratch for the pass: what is summed in parts. */
size_t cuda_conv_scratch(conv_shape s, conv_pass pass);
/* y = x * w + bias (or NULL), ReLU where asked for. w is of element t. */
void cuda_conv_forward(void *stream, element t, conv_shape s, const void *x, const void *w,
                       const float *bias, bool relu, float *scratch, void *y);
void cuda_conv_data(void *stream, element t, conv_shape s, const void *dy, const void *w,
                    float *scratch, void *dx, bool add);
void cuda_conv_weights(void *stream, element t, conv_shape s, const void *x, const void *dy,
                       float *scratch, float *dw);
/* y (rows, columns) += bias, then ReLU where asked for. bias may be NULL. */
void cuda_bias(void *stream, element t, size_t rows, int columns, const float *bias, bool relu,
               void *y);
/* sum (columns) = the columns of x (rows, columns); scratch: floats as cuda_column_scratch says. */
size_t cuda_column_scratch(size_t rows, int columns);
void cuda_column_sums(void *stream, element t, size_t rows, int columns, const void *x,
                      float *scratch, float *sum);

/* ---- optim.cu -------------------------------------------------------------------------------- */

typedef struct optim_args {
    int adam; /* 0: SGD */
    int nesterov, has_momentum;
    float decay, momentum;
    float fresh1, beta2, fresh2, eps;
} optim_args;

/* The block of all parameters, their gradients and the optimizer's slots, `count` floats each. */
typedef struct optim_block {
    const step_args *a;
    optim_args o;
    size_t count;
    float *w, *state;
    const float *g;
    void *w16; /* bf16 copy of w that is kept up to date; or NULL */
} optim_block;

/* The whole block at once. */
void cuda_optim(void *stream, const optim_block *b);

/* ---- fused.cu -------------------------------------------------------------------------------- */

/* Whether a convolution and the max pooling behind it are small enough to be one kernel, a block a
 * sample: what a sample needs fits into shared memory. The windows do not overlap and have no
 * padding. */
bool cuda_conv_pool_fits(conv_shape s, pool_shape o);
size_t cuda_conv_pool_scratch(conv_shape s); /* floats, of the backward pass */
/* y = max pooling of x * w + bias (or NULL), after ReLU where asked for; w is of element t. winner
 * as in cuda_max_pool_forward. */
void cuda_conv_pool_forward(void *stream, element t, conv_shape s, pool_shape o, const void *x,
                            const void *w, const float *bias, bool relu, uint16_t *winner, void *y);
/* dw, db (or NULL) and dx (or NULL), from dy and what forward left. Where `update` is not NULL, dw
 * and db lie in its block of gradients, and their parameters take their step. */
void cuda_conv_pool_backward(void *stream, element t, conv_shape s, pool_shape o, const void *x,
                             const void *w, const uint16_t *winner, const void *y, bool relu,
                             const void *dy, float *scratch, float *dw, float *db, void *dx,
                             bool add, const optim_block *update);

/* ---- loss.cu --------------------------------------------------------------------------------- */

/* Loss, correct answers and d(mean loss)/d(logits); dlogits may be NULL. per_row: cap results. */
void cuda_cross_entropy(void *stream, element t, const step_args *a, int cap, int outputs,
                        const void *logits, const int32_t *labels, void *dlogits,
                        step_result *per_row, step_result *sum);
/* *sum: all of per_row. */
void cuda_add_rows(void *stream, int cap, const step_result *per_row, step_result *sum);
void cuda_squared_error(void *stream, element t, const step_args *a, int cap, int outputs,
                        const void *y, const float *targets, void *dy, step_result *per_row,
                        step_result *sum);

/* ---- head.cu --------------------------------------------------------------------------------- */

enum { HEAD_LAYERS_MAX = 4 };

/* y (cap, k) = x (cap, c) w (k, c)^T + bias (or NULL), then ReLU where asked for; x is the layer's
 * before. */
typedef struct head_layer {
    int c, k;
    bool relu;
    const void *w; /* of the element */
    const float *bias;
    void *y, *dy;   /* tensors; dy as the ReLU lets it through. training: */
    float *dw, *db; /* db is NULL where there is no bias */
} head_layer;

/* The linear layers between x and the loss, in order. */
typedef struct head_shape {
    int layers;
    head_layer layer[HEAD_LAYERS_MAX];
} head_shape;

/* Whether they are small enough to be one kernel, a block a sample. Reads c and k alone. */
bool cuda_head_fits(const head_shape *h);
/* Forward and the loss, as cuda_cross_entropy. `training`: also all dy, and dx where it is not
 * NULL; *sum is then left to cuda_head_gradients. */
void cuda_head(void *stream, element t, const step_args *a, int cap, const head_shape *h,
               const void *x, const int32_t *labels, bool training, void *dx, step_result *per_row,
               step_result *sum);
/* All dw and db and *sum, from x and what cuda_head left; `update` as of cuda_conv_pool_backward.
 */
void cuda_head_gradients(void *stream, element t, int cap, const head_shape *h, const void *x,
                         const step_result *per_row, step_result *sum, const optim_block *update);

/* ---- merge.cu -------------------------------------------------------------------------------- */

enum { CUDA_MERGE_MAX = 64 };

/* out[i] = sum of weight[k] * in[k][i], with the bits of common/modelstore/merge.h. *finite becomes
 * 0 when an output is not finite. `in` and `weight` are host arrays, copied by the call. `out` may
 * be in[k]. */
void cuda_merge(void *stream, int n, const float *const *in, const double *weight, size_t count,
                float *out, int32_t *finite);
/* The largest of each, for counters. */
void cuda_merge_counters(void *stream, int n, const int64_t *const *in, size_t count, int64_t *out);

/* *sum += a sum over the words and their places; `block` sets blocks of one model apart. The sum
 * does not depend on the order in which the words are taken. One word that differs always changes
 * the sum; several words do, except once in 2^64. */
void cuda_sum_words(void *stream, uint32_t block, size_t count, const void *words, uint64_t *sum);

/* QSGD (Alistarh et al. 2017) in buckets of QSGD_BUCKET: q = sign(x) * xi(x), norm the bucket's L2
 * norm, levels up to 127. Philox of (seed, round, its place) decides which way a value rounds. */
enum { QSGD_BUCKET = 512, QSGD_LEVELS = 127, QSGD_USE = 10 };
void cuda_quantise(void *stream, uint64_t seed, uint32_t round, size_t count, const float *x,
                   int8_t *q, float *norms);
/* y = norm * q / levels, or += with `add`. */
void cuda_dequantise(void *stream, size_t count, const int8_t *q, const float *norms, float *y,
                     bool add);

#ifdef __cplusplus
}
#endif

#endif
