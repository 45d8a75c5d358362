/* shape_check_run.h: `kubeml-function fit OBJECT DATASET`: does the code of that object take the
 * samples and labels of that data set (dataset_info_json)? Both are descriptors. shape_check.h
 * asks.
 *
 * Prints {} or {"code", "message"}, the message naming the layer, or both numbers; exit status 0.
 * Anything else is no answer. */
#ifndef KUBEML_SHAPE_CHECK_RUN_H
#define KUBEML_SHAPE_CHECK_RUN_H

int shape_check_command(const char *object, const char *about);

#endif
