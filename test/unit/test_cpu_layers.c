/* test_cpu_layers.c: what the fast CPU backend does differently from layer to layer: fused pooling,
 * winner lists, Winograd, phases of strided gradients, gradients that add up, short batches. Each
 * case is a small model, compared with the reference on every instruction set of this machine.
 *
 * The ops one by one: test_graph_ops.c, which `ops_SET` here runs once for each set. */
#include <libgen.h>
#include <limits.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "kernels/engine.h"
#include "test.h"

enum { BATCH = 9, OUTPUTS = 3, CHANNELS_MAX = 24 };

typedef struct model {
    const char *name, *choice; /* what one line of the algorithm table must say; NULL: anything */
    shape input;
    int (*build)(graph *g, int x);
} model;

static int conv(graph *g, int x, conv2d_options o)
{
    return graph_conv2d(g, x, o);
}

static int act(graph *g, graph_act kind, int x)
{
    return graph_activation(g, x, kind, 0);
}

static int pool(graph *g, int x)
{
    return graph_max_pool2d(g, x, (pool_options){.kernel = 2});
}

/* Two pooled stages, so that the second has an input gradient. */
static int two_stages(graph *g, int x, int first, int second, int kernel, int pad)
{
    x = pool(g, graph_relu(
                    g, conv(g, x,
                            (conv2d_options){.filters = first, .kernel = kernel, .padding = pad})));
    return graph_relu(
        g,
        pool(g, conv(g, x, (conv2d_options){.filters = second, .kernel = kernel, .padding = pad})));
}

#define STAGES(label, first, second, kernel, pad)                                                  \
    static int label(graph *g, int x)                                                              \
    {                                                                                              \
        return two_stages(g, x, first, second, kernel, pad);                                       \
    }
STAGES(stages_6_16_5, 6, 16, 5, 2)
STAGES(stages_8_20_3, 8, 20, 3, 1)
STAGES(stages_5_3_4, 5, 3, 4, 1)
STAGES(stages_16_33_3, 16, 33, 3, 1)
STAGES(stages_24_70_2, 24, 70, 2, 0)
STAGES(stages_12_7_7, 12, 7, 7, 3)
STAGES(stages_40_9_5, 40, 9, 5, 2)
STAGES(stages_20_34_5, 20, 34, 5, 2)
STAGES(stages_33_16_5, 33, 16, 5, 0)
STAGES(stages_1_1_1, 1, 1, 1, 0)
STAGES(stages_2_8_2, 2, 8, 2, 1)
STAGES(stages_3_4_3, 3, 4, 3, 1)
STAGES(stages_7_2_5, 7, 2, 5, 2)

/* A layer in the middle, with a convolution in front so that it has an input gradient. */
static int between(graph *g, int x, int channels, conv2d_options o)
{
    return conv(g, conv(g, x, (conv2d_options){.filters = channels, .kernel = 1}), o);
}
#define BETWEEN(label, channels, ...)                                                              \
    static int label(graph *g, int x)                                                              \
    {                                                                                              \
        return between(g, x, channels, (conv2d_options){__VA_ARGS__});                             \
    }
BETWEEN(wide, 32, .filters = 32, .kernel = 3, .padding = 1)
BETWEEN(from_16, 16, .filters = 66, .kernel = 3, .padding = 1)
BETWEEN(wide_bare, 33, .filters = 47, .kernel = 3)
BETWEEN(wide_border, 40, .filters = 36, .kernel = 3, .padding = 2, .no_bias = true)
BETWEEN(four, 32, .filters = 32, .kernel = 4, .padding = 1)
BETWEEN(four_bare, 33, .filters = 47, .kernel = 4)
BETWEEN(four_border, 40, .filters = 36, .kernel = 4, .padding = 3, .no_bias = true)
BETWEEN(five, 32, .filters = 32, .kernel = 5, .padding = 2)
BETWEEN(five_bare, 33, .filters = 47, .kernel = 5)
BETWEEN(five_border, 40, .filters = 36, .kernel = 5, .padding = 4, .no_bias = true)
BETWEEN(stride2, 17, .filters = 18, .kernel = 3, .stride = 2, .padding = 1)
BETWEEN(stride2_one, 20, .filters = 30, .kernel = 1, .stride = 2)
BETWEEN(stride3, 5, .filters = 9, .kernel = 5, .stride = 3, .padding = 2)
BETWEEN(stride_2_1, 8, .filters = 8, .kernel = 4, .stride_h = 2, .stride_w = 1, .padding = 1)
BETWEEN(stride5, 6, .filters = 7, .kernel = 3, .stride = 5, .padding = 1)
BETWEEN(dilated, 10, .filters = 12, .kernel = 3, .dilation = 3, .padding = 3)
BETWEEN(dilated_strided, 10, .filters = 12, .kernel = 3, .dilation = 2, .padding = 2, .stride = 2)
BETWEEN(seven, 9, .filters = 21, .kernel = 7, .stride = 2, .padding = 3)
BETWEEN(small, 20, .filters = 37, .kernel = 3, .padding = 1)
BETWEEN(small_whole, 32, .filters = 40, .kernel = 3, .padding = 1)
BETWEEN(small_dilated, 18, .filters = 33, .kernel = 3, .dilation = 2, .padding = 2)
BETWEEN(padding_alone, 16, .filters = 50, .kernel = 2, .stride = 3, .padding = 2)
BETWEEN(large_one, 21, .filters = 45, .kernel = 1)
BETWEEN(grouped, 16, .filters = 24, .kernel = 3, .groups = 4, .padding = 1)
BETWEEN(grouped_odd, 15, .filters = 25, .kernel = 3, .groups = 5, .padding = 2, .stride = 2,
        .no_bias = true)
BETWEEN(grouped_wide, 64, .filters = 64, .kernel = 3, .groups = 16, .padding = 1, .stride_w = 2)
BETWEEN(grouped_dilated, 32, .filters = 16, .kernel = 3, .groups = 2, .padding = 1, .dilation = 2)
static int grouped_again(graph *g, int x)
{
    return graph_conv2d(g, x,
                        (conv2d_options){.filters = 24, .kernel = 3, .groups = 3, .padding = 1});
}
BETWEEN(grouped_points, 24, .filters = 48, .kernel = 1, .groups = 3)

BETWEEN(grouped_halves, 24, .filters = 12, .kernel = 3, .groups = 12, .padding = 1)
BETWEEN(depth3, 20, .filters = 20, .kernel = 3, .groups = 20, .padding = 1)
BETWEEN(depth3_down, 33, .filters = 33, .kernel = 3, .groups = 33, .padding = 1, .stride = 2,
        .no_bias = true)
BETWEEN(depth5, 48, .filters = 48, .kernel = 5, .groups = 48, .padding = 2)
BETWEEN(depth5_down, 24, .filters = 24, .kernel = 5, .groups = 24, .padding = 2, .stride = 2)
BETWEEN(depth_dilated, 9, .filters = 9, .kernel = 3, .groups = 9, .padding = 1, .dilation = 3,
        .stride_w = 2)
