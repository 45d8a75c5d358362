/* log_reader.c: the thread that reads and merges logs, so that no job waits for them: a log has
 * megabytes, and an API server may take seconds for it.
 *
 * The thread does one thing at a time:
 * - It reads a log that a client asked for (log_reader_read).
 * - It serves open log streams. It reads each job's log every JOB_MANAGER_LOG_POLL_MS, or later
 *   where reading takes long, once for all followers of the job. It passes over a stream whose
 *   client has not taken what was there; that stream goes on later where it stood.
 * - It puts away the log of an ended job: it sends the rest to the job's followers, puts the log
 *   into the store, and then the job manager goes on with the job (job_archived).
 * So no log is put away while it is read, and nothing is sent twice.
 *
 * The thread holds at most JOB_MANAGER_LOGS_HELD_MAX bytes for clients that have not taken them. It
 * refuses a log that does not fit. A stream gets half of the room that is left, so that the next
 * stream gets some, and a line in place of the rest.
 *
 * The thread asks the job manager by job_manager_run; the job manager never waits for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "job_manager_call.h"

enum {
    ROOM_MIN = 64 << 10, /* below this room no stream is served; a job's last read has it always */
    LOOK_PACE = 3,       /* the pause after a read, in multiples of its duration */
    PUSH_MS = 25,        /* until a client that had no room is tried again */
};

/* A log that a client waits for; on the client's stack. */
typedef struct reading {
    const char *id;
    char *text;
    size_t len;
    int status;
    err why;
    bool done;
    struct reading *next;
} reading;

typedef struct ending {
    char id[JOB_ID_BYTES];
    bool done; /* drop the job after it */
    struct ending *next;
} ending;

struct log_reader {
    job_manager *job_manager;
    pthread_t thread;
    bool running;
    follower *followers; /* the thread's own */

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed; /* there is work, or a log is read */
    reading *asked;
    follower *coming;
    ending *endings;
    size_t held;
    bool stopping;
};

/* ---- bytes held for clients ------------------------------------------------------------------ */

static size_t room_of(log_reader *r)
{
    pthread_mutex_lock(&r->lock);
    size_t room =
        r->held < JOB_MANAGER_LOGS_HELD_MAX ? (JOB_MANAGER_LOGS_HELD_MAX - r->held) / 2 : 0;
    pthread_mutex_unlock(&r->lock);
    return room < JOB_MANAGER_LOG_BYTES_MAX ? room : JOB_MANAGER_LOG_BYTES_MAX;
}

/* Counts bytes as held; false: there is no room for them. */
static bool hold(log_reader *r, size_t bytes)
{
    pthread_mutex_lock(&r->lock);
    bool fits = r->held + bytes <= JOB_MANAGER_LOGS_HELD_MAX;
    r->held += fits ? bytes : 0;
    pthread_mutex_unlock(&r->lock);
    return fits;
}

/* Releases a buffer's spare room, so that only its bytes are held. */
static void shrink(buf *b)
{
    char *bytes = b->bytes ? realloc(b->bytes, b->len + 1) : NULL;
    if (!bytes)
        return;
    b->bytes = bytes;
    b->cap = b->len + 1;
}

static void let_go(log_reader *r, size_t bytes)
{
    pthread_mutex_lock(&r->lock);
    r->held -= bytes;
    pthread_mutex_unlock(&r->lock);
}

void log_reader_give_back(job_manager *o, char *text, size_t len)
{
    free(text);
    let_go(o->reader, len);
}

/* ---- reading a job's log --------------------------------------------------------------------- */

typedef struct looking {
    const char *id;
    bool known_only; /* ERR_NOT_FOUND where there is no such job */
    bool late;       /* of pods of an earlier run, which have ended */
    log_look *look;
    bool runs; /* the job, or its last pods */
    int status;
    err why;
} looking;

static void run_look(job_manager *o, void *arg)
{
    looking *l = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, l->id);
    l->runs = j != NULL;
    l->status = !j && l->known_only && job_query_record(o, l->id, &record, &l->why)
                    ? -1
                    : logs_pods(o->cluster, l->id, l->late && j && !job_ended(j), l->look, &l->why);
}

