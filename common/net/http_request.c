/* http_request.c: a request's headers: the checks before a handler runs, and the getters for
 * handlers. */
#include "http_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const char *http_header_value(const http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

typedef struct tally {
    const char *name;
    int count;
} tally;

static enum MHD_Result tally_header(void *context, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    tally *t = context;
    (void)kind, (void)value;
    t->count += strcasecmp(name, t->name) == 0;
    return MHD_YES;
}

static int header_count(const http_request *r, const char *name)
{
    tally t = {.name = name};
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, tally_header, &t);
    return t.count;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int check_token(http_request *r, err *e)
{
    const tokens *taken = r->server->config.tokens;
    const char *have = http_header_value(r, "Authorization"),
               *own = http_header_value(r, HTTP_TOKEN_HEADER);
    const char *token = own ? own : have && strncasecmp(have, "Bearer ", 7) == 0 ? have + 7 : NULL;
    if (!taken || (r->route && r->route->open))
        return 0;
    const char *user = token ? tokens_user(taken, token) : NULL;
    if (user) {
        snprintf(r->user, sizeof r->user, "%s", user);
        return 0;
    }
    http_add_header(r, "WWW-Authenticate", "Bearer realm=\"kubeml\"");
    return err_set(e, ERR_UNAUTHORIZED,
                   have || own ? "the token is wrong"
                               : "a token is needed: Authorization: Bearer TOKEN");
}

/* Without tokens the API serves its own user and root only: the machine may have other users. */
static int check_peer(const http_request *r, err *e)
{
    if (!r->server->asks_peers || r->route->open)
        return 0;
    http_peer peer = r->conn ? http_connection_peer(r->conn) : HTTP_PEER_UNKNOWN;
    if (peer == HTTP_PEER_OURS)
        return 0;
    if (peer == HTTP_PEER_UNKNOWN)
        return err_set(e, ERR_UNAVAILABLE,
                       "the kernel cannot be asked now whose this connection is; try again");
    return err_set(e, ERR_FORBIDDEN,
                   "without tokens the API answers to user %u, as whom it runs, and to root alone; "
                   "for others start it with --token-file FILE",
                   (unsigned)geteuid());
}

/* Without tokens the API serves this machine alone, under its local names. Origin does not protect
 * against DNS rebinding: a page whose host name is made to mean 127.0.0.1 after the page was loaded
 * sends the same Origin as Host. */
static int check_host(http_request *r, err *e)
{
    const char *host = http_header_value(r, "Host");
    if (!host && !r->old)
        return err_set(e, ERR_INVALID, "HTTP/1.1 wants a Host header");
    if (r->server->config.tokens || !host || http_host_is_local(host))
        return 0;
    return err_set(e, ERR_FORBIDDEN,
                   "without tokens the API answers to localhost and 127.0.0.1, not to \"%.64s\"",
                   host);
}

/* Refuses requests from pages of another origin: a browser names the page's origin, and the API may
 * listen on the loopback address without tokens. */
static int check_origin(http_request *r, err *e)
{
    const char *origin = http_header_value(r, "Origin"), *host = http_header_value(r, "Host");
    const char *authority = origin ? strstr(origin, "://") : NULL;
    if (!origin || (authority && host && strcasecmp(authority + 3, host) == 0))
        return 0;
    return err_set(e, ERR_FORBIDDEN, "requests from pages of another origin are refused");
}

/* Finds the route; otherwise 404, or 405 with the path's methods. */
static int find_route(http_request *r, unsigned *status, err *e)
{
    char allow[HTTP_HEADERS_MAX * 16] = "";
    for (size_t i = 0; i < r->server->config.route_count; i++) {
        const http_route *route = &r->server->config.routes[i];
        if (!http_pattern_matches(route->pattern, &r->target))
            continue;
        if (strcmp(route->method, r->head ? "GET" : r->method) == 0) {
            r->route = route;
            return 0;
        }
        const char *more = strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method;
        size_t used = strlen(allow);
        snprintf(allow + used, sizeof allow - used, "%s%s", used ? ", " : "", more);
    }
    if (!allow[0])
        return err_set(e, ERR_NOT_FOUND, "there is no such path");
    http_add_header(r, "Allow", allow);
    *status = 405;
    return err_set(e, ERR_UNSUPPORTED, "this path takes %s", allow);
}

static int check_queries(const http_request *r, err *e)
{
    const http_target *t = &r->target;
    for (int i = 0; i < t->query_count; i++) {
        if (!http_list_has(r->route->queries, t->query_names[i]))
            return err_set(e, ERR_INVALID, "unknown query parameter \"%.64s\"", t->query_names[i]);
        for (int before = 0; before < i; before++)
            if (strcmp(t->query_names[before], t->query_names[i]) == 0)
                return err_set(e, ERR_INVALID, "query parameter \"%s\" is given twice",
                               t->query_names[i]);
    }
    return 0;
}

/* Checks that the body's end, and so the next request's beginning, is unambiguous: two servers in a
 * row must see the same end (RFC 9112, 6.3). A request refused here is the connection's last. */
