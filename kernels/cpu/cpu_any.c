/* cpu_any.c: every per-sample op as plain loops over any layout, through views. What has no faster
 * way elsewhere runs here; the job's record calls it "loops". Backward functions add to dx. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_program.h"

#define EACH(i, n)       for (int i = 0; i < (n); i++)
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

static float act_value(const graph_node *n, float x)
{
    float six = x + 3 < 0 ? 0 : x + 3 > 6 ? 6 : x + 3;
    switch (n->act.kind) {
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_RELU6: return x < 0 ? 0 : x > 6 ? 6 : x;
    case ACT_LEAKY_RELU: return x > 0 ? x : (float)n->act.slope * x;
    case ACT_HARDSIGMOID: return six / 6;
    case ACT_HARDSWISH: return x * six / 6;
    case ACT_SIGMOID: return 1 / (1 + expf(-x));
    case ACT_TANH: return tanhf(x);
    case ACT_GELU: return x * 0.5f * (1 + erff(x * (float)M_SQRT1_2));
    case ACT_SILU: return x / (1 + expf(-x));
    case ACT_COUNT: break;
    }
    return x;
}

static float act_slope(const graph_node *n, float x)
{
    float s;
    switch (n->act.kind) {
    case ACT_RELU: return x > 0 ? 1 : 0;
    case ACT_RELU6: return x > 0 && x < 6 ? 1 : 0;
    case ACT_LEAKY_RELU: return x > 0 ? 1 : (float)n->act.slope;
    case ACT_HARDSIGMOID: return x > -3 && x < 3 ? 1 / 6.0f : 0;
    case ACT_HARDSWISH: return x <= -3 ? 0 : x >= 3 ? 1 : (2 * x + 3) / 6;
    case ACT_SIGMOID: s = 1 / (1 + expf(-x)); return s * (1 - s);
    case ACT_TANH: s = tanhf(x); return 1 - s * s;
    case ACT_GELU:
        return 0.5f * (1 + erff(x * (float)M_SQRT1_2)) +
               x * expf(-0.5f * x * x) * 0.5f * (float)(M_2_SQRTPI * M_SQRT1_2);
    case ACT_SILU: s = 1 / (1 + expf(-x)); return s * (1 + x * (1 - s));
    case ACT_COUNT: break;
    }
    return 1;
}

static void act_forward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
        AT(a->y, a->i, c, h, w) = act_value(a->n, AT(&a->x[0], a->i, c, h, w));
}

static void act_backward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c)
        AT(&a->dx[0], a->i, c, h, w) +=
            AT(a->dy, a->i, c, h, w) * act_slope(a->n, AT(&a->x[0], a->i, c, h, w));
}

/* Where the second operand has one value a channel its position is (0, 0). */
static bool narrow(const any *a)
{
    const shape *b = &a->p->tensors[a->l->in[1]].s;
    return b->h == 1 && b->w == 1;
}

static void pair_forward(const any *a)
{
    int wide = !narrow(a);
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c) {
        float u = AT(&a->x[0], a->i, c, h, w), v = AT(&a->x[1], a->i, c, h * wide, w * wide);
        float r = a->n->op == OP_ADD ? u + v : u * v;
        AT(a->y, a->i, c, h, w) = a->l->relu && r < 0 ? 0 : r;
    }
}

static void pair_backward(const any *a)
{
    int wide = !narrow(a), sum = a->n->op == OP_ADD;
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c) {
        float d = AT(a->dy, a->i, c, h, w);
        if (a->l->relu && !(AT(a->y, a->i, c, h, w) > 0))
            continue;
        if (a->dx[0].p)
            AT(&a->dx[0], a->i, c, h, w) += sum ? d : d * AT(&a->x[1], a->i, c, h * wide, w * wide);
        if (a->dx[1].p)
            AT(&a->dx[1], a->i, c, h * wide, w * wide) += sum ? d : d * AT(&a->x[0], a->i, c, h, w);
    }
}

