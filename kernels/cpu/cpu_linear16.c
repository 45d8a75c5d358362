/* cpu_linear16.c: linear layers in bf16: the three products and the tensor forms of cpu_linear.c,
 * on words. Weights are rounded block by block where they are used: a block's words stay in the
 * second cache, and no copy of all weights is stored. */
#include <stdio.h>
#include <string.h>

#include "cpu_matmul16.h"

enum {
    /* outputs of a block, and the unit that threads share; even, because a word is two outputs */
    UNIT = 48,
    DEPTH = 128,       /* outputs that dx sums over at a time */
    INPUTS = 256,      /* inputs of a block of dx */
};

/* The struct behind layer.linear16. x: the input's words, of two features [in / 2][batch], or of
 * two samples [batch / 2][in]. dy: words of two outputs, [out / 2][batch]. room: for transposing
 * the input. dx: dx in the other form. */
struct linear16 {
    float *x, *dy, *room, *dx;
    size_t features; /* of the input, rounded up to 16 */
};

typedef struct work {
    program *p;
    layer *l;
    int n; /* samples, rounded up to 8 */
} work;

static int part(int total, int thread, int threads)
{
    int units = (total + UNIT - 1) / UNIT, end = units * thread / threads * UNIT;
    return end < total ? end : total;
}

static bf16_word *words_to(float *data)
{
    return matmul_words_to(data);
}

/* x = the input in words of two features. */
static void features_part(void *arg, int thread, int threads)
{
    const work *w = arg;
    const program *p = w->p;
    const tensor *x = &p->tensors[w->l->in[0]];
    const struct linear16 *s = w->l->linear16;
    size_t batch = (size_t)p->batch_pad, half = s->features / 2;
    int from = part(x->s.c, thread, threads), to = part(x->s.c, thread + 1, threads),
        rows = (to - from + 1) / 2;
    size_t at = (size_t)from / 2;
    if (x->form == FORM_COLUMNS) {
        p->k16->across(to - from, w->n, x->y.data + (size_t)from * x->y.row, x->y.row,
                       words_to(s->x) + at * batch, batch);
        return;
    }
    p->k16->along(p->b->n, to - from, x->y.data + from, x->y.sample, words_to(s->room) + at, half);
    p->k->transpose(p->b->n, rows, s->room + at, half, s->x + at * batch, batch);
}

/* Computes this thread's outputs, weights block by block. */
static void forward_part(void *arg, int thread, int threads)
{
    const work *w = arg;
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int in = x->s.c, from = part(y->s.c, thread, threads), to = part(y->s.c, thread + 1, threads);
    const float *weight = program_param(p, l->node->weight), *b = program_param(p, l->node->bias);
    for (int o = from; o < to; o += UNIT) {
        int rows = least(UNIT, to - o);
        matmul_rows a =
            matmul_along(p, rows, in, (matmul_rows){weight + (size_t)o * (size_t)in, (size_t)in},
                         layer_scratch(l, thread));
        p->k16->gemm(rows, w->n, (in + 1) / 2, matmul_words(a.data), a.ld, 1,
                     matmul_words(l->linear16->x), (size_t)p->batch_pad, b ? b + o : NULL, l->relu,
                     NULL, 0, y->y.data + (size_t)o * y->y.row, y->y.row);
    }
}

