/* driver_conv.c: convolutions by cuDNN; see driver.h.
 *
 * Offers are cuDNN's own list for the shape, those it calls deterministic. Descriptors are made for
 * each call: calls happen while algorithms are timed and while a graph is captured, never in
 * training. Weights' gradients of bf16 come out of cuDNN as bf16; they pass through the workspace
 * and leave as floats. */
#include <stdio.h>
#include <string.h>

#include "cuda/driver_cuda.h"

enum { FUSED_ID = 50, ALGOS_MAX = 10 };

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

static cudnnStatus_t describe(const conv_task *t, shapes *d)
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
    TRY(cudnnSetConvolutionMathType(d->conv, t->precision == PRECISION_FP32
                                                 ? CUDNN_FMA_MATH
                                                 : CUDNN_TENSOR_OP_MATH));
    return cudnnSetActivationDescriptor(d->act, t->relu ? CUDNN_ACTIVATION_RELU
                                                        : CUDNN_ACTIVATION_IDENTITY,
                                        CUDNN_PROPAGATE_NAN, 0);
}

static size_t weights_count(const conv_shape *s)
{
    return (size_t)s->k * (size_t)s->r * (size_t)s->s * (size_t)(s->c / s->groups);
}

/* What the weights pass of bf16 keeps beside cuDNN's own workspace. */
static size_t extra_workspace(const conv_task *t)
{
    if (t->pass != CONV_WEIGHTS || t->t != ELEMENT_BF16)
        return 0;
    return (2 * weights_count(&t->s) + 255) / 256 * 256;
}

/* ---- offers ---------------------------------------------------------------------------------- */

static int add_offer(conv_offer *list, int count, int room, int id, size_t workspace)
{
    if (count == room)
        return count;
    list[count].id = id;
    list[count].workspace = workspace;
    snprintf(list[count].name, sizeof list[count].name, id == FUSED_ID ? "cudnn-fused" : "cudnn-%d",
             id);
    return count + 1;
}

static bool usable(cudnnStatus_t status, cudnnDeterminism_t determinism)
{
    return status == CUDNN_STATUS_SUCCESS && determinism == CUDNN_DETERMINISTIC;
}

static int forward_offers(device *d, const conv_task *t, const shapes *s, conv_offer *list,
                          int room)
{
    cudnnConvolutionFwdAlgoPerf_t perf[ALGOS_MAX];
    int found = 0, count = 0;
    if (cudnnGetConvolutionForwardAlgorithm_v7(d->cudnn, s->x, s->w, s->conv, s->y, ALGOS_MAX,
                                               &found, perf))
        return 0;
    for (int i = 0; i < found; i++) {
        if (!usable(perf[i].status, perf[i].determinism))
            continue;
        count = add_offer(list, count, room, (int)perf[i].algo, perf[i].memory);
        /* cuDNN fuses bias and activation into this one alone when there is no activation. */
        if (t->bias && t->t == ELEMENT_F32 &&
            perf[i].algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
            count = add_offer(list, count, room, FUSED_ID, perf[i].memory);
    }
    return count;
}

static int data_offers(device *d, const shapes *s, conv_offer *list, int room)
{
    cudnnConvolutionBwdDataAlgoPerf_t perf[ALGOS_MAX];
    int found = 0, count = 0;
    if (cudnnGetConvolutionBackwardDataAlgorithm_v7(d->cudnn, s->w, s->y, s->conv, s->x, ALGOS_MAX,
                                                    &found, perf))
        return 0;
    for (int i = 0; i < found; i++)
        if (usable(perf[i].status, perf[i].determinism))
            count = add_offer(list, count, room, (int)perf[i].algo, perf[i].memory);
    return count;
}

static int weights_offers(device *d, const conv_task *t, const shapes *s, conv_offer *list,
                          int room)
{
    cudnnConvolutionBwdFilterAlgoPerf_t perf[ALGOS_MAX];
    int found = 0, count = 0;
    if (cudnnGetConvolutionBackwardFilterAlgorithm_v7(d->cudnn, s->x, s->y, s->conv, s->w,
                                                      ALGOS_MAX, &found, perf))
        return 0;
    for (int i = 0; i < found; i++)
        if (usable(perf[i].status, perf[i].determinism))
            count = add_offer(list, count, room, (int)perf[i].algo,
                              perf[i].memory + extra_workspace(t));
    return count;
}

int driver_conv_offers(device *d, const conv_task *t, conv_offer *list, int room)
{
    cleanup_shapes shapes s = {0};
    if (describe(t, &s))
        return 0;
    if (t->pass == CONV_FORWARD)
        return forward_offers(d, t, &s, list, room);
    if (t->pass == CONV_DATA)
        return data_offers(d, &s, list, room);
    return weights_offers(d, t, &s, list, room);
}

/* ---- running --------------------------------------------------------------------------------- */

static cudnnStatus_t run_forward(device *d, const conv_task *t, int id, const conv_operands *o,
                                 const shapes *s)
{
    const float one = 1, zero = 0;
    if (id == FUSED_ID)
        return cudnnConvolutionBiasActivationForward(
            d->cudnn, &one, s->x, o->a, s->w, o->b, s->conv,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, o->workspace, o->workspace_bytes,
            &zero, s->y, o->out, s->bias, o->bias, s->act, s->y, o->out);
    TRY(cudnnConvolutionForward(d->cudnn, &one, s->x, o->a, s->w, o->b, s->conv,
                                (cudnnConvolutionFwdAlgo_t)id, o->workspace, o->workspace_bytes,
                                &zero, s->y, o->out));
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
                                       (cudnnConvolutionBwdFilterAlgo_t)id,
                                       (char *)o->workspace + extra, o->workspace_bytes - extra,
                                       &zero, s->w, dw));
    if (extra)
        cuda_from_bf16(d->stream, weights_count(&t->s), dw, o->out, false);
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
                                        (cudnnConvolutionBwdDataAlgo_t)id, o->workspace,
                                        o->workspace_bytes, &beta, s->x, o->out);
}

int driver_conv_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    cleanup_shapes shapes s = {0};
    cudnnStatus_t status = describe(t, &s);
    if (status == CUDNN_STATUS_SUCCESS)
        status = run(d, t, id, o, &s);
    if (status == CUDNN_STATUS_SUCCESS)
        return 0;
    return err_set(e, ERR_UNAVAILABLE, "cuDNN: %s", cudnnGetErrorString(status));
}
