/* job_actions.c: what the round machine decides, carried out: frames, tasks and the epoch's books.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "ps_job_internal.h"

static json_t *ledger_part(const round_row *row)
{
    return json_pack("{s:i,s:i,s:I,s:I,s:I}", "function", row->function, "incarnation",
                     row->incarnation, "samples", (json_int_t)row->samples, "sample_begin",
                     (json_int_t)row->sample_begin, "sample_end", (json_int_t)row->sample_end);
}

static char *ledger_text(const round_merge *merge)
{
    json_t *parts = json_array();
    for (size_t i = 0; i < merge->count; i++)
        json_array_append_new(parts, ledger_part(&merge->rows[i]));
    json_t *element = json_pack("{s:i,s:i,s:I,s:o}", "epoch", merge->epoch, "round", merge->round,
                                "version", (json_int_t)merge->base_version + 1, "parts", parts);
    char *text = json_dumps(element, JSON_COMPACT);
    json_decref(element);
    return text;
}

/* ---- actions that are frames ----------------------------------------------------------------- */

json_t *job_access_message(const job *j)
{
    return json_pack("{s:s,s:s,s:o}", "type", "access", "address", j->host.address, "model",
                     modelstore_access_json(&j->member));
}

/* To all controllers, or to the one that has just attached. */
static void tell(job *j, conn *only, json_t *message)
{
    if (only)
        connections_send(j->host.connections, only, message);
    else
        connections_tell(j->host.connections, message);
}

void job_tell_epoch(job *j, conn *c, int epoch)
{
    epoch_result r;
    if (history_at(j->record.history, epoch, &r))
        return;
    json_t *m =
        json_pack("{s:s,s:i,s:f,s:i,s:f,s:I,s:I}", "type", "epoch", "epoch", epoch, "train_loss",
                  r.train_loss, "parallelism", r.parallelism, "seconds", r.seconds, "version",
                  (json_int_t)r.version, "samples", (json_int_t)r.samples);
    if (r.validated) {
        json_object_set_new(m, "validation_loss", json_real(r.validation_loss));
        if (!isnan(r.accuracy))
            json_object_set_new(m, "accuracy", json_real(r.accuracy));
    }
    json_object_set_new(m, "stages",
                        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "fetch", r.fetch_s, "load",
                                  r.load_s, "convert", r.convert_s, "train", r.train_s, "publish",
                                  r.publish_s, "merge", r.merge_s, "validate", r.validate_s,
                                  "checkpoint", r.checkpoint_s));
    tell(j, c, m);
}

/* For who reads the job's log, and nothing else. */
static void log_epoch(const job *j, int epoch)
{
    char loss[48] = "", accuracy[32] = "";
    epoch_result r;
    if (history_at(j->record.history, epoch, &r))
        return;
    if (r.validated)
        snprintf(loss, sizeof loss, ", validation loss %.4g", r.validation_loss);
    if (r.validated && !isnan(r.accuracy))
        snprintf(accuracy, sizeof accuracy, ", accuracy %.2f %%", r.accuracy);
    log_info("epoch %d of %d: train loss %.4g%s%s, %.2f s, %d function%s", epoch + 1,
             j->spec.request.epochs, r.train_loss, loss, accuracy, r.seconds, r.parallelism,
             r.parallelism == 1 ? "" : "s");
}

void job_reply_refused(job *j, conn *c, err_code code, const char *message)
{
    connections_send(
        j->host.connections, c,
        json_pack("{s:s,s:s,s:s}", "type", "refused", "code", err_name(code), "message", message));
    job_drop(j, c);
    if (j->asker == c)
        j->asker = NULL;
}

static conn *member_conn(job *j, const round_action *a)
{
    conn *c = connections_function(j->host.connections, a->function);
    return c && c->incarnation == a->incarnation ? c : NULL;
}

static void send_to(job *j, const round_action *a, json_t *message)
{
    conn *c = member_conn(j, a);
    if (c)
        connections_send(j->host.connections, c, message);
    else
        json_decref(message);
}

