/* cpu_build.c: a graph becomes a program: its nodes are fused into layers, the layers' tensors laid
 * out as their neighbours want them, and each layer made by the file that knows its kind. All
 * memory is allocated here, and nothing in a step. */
#include <stdio.h>
#include <string.h>

#include "cpu_ops.h"
#include "cpu_winograd.h"

/* ---- fusing: nodes into layers --------------------------------------------------------------- */

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

/* Is the convolution better with the pooling in it? Where it is a plain matrix product it is not,
 * nor Winograd's, but where a tile is a cell of the pooling. */
static bool takes_pool(const program *p, int i, fused_pool pool)
{
    const graph_node *n = &p->g->nodes[i];
    shape in = p->g->nodes[n->in[0]].shape;
    return conv_is_direct(n) && !conv_is_matmul(n, in, p->c.batch) &&
           (!conv_is_winograd(p, n, in.c) || (pool == POOL_CELLS && wino_pools(n)));
}

/* The other summand of an addition that reads the norm i, where it is there before the norm and
 * both are as large as the sum; otherwise -1. */
static int summand(const graph *g, int i, int next)
{
    const graph_node *a = next < 0 ? NULL : &g->nodes[next];
    if (!cpu_has(&g->nodes[i], OP_BATCH_NORM) || !a || a->op != OP_ADD || a->shape.rank != 3)
        return -1;
    int other = a->in[0] == i ? a->in[1] : a->in[0];
    bool whole =
        shape_equal(g->nodes[i].shape, a->shape) && shape_equal(g->nodes[other].shape, a->shape);
    return other < i && whole ? other : -1;
}

/* Follows what can be computed together from node i on; returns the last node. */
static int fuse(const program *p, int i, bool *relu, fused_pool *pool)
{
    const graph *g = p->g;
    graph_op op = g->nodes[i].op;
    int next = graph_only_reader(g, i);
    *relu = false, *pool = POOL_NONE;
    if (!cpu_ops[op].make)
        return i;
    if (op == OP_CONV2D && next >= 0) {
        int after = graph_only_reader(g, next);
        *pool = graph_is_relu(g, next)    ? pool_of(g, i, after)
                : graph_is_relu(g, after) ? pool_of(g, i, next)
                                          : POOL_NONE;
        *pool = takes_pool(p, i, *pool) ? *pool : POOL_NONE;
        *relu = *pool != POOL_NONE;
        if (*relu)
            return after;
    }
    if (summand(g, i, next) > 0) {
        int after = graph_only_reader(g, next);
        *relu = graph_is_relu(g, after);
        return *relu ? after : next;
    }
    if (graph_is_relu(g, next) &&
        (op == OP_CONV2D || op == OP_LINEAR || op == OP_BATCH_NORM || op == OP_ADD)) {
        *relu = true;
        return next;
    }
    return i;
}

static layer_kind kind_of(const program *p, const graph_node *n, fused_pool pool)
{
    if (!cpu_has(n, OP_CONV2D) || !conv_is_direct(n))
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
        int last = fuse(p, i, &relu, &pool);
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
        if (t->cs % CPU_LANES) /* vectors reach past it: not into what another thread writes */
            a->sample += CPU_SLACK;
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

static bool writes_slices(const program *p, const layer *l, layer_kind kind)
{
    return kind == KIND_MATMUL ||
           (kind == KIND_CONV && conv_is_winograd(p, l->node, p->tensors[l->in[0]].s.c));
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
    graph_mark_gradients(p->g, flags);
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

static int make_layer(program *p, layer *l, layer_kind kind)
{
    const cpu_op *op = &cpu_ops[l->node->op];
    if (kind == KIND_CONV && conv_is_winograd(p, l->node, p->tensors[l->in[0]].s.c))
        return layer_winograd(p, l);
    if (kind == KIND_MATMUL)
        return layer_matmul(p, l);
    if (kind != KIND_ANY)
        return layer_conv(p, l);
    return op->make ? op->make(p, l) : layer_reference(p, l);
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

int program_build(program *p)
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
    if (fold_find(p) != 0 || evaluate_find(p) != 0 || program_place(p) != 0 ||
        evaluate_place(p) != 0 || find_rest(p) != 0)
        return -1;
    return write_choices(p);
}
