/* ref_norm.c: batch norm and group norm of the reference; see ref_layers.h.
 *
 * Formulas: Ioffe and Szegedy 2015, algorithm 1 and section 3; running statistics as torch.nn.
 * Wu and He 2018, equations 1 and 7. */
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

size_t ref_batch_norm_keeps(const graph_node *n, int N)
{
    (void)N;
    return 2 * (size_t)n->shape.c * sizeof(double);
}

static void move_on(const op_call *o, channel c, int k, double mean, double var)
{
    double m = o->n->bn.momentum;
    o->running_mean[k] = (float)((1 - m) * (double)o->running_mean[k] + m * mean);
    o->running_var[k] =
        (float)((1 - m) * (double)o->running_var[k] + m * var * c.count / (c.count - 1));
}

static void train(const op_call *o)
{
    channel c = channel_of(o->n, o->N);
    double *saved = o->kept;
    for (int k = 0; k < o->n->shape.c; k++) {
        const double *x = o->x[0] + (size_t)k * c.plane;
        double mean, var;
        statistics(c, o->N, x, &mean, &var);
        double inverse = 1 / sqrt(var + o->n->bn.eps);
        normalise(c, o->N, x, mean, inverse * o->w[k], o->b[k], o->y + (size_t)k * c.plane);
        saved[2 * k] = mean;
        saved[2 * k + 1] = inverse;
        if (c.count > 1)
            move_on(o, c, k, mean, var);
    }
    ++*o->batches;
}

static void infer(const op_call *o)
{
    channel c = channel_of(o->n, o->N);
    for (int k = 0; k < o->n->shape.c; k++) {
        double inverse = 1 / sqrt((double)o->running_var[k] + o->n->bn.eps);
        normalise(c, o->N, o->x[0] + (size_t)k * c.plane, (double)o->running_mean[k],
                  inverse * o->w[k], o->b[k], o->y + (size_t)k * c.plane);
    }
}

void ref_batch_norm_forward(const op_call *o)
{
    (o->training ? train : infer)(o);
}

/* With u = (x - mean) * inverse:  dw = sum dy u,  db = sum dy,
 * dx = w * inverse * (dy - db/count - u * dw/count) */
void ref_batch_norm_backward(const op_call *o)
{
    int N = o->N;
    channel c = channel_of(o->n, N);
    const double *x = o->x[0], *dy = o->dy, *saved = o->kept;
    double *dx = o->dx[0];
    for (int k = 0; k < o->n->shape.c; k++) {
        double mean = saved[2 * k], inverse = saved[2 * k + 1], sum = 0, sum_u = 0;
        size_t base = (size_t)k * c.plane;
        for (int i = 0; i < N; i++)
            for (size_t j = 0; j < c.plane; j++) {
                size_t at = base + (size_t)i * c.stride + j;
                sum += dy[at];
                sum_u += dy[at] * (x[at] - mean) * inverse;
            }
        o->dw[k] += sum_u;
        o->db[k] += sum;
        if (!dx)
            continue;
        for (int i = 0; i < N; i++)
            for (size_t j = 0; j < c.plane; j++) {
                size_t at = base + (size_t)i * c.stride + j;
                double u = (x[at] - mean) * inverse;
                dx[at] += o->w[k] * inverse * (dy[at] - sum / c.count - u * sum_u / c.count);
            }
    }
}

/* ---- group norm ------------------------------------------------------------------------------ */

size_t ref_group_norm_keeps(const graph_node *n, int N)
{
    return 2 * (size_t)N * (size_t)n->gn.groups * sizeof(double);
}

/* The values of one sample's group are neighbours: its channels, one plane after the other. */
typedef struct group {
    size_t number, at, count, plane; /* of all; of the first value; how many; of a channel */
    int channel;                     /* the first */
} group;

static group group_of(const graph_node *n, int i, int k)
{
    int channels = n->shape.c / n->gn.groups;
    size_t plane = (size_t)n->shape.h * (size_t)n->shape.w, count = (size_t)channels * plane;
    size_t number = (size_t)i * (size_t)n->gn.groups + (size_t)k;
    return (group){number, number * count, count, plane, k * channels};
}

static void group_forward(const op_call *o, group k)
{
    const double *x = o->x[0] + k.at;
    double *y = o->y + k.at, *saved = o->training ? (double *)o->kept + 2 * k.number : NULL;
    double mean, var;
    statistics((channel){k.count, 0, (double)k.count}, 1, x, &mean, &var);
    double inverse = 1 / sqrt(var + o->n->gn.eps);
    for (size_t j = 0; j < k.count; j++) {
        size_t c = (size_t)k.channel + j / k.plane;
        y[j] = (x[j] - mean) * inverse * o->w[c] + o->b[c];
    }
    if (saved)
        saved[0] = mean, saved[1] = inverse;
}

void ref_group_norm_forward(const op_call *o)
{
    for (int i = 0; i < o->N; i++)
        for (int k = 0; k < o->n->gn.groups; k++)
            group_forward(o, group_of(o->n, i, k));
}

/* With u = (x - mean) * inverse and v = w dy:  dw = sum dy u,  db = sum dy,
 * dx = inverse * (v - mean of v - u * mean of v u) */
static void group_backward(const op_call *o, group k)
{
    const double *x = o->x[0] + k.at, *dy = o->dy + k.at;
    const double *saved = (const double *)o->kept + 2 * k.number;
    double mean = saved[0], inverse = saved[1], sum = 0, sum_u = 0, count = (double)k.count;
    for (size_t j = 0; j < k.count; j++) {
        size_t c = (size_t)k.channel + j / k.plane;
        double u = (x[j] - mean) * inverse;
        o->dw[c] += dy[j] * u;
        o->db[c] += dy[j];
        sum += o->w[c] * dy[j];
        sum_u += o->w[c] * dy[j] * u;
    }
    for (size_t j = 0; j < k.count && o->dx[0]; j++) {
        double v = o->w[(size_t)k.channel + j / k.plane] * dy[j], u = (x[j] - mean) * inverse;
        o->dx[0][k.at + j] += inverse * (v - sum / count - u * sum_u / count);
    }
}

void ref_group_norm_backward(const op_call *o)
{
    for (int i = 0; i < o->N; i++)
        for (int k = 0; k < o->n->gn.groups; k++)
            group_backward(o, group_of(o->n, i, k));
}
