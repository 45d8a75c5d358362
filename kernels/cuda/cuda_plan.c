/* cuda_plan.c: from a graph to layers, and where everything lies on the device; see
 * cuda_program.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "cuda_memory.h"
#include "cuda_run.h"
#include "kernels/ops.h"
#include "kernels/plan.h"

/* ---- fusing ---------------------------------------------------------------------------------- */

/* The other input of the sum `j` when it can run where node i does: equal shapes, made before, and
 * not what i reads itself, whose one gradient would be written as two. */
static int added(const graph *g, int i, int j)
{
    if (j < 0 || g->nodes[j].op != OP_ADD)
        return -1;
    const int *in = g->nodes[j].in;
    int other = in[0] == i ? in[1] : in[0];
    if (other >= i || other == g->nodes[i].in[0] ||
        !shape_equal(g->nodes[other].shape, g->nodes[i].shape))
        return -1;
    return other;
}

static void fuse(const graph *g, int i, layer *l)
{
    graph_op op = g->nodes[i].op;
    int next = graph_only_reader(g, i);
    l->node = &g->nodes[i];
    l->out = i;
    l->also = op == OP_BATCH_NORM ? added(g, i, next) : -1;
    if (l->also >= 0) {
        l->out = next;
        next = graph_only_reader(g, next);
    }
    bool takes = op == OP_CONV2D || op == OP_LINEAR || op == OP_BATCH_NORM || op == OP_ADD;
    if (takes && graph_is_relu(g, next)) {
        l->relu = true;
        l->out = next;
    }
}

/* A linear layer right behind a flatten reads (C, H, W) as (H, W, C): its columns are turned so,
 * and the flatten is free. */
static bool folds(const graph *g, const graph_node *linear, shape *from)
{
    const graph_node *n = &g->nodes[linear->in[0]];
    if (linear->op != OP_LINEAR || n->op != OP_FLATTEN || graph_only_reader(g, linear->in[0]) < 0)
        return false;
    *from = g->nodes[n->in[0]].shape;
    return from->c > 1 && from->h * from->w > 1;
}

/* Is (C, H, W) already in the order that the flatten's reader wants? */
bool cuda_flatten_copies(const program *p, const graph_node *flatten)
{
    shape in = p->g->nodes[flatten->in[0]].shape, from;
    if (in.c == 1 || in.h * in.w == 1)
        return true;
    int reader = graph_only_reader(p->g, (int)(flatten - p->g->nodes));
    return reader >= 0 && folds(p->g, &p->g->nodes[reader], &from);
}

static conv_shape conv_shape_of(const program *p, const graph_node *n)
{
    shape in = p->g->nodes[n->in[0]].shape;
    conv_shape s = {.n = p->c.batch, .c = in.c, .h = in.h, .w = in.w, .k = n->shape.c};
    s.p = n->shape.h, s.q = n->shape.w;
    s.r = s.s = s.stride_h = s.stride_w = s.dil_h = s.dil_w = s.groups = 1;
    if (n->op == OP_LINEAR)
        return s;
    s.r = n->conv.kernel_h, s.s = n->conv.kernel_w;
    s.stride_h = n->conv.stride_h, s.stride_w = n->conv.stride_w;
    s.pad_h = n->conv.pad_h, s.pad_w = n->conv.pad_w;
    s.dil_h = n->conv.dil_h, s.dil_w = n->conv.dil_w;
    s.groups = n->conv.groups;
    return s;
}

static pool_shape pool_shape_of(const conv_shape *c, const graph_node *n)
{
    return (pool_shape){.n = c->n,
                        .c = c->k,
                        .h = c->p,
                        .w = c->q,
                        .p = n->shape.h,
                        .q = n->shape.w,
                        .kernel_h = n->pool.kernel_h,
                        .kernel_w = n->pool.kernel_w,
                        .stride_h = n->pool.stride_h,
                        .stride_w = n->pool.stride_w,
                        .pad_h = n->pool.pad_h,
                        .pad_w = n->pool.pad_w};
}

