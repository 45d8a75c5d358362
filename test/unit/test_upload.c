/* test_upload.c: which uploaded models are no longer wanted, on every store. */
#include "controller/functions/upload.h"

#include "common/base/json_read.h"
#include "stores.h"

enum { NOW_MS = 2000000000 };

static void put_model(store *s, const char *id)
{
    char name[STORE_KEY_BYTES];
    blob_writer *w = NULL;
    err e = ERR_INIT;
    snprintf(name, sizeof name, "models/%s/final", id);
    CHECK_OK(store_blob_begin(s, name, &w, &e), e);
    CHECK_OK(blob_write(w, "weights", 7, &e), e);
    CHECK_OK(blob_commit(w, &e), e);
}

static void upload_at(store *s, const char *id, int64_t wall_ms)
{
    err e = ERR_INIT;
    CHECK_OK(upload_note(s, id, wall_ms, &e), e);
    put_model(s, id);
}

static void put_job(store *s, const char *id, const char *init)
{
    err e = ERR_INIT;
    json_t *record = json_pack("{s:{s:{s:s}}}", "job", "request", "init", init);
    CHECK_OK(store_put(s, "jobs", id, record, STORE_ANY, NULL, &e), e);
    json_decref(record);
}

static bool is_there(store *s, const char *id)
{
    char name[STORE_KEY_BYTES];
    err e = ERR_INIT;
    snprintf(name, sizeof name, "models/%s/final", id);
    return store_blob_find(s, name, NULL, &e) == 0;
}

static void check_left(store *s, const char *want)
{
    cleanup_json json_t *found = NULL;
    json_t *ignored;
    char got[256] = "";
    const char *id;
    err e = ERR_INIT;
    CHECK_OK(upload_find_left(s, NOW_MS, &found, &e), e);
    json_object_foreach (found, id, ignored)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", id);
    CHECK_STR(got, want);
}

ON_STORES(what_no_job_names_a_day_later_goes)
{
    store *s = test_store("");
    err e = ERR_INIT;
    int64_t long_ago = NOW_MS - UPLOAD_KEPT_MS - 1;
    put_model(s, "trained"); /* by a job: none of ours */
    upload_at(s, "a", long_ago);
    upload_at(s, "b", long_ago);
    upload_at(s, "by-blob", long_ago);
    upload_at(s, "c", long_ago);
    upload_at(s, "young", NOW_MS - UPLOAD_KEPT_MS);
    CHECK_OK(upload_note(s, "d", long_ago, &e), e); /* its upload broke off */
    put_job(s, "j1", "b");
    put_job(s, "j2", "models/by-blob/final");
    put_job(s, "j3", "");
    check_left(s, "a c d ");
    CHECK_OK(upload_drop(s, "a", &e), e);
    CHECK_OK(upload_drop(s, "d", &e), e);
    put_job(s, "j4", "c"); /* meanwhile */
    CHECK_OK(upload_drop(s, "c", &e), e);
    CHECK(!is_there(s, "a") && is_there(s, "b") && is_there(s, "by-blob") && is_there(s, "c"));
    CHECK(is_there(s, "young") && is_there(s, "trained"));
    check_left(s, "");
    CHECK_OK(store_delete(s, "jobs", "j1", STORE_ANY, &e), e);
    check_left(s, "b ");
    store_close(s);
}
