/* kube_watch.c: see kube_watch.h.
 *
 *            +-----------------------------------------------------------+
 *            v           410, 401, not an event, ERROR                   |
 *   start -> LIST --ok--> WATCH --ends by itself, cut, 5xx--> WATCH again from `version`
 *
 * Invariants: `objects` is what was reported; `version` is that of the last event, bookmark or list
 * in `objects`. Both are the thread's own; the lock guards the counts and `synced`. */
#include "kube_watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"

enum { EVENT_DEPTH_MAX = 64, QUIET_MS = 1000, STACK_BYTES = 1 << 20 };

struct kube_watch {
    kube_watch_config config;
    char *path, *selector; /* of `config` */
    kube_client *client;
    pthread_t thread;
    bool running;

    json_t *objects; /* by "namespace/name" */
    char version[64];
    bool stale;    /* no watch can continue from `version`: list */
    bool moved;    /* this watch brought events */
    kube_backoff backoff;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    kube_watch_counts counts;
    size_t size;
    bool synced, stopping;
    err last;
};

/* ---- the copy -------------------------------------------------------------------------------- */

static const char *meta_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(object, "metadata"), key));
    return text ? text : "";
}

static void key_of(const json_t *object, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s/%s", meta_text(object, "namespace"), meta_text(object, "name"));
}

static void tell(kube_watch *w, kube_change change, const json_t *object)
{
    w->config.changed(w->config.context, change, object);
}

/* Removes fields that nothing here reads, most of an object. */
static void slim(json_t *object)
{
    json_t *meta = json_object_get(object, "metadata");
    json_object_del(meta, "managedFields");
    json_object_del(json_object_get(meta, "annotations"),
                    "kubectl.kubernetes.io/last-applied-configuration");
}

static int too_many(const kube_watch *w, err *e)
{
    return err_set(e, ERR_LIMIT,
                   "over %zu objects at %s: changes are not seen until there are fewer",
                   w->config.objects_max, w->config.path);
}

static int take_in(kube_watch *w, json_t *object, err *e)
{
    char key[2 * KUBE_NAME_BYTES];
    key_of(object, key, sizeof key);
    json_t *old = json_object_get(w->objects, key);
    if (old && strcmp(meta_text(old, "resourceVersion"), meta_text(object, "resourceVersion")) == 0)
        return 0;
    if (!old && json_object_size(w->objects) >= w->config.objects_max)
        return too_many(w, e);
    /* deleted and created anew under the same name between two looks */
    if (old && strcmp(meta_text(old, "uid"), meta_text(object, "uid")) != 0) {
        tell(w, KUBE_DELETED, old);
        old = NULL;
    }
    kube_change change = old ? KUBE_MODIFIED : KUBE_ADDED;
    slim(object);
    if (json_object_set(w->objects, key, object))
        return err_set(e, ERR_NOMEM, "no memory for the copy of %s", w->config.path);
    tell(w, change, object);
    return 0;
}

static void take_out(kube_watch *w, const char *key, const json_t *last)
{
    json_t *old = json_incref(json_object_get(w->objects, key));
    if (!old)
        return;
    json_object_del(w->objects, key);
    tell(w, KUBE_DELETED, last ? last : old);
    json_decref(old);
}


/* ---- list ------------------------------------------------------------------------------------ */

static int percent_encode(const char *text, char *out, size_t bytes)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t at = 0;
    for (; *text && at + 4 < bytes; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            c == '-' || c == '_') {
            out[at++] = (char)c;
            continue;
        }
        out[at++] = '%';
        out[at++] = digits[c >> 4];
        out[at++] = digits[c & 15];
    }
    out[at] = '\0';
    return *text ? -1 : 0;
}

/* Reads one page into `all`; `next` receives the token of the next page, or "". */
static int list_page(kube_watch *w, json_t *all, char *next, size_t next_bytes, char *version,
                     size_t version_bytes, err *e)
{
    char query[1600];
    cleanup_json json_t *page = NULL;
    snprintf(query, sizeof query, "limit=%d%s%s%s%s", KUBE_WATCH_PAGE,
             w->config.selector ? "&labelSelector=" : "",
             w->config.selector ? w->config.selector : "", next[0] ? "&continue=" : "", next);
    pthread_mutex_lock(&w->lock);
    w->counts.lists++;
    pthread_mutex_unlock(&w->lock);
    kube_request r = {.method = "GET", .path = w->config.path, .query = query};
    cleanup_buf buf text;
    buf_init(&text, KUBE_REPLY_BYTES_MAX);
    kube_outcome o;
    if (kube_try(w->client, &r, clock_deadline_ms(KUBE_WATCH_LIST_MS), &text, &o, e)) {
        if (o.retry_after_ms > 0)
            kube_client_sleep(w->client, (int)o.retry_after_ms);
        return -1;
    }
    if (json_read(text.bytes ? text.bytes : "", text.len, EVENT_DEPTH_MAX, &page, e))
        return err_wrap(e, "the list of %s", w->config.path);
    const char *token = meta_text(page, "continue");
    snprintf(version, version_bytes, "%s", meta_text(page, "resourceVersion"));
    if (percent_encode(token, next, next_bytes))
        return err_set(e, ERR_LIMIT, "the list's place to go on at is too long");
    json_t *items = json_object_get(page, "items");
    if (!json_is_array(items) || !version[0])
        return err_set(e, ERR_CORRUPT, "%s: the answer is not a list", w->config.path);
    return json_array_extend(all, items) ? err_set(e, ERR_NOMEM, "no memory for a list") : 0;
}

