/* http_response.c: responses, problem documents and open streams. See http_server.h. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "http_internal.h"

enum { SEND_MS = 60000, BLOCK_BYTES = 32 << 10 };

struct http_stream {
    http_server *server;
    struct MHD_Connection *connection;
    pthread_mutex_t lock;
    buf data;
    size_t sent; /* of data */
    int refs;    /* the owner's and the response's */
    int fd;      /* the connection's; valid while it is suspended */
    bool suspended;
    int64_t quiet_ms; /* when it was suspended, or last checked */
    bool ended;       /* the owner writes no more */
    bool dead;        /* the client is gone, or too slow */
    http_stream *prev, *next;
};

void http_add_header(http_request *r, const char *name, const char *value)
{
    if (r->header_count == HTTP_HEADERS_MAX)
        return; /* our own handlers set one or two */
    http_header *h = &r->headers[r->header_count++];
    snprintf(h->name, sizeof h->name, "%s", name);
    snprintf(h->value, sizeof h->value, "%s", value);
}

/* The time for sending `len` bytes at the slowest rate that a client is allowed. */
static int64_t send_ms(const http_request *r, uint64_t len)
{
    return SEND_MS + (int64_t)(len / (uint64_t)r->server->config.rate_min) * 1000;
}

static void answer(http_request *r, unsigned status, const char *type,
                   struct MHD_Response *response, int64_t ms)
{
    if (response) {
        MHD_add_response_header(response, "Content-Type", type);
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    http_request_answer(r, status, response, ms);
}

void http_response_bytes(http_request *r, unsigned status, const char *type, const void *bytes,
                         size_t len)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY);
    answer(r, status, type, response, send_ms(r, len));
}

void http_response_text(http_request *r, unsigned status, const char *type, const char *text)
{
    http_response_bytes(r, status, type, text, strlen(text));
}

static void reply_document(http_request *r, unsigned status, const char *type, json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(body);
    if (!text) {
        http_response_text(
            r, 503, "application/problem+json",
            "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,"
            "\"detail\":\"no memory for the answer\",\"code\":503,"
            "\"error\":\"no memory for the answer\",\"reason\":\"no-memory\"}");
        return;
    }
    size_t len = strlen(text);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
    if (!response)
        free(text);
    answer(r, status, type, response, send_ms(r, len));
}

void http_response_json(http_request *r, unsigned status, json_t *body)
{
    reply_document(r, status, "application/json", body);
}

