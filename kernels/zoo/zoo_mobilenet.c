/* zoo_mobilenet.c: torchvision's MobileNetV3-Small (Howard et al. 2019, table 2). Stem for small
 * images: the first convolution has stride 1. */
#include "zoo_models.h"

typedef struct bneck {
    int kernel, expanded, out;
    bool squeeze, hardswish;
    int stride;
} bneck;

static const bneck layers[] = {
    {3, 16, 16, true, false, 2}, {3, 72, 24, false, false, 2}, {3, 88, 24, false, false, 1},
    {5, 96, 40, true, true, 2},  {5, 240, 40, true, true, 1},  {5, 240, 40, true, true, 1},
    {5, 120, 48, true, true, 1}, {5, 144, 48, true, true, 1},  {5, 288, 96, true, true, 2},
    {5, 576, 96, true, true, 1}, {5, 576, 96, true, true, 1},
};
enum { LAYERS = sizeof layers / sizeof *layers };

/* Convolution, batch norm and, unless `act` is ACT_COUNT, an activation: "<p>.0" and "<p>.1". */
static int conv_norm(graph *g, int x, zoo_label p, conv2d_options o, graph_act act)
{
    o.padding = (o.kernel - 1) / 2;
    o.no_bias = true;
    o.weights = WEIGHTS_HE_FAN_OUT;
    zoo_label name = zoo_name("%.80s.0", p.text);
    o.name = name.text;
    x = graph_conv2d(g, x, o);
    name = zoo_name("%.80s.1", p.text);
    x = graph_batch_norm(g, x,
                         (batch_norm_options){.name = name.text, .eps = 1e-3, .momentum = 0.01});
    return act == ACT_COUNT ? x : graph_activation(g, x, act, 0);
}

/* torchvision's _make_divisible: the nearest multiple of 8, at least 8 and nine tenths of v. */
static int divisible(int v)
{
    int to = v + 4 < 16 ? 8 : (v + 4) / 8 * 8;
    return to * 10 < v * 9 ? to + 8 : to;
}

static int squeeze_excite(graph *g, int x, zoo_label p)
{
    int channels = graph_shape(g, x).c, s = graph_adaptive_avg_pool2d(g, x, 1, 1);
    conv2d_options o = {.kernel = 1, .weights = WEIGHTS_HE_FAN_OUT, .zero_bias = true};
    zoo_label first = zoo_name("%.80s.fc1", p.text), second = zoo_name("%.80s.fc2", p.text);
    o.name = first.text, o.filters = divisible(channels / 4);
    s = graph_relu(g, graph_conv2d(g, s, o));
    o.name = second.text, o.filters = channels;
    return graph_mul(g, x, graph_activation(g, graph_conv2d(g, s, o), ACT_HARDSIGMOID, 0));
}

static int inverted_residual(graph *g, int x, int number, bneck b)
{
    int y = x, at = 0, in = graph_shape(g, x).c;
    graph_act act = b.hardswish ? ACT_HARDSWISH : ACT_RELU;
    if (b.expanded != in)
        y = conv_norm(g, y, zoo_name("features.%d.block.%d", number, at++),
                      (conv2d_options){.filters = b.expanded, .kernel = 1}, act);
    y = conv_norm(
        g, y, zoo_name("features.%d.block.%d", number, at++),
        (conv2d_options){
            .filters = b.expanded, .kernel = b.kernel, .stride = b.stride, .groups = b.expanded},
        act);
    if (b.squeeze)
        y = squeeze_excite(g, y, zoo_name("features.%d.block.%d", number, at++));
    y = conv_norm(g, y, zoo_name("features.%d.block.%d", number, at++),
                  (conv2d_options){.filters = b.out, .kernel = 1}, ACT_COUNT);
    return b.stride == 1 && in == b.out ? graph_add(g, y, x) : y;
}

int zoo_mobilenet_v3_small(graph *g, int x, int outputs, void *user)
{
    bool small = zoo_small_images(g, x, user);
    x = conv_norm(g, x, zoo_name("features.0"),
                  (conv2d_options){.filters = 16, .kernel = 3, .stride = small ? 1 : 2},
                  ACT_HARDSWISH);
    for (int i = 0; i < LAYERS; i++)
        x = inverted_residual(g, x, i + 1, layers[i]);
    x = conv_norm(g, x, zoo_name("features.%d", LAYERS + 1),
                  (conv2d_options){.filters = 576, .kernel = 1}, ACT_HARDSWISH);
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    linear_options o = {.name = "classifier.0", .deviation = 0.01, .zero_bias = true};
    x = graph_activation(g, graph_linear(g, x, 1024, o), ACT_HARDSWISH, 0);
    x = zoo_dropout(g, x, 0.2, user);
    o.name = "classifier.3";
    return graph_linear(g, x, outputs ? outputs : 1000, o);
}
