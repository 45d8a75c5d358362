/* cpu_linear.c: linear layers with bias and ReLU, and the loss.
 *
 * Between linear layers activations lie feature by feature, the samples of the batch innermost.
 * Forward, input gradient and weight gradient can then all use the weights where they lie in the
 * parameter block, and threads share the work by output features. But the input gradient reads the
 * weights by columns, whose elements lie a power of two apart in usual layers.
 *
 * Large layers, whose weights come from memory, go backward a few outputs at a time: first dx of
 * these outputs, then dW, while the weights are in the cache. In a whole step the weights are
 * updated at once, and dW is not stored. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_program.h"

enum {
    OUTPUTS = 48,
    DEPTH = 128,     /* outputs that dx sums over at a time */
    LARGE = 1 << 19, /* weights that do not fit the second cache */
    /* Outputs that a large layer takes at a time backward: rows of usual layers lie a power of two
     * apart, and the second cache holds few such rows. */
    BLOCK = 24,
};

typedef struct linear_work {
    program *p;
    layer *l;
    int n; /* samples, rounded up to 8 */
} linear_work;

static int part(int total, int unit, int thread, int threads)
{
    int units = (total + unit - 1) / unit, end = units * thread / threads * unit;
    return end < total ? end : total;
}

/* Writes this thread's features of the input in the other form: other = transpose of the input. */
static void turn_input(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    layer *l = w->l;
    const tensor *x = &w->p->tensors[l->in[0]];
    int from = part(x->s.c, 16, thread, threads), to = part(x->s.c, 16, thread + 1, threads);
    if (x->form == FORM_ROWS)
        w->p->k->transpose(w->n, to - from, x->y.data + from, x->y.sample,
                           l->other + (size_t)from * l->other_ld, l->other_ld);
    else
        w->p->k->transpose(to - from, w->n, x->y.data + (size_t)from * x->y.row, x->y.row,
                           l->other + from, l->other_ld);
}

static void forward_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    layer *l = w->l;
    const tensor *x = &w->p->tensors[l->in[0]], *y = &w->p->tensors[l->out];
    bool rows = x->form == FORM_ROWS;
    int in = x->s.c, from = part(y->s.c, 12, thread, threads),
        to = part(y->s.c, 12, thread + 1, threads);
    const float *weight = program_param(w->p, l->node->weight),
                *b = program_param(w->p, l->node->bias);
    w->p->k->gemm(to - from, w->n, in, weight + (size_t)from * (size_t)in, (size_t)in, 1,
                  rows ? l->other : x->y.data, rows ? l->other_ld : x->y.row, b ? b + from : NULL,
                  l->relu, NULL, 0, y->y.data + (size_t)from * y->y.row, y->y.row, false);
}

static void linear_forward(program *p, layer *l)
{
    linear_work w = {p, l, (p->b->n + 7) / 8 * 8};
    if (p->tensors[l->in[0]].form == FORM_ROWS)
        cpu_threads_run(p->threads, turn_input, &w);
    cpu_threads_run(p->threads, forward_part, &w);
}

void linear_mask(program *p, const layer *l, int from, int to)
{
    const tensor *y = &p->tensors[l->out];
    size_t n = ((size_t)p->b->n + 7) / 8 * 8;
    float *db = l->node->bias >= 0 ? program_grad(p, l->node->bias) : NULL;
    for (int o = from; o < to; o++) {
        float *d = y->dy.data + (size_t)o * y->dy.row, sum = 0;
        if (l->relu)
            p->k->relu_back(n, y->y.data + (size_t)o * y->y.row, d, false, d);
        for (int i = 0; i < p->b->n; i++)
            sum += d[i];
        if (db)
            db[o] = sum;
    }
}

/* Masks dy by ReLU, and computes db, for this thread's outputs. */
static void mask_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    int out = w->p->tensors[w->l->out].s.c;
    linear_mask(w->p, w->l, part(out, 12, thread, threads), part(out, 12, thread + 1, threads));
}

/* The input, [n][in]. */
static const float *input_rows(const program *p, const layer *l, size_t *ld)
{
    const tensor *x = &p->tensors[l->in[0]];
    bool rows = x->form == FORM_ROWS;
    *ld = rows ? x->y.sample : l->other_ld;
    return rows ? x->y.data : l->other;
}

