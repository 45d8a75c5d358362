/* driver_conv.c: convolutions by cuDNN; see driver.h.
 *
 * Offers are those of cuDNN's own list for the shape that cuDNN calls deterministic. An entry of
 * the list is an algorithm with a kind of arithmetic (perf.mathType): the workspace is that pair's,
 * and so is what runs. An offer that is asked for by its name is made without the list, which takes
 * a while. The algorithm's number and arithmetic then decide whether it keeps order and precision.
 *
 * Descriptors are made for each call: calls happen while algorithms are timed and while a graph is
 * captured, never in training. Weights' gradients of bf16 come out of cuDNN as bf16; they pass
 * through the workspace and leave as floats. */
#include <stdio.h>
#include <string.h>

#include "driver_cuda.h"

/* An id is an algorithm's number plus MATH_ID for each kind of arithmetic before its own; or
 * FUSED_ID plus the arithmetic. */
enum { MATH_ID = 8, FUSED_ID = 50, ALGOS_MAX = 16 };
static const char *const math_names[] = {"", "-tensor", "-convert", "-fma"};
_Static_assert((int)CUDNN_CONVOLUTION_FWD_ALGO_COUNT <= (int)MATH_ID &&
                   (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT <= (int)MATH_ID &&
                   (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT <= (int)MATH_ID &&
                   ((int)CUDNN_FMA_MATH + 1) * (int)MATH_ID <= (int)FUSED_ID &&
                   (int)FUSED_ID + (int)CUDNN_FMA_MATH < (int)GRAPH_FIRST_ID,
               "ids overlap");

typedef struct shapes {
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    cudnnActivationDescriptor_t act;
} shapes;

static void forget(shapes *s)
{
    if (s->x)
        cudnnDestroyTensorDescriptor(s->x);
    if (s->y)
        cudnnDestroyTensorDescriptor(s->y);
    if (s->bias)
        cudnnDestroyTensorDescriptor(s->bias);
    if (s->w)
        cudnnDestroyFilterDescriptor(s->w);
    if (s->conv)
        cudnnDestroyConvolutionDescriptor(s->conv);
    if (s->act)
        cudnnDestroyActivationDescriptor(s->act);
}

#define cleanup_shapes __attribute__((cleanup(forget)))

/* The arithmetic that is asked for. cuDNN's default permits TF32 to floats. */
static cudnnMathType_t math_of(const conv_task *t)
{
    return t->precision == PRECISION_FP32   ? CUDNN_FMA_MATH
           : t->precision == PRECISION_TF32 ? CUDNN_DEFAULT_MATH
                                            : CUDNN_TENSOR_OP_MATH;
}

static cudnnStatus_t describe(const conv_task *t, cudnnMathType_t math, shapes *d)
{
    const conv_shape *s = &t->s;
    cudnnDataType_t type = t->t == ELEMENT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    TRY(cudnnCreateTensorDescriptor(&d->x));
    TRY(cudnnCreateTensorDescriptor(&d->y));
    TRY(cudnnCreateTensorDescriptor(&d->bias));
    TRY(cudnnCreateFilterDescriptor(&d->w));
    TRY(cudnnCreateConvolutionDescriptor(&d->conv));
    TRY(cudnnCreateActivationDescriptor(&d->act));
    TRY(cudnnSetTensor4dDescriptor(d->x, CUDNN_TENSOR_NHWC, type, s->n, s->c, s->h, s->w));
    TRY(cudnnSetTensor4dDescriptor(d->y, CUDNN_TENSOR_NHWC, type, s->n, s->k, s->p, s->q));
    TRY(cudnnSetTensor4dDescriptor(d->bias, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, s->k, 1, 1));
    TRY(cudnnSetFilter4dDescriptor(d->w, type, CUDNN_TENSOR_NHWC, s->k, s->c / s->groups, s->r,
                                   s->s));
    TRY(cudnnSetConvolution2dDescriptor(d->conv, s->pad_h, s->pad_w, s->stride_h, s->stride_w,
                                        s->dil_h, s->dil_w, CUDNN_CROSS_CORRELATION,
                                        CUDNN_DATA_FLOAT));
    TRY(cudnnSetConvolutionGroupCount(d->conv, s->groups));
    TRY(cudnnSetConvolutionMathType(d->conv, math));
    return cudnnSetActivationDescriptor(d->act,
                                        t->relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
                                        CUDNN_PROPAGATE_NAN, 0);
}

/* Bytes that the weights pass of bf16 needs beside cuDNN's own workspace. */
static size_t extra_workspace(const conv_task *t)
{
    if (t->pass != CONV_WEIGHTS || t->t != ELEMENT_BF16)
        return 0;
    return driver_narrow_bytes(&t->s);
}

/* ---- offers ---------------------------------------------------------------------------------- */

/* The offers gathered for a task. */
typedef struct offers {
    const conv_task *t;
    conv_offer *list;
    int count, room;
} offers;

static void write_name(char name[32], bool fused, int algo, cudnnMathType_t math)
{
    if (fused)
        snprintf(name, 32, "cudnn-fused%s", math_names[math]);
    else
        snprintf(name, 32, "cudnn-%d%s", algo, math_names[math]);
}

/* A second entry with the same id adds no offer: the larger workspace of both counts. */
static void add_offer(offers *o, bool fused, int algo, cudnnMathType_t math, size_t workspace)
{
    int id = fused ? FUSED_ID + (int)math : algo + MATH_ID * (int)math;
    for (int i = 0; i < o->count; i++)
        if (o->list[i].id == id) {
            if (o->list[i].workspace < workspace)
                o->list[i].workspace = workspace;
            return;
        }
    if (o->count == o->room)
        return;
    conv_offer *at = &o->list[o->count++];
    at->id = id;
    at->workspace = workspace;
    write_name(at->name, fused, algo, math);
}

/* Whether an entry of the list is to be offered; *math: its arithmetic. In fp32 no way uses tensor
 * cores, whatever its entry says. */
static bool usable(const offers *o, cudnnStatus_t status, cudnnDeterminism_t determinism,
                   cudnnMathType_t *math)
{
    if (o->t->precision == PRECISION_FP32)
        *math = CUDNN_FMA_MATH;
    return status == CUDNN_STATUS_SUCCESS && determinism == CUDNN_DETERMINISTIC &&
           (*math == CUDNN_DEFAULT_MATH || *math == CUDNN_TENSOR_OP_MATH ||
            *math == CUDNN_FMA_MATH);
}

static void forward_offers(device *d, const shapes *s, offers *o)
{
    cudnnConvolutionFwdAlgoPerf_t perf[ALGOS_MAX];
    int found = 0;
    if (cudnnGetConvolutionForwardAlgorithm_v7(d->cudnn, s->x, s->w, s->conv, s->y, ALGOS_MAX,
                                               &found, perf))
        return;
    for (int i = 0; i < found; i++) {
        cudnnMathType_t math = perf[i].mathType;
        if (!usable(o, perf[i].status, perf[i].determinism, &math))
            continue;
        add_offer(o, false, (int)perf[i].algo, math, perf[i].memory);
        /* cuDNN fuses bias and activation into this one alone when there is no activation. */
        if (o->t->bias && o->t->t == ELEMENT_F32 &&
            perf[i].algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
            add_offer(o, true, 0, math, perf[i].memory);
    }
}

static void data_offers(device *d, const shapes *s, offers *o)
{
    cudnnConvolutionBwdDataAlgoPerf_t perf[ALGOS_MAX];
    int found = 0;
    if (cudnnGetConvolutionBackwardDataAlgorithm_v7(d->cudnn, s->w, s->y, s->conv, s->x, ALGOS_MAX,
                                                    &found, perf))
        return;
    for (int i = 0; i < found; i++) {
        cudnnMathType_t math = perf[i].mathType;
        if (usable(o, perf[i].status, perf[i].determinism, &math))
            add_offer(o, false, (int)perf[i].algo, math, perf[i].memory);
    }
}

static void weights_offers(device *d, const shapes *s, offers *o)
{
    cudnnConvolutionBwdFilterAlgoPerf_t perf[ALGOS_MAX];
    int found = 0;
    if (cudnnGetConvolutionBackwardFilterAlgorithm_v7(d->cudnn, s->x, s->y, s->conv, s->w,
                                                      ALGOS_MAX, &found, perf))
        return;
    for (int i = 0; i < found; i++) {
        cudnnMathType_t math = perf[i].mathType;
        if (usable(o, perf[i].status, perf[i].determinism, &math))
            add_offer(o, false, (int)perf[i].algo, math, perf[i].memory + extra_workspace(o->t));
    }
}

int driver_conv_offers(device *d, const conv_task *t, conv_offer *list, int room)
{
    cleanup_shapes shapes s = {0};
    offers o = {.t = t, .list = list, .room = room};
    if (describe(t, math_of(t), &s))
        return 0;
    if (t->pass == CONV_FORWARD)
        forward_offers(d, &s, &o);
    else if (t->pass == CONV_DATA)
        data_offers(d, &s, &o);
    else
        weights_offers(d, &s, &o);
    return o.count;
}

/* ---- one offer, by its name ------------------------------------------------------------------ */

/* False for the algorithms that sum gradients of inputs or weights in any order. */
static bool keeps_order(conv_pass pass, int algo)
{
    if (pass == CONV_DATA)
        return algo != (int)CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
    return pass != CONV_WEIGHTS || (algo != (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 &&
                                    algo != (int)CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3);
}

/* The rule of `usable`, for an offer by its name. */
static bool keeps_precision(const conv_task *t, cudnnMathType_t math)
{
    return math == CUDNN_FMA_MATH || (t->precision != PRECISION_FP32 &&
                                      (math == CUDNN_DEFAULT_MATH || math == CUDNN_TENSOR_OP_MATH));
}

static bool read_name(const conv_task *t, const char *name, bool *fused, int *algo,
                      cudnnMathType_t *math)
{
    char made[32];
    for (int m = 0; m <= (int)CUDNN_FMA_MATH; m++)
        for (int a = -1; a < (int)MATH_ID; a++) {
            *fused = a < 0;
            *algo = *fused ? (int)CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM : a;
            *math = (cudnnMathType_t)m;
            write_name(made, *fused, *algo, *math);
            if (strcmp(made, name) == 0)
                return (!*fused || (t->pass == CONV_FORWARD && t->bias && t->t == ELEMENT_F32)) &&
                       keeps_order(t->pass, *algo) && keeps_precision(t, *math);
        }
    return false;
}

static cudnnStatus_t ask_workspace(device *d, conv_pass pass, int algo, const shapes *s,
                                   size_t *bytes)
{
    if (pass == CONV_FORWARD)
        return cudnnGetConvolutionForwardWorkspaceSize(d->cudnn, s->x, s->w, s->conv, s->y,
                                                       (cudnnConvolutionFwdAlgo_t)algo, bytes);
    if (pass == CONV_DATA)
        return cudnnGetConvolutionBackwardDataWorkspaceSize(
            d->cudnn, s->w, s->y, s->conv, s->x, (cudnnConvolutionBwdDataAlgo_t)algo, bytes);
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(
        d->cudnn, s->x, s->y, s->conv, s->w, (cudnnConvolutionBwdFilterAlgo_t)algo, bytes);
}

int driver_conv_offer(device *d, const conv_task *t, const char *name, conv_offer *out)
{
    cleanup_shapes shapes s = {0};
    offers o = {.t = t, .list = out, .room = 1};
    bool fused;
    int algo;
    cudnnMathType_t math;
    size_t workspace;
    if (!read_name(t, name, &fused, &algo, &math) || describe(t, math, &s) ||
        ask_workspace(d, t->pass, algo, &s, &workspace))
        return -1;
    add_offer(&o, fused, algo, math, workspace + extra_workspace(t));
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

static cudnnStatus_t run_forward(device *d, const conv_task *t, int id, const conv_operands *o,
                                 const shapes *s)
{
    const float one = 1, zero = 0;
    if (id >= FUSED_ID)
        return cudnnConvolutionBiasActivationForward(
            d->cudnn, &one, s->x, o->a, s->w, o->b, s->conv,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, o->workspace, o->workspace_bytes,
            &zero, s->y, o->out, s->bias, o->bias, s->act, s->y, o->out);
    TRY(cudnnConvolutionForward(d->cudnn, &one, s->x, o->a, s->w, o->b, s->conv,
                                (cudnnConvolutionFwdAlgo_t)(id % MATH_ID), o->workspace,
                                o->workspace_bytes, &zero, s->y, o->out));
    if (t->bias || t->relu)
        cuda_bias(d->stream, t->t, (size_t)t->s.n * (size_t)t->s.p * (size_t)t->s.q, t->s.k,
                  o->bias, t->relu, o->out);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run_weights(device *d, const conv_task *t, int id, const conv_operands *o,
                                 const shapes *s)
{
    const float one = 1, zero = 0;
    size_t extra = extra_workspace(t);
    if (o->workspace_bytes < extra)
        return CUDNN_STATUS_BAD_PARAM;
    void *dw = extra ? o->workspace : o->out;
    TRY(cudnnConvolutionBackwardFilter(d->cudnn, &one, s->x, o->a, s->y, o->b, s->conv,
                                       (cudnnConvolutionBwdFilterAlgo_t)(id % MATH_ID),
                                       (char *)o->workspace + extra, o->workspace_bytes - extra,
                                       &zero, s->w, dw));
    if (extra)
        cuda_from_bf16(d->stream, driver_weights(&t->s), dw, o->out, false);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run(device *d, const conv_task *t, int id, const conv_operands *o,
                         const shapes *s)
{
    const float one = 1, beta = t->add ? 1 : 0;
    if (t->pass == CONV_FORWARD)
        return run_forward(d, t, id, o, s);
    if (t->pass == CONV_WEIGHTS)
        return run_weights(d, t, id, o, s);
    return cudnnConvolutionBackwardData(d->cudnn, &one, s->w, o->b, s->y, o->a, s->conv,
                                        (cudnnConvolutionBwdDataAlgo_t)(id % MATH_ID), o->workspace,
                                        o->workspace_bytes, &beta, s->x, o->out);
}

int driver_conv_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    cleanup_shapes shapes s = {0};
    cudnnMathType_t math = (cudnnMathType_t)(id < FUSED_ID ? id / MATH_ID : id - FUSED_ID);
    cudnnStatus_t status = describe(t, math, &s);
    if (status == CUDNN_STATUS_SUCCESS)
        status = run(d, t, id, o, &s);
    if (status == CUDNN_STATUS_SUCCESS)
        return 0;
    return err_set(e, ERR_UNAVAILABLE, "cuDNN on the GPU: %s", cudnnGetErrorString(status));
}
