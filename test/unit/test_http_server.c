/* test_http_server.c: the server over real sockets, with small limits and short deadlines. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/http_server.h"
#include "common/net/peer.h"
#include "test.h"

enum { HEADER_MS = 300, BODY_MS = 300, IDLE_MS = 400, GIVE_UP_MS = 15000 };

static http_server *server;
static http_stream *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int blocked; /* so many handlers were */
static int counting, refused;
static int body_ms = BODY_MS, queue_ms, quiet_ms;
static size_t bodies_bytes_max;
static atomic_int noted;
static bool released;
static char read_error[256];
static long long read_bytes;

static void hello(http_request *r, void *context)
{
    (void)context;
    http_response_json(r, 200, json_pack("{s:s}", "hello", http_param(r, "name")));
}

static void echo(http_request *r, void *context)
{
    (void)context;
    json_t *body = NULL;
    err e = ERR_INIT;
    if (http_body_json(r, &body, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, body);
}

/* Counts a streamed body, and says how it ended. */
static void count(http_request *r, void *context)
{
    (void)context;
    char bytes[1000];
    long long total = 0;
    err e = ERR_INIT;
    ssize_t n;
    pthread_mutex_lock(&lock);
    counting++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    while ((n = http_body_read(r, bytes, sizeof bytes, &e)) > 0)
        total += n;
    pthread_mutex_lock(&lock);
    snprintf(read_error, sizeof read_error, "%s", n < 0 ? e.message : "none");
    read_bytes = total;
    released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (n < 0)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, json_pack("{s:I}", "bytes", (json_int_t)total));
}

