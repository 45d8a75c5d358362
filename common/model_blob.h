/* model_blob.h: which blob is a job's model: `models/<job>/final`, and of a job that has none its
 * newest checkpoint, `models/<job>/epoch-NNNNNN`. */
#ifndef KUBEML_MODEL_BLOB_H
#define KUBEML_MODEL_BLOB_H

#include "err.h"
#include "store.h"

/* Opens it. ERR_NOT_FOUND: none of the two is there. Blocks on the store. */
int model_blob_open(store *s, const char *job, blob **out, err *e);

#endif
