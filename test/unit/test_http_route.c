/* test_http_route.c: URIs, routes, media types and multipart bodies: the parts without sockets. */
#include "common/net/http_internal.h"
#include "common/net/multipart.h"
#include "test.h"

static void check_target(const char *uri, int segments, const char *first, const char *last)
{
    http_target t;
    err e = ERR_INIT;
    CHECK_OK(http_target_parse(uri, &t, &e), e);
    CHECK_INT(t.segment_count, segments);
    CHECK_STR(t.segments[0], first);
    CHECK_STR(t.segments[segments - 1], last);
    http_target_free(&t);
}

static void check_refused(const char *uri, err_code code, const char *part)
{
    http_target t;
    err e = ERR_INIT;
    CHECK_ERR(http_target_parse(uri, &t, &e), e, code, part);
    http_target_free(&t);
}

TEST(targets)
{
    check_target("/", 1, "", "");
    check_target("/a", 1, "a", "a");
    check_target("/a/", 2, "a", "");
    check_target("/a/b%2Fc", 2, "a", "b/c");
    check_target("/%C3%BC/x+y", 2, "\xc3\xbc", "x+y");
    check_refused("a", ERR_INVALID, "begin");
    check_refused("/%", ERR_INVALID, "percent");
    check_refused("/%4", ERR_INVALID, "percent");
    check_refused("/%zz", ERR_INVALID, "percent");
    check_refused("/a%00", ERR_INVALID, "NUL");
    check_refused("/%ff", ERR_INVALID, "UTF-8");
    check_refused("/%c0%af", ERR_INVALID, "UTF-8");
    check_refused("/%ed%a0%80", ERR_INVALID, "UTF-8");
    check_refused("/1/2/3/4/5/6/7/8/9", ERR_NOT_FOUND, "path");
    check_refused("/?a&b&c&d&e&f&g&h&i", ERR_INVALID, "query");
    check_refused("/?a=%0", ERR_INVALID, "percent");
}

TEST(queries)
{
    http_target t;
    err e = ERR_INIT;
    CHECK_OK(http_target_parse("/p?a=1&&b&c=x+y%26z=", &t, &e), e);
    CHECK_INT(t.query_count, 3);
    CHECK_STR(t.query_names[1], "b");
    CHECK_STR(t.query_values[1], "");
    CHECK_STR(t.query_values[2], "x y&z=");
    http_target_free(&t);
}

TEST(patterns)
{
    http_target t;
    err e = ERR_INIT;
    CHECK_OK(http_target_parse("/tasks/ab/logs", &t, &e), e);
    CHECK(http_pattern_matches("/tasks/{id}/logs", &t));
    CHECK(!http_pattern_matches("/tasks/{id}", &t));
    CHECK(!http_pattern_matches("/tasks/{id}/logs/{n}", &t));
    CHECK(!http_pattern_matches("/task/{id}/logs", &t));
    CHECK_INT(http_pattern_index("/tasks/{id}/logs", "id"), 1);
    CHECK_INT(http_pattern_index("/tasks/{id}/logs", "i"), -1);
    http_target_free(&t);
    CHECK_OK(http_target_parse("/tasks/", &t, &e), e);
    CHECK(!http_pattern_matches("/tasks/{id}", &t));
    http_target_free(&t);
}

static void check_best(const char *accept, const char *want)
{
    char best[48];
    bool found = http_accept_best(accept, "application/json,text/plain", best, sizeof best);
    if (!want)
        CHECK(!found);
    else
        CHECK_STR(found ? best : "", want);
}

TEST(accepted_types)
{
    check_best(NULL, "application/json");
    check_best("", "application/json");
    check_best("*/*", "application/json");
    check_best("text/plain", "text/plain");
    check_best("text/*", "text/plain");
    check_best("TEXT/PLAIN", "text/plain");
    check_best("application/json;q=0.4, text/plain;q=0.5", "text/plain");
    check_best("text/plain;q=0.5, */*;q=0.1", "text/plain");
    check_best("application/json;q=0, */*", "text/plain");
    check_best("text/html", NULL);
    check_best("*/*;q=0", NULL);
    CHECK(http_type_listed("a/b,application/json", "application/json; charset=utf-8"));
    CHECK(!http_type_listed("application/json", "application/jsonx"));
    CHECK(http_list_has("a,bc", "bc") && !http_list_has("a,bc", "b") && !http_list_has(NULL, "a"));
}

