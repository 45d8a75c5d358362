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

void ref_activation_forward(const graph_node *n, size_t count, const double *x, double *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] = activate(n, x[i]);
}

void ref_activation_backward(const graph_node *n, size_t count, const double *x, const double *dy,
                             double *dx)
{
    for (size_t i = 0; i < count; i++)
        dx[i] += dy[i] * slope(n, x[i]);
}

/* Elements of a that share one element of b: a plane where b is (C,1,1). */
static size_t shared(const graph_node *n, shape b)
{
    return shape_count(n->shape) / shape_count(b);
}

void ref_pairwise_forward(const graph_node *n, shape b_shape, int N, const double *a,
                          const double *b, double *y)
{
    size_t count = (size_t)N * shape_count(n->shape), each = shared(n, b_shape);
    for (size_t i = 0; i < count; i++)
        y[i] = n->op == OP_ADD ? a[i] + b[i / each] : a[i] * b[i / each];
}

void ref_pairwise_backward(const graph_node *n, shape b_shape, int N, const double *a,
                           const double *b, const double *dy, double *da, double *db)
{
    size_t count = (size_t)N * shape_count(n->shape), each = shared(n, b_shape);
    for (size_t i = 0; i < count; i++) {
        if (da)
            da[i] += n->op == OP_ADD ? dy[i] : dy[i] * b[i / each];
        if (db)
            db[i / each] += n->op == OP_ADD ? dy[i] : dy[i] * a[i];
    }
}

void ref_part_forward(int N, size_t part, size_t y_offset, size_t y_count, const double *x,
                      double *y)
{
    for (int i = 0; i < N; i++)
        memcpy(y + (size_t)i * y_count + y_offset, x + (size_t)i * part, part * sizeof *x);
}

void ref_part_backward(int N, size_t part, size_t y_offset, size_t y_count, const double *dy,
                       double *dx)
{
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < part; j++)
            dx[(size_t)i * part + j] += dy[(size_t)i * y_count + y_offset + j];
}

void ref_dropout(const graph_node *n, uint64_t seed, const backend_batch *b, const double *x,
                 double *y, bool add)
{
    size_t count = shape_count(n->shape);
    double scale = 1 / (1 - n->dropout.p);
    for (int i = 0; i < b->n; i++)
        for (size_t j = 0; j < count; j += 4) {
            unsigned keep = graph_dropout_draw(seed, b->epoch, b->sample[i], n->dropout.layer,
                                               (uint32_t)(j / 4), n->dropout.p);
            for (size_t l = j; l < j + 4 && l < count; l++) {
                size_t at = (size_t)i * count + l;
                double value = keep >> (l - j) & 1 ? x[at] * scale : 0;
                y[at] = add ? y[at] + value : value;
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
