/* connections.c: see connections.h. */
#include "connections.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

struct connections {
    int listen_fd;
    int64_t accept_ms; /* not before then: there was no descriptor for the last one */
    char unix_path[WIRE_ADDRESS_BYTES]; /* "" for TCP */
    const connections_ops *ops;
    void *ctx;
    conn *conns[CONNECTIONS_MAX];
    size_t count;
};

connections *connections_open(const char *address, const connections_ops *ops, void *ctx, err *e)
{
    connections *h = calloc(1, sizeof *h);
    if (!h) {
        err_set(e, ERR_NOMEM, "no memory for the connections");
        return NULL;
    }
    h->ops = ops;
    h->ctx = ctx;
    h->listen_fd = wire_listen(address, e);
    if (h->listen_fd < 0) {
        free(h);
        return NULL;
    }
    if (strncmp(address, "unix:", 5) == 0 && strlen(address) < sizeof h->unix_path + 5)
        strcpy(h->unix_path, address + 5);
    return h;
}

void connections_close(connections *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->count; i++) {
        wire_close(h->conns[i]->wire);
        free(h->conns[i]);
    }
    close(h->listen_fd);
    if (h->unix_path[0])
        unlink(h->unix_path);
    free(h);
}

int connections_address(const connections *h, char out[WIRE_ADDRESS_BYTES], err *e)
{
    return wire_address(h->listen_fd, out, e);
}

void connections_admit(connections *h, conn *c, conn_kind kind)
{
    (void)h;
    c->kind = kind;
    c->hello_deadline_ms = INT64_MAX;
    wire_set_limit(c->wire, WIRE_FRAME_BYTES);
}

void connections_drop(connections *h, conn *c)
{
    (void)h;
    c->gone = true;
    c->heard = true;
}

static void lose(connections *h, conn *c, const err *why)
{
    if (c->gone)
        return;
    c->gone = true;
    if (!c->heard)
        h->ops->closed(h->ctx, c, why);
    c->heard = true;
}

void connections_send(connections *h, conn *c, json_t *message)
{
    err e = ERR_INIT;
    (void)h;
    if (!message) {
        log_error("no memory for a message");
        return;
    }
    if (!c->mute && !c->gone && wire_send(c->wire, message, &e)) {
        /* What it said before it went is still to be read; end of stream ends it then. */
        log_debug("send %s: %s", wire_type(message), e.message);
        c->mute = true;
        if (e.code == ERR_LIMIT)
            shutdown(wire_fd(c->wire), SHUT_RDWR);
    }
    json_decref(message);
}

void connections_tell(connections *h, json_t *message)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->conns[i]->kind == CONN_CONTROLLER && h->conns[i]->attached && !h->conns[i]->gone)
            connections_send(h, h->conns[i], json_incref(message));
    json_decref(message);
}

conn *connections_function(connections *h, int function)
{
    for (size_t i = 0; i < h->count; i++)
        if (h->conns[i]->kind == CONN_FUNCTION && h->conns[i]->function == function &&
            !h->conns[i]->gone)
            return h->conns[i];
    return NULL;
}

int connections_controllers(const connections *h)
{
    int n = 0;
    for (size_t i = 0; i < h->count; i++)
        n += h->conns[i]->kind == CONN_CONTROLLER && !h->conns[i]->gone;
    return n;
}

static size_t strangers(const connections *h)
{
    size_t n = 0;
    for (size_t i = 0; i < h->count; i++)
        n += h->conns[i]->kind == CONN_STRANGER;
    return n;
}

/* The rest wait where they have dialled: it is their turn when these have said who they are, or
 * have had their time. */
static bool has_room(const connections *h)
{
    return h->count < CONNECTIONS_MAX && strangers(h) < CONNECTIONS_STRANGERS_MAX;
}

