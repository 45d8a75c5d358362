/* ref_norm.c: batch norm of the reference; see ref_layers.h.
 *
 * Formulas: Ioffe and Szegedy 2015, algorithm 1 and section 3; running statistics as torch.nn. */
#include <math.h>

#include "ref_layers.h"

typedef struct channel {
    size_t plane, stride; /* floats of a plane; from one sample's plane to the next one's */
    double count;         /* values of this channel in the batch */
} channel;

static channel channel_of(const graph_node *n, int N)
{
    size_t plane = (size_t)n->shape.h * (size_t)n->shape.w;
    return (channel){plane, shape_count(n->shape), (double)N * (double)plane};
}

/* Two passes: the mean first, so that the variance does not cancel. */
static void statistics(channel c, int N, const double *x, double *mean, double *var)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < c.plane; j++)
            sum += x[(size_t)i * c.stride + j];
    *mean = sum / c.count;
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < c.plane; j++) {
            double d = x[(size_t)i * c.stride + j] - *mean;
            squares += d * d;
        }
    *var = squares / c.count;
}

static void normalise(channel c, int N, const double *x, double mean, double scale, double shift,
                      double *y)
{
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < c.plane; j++) {
            size_t at = (size_t)i * c.stride + j;
            y[at] = (x[at] - mean) * scale + shift;
        }
}

void ref_batch_norm_train(const graph_node *n, int N, const double *x, const double *w,
                          const double *b, float *running_mean, float *running_var, double *saved,
                          double *y)
{
    channel c = channel_of(n, N);
    double m = n->bn.momentum;
    for (int k = 0; k < n->shape.c; k++) {
        double mean, var;
        statistics(c, N, x + (size_t)k * c.plane, &mean, &var);
        double inverse = 1 / sqrt(var + n->bn.eps);
        normalise(c, N, x + (size_t)k * c.plane, mean, inverse * w[k], b[k],
                  y + (size_t)k * c.plane);
        saved[2 * k] = mean;
        saved[2 * k + 1] = inverse;
        if (c.count > 1) {
            running_mean[k] = (float)((1 - m) * (double)running_mean[k] + m * mean);
            running_var[k] =
                (float)((1 - m) * (double)running_var[k] + m * var * c.count / (c.count - 1));
        }
    }
}

void ref_batch_norm_infer(const graph_node *n, int N, const double *x, const double *w,
                          const double *b, const float *running_mean, const float *running_var,
                          double *y)
{
    channel c = channel_of(n, N);
    for (int k = 0; k < n->shape.c; k++) {
        double inverse = 1 / sqrt((double)running_var[k] + n->bn.eps);
        normalise(c, N, x + (size_t)k * c.plane, (double)running_mean[k], inverse * w[k], b[k],
                  y + (size_t)k * c.plane);
    }
}

/* With u = (x - mean) * inverse:  dw = sum dy u,  db = sum dy,
 * dx = w * inverse * (dy - db/count - u * dw/count) */
void ref_batch_norm_backward(const graph_node *n, int N, const double *x, const double *w,
                             const double *saved, const double *dy, double *dx, double *dw,
                             double *db)
{
    channel c = channel_of(n, N);
    for (int k = 0; k < n->shape.c; k++) {
        double mean = saved[2 * k], inverse = saved[2 * k + 1], sum = 0, sum_u = 0;
        size_t base = (size_t)k * c.plane;
        for (int i = 0; i < N; i++)
            for (size_t j = 0; j < c.plane; j++) {
                size_t at = base + (size_t)i * c.stride + j;
                sum += dy[at];
                sum_u += dy[at] * (x[at] - mean) * inverse;
            }
        dw[k] += sum_u;
        db[k] += sum;
        if (!dx)
            continue;
        for (int i = 0; i < N; i++)
            for (size_t j = 0; j < c.plane; j++) {
                size_t at = base + (size_t)i * c.stride + j;
                double u = (x[at] - mean) * inverse;
                dx[at] += w[k] * inverse * (dy[at] - sum / c.count - u * sum_u / c.count);
            }
    }
}
