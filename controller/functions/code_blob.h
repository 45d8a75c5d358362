/* code_blob.h: blobs of functions' code, `objects/KEY` and `sources/DIGEST`, and when to remove
 * them.
 *
 * Blobs are named by their content, so that several functions may share a blob, and an ended job
 * serves its model with an earlier version of its function. A record of collection `code` by the
 * blob's name, {"when_ms"}, is written before the blob is looked for or written, and renewed each
 * time. A day after that the sweep removes blobs that no function's versions and no job's record
 * name. "goes" in the record marks a blob that is being removed; a writer that needs it meanwhile
 * waits, so that no blob is removed that a record is about to name. */
#ifndef KUBEML_CODE_BLOB_H
#define KUBEML_CODE_BLOB_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/store/store.h"

#define CODE_BLOB_KEPT_MS ((int64_t)24 * 3600 * 1000)

/* Writes the note, before the blob is looked for or written. ERR_UNAVAILABLE: it is being
 * removed. */
int code_blob_note(store *s, const char *name, int64_t wall_ms, err *e);
/* Removes blobs that nothing names; for the leader, one call at a time. A blob of an earlier
 * version of the program, without a record, gets one. */
int code_blob_sweep(store *s, int64_t wall_ms, size_t *removed, err *e);

#endif
