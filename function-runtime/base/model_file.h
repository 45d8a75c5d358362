/* model_file.h: loads and saves a model's weights as a safetensors file. */
#ifndef KUBEML_MODEL_FILE_H
#define KUBEML_MODEL_FILE_H

#include "common/base/err.h"
#include "kernels/engine.h"

/* Loads parameters, buffers and counters by name, floats of 16 and 64 bits too. Ignores the
 * optimizer's tensors, and tensors that `without` names (tensor_filter.h; NULL: none), which stay
 * as they are in the model. ERR_INVALID naming a tensor that is missing, not in the model, or of
 * another shape or type: then the model is unchanged; ERR_CORRUPT. `fd` is borrowed. */
int model_file_load(engine *m, int fd, const char *without, err *e);
/* Saves parameters, buffers and counters: writes a file beside `path`, and renames it. ERR_IO. */
int model_file_save(engine *m, const char *path, err *e);

#endif
