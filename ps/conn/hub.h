/* hub.h: the connections of kubeml-ps: who has dialled, and what they say.
 *
 * One thread, one poll(2) list. Who has connected is a stranger until its `hello` has been believed
 * (`hub_admit`); a stranger has HUB_HELLO_MS and small frames. While there are HUB_STRANGERS_MAX of
 * them, who else has dialled waits. Nothing here blocks: what a peer does not read is queued, and
 * one that never reads is closed. */
#ifndef KUBEML_PS_HUB_H
#define KUBEML_PS_HUB_H

#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/request.h"
#include "common/net/wire.h"

enum {
    HUB_HELLO_MS = 5000,
    HUB_STRANGERS_MAX = 64,
    HUB_ACCEPT_PAUSE_MS = 250, /* without a descriptor for it a connection waits */
    HUB_CONNECTIONS_MAX = REQUEST_PARALLELISM_MAX + HUB_STRANGERS_MAX + 32,
    HUB_STRANGER_FRAME_BYTES = 16 << 10,
    HUB_MESSAGES_A_TURN = 64, /* of one connection, before the others are looked at */
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

typedef struct hub_ops {
    void (*message)(void *ctx, conn *c, json_t *message); /* borrowed */
    void (*closed)(void *ctx, conn *c, const err *why);   /* not after hub_drop */
} hub_ops;

typedef struct hub hub;

hub *hub_open(const char *address, const hub_ops *ops, void *ctx, err *e); /* NULL on error */
void hub_close(hub *h);                                                    /* NULL is fine */
int hub_address(const hub *h, char out[WIRE_ADDRESS_BYTES], err *e);

void hub_admit(hub *h, conn *c, conn_kind kind);
/* Sends what is queued if the socket takes it, then closes. `closed` is not told. */
void hub_drop(hub *h, conn *c);
/* Tells what a peer that has ended still said, then drops it. For a `message` callback of another
 * connection. */
void hub_hear_out(hub *h, conn *c);
/* Steals `message` (NULL: memory was gone, logged). A failure shows as `closed` later. */
void hub_send(hub *h, conn *c, json_t *message);
/* To every attached controller. Steals. */
void hub_tell(hub *h, json_t *message);
/* The connection of a function, or NULL. */
conn *hub_function(hub *h, int function);
int hub_controllers(const hub *h);

/* Fills the list for poll and tells the next deadline; `out` holds HUB_CONNECTIONS_MAX + 1. */
size_t hub_prepare(hub *h, struct pollfd *out, int64_t *deadline_ms);
void hub_turn(hub *h, const struct pollfd *polled, size_t count);

#endif
