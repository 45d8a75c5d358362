/* store_mongo_reader.c: reads a chunk set of the MongoDB store: fetched chunks stay in a nameless
 * file that is mapped. See store_mongo.h.
 *
 * chunk_view fetches a chunk that is not there, and waits for a chunk that another thread fetches.
 * chunk_prefetch gives a list to FETCHERS threads, each with its own connection, which run ahead of
 * chunk_view. A chunk that they fail to get is left to chunk_view, which reports the error. A chunk
 * is written to the file once and never moved, so that views last as long as the reader. The kernel
 * writes pages out and drops them as it needs memory, as it does with LMDB's pages. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "store_mongo.h"

enum {
    FETCHERS = 3,
    BATCH_BYTES = 256 << 10, /* a request: small, so that the first chunks come soon */
    BATCH_CHUNKS = 256,
    ALIGNMENT = 64,
    VALUE_OFFSET = 16, /* within ALIGNMENT, as in LMDB: then the samples are aligned */
    SLOW_MS = 5000,    /* a store without an answer for this long counts as away */
};

typedef enum chunk_state { ABSENT, COMING, PRESENT } chunk_state;

typedef struct chunk {
    uint64_t at; /* in the file */
    uint32_t len;
    uint8_t state;
} chunk;

typedef struct mongo_reader {
    chunk_reader base;
    mongo_link link;
    char *info;
    size_t info_len;
    uint64_t average; /* bytes of a chunk */
    uint32_t counts[MONGO_SPLITS_MAX];
    size_t chunk_count; /* of all splits */
    chunk *chunks[MONGO_SPLITS_MAX];
    int fd;
    const uint8_t *map;
    size_t map_bytes;

    pthread_mutex_t lock; /* guards the members below, and the chunks' state */
    pthread_cond_t changed;
    size_t used; /* bytes of the file that chunks have */
    int64_t *queue;
    size_t queue_at, queue_len;
    bool started, ending;
    int views;             /* chunk_views that wait */
    int64_t waits_from_ms; /* when the first of them began to wait, or the last chunk came */
    char trouble[200];     /* how the last attempt failed; "" after a chunk came */
    pthread_t fetchers[FETCHERS];
} mongo_reader;

static chunk *chunk_of(const mongo_reader *r, int64_t id)
{
    uint64_t split = (uint64_t)id >> 32;
    uint32_t index = (uint32_t)id;
    return split < MONGO_SPLITS_MAX && index < r->counts[split] ? &r->chunks[split][index] : NULL;
}

/* ---- fetching ------------------------------------------------------------------------------ */

typedef struct fetch_op {
    mongo_reader *r;
    const int64_t *ids;
    size_t count;
    err *e;
    int result;
} fetch_op;

/* Takes room in the file for `len` bytes. */
static int take_room(mongo_reader *r, size_t len, uint64_t *at, err *e)
{
    pthread_mutex_lock(&r->lock);
    uint64_t begin = (r->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + VALUE_OFFSET;
    bool fits = begin + len <= r->map_bytes;
    if (fits)
        r->used = begin + len;
    pthread_mutex_unlock(&r->lock);
    *at = begin;
    return fits
               ? 0
               : err_set(e, ERR_CORRUPT,
                         "dataset %s: its chunks are more than its description says", r->link.name);
}

static int take_chunk(mongo_reader *r, const bson_t *document, err *e)
{
    bson_iter_t at;
    bson_subtype_t type;
    uint32_t len = 0;
    const uint8_t *bytes = NULL;
    int64_t id = bson_iter_init_find(&at, document, "_id") ? bson_iter_as_int64(&at) : -1;
    if (bson_iter_init_find(&at, document, "data") && BSON_ITER_HOLDS_BINARY(&at))
        bson_iter_binary(&at, &type, &len, &bytes);
    chunk *c = chunk_of(r, id);
    if (!c || !bytes)
        return err_set(e, ERR_CORRUPT, "dataset %s: document %lld is no chunk", r->link.name,
                       (long long)id);
    uint64_t place;
    if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == PRESENT)
        return 0; /* an earlier attempt has fetched it */
    if (take_room(r, len, &place, e) != 0 ||
        fs_pwrite_all(r->fd, bytes, len, place, "scratch file of a dataset", e) != 0)
        return -1;
    pthread_mutex_lock(&r->lock);
    c->at = place;
    c->len = len;
    __atomic_store_n(&c->state, PRESENT, __ATOMIC_RELEASE);
    r->waits_from_ms = clock_monotonic_ms();
    r->trouble[0] = '\0';
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static bson_t *filter_of(const fetch_op *op)
{
    bson_t *filter = bson_new(), in, ids;
    if (op->count == 1) {
        BSON_APPEND_INT64(filter, "_id", op->ids[0]);
        return filter;
    }
    BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
    if (op->ids[op->count - 1] - op->ids[0] == (int64_t)op->count - 1) { /* sorted: no gaps */
        BSON_APPEND_INT64(&in, "$gte", op->ids[0]);
        BSON_APPEND_INT64(&in, "$lte", op->ids[op->count - 1]);
        bson_append_document_end(filter, &in);
        return filter;
    }
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &ids);
    for (size_t i = 0; i < op->count; i++) {
        char number[16];
        const char *key;
        size_t len = bson_uint32_to_string((uint32_t)i, &key, number, sizeof number);
        bson_append_int64(&ids, key, (int)len, op->ids[i]);
    }
    bson_append_array_end(&in, &ids);
    bson_append_document_end(filter, &in);
    return filter;
}

