/* store_mongo_chunks.c: writes and deletes chunk sets of the MongoDB store. See store_mongo.h.
 *
 * A chunk set is a database of its own, so that a reader's user sees this dataset and nothing else,
 * and one command deletes it. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store_mongo.h"

enum {
    BATCH_BYTES = 8 << 20, /* an insert, unless one chunk is larger */
    BATCH_CHUNKS = 512,
    INDEX_MAX = 1 << 26,
};

typedef struct queued {
    int64_t id;
    uint32_t split, index;
    size_t at, len; /* in `bytes` */
} queued;

typedef struct mongo_chunk_writer {
    chunk_writer base;
    char id[STORE_ID_BYTES], db[MONGO_DB_BYTES];
    queued batch[BATCH_CHUNKS];
    size_t in_batch;
    buf bytes;
    uint8_t *seen[MONGO_SPLITS_MAX]; /* a bit a chunk */
    uint32_t seen_bytes[MONGO_SPLITS_MAX], counts[MONGO_SPLITS_MAX];
    uint64_t chunks, total, largest;
    char *info;
    size_t info_len;
    bool sealed;
} mongo_chunk_writer;

void mongo_set_db(const mongo_store *s, const char *id, char out[MONGO_DB_BYTES])
{
    snprintf(out, MONGO_DB_BYTES, "%.*s_%.16s", MONGO_STORE_DB_BYTES - 1, s->link.db, id);
}

bool mongo_is_set_db(const mongo_link *l, const char *db)
{
    size_t own = strlen(l->db);
    return strncmp(db, l->db, own) == 0 && db[own] == '_' &&
           strspn(db + own + 1, "0123456789abcdef") == 16 && strlen(db) == own + 17;
}

/* ---- writing ------------------------------------------------------------------------------- */

static void free_writer(mongo_chunk_writer *w)
{
    for (int i = 0; i < MONGO_SPLITS_MAX; i++)
        free(w->seen[i]);
    buf_free(&w->bytes);
    free(w->info);
    free(w);
}

int mongo_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e)
{
    (void)bytes_hint;
    mongo_chunk_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for a chunk set");
    w->base.store = s;
    buf_init(&w->bytes, BATCH_BYTES + STORE_CHUNK_BYTES_MAX);
    store_new_id(w->id);
    mongo_set_db((mongo_store *)s, w->id, w->db);
    if (mongo_upload_begin((mongo_store *)s, w->id, "chunks", e) != 0) {
        free_writer(w);
        return -1;
    }
    memcpy(id, w->id, STORE_ID_BYTES);
    *out = &w->base;
    return 0;
}

static bool remove_batch(mongoc_collection_t *c, const mongo_chunk_writer *w, bson_error_t *error)
{
    bson_t filter, in, ids;
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &ids);
    for (size_t i = 0; i < w->in_batch; i++) {
        char number[16];
        const char *key;
        size_t len = bson_uint32_to_string((uint32_t)i, &key, number, sizeof number);
        bson_append_int64(&ids, key, (int)len, w->batch[i].id);
    }
    bson_append_array_end(&in, &ids);
    bson_append_document_end(&filter, &in);
    bool done = mongoc_collection_delete_many(c, &filter, NULL, NULL, error);
    bson_destroy(&filter);
    return done;
}

static bool insert_batch(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)l;
    const mongo_chunk_writer *w = arg;
    mongoc_collection_t *c = mongoc_client_get_collection(client, w->db, "chunks");
    bson_t documents[BATCH_CHUNKS];
    const bson_t *pointers[BATCH_CHUNKS];
    for (size_t i = 0; i < w->in_batch; i++) {
        const queued *q = &w->batch[i];
        bson_init(&documents[i]);
        BSON_APPEND_INT64(&documents[i], "_id", q->id);
        BSON_APPEND_INT64(&documents[i], "split", q->split);
        BSON_APPEND_INT64(&documents[i], "index", q->index);
        BSON_APPEND_BINARY(&documents[i], "data", BSON_SUBTYPE_BINARY,
                           (const uint8_t *)w->bytes.bytes + q->at, (uint32_t)q->len);
        pointers[i] = &documents[i];
    }
    bool done = (attempt == 0 || remove_batch(c, w, error)) &&
                mongoc_collection_insert_many(c, pointers, w->in_batch, NULL, NULL, error);
    for (size_t i = 0; i < w->in_batch; i++)
        bson_destroy(&documents[i]);
    mongoc_collection_destroy(c);
    return done;
}

