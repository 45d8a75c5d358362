/* store_mongo_users.c: rights: locators with users that are made for one job. See store.h and
 * store_mongo.h.
 *
 * If the store's own locator names a user, the server has users. Then every locator that is given
 * out has a user of its own, with a password from the system's randomness:
 * - A dataset's reader: in the dataset's database, with the role "read" on that database.
 * - A job's kubeml-ps: in the store's database, with a role for GridFS, the histories, and the
 *   collections that a writer needs (uploads, leases, the counter of versions). It cannot read
 *   datasets, nor records of jobs, which hold secrets, and it makes no users. The models of all
 * jobs
 *   are in one bucket, so a kubeml-ps could write another job's model. But a kubeml-ps runs no
 * user's
 *   code, and user's code never has its locator.
 * - A process that serves a model: in the store's database too, with a role that reads GridFS.
 * Names begin with USER_PREFIX: no other user is ever dropped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/cleanup.h"
#include "store_mongo.h"

#define USER_PREFIX "job-"

/* By store_use. A role with other rights needs another number in its name: a database keeps the
 * roles that it has. */
static const struct role {
    const char *name, *what;
    bool writes;
    const char *collections[6];
} roles[] = {
    [STORE_USE_JOB] = {"kubeml-job-1",
                       "making a job's user",
                       true,
                       {"blobs.files", "blobs.chunks", "records.history", "uploads", "leases",
                        "counters"}},
    [STORE_USE_READ] = {"kubeml-read-1",
                        "making a user that reads models",
                        false,
                        {"blobs.files", "blobs.chunks"}},
};

enum { NO_SUCH_USER = 11, NO_SUCH_ROLE = 31, ROLE_EXISTS = 51002, USER_EXISTS = 51003 };

typedef struct user_op {
    const char *db; /* where the user lives */
    char name[STORE_ID_BYTES + 4], password[2 * STORE_ID_BYTES];
    const char *role;
} user_op;

/* ---- making and dropping ------------------------------------------------------------------- */

static bool create_user(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    (void)l;
    const user_op *op = arg;
    bson_t *command =
        BCON_NEW("createUser", BCON_UTF8(op->name), "pwd", BCON_UTF8(op->password), "roles", "[",
                 "{", "role", BCON_UTF8(op->role), "db", BCON_UTF8(op->db), "}", "]");
    /* A user that exists was made by the attempt before. */
    return mongo_command(client, op->db, command, NULL, error) ||
           (attempt > 0 && error->code == USER_EXISTS);
}

static bool drop_user(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)l;
    (void)attempt;
    const user_op *op = arg;
    return mongo_command(client, op->db, BCON_NEW("dropUser", BCON_UTF8(op->name)), NULL, error) ||
           error->code == NO_SUCH_USER;
}

static void append_privilege(bson_t *privileges, uint32_t at, const char *db,
                             const char *collection, bool writes)
{
    static const char *const actions[] = {"find", "insert", "update", "remove"};
    bson_t privilege, list;
    char number[16], place[16];
    const char *key;
    bson_uint32_to_string(at, &key, number, sizeof number);
    BSON_APPEND_DOCUMENT_BEGIN(privileges, key, &privilege);
    BCON_APPEND(&privilege, "resource", "{", "db", BCON_UTF8(db), "collection",
                BCON_UTF8(collection), "}");
    BSON_APPEND_ARRAY_BEGIN(&privilege, "actions", &list);
    for (uint32_t i = 0; i < (writes ? sizeof actions / sizeof *actions : 1); i++) {
        bson_uint32_to_string(i, &key, place, sizeof place);
        BSON_APPEND_UTF8(&list, key, actions[i]);
    }
    bson_append_array_end(&privilege, &list);
    bson_append_document_end(privileges, &privilege);
}

