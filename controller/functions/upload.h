/* upload.h: weights that were uploaded for jobs to begin with (`init`), until no job names them.
 *
 * A record of collection `uploads` by the model's id, {"when_ms"}, is written before the model can
 * be seen. A model that no job names a day later is deleted: no list shows it, and the client that
 * uploaded it may have been killed before it made a job. */
#ifndef KUBEML_UPLOAD_H
#define KUBEML_UPLOAD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/store/store.h"

#define UPLOAD_KEPT_MS ((int64_t)24 * 3600 * 1000)

int upload_note(store *s, const char *id, int64_t wall_ms, err *e);
/* The models that may be deleted, as an object's keys; a new reference. */
int upload_find_left(store *s, int64_t wall_ms, json_t **out, err *e);
/* Deletes a model and its record, unless a job names it by now; the caller holds it
 * (job_delete_hold). */
int upload_drop(store *s, const char *id, err *e);
/* Deletes all blobs of a job's or an uploaded model, and counts them. */
int upload_delete_model(store *s, const char *id, size_t *count, err *e);

#endif