/* ---- multipart ------------------------------------------------------------------------------- */

typedef struct feed {
    const char *bytes;
    size_t left, step;
} feed;

static ssize_t read_feed(void *source, void *out, size_t max, err *e)
{
    (void)e;
    feed *f = source;
    size_t n = f->left < f->step ? f->left : f->step;
    n = n < max ? n : max;
    memcpy(out, f->bytes, n);
    f->bytes += n;
    f->left -= n;
    return (ssize_t)n;
}

/* All parts as "name(filename)=contents;", whatever pieces the body comes in. */
static int parse(const char *body, size_t len, size_t step, char *out, size_t out_bytes, err *e)
{
    feed f = {body, len, step};
    multipart *m = NULL;
    multipart_part part;
    size_t used = 0;
    if (multipart_open("multipart/form-data; boundary=\"xyz\"", read_feed, &f, &m, e))
        return -1;
    int more;
    while ((more = multipart_next(m, &part, e)) > 0) {
        used += (size_t)snprintf(out + used, out_bytes - used, "%s(%s)=", part.name, part.filename);
        const char *bytes;
        ssize_t n;
        while ((n = multipart_piece(m, &bytes, e)) > 0)
            used += (size_t)snprintf(out + used, out_bytes - used, "%.*s", (int)n, bytes);
        used += (size_t)snprintf(out + used, out_bytes - used, ";");
        if (n < 0) {
            more = -1;
            break;
        }
    }
    multipart_close(m);
    return more;
}

TEST(multipart_in_any_pieces)
{
    static const char body[] =
        "before\r\n--xyz\r\nContent-Disposition: form-data; name=\"a\"; filename=\"f.c\"\r\n"
        "Content-Type: text/plain\r\n\r\none\r\n--xy\r\n\r\n--xyz  \r\n"
        "content-disposition: form-data; name=b\r\n\r\n\r\n--xyz\r\n"
        "Content-Disposition: form-data; name=\"c\\\"d\"\r\n\r\n-\r\n-xyz-\r\n--xyz--\r\nafter";
    for (size_t step = 1; step < sizeof body; step++) {
        char out[256] = "";
        err e = ERR_INIT;
        CHECK_OK(parse(body, sizeof body - 1, step, out, sizeof out, &e), e);
        CHECK_STR(out, "a(f.c)=one\r\n--xy\r\n;b()=;c\"d()=-\r\n-xyz-;");
    }
}

TEST(what_stands_in_quotes_is_no_parameter)
{
    static const char body[] =
        "--xyz\r\nContent-Disposition: form-data; filename=\"a; name=b\\\"; name=c\"; name=d\r\n\r\n"
        "one\r\n--xyz--";
    char out[256] = "";
    err e = ERR_INIT;
    CHECK_OK(parse(body, sizeof body - 1, sizeof body, out, sizeof out, &e), e);
    CHECK_STR(out, "d(a; name=b\"; name=c)=one;");
}

static void check_multipart(const char *body, const char *part)
{
    for (size_t step = 1; step < 40; step += 13) {
        char out[4096];
        err e = ERR_INIT;
        CHECK_ERR(parse(body, strlen(body), step, out, sizeof out, &e), e, ERR_INVALID, part);
    }
}

TEST(multipart_refusals)
{
    check_multipart("", "ends before");
    check_multipart("--xyz", "ends before");
    check_multipart("--xyz\r\nContent-Disposition: form-data; name=a\r\n\r\nabc\r\n--xy",
                    "ends before");
    check_multipart("--xyz\r\n\r\nabc\r\n--xyz--", "no name");
    check_multipart("--xyzw\r\n\r\nabc\r\n--xyz--", "followed");
    err e = ERR_INIT;
    multipart *m = NULL;
    feed f = {"", 0, 1};
    CHECK_ERR(multipart_open("multipart/form-data", read_feed, &f, &m, &e), e, ERR_INVALID,
              "boundary");
    static char many[200 * 60], long_header[6000];
    size_t used = 0;
    for (int i = 0; i < 150; i++)
        used += (size_t)sprintf(many + used,
                                "--xyz\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n");
    check_multipart(many, "more than 128 parts");
    memset(long_header, 'x', sizeof long_header - 1);
    memcpy(long_header, "--xyz\r\n", 7);
    check_multipart(long_header, "headers are longer");
}
