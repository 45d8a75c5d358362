/* http_client.h: calls to an HTTP API, on libcurl.
 *
 * A call blocks until its reply is whole, its sink refuses, it is over, or a limit is reached:
 * connecting takes at most connect_ms, the whole call total_ms (0: none), and a transfer that moves
 * nothing for idle_s ends, as does one whose server answers no probe of TCP's for about two
 * minutes. The environment's proxy (http_proxy, no_proxy, ...) is used as libcurl does, but for
 * calls to this machine itself. A status of 400 and above is an error whose message is the problem
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
    const char *filename; /* what the server sees; NULL: the path's last component */
    const char *bytes;
    size_t len;
} http_part;

typedef struct http_call {
    const char *method, *url;
    const char *token;        /* NULL or "": no Authorization header */
    /* `url` goes through this API server, which takes Authorization for itself: `token` travels as
     * HTTP_TOKEN_HEADER. NULL: it does not */
    const kube_config *kube;
    bool hop;                 /* sent with HTTP_HOP_HEADER */
    bool direct;              /* between our programs: the environment's proxy gets none of it */
    const char *accept;       /* NULL: application/json */
    const char *body;         /* with content_type; NULL: none */
    size_t body_len;
    const char *content_type; /* NULL: application/json */
    const http_part *parts;   /* a multipart body instead */
    size_t part_count;
    int connect_ms, idle_s; /* 0: the defaults; idle_s -1: never (logs that are followed) */
    int64_t total_ms;
    /* Takes a successful reply's bytes as they come, instead of `out->body`. Non-zero ends the call
     * without an error. */
    int (*sink)(void *context, const char *bytes, size_t len);
    /* Told what was sent so far, of how much; of a call that sends nothing, what was received. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    /* Asked every second or more often, whether or not anything comes: true ends the call without
     * an error. */
    bool (*over)(void *context);
    void *context;
} http_call;

typedef struct http_reply {
    long status;
    char content_type[80];
    /* of a list's page, where the next one is: the header Link's rel="next"; "": nowhere */
    char next[HTTP_NEXT_BYTES];
    buf body;
} http_reply;

/* `out` is set up by the call and released with http_reply_free, whatever it returns.
 * ERR_UNAVAILABLE when nobody answers (os_errno ECONNREFUSED when nobody listens there, ECONNRESET
 * when the connection ended before the reply did), ERR_TIMEOUT (os_errno ETIMEDOUT when it was up
 * before anything was asked), and what the status means. When the server sent a problem document it
 * stays in out->body. */
int http_call_run(const http_call *call, http_reply *out, err *e);
void http_reply_free(http_reply *reply);

/* What the body says as JSON (new reference), NULL with ERR_CORRUPT otherwise. */
json_t *http_reply_json(const http_reply *reply, err *e);

/* Appends `text` percent-encoded, so that it is one path segment or query value. */
int http_encode(buf *out, const char *text, err *e);

#endif
