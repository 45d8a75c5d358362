/* effects.c: see effects.h. */
#include "effects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

int effects_init(effects *f, const job_spec *spec, worker *runs, int slots, err *e)
{
    *f = (effects){.spec = spec, .worker = runs, .init_incarnation = -1};
    f->storage_worker = storage_worker_new(slots, e);
    return f->storage_worker ? 0 : -1;
}

void effects_free(effects *f, bool kept)
{
    storage_worker_free(f->storage_worker, !kept);
    free(f->layout);
}

/* ---- out ------------------------------------------------------------------------------------- */

static void post(effects *f, task *t)
{
    if (!t) {
        log_error("no memory for a task");
        return;
    }
    snprintf(t->job, sizeof t->job, "%s", f->spec->id);
    f->out++;
    worker_post(f->worker, &t->work);
}

static task *layout_task(effects *f, task_kind kind)
{
    task *t = task_new(f->storage_worker, kind);
    if (t && f->layout)
        t->layout = strdup(f->layout);
    return t;
}

void effects_open(effects *f, const modelstore_access *access, bool last)
{
    const job_spec *s = f->spec;
    task *t = task_new(f->storage_worker, TASK_OPEN);
    if (t) {
        t->access = *access;
        t->resume = s->resume;
        t->last = last;
        t->parallelism = s->parallelism;
        t->generation = s->generation > 0 ? s->generation : 0;
        snprintf(t->store, sizeof t->store, "%s", s->store);
    }
    post(f, t);
}

void effects_create(effects *f, int incarnation, int slot)
{
    f->init_incarnation = incarnation;
    f->init_slot = slot;
    post(f, layout_task(f, TASK_CREATE));
}

void effects_load(effects *f)
{
    task *t = layout_task(f, TASK_LOAD);
    if (t)
        snprintf(t->init, sizeof t->init, "%s", f->spec->request.init);
    post(f, t);
}

/* An entry of the model store's ledger; steals `parts`. */
static char *ledger_text(int epoch, int round, int64_t version, json_t *parts)
{
    json_t *entry = json_pack("{s:i,s:i,s:I,s:o}", "epoch", epoch, "round", round, "version",
                              (json_int_t)version, "parts", parts);
    char *text = json_dumps(entry, JSON_COMPACT);
    json_decref(entry);
    return text;
}

static json_t *ledger_part(const round_row *row)
{
    return json_pack("{s:i,s:i,s:I,s:I,s:I}", "function", row->function, "incarnation",
                     row->incarnation, "samples", (json_int_t)row->samples, "sample_begin",
                     (json_int_t)row->sample_begin, "sample_end", (json_int_t)row->sample_end);
}

/* `t`, or NULL where memory was gone for what it has to have. */
static task *complete(task *t, bool is)
{
    if (is)
        return t;
    task_free(t);
    return NULL;
}

void effects_initialised(effects *f, int incarnation)
{
    if (incarnation != f->init_incarnation || f->initial_done)
        return;
    task *t = task_new(f->storage_worker, TASK_INITIAL);
    if (t) {
        t->incarnation = incarnation;
        snprintf(t->init, sizeof t->init, "%s", f->spec->request.init);
        snprintf(t->without, sizeof t->without, "%s", f->spec->request.init_without);
        t->ledger = ledger_text(STORAGE_WORKER_INIT_EPOCH, 0, 0, json_array());
        t = complete(t, t->ledger != NULL);
    }
    post(f, t);
}

void effects_merge(effects *f, const round_merge *merge, int mean_of)
{
    json_t *parts = json_array();
    for (size_t i = 0; i < merge->count; i++)
        json_array_append_new(parts, ledger_part(&merge->rows[i]));
    char *ledger = ledger_text(merge->epoch, merge->round, merge->base_version + 1, parts);
    task *t = task_new(f->storage_worker, TASK_MERGE);
    if (!t) {
        free(ledger);
        post(f, NULL);
        return;
    }
    t->merge = *merge;
    t->merge.as_one = mean_of >= 0;
    t->incarnation = mean_of;
    t->ledger = ledger;
    t->rows = calloc(merge->count + 1, sizeof *t->rows);
    if (t->rows)
        memcpy(t->rows, merge->rows, merge->count * sizeof *t->rows);
    t->merge.rows = t->rows;
    post(f, complete(t, t->rows && t->ledger));
}

