/* warm.c: see warm.h. */
#include "warm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/net/tokens.h"
#include "function-runtime/base/function_gpu.h"

typedef struct connection {
    wire *wire; /* NULL: free */
    bool welcome;
    int64_t hello_deadline_ms;
} connection;

typedef struct warm {
    int listen_fd;
    const char *token;
    json_t *gpu; /* the field `gpu` of welcome; NULL: none */
    connection connections[WARM_CONNECTIONS_MAX];
} warm;

int warm_token(char out[WARM_TOKEN_BYTES], err *e)
{
    const char *path = getenv("KUBEML_POOL_TOKEN_FILE");
    if (!path || !*path)
        return err_set(e, ERR_NOT_FOUND, "KUBEML_POOL_TOKEN_FILE is not set");
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "%s", path);
    ssize_t len = read(fd, out, WARM_TOKEN_BYTES - 1);
    if (len < 0)
        return err_set_errno(e, errno, "%s", path);
    out[len] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    return out[0] ? 0 : err_set(e, ERR_INVALID, "%s holds no token", path);
}

static void drop(connection *c, const char *why)
{
    if (why)
        log_warn("control connection closed: %s", why);
    wire_close(c->wire);
    c->wire = NULL;
    c->welcome = false;
}

static void accept_one(warm *w)
{
    err e = ERR_INIT;
    wire *got = wire_accept(w->listen_fd, &e);
    if (!got) {
        if (e.code != ERR_NONE)
            log_warn("accept: %s", e.message);
        return;
    }
    for (int i = 0; i < WARM_CONNECTIONS_MAX; i++)
        if (!w->connections[i].wire) {
            w->connections[i] = (connection){got, false, clock_deadline_ms(WARM_HELLO_MS)};
            return;
        }
    log_warn("control connection closed: there are %d already", WARM_CONNECTIONS_MAX);
    wire_close(got);
}

/* Takes a message. 1: it is an order; 0: it was answered, or has ended the connection. */
static int answer(warm *w, connection *c, const json_t *m)
{
    err e = ERR_INIT;
    const char *type = wire_type(m);
    if (c->welcome && (strcmp(type, "specialise") == 0 || strcmp(type, "serve") == 0))
        return 1;
    if (c->welcome && strcmp(type, "known") == 0) {
        const char *known = json_string_value(json_object_get(m, "algorithms"));
        function_gpu_preload(known ? known : "");
        return 0;
    }
    const char *token = json_string_value(json_object_get(m, "token"));
    if (c->welcome || strcmp(type, "hello") != 0) {
        drop(c, c->welcome ? "an unknown order" : "no hello");
    } else if (!token || !tokens_same(token, w->token)) {
        drop(c, "a wrong token");
    } else if (wire_sendf(c->wire, &e, "{s:s,s:s,s:i,s:I,s:O*}", "type", "welcome", "role",
                          "function", "abi", WIRE_ABI, "pid", (json_int_t)getpid(), "gpu",
                          w->gpu) != 0) {
        drop(c, e.message);
    } else {
        c->welcome = true;
        wire_set_limit(c->wire, WIRE_FRAME_BYTES_MAX); /* an order may hold the function's object */
    }
    return 0;
}

/* Takes all messages of a connection; 1: *order is the order. */
static int serve_connection(warm *w, connection *c, json_t **order)
{
    while (c->wire) {
        json_t *m = NULL;
        err e = ERR_INIT;
        int rc = wire_receive(c->wire, &m, &e);
        if (rc < 0)
            drop(c, c->welcome && e.code == ERR_UNAVAILABLE ? NULL : e.message);
        if (rc <= 0)
            return 0;
        if (answer(w, c, m) == 1) {
            *order = m;
            return 1;
        }
        json_decref(m);
    }
    return 0;
}

static int wait_turn(warm *w, wire **from, json_t **order, err *e)
{
    struct pollfd p[WARM_CONNECTIONS_MAX + 1] = {{w->listen_fd, POLLIN, 0}};
    int64_t next_ms = INT64_MAX;
    for (int i = 0; i < WARM_CONNECTIONS_MAX; i++) {
        connection *c = &w->connections[i];
        p[i + 1] = (struct pollfd){c->wire ? wire_fd(c->wire) : -1, POLLIN, 0};
        if (c->wire && wire_wants_write(c->wire))
            p[i + 1].events |= POLLOUT;
        if (c->wire && !c->welcome && c->hello_deadline_ms < next_ms)
            next_ms = c->hello_deadline_ms;
    }
    if (poll(p, WARM_CONNECTIONS_MAX + 1, next_ms == INT64_MAX ? -1 : clock_left_ms(next_ms)) < 0)
        return errno == EINTR ? 0 : err_set_errno(e, errno, "poll");
    if (p[0].revents)
        accept_one(w);
    for (int i = 0; i < WARM_CONNECTIONS_MAX; i++) {
        connection *c = &w->connections[i];
        if (!c->wire || p[i + 1].fd < 0)
            continue;
        if (p[i + 1].revents & POLLOUT && wire_flush(c->wire, NULL) != 0)
            drop(c, "it does not read");
        if (c->wire && p[i + 1].revents && serve_connection(w, c, order) == 1) {
            *from = c->wire;
            c->wire = NULL;
            return 1;
        }
        if (c->wire && !c->welcome && clock_left_ms(c->hello_deadline_ms) == 0)
            drop(c, "no hello in time");
    }
    return 0;
}

int warm_wait(int listen_fd, const char *token, json_t *gpu, wire **from, json_t **order, err *e)
{
    warm w = {.listen_fd = listen_fd, .token = token, .gpu = gpu};
    int rc;
    while ((rc = wait_turn(&w, from, order, e)) == 0)
        ;
    for (int i = 0; i < WARM_CONNECTIONS_MAX; i++)
        if (w.connections[i].wire)
            drop(&w.connections[i], NULL);
    close(listen_fd);
    return rc < 0 ? -1 : 0;
}
