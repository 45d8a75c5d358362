/* shapes.c: the shape rules of the table of ops (ops.h): the checks of a layer's attributes and
 * inputs, and the shape of its result. */
#include <stdio.h>

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

/* ---- checks ---------------------------------------------------------------------------------- */

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

/* Is there one position of the window at least? */
static bool check_positions(graph *g, const char *what, window v, window h, shape in, shape out)
{
    if (out.h > 0 && out.w > 0)
        return true;
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
    return false;
}

/* ---- the rules ------------------------------------------------------------------------------- */

bool shape_same(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)what, (void)count;
    n->shape = g->nodes[x[0]].shape;
    return true;
}

static bool check_groups(graph *g, const char *what, const graph_node *n, shape in)
{
    int filters = n->shape.c, groups = n->conv.groups;
    if (filters < 1 || filters > GRAPH_DIM_MAX)
        graph_fail(g, ERR_INVALID, "%s: %d filters are not possible", what, filters);
    else if (groups < 1 || in.c % groups || filters % groups)
        graph_fail(g, ERR_INVALID,
                   "%s: %d groups do not divide its %d input channels and %d filters", what, groups,
                   in.c, filters);
    return g->error.code == ERR_NONE;
}

/* shape.c is the number of filters. */
bool shape_conv2d(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    shape in = g->nodes[x[0]].shape;
    window v = {n->conv.kernel_h, n->conv.stride_h, n->conv.pad_h, n->conv.dil_h},
           h = {n->conv.kernel_w, n->conv.stride_w, n->conv.pad_w, n->conv.dil_w};
    if (!check_image(g, what, in) || !check_window(g, what, v, h) || !check_groups(g, what, n, in))
        return false;
    n->shape =
        image(n->shape.c, window_positions(in.h, v, false), window_positions(in.w, h, false));
    return check_positions(g, what, v, h, in, n->shape) && check_size(g, what, n->shape);
}

/* shape.c is the number of output features. */
bool shape_linear(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    shape in = g->nodes[x[0]].shape;
    int features = n->shape.c;
    if (in.rank != 1)
        graph_fail(g, ERR_INVALID, "%s: its input is an image (%d, %d, %d); flatten it first", what,
                   in.c, in.h, in.w);
    else if (features < 1 || features > GRAPH_DIM_MAX)
        graph_fail(g, ERR_INVALID, "%s: %d output features are not possible", what, features);
    n->shape = flat(features);
    return g->error.code == ERR_NONE;
}

bool shape_batch_norm(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    n->shape = g->nodes[x[0]].shape;
    if (n->shape.rank != 3)
        graph_fail(g, ERR_INVALID,
                   "%s: needs an image (C, H, W), its input is flat; a conv2d before the "
                   "flatten, its kernel as large as the image, is what a linear behind is",
                   what);
    else if (!(n->bn.momentum > 0 && n->bn.momentum <= 1) || !(n->bn.eps > 0 && n->bn.eps <= 1))
        graph_fail(g, ERR_INVALID, "%s: eps %g and momentum %g must be in (0, 1]", what, n->bn.eps,
                   n->bn.momentum);
    return g->error.code == ERR_NONE;
}

bool shape_group_norm(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    int groups = n->gn.groups;
    n->shape = g->nodes[x[0]].shape;
    if (groups < 1 || n->shape.c % groups)
        graph_fail(g, ERR_INVALID, "%s: %d groups do not divide its %d channels", what, groups,
                   n->shape.c);
    else if (!(n->gn.eps > 0 && n->gn.eps <= 1))
        graph_fail(g, ERR_INVALID, "%s: eps %g must be in (0, 1]", what, n->gn.eps);
    return g->error.code == ERR_NONE;
}