static int check_framing(http_request *r, unsigned *status, err *e)
{
    int lengths = header_count(r, "Content-Length"), codings = header_count(r, "Transfer-Encoding");
    const char *coding = http_header_value(r, "Transfer-Encoding");
    r->last = true;
    if (lengths > 1)
        return err_set(e, ERR_INVALID, "Content-Length is given twice");
    if (lengths && codings)
        return err_set(e, ERR_INVALID, "Content-Length and Transfer-Encoding exclude each other");
    if (codings > 1 || (coding && strcasecmp(coding, "chunked") != 0)) {
        *status = 501;
        return err_set(e, ERR_UNSUPPORTED, "Transfer-Encoding: chunked is the one that is known");
    }
    if (header_count(r, "Host") > 1)
        return err_set(e, ERR_INVALID, "Host is given twice");
    r->last = false;
    return 0;
}

static int check_body(http_request *r, unsigned *status, err *e)
{
    const http_route *route = r->route;
    const char *length = http_header_value(r, "Content-Length");
    const char *chunked = http_header_value(r, "Transfer-Encoding");
    const char *type = http_header_value(r, "Content-Type");
    const char *coding = http_header_value(r, "Content-Encoding");
    uint64_t most = route->body_bytes_max ? route->body_bytes_max : HTTP_JSON_BYTES_MAX;
    snprintf(r->content_type, sizeof r->content_type, "%s", type ? type : "");
    r->body.max = most < HTTP_DRAIN_BYTES_MAX ? (size_t)most : HTTP_DRAIN_BYTES_MAX;
    if (length)
        r->content_length = strtoll(length, NULL, 10); /* libmicrohttpd has checked the number */
    if (route->body == HTTP_BODY_NONE)
        return 0;
    if (!length && !chunked) {
        *status = 411;
        return err_set(e, ERR_INVALID, "a body is needed: send Content-Length or use chunks");
    }
    if (route->takes && (type || r->content_length != 0) &&
        !(type && http_type_listed(route->takes, type))) {
        *status = 415;
        return err_set(e, ERR_UNSUPPORTED, "Content-Type must be %s, not %.64s", route->takes,
                       type ? type : "absent");
    }
    if (coding && strcasecmp(coding, "identity") != 0) {
        *status = 415;
        return err_set(e, ERR_UNSUPPORTED,
                       "Content-Encoding must be identity, not %.64s: a body is sent as it is",
                       coding);
    }
    if (r->content_length > 0 && (uint64_t)r->content_length > most) {
        r->over = true;
        return err_set(e, ERR_LIMIT, "the body of %lld bytes is over the limit of %llu",
                       (long long)r->content_length, (unsigned long long)most);
    }
    if (route->body == HTTP_BODY_WHOLE && r->content_length > 0)
        return http_body_hold(r, (size_t)r->content_length, e);
    return 0;
}

static int check_accept(http_request *r, unsigned *status, err *e)
{
    const char *accept = http_header_value(r, "Accept");
    const char *gives = r->route->gives ? r->route->gives : "application/json";
    r->has_accept = accept != NULL;
    if (http_accept_best(accept, gives, r->accepted, sizeof r->accepted))
        return 0;
    *status = 406;
    return err_set(e, ERR_UNSUPPORTED, "this answers with %s, which Accept leaves out", gives);
}

int http_request_check(http_request *r, unsigned *status, err *e)
{
    if (check_framing(r, status, e)) {
        http_add_header(r, "Connection", "close");
        return -1;
    }
    if (!r->uri) {
        *status = 414;
        return err_set(e, ERR_LIMIT, "the URI is longer than %d bytes", HTTP_URI_BYTES_MAX);
    }
    if (strpbrk(r->uri, " \t"))
        return err_set(e, ERR_INVALID, "the path has a space in it, which is written %%20");
    if (http_target_parse(r->uri, &r->target, e) || find_route(r, status, e) || check_token(r, e) ||
        check_peer(r, e) || check_host(r, e) || check_origin(r, e) || check_queries(r, e) ||
        check_accept(r, status, e) || check_body(r, status, e))
        return -1;
    return 0;
}

/* ---- getters for handlers -------------------------------------------------------------------- */

const char *http_param(const http_request *r, const char *name)
{
    int i = http_pattern_index(r->route->pattern, name);
    return i < 0 ? "" : r->target.segments[i];
}

const char *http_query(const http_request *r, const char *name)
{
    for (int i = 0; i < r->target.query_count; i++)
        if (strcmp(r->target.query_names[i], name) == 0)
            return r->target.query_values[i];
    return NULL;
}

bool http_type_is(const http_request *r, const char *type)
{
    return http_type_listed(type, r->content_type);
}

const char *http_content_type(const http_request *r)
{
    return r->content_type;
}

const char *http_method(const http_request *r)
{
    return r->method;
}

const char *http_accepted(const http_request *r)
{
    return r->accepted;
}

const char *http_uri(const http_request *r)
{
    return r->uri;
}

bool http_is_forwarded(const http_request *r)
{
    return r->forwarded;
}

void http_leave_uncounted(http_request *r)
{
    r->uncounted = true; /* the event thread sees it, by the lock that passes the response */
}

const char *http_user(const http_request *r)
{
    return r->user;
}

bool http_has_accept(const http_request *r)
{
    return r->has_accept;
}
