/* multipart.h: reads a multipart/form-data body (RFC 7578) while it arrives, without storing it.
 *
 * The reader pulls bytes from a source that may block. It hands out a part's contents as views into
 * its one buffer. A malformed body is ERR_INVALID; the source's errors pass through. */
#ifndef KUBEML_MULTIPART_H
#define KUBEML_MULTIPART_H

#include <stddef.h>
#include <sys/types.h>

#include "common/base/err.h"

enum {
    MULTIPART_BUFFER_BYTES = 64 << 10,
    MULTIPART_BOUNDARY_MAX = 70,       /* RFC 2046 */
    MULTIPART_HEADER_BYTES_MAX = 4096, /* of one part */
    MULTIPART_PARTS_MAX = 128,
};

typedef struct multipart multipart;

typedef struct multipart_part {
    char name[64];
    char filename[256]; /* "" when the part has no filename */
} multipart_part;

/* `content_type` is the body's header, which names the boundary. */
int multipart_open(const char *content_type,
                   ssize_t (*read)(void *source, void *out, size_t max, err *e), void *source,
                   multipart **out, err *e);
void multipart_close(multipart *m); /* NULL is fine */

/* Skips the rest of this part and goes to the next part: 1, 0 after the last part, -1. */
int multipart_next(multipart *m, multipart_part *out, err *e);
/* The part's next piece: its length, 0 at the part's end, -1. *bytes is valid until the next call.
 */
ssize_t multipart_piece(multipart *m, const char **bytes, err *e);

#endif
