/* buf.h: a growing byte buffer with a maximum from its beginning.
 *
 * Exceeding the maximum is ERR_LIMIT, exhausted memory is ERR_NOMEM; the contents then stay the
 * same. A NUL that does not count always follows the bytes, so that text can be read in place. */
#ifndef KUBEML_BUF_H
#define KUBEML_BUF_H

#include <stddef.h>

#include "err.h"

typedef struct buf {
    char *bytes;
    size_t len, cap, max;
} buf;

void buf_init(buf *b, size_t bytes_max);
void buf_free(buf *b); /* may be used again after buf_init */
void buf_reset(buf *b);
int buf_reserve(buf *b, size_t more, err *e); /* room for `more` bytes at bytes + len */
int buf_append(buf *b, const void *bytes, size_t len, err *e);
int buf_printf(buf *b, err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void buf_consume(buf *b, size_t len); /* drops the first `len` bytes */

#define cleanup_buf __attribute__((cleanup(buf_free)))

#endif