static void refuse(http_request *r, void *context)
{
    (void)context;
    err e = ERR_INIT;
    err_set(&e, ERR_EXISTS, "it is there");
    http_response_error(r, &e);
    pthread_mutex_lock(&lock);
    refused++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void block(http_request *r, void *context)
{
    (void)context;
    pthread_mutex_lock(&lock);
    blocked++;
    pthread_cond_broadcast(&changed);
    while (!released)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    http_response_text(r, 200, "text/plain", "released");
}

static void note(http_request *r, void *context)
{
    (void)context;
    atomic_fetch_add(&noted, 1);
    http_response_text(r, 200, "text/plain", "{noted}");
}

static void stream(http_request *r, void *context)
{
    (void)context;
    http_stream *s = http_response_stream(r, "text/event-stream");
    pthread_mutex_lock(&lock);
    kept = s;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void say_user(http_request *r, void *context)
{
    (void)context;
    char text[NAME_BYTES + 8];
    snprintf(text, sizeof text, "{user=%s}", http_user(r));
    http_response_text(r, 200, "text/plain", text);
}

static void uncounted(http_request *r, void *context)
{
    http_leave_uncounted(r);
    hello(r, context);
}

static const http_route routes[] = {
    {.method = "GET", .pattern = "/user", .handle = say_user, .gives = "text/plain"},
    {.method = "GET", .pattern = "/hello/{name}", .handle = hello, .open = true},
    {.method = "GET", .pattern = "/uncounted", .handle = uncounted},
    {.method = "POST", .pattern = "/echo", .handle = echo, .body = HTTP_BODY_WHOLE,
     .takes = "application/json", .body_bytes_max = 1000},
    {.method = "POST", .pattern = "/count", .handle = count, .body = HTTP_BODY_STREAM,
     .body_bytes_max = 4 << 20, .slow = true},
    {.method = "POST", .pattern = "/refuse", .handle = refuse, .body = HTTP_BODY_STREAM,
     .body_bytes_max = 64 << 20, .slow = true},
    {.method = "GET", .pattern = "/block", .handle = block, .gives = "text/plain", .slow = true},
    {.method = "GET", .pattern = "/wait", .handle = block, .gives = "text/plain", .waits = true},
    {.method = "POST", .pattern = "/block", .handle = block, .body = HTTP_BODY_WHOLE,
     .gives = "text/plain", .waits = true},
    {.method = "POST", .pattern = "/note", .handle = note, .body = HTTP_BODY_WHOLE,
     .gives = "text/plain", .waits = true},
    {.method = "GET", .pattern = "/stream", .handle = stream, .gives = "text/event-stream"},
};

static tokens *taken;

static char observed[256]; /* "path status, ...", with a - before what was no time */

static void observe(void *context, const char *method, const char *pattern, unsigned status,
                    double seconds)
{
    (void)context, (void)method;
    pthread_mutex_lock(&lock);
    size_t used = strlen(observed);
    snprintf(observed + used, sizeof observed - used, "%s%s %u, ", seconds < 0 ? "-" : "", pattern,
             status);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void serve(const char *list)
{
    err e = ERR_INIT;
    tokens_free(taken);
    taken = list ? tokens_new(&e) : NULL;
    if (list)
        CHECK_OK(tokens_read(taken, list, &e), e);
    http_config c = {.host = "127.0.0.1",
                     .routes = routes,
                     .route_count = sizeof routes / sizeof *routes,
                     .tokens = taken,
                     .header_ms = HEADER_MS,
                     .body_ms = body_ms,
                     .idle_ms = IDLE_MS,
                     .rate_min = 1 << 20,
                     .workers_max = 4,
                     .queue_ms = queue_ms,
                     .observe = observe,
                     .quiet_ms = quiet_ms,
                     .bodies_bytes_max = bodies_bytes_max};
    CHECK_OK(http_server_start(&c, &server, &e), e);
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(http_server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void say(int fd, const char *text)
{
    size_t len = strlen(text);
    CHECK_INT(send(fd, text, len, MSG_NOSIGNAL), len);
}

/* Everything until the server closes, or `stop` has been read; false at the deadline. */
static bool hear(int fd, char *out, size_t bytes, const char *stop, int timeout_ms)
{
    size_t used = strlen(out);
    int64_t deadline = clock_deadline_ms(timeout_ms);
    while (!stop || !strstr(out, stop)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, clock_left_ms(deadline)) <= 0)
            return false;
        ssize_t n = recv(fd, out + used, bytes - 1 - used, 0);
        if (n <= 0)
            return !stop;
        used += (size_t)n;
        out[used] = '\0';
    }
    return true;
}

static void check_answer(const char *request, const char *status, const char *part)
{
    char out[4096] = "";
    int fd = dial();
    say(fd, request);
    CHECK(hear(fd, out, sizeof out, "}", 5000));
    CHECK(strncmp(out, "HTTP/1.1 ", 9) == 0 && strncmp(out + 9, status, 3) == 0);
    CHECK_CONTAINS(out, part);
    close(fd);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define POST(path, headers, body)                                                                  \
    "POST " path " HTTP/1.1\r\nHost: localhost\r\n" headers "\r\n" body
#define JSON "Content-Type: application/json\r\n"

TEST(answers)
{
    serve(NULL);
    check_answer(GET("/hello/you"), "200", "{\"hello\":\"you\"}");
    check_answer(GET("/nobody"), "404", "\"reason\":\"not-found\"");
    check_answer("PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", "405",
                 "Allow: POST");
    check_answer(POST("/echo", JSON "Content-Length: 8\r\n", "{\"a\":1}\n"), "200", "{\"a\":1}");
    check_answer(
        POST("/echo", JSON "Transfer-Encoding: chunked\r\n", "7\r\n{\"a\":1}\r\n0\r\n\r\n"), "200",
        "{\"a\":1}");
    check_answer(POST("/echo", JSON, ""), "411", "Content-Length");
    check_answer(POST("/echo", "Content-Type: a/b\r\nContent-Length: 2\r\n", "{}"), "415",
                 "application/json");
    check_answer(POST("/echo", JSON "Content-Length: 1001\r\nExpect: 100-continue\r\n", ""), "413",
                 "limit of 1000");
    check_answer(POST("/echo", JSON "Content-Length: 2\r\n", "[]"), "400", "object");
    check_answer(GET("/hello/a%00"), "400", "NUL");
    check_answer(POST("/echo", JSON "Content-Length: 14\r\n", "{\"a\":\"\\u0000\"}"), "400",
                 "\\\\u0000 is not allowed\"");
    http_server_stop(server, 2000);
}

/* A page of another site may have its own name mean this machine by the time it asks. */
/* All that the server says before it closes. */
static void check_refused(const char *ask, const char *status, const char *part)
{
    char out[4096] = "", start[24];
    int fd = dial();
    say(fd, ask);
    CHECK(hear(fd, out, sizeof out, NULL, 5000));
    snprintf(start, sizeof start, "HTTP/1.1 %s ", status);
    CHECK(strncmp(out, start, strlen(start)) == 0);
    CHECK(!strstr(out + 1, "HTTP/1.1 ")); /* what follows is no request */
    CHECK_CONTAINS(out, "application/problem+json");
    CHECK_CONTAINS(out, part);
    close(fd);
}

/* Where two servers in a row could see two ends of a body, one of them sees a request in it. */
TEST(a_body_with_two_lengths_is_refused)
{
    static const char *const lengths[] = {"Content-Length: 2\r\nContent-Length: 41\r\n",
                                          "Content-Length: 41\r\nContent-Length: 2\r\n",
                                          "Content-Length: 2\r\nContent-Length: 2\r\n",
                                          "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"};
    char ask[512];
    serve(NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        snprintf(ask, sizeof ask, POST("/echo", JSON "%s", "{}%s"), lengths[i], GET("/hello/a"));
        check_refused(ask, "400", "Content-Length");
        snprintf(ask, sizeof ask, POST("/hello/a", "%s", "{}%s"), lengths[i], GET("/hello/a"));
        check_refused(ask, "400", "Content-Length");
    }
    check_refused("GET /hello/a HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", "400",
                  "Host");
    http_server_stop(server, 2000);
}

TEST(a_list_of_lengths_is_refused)
{
    char out[4096] = "";
    serve(NULL);
    int fd = dial();
    say(fd, POST("/echo", JSON "Content-Length: 2, 41\r\n", "{}" GET("/hello/a")));
    CHECK(hear(fd, out, sizeof out, NULL, 5000));
    CHECK(strncmp(out, "HTTP/1.1 400 ", 13) == 0 && !strstr(out, "hello"));
    close(fd);
    http_server_stop(server, 2000);
}

TEST(bodies_in_other_codings_are_refused)
{
    serve(NULL);
    check_refused(POST("/echo", JSON "Transfer-Encoding: gzip\r\n", "{}"), "501", "chunked");
    check_refused(
        POST("/echo", JSON "Transfer-Encoding: gzip, chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), "501",
        "chunked");
    check_refused(POST("/hello/a", "Transfer-Encoding: identity\r\n", ""), "501", "chunked");
    check_answer(POST("/echo", JSON "Transfer-Encoding: Chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"),
                 "200", "{}");
    check_answer(POST("/echo", JSON "Content-Encoding: gzip\r\nContent-Length: 2\r\n", "{}"), "415",
                 "Content-Encoding");
    check_answer(POST("/echo", JSON "Content-Encoding: identity\r\nContent-Length: 2\r\n", "{}"),
                 "200", "{}");
    http_server_stop(server, 2000);
}

TEST(a_request_without_a_host_is_refused)
{
    serve(NULL);
    check_answer("GET /hello/a HTTP/1.1\r\n\r\n", "400", "application/problem+json");
    check_answer("GET /hello/a HTTP/1.1\r\n\r\n", "400", "wants a Host");
    check_answer("GET /hello/a HTTP/1.0\r\n\r\n", "200", "hello");
    check_answer("GET /hello/a b HTTP/1.1\r\nHost: localhost\r\n\r\n", "400", "%20");
    http_server_stop(server, 2000);
}

TEST(without_tokens_only_this_machines_names_are_answered)
{
    static const char *const own[] = {"localhost",  "LOCALHOST:10100", "127.0.0.1:10100",
                                      "127.8.9.10", "[::1]",           "[::1]:1"};
    static const char *const others[] = {"rebound.example",
                                         "rebound.example:10100",
                                         "127.0.0.1.example",
                                         "localhost.example:1",
                                         "10.0.0.1",
                                         "[::2]",
                                         "[::1]x",
                                         "[",
                                         "127.0.0.1@example"};
    char request[256];
    serve(NULL);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        snprintf(request, sizeof request, "GET /hello/you HTTP/1.1\r\nHost: %s\r\n\r\n", own[i]);
        check_answer(request, "200", "you");
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(request, sizeof request,
                 "GET /hello/you HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\n\r\n", others[i],
                 others[i]);
        check_answer(request, "403", "localhost");
    }
    http_server_stop(server, 2000);
    serve("secret");
    check_answer(
        "GET /user HTTP/1.1\r\nHost: rebound.example\r\nAuthorization: Bearer secret\r\n\r\n",
        "200", "{user=}");
    http_server_stop(server, 2000);
}

TEST(who_has_a_token)
{
    serve("secret\nanna:of-anna\nben:of-ben");
    check_answer(GET("/hello/you"), "200", "you");
    check_answer(GET("/block"), "401", "WWW-Authenticate: Bearer");
    check_answer("GET /block HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secre\r\n\r\n",
                 "401", "wrong");
    check_answer(POST("/echo", JSON "Authorization: bearer secret\r\nContent-Length: 2\r\n", "{}"),
                 "200", "{}");
    check_answer("GET /user HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n",
                 "200", "{user=}");
    check_answer("GET /user HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer of-anna\r\n\r\n",
                 "200", "{user=anna}");
    check_answer("GET /user HTTP/1.1\r\nHost: localhost\r\nX-KubeML-Token: of-ben\r\n\r\n", "200",
                 "{user=ben}");
    check_answer(
        "GET /user HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ben:of-ben\r\n\r\n", "401",
        "wrong");
    http_server_stop(server, 2000);
    tokens_free(taken);
    taken = NULL;
}

/* Sends a byte now and then for as long as the connection lives, which is for `ms` at least and
 * ends though bytes come. */
static void drip(int fd, int ms)
{
    char out[256] = "";
    int64_t begin = clock_monotonic_ms(), give_up_ms = clock_deadline_ms(GIVE_UP_MS);
    while (!hear(fd, out, sizeof out, NULL, 20)) {
        CHECK(clock_left_ms(give_up_ms) > 0);
        send(fd, "a", 1, MSG_NOSIGNAL);
    }
    CHECK(clock_monotonic_ms() - begin >= ms - 20);
    close(fd);
}

TEST(a_slow_head_is_cut_off)
{
    serve(NULL);
    int fd = dial();
    say(fd, "GET /hello/you HTTP/1.1\r\nX: ");
    drip(fd, HEADER_MS);
    http_server_stop(server, 2000);
}

TEST(a_slow_body_is_cut_off)
{
    serve(NULL);
    static const char *const heads[] = {POST("/echo", JSON "Content-Length: 900\r\n", ""),
                                        POST("/count", "Content-Length: 4000000\r\n", "")};
    for (int i = 0; i < 2; i++) {
        int fd = dial();
        say(fd, heads[i]);
        drip(fd, BODY_MS);
    }
    pthread_mutex_lock(&lock);
    while (!released)
        pthread_cond_wait(&changed, &lock);
    CHECK_CONTAINS(read_error, "cut off");
    pthread_mutex_unlock(&lock);
    http_server_stop(server, 2000);
}

TEST(an_idle_connection_ends)
{
    serve(NULL);
    int fd = dial();
    char out[1024] = "";
    say(fd, GET("/hello/you"));
    CHECK(hear(fd, out, sizeof out, "}", 5000));
    int64_t begin = clock_monotonic_ms();
    CHECK(hear(fd, out, sizeof out, NULL, GIVE_UP_MS));
    CHECK(clock_monotonic_ms() - begin >= IDLE_MS - 50);
    close(fd);
    http_server_stop(server, 2000);
}

static void *send_bytes(void *fd)
{
    static const char block_of[65536];
    for (int i = 0; i < 48; i++)
        for (size_t at = 0; at < sizeof block_of;) {
            ssize_t n = send(*(int *)fd, block_of + at, sizeof block_of - at, MSG_NOSIGNAL);
            if (n <= 0)
                return NULL;
            at += (size_t)n;
        }
    return NULL;
}

static void upload(const char *path, const char *status, const char *part)
{
    char head[256], out[1024] = "";
    int fd = dial();
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n",
             path, 48 * 65536);
    say(fd, head);
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send_bytes, &fd) == 0);
    CHECK(hear(fd, out, sizeof out, "}", 10000));
    CHECK_CONTAINS(out, status);
    CHECK_CONTAINS(out, part);
    pthread_join(sender, NULL);
    close(fd);
}

TEST(uploads_stream)
{
    serve(NULL);
    upload("/count", " 200 ", "{\"bytes\":3145728}");
    upload("/refuse", " 409 ", "it is there"); /* and the client could send all of it */
    http_server_stop(server, 2000);
}

TEST(an_upload_over_its_limit)
{
    serve(NULL);
    char out[1024] = "";
    int fd = dial();
    say(fd, POST("/count", "Content-Length: 9000000\r\nExpect: 100-continue\r\n", ""));
    CHECK(hear(fd, out, sizeof out, "}", 5000));
    CHECK_CONTAINS(out, " 413 ");
    close(fd);
    http_server_stop(server, 2000);
}

TEST(a_client_that_goes_away)
{
    serve(NULL);
    int fd = dial();
    say(fd, POST("/count", "Content-Length: 1000\r\n", "abc"));
    pthread_mutex_lock(&lock);
    while (!counting) /* before that it would be nobody's */
        pthread_cond_wait(&changed, &lock);
    close(fd);
    while (!released)
        pthread_cond_wait(&changed, &lock);
    CHECK_INT(read_bytes, 3);
    CHECK_CONTAINS(read_error, "cut off after 3 bytes");
    pthread_mutex_unlock(&lock);
    http_server_stop(server, 2000);
}

/* Waits until so many handlers are in `block`. */
static void await_blocked(int count)
{
    pthread_mutex_lock(&lock);
    while (blocked < count)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void release(void)
{
    pthread_mutex_lock(&lock);
    released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Of four workers long work has two, and what waits takes three with it. */
TEST(a_blocked_handler_holds_up_nobody)
{
    serve(NULL);
    int fd[12];
    for (int i = 0; i < 6; i++) { /* more than there may be workers for such */
        fd[i] = dial();
        say(fd[i], GET("/block"));
    }
    await_blocked(2);
    for (int i = 6; i < 12; i++) {
        fd[i] = dial();
        say(fd[i], GET("/wait"));
    }
    await_blocked(3);
    check_answer(GET("/hello/you"), "200", "you");
    release();
    for (int i = 0; i < 12; i++) {
        char out[1024] = "";
        CHECK(hear(fd[i], out, sizeof out, "released", 5000));
        close(fd[i]);
    }
    http_server_stop(server, 2000);
}

TEST(stalled_uploads_hold_up_nothing_else_that_is_slow)
{
    int fd[4];
    char out[1024] = "";
    body_ms = 60000;
    serve(NULL);
    for (int i = 0; i < 4; i++) {
        fd[i] = dial();
        say(fd[i], POST("/count", "Content-Length: 1000\r\n", "abc"));
    }
    pthread_mutex_lock(&lock);
    while (!counting)
        pthread_cond_wait(&changed, &lock);
    released = true;
    pthread_mutex_unlock(&lock);
    int asks = dial();
    say(asks, GET("/block"));
    CHECK(hear(asks, out, sizeof out, "released", GIVE_UP_MS));
    CHECK_INT(counting, 1);
    close(asks);
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    http_server_stop(server, 5000);
}

static void say_bytes(int fd, size_t len)
{
    static const char bytes[1 << 20];
    CHECK(len <= sizeof bytes);
    CHECK_INT(send(fd, bytes, len, MSG_NOSIGNAL), len);
}

/* Of four workers one takes uploads. The second upload waits, its ring full, until the first is cut
 * off, which is later than it might itself send. */
TEST(an_upload_that_waited_for_a_worker_gets_its_answer)
{
    enum { WHOLE = 1 << 20, SOME = HTTP_RING_BYTES + 40000 };
    char out[1024] = "";
    body_ms = 2000;
    serve(NULL);
    int first = dial(), second = dial();
    say(first, POST("/count", "Content-Length: 2000000\r\n", ""));
    say_bytes(first, 1 << 20); /* a second at the minimum rate */
    pthread_mutex_lock(&lock);
    while (!counting)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    say(second, POST("/refuse", "Content-Length: 1048576\r\nExpect: 100-continue\r\n", ""));
    CHECK(hear(second, out, sizeof out, "100 Continue\r\n\r\n", GIVE_UP_MS));
    say_bytes(second, SOME);
    say_bytes(first, 1); /* from here on it has two seconds */
    pthread_mutex_lock(&lock);
    while (!refused)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    int silent = dial(); /* when it is cut off all others were looked at */
    char none[8] = "";
    CHECK(hear(silent, none, sizeof none, NULL, GIVE_UP_MS));
    say_bytes(second, WHOLE - SOME);
    CHECK(hear(second, out, sizeof out, "}", GIVE_UP_MS));
    CHECK_CONTAINS(out, " 409 ");
    close(silent);
    close(second);
    close(first);
    http_server_stop(server, 5000);
}

static void await_held(size_t bytes)
{
    int64_t deadline = clock_deadline_ms(GIVE_UP_MS);
    while (http_server_held(server) != bytes)
        CHECK(clock_left_ms(deadline) > 0);
}

static int ask_to_block(const char *headers, size_t len)
{
    char head[256];
    int fd = dial();
    snprintf(head, sizeof head, "POST /block HTTP/1.1\r\nHost: localhost\r\n%s\r\n", headers);
    say(fd, head);
    say_bytes(fd, len);
    return fd;
}

/* Of 2 MiB a large one may use 1.5. */
TEST(bodies_that_wait_have_a_limit)
{
    char out[4096] = "";
    bodies_bytes_max = 2 << 20;
    serve(NULL);
    int first = ask_to_block("Content-Length: 1048576\r\n", 1 << 20);
    await_blocked(1);
    CHECK_INT(http_server_held(server), 1 << 20);
    int fd = ask_to_block("Content-Length: 700000\r\n", 700000);
    CHECK(hear(fd, out, sizeof out, "}", GIVE_UP_MS));
    CHECK_CONTAINS(out, " 503 ");
    CHECK_CONTAINS(out, "Retry-After: ");
    CHECK_CONTAINS(out, "no room for the body");
    close(fd);
    fd = ask_to_block("Transfer-Encoding: chunked\r\n", 0); /* how much comes is not known */
    say(fd, "aae60\r\n");
    say_bytes(fd, 700000);
    say(fd, "\r\n0\r\n\r\n");
    out[0] = '\0';
    CHECK(hear(fd, out, sizeof out, "}", GIVE_UP_MS));
    CHECK_CONTAINS(out, " 503 ");
    close(fd);
    check_answer(GET("/hello/you"), "200", "you");
    check_answer(POST("/echo", JSON "Content-Length: 2\r\n", "{}"), "200", "{}");
    fd = ask_to_block("Content-Length: 500000\r\n", 500000);
    await_blocked(2);
    await_held((1 << 20) + 500000); /* an answered request's body is let go after its answer */
    upload("/refuse", " 409 ", "it is there");
    release();
    int fds[] = {first, fd};
    for (int i = 0; i < 2; i++) {
        out[0] = '\0';
        CHECK(hear(fds[i], out, sizeof out, "released", GIVE_UP_MS));
        close(fds[i]);
    }
    await_held(0);
    http_server_stop(server, 2000);
}

TEST(an_upload_that_there_is_no_room_for)
{
    bodies_bytes_max = HTTP_RING_BYTES - 1;
    serve(NULL);
    upload("/count", " 503 ", "no memory for the upload");
    http_server_stop(server, 2000);
}

/* Of four workers what waits has three. */
static void block_all(int fd[3])
{
    for (int i = 0; i < 3; i++)
        fd[i] = ask_to_block("Content-Length: 0\r\n", 0);
    await_blocked(3);
}

static void let_go(int fd[3])
{
    release();
    for (int i = 0; i < 3; i++)
        close(fd[i]);
}

#define NOTE POST("/note", "Content-Length: 2\r\n", "{}")

/* It may ask again, and what it asks for is then done twice. */
TEST(what_waits_is_not_begun_once_its_client_has_hung_up)
{
    int waits[3];
    quiet_ms = 1;
    serve(NULL);
    block_all(waits);
    int gone = dial(), half = dial();
    say(gone, NOTE);
    say(half, NOTE);
    await_held(2 * strlen("{}"));
    close(gone);
    shutdown(half, SHUT_WR); /* cannot be told from one that is gone */
    await_held(0);
    close(half);
    let_go(waits);
    check_answer(NOTE, "200", "{noted}");
    CHECK_INT(atomic_load(&noted), 1);
    http_server_stop(server, 2000);
}

TEST(what_waits_has_a_deadline)
{
    int waits[3];
    queue_ms = 50;
    serve(NULL);
    block_all(waits);
    check_answer(NOTE, "503", "was not begun");
    CHECK_INT(atomic_load(&noted), 0);
    let_go(waits);
    http_server_stop(server, 2000);
}

static http_stream *open_stream(int fd)
{
    say(fd, GET("/stream"));
    pthread_mutex_lock(&lock);
    while (!kept)
        pthread_cond_wait(&changed, &lock);
    http_stream *s = kept;
    kept = NULL;
    pthread_mutex_unlock(&lock);
    return s;
}

static void await_observed(const char *what)
{
    pthread_mutex_lock(&lock);
    while (!strstr(observed, what))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

TEST(what_a_stream_lasted_is_no_latency_and_what_is_handed_on_is_not_observed)
{
    serve(NULL);
    check_answer(GET("/hello/x"), "200", "x");
    await_observed("/hello/{name} 200, ");
    check_answer(GET("/uncounted"), "200", "hello");
    char out[1024] = "";
    int fd = dial();
    http_stream *s = open_stream(fd);
    http_stream_close(s);
    CHECK(hear(fd, out, sizeof out, "0\r\n\r\n", 5000));
    CHECK_CONTAINS(out, "X-Accel-Buffering: no\r\n"); /* or a proxy keeps what is to come at once */
    close(fd);
    await_observed("/stream 200, ");
    http_server_stop(server, 2000);
    CHECK_STR(observed, "/hello/{name} 200, -/stream 200, ");
}

TEST(streams)
{
    serve(NULL);
    char out[1024] = "";
    int fd = dial();
    http_stream *s = open_stream(fd);
    CHECK(http_stream_write(s, "one\n", 4));
    CHECK(hear(fd, out, sizeof out, "one\n", 5000));
    CHECK(http_stream_write(s, "two\n", 4));
    CHECK(hear(fd, out, sizeof out, "two\n", 5000));
    http_stream_close(s);
    CHECK(hear(fd, out, sizeof out, "0\r\n\r\n", 5000)); /* the last chunk */
    close(fd);
    /* A client that is gone is noticed by writing. */
    fd = dial();
    s = open_stream(fd);
    close(fd);
    int64_t deadline = clock_deadline_ms(10000);
    while (http_stream_write(s, "x", 1))
        CHECK(clock_monotonic_ms() < deadline);
    http_stream_close(s);
    /* One that does not read is cut off at the limit, and not kept in memory. */
    fd = dial();
    s = open_stream(fd);
    static char much[64 << 10];
    size_t written = 0;
    while (http_stream_write(s, much, sizeof much)) {
        written += sizeof much;
        CHECK(written < (size_t)64 << 20);
    }
    http_stream_close(s);
    close(fd);
    /* Open ones end with the server. */
    fd = dial();
    s = open_stream(fd);
    http_stream_close(s);
    http_server_stop(server, 2000);
    close(fd);
}

/* The server's end of it, which is in this process. */
static int accepted(int fd)
{
    struct sockaddr_in own, peer;
    socklen_t len = sizeof own;
    CHECK(getsockname(fd, (struct sockaddr *)&own, &len) == 0);
    for (int at = 3; at < 1024; at++) {
        len = sizeof peer;
        if (getpeername(at, (struct sockaddr *)&peer, &len) == 0 && peer.sin_port == own.sin_port)
            return at;
    }
    return -1;
}

TEST(a_quiet_stream_ends_with_its_client)
{
    char out[1024] = "";
    int probed = 0;
    socklen_t bytes = sizeof probed;
    quiet_ms = 1;
    serve(NULL);
    int stays = dial(), fd = dial(), half = dial();
    http_stream *other = open_stream(stays), *s = open_stream(fd), *shut = open_stream(half);
    close(fd);
    shutdown(half, SHUT_WR);
    int64_t deadline = clock_deadline_ms(GIVE_UP_MS);
    while (http_stream_alive(s) || http_stream_alive(shut))
        CHECK(clock_left_ms(deadline) > 0);
    http_stream_close(s);
    http_stream_close(shut);
    close(half);
    CHECK(http_stream_write(other, "here\n", 5));
    CHECK(hear(stays, out, sizeof out, "here\n", GIVE_UP_MS));
    /* One that vanished does not say so. */
    CHECK(getsockopt(accepted(stays), SOL_SOCKET, SO_KEEPALIVE, &probed, &bytes) == 0 && probed);
    http_stream_close(other);
    close(stays);
    http_server_stop(server, 2000);
}

/* Whoever feeds a stream may hear of the end later than the server: its handle stays good. */
TEST(a_stream_outlives_its_server)
{
    serve(NULL);
    int fd = dial();
    http_stream *s = open_stream(fd);
    http_server_stop(server, 2000);
    CHECK(!http_stream_alive(s));
    CHECK(!http_stream_write(s, "late", 4));
    http_stream_close(s);
    close(fd);
}

static atomic_int removals; /* of a listening socket from an epoll set */

/* libmicrohttpd's too. */
__attribute__((visibility("default"))) int epoll_ctl(int set, int what, int fd,
                                                     struct epoll_event *event)
{
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (what == EPOLL_CTL_DEL && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 &&
        listens)
        atomic_fetch_add(&removals, 1);
    return (int)syscall(SYS_epoll_ctl, set, what, fd, event);
}

/* Whoever quiesces libmicrohttpd removes it beside the thread that waits on it, which may be about
 * to, finds that it was done, and ends the process. */
TEST(nobody_takes_the_socket_from_a_thread_that_waits_on_it)
{
    serve(NULL);
    check_answer(GET("/hello/you"), "200", "hello");
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(http_server_stop(server, 2000));
    CHECK_INT(atomic_load(&removals), 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) != 0 && errno == ECONNREFUSED);
    close(fd);
}

static void *stop(void *unused)
{
    (void)unused;
    CHECK(http_server_stop(server, 5000));
    return NULL;
}

/* Whoever dials while the last handlers are waited for is told at once that nobody is there. */
TEST(a_server_that_stops_takes_nobody_in)
{
    char out[1024] = "200";
    serve(NULL);
    int last = dial();
    say(last, GET("/block"));
    pthread_mutex_lock(&lock);
    while (!blocked)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    pthread_t stopper;
    pthread_create(&stopper, NULL, stop, NULL);
    int64_t deadline = clock_deadline_ms(4000);
    while (strstr(out, "200")) { /* until it has begun to stop */
        CHECK(clock_monotonic_ms() < deadline);
        int fd = dial();
        send(fd, GET("/hello/you"), sizeof GET("/hello/you") - 1, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        out[0] = '\0';
        CHECK(hear(fd, out, sizeof out, NULL, 2000));
        close(fd);
    }
    CHECK_STR(out, "");
    release();
    pthread_join(stopper, NULL);
    close(last);
}

TEST(a_taken_port)
{
    serve(NULL);
    http_config c = {.host = "127.0.0.1", .port = http_server_port(server), .routes = routes,
                     .route_count = 1};
    http_server *second = NULL;
    err e = ERR_INIT;
    CHECK_ERR(http_server_start(&c, &second, &e), e, ERR_EXISTS, "is taken");
    c.host = "no such host";
    CHECK_ERR(http_server_start(&c, &second, &e), e, ERR_INVALID, "no such host");
    http_server_stop(server, 2000);
}

/* ---- other users of the machine -------------------------------------------------------------- */

/* What such a process hears: the status of each request in turn, or 0 where it did not wait. */
static void as_nobody(const char *const *requests, int *statuses, size_t count)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(1);
        for (size_t i = 0; i < count; i++) {
            char out[4096] = "";
            int fd = dial(), status = 0;
            say(fd, requests[i]);
            if (statuses[i] >= 0 && hear(fd, out, sizeof out, "}", 5000))
                status = (int)strtol(out + 9, NULL, 10);
            close(fd);
            if (write(ends[1], &status, sizeof status) != sizeof status)
                _exit(1);
        }
        _exit(0);
    }
    close(ends[1]);
    for (size_t i = 0; i < count; i++)
        CHECK(read(ends[0], &statuses[i], sizeof *statuses) == sizeof *statuses);
    close(ends[0]);
    int ended;
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
}

/* An address of IPv4 as programs write it that know one family alone. */
static int dial_mapped(void)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 to = {.sin6_family = AF_INET6,
                              .sin6_port = htons(http_server_port(server))};
    CHECK(inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.sin6_addr) == 1);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        return -1;
    return fd;
}