static void welcome(job *j, const round_action *a)
{
    conn *c = j->current, *before = connections_function(j->host.connections, a->function);
    if (!c)
        return;
    if (before && before != c)
        job_drop(j, before);
    connections_admit(j->host.connections, c, CONN_FUNCTION);
    job_average_before(j, (averaging_event){.type = AVERAGING_WELCOME,
                                            .function = a->function,
                                            .incarnation = a->incarnation,
                                            .slot = a->slot});
    connections_send(j->host.connections, c, json_pack("{s:s}", "type", "welcome"));
}

/* The functions of a shared process get what a step gives them to do as one frame: they begin and
 * end together. */
static void gather(job *j, const round_action *a, json_t *frame, const char *list, json_t *one)
{
    if (j->gathered)
        json_decref(frame);
    else
        j->gathered = frame;
    j->gathered_incarnation = a->incarnation;
    json_array_append_new(json_object_get(j->gathered, list), one);
}

static void send_gathered(job *j)
{
    if (j->gathered)
        send_to(j, &(round_action){.function = 0, .incarnation = j->gathered_incarnation},
                j->gathered);
    j->gathered = NULL;
}

/* Adds to a `train` or `validate` frame what lies on a GPU. */
static void add_averaging(const job *j, const round_action *a, json_t *frame)
{
    averaging_task on_gpu = averaging_task_of(j->averaging, a);
    if (on_gpu.keep)
        json_object_set_new(frame, "keep", json_true());
    if (on_gpu.mean)
        json_object_set(frame, "mean", on_gpu.mean);
}

static void send_train(job *j, const round_action *a)
{
    bool validates = j->spec.request.validate_every > 0 && j->spec.test_samples > 0;
    json_t *losses =
        j->needs_losses && validates ? job_record_losses(&j->record, a->epoch) : NULL;
    if (job_is_shared(j)) {
        gather(j, a,
               json_pack("{s:s,s:i,s:i,s:I,s:i,s:f,s:i,s:O*,s:[]}", "type", "train", "epoch",
                         a->epoch, "round", a->round, "version", (json_int_t)a->version,
                         "parallelism", a->parallelism, "lr", j->spec.request.lr, "slot", a->slot,
                         "validation_losses", losses, "shares"),
               "shares",
               json_pack("[i,I,I]", a->function, (json_int_t)a->batch_begin,
                         (json_int_t)a->batch_count));
        return;
    }
    json_t *frame =
        json_pack("{s:s,s:i,s:i,s:I,s:i,s:i,s:I,s:I,s:f,s:i,s:O*}", "type", "train", "epoch",
                  a->epoch, "round", a->round, "version", (json_int_t)a->version, "parallelism",
                  a->parallelism, "function", a->function, "batch_begin",
                  (json_int_t)a->batch_begin, "batch_count", (json_int_t)a->batch_count, "lr",
                  j->spec.request.lr, "slot", a->slot, "validation_losses", losses);
    job_average_before(j, (averaging_event){.type = AVERAGING_TRAIN,
                                            .function = a->function,
                                            .epoch = a->epoch,
                                            .round = a->round,
                                            .parallelism = a->parallelism});
    add_averaging(j, a, frame);
    send_to(j, a, frame);
}

static void send_validate(job *j, const round_action *a)
{
    job_record_validates(&j->record, clock_monotonic_ms());
    if (job_is_shared(j)) {
        gather(j, a,
               json_pack("{s:s,s:i,s:I,s:i,s:[]}", "type", "validate", "epoch", a->epoch, "version",
                         (json_int_t)a->version, "parallelism", a->parallelism, "functions"),
               "functions", json_integer(a->function));
        return;
    }
    json_t *frame =
        json_pack("{s:s,s:i,s:I,s:i,s:i}", "type", "validate", "epoch", a->epoch, "version",
                  (json_int_t)a->version, "parallelism", a->parallelism, "function", a->function);
    add_averaging(j, a, frame);
    send_to(j, a, frame);
}

void job_send_init(job *j)
{
    const round_action to = {.function = 0, .incarnation = j->init_incarnation};
    send_to(j, &to,
            json_pack("{s:s,s:I,s:i,s:i,s:i}", "type", "init", "seed",
                      (json_int_t)j->spec.request.seed, "epoch", STORAGE_WORKER_INIT_EPOCH, "round",
                      0, "slot", j->init_slot));
}

