/* zoo_list.h: the models that can be named instead of code, as `kubeml-function zoo` lists them. */
#ifndef KUBEML_CONTROLLER_ZOO_LIST_H
#define KUBEML_CONTROLLER_ZOO_LIST_H

#include "common/dataset/dataset.h"
#include "controller/controller.h"

/* [{"name", "parameters", "summary"}]; asked once. New reference. */
int zoo_list(controller *c, json_t **out, err *e);
/* "resnet34", "resnet34,stem=cifar,crop=4". ERR_NOT_FOUND with the nearest names, ERR_INVALID: an
 * option. */
int zoo_check(controller *c, const char *model, err *e);
/* Its network for that data set's samples. ERR_UNSUPPORTED names the layer that does not take
 * them. */
int zoo_shape_check(controller *c, const char *model, const dataset_info *data, err *e);

#endif
