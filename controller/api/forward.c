/* forward.c: see forward.h. */
#include "forward.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/net/http_client.h"
#include "controller/ha/leading.h"

enum {
    HOP_STACK_BYTES = 256 << 10,
    HOP_HELD_BYTES = 256 << 10, /* of a stream, beyond what the server holds for the client */
    HOP_READ_MS = 20,           /* between two checks whether the client has read */
};

/* A request on its way to the leader, and the response on its way back. */
typedef struct hop {
    controller *c;
    char where[KUBE_LEASE_ADDRESS_BYTES];
    CURL *curl;
    CURLM *multi;
    struct curl_slist *headers;
    char type[80], link[STORE_KEY_BYTES + 128];
    buf body; /* of a stream: the bytes for which its client has no room */
    size_t held, sent; /* of a whole response: its counted size, and what the client has read */
    int64_t stuck_ms;
    long status;
    bool sized;  /* the response says how long it is */
    bool headed; /* its headers are there */
    bool refused; /* there is no memory for it, or it exceeds FORWARD_BYTES_MAX */
    bool crowded; /* other clients have not read their responses */
    bool late;    /* it took longer than FORWARD_ANSWER_MS */
    bool paused; /* the leader waits until the client has read */
    http_stream *stream;
} hop;

static atomic_int waiting;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t fewer = PTHREAD_COND_INITIALIZER;
static int streams; /* open ones */
static size_t held_bytes; /* of responses on their way to clients */

static bool count_stream(int change)
{
    pthread_mutex_lock(&lock);
    bool may = change < 0 || streams < FORWARD_STREAMS_MAX;
    streams += may ? change : 0;
    pthread_cond_broadcast(&fewer);
    pthread_mutex_unlock(&lock);
    return may;
}

void forward_drain(void)
{
    pthread_mutex_lock(&lock);
    while (streams)
        pthread_cond_wait(&fewer, &lock);
    pthread_mutex_unlock(&lock);
}

/* Counts a response as held; false: there is no room. The leader is done when it has sent
 * everything, so slow clients are counted here. Small responses do not count, so that they pass
 * while a client reads slowly. */
static bool hold(hop *h, size_t bytes)
{
    if (bytes <= FORWARD_SMALL_BYTES)
        return true;
    pthread_mutex_lock(&lock);
    bool fits = held_bytes + bytes <= FORWARD_HELD_MAX;
    h->held = fits ? bytes : 0;
    held_bytes += h->held;
    pthread_mutex_unlock(&lock);
    return fits;
}

static void hang_up(hop *h)
{
    if (h->curl && h->multi)
        curl_multi_remove_handle(h->multi, h->curl);
    if (h->curl)
        curl_easy_cleanup(h->curl);
    if (h->multi)
        curl_multi_cleanup(h->multi);
    curl_slist_free_all(h->headers);
    h->curl = NULL;
    h->multi = NULL;
    h->headers = NULL;
}

static void hop_free(void *hop_)
{
    hop *h = hop_;
    hang_up(h);
    buf_free(&h->body);
    pthread_mutex_lock(&lock);
    held_bytes -= h->held;
    pthread_mutex_unlock(&lock);
    free(h);
}

/* ---- the response ---------------------------------------------------------------------------- */

static size_t take_header(char *bytes, size_t size, size_t count, void *context)
{
    hop *h = context;
    size_t len = size * count;
    if (len >= 15 && strncasecmp(bytes, "content-length:", 15) == 0)
        h->sized = true;
    if (len > 7 && strncasecmp(bytes, "link: ", 6) == 0)
        snprintf(h->link, sizeof h->link, "%.*s", (int)strcspn(bytes + 6, "\r\n"), bytes + 6);
    if (len > 2)
        return len;
    const char *type = NULL;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &h->status);
    curl_easy_getinfo(h->curl, CURLINFO_CONTENT_TYPE, &type);
    snprintf(h->type, sizeof h->type, "%s", type ? type : "application/octet-stream");
    h->headed = h->status >= 200;
    return len;
}

/* Counts the response before its first byte. */
static bool hold_answer(hop *h)
{
    curl_off_t len = 0;
    curl_easy_getinfo(h->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &len);
    h->crowded = len > 0 && !hold(h, (size_t)len);
    return !h->crowded;
}

static size_t take_bytes(char *bytes, size_t size, size_t count, void *context)
{
    hop *h = context;
    size_t len = size * count;
    if (h->sized && !h->body.len && !hold_answer(h))
        return 0;
    if (h->stream && h->body.len >= HOP_HELD_BYTES) {
        h->paused = true;
        return CURL_WRITEFUNC_PAUSE; /* curl passes these bytes again */
    }
    bool taken = buf_append(&h->body, bytes, len, NULL) == 0;
    h->refused = !taken;
    return taken ? len : 0;
}

