/* code_blob.h: blobs of functions' code, `objects/KEY` and `sources/DIGEST`, until nobody names
 * them.
 *
 * They are named by their content, so that several functions may share one, and a job that has
 * ended serves its model with what a function once was. A record of collection `code` by the blob's
 * name,
 * {"when_ms"}, is there before the blob is looked for or written, and newer each time: what no
 * function's versions and no job's record name a day later goes. "goes" in that record says that it
 * is being removed; whoever wants it meanwhile waits, so that none goes that a record is to name.
 */
#ifndef KUBEML_CODE_BLOB_H
#define KUBEML_CODE_BLOB_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/store/store.h"

#define CODE_BLOB_KEPT_MS ((int64_t)24 * 3600 * 1000)

/* Before the blob is looked for or written. ERR_UNAVAILABLE: it is being removed. */
int code_blob_note(store *s, const char *name, int64_t wall_ms, err *e);
/* For who leads; one at a time. A blob without a record, of a version before, gets one. */
int code_blob_sweep(store *s, int64_t wall_ms, size_t *removed, err *e);

#endif
