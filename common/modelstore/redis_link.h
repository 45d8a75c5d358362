/* redis_link.h: a connection to Redis through hiredis (0.14 to 1.3), with a deadline on every wait
 * and limits on replies.
 *
 * hiredis formats commands, buffers them until they are sent, and reads replies; a reply is
 * hiredis's redisReply. Three things are not left to hiredis:
 *   - Connecting: hiredis's sockets stay open in the programs that this process starts, and hiredis
 *     tries once. address_dial closes them there and tries again.
 *   - Writing the output buffer (redis_bulk.h): hiredis's own writer raises SIGPIPE, and in 0.14
 *     crashes when memory is gone.
 *   - Limits: hiredis allocates whatever length an array announces, and waits for a line or a bulk
 *     however long.
 *
 * Commands may be sent ahead of their replies. After any failure but an error reply the connection
 * is out of step and of no more use (redis_link_broken): close it and dial again. One connection
 * belongs to one thread. All calls block at most until their deadline (clock_deadline_ms). */
#ifndef KUBEML_REDIS_LINK_H
#define KUBEML_REDIS_LINK_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    REDIS_DEPTH_MAX = 4,
    REDIS_ELEMENTS_MAX = 1 << 16,
    REDIS_LINE_BYTES_MAX = 32 << 10,
    REDIS_BULK_BYTES_MAX = 128 << 20,
};

typedef struct redis_link redis_link;

/* ---- commands -------------------------------------------------------------------------------- */

/* A command as it is sent; {NULL, 0} before it is first formatted. */
typedef struct redis_command {
    char *bytes;
    size_t len;
} redis_command;

/* In place of what `c` was. Spaces in the format divide arguments, those in what is put in do not;
 * there are %s and integers without z and j. ERR_NOMEM. */
int redis_command_format(redis_command *c, err *e, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same from its arguments; `len` NULL: they are texts. */
int redis_command_words(redis_command *c, int argc, const char *const *argv, const size_t *len,
                        err *e);
void redis_command_free(redis_command *c);

#define cleanup_command __attribute__((cleanup(redis_command_free)))

/* ---- connecting ------------------------------------------------------------------------------ */

/* Connects to "unix:/path" or "tcp:host:port" and logs in (user "": "default"; password "": not at
 * all). ERR_UNAVAILABLE, ERR_TIMEOUT, ERR_UNAUTHORIZED, ERR_INVALID (the address). */
int redis_link_dial(const char *address, const char *user, const char *password,
                    int64_t deadline_ms, redis_link **out, err *e);
/* Takes over a connected, non-blocking stream socket. NULL: no memory; the descriptor stays. */
redis_link *redis_link_adopt(int fd);
void redis_link_close(redis_link *l); /* NULL is fine */
bool redis_link_broken(const redis_link *l);
int redis_link_fd(const redis_link *l); /* to poll; the connection's own */

/* ---- commands and replies -------------------------------------------------------------------- */

/* Buffers a command, which travels with the next flush or receive; sends what gets too much. */
int redis_link_append(redis_link *l, const redis_command *c, int64_t deadline_ms, err *e);
int redis_link_flush(redis_link *l, int64_t deadline_ms, err *e);
/* One reply, error replies included. Free with freeReplyObject. ERR_CORRUPT, ERR_LIMIT. */
int redis_link_receive(redis_link *l, redisReply **out, int64_t deadline_ms, err *e);
/* Sends and receives; an error reply is an error (redis_link_error). `out` may be NULL. */
int redis_link_call(redis_link *l, const redis_command *c, redisReply **out, int64_t deadline_ms,
                    err *e);

void redis_reply_free(redisReply **reply); /* what it points to may be NULL */
/* What an error reply means: "KML-STALE ..." of the module, and Redis's own. Returns -1. */
int redis_link_error(const redisReply *reply, err *e);

#define cleanup_reply __attribute__((cleanup(redis_reply_free)))

/* ---- long arguments and replies -------------------------------------------------------------- */

/* A command in two parts, for one long argument. redis_link_announce buffers its head: that there
 * will be the arguments of `head`, one of `len` bytes, and `more`; redis_link_send_long sends these
 * bytes and the rest (NULL: none). In between nothing may be appended, but replies may be taken.
 * Redis, which then knows the length before the bytes come, reads them to where they stay; it
 * copies an argument that arrives with its length. */
int redis_link_announce(redis_link *l, const redis_command *head, size_t len, int more,
                        int64_t deadline_ms, err *e);
int redis_link_send_long(redis_link *l, const void *bytes, size_t len, const redis_command *rest,
                         int64_t deadline_ms, err *e);
/* One reply that must be a bulk of exactly `len` bytes, read to `to`. An error reply is an error,
 * after which the connection is still in step. */
int redis_link_receive_long(redis_link *l, void *to, size_t len, int64_t deadline_ms, err *e);

#endif
