/* resp.h: a client of Redis's protocol (RESP2) on a raw socket, for commands and for bulk transfer.
 *
 * Tensors are written from where they lie (writev) and read to where they belong, without a copy in
 * between; commands may be sent ahead of their replies. After any failure but an error reply the
 * connection is out of step and of no more use (resp_broken): close it and dial again. One
 * connection belongs to one thread. All calls block at most until their deadline
 * (clock_deadline_ms). */
#ifndef KUBEML_RESP_H
#define KUBEML_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    RESP_ARGS_MAX = 800,
    RESP_TEXT_BYTES = 24 * 1024, /* of a command's own numbers */
    RESP_DEPTH_MAX = 4,
    RESP_ELEMENTS_MAX = 1 << 16,
    RESP_BULK_BYTES_MAX = 128 << 20,
};

typedef struct resp resp;

typedef enum resp_type {
    RESP_STATUS,
    RESP_ERROR,
    RESP_INTEGER,
    RESP_BULK,
    RESP_NIL,
    RESP_ARRAY,
} resp_type;

typedef struct resp_reply {
    resp_type type;
    int64_t integer;
    char *bytes; /* status, error, bulk: NUL-terminated */
    size_t len;
    struct resp_reply *element; /* array */
    size_t count;
} resp_reply;

/* A command under construction. Bytes that are added are borrowed until it is sent; numbers are
 * not. */
typedef struct resp_command {
    struct {
        const char *bytes;
        size_t len;
    } arg[RESP_ARGS_MAX];
    int argc;
    size_t used;
    char text[RESP_TEXT_BYTES];
} resp_command;

void resp_begin(resp_command *c, const char *name);
/* no name: what resp_send_rest sends behind the long argument */
void resp_begin_rest(resp_command *c);
void resp_add(resp_command *c, const char *text); /* borrowed */
void resp_add_bytes(resp_command *c, const void *bytes, size_t len);
void resp_add_int(resp_command *c, int64_t n);
void resp_add_hash(resp_command *c, uint64_t h); /* 16 hex digits */

/* Connects to "unix:/path" or "tcp:host:port" and logs in (user "": "default"; password "": not at
 * all). ERR_UNAVAILABLE, ERR_TIMEOUT, ERR_UNAUTHORIZED, ERR_INVALID (the address). */
int resp_dial(const char *address, const char *user, const char *password, int64_t deadline_ms,
              resp **out, err *e);
/* Takes over a connected, non-blocking stream socket. NULL: no memory; the descriptor stays. */
resp *resp_adopt(int fd);
void resp_close(resp *r); /* NULL is fine */
bool resp_broken(const resp *r);
int resp_fd(const resp *r); /* to poll; the connection's own */

int resp_send(resp *r, const resp_command *c, int64_t deadline_ms, err *e);
/* The same, but a small command may wait for the next resp_send or resp_receive and then travel
 * with it: for commands whose replies are taken together. */
int resp_hold(resp *r, const resp_command *c, int64_t deadline_ms, err *e);
/* A command in two parts, for one long argument. resp_announce tells (held like resp_hold) that
 * there will be `argc` arguments: those of `c`, one of `len` bytes, and more; resp_send_rest sends
 * these bytes and the rest. In between nothing may be sent, but replies may be taken. Redis, which
 * then knows the length before the bytes come, reads them to where they stay; it copies an argument
 * that arrives with its length. */
int resp_announce(resp *r, const resp_command *c, int argc, size_t len, int64_t deadline_ms,
                  err *e);
int resp_send_rest(resp *r, const void *bytes, size_t len, const resp_command *rest,
                   int64_t deadline_ms, err *e);
/* One reply, error replies included. Free with resp_reply_free. ERR_CORRUPT, ERR_LIMIT. */
int resp_receive(resp *r, resp_reply *out, int64_t deadline_ms, err *e);
/* One reply that must be a bulk of exactly `len` bytes, read to `to`. An error reply is an error,
 * after which the connection is still in step. */
int resp_receive_into(resp *r, void *to, size_t len, int64_t deadline_ms, err *e);
/* Sends and receives; an error reply is an error (resp_error). `out` may be NULL. */
int resp_call(resp *r, const resp_command *c, resp_reply *out, int64_t deadline_ms, err *e);

void resp_reply_free(resp_reply *reply);
/* What an error reply means: "KML-STALE ..." of the module, and Redis's own. Returns -1. */
int resp_error(const resp_reply *reply, err *e);

#define cleanup_reply __attribute__((cleanup(resp_reply_free)))

#endif
