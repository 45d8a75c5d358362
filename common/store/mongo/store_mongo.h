/* store_mongo.h: declarations that the files of the MongoDB store share. For store_mongo*.c alone.
 *
 * In the store's database DB:
 *     schema          {_id: "schema", version}
 *     counters        {_id: "versions", n}: the count of all writes, which gives records their
 * version
 *     records.NAME    {_id: key, version, value}: the records of collection NAME
 *     blobs.files     GridFS; `filename` is unique, and inserting here is a blob's commit
 *     blobs.chunks    GridFS, 1 MiB each, written before
 *     uploads         {_id, kind, owner, state, at}: data that is half-written or being deleted
 *     leases          {_id: owner, renewed}: living processes, by the server's clock
 *
 * and a database DB_ID for each chunk set: `chunks` {_id: split << 32 | index, data} and `meta`
 * {_id: "info", ...}, the latter written when it is sealed.
 *
 * Data that is larger than a document is written first; one document names it last. A writer's
 * `uploads` document is written before its first byte. A sweep that finds an upload whose owner's
 * lease has run out makes it "dead"; a writer that comes back sees this before it counts as
 * published.
 *
 * These files are a shared object of their own, which store.c loads when a locator asks for it, so
 * that other programs do not have libmongoc and its libraries in memory. libbson ends the process
 * when memory is gone; this code cannot change that. */
#ifndef KUBEML_STORE_MONGO_H
#define KUBEML_STORE_MONGO_H

#include <mongoc/mongoc.h>
#include <pthread.h>

#include "common/store/store_driver.h"

enum {
    MONGO_SCHEMA = 1,
    MONGO_DB_BYTES = 64, /* MongoDB's limit, with the NUL */
    MONGO_STORE_DB_BYTES = MONGO_DB_BYTES - 17,
    MONGO_NAME_BYTES = 200,
    MONGO_COLLECTION_BYTES = STORE_COLLECTION_BYTES + 8,
    MONGO_PATIENCE_MS = 10000, /* how long an operation is retried */
    /* the same for a reader: as long as kubeml-ps retries a checkpoint (round.h's store_ms) */
    MONGO_READER_PATIENCE_MS = 60000,
    MONGO_LEASE_MS = 60000,
    /* until a sweep removes a deleted blob's bytes: the delete itself may still remove them */
    MONGO_KEEP_BLOB_MS = 60 * 1000,
    MONGO_KEEP_SET_MS = 24 * 3600 * 1000, /* the same for a chunk set: readers may have it open */
    MONGO_DUPLICATE_KEY = 11000,
    MONGO_SPLITS_MAX = 16,
};

/* A server, and a database on it. */
typedef struct mongo_link {
    char *text; /* the locator, with its secrets */
    mongoc_uri_t *uri;
    mongoc_client_pool_t *pool;
    char db[MONGO_DB_BYTES];
    char name[MONGO_NAME_BYTES]; /* for messages: without user and password */
    int64_t patience_ms, lease_ms, keep_blob_ms, keep_set_ms;
} mongo_link;

/* `text` is a whole URI; its option kubeml.patience_ms overrides `patience_ms`. Does not dial the
 * server. */
int mongo_link_open(mongo_link *l, const char *text, int64_t patience_ms, err *e);
void mongo_link_close(mongo_link *l); /* a zeroed link is fine */
/* The files and ports of further connections, to all servers that are known by now. */
void mongo_link_reach(const mongo_link *l, store_reach *out);

/* One attempt with a client of the pool. True: it has an outcome, in `arg`; false: `error` has why
 * not. `attempt` counts from 0; an earlier attempt may have been carried out though its reply was
 * lost. */
typedef bool (*mongo_op)(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error);

/* Tries `op` until it has an outcome, until an error that no retry cures, or until the time is up.
 * ERR_UNAVAILABLE, ERR_FORBIDDEN, ERR_LIMIT, ERR_IO; the message names the store. Waits at most
 * patience_ms and one attempt. */
