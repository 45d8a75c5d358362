/* job_log.c: a job's log: its pods' lines, merged by their time, and put into the store when the
 * job has ended. log_reader.c decides when, in its thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "controller/ha/store_watch.h"
#include "job_manager_internal.h"

enum {
    LABEL_BYTES = 32,
    LABEL_WIDTH = 12,
    LEFT_OUT_BYTES = 96,
};

typedef struct pod_log {
    const cluster_log *tail;
    const char *text; /* the part to show */
    size_t len;
    char label[LABEL_BYTES];
    char left_out[LEFT_OUT_BYTES]; /* a line for what is missing before; "" */
} pod_log;

static bool has_time(const char *text, size_t len)
{
    return len > 24 && text[4] == '-' && text[10] == 'T' && text[23] == 'Z';
}

static void label_of(const pod *p, char *out, size_t bytes)
{
    int again = p->incarnation > 0 ? p->incarnation : 0;
    const char *role = p->role == POD_PS ? "ps" : "function";
    if (p->function >= 0 && again)
        snprintf(out, bytes, "%s-%d.%d", role, p->function, again);
    else if (p->function >= 0)
        snprintf(out, bytes, "%s-%d", role, p->function);
    else if (again)
        snprintf(out, bytes, "%s.%d", role, again);
    else
        snprintf(out, bytes, "%s", role);
}

/* Where merging stands in a pod's log. */
typedef struct cursor {
    const pod_log *log;
    const char *line; /* the next to write; NULL: there are no more */
    size_t len;
    const char *next;
    char time[25]; /* of this line, or of the last line before it with a time */
    char prefix[LABEL_BYTES + 2];
    size_t prefix_len;
} cursor;

static void step(cursor *c)
{
    size_t left = c->log->len - (size_t)(c->next - c->log->text);
    c->line = NULL;
    if (left == 0)
        return;
    const char *newline = memchr(c->next, '\n', left);
    c->line = c->next;
    c->len = newline ? (size_t)(newline - c->line) : left;
    c->next += newline ? c->len + 1 : left;
    if (has_time(c->line, c->len))
        snprintf(c->time, sizeof c->time, "%.24s", c->line);
}

static void begin(cursor *c, const pod_log *log)
{
    *c = (cursor){.log = log, .next = log->text};
    snprintf(c->prefix, sizeof c->prefix, "%-*s| ", LABEL_WIDTH, log->label);
    c->prefix_len = strlen(c->prefix);
    if (log->left_out[0]) {
        c->line = log->left_out;
        c->len = strlen(c->line);
    } else if (log->len) {
        step(c);
    }
}

/* Merges by time. Lines of a pod stay in their order; for equal times the first pod's line is
 * first. */
static int write_lines(const pod_log *logs, size_t pods, buf *out, err *e)
{
    cleanup_free cursor *all = calloc(pods ? pods : 1, sizeof *all);
    if (!all)
        return err_set(e, ERR_NOMEM, "no memory for the job's log");
    for (size_t i = 0; i < pods; i++)
        begin(&all[i], &logs[i]);
    for (;;) {
        cursor *first = NULL;
        for (cursor *c = all; c < all + pods; c++)
            if (c->line && (!first || strcmp(c->time, first->time) < 0))
                first = c;
        if (!first)
            return 0;
        if (buf_append(out, first->prefix, first->prefix_len, e) ||
            buf_append(out, first->line, first->len, e) || buf_append(out, "\n", 1, e))
            return -1;
        step(first);
    }
}

/* How far a follower has read a pod's log. NULL: no memory, so all of the log counts as new. */
static log_position *position_of(log_position **list, const char *name)
{
    for (log_position *p = *list; p; p = p->next)
        if (strcmp(p->pod, name) == 0)
            return p;
    log_position *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    snprintf(p->pod, sizeof p->pod, "%s", name);
    p->next = *list;
    *list = p;
    return p;
}

/* The offset in the tail at which the unread part begins. *gap: something is missing before it. */
static size_t place_of(const cluster_log *tail, const log_position *seen, bool *gap)
{
    bool known = tail->from != CLUSTER_LOG_FROM_UNKNOWN;
    *gap = known && seen->seen < tail->from;
    if (*gap)
        return 0;
    if (known && seen->seen - tail->from <= tail->len)
        return (size_t)(seen->seen - tail->from);
    /* The tail's offset is unknown, or the log was cut since. Takes the last place that looks like
     * the mark: in a repetitive log something may be passed over, but nothing is sent twice. */
    size_t mark = seen->mark_len;
    char last = mark ? seen->mark[mark - 1] : '\0'; /* mostly a newline: few places have it */
    for (size_t at = tail->len; mark && at >= mark; at--)
        if (tail->text[at - 1] == last && memcmp(tail->text + at - mark, seen->mark, mark) == 0)
            return at;
    *gap = true;
    return 0;
}

