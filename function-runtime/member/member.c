/* member.c: see member.h. The code of the computing thread; pslink.c has the connection. */
#include "member.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/net/wire.h"
#include "function-runtime/base/crash.h"
#include "kernels/backend.h"
#include "member_internal.h"

double member_seconds(int64_t *from_ns)
{
    int64_t now = clock_monotonic_ns();
    double s = (double)(now - *from_ns) * 1e-9;
    *from_ns = now;
    return s;
}

static void progress(const void *of, pslink_state *out)
{
    const member *m = of;
    out->batches = m->group ? group_progress(m->group) : trainer_progress(m->trainer);
    out->batches += atomic_load_explicit(&m->carried, memory_order_relaxed);
    dataset_waits(m->data, out->waits, sizeof out->waits);
}

void member_enter(member *m, const char *phase, int64_t epoch, int64_t round)
{
    pslink_phase(m->link, phase, epoch, round);
    crash_phase(phase, (int)epoch, (int)round);
    log_context(m->job, (int)epoch, (int)round);
}

void member_begun(void *of)
{
    const member *m = of;
    pslink_begun(m->link);
}

/* ---- the model store ------------------------------------------------------------------------- */

static int make_reference(member *m, err *e)
{
    if (m->reference.floats)
        return 0;
    const state *s = trainer_state(m->trainer);
    size_t counters = state_counters(s);
    m->reference.floats = malloc(state_floats(s) * sizeof(float));
    m->reference.counters = calloc(counters ? counters : 1, sizeof(int64_t));
    if (!m->reference.floats || !m->reference.counters)
        return err_set(e, ERR_NOMEM, "no memory for a model of %zu numbers", state_floats(s));
    return 0;
}

/* Pauses before another try, if the error is `passing`, which may pass by itself; false: it is
 * another error, or the time is up. */
static bool await(err_code passing, err *e, int *pause_ms, int64_t deadline_ms)
{
    if (e->code != passing || clock_left_ms(deadline_ms) == 0)
        return false;
    *e = (err)ERR_INIT;
    poll(NULL, 0, *pause_ms); /* bounded by the deadline */
    *pause_ms = *pause_ms < 200 ? 2 * *pause_ms : 200;
    return true;
}

/* Waits for the model: kubeml-ps restores it in a store that has lost everything. */
static bool await_model(err *e, int *pause_ms, int64_t deadline_ms)
{
    return await(ERR_NOT_FOUND, e, pause_ms, deadline_ms);
}

/* Attaches to the model store, which may be away for a moment (its Redis is restarted), or not made
 * yet. */
static int attach(member *m, int64_t deadline_ms, err *e)
{
    int pause_ms = 5;
    while (!m->attached) {
        *e = (err)ERR_INIT;
        if (!m->store &&
            modelstore_open(&m->access, MODELSTORE_MEMBER, deadline_ms, &m->store, e) != 0)
            return err_wrap(e, "model store");
        layout found = {0};
        if (modelstore_attach(m->store, &found, deadline_ms, e) == 0) {
            uint64_t mine = state_layout(trainer_state(m->trainer))->digest, theirs = found.digest;
            layout_free(&found);
            if (mine != theirs)
                return err_set(e, ERR_CONFLICT, "the model in the model store has another layout");
            m->attached = true;
        } else if (!await_model(e, &pause_ms, deadline_ms)) {
            return err_wrap(e, "model store");
        }
    }
    return make_reference(m, e);
}

/* Whether the wanted reference is the mean that this process has published: then it need not be
 * fetched. The version alone does not decide, because an older state may have been restored in the
 * model store. */
static bool has_mean(member *m, int64_t version, int64_t deadline_ms)
{
    modelstore_state at;
    return version >= 0 && m->mean.version == version &&
           modelstore_state_get(m->store, deadline_ms, &at, NULL) == 0 && at.version == version &&
           at.checksum == m->mean.checksum;
}

