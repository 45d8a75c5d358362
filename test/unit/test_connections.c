/* test_connections.c: kubeml-ps's connections when there is no descriptor, or no place, for another
 * one. */
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "ps/conn/connections.h"
#include "test.h"

static void ignore_message(void *ctx, conn *c, json_t *message)
{
    (void)ctx, (void)c, (void)message;
}

static void ignore_closed(void *ctx, conn *c, const err *why)
{
    (void)ctx, (void)c, (void)why;
}

/* Not asked for again at once, which would be a loop that never waits. */
TEST(without_descriptors_a_connection_waits)
{
    static const connections_ops ops = {.message = ignore_message, .closed = ignore_closed};
    static struct pollfd list[CONNECTIONS_MAX + 1];
    char address[256];
    err e = ERR_INIT;
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    connections *h = connections_open(address, &ops, NULL, &e);
    CHECK(h);
    wire *w = wire_dial(address, clock_deadline_ms(5000), &e);
    CHECK(w);
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    int64_t deadline = INT64_MAX;
    size_t count = connections_prepare(h, list, &deadline);
    list[0].revents = POLLIN;
    connections_turn(h, list, count);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_INT(connections_prepare(h, list, &deadline), 1);
    CHECK_INT(list[0].events, 0);
    CHECK(deadline != INT64_MAX);
    CHECK_INT(poll(list, 1, clock_left_ms(deadline) + 1), 0);
    count = connections_prepare(h, list, &deadline);
    CHECK_INT(poll(list, 1, 0), 1);
    connections_turn(h, list, count);
    CHECK_INT(connections_prepare(h, list, &deadline), 2); /* it was taken */
    wire_close(w);
    connections_close(h);
}

/* ---- many at once ---------------------------------------------------------------------------- */

typedef struct visitors {
    connections *connections;
    int admitted, closed;
} visitors;

static void admit(void *ctx, conn *c, json_t *message)
{
    visitors *v = ctx;
    (void)message;
    connections_admit(v->connections, c, CONN_FUNCTION);
    v->admitted++;
}

static void count_closed(void *ctx, conn *c, const err *why)
{
    visitors *v = ctx;
    (void)c, (void)why;
    v->closed++;
}

static void open_for(visitors *v, char address[256])
{
    static const connections_ops ops = {.message = admit, .closed = count_closed};
    err e = ERR_INIT;
    snprintf(address, 256, "unix:%.200s/s", test_tmp());
    *v = (visitors){.connections = connections_open(address, &ops, v, &e)};
    CHECK(v->connections);
}

static wire *visit(const char *address, bool speaks)
{
    err e = ERR_INIT;
    wire *w = wire_dial(address, clock_deadline_ms(5000), &e);
    CHECK(w);
    if (speaks)
        CHECK_OK(wire_sendf(w, &e, "{s:s}", "type", "hello"), e);
    return w;
}

/* Whether new ones were waited for. */
static bool take_turn(const visitors *v, int64_t deadline_ms)
{
    static struct pollfd list[CONNECTIONS_MAX + 1];
    size_t count = connections_prepare(v->connections, list, &deadline_ms);
    CHECK(poll(list, count, clock_left_ms(deadline_ms)) >= 0);
    connections_turn(v->connections, list, count);
    return list[0].events != 0;
}

static bool is_closed(const wire *w)
{
    struct pollfd p = {.fd = wire_fd(w), .events = POLLIN}; /* nothing is ever said to it */
    return poll(&p, 1, 0) != 0;
}

enum { MANY = CONNECTIONS_STRANGERS_MAX + 20 };

/* As when kubeml-ps has stood still. */
TEST(all_are_taken_that_dial_at_once)
{
    visitors v;
    wire *w[MANY];
    char address[256];
    open_for(&v, address);
    for (int i = 0; i < MANY; i++)
        w[i] = visit(address, true);
    for (int64_t deadline = clock_deadline_ms(10000); v.admitted < MANY;) {
        take_turn(&v, deadline);
        CHECK(clock_left_ms(deadline) > 0);
    }
    CHECK_INT(v.closed, 0);
    for (int i = 0; i < MANY; i++) {
        CHECK(!is_closed(w[i]));
        wire_close(w[i]);
    }
    connections_close(v.connections);
}

/* They have their time; meanwhile nothing is waited for that would be there at once. */
TEST(who_says_nothing_keeps_others_out_for_a_while)
{
    visitors v;
    wire *w[CONNECTIONS_STRANGERS_MAX + 1];
    char address[256];
    int turns = 0;
    open_for(&v, address);
    for (int i = 0; i <= CONNECTIONS_STRANGERS_MAX; i++)
        w[i] = visit(address, i == CONNECTIONS_STRANGERS_MAX);
    const int64_t deadline = clock_deadline_ms(3 * CONNECTIONS_HELLO_MS);
    while (take_turn(&v, deadline))
        CHECK_INT(v.admitted, 0);
    CHECK(!is_closed(w[CONNECTIONS_STRANGERS_MAX]));
    for (; v.admitted == 0 || v.closed < CONNECTIONS_STRANGERS_MAX; turns++) {
        take_turn(&v, deadline);
        CHECK(clock_left_ms(deadline) > 0);
    }
    CHECK_INT(v.closed, CONNECTIONS_STRANGERS_MAX);
    CHECK(turns < 2 * CONNECTIONS_STRANGERS_MAX);
    for (int i = 0; i <= CONNECTIONS_STRANGERS_MAX; i++)
        wire_close(w[i]);
    connections_close(v.connections);
}

static void count_message(void *ctx, conn *c, json_t *message)
{
    visitors *v = ctx;
    (void)c, (void)message;
    v->admitted++;
}

/* What has been read is told, though nothing more comes: poll would wait for ever. */
TEST(what_is_read_and_left_for_the_next_turn_is_not_waited_for)
{
    static const connections_ops ops = {.message = count_message, .closed = count_closed};
    enum { SAID = 3 * CONNECTIONS_MESSAGES_A_TURN };
    char address[256];
    err e = ERR_INIT;
    visitors v;
    snprintf(address, 256, "unix:%.200s/s", test_tmp());
    v = (visitors){.connections = connections_open(address, &ops, &v, &e)};
    CHECK(v.connections);
    wire *w = visit(address, false);
    const int64_t deadline = clock_deadline_ms(10000);
    take_turn(&v, deadline);
    for (int i = 0; i < SAID; i++)
        CHECK_OK(wire_sendf(w, &e, "{s:s}", "type", "hello"), e);
    for (int turn = 1; turn <= SAID / CONNECTIONS_MESSAGES_A_TURN; turn++) {
        take_turn(&v, deadline);
        CHECK_INT(v.admitted, turn * CONNECTIONS_MESSAGES_A_TURN);
        CHECK(clock_left_ms(deadline) > 0);
    }
    CHECK_INT(v.closed, 0);
    wire_close(w);
    connections_close(v.connections);
}
