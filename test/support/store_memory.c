/* store_memory.c: a store for tests: everything in this process's memory,
 * with the same promises but durability, and with failures on demand. See store.h.
 *
 * One lock a store. Chunk sets are counted: a reader keeps its set when the store lets go of it. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/store/store_driver.h"
#include "store_memory.h"

static const store_driver store_memory; /* below */

enum { ALIGNMENT = 64, BLOB_BYTES_MAX = 1 << 30 };

typedef struct record {
    char collection[STORE_COLLECTION_BYTES], key[STORE_KEY_BYTES];
    char *text;
    size_t len;
    uint64_t version;
} record;

typedef struct content {
    unsigned users;
    buf bytes;
} content;

typedef struct named_blob {
    char name[STORE_KEY_BYTES];
    content *content;
} named_blob;

typedef struct memory_chunk {
    uint32_t split, index;
    void *bytes; /* aligned */
    size_t len;
} memory_chunk;

typedef struct chunk_set {
    unsigned users;
    char id[STORE_ID_BYTES];
    memory_chunk *chunks;
    size_t count, room;
    char *info;
    size_t info_len;
} chunk_set;

typedef struct memory_store {
    store base;
    uint64_t serial; /* "memory:SERIAL/ID" locates a chunk set within the process */
    struct memory_store *next;
    pthread_mutex_t lock;
    uint64_t writes;
    record *records; /* ordered by collection, key */
    size_t record_count, record_room;
    named_blob *blobs; /* ordered by name */
    size_t blob_count, blob_room;
    chunk_set **sets; /* sealed ones */
    size_t set_count, set_room;
    unsigned fail_in; /* operations until the one that fails; 0: none does */
    err_code fail_code;
} memory_store;

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static memory_store *all;
static uint64_t next_serial = 1;

/* ---- arrays, order, failures --------------------------------------------------------------- */

/* Room for one more element; NULL when memory is gone. */
static void *grow(void *array, size_t count, size_t *room, size_t element)
{
    if (count < *room)
        return array;
    size_t more = *room ? 2 * *room : 8;
    void *grown = reallocarray(array, more, element);
    if (grown)
        *room = more;
    return grown;
}

static int no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "no memory in the memory store");
}

/* Begins an operation: takes the lock, or fails as told. */
static int begin(memory_store *s, err *e)
{
    pthread_mutex_lock(&s->lock);
    if (s->fail_in > 0 && --s->fail_in == 0) {
        err_code code = s->fail_code;
        pthread_mutex_unlock(&s->lock);
        return err_set(e, code, "the store was told to fail (%s)", err_name(code));
    }
    return 0;
}

static int end(memory_store *s, int result)
{
    pthread_mutex_unlock(&s->lock);
    return result;
}

void store_memory_fail(store *base, unsigned n, err_code code)
{
    assert(base->driver == &store_memory);
    memory_store *s = (memory_store *)base;
    pthread_mutex_lock(&s->lock);
    s->fail_in = n;
    s->fail_code = code;
    pthread_mutex_unlock(&s->lock);
}

/* ---- records ------------------------------------------------------------------------------- */

static int compare(const record *r, const char *collection, const char *key)
{
    int order = strcmp(r->collection, collection);
    return order ? order : strcmp(r->key, key);
}