void job_tell_condition(job *j, conn *only, const char *name, bool status, const char *reason,
                        const char *message)
{
    const char *text = status ? "True" : "False";
    if (!only) {
        history_condition(j->record.history, name, text, reason, message);
        log_info("condition %s=%s reason=%s %s", name, text, reason, message);
    }
    tell(j, only,
         json_pack("{s:s,s:s,s:s,s:s,s:s}", "type", "condition", "name", name, "status", text,
                   "reason", reason, "message", message));
}

/* ---- actions that are tasks ------------------------------------------------------------------ */

void job_post(job *j, task *t)
{
    if (!t) {
        log_error("no memory for a task");
        return;
    }
    snprintf(t->job, sizeof t->job, "%s", j->spec.id);
    j->tasks_out++;
    worker_post(j->host.storage_worker, &t->work);
}

void job_end(job *j, const char *state, const char *reason, const char *message, int epochs,
             const char *sha256)
{
    j->stage = JOB_OVER;
    json_decref(j->finished);
    j->finished =
        json_pack("{s:s,s:s,s:s,s:s,s:i,s:s}", "type", "finished", "state", state, "reason", reason,
                  "message", message, "epochs", epochs, "sha256", sha256);
    log_info("finished: state=%s reason=%s epochs=%d sha256=%s %s", state, reason, epochs, sha256,
             message);
    connections_tell(j->host.connections, json_incref(j->finished));
}

static task *layout_task(job *j, task_kind kind)
{
    task *t = task_new(j->storage_worker, kind);
    if (t && j->layout)
        t->layout = strdup(j->layout);
    return t;
}

static void post_init(job *j, const round_action *a)
{
    j->init_incarnation = a->incarnation;
    j->init_slot = a->slot;
    job_post(j, layout_task(j, TASK_CREATE));
}

static void post_load(job *j)
{
    task *t = layout_task(j, TASK_LOAD);
    if (t)
        snprintf(t->init, sizeof t->init, "%s", j->spec.request.init);
    job_post(j, t);
}

void job_post_initial(job *j, int incarnation)
{
    task *t = task_new(j->storage_worker, TASK_INITIAL);
    if (t) {
        t->incarnation = incarnation;
        snprintf(t->init, sizeof t->init, "%s", j->spec.request.init);
        snprintf(t->without, sizeof t->without, "%s", j->spec.request.init_without);
        json_t *element = json_pack("{s:i,s:i,s:i,s:[]}", "epoch", STORAGE_WORKER_INIT_EPOCH,
                                    "round", 0, "version", 0, "parts");
        t->ledger = json_dumps(element, JSON_COMPACT);
        json_decref(element);
    }
    if (t && !t->ledger) {
        task_free(t);
        t = NULL;
    }
    job_post(j, t);
}

void job_post_merge(job *j, const round_merge *merge, int one)
{
    task *t = task_new(j->storage_worker, TASK_MERGE);
    if (t) {
        t->merge = *merge;
        t->merge.as_one = one >= 0;
        t->incarnation = one;
        t->rows = calloc(merge->count + 1, sizeof *t->rows);
        t->ledger = ledger_text(merge);
        if (t->rows)
            memcpy(t->rows, merge->rows, merge->count * sizeof *t->rows);
        t->merge.rows = t->rows;
    }
    if (t && (!t->rows || !t->ledger)) {
        task_free(t);
        t = NULL;
    }
    job_post(j, t);
}

static checkpoint_info info_of(const job *j, int epochs, int parallelism, const char *state)
{
    checkpoint_info info = {
        .epochs = epochs, .seed = j->spec.request.seed, .parallelism = parallelism};
    snprintf(info.state, sizeof info.state, "%s", state);
    return info;
}

static void post_commit(job *j, const round_epoch *r)
{
    err e = ERR_INIT;
    task *t = task_new(j->storage_worker, TASK_COMMIT);
    if (job_record_epoch(&j->record, r, &j->usage, clock_monotonic_ms(), &e))
        log_error("%s", e.message);
    history_lost(j->record.history, round_losses(j->machine));
    if (t) {
        t->info = info_of(j, r->epoch + 1, r->parallelism, "running");
        t->record = history_json(j->record.history);
    }
    job_post(j, t);
}

