/* tensor_filter.h: selects the tensors that keep their random initial values while the model's
 * other tensors come from a file: for a layer that has other outputs in the file's model, say.
 *
 * A list such as "fc,layer4.1" has names of tensors, or prefixes of names that end at a dot: "fc"
 * selects fc.weight and fc.bias, but neither fc1.weight nor a tensor of the optimizer. */
#ifndef KUBEML_TENSOR_FILTER_H
#define KUBEML_TENSOR_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { TENSOR_FILTER_MAX = 32 };

typedef struct tensor_filter {
    const char *list; /* borrowed; NULL or "": selects no tensor */
    uint32_t seen;    /* a bit for each name of the list that matched a tensor */
} tensor_filter;

/* ERR_INVALID for no name, an empty name, or more than TENSOR_FILTER_MAX names. */
int tensor_filter_check(const char *list, err *e);
/* Whether the list selects the tensor; marks the matching names in `seen`. */
bool tensor_filter_has(tensor_filter *l, const char *tensor);
/* Call it after tensor_filter_has for every tensor of the model: ERR_INVALID with a name that
 * matched no tensor. */
int tensor_filter_end(const tensor_filter *l, err *e);

#endif