int mongo_run(const mongo_link *l, mongo_op op, void *arg, const char *what, err *e);

/* The parts of an attempt. All of them own filter, update and command from the call on; out
 * arguments other than `document` may be NULL. */
/* Finds a copy of the document, or NULL; with `field` alone, unless `field` is NULL. */
bool mongo_find_one(mongoc_client_t *client, const char *db, const char *collection, bson_t *filter,
                    const char *field, bson_t **document, bson_error_t *error);
bool mongo_update_one(mongoc_client_t *client, const char *db, const char *collection,
                      bson_t *filter, bson_t *update, bool upsert, int64_t *matched,
                      bson_error_t *error);
bool mongo_delete(mongoc_client_t *client, const char *db, const char *collection, bson_t *filter,
                  bool many, int64_t *deleted, bson_error_t *error);
/* Runs a command with the link's write concern. The caller destroys `reply` in any case. */
bool mongo_command(mongoc_client_t *client, const char *db, bson_t *command, bson_t *reply,
                   bson_error_t *error);
int64_t mongo_number(const bson_t *document, const char *field, int64_t otherwise);

typedef struct mongo_store {
    store base;
    mongo_link link;
    bool users;    /* the server has users: each locator that is given out has its own */
    bool snapshot; /* lists are read from one snapshot */
    char owner[STORE_ID_BYTES];
    char scratch_dir[FS_PATH_BYTES];
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    pthread_t keeper; /* renews the lease; started by the first writer */
    bool keeping, ending;
} mongo_store;

static inline mongo_link *mongo_link_of(const store *s)
{
    return &((mongo_store *)(uintptr_t)s)->link;
}

/* ---- BSON ------------------------------------------------------------------------------------ */

/* Appends the JSON object in `text` as document `key`. ERR_LIMIT when it is nested too deeply or
 * too large; ERR_CORRUPT when `text` is no JSON object. */
int mongo_bson_append_json(bson_t *out, const char *key, const char *text, size_t len, err *e);
/* Appends the document at `iter` as JSON to `out`. ERR_CORRUPT. */
int mongo_bson_to_json(const bson_iter_t *iter, buf *out, err *e);

/* ---- uploads and leases ---------------------------------------------------------------------- */

/* Records that `id` is being written, after taking a lease. kind: "blob", "chunks". */
int mongo_upload_begin(mongo_store *s, const char *id, const char *kind, err *e);
/* Checks that the upload lives, so that no sweep has removed its bytes. ERR_CANCELLED: a sweep took
 * it for dead. */
int mongo_upload_check(mongo_store *s, const char *id, err *e);
/* Forgets an upload that is published. ERR_CANCELLED: a sweep took it for dead. */
int mongo_upload_end(mongo_store *s, const char *id, err *e);
/* Records that `id` is deleted; a sweep removes its bytes when its time is over. */
int mongo_upload_deleted(mongo_store *s, const char *id, const char *kind, err *e);
/* Gives an upload up: removes its bytes, as far as that is possible now. */
void mongo_upload_abort(mongo_store *s, const char *id, const char *kind);
/* For a writer that goes without knowing whether it has published: forgets an upload that a
 * document names; leaves any other upload to a sweep. */
void mongo_upload_leave(mongo_store *s, const char *id, const char *kind);
/* Whether a sweep took this chunk set for dead. */
int mongo_upload_dead(mongo_store *s, const char *id, bool *dead, err *e);
void mongo_keeper_stop(mongo_store *s);
int mongo_sweep(store *s, size_t *removed, err *e);
/* Drops the store's database and those of its chunk sets. */
int mongo_drop(store *s, err *e);

/* ---- users ----------------------------------------------------------------------------------- */

