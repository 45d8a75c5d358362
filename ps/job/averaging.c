/* averaging.c: see averaging.h. */
#include "averaging_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

averaging *averaging_open(const averaging_config *config, err *e)
{
    averaging *a = calloc(1, sizeof *a);
    if (!a) {
        err_set(e, ERR_NOMEM, "no memory for the averaging on GPUs");
        return NULL;
    }
    a->config = *config;
    a->root = a->keep_epoch = a->keep_round = -1;
    a->version = -1;
    a->due_ms = INT64_MAX;
    for (int f = 0; f < ROUND_FUNCTIONS_MAX; f++)
        a->of[f].incarnation = a->of[f].task_epoch = a->of[f].task_round = -1;
    return a;
}

static void forget_actions(averaging *a)
{
    for (size_t i = 0; i < a->count; i++)
        json_decref(a->actions[i].frame);
    a->count = 0;
}

void averaging_close(averaging *a)
{
    if (!a)
        return;
    forget_actions(a);
    json_decref(a->mean);
    free(a);
}

int64_t averaging_deadline(const averaging *a)
{
    return a->due_ms;
}

/* ---- actions --------------------------------------------------------------------------------- */

averaging_action *averaging_emit(averaging *a, averaging_action_type type)
{
    assert(a->count < AVERAGING_ACTIONS_MAX);
    averaging_action *one = &a->actions[a->count++];
    *one = (averaging_action){.type = type, .mean_of = -1};
    return one;
}

void averaging_send(averaging *a, int function, json_t *frame)
{
    averaging_action *one = averaging_emit(a, AVERAGING_SEND);
    one->function = function;
    one->frame = frame;
}

void averaging_log(averaging *a, averaging_action_type type, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(a->said, sizeof a->said, fmt, args);
    va_end(args);
    averaging_emit(a, type)->text = a->said;
}

static void tell_path(averaging *a)
{
    averaging_action *one = averaging_emit(a, AVERAGING_PATH);
    one->path = a->path;
    one->text = a->text;
}

static void tell_inexact(averaging *a)
{
    averaging_action *one = averaging_emit(a, AVERAGING_INEXACT);
    one->reason = "NcclOrder";
    one->text = "models were averaged by NCCL, whose order of summation is its own";
}

size_t averaging_tell(averaging *a, const averaging_action **actions)
{
    forget_actions(a);
    *actions = a->actions;
    if (a->text[0] && a->inexact)
        tell_inexact(a);
    if (a->text[0])
        tell_path(a);
    return a->count;
}

void averaging_choose(averaging *a, reduce_path path, const char *why)
{
    reduce_placement choice;
    reduce_facts facts = {.functions = a->functions,
                          .tensor_path = a->config.tensor_path,
                          .wish = a->config.nccl ? REDUCE_NCCL_WANTED : REDUCE_ANY,
                          .ipc = path == REDUCE_IPC,
                          .ranks = path == REDUCE_NCCL,
                          .why_not = why};
    a->stage = path == REDUCE_HOST ? AVERAGING_ON_HOST : AVERAGING_ON_GPU;
    if (reduce_placement_choose(&facts, &choice, NULL) != 0)
        return;
    a->path = choice.path;
    snprintf(a->text, sizeof a->text, "%s", choice.text);
    tell_path(a);
}

/* ---- the root -------------------------------------------------------------------------------- */

bool averaging_is_here(const averaging *a, int function, int incarnation)
{
    return a->of[function].here && a->of[function].incarnation == incarnation;
}

/* Sends function 0 all handles, so that its answer shows whether it can open them. */
void averaging_ask_root(averaging *a)
{
    if (a->stage != AVERAGING_NO_ROOT || !a->config.own_processes || !a->config.whole_state ||
        a->functions < 2)
        return;
    json_t *handles = json_array();
    for (int f = 0; f < a->functions; f++) {
        if (!a->of[f].handle[0] || !a->of[f].here) {
            json_decref(handles);
            return;
        }
        if (f > 0)
            json_array_append_new(handles, json_string(a->of[f].handle));
    }
    a->stage = AVERAGING_ASKED;
    a->root = a->of[0].incarnation;
    averaging_send(a, 0, json_pack("{s:s,s:o}", "type", "lead", "models", handles));
}

