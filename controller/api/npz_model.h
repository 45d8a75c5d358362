/* npz_model.h: writes a trained model's safetensors file as numpy's archive. */
#ifndef KUBEML_NPZ_MODEL_H
#define KUBEML_NPZ_MODEL_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/store/store.h"

/* Writes the weights (weights_model.h) as NAME.npy into a zip without compression, in a nameless
 * file of `dir`, which the caller closes. ERR_UNSUPPORTED for a dtype that numpy lacks. Blocks on
 * the disk. */
int npz_model_write(blob *model, const char *dir, int *fd, uint64_t *len, err *e);
/* Checks that it is a whole safetensors file: ERR_CORRUPT. */
int npz_model_check(blob *model, err *e);

#endif
