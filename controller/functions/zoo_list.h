/* zoo_list.h: the models that a request may name instead of code, from `kubeml-function zoo`. */
#ifndef KUBEML_CONTROLLER_ZOO_LIST_H
#define KUBEML_CONTROLLER_ZOO_LIST_H

#include "common/dataset/dataset.h"
#include "controller/controller.h"

/* [{"name", "parameters", "summary"}]; asked for once. New reference. */
int zoo_list(controller *c, json_t **out, err *e);
/* Checks a model's text: "resnet34", "resnet34,stem=cifar,crop=4". ERR_NOT_FOUND with the nearest
 * names, ERR_INVALID: an option. */
int zoo_check(controller *c, const char *model, err *e);
/* Builds the model's network for that data set's samples. ERR_UNSUPPORTED names the layer that does
 * not take them. */
int zoo_shape_check(controller *c, const char *model, const dataset_info *data, err *e);

#endif