/* Makes a role; succeeds if it is there already. */
static bool create_role(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                        bson_error_t *error)
{
    const struct role *r = arg;
    uint32_t count = 0;
    (void)attempt;
    bson_t *command = BCON_NEW("createRole", BCON_UTF8(r->name)), privileges;
    BSON_APPEND_ARRAY_BEGIN(command, "privileges", &privileges);
    append_privilege(&privileges, count++, l->db, "schema", false);
    for (size_t i = 0; i < sizeof r->collections / sizeof *r->collections && r->collections[i]; i++)
        append_privilege(&privileges, count++, l->db, r->collections[i], r->writes);
    bson_append_array_end(command, &privileges);
    BCON_APPEND(command, "roles", "[", "]");
    return mongo_command(client, l->db, command, NULL, error) || error->code == ROLE_EXISTS;
}

static int make_user(const mongo_store *s, user_op *op, const char *what, err *e)
{
    char halves[2][STORE_ID_BYTES];
    store_new_id(halves[0]);
    snprintf(op->name, sizeof op->name, USER_PREFIX "%.16s", halves[0]);
    store_new_id(halves[0]);
    store_new_id(halves[1]);
    snprintf(op->password, sizeof op->password, "%s%s", halves[0], halves[1]);
    explicit_bzero(halves, sizeof halves);
    return mongo_run(&s->link, create_user, op, what, e);
}

/* ---- locators ------------------------------------------------------------------------------ */

/* Appends the options of `query`, which may be NULL. If there is a user, its database replaces the
 * option authSource. */
static int append_options(buf *out, const char *query, const char *auth_source, err *e)
{
    static const char source[] = "authSource=";
    char separator = '?';
    while (query && *query) {
        size_t len = strcspn(query, "&");
        bool skip = auth_source && strncasecmp(query, source, strlen(source)) == 0;
        if (len > 0 && !skip) {
            if (buf_printf(out, e, "%c%.*s", separator, (int)len, query) != 0)
                return -1;
            separator = '&';
        }
        query += len + (query[len] == '&');
    }
    return auth_source ? buf_printf(out, e, "%c%s%s", separator, source, auth_source) : 0;
}

/* Writes the store's own URI with another database and another user, or no user. */
static int write_locator(const mongo_store *s, const char *db, const user_op *user,
                         char out[STORE_LOCATOR_BYTES], err *e)
{
    const char *begin = strstr(s->link.text, "://") + 3;
    const char *hosts = begin, *end = begin + strcspn(begin, "/?");
    for (const char *at = begin; at < end; at++)
        if (*at == '@')
            hosts = at + 1;
    const char *query = strchr(end, '?');
    cleanup_buf buf text;
    buf_init(&text, STORE_LOCATOR_BYTES - 1);
    int result =
        buf_printf(&text, e, "%.*s%s%s%s%s%.*s/%s", (int)(begin - s->link.text), s->link.text,
                   user ? user->name : "", user ? ":" : "", user ? user->password : "",
                   user ? "@" : "", (int)(end - hosts), hosts, db);
    if (result == 0)
        result = append_options(&text, query ? query + 1 : NULL, user ? user->db : NULL, e);
    if (result == 0)
        memcpy(out, text.bytes, text.len + 1);
    if (text.bytes)
        explicit_bzero(text.bytes, text.len);
    return result == 0 ? 0 : err_wrap(e, "store %s: a job's locator", s->link.name);
}

int mongo_chunks_locator(store *base, const char *id, char out[STORE_LOCATOR_BYTES], err *e)
{
    mongo_store *s = (mongo_store *)base;
    char db[MONGO_DB_BYTES];
    mongo_set_db(s, id, db);
    if (!s->users)
        return write_locator(s, db, NULL, out, e);
    user_op op = {.db = db, .role = "read"};
    int result = make_user(s, &op, "making a user that reads a dataset", e);
    if (result == 0)
        result = write_locator(s, db, &op, out, e);
    explicit_bzero(op.password, sizeof op.password);
    return result;
}

int mongo_locator(store *base, store_use use, char out[STORE_LOCATOR_BYTES], err *e)
{
    mongo_store *s = (mongo_store *)base;
    const struct role *r = &roles[use];
    if (!s->users)
        return write_locator(s, s->link.db, NULL, out, e);
    user_op op = {.db = s->link.db, .role = r->name};
    int result = mongo_run(&s->link, create_role, (void *)(uintptr_t)r, "making a role", e);
    if (result == 0)
        result = make_user(s, &op, r->what, e);
    if (result == 0)
        result = write_locator(s, s->link.db, &op, out, e);
    explicit_bzero(op.password, sizeof op.password);
    return result;
}

