/* test_build_failure.c: what is kept of uploads that did not compile, on every store, and how it is
 * told.
 */
#include "controller/functions/build_failure.h"
#include "controller/controller.h"
#include "common/base/json_read.h"
#include "stores.h"

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "(none)";
}

/* What a compiler said of `lines` lines, each with that message. */
static json_t *said(int lines, const char *message)
{
    json_t *list = json_array();
    for (int i = 0; i < lines; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:i, s:s, s:s}", "file", "a.c", "line", i + 1,
                                        "column", 5, "severity", "error", "message", message));
    return json_pack("{s:o, s:s}", "diagnostics", list, "compiler_output", "all of it");
}

static void keep(store *s, const char *name, bool update, err_code code, const char *message)
{
    err why = ERR_INIT;
    cleanup_json json_t *words = said(2, "expected ';'");
    err_set(&why, code, "%s", message);
    build_failure_keep(s, name, update, &why, words);
}

static bool is_kept(store *s, const char *name)
{
    err e = ERR_INIT;
    cleanup_json json_t *record = NULL;
    if (build_failure_get(s, name, &record, &e) == 0)
        return true;
    CHECK_INT(e.code, ERR_NOT_FOUND);
    return false;
}

ON_STORES(the_last_one_is_kept_until_it_is_dropped)
{
    store *s = test_store("");
    err e = ERR_INIT;
    json_t *record = NULL;
    build_failure_drop(s, "lenet"); /* there is none */
    keep(s, "lenet", false, ERR_INVALID, "a.c:1:5: error: expected ';'");
    CHECK_OK(build_failure_get(s, "lenet", &record, &e), e);
    CHECK_STR(text(record, "asked"), "create");
    CHECK_STR(text(record, "reason"), "CompileError");
    CHECK_STR(text(record, "error"), "a.c:1:5: error: expected ';'");
    CHECK_INT(json_array_size(json_object_get(record, "diagnostics")), 2);
    CHECK_INT(json_integer_value(json_object_get(record, "omitted")), 0);
    CHECK_INT(strlen(text(record, "when")), 24);
    json_decref(record);
    keep(s, "lenet", true, ERR_LIMIT, "compiling took longer than 30 s");
    CHECK_OK(build_failure_get(s, "lenet", &record, &e), e);
    CHECK_STR(text(record, "asked"), "update");
    CHECK_STR(text(record, "reason"), "CompileLimit");
    json_decref(record);
    build_failure_drop(s, "lenet");
    CHECK(!is_kept(s, "lenet"));
    store_close(s);
}

ON_STORES(the_oldest_go_above_the_bound)
{
    store *s = test_store("");
    char name[16];
    for (int i = 0; i < BUILD_FAILURES_MAX; i++) {
        snprintf(name, sizeof name, "n%d", i);
        keep(s, name, false, ERR_INVALID, "error");
    }
    CHECK(is_kept(s, "n0"));
    keep(s, "n0", true, ERR_INVALID, "error"); /* now the newest */
    CHECK(is_kept(s, "n1"));
    keep(s, "a", false, ERR_INVALID, "error");
    keep(s, "z", false, ERR_INVALID, "error");
    CHECK(is_kept(s, "a") && is_kept(s, "z") && is_kept(s, "n0"));
    CHECK(!is_kept(s, "n1") && !is_kept(s, "n2") && is_kept(s, "n3"));
    err e = ERR_INIT;
    store_page page;
    CHECK_OK(store_list(s, "refusals", NULL, NULL, 0, &page, &e), e);
    CHECK_INT(page.count, BUILD_FAILURES_MAX);
    store_page_free(&page);
    store_close(s);
}

/* Times are those of several machines, whose clocks differ; two that were written at once are told
 * apart all the same. */
