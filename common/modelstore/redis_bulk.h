/* redis_bulk.h: long arguments and long replies on a connection of hiredis, without a copy.
 *
 * hiredis copies an argument into the command that it formats and once more into its output buffer,
 * and a reply through a buffer on the stack into its input buffer and from there into the reply,
 * from where a tensor would be copied to its place. So tensors alone are written from where they
 * lie (writev) and read to where they belong; all else on the connection is hiredis's.
 * FIGURES
 *
 * What is written first is hiredis's output buffer, and what is read first hiredis's input buffer:
 * both ways share one connection. A failure sets the context's `err`; the connection is then of no
 * more use. All calls block at most until their deadline (clock_deadline_ms). */
#ifndef KUBEML_REDIS_BULK_H
#define KUBEML_REDIS_BULK_H

#include <hiredis/hiredis.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/err.h"

/* Writes hiredis's output buffer, which is empty then, and the vectors. What Redis sends meanwhile
 * is taken in, so that neither side waits for the other for ever. ERR_TIMEOUT, ERR_UNAVAILABLE (the
 * connection was closed), ERR_NOMEM. */
int redis_bulk_write(redisContext *c, const struct iovec *vector, int count, int64_t deadline_ms,
                     err *e);

/* Waits for bytes and gives them to hiredis's reader. Errors as above. */
int redis_bulk_fill(redisContext *c, int64_t deadline_ms, err *e);

/* Reads the next reply to `to`, if it is a bulk of `len` bytes: 1. If it is another reply, it is
 * left to the reader: 0. -1: as above, or ERR_CORRUPT. */
int redis_bulk_read(redisContext *c, void *to, size_t len, int64_t deadline_ms, err *e);

#endif
