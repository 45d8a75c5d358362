/* watch.c: follows a job through its server-sent events.
 *
 * A broken stream is requested again, so that a controller's restart does not end a watch. Every
 * stream begins with all past events, so that Last-Event-ID is not needed. An idle stream brings a
 * comment every 15 s: a stream that is silent for HTTP_IDLE_S is broken, and the watch ends after
 * CLI_SILENT_S of silence. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli.h"
#include "common/base/clock.h"

enum { EVENT_BYTES_MAX = 1 << 20 };

typedef struct watcher {
    bool quiet, headed, ended;
    cli_stream stream;
    int status;
    int last_epoch;
    int64_t deadline_ms;
    char said[512]; /* the last printed line on the job's state */
    err unwritten;  /* a line of the table could not be written: mostly, the reader is gone */
    buf in;
} watcher;

bool watch_is_end(const char *state)
{
    static const char *const ends[] = {"succeeded", "failed", "cancelled", "suspended"};
    for (size_t i = 0; state && i < sizeof ends / sizeof *ends; i++)
        if (strcmp(state, ends[i]) == 0)
            return true;
    return false;
}

static void on_epoch(watcher *w, const json_t *epoch)
{
    int number = (int)json_integer_value(json_object_get(epoch, "epoch"));
    if (w->quiet || number <= w->last_epoch)
        return;
    w->last_epoch = number;
    if (!w->headed)
        output_epochs_head();
    w->headed = true;
    static const char *const keys[EPOCH_VALUES] = {"train_loss", "validation_loss", "accuracy",
                                                   "seconds", "parallelism"};
    json_t *value[EPOCH_VALUES];
    for (size_t k = 0; k < EPOCH_VALUES; k++)
        value[k] = json_object_get(epoch, keys[k]);
    output_epoch(number, value);
    if (fflush(stdout) != 0)
        err_set_errno(&w->unwritten, errno, "standard output");
}

static void on_state(watcher *w, const json_t *task)
{
    const char *state = json_string_value(json_object_get(task, "state"));
    const char *reason = json_string_value(json_object_get(task, "reason"));
    const char *message = json_string_value(json_object_get(task, "message"));
    if (!state)
        return;
    bool succeeded = strcmp(state, "succeeded") == 0;
    w->ended = watch_is_end(state);
    if (w->ended)
        w->status = succeeded ? CLI_OK : CLI_FAILED;
    char text[512];
    /* A problem's reason is shown with its message, because users look the reason up, unless it
     * repeats the state (Cancelled). Otherwise the message is enough. */
    bool well = succeeded || strcmp(state, "running") == 0 || strcmp(state, "starting") == 0;
    bool named = !well && reason && *reason && strcasecmp(reason, state) != 0;
    snprintf(text, sizeof text, "%s%s%s%s%s", state, named ? ": " : "", named ? reason : "",
             message && *message ? ": " : "", message ? message : "");
    if (strcmp(text, w->said) == 0 || (w->quiet && !w->ended))
        return;
    snprintf(w->said, sizeof w->said, "%s", text);
    output_said(stderr, text, false);
    fputc('\n', stderr);
}

/* Handles one event; `text` has its lines, NUL-terminated. */
static void on_event(watcher *w, char *text)
{
    char *name = NULL, *data = NULL, *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "event:", 6) == 0)
            name = line + 6 + (line[6] == ' ');
        else if (strncmp(line, "data:", 5) == 0)
            data = line + 5 + (line[5] == ' ');
    }
    json_t *value = name && data ? json_loads(data, 0, NULL) : NULL;
    if (value || text[0] == ':')
        w->stream.heard_ms = clock_monotonic_ms();
    if (value && strcmp(name, "epoch") == 0)
        on_epoch(w, value);
    else if (value && strcmp(name, "state") == 0)
        on_state(w, value);
    json_decref(value);
}

static int take(void *context, const char *bytes, size_t len)
{
    watcher *w = context;
    if (buf_append(&w->in, bytes, len, NULL))
        return 1;
    for (char *end; !w->ended && w->in.len && (end = strstr(w->in.bytes, "\n\n"));) {
        *end = '\0';
        on_event(w, w->in.bytes);
        buf_consume(&w->in, (size_t)(end + 2 - w->in.bytes));
    }
    return w->ended || w->unwritten.code != ERR_NONE || clock_monotonic_ms() >= w->deadline_ms;
}

int watch_job(const cli *c, const char *id, bool quiet, long timeout_s)
{
    watcher w = {.quiet = quiet, .last_epoch = -1, .stream = {.heard_ms = clock_monotonic_ms()}};
    w.deadline_ms = clock_deadline_ms(timeout_s ? timeout_s * 1000 : -1);
    err e = ERR_INIT;
    char path[512];
    snprintf(path, sizeof path, "%s", cli_path("/tasks/", id, "/events"));
    long status = 0;
    do {
        buf_init(&w.in, EVENT_BYTES_MAX);
        http_call call = {
            .method = "GET", .accept = "text/event-stream", .sink = take, .context = &w};
        if (timeout_s)
            call.total_ms = clock_left_ms(w.deadline_ms) + 1;
        http_reply reply;
        err_clear(&e);
        cli_call_once(c, &call, path, &reply, &e);
        status = reply.status;
        http_reply_free(&reply);
        buf_free(&w.in);
        if (w.unwritten.code != ERR_NONE)
            return cli_unwritten(&w.unwritten);
        if (w.ended)
            return w.status;
        if (clock_monotonic_ms() >= w.deadline_ms) {
            fprintf(stderr, "kubeml: job %s did not end within %ld s\n", id, timeout_s);
            return CLI_FAILED;
        }
    } while (cli_again(&w.stream, status, &e));
    if (!e.code)
        err_set(&e, ERR_UNAVAILABLE, "job %.40s: its events end before it does", id);
    return cli_stream_fail(&w.stream, id, &e);
}
