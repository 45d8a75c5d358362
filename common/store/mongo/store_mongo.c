/* store_mongo.c: the MongoDB store: opening, and the table of its functions. See store.h and
 * store_mongo.h. */
#include "store_mongo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

/* ---- the store ----------------------------------------------------------------------------- */

static bool find_schema(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    (void)attempt;
    int64_t *version = arg;
    bson_t *document;
    if (!mongo_find_one(client, l->db, "schema", BCON_NEW("_id", BCON_UTF8("schema")), NULL,
                        &document, error))
        return false;
    *version = document ? mongo_number(document, "version", 0) : -1;
    bson_destroy(document);
    return true;
}

static bool write_schema(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    (void)arg;
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "schema");
    bson_t *document = BCON_NEW("_id", BCON_UTF8("schema"), "version", BCON_INT64(MONGO_SCHEMA));
    bool done = mongoc_collection_insert_one(c, document, NULL, NULL, error) ||
                error->code == MONGO_DUPLICATE_KEY;
    bson_destroy(document);
    mongoc_collection_destroy(c);
    return done;
}

/* Makes an index; succeeds if it is there already. */
static bool make_index(const mongo_link *l, mongoc_client_t *client, const char *collection,
                       const char *name, const bson_t *keys, bool unique, bson_error_t *error)
{
    bson_t *command = bson_new(), indexes, index;
    BSON_APPEND_UTF8(command, "createIndexes", collection);
    BSON_APPEND_ARRAY_BEGIN(command, "indexes", &indexes);
    BSON_APPEND_DOCUMENT_BEGIN(&indexes, "0", &index);
    BSON_APPEND_DOCUMENT(&index, "key", keys);
    BSON_APPEND_UTF8(&index, "name", name);
    if (unique)
        BSON_APPEND_BOOL(&index, "unique", true);
    bson_append_document_end(&indexes, &index);
    bson_append_array_end(command, &indexes);
    return mongo_command(client, l->db, command, NULL, error);
}

static bool make_indexes(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    (void)arg;
    bson_t *by_name = BCON_NEW("filename", BCON_INT32(1));
    bson_t *by_place = BCON_NEW("files_id", BCON_INT32(1), "n", BCON_INT32(1));
    bson_t *by_upload = BCON_NEW("value.upload", BCON_INT32(1));
    bool done =
        make_index(l, client, "blobs.files", "filename_1", by_name, true, error) &&
        make_index(l, client, "blobs.chunks", "files_id_1_n_1", by_place, true, error) &&
        make_index(l, client, "records." STORE_DATASETS, "upload_1", by_upload, false, error);
    bson_destroy(by_name);
    bson_destroy(by_place);
    bson_destroy(by_upload);
    return done;
}

/* Sets *arg to whether the server belongs to a replica set, which alone can give a snapshot. */
static bool ask_hello(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    bool *replicated = arg;
    bson_t *command = BCON_NEW("ping", BCON_INT32(1)), reply;
    bool done = mongoc_client_command_simple(client, l->db, command, NULL, &reply, error);
    bson_destroy(&reply);
    bson_destroy(command);
    if (!done)
        return false;
    mongoc_server_description_t *server =
        mongoc_client_select_server(client, true, NULL, error);
    if (!server)
        return false;
    bson_iter_t at;
    const bson_t *hello = mongoc_server_description_hello_response(server);
    *replicated = bson_iter_init_find(&at, hello, "setName") ||
                  (bson_iter_init_find(&at, hello, "msg") && BSON_ITER_HOLDS_UTF8(&at) &&
                   strcmp(bson_iter_utf8(&at, NULL), "isdbgrid") == 0);
    /* From 5.0 on, find has this read concern outside of a transaction too. */
    *replicated = *replicated && mongo_number(hello, "maxWireVersion", 0) >= 13;
    mongoc_server_description_destroy(server);
    return true;
}

/* Prepares a new database. The schema's version is written last: a database that has it has its
 * indexes. So a process that opens the store later writes nothing, and needs no right to write. */
static int prepare(mongo_store *s, err *e)
{
    const mongo_link *l = &s->link;
    int64_t schema;
    if (strlen(l->db) >= MONGO_STORE_DB_BYTES)
        return err_set(e, ERR_LIMIT, "store %s: the database's name may have %d characters",
                       l->name, MONGO_STORE_DB_BYTES - 1);
    if (mongo_run(l, ask_hello, &s->snapshot, "looking for the server", e) != 0 ||
        mongo_run(l, find_schema, &schema, "reading the schema's version", e) != 0)
        return -1;
    if (schema >= 0 && schema != MONGO_SCHEMA)
        return err_set(e, ERR_UNSUPPORTED, "store %s has schema %lld; this program knows %d",
                       l->name, (long long)schema, MONGO_SCHEMA);
    if (schema == MONGO_SCHEMA)
        return 0;
    return mongo_run(l, make_indexes, NULL, "making indexes", e) ||
                   mongo_run(l, write_schema, NULL, "writing the schema's version", e)
               ? -1
               : 0;
}