BETWEEN(depth7, 16, .filters = 16, .kernel = 7, .groups = 16, .padding = 3)
BETWEEN(depth_twice, 8, .filters = 16, .kernel = 3, .groups = 8)

static int depth_relu(graph *g, int x)
{
    return graph_relu(g, depth5_down(g, x));
}

/* Every window but the fused one, on a tensor that four layers read. */
static int windows(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 19, .kernel = 3, .padding = 1});
    int a = graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2, .padding = 1});
    int b = graph_max_pool2d(
        g, x, (pool_options){.kernel_h = 4, .kernel_w = 2, .stride = 2, .padding = 1});
    int c = graph_avg_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2, .padding = 1});
    int d = graph_avg_pool2d(g, x, (pool_options){.kernel = 2, .stride = 2});
    int parts[4] = {graph_adaptive_avg_pool2d(g, a, 3, 2), graph_adaptive_avg_pool2d(g, b, 3, 2),
                    graph_adaptive_avg_pool2d(g, c, 3, 2), graph_adaptive_avg_pool2d(g, d, 3, 2)};
    return graph_adaptive_avg_pool2d(g, graph_concat(g, parts, 4), 4, 7);
}

/* Stems whose pooling's windows overlap and reach into the border; of a strided one ReLU comes
 * after the pooling, and the filters of another are of more pieces than are listed. */
static int stem(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 21, .kernel = 3, .padding = 1}));
    x = graph_max_pool2d(g, x,
                         (pool_options){.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true});
    return conv(g, x, (conv2d_options){.filters = 9, .kernel = 3, .padding = 2});
}
static int stem_strided(graph *g, int x)
{
    x = conv(g, x,
             (conv2d_options){.filters = 8, .kernel_h = 5, .kernel_w = 4, .stride_h = 2,
                              .stride_w = 1, .padding = 2});
    return graph_relu(
        g, graph_max_pool2d(
               g, x, (pool_options){.kernel_h = 2, .kernel_w = 3, .stride_h = 1, .stride_w = 3}));
}
static int stem_large(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 9, .kernel = 63, .padding = 31}));
    return graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 1, .padding = 1});
}

/* MobileNet's block: a gate over what it also multiplies, and a sum around it all. */
static int excite(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 12, .kernel = 1});
    int y =
        act(g, ACT_HARDSWISH,
            graph_conv2d(g, x,
                         (conv2d_options){.filters = 12, .kernel = 3, .groups = 12, .padding = 1}));
    int s =
        conv(g, graph_adaptive_avg_pool2d(g, y, 1, 1), (conv2d_options){.filters = 5, .kernel = 1});
    s = act(g, ACT_HARDSIGMOID,
            conv(g, graph_relu(g, s), (conv2d_options){.filters = 12, .kernel = 1}));
    return graph_add(g, x, graph_mul(g, y, s));
}

static int smooth(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 11, .kernel = 3});
    int parts[5] = {act(g, ACT_SIGMOID, x), act(g, ACT_TANH, x), act(g, ACT_GELU, x),
                    act(g, ACT_SILU, x), x};
    return graph_concat(g, parts, 5);
}

static int wide_relu(graph *g, int x)
{
    return graph_relu(g, wide(g, x));
}

/* Two readers add to the gradient of what the groups read. */
static int grouped_relu(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 24, .kernel = 3, .padding = 1});
    int a = graph_relu(g, grouped_again(g, x)), b = grouped_again(g, x);
    return graph_add(g, a, b);
}

static int deep(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 133, .kernel = 1});
    return graph_relu(g, conv(g, x, (conv2d_options){.filters = 250, .kernel = 3, .padding = 1}));
}

static int deep_four(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 133, .kernel = 1});
    return conv(g, x, (conv2d_options){.filters = 250, .kernel = 4, .padding = 2});
}

static int four_relu(graph *g, int x)
{
    return graph_relu(g, four(g, x));
}

static int deep_five(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 133, .kernel = 1});
    return graph_relu(g, conv(g, x, (conv2d_options){.filters = 250, .kernel = 5, .padding = 2}));
}

static int five_relu(graph *g, int x)
{
    return graph_relu(g, five(g, x));
}

/* Branches of several kernels, one behind the other in a concat's memory. */
static int inception(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 24, .kernel = 1}));
    int parts[3] = {conv(g, x, (conv2d_options){.filters = 16, .kernel = 1}),
                    conv(g, x, (conv2d_options){.filters = 48, .kernel = 3, .padding = 1}),
                    conv(g, x, (conv2d_options){.filters = 24, .kernel = 5, .padding = 2})};
    x = graph_batch_norm(g, graph_concat(g, parts, 3), (batch_norm_options){0});
    return conv(g, graph_relu(g, x), (conv2d_options){.filters = 8, .kernel = 1});
}

static int small_relu(graph *g, int x)
{
    return graph_relu(g, small_whole(g, x));
}

/* A matrix product whose result has a border, and two readers that add their gradients. */
static int fire(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 12, .kernel = 3, .padding = 1});
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 8, .kernel = 1}));
    int parts[2] = {graph_relu(g, conv(g, x, (conv2d_options){.filters = 9, .kernel = 1})),
                    conv(g, x, (conv2d_options){.filters = 10, .kernel = 3, .padding = 1})};
    return graph_concat(g, parts, 2);
}

/* Dropout of an image, of a row of features and of columns, and an activation of columns. */
static int dropped(graph *g, int x)
{
    x = graph_dropout(g, conv(g, x, (conv2d_options){.filters = 11, .kernel = 3}), 0.3);
    x = graph_dropout(g, graph_flatten(g, x), 0.2);
    x = act(g, ACT_HARDSWISH, graph_linear(g, x, 37, (linear_options){0}));
    return graph_dropout(g, act(g, ACT_TANH, x), 0.5);
}

/* More outputs and inputs than a linear layer's blocks hold. */
static int wide_linear(graph *g, int x)
{
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 150, (linear_options){0}));
    return graph_relu(g, graph_linear(g, x, 131, (linear_options){0}));
}

/* So many weights that backward takes a few outputs at a time: of an image's features, which leaves
 * the update to others, and of columns. */
static int large_linear(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 7, .kernel = 3}));
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 760, (linear_options){0}));
    return graph_relu(g, graph_linear(g, x, 700, (linear_options){0}));
}

/* VGG's way: a plain convolution before a pooled one, whose scatter leaves its border in
 * between. */
static int vgg(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 12, .kernel = 3, .padding = 1}));
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 9, .kernel = 3, .padding = 1}));
    return graph_relu(
        g, pool(g, conv(g, x, (conv2d_options){.filters = 10, .kernel = 5, .padding = 2})));
}

