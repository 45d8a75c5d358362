/* kube_client.c: see kube_client.h. */
#include "kube_client.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/kube/kube_tls.h"
#include "common/net/wire.h"

enum { LINE_BYTES_MAX = 8 << 20, JSON_DEPTH_MAX = 64 };

struct kube_client {
    const kube_config *config;
    CURL *curl;
    CURLM *multi;
    atomic_bool cancelled;
    kube_backoff backoff;
};

/* ---- waits ----------------------------------------------------------------------------------- */

void kube_backoff_init(kube_backoff *b, uint64_t seed)
{
    rng_init(&b->random, seed, RNG_BACKOFF, 0, 0);
    b->tries = 0;
}

int kube_backoff_next(kube_backoff *b)
{
    int wait = KUBE_BACKOFF_MS_MAX;
    if (b->tries < 7 && KUBE_BACKOFF_MS << b->tries < wait)
        wait = KUBE_BACKOFF_MS << b->tries;
    if (b->tries < 7)
        b->tries++;
    return wait / 2 + (int)rng_below(&b->random, (uint64_t)(wait / 2 + 1));
}

void kube_backoff_reset(kube_backoff *b)
{
    b->tries = 0;
}

bool kube_client_sleep(kube_client *c, int ms)
{
    int64_t until = clock_deadline_ms(ms);
    while (!atomic_load(&c->cancelled) && clock_left_ms(until) > 0)
        curl_multi_poll(c->multi, NULL, 0, clock_left_ms(until), NULL);
    return !atomic_load(&c->cancelled);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void start_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int kube_client_open(const kube_config *config, kube_client **out, err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_curl);
    kube_client *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for the API server's client");
    c->config = config;
    c->curl = curl_easy_init();
    c->multi = curl_multi_init();
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)clock_monotonic_ns();
    kube_backoff_init(&c->backoff, seed);
    if (!c->curl || !c->multi) {
        kube_client_close(c);
        return err_set(e, ERR_NOMEM, "no memory for the API server's client");
    }
    *out = c;
    return 0;
}

void kube_client_close(kube_client *c)
{
    if (!c)
        return;
    if (c->curl)
        curl_easy_cleanup(c->curl);
    if (c->multi)
        curl_multi_cleanup(c->multi);
    free(c);
}

void kube_client_cancel(kube_client *c)
{
    atomic_store(&c->cancelled, true);
    curl_multi_wakeup(c->multi);
}

/* ---- one transfer ---------------------------------------------------------------------------- */

typedef struct transfer {
    kube_client *client;
    buf *text;      /* the response, or the part of a line that has come */
    kube_line take; /* NULL: the response is wanted whole */
    void *context;
    bool ended, refused;
    int64_t retry_after_ms;
    err *e;
} transfer;

static int hand_over(transfer *t)
{
    char *from = t->text->bytes, *end;
    size_t left = t->text->len;
    int status = 0;
    while (status == 0 && left && (end = memchr(from, '\n', left))) {
        *end = '\0';
        if (end > from)
            status = t->take(t->context, from, (size_t)(end - from));
        left -= (size_t)(end + 1 - from);
        from = end + 1;
    }
    buf_consume(t->text, t->text->len - left);
    return status;
}

static size_t take_bytes(char *bytes, size_t size, size_t count, void *context)
{
    transfer *t = context;
    size_t len = size * count;
    long status = 0;
    if (buf_append(t->text, bytes, len, t->e)) {
        t->refused = true;
        return 0;
    }
    curl_easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->take && status < 300 && hand_over(t)) {
        t->ended = true;
        return 0;
    }
    return len;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *context)
{
    transfer *t = context;
    static const char name[] = "retry-after:";
    char number[16];
    size_t len = size * count, at = sizeof name - 1;
    if (len > at && len < at + sizeof number && strncasecmp(bytes, name, at) == 0) {
        memcpy(number, bytes + at, len - at);
        number[len - at] = '\0';
        char *end;
        long seconds = strtol(number, &end, 10);
        if (end != number && seconds >= 0)
            t->retry_after_ms =
                (seconds < KUBE_RETRY_AFTER_S_MAX ? seconds : KUBE_RETRY_AFTER_S_MAX) * 1000;
    }
    return len;
}