static void post_restore(job *j, bool last)
{
    task *t = task_new(j->storage_worker, TASK_RESTORE);
    if (t)
        t->last = last;
    job_post(j, t);
}

void job_post_finish(job *j)
{
    task *t = task_new(j->storage_worker, TASK_FINISH);
    if (t) {
        t->info = j->final;
        t->keep_model = j->keep_model;
        t->record = history_json(j->record.history);
    }
    j->retry_due_ms = INT64_MAX;
    job_post(j, t);
}

static void finish(job *j, const round_action *a)
{
    const char *state = round_state_name(a->state);
    history_state(j->record.history, state, a->reason, a->message, "");
    history_lost(j->record.history, round_losses(j->machine));
    if (a->superseded) {
        job_end(j, state, a->reason, a->message, a->epochs, "");
        return;
    }
    j->stage = JOB_FINISHING;
    j->give_up_ms = clock_deadline_ms(JOB_GIVE_UP_MS);
    j->final = info_of(j, a->epochs, a->parallelism, state);
    j->keep_model = a->state != ROUND_FAILED_STATE;
    job_record_cut(&j->record, a->epochs);
    json_t *open = a->state == ROUND_SUSPENDED
                       ? job_record_open(&j->record, a->epochs, round_version(j->machine),
                                         round_seconds(j->machine))
                       : NULL;
    if (open) /* else the one that it was resumed with, if there is no checkpoint after it */
        history_open(j->record.history, open);
    job_post_finish(j);
}

void job_perform(job *j, const round_action *a, conn *only)
{
    if (a->type == ROUND_TRAIN || a->type == ROUND_MERGE || a->type == ROUND_PHASE) {
        /* Between an epoch's last round and the next epoch there is no round. */
        bool within = a->type != ROUND_PHASE || strcmp(a->phase, "training") == 0 ||
                      strcmp(a->phase, "merging") == 0;
        j->epoch = a->epoch;
        j->round = within ? a->round : -1;
    }
    log_context(j->spec.id, j->epoch, j->round);
    log_debug("%s function=%d incarnation=%d", round_action_name(a->type), a->function,
              a->incarnation);
    conn *c;
    switch (a->type) {
    case ROUND_NEED:
        tell(j, only,
             json_pack("{s:s,s:i,s:i,s:s}", "type", "need", "function", a->function, "incarnation",
                       a->incarnation, "reason", a->reason));
        break;
    case ROUND_RELEASE:
        tell(j, only,
             json_pack("{s:s,s:i,s:i,s:s*}", "type", "release", "function", a->function,
                       "incarnation", a->incarnation, "message",
                       a->message[0] ? a->message : NULL));
        if (a->message[0])
            log_warn("goes on without: %s", a->message);
        break;
    case ROUND_WELCOME:
        welcome(j, a);
        break;
    case ROUND_REFUSE:
        if ((c = j->current ? j->current : member_conn(j, a)))
            job_reply_refused(j, c, a->code, a->message);
        break;
    case ROUND_CLOSE:
        if ((c = member_conn(j, a)))
            job_drop(j, c);
        break;
    case ROUND_INIT:
        post_init(j, a);
        break;
    case ROUND_LOAD:
        post_load(j);
        break;
    case ROUND_TRAIN:
        send_train(j, a);
        break;
    case ROUND_VALIDATE:
        send_validate(j, a);
        break;
    case ROUND_MERGE:
        job_average_before(j, (averaging_event){.type = AVERAGING_MERGE, .merge = &a->merge});
        break;
    case ROUND_COMMIT:
        post_commit(j, &a->record);
        break;
    case ROUND_RESTORE:
        job_average_before(j, (averaging_event){.type = AVERAGING_PUT_BACK});
        j->init_incarnation = -1; /* what is on its way of an earlier INIT went with Redis */
        post_restore(j, a->last);
        break;
    case ROUND_PHASE:
        tell(j, only,
             json_pack("{s:s,s:s,s:i,s:i}", "type", "phase", "phase", a->phase, "epoch", a->epoch,
                       "round", a->round));
        break;
    case ROUND_EPOCH:
        job_tell_epoch(j, only, a->record.epoch);
        if (!only)
            log_epoch(j, a->record.epoch);
        j->record.told_epochs = only ? j->record.told_epochs : a->record.epoch + 1;
        break;
    case ROUND_ASK:
        tell(j, only,
             json_pack("{s:s,s:i,s:i,s:f}", "type", "ask", "epoch", a->epoch, "parallelism",
                       a->parallelism, "seconds", a->seconds));
        break;
    case ROUND_CONDITION:
        job_tell_condition(j, only, a->name, a->status, a->reason, a->message);
        break;
    case ROUND_HALT:
        send_to(j, a, json_pack("{s:s}", "type", "stop"));
        break;
    case ROUND_FINISHED:
        finish(j, a);
        break;
    }
}

