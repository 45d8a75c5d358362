/* storage_worker.c: see storage_worker.h. */
#include "storage_worker.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/modelstore/merge.h"
#include "common/store/store.h"
#include "history.h"

enum { HELD_NONE = -2, HISTORY_TRIES = 10 };

struct storage_worker {
    store *store;
    modelstore *models;
    modelstore_access access;
    char job[64], locator[STORE_LOCATOR_BYTES];
    int slots, generation;
    modelstore_state state; /* as committed last; version -1: no model yet */
    bool created;
    bool half_made; /* version 0 is what function 0 drew, and not the other model's weights yet */
    bool suspended; /* there may be models of where it was suspended, or ended before it went on */
    buf ledger;     /* the elements so far, with commas between */
    model model;    /* room for the reference; its layout is the job's */
    modelstore_state held; /* that `model` is a copy of; version HELD_NONE: of none */
    size_t held_ledger;    /* bytes of the ledger then */
    model spare;           /* without a segment: room for what follows `model`, until it is whole */
};

/* ---- tasks ----------------------------------------------------------------------------------- */

const char *task_name(task_kind kind)
{
    static const char *const names[] = {"open", "create", "load",     "initial", "merge",
                                        "room", "commit", "put back", "finish"};
    return names[kind];
}

void task_free(task *t)
{
    if (!t)
        return;
    explicit_bzero(&t->access, sizeof t->access);
    free(t->layout);
    free(t->rows);
    free(t->ledger);
    json_decref(t->record);
    free(t);
}

void task_drop(work *w)
{
    task_free((task *)w);
}

storage_worker *storage_worker_new(int slots, err *e)
{
    storage_worker *k = calloc(1, sizeof *k);
    if (!k) {
        err_set(e, ERR_NOMEM, "no memory for the keeper");
        return NULL;
    }
    k->slots = slots;
    k->state.version = -1;
    k->held.version = HELD_NONE;
    buf_init(&k->ledger, STORAGE_WORKER_LEDGER_BYTES_MAX);
    return k;
}

static int64_t soon(void)
{
    return clock_deadline_ms(STORAGE_WORKER_CALL_MS);
}

void storage_worker_free(storage_worker *k, bool drop_model)
{
    if (!k)
        return;
    err e = ERR_INIT;
    if (k->models && drop_model && modelstore_drop(k->models, clock_deadline_ms(500), &e))
        log_warn("the model store was not emptied: %s", e.message);
    modelstore_close(k->models);
    store_close(k->store);
    model_free(&k->model);
    model_free(&k->spare);
    buf_free(&k->ledger);
    explicit_bzero(&k->access, sizeof k->access);
    free(k);
}

/* ---- the reference --------------------------------------------------------------------------- */

static bool shared(const storage_worker *k)
{
    return strcmp(k->access.tensor_path, "shm") == 0;
}

static void drop_copies(storage_worker *k)
{
    model_free(&k->model);
    model_free(&k->spare);
    k->held.version = HELD_NONE;
}

static int set_layout(storage_worker *k, const char *text, err *e)
{
    if (k->model.memory && strcmp(k->model.layout.text, text) == 0)
        return 0;
    drop_copies(k);
    return model_new(&k->model, text, e);
}

static void note_held(storage_worker *k)
{
    k->held = k->state;
    k->held_ledger = k->ledger.len;
}

static int fetch_into(storage_worker *k, const model *to, err *e)
{
    modelstore_state got;
    if (modelstore_fetch(k->models, k->state.version, to->block, soon(), &got, e))
        return -1;
    if (got.version != k->state.version)
        return err_set(e, ERR_STALE, "the model store is at version %lld, not %lld",
                       (long long)got.version, (long long)k->state.version);
    return 0;
}

/* Beside the copy of before, which counts until this one is whole. */
static int fetch_beside(storage_worker *k, err *e)
{
    if ((!k->spare.memory && model_new(&k->spare, k->model.layout.text, e)) ||
        fetch_into(k, &k->spare, e))
        return -1;
    model before = k->model;
    k->model = k->spare;
    k->spare = before;
    note_held(k);
    return 0;
}

