/* http_client.h: calls to an HTTP API, on libcurl.
 *
 * A call blocks until its response is whole, its sink or `over` ends it, or a limit is reached:
 *   connect_ms   for connecting
 *   total_ms     for the whole call (0: no limit)
 *   idle_s       without a byte in either direction
 *   2 minutes    (about) in which the server answers no TCP probe
 *
 * The environment's proxy (http_proxy, no_proxy, ...) is used as by libcurl, except for calls to
 * this machine itself. A status of 400 and above is an error whose message is the problem
 * document's detail. */
#ifndef KUBEML_HTTP_CLIENT_H
#define KUBEML_HTTP_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/kube/kube_config.h"

enum {
    HTTP_CONNECT_MS = 5000,
    HTTP_IDLE_S = 60,
    HTTP_REPLY_BYTES_MAX = 64 << 20,
    HTTP_NEXT_BYTES = 512,
};

/* One field of a multipart body: a file that is streamed, or bytes. */
typedef struct http_part {
    const char *field;
    const char *path;     /* NULL: bytes */
    const char *filename; /* sent to the server; NULL: the path's last component */
    const char *bytes;
    size_t len;
} http_part;

typedef struct http_call {
    const char *method, *url;
    const char *token;        /* NULL or "": no Authorization header */
    /* `url` goes through this cluster's API server, which takes Authorization for itself: `token`
     * is sent as HTTP_TOKEN_HEADER. NULL: no API server in between. */
    const kube_config *kube;
    bool hop;                 /* send HTTP_HOP_HEADER */
    bool direct;              /* a call between our programs: never by the environment's proxy */
    const char *accept;       /* NULL: application/json */
    const char *body;         /* with content_type; NULL: none */
    size_t body_len;
    const char *content_type; /* NULL: application/json */
    const http_part *parts;   /* a multipart body instead */
    size_t part_count;
    int connect_ms, idle_s; /* 0: the defaults; idle_s -1: never (logs that are followed) */
    int64_t total_ms;
    /* Takes a successful response's bytes as they arrive, instead of `out->body`. Non-zero ends the
     * call without an error. May be NULL. */
    int (*sink)(void *context, const char *bytes, size_t len);
    /* Called with the bytes sent so far and their total; in a call that sends no body, with the
     * bytes received. May be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    /* Called at least every second, even when no bytes arrive: true ends the call without an error.
     * May be NULL. */
    bool (*over)(void *context);
    void *context;
} http_call;

typedef struct http_reply {
    long status;
    char content_type[80];
    /* path of a list's next page, from the header Link's rel="next"; "": there is no next page */
    char next[HTTP_NEXT_BYTES];
    buf body;
} http_reply;

/* Sets up `out`, which the caller releases with http_reply_free, also after an error. Errors:
 *   ERR_UNAVAILABLE     no response; os_errno ECONNREFUSED: nobody listens there, ECONNRESET: the
 *                       connection ended before the response did
 *   ERR_TIMEOUT         os_errno ETIMEDOUT: the time was up before the request was sent
 *   the status's code   a problem document from the server stays in out->body */
int http_call_run(const http_call *call, http_reply *out, err *e);
void http_reply_free(http_reply *reply);

/* The body as JSON (new reference); NULL with ERR_CORRUPT if it is not JSON. */
json_t *http_reply_json(const http_reply *reply, err *e);

/* Appends `text` percent-encoded, so that it is one path segment or query value. */
int http_encode(buf *out, const char *text, err *e);

#endif
