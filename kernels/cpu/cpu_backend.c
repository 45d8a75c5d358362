/* cpu_backend.c: the fast backend for the host's CPU behind backend.h: fuses a graph into layers,
 * lays out their tensors, and runs them. Which instructions: cpu_isa.c; the layers: cpu_conv.c,
 * cpu_winograd.c, cpu_winograd_fleeting.c, cpu_matmul.c, cpu_linear.c, cpu_norm.c, cpu_channel.c,
 * cpu_concat.c, cpu_rows.c, cpu_any.c; norms in convolutions: cpu_fold.c, cpu_entry.c; inner loops:
 * kernels_impl.h. In bf16: cpu_linear16.c, cpu_matmul16.c and the words of cpu_winograd.c; inner
 * loops: kernels_avx512_bf16.c.
 *
 * Same graph, batch, CPU class (the table's name) and thread count give the same bits: work is
 * split by sample or by output, and every sum across threads runs in thread order.
 *
 * Memory: all of it is allocated in prepare, in blocks that the program owns. Parameters stay where
 * the caller has them (`store` is NULL); packed copies of convolution weights follow them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "cpu_flush.h"
#include "cpu_program.h"
#include "large_pages.h"
#include "prefetch.h"

/* ---- memory ---------------------------------------------------------------------------------- */

void *program_alloc(program *p, size_t count, size_t size)
{
    size_t bytes, head = 64;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + head + 63) / 64 * 64;
    struct block *b = large_pages_alloc(bytes);
    if (!b)
        return NULL;
    b->next = p->blocks;
    p->blocks = b;
    p->bytes += bytes;
    return (char *)b + head;
}

float *program_floats(program *p, size_t count)
{
    return program_alloc(p, count, sizeof(float));
}

/* ---- tensors --------------------------------------------------------------------------------- */

static view plane_view(const tensor *t, const plane *a)
{
    if (!a->data)
        return (view){NULL, 0, 0, 0, 0};
    if (t->form == FORM_IMAGE)
        return (view){tensor_pixels(a, t->cs, 0), a->sample, 1, a->row, (size_t)t->step};
    if (t->form == FORM_ROWS)
        return (view){a->data, a->sample, 1, 0, 0};
    return (view){a->data, 1, a->row, 0, 0};
}

view tensor_view(const tensor *t)
{
    return plane_view(t, &t->y);
}

view tensor_gradient(const tensor *t)
{
    return plane_view(t, &t->dy);
}

void tensor_clear_halo(const tensor *t, int sample)
{
    const plane *a = &t->dy;
    if (a->halo == 0)
        return;
    float *p = a->data + (size_t)sample * a->sample;
    size_t side = (size_t)(a->halo * t->cs);
    memset(p, 0, (size_t)a->halo * a->row * sizeof *p);
    for (int h = 0; h < t->s.h; h++) {
        float *row = p + (size_t)(h + a->halo) * a->row;
        memset(row, 0, side * sizeof *p);
        memset(row + a->row - side, 0, side * sizeof *p);
    }
    memset(p + (size_t)(t->s.h + a->halo) * a->row, 0, (size_t)a->halo * a->row * sizeof *p);
}

/* One pixel of all samples is a matrix: with samples a multiple of SAME_LINES apart, its rows would
 * all want the same lines of the cache. */
enum { SAME_LINES = 256, APART = 48 };

static int plane_alloc(program *p, const tensor *t, plane *a)
{
    size_t batch = (size_t)p->c.batch, extent = 1;
    if (t->root) { /* which comes later */
        plane_postpone(a);
        return 0;
    }
    if (t->form == FORM_IMAGE) {
        a->row = (size_t)(t->s.w + 2 * a->halo) * (size_t)t->cs;
        a->sample = a->row * (size_t)(t->s.h + 2 * a->halo);
        if (t->strided && a->sample % SAME_LINES == 0)
            a->sample += APART;
        extent = batch * a->sample;
    } else if (t->form == FORM_ROWS) {
        a->sample = (size_t)t->cs;
        extent = (size_t)p->batch_pad * a->sample;
    } else {
        a->row = (size_t)p->batch_pad;
        a->sample = 1;
        extent = (size_t)t->s.c * a->row;
    }
    a->floats = extent + CPU_SLACK;
    if (plane_shares(p, (int)(t - p->tensors), a)) {
        plane_postpone(a);
        return 0;
    }
    a->data = program_floats(p, a->floats);
    return a->data ? 0 : -1;
}

