/* cpu_channel.c: layers that keep channels apart, over images with channels innermost: depthwise
 * convolutions, pooling of any window, activations, one factor a channel, dropout.
 *
 * A window is two lists of taps, one for each axis, made at compile time. Borders, strides and
 * dilations are in the lists, so that no padding is read or multiplied. The input gradient is the
 * same loop over the transposed lists: each input gathers from the outputs that read it, and is
 * written once. */
#include <stdio.h>
#include <string.h>

#include "cpu_spans.h"

/* ---- windows --------------------------------------------------------------------------------- */

typedef struct axis_rule {
    graph_op op;
    int in, out, kernel, stride, pad, dil;
    bool count_pad;
} axis_rule;

/* Writes the inputs of output o to `to`, at most kernel (adaptive: in) of them; returns how
 * many. */
static int window_of(const axis_rule *r, int o, window_tap *to)
{
    int first = o * r->stride - r->pad, kernel = r->kernel, n = 0;
    if (r->op == OP_ADAPTIVE_AVG_POOL) {
        first = (int)((int64_t)o * r->in / r->out);
        kernel = (int)(((int64_t)(o + 1) * r->in + r->out - 1) / r->out) - first;
    }
    for (int t = 0; t < kernel; t++) {
        int i = first + t * r->dil;
        if (i >= 0 && i < r->in)
            to[n++] = (window_tap){.from = i, .tap = t};
    }
    int beyond = first + kernel - (r->in + r->pad), counted = n;
    if (r->count_pad)
        counted = kernel - (beyond > 0 ? beyond : 0);
    for (int t = 0; t < n; t++)
        to[t].scale = 1 / (float)counted;
    return n;
}

/* Whether d and the next destination (`every` further) have the same taps, a fixed number of
 * sources apart: that number, otherwise -1. */
static int step_between(const window_axis *a, int d)
{
    int n = a->begin[d + 1] - a->begin[d], other = d + a->every;
    if (other >= a->count || n == 0 || a->begin[other + 1] - a->begin[other] != n)
        return -1;
    const window_tap *here = a->taps + a->begin[d], *next = a->taps + a->begin[other];
    int step = next->from - here->from;
    for (int t = 0; t < n; t++)
        if (next[t].tap != here[t].tap || next[t].scale < here[t].scale ||
            next[t].scale > here[t].scale || next[t].from - here[t].from != step)
            return -1;
    return step;
}

static void find_alike(window_axis *a, int every)
{
    enum { ALIKE_MOST = 4 };
    a->every = every;
    for (int d = 0; d < a->count; d++) {
        int n = 1, step = step_between(a, d);
        while (n < ALIKE_MOST && step >= 0 && step_between(a, d + (n - 1) * every) == step)
            n++;
        a->alike[d] = n == 3 ? 2 : n;
        a->step[d] = n > 1 ? step : 0;
    }
}

static int alloc_axis(program *p, window_axis *a, int count, size_t taps)
{
    a->count = count;
    a->begin = program_alloc(p, (size_t)count + 2, sizeof *a->begin);
    a->alike = program_alloc(p, (size_t)count + 1, sizeof *a->alike);
    a->step = program_alloc(p, (size_t)count + 1, sizeof *a->step);
    a->taps = program_alloc(p, taps + 1, sizeof *a->taps);
    return a->begin && a->alike && a->step && a->taps ? 0 : -1;
}

static int make_axis(program *p, const axis_rule *r, window_axis *a)
{
    size_t widest = (size_t)(r->op == OP_ADAPTIVE_AVG_POOL ? r->in : r->kernel);
    if (alloc_axis(p, a, r->out, (size_t)r->out * widest) != 0)
        return -1;
    for (int o = 0; o < r->out; o++)
        a->begin[o + 1] = a->begin[o] + window_of(r, o, a->taps + a->begin[o]);
    find_alike(a, 1);
    a->stride = r->stride;
    if (r->op != OP_CONV2D)
        return 0;
    a->spans = program_alloc(p, (size_t)r->kernel, sizeof *a->spans);
    for (int t = 0; a->spans && t < r->kernel; t++)
        a->spans[t] = (window_span){.from = r->out, .shift = t * r->dil - r->pad};
    for (int o = 0; a->spans && o < r->out; o++)
        for (int j = a->begin[o]; j < a->begin[o + 1]; j++) {
            window_span *s = &a->spans[a->taps[j].tap];
            s->from = o < s->from ? o : s->from;
            s->to = o + 1;
        }
    return a->spans ? 0 : -1;
}

