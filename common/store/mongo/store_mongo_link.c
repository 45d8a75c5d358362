/* store_mongo_link.c: a server and a database on it, and the retries of an operation. See
 * store_mongo.h.
 *
 * Every write waits for a majority of the servers and their journals. Every read asks the primary
 * for data that a majority has. So the next reader sees every write that has returned; a secondary
 * might not have it yet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "store_mongo.h"

enum {
    FIRST_DELAY_MS = 50,
    DELAY_MS_MAX = 2000,
    SELECTION_MS = 2000, /* to find a server that answers, unless the URI has the option */
    CONNECT_MS = 2000,
    SOCKET_MS = 30000,
};

/* ---- the locator --------------------------------------------------------------------------- */

/* Takes each option "NAME=NUMBER" out of the URI; the last one counts. Without the option *found is
 * unchanged. */
static int take_option(char *uri, const char *name, int64_t *found, err *e)
{
    size_t len = strlen(name);
    for (char *at = strchr(uri, '?'); at && *at;) {
        if (strncmp(at + 1, name, len) != 0 || at[1 + len] != '=') {
            at = strchr(at + 1, '&');
            continue;
        }
        char *end;
        long long value = strtoll(at + 2 + len, &end, 10);
        if (value < 1 || value > 1000LL * 24 * 3600 * 1000 || (*end && *end != '&'))
            return err_set(e, ERR_INVALID, "store: %s is no number that it may have", name);
        *found = value;
        if (*end == '&') /* the separator before the option stays, the one after it goes */
            memmove(at + 1, end + 1, strlen(end + 1) + 1);
        else
            *at = '\0';
    }
    return 0;
}

static void describe(mongo_link *l)
{
    size_t at = (size_t)snprintf(l->name, sizeof l->name, "mongodb://");
    const mongoc_host_list_t *host = mongoc_uri_get_hosts(l->uri);
    const char *service = mongoc_uri_get_srv_hostname(l->uri);
    if (service)
        at += (size_t)snprintf(l->name + at, sizeof l->name - at, "%s", service);
    for (; host && at < sizeof l->name; host = host->next)
        at += (size_t)snprintf(l->name + at, sizeof l->name - at, "%s%s", host->host_and_port,
                               host->next ? "," : "");
    if (at < sizeof l->name)
        snprintf(l->name + at, sizeof l->name - at, "/%s", l->db);
}

static void set_default(mongoc_uri_t *uri, const char *option, int value)
{
    if (!mongoc_uri_has_option(uri, option))
        mongoc_uri_set_option_as_int32(uri, option, value);
}

/* Sets the file of trusted certificate authorities, if the URI does not. A single file, which a
 * sandbox can allow: OpenSSL's own folder consists of links to other files, and not every image has
 * it. */
static void set_default_ca(mongoc_uri_t *uri)
{
    const char *const files[] = {getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt",
                                 "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"};
    if (!mongoc_uri_get_tls(uri) || mongoc_uri_has_option(uri, MONGOC_URI_TLSCAFILE))
        return;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] && access(files[i], R_OK) == 0) {
            mongoc_uri_set_option_as_utf8(uri, MONGOC_URI_TLSCAFILE, files[i]);
            return;
        }
}

/* The URI's options that name files; libmongoc opens the files again for each connection. */
static const char *const file_options[] = {MONGOC_URI_TLSCAFILE, MONGOC_URI_TLSCERTIFICATEKEYFILE};
enum { FILE_OPTIONS = sizeof file_options / sizeof *file_options };

static int check_files(const mongo_link *l, err *e)
{
    for (int i = 0; i < FILE_OPTIONS; i++) {
        const char *path = mongoc_uri_get_option_as_utf8(l->uri, file_options[i], NULL);
        if (path && access(path, R_OK) != 0)
            return err_set(e, ERR_INVALID, "store %s: %s %s is not there or cannot be read",
                           l->name, file_options[i], path);
    }
    return 0;
}

/* Whether the URI has an @ by which libmongoc would take a part of the password for a host, a
 * database or an option; logs name these. */
static bool has_bare_at(const char *uri)
{
    const char *begin = strstr(uri, "://");
    if (!begin)
        return false;
    const char *at = begin + 3 + strcspn(begin + 3, "@/?");
    return *at == '@' ? at[1 + strcspn(at + 1, "@?")] == '@' : strchr(at, '@') != NULL;
}

