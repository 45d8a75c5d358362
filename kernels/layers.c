/* layers.c: the builders of graph.h: each fills in a node's attributes; the op's row (ops.h) checks
 * them, and then the layer gets its parameters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph_build.h"

/* "conv2d 'conv2'", for messages about a layer that does not exist yet. */
typedef struct label {
    char text[GRAPH_NAME_BYTES + 32];
} label;

static label label_of(const graph *g, const graph_node *n, const char *name)
{
    const op_row *row = &op_rows[n->op];
    label l;
    if (!row->named)
        snprintf(l.text, sizeof l.text, "%s", graph_prefix(n));
    else if (name)
        snprintf(l.text, sizeof l.text, "%s '%s'", row->name, name);
    else
        snprintf(l.text, sizeof l.text, "%s '%s%d'", row->name, graph_prefix(n),
                 g->made[n->op] + 1);
    return l;
}

static bool check_name(graph *g, const char *op, const char *name)
{
    if (!name)
        return true;
    size_t n = 0;
    for (; name[n]; n++) {
        char c = name[n];
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
        if (!fine || n > GRAPH_NAME_BYTES - 33) {
            graph_fail(g, ERR_INVALID,
                       "%s '%.40s': a layer's name is at most %d letters, digits, '.', '_' and '-'",
                       op, name, GRAPH_NAME_BYTES - 32);
            return false;
        }
    }
    if (n == 0)
        graph_fail(g, ERR_INVALID, "%s: a layer's name is empty", op);
    /* What is named so is no weight to whoever exports or loads a model. */
    bool taken = strcmp(name, "optimizer") == 0 || strncmp(name, "optimizer.", 10) == 0;
    if (taken)
        graph_fail(g, ERR_INVALID, "%s '%.40s': that name is the optimizer's state's", op, name);
    return n > 0 && !taken;
}

/* Checks node n by its op's row and appends it. The new id, or GRAPH_FAILED. */
static int add_layer(graph *g, graph_node n, const char *name, const int *x, int count)
{
    const op_row *row = &op_rows[n.op];
    label l = label_of(g, &n, name);
    if (count < row->least || count > row->most)
        return graph_fail(g, ERR_LIMIT, "%s of %d tensors: %d to %d are possible", row->name, count,
                          row->least, row->most);
    if (!graph_check_inputs(g, l.text, x, count) || !check_name(g, row->name, name) ||
        !row->shape(g, l.text, &n, x, count))
        return GRAPH_FAILED;
    return graph_append(g, n, name, x, count);
}

static int either(int special, int general, int fallback)
{
    return special ? special : general ? general : fallback;
}

/* ---- layers with parameters ------------------------------------------------------------------ */

static void add_conv_vars(graph *g, int id, const conv2d_options *o)
{
    const graph_node *n = &g->nodes[id];
    int kh = n->conv.kernel_h, kw = n->conv.kernel_w;
    int channels = g->nodes[n->in[0]].shape.c / n->conv.groups;
    double fan_in = (double)channels * kh * kw;
    graph_var w = {.kind = VAR_PARAM, .rank = 4, .dims = {o->filters, channels, kh, kw}};
    switch (o->weights) {
    case WEIGHTS_DEFAULT:
        w.init = INIT_UNIFORM, w.init_a = 1 / sqrt(fan_in);
        break;
    case WEIGHTS_HE_FAN_OUT:
        w.init = INIT_NORMAL, w.init_a = sqrt(2.0 / ((double)o->filters * kh * kw));
        break;
    case WEIGHTS_HE_UNIFORM:
        w.init = INIT_UNIFORM, w.init_a = sqrt(6 / fan_in);
        break;
    case WEIGHTS_NORMAL:
        w.init = INIT_NORMAL, w.init_a = o->deviation;
        break;
    }
    int weight = graph_add_var(g, id, "weight", w), bias = -1;
    if (!o->no_bias)
        bias = graph_add_var(g, id, "bias",
                             (graph_var){.kind = VAR_PARAM,
                                         .rank = 1,
                                         .dims = {o->filters},
                                         .init = o->zero_bias ? INIT_CONSTANT : INIT_UNIFORM,
                                         .init_a = o->zero_bias ? 0 : 1 / sqrt(fan_in)});
    g->nodes[id].weight = weight;
    g->nodes[id].bias = bias;
}

