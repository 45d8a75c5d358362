/* warm.h: the generic runtime: listens, and waits to be told what it is for.
 *
 * Nothing of a job is in the process before that, and little memory. Whoever dials says hello with
 * the pool's token first, compared in constant time; a wrong one, or none within WARM_HELLO_MS, and
 * the connection is closed. Several may be connected (a controller that was restarted beside the
 * one that is gone); the first order counts. */
#ifndef KUBEML_WARM_H
#define KUBEML_WARM_H

#include <jansson.h>

#include "common/base/err.h"
#include "common/net/wire.h"

enum { WARM_CONNECTIONS_MAX = 8, WARM_HELLO_MS = 5000, WARM_TOKEN_BYTES = 256 };

/* Reads the token of the file that KUBEML_POOL_TOKEN_FILE names. ERR_NOT_FOUND, ERR_INVALID. */
int warm_token(char out[WARM_TOKEN_BYTES], err *e);
/* Waits for `specialise` or `serve`: a new reference, and the connection it came on. All others and
 * the listening descriptor are closed. `gpu`, NULL or what welcome is to say of the process's GPU,
 * is borrowed. */
int warm_wait(int listen_fd, const char *token, json_t *gpu, wire **from, json_t **order, err *e);

#endif
