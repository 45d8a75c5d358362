/* address.h: where somebody listens, "unix:/path" or "tcp:host:port" ("tcp:[::1]:80" too), and how
 * it is dialled. */
#ifndef KUBEML_ADDRESS_H
#define KUBEML_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include "err.h"

enum { ADDRESS_BYTES = 256 };

/* A connected socket that does not block, the caller's to close, or -1. ERR_INVALID: no address.
 * ERR_UNAVAILABLE: nobody listens there, or no such host. ERR_TIMEOUT: no answer by the deadline.
 * (A host's name is looked up by the system, with the system's own deadline.) */
int address_dial(const char *address, int64_t deadline_ms, err *e);

/* The same, begun and not waited for. ERR_TIMEOUT: a Unix socket's backlog is full. */
int address_dial_begin(const char *address, err *e);
/* How that goes: 1 connected, 0 not yet (POLLOUT tells), -1 with address_dial's errors. */
int address_dialled(int fd, err *e);

/* A path, without "unix:". ERR_LIMIT: it is too long for a socket. */
int address_unix(const char *path, struct sockaddr_un *to, err *e);
/* "host:port", without "tcp:"; `passive`: to listen there. Caller frees with freeaddrinfo.
 * ERR_INVALID, ERR_UNAVAILABLE. */
int address_tcp(const char *host_port, bool passive, struct addrinfo **out, err *e);

#endif