size_t connections_prepare(connections *h, struct pollfd *out, int64_t *deadline_ms)
{
    int64_t now_ms = clock_monotonic_ms();
    bool takes = has_room(h) && now_ms >= h->accept_ms;
    out[0] = (struct pollfd){.fd = h->listen_fd, .events = takes ? POLLIN : 0};
    if (h->accept_ms > now_ms && h->accept_ms < *deadline_ms)
        *deadline_ms = h->accept_ms;
    for (size_t i = 0; i < h->count; i++) {
        const conn *c = h->conns[i];
        short events = (short)(POLLIN | (wire_wants_write(c->wire) && !c->mute ? POLLOUT : 0));
        out[i + 1] = (struct pollfd){.fd = wire_fd(c->wire), .events = events};
        int64_t due_ms = c->more ? now_ms : c->hello_deadline_ms;
        if (due_ms < *deadline_ms)
            *deadline_ms = due_ms;
    }
    return h->count + 1;
}

static void accept_all(connections *h)
{
    while (has_room(h)) {
        err e = ERR_INIT;
        wire *w = wire_accept(h->listen_fd, &e);
        if (!w) {
            if (e.code) {
                log_warn("%s", e.message);
                h->accept_ms = clock_deadline_ms(CONNECTIONS_ACCEPT_PAUSE_MS);
            }
            return;
        }
        conn *c = calloc(1, sizeof *c);
        if (!c) {
            log_warn("no memory for a connection: closed one");
            wire_close(w);
            continue;
        }
        wire_set_limit(w, CONNECTIONS_STRANGER_FRAME_BYTES);
        c->wire = w;
        c->function = c->incarnation = -1;
        c->hello_deadline_ms = clock_deadline_ms(CONNECTIONS_HELLO_MS);
        h->conns[h->count++] = c;
    }
}

/* 1: a message was told, 0: none is there, -1 with `e`: the stream has ended. */
static int receive(connections *h, conn *c, err *e)
{
    json_t *message = NULL;
    int got = wire_receive(c->wire, &message, e);
    if (got > 0)
        h->ops->message(h->ctx, c, message);
    json_decref(message);
    return got;
}

static void receive_turn(connections *h, conn *c)
{
    c->more = false;
    for (int i = 0; i < CONNECTIONS_MESSAGES_A_TURN && !c->gone; i++) {
        err e = ERR_INIT;
        int got = receive(h, c, &e);
        if (got < 0)
            lose(h, c, &e);
        if (got <= 0)
            return;
    }
    c->more = !c->gone;
}

void connections_hear_out(connections *h, conn *c)
{
    err e = ERR_INIT;
    /* One that is lost, but talks on somewhere, keeps nobody here. */
    for (int i = 0; i < CONNECTIONS_MESSAGES_A_TURN && !c->gone; i++)
        if (receive(h, c, &e) <= 0)
            break;
    connections_drop(h, c);
}

static void reap(connections *h)
{
    size_t kept = 0;
    for (size_t i = 0; i < h->count; i++) {
        conn *c = h->conns[i];
        if (!c->gone) {
            h->conns[kept++] = c;
            continue;
        }
        wire_close(c->wire);
        free(c);
    }
    h->count = kept;
}

void connections_turn(connections *h, const struct pollfd *polled, size_t count)
{
    size_t before = h->count;
    for (size_t i = 0; i < before && i + 1 < count; i++) {
        conn *c = h->conns[i];
        short ready = polled[i + 1].revents;
        err e = ERR_INIT;
        if (ready & POLLOUT && wire_flush(c->wire, &e))
            c->mute = true;
        if (c->more || ready & (POLLIN | POLLHUP | POLLERR))
            receive_turn(h, c);
        if (c->kind == CONN_STRANGER && clock_monotonic_ms() >= c->hello_deadline_ms) {
            err_set(&e, ERR_TIMEOUT, "no hello within %d ms", CONNECTIONS_HELLO_MS);
            lose(h, c, &e);
        }
    }
    if (count && polled[0].revents)
        accept_all(h);
    reap(h);
}
