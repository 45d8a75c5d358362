/* store_mongo_records.c: records of the MongoDB store. See store.h and store_mongo.h.
 *
 * A record's write is one update of one document whose filter holds the expected version. The new
 * version is drawn before, from a counter, and belongs to this write alone. So an attempt that was
 * carried out though its reply was lost is known by its version. Versions drawn for writes that
 * fail are never used. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store_mongo.h"

static void name_records(char out[MONGO_COLLECTION_BYTES], const char *collection)
{
    snprintf(out, MONGO_COLLECTION_BYTES, "records.%s", collection);
}

static mongoc_collection_t *records_of(const mongo_link *l, mongoc_client_t *client,
                                       const char *collection)
{
    char name[MONGO_COLLECTION_BYTES];
    name_records(name, collection);
    return mongoc_client_get_collection(client, l->db, name);
}

/* ---- versions ------------------------------------------------------------------------------ */

static bool draw_version(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    mongoc_collection_t *counters = mongoc_client_get_collection(client, l->db, "counters");
    mongoc_find_and_modify_opts_t *opts = mongoc_find_and_modify_opts_new();
    bson_t reply, query, update;
    bson_init(&query);
    BSON_APPEND_UTF8(&query, "_id", "versions");
    bson_t *increment = BCON_NEW("$inc", "{", "n", BCON_INT64(1), "}");
    bson_steal(&update, increment);
    mongoc_find_and_modify_opts_set_update(opts, &update);
    mongoc_find_and_modify_opts_set_flags(
        opts, MONGOC_FIND_AND_MODIFY_UPSERT | MONGOC_FIND_AND_MODIFY_RETURN_NEW);
    bool done = mongoc_collection_find_and_modify_with_opts(counters, &query, opts, &reply, error);
    bson_iter_t at, n;
    if (done) {
        done = bson_iter_init(&at, &reply) && bson_iter_find_descendant(&at, "value.n", &n);
        if (done)
            *(uint64_t *)arg = (uint64_t)bson_iter_as_int64(&n);
        else
            bson_set_error(error, MONGOC_ERROR_SERVER, 0, "the counter gives no number");
    }
    bson_destroy(&reply);
    bson_destroy(&query);
    bson_destroy(&update);
    mongoc_find_and_modify_opts_destroy(opts);
    mongoc_collection_destroy(counters);
    return done;
}

/* ---- records ------------------------------------------------------------------------------- */

typedef enum outcome { DONE, EXISTS, OTHER_VERSION, GONE } outcome;

typedef struct record_op {
    const char *collection, *key;
    uint64_t expected, version, present;
    const bson_t *document;
    buf *out;
    outcome outcome;
    char upload[STORE_ID_BYTES]; /* that a dataset's record names */
    err *e;
    int result;
} record_op;

/* Finds out why no document matched. A document with this write's version is of an attempt whose
 * reply was lost. */
static bool explain(const mongo_link *l, mongoc_client_t *client, record_op *op,
                    bson_error_t *error)
{
    bson_t *document;
    char name[MONGO_COLLECTION_BYTES];
    name_records(name, op->collection);
    if (!mongo_find_one(client, l->db, name, BCON_NEW("_id", BCON_UTF8(op->key)), "version",
                        &document, error))
        return false;
    op->present = document ? (uint64_t)mongo_number(document, "version", 0) : 0;
    op->outcome = !document                                     ? GONE
                  : op->version && op->present == op->version ? DONE
                  : op->expected == STORE_NEW                   ? EXISTS
                                                                : OTHER_VERSION;
    bson_destroy(document);
    return true;
}

static bool insert_record(const mongo_link *l, mongoc_client_t *client, record_op *op,
                          bson_error_t *error)
{
    mongoc_collection_t *c = records_of(l, client, op->collection);
    bson_t with_id;
    bson_init(&with_id);
    BSON_APPEND_UTF8(&with_id, "_id", op->key);
    bson_concat(&with_id, op->document);
    bool done = mongoc_collection_insert_one(c, &with_id, NULL, NULL, error);
    bson_destroy(&with_id);
    mongoc_collection_destroy(c);
    if (!done && error->code == MONGO_DUPLICATE_KEY)
        return explain(l, client, op, error);
    return done;
}

