/* shape_check_run.h: `kubeml-function fit OBJECT DATASET`: checks that the code of an object takes
 * the samples and labels of a dataset (dataset_info_json). Both arguments are descriptors.
 * shape_check.h runs it.
 *
 * Prints {}, or {"code", "message"} where the message names the layer, or both numbers; exit status
 * 0. With another status or output the check has no result. */
#ifndef KUBEML_SHAPE_CHECK_RUN_H
#define KUBEML_SHAPE_CHECK_RUN_H

/* The command; returns the exit status. */
int shape_check_command(const char *object, const char *about);

#endif
