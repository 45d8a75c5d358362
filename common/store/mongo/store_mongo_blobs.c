/* store_mongo_blobs.c: blobs of the MongoDB store are files of GridFS (bucket "blobs"), readable by
 * any of its tools. See store_mongo.h.
 *
 * Chunks are written first, under an id of this upload. Inserting the file's document, whose name
 * is unique, is the commit. Opening a blob fetches it into a nameless file: after that the blob
 * needs no server. So the bytes of a deleted blob can go at once, which jobs need that replace
 * their checkpoint every few seconds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "store_mongo.h"

enum {
    CHUNK_BYTES = 1 << 20,
    BATCH_CHUNKS = 4, /* an insert */
    FETCH_CHUNKS = 8, /* a batch of a cursor */
};

typedef struct mongo_blob_writer {
    blob_writer base;
    char name[STORE_KEY_BYTES], id[STORE_ID_BYTES];
    uint8_t *batch; /* BATCH_CHUNKS * CHUNK_BYTES */
    size_t in_batch;
    uint64_t bytes;
    XXH3_state_t *digest;
} mongo_blob_writer;

typedef struct mongo_blob {
    blob base;
    int fd;
} mongo_blob;

/* A file's document. */
typedef struct blob_file {
    const char *name;
    char id[STORE_ID_BYTES], digest[24];
    int64_t chunk_bytes;
    uint64_t bytes;
} blob_file;

int mongo_scratch_file(int *fd, err *e)
{
    const char *dir = getenv("TMPDIR");
    if (fs_scratch_file(dir && *dir ? dir : "/tmp", fd, NULL) == 0)
        return 0;
    *fd = memfd_create("kubeml-store", MFD_CLOEXEC);
    return *fd >= 0 ? 0 : err_set_errno(e, errno, "no place for what a store gives");
}

/* ---- writing ------------------------------------------------------------------------------- */

static void free_writer(mongo_blob_writer *w)
{
    if (w->digest)
        XXH3_freeState(w->digest);
    free(w->batch);
    free(w);
}

int mongo_blob_begin(store *s, const char *name, blob_writer **out, err *e)
{
    mongo_blob_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for blob %s", name);
    w->base.store = s;
    snprintf(w->name, sizeof w->name, "%s", name);
    store_new_id(w->id);
    w->batch = malloc((size_t)BATCH_CHUNKS * CHUNK_BYTES);
    w->digest = XXH3_createState();
    if (!w->batch || !w->digest) {
        free_writer(w);
        return err_set(e, ERR_NOMEM, "no memory for blob %s", name);
    }
    XXH3_64bits_reset(w->digest);
    if (mongo_upload_begin((mongo_store *)s, w->id, "blob", e) != 0) {
        free_writer(w);
        return err_wrap(e, "blob %s", name);
    }
    *out = &w->base;
    return 0;
}

static bool insert_batch(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    const mongo_blob_writer *w = arg;
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "blobs.chunks");
    int32_t first = (int32_t)((w->bytes - w->in_batch) / CHUNK_BYTES);
    bson_t documents[BATCH_CHUNKS];
    const bson_t *pointers[BATCH_CHUNKS];
    size_t count = 0;
    bool done = true;
    if (attempt > 0) { /* the attempt before may have inserted some chunks */
        bson_t *filter =
            BCON_NEW("files_id", BCON_UTF8(w->id), "n", "{", "$gte", BCON_INT32(first), "}");
        done = mongoc_collection_delete_many(c, filter, NULL, NULL, error);
        bson_destroy(filter);
    }
    for (size_t at = 0; at < w->in_batch; at += CHUNK_BYTES, count++) {
        bson_t *d = &documents[count];
        size_t left = w->in_batch - at;
        bson_oid_t oid;
        bson_oid_init(&oid, NULL);
        bson_init(d);
        BSON_APPEND_OID(d, "_id", &oid);
        BSON_APPEND_UTF8(d, "files_id", w->id);
        BSON_APPEND_INT32(d, "n", first + (int32_t)count);
        BSON_APPEND_BINARY(d, "data", BSON_SUBTYPE_BINARY, w->batch + at,
                           (uint32_t)(left < CHUNK_BYTES ? left : CHUNK_BYTES));
        pointers[count] = d;
    }
    done = done && mongoc_collection_insert_many(c, pointers, count, NULL, NULL, error);
    for (size_t i = 0; i < count; i++)
        bson_destroy(&documents[i]);
    mongoc_collection_destroy(c);
    return done;
}

