/* job_device.c: see job_device.h. */
#include "job_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "ps_job_internal.h"

void job_device_init(job_device *d)
{
    d->leader = d->keep_epoch = d->keep_round = -1;
    d->version = -1;
    d->due_ms = INT64_MAX;
    for (int f = 0; f < ROUND_FUNCTIONS_MAX; f++)
        d->of[f].incarnation = d->of[f].task_epoch = d->of[f].task_round = -1;
}

void job_device_free(job_device *d)
{
    json_decref(d->mean);
}

/* ---- who leads ------------------------------------------------------------------------------- */

static conn *present(const job *j, int function, int incarnation)
{
    conn *c = connections_function(j->host.connections, function);
    return c && c->incarnation == incarnation ? c : NULL;
}

static void tell_exactness(job *j, conn *only)
{
    if (j->device.inexact)
        job_tell_condition(j, only, "Exact", false, "NcclOrder",
                           "models were averaged by NCCL, whose order of summation is its own");
}

void job_device_tell(job *j, conn *only)
{
    if (!j->device.text[0])
        return;
    if (only)
        tell_exactness(j, only);
    json_t *m = json_pack("{s:s,s:s,s:s}", "type", "averaging", "path",
                          reduce_path_name(j->device.path), "text", j->device.text);
    if (only)
        connections_send(j->host.connections, only, m);
    else
        connections_tell(j->host.connections, m);
}

void job_device_settle_on(job *j, reduce_path path, const char *why)
{
    job_device *d = &j->device;
    reduce_placement choice;
    reduce_facts facts = {.functions = d->functions,
                          .tensor_path = j->member.tensor_path,
                          .wish =
                              j->spec.request.merge == MERGE_NCCL ? REDUCE_NCCL_WANTED : REDUCE_ANY,
                          .lent = path == REDUCE_IPC,
                          .ranks = path == REDUCE_NCCL,
                          .why_not = why};
    d->stage = path == REDUCE_HOST ? DEVICE_REFUSED : DEVICE_REDUCE_ROOT;
    if (reduce_placement_choose(&facts, &choice, NULL) != 0)
        return;
    d->path = choice.path;
    snprintf(d->text, sizeof d->text, "%s", choice.text);
    log_info("%s", d->text);
    job_device_tell(j, NULL);
}

/* With everybody's loan, so that it is known at once whether it can open them. */
void job_device_ask_reduce_root(job *j)
{
    job_device *d = &j->device;
    const request *r = &j->spec.request;
    if (d->stage != DEVICE_NONE || r->process == PROCESS_SHARED ||
        r->optimizer_state == STATE_RESET || d->functions < 2)
        return;
    json_t *ipc_handles = json_array();
    for (int f = 0; f < d->functions; f++) {
        if (!d->of[f].ipc_handle[0] || !present(j, f, d->of[f].incarnation)) {
            json_decref(ipc_handles);
            return;
        }
        if (f > 0)
            json_array_append_new(ipc_handles, json_string(d->of[f].ipc_handle));
    }
    d->stage = DEVICE_ASKED;
    d->leader = d->of[0].incarnation;
    connections_send(j->host.connections, present(j, 0, d->leader),
                     json_pack("{s:s,s:o}", "type", "lead", "models", ipc_handles));
}

void job_device_welcome(job *j, const round_action *a)
{
    device_model *m = &j->device.of[a->function];
    m->ipc_handle[0] = j->device.ranks.gpu[a->function][0] = '\0';
    m->incarnation = a->incarnation;
    m->slot = a->slot;
    m->task_epoch = m->task_round = -1;
}

