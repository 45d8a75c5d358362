/* builder_remote.c: see builder_remote.h. */
#include "builder_remote.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "clock.h"
#include "http_client.h"
#include "json_read.h"

enum { PAUSE_MS = 500, CONNECT_MS = 3000 };

/* ---- what the compiler said ------------------------------------------------------------------ */

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

/* ---- the builder's end ----------------------------------------------------------------------- */

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

json_t *builder_built_json(const builder_result *r)
{
    cleanup_free unsigned char *text = malloc(r->object_bytes / 3 * 4 + 8);
    if (!text)
        return NULL;
    int len = EVP_EncodeBlock(text, r->object, (int)r->object_bytes);
    return json_pack("{s:s, s:s%, s:f, s:s}", "key", r->key, "object", text, (size_t)len, "seconds",
                     r->seconds, "text", r->text ? r->text : "");
}

/* ---- the caller's end ------------------------------------------------------------------------ */

static int object_read(const json_t *reply, builder_result *out, err *e)
{
    const json_t *object = json_object_get(reply, "object");
    const char *text = json_string_value(object),
               *key = json_string_value(json_object_get(reply, "key"));
    size_t len = json_string_length(object), padding = 0;
    if (!text || len < 4 || len % 4 || len / 4 * 3 > BUILDER_OBJECT_BYTES_MAX + 3 || !key ||
        strlen(key) != BUILDER_KEY_BYTES - 1)
        return err_set(e, ERR_CORRUPT, "the builder's answer has no object");
    while (padding < 2 && text[len - 1 - padding] == '=')
        padding++;
    out->object = malloc(len / 4 * 3 + 1);
    if (!out->object)
        return err_set(e, ERR_NOMEM, "no memory for the object");
    if (EVP_DecodeBlock(out->object, (const unsigned char *)text, (int)len) < 0)
        return err_set(e, ERR_CORRUPT, "the builder's answer has no object");
    out->object_bytes = len / 4 * 3 - padding;
    snprintf(out->key, sizeof out->key, "%s", key);
    out->seconds = json_number_value(json_object_get(reply, "seconds"));
    const char *said = json_string_value(json_object_get(reply, "text"));
    out->text = strdup(said ? said : "");
    return 0;
}

static int ask(const builder_remote *where, const char *body, builder_result *out, err *e)
{
    char url[512];
    http_reply reply;
    snprintf(url, sizeof url, "%s/build", where->url);
    http_call call = {.method = "POST",
                      .url = url,
                      .token = where->token,
                      .body = body,
                      .body_len = strlen(body),
                      .connect_ms = CONNECT_MS,
                      .idle_s = -1,
                      .total_ms = BUILDER_ANSWER_MS};
    int status = http_call_run(&call, &reply, e);
    cleanup_json json_t *answer = reply.body.len ? http_reply_json(&reply, NULL) : NULL;
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    if (status == 0)
        status = object_read(answer, out, e);
    else if (reason) { /* it answered: the error is that of the build */
        e->code = err_from_name(reason);
        said_read(answer, out);
    }
    http_reply_free(&reply);
    return status;
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
        if (why.code != ERR_UNAVAILABLE || clock_left_ms(deadline) == 0) {
            if (why.code == ERR_UNAVAILABLE || why.code == ERR_UNAUTHORIZED)
                return err_set(e, ERR_UNAVAILABLE, "the builder cannot be asked: %s", why.message);
            return err_set(e, why.code, "%s", why.message);
        }
        builder_result_free(out);
        *out = (builder_result){0};
        /* between tries; what is waited for is its pod */
        nanosleep(&(struct timespec){0, PAUSE_MS * 1000000L}, NULL);
    }
}