/* Replaces the copy: removes objects that the new list lacks, and takes in the others. */
static int replace(kube_watch *w, const json_t *all, err *e)
{
    cleanup_json json_t *keys = json_object(), *gone = json_array();
    json_t *object, *old;
    const char *name;
    char key[2 * KUBE_NAME_BYTES];
    size_t i;
    json_array_foreach(all, i, object) {
        key_of(object, key, sizeof key);
        json_object_set_new(keys, key, json_true());
    }
    json_object_foreach(w->objects, name, old) {
        if (!json_object_get(keys, name))
            json_array_append_new(gone, json_string(name));
    }
    json_array_foreach(gone, i, object)
        take_out(w, json_string_value(object), NULL);
    json_array_foreach(all, i, object) {
        if (take_in(w, object, e))
            return -1;
    }
    return 0;
}

static int list(kube_watch *w, err *e)
{
    char next[1400] = "", version[64] = "";
    cleanup_json json_t *all = json_array();
    do {
        if (!all || list_page(w, all, next, sizeof next, version, sizeof version, e))
            return all ? -1 : err_set(e, ERR_NOMEM, "no memory for a list");
    } while (next[0] && json_array_size(all) <= w->config.objects_max);
    if (next[0] || json_array_size(all) > w->config.objects_max)
        return too_many(w, e);
    if (replace(w, all, e))
        return -1;
    snprintf(w->version, sizeof w->version, "%s", version);
    w->stale = false;
    pthread_mutex_lock(&w->lock);
    w->synced = true;
    w->size = json_object_size(w->objects);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->config.listed)
        w->config.listed(w->config.context);
    return 0;
}

/* ---- watch ----------------------------------------------------------------------------------- */

static void count_event(kube_watch *w, bool bookmark)
{
    pthread_mutex_lock(&w->lock);
    ++*(bookmark ? &w->counts.bookmarks : &w->counts.events);
    w->size = json_object_size(w->objects);
    pthread_mutex_unlock(&w->lock);
}

/* An ERROR event, as for 410: ends the watch, and a list follows. */
static int on_error(kube_watch *w, const json_t *object)
{
    int code = (int)json_integer_value(json_object_get(object, "code"));
    const char *message = json_string_value(json_object_get(object, "message"));
    log_debug("watch of %s: %d %s", w->config.path, code, message ? message : "");
    w->stale = true;
    return 1;
}

static int on_line(void *context, char *line, size_t len)
{
    kube_watch *w = context;
    cleanup_json json_t *event = NULL;
    err e = ERR_INIT;
    json_t *object = NULL;
    const char *type = "";
    if (json_read(line, len, EVENT_DEPTH_MAX, &event, &e) == 0) {
        object = json_object_get(event, "object");
        type = json_string_value(json_object_get(event, "type"));
    }
    if (!type || !json_is_object(object)) {
        w->stale = true;
        return 1;
    }
    if (strcmp(type, "ERROR") == 0)
        return on_error(w, object);
    const char *version = meta_text(object, "resourceVersion");
    char key[2 * KUBE_NAME_BYTES];
    key_of(object, key, sizeof key);
    if (strcmp(type, "ADDED") == 0 || strcmp(type, "MODIFIED") == 0) {
        if (take_in(w, object, &e))
            w->stale = true;
    } else if (strcmp(type, "DELETED") == 0) {
        take_out(w, key, object);
    } else if (strcmp(type, "BOOKMARK") != 0) {
        w->stale = true;
    }
    if (w->stale)
        return 1;
    snprintf(w->version, sizeof w->version, "%s", version);
    w->moved = true;
    count_event(w, type[0] == 'B');
    return 0;
}

static int watch(kube_watch *w, kube_outcome *o, err *e)
{
    char query[900];
    int base = w->config.watch_s ? w->config.watch_s : KUBE_WATCH_S;
    int seconds = base + (int)rng_below(&w->backoff.random, (uint64_t)base + 1);
    snprintf(query, sizeof query,
             "watch=1&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%s%s%s", seconds,
             w->version, w->config.selector ? "&labelSelector=" : "",
             w->config.selector ? w->config.selector : "");
    pthread_mutex_lock(&w->lock);
    w->counts.watches++;
    pthread_mutex_unlock(&w->lock);
    w->moved = false;
    /* The server ends the watch; the deadline is for a server that is gone. */
    int64_t deadline = clock_deadline_ms((int64_t)seconds * 1000 + 10000);
    return kube_stream(w->client, w->config.path, query, deadline, on_line, w, o, e);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void note_failure(kube_watch *w, const err *why)
{
    pthread_mutex_lock(&w->lock);
    w->counts.failures++;
    w->last = *why;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->config.failed)
        w->config.failed(w->config.context, why);
}

