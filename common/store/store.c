/* store.c: the part that all stores share: names, JSON, pages. See store.h. */
#include "store.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/jsontext.h"
#include "store_driver.h"

/* MongoDB's driver is a shared object in lib, beside the program's folder, loaded only for a
 * locator that asks for it: libmongoc and its libraries would cost memory in every program. */
static const struct scheme {
    const char *name;
    const store_driver *driver; /* NULL: in `object` */
    const char *object;
} schemes[] = {
    {"lmdb:", &store_lmdb, NULL},
    {"mongodb:", NULL, "kubeml-mongo.so"},
    {"mongodb+srv:", NULL, "kubeml-mongo.so"},
};

/* The driver of store_add_driver. */
static const store_driver *added;

void store_add_driver(const store_driver *driver)
{
    added = driver;
}

static int object_path(const char *object, char out[FS_PATH_BYTES], err *e)
{
    char self[FS_PATH_BYTES];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0)
        return err_set_errno(e, errno, "/proc/self/exe");
    self[len] = '\0';
    for (int folders = 0; folders < 2; folders++) { /* PREFIX/bin/program */
        char *slash = strrchr(self, '/');
        if (slash)
            *slash = '\0';
    }
    return fs_path(out, e, "%s/lib/%s", self, object);
}

static const store_driver *load_driver(const struct scheme *s, err *e)
{
    char path[FS_PATH_BYTES];
    if (object_path(s->object, path, e) != 0)
        return NULL;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays: the driver has threads */
    if (!object) {
        err_set(e, ERR_UNSUPPORTED, "store %s is not in this build: %s", s->name, dlerror());
        return NULL;
    }
    /* On POSIX a function's address fits an object pointer. */
    union {
        void *symbol;
        store_driver_find find;
    } entry = {dlsym(object, STORE_DRIVER_SYMBOL)};
    const store_driver *driver = entry.symbol ? entry.find(s->name, sizeof *driver) : NULL;
    if (!driver)
        err_set(e, ERR_UNSUPPORTED, "store %s: %s is of another version", s->name, path);
    return driver;
}

/* Finds the driver; *rest: the locator after the scheme. NULL and `e` set: there is no such scheme,
 * or no driver. The error names the scheme alone, because a password may follow it. */
static const store_driver *driver_of(const char *locator, const char **rest, err *e)
{
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t len = strlen(schemes[i].name);
        if (strncmp(locator, schemes[i].name, len) == 0) {
            *rest = locator + len;
            return schemes[i].driver ? schemes[i].driver : load_driver(&schemes[i], e);
        }
    }
    if (added && strncmp(locator, added->scheme, strlen(added->scheme)) == 0) {
        *rest = locator + strlen(added->scheme);
        return added;
    }
    size_t len = strspn(locator, "abcdefghijklmnopqrstuvwxyz+");
    bool scheme = strncmp(locator + len, "://", 3) == 0 || strcmp(locator + len, ":") == 0;
    err_set(e, ERR_UNSUPPORTED,
            "the store \"%.*s...\" begins with none of lmdb:, mongodb: and mongodb+srv:",
            scheme ? (int)len + 1 : 0, locator);
    return NULL;
}

store *store_open(const char *locator, err *e)
{
    const char *rest;
    if (strlen(locator) >= STORE_LOCATOR_BYTES) {
        err_set(e, ERR_LIMIT, "a store's locator may have %d characters", STORE_LOCATOR_BYTES - 1);
        return NULL;
    }
    const store_driver *driver = driver_of(locator, &rest, e);
    store *s = driver ? driver->open(rest, e) : NULL;
    if (s)
        snprintf(s->locator, sizeof s->locator, "%s", locator);
    return s;
}

void store_redact(const char *locator, char out[STORE_LOCATOR_BYTES])
{
    const char *begin = strstr(locator, "://"), *at = NULL;
    if (begin)
        for (const char *p = begin + 3; *p && *p != '/' && *p != '?'; p++)
            if (*p == '@')
                at = p;
    if (at)
        snprintf(out, STORE_LOCATOR_BYTES, "%.*s%s", (int)(begin + 3 - locator), locator, at + 1);
    else
        snprintf(out, STORE_LOCATOR_BYTES, "%s", locator);
}