bool shape_pool(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    shape in = g->nodes[x[0]].shape;
    window v = {n->pool.kernel_h, n->pool.stride_h, n->pool.pad_h, 1},
           h = {n->pool.kernel_w, n->pool.stride_w, n->pool.pad_w, 1};
    if (!check_image(g, what, in) || !check_window(g, what, v, h))
        return false;
    if (v.pad > v.kernel / 2 || h.pad > h.kernel / 2) {
        graph_fail(g, ERR_INVALID, "%s: padding %dx%d is more than half of kernel %dx%d", what,
                   v.pad, h.pad, v.kernel, h.kernel);
        return false;
    }
    bool up = n->pool.ceil_mode;
    n->shape = image(in.c, window_positions(in.h, v, up), window_positions(in.w, h, up));
    return check_positions(g, what, v, h, in, n->shape);
}

/* shape.h and shape.w are the result's. */
bool shape_adaptive_pool(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    int h = n->shape.h, w = n->shape.w;
    shape in = g->nodes[x[0]].shape;
    if (!check_image(g, what, in))
        return false;
    n->shape = image(in.c, h, w);
    if (h >= 1 && w >= 1 && h <= GRAPH_DIM_MAX && w <= GRAPH_DIM_MAX)
        return check_size(g, what, n->shape);
    graph_fail(g, ERR_INVALID, "%s: an output of %dx%d is not possible", what, h, w);
    return false;
}

bool shape_broadcasts(shape a, shape b)
{
    return shape_equal(a, b) || (a.rank == 3 && b.rank == 3 && a.c == b.c && b.h == 1 && b.w == 1);
}

/* The larger input comes first: graph_add and graph_mul see to that. */
bool shape_pair(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    shape a = g->nodes[x[0]].shape, b = g->nodes[x[1]].shape;
    n->shape = a;
    if (shape_broadcasts(a, b))
        return true;
    graph_fail(g, ERR_INVALID,
               "%s of '%s' (%d, %d, %d) and '%s' (%d, %d, %d): the shapes do not fit", what,
               g->nodes[x[0]].name, a.c, a.h, a.w, g->nodes[x[1]].name, b.c, b.h, b.w);
    return false;
}

bool shape_concat(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    shape out = g->nodes[x[0]].shape;
    for (int i = 1; i < count; i++) {
        shape s = g->nodes[x[i]].shape;
        if (s.rank != out.rank || s.h != out.h || s.w != out.w) {
            graph_fail(g, ERR_INVALID, "%s: '%s' is %dx%d, '%s' is %dx%d", what,
                       g->nodes[x[0]].name, out.h, out.w, g->nodes[x[i]].name, s.h, s.w);
            return false;
        }
        out.c += s.c; /* at most 64 * 2^20 */
    }
    n->shape = out;
    return check_size(g, what, out);
}

bool shape_flatten(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    size_t features = shape_count(g->nodes[x[0]].shape);
    if (features > GRAPH_DIM_MAX) {
        graph_fail(g, ERR_LIMIT, "%s of '%s': %zu features are too many", what, g->nodes[x[0]].name,
                   features);
        return false;
    }
    n->shape = flat((int)features);
    return true;
}

bool shape_dropout(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    n->shape = g->nodes[x[0]].shape;
    if (!(n->dropout.p >= 0 && n->dropout.p < 1))
        graph_fail(g, ERR_INVALID, "%s: probability %g is not in [0, 1)", what, n->dropout.p);
    else if (g->made[OP_DROPOUT] >= GRAPH_DROPOUTS_MAX)
        graph_fail(g, ERR_LIMIT, "%s: more than %d in one model", what, GRAPH_DROPOUTS_MAX);
    else if (shape_count(n->shape) > GRAPH_DROPOUT_MAX)
        graph_fail(g, ERR_LIMIT, "%s: its input has more than 2^26 numbers", what);
    return g->error.code == ERR_NONE;
}

bool shape_pad_channels(graph *g, const char *what, graph_node *n, const int *x, int count)
{
    (void)count;
    int before = n->pad.before, after = n->pad.after;
    if (!check_image(g, what, g->nodes[x[0]].shape))
        return false;
    n->shape = g->nodes[x[0]].shape;
    if (before < 0 || after < 0 || before > GRAPH_DIM_MAX || after > GRAPH_DIM_MAX) {
        graph_fail(g, ERR_INVALID, "%s: %d and %d channels are not possible", what, before, after);
        return false;
    }
    n->shape.c += before + after;
    return check_size(g, what, n->shape);
}