static int set_headers(const kube_client *c, const kube_request *r, struct curl_slist **out, err *e)
{
    cleanup_free char *token = NULL;
    char type[120];
    if (kube_bearer(c->config, &token, e))
        return -1;
    snprintf(type, sizeof type, "Content-Type: %s", r->type ? r->type : "application/json");
    const char *lines[] = {"Accept: application/json, */*",
                           "Expect:", r->body ? type : "Content-Type:", token};
    for (size_t i = 0; i < sizeof lines / sizeof *lines && lines[i]; i++) {
        struct curl_slist *more = curl_slist_append(*out, lines[i]);
        if (!more)
            return err_set(e, ERR_NOMEM, "no memory for a request");
        *out = more;
    }
    return 0;
}

/* A watch is quiet for long, and would not notice by itself that its server's machine is gone. */
static int watch_server(void *context, curl_socket_t fd, curlsocktype purpose)
{
    (void)context;
    (void)purpose;
    wire_watch_socket(fd, KUBE_DEAD_MS);
    return CURL_SOCKOPT_OK;
}

static void set_options(transfer *t, const kube_request *r, const char *url, const char *body)
{
    CURL *curl = t->client->curl;
    curl_easy_reset(curl); /* keeps connections */
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, r->method);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)KUBE_CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_SOCKOPTFUNCTION, watch_server);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
    if (body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    }
    kube_tls_set(curl, t->client->config);
}

/* Runs the request for which the handle is set up. CURLE_OPERATION_TIMEDOUT at the deadline,
 * CURLE_ABORTED_BY_CALLBACK where it was cancelled. */
static CURLcode perform(kube_client *c, int64_t deadline_ms)
{
    CURLcode result = CURLE_OPERATION_TIMEDOUT;
    if (curl_multi_add_handle(c->multi, c->curl))
        return CURLE_OUT_OF_MEMORY;
    for (int running = 1; running;) {
        if (atomic_load(&c->cancelled)) {
            result = CURLE_ABORTED_BY_CALLBACK;
            break;
        }
        if (curl_multi_perform(c->multi, &running))
            break;
        if (!running) {
            int left;
            for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));)
                result = m->msg == CURLMSG_DONE ? m->data.result : result;
        } else if (clock_left_ms(deadline_ms) == 0) {
            break;
        } else {
            curl_multi_poll(c->multi, NULL, 0, clock_left_ms(deadline_ms), NULL);
        }
    }
    curl_multi_remove_handle(c->multi, c->curl);
    return result;
}

static int transfer_run(transfer *t, const kube_request *r, int64_t deadline_ms, kube_outcome *o,
                        err *e)
{
    kube_client *c = t->client;
    char url[2048], detail[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = NULL;
    *o = (kube_outcome){.retry_after_ms = -1};
    t->e = e;
    t->retry_after_ms = -1;
    int len = snprintf(url, sizeof url, "%s%s%s%s", c->config->server, r->path, r->query ? "?" : "",
                       r->query ? r->query : "");
    if (len < 0 || (size_t)len >= sizeof url)
        return err_set(e, ERR_LIMIT, "a request's address is over %zu bytes", sizeof url);
    cleanup_free char *body = r->body ? json_dumps(r->body, JSON_COMPACT) : NULL;
    if (r->body && !body)
        return err_set(e, ERR_NOMEM, "no memory for a request");
    set_options(t, r, url, body);
    if (set_headers(c, r, &headers, e)) {
        curl_slist_free_all(headers);
        return -1;
    }
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, detail);
    CURLcode code = perform(c, deadline_ms);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &o->status);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_slist_free_all(headers);
    o->retry_after_ms = t->retry_after_ms;
    if (code == CURLE_OK || t->ended)
        return 0;
    if (t->refused)
        return -1;
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, ERR_CANCELLED, "the call to the API server was cancelled");
    o->status = 0; /* a response that was cut counts as none */
    if (code == CURLE_OPERATION_TIMEDOUT)
        return err_set(e, ERR_TIMEOUT, "the API server did not answer in time");
    return err_set(e, code == CURLE_OUT_OF_MEMORY ? ERR_NOMEM : ERR_UNAVAILABLE,
                   "the API server %.80s: %s", c->config->server,
                   detail[0] ? detail : curl_easy_strerror(code));
}

/* ---- what a status means --------------------------------------------------------------------- */