void store_close(store *s)
{
    if (!s)
        return;
    explicit_bzero(s->locator, sizeof s->locator);
    s->driver->close(s);
}

int store_ping(store *s, err *e)
{
    return s->driver->ping(s, e);
}

int store_sweep(store *s, size_t *removed, err *e)
{
    size_t count = 0;
    int result = s->driver->sweep(s, &count, e);
    if (removed)
        *removed = count;
    return result;
}

const char *store_scratch_dir(const store *s)
{
    return s->driver->scratch_dir(s);
}

/* ---- names --------------------------------------------------------------------------------- */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* Whether the key is segments of plain characters between slashes, none empty or beginning with a
 * dot. */
static bool is_key(const char *key)
{
    bool at_start = true;
    for (; *key; key++) {
        if (at_start ? !is_plain(*key) || *key == '.' : !is_plain(*key) && *key != '/')
            return false;
        at_start = *key == '/';
    }
    return !at_start;
}

static int check_key(const char *kind, const char *key, err *e)
{
    size_t len = key ? strlen(key) : 0;
    if (len >= STORE_KEY_BYTES)
        return err_set(e, ERR_INVALID, "%s \"%.20s...\" is longer than %d characters", kind, key,
                       STORE_KEY_BYTES - 1);
    if (!key || !is_key(key))
        return err_set(e, ERR_INVALID, "\"%s\" cannot be a %s", key ? key : "", kind);
    return 0;
}

/* A prefix may end anywhere, also after a slash. */
static int check_prefix(const char *prefix, err *e)
{
    if (prefix && strlen(prefix) >= STORE_KEY_BYTES)
        return err_set(e, ERR_INVALID, "a prefix is longer than %d characters",
                       STORE_KEY_BYTES - 1);
    for (const char *p = prefix; p && *p; p++)
        if (!is_plain(*p) && *p != '/')
            return err_set(e, ERR_INVALID, "\"%s\" cannot be a prefix", prefix);
    return 0;
}

static int check_collection(const char *collection, err *e)
{
    size_t len = strlen(collection);
    bool ok = len > 0 && len < STORE_COLLECTION_BYTES;
    for (size_t i = 0; ok && i < len; i++)
        ok = is_plain(collection[i]);
    return ok ? 0 : err_set(e, ERR_INVALID, "\"%.40s\" cannot be a collection", collection);
}

static int check_record(const char *collection, const char *key, err *e)
{
    return check_collection(collection, e) != 0 ? -1 : check_key("key", key, e);
}

/* ---- records ------------------------------------------------------------------------------- */

int store_put(store *s, const char *collection, const char *key, const json_t *value,
              uint64_t expected, uint64_t *version, err *e)
{
    if (check_record(collection, key, e) != 0)
        return -1;
    if (!json_is_object(value))
        return err_set(e, ERR_INVALID, "record %s/%s is not an object", collection, key);
    cleanup_buf buf text;
    buf_init(&text, STORE_RECORD_BYTES_MAX);
    if (jsontext_append(&text, value, JSON_COMPACT | JSON_REAL_PRECISION(17), e) != 0)
        return err_wrap(e, "record %s/%s", collection, key);
    uint64_t got = 0;
    if (s->driver->put(s, collection, key, text.bytes, text.len, expected, &got, e) != 0)
        return -1;
    if (version)
        *version = got;
    return 0;
}

static json_t *parse(const char *collection, const char *key, const char *text, size_t len, err *e)
{
    json_error_t problem;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
    if (!json_is_object(value)) {
        err_set(e, ERR_CORRUPT, "record %s/%s is no JSON object: %.80s", collection, key,
                value ? "another type" : problem.text);
        json_decref(value);
        return NULL;
    }
    return value;
}

int store_get(store *s, const char *collection, const char *key, json_t **value, uint64_t *version,
              err *e)
{
    if (check_record(collection, key, e) != 0)
        return -1;
    cleanup_buf buf text;
    buf_init(&text, STORE_RECORD_BYTES_MAX);
    uint64_t got = 0;
    if (s->driver->get(s, collection, key, &text, &got, e) != 0)
        return -1;
    json_t *json = parse(collection, key, text.bytes, text.len, e);
    if (!json)
        return -1;
    *value = json;
    if (version)
        *version = got;
    return 0;
}