static void welcome(averaging *a, const averaging_event *event)
{
    gpu_model *m = &a->of[event->function];
    m->here = true;
    m->handle[0] = m->gpu[0] = '\0';
    m->incarnation = event->incarnation;
    m->slot = event->slot;
    m->task_epoch = m->task_round = -1;
}

static void gone(averaging *a, const averaging_event *event)
{
    gpu_model *m = &a->of[event->function];
    if (m->incarnation == event->incarnation)
        m->here = false;
}

static void offer(averaging *a, const averaging_event *event)
{
    const averaging_offer *o = &event->offer;
    gpu_model *m = &a->of[event->function];
    const char *why = o->no_handle;
    snprintf(m->handle, sizeof m->handle, "%s", o->handle ? o->handle : "");
    if (a->functions == 0)
        a->functions = a->config.parallelism;
    if (a->config.nccl) {
        ranks_offer(a, event);
        return;
    }
    if (a->stage == AVERAGING_ON_GPU && !o->handle && !why)
        why = "a function came that has no model there";
    if (why && a->stage != AVERAGING_ON_HOST && a->functions > 1)
        averaging_choose(a, REDUCE_HOST, why);
    else
        averaging_ask_root(a);
}

static void leads(averaging *a, const averaging_event *event)
{
    bool refused = event->code != ERR_NONE;
    if (a->stage != AVERAGING_ASKED || event->function != 0 || event->incarnation != a->root)
        return;
    snprintf(a->mean_handle, sizeof a->mean_handle, "%s", refused ? "" : event->handle);
    averaging_choose(a, refused ? REDUCE_HOST : REDUCE_IPC, refused ? event->message : NULL);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Decides at a round's first task whether the round's models stay on the GPUs. */
static void decide_round(averaging *a, const averaging_event *event)
{
    a->functions = event->parallelism;
    if (!a->config.nccl)
        averaging_ask_root(a);
    if (a->keep_epoch == event->epoch && a->keep_round == event->round)
        return;
    a->keep_epoch = event->epoch;
    a->keep_round = event->round;
    a->keep = a->stage == AVERAGING_ON_GPU && a->functions > 1;
}

static void train(averaging *a, const averaging_event *event)
{
    decide_round(a, event);
    a->of[event->function].task_epoch = event->epoch;
    a->of[event->function].task_round = event->round;
}

averaging_task averaging_task_of(const averaging *a, const round_action *task)
{
    const gpu_model *m = &a->of[task->function];
    return (averaging_task){.keep =
                                task->type == ROUND_TRAIN && a->keep && (m->handle[0] || m->gpu[0]),
                            .mean = a->version == task->version ? a->mean : NULL};
}

static void published(averaging *a, const averaging_event *event)
{
    gpu_model *m = &a->of[event->function];
    a->averaged = false;
    m->fingerprint.is = event->sum != NULL;
    if (!event->sum)
        return;
    m->fingerprint.incarnation = event->incarnation;
    m->fingerprint.epoch = event->epoch;
    m->fingerprint.round = event->round;
    m->fingerprint.step = event->step;
    snprintf(m->fingerprint.sum, sizeof m->fingerprint.sum, "%s", event->sum);
}

/* ---- the merge ------------------------------------------------------------------------------- */

bool averaging_never(err_code code)
{
    return code == ERR_UNSUPPORTED || code == ERR_NOMEM || code == ERR_LIMIT;
}

void averaging_give_up(averaging *a, err_code code, int function, const char *message)
{
    a->out = a->averaged = false;
    a->due_ms = INT64_MAX;
    a->keep = a->keep && function >= 0;
    a->failed = true;
    snprintf(a->message, sizeof a->message, "%s", message);
    a->failure = (round_event){.type = ROUND_MERGE_FAILED,
                               .epoch = a->merge.epoch,
                               .round = a->merge.round,
                               .code = code,
                               .function = function,
                               .message = a->message};
}

static bool is_kept(const averaging *a, const round_row *row)
{
    const gpu_model *m = &a->of[row->function];
    return m->fingerprint.is && m->fingerprint.incarnation == row->incarnation &&
           m->fingerprint.epoch == row->epoch && m->fingerprint.round == row->round;
}

json_t *averaging_question(averaging *a)
{
    json_t *models = json_array();
    for (size_t i = 0; i < a->merge.count; i++) {
        const round_row *row = &a->rows[i];
        const gpu_model *m = &a->of[row->function];
        const char *handle = a->ranks.chosen ? NULL : m->handle; /* a rank needs no handle */
        json_array_append_new(models,
                              json_pack("{s:i,s:I,s:s*,s:s,s:I}", "function", row->function,
                                        "samples", (json_int_t)row->samples, "loan", handle, "sum",
                                        m->fingerprint.sum, "step", m->fingerprint.step));
    }
    return json_pack("{s:s,s:i,s:i,s:i,s:I,s:i,s:o}", "type", "average", "ask", ++a->ask, "epoch",
                     a->merge.epoch, "round", a->merge.round, "version",
                     (json_int_t)a->merge.base_version, "slot", a->of[0].slot, "models", models);
}

static void ask_for_mean(averaging *a)
{
    a->out = true;
    a->due_ms = a->now_ms + AVERAGING_CALL_MS;
    averaging_send(a, 0, averaging_question(a));
}

static void post(averaging *a, const round_merge *merge, int mean_of)
{
    averaging_action *one = averaging_emit(a, AVERAGING_POST);
    one->merge = merge;
    one->mean_of = mean_of;
}

static bool has_root(const averaging *a)
{
    return a->ranks.chosen ? ranks_have_root(a) : averaging_is_here(a, 0, a->root);
}

/* How many contributions of a merge are on GPUs. */
typedef struct kept {
    size_t count;
    int lost, whose; /* of processes that have ended: how many, and one of these functions */
} kept;

static kept count_kept(const averaging *a, const round_merge *merge)
{
    kept k = {.whose = -1};
    for (size_t i = 0; i < merge->count; i++) {
        const round_row *row = &merge->rows[i];
        if (!is_kept(a, row))
            continue;
        k.count++;
        if (averaging_is_here(a, row->function, row->incarnation))
            continue;
        k.lost++;
        k.whose = row->function;
    }
    return k;
}

static void merge_kept(averaging *a, const kept *k)
{
    if (k->count < a->merge.count)
        averaging_give_up(a, ERR_NOT_FOUND, -1, "some functions published, others did not");
    else if (a->stage != AVERAGING_ON_GPU || !has_root(a))
        averaging_give_up(a, ERR_NOT_FOUND, -1, "nobody leads");
    else if (k->lost > 0)
        averaging_give_up(a, ERR_NOT_FOUND, k->lost == 1 ? k->whose : -1,
                          "it was on the device, with a process that has ended");
    else if (a->ranks.chosen)
        ranks_merge(a);
    else
        ask_for_mean(a);
}

static void merge(averaging *a, const averaging_event *event)
{
    const round_merge *m = event->merge;
    kept k = count_kept(a, m);
    if (k.count == 0) {
        a->version = -1;
        post(a, m, m->as_one ? m->rows[0].incarnation : -1);
        return;
    }
    bool again = a->averaged && a->merge.epoch == m->epoch && a->merge.round == m->round;
    a->merge = *m;
    memcpy(a->rows, m->rows, m->count * sizeof *a->rows);
    a->merge.rows = a->rows;
    if (again)
        post(a, &a->merge, a->root);
    else
        merge_kept(a, &k);
}

/* Gives the merge up after a failure: `about`, the function whose model caused it, trains again. */
static void not_averaged(averaging *a, const averaging_event *event)
{
    int about = event->about;
    averaging_log(a, AVERAGING_WARN, "not averaged on the device: %s: %s", err_name(event->code),
                  event->message);
    if (about >= 0 && event->code == ERR_INVALID) {
        averaging_give_up(a, event->code, about, event->message);
        return;
    }
    /* An average that is impossible or fails repeatedly moves to the host: each try costs
     * training again. */
    if (averaging_never(event->code) ||
        (!event->store_down && ++a->failures >= AVERAGING_FAILURES_MAX)) {
        averaging_choose(a, REDUCE_HOST, event->message);
        about = -1;
    }
    averaging_give_up(a, ERR_NOT_FOUND, event->code == ERR_CORRUPT ? about : -1, event->message);
}

static void keep_mean(averaging *a, const averaging_event *event)
{
    json_decref(a->mean);
    a->mean = json_pack("{s:s,s:I,s:s}", "sum", event->sum, "step", event->step, "checksum",
                        event->checksum);
    json_object_set_new(a->mean, a->ranks.chosen ? "ask" : "loan",
                        a->ranks.chosen ? json_integer(event->ask) : json_string(a->mean_handle));
    if (a->ranks.chosen && !a->inexact) {
        a->inexact = true;
        tell_inexact(a);
    }
    a->version = a->merge.base_version + 1;
    a->averaged = true;
    a->failures = 0;
}

static void averaged(averaging *a, const averaging_event *event)
{
    bool failed = event->code != ERR_NONE;
    if (a->ranks.chosen && failed && !event->unpublished) {
        if (event->ask == a->ask && ranks_have(a, event))
            ranks_failed(a, event->code, event->about, event->message);
        return;
    }
    if (!a->out || event->ask != a->ask || event->function != 0 || event->incarnation != a->root)
        return; /* the answer is of a merge that was given up */
    a->out = false;
    a->due_ms = INT64_MAX;
    if (failed && event->code != ERR_STALE) {
        not_averaged(a, event);
        return;
    }
    if (!failed)
        keep_mean(a, event);
    post(a, &a->merge, a->root); /* the model store decides whether the merge is stale */
}

/* ---- ends and time-outs ---------------------------------------------------------------------- */

static void restored(averaging *a)
{
    a->version = -1;
    a->out = a->averaged = false; /* the round machine repeats the round by itself */
    a->due_ms = INT64_MAX;
}

/* Chooses another root, unless averaging on the GPU itself seems to crash them. */
static void lose_root(averaging *a)
{
    bool asked = a->stage == AVERAGING_ASKED;
    a->root = -1;
    a->version = -1;
    if (a->stage != AVERAGING_ON_HOST)
        a->stage = AVERAGING_NO_ROOT;
    if (asked)
        averaging_choose(a, REDUCE_HOST, "function 0 ended when it was asked to lead");
    else if (a->out && ++a->failures >= AVERAGING_FAILURES_MAX)
        averaging_choose(a, REDUCE_HOST, "function 0 ended again and again when it averaged there");
    if (a->out)
        averaging_give_up(a, ERR_NOT_FOUND, -1, "the leader has ended");
}

static void settle(averaging *a)
{
    if (a->ranks.chosen)
        ranks_settle(a);
    else if (a->root >= 0 && !averaging_is_here(a, 0, a->root))
        lose_root(a);
    if (!a->failed)
        return;
    a->failed = false;
    averaging_emit(a, AVERAGING_FAILED)->failure = &a->failure;
}

static void tick(averaging *a, const averaging_event *event)
{
    if (!a->out || event->now_ms < a->due_ms)
        return;
    if (a->ranks.chosen) {
        ranks_failed(a, ERR_TIMEOUT, -1, "the functions do not answer");
        return;
    }
    averaging_event late = *event;
    late.code = ERR_TIMEOUT;
    late.about = -1;
    late.message = "the leader does not answer";
    not_averaged(a, &late);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void take(averaging *a, const averaging_event *event)
{
    switch (event->type) {
    case AVERAGING_WELCOME: welcome(a, event); break;
    case AVERAGING_GONE: gone(a, event); break;
    case AVERAGING_OFFER: offer(a, event); break;
    case AVERAGING_TRAIN: train(a, event); break;
    case AVERAGING_PUBLISHED: published(a, event); break;
    case AVERAGING_MERGE: merge(a, event); break;
    case AVERAGING_LEADS: leads(a, event); break;
    case AVERAGING_AVERAGED: averaged(a, event); break;
    case AVERAGING_IDENTIFIED: ranks_identified(a, event); break;
    case AVERAGING_CONNECTED: ranks_connected(a, event); break;
    case AVERAGING_RESTORE: restored(a); break;
    case AVERAGING_TICK: tick(a, event); break;
    case AVERAGING_SETTLE: settle(a); break;
    }
}

size_t averaging_step(averaging *a, const averaging_event *event, const averaging_action **actions)
{
    forget_actions(a);
    a->now_ms = event->now_ms;
    take(a, event);
    *actions = a->actions;
    return a->count;
}