/* ---- fusing: nodes into layers --------------------------------------------------------------- */

static bool is_relu(const graph *g, int i)
{
    return i >= 0 && g->nodes[i].op == OP_ACTIVATION && g->nodes[i].act.kind == ACT_RELU;
}

/* 2x2 with stride 2 over a convolution that the pooled kernels can do. */
static bool pools(const graph *g, int conv, int i)
{
    const graph_node *c = &g->nodes[conv], *n = i < 0 ? NULL : &g->nodes[i];
    return n && n->op == OP_MAX_POOL && n->pool.kernel_h == 2 && n->pool.kernel_w == 2 &&
           n->pool.stride_h == 2 && n->pool.stride_w == 2 && n->pool.pad_h == 0 &&
           n->pool.pad_w == 0 && n->shape.h == c->shape.h / 2 && n->shape.w == c->shape.w / 2 &&
           c->conv.stride_h == 1 && c->conv.stride_w == 1 && c->conv.dil_h == 1 &&
           c->conv.dil_w == 1;
}

/* Any window, where the convolution reads the network's input, whose gradient nobody asks for. */
static bool pools_windows(const graph *g, int conv, int i)
{
    const graph_node *c = &g->nodes[conv], *n = i < 0 ? NULL : &g->nodes[i];
    return n && n->op == OP_MAX_POOL && c->in[0] == 0 && c->conv.dil_h == 1 && c->conv.dil_w == 1 &&
           (int64_t)n->pool.kernel_h * n->pool.kernel_w <= UINT8_MAX + 1;
}

static fused_pool pool_of(const graph *g, int conv, int i)
{
    return pools(g, conv, i) ? POOL_CELLS : pools_windows(g, conv, i) ? POOL_WINDOWS : POOL_NONE;
}

typedef enum layer_kind { KIND_ANY, KIND_CONV, KIND_CONV_POOL, KIND_MATMUL } layer_kind;

/* A convolution for which another way than the direct one is better even without the pooling in
 * it. */
static bool pools_direct(const graph *g, int i, int batch)
{
    const graph_node *n = &g->nodes[i];
    shape in = g->nodes[n->in[0]].shape;
    return conv_is_direct(n) && !conv_is_winograd(n, in.c) && !conv_is_matmul(n, in, batch);
}

/* The other summand of an addition that reads the norm i, where it is there before the norm;
 * otherwise -1. */
static int summand(const graph *g, int i, int next)
{
    const graph_node *a = next < 0 ? NULL : &g->nodes[next];
    if (g->nodes[i].op != OP_BATCH_NORM || !a || a->op != OP_ADD || a->shape.rank != 3)
        return -1;
    int other = a->in[0] == i ? a->in[1] : a->in[0];
    return other < i && shape_equal(g->nodes[other].shape, a->shape) ? other : -1;
}

/* Follows what can be computed together from node i on; returns the last node. */
static int fuse(const graph *g, int i, int batch, bool *relu, fused_pool *pool)
{
    graph_op op = g->nodes[i].op;
    int next = graph_only_reader(g, i);
    *relu = false, *pool = POOL_NONE;
    if (op == OP_CONV2D && next >= 0 && pools_direct(g, i, batch)) {
        int after = graph_only_reader(g, next);
        *pool = is_relu(g, next)    ? pool_of(g, i, after)
                : is_relu(g, after) ? pool_of(g, i, next)
                                    : POOL_NONE;
        *relu = *pool != POOL_NONE;
        if (*relu)
            return after;
    }
    if (summand(g, i, next) > 0) {
        int after = graph_only_reader(g, next);
        *relu = is_relu(g, after);
        return *relu ? after : next;
    }
    if (is_relu(g, next) &&
        (op == OP_CONV2D || op == OP_LINEAR || op == OP_BATCH_NORM || op == OP_ADD)) {
        *relu = true;
        return next;
    }
    return i;
}

static layer_kind kind_of(const program *p, const graph_node *n, fused_pool pool)
{
    if (n->op != OP_CONV2D || !conv_is_direct(n))
        return KIND_ANY;
    if (pool != POOL_NONE)
        return KIND_CONV_POOL;
    return conv_is_matmul(n, p->g->nodes[n->in[0]].shape, p->c.batch) ? KIND_MATMUL : KIND_CONV;
}