/* Notes a possible fusing; whether it is to be done. Without room for the note it is not done. */
static bool fuses(program *p, int at, fusing_kind kind)
{
    if (p->fusing_count == FUSINGS_MAX)
        return false;
    p->fusings[p->fusing_count] = (fusing){at, kind};
    return !(p->apart >> p->fusing_count++ & 1);
}

/* A small convolution and its pooling may run as one kernel: the library's launches and the tensor
 * between them may cost more than they gain. */
static void take_pool(program *p, layer *l)
{
    const graph *g = p->g;
    int next = graph_only_reader(g, l->out);
    if (l->node->op != OP_CONV2D || next < 0 || g->nodes[next].op != OP_MAX_POOL)
        return;
    l->pool = pool_shape_of(&l->conv, &g->nodes[next]);
    if (!cuda_conv_pool_fits(l->conv, l->pool))
        return;
    l->pooled = fuses(p, (int)(l - p->layers), FUSING_POOLING);
    l->out = l->pooled ? next : l->out;
}

/* A flatten that moves nothing is another shape of the same tensor. */
static void take_flatten(const program *p, layer *l)
{
    int next = graph_only_reader(p->g, l->out);
    if (next >= 0 && p->g->nodes[next].op == OP_FLATTEN &&
        cuda_flatten_copies(p, &p->g->nodes[next]))
        l->out = next;
}

static bool is_vector(const layer *l)
{
    return l->node->op == OP_LINEAR && l->conv.h * l->conv.w == 1 && l->conv.groups == 1;
}

/* The head: from the loss backward, as many linear layers in a row as are small enough together. */
static void find_head(program *p)
{
    int first = p->layer_count;
    head_shape h = {0};
    p->head = p->layer_count;
    if (p->c.loss != LOSS_CROSS_ENTROPY || p->layers[first - 1].out != p->g->output)
        return;
    for (int i = first - 1; i >= 0 && h.layers < HEAD_LAYERS_MAX && is_vector(&p->layers[i]); i--) {
        const layer *l = &p->layers[i];
        if (i + 1 < p->layer_count &&
            (graph_only_reader(p->g, l->out) < 0 || p->layers[i + 1].node->in[0] != l->out))
            break;
        memmove(&h.layer[1], &h.layer[0], (size_t)h.layers * sizeof *h.layer);
        h.layers++;
        h.layer[0] = (head_layer){.c = l->conv.c, .k = l->conv.k};
        if (!cuda_head_fits(&h))
            break;
        first = i;
    }
    if (first < p->layer_count && fuses(p, first, FUSING_HEAD))
        p->head = first;
}

enum { BESIDE_LEAST = 4 };

/* Models of few convolutions have no branch: most of these are fused, or too small for two kernels
 * to gain from each other. */
static void find_beside(program *p)
{
    for (int i = 0; i < p->g->node_count; i++)
        p->convolutions += p->g->nodes[i].op == OP_CONV2D;
    p->beside = !p->c.inference && p->convolutions >= BESIDE_LEAST && fuses(p, 0, FUSING_BESIDE);
}

/* A layer needs kernels, a window's place must fit winner's 16 bits, and our products count rows
 * in 31. */
static int check_node(const program *p, const graph_node *n, err *e)
{
    size_t batch = (size_t)p->c.batch;
    if (!cuda_ops[n->op].forward)
        return err_set(e, ERR_UNSUPPORTED, "%s: the GPU has no kernels for %s", n->name,
                       graph_op_name(n->op));
    if (n->op == OP_MAX_POOL &&
        (size_t)n->pool.kernel_h * (size_t)n->pool.kernel_w > POOL_WINDOW_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s: a window of %dx%d is too large for the GPU",
                       n->name, n->pool.kernel_h, n->pool.kernel_w);
    if (batch * shape_count(n->shape) >= (size_t)1 << 31)
        return err_set(e, ERR_LIMIT, "%s: %zu values in a batch are too many for the GPU", n->name,
                       batch * shape_count(n->shape));
    return 0;
}

/* Finds the layer that makes each tensor, the last layer that reads it, and the tensors through
 * which a gradient must flow. */
