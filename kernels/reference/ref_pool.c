/* ref_pool.c: pooling of the reference; see ref_layers.h. */
#include <math.h>

#include "ref_layers.h"

/* The input rows or columns [from, to) of output position p, and how many a divisor counts. */
typedef struct span {
    int from, to, counted;
} span;

static span window_span(int p, int kernel, int stride, int pad, int extent, bool count_pad)
{
    int from = p * stride - pad, to = from + kernel;
    if (to > extent + pad)
        to = extent + pad;
    int counted = to - from;
    from = from < 0 ? 0 : from;
    to = to > extent ? extent : to;
    return (span){from, to, count_pad ? counted : to - from};
}

static bool is_adaptive(const graph_node *n)
{
    return n->op == OP_ADAPTIVE_AVG_POOL || n->op == OP_ADAPTIVE_MAX_POOL;
}

static span rows(const graph_node *n, shape in, int p)
{
    if (is_adaptive(n)) {
        int from = (int)((int64_t)p * in.h / n->shape.h);
        int to = (int)(((int64_t)(p + 1) * in.h + n->shape.h - 1) / n->shape.h);
        return (span){from, to, to - from};
    }
    return window_span(p, n->pool.kernel_h, n->pool.stride_h, n->pool.pad_h, in.h,
                       n->pool.count_pad);
}

static span columns(const graph_node *n, shape in, int q)
{
    if (is_adaptive(n)) {
        int from = (int)((int64_t)q * in.w / n->shape.w);
        int to = (int)(((int64_t)(q + 1) * in.w + n->shape.w - 1) / n->shape.w);
        return (span){from, to, to - from};
    }
    return window_span(q, n->pool.kernel_w, n->pool.stride_w, n->pool.pad_w, in.w,
                       n->pool.count_pad);
}

/* As PyTorch: a NaN wins over whatever came before it. */
static int32_t maximum(const double *plane, shape in, span v, span h)
{
    int32_t best = v.from * in.w + h.from;
    for (int r = v.from; r < v.to; r++)
        for (int c = h.from; c < h.to; c++)
            if (plane[r * in.w + c] > plane[best] || isnan(plane[r * in.w + c]))
                best = r * in.w + c;
    return best;
}

size_t ref_max_pool_keeps(const graph_node *n, int N)
{
    return (size_t)N * shape_count(n->shape) * sizeof(int32_t);
}

void ref_max_pool_forward(const op_call *o)
{
    const graph_node *n = o->n;
    shape in = o->in[0];
    size_t planes = (size_t)o->N * (size_t)in.c, in_plane = (size_t)in.h * (size_t)in.w;
    const double *x = o->x[0];
    double *y = o->y;
    int32_t *winner = o->training ? o->kept : NULL;
    for (size_t i = 0; i < planes; i++, x += in_plane)
        for (int p = 0; p < n->shape.h; p++)
            for (int q = 0; q < n->shape.w; q++) {
                int32_t best = maximum(x, in, rows(n, in, p), columns(n, in, q));
                if (winner)
                    *winner++ = best;
                *y++ = x[best];
            }
}

void ref_max_pool_backward(const op_call *o)
{
    shape in = o->in[0], out = o->n->shape;
    size_t planes = (size_t)o->N * (size_t)in.c, out_plane = (size_t)out.h * (size_t)out.w;
    const int32_t *winner = o->kept;
    const double *dy = o->dy;
    double *dx = o->dx[0];
    for (size_t i = 0; i < planes; i++, dx += (size_t)in.h * (size_t)in.w)
        for (size_t j = 0; j < out_plane; j++)
            dx[*winner++] += *dy++;
}

/* Forward: *y = mean of the window. Backward: the window of dx gains *y / count. */
static void average_window(shape in, span v, span h, double *plane, double *y, bool backward)
{
    double count = (double)v.counted * h.counted, sum = 0;
    for (int r = v.from; r < v.to; r++)
        for (int c = h.from; c < h.to; c++) {
            if (backward)
                plane[r * in.w + c] += *y / count;
            else
                sum += plane[r * in.w + c];
        }
    if (!backward)
        *y = sum / count;
}

static void average(const graph_node *n, shape in, int N, double *x, double *y, bool backward)
{
    size_t planes = (size_t)N * (size_t)in.c;
    for (size_t i = 0; i < planes; i++, x += (size_t)in.h * (size_t)in.w)
        for (int p = 0; p < n->shape.h; p++)
            for (int q = 0; q < n->shape.w; q++)
                average_window(in, rows(n, in, p), columns(n, in, q), x, y++, backward);
}

void ref_avg_pool_forward(const op_call *o)
{
    union {
        const double *in;
        double *out;
    } readable = {.in = o->x[0]}; /* forward only reads x */
    average(o->n, o->in[0], o->N, readable.out, o->y, false);
}

void ref_avg_pool_backward(const op_call *o)
{
    union {
        const double *in;
        double *out;
    } readable = {.in = o->dy}; /* backward only reads dy */
    average(o->n, o->in[0], o->N, o->dx[0], readable.out, true);
}
