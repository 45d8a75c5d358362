/* zoo_resnet.c: torchvision's ResNets (He et al. 2015; version 1.5 of the bottleneck: its 3x3 layer
 * has the stride). Stem for small images: one 3x3 convolution, no pooling. */
#include "zoo_models.h"

typedef struct net {
    const int *blocks; /* of the four stages */
    bool bottleneck;
} net;

static int conv(graph *g, int x, zoo_label name, int filters, int kernel, int stride)
{
    return graph_conv2d(g, x,
                        (conv2d_options){.name = name.text,
                                         .filters = filters,
                                         .kernel = kernel,
                                         .stride = stride,
                                         .padding = kernel / 2,
                                         .no_bias = true,
                                         .weights = WEIGHTS_HE_FAN_OUT});
}

static int norm(graph *g, int x, zoo_label name)
{
    return graph_batch_norm(g, x, (batch_norm_options){.name = name.text});
}

/* relu(f(x) + shortcut); f is two 3x3 layers, or 1x1, 3x3, 1x1 with 4 times the filters at the end.
 */
static int block(graph *g, int x, const char *p, int filters, int stride, bool bottleneck)
{
    int out = bottleneck ? 4 * filters : filters, y = x;
    if (bottleneck) {
        y = graph_relu(
            g, norm(g, conv(g, y, zoo_name("%s.conv1", p), filters, 1, 1), zoo_name("%s.bn1", p)));
        y = graph_relu(g, norm(g, conv(g, y, zoo_name("%s.conv2", p), filters, 3, stride),
                               zoo_name("%s.bn2", p)));
        y = norm(g, conv(g, y, zoo_name("%s.conv3", p), out, 1, 1), zoo_name("%s.bn3", p));
    } else {
        y = graph_relu(g, norm(g, conv(g, y, zoo_name("%s.conv1", p), filters, 3, stride),
                               zoo_name("%s.bn1", p)));
        y = norm(g, conv(g, y, zoo_name("%s.conv2", p), out, 3, 1), zoo_name("%s.bn2", p));
    }
    if (stride > 1 || graph_shape(g, x).c != out)
        x = norm(g, conv(g, x, zoo_name("%s.downsample.0", p), out, 1, stride),
                 zoo_name("%s.downsample.1", p));
    return graph_relu(g, graph_add(g, y, x));
}

static int resnet(graph *g, int x, int outputs, const void *user, net n)
{
    bool small = zoo_small_images(g, x, user);
    x = conv(g, x, zoo_name("conv1"), 64, small ? 3 : 7, small ? 1 : 2);
    x = graph_relu(g, norm(g, x, zoo_name("bn1")));
    if (!small)
        x = graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2, .padding = 1});
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < n.blocks[stage]; i++)
            x = block(g, x, zoo_name("layer%d.%d", stage + 1, i).text, 64 << stage,
                      stage > 0 && i == 0 ? 2 : 1, n.bottleneck);
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs ? outputs : 1000, (linear_options){.name = "fc"});
}

int zoo_resnet18(graph *g, int x, int outputs, void *user)
{
    return resnet(g, x, outputs, user, (net){(const int[]){2, 2, 2, 2}, false});
}

int zoo_resnet34(graph *g, int x, int outputs, void *user)
{
    return resnet(g, x, outputs, user, (net){(const int[]){3, 4, 6, 3}, false});
}

int zoo_resnet50(graph *g, int x, int outputs, void *user)
{
    return resnet(g, x, outputs, user, (net){(const int[]){3, 4, 6, 3}, true});
}
