/* fuzz_resp.c: replies of a Redis that may send anything. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/modelstore/resp.h"
#include "fuzz.h"

FUZZ(resp)
{
    int pair[2];
    if (len == 0 || len > 60000) /* less than what a socket holds: writing never waits */
        return 0;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    FUZZ_CHECK(write(pair[1], bytes + 1, len - 1) == (ssize_t)len - 1);
    close(pair[1]);
    resp *r = resp_adopt(pair[0]);
    FUZZ_CHECK(r);
    for (int i = 0; i < 100; i++) {
        err e = ERR_INIT;
        resp_reply reply;
        char into[64];
        int rc = bytes[0] & 1 ? resp_receive_into(r, into, sizeof into, clock_deadline_ms(1000), &e)
                              : resp_receive(r, &reply, clock_deadline_ms(1000), &e);
        FUZZ_CHECK((rc == 0) == (e.code == ERR_NONE));
        if (rc == 0 && !(bytes[0] & 1)) {
            if (reply.type == RESP_ERROR)
                FUZZ_CHECK(resp_error(&reply, &e) == -1);
            resp_reply_free(&reply);
        }
        if (resp_broken(r))
            break;
    }
    resp_close(r);
    return 0;
}
