/* registry.c: functions: a name, immutable versions by digest, and each version's compiled object.
 *
 * A record of collection `functions`: {"name", "version", "digest", "kind": "code"|"zoo", "model",
 * "object", "files", "created", "updated", "versions": [{"version", "digest", "object",
 * "created"}]}. The object is the blob's name, or zoo: and a model (zoo:resnet34,stem=cifar).
 * Objects are content-addressed and outlive the function, since trained models are served with
 * them. The sources are in blob sources/<digest>. Both are removed when no record names them any
 * more (code_blob.h). An upload that does not compile leaves a build failure (build_failure.h). */
#include "registry.h"

#include <stdio.h>
#include <string.h>

#include "code_blob.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/name.h"
#include "common/compile/builder_remote.h"
#include "build_failure.h"
#include "zoo_list.h"

enum { PUT_TRIES = 5 };

int registry_get(controller *c, const char *name, json_t **out, err *e)
{
    if (name_check("function", name, e))
        return -1;
    if (store_get(c->store, "functions", name, out, NULL, e) == 0)
        return 0;
    if (e && e->code == ERR_NOT_FOUND)
        err_set(e, ERR_NOT_FOUND, "there is no function \"%s\"", name);
    return -1;
}

int registry_delete(controller *c, const char *name,
                    int (*delete_unused)(job_manager *o, const char *name, err *e), err *e)
{
    if (name_check("function", name, e))
        return -1;
    if (delete_unused(c->job_manager, name, e))
        return e->code == ERR_NOT_FOUND
                   ? err_set(e, ERR_NOT_FOUND, "there is no function \"%s\"", name)
                   : -1;
    build_failure_drop(c->store, name);
    return 0;
}

int registry_explain(controller *c, const char *name, json_t **out, err *e)
{
    cleanup_json json_t *function = NULL, *build_failure = NULL;
    err why = ERR_INIT;
    if ((registry_get(c, name, &function, &why) && why.code != ERR_NOT_FOUND) ||
        (build_failure_get(c->store, name, &build_failure, &why) && why.code != ERR_NOT_FOUND)) {
        *e = why;
        return -1;
    }
    if (!function && !build_failure)
        return err_set(e, ERR_NOT_FOUND, "there is no function \"%s\", nor was one refused", name);
    *out = build_failure_explain(name, function, build_failure);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for the answer");
}

/* ---- compiling ------------------------------------------------------------------------------- */

static int store_once(store *s, const char *name, const void *bytes, size_t len, err *e)
{
    err why = ERR_INIT;
    if (code_blob_note(s, name, clock_wall_ms(), e))
        return -1;
    if (store_blob_put(s, name, bytes, len, &why) == 0 || why.code == ERR_EXISTS)
        return 0;
    if (e)
        *e = why;
    return -1;
}

static int keep_object(controller *c, const builder_result *built, char object[STORE_KEY_BYTES],
                       err *e)
{
    snprintf(object, STORE_KEY_BYTES, "objects/%s", built->key);
    return store_once(c->store, object, built->object, built->object_bytes, e);
}

/* 1 where the same sources were compiled before. */
static int compiled_before(controller *c, const registry_upload *u, char object[STORE_KEY_BYTES],
                           err *e)
{
    char key[BUILDER_KEY_BYTES];
    if (!c->config.include_dir[0])
        return err_set(e, ERR_UNAVAILABLE, "kubeml.h is not installed beside the controller");
    if (builder_key(u->files, u->count, &c->builder, key, e))
        return -1;
    snprintf(object, STORE_KEY_BYTES, "objects/%s", key);
    if (code_blob_note(c->store, object, clock_wall_ms(), e))
        return -1;
    return store_blob_find(c->store, object, NULL, NULL) == 0;
}

/* Whether the code is at fault and no part of the platform: the files were checked before, and a
 * builder's output has its text. */
static bool is_refused(const builder_result *built, const err *e)
{
    return built->text && (e->code == ERR_INVALID || e->code == ERR_LIMIT);
}

static int compile(controller *c, const char *name, const registry_upload *u, bool update,
                   char object[STORE_KEY_BYTES], json_t **said, err *e)
{
    builder_remote there = {.url = c->config.builder_url, .token = c->config.builder_token};
    int known = there.url ? 0 : compiled_before(c, u, object, e);
    if (known)
        return known < 0 ? -1 : 0;
    builder_result built = {0};
    int status = there.url ? builder_remote_compile(&there, u->files, u->count, &built, e)
                           : builder_compile(u->files, u->count, NULL, &c->builder, &built, e);
    *said = builder_said_json(&built);
    if (status && is_refused(&built, e))
        build_failure_keep(c->store, name, update, e, *said);
    if (status == 0)
        status = keep_object(c, &built, object, e);
    builder_result_free(&built);
    return status;
}

/* ---- sources --------------------------------------------------------------------------------- */

static int source_json(const registry_upload *u, json_t **out, err *e)
{
    json_t *files = json_array();
    for (size_t i = 0; i < u->count; i++) {
        json_t *file = json_pack("{s:s, s:s%}", "name", u->files[i].name, "text", u->files[i].text,
                                 u->files[i].len);
        if (!file) {
            json_decref(files);
            return err_set(e, ERR_INVALID, "%s is not UTF-8 text", u->files[i].name);
        }
        json_array_append_new(files, file);
    }
    *out = files;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const builder_source *)a)->name, ((const builder_source *)b)->name);
}

