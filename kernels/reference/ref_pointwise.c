/* ref_pointwise.c: activations, sums, products, concat, dropout and losses of the reference; see
 * ref_layers.h. */
#include <math.h>
#include <string.h>

#include "ref_layers.h"

#define SQRT_HALF    0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x; /* NaN stays NaN */
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double activate(const graph_node *n, double x)
{
    switch (n->act.kind) {
    case ACT_RELU:
        return x < 0 ? 0 : x;
    case ACT_RELU6:
        return clamp(x, 0, 6);
    case ACT_LEAKY_RELU:
        return x > 0 ? x : n->act.slope * x;
    case ACT_HARDSIGMOID:
        return clamp(x + 3, 0, 6) / 6;
    case ACT_HARDSWISH:
        return x * clamp(x + 3, 0, 6) / 6;
    case ACT_SIGMOID:
        return sigmoid(x);
    case ACT_TANH:
        return tanh(x);
    case ACT_GELU:
        return 0.5 * x * (1 + erf(x * SQRT_HALF));
    case ACT_SILU:
        return x * sigmoid(x);
    case ACT_COUNT:
        break;
    }
    return NAN;
}

/* df/dx; at the kinks the value that PyTorch takes. */
static double slope(const graph_node *n, double x)
{
    double s;
    switch (n->act.kind) {
    case ACT_RELU:
        return x > 0 ? 1 : 0;
    case ACT_RELU6:
        return x > 0 && x < 6 ? 1 : 0;
    case ACT_LEAKY_RELU:
        return x > 0 ? 1 : n->act.slope;
    case ACT_HARDSIGMOID:
        return x > -3 && x < 3 ? 1.0 / 6 : 0;
    case ACT_HARDSWISH:
        return x <= -3 ? 0 : x < 3 ? x / 3 + 0.5 : 1;
    case ACT_SIGMOID:
        s = sigmoid(x);
        return s * (1 - s);
    case ACT_TANH:
        s = tanh(x);
        return 1 - s * s;
    case ACT_GELU:
        return 0.5 * (1 + erf(x * SQRT_HALF)) + x * INV_SQRT_2PI * exp(-0.5 * x * x);
    case ACT_SILU:
        s = sigmoid(x);
        return s * (1 + x * (1 - s));
    case ACT_COUNT:
        break;
    }
    return NAN;
}

/* Elements of the result of all samples. */
static size_t count_of(const op_call *o)
{
    return (size_t)o->N * shape_count(o->n->shape);
}

void ref_activation_forward(const op_call *o)
{
    size_t count = count_of(o);
    const double *x = o->x[0];
    double *y = o->y;
    for (size_t i = 0; i < count; i++)
        y[i] = activate(o->n, x[i]);
}

void ref_activation_backward(const op_call *o)
{
    size_t count = count_of(o);
    const double *x = o->x[0], *dy = o->dy;
    double *dx = o->dx[0];
    for (size_t i = 0; i < count; i++)
        dx[i] += dy[i] * slope(o->n, x[i]);
}

/* Elements of the first input that share one element of the second: a plane where that is
 * (C,1,1). */
static size_t shared(const op_call *o)
{
    return shape_count(o->n->shape) / shape_count(o->in[1]);
}

void ref_add_forward(const op_call *o)
{
    size_t count = count_of(o), each = shared(o);
    const double *a = o->x[0], *b = o->x[1];
    double *y = o->y;
    for (size_t i = 0; i < count; i++)
        y[i] = a[i] + b[i / each];
}

void ref_add_backward(const op_call *o)
{
    size_t count = count_of(o), each = shared(o);
    const double *dy = o->dy;
    double *da = o->dx[0], *db = o->dx[1];
    for (size_t i = 0; i < count; i++) {
        if (da)
            da[i] += dy[i];
        if (db)
            db[i / each] += dy[i];
    }
}

void ref_mul_forward(const op_call *o)
{
    size_t count = count_of(o), each = shared(o);
    const double *a = o->x[0], *b = o->x[1];
    double *y = o->y;
    for (size_t i = 0; i < count; i++)
        y[i] = a[i] * b[i / each];
}

void ref_mul_backward(const op_call *o)
{
    size_t count = count_of(o), each = shared(o);
    const double *a = o->x[0], *b = o->x[1], *dy = o->dy;
    double *da = o->dx[0], *db = o->dx[1];
    for (size_t i = 0; i < count; i++) {
        if (da)
            da[i] += dy[i] * b[i / each];
        if (db)
            db[i / each] += dy[i] * a[i];
    }
}

/* Copies `part` values of each sample from x (N, part) to y (N, y_count), at y_offset. */
static void part_forward(int N, size_t part, size_t y_offset, size_t y_count, const double *x,
                         double *y)
{
    for (int i = 0; i < N; i++)
        memcpy(y + (size_t)i * y_count + y_offset, x + (size_t)i * part, part * sizeof *x);
}

static void part_backward(int N, size_t part, size_t y_offset, size_t y_count, const double *dy,
                          double *dx)
{
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < part; j++)
            dx[(size_t)i * part + j] += dy[(size_t)i * y_count + y_offset + j];
}