/* Where the record is, or would be. */
static size_t place_of(const memory_store *s, const char *collection, const char *key, bool *found)
{
    size_t low = 0, high = s->record_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compare(&s->records[middle], collection, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < s->record_count && compare(&s->records[low], collection, key) == 0;
    return low;
}

static int check_expected(const memory_store *s, size_t at, bool found, const char *collection,
                          const char *key, uint64_t expected, err *e)
{
    if (!found)
        return expected == STORE_NEW || expected == STORE_ANY
                   ? 0
                   : err_set(e, ERR_NOT_FOUND, "%s/%s is gone", collection, key);
    if (expected == STORE_NEW)
        return err_set(e, ERR_EXISTS, "%s/%s exists", collection, key);
    if (expected != STORE_ANY && expected != s->records[at].version)
        return err_set(e, ERR_CONFLICT, "%s/%s has version %llu, not %llu", collection, key,
                       (unsigned long long)s->records[at].version, (unsigned long long)expected);
    return 0;
}

static int put_locked(memory_store *s, const char *collection, const char *key, const char *text,
                      size_t len, uint64_t expected, uint64_t *version, err *e)
{
    bool found;
    size_t at = place_of(s, collection, key, &found);
    if (check_expected(s, at, found, collection, key, expected, e) != 0)
        return -1;
    char *copy = malloc(len + 1);
    record *grown = copy ? grow(s->records, s->record_count, &s->record_room, sizeof *grown) : NULL;
    if (!grown) {
        free(copy);
        return no_memory(e);
    }
    s->records = grown;
    memcpy(copy, text, len);
    record *r = &s->records[at];
    if (found) {
        free(r->text);
    } else {
        memmove(r + 1, r, (s->record_count - at) * sizeof *r);
        s->record_count++;
        snprintf(r->collection, sizeof r->collection, "%s", collection);
        snprintf(r->key, sizeof r->key, "%s", key);
    }
    r->text = copy;
    r->len = len;
    *version = r->version = ++s->writes;
    return 0;
}

static int memory_put(store *base, const char *collection, const char *key, const char *text,
                      size_t len, uint64_t expected, uint64_t *version, err *e)
{
    memory_store *s = (memory_store *)base;
    return begin(s, e) != 0
               ? -1
               : end(s, put_locked(s, collection, key, text, len, expected, version, e));
}

static int memory_get(store *base, const char *collection, const char *key, buf *out,
                      uint64_t *version, err *e)
{
    memory_store *s = (memory_store *)base;
    if (begin(s, e) != 0)
        return -1;
    bool found;
    size_t at = place_of(s, collection, key, &found);
    if (!found)
        return end(s, err_set(e, ERR_NOT_FOUND, "no %s/%s", collection, key));
    *version = s->records[at].version;
    return end(s, buf_append(out, s->records[at].text, s->records[at].len, e));
}

static int memory_remove(store *base, const char *collection, const char *key, uint64_t expected,
                         err *e)
{
    memory_store *s = (memory_store *)base;
    if (begin(s, e) != 0)
        return -1;
    bool found;
    size_t at = place_of(s, collection, key, &found);
    if (check_expected(s, at, found, collection, key, expected, e) != 0)
        return end(s, -1);
    if (!found)
        return end(s, err_set(e, ERR_NOT_FOUND, "no %s/%s", collection, key));
    free(s->records[at].text);
    s->record_count--;
    memmove(&s->records[at], &s->records[at + 1], (s->record_count - at) * sizeof *s->records);
    return end(s, 0);
}

static int memory_list(store *base, const char *collection, const char *prefix, const char *after,
                       size_t limit, store_each each, void *arg, bool *more, err *e)
{
    memory_store *s = (memory_store *)base;
    if (begin(s, e) != 0)
        return -1;
    bool found;
    size_t at = place_of(s, collection, prefix, &found), given = 0, bytes = 0;
    *more = false;
    for (; at < s->record_count; at++) {
        const record *r = &s->records[at];
        if (strcmp(r->collection, collection) != 0 || strncmp(r->key, prefix, strlen(prefix)) != 0)
            break;
        if (after && strcmp(r->key, after) <= 0)
            continue;
        if (given++ == limit || bytes >= STORE_LIST_BYTES) {
            *more = true;
            break;
        }
        bytes += r->len;
        if (each(arg, r->key, r->text, r->len, r->version, e) != 0)
            return end(s, -1);
    }
    return end(s, 0);
}

/* ---- blobs --------------------------------------------------------------------------------- */

typedef struct memory_writer {
    blob_writer base;
    char name[STORE_KEY_BYTES];
    content *content;
} memory_writer;

typedef struct memory_blob {
    blob base;
    content *content;
    int fd; /* -1: not asked for yet */
} memory_blob;

/* The count is under the store's lock, where the content has been published. */
static void drop_content(content *c)
{
    if (c && --c->users == 0) {
        buf_free(&c->bytes);
        free(c);
    }
}

static size_t blob_place(const memory_store *s, const char *name, bool *found)
{
    size_t at = 0;
    while (at < s->blob_count && strcmp(s->blobs[at].name, name) < 0)
        at++;
    *found = at < s->blob_count && strcmp(s->blobs[at].name, name) == 0;
    return at;
}

static int memory_blob_begin(store *s, const char *name, blob_writer **out, err *e)
{
    memory_writer *w = calloc(1, sizeof *w);
    content *c = calloc(1, sizeof *c);
    if (!w || !c) {
        free(w);
        free(c);
        return no_memory(e);
    }
    buf_init(&c->bytes, BLOB_BYTES_MAX);
    c->users = 1;
    w->base.store = s;
    w->content = c;
    snprintf(w->name, sizeof w->name, "%s", name);
    *out = &w->base;
    return 0;
}

static int memory_blob_write(blob_writer *base, const void *bytes, size_t len, err *e)
{
    memory_store *s = (memory_store *)base->store;
    return begin(s, e) != 0
               ? -1
               : end(s, buf_append(&((memory_writer *)base)->content->bytes, bytes, len, e));
}

static void memory_blob_abort(blob_writer *base)
{
    drop_content(((memory_writer *)base)->content);
    free(base);
}

static int publish_blob(memory_store *s, memory_writer *w, bool over, err *e)
{
    bool found;
    size_t at = blob_place(s, w->name, &found);
    if (found && !over)
        return err_set(e, ERR_EXISTS, "blob %s exists", w->name);
    if (found) {
        drop_content(s->blobs[at].content);
        s->blobs[at].content = steal_ptr(w->content);
        return 0;
    }
    named_blob *grown = grow(s->blobs, s->blob_count, &s->blob_room, sizeof *grown);
    if (!grown)
        return no_memory(e);
    s->blobs = grown;
    memmove(&s->blobs[at + 1], &s->blobs[at], (s->blob_count - at) * sizeof *s->blobs);
    s->blob_count++;
    snprintf(s->blobs[at].name, sizeof s->blobs[at].name, "%s", w->name);
    s->blobs[at].content = steal_ptr(w->content);
    return 0;
}

static int memory_blob_commit(blob_writer *base, bool over, err *e)
{
    memory_store *s = (memory_store *)base->store;
    int result = begin(s, e) != 0 ? -1 : end(s, publish_blob(s, (memory_writer *)base, over, e));
    memory_blob_abort(base);
    return result;
}

static int memory_blob_open(store *base, const char *name, blob **out, err *e)
{
    memory_store *s = (memory_store *)base;
    memory_blob *b = calloc(1, sizeof *b);
    if (!b)
        return no_memory(e);
    if (begin(s, e) != 0) {
        free(b);
        return -1;
    }
    bool found;
    size_t at = blob_place(s, name, &found);
    if (!found) {
        free(b);
        return end(s, err_set(e, ERR_NOT_FOUND, "no blob %s", name));
    }
    b->content = s->blobs[at].content;
    b->content->users++;
    b->base = (blob){.store = base, .bytes = b->content->bytes.len};
    b->fd = -1;
    *out = &b->base;
    return end(s, 0);
}

static void memory_blob_close(blob *base)
{
    memory_blob *b = (memory_blob *)base;
    memory_store *s = (memory_store *)base->store;
    pthread_mutex_lock(&s->lock);
    drop_content(b->content);
    pthread_mutex_unlock(&s->lock);
    if (b->fd >= 0)
        close(b->fd);
    free(b);
}

static int memory_blob_read_at(blob *base, uint64_t offset, void *out, size_t len, err *e)
{
    memory_store *s = (memory_store *)base->store;
    if (begin(s, e) != 0)
        return -1;
    if (len > 0)
        memcpy(out, ((memory_blob *)base)->content->bytes.bytes + offset, len);
    return end(s, 0);
}

static int memory_blob_fd(blob *base, int *fd, err *e)
{
    memory_blob *b = (memory_blob *)base;
    if (b->fd < 0) {
        cleanup_close int copy = memfd_create("kubeml-blob", MFD_CLOEXEC);
        if (copy < 0)
            return err_set_errno(e, errno, "no descriptor for a blob");
        if (fs_write_all(copy, b->content->bytes.bytes, b->content->bytes.len, "blob", e) != 0)
            return -1;
        b->fd = steal_fd(copy);
    }
    *fd = b->fd;
    return 0;
}

static int memory_blob_path(blob *base, char out[FS_PATH_BYTES], err *e)
{
    int fd;
    if (memory_blob_fd(base, &fd, e) != 0)
        return -1;
    return fs_path(out, e, "/proc/%ld/fd/%d", (long)getpid(), fd);
}

static int memory_blob_delete(store *base, const char *name, err *e)
{
    memory_store *s = (memory_store *)base;
    if (begin(s, e) != 0)
        return -1;
    bool found;
    size_t at = blob_place(s, name, &found);
    if (!found)
        return end(s, err_set(e, ERR_NOT_FOUND, "no blob %s", name));
    drop_content(s->blobs[at].content);
    s->blob_count--;
    memmove(&s->blobs[at], &s->blobs[at + 1], (s->blob_count - at) * sizeof *s->blobs);
    return end(s, 0);
}

static int memory_blob_list(store *base, const char *prefix, const char *after, size_t limit,
                            blob_entry **out, size_t *count, err *e)
{
    memory_store *s = (memory_store *)base;
    if (begin(s, e) != 0)
        return -1;
    blob_entry *entries = calloc(s->blob_count + 1, sizeof *entries);
    if (!entries)
        return end(s, no_memory(e));
    for (size_t i = 0; i < s->blob_count && *count < limit; i++) {
        const named_blob *b = &s->blobs[i];
        if (strncmp(b->name, prefix, strlen(prefix)) != 0 || (after && strcmp(b->name, after) <= 0))
            continue;
        blob_entry *entry = &entries[(*count)++];
        snprintf(entry->name, sizeof entry->name, "%s", b->name);
        entry->bytes = b->content->bytes.len;
    }
    *out = entries;
    return end(s, 0);
}

/* ---- chunk sets ---------------------------------------------------------------------------- */

typedef struct memory_chunk_writer {
    chunk_writer base;
    chunk_set *set;
} memory_chunk_writer;

typedef struct memory_reader {
    chunk_reader base;
    chunk_set *set;
} memory_reader;

/* The sets' `users` and the stores' `sets` are under all_lock: readers find them without a store
 * and may outlive it. */
static void drop_set(chunk_set *set)
{
    pthread_mutex_lock(&all_lock);
    bool last = --set->users == 0;
    pthread_mutex_unlock(&all_lock);
    if (!last)
        return;
    for (size_t i = 0; i < set->count; i++)
        free(set->chunks[i].bytes);
    free(set->chunks);
    free(set->info);
    free(set);
}

static memory_chunk *find_chunk(const chunk_set *set, uint32_t split, uint32_t index)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->chunks[i].split == split && set->chunks[i].index == index)
            return &set->chunks[i];
    return NULL;
}

