/* test_code_blob.c: which objects and sources of functions go, on every store. */
#include "controller/functions/code_blob.h"

#include "common/base/json_read.h"
#include "stores.h"

#define DAY_MS CODE_BLOB_KEPT_MS

enum { NOW_MS = 1000 };

static void put_blob(store *s, const char *name)
{
    err e = ERR_INIT;
    CHECK_OK(store_blob_put(s, name, "code", 4, &e), e);
}

static void put_code(store *s, const char *object, const char *source)
{
    err e = ERR_INIT;
    CHECK_OK(code_blob_note(s, object, NOW_MS, &e), e);
    put_blob(s, object);
    CHECK_OK(code_blob_note(s, source, NOW_MS, &e), e);
    put_blob(s, source);
}

static void put_function(store *s, const char *name, const char *digest, const char *object,
                         const char *old_object)
{
    err e = ERR_INIT;
    cleanup_json json_t *record = json_pack(
        "{s:s, s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "digest", digest, "object", object, "versions",
        "digest", "d-old", "object", old_object, "digest", digest, "object", object);
    CHECK_OK(store_put(s, "functions", name, record, STORE_ANY, NULL, &e), e);
}

static void put_job(store *s, const char *id, const char *digest, const char *object)
{
    err e = ERR_INIT;
    cleanup_json json_t *record =
        json_pack("{s:{s:s, s:s}}", "function", "digest", digest, "object", object);
    CHECK_OK(store_put(s, "jobs", id, record, STORE_ANY, NULL, &e), e);
}

static bool is_there(store *s, const char *name)
{
    err e = ERR_INIT;
    return store_blob_find(s, name, NULL, &e) == 0;
}

static void check_sweep(store *s, int64_t wall_ms, size_t want)
{
    size_t removed;
    err e = ERR_INIT;
    CHECK_OK(code_blob_sweep(s, wall_ms, &removed, &e), e);
    CHECK_INT(removed, want);
}

ON_STORES(code_that_nobody_names_a_day_later_goes)
{
    store *s = test_store("");
    err e = ERR_INIT;
    put_code(s, "objects/old", "sources/d-old");
    put_code(s, "objects/new", "sources/d-new");
    put_code(s, "objects/job", "sources/d-job");
    put_code(s, "objects/none", "sources/d-none");
    put_function(s, "f", "d-new", "objects/new", "objects/old");
    put_job(s, "j", "d-job", "objects/job");
    check_sweep(s, NOW_MS + DAY_MS, 0);
    check_sweep(s, NOW_MS + DAY_MS + 1, 2);
    CHECK(!is_there(s, "objects/none") && !is_there(s, "sources/d-none"));
    CHECK_OK(store_delete(s, "functions", "f", STORE_ANY, &e), e);
    check_sweep(s, NOW_MS + DAY_MS + 1, 4);
    CHECK(!is_there(s, "objects/old") && !is_there(s, "objects/new"));
    CHECK(is_there(s, "objects/job") && is_there(s, "sources/d-job"));
    CHECK_OK(store_delete(s, "jobs", "j", STORE_ANY, &e), e);
    check_sweep(s, NOW_MS + DAY_MS + 1, 2);
    CHECK(!is_there(s, "objects/job") && !is_there(s, "sources/d-job"));
    store_close(s);
}

ON_STORES(code_that_is_wanted_again_stays)
{
    store *s = test_store("");
    err e = ERR_INIT;
    put_code(s, "objects/a", "sources/d-a");
    CHECK_OK(code_blob_note(s, "objects/a", NOW_MS + DAY_MS, &e), e); /* no record names it yet */
    check_sweep(s, NOW_MS + DAY_MS + 1, 1);
    CHECK(is_there(s, "objects/a") && !is_there(s, "sources/d-a"));
    store_close(s);
}

/* Who sweeps was killed: it is told who wants it, and goes with the next. */
ON_STORES(code_that_is_being_removed_is_not_wanted)
{
    store *s = test_store("");
    err e = ERR_INIT;
    put_code(s, "objects/a", "sources/d-a");
    cleanup_json json_t *goes = json_pack("{s:i, s:b}", "when_ms", 0, "goes", 1);
    CHECK_OK(store_put(s, "code", "objects/a", goes, STORE_ANY, NULL, &e), e);
    CHECK_ERR(code_blob_note(s, "objects/a", NOW_MS, &e), e, ERR_UNAVAILABLE, "being removed");
    check_sweep(s, NOW_MS, 1);
    CHECK(!is_there(s, "objects/a"));
    err_clear(&e);
    CHECK_OK(code_blob_note(s, "objects/a", NOW_MS, &e), e);
    check_sweep(s, NOW_MS, 0);
    store_close(s);
}

/* Of a version before this one. */
ON_STORES(code_that_was_never_noted_goes_a_day_after_it_is_found)
{
    store *s = test_store("");
    put_blob(s, "objects/a");
    put_blob(s, "sources/a");
    put_blob(s, "models/a/final"); /* no code */
    check_sweep(s, NOW_MS, 0);
    check_sweep(s, NOW_MS + DAY_MS, 0);
    check_sweep(s, NOW_MS + DAY_MS + 1, 2);
    CHECK(!is_there(s, "objects/a") && !is_there(s, "sources/a") && is_there(s, "models/a/final"));
    store_close(s);
}