int member_fetch(member *m, int64_t version, const json_t *mean, err *e)
{
    int64_t deadline_ms = clock_deadline_ms(MEMBER_STORE_MS);
    modelstore_state at;
    int pause_ms = 5;
    if (has_mean(m, version, deadline_ms)) {
        failpoint("function.fetch");
        return group_take_mean(m->group, m->mean.at, e);
    }
    if (member_adopt(m, version, mean, deadline_ms)) {
        failpoint("function.fetch");
        return 0;
    }
    for (;;) {
        *e = (err)ERR_INIT;
        if (attach(m, deadline_ms, e) != 0)
            return -1;
        if (modelstore_fetch(m->store, version, m->reference, deadline_ms, &at, e) == 0)
            break;
        if (!await_model(e, &pause_ms, deadline_ms))
            return err_wrap(e, "version %lld of the model", (long long)version);
    }
    failpoint("function.fetch");
    if (at.version != version) {
        log_info("version %lld is over, the model store has %lld", (long long)version,
                 (long long)at.version);
        return 1;
    }
    return m->group ? group_import(m->group, m->reference, e)
                    : state_import(trainer_state(m->trainer), m->reference, e);
}

void member_half_published(void)
{
    failpoint("function.publish");
}

int member_slot(member *m, int slot, block *to, err *e)
{
    if (attach(m, clock_deadline_ms(MEMBER_STORE_MS), e) != 0)
        return -1;
    if (modelstore_slot(m->store, slot, to, e) == 0)
        return 0;
    if (e->os_errno != ENOSPC)
        return -1;
    member_tell_failed(m, "ModelStoreFull", e); /* a replacement would find no more room */
    return 1;
}

int member_publish(member *m, const modelstore_publication *p, uint64_t *checksum, err *e)
{
    int64_t deadline_ms = clock_deadline_ms(MEMBER_STORE_MS), room_ms = 0;
    int pause_ms = 5;
    while (modelstore_publish(m->store, p, NULL, deadline_ms, checksum, e) != 0) {
        if (e->code == ERR_STALE) {
            log_warn("not published: %s", e->message);
            *e = (err)ERR_INIT;
            return 1;
        }
        if (!room_ms && e->code == ERR_NOMEM)
            room_ms = clock_deadline_ms(MEMBER_ROOM_MS);
        if (await_model(e, &pause_ms, deadline_ms) || await(ERR_NOMEM, e, &pause_ms, room_ms))
            continue;
        err_wrap(e, "publishing epoch %lld, round %lld", (long long)p->epoch + 1,
                 (long long)p->round + 1);
        if (e->code != ERR_NOMEM)
            return -1;
        member_tell_failed(m, "ModelStoreFull", e); /* a replacement would find no more room */
        return 1;
    }
    return 0;
}