static int end_batch(mongo_blob_writer *w, err *e)
{
    if (w->in_batch == 0)
        return 0;
    int result = mongo_run(mongo_link_of(w->base.store), insert_batch, w, "writing a blob", e);
    w->in_batch = 0;
    return result == 0 ? 0 : err_wrap(e, "blob %s", w->name);
}

int mongo_blob_write(blob_writer *base, const void *bytes, size_t len, err *e)
{
    mongo_blob_writer *w = (mongo_blob_writer *)base;
    const uint8_t *from = bytes;
    XXH3_64bits_update(w->digest, bytes, len);
    while (len > 0) {
        size_t room = (size_t)BATCH_CHUNKS * CHUNK_BYTES - w->in_batch;
        size_t part = len < room ? len : room;
        memcpy(w->batch + w->in_batch, from, part);
        w->in_batch += part;
        w->bytes += part;
        from += part;
        len -= part;
        if (part == room && end_batch(w, e) != 0)
            return -1;
    }
    return 0;
}

typedef struct commit_op {
    const mongo_blob_writer *w;
    bool exists; /* another file has the name */
    bool asked;  /* insert_file was sent: unless `exists`, this upload's file may have the name */
} commit_op;

/* Sets *ours to whether the file that has this name is this upload's, of an attempt whose reply was
 * lost. */
static bool is_ours(const mongo_link *l, mongoc_client_t *client, const mongo_blob_writer *w,
                    bool *ours, bson_error_t *error)
{
    bson_t *document;
    bool done = mongo_find_one(client, l->db, "blobs.files", BCON_NEW("_id", BCON_UTF8(w->id)),
                               "_id", &document, error);
    *ours = document != NULL;
    bson_destroy(document);
    return done;
}

static bool insert_file(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    (void)attempt;
    commit_op *op = arg;
    const mongo_blob_writer *w = op->w;
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx",
             (unsigned long long)XXH3_64bits_digest(w->digest));
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "blobs.files");
    bson_t *document = BCON_NEW(
        "_id", BCON_UTF8(w->id), "length", BCON_INT64((int64_t)w->bytes), "chunkSize",
        BCON_INT32(CHUNK_BYTES), "uploadDate", BCON_DATE_TIME(clock_wall_ms()), "filename",
        BCON_UTF8(w->name), "metadata", "{", "xxh3", BCON_UTF8(digest), "}");
    op->asked = true;
    bool ours = true, done = mongoc_collection_insert_one(c, document, NULL, NULL, error);
    if (!done && error->code == MONGO_DUPLICATE_KEY)
        done = is_ours(l, client, w, &ours, error);
    op->exists = done && !ours;
    bson_destroy(document);
    mongoc_collection_destroy(c);
    return done;
}

static bool remove_file(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    (void)attempt;
    return mongo_delete(client, l->db, "blobs.files", BCON_NEW("_id", BCON_UTF8(arg)), false, NULL,
                        error);
}

/* Frees the writer of a blob that may be committed or not: the reply did not come. */
static void leave(mongo_blob_writer *w)
{
    mongo_upload_leave((mongo_store *)w->base.store, w->id, "blob");
    free_writer(w);
}

/* Removes the name first, if there is one: a sweep removes bytes without a name, but a name without
 * bytes would stay. */
void mongo_blob_abort(blob_writer *base)
{
    mongo_blob_writer *w = (mongo_blob_writer *)base;
    mongo_store *s = (mongo_store *)base->store;
    if (mongo_run(&s->link, remove_file, w->id, "taking back a blob", NULL) == 0)
        mongo_upload_abort(s, w->id, "blob");
    free_writer(w);
}

typedef struct place_op {
    const char *name;
    bson_t *document; /* of the file that has the name; NULL: no file has it */
} place_op;

static bool see_place(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    place_op *op = arg;
    return mongo_find_one(client, l->db, "blobs.files", BCON_NEW("filename", BCON_UTF8(op->name)),
                          NULL, &op->document, error);
}