/* The caller frees l->look in any case. */
static int look_at(log_reader *r, looking *l, err *e)
{
    job_manager_run(r->job_manager, run_look, l);
    if (l->status) {
        if (e)
            *e = l->why;
        return -1;
    }
    logs_read(r->job_manager->cluster, l->look);
    return 0;
}

/* ---- a log for a client ---------------------------------------------------------------------- */

static int read_whole(log_reader *r, const char *id, buf *out, err *e)
{
    log_look look = {0};
    looking l = {.id = id, .known_only = true, .look = &look};
    int status = look_at(r, &l, e) || logs_whole(r->job_manager, id, &look, out, e) ? -1 : 0;
    logs_free(&look);
    return status;
}

static void give(log_reader *r, reading *x)
{
    cleanup_buf buf text;
    buf_init(&text, JOB_MANAGER_LOG_BYTES_MAX);
    x->status = read_whole(r, x->id, &text, &x->why) || buf_reserve(&text, 0, &x->why) ? -1 : 0;
    if (x->status == 0 && !hold(r, text.len))
        x->status =
            err_set(&x->why, ERR_UNAVAILABLE,
                    "the log of job %.40s has %zu MiB, and there is no room: %d MiB of logs "
                    "at most are held for others that have not taken them yet",
                    x->id, text.len >> 20, JOB_MANAGER_LOGS_HELD_MAX >> 20);
    if (x->status == 0) {
        shrink(&text);
        x->len = text.len;
        x->text = steal_ptr(text.bytes);
    }
    pthread_mutex_lock(&r->lock);
    x->done = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int log_reader_read(job_manager *o, const char *id, char **text, size_t *len, err *e)
{
    log_reader *r = o->reader;
    reading x = {.id = id};
    pthread_mutex_lock(&r->lock);
    if (r->stopping) {
        x.done = true;
        x.status = err_set(&x.why, ERR_UNAVAILABLE, "the controller ends");
    } else {
        reading **end = &r->asked;
        while (*end)
            end = &(*end)->next;
        *end = &x;
        pthread_cond_broadcast(&r->changed);
    }
    while (!x.done)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    *text = x.text;
    *len = x.len;
    if (x.status && e)
        *e = x.why;
    return x.status;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Sends as much as the client takes. A log may be longer than what a stream holds. */
static void push(log_reader *r, follower *f)
{
    bool alive = http_stream_push(f->stream, &f->pending, &f->stuck_ms);
    f->ended |= !alive;
    if (alive && f->pending.len)
        return;
    buf_free(&f->pending);
    let_go(r, f->held);
    f->held = 0;
}

/* Counts the most that `pending` has had since it was empty: the buffer does not shrink while it is
 * sent. */
static void note_held(log_reader *r, follower *f)
{
    if (f->pending.len <= f->held)
        return;
    shrink(&f->pending);
    pthread_mutex_lock(&r->lock);
    r->held += f->pending.len - f->held;
    pthread_mutex_unlock(&r->lock);
    f->held = f->pending.len;
}

/* Adds what is new since the last read. A line that a pod writes late, with an earlier time, comes
 * after what was sent: lines are in order within one read. */
static void take(log_reader *r, follower *f, const log_look *look)
{
    size_t room = room_of(r);
    f->pending.max = f->pending.len + (room > ROOM_MIN ? room : ROOM_MIN);
    logs_merge(look, &f->positions, &f->pending, NULL);
    note_held(r, f);
    push(r, f);
}

/* Adds the logs of the job's earlier runs. */
static void take_stored(log_reader *r, follower *f)
{
    err e = ERR_INIT;
    size_t room = room_of(r);
    f->pending.max = room > ROOM_MIN ? room : ROOM_MIN;
    if (logs_stored(r->job_manager, f->id, &f->pending, &e)) {
        f->pending.max += ROOM_MIN;
        buf_printf(&f->pending, NULL, "(the log of before is left out here: %s)\n", e.message);
    }
    note_held(r, f);
    push(r, f);
}

static bool wants(const follower *f, int64_t now_ms)
{
    return !f->ended && f->pending.len < HTTP_STREAM_BYTES_MAX && f->look_ms <= now_ms;
}

/* Reads a job's log once for all its followers. */
static void look_for(log_reader *r, const char *id)
{
    char whose[JOB_ID_BYTES]; /* a copy: the follower may be freed */
    log_look look = {0};
    snprintf(whose, sizeof whose, "%s", id);
    looking l = {.id = whose, .look = &look};
    int64_t began_ms = clock_monotonic_ms();
    err e = ERR_INIT;
    int status = look_at(r, &l, &e);
    int64_t took_ms = clock_monotonic_ms() - began_ms;
    int64_t pause_ms = LOOK_PACE * took_ms;
    int64_t next_ms =
        clock_deadline_ms(pause_ms > JOB_MANAGER_LOG_POLL_MS ? pause_ms : JOB_MANAGER_LOG_POLL_MS);
    if (status)
        log_warn("the log of job %s cannot be followed now: %s", whose, e.message);
    for (follower *f = r->followers; f; f = f->next) {
        if (strcmp(f->id, whose) != 0 || !wants(f, began_ms))
            continue;
        f->look_ms = next_ms;
        if (status == 0 && room_of(r) >= ROOM_MIN) {
            take(r, f, &look);
            f->ended |= !l.runs;
        }
    }
    logs_free(&look);
}

static void free_follower(log_reader *r, follower *f)
{
    let_go(r, f->held);
    follow_free(r->job_manager, f);
}

/* Sends what is held and frees followers that are done. Returns the job to read now, by the
 * follower that waits longest; NULL: none is due before *next_ms. */
static const char *tend(log_reader *r, int64_t now_ms, int64_t *next_ms)
{
    const follower *first = NULL;
    *next_ms = INT64_MAX;
    for (follower **at = &r->followers; *at;) {
        follower *f = *at;
        push(r, f);
        if (f->ended && !f->pending.len) {
            *at = f->next;
            free_follower(r, f);
            continue;
        }
        if (wants(f, now_ms) && (!first || f->look_ms < first->look_ms))
            first = f;
        int64_t due_ms = now_ms + (f->pending.len ? PUSH_MS : JOB_MANAGER_LOG_POLL_MS);
        *next_ms = due_ms < *next_ms ? due_ms : *next_ms;
        at = &f->next;
    }
    return first ? first->id : NULL;
}

void log_reader_follow(job_manager *o, follower *f)
{
    log_reader *r = o->reader;
    pthread_mutex_lock(&r->lock);
    bool stopping = r->stopping;
    if (!stopping) {
        f->next = r->coming;
        r->coming = f;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    if (stopping)
        follow_free(o, f);
}

/* ---- a job's end ----------------------------------------------------------------------------- */

typedef struct archived {
    const ending *ending;
    const log_look *look;
    bool kept;
} archived;

/* Deletes the stored log of a deleted job. The job may have been deleted before its log was stored:
 * a pod that did not end when asked ends late. */
static void drop_if_deleted(job_manager *o, const char *id)
{
    cleanup_json json_t *record = NULL;
    err e = ERR_INIT;
    if (job_query_record(o, id, &record, &e) == 0 || e.code != ERR_NOT_FOUND)
        return;
    job_manager_hold_if_fenced(o);
    err_clear(&e);
    if (logs_delete(o, id, &e))
        log_error("the log of job %s, which was deleted, stays: %s", id, e.message);
}

static void run_archived(job_manager *o, void *arg)
{
    const archived *a = arg;
    if (a->kept)
        drop_if_deleted(o, a->ending->id);
    /* Once the log is in the store, the cluster may delete it. */
    if (a->kept)
        logs_forget(o->cluster, a->look);
    if (a->ending->done)
        job_archived(o, a->ending->id);
}

static bool archive(log_reader *r, const char *id, const log_look *look)
{
    err e = ERR_INIT;
    cleanup_buf buf text;
    buf_init(&text, JOB_MANAGER_LOG_TAILS_MAX);
    if (logs_merge(look, NULL, &text, &e))
        log_error("the log of job %s: %s", id, e.message);
    else if (text.len && logs_store(r->job_manager, id, text.bytes, text.len, &e))
        log_error("the log of job %s cannot be kept: %s", id, e.message);
    return e.code == ERR_NONE;
}

static void put_away(log_reader *r, const ending *x)
{
    log_look look = {0};
    looking l = {.id = x->id, .late = !x->done, .look = &look};
    archived a = {.ending = x, .look = &look};
    err e = ERR_INIT;
    if (look_at(r, &l, &e)) {
        log_error("the log of job %s: %s", x->id, e.message);
    } else {
        for (follower *f = r->followers; f && x->done; f = f->next)
            if (!f->ended && strcmp(f->id, x->id) == 0) {
                take(r, f, &look);
                f->ended = true;
            }
        a.kept = archive(r, x->id, &look);
    }
    job_manager_run(r->job_manager, run_archived, &a);
    logs_free(&look);
}

void log_reader_archive(job_manager *o, const char *id, bool done)
{
    log_reader *r = o->reader;
    ending *x = calloc(1, sizeof *x);
    if (!x) {
        log_error("no memory to keep the log of job %s", id);
        if (done)
            job_archived(o, id);
        return;
    }
    snprintf(x->id, sizeof x->id, "%s", id);
    x->done = done;
    pthread_mutex_lock(&r->lock);
    ending **end = &r->endings;
    while (*end)
        end = &(*end)->next;
    *end = x;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Does one piece of queued work; false: there was none. Needs the lock, and releases it
 * meanwhile. */
static bool work(log_reader *r)
{
    ending *x = r->endings;
    follower *f = x ? NULL : r->coming;
    reading *a = x || f ? NULL : r->asked;
    if (!x && !f && !a)
        return false;
    if (x)
        r->endings = x->next;
    if (f)
        r->coming = f->next;
    if (a)
        r->asked = a->next;
    pthread_mutex_unlock(&r->lock);
    if (x) {
        put_away(r, x);
        free(x);
    } else if (f) {
        f->next = r->followers;
        r->followers = f;
        take_stored(r, f);
    } else {
        give(r, a);
    }
    pthread_mutex_lock(&r->lock);
    return true;
}

static void *run(void *arg)
{
    log_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stopping || r->endings) {
        bool more = work(r);
        pthread_mutex_unlock(&r->lock);
        int64_t next_ms, now_ms = clock_monotonic_ms();
        const char *id = tend(r, now_ms, &next_ms);
        if (id)
            look_for(r, id);
        pthread_mutex_lock(&r->lock);
        more |= id || r->endings || r->coming || r->asked || r->stopping;
        if (!more)
            clock_cond_wait(&r->changed, &r->lock, next_ms);
    }
    for (reading *x = r->asked; x; x = x->next) {
        x->status = err_set(&x->why, ERR_UNAVAILABLE, "the controller ends");
        x->done = true;
    }
    r->asked = NULL;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int log_reader_open(job_manager *o, err *e)
{
    log_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for the logs");
    r->job_manager = o;
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->changed);
    o->reader = r;
    return 0;
}

int log_reader_start(job_manager *o, err *e)
{
    if (pthread_create(&o->reader->thread, NULL, run, o->reader))
        return err_set(e, ERR_NOMEM, "no thread for the logs");
    o->reader->running = true;
    return 0;
}

void log_reader_stop(job_manager *o)
{
    log_reader *r = o->reader;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->running)
        pthread_join(r->thread, NULL);
    r->running = false;
}

void log_reader_close(job_manager *o)
{
    log_reader *r = o->reader;
    if (!r)
        return;
    for (ending *x = r->endings, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    follower **end = &r->followers;
    while (*end)
        end = &(*end)->next;
    *end = r->coming;
    for (follower *f = r->followers, *next; f; f = next) {
        next = f->next;
        free_follower(r, f);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
    o->reader = NULL;
}