/* The same pairs of input and output, listed by input. */
static int transpose_axis(program *p, const window_axis *a, int in, window_axis *back)
{
    if (alloc_axis(p, back, in, (size_t)a->begin[a->count]) != 0)
        return -1;
    for (int j = 0; j < a->begin[a->count]; j++)
        back->begin[a->taps[j].from + 1]++;
    for (int i = 0; i < in; i++)
        back->begin[i + 1] += back->begin[i];
    for (int o = a->count - 1; o >= 0; o--) /* each list is filled from its end */
        for (int j = a->begin[o]; j < a->begin[o + 1]; j++) {
            window_tap t = a->taps[j];
            back->taps[--back->begin[t.from + 1]] =
                (window_tap){.from = o, .tap = t.tap, .scale = t.scale};
        }
    for (int i = 0; i < in; i++) /* begin[i + 1] is now the start of list i */
        back->begin[i] = back->begin[i + 1];
    back->begin[in] = a->begin[a->count];
    find_alike(back, a->stride);
    return 0;
}

static int make_windows(program *p, layer *l, axis_rule h, axis_rule w)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    l->ahead = (window_geom){.cs = x->cs,
                             .kh = h.kernel,
                             .kw = w.kernel,
                             .x_row = x->y.row,
                             .y_row = y->y.row,
                             .next = p->c.inference ? 0 : (ptrdiff_t)y->y.sample,
                             .relu = l->relu};
    l->back = (window_geom){.cs = x->cs,
                            .kh = h.kernel,
                            .kw = w.kernel,
                            .x_row = y->dy.row,
                            .y_row = x->dy.row,
                            .next = -(ptrdiff_t)x->dy.sample,
                            .accumulate = l->add[0]};
    if (make_axis(p, &h, &l->ahead.h) != 0 || make_axis(p, &w, &l->ahead.w) != 0)
        return -1;
    if (p->c.inference || !x->dy.data)
        return 0;
    return transpose_axis(p, &l->ahead.h, x->s.h, &l->back.h) ||
                   transpose_axis(p, &l->ahead.w, x->s.w, &l->back.w) ? -1 : 0;
}

static float *pixels(const tensor *t, const plane *a, int i)
{
    return tensor_pixels(a, t->cs, i);
}

/* ---- depthwise convolution ------------------------------------------------------------------- */

bool conv_is_depthwise(const graph_node *n, int channels)
{
    return n->conv.groups > 1 && n->conv.groups == n->shape.c && channels == n->shape.c;
}

/* There are few weights, here and in depthwise_finish: part 0 does all the work. */
static void depthwise_pack(program *p, layer *l, int part, int parts)
{
    (void)parts;
    if (part > 0)
        return;
    const float *w = layer_weights(p, l);
    size_t taps = (size_t)(l->ahead.kh * l->ahead.kw), cs = (size_t)l->ahead.cs;
    for (size_t c = 0; c < (size_t)l->node->shape.c; c++)
        for (size_t t = 0; t < taps; t++)
            l->wf[t * cs + c] = w[c * taps + t];
    layer_bias(p, l, l->bf);
}

static void depthwise_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        p->k->window(&l->ahead, pixels(x, &x->y, i), l->wf, l->bf, pixels(y, &y->y, i));
}