static bool replace_record(const mongo_link *l, mongoc_client_t *client, record_op *op,
                           bson_error_t *error)
{
    mongoc_collection_t *c = records_of(l, client, op->collection);
    bson_t *filter = BCON_NEW("_id", BCON_UTF8(op->key));
    bson_t *opts = bson_new(), reply;
    if (op->expected == STORE_ANY)
        BSON_APPEND_BOOL(opts, "upsert", true);
    else
        BSON_APPEND_INT64(filter, "version", (int64_t)op->expected);
    bool done = false;
    /* Of two upserts of a new key at once, the second finds the key, and replaces the record. */
    for (int tries = 0; !done && (tries == 0 || error->code == MONGO_DUPLICATE_KEY) && tries < 10;
         tries++) {
        done = mongoc_collection_replace_one(c, filter, op->document, opts, &reply, error);
        bool matched =
            done && (op->expected == STORE_ANY || mongo_number(&reply, "matchedCount", 0) > 0);
        bson_destroy(&reply);
        if (done && !matched)
            done = explain(l, client, op, error);
    }
    mongoc_collection_destroy(c);
    bson_destroy(filter);
    bson_destroy(opts);
    return done;
}

static bool put_record(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)attempt;
    record_op *op = arg;
    op->outcome = DONE;
    return op->expected == STORE_NEW ? insert_record(l, client, op, error)
                                     : replace_record(l, client, op, error);
}

static bool remove_record(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                          bson_error_t *error)
{
    record_op *op = arg;
    char name[MONGO_COLLECTION_BYTES];
    int64_t deleted = 0;
    bson_t *filter = BCON_NEW("_id", BCON_UTF8(op->key));
    if (op->expected != STORE_ANY)
        BSON_APPEND_INT64(filter, "version", (int64_t)op->expected);
    op->outcome = DONE;
    name_records(name, op->collection);
    bool done = mongo_delete(client, l->db, name, filter, false, &deleted, error);
    if (done && deleted == 0) {
        done = explain(l, client, op, error);
        if (done && op->outcome == GONE && attempt > 0)
            op->outcome = DONE; /* probably by the attempt before */
    }
    return done;
}

static int say_outcome(const record_op *op, bool was_put, err *e)
{
    switch (op->outcome) {
    case EXISTS:
        return err_set(e, ERR_EXISTS, "%s/%s exists", op->collection, op->key);
    case OTHER_VERSION:
        return err_set(e, ERR_CONFLICT, "%s/%s has version %" PRIu64 ", not %" PRIu64,
                       op->collection, op->key, op->present, op->expected);
    case GONE:
        return was_put || op->expected != STORE_ANY
                   ? err_set(e, ERR_NOT_FOUND, "%s/%s is gone", op->collection, op->key)
                   : err_set(e, ERR_NOT_FOUND, "no %s/%s", op->collection, op->key);
    case DONE:
        break;
    }
    return 0;
}

/* The id that a dataset's record names; "" if it names none. */
static void upload_named(const bson_t *document, char out[STORE_ID_BYTES])
{
    bson_iter_t at, upload;
    *out = '\0';
    if (bson_iter_init(&at, document) && bson_iter_find_descendant(&at, "value.upload", &upload) &&
        BSON_ITER_HOLDS_UTF8(&upload))
        snprintf(out, STORE_ID_BYTES, "%s", bson_iter_utf8(&upload, NULL));
}

static bool find_upload(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    (void)attempt;
    record_op *op = arg;
    bson_t *document;
    if (!mongo_find_one(client, l->db, "records." STORE_DATASETS,
                        BCON_NEW("_id", BCON_UTF8(op->key)), "value.upload", &document, error))
        return false;
    op->upload[0] = '\0';
    if (document)
        upload_named(document, op->upload);
    bson_destroy(document);
    return true;
}

/* Records a dataset's chunks as deleted, before its record is removed. If the process dies in
 * between, a sweep finds the chunks, and leaves them as long as the record names them. */
static int give_up_chunks(store *s, const char *key, err *e)
{
    record_op op = {.key = key};
    if (mongo_run(mongo_link_of(s), find_upload, &op, "looking for a dataset's chunks", e) != 0)
        return -1;
    return op.upload[0] ? mongo_upload_deleted((mongo_store *)s, op.upload, "chunks", e) : 0;
}