static int memory_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e)
{
    (void)bytes_hint;
    memory_chunk_writer *w = calloc(1, sizeof *w);
    chunk_set *set = calloc(1, sizeof *set);
    if (!w || !set) {
        free(w);
        free(set);
        return no_memory(e);
    }
    store_new_id(set->id);
    memcpy(id, set->id, STORE_ID_BYTES);
    set->users = 1;
    w->base.store = s;
    w->set = set;
    *out = &w->base;
    return 0;
}

static int put_chunk(chunk_set *set, uint32_t split, uint32_t index, const void *bytes, size_t len,
                     err *e)
{
    if (find_chunk(set, split, index))
        return err_set(e, ERR_INTERNAL, "a chunk was put twice");
    memory_chunk *grown = grow(set->chunks, set->count, &set->room, sizeof *grown);
    if (!grown)
        return no_memory(e);
    set->chunks = grown;
    void *copy;
    if (posix_memalign(&copy, ALIGNMENT, len ? len : 1) != 0)
        return no_memory(e);
    memcpy(copy, bytes, len);
    set->chunks[set->count++] = (memory_chunk){split, index, copy, len};
    return 0;
}

static int memory_chunk_put(chunk_writer *base, uint32_t split, uint32_t index, const void *bytes,
                            size_t len, err *e)
{
    memory_store *s = (memory_store *)base->store;
    return begin(s, e) != 0
               ? -1
               : end(s, put_chunk(((memory_chunk_writer *)base)->set, split, index, bytes, len, e));
}