/* ---- revoking ------------------------------------------------------------------------------ */

/* Whether the user was made by this file's code. */
static bool is_ours(const mongo_store *s, const char *name, const char *db)
{
    return name && db && strncmp(name, USER_PREFIX, strlen(USER_PREFIX)) == 0 &&
           (strcmp(db, s->link.db) == 0 || mongo_is_set_db(&s->link, db));
}

static int drop_ours(const mongo_store *s, const char *name, const char *db, err *e)
{
    user_op op = {.db = db};
    if (!is_ours(s, name, db) || strlen(name) >= sizeof op.name)
        return 0;
    snprintf(op.name, sizeof op.name, "%s", name);
    return mongo_run(&s->link, drop_user, &op, "dropping a user", e);
}

int mongo_revoke(store *base, const char *locator, err *e)
{
    mongo_store *s = (mongo_store *)base;
    bson_error_t error;
    if (!s->users)
        return 0;
    mongoc_uri_t *uri = mongoc_uri_new_with_error(locator, &error);
    if (!uri)
        return err_set(e, ERR_INVALID, "a job's locator: %s", error.message);
    int result = drop_ours(s, mongoc_uri_get_username(uri), mongoc_uri_get_auth_source(uri), e);
    mongoc_uri_destroy(uri);
    return result;
}

static bool list_users(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)l;
    (void)attempt;
    bson_t reply, *command = BCON_NEW("usersInfo", "{", "forAllDBs", BCON_BOOL(true), "}");
    bool done =
        mongoc_client_read_command_with_opts(client, "admin", command, NULL, NULL, &reply, error);
    if (done)
        *(bson_t **)arg = bson_copy(&reply);
    bson_destroy(&reply);
    bson_destroy(command);
    return done;
}

static bool is_kept(const char *name, const char *const *kept, size_t count)
{
    char part[STORE_ID_BYTES + 8];
    snprintf(part, sizeof part, "//%s:", name);
    for (size_t i = 0; i < count; i++)
        if (strstr(kept[i], part))
            return true;
    return false;
}

static const char *text_in(const bson_iter_t *user, const char *field)
{
    bson_iter_t at;
    return bson_iter_recurse(user, &at) && bson_iter_find(&at, field) && BSON_ITER_HOLDS_UTF8(&at)
               ? bson_iter_utf8(&at, NULL)
               : NULL;
}

int mongo_revoke_others(store *base, const char *const *kept, size_t count, size_t *revoked, err *e)
{
    mongo_store *s = (mongo_store *)base;
    bson_t *reply = NULL;
    bson_iter_t at, user;
    if (!s->users)
        return 0;
    if (mongo_run(&s->link, list_users, &reply, "listing users", e) != 0)
        return -1;
    int result = 0;
    if (bson_iter_init_find(&at, reply, "users") && bson_iter_recurse(&at, &user))
        while (result == 0 && bson_iter_next(&user)) {
            const char *name = text_in(&user, "user"), *db = text_in(&user, "db");
            if (!is_ours(s, name, db) || is_kept(name, kept, count))
                continue;
            result = drop_ours(s, name, db, e);
            *revoked += result == 0;
        }
    bson_destroy(reply);
    return result;
}

bool mongo_drop_users(const mongo_store *s, mongoc_client_t *client, bson_error_t *error)
{
    size_t revoked = 0;
    err e = ERR_INIT;
    if (mongo_revoke_others((store *)(uintptr_t)&s->base, NULL, 0, &revoked, &e) != 0) {
        bson_set_error(error, MONGOC_ERROR_CLIENT, 0, "%s", e.message);
        return false;
    }
    bool done = true;
    for (size_t i = 0; done && i < sizeof roles / sizeof *roles; i++)
        done = mongo_command(client, s->link.db, BCON_NEW("dropRole", BCON_UTF8(roles[i].name)),
                             NULL, error) ||
               error->code == NO_SUCH_ROLE;
    return done;
}
