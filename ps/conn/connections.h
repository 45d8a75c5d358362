/* connections.h: the connections of kubeml-ps: who has dialled, and what they say.
 *
 * One thread, one poll(2) list. Who has connected is a stranger until its `hello` has been believed
 * (`connections_admit`); a stranger has CONNECTIONS_HELLO_MS and small frames. While there are
 * CONNECTIONS_STRANGERS_MAX of them, who else has dialled waits. Nothing here blocks: what a peer
 * does not read is queued, and one that never reads is closed. */
#ifndef KUBEML_PS_CONNECTIONS_H
#define KUBEML_PS_CONNECTIONS_H

#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/request.h"
#include "common/net/wire.h"

enum {
    CONNECTIONS_HELLO_MS = 5000,
    CONNECTIONS_STRANGERS_MAX = 64,
    CONNECTIONS_ACCEPT_PAUSE_MS = 250, /* without a descriptor for it a connection waits */
    CONNECTIONS_MAX = REQUEST_PARALLELISM_MAX + CONNECTIONS_STRANGERS_MAX + 32,
    CONNECTIONS_STRANGER_FRAME_BYTES = 16 << 10,
    CONNECTIONS_MESSAGES_A_TURN = 64, /* of one connection, before the others are looked at */
};

typedef enum conn_kind { CONN_STRANGER, CONN_CONTROLLER, CONN_FUNCTION } conn_kind;

typedef struct conn {
    conn_kind kind;
    int function, incarnation; /* of CONN_FUNCTION */
    bool attached;             /* CONN_CONTROLLER: it hears what happens */
    /* the hub's own */
    wire *wire;
    bool more; /* it may hold messages that have been read: poll knows of none */
    int64_t hello_deadline_ms;
    bool mute;  /* sending failed; what it has sent may still be read */
    bool gone;  /* closed at the turn's end */
    bool heard; /* `closed` is to be told */
} conn;

typedef struct connections_ops {
    void (*message)(void *ctx, conn *c, json_t *message); /* borrowed */
    void (*closed)(void *ctx, conn *c, const err *why);   /* not after connections_drop */
} connections_ops;

typedef struct connections connections;

connections *connections_open(const char *address, const connections_ops *ops, void *ctx,
                              err *e);  /* NULL on error */
void connections_close(connections *h); /* NULL is fine */
int connections_address(const connections *h, char out[WIRE_ADDRESS_BYTES], err *e);

void connections_admit(connections *h, conn *c, conn_kind kind);
/* Sends what is queued if the socket takes it, then closes. `closed` is not told. */
void connections_drop(connections *h, conn *c);
/* Tells what a peer that has ended still said, then drops it. For a `message` callback of another
 * connection. */
void connections_hear_out(connections *h, conn *c);
/* Steals `message` (NULL: memory was gone, logged). A failure shows as `closed` later. */
void connections_send(connections *h, conn *c, json_t *message);
/* To every attached controller. Steals. */
void connections_tell(connections *h, json_t *message);
/* The connection of a function, or NULL. */
conn *connections_function(connections *h, int function);
int connections_controllers(const connections *h);

/* Fills the list for poll and tells the next deadline; `out` holds CONNECTIONS_MAX + 1. */
size_t connections_prepare(connections *h, struct pollfd *out, int64_t *deadline_ms);
void connections_turn(connections *h, const struct pollfd *polled, size_t count);

#endif
