/* zoo_models.h: the builders behind zoo.h's table, one file a family. */
#ifndef KUBEML_ZOO_MODELS_H
#define KUBEML_ZOO_MODELS_H

#include "zoo.h"

/* A layer's name, built on the spot: .name = zoo_name("layer%d.conv1", i).text */
typedef struct zoo_label {
    char text[GRAPH_NAME_BYTES];
} zoo_label;
zoo_label zoo_name(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Whether x takes the stem for small images, by the options or x's size. */
bool zoo_small_images(const graph *g, int x, const void *user);
/* Dropout, unless the options turn it off. */
int zoo_dropout(graph *g, int x, double p, const void *user);

int zoo_lenet5(graph *g, int x, int outputs, void *user);
int zoo_mlp(graph *g, int x, int outputs, void *user);
int zoo_resnet18(graph *g, int x, int outputs, void *user);
int zoo_resnet34(graph *g, int x, int outputs, void *user);
int zoo_resnet50(graph *g, int x, int outputs, void *user);
int zoo_vgg11(graph *g, int x, int outputs, void *user);
int zoo_vgg11_bn(graph *g, int x, int outputs, void *user);
int zoo_squeezenet1_1(graph *g, int x, int outputs, void *user);
int zoo_mobilenet_v3_small(graph *g, int x, int outputs, void *user);
int zoo_densenet121(graph *g, int x, int outputs, void *user);
int zoo_resnet20(graph *g, int x, int outputs, void *user);
int zoo_resnet32(graph *g, int x, int outputs, void *user);
int zoo_resnet56(graph *g, int x, int outputs, void *user);

#endif
