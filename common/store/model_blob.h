/* model_blob.h: which blob is a job's model: `models/<job>/final`, and of a job that has none its
 * newest checkpoint, `models/<job>/epoch-NNNNNN`. */
#ifndef KUBEML_MODEL_BLOB_H
#define KUBEML_MODEL_BLOB_H

#include "common/base/err.h"
#include "store.h"

/* Opens it, or tells its name. ERR_NOT_FOUND: none of the two is there. Block on the store. */
int model_blob_open(store *s, const char *job, blob **out, err *e);
int model_blob_find(store *s, const char *job, char name[STORE_KEY_BYTES], err *e);

#endif