static int end_batch(mongo_chunk_writer *w, err *e)
{
    if (w->in_batch == 0)
        return 0;
    int result = mongo_run(mongo_link_of(w->base.store), insert_batch, w, "writing chunks", e);
    w->in_batch = 0;
    buf_reset(&w->bytes);
    return result;
}

/* Marks a chunk as put; refuses a second time. */
static int mark(mongo_chunk_writer *w, uint32_t split, uint32_t index, err *e)
{
    if (split >= MONGO_SPLITS_MAX || index >= INDEX_MAX)
        return err_set(e, ERR_LIMIT, "chunk %u of split %u: at most %d splits of %d chunks", index,
                       split, MONGO_SPLITS_MAX, INDEX_MAX);
    uint32_t byte = index / 8;
    uint8_t bit = (uint8_t)(1 << index % 8);
    if (byte >= w->seen_bytes[split]) {
        uint32_t room = 2 * byte + 64;
        uint8_t *grown = realloc(w->seen[split], room);
        if (!grown)
            return err_set(e, ERR_NOMEM, "no memory for a chunk set");
        memset(grown + w->seen_bytes[split], 0, room - w->seen_bytes[split]);
        w->seen[split] = grown;
        w->seen_bytes[split] = room;
    }
    if (w->seen[split][byte] & bit)
        return err_set(e, ERR_INTERNAL, "a chunk was put twice");
    w->seen[split][byte] |= bit;
    return 0;
}

int mongo_chunk_put(chunk_writer *base, uint32_t split, uint32_t index, const void *bytes,
                    size_t len, err *e)
{
    mongo_chunk_writer *w = (mongo_chunk_writer *)base;
    assert(!w->sealed);
    if (mark(w, split, index, e) != 0)
        return -1;
    if ((w->in_batch == BATCH_CHUNKS || (w->in_batch && w->bytes.len + len > BATCH_BYTES)) &&
        end_batch(w, e) != 0)
        return -1;
    size_t at = w->bytes.len;
    if (len > 0 && buf_append(&w->bytes, bytes, len, e) != 0)
        return -1;
    w->batch[w->in_batch++] = (queued){(int64_t)split << 32 | index, split, index, at, len};
    w->counts[split] = index + 1 > w->counts[split] ? index + 1 : w->counts[split];
    w->chunks++;
    w->total += len;
    w->largest = len > w->largest ? len : w->largest;
    return 0;
}

int mongo_chunk_put_info(chunk_writer *base, const char *text, size_t len, err *e)
{
    mongo_chunk_writer *w = (mongo_chunk_writer *)base;
    char *copy = malloc(len + 1);
    if (!copy)
        return err_set(e, ERR_NOMEM, "no memory for a dataset's description");
    memcpy(copy, text, len);
    copy[len] = '\0';
    free(w->info);
    w->info = copy;
    w->info_len = len;
    return 0;
}

