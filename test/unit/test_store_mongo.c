/* test_store_mongo.c: what is MongoDB's alone: locators, the documents' form, users, TLS. Runs
 * against MONGODB_URI or the stand-in. */
#include <dlfcn.h>

#include "mongo_fixture.h"
#include "store_memory.h"

/* ---- locators ------------------------------------------------------------------------------ */

TEST(locators_are_checked)
{
    err e = ERR_INIT;
    static const char *const bad[] = {
        "mongodb:",
        "mongodb://",
        "mongodb://h:99999/x",
        "mongodb://127.0.0.1:1/kubeml?kubeml.lease_ms=x",
        "mongodb://127.0.0.1:1/kubeml?kubeml.lease_ms=0",
        "mongodb://127.0.0.1:1/kubeml?kubeml.lease_ms=0&kubeml.lease_ms=1000",
    };
    test_mongo_uri("x");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!store_open(bad[i], &e));
        CHECK_INT(e.code, ERR_INVALID);
    }
    char text[STORE_LOCATOR_BYTES];
    store_redact("mongodb://user:p%40ss@h1:1,h2:2/db?x=a@b", text);
    CHECK_STR(text, "mongodb://h1:1,h2:2/db?x=a@b");
    store_redact("lmdb:/a/b", text);
    CHECK_STR(text, "lmdb:/a/b");
}

/* What an operator may have meant to be a URI: no error, and so no log, has any of its password. */
TEST(a_wrong_locator_is_not_told_with_its_password)
{
    static const char *const bad[] = {
        "mongo://kubeml:topsecret@db.example/kubeml",
        "\"mongodb://kubeml:topsecret@db.example/kubeml\"",
        " mongodb://kubeml:topsecret@db.example/kubeml",
        "kubeml:topsecret@db.example",
        "topsecret:x@db.example",
        "mongodb://kubeml:top:secret@db.example/kubeml",
        "mongodb://kubeml:top%secret@db.example/kubeml",
        "mongodb://kubeml:top@secret@db.example/kubeml",
        "mongodb://kubeml@secret:x@db.example/kubeml",
        "mongodb://kubeml:top/secret@db.example/kubeml",
        "mongodb://kubeml:top?secret@db.example/kubeml",
        "mongodb+srv://kubeml:top:secret@db.example/kubeml",
    };
    test_mongo_uri("x");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = ERR_INIT;
        CHECK(!store_open(bad[i], &e));
        CHECK_INT(e.code, strncmp(bad[i], "mongodb", 7) ? ERR_UNSUPPORTED : ERR_INVALID);
        if (strstr(e.message, "secret"))
            test_fail(__FILE__, __LINE__, "%s: %s", bad[i], e.message);
    }
}

/* ---- form ---------------------------------------------------------------------------------- */

TEST(records_of_every_form_come_back)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    store *s = test_store("");
    static const char *const texts[] = {
        "{}",
        "{\"a.b\": 1, \"$set\": {\"$oid\": \"x\"}, \"%\": 2, \"\": 3, \"a%2Eb\": 4, \"c$\": 5}",
        "{\"i\": [-9223372036854775808, 9223372036854775807, 0, -1], \"t\": [true, false, null]}",
        "{\"r\": [0.1, -0.0, 1.0, 1e300, 4.9406564584124654e-324, 1.7976931348623157e308]}",
        "{\"s\": [\"\", \"\\u0000 inside\", \"\\u00e9\\u20ac\\ud83d\\ude00\", \"\\\"\\\\\"]}",
        "{\"empty\": [[], {}, [[]], {\"\": {}}], \"_id\": 7, \"version\": \"x\"}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *value = json_loads(texts[i], JSON_ALLOW_NUL, NULL), *got;
        CHECK(value);
        CHECK_OK(store_put(s, "things", "k", value, STORE_ANY, NULL, &e), e);
        CHECK_OK(store_get(s, "things", "k", &got, NULL, &e), e);
        if (!json_equal(value, got))
            test_fail(__FILE__, __LINE__, "%s came back as %s", texts[i], json_dumps(got, 0));
        json_decref(value);
        json_decref(got);
    }
    json_t *deep = json_object();
    for (int i = 0; i < 200; i++)
        deep = json_pack("{s:o}", "d", deep);
    CHECK_ERR(store_put(s, "things", "deep", deep, STORE_NEW, NULL, &e), e, ERR_LIMIT,
              "things/deep: it is nested deeper than 90");
    json_decref(deep);
    store_close(s);
}