static bool fetch_chunks(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    fetch_op *op = arg;
    bson_t *filter = filter_of(op);
    bson_t *opts = BCON_NEW("batchSize", BCON_INT32((int32_t)op->count + 1));
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "chunks");
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, opts, NULL);
    const bson_t *document;
    while (op->result == 0 && mongoc_cursor_next(cursor, &document))
        op->result = take_chunk(op->r, document, op->e);
    bool done = op->result != 0 || !mongoc_cursor_error(cursor, error);
    if (!done) {
        pthread_mutex_lock(&op->r->lock);
        snprintf(op->r->trouble, sizeof op->r->trouble, "%.*s", (int)sizeof op->r->trouble - 1,
                 error->message);
        pthread_mutex_unlock(&op->r->lock);
    }
    mongoc_cursor_destroy(cursor);
    mongoc_collection_destroy(c);
    bson_destroy(filter);
    bson_destroy(opts);
    return done;
}

/* Fetches chunks that this thread has marked as COMING; chunks that did not come are ABSENT
 * again. */
static int fetch(mongo_reader *r, const mongo_link *link, const int64_t *ids, size_t count, err *e)
{
    fetch_op op = {.r = r, .ids = ids, .count = count, .e = e};
    int result = mongo_run(link, fetch_chunks, &op, "reading chunks", e);
    if (result == 0)
        result = op.result;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < count; i++) {
        chunk *c = chunk_of(r, ids[i]);
        if (c->state == COMING)
            __atomic_store_n(&c->state, ABSENT, __ATOMIC_RELEASE);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return result;
}

/* ---- running ahead ------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Takes the next ABSENT chunks of the queue, and marks them as COMING. Under the lock. */
static size_t take_batch(mongo_reader *r, int64_t ids[BATCH_CHUNKS])
{
    size_t count = 0, most = r->average ? BATCH_BYTES / r->average : BATCH_CHUNKS;
    most = most < 1 ? 1 : most > BATCH_CHUNKS ? BATCH_CHUNKS : most;
    while (count < most && r->queue_at < r->queue_len) {
        int64_t id = r->queue[r->queue_at++];
        chunk *c = chunk_of(r, id);
        if (c && c->state == ABSENT) {
            __atomic_store_n(&c->state, COMING, __ATOMIC_RELEASE);
            ids[count++] = id;
        }
    }
    return count;
}