static err_code code_of(long status, const char *reason, const char *message)
{
    switch (status) {
    case 401: return ERR_UNAUTHORIZED;
    case 403: return strstr(message, "exceeded quota") ? ERR_LIMIT : ERR_FORBIDDEN;
    case 404: return ERR_NOT_FOUND;
    case 409: return strcmp(reason, "AlreadyExists") == 0 ? ERR_EXISTS : ERR_CONFLICT;
    case 410: return ERR_STALE;
    case 408:
    case 429: return ERR_UNAVAILABLE;
    default:
        return strstr(message, "field not declared in schema") ? ERR_UNSUPPORTED
               : status >= 500                                 ? ERR_UNAVAILABLE
                                                               : ERR_INVALID;
    }
}

static int status_error(long status, const buf *text, err *e)
{
    cleanup_json json_t *object = NULL;
    if (text && text->len)
        json_read(text->bytes, text->len, JSON_DEPTH_MAX, &object, NULL);
    const char *message = json_string_value(json_object_get(object, "message"));
    const char *reason = json_string_value(json_object_get(object, "reason"));
    err_code code = code_of(status, reason ? reason : "", message ? message : "");
    if (message && *message)
        return err_set(e, code, "%s", message);
    return err_set(e, code, "the API server answered %ld", status);
}

static bool may_write(const kube_client *c, const kube_request *r)
{
    return strcmp(r->method, "GET") == 0 || kube_config_may_write(c->config);
}

int kube_try(kube_client *c, const kube_request *r, int64_t deadline_ms, buf *text, kube_outcome *o,
             err *e)
{
    cleanup_buf buf own;
    buf_init(&own, KUBE_REPLY_BYTES_MAX);
    transfer t = {.client = c, .text = text ? text : &own};
    *o = (kube_outcome){.retry_after_ms = -1};
    if (!may_write(c, r))
        return err_set(e, ERR_UNAVAILABLE, "this controller does not lead at the moment");
    if (transfer_run(&t, r, deadline_ms, o, e))
        return -1;
    return o->status >= 200 && o->status < 300 ? 0 : status_error(o->status, t.text, e);
}

/* Whether another try may help after `tries` tries. */
static bool may_repeat(const err *e, const kube_outcome *o, int tries)
{
    if (o->status == 401)
        return tries < KUBE_UNAUTHORIZED_TRIES;
    return e->code == ERR_UNAVAILABLE || (e->code == ERR_TIMEOUT && o->status == 0);
}

int kube_call(kube_client *c, const kube_request *r, int64_t deadline_ms, json_t **out,
              bool *repeated, err *e)
{
    bool unknown = false;
    if (out)
        *out = NULL;
    kube_backoff_reset(&c->backoff);
    for (int tries = 1;; tries++) {
        cleanup_buf buf text;
        buf_init(&text, KUBE_REPLY_BYTES_MAX);
        kube_outcome o;
        err why = ERR_INIT;
        if (repeated)
            *repeated = unknown;
        if (kube_try(c, r, deadline_ms, &text, &o, &why) == 0) {
            if (out && text.len)
                return json_read(text.bytes, text.len, JSON_DEPTH_MAX, out, e)
                           ? err_wrap(e, "the API server's answer")
                           : 0;
            return 0;
        }
        unknown = unknown || o.status == 0 || o.status >= 500;
        int wait = kube_backoff_next(&c->backoff);
        if (o.retry_after_ms >= 0)
            wait += (int)o.retry_after_ms;
        if (!may_repeat(&why, &o, tries) || clock_left_ms(deadline_ms) <= wait)
            return err_set(e, why.code, "%s", why.message);
        if (!kube_client_sleep(c, wait))
            return err_set(e, ERR_CANCELLED, "the call to the API server was cancelled");
    }
}

bool kube_may_pass(err_code code)
{
    return code == ERR_UNAVAILABLE || code == ERR_TIMEOUT || code == ERR_LIMIT ||
           code == ERR_UNAUTHORIZED || code == ERR_NOMEM || code == ERR_CONFLICT;
}

/* ---- short forms ----------------------------------------------------------------------------- */

int kube_get(kube_client *c, const char *path, const char *query, int64_t deadline_ms, json_t **out,
             err *e)
{
    return kube_call(c, &(kube_request){.method = "GET", .path = path, .query = query}, deadline_ms,
                     out, NULL, e);
}

