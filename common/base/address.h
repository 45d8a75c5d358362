/* address.h: dials the address of a server: "unix:/path" or "tcp:host:port" ("tcp:[::1]:80" too).
 */
#ifndef KUBEML_ADDRESS_H
#define KUBEML_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include "err.h"

enum { ADDRESS_BYTES = 256 };

/* Blocks until connected or the deadline. Returns a connected, non-blocking socket, the caller's to
 * close, or -1. ERR_INVALID: not an address. ERR_UNAVAILABLE: nobody listens there, or there is no
 * such host. ERR_TIMEOUT: no answer by the deadline. The system's resolver looks host names up,
 * with a deadline of its own. */
int address_dial(const char *address, int64_t deadline_ms, err *e);

/* Begins to dial, and does not wait. ERR_TIMEOUT: a Unix socket's backlog is full. */
int address_dial_begin(const char *address, err *e);
/* The state of that socket: 1 connected, 0 not yet (poll for POLLOUT), -1 with address_dial's
 * errors. */
int address_dialled(int fd, err *e);

/* `path` is without "unix:". ERR_LIMIT: the path is too long for a socket. */
int address_unix(const char *path, struct sockaddr_un *to, err *e);
/* `host_port` is "host:port", without "tcp:"; `passive`: to listen there. The caller frees *out
 * with freeaddrinfo. ERR_INVALID, ERR_UNAVAILABLE. */
int address_tcp(const char *host_port, bool passive, struct addrinfo **out, err *e);

#endif
