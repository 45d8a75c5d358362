/* test_wire.c: frames over real sockets: whole, cut, too large, too deep, not JSON. */
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/wire.h"
#include "test.h"

/* A wire on one end of a socket pair, the raw descriptor of the other in *peer. */
static wire *pair(int *peer)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    *peer = ends[1];
    err e = ERR_INIT;
    wire *w = wire_adopt(ends[0], &e);
    CHECK(w);
    return w;
}

static void send_raw(int fd, uint32_t len, const char *text)
{
    unsigned char header[4] = {(unsigned char)len, (unsigned char)(len >> 8),
                               (unsigned char)(len >> 16), (unsigned char)(len >> 24)};
    CHECK(write(fd, header, 4) == 4);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

TEST(a_message_goes_through)
{
    err e = ERR_INIT;
    char address[256], dialled[WIRE_ADDRESS_BYTES];
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    int listener = wire_listen(address, &e);
    CHECK(listener >= 0);
    CHECK_OK(wire_address(listener, dialled, &e), e);
    CHECK_STR(dialled, address);
    wire *client = wire_dial(address, clock_deadline_ms(5000), &e);
    CHECK(client);
    wire *server = wire_accept(listener, &e);
    CHECK(server);
    CHECK_OK(wire_sendf(client, &e, "{s:s, s:i}", "type", "hello", "n", 7), e);
    json_t *message = NULL;
    CHECK_OK(wire_receive_wait(server, &message, clock_deadline_ms(5000), &e), e);
    CHECK_STR(wire_type(message), "hello");
    CHECK_INT(json_integer_value(json_object_get(message, "n")), 7);
    json_decref(message);
    wire_close(client);
    CHECK_ERR(wire_receive_wait(server, &message, clock_deadline_ms(5000), &e), e, ERR_UNAVAILABLE,
              "closed");
    wire_close(server);
    close(listener);
}

TEST(tcp_tells_its_port)
{
    err e = ERR_INIT;
    char address[WIRE_ADDRESS_BYTES];
    int listener = wire_listen("tcp:127.0.0.1:0", &e);
    CHECK(listener >= 0);
    CHECK_OK(wire_address(listener, address, &e), e);
    wire *client = wire_dial(address, clock_deadline_ms(5000), &e);
    CHECK(client);
    wire_close(client);
    close(listener);
    CHECK(!wire_dial(address, clock_deadline_ms(5000), &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
}

static int how_it_went(const wire *w, err *e)
{
    struct pollfd p = {.fd = wire_fd(w), .events = POLLOUT};
    CHECK_INT(poll(&p, 1, 5000), 1);
    return wire_dialled(w, e);
}

static void dials_without_waiting(const char *at)
{
    err e = ERR_INIT;
    char address[WIRE_ADDRESS_BYTES];
    int listener = wire_listen(at, &e);
    CHECK(listener >= 0);
    CHECK_OK(wire_address(listener, address, &e), e);
    wire *client = wire_dial_begin(address, &e);
    CHECK(client);
    CHECK_INT(how_it_went(client, &e), 1);
    CHECK_OK(wire_sendf(client, &e, "{s:s}", "type", "hello"), e);
    wire_close(client);
    close(listener);
    client = wire_dial_begin(address, &e);
    if (client)
        CHECK_INT(how_it_went(client, &e), -1);
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    wire_close(client);
}

TEST(a_connection_is_begun_and_waited_for_by_the_caller)
{
    char at[WIRE_ADDRESS_BYTES];
    dials_without_waiting("tcp:127.0.0.1:0");
    snprintf(at, sizeof at, "unix:%.140s/begun", test_tmp());
    dials_without_waiting(at);
}

/* What a machine without power leaves behind is found out by the kernel, at both ends. */
TEST(tcp_gives_up_a_peer_that_is_silent)
{
    err e = ERR_INIT;
    char address[WIRE_ADDRESS_BYTES];
    int listener = wire_listen("tcp:127.0.0.1:0", &e);
    CHECK_OK(wire_address(listener, address, &e), e);
    wire *ends[2] = {wire_dial(address, clock_deadline_ms(5000), &e), NULL};
    for (int64_t end = clock_deadline_ms(5000); !ends[1] && clock_monotonic_ms() < end;)
        ends[1] = wire_accept(listener, &e);
    for (int i = 0; i < 2; i++) {
        unsigned dead_ms = 0;
        int probes = 0;
        socklen_t len = sizeof dead_ms;
        CHECK(ends[i]);
        CHECK(getsockopt(wire_fd(ends[i]), IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, &len) == 0);
        CHECK_INT(dead_ms, WIRE_DEAD_MS);
        CHECK(getsockopt(wire_fd(ends[i]), SOL_SOCKET, SO_KEEPALIVE, &probes, &len) == 0 && probes);
        wire_close(ends[i]);
    }
    close(listener);
}

TEST(a_second_listener_is_refused_and_a_dead_one_replaced)
{
    err e = ERR_INIT;
    char address[256];
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    int listener = wire_listen(address, &e);
    CHECK(listener >= 0);
    CHECK_ERR(wire_listen(address, &e), e, ERR_EXISTS, "in use");
    close(listener); /* the file stays, as after kill -9 */
    listener = wire_listen(address, &e);
    CHECK(listener >= 0);
    close(listener);
}

/* Who listens there takes nothing, as a process does that was stopped, and as many have connected
 * as may wait. */
static int busy_listener(const char *address, int waiting[4])
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%.107s", address + strlen("unix:"));
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), connected = 0;
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 0) == 0);
    for (int i = 0; i < 4; i++) {
        waiting[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connected += connect(waiting[i], (struct sockaddr *)&at, sizeof at) == 0;
    }
    CHECK(connected > 0 && connected < 4);
    return listener;
}