/* y = keep ? x / (1 - p) : 0; one draw gives four neighbours in (C,H,W) order. */
static void dropout(const any *a, const view *from, const view *to, bool add)
{
    const backend_batch *b = a->p->b;
    float scale = (float)(1 / (1 - a->n->dropout.p));
    size_t e = 0;
    unsigned keep = 0;
    EACH(c, a->out.c) EACH(h, a->out.h) EACH(w, a->out.w) {
        if (e % 4 == 0 && a->p->training)
            keep = graph_dropout_draw(a->p->c.seed, b->epoch, b->sample[a->i], a->n->dropout.layer,
                                      (uint32_t)(e / 4), a->n->dropout.p);
        float v = AT(from, a->i, c, h, w);
        if (a->p->training)
            v = keep >> e % 4 & 1 ? v * scale : 0;
        float *r = &AT(to, a->i, c, h, w);
        *r = add ? *r + v : v;
        e++;
    }
}

static void dropout_forward(const any *a)
{
    dropout(a, &a->x[0], a->y, false);
}

static void dropout_backward(const any *a)
{
    dropout(a, a->dy, &a->dx[0], true);
}

/* ---- moving data ----------------------------------------------------------------------------- */

static void concat(const any *a, bool back)
{
    int at = 0;
    for (int j = 0; j < a->l->in_count; j++) {
        int C = a->p->tensors[a->l->in[j]].s.c;
        if (!back || a->dx[j].p)
            EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, C) {
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
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c) {
        int from = c - a->n->pad.before;
        AT(a->y, a->i, c, h, w) = from < 0 || from >= a->in.c ? 0 : AT(&a->x[0], a->i, from, h, w);
    }
}

static void pad_backward(const any *a)
{
    EACH(h, a->in.h) EACH(w, a->in.w) EACH(c, a->in.c)
        AT(&a->dx[0], a->i, c, h, w) += AT(a->dy, a->i, c + a->n->pad.before, h, w);
}

static void flatten_forward(const any *a)
{
    int f = 0;
    EACH(c, a->in.c) EACH(h, a->in.h) EACH(w, a->in.w)
        AT(a->y, a->i, f++, 0, 0) = AT(&a->x[0], a->i, c, h, w);
}

static void flatten_backward(const any *a)
{
    int f = 0;
    EACH(c, a->in.c) EACH(h, a->in.h) EACH(w, a->in.w)
        AT(&a->dx[0], a->i, c, h, w) += AT(a->dy, a->i, f++, 0, 0);
}

/* ---- pooling --------------------------------------------------------------------------------- */

typedef struct span {
    int from, to, counted;
} span;

/* The inputs of output o: [from, to), and how many an average divides by. */
static span window(const graph_node *n, int o, int in, int out, int kernel, int stride, int pad)
{
    if (n->op == OP_ADAPTIVE_AVG_POOL) {
        int from = (int)((int64_t)o * in / out),
            to = (int)(((int64_t)(o + 1) * in + out - 1) / out);
        return (span){from, to, to - from};
    }
    int from = o * stride - pad, to = from + kernel;
    to = to > in + pad ? in + pad : to;
    int counted = to - from;
    from = from < 0 ? 0 : from;
    to = to > in ? in : to;
    return (span){from, to, n->op == OP_AVG_POOL && n->pool.count_pad ? counted : to - from};
}

static span window_h(const any *a, int o)
{
    return window(a->n, o, a->in.h, a->out.h, a->n->pool.kernel_h, a->n->pool.stride_h,
                  a->n->pool.pad_h);
}

static span window_w(const any *a, int o)
{
    return window(a->n, o, a->in.w, a->out.w, a->n->pool.kernel_w, a->n->pool.stride_w,
                  a->n->pool.pad_w);
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
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c) {
        int bh, bw;
        winner(a, c, window_h(a, h), window_w(a, w), &bh, &bw);
        AT(a->y, a->i, c, h, w) = AT(&a->x[0], a->i, c, bh, bw);
    }
}

