/* store_mongo_uploads.c: uploads: who writes what, and the removal of dead writers' data. See
 * store_mongo.h.
 *
 * The states of an upload:
 *     living -> gone            it is published
 *     living -> dead -> gone    it is removed, or was published after all
 *     deleted -> gone           its time is over
 * Each arrow is one update whose filter holds the state before. A sweep makes an upload dead when
 * its owner's lease has run out. The writer itself makes it dead when the reply to the publishing
 * write does not come.
 *
 * A writer publishes first and then asks whether it is dead (mongo_upload_end, mongo_upload_dead).
 * A sweep makes the upload dead first and then asks whether it is published. So at least one of the
 * two sees the other. If the upload of a chunk set is forgotten, the writer looks for the set's
 * description, which a sweep removes. The description stands for all chunks, because it is sealed
 * only while the upload lives (mongo_upload_check). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "store_mongo.h"

enum { LEASES_KEPT = 10 }; /* times lease_ms, after which an old lease is dropped */

/* ---- leases -------------------------------------------------------------------------------- */

static bool renew_once(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)attempt;
    return mongo_update_one(client, l->db, "leases", BCON_NEW("_id", BCON_UTF8(arg)),
                            BCON_NEW("$currentDate", "{", "renewed", BCON_BOOL(true), "}"), true,
                            NULL, error);
}

static bool drop_lease(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)attempt;
    return mongo_delete(client, l->db, "leases", BCON_NEW("_id", BCON_UTF8(arg)), false, NULL,
                        error);
}

/* Renews the lease, and does nothing else that could delay it: a sweep removes deleted data. A
 * renewal that fails is tried again the next time; a writer whose lease runs out sees this when it
 * publishes. */
static void *keep(void *arg)
{
    mongo_store *s = arg;
    int64_t every_ms = s->link.lease_ms / 3 + 1;
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        int64_t next_ms = clock_deadline_ms(every_ms);
        while (!s->ending && clock_cond_wait(&s->changed, &s->lock, next_ms))
            ;
        if (s->ending)
            break;
        pthread_mutex_unlock(&s->lock);
        mongo_run(&s->link, renew_once, s->owner, "renewing a lease", NULL);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int begin_keeping(mongo_store *s, err *e)
{
    pthread_mutex_lock(&s->lock);
    bool keeping = s->keeping;
    pthread_mutex_unlock(&s->lock);
    if (keeping)
        return 0;
    if (mongo_run(&s->link, renew_once, s->owner, "taking a lease", e) != 0)
        return -1;
    int status = 0;
    pthread_mutex_lock(&s->lock);
    if (!s->keeping) {
        status = pthread_create(&s->keeper, NULL, keep, s);
        s->keeping = status == 0;
    }
    pthread_mutex_unlock(&s->lock);
    return status == 0 ? 0 : err_set_errno(e, status, "no thread to keep a lease");
}

void mongo_keeper_stop(mongo_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool keeping = s->keeping;
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!keeping)
        return;
    pthread_join(s->keeper, NULL);
    mongo_run(&s->link, drop_lease, s->owner, "dropping a lease", NULL);
}

/* ---- uploads ------------------------------------------------------------------------------- */

typedef struct upload_op {
    const char *id, *kind, *owner, *state; /* owner, state: must match; NULL: anything */
    const char *becomes;
    int64_t matched;
    int attempts;
    bool found;
    char seen[16];
} upload_op;

static void take_text(const bson_t *document, const char *field, char *out, size_t size)
{
    bson_iter_t at;
    *out = '\0';
    if (bson_iter_init_find(&at, document, field) && BSON_ITER_HOLDS_UTF8(&at))
        snprintf(out, size, "%s", bson_iter_utf8(&at, NULL));
}

static bson_t *filter_of(const upload_op *op)
{
    bson_t *filter = BCON_NEW("_id", BCON_UTF8(op->id));
    if (op->owner)
        BSON_APPEND_UTF8(filter, "owner", op->owner);
    if (op->state)
        BSON_APPEND_UTF8(filter, "state", op->state);
    return filter;
}

/* Writes the whole document over any other. */
static bool write_upload(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    const upload_op *op = arg;
    bson_t *update = BCON_NEW("$set", "{", "kind", BCON_UTF8(op->kind), "owner",
                              BCON_UTF8(op->owner), "state", BCON_UTF8(op->becomes), "}",
                              "$currentDate", "{", "at", BCON_BOOL(true), "}");
    return mongo_update_one(client, l->db, "uploads", BCON_NEW("_id", BCON_UTF8(op->id)), update,
                            true, NULL, error);
}