int store_delete(store *s, const char *collection, const char *key, uint64_t expected, err *e)
{
    if (check_record(collection, key, e) != 0)
        return -1;
    return s->driver->remove(s, collection, key, expected, e);
}

typedef struct page_maker {
    const char *collection;
    store_page *page;
    size_t room;
} page_maker;

static int add_record(void *arg, const char *key, const char *text, size_t len, uint64_t version,
                      err *e)
{
    page_maker *m = arg;
    store_page *page = m->page;
    if (page->count == m->room) {
        size_t room = m->room ? 2 * m->room : 16;
        store_record *grown = realloc(page->records, room * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "no memory for a list of %s", m->collection);
        page->records = grown;
        m->room = room;
    }
    json_t *value = parse(m->collection, key, text, len, e);
    if (!value)
        return -1;
    char *copy = strdup(key);
    if (!copy) {
        json_decref(value);
        return err_set(e, ERR_NOMEM, "no memory for a list of %s", m->collection);
    }
    page->records[page->count++] = (store_record){copy, value, version};
    return 0;
}

int store_list(store *s, const char *collection, const char *prefix, const char *after,
               size_t limit, store_page *out, err *e)
{
    *out = (store_page){0};
    if (check_collection(collection, e) != 0 || check_prefix(prefix, e) != 0 ||
        (after && check_key("key", after, e) != 0))
        return -1;
    if (limit == 0 || limit > STORE_LIST_MAX)
        limit = STORE_LIST_MAX;
    page_maker maker = {.collection = collection, .page = out};
    return s->driver->list(s, collection, prefix ? prefix : "", after, limit, add_record, &maker,
                           &out->more, e);
}

void store_page_free(store_page *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->records[i].key);
        json_decref(p->records[i].value);
    }
    free(p->records);
    *p = (store_page){0};
}

int store_walk(store *s, const char *collection, store_visit visit, void *context, err *e)
{
    char after[STORE_KEY_BYTES] = "";
    for (bool more = true; more;) {
        store_page page;
        int status = store_list(s, collection, NULL, after[0] ? after : NULL, 0, &page, e);
        for (size_t i = 0; status == 0 && i < page.count; i++)
            status = visit(context, page.records[i].key, page.records[i].value, e);
        if (page.count)
            snprintf(after, sizeof after, "%s", page.records[page.count - 1].key);
        more = page.more && page.count;
        store_page_free(&page);
        if (status)
            return status;
    }
    return 0;
}

/* ---- blobs --------------------------------------------------------------------------------- */

int store_blob_begin(store *s, const char *name, blob_writer **out, err *e)
{
    return check_key("blob name", name, e) != 0 ? -1 : s->driver->blob_begin(s, name, out, e);
}

int blob_write(blob_writer *w, const void *bytes, size_t len, err *e)
{
    return w->store->driver->blob_write(w, bytes, len, e);
}

int blob_commit(blob_writer *w, err *e)
{
    return w->store->driver->blob_commit(w, false, e);
}

int blob_commit_over(blob_writer *w, err *e)
{
    return w->store->driver->blob_commit(w, true, e);
}

void blob_abort(blob_writer *w)
{
    if (w)
        w->store->driver->blob_abort(w);
}

int store_blob_put(store *s, const char *name, const void *bytes, size_t len, err *e)
{
    blob_writer *w;
    if (store_blob_begin(s, name, &w, e) != 0)
        return -1;
    if (blob_write(w, bytes, len, e) != 0) {
        blob_abort(w);
        return -1;
    }
    return blob_commit(w, e);
}

int store_blob_open(store *s, const char *name, blob **out, err *e)
{
    return check_key("blob name", name, e) != 0 ? -1 : s->driver->blob_open(s, name, out, e);
}

int store_blob_find(store *s, const char *name, uint64_t *bytes, err *e)
{
    blob *b;
    uint64_t unasked;
    if (!bytes)
        bytes = &unasked;
    if (check_key("blob name", name, e) != 0)
        return -1;
    if (s->driver->blob_find)
        return s->driver->blob_find(s, name, bytes, e);
    if (s->driver->blob_open(s, name, &b, e) != 0)
        return -1;
    *bytes = b->bytes;
    blob_close(b);
    return 0;
}