static void *run_ahead(void *arg)
{
    mongo_reader *r = arg;
    int64_t ids[BATCH_CHUNKS];
    /* A chunk_view waits for this attempt and then makes its own: only its own may take long. */
    mongo_link hasty = r->link;
    if (hasty.patience_ms > MONGO_PATIENCE_MS)
        hasty.patience_ms = MONGO_PATIENCE_MS;
    pthread_mutex_lock(&r->lock);
    while (!r->ending) {
        size_t count = take_batch(r, ids);
        if (count == 0) {
            pthread_cond_wait(&r->changed, &r->lock); /* ends with the reader */
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        qsort(ids, count, sizeof *ids, by_id);
        int result = fetch(r, &hasty, ids, count, NULL);
        pthread_mutex_lock(&r->lock);
        if (result != 0)
            r->queue_at = r->queue_len; /* chunk_view meets the error, and reports it */
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static bool start_fetchers(mongo_reader *r)
{
    for (int i = 0; i < FETCHERS && !r->started; i++)
        if (pthread_create(&r->fetchers[i], NULL, run_ahead, r) != 0) {
            r->ending = true; /* without threads there is no prefetching */
            pthread_cond_broadcast(&r->changed);
            pthread_mutex_unlock(&r->lock);
            for (int k = 0; k < i; k++)
                pthread_join(r->fetchers[k], NULL);
            pthread_mutex_lock(&r->lock);
            return false;
        }
    r->started = true;
    return true;
}

/* Queues the list, and after it the rest of earlier lists, which may be of another function of this
 * process. Under the lock. */
static void queue_up(mongo_reader *r, uint32_t split, const uint32_t *indices, size_t count)
{
    size_t left = r->queue_len - r->queue_at;
    if (left > r->chunk_count)
        left = r->chunk_count; /* beyond, chunks are in the queue twice */
    int64_t *queue = malloc((count + left + 1) * sizeof *queue);
    if (!queue)
        return; /* prefetching is only a hint */
    for (size_t i = 0; i < count; i++)
        queue[i] = (int64_t)split << 32 | indices[i];
    if (left)
        memcpy(queue + count, r->queue + r->queue_at, left * sizeof *queue);
    free(r->queue);
    r->queue = queue;
    r->queue_at = 0;
    r->queue_len = count + left;
    pthread_cond_broadcast(&r->changed);
}

void mongo_reader_prefetch(chunk_reader *base, uint32_t split, const uint32_t *indices,
                           size_t count)
{
    mongo_reader *r = (mongo_reader *)base;
    pthread_mutex_lock(&r->lock);
    if (!r->ending && (r->started || start_fetchers(r)))
        queue_up(r, split, indices, count);
    pthread_mutex_unlock(&r->lock);
}

/* ---- views --------------------------------------------------------------------------------- */

static const void *bytes_of(const mongo_reader *r, const chunk *c, size_t *len)
{
    *len = c->len;
    return r->map + c->at;
}

int mongo_reader_view(chunk_reader *base, uint32_t split, uint32_t index, const void **bytes,
                      size_t *len, err *e)
{
    mongo_reader *r = (mongo_reader *)base;
    int64_t id = (int64_t)split << 32 | index;
    chunk *c = chunk_of(r, id);
    if (!c)
        return err_set(e, ERR_NOT_FOUND, "no chunk %u in split %u", index, split);
    if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == PRESENT) {
        *bytes = bytes_of(r, c, len);
        return 0;
    }
    pthread_mutex_lock(&r->lock);
    if (r->views++ == 0) {
        r->waits_from_ms = clock_monotonic_ms();
        r->trouble[0] = '\0'; /* of an outage that may be over */
    }
    while (c->state == COMING) /* the fetching thread gives up within the link's patience */
        pthread_cond_wait(&r->changed, &r->lock);
    bool ours = c->state == ABSENT;
    if (ours)
        __atomic_store_n(&c->state, COMING, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&r->lock);
    int result = ours ? fetch(r, &r->link, &id, 1, e) : 0;
    pthread_mutex_lock(&r->lock);
    r->views--;
    pthread_mutex_unlock(&r->lock);
    if (result != 0)
        return -1;
    if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) != PRESENT)
        return err_set(e, ERR_NOT_FOUND, "no chunk %u in split %u", index, split);
    *bytes = bytes_of(r, c, len);
    return 0;
}

uint64_t mongo_reader_scratch_bytes(const chunk_reader *r)
{
    return ((const mongo_reader *)r)->map_bytes;
}

void mongo_reader_reach(const chunk_reader *r, store_reach *out)
{
    mongo_link_reach(&((const mongo_reader *)r)->link, out);
}

bool mongo_reader_waits(chunk_reader *base, char *why, size_t size)
{
    mongo_reader *r = (mongo_reader *)base;
    pthread_mutex_lock(&r->lock);
    bool slow = clock_monotonic_ms() - r->waits_from_ms >= SLOW_MS;
    bool waits = r->views > 0 && (slow || r->trouble[0]);
    if (waits)
        snprintf(why, size, "store %s: %s", r->link.name,
                 r->trouble[0] ? r->trouble : "no answer to a request for chunks");
    pthread_mutex_unlock(&r->lock);
    return waits;
}

