/* builder_remote.c: see builder_remote.h. */
#include "builder_remote.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/net/http_client.h"

enum { PAUSE_MS = 500, CONNECT_MS = 3000, SHAPE_CHECK_CONNECT_MS = 1000 };

/* ---- the compiler's messages ----------------------------------------------------------------- */

json_t *builder_said_json(const builder_result *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < b->diagnostic_count; i++) {
        const builder_diagnostic *d = &b->diagnostics[i];
        json_t *entry = json_pack("{s:s, s:i, s:i, s:s, s:s%}", "file", d->file, "line", d->line,
                                  "column", d->column, "severity", d->severity, "message",
                                  d->message, strlen(d->message));
        if (entry)
            json_array_append_new(list, entry);
    }
    json_t *text = b->text ? json_string(b->text) : NULL;
    return json_pack("{s:o, s:o}", "diagnostics", list, "compiler_output",
                     text ? text : json_string(""));
}

static void take_text(const json_t *object, const char *key, char *out, size_t bytes)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(out, bytes, "%s", text ? text : "");
}

static void said_read(const json_t *said, builder_result *out)
{
    const json_t *list = json_object_get(said, "diagnostics");
    size_t n = json_array_size(list);
    n = n < BUILDER_DIAGNOSTICS_MAX ? n : BUILDER_DIAGNOSTICS_MAX;
    const char *text = json_string_value(json_object_get(said, "compiler_output"));
    out->text = strdup(text ? text : "");
    out->diagnostics = n ? calloc(n, sizeof *out->diagnostics) : NULL;
    for (size_t i = 0; out->diagnostics && i < n; i++) {
        const json_t *from = json_array_get(list, i);
        builder_diagnostic *d = &out->diagnostics[out->diagnostic_count++];
        take_text(from, "file", d->file, sizeof d->file);
        take_text(from, "severity", d->severity, sizeof d->severity);
        take_text(from, "message", d->message, sizeof d->message);
        d->line = (int)json_integer_value(json_object_get(from, "line"));
        d->column = (int)json_integer_value(json_object_get(from, "column"));
        out->error_count += strcmp(d->severity, "error") == 0;
    }
}

/* ---- the builder's side ---------------------------------------------------------------------- */

int builder_request_read(const json_t *request, builder_source files[BUILDER_FILES_MAX], size_t *n,
                         err *e)
{
    static const char *const known[] = {"files", NULL}, *const of_file[] = {"name", "text", NULL};
    const json_t *list = json_object_get(request, "files");
    if (json_read_known(request, known, e))
        return -1;
    *n = json_array_size(list);
    if (*n == 0)
        return err_set(e, ERR_INVALID, "files must be a list of {\"name\", \"text\"}");
    if (*n > BUILDER_FILES_MAX)
        return err_set(e, ERR_LIMIT, "more than %d files", BUILDER_FILES_MAX);
    for (size_t i = 0; i < *n; i++) {
        const json_t *file = json_array_get(list, i), *text = json_object_get(file, "text");
        const char *name = json_string_value(json_object_get(file, "name"));
        if (!name || !json_is_string(text) || json_read_known(file, of_file, e))
            return err_set(e, ERR_INVALID, "files must be a list of {\"name\", \"text\"}");
        files[i] = (builder_source){name, json_string_value(text), json_string_length(text)};
    }
    return 0;
}

/* The object in base64, as a new reference. */
static json_t *object_text(const void *object, size_t bytes)
{
    cleanup_free unsigned char *text = malloc(bytes / 3 * 4 + 8);
    return text ? json_stringn_nocheck((const char *)text,
                                       (size_t)EVP_EncodeBlock(text, object, (int)bytes))
                : NULL;
}

static int object_bytes(const json_t *object, unsigned char **out, size_t *bytes, err *e)
{
    const char *text = json_string_value(object);
    size_t len = json_string_length(object), padding = 0;
    if (!text || len < 4 || len % 4 || len / 4 * 3 > BUILDER_OBJECT_BYTES_MAX + 3)
        return err_set(e, ERR_INVALID, "object must be the object in base64, of at most %d MiB",
                       BUILDER_OBJECT_BYTES_MAX >> 20);
    while (padding < 2 && text[len - 1 - padding] == '=')
        padding++;
    cleanup_free unsigned char *made = malloc(len / 4 * 3 + 1);
    if (!made)
        return err_set(e, ERR_NOMEM, "no memory for the object");
    if (EVP_DecodeBlock(made, (const unsigned char *)text, (int)len) < 0)
        return err_set(e, ERR_INVALID, "object is not base64");
    *out = steal_ptr(made);
    *bytes = len / 4 * 3 - padding;
    return 0;
}

json_t *builder_built_json(const builder_result *r)
{
    json_t *object = object_text(r->object, r->object_bytes);
    return object ? json_pack("{s:s, s:o, s:f, s:s}", "key", r->key, "object", object, "seconds",
                              r->seconds, "text", r->text ? r->text : "")
                  : NULL;
}

int shape_check_read(const json_t *request, unsigned char **object, size_t *len, json_t **dataset,
                     err *e)
{
    static const char *const known[] = {"object", "dataset", NULL};
    *dataset = json_object_get(request, "dataset");
    if (json_read_known(request, known, e))
        return -1;
    if (!json_is_object(*dataset))
        return err_set(e, ERR_INVALID, "dataset must be a data set's record");
    return object_bytes(json_object_get(request, "object"), object, len, e);
}

