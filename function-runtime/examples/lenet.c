/* LeNet-5 for MNIST: 61,706 parameters; about 99 % of the test set after 5 to 10 epochs.
 *
 *     kubeml run lenet.c --dataset mnist
 *     kubeml function create --name lenet --code lenet.c */
#include <kubeml.h>

static kml_tensor lenet(kml_graph *g, kml_tensor x)
{
    /* (1, 28, 28) -> (6, 14, 14) -> (16, 5, 5) -> 120 -> 84 -> classes */
    x = kml_relu(g, kml_conv2d(g, x, .filters = 6, .kernel = 5, .padding = 2));
    x = kml_max_pool2d(g, x, .kernel = 2);
    x = kml_relu(g, kml_conv2d(g, x, .filters = 16, .kernel = 5));
    x = kml_max_pool2d(g, x, .kernel = 2);
    x = kml_relu(g, kml_linear(g, kml_flatten(g, x), 120));
    x = kml_relu(g, kml_linear(g, x, 84));
    return kml_linear(g, x, kml_classes(g));
}

KUBEML_FUNCTION(.model = lenet, .optimizer = kml_sgd(.momentum = 0.9, .weight_decay = 1e-4),
                .transform = kml_transform(.mean = {0.1307f}, .std = {0.3081f}), .lr = 0.01);
