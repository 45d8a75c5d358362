/* test_http_client.c: calls over real sockets, to a server of ours. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/http_client.h"
#include "common/net/http_server.h"
#include "test.h"

#define TOKEN "open-sesame-please"

static http_server *server;

static void say_ok(http_request *r, void *context)
{
    (void)context;
    http_response_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

static void count(http_request *r, void *context)
{
    static char bytes[65536];
    long long total = 0;
    err e = ERR_INIT;
    (void)context;
    for (ssize_t n; (n = http_body_read(r, bytes, sizeof bytes, &e)) > 0;)
        total += n;
    if (e.code != ERR_NONE)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, json_pack("{s:I}", "bytes", (json_int_t)total));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool released;

static void block(http_request *r, void *context)
{
    pthread_mutex_lock(&lock);
    while (!released)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    say_ok(r, context);
}

static tokens *known;

static void serve(void)
{
    static const http_route routes[] = {
        {.method = "GET", .pattern = "/block", .handle = block},
        {.method = "GET", .pattern = "/thing", .handle = say_ok},
        {.method = "POST",
         .pattern = "/count",
         .handle = count,
         .body = HTTP_BODY_STREAM,
         .body_bytes_max = 64 << 20,
         .slow = true},
    };
    err e = ERR_INIT;
    known = tokens_new(&e); /* with tokens it answers to any name */
    CHECK_OK(tokens_add(known, "", TOKEN, &e), e);
    CHECK_OK(http_server_start(&(http_config){.host = "127.0.0.1",
                                              .routes = routes,
                                              .route_count = sizeof routes / sizeof *routes,
                                              .tokens = known},
                               &server, &e),
             e);
}

static void stop(void)
{
    CHECK(http_server_stop(server, 2000));
    tokens_free(known);
}

/* ERR_NONE: it was answered. */
static err_code get(const char *host, bool direct)
{
    err e = ERR_INIT;
    http_reply reply;
    char url[128];
    snprintf(url, sizeof url, "http://%s:%u/thing", host, http_server_port(server));
    http_call call = {.method = "GET", .url = url, .token = TOKEN, .direct = direct};
    http_call_run(&call, &reply, &e);
    http_reply_free(&reply);
    return e.code;
}

/* 0.0.0.0 leads to this machine too, and is no name of it. */
TEST(a_proxy_of_the_environment_gets_no_call_to_this_machine)
{
    static const char *const variables[] = {"no_proxy", "NO_PROXY", "http_proxy", "all_proxy"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    serve();
    CHECK_INT(get("0.0.0.0", false), ERR_NONE);
    setenv("all_proxy", "http://127.0.0.1:1", 1); /* nobody */
    CHECK_INT(get("0.0.0.0", false), ERR_UNAVAILABLE);
    CHECK_INT(get("0.0.0.0", true), ERR_NONE);
    CHECK_INT(get("127.0.0.1", false), ERR_NONE);
    CHECK_INT(get("localhost", false), ERR_NONE);
    setenv("no_proxy", "0.0.0.0", 1);
    CHECK_INT(get("0.0.0.0", false), ERR_NONE);
    stop();
}

enum { UPLOAD_BYTES = 8 << 20 };

static void take_sent(void *context, uint64_t done, uint64_t total)
{
    (void)total;
    *(uint64_t *)context = done;
}

/* The status; *sent is how much of the body went out. */
static long upload(const char *token, const kube_config *kube, uint64_t *sent)
{
    static const char bytes[UPLOAD_BYTES];
    const http_part part = {
        .field = "x-train", .filename = "x", .bytes = bytes, .len = sizeof bytes};
    err e = ERR_INIT;
    http_reply reply;
    char url[128];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/count", http_server_port(server));
    http_call call = {.method = "POST",
                      .url = url,
                      .token = token,
                      .kube = kube,
                      .parts = &part,
                      .part_count = 1,
                      .progress = take_sent,
                      .context = sent};
    *sent = 0;
    http_call_run(&call, &reply, &e);
    long status = reply.status;
    http_reply_free(&reply);
    return status;
}

TEST(a_refused_upload_is_not_sent)
{
    uint64_t sent;
    serve();
    CHECK_INT(upload(TOKEN, NULL, &sent), 200);
    CHECK(sent > UPLOAD_BYTES);
    /* The client waits a second for the answer, which is not enough on a machine that stands still.
     */
    for (int tries = 0; tries == 0 || (sent && tries < 5); tries++)
        CHECK_INT(upload("another-that-is-wrong", NULL, &sent), 401);
    CHECK_INT(sent, 0);
    /* The API server's proxy sends on at once, whoever asked first: it would not read the answer of
     * a server that read no more. */
    CHECK_INT(upload("another-that-is-wrong", &(kube_config){0}, &sent), 401);
    CHECK(sent > UPLOAD_BYTES);
    stop();
}

TEST(a_server_that_says_nothing_is_given_up)
{
    err e = ERR_INIT;
    http_reply reply;
    char url[128];
    serve();
    snprintf(url, sizeof url, "http://127.0.0.1:%u/block", http_server_port(server));
    http_call call = {.method = "GET", .url = url, .token = TOKEN, .idle_s = 1};
    CHECK_ERR(http_call_run(&call, &reply, &e), e, ERR_TIMEOUT,
              "/block: nothing was sent or received for 1 s");
    CHECK_INT(e.os_errno, 0);
    http_reply_free(&reply);
    pthread_mutex_lock(&lock);
    released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    stop();
}

/* Its queue is full, and more are left without an answer: so does a machine that is away. */
TEST(who_cannot_be_reached_was_asked_nothing)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), waits[2];
    CHECK(bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 0) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    for (int i = 0; i < 2; i++) {
        waits[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        CHECK(connect(waits[i], (struct sockaddr *)&at, len) == 0 || errno == EINPROGRESS);
    }
    err e = ERR_INIT;
    http_reply reply;
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/thing", ntohs(at.sin_port));
    http_call call = {.method = "GET", .url = url, .connect_ms = 300};
    CHECK_ERR(http_call_run(&call, &reply, &e), e, ERR_TIMEOUT, "/thing: ");
    CHECK_INT(e.os_errno, ETIMEDOUT);
    http_reply_free(&reply);
    for (int i = 0; i < 2; i++)
        close(waits[i]);
    close(fd);
}
