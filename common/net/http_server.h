/* http_server.h: the API's HTTP server: routes, bodies, responses, limits and deadlines.
 *
 * A thin layer over libmicrohttpd, whose threads (epoll) only move bytes. A handler runs in a
 * worker thread and may block, so that a slow request never delays another request. Every request
 * has an absolute deadline for its headers and body (an upload: a minimum rate). A timer thread
 * shuts the socket down at the deadline, because libmicrohttpd's own time-out counts inactivity
 * only. Errors are RFC 9457 problem documents that also have the first KubeML's "code" and "error".
 *
 * The server does no work for a client that has hung up: its waiting request is not begun, its
 * stream with nothing to send ends. The server checks after `quiet_ms`. A client that only shut
 * down its sending side looks the same as a lost client, and is served only if it need not wait for
 * so long. The memory for bodies is bounded; its last quarter is for small bodies and uploads, so
 * that large bodies do not shut these out.
 *
 * Before a handler runs, the server itself refuses:
 *   400  an unknown query parameter, a malformed path, a body with two lengths
 *   401  no token, or a wrong token
 *   403  a foreign Origin or, without tokens, a foreign Host
 *   404  an unknown path
 *   405  another method (with Allow)
 *   406  an Accept header without the route's media types
 *   411  a body without a length
 *   413  a body over the route's limit
 *   414  a URI over HTTP_URI_BYTES_MAX
 *   415  a body of another media type or in a content coding
 *   501  a body in an unknown transfer coding */
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
    HTTP_JSON_BYTES_MAX = 1 << 20, /* a route's default limit of a body */
    HTTP_JSON_DEPTH_MAX = 32,
    /* Bytes of a refused body that are read and dropped, so that the client reads the reason.
     * Refused streams are read to their end. */
    HTTP_DRAIN_BYTES_MAX = 16 << 20,
    HTTP_RING_BYTES = 256 << 10, /* an upload's bytes between socket and handler */
    HTTP_BODIES_BYTES_MAX = 128 << 20, /* of all bodies held at once, rings included */
    HTTP_STREAM_BYTES_MAX = 1 << 20,   /* an event stream's bytes that its client has not read */
    HTTP_STREAM_STUCK_MS = 30000, /* http_stream_push: how long a client may read nothing */
    HTTP_SEGMENTS_MAX = 8,
    HTTP_QUERIES_MAX = 8,
    HTTP_HEADERS_MAX = 8,
};

typedef struct http_server http_server;
typedef struct http_request http_request;
typedef struct http_stream http_stream;

typedef enum http_body {
    HTTP_BODY_NONE,   /* a body is read and ignored, up to HTTP_JSON_BYTES_MAX */
    HTTP_BODY_WHOLE,  /* the handler gets it in one piece: http_body_bytes, http_body_json */
    HTTP_BODY_STREAM, /* the handler reads it while it arrives: http_body_read */
} http_body;

typedef struct http_route {
    const char *method;      /* "GET" serves HEAD too */
    const char *pattern;     /* "/tasks/{id}/logs"; a segment in braces is a parameter */
    void (*handle)(http_request *r, void *context); /* must respond exactly once */
    http_body body;
    const char *takes;       /* the body's media types, comma-separated; NULL: any */
    const char *gives;       /* the response's, the preferred first; NULL: application/json */
    const char *queries;     /* known query parameters, comma-separated; NULL: none */
    uint64_t body_bytes_max; /* 0: HTTP_JSON_BYTES_MAX */
    /* How long the handler may block. `slow`: as long as its client likes; such routes use at most
     * half of the workers, those with a HTTP_BODY_STREAM at most three eighths. `waits`: for
     * seconds; both kinds together use at most three quarters. */
    bool slow, waits;
    bool open;               /* needs no token */
    bool led;                /* config.divert may respond instead of the handler */
    bool live;               /* the handler needs no store; read by config.refuse */
} http_route;

typedef struct http_config {
    const char *host; /* "127.0.0.1", "0.0.0.0", "::1" */
    uint16_t port;    /* 0: the kernel picks one */
    int listen_fd;    /* from http_server_listen, taken over instead of host and port; 0: none */
    const http_route *routes;
    size_t route_count;
    void *context;     /* passed to handlers */
    /* The accepted tokens; the caller keeps them. NULL: requests need no token, and where peer.h
     * can ask, only `open` routes serve users of this machine other than root and our own user. A
     * token comes as Authorization: Bearer, or as HTTP_TOKEN_HEADER where a proxy in between takes
     * Authorization for itself. */
    const tokens *tokens;
    /* 0: the default in brackets */
    int connections_max; /* [4096] */
    int event_threads;   /* [2] */
    int workers_max;     /* [16] */
    int header_ms;       /* a new connection's headers [30000] */
    int idle_ms;         /* between two requests [60000] */
    int body_ms;         /* a whole body; the grace of a stream [30000] */
    int rate_min;        /* bytes a second of a stream after the grace [16384] */
    int queue_ms;        /* a whole request's wait for a worker, then 503 [60000] */
    int quiet_ms;        /* a wait after which the server checks for a hung-up client [2000] */
    size_t bodies_bytes_max; /* [HTTP_BODIES_BYTES_MAX] */
    /* Called after each response, from a worker or event thread; may be NULL. `seconds` is below 0
     * for a stream: its duration says nothing about the server. */
    void (*observe)(void *context, const char *method, const char *pattern, unsigned status,
                    double seconds);
    /* Called first, in a worker: true when it has responded with the reason for a refusal. May be
     * NULL. */
    bool (*refuse)(void *context, const http_route *route, http_request *r);
    /* Called in a worker before the handler of a `led` route: true when it has responded. May be
     * NULL. */
    bool (*divert)(void *context, http_request *r);
} http_config;