json_t *shape_check_json(int misfit, const err *e)
{
    return misfit ? json_pack("{s:b, s:s}", "fits", 0, "message", e->message)
                  : json_pack("{s:b}", "fits", 1);
}

/* ---- the client's side ----------------------------------------------------------------------- */

static int object_read(const json_t *reply, builder_result *out, err *e)
{
    const char *key = json_string_value(json_object_get(reply, "key"));
    err why = ERR_INIT;
    if (!key || strlen(key) != BUILDER_KEY_BYTES - 1)
        return err_set(e, ERR_CORRUPT, "the builder's answer has no key");
    if (object_bytes(json_object_get(reply, "object"), &out->object, &out->object_bytes, &why))
        return err_set(e, why.code == ERR_INVALID ? ERR_CORRUPT : why.code,
                       "the builder's answer: %s", why.message);
    snprintf(out->key, sizeof out->key, "%s", key);
    out->seconds = json_number_value(json_object_get(reply, "seconds"));
    const char *said = json_string_value(json_object_get(reply, "text"));
    out->text = strdup(said ? said : "");
    return 0;
}

/* Sends a request. *out: the JSON body of the response, also of an error; a new reference, or NULL.
 */
static int post(const builder_remote *where, const char *path, const char *body, int connect_ms,
                int total_ms, json_t **out, err *e)
{
    char url[512];
    http_reply reply;
    snprintf(url, sizeof url, "%s%s", where->url, path);
    http_call call = {.method = "POST",
                      .url = url,
                      .token = where->token,
                      .direct = true,
                      .body = body,
                      .body_len = strlen(body),
                      .connect_ms = connect_ms,
                      .idle_s = -1,
                      .total_ms = total_ms};
    int status = http_call_run(&call, &reply, e);
    *out = reply.body.len ? http_reply_json(&reply, NULL) : NULL;
    http_reply_free(&reply);
    return status;
}

static int ask(const builder_remote *where, const char *body, builder_result *out, err *e)
{
    cleanup_json json_t *answer = NULL;
    int status = post(where, "/build", body, CONNECT_MS, BUILDER_ANSWER_MS, &answer, e);
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    if (status == 0)
        return object_read(answer, out, e);
    if (reason) { /* a response of the builder: the error is the build's */
        e->code = err_from_name(reason);
        said_read(answer, out);
    }
    return status;
}

int builder_remote_shape_check(const builder_remote *where, const void *object, size_t len,
                               const json_t *dataset, err *e)
{
    cleanup_json json_t *answer = NULL, *text = object_text(object, len);
    cleanup_json json_t *request =
        text ? json_pack("{s:O, s:O}", "object", text, "dataset", dataset) : NULL;
    cleanup_free char *body = request ? json_dumps(request, JSON_COMPACT) : NULL;
    if (!body)
        return err_set(e, ERR_NOMEM, "no memory for the question");
    if (post(where, "/fit", body, SHAPE_CHECK_CONNECT_MS, 2 * SHAPE_CHECK_MS, &answer, e))
        return -1;
    const json_t *fits = json_object_get(answer, "fits");
    const char *why = json_string_value(json_object_get(answer, "message"));
    if (json_is_true(fits))
        return 0;
    if (!json_is_false(fits) || !why)
        return err_set(e, ERR_CORRUPT, "the builder's answer does not say whether it fits");
    err_set(e, ERR_INVALID, "%s", why);
    return 1;
}

static char *request_text(const builder_source *files, size_t n, err *e)
{
    cleanup_json json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *file =
            json_pack("{s:s, s:s%}", "name", files[i].name, "text", files[i].text, files[i].len);
        if (!file || json_array_append_new(list, file)) {
            err_set(e, ERR_INVALID, "%s is not UTF-8 text", files[i].name);
            return NULL;
        }
    }
    cleanup_json json_t *request = json_pack("{s:O}", "files", list);
    char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    if (!text)
        err_set(e, ERR_NOMEM, "no memory for the sources");
    return text;
}

int builder_remote_compile(const builder_remote *where, const builder_source *files, size_t n,
                           builder_result *out, err *e)
{
    *out = (builder_result){0};
    cleanup_free char *body = request_text(files, n, e);
    if (!body)
        return -1;
    for (int64_t deadline = clock_deadline_ms(BUILDER_AWAY_MS);;) {
        err why = ERR_INIT;
        if (ask(where, body, out, &why) == 0)
            return 0;
        /* A builder has the path /build: a 404 comes from another server, and not from an error in
         * the user's code. */
        if (why.code == ERR_NOT_FOUND)
            return err_set(e, ERR_UNAVAILABLE, "%s is no builder, it answers: %s", where->url,
                           why.message);
        if (why.code != ERR_UNAVAILABLE || clock_left_ms(deadline) == 0) {
            if (why.code == ERR_UNAVAILABLE || why.code == ERR_UNAUTHORIZED)
                return err_set(e, ERR_UNAVAILABLE, "the builder cannot be asked: %s", why.message);
            return err_set(e, why.code, "%s", why.message);
        }
        builder_result_free(out);
        *out = (builder_result){0};
        /* pauses between tries, while the builder's pod starts */
        nanosleep(&(struct timespec){0, PAUSE_MS * 1000000L}, NULL);
    }
}
