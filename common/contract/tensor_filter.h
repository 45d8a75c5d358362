/* tensor_filter.h: which of a model's tensors keep their drawn values where the others come from a
 * file: of a layer that the file's model has with other outputs, say.
 *
 * A list such as "fc,layer4.1" names tensors, or what they begin with up to a dot: "fc" is
 * fc.weight and fc.bias, and neither fc1.weight nor a tensor of the optimizer. */
#ifndef KUBEML_TENSOR_FILTER_H
#define KUBEML_TENSOR_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { TENSOR_FILTER_MAX = 32 };

typedef struct tensor_filter {
    const char *list; /* borrowed; NULL or "": none */
    uint32_t seen;    /* a bit for each of its parts */
} tensor_filter;

/* ERR_INVALID for none, an empty one, or more than TENSOR_FILTER_MAX. */
int tensor_filter_check(const char *list, err *e);
/* Whether the list has the tensor; notes it. */
bool tensor_filter_has(tensor_filter *l, const char *tensor);
/* Once it was asked of each tensor of the model: ERR_INVALID with a part that none of them is. */
int tensor_filter_end(const tensor_filter *l, err *e);

#endif
