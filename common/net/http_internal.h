/* http_internal.h: shared by the files of the HTTP server; no other file includes it.
 *
 * http_server.c    the daemon, its connections' deadlines, the workers
 * http_request.c   headers: checks, and the getters for handlers
 * http_body.c      bodies on their way to handlers
 * http_route.c     pure: URIs, routes, Accept and Content-Type
 * http_response.c  responses and open streams
 *
 * libmicrohttpd refers to a request (from the request line to the completed callback), and so does
 * the worker that handles it; `lock` guards the fields that both use. Lock order: request, then
 * libmicrohttpd's own; `server.lock` is taken last, and no lock is taken under it. */
#ifndef KUBEML_HTTP_INTERNAL_H
#define KUBEML_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>

#include "common/base/buf.h"
#include "http_server.h"

#define HTTP_NEVER INT64_MAX

/* ---- http_route.c ---------------------------------------------------------------------------- */

typedef struct http_target {
    char *memory; /* holds the decoded segments and queries */
    const char *segments[HTTP_SEGMENTS_MAX];
    int segment_count;
    const char *query_names[HTTP_QUERIES_MAX], *query_values[HTTP_QUERIES_MAX];
    int query_count;
} http_target;

/* Splits and percent-decodes "/path?query". ERR_INVALID; ERR_NOT_FOUND for more segments than any
 * route has. The caller calls http_target_free, also after an error. */
int http_target_parse(const char *uri, http_target *out, err *e);
void http_target_free(http_target *t);
bool http_pattern_matches(const char *pattern, const http_target *t);
/* The index of the segment `{name}` in the pattern, or -1. */
int http_pattern_index(const char *pattern, const char *name);
/* True when `item` stands in the comma-separated list. */
bool http_list_has(const char *list, const char *item);
/* Whether a Content-Type header names one of the list's types. */
bool http_type_listed(const char *list, const char *content_type);
/* Writes the entry of `gives` that the Accept header prefers to `out`; false: it accepts none. */
bool http_accept_best(const char *accept, const char *gives, char *out, size_t out_bytes);

/* ---- connections and requests ---------------------------------------------------------------- */

/* The user at the other end of a connection, where that matters. */
typedef enum http_peer {
    HTTP_PEER_UNKNOWN, /* the kernel could not be asked yet */
    HTTP_PEER_OURS,    /* root or our own user */
    HTTP_PEER_STRANGER
} http_peer;

typedef struct http_connection {
    http_server *server;
    int fd;
    int64_t deadline_ms; /* of its present phase; HTTP_NEVER while the server works */
    int64_t since_ms;    /* when the phase began */
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
    bool last;              /* the server reads nothing more from the connection */
    int64_t content_length; /* -1: not announced */
    http_header headers[HTTP_HEADERS_MAX];
    int header_count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int refs;
    bool begun, gone, suspended, dispatched, queued;
    struct MHD_Response *response; /* made by the worker, queued by libmicrohttpd's thread */
    unsigned status;
    int64_t send_ms; /* time for sending the response; HTTP_NEVER for a stream */
    /* The body. */
    buf body;
    char *ring;
    size_t ring_start, ring_len;
    size_t held;   /* bytes of this body in server.held */
    uint64_t seen; /* bytes received */
    int64_t paused_ms, paused_since_ms; /* time in which the server did not read */
    bool ended, discard, over;
    http_request *next; /* in the workers' queue */
    int64_t queued_ms;
};

struct http_server {
    http_config config;
    struct MHD_Daemon *daemon;
    uint16_t port;
    int listen_fd;
    bool asks_peers; /* there are no tokens, and the kernel reports a connection's user */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work, quiet, tick;
    http_connection *connections;
    int connection_count;
    size_t held; /* bytes of bodies */
    http_request *queue, **queue_end;
    int workers, workers_idle, workers_slow, workers_waiting; /* waiting: on `waits` routes */
    int workers_uploading;                                    /* among the slow workers */
    http_stream *streams; /* open responses, ended at stop */
    pthread_t timer;
    bool stopping;
};

/* http_server.c */
void http_request_unref(http_request *r);
/* Resumes libmicrohttpd's work on the request. Needs r->lock. */
void http_request_wake(http_request *r);
/* Sets the response; takes it over. */
void http_request_answer(http_request *r, unsigned status, struct MHD_Response *response,
                         int64_t send_ms);
/* Sets when the connection is shut down; HTTP_NEVER while the server works. `idle`: no whole
 * request yet. NULL is fine. */
void http_connection_deadline(http_connection *c, int64_t deadline_ms, bool idle);
/* Asks the kernel where the peer is not known yet. */
http_peer http_connection_peer(http_connection *c);
/* Whether the client has closed its end of the connection, or is gone. */
bool http_hung_up(int fd);
/* Queues the request for a worker. Needs r->lock; false when there is no worker, or at stop. */
bool http_request_dispatch(http_request *r);
/* Passes the response to libmicrohttpd. Only in its thread, while the connection is not
 * suspended. */
enum MHD_Result http_request_queue_answer(http_request *r);

/* http_request.c */
/* Only in libmicrohttpd's thread: a worker may outlive the connection. NULL: no such header. */
const char *http_header_value(const http_request *r, const char *name);
/* Makes all checks that need the headers alone, and sets the route. On an error, sets *status
 * where the error code's own status would be wrong. */
int http_request_check(http_request *r, unsigned *status, err *e);

/* http_body.c: all but http_body_free only in libmicrohttpd's thread */
/* Reserves so many bytes more for the request's body. ERR_UNAVAILABLE: there is no room. */
int http_body_hold(http_request *r, size_t bytes, err *e);
/* Frees the body once nobody reads it any more. Needs r->lock, unless the request is referenced
 * nowhere else. */
void http_body_free(http_request *r);
/* Takes as many bytes of a piece as fit; sets *len to the number left. MHD_NO ends the connection.
 */
enum MHD_Result http_body_piece(http_request *r, const char *bytes, size_t *len);
/* Called at the end of the body: queues the request for a worker, waits for the worker's response,
 * or sends it. */
enum MHD_Result http_body_end(http_request *r);

/* http_response.c */
/* Ends streams whose client hung up while there was nothing to send: their connections are
 * suspended, so that libmicrohttpd does not see the end. */
void http_streams_look(http_server *s, int64_t now_ms);
void http_streams_end(http_server *s);
/* After the daemon's end: unlinks the streams that handlers still hold from the server. */
void http_streams_forget(http_server *server);

#endif
