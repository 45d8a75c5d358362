/* model_blob.h: finds the blob of a job's model: `models/<job>/final`, or, without it, the newest
 * checkpoint, `models/<job>/epoch-NNNNNN`. */
#ifndef KUBEML_MODEL_BLOB_H
#define KUBEML_MODEL_BLOB_H

#include "common/base/err.h"
#include "store.h"

/* Opens the blob, or gives its name. ERR_NOT_FOUND: the job has neither. Both block on the
 * store. */
int model_blob_open(store *s, const char *job, blob **out, err *e);
int model_blob_find(store *s, const char *job, char name[STORE_KEY_BYTES], err *e);

#endif