static void max_pool_backward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(c, a->out.c) {
        int bh, bw;
        winner(a, c, window_h(a, h), window_w(a, w), &bh, &bw);
        AT(&a->dx[0], a->i, c, bh, bw) += AT(a->dy, a->i, c, h, w);
    }
}

static void avg_pool_forward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) {
        span v = window_h(a, h), u = window_w(a, w);
        float scale = 1 / ((float)v.counted * (float)u.counted);
        EACH(c, a->out.c) {
            float sum = 0;
            for (int r = v.from; r < v.to; r++)
                for (int s = u.from; s < u.to; s++)
                    sum += AT(&a->x[0], a->i, c, r, s);
            AT(a->y, a->i, c, h, w) = sum * scale;
        }
    }
}

static void avg_pool_backward(const any *a)
{
    EACH(h, a->out.h) EACH(w, a->out.w) {
        span v = window_h(a, h), u = window_w(a, w);
        float scale = 1 / ((float)v.counted * (float)u.counted);
        for (int r = v.from; r < v.to; r++)
            for (int s = u.from; s < u.to; s++)
                EACH(c, a->out.c)
                    AT(&a->dx[0], a->i, c, r, s) += AT(a->dy, a->i, c, h, w) * scale;
    }
}

/* ---- convolution in groups ------------------------------------------------------------------- */

/* Calls of the innermost loop: kernel position (r, s) at output (h, w) reads input (ih, iw). */
#define EACH_TAP(a, h, w, r, s, ih, iw)                                                            \
    EACH(r, (a)->n->conv.kernel_h)                                                                 \
    EACH(s, (a)->n->conv.kernel_w) for (int ih = h * (a)->n->conv.stride_h - (a)->n->conv.pad_h +  \
                                                 r * (a)->n->conv.dil_h,                           \
                                        iw = w * (a)->n->conv.stride_w - (a)->n->conv.pad_w +      \
                                             s * (a)->n->conv.dil_w,                               \
                                        once = 1;                                                  \
                                        once && ih >= 0 && ih < (a)->in.h && iw >= 0 &&            \
                                        iw < (a)->in.w;                                            \
                                        once = 0)

static void conv_forward(const any *a)
{
    int per = a->in.c / a->n->conv.groups, filters = a->out.c / a->n->conv.groups;
    int R = a->n->conv.kernel_h, S = a->n->conv.kernel_w;
    const float *W = program_param(a->p, a->n->weight), *b = program_param(a->p, a->n->bias);
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(k, a->out.c) {
        float sum = b ? b[k] : 0;
        EACH_TAP(a, h, w, r, s, ih, iw)
        EACH(c, per) sum +=
            W[((k * per + c) * R + r) * S + s] * AT(&a->x[0], a->i, k / filters * per + c, ih, iw);
        AT(a->y, a->i, k, h, w) = a->l->relu && sum < 0 ? 0 : sum;
    }
}

/* dw and db are the thread's own blocks, in the parameters' layout. */
static void conv_backward(const any *a, float *dw, float *db)
{
    int per = a->in.c / a->n->conv.groups, filters = a->out.c / a->n->conv.groups;
    int R = a->n->conv.kernel_h, S = a->n->conv.kernel_w;
    const float *W = program_param(a->p, a->n->weight);
    EACH(h, a->out.h) EACH(w, a->out.w) EACH(k, a->out.c) {
        float d = AT(a->dy, a->i, k, h, w);
        if (a->l->relu && !(AT(a->y, a->i, k, h, w) > 0))
            continue;
        db[k] += d;
        EACH_TAP(a, h, w, r, s, ih, iw) EACH(c, per) {
            int at = ((k * per + c) * R + r) * S + s, channel = k / filters * per + c;
            dw[at] += d * AT(&a->x[0], a->i, channel, ih, iw);
            if (a->dx[0].p)
                AT(&a->dx[0], a->i, channel, ih, iw) += d * W[at];
        }
    }
}