static int parse(mongo_link *l, const char *text, err *e)
{
    bson_error_t error;
    l->uri = has_bare_at(text) ? NULL : mongoc_uri_new_with_error(text, &error);
    if (!l->uri && strchr(text, '@')) /* libmongoc's message may quote the password */
        return err_set(e, ERR_INVALID,
                       "store mongodb: the URI cannot be read: percent-encode user name and "
                       "password, and look at what follows them");
    if (!l->uri)
        return err_set(e, ERR_INVALID, "store mongodb: %s", error.message);
    const char *db = mongoc_uri_get_database(l->uri);
    if (snprintf(l->db, sizeof l->db, "%s", db ? db : "kubeml") >= (int)sizeof l->db)
        return err_set(e, ERR_LIMIT, "store mongodb: a database's name has at most %d characters",
                       MONGO_DB_BYTES - 1);
    set_default(l->uri, MONGOC_URI_SERVERSELECTIONTIMEOUTMS, SELECTION_MS);
    set_default(l->uri, MONGOC_URI_CONNECTTIMEOUTMS, CONNECT_MS);
    set_default(l->uri, MONGOC_URI_SOCKETTIMEOUTMS, SOCKET_MS);
    set_default_ca(l->uri);
    mongoc_write_concern_t *durable = mongoc_write_concern_new();
    mongoc_read_concern_t *committed = mongoc_read_concern_new();
    mongoc_read_prefs_t *primary = mongoc_read_prefs_new(MONGOC_READ_PRIMARY);
    mongoc_write_concern_set_wmajority(durable, (int32_t)l->patience_ms);
    mongoc_write_concern_set_journal(durable, true);
    mongoc_read_concern_set_level(committed, MONGOC_READ_CONCERN_LEVEL_MAJORITY);
    mongoc_uri_set_write_concern(l->uri, durable);
    mongoc_uri_set_read_concern(l->uri, committed);
    mongoc_uri_set_read_prefs_t(l->uri, primary);
    mongoc_read_prefs_destroy(primary);
    mongoc_write_concern_destroy(durable);
    mongoc_read_concern_destroy(committed);
    if (!mongoc_uri_get_appname(l->uri))
        mongoc_uri_set_appname(l->uri, "kubeml");
    describe(l);
    return check_files(l, e);
}

int mongo_link_open(mongo_link *l, const char *text, int64_t patience_ms, err *e)
{
    char *uri = strdup(text);
    int64_t keep_ms = 0;
    *l = (mongo_link){.text = strdup(text), .patience_ms = patience_ms, .lease_ms = MONGO_LEASE_MS};
    if (!uri || !l->text) {
        free(uri);
        mongo_link_close(l);
        return err_set(e, ERR_NOMEM, "no memory for a store");
    }
    int result = take_option(uri, "kubeml.patience_ms", &l->patience_ms, e) != 0 ||
                         take_option(uri, "kubeml.lease_ms", &l->lease_ms, e) != 0 ||
                         take_option(uri, "kubeml.keep_ms", &keep_ms, e) != 0 ||
                         parse(l, uri, e) != 0
                     ? -1
                     : 0;
    free(uri);
    l->keep_blob_ms = keep_ms ? keep_ms : MONGO_KEEP_BLOB_MS;
    l->keep_set_ms = keep_ms ? keep_ms : MONGO_KEEP_SET_MS;
    if (result == 0 && !(l->pool = mongoc_client_pool_new(l->uri)))
        result = err_set(e, ERR_INVALID, "store %s: libmongoc does not take its options", l->name);
    if (result == 0)
        mongoc_client_pool_set_error_api(l->pool, MONGOC_ERROR_API_VERSION_2);
    else
        mongo_link_close(l);
    return result;
}

void mongo_link_close(mongo_link *l)
{
    if (l->pool)
        mongoc_client_pool_destroy(l->pool);
    if (l->uri)
        mongoc_uri_destroy(l->uri);
    if (l->text)
        explicit_bzero(l->text, strlen(l->text));
    free(l->text);
    l->text = NULL;
    l->pool = NULL;
    l->uri = NULL;
}

/* ---- what it reaches ----------------------------------------------------------------------- */

static void add_host(const mongoc_host_list_t *host, store_reach *out)
{
    if (host->family == AF_UNIX) {
        out->unix_sockets = true;
        return;
    }
    for (int i = 0; i < STORE_REACH_PORTS_MAX; i++)
        if (out->tcp_ports[i] == 0 || out->tcp_ports[i] == host->port) {
            out->tcp_ports[i] = host->port;
            return;
        }
}

void mongo_link_reach(const mongo_link *l, store_reach *out)
{
    static const char *const names[] = {"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"};
    int files = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        out->files[files++] = names[i];
    for (int i = 0; i < FILE_OPTIONS; i++) {
        const char *path = mongoc_uri_get_option_as_utf8(l->uri, file_options[i], NULL);
        if (path)
            out->files[files++] = path;
    }
    for (const mongoc_host_list_t *h = mongoc_uri_get_hosts(l->uri); h; h = h->next)
        add_host(h, out);
    /* The other servers of a replica set, and servers that an SRV record names. */
    size_t count;
    mongoc_client_t *client = mongoc_client_pool_pop(l->pool);
    mongoc_server_description_t **servers = mongoc_client_get_server_descriptions(client, &count);
    for (size_t i = 0; i < count; i++)
        add_host(mongoc_server_description_host(servers[i]), out);
    mongoc_server_descriptions_destroy_all(servers, count);
    mongoc_client_pool_push(l->pool, client);
}

/* ---- trying -------------------------------------------------------------------------------- */

/* Whether the error may pass: servers step down, shut down, or cannot reach a majority or each
 * other. */
