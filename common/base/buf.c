/* buf.c: see buf.h. */
#include "buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(buf *b, size_t bytes_max)
{
    assert(bytes_max < SIZE_MAX / 2);
    *b = (buf){.max = bytes_max};
}

void buf_free(buf *b)
{
    free(b->bytes);
    *b = (buf){.max = b->max};
}

void buf_reset(buf *b)
{
    b->len = 0;
    if (b->bytes)
        b->bytes[0] = '\0';
}

int buf_reserve(buf *b, size_t more, err *e)
{
    if (more > b->max - b->len)
        return err_set(e, ERR_LIMIT, "more than %zu bytes", b->max);
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < need)
        cap *= 2;
    if (cap > b->max + 1)
        cap = b->max + 1;
    char *bytes = realloc(b->bytes, cap);
    if (!bytes)
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes", cap);
    b->bytes = bytes;
    b->cap = cap;
    return 0;
}

int buf_append(buf *b, const void *bytes, size_t len, err *e)
{
    if (buf_reserve(b, len, e))
        return -1;
    if (len)
        memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
    b->bytes[b->len] = '\0';
    return 0;
}

int buf_printf(buf *b, err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (len < 0)
        return err_set(e, ERR_INTERNAL, "bad format");
    if (buf_reserve(b, (size_t)len, e))
        return -1;
    va_start(args, fmt);
    vsnprintf(b->bytes + b->len, (size_t)len + 1, fmt, args);
    va_end(args);
    b->len += (size_t)len;
    return 0;
}

void buf_consume(buf *b, size_t len)
{
    assert(len <= b->len);
    b->len -= len;
    if (b->len)
        memmove(b->bytes, b->bytes + len, b->len);
    if (b->bytes)
        b->bytes[b->len] = '\0';
}
