/* code_blob.c: see code_blob.h. */
#include "code_blob.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/json_read.h"

#define COLLECTION "code"

enum { NOTE_TRIES = 5 };

static int put_note(store *s, const char *name, int64_t wall_ms, bool goes, uint64_t *version,
                    err *e)
{
    cleanup_json json_t *note =
        json_pack("{s:I, s:b}", "when_ms", (json_int_t)wall_ms, "goes", goes);
    return note ? store_put(s, COLLECTION, name, note, *version, version, e)
                : err_set(e, ERR_NOMEM, "no memory for the record of %s", name);
}

/* *out is NULL, and the version STORE_NEW, where there is no record. */
static int get_note(store *s, const char *name, json_t **out, uint64_t *version, err *e)
{
    err why = ERR_INIT;
    *version = STORE_NEW;
    if (store_get(s, COLLECTION, name, out, version, &why) == 0 || why.code == ERR_NOT_FOUND)
        return 0;
    *e = why;
    return -1;
}

static bool goes(const json_t *note)
{
    return json_is_true(json_object_get(note, "goes"));
}

static bool is_old(const json_t *note, int64_t before_ms)
{
    return json_integer_value(json_object_get(note, "when_ms")) < before_ms;
}

/* Whether another writer came in between. */
static bool is_late(const err *why)
{
    return why->code == ERR_CONFLICT || why->code == ERR_EXISTS || why->code == ERR_NOT_FOUND;
}

int code_blob_note(store *s, const char *name, int64_t wall_ms, err *e)
{
    err why = ERR_INIT;
    for (int i = 0; i < NOTE_TRIES; i++) {
        cleanup_json json_t *old = NULL;
        uint64_t version;
        if (get_note(s, name, &old, &version, e))
            return -1;
        if (goes(old))
            return err_set(e, ERR_UNAVAILABLE, "%s is being removed: try again", name);
        err_clear(&why);
        if (put_note(s, name, wall_ms, false, &version, &why) == 0)
            return 0;
        if (!is_late(&why))
            break;
    }
    *e = why;
    return -1;
}

/* ---- blobs that no record names -------------------------------------------------------------- */

typedef struct look {
    json_t *noted; /* names; true: the note is old, and no record seen so far names the blob */
    int64_t before_ms;
} look;

static int add_note(void *context, const char *name, json_t *note, err *e)
{
    const look *l = context;
    bool may_go = goes(note) || is_old(note, l->before_ms);
    return json_object_set_new(l->noted, name, json_boolean(may_go))
               ? err_set(e, ERR_NOMEM, "no memory for a list of functions' code")
               : 0;
}

static void keep(json_t *noted, const char *name)
{
    if (json_object_get(noted, name))
        json_object_set_new(noted, name, json_false());
}

/* Keeps the object and the sources of a function's version, or of a job's copy of it. */
static void keep_both(json_t *noted, const json_t *version)
{
    char source[STORE_KEY_BYTES];
    snprintf(source, sizeof source, "sources/%s", text_of(version, "digest"));
    keep(noted, text_of(version, "object"));
    keep(noted, source);
}

static int keep_of_function(void *context, const char *name, json_t *function, err *e)
{
    size_t i;
    json_t *version;
    (void)name, (void)e;
    keep_both(context, function);
    json_array_foreach (json_object_get(function, "versions"), i, version)
        keep_both(context, version);
    return 0;
}

static int keep_of_job(void *context, const char *id, json_t *record, err *e)
{
    (void)id, (void)e;
    keep_both(context, json_object_get(record, "function"));
    return 0;
}

static int note_unknown(store *s, const char *prefix, const json_t *noted, int64_t wall_ms, err *e)
{
    char after[STORE_KEY_BYTES] = "";
    size_t count;
    do {
        cleanup_free blob_entry *entries = NULL;
        if (store_blob_list(s, prefix, *after ? after : NULL, 0, &entries, &count, e))
            return -1;
        for (size_t i = 0; i < count; i++) {
            err why = ERR_INIT;
            uint64_t version = STORE_NEW;
            if (!json_object_get(noted, entries[i].name) &&
                put_note(s, entries[i].name, wall_ms, false, &version, &why) && !is_late(&why)) {
                *e = why;
                return -1;
            }
            snprintf(after, sizeof after, "%s", entries[i].name);
        }
    } while (count);
    return 0;
}

/* Removes a blob, unless its note is newer by now: then somebody is about to name it. */
static int drop(store *s, const char *name, int64_t before_ms, size_t *removed, err *e)
{
    cleanup_json json_t *note = NULL;
    uint64_t version;
    err why = ERR_INIT;
    if (get_note(s, name, &note, &version, e))
        return -1;
    if (!goes(note) && (!is_old(note, before_ms) || put_note(s, name, 0, true, &version, &why))) {
        if (why.code == ERR_NONE || is_late(&why))
            return 0;
        *e = why;
        return -1;
    }
    if ((store_blob_delete(s, name, &why) && why.code != ERR_NOT_FOUND) ||
        store_delete(s, COLLECTION, name, version, &why)) {
        *e = why;
        return -1;
    }
    ++*removed;
    return 0;
}

int code_blob_sweep(store *s, int64_t wall_ms, size_t *removed, err *e)
{
    cleanup_json json_t *noted = json_object();
    look l = {.noted = noted, .before_ms = wall_ms - CODE_BLOB_KEPT_MS};
    const char *name;
    json_t *may_go;
    *removed = 0;
    if (!noted)
        return err_set(e, ERR_NOMEM, "no memory for a list of functions' code");
    if (store_walk(s, COLLECTION, add_note, &l, e) ||
        note_unknown(s, "objects/", noted, wall_ms, e) ||
        note_unknown(s, "sources/", noted, wall_ms, e) ||
        store_walk(s, "functions", keep_of_function, noted, e) ||
        store_walk(s, "jobs", keep_of_job, noted, e))
        return -1;
    json_object_foreach (noted, name, may_go)
        if (json_is_true(may_go) && drop(s, name, l.before_ms, removed, e))
            return -1;
    return 0;
}