/* Publishes the trainer's state. */
static int publish(member *m, const modelstore_publication *p, err *e)
{
    block to;
    int rc = member_slot(m, p->slot, &to, e);
    if (rc == 0)
        rc = state_export(trainer_state(m->trainer), to, member_half_published, e);
    return rc == 0 ? member_publish(m, p, NULL, e) : rc;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

int member_tell_failed(member *m, const char *reason, err *e)
{
    log_error("%s: %s", reason, e->message);
    pslink_send(m->link, json_pack("{s:s,s:s,s:s,s:s}", "type", "failed", "code", err_name(e->code),
                                   "reason", reason, "message", e->message));
    *e = (err)ERR_INIT;
    return 0;
}

int member_task_failed(member *m, const char *reason, err *e)
{
    const err why = *e;
    member_tell_failed(m, reason, e);
    if (strncmp(reason, "Gpu", 3) != 0)
        return 0;
    *e = why;
    return -1;
}

int member_unpack(const json_t *task, err *e, const char *format, ...)
{
    json_error_t at;
    va_list args;
    va_start(args, format);
    int rc = json_vunpack_ex((json_t *)task, &at, 0, format, args);
    va_end(args);
    return rc == 0 ? 0 : err_set(e, ERR_INVALID, "task %s: %s", wire_type(task), at.text);
}

/* Function 0 draws the first model. It may have trained before the model store lost everything: it
 * draws the same weights as a new function. */
static int do_init(member *m, const json_t *task, err *e)
{
    json_int_t epoch = -1, round = 0, slot = 0, seed = 0;
    if (member_unpack(task, e, "{s?I,s?I,s?I,s:I}", "epoch", &epoch, "round", &round, "slot", &slot,
                      "seed", &seed) != 0)
        return -1;
    member_enter(m, "init", epoch, round);
    m->mean.version = -1;
    if (trainer_draw(m->trainer, e) != 0)
        return -1;
    modelstore_publication p = {.epoch = epoch,
                                .round = round,
                                .version = -1,
                                .function = m->function,
                                .incarnation = m->incarnation,
                                .samples = 1,
                                .slot = (int)slot};
    if (publish(m, &p, e) < 0)
        return -1;
    /* Also sent when the round is over: kubeml-ps has merged this model, and asks for a copy. */
    pslink_send(m->link, json_pack("{s:s}", "type", "initialised"));
    return 0;
}

/* Reports the contribution. Steals `fingerprint`; NULL: the contribution is in the model store. */
static void send_published(member *m, const train_order *o, const trainer_result *r, double fetch_s,
                           double publish_s, json_t *fingerprint)
{
    json_t *seconds = json_pack("{s:f,s:f,s:f,s:f,s:f}", "fetch", fetch_s, "load", r->load_s,
                                "convert", r->convert_s, "train", r->train_s, "publish", publish_s);
    pslink_send(m->link,
                json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:I,s:o,s:o*}", "type", "published",
                          "epoch", o->epoch, "round", o->round, "samples", (json_int_t)r->samples,
                          "sample_begin", (json_int_t)r->sample_begin, "sample_end",
                          (json_int_t)r->sample_end, "loss_sum", r->loss_sum, "batches",
                          (json_int_t)r->batches, "seconds", seconds, "seal", fingerprint));
}

static int read_history(const member *m, const train_order *o, double **out, size_t *count, err *e)
{
    *count = json_array_size(o->history);
    if (program_needs_history(m->program) && !o->history)
        return err_set(e, ERR_UNSUPPORTED, PROGRAM_NO_HISTORY);
    if (*count == 0)
        return 0;
    if (!(*out = calloc(*count, sizeof **out)))
        return err_set(e, ERR_NOMEM, "no memory for the history");
    for (size_t i = 0; i < *count; i++) {
        const json_t *one = json_array_get(o->history, i);
        (*out)[i] = json_is_number(one) ? json_number_value(one) : (double)NAN;
    }
    return 0;
}

int member_begin(member *m, const train_order *o, double *fetch_s, double **history, size_t *count,
                 err *e)
{
    int64_t clock_ns = clock_monotonic_ns();
    member_enter(m, "fetch", o->epoch, o->round);
    block to;
    int rc = member_fetch(m, o->version, o->mean, e);
    if (rc == 0 && !o->keep) /* without room for it, training would be in vain */
        rc = member_slot(m, (int)o->slot, &to, e);
    if (rc != 0)
        return rc;
    *fetch_s = member_seconds(&clock_ns);
    if (read_history(m, o, history, count, e) != 0) {
        member_tell_failed(m, "Unsupported", e);
        return 1;
    }
    member_enter(m, "train", o->epoch, o->round);
    return 0;
}

