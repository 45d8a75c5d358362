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

typedef struct pod_log {
    char *text;
    size_t len;
    char label[32];
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

static int split(const pod_log *log, int which, line **lines, size_t *count, size_t *max, err *e)
{
    char time[25] = "";
    for (const char *at = log->text, *end = log->text + log->len; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((newline ? newline : end) - at);
        if (*count == *max) {
            size_t more = *max ? *max * 2 : 1024;
            line *grown = realloc(*lines, more * sizeof **lines);
            if (!grown)
                return err_set(e, ERR_NOMEM, "no memory for the job's log");
            *lines = grown;
            *max = more;
        }
        if (has_time(at, len))
            snprintf(time, sizeof time, "%.24s", at);
        line *l = &(*lines)[*count];
        *l = (line){.pod = which, .order = *count, .text = at, .len = (int)len};
        memcpy(l->time, time, sizeof time);
        ++*count;
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
    line *lines = NULL;
    size_t count = 0, max = 0;
    int status = 0;
    for (size_t i = 0; i < pods && status == 0; i++)
        status = split(&logs[i], (int)i, &lines, &count, &max, e);
    if (count)
        qsort(lines, count, sizeof *lines, by_time);
    for (size_t i = 0; i < count && status == 0; i++)
        status = buf_printf(out, e, "%-12s| %.*s\n", logs[lines[i].pod].label, lines[i].len,
                            lines[i].text);
    free(lines);
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

/* Leaves what is new, up to the last whole line. A log over the limit shows only its tail, in which
 * what was seen cannot be counted: then following it ends there. */
static void cut_seen(pod_log *log, log_position *seen, bool ended)
{
    const char *last = ended ? NULL : memrchr(log->text, '\n', log->len);
    size_t whole = ended ? log->len : last ? (size_t)(last - log->text) + 1 : 0;
    size_t from = seen ? seen->seen : 0;
    from = from < whole ? from : whole;
    if (seen)
        seen->seen = whole;
    memmove(log->text, log->text + from, whole - from);
    log->len = whole - from;
}

/* `positions` NULL: everything. */
static int merge(owner *o, const char *id, log_position **positions, buf *out, err *e)
{
    size_t count = 0, used = 0;
    cleanup_free pod *all = calloc(CLUSTER_PODS_SEEN_MAX, sizeof *all);
    if (!all)
        return err_set(e, ERR_NOMEM, "no memory for the job's log");
    if (o->cluster->ops->list(o->cluster, all, CLUSTER_PODS_SEEN_MAX, &count, e))
        return -1;
    count = count < CLUSTER_PODS_SEEN_MAX ? count : CLUSTER_PODS_SEEN_MAX;
    cleanup_free pod_log *logs = calloc(count + 1, sizeof *logs);
    for (size_t i = 0; logs && i < count; i++) {
        pod_log *log = &logs[used];
        if (strcmp(all[i].job, id) != 0 ||
            o->cluster->ops->log_tail(o->cluster, all[i].name, CONTROLLER_LOG_BYTES_MAX, &log->text,
                                      &log->len, NULL))
            continue;
        label_of(&all[i], log->label, sizeof log->label);
        if (positions)
            cut_seen(log, position_of(positions, all[i].name), all[i].phase == POD_ENDED);
        used++;
    }
    int status = logs ? write_lines(logs, used, out, e)
                      : err_set(e, ERR_NOMEM, "no memory for the job's log");
    for (size_t i = 0; i < used; i++)
        free(logs[i].text);
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
    int status = logs_merged(o, id, &text, &e);
    /* What is too long is kept as far as it goes. */
    if (status && e.code != ERR_LIMIT)
        log_error("the log of job %s: %s", id, e.message);
    else if (text.len && jobs_store_log(o, id, text.bytes, text.len, &e))
        log_error("the log of job %s cannot be kept: %s", id, e.message);
    else
        forget_pods(o, id);
}
