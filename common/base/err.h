/* err.h: the error value that every fallible function of KubeML reports through.
 *
 * A function that can fail takes `err *e` as its last argument and returns 0 with `e` untouched, or
 * -1 with `e` set. The value lives on the caller's stack and never allocates, so that it also works
 * when memory is gone. `err_set` sets it at the source; `err_wrap` puts context in front on the way
 * up. `e` may be NULL where the caller only wants to know that the function failed. */
#ifndef KUBEML_ERR_H
#define KUBEML_ERR_H

#include <stdbool.h>

enum { ERR_MESSAGE_BYTES = 256 };

typedef enum err_code {
    ERR_NONE = 0,
    ERR_INVALID,      /* the input is wrong; the message names the field, file or line */
    ERR_NOT_FOUND,    /* the named object does not exist */
    ERR_EXISTS,       /* the name is taken */
    ERR_CONFLICT,     /* the state does not allow it now */
    ERR_LIMIT,        /* larger, longer or more than a stated limit */
    ERR_UNSUPPORTED,  /* understood, but not built or not possible here */
    ERR_UNAUTHORIZED, /* no token, or a wrong one */
    ERR_FORBIDDEN,    /* a token that may not do this */
    ERR_UNAVAILABLE,  /* a needed part is gone; a retry may help */
    ERR_TIMEOUT,      /* a deadline passed; a retry may help */
    ERR_STALE,        /* an older epoch, round or incarnation than the present one */
    ERR_CORRUPT,      /* bytes that do not match their checksum or format */
    ERR_IO,           /* the operating system refused; os_errno says why */
    ERR_NOMEM,        /* memory is gone */
    ERR_CANCELLED,    /* somebody asked for the end */
    ERR_CRASHED,      /* a process ended that should not have */
    ERR_INTERNAL,     /* our own mistake */
    ERR_CODE_COUNT
} err_code;

typedef struct err {
    err_code code;
    int os_errno; /* 0 where no system call was involved */
    char message[ERR_MESSAGE_BYTES];
} err;

#define ERR_INIT                                                                                   \
    {                                                                                              \
        ERR_NONE, 0, ""                                                                            \
    }

/* Sets `e`, and cuts the message at 255 bytes. The message is UTF-8, whatever goes in (text.h).
 * Always returns -1, so that a caller writes `return err_set(...)`. */
int err_set(err *e, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set with ERR_IO, or with the code that fits errno better. Appends ": <strerror>". */
int err_set_errno(err *e, int os_errno, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the message; the code stays. Returns -1. */
int err_wrap(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void err_clear(err *e);

/* The one table that maps a code to its name, HTTP status and exit status. */
const char *err_name(err_code code);    /* "invalid", "not-found", ...: stable, part of the API */
err_code err_from_name(const char *name); /* ERR_INTERNAL for an unknown name */
int err_http_status(err_code code);     /* 400, 404, ... */
int err_exit_status(err_code code);     /* 1 failed, 2 wrong usage */
bool err_retry_may_help(err_code code);

#endif
