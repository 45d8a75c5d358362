/* builder_remote.h: builder.h over HTTP, in a pod of its own: client and server side.
 *
 * POST /build {"files": [{"name", "text"}]} returns {"key", "object" (base64), "seconds", "text"},
 * or a problem document with the members of builder_said_json. POST /fit {"object" (base64),
 * "dataset"} returns {"fits": true}, or {"fits": false, "message"}, or a problem document. A bearer
 * token authenticates the client. */
#ifndef KUBEML_BUILDER_REMOTE_H
#define KUBEML_BUILDER_REMOTE_H

#include <jansson.h>

#include "builder.h"
#include "shape_check.h"

enum {
    BUILDER_REQUEST_BYTES_MAX = 8 << 20,
    SHAPE_CHECK_BYTES_MAX = 32 << 20, /* an object in base64, and a data set's record */
    /* time-out of one try, in which the builder may finish another client's build first */
    BUILDER_ANSWER_MS = 2 * BUILDER_WALL_MS + 15000,
    BUILDER_AWAY_MS = 20000, /* how long to retry while no builder responds */
};

typedef struct builder_remote {
    const char *url, *token;
} builder_remote;

/* builder_compile in the remote builder; blocks. A lost build is requested again, because a build
 * has no effect except its result. ERR_UNAVAILABLE when no builder responds. */
int builder_remote_compile(const builder_remote *where, const builder_source *files, size_t n,
                           builder_result *out, err *e);

/* shape_check in the remote builder. Tries once: without a builder the result is unknown (-1). */
int builder_remote_shape_check(const builder_remote *where, const void *object, size_t len,
                               const json_t *dataset, err *e);

/* The compiler's messages: {"diagnostics": [{"file", "line", "column", "severity", "message"}],
 * "compiler_output"}. New reference. */
json_t *builder_said_json(const builder_result *r);

/* The server side. */
/* Reads the request of /build. The sources point into `request`. ERR_INVALID, ERR_LIMIT. */
int builder_request_read(const json_t *request, builder_source files[BUILDER_FILES_MAX], size_t *n,
                         err *e);
/* The response of /build. New reference; NULL: no memory. */
json_t *builder_built_json(const builder_result *r);
/* Reads the request of /fit. *object is the caller's to free, *dataset points into `request`.
 * ERR_INVALID, ERR_LIMIT. */
int shape_check_read(const json_t *request, unsigned char **object, size_t *len, json_t **dataset,
                     err *e);
/* The response of /fit; `misfit` is the result of shape_check, 0 or 1. New reference; NULL: no
 * memory. */
json_t *shape_check_json(int misfit, const err *e);

#endif
