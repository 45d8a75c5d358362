/* job_context.c: what the controller has of a job beside the machine: its context, its record, and
 * how the API shows it.
 *
 * A record of collection `jobs`: {"job": <job_record of job.h>, "function", "dataset", "secret",
 * "user"?, "plan"?, "start_ms", "last": <the last epoch>, "sha256", "store"?}. The secret and the
 * locators ("store" and the dataset's) leave the store only in frames to the job's own pods. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/hash64.h"
#include "common/base/json_read.h"
#include "common/base/json_time.h"
#include "common/base/log.h"
#include "common/dataset/dataset.h"
#include "controller/functions/code_shape_check.h"
#include "controller/functions/build_failure.h"
#include "controller/functions/registry.h"
#include "controller/functions/zoo_list.h"
#include "controller/ha/store_watch.h"
#include "job_manager_internal.h"

/* ---- contexts -------------------------------------------------------------------------------- */

/* The link to a job's context, or the link at which it would be. */
static job_context **link_of(job_manager *o, const char *id)
{
    job_context **at = &o->job_context_by_id[hash64(id, strlen(id)) % JOB_CONTEXT_HASHES];
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next_of_hash;
    return at;
}

job_context *job_context_find(job_manager *o, const char *id)
{
    return *link_of(o, id);
}

job_context *job_context_new(job_manager *o, const char *id)
{
    job_context *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    snprintf(s->id, sizeof s->id, "%s", id);
    job_manager_random_hex(s->secret, sizeof s->secret);
    s->epochs = json_array();
    s->times.submitted = clock_monotonic_ms();
    s->next = o->contexts;
    o->contexts = s;
    job_context **at = link_of(o, id);
    s->next_of_hash = *at;
    *at = s;
    return s;
}

void job_context_drop(job_manager *o, const char *id)
{
    job_context **link = link_of(o, id), **at = &o->contexts, *s = *link;
    if (!s)
        return;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    *link = s->next_of_hash;
    json_decref(s->function);
    json_decref(s->dataset);
    json_decref(s->info);
    json_decref(s->access);
    json_decref(s->epochs);
    json_decref(s->usage);
    json_decref(s->plan);
    json_decref(s->start_ms);
    blob_close(s->object);
    explicit_bzero(s->secret, sizeof s->secret);
    explicit_bzero(s->locator, sizeof s->locator);
    free(s);
}

static json_t *dataset_message(const dataset_info *d, err *e)
{
    json_t *out = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "name", d->name, "digest",
                            d->digest, "train_samples", (json_int_t)d->samples[DATASET_TRAIN],
                            "train_chunks", (json_int_t)d->chunks[DATASET_TRAIN], "test_samples",
                            (json_int_t)d->samples[DATASET_TEST], "test_chunks",
                            (json_int_t)d->chunks[DATASET_TEST], "chunk_samples",
                            (json_int_t)d->chunk_samples, "targets", (json_int_t)d->targets);
    if (!out)
        err_set(e, ERR_NOMEM, "no memory for the job");
    return out;
}

/* Refuses an accuracy goal for a dataset of targets, on which a job has no accuracy. A request
 * without a goal has 100. */
static int check_goal(const dataset_info *d, const request *r, err *e)
{
    if (d->classes || r->goal_accuracy >= 100)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "options.goal_accuracy: %g %% is never reached: dataset %s has targets and no "
                   "classes, and a job on it no accuracy",
                   r->goal_accuracy, d->name);
}