/* A program that opened no MongoDB store has none of its library. */
TEST(the_driver_is_loaded_by_those_who_ask)
{
    err e = ERR_INIT;
    test_mongo_uri("x");
    CHECK(!dlsym(RTLD_DEFAULT, "mongoc_init"));
    char text[256];
    bool loaded = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(text, sizeof text, maps))
        loaded = loaded || strstr(text, "libmongoc") || strstr(text, "kubeml-mongo");
    fclose(maps);
    CHECK(!loaded);
    store *s = store_open(store_memory_locator(), &e);
    CHECK(s);
    store_close(s);
}

/* ---- users --------------------------------------------------------------------------------- */

TEST(a_locator_reads_its_dataset_and_nothing_else)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    store *s = test_store("");
    char ids[2][STORE_ID_BYTES], mine[STORE_LOCATOR_BYTES], other[STORE_LOCATOR_BYTES];
    for (int i = 0; i < 2; i++) {
        chunk_writer *w;
        CHECK_OK(store_chunks_begin(s, 0, ids[i], &w, &e), e);
        CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
        CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
        CHECK_OK(chunk_seal(w, &e), e);
        chunk_release(w);
    }
    chunk_reader *r;
    const void *bytes;
    size_t len;
    CHECK_OK(store_chunks_locator(s, ids[0], mine, &e), e);
    CHECK_OK(chunk_reader_open(mine, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    chunk_reader_close(r);
    /* The other dataset's database, with the first one's user. */
    snprintf(other, sizeof other, "%s", mine);
    char *id = strchr(strrchr(other, '@'), '/');
    id = strstr(id, ids[0]);
    CHECK(id);
    memcpy(id, ids[1], strlen(ids[1]));
    CHECK_INT(chunk_reader_open(other, &r, &e), -1);
    CHECK_INT(e.code, ERR_FORBIDDEN);
    CHECK_OK(store_revoke(s, mine, &e), e);
    CHECK_INT(chunk_reader_open(mine, &r, &e), -1);
    CHECK_INT(e.code, ERR_FORBIDDEN);
    store_close(s);
}

/* A process of another's: its user reads, and is shut out on the connection it has. */
TEST(who_is_revoked_is_shut_out_at_once)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    store *s = test_store("");
    chunk_writer *w;
    chunk_reader *r;
    const void *bytes;
    size_t len;
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES], kept[STORE_LOCATOR_BYTES];
    const char *keep[] = {kept};
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_OK(chunk_put(w, 0, i, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK_OK(store_chunks_locator(s, id, kept, &e), e);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    size_t revoked = 0;
    CHECK_OK(store_revoke_others(s, keep, 1, &revoked, &e), e);
    CHECK_INT(revoked, 1);
    CHECK_ERR(chunk_view(r, 0, 1, &bytes, &len, &e), e, ERR_FORBIDDEN, "not authorized");
    chunk_reader_close(r);
    e = (err)ERR_INIT;
    CHECK_OK(chunk_reader_open(kept, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 2, &bytes, &len, &e), e);
    chunk_reader_close(r);
    CHECK_OK(store_revoke(s, kept, &e), e);
    CHECK_OK(store_revoke(s, kept, &e), e); /* once more is fine */
    CHECK_INT(chunk_reader_open(kept, &r, &e), -1);
    CHECK_INT(e.code, ERR_FORBIDDEN);
    e = (err)ERR_INIT;
    CHECK_OK(store_revoke(s, test_store_locator(""), &e), e); /* no user of ours: stays */
    CHECK_OK(store_ping(s, &e), e);
    CHECK_OK(store_revoke_others(s, NULL, 0, &revoked, &e), e);
    CHECK_INT(revoked, 0);
    chunk_abort(w);
    store_close(s);
}

/* Two installations on one server whose databases' names begin alike. */
TEST(the_users_of_another_installation_stay)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    const char *locator = test_store_locator(""), *query = strchr(locator, '?');
    char beside[800], job[STORE_LOCATOR_BYTES], reads[STORE_LOCATOR_BYTES], id[STORE_ID_BYTES];
    CHECK(query);
    snprintf(beside, sizeof beside, "%.*s_staging%s", (int)(query - locator), locator, query);
    store *s = test_store(""), *other = open_at(beside);
    chunk_writer *w;
    chunk_reader *r;
    CHECK_OK(store_locator(other, STORE_USE_JOB, job, &e), e);
    CHECK_OK(store_chunks_begin(other, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(other, id, reads, &e), e);
    size_t revoked = 0;
    CHECK_OK(store_revoke_others(s, NULL, 0, &revoked, &e), e);
    CHECK_INT(revoked, 0);
    CHECK_OK(store_revoke(s, job, &e), e);
    CHECK_OK(chunk_reader_open(reads, &r, &e), e);
    chunk_reader_close(r);
    store_close(open_at(job));
    CHECK_OK(store_revoke_others(other, NULL, 0, &revoked, &e), e);
    CHECK_INT(revoked, 2);
    chunk_abort(w);
    CHECK_OK(store_drop(other, &e), e);
    store_close(other);
    store_close(s);
}

TEST(a_jobs_locator_writes_models_and_histories_and_nothing_else)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    char locator[STORE_LOCATOR_BYTES], other[STORE_LOCATOR_BYTES], id[STORE_ID_BYTES];
    json_t *value = json_pack("{s:s}", "secret", "x"), *got;
    chunk_writer *w;
    store *s = test_store("");
    CHECK_OK(store_put(s, "jobs", "a", value, STORE_NEW, NULL, &e), e);
    CHECK_OK(store_locator(s, STORE_USE_JOB, locator, &e), e);
    store *job = open_at(locator);
    CHECK_OK(store_put(job, "history", "a", value, STORE_NEW, NULL, &e), e);
    CHECK_OK(store_put(job, "history", "a", value, STORE_ANY, NULL, &e), e);
    CHECK_OK(store_get(job, "history", "a", &got, NULL, &e), e);
    json_decref(got);
    CHECK_OK(store_blob_put(job, "models/a/1", "one", 3, &e), e);
    CHECK_OK(store_blob_put(job, "models/a/2", "two", 3, &e), e);
    check_blob(job, "models/a/1", "one");
    CHECK_OK(store_blob_delete(job, "models/a/1", &e), e);
    check_blob(s, "models/a/2", "two");
    CHECK_ERR(store_get(job, "jobs", "a", &got, NULL, &e), e, ERR_FORBIDDEN, "not authorized");
    CHECK_ERR(store_put(job, "jobs", "a", value, STORE_ANY, NULL, &e), e, ERR_FORBIDDEN, "");
    CHECK_ERR(store_put(job, "datasets", "d", value, STORE_NEW, NULL, &e), e, ERR_FORBIDDEN, "");
    /* writes down that it is there, no more */
    CHECK_INT(store_chunks_begin(job, 0, id, &w, &e), 0);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_ERR(chunk_seal(w, &e), e, ERR_FORBIDDEN, "");
    chunk_abort(w);
    CHECK_ERR(store_locator(job, STORE_USE_JOB, other, &e), e, ERR_FORBIDDEN, "");
    store_close(job);
    CHECK_OK(store_revoke(s, locator, &e), e);
    CHECK(!store_open(locator, &e));
    CHECK_INT(e.code, ERR_FORBIDDEN);

    CHECK_OK(store_locator(s, STORE_USE_READ, locator, &e), e);
    job = open_at(locator);
    check_blob(job, "models/a/2", "two");
    CHECK_ERR(store_blob_put(job, "models/a/3", "x", 1, &e), e, ERR_FORBIDDEN, "");
    CHECK_ERR(store_get(job, "history", "a", &got, NULL, &e), e, ERR_FORBIDDEN, "");
    store_close(job);
    json_decref(value);
    store_close(s);
}

