/* A residual network for 32x32 colour images (CIFAR-10): ResNet-20 of He et al. 2015, section 4.2,
 * with the paper's augmentation. Change BLOCKS to 5 or 9 for ResNet-32 and ResNet-56.
 *
 *     kubeml function create --name resnet20 --code resnet.c */
#include <kubeml.h>
#include <stdio.h>

enum { BLOCKS = 3 };

static kml_tensor conv_bn(kml_graph *g, kml_tensor x, const char *prefix, int number, int filters,
                          int stride)
{
    char conv[32], norm[32];
    snprintf(conv, sizeof conv, "%sconv%d", prefix, number);
    snprintf(norm, sizeof norm, "%sbn%d", prefix, number);
    x = kml_conv2d(g, x, .name = conv, .filters = filters, .kernel = 3, .stride = stride,
                   .padding = 1, .no_bias = true);
    return kml_batch_norm2d(g, x, .name = norm);
}

/* relu(bn(conv(relu(bn(conv(x))))) + x). If the size changes, x loses every second row and column
 * and gains channels of zeros. */
static kml_tensor block(kml_graph *g, kml_tensor x, const char *prefix, int filters, int stride)
{
    kml_tensor y = kml_relu(g, conv_bn(g, x, prefix, 1, filters, stride));
    y = conv_bn(g, y, prefix, 2, filters, 1);
    int added = filters - kml_channels(g, x);
    if (stride > 1)
        x = kml_avg_pool2d(g, x, .kernel = 1, .stride = stride);
    if (added > 0)
        x = kml_pad_channels(g, x, added / 2, added - added / 2);
    return kml_relu(g, kml_add(g, y, x));
}

static kml_tensor resnet(kml_graph *g, kml_tensor x)
{
    x = kml_relu(g, conv_bn(g, x, "", 1, 16, 1));
    for (int stage = 0; stage < 3; stage++)
        for (int i = 0; i < BLOCKS; i++) {
            char prefix[32];
            snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
            x = block(g, x, prefix, 16 << stage, stage > 0 && i == 0 ? 2 : 1);
        }
    return kml_linear(g, kml_flatten(g, kml_global_avg_pool2d(g, x)), kml_classes(g),
                      .name = "linear");
}

/* An example of your own step: the platform's step, with the norm of the gradients clipped to 5. */
static int step(kml_step *s)
{
    if (kml_gradients(s))
        return -1;
    kml_clip_gradient_norm(s, 5);
    return kml_update(s, kml_learning_rate(s));
}

KUBEML_FUNCTION(.model = resnet, .optimizer = kml_sgd(.momentum = 0.9, .weight_decay = 1e-4),
                .schedule = kml_milestones(.at = {82, 123}, .gamma = 0.1, .warmup_epochs = 1),
                .transform = kml_transform(.flip = true, .crop = 4, .standardise = true),
                .step = step, .lr = 0.1);
