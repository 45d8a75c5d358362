/* zoo_squeezenet.c: torchvision's SqueezeNet 1.1 (Iandola et al. 2016). Stem for small images: the
 * first convolution has stride 1 and padding 1. */
#include "zoo_models.h"

static int conv(graph *g, int x, zoo_label name, int filters, int kernel)
{
    return graph_relu(g, graph_conv2d(g, x,
                                      (conv2d_options){.name = name.text,
                                                       .filters = filters,
                                                       .kernel = kernel,
                                                       .padding = kernel / 2,
                                                       .weights = WEIGHTS_HE_UNIFORM,
                                                       .zero_bias = true}));
}

/* A 1x1 layer of few filters, then a 1x1 and a 3x3 layer over its result, concatenated. */
static int fire(graph *g, int x, int at, int squeeze, int expand)
{
    x = conv(g, x, zoo_name("features.%d.squeeze", at), squeeze, 1);
    int parts[2];
    parts[0] = conv(g, x, zoo_name("features.%d.expand1x1", at), expand, 1);
    parts[1] = conv(g, x, zoo_name("features.%d.expand3x3", at), expand, 3);
    return graph_concat(g, parts, 2);
}

static int pool(graph *g, int x)
{
    return graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2, .ceil_mode = true});
}

int zoo_squeezenet1_1(graph *g, int x, int outputs, void *user)
{
    bool small = zoo_small_images(g, x, user);
    x = graph_conv2d(g, x,
                     (conv2d_options){.name = "features.0",
                                      .filters = 64,
                                      .kernel = 3,
                                      .stride = small ? 1 : 2,
                                      .padding = small ? 1 : 0,
                                      .weights = WEIGHTS_HE_UNIFORM,
                                      .zero_bias = true});
    x = pool(g, graph_relu(g, x));
    x = fire(g, fire(g, x, 3, 16, 64), 4, 16, 64);
    x = pool(g, x);
    x = fire(g, fire(g, x, 6, 32, 128), 7, 32, 128);
    x = pool(g, x);
    x = fire(g, fire(g, x, 9, 48, 192), 10, 48, 192);
    x = fire(g, fire(g, x, 11, 64, 256), 12, 64, 256);
    x = zoo_dropout(g, x, 0.5, user);
    x = graph_conv2d(g, x,
                     (conv2d_options){.name = "classifier.1",
                                      .filters = outputs ? outputs : 1000,
                                      .kernel = 1,
                                      .weights = WEIGHTS_NORMAL,
                                      .deviation = 0.01,
                                      .zero_bias = true});
    return graph_flatten(g, graph_adaptive_avg_pool2d(g, graph_relu(g, x), 1, 1));
}