/* dW of this thread's outputs. */
static void weights_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *y = &p->tensors[l->out];
    int in = p->tensors[l->in[0]].s.c, from = part(y->s.c, 12, thread, threads),
        to = part(y->s.c, 12, thread + 1, threads);
    size_t x_ld;
    const float *x = input_rows(p, l, &x_ld);
    float *dw = program_grad(p, l->node->weight);
    linear_mask(p, l, from, to);
    for (int o = from; o < to; o += OUTPUTS) /* few rows of dw at a time: each has its own pages */
        p->k->gemm(to - o < OUTPUTS ? to - o : OUTPUTS, in, p->b->n,
                   y->dy.data + (size_t)o * y->dy.row, y->dy.row, 1, x, x_ld, NULL, false, NULL, 0,
                   dw + (size_t)o * (size_t)in, (size_t)in, false);
}

/* Moves dx of the thread's inputs, which lies feature by feature, to x's dy. */
static void turn_dx(const linear_work *w, int from, int to)
{
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]];
    const float *dx = l->dother;
    size_t ld = l->other_ld;
    if (!l->add[0]) {
        p->k->transpose(to - from, w->n, dx + (size_t)from * ld, ld, x->dy.data + from,
                        x->dy.sample);
        return;
    }
    for (int i = 0; i < p->b->n; i++)
        for (int c = from; c < to; c++)
            x->dy.data[(size_t)i * x->dy.sample + (size_t)c] += dx[(size_t)c * ld + (size_t)i];
}

/* Adds to dx of `inputs` inputs from `from` on what `outputs` outputs from o on give. `weights`
 * begins at weight (o, from). */
static void add_dx(const linear_work *w, int from, int inputs, int o, int outputs,
                   const float *weights)
{
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    bool rows = x->form == FORM_ROWS;
    size_t dx_ld = rows ? l->other_ld : x->dy.row;
    float *dx = (rows ? l->dother : x->dy.data) + (size_t)from * dx_ld;
    p->k->gemm(inputs, w->n, outputs, weights, 1, (size_t)x->s.c,
               y->dy.data + (size_t)o * y->dy.row, y->dy.row, NULL, false,
               o > 0 || (!rows && l->add[0]) ? dx : NULL, dx_ld, dx, dx_ld, false);
}

static void input_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    const program *p = w->p;
    const tensor *x = &p->tensors[w->l->in[0]];
    int in = x->s.c, out = p->tensors[w->l->out].s.c, from = part(in, 16, thread, threads),
        to = part(in, 16, thread + 1, threads);
    const float *weights = program_param(p, w->l->node->weight) + from;
    for (int o = 0; o < out; o += DEPTH)
        add_dx(w, from, to - from, o, least(DEPTH, out - o), weights + (size_t)o * (size_t)in);
    if (x->form == FORM_ROWS)
        turn_dx(w, from, to);
}

/* ---- backward of large layers ---------------------------------------------------------------- */

/* Floats between rows of so many features, so that rows share no lines of the cache. */
static size_t apart(size_t features)
{
    return features / 32 * 32 + 48;
}

static bool is_large(const program *p, const layer *l)
{
    return (size_t)p->tensors[l->in[0]].s.c * (size_t)p->tensors[l->out].s.c >= LARGE;
}

/* dW of the thread's inputs and some outputs, or the update with dW. */
static void block_dw(const program *p, const layer *l, int thread, int from, int inputs, int o,
                     int outputs)
{
    const tensor *y = &p->tensors[l->out];
    size_t in = (size_t)p->tensors[l->in[0]].s.c, at = (size_t)o * in + (size_t)from, x_ld;
    const float *x = input_rows(p, l, &x_ld);
    bool updates = p->updating && l->updates;
    float *dw = updates ? layer_scratch(l, thread) : program_grad(p, l->node->weight) + at;
    size_t ld = updates ? apart(in) : in;
    p->k->gemm(outputs, inputs, p->b->n, y->dy.data + (size_t)o * y->dy.row, y->dy.row, 1, x + from,
               x_ld, NULL, false, NULL, 0, dw, ld, false);
    at += p->g->vars[l->node->weight].offset;
    for (int i = 0; i < outputs && updates; i++)
        program_update(p, &p->update, at + (size_t)i * in, (size_t)inputs, dw + (size_t)i * ld);
}