/* Stores the sources under the digest of the upload, and returns it. */
static int keep_sources(controller *c, const registry_upload *u, const json_t *files,
                        char digest[DIGEST_HEX_BYTES], err *e)
{
    if (u->model) {
        char text[128];
        int len = snprintf(text, sizeof text, "zoo:%s", u->model);
        return digest_of(text, (size_t)len, digest, e);
    }
    char *text = json_dumps(files, JSON_COMPACT);
    char blob_name[STORE_KEY_BYTES];
    int status = text ? digest_of(text, strlen(text), digest, e)
                      : err_set(e, ERR_NOMEM, "no memory for the sources");
    if (status == 0) {
        snprintf(blob_name, sizeof blob_name, "sources/%s", digest);
        status = store_once(c->store, blob_name, text, strlen(text), e);
    }
    free(text);
    return status;
}

static json_t *files_json(const registry_upload *u)
{
    json_t *out = json_array();
    for (size_t i = 0; i < u->count; i++)
        json_array_append_new(out, json_pack("{s:s, s:I}", "name", u->files[i].name, "bytes",
                                             (json_int_t)u->files[i].len));
    return out;
}

/* ---- records --------------------------------------------------------------------------------- */

static int build_record(const char *name, const registry_upload *u, const char *digest,
                        const char *object, json_t *old, json_t **out, err *e)
{
    char now[25];
    clock_rfc3339(clock_wall_ms(), now);
    json_t *versions = old ? json_deep_copy(json_object_get(old, "versions")) : json_array();
    if (json_array_size(versions) >= CONTROLLER_VERSIONS_MAX) {
        json_decref(versions);
        return err_set(e, ERR_LIMIT, "function \"%s\" has %d versions, the most there may be", name,
                       CONTROLLER_VERSIONS_MAX);
    }
    int version = old ? (int)json_integer_value(json_object_get(old, "version")) + 1 : 1;
    const json_t *first = old ? json_object_get(old, "created") : NULL;
    json_array_append_new(versions, json_pack("{s:i, s:s, s:s, s:s}", "version", version, "digest",
                                              digest, "object", object, "created", now));
    *out = json_pack("{s:s, s:i, s:s, s:s, s:s?, s:s, s:o, s:s, s:s, s:o}", "name", name, "version",
                     version, "digest", digest, "kind", u->model ? "zoo" : "code", "model",
                     u->model, "object", object, "files", files_json(u), "created",
                     first ? json_string_value(first) : now, "updated", now, "versions", versions);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for function \"%s\"", name);
}

/* Makes one attempt: ERR_CONFLICT where another writer came in between. */
static int put_record(controller *c, const char *name, const registry_upload *u, const char *digest,
                      const char *object, bool update, json_t **out, err *e)
{
    cleanup_json json_t *old = NULL;
    uint64_t version = STORE_NEW;
    err why = ERR_INIT;
    int found = store_get(c->store, "functions", name, &old, &version, &why);
    if (found && why.code != ERR_NOT_FOUND) {
        *e = why;
        return -1;
    }
    if (found == 0 && !update)
        return err_set(e, ERR_EXISTS, "there is a function \"%s\" already; update it instead",
                       name);
    if (found && update)
        return err_set(e, ERR_NOT_FOUND, "there is no function \"%s\"", name);
    if (old && strcmp(json_string_value(json_object_get(old, "object")), object) == 0 &&
        strcmp(json_string_value(json_object_get(old, "digest")), digest) == 0) {
        *out = json_incref(old);
        return 0;
    }
    json_t *record = NULL;
    if (build_record(name, u, digest, object, old, &record, e))
        return -1;
    if (store_put(c->store, "functions", name, record, found ? STORE_NEW : version, NULL, e) == 0) {
        *out = record;
        return 0;
    }
    json_decref(record);
    return -1;
}

/* Checks before minutes of compiling that the name is free, or exists for an update. */
static int check_name(controller *c, const char *name, bool update, err *e)
{
    cleanup_json json_t *old = NULL;
    err why = ERR_INIT;
    int found = registry_get(c, name, &old, &why);
    if (found == 0 && !update)
        return err_set(e, ERR_EXISTS, "there is a function \"%s\" already; update it instead",
                       name);
    if (found && (update || why.code != ERR_NOT_FOUND)) {
        *e = why;
        return -1;
    }
    return 0;
}

int registry_put(controller *c, const char *name, const registry_upload *upload, bool update,
                 json_t **out, json_t **said, err *e)
{
    char digest[DIGEST_HEX_BYTES], object[STORE_KEY_BYTES];
    cleanup_json json_t *files = NULL;
    registry_upload u = *upload;
    if (u.count)
        qsort(u.files, u.count, sizeof *u.files, by_name);
    if (check_name(c, name, update, e))
        return -1;
    if (u.model) {
        if (zoo_check(c, u.model, e))
            return -1;
        snprintf(object, sizeof object, "zoo:%s", u.model);
    } else if (builder_check(u.files, u.count, e) || source_json(&u, &files, e) ||
               compile(c, name, &u, update, object, said, e)) {
        return -1;
    }
    if (keep_sources(c, &u, files, digest, e))
        return -1;
    for (int i = 0; i < PUT_TRIES; i++) {
        err why = ERR_INIT;
        if (put_record(c, name, &u, digest, object, update, out, &why) == 0) {
            build_failure_drop(c->store, name);
            return 0;
        }
        *e = why;
        if (why.code != ERR_CONFLICT)
            return -1;
    }
    return -1;
}