static void *dial_patiently(void *address)
{
    err e = ERR_INIT;
    return wire_dial(address, clock_deadline_ms(10000), &e);
}

/* Nobody gets in while the backlog is full; who dials for longer does once there is room. */
static void check_waited_for(char *address, int listener, int too_short_ms)
{
    err e = ERR_INIT;
    pthread_t thread;
    void *dialled = NULL;
    CHECK(!wire_dial(address, clock_deadline_ms(too_short_ms), &e));
    CHECK_INT(e.code, ERR_TIMEOUT);
    CHECK(pthread_create(&thread, NULL, dial_patiently, address) == 0);
    for (int i = 0; i < 2; i++)
        close(accept(listener, NULL, NULL));
    CHECK(pthread_join(thread, &dialled) == 0);
    CHECK(dialled);
    wire_close(dialled);
    close(listener);
}

TEST(a_full_backlog_is_waited_for)
{
    char address[256];
    int waiting[4];
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    check_waited_for(address, busy_listener(address, waiting), 50);
}

/* Its packets are dropped at first, here by a full backlog. */
TEST(a_tcp_connection_is_waited_for)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    char address[64];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 0) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    snprintf(address, sizeof address, "tcp:127.0.0.1:%d", ntohs(at.sin_port));
    int waiting = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(waiting, (struct sockaddr *)&at, sizeof at) == 0);
    check_waited_for(address, listener, 500);
    close(waiting);
}

TEST(a_stopped_listener_is_in_use)
{
    err e = ERR_INIT;
    char address[256];
    int waiting[4];
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    int listener = busy_listener(address, waiting);
    CHECK_ERR(wire_listen(address, &e), e, ERR_EXISTS, "in use");
    close(listener);
}

TEST(a_frame_may_come_byte_by_byte)
{
    err e = ERR_INIT;
    int peer;
    wire *w = pair(&peer);
    const char text[] = "\x0e\0\0\0{\"type\":\"ab\"}\n";
    json_t *message = NULL;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        CHECK_INT(wire_receive(w, &message, &e), 0);
        CHECK(write(peer, text + i, 1) == 1);
    }
    CHECK_INT(wire_receive(w, &message, &e), 1);
    CHECK_STR(wire_type(message), "ab");
    json_decref(message);
    wire_close(w);
    close(peer);
}

static void refuse(uint32_t len, const char *text, const char *part)
{
    err e = ERR_INIT;
    int peer;
    wire *w = pair(&peer);
    send_raw(peer, len, text);
    json_t *message = NULL;
    CHECK_ERR(wire_receive_wait(w, &message, clock_deadline_ms(5000), &e), e, ERR_CORRUPT, part);
    wire_close(w);
    close(peer);
}

TEST(bad_frames_are_refused)
{
    refuse(WIRE_FRAME_BYTES + 1, "", "over the limit");
    refuse(0xffffffff, "", "over the limit");
    refuse(3, "[1]", "no type");
    refuse(12, "{\"type\": 12}", "no type");
    refuse(5, "{\"a\":", "not a message");
    refuse(25, "{\"type\":\"a\",\"type\":\"b\"}  ", "not a message");
    char deep[101] = "{\"type\":\"a\",\"b\":";
    memset(deep + 16, '[', 84);
    refuse(100, deep, "nested deeper");
}