int mongo_remove(store *s, const char *collection, const char *key, uint64_t expected, err *e)
{
    record_op op = {.collection = collection, .key = key, .expected = expected};
    if (strcmp(collection, STORE_DATASETS) == 0 && give_up_chunks(s, key, e) != 0)
        return -1;
    if (mongo_run(mongo_link_of(s), remove_record, &op, "deleting a record", e) != 0)
        return -1;
    return say_outcome(&op, false, e);
}

/* Checks that no sweep removed the chunks while this writer published: it may have slept longer
 * than its lease. If that cannot be found out, the record stays: most likely it has its chunks,
 * like the record of a put whose reply was lost. */
static int check_published(store *s, const record_op *op, err *e)
{
    char id[STORE_ID_BYTES];
    bool dead = false;
    err why = ERR_INIT;
    upload_named(op->document, id);
    if (!*id)
        return 0;
    if (mongo_upload_dead((mongo_store *)s, id, &dead, &why) != 0)
        return err_set(e, ERR_UNAVAILABLE, "%s/%s: whether its chunks are there is not known: %s",
                       op->collection, op->key, why.message);
    if (!dead)
        return 0;
    mongo_remove(s, op->collection, op->key, op->version, NULL);
    return err_set(e, ERR_CANCELLED, "%s/%s: its writer was gone for longer than %" PRId64 " ms",
                   op->collection, op->key, mongo_link_of(s)->lease_ms);
}

int mongo_put(store *s, const char *collection, const char *key, const char *text,
                     size_t len, uint64_t expected, uint64_t *version, err *e)
{
    const mongo_link *l = mongo_link_of(s);
    record_op op = {.collection = collection, .key = key, .expected = expected};
    if (mongo_run(l, draw_version, &op.version, "drawing a version", e) != 0)
        return -1;
    bson_t document;
    bson_init(&document);
    BSON_APPEND_INT64(&document, "version", (int64_t)op.version);
    op.document = &document;
    int result = mongo_bson_append_json(&document, "value", text, len, e);
    if (result != 0)
        err_wrap(e, "record %s/%s", collection, key);
    else if ((result = mongo_run(l, put_record, &op, "writing a record", e)) == 0)
        result = say_outcome(&op, true, e);
    if (result == 0 && strcmp(collection, STORE_DATASETS) == 0)
        result = check_published(s, &op, e);
    bson_destroy(&document);
    if (result == 0)
        *version = op.version;
    return result;
}

/* A document's version and text. */
static int take_document(const bson_t *document, uint64_t *version, buf *out, err *e)
{
    bson_iter_t at;
    if (!bson_iter_init_find(&at, document, "version"))
        return err_set(e, ERR_CORRUPT, "the document has no version");
    *version = (uint64_t)bson_iter_as_int64(&at);
    if (!bson_iter_init_find(&at, document, "value"))
        return err_set(e, ERR_CORRUPT, "the document has no value");
    return mongo_bson_to_json(&at, out, e);
}

static bool get_record(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)attempt;
    record_op *op = arg;
    mongoc_collection_t *c = records_of(l, client, op->collection);
    bson_t *filter = BCON_NEW("_id", BCON_UTF8(op->key));
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, NULL, NULL);
    const bson_t *document;
    op->outcome = GONE;
    if (mongoc_cursor_next(cursor, &document)) {
        op->outcome = DONE;
        op->result = take_document(document, &op->version, op->out, op->e);
    }
    bool done = !mongoc_cursor_error(cursor, error);
    mongoc_cursor_destroy(cursor);
    bson_destroy(filter);
    mongoc_collection_destroy(c);
    return done;
}

int mongo_get(store *s, const char *collection, const char *key, buf *out,
                     uint64_t *version, err *e)
{
    record_op op = {
        .collection = collection, .key = key, .out = out, .e = e, .expected = STORE_ANY};
    if (mongo_run(mongo_link_of(s), get_record, &op, "reading a record", e) != 0 ||
        say_outcome(&op, false, e) != 0)
        return -1;
    if (op.result != 0)
        return err_wrap(e, "record %s/%s", collection, key);
    *version = op.version;
    return 0;
}