static void trace(program *p)
{
    for (int l = 0; l < p->layer_count; l++) {
        const layer *at = &p->layers[l];
        tensor *out = &p->tensors[at->out];
        out->made = out->last = l;
        out->needs = at->node->weight >= 0;
        for (int k = 0; k < at->node->in_count; k++) {
            p->tensors[at->node->in[k]].last = l;
            out->needs |= p->tensors[at->node->in[k]].needs;
        }
        if (at->also >= 0) {
            p->tensors[at->also].last = l;
            out->needs |= p->tensors[at->also].needs;
        }
    }
}

int cuda_plan_layers(program *p, err *e)
{
    const graph *g = p->g;
    size_t count = (size_t)g->node_count;
    cleanup_free bool *inside = calloc(count, sizeof *inside);
    p->layers = calloc(count, sizeof *p->layers);
    p->tensors = calloc(count, sizeof *p->tensors);
    p->turned = calloc((size_t)g->var_count + 1, sizeof *p->turned);
    if (!inside || !p->layers || !p->tensors || !p->turned)
        return err_set(e, ERR_NOMEM, "no memory for %zu layers", count);
    for (int i = 0; i < g->node_count; i++) {
        if (check_node(p, &g->nodes[i], e))
            return -1;
        if (inside[i])
            continue;
        layer *l = &p->layers[p->layer_count++];
        fuse(g, i, l);
        if (l->node->op == OP_CONV2D || l->node->op == OP_LINEAR)
            l->conv = conv_shape_of(p, l->node);
        take_pool(p, l);
        take_flatten(p, l);
        for (int j = i; j != l->out;) {
            j = graph_only_reader(g, j);
            inside[j] = true;
        }
    }
    find_head(p);
    find_beside(p);
    trace(p);
    return 0;
}

/* ---- weights in another order ---------------------------------------------------------------- */

static void turn(program *p, const graph_node *n)
{
    const graph_var *v = &p->g->vars[n->weight];
    turned t = {.offset = v->offset, .count = v->count, .outer = v->dims[0]};
    shape from;
    if (n->op == OP_CONV2D) {
        t.rows = v->dims[1];
        t.columns = v->dims[2] * v->dims[3];
    } else if (folds(p->g, n, &from)) {
        t.rows = from.c;
        t.columns = from.h * from.w;
    }
    if (t.rows > 1 && t.columns > 1)
        p->turned[p->turned_count++] = t;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void until(plan_item *item, int moment)
{
    if (item->bytes && item->last < moment)
        item->last = moment;
}

/* The head's kernels read and write all of its tensors, from its first layer's moment to that
 * layer's backward pass. */
static void set_head_lifetimes(const program *p, plan_item *items, const layer *l)
{
    int nodes = p->g->node_count,
        end = p->c.inference ? p->layer_count + 1 : 2 * p->layer_count - p->head;
    plan_item *of[] = {&items[l->out], &items[nodes + l->out], &items[l->node->in[0]],
                       &items[nodes + l->node->in[0]]};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        until(of[i], end);
        if (of[i]->bytes && of[i]->first > p->head)
            of[i]->first = p->head;
    }
}

/* Whether the gradients of a layer's weights may still be computed while the layer before it runs
 * backward. */
static bool lingers(const program *p, const layer *l)
{
    return p->beside && (l->node->op == OP_CONV2D || l->node->op == OP_LINEAR);
}

/* Moments: layer l runs forward at l, the loss at T, layer l backward at 2T - l. items[i] is node
 * i's value, items[nodes + i] its gradient. */
static void set_lifetimes(const program *p, plan_item *items)
{
    int T = p->layer_count, nodes = p->g->node_count;
    bool training = !p->c.inference;
    for (int l = 0; l < T; l++) {
        const layer *at = &p->layers[l];
        int out = at->out;
        size_t bytes =
            shape_count(p->g->nodes[out].shape) * (size_t)p->c.batch * element_bytes(p->t);
        int end = out == p->g->output ? T + 1 : l;
        if (training && at->relu)
            end = 2 * T - l;
        items[out] = (plan_item){.bytes = bytes, .first = l, .last = end};
        if (training && p->tensors[out].needs) {
            int begin = out == p->g->output ? T : 2 * T - p->tensors[out].last;
            items[nodes + out] =
                (plan_item){.bytes = bytes, .first = begin, .last = 2 * T - l + lingers(p, at)};
        }
        int moment =
            training && op_rows[at->node->op].reads_inputs ? 2 * T - l + lingers(p, at) : l;
        for (int k = 0; k < at->node->in_count; k++)
            until(&items[at->node->in[k]], moment);
        if (at->also >= 0)
            until(&items[at->also], l);
    }
    for (int l = p->head; l < T; l++)
        set_head_lifetimes(p, items, &p->layers[l]);
}