static bool change_state(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    upload_op *op = arg;
    bson_t *update = BCON_NEW("$set", "{", "state", BCON_UTF8(op->becomes), "}");
    return mongo_update_one(client, l->db, "uploads", filter_of(op), update, false, &op->matched,
                            error);
}

static bool forget_upload(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                          bson_error_t *error)
{
    upload_op *op = arg;
    op->attempts = attempt + 1;
    return mongo_delete(client, l->db, "uploads", filter_of(op), false, &op->matched, error);
}

static bool see_upload(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                       bson_error_t *error)
{
    (void)attempt;
    upload_op *op = arg;
    bson_t *document;
    if (!mongo_find_one(client, l->db, "uploads", filter_of(op), NULL, &document, error))
        return false;
    op->found = document != NULL;
    if (document)
        take_text(document, "state", op->seen, sizeof op->seen);
    bson_destroy(document);
    return true;
}

int mongo_upload_begin(mongo_store *s, const char *id, const char *kind, err *e)
{
    upload_op op = {.id = id, .kind = kind, .owner = s->owner, .becomes = "living"};
    return begin_keeping(s, e) != 0
               ? -1
               : mongo_run(&s->link, write_upload, &op, "beginning an upload", e);
}

int mongo_upload_deleted(mongo_store *s, const char *id, const char *kind, err *e)
{
    upload_op op = {.id = id, .kind = kind, .owner = s->owner, .becomes = "deleted"};
    return begin_keeping(s, e) != 0 ? -1
                                    : mongo_run(&s->link, write_upload, &op, "deleting", e);
}

int mongo_upload_dead(mongo_store *s, const char *id, bool *dead, err *e)
{
    upload_op op = {.id = id};
    if (mongo_run(&s->link, see_upload, &op, "reading an upload's state", e) != 0)
        return -1;
    *dead = op.found && strcmp(op.seen, "dead") == 0;
    /* No upload: it was published, or a sweep has removed everything. */
    return op.found ? 0 : mongo_set_missing(s, id, dead, e);
}

static int taken_for_dead(const mongo_store *s, err *e)
{
    return err_set(e, ERR_CANCELLED, "an upload was taken for dead after %lld ms",
                   (long long)s->link.lease_ms);
}

/* Checks by an update that changes nothing: a majority of the servers confirms its result. */
int mongo_upload_check(mongo_store *s, const char *id, err *e)
{
    upload_op op = {.id = id, .owner = s->owner, .state = "living", .becomes = "living"};
    if (mongo_run(&s->link, change_state, &op, "looking whether an upload lives", e) != 0)
        return -1;
    return op.matched > 0 ? 0 : taken_for_dead(s, e);
}

int mongo_upload_end(mongo_store *s, const char *id, err *e)
{
    upload_op op = {.id = id, .owner = s->owner, .state = "living"};
    if (mongo_run(&s->link, forget_upload, &op, "ending an upload", e) != 0)
        return -1;
    /* No match: an attempt whose reply was lost has forgotten it, or a sweep took it for dead. */
    return op.matched > 0 || op.attempts > 1 ? 0 : taken_for_dead(s, e);
}

/* ---- removing ------------------------------------------------------------------------------ */

static bool drop_blob(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    return mongo_delete(client, l->db, "blobs.chunks", BCON_NEW("files_id", BCON_UTF8(arg)), true,
                        NULL, error);
}

typedef struct drop_op {
    char db[MONGO_DB_BYTES];
    bool users;
} drop_op;

static bool drop_set(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                     bson_error_t *error)
{
    (void)attempt;
    (void)l;
    const drop_op *op = arg;
    bool done = true;
    if (op->users)
        done = mongo_command(client, op->db, BCON_NEW("dropAllUsersFromDatabase", BCON_INT32(1)),
                             NULL, error);
    mongoc_database_t *db = mongoc_client_get_database(client, op->db);
    done = done && mongoc_database_drop_with_opts(db, NULL, error);
    mongoc_database_destroy(db);
    return done;
}

