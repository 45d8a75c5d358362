/* layers.c: the layers of graph.h: their checks, result shapes and parameters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph_build.h"

enum { KERNEL_MAX = 1024 }; /* of one extent; also bounds stride, padding and dilation */

static shape image(int c, int h, int w)
{
    return (shape){3, c, h, w};
}

static shape flat(int features)
{
    return (shape){1, features, 1, 1};
}

/* "conv2d 'conv2'", for messages about a layer that does not exist yet. */
typedef struct label {
    char text[GRAPH_NAME_BYTES + 32];
} label;

static label label_of(const graph *g, graph_op op, const char *prefix, const char *name)
{
    label l;
    if (name)
        snprintf(l.text, sizeof l.text, "%s '%s'", graph_op_name(op), name);
    else
        snprintf(l.text, sizeof l.text, "%s '%s%d'", graph_op_name(op), prefix, g->made[op] + 1);
    return l;
}

static bool check_name(graph *g, graph_op op, const char *name)
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
                       graph_op_name(op), name, GRAPH_NAME_BYTES - 32);
            return false;
        }
    }
    if (n == 0)
        graph_fail(g, ERR_INVALID, "%s: a layer's name is empty", graph_op_name(op));
    /* What is named so is no weight to whoever exports or loads a model. */
    bool taken = strcmp(name, "optimizer") == 0 || strncmp(name, "optimizer.", 10) == 0;
    if (taken)
        graph_fail(g, ERR_INVALID, "%s '%.40s': that name is the optimizer's state's",
                   graph_op_name(op), name);
    return n > 0 && !taken;
}

static bool check_image(graph *g, const char *what, shape s)
{
    if (s.rank == 3)
        return true;
    graph_fail(g, ERR_INVALID, "%s: needs an image (C, H, W), its input is flat with %d features",
               what, s.c);
    return false;
}

static bool check_size(graph *g, const char *what, shape s)
{
    if (s.c <= GRAPH_DIM_MAX && s.h <= GRAPH_DIM_MAX && s.w <= GRAPH_DIM_MAX &&
        shape_count(s) <= GRAPH_FLOATS_MAX)
        return true;
    graph_fail(g, ERR_LIMIT, "%s: a result of (%d, %d, %d) is too large", what, s.c, s.h, s.w);
    return false;
}

/* One extent of a sliding window. */
typedef struct window {
    int kernel, stride, pad, dil;
} window;

static bool check_window(graph *g, const char *what, window v, window h)
{
    const char *wrong = NULL;
    int value = 0;
    const window both[2] = {v, h};
    for (int i = 0; i < 2 && !wrong; i++) {
        window w = both[i];
        if (w.kernel < 1 || w.kernel > KERNEL_MAX)
            wrong = "kernel", value = w.kernel;
        else if (w.stride < 1 || w.stride > KERNEL_MAX)
            wrong = "stride", value = w.stride;
        else if (w.pad < 0 || w.pad > KERNEL_MAX)
            wrong = "padding", value = w.pad;
        else if (w.dil < 1 || w.dil > KERNEL_MAX)
            wrong = "dilation", value = w.dil;
    }
    if (wrong)
        graph_fail(g, ERR_INVALID, "%s: %s %d is not possible (at most %d)", what, wrong, value,
                   KERNEL_MAX);
    return !wrong;
}

/* Positions of the window along an extent; 0 when it does not fit once. `ceil_mode` is PyTorch's: a
 * last window, which may be the only one, hangs over the end by less than a stride, when it begins
 * inside the input or its left padding. */
static int window_positions(int extent, window w, bool ceil_mode)
{
    int reach = w.dil * (w.kernel - 1) + 1, room = extent + 2 * w.pad - reach;
    if (ceil_mode)
        room += w.stride - 1;
    if (room < 0)
        return 0;
    int count = room / w.stride + 1;
    if (ceil_mode && (count - 1) * w.stride >= extent + w.pad)
        count--;
    return count;
}

static void fail_window(graph *g, const char *what, window v, window h, shape in)
{
    char padding[64] = "", kernel[32];
    int kh = v.dil * (v.kernel - 1) + 1, kw = h.dil * (h.kernel - 1) + 1;
    if (kh == kw)
        snprintf(kernel, sizeof kernel, "%d", kh);
    else
        snprintf(kernel, sizeof kernel, "%dx%d", kh, kw);
    if (v.pad || h.pad)
        snprintf(padding, sizeof padding, " with padding %dx%d", v.pad, h.pad);
    graph_fail(g, ERR_INVALID, "%s: kernel %s%s is larger than its input %dx%d%s", what, kernel,
               v.dil > 1 || h.dil > 1 ? " (dilated)" : "", in.h, in.w, padding);
}