/* Sections of the one block, each on a 256-byte boundary. */
typedef struct section {
    void **to;
    size_t bytes;
} section;

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t rows_of(const program *p, const graph_node *n)
{
    return (size_t)p->c.batch * (size_t)n->shape.h * (size_t)n->shape.w;
}

/* Floats and doubles that our own kernels sum in. */
static void count_scratch(const program *p, size_t *sums, size_t *norm)
{
    *sums = *norm = 0;
    for (int l = 0; l < p->layer_count; l++) {
        const layer *at = &p->layers[l];
        const graph_node *n = at->node;
        if (n->op == OP_BATCH_NORM)
            *norm = most(*norm, cuda_norm_scratch((norm_shape){.n = p->c.batch,
                                                               .c = n->shape.c,
                                                               .hw = n->shape.h * n->shape.w}));
        if (n->op != OP_CONV2D && n->op != OP_LINEAR)
            continue;
        if (at->pooled) {
            *sums = most(*sums, p->c.inference ? 0 : cuda_conv_pool_scratch(at->conv));
            continue;
        }
        for (int pass = 0; pass < CONV_PASSES; pass++)
            *sums = most(*sums, cuda_conv_scratch(at->conv, (conv_pass)pass));
        *sums = most(*sums, cuda_column_scratch(rows_of(p, n), n->shape.c));
    }
}

/* What pooling and batch norm keep from forward to backward; sets the pointers when `at` is
 * given. */
static size_t place_extras(program *p, char *at)
{
    size_t bytes = 0;
    for (int l = 0; l < p->layer_count; l++) {
        const graph_node *n = p->layers[l].node;
        tensor *t = &p->tensors[p->layers[l].out];
        if (n->op == OP_BATCH_NORM) {
            t->saved = at ? (float *)(void *)(at + bytes) : NULL;
            bytes += cuda_aligned(2 * (size_t)n->shape.c * sizeof(float));
        } else if ((n->op == OP_MAX_POOL || p->layers[l].pooled) && !p->c.inference) {
            t->winner = at ? (uint16_t *)(void *)(at + bytes) : NULL;
            bytes += cuda_aligned(shape_count(p->g->nodes[p->layers[l].out].shape) *
                                  (size_t)p->c.batch * sizeof(uint16_t));
        }
    }
    return bytes;
}

static void lay_staging(program *p)
{
    size_t batch = (size_t)p->c.batch;
    shape in = p->g->nodes[0].shape;
    size_t outputs = (size_t)p->g->nodes[p->g->output].shape.c;
    staging *s = &p->in;
    s->args = 0;
    s->scale_shift = cuda_aligned(sizeof(step_args));
    s->labels = s->scale_shift + cuda_aligned(2 * (size_t)in.c * sizeof(float));
    s->keys = s->labels + cuda_aligned(batch * sizeof(int32_t));
    s->targets = s->keys + cuda_aligned(batch * sizeof(uint64_t));
    s->x = s->targets + cuda_aligned(p->c.loss == LOSS_MSE ? batch * outputs * sizeof(float) : 0);
    s->bytes = s->result = s->x + cuda_aligned(batch * shape_count(in) * sizeof(float));
}

static size_t values_of(const program *p, int var)
{
    return var < 0 ? 0 : p->g->vars[var].count;
}

/* What a layer needs by itself: its weights with all that training keeps beside them, and what it
 * makes of a batch, with the gradient. */
static size_t needs(const program *p, const layer *l)
{
    const graph_node *n = l->node;
    size_t copies = p->c.inference ? 1 : 2 + (size_t)optim_slots(&p->c.optim);
    size_t each = copies * sizeof(float) + (p->t == ELEMENT_BF16 ? 2 : 0);
    size_t made = shape_count(p->g->nodes[l->out].shape) * (size_t)p->c.batch * element_bytes(p->t);
    return (values_of(p, n->weight) + values_of(p, n->bias)) * each +
           made * (!p->c.inference && p->tensors[l->out].needs ? 2 : 1);
}

