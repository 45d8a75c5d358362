/* wire.c: see wire.h. */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"

enum {
    HEADER_BYTES = 4,
    READ_BYTES = 64 << 10,
    KEPT_BYTES = 1 << 20, /* capacity that an empty buffer keeps at most */
    DEPTH_MAX = 32,
    BACKLOG = 128
};

struct wire {
    int fd;
    size_t frame_bytes_max, values_bytes_max;
    buf in, out;
    size_t sent; /* of out */
};

/* ---- addresses ------------------------------------------------------------------------------ */

static int stream_socket(int family, err *e)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        err_set_errno(e, errno, "socket");
    return fd;
}

/* Whether a process listens there. A full backlog counts: its process is busy or stopped. */
static bool somebody_answers(const struct sockaddr_un *at)
{
    cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd >= 0 &&
           (connect(fd, (const struct sockaddr *)at, sizeof *at) == 0 || errno == EAGAIN);
}

static int listen_unix(const char *path, err *e)
{
    struct sockaddr_un at;
    if (address_unix(path, &at, e))
        return -1;
    if (access(path, F_OK) == 0) {
        if (somebody_answers(&at))
            return err_set(e, ERR_EXISTS, "%s is in use", path);
        unlink(path);
    }
    cleanup_close int fd = stream_socket(AF_UNIX, e);
    if (fd < 0)
        return -1;
    /* fchmod before bind, so that the file never has wider permissions. */
    if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, BACKLOG))
        return err_set_errno(e, errno, "%s", path);
    if (chmod(path, 0600))
        return err_set_errno(e, errno, "%s", path);
    return steal_fd(fd);
}

static int listen_tcp(const char *text, err *e)
{
    struct addrinfo *at = NULL;
    if (address_tcp(text, true, &at, e))
        return -1;
    cleanup_close int fd = stream_socket(at->ai_family, e);
    int one = 1;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    int status = fd < 0 ? -1 : bind(fd, at->ai_addr, at->ai_addrlen);
    freeaddrinfo(at);
    if (fd < 0)
        return -1;
    if (status || listen(fd, BACKLOG))
        return err_set_errno(e, errno, "%s", text);
    return steal_fd(fd);
}

int wire_listen(const char *address, err *e)
{
    if (strncmp(address, "unix:", 5) == 0)
        return listen_unix(address + 5, e);
    if (strncmp(address, "tcp:", 4) == 0)
        return listen_tcp(address + 4, e);
    return err_set(e, ERR_INVALID, "an address begins with unix: or tcp:, not %s", address);
}

int wire_address(int listen_fd, char out[WIRE_ADDRESS_BYTES], err *e)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (getsockname(listen_fd, (struct sockaddr *)&at, &len))
        return err_set_errno(e, errno, "getsockname");
    if (at.ss_family == AF_UNIX) {
        snprintf(out, WIRE_ADDRESS_BYTES, "unix:%s", ((struct sockaddr_un *)&at)->sun_path);
        return 0;
    }
    char host[64], port[16];
    int status = getnameinfo((struct sockaddr *)&at, len, host, sizeof host, port, sizeof port,
                             NI_NUMERICHOST | NI_NUMERICSERV);
    if (status)
        return err_set(e, ERR_IO, "%s", gai_strerror(status));
    snprintf(out, WIRE_ADDRESS_BYTES, at.ss_family == AF_INET6 ? "tcp:[%s]:%s" : "tcp:%s:%s", host,
             port);
    return 0;
}

/* ---- connections ---------------------------------------------------------------------------- */

/* Sets probes and time-outs of TCP. A machine that has lost its power closes no connection: only
 * probes and unacknowledged bytes show its loss. Unix sockets refuse these options, which is fine.
 */