int job_context_resolve(job_manager *o, job_context *s, const request *r, err *e)
{
    cleanup_json json_t *record = NULL;
    if (registry_get(o->controller, r->function_name, &record, e)) {
        if (e->code == ERR_NOT_FOUND)
            build_failure_tell(o->controller->store, r->function_name, e);
        return -1;
    }
    s->function = json_object();
    static const char *const kept[] = {"name", "version", "digest", "object"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        json_object_set(s->function, kept[i], json_object_get(record, kept[i]));
    dataset_info info;
    if (dataset_find(o->controller->store, r->dataset, &info, NULL, e))
        return -1;
    int rc = check_goal(&info, r, e);
    s->dataset = rc == 0 ? dataset_message(&info, e) : NULL;
    s->info = dataset_info_json(&info);
    dataset_info_free(&info);
    return s->dataset ? 0 : -1;
}

/* A missing function or dataset is no error here: job_context_resolve reports it. */
int job_context_shape_check(const job_manager *o, const request *r, err *e)
{
    cleanup_json json_t *function = NULL;
    dataset_info info;
    err why = ERR_INIT;
    if (!store_watch_writable(o->controller->watch, &why) ||
        registry_get(o->controller, r->function_name, &function, &why))
        return 0;
    const char *object = json_string_value(json_object_get(function, "object"));
    if (!object || dataset_find(o->controller->store, r->dataset, &info, NULL, &why))
        return 0;
    int rc = strncmp(object, "zoo:", 4) == 0 ? zoo_shape_check(o->controller, object + 4, &info, e)
                                             : code_shape_check(o->controller, function, &info, e);
    dataset_info_free(&info);
    return rc;
}

int job_context_open_object(job_manager *o, job_context *s, err *e)
{
    const char *object = json_string_value(json_object_get(s->function, "object"));
    if (s->object || !object || strncmp(object, "zoo:", 4) == 0)
        return 0;
    if (store_blob_open(o->controller->store, object, &s->object, e))
        return -1;
    return blob_path(s->object, s->object_path, e);
}

static int number_of(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

void job_context_tell_chunks(job_manager *o, const job_context *s)
{
    jobs_chunks(o->machine, s->id, number_of(s->dataset, "train_chunks"));
}

json_t *job_context_note(const json_t *data, const json_t *asked)
{
    const json_t *options = json_object_get(asked, "options");
    const char *name = json_string_value(json_object_get(asked, "dataset"));
    int functions = number_of(options, "default_parallelism"),
        chunks = number_of(data, "train_chunks");
    char what[64];
    if (chunks == 0 || functions <= chunks)
        return json_null();
    if (json_is_true(json_object_get(options, "static_parallelism")))
        snprintf(what, sizeof what, "%d of the %d functions train nothing", functions - chunks,
                 functions);
    else
        snprintf(what, sizeof what, "the job has no more than %d function%s", chunks,
                 chunks == 1 ? "" : "s");
    return json_sprintf("dataset \"%s\" has %d chunk%s of %d samples, and each is trained by one "
                        "function: %s",
                        name ? name : "", chunks, chunks == 1 ? "" : "s",
                        number_of(data, "chunk_samples"), what);
}

/* ---- its pods' access to the store ----------------------------------------------------------- */

static int make_locators(store *st, job_context *s, err *e)
{
    char data[STORE_LOCATOR_BYTES];
    const char *upload = json_string_value(json_object_get(s->info, "upload"));
    if (!upload)
        return err_set(e, ERR_CORRUPT, "the record of job %s names no dataset", s->id);
    if (store_chunks_locator(st, upload, data, e))
        return -1;
    if (store_locator(st, STORE_USE_JOB, s->locator, e)) {
        s->locator[0] = '\0';
        store_revoke(st, data, NULL); /* a user that stays is revoked at the next start */
        return -1;
    }
    json_object_set_new(s->dataset, "locator", json_string(data));
    explicit_bzero(data, sizeof data);
    return 0;
}

static bool is_open_to_all(const char *locator)
{
    return strncmp(locator, "mongodb", 7) == 0 && !store_locator_has_user(locator);
}

int job_context_access(job_manager *o, job_context *s, const job *j, err *e)
{
    if (s->locator[0] && json_object_get(s->dataset, "locator"))
        return 0;
    if (make_locators(o->controller->store, s, e))
        return err_wrap(e, "access to the store");
    jobs_save(o, j);
    log_context(s->id, -1, -1);
    if (is_open_to_all(s->locator))
        log_warn(
            "the store has no users: whoever reaches it reads and writes all of it, this job's pods too");
    else if (store_locator_has_user(s->locator))
        log_info("its pods have users of their own in the store");
    log_context(NULL, -1, -1);
    return 0;
}

void job_context_revoke(job_manager *o, job_context *s)
{
    const char *data = json_string_value(json_object_get(s->dataset, "locator"));
    err e = ERR_INIT;
    bool up =
        store_watch_up(o->controller->watch, NULL); /* else job_manager_store_back revokes them */
    if ((up && data && store_revoke(o->controller->store, data, &e)) ||
        (up && s->locator[0] && store_revoke(o->controller->store, s->locator, &e)))
        log_warn("job %s: its users stay in the store for now: %s", s->id, e.message);
    s->locator[0] = '\0';
    json_object_del(s->dataset, "locator");
}

void job_context_revoke_others(job_manager *o)
{
    size_t count = 0, revoked = 0;
    err e = ERR_INIT;
    for (const job_context *s = o->contexts; s; s = s->next)
        count += 2;
    const char **kept = calloc(count + 1, sizeof *kept);
    if (!kept)
        return;
    count = 0;
    for (const job_context *s = o->contexts; s; s = s->next) {
        const char *data = json_string_value(json_object_get(s->dataset, "locator"));
        kept[count++] = data ? data : "";
        kept[count++] = s->locator;
    }
    if (store_revoke_others(o->controller->store, kept, count, &revoked, &e))
        log_warn("users of jobs that ended may be left in the store: %s", e.message);
    else if (revoked)
        log_info("shut out %zu users of jobs that are no more", revoked);
    free(kept);
}

/* ---- records --------------------------------------------------------------------------------- */

bool jobs_record_state(const json_t *record, job_state *out)
{
    const char *name = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    return name && job_state_from_name(name, out);
}

bool jobs_record_ended(const json_t *record)
{
    job_state state;
    return jobs_record_state(record, &state) && state >= JOB_SUCCEEDED;
}

static void set_since(json_t *out, const char *key, int64_t from, int64_t to)
{
    json_object_set_new(out, key, from && to >= from ? json_integer(to - from) : json_null());
}

/* Where the time from the request to the first training step went. */
static json_t *start_json(const job_times *t)
{
    json_t *out = json_object();
    set_since(out, "queued", t->submitted, t->granted);
    set_since(out, "ps", t->granted, t->ps);
    set_since(out, "functions", t->ps, t->functions);
    set_since(out, "training", t->functions, t->training);
    set_since(out, "total", t->submitted, t->training);
    return out;
}

/* The names of the functions' GPUs. job_record has their numbers, which may change when the
 * controller restarts. */
static json_t *gpu_names(const job_manager *o, const job *j)
{
    json_t *list = j->gpu_functions && !o->gpus_elsewhere ? json_array() : NULL;
    for (int f = 0; list && f < j->gpu_functions; f++)
        json_array_append_new(list, json_string(job_gpu(j, f) < 0 ? "" : o->gpu[job_gpu(j, f)].id));
    return list;
}

static int find_gpu(const job_manager *o, const char *name)
{
    for (int i = 0; i < o->gpus; i++)
        if (strcmp(o->gpu[i].id, name) == 0)
            return i;
    return -1;
}

void job_context_find_gpus(const job_manager *o, json_t *record)
{
    json_t *inner = json_object_get(record, "job"), *name;
    json_t *numbers = json_object_get(inner, "gpus");
    size_t f;
    if (o->gpus_elsewhere)
        return;
    json_array_foreach (json_object_get(record, "gpu_names"), f, name) {
        const char *text = json_string_value(name);
        int at = text ? find_gpu(o, text) : -1;
        if (text && *text && at < 0)
            log_warn(
                "job %s: function %d was on GPU %s, which is not there now: it is booked nowhere",
                text_of(inner, "id"), (int)f, text);
        json_array_set_new(numbers, f, json_integer(at + 1));
    }
}

json_t *job_context_record(const job_manager *o, const job_context *s, const job *j)
{
    size_t epochs = json_array_size(s->epochs);
    json_t *last = epochs ? json_array_get(s->epochs, epochs - 1) : NULL;
    return json_pack("{s:o, s:O, s:O, s:O*, s:s, s:s*, s:O*, s:o, s:O*, s:s, s:s*, s:s*, s:o*}",
                     "job", job_record(j), "function", s->function, "dataset", s->dataset,
                     "dataset_info", s->info, "secret", s->secret, "user",
                     s->user[0] ? s->user : NULL, "plan", s->plan, "start_ms",
                     s->start_ms ? json_incref(s->start_ms) : start_json(&s->times), "last", last,
                     "sha256", s->sha256, "store", s->locator[0] ? s->locator : NULL, "averaging",
                     s->averaging[0] ? s->averaging : NULL, "gpu_names", gpu_names(o, j));
}

/* The epochs a job has done, from its history. */
json_t *epochs_of_history(store *st, const char *id)
{
    static const char *const keys[][2] = {{"train_loss", "train_loss"},
                                          {"validation_loss", "validation_loss"},
                                          {"accuracy", "accuracy"},
                                          {"parallelism", "parallelism"},
                                          {"seconds", "epoch_duration"}};
    cleanup_json json_t *history = NULL;
    json_t *out = json_array();
    if (store_get(st, "history", id, &history, NULL, NULL))
        return out;
    const json_t *data = json_object_get(history, "data");
    size_t count = json_array_size(json_object_get(data, "train_loss"));
    for (size_t i = 0; i < count; i++) {
        json_t *epoch = json_pack("{s:I}", "epoch", (json_int_t)i + 1);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *value = json_array_get(json_object_get(data, keys[k][1]), i);
            json_object_set(epoch, keys[k][0], value ? value : json_null());
        }
        json_array_append_new(out, epoch);
    }
    return out;
}

void job_context_show(job_manager *o, const job_context *s, size_t from)
{
    controller_metrics *m = &o->controller->metrics;
    const struct {
        metric *gauge;
        const char *key;
    } shown[] = {{m->train_loss, "train_loss"},
                 {m->validation_loss, "validation_loss"},
                 {m->accuracy, "accuracy"},
                 {m->parallelism, "parallelism"},
                 {m->epoch_seconds, "seconds"}};
    for (size_t k = 0; k < sizeof shown / sizeof *shown; k++) {
        const json_t *value = NULL;
        for (size_t i = json_array_size(s->epochs); i > from && !json_is_number(value); i--)
            value = json_object_get(json_array_get(s->epochs, i - 1), shown[k].key);
        if (json_is_number(value))
            metric_set(shown[k].gauge, json_number_value(value), s->id, NULL, NULL);
    }
}

/* The version of a record before it is replaced: a later version is another leader's. */
static uint64_t version_now(const job_manager *o, const char *id)
{
    cleanup_json json_t *record = NULL;
    uint64_t version;
    err why = ERR_INIT;
    if (store_get(o->controller->store, "jobs", id, &record, &version, &why) == 0)
        return version;
    return why.code == ERR_NOT_FOUND ? STORE_NEW : STORE_ANY;
}

int job_context_restore(job_manager *o, const json_t *record, job_context **out, err *e)
{
    const json_t *inner = json_object_get(record, "job");
    const char *id = json_string_value(json_object_get(inner, "id"));
    const char *secret = json_string_value(json_object_get(record, "secret"));
    json_t *function = json_object_get(record, "function"),
           *data = json_object_get(record, "dataset");
    if (!id || !secret || !json_is_object(function) || !json_is_object(data))
        return err_set(e, ERR_CORRUPT, "the record has no id, secret, function or dataset");
    job_context *s = job_context_new(o, id);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the job");
    const char *locator = json_string_value(json_object_get(record, "store"));
    const char *user = json_string_value(json_object_get(record, "user"));
    const char *averaging = json_string_value(json_object_get(record, "averaging"));
    snprintf(s->averaging, sizeof s->averaging, "%s", averaging ? averaging : "");
    snprintf(s->secret, sizeof s->secret, "%s", secret);
    snprintf(s->sha256, sizeof s->sha256, "%s", text_of(record, "sha256"));
    snprintf(s->user, sizeof s->user, "%s", user ? user : "");
    snprintf(s->locator, sizeof s->locator, "%s", locator ? locator : "");
    s->function = json_incref(function);
    s->dataset = json_incref(data);
    s->info = json_incref(json_object_get(record, "dataset_info"));
    s->plan = json_incref(json_object_get(record, "plan"));
    s->start_ms = json_incref(json_object_get(record, "start_ms"));
    json_decref(s->epochs);
    s->epochs = epochs_of_history(o->controller->store, id);
    s->version = version_now(o, id);
    *out = s;
    return 0;
}

void job_ending_set(const job_ending *ending, json_t *out)
{
    json_object_set_new(out, "state", json_string(job_state_name(ending->state)));
    json_object_set_new(out, "reason", json_string(ending->reason));
    json_object_set_new(out, "message", json_string(ending->message));
}

/* Whether a history already has this end. A succeeded job stays one: it has no checkpoint to
 * continue from. */
static bool says_so(const json_t *history, const job_ending *ending)
{
    const char *state = json_string_value(json_object_get(history, "state")),
               *reason = json_string_value(json_object_get(history, "reason"));
    if (state && strcmp(state, job_state_name(JOB_SUCCEEDED)) == 0)
        return true;
    return state && strcmp(state, job_state_name(ending->state)) == 0 && reason &&
           strcmp(reason, ending->reason) == 0;
}

/* Writes the end into the history. 0 also where the history has it already, or there is no
 * history. */
static int put_ending(job_manager *o, const char *id, const job_ending *ending, err *e)
{
    store *st = o->controller->store;
    cleanup_json json_t *history = NULL;
    uint64_t version;
    err why = ERR_INIT;
    job_manager_hold_if_fenced(o);
    if (store_get(st, "history", id, &history, &version, &why))
        return why.code == ERR_NOT_FOUND ? 0 : err_set(e, why.code, "%s", why.message);
    if (says_so(history, ending))
        return 0;
    job_ending_set(ending, history);
    return store_put(st, "history", id, history, version, NULL, e);
}

/* Keeps an end that the store did not take, where the cause may pass, as a full disk does. */
void history_end(job_manager *o, const char *id, const job_ending *ending)
{
    err why = ERR_INIT;
    bool tried = store_watch_writable(o->controller->watch, &why);
    if (tried && put_ending(o, id, ending, &why) == 0) {
        json_object_del(o->unrecorded_ends, id);
        return;
    }
    if (!json_object_get(o->unrecorded_ends, id))
        log_warn("the history of job %s does not say how it ended: %s", id, why.message);
    if (!err_retry_may_help(why.code) && why.code != ERR_IO) {
        json_object_del(o->unrecorded_ends, id);
        return;
    }
    json_t *kept = json_object();
    job_ending_set(ending, kept);
    json_object_set_new(o->unrecorded_ends, id, kept);
    if (tried)
        o->unrecorded_why = why;
}

void history_try_again(job_manager *o)
{
    if (o->unrecorded_why.code != ERR_NONE)
        store_watch_failed(o->controller->watch, &o->unrecorded_why);
    err_clear(&o->unrecorded_why);
}

/* Before the records: a controller that is killed in between finds in the history how a job ended.
 * Drops the end of a job that runs again, which will write its own. */
static void record_ends(job_manager *o)
{
    const char *id;
    json_t *kept;
    void *next;
    json_object_foreach_safe (o->unrecorded_ends, next, id, kept) {
        char name[JOB_ID_BYTES];
        cleanup_json json_t *own = json_incref(kept);
        job_state state;
        const job *j = jobs_find(o->machine, id);
        snprintf(name, sizeof name, "%s", id); /* the entry frees its key */
        if ((j && !job_ended(j)) || !job_state_from_name(text_of(own, "state"), &state))
            json_object_del(o->unrecorded_ends, name);
        else
            history_end(o, name,
                        &(job_ending){state, text_of(own, "reason"), text_of(own, "message")});
    }
}

/* Whether the store refuses this record and always will. Any other cause may pass, as a full disk
 * does. */
static bool is_refused(const err *e)
{
    return e->code == ERR_INVALID || e->code == ERR_LIMIT;
}

/* Keeps a record that could not be written; the watch has it tried again every second. The failure
 * is reported after the record is kept, since the store may be back at once. */
static void keep_record(job_manager *o, const char *id, const json_t *record, const err *failed)
{
    json_t *copy = json_deep_copy(record);
    if (copy)
        json_object_set_new(o->unsaved, id, copy);
    if (failed)
        store_watch_failed(o->controller->watch, failed);
}

/* Writes a record if it still has the version that this controller wrote or read last: a write that
 * waits until the lease is over must not undo what the next leader has written. Where the version
 * differs, first waits for the lease, since the other version may be another leader's. With the
 * lease it is our own write, the answer to which was lost. */
static int put_record(job_manager *o, const char *id, const json_t *record, err *e)
{
    store *st = o->controller->store;
    job_context *s = job_context_find(o, id);
    uint64_t expected = s ? s->version : version_now(o, id), version = STORE_ANY;
    err why = ERR_INIT;
    job_manager_hold_if_fenced(o);
    failpoint(s ? "controller.put-record" : "controller.put-ended");
    int status = store_put(st, "jobs", id, record, expected, &version, &why);
    if (status &&
        (why.code == ERR_CONFLICT || why.code == ERR_EXISTS || why.code == ERR_NOT_FOUND)) {
        job_manager_hold_if_fenced(o);
        why = (err)ERR_INIT;
        status = store_put(st, "jobs", id, record, STORE_ANY, &version, &why);
    }
    if (status)
        return err_set(e, why.code, "%s", why.message);
    if (s)
        s->version = version;
    return 0;
}

/* Writes a record. A record that cannot be written, also an ended job's, is kept until the store is
 * back, the newest of each job; the failure is logged once. */
void jobs_save_record(job_manager *o, const char *id, json_t *record)
{
    err e = ERR_INIT;
    failpoint("controller.save-record");
    held_note(o, id, json_object_get(record, "job"));
    bool tried = store_watch_writable(o->controller->watch, &e);
    if (tried && put_record(o, id, record, &e) == 0) {
        json_object_del(o->unsaved, id);
        return;
    }
    if (!json_object_get(o->unsaved, id))
        log_error("the record of job %s cannot be written: %s", id, e.message);
    if (!is_refused(&e))
        keep_record(o, id, record, tried ? &e : NULL);
}

int jobs_save_new(job_manager *o, const job *j, err *e)
{
    const job_context *s = job_context_find(o, j->id);
    cleanup_json json_t *record = s ? job_context_record(o, s, j) : NULL;
    err why = ERR_INIT;
    if (!record)
        return err_set(e, ERR_NOMEM, "no memory for the record of job %s", j->id);
    if (!store_watch_writable(o->controller->watch, e))
        return -1;
    if (put_record(o, j->id, record, &why) == 0)
        return 0;
    /* An unreachable database may have taken it all the same; records on this host were not
     * written. */
    if (why.code == ERR_UNAVAILABLE && store_watch_is_far(o->controller->watch)) {
        keep_record(o, j->id, record, &why);
        return 0;
    }
    if (!is_refused(&why))
        store_watch_failed(o->controller->watch, &why);
    return err_set(e, is_refused(&why) ? why.code : ERR_UNAVAILABLE,
                   "the record of the job cannot be written: %s", why.message);
}

void jobs_save(job_manager *o, const job *j)
{
    job_context *s = job_context_find(o, j->id);
    cleanup_json json_t *record = s ? job_context_record(o, s, j) : NULL;
    if (record)
        jobs_save_record(o, j->id, record);
    else
        log_error("no memory for the record of job %s", j->id);
}

void jobs_save_unsaved(job_manager *o)
{
    const char *id;
    json_t *record;
    void *next;
    record_ends(o);
    json_object_foreach_safe (o->unsaved, next, id, record) {
        char name[JOB_ID_BYTES];
        cleanup_json json_t *own = json_incref(record);
        snprintf(name, sizeof name, "%s", id); /* the entry frees its key */
        jobs_save_record(o, name, own);
    }
    history_try_again(o);
}

/* ---- as the API shows it --------------------------------------------------------------------- */

static void copy_field(json_t *to, const char *key, const json_t *from, const char *from_key)
{
    json_t *value = json_object_get(from, from_key);
    json_object_set(to, key, value ? value : json_null());
}

static json_t *conditions_json(const json_t *conditions)
{
    json_t *out = json_array(), *c;
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)conditions, i, c) {
        json_t *shown = json_object();
        copy_field(shown, "type", c, "type");
        const json_t *status = json_object_get(c, "status");
        json_object_set_new(shown, "status",
                            json_string(json_is_string(status) ? json_string_value(status)
                                        : json_is_true(status) ? "True"
                                                               : "False"));
        copy_field(shown, "reason", c, "reason");
        copy_field(shown, "message", c, "message");
        json_set_time(shown, "lastTransitionTime",
                      json_integer_value(json_object_get(c, "since_ms")));
        json_array_append_new(out, shown);
    }
    return out;
}

