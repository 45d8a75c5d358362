/* left_out.h: which of a model's tensors keep their drawn values where the others come from a file:
 * of a layer that the file's model has with other outputs, say.
 *
 * A list such as "fc,layer4.1" names tensors, or what they begin with up to a dot: "fc" is
 * fc.weight and fc.bias, and neither fc1.weight nor a tensor of the optimizer. */
#ifndef KUBEML_LEFT_OUT_H
#define KUBEML_LEFT_OUT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { LEFT_OUT_MAX = 32 };

typedef struct left_out {
    const char *list; /* borrowed; NULL or "": none */
    uint32_t seen;    /* a bit for each of its parts */
} left_out;

/* ERR_INVALID for none, an empty one, or more than LEFT_OUT_MAX. */
int left_out_check(const char *list, err *e);
/* Whether the list has the tensor; notes it. */
bool left_out_has(left_out *l, const char *tensor);
/* Once it was asked of each tensor of the model: ERR_INVALID with a part that none of them is. */
int left_out_end(const left_out *l, err *e);

#endif
