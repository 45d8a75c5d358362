/* code_shape_check.h: whether a function takes a data set's samples, before there is a job. */
#ifndef KUBEML_CONTROLLER_CODE_SHAPE_CHECK_H
#define KUBEML_CONTROLLER_CODE_SHAPE_CHECK_H

#include "common/dataset/dataset.h"
#include "controller/controller.h"

/* Builds uploaded code's network for that data set's samples and labels. ERR_UNSUPPORTED names the
 * layer or the label. What cannot be checked now is logged, and shows when the job starts. May take
 * seconds. */
int code_shape_check(controller *c, const json_t *function, const dataset_info *data, err *e);

#endif