void blob_close(blob *b)
{
    if (b)
        b->store->driver->blob_close(b);
}

uint64_t blob_size(const blob *b)
{
    return b->bytes;
}

int blob_read_at(blob *b, uint64_t offset, void *out, size_t len, err *e)
{
    if (offset > b->bytes || len > b->bytes - offset)
        return err_set(e, ERR_INVALID, "bytes %llu to %llu of a blob of %llu",
                       (unsigned long long)offset, (unsigned long long)(offset + len),
                       (unsigned long long)b->bytes);
    return b->store->driver->blob_read_at(b, offset, out, len, e);
}

int blob_fd(blob *b, int *fd, err *e)
{
    return b->store->driver->blob_fd(b, fd, e);
}

int blob_path(blob *b, char out[FS_PATH_BYTES], err *e)
{
    return b->store->driver->blob_path(b, out, e);
}

int store_blob_read(store *s, const char *name, buf *out, err *e)
{
    blob *b;
    if (store_blob_open(s, name, &b, e) != 0)
        return -1;
    int result;
    if (b->bytes > out->max - out->len)
        result = err_set(e, ERR_LIMIT, "blob %s has %llu bytes, more than %zu", name,
                         (unsigned long long)b->bytes, out->max - out->len);
    else if ((result = buf_reserve(out, (size_t)b->bytes, e)) == 0 &&
             (result = blob_read_at(b, 0, out->bytes + out->len, (size_t)b->bytes, e)) == 0) {
        out->len += (size_t)b->bytes;
        out->bytes[out->len] = '\0';
    }
    blob_close(b);
    return result;
}

int store_blob_delete(store *s, const char *name, err *e)
{
    return check_key("blob name", name, e) != 0 ? -1 : s->driver->blob_delete(s, name, e);
}

int store_blob_list(store *s, const char *prefix, const char *after, size_t limit, blob_entry **out,
                    size_t *count, err *e)
{
    *out = NULL;
    *count = 0;
    if (check_prefix(prefix, e) != 0 || (after && check_key("blob name", after, e) != 0))
        return -1;
    if (limit == 0 || limit > STORE_LIST_MAX)
        limit = STORE_LIST_MAX;
    return s->driver->blob_list(s, prefix ? prefix : "", after, limit, out, count, e);
}

/* ---- chunk sets ---------------------------------------------------------------------------- */

int store_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e)
{
    return s->driver->chunks_begin(s, bytes_hint, id, out, e);
}

int chunk_put(chunk_writer *w, uint32_t split, uint32_t index, const void *bytes, size_t len,
              err *e)
{
    if (len > STORE_CHUNK_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "a chunk of %zu bytes, more than %d", len,
                       STORE_CHUNK_BYTES_MAX);
    return w->store->driver->chunk_put(w, split, index, bytes, len, e);
}

int chunk_put_info(chunk_writer *w, const char *text, size_t len, err *e)
{
    return w->store->driver->chunk_put_info(w, text, len, e);
}

int chunk_seal(chunk_writer *w, err *e)
{
    return w->store->driver->chunk_seal(w, e);
}

void chunk_release(chunk_writer *w)
{
    w->store->driver->chunk_release(w);
}

void chunk_abort(chunk_writer *w)
{
    if (w)
        w->store->driver->chunk_abort(w);
}

static bool is_id(const char *id)
{
    return strlen(id) == 16 && strspn(id, "0123456789abcdef") == 16;
}

int store_chunks_delete(store *s, const char *id, err *e)
{
    if (!is_id(id))
        return err_set(e, ERR_INVALID, "\"%.40s\" cannot be a chunk set's id", id);
    return s->driver->chunks_delete(s, id, e);
}

int store_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e)
{
    if (!is_id(id))
        return err_set(e, ERR_INVALID, "\"%.40s\" cannot be a chunk set's id", id);
    return s->driver->chunks_locator(s, id, out, e);
}

/* ---- users --------------------------------------------------------------------------------- */