static int train(member *m, const train_order *o, err *e)
{
    cleanup_free double *history = NULL;
    size_t history_count;
    double fetch_s;
    int rc = member_begin(m, o, &fetch_s, &history, &history_count, e);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    trainer_task task = {.epoch = (uint32_t)o->epoch,
                         .parallelism = (int)o->parallelism,
                         .function = (int)o->function,
                         .batch_begin = (uint32_t)o->batch_begin,
                         .batch_count = (uint32_t)o->batch_count,
                         .lr = o->lr,
                         .history = history,
                         .history_count = history_count};
    trainer_result r;
    if (trainer_train(m->trainer, &task, &r, e) != 0)
        return member_task_failed(m, trainer_reason(m->trainer), e);
    int64_t clock_ns = clock_monotonic_ns();
    member_enter(m, "publish", o->epoch, o->round);
    modelstore_publication p = {.epoch = o->epoch,
                                .round = o->round,
                                .version = o->version,
                                .function = (int)o->function,
                                .incarnation = m->incarnation,
                                .samples = r.samples,
                                .slot = (int)o->slot};
    json_t *fingerprint = o->keep ? member_fingerprint(m) : NULL;
    if (!fingerprint && (rc = publish(m, &p, e)) != 0)
        return rc < 0 ? -1 : 0;
    send_published(m, o, &r, fetch_s, member_seconds(&clock_ns), fingerprint);
    failpoint("function.wait");
    return 0;
}

static int do_train(member *m, const json_t *task, err *e)
{
    train_order o = {.history = NULL};
    if (member_unpack(task, e, "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:F,s:I,s?o}", "epoch", &o.epoch,
                      "round", &o.round, "version", &o.version, "parallelism", &o.parallelism,
                      "function", &o.function, "batch_begin", &o.batch_begin, "batch_count",
                      &o.batch_count, "lr", &o.lr, "slot", &o.slot, "validation_losses",
                      &o.history) != 0)
        return -1;
    if (o.epoch < 0 || o.epoch > REQUEST_EPOCHS_MAX || o.parallelism < 1 ||
        o.parallelism > REQUEST_PARALLELISM_MAX || o.function < 0 || o.function >= o.parallelism ||
        o.batch_begin < 0 || o.batch_begin > UINT32_MAX || o.batch_count < 0 ||
        o.batch_count > UINT32_MAX || o.slot < 0 || o.slot >= MODELSTORE_SLOTS_MAX)
        return err_set(e, ERR_INVALID, "task train: a number is out of range");
    o.keep = (m->ipc_handle[0] || m->rank[0]) && json_is_true(json_object_get(task, "keep"));
    o.mean = json_object_get(task, "mean");
    return train(m, &o, e);
}

static int do_validate(member *m, const json_t *task, err *e)
{
    json_int_t epoch, version, parallelism, function;
    if (member_unpack(task, e, "{s:I,s:I,s:I,s:I}", "epoch", &epoch, "version", &version,
                      "parallelism", &parallelism, "function", &function) != 0)
        return -1;
    if (epoch < 0 || epoch > REQUEST_EPOCHS_MAX || parallelism < 1 ||
        parallelism > REQUEST_PARALLELISM_MAX || function < 0 || function >= parallelism)
        return err_set(e, ERR_INVALID, "task validate: a number is out of range");
    member_enter(m, "validate", epoch, -1);
    int rc = member_fetch(m, version, json_object_get(task, "mean"), e);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    trainer_result r;
    if (trainer_validate(m->trainer, (uint32_t)epoch, (int)parallelism, (int)function, &r, e) != 0)
        return member_task_failed(m, trainer_reason(m->trainer), e);
    pslink_send(m->link, json_pack("{s:s,s:I,s:I,s:f,s:I}", "type", "validated", "epoch", epoch,
                                   "samples", (json_int_t)r.samples, "loss_sum", r.loss_sum,
                                   "correct", (json_int_t)r.correct));
    return 0;
}

static int do_task(member *m, const json_t *task, err *e)
{
    const char *type = wire_type(task);
    if (strcmp(type, "train") == 0)
        return m->group ? member_train_shared(m, task, e) : do_train(m, task, e);
    if (strcmp(type, "validate") == 0)
        return m->group ? member_validate_shared(m, task, e) : do_validate(m, task, e);
    if (strcmp(type, "init") == 0)
        return do_init(m, task, e);
    if (m->ipc_handle[0] && strcmp(type, "lead") == 0)
        return member_reduce_root(m, task, e);
    if ((m->ipc_handle[0] || m->rank[0]) && strcmp(type, "average") == 0)
        return member_average(m, task, e);
    if (m->rank[0] && strcmp(type, "identify") == 0)
        return member_identify(m, task, e);
    if (m->rank[0] && strcmp(type, "connect") == 0)
        return member_connect(m, task, e);
    return err_set(e, ERR_UNSUPPORTED, "kubeml-ps asks for \"%.40s\"", type);
}