/* One tensor read by four layers of different kinds: their gradients add up. */
static int shared(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 32, .kernel = 3, .padding = 1}));
    int a = conv(g, x, (conv2d_options){.filters = 32, .kernel = 3, .padding = 1});
    int b = conv(g, x, (conv2d_options){.filters = 32, .kernel = 1});
    int c = graph_batch_norm(g, x, (batch_norm_options){0});
    int d = conv(g, x, (conv2d_options){.filters = 32, .kernel = 5, .padding = 2});
    int sum = graph_relu(g, graph_add(g, graph_add(g, a, b), graph_add(g, c, graph_relu(g, d))));
    int down = conv(g, x, (conv2d_options){.filters = 32, .kernel = 3, .stride = 2, .padding = 1});
    int low = conv(g, sum, (conv2d_options){.filters = 32, .kernel = 1, .stride = 2});
    int winners = pool(
        g, graph_relu(g, conv(g, x, (conv2d_options){.filters = 32, .kernel = 3, .padding = 1})));
    return graph_add(g, graph_add(g, low, down), winners);
}

static int residual(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 16, .kernel = 3, .padding = 1}));
    int y = graph_batch_norm(
        g, conv(g, x, (conv2d_options){.filters = 16, .kernel = 3, .padding = 1, .no_bias = true}),
        (batch_norm_options){0});
    y = graph_relu(g, graph_add(g, graph_add(g, x, x), y));
    return graph_concat(g, (int[]){x, y}, 2);
}

/* The other summand is there before the norm, which takes the sum and ReLU with it; then a norm
 * whose input is also what is added to it. */
static int normed_residual(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 20, .kernel = 3, .padding = 1});
    int y = graph_batch_norm(
        g, conv(g, x, (conv2d_options){.filters = 20, .kernel = 3, .padding = 1, .no_bias = true}),
        (batch_norm_options){0});
    y = graph_relu(g, graph_add(g, x, y));
    return graph_add(g, graph_batch_norm(g, y, (batch_norm_options){0}), y);
}

/* A norm whose result is one pixel of each channel, while the sum is an image. */
static int context(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 20, .kernel = 3, .padding = 1}));
    int y = graph_batch_norm(g, graph_adaptive_avg_pool2d(g, x, 1, 1), (batch_norm_options){0});
    return graph_relu(g, graph_add(g, x, y));
}

/* Samples of 1024 floats, read by a strided layer and by others that would have them without
 * gaps. */
static int apart(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 16, .kernel = 1}));
    int a = conv(g, x, (conv2d_options){.filters = 16, .kernel = 3, .stride = 2, .padding = 1});
    int b = pool(g, graph_relu(g, conv(g, x, (conv2d_options){.filters = 16, .kernel = 1})));
    return graph_batch_norm(g, graph_add(g, a, b), (batch_norm_options){0});
}

/* Layers that could write their input's gradient over the input, did not a ReLU tell by it what it
 * let through, or another layer read it; and norms one after the other, whose gradients lie in one
 * place. */
static int over_values(graph *g, int x)
{
    x = graph_relu(g, conv(g, x, (conv2d_options){.filters = 16, .kernel = 3, .padding = 1}));
    x = conv(g, x, (conv2d_options){.filters = 24, .kernel = 1, .no_bias = true});
    x = graph_batch_norm(g, graph_batch_norm(g, x, (batch_norm_options){0}),
                         (batch_norm_options){0});
    x = graph_relu(g, x);
    int a = conv(g, x, (conv2d_options){.filters = 24, .kernel = 1, .no_bias = true});
    int b = conv(
        g, x,
        (conv2d_options){.filters = 24, .kernel = 3, .groups = 24, .padding = 1, .no_bias = true});
    x = graph_relu(g, graph_batch_norm(g, graph_add(g, a, b), (batch_norm_options){0}));
    return conv(g, x, (conv2d_options){.filters = 16, .kernel = 1});
}

/* DenseNet's way: each stage reads all before it; the parts are made by two kinds of convolution,
 * one with ReLU, and one part is read elsewhere too. */
static int dense(graph *g, int x)
{
    int parts[5] = {
        graph_relu(g, conv(g, x, (conv2d_options){.filters = 32, .kernel = 3, .padding = 1}))};
    for (int i = 1; i < 5; i++) {
        int y = i == 1 ? parts[0] : graph_concat(g, parts, i);
        y = graph_relu(g, graph_batch_norm(g, y, (batch_norm_options){0}));
        parts[i] =
            i == 3
                ? graph_relu(g, conv(g, y, (conv2d_options){.filters = 8, .kernel = 1}))
                : conv(g, y,
                       (conv2d_options){.filters = 32, .kernel = 3, .padding = 1, .no_bias = true});
    }
    int all =
        graph_relu(g, graph_batch_norm(g, graph_concat(g, parts, 5), (batch_norm_options){0}));
    return graph_concat(
        g,
        (int[]){graph_adaptive_avg_pool2d(g, all, 3, 3),
                graph_max_pool2d(g, parts[2], (pool_options){.kernel = 2, .stride = 2})},
        2);
}

/* DenseNet's bottlenecks: 1x1 convolutions that apply the norm over a growing concat, whose first
 * part is copied; one norm without ReLU, one convolution with it, one norm over the same that is
 * applied by itself. */
static int bottlenecks(graph *g, int x)
{
    int parts[5] = {pool(
        g, graph_relu(g, conv(g, x, (conv2d_options){.filters = 24, .kernel = 3, .padding = 1})))};
    for (int i = 1; i < 5; i++) {
        int y = graph_batch_norm(g, i == 1 ? parts[0] : graph_concat(g, parts, i),
                                 (batch_norm_options){0});
        y = i == 2 ? y : graph_relu(g, y);
        if (i != 3)
            y = conv(g, y, (conv2d_options){.filters = 20, .kernel = 1});
        parts[i] =
            conv(g, i == 4 ? graph_relu(g, y) : y,
                 (conv2d_options){.filters = 32, .kernel = 3, .padding = 1, .no_bias = true});
    }
    int all =
        graph_relu(g, graph_batch_norm(g, graph_concat(g, parts, 5), (batch_norm_options){0}));
    return graph_avg_pool2d(g, conv(g, all, (conv2d_options){.filters = 9, .kernel = 1}),
                            (pool_options){.kernel = 2});
}

/* What a convolution applies a norm to, where that has a border that another reader wants, channels
 * that fill no vector, or no gradient. */
static int norm_of_bordered(graph *g, int x)
{
    x = pool(g, conv(g, x, (conv2d_options){.filters = 11, .kernel = 3, .padding = 1}));
    int a = conv(g, graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){0})),
                 (conv2d_options){.filters = 13, .kernel = 1});
    return graph_add(g, a, conv(g, x, (conv2d_options){.filters = 13, .kernel = 5, .padding = 2}));
}
static int norm_of_input(graph *g, int x)
{
    x = graph_batch_norm(g, pool(g, x), (batch_norm_options){0});
    return conv(g, graph_relu(g, x), (conv2d_options){.filters = 10, .kernel = 1});
}

/* Norms that evaluation takes into the weights before them: of every kind of convolution, with and
 * without ReLU, and with a border around what they write. No bias: before a norm, its gradient is
 * rounding alone. */
static int normed(graph *g, int x, conv2d_options o, bool relu)
{
    o.no_bias = true;
    x = graph_batch_norm(g, conv(g, x, o), (batch_norm_options){0});
    return relu ? graph_relu(g, x) : x;
}

