/* owner_follow.c: open event streams of jobs, and the places of these and of log streams, which are
 * owner_reader.c's.
 *
 * Events are server-sent events: "state" with the task, at each change of state or reason, and
 * "epoch" with an epoch's figures. A new follower first gets what was before. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "json_read.h"
#include "log.h"
#include "owner_internal.h"

static void say(follower *f, const char *name, const json_t *data)
{
    char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(12));
    cleanup_buf buf line;
    buf_init(&line, HTTP_STREAM_BYTES_MAX);
    if (!text || buf_printf(&line, NULL, "event: %s\ndata: %s\n\n", name, text) ||
        !http_stream_write(f->stream, line.bytes, line.len))
        f->ended = true;
    free(text);
}

/* What makes a state worth telling again; phases and messages change many times an epoch. */
static void essence(const json_t *task, char *out, size_t bytes)
{
    static const char *const keys[] = {"state", "reason"};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof keys / sizeof *keys && used < bytes; i++) {
        const char *text = json_string_value(json_object_get(task, keys[i]));
        used += (size_t)snprintf(out + used, bytes - used, "%s|", text ? text : "");
    }
}

static json_t *task_of(owner *o, const char *id)
{
    const job *j = jobs_find(o->machine, id);
    json_t *out = NULL;
    if (j)
        return jobs_live_json(o, j);
    cleanup_json json_t *record = NULL;
    if (store_get(o->controller->store, "jobs", id, &record, NULL, NULL) == 0) {
        out = jobs_task_json(record);
        json_object_set_new(out, "phase", json_null());
    }
    return out;
}

static void say_state(follower *f, const json_t *task)
{
    char now[sizeof f->said];
    essence(task, now, sizeof now);
    if (strcmp(now, f->said) == 0)
        return;
    memcpy(f->said, now, sizeof now);
    say(f, "state", task);
}

void follow_state(owner *o, const char *id)
{
    json_t *task = NULL;
    for (follower *f = o->followers; f; f = f->next) {
        if (f->ended || strcmp(f->id, id) != 0)
            continue;
        if (!task)
            task = task_of(o, id);
        if (task)
            say_state(f, task);
    }
    json_decref(task);
}

void follow_epoch(owner *o, const char *id, const json_t *epoch)
{
    for (follower *f = o->followers; f; f = f->next)
        if (!f->ended && strcmp(f->id, id) == 0)
            say(f, "epoch", epoch);
}

void follow_end(owner *o, const char *id)
{
    for (follower *f = o->followers; f; f = f->next)
        if (strcmp(f->id, id) == 0)
            f->ended = true;
}

/* ---- the list -------------------------------------------------------------------------------- */

void follow_free(owner *o, follower *f)
{
    http_stream_close(f->stream);
    buf_free(&f->pending);
    for (log_position *p = f->positions, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(f);
    atomic_fetch_sub(&o->follower_count, 1);
}

static void say_past(owner *o, follower *f)
{
    side *s = sides_find(o, f->id);
    json_t *epochs = s ? json_incref(s->epochs) : epochs_of_history(o->controller->store, f->id);
    json_t *epoch, *task = task_of(o, f->id);
    size_t i;
    json_array_foreach(epochs, i, epoch)
        say(f, "epoch", epoch);
    if (task)
        say_state(f, task);
    json_decref(epochs);
    json_decref(task);
}

int follow_place(owner *o, const char *id, bool logs, follower **out, err *e)
{
    if (atomic_load(&o->follower_count) >= OWNER_FOLLOWERS_MAX)
        return err_set(e, ERR_UNAVAILABLE, "%d streams are open already", OWNER_FOLLOWERS_MAX);
    follower *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "no memory for a stream");
    snprintf(f->id, sizeof f->id, "%s", id);
    f->logs = logs;
    atomic_fetch_add(&o->follower_count, 1);
    *out = f;
    return 0;
}

void follow_begin(owner *o, follower *f)
{
    if (!f->stream) {
        follow_free(o, f);
        return;
    }
    if (f->logs) {
        reader_follow(o, f);
        return;
    }
    f->ping_ms = clock_deadline_ms(OWNER_STREAM_PING_MS);
    f->next = o->followers;
    o->followers = f;
    say_past(o, f);
    f->ended |= !jobs_find(o->machine, f->id);
}

/* A comment of the event stream, which shows a client that is gone. */
static void ping(follower *f, int64_t now_ms)
{
    if (now_ms < f->ping_ms)
        return;
    f->ping_ms = now_ms + OWNER_STREAM_PING_MS;
    f->ended |= !http_stream_write(f->stream, ": here\n\n", 8);
}

void follow_timers(owner *o, int64_t now_ms)
{
    for (follower **at = &o->followers; *at;) {
        follower *f = *at;
        ping(f, now_ms);
        if (!f->ended) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        follow_free(o, f);
    }
}

int64_t follow_deadline(const owner *o)
{
    int64_t first = INT64_MAX;
    for (const follower *f = o->followers; f; f = f->next) {
        int64_t due = f->ended ? 0 : f->ping_ms;
        first = due < first ? due : first;
    }
    return first;
}

void follow_close(owner *o)
{
    for (follower *f = o->followers, *next; f; f = next) {
        next = f->next;
        follow_free(o, f);
    }
    o->followers = NULL;
}
