/* http_server.h: the API's HTTP server: routes, bodies, answers, limits and deadlines.
 *
 * A thin layer over libmicrohttpd. Its own threads (epoll) only move bytes; a handler runs in a
 * worker thread and may block, so that a slow request never holds up another. Every request has an
 * absolute deadline for its headers and body (an upload: a minimum rate), kept by a timer of our
 * own that shuts the socket down: libmicrohttpd's own time-out counts inactivity only. Errors are
 * RFC 9457 problem documents that also carry the first KubeML's "code" and "error".
 *
 * Whoever has hung up is not worked for: a request is not begun, a stream with nothing to send
 * ends. That is looked at after `quiet_ms`; a client that only shut down its sending side cannot be
 * told from one that is gone, and is served where it need not wait for so long. What is held of
 * bodies is bounded; the last quarter is for small ones and uploads, which others do not shut out.
 *
 * What the server refuses by itself, before a handler runs: an unknown path (404), another method
 * (405 with Allow), no or a wrong token (401), a foreign Origin or, without tokens, Host (403), an
 * unknown query parameter or a malformed path (400), a media type it does not take (415) or cannot
 * give (406), a body without a length (411), with two (400), in a coding (415, 501) or over the
 * route's limit (413), a URI over HTTP_URI_BYTES_MAX (414). */
#ifndef KUBEML_HTTP_SERVER_H
#define KUBEML_HTTP_SERVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tokens.h"

enum {
    HTTP_URI_BYTES_MAX = 8 << 10,
    HTTP_JSON_BYTES_MAX = 1 << 20, /* what a JSON route takes unless it says otherwise */
    HTTP_JSON_DEPTH_MAX = 32,
    HTTP_DRAIN_BYTES_MAX =
        16 << 20,                /* of a refused body, so that the client reads why; streams: all */
    HTTP_RING_BYTES = 256 << 10, /* an upload's bytes between socket and handler */
    HTTP_BODIES_BYTES_MAX = 128 << 20, /* of all bodies held at once, rings included */
    HTTP_STREAM_BYTES_MAX = 1 << 20,   /* an event stream's bytes its client has not read */
    HTTP_STREAM_STUCK_MS = 30000,      /* a client that reads nothing of more than that */
    HTTP_SEGMENTS_MAX = 8,
    HTTP_QUERIES_MAX = 8,
    HTTP_HEADERS_MAX = 8,
};

typedef struct http_server http_server;
typedef struct http_request http_request;
typedef struct http_stream http_stream;

typedef enum http_body {
    HTTP_BODY_NONE,   /* a body is read and ignored, up to HTTP_JSON_BYTES_MAX */
    HTTP_BODY_WHOLE,  /* handed to the handler in one piece: http_body_bytes, http_body_json */
    HTTP_BODY_STREAM, /* the handler reads it while it comes: http_body_read */
} http_body;

typedef struct http_route {
    const char *method;      /* "GET" answers HEAD too */
    const char *pattern;     /* "/tasks/{id}/logs"; a segment in braces is a parameter */
    void (*handle)(http_request *r, void *context); /* must reply exactly once */
    http_body body;
    const char *takes;       /* the body's media types, comma-separated; NULL: any */
    const char *gives;       /* the answer's, the preferred first; NULL: application/json */
    const char *queries;     /* known query parameters, comma-separated; NULL: none */
    uint64_t body_bytes_max; /* 0: HTTP_JSON_BYTES_MAX */
    /* How long it may block, by which it leaves workers to others: for as long as its client likes
     * (half of them; where it reads a stream three eighths), or for seconds (together with those a
     * quarter). */
    bool slow, waits;
    bool open;               /* needs no token */
    bool led;                /* config.divert may answer instead of the handler */
    bool live;               /* answered without the store: config.refuse's matter */
} http_route;

typedef struct http_config {
    const char *host; /* "127.0.0.1", "0.0.0.0", "::1" */
    uint16_t port;    /* 0: the kernel picks one */
    int listen_fd;    /* of http_server_listen, taken over instead of host and port; 0: none */
    const http_route *routes;
    size_t route_count;
    void *context;     /* handed to handlers */
    /* that are taken, the caller's; NULL: none is asked for, and only `open` routes answer to
     * another user of this machine than root and our own, as far as peer.h tells. A token comes as
     * Authorization: Bearer, or as HTTP_TOKEN_HEADER where a proxy in between keeps Authorization
     * for itself */
    const tokens *tokens;
    /* 0: the default in brackets */
    int connections_max; /* [4096] */
    int event_threads;   /* [2] */
    int workers_max;     /* [16] */
    int header_ms;       /* a new connection's headers [30000] */
    int idle_ms;         /* between two requests [60000] */
    int body_ms;         /* a whole body; the grace of a stream [30000] */
    int rate_min;        /* bytes a second of a stream after the grace [16384] */
    int queue_ms;        /* what has come whole waits for a worker, then 503 [60000] */
    int quiet_ms;        /* waited, or sent nothing: has the client hung up? [2000] */
    size_t bodies_bytes_max; /* [HTTP_BODIES_BYTES_MAX] */
    /* Called after each answer, from a worker or event thread; may be NULL. `seconds` is below 0 of
     * a stream, which lasts as long as there is something to tell, and tells nothing of us. */
    void (*observe)(void *context, const char *method, const char *pattern, unsigned status,
                    double seconds);
    /* Asked first, in a worker: true when it has answered, with why it is not done. NULL: never. */
    bool (*refuse)(void *context, const http_route *route, http_request *r);
    /* Asked in a worker before the handler of a route that is `led`: true when it has answered.
     * NULL: never. */
    bool (*divert)(void *context, http_request *r);
} http_config;

