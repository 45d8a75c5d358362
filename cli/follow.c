/* follow.c: kubeml logs -f: a job's log until the job ends, whatever becomes of its controller.
 *
 * A stream ends with its controller, well or not, and every stream begins with all there is. So it
 * is read again, and what was told before is passed over (log_seen.h); the job's state is asked for
 * before each reading, and the one that begins when the job has ended is the last. Who told of it
 * may be gone before it gives the log: it is asked for again as a stream is that was there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "cli.h"
#include "json_read.h"
#include "log_seen.h"

enum {
    LINE_BYTES_MAX = 64 << 20,
    /* Of a log that was never given, by who had just told of its job: the first may have lost its
     * leader in between, the second means it. */
    REFUSALS_MAX = 2,
};

typedef struct follow {
    write_behind *output;
    log_seen *seen;
    buf in; /* the line that is still to come in whole, and what comes with it */
    cli_stream stream;
    err why; /* of what was received */
} follow;

/* What is between the two goes on as one piece. */
static int give(follow *f, const char *from, const char *to)
{
    f->stream.heard |= to > from;
    return to > from && write_behind_take(f->output, from, (size_t)(to - from));
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
    return over;
}

static bool is_over(void *context)
{
    return write_behind_over(((follow *)context)->output);
}

/* One reading. *last: the job had ended before it. */
static int read_all(follow *f, const cli *c, const char *id, bool *last, long *status, err *e)
{
    cleanup_json json_t *task = NULL;
    http_reply reply;
    *status = 0;
    if (cli_call(c, "GET", cli_path(object_job.path, id, ""), NULL, &task, e))
        return -1;
    *last = watch_is_end(json_string_value(json_object_get(task, "state")));
    f->stream.begun = true; /* the platform is there */
    http_call call = {.method = "GET", .accept = "text/plain", .sink = take, .over = is_over,
                      .context = f, .idle_s = -1};
    log_seen_rewind(f->seen);
    buf_reset(&f->in);
    int rc = cli_call_once(c, &call, cli_path(object_job.path, id, "/logs?follow=true"), &reply, e);
    *status = reply.status;
    http_reply_free(&reply);
    if (f->why.code == ERR_NONE)
        return rc;
    *e = f->why;
    return -1;
}

static int read_on(follow *f, const cli *c, const char *id, err *e)
{
    bool last = false, streamed = false;
    int refusals = 0;
    long status;
    do {
        err_clear(e);
        if (read_all(f, c, id, &last, &status, e) == 0 && (last || is_over(f)))
            return 0;
        streamed |= status == 200;
        refusals += status == 503;
        if (refusals == REFUSALS_MAX && !streamed)
            break;
    } while (cli_again(&f->stream, status, e));
    if (e->code == ERR_NONE)
        err_set(e, ERR_UNAVAILABLE, "its stream ends before it does");
    return f->stream.begun ? err_wrap(e, "the log of job %.40s", id) : -1;
}

int follow_log(const cli *c, const char *id)
{
    follow f = {.why = ERR_INIT};
    err e = ERR_INIT, unwritten = ERR_INIT;
    buf_init(&f.in, LINE_BYTES_MAX);
    f.seen = log_seen_open(&e);
    if (!f.seen || write_behind_open(&f.output, &e)) {
        log_seen_close(f.seen);
        return cli_fail(&e);
    }
    int status = read_on(&f, c, id, &e);
    int written = write_behind_close(f.output, &unwritten);
    log_seen_close(f.seen);
    buf_free(&f.in);
    return written ? cli_unwritten(&unwritten) : status ? cli_fail(&e) : CLI_OK;
}
