/* http_client.c: see http_client.h. */
#include "http_client.h"

#include <errno.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/cleanup.h"
#include "common/kube/kube_tls.h"
#include "http_server.h"

enum {
    HEADER_BYTES_MAX = 4200,
    PROBE_IDLE_S = 20,  /* time without a byte from the server until the first TCP probe */
    PROBE_EVERY_S = 10, /* time between the probes; the kernel sends 9 */
};

typedef struct transfer {
    const http_call *call;
    http_reply *reply;
    CURL *curl;
    err *problem;
    bool ended, refused; /* ended by the caller; refused: the body does not fit */
} transfer;

static void start_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t take_body(char *bytes, size_t size, size_t count, void *context)
{
    transfer *t = context;
    size_t len = size * count;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->reply->status);
    if (t->call->sink && t->reply->status < 400) {
        if (t->call->sink(t->call->context, bytes, len) == 0)
            return len;
        t->ended = true;
        return 0;
    }
    if (buf_append(&t->reply->body, bytes, len, t->problem) == 0)
        return len;
    t->refused = true;
    return 0;
}

/* libcurl calls it at least every second. Reports the bytes sent if the call sends any: the
 * progress of an upload's response is of no interest. */
static int tell_progress(void *context, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                         curl_off_t up)
{
    transfer *t = context;
    curl_off_t total = up_total > 0 ? up_total : down_total;
    if (t->call->progress && total > 0)
        t->call->progress(t->call->context, (uint64_t)(up_total > 0 ? up : down), (uint64_t)total);
    t->ended |= t->call->over && t->call->over(t->call->context);
    return t->ended;
}

static int multipart(CURL *curl, const http_call *call, curl_mime **out, err *e)
{
    *out = call->part_count ? curl_mime_init(curl) : NULL;
    bool whole = *out || call->part_count == 0;
    for (size_t i = 0; whole && i < call->part_count; i++) {
        const http_part *part = &call->parts[i];
        curl_mimepart *field = curl_mime_addpart(*out);
        whole = field && curl_mime_name(field, part->field) == CURLE_OK;
        /* The transfer reports a file that cannot be read. */
        if (whole && part->path)
            whole = curl_mime_filedata(field, part->path) != CURLE_OUT_OF_MEMORY;
        else if (whole)
            whole = curl_mime_data(field, part->bytes, part->len) == CURLE_OK;
        if (whole && part->filename)
            whole = curl_mime_filename(field, part->filename) == CURLE_OK;
    }
    return whole ? 0 : err_set(e, ERR_NOMEM, "no memory for a form");
}

static int append(struct curl_slist **list, const char *line, err *e)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (!longer) /* fails, so that no request goes out without its token */
        return err_set(e, ERR_NOMEM, "no memory for a header");
    *list = longer;
    return 0;
}

static __attribute__((format(printf, 3, 4))) int add_header(struct curl_slist **list, err *e,
                                                            const char *format, ...)
{
    char line[HEADER_BYTES_MAX];
    va_list values;
    va_start(values, format);
    int len = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (len < 0 || (size_t)len >= sizeof line)
        return err_set(e, ERR_LIMIT, "a header of %d bytes; at most %d", len, HEADER_BYTES_MAX - 1);
    return append(list, line, e);
}

static int headers_of(const http_call *call, const char *bearer, struct curl_slist **out, err *e)
{
    if (add_header(out, e, "Accept: %s", call->accept ? call->accept : "application/json"))
        return -1;
    if (call->body && add_header(out, e, "Content-Type: %s",
                                 call->content_type ? call->content_type : "application/json"))
        return -1;
    /* Before a large body libcurl sends `Expect: 100-continue`: our server may then refuse without
     * reading the body, and close. The API server's proxy sends the body on without waiting, and
     * may take the refusal for a broken connection. So this header is removed. */
    if (call->kube && add_header(out, e, "Expect:"))
        return -1;
    if (call->token && call->token[0] &&
        add_header(out, e, "%s%s", call->kube ? HTTP_TOKEN_HEADER ": " : "Authorization: Bearer ",
                   call->token))
        return -1;
    if (call->hop && add_header(out, e, HTTP_HOP_HEADER ": 1"))
        return -1;
    return bearer ? append(out, bearer, e) : 0;
}

static bool is_local(const char *url)
{
    char host[80];
    const char *begin = strstr(url, "://");
    begin = begin ? begin + 3 : url;
    snprintf(host, sizeof host, "%.*s", (int)strcspn(begin, "/?#"), begin);
    return http_host_is_local(host);
}

static void set_limits(CURL *curl, const http_call *call)
{
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)(call->connect_ms ? call->connect_ms : HTTP_CONNECT_MS));
    if (call->total_ms)
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)call->total_ms);
    if (call->idle_s >= 0) {
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME,
                         (long)(call->idle_s ? call->idle_s : HTTP_IDLE_S));
    }
    /* A followed log may bring nothing for hours: only probes show that the server is gone. */
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPIDLE, (long)PROBE_IDLE_S);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPINTVL, (long)PROBE_EVERY_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    if (call->direct || is_local(call->url))
        curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
}

static err_code code_of_status(long status)
{
    switch (status) {
    case 401:
        return ERR_UNAUTHORIZED;
    case 403:
        return ERR_FORBIDDEN;
    case 404:
        return ERR_NOT_FOUND;
    case 409:
        return ERR_CONFLICT;
    case 413:
    case 429:
        return ERR_LIMIT;
    case 422:
        return ERR_UNSUPPORTED;
    case 503:
        return ERR_UNAVAILABLE;
    case 504:
        return ERR_TIMEOUT;
    default:
        return status < 500 ? ERR_INVALID : ERR_INTERNAL;
    }
}

