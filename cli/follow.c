/* follow.c: kubeml logs -f: prints a job's log until the job ends, across controllers' restarts.
 *
 * A stream ends with its controller, and every stream begins with the whole log. So the log is read
 * again, and old lines are skipped (log_seen.h). Before each reading the job's state is read: a
 * reading that begins after the job's end is the last. The controller that gave the state may be
 * gone before it sends the log: the log is then requested again, as a stream that has begun.
 *
 * A log may be silent for hours. Then the job's state is read from time to time: a platform that
 * does not send it sends no log either. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "log_seen.h"

enum {
    LINE_BYTES_MAX = 64 << 20,
    /* How many responses 503 end the following of a log that never came, although the job's state
     * came just before: the first controller may have stopped leading in between, the second
     * response is final. */
    UNAVAILABLE_MAX = 2,
    LASTS_MS = 5000, /* a reading that lasted so long shows that the platform is there */
};

typedef struct follow {
    const cli *c;
    const char *id;
    write_behind *output;
    log_seen *seen;
    buf in; /* bytes received: an incomplete line, and the bytes that complete it */
    cli_stream stream;
    int64_t silent_ms; /* when this reading last brought bytes, or the job's state */
    err why;           /* ended this reading: no room for a line, or the platform is silent */
} follow;

/* Writes the bytes [from, to) in one piece; non-zero: nobody reads any more. */
static int give(follow *f, const char *from, const char *to)
{
    int over = to > from && write_behind_take(f->output, from, (size_t)(to - from));
    if (to > from)
        f->stream.heard_ms = clock_monotonic_ms();
    return over;
}

static int take(void *context, const char *bytes, size_t len)
{
    follow *f = context;
    size_t before = f->in.len;
    if (buf_append(&f->in, bytes, len, &f->why))
        return 1;
    const char *line = f->in.bytes, *end = line + f->in.len, *news = line;
    int over = 0;
    for (const char *at = line + before, *newline;
         !over && (newline = memchr(at, '\n', (size_t)(end - at))); at = line = newline + 1) {
        if (log_seen_is_new(f->seen, line, (size_t)(newline - line)))
            continue;
        over = give(f, news, line);
        news = newline + 1;
    }
    over = over || give(f, news, line);
    buf_consume(&f->in, (size_t)(line - f->in.bytes));
    f->silent_ms = clock_monotonic_ms();
    return over;
}

static bool is_unread(void *context)
{
    return write_behind_over(((follow *)context)->output);
}

/* Whether the platform still sends the job's state, while the log is silent. */
static bool is_there(follow *f)
{
    http_call call = {.method = "GET", .over = is_unread, .context = f};
    http_reply reply;
    int rc = cli_call_once(f->c, &call, cli_path(object_job.path, f->id, ""), &reply, &f->why);
    http_reply_free(&reply);
    f->silent_ms = clock_monotonic_ms();
    if (rc == 0)
        f->stream.heard_ms = f->silent_ms;
    return rc == 0;
}

static bool is_over(void *context)
{
    follow *f = context;
    bool silent = clock_monotonic_ms() - f->silent_ms >= HTTP_IDLE_S * 1000L;
    return is_unread(f) || (silent && !is_there(f));
}

/* Reads the log once. *last: the job had ended before this reading. */
static int read_all(follow *f, bool *last, long *status, err *e)
{
    cleanup_json json_t *task = NULL;
    http_reply reply;
    *status = 0;
    if (cli_call(f->c, "GET", cli_path(object_job.path, f->id, ""), NULL, &task, e))
        return -1;
    *last = watch_is_end(json_string_value(json_object_get(task, "state")));
    f->stream.begun = true; /* the platform is there */
    http_call call = {.method = "GET", .accept = "text/plain", .sink = take, .over = is_over,
                      .context = f, .idle_s = -1};
    log_seen_rewind(f->seen);
    buf_reset(&f->in);
    err_clear(&f->why);
    int64_t asked_ms = f->silent_ms = clock_monotonic_ms();
    const char *path = cli_path(object_job.path, f->id, "/logs?follow=true");
    int rc = cli_call_once(f->c, &call, path, &reply, e);
    *status = reply.status;
    http_reply_free(&reply);
    if (f->why.code != ERR_NONE) {
        *e = f->why;
        return -1;
    }
    if (*status == 200 && clock_monotonic_ms() - asked_ms >= LASTS_MS)
        f->stream.heard_ms = clock_monotonic_ms();
    return rc;
}

static int read_on(follow *f, err *e)
{
    bool last = false, streamed = false;
    int refusals = 0;
    long status;
    do {
        err_clear(e);
        if (read_all(f, &last, &status, e) == 0 && (last || is_unread(f)))
            return 0;
        streamed |= status == 200;
        refusals += status == 503;
        if (refusals == UNAVAILABLE_MAX && !streamed)
            break;
    } while (cli_again(&f->stream, status, e));
    if (e->code == ERR_NONE)
        err_set(e, ERR_UNAVAILABLE, "its stream ends before it does");
    return f->stream.begun ? err_wrap(e, "the log of job %.40s", f->id) : -1;
}

int follow_log(const cli *c, const char *id)
{
    follow f = {.c = c, .id = id, .stream = {.heard_ms = clock_monotonic_ms()}, .why = ERR_INIT};
    err e = ERR_INIT, unwritten = ERR_INIT;
    buf_init(&f.in, LINE_BYTES_MAX);
    f.seen = log_seen_open(&e);
    if (!f.seen || write_behind_open(&f.output, true, &e)) {
        log_seen_close(f.seen);
        return cli_fail(&e);
    }
    int status = read_on(&f, &e);
    int written = write_behind_close(f.output, &unwritten);
    log_seen_close(f.seen);
    buf_free(&f.in);
    if (written)
        return cli_unwritten(&unwritten);
    return status ? cli_stream_fail(&f.stream, id, &e) : CLI_OK;
}