void job_device_ready(job *j, const conn *c, const device_offer *offer)
{
    job_device *d = &j->device;
    const char *why = offer->no_ipc_handle;
    snprintf(d->of[c->function].ipc_handle, sizeof d->of[c->function].ipc_handle, "%s",
             offer->ipc_handle ? offer->ipc_handle : "");
    if (d->functions == 0)
        d->functions = j->spec.parallelism;
    if (j->spec.request.merge == MERGE_NCCL) {
        job_ranks_ready(j, c, offer);
        return;
    }
    if (d->stage == DEVICE_REDUCE_ROOT && !offer->ipc_handle && !why)
        why = "a function came that has no model there";
    if (why && d->stage != DEVICE_REFUSED && d->functions > 1)
        job_device_settle_on(j, REDUCE_HOST, why);
    else
        job_device_ask_reduce_root(j);
}

int job_device_reduce_root_ready(job *j, conn *c, const json_t *m, err *e)
{
    job_device *d = &j->device;
    const char *mean = NULL, *why = NULL, *type;
    json_error_t problem;
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT, "{s:s,s?s,s?s}", "type",
                       &type, "mean", &mean, "message", &why) ||
        !mean == !why || (mean && strlen(mean) >= sizeof d->leader_mean))
        return err_set(e, ERR_INVALID, "leads: neither its mean nor why not");
    if (d->stage != DEVICE_ASKED || c->function != 0 || c->incarnation != d->leader)
        return 0;
    snprintf(d->leader_mean, sizeof d->leader_mean, "%s", mean ? mean : "");
    job_device_settle_on(j, why ? REDUCE_HOST : REDUCE_IPC, why);
    return 0;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* How a round is trained is decided at its first task. */
static void decide_round(job *j, const round_action *a)
{
    job_device *d = &j->device;
    d->functions = a->parallelism;
    if (j->spec.request.merge != MERGE_NCCL)
        job_device_ask_reduce_root(j);
    if (d->keep_epoch == a->epoch && d->keep_round == a->round)
        return;
    d->keep_epoch = a->epoch;
    d->keep_round = a->round;
    d->keep = d->stage == DEVICE_REDUCE_ROOT && d->functions > 1;
}

void job_device_task(job *j, const round_action *a, json_t *frame)
{
    job_device *d = &j->device;
    if (a->type == ROUND_TRAIN) {
        decide_round(j, a);
        d->of[a->function].task_epoch = a->epoch;
        d->of[a->function].task_round = a->round;
        if (d->keep && (d->of[a->function].ipc_handle[0] || d->ranks.gpu[a->function][0]))
            json_object_set_new(frame, "keep", json_true());
    }
    if (d->mean && d->version == a->version)
        json_object_set(frame, "mean", d->mean);
}

int job_device_published(job *j, const conn *c, int epoch, int round, const json_t *fingerprint,
                         err *e)
{
    job_device *d = &j->device;
    device_model *m = &d->of[c->function];
    const char *sum = NULL;
    d->averaged = false;
    m->fingerprint.is = false;
    if (!fingerprint)
        return 0;
    if (json_unpack((json_t *)(uintptr_t)fingerprint, "{s:s,s:I}", "sum", &sum, "step",
                    &m->fingerprint.step) ||
        strlen(sum) >= sizeof m->fingerprint.sum)
        return err_set(e, ERR_INVALID, "published: seal");
    m->fingerprint.is = true;
    m->fingerprint.incarnation = c->incarnation;
    m->fingerprint.epoch = epoch;
    m->fingerprint.round = round;
    snprintf(m->fingerprint.sum, sizeof m->fingerprint.sum, "%s", sum);
    return 0;
}

/* ---- the merge ------------------------------------------------------------------------------- */

void job_device_give_up(job *j, err_code code, int function, const char *message)
{
    job_device *d = &j->device;
    d->out = d->averaged = false;
    d->due_ms = INT64_MAX;
    d->keep = d->keep && function >= 0;
    d->failed = true;
    snprintf(d->message, sizeof d->message, "%s", message);
    d->failure = (round_event){.type = ROUND_MERGE_FAILED,
                               .epoch = d->merge.epoch,
                               .round = d->merge.round,
                               .code = code,
                               .function = function,
                               .message = d->message};
}

