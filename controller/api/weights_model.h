/* weights_model.h: writes a checkpoint's weights alone, as a file that PyTorch loads. */
#ifndef KUBEML_WEIGHTS_MODEL_H
#define KUBEML_WEIGHTS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/store/store.h"

/* Whether the tensor is a weight (a parameter, a buffer, a counter), not optimizer state. */
bool weights_model_has(const char *tensor);
/* Writes the weights as safetensors with "format" "pt", as load_state_dict takes them, into a
 * nameless file of `dir`, which the caller closes. ERR_CORRUPT, ERR_IO. Blocks on the disk. */
int weights_model_write(blob *model, const char *dir, int *fd, uint64_t *len, err *e);

#endif