static bool give_back(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    const place_op *op = arg;
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "blobs.files");
    bool done = mongoc_collection_insert_one(c, op->document, NULL, NULL, error) ||
                error->code == MONGO_DUPLICATE_KEY;
    mongoc_collection_destroy(c);
    return done;
}

/* Takes over the name of another file, whose bytes are removed after that. Both files stay whole
 * meanwhile: if the new file cannot get the name, the old file gets it back. */
static int take_place(mongo_store *s, commit_op *op, err *e)
{
    place_op old = {.name = op->w->name};
    bson_iter_t at;
    char id[STORE_ID_BYTES] = "";
    int result = mongo_run(&s->link, see_place, &old, "looking for a blob", e);
    if (result == 0 && old.document && bson_iter_init_find(&at, old.document, "_id") &&
        BSON_ITER_HOLDS_UTF8(&at))
        snprintf(id, sizeof id, "%s", bson_iter_utf8(&at, NULL));
    if (result == 0 && *id && (result = mongo_upload_deleted(s, id, "blob", e)) == 0 &&
        (result = mongo_run(&s->link, remove_file, id, "replacing a blob", e)) == 0) {
        result = mongo_run(&s->link, insert_file, op, "naming a blob", e);
        if (result == 0 && !op->exists)
            mongo_upload_abort(s, id, "blob");
        else
            mongo_run(&s->link, give_back, &old, "giving a blob its name back", NULL);
    } else if (result == 0) { /* the other file is gone by now */
        result = mongo_run(&s->link, insert_file, op, "naming a blob", e);
    }
    bson_destroy(old.document);
    return result;
}