static bool is_passing(const bson_error_t *error)
{
    static const uint32_t codes[] = {6,    7,     64,    89,    91,    112,   189,   246,
                                     262,  317,   9001,  10058, 10107, 11600, 11602, 13388,
                                     13435, 13436, 134,   133,   43};
    if (error->domain == MONGOC_ERROR_STREAM || error->domain == MONGOC_ERROR_WRITE_CONCERN)
        return true;
    if (error->domain == MONGOC_ERROR_SERVER_SELECTION)
        return !strstr(error->message, "uthenticat");
    if (error->domain != MONGOC_ERROR_SERVER && error->domain != MONGOC_ERROR_QUERY &&
        error->domain != MONGOC_ERROR_COLLECTION)
        return false;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (error->code == codes[i])
            return true;
    return false;
}

static err_code code_of(const bson_error_t *error)
{
    if (is_passing(error))
        return ERR_UNAVAILABLE;
    if (error->code == 13 || error->code == 18 || strstr(error->message, "uthenticat"))
        return ERR_FORBIDDEN;
    if (error->code == 10334 || error->domain == MONGOC_ERROR_BSON)
        return ERR_LIMIT;
    return error->code == 59 ? ERR_UNSUPPORTED : ERR_IO;
}

static void pause_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

int mongo_run(const mongo_link *l, mongo_op op, void *arg, const char *what, err *e)
{
    int64_t deadline = clock_deadline_ms(l->patience_ms), delay = FIRST_DELAY_MS;
    for (int attempt = 0;; attempt++) {
        bson_error_t error = {0};
        mongoc_client_t *client = mongoc_client_pool_pop(l->pool);
        bool done = op(l, client, attempt, arg, &error);
        mongoc_client_pool_push(l->pool, client);
        if (done)
            return 0;
        if (!is_passing(&error) || clock_left_ms(deadline) <= delay)
            return err_set(e, code_of(&error), "store %s: %s: %s%s", l->name, what, error.message,
                           attempt ? " (tried again until the time was up)" : "");
        /* Half of the delay is random, so that clients of one lost server do not return all at
         * once. */
        pause_ms(delay / 2 + clock_monotonic_ns() % (delay / 2 + 1));
        delay = 2 * delay < DELAY_MS_MAX ? 2 * delay : DELAY_MS_MAX;
    }
}

/* ---- single documents ---------------------------------------------------------------------- */

int64_t mongo_number(const bson_t *document, const char *field, int64_t otherwise)
{
    bson_iter_t at;
    return bson_iter_init_find(&at, document, field) ? bson_iter_as_int64(&at) : otherwise;
}

bool mongo_find_one(mongoc_client_t *client, const char *db, const char *collection, bson_t *filter,
                    const char *field, bson_t **document, bson_error_t *error)
{
    mongoc_collection_t *c = mongoc_client_get_collection(client, db, collection);
    bson_t opts = BSON_INITIALIZER;
    if (field)
        BCON_APPEND(&opts, "projection", "{", field, BCON_INT32(1), "}");
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, &opts, NULL);
    const bson_t *found;
    *document = mongoc_cursor_next(cursor, &found) ? bson_copy(found) : NULL;
    bool done = !mongoc_cursor_error(cursor, error);
    mongoc_cursor_destroy(cursor);
    mongoc_collection_destroy(c);
    bson_destroy(&opts);
    bson_destroy(filter);
    return done;
}

bool mongo_update_one(mongoc_client_t *client, const char *db, const char *collection,
                      bson_t *filter, bson_t *update, bool upsert, int64_t *matched,
                      bson_error_t *error)
{
    mongoc_collection_t *c = mongoc_client_get_collection(client, db, collection);
    bson_t opts = BSON_INITIALIZER, reply;
    if (upsert)
        BSON_APPEND_BOOL(&opts, "upsert", true);
    bool done = mongoc_collection_update_one(c, filter, update, &opts, &reply, error);
    if (done && matched)
        *matched = mongo_number(&reply, "matchedCount", 0);
    mongoc_collection_destroy(c);
    bson_destroy(&reply);
    bson_destroy(&opts);
    bson_destroy(filter);
    bson_destroy(update);
    return done;
}

bool mongo_delete(mongoc_client_t *client, const char *db, const char *collection, bson_t *filter,
                  bool many, int64_t *deleted, bson_error_t *error)
{
    mongoc_collection_t *c = mongoc_client_get_collection(client, db, collection);
    bson_t reply;
    bool done = many ? mongoc_collection_delete_many(c, filter, NULL, &reply, error)
                     : mongoc_collection_delete_one(c, filter, NULL, &reply, error);
    if (done && deleted)
        *deleted = mongo_number(&reply, "deletedCount", 0);
    mongoc_collection_destroy(c);
    bson_destroy(&reply);
    bson_destroy(filter);
    return done;
}

bool mongo_command(mongoc_client_t *client, const char *db, bson_t *command, bson_t *reply,
                   bson_error_t *error)
{
    bson_t own;
    bool done = mongoc_client_write_command_with_opts(client, db, command, NULL,
                                                      reply ? reply : &own, error);
    if (!reply)
        bson_destroy(&own);
    bson_destroy(command);
    return done;
}