TEST(the_one_that_was_just_written_stays)
{
    test_store_use(ON_MEMORY);
    store *s = test_store("");
    err e = ERR_INIT;
    char name[16];
    cleanup_json json_t *ahead = json_pack("{s:s}", "when", "9999-01-02T03:04:05.000Z");
    for (int i = BUILD_FAILURES_MAX; i > 0; i--) {
        snprintf(name, sizeof name, "n%02d", i);
        CHECK_OK(store_put(s, "refusals", name, ahead, STORE_NEW, NULL, &e), e);
    }
    keep(s, "a", false, ERR_INVALID, "error");
    snprintf(name, sizeof name, "n%02d", BUILD_FAILURES_MAX);
    CHECK(is_kept(s, "a") && is_kept(s, "n01") && !is_kept(s, name));
    store_close(s);
}

TEST(a_long_list_is_cut_and_says_so)
{
    test_store_use(ON_MEMORY);
    store *s = test_store("");
    err e = ERR_INIT, why = ERR_INIT;
    char longest[224];
    memset(longest, '\x01', sizeof longest - 1); /* six bytes each, as JSON */
    longest[sizeof longest - 1] = '\0';
    cleanup_json json_t *words = said(50, longest), *record = NULL;
    err_set(&why, ERR_INVALID, "a.c: \xc3"); /* cut within a character */
    build_failure_keep(s, "f", false, &why, words);
    CHECK_OK(build_failure_get(s, "f", &record, &e), e);
    CHECK_STR(text(record, "error"), "a.c: ");
    const json_t *kept = json_object_get(record, "diagnostics");
    CHECK(json_dumpb(kept, NULL, 0, JSON_COMPACT) <= BUILD_FAILURE_SAID_BYTES + 64);
    CHECK_INT(json_integer_value(json_object_get(record, "omitted")),
              50 - (int)json_array_size(kept));
    CHECK(json_array_size(kept) >= 5 && json_array_size(kept) < 50);
    cleanup_json json_t *why_json = build_failure_explain("f", NULL, record);
    const json_t *evidence = json_object_get(why_json, "evidence");
    CHECK_INT(json_array_size(evidence), json_array_size(kept) + 2);
    CHECK_CONTAINS(json_string_value(json_array_get(evidence, json_array_size(evidence) - 1)),
                   " more");
    store_close(s);
}

TEST(a_store_that_fails_is_the_uploads_business_no_further)
{
    test_store_use(ON_MEMORY);
    store *s = test_store("");
    store_memory_fail(s, 1, ERR_UNAVAILABLE);
    keep(s, "f", false, ERR_INVALID, "error");
    CHECK(!is_kept(s, "f"));
    store_memory_fail(s, 2, ERR_UNAVAILABLE); /* when the others are counted */
    keep(s, "f", false, ERR_INVALID, "error");
    CHECK(is_kept(s, "f"));
    store_memory_fail(s, 1, ERR_UNAVAILABLE);
    build_failure_drop(s, "f");
    CHECK(is_kept(s, "f"));
    store_close(s);
}

TEST(what_is_not_there_says_why)
{
    test_store_use(ON_MEMORY);
    store *s = test_store("");
    err e = ERR_INIT;
    char error[200], name[64];
    err_set(&e, ERR_NOT_FOUND, "there is no function \"f\"");
    build_failure_tell(s, "f", &e);
    CHECK_STR(e.message, "there is no function \"f\"");
    keep(s, "f", false, ERR_INVALID, "a.c:1:5: error: expected ';'");
    build_failure_tell(s, "f", &e);
    CHECK_STR(e.message, "there is no function \"f\": its last upload did not compile: "
                         "a.c:1:5: error: expected ';'");
    CHECK_INT(e.code, ERR_NOT_FOUND);
    keep(s, "f", false, ERR_LIMIT, "compiling took longer than 30 s");
    build_failure_tell(s, "f", &e);
    CHECK_CONTAINS(e.message, "its last upload was refused: compiling took longer than 30 s");
    /* Too long: cut, and still text that JSON can hold. */
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    for (size_t shift = 0; shift < 2; shift++) {
        memset(error, 'x', shift);
        for (size_t i = shift; i < sizeof error - 2; i += 2)
            memcpy(error + i, "\xc3\xa9", 3);
        keep(s, name, false, ERR_INVALID, error);
        build_failure_tell(s, name, &e);
        cleanup_json json_t *value = json_string(e.message);
        CHECK(value && strlen(e.message) >= ERR_MESSAGE_BYTES - 2);
    }
    store_close(s);
}