/* The layer that needs the most memory, to be named when memory is short. */
static const char *largest(const program *p)
{
    const layer *best = NULL;
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].node->op != OP_INPUT &&
            (!best || needs(p, &p->layers[i]) > needs(p, best)))
            best = &p->layers[i];
    return best ? best->node->name : "none";
}

static int place_sections(program *p, section *list, int count, err *e)
{
    char what[GRAPH_NAME_BYTES + 64];
    for (int i = 0; i < count; i++)
        p->memory_bytes += cuda_aligned(list[i].bytes);
    snprintf(what, sizeof what, "batch %d, layer %s the largest", p->c.batch, largest(p));
    void *memory;
    if (cuda_memory_take(p->d, p->dev, p->memory_bytes, what, &memory, e)) {
        p->memory_bytes = 0;
        return -1;
    }
    p->memory = memory;
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        *list[i].to = p->memory + at;
        at += cuda_aligned(list[i].bytes);
    }
    return p->d->zero(p->dev, p->memory, p->memory_bytes, e);
}

int cuda_plan_memory(program *p, err *e)
{
    const graph *g = p->g;
    size_t nodes = (size_t)g->node_count, params = g->floats[VAR_PARAM], sums, norm;
    cleanup_free plan_item *items = calloc(2 * nodes, sizeof *items);
    if (!items)
        return err_set(e, ERR_NOMEM, "no memory for the plan of %zu layers", nodes);
    set_lifetimes(p, items);
    size_t arena = plan_assign(items, (int)(2 * nodes));
    if (arena == SIZE_MAX)
        return err_set(e, ERR_NOMEM, "no memory for the plan of %zu layers", nodes);
    for (int l = 0; l < p->layer_count; l++)
        if (p->layers[l].node->op == OP_CONV2D || p->layers[l].node->op == OP_LINEAR)
            turn(p, p->layers[l].node);
    count_scratch(p, &sums, &norm);
    lay_staging(p);
    size_t block = params * sizeof(float), training = p->c.inference ? 0 : 1;
    size_t slots = training ? (size_t)optim_slots(&p->c.optim) : 0;
    size_t outputs = (size_t)g->nodes[g->output].shape.c, batch = (size_t)p->c.batch;
    void *extras, *to[13] = {0};
    section list[] = {
        {&to[0], block},
        {&to[1], training * block},
        {&to[2], slots * block},
        {&to[3], g->floats[VAR_BUFFER] * sizeof(float)},
        {&to[4], g->floats[VAR_COUNTER] * sizeof(int64_t)},
        {&to[5], p->t == ELEMENT_BF16 ? params * 2 : 0},
        {&to[6], most(arena, block)},
        {&to[7], sums * sizeof(float)},
        {&to[8], norm * sizeof(double)},
        {&to[9], batch * sizeof(step_result)},
        {&to[10], sizeof(step_result)},
        {&to[11], batch * outputs * sizeof(float)},
        {&to[12], p->in.bytes},
        {&extras, place_extras(p, NULL)},
    };
    if (place_sections(p, list, sizeof list / sizeof *list, e))
        return -1;
    p->params = to[0], p->grads = to[1], p->state = to[2], p->buffers = to[3], p->counters = to[4];
    p->weights16 = to[5], p->arena = to[6], p->sums = to[7], p->norm_sums = to[8];
    p->per_row = to[9], p->result = to[10], p->logits = to[11], p->in.device = to[12];
    place_extras(p, extras);
    for (size_t i = 0; i < nodes; i++) {
        if (items[i].bytes)
            p->tensors[i].y = p->arena + items[i].offset;
        if (items[nodes + i].bytes)
            p->tensors[i].dy = p->arena + items[nodes + i].offset;
    }
    void *host;
    if (p->d->alloc_host(p->dev, p->in.bytes + sizeof(step_result), &host, e))
        return -1;
    p->in.host = host;
    memset(p->in.host, 0, p->in.bytes);
    return 0;
}