/* Binds and listens without answering yet, so that a taken port is known before anything else is
 * done. ERR_EXISTS when it is taken, ERR_INVALID, ERR_IO. The descriptor, or -1. */
int http_server_listen(const char *host, uint16_t port, err *e);
/* Starts to listen and to answer. ERR_EXISTS when the port is taken, ERR_INVALID, ERR_IO. */
int http_server_start(const http_config *config, http_server **out, err *e);
uint16_t http_server_port(const http_server *s);
/* No new requests; open streams end; waits up to `grace_ms` for handlers. False: some are still at
 * work. Then nothing of the server is given back, and what handlers and `config` use must stay
 * until the process ends. NULL is fine: true. */
bool http_server_stop(http_server *s, int grace_ms);
size_t http_server_held(http_server *s); /* bytes of bodies */

/* Whether a Host header's value names this machine itself, with any port: localhost, 127.x.y.z,
 * [::1]. */
bool http_host_is_local(const char *host);

#define HTTP_TOKEN_HEADER "X-KubeML-Token"
#define HTTP_HOP_HEADER "X-KubeML-Forwarded" /* of a request that another server of ours hands on */

/* ---- for handlers ---------------------------------------------------------------------------- */

const char *http_uri(const http_request *r); /* path and query as they came */
bool http_is_forwarded(const http_request *r); /* it has HTTP_HOP_HEADER */
/* config.observe is not called: who it was handed on to has counted it. Before the answer. */
void http_leave_uncounted(http_request *r);
/* whose token came with it; "": nobody's in particular */
const char *http_user(const http_request *r);

const char *http_param(const http_request *r, const char *name); /* of the pattern; never NULL */
const char *http_query(const http_request *r, const char *name); /* NULL when not given */
bool http_type_is(const http_request *r, const char *type); /* the body's, parameters aside */
const char *http_content_type(const http_request *r); /* of the body; never NULL */
const char *http_method(const http_request *r);
/* The media type, among the route's `gives`, that the client likes best. */
const char *http_accepted(const http_request *r);
bool http_has_accept(const http_request *r);

/* The whole body; NUL-terminated, which is not counted. */
const char *http_body_bytes(const http_request *r, size_t *len);
/* Parses it: ERR_INVALID with line and column; new reference in *out, always an object. */
int http_body_json(const http_request *r, json_t **out, err *e);
/* Blocks until some bytes of a streamed body are there: their number, 0 at its end, -1 with
 * ERR_TIMEOUT (too slow), ERR_LIMIT (over the route's maximum) or ERR_UNAVAILABLE (client gone). */
ssize_t http_body_read(http_request *r, void *out, size_t max, err *e);
int64_t http_body_length(const http_request *r); /* as announced; -1: not announced */

/* Adds a header to the reply to come; both are copied. Values from outside must be checked
 * first. */
void http_add_header(http_request *r, const char *name, const char *value);

void http_response_json(http_request *r, unsigned status, json_t *body); /* steals body */
void http_response_bytes(http_request *r, unsigned status, const char *type, const void *bytes,
                         size_t len);
void http_response_text(http_request *r, unsigned status, const char *type, const char *text);
/* A problem document; the status is the error code's. */
void http_response_error(http_request *r, const err *e);
/* The same with another status and members of its own (stolen; NULL: none). */
void http_response_problem(http_request *r, unsigned status, const err *e, json_t *members);
/* Sends `len` bytes of a file from its beginning; takes the descriptor. */
void http_response_file(http_request *r, const char *type, int fd, uint64_t len);
/* Sends what `read` gives until it gives 0 (end) or -1 (cut off); called in an event thread, so it
 * must not wait. `len` UINT64_MAX: not known before. `close` is called once at the end. */
void http_response_source(http_request *r, const char *type, uint64_t len,
                          ssize_t (*read)(void *source, void *out, size_t max),
                          void (*close)(void *source), void *source);
/* An open answer that is written to later, from any thread. The caller owns the handle. */
http_stream *http_response_stream(http_request *r, const char *type);

/* False when the client is gone or reads too slowly; what was written is then dropped. */
bool http_stream_write(http_stream *s, const void *bytes, size_t len);
/* Writes as much of `pending` as there is room for and takes it from there, for what may be longer
 * than a stream holds. False when the client is gone, or has taken nothing for HTTP_STREAM_STUCK_MS
 * (*stuck_ms is the caller's, 0 at first): nothing of it will be read any more. */
bool http_stream_push(http_stream *s, buf *pending, int64_t *stuck_ms);
bool http_stream_alive(http_stream *s);
/* Ends the answer after what was written, and gives the handle back. */
void http_stream_close(http_stream *s);

#endif
