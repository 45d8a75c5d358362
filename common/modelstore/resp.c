/* resp.c: see resp.h. */
#include "resp.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/address.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"

enum {
    INPUT_BYTES = 64 << 10,
    READ_AHEAD_BYTES = 16 << 10, /* while a line is looked for: what is beyond it is copied again */
    LINE_BYTES_MAX = 32 << 10,
    VECTORS = 512,
    SHORT_BYTES = 256, /* arguments up to here are copied into their command's frame */
    HELD_BYTES = 4 << 10,
    SEND_BUFFER_BYTES = 1 << 20,
};

struct resp {
    int fd;
    bool broken;
    size_t begin, end; /* of what was read and not taken yet */
    size_t held;       /* of what is to be sent and was not yet */
    char in[INPUT_BYTES];
    char out[HELD_BYTES];
};

/* ---- commands ------------------------------------------------------------------------------- */

void resp_begin_rest(resp_command *c)
{
    c->argc = 0;
    c->used = 0;
}

void resp_begin(resp_command *c, const char *name)
{
    resp_begin_rest(c);
    resp_add(c, name);
}

void resp_add_bytes(resp_command *c, const void *bytes, size_t len)
{
    if (c->argc >= RESP_ARGS_MAX)
        abort(); /* our own mistake: callers have limits of their own */
    c->arg[c->argc].bytes = bytes;
    c->arg[c->argc++].len = len;
}

void resp_add(resp_command *c, const char *text)
{
    resp_add_bytes(c, text, strlen(text));
}

static void add_text(resp_command *c, const char *text, int len)
{
    if (c->used + (size_t)len > sizeof c->text)
        abort();
    memcpy(c->text + c->used, text, (size_t)len);
    resp_add_bytes(c, c->text + c->used, (size_t)len);
    c->used += (size_t)len;
}

void resp_add_int(resp_command *c, int64_t n)
{
    char text[24];
    add_text(c, text, snprintf(text, sizeof text, "%" PRId64, n));
}

