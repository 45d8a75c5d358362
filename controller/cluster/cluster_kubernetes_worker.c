/* cluster_kubernetes_worker.c: the thread that creates and deletes pods, one request at a time, and
 * reports pods that are slow to be made. See cluster_kubernetes_internal.h. */
#include "cluster_kubernetes_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "companion_objects.h"

/* Whether the text is an error in a log's place, with status 200: the node's runtime has no such
 * container any more. */
static bool is_no_log(const buf *text)
{
    static const char says[] = "unable to retrieve container logs for ";
    size_t n = sizeof says - 1;
    return text->len >= n && memcmp(text->bytes, says, n) == 0 &&
           !memchr(text->bytes, '\n', text->len - 1);
}

/* Whether the log is whole: the API server sends the last `lines` lines, or all where there are
 * fewer. */
static bool has_fewer_lines(const buf *text, size_t lines)
{
    size_t count = 0;
    for (const char *at = text->bytes, *end = at + text->len; at < end && count < lines; count++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline ? newline + 1 : end;
    }
    return count < lines;
}

int kube_fetch_log(kube *k, kube_client *c, const char *name, pod_role role, size_t bytes_max,
                   int64_t deadline_ms, cluster_log *out, err *e)
{
    char path[PATH_BYTES + 8], query[160];
    size_t lines = bytes_max / LOG_LINE_BYTES + 1;
    kube_outcome o;
    cleanup_buf buf text;
    buf_init(&text, KUBE_REPLY_BYTES_MAX);
    lines = lines < LOG_LINES_MAX ? lines : (size_t)LOG_LINES_MAX;
    kube_pods_path(k, name, path);
    snprintf(path + strlen(path), 8, "/log");
    snprintf(query, sizeof query, "container=%s&tailLines=%zu", k->templates.container[role],
             lines);
    if (kube_try(c, &(kube_request){.method = "GET", .path = path, .query = query}, deadline_ms,
                 &text, &o, e))
        return -1;
    if (is_no_log(&text))
        return err_set(e, ERR_NOT_FOUND, "pod %.60s: its containers are gone", name);
    const cluster_log all = {.text = text.bytes,
                             .len = text.len,
                             .from = has_fewer_lines(&text, lines) ? 0 : CLUSTER_LOG_FROM_UNKNOWN};
    return kube_tail(&all, bytes_max, out, e);
}

int kube_tail(const cluster_log *log, size_t bytes_max, cluster_log *out, err *e)
{
    size_t keep = log->len < bytes_max ? log->len : bytes_max, cut = log->len - keep;
    char *copy = malloc(keep + 1);
    if (!copy)
        return err_set(e, ERR_NOMEM, "no memory for a log");
    if (keep)
        memcpy(copy, log->text + cut, keep);
    copy[keep] = '\0';
    *out = (cluster_log){.text = copy, .len = keep, .from = log->from};
    if (out->from != CLUSTER_LOG_FROM_UNKNOWN)
        out->from += cut;
    return 0;
}

/* The worker's copy of an entry, for a request without the lock. */
typedef struct task {
    pod seen;
    char node[NODE_BYTES];
    want what;
    int grace_s;
    bool there, log, late;
    json_t *avoid; /* of WANT_CREATE */
} task;

typedef struct done {
    err why;
    int retry_after_ms;
    char uid[KUBE_UID_BYTES];
    cluster_log log; /* .text NULL: none was taken */
} done;

static void create(kube *k, const task *t, done *d)
{
    char path[PATH_BYTES];
    kube_outcome o;
    cleanup_json json_t *object =
        kube_pod_build(&k->templates, t->seen.name, t->seen.role, k->owner_uid);
    cleanup_buf buf text;
    buf_init(&text, KUBE_REPLY_BYTES_MAX);
    kube_pods_path(k, "", path);
    if (!object) {
        err_set(&d->why, ERR_NOMEM, "no memory for a pod");
        return;
    }
    kube_pod_avoid(object, t->avoid);
    kube_request r = {.method = "POST", .path = path, .body = object,
                      .query = "fieldManager=" KUBE_FIELD_MANAGER};
    /* It is there already: an earlier try's response was lost. Names are random, so the pod is
     * ours. */
    if (kube_try(k->work, &r, clock_deadline_ms(CALL_MS), &text, &o, &d->why) &&
        d->why.code == ERR_EXISTS && t->there)
        err_clear(&d->why);
    d->retry_after_ms = (int)o.retry_after_ms;
}