/* What clients of the first KubeML read of a task beside its request. */
static json_t *first_job(const json_t *inner, const json_t *epoch)
{
    const json_t *seconds = json_object_get(epoch, "seconds");
    return json_pack("{s:O, s:{s:I, s:f}}", "id", json_object_get(inner, "id"), "state",
                     "parallelism", json_integer_value(json_object_get(inner, "parallelism")),
                     "elapsed_time", json_number_value(seconds));
}

json_t *jobs_task_json(const json_t *record)
{
    static const char *const plain[] = {"id", "state", "reason", "message", "request"};
    static const char *const last[] = {"train_loss", "validation_loss", "accuracy"};
    const json_t *inner = json_object_get(record, "job"), *epoch = json_object_get(record, "last");
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        copy_field(out, plain[i], inner, plain[i]);
    json_object_set_new(out, "job", first_job(inner, epoch));
    copy_field(out, "user", record, "user");
    copy_field(out, "averaging", record, "averaging");
    json_object_set_new(
        out, "note",
        job_context_note(json_object_get(record, "dataset"), json_object_get(inner, "request")));
    copy_field(out, "epoch", inner, "epochs");
    copy_field(out, "parallelism", inner, "parallelism");
    json_object_set_new(out, "retries",
                        json_integer(json_integer_value(json_object_get(inner, "retries"))));
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        copy_field(out, last[i], epoch, last[i]);
    json_object_set_new(out, "conditions", conditions_json(json_object_get(inner, "conditions")));
    json_set_time(out, "created", json_integer_value(json_object_get(inner, "created_ms")));
    json_set_time(out, "started", json_integer_value(json_object_get(inner, "started_ms")));
    json_set_time(out, "finished", json_integer_value(json_object_get(inner, "finished_ms")));
    const json_t *function = json_object_get(record, "function");
    json_object_set_new(out, "function_version", json_incref(json_object_get(function, "version")));
    copy_field(out, "function_digest", function, "digest");
    copy_field(out, "dataset_digest", json_object_get(record, "dataset"), "digest");
    copy_field(out, "start_ms", record, "start_ms");
    copy_field(out, "sha256", record, "sha256");
    json_object_set_new(out, "gpus", json_array());
    return out;
}