static json_t *function(int version, const char *model, int files)
{
    json_t *list = json_array();
    for (int i = 0; i < files; i++)
        json_array_append_new(list, json_pack("{s:s, s:i}", "name", i ? "b.h" : "a.c", "bytes", 7));
    return json_pack("{s:s, s:i, s:s?, s:o, s:s}", "name", "f", "version", version, "model", model,
                     "files", list, "updated", "2026-01-02T03:04:05.000Z");
}

static const char *evidence_at(const json_t *why, size_t i)
{
    return json_string_value(json_array_get(json_object_get(why, "evidence"), i));
}

TEST(both_are_explained)
{
    cleanup_json json_t *zoo = function(1, "lenet5", 0), *code = function(3, NULL, 2);
    cleanup_json json_t *build_failure =
        json_pack("{s:s, s:s, s:s, s:s, s:[{s:s, s:i, s:i, s:s, s:s}, {s:s, s:i, s:i, s:s, s:s}, "
                  "{s:s, s:i, s:i, s:s, s:s}], s:i}",
                  "when", "2026-02-02T03:04:05.000Z", "asked", "update", "reason", "CompileError",
                  "error", "a.c:3:5: error: no", "diagnostics", "file", "a.c", "line", 3, "column",
                  5, "severity", "error", "message", "no", "file", "a.c", "line", 7, "column", 0,
                  "severity", "error", "message", "undefined", "file", "", "line", 0, "column", 0,
                  "severity", "error", "message", "odd", "omitted", 0);
    cleanup_json json_t *good = build_failure_explain("f", zoo, NULL);
    CHECK_STR(text(good, "state"), "ready");
    CHECK_STR(text(good, "reason"), "Registered");
    CHECK_STR(text(good, "message"), "version 1 is in use");
    CHECK_STR(evidence_at(good, 0), "version 1 of 2026-01-02T03:04:05.000Z: lenet5 of the zoo");
    CHECK(json_is_null(json_object_get(good, "refused")));
    cleanup_json json_t *both = build_failure_explain("f", code, build_failure);
    CHECK_STR(text(both, "state"), "ready");
    CHECK_STR(text(both, "reason"), "CompileError");
    CHECK_STR(text(both, "message"),
              "version 3 stays in use: the last upload did not compile: a.c:3:5: error: no");
    CHECK_INT(json_integer_value(json_object_get(both, "version")), 3);
    CHECK_STR(evidence_at(both, 0), "version 3 of 2026-01-02T03:04:05.000Z: a.c and 1 more");
    CHECK_STR(evidence_at(both, 1),
              "update of 2026-02-02T03:04:05.000Z refused; the compiler said:");
    CHECK_STR(evidence_at(both, 2), "a.c:3:5: error: no");
    CHECK_STR(evidence_at(both, 3), "a.c:7: error: undefined");
    CHECK_STR(evidence_at(both, 4), "error: odd");
    CHECK(json_equal(json_object_get(both, "refused"), build_failure));
    cleanup_json json_t *none = build_failure_explain("f", NULL, build_failure);
    CHECK_STR(text(none, "state"), "missing");
    CHECK_STR(text(none, "message"),
              "there is no version of it: its last upload did not compile: a.c:3:5: error: no");
    CHECK(json_is_null(json_object_get(none, "version")));
}