static bool sealed(const job *j, const round_row *row)
{
    const device_model *m = &j->device.of[row->function];
    return m->fingerprint.is && m->fingerprint.incarnation == row->incarnation &&
           m->fingerprint.epoch == row->epoch && m->fingerprint.round == row->round;
}

json_t *job_device_average_frame(job *j)
{
    job_device *d = &j->device;
    json_t *models = json_array();
    for (size_t i = 0; i < d->merge.count; i++) {
        const round_row *row = &d->rows[i];
        const device_model *m = &d->of[row->function];
        const char *ipc_handle =
            d->ranks.chosen ? NULL : m->ipc_handle; /* a rank has its model itself */
        json_array_append_new(models,
                              json_pack("{s:i,s:I,s:s*,s:s,s:I}", "function", row->function,
                                        "samples", (json_int_t)row->samples, "loan", ipc_handle,
                                        "sum", m->fingerprint.sum, "step", m->fingerprint.step));
    }
    return json_pack("{s:s,s:i,s:i,s:i,s:I,s:i,s:o}", "type", "average", "ask", ++d->ask, "epoch",
                     d->merge.epoch, "round", d->merge.round, "version",
                     (json_int_t)d->merge.base_version, "slot", d->of[0].slot, "models", models);
}

static void ask_for_mean(job *j)
{
    job_device *d = &j->device;
    d->out = true;
    d->due_ms = clock_deadline_ms(JOB_DEVICE_CALL_MS);
    connections_send(j->host.connections, present(j, 0, d->leader), job_device_average_frame(j));
}

static bool has_leader(const job *j)
{
    return j->device.ranks.chosen ? job_ranks_reduce_root(j)
                                  : present(j, 0, j->device.leader) != NULL;
}

bool job_device_merge(job *j, const round_merge *merge)
{
    job_device *d = &j->device;
    int kept = 0, lost = 0, whose = -1; /* lost: its process has ended */
    for (size_t i = 0; i < merge->count; i++) {
        if (!sealed(j, &merge->rows[i]))
            continue;
        kept++;
        if (present(j, merge->rows[i].function, merge->rows[i].incarnation))
            continue;
        lost++;
        whose = merge->rows[i].function;
    }
    if (kept == 0)
        return d->version = -1, false;
    bool again = d->averaged && d->merge.epoch == merge->epoch && d->merge.round == merge->round;
    d->merge = *merge;
    memcpy(d->rows, merge->rows, merge->count * sizeof *d->rows);
    d->merge.rows = d->rows;
    if (again)
        job_post_merge(j, &d->merge, d->leader);
    else if ((size_t)kept < merge->count)
        job_device_give_up(j, ERR_NOT_FOUND, -1, "some functions published, others did not");
    else if (d->stage != DEVICE_REDUCE_ROOT || !has_leader(j))
        job_device_give_up(j, ERR_NOT_FOUND, -1, "nobody leads");
    else if (lost > 0)
        job_device_give_up(j, ERR_NOT_FOUND, lost == 1 ? whose : -1,
                "it was on the device, with a process that has ended");
    else if (d->ranks.chosen)
        job_ranks_merge(j);
    else
        ask_for_mean(j);
    return true;
}

/* Whose model it was tells what has to be trained again. */
static void not_averaged(job *j, err_code code, int function, const char *message)
{
    log_warn("not averaged on the device: %s: %s", err_name(code), message);
    /* What cannot be here, or goes wrong again and again, is not tried for ever: something is
     * trained twice each time. */
    bool never = code == ERR_UNSUPPORTED || code == ERR_NOMEM || code == ERR_LIMIT;
    if (function >= 0 && code == ERR_INVALID) {
        job_device_give_up(j, code, function, message);
        return;
    }
    if (never || (!j->redis_down && ++j->device.failures >= JOB_DEVICE_FAILURES_MAX)) {
        job_device_settle_on(j, REDUCE_HOST, message);
        function = -1;
    }
    job_device_give_up(j, ERR_NOT_FOUND, code == ERR_CORRUPT ? function : -1, message);
}