/* The names of the GPUs on which functions are placed. */
static json_t *gpus_json(const job_manager *o, const job *j)
{
    json_t *list = json_array();
    for (int f = 0; f < j->parallelism; f++)
        if (job_gpu(j, f) >= 0)
            json_array_append_new(list, json_string(o->gpu[job_gpu(j, f)].id));
    return list;
}

/* Explains a job. A store that is away is the reason of a job whose functions fetch data, long
 * before its kubeml-ps has something to write. */
static void explain(job_manager *o, jobs_look *look, const job *j, job_reason *out)
{
    err away = ERR_INIT;
    jobs_explain_in(look, j, out);
    if (job_ended(j) || j->verdict || strcmp(out->reason, "RedisGone") == 0 ||
        store_watch_up(o->controller->watch, &away))
        return;
    snprintf(out->reason, sizeof out->reason, "StoreDown");
    snprintf(out->message, sizeof out->message, "%s", away.message);
}

jobs_look job_manager_look(const job_manager *o)
{
    return (jobs_look){.machine = o->machine, .now_ms = clock_monotonic_ms()};
}

/* A live job, with its one dominant reason where its state has none. */
json_t *jobs_live_json(job_manager *o, jobs_look *look, const job *j)
{
    job_context *s = job_context_find(o, j->id);
    cleanup_json json_t *record = s ? job_context_record(o, s, j) : NULL;
    if (!record)
        return NULL;
    json_t *out = jobs_task_json(record);
    job_reason why;
    explain(o, look, j, &why);
    json_object_set_new(out, "reason", json_string(why.reason));
    json_object_set_new(out, "message", json_string(why.message));
    json_object_set_new(out, "gpus", gpus_json(o, j));
    json_object_set_new(out, "phase",
                        j->phase[0] && !job_ended(j) ? json_string(j->phase) : json_null());
    /* It goes to other threads, so it must share nothing with the job manager's objects. */
    json_t *own = json_deep_copy(out);
    json_decref(out);
    return own;
}