/* ---- averaging on GPUs ----------------------------------------------------------------------- */

void job_drop(job *j, conn *c)
{
    connections_drop(j->host.connections, c);
    if (c->kind == CONN_FUNCTION)
        job_average_before(j, (averaging_event){.type = AVERAGING_GONE,
                                                .function = c->function,
                                                .incarnation = c->incarnation});
}

static void tell_path(job *j, const averaging_action *a, conn *only)
{
    if (!only)
        log_info("%s", a->text);
    tell(j, only,
         json_pack("{s:s,s:s,s:s}", "type", "averaging", "path", reduce_path_name(a->path), "text",
                   a->text));
}

static void perform_averaging(job *j, const averaging_action *a, conn *only)
{
    conn *c;
    switch (a->type) {
    case AVERAGING_SEND:
        if ((c = connections_function(j->host.connections, a->function)))
            connections_send(j->host.connections, c, json_incref(a->frame));
        break;
    case AVERAGING_POST: job_post_merge(j, a->merge, a->mean_of); break;
    case AVERAGING_PATH: tell_path(j, a, only); break;
    case AVERAGING_INEXACT:
        job_tell_condition(j, only, "Exact", false, a->reason, a->text);
        break;
    case AVERAGING_INFO: log_info("%s", a->text); break;
    case AVERAGING_WARN: log_warn("%s", a->text); break;
    case AVERAGING_FAILED: break; /* at the end of a step, see settle */
    }
}

void job_average_before(job *j, averaging_event event)
{
    const averaging_action *actions;
    event.now_ms = clock_monotonic_ms();
    size_t count = averaging_step(j->averaging, &event, &actions);
    for (size_t i = 0; i < count; i++)
        perform_averaging(j, &actions[i], NULL);
}

void job_tell_averaging(job *j, conn *only)
{
    const averaging_action *actions;
    size_t count = averaging_tell(j->averaging, &actions);
    for (size_t i = 0; i < count; i++)
        perform_averaging(j, &actions[i], only);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void step_once(job *j, round_event event)
{
    const round_action *actions;
    event.now_ms = clock_monotonic_ms();
    size_t count = round_step(j->machine, &event, &actions);
    for (size_t i = 0; i < count; i++)
        job_perform(j, &actions[i], NULL);
    send_gathered(j);
}

/* True: the averaging machine has `next` for the round machine. */
static bool settle(job *j, round_event *next)
{
    const averaging_event event = {.type = AVERAGING_SETTLE, .now_ms = clock_monotonic_ms()};
    const averaging_action *actions;
    bool failed = false;
    if (j->stage != JOB_RUNNING)
        return false;
    size_t count = averaging_step(j->averaging, &event, &actions);
    for (size_t i = 0; i < count; i++) {
        perform_averaging(j, &actions[i], NULL);
        if (actions[i].type != AVERAGING_FAILED)
            continue;
        *next = *actions[i].failure;
        failed = true;
    }
    return failed;
}

void job_step(job *j, round_event event)
{
    do {
        step_once(j, event);
    } while (settle(j, &event));
}

void job_average(job *j, averaging_event event)
{
    round_event next;
    job_average_before(j, event);
    if (settle(j, &next))
        job_step(j, next);
}
