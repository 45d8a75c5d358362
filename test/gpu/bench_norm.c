/* bench_norm.c: batch norm with the ReLU behind it, ours (norm.cu) beside cuDNN's; see
 * bench_norm.h.
 *
 * Both compute the same layer from the same values, NHWC: forward y = relu(bn(x)) with the running
 * statistics, backward dx, dw and db from dy. Ours takes the ReLU along; cuDNN's is a call for the
 * norm and one for the ReLU, which works in place. Ways are timed in turns, each as a graph of
 * RUNS runs, as in cuda_algo.c; a number is the median round's.
 *
 * Bytes are counted as two passes over a layer must move them, since a channel's sums are needed
 * before its first value is written: forward x twice and y, backward x, y and dy twice and dx.
 * Where a layer fits the GPU's cache they do not all come from its memory. */
#include "bench_norm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cudnn.h>

#include "common/base/cleanup.h"
#include "common/base/rng.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/driver.h"

enum { ROUNDS = 9, RUNS = 20, WAKE_US = 100000, WAKE_ROUNDS = 10000, ALIGNMENT = 256 };
enum { NOT_RUN = 1, NOT_CAPTURED = 2 }; /* beside cudnnStatus_t's, which begin at 1000 */
static const double eps = 1e-5, momentum = 0.1;

typedef enum pass { FORWARD, BACKWARD, PASSES } pass;
typedef enum way { OWN, SPATIAL, PERSISTENT, WAYS } way;
static const cudnnBatchNormMode_t modes[WAYS] = {
    [SPATIAL] = CUDNN_BATCHNORM_SPATIAL, [PERSISTENT] = CUDNN_BATCHNORM_SPATIAL_PERSISTENT};
static const int tensors_moved[PASSES] = {[FORWARD] = 3, [BACKWARD] = 7};

/* What a way has of its own. Floats are (2, C). */
typedef struct contender {
    void *y, *dx;
    float *saved, *running, *gradients; /* mean and 1/sqrt(var + eps); mean and var; dw and db */
    device_graph *graph[PASSES];
    int refused[PASSES]; /* 0: it is timed; cuDNN's status, or NOT_ */
    double us[PASSES];
} contender;

typedef struct layer_bench {
    device *dev;
    element t;
    norm_shape s;
    size_t values; /* of a tensor */
    cudnnHandle_t dnn;
    cudnnTensorDescriptor_t tensor, channel[WAYS];
    cudnnActivationDescriptor_t relu;

    char *memory; /* all that follows lies in it */
    size_t memory_bytes;
    void *x, *dy, *masked; /* masked: cuDNN's dy, which its ReLU changes in place */
    float *weights;        /* (2, C): scale and bias */
    double *scratch;
    step_args *args;
    int64_t *counter;
    contender by[WAYS];
    double difference;
} layer_bench;

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t tensor_bytes(const layer_bench *b)
{
    return b->values * element_bytes(b->t);
}