static bool same_leader(const hop *h)
{
    char where[KUBE_LEASE_ADDRESS_BYTES];
    return leader_where(h->c->leader, where) && strcmp(where, h->where) == 0;
}

/* Waits until the response is whole, or its headers show a stream. False: it was lost, and *result
 * has curl's code. */
static bool await_answer(hop *h, CURLcode *result)
{
    int64_t deadline = clock_deadline_ms(FORWARD_ANSWER_MS);
    *result = CURLE_OPERATION_TIMEDOUT;
    for (int running = 1;;) {
        if (curl_multi_perform(h->multi, &running))
            return false;
        if (h->headed && !h->sized && h->status == 200 && running)
            return true;
        if (!running) {
            int left;
            for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));)
                *result = m->msg == CURLMSG_DONE ? m->data.result : *result;
            return *result == CURLE_OK && h->headed;
        }
        h->late = clock_left_ms(deadline) == 0;
        if (h->late || !same_leader(h))
            return false;
        curl_multi_poll(h->multi, NULL, 0, FORWARD_WATCH_MS, NULL);
    }
}

/* ---- streams --------------------------------------------------------------------------------- */

static void *run_stream(void *arg)
{
    hop *h = arg;
    for (int running = 1;;) {
        if (running && curl_multi_perform(h->multi, &running))
            running = 0;
        if (!http_stream_push(h->stream, &h->body, &h->stuck_ms))
            break;
        bool held = h->body.len > 0;
        if (!held && (!running || !same_leader(h)))
            break;
        if (h->paused && !held) {
            h->paused = false;
            curl_easy_pause(h->curl, CURLPAUSE_CONT);
            continue;
        }
        curl_multi_poll(h->multi, NULL, 0, held ? HOP_READ_MS : FORWARD_WATCH_MS, NULL);
    }
    http_stream_close(h->stream);
    hop_free(h);
    count_stream(-1);
    return NULL;
}

/* Takes the hop, and continues it in a thread of its own, since a stream may last for hours. */
static void answer_stream(hop *h, http_request *r)
{
    pthread_t thread;
    pthread_attr_t attr;
    err e = ERR_INIT;
    if (!count_stream(1)) {
        err_set(&e, ERR_UNAVAILABLE, "%d streams are open already", FORWARD_STREAMS_MAX);
        http_response_error(r, &e);
        hop_free(h);
        return;
    }
    h->stream = http_response_stream(r, h->type);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    pthread_attr_setstacksize(&attr, HOP_STACK_BYTES);
#endif
    if (!h->stream || pthread_create(&thread, &attr, run_stream, h)) {
        http_stream_close(h->stream);
        hop_free(h);
        count_stream(-1);
    }
    pthread_attr_destroy(&attr);
}

/* ---- the request ----------------------------------------------------------------------------- */

static bool add_header(hop *h, const char *fmt, const char *value)
{
    char line[4400];
    int len = snprintf(line, sizeof line, fmt, value);
    struct curl_slist *more =
        len > 0 && (size_t)len < sizeof line ? curl_slist_append(h->headers, line) : NULL;
    if (more)
        h->headers = more;
    return more != NULL;
}

static bool set_headers(hop *h, const http_request *r)
{
    /* the caller's token, or another of the same user: the leader sees who asks */
    const char *token =
        h->c->config.tokens ? tokens_first(h->c->config.tokens, http_user(r)) : NULL;
    return add_header(h, HTTP_HOP_HEADER ": %s", "1") && add_header(h, "%s", "Expect:") &&
           (!token || add_header(h, "Authorization: Bearer %s", token)) &&
           (http_has_accept(r) ? add_header(h, "Accept: %s", http_accepted(r))
                               : add_header(h, "%s", "Accept:")) &&
           (!*http_content_type(r) || add_header(h, "Content-Type: %s", http_content_type(r)));
}

static hop *hop_new(controller *c, const char *where, http_request *r)
{
    hop *h = calloc(1, sizeof *h);
    char url[KUBE_LEASE_ADDRESS_BYTES + HTTP_URI_BYTES_MAX + 1];
    const char *method = http_method(r);
    size_t len = 0;
    if (!h)
        return NULL;
    h->c = c;
    buf_init(&h->body, FORWARD_BYTES_MAX);
    snprintf(h->where, sizeof h->where, "%s", where);
    h->curl = curl_easy_init();
    h->multi = curl_multi_init();
    if (!h->curl || !h->multi || !set_headers(h, r)) {
        hop_free(h);
        return NULL;
    }
    const char *body = http_body_bytes(r, &len);
    snprintf(url, sizeof url, "%s%s", where, http_uri(r));
    curl_easy_setopt(h->curl, CURLOPT_URL, url);
    curl_easy_setopt(h->curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(h->curl, CURLOPT_CUSTOMREQUEST, strcmp(method, "HEAD") == 0 ? "GET" : method);
    curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http");
    curl_easy_setopt(h->curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(h->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)FORWARD_CONNECT_MS);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, h->headers);
    curl_easy_setopt(h->curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(h->curl, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, h);
    if (len || strcmp(method, "POST") == 0) {
        curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
        curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, body ? body : "");
    }
    curl_multi_add_handle(h->multi, h->curl);
    return h;
}