int mongo_blob_commit(blob_writer *base, bool over, err *e)
{
    mongo_blob_writer *w = (mongo_blob_writer *)base;
    mongo_store *s = (mongo_store *)base->store;
    commit_op op = {.w = w};
    int result = end_batch(w, e);
    if (result == 0)
        result = mongo_run(&s->link, insert_file, &op, "naming a blob", e);
    if (result == 0 && op.exists && over)
        result = take_place(s, &op, e);
    if (result == 0 && op.exists)
        result = err_set(e, ERR_EXISTS, "blob %s exists", w->name);
    if (result != 0) {
        if (op.asked && !op.exists)
            leave(w);
        else
            mongo_blob_abort(base);
        return -1;
    }
    /* A sweep may have taken this writer for dead, and its chunks with it. */
    if (mongo_upload_end(s, w->id, e) != 0) {
        err_wrap(e, "blob %s", w->name);
        mongo_blob_abort(base);
        return -1;
    }
    free_writer(w);
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

typedef struct find_op {
    blob_file *file;
    bool found;
} find_op;

static void take_text(const bson_t *document, const char *field, char *out, size_t size)
{
    bson_iter_t at, inner;
    *out = '\0';
    if (bson_iter_init(&at, document) && bson_iter_find_descendant(&at, field, &inner) &&
        BSON_ITER_HOLDS_UTF8(&inner))
        snprintf(out, size, "%s", bson_iter_utf8(&inner, NULL));
}

static bool find_file(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    find_op *op = arg;
    bson_t *document;
    if (!mongo_find_one(client, l->db, "blobs.files",
                        BCON_NEW("filename", BCON_UTF8(op->file->name)), NULL, &document, error))
        return false;
    op->found = document != NULL;
    if (op->found) {
        take_text(document, "_id", op->file->id, sizeof op->file->id);
        take_text(document, "metadata.xxh3", op->file->digest, sizeof op->file->digest);
        op->file->bytes = (uint64_t)mongo_number(document, "length", 0);
        op->file->chunk_bytes = mongo_number(document, "chunkSize", 0);
    }
    bson_destroy(document);
    return true;
}

static int find_blob(store *s, const char *name, blob_file *f, err *e)
{
    find_op op = {.file = f};
    *f = (blob_file){.name = name};
    if (mongo_run(mongo_link_of(s), find_file, &op, "looking for a blob", e) != 0)
        return err_wrap(e, "blob %s", name);
    if (!op.found)
        return err_set(e, ERR_NOT_FOUND, "no blob %s", name);
    if (!*f->id || f->chunk_bytes < 1 || (int64_t)f->bytes < 0)
        return err_set(e, ERR_CORRUPT, "blob %s is not described like one", name);
    return 0;
}

int mongo_blob_find(store *s, const char *name, uint64_t *bytes, err *e)
{
    blob_file f;
    if (find_blob(s, name, &f, e) != 0)
        return -1;
    *bytes = f.bytes;
    return 0;
}

typedef struct fetch_op {
    const blob_file *file;
    int fd;
    uint64_t at; /* how far the file is whole */
    XXH3_state_t *digest;
    err *e;
    int result;
} fetch_op;

static int take_chunk(fetch_op *op, const bson_t *document)
{
    const blob_file *b = op->file;
    bson_iter_t at;
    bson_subtype_t type;
    uint32_t len = 0;
    const uint8_t *bytes = NULL;
    if (bson_iter_init_find(&at, document, "data") && BSON_ITER_HOLDS_BINARY(&at))
        bson_iter_binary(&at, &type, &len, &bytes);
    if (mongo_number(document, "n", 0) != (int64_t)(op->at / (uint64_t)b->chunk_bytes) || !bytes ||
        op->at + len > b->bytes || (len < b->chunk_bytes && op->at + len != b->bytes))
        return err_set(op->e, ERR_CORRUPT, "blob %s is not whole at byte %llu", b->name,
                       (unsigned long long)op->at);
    if (fs_pwrite_all(op->fd, bytes, len, op->at, "scratch file", op->e) != 0)
        return -1;
    XXH3_64bits_update(op->digest, bytes, len);
    op->at += len;
    return 0;
}

/* Fetches the chunks from where the attempt before has ended. */
static bool fetch_chunks(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    fetch_op *op = arg;
    int64_t first = (int64_t)(op->at / (uint64_t)op->file->chunk_bytes);
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "blobs.chunks");
    bson_t *filter = BCON_NEW("files_id", BCON_UTF8(op->file->id), "n", "{", "$gte",
                              BCON_INT64(first), "}");
    bson_t *opts = BCON_NEW("sort", "{", "n", BCON_INT32(1), "}", "batchSize",
                            BCON_INT32(FETCH_CHUNKS));
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, opts, NULL);
    const bson_t *document;
    while (op->result == 0 && op->at < op->file->bytes &&
           mongoc_cursor_next(cursor, &document))
        op->result = take_chunk(op, document);
    bool done = op->result != 0 || !mongoc_cursor_error(cursor, error);
    mongoc_cursor_destroy(cursor);
    bson_destroy(filter);
    bson_destroy(opts);
    mongoc_collection_destroy(c);
    return done;
}

static int check_whole(const fetch_op *op, err *e)
{
    const blob_file *b = op->file;
    char digest[24];
    if (op->at != b->bytes)
        return err_set(e, ERR_CORRUPT, "blob %s has %llu bytes and should have %llu", b->name,
                       (unsigned long long)op->at, (unsigned long long)b->bytes);
    snprintf(digest, sizeof digest, "%016llx",
             (unsigned long long)XXH3_64bits_digest(op->digest));
    if (*b->digest && strcmp(digest, b->digest) != 0)
        return err_set(e, ERR_CORRUPT, "blob %s does not match its checksum", b->name);
    return 0;
}

static int fetch(store *s, const blob_file *f, int *out, err *e)
{
    cleanup_close int fd = -1;
    if (mongo_scratch_file(&fd, e) != 0)
        return err_wrap(e, "blob %s", f->name);
    fetch_op op = {.file = f, .fd = fd, .digest = XXH3_createState(), .e = e};
    if (!op.digest)
        return err_set(e, ERR_NOMEM, "no memory for blob %s", f->name);
    XXH3_64bits_reset(op.digest);
    int result = 0;
    if (f->bytes > 0)
        result = mongo_run(mongo_link_of(s), fetch_chunks, &op, "reading a blob", e);
    if (result == 0)
        result = op.result;
    if (result == 0)
        result = check_whole(&op, e);
    XXH3_freeState(op.digest);
    if (result == 0)
        *out = steal_fd(fd);
    return result;
}

/* Finds and fetches a blob. A blob that is not whole may have been deleted, or replaced, since it
 * was found: looks again until the same blob is found twice. */
