/* fit.h: `kubeml-function fit OBJECT DATASET`: does the code of that object take the samples and
 * labels of that data set (dataset_info_json)? Both are descriptors. builder_fit.h asks.
 *
 * Prints {} or {"code", "message"}, the message naming the layer, or both numbers; exit status 0.
 * Anything else is no answer. */
#ifndef KUBEML_FIT_H
#define KUBEML_FIT_H

int fit_command(const char *object, const char *about);

#endif
