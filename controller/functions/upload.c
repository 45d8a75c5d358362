/* upload.c: see upload.h. */
#include "upload.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/contract/request.h"

#define COLLECTION "uploads"

int upload_note(store *s, const char *id, int64_t wall_ms, err *e)
{
    cleanup_json json_t *record = json_pack("{s:I}", "when_ms", (json_int_t)wall_ms);
    return record ? store_put(s, COLLECTION, id, record, STORE_ANY, NULL, e)
                  : err_set(e, ERR_NOMEM, "no memory for an upload's record");
}

typedef struct look {
    json_t *ids;
    int64_t before_ms;
} look;

static int add_old(void *context, const char *id, json_t *record, err *e)
{
    look *l = context;
    if (json_integer_value(json_object_get(record, "when_ms")) < l->before_ms &&
        json_object_set_new(l->ids, id, json_true()))
        return err_set(e, ERR_NOMEM, "no memory for a list of uploads");
    return 0;
}

/* Takes a job's initial model out of `context`. Jobs name the model by its id, or by its blob,
 * models/ID/final. */
static int take_named(void *context, const char *job, json_t *record, err *e)
{
    const json_t *asked = json_object_get(json_object_get(record, "job"), "request");
    const char *init = json_string_value(json_object_get(asked, "init"));
    char id[REQUEST_NAME_BYTES];
    (void)job;
    (void)e;
    request_init_id(init, id);
    json_object_del(context, id);
    return 0;
}

int upload_find_left(store *s, int64_t wall_ms, json_t **out, err *e)
{
    cleanup_json json_t *ids = json_object();
    look l = {.ids = ids, .before_ms = wall_ms - UPLOAD_KEPT_MS};
    if (!ids)
        return err_set(e, ERR_NOMEM, "no memory for a list of uploads");
    if (store_walk(s, COLLECTION, add_old, &l, e) ||
        (json_object_size(ids) && store_walk(s, "jobs", take_named, ids, e)))
        return -1;
    *out = json_incref(ids);
    return 0;
}

int upload_delete_model(store *s, const char *id, size_t *count, err *e)
{
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *entries = NULL;
    snprintf(prefix, sizeof prefix, "models/%s/", id);
    if (store_blob_list(s, prefix, NULL, 0, &entries, count, e))
        return -1;
    int status = 0;
    for (size_t i = 0; i < *count && status == 0; i++)
        status = store_blob_delete(s, entries[i].name, e);
    return status;
}

int upload_drop(store *s, const char *id, err *e)
{
    cleanup_json json_t *unnamed = json_pack("{s:b}", id, 1);
    size_t count;
    err why = ERR_INIT;
    if (!unnamed)
        return err_set(e, ERR_NOMEM, "no memory to look for what uses model %s", id);
    if (store_walk(s, "jobs", take_named, unnamed, e))
        return -1;
    if (json_object_size(unnamed) == 0)
        return 0;
    if (upload_delete_model(s, id, &count, e))
        return -1;
    log_info("model %s was uploaded a day ago and no job names it: it is gone", id);
    if (store_delete(s, COLLECTION, id, STORE_ANY, &why) == 0 || why.code == ERR_NOT_FOUND)
        return 0;
    *e = why;
    return -1;
}
