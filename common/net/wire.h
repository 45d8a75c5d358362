/* wire.h: framed JSON messages between the platform's own processes.
 *
 * A frame is a little-endian u32 length and that many bytes of UTF-8 JSON, always an object with a
 * "type". One connection belongs to one thread. Addresses are "unix:/path" or "tcp:host:port".
 * Reads and writes never block unless the function's comment says so; a frame over the connection's
 * limits, a depth over 32 or text that is not such an object is ERR_CORRUPT, and the connection is
 * of no more use. */
#ifndef KUBEML_WIRE_H
#define KUBEML_WIRE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    WIRE_ABI =
        1, /* of the messages between the platform's programs: those of another are refused */
    WIRE_FRAME_BYTES_MAX = 64 << 20, /* no connection may ask for more */
    WIRE_FRAME_BYTES = 4 << 20,      /* what a connection accepts unless told otherwise */
    WIRE_VALUES_BYTES = 64 << 20,    /* that a message may take when it is read, likewise */
    WIRE_QUEUE_BYTES_MAX = 72 << 20, /* written and not yet taken by the peer */
    WIRE_ADDRESS_BYTES = 160,
    WIRE_DEAD_MS = 5000, /* a TCP peer whose machine acknowledges nothing for so long is gone */
};

typedef struct wire wire;

/* Listens; a Unix socket file is made 0600 (an old one that nobody answers on is replaced). For
 * "tcp:host:0" the kernel picks the port; wire_address tells it. The descriptor is non-blocking and
 * close-on-exec. Returns the descriptor or -1. */
int wire_listen(const char *address, err *e);
/* The address a listening descriptor can be dialled at, for `template` "unix:" or "tcp:". */
int wire_address(int listen_fd, char out[WIRE_ADDRESS_BYTES], err *e);
/* Takes one waiting connection; NULL with e->code ERR_NONE when none waits. */
wire *wire_accept(int listen_fd, err *e);
/* Connects. Blocks until connected or the deadline (clock_deadline_ms). ERR_UNAVAILABLE when nobody
 * listens, ERR_TIMEOUT. NULL on error. */
wire *wire_dial(const char *address, int64_t deadline_ms, err *e);
/* Begins to connect, and waits for nothing. NULL on error: wire_dial's. */
wire *wire_dial_begin(const char *address, err *e);
/* How that goes: 1 connected, 0 not yet (poll for POLLOUT), -1 with wire_dial's errors. */
int wire_dialled(const wire *w, err *e);
/* Takes over a connected stream socket. NULL and the descriptor closed when memory is gone. */
wire *wire_adopt(int fd, err *e);
void wire_close(wire *w); /* NULL is fine */

int wire_fd(const wire *w);
/* A peer whose machine is gone is noticed dead_ms (2 s or more, whole seconds) after it was last
 * heard, or a moment later; nothing on Unix sockets. */
void wire_watch_peer(wire *w, int dead_ms);
/* The same for the socket of somebody else's connection. */
void wire_watch_socket(int fd, int dead_ms);
void wire_set_limit(wire *w, size_t frame_bytes_max); /* at most WIRE_FRAME_BYTES_MAX */
void wire_set_values_limit(wire *w, size_t values_bytes_max);
bool wire_wants_write(const wire *w);                 /* poll for POLLOUT too */

/* Queues a message and writes what the socket takes now. Borrows `message`. ERR_LIMIT when the peer
 * does not read and the queue is full, ERR_UNAVAILABLE when the peer is gone. */
int wire_send(wire *w, const json_t *message, err *e);
/* wire_send with json_pack's format; steals "o" arguments as json_pack does. */
int wire_sendf(wire *w, err *e, const char *pack_format, ...);
int wire_flush(wire *w, err *e); /* after POLLOUT */
/* After POLLIN: reads what is there. Returns 1 with a new reference in *out, 0 when no whole
 * message is there yet, -1 on error (ERR_UNAVAILABLE "closed by the peer" at end of stream). Call
 * until 0. */
int wire_receive(wire *w, json_t **out, err *e);

/* For callers with nothing else to do: block until sent or received, or the deadline. */
int wire_send_wait(wire *w, const json_t *message, int64_t deadline_ms, err *e);
int wire_receive_wait(wire *w, json_t **out, int64_t deadline_ms, err *e);

/* The message's "type", "" where it has none; never NULL. */
const char *wire_type(const json_t *message);

#endif
