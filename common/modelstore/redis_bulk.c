/* redis_bulk.c: see redis_bulk.h. */
#include "redis_bulk.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"

enum {
    VECTORS = 8,
    AHEAD_BYTES = 16 << 10,  /* read beyond a bulk; hiredis reads as much at once */
    WAITING_BYTES = 1 << 20, /* of replies that are read while a command is written */
};

/* Marks the connection as broken. */
static int broken(redisContext *c, err *e, err_code code, const char *why)
{
    c->err = REDIS_ERR_OTHER;
    return err_set(e, code, "redis: %s", why);
}

static int gone(redisContext *c, err *e)
{
    return broken(c, e, ERR_UNAVAILABLE, "the connection was closed");
}

/* Waits for one of the events; *got: the events that happened. */
static int wait_for(redisContext *c, short events, int64_t deadline_ms, short *got, err *e)
{
    struct pollfd p = {.fd = c->fd, .events = events};
    for (;;) {
        int n = poll(&p, 1, clock_left_ms(deadline_ms));
        if (n > 0) {
            *got = p.revents;
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            c->err = REDIS_ERR_OTHER;
            return err_set_errno(e, errno, "redis: poll");
        }
        if (n == 0 && clock_left_ms(deadline_ms) == 0)
            return broken(c, e, ERR_TIMEOUT, "no answer in time");
    }
}

static int take_in(redisContext *c, err *e)
{
    if (redisBufferRead(c) == REDIS_OK)
        return 0;
    return c->err == REDIS_ERR_OOM ? broken(c, e, ERR_NOMEM, "no memory for a reply") : gone(c, e);
}

int redis_bulk_fill(redisContext *c, int64_t deadline_ms, err *e)
{
    short got;
    return wait_for(c, POLLIN, deadline_ms, &got, e) || take_in(c, e) ? -1 : 0;
}

/* ---- the reader's buffer --------------------------------------------------------------------- */

static size_t unread(const redisReader *r)
{
    return r->len - r->pos;
}

static void skip(redisReader *r, size_t bytes)
{
    r->pos += bytes;
    if (r->pos < r->len)
        return;
    sdsclear(r->buf);
    r->pos = r->len = 0;
}

static size_t take(redisReader *r, void *to, size_t max)
{
    size_t bytes = unread(r) < max ? unread(r) : max;
    if (bytes > 0)
        memcpy(to, r->buf + r->pos, bytes);
    skip(r, bytes);
    return bytes;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int make_way(redisContext *c, int64_t deadline_ms, err *e)
{
    short got, in = unread(c->reader) < WAITING_BYTES ? POLLIN : 0;
    if (wait_for(c, (short)(POLLOUT | in), deadline_ms, &got, e))
        return -1;
    return (got & POLLIN) ? take_in(c, e) : 0;
}

/* Skips the written bytes. Returns the first vector that is not written whole. */
static struct iovec *advance(struct iovec *v, const struct iovec *end, size_t written)
{
    for (; v < end && written >= v->iov_len; v++)
        written -= v->iov_len;
    if (v < end) {
        v->iov_base = (char *)v->iov_base + written;
        v->iov_len -= written;
    }
    return v;
}

int redis_bulk_write(redisContext *c, const struct iovec *vector, int count, int64_t deadline_ms,
                     err *e)
{
    struct iovec all[VECTORS] = {{c->obuf, sdslen(c->obuf)}}, *v = all, *end = all + 1;
    assert(count < VECTORS);
    for (int i = 0; i < count; i++)
        *end++ = vector[i];
    while ((v = advance(v, end, 0)) < end) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)(end - v)};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n >= 0)
            v = advance(v, end, (size_t)n);
        else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return gone(c, e);
        else if (errno != EINTR && make_way(c, deadline_ms, e))
            return -1;
    }
    sdsclear(c->obuf);
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* 1: a bulk of `len` bytes comes next, and its head is skipped. 0: another reply. -1: an error. */
static int read_head(redisContext *c, size_t len, int64_t deadline_ms, err *e)
{
    char head[32];
    redisReader *r = c->reader;
    size_t want = (size_t)snprintf(head, sizeof head, "$%zu\r\n", len);
    for (;;) {
        size_t here = unread(r) < want ? unread(r) : want;
        if (here > 0 && memcmp(r->buf + r->pos, head, here) != 0)
            return 0;
        if (here == want) {
            skip(r, want);
            return 1;
        }
        if (redis_bulk_fill(c, deadline_ms, e))
            return -1;
    }
}

/* Reads the available bytes into the vectors. Returns their number, 0 for a retry, or -1. */
static ssize_t read_some(redisContext *c, struct iovec *v, size_t vectors, int64_t deadline_ms,
                         err *e)
{
    short got;
    struct msghdr m = {.msg_iov = v, .msg_iovlen = vectors};
    ssize_t n = recvmsg(c->fd, &m, 0);
    if (n > 0)
        return n;
    if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
        return gone(c, e);
    return errno == EINTR ? 0 : wait_for(c, POLLIN, deadline_ms, &got, e);
}

/* Reads `len` bytes to `to`. Gives bytes that came in the same read, beyond `len`, to the reader.
 */
static int read_exactly(redisContext *c, char *to, size_t len, int64_t deadline_ms, err *e)
{
    char behind[AHEAD_BYTES];
    for (size_t here = take(c->reader, to, len); here < len;) {
        struct iovec v[] = {{to + here, len - here}, {behind, sizeof behind}};
        ssize_t n = read_some(c, v, 2, deadline_ms, e);
        if (n < 0)
            return -1;
        size_t mine = (size_t)n < len - here ? (size_t)n : len - here;
        here += mine;
        if (redisReaderFeed(c->reader, behind, (size_t)n - mine) != REDIS_OK)
            return broken(c, e, ERR_NOMEM, "no memory for a reply");
    }
    return 0;
}

int redis_bulk_read(redisContext *c, void *to, size_t len, int64_t deadline_ms, err *e)
{
    char end[2];
    int found = read_head(c, len, deadline_ms, e);
    if (found <= 0)
        return found;
    if (read_exactly(c, to, len, deadline_ms, e) || read_exactly(c, end, 2, deadline_ms, e))
        return -1;
    return memcmp(end, "\r\n", 2) == 0 ? 1 : broken(c, e, ERR_CORRUPT, "a bulk without its end");
}
