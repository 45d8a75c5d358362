/* build_failure.h: the last upload of each function name that did not compile, for clients that ask
 * later why there is no such function, or no newer version of it.
 *
 * A record of collection `refusals` by the function's name, as the API shows it: {"when", "asked":
 * "create"|"update", "reason": "CompileError"|"CompileLimit", "error", "diagnostics": [{"file",
 * "line", "column", "severity", "message"}], "omitted"}. It is in the store, so that a restarted
 * controller and other controllers have it too. The next upload of that name that compiles deletes
 * it, and so does deleting the function. */
#ifndef KUBEML_BUILD_FAILURE_H
#define KUBEML_BUILD_FAILURE_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "common/store/store.h"

enum {
    BUILD_FAILURES_MAX = 64,             /* names with a record; above this the oldest is dropped */
    BUILD_FAILURE_SAID_BYTES = 16 << 10, /* of one name's diagnostics, as JSON */
};

/* Keeps that the build of an upload failed with `why`, and the compiler's output (`said` of
 * builder_said_json, borrowed, may be NULL). Where the store does not take it, this only logs: the
 * client that uploads gets the failure in its response. */
void build_failure_keep(store *s, const char *name, bool update, const err *why,
                        const json_t *said);
/* Drops the record, if there is one. A failure is logged. */
void build_failure_drop(store *s, const char *name);
/* A new reference; ERR_NOT_FOUND. */
int build_failure_get(store *s, const char *name, json_t **out, err *e);
/* `e` says that there is no such function: adds the last failed upload to it, if there is one. */
void build_failure_tell(store *s, const char *name, err *e);

/* A function as the API explains it, from its record and its build failure, either of which may be
 * NULL: {"name", "state", "reason", "message", "evidence", "version", "refused"}. New reference;
 * NULL: no memory. */
json_t *build_failure_explain(const char *name, const json_t *function,
                              const json_t *build_failure);

#endif