static int remove_bytes(mongo_store *s, const char *id, const char *kind, err *e)
{
    if (strcmp(kind, "blob") == 0)
        return mongo_run(&s->link, drop_blob, (void *)(uintptr_t)id, "removing a blob", e);
    drop_op op = {.users = s->users};
    mongo_set_db(s, id, op.db);
    return mongo_run(&s->link, drop_set, &op, "removing a dataset", e);
}

void mongo_upload_abort(mongo_store *s, const char *id, const char *kind)
{
    upload_op op = {.id = id};
    if (remove_bytes(s, id, kind, NULL) == 0) /* else a sweep removes them */
        mongo_run(&s->link, forget_upload, &op, "ending an upload", NULL);
}

/* ---- sweeping ------------------------------------------------------------------------------ */

typedef struct upload {
    char id[STORE_ID_BYTES], kind[8], state[16], owner[STORE_ID_BYTES];
    int64_t at_ms;
} upload;

enum { PAGE = 256 };

typedef struct sweep_op {
    upload uploads[PAGE];
    size_t count;
    char after[STORE_ID_BYTES];
    int64_t now_ms;
    const char *id;
    bool found;
} sweep_op;

static int64_t take_date(const bson_t *document, const char *field)
{
    bson_iter_t at;
    return bson_iter_init_find(&at, document, field) && BSON_ITER_HOLDS_DATE_TIME(&at)
               ? bson_iter_date_time(&at)
               : 0;
}

static bool list_uploads(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                         bson_error_t *error)
{
    (void)attempt;
    sweep_op *op = arg;
    mongoc_collection_t *c = mongoc_client_get_collection(client, l->db, "uploads");
    bson_t *filter = BCON_NEW("_id", "{", "$gt", BCON_UTF8(op->after), "}");
    bson_t *opts = BCON_NEW("sort", "{", "_id", BCON_INT32(1), "}", "limit", BCON_INT64(PAGE));
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, opts, NULL);
    const bson_t *document;
    op->count = 0;
    while (op->count < PAGE && mongoc_cursor_next(cursor, &document)) {
        upload *u = &op->uploads[op->count++];
        take_text(document, "_id", u->id, sizeof u->id);
        take_text(document, "kind", u->kind, sizeof u->kind);
        take_text(document, "state", u->state, sizeof u->state);
        take_text(document, "owner", u->owner, sizeof u->owner);
        u->at_ms = take_date(document, "at");
    }
    bool done = !mongoc_cursor_error(cursor, error);
    mongoc_cursor_destroy(cursor);
    bson_destroy(filter);
    bson_destroy(opts);
    mongoc_collection_destroy(c);
    return done;
}

/* Asks for the time of the server's clock. */
static bool ask_time(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                     bson_error_t *error)
{
    (void)attempt;
    sweep_op *op = arg;
    bson_t *command = BCON_NEW("isMaster", BCON_INT32(1)), reply;
    bool done = mongoc_client_command_simple(client, l->db, command, NULL, &reply, error);
    if (done && (op->now_ms = take_date(&reply, "localTime")) == 0) {
        bson_set_error(error, MONGOC_ERROR_SERVER, 0, "the server does not tell the time");
        done = false;
    }
    bson_destroy(&reply);
    bson_destroy(command);
    return done;
}

/* Sets `found` to whether the owner's lease is still valid. */
static bool see_lease(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    sweep_op *op = arg;
    bson_t *document;
    if (!mongo_find_one(client, l->db, "leases", BCON_NEW("_id", BCON_UTF8(op->id)), NULL,
                        &document, error))
        return false;
    op->found = document && take_date(document, "renewed") + l->lease_ms > op->now_ms;
    bson_destroy(document);
    return true;
}

typedef struct named_op {
    const char *id, *kind;
    bool found;
} named_op;

/* Sets `found` to whether a published document names these bytes. */
static bool see_named(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                      bson_error_t *error)
{
    (void)attempt;
    named_op *op = arg;
    bool is_blob = strcmp(op->kind, "blob") == 0;
    bson_t *filter = bson_new(), *document;
    BSON_APPEND_UTF8(filter, is_blob ? "_id" : "value.upload", op->id);
    if (!mongo_find_one(client, l->db, is_blob ? "blobs.files" : "records." STORE_DATASETS, filter,
                        "_id", &document, error))
        return false;
    op->found = document != NULL;
    bson_destroy(document);
    return true;
}