/* Makes one request, and decides the next; returns how long to wait before that. */
static int step(kube_watch *w)
{
    err e = ERR_INIT;
    kube_outcome o = {.retry_after_ms = -1};
    if (w->stale) {
        if (list(w, &e) == 0)
            return 0; /* the back-off goes on until a watch lasts */
        if (e.code != ERR_CANCELLED)
            note_failure(w, &e);
        return kube_backoff_next(&w->backoff);
    }
    int64_t began = clock_monotonic_ms();
    int status = watch(w, &o, &e);
    bool held = w->moved || clock_monotonic_ms() - began >= QUIET_MS;
    if (status && e.code == ERR_CANCELLED)
        return 0;
    if (status)
        note_failure(w, &e);
    /* Lists after 410 and after a refused token, since the next token may see other objects. A
     * forbidden watch may be allowed after a list. */
    if (status && (e.code == ERR_STALE || e.code == ERR_FORBIDDEN || e.code == ERR_NOT_FOUND ||
                   e.code == ERR_UNAUTHORIZED || e.code == ERR_CORRUPT || e.code == ERR_INVALID ||
                   e.code == ERR_LIMIT))
        w->stale = true;
    if (held)
        kube_backoff_reset(&w->backoff);
    int wait = kube_backoff_next(&w->backoff);
    return o.retry_after_ms > 0 ? wait + (int)o.retry_after_ms : wait;
}

static bool stopping(kube_watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool yes = w->stopping;
    pthread_mutex_unlock(&w->lock);
    return yes;
}

static void *run(void *arg)
{
    kube_watch *w = arg;
    while (!stopping(w)) {
        int wait = step(w);
        if (wait > 0 && !kube_client_sleep(w->client, wait))
            break;
    }
    return NULL;
}

/* ---- start and end --------------------------------------------------------------------------- */

int kube_watch_start(const kube_watch_config *config, kube_watch **out, err *e)
{
    kube_watch *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for a watch");
    w->config = *config;
    if (!w->config.objects_max)
        w->config.objects_max = KUBE_WATCH_OBJECTS_MAX;
    w->stale = true;
    kube_backoff_init(&w->backoff, (uint64_t)clock_monotonic_ns());
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->changed);
    w->objects = json_object();
    w->config.path = w->path = strdup(config->path);
    w->config.selector = w->selector = config->selector ? strdup(config->selector) : NULL;
    if (!w->objects || !w->path || (config->selector && !w->selector)) {
        kube_watch_stop(w);
        return err_set(e, ERR_NOMEM, "no memory for a watch");
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    int status = kube_client_open(config->access, &w->client, e);
    if (status == 0 && pthread_create(&w->thread, &small, run, w))
        status = err_set(e, ERR_NOMEM, "no thread for a watch");
    pthread_attr_destroy(&small);
    if (status) {
        kube_watch_stop(w);
        return -1;
    }
    w->running = true;
    *out = w;
    return 0;
}

int kube_watch_wait(kube_watch *w, int64_t deadline_ms, err *e)
{
    int status = 0;
    bool over = false;
    pthread_mutex_lock(&w->lock);
    while (!w->synced && !over && w->last.code != ERR_FORBIDDEN && w->last.code != ERR_NOT_FOUND)
        over = !clock_cond_wait(&w->changed, &w->lock, deadline_ms);
    if (!w->synced)
        status = w->last.code == ERR_NONE
                     ? err_set(e, ERR_TIMEOUT, "the API server did not list %s", w->config.path)
                     : err_set(e, w->last.code, "%s", w->last.message);
    pthread_mutex_unlock(&w->lock);
    return status;
}

void kube_watch_counted(kube_watch *w, kube_watch_counts *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->counts;
    pthread_mutex_unlock(&w->lock);
}

size_t kube_watch_size(kube_watch *w)
{
    pthread_mutex_lock(&w->lock);
    size_t size = w->size;
    pthread_mutex_unlock(&w->lock);
    return size;
}

bool kube_watch_stands(const err *why)
{
    return why->code == ERR_LIMIT || why->code == ERR_FORBIDDEN || why->code == ERR_NOT_FOUND;
}

void kube_watch_stop(kube_watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_mutex_unlock(&w->lock);
    if (w->client)
        kube_client_cancel(w->client);
    if (w->running)
        pthread_join(w->thread, NULL);
    kube_client_close(w->client);
    json_decref(w->objects);
    free(w->path);
    free(w->selector);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
