/* zoo_vgg.c: torchvision's VGG-11 (Simonyan and Zisserman 2014, configuration A), with and without
 * batch norm. For small images the adaptive pooling gives 1x1 instead of 7x7, so that the
 * classifier's first layer has 512 inputs. The fifth max pooling is skipped where the fourth has
 * left one pixel (images of 16 to 31 on a side: MNIST). */
#include "zoo_models.h"

/* Max pooling `name`; skipped where `may_skip` is set and the input is one pixel. */
static int pool(graph *g, int x, const char *name, bool may_skip)
{
    shape s = graph_shape(g, x);
    if (may_skip && s.h == 1 && s.w == 1)
        return x;
    return graph_max_pool2d(g, x, (pool_options){.kernel = 2, .name = name});
}

static int vgg11(graph *g, int x, int outputs, const void *user, bool norm)
{
    static const int filters[] = {64,  0,   128, 0,   256, 256, 0,
                                  512, 512, 0,   512, 512, 0}; /* 0: pool */
    enum { COUNT = sizeof filters / sizeof *filters };
    bool small = zoo_small_images(g, x, user);
    for (int i = 0, at = 0; i < COUNT; i++) {
        if (filters[i] == 0) {
            x = pool(g, x, zoo_name("features.%d", at++).text, small && i == COUNT - 1);
            continue;
        }
        x = graph_conv2d(g, x,
                         (conv2d_options){.name = zoo_name("features.%d", at++).text,
                                          .filters = filters[i],
                                          .kernel = 3,
                                          .padding = 1,
                                          .weights = WEIGHTS_HE_FAN_OUT,
                                          .zero_bias = true});
        if (norm)
            x = graph_batch_norm(g, x,
                                 (batch_norm_options){.name = zoo_name("features.%d", at++).text});
        x = graph_relu(g, x);
        at++;
    }
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, small ? 1 : 7, small ? 1 : 7));
    for (int i = 0; i < 6; i += 3) {
        x = graph_linear(g, x, 4096,
                         (linear_options){.name = zoo_name("classifier.%d", i).text,
                                          .deviation = 0.01,
                                          .zero_bias = true});
        x = zoo_dropout(g, graph_relu(g, x), 0.5, user);
    }
    return graph_linear(
        g, x, outputs ? outputs : 1000,
        (linear_options){.name = "classifier.6", .deviation = 0.01, .zero_bias = true});
}

int zoo_vgg11(graph *g, int x, int outputs, void *user)
{
    return vgg11(g, x, outputs, user, false);
}

int zoo_vgg11_bn(graph *g, int x, int outputs, void *user)
{
    return vgg11(g, x, outputs, user, true);
}
