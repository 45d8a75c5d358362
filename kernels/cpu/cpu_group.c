/* cpu_group.c: convolutions in groups that are not depthwise, as matrix products over the pixels of
 * a row.
 *
 * A group of few channels fills no vector. So as many groups as make whole vectors form one block,
 * whose weights are a dense matrix for each tap, zero between the groups. ResNeXt's groups of 4
 * then take twice the multiplications, but in full vectors. A row's taps are cut to the columns
 * that lie inside the image. */
#include <stdio.h>
#include <string.h>

#include "cpu_program.h"

typedef struct blocks {
    int groups, per, filters; /* channels and filters of a group */
    int together, count;      /* groups of a block; blocks */
    int in, out;              /* channels and filters of a block, multiples of CPU_LANES */
    int taps;
} blocks;

static blocks blocks_of(const graph_node *n, shape in)
{
    blocks b = {.groups = n->conv.groups, .per = in.c / n->conv.groups,
                .filters = n->shape.c / n->conv.groups, .together = 1,
                .taps = n->conv.kernel_h * n->conv.kernel_w};
    while (b.together * b.per % CPU_LANES || b.together * b.filters % CPU_LANES)
        b.together++;
    b.count = (b.groups + b.together - 1) / b.together;
    b.in = b.together * b.per, b.out = b.together * b.filters;
    return b;
}

static int whole_lanes(int n)
{
    return (n + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
}

static size_t block_floats(const blocks *b)
{
    return (size_t)b->taps * (size_t)b->in * (size_t)b->out;
}

/* Where the weights of group g begin in (K, C, taps). */
static size_t group_weights(const blocks *b, int g)
{
    return (size_t)g * (size_t)b->filters * (size_t)b->per * (size_t)b->taps;
}

/* Where weight (filter f, channel c) of group g at tap t stands in [block][tap][in][out]. */
static size_t place(const blocks *b, int g, int f, int c, int t)
{
    int j = g % b->together;
    size_t row = (size_t)(g / b->together * b->taps + t) * (size_t)b->in + (size_t)(j * b->per + c);
    return row * (size_t)b->out + (size_t)(j * b->filters + f);
}

/* The same in [block][tap][out][in]. */
static size_t place_back(const blocks *b, int g, int f, int c, int t)
{
    int j = g % b->together;
    size_t row =
        (size_t)(g / b->together * b->taps + t) * (size_t)b->out + (size_t)(j * b->filters + f);
    return row * (size_t)b->in + (size_t)(j * b->per + c);
}

static void group_pack(program *p, layer *l, int part, int parts)
{
    blocks b = blocks_of(l->node, p->tensors[l->in[0]].s);
    int first = part_begin(b.groups, part, parts), end = part_begin(b.groups, part + 1, parts);
    const float *w = program_param(p, l->node->weight) + group_weights(&b, first),
                *bias = program_param(p, l->node->bias);
    for (int g = first; g < end; g++)
        for (int f = 0; f < b.filters; f++)
            for (int c = 0; c < b.per; c++)
                for (int t = 0; t < b.taps; t++, w++) {
                    l->wf[place(&b, g, f, c, t)] = *w;
                    if (l->wb)
                        l->wb[place_back(&b, g, f, c, t)] = *w;
                }
    if (bias && part == 0)
        memcpy(l->bf, bias, (size_t)l->node->shape.c * sizeof *bias);
}

/* ---- a tap of a row -------------------------------------------------------------------------- */

/* Outputs [from, to) of an axis whose tap lies inside the image, and the input of the first. */
typedef struct reach {
    int from, to, first;
} reach;

static reach reach_of(int out, int in, int stride, int offset)
{
    reach r = {.from = 0, .to = out};
    while (r.from < out && r.from * stride + offset < 0)
        r.from++;
    while (r.to > r.from && (r.to - 1) * stride + offset >= in)
        r.to--;
    r.first = r.from * stride + offset;
    return r;
}

typedef struct tap {
    int index, input_row; /* of this output row */
    reach w;
} tap;

/* Sets *out for tap t of output row h; false if the tap lies outside the image. */
static bool tap_at(const layer *l, shape in, int h, int t, tap *out)
{
    const graph_node *n = l->node;
    int r = t / n->conv.kernel_w, s = t % n->conv.kernel_w;
    out->index = t;
    out->input_row = h * n->conv.stride_h - n->conv.pad_h + r * n->conv.dil_h;
    out->w = reach_of(n->shape.w, in.w, n->conv.stride_w, s * n->conv.dil_w - n->conv.pad_w);
    return out->input_row >= 0 && out->input_row < in.h && out->w.to > out->w.from;
}

static float *pixel(const tensor *t, const plane *a, int sample, int h, int w)
{
    return tensor_pixels(a, t->cs, sample) + (size_t)h * a->row + (size_t)(w * t->cs);
}

static void row_forward(const program *p, const layer *l, const blocks *b, int i, int h)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    float *row = pixel(y, &y->y, i, h, 0);
    size_t ks = (size_t)y->cs;
    tap t;
    for (int w = 0; w < y->s.w; w++)
        memcpy(row + (size_t)w * ks, l->bf, ks * sizeof *row);
    for (int k = 0; k < b->taps; k++) {
        if (!tap_at(l, x->s, h, k, &t))
            continue;
        const float *from = pixel(x, &x->y, i, t.input_row, t.w.first);
        float *to = row + (size_t)t.w.from * ks;
        for (int j = 0; j < b->count; j++, from += b->in, to += b->out)
            p->k->gemm(t.w.to - t.w.from, whole_lanes(least(b->out, y->s.c - j * b->out)),
                       least(b->in, x->s.c - j * b->in), from,
                       (size_t)(l->node->conv.stride_w * x->cs), 1,
                       l->wf + place(b, j * b->together, 0, 0, k), (size_t)b->out, NULL, false, to,
                       ks, to, ks, false);
    }
    if (l->relu)
        p->k->add((size_t)y->s.w * ks, row, NULL, true, row);
}