static int norms(graph *g, int x)
{
    x = normed(g, x, (conv2d_options){.filters = 12, .kernel = 5, .padding = 2}, true);
    x = normed(g, x, (conv2d_options){.filters = 12, .kernel = 3, .padding = 1}, true);
    x = normed(g, x, (conv2d_options){.filters = 12, .kernel = 3, .padding = 1, .groups = 12},
               false);
    x = normed(g, x, (conv2d_options){.filters = 34, .kernel = 1}, true);
    x = normed(g, x, (conv2d_options){.filters = 36, .kernel = 3, .padding = 1}, true);
    return normed(g, x, (conv2d_options){.filters = 9, .kernel = 3, .stride = 2, .padding = 1},
                  false);
}

/* Norms that apply the activation after them: of each kind, between bordered, strided and gapless
 * maps; one activation is read twice, one norm is, and one norm's activation is none of those. */
static int norms_with_acts(graph *g, int x)
{
    x = act(g, ACT_HARDSWISH,
            normed(g, x, (conv2d_options){.filters = 20, .kernel = 3, .padding = 1}, false));
    int y = act(g, ACT_RELU6,
                normed(g, x, (conv2d_options){.filters = 36, .kernel = 3, .padding = 1}, false));
    y = graph_activation(
        g,
        normed(g, y, (conv2d_options){.filters = 36, .kernel = 3, .padding = 1, .groups = 36},
               false),
        ACT_LEAKY_RELU, 0.1);
    y = act(g, ACT_HARDSIGMOID, normed(g, y, (conv2d_options){.filters = 20, .kernel = 1}, false));
    y = normed(g, graph_add(g, x, y),
               (conv2d_options){.filters = 20, .kernel = 3, .stride = 2, .padding = 1}, false);
    y = graph_add(g, y, act(g, ACT_HARDSWISH, y));
    return act(g, ACT_SILU, normed(g, y, (conv2d_options){.filters = 9, .kernel = 1}, false));
}

/* Ops by the reference's loops, between images with and without borders and padding lanes, behind a
 * concat, and of columns. */
static int by_reference(graph *g, int x)
{
    x = conv(g, x, (conv2d_options){.filters = 16, .kernel = 3, .padding = 1});
    x = graph_relu(g, graph_group_norm(g, x, 4, (group_norm_options){0}));
    int y = conv(g, x, (conv2d_options){.filters = 32, .kernel = 3, .padding = 1});
    y = graph_group_norm(g, y, 2, (group_norm_options){0});
    int z = conv(g, graph_concat(g, (int[]){x, y}, 2), (conv2d_options){.filters = 7, .kernel = 1});
    int parts[2] = {
        graph_adaptive_max_pool2d(g, graph_group_norm(g, z, 7, (group_norm_options){0}), 4, 3),
        graph_adaptive_max_pool2d(g, y, 4, 3)};
    x = graph_flatten(g, graph_concat(g, parts, 2));
    x = graph_linear(g, x, 37, (linear_options){0});
    return act(g, ACT_HARDSWISH, graph_group_norm(g, x, 1, (group_norm_options){0}));
}

static int input_twice(graph *g, int x)
{
    int a = conv(g, x, (conv2d_options){.filters = 3, .kernel = 3, .padding = 1});
    return graph_add(g, x, a);
}