static int either(int special, int general, int fallback)
{
    return special ? special : general ? general : fallback;
}

/* ---- layers with parameters ------------------------------------------------------------------ */

static void add_conv_vars(graph *g, int id, const conv2d_options *o, int channels)
{
    const graph_node *n = &g->nodes[id];
    int kh = n->conv.kernel_h, kw = n->conv.kernel_w;
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

static bool check_conv(graph *g, const char *what, const conv2d_options *o, int groups, shape in)
{
    if (o->filters < 1 || o->filters > GRAPH_DIM_MAX) {
        graph_fail(g, ERR_INVALID, "%s: %d filters are not possible", what, o->filters);
    } else if (groups < 1 || in.c % groups || o->filters % groups) {
        graph_fail(g, ERR_INVALID,
                   "%s: %d groups do not divide its %d input channels and %d filters", what, groups,
                   in.c, o->filters);
    } else if (o->weights == WEIGHTS_NORMAL && !(o->deviation > 0)) {
        graph_fail(g, ERR_INVALID, "%s: normal weights need a deviation above 0", what);
    }
    return g->error.code == ERR_NONE;
}

int graph_conv2d(graph *g, int x, conv2d_options o)
{
    label l = label_of(g, OP_CONV2D, "conv", o.name);
    if (!graph_check_inputs(g, l.text, &x, 1) || !check_name(g, OP_CONV2D, o.name))
        return GRAPH_FAILED;
    shape in = g->nodes[x].shape;
    window v = {either(o.kernel_h, o.kernel, 0), either(o.stride_h, o.stride, 1),
                either(o.padding_h, o.padding, 0), either(o.dilation, 0, 1)};
    window h = {either(o.kernel_w, o.kernel, 0), either(o.stride_w, o.stride, 1),
                either(o.padding_w, o.padding, 0), either(o.dilation, 0, 1)};
    int groups = either(o.groups, 0, 1);
    if (!check_image(g, l.text, in) || !check_window(g, l.text, v, h) ||
        !check_conv(g, l.text, &o, groups, in))
        return GRAPH_FAILED;
    shape out =
        image(o.filters, window_positions(in.h, v, false), window_positions(in.w, h, false));
    if (out.h == 0 || out.w == 0)
        fail_window(g, l.text, v, h, in);
    if (g->error.code != ERR_NONE || !check_size(g, l.text, out))
        return GRAPH_FAILED;
    graph_node n = graph_node_of(OP_CONV2D, out);
    n.conv.kernel_h = v.kernel, n.conv.stride_h = v.stride, n.conv.pad_h = v.pad;
    n.conv.kernel_w = h.kernel, n.conv.stride_w = h.stride, n.conv.pad_w = h.pad;
    n.conv.dil_h = v.dil, n.conv.dil_w = h.dil, n.conv.groups = groups;
    int id = graph_append(g, n, o.name, &x, 1);
    if (id >= 0)
        add_conv_vars(g, id, &o, in.c / groups);
    return id;
}

int graph_linear(graph *g, int x, int features, linear_options o)
{
    label l = label_of(g, OP_LINEAR, "fc", o.name);
    if (!graph_check_inputs(g, l.text, &x, 1) || !check_name(g, OP_LINEAR, o.name))
        return GRAPH_FAILED;
    shape in = g->nodes[x].shape;
    if (in.rank != 1)
        return graph_fail(g, ERR_INVALID,
                          "%s: its input is an image (%d, %d, %d); flatten it first", l.text, in.c,
                          in.h, in.w);
    if (features < 1 || features > GRAPH_DIM_MAX)
        return graph_fail(g, ERR_INVALID, "%s: %d output features are not possible", l.text,
                          features);
    int id = graph_append(g, graph_node_of(OP_LINEAR, flat(features)), o.name, &x, 1);
    if (id < 0)
        return id;
    double bound = 1 / sqrt((double)in.c);
    int weight = graph_add_var(g, id, "weight",
                               (graph_var){.kind = VAR_PARAM,
                                           .rank = 2,
                                           .dims = {features, in.c},
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
    label l = label_of(g, OP_BATCH_NORM, "bn", o.name);
    if (!graph_check_inputs(g, l.text, &x, 1) || !check_name(g, OP_BATCH_NORM, o.name))
        return GRAPH_FAILED;
    if (g->nodes[x].shape.rank != 3)
        return graph_fail(g, ERR_INVALID,
                          "%s: needs an image (C, H, W), its input is flat; a conv2d before the "
                          "flatten, its kernel as large as the image, is what a linear behind is",
                          l.text);
    graph_node n = graph_node_of(OP_BATCH_NORM, g->nodes[x].shape);
    n.bn.eps = o.eps != 0 ? o.eps : 1e-5;
    n.bn.momentum = o.momentum != 0 ? o.momentum : 0.1;
    if (!(n.bn.momentum > 0 && n.bn.momentum <= 1) || !(n.bn.eps > 0 && n.bn.eps <= 1))
        return graph_fail(g, ERR_INVALID, "%s: eps %g and momentum %g must be in (0, 1]", l.text,
                          n.bn.eps, n.bn.momentum);
    int id = graph_append(g, n, o.name, &x, 1);
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

/* ---- layers without -------------------------------------------------------------------------- */

int graph_activation(graph *g, int x, graph_act kind, double slope)
{
    if ((unsigned)kind >= ACT_COUNT)
        return graph_fail(g, ERR_INVALID, "activation %d does not exist", (int)kind);
    if (!graph_check_inputs(g, graph_act_name(kind), &x, 1))
        return GRAPH_FAILED;
    graph_node n = graph_node_of(OP_ACTIVATION, g->nodes[x].shape);
    n.act.kind = kind;
    n.act.slope = slope;
    return graph_append(g, n, NULL, &x, 1);
}

static int add_pool(graph *g, graph_op op, int x, pool_options o)
{
    label l = label_of(g, op, graph_op_name(op), o.name);
    if (!graph_check_inputs(g, l.text, &x, 1) || !check_name(g, op, o.name) ||
        !check_image(g, l.text, g->nodes[x].shape))
        return GRAPH_FAILED;
    shape in = g->nodes[x].shape;
    window v = {.kernel = either(o.kernel_h, o.kernel, 0), .dil = 1};
    window h = {.kernel = either(o.kernel_w, o.kernel, 0), .dil = 1};
    v.stride = either(o.stride_h, o.stride, v.kernel), v.pad = either(o.padding_h, o.padding, 0);
    h.stride = either(o.stride_w, o.stride, h.kernel), h.pad = either(o.padding_w, o.padding, 0);
    if (!check_window(g, l.text, v, h))
        return GRAPH_FAILED;
    if (v.pad > v.kernel / 2 || h.pad > h.kernel / 2)
        return graph_fail(g, ERR_INVALID, "%s: padding %dx%d is more than half of kernel %dx%d",
                          l.text, v.pad, h.pad, v.kernel, h.kernel);
    shape out =
        image(in.c, window_positions(in.h, v, o.ceil_mode), window_positions(in.w, h, o.ceil_mode));
    if (out.h == 0 || out.w == 0) {
        fail_window(g, l.text, v, h, in);
        return GRAPH_FAILED;
    }
    graph_node n = graph_node_of(op, out);
    n.pool.kernel_h = v.kernel, n.pool.stride_h = v.stride, n.pool.pad_h = v.pad;
    n.pool.kernel_w = h.kernel, n.pool.stride_w = h.stride, n.pool.pad_w = h.pad;
    n.pool.count_pad = !o.exclude_pad;
    return graph_append(g, n, o.name, &x, 1);
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
    const char *what = graph_op_name(OP_ADAPTIVE_AVG_POOL);
    if (!graph_check_inputs(g, what, &x, 1) || !check_image(g, what, g->nodes[x].shape))
        return GRAPH_FAILED;
    shape out = image(g->nodes[x].shape.c, out_h, out_w);
    if (out_h < 1 || out_w < 1 || out_h > GRAPH_DIM_MAX || out_w > GRAPH_DIM_MAX)
        return graph_fail(g, ERR_INVALID, "%s: an output of %dx%d is not possible", what, out_h,
                          out_w);
    if (!check_size(g, what, out))
        return GRAPH_FAILED;
    return graph_append(g, graph_node_of(OP_ADAPTIVE_AVG_POOL, out), NULL, &x, 1);
}

static bool broadcasts(shape a, shape b)
{
    return shape_equal(a, b) || (a.rank == 3 && b.rank == 3 && a.c == b.c && b.h == 1 && b.w == 1);
}

/* The larger input comes first in the node, so that backends see one order. */
static int add_pairwise(graph *g, graph_op op, int a, int b)
{
    const char *what = graph_op_name(op);
    int x[2] = {a, b};
    if (!graph_check_inputs(g, what, x, 2))
        return GRAPH_FAILED;
    shape sa = g->nodes[a].shape, sb = g->nodes[b].shape;
    if (!broadcasts(sa, sb)) {
        x[0] = b, x[1] = a;
        if (!broadcasts(sb, sa))
            return graph_fail(
                g, ERR_INVALID,
                "%s of '%s' (%d, %d, %d) and '%s' (%d, %d, %d): the shapes do not fit", what,
                g->nodes[a].name, sa.c, sa.h, sa.w, g->nodes[b].name, sb.c, sb.h, sb.w);
    }
    return graph_append(g, graph_node_of(op, g->nodes[x[0]].shape), NULL, x, 2);
}

int graph_add(graph *g, int a, int b)
{
    return add_pairwise(g, OP_ADD, a, b);
}

int graph_mul(graph *g, int a, int b)
{
    return add_pairwise(g, OP_MUL, a, b);
}

int graph_concat(graph *g, const int *x, int count)
{
    const char *what = graph_op_name(OP_CONCAT);
    if (count < 1 || count > GRAPH_INPUTS_MAX)
        return graph_fail(g, ERR_LIMIT, "%s of %d tensors: 1 to %d are possible", what, count,
                          GRAPH_INPUTS_MAX);
    if (!graph_check_inputs(g, what, x, count))
        return GRAPH_FAILED;
    shape out = g->nodes[x[0]].shape;
    for (int i = 1; i < count; i++) {
        shape s = g->nodes[x[i]].shape;
        if (s.rank != out.rank || s.h != out.h || s.w != out.w)
            return graph_fail(g, ERR_INVALID, "%s: '%s' is %dx%d, '%s' is %dx%d", what,
                              g->nodes[x[0]].name, out.h, out.w, g->nodes[x[i]].name, s.h, s.w);
        out.c += s.c; /* at most 64 * 2^20 */
    }
    if (!check_size(g, what, out))
        return GRAPH_FAILED;
    return graph_append(g, graph_node_of(OP_CONCAT, out), NULL, x, count);
}

int graph_flatten(graph *g, int x)
{
    const char *what = graph_op_name(OP_FLATTEN);
    if (!graph_check_inputs(g, what, &x, 1))
        return GRAPH_FAILED;
    size_t count = shape_count(g->nodes[x].shape);
    if (count > GRAPH_DIM_MAX)
        return graph_fail(g, ERR_LIMIT, "%s of '%s': %zu features are too many", what,
                          g->nodes[x].name, count);
    return graph_append(g, graph_node_of(OP_FLATTEN, flat((int)count)), NULL, &x, 1);
}

int graph_dropout(graph *g, int x, double p)
{
    const char *what = graph_op_name(OP_DROPOUT);
    if (!graph_check_inputs(g, what, &x, 1))
        return GRAPH_FAILED;
    if (!(p >= 0 && p < 1))
        return graph_fail(g, ERR_INVALID, "%s: probability %g is not in [0, 1)", what, p);
    if (g->made[OP_DROPOUT] >= GRAPH_DROPOUTS_MAX)
        return graph_fail(g, ERR_LIMIT, "%s: more than %d in one model", what, GRAPH_DROPOUTS_MAX);
    if (shape_count(g->nodes[x].shape) > GRAPH_DROPOUT_MAX)
        return graph_fail(g, ERR_LIMIT, "%s: its input has more than 2^26 numbers", what);
    graph_node n = graph_node_of(OP_DROPOUT, g->nodes[x].shape);
    n.dropout.p = p;
    n.dropout.layer = (uint32_t)g->made[OP_DROPOUT];
    return graph_append(g, n, NULL, &x, 1);
}

int graph_pad_channels(graph *g, int x, int before, int after)
{
    const char *what = graph_op_name(OP_PAD_CHANNELS);
    if (!graph_check_inputs(g, what, &x, 1) || !check_image(g, what, g->nodes[x].shape))
        return GRAPH_FAILED;
    shape out = g->nodes[x].shape;
    if (before < 0 || after < 0 || before > GRAPH_DIM_MAX || after > GRAPH_DIM_MAX)
        return graph_fail(g, ERR_INVALID, "%s: %d and %d channels are not possible", what, before,
                          after);
    out.c += before + after;
    if (!check_size(g, what, out))
        return GRAPH_FAILED;
    graph_node n = graph_node_of(OP_PAD_CHANNELS, out);
    n.pad.before = before;
    n.pad.after = after;
    return graph_append(g, n, NULL, &x, 1);
}