/* Brings the reference into k->model. */
static int fetch(storage_worker *k, err *e)
{
    if (k->held.version == k->state.version)
        return 0;
    if (!shared(k))
        return fetch_beside(k, e);
    k->held.version = HELD_NONE;
    if (fetch_into(k, &k->model, e))
        return -1;
    note_held(k);
    return 0;
}

/* After each change of the reference: without a segment only our own memory survives Redis. */
static int hold(storage_worker *k, err *e)
{
    failpoint("before-copy");
    return shared(k) ? 0 : fetch(k, e);
}

/* Neither a contribution nor a model of ours is at fault, which were verified when they came: it is
 * another Redis by now, which knows nothing of them, or what travelled was damaged on its way. */
static int blame_store(err *e)
{
    if (e->code == ERR_NOT_FOUND || e->code == ERR_CORRUPT)
        e->code = ERR_UNAVAILABLE;
    return -1;
}

/* The model store at k->state: from our copy, or from what the segment holds, or empty. */
static int create(storage_worker *k, err *e)
{
    bool copy = k->state.version >= 0 && k->held.version == k->state.version;
    buf text;
    buf_init(&text, STORAGE_WORKER_LEDGER_BYTES_MAX + 8);
    int status = buf_append(&text, "[", 1, e) ||
                 buf_append(&text, k->ledger.len ? k->ledger.bytes : "", k->ledger.len, e) ||
                 buf_append(&text, "]", 1, e);
    if (status == 0)
        status = modelstore_create(k->models, &k->model.layout, &k->state, k->slots,
                                   copy ? &k->model.block : NULL, text.bytes, soon(), e);
    buf_free(&text);
    if (status)
        return copy ? blame_store(e) : -1;
    k->created = true;
    return 0;
}

/* The store says what the block's checksum is; needed to find it again in the segment. */
static int learn_state(storage_worker *k, err *e)
{
    modelstore_status *now = malloc(sizeof *now);
    if (!now)
        return err_set(e, ERR_NOMEM, "no memory for the model store's state");
    int status = modelstore_status_get(k->models, soon(), now, e);
    if (status == 0)
        k->state = now->state;
    free(now);
    return status;
}

static int create_from_model(storage_worker *k, err *e)
{
    if (block_checksum(k->model.layout.shape, k->model.block, 1, &k->state.checksum, e))
        return -1;
    note_held(k);
    if (create(k, e))
        return -1;
    if (learn_state(k, e))
        return blame_store(e);
    note_held(k);
    return 0;
}

/* ---- who may write --------------------------------------------------------------------------- */

/* The pod of a lost node may go on there, with a Redis of its own: what the kubeml-ps that followed
 * it has written stays. The record as it stands, NULL where there is none, and its version, to be
 * replaced. */
static int look(storage_worker *k, json_t **record, uint64_t *version, err *e)
{
    err none = ERR_INIT;
    *record = NULL;
    *version = STORE_NEW;
    if (store_get(k->store, HISTORY_COLLECTION, k->job, record, version, &none)) {
        if (none.code != ERR_NOT_FOUND)
            *e = none;
        return none.code == ERR_NOT_FOUND ? 0 : -1;
    }
    json_int_t writer = json_integer_value(json_object_get(*record, "generation"));
    return writer <= k->generation
               ? 0
               : err_set(e, ERR_STALE, "kubeml-ps %lld of this job goes on, this is %d",
                         (long long)writer, k->generation);
}

static int fence(storage_worker *k, uint64_t *version, err *e)
{
    cleanup_json json_t *record = NULL;
    return look(k, &record, version, e);
}

/* Between the look and the write another has written: to be looked at again. */
static bool overtaken(const err *e)
{
    return e->code == ERR_CONFLICT || e->code == ERR_EXISTS || e->code == ERR_NOT_FOUND;
}