/* ---- lists --------------------------------------------------------------------------------- */

void mongo_append_range(bson_t *filter, const char *field, const char *prefix, const char *after)
{
    char end[STORE_KEY_BYTES];
    size_t len = strlen(prefix);
    bson_t range;
    if (!len && !after)
        return;
    BSON_APPEND_DOCUMENT_BEGIN(filter, field, &range);
    if (len) {
        memcpy(end, prefix, len + 1);
        end[len - 1]++; /* all characters of keys are below 0x7F */
        BSON_APPEND_UTF8(&range, "$gte", prefix);
        BSON_APPEND_UTF8(&range, "$lt", end);
    }
    if (after)
        BSON_APPEND_UTF8(&range, "$gt", after);
    bson_append_document_end(filter, &range);
}

/* A listed record, copied out of the cursor, so that a second attempt can begin again. */
typedef struct listed {
    char key[STORE_KEY_BYTES];
    uint64_t version;
    size_t at, len; /* in `text` */
} listed;

typedef struct list_op {
    const char *collection, *prefix, *after;
    size_t limit, count;
    bool snapshot, more;
    listed *records;
    buf text;
    err *e;
    int result;
} list_op;

static int take_listed(list_op *op, const bson_t *document, err *e)
{
    bson_iter_t at;
    listed *r = &op->records[op->count];
    r->at = op->text.len;
    if (!bson_iter_init_find(&at, document, "_id") || !BSON_ITER_HOLDS_UTF8(&at) ||
        snprintf(r->key, sizeof r->key, "%s", bson_iter_utf8(&at, NULL)) >= (int)sizeof r->key)
        return err_set(e, ERR_CORRUPT, "a document's key is no key of a record");
    if (take_document(document, &r->version, &op->text, e) != 0)
        return err_wrap(e, "record %s/%s", op->collection, r->key);
    r->len = op->text.len - r->at;
    op->count++;
    return 0;
}

static bool list_records(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    list_op *op = arg;
    mongoc_collection_t *c = records_of(l, client, op->collection);
    bson_t filter, *opts = BCON_NEW("sort", "{", "_id", BCON_INT32(1), "}", "limit",
                                    BCON_INT64((int64_t)op->limit + 1));
    bson_init(&filter);
    mongo_append_range(&filter, "_id", op->prefix, op->after);
    if (op->snapshot)
        BCON_APPEND(opts, "readConcern", "{", "level", BCON_UTF8("snapshot"), "}");
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, &filter, opts, NULL);
    const bson_t *document;
    op->count = 0;
    op->result = 0;
    op->more = false;
    buf_reset(&op->text);
    while (op->result == 0 && !op->more && mongoc_cursor_next(cursor, &document)) {
        op->more = op->count == op->limit || op->text.len >= STORE_LIST_BYTES;
        if (!op->more)
            op->result = take_listed(op, document, op->e);
    }
    bool done = op->result != 0 || !mongoc_cursor_error(cursor, error);
    mongoc_cursor_destroy(cursor);
    bson_destroy(&filter);
    bson_destroy(opts);
    mongoc_collection_destroy(c);
    return done;
}

int mongo_list(store *s, const char *collection, const char *prefix, const char *after,
                      size_t limit, store_each each, void *arg, bool *more, err *e)
{
    list_op op = {.collection = collection, .prefix = prefix, .after = after, .limit = limit,
                  .snapshot = ((mongo_store *)s)->snapshot, .e = e};
    op.records = calloc(limit, sizeof *op.records);
    if (!op.records)
        return err_set(e, ERR_NOMEM, "no memory for a list of %s", collection);
    buf_init(&op.text, STORE_LIST_BYTES + STORE_RECORD_BYTES_MAX);
    int result = mongo_run(mongo_link_of(s), list_records, &op, "listing records", e);
    if (result == 0)
        result = op.result;
    *more = op.more;
    for (size_t i = 0; result == 0 && i < op.count; i++) {
        const listed *r = &op.records[i];
        result = each(arg, r->key, op.text.bytes + r->at, r->len, r->version, e);
    }
    buf_free(&op.text);
    free(op.records);
    return result;
}
