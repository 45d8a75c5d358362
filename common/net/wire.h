/* wire.h: framed JSON messages between the platform's own processes.
 *
 * A frame is a little-endian u32 length and that many bytes of UTF-8 JSON, always an object with a
 * "type". One connection belongs to one thread. Addresses are "unix:/path" or "tcp:host:port".
 * Reads and writes never block unless the function's comment says so. A frame over the connection's
 * limits, a depth over 32 or text that is not such an object is ERR_CORRUPT; the caller then closes
 * the connection. */
#ifndef KUBEML_WIRE_H
#define KUBEML_WIRE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    WIRE_ABI = 1, /* version of the messages between the programs: a program of another version is
                   * refused */
    WIRE_FRAME_BYTES_MAX = 64 << 20, /* limit of a sent frame, and the highest for received ones */
    WIRE_FRAME_BYTES = 4 << 20,      /* default limit of a received frame */
    WIRE_VALUES_BYTES = 64 << 20,    /* default limit of memory for a received message's values */
    WIRE_QUEUE_BYTES_MAX = 72 << 20, /* written and not yet taken by the peer */
    WIRE_ADDRESS_BYTES = 160,
    WIRE_DEAD_MS = 5000, /* a TCP peer whose machine acknowledges nothing for so long is gone */
};

typedef struct wire wire;

/* Listens. A Unix socket's file has mode 0600; a file on which nobody listens is replaced. For
 * "tcp:host:0" the kernel picks the port; wire_address gives it. Returns the descriptor,
 * non-blocking and close-on-exec, or -1. */
int wire_listen(const char *address, err *e);
/* Writes the address at which a listening descriptor can be dialled. */
int wire_address(int listen_fd, char out[WIRE_ADDRESS_BYTES], err *e);
/* Accepts one connection; NULL with e->code ERR_NONE when no connection waits. */
wire *wire_accept(int listen_fd, err *e);
/* Connects. Blocks until connected or the deadline (clock_deadline_ms). NULL on error:
 * ERR_UNAVAILABLE when nobody listens, ERR_TIMEOUT. */
wire *wire_dial(const char *address, int64_t deadline_ms, err *e);
/* Begins to connect, and does not wait. NULL on error: wire_dial's. */
wire *wire_dial_begin(const char *address, err *e);
/* The state of that connection: 1 connected, 0 not yet (poll for POLLOUT), -1 with wire_dial's
 * errors. */
int wire_dialled(const wire *w, err *e);
/* Takes over a connected stream socket. When memory is gone: closes it and returns NULL. */
wire *wire_adopt(int fd, err *e);
void wire_close(wire *w); /* NULL is fine */

int wire_fd(const wire *w);
/* Sets how soon the loss of the peer's machine is noticed: `dead_ms` (2 s or more, whole seconds)
 * after its last packet, or a moment later. No effect on Unix sockets. */
void wire_watch_peer(wire *w, int dead_ms);
/* The same for a socket that is no wire's. */
void wire_watch_socket(int fd, int dead_ms);
void wire_set_limit(wire *w, size_t frame_bytes_max); /* at most WIRE_FRAME_BYTES_MAX */
void wire_set_values_limit(wire *w, size_t values_bytes_max);
bool wire_wants_write(const wire *w);                 /* poll for POLLOUT too */

/* Queues a message and writes as much as the socket takes now. Borrows `message`. ERR_LIMIT when
 * the peer does not read and the queue is full, ERR_UNAVAILABLE when the peer is gone. */
int wire_send(wire *w, const json_t *message, err *e);
/* wire_send with json_pack's format; steals "o" arguments as json_pack does. */
int wire_sendf(wire *w, err *e, const char *pack_format, ...);
int wire_flush(wire *w, err *e); /* after POLLOUT */
/* After POLLIN: reads from the socket. Returns 1 with a new reference in *out, 0 when no whole
 * message is there yet, -1 on error (ERR_UNAVAILABLE "closed by the peer" at the end of the
 * stream). Call until it returns 0. */
int wire_receive(wire *w, json_t **out, err *e);

/* Block until the message is sent or received, or the deadline. */
int wire_send_wait(wire *w, const json_t *message, int64_t deadline_ms, err *e);
int wire_receive_wait(wire *w, json_t **out, int64_t deadline_ms, err *e);

/* The message's "type"; "" where it has no type; never NULL. */
const char *wire_type(const json_t *message);

#endif