/* Replaces what was looked at and nothing else. */
static int put_history(storage_worker *k, json_t *record, err *e)
{
    if (!record)
        return err_set(e, ERR_NOMEM, "no memory for the history");
    json_object_set_new(record, "generation", json_integer(k->generation));
    failpoint("before-history");
    for (int tries = 0;; tries++) {
        err last = ERR_INIT;
        uint64_t version;
        if (fence(k, &version, e))
            return -1;
        if (store_put(k->store, HISTORY_COLLECTION, k->job, record, version, NULL, &last) == 0)
            break;
        if (!overtaken(&last) || tries == HISTORY_TRIES) {
            *e = last;
            return err_wrap(e, "history");
        }
    }
    failpoint("after-history");
    return 0;
}

static bool has_succeeded(const json_t *record)
{
    const char *state = json_string_value(json_object_get(record, "state"));
    return state && strcmp(state, "succeeded") == 0;
}

/* Before anything is read of what the job goes on from, the history bears our number: whoever had
 * the job before may live, and can from now on neither commit nor end it. Leaves the record in
 * *out; NULL: there is none yet. */
static int claim(storage_worker *k, json_t **out, err *e)
{
    for (int tries = 0;; tries++) {
        err last = ERR_INIT;
        uint64_t version;
        json_decref(*out);
        if (look(k, out, &version, e))
            return -1;
        if (!*out || has_succeeded(*out))
            return 0;
        json_object_set_new(*out, "generation", json_integer(k->generation));
        history_set_running(*out);
        if (store_put(k->store, HISTORY_COLLECTION, k->job, *out, version, NULL, &last) == 0)
            return 0;
        if (!overtaken(&last) || tries == HISTORY_TRIES) {
            *e = last;
            return err_wrap(e, "history");
        }
    }
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Goes on from a checkpoint's model, which becomes the keeper's. */
static int take_model(storage_worker *k, task *t, model *found, err *e)
{
    drop_copies(k);
    k->model = *found;
    k->state = (modelstore_state){
        .version = t->info.version, .epoch = t->info.epoch, .round = t->info.round};
    buf_reset(&k->ledger);
    if (create_from_model(k, e))
        return -1;
    t->resumed = true;
    t->version = k->state.version;
    return 0;
}

static int from_checkpoint(storage_worker *k, task *t, int epochs_max, err *e)
{
    model found;
    const modelstore_state before = k->state;
    if (checkpoint_newest(k->store, k->job, epochs_max, t->last, &t->info, &found, e))
        return -1;
    if (take_model(k, t, &found, e) == 0)
        return 0;
    /* Not there yet: whoever tries again is to hear again that it is an older state. */
    k->state = before;
    k->held.version = HELD_NONE;
    return -1;
}

/* Whether the job goes on in the epoch that `open` tells of. A history that has that epoch may have
 * been written before its checkpoint was. */
static int is_open(storage_worker *k, const task *t, const json_t *open, bool *is, err *e)
{
    json_int_t epoch = json_integer_value(json_object_get(open, "epoch"));
    json_int_t epochs = (json_int_t)json_array_size(json_object_get(t->record, "versions"));
    char name[STORE_KEY_BYTES];
    err none = ERR_INIT;
    *is = open && epoch <= epochs &&
          json_integer_value(json_object_get(open, "parallelism")) <= t->parallelism;
    if (!*is || epoch == epochs)
        return 0;
    if (checkpoint_name(name, k->job, (int)epoch + 1, e))
        return -1;
    *is = store_blob_find(k->store, name, NULL, &none) != 0;
    if (!*is || none.code == ERR_NOT_FOUND)
        return 0;
    *e = none;
    return -1;
}

/* A job that was suspended between two merges of an epoch left its model under the number of the
 * kubeml-ps that wrote it, which is not the history's any more. 0 without `*is`: there is none that
 * the history knows, and the newest checkpoint counts. */
static int find_suspended(storage_worker *k, task *t, model *found, bool *is, err *e)
{
    const json_t *open = json_object_get(t->record, "open");
    int writer = (int)json_integer_value(json_object_get(open, "generation"));
    char name[STORE_KEY_BYTES];
    err bad = ERR_INIT;
    if (is_open(k, t, open, is, e))
        return -1;
    if (!*is)
        return 0;
    *is = false;
    if (checkpoint_suspended_name(name, k->job, writer, &bad) ||
        checkpoint_read(k->store, name, &t->info, found, &bad)) {
        if (!checkpoint_is_damaged(bad.code, t->last)) {
            *e = bad;
            return -1;
        }
        log_warn("the suspended model: %s", bad.message);
        return 0;
    }
    *is = t->info.version == json_integer_value(json_object_get(open, "version"));
    if (!*is)
        model_free(found);
    return 0;
}

/* There is no checkpoint that the history knows. One of the epoch after the history's last belongs
 * to a commit that was never acknowledged, and is made again; later ones mean that the history has
 * lost epochs. */
static int begin_anew(storage_worker *k, int epochs, err *e)
{
    bool lost;
    if (checkpoint_beyond(k->store, k->job, epochs + 1, &lost, e))
        return -1;
    if (lost)
        return err_set(e, ERR_CORRUPT,
                       "the history has %d epoch%s, and there are checkpoints of more", epochs,
                       epochs == 1 ? "" : "s");
    if (epochs > 1)
        return err_set(e, ERR_CORRUPT, "the history has %d epochs, but there is no checkpoint",
                       epochs);
    log_warn("no checkpoint yet: the job begins anew");
    return 0;
}

static int resume(storage_worker *k, task *t, err *e)
{
    if (has_succeeded(t->record))
        return 0; /* nothing is left to do but to say so */
    model found;
    if (find_suspended(k, t, &found, &t->open, e))
        return -1;
    if (t->open)
        return take_model(k, t, &found, e);
    err none = ERR_INIT;
    /* A checkpoint that the history does not know belongs to a commit that was never acknowledged.
     */
    int epochs = (int)json_array_size(json_object_get(t->record, "versions"));
    if (from_checkpoint(k, t, epochs, &none) == 0)
        return 0;
    if (none.code == ERR_NOT_FOUND)
        return begin_anew(k, epochs, e);
    *e = none;
    return -1;
}

static int ensure_open(storage_worker *k, err *e)
{
    if (!k->store && !(k->store = store_open(k->locator, e)))
        return err_wrap(e, "store");
    if (!k->models && modelstore_open(&k->access, MODELSTORE_OWNER, soon(), &k->models, e))
        return err_wrap(e, "model store");
    return 0;
}

static int run_open(storage_worker *k, task *t, err *e)
{
    if (t->resume && claim(k, &t->record, e))
        return -1;
    failpoint("opened");
    k->suspended = t->resume;
    return t->resume ? resume(k, t, e) : 0;
}

/* ---- version 0 ------------------------------------------------------------------------------- */

static void forget_model(storage_worker *k)
{
    k->state = (modelstore_state){.version = -1, .epoch = STORAGE_WORKER_INIT_EPOCH, .round = 0};
    k->held.version = HELD_NONE;
    buf_reset(&k->ledger);
}

static int run_create(storage_worker *k, task *t, err *e)
{
    if (k->created)
        return 0;
    if (set_layout(k, t->layout, e))
        return -1;
    forget_model(k);
    if (create(k, e))
        return -1;
    failpoint("created");
    return 0;
}

static int run_load(storage_worker *k, task *t, err *e)
{
    if (set_layout(k, t->layout, e))
        return -1;
    memset(k->model.memory, 0, block_bytes(k->model.layout.shape));
    k->held.version = HELD_NONE;
    if (checkpoint_init(k->store, t->init, NULL, &k->model, e))
        return -1;
    k->state = (modelstore_state){.version = 0, .epoch = 0, .round = 0};
    if (create_from_model(k, e))
        return -1;
    failpoint("created");
    t->version = 0;
    return 0;
}

/* ---- merging --------------------------------------------------------------------------------- */

static bool merged_already(const modelstore_state *now, const modelstore_round *r)
{
    return now->version == r->version + 1 && now->epoch == r->next_epoch &&
           now->round == r->next_round;
}

/* As the model store does: a full one begins anew. */
static int note_ledger(storage_worker *k, const char *element, err *e)
{
    if (modelstore_ledger_full(k->ledger.len, strlen(element))) {
        log_info("a new ledger after %zu bytes", k->ledger.len);
        buf_reset(&k->ledger);
        k->held_ledger = 0;
    }
    if (k->ledger.len && buf_append(&k->ledger, ",", 1, e))
        return -1;
    return buf_append(&k->ledger, element, strlen(element), e);
}

static int merge(storage_worker *k, task *t, const modelstore_round *r, err *e)
{
    modelstore_merged out = {.bad_function = -1};
    t->bad_function = -1;
    if (!merged_already(&k->state, r)) {
        err why = ERR_INIT;
        /* Room for the note before there is something to note: a repeated merge notes nothing any
         * more. */
        size_t more = strlen(r->ledger) + 1;
        if (!modelstore_ledger_full(k->ledger.len, more) && buf_reserve(&k->ledger, more, e))
            return -1;
        if (modelstore_merge(k->models, r, soon(), &out, &why)) {
            t->bad_function = out.bad_function;
            /* The answer to an earlier try was lost on the way: what it did is what we want. */
            if (why.code != ERR_STALE || !merged_already(&out.state, r)) {
                if (e)
                    *e = why;
                return -1;
            }
            t->bad_function = -1;
        }
        k->state = out.state;
        if (note_ledger(k, r->ledger, e))
            return -1;
    }
    t->version = k->state.version;
    return hold(k, e) ? blame_store(e) : 0;
}

/* Over what function 0 has drawn, of which the rest stays. May be done once more after a failure:
 * what was drawn is still there, under the same weights or under none. */
static int lay_weights_over(storage_worker *k, const task *t, err *e)
{
    failpoint("before-weights");
    if (fetch(k, e))
        return blame_store(e);
    k->held.version = HELD_NONE;
    if (checkpoint_init(k->store, t->init, t->without, &k->model, e) || create_from_model(k, e))
        return -1;
    k->half_made = false;
    failpoint("after-weights");
    return 0;
}

static int run_initial(storage_worker *k, task *t, err *e)
{
    const modelstore_part part = {.function = 0, .incarnation = t->incarnation, .samples = 1};
    const modelstore_round r = {.epoch = STORAGE_WORKER_INIT_EPOCH,
                                .round = 0,
                                .version = -1,
                                .next_epoch = 0,
                                .next_round = 0,
                                .rule = merge_rule_default()->name,
                                .parts = &part,
                                .count = 1,
                                .ledger = t->ledger};
    k->half_made = t->without[0] != '\0';
    return merge(k, t, &r, e) || (k->half_made && lay_weights_over(k, t, e)) ? -1 : 0;
}

static size_t parts_of(const task *t, modelstore_part *parts)
{
    if (t->merge.as_one) {
        parts[0] = (modelstore_part){
            .function = 0, .incarnation = t->incarnation, .samples = t->merge.samples};
        return 1;
    }
    for (size_t i = 0; i < t->merge.count; i++)
        parts[i] = (modelstore_part){.function = t->rows[i].function,
                                     .incarnation = t->rows[i].incarnation,
                                     .samples = t->rows[i].samples};
    return t->merge.count;
}

static int run_merge(storage_worker *k, task *t, err *e)
{
    modelstore_part *parts = calloc(t->merge.count + 1, sizeof *parts);
    if (!parts)
        return err_set(e, ERR_NOMEM, "no memory for a merge");
    size_t count = parts_of(t, parts);
    const modelstore_round r = {.epoch = t->merge.epoch,
                                .round = t->merge.round,
                                .version = t->merge.base_version,
                                .next_epoch = t->merge.next_epoch,
                                .next_round = t->merge.next_round,
                                .rule = merge_rule_default()->name,
                                .parts = parts,
                                .count = count,
                                .ledger = t->ledger};
    failpoint("before-merge");
    int status = merge(k, t, &r, e);
    failpoint("after-merge");
    free(parts);
    return status;
}

static int run_room(storage_worker *k, task *t, err *e)
{
    int64_t deadline_ms = clock_deadline_ms(STORAGE_WORKER_ROOM_MS);
    return modelstore_room(k->models, t->slot, t->function + 1, deadline_ms, e);
}

/* ---- checkpoints and history ----------------------------------------------------------------- */

/* Fills in what only the model store knows. */
static int place_in_job(storage_worker *k, checkpoint_info *info, err *e)
{
    if (fetch(k, e))
        return err_wrap(e, "checkpoint");
    memcpy(info->job, k->job, sizeof k->job);
    info->version = k->state.version;
    info->epoch = k->state.epoch;
    info->round = k->state.round;
    return 0;
}

static int prune_suspended(storage_worker *k, int generation, err *e)
{
    if (!k->suspended || checkpoint_prune_suspended(k->store, k->job, generation, e))
        return k->suspended ? -1 : 0;
    k->suspended = generation >= 0;
    return 0;
}

/* What the job ended or was suspended with before it was resumed is older than a checkpoint that it
 * has made since. Where we were stopped for long it may be what the kubeml-ps that goes on in our
 * place has made: the number is looked at once more. */
static int prune_ends(storage_worker *k, err *e)
{
    uint64_t version;
    if (!k->suspended)
        return 0;
    return fence(k, &version, e) || checkpoint_drop_final(k->store, k->job, e) ||
                   prune_suspended(k, -1, e)
               ? -1
               : 0;
}

/* What stands there already is of a try that did not live to say so, or of this job before it was
 * resumed; or, where we were stopped for long, of the kubeml-ps that goes on in our place. */
static int write_model(storage_worker *k, const char *name, checkpoint_info *info, err *e)
{
    err none = ERR_INIT, first = ERR_INIT;
    uint64_t version;
    bool there = store_blob_find(k->store, name, NULL, &none) == 0 || none.code != ERR_NOT_FOUND;
    if (!there && checkpoint_write(k->store, name, info, &k->model, &first) == 0)
        return 0;
    if (!there && first.code != ERR_EXISTS) {
        *e = first;
        return -1;
    }
    return fence(k, &version, e) || checkpoint_replace(k->store, name, info, &k->model, e) ? -1 : 0;
}

static int run_commit(storage_worker *k, task *t, err *e)
{
    char name[STORE_KEY_BYTES];
    /* The history first: on resuming, entries beyond the checkpoint are cut, while a checkpoint
     * without its entries would have lost them. */
    if (put_history(k, t->record, e) || place_in_job(k, &t->info, e) ||
        checkpoint_name(name, k->job, t->info.epochs, e) || write_model(k, name, &t->info, e))
        return -1;
    failpoint("after-checkpoint");
    err old = ERR_INIT;
    if (checkpoint_prune(k->store, k->job, t->info.epochs, CHECKPOINTS_KEPT, &old) ||
        prune_ends(k, &old))
        log_warn("old checkpoints stay: %s", old.message);
    return 0;
}

/* A merge that was not copied yet went with Redis, and nobody was told of it. */
static void back_to_copy(storage_worker *k)
{
    k->state = k->held;
    k->ledger.len = k->held_ledger;
    if (k->ledger.bytes)
        k->ledger.bytes[k->ledger.len] = '\0';
}

/* The version that was last in the model store, or the newest checkpoint. Where there is neither
 * nothing is: the model is made again. */
static int restore(storage_worker *k, task *t, err *e)
{
    err why = ERR_INIT;
    if (create(k, &why) == 0)
        return 0;
    if (why.code == ERR_CORRUPT || why.code == ERR_NOT_FOUND) {
        log_warn("version %lld is gone (%s): back to the newest checkpoint",
                 (long long)k->state.version, why.message);
        err_clear(&why);
        if (from_checkpoint(k, t, REQUEST_EPOCHS_MAX, &why) == 0)
            return 0;
    }
    if (why.code != ERR_NOT_FOUND) {
        *e = why;
        return -1;
    }
    log_warn("%s: back to the beginning", why.message);
    forget_model(k);
    return create(k, e);
}

static int run_restore(storage_worker *k, task *t, err *e)
{
    k->created = false;
    if (!shared(k) && k->held.version >= 0)
        back_to_copy(k);
    if (k->half_made) /* what was drawn alone is no version */
        forget_model(k);
    if (k->model.memory && restore(k, t, e)) /* else it was never filled */
        return -1;
    t->version = k->state.version;
    return 0;
}

/* Where the job goes on in the middle of an epoch it does so from a blob that is never written
 * again: the one before stays until the history speaks of this one. */
static int keep_models(storage_worker *k, task *t, err *e)
{
    char name[STORE_KEY_BYTES];
    if (place_in_job(k, &t->info, e))
        return -1;
    json_t *open = json_object_get(t->record, "open");
    if (open && !json_object_get(open, "generation")) { /* else it was resumed with it */
        k->suspended = true;
        if (json_object_set_new(open, "generation", json_integer(k->generation)))
            return err_set(e, ERR_NOMEM, "no memory for the history");
        if (checkpoint_suspended_name(name, k->job, k->generation, e) ||
            write_model(k, name, &t->info, e))
            return -1;
    }
    return checkpoint_final_name(name, k->job, e) || write_model(k, name, &t->info, e) ? -1 : 0;
}

static int run_finish(storage_worker *k, task *t, err *e)
{
    uint64_t version;
    failpoint("before-final");
    if (fence(k, &version, e))
        return -1;
    if (t->keep_model && k->state.version >= 0 && !k->half_made && keep_models(k, t, e))
        return -1;
    failpoint("after-final");
    json_object_set_new(t->record, "sha256", json_string(t->info.sha256));
    if (put_history(k, t->record, e))
        return -1;
    bool complete = strcmp(t->info.state, "succeeded") == 0;
    const json_t *writer = json_object_get(json_object_get(t->record, "open"), "generation");
    err old = ERR_INIT;
    if ((complete && checkpoint_prune(k->store, k->job, REQUEST_EPOCHS_MAX, 0, &old)) ||
        prune_suspended(k, writer ? (int)json_integer_value(writer) : -1, &old))
        log_warn("old checkpoints stay: %s", old.message);
    failpoint("finished");
    return 0;
}

static void task_run(work *w)
{
    static int (*const runs[])(storage_worker *, task *, err *) = {
        [TASK_OPEN] = run_open,       [TASK_CREATE] = run_create,   [TASK_LOAD] = run_load,
        [TASK_INITIAL] = run_initial, [TASK_MERGE] = run_merge,     [TASK_ROOM] = run_room,
        [TASK_COMMIT] = run_commit,   [TASK_RESTORE] = run_restore, [TASK_FINISH] = run_finish};
    task *t = (task *)w;
    log_context(t->job[0] ? t->job : t->storage_worker->job, t->merge.count ? t->merge.epoch : -1,
                t->merge.count ? t->merge.round : -1);
    err_clear(&t->e);
    if (t->kind == TASK_OPEN) {
        t->storage_worker->access = t->access;
        memcpy(t->storage_worker->job, t->job, sizeof t->job);
        memcpy(t->storage_worker->locator, t->store, sizeof t->store);
        t->storage_worker->generation = t->generation;
    }
    t->status =
        ensure_open(t->storage_worker, &t->e) ? -1 : runs[t->kind](t->storage_worker, t, &t->e);
    if (t->status)
        log_warn("%s failed: %s", task_name(t->kind), t->e.message);
}

task *task_new(storage_worker *k, task_kind kind)
{
    task *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->work.run = task_run;
    t->kind = kind;
    t->storage_worker = k;
    t->bad_function = -1;
    return t;
}