static int memory_chunk_put_info(chunk_writer *base, const char *text, size_t len, err *e)
{
    chunk_set *set = ((memory_chunk_writer *)base)->set;
    char *copy = malloc(len + 1);
    if (!copy)
        return no_memory(e);
    memcpy(copy, text, len);
    free(set->info);
    set->info = copy;
    set->info_len = len;
    return 0;
}

static int seal_set(memory_store *s, chunk_set *set, err *e)
{
    chunk_set **grown = grow(s->sets, s->set_count, &s->set_room, sizeof *grown);
    if (!grown)
        return no_memory(e);
    s->sets = grown;
    s->sets[s->set_count++] = set;
    set->users++;
    return 0;
}

static int memory_chunk_seal(chunk_writer *base, err *e)
{
    memory_store *s = (memory_store *)base->store;
    if (begin(s, e) != 0)
        return -1;
    pthread_mutex_lock(&all_lock);
    int result = seal_set(s, ((memory_chunk_writer *)base)->set, e);
    pthread_mutex_unlock(&all_lock);
    return end(s, result);
}

static void memory_chunk_release(chunk_writer *base)
{
    drop_set(((memory_chunk_writer *)base)->set);
    free(base);
}

static int remove_set(memory_store *s, const char *id)
{
    chunk_set *found = NULL;
    pthread_mutex_lock(&all_lock);
    for (size_t i = 0; i < s->set_count && !found; i++)
        if (strcmp(s->sets[i]->id, id) == 0) {
            found = s->sets[i];
            s->sets[i] = s->sets[--s->set_count];
        }
    pthread_mutex_unlock(&all_lock);
    if (!found)
        return -1;
    drop_set(found);
    return 0;
}

