/* model_file.h: a model's weights between an engine and a safetensors file. */
#ifndef KUBEML_MODEL_FILE_H
#define KUBEML_MODEL_FILE_H

#include "common/base/err.h"
#include "kernels/engine.h"

/* Parameters, buffers and counters by name, floats of 16 and 64 bits too; tensors of the optimizer
 * may be there and are passed over, as those that `without` (tensor_filter.h; NULL: none) names
 * are, which stay as they are in the model. ERR_INVALID naming the tensor that is missing, none of
 * the model's, or of another shape or type, and then the model is as it was; ERR_CORRUPT. The
 * descriptor is borrowed. */
int model_file_load(engine *m, int fd, const char *without, err *e);
/* Writes parameters, buffers and their counters to a file beside it and renames. ERR_IO. */
int model_file_save(engine *m, const char *path, err *e);

#endif