static const char *status_title(unsigned status)
{
    static const struct {
        unsigned status;
        const char *title;
    } titles[] = {
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {422, "Unprocessable Content"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        if (titles[i].status == status)
            return titles[i].title;
    return "Error";
}

void http_response_problem(http_request *r, unsigned status, const err *e, json_t *members)
{
    json_t *body = json_pack("{s:s, s:s, s:i, s:s, s:i, s:s, s:s}", "type", "about:blank", "title",
                             status_title(status), "status", (int)status, "detail", e->message,
                             "code", (int)status, "error", e->message, "reason", err_name(e->code));
    if (body && members)
        json_object_update(body, members);
    json_decref(members);
    if (status == 503)
        http_add_header(r, "Retry-After", "1");
    reply_document(r, status, "application/problem+json", body);
}

void http_response_error(http_request *r, const err *e)
{
    http_response_problem(r, (unsigned)err_http_status(e->code), e, NULL);
}

void http_response_file(http_request *r, const char *type, int fd, uint64_t len)
{
    struct MHD_Response *response = MHD_create_response_from_fd64(len, fd);
    if (!response)
        close(fd);
    answer(r, 200, type, response, send_ms(r, len));
}

/* ---- sources --------------------------------------------------------------------------------- */

typedef struct source {
    ssize_t (*read)(void *source, void *out, size_t max);
    void (*close)(void *source);
    void *context;
} source;

static ssize_t source_read(void *context, uint64_t position, char *out, size_t max)
{
    (void)position;
    source *s = context;
    ssize_t got = s->read(s->context, out, max);
    return got > 0    ? got
           : got == 0 ? MHD_CONTENT_READER_END_OF_STREAM
                      : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void source_free(void *context)
{
    source *s = context;
    s->close(s->context);
    free(s);
}

void http_response_source(http_request *r, const char *type, uint64_t len,
                          ssize_t (*read)(void *source, void *out, size_t max),
                          void (*close)(void *source), void *context)
{
    source *s = malloc(sizeof *s);
    struct MHD_Response *response = NULL;
    if (s) {
        *s = (source){read, close, context};
        response = MHD_create_response_from_callback(len == UINT64_MAX ? MHD_SIZE_UNKNOWN : len,
                                                     BLOCK_BYTES, source_read, s, source_free);
    }
    if (!response) {
        free(s);
        close(context);
    }
    answer(r, 200, type, response, len == UINT64_MAX ? HTTP_NEVER : send_ms(r, len));
}

/* ---- open streams ---------------------------------------------------------------------------- */

/* Guards every server's list of streams, and each stream's `server`. It is not the server's own
 * lock, because a stream's owner may close the stream after the server is gone. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static void stream_unref(http_stream *s)
{
    pthread_mutex_lock(&s->lock);
    int left = --s->refs;
    pthread_mutex_unlock(&s->lock);
    if (left)
        return;
    pthread_mutex_lock(&list_lock);
    if (s->server) {
        *(s->prev ? &s->prev->next : &s->server->streams) = s->next;
        if (s->next)
            s->next->prev = s->prev;
    }
    pthread_mutex_unlock(&list_lock);
    buf_free(&s->data);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Needs the lock. */
static void stream_wake(http_stream *s)
{
    if (!s->suspended)
        return;
    s->suspended = false;
    MHD_resume_connection(s->connection);
}

/* Called when libmicrohttpd wants bytes: gives it the waiting bytes, or suspends the connection
 * until there are some. */
static ssize_t stream_read(void *context, uint64_t position, char *out, size_t max)
{
    (void)position;
    http_stream *s = context;
    ssize_t got = 0;
    pthread_mutex_lock(&s->lock);
    size_t left = s->data.len - s->sent;
    if (left) {
        got = (ssize_t)(left < max ? left : max);
        memcpy(out, s->data.bytes + s->sent, (size_t)got);
        s->sent += (size_t)got;
        if (s->sent == s->data.len) {
            buf_reset(&s->data);
            s->sent = 0;
        }
    } else if (s->dead) {
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (s->ended) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        s->suspended = true;
        s->quiet_ms = clock_monotonic_ms();
        MHD_suspend_connection(s->connection);
    }
    pthread_mutex_unlock(&s->lock);
    return got;
}

static void stream_gone(void *context)
{
    http_stream *s = context;
    pthread_mutex_lock(&s->lock);
    s->dead = true;
    s->suspended = false;
    pthread_mutex_unlock(&s->lock);
    stream_unref(s);
}

static http_stream *stream_new(http_request *r)
{
    http_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->server = r->server;
    s->connection = r->connection;
    s->fd = r->conn ? r->conn->fd : -1;
    s->refs = 2;
    buf_init(&s->data, HTTP_STREAM_BYTES_MAX);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_lock(&list_lock);
    s->next = s->server->streams;
    if (s->next)
        s->next->prev = s;
    s->server->streams = s;
    pthread_mutex_unlock(&list_lock);
    return s;
}

http_stream *http_response_stream(http_request *r, const char *type)
{
    http_stream *s = stream_new(r);
    struct MHD_Response *response = NULL;
    http_add_header(r, "X-Accel-Buffering", "no"); /* or nginx delays bytes by buffering them */
    if (s)
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, stream_read, s,
                                                     stream_gone);
    if (s && !response)
        stream_gone(s);
    answer(r, 200, type, response, HTTP_NEVER);
    return s;
}

bool http_stream_write(http_stream *s, const void *bytes, size_t len)
{
    if (!s)
        return false;
    pthread_mutex_lock(&s->lock);
    if (!s->dead && s->sent) {
        buf_consume(&s->data, s->sent);
        s->sent = 0;
    }
    if (!s->dead && buf_append(&s->data, bytes, len, NULL))
        s->dead = true;
    stream_wake(s);
    bool alive = !s->dead;
    pthread_mutex_unlock(&s->lock);
    return alive;
}

static size_t stream_room(http_stream *s)
{
    pthread_mutex_lock(&s->lock);
    size_t room = s->dead || s->ended ? 0 : s->data.max - (s->data.len - s->sent);
    pthread_mutex_unlock(&s->lock);
    return room;
}

bool http_stream_push(http_stream *s, buf *pending, int64_t *stuck_ms)
{
    if (!http_stream_alive(s))
        return false;
    size_t room = stream_room(s), n = pending->len < room ? pending->len : room;
    if (n && !http_stream_write(s, pending->bytes, n))
        return false;
    buf_consume(pending, n);
    if (n || !pending->len || !*stuck_ms)
        *stuck_ms = clock_deadline_ms(HTTP_STREAM_STUCK_MS);
    return clock_left_ms(*stuck_ms) > 0;
}

bool http_stream_alive(http_stream *s)
{
    if (!s)
        return false;
    pthread_mutex_lock(&s->lock);
    bool alive = !s->dead && !s->ended;
    pthread_mutex_unlock(&s->lock);
    return alive;
}

void http_stream_close(http_stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    stream_wake(s);
    pthread_mutex_unlock(&s->lock);
    stream_unref(s);
}

void http_streams_look(http_server *server, int64_t now_ms)
{
    pthread_mutex_lock(&list_lock);
    for (http_stream *s = server->streams; s; s = s->next) {
        pthread_mutex_lock(&s->lock);
        if (s->suspended && now_ms - s->quiet_ms >= server->config.quiet_ms) {
            s->quiet_ms = now_ms;
            s->dead |= http_hung_up(s->fd);
            if (s->dead)
                stream_wake(s);
        }
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

void http_streams_end(http_server *server)
{
    pthread_mutex_lock(&list_lock);
    for (http_stream *s = server->streams; s; s = s->next) {
        pthread_mutex_lock(&s->lock);
        s->ended = true;
        stream_wake(s);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

void http_streams_forget(http_server *server)
{
    pthread_mutex_lock(&list_lock);
    for (http_stream *s = server->streams, *next; s; s = next) {
        next = s->next;
        s->server = NULL;
        s->prev = s->next = NULL;
    }
    server->streams = NULL;
    pthread_mutex_unlock(&list_lock);
}