static void memory_chunk_abort(chunk_writer *base)
{
    memory_store *s = (memory_store *)base->store;
    pthread_mutex_lock(&s->lock);
    remove_set(s, ((memory_chunk_writer *)base)->set->id);
    pthread_mutex_unlock(&s->lock);
    memory_chunk_release(base);
}

static int memory_chunks_delete(store *base, const char *id, err *e)
{
    memory_store *s = (memory_store *)base;
    if (begin(s, e) != 0)
        return -1;
    return end(s, remove_set(s, id) == 0 ? 0 : err_set(e, ERR_NOT_FOUND, "no chunk set %s", id));
}

static int memory_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e)
{
    (void)e;
    snprintf(out, STORE_LOCATOR_BYTES, "memory:%llu/%s",
             (unsigned long long)((memory_store *)s)->serial, id);
    return 0;
}

/* The set with one more user, or NULL. */
static chunk_set *use_set(const char *rest)
{
    char *id;
    unsigned long long serial = strtoull(rest, &id, 10);
    chunk_set *found = NULL;
    pthread_mutex_lock(&all_lock);
    for (memory_store *s = all; s && !found; s = s->next)
        for (size_t i = 0; s->serial == serial && *id == '/' && i < s->set_count; i++)
            if (strcmp(s->sets[i]->id, id + 1) == 0) {
                found = s->sets[i];
                found->users++;
            }
    pthread_mutex_unlock(&all_lock);
    return found;
}

static int memory_reader_open(const char *rest, chunk_reader **out, err *e)
{
    memory_reader *r = calloc(1, sizeof *r);
    if (!r)
        return no_memory(e);
    r->base.driver = &store_memory;
    if (!(r->set = use_set(rest))) {
        free(r);
        return err_set(e, ERR_NOT_FOUND, "no dataset memory:%.100s", rest);
    }
    *out = &r->base;
    return 0;
}