static int make_layers(program *p, bool *inside, layer_kind *kinds)
{
    const graph *g = p->g;
    for (int i = 0; i < g->node_count; i++) {
        if (inside[i])
            continue;
        bool relu;
        fused_pool pool;
        const graph_node *n = &g->nodes[i];
        int last = fuse(g, i, p->c.batch, &relu, &pool);
        for (int j = i; j != last;) {
            j = graph_only_reader(g, j);
            inside[j] = true;
        }
        layer *l = &p->layers[p->layer_count];
        kinds[p->layer_count++] = kind_of(p, n, pool);
        l->node = n, l->in_count = n->in_count, l->out = last, l->relu = relu, l->pool = pool;
        l->in = program_alloc(p, (size_t)n->in_count + 1, sizeof *l->in);
        l->add = program_alloc(p, (size_t)n->in_count + 1, sizeof *l->add);
        if (!l->in || !l->add)
            return -1;
        if (n->in_count)
            memcpy(l->in, n->in, (size_t)n->in_count * sizeof *l->in);
        int other = summand(g, i, graph_only_reader(g, i));
        if (other > 0) /* the network's input may lie without padding lanes */
            l->in[l->in_count++] = other;
    }
    return 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* Borders that the convolution kernels want around their input, dy and dx. */
static void want_halos(program *p, const layer *l, bool pooled)
{
    const graph_node *n = l->node;
    int pad = most(n->conv.pad_h, n->conv.pad_w);
    tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    x->y.halo = most(x->y.halo, pad);
    if (l->in[0] == 0)
        return; /* nobody asks for the input's gradient */
    int around_dy = pooled ? -1 : conv_dy_halo(n, x->s);
    if (around_dy >= 0)
        y->dy.halo = most(y->dy.halo, around_dy);
    else
        x->dy.halo = most(x->dy.halo, pad);
}

/* The network's input keeps 1 to 4 channels without padding when only convolutions read it: they
 * take it without gaps, and never want its gradient. */
static bool narrow_input(const program *p, const layer_kind *kinds)
{
    if (p->g->nodes[0].shape.c > 4)
        return false;
    for (int i = 0; i < p->layer_count; i++)
        for (int j = 0; j < p->layers[i].in_count; j++)
            if (p->layers[i].in[j] == 0 &&
                (kinds[i] == KIND_ANY || p->layers[i].node->conv.dil_w != 1))
                return false;
    return true;
}

static tensor_form form_of(const program *p, const layer *l)
{
    if (p->g->nodes[l->out].shape.rank == 3)
        return FORM_IMAGE;
    if (l->node->op == OP_LINEAR)
        return FORM_COLUMNS;
    if (l->in_count && p->tensors[l->in[0]].form != FORM_IMAGE)
        return p->tensors[l->in[0]].form;
    return FORM_ROWS;
}

static void needs_gradient(const graph *g, bool *needs)
{
    for (int i = 0; i < g->node_count; i++) {
        needs[i] = g->nodes[i].weight >= 0;
        for (int j = 0; j < g->nodes[i].in_count; j++)
            needs[i] = needs[i] || needs[g->nodes[i].in[j]];
    }
}

static bool writes_slices(const program *p, const layer *l, layer_kind kind)
{
    return kind == KIND_MATMUL ||
           (kind == KIND_CONV && conv_is_winograd(l->node, p->tensors[l->in[0]].s.c));
}

/* Tensors in a concat's memory have its rows and samples. */
static void follow_roots(program *p)
{
    for (int i = 0; i < p->layer_count; i++) {
        tensor *t = &p->tensors[p->layers[i].out];
        const tensor *root = &p->tensors[t->root];
        if (t->root == 0)
            continue;
        t->y.row = root->y.row, t->y.sample = root->y.sample;
        t->dy.row = root->dy.row, t->dy.sample = root->dy.sample;
    }
}

static int lay_out(program *p, const layer_kind *kinds, bool *flags)
{
    for (int i = 0; i < p->layer_count; i++) {
        layer *l = &p->layers[i];
        tensor *t = &p->tensors[l->out];
        t->form = form_of(p, l);
        t->s = p->g->nodes[l->out].shape;
        int unit = t->form == FORM_ROWS ? 16 : CPU_LANES;
        t->step = t->cs =
            i == 0 && narrow_input(p, kinds) ? t->s.c : (t->s.c + unit - 1) / unit * unit;
        if (kinds[i] == KIND_CONV || kinds[i] == KIND_CONV_POOL)
            want_halos(p, l, kinds[i] == KIND_CONV_POOL);
        if (kinds[i] == KIND_MATMUL && (l->node->conv.stride_h > 1 || l->node->conv.stride_w > 1))
            t->strided = p->tensors[l->in[0]].strided = true;
    }
    for (int i = 0; i < p->layer_count; i++)
        flags[i] = writes_slices(p, &p->layers[i], kinds[i]);
    concat_join(p, flags);
    norm_find_acts(p);
    needs_gradient(p->g, flags);
    for (int i = 0; i < p->layer_count; i++) {
        tensor *t = &p->tensors[p->layers[i].out];
        if (p->layers[i].entered) /* has no result of its own */
            continue;
        if (plane_alloc(p, t, &t->y) != 0 || (!p->c.inference && flags[p->layers[i].out] &&
                                              !p->layers[i].act && plane_alloc(p, t, &t->dy) != 0))
            return -1;
    }
    follow_roots(p);
    memset(flags, 0, (size_t)p->g->node_count * sizeof *flags);
    flags[p->g->output] = true; /* written by the loss */
    for (int i = p->layer_count - 1; i >= 0; i--)
        for (int j = 0; j < p->layers[i].in_count; j++) {
            p->layers[i].add[j] = flags[p->layers[i].in[j]];
            flags[p->layers[i].in[j]] = true;
        }
    return 0;
}

/* ---- layers ---------------------------------------------------------------------------------- */

enum { LINE = 64 }; /* pixels of an input row that are converted at a time */

/* Up to LINE values of channel c, value * scale[c] + shift[c]. */
static void convert(const program *p, const char *sample, int c, size_t at, size_t n, float *to)
{
    const backend_batch *b = p->b;
    const shape *s = &p->tensors[0].s;
    bool bytes = b->type == INPUT_UINT8;
    const char *src =
        sample + ((size_t)c * (size_t)(s->h * s->w) + at) * (bytes ? 1 : sizeof(float));
    (bytes ? p->k->input_bytes : p->k->input_floats)(n, src, b->scale ? b->scale[c] : 1,
                                                     b->shift ? b->shift[c] : 0, to);
}

/* A plane of bytes into rows that lie `row` floats apart; rows are short, a call for each would
 * take longer. */
static void convert_plane(const program *p, const unsigned char *sample, float *y, size_t row)
{
    const backend_batch *b = p->b;
    p->k->input_plane((size_t)p->tensors[0].s.h, (size_t)p->tensors[0].s.w, sample,
                      b->scale ? b->scale[0] : 1, b->shift ? b->shift[0] : 0, y, row);
}

/* n pixels at `at` of the plane, from (C, H, W) as the caller has it to channels innermost. */
static void convert_pixels(const program *p, const char *sample, size_t at, size_t n, float *y)
{
    const tensor *t = &p->tensors[0];
    size_t cs = (size_t)t->cs;
    float line[3][LINE];
    if (cs == 1) {
        convert(p, sample, 0, at, n, y);
        return;
    }
    if (cs == 3) {
        for (int c = 0; c < 3; c++)
            convert(p, sample, c, at, n, line[c]);
        p->k->interleave3(n, line[0], line[1], line[2], y);
        return;
    }
    for (int c = 0; c < t->s.c; c++) {
        convert(p, sample, c, at, n, line[0]);
        for (size_t q = 0; q < n; q++)
            y[q * cs + (size_t)c] = line[0][q];
    }
}

static void convert_sample(const program *p, int i)
{
    const tensor *t = &p->tensors[0];
    float *y = tensor_pixels(&t->y, t->cs, i);
    size_t W = (size_t)t->s.w;
    if (t->cs == 1 && p->b->type == INPUT_UINT8) {
        convert_plane(p, p->b->x[i], y, t->y.row);
        return;
    }
    for (int h = 0; h < t->s.h; h++)
        for (size_t w = 0; w < W; w += LINE)
            convert_pixels(p, p->b->x[i], (size_t)h * W + w, W - w < LINE ? W - w : LINE,
                           y + (size_t)h * t->y.row + w * (size_t)t->cs);
}

static void input_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)l;
    const tensor *t = &p->tensors[0];
    int64_t begin_ns = thread == 0 ? clock_monotonic_ns() : 0;
    size_t bytes = shape_count(t->s) * (p->b->type == INPUT_UINT8 ? 1 : sizeof(float));
    for (int i = from; i < to; i++) {
        if (i + 1 < p->b->n)
            prefetch_bytes(p->b->x[i + 1], bytes);
        convert_sample(p, i);
    }
    if (thread == 0)
        p->convert_ns += clock_monotonic_ns() - begin_ns;
}

