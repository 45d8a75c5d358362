/* warm.h: the generic runtime: listens, and waits for its order.
 *
 * Before the order the process has nothing of a job, and little memory. A client sends `hello` with
 * the pool's token first, which is compared in constant time. After a wrong token, or without
 * `hello` within WARM_HELLO_MS, the connection is closed. Several clients may be connected, as when
 * a controller was restarted; the first order counts. */
#ifndef KUBEML_WARM_H
#define KUBEML_WARM_H

#include <jansson.h>

#include "common/base/err.h"
#include "common/net/wire.h"

enum { WARM_CONNECTIONS_MAX = 8, WARM_HELLO_MS = 5000, WARM_TOKEN_BYTES = 256 };

/* Reads the token from the file that KUBEML_POOL_TOKEN_FILE names. ERR_NOT_FOUND, ERR_INVALID. */
int warm_token(char out[WARM_TOKEN_BYTES], err *e);
/* Waits for `specialise` or `serve`. *order: the message, a new reference; *from: its connection.
 * All other connections and `listen_fd` are closed. `gpu`: the field `gpu` of welcome, borrowed;
 * NULL: none. */
int warm_wait(int listen_fd, const char *token, json_t *gpu, wire **from, json_t **order, err *e);

#endif
