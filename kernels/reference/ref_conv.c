/* ref_conv.c: convolution and linear layers of the reference; see ref_layers.h. */
#include <string.h>

#include "ref_layers.h"

/* The output columns [from, to) whose input column q*stride - pad + s*dil lies inside [0, W). */
static void inside(int out, int in, int stride, int shift, int *from, int *to)
{
    *from = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *to = in - 1 - shift < 0 ? 0 : (in - 1 - shift) / stride + 1;
    if (*to > out)
        *to = out;
    if (*from > *to)
        *from = *to;
}

/* Four sums at a time: one running sum would wait for itself at every addition. */
static double dot(const double *a, const double *b, int n, int b_stride)
{
    double sum[4] = {0};
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += a[i + j] * b[(size_t)(i + j) * (size_t)b_stride];
    for (; i < n; i++)
        sum[0] += a[i] * b[(size_t)i * (size_t)b_stride];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void axpy(double a, const double *x, int x_stride, double *y, int y_stride, int n)
{
    if (x_stride == 1 && y_stride == 1) {
        for (int i = 0; i < n; i++)
            y[i] += a * x[i];
        return;
    }
    for (int i = 0; i < n; i++)
        y[(size_t)i * (size_t)y_stride] += a * x[(size_t)i * (size_t)x_stride];
}

typedef enum conv_pass { CONV_FORWARD, CONV_DX, CONV_DW } conv_pass;

/* One kernel element (r, s) between one input plane (H, W) and one output plane (P, Q):
 * forward y += w x; backward dx += w dy, or *w += sum dy x. */
static void conv_tap(const graph_node *n, shape in, conv_pass pass, int r, int s, double *w,
                     double *x, double *y)
{
    shape out = n->shape;
    int row_shift = r * n->conv.dil_h - n->conv.pad_h,
        column_shift = s * n->conv.dil_w - n->conv.pad_w;
    int p0, p1, q0, q1, stride = n->conv.stride_w;
    inside(out.h, in.h, n->conv.stride_h, row_shift, &p0, &p1);
    inside(out.w, in.w, stride, column_shift, &q0, &q1);
    for (int p = p0; p < p1; p++) {
        double *xr =
            x + (ptrdiff_t)(p * n->conv.stride_h + row_shift) * in.w + q0 * stride + column_shift;
        double *yr = y + (ptrdiff_t)p * out.w + q0;
        if (pass == CONV_FORWARD)
            axpy(*w, xr, stride, yr, 1, q1 - q0);
        else if (pass == CONV_DX)
            axpy(*w, yr, 1, xr, stride, q1 - q0);
        else
            *w += dot(yr, xr, q1 - q0, stride);
    }
}

/* All (k, c, r, s) of one sample; w (K, C/groups, R, S), x (C, H, W), y (K, P, Q). */
static void conv_sample(const graph_node *n, shape in, conv_pass pass, double *w, double *x,
                        double *y)
{
    int filters = n->shape.c, groups = n->conv.groups;
    int channels = in.c / groups, filters_group = filters / groups;
    size_t in_plane = (size_t)in.h * (size_t)in.w,
           out_plane = (size_t)n->shape.h * (size_t)n->shape.w;
    for (int k = 0; k < filters; k++)
        for (int c = 0; c < channels; c++) {
            double *plane = x + (size_t)(k / filters_group * channels + c) * in_plane;
            for (int r = 0; r < n->conv.kernel_h; r++)
                for (int s = 0; s < n->conv.kernel_w; s++)
                    conv_tap(n, in, pass, r, s, w++, plane, y + (size_t)k * out_plane);
        }
}

/* The pass decides which of the three is written; the casts below take const off the other two. */
static double *unconst(const double *p)
{
    union {
        const double *in;
        double *out;
    } u = {.in = p};
    return u.out;
}

void ref_conv2d_forward(const op_call *o)
{
    const graph_node *n = o->n;
    size_t in_count = shape_count(o->in[0]), out_count = shape_count(n->shape);
    size_t plane = (size_t)n->shape.h * (size_t)n->shape.w;
    const double *x = o->x[0], *b = o->b;
    double *y = o->y;
    for (int i = 0; i < o->N; i++, x += in_count, y += out_count) {
        for (size_t j = 0; j < out_count; j++)
            y[j] = b ? b[j / plane] : 0;
        conv_sample(n, o->in[0], CONV_FORWARD, unconst(o->w), unconst(x), y);
    }
}

void ref_conv2d_backward(const op_call *o)
{
    const graph_node *n = o->n;
    shape in = o->in[0];
    size_t in_count = shape_count(in), out_count = shape_count(n->shape);
    size_t plane = (size_t)n->shape.h * (size_t)n->shape.w;
    double *dx = o->dx[0];
    for (int i = 0; i < o->N; i++) {
        const double *dy = o->dy + (size_t)i * out_count;
        conv_sample(n, in, CONV_DW, o->dw, unconst(o->x[0] + (size_t)i * in_count), unconst(dy));
        if (dx)
            conv_sample(n, in, CONV_DX, unconst(o->w), dx + (size_t)i * in_count, unconst(dy));
        if (o->db)
            for (size_t j = 0; j < out_count; j++)
                o->db[j / plane] += dy[j];
    }
}

/* y(N, out) = x(N, in) w(out, in)^T + b */
void ref_linear_forward(const op_call *o)
{
    int in = o->in[0].c, out = o->n->shape.c;
    for (int i = 0; i < o->N; i++)
        for (int k = 0; k < out; k++)
            o->y[(size_t)i * (size_t)out + (size_t)k] =
                (o->b ? o->b[k] : 0) +
                dot(o->w + (size_t)k * (size_t)in, o->x[0] + (size_t)i * (size_t)in, in, 1);
}

void ref_linear_backward(const op_call *o)
{
    int in = o->in[0].c, out = o->n->shape.c;
    const double *x = o->x[0];
    double *dx = o->dx[0];
    for (int i = 0; i < o->N; i++)
        for (int k = 0; k < out; k++) {
            double d = o->dy[(size_t)i * (size_t)out + (size_t)k];
            axpy(d, x + (size_t)i * (size_t)in, 1, o->dw + (size_t)k * (size_t)in, 1, in);
            if (dx)
                axpy(d, o->w + (size_t)k * (size_t)in, 1, dx + (size_t)i * (size_t)in, 1, in);
            if (o->db)
                o->db[k] += d;
        }
}