static const model models[] = {
    {"LeNet's stages", "direct+pool", {3, 1, 28, 28}, stages_6_16_5},
    {"8 and 20 filters", "direct+pool", {3, 3, 32, 32}, stages_8_20_3},
    {"odd extents", "direct+pool", {3, 2, 15, 19}, stages_5_3_4},
    {"16 and 33 filters", "direct+pool", {3, 4, 13, 11}, stages_16_33_3},
    {"more than 64 filters", "direct+pool", {3, 5, 12, 9}, stages_24_70_2},
    {"7x7", "direct+pool", {3, 3, 17, 16}, stages_12_7_7},
    {"wide runs", "direct+pool", {3, 3, 14, 14}, stages_40_9_5},
    {"a grey row of 13", "direct+pool", {3, 1, 10, 13}, stages_6_16_5},
    {"grey rows of 24", "direct+pool", {3, 1, 9, 24}, stages_6_16_5},
    {"grey rows of 26, 3x3", "direct+pool", {3, 1, 12, 26}, stages_8_20_3},
    {"grey rows of 28, 3x3", "direct+pool", {3, 1, 10, 29}, stages_8_20_3},
    {"4 channels, an odd cell", "direct+pool", {3, 4, 9, 23}, stages_6_16_5},
    {"2 channels, several copies", "direct+pool", {3, 2, 43, 77}, stages_5_3_4},
    {"4 channels, several copies", "direct+pool", {3, 4, 31, 46}, stages_8_20_3},
    {"2 filters, 40 cells", "direct+pool", {3, 1, 7, 80}, stages_2_8_2},
    {"3 filters, 17 cells", "direct+pool", {3, 3, 9, 34}, stages_3_4_3},
    {"7 filters, two halves", "direct+pool", {3, 2, 8, 37}, stages_7_2_5},
    {"too wide to copy", "direct+pool", {3, 4, 8, 310}, stages_5_3_4},
    {"one of each", "direct+pool", {3, 1, 6, 5}, stages_1_1_1},
    {"winograd", "winograd4", {3, 3, 12, 12}, wide},
    {"winograd, odd", "winograd4", {3, 3, 11, 9}, wide_bare},
    {"winograd, border 2", "winograd4", {3, 3, 5, 6}, wide_border},
    {"winograd, relu", "winograd4+relu", {3, 3, 10, 13}, wide_relu},
    {"winograd from 16 channels", "winograd4", {3, 3, 9, 8}, from_16},
    {"winograd, weights made on the way", "winograd4-fleeting+relu", {3, 3, 5, 4}, deep},
    {"winograd 4x4", "winograd3", {3, 3, 12, 12}, four},
    {"winograd 4x4, odd", "winograd3", {3, 3, 11, 9}, four_bare},
    {"winograd 4x4, border 3", "winograd3", {3, 3, 5, 6}, four_border},
    {"winograd 4x4, relu", "winograd3+relu", {3, 3, 10, 13}, four_relu},
    {"winograd 4x4, weights made on the way", "winograd3-fleeting", {3, 3, 5, 4}, deep_four},
    {"winograd 5x5", "winograd2", {3, 3, 12, 12}, five},
    {"winograd 5x5, odd", "winograd2", {3, 3, 11, 9}, five_bare},
    {"winograd 5x5, border 4", "winograd2", {3, 3, 5, 6}, five_border},
    {"winograd 5x5, relu", "winograd2+relu", {3, 3, 10, 13}, five_relu},
    {"winograd 5x5, weights made on the way", "winograd2-fleeting+relu", {3, 3, 5, 4}, deep_five},
    {"winograd 5x5, pooled", "winograd2+pool", {3, 3, 16, 12}, stages_20_34_5},
    {"winograd 5x5, pooled, odd", "winograd2+pool", {3, 20, 29, 27}, stages_33_16_5},
    {"winograd of 3x3 and 5x5 in a concat", "winograd2", {3, 3, 9, 8}, inception},
    {"stride 2", "matmul-points", {3, 3, 13, 14}, stride2},
    {"stride 2, 1x1", "matmul-points", {3, 3, 9, 9}, stride2_one},
    {"3x3 on 2x2", "matmul-points", {3, 3, 2, 2}, small},
    {"3x3 on 2x3, whole vectors", "matmul-points+relu", {3, 3, 2, 3}, small_relu},
    {"3x3 on 1x1", "matmul-points", {3, 3, 1, 1}, small_whole},
    {"dilated on 3x3", "matmul-points", {3, 3, 3, 3}, small_dilated},
    {"windows of padding alone", "matmul-points", {3, 3, 4, 5}, padding_alone},
    {"1x1", "matmul", {3, 3, 23, 25}, large_one},
    {"fire", "matmul+relu", {3, 3, 9, 10}, fire},
    {"fire on 4x4", "matmul-points+relu", {3, 3, 4, 4}, fire},
    {"dropout", "vector", {3, 3, 9, 8}, dropped},
    {"wide linear layers", "gemm+relu", {3, 3, 5, 5}, wide_linear},
    {"large linear layers", "gemm+relu", {3, 3, 12, 12}, large_linear},
    {"stride 3", NULL, {3, 3, 16, 14}, stride3},
    {"stride 2 by 1", NULL, {3, 3, 10, 11}, stride_2_1},
    {"stride 5", NULL, {3, 3, 17, 18}, stride5},
    {"dilation 3", NULL, {3, 3, 12, 10}, dilated},
    {"dilation and stride", NULL, {3, 3, 12, 11}, dilated_strided},
    {"7x7 at stride 2", NULL, {3, 3, 19, 18}, seven},
    {"groups", "groups", {3, 3, 8, 9}, grouped},
    {"groups of 3 and 5", "groups", {3, 3, 7, 9}, grouped_odd},
    {"groups of 4, stride 1 by 2", "groups", {3, 3, 6, 11}, grouped_wide},
    {"groups, dilated", "groups", {3, 3, 7, 8}, grouped_dilated},
    {"groups, 1x1", "groups", {3, 3, 5, 8}, grouped_points},
    {"two channels a filter", "groups", {3, 3, 8, 7}, grouped_halves},
    {"groups, relu", "groups+relu", {3, 3, 8, 9}, grouped_relu},
    {"depthwise 3x3", "depthwise", {3, 3, 11, 9}, depth3},
    {"depthwise 3x3 at stride 2", "depthwise", {3, 3, 12, 13}, depth3_down},
    {"depthwise 5x5", "depthwise", {3, 3, 9, 12}, depth5},
    {"depthwise 5x5 on 2x2", "depthwise", {3, 3, 2, 2}, depth5},
    {"depthwise 5x5 on 1x1", "depthwise", {3, 3, 1, 1}, depth5},
    {"depthwise 5x5 at stride 2", "depthwise+relu", {3, 3, 10, 7}, depth_relu},
    {"depthwise, dilated", "depthwise", {3, 3, 10, 11}, depth_dilated},
    {"depthwise 7x7", "depthwise", {3, 3, 9, 12}, depth7},
    {"two filters a channel", "groups", {3, 3, 8, 7}, depth_twice},
    {"windows", "window", {3, 3, 13, 14}, windows},
    {"squeeze and excite", "gate", {3, 3, 9, 8}, excite},
    {"smooth activations", "vector", {3, 3, 9, 8}, smooth},
    {"a stem's windows", "direct+windows", {3, 3, 20, 17}, stem},
    {"a strided stem's windows", "direct+windows", {3, 2, 19, 22}, stem_strided},
    {"a stem of large filters", "direct+windows", {3, 4, 6, 5}, stem_large},
    {"VGG's order", "direct+pool", {3, 3, 12, 14}, vgg},
    {"one tensor, many readers", "winograd4", {3, 3, 10, 10}, shared},
    {"residual", "fused+relu", {3, 3, 9, 8}, residual},
    {"norm with a residual", "fused+add+relu", {3, 3, 8, 7}, normed_residual},
    {"norm of one pixel in a sum", "loops", {3, 3, 8, 7}, context},
    {"samples apart", "matmul-points", {3, 3, 8, 8}, apart},
    {"bottlenecks", "entry+relu", {3, 3, 16, 14}, bottlenecks},
    {"norm of what has a border", "entry+relu", {3, 3, 17, 18}, norm_of_bordered},
    {"norm of what has no gradient", "entry+relu", {3, 8, 12, 12}, norm_of_input},
    {"what lies over values, and what may not", "depthwise", {3, 3, 9, 10}, over_values},
    {"dense block", "joined", {3, 3, 7, 6}, dense},
    {"norms with activations", "fused+act", {3, 3, 12, 9}, norms_with_acts},
    {"norms in the weights", "winograd4", {3, 3, 9, 8}, norms},
    {"ops of the reference", "reference", {3, 3, 9, 8}, by_reference},
    {"the input itself", NULL, {3, 3, 8, 7}, input_twice},
};

static int build(graph *g, int x, int outputs, void *user)
{
    const model *m = user;
    return graph_linear(g, graph_flatten(g, m->build(g, x)), outputs, (linear_options){0});
}

static engine *compile_config(const model *m, engine_config c)
{
    err e = ERR_INIT;
    engine *out = NULL;
    c.build = build, c.user = (void *)(uintptr_t)m;
    c.input = m->input, c.outputs = OUTPUTS, c.batch = BATCH, c.seed = 5;
    if (engine_compile(&c, &out, &e) != 0)
        test_fail(__FILE__, __LINE__, "%s on %s: %s", m->name, c.backend, e.message);
    return out;
}

static engine *compile_with(const model *m, const char *on, int threads,
                            backend_precision precision, optim o)
{
    return compile_config(
        m, (engine_config){.backend = on, .threads = threads, .precision = precision, .optim = o});
}

/* For inference alone. */
static engine *compile_lean(const model *m, int threads, backend_precision precision)
{
    return compile_config(
        m, (engine_config){
               .backend = "cpu", .threads = threads, .precision = precision, .inference = true});
}

static engine *compile_in(const model *m, const char *on, int threads, backend_precision precision)
{
    return compile_with(m, on, threads, precision,
                        (optim){.kind = OPTIM_SGD, .momentum = 0.9});
}

static engine *compile(const model *m, const char *on, int threads)
{
    return compile_in(m, on, threads, PRECISION_FP32);
}

static void compare(const model *m, const char *what, int n, const float *got, const float *want,
                    size_t count, double tolerance)
{
    double apart = 0, scale = 1e-6;
    for (size_t i = 0; i < count; i++) {
        apart += pow((double)got[i] - (double)want[i], 2);
        scale += pow((double)want[i], 2);
    }
    if (!(sqrt(apart / scale) <= tolerance))
        test_fail(__FILE__, __LINE__, "%s, %d samples, %s: %.2g from the reference, relative",
                  m->name, n, what, sqrt(apart / scale));
}

