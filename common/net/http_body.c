/* http_body.c: passes the body of a request from libmicrohttpd's thread to the handler, in one
 * piece, or through a ring while it arrives. Handles bodies that are too slow, too large or
 * unwanted. */
#include "http_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"

/* Sets a stream's deadline: the grace, plus the time that the received bytes take at the minimum
 * rate, plus the time in which the server did not read. At most the grace from now. Needs r->lock.
 */
static void stream_deadline(http_request *r)
{
    const http_config *c = &r->server->config;
    int64_t earned = (int64_t)(r->seen / (uint64_t)c->rate_min) * 1000;
    int64_t due = r->started_ns / 1000000 + c->body_ms + earned + r->paused_ms;
    int64_t grace = clock_deadline_ms(c->body_ms);
    http_connection_deadline(r->conn, due < grace ? due : grace, false);
}

int http_body_hold(http_request *r, size_t bytes, err *e)
{
    http_server *s = r->server;
    size_t max = s->config.bodies_bytes_max;
    size_t most = r->held + bytes > HTTP_RING_BYTES ? max - max / 4 : max;
    pthread_mutex_lock(&s->lock);
    bool fits = bytes <= most && s->held <= most - bytes;
    size_t more = fits ? bytes : 0;
    s->held += more;
    pthread_mutex_unlock(&s->lock);
    r->held += more;
    return fits ? 0
                : err_set(e, ERR_UNAVAILABLE,
                          "there is no room for the body: %zu MiB of them at most are held at once",
                          most >> 20);
}

void http_body_free(http_request *r)
{
    http_server *s = r->server;
    pthread_mutex_lock(&s->lock);
    s->held -= r->held;
    pthread_mutex_unlock(&s->lock);
    r->held = 0;
    buf_free(&r->body);
    free(r->ring);
    r->ring = NULL;
    r->ring_len = 0;
}

static bool ring_ready(http_request *r)
{
    if (!r->ring && http_body_hold(r, HTTP_RING_BYTES, NULL) == 0)
        r->ring = malloc(HTTP_RING_BYTES);
    return r->ring != NULL;
}

/* Copies as many bytes as fit; returns their number. Needs r->lock. */
static size_t ring_put(http_request *r, const char *bytes, size_t len)
{
    size_t room = HTTP_RING_BYTES - r->ring_len, put = len < room ? len : room;
    size_t at = (r->ring_start + r->ring_len) % HTTP_RING_BYTES;
    size_t first = put < HTTP_RING_BYTES - at ? put : HTTP_RING_BYTES - at;
    memcpy(r->ring + at, bytes, first);
    memcpy(r->ring, bytes + first, put - first);
    r->ring_len += put;
    return put;
}

static size_t ring_get(http_request *r, char *out, size_t max)
{
    size_t got = r->ring_len < max ? r->ring_len : max;
    size_t first = got < HTTP_RING_BYTES - r->ring_start ? got : HTTP_RING_BYTES - r->ring_start;
    memcpy(out, r->ring + r->ring_start, first);
    memcpy(out + first, r->ring, got - first);
    r->ring_start = (r->ring_start + got) % HTTP_RING_BYTES;
    r->ring_len -= got;
    return got;
}

static void suspend(http_request *r)
{
    r->suspended = true;
    r->paused_since_ms = clock_monotonic_ms();
    http_connection_deadline(r->conn, HTTP_NEVER, false);
    MHD_suspend_connection(r->connection);
}

/* Takes a piece of a streamed body; returns the number of bytes taken. Needs r->lock. */
static size_t stream_take(http_request *r, const char *bytes, size_t len)
{
    if (!ring_ready(r))
        r->discard = true; /* http_body_read then fails with ERR_NOMEM */
    if (r->discard)
        return len;
    size_t put = ring_put(r, bytes, len);
    if (put < len)
        suspend(r);
    else
        stream_deadline(r);
    pthread_cond_broadcast(&r->changed);
    return put;
}

