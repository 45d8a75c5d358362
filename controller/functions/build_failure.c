/* build_failure.c: see build_failure.h. */
#include "build_failure.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"

#define COLLECTION "refusals"

/* ---- the record ------------------------------------------------------------------------------ */

/* The first diagnostics, as many as there is room for; *omitted counts the others. */
static json_t *first_of(const json_t *diagnostics, int *omitted)
{
    json_t *out = json_array(), *one;
    size_t i, bytes = 0;
    *omitted = 0;
    json_array_foreach (diagnostics, i, one) {
        bytes += json_dumpb(one, NULL, 0, JSON_COMPACT);
        if (bytes > BUILD_FAILURE_SAID_BYTES)
            ++*omitted;
        else
            json_array_append(out, one);
    }
    return out;
}

static json_t *record_of(bool update, const err *why, const json_t *said)
{
    char now[25];
    int omitted;
    json_t *diagnostics = first_of(json_object_get(said, "diagnostics"), &omitted);
    clock_rfc3339(clock_wall_ms(), now);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:i}", "when", now, "asked",
                     update ? "update" : "create", "reason",
                     why->code == ERR_LIMIT ? "CompileLimit" : "CompileError", "error",
                     why->message, "diagnostics", diagnostics, "omitted", omitted);
}

/* Times are text that sorts; the store's versions order failures of one millisecond. */
static bool is_older(const store_record *a, const store_record *b)
{
    int order = strcmp(text_of(a->value, "when"), text_of(b->value, "when"));
    return order < 0 || (order == 0 && a->version < b->version);
}

/* The oldest of the page's remaining records, but not `kept`; NULL where there is none. */
static store_record *oldest_of(const store_page *page, const char *kept)
{
    store_record *oldest = NULL;
    for (size_t i = 0; i < page->count; i++) {
        store_record *one = &page->records[i];
        if (one->value && strcmp(one->key, kept) != 0 && (!oldest || is_older(one, oldest)))
            oldest = one;
    }
    return oldest;
}

/* Drops the oldest failures over the limit. The last writer sees what all have written, so that
 * together they leave no more than the limit. A record that was written anew meanwhile has another
 * version and stays. */
static int drop_oldest(store *s, const char *kept, err *e)
{
    store_page page;
    int rc = store_list(s, COLLECTION, NULL, NULL, 0, &page, e);
    for (size_t n = page.count; rc == 0 && n > BUILD_FAILURES_MAX; n--) {
        err why = ERR_INIT;
        store_record *oldest = oldest_of(&page, kept);
        if (store_delete(s, COLLECTION, oldest->key, oldest->version, &why) &&
            why.code != ERR_NOT_FOUND && why.code != ERR_CONFLICT) {
            *e = why;
            rc = -1;
        }
        json_decref(oldest->value);
        oldest->value = NULL;
    }
    store_page_free(&page);
    return rc;
}

void build_failure_keep(store *s, const char *name, bool update, const err *why, const json_t *said)
{
    err e = ERR_INIT;
    cleanup_json json_t *record = record_of(update, why, said);
    if (!record)
        err_set(&e, ERR_NOMEM, "no memory");
    if (!record || store_put(s, COLLECTION, name, record, STORE_ANY, NULL, &e) ||
        drop_oldest(s, name, &e))
        log_warn("that function %s did not compile is not kept: %s", name, e.message);
}

void build_failure_drop(store *s, const char *name)
{
    err e = ERR_INIT;
    if (store_delete(s, COLLECTION, name, STORE_ANY, &e) && e.code != ERR_NOT_FOUND)
        log_warn("that function %s did not compile once stays kept: %s", name, e.message);
}

int build_failure_get(store *s, const char *name, json_t **out, err *e)
{
    return store_get(s, COLLECTION, name, out, NULL, e);
}

/* ---- what the API shows ---------------------------------------------------------------------- */

static const char *words_of(const json_t *build_failure)
{
    return strcmp(text_of(build_failure, "reason"), "CompileLimit") == 0 ? "was refused"
                                                                         : "did not compile";
}

void build_failure_tell(store *s, const char *name, err *e)
{
    cleanup_json json_t *build_failure = NULL;
    if (build_failure_get(s, name, &build_failure, NULL))
        return;
    err_set(e, ERR_NOT_FOUND, "there is no function \"%s\": its last upload %s: %s", name,
            words_of(build_failure), text_of(build_failure, "error"));
}

static json_t *message_of(const json_t *function, const json_t *build_failure)
{
    int version = (int)json_integer_value(json_object_get(function, "version"));
    if (!build_failure)
        return json_sprintf("version %d is in use", version);
    if (!function)
        return json_sprintf("there is no version of it: its last upload %s: %s",
                            words_of(build_failure), text_of(build_failure, "error"));
    return json_sprintf("version %d stays in use: the last upload %s: %s", version,
                        words_of(build_failure), text_of(build_failure, "error"));
}

static void add_version(json_t *evidence, const json_t *function)
{
    int version = (int)json_integer_value(json_object_get(function, "version"));
    const json_t *file = json_array_get(json_object_get(function, "files"), 0);
    size_t more = json_array_size(json_object_get(function, "files"));
    const char *model = text_of(function, "model"), *updated = text_of(function, "updated");
    char others[40] = "";
    if (more > 1)
        snprintf(others, sizeof others, " and %zu more", more - 1);
    json_array_append_new(
        evidence, *model ? json_sprintf("version %d of %s: %s of the zoo", version, updated, model)
                         : json_sprintf("version %d of %s: %s%s", version, updated,
                                        text_of(file, "name"), others));
}

static json_t *line_of(const json_t *d)
{
    int line = (int)json_integer_value(json_object_get(d, "line"));
    int column = (int)json_integer_value(json_object_get(d, "column"));
    const char *file = text_of(d, "file");
    char where[40] = "";
    if (line && column)
        snprintf(where, sizeof where, ":%d:%d", line, column);
    else if (line)
        snprintf(where, sizeof where, ":%d", line);
    return json_sprintf("%s%s%s%s: %s", file, where, *file ? ": " : "", text_of(d, "severity"),
                        text_of(d, "message"));
}

static void add_build_failure(json_t *evidence, const json_t *build_failure)
{
    const json_t *lines = json_object_get(build_failure, "diagnostics");
    int omitted = (int)json_integer_value(json_object_get(build_failure, "omitted"));
    json_t *line;
    size_t i;
    json_array_append_new(evidence,
                          json_sprintf("%s of %s refused%s", text_of(build_failure, "asked"),
                                       text_of(build_failure, "when"),
                                       json_array_size(lines) ? "; the compiler said:" : ""));
    json_array_foreach (lines, i, line)
        json_array_append_new(evidence, line_of(line));
    if (omitted)
        json_array_append_new(evidence, json_sprintf("and %d more", omitted));
}

json_t *build_failure_explain(const char *name, const json_t *function, const json_t *build_failure)
{
    json_t *evidence = json_array();
    if (function)
        add_version(evidence, function);
    if (build_failure)
        add_build_failure(evidence, build_failure);
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:O?, s:O?}", "name", name, "state",
                     function ? "ready" : "missing", "reason",
                     build_failure ? text_of(build_failure, "reason") : "Registered", "message",
                     message_of(function, build_failure), "evidence", evidence, "version",
                     json_object_get(function, "version"), "refused", build_failure);
}
