/* follow.c: kubeml logs -f: a job's log until the job ends, whatever becomes of its controller.
 *
 * A stream ends with its controller, well or not, and every stream begins with all there is. So it
 * is read again, and what was told before is passed over (log_seen.h); the job's state is asked for
 * before each reading, and the one that begins when the job has ended is the last. Who told of it
 * may be gone before it gives the log: it is asked for again as a stream is that was there.
 *
 * A log may rightly be silent for hours. Where it is, the job is asked for meanwhile: who does not
 * tell of it gives no log either. */
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
    /* Of a log that was never given, by who had just told of its job: the first may have lost its
     * leader in between, the second means it. */
    BUILD_FAILURES_MAX = 2,
    LASTS_MS = 5000, /* a reading that took so long was no try in vain */
};

typedef struct follow {
    const cli *c;
    const char *id;
    write_behind *output;
    log_seen *seen;
    buf in; /* the line that is still to come in whole, and what comes with it */
    cli_stream stream;
    int64_t silent_ms; /* since when this reading brings nothing */
    err why;           /* it is over, by what was received, or that nothing was */
} follow;

/* What is between the two goes on as one piece. */
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

/* Whether the platform tells of the job, while its log says nothing. */
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

/* One reading. *last: the job had ended before it. */
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
        if (refusals == BUILD_FAILURES_MAX && !streamed)
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