json_t *forward_look(controller *c, const char *path)
{
    char where[KUBE_LEASE_ADDRESS_BYTES], url[KUBE_LEASE_ADDRESS_BYTES + 64];
    http_reply reply;
    if (!c->leader || !leader_where(c->leader, where))
        return NULL;
    snprintf(url, sizeof url, "%s%s", where, path);
    const char *token = c->config.tokens ? tokens_first(c->config.tokens, NULL) : NULL;
    http_call call = {.method = "GET",
                      .url = url,
                      .token = token,
                      .hop = true,
                      .direct = true,
                      .total_ms = FORWARD_LOOK_MS};
    json_t *out = http_call_run(&call, &reply, NULL) == 0 ? http_reply_json(&reply, NULL) : NULL;
    http_reply_free(&reply);
    return out;
}

/* ---- forwarding ------------------------------------------------------------------------------ */

static void answer_lost(const hop *h, http_request *r, CURLcode result)
{
    err e = ERR_INIT;
    const char *method = http_method(r);
    bool harmless = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (h->refused)
        err_set(&e, ERR_LIMIT, "the leader's answer is over %d bytes", FORWARD_BYTES_MAX);
    else if (h->crowded)
        err_set(&e, ERR_UNAVAILABLE,
                "there is no room for the answer: %d MiB at most are held for others that have "
                "not taken theirs yet",
                FORWARD_HELD_MAX >> 20);
    else if (h->late)
        err_set(&e, ERR_TIMEOUT, "the leading controller has not answered for %d s%s",
                FORWARD_ANSWER_MS / 1000, harmless ? "" : ": look whether it was done");
    else if (harmless || result == CURLE_COULDNT_CONNECT)
        err_set(&e, ERR_UNAVAILABLE,
                "the leading controller does not answer; another takes over within seconds");
    else
        err_set(&e, ERR_TIMEOUT,
                "the leading controller was lost before it answered: look whether it was done");
    http_response_error(r, &e);
}

static ssize_t read_answer(void *source, void *out, size_t max)
{
    hop *h = source;
    size_t left = h->body.len - h->sent, n = left < max ? left : max;
    memcpy(out, h->body.bytes + h->sent, n);
    h->sent += n;
    return (ssize_t)n;
}

/* Takes the hop. */
static void answer_whole(hop *h, http_request *r)
{
    if (h->status == 503)
        http_add_header(r, "Retry-After", "1");
    if (h->link[0])
        http_add_header(r, "Link", h->link);
    if (h->held && h->status == 200) {
        hang_up(h);
        http_response_source(r, h->type, h->body.len, read_answer, hop_free, h);
        return;
    }
    http_response_bytes(r, (unsigned)h->status, h->type, h->body.len ? h->body.bytes : "",
                        h->body.len);
    hop_free(h);
}

static void forward(controller *c, const char *where, http_request *r)
{
    err e = ERR_INIT;
    CURLcode result;
    hop *h = hop_new(c, where, r);
    bool answered = h && await_answer(h, &result);
    if (answered)
        http_leave_uncounted(r);
    if (!h) {
        err_set(&e, ERR_NOMEM, "no memory to hand the request on");
        http_response_error(r, &e);
        return;
    }
    if (!answered) {
        answer_lost(h, r, result);
        hop_free(h);
    } else if (!h->sized && h->status == 200) {
        answer_stream(h, r);
    } else {
        answer_whole(h, r);
    }
}

bool forward_divert(void *context, http_request *r)
{
    controller *c = context;
    char where[KUBE_LEASE_ADDRESS_BYTES];
    err e = ERR_INIT;
    if (controller_leads(c))
        return false;
    bool few = atomic_fetch_add(&waiting, 1) < FORWARD_WAITING_MAX;
    leader *l = c->leader;
    if (http_is_forwarded(r) || !l || !leader_where(l, where))
        err_set(&e, ERR_UNAVAILABLE, "no controller leads at the moment; one will within seconds");
    else if (!few)
        err_set(&e, ERR_UNAVAILABLE, "%d requests wait for the leading controller already",
                FORWARD_WAITING_MAX);
    else
        forward(c, where, r);
    if (e.code != ERR_NONE)
        http_response_error(r, &e);
    atomic_fetch_sub(&waiting, 1);
    return true;
}