static int status_error(const http_reply *reply, const char *url, err *e)
{
    json_t *problem =
        reply->body.len ? json_loadb(reply->body.bytes, reply->body.len, 0, NULL) : NULL;
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    if (!detail)
        detail = json_string_value(json_object_get(problem, "error"));
    if (!detail)
        detail = json_string_value(json_object_get(problem, "title"));
    if (!detail) /* a Status object of Kubernetes */
        detail = json_string_value(json_object_get(problem, "message"));
    if (detail)
        err_set(e, code_of_status(reply->status), "%s", detail);
    else
        err_set(e, code_of_status(reply->status), "the server answered %ld to %s", reply->status,
                url);
    json_decref(problem);
    return -1;
}

static int curl_error(CURL *curl, CURLcode code, const http_call *call, const char *detail, err *e)
{
    const char *text = detail[0] ? detail : curl_easy_strerror(code), *url = call->url;
    long asked = 0; /* bytes of the request's head */
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        if (strstr(text, "too slow")) /* "Less than 1 bytes/sec": the limit that idle_s sets */
            return err_set(e, ERR_TIMEOUT, "%s: nothing was sent or received for %d s", url,
                           call->idle_s ? call->idle_s : HTTP_IDLE_S);
        err_set(e, ERR_TIMEOUT, "%s: %s", url, text);
        curl_easy_getinfo(curl, CURLINFO_REQUEST_SIZE, &asked);
        if (e && !asked)
            e->os_errno = ETIMEDOUT;
        return -1;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return err_set(e, ERR_INVALID, "not a usable URL: %s", url);
    case CURLE_READ_ERROR:
        return err_set(e, ERR_IO, "cannot read what is to be sent: %s", text);
    default:
        err_set(e, ERR_UNAVAILABLE, "%s: %s", url, text);
        if (e && (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST))
            e->os_errno = ECONNREFUSED;
        else if (e && (code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR ||
                       code == CURLE_PARTIAL_FILE))
            e->os_errno = ECONNRESET;
        return -1;
    }
}

/* Sets up the whole request, or fails: no part may be missing because memory was short. */
static int prepare(CURL *curl, const http_call *call, const char *bearer,
                   struct curl_slist **headers, curl_mime **form, err *e)
{
    if (headers_of(call, bearer, headers, e) || multipart(curl, call, form, e))
        return -1;
    if (curl_easy_setopt(curl, CURLOPT_URL, call->url) != CURLE_OK ||
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method) != CURLE_OK)
        return err_set(e, ERR_NOMEM, "no memory for a request");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, *headers);
    if (strcmp(call->method, "HEAD") == 0)
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    if (call->body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call->body);
    }
    if (*form)
        curl_easy_setopt(curl, CURLOPT_MIMEPOST, *form);
    set_limits(curl, call);
    if (call->kube)
        kube_tls_set(curl, call->kube);
    return 0;
}

static void take_next(CURL *curl, http_reply *out)
{
    struct curl_header *link;
    if (curl_easy_header(curl, "Link", 0, CURLH_HEADER, -1, &link) != CURLHE_OK ||
        strncmp(link->value, "</", 2) != 0)
        return;
    size_t len = strcspn(link->value, ">") - 1;
    if (strcmp(link->value + 1 + len, ">; rel=\"next\"") == 0 && len < sizeof out->next)
        memcpy(out->next, link->value + 1, len);
}

int http_call_run(const http_call *call, http_reply *out, err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_curl);
    *out = (http_reply){0};
    buf_init(&out->body, HTTP_REPLY_BYTES_MAX);
    cleanup_free char *bearer = NULL;
    if (call->kube && kube_bearer(call->kube, &bearer, e))
        return -1;
    CURL *curl = curl_easy_init();
    if (!curl)
        return err_set(e, ERR_NOMEM, "no memory for an HTTP call");
    transfer t = {.call = call, .reply = out, .curl = curl, .problem = e};
    char detail[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = NULL;
    curl_mime *form = NULL;
    CURLcode code = CURLE_OK;
    int status = prepare(curl, call, bearer, &headers, &form, e);
    if (status == 0) {
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t);
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, tell_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &t);
        code = curl_easy_perform(curl);
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &out->status);
        const char *type = NULL;
        curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &type);
        snprintf(out->content_type, sizeof out->content_type, "%s", type ? type : "");
        take_next(curl, out);
    }
    curl_slist_free_all(headers);
    curl_mime_free(form);
    /* A server that refuses an upload responds and closes before it has read everything: its
     * response counts more than libcurl's error. */
    if (status == 0 && out->status >= 400)
        status = status_error(out, call->url, e);
    else if (t.refused)
        status = -1;
    else if (status == 0 && code != CURLE_OK && !t.ended)
        status = curl_error(curl, code, call, detail, e);
    curl_easy_cleanup(curl);
    return status;
}

void http_reply_free(http_reply *reply)
{
    buf_free(&reply->body);
}

json_t *http_reply_json(const http_reply *reply, err *e)
{
    json_error_t problem;
    json_t *value = json_loadb(reply->body.bytes ? reply->body.bytes : "", reply->body.len,
                               JSON_DECODE_ANY, &problem);
    if (!value)
        err_set(e, ERR_CORRUPT, "the server's answer is not JSON: %s", problem.text);
    return value;
}

int http_encode(buf *out, const char *text, err *e)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (const char *c = text; *c; c++) {
        int status = strchr(plain, *c) ? buf_append(out, c, 1, e)
                                       : buf_printf(out, e, "%%%02X", (unsigned char)*c);
        if (status)
            return -1;
    }
    return 0;
}