void resp_add_hash(resp_command *c, uint64_t h)
{
    char text[24];
    add_text(c, text, snprintf(text, sizeof text, "%016" PRIx64, h));
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int wait_for(resp *r, short events, int64_t deadline_ms, short *got, err *e)
{
    struct pollfd p = {.fd = r->fd, .events = events};
    for (;;) {
        int n = poll(&p, 1, clock_left_ms(deadline_ms));
        if (n > 0) {
            *got = p.revents;
            return 0;
        }
        if (n < 0 && errno != EINTR)
            return err_set_errno(e, errno, "redis: poll");
        if (n == 0 && clock_left_ms(deadline_ms) == 0)
            return err_set(e, ERR_TIMEOUT, "redis: no answer in time");
    }
}

/* As much as the system allows, so that a small model is one write; TCP sizes its buffers
 * itself. */
static void tune(int fd, const char *address)
{
    int bytes = SEND_BUFFER_BYTES, one = 1;
    if (strncmp(address, "unix:", 5) == 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    else
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int log_in(resp *r, const char *user, const char *password, int64_t deadline_ms, err *e)
{
    if (!password || !password[0])
        return 0;
    cleanup_free resp_command *c = malloc(sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "redis: no memory");
    resp_begin(c, "AUTH");
    resp_add(c, user && user[0] ? user : "default");
    resp_add(c, password);
    return resp_call(r, c, NULL, deadline_ms, e);
}

resp *resp_adopt(int fd)
{
    resp *r = malloc(sizeof *r);
    if (!r)
        return NULL;
    r->fd = fd;
    r->broken = false;
    r->begin = r->end = r->held = 0;
    return r;
}

int resp_dial(const char *address, const char *user, const char *password, int64_t deadline_ms,
              resp **out, err *e)
{
    resp *r = resp_adopt(-1);
    if (!r)
        return err_set(e, ERR_NOMEM, "redis: no memory for a connection");
    r->fd = address_dial(address, deadline_ms, e);
    int rc = r->fd < 0 ? err_wrap(e, "redis") : 0;
    if (rc == 0) {
        tune(r->fd, address);
        rc = log_in(r, user, password, deadline_ms, e);
    }
    if (rc != 0) {
        resp_close(r);
        return -1;
    }
    *out = r;
    return 0;
}

void resp_close(resp *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

bool resp_broken(const resp *r)
{
    return r->broken;
}

int resp_fd(const resp *r)
{
    return r->fd;
}

/* ---- reading bytes --------------------------------------------------------------------------- */

static int gone(resp *r, err *e)
{
    r->broken = true;
    return err_set(e, ERR_UNAVAILABLE, "redis: the connection was closed");
}

/* Reads what is there into the vectors: > 0 bytes; 0: nothing now; -1. */
static ssize_t read_some(resp *r, struct iovec *v, size_t vectors, err *e)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = vectors};
    for (;;) {
        ssize_t n = recvmsg(r->fd, &m, 0);
        if (n > 0)
            return n;
        if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
            return gone(r, e);
        if (errno != EINTR)
            return 0;
    }
}

static ssize_t read_wait(resp *r, struct iovec *v, size_t vectors, int64_t deadline_ms, err *e)
{
    for (;;) {
        short got;
        ssize_t n = read_some(r, v, vectors, e);
        if (n != 0)
            return n;
        if (wait_for(r, POLLIN, deadline_ms, &got, e)) {
            r->broken = true;
            return -1;
        }
    }
}

/* More into the input buffer, which has room. 1 when something came, 0 not now, -1. */
static int fill(resp *r, err *e)
{
    if (r->begin > 0) {
        memmove(r->in, r->in + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    size_t room = sizeof r->in - r->end;
    if (room == 0)
        return 0;
    struct iovec v = {r->in + r->end, room < READ_AHEAD_BYTES ? room : READ_AHEAD_BYTES};
    ssize_t n = read_some(r, &v, 1, e);
    if (n > 0)
        r->end += (size_t)n;
    return n > 0 ? 1 : (int)n;
}

static int corrupt(resp *r, err *e, const char *what)
{
    r->broken = true;
    return err_set(e, ERR_CORRUPT, "redis: %s", what);
}

/* The next line without its end, NUL-terminated, within the input buffer until the next read. */
static int read_line(resp *r, char **out, int64_t deadline_ms, err *e)
{
    for (;;) {
        char *end = memchr(r->in + r->begin, '\n', r->end - r->begin);
        if (end) {
            char *line = r->in + r->begin;
            r->begin = (size_t)(end + 1 - r->in);
            if (end == line || end[-1] != '\r')
                return corrupt(r, e, "a line without its end");
            end[-1] = '\0';
            *out = line;
            return end - 1 == line ? corrupt(r, e, "an empty line") : 0;
        }
        if (r->end - r->begin >= LINE_BYTES_MAX)
            return corrupt(r, e, "a line without an end");
        int n = fill(r, e);
        short got;
        if (n < 0)
            return -1;
        if (n == 0 && wait_for(r, POLLIN, deadline_ms, &got, e)) {
            r->broken = true;
            return -1;
        }
    }
}

/* What follows the bytes is taken into the input buffer by the same reads. */
static int read_exactly(resp *r, void *to, size_t len, int64_t deadline_ms, err *e)
{
    size_t here = r->end - r->begin < len ? r->end - r->begin : len;
    memcpy(to, r->in + r->begin, here);
    r->begin += here;
    while (here < len) {
        struct iovec v[] = {{(char *)to + here, len - here}, {r->in, READ_AHEAD_BYTES}};
        ssize_t n = read_wait(r, v, 2, deadline_ms, e);
        if (n < 0)
            return -1;
        size_t mine = (size_t)n < len - here ? (size_t)n : len - here;
        r->begin = 0;
        r->end = (size_t)n - mine;
        here += mine;
    }
    return 0;
}

static int read_end(resp *r, int64_t deadline_ms, err *e)
{
    char end[2];
    if (read_exactly(r, end, 2, deadline_ms, e))
        return -1;
    return end[0] == '\r' && end[1] == '\n' ? 0 : corrupt(r, e, "a bulk without its end");
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Writes all vectors. Replies to earlier commands are taken in meanwhile, so that neither side
 * waits for the other for ever. */
static int write_all(resp *r, struct iovec *v, int count, int64_t deadline_ms, err *e)
{
    while (count > 0) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)count};
        ssize_t n = sendmsg(r->fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return gone(r, e);
        if (n < 0 && errno != EINTR) {
            short got, room = r->end - r->begin < sizeof r->in ? POLLIN : 0;
            if (wait_for(r, (short)(POLLOUT | room), deadline_ms, &got, e)) {
                r->broken = true;
                return -1;
            }
            if ((got & POLLIN) && fill(r, e) < 0)
                return -1;
        }
        for (size_t left = n > 0 ? (size_t)n : 0; count > 0 && (left > 0 || v->iov_len == 0);) {
            size_t part = left < v->iov_len ? left : v->iov_len;
            v->iov_base = (char *)v->iov_base + part;
            v->iov_len -= part;
            left -= part;
            if (v->iov_len == 0) {
                v++;
                count--;
            }
        }
    }
    return 0;
}

/* An upper bound of the frame's bytes; `*longs`: how many arguments are sent from where they
 * lie. */
static size_t frame_bound(const resp_command *c, int *longs)
{
    size_t bound = 32;
    *longs = 0;
    for (int i = 0; i < c->argc; i++) {
        bool is_long = c->arg[i].len > SHORT_BYTES;
        *longs += is_long;
        bound += 32 + (is_long ? 0 : c->arg[i].len);
    }
    return bound;
}

/* The arguments, behind what stands in `frame` up to `at`: "$len\r\n" and the argument's end go
 * through `frame`, short arguments too. Returns its end. */
static char *frame_arguments(const resp_command *c, char *frame, char *at, struct iovec *v,
                             int *count)
{
    char *from = frame;
    for (int i = 0; i < c->argc; i++) {
        at += sprintf(at, "$%zu\r\n", c->arg[i].len);
        if (c->arg[i].len <= SHORT_BYTES) {
            memcpy(at, c->arg[i].bytes, c->arg[i].len);
            at += c->arg[i].len;
        } else {
            v[(*count)++] = (struct iovec){from, (size_t)(at - from)};
            v[(*count)++] = (struct iovec){(void *)(uintptr_t)c->arg[i].bytes, c->arg[i].len};
            from = at;
        }
        *at++ = '\r';
        *at++ = '\n';
    }
    v[(*count)++] = (struct iovec){from, (size_t)(at - from)};
    return at;
}

static char *frame_write(const resp_command *c, char *frame, struct iovec *v, int *count)
{
    return frame_arguments(c, frame, frame + sprintf(frame, "*%d\r\n", c->argc), v, count);
}

static int send_held(resp *r, int64_t deadline_ms, err *e)
{
    struct iovec v = {r->out, r->held};
    r->held = 0;
    return v.iov_len > 0 ? write_all(r, &v, 1, deadline_ms, e) : 0;
}

int resp_send(resp *r, const resp_command *c, int64_t deadline_ms, err *e)
{
    int longs, count = 0;
    size_t bound = frame_bound(c, &longs);
    struct iovec v[VECTORS];
    if (2 * longs + 2 > VECTORS)
        return err_set(e, ERR_LIMIT, "redis: too many long arguments");
    cleanup_free char *frame = malloc(bound);
    if (!frame)
        return err_set(e, ERR_NOMEM, "redis: no memory for a command");
    if (r->held > 0)
        v[count++] = (struct iovec){r->out, r->held};
    r->held = 0;
    frame_write(c, frame, v, &count);
    return write_all(r, v, count, deadline_ms, e);
}

int resp_hold(resp *r, const resp_command *c, int64_t deadline_ms, err *e)
{
    struct iovec whole;
    int longs, count = 0;
    if (frame_bound(c, &longs) > sizeof r->out - r->held || longs > 0)
        return resp_send(r, c, deadline_ms, e);
    r->held = (size_t)(frame_write(c, r->out + r->held, &whole, &count) - r->out);
    return 0;
}

int resp_announce(resp *r, const resp_command *c, int argc, size_t len, int64_t deadline_ms, err *e)
{
    struct iovec whole;
    int longs, count = 0;
    size_t bound = frame_bound(c, &longs) + 32;
    if (longs > 0 || bound > sizeof r->out)
        return err_set(e, ERR_LIMIT, "redis: too much before a long argument");
    if (bound > sizeof r->out - r->held && send_held(r, deadline_ms, e))
        return -1;
    char *frame = r->out + r->held;
    char *at = frame_arguments(c, frame, frame + sprintf(frame, "*%d\r\n", argc), &whole, &count);
    at += sprintf(at, "$%zu\r\n", len);
    r->held = (size_t)(at - r->out);
    return 0;
}

int resp_send_rest(resp *r, const void *bytes, size_t len, const resp_command *rest,
                   int64_t deadline_ms, err *e)
{
    char frame[HELD_BYTES] = "\r\n", *end;
    struct iovec v[3];
    int longs, count = 0;
    size_t bound = frame_bound(rest, &longs);
    if (longs > 0 || bound > sizeof frame)
        return err_set(e, ERR_LIMIT, "redis: too much behind a long argument");
    if (len <= SHORT_BYTES && len + bound <= sizeof r->out - r->held) {
        memcpy(r->out + r->held, bytes, len);
        end = r->out + r->held + len;
        memcpy(end, "\r\n", 2);
        r->held = (size_t)(frame_arguments(rest, end, end + 2, v, &count) - r->out);
        return 0;
    }
    if (r->held > 0)
        v[count++] = (struct iovec){r->out, r->held};
    r->held = 0;
    v[count++] = (struct iovec){(void *)(uintptr_t)bytes, len};
    frame_arguments(rest, frame, frame + 2, v, &count);
    return write_all(r, v, count, deadline_ms, e);
}

/* ---- replies -------------------------------------------------------------------------------- */

static int parse_length(resp *r, const char *text, int64_t max, int64_t *out, err *e)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (!*text || *end || errno || isspace((unsigned char)*text))
        return corrupt(r, e, "not a number where one must be");
    if (n > max) {
        r->broken = true;
        return err_set(e, ERR_LIMIT, "redis: a reply of %lld, at most %lld are taken", n,
                       (long long)max);
    }
    *out = n;
    return 0;
}

static int take_text(resp *r, resp_reply *out, const char *text, err *e)
{
    out->len = strlen(text);
    out->bytes = malloc(out->len + 1);
    if (!out->bytes) {
        r->broken = true;
        return err_set(e, ERR_NOMEM, "redis: no memory for a reply");
    }
    memcpy(out->bytes, text, out->len + 1);
    return 0;
}

static int receive_bulk(resp *r, const char *length, resp_reply *out, int64_t deadline_ms, err *e)
{
    int64_t n;
    if (parse_length(r, length, RESP_BULK_BYTES_MAX, &n, e))
        return -1;
    if (n < 0) {
        out->type = RESP_NIL;
        return 0;
    }
    out->len = (size_t)n;
    out->bytes = malloc(out->len + 1);
    if (!out->bytes) {
        r->broken = true;
        return err_set(e, ERR_NOMEM, "redis: no memory for a reply of %zu bytes", out->len);
    }
    out->bytes[out->len] = '\0';
    return read_exactly(r, out->bytes, out->len, deadline_ms, e) || read_end(r, deadline_ms, e) ? -1
                                                                                                : 0;
}

static int receive_at(resp *r, resp_reply *out, int depth, int64_t deadline_ms, err *e);

static int receive_array(resp *r, const char *length, resp_reply *out, int depth,
                         int64_t deadline_ms, err *e)
{
    int64_t n;
    if (parse_length(r, length, RESP_ELEMENTS_MAX, &n, e))
        return -1;
    if (n < 0)
        out->type = RESP_NIL;
    if (n <= 0)
        return 0;
    if (depth >= RESP_DEPTH_MAX)
        return corrupt(r, e, "a reply nested too deeply");
    out->element = calloc((size_t)n, sizeof *out->element);
    if (!out->element) {
        r->broken = true;
        return err_set(e, ERR_NOMEM, "redis: no memory for a reply");
    }
    out->count = (size_t)n;
    for (size_t i = 0; i < out->count; i++)
        if (receive_at(r, &out->element[i], depth + 1, deadline_ms, e))
            return -1;
    return 0;
}

static int receive_at(resp *r, resp_reply *out, int depth, int64_t deadline_ms, err *e)
{
    char *line;
    *out = (resp_reply){.type = RESP_NIL};
    if (read_line(r, &line, deadline_ms, e))
        return -1;
    switch (line[0]) {
    case '+':
        out->type = RESP_STATUS;
        return take_text(r, out, line + 1, e);
    case '-':
        out->type = RESP_ERROR;
        return take_text(r, out, line + 1, e);
    case ':':
        out->type = RESP_INTEGER;
        return parse_length(r, line + 1, INT64_MAX, &out->integer, e);
    case '$':
        out->type = RESP_BULK;
        return receive_bulk(r, line + 1, out, deadline_ms, e);
    case '*':
        out->type = RESP_ARRAY;
        return receive_array(r, line + 1, out, depth, deadline_ms, e);
    default:
        return corrupt(r, e, "a reply of unknown type");
    }
}

int resp_receive(resp *r, resp_reply *out, int64_t deadline_ms, err *e)
{
    *out = (resp_reply){.type = RESP_NIL};
    if (send_held(r, deadline_ms, e) || receive_at(r, out, 0, deadline_ms, e)) {
        resp_reply_free(out);
        return -1;
    }
    return 0;
}

int resp_receive_into(resp *r, void *to, size_t len, int64_t deadline_ms, err *e)
{
    char *line;
    int64_t n;
    if (send_held(r, deadline_ms, e) || read_line(r, &line, deadline_ms, e))
        return -1;
    if (line[0] == '-') {
        resp_reply reply = {.type = RESP_ERROR, .bytes = line + 1, .len = strlen(line + 1)};
        return resp_error(&reply, e);
    }
    if (line[0] != '$')
        return corrupt(r, e, "a reply that is no bulk");
    if (parse_length(r, line + 1, INT64_MAX, &n, e))
        return -1;
    if (n == -1)
        return err_set(e, ERR_NOT_FOUND, "redis: there is no such key");
    if (n < 0 || (uint64_t)n != len)
        return corrupt(r, e, "a bulk of another length than the block's");
    return read_exactly(r, to, len, deadline_ms, e) || read_end(r, deadline_ms, e) ? -1 : 0;
}

int resp_call(resp *r, const resp_command *c, resp_reply *out, int64_t deadline_ms, err *e)
{
    resp_reply reply;
    if (resp_send(r, c, deadline_ms, e) || resp_receive(r, &reply, deadline_ms, e))
        return -1;
    int rc = reply.type == RESP_ERROR ? resp_error(&reply, e) : 0;
    if (rc == 0 && out)
        *out = reply;
    else
        resp_reply_free(&reply);
    return rc;
}

void resp_reply_free(resp_reply *reply)
{
    for (size_t i = 0; i < reply->count; i++)
        resp_reply_free(&reply->element[i]);
    free(reply->element);
    free(reply->bytes);
    *reply = (resp_reply){.type = RESP_NIL};
}

int resp_error(const resp_reply *reply, err *e)
{
    static const struct {
        const char *word;
        err_code code;
    } table[] = {
        {"OOM", ERR_NOMEM},
        {"NOAUTH", ERR_UNAUTHORIZED},
        {"WRONGPASS", ERR_UNAUTHORIZED},
        {"NOPERM", ERR_FORBIDDEN},
        {"LOADING", ERR_UNAVAILABLE},
        {"BUSY", ERR_UNAVAILABLE},
        {"READONLY", ERR_UNAVAILABLE},
        {"MISCONF", ERR_UNAVAILABLE},
        {"MASTERDOWN", ERR_UNAVAILABLE},
        {"WRONGTYPE", ERR_CONFLICT},
        {"EXECABORT", ERR_CONFLICT},
    };
    char word[40];
    size_t n = strcspn(reply->bytes, " ");
    if (strncmp(reply->bytes, "KML-", 4) == 0 && n - 4 < sizeof word) {
        for (size_t i = 4; i < n; i++)
            word[i - 4] = (char)tolower((unsigned char)reply->bytes[i]);
        word[n - 4] = '\0';
        return err_set(e, err_from_name(word), "%s", reply->bytes + n + (reply->bytes[n] == ' '));
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].word) == n && strncmp(reply->bytes, table[i].word, n) == 0)
            return err_set(e, table[i].code, "redis: %s", reply->bytes);
    if (strncmp(reply->bytes, "ERR unknown command", 19) == 0)
        return err_set(e, ERR_UNSUPPORTED, "redis: %s", reply->bytes);
    return err_set(e, ERR_INTERNAL, "redis: %s", reply->bytes);
}
