/* job_manager_follow.c: open event streams of jobs, and the places of these and of log streams,
 * which log_reader.c serves.
 *
 * Events are server-sent events: "state" with the task, at each change of state or reason, and
 * "epoch" with an epoch's figures. A new follower first gets what was before.
 *
 * A follower still has to receive the job's epochs from `told` on, and states, each after the
 * epochs that came before it. They become text a piece at a time, at the end of each turn of the
 * job manager, as the client reads: a history of a hundred thousand epochs delays neither jobs nor
 * other followers. The followers of a running job share its list of epochs. For an ended job the
 * caller's thread reads them from the history, JOB_MANAGER_PASTS_EPOCHS_MAX for all followers
 * together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "job_manager_call.h"

enum {
    PIECE_BYTES = 16 << 10, /* of a follower's text in one turn */
    PUSH_MS = 25,           /* until a client that had no room is tried again */
};

/* ---- what a follower receives ---------------------------------------------------------------- */

/* Appends an event to `pending`. */
static void say(follower *f, const char *name, const json_t *data)
{
    char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(12));
    if (!text || buf_printf(&f->pending, NULL, "event: %s\ndata: %s\n\n", name, text))
        f->gone = true;
    free(text);
}

static void drop_state(follower *f)
{
    state_due *first = f->states;
    f->states = first->next;
    json_decref(first->task);
    free(first);
}

static bool owes(const follower *f)
{
    return f->pending.len || f->states || f->told < json_array_size(f->epochs);
}

/* Appends the next event; false: there is none. */
static bool say_next(follower *f)
{
    if (f->states && f->states->after <= f->told) {
        say(f, "state", f->states->task);
        drop_state(f);
        return true;
    }
    if (f->told == json_array_size(f->epochs))
        return false;
    say(f, "epoch", json_array_get(f->epochs, f->told++));
    return true;
}

/* Sends one piece, if the client has room for it. */
static void feed(follower *f, int64_t now_ms)
{
    if (f->gone || now_ms < f->push_ms)
        return;
    while (!f->gone && f->pending.len < PIECE_BYTES && say_next(f))
        ;
    if (f->pending.len)
        f->gone |= !http_stream_push(f->stream, &f->pending, &f->stuck_ms);
    f->push_ms = f->pending.len ? now_ms + PUSH_MS : 0;
}

/* ---- states ---------------------------------------------------------------------------------- */

/* The fields of a state that make it worth sending again. Phases and messages change many times an
 * epoch. */
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

static json_t *task_of(job_manager *o, const char *id)
{
    const job *j = jobs_find(o->machine, id);
    json_t *out = NULL;
    jobs_look look = job_manager_look(o);
    if (j)
        return jobs_live_json(o, &look, j);
    cleanup_json json_t *record = NULL;
    if (job_query_record(o, id, &record, NULL) == 0) {
        out = jobs_task_json(record);
        json_object_set_new(out, "phase", json_null());
    }
    return out;
}

static void add_state(follower *f, json_t *task)
{
    char now[sizeof f->said];
    essence(task, now, sizeof now);
    if (strcmp(now, f->said) == 0)
        return;
    memcpy(f->said, now, sizeof now);
    state_due *due = calloc(1, sizeof *due), **end = &f->states;
    if (!due) {
        f->gone = true;
        return;
    }
    due->after = json_array_size(f->epochs);
    due->task = json_incref(task);
    while (*end)
        end = &(*end)->next;
    *end = due;
}

void follow_state(job_manager *o, const char *id)
{
    json_t *task = NULL;
    for (follower *f = o->followers; f; f = f->next) {
        if (f->ended || f->gone || strcmp(f->id, id) != 0)
            continue;
        if (!task)
            task = task_of(o, id);
        if (task)
            add_state(f, task);
    }
    json_decref(task);
}

void follow_end(job_manager *o, const char *id)
{
    for (follower *f = o->followers; f; f = f->next)
        if (strcmp(f->id, id) == 0)
            f->ended = true;
}

