/* test_pslink.c: a function's connection to a kubeml-ps that goes away and does not come back at once. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "clock.h"
#include "pslink.h"
#include "test.h"
#include "wire.h"

enum { COUNT_MS = 1000, MANY = 100 };

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

/* kubeml-ps as long as the handshake takes; then it is gone. */
static void *be_there_for_a_moment(void *none)
{
    err e = ERR_INIT;
    wire *w = take_connection();
    json_t *m = NULL;
    CHECK_OK(wire_receive_wait(w, &m, clock_deadline_ms(10000), &e), e);
    json_decref(m);
    CHECK_OK(wire_sendf(w, &e, "{s:s}", "type", "welcome"), e);
    CHECK_OK(wire_receive_wait(w, &m, clock_deadline_ms(10000), &e), e);
    json_decref(m);
    wire_close(w);
    return none;
}

/* A message that waits to be sent leaves the pauses between two tries as they are. */
TEST(it_dials_again_with_pauses)
{
    err e = ERR_INIT;
    char address[256];
    pthread_t thread;
    json_t *hello = json_pack("{s:s}", "type", "hello"), *opening = json_pack("{s:s}", "type", "ready");
    pslink_config config = {.address = address, .hello = hello, .opening = opening};
    pslink *l = NULL;
    snprintf(address, sizeof address, "unix:%.200s/s", test_tmp());
    listener = wire_listen(address, &e);
    CHECK(listener >= 0);
    CHECK(pthread_create(&thread, NULL, be_there_for_a_moment, NULL) == 0);
    CHECK_OK(pslink_open(&config, &l, &e), e);
    pthread_join(thread, NULL);
    wire_close(take_connection()); /* it dials again, and is turned away */
    pslink_send(l, json_pack("{s:s}", "type", "published"));
    int tries = 0;
    struct pollfd p = {.fd = listener, .events = POLLIN};
    for (int64_t until = clock_deadline_ms(COUNT_MS); poll(&p, 1, clock_left_ms(until)) > 0 && clock_left_ms(until) > 0;
         tries++)
        wire_close(take_connection());
    CHECK(tries > 0 && tries < MANY);
    close(listener); /* nobody is dialled while it closes */
    pslink_close(l, clock_deadline_ms(0));
    json_decref(hello);
    json_decref(opening);
}
