/* http_server.c: the daemon, the deadlines of its connections, and the workers. See http_server.h.
 *
 * The life of a request:
 *   target_begin        the request line is there
 *   access_request      first call: the headers are there, and are checked
 *                       further calls: pieces of the body
 *                       at the body's end the connection is suspended; a worker calls the handler,
 *                       whose response resumes the connection
 *                       last call: queues the response
 *   request_completed   the response is sent, or the connection is gone */
#include "http_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "peer.h"

enum {
    /* libmicrohttpd's memory for one connection: headers, and one piece of the body. From 32 KiB on
     * libmicrohttpd maps it, so that an idle connection costs a page or two. */
    CONNECTION_BYTES = 64 << 10,
    WORKER_STACK_BYTES = 1 << 20,
    WORKER_IDLE_MS = 5000,
    TICK_MS_MAX = 250,
    CROWDED_IDLE_MS = 1000, /* idle time granted when three quarters of the connections are taken */
    SEND_MS = 60000,
    PROBE_IDLE_S = 30, /* a lost client answers no probe; SEND_MS then ends the connection */
    PROBE_EVERY_S = 10,
};

/* ---- connections and their deadlines --------------------------------------------------------- */

/* A closed connection counts as a stranger's, although the kernel would report root as its user. */
http_peer http_connection_peer(http_connection *c)
{
    uid_t user = 0;
    if (c->peer != HTTP_PEER_UNKNOWN)
        return c->peer;
    int told = peer_user(c->fd, &user);
    if (told >= 0)
        c->peer = told && (user == geteuid() || user == 0) ? HTTP_PEER_OURS : HTTP_PEER_STRANGER;
    return c->peer;
}

static void connection_opened(http_server *s, struct MHD_Connection *connection, void **context)
{
    http_connection *c = calloc(1, sizeof *c);
    *context = c;
    if (!c)
        return;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    c->server = s;
    c->fd = info ? info->connect_fd : -1;
    c->idle = true;
    c->since_ms = clock_monotonic_ms();
    c->deadline_ms = clock_deadline_ms(s->config.header_ms);
    if (s->asks_peers)
        http_connection_peer(c);
    int on = 1, dead_ms = SEND_MS, idle_s = PROBE_IDLE_S, every_s = PROBE_EVERY_S;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    pthread_mutex_lock(&s->lock);
    c->next = s->connections;
    if (c->next)
        c->next->prev = c;
    s->connections = c;
    if (s->stopping) { /* libmicrohttpd closes the socket when it reads the end */
        shutdown(c->fd, SHUT_RDWR);
        c->deadline_ms = HTTP_NEVER;
    }
    if (s->connection_count++ == 0)
        pthread_cond_signal(&s->tick);
    pthread_mutex_unlock(&s->lock);
}

static void connection_closed(http_server *s, http_connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&s->lock);
    *(c->prev ? &c->prev->next : &s->connections) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->connection_count--;
    pthread_mutex_unlock(&s->lock);
    free(c);
}

static void connection_notify(void *context, struct MHD_Connection *connection,
                              void **socket_context, enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        connection_opened(context, connection, socket_context);
    else
        connection_closed(context, *socket_context);
}

void http_connection_deadline(http_connection *c, int64_t deadline_ms, bool idle)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->server->lock);
    c->deadline_ms = deadline_ms;
    c->since_ms = clock_monotonic_ms();
    c->idle = idle;
    pthread_mutex_unlock(&c->server->lock);
}

/* Shuts down the connections that are past their deadlines; libmicrohttpd closes the sockets. Needs
 * the lock: `connection_closed` takes it before a descriptor's number can be used again. */
static void expire(http_server *s, int64_t now_ms)
{
    bool crowded = s->connection_count > s->config.connections_max / 4 * 3;
    for (http_connection *c = s->connections; c; c = c->next) {
        bool unwanted = crowded && c->idle && now_ms - c->since_ms >= CROWDED_IDLE_MS;
        if (c->deadline_ms == HTTP_NEVER || (now_ms < c->deadline_ms && !unwanted))
            continue;
        shutdown(c->fd, SHUT_RDWR);
        c->deadline_ms = HTTP_NEVER;
    }
}

