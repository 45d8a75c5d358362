/* cpu_generic.c: ops of a sample as plain loops over any layout, through views. Cases of these ops
 * that have no faster way elsewhere run here; the job's record calls it "loops". Backward functions
 * add to dx. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_program.h"

#define EACH(i, n) for (int i = 0; i < (n); i++)
#define AT(v, n, c, h, w)                                                                          \
    ((v)->p[(size_t)(n) * (v)->sn + (size_t)(c) * (v)->sc + (size_t)(h) * (v)->sh +                \
            (size_t)(w) * (v)->sw])

/* One sample's job: views of input values, output values, and, backward, their gradients. */
typedef struct any {
    program *p;
    const graph_node *n;
    const layer *l;
    shape in, out;
    const view *x, *y, *dx, *dy;
    int i; /* the sample */
} any;

/* ---- pointwise ------------------------------------------------------------------------------- */

/* Where the second operand has one value a channel its position is (0, 0). */
static bool narrow(const any *a)
{
    const shape *b = &a->p->tensors[a->l->in[1]].s;
    return b->h == 1 && b->w == 1;
}

static void pair_forward(const any *a)
{
    int wide = !narrow(a);
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
    {
        float u = AT(&a->x[0], a->i, c, h, w), v = AT(&a->x[1], a->i, c, h * wide, w * wide);
        float r = a->n->op == OP_ADD ? u + v : u * v;
        AT(a->y, a->i, c, h, w) = a->l->relu && r < 0 ? 0 : r;
    }
}

static void pair_backward(const any *a)
{
    int wide = !narrow(a), sum = a->n->op == OP_ADD;
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
    {
        float d = AT(a->dy, a->i, c, h, w);
        if (a->l->relu && !(AT(a->y, a->i, c, h, w) > 0))
            continue;
        if (a->dx[0].p)
            AT(&a->dx[0], a->i, c, h, w) += sum ? d : d * AT(&a->x[1], a->i, c, h * wide, w * wide);
        if (a->dx[1].p)
            AT(&a->dx[1], a->i, c, h * wide, w * wide) += sum ? d : d * AT(&a->x[0], a->i, c, h, w);
    }
}

/* ---- moving data ----------------------------------------------------------------------------- */

static void concat(const any *a, bool back)
{
    int at = 0;
    for (int j = 0; j < a->l->in_count; j++) {
        int C = a->p->tensors[a->l->in[j]].s.c;
        if (!back || a->dx[j].p)
            EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, C)
            {
                if (back)
                    AT(&a->dx[j], a->i, c, h, w) += AT(a->dy, a->i, at + c, h, w);
                else
                    AT(a->y, a->i, at + c, h, w) = AT(&a->x[j], a->i, c, h, w);
            }
        at += C;
    }
}

static void concat_forward(const any *a)
{
    concat(a, false);
}

static void concat_backward(const any *a)
{
    concat(a, true);
}

static void pad_forward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
    {
        int from = c - a->n->pad.before;
        AT(a->y, a->i, c, h, w) = from < 0 || from >= a->in.c ? 0 : AT(&a->x[0], a->i, from, h, w);
    }
}

static void pad_backward(const any *a)
{
    EACH(h, a->in.h)
    EACH(w, a->in.w) EACH(c, a->in.c) AT(&a->dx[0], a->i, c, h, w) +=
        AT(a->dy, a->i, c + a->n->pad.before, h, w);
}

static void flatten_forward(const any *a)
{
    int f = 0;
    EACH(c, a->in.c)
    EACH(h, a->in.h) EACH(w, a->in.w) AT(a->y, a->i, f++, 0, 0) = AT(&a->x[0], a->i, c, h, w);
}

static void flatten_backward(const any *a)
{
    int f = 0;
    EACH(c, a->in.c)
    EACH(h, a->in.h) EACH(w, a->in.w) AT(&a->dx[0], a->i, c, h, w) += AT(a->dy, a->i, f++, 0, 0);
}

/* ---- pooling --------------------------------------------------------------------------------- */

typedef struct span {
    int from, to;
} span;

/* The inputs of output o: [from, to). */
static span window(int o, int in, int kernel, int stride, int pad)
{
    int from = o * stride - pad, to = from + kernel;
    return (span){from < 0 ? 0 : from, to > in ? in : to};
}