static void take_log(kube *k, const task *t, done *d)
{
    err why = ERR_INIT;
    int64_t began_ms = clock_monotonic_ms();
    if (kube_fetch_log(k, k->work, t->seen.name, t->seen.role, CLUSTER_KUBERNETES_LOG_BYTES,
                       began_ms + LOG_MS, &d->log, &why))
        kube_log_failed(k, t->node, began_ms, &why);
}

static void delete(kube *k, const task *t, done *d)
{
    char path[PATH_BYTES], query[80] = "";
    kube_outcome o;
    if (t->late)
        log_warn("pod %s was deleted and is still there: it is deleted without grace",
                 t->seen.name);
    if (t->log)
        take_log(k, t, d);
    kube_pods_path(k, t->seen.name, path);
    if (t->grace_s >= 0)
        snprintf(query, sizeof query, "gracePeriodSeconds=%d", t->grace_s);
    kube_request r = {.method = "DELETE", .path = path, .query = query[0] ? query : NULL};
    if (kube_try(k->work, &r, clock_deadline_ms(CALL_MS), NULL, &o, &d->why) &&
        d->why.code == ERR_NOT_FOUND) {
        err_clear(&d->why);
        o.status = 404;
    }
    d->retry_after_ms = (int)o.retry_after_ms;
    if (o.status == 404)
        d->retry_after_ms = -404;
}

static void after_create(kube *k, entry *p, const done *d)
{
    if (d->why.code == ERR_NONE) {
        p->want = p->want == WANT_CREATE ? WANT_NOTHING : p->want;
        p->there = true;
        p->slow_ms = clock_deadline_ms(CLUSTER_KUBERNETES_SLOW_MS);
        return;
    }
    bool unknown = d->why.code == ERR_TIMEOUT || d->why.code == ERR_UNAVAILABLE;
    p->there = p->there || unknown;
    if (p->want != WANT_CREATE)
        return;
    if (kube_may_pass(d->why.code)) {
        p->due_ms = clock_deadline_ms(kube_backoff_next(&p->backoff) +
                                      (d->retry_after_ms > 0 ? d->retry_after_ms : 0));
        kube_set_words(&p->seen,
                       d->why.code == ERR_LIMIT ? "QuotaExceeded" : "ApiServerUnavailable",
                       d->why.message);
        kube_note(k, p);
        return;
    }
    p->want = WANT_NOTHING;
    kube_set_words(&p->seen, d->why.code == ERR_FORBIDDEN ? "Forbidden" : "PodRefused",
                   d->why.message);
    kube_has_ended(k, p);
}

static void after_delete(kube *k, entry *p, done *d)
{
    if (d->log.text) {
        free(p->log.text);
        p->log = d->log;
        d->log.text = NULL;
    }
    if (d->why.code != ERR_NONE && kube_may_pass(d->why.code)) {
        p->due_ms = clock_deadline_ms(kube_backoff_next(&p->backoff) +
                                      (d->retry_after_ms > 0 ? d->retry_after_ms : 0));
        return;
    }
    if (d->why.code != ERR_NONE && d->why.code != ERR_CANCELLED)
        log_error("pod %s cannot be deleted: %s", p->seen.name, d->why.message);
    p->want = WANT_NOTHING;
    /* There is no such pod, and the watch may never have seen it. */
    if (d->retry_after_ms == -404 && !p->listed) {
        pod last = p->seen;
        kube_is_gone(k, p, &last);
    } else if (p->forgotten && !p->there) {
        kube_drop(k, p);
    } else if (p->there && !p->late && p->grace_s != 0) {
        int grace_s = p->grace_s > 0 ? p->grace_s : POD_OWN_GRACE_S;
        p->want = WANT_DELETE;
        p->late = true;
        p->due_ms = clock_deadline_ms(1000 * grace_s + k->late_ms);
    }
}

/* Sets a reason where Kubernetes gives none: while a registry does not answer, or a volume or the
 * pod's network is not there yet. */
static void say_slow(kube *k, entry *p)
{
    const json_t *template = p->seen.role == POD_PS ? k->templates.ps : k->templates.function;
    const json_t *list = json_object_get(json_object_get(template, "spec"), "containers");
    const char *image = json_string_value(json_object_get(json_array_get(list, 0), "image"));
    char message[CLUSTER_MESSAGE_BYTES];
    p->slow_ms = INT64_MAX;
    if (p->seen.phase != POD_PENDING || p->seen.reason[0] || p->want != WANT_NOTHING)
        return;
    snprintf(
        message, sizeof message,
        "the pod is still being made after %d s: its image (%.120s) is being pulled, or a volume or its network is not there",
        CLUSTER_KUBERNETES_SLOW_MS / 1000, image ? image : "?");
    kube_set_words(&p->seen, "ContainerCreating", message);
    kube_note(k, p);
}

