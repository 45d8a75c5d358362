/* fuzz_wire.c: what a peer sends: frames. What is read can be sent and read again. */
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/wire.h"
#include "fuzz.h"

/* Two ends that are connected; the second is a descriptor or, where `w` is given, a wire. */
static wire *wire_end(int *fd, wire **w)
{
    int pair[2];
    err e = ERR_INIT;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    wire *end = wire_adopt(pair[0], &e);
    if (w)
        *w = wire_adopt(pair[1], &e);
    else
        *fd = pair[1];
    FUZZ_CHECK(end && (!w || *w));
    return end;
}

static void send_again(const json_t *message)
{
    wire *to, *from = wire_end(NULL, &to);
    json_t *again = NULL;
    err e = ERR_INIT;
    int rc = wire_send(from, message, &e);
    FUZZ_CHECK(rc == 0 && !wire_wants_write(from));
    FUZZ_CHECK(wire_receive(to, &again, &e) == 1 && json_equal(message, again));
    json_decref(again);
    wire_close(from);
    wire_close(to);
}

FUZZ(wire)
{
    int fd;
    if (len > 60000) /* less than what a socket holds: writing never waits */
        return 0;
    wire *w = wire_end(&fd, NULL);
    FUZZ_CHECK(write(fd, bytes, len) == (ssize_t)len);
    close(fd);
    json_t *message;
    err e = ERR_INIT;
    int rc;
    while ((rc = wire_receive(w, &message, &e)) == 1) {
        FUZZ_CHECK(
            json_is_object(message) &&
            strcmp(wire_type(message), json_string_value(json_object_get(message, "type"))) == 0);
        send_again(message);
        json_decref(message);
    }
    FUZZ_CHECK(rc == -1 && (e.code == ERR_CORRUPT || e.code == ERR_UNAVAILABLE));
    wire_close(w);
    return 0;
}
