/* digest.h: SHA-256, for everything that is known by its contents.
 *
 * libcrypto does the work. Only digest_of_fd blocks. Memory may be gone (ERR_NOMEM). */
#ifndef KUBEML_DIGEST_H
#define KUBEML_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { DIGEST_BYTES = 32, DIGEST_HEX_BYTES = 65 /* with the NUL */ };

typedef struct digest_sum digest_sum;

int digest_new(digest_sum **out, err *e);
void digest_free(digest_sum *d); /* NULL is fine */
void digest_update(digest_sum *d, const void *bytes, size_t len);
/* Ends the sum; `d` may only be freed afterwards. */
void digest_finish(digest_sum *d, uint8_t out[DIGEST_BYTES]);
void digest_finish_hex(digest_sum *d, char out[DIGEST_HEX_BYTES]);

void digest_hex(const uint8_t sum[DIGEST_BYTES], char out[DIGEST_HEX_BYTES]);
/* The digest of `len` bytes, in one call. */
int digest_of(const void *bytes, size_t len, char out[DIGEST_HEX_BYTES], err *e);
/* The digest of the file from its start to its end; the file offset stays. Blocks on the disk. */
int digest_of_fd(int fd, char out[DIGEST_HEX_BYTES], err *e);
bool digest_is_hex(const char *text); /* 64 lower-case hex digits */

#endif
