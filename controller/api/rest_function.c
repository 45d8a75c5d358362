/* rest_function.c: /function, /function/{name}, /function/{name}/explain and /zoo. */
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/json_read.h"
#include "common/base/name.h"
#include "common/net/multipart.h"
#include "controller/functions/registry.h"
#include "controller/functions/zoo_list.h"
#include "controller/jobs/job_manager.h"
#include "rest.h"
#include "rest_list.h"

void rest_function_list(http_request *r, void *context)
{
    rest_list(r, context, "/function", "functions", NULL);
}

void rest_function_get(http_request *r, void *context)
{
    err e = ERR_INIT;
    json_t *record = NULL;
    if (registry_get(context, http_param(r, "name"), &record, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, record);
}

void rest_function_explain(http_request *r, void *context)
{
    err e = ERR_INIT;
    json_t *out = NULL;
    if (registry_explain(context, http_param(r, "name"), &out, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, out);
}

void rest_zoo(http_request *r, void *context)
{
    json_t *list = NULL;
    err e = ERR_INIT;
    if (zoo_list(context, &list, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, list);
}

/* ---- uploads --------------------------------------------------------------------------------- */

/* An upload: JSON, {"model": NAME, "stem"?} or {"code": [{"name", "text"}]}, or files in multipart
 * fields "code". `text` has the contents of all files, one after the other, with a NUL after
 * each. */
typedef struct code {
    buf text;
    size_t starts[BUILDER_FILES_MAX];
    char names[BUILDER_FILES_MAX][BUILDER_NAME_BYTES];
    char model[256];
    registry_upload upload;
    json_t *body;
} code;

static void code_free(code *k)
{
    buf_free(&k->text);
    json_decref(k->body);
}

static int begin_file(code *k, const char *name, err *e)
{
    if (k->upload.count == BUILDER_FILES_MAX)
        return err_set(e, ERR_INVALID, "code: more than %d files", BUILDER_FILES_MAX);
    if (!name[0] || strlen(name) >= BUILDER_NAME_BYTES)
        return err_set(e, ERR_INVALID, "a file's name must have 1 to %d characters",
                       BUILDER_NAME_BYTES - 1);
    size_t i = k->upload.count++;
    k->starts[i] = k->text.len;
    snprintf(k->names[i], BUILDER_NAME_BYTES, "%s", name);
    return 0;
}

static int end_file(code *k, err *e)
{
    size_t i = k->upload.count - 1;
    k->upload.files[i].len = k->text.len - k->starts[i];
    return buf_append(&k->text, "", 1, e);
}

/* Sets the files' pointers, now that the buffer does not move any more. */
static void point_files(code *k)
{
    for (size_t i = 0; i < k->upload.count; i++) {
        k->upload.files[i].name = k->names[i];
        k->upload.files[i].text = k->text.bytes + k->starts[i];
    }
}

static int json_file(code *k, const json_t *file, err *e)
{
    static const char *const known[] = {"name", "text", NULL};
    const json_t *name = json_object_get(file, "name"), *text = json_object_get(file, "text");
    if (!json_is_string(name) || !json_is_string(text))
        return err_set(e, ERR_INVALID, "code must be a list of {\"name\", \"text\"}");
    if (json_read_known(file, known, e))
        return -1;
    return begin_file(k, json_string_value(name), e) ||
                   buf_append(&k->text, json_string_value(text), json_string_length(text), e)
               ? -1
               : end_file(k, e);
}

/* Reads the model's text, with its stem where the request has one. */
static int read_model(const json_t *body, code *k, err *e)
{
    const json_t *model = json_object_get(body, "model"), *stem = json_object_get(body, "stem");
    if (stem && !model)
        return err_set(e, ERR_INVALID, "stem is of a model of the zoo; code has none");
    if (!model)
        return 0;
    if (!json_is_string(model))
        return err_set(e, ERR_INVALID, "model must be the name of a model of the zoo");
    if (stem && !json_is_string(stem))
        return err_set(e, ERR_INVALID, "stem must be cifar, imagenet or auto");
    bool said = stem && strcmp(json_string_value(stem), "auto") != 0;
    int len = snprintf(k->model, sizeof k->model, "%s%s%s", json_string_value(model),
                       said ? ",stem=" : "", said ? json_string_value(stem) : "");
    if (len >= (int)sizeof k->model)
        return err_set(e, ERR_INVALID, "model: %d characters are too many", len);
    k->upload.model = k->model;
    return 0;
}

static int read_json(http_request *r, code *k, err *e)
{
    static const char *const known[] = {"model", "stem", "code", NULL};
    if (http_body_json(r, &k->body, e) || json_read_known(k->body, known, e))
        return -1;
    const json_t *model = json_object_get(k->body, "model"),
                 *files = json_object_get(k->body, "code");
    if ((model != NULL) == (files != NULL))
        return err_set(e, ERR_INVALID, "either model or code must be given");
    if (read_model(k->body, k, e))
        return -1;
    if (files && (!json_is_array(files) || json_array_size(files) == 0))
        return err_set(e, ERR_INVALID, "code must be a list of {\"name\", \"text\"}");
    size_t i;
    json_t *file;
    json_array_foreach((json_t *)(uintptr_t)files, i, file)
        if (json_file(k, file, e))
            return -1;
    return 0;
}

typedef struct span {
    const char *bytes;
    size_t left;
} span;

static ssize_t read_span(void *source, void *out, size_t max, err *e)
{
    (void)e;
    span *s = source;
    size_t n = s->left < max ? s->left : max;
    memcpy(out, s->bytes, n);
    s->bytes += n;
    s->left -= n;
    return (ssize_t)n;
}

static int multipart_file(code *k, multipart *parts, const multipart_part *part, err *e)
{
    if (strcmp(part->name, "code") != 0)
        return err_set(e, ERR_INVALID, "unknown field \"%s\"; files come in fields \"code\"",
                       part->name);
    if (begin_file(k, part->filename, e))
        return -1;
    const char *bytes;
    ssize_t n;
    while ((n = multipart_piece(parts, &bytes, e)) > 0)
        if (buf_append(&k->text, bytes, (size_t)n, e))
            return err_wrap(e, "%s", part->filename);
    return n < 0 ? -1 : end_file(k, e);
}

static int read_multipart(http_request *r, code *k, err *e)
{
    span body;
    body.bytes = http_body_bytes(r, &body.left);
    multipart *parts = NULL;
    multipart_part part;
    if (multipart_open(http_content_type(r), read_span, &body, &parts, e))
        return -1;
    int more;
    while ((more = multipart_next(parts, &part, e)) > 0)
        if (multipart_file(k, parts, &part, e)) {
            more = -1;
            break;
        }
    multipart_close(parts);
    if (more == 0 && k->upload.count == 0)
        return err_set(e, ERR_INVALID, "the upload has no file in a field \"code\"");
    return more;
}

/* The function's record with the compiler's warnings, where there are any: the stored record lacks
 * them. Takes both. */
static json_t *with_warnings(json_t *record, json_t *said)
{
    json_t *text = json_object_get(said, "compiler_output");
    json_t *out = json_string_length(text) ? json_copy(record) : json_incref(record);
    if (json_string_length(text))
        json_object_set(out, "compiler_output", text);
    json_decref(record);
    json_decref(said);
    return out;
}

static void put(http_request *r, controller *c, bool update)
{
    err e = ERR_INIT;
    json_t *record = NULL, *said = NULL;
    code *k = calloc(1, sizeof *k);
    int status = -1;
    if (!k)
        err_set(&e, ERR_NOMEM, "no memory for the upload");
    else
        buf_init(&k->text, BUILDER_SOURCE_BYTES_MAX + 2 * BUILDER_FILES_MAX);
    bool json = http_type_is(r, "application/json");
    if (k && name_check("function", http_param(r, "name"), &e) == 0 &&
        (json ? read_json(r, k, &e) : read_multipart(r, k, &e)) == 0) {
        point_files(k);
        status = registry_put(c, http_param(r, "name"), &k->upload, update, &record, &said, &e);
    }
    if (k)
        code_free(k);
    free(k);
    if (status)
        http_response_problem(r, (unsigned)err_http_status(e.code), &e, said);
    else
        http_response_json(r, 200, with_warnings(record, said));
}

void rest_function_create(http_request *r, void *context)
{
    put(r, context, false);
}

void rest_function_update(http_request *r, void *context)
{
    put(r, context, true);
}

void rest_function_delete(http_request *r, void *context)
{
    controller *c = context;
    const char *name = http_param(r, "name");
    err e = ERR_INIT;
    if (registry_delete(c, name, job_delete_function, &e)) {
        http_response_error(r, &e);
        return;
    }
    json_t *out = json_object();
    json_object_set_new(out, "result", json_sprintf("function %s deleted", name));
    http_response_json(r, 200, out);
}