int mongo_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e);
int mongo_locator(store *s, store_use use, char out[STORE_LOCATOR_BYTES], err *e);
int mongo_revoke(store *s, const char *locator, err *e);
int mongo_revoke_others(store *s, const char *const *kept, size_t count, size_t *revoked, err *e);
/* Drops the users and roles that were made in the store's own database. Call before that database
 * is dropped. */
bool mongo_drop_users(const mongo_store *s, mongoc_client_t *client, bson_error_t *error);

/* ---- records --------------------------------------------------------------------------------- */

int mongo_put(store *s, const char *collection, const char *key, const char *text, size_t len,
              uint64_t expected, uint64_t *version, err *e);
int mongo_get(store *s, const char *collection, const char *key, buf *out, uint64_t *version,
              err *e);
int mongo_remove(store *s, const char *collection, const char *key, uint64_t expected, err *e);
int mongo_list(store *s, const char *collection, const char *prefix, const char *after,
               size_t limit, store_each each, void *arg, bool *more, err *e);

/* ---- parts ----------------------------------------------------------------------------------- */

int mongo_blob_begin(store *s, const char *name, blob_writer **out, err *e);
int mongo_blob_write(blob_writer *w, const void *bytes, size_t len, err *e);
int mongo_blob_commit(blob_writer *w, bool over, err *e);
void mongo_blob_abort(blob_writer *w);
int mongo_blob_find(store *s, const char *name, uint64_t *bytes, err *e);
int mongo_blob_open(store *s, const char *name, blob **out, err *e);
void mongo_blob_close(blob *b);
int mongo_blob_read_at(blob *b, uint64_t offset, void *out, size_t len, err *e);
int mongo_blob_fd(blob *b, int *fd, err *e);
int mongo_blob_path(blob *b, char out[FS_PATH_BYTES], err *e);
int mongo_blob_delete(store *s, const char *name, err *e);
int mongo_blob_list(store *s, const char *prefix, const char *after, size_t limit,
                    blob_entry **out, size_t *count, err *e);

int mongo_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e);
int mongo_chunk_put(chunk_writer *w, uint32_t split, uint32_t index, const void *bytes, size_t len,
                    err *e);
int mongo_chunk_put_info(chunk_writer *w, const char *text, size_t len, err *e);
int mongo_chunk_seal(chunk_writer *w, err *e);
void mongo_chunk_release(chunk_writer *w);
void mongo_chunk_abort(chunk_writer *w);
int mongo_chunks_delete(store *s, const char *id, err *e);
/* Whether there is no sealed chunk set of this id. */
int mongo_set_missing(const mongo_store *s, const char *id, bool *missing, err *e);
/* A chunk set's database. */
void mongo_set_db(const mongo_store *s, const char *id, char out[MONGO_DB_BYTES]);
/* Whether `db` is the database of a chunk set of this store. Other databases' names may begin with
 * this store's name too. */
bool mongo_is_set_db(const mongo_link *l, const char *db);

int mongo_reader_open(const store_driver *driver, const char *uri, chunk_reader **out, err *e);
void mongo_reader_close(chunk_reader *r);
int mongo_reader_view(chunk_reader *r, uint32_t split, uint32_t index, const void **bytes,
                      size_t *len, err *e);
int mongo_reader_info(chunk_reader *r, const char **text, size_t *len, err *e);
void mongo_reader_prefetch(chunk_reader *r, uint32_t split, const uint32_t *indices, size_t count);
uint64_t mongo_reader_scratch_bytes(const chunk_reader *r);
void mongo_reader_reach(const chunk_reader *r, store_reach *out);
bool mongo_reader_waits(chunk_reader *r, char *why, size_t size);

/* Makes a nameless file for fetched data, in memory if the disk has no place for it. */
int mongo_scratch_file(int *fd, err *e);
/* Appends {$gt: after, $gte: prefix, $lt: end of prefix} under `field`, as far as they are
 * given. */
void mongo_append_range(bson_t *filter, const char *field, const char *prefix, const char *after);

#endif