static void linear16_forward(program *p, layer *l)
{
    work w = {p, l, (p->b->n + 7) / 8 * 8};
    cpu_threads_run(p->threads, features_part, &w);
    cpu_threads_run(p->threads, forward_part, &w);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* x = the input in words of two samples. */
static void samples_part(void *arg, int thread, int threads)
{
    const work *w = arg;
    const program *p = w->p;
    const tensor *x = &p->tensors[w->l->in[0]];
    const struct linear16 *s = w->l->linear16;
    size_t half = (size_t)p->batch_pad / 2;
    int from = part(x->s.c, thread, threads), to = part(x->s.c, thread + 1, threads), n = p->b->n;
    if (x->form == FORM_ROWS) {
        p->k16->across(n, to - from, x->y.data + from, x->y.sample, words_to(s->x) + from,
                       s->features);
        return;
    }
    p->k16->along(to - from, n, x->y.data + (size_t)from * x->y.row, x->y.row,
                  words_to(s->room) + (size_t)from * half, half);
    p->k->transpose(to - from, (n + 1) / 2, s->room + (size_t)from * half, half, s->x + from,
                    s->features);
}

/* Masks dy by ReLU, writes it in words of two outputs, and computes db and dW, for this thread's
 * outputs. */
static void weights_part(void *arg, int thread, int threads)
{
    const work *w = arg;
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const struct linear16 *s = l->linear16;
    int in = x->s.c, from = part(y->s.c, thread, threads), to = part(y->s.c, thread + 1, threads);
    float *dw = program_grad(p, l->node->weight);
    linear_mask(w->p, l, from, to);
    const float *dy = y->dy.data + (size_t)from * y->dy.row;
    p->k16->across(to - from, w->n, dy, y->dy.row,
                   words_to(s->dy) + (size_t)from / 2 * (size_t)p->batch_pad, (size_t)p->batch_pad);
    int whole = in / 8 * 8;
    for (int o = from; o < to; o += UNIT) {
        int rows = least(UNIT, to - o);
        matmul_rows a = matmul_along(p, rows, p->b->n,
                                     (matmul_rows){y->dy.data + (size_t)o * y->dy.row, y->dy.row},
                                     layer_scratch(l, thread));
        float *to_dw = dw + (size_t)o * (size_t)in;
        p->k16->gemm(rows, whole, (p->b->n + 1) / 2, matmul_words(a.data), a.ld, 1,
                     matmul_words(s->x), s->features, NULL, false, NULL, 0, to_dw, (size_t)in);
        if (whole == in)
            continue;
        float *tail = layer_scratch(l, thread) + (size_t)UNIT * a.ld; /* products go by 8 columns */
        p->k16->gemm(rows, 8, (p->b->n + 1) / 2, matmul_words(a.data), a.ld, 1,
                     matmul_words(s->x) + whole, s->features, NULL, false, NULL, 0, tail, 8);
        for (int i = 0; i < rows; i++)
            memcpy(to_dw + (size_t)i * (size_t)in + whole, tail + (size_t)i * 8,
                   (size_t)(in - whole) * sizeof *tail);
    }
}

/* dx of some inputs: [inputs][n], rows ld floats apart. */
static void block_dx(const work *w, int from, int inputs, bool add, float *room, float *dx,
                     size_t ld)
{
    const program *p = w->p;
    const layer *l = w->l;
    int in = p->tensors[l->in[0]].s.c, out = p->tensors[l->out].s.c;
    const float *weight = program_param(p, l->node->weight) + from;
    for (int o = 0; o < out; o += DEPTH) {
        int rows = least(DEPTH, out - o);
        matmul_rows a = matmul_across(
            p, rows, inputs, (matmul_rows){weight + (size_t)o * (size_t)in, (size_t)in}, room);
        p->k16->gemm(inputs, w->n, (rows + 1) / 2, matmul_words(a.data), 1, a.ld,
                     matmul_words(l->linear16->dy) + (size_t)o / 2 * (size_t)p->batch_pad,
                     (size_t)p->batch_pad, NULL, false, o > 0 || add ? dx : NULL, ld, dx, ld);
    }
}

static void input_part(void *arg, int thread, int threads)
{
    const work *w = arg;
    const program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]];
    bool rows = x->form == FORM_ROWS;
    int from = part(x->s.c, thread, threads), to = part(x->s.c, thread + 1, threads);
    float *dx = rows ? l->linear16->dx : x->dy.data;
    size_t ld = rows ? (size_t)p->batch_pad : x->dy.row;
    for (int i = from; i < to; i += INPUTS)
        block_dx(w, i, least(INPUTS, to - i), !rows && l->add[0], layer_scratch(l, thread),
                 dx + (size_t)i * ld, ld);
    if (rows && !l->add[0])
        p->k->transpose(to - from, w->n, dx + (size_t)from * ld, ld, x->dy.data + from,
                        x->dy.sample);
    for (int i = 0; i < p->b->n && rows && l->add[0]; i++)
        for (int c = from; c < to; c++)
            x->dy.data[(size_t)i * x->dy.sample + (size_t)c] += dx[(size_t)c * ld + (size_t)i];
}

static void linear16_backward(program *p, layer *l)
{
    work w = {p, l, (p->b->n + 7) / 8 * 8};
    cpu_threads_run(p->threads, samples_part, &w);
    cpu_threads_run(p->threads, weights_part, &w);
    if (p->tensors[l->in[0]].dy.data)
        cpu_threads_run(p->threads, input_part, &w);
}

static const layer_ops linear16_ops = {.forward_whole = linear16_forward,
                                       .backward_whole = linear16_backward};

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

int layer_linear16(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    struct linear16 *s = l->linear16 = program_alloc(p, 1, sizeof *s);
    size_t batch = (size_t)p->batch_pad, outputs = ((size_t)y->s.c + UNIT - 1) / UNIT * UNIT;
    if (!s)
        return -1;
    l->ops = &linear16_ops;
    s->features = ((size_t)x->s.c + 15) / 16 * 16;
    size_t dw = UNIT * (batch + 8), dx = DEPTH / 2 * INPUTS;
    l->scratch_floats = most(UNIT * s->features / 2, most(dw, dx)) + CPU_SLACK;
    l->scratch_shared = true;
    size_t turned = s->features * batch / 2 + UNIT * batch + CPU_SLACK;
    s->x = program_floats(p, turned);
    s->room = program_floats(p, turned);
    if (!p->c.inference)
        s->dy = program_floats(p, outputs * batch / 2 + CPU_SLACK);
    if (x->form == FORM_ROWS && x->dy.data)
        s->dx = program_floats(p, s->features * batch + CPU_SLACK);
    snprintf(l->choice, sizeof l->choice, l->relu ? "gemm-bf16+relu" : "gemm-bf16");
    return s->x && s->room && (p->c.inference || s->dy) &&
                   (x->form != FORM_ROWS || !x->dy.data || s->dx)
               ? 0
               : -1;
}
