/* test_store_mongo_form.c: what lies in MongoDB, seen with its driver alone: schema, indexes, and
 * the write concern of what is sent. Runs against MONGODB_URI or the stand-in. */
#include <mongoc/mongoc.h>

#include "stores.h"

static mongoc_client_t *dial(mongoc_uri_t **uri)
{
    bson_error_t error;
    char text[800], *option;
    mongoc_init();
    mongoc_log_set_handler(NULL, NULL);
    snprintf(text, sizeof text, "%s", test_store_locator(""));
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
    *client = dial(uri);
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