int graph_conv2d(graph *g, int x, conv2d_options o)
{
    graph_node n = graph_node_of(OP_CONV2D, (shape){.c = o.filters});
    n.conv.kernel_h = either(o.kernel_h, o.kernel, 0);
    n.conv.kernel_w = either(o.kernel_w, o.kernel, 0);
    n.conv.stride_h = either(o.stride_h, o.stride, 1);
    n.conv.stride_w = either(o.stride_w, o.stride, 1);
    n.conv.pad_h = either(o.padding_h, o.padding, 0);
    n.conv.pad_w = either(o.padding_w, o.padding, 0);
    n.conv.dil_h = n.conv.dil_w = either(o.dilation, 0, 1);
    n.conv.groups = either(o.groups, 0, 1);
    int id = add_layer(g, n, o.name, &x, 1);
    if (id >= 0 && o.weights == WEIGHTS_NORMAL && !(o.deviation > 0))
        return graph_fail(g, ERR_INVALID, "conv2d '%s': normal weights need a deviation above 0",
                          g->nodes[id].name);
    if (id >= 0)
        add_conv_vars(g, id, &o);
    return id;
}

int graph_linear(graph *g, int x, int features, linear_options o)
{
    int id = add_layer(g, graph_node_of(OP_LINEAR, (shape){.c = features}), o.name, &x, 1);
    if (id < 0)
        return id;
    int in = g->nodes[x].shape.c;
    double bound = 1 / sqrt((double)in);
    int weight = graph_add_var(g, id, "weight",
                               (graph_var){.kind = VAR_PARAM,
                                           .rank = 2,
                                           .dims = {features, in},
                                           .init = o.deviation > 0 ? INIT_NORMAL : INIT_UNIFORM,
                                           .init_a = o.deviation > 0 ? o.deviation : bound});
    int bias = -1;
    if (!o.no_bias)
        bias = graph_add_var(g, id, "bias",
                             (graph_var){.kind = VAR_PARAM,
                                         .rank = 1,
                                         .dims = {features},
                                         .init = o.zero_bias ? INIT_CONSTANT : INIT_UNIFORM,
                                         .init_a = o.zero_bias ? 0 : bound});
    g->nodes[id].weight = weight;
    g->nodes[id].bias = bias;
    return id;
}

static int channel_var(graph *g, int id, const char *suffix, graph_kind kind, double begin)
{
    graph_var v = {.kind = kind, .rank = 1, .dims = {g->nodes[id].shape.c}, .init_a = begin};
    if (kind == VAR_COUNTER)
        v.rank = 0;
    return graph_add_var(g, id, suffix, v);
}

int graph_batch_norm(graph *g, int x, batch_norm_options o)
{
    graph_node n = graph_node_of(OP_BATCH_NORM, (shape){0});
    n.bn.eps = o.eps != 0 ? o.eps : 1e-5;
    n.bn.momentum = o.momentum != 0 ? o.momentum : 0.1;
    int id = add_layer(g, n, o.name, &x, 1);
    if (id < 0)
        return id;
    int weight = channel_var(g, id, "weight", VAR_PARAM, 1);
    int bias = channel_var(g, id, "bias", VAR_PARAM, 0);
    int mean = channel_var(g, id, "running_mean", VAR_BUFFER, 0);
    int var = channel_var(g, id, "running_var", VAR_BUFFER, 1);
    int batches = channel_var(g, id, "num_batches_tracked", VAR_COUNTER, 0);
    graph_node *made = &g->nodes[id];
    made->weight = weight, made->bias = bias, made->batches = batches;
    made->running_mean = mean, made->running_var = var;
    return id;
}