static bool write_info(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)l;
    (void)attempt;
    const mongo_chunk_writer *w = arg;
    bson_t document, counts;
    bson_init(&document);
    BSON_APPEND_UTF8(&document, "_id", "info");
    BSON_APPEND_INT64(&document, "version", MONGO_SCHEMA);
    bson_append_utf8(&document, "text", -1, w->info ? w->info : "", (int)w->info_len);
    BSON_APPEND_INT64(&document, "chunks", (int64_t)w->chunks);
    BSON_APPEND_INT64(&document, "bytes", (int64_t)w->total);
    BSON_APPEND_INT64(&document, "largest", (int64_t)w->largest);
    BSON_APPEND_ARRAY_BEGIN(&document, "counts", &counts);
    for (uint32_t i = 0; i < MONGO_SPLITS_MAX; i++) {
        char number[16];
        const char *key;
        size_t len = bson_uint32_to_string(i, &key, number, sizeof number);
        bson_append_int64(&counts, key, (int)len, w->counts[i]);
    }
    bson_append_array_end(&document, &counts);
    mongoc_collection_t *c = mongoc_client_get_collection(client, w->db, "meta");
    bool done = mongoc_collection_insert_one(c, &document, NULL, NULL, error) ||
                error->code == MONGO_DUPLICATE_KEY;
    mongoc_collection_destroy(c);
    bson_destroy(&document);
    return done;
}

/* Writes the description, then checks the upload: a sweep may have dropped the database while this
 * process was stopped, and later chunks have made it again. A sweep after the check removes the
 * description too. */
int mongo_chunk_seal(chunk_writer *base, err *e)
{
    mongo_chunk_writer *w = (mongo_chunk_writer *)base;
    assert(!w->sealed);
    if (end_batch(w, e) != 0 ||
        mongo_run(mongo_link_of(base->store), write_info, w, "sealing a dataset", e) != 0 ||
        mongo_upload_check((mongo_store *)base->store, w->id, e) != 0)
        return -1;
    w->sealed = true;
    return 0;
}

void mongo_chunk_release(chunk_writer *base)
{
    mongo_chunk_writer *w = (mongo_chunk_writer *)base;
    assert(w->sealed);
    mongo_upload_leave((mongo_store *)base->store, w->id, "chunks");
    free_writer(w);
}

void mongo_chunk_abort(chunk_writer *base)
{
    mongo_chunk_writer *w = (mongo_chunk_writer *)base;
    mongo_upload_abort((mongo_store *)base->store, w->id, "chunks");
    free_writer(w);
}

/* ---- sets ---------------------------------------------------------------------------------- */

typedef struct set_op {
    char db[MONGO_DB_BYTES];
    int64_t matched;
} set_op;

static bool see_info(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                     bson_error_t *error)
{
    (void)l;
    (void)attempt;
    set_op *op = arg;
    bson_t *document;
    if (!mongo_find_one(client, op->db, "meta", BCON_NEW("_id", BCON_UTF8("info")), "_id",
                        &document, error))
        return false;
    op->matched = document != NULL;
    bson_destroy(document);
    return true;
}

int mongo_set_missing(const mongo_store *s, const char *id, bool *missing, err *e)
{
    set_op op = {0};
    mongo_set_db(s, id, op.db);
    if (mongo_run(&s->link, see_info, &op, "looking for a dataset", e) != 0)
        return -1;
    *missing = op.matched == 0;
    return 0;
}

/* Removes the description, without which no reader opens the set. */
static bool remove_info(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    (void)l;
    set_op *op = arg;
    op->matched = 0;
    if (!mongo_delete(client, op->db, "meta", BCON_NEW("_id", BCON_UTF8("info")), false,
                      &op->matched, error))
        return false;
    op->matched += attempt > 0;
    return true;
}

int mongo_chunks_delete(store *base, const char *id, err *e)
{
    mongo_store *s = (mongo_store *)base;
    set_op op = {0};
    bool missing;
    mongo_set_db(s, id, op.db);
    if (mongo_set_missing(s, id, &missing, e) != 0)
        return -1;
    if (missing)
        return err_set(e, ERR_NOT_FOUND, "no chunk set %s", id);
    if (mongo_upload_deleted(s, id, "chunks", e) != 0 ||
        mongo_run(&s->link, remove_info, &op, "deleting a dataset", e) != 0)
        return -1;
    return op.matched ? 0 : err_set(e, ERR_NOT_FOUND, "no chunk set %s", id);
}