static void depthwise_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    float *dw = layer_dw(l, thread), *db = layer_db(l, thread);
    /* From the last sample to the first, as in backward_stretch: the memory of the sample before is
     * prefetched meanwhile. */
    for (int i = to; i-- > from;) {
        const float *dyi = pixels(y, &y->dy, i);
        mask_samples(p, l, i, i + 1, db);
        p->k->window_dw(&l->ahead, pixels(x, &x->y, i), dyi, y->dy.row, dw);
        if (x->dy.data)
            p->k->window(&l->back, dyi, l->wf, NULL, pixels(x, &x->dy, i));
    }
}

static void depthwise_finish(program *p, layer *l, int part, int parts)
{
    (void)parts;
    size_t taps = (size_t)(l->ahead.kh * l->ahead.kw), cs = (size_t)l->ahead.cs;
    float *to = program_grad(p, l->node->weight);
    for (size_t c = 0; part == 0 && c < (size_t)l->node->shape.c; c++)
        for (size_t t = 0; t < taps; t++)
            to[c * taps + t] = l->dw[t * cs + c];
}

static const layer_ops depthwise_ops = {.forward = depthwise_forward,
                                        .backward = depthwise_backward,
                                        .overwrites = true,
                                        .finish = depthwise_finish,
                                        .pack = depthwise_pack};

int layer_depthwise(program *p, layer *l)
{
    const graph_node *n = l->node;
    shape in = p->tensors[l->in[0]].s;
    axis_rule h = {OP_CONV2D, in.h, n->shape.h, n->conv.kernel_h, n->conv.stride_h, n->conv.pad_h,
                   n->conv.dil_h, false};
    axis_rule w = {OP_CONV2D,        in.w,          n->shape.w,    n->conv.kernel_w,
                   n->conv.stride_w, n->conv.pad_w, n->conv.dil_w, false};
    l->ops = &depthwise_ops;
    l->folds = true;
    snprintf(l->choice, sizeof l->choice, l->relu ? "depthwise+relu" : "depthwise");
    size_t cs = (size_t)p->tensors[l->in[0]].cs, threads = (size_t)cpu_threads_count(p->threads);
    l->dw_floats = (size_t)(n->conv.kernel_h * n->conv.kernel_w) * cs;
    l->db_floats = cs;
    l->wf = program_floats(p, l->dw_floats);
    l->bf = program_floats(p, cs);
    if (!l->wf || !l->bf || make_windows(p, l, h, w) != 0)
        return -1;
    if (p->c.inference)
        return 0;
    l->dw = program_floats(p, threads * l->dw_floats);
    l->db = program_floats(p, threads * l->db_floats);
    return l->dw && l->db ? 0 : -1;
}

/* ---- pooling --------------------------------------------------------------------------------- */

static void max_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        p->k->window_max(&l->ahead, pixels(x, &x->y, i), pixels(y, &y->y, i),
                         p->training ? l->arg + (size_t)i * l->arg_sample : NULL);
}

static void max_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to && x->dy.data; i++)
        p->k->window_max_back(&l->back, pixels(y, &y->dy, i), l->arg + (size_t)i * l->arg_sample,
                              (size_t)(y->s.w * y->cs), pixels(x, &x->dy, i));
}

static void average_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        p->k->window(&l->ahead, pixels(x, &x->y, i), NULL, NULL, pixels(y, &y->y, i));
}

static void average_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to && x->dy.data; i++)
        p->k->window(&l->back, pixels(y, &y->dy, i), NULL, NULL, pixels(x, &x->dy, i));
}

static const layer_ops max_ops = {.forward = max_forward, .backward = max_backward};
static const layer_ops average_ops = {.forward = average_forward, .backward = average_backward};

static void pool_rules(const graph_node *n, shape in, axis_rule *h, axis_rule *w)
{
    bool pad = n->op == OP_AVG_POOL && n->pool.count_pad;
    *h = (axis_rule){n->op, in.h, n->shape.h, 0, 1, 0, 1, pad};
    *w = (axis_rule){n->op, in.w, n->shape.w, 0, 1, 0, 1, pad};
    if (n->op == OP_ADAPTIVE_AVG_POOL)
        return;
    h->kernel = n->pool.kernel_h, h->stride = n->pool.stride_h, h->pad = n->pool.pad_h;
    w->kernel = n->pool.kernel_w, w->stride = n->pool.stride_w, w->pad = n->pool.pad_w;
}