/* ---- the list -------------------------------------------------------------------------------- */

void follow_free(job_manager *o, follower *f)
{
    http_stream_close(f->stream);
    buf_free(&f->pending);
    while (f->states)
        drop_state(f);
    json_decref(f->epochs);
    atomic_fetch_sub(&o->pasts_epochs, f->recalled);
    for (log_position *p = f->positions, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(f);
    atomic_fetch_sub(&o->follower_count, 1);
}

int follow_place(job_manager *o, const char *id, bool logs, follower **out, err *e)
{
    if (atomic_load(&o->follower_count) >= JOB_MANAGER_FOLLOWERS_MAX)
        return err_set(e, ERR_UNAVAILABLE, "%d streams are open already",
                       JOB_MANAGER_FOLLOWERS_MAX);
    follower *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "no memory for a stream");
    snprintf(f->id, sizeof f->id, "%s", id);
    f->logs = logs;
    atomic_fetch_add(&o->follower_count, 1);
    *out = f;
    return 0;
}

int follow_recall(job_manager *o, follower *f, err *e)
{
    f->epochs = epochs_of_history(o->controller->store, f->id);
    f->recalled = json_array_size(f->epochs);
    if (atomic_fetch_add(&o->pasts_epochs, f->recalled) + f->recalled <=
        JOB_MANAGER_PASTS_EPOCHS_MAX)
        return 0;
    return err_set(e, ERR_UNAVAILABLE,
                   "the events of %d epochs at most are held for clients that read them still",
                   JOB_MANAGER_PASTS_EPOCHS_MAX);
}

/* Sets the follower's epochs and its first state. The job may have ended, or been resumed, since
 * the follower got its place. */
static void find_past(job_manager *o, follower *f)
{
    const job_context *s = job_context_find(o, f->id);
    if (s) {
        json_decref(f->epochs);
        f->epochs = json_incref(s->epochs);
    } else if (!f->epochs) {
        f->epochs = epochs_of_history(o->controller->store, f->id);
    }
    json_t *task = task_of(o, f->id);
    if (task)
        add_state(f, task);
    json_decref(task);
}

void follow_begin(job_manager *o, follower *f)
{
    if (!f->stream) {
        follow_free(o, f);
        return;
    }
    if (f->logs) {
        log_reader_follow(o, f);
        return;
    }
    buf_init(&f->pending, HTTP_STREAM_BYTES_MAX);
    f->ping_ms = clock_deadline_ms(JOB_MANAGER_STREAM_PING_MS);
    f->next = o->followers;
    o->followers = f;
    find_past(o, f);
    f->ended |= !jobs_find(o->machine, f->id);
}

/* Sends a comment of the event stream, which shows whether the client is gone; only between two
 * events. */
static void ping(follower *f, int64_t now_ms)
{
    if (now_ms < f->ping_ms)
        return;
    f->ping_ms = now_ms + JOB_MANAGER_STREAM_PING_MS;
    if (!owes(f))
        f->gone |= buf_append(&f->pending, ": here\n\n", 8, NULL) != 0;
}

void follow_timers(job_manager *o, int64_t now_ms)
{
    for (follower **at = &o->followers; *at;) {
        follower *f = *at;
        ping(f, now_ms);
        feed(f, now_ms);
        if (!f->gone && (!f->ended || owes(f))) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        follow_free(o, f);
    }
}

int64_t follow_deadline(const job_manager *o)
{
    int64_t first = INT64_MAX;
    for (const follower *f = o->followers; f; f = f->next) {
        int64_t due = f->gone || (f->ended && !owes(f)) ? 0 : owes(f) ? f->push_ms : f->ping_ms;
        first = due < first ? due : first;
    }
    return first;
}

void follow_close(job_manager *o)
{
    for (follower *f = o->followers, *next; f; f = next) {
        next = f->next;
        follow_free(o, f);
    }
    o->followers = NULL;
}