/* The next of the memory's places; without memory they are only counted. */
static void *place(layer_bench *b, size_t bytes)
{
    char *at = b->memory ? b->memory + b->memory_bytes : NULL;
    b->memory_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static void lay_out(layer_bench *b)
{
    size_t tensor = tensor_bytes(b), pair = 2 * (size_t)b->s.c * sizeof(float);
    b->memory_bytes = 0;
    b->x = place(b, tensor);
    b->dy = place(b, tensor);
    b->masked = place(b, tensor);
    b->weights = place(b, pair);
    b->scratch = place(b, cuda_norm_scratch(b->s) * sizeof(double));
    b->args = place(b, sizeof *b->args);
    b->counter = place(b, sizeof *b->counter);
    for (way w = OWN; w < WAYS; w++) {
        contender *o = &b->by[w];
        o->y = place(b, tensor);
        o->dx = place(b, tensor);
        o->saved = place(b, pair);
        o->running = place(b, pair);
        o->gradients = place(b, pair);
    }
}

static int copy_in(layer_bench *b, void *to, const void *from, size_t bytes, err *e)
{
    return cuda_driver->copy(b->dev, to, from, bytes, COPY_IN, e) || cuda_driver->wait(b->dev, e)
               ? -1
               : 0;
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Values of [least, least + 1); to bf16 they are cut, not rounded. */
static int fill(layer_bench *b, rng *r, float least, size_t values, element t, void *to, err *e)
{
    cleanup_free void *drawn = malloc(values * element_bytes(t));
    if (!drawn)
        return err_set(e, ERR_NOMEM, "no memory for a tensor");
    for (size_t i = 0; i < values; i++) {
        float value = rng_uniform(r) + least;
        if (t == ELEMENT_BF16)
            ((uint16_t *)drawn)[i] = to_bf16(value);
        else
            ((float *)drawn)[i] = value;
    }
    return copy_in(b, to, drawn, values * element_bytes(t), e);
}

static int fill_all(layer_bench *b, err *e)
{
    step_args args = {.n = b->s.n};
    size_t tensor = tensor_bytes(b);
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    if (cuda_driver->zero(b->dev, b->memory, b->memory_bytes, e) ||
        fill(b, &r, -0.25f, b->values, b->t, b->x, e) ||
        fill(b, &r, -0.5f, b->values, b->t, b->dy, e) ||
        cuda_driver->copy(b->dev, b->masked, b->dy, tensor, COPY_WITHIN, e) ||
        fill(b, &r, 0.5f, (size_t)b->s.c, ELEMENT_F32, b->weights, e) ||
        fill(b, &r, -0.5f, (size_t)b->s.c, ELEMENT_F32, b->weights + b->s.c, e))
        return -1;
    return copy_in(b, b->args, &args, sizeof args, e);
}

/* ---- the ways -------------------------------------------------------------------------------- */

#define TRY_DNN(call)                                                                              \
    do {                                                                                           \
        cudnnStatus_t status_ = (call);                                                            \
        if (status_ != CUDNN_STATUS_SUCCESS)                                                       \
            return (int)status_;                                                                   \
    } while (0)

static int describe(layer_bench *b, int channels, int height, int width)
{
    cudnnDataType_t type = b->t == ELEMENT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    TRY_DNN(cudnnCreate(&b->dnn));
    TRY_DNN(cudnnSetStream(b->dnn, cuda_driver->stream(b->dev)));
    TRY_DNN(cudnnCreateTensorDescriptor(&b->tensor));
    TRY_DNN(cudnnSetTensor4dDescriptor(b->tensor, CUDNN_TENSOR_NHWC, type, b->s.n, channels, height,
                                       width));
    for (way w = SPATIAL; w < WAYS; w++) {
        TRY_DNN(cudnnCreateTensorDescriptor(&b->channel[w]));
        TRY_DNN(cudnnDeriveBNTensorDescriptor(b->channel[w], b->tensor, modes[w]));
    }
    TRY_DNN(cudnnCreateActivationDescriptor(&b->relu));
    TRY_DNN(
        cudnnSetActivationDescriptor(b->relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));
    return 0;
}

static void run_own(layer_bench *b, pass p)
{
    contender *o = &b->by[OWN];
    void *stream = cuda_driver->stream(b->dev);
    if (p == FORWARD) {
        cuda_norm_forward(stream, b->t, b->args, b->s, b->x, b->scratch, o->saved, o->running,
                          o->running + b->s.c, b->counter, b->weights, b->weights + b->s.c, NULL,
                          true, o->y);
    } else {
        cuda_norm_backward(stream, b->t, b->args, b->s, b->x, true, NULL, o->saved, b->weights,
                           b->weights + b->s.c, b->dy, b->scratch, o->gradients,
                           o->gradients + b->s.c, o->dx, false, NULL, false);
    }
}

static int cudnn_forward(layer_bench *b, way w)
{
    static const float one = 1, none = 0;
    contender *o = &b->by[w];
    int c = b->s.c;
    TRY_DNN(cudnnBatchNormalizationForwardTraining(
        b->dnn, modes[w], &one, &none, b->tensor, b->x, b->tensor, o->y, b->channel[w], b->weights,
        b->weights + c, momentum, o->running, o->running + c, eps, o->saved, o->saved + c));
    TRY_DNN(cudnnActivationForward(b->dnn, b->relu, &one, b->tensor, o->y, &none, b->tensor, o->y));
    return 0;
}

/* What went into the ReLU is not kept, and is positive where y is. A second run finds dy masked,
 * and masks it again. */
static int cudnn_backward(layer_bench *b, way w)
{
    static const float one = 1, none = 0;
    contender *o = &b->by[w];
    int c = b->s.c;
    TRY_DNN(cudnnActivationBackward(b->dnn, b->relu, &one, b->tensor, o->y, b->tensor, b->masked,
                                    b->tensor, o->y, &none, b->tensor, b->masked));
    TRY_DNN(cudnnBatchNormalizationBackward(b->dnn, modes[w], &one, &none, &one, &none, b->tensor,
                                            b->x, b->tensor, b->masked, b->tensor, o->dx,
                                            b->channel[w], b->weights, o->gradients,
                                            o->gradients + c, eps, o->saved, o->saved + c));
    return 0;
}

/* 0, or cuDNN's status. */
static int run(layer_bench *b, pass p, way w)
{
    if (w != OWN)
        return p == FORWARD ? cudnn_forward(b, w) : cudnn_backward(b, w);
    run_own(b, p);
    return 0;
}

/* ---- whether they agree ---------------------------------------------------------------------- */

static float value_at(const void *values, size_t i, element t)
{
    return t == ELEMENT_BF16 ? from_bf16(((const uint16_t *)values)[i])
                             : ((const float *)values)[i];
}

/* |theirs - ours| / |ours|, of the whole; a difference that is no number stays. */
static int compare(layer_bench *b, const void *ours, const void *theirs, size_t values, element t,
                   err *e)
{
    size_t bytes = values * element_bytes(t);
    cleanup_free void *a = malloc(bytes), *c = malloc(bytes);
    if (!a || !c)
        return err_set(e, ERR_NOMEM, "no memory for a tensor");
    if (cuda_driver->copy(b->dev, a, ours, bytes, COPY_OUT, e) ||
        cuda_driver->copy(b->dev, c, theirs, bytes, COPY_OUT, e) || cuda_driver->wait(b->dev, e))
        return -1;
    double apart = 0, all = 0;
    for (size_t i = 0; i < values; i++) {
        double own = value_at(a, i, t), other = value_at(c, i, t);
        apart += (other - own) * (other - own);
        all += own * own;
    }
    double difference = sqrt(apart / all);
    if (!(difference <= b->difference) && !isnan(b->difference))
        b->difference = difference;
    return 0;
}

static int compare_pass(layer_bench *b, pass p, way w, err *e)
{
    const contender *own = &b->by[OWN], *other = &b->by[w];
    size_t channels = (size_t)b->s.c;
    if (p == FORWARD)
        return compare(b, own->y, other->y, b->values, b->t, e) ||
                       compare(b, own->running, other->running, channels, ELEMENT_F32, e) ||
                       compare(b, own->running + channels, other->running + channels, channels,
                               ELEMENT_F32, e)
                   ? -1
                   : 0;
    return compare(b, own->dx, other->dx, b->values, b->t, e) ||
                   compare(b, own->gradients, other->gradients, channels, ELEMENT_F32, e) ||
                   compare(b, own->gradients + channels, other->gradients + channels, channels,
                           ELEMENT_F32, e)
               ? -1
               : 0;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* RUNS of the pass as one graph; NULL: it cannot be captured. */
static device_graph *capture_runs(layer_bench *b, pass p, way w)
{
    device_graph *runs = NULL;
    bool failed = cuda_driver->capture(b->dev, NULL) != 0;
    if (failed)
        return NULL;
    for (int i = 0; i < RUNS && !failed; i++)
        failed = run(b, p, w) != 0;
    if (cuda_driver->captured(b->dev, &runs, NULL))
        runs = NULL;
    if (failed && runs) {
        cuda_driver->release(b->dev, runs);
        runs = NULL;
    }
    if (!runs)
        cuda_driver->wait(b->dev, NULL); /* which forgets the failure */
    return runs;
}

/* Runs the pass once, outside of a capture, and captures it. What cuDNN does not do is no error. */
static int prepare(layer_bench *b, pass p, way w, err *e)
{
    contender *o = &b->by[w];
    int refused = p == BACKWARD ? o->refused[FORWARD] : 0;
    if (!refused)
        refused = run(b, p, w);
    if (cuda_driver->wait(b->dev, w == OWN ? e : NULL)) {
        if (w == OWN)
            return -1;
        refused = refused ? refused : NOT_RUN;
    }
    if (!refused && w != OWN && compare_pass(b, p, w, e))
        return -1;
    if (!refused) {
        o->graph[p] = capture_runs(b, p, w);
        refused = o->graph[p] ? 0 : NOT_CAPTURED;
    }
    o->refused[p] = refused;
    return w == OWN && refused ? err_set(e, ERR_UNAVAILABLE, "ours is not captured") : 0;
}

/* Microseconds of a run. */
static int time_graph(layer_bench *b, device_graph *g, double *us, err *e)
{
    float all;
    if (cuda_driver->mark(b->dev, 0, e) || cuda_driver->replay(b->dev, g, e) ||
        cuda_driver->mark(b->dev, 1, e) || cuda_driver->elapsed(b->dev, &all, e))
        return -1;
    *us = (double)all / RUNS;
    return 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In turns, after the GPU has been busy for a while: an idle one's clocks are low. */
static int time_pass(layer_bench *b, pass p, err *e)
{
    double rounds[WAYS][ROUNDS], us = 0, all = 0;
    for (int i = 0; all < WAKE_US && i < WAKE_ROUNDS; i++, all += us * RUNS)
        if (time_graph(b, b->by[OWN].graph[p], &us, e))
            return -1;
    for (int i = -2; i < ROUNDS; i++)
        for (way w = OWN; w < WAYS; w++)
            if (b->by[w].graph[p] && time_graph(b, b->by[w].graph[p], &rounds[w][i < 0 ? 0 : i], e))
                return -1;
    for (way w = OWN; w < WAYS; w++) {
        contender *o = &b->by[w];
        if (o->graph[p]) {
            qsort(rounds[w], ROUNDS, sizeof(double), by_size);
            o->us[p] = rounds[w][ROUNDS / 2];
        } else {
            o->us[p] = -o->refused[p];
        }
    }
    return 0;
}

static int measure(layer_bench *b, err *e)
{
    for (pass p = FORWARD; p < PASSES; p++) {
        for (way w = OWN; w < WAYS; w++)
            if (prepare(b, p, w, e))
                return -1;
        if (time_pass(b, p, e))
            return -1;
    }
    return 0;
}

static void print(const layer_bench *b)
{
    for (pass p = FORWARD; p < PASSES; p++) {
        for (way w = OWN; w < WAYS; w++)
            printf("%.2f ", b->by[w].us[p]);
        printf("%.0f ", tensors_moved[p] * (double)tensor_bytes(b) / b->by[OWN].us[p] / 1e3);
    }
    printf("%.2g\n", b->difference);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int begin(layer_bench *b, int height, int width, err *e)
{
    void *memory;
    if (cuda_driver->open(0, &b->dev, e))
        return -1;
    int status = describe(b, b->s.c, height, width);
    if (status)
        return err_set(e, ERR_UNAVAILABLE, "cuDNN does not begin: %s",
                       cudnnGetErrorString((cudnnStatus_t)status));
    lay_out(b);
    if (cuda_memory_take(cuda_driver, b->dev, b->memory_bytes, "a batch norm", &memory, e))
        return -1;
    b->memory = memory;
    lay_out(b);
    return fill_all(b, e);
}

static void end(layer_bench *b)
{
    for (way w = OWN; w < WAYS; w++) {
        for (pass p = FORWARD; p < PASSES; p++)
            if (b->by[w].graph[p])
                cuda_driver->release(b->dev, b->by[w].graph[p]);
        if (b->channel[w])
            cudnnDestroyTensorDescriptor(b->channel[w]);
    }
    if (b->relu)
        cudnnDestroyActivationDescriptor(b->relu);
    if (b->tensor)
        cudnnDestroyTensorDescriptor(b->tensor);
    if (b->dnn)
        cudnnDestroy(b->dnn);
    if (b->memory)
        cuda_memory_give(cuda_driver, b->dev, b->memory, b->memory_bytes);
    if (b->dev)
        cuda_driver->close(b->dev);
}

int bench_norm(int channels, int side, int batch, element t, err *e)
{
    enum { CHANNELS_MAX = 1 << 16, SIDE_MAX = 1 << 10, BATCH_MAX = 1 << 16 };
    if (channels < 1 || channels > CHANNELS_MAX || side < 1 || side > SIDE_MAX || batch < 1 ||
        batch > BATCH_MAX || (int64_t)channels * side * side * batch > INT32_MAX)
        return err_set(e, ERR_INVALID, "a wrong number of channels, a wrong side or batch");
    layer_bench b = {
        .t = t,
        .s = {.n = batch, .c = channels, .hw = side * side, .eps = eps, .momentum = momentum}};
    b.values = (size_t)channels * (size_t)b.s.hw * (size_t)batch;
    int failed = begin(&b, side, side, e) || measure(&b, e);
    if (!failed)
        print(&b);
    end(&b);
    return failed ? -1 : 0;
}