int pool_windows(program *p, const graph_node *n, shape in, int cs, window_geom *to)
{
    axis_rule h, w;
    pool_rules(n, in, &h, &w);
    *to = (window_geom){.cs = cs, .kh = h.kernel, .kw = w.kernel, .x_row = (size_t)(in.w * cs)};
    return make_axis(p, &h, &to->h) != 0 || make_axis(p, &w, &to->w) != 0 ? -1 : 0;
}

int layer_pool(program *p, layer *l)
{
    const graph_node *n = l->node;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    bool max = n->op == OP_MAX_POOL;
    axis_rule h, w;
    pool_rules(n, x->s, &h, &w);
    if (max && (int64_t)h.kernel * w.kernel > UINT8_MAX + 1)
        return layer_any(l);
    l->ops = max ? &max_ops : &average_ops;
    snprintf(l->choice, sizeof l->choice, "window");
    if (make_windows(p, l, h, w) != 0)
        return -1;
    if (!max || p->c.inference)
        return 0;
    l->arg_sample = (size_t)(y->s.h * y->s.w * y->cs);
    l->arg = program_alloc(p, (size_t)p->c.batch * l->arg_sample + CPU_SLACK, 1);
    return l->arg ? 0 : -1;
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Row h of sample i, whose floats lie together; features are one row. */
static float *row_of(const tensor *t, const plane *a, int i, int h)
{
    if (t->form == FORM_ROWS)
        return a->data + (size_t)i * a->sample;
    return pixels(t, a, i) + (size_t)h * a->row;
}

/* Samples [from, to) of features in columns. The last few samples go through local arrays, because
 * a whole vector would reach samples of other threads. */
static void act_columns(program *p, layer *l, bool back, int from, int to)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const float slope = (float)l->node->act.slope;
    size_t whole = (size_t)((to - from) / CPU_LANES * CPU_LANES),
           rest = (size_t)(to - from) - whole;
    for (size_t c = 0; c < (size_t)y->s.c; c++) {
        const float *xc = x->y.data + c * x->y.row + from,
                    *dyc = back ? y->dy.data + c * y->dy.row + from : NULL;
        float *out = back ? x->dy.data + c * x->dy.row + from : y->y.data + c * y->y.row + from;
        float a[CPU_LANES] = {0}, b[CPU_LANES] = {0}, r[CPU_LANES] = {0};
        memcpy(a, xc + whole, rest * sizeof *a);
        memcpy(r, out + whole, rest * sizeof *r);
        if (back) {
            memcpy(b, dyc + whole, rest * sizeof *b);
            p->k->act_back(l->node->act.kind, slope, whole, xc, dyc, l->add[0], out);
            p->k->act_back(l->node->act.kind, slope, CPU_LANES, a, b, l->add[0], r);
        } else {
            p->k->act(l->node->act.kind, slope, whole, xc, out);
            p->k->act(l->node->act.kind, slope, CPU_LANES, a, r);
        }
        memcpy(out + whole, r, rest * sizeof *r);
    }
}

static void act_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    if (l->acted && p->training)
        return;
    if (y->form == FORM_COLUMNS) {
        act_columns(p, l, false, from, to);
        return;
    }
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->y), y, &y->y);
    pixel_runs r;
    RUNS(r, level, y->s, from, to)
        p->k->act(l->node->act.kind, (float)l->node->act.slope, (size_t)(r.now.pixels * y->cs),
                  run_at(x, &x->y, &r.now), run_at(y, &y->y, &r.now));
}