int mongo_reader_info(chunk_reader *base, const char **text, size_t *len, err *e)
{
    const mongo_reader *r = (mongo_reader *)base;
    if (r->info_len == 0)
        return err_set(e, ERR_NOT_FOUND, "the dataset has no description");
    *text = r->info;
    *len = r->info_len;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

static bool read_info(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    return mongo_find_one(client, l->db, "meta", BCON_NEW("_id", BCON_UTF8("info")), NULL, arg,
                          error);
}

static int take_counts(mongo_reader *r, const bson_t *document, err *e)
{
    bson_iter_t at, each;
    size_t split = 0;
    if (!bson_iter_init_find(&at, document, "counts") || !bson_iter_recurse(&at, &each))
        return err_set(e, ERR_CORRUPT, "dataset %s: its description has no counts", r->link.name);
    for (; split < MONGO_SPLITS_MAX && bson_iter_next(&each); split++) {
        int64_t count = bson_iter_as_int64(&each);
        if (count < 0 || count > UINT32_MAX / 2)
            return err_set(e, ERR_CORRUPT, "dataset %s: a split of %lld chunks", r->link.name,
                           (long long)count);
        r->counts[split] = (uint32_t)count;
        r->chunk_count += (size_t)count;
        if (count && !(r->chunks[split] = calloc((size_t)count, sizeof(chunk))))
            return err_set(e, ERR_NOMEM, "no memory for a dataset");
    }
    return 0;
}

static int map_file(mongo_reader *r, int64_t chunks, int64_t bytes, err *e)
{
    if (chunks < 0 || bytes < 0 || chunks > INT64_C(1) << 32 || bytes > INT64_C(1) << 44)
        return err_set(e, ERR_CORRUPT, "dataset %s: %lld bytes in %lld chunks", r->link.name,
                       (long long)bytes, (long long)chunks);
    r->average = chunks ? (uint64_t)(bytes / chunks) : 0;
    r->map_bytes = (size_t)bytes + (size_t)(chunks + 1) * 2 * ALIGNMENT;
    if (mongo_scratch_file(&r->fd, e) != 0)
        return -1;
    if (ftruncate(r->fd, (off_t)r->map_bytes) != 0)
        return err_set_errno(e, errno, "no place for %zu bytes of a dataset", r->map_bytes);
    void *map = mmap(NULL, r->map_bytes, PROT_READ, MAP_SHARED, r->fd, 0);
    if (map == MAP_FAILED)
        return err_set_errno(e, errno, "cannot map %zu bytes of a dataset", r->map_bytes);
    r->map = map;
    return 0;
}

static int take_info(mongo_reader *r, const bson_t *document, err *e)
{
    bson_iter_t at;
    uint32_t len = 0;
    if (mongo_number(document, "version", -1) != MONGO_SCHEMA)
        return err_set(e, ERR_UNSUPPORTED, "dataset %s has schema %lld; this program knows %d",
                       r->link.name, (long long)mongo_number(document, "version", -1),
                       MONGO_SCHEMA);
    if (!bson_iter_init_find(&at, document, "text") || !BSON_ITER_HOLDS_UTF8(&at))
        return err_set(e, ERR_CORRUPT, "dataset %s has no description", r->link.name);
    const char *text = bson_iter_utf8(&at, &len);
    if (!(r->info = malloc((size_t)len + 1)))
        return err_set(e, ERR_NOMEM, "no memory for a dataset");
    memcpy(r->info, text, (size_t)len + 1);
    r->info_len = len;
    return take_counts(r, document, e) != 0 ? -1
                                            : map_file(r, mongo_number(document, "chunks", -1),
                                                       mongo_number(document, "bytes", -1), e);
}

static int open_reader(mongo_reader *r, const char *uri, err *e)
{
    bson_t *document = NULL;
    if (mongo_link_open(&r->link, uri, MONGO_READER_PATIENCE_MS, e) != 0 ||
        mongo_run(&r->link, read_info, &document, "opening a dataset", e) != 0)
        return -1;
    if (!document)
        return err_set(e, ERR_NOT_FOUND, "no dataset %s", r->link.name);
    int result = take_info(r, document, e);
    bson_destroy(document);
    return result;
}

int mongo_reader_open(const store_driver *driver, const char *uri, chunk_reader **out, err *e)
{
    mongo_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for a dataset");
    r->base.driver = driver;
    r->fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (open_reader(r, uri, e) != 0) {
        mongo_reader_close(&r->base);
        return -1;
    }
    *out = &r->base;
    return 0;
}

void mongo_reader_close(chunk_reader *base)
{
    mongo_reader *r = (mongo_reader *)base;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < FETCHERS && r->started; i++)
        pthread_join(r->fetchers[i], NULL);
    if (r->map)
        munmap((void *)(uintptr_t)r->map, r->map_bytes);
    if (r->fd >= 0)
        close(r->fd);
    mongo_link_close(&r->link);
    for (int i = 0; i < MONGO_SPLITS_MAX; i++)
        free(r->chunks[i]);
    free(r->queue);
    free(r->info);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
