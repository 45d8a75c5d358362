/* zoo_densenet.c: torchvision's DenseNet-121 (Huang et al. 2017): growth 32, blocks of 6, 12, 24
 * and 16 layers, bottlenecks of 128. Stem for small images: one 3x3 convolution, no pooling. */
#include <math.h>

#include "zoo_models.h"

enum { GROWTH = 32, BOTTLENECK = 128, BLOCKS = 4 };

static int conv(graph *g, int x, zoo_label name, int filters, int kernel, int stride)
{
    /* kaiming_normal(fan_in) */
    double fan_in = (double)graph_shape(g, x).c * kernel * kernel;
    return graph_conv2d(g, x,
                        (conv2d_options){.name = name.text,
                                         .filters = filters,
                                         .kernel = kernel,
                                         .stride = stride,
                                         .padding = kernel / 2,
                                         .no_bias = true,
                                         .weights = WEIGHTS_NORMAL,
                                         .deviation = sqrt(2 / fan_in)});
}

static int norm_relu(graph *g, int x, zoo_label name)
{
    return graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){.name = name.text}));
}

/* Each layer reads the block's input and the results of all layers before it, concatenated. */
static int dense_block(graph *g, int x, int block, int layers)
{
    int parts[GRAPH_INPUTS_MAX] = {x};
    for (int i = 1; i <= layers; i++) {
        zoo_label p = zoo_name("features.denseblock%d.denselayer%d", block, i);
        int y = i == 1 ? x : graph_concat(g, parts, i);
        y = norm_relu(g, y, zoo_name("%.80s.norm1", p.text));
        y = conv(g, y, zoo_name("%.80s.conv1", p.text), BOTTLENECK, 1, 1);
        y = norm_relu(g, y, zoo_name("%.80s.norm2", p.text));
        parts[i] = conv(g, y, zoo_name("%.80s.conv2", p.text), GROWTH, 3, 1);
    }
    return graph_concat(g, parts, layers + 1);
}

static int transition(graph *g, int x, int block)
{
    int half = graph_shape(g, x).c / 2;
    x = norm_relu(g, x, zoo_name("features.transition%d.norm", block));
    x = conv(g, x, zoo_name("features.transition%d.conv", block), half, 1, 1);
    return graph_avg_pool2d(g, x, (pool_options){.kernel = 2});
}

int zoo_densenet121(graph *g, int x, int outputs, void *user)
{
    static const int layers[BLOCKS] = {6, 12, 24, 16};
    bool small = zoo_small_images(g, x, user);
    x = conv(g, x, zoo_name("features.conv0"), 64, small ? 3 : 7, small ? 1 : 2);
    x = norm_relu(g, x, zoo_name("features.norm0"));
    if (!small)
        x = graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2, .padding = 1});
    for (int i = 0; i < BLOCKS; i++) {
        x = dense_block(g, x, i + 1, layers[i]);
        if (i + 1 < BLOCKS)
            x = transition(g, x, i + 1);
    }
    x = norm_relu(g, x, zoo_name("features.norm5"));
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs ? outputs : 1000,
                        (linear_options){.name = "classifier", .zero_bias = true});
}