/* Relative to the reference: of the loss and logits, and of each parameter's gradient. */
typedef struct bounds {
    double logits, gradients;
} bounds;

static void compare_logits(const model *m, const char *what, engine *fast, const engine_batch *b,
                           const float *want, double tolerance)
{
    err e = ERR_INIT;
    float got[BATCH * OUTPUTS];
    CHECK_OK(engine_infer(fast, b, got, &e), e);
    compare(m, what, b->n, got, want, (size_t)b->n * OUTPUTS, tolerance);
}

/* Of one number of threads. */
typedef struct pair {
    engine *fast, *lean; /* the latter compiled for inference alone */
} pair;

static const int thread_counts[] = {1, 3};
enum { THREAD_COUNTS = sizeof thread_counts / sizeof *thread_counts };

static void compare_step(const model *m, const pair *p, engine *truth, const engine_batch *b,
                         const engine_result *want, const float *logits, bounds within)
{
    err e = ERR_INIT;
    engine_result r;
    size_t count, vars;
    CHECK_OK(engine_gradients(p->fast, b, &r, &e), e);
    CHECK_NEAR(r.loss, want->loss, within.logits * fmax(1, want->loss));
    /* few samples may all be another thread's */
    CHECK(b->n < BATCH || (r.convert_s > 0 && r.convert_s < 60));
    const float *g = engine_grads(p->fast, &count, &e), *w = engine_grads(truth, &count, &e);
    const engine_var *layout = engine_layout(truth, &vars);
    for (size_t i = 0; i < vars; i++)
        if (layout[i].kind == VAR_PARAM)
            compare(m, layout[i].name, b->n, g + layout[i].offset, w + layout[i].offset,
                    layout[i].count, within.gradients);
    compare_logits(m, "logits", p->fast, b, logits, within.logits);
    CHECK_OK(engine_import_weights(p->lean, engine_floats(p->fast, &e),
                                   engine_counters(p->fast, &e), &e),
             e);
    compare_logits(m, "logits of inference alone", p->lean, b, logits, within.logits);
    CHECK_OK(engine_update(p->fast, 0.01, &e), e);
}

/* The reference, which takes most of the time, computes a step once for all numbers of threads. */
static void compare_steps(const model *m, const pair pairs[THREAD_COUNTS], engine *truth,
                          const engine_batch *b, bounds within)
{
    err e = ERR_INIT;
    engine_result want;
    float logits[BATCH * OUTPUTS];
    CHECK_OK(engine_gradients(truth, b, &want, &e), e);
    CHECK_OK(engine_infer(truth, b, logits, &e), e);
    for (int i = 0; i < THREAD_COUNTS; i++)
        compare_step(m, &pairs[i], truth, b, &want, logits, within);
    CHECK_OK(engine_update(truth, 0.01, &e), e);
}

static bool says(engine *m, const char *choice)
{
    char line[64];
    snprintf(line, sizeof line, " %s\n", choice);
    return strstr(engine_choices(m), line) != NULL;
}

static void check_model(const model *m, backend_precision precision, bounds within)
{
    engine *truth = compile(m, "reference", 1);
    pair pairs[THREAD_COUNTS];
    for (int i = 0; i < THREAD_COUNTS; i++) {
        pairs[i].fast = compile_in(m, "cpu", thread_counts[i], precision);
        pairs[i].lean = compile_lean(m, thread_counts[i], precision);
        CHECK(!m->choice || says(pairs[i].fast, m->choice));
    }
    size_t each = shape_count(m->input);
    /* At 16 bytes behind a multiple of 64, which is all that a chunk in LMDB's map promises. */
    char *room = aligned_alloc(64, (BATCH * each * sizeof(float) + 16 + 63) / 64 * 64);
    uint8_t *x = (uint8_t *)room + 16;
    float *floats = (float *)(void *)(room + 16);
    CHECK(room);
    int32_t labels[BATCH];
    rng r;
    rng_init(&r, 3, RNG_TEST, 0, 0);
    float scale[CHANNELS_MAX], shift[CHANNELS_MAX];
    CHECK(m->input.c <= CHANNELS_MAX);
    for (int c = 0; c < CHANNELS_MAX; c++)
        scale[c] = 0.01f + 0.001f * (float)c, shift[c] = -1.0f - 0.1f * (float)c;
    for (int step = 0; step < 4; step++) {
        int n = step == 1 ? 1 : step == 2 ? BATCH - 2 : BATCH;
        bool bytes = step < 3; /* the last batch is of float samples */
        for (size_t i = 0; i < BATCH * each; i++) {
            uint8_t value = (uint8_t)rng_u32(&r);
            if (bytes)
                x[i] = value;
            else
                floats[i] = (float)value;
        }
        for (int i = 0; i < BATCH; i++)
            labels[i] = (int32_t)(rng_u32(&r) % OUTPUTS);
        if (n == 1 &&
            (m->build == bottlenecks || m->build == norm_of_bordered || m->build == norm_of_input ||
             m->build == shared || m->build == normed_residual || m->build == norms ||
             m->build == norms_with_acts || m->build == dense || m->build == apart ||
             m->build == inception))
            continue; /* batch norm over few values amplifies rounding beyond any tolerance */
        compare_steps(m, pairs, truth,
                      &(engine_batch){.n = n,
                                      .type = bytes ? INPUT_UINT8 : INPUT_FLOAT,
                                      .x = room + 16,
                                      .scale = scale,
                                      .shift = shift,
                                      .labels = labels},
                      within);
    }
    free(room);
    for (int i = 0; i < THREAD_COUNTS; i++) {
        engine_free(pairs[i].fast);
        engine_free(pairs[i].lean);
    }
    engine_free(truth);
}

static void use_set(const char *set)
{
    err e = ERR_INIT;
    setenv("KUBEML_CPU", set, 1);
    if (!backend_find("cpu", &e))
        test_skip(e.message);
}

static void check_models(const char *set)
{
    use_set(set);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_model(&models[i], PRECISION_FP32, (bounds){2e-5, 1e-4});
}

#define ON_EVERY_SET(X) X(avx512) X(avx2) X(generic)
#define LAYERS(set)                                                                                \
    TEST_LIMIT(layers_##set, 240)                                                                  \
    {                                                                                              \
        check_models(#set);                                                                        \
    }
ON_EVERY_SET(LAYERS)

/* ---- without training ------------------------------------------------------------------------ */

/* Where nothing is trained, samples go through most of this a few at a time, and what a layer hands
 * to the next lies in a thread's own room: maps with borders, gapless ones, some with padding
 * lanes, a sum that waits long for its other part, a concat that its parts are written into. */
static int in_rooms(graph *g, int x)
{
    x = normed(g, x, (conv2d_options){.filters = 5, .kernel = 5, .padding = 2}, true);
    x = normed(g, x, (conv2d_options){.filters = 36, .kernel = 3, .padding = 1}, true);
    int y = normed(g, x, (conv2d_options){.filters = 36, .kernel = 3, .padding = 1}, true);
    y = normed(g, y, (conv2d_options){.filters = 36, .kernel = 3, .padding = 1, .groups = 36},
               false);
    x = graph_relu(
        g, graph_add(g, normed(g, y, (conv2d_options){.filters = 36, .kernel = 1}, false), x));
    int parts[] = {x, normed(g, x, (conv2d_options){.filters = 8, .kernel = 1}, true),
                   normed(g, x, (conv2d_options){.filters = 40, .kernel = 3, .padding = 1}, false)};
    x = graph_batch_norm(g, graph_concat(g, parts, 3), (batch_norm_options){0});
    x = normed(g, graph_relu(g, x), (conv2d_options){.filters = 16, .kernel = 1}, true);
    return graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 4});
}