static const layer_ops input_ops = {.forward = input_forward};

static bool both_images(const program *p, const layer *l)
{
    for (int j = 0; j < l->in_count; j++)
        if (p->tensors[l->in[j]].form != FORM_IMAGE ||
            !shape_equal(p->tensors[l->in[j]].s, p->tensors[l->out].s))
            return false;
    return p->tensors[l->out].form == FORM_IMAGE;
}

static bool images_only(const program *p, const layer *l)
{
    for (int j = 0; j < l->in_count; j++)
        if (p->tensors[l->in[j]].form != FORM_IMAGE)
            return false;
    return p->tensors[l->out].form == FORM_IMAGE;
}

static int make_layer(program *p, layer *l, layer_kind kind)
{
    const tensor *x = l->in_count ? &p->tensors[l->in[0]] : NULL;
    if (kind == KIND_CONV && conv_is_winograd(l->node, x->s.c))
        return layer_winograd(p, l);
    if (kind == KIND_MATMUL)
        return layer_matmul(p, l);
    if (kind != KIND_ANY)
        return layer_conv(p, l);
    switch (l->node->op) {
    case OP_INPUT:
        l->ops = &input_ops;
        return 0;
    case OP_CONV2D:
        if (conv_is_depthwise(l->node) && x->cs % CPU_LANES == 0)
            return layer_depthwise(p, l);
        return conv_is_grouped(l->node, x, &p->tensors[l->out]) ? layer_group(p, l)
                                                                : layer_any(p, l);
    case OP_MAX_POOL:
    case OP_AVG_POOL:
    case OP_ADAPTIVE_AVG_POOL:
        return images_only(p, l) && x->cs % CPU_LANES == 0 ? layer_pool(p, l) : layer_any(p, l);
    case OP_MUL:
        return images_only(p, l) && !both_images(p, l) && x->cs % CPU_LANES == 0 &&
                       l->in[0] != l->in[1]
                   ? layer_gate(p, l)
                   : layer_any(p, l);
    case OP_CONCAT:
        return images_only(p, l) ? layer_concat(p, l) : layer_any(p, l);
    case OP_LINEAR:
        return layer_linear(p, l);
    case OP_BATCH_NORM:
        return layer_batch_norm(p, l);
    case OP_ADD:
        return both_images(p, l) ? layer_add(p, l) : layer_any(p, l);
    case OP_ACTIVATION:
        if (l->node->act.kind == ACT_RELU && both_images(p, l))
            return layer_relu(p, l);
        return layer_act(p, l);
    case OP_DROPOUT:
        return layer_dropout(p, l);
    case OP_FLATTEN:
        return x->form == FORM_IMAGE && !l->add[0] ? layer_flatten(p, l) : layer_any(p, l);
    default:
        return layer_any(p, l);
    }
}