static void need_told_peers(void)
{
    int listens = http_server_listen("127.0.0.1", 0, NULL);
    if (!peer_is_told(listens))
        test_skip("the kernel does not tell whose a connection is");
    close(listens);
}

TEST(without_tokens_its_own_user_is_answered)
{
    char out[4096] = "";
    serve(NULL);
    check_answer(GET("/user"), "200", "{user=}");
    int fd = dial_mapped();
    if (fd < 0)
        test_skip("there is no IPv6 here");
    say(fd, GET("/user"));
    CHECK(hear(fd, out, sizeof out, "}", 5000));
    CHECK_CONTAINS(out, "200 OK");
    close(fd);
    http_server_stop(server, 0);
}

/* For want of a descriptor, say: there is one for the connection, and none to ask with. */
TEST(whose_a_connection_is_is_asked_again_where_it_could_not_be)
{
    char out[4096] = "";
    serve(NULL);
    need_told_peers();
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), next = dup(fd);
    struct rlimit before, few;
    CHECK(fd >= 0 && next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    say(fd, GET("/user"));
    CHECK(hear(fd, out, sizeof out, "}", 5000));
    CHECK_CONTAINS(out, "503");
    CHECK_CONTAINS(out, "Retry-After");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    out[0] = '\0';
    say(fd, GET("/user"));
    CHECK(hear(fd, out, sizeof out, "}", 5000));
    CHECK_CONTAINS(out, "200 OK");
    close(fd);
    http_server_stop(server, 0);
}

TEST(without_tokens_another_user_is_refused)
{
    if (geteuid() != 0)
        test_skip("it becomes another user, as root alone can");
    static const char *const requests[] = {GET("/user"), GET("/hello/a"), NOTE, NOTE};
    int statuses[] = {0, 0, 0, -1}; /* the last is closed at once: such a socket is nobody's */
    serve(NULL);
    need_told_peers();
    as_nobody(requests, statuses, 4);
    CHECK_INT(statuses[0], 403);
    CHECK_INT(statuses[1], 200); /* as without a token */
    CHECK_INT(statuses[2], 403);
    check_answer(GET("/user"), "200", "{user=}");
    CHECK(http_server_stop(server, GIVE_UP_MS));
    CHECK_INT(atomic_load(&noted), 0);
    serve("ann:abc");
    as_nobody(
        (const char *const[]){"GET /user HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer abc\r\n\r\n"},
        statuses, 1);
    CHECK_INT(statuses[0], 200);
    http_server_stop(server, 0);
}
