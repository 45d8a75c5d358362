/* fuzz_redis.c: replies of a Redis that may send anything. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/modelstore/redis_link.h"
#include "fuzz.h"

FUZZ(redis)
{
    int pair[2];
    if (len == 0 || len > 60000) /* less than what a socket holds: writing never waits */
        return 0;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    FUZZ_CHECK(write(pair[1], bytes + 1, len - 1) == (ssize_t)len - 1);
    close(pair[1]);
    redis_link *l = redis_link_adopt(pair[0]);
    FUZZ_CHECK(l);
    for (int i = 0; i < 100; i++) {
        err e = ERR_INIT;
        redisReply *reply = NULL;
        char into[64];
        int rc = bytes[0] & 1
                     ? redis_link_receive_long(l, into, sizeof into, clock_deadline_ms(1000), &e)
                     : redis_link_receive(l, &reply, clock_deadline_ms(1000), &e);
        FUZZ_CHECK((rc == 0) == (e.code == ERR_NONE));
        if (rc == 0 && !(bytes[0] & 1)) {
            if (reply->type == REDIS_REPLY_ERROR)
                FUZZ_CHECK(redis_link_error(reply, &e) == -1);
            redis_reply_free(&reply);
        }
        if (redis_link_broken(l))
            break;
    }
    redis_link_close(l);
    return 0;
}