static bool updates_itself(const program *p, int var)
{
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].updates && p->layers[i].node->weight == var)
            return true;
    return false;
}

/* The parameters that a whole step leaves to the update after it. */
static int find_rest(program *p)
{
    size_t at = 0, total = p->g->floats[VAR_PARAM];
    p->rest = program_alloc(p, (size_t)p->layer_count + 1, sizeof *p->rest);
    if (!p->rest)
        return -1;
    for (int i = 0; i < p->g->var_count; i++) {
        const graph_var *v = &p->g->vars[i];
        if (v->kind != VAR_PARAM || !updates_itself(p, i))
            continue;
        if (at < v->offset)
            p->rest[p->rest_count++] = (param_span){at, v->offset};
        at = (v->offset + v->count + GRAPH_ALIGN_FLOATS - 1) / GRAPH_ALIGN_FLOATS *
             GRAPH_ALIGN_FLOATS;
    }
    if (at < total)
        p->rest[p->rest_count++] = (param_span){at, total};
    return 0;
}

/* "kernels avx512\nthreads 1\nconv1 direct+pool\n...": see backend.h. */
static int write_choices(program *p)
{
    size_t room = 64 + (size_t)p->layer_count * (GRAPH_NAME_BYTES + sizeof p->layers->choice + 2);
    p->choices = program_alloc(p, room, 1);
    if (!p->choices)
        return -1;
    int at = snprintf(p->choices, room, "kernels %s%s%s\nthreads %d\n", p->k->name,
                      p->k16 ? " " : "", p->k16 ? p->k16->name : "", cpu_threads_count(p->threads));
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].choice[0])
            at += snprintf(p->choices + at, room - (size_t)at, "%s %s\n", p->layers[i].node->name,
                           p->layers[i].choice);
    return 0;
}

