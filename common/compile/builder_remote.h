/* builder_remote.h: builder.h in a pod of its own, over HTTP: both ends of it.
 *
 * POST /build {"files": [{"name", "text"}]} gives {"key", "object" (base64), "seconds", "text"}, or
 * a problem document with the members of builder_said_json. POST /fit {"object" (base64),
 * "dataset"} gives {"fits": true}, or false and "message", or a problem document. The one who asks
 * is known by a bearer token. */
#ifndef KUBEML_BUILDER_REMOTE_H
#define KUBEML_BUILDER_REMOTE_H

#include <jansson.h>

#include "builder.h"
#include "shape_check.h"

enum {
    BUILDER_REQUEST_BYTES_MAX = 8 << 20,
    SHAPE_CHECK_BYTES_MAX = 32 << 20, /* an object in base64, and a data set's record */
    /* of one try; another's build may be under way */
    BUILDER_ANSWER_MS = 2 * BUILDER_WALL_MS + 15000,
    BUILDER_AWAY_MS = 20000, /* a builder that is not there is asked again for so long */
};

typedef struct builder_remote {
    const char *url, *token;
} builder_remote;

/* As builder_compile, there. A build has no effect but its answer, so that one which was lost is
 * asked for again. ERR_UNAVAILABLE when no builder answers. */
int builder_remote_compile(const builder_remote *where, const builder_source *files, size_t n,
                           builder_result *out, err *e);

/* As shape_check, there. Asked once: a builder that is away leaves it unknown. */
int builder_remote_shape_check(const builder_remote *where, const void *object, size_t len,
                               const json_t *dataset, err *e);

/* What the compiler said: {"diagnostics": [{"file", "line", "column", "severity", "message"}],
 * "compiler_output"}. New reference. */
json_t *builder_said_json(const builder_result *r);
/* The other end. The sources point into `request`. ERR_INVALID, ERR_LIMIT. */
int builder_request_read(const json_t *request, builder_source files[BUILDER_FILES_MAX], size_t *n,
                         err *e);
json_t *builder_built_json(const builder_result *r); /* new reference; NULL: no memory */
/* *object is the caller's to free, *dataset points into `request`. ERR_INVALID, ERR_LIMIT. */
int shape_check_read(const json_t *request, unsigned char **object, size_t *len, json_t **dataset,
                     err *e);
/* Of what shape_check returned, 0 or 1. New reference; NULL: no memory. */
json_t *shape_check_json(int misfit, const err *e);

#endif
