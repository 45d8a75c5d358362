/* test_store_mongo_form.c: what lies in MongoDB, seen with its driver alone: schema, indexes, and
 * what a data set's user may do; how we ask it. Runs against MONGODB_URI or the stand-in. */
#include <mongoc/mongoc.h>

#include "common/store/mongo/store_mongo.h"
#include "stores.h"

static mongoc_client_t *dial(const char *locator, mongoc_uri_t **uri)
{
    bson_error_t error;
    char text[800], *option;
    mongoc_init();
    mongoc_log_set_handler(NULL, NULL);
    snprintf(text, sizeof text, "%s", locator);
    if ((option = strstr(text, "kubeml."))) /* ours: the driver does not know them */
        memmove(option, option + strcspn(option, "&"), strlen(option + strcspn(option, "&")) + 1);
    *uri = mongoc_uri_new_with_error(text, &error);
    CHECK(*uri);
    return mongoc_client_new_from_uri(*uri);
}

static store *make(mongoc_client_t **client, mongoc_uri_t **uri)
{
    test_store_use(ON_MONGO);
    store *s = test_store("");
    *client = dial(test_store_locator(""), uri);
    return s;
}

static void set_schema(mongoc_client_t *client, const char *db, int64_t version)
{
    bson_error_t error;
    mongoc_collection_t *c = mongoc_client_get_collection(client, db, "schema");
    bson_t *all = bson_new(), *update = BCON_NEW("$set", "{", "version", BCON_INT64(version), "}");
    CHECK(mongoc_collection_update_one(c, all, update, NULL, NULL, &error));
    bson_destroy(all);
    bson_destroy(update);
    mongoc_collection_destroy(c);
}

/* A secondary may not have yet what a writer was told is done. */
TEST(reads_ask_the_primary_whatever_the_locator_says)
{
    static const char *const options[] = {
        "",
        "?readPreference=nearest",
        "?readPreference=secondaryPreferred&maxStalenessSeconds=120",
        "?readPreference=secondary&readPreferenceTags=dc:east",
    };
    mongoc_init();
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        err e = ERR_INIT;
        char text[200];
        mongo_link l;
        snprintf(text, sizeof text, "mongodb://127.0.0.1:1/kubeml%s", options[i]);
        CHECK_OK(mongo_link_open(&l, text, 1000, &e), e);
        mongoc_client_t *client = mongoc_client_pool_pop(l.pool);
        CHECK_INT(mongoc_read_prefs_get_mode(mongoc_client_get_read_prefs(client)),
                  MONGOC_READ_PRIMARY);
        mongoc_client_pool_push(l.pool, client);
        mongo_link_close(&l);
    }
}

TEST(a_store_of_another_schema_is_refused)
{
    err e = ERR_INIT;
    mongoc_uri_t *uri;
    mongoc_client_t *client;
    store *s = make(&client, &uri);
    store_close(s);
    set_schema(client, mongoc_uri_get_database(uri), 99);
    CHECK(!store_open(test_store_locator(""), &e));
    CHECK_INT(e.code, ERR_UNSUPPORTED);
    CHECK_CONTAINS(e.message, "schema 99; this program knows 1");
    set_schema(client, mongoc_uri_get_database(uri), 1);
    mongoc_client_destroy(client);
    mongoc_uri_destroy(uri);
}

static bool has_index(mongoc_client_t *client, const char *db, const char *collection,
                      const char *field, bool unique)
{
    mongoc_collection_t *c = mongoc_client_get_collection(client, db, collection);
    mongoc_cursor_t *cursor = mongoc_collection_find_indexes_with_opts(c, NULL);
    const bson_t *index;
    bool found = false;
    while (mongoc_cursor_next(cursor, &index)) {
        bson_iter_t at, key, is;
        bool single = bson_iter_init_find(&is, index, "unique") && bson_iter_as_bool(&is);
        found |= bson_iter_init_find(&at, index, "key") && bson_iter_recurse(&at, &key) &&
                 bson_iter_next(&key) && strcmp(bson_iter_key(&key), field) == 0 &&
                 single == unique;
    }
    mongoc_cursor_destroy(cursor);
    mongoc_collection_destroy(c);
    return found;
}

TEST(indexes_stand_in_a_new_store)
{
    mongoc_uri_t *uri;
    mongoc_client_t *client;
    store *s = make(&client, &uri);
    const char *db = mongoc_uri_get_database(uri);
    CHECK(has_index(client, db, "blobs.files", "filename", true));
    CHECK(has_index(client, db, "blobs.chunks", "files_id", true));
    CHECK(has_index(client, db, "records.datasets", "value.upload", false));
    CHECK(!has_index(client, db, "records.datasets", "value.upload", true));
    mongoc_client_destroy(client);
    mongoc_uri_destroy(uri);
    store_close(s);
}

/* ---- users --------------------------------------------------------------------------------- */

/* 0, or the server's code. */
static uint32_t run(mongoc_client_t *client, const char *db, const char *json)
{
    bson_error_t error = {0};
    bson_t *command = bson_new_from_json((const uint8_t *)json, -1, &error);
    CHECK(command);
    bool done = mongoc_client_command_simple(client, db, command, NULL, NULL, &error);
    bson_destroy(command);
    return done ? 0 : error.code;
}

/* Functions run others' code with it. */
TEST(the_user_of_a_data_set_is_refused_every_change)
{
    static const char *const changes[] = {
        "{\"insert\": \"chunks\", \"documents\": [{\"_id\": 7}]}",
        "{\"update\": \"chunks\", \"updates\": [{\"q\": {}, \"u\": {\"$set\": {\"data\": 0}}}]}",
        "{\"findAndModify\": \"meta\", \"query\": {}, \"update\": {\"$set\": {\"text\": \"\"}}}",
        "{\"delete\": \"chunks\", \"deletes\": [{\"q\": {\"_id\": 7}, \"limit\": 0}]}",
        "{\"create\": \"more\"}",
        "{\"createIndexes\": \"chunks\", \"indexes\": [{\"key\": {\"x\": 1}, \"name\": \"x\"}]}",
        "{\"createUser\": \"job-other\", \"pwd\": \"x\", \"roles\": []}",
        "{\"drop\": \"chunks\"}",
        "{\"dropDatabase\": 1}",
    };
    enum { UNAUTHORIZED = 13 };
    err e = ERR_INIT;
    mongoc_uri_t *uri, *mine;
    mongoc_client_t *owner, *user;
    chunk_writer *w;
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES];
    store *s = make(&owner, &uri);
    if (!mongoc_uri_get_username(uri))
        test_skip("users of one job: MONGODB_URI names no user");
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    user = dial(locator, &mine);
    const char *db = mongoc_uri_get_database(mine);
    CHECK_INT(run(user, db, "{\"find\": \"chunks\"}"), 0);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        CHECK_INT(run(user, db, changes[i]), UNAUTHORIZED);
    CHECK_INT(run(user, mongoc_uri_get_database(uri), "{\"find\": \"records.jobs\"}"),
              UNAUTHORIZED);
    chunk_reader *r; /* it is as it was */
    const void *bytes;
    size_t len;
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    CHECK(len == 5 && memcmp(bytes, "bytes", 5) == 0);
    chunk_reader_close(r);
    /* Nothing of it is refused for its form: whose store it is may do all. */
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        CHECK_INT(run(owner, db, changes[i]), 0);
    mongoc_client_destroy(user);
    mongoc_uri_destroy(mine);
    mongoc_client_destroy(owner);
    mongoc_uri_destroy(uri);
    chunk_abort(w);
    store_close(s);
}
