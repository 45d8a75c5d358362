/* test_forward.c: what a standby holds of the leader's answers. Both are servers of this process;
 * what stands below is linked in the place of leader.c. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "controller/api/forward.h"
#include "controller/ha/leader.h"
#include "test.h"

enum { BIG = 100 << 20, BLOCK = 4096, WAIT_MS = 30000 };

static char leader_url[KUBE_LEASE_ADDRESS_BYTES];

bool leader_where(leader *l, char out[KUBE_LEASE_ADDRESS_BYTES])
{
    (void)l;
    snprintf(out, KUBE_LEASE_ADDRESS_BYTES, "%s", leader_url);
    return true;
}

bool leader_is_us(const leader *l)
{
    (void)l;
    return false;
}

/* ---- the leader's API ------------------------------------------------------------------------ */

static unsigned char byte_at(size_t at)
{
    return (unsigned char)(at / BLOCK % 251);
}

static ssize_t read_big(void *source, void *out, size_t max)
{
    size_t *sent = source, left = BLOCK - *sent % BLOCK, n = left < max ? left : max;
    if (*sent == BIG)
        return 0;
    memset(out, byte_at(*sent), n);
    *sent += n;
    return (ssize_t)n;
}

static void big(http_request *r, void *context)
{
    (void)context;
    http_response_source(r, "text/plain", BIG, read_big, free, calloc(1, sizeof(size_t)));
}

static void small(http_request *r, void *context)
{
    (void)context;
    http_response_json(r, 200, json_pack("{s:i}", "small", 1));
}

static http_stream *opened[FORWARD_STREAMS_MAX + 1024];
static size_t opened_count;
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;

static void stream(http_request *r, void *context)
{
    (void)context;
    pthread_mutex_lock(&opened_lock);
    CHECK(opened_count < sizeof opened / sizeof *opened);
    http_stream *s = opened[opened_count++] = http_response_stream(r, "text/plain");
    http_stream_write(s, "\n", 1);
    pthread_mutex_unlock(&opened_lock);
}

static const http_route routes[] = {
    {.method = "GET", .pattern = "/stream", .handle = stream, .gives = "text/plain", .led = true},
    {.method = "GET", .pattern = "/big", .handle = big, .gives = "text/plain", .led = true},
    {.method = "GET", .pattern = "/small", .handle = small, .led = true},
};

/* ---- two of them ----------------------------------------------------------------------------- */

typedef struct world {
    http_server *leader, *standby;
    controller controller; /* the standby's */
} world;

static void open_world(world *w)
{
    err e = ERR_INIT;
    http_config config = {
        .host = "127.0.0.1", .routes = routes, .route_count = sizeof routes / sizeof *routes};
    *w = (world){0};
    CHECK_OK(http_server_start(&config, &w->leader, &e), e);
    snprintf(leader_url, sizeof leader_url, "http://127.0.0.1:%d", http_server_port(w->leader));
    w->controller.leader = (leader *)w; /* there is one; nobody looks into it */
    config.context = &w->controller;
    config.divert = forward_divert;
    CHECK_OK(http_server_start(&config, &w->standby, &e), e);
}

static void close_world(world *w)
{
    http_server_stop(w->standby, WAIT_MS);
    http_server_stop(w->leader, WAIT_MS);
    forward_drain();
}

/* Its client, who has read no more than the first line: the status is in *status. */
static int ask(world *w, const char *path, int *status)
{
    char text[200], line[14] = "";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(w->standby)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    int len = snprintf(text, sizeof text,
                       "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    CHECK_INT(send(fd, text, (size_t)len, MSG_NOSIGNAL), len);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, WAIT_MS) == 1);
    CHECK_INT(recv(fd, line, 12, MSG_WAITALL), 12);
    *status = (int)strtol(line + 9, NULL, 10);
    return fd;
}

static int status_of(world *w, const char *path)
{
    int status;
    close(ask(w, path, &status));
    return status;
}

/* All that is left of a big answer is as the leader gave it. */
static void check_rest(int fd)
{
    static unsigned char bytes[1 << 20];
    size_t at = 0;
    char end[4] = "";
    while (strcmp(end, "\r\n\r") != 0) { /* of the head, but for its last byte */
        memmove(end, end + 1, 2);
        CHECK_INT(recv(fd, end + 2, 1, 0), 1);
    }
    CHECK_INT(recv(fd, bytes, 1, 0), 1);
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            CHECK_INT(bytes[i], byte_at(at++));
    CHECK_INT(at, BIG);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* They are slow readers of logs, say: the leader believes that they have their answers. */
TEST(what_clients_have_not_taken_is_bounded)
{
    world w;
    int status[2];
    open_world(&w);
    int first = ask(&w, "/big", &status[0]), second = ask(&w, "/big", &status[1]);
    CHECK_INT(status[0], 200);
    CHECK_INT(status[1], 200);
    CHECK_INT(status_of(&w, "/big"), 503);
    CHECK_INT(status_of(&w, "/small"), 200);
    close(first);
    int64_t until = clock_deadline_ms(WAIT_MS);
    while (status_of(&w, "/big") != 200) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 5);
    }
    check_rest(second);
    close(second);
    close_world(&w);
}

/* As the leader says it: the client asks again. */
TEST_LIMIT(one_stream_too_many_is_for_later, 60)
{
    enum { FILES = 8 * FORWARD_STREAMS_MAX };
    static int clients[FORWARD_STREAMS_MAX];
    struct rlimit files;
    world w;
    int status;
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < FILES)
        test_skip("so many streams need more files than may be open");
    files.rlim_cur = files.rlim_cur < FILES ? FILES : files.rlim_cur;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &files), 0);
    open_world(&w);
    for (int i = 0; i < FORWARD_STREAMS_MAX; i++) {
        clients[i] = ask(&w, "/stream", &status);
        CHECK_INT(status, 200);
    }
    CHECK_INT(status_of(&w, "/stream"), 503);
    close(clients[0]);
    int64_t until = clock_deadline_ms(WAIT_MS);
    while (status_of(&w, "/stream") != 200) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 50);
    }
    for (int i = 1; i < FORWARD_STREAMS_MAX; i++)
        close(clients[i]);
    pthread_mutex_lock(&opened_lock);
    for (size_t i = 0; i < opened_count; i++)
        http_stream_close(opened[i]);
    pthread_mutex_unlock(&opened_lock);
    close_world(&w);
}
