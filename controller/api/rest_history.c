/* rest_history.c: /history, /history/{id}, /model and /model/{id}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/base/name.h"
#include "common/formats/safetensors.h"
#include "common/net/multipart.h"
#include "common/store/model_blob.h"
#include "controller/functions/upload.h"
#include "controller/jobs/job_manager.h"
#include "npz_model.h"
#include "rest.h"
#include "rest_list.h"
#include "weights_model.h"

enum { PRUNED_AT_ONCE = 64 }; /* records read at once: they may be large */

/* ---- history --------------------------------------------------------------------------------- */

void rest_history_list(http_request *r, void *context)
{
    rest_list(r, context, "/history", "history", NULL);
}

static int no_history(const char *id, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no history of a job \"%.40s\"", id);
}

void rest_history_get(http_request *r, void *context)
{
    controller *c = context;
    const char *id = http_param(r, "id");
    json_t *record = NULL;
    err e = ERR_INIT;
    int status = name_check("job", id, NULL)
                     ? no_history(id, &e)
                     : store_get(c->store, "history", id, &record, NULL, &e);
    if (status && e.code == ERR_NOT_FOUND)
        no_history(id, &e);
    if (status)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, record);
}

static json_t *deleted(const char *what, const char *id)
{
    json_t *out = json_object();
    json_object_set_new(out, "result", json_sprintf("%s %s deleted", what, id));
    return out;
}

/* Deletes a history. A job that ended before its first batch has a record and no history. */
static int delete_history(store *s, const char *id, err *e)
{
    json_t *record = NULL;
    err why = ERR_INIT;
    if (store_delete(s, "history", id, STORE_ANY, &why) == 0)
        return 0;
    if (why.code == ERR_NOT_FOUND && store_get(s, "jobs", id, &record, NULL, &why) == 0) {
        json_decref(record);
        return 0;
    }
    if (why.code == ERR_NOT_FOUND)
        return no_history(id, e);
    *e = why;
    return -1;
}

/* Deletes a job: its history, its model, its record and its log. */
static int delete_job(controller *c, const char *id, err *e)
{
    size_t count = 0;
    if (job_delete_hold(c->job_manager, id, e))
        return -1;
    int status = delete_history(c->store, id, e) || upload_delete_model(c->store, id, &count, e) ||
                         job_delete_forget(c->job_manager, id, e)
                     ? -1
                     : 0;
    job_delete_let_go(c->job_manager, id);
    return status;
}

void rest_history_delete(http_request *r, void *context)
{
    const char *id = http_param(r, "id");
    err e = ERR_INIT;
    if (name_check("job", id, NULL) ? no_history(id, &e) : delete_job(context, id, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, deleted("history", id));
}

typedef struct pruned {
    size_t deleted, kept;
    err why; /* of the last job that was kept */
} pruned;

/* Deletes the jobs of a page. A job that has gone meanwhile counts as neither. */
static int prune_page(controller *c, const store_page *page, pruned *p, err *e)
{
    for (size_t i = 0; i < page->count; i++) {
        err why = ERR_INIT;
        if (delete_job(c, page->records[i].key, &why) == 0) {
            p->deleted++;
        } else if (why.code == ERR_CONFLICT) {
            p->kept++;
            p->why = why;
        } else if (why.code != ERR_NOT_FOUND) {
            *e = why;
            return -1;
        }
    }
    return 0;
}

static json_t *pruned_json(const pruned *p)
{
    char text[64 + ERR_MESSAGE_BYTES];
    int used = snprintf(text, sizeof text, "%zu histor%s deleted", p->deleted,
                        p->deleted == 1 ? "y" : "ies");
    if (p->kept)
        snprintf(text + used, sizeof text - (size_t)used, ", %zu kept: %s", p->kept,
                 p->why.message);
    return json_pack("{s:s}", "result", text);
}

/* Walks the jobs, not the histories: a job that never began has no history, and is deleted too. */
void rest_history_prune(http_request *r, void *context)
{
    controller *c = context;
    char after[STORE_KEY_BYTES] = "";
    pruned p = {0};
    err e = ERR_INIT;
    int status = 0;
    for (bool more = true; more && status == 0;) {
        store_page page = {0};
        status =
            store_list(c->store, "jobs", NULL, *after ? after : NULL, PRUNED_AT_ONCE, &page, &e) ||
                    prune_page(c, &page, &p, &e)
                ? -1
                : 0;
        more = page.more && page.count;
        if (page.count)
            snprintf(after, sizeof after, "%s", page.records[page.count - 1].key);
        store_page_free(&page);
    }
    if (status)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, pruned_json(&p));
}

/* ---- models ---------------------------------------------------------------------------------- */

static int no_model(const char *id, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no trained model \"%.40s\"", id);
}

static int open_model(store *s, const char *id, blob **out, err *e)
{
    if (name_check("job", id, NULL))
        return no_model(id, e);
    int status = model_blob_open(s, id, out, e);
    return status && e->code == ERR_NOT_FOUND ? no_model(id, e) : status;
}

typedef struct model_source {
    blob *blob;
    uint64_t at;
} model_source;

static ssize_t model_read(void *source, void *out, size_t max)
{
    model_source *m = source;
    uint64_t left = blob_size(m->blob) - m->at;
    size_t n = left < max ? (size_t)left : max;
    if (n && blob_read_at(m->blob, m->at, out, n, NULL))
        return -1;
    m->at += n;
    return (ssize_t)n;
}

