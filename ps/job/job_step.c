/* job_step.c: the step of a job: an event goes into the round machine, and the actions that come
 * out are carried out in their order, as frames to controllers and functions or as tasks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "frame_out.h"
#include "ps_job_internal.h"

/* ---- to controllers -------------------------------------------------------------------------- */

/* To all, or to the one that has just attached. */
static void tell(job *j, conn *only, json_t *frame)
{
    if (only)
        connections_send(j->host.connections, only, frame);
    else
        connections_tell(j->host.connections, frame);
}

void job_tell_condition(job *j, conn *only, const char *name, bool status, const char *reason,
                        const char *message)
{
    const char *text = status ? "True" : "False";
    if (!only) {
        history_condition(j->record.history, name, text, reason, message);
        log_info("condition %s=%s reason=%s %s", name, text, reason, message);
    }
    tell(j, only, frame_out_condition(name, status, reason, message));
}

static void tell_release(job *j, const round_action *a, conn *only)
{
    tell(j, only, frame_out_of(a));
    if (a->message[0])
        log_warn("goes on without: %s", a->message);
}

static void tell_epoch(job *j, conn *only, int epoch)
{
    epoch_result r;
    if (history_at(j->record.history, epoch, &r) == 0)
        tell(j, only, frame_out_epoch(&r));
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

static void end_epoch(job *j, conn *only, int epoch)
{
    tell_epoch(j, only, epoch);
    if (only)
        return;
    log_epoch(j, epoch);
    j->record.told_epochs = epoch + 1;
}

/* ---- to functions ---------------------------------------------------------------------------- */

static conn *conn_of(job *j, int function, int incarnation)
{
    conn *c = connections_function(j->host.connections, function);
    return c && c->incarnation == incarnation ? c : NULL;
}

static void send_to(job *j, int function, int incarnation, json_t *frame)
{
    conn *c = conn_of(j, function, incarnation);
    if (c)
        connections_send(j->host.connections, c, frame);
    else
        json_decref(frame);
}

void job_drop(job *j, conn *c)
{
    connections_drop(j->host.connections, c);
    if (c->kind == CONN_FUNCTION)
        job_average_in_step(j, (averaging_event){.type = AVERAGING_GONE,
                                                 .function = c->function,
                                                 .incarnation = c->incarnation});
}

void job_refuse(job *j, conn *c, err_code code, const char *message)
{
    connections_send(j->host.connections, c, frame_out_refused(code, NULL, message));
    job_drop(j, c);
    if (j->asker == c)
        j->asker = NULL;
}

static void refuse(job *j, const round_action *a)
{
    conn *c = j->current ? j->current : conn_of(j, a->function, a->incarnation);
    if (c)
        job_refuse(j, c, a->code, a->message);
}

static void welcome(job *j, const round_action *a)
{
    conn *c = j->current, *before = connections_function(j->host.connections, a->function);
    if (!c)
        return;
    if (before && before != c)
        job_drop(j, before);
    connections_admit(j->host.connections, c, CONN_FUNCTION);
    job_average_in_step(j, (averaging_event){.type = AVERAGING_WELCOME,
                                             .function = a->function,
                                             .incarnation = a->incarnation,
                                             .slot = a->slot});
    connections_send(j->host.connections, c, frame_out_plain("welcome"));
}

static void drop_function(job *j, const round_action *a)
{
    conn *c = conn_of(j, a->function, a->incarnation);
    if (c)
        job_drop(j, c);
}

void job_send_init(job *j)
{
    send_to(j, 0, j->effects.init_incarnation,
            frame_out_init(j->spec.request.seed, j->effects.init_slot));
}

static void send_task(job *j, const round_action *a, frame_task *t)
{
    if (job_is_shared(j)) { /* until the step is over, see send_shared */
        j->shared_task = frame_out_shared_task(j->shared_task, a, t);
        j->shared_incarnation = a->incarnation;
        return;
    }
    t->on_gpu = averaging_task_of(j->averaging, a);
    send_to(j, a->function, a->incarnation, frame_out_task(a, t));
}

static void send_shared(job *j)
{
    if (j->shared_task)
        send_to(j, 0, j->shared_incarnation, j->shared_task);
    j->shared_task = NULL;
}

static void train(job *j, const round_action *a)
{
    bool validates = j->spec.request.validate_every > 0 && j->spec.test_samples > 0;
    frame_task t = {.lr = j->spec.request.lr};
    if (j->needs_losses && validates)
        t.losses = job_record_losses(&j->record, a->epoch);
    if (!job_is_shared(j))
        job_average_in_step(j, (averaging_event){.type = AVERAGING_TRAIN,
                                                 .function = a->function,
                                                 .epoch = a->epoch,
                                                 .round = a->round,
                                                 .parallelism = a->parallelism});
    send_task(j, a, &t);
}

static void validate(job *j, const round_action *a)
{
    frame_task t = {0};
    job_record_validates(&j->record, clock_monotonic_ms());
    send_task(j, a, &t);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void commit(job *j, const round_epoch *r)
{
    err e = ERR_INIT;
    checkpoint_info info = {.epochs = r->epoch + 1,
                            .seed = j->spec.request.seed,
                            .parallelism = r->parallelism,
                            .state = "running"};
    if (job_record_epoch(&j->record, r, &j->usage, clock_monotonic_ms(), &e))
        log_error("%s", e.message);
    history_lost(j->record.history, round_losses(j->machine));
    effects_commit(&j->effects, &info, history_json(j->record.history));
}

static void restore(job *j, bool last)
{
    job_average_in_step(j, (averaging_event){.type = AVERAGING_RESTORE});
    effects_forget_init(&j->effects); /* what is on its way of an earlier INIT went with Redis */
    effects_restore(&j->effects, last);
}

/* ---- an action ------------------------------------------------------------------------------- */

/* Between an epoch's last round and the next epoch there is no round. */
static void note_place(job *j, const round_action *a)
{
    if (a->type == ROUND_TRAIN || a->type == ROUND_MERGE || a->type == ROUND_PHASE) {
        bool within = a->type != ROUND_PHASE || strcmp(a->phase, "training") == 0 ||
                      strcmp(a->phase, "merging") == 0;
        j->epoch = a->epoch;
        j->round = within ? a->round : -1;
    }
    log_context(j->spec.id, j->epoch, j->round);
}

/* What is told goes to `only`, or to all controllers (NULL). */
static void perform(job *j, const round_action *a, conn *only)
{
    note_place(j, a);
    log_debug("%s function=%d incarnation=%d", round_action_name(a->type), a->function,
              a->incarnation);
    switch (a->type) {
    /* to controllers */
    case ROUND_NEED:
    case ROUND_PHASE:
    case ROUND_ASK: tell(j, only, frame_out_of(a)); break;
    case ROUND_RELEASE: tell_release(j, a, only); break;
    case ROUND_EPOCH: end_epoch(j, only, a->record.epoch); break;
    case ROUND_CONDITION:
        job_tell_condition(j, only, a->name, a->status, a->reason, a->message);
        break;
    /* to functions */
    case ROUND_WELCOME: welcome(j, a); break;
    case ROUND_REFUSE: refuse(j, a); break;
    case ROUND_CLOSE: drop_function(j, a); break;
    case ROUND_TRAIN: train(j, a); break;
    case ROUND_VALIDATE: validate(j, a); break;
    case ROUND_HALT: send_to(j, a->function, a->incarnation, frame_out_plain("stop")); break;
    /* tasks */
    case ROUND_INIT: effects_create(&j->effects, a->incarnation, a->slot); break;
    case ROUND_LOAD: effects_load(&j->effects); break;
    case ROUND_MERGE:
        job_average_in_step(j, (averaging_event){.type = AVERAGING_MERGE, .merge = &a->merge});
        break;
    case ROUND_COMMIT: commit(j, &a->record); break;
    case ROUND_RESTORE: restore(j, a->last); break;
    case ROUND_FINISHED: job_finish(j, a); break;
    }
}

static void tell_path(job *j, const averaging_action *a, conn *only)
{
    if (!only)
        log_info("%s", a->text);
    tell(j, only, frame_out_averaging(a->path, a->text));
}

static void perform_averaging(job *j, const averaging_action *a, conn *only)
{
    conn *c;
    switch (a->type) {
    case AVERAGING_SEND:
        if ((c = connections_function(j->host.connections, a->function)))
            connections_send(j->host.connections, c, json_incref(a->frame));
        break;
    case AVERAGING_POST: effects_merge(&j->effects, a->merge, a->mean_of); break;
    case AVERAGING_PATH: tell_path(j, a, only); break;
    case AVERAGING_INEXACT: job_tell_condition(j, only, "Exact", false, a->reason, a->text); break;
    case AVERAGING_INFO: log_info("%s", a->text); break;
    case AVERAGING_WARN: log_warn("%s", a->text); break;
    case AVERAGING_FAILED: break; /* the next step's event, see settle */
    }
}

void job_tell_state(job *j, conn *c, int after_epoch)
{
    const round_action *actions;
    const averaging_action *on_gpu;
    connections_send(j->host.connections, c,
                     frame_out_access(j->host.address, modelstore_access_json(&j->member)));
    size_t count = round_tell(j->machine, &actions);
    for (size_t i = 0; i < count; i++)
        perform(j, &actions[i], c);
    count = averaging_tell(j->averaging, &on_gpu);
    for (size_t i = 0; i < count; i++)
        perform_averaging(j, &on_gpu[i], c);
    if (j->store_away)
        job_tell_condition(j, c, "StoreUnavailable", true, "StoreDown",
                           "what the job goes on from cannot be read yet");
    if (j->begun)
        connections_send(j->host.connections, c, frame_out_plain("begun"));
    for (int epoch = after_epoch + 1; epoch < j->record.told_epochs; epoch++)
        tell_epoch(j, c, epoch);
    if (j->stage == JOB_OVER)
        connections_send(j->host.connections, c, json_incref(j->finished));
}

/* ---- the step -------------------------------------------------------------------------------- */

static void step_once(job *j, round_event event)
{
    const round_action *actions;
    event.now_ms = clock_monotonic_ms();
    size_t count = round_step(j->machine, &event, &actions);
    for (size_t i = 0; i < count; i++)
        perform(j, &actions[i], NULL);
    send_shared(j);
}

/* A step is over. True: the averaging machine has `next` for the round machine. */
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

void job_average_in_step(job *j, averaging_event event)
{
    const averaging_action *actions;
    event.now_ms = clock_monotonic_ms();
    size_t count = averaging_step(j->averaging, &event, &actions);
    for (size_t i = 0; i < count; i++)
        perform_averaging(j, &actions[i], NULL);
}

void job_average(job *j, averaging_event event)
{
    round_event next;
    job_average_in_step(j, event);
    if (settle(j, &next))
        job_step(j, next);
}