static void set_tcp(int fd)
{
    int one = 1, idle_s = 2, between_s = 1;
    unsigned dead_ms = WIRE_DEAD_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

wire *wire_adopt(int fd, err *e)
{
    wire *w = calloc(1, sizeof *w);
    if (!w) {
        close(fd);
        err_set(e, ERR_NOMEM, "no memory for a connection");
        return NULL;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    set_tcp(fd);
    w->fd = fd;
    w->frame_bytes_max = WIRE_FRAME_BYTES;
    w->values_bytes_max = WIRE_VALUES_BYTES;
    buf_init(&w->in, WIRE_FRAME_BYTES_MAX + HEADER_BYTES + READ_BYTES);
    buf_init(&w->out, WIRE_QUEUE_BYTES_MAX);
    return w;
}

void wire_watch_socket(int fd, int dead_ms)
{
    int on = 1, second = 1, probes = dead_ms / 1000 > 3 ? dead_ms / 1000 - 1 : 2;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof second);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    /* for the time while sent bytes are not acknowledged */
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
}

void wire_watch_peer(wire *w, int dead_ms)
{
    wire_watch_socket(w->fd, dead_ms);
}

wire *wire_accept(int listen_fd, err *e)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        return wire_adopt(fd, e);
    if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
        err_set_errno(e, errno, "accept");
    return NULL;
}

static int wait_for(int fd, short events, int64_t deadline_ms, err *e)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int ready = poll(&p, 1, clock_left_ms(deadline_ms));
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return err_set_errno(e, errno, "poll");
        if (clock_monotonic_ms() >= deadline_ms)
            return err_set(e, ERR_TIMEOUT, "no answer by the deadline");
    }
}

wire *wire_dial(const char *address, int64_t deadline_ms, err *e)
{
    int fd = address_dial(address, deadline_ms, e);
    if (fd < 0) {
        err_wrap(e, "%s", address);
        return NULL;
    }
    return wire_adopt(fd, e);
}

wire *wire_dial_begin(const char *address, err *e)
{
    int fd = address_dial_begin(address, e);
    return fd < 0 ? NULL : wire_adopt(fd, e);
}

int wire_dialled(const wire *w, err *e)
{
    return address_dialled(w->fd, e);
}

void wire_close(wire *w)
{
    if (!w)
        return;
    close(w->fd);
    buf_free(&w->in);
    buf_free(&w->out);
    free(w);
}

int wire_fd(const wire *w)
{
    return w->fd;
}

void wire_set_limit(wire *w, size_t frame_bytes_max)
{
    w->frame_bytes_max =
        frame_bytes_max < WIRE_FRAME_BYTES_MAX ? frame_bytes_max : WIRE_FRAME_BYTES_MAX;
}

void wire_set_values_limit(wire *w, size_t values_bytes_max)
{
    w->values_bytes_max = values_bytes_max;
}

/* Frees an empty buffer that has grown large: a connection lives long, and few of its messages are
 * large. */
static void let_go(buf *b)
{
    size_t max = b->max;
    if (b->len || b->cap <= KEPT_BYTES)
        return;
    buf_free(b);
    buf_init(b, max);
}

/* ---- sending -------------------------------------------------------------------------------- */

bool wire_wants_write(const wire *w)
{
    return w->sent < w->out.len;
}

int wire_flush(wire *w, err *e)
{
    while (w->sent < w->out.len) {
        ssize_t n = send(w->fd, w->out.bytes + w->sent, w->out.len - w->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0)
            return err_set_errno(e, errno, "send");
        w->sent += (size_t)n;
    }
    buf_reset(&w->out);
    let_go(&w->out);
    w->sent = 0;
    return 0;
}

static int append_chunk(const char *bytes, size_t len, void *to)
{
    return buf_append(to, bytes, len, NULL);
}

