/* build_failure.h: the last upload of each function's name that did not compile, for who asks later
 * why there is no such function, or no newer version of it.
 *
 * A record of collection `refusals` by the function's name, as the API shows it: {"when", "asked":
 * "create"|"update", "reason": "CompileError"|"CompileLimit", "error", "diagnostics": [{"file",
 * "line", "column", "severity", "message"}], "omitted"}. It lies in the store, so that a restarted
 * controller and another one know it too. It goes with the next upload of that name that is built,
 * and with the function. */
#ifndef KUBEML_BUILD_FAILURE_H
#define KUBEML_BUILD_FAILURE_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "common/store/store.h"

enum {
    BUILD_FAILURES_MAX = 64,             /* names that are kept; above that the oldest goes */
    BUILD_FAILURE_SAID_BYTES = 16 << 10, /* of one name's diagnostics, as JSON */
};

/* Keeps that the build of an upload failed with `why`, and what the compiler said (`said` of
 * builder_said_json, borrowed, may be NULL). A store that does not take it is logged and no more:
 * whoever uploads is told of his code. */
void build_failure_keep(store *s, const char *name, bool update, const err *why,
                        const json_t *said);
/* There need not be one. What fails is logged. */
void build_failure_drop(store *s, const char *name);
/* A new reference; ERR_NOT_FOUND. */
int build_failure_get(store *s, const char *name, json_t **out, err *e);
/* `e` says that there is no such function: it says of a refused upload too, if there was one. */
void build_failure_tell(store *s, const char *name, err *e);

/* As the API explains a function, from its record and its refusal, either of which may be NULL:
 * {"name", "state", "reason", "message", "evidence", "version", "refused"}. New reference; NULL: no
 * memory. */
json_t *build_failure_explain(const char *name, const json_t *function,
                              const json_t *build_failure);

#endif