static int take_whole(http_request *r, const char *bytes, size_t len, err *e)
{
    size_t whole = r->body.len + len;
    if (whole > r->body.max)
        err_set(e, ERR_LIMIT, "the body is over the limit of %zu bytes", r->body.max);
    else if ((whole <= r->held || http_body_hold(r, whole - r->held, e) == 0) &&
             buf_append(&r->body, bytes, len, e) == 0)
        return 0;
    http_body_free(r);
    return -1;
}

enum MHD_Result http_body_piece(http_request *r, const char *bytes, size_t *len)
{
    bool stream = r->route && r->route->body == HTTP_BODY_STREAM;
    err e = ERR_INIT;
    pthread_mutex_lock(&r->lock);
    size_t taken = *len;
    bool taken_on = true;
    if (r->response || r->discard) { /* refused, or the response is ready: drops the bytes */
        if (stream)
            stream_deadline(r);
    } else if (stream) {
        if (!r->dispatched)
            taken_on = http_request_dispatch(r);
        taken = stream_take(r, bytes, *len);
    } else {
        take_whole(r, bytes, *len, &e);
    }
    r->seen += taken;
    bool flood = r->response && !stream && r->seen > HTTP_DRAIN_BYTES_MAX;
    pthread_mutex_unlock(&r->lock);
    if (e.code != ERR_NONE)
        http_response_error(r, &e);
    *len -= taken;
    return taken_on && !flood ? MHD_YES : MHD_NO;
}

enum MHD_Result http_body_end(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    enum MHD_Result result = MHD_YES;
    if (r->response) {
        result = http_request_queue_answer(r);
    } else if (r->status) {
        result = MHD_NO; /* there was no memory for the response */
    } else {
        /* Suspends first: a worker may respond before this function returns. */
        suspend(r);
        if (!r->dispatched && !http_request_dispatch(r)) {
            http_request_wake(r);
            result = MHD_NO;
        }
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return result;
}

/* ---- getters for handlers -------------------------------------------------------------------- */

static uint64_t bytes_max(const http_request *r)
{
    return r->route->body_bytes_max ? r->route->body_bytes_max : HTTP_JSON_BYTES_MAX;
}

ssize_t http_body_read(http_request *r, void *out, size_t max, err *e)
{
    uint64_t most = bytes_max(r);
    pthread_mutex_lock(&r->lock);
    while (r->ring_len == 0 && !r->ended && !r->gone && !r->discard)
        pthread_cond_wait(&r->changed, &r->lock); /* the connection's deadline ends the wait */
    ssize_t got = -1;
    if (r->ring_len && r->seen <= most) {
        got = (ssize_t)ring_get(r, out, max);
        if (r->suspended && !r->ended && r->ring_len <= HTTP_RING_BYTES / 2) {
            http_request_wake(r);
            stream_deadline(r);
        }
    } else if (r->seen > most) {
        err_set(e, ERR_LIMIT, "the body is over the limit of %llu bytes", (unsigned long long)most);
    } else if (r->gone) {
        err_set(e, ERR_UNAVAILABLE, "the body was cut off after %llu bytes",
                (unsigned long long)r->seen);
    } else if (r->discard) {
        err_set(e, ERR_NOMEM, "no memory for the upload");
    } else {
        got = 0;
    }
    pthread_mutex_unlock(&r->lock);
    return got;
}

const char *http_body_bytes(const http_request *r, size_t *len)
{
    *len = r->body.len;
    return r->body.bytes ? r->body.bytes : "";
}

int http_body_json(const http_request *r, json_t **out, err *e)
{
    json_t *value = NULL;
    size_t values_max = json_values_max((size_t)bytes_max(r));
    if (json_read_within(r->body.bytes, r->body.len, HTTP_JSON_DEPTH_MAX, values_max, &value, e))
        return -1;
    if (!json_is_object(value)) {
        json_decref(value);
        return err_set(e, ERR_INVALID, "the body must be a JSON object");
    }
    *out = value;
    return 0;
}

int64_t http_body_length(const http_request *r)
{
    return r->content_length;
}