static void memory_reader_close(chunk_reader *base)
{
    drop_set(((memory_reader *)base)->set);
    free(base);
}

static int memory_reader_view(chunk_reader *base, uint32_t split, uint32_t index,
                              const void **bytes, size_t *len, err *e)
{
    const memory_chunk *c = find_chunk(((memory_reader *)base)->set, split, index);
    if (!c)
        return err_set(e, ERR_NOT_FOUND, "no chunk %u in split %u", index, split);
    *bytes = c->bytes;
    *len = c->len;
    return 0;
}

static int memory_reader_info(chunk_reader *base, const char **text, size_t *len, err *e)
{
    const chunk_set *set = ((memory_reader *)base)->set;
    if (!set->info)
        return err_set(e, ERR_NOT_FOUND, "the dataset has no description");
    *text = set->info;
    *len = set->info_len;
    return 0;
}

/* ---- the store ----------------------------------------------------------------------------- */

static store *memory_open(const char *rest, err *e)
{
    if (*rest) {
        err_set(e, ERR_INVALID, "store memory: takes nothing, not \"%.40s\"", rest);
        return NULL;
    }
    memory_store *s = calloc(1, sizeof *s);
    if (!s) {
        no_memory(e);
        return NULL;
    }
    s->base.driver = &store_memory;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_lock(&all_lock);
    s->serial = next_serial++;
    s->next = all;
    all = s;
    pthread_mutex_unlock(&all_lock);
    return &s->base;
}

static void memory_close(store *base)
{
    memory_store *s = (memory_store *)base;
    pthread_mutex_lock(&all_lock);
    memory_store **at = &all;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&all_lock);
    for (size_t i = 0; i < s->record_count; i++)
        free(s->records[i].text);
    for (size_t i = 0; i < s->blob_count; i++)
        drop_content(s->blobs[i].content);
    for (size_t i = 0; i < s->set_count; i++)
        drop_set(s->sets[i]);
    free(s->records);
    free(s->blobs);
    free(s->sets);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int memory_ping(store *s, err *e)
{
    return begin((memory_store *)s, e) != 0 ? -1 : end((memory_store *)s, 0);
}

/* A writer of this process is alive, or has aborted; what else no record names stays to the end. */
static int memory_sweep(store *s, size_t *removed, err *e)
{
    (void)removed;
    return memory_ping(s, e);
}

static const char *memory_scratch_dir(const store *s)
{
    (void)s;
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/tmp";
}

static const store_driver store_memory = {
    .scheme = "memory:",
    .open = memory_open,
    .close = memory_close,
    .ping = memory_ping,
    .sweep = memory_sweep,
    .scratch_dir = memory_scratch_dir,
    .put = memory_put,
    .get = memory_get,
    .remove = memory_remove,
    .list = memory_list,
    .blob_begin = memory_blob_begin,
    .blob_write = memory_blob_write,
    .blob_commit = memory_blob_commit,
    .blob_abort = memory_blob_abort,
    .blob_open = memory_blob_open,
    .blob_close = memory_blob_close,
    .blob_read_at = memory_blob_read_at,
    .blob_fd = memory_blob_fd,
    .blob_path = memory_blob_path,
    .blob_delete = memory_blob_delete,
    .blob_list = memory_blob_list,
    .chunks_begin = memory_chunks_begin,
    .chunk_put = memory_chunk_put,
    .chunk_put_info = memory_chunk_put_info,
    .chunk_seal = memory_chunk_seal,
    .chunk_release = memory_chunk_release,
    .chunk_abort = memory_chunk_abort,
    .chunks_delete = memory_chunks_delete,
    .chunks_locator = memory_chunks_locator,
    .reader_open = memory_reader_open,
    .reader_close = memory_reader_close,
    .reader_view = memory_reader_view,
    .reader_info = memory_reader_info,
};

const char *store_memory_locator(void)
{
    store_add_driver(&store_memory);
    return store_memory.scheme;
}