static void act_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    if (y->form == FORM_COLUMNS) {
        if (x->dy.data)
            act_columns(p, l, true, from, to);
        return;
    }
    if (!x->dy.data || l->acted)
        return;
    run_level level =
        run_through(run_through(run_through(RUN_SAMPLES, x, &x->y), y, &y->dy), x, &x->dy);
    pixel_runs r;
    RUNS(r, level, y->s, from, to)
    p->k->act_back(l->node->act.kind, (float)l->node->act.slope, (size_t)(r.now.pixels * y->cs),
                   run_at(x, &x->y, &r.now), run_at(y, &y->dy, &r.now), l->add[0],
                   run_at(x, &x->dy, &r.now));
}

static const layer_ops act_ops = {.forward = act_forward, .backward = act_backward};

int layer_act(program *p, layer *l)
{
    (void)p;
    l->ops = &act_ops;
    snprintf(l->choice, sizeof l->choice, "vector");
    return 0;
}

/* ---- one factor a channel: squeeze and excite ------------------------------------------------ */

static void gate_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *f = &p->tensors[l->in[1]], *y = &p->tensors[l->out];
    run_level level = run_through(run_through(RUN_SAMPLE, x, &x->y), y, &y->y);
    pixel_runs r;
    for (int i = from; i < to; i++)
        RUNS(r, level, y->s, i, i + 1)
    p->k->affine(r.now.pixels, y->cs, run_at(x, &x->y, &r.now), (size_t)x->cs, pixels(f, &f->y, i),
                 l->zeros, NULL, false, run_at(y, &y->y, &r.now), (size_t)y->cs);
}

static void gate_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *f = &p->tensors[l->in[1]], *y = &p->tensors[l->out];
    run_level level = run_through(run_through(RUN_SAMPLE, x, &x->y), y, &y->dy);
    level = x->dy.data ? run_through(level, x, &x->dy) : level;
    pixel_runs r;
    for (int i = from; i < to; i++) {
        float *df = f->dy.data ? pixels(f, &f->dy, i) : layer_scratch(l, thread);
        if (!l->add[1])
            memset(df, 0, (size_t)f->cs * sizeof *df);
        RUNS(r, level, y->s, i, i + 1)
            p->k->gate_back(r.now.pixels, y->cs, run_at(x, &x->y, &r.now), pixels(f, &f->y, i),
                            run_at(y, &y->dy, &r.now), l->add[0],
                            x->dy.data ? run_at(x, &x->dy, &r.now) : NULL, df);
    }
}

static const layer_ops gate_ops = {.forward = gate_forward, .backward = gate_backward};

int layer_gate(program *p, layer *l)
{
    size_t cs = (size_t)p->tensors[l->out].cs;
    l->ops = &gate_ops;
    snprintf(l->choice, sizeof l->choice, "gate");
    l->zeros = program_floats(p, cs);
    l->scratch_floats = cs;
    l->scratch = program_floats(p, cs * (size_t)cpu_threads_count(p->threads));
    return l->zeros && l->scratch ? 0 : -1;
}

/* ---- dropout --------------------------------------------------------------------------------- */

enum { DROPOUT_SAMPLES = 16 }; /* transposed at a time, of features in columns */

/* 0 or 1/(1-p) for every element of a sample, in the graph's order (C, H, W). */
static void draw_factors(const program *p, const layer *l, int i, float *to)
{
    const backend_batch *b = p->b;
    double drop = l->node->dropout.p;
    uint32_t key[2], counter[4];
    graph_dropout_stream(p->c.seed, b->epoch, b->sample[i], l->node->dropout.layer, key, counter);
    p->k->keep(key, counter, shape_count(l->node->shape), graph_dropout_below(drop),
               (float)(1 / (1 - drop)), to);
}

