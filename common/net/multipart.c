/* multipart.c: see multipart.h. */
#include "multipart.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct multipart {
    ssize_t (*read)(void *source, void *out, size_t max, err *e);
    void *source;
    char delimiter[MULTIPART_BOUNDARY_MAX + 5]; /* CR LF -- boundary */
    size_t delimiter_len;
    char buffer[MULTIPART_BUFFER_BYTES];
    size_t start, end; /* of the bytes that are read and not handed out */
    bool in_part, over, source_over;
    int parts;
};

/* The semicolon before the next parameter; NULL: there is no further parameter. */
static const char *semicolon(const char *at)
{
    for (bool quoted = false; *at && (quoted || *at != ';'); at++) {
        if (quoted && *at == '\\' && at[1])
            at++;
        else if (*at == '"')
            quoted = !quoted;
    }
    return *at ? at : NULL;
}

/* Finds `key=` among a header's parameters and copies its value, quoted or not. */
static bool parameter(const char *text, const char *key, char *out, size_t out_bytes)
{
    size_t key_len = strlen(key), n = 0;
    for (const char *at = semicolon(text); at; at = semicolon(at)) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, key, key_len) != 0 || at[key_len] != '=')
            continue;
        at += key_len + 1;
        bool quoted = *at == '"';
        for (at += quoted; *at && (quoted ? *at != '"' : !strchr("; \t\r\n", *at)); at++) {
            if (quoted && *at == '\\' && at[1])
                at++;
            if (n + 1 >= out_bytes)
                return false;
            out[n++] = *at;
        }
        out[n] = '\0';
        return true;
    }
    return false;
}

int multipart_open(const char *content_type,
                   ssize_t (*read)(void *source, void *out, size_t max, err *e), void *source,
                   multipart **out, err *e)
{
    char boundary[MULTIPART_BOUNDARY_MAX + 1];
    if (!parameter(content_type, "boundary", boundary, sizeof boundary) || !boundary[0])
        return err_set(e, ERR_INVALID, "Content-Type has no boundary of 1 to %d characters",
                       MULTIPART_BOUNDARY_MAX);
    multipart *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory to read the upload");
    m->read = read;
    m->source = source;
    m->delimiter_len = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", boundary);
    /* The first delimiter may stand at the very beginning, without its line break. */
    memcpy(m->buffer, "\r\n", 2);
    m->end = 2;
    m->in_part = true; /* text before the first delimiter is skipped like a part */
    *out = m;
    return 0;
}

void multipart_close(multipart *m)
{
    free(m);
}

/* Reads more behind the buffered bytes; -1 with ERR_INVALID at the end of the source. */
static int refill(multipart *m, err *e)
{
    if (m->start) {
        memmove(m->buffer, m->buffer + m->start, m->end - m->start);
        m->end -= m->start;
        m->start = 0;
    }
    if (m->end == sizeof m->buffer)
        return err_set(e, ERR_INVALID, "a part's headers are too long");
    ssize_t got =
        m->source_over ? 0 : m->read(m->source, m->buffer + m->end, sizeof m->buffer - m->end, e);
    if (got < 0)
        return -1;
    m->source_over = got == 0;
    if (got == 0)
        return err_set(e, ERR_INVALID, "the multipart body ends before its last boundary");
    m->end += (size_t)got;
    return 0;
}

ssize_t multipart_piece(multipart *m, const char **bytes, err *e)
{
    while (m->in_part) {
        const char *at = m->buffer + m->start;
        size_t have = m->end - m->start;
        const char *found = memmem(at, have, m->delimiter, m->delimiter_len);
        /* Without a whole delimiter, the buffered bytes may end with a delimiter's beginning. */
        size_t safe = found ? (size_t)(found - at)
                            : have >= m->delimiter_len ? have - m->delimiter_len + 1 : 0;
        if (safe) {
            *bytes = at;
            m->start += safe;
            return (ssize_t)safe;
        }
        if (found) {
            m->start += m->delimiter_len;
            m->in_part = false;
        } else if (refill(m, e)) {
            return -1;
        }
    }
    return 0;
}

/* The length of the line at the start, without its end; refills until it is whole. */
static int line(multipart *m, size_t *len, err *e)
{
    for (;;) {
        const char *at = m->buffer + m->start;
        const char *end = memmem(at, m->end - m->start, "\r\n", 2);
        if (end) {
            *len = (size_t)(end - at);
            return 0;
        }
        if (m->end - m->start > MULTIPART_HEADER_BYTES_MAX)
            return err_set(e, ERR_INVALID, "a part's headers are longer than %d bytes",
                           MULTIPART_HEADER_BYTES_MAX);
        if (refill(m, e))
            return -1;
    }
}

static int header(const char *text, multipart_part *out, err *e)
{
    static const char name[] = "Content-Disposition:";
    if (strncasecmp(text, name, sizeof name - 1) != 0)
        return 0;
    if (!parameter(text, "name", out->name, sizeof out->name))
        return err_set(e, ERR_INVALID,
                       "a part's Content-Disposition has no name of at most %zu bytes",
                       sizeof out->name - 1);
    if (!parameter(text, "filename", out->filename, sizeof out->filename))
        out->filename[0] = '\0';
    return 0;
}

static int headers(multipart *m, multipart_part *out, err *e)
{
    char text[MULTIPART_HEADER_BYTES_MAX + 1];
    size_t len, total = 0;
    out->name[0] = out->filename[0] = '\0';
    for (;;) {
        if (line(m, &len, e))
            return -1;
        total += len + 2;
        if (total > MULTIPART_HEADER_BYTES_MAX)
            return err_set(e, ERR_INVALID, "a part's headers are longer than %d bytes",
                           MULTIPART_HEADER_BYTES_MAX);
        memcpy(text, m->buffer + m->start, len);
        text[len] = '\0';
        m->start += len + 2;
        if (len == 0)
            break;
        if (header(text, out, e))
            return -1;
    }
    return out->name[0] ? 0 : err_set(e, ERR_INVALID, "a part has no name");
}

int multipart_next(multipart *m, multipart_part *out, err *e)
{
    const char *skipped;
    for (ssize_t n; m->in_part && (n = multipart_piece(m, &skipped, e)) != 0;)
        if (n < 0)
            return -1;
    if (m->over)
        return 0;
    while (m->end - m->start < 2)
        if (refill(m, e))
            return -1;
    if (memcmp(m->buffer + m->start, "--", 2) == 0) {
        m->over = true;
        return 0;
    }
    size_t blank; /* the rest of the delimiter's line: empty, or spaces */
    if (line(m, &blank, e))
        return -1;
    if (strspn(m->buffer + m->start, " \t") < blank)
        return err_set(e, ERR_INVALID, "a boundary is followed by something else");
    m->start += blank;
    if (++m->parts > MULTIPART_PARTS_MAX)
        return err_set(e, ERR_INVALID, "more than %d parts", MULTIPART_PARTS_MAX);
    m->start += 2;
    if (headers(m, out, e))
        return -1;
    /* An empty part's delimiter begins with the headers' last line break. */
    m->start -= 2;
    m->in_part = true;
    const char *at = m->buffer + m->start;
    while (m->end - m->start < m->delimiter_len) {
        if (memcmp(at, m->delimiter, m->end - m->start) != 0)
            break;
        if (refill(m, e))
            return -1;
        at = m->buffer + m->start;
    }
    if (m->end - m->start < m->delimiter_len || memcmp(at, m->delimiter, m->delimiter_len) != 0)
        m->start += 2;
    return 1;
}
