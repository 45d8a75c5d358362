/* test_hub.c: kubeml-ps's connections when there is no descriptor left for another one. */
#include <sys/resource.h>
#include <unistd.h>

#include "../../ps/hub.h"
#include "clock.h"
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
    static const hub_ops ops = {.message = ignore_message, .closed = ignore_closed};
    static struct pollfd list[HUB_CONNECTIONS_MAX + 1];
    char address[256];
    err e = ERR_INIT;
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    hub *h = hub_open(address, &ops, NULL, &e);
    CHECK(h);
    wire *w = wire_dial(address, clock_deadline_ms(5000), &e);
    CHECK(w);
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    int64_t deadline = INT64_MAX;
    size_t count = hub_prepare(h, list, &deadline);
    list[0].revents = POLLIN;
    hub_turn(h, list, count);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_INT(hub_prepare(h, list, &deadline), 1);
    CHECK_INT(list[0].events, 0);
    CHECK(deadline != INT64_MAX);
    CHECK_INT(poll(list, 1, clock_left_ms(deadline) + 1), 0);
    count = hub_prepare(h, list, &deadline);
    CHECK_INT(poll(list, 1, 0), 1);
    hub_turn(h, list, count);
    CHECK_INT(hub_prepare(h, list, &deadline), 2); /* it was taken */
    wire_close(w);
    hub_close(h);
}