TEST(a_store_without_users_gives_locators_without_passwords)
{
    err e = ERR_INIT;
    test_store_mongo_server("open");
    test_store_use(ON_MONGO);
    store *s = test_store("");
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES];
    chunk_writer *w;
    chunk_reader *r;
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK(!strchr(locator, '@'));
    CHECK_CONTAINS(locator, id);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(store_revoke(s, locator, &e), e);
    chunk_reader_close(r);
    chunk_abort(w);
    store_close(s);
}

/* ---- TLS ----------------------------------------------------------------------------------- */

TEST_LIMIT(tls_is_the_locators_matter, 60)
{
    err e = ERR_INIT;
    test_store_mongo_server("tls");
    test_store_use(ON_MONGO);
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES], plain[800];
    store *s = test_store("");
    chunk_writer *w;
    chunk_reader *r;
    const void *bytes;
    size_t len;
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK_CONTAINS(locator, "tls=true");
    CHECK_CONTAINS(locator, "tlsCAFile=");
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    chunk_reader_close(r);
    chunk_abort(w);
    store_close(s);
    /* In the clear it does not talk, and a server that others signed is not believed. */
    snprintf(plain, sizeof plain, "%s", test_store_locator(""));
    char *tls = strstr(plain, "&tls=true");
    CHECK(tls);
    snprintf(tls, 60, "&kubeml.patience_ms=1000&serverSelectionTimeoutMS=500");
    CHECK(!store_open(plain, &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    snprintf(tls, 80, "&tls=true&kubeml.patience_ms=10000&serverSelectionTimeoutMS=5000");
    CHECK(!store_open(plain, &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK_CONTAINS(e.message, "TLS handshake failed");
}

static bool reaches(const store_reach *reach, const char *file)
{
    for (int i = 0; reach->files[i]; i++)
        if (strcmp(reach->files[i], file) == 0)
            return true;
    return false;
}

/* However the URI is written: what its connections need can be let through a wall. */
TEST_LIMIT(what_a_reader_reaches_is_known, 60)
{
    err e = ERR_INIT;
    test_store_mongo_server("tls");
    test_store_use(ON_MONGO);
    /* the folder's slashes are percent-encoded, or stand as they are */
    static const char *const spellings[] = {
        "tls=true&tlscafile=%1$sca.crt&TLSCertificateKeyFile=%1$sclient.pem",
        "ssl=true&sslCertificateAuthorityFile=%2$sca.crt&sslClientCertificateKeyFile=%2$sclient.pem"};
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES], folder[300] = "", encoded[400] = "";
    store *s = test_store("");
    chunk_writer *w;
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    char *options = strchr(locator, '?') + 1, *ca = strstr(options, "tlsCAFile="),
         *source = strstr(options, "authSource=");
    unsigned port = (unsigned)strtoul(strrchr(locator, ':') + 1, NULL, 10);
    CHECK(ca && source && port);
    snprintf(folder, sizeof folder, "%.*s", (int)(strstr(ca, "ca.crt") - ca - 10), ca + 10);
    for (size_t i = 0; folder[i]; i++)
        snprintf(encoded + strlen(encoded), 5, folder[i] == '/' ? "%%2F" : "%c", folder[i]);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char uri[2000], tls[1000], file[320];
        chunk_reader *r;
        store_reach reach;
        snprintf(tls, sizeof tls, spellings[i], encoded, folder);
        snprintf(uri, sizeof uri, "%.*s%s&%s", (int)(options - locator), locator, tls, source);
        CHECK_OK(chunk_reader_open(uri, &r, &e), e);
        chunk_reader_reach(r, &reach);
        CHECK(reaches(&reach, "/etc/resolv.conf"));
        snprintf(file, sizeof file, "%sca.crt", folder);
        CHECK(reaches(&reach, file));
        snprintf(file, sizeof file, "%sclient.pem", folder);
        CHECK(reaches(&reach, file));
        CHECK_INT(reach.tcp_ports[0], port);
        CHECK(!reach.tcp_ports[1] && !reach.unix_sockets);
        chunk_reader_close(r);
    }
    chunk_abort(w);
    store_close(s);
}

TEST(a_file_that_the_uri_names_and_that_is_not_there_is_named)
{
    err e = ERR_INIT;
    test_mongo_uri("x");
    CHECK(!store_open("mongodb://127.0.0.1:9/a?tls=true&tlsCAFile=%2Fno%2Fca.crt", &e));
    CHECK_INT(e.code, ERR_INVALID);
    CHECK_CONTAINS(e.message, "/no/ca.crt is not there");
    e = (err)ERR_INIT;
    CHECK(!store_open("mongodb://127.0.0.1:9/a?tlsCertificateKeyFile=/no/key.pem", &e));
    CHECK_CONTAINS(e.message, "/no/key.pem is not there");
}