/* Both gradients of the thread's inputs, a few outputs at a time. */
static void blocks_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]];
    int in = x->s.c, out = p->tensors[l->out].s.c, from = part(in, 16, thread, threads),
        to = part(in, 16, thread + 1, threads);
    const float *weights = program_param(p, l->node->weight) + from;
    for (int o = 0; o < out; o += BLOCK) {
        int outputs = least(BLOCK, out - o);
        if (x->dy.data)
            add_dx(w, from, to - from, o, outputs, weights + (size_t)o * (size_t)in);
        block_dw(p, l, thread, from, to - from, o, outputs);
    }
    if (x->dy.data && x->form == FORM_ROWS)
        turn_dx(w, from, to);
}

static void linear_backward(program *p, layer *l)
{
    linear_work w = {p, l, (p->b->n + 7) / 8 * 8};
    const tensor *x = &p->tensors[l->in[0]];
    if (x->form == FORM_COLUMNS)
        cpu_threads_run(p->threads, turn_input, &w);
    if (is_large(p, l)) {
        cpu_threads_run(p->threads, mask_part, &w);
        cpu_threads_run(p->threads, blocks_part, &w);
        return;
    }
    cpu_threads_run(p->threads, weights_part, &w);
    if (x->dy.data)
        cpu_threads_run(p->threads, input_part, &w);
}

static const layer_ops linear_ops = {.forward_whole = linear_forward,
                                     .backward_whole = linear_backward};

int layer_linear(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]];
    if (p->k16)
        return layer_linear16(p, l);
    l->ops = &linear_ops;
    bool rows = x->form == FORM_ROWS;
    size_t features = ((size_t)x->s.c + 15) / 16 * 16, batch = (size_t)p->batch_pad;
    l->other_ld = rows ? batch : is_large(p, l) ? apart(features) : features;
    if (rows || !p->c.inference)
        l->other = program_floats(p, (rows ? features : batch) * l->other_ld + CPU_SLACK);
    if (rows && x->dy.data)
        l->dother = program_floats(p, features * batch + CPU_SLACK);
    if (!p->c.inference && is_large(p, l)) {
        l->scratch_floats = BLOCK * apart(features);
        l->scratch_shared = true;
        l->updates = x->s.c % 8 == 0 && p->tensors[l->out].dy.data;
    }
    snprintf(l->choice, sizeof l->choice, l->relu ? "gemm+relu" : "gemm");
    return ((rows || !p->c.inference) && !l->other) || (rows && x->dy.data && !l->dother) ? -1 : 0;
}

/* ---- loss ------------------------------------------------------------------------------------ */

static void cross_entropy(const view *y, const view *dy, int outputs, int i, int label, int n,
                          backend_result *r)
{
    const float *z = y->p + (size_t)i * y->sn;
    int best = 0;
    for (int o = 1; o < outputs; o++)
        if (z[(size_t)o * y->sc] > z[(size_t)best * y->sc])
            best = o;
    float top = z[(size_t)best * y->sc], sum = 0;
    for (int o = 0; o < outputs; o++)
        sum += expf(z[(size_t)o * y->sc] - top);
    if (r) {
        r->loss_sum += (double)(logf(sum) - (z[(size_t)label * y->sc] - top));
        r->correct += best == label;
    }
    if (!dy)
        return;
    float *d = dy->p + (size_t)i * dy->sn, scale = 1.0f / (sum * (float)n);
    for (int o = 0; o < outputs; o++)
        d[(size_t)o * dy->sc] = expf(z[(size_t)o * y->sc] - top) * scale;
    d[(size_t)label * dy->sc] -= 1.0f / (float)n;
}

static void squares(const view *y, const view *dy, int outputs, int i, const float *target, int n,
                    backend_result *r)
{
    double sum = 0;
    for (int o = 0; o < outputs; o++) {
        float e = y->p[(size_t)i * y->sn + (size_t)o * y->sc] - target[o];
        sum += (double)e * (double)e;
        if (dy)
            dy->p[(size_t)i * dy->sn + (size_t)o * dy->sc] = 2.0f * e / ((float)n * (float)outputs);
    }
    if (r)
        r->loss_sum += sum / outputs;
}

void loss_compute(program *p, const tensor *t, bool gradient, backend_result *r)
{
    view y = tensor_view(t), dy = tensor_gradient(t);
    int outputs = t->s.c, n = p->b->n;
    if (r)
        *r = (backend_result){0};
    for (int i = 0; i < n; i++) {
        if (p->c.loss == LOSS_CROSS_ENTROPY)
            cross_entropy(&y, gradient ? &dy : NULL, outputs, i, p->b->labels[i], n, r);
        else
            squares(&y, gradient ? &dy : NULL, outputs, i,
                    p->b->targets + (size_t)i * (size_t)outputs, n, r);
    }
}