int graph_group_norm(graph *g, int x, int groups, group_norm_options o)
{
    graph_node n = graph_node_of(OP_GROUP_NORM, (shape){0});
    n.gn.groups = groups;
    n.gn.eps = o.eps != 0 ? o.eps : 1e-5;
    int id = add_layer(g, n, o.name, &x, 1);
    if (id < 0)
        return id;
    int weight = channel_var(g, id, "weight", VAR_PARAM, 1);
    int bias = channel_var(g, id, "bias", VAR_PARAM, 0);
    g->nodes[id].weight = weight;
    g->nodes[id].bias = bias;
    return id;
}

/* ---- layers without -------------------------------------------------------------------------- */

int graph_activation(graph *g, int x, graph_act kind, double slope)
{
    if ((unsigned)kind >= ACT_COUNT)
        return graph_fail(g, ERR_INVALID, "activation %d does not exist", (int)kind);
    graph_node n = graph_node_of(OP_ACTIVATION, (shape){0});
    n.act.kind = kind;
    n.act.slope = slope;
    return add_layer(g, n, NULL, &x, 1);
}

static int add_pool(graph *g, graph_op op, int x, pool_options o)
{
    graph_node n = graph_node_of(op, (shape){0});
    n.pool.kernel_h = either(o.kernel_h, o.kernel, 0);
    n.pool.kernel_w = either(o.kernel_w, o.kernel, 0);
    n.pool.stride_h = either(o.stride_h, o.stride, n.pool.kernel_h);
    n.pool.stride_w = either(o.stride_w, o.stride, n.pool.kernel_w);
    n.pool.pad_h = either(o.padding_h, o.padding, 0);
    n.pool.pad_w = either(o.padding_w, o.padding, 0);
    n.pool.ceil_mode = o.ceil_mode;
    n.pool.count_pad = !o.exclude_pad;
    return add_layer(g, n, o.name, &x, 1);
}

int graph_max_pool2d(graph *g, int x, pool_options o)
{
    return add_pool(g, OP_MAX_POOL, x, o);
}

int graph_avg_pool2d(graph *g, int x, pool_options o)
{
    return add_pool(g, OP_AVG_POOL, x, o);
}

int graph_adaptive_avg_pool2d(graph *g, int x, int out_h, int out_w)
{
    shape wanted = {.h = out_h, .w = out_w};
    return add_layer(g, graph_node_of(OP_ADAPTIVE_AVG_POOL, wanted), NULL, &x, 1);
}

int graph_adaptive_max_pool2d(graph *g, int x, int out_h, int out_w)
{
    shape wanted = {.h = out_h, .w = out_w};
    return add_layer(g, graph_node_of(OP_ADAPTIVE_MAX_POOL, wanted), NULL, &x, 1);
}

/* The larger input comes first in the node, so that backends see one order. */
static int add_pair(graph *g, graph_op op, int a, int b)
{
    shape sa = graph_shape(g, a), sb = graph_shape(g, b);
    bool turn = !shape_broadcasts(sa, sb) && shape_broadcasts(sb, sa);
    int x[2] = {turn ? b : a, turn ? a : b};
    return add_layer(g, graph_node_of(op, (shape){0}), NULL, x, 2);
}

int graph_add(graph *g, int a, int b)
{
    return add_pair(g, OP_ADD, a, b);
}

int graph_mul(graph *g, int a, int b)
{
    return add_pair(g, OP_MUL, a, b);
}

int graph_concat(graph *g, const int *x, int count)
{
    return add_layer(g, graph_node_of(OP_CONCAT, (shape){0}), NULL, x, count);
}

int graph_flatten(graph *g, int x)
{
    return add_layer(g, graph_node_of(OP_FLATTEN, (shape){0}), NULL, &x, 1);
}

int graph_dropout(graph *g, int x, double p)
{
    graph_node n = graph_node_of(OP_DROPOUT, (shape){0});
    n.dropout.p = p;
    n.dropout.layer = (uint32_t)g->made[OP_DROPOUT];
    return add_layer(g, n, NULL, &x, 1);
}

int graph_pad_channels(graph *g, int x, int before, int after)
{
    graph_node n = graph_node_of(OP_PAD_CHANNELS, (shape){0});
    n.pad.before = before;
    n.pad.after = after;
    return add_layer(g, n, NULL, &x, 1);
}
