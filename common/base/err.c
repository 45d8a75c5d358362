/* err.c: see err.h. */
#include "err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

static const struct {
    const char *name;
    int http;
    bool retry;
} table[ERR_CODE_COUNT] = {
    [ERR_NONE] = {"none", 200, false},
    [ERR_INVALID] = {"invalid", 400, false},
    [ERR_NOT_FOUND] = {"not-found", 404, false},
    [ERR_EXISTS] = {"exists", 409, false},
    [ERR_CONFLICT] = {"conflict", 409, false},
    [ERR_LIMIT] = {"limit", 413, false},
    [ERR_UNSUPPORTED] = {"unsupported", 422, false},
    [ERR_UNAUTHORIZED] = {"unauthorized", 401, false},
    [ERR_FORBIDDEN] = {"forbidden", 403, false},
    [ERR_UNAVAILABLE] = {"unavailable", 503, true},
    [ERR_TIMEOUT] = {"timeout", 504, true},
    [ERR_STALE] = {"stale", 409, false},
    [ERR_CORRUPT] = {"corrupt", 400, false},
    [ERR_IO] = {"io", 500, false},
    [ERR_NOMEM] = {"no-memory", 503, true},
    [ERR_CANCELLED] = {"cancelled", 409, false},
    [ERR_CRASHED] = {"crashed", 500, false},
    [ERR_INTERNAL] = {"internal", 500, false},
};

static void format(err *e, const char *fmt, va_list args)
{
    text_vprint(e->message, sizeof e->message, fmt, args);
}

int err_set(err *e, err_code code, const char *fmt, ...)
{
    if (!e)
        return -1;
    va_list args;
    va_start(args, fmt);
    e->code = code;
    e->os_errno = 0;
    format(e, fmt, args);
    va_end(args);
    return -1;
}

static err_code code_of_errno(int os_errno)
{
    switch (os_errno) {
    case ENOENT:
        return ERR_NOT_FOUND;
    case EEXIST:
        return ERR_EXISTS;
    case ENOMEM:
        return ERR_NOMEM;
    case ETIMEDOUT:
        return ERR_TIMEOUT;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
        return ERR_UNAVAILABLE;
    default:
        return ERR_IO;
    }
}

int err_set_errno(err *e, int os_errno, const char *fmt, ...)
{
    if (!e)
        return -1;
    va_list args;
    va_start(args, fmt);
    e->code = code_of_errno(os_errno);
    e->os_errno = os_errno;
    format(e, fmt, args);
    va_end(args);
    size_t used = strlen(e->message);
    char reason[96];
    /* GNU strerror_r returns the text, which need not lie in the buffer. */
    text_print(e->message + used, sizeof e->message - used, ": %s",
               strerror_r(os_errno, reason, sizeof reason));
    return -1;
}

int err_wrap(err *e, const char *fmt, ...)
{
    if (!e)
        return -1;
    char inner[ERR_MESSAGE_BYTES];
    memcpy(inner, e->message, sizeof inner);
    va_list args;
    va_start(args, fmt);
    format(e, fmt, args);
    va_end(args);
    size_t used = strlen(e->message);
    text_print(e->message + used, sizeof e->message - used, ": %s", inner);
    return -1;
}

void err_clear(err *e)
{
    if (e)
        *e = (err)ERR_INIT;
}

const char *err_name(err_code code)
{
    return code < ERR_CODE_COUNT ? table[code].name : "internal";
}

err_code err_from_name(const char *name)
{
    /* A peer that reports an error named "none" still reports an error: ERR_INTERNAL. */
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++)
        if (strcmp(table[code].name, name) == 0)
            return (err_code)code;
    return ERR_INTERNAL;
}

int err_http_status(err_code code)
{
    return code < ERR_CODE_COUNT ? table[code].http : 500;
}

int err_exit_status(err_code code)
{
    return code == ERR_NONE ? 0 : 1;
}

bool err_retry_may_help(err_code code)
{
    return code < ERR_CODE_COUNT && table[code].retry;
}