/* Few bytes, which would take ninety times as many. */
/* Whoever has not said who it is has little to say; the largest limit there is stays one. */
TEST(a_connection_may_have_a_limit_of_its_own)
{
    static const struct {
        size_t limit;
        uint32_t len;
        bool over;
    } cases[] = {{100, 100, false},
                 {100, 101, true},
                 {SIZE_MAX, 101, false},
                 {SIZE_MAX, (uint32_t)WIRE_FRAME_BYTES_MAX + 1, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[102];
        err e = ERR_INIT;
        int peer;
        wire *w = pair(&peer);
        json_t *message = NULL;
        wire_set_limit(w, cases[i].limit);
        snprintf(text, sizeof text, "%-*s", cases[i].len == 100 ? 100 : 101, "{\"type\":\"a\"}");
        send_raw(peer, cases[i].len, text);
        int status = wire_receive_wait(w, &message, clock_deadline_ms(5000), &e);
        if (cases[i].over)
            CHECK_ERR(status, e, ERR_CORRUPT, "over the limit");
        else
            CHECK_OK(status, e);
        json_decref(message);
        wire_close(w);
        close(peer);
    }
}

TEST(a_frame_of_too_many_values_is_refused_before_it_is_read)
{
    static char many[WIRE_FRAME_BYTES];
    static const char head[] = "{\"type\":\"a\",\"b\":[{}";
    size_t len = sizeof head - 1;
    memcpy(many, head, len);
    for (; len + 5 < sizeof many; len += 3)
        memcpy(many + len, ",{}", 3);
    memcpy(many + len, "]}", 2);
    err e = ERR_INIT;
    int peer;
    wire *w = pair(&peer);
    json_t *message = NULL;
    int sent[2] = {(int)len + 2, 0};
    CHECK(write(peer, sent, 4) == 4);
    int status = 0;
    for (size_t at = 0; at < len + 2 && status == 0;) {
        ssize_t n = send(peer, many + at, len + 2 - at, MSG_DONTWAIT);
        at += n > 0 ? (size_t)n : 0;
        status = wire_receive(w, &message, &e);
    }
    CHECK_ERR(status, e, ERR_CORRUPT, "too many values");
    wire_close(w);
    close(peer);
}

TEST(brackets_in_strings_are_not_depth)
{
    err e = ERR_INIT;
    int peer;
    wire *w = pair(&peer);
    const char text[] = "{\"type\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[\\\\\"}";
    send_raw(peer, sizeof text - 1, text);
    json_t *message = NULL;
    CHECK_OK(wire_receive_wait(w, &message, clock_deadline_ms(5000), &e), e);
    json_decref(message);
    wire_close(w);
    close(peer);
}

static void *read_all(void *context)
{
    err e = ERR_INIT;
    wire *w = context;
    for (int i = 0; i < 64; i++) {
        json_t *message = NULL;
        CHECK_OK(wire_receive_wait(w, &message, clock_deadline_ms(20000), &e), e);
        CHECK_INT(json_integer_value(json_object_get(message, "n")), i);
        json_decref(message);
    }
    return NULL;
}

/* More than a socket takes at once, so that frames are cut at every place. */
TEST(many_large_messages_stay_in_order)
{
    err e = ERR_INIT;
    int peer;
    wire *sender = pair(&peer);
    wire *receiver = wire_adopt(peer, &e);
    pthread_t reader;
    pthread_create(&reader, NULL, read_all, receiver);
    char *filler = malloc(300001);
    memset(filler, 'x', 300000);
    filler[300000] = '\0';
    for (int i = 0; i < 64; i++) {
        json_t *message = json_pack("{s:s,s:i,s:s}", "type", "bulk", "n", i, "filler", filler);
        CHECK_OK(wire_send_wait(sender, message, clock_deadline_ms(20000), &e), e);
        json_decref(message);
    }
    pthread_join(reader, NULL);
    free(filler);
    wire_close(sender);
    wire_close(receiver);
}

TEST(a_peer_that_does_not_read_fills_the_queue)
{
    err e = ERR_INIT;
    int peer;
    wire *w = pair(&peer);
    char *filler = malloc((4 << 20) + 1);
    memset(filler, 'x', 4 << 20);
    filler[4 << 20] = '\0';
    int sent = 0;
    while (sent < 100 && wire_sendf(w, &e, "{s:s,s:s}", "type", "bulk", "filler", filler) == 0)
        sent++;
    CHECK(sent > 10 && sent < 30);
    CHECK_INT(e.code, ERR_LIMIT);
    free(filler);
    wire_close(w);
    close(peer);
}

static size_t memory(void)
{
    struct mallinfo2 all = mallinfo2();
    return all.uordblks + all.hblkhd;
}

/* Connections are kept for long, and few of their messages are large. */
TEST(a_large_message_leaves_no_memory_taken)
{
    enum { LARGE_BYTES = 8 << 20 };
    err e = ERR_INIT;
    int peer, got = 0;
    wire *from = pair(&peer), *to = wire_adopt(peer, &e);
    CHECK(to);
    wire_set_limit(to, WIRE_FRAME_BYTES_MAX);
    wire_set_values_limit(to, 2 * LARGE_BYTES);
    char *filler = malloc(LARGE_BYTES + 1);
    memset(filler, 'x', LARGE_BYTES);
    filler[LARGE_BYTES] = '\0';
    size_t before = memory();
    CHECK_OK(wire_sendf(from, &e, "{s:s,s:s}", "type", "bulk", "filler", filler), e);
    json_t *message = NULL;
    while (got == 0) {
        CHECK_OK(wire_flush(from, &e), e);
        got = wire_receive(to, &message, &e);
    }
    CHECK_INT(got, 1);
    json_decref(message);
    CHECK(memory() < before + (1 << 20));
    CHECK_OK(wire_sendf(from, &e, "{s:s}", "type", "next"), e);
    CHECK_OK(wire_receive_wait(to, &message, clock_deadline_ms(5000), &e), e);
    CHECK_STR(wire_type(message), "next");
    json_decref(message);
    free(filler);
    wire_close(from);
    wire_close(to);
}
