/* fake_kube.c: see fake_kube.h. A thread a connection; all state behind one lock. */
#include "fake_kube.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "test.h"

enum { CONNECTIONS_MAX = 64, FAULTS_MAX = 64, REQUEST_BYTES_MAX = 1 << 20 };

typedef struct fault {
    fake_kind kind;
    fake_fault type;
    int status, value;
} fault;

typedef struct request_text {
    char method[12], path[1024], query[2400], token[300], type[80];
    char *body;
    int cuts; /* when it was counted: who sees the count may cut it from then on */
} request_text;

struct fake_kube {
    int listen_fd;
    char url[64], collection[300], token[300];
    char token_file[600]; /* "" unless it is to be rotated */
    char undeclared[64];  /* "" */
    pthread_t acceptor;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping, silent;
    json_t *pods, *others; /* by name; by path */
    json_t *events;        /* [{"type", "object"}], the versions ascending */
    long version, oldest;
    bool no_kubelet;
    int cuts; /* how often watches were told to end */
    fault faults[FAULTS_MAX];
    int fault_count;
    int requests[FAKE_KINDS];
    int fds[CONNECTIONS_MAX];
    pthread_t threads[CONNECTIONS_MAX];
    int connections;
};

typedef struct connection {
    fake_kube *f;
    int fd;
} connection;

/* ---- state ----------------------------------------------------------------------------------- */

static void set_version(json_t *object, long version)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", version);
    json_t *meta = json_object_get(object, "metadata");
    json_object_set_new(meta, "resourceVersion", json_string(text));
}

static void told(fake_kube *f, const char *type, const json_t *object)
{
    if (!f->silent)
        json_array_append_new(f->events,
                              json_pack("{s:s, s:I, s:o}", "type", type, "version",
                                        (json_int_t)f->version, "object", json_deep_copy(object)));
    pthread_cond_broadcast(&f->changed);
}

static void merge(json_t *into, json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach(patch, key, value)
    {
        json_t *old = json_object_get(into, key);
        if (json_is_null(value))
            json_object_del(into, key);
        else if (json_is_object(value) && json_is_object(old))
            merge(old, value);
        else
            json_object_set_new(into, key, json_deep_copy(value));
    }
}

static json_t *pod_new(fake_kube *f, const char *name)
{
    static int uids;
    char uid[24];
    (void)f;
    snprintf(uid, sizeof uid, "uid-%d", ++uids);
    return json_pack("{s:s, s:s, s:{s:s, s:s, s:s, s:{}}, s:{s:s}}", "apiVersion", "v1", "kind",
                     "Pod", "metadata", "name", name, "namespace", "test", "uid", uid, "labels",
                     "status", "phase", "Pending");
}

static void put_locked(fake_kube *f, const char *name, json_t *fields)
{
    json_t *pod = json_object_get(f->pods, name);
    bool fresh = !pod;
    if (fresh) {
        pod = pod_new(f, name);
        json_object_set_new(f->pods, name, pod);
    }
    json_t *spec = json_deep_copy(json_object_get(pod, "spec")),
           *meta = json_object_get(pod, "metadata");
    merge(pod, fields);
    json_int_t generation = json_integer_value(json_object_get(meta, "generation"));
    if (spec && !json_equal(spec, json_object_get(pod, "spec")))
        json_object_set_new(meta, "generation", json_integer(generation + 1));
    json_decref(spec);
    set_version(pod, ++f->version);
    told(f, fresh ? "ADDED" : "MODIFIED", pod);
}

static bool remove_locked(fake_kube *f, const char *name)
{
    json_t *pod = json_incref(json_object_get(f->pods, name));
    if (!pod)
        return false;
    json_object_del(f->pods, name);
    set_version(pod, ++f->version);
    told(f, "DELETED", pod);
    json_decref(pod);
    return true;
}

static void delete_locked(fake_kube *f, const char *name, json_t *pod, bool at_once)
{
    if (at_once || !f->no_kubelet) {
        remove_locked(f, name);
        return;
    }
    json_object_set_new(json_object_get(pod, "metadata"), "deletionTimestamp",
                        json_string("2026-01-01T00:00:00Z"));
    set_version(pod, ++f->version);
    told(f, "MODIFIED", pod);
}