/* The weights and running statistics of one that has trained a batch; full and short batches. */
static void check_rooms(const char *set, int threads)
{
    const model m = {"in rooms", NULL, {3, 3, 33, 30}, in_rooms};
    use_set(set);
    engine *truth = compile(&m, "reference", 1), *fast = compile(&m, "cpu", threads),
           *lean = compile_lean(&m, threads, PRECISION_FP32);
    size_t count = BATCH * shape_count(m.input);
    float *x = malloc(count * sizeof *x);
    int32_t labels[BATCH] = {0, 1, 2};
    float want[BATCH * OUTPUTS];
    err e = ERR_INIT;
    rng r;
    engine_result result;
    CHECK(x);
    rng_init(&r, 3, RNG_TEST, 0, 0);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)rng_uniform(&r) - 0.5f;
    engine_batch b = {.n = BATCH, .type = INPUT_FLOAT, .x = x, .labels = labels};
    CHECK_OK(engine_train(truth, &b, 0.01, &result, &e), e);
    engine *const both[] = {fast, lean};
    for (int i = 0; i < 2; i++)
        CHECK_OK(engine_import_weights(both[i], engine_floats(truth, &e),
                                       engine_counters(truth, &e), &e),
                 e);
    for (b.n = 1; b.n <= BATCH; b.n += BATCH / 2) {
        CHECK_OK(engine_infer(truth, &b, want, &e), e);
        compare_logits(&m, "logits", fast, &b, want, 2e-5);
        compare_logits(&m, "logits of inference alone", lean, &b, want, 2e-5);
    }
    free(x);
    engine_free(truth);
    engine_free(fast);
    engine_free(lean);
}