static store *open_store(const store_driver *driver, const char *uri, err *e)
{
    mongo_store *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(e, ERR_NOMEM, "no memory for a store");
        return NULL;
    }
    s->base.driver = driver;
    store_new_id(s->owner);
    const char *tmp = getenv("TMPDIR");
    if (fs_path(s->scratch_dir, e, "%s", tmp && *tmp ? tmp : "/tmp") != 0 ||
        mongo_link_open(&s->link, uri, MONGO_PATIENCE_MS, e) != 0) {
        free(s);
        return NULL;
    }
    s->users = mongoc_uri_get_username(s->link.uri) != NULL;
    if (prepare(s, e) != 0) {
        mongo_link_close(&s->link);
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    return &s->base;
}

static void mongo_close(store *base)
{
    mongo_store *s = (mongo_store *)base;
    mongo_keeper_stop(s);
    mongo_link_close(&s->link);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int mongo_ping(store *s, err *e)
{
    int64_t version;
    return mongo_run(mongo_link_of(s), find_schema, &version, "reading", e);
}

static const char *mongo_scratch_dir(const store *s)
{
    return ((const mongo_store *)s)->scratch_dir;
}

/* ---- the drivers --------------------------------------------------------------------------- */

/* The whole URI: store.c cuts the scheme off, and libmongoc needs it. */
static char *with_scheme(const store_driver *driver, const char *rest, err *e)
{
    char *uri;
    if (asprintf(&uri, "%s%s", driver->scheme, rest) >= 0)
        return uri;
    err_set(e, ERR_NOMEM, "no memory for a store");
    return NULL;
}

extern const store_driver store_mongo, store_mongo_srv;

static store *open_with(const store_driver *driver, const char *rest, err *e)
{
    char *uri = with_scheme(driver, rest, e);
    store *s = uri ? open_store(driver, uri, e) : NULL;
    free(uri);
    return s;
}

static int reader_with(const store_driver *driver, const char *rest, chunk_reader **out, err *e)
{
    char *uri = with_scheme(driver, rest, e);
    int result = uri ? mongo_reader_open(driver, uri, out, e) : -1;
    free(uri);
    return result;
}

static store *open_plain(const char *rest, err *e)
{
    return open_with(&store_mongo, rest, e);
}

static store *open_srv(const char *rest, err *e)
{
    return open_with(&store_mongo_srv, rest, e);
}

static int reader_plain(const char *rest, chunk_reader **out, err *e)
{
    return reader_with(&store_mongo, rest, out, e);
}

static int reader_srv(const char *rest, chunk_reader **out, err *e)
{
    return reader_with(&store_mongo_srv, rest, out, e);
}

#define FUNCTIONS                                                                                  \
    .close = mongo_close, .ping = mongo_ping, .sweep = mongo_sweep,                                \
    .scratch_dir = mongo_scratch_dir, .put = mongo_put, .get = mongo_get, .remove = mongo_remove,  \
    .list = mongo_list, .blob_begin = mongo_blob_begin, .blob_write = mongo_blob_write,            \
    .blob_commit = mongo_blob_commit, .blob_abort = mongo_blob_abort,                              \
    .blob_find = mongo_blob_find, .blob_open = mongo_blob_open, .blob_close = mongo_blob_close,    \
    .blob_read_at = mongo_blob_read_at, .blob_fd = mongo_blob_fd, .blob_path = mongo_blob_path,    \
    .blob_delete = mongo_blob_delete, .blob_list = mongo_blob_list,                                \
    .chunks_begin = mongo_chunks_begin, .chunk_put = mongo_chunk_put,                              \
    .chunk_put_info = mongo_chunk_put_info, .chunk_seal = mongo_chunk_seal,                        \
    .chunk_release = mongo_chunk_release, .chunk_abort = mongo_chunk_abort,                        \
    .chunks_delete = mongo_chunks_delete, .chunks_locator = mongo_chunks_locator,                  \
    .locator = mongo_locator, .revoke = mongo_revoke, .revoke_others = mongo_revoke_others,        \
    .reader_close = mongo_reader_close, .reader_view = mongo_reader_view,                          \
    .reader_info = mongo_reader_info, .reader_prefetch = mongo_reader_prefetch,                    \
    .reader_scratch_bytes = mongo_reader_scratch_bytes, .reader_reach = mongo_reader_reach,        \
    .reader_waits = mongo_reader_waits, .drop = mongo_drop

const store_driver store_mongo = {
    .scheme = "mongodb:", .open = open_plain, .reader_open = reader_plain, FUNCTIONS};
const store_driver store_mongo_srv = {
    .scheme = "mongodb+srv:", .open = open_srv, .reader_open = reader_srv, FUNCTIONS};

/* The function that store.c looks for. NULL for another size: another version of store_driver.h. */
__attribute__((visibility("default"))) const store_driver *kubeml_store_driver(const char *scheme,
                                                                               size_t size);

static void start_libmongoc(void)
{
    mongoc_init();
    /* No log of libmongoc's own: the error of the operation reports trouble once. */
    mongoc_log_set_handler(NULL, NULL);
}

const store_driver *kubeml_store_driver(const char *scheme, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (size != sizeof(store_driver))
        return NULL;
    pthread_once(&once, start_libmongoc); /* without an end: the object is never unloaded */
    return strcmp(scheme, store_mongo_srv.scheme) == 0 ? &store_mongo_srv : &store_mongo;
}
