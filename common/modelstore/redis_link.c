/* redis_link.c: see redis_link.h. */
#include "redis_link.h"

#include <assert.h>
#include <ctype.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/cleanup.h"
#include "redis_bulk.h"

enum {
    HELD_BYTES = 4 << 10,
    SHORT_BYTES = 256,     /* long arguments up to here are copied into the output buffer */
    KEPT_BYTES = 64 << 10, /* hiredis frees a larger input buffer when it is empty */
    SEND_BUFFER_BYTES = 1 << 20,
};

#if HIREDIS_MAJOR < 1
typedef int array_count;
#else
typedef size_t array_count;
#endif

struct redis_link {
    redisContext *c;
    redisReplyObjectFunctions functions; /* hiredis's, with limits on arrays */
    void *(*create_array)(const redisReadTask *, array_count);
    err refused; /* the limit that a reply exceeded */
};

/* ---- commands -------------------------------------------------------------------------------- */

static int keep(redis_command *c, char *bytes, long long len, err *e)
{
    redis_command_free(c);
    if (len < 0)
        return err_set(e, ERR_NOMEM, "redis: no memory for a command");
    *c = (redis_command){bytes, (size_t)len};
    return 0;
}

int redis_command_format(redis_command *c, err *e, const char *format, ...)
{
    char *bytes = NULL;
    va_list ap;
    va_start(ap, format);
    int len = redisvFormatCommand(&bytes, format, ap);
    va_end(ap);
    assert(len != -2); /* a format that hiredis does not know */
    return keep(c, bytes, len, e);
}

int redis_command_words(redis_command *c, int argc, const char *const *argv, const size_t *len,
                        err *e)
{
    char *bytes = NULL;
    long long got = redisFormatCommandArgv(&bytes, argc, (const char **)(uintptr_t)argv, len);
    return keep(c, bytes, got, e);
}

void redis_command_free(redis_command *c)
{
    if (c->bytes)
        redisFreeCommand(c->bytes);
    *c = (redis_command){NULL, 0};
}