int kube_create(kube_client *c, const char *path, const json_t *object, int64_t deadline_ms,
                json_t **out, err *e)
{
    bool repeated = false;
    err why = ERR_INIT;
    kube_request r = {.method = "POST", .path = path, .body = object,
                      .query = "fieldManager=" KUBE_FIELD_MANAGER};
    if (kube_call(c, &r, deadline_ms, out, &repeated, &why) == 0 ||
        (repeated && why.code == ERR_EXISTS))
        return 0;
    return err_set(e, why.code, "%s", why.message);
}

int kube_merge_patch(kube_client *c, const char *path, const json_t *patch, int64_t deadline_ms,
                     json_t **out, err *e)
{
    kube_request r = {.method = "PATCH", .path = path, .body = patch,
                      .type = "application/merge-patch+json",
                      .query = "fieldManager=" KUBE_FIELD_MANAGER};
    return kube_call(c, &r, deadline_ms, out, NULL, e);
}

int kube_apply(kube_client *c, const char *path, const json_t *object, int64_t deadline_ms,
               json_t **out, err *e)
{
    /* JSON is YAML. */
    kube_request r = {.method = "PATCH", .path = path, .body = object,
                      .type = "application/apply-patch+yaml",
                      .query = "force=true&fieldManager=" KUBE_FIELD_MANAGER};
    return kube_call(c, &r, deadline_ms, out, NULL, e);
}

int kube_patch_status(kube_client *c, const char *collection, const char *name, const json_t *there,
                      const json_t *status, int64_t deadline_ms, json_t **out, err *e)
{
    char path[700];
    const char *key;
    json_t *value;
    cleanup_json json_t *whole = json_copy((json_t *)(uintptr_t)status), *patch = NULL;
    json_object_foreach ((json_t *)(uintptr_t)there, key, value) {
        if (!json_object_get(status, key))
            json_object_set_new(whole, key, json_null());
    }
    snprintf(path, sizeof path, "%s/%s/status", collection, name);
    patch = json_pack("{s:O}", "status", whole);
    return patch ? kube_merge_patch(c, path, patch, deadline_ms, out, e)
                 : err_set(e, ERR_NOMEM, "no memory for a status");
}

int kube_apply_status(kube_client *c, const char *collection, const char *kind, const char *name,
                      const json_t *status, int64_t deadline_ms, err *e)
{
    char path[700];
    cleanup_json json_t *now = NULL;
    snprintf(path, sizeof path, "%s/%s/status", collection, name);
    cleanup_json json_t *object =
        json_pack("{s:s, s:s, s:{s:s}, s:O}", "apiVersion", KUBE_RESOURCES, "kind", kind,
                  "metadata", "name", name, "status", status);
    if (!object)
        return err_set(e, ERR_NOMEM, "no memory for a status");
    if (kube_apply(c, path, object, deadline_ms, &now, e))
        return -1;
    /* An apply leaves fields that another manager has set; a status is ours alone. */
    const json_t *there = json_object_get(now, "status");
    return json_equal(status, there)
               ? 0
               : kube_patch_status(c, collection, name, there, status, deadline_ms, NULL, e);
}

int kube_delete(kube_client *c, const char *path, const char *uid, int grace_s, int64_t deadline_ms,
                err *e)
{
    /* The API server ignores the query of a request with a body. */
    cleanup_json json_t *options = json_pack("{s:s, s:{s:s*}}", "propagationPolicy", "Background",
                                             "preconditions", "uid", uid);
    if (!options ||
        (grace_s >= 0 && json_object_set_new(options, "gracePeriodSeconds", json_integer(grace_s))))
        return err_set(e, ERR_NOMEM, "no memory to delete %s", path);
    err why = ERR_INIT;
    kube_request r = {.method = "DELETE", .path = path, .body = options};
    if (kube_call(c, &r, deadline_ms, NULL, NULL, &why) == 0 || why.code == ERR_NOT_FOUND)
        return 0;
    return err_set(e, why.code, "%s", why.message);
}

int kube_stream(kube_client *c, const char *path, const char *query, int64_t deadline_ms,
                kube_line take, void *context, kube_outcome *o, err *e)
{
    cleanup_buf buf line;
    buf_init(&line, LINE_BYTES_MAX);
    transfer t = {.client = c, .text = &line, .take = take, .context = context};
    if (transfer_run(&t, &(kube_request){.method = "GET", .path = path, .query = query},
                     deadline_ms, o, e))
        return -1;
    return o->status >= 200 && o->status < 300 ? 0 : status_error(o->status, &line, e);
}