static void group_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    blocks b = blocks_of(l->node, p->tensors[l->in[0]].s);
    for (int i = from; i < to; i++)
        for (int h = 0; h < l->node->shape.h; h++)
            row_forward(p, l, &b, i, h);
}

static void row_backward(const program *p, const layer *l, const blocks *b, int i, int h, float *dw)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t ks = (size_t)y->cs, step = (size_t)(l->node->conv.stride_w * x->cs);
    tap t;
    for (int k = 0; k < b->taps; k++) {
        if (!tap_at(l, x->s, h, k, &t))
            continue;
        int m = t.w.to - t.w.from;
        const float *from = pixel(x, &x->y, i, t.input_row, t.w.first),
                    *dy = pixel(y, &y->dy, i, h, t.w.from);
        float *dx = x->dy.data ? pixel(x, &x->dy, i, t.input_row, t.w.first) : NULL;
        for (int j = 0; j < b->count; j++) {
            int in = least(b->in, x->s.c - j * b->in), out = least(b->out, y->s.c - j * b->out);
            float *to = dw + place(b, j * b->together, 0, 0, k);
            p->k->gemm(in, whole_lanes(out), m, from + j * b->in, 1, step, dy + j * b->out, ks,
                       NULL, false, to, (size_t)b->out, to, (size_t)b->out, false);
            if (dx)
                p->k->gemm(m, whole_lanes(in), out, dy + j * b->out, ks, 1,
                           l->wb + place_back(b, j * b->together, 0, 0, k), (size_t)b->in, NULL,
                           false, dx + j * b->in, step, dx + j * b->in, step, false);
        }
    }
}

static void group_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    float *dw = layer_dw(l, thread), *db = layer_db(l, thread);
    blocks b = blocks_of(l->node, x->s);
    for (int i = from; i < to; i++) {
        for (int h = 0; h < x->s.h && x->dy.data && !l->add[0]; h++)
            memset(pixel(x, &x->dy, i, h, 0), 0, (size_t)x->s.w * (size_t)x->cs * sizeof(float));
        for (int h = 0; h < y->s.h; h++) {
            float *dy = pixel(y, &y->dy, i, h, 0);
            if (l->relu || l->node->bias >= 0)
                p->k->mask_bias(y->s.w, y->cs, (size_t)y->cs,
                                l->relu ? pixel(y, &y->y, i, h, 0) : NULL, dy, dy, db);
            row_backward(p, l, &b, i, h, dw);
        }
    }
}

static void group_finish(program *p, layer *l, int part, int parts)
{
    blocks b = blocks_of(l->node, p->tensors[l->in[0]].s);
    int first = part_begin(b.groups, part, parts), end = part_begin(b.groups, part + 1, parts);
    float *to = program_grad(p, l->node->weight) + group_weights(&b, first);
    for (int g = first; g < end; g++)
        for (int f = 0; f < b.filters; f++)
            for (int c = 0; c < b.per; c++)
                for (int t = 0; t < b.taps; t++)
                    *to++ = l->dw[place(&b, g, f, c, t)];
}

static const layer_ops group_ops = {.forward = group_forward, .backward = group_backward,
                                    .finish = group_finish, .pack = group_pack};

int layer_group(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    blocks b = blocks_of(l->node, x->s);
    size_t threads = (size_t)cpu_threads_count(p->threads),
           floats = (size_t)b.count * block_floats(&b);
    l->ops = &group_ops;
    snprintf(l->choice, sizeof l->choice, "groups%s", l->relu ? "+relu" : "");
    l->wf = program_floats(p, floats + CPU_SLACK);
    l->bf = program_floats(p, (size_t)y->cs + CPU_SLACK);
    if (!l->wf || !l->bf)
        return -1;
    if (p->c.inference)
        return 0;
    l->dw_floats = (floats + 15) / 16 * 16;
    l->db_floats = ((size_t)y->cs + 15) / 16 * 16;
    l->dw = program_floats(p, threads * l->dw_floats + CPU_SLACK);
    l->db = program_floats(p, threads * l->db_floats);
    l->wb = x->dy.data ? program_floats(p, floats + CPU_SLACK) : NULL;
    return l->dw && l->db && (!x->dy.data || l->wb) ? 0 : -1;
}