#define ROOMS(set)                                                                                 \
    TEST_LIMIT(rooms_##set, 60)                                                                    \
    {                                                                                              \
        check_rooms(#set, 1);                                                                      \
        check_rooms(#set, 3);                                                                      \
    }
ON_EVERY_SET(ROOMS)

static int convolutions(graph *g, int x, bool norms)
{
    for (int i = 0; i < 6; i++) {
        x = graph_conv2d(g, x, (conv2d_options){.filters = 16, .kernel = 3, .padding = 1});
        x = graph_relu(g, norms ? graph_batch_norm(g, x, (batch_norm_options){0}) : x);
    }
    return graph_max_pool2d(g, x, (pool_options){.kernel = 8});
}

static int bare_convolutions(graph *g, int x)
{
    return convolutions(g, x, false);
}

static int normed_convolutions(graph *g, int x)
{
    return convolutions(g, x, true);
}

/* In inference they are in the convolutions' weights, whose own results are never computed. */
TEST(norms_in_weights_take_no_memory)
{
    const model bare = {"bare", NULL, {3, 3, 64, 64}, bare_convolutions},
                normed = {"normed", NULL, {3, 3, 64, 64}, normed_convolutions};
    use_set("generic");
    engine *a = compile_lean(&bare, 1, PRECISION_FP32),
           *b = compile_lean(&normed, 1, PRECISION_FP32);
    size_t plane = (size_t)BATCH * 16 * 64 * 64 * sizeof(float);
    if (engine_memory(b) > engine_memory(a) + plane / 2)
        test_fail(__FILE__, __LINE__, "%zu bytes, %zu without norms, and a result has %zu",
                  engine_memory(b), engine_memory(a), plane);
    engine_free(a);
    engine_free(b);
}

/* ---- updates --------------------------------------------------------------------------------- */

static const struct recipe {
    const char *name;
    optim o;
} recipes[] = {
    {"SGD", {.kind = OPTIM_SGD, .weight_decay = 0.1}},
    {"momentum", {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 0.1}},
    {"dampening", {.kind = OPTIM_SGD, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}},
    {"Nesterov", {.kind = OPTIM_SGD, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1}},
    {"Adam",
     {.kind = OPTIM_ADAM, .beta1 = 0.9, .beta2 = 0.99, .eps = 0.01, .weight_decay = 0.1}},
    {"AdamW",
     {.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.99, .eps = 0.01, .weight_decay = 0.1}},
};

/* Gradients of step `step`, the same for each engine that asks. */
static void draw_gradients(engine *m, int step)
{
    err e = ERR_INIT;
    size_t count, vars;
    float *g = engine_grads(m, &count, &e);
    const engine_var *layout = engine_layout(m, &vars);
    rng r;
    rng_init(&r, 3, RNG_TEST, 1, (uint64_t)step);
    for (size_t i = 0; i < vars; i++)
        for (size_t j = 0; layout[i].kind == VAR_PARAM && j < layout[i].count; j++)
            g[layout[i].offset + j] = (float)rng_uniform(&r) - 0.5f;
}

/* From the same weights and gradients: parameters and the optimizer's own state, after each step. */
static void check_updates(const struct recipe *recipe, int threads)
{
    err e = ERR_INIT;
    model m = {recipe->name, NULL, {3, 3, 9, 9}, fire};
    engine *fast = compile_with(&m, "cpu", threads, PRECISION_FP32, recipe->o);
    engine *truth = compile_with(&m, "reference", 1, PRECISION_FP32, recipe->o);
    size_t vars;
    const engine_var *layout = engine_layout(truth, &vars);
    for (int step = 0; step < 4; step++) {
        draw_gradients(fast, step);
        draw_gradients(truth, step);
        CHECK_OK(engine_update(fast, 0.1, &e), e);
        CHECK_OK(engine_update(truth, 0.1, &e), e);
        const float *got = engine_floats(fast, &e), *want = engine_floats(truth, &e);
        for (size_t i = 0; i < vars; i++)
            if (layout[i].kind == VAR_PARAM || layout[i].kind == VAR_STATE)
                compare(&m, layout[i].name, BATCH, got + layout[i].offset, want + layout[i].offset,
                        layout[i].count, 1e-6);
    }
    engine_free(fast);
    engine_free(truth);
}

/* A whole step is its halves: the same bits, also where a layer updates its own weights. */
static void check_whole_steps(const struct recipe *recipe, int threads)
{
    err e = ERR_INIT;
    model m = {recipe->name, NULL, {3, 3, 12, 12}, large_linear};
    engine *whole = compile_with(&m, "cpu", threads, PRECISION_FP32, recipe->o);
    engine *halves = compile_with(&m, "cpu", threads, PRECISION_FP32, recipe->o);
    float x[BATCH * 3 * 12 * 12];
    int32_t labels[BATCH];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = sinf((float)i);
    for (int i = 0; i < BATCH; i++)
        labels[i] = i % OUTPUTS;
    const engine_batch b = {.n = BATCH, .type = INPUT_FLOAT, .x = x, .labels = labels};
    size_t vars;
    const engine_var *layout = engine_layout(whole, &vars);
    for (int step = 0; step < 3; step++) {
        engine_result r, s;
        CHECK_OK(engine_train(whole, &b, 0.01, &r, &e), e);
        CHECK_OK(engine_gradients(halves, &b, &s, &e), e);
        CHECK_OK(engine_update(halves, 0.01, &e), e);
        CHECK(r.loss_sum == s.loss_sum);
        const float *got = engine_floats(whole, &e), *want = engine_floats(halves, &e);
        for (size_t i = 0; i < vars; i++)
            if (layout[i].kind != VAR_COUNTER &&
                memcmp(got + layout[i].offset, want + layout[i].offset,
                       layout[i].count * sizeof *got) != 0)
                test_fail(__FILE__, __LINE__, "%s, %d threads, step %d: %s differs", recipe->name,
                          threads, step, layout[i].name);
    }
    engine_free(whole);
    engine_free(halves);
}

#define UPDATES(set)                                                                               \
    TEST(updates_##set)                                                                            \
    {                                                                                              \
        use_set(#set);                                                                             \
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {                            \
            check_updates(&recipes[i], 1);                                                         \
            check_updates(&recipes[i], 3);                                                         \
            check_whole_steps(&recipes[i], 1);                                                     \
            check_whole_steps(&recipes[i], 3);                                                     \
        }                                                                                          \
    }
ON_EVERY_SET(UPDATES)

/* ---- the ops --------------------------------------------------------------------------------- */

/* Every op on this set: the other program's case, in this process' place. */
static void run_ops(const char *set)
{
    char self[PATH_MAX], path[PATH_MAX + 32];
    use_set(set);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    snprintf(path, sizeof path, "%s/test_graph_ops", dirname(self));
    execl(path, path, "every_backend_agrees_with_the_reference", (char *)NULL);
    test_fail(__FILE__, __LINE__, "%s: cannot be run", path);
}

#define OPS(set)                                                                                   \
    TEST_LIMIT(ops_##set, 120)                                                                     \
    {                                                                                              \
        run_ops(#set);                                                                             \
    }
ON_EVERY_SET(OPS)

/* ---- bf16 ------------------------------------------------------------------------------------ */

static bool has_bf16(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* Each kind of layer that computes in bf16. */
static const model models16[] = {
    {"winograd", "winograd4-bf16", {3, 3, 12, 12}, wide},
    {"winograd, odd", "winograd4-bf16", {3, 3, 11, 9}, wide_bare},
    {"winograd, border 2", "winograd4-bf16", {3, 3, 5, 6}, wide_border},
    {"winograd from 16 channels", "winograd4-bf16", {3, 3, 9, 8}, from_16},
    {"winograd, weights made on the way", "winograd4-fleeting-bf16+relu", {3, 3, 5, 4}, deep},
    {"stride 2", "matmul-points-bf16", {3, 3, 13, 14}, stride2},
    {"stride 2, 1x1", "matmul-points-bf16", {3, 3, 9, 9}, stride2_one},
    {"3x3 on 2x2", "matmul-points-bf16", {3, 3, 2, 2}, small},
    {"3x3 on 2x3, whole vectors", "matmul-points-bf16+relu", {3, 3, 2, 3}, small_relu},
    {"dilated on 3x3", "matmul-points-bf16", {3, 3, 3, 3}, small_dilated},
    {"windows of padding alone", "matmul-points-bf16", {3, 3, 4, 5}, padding_alone},
    {"1x1", "matmul-bf16", {3, 3, 23, 25}, large_one},
    {"fire", "matmul-bf16+relu", {3, 3, 9, 10}, fire},
    {"wide linear layers", "gemm-bf16+relu", {3, 3, 5, 5}, wide_linear},
    {"LeNet's stages", "gemm-bf16", {3, 1, 28, 28}, stages_6_16_5},
};

/* Norms over few values and ReLU after ReLU: each lets through what the one before it has moved. */
static const model deep16[] = {
    {"bottlenecks", "entry+relu", {3, 3, 16, 14}, bottlenecks},
    {"norm of what has a border", "entry+relu", {3, 3, 17, 18}, norm_of_bordered},
    {"one tensor, many readers", "winograd4-bf16", {3, 3, 10, 10}, shared},
    {"what lies over values, and what may not", "depthwise", {3, 3, 9, 10}, over_values},
    {"dense block", "joined", {3, 3, 7, 6}, dense},
    {"norms with activations", "fused+act", {3, 3, 12, 9}, norms_with_acts},
    {"norms in the weights", "winograd4-bf16", {3, 3, 9, 8}, norms},
};

/* bf16 has 8 bits: a product of two rounded values is 2^-8 from the exact one at most and 0.16 % on
 * average, which Winograd's transforms make 0.7 %; then the logits move the loss' gradient, a ReLU
 * beside 0 lets another one through, and biases' gradients are small sums of large parts. A tap
 * beside its place or a sign turned would be 100 % apart; test_cpu_bf16.c holds the products
 * themselves to bf16's own bounds. */
TEST_LIMIT(layers_bf16, 240)
{
    if (!has_bf16())
        test_skip("this CPU has no AVX512-BF16");
    setenv("KUBEML_CPU", "auto", 1);
    for (size_t i = 0; i < sizeof models16 / sizeof *models16; i++)
        check_model(&models16[i], PRECISION_BF16, (bounds){2e-2, 0.2});
    for (size_t i = 0; i < sizeof deep16 / sizeof *deep16; i++)
        check_model(&deep16[i], PRECISION_BF16, (bounds){0.1, 0.8});
}

/* Refused with its type and the reason, never computed in something else instead. */
TEST(bf16_is_refused_where_the_set_lacks_it)
{
    static const char *const sets[] = {"avx2", "generic", "auto"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        err e = ERR_INIT;
        engine *m = NULL;
        setenv("KUBEML_CPU", sets[i], 1);
        if (!backend_find("cpu", &e) || (has_bf16() && strcmp(sets[i], "auto") == 0))
            continue;
        engine_config c = {.build = build,
                           .user = (void *)(uintptr_t)&models16[0],
                           .input = models16[0].input,
                           .outputs = OUTPUTS,
                           .batch = BATCH,
                           .backend = "cpu",
                           .precision = PRECISION_BF16};
        CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_UNSUPPORTED, "AVX512-BF16");
        CHECK(!m);
    }
}

/* An unknown name is an error that says so; it never falls back. */
TEST(unknown_set)
{
    err e = ERR_INIT;
    setenv("KUBEML_CPU", "mmx", 1);
    CHECK(!backend_find("cpu", &e));
    CHECK_CONTAINS(e.message, "KUBEML_CPU");
}