/* y (+)= x * factor for one sample of an image or of features in a row. */
static void drop_sample(program *p, layer *l, const tensor *x, const plane *a, const tensor *y,
                        const plane *b, bool add, int i, float *factors)
{
    shape s = y->s;
    size_t pixel_count = (size_t)(s.h * s.w), cs = (size_t)y->cs;
    float *f = factors;
    draw_factors(p, l, i, f);
    if (y->form == FORM_IMAGE && pixel_count > 1) { /* channels innermost */
        f += l->other_ld;
        p->k->transpose(s.c, (int)pixel_count, factors, pixel_count, f, cs);
    }
    for (int h = 0; h < s.h; h++)
        p->k->multiply((size_t)s.w * cs, row_of(x, a, i, h), f + (size_t)h * (size_t)s.w * cs, add,
                       row_of(y, b, i, h));
}

/* Samples [from, to) of features in columns. */
static void drop_columns(program *p, layer *l, const plane *a, const plane *b, bool add, int from,
                         int to, float *factors)
{
    size_t features = (size_t)l->node->shape.c, ld = l->other_ld;
    float *turned = factors + DROPOUT_SAMPLES * ld;
    for (int at = from; at < to; at += DROPOUT_SAMPLES) {
        int n = to - at < DROPOUT_SAMPLES ? to - at : DROPOUT_SAMPLES;
        for (int i = 0; i < n; i++)
            draw_factors(p, l, at + i, factors + (size_t)i * ld);
        p->k->transpose(n, (int)features, factors, ld, turned, DROPOUT_SAMPLES);
        for (size_t c = 0; c < features; c++) {
            const float *src = a->data + c * a->row + at, *f = turned + c * DROPOUT_SAMPLES;
            float *dst = b->data + c * b->row + at;
            int whole = n / CPU_LANES * CPU_LANES;
            p->k->multiply((size_t)whole, src, f, add, dst);
            for (int i = whole; i < n; i++)
                dst[i] = (add ? dst[i] : 0) + src[i] * f[i];
        }
    }
}

static void drop(program *p, layer *l, bool back, int from, int to, int thread)
{
    const tensor *x = &p->tensors[back ? l->out : l->in[0]],
                 *y = &p->tensors[back ? l->in[0] : l->out];
    const plane *a = back ? &x->dy : &x->y, *b = back ? &y->dy : &y->y;
    bool add = back && l->add[0];
    float *factors = layer_scratch(l, thread);
    if (!a->data || !b->data)
        return;
    if (y->form == FORM_COLUMNS)
        drop_columns(p, l, a, b, add, from, to, factors);
    else
        for (int i = from; i < to; i++)
            drop_sample(p, l, x, a, y, b, add, i, factors);
}

static void dropout_forward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    if (p->training)
        drop(p, l, false, from, to, thread);
    else if (y->form == FORM_COLUMNS)
        for (int c = 0; c < y->s.c; c++)
            memcpy(y->y.data + (size_t)c * y->y.row + from, x->y.data + (size_t)c * x->y.row + from,
                   (size_t)(to - from) * sizeof(float));
    else
        for (int i = from; i < to; i++)
            for (int h = 0; h < y->s.h; h++)
                memcpy(row_of(y, &y->y, i, h), row_of(x, &x->y, i, h),
                       (size_t)(y->s.w * y->cs) * sizeof(float));
}

static void dropout_backward(program *p, layer *l, int from, int to, int thread)
{
    drop(p, l, true, from, to, thread);
}

static const layer_ops dropout_ops = {.forward = dropout_forward, .backward = dropout_backward};

int layer_dropout(program *p, layer *l)
{
    const tensor *y = &p->tensors[l->out];
    l->ops = &dropout_ops;
    snprintf(l->choice, sizeof l->choice, "vector");
    if (p->c.inference)
        return 0;
    size_t elements = (shape_count(y->s) + 31) / 32 * 32, wide = (size_t)(y->s.h * y->s.w * y->cs);
    l->other_ld = elements > wide ? elements : wide;
    l->scratch_floats = (y->form == FORM_COLUMNS ? 2 * DROPOUT_SAMPLES : 2) * l->other_ld;
    l->scratch =
        program_floats(p, l->scratch_floats * (size_t)cpu_threads_count(p->threads) + CPU_SLACK);
    return l->scratch ? 0 : -1;
}
