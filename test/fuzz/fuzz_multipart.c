/* fuzz_multipart.c: an upload's Content-Type (the first line) and body: its parts are the same
 * whatever pieces the body comes in. */
#include "common/base/hash64.h"
#include "common/net/multipart.h"
#include "fuzz.h"

typedef struct body_source {
    const uint8_t *at;
    size_t left, step;
} body_source;

static ssize_t read_body(void *source, void *out, size_t max, err *e)
{
    body_source *b = source;
    size_t n = b->left < b->step ? b->left : b->step;
    (void)e;
    n = n < max ? n : max;
    memcpy(out, b->at, n);
    b->at += n;
    b->left -= n;
    return (ssize_t)n;
}

typedef struct parts_seen {
    int parts;
    size_t bytes;
    uint64_t sum; /* of all names, and of all bytes with their places */
    err_code code;
} parts_seen;

static void see_part(multipart *m, const multipart_part *part, parts_seen *seen, err *e)
{
    const char *piece;
    ssize_t n;
    FUZZ_CHECK(part->name[0] && memchr(part->name, '\0', sizeof part->name) &&
               memchr(part->filename, '\0', sizeof part->filename));
    seen->parts++;
    seen->sum +=
        hash64(part->name, strlen(part->name)) + hash64(part->filename, strlen(part->filename));
    while ((n = multipart_piece(m, &piece, e)) > 0)
        for (ssize_t i = 0; i < n; i++)
            seen->sum = seen->sum * 31 + (uint8_t)piece[i], seen->bytes++;
}

static parts_seen see_parts(const char *type, const uint8_t *body, size_t len, size_t step)
{
    body_source source = {body, len, step};
    parts_seen seen = {0};
    multipart *m = NULL;
    multipart_part part;
    err e = ERR_INIT;
    if (multipart_open(type, read_body, &source, &m, &e) == 0) {
        while (e.code == ERR_NONE && multipart_next(m, &part, &e) > 0)
            see_part(m, &part, &seen, &e);
        FUZZ_CHECK(seen.parts <= MULTIPART_PARTS_MAX && seen.bytes <= len);
    }
    multipart_close(m);
    FUZZ_CHECK(e.code == ERR_NONE || e.code == ERR_INVALID);
    seen.code = e.code;
    return seen;
}

FUZZ(multipart)
{
    const uint8_t *line = memchr(bytes, '\n', len);
    char type[256] = "";
    size_t n = line ? (size_t)(line - bytes) : len, rest = line ? n + 1 : len;
    if (n >= sizeof type)
        return 0;
    memcpy(type, bytes, n);
    parts_seen whole = see_parts(type, bytes + rest, len - rest, len + 1);
    for (size_t step = 1; step < 30; step += 7) {
        parts_seen pieces = see_parts(type, bytes + rest, len - rest, step);
        FUZZ_CHECK(pieces.code == whole.code && pieces.parts == whole.parts);
        /* What was handed out of a part whose end is missing depends on them. */
        FUZZ_CHECK(whole.code != ERR_NONE ||
                   (pieces.bytes == whole.bytes && pieces.sum == whole.sum));
    }
    return 0;
}