static span window_h(const any *a, int o)
{
    return window(o, a->in.h, a->n->pool.kernel_h, a->n->pool.stride_h, a->n->pool.pad_h);
}

static span window_w(const any *a, int o)
{
    return window(o, a->in.w, a->n->pool.kernel_w, a->n->pool.stride_w, a->n->pool.pad_w);
}

/* The first largest of a window; NaN wins, as in PyTorch. */
static void winner(const any *a, int c, span v, span u, int *bh, int *bw)
{
    *bh = v.from, *bw = u.from;
    float best = AT(&a->x[0], a->i, c, v.from, u.from);
    for (int h = v.from; h < v.to; h++)
        for (int w = u.from; w < u.to; w++) {
            float x = AT(&a->x[0], a->i, c, h, w);
            if (x > best || isnan(x))
                best = x, *bh = h, *bw = w;
        }
}

static void max_pool_forward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
    {
        int bh, bw;
        winner(a, c, window_h(a, h), window_w(a, w), &bh, &bw);
        AT(a->y, a->i, c, h, w) = AT(&a->x[0], a->i, c, bh, bw);
    }
}

static void max_pool_backward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
    {
        int bh, bw;
        winner(a, c, window_h(a, h), window_w(a, w), &bh, &bw);
        AT(&a->dx[0], a->i, c, bh, bw) += AT(a->dy, a->i, c, h, w);
    }
}

/* ---- the layer ------------------------------------------------------------------------------- */

static any open_layer(program *p, layer *l, view *x, view *dx, view *y, view *dy)
{
    for (int j = 0; j < l->in_count; j++) {
        x[j] = tensor_view(&p->tensors[l->in[j]]);
        dx[j] = tensor_gradient(&p->tensors[l->in[j]]);
    }
    const tensor *out = &p->tensors[l->out];
    *y = tensor_view(out);
    *dy = tensor_gradient(out);
    return (any){.p = p,
                 .n = l->node,
                 .l = l,
                 .in = p->tensors[l->in[0]].s,
                 .out = out->s,
                 .x = x,
                 .y = y,
                 .dx = dx,
                 .dy = dy};
}

typedef void any_fn(const any *);
static any_fn *const forwards[OP_COUNT] = {
    [OP_MAX_POOL] = max_pool_forward, [OP_ADD] = pair_forward,
    [OP_MUL] = pair_forward,          [OP_CONCAT] = concat_forward,
    [OP_FLATTEN] = flatten_forward,   [OP_PAD_CHANNELS] = pad_forward,
};
static any_fn *const backwards[OP_COUNT] = {
    [OP_MAX_POOL] = max_pool_backward, [OP_ADD] = pair_backward,
    [OP_MUL] = pair_backward,          [OP_CONCAT] = concat_backward,
    [OP_FLATTEN] = flatten_backward,   [OP_PAD_CHANNELS] = pad_backward,
};

static void any_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    view x[GRAPH_INPUTS_MAX], dx[GRAPH_INPUTS_MAX], y, dy;
    any a = open_layer(p, l, x, dx, &y, &dy);
    for (a.i = from; a.i < to; a.i++)
        forwards[l->node->op](&a);
}

/* dx begins at zero where this layer is the first to write it. */
static void zero_inputs(const any *a)
{
    for (int j = 0; j < a->l->in_count; j++) {
        if (!a->dx[j].p || a->l->add[j])
            continue;
        shape s = a->p->tensors[a->l->in[j]].s;
        EACH(h, s.h) EACH(w, s.w) EACH(c, s.c) AT(&a->dx[j], a->i, c, h, w) = 0;
    }
}

static void any_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    view x[GRAPH_INPUTS_MAX], dx[GRAPH_INPUTS_MAX], y, dy;
    any a = open_layer(p, l, x, dx, &y, &dy);
    for (a.i = from; a.i < to; a.i++) {
        zero_inputs(&a);
        if (dx[0].p || l->in_count > 1)
            backwards[l->node->op](&a);
    }
}

int layer_any(layer *l)
{
    static const layer_ops ops = {.forward = any_forward, .backward = any_backward};
    l->ops = &ops;
    snprintf(l->choice, sizeof l->choice, "loops");
    return 0;
}
