/* shape_check.h: checks by running it whether compiled code takes a data set's samples.
 *
 * The code is a user's. So this module starts `kubeml-function fit`, under limits and without an
 * environment. That program loads the object in a function's sandbox (sandbox.h) and builds the
 * graph of its network, without memory for tensors. */
#ifndef KUBEML_SHAPE_CHECK_H
#define KUBEML_SHAPE_CHECK_H

#include <jansson.h>

#include "builder.h"

enum {
    SHAPE_CHECK_MS = 5000,
    SHAPE_CHECK_CPU_S = 5,
};

/* 0: the code takes the samples; 1: it does not, and `e` names the layer or the label; -1: unknown,
 * because the code crashed, met a limit, or could not be run. `program` is the path of
 * kubeml-function, `dataset` the result of dataset_info_json. Blocks for up to SHAPE_CHECK_MS; may
 * be called from several threads at once. */
int shape_check(const char *program, const void *object, size_t len, const json_t *dataset, err *e);

#endif
