/* shape_check.h: whether compiled code takes a data set's samples, asked of the code itself.
 *
 * The one who knows is somebody else's: `kubeml-function fit` loads the object behind the walls of
 * a function (sandbox.h) and builds its network's graph, with no memory for it. Here it is started,
 * under limits and without an environment. */
#ifndef KUBEML_SHAPE_CHECK_H
#define KUBEML_SHAPE_CHECK_H

#include <jansson.h>

#include "builder.h"

enum {
    SHAPE_CHECK_MS = 5000,
    SHAPE_CHECK_CPU_S = 5,
};

/* 0: it takes the samples; 1: it does not, and `e` has the layer or the label; -1: that is not
 * known, since it crashed, or met a limit, or could not be asked. `program` is the path of
 * kubeml-function, `dataset` what dataset_info_json gives. Blocks for up to SHAPE_CHECK_MS; from
 * several threads at once. */
int shape_check(const char *program, const void *object, size_t len, const json_t *dataset, err *e);

#endif
