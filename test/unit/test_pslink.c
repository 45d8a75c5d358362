/* test_pslink.c: a function's connection to a kubeml-ps that goes away and does not come back at
 * once. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/wire.h"
#include "function-runtime/member/pslink.h"
#include "test.h"

enum { COUNT_MS = 1000, MANY = 100, HANG_S = PSLINK_REDIAL_MS / 2000 };

static int listener;

static wire *take_connection(void)
{
    err e = ERR_INIT;
    struct pollfd p = {.fd = listener, .events = POLLIN};
    CHECK_INT(poll(&p, 1, 10000), 1);
    wire *w = wire_accept(listener, &e);
    CHECK(w);
    return w;
}

static void take_message(wire *w, const char *type)
{
    err e = ERR_INIT;
    json_t *m = NULL;
    CHECK_OK(wire_receive_wait(w, &m, clock_deadline_ms(10000), &e), e);
    CHECK_STR(wire_type(m), type);
    json_decref(m);
}

/* kubeml-ps as long as the handshake takes; then it is gone. */
static void *be_there_for_a_moment(void *none)
{
    err e = ERR_INIT;
    wire *w = take_connection();
    take_message(w, "hello");
    CHECK_OK(wire_sendf(w, &e, "{s:s}", "type", "welcome"), e);
    take_message(w, "ready");
    wire_close(w);
    return none;
}

/* A link whose kubeml-ps was there for a moment; what it borrows is the config's. */
static pslink *abandoned_link(pslink_config *config)
{
    static char address[WIRE_ADDRESS_BYTES];
    err e = ERR_INIT;
    pthread_t thread;
    pslink *l = NULL;
    listener = wire_listen("tcp:127.0.0.1:0", &e);
    CHECK(listener >= 0);
    CHECK_OK(wire_address(listener, address, &e), e);
    *config = (pslink_config){.address = address, .hello = json_pack("{s:s}", "type", "hello"),
                              .opening = json_pack("{s:s}", "type", "ready")};
    CHECK(pthread_create(&thread, NULL, be_there_for_a_moment, NULL) == 0);
    CHECK_OK(pslink_open(config, &l, &e), e);
    pthread_join(thread, NULL);
    return l;
}

/* A message that waits to be sent leaves the pauses between two tries as they are. */
TEST(it_dials_again_with_pauses)
{
    pslink_config config;
    pslink *l = abandoned_link(&config);
    wire_close(take_connection()); /* it dials again, and is turned away */
    pslink_send(l, json_pack("{s:s}", "type", "published"));
    int tries = 0;
    struct pollfd p = {.fd = listener, .events = POLLIN};
    for (int64_t until = clock_deadline_ms(COUNT_MS);
         poll(&p, 1, clock_left_ms(until)) > 0 && clock_left_ms(until) > 0; tries++)
        wire_close(take_connection());
    CHECK(tries > 0 && tries < MANY);
    close(listener); /* nobody is dialled while it closes */
    pslink_close(l, clock_deadline_ms(0));
    json_decref(config.hello);
    json_decref(config.opening);
}

static void *close_now(void *link)
{
    pslink_close(link, clock_deadline_ms(0));
    return NULL;
}

/* Returns when the link is closed, or fails long before it would give up dialling. */
static void close_in_time(pslink *l)
{
    pthread_t thread;
    struct timespec until;
    CHECK(pthread_create(&thread, NULL, close_now, l) == 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HANG_S;
    CHECK_INT(pthread_timedjoin_np(thread, NULL, &until), 0);
}

/* One that is stopped, or whose machine hangs, takes a connection all the same. */
TEST_LIMIT(closing_does_not_wait_for_one_who_says_nothing, 40)
{
    pslink_config config;
    pslink *l = abandoned_link(&config);
    wire *silent = take_connection();
    take_message(silent, "hello");
    close_in_time(l);
    wire_close(silent);
    close(listener);
    json_decref(config.hello);
    json_decref(config.opening);
}

/* Does a connection to the listener wait for its first answer? */
static bool connecting(void)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    char line[256];
    unsigned port, state, found = 0;
    CHECK_INT(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    FILE *f = fopen("/proc/net/tcp", "r");
    CHECK(f);
    while (fgets(line, sizeof line, f))
        found |= sscanf(line, " %*d: %*x:%*x %*x:%x %x", &port, &state) == 2 &&
                 port == ntohs(at.sin_port) && state == TCP_SYN_SENT;
    fclose(f);
    return found;
}

/* A full queue drops who wants to connect, as a network does that has lost the machine. */
TEST_LIMIT(closing_does_not_wait_for_a_connection, 40)
{
    pslink_config config;
    err e = ERR_INIT;
    pslink *l = abandoned_link(&config);
    wire *turned_away = take_connection();
    CHECK_INT(listen(listener, 0), 0);
    wire *fills_it = wire_dial(config.address, clock_deadline_ms(10000), &e);
    CHECK(fills_it);
    wire_close(turned_away);
    for (int64_t until = clock_deadline_ms(10000); !connecting(); poll(NULL, 0, 5))
        CHECK(clock_left_ms(until) > 0);
    close_in_time(l);
    wire_close(fills_it);
    close(listener);
    json_decref(config.hello);
    json_decref(config.opening);
}