void mongo_upload_leave(mongo_store *s, const char *id, const char *kind)
{
    named_op name = {.id = id, .kind = kind};
    upload_op op = {.id = id, .owner = s->owner, .state = "living", .becomes = "dead"};
    if (mongo_run(&s->link, see_named, &name, "looking for an upload's name", NULL) == 0 &&
        name.found)
        mongo_upload_end(s, id, NULL);
    else /* if this fails too, the upload lives as long as this process */
        mongo_run(&s->link, change_state, &op, "leaving an upload", NULL);
}

/* Takes an upload away from an owner whose lease has run out. */
static int claim(mongo_store *s, const upload *u, int64_t now_ms, bool *claimed, err *e)
{
    sweep_op lease = {.id = u->owner, .now_ms = now_ms};
    *claimed = false;
    if (mongo_run(&s->link, see_lease, &lease, "reading a lease", e) != 0)
        return -1;
    if (lease.found)
        return 0;
    upload_op op = {.id = u->id, .owner = u->owner, .state = "living", .becomes = "dead"};
    if (mongo_run(&s->link, change_state, &op, "taking over an upload", e) != 0)
        return -1;
    *claimed = op.matched > 0;
    return 0;
}

static int sweep_one(mongo_store *s, const upload *u, int64_t now_ms, size_t *removed, err *e)
{
    bool deleted = strcmp(u->state, "deleted") == 0, dead = strcmp(u->state, "dead") == 0;
    int64_t keep_ms =
        strcmp(u->kind, "blob") == 0 ? s->link.keep_blob_ms : s->link.keep_set_ms;
    if (deleted && u->at_ms + keep_ms > now_ms)
        return 0;
    if (!deleted && !dead && claim(s, u, now_ms, &dead, e) != 0)
        return -1;
    if (!deleted && !dead)
        return 0;
    named_op name = {.id = u->id, .kind = u->kind};
    if (mongo_run(&s->link, see_named, &name, "looking for an upload's name", e) != 0)
        return -1;
    if (!name.found && remove_bytes(s, u->id, u->kind, e) != 0)
        return -1;
    *removed += !name.found;
    upload_op op = {.id = u->id};
    return mongo_run(&s->link, forget_upload, &op, "forgetting an upload", e);
}

/* Drops leases whose uploads the sweep has taken over. A process that comes back takes a new
 * lease. */
static bool drop_old_leases(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                            bson_error_t *error)
{
    (void)attempt;
    const sweep_op *op = arg;
    bson_t *filter = BCON_NEW("renewed", "{", "$lt",
                              BCON_DATE_TIME(op->now_ms - LEASES_KEPT * l->lease_ms), "}");
    return mongo_delete(client, l->db, "leases", filter, true, NULL, error);
}

int mongo_sweep(store *base, size_t *removed, err *e)
{
    mongo_store *s = (mongo_store *)base;
    sweep_op *op = calloc(1, sizeof *op);
    if (!op)
        return err_set(e, ERR_NOMEM, "no memory for a sweep");
    int result = mongo_run(&s->link, ask_time, op, "asking for the time", e);
    while (result == 0) {
        if ((result = mongo_run(&s->link, list_uploads, op, "listing uploads", e)) != 0)
            break;
        for (size_t i = 0; result == 0 && i < op->count; i++)
            result = sweep_one(s, &op->uploads[i], op->now_ms, removed, e);
        if (op->count < PAGE)
            break;
        memcpy(op->after, op->uploads[PAGE - 1].id, sizeof op->after);
    }
    if (result == 0)
        result = mongo_run(&s->link, drop_old_leases, op, "dropping old leases", e);
    free(op);
    return result;
}

static bool drop_all(const mongo_link *l, mongoc_client_t *client, int attempt, void *arg,
                     bson_error_t *error)
{
    (void)attempt;
    char **names = mongoc_client_get_database_names_with_opts(client, NULL, error);
    bool done = names != NULL;
    for (char **name = names; done && *name; name++) {
        bool set = mongo_is_set_db(l, *name);
        drop_op op = {.users = ((const mongo_store *)arg)->users};
        if (!set && strcmp(*name, l->db) != 0)
            continue;
        snprintf(op.db, sizeof op.db, "%s", *name);
        done = (set || !op.users || mongo_drop_users(arg, client, error));
        op.users = op.users && set;
        done = done && drop_set(l, client, 0, &op, error);
    }
    bson_strfreev(names);
    return done;
}

int mongo_drop(store *s, err *e)
{
    return mongo_run(mongo_link_of(s), drop_all, s, "dropping a store", e);
}