static int find_and_fetch(store *s, const char *name, blob_file *f, int *fd, err *e)
{
    char before[STORE_ID_BYTES] = "";
    err missing = ERR_INIT;
    for (;;) {
        if (find_blob(s, name, f, e) != 0)
            return -1;
        if (strcmp(f->id, before) == 0) {
            *e = missing;
            return -1;
        }
        if (fetch(s, f, fd, &missing) == 0)
            return 0;
        if (missing.code != ERR_CORRUPT) {
            *e = missing;
            return -1;
        }
        memcpy(before, f->id, sizeof before);
    }
}

int mongo_blob_open(store *s, const char *name, blob **out, err *e)
{
    blob_file f;
    int fd = -1;
    err why = ERR_INIT;
    if (find_and_fetch(s, name, &f, &fd, &why) != 0) {
        if (e)
            *e = why;
        return -1;
    }
    mongo_blob *b = calloc(1, sizeof *b);
    if (!b) {
        close(fd);
        return err_set(e, ERR_NOMEM, "no memory for blob %s", name);
    }
    b->base = (blob){.store = s, .bytes = f.bytes};
    b->fd = fd;
    *out = &b->base;
    return 0;
}

void mongo_blob_close(blob *base)
{
    close(((mongo_blob *)base)->fd);
    free(base);
}

int mongo_blob_fd(blob *base, int *fd, err *e)
{
    (void)e;
    *fd = ((mongo_blob *)base)->fd;
    return 0;
}

int mongo_blob_read_at(blob *base, uint64_t offset, void *out, size_t len, err *e)
{
    return fs_pread_all(((mongo_blob *)base)->fd, out, len, offset, "scratch file", e);
}

int mongo_blob_path(blob *base, char out[FS_PATH_BYTES], err *e)
{
    return fs_path(out, e, "/proc/%ld/fd/%d", (long)getpid(), ((mongo_blob *)base)->fd);
}

/* ---- names --------------------------------------------------------------------------------- */

/* Removes the name first, then the chunks; a sweep removes chunks that are left. */
int mongo_blob_delete(store *base, const char *name, err *e)
{
    mongo_store *s = (mongo_store *)base;
    blob_file f;
    if (find_blob(base, name, &f, e) != 0 || mongo_upload_deleted(s, f.id, "blob", e) != 0 ||
        mongo_run(&s->link, remove_file, f.id, "deleting a blob", e) != 0)
        return -1;
    mongo_upload_abort(s, f.id, "blob");
    return 0;
}

typedef struct names_op {
    const char *prefix, *after;
    size_t limit, count;
    blob_entry *entries;
} names_op;

static bool list_files(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)attempt;
    names_op *op = arg;
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "blobs.files");
    bson_t filter, *opts = BCON_NEW("sort", "{", "filename", BCON_INT32(1), "}", "limit",
                                    BCON_INT64((int64_t)op->limit));
    bson_init(&filter);
    mongo_append_range(&filter, "filename", op->prefix, op->after);
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, &filter, opts, NULL);
    const bson_t *document;
    op->count = 0;
    while (op->count < op->limit && mongoc_cursor_next(cursor, &document)) {
        blob_entry *entry = &op->entries[op->count++];
        take_text(document, "filename", entry->name, sizeof entry->name);
        entry->bytes = (uint64_t)mongo_number(document, "length", 0);
    }
    bool done = !mongoc_cursor_error(cursor, error);
    mongoc_cursor_destroy(cursor);
    bson_destroy(&filter);
    bson_destroy(opts);
    mongoc_collection_destroy(c);
    return done;
}

int mongo_blob_list(store *s, const char *prefix, const char *after, size_t limit,
                    blob_entry **out, size_t *count, err *e)
{
    names_op op = {.prefix = prefix, .after = after, .limit = limit};
    op.entries = calloc(limit + 1, sizeof *op.entries);
    if (!op.entries)
        return err_set(e, ERR_NOMEM, "no memory for a list of blobs");
    if (mongo_run(mongo_link_of(s), list_files, &op, "listing blobs", e) != 0) {
        free(op.entries);
        return -1;
    }
    *out = op.entries;
    *count = op.count;
    return 0;
}