static bool take_fault(fake_kube *f, fake_kind kind, fault *out)
{
    for (int i = 0; i < f->fault_count; i++)
        if (f->faults[i].kind == kind) {
            *out = f->faults[i];
            memmove(&f->faults[i], &f->faults[i + 1],
                    (size_t)(--f->fault_count - i) * sizeof *f->faults);
            return true;
        }
    return false;
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static bool send_all(int fd, const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

/* A string is sent as it is: a log. */
static bool answer(int fd, int status, int retry_after, const json_t *body, bool half)
{
    char head[300], retry[60] = "";
    char *text = json_is_string(body) ? strdup(json_string_value(body))
                 : body               ? json_dumps(body, JSON_COMPACT)
                                      : strdup("{}");
    if (retry_after >= 0)
        snprintf(retry, sizeof retry, "Retry-After: %d\r\n", retry_after);
    snprintf(head, sizeof head,
             "HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n",
             status, retry, strlen(text));
    bool whole = send_all(fd, head, strlen(head)) &&
                 send_all(fd, text, half ? strlen(text) / 2 : strlen(text));
    free(text);
    return whole && !half;
}

static bool answer_status(int fd, int status, int retry_after, const char *reason,
                          const char *message)
{
    json_t *body = json_pack("{s:s, s:s, s:s, s:s, s:i}", "kind", "Status", "status", "Failure",
                             "reason", reason, "message", message, "code", status);
    bool open = answer(fd, status, retry_after, body, false);
    json_decref(body);
    return open;
}

static bool send_chunk(int fd, const char *text, size_t len)
{
    char head[24];
    snprintf(head, sizeof head, "%zx\r\n", len);
    return send_all(fd, head, strlen(head)) && send_all(fd, text, len) && send_all(fd, "\r\n", 2);
}

static bool send_line(int fd, const json_t *event, bool half)
{
    char *text = json_dumps(event, JSON_COMPACT);
    size_t len = strlen(text);
    text[len] = '\n'; /* instead of the NUL */
    bool sent = send_chunk(fd, text, half ? len / 2 : len + 1);
    free(text);
    return sent && !half;
}

static void header(const char *head, const char *name, char *out, size_t bytes)
{
    const char *at = strcasestr(head, name);
    out[0] = '\0';
    if (at) {
        at += strlen(name);
        at += strspn(at, " ");
        snprintf(out, bytes, "%.*s", (int)strcspn(at, "\r\n"), at);
    }
}

/* `text` holds REQUEST_BYTES_MAX. */
static bool read_request(int fd, char *text, request_text *r)
{
    const size_t size = REQUEST_BYTES_MAX;
    char number[24];
    size_t len = 0;
    char *end = NULL;
    while (!end) {
        ssize_t n = recv(fd, text + len, size - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        text[len] = '\0';
        end = strstr(text, "\r\n\r\n");
    }
    char target[3500] = "";
    *end = '\0';
    sscanf(text, "%11s %3499s", r->method, target);
    char *query = strchr(target, '?');
    snprintf(r->query, sizeof r->query, "%s", query ? query + 1 : "");
    if (query)
        *query = '\0';
    snprintf(r->path, sizeof r->path, "%.1000s", target);
    header(text, "Authorization: Bearer", r->token, sizeof r->token);
    header(text, "Content-Type:", r->type, sizeof r->type);
    header(text, "Content-Length:", number, sizeof number);
    size_t want = (size_t)strtoul(number[0] ? number : "0", NULL, 10),
           start = (size_t)(end + 4 - text);
    while (len < start + want) {
        ssize_t n = recv(fd, text + len, size - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
    }
    text[len] = '\0';
    r->body = text + start;
    return true;
}

static long query_number(const char *query, const char *name, long otherwise)
{
    const char *at = strstr(query, name);
    return at ? strtol(at + strlen(name), NULL, 10) : otherwise;
}

/* ---- what is asked --------------------------------------------------------------------------- */

static bool do_list(fake_kube *f, int fd, const request_text *r, bool half)
{
    json_t *items = json_array(), *pod;
    const char *name, *token = strstr(r->query, "continue=");
    long limit = query_number(r->query, "limit=", 500), at = 0,
         from = token ? strtol(token + 9, NULL, 10) : 0;
    char version[24], next[24] = "";
    pthread_mutex_lock(&f->lock);
    json_object_foreach(f->pods, name, pod)
    {
        if (at >= from && at < from + limit)
            json_array_append_new(items, json_deep_copy(pod));
        at++;
    }
    snprintf(version, sizeof version, "%ld", f->version);
    pthread_mutex_unlock(&f->lock);
    if (at > from + limit)
        snprintf(next, sizeof next, "%ld", from + limit);
    json_t *body = json_pack("{s:s, s:{s:s, s:s}, s:o}", "kind", "PodList", "metadata",
                             "resourceVersion", version, "continue", next, "items", items);
    bool open = answer(fd, 200, -1, body, half);
    json_decref(body);
    return open;
}

/* The first event after `version`; NULL: none. */
static json_t *event_after(fake_kube *f, size_t *index, long version)
{
    for (; *index < json_array_size(f->events); ++*index) {
        json_t *event = json_array_get(f->events, *index);
        if (json_integer_value(json_object_get(event, "version")) > version)
            return json_pack("{s:O, s:O}", "type", json_object_get(event, "type"), "object",
                             json_object_get(event, "object"));
    }
    return NULL;
}

static bool do_watch(fake_kube *f, int fd, const request_text *r, const fault *bad)
{
    long version = query_number(r->query, "resourceVersion=", 0);
    size_t index = 0;
    static const char head[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    pthread_mutex_lock(&f->lock);
    bool gone = version < f->oldest;
    pthread_mutex_unlock(&f->lock);
    if (gone)
        return answer_status(fd, 410, -1, "Expired", "too old resource version");
    bool open = send_all(fd, head, sizeof head - 1);
    if (bad && bad->type == FAULT_NOISE)
        open = open && send_chunk(fd, "{\"type\":\"ADDED\",\"ob\n", 20);
    if (bad && bad->type == FAULT_GONE_EVENT) {
        json_t *event = json_pack("{s:s, s:{s:s, s:i, s:s}}", "type", "ERROR", "object", "kind",
                                  "Status", "code", 410, "message", "too old resource version");
        open = open && send_line(fd, event, false);
        json_decref(event);
    }
    while (open) {
        pthread_mutex_lock(&f->lock);
        json_t *event = NULL;
        while (!f->stopping && f->cuts == r->cuts && !(event = event_after(f, &index, version)))
            pthread_cond_wait(&f->changed, &f->lock);
        index++;
        pthread_mutex_unlock(&f->lock);
        open = event && send_line(fd, event, bad && bad->type == FAULT_HALF);
        json_decref(event);
    }
    return false;
}

static fake_kind kind_of(const fake_kube *f, const request_text *r)
{
    if (strcmp(r->method, "POST") == 0)
        return FAKE_CREATE;
    if (strcmp(r->method, "DELETE") == 0)
        return FAKE_DELETE;
    if (strcmp(r->method, "GET") != 0)
        return FAKE_PATCH;
    if (strcmp(r->path, f->collection) != 0)
        return FAKE_GET;
    return strstr(r->query, "watch=1") ? FAKE_WATCH : FAKE_LIST;
}

/* JSON patch, as far as labels go: test, add, replace and remove of one path. As the API server's, a
 * test for null holds where nothing is. */
static bool json_patch(json_t *object, const json_t *patch)
{
    json_t *step;
    size_t i;
    json_array_foreach(patch, i, step)
    {
        char path[300], *rest = path, *part, key[200] = "";
        json_t *at = object;
        const char *op = json_string_value(json_object_get(step, "op"));
        snprintf(path, sizeof path, "%s", json_string_value(json_object_get(step, "path")) + 1);
        while ((part = strsep(&rest, "/"))) {
            if (key[0])
                at = json_object_get(at, key);
            size_t n = 0;
            for (char *c = part; *c && n + 1 < sizeof key; c++) {
                bool slash = c[0] == '~' && c[1] == '1';
                key[n++] = slash ? '/' : *c;
                c += slash;
            }
            key[n] = '\0';
        }
        json_t *value = json_object_get(step, "value");
        const json_t *there = json_object_get(at, key);
        if (strcmp(op, "test") == 0 && !(there ? json_equal(there, value) : json_is_null(value)))
            return false;
        if (strcmp(op, "add") == 0 || strcmp(op, "replace") == 0)
            json_object_set(at, key, value);
        if (strcmp(op, "remove") == 0)
            json_object_del(at, key);
    }
    return true;
}

static bool patch_locked(json_t *object, const request_text *r, json_t *body)
{
    json_t *metadata = json_object_get(object, "metadata");
    json_int_t generation = json_integer_value(json_object_get(metadata, "generation"));
    if (generation && json_object_get(body, "spec"))
        json_object_set_new(metadata, "generation", json_integer(generation + 1));
    if (strstr(r->type, "json-patch"))
        return json_patch(object, body);
    merge(object, body);
    return true;
}

/* A patch or an object that says which version it is for, of an object that is another by now. */
static bool is_stale(const json_t *object, const json_t *body)
{
    const char *wanted =
        json_string_value(json_object_get(json_object_get(body, "metadata"), "resourceVersion"));
    const char *now =
        json_string_value(json_object_get(json_object_get(object, "metadata"), "resourceVersion"));
    return wanted && now && strcmp(wanted, now) != 0;
}

/* Not the one that is to be deleted: that had this name before. */
static bool is_another(const json_t *object, const json_t *options)
{
    const char *wanted =
        json_string_value(json_object_get(json_object_get(options, "preconditions"), "uid"));
    const char *uid =
        json_string_value(json_object_get(json_object_get(object, "metadata"), "uid"));
    return wanted && (!uid || strcmp(wanted, uid) != 0);
}

/* Beside a body the query says nothing. */
static bool is_at_once(const request_text *r, const json_t *options)
{
    const json_t *grace = json_object_get(options, "gracePeriodSeconds");
    return options ? json_is_integer(grace) && json_integer_value(grace) == 0
                   : strstr(r->query, "gracePeriodSeconds=0") != NULL;
}

static bool do_pod(fake_kube *f, int fd, const request_text *r, json_t *body, bool *found)
{
    const char *name = r->path + strlen(f->collection) + 1;
    json_t *copy = NULL;
    bool fits = true, stale = false;
    pthread_mutex_lock(&f->lock);
    json_t *pod = json_object_get(f->pods, name);
    *found = pod != NULL;
    stale = pod && strcmp(r->method, "DELETE") == 0 && is_another(pod, body);
    if (pod && strcmp(r->method, "PATCH") == 0) {
        stale = is_stale(pod, body);
        fits = !stale && patch_locked(pod, r, body);
        if (fits) {
            set_version(pod, ++f->version);
            told(f, "MODIFIED", pod);
        }
    }
    copy = pod ? json_deep_copy(pod) : NULL;
    if (pod && !stale && strcmp(r->method, "DELETE") == 0)
        delete_locked(f, name, pod, is_at_once(r, body));
    pthread_mutex_unlock(&f->lock);
    bool open = !copy   ? answer_status(fd, 404, -1, "NotFound", "pods not found")
                : stale ? answer_status(fd, 409, -1, "Conflict", "the object has been modified")
                : !fits ? answer_status(fd, 422, -1, "Invalid", "the test of a patch does not hold")
                        : answer(fd, 200, -1, copy, false);
    json_decref(copy);
    return open;
}

/* As the real one: a requirement on a node's field has one value. */
static bool is_valid(const json_t *body)
{
    const json_t *affinity =
        json_object_get(json_object_get(json_object_get(body, "spec"), "affinity"), "nodeAffinity");
    json_t *term, *field;
    size_t i, k;
    json_array_foreach (
        json_object_get(affinity, "preferredDuringSchedulingIgnoredDuringExecution"), i, term) {
        json_array_foreach (json_object_get(json_object_get(term, "preference"), "matchFields"), k,
                            field) {
            if (json_array_size(json_object_get(field, "values")) != 1)
                return false;
        }
    }
    return true;
}

static bool do_create(fake_kube *f, int fd, const request_text *r, json_t *body)
{
    if (!is_valid(body))
        return answer_status(fd, 422, -1, "Invalid",
                             "spec.affinity.nodeAffinity: matchFields: Required value: must be "
                             "only one value when `operator` is 'In' or 'NotIn'");
    const char *name =
        json_string_value(json_object_get(json_object_get(body, "metadata"), "name"));
    char path[1400];
    bool there, pods = strcmp(r->path, f->collection) == 0;
    snprintf(path, sizeof path, "%s/%s", r->path, name ? name : "");
    pthread_mutex_lock(&f->lock);
    there = json_object_get(pods ? f->pods : f->others, pods && name ? name : path) != NULL;
    if (!there && json_object_get(body, "spec"))
        json_object_set_new(json_object_get(body, "metadata"), "generation", json_integer(1));
    if (!there && pods && name)
        put_locked(f, name, body);
    else if (!there) {
        set_version(body, ++f->version);
        json_object_set(f->others, path, body);
    }
    const json_t *kept = pods && name ? json_object_get(f->pods, name) : body;
    json_t *copy = json_deep_copy(kept); /* others may change what is kept from now on */
    pthread_mutex_unlock(&f->lock);
    bool open = there ? answer_status(fd, 409, -1, "AlreadyExists", "pods already exists")
                      : answer(fd, 201, -1, copy, false);
    json_decref(copy);
    return open;
}

/* The object of the collection whose status subresource that is; NULL: there is none. */
static json_t *whose_status(const fake_kube *f, const request_text *r)
{
    char name[300];
    size_t base = strlen(f->collection) + 1;
    const char *end = strstr(r->path, "/status");
    if (!end || end[7] || strncmp(r->path, f->collection, base - 1) != 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)(end - r->path - (ptrdiff_t)base), r->path + base);
    return json_object_get(f->pods, name);
}

/* A new one is told to the watches; whoever asks for the subresource gets it too. */
static void set_status(fake_kube *f, const request_text *r, const json_t *body)
{
    json_t *object = whose_status(f, r), *status = json_object_get(body, "status");
    if (!object || !status || strcmp(r->method, "PATCH") != 0)
        return;
    json_t *now = strstr(r->type, "apply-patch")
                      ? json_object()
                      : json_deep_copy(json_object_get(object, "status"));
    now = now ? now : json_object();
    merge(now, status);
    json_object_set_new(json_object_get(f->others, r->path), "status", json_deep_copy(now));
    if (!json_equal(now, json_object_get(object, "status"))) {
        json_object_set(object, "status", now);
        set_version(object, ++f->version);
        told(f, "MODIFIED", object);
    }
    json_decref(now);
}

/* Whether the schema takes it; what a patch says of a field that it does not know is dropped. */
static bool keeps_to_schema(const fake_kube *f, const request_text *r, const json_t *body)
{
    json_t *status = json_object_get(body, "status");
    if (!f->undeclared[0] || !json_object_get(status, f->undeclared))
        return true;
    if (strstr(r->type, "apply-patch"))
        return false;
    json_object_del(status, f->undeclared);
    return true;
}

static bool do_other(fake_kube *f, int fd, const request_text *r, json_t *body)
{
    pthread_mutex_lock(&f->lock);
    json_t *object = json_object_get(f->others, r->path);
    if (object && strcmp(r->method, "PUT") == 0 && is_stale(object, body)) {
        pthread_mutex_unlock(&f->lock);
        return answer_status(fd, 409, -1, "Conflict", "it has been modified");
    }
    if (!keeps_to_schema(f, r, body)) {
        char text[200];
        snprintf(text, sizeof text,
                 "failed to create typed patch object (test/one; kubeml.dev/v1alpha1, "
                 "Kind=TrainJob): .status.%s: field not declared in schema",
                 f->undeclared);
        pthread_mutex_unlock(&f->lock);
        return answer_status(fd, 500, -1, "InternalError", text);
    }
    bool patched = strcmp(r->method, "PATCH") == 0;
    if (strcmp(r->method, "PUT") == 0 || (!object && strstr(r->type, "apply-patch")))
        json_object_set(f->others, r->path, body);
    else if (!object && patched && whose_status(f, r))
        json_object_set_new(f->others, r->path, json_pack("{s:{}}", "metadata"));
    else if (object && patched)
        merge(object, body);
    set_status(f, r, body);
    if (kind_of(f, r) == FAKE_PATCH && json_object_get(f->others, r->path))
        set_version(json_object_get(f->others, r->path), ++f->version);
    json_t *copy = json_deep_copy(json_object_get(f->others, r->path));
    if (strcmp(r->method, "DELETE") == 0)
        json_object_del(f->others, r->path);
    pthread_mutex_unlock(&f->lock);
    bool open = copy ? answer(fd, 200, -1, copy, false)
                     : answer_status(fd, 404, -1, "NotFound", "not found");
    json_decref(copy);
    return open;
}

static bool perform(fake_kube *f, int fd, const request_text *r, const fault *bad)
{
    json_t *body = r->body[0] ? json_loads(r->body, 0, NULL) : NULL;
    fake_kind kind = kind_of(f, r);
    size_t n = strlen(f->collection);
    bool open, found,
        pod = strncmp(r->path, f->collection, n) == 0 && r->path[n] == '/' &&
              !strchr(r->path + n + 1, '/'); /* not its log */
    if (kind == FAKE_LIST)
        open = do_list(f, fd, r, bad && bad->type == FAULT_HALF);
    else if (kind == FAKE_WATCH)
        open = do_watch(f, fd, r, bad);
    else if (kind == FAKE_CREATE)
        open = do_create(f, fd, r, body);
    else if (pod)
        open = do_pod(f, fd, r, body, &found);
    else
        open = do_other(f, fd, r, body);
    pthread_mutex_lock(&f->lock); /* parts of it are kept: the last holder frees them */
    json_decref(body);
    pthread_mutex_unlock(&f->lock);
    return open;
}

static void rotate_locked(fake_kube *f)
{
    err e = ERR_INIT;
    if (f->token_file[0])
        CHECK_OK(fs_write_file(f->token_file, f->token, strlen(f->token), 0600, &e), e);
    f->token_file[0] = '\0';
}

static bool serve(fake_kube *f, int fd, request_text *r)
{
    fault bad;
    fake_kind kind = kind_of(f, r);
    pthread_mutex_lock(&f->lock);
    f->requests[kind]++;
    r->cuts = f->cuts;
    bool known = !f->token[0] || strcmp(f->token, r->token) == 0;
    bool faulty = known && take_fault(f, kind, &bad);
    if (!known)
        rotate_locked(f);
    pthread_mutex_unlock(&f->lock);
    if (!known)
        return answer_status(fd, 401, -1, "Unauthorized", "Unauthorized");
    if (faulty && bad.type == FAULT_STATUS)
        return answer_status(fd, bad.status, bad.value, "Scripted", "as the test says");
    if (faulty && bad.type == FAULT_QUOTA)
        return answer_status(fd, 403, -1, "Forbidden",
                             "pods \"x\" is forbidden: exceeded quota: small, requested: pods=1");
    if (faulty && bad.type == FAULT_SILENT) {
        pthread_mutex_lock(&f->lock);
        while (!f->stopping)
            pthread_cond_wait(&f->changed, &f->lock);
        pthread_mutex_unlock(&f->lock);
    }
    if (faulty && (bad.type == FAULT_DROP || bad.type == FAULT_SILENT))
        return false;
    if (faulty && bad.type == FAULT_DONE_DROP) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        perform(f, pair[0], r, NULL);
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    return perform(f, fd, r, faulty ? &bad : NULL);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *talk(void *arg)
{
    connection *c = arg;
    request_text r;
    char *text = malloc(REQUEST_BYTES_MAX);
    while (read_request(c->fd, text, &r) && serve(c->f, c->fd, &r))
        ;
    free(text);
    shutdown(c->fd, SHUT_RDWR);
    free(c);
    return NULL;
}

static void *accept_all(void *arg)
{
    fake_kube *f = arg;
    for (;;) {
        int fd = accept(f->listen_fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        connection *c = malloc(sizeof *c);
        *c = (connection){f, fd};
        pthread_mutex_lock(&f->lock);
        CHECK(f->connections < CONNECTIONS_MAX);
        f->fds[f->connections] = fd;
        CHECK(pthread_create(&f->threads[f->connections++], NULL, talk, c) == 0);
        pthread_mutex_unlock(&f->lock);
    }
}

void fake_kube_collection(fake_kube *f, const char *path)
{
    snprintf(f->collection, sizeof f->collection, "%s", path);
}

fake_kube *fake_kube_start(void)
{
    fake_kube *f = calloc(1, sizeof *f);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    f->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(f->listen_fd, (struct sockaddr *)&at, sizeof at) == 0 &&
          listen(f->listen_fd, 64) == 0);
    CHECK(getsockname(f->listen_fd, (struct sockaddr *)&at, &len) == 0);
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    fake_kube_collection(f, FAKE_KUBE_PODS);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->pods = json_object();
    f->others = json_object();
    f->events = json_array();
    f->version = 100;
    CHECK(pthread_create(&f->acceptor, NULL, accept_all, f) == 0);
    return f;
}

void fake_kube_stop(fake_kube *f)
{
    shutdown(f->listen_fd, SHUT_RDWR);
    pthread_join(f->acceptor, NULL);
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_cond_broadcast(&f->changed);
    for (int i = 0; i < f->connections; i++)
        shutdown(f->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->connections; i++) {
        pthread_join(f->threads[i], NULL);
        close(f->fds[i]);
    }
    close(f->listen_fd);
    json_decref(f->pods);
    json_decref(f->others);
    json_decref(f->events);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- for the test ---------------------------------------------------------------------------- */

const char *fake_kube_url(const fake_kube *f)
{
    return f->url;
}

void fake_kube_fault(fake_kube *f, fake_kind kind, fake_fault type, int status, int value,
                     int times)
{
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < times; i++) {
        CHECK(f->fault_count < FAULTS_MAX);
        f->faults[f->fault_count++] = (fault){kind, type, status, value};
    }
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_token(fake_kube *f, const char *token)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->token, sizeof f->token, "%s", token ? token : "");
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_rotate(fake_kube *f, const char *file)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->token_file, sizeof f->token_file, "%s", file);
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_cut(fake_kube *f)
{
    pthread_mutex_lock(&f->lock);
    f->cuts++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_vanish(fake_kube *f)
{
    struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog all = {.len = 1, .filter = &drop};
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->connections; i++) {
        int unacknowledged; /* else it is sent again, and heard */
        while (ioctl(f->fds[i], SIOCOUTQ, &unacknowledged) == 0 && unacknowledged)
            poll(NULL, 0, 2);
        CHECK(setsockopt(f->fds[i], SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) == 0);
    }
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_compact(fake_kube *f)
{
    pthread_mutex_lock(&f->lock);
    f->oldest = f->version;
    json_array_clear(f->events);
    f->cuts++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_bookmark(fake_kube *f)
{
    pthread_mutex_lock(&f->lock);
    json_t *mark = json_pack("{s:s, s:{}}", "kind", "Pod", "metadata");
    set_version(mark, ++f->version);
    told(f, "BOOKMARK", mark);
    json_decref(mark);
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_stop_kubelet(fake_kube *f)
{
    pthread_mutex_lock(&f->lock);
    f->no_kubelet = true;
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_leave_out_events(fake_kube *f, bool yes)
{
    pthread_mutex_lock(&f->lock);
    f->silent = yes;
    pthread_mutex_unlock(&f->lock);
}

void fake_kube_put(fake_kube *f, const char *name, json_t *fields)
{
    pthread_mutex_lock(&f->lock);
    put_locked(f, name, fields);
    pthread_mutex_unlock(&f->lock);
    json_decref(fields);
}

void fake_kube_remove(fake_kube *f, const char *name)
{
    pthread_mutex_lock(&f->lock);
    remove_locked(f, name);
    pthread_mutex_unlock(&f->lock);
}

json_t *fake_kube_copy(fake_kube *f)
{
    pthread_mutex_lock(&f->lock);
    json_t *copy = json_deep_copy(f->pods);
    pthread_mutex_unlock(&f->lock);
    return copy;
}

void fake_kube_set(fake_kube *f, const char *path, json_t *object)
{
    pthread_mutex_lock(&f->lock);
    if (object)
        json_object_set_new(f->others, path, object);
    else
        json_object_del(f->others, path);
    pthread_mutex_unlock(&f->lock);
}

json_t *fake_kube_object(fake_kube *f, const char *path)
{
    pthread_mutex_lock(&f->lock);
    json_t *copy = json_deep_copy(json_object_get(f->others, path));
    pthread_mutex_unlock(&f->lock);
    return copy;
}

void fake_kube_undeclare(fake_kube *f, const char *field)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->undeclared, sizeof f->undeclared, "%s", field ? field : "");
    pthread_mutex_unlock(&f->lock);
}

int fake_kube_requests(fake_kube *f, fake_kind kind)
{
    int count = 0;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < FAKE_KINDS; i++)
        count += kind == FAKE_KINDS || kind == (fake_kind)i ? f->requests[i] : 0;
    pthread_mutex_unlock(&f->lock);
    return count;
}

int fake_kube_pending_faults(fake_kube *f)
{
    pthread_mutex_lock(&f->lock);
    int count = f->fault_count;
    pthread_mutex_unlock(&f->lock);
    return count;
}