static entry *next_task(kube *k, int64_t now, int64_t *first)
{
    entry *best = NULL;
    *first = k->count_ms < k->owed_ms ? k->count_ms : k->owed_ms;
    for (entry *p = k->entries; p; p = p->next) {
        if (p->slow_ms <= now)
            say_slow(k, p);
        *first = p->slow_ms < *first ? p->slow_ms : *first;
        if (p->want == WANT_NOTHING)
            continue;
        if (p->due_ms <= now && (!best || p->want == WANT_CREATE || best->want == WANT_DELETE))
            best = p; /* the oldest; creations before deletions */
        *first = p->due_ms < *first ? p->due_ms : *first;
    }
    return best;
}

static void count_again(kube *k)
{
    err e = ERR_INIT;
    uint64_t one = 1;
    int slots = 0;
    k->count_ms = INT64_MAX;
    pthread_mutex_unlock(&k->lock);
    int status = kube_count_slots(k, k->work, &slots, &e);
    pthread_mutex_lock(&k->lock);
    k->count_ms = clock_deadline_ms(k->slots_every_ms);
    if (status && e.code != ERR_CANCELLED)
        log_warn("%s", e.message);
    if (status || slots == k->counted)
        return;
    k->counted = slots;
    ssize_t n = write(k->event_fd, &one, sizeof one);
    (void)n; /* a full counter means that it is readable already */
}

static void perform(kube *k, entry *p)
{
    int grace_s = p->late ? 0 : p->grace_s;
    task t = {.seen = p->seen,
              .what = p->want,
              .grace_s = grace_s,
              .there = p->there,
              .late = p->late,
              .log = p->seen.job[0] && !p->log.text && !p->forgotten && p->listed &&
                     !kube_is_deaf(k, p->node)};
    done d = {.why = ERR_INIT, .retry_after_ms = -1};
    snprintf(t.node, sizeof t.node, "%s", p->node);
    t.avoid = t.what == WANT_CREATE && !p->anywhere ? kube_suspected(k) : NULL;
    p->avoids = p->avoids || json_array_size(t.avoid) > 0;
    p->create_ms = t.what == WANT_CREATE ? clock_monotonic_ms() : p->create_ms;
    p->busy = true;
    pthread_mutex_unlock(&k->lock);
    if (t.what == WANT_CREATE)
        create(k, &t, &d);
    else
        delete(k, &t, &d);
    pthread_mutex_lock(&k->lock);
    p->busy = false;
    if (t.what == WANT_CREATE)
        after_create(k, p, &d);
    else
        after_delete(k, p, &d);
    free(d.log.text);
    json_decref(t.avoid);
}

/* Makes the first of the owed objects; where that fails for now, moves it to the end. */
static void make_owed(kube *k)
{
    int64_t wait_ms = 0;
    cleanup_json json_t *one = json_incref(json_array_get(k->owed, 0));
    json_array_remove(k->owed, 0);
    bool settled = !kube_lives(k, companion_objects_pod(one));
    pthread_mutex_unlock(&k->lock);
    settled =
        settled || companion_objects_make_owed(k->work, one, clock_deadline_ms(CALL_MS), &wait_ms);
    pthread_mutex_lock(&k->lock);
    if (settled) {
        kube_backoff_reset(&k->owed_backoff);
    } else {
        json_array_append(k->owed, one);
        wait_ms += kube_backoff_next(&k->owed_backoff);
    }
    k->owed_ms = json_array_size(k->owed) ? clock_deadline_ms(wait_ms) : INT64_MAX;
}

void *kube_worker(void *arg)
{
    kube *k = arg;
    pthread_mutex_lock(&k->lock);
    while (!k->stopping) {
        int64_t first, now = clock_monotonic_ms();
        entry *p = next_task(k, now, &first);
        if (k->count_ms <= now) {
            count_again(k);
        } else if (k->owed_ms <= now) {
            make_owed(k);
        } else if (p) {
            perform(k, p);
        } else {
            clock_cond_wait(&k->changed, &k->lock, first);
        }
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}
