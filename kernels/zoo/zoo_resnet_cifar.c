/* zoo_resnet_cifar.c: the CIFAR networks of He et al. 2015 ("Deep residual learning"), section 4.2:
 * 6n + 2 layers, three stages of n blocks with 16, 32 and 64 filters, shortcut A (no parameters).
 *
 * Names follow the common PyTorch version: conv1, bn1, layer1.0.conv1, ..., linear. */
#include <stdio.h>

#include "zoo_models.h"

static int conv_bn(graph *g, int x, const char *prefix, int number, int filters, int stride)
{
    char name[GRAPH_NAME_BYTES];
    snprintf(name, sizeof name, "%sconv%d", prefix, number);
    x = graph_conv2d(g, x,
                     (conv2d_options){.name = name,
                                      .filters = filters,
                                      .kernel = 3,
                                      .stride = stride,
                                      .padding = 1,
                                      .no_bias = true});
    snprintf(name, sizeof name, "%sbn%d", prefix, number);
    return graph_batch_norm(g, x, (batch_norm_options){.name = name});
}

static int block(graph *g, int x, const char *prefix, int filters, int stride)
{
    int y = graph_relu(g, conv_bn(g, x, prefix, 1, filters, stride));
    y = conv_bn(g, y, prefix, 2, filters, 1);
    int added = filters - graph_shape(g, x).c;
    if (stride > 1) /* every second row and column */
        x = graph_avg_pool2d(g, x, (pool_options){.kernel = 1, .stride = stride});
    if (added > 0)
        x = graph_pad_channels(g, x, added / 2, added - added / 2);
    return graph_relu(g, graph_add(g, y, x));
}

static int resnet(graph *g, int x, int outputs, int blocks)
{
    x = graph_relu(g, conv_bn(g, x, "", 1, 16, 1));
    for (int stage = 0; stage < 3; stage++)
        for (int i = 0; i < blocks; i++) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
            x = block(g, x, prefix, 16 << stage, stage > 0 && i == 0 ? 2 : 1);
        }
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs ? outputs : 10, (linear_options){.name = "linear"});
}

int zoo_resnet20(graph *g, int x, int outputs, void *user)
{
    (void)user;
    return resnet(g, x, outputs, 3);
}

int zoo_resnet32(graph *g, int x, int outputs, void *user)
{
    (void)user;
    return resnet(g, x, outputs, 5);
}

int zoo_resnet56(graph *g, int x, int outputs, void *user)
{
    (void)user;
    return resnet(g, x, outputs, 9);
}
