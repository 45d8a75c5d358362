/* http_route.c: the pure part of the HTTP server: URIs, routes and media types. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/text.h"
#include "http_internal.h"

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes text[0..len) into *to, which has room for len + 1 bytes; moves *to behind the text. */
static int decode(const char *text, size_t len, bool plus, char **to, err *e)
{
    char *start = *to;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '%') {
            int high = len - i > 2 ? hex(text[i + 1]) : -1,
                low = len - i > 2 ? hex(text[i + 2]) : -1;
            if (high < 0 || low < 0)
                return err_set(e, ERR_INVALID, "the URI has a broken percent-encoding");
            *(*to)++ = (char)(high << 4 | low);
            i += 2;
        } else {
            *(*to)++ = plus && text[i] == '+' ? ' ' : text[i];
        }
    }
    if (!text_valid(start, (size_t)(*to - start)))
        return err_set(e, ERR_INVALID, "the URI is not UTF-8 text without NUL");
    *(*to)++ = '\0';
    return 0;
}

/* ---- the request's target -------------------------------------------------------------------- */

static int parse_path(const char *path, size_t len, http_target *t, char **to, err *e)
{
    for (size_t i = 1; i <= len;) {
        const char *slash = memchr(path + i, '/', len - i);
        size_t end = slash ? (size_t)(slash - path) : len;
        if (t->segment_count == HTTP_SEGMENTS_MAX)
            return err_set(e, ERR_NOT_FOUND, "no such path");
        t->segments[t->segment_count++] = *to;
        if (decode(path + i, end - i, false, to, e))
            return -1;
        i = end + 1;
    }
    return 0;
}

static int parse_query(const char *query, http_target *t, char **to, err *e)
{
    while (*query) {
        size_t len = strcspn(query, "&"), name = strcspn(query, "=&");
        if (len) {
            if (t->query_count == HTTP_QUERIES_MAX)
                return err_set(e, ERR_INVALID, "more than %d query parameters", HTTP_QUERIES_MAX);
            t->query_names[t->query_count] = *to;
            if (decode(query, name, true, to, e))
                return -1;
            t->query_values[t->query_count++] = *to;
            size_t skip = name < len ? name + 1 : len;
            if (decode(query + skip, len - skip, true, to, e))
                return -1;
        }
        query += len + (query[len] == '&');
    }
    return 0;
}

int http_target_parse(const char *uri, http_target *out, err *e)
{
    *out = (http_target){0};
    if (uri[0] != '/')
        return err_set(e, ERR_INVALID, "the URI does not begin with /");
    /* Every segment and query adds at most its own bytes and two NULs. */
    out->memory = malloc(strlen(uri) + 2 * (HTTP_SEGMENTS_MAX + 2 * HTTP_QUERIES_MAX) + 2);
    if (!out->memory)
        return err_set(e, ERR_NOMEM, "no memory for the URI");
    char *to = out->memory;
    size_t path = strcspn(uri, "?");
    if (parse_path(uri, path, out, &to, e))
        return -1;
    return uri[path] == '?' ? parse_query(uri + path + 1, out, &to, e) : 0;
}

void http_target_free(http_target *t)
{
    free(t->memory);
    t->memory = NULL;
}

/* ---- patterns -------------------------------------------------------------------------------- */

/* The start and length of a pattern's next segment; NULL at the end. */
static const char *pattern_next(const char *at, size_t *len)
{
    if (*at != '/')
        return NULL;
    *len = strcspn(at + 1, "/");
    return at + 1;
}

bool http_pattern_matches(const char *pattern, const http_target *t)
{
    int i = 0;
    size_t len;
    for (const char *s; (s = pattern_next(pattern, &len)); pattern = s + len, i++) {
        if (i == t->segment_count)
            return false;
        const char *have = t->segments[i];
        bool parameter = s[0] == '{';
        if (parameter ? have[0] == '\0' : strlen(have) != len || memcmp(have, s, len) != 0)
            return false;
    }
    return i == t->segment_count;
}

int http_pattern_index(const char *pattern, const char *name)
{
    int i = 0;
    size_t len, want = strlen(name);
    for (const char *s; (s = pattern_next(pattern, &len)); pattern = s + len, i++)
        if (s[0] == '{' && len == want + 2 && memcmp(s + 1, name, want) == 0)
            return i;
    return -1;
}

bool http_list_has(const char *list, const char *item)
{
    size_t want = strlen(item);
    while (list && *list) {
        size_t len = strcspn(list, ",");
        if (len == want && memcmp(list, item, len) == 0)
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

/* ---- media types ----------------------------------------------------------------------------- */

bool http_type_listed(const char *list, const char *content_type)
{
    size_t type = strcspn(content_type, "; \t");
    while (*list) {
        size_t len = strcspn(list, ",");
        if (len == type && strncasecmp(list, content_type, len) == 0)
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

typedef struct range {
    const char *type; /* "text/plain", "text" with a wildcard behind it, or a wildcard alone */
    size_t len;
    double q;
} range;

/* Parses one element of an Accept header; moves *at behind it. */
static range range_next(const char **at)
{
    range r = {*at + strspn(*at, " \t"), 0, 1.0};
    r.len = strcspn(r.type, ",; \t");
    const char *end = *at + strcspn(*at, ",");
    for (const char *p = r.type + r.len; p < end;) {
        p += strspn(p, "; \t");
        if ((*p == 'q' || *p == 'Q') && p[1] == '=')
            r.q = strtod(p + 2, NULL);
        p += strcspn(p, ";,");
        if (*p == ',')
            break;
    }
    *at = end + (*end == ',');
    return r;
}

/* How closely a range names the type: 0 not at all, 1 by wildcard, 2 by its family, 3 exactly. */
static int range_matches(const range *r, const char *type, size_t len)
{
    if (r->len == 3 && memcmp(r->type, "*/*", 3) == 0)
        return 1;
    if (r->len == len && strncasecmp(r->type, type, len) == 0)
        return 3;
    if (r->len > 2 && r->type[r->len - 1] == '*' && r->len - 1 <= len &&
        strncasecmp(r->type, type, r->len - 1) == 0)
        return 2;
    return 0;
}

static double quality(const char *accept, const char *type, size_t len)
{
    int closest = 0;
    double q = 0;
    while (*accept) {
        range r = range_next(&accept);
        int match = range_matches(&r, type, len);
        if (match > closest) {
            closest = match;
            q = r.q;
        }
    }
    return q;
}

bool http_accept_best(const char *accept, const char *gives, char *out, size_t out_bytes)
{
    double best = 0;
    bool any = !accept || accept[strspn(accept, " \t")] == '\0';
    while (*gives) {
        size_t len = strcspn(gives, ",");
        double q = any ? 1 : quality(accept, gives, len);
        if (q > best && len < out_bytes) {
            best = q;
            memcpy(out, gives, len);
            out[len] = '\0';
        }
        gives += len + (gives[len] == ',');
    }
    return best > 0;
}

/* ---- hosts ----------------------------------------------------------------------------------- */

bool http_host_is_local(const char *host)
{
    char name[64];
    struct in_addr v4;
    const char *bracket = host[0] == '[' ? strchr(host, ']') : NULL;
    size_t len = bracket ? (size_t)(bracket + 1 - host) : strcspn(host, ":");
    if (len >= sizeof name || (host[len] && host[len] != ':'))
        return false;
    memcpy(name, host, len);
    name[len] = '\0';
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}