static int build(program *p)
{
    size_t nodes = (size_t)p->g->node_count;
    p->tensors = program_alloc(p, nodes, sizeof *p->tensors);
    p->layers = program_alloc(p, nodes, sizeof *p->layers);
    bool *flags = program_alloc(p, nodes, sizeof *flags);
    layer_kind *kinds = program_alloc(p, nodes, sizeof *kinds);
    if (!p->tensors || !p->layers || !flags || !kinds || make_layers(p, flags, kinds) != 0)
        return -1;
    entry_find(p);
    if (lay_out(p, kinds, flags) != 0)
        return -1;
    for (int i = 0; i < p->layer_count; i++)
        if (make_layer(p, &p->layers[i], kinds[i]) != 0)
            return -1;
    if (fold_find(p) != 0 || program_place(p) != 0 || find_rest(p) != 0)
        return -1;
    return write_choices(p);
}

static void cpu_release(backend_program *base)
{
    program *p = (program *)base;
    if (!p)
        return;
    cpu_threads_stop(p->threads);
    for (struct block *b = p->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(p);
}

static int cpu_prepare(const graph *g, const backend_config *c, backend_program **out, err *e)
{
    const char *why;
    if (c->precision == PRECISION_TF32)
        return err_set(e, ERR_UNSUPPORTED, "the cpu backend computes in fp32 or bf16, not in tf32");
    const cpu_kernels16 *k16 = c->precision == PRECISION_BF16 ? cpu_kernels16_pick(&why) : NULL;
    if (c->precision == PRECISION_BF16 && !k16)
        return err_set(e, ERR_UNSUPPORTED, "the cpu backend cannot compute in bf16 here: %s", why);
    program *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the cpu backend");
    p->base.backend = &backend_cpu;
    p->g = g, p->c = *c, p->stale = true;
    p->batch_pad = (c->batch + 15) / 16 * 16;
    p->k16 = k16;
    p->k = cpu_kernels_pick(&why);
    if (!p->k)
        err_set(e, ERR_UNSUPPORTED, "%s", why);
    if (!p->k || cpu_threads_start(c->threads, &p->threads, e) != 0) {
        cpu_release(&p->base);
        return -1;
    }
    if (build(p) != 0) {
        err_set(e, ERR_NOMEM, "no memory for the layers at batch %d (%zu MiB were had)", c->batch,
                p->bytes >> 20);
        cpu_release(&p->base);
        return -1;
    }
    *out = &p->base;
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Layers [first, last] that work on samples independently, all of them `together` or none. */
typedef struct stretch {
    program *p;
    int first, last;
} stretch;

static bool goes_with(const layer *next, const layer *l, bool forward)
{
    return next->together == l->together &&
           !(forward ? next->ops->forward_whole : next->ops->backward_whole);
}

/* So many samples that a layer's result is still in the cache when the next one reads it. */
static int chunk_of(const stretch *s)
{
    size_t bytes = 1;
    if (s->p->layers[s->first].together)
        return s->p->c.batch;
    for (int i = s->first; i <= s->last; i++) {
        const tensor *t = &s->p->tensors[s->p->layers[i].out];
        bytes += (t->form == FORM_IMAGE ? t->y.sample : (size_t)t->cs) * sizeof(float);
    }
    return bytes < CPU_CHUNK_BYTES ? (int)(CPU_CHUNK_BYTES / bytes) : 1;
}

static void forward_stretch(void *arg, int thread, int threads)
{
    const stretch *s = arg;
    int n = s->p->b->n, from = n * thread / threads, to = n * (thread + 1) / threads,
        chunk = chunk_of(s);
    for (; from < to; from += chunk)
        for (int i = s->first; i <= s->last; i++) {
            layer *l = &s->p->layers[i];
            l->ops->forward(s->p, l, from, from + chunk < to ? from + chunk : to, thread);
        }
}

static void run_forward(program *p)
{
    p->convert_ns = 0;
    for (int i = 0; i < p->layer_count; i++) {
        if (p->folded && p->layers[i].folded_from)
            continue;
        if (!p->layers[i].ops->forward) {
            p->layers[i].ops->forward_whole(p, &p->layers[i]);
            continue;
        }
        stretch s = {p, i, i};
        while (s.last + 1 < p->layer_count &&
               goes_with(&p->layers[s.last + 1], &p->layers[i], true))
            s.last++;
        for (int j = s.first; j <= s.last; j++)
            if (p->layers[j].ops->pack_ahead)
                p->layers[j].ops->pack_ahead(p, &p->layers[j]);
        cpu_threads_run(p->threads, forward_stretch, &s);
        i = s.last;
    }
}

static bool has_backward(const program *p, const layer *l)
{
    return p->tensors[l->entered ? l->entered->out : l->act ? l->act->out : l->out].dy.data &&
           (l->ops->backward || l->ops->backward_whole);
}

/* Gradients that this layer is the first to write: their borders, where the memory was others'
 * before. */
static void clear_borders(program *p, const layer *l, int from, int to)
{
    for (int j = 0; j < l->in_count; j++) {
        const tensor *x = &p->tensors[l->in[j]];
        for (int i = from; i < to && !l->add[j] && x->dy.shared && x->dy.halo; i++)
            tensor_clear_halo(x, i);
    }
}

static void borders_part(void *arg, int thread, int threads)
{
    const stretch *s = arg;
    int n = s->p->b->n;
    clear_borders(s->p, &s->p->layers[s->first], n * thread / threads, n * (thread + 1) / threads);
}

static void backward_stretch(void *arg, int thread, int threads)
{
    const stretch *s = arg;
    int n = s->p->b->n, from = n * thread / threads, to = n * (thread + 1) / threads,
        chunk = chunk_of(s);
    for (int i = s->first; i <= s->last; i++) {
        layer *l = &s->p->layers[i];
        if (l->dw) {
            if (!l->fresh || from >= to)
                memset(l->dw + (size_t)thread * l->dw_floats, 0, l->dw_floats * sizeof(float));
            memset(l->db + (size_t)thread * l->db_floats, 0, l->db_floats * sizeof(float));
        }
        if (l->entry)
            norm_begin(s->p, l->entry, thread);
    }
    /* The last samples first: theirs are the results that the cache still has from going forward. */
    for (int end = to, begin; end > from; end = begin) {
        begin = from + (end - from - 1) / chunk * chunk;
        for (int i = s->last; i >= s->first; i--) {
            layer *l = &s->p->layers[i];
            if (!has_backward(s->p, l))
                continue;
            clear_borders(s->p, l, begin, end);
            l->ops->backward(s->p, l, begin, end, thread);
        }
    }
}

static void run_backward(program *p)
{
    for (int i = p->layer_count - 1; i >= 0; i--) {
        if (p->layers[i].ops->backward_whole) {
            if (has_backward(p, &p->layers[i])) {
                cpu_threads_run(p->threads, borders_part, &(stretch){p, i, i});
                p->layers[i].ops->backward_whole(p, &p->layers[i]);
            }
            continue;
        }
        stretch s = {p, i, i};
        while (s.first > 0 && goes_with(&p->layers[s.first - 1], &p->layers[i], false))
            s.first--;
        for (int j = s.first; j <= s.last; j++)
            if (p->layers[j].ops->pack_back)
                p->layers[j].ops->pack_back(p, &p->layers[j]);
        cpu_threads_run(p->threads, backward_stretch, &s);
        for (int j = s.first; j <= s.last; j++)
            if (p->layers[j].ops->finish)
                p->layers[j].ops->finish(p, &p->layers[j]);
        i = s.first;
    }
}

static void refresh(program *p)
{
    p->stale |= fold_turn(p, !p->training);
    for (int i = 0; p->stale && i < p->layer_count; i++)
        if (p->layers[i].ops->pack)
            p->layers[i].ops->pack(p, &p->layers[i]);
    p->stale = false;
}

static int cpu_load(backend_program *base, const backend_state *s, err *e)
{
    program *p = (program *)base;
    (void)e;
    p->s = *s;
    p->stale = true;
    return 0;
}

static int cpu_forward(backend_program *base, const backend_batch *b, float *logits,
                       backend_result *result, err *e)
{
    program *p = (program *)base;
    const tensor *out = &p->tensors[p->g->output];
    unsigned arithmetic = flush_begin();
    (void)e;
    p->b = b, p->training = false;
    refresh(p);
    run_forward(p);
    if (result)
        loss_compute(p, out, false, result);
    if (result)
        result->convert_s = (double)p->convert_ns * 1e-9;
    view y = tensor_view(out);
    for (int i = 0; logits && i < b->n; i++)
        for (int c = 0; c < out->s.c; c++)
            *logits++ = y.p[(size_t)i * y.sn + (size_t)c * y.sc];
    flush_end(arithmetic);
    return 0;
}

static int cpu_gradients(backend_program *base, const backend_batch *b, backend_result *result,
                         err *e)
{
    program *p = (program *)base;
    unsigned arithmetic = flush_begin();
    (void)e;
    p->b = b, p->training = true;
    refresh(p);
    run_forward(p);
    loss_compute(p, &p->tensors[p->g->output], p->tensors[p->g->output].dy.data != NULL, result);
    result->convert_s = (double)p->convert_ns * 1e-9;
    run_backward(p);
    flush_end(arithmetic);
    return 0;
}

void program_update(const program *p, const backend_update *u, size_t at, size_t n,
                    const float *grads)
{
    const optim *o = &p->c.optim;
    float *params = p->s.params + at, *state = p->s.state ? p->s.state + at : NULL;
    if (o->kind != OPTIM_SGD)
        p->k->adam(o, u->lr, u->step, n, params, grads, state, state + p->g->floats[VAR_PARAM]);
    else
        p->k->sgd(n, params, grads, optim_slots(o) ? state : NULL, (float)u->lr,
                  (float)o->weight_decay, (float)o->momentum, (float)o->dampening, o->nesterov,
                  u->step == 1);
}

typedef struct update_work {
    program *p;
    backend_update u;
    const param_span *spans;
    int count;
} update_work;

/* A thread's part of each span: whole lines. */
static void update_part(void *arg, int thread, int threads)
{
    const update_work *w = arg;
    for (int i = 0; i < w->count; i++) {
        size_t lines = (w->spans[i].to - w->spans[i].from) / GRAPH_ALIGN_FLOATS,
               first = lines * (size_t)thread / (size_t)threads,
               last = lines * (size_t)(thread + 1) / (size_t)threads,
               at = w->spans[i].from + first * GRAPH_ALIGN_FLOATS;
        if (first < last)
            program_update(w->p, &w->u, at, (last - first) * GRAPH_ALIGN_FLOATS,
                           w->p->s.grads + at);
    }
}

static void update_spans(program *p, backend_update u, const param_span *spans, int count)
{
    update_work w = {p, u, spans, count};
    unsigned arithmetic = flush_begin();
    cpu_threads_run(p->threads, update_part, &w);
    flush_end(arithmetic);
    p->stale = true;
}

static int cpu_update(backend_program *base, backend_update u, err *e)
{
    program *p = (program *)base;
    (void)e;
    update_spans(p, u, &(param_span){0, p->g->floats[VAR_PARAM]}, 1);
    return 0;
}

static int cpu_step(backend_program *base, const backend_batch *b, backend_update u,
                    backend_result *result, err *e)
{
    program *p = (program *)base;
    p->update = u, p->updating = true;
    cpu_gradients(base, b, result, e);
    p->updating = false;
    update_spans(p, u, p->rest, p->rest_count);
    return 0;
}

static size_t cpu_memory(const backend_program *base)
{
    return ((const program *)base)->bytes;
}

static const char *cpu_choices(const backend_program *base)
{
    return ((const program *)base)->choices;
}

static const char *cpu_missing(void)
{
    const char *why;
    return cpu_kernels_pick(&why) ? NULL : why;
}

const backend backend_cpu = {
    .name = "cpu",
    .missing = cpu_missing,
    .prepare = cpu_prepare,
    .release = cpu_release,
    .load = cpu_load,
    .forward = cpu_forward,
    .gradients = cpu_gradients,
    .update = cpu_update,
    .step = cpu_step,
    .memory = cpu_memory,
    .choices = cpu_choices,
};
