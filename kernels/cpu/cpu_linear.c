/* cpu_linear.c: linear layers with bias and ReLU, and the loss.
 *
 * Between linear layers activations lie feature by feature, the samples of the batch innermost:
 * then forward, input gradient and weight gradient all use the weights where they lie in the
 * parameter block, and threads share the work by output features. But the input gradient reads them
 * by columns, whose elements lie a power of two apart in usual layers: there it copies large ones
 * block by block. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_program.h"

enum {
    OUTPUTS = 48,
    DEPTH = 128,       /* outputs that dx sums over at a time */
    /* of a block of dx whose weights are copied: a multiple of the products' widest tile */
    INPUTS = 240,
    ROOM_LD = 16 * 17, /* of such a block: rows that do not share lines of the cache */
    LARGE = 1 << 19,   /* weights that the second cache does not hold */
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

/* The batch's rows in [from, to) of the other form: other = transpose of the input. */
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
                  l->relu, NULL, 0, y->y.data + (size_t)from * y->y.row, y->y.row);
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

/* dy masked by ReLU; db and dW of some outputs. */
static void weights_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int in = x->s.c, from = part(y->s.c, 12, thread, threads),
        to = part(y->s.c, 12, thread + 1, threads);
    linear_mask(p, l, from, to);
    bool rows = x->form == FORM_ROWS;
    float *dw = program_grad(p, l->node->weight);
    for (int o = from; o < to; o += OUTPUTS) /* few rows of dw at a time: each has its own pages */
        p->k->gemm(to - o < OUTPUTS ? to - o : OUTPUTS, in, p->b->n,
                   y->dy.data + (size_t)o * y->dy.row, y->dy.row, 1, rows ? x->y.data : l->other,
                   rows ? x->y.sample : l->other_ld, NULL, false, NULL, 0,
                   dw + (size_t)o * (size_t)in, (size_t)in);
}

static bool copies_weights(const program *p, const layer *l)
{
    return (size_t)p->tensors[l->in[0]].s.c * (size_t)p->tensors[l->out].s.c >= LARGE;
}

/* dx of some inputs, [inputs][n]. */
static void block_dx(const linear_work *w, int from, int inputs, bool add, float *room, float *dx,
                     size_t ld)
{
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *y = &p->tensors[l->out];
    size_t in = (size_t)p->tensors[l->in[0]].s.c;
    bool copies = copies_weights(p, l);
    const float *weight = program_param(p, l->node->weight) + from;
    for (int o = 0; o < y->s.c; o += DEPTH) {
        int deep = y->s.c - o < DEPTH ? y->s.c - o : DEPTH;
        const float *rows = weight + (size_t)o * in;
        for (int i = 0; i < deep && copies; i++)
            memcpy(room + (size_t)i * ROOM_LD, rows + (size_t)i * in,
                   (size_t)inputs * sizeof *room);
        p->k->gemm(inputs, w->n, deep, copies ? room : rows, 1, copies ? ROOM_LD : in,
                   y->dy.data + (size_t)o * y->dy.row, y->dy.row, NULL, false,
                   o > 0 || add ? dx : NULL, ld, dx, ld);
    }
}

static void input_part(void *arg, int thread, int threads)
{
    linear_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]];
    bool rows = x->form == FORM_ROWS;
    int in = x->s.c, from = part(in, 16, thread, threads), to = part(in, 16, thread + 1, threads);
    float *dx = rows ? l->dother : x->dy.data, *room = NULL;
    size_t ld = rows ? l->other_ld : x->dy.row;
    int block = to - from;
    if (copies_weights(p, l)) {
        block = INPUTS;
        room = l->scratch + (size_t)thread * l->scratch_floats;
    }
    for (int i = from; i < to; i += block)
        block_dx(w, i, to - i < block ? to - i : block, !rows && l->add[0], room,
                 dx + (size_t)i * ld, ld);
    if (!rows)
        return;
    if (!l->add[0]) {
        p->k->transpose(to - from, w->n, dx + (size_t)from * ld, ld, x->dy.data + from,
                        x->dy.sample);
        return;
    }
    for (int i = 0; i < p->b->n; i++)
        for (int c = from; c < to; c++)
            x->dy.data[(size_t)i * x->dy.sample + (size_t)c] += dx[(size_t)c * ld + (size_t)i];
}

static void linear_backward(program *p, layer *l)
{
    linear_work w = {p, l, (p->b->n + 7) / 8 * 8};
    const tensor *x = &p->tensors[l->in[0]];
    if (x->form == FORM_COLUMNS)
        cpu_threads_run(p->threads, turn_input, &w);
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
    l->other_ld = rows ? batch : features;
    if (rows || !p->c.inference)
        l->other = program_floats(p, features * batch + CPU_SLACK);
    if (rows && x->dy.data)
        l->dother = program_floats(p, features * batch + CPU_SLACK);
    if (x->dy.data && copies_weights(p, l)) {
        l->scratch_floats = DEPTH * ROOM_LD;
        l->scratch_shared = true;
    }
    snprintf(l->choice, sizeof l->choice, l->relu ? "gemm+relu" : "gemm");
    return (rows && !l->other) || (rows && x->dy.data && !l->dother) ? -1 : 0;
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
        r->loss_sum += (double)(logf(sum) + top - z[(size_t)label * y->sc]);
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