/* The arguments of a formatted command, without the head "*<number>\r\n". */
static struct iovec arguments(const redis_command *c)
{
    char *at = strchr(c->bytes, '\n') + 1;
    return (struct iovec){at, c->len - (size_t)(at - c->bytes)};
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Checks the length of an array before hiredis's function, which allocates any length. */
static void *create_array(const redisReadTask *task, array_count n)
{
    redis_link *l = task->privdata;
    int depth = 0;
    for (const redisReadTask *t = task->parent; t; t = t->parent)
        depth++;
    if (n > REDIS_ELEMENTS_MAX)
        err_set(&l->refused, ERR_LIMIT, "redis: a reply of %lld, at most %d are taken",
                (long long)n, REDIS_ELEMENTS_MAX);
    else if (n > 0 && depth >= REDIS_DEPTH_MAX)
        err_set(&l->refused, ERR_CORRUPT, "redis: a reply nested too deeply");
    return l->refused.code == ERR_NONE ? l->create_array(task, n) : NULL;
}

redis_link *redis_link_adopt(int fd)
{
    redis_link *l = calloc(1, sizeof *l);
    redisContext *c = l ? redisConnectFd(fd) : NULL;
    if (!c) {
        free(l);
        return NULL;
    }
    l->c = c;
    c->flags &= ~REDIS_BLOCK;
    l->functions = *c->reader->fn;
    l->create_array = l->functions.createArray;
    l->functions.createArray = create_array;
    c->reader->fn = &l->functions;
    c->reader->privdata = l;
    c->reader->maxbuf = KEPT_BYTES;
    return l;
}

/* Sets the largest send buffer that the system allows, so that a small model is one write. TCP
 * sizes its buffers itself. */
static void tune(int fd, const char *address)
{
    int bytes = SEND_BUFFER_BYTES, one = 1;
    if (strncmp(address, "unix:", 5) == 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    else
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int log_in(redis_link *l, const char *user, const char *password, int64_t deadline_ms,
                  err *e)
{
    cleanup_command redis_command auth = {NULL, 0};
    if (!password || !password[0])
        return 0;
    if (redis_command_format(&auth, e, "AUTH %s %s", user && user[0] ? user : "default", password))
        return -1;
    return redis_link_call(l, &auth, NULL, deadline_ms, e);
}

int redis_link_dial(const char *address, const char *user, const char *password,
                    int64_t deadline_ms, redis_link **out, err *e)
{
    cleanup_close int fd = address_dial(address, deadline_ms, e);
    if (fd < 0)
        return err_wrap(e, "redis");
    tune(fd, address);
    redis_link *l = redis_link_adopt(fd);
    if (!l)
        return err_set(e, ERR_NOMEM, "redis: no memory for a connection");
    steal_fd(fd);
    if (log_in(l, user, password, deadline_ms, e)) {
        redis_link_close(l);
        return -1;
    }
    *out = l;
    return 0;
}

void redis_link_close(redis_link *l)
{
    if (!l)
        return;
    redisFree(l->c);
    free(l);
}

bool redis_link_broken(const redis_link *l)
{
    return l->c->err != 0;
}

int redis_link_fd(const redis_link *l)
{
    return l->c->fd;
}

/* ---- sending --------------------------------------------------------------------------------- */

int redis_link_flush(redis_link *l, int64_t deadline_ms, err *e)
{
    return sdslen(l->c->obuf) > 0 ? redis_bulk_write(l->c, NULL, 0, deadline_ms, e) : 0;
}

static int append(redis_link *l, const char *bytes, size_t len, int64_t deadline_ms, err *e)
{
    struct iovec whole = {(void *)(uintptr_t)bytes, len};
    if (sdslen(l->c->obuf) + len > HELD_BYTES)
        return redis_bulk_write(l->c, &whole, 1, deadline_ms, e);
    return redisAppendFormattedCommand(l->c, bytes, len) == REDIS_OK
               ? 0
               : err_set(e, ERR_NOMEM, "redis: no memory for a command");
}

int redis_link_append(redis_link *l, const redis_command *c, int64_t deadline_ms, err *e)
{
    return append(l, c->bytes, c->len, deadline_ms, e);
}

int redis_link_announce(redis_link *l, const redis_command *head, size_t len, int more,
                        int64_t deadline_ms, err *e)
{
    char first[32], last[32];
    long argc = strtol(head->bytes + 1, NULL, 10) + 1 + more;
    struct iovec words = arguments(head);
    size_t firsts = (size_t)snprintf(first, sizeof first, "*%ld\r\n", argc);
    size_t lasts = (size_t)snprintf(last, sizeof last, "$%zu\r\n", len);
    return append(l, first, firsts, deadline_ms, e) ||
                   append(l, words.iov_base, words.iov_len, deadline_ms, e) ||
                   append(l, last, lasts, deadline_ms, e)
               ? -1
               : 0;
}

int redis_link_send_long(redis_link *l, const void *bytes, size_t len, const redis_command *rest,
                         int64_t deadline_ms, err *e)
{
    char end[] = "\r\n";
    struct iovec v[] = {{(void *)(uintptr_t)bytes, len}, {end, 2}, {NULL, 0}};
    int count = rest ? 3 : 2;
    if (rest)
        v[2] = arguments(rest);
    if (len > SHORT_BYTES)
        return redis_bulk_write(l->c, v, count, deadline_ms, e);
    for (int i = 0; i < count; i++)
        if (append(l, v[i].iov_base, v[i].iov_len, deadline_ms, e))
            return -1;
    return 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* The error of a reply that hiredis cannot parse, or that exceeds a limit. */
static int unreadable(redis_link *l, err *e)
{
    if (l->refused.code == ERR_NONE && l->c->err == REDIS_ERR_OOM)
        err_set(&l->refused, ERR_NOMEM, "redis: no memory for a reply");
    else if (l->refused.code == ERR_NONE)
        err_set(&l->refused, ERR_CORRUPT, "redis: %s", l->c->errstr);
    l->c->err = REDIS_ERR_PROTOCOL;
    if (e)
        *e = l->refused;
    return -1;
}

/* Checks the limits of an unfinished reply in the reader's buffer: a line without its end, or a
 * bulk whose length is there already. */
static void check_unfinished(redis_link *l)
{
    const redisReader *r = l->c->reader;
    const char *at = r->buf + r->pos;
    size_t len = r->len - r->pos;
    if (memmem(at, len < 32 ? len : 32, "\r\n", 2)) {
        long long bulk = strtoll(at, NULL, 10);
        if (bulk > REDIS_BULK_BYTES_MAX)
            err_set(&l->refused, ERR_LIMIT, "redis: a reply of %lld, at most %d are taken", bulk,
                    REDIS_BULK_BYTES_MAX);
    } else if (len >= REDIS_LINE_BYTES_MAX) {
        err_set(&l->refused, ERR_CORRUPT, "redis: a line without an end");
    }
}

int redis_link_receive(redis_link *l, redisReply **out, int64_t deadline_ms, err *e)
{
    void *reply = NULL;
    *out = NULL;
    if (redis_link_flush(l, deadline_ms, e))
        return -1;
    for (;;) {
        if (redisGetReply(l->c, &reply) != REDIS_OK)
            return unreadable(l, e);
        if (reply) {
            *out = reply;
            return 0;
        }
        check_unfinished(l);
        if (l->refused.code != ERR_NONE)
            return unreadable(l, e);
        if (redis_bulk_fill(l->c, deadline_ms, e))
            return -1;
    }
}

int redis_link_receive_long(redis_link *l, void *to, size_t len, int64_t deadline_ms, err *e)
{
    cleanup_reply redisReply *reply = NULL;
    if (redis_link_flush(l, deadline_ms, e))
        return -1;
    int found = redis_bulk_read(l->c, to, len, deadline_ms, e);
    if (found != 0)
        return found > 0 ? 0 : -1;
    if (redis_link_receive(l, &reply, deadline_ms, e))
        return -1;
    if (reply->type == REDIS_REPLY_ERROR)
        return redis_link_error(reply, e);
    if (reply->type == REDIS_REPLY_NIL)
        return err_set(e, ERR_NOT_FOUND, "redis: there is no such key");
    l->c->err = REDIS_ERR_PROTOCOL;
    return err_set(e, ERR_CORRUPT, "redis: %s",
                   reply->type == REDIS_REPLY_STRING ? "a bulk of another length than the block's"
                                                     : "a reply that is no bulk");
}

int redis_link_call(redis_link *l, const redis_command *c, redisReply **out, int64_t deadline_ms,
                    err *e)
{
    cleanup_reply redisReply *reply = NULL;
    if (redis_link_append(l, c, deadline_ms, e) || redis_link_receive(l, &reply, deadline_ms, e))
        return -1;
    if (reply->type == REDIS_REPLY_ERROR)
        return redis_link_error(reply, e);
    if (out) {
        *out = reply;
        reply = NULL;
    }
    return 0;
}

void redis_reply_free(redisReply **reply)
{
    freeReplyObject(*reply);
    *reply = NULL;
}

int redis_link_error(const redisReply *reply, err *e)
{
    static const struct {
        const char *word;
        err_code code;
    } table[] = {
        {"OOM", ERR_NOMEM},
        {"NOAUTH", ERR_UNAUTHORIZED},
        {"WRONGPASS", ERR_UNAUTHORIZED},
        {"NOPERM", ERR_FORBIDDEN},
        {"LOADING", ERR_UNAVAILABLE},
        {"BUSY", ERR_UNAVAILABLE},
        {"READONLY", ERR_UNAVAILABLE},
        {"MISCONF", ERR_UNAVAILABLE},
        {"MASTERDOWN", ERR_UNAVAILABLE},
        {"WRONGTYPE", ERR_CONFLICT},
        {"EXECABORT", ERR_CONFLICT},
    };
    char word[40];
    size_t n = strcspn(reply->str, " ");
    if (strncmp(reply->str, "KML-", 4) == 0 && n - 4 < sizeof word) {
        for (size_t i = 4; i < n; i++)
            word[i - 4] = (char)tolower((unsigned char)reply->str[i]);
        word[n - 4] = '\0';
        return err_set(e, err_from_name(word), "%s", reply->str + n + (reply->str[n] == ' '));
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].word) == n && strncmp(reply->str, table[i].word, n) == 0)
            return err_set(e, table[i].code, "redis: %s", reply->str);
    if (strncmp(reply->str, "ERR unknown command", 19) == 0)
        return err_set(e, ERR_UNSUPPORTED, "redis: %s", reply->str);
    return err_set(e, ERR_INTERNAL, "redis: %s", reply->str);
}