static int64_t tick_ms(const http_config *c)
{
    int64_t shortest = c->header_ms < c->idle_ms ? c->header_ms : c->idle_ms;
    shortest = (shortest < c->body_ms ? shortest : c->body_ms) / 4;
    return shortest < 10 ? 10 : shortest > TICK_MS_MAX ? TICK_MS_MAX : shortest;
}

bool http_hung_up(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

/* Whether a request in the queue has waited too long to be begun, or its client has hung up. Its
 * connection is suspended, so that the descriptor stays open. An upload never lapses: its client
 * still sends, and libmicrohttpd sees the end of the connection. */
static bool lapsed(const http_request *r, int64_t now_ms)
{
    const http_config *c = &r->server->config;
    int64_t waited_ms = now_ms - r->queued_ms;
    return r->route->body != HTTP_BODY_STREAM &&
           (waited_ms >= c->queue_ms ||
            (waited_ms >= c->quiet_ms && r->conn && http_hung_up(r->conn->fd)));
}

static void answer_lapsed(http_request *r)
{
    err e = ERR_INIT;
    err_set(&e, ERR_UNAVAILABLE, "the request waited for %lld s and was not begun",
            (long long)(clock_monotonic_ms() - r->queued_ms) / 1000);
    http_response_error(r, &e);
}

/* Takes the lapsed requests out of the queue. Needs the lock. */
static http_request *queue_lapsed(http_server *s, int64_t now_ms)
{
    http_request *out = NULL, **at = &s->queue;
    while (*at) {
        http_request *r = *at;
        if (!lapsed(r, now_ms)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->next = out;
        out = r;
    }
    s->queue_end = at;
    return out;
}

static void *timer_run(void *context)
{
    http_server *s = context;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        clock_cond_wait(&s->tick, &s->lock,
                        s->connection_count ? clock_deadline_ms(tick_ms(&s->config)) : INT64_MAX);
        int64_t now_ms = clock_monotonic_ms();
        expire(s, now_ms);
        http_request *late = queue_lapsed(s, now_ms);
        pthread_mutex_unlock(&s->lock);
        for (http_request *r = late; r; r = late) {
            late = r->next;
            answer_lapsed(r);
            http_request_unref(r);
        }
        http_streams_look(s, now_ms);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* libmicrohttpd has the request line. The result is the request's context. */
static void *target_begin(void *context, const char *uri, struct MHD_Connection *connection)
{
    http_server *s = context;
    http_request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->server = s;
    r->conn = info ? info->socket_context : NULL;
    r->started_ns = clock_monotonic_ns();
    r->content_length = -1;
    r->refs = 1;
    r->send_ms = SEND_MS;
    buf_init(&r->body, HTTP_JSON_BYTES_MAX);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (strlen(uri) <= HTTP_URI_BYTES_MAX)
        r->uri = strdup(uri);
    return r;
}

void http_request_unref(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    int left = --r->refs;
    pthread_mutex_unlock(&r->lock);
    if (left)
        return;
    if (r->response)
        MHD_destroy_response(r->response);
    http_target_free(&r->target);
    http_body_free(r);
    free(r->uri);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static double seconds_taken(const http_request *r)
{
    return r->send_ms == HTTP_NEVER ? -1 : (double)(clock_monotonic_ns() - r->started_ns) / 1e9;
}

static void request_completed(void *context, struct MHD_Connection *connection, void **request,
                              enum MHD_RequestTerminationCode why)
{
    (void)connection, (void)why;
    http_server *s = context;
    http_request *r = *request;
    if (!r)
        return;
    *request = NULL;
    pthread_mutex_lock(&r->lock);
    r->gone = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    http_connection_deadline(r->conn, clock_deadline_ms(s->config.idle_ms), true);
    if (s->config.observe && r->queued && !r->uncounted)
        s->config.observe(s->config.context, r->method, r->route ? r->route->pattern : "other",
                          r->status, seconds_taken(r));
    http_request_unref(r);
}

void http_request_wake(http_request *r)
{
    if (r->suspended && !r->gone) {
        r->suspended = false;
        r->paused_ms += clock_monotonic_ms() - r->paused_since_ms;
        MHD_resume_connection(r->connection);
    }
    pthread_cond_broadcast(&r->changed);
}

void http_request_answer(http_request *r, unsigned status, struct MHD_Response *response,
                         int64_t send_ms)
{
    for (int i = 0; response && i < r->header_count; i++)
        MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    pthread_mutex_lock(&r->lock);
    assert(!r->response);
    r->response = response;
    r->status = status;
    r->send_ms = send_ms;
    r->discard = true; /* the rest of the body */
    r->ring_len = 0;
    http_request_wake(r);
    pthread_mutex_unlock(&r->lock);
}

/* The first call of a request: its headers are complete. */
static void request_begin(http_request *r, struct MHD_Connection *connection, const char *method,
                          const char *version)
{
    http_server *s = r->server;
    r->begun = true;
    r->connection = connection;
    snprintf(r->method, sizeof r->method, "%s", method);
    r->old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    r->head = strcmp(method, "HEAD") == 0;
    r->forwarded = http_header_value(r, HTTP_HOP_HEADER) != NULL;
    http_connection_deadline(r->conn, clock_deadline_ms(s->config.body_ms), false);
    err e = ERR_INIT;
    unsigned status = 0;
    if (http_request_check(r, &status, &e))
        http_response_problem(r, status ? status : (unsigned)err_http_status(e.code), &e, NULL);
}

enum MHD_Result http_request_queue_answer(http_request *r)
{
    r->queued = true;
    http_connection_deadline(
        r->conn, r->send_ms == HTTP_NEVER ? HTTP_NEVER : clock_deadline_ms(r->send_ms), false);
    return MHD_queue_response(r->connection, r->status, r->response);
}

/* Whether a refusal is sent before the body is read. It is sent early if the client waits for
 * `100 Continue`, if the body is too long to drain, or if its length is in doubt. Otherwise the
 * body is read first: a client that is still sending might never read the reason. */
static bool may_answer_early(const http_request *r)
{
    const char *expect = http_header_value(r, "Expect");
    bool streams = r->route && r->route->body == HTTP_BODY_STREAM && !r->over;
    return r->last || expect || (r->content_length > HTTP_DRAIN_BYTES_MAX && !streams);
}

/* ---- workers --------------------------------------------------------------------------------- */

/* Whether the route's handler waits for its client's bytes. */
static bool uploads(const http_route *route)
{
    return route->slow && route->body == HTTP_BODY_STREAM;
}

static bool worker_may_take(const http_server *s, const http_request *r)
{
    const http_route *route = r->route;
    int max = s->config.workers_max;
    bool room = s->workers_slow + s->workers_waiting < max - max / 4;
    int rest =
        max / 2 - (max + 7) / 8; /* stalled uploads leave an eighth for other slow routes */
    if (uploads(route) && s->workers_uploading >= (rest > 1 ? rest : 1))
        return false;
    return route->slow ? room && s->workers_slow < max / 2 : !route->waits || room;
}

/* Takes the first request in the queue that may run now. Needs the lock. */
static http_request *queue_take(http_server *s)
{
    for (http_request **at = &s->queue; *at; at = &(*at)->next) {
        http_request *r = *at;
        if (!worker_may_take(s, r))
            continue;
        *at = r->next;
        if (!*at)
            s->queue_end = at;
        return r;
    }
    return NULL;
}

static void answer(http_server *s, http_request *r)
{
    const http_config *c = &s->config;
    if (lapsed(r, clock_monotonic_ms()))
        answer_lapsed(r); /* not handled: the client may have sent the request again */
    else if ((!c->refuse || !c->refuse(c->context, r->route, r)) &&
             (!r->route->led || !c->divert || !c->divert(c->context, r)))
        r->route->handle(r, c->context);
    pthread_mutex_lock(&r->lock);
    http_body_free(r);
    pthread_mutex_unlock(&r->lock);
}

static void *worker_run(void *context)
{
    http_server *s = context;
    pthread_mutex_lock(&s->lock);
    int64_t idle_until = clock_deadline_ms(WORKER_IDLE_MS);
    for (;;) {
        http_request *r = queue_take(s);
        if (!r) {
            if (s->stopping || clock_left_ms(idle_until) == 0)
                break;
            s->workers_idle++;
            clock_cond_wait(&s->work, &s->lock, idle_until);
            s->workers_idle--;
            continue;
        }
        const http_route *route = r->route;
        s->workers_slow += route->slow;
        s->workers_waiting += route->waits;
        s->workers_uploading += uploads(route);
        pthread_mutex_unlock(&s->lock);
        answer(s, r);
        http_request_unref(r);
        pthread_mutex_lock(&s->lock);
        s->workers_slow -= route->slow;
        s->workers_waiting -= route->waits;
        s->workers_uploading -= uploads(route);
        if (route->slow || route->waits)
            pthread_cond_signal(&s->work);
        idle_until = clock_deadline_ms(WORKER_IDLE_MS);
    }
    s->workers--;
    pthread_cond_broadcast(&s->quiet);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int worker_start(http_server *s)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
#endif
    int status = pthread_create(&thread, &attr, worker_run, s);
    pthread_attr_destroy(&attr);
    return status;
}

bool http_request_dispatch(http_request *r)
{
    http_server *s = r->server;
    pthread_mutex_lock(&s->lock);
    /* Starts a second thread for a second request, even if an idle thread exists that has not taken
     * the first request yet. */
    bool more = s->workers_idle == 0 || s->queue;
    if (!s->stopping && more && s->workers < s->config.workers_max && worker_start(s) == 0)
        s->workers++;
    bool given = !s->stopping && s->workers > 0;
    if (given) {
        r->dispatched = true;
        r->refs++;
        r->queued_ms = clock_monotonic_ms();
        r->next = NULL;
        *s->queue_end = r;
        s->queue_end = &r->next;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return given;
}

/* ---- libmicrohttpd's calls ------------------------------------------------------------------- */

static enum MHD_Result access_request(void *context, struct MHD_Connection *connection,
                                      const char *url, const char *method, const char *version,
                                      const char *bytes, size_t *len, void **request)
{
    (void)context, (void)url;
    http_request *r = *request;
    if (!r)
        return MHD_NO; /* no memory for the request */
    if (!r->begun) {
        request_begin(r, connection, method, version);
        return r->response && may_answer_early(r) ? http_request_queue_answer(r) : MHD_YES;
    }
    return *len ? http_body_piece(r, bytes, len) : http_body_end(r);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static void set_defaults(http_config *c)
{
    c->connections_max = c->connections_max ? c->connections_max : 4096;
    c->event_threads = c->event_threads ? c->event_threads : 2;
    c->workers_max = c->workers_max ? c->workers_max : 16;
    c->header_ms = c->header_ms ? c->header_ms : 30000;
    c->idle_ms = c->idle_ms ? c->idle_ms : 60000;
    c->body_ms = c->body_ms ? c->body_ms : 30000;
    c->rate_min = c->rate_min ? c->rate_min : 16384;
    c->queue_ms = c->queue_ms ? c->queue_ms : 60000;
    c->quiet_ms = c->quiet_ms ? c->quiet_ms : 2000;
    c->bodies_bytes_max = c->bodies_bytes_max ? c->bodies_bytes_max : HTTP_BODIES_BYTES_MAX;
}

/* Makes the socket here and not in libmicrohttpd, for an error that names the cause. */
int http_server_listen(const char *host, uint16_t number, err *e)
{
    char port[8];
    snprintf(port, sizeof port, "%u", number);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE};
    struct addrinfo *at = NULL;
    int status = getaddrinfo(host, port, &hints, &at);
    if (status)
        return err_set(e, ERR_INVALID, "the address %s: %s", host, gai_strerror(status));
    cleanup_close int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1, failed = fd < 0 ? errno : 0;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* When two processes bind at the same time, the second may get EADDRINUSE from listen alone. */
    if (fd >= 0 && (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 511) != 0))
        failed = errno;
    freeaddrinfo(at);
    if (failed == 0)
        return steal_fd(fd);
    if (failed == EADDRINUSE)
        return err_set(e, ERR_EXISTS, "port %u on %s is taken: another server runs there", number,
                       host);
    return err_set_errno(e, failed, "cannot listen on %s port %u", host, number);
}

static uint16_t bound_port(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len))
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static void server_free(http_server *s)
{
    http_streams_forget(s);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->quiet);
    pthread_cond_destroy(&s->tick);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static http_server *server_new(const http_config *config)
{
    http_server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->config = *config;
    set_defaults(&s->config);
    s->queue_end = &s->queue;
    s->listen_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->work);
    clock_cond_init(&s->quiet);
    clock_cond_init(&s->tick);
    return s;
}

/* Logs libmicrohttpd's messages at level debug: they are about clients that went away. */
__attribute__((format(printf, 2, 0))) static void log_daemon(void *context, const char *fmt,
                                                             va_list args)
{
    (void)context;
    char line[256];
    vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\n")] = '\0';
    log_debug("http: %s", line);
}

static struct MHD_Daemon *daemon_start(http_server *s)
{
    unsigned threads = (unsigned)s->config.event_threads;
    unsigned limit = (unsigned)s->config.connections_max;
    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        access_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_daemon, NULL, MHD_OPTION_LISTEN_SOCKET,
        s->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, threads, MHD_OPTION_CONNECTION_LIMIT, limit,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        0 /* our checks give reasons */, MHD_OPTION_NOTIFY_CONNECTION, connection_notify, s,
        MHD_OPTION_NOTIFY_COMPLETED, request_completed, s, MHD_OPTION_URI_LOG_CALLBACK,
        target_begin, s, MHD_OPTION_END);
}

int http_server_start(const http_config *config, http_server **out, err *e)
{
    http_server *s = server_new(config);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the HTTP server");
    s->listen_fd = config->listen_fd > 0 ? config->listen_fd
                                         : http_server_listen(config->host, config->port, e);
    if (s->listen_fd < 0) {
        server_free(s);
        return -1;
    }
    s->port = bound_port(s->listen_fd);
    s->asks_peers = !config->tokens && peer_is_told(s->listen_fd);
    if (!config->tokens && !s->asks_peers)
        log_warn(
            "the kernel does not tell whose a connection is: without tokens every user of this "
            "machine is answered");
    if (pthread_create(&s->timer, NULL, timer_run, s)) {
        server_free(s);
        return err_set(e, ERR_NOMEM, "no thread for the HTTP server's deadlines");
    }
    s->daemon = daemon_start(s);
    if (!s->daemon) {
        http_server_stop(s, 0);
        return err_set(e, ERR_IO, "the HTTP server does not start");
    }
    s->listen_fd = -1; /* libmicrohttpd owns it now */
    *out = s;
    return 0;
}

uint16_t http_server_port(const http_server *s)
{
    return s->port;
}

size_t http_server_held(http_server *s)
{
    pthread_mutex_lock(&s->lock);
    size_t held = s->held;
    pthread_mutex_unlock(&s->lock);
    return held;
}

/* Waits for the workers; true when all are gone. */
static bool workers_end(http_server *s, int grace_ms)
{
    int64_t deadline = clock_deadline_ms(grace_ms);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->tick);
    /* Ends uploads under way: their handlers see the end of the connection. */
    for (http_connection *c = s->connections; c; c = c->next)
        if (c->deadline_ms != HTTP_NEVER)
            shutdown(c->fd, SHUT_RD);
    while (s->workers && clock_cond_wait(&s->quiet, &s->lock, deadline))
        ;
    bool gone = s->workers == 0;
    pthread_mutex_unlock(&s->lock);
    return gone;
}

bool http_server_stop(http_server *s, int grace_ms)
{
    if (!s)
        return true;
    /* Does not use MHD_quiesce_daemon: it removes the socket from the epoll sets of running
     * threads, and a thread that then removes the socket itself aborts the process. */
    bool quiet = workers_end(s, grace_ms);
    pthread_join(s->timer, NULL);
    http_streams_end(s);
    if (!quiet) {
        /* A handler still uses a suspended connection, and libmicrohttpd cannot stop with such a
         * connection. The process is about to end; until then the server's memory stays. */
        log_warn("stopped with requests still being handled");
        return false;
    }
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    server_free(s);
    return true;
}