int job_device_averaged(job *j, conn *c, const json_t *m, err *e)
{
    job_device *d = &j->device;
    const char *type, *code = NULL, *message = "", *sum = NULL, *checksum = NULL;
    int ask, function = -1, unpublished = 0;
    json_int_t step = 0;
    json_error_t problem;
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT,
                       "{s:s,s:i,s?b,s?s,s?i,s?s,s?s,s?I,s?s}", "type", &type, "ask", &ask,
                       "unpublished", &unpublished, "code",
                       &code, "function", &function, "message", &message, "sum", &sum, "step",
                       &step, "checksum", &checksum))
        return err_set(e, ERR_INVALID, "averaged: %s", problem.text);
    if (!code && (!sum || !checksum))
        return err_set(e, ERR_INVALID, "averaged: neither a mean nor why not");
    if (d->ranks.chosen && code && !unpublished) {
        if (ask == d->ask && job_ranks_has(j, c))
            job_ranks_failed(j, err_from_name(code), function, message);
        job_device_settle(j);
        return 0;
    }
    if (!d->out || ask != d->ask || c->function != 0 || c->incarnation != d->leader)
        return 0; /* of a merge that was given up */
    d->out = false;
    d->due_ms = INT64_MAX;
    if (code && err_from_name(code) != ERR_STALE) {
        not_averaged(j, err_from_name(code), function, message);
        job_device_settle(j);
        return 0;
    }
    if (!code) {
        json_decref(d->mean);
        d->mean = json_pack("{s:s,s:I,s:s}", "sum", sum, "step", step, "checksum", checksum);
        json_object_set_new(d->mean, d->ranks.chosen ? "ask" : "loan",
                            d->ranks.chosen ? json_integer(ask) : json_string(d->leader_mean));
        if (d->ranks.chosen && !d->inexact) {
            d->inexact = true;
            tell_exactness(j, NULL);
        }
        d->version = d->merge.base_version + 1;
        d->averaged = true;
        d->failures = 0;
    }
    job_post_merge(j, &d->merge, d->leader); /* whether it is stale the model store knows best */
    return 0;
}

void job_device_restore(job *j)
{
    job_device *d = &j->device;
    d->version = -1;
    d->out = d->averaged = false; /* the machine has the round trained again by itself */
    d->due_ms = INT64_MAX;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

/* The next one leads, unless it seems to be this that they end of. */
static void lose_leader(job *j)
{
    job_device *d = &j->device;
    bool asked = d->stage == DEVICE_ASKED;
    d->leader = -1;
    d->version = -1;
    if (d->stage != DEVICE_REFUSED)
        d->stage = DEVICE_NONE;
    if (asked)
        job_device_settle_on(j, REDUCE_HOST, "function 0 ended when it was asked to lead");
    else if (d->out && ++d->failures >= JOB_DEVICE_FAILURES_MAX)
        job_device_settle_on(j, REDUCE_HOST,
                             "function 0 ended again and again when it averaged there");
    if (d->out)
        job_device_give_up(j, ERR_NOT_FOUND, -1, "the leader has ended");
}

void job_device_settle(job *j)
{
    job_device *d = &j->device;
    const conn *c = connections_function(j->host.connections, 0);
    if (j->stage != JOB_RUNNING)
        return;
    if (d->ranks.chosen)
        job_ranks_settle(j);
    else if (d->leader >= 0 && (!c || c->incarnation != d->leader))
        lose_leader(j);
    if (!d->failed)
        return;
    d->failed = false;
    round_event failure = d->failure;
    job_step(j, failure);
}

void job_device_tick(job *j, int64_t now_ms)
{
    job_device *d = &j->device;
    if (!d->out || now_ms < d->due_ms)
        return;
    if (d->ranks.chosen)
        job_ranks_failed(j, ERR_TIMEOUT, -1, "the functions do not answer");
    else
        not_averaged(j, ERR_TIMEOUT, -1, "the leader does not answer");
    job_device_settle(j);
}
