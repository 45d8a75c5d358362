/* rest_dataset.c: /dataset and /dataset/{name}. */
#include <string.h>

#include "common/base/json_read.h"
#include "common/base/json_time.h"
#include "common/dataset/dataset.h"
#include "common/dataset/ingest.h"
#include "common/net/multipart.h"
#include "controller/jobs/job_manager.h"
#include "rest.h"
#include "rest_list.h"

/* "name", "train_set_size" and "test_set_size" are the first KubeML's. */
static json_t *dataset_json(const dataset_info *d)
{
    json_t *out = json_pack(
        "{s:s, s:I, s:I, s:s, s:s, s:[i,i,i], s:i, s:i, s:i, s:I, s:I}", "name", d->name,
        "train_set_size", (json_int_t)d->samples[DATASET_TRAIN], "test_set_size",
        (json_int_t)d->samples[DATASET_TEST], "digest", d->digest, "dtype",
        d->dtype == DATASET_U8 ? "uint8" : "float32", "shape", (int)d->channels, (int)d->height,
        (int)d->width, "classes", (int)d->classes, "targets", (int)d->targets, "chunk_samples",
        (int)d->chunk_samples, "seed", (json_int_t)d->seed, "bytes", (json_int_t)d->bytes);
    if (out)
        json_set_time(out, "created", d->created_ms);
    return out;
}

/* Sets a list of one number a channel, with which a transform standardises samples. */
static int set_statistic(json_t *out, const char *name, const float *values, uint32_t channels)
{
    json_t *list = json_array();
    for (uint32_t i = 0; values && i < channels; i++)
        json_array_append_new(list, json_real((double)values[i]));
    if (!values || json_array_size(list) == channels)
        return json_object_set_new(out, name, list);
    json_decref(list);
    return -1;
}

static json_t *dataset_details_json(const dataset_info *d)
{
    json_t *out = dataset_json(d);
    if (!out || set_statistic(out, "mean", d->mean, d->channels) ||
        set_statistic(out, "std", d->std, d->channels) ||
        set_statistic(out, "min", d->min, d->channels) ||
        set_statistic(out, "max", d->max, d->channels)) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static void answer_or_no_memory(http_request *r, json_t *body)
{
    err e = ERR_INIT;
    if (body) {
        http_response_json(r, 200, body);
        return;
    }
    err_set(&e, ERR_NOMEM, "no memory for the answer");
    http_response_error(r, &e);
}

static json_t *show_dataset(void *context, const char *key, json_t *record)
{
    (void)context;
    (void)key;
    dataset_info info;
    if (dataset_info_parse(record, &info, NULL))
        return NULL;
    json_t *out = dataset_json(&info);
    dataset_info_free(&info);
    return out;
}

void rest_dataset_list(http_request *r, void *context)
{
    rest_list(r, context, "/dataset", STORE_DATASETS, show_dataset);
}

void rest_dataset_get(http_request *r, void *context)
{
    controller *c = context;
    err e = ERR_INIT;
    dataset_info info;
    if (name_check("dataset", http_param(r, "name"), &e) ||
        dataset_find(c->store, http_param(r, "name"), &info, NULL, &e)) {
        http_response_error(r, &e);
        return;
    }
    json_t *out = dataset_details_json(&info);
    dataset_info_free(&info);
    answer_or_no_memory(r, out);
}

/* ---- upload ---------------------------------------------------------------------------------- */

static ssize_t read_body(void *source, void *out, size_t max, err *e)
{
    return http_body_read(source, out, max, e);
}

static int take_part(multipart *parts, const multipart_part *part, ingest *to, err *e)
{
    const char *bytes;
    ssize_t n;
    if (ingest_part(to, part->name, part->filename[0] ? part->filename : NULL, e))
        return -1;
    while ((n = multipart_piece(parts, &bytes, e)) > 0)
        if (ingest_bytes(to, part->name, bytes, (size_t)n, e))
            return -1;
    return n < 0 ? -1 : 0;
}

static int take_parts(http_request *r, ingest *to, err *e)
{
    multipart *parts = NULL;
    multipart_part part;
    if (multipart_open(http_content_type(r), read_body, r, &parts, e))
        return -1;
    int more;
    while ((more = multipart_next(parts, &part, e)) > 0)
        if (take_part(parts, &part, to, e)) {
            more = -1;
            break;
        }
    multipart_close(parts);
    return more;
}

static int parse_options(controller *c, http_request *r, ingest_options *out, err *e)
{
    const char *seed = http_query(r, "seed"), *layout = http_query(r, "layout");
    const char *regression = http_query(r, "regression");
    *out = (ingest_options){.bytes_max = CONTROLLER_UPLOAD_BYTES_MAX,
                            .disk = c->config.scratch_max ? &c->uploads : NULL};
    if (seed) {
        char *end;
        out->seed = strtoull(seed, &end, 10);
        if (!*seed || *end || strspn(seed, "0123456789") != strlen(seed) || strlen(seed) > 16 ||
            out->seed > (uint64_t)1 << 53)
            return err_set(e, ERR_INVALID, "seed must be a whole number from 0 to 2^53");
    }
    if (layout && ingest_layout_parse(layout, &out->layout, e))
        return -1;
    if (regression && strcmp(regression, "true") != 0 && strcmp(regression, "false") != 0)
        return err_set(e, ERR_INVALID, "regression must be true or false");
    out->regression = regression && strcmp(regression, "true") == 0;
    return 0;
}

/* `note` is "" where there is none. */
static int upload(controller *c, http_request *r, char note[INGEST_NOTE_BYTES], err *e)
{
    ingest_options options;
    dataset_info info;
    ingest *to = NULL;
    if (name_check("dataset", http_param(r, "name"), e) || parse_options(c, r, &options, e) ||
        ingest_begin(c->store, http_param(r, "name"), &options, &to, e))
        return -1;
    if (take_parts(r, to, e)) {
        ingest_abort(to);
        return -1;
    }
    if (ingest_end(to, &info, e))
        return -1;
    if (!ingest_note(&info, options.layout, note))
        note[0] = '\0';
    dataset_info_free(&info);
    return 0;
}

void rest_dataset_create(http_request *r, void *context)
{
    err e = ERR_INIT;
    char note[INGEST_NOTE_BYTES];
    if (upload(context, r, note, &e)) {
        http_response_error(r, &e);
        return;
    }
    json_t *out = json_object();
    json_object_set_new(out, "result",
                        json_sprintf("dataset %s created", http_param(r, "name")));
    if (note[0])
        json_object_set_new(out, "note", json_string(note));
    answer_or_no_memory(r, out);
}

void rest_dataset_delete(http_request *r, void *context)
{
    controller *c = context;
    const char *name = http_param(r, "name");
    err e = ERR_INIT;
    if (name_check("dataset", name, &e) || job_delete_dataset(c->job_manager, name, &e)) {
        http_response_error(r, &e);
        return;
    }
    json_t *out = json_object();
    json_object_set_new(out, "result", json_sprintf("dataset %s deleted", name));
    answer_or_no_memory(r, out);
}