/* Binds and listens, but serves nothing yet, so that the caller knows early whether the port is
 * taken. ERR_EXISTS when it is taken, ERR_INVALID, ERR_IO. Returns the descriptor, or -1. */
int http_server_listen(const char *host, uint16_t port, err *e);
/* Starts to listen and to serve. ERR_EXISTS when the port is taken, ERR_INVALID, ERR_IO. */
int http_server_start(const http_config *config, http_server **out, err *e);
uint16_t http_server_port(const http_server *s);
/* Takes no new requests, ends open streams, and waits up to `grace_ms` for handlers. False: some
 * handlers still run. Then the server is not freed, and everything that handlers and `config` use
 * must stay until the process ends. NULL is fine: true. */
bool http_server_stop(http_server *s, int grace_ms);
size_t http_server_held(http_server *s); /* bytes of bodies held now */

/* Whether a Host header's value names this machine itself, with any port: localhost, 127.x.y.z,
 * [::1]. */
bool http_host_is_local(const char *host);

#define HTTP_TOKEN_HEADER "X-KubeML-Token"
#define HTTP_HOP_HEADER "X-KubeML-Forwarded" /* marks a request forwarded by another controller */

/* ---- for handlers ---------------------------------------------------------------------------- */

const char *http_uri(const http_request *r); /* path and query, not decoded */
bool http_is_forwarded(const http_request *r); /* it has HTTP_HOP_HEADER */
/* Suppresses config.observe: the server that got the forwarded request counts it. Call it before
 * the response. */
void http_leave_uncounted(http_request *r);
/* The user of the request's token; "": the token has no user, or there is no token. */
const char *http_user(const http_request *r);

const char *http_param(const http_request *r, const char *name); /* of the pattern; never NULL */
const char *http_query(const http_request *r, const char *name); /* NULL when not given */
bool http_type_is(const http_request *r, const char *type); /* the body's, without parameters */
const char *http_content_type(const http_request *r); /* of the body; never NULL */
const char *http_method(const http_request *r);
/* The media type, among the route's `gives`, that the client prefers. */
const char *http_accepted(const http_request *r);
bool http_has_accept(const http_request *r);

/* The whole body, the request's; a NUL that is not counted follows it. */
const char *http_body_bytes(const http_request *r, size_t *len);
/* Parses the whole body: ERR_INVALID with line and column, ERR_LIMIT; a new reference in *out,
 * always an object. */
int http_body_json(const http_request *r, json_t **out, err *e);
/* Blocks until some bytes of a streamed body are there: their number, 0 at its end, -1 with
 * ERR_LIMIT (over the route's maximum), ERR_UNAVAILABLE (the client is gone or too slow) or
 * ERR_NOMEM. */
ssize_t http_body_read(http_request *r, void *out, size_t max, err *e);
int64_t http_body_length(const http_request *r); /* as announced; -1: not announced */

/* Adds a header to the coming response; copies both. The caller checks values from outside first.
 */
void http_add_header(http_request *r, const char *name, const char *value);

void http_response_json(http_request *r, unsigned status, json_t *body); /* steals body */
void http_response_bytes(http_request *r, unsigned status, const char *type, const void *bytes,
                         size_t len);
void http_response_text(http_request *r, unsigned status, const char *type, const char *text);
/* Responds with a problem document and the error code's status. */
void http_response_error(http_request *r, const err *e);
/* The same with another status and additional members (stolen; NULL: none). */
void http_response_problem(http_request *r, unsigned status, const err *e, json_t *members);
/* Sends `len` bytes of a file from its beginning; takes over the descriptor. */
void http_response_file(http_request *r, const char *type, int fd, uint64_t len);
/* Sends the bytes that `read` returns, until it returns 0 (end) or -1 (the response is cut off).
 * `read` runs in an event thread and must not block. `len` UINT64_MAX: the length is not known.
 * `close` is called once at the end. */
void http_response_source(http_request *r, const char *type, uint64_t len,
                          ssize_t (*read)(void *source, void *out, size_t max),
                          void (*close)(void *source), void *source);
/* Begins a response that is written later, from any thread. The caller owns the handle. */
http_stream *http_response_stream(http_request *r, const char *type);

/* False when the client is gone or reads too slowly; the bytes are then dropped. Does not block. */
bool http_stream_write(http_stream *s, const void *bytes, size_t len);
/* Moves as many bytes from `pending` into the stream as there is room for: for texts that may be
 * longer than HTTP_STREAM_BYTES_MAX. False when the client is gone, or has taken nothing for
 * HTTP_STREAM_STUCK_MS; the caller then gives up. *stuck_ms is the caller's, 0 at first. */
bool http_stream_push(http_stream *s, buf *pending, int64_t *stuck_ms);
bool http_stream_alive(http_stream *s);
/* Ends the response after the written bytes, and frees the handle. */
void http_stream_close(http_stream *s);

#endif
