/* connections.h: the connections of kubeml-ps, and the messages on them.
 *
 * One thread, one poll(2) list. A peer is a stranger until its `hello` has been accepted
 * (`connections_admit`). A stranger has CONNECTIONS_HELLO_MS and small frames. While there are
 * CONNECTIONS_STRANGERS_MAX strangers, other peers wait. Nothing here blocks: messages that a peer
 * does not read are queued, and a peer that never reads is closed. */
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
    CONNECTIONS_ACCEPT_PAUSE_MS = 250, /* after a connection for which there was no descriptor */
    CONNECTIONS_MAX = REQUEST_PARALLELISM_MAX + CONNECTIONS_STRANGERS_MAX + 32,
    CONNECTIONS_STRANGER_FRAME_BYTES = 16 << 10,
    CONNECTIONS_MESSAGES_A_TURN = 64, /* of one connection, before the others are looked at */
};

typedef enum conn_kind { CONN_STRANGER, CONN_CONTROLLER, CONN_FUNCTION } conn_kind;

typedef struct conn {
    conn_kind kind;
    int function, incarnation; /* of CONN_FUNCTION */
    bool attached;             /* CONN_CONTROLLER: it gets the job's reports */
    /* of connections.c alone */
    wire *wire;
    bool more; /* messages may be in its buffer, of which poll does not know */
    int64_t hello_deadline_ms;
    bool mute;  /* sending failed; what it has sent may still be read */
    bool gone;  /* closed at the turn's end */
    bool heard; /* `closed` was called, or is not to be */
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
/* Sends what is queued if the socket takes it, then closes. `closed` is not called. */
void connections_drop(connections *h, conn *c);
/* Hands on the last messages of a peer that has ended, then drops the peer. For a `message`
 * callback of another connection. */
void connections_hear_out(connections *h, conn *c);
/* Steals `message` (NULL: there was no memory; logged). A failure shows as `closed` later. */
void connections_send(connections *h, conn *c, json_t *message);
/* To every attached controller. Steals. */
void connections_tell(connections *h, json_t *message);
/* The connection of a function, or NULL. */
conn *connections_function(connections *h, int function);
int connections_controllers(const connections *h);

/* Fills `out` (CONNECTIONS_MAX + 1) for poll and returns how many it has filled. Lowers
 * *deadline_ms to the next deadline here. */
size_t connections_prepare(connections *h, struct pollfd *out, int64_t *deadline_ms);
/* Handles what poll has found. */
void connections_turn(connections *h, const struct pollfd *polled, size_t count);

#endif