int store_locator(store *s, store_use use, char out[STORE_LOCATOR_BYTES], err *e)
{
    if (s->driver->locator)
        return s->driver->locator(s, use, out, e);
    memcpy(out, s->locator, sizeof s->locator);
    return 0;
}

int store_revoke(store *s, const char *locator, err *e)
{
    return s->driver->revoke ? s->driver->revoke(s, locator, e) : 0;
}

int store_revoke_others(store *s, const char *const *kept, size_t count, size_t *revoked, err *e)
{
    size_t done = 0;
    int result = s->driver->revoke_others ? s->driver->revoke_others(s, kept, count, &done, e) : 0;
    if (revoked)
        *revoked = done;
    return result;
}

bool store_locator_has_user(const char *locator)
{
    char redacted[STORE_LOCATOR_BYTES];
    store_redact(locator, redacted);
    return strcmp(redacted, locator) != 0;
}

int chunk_reader_open(const char *locator, chunk_reader **out, err *e)
{
    const char *rest = locator;
    const store_driver *driver = locator[0] == '/' ? &store_lmdb : driver_of(locator, &rest, e);
    return driver ? driver->reader_open(rest, out, e) : -1;
}

void chunk_reader_close(chunk_reader *r)
{
    if (r)
        r->driver->reader_close(r);
}

int chunk_view(chunk_reader *r, uint32_t split, uint32_t index, const void **bytes, size_t *len,
               err *e)
{
    return r->driver->reader_view(r, split, index, bytes, len, e);
}

void chunk_view_release(chunk_reader *r, uint32_t split, uint32_t index)
{
    if (r->driver->reader_release)
        r->driver->reader_release(r, split, index);
}

int chunk_reader_info(chunk_reader *r, const char **text, size_t *len, err *e)
{
    return r->driver->reader_info(r, text, len, e);
}

void chunk_prefetch(chunk_reader *r, uint32_t split, const uint32_t *indices, size_t count)
{
    if (r->driver->reader_prefetch)
        r->driver->reader_prefetch(r, split, indices, count);
}

bool chunk_prefetches(const chunk_reader *r)
{
    return r->driver->reader_prefetch != NULL;
}

uint64_t chunk_reader_scratch_bytes(const chunk_reader *r)
{
    return r->driver->reader_scratch_bytes ? r->driver->reader_scratch_bytes(r) : 0;
}

void chunk_reader_reach(const chunk_reader *r, store_reach *out)
{
    *out = (store_reach){0};
    if (r->driver->reader_reach)
        r->driver->reader_reach(r, out);
}

bool chunk_reader_waits(chunk_reader *r, char *why, size_t size)
{
    *why = '\0';
    return r->driver->reader_waits && r->driver->reader_waits(r, why, size);
}

static int add_upload(void *context, const char *key, json_t *value, err *e)
{
    (void)key;
    store_ids *ids = context;
    const char *upload = json_string_value(json_object_get(value, "upload"));
    if (!upload || strlen(upload) >= STORE_ID_BYTES)
        return 0; /* no chunk set has such an id */
    if (ids->count == ids->room) {
        size_t room = ids->room ? 2 * ids->room : 64;
        void *grown = realloc(ids->at, room * sizeof *ids->at);
        if (!grown)
            return err_set(e, ERR_NOMEM, "no memory for a list of datasets");
        ids->at = grown;
        ids->room = room;
    }
    snprintf(ids->at[ids->count++], sizeof *ids->at, "%s", upload);
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

int store_named_chunks(store *s, store_ids *out, err *e)
{
    *out = (store_ids){0};
    if (store_walk(s, STORE_DATASETS, add_upload, out, e) != 0) {
        store_ids_free(out);
        return -1;
    }
    if (out->count)
        qsort(out->at, out->count, sizeof *out->at, by_text);
    return 0;
}

bool store_ids_have(const store_ids *ids, const char *id)
{
    return ids->count && bsearch(id, ids->at, ids->count, sizeof *ids->at, by_text);
}

void store_ids_free(store_ids *ids)
{
    free(ids->at);
    *ids = (store_ids){0};
}

int store_drop(store *s, err *e)
{
    return s->driver->drop ? s->driver->drop(s, e)
                           : err_set(e, ERR_UNSUPPORTED, "this store is removed by hand");
}