static void model_close(void *source)
{
    model_source *m = source;
    blob_close(m->blob);
    free(m);
}

/* Sends the checkpoint as the store has it, with optimizer state. */
static void send_checkpoint(http_request *r, blob *b)
{
    model_source *m = calloc(1, sizeof *m);
    err e = ERR_INIT;
    if (!m) {
        blob_close(b);
        err_set(&e, ERR_NOMEM, "no memory for the model");
        http_response_error(r, &e);
        return;
    }
    m->blob = b;
    http_response_source(r, "application/octet-stream", blob_size(b), model_read, model_close, m);
}

static void send_written(http_request *r, controller *c, blob *b,
                         int (*write)(blob *, const char *, int *, uint64_t *, err *))
{
    int fd = -1;
    uint64_t len = 0;
    err e = ERR_INIT;
    int status = write(b, store_scratch_dir(c->store), &fd, &len, &e);
    blob_close(b);
    if (status)
        http_response_error(r, &e);
    else
        http_response_file(r, "application/octet-stream", fd, len);
}

void rest_model_get(http_request *r, void *context)
{
    controller *c = context;
    const char *format = http_query(r, "format"), *id = http_param(r, "id");
    bool npz = format && strcmp(format, "npz") == 0;
    bool checkpoint = format && strcmp(format, "checkpoint") == 0;
    char disposition[128];
    blob *b = NULL;
    err e = ERR_INIT;
    if (format && !npz && !checkpoint && strcmp(format, "safetensors") != 0)
        err_set(&e, ERR_INVALID, "format must be safetensors or npz, or checkpoint");
    if (e.code != ERR_NONE || open_model(c->store, id, &b, &e)) {
        http_response_error(r, &e);
        return;
    }
    snprintf(disposition, sizeof disposition, "attachment; filename=\"%.60s.%s\"", id,
             npz          ? "npz"
             : checkpoint ? "checkpoint.safetensors"
                          : "safetensors");
    http_add_header(r, "Content-Disposition", disposition);
    if (checkpoint)
        send_checkpoint(r, b);
    else
        send_written(r, c, b, npz ? npz_model_write : weights_model_write);
}

void rest_model_delete(http_request *r, void *context)
{
    controller *c = context;
    const char *id = http_param(r, "id");
    size_t count = 0;
    err e = ERR_INIT;
    int status =
        name_check("job", id, NULL) ? no_model(id, &e) : job_delete_hold(c->job_manager, id, &e);
    if (status == 0) {
        failpoint("controller.delete-model");
        status = upload_delete_model(c->store, id, &count, &e);
        job_delete_let_go(c->job_manager, id);
    }
    if (status == 0 && count == 0)
        status = no_model(id, &e);
    if (status)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, deleted("model", id));
}

/* ---- upload: one safetensors file in the multipart field "model" ----------------------------- */

static ssize_t read_body(void *source, void *out, size_t max, err *e)
{
    return http_body_read(source, out, max, e);
}

static int write_part(multipart *parts, blob_writer *to, uint64_t *total, err *e)
{
    const char *bytes;
    ssize_t n;
    while ((n = multipart_piece(parts, &bytes, e)) > 0) {
        *total += (uint64_t)n;
        if (*total > CONTROLLER_MODEL_BYTES_MAX)
            return err_set(e, ERR_LIMIT, "the model is larger than %llu bytes",
                           (unsigned long long)CONTROLLER_MODEL_BYTES_MAX);
        if (blob_write(to, bytes, (size_t)n, e))
            return -1;
    }
    return n < 0 ? -1 : 0;
}

static int take_model(multipart *parts, blob_writer *to, err *e)
{
    multipart_part part;
    uint64_t total = 0;
    int count = 0, more;
    while ((more = multipart_next(parts, &part, e)) > 0) {
        if (strcmp(part.name, "model") != 0 || count++)
            return err_set(e, ERR_INVALID, "one field \"model\" is expected, not \"%s\"",
                           part.name);
        if (write_part(parts, to, &total, e))
            return -1;
    }
    return more == 0 && count == 0 ? err_set(e, ERR_INVALID, "the field \"model\" is missing")
                                   : more;
}

/* Checks that the upload is a safetensors file, and deletes it otherwise. */
static int check_model(store *s, const char *name, err *e)
{
    blob *b = NULL;
    if (store_blob_open(s, name, &b, e))
        return -1;
    int status = npz_model_check(b, e);
    blob_close(b);
    if (status)
        store_blob_delete(s, name, NULL);
    return status;
}

void rest_model_create(http_request *r, void *context)
{
    controller *c = context;
    char id[17], name[STORE_KEY_BYTES];
    multipart *parts = NULL;
    blob_writer *to = NULL;
    err e = ERR_INIT;
    job_manager_random_hex(id, sizeof id);
    snprintf(name, sizeof name, "models/%s/final", id);
    int status = multipart_open(http_content_type(r), read_body, r, &parts, &e) ||
                         upload_note(c->store, id, clock_wall_ms(), &e) ||
                         store_blob_begin(c->store, name, &to, &e)
                     ? -1
                     : take_model(parts, to, &e);
    multipart_close(parts);
    if (status)
        blob_abort(to);
    else
        status = blob_commit(to, &e) || check_model(c->store, name, &e) ? -1 : 0;
    if (status)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, json_pack("{s:s}", "id", id));
}
