/* http_internal.h: what the files of the HTTP server share; nobody else includes it.
 *
 * http_server.c   the daemon, its connections' deadlines, the workers
 * http_request.c  what headers say: checks, and what handlers ask
 * http_body.c     bodies on their way to handlers
 * http_route.c    pure: URIs, routes, Accept and Content-Type
 * http_response.c   answers and open streams
 *
 * A request is held by libmicrohttpd (from the request line to the completed callback) and by the
 * worker that handles it; `lock` guards what both touch. Lock order: request, then libmicrohttpd's
 * own; `server.lock` is taken last and alone. */
#ifndef KUBEML_HTTP_INTERNAL_H
#define KUBEML_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>

#include "common/base/buf.h"
#include "http_server.h"

#define HTTP_NEVER INT64_MAX

/* ---- http_route.c ---------------------------------------------------------------------------- */

typedef struct http_target {
    char *memory; /* the decoded segments and queries lie in here */
    const char *segments[HTTP_SEGMENTS_MAX];
    int segment_count;
    const char *query_names[HTTP_QUERIES_MAX], *query_values[HTTP_QUERIES_MAX];
    int query_count;
} http_target;

/* Splits and percent-decodes "/path?query". ERR_INVALID; ERR_NOT_FOUND for more segments than any
 * route has; ERR_LIMIT for more queries than that. */
int http_target_parse(const char *uri, http_target *out, err *e);
void http_target_free(http_target *t);
bool http_pattern_matches(const char *pattern, const http_target *t);
/* The index of the segment that `{name}` stands at in the pattern, -1. */
int http_pattern_index(const char *pattern, const char *name);
/* True when `item` stands in the comma-separated list. */
bool http_list_has(const char *list, const char *item);
/* Does a Content-Type header name one of the list's types? */
bool http_type_listed(const char *list, const char *content_type);
/* The entry of `gives` that the Accept header likes best, written to `out`; false: none. */
bool http_accept_best(const char *accept, const char *gives, char *out, size_t out_bytes);

/* ---- connections and requests ---------------------------------------------------------------- */

/* Whose a connection is, where that matters. */
typedef enum http_peer {
    HTTP_PEER_UNKNOWN, /* it could not be asked yet */
    HTTP_PEER_OURS,
    HTTP_PEER_STRANGER
} http_peer;

typedef struct http_connection {
    http_server *server;
    int fd;
    int64_t deadline_ms; /* of what it is in now; HTTP_NEVER while we are the ones who work */
    int64_t since_ms;    /* when that began */
    bool idle;           /* no whole request yet */
    http_peer peer;
    struct http_connection *prev, *next;
} http_connection;

typedef struct http_header {
    char name[40];
    char value[256];
} http_header;

struct http_request {
    http_server *server;
    struct MHD_Connection *connection; /* valid while !gone */
    http_connection *conn;
    const http_route *route;
    int64_t started_ns;
    char method[12];
    char *uri;
    http_target target;
    char accepted[48], content_type[256], user[NAME_BYTES];
    bool head, has_accept, forwarded, uncounted;
    bool old;               /* HTTP/1.0 */
    bool last;              /* nothing more is read of its connection */
    int64_t content_length; /* -1: not announced */
    http_header headers[HTTP_HEADERS_MAX];
    int header_count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int refs;
    bool begun, gone, suspended, dispatched, queued;
    struct MHD_Response *response; /* made by the worker, queued by libmicrohttpd's thread */
    unsigned status;
    int64_t send_ms; /* what sending the answer may take; HTTP_NEVER for a stream */
    /* The body. */
    buf body;
    char *ring;
    size_t ring_start, ring_len;
    size_t held;   /* of all the server's bodies, this one's share */
    uint64_t seen; /* bytes that came */
    int64_t paused_ms, paused_since_ms; /* in which nothing was read */
    bool ended, discard, over;
    http_request *next; /* in the workers' queue */
    int64_t queued_ms;
};

struct http_server {
    http_config config;
    struct MHD_Daemon *daemon;
    uint16_t port;
    int listen_fd;
    bool asks_peers; /* there are no tokens, and the kernel tells whose a connection is */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work, quiet, tick;
    http_connection *connections;
    int connection_count;
    size_t held; /* bytes of bodies */
    http_request *queue, **queue_end;
    int workers, workers_idle, workers_slow, workers_waiting; /* the last: on `waits` alone */
    int workers_uploading;                                    /* of the slow ones */
    http_stream *streams; /* open answers, ended at stop */
    pthread_t timer;
    bool stopping;
};

/* http_server.c */
void http_request_unref(http_request *r);
/* Lets libmicrohttpd's thread look at the request again. Needs r->lock. */
void http_request_wake(http_request *r);
/* Makes `response` the answer; takes it. */
void http_request_answer(http_request *r, unsigned status, struct MHD_Response *response,
                         int64_t send_ms);
/* When it is shut down; HTTP_NEVER while we are the ones who work. `idle`: no whole request yet.
 * NULL is fine. */
void http_connection_deadline(http_connection *c, int64_t deadline_ms, bool idle);
/* Asks where it is not known yet. */
http_peer http_connection_peer(http_connection *c);
/* Whether the client has closed its end of the connection, or is gone. */
bool http_hung_up(int fd);
/* Hands the request to a worker. Needs r->lock; false when there is none to be had. */
bool http_request_dispatch(http_request *r);
/* Gives libmicrohttpd the answer that was made. Only in its thread, while the connection is not
 * suspended. */
enum MHD_Result http_request_queue_answer(http_request *r);

/* http_request.c */
/* Only in libmicrohttpd's thread: a worker may outlive the connection. NULL: no such header. */
const char *http_header_value(const http_request *r, const char *name);
/* Everything that can be said from the headers alone: sets the route, or *status where the error's
 * own would be wrong. */
int http_request_check(http_request *r, unsigned *status, err *e);

/* http_body.c: but for the second in libmicrohttpd's thread */
/* Counts so many bytes more of the request's body. ERR_UNAVAILABLE: there is no room for them. */
int http_body_hold(http_request *r, size_t bytes, err *e);
/* Once nobody reads it any more. Needs r->lock, but of a request that is nobody else's. */
void http_body_free(http_request *r);
/* Takes what it can of a piece; *len is what is left of it. MHD_NO ends the connection. */
enum MHD_Result http_body_piece(http_request *r, const char *bytes, size_t *len);
/* The body is complete: hand it over, wait for the worker, or answer. */
enum MHD_Result http_body_end(http_request *r);

/* http_response.c */
/* Ends those whose client hung up while there was nothing to send, which nobody else sees. */
void http_streams_look(http_server *s, int64_t now_ms);
void http_streams_end(http_server *s);
/* After the daemon is gone: those that handlers still hold are on their own from here on. */
void http_streams_forget(http_server *server);

#endif
