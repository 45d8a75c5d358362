/* zoo_small.c: LeNet-5 and a multi-layer perceptron. */
#include "zoo_models.h"

/* LeCun et al. 1998 as it is commonly taught: ReLU and max pooling, the first convolution padded so
 * that a 28x28 image keeps its size. 61,706 parameters for MNIST. */
int zoo_lenet5(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_relu(g,
                   graph_conv2d(g, x, (conv2d_options){.filters = 6, .kernel = 5, .padding = 2}));
    x = graph_max_pool2d(g, x, (pool_options){.kernel = 2});
    x = graph_relu(g, graph_conv2d(g, x, (conv2d_options){.filters = 16, .kernel = 5}));
    x = graph_max_pool2d(g, x, (pool_options){.kernel = 2});
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 120, (linear_options){0}));
    x = graph_relu(g, graph_linear(g, x, 84, (linear_options){0}));
    return graph_linear(g, x, outputs ? outputs : 10, (linear_options){0});
}

int zoo_mlp(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 256, (linear_options){0}));
    x = graph_relu(g, graph_linear(g, x, 128, (linear_options){0}));
    return graph_linear(g, x, outputs ? outputs : 10, (linear_options){0});
}