int wire_send(wire *w, const json_t *message, err *e)
{
    if (w->sent) {
        buf_consume(&w->out, w->sent);
        w->sent = 0;
    }
    size_t start = w->out.len;
    const unsigned char header[HEADER_BYTES] = {0};
    if (buf_append(&w->out, header, sizeof header, e))
        return err_wrap(e, "the peer does not read");
    if (json_dump_callback(message, append_chunk, &w->out, JSON_COMPACT)) {
        w->out.len = start;
        return err_set(e, ERR_LIMIT, "the message does not fit into the queue of %d bytes",
                       WIRE_QUEUE_BYTES_MAX);
    }
    size_t len = w->out.len - start - HEADER_BYTES;
    if (len > WIRE_FRAME_BYTES_MAX) {
        w->out.len = start;
        return err_set(e, ERR_LIMIT, "a message of %zu bytes is over the limit of %d", len,
                       WIRE_FRAME_BYTES_MAX);
    }
    for (size_t i = 0; i < HEADER_BYTES; i++)
        w->out.bytes[start + i] = (char)(len >> (8 * i) & 0xff);
    return wire_flush(w, e);
}

int wire_sendf(wire *w, err *e, const char *pack_format, ...)
{
    va_list args;
    va_start(args, pack_format);
    json_error_t problem;
    json_t *message = json_vpack_ex(&problem, 0, pack_format, args);
    va_end(args);
    if (!message)
        return err_set(e, ERR_INTERNAL, "cannot build a message: %s", problem.text);
    int status = wire_send(w, message, e);
    json_decref(message);
    return status;
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* Takes a message from the buffer: 1, 0 when no message is whole, -1. */
static int take_frame(wire *w, json_t **out, err *e)
{
    if (w->in.len < HEADER_BYTES)
        return 0;
    size_t len = 0;
    for (size_t i = 0; i < HEADER_BYTES; i++)
        len |= (size_t)(unsigned char)w->in.bytes[i] << (8 * i);
    if (len > w->frame_bytes_max)
        return err_set(e, ERR_CORRUPT, "a frame of %zu bytes is over the limit of %zu", len,
                       w->frame_bytes_max);
    if (w->in.len < HEADER_BYTES + len)
        return 0;
    const char *text = w->in.bytes + HEADER_BYTES;
    err why = ERR_INIT;
    if (json_check(text, len, DEPTH_MAX, w->values_bytes_max, &why))
        return err_set(e, ERR_CORRUPT, "not a message: %s", why.message);
    json_error_t problem;
    json_t *message = json_loadb(text, len, JSON_REJECT_DUPLICATES, &problem);
    if (!message || !json_is_string(json_object_get(message, "type"))) {
        json_decref(message);
        return err_set(e, ERR_CORRUPT, "not a message: %s", message ? "no type" : problem.text);
    }
    buf_consume(&w->in, HEADER_BYTES + len);
    let_go(&w->in);
    *out = message;
    return 1;
}

int wire_receive(wire *w, json_t **out, err *e)
{
    for (;;) {
        int taken = take_frame(w, out, e);
        if (taken)
            return taken;
        if (buf_reserve(&w->in, READ_BYTES, e))
            return -1;
        ssize_t n = recv(w->fd, w->in.bytes + w->in.len, READ_BYTES, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0)
            return err_set_errno(e, errno, "recv");
        if (n == 0)
            return err_set(e, ERR_UNAVAILABLE, "closed by the peer");
        w->in.len += (size_t)n;
    }
}

int wire_send_wait(wire *w, const json_t *message, int64_t deadline_ms, err *e)
{
    if (wire_send(w, message, e))
        return -1;
    while (wire_wants_write(w))
        if (wait_for(w->fd, POLLOUT, deadline_ms, e) || wire_flush(w, e))
            return -1;
    return 0;
}

int wire_receive_wait(wire *w, json_t **out, int64_t deadline_ms, err *e)
{
    for (;;) {
        int taken = wire_receive(w, out, e);
        if (taken)
            return taken < 0 ? -1 : 0;
        if (wait_for(w->fd, POLLIN, deadline_ms, e))
            return -1;
    }
}

const char *wire_type(const json_t *message)
{
    const char *type = json_string_value(json_object_get(message, "type"));
    return type ? type : "";
}