static void conv_finish(program *p, layer *l)
{
    for (int t = 1; t < cpu_threads_count(p->threads); t++) {
        p->k->add(l->dw_floats, l->dw, l->dw + (size_t)t * l->dw_floats, false, l->dw);
        p->k->add(l->db_floats, l->db, l->db + (size_t)t * l->db_floats, false, l->db);
    }
    memcpy(program_grad(p, l->node->weight), l->dw,
           p->g->vars[l->node->weight].count * sizeof(float));
    if (l->node->bias >= 0)
        memcpy(program_grad(p, l->node->bias), l->db, (size_t)l->node->shape.c * sizeof(float));
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
    return (any){.p = p, .n = l->node, .l = l, .in = p->tensors[l->in[0]].s, .out = out->s,
                 .x = x, .y = y, .dx = dx, .dy = dy};
}

typedef void any_fn(const any *);
static any_fn *const forwards[OP_COUNT] = {
    [OP_CONV2D] = conv_forward,     [OP_ACTIVATION] = act_forward,
    [OP_MAX_POOL] = max_pool_forward, [OP_AVG_POOL] = avg_pool_forward,
    [OP_ADAPTIVE_AVG_POOL] = avg_pool_forward, [OP_ADD] = pair_forward, [OP_MUL] = pair_forward,
    [OP_CONCAT] = concat_forward,   [OP_FLATTEN] = flatten_forward,
    [OP_DROPOUT] = dropout_forward, [OP_PAD_CHANNELS] = pad_forward,
};
static any_fn *const backwards[OP_COUNT] = {
    [OP_ACTIVATION] = act_backward,    [OP_MAX_POOL] = max_pool_backward,
    [OP_AVG_POOL] = avg_pool_backward, [OP_ADAPTIVE_AVG_POOL] = avg_pool_backward,
    [OP_ADD] = pair_backward,          [OP_MUL] = pair_backward,
    [OP_CONCAT] = concat_backward,     [OP_FLATTEN] = flatten_backward,
    [OP_DROPOUT] = dropout_backward,   [OP_PAD_CHANNELS] = pad_backward,
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
        EACH(h, s.h) EACH(w, s.w) EACH(c, s.c)
            AT(&a->dx[j], a->i, c, h, w) = 0;
    }
}

static void any_backward(program *p, layer *l, int from, int to, int thread)
{
    view x[GRAPH_INPUTS_MAX], dx[GRAPH_INPUTS_MAX], y, dy;
    any a = open_layer(p, l, x, dx, &y, &dy);
    for (a.i = from; a.i < to; a.i++) {
        zero_inputs(&a);
        if (l->node->op == OP_CONV2D)
            conv_backward(&a, l->dw + (size_t)thread * l->dw_floats,
                          l->db + (size_t)thread * l->db_floats);
        else if (dx[0].p || l->in_count > 1)
            backwards[l->node->op](&a);
    }
}

static const layer_ops any_ops = {.forward = any_forward, .backward = any_backward};
static const layer_ops any_conv_ops = {
    .forward = any_forward, .backward = any_backward, .finish = conv_finish};

int layer_any(program *p, layer *l)
{
    l->ops = l->node->op == OP_CONV2D ? &any_conv_ops : &any_ops;
    snprintf(l->choice, sizeof l->choice, "loops");
    if (l->node->op != OP_CONV2D || p->c.inference)
        return 0;
    size_t threads = (size_t)cpu_threads_count(p->threads);
    l->dw_floats = (p->g->vars[l->node->weight].count + 15) / 16 * 16;
    l->db_floats = ((size_t)l->node->shape.c + 15) / 16 * 16;
    l->dw = program_floats(p, threads * l->dw_floats);
    l->db = program_floats(p, threads * l->db_floats);
    return l->dw && l->db ? 0 : -1;
}