/* ---- the life of a member -------------------------------------------------------------------- */

static json_t *ready_message(const member *m)
{
    char hex[20];
    const layout *l = state_layout(trainer_state(m->trainer));
    engine *g = trainer_engine(m->trainer);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)l->digest);
    return json_pack("{s:s,s:o,s:I,s:s,s:s,s:o*,s:s*,s:s*,s:s*,s:s*}", "type", "ready", "layout",
                     layout_json(l), "parameters", (json_int_t)engine_param_count(g),
                     "layout_digest", hex, "algorithms", engine_choices(g), "needs_losses",
                     program_needs_history(m->program) ? json_true() : NULL, "loan",
                     m->ipc_handle[0] ? m->ipc_handle : NULL, "no_loan",
                     m->no_ipc_handle[0] ? m->no_ipc_handle : NULL, "rank",
                     m->rank[0] ? m->rank : NULL, "no_rank", m->no_rank[0] ? m->no_rank : NULL);
}

static int join(member *m, err *e)
{
    m->hello = json_pack("{s:s,s:s,s:s,s:i,s:i,s:I,s:s,s:i,s:i}", "type", "hello", "token",
                         m->secret, "job", m->job, "function", m->function, "incarnation",
                         m->incarnation, "pid", (json_int_t)getpid(), "cpu", member_cpu(),
                         "threads", m->threads > 0 ? m->threads : 1, "abi", WIRE_ABI);
    m->opening = m->failed ? json_incref(m->failed) : m->trainer ? ready_message(m) : NULL;
    if (!m->hello || !m->opening)
        return err_set(e, ERR_NOMEM, "no memory for the greeting");
    pslink_config c = {m->address, m->hello, m->opening, m->usage};
    if (pslink_open(&c, &m->link, e) != 0)
        return err_wrap(e, "joining job %s", m->job);
    if (m->trainer)
        pslink_progress(m->link, progress, m);
    return 0;
}

int member_run(member *m, err *e)
{
    if (join(m, e) != 0)
        return -1;
    log_info("function %d, incarnation %d: joined", m->function, m->incarnation);
    int rc = 0;
    while (rc == 0) {
        member_enter(m, "wait", -1, -1);
        *e = (err)ERR_INIT;
        cleanup_json json_t *task = pslink_task(m->link, e);
        if (!task)
            return e->code == ERR_NONE ? 0 : -1;
        if (m->failed)
            continue; /* `failed` was reported; only `stop` is expected */
        rc = do_task(m, task, e);
    }
    return rc;
}

const char *member_averaging(const member *m)
{
    return m->group ? group_choice(m->group)->text : NULL;
}

const char *member_without_gpu(const member *m)
{
    return m->no_gpu[0] ? m->no_gpu : NULL;
}

char *member_autotune_dump(const member *m)
{
    const char *on = m->trainer ? engine_backend(trainer_engine(m->trainer)) : NULL;
    return on ? backend_autotune_dump(on) : NULL;
}

void member_close(member *m)
{
    if (!m)
        return;
    pslink_close(m->link, clock_deadline_ms(2000));
    usage_close(m->usage);
    json_decref(m->hello);
    json_decref(m->opening);
    json_decref(m->failed);
    modelstore_close(m->store);
    if (m->trainer)
        member_ranks_leave(m);
    if (m->group)
        group_close(m->group);
    else
        trainer_close(m->trainer);
    unsandboxed_thread_close(m->unsandboxed_thread);
    program_close(m->program);
    dataset_close(m->data);
    if (m->object_fd >= 0)
        close(m->object_fd);
    free(m->reference.floats);
    free(m->reference.counters);
    memset(m->secret, 0, sizeof m->secret);
    free(m);
    crash_over();
}