static void move_on(log_position *seen, const cluster_log *tail, size_t end)
{
    bool known = tail->from != CLUSTER_LOG_FROM_UNKNOWN;
    size_t mark = end < LOG_MARK_BYTES ? end : LOG_MARK_BYTES;
    seen->seen = known ? tail->from + end : CLUSTER_LOG_FROM_UNKNOWN;
    memcpy(seen->mark, tail->text + end - mark, mark);
    seen->mark_len = mark;
}

static void say_left_out(pod_log *log, const log_position *seen)
{
    uint64_t from = log->tail->from + (uint64_t)(log->text - log->tail->text);
    bool known = log->tail->from != CLUSTER_LOG_FROM_UNKNOWN && seen->seen <= from;
    if (known)
        snprintf(log->left_out, sizeof log->left_out, "(%llu bytes of this log are left out here)",
                 (unsigned long long)(from - seen->seen));
    else
        snprintf(log->left_out, sizeof log->left_out, "(a part of this log is left out here)");
}

/* The first whole line after `at`; `at` where there is none. */
static size_t next_line(const cluster_log *tail, size_t at, size_t end)
{
    const char *newline = memchr(tail->text + at, '\n', end - at);
    size_t next = newline ? (size_t)(newline - tail->text) + 1 : end;
    return next < end ? next : at;
}

/* The first of the last lines that take at most `share` bytes in write_lines. */
static size_t last_lines(const pod_log *log, size_t from, size_t end, size_t share)
{
    const char *text = log->tail->text;
    size_t label = strlen(log->label);
    size_t extra = (label > LABEL_WIDTH ? label : LABEL_WIDTH) + sizeof "| \n";
    size_t used = LEFT_OUT_BYTES + extra;
    for (size_t at = end; at > from;) {
        size_t begin = at - 1; /* no memrchr: ThreadSanitizer counts all before as read each time */
        while (begin > from && text[begin - 1] != '\n')
            begin--;
        used += at - begin + extra;
        if (used > share)
            return at;
        at = begin;
    }
    return from;
}

/* Sets the log's part to show: what is new, up to the last whole line, and of that the end that
 * fits into `share`. */
static void cut(pod_log *log, log_position *seen, bool whole_lines, size_t share)
{
    const cluster_log *tail = log->tail;
    const char *last = whole_lines ? memrchr(tail->text, '\n', tail->len) : NULL;
    size_t end = !whole_lines ? tail->len : last ? (size_t)(last - tail->text) + 1 : 0;
    bool gap;
    size_t from = place_of(tail, seen, &gap);
    if (from >= end)
        return;
    bool torn = gap && tail->from > 0; /* a tail begins within a line */
    size_t begin = last_lines(log, torn ? next_line(tail, from, end) : from, end, share);
    log->text = tail->text + begin;
    log->len = end - begin;
    if (gap || begin > from)
        say_left_out(log, seen);
    move_on(seen, tail, end);
}

int logs_pods(cluster *c, const char *id, bool ended_only, log_look *out, err *e)
{
    size_t count = 0, mine = 0;
    cleanup_free pod *all = NULL;
    if (cluster_list(c, &all, &count, e))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (strcmp(all[i].job, id) == 0 && (!ended_only || all[i].phase == POD_ENDED))
            all[mine++] = all[i];
    if (mine == 0)
        return 0;
    *out = (log_look){.pods = calloc(mine, sizeof *all), .tails = calloc(mine, sizeof *out->tails)};
    if (!out->pods || !out->tails)
        return err_set(e, ERR_NOMEM, "no memory for the job's log");
    memcpy(out->pods, all, mine * sizeof *all);
    out->count = mine;
    return 0;
}

void logs_read(cluster *c, log_look *l)
{
    failpoint("controller.read-logs");
    size_t share = l->count ? JOB_MANAGER_LOG_TAILS_MAX / l->count : 0;
    size_t max = share < CONTROLLER_LOG_BYTES_MAX ? share : CONTROLLER_LOG_BYTES_MAX;
    for (size_t i = 0; i < l->count; i++)
        if (c->ops->log_tail(c, l->pods[i].name, max, &l->tails[i], NULL))
            l->tails[i].text = NULL;
}