int effects_room(effects *f, const round_event *ready, int slot, err *e)
{
    task *t = task_new(f->storage_worker, TASK_ROOM);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a task");
    t->function = ready->function;
    t->incarnation = ready->incarnation;
    t->slot = slot;
    snprintf(t->layout_digest, sizeof t->layout_digest, "%s", ready->layout);
    snprintf(t->algorithms, sizeof t->algorithms, "%s", ready->algorithms);
    post(f, t);
    return 0;
}

void effects_commit(effects *f, const checkpoint_info *info, json_t *record)
{
    task *t = task_new(f->storage_worker, TASK_COMMIT);
    if (t) {
        t->info = *info;
        t->record = record;
    } else {
        json_decref(record);
    }
    post(f, t);
}

void effects_forget_init(effects *f)
{
    f->init_incarnation = -1;
}

void effects_restore(effects *f, bool last)
{
    task *t = task_new(f->storage_worker, TASK_RESTORE);
    if (t)
        t->last = last;
    post(f, t);
}

void effects_finish(effects *f, const checkpoint_info *info, bool keep_model, json_t *record)
{
    task *t = task_new(f->storage_worker, TASK_FINISH);
    if (t) {
        t->info = *info;
        t->keep_model = keep_model;
        t->record = record;
    } else {
        json_decref(record);
    }
    post(f, t);
}

/* ---- back ------------------------------------------------------------------------------------ */

static round_event load_failed(const task *t)
{
    return (round_event){.type = ROUND_LOAD_FAILED, .code = t->e.code, .message = t->e.message};
}

static round_event initialised(int incarnation)
{
    return (round_event){.type = ROUND_INITIALISED, .function = 0, .incarnation = incarnation};
}

static round_event loaded(const task *t)
{
    return (round_event){.type = ROUND_LOADED, .version = t->version};
}

static round_event merged(const task *t, err_code failure)
{
    if (t->status)
        return (round_event){.type = ROUND_MERGE_FAILED,
                             .epoch = t->merge.epoch,
                             .round = t->merge.round,
                             .version = t->version,
                             .code = failure,
                             .function = t->bad_function,
                             .message = t->e.message};
    return (round_event){.type = ROUND_MERGED,
                         .epoch = t->merge.epoch,
                         .round = t->merge.round,
                         .version = t->version,
                         .function = -1};
}

/* A function is ready where there is room for what it publishes; where that is not known it will
 * find out. */
static round_event looked_for_room(const task *t)
{
    bool full = t->status && t->e.code == ERR_NOMEM;
    return (round_event){.type = full ? ROUND_FAILED : ROUND_READY,
                         .function = t->function,
                         .incarnation = t->incarnation,
                         .layout = t->layout_digest,
                         .algorithms = t->algorithms,
                         .reason = full ? "ModelStoreFull" : NULL,
                         .message = full ? t->e.message : NULL};
}

static round_event committed(const task *t, err_code failure)
{
    int epoch = t->info.epochs - 1;
    if (t->status)
        return (round_event){
            .type = ROUND_COMMIT_FAILED, .epoch = epoch, .code = failure, .message = t->e.message};
    return (round_event){.type = ROUND_COMMITTED, .epoch = epoch};
}

bool effects_event(effects *f, const task *t, bool database_down, round_event *out)
{
    err_code failure = database_down ? ERR_UNAVAILABLE : t->e.code;
    bool failed = t->status != 0;
    switch (t->kind) {
    case TASK_OPEN:
    case TASK_FINISH: return false;
    case TASK_CREATE:
        if (!failed && !f->initial_done)
            return false;
        /* Otherwise function 0 was replaced after its model had been merged. */
        *out = failed ? load_failed(t) : initialised(f->init_incarnation);
        return true;
    case TASK_LOAD: *out = failed ? load_failed(t) : loaded(t); return true;
    case TASK_INITIAL:
        f->initial_done |= !failed;
        *out = failed ? load_failed(t) : initialised(t->incarnation);
        return true;
    case TASK_MERGE: *out = merged(t, failure); return true;
    case TASK_ROOM: *out = looked_for_room(t); return true;
    case TASK_COMMIT: *out = committed(t, failure); return true;
    case TASK_RESTORE:
        if (!failed && !t->resumed)
            f->initial_done = t->version >= 0;
        *out = failed ? load_failed(t) : loaded(t);
        return true;
    }
    return false;
}
