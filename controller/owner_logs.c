/* owner_logs.c: a job's log: its pods' lines merged by their time, and put into the store when it
 * has ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "log.h"
#include "owner_internal.h"
#include "store_watch.h"

typedef struct line {
    char time[25]; /* of this line or of the last one of its pod that has one */
    int pod;
    size_t order;
    const char *text;
    int len;
} line;

enum {
    LABEL_BYTES = 32,
    LABEL_WIDTH = 12,
    LEFT_OUT_BYTES = 96,
};

typedef struct pod_log {
    cluster_log tail; /* owned */
    const char *text; /* what is to be shown of it */
    size_t len;
    char label[LABEL_BYTES];
    char left_out[LEFT_OUT_BYTES]; /* a line that says that something is missing before; "" */
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

typedef struct line_list {
    line *all;
    size_t count, max;
} line_list;

static int add_line(line_list *list, int which, const char *text, size_t len, const char *time,
                    err *e)
{
    if (list->count == list->max) {
        size_t more = list->max ? list->max * 2 : 1024;
        line *grown = realloc(list->all, more * sizeof *list->all);
        if (!grown)
            return err_set(e, ERR_NOMEM, "no memory for the job's log");
        list->all = grown;
        list->max = more;
    }
    line *l = &list->all[list->count];
    *l = (line){.pod = which, .order = list->count++, .text = text, .len = (int)len};
    snprintf(l->time, sizeof l->time, "%s", time);
    return 0;
}

static int split(const pod_log *log, int which, line_list *list, err *e)
{
    char time[25] = "";
    if (log->left_out[0] && add_line(list, which, log->left_out, strlen(log->left_out), time, e))
        return -1;
    for (const char *at = log->text, *end = log->text + log->len; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((newline ? newline : end) - at);
        if (has_time(at, len))
            snprintf(time, sizeof time, "%.24s", at);
        if (add_line(list, which, at, len, time, e))
            return -1;
        at += len + 1;
    }
    return 0;
}

static int by_time(const void *a, const void *b)
{
    const line *x = a, *y = b;
    int order = strcmp(x->time, y->time);
    return order ? order : x->order < y->order ? -1 : 1;
}

static int write_lines(const pod_log *logs, size_t pods, buf *out, err *e)
{
    line_list lines = {0};
    int status = 0;
    for (size_t i = 0; i < pods && status == 0; i++)
        status = split(&logs[i], (int)i, &lines, e);
    if (lines.count)
        qsort(lines.all, lines.count, sizeof *lines.all, by_time);
    for (size_t i = 0; i < lines.count && status == 0; i++) {
        const line *l = &lines.all[i];
        status =
            buf_printf(out, e, "%-*s| %.*s\n", LABEL_WIDTH, logs[l->pod].label, l->len, l->text);
    }
    free(lines.all);
    return status;
}

/* How far a follower has seen a pod's log; NULL: no memory, all of it is taken for new. */
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

/* Where in the tail goes on what was seen. */
static size_t place_of(const cluster_log *tail, const log_position *seen, bool *gap)
{
    bool known = tail->from != CLUSTER_LOG_FROM_UNKNOWN;
    *gap = known && seen->seen < tail->from;
    if (*gap)
        return 0;
    if (known && seen->seen - tail->from <= tail->len)
        return (size_t)(seen->seen - tail->from);
    /* Its beginning is not known, or was thrown away since. The last place that looks like it: of a
     * log that says the same again and again something may be passed over, but nothing comes
     * twice. */
    size_t mark = seen->mark_len;
    char last = mark ? seen->mark[mark - 1] : '\0'; /* mostly a line's end: few places have it */
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
    uint64_t from = log->tail.from + (uint64_t)(log->text - log->tail.text);
    bool known = log->tail.from != CLUSTER_LOG_FROM_UNKNOWN && seen->seen <= from;
    if (known)
        snprintf(log->left_out, sizeof log->left_out, "(%llu bytes of this log are left out here)",
                 (unsigned long long)(from - seen->seen));
    else
        snprintf(log->left_out, sizeof log->left_out, "(a part of this log is left out here)");
}

/* To the first whole line after `at`, but for a log of one line alone. */
static size_t next_line(const cluster_log *tail, size_t at, size_t end)
{
    const char *newline = memchr(tail->text + at, '\n', end - at);
    size_t next = newline ? (size_t)(newline - tail->text) + 1 : end;
    return next < end ? next : at;
}

/* The first of the last lines that write_lines needs no more than `share` bytes for. */
static size_t last_lines(const pod_log *log, size_t from, size_t end, size_t share)
{
    const char *text = log->tail.text;
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

/* Leaves what is new, up to the last whole line; of that the end that fits into `share`. */
static void cut(pod_log *log, log_position *seen, bool whole_lines, size_t share)
{
    const cluster_log *tail = &log->tail;
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

/* `positions` NULL: everything. */
static int merge(owner *o, const char *id, log_position **positions, buf *out, err *e)
{
    size_t count = 0, mine = 0, used = 0;
    cleanup_free pod *all = calloc(CLUSTER_PODS_SEEN_MAX, sizeof *all);
    if (!all)
        return err_set(e, ERR_NOMEM, "no memory for the job's log");
    if (o->cluster->ops->list(o->cluster, all, CLUSTER_PODS_SEEN_MAX, &count, e))
        return -1;
    count = count < CLUSTER_PODS_SEEN_MAX ? count : CLUSTER_PODS_SEEN_MAX;
    for (size_t i = 0; i < count; i++)
        mine += strcmp(all[i].job, id) == 0;
    if (mine == 0)
        return 0;
    size_t share = (out->max - out->len) / mine;
    cleanup_free pod_log *logs = calloc(mine, sizeof *logs);
    for (size_t i = 0; logs && i < count; i++) {
        pod_log *log = &logs[used];
        if (strcmp(all[i].job, id) != 0 ||
            o->cluster->ops->log_tail(o->cluster, all[i].name, CONTROLLER_LOG_BYTES_MAX, &log->tail,
                                      NULL))
            continue;
        label_of(&all[i], log->label, sizeof log->label);
        log_position none = {0}, *seen = positions ? position_of(positions, all[i].name) : NULL;
        cut(log, seen ? seen : &none, positions && all[i].phase != POD_ENDED, share);
        used++;
    }
    int status = logs ? write_lines(logs, used, out, e)
                      : err_set(e, ERR_NOMEM, "no memory for the job's log");
    for (size_t i = 0; i < used; i++)
        free(logs[i].tail.text);
    return status;
}

int logs_merged(owner *o, const char *id, buf *out, err *e)
{
    return merge(o, id, NULL, out, e);
}

int logs_since(owner *o, const char *id, log_position **positions, buf *out, err *e)
{
    return merge(o, id, positions, out, e);
}

int logs_stored(owner *o, const char *id, buf *out, err *e)
{
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *entries = NULL;
    size_t count = 0;
    snprintf(prefix, sizeof prefix, "logs/%s/", id);
    if (store_blob_list(o->controller->store, prefix, NULL, 0, &entries, &count, e))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (store_blob_read(o->controller->store, entries[i].name, out, e))
            return -1;
    return 0;
}

int jobs_store_log(owner *o, const char *id, const char *text, size_t len, err *e)
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

/* Once it lies in the store the cluster need not keep it. */
static void forget_pods(owner *o, const char *id)
{
    size_t count = 0;
    cleanup_free pod *all = calloc(CLUSTER_PODS_SEEN_MAX, sizeof *all);
    if (!all || o->cluster->ops->list(o->cluster, all, CLUSTER_PODS_SEEN_MAX, &count, NULL))
        return;
    for (size_t i = 0; i < count && i < CLUSTER_PODS_SEEN_MAX; i++)
        if (all[i].phase == POD_ENDED && strcmp(all[i].job, id) == 0)
            o->cluster->ops->stop(o->cluster, all[i].name, 0, NULL);
}

void jobs_archive(owner *o, const char *id)
{
    cleanup_buf buf text;
    buf_init(&text, (size_t)CONTROLLER_LOG_BYTES_MAX * 16);
    err e = ERR_INIT;
    if (logs_merged(o, id, &text, &e))
        log_error("the log of job %s: %s", id, e.message);
    else if (text.len && jobs_store_log(o, id, text.bytes, text.len, &e))
        log_error("the log of job %s cannot be kept: %s", id, e.message);
    else
        forget_pods(o, id);
}