void ref_concat_forward(const op_call *o)
{
    size_t at = 0;
    for (int i = 0; i < o->n->in_count; i++) {
        size_t part = shape_count(o->in[i]);
        part_forward(o->N, part, at, shape_count(o->n->shape), o->x[i], o->y);
        at += part;
    }
}

void ref_concat_backward(const op_call *o)
{
    size_t at = 0;
    for (int i = 0; i < o->n->in_count; i++) {
        size_t part = shape_count(o->in[i]);
        if (o->dx[i])
            part_backward(o->N, part, at, shape_count(o->n->shape), o->dy, o->dx[i]);
        at += part;
    }
}

static size_t pad_before(const graph_node *n)
{
    return (size_t)n->pad.before * (size_t)n->shape.h * (size_t)n->shape.w;
}

void ref_pad_channels_forward(const op_call *o)
{
    memset(o->y, 0, count_of(o) * sizeof *o->y);
    part_forward(o->N, shape_count(o->in[0]), pad_before(o->n), shape_count(o->n->shape), o->x[0],
                 o->y);
}

void ref_pad_channels_backward(const op_call *o)
{
    part_backward(o->N, shape_count(o->in[0]), pad_before(o->n), shape_count(o->n->shape), o->dy,
                  o->dx[0]);
}

void ref_flatten_forward(const op_call *o)
{
    memcpy(o->y, o->x[0], count_of(o) * sizeof *o->y);
}

void ref_flatten_backward(const op_call *o)
{
    part_backward(o->N, shape_count(o->in[0]), 0, shape_count(o->n->shape), o->dy, o->dx[0]);
}

/* x and y: values forward, gradients backward, which are added. */
static void dropout(const op_call *o, const double *x, double *y, bool add)
{
    const graph_node *n = o->n;
    const backend_batch *b = o->batch;
    size_t count = shape_count(n->shape);
    double scale = 1 / (1 - n->dropout.p);
    for (int i = 0; i < o->N; i++)
        for (size_t j = 0; j < count; j += 4) {
            unsigned keep = graph_dropout_draw(o->seed, b->epoch, b->sample[i], n->dropout.layer,
                                               (uint32_t)(j / 4), n->dropout.p);
            for (size_t l = j; l < j + 4 && l < count; l++) {
                size_t at = (size_t)i * count + l;
                double value = keep >> (l - j) & 1 ? x[at] * scale : 0;
                y[at] = add ? y[at] + value : value;
            }
        }
}

void ref_dropout_forward(const op_call *o)
{
    if (o->training)
        dropout(o, o->x[0], o->y, false);
    else
        memcpy(o->y, o->x[0], count_of(o) * sizeof *o->y);
}

void ref_dropout_backward(const op_call *o)
{
    dropout(o, o->dy, o->dx[0], true);
}

void ref_input(const op_call *o)
{
    const backend_batch *b = o->batch;
    shape s = o->n->shape;
    size_t plane = (size_t)s.h * (size_t)s.w, count = shape_count(s);
    for (int i = 0; i < o->N; i++) {
        const unsigned char *bytes = b->x[i];
        for (size_t j = 0; j < count; j++) {
            float value;
            if (b->type == INPUT_UINT8)
                value = (float)bytes[j];
            else
                memcpy(&value, bytes + j * sizeof value, sizeof value);
            double scale = b->scale ? (double)b->scale[j / plane] : 1;
            double shift = b->shift ? (double)b->shift[j / plane] : 0;
            o->y[(size_t)i * count + j] = (double)value * scale + shift;
        }
    }
}

/* -log softmax(z)[label], by the largest logit so that exp cannot overflow; d = softmax - onehot.
 */
static double cross_entropy(int outputs, const double *z, int32_t label, double *dz, double weight)
{
    double top = z[0], sum = 0;
    for (int o = 1; o < outputs; o++)
        if (z[o] > top)
            top = z[o];
    for (int o = 0; o < outputs; o++)
        sum += exp(z[o] - top);
    for (int o = 0; dz && o < outputs; o++)
        dz[o] = weight * (exp(z[o] - top) / sum - (o == label ? 1 : 0));
    return log(sum) - (z[label] - top);
}

static double squared_error(int outputs, const double *y, const float *target, double *dy,
                            double weight)
{
    double sum = 0;
    for (int o = 0; o < outputs; o++) {
        double d = y[o] - (double)target[o];
        sum += d * d / outputs;
        if (dy)
            dy[o] = weight * 2 * d / outputs;
    }
    return sum;
}

static int first_largest(int outputs, const double *z)
{
    int best = 0;
    for (int o = 1; o < outputs; o++)
        if (z[o] > z[best])
            best = o;
    return best;
}

backend_result ref_loss(backend_loss kind, const backend_batch *b, int outputs,
                        const double *logits, double *dlogits)
{
    backend_result r = {0};
    double weight = 1.0 / b->n;
    for (int i = 0; i < b->n; i++) {
        size_t at = (size_t)i * (size_t)outputs;
        double *d = dlogits ? dlogits + at : NULL;
        if (kind == LOSS_MSE) {
            r.loss_sum += squared_error(outputs, logits + at, b->targets + at, d, weight);
        } else {
            r.loss_sum += cross_entropy(outputs, logits + at, b->labels[i], d, weight);
            r.correct += first_largest(outputs, logits + at) == b->labels[i];
        }
    }
    return r;
}