int logs_merge(const log_look *l, log_position **positions, buf *out, err *e)
{
    size_t used = 0;
    if (l->count == 0)
        return 0;
    size_t share = (out->max - out->len) / l->count;
    cleanup_free pod_log *logs = calloc(l->count, sizeof *logs);
    if (!logs)
        return err_set(e, ERR_NOMEM, "no memory for the job's log");
    for (size_t i = 0; i < l->count; i++) {
        const pod *p = &l->pods[i];
        if (!l->tails[i].text)
            continue;
        pod_log *log = &logs[used++];
        log->tail = &l->tails[i];
        label_of(p, log->label, sizeof log->label);
        log_position none = {0}, *seen = positions ? position_of(positions, p->name) : NULL;
        cut(log, seen ? seen : &none, positions && p->phase != POD_ENDED, share);
    }
    return write_lines(logs, used, out, e);
}

void logs_forget(cluster *c, const log_look *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->pods[i].phase == POD_ENDED)
            c->ops->stop(c, l->pods[i].name, 0, NULL);
}

void logs_free(log_look *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->tails[i].text);
    free(l->tails);
    free(l->pods);
    *l = (log_look){0};
}

/* The first of the last parts that fit into `room`, beside a line about parts left out. */
static size_t first_part(const blob_entry *parts, size_t count, size_t room)
{
    uint64_t all = 0;
    size_t first = count;
    for (size_t i = 0; i < count; i++)
        all += parts[i].bytes;
    if (all <= room)
        return 0;
    for (uint64_t used = LEFT_OUT_BYTES; first > 0; first--) {
        used += parts[first - 1].bytes;
        if (used > room)
            break;
    }
    return first;
}

static int say_parts(const blob_entry *parts, size_t left_out, size_t count, buf *out, err *e)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < left_out; i++)
        bytes += parts[i].bytes;
    return buf_printf(out, e,
                      "(the first %zu of %zu parts of this log, %llu bytes, are left out here)\n",
                      left_out, count, (unsigned long long)bytes);
}

int logs_stored(job_manager *o, const char *id, buf *out, err *e)
{
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *parts = NULL;
    size_t count = 0;
    snprintf(prefix, sizeof prefix, "logs/%s/", id);
    if (!store_watch_up(o->controller->watch, e) ||
        store_blob_list(o->controller->store, prefix, NULL, 0, &parts, &count, e))
        return -1;
    size_t first = first_part(parts, count, out->max - out->len);
    if (first > 0 && say_parts(parts, first, count, out, e))
        return -1;
    for (size_t i = first; i < count; i++)
        if (store_blob_read(o->controller->store, parts[i].name, out, e))
            return -1;
    return 0;
}

int logs_store(job_manager *o, const char *id, const char *text, size_t len, err *e)
{
    char prefix[STORE_KEY_BYTES], name[STORE_KEY_BYTES];
    blob_entry *entries = NULL;
    size_t count = 0;
    snprintf(prefix, sizeof prefix, "logs/%s/", id);
    if (!store_watch_up(o->controller->watch, e) ||
        store_blob_list(o->controller->store, prefix, NULL, 0, &entries, &count, e))
        return -1;
    free(entries);
    snprintf(name, sizeof name, "logs/%s/%04zu", id, count);
    return store_blob_put(o->controller->store, name, text, len, e);
}

int logs_delete(job_manager *o, const char *id, err *e)
{
    store *s = o->controller->store;
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *entries = NULL;
    size_t count = 0;
    snprintf(prefix, sizeof prefix, "logs/%s/", id);
    int status = store_blob_list(s, prefix, NULL, 0, &entries, &count, e);
    for (size_t i = 0; i < count && status == 0; i++)
        status = store_blob_delete(s, entries[i].name, e);
    return status;
}

int logs_whole(job_manager *o, const char *id, log_look *l, buf *out, err *e)
{
    cleanup_buf buf now;
    buf_init(&now, out->max - out->len - LEFT_OUT_BYTES);
    if (logs_merge(l, NULL, &now, e))
        return -1;
    logs_free(l);
    out->max -= now.len;
    int status = logs_stored(o, id, out, e);
    out->max += now.len;
    return status || buf_append(out, now.bytes, now.len, e) ? -1 : 0;
}
