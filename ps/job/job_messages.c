/* job_messages.c: what controllers and functions say to a job, checked and turned into events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/tokens.h"
#include "ps_job_internal.h"

bool job_secret_is(const job *j, const char *token)
{
    return tokens_same(token, j->spec.secret);
}

/* ---- controllers ----------------------------------------------------------------------------- */

void job_attach(job *j, conn *c, const json_t *message)
{
    const char *id = NULL;
    int after = -1;
    json_error_t problem;
    if (json_unpack_ex((json_t *)message, &problem, JSON_STRICT, "{s:s,s:s,s?i}", "type", &id, "id",
                       &id, "after_epoch", &after)) {
        job_reply_refused(j, c, ERR_INVALID, problem.text);
        return;
    }
    if (strcmp(id, j->spec.id) != 0) {
        job_reply_refused(j, c, ERR_NOT_FOUND, "another job runs here");
        return;
    }
    c->attached = true;
    if (j->stage == JOB_PREPARING) {
        j->asker = c; /* the one that asked first went away */
        return;
    }
    connections_send(j->host.connections, c, job_access_message(j));
    const round_action *actions;
    size_t count = round_tell(j->machine, &actions);
    for (size_t i = 0; i < count; i++)
        job_perform(j, &actions[i], c);
    job_tell_averaging(j, c);
    if (j->store_away)
        job_tell_condition(j, c, "StoreUnavailable", true, "StoreDown",
                           "what the job goes on from cannot be read yet");
    if (j->begun)
        connections_send(j->host.connections, c, json_pack("{s:s}", "type", "begun"));
    for (int epoch = after + 1; epoch < j->record.told_epochs; epoch++)
        job_tell_epoch(j, c, epoch);
    if (j->stage == JOB_OVER)
        connections_send(j->host.connections, c, json_incref(j->finished));
}

/* The end of a function that was sent home is none. */
static bool is_news(const job *j, int function, int incarnation)
{
    return j->stage == JOB_RUNNING && !round_dismissed(j->machine, function, incarnation);
}

static void hear_out(job *j, conn *c)
{
    connections_hear_out(j->host.connections, c);
    job_drop(j, c);
}

static void lost(job *j, const json_t *m)
{
    round_event event = {.type = ROUND_LOST, .ended = true};
    json_error_t problem;
    if (json_unpack_ex((json_t *)m, &problem, 0, "{s:i,s:i,s:s,s:s}", "function",
                       &event.function, "incarnation", &event.incarnation, "reason", &event.reason,
                       "message", &event.message)) {
        log_warn("lost: %s", problem.text);
        return;
    }
    log_write(is_news(j, event.function, event.incarnation) ? LOG_INFO : LOG_DEBUG,
              "function %d (incarnation %d) ended: %s: %s", event.function, event.incarnation,
              event.reason, event.message);
    /* This came by another connection than its last words: that it failed, and why, weighs more
     * than that it ended. */
    conn *c = connections_function(j->host.connections, event.function);
    if (c && c->incarnation == event.incarnation)
        hear_out(j, c);
    if (j->stage == JOB_RUNNING)
        job_step(j, event);
}

static void stop(job *j, const json_t *m)
{
    const char *reason = json_string_value(json_object_get(m, "reason"));
    bool suspend = json_is_true(json_object_get(m, "suspend"));
    log_info("%s: %s", suspend ? "suspend" : "stop", reason ? reason : "");
    if (j->stage == JOB_RUNNING) {
        job_step(j, (round_event){.type = suspend ? ROUND_SUSPEND : ROUND_STOP, .message = reason});
    } else if (j->stage < JOB_RUNNING) {
        free(j->stop); /* the last word counts */
        j->stop = strdup(reason ? reason : "");
        j->stop_suspends = suspend;
    }
}

static void parallelism(job *j, const json_t *m)
{
    round_event event = {.type = ROUND_PARALLELISM};
    if (json_unpack((json_t *)m, "{s:i,s:i}", "epoch", &event.epoch, "value", &event.value) == 0 &&
        j->stage == JOB_RUNNING)
        job_step(j, event);
}

void job_from_controller(job *j, conn *c, const json_t *message)
{
    const char *type = wire_type(message);
    if (strcmp(type, "lost") == 0)
        lost(j, message);
    else if (strcmp(type, "stop") == 0)
        stop(j, message);
    else if (strcmp(type, "parallelism") == 0)
        parallelism(j, message);
    else if (strcmp(type, "attach") == 0)
        job_attach(j, c, message);
    else
        log_warn("a controller says %.40s: not understood", type);
}

/* ---- functions ------------------------------------------------------------------------------- */

/* `*about`: what it computes with, a new reference. */
static int read_hello(const job *j, conn *c, const json_t *m, json_t **about, err *e)
{
    const char *type, *token, *id;
    json_t *cpu;
    json_int_t pid;
    int threads, abi;
    json_error_t problem;
    if (json_unpack_ex((json_t *)m, &problem, JSON_STRICT, "{s:s,s:s,s:s,s:i,s:i,s:I,s:o,s:i,s:i}",
                       "type", &type, "token", &token, "job", &id, "function", &c->function,
                       "incarnation", &c->incarnation, "pid", &pid, "cpu", &cpu, "threads",
                       &threads, "abi", &abi))
        return err_set(e, ERR_INVALID, "hello: %s", problem.text);
    if (strcmp(id, j->spec.id) != 0)
        return err_set(e, ERR_NOT_FOUND, "another job runs here");
    if (abi != WIRE_ABI)
        return err_set(e, ERR_UNSUPPORTED, "hello: abi %d, here it is %d", abi, WIRE_ABI);
    if (c->function < 0 || c->function >= ROUND_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "hello: function %d", c->function);
    if (j->stage != JOB_RUNNING)
        return err_set(e, ERR_STALE, "the job takes no functions now");
    *about = json_pack("{s:O,s:i}", "cpu", cpu, "threads", threads);
    return 0;
}

void job_hello(job *j, conn *c, const json_t *message)
{
    json_t *about = NULL;
    err e = ERR_INIT;
    if (read_hello(j, c, message, &about, &e)) {
        log_warn("refused a function: %s", e.message);
        c->function = -1;
        job_reply_refused(j, c, e.code, e.message);
        return;
    }
    j->current = c;
    job_step(j, (round_event){
                    .type = ROUND_HELLO, .function = c->function, .incarnation = c->incarnation});
    j->current = NULL;
    /* Of a member alone: one that was refused is an older one, perhaps on another machine. */
    if (c->kind == CONN_FUNCTION) {
        json_decref(j->about[c->function]);
        j->about[c->function] = json_incref(about);
    }
    json_decref(about);
}

static averaging_event averaging_from(const conn *c, averaging_event_type type)
{
    return (averaging_event){.type = type, .function = c->function, .incarnation = c->incarnation};
}

static round_event from(const conn *c, round_event_type type)
{
    return (round_event){.type = type, .function = c->function, .incarnation = c->incarnation};
}

/* Of one function; the first one's are the job's. */
static int algorithms_of(job *j, const conn *c, const json_t *algorithms,
                         char out[DIGEST_HEX_BYTES], err *e)
{
    json_t *about = j->about[c->function];
    json_object_set(about, "algorithms", (json_t *)algorithms);
    const char *key;
    json_t *value;
    json_object_foreach(about, key, value)
    {
        history_plan(j->record.history, key, json_incref(value));
    }
    return job_record_algorithms(about, out, e);
}

/* For what an additional function publishes, before it has a share of an epoch: in its first round
 * a full model store would end the job, whoever of its functions finds it full. */
static int look_for_room(job *j, const round_event *ready, int slot, err *e)
{
    task *t = task_new(j->storage_worker, TASK_ROOM);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a task");
    t->function = ready->function;
    t->incarnation = ready->incarnation;
    t->slot = slot;
    snprintf(t->layout_digest, sizeof t->layout_digest, "%s", ready->layout);
    snprintf(t->algorithms, sizeof t->algorithms, "%s", ready->algorithms);
    job_post(j, t);
    return 0;
}

static int ready(job *j, conn *c, const json_t *m, err *e)
{
    const char *type, *told = NULL;
    int losses = 0;
    averaging_offer offer = {0};
    json_t *shape, *parameters, *algorithms;
    json_error_t problem;
    if (json_unpack_ex((json_t *)m, &problem, JSON_STRICT,
                       "{s:s,s:o,s:o,s:s,s:o,s?b,s?s,s?s,s?s,s?s}", "type", &type, "layout", &shape,
                       "parameters", &parameters, "layout_digest", &told, "algorithms", &algorithms,
                       "needs_losses", &losses, "loan", &offer.handle, "no_loan",
                       &offer.no_handle, "rank", &offer.gpu, "no_rank", &offer.no_gpu) ||
        (offer.handle && strlen(offer.handle) >= AVERAGING_HANDLE_BYTES) ||
        (offer.gpu && strlen(offer.gpu) >= AVERAGING_GPU_BYTES))
        return err_set(e, ERR_INVALID, "ready: %s", problem.text);
    cleanup_layout layout l = {0};
    char hex[20], sum[DIGEST_HEX_BYTES];
    if (layout_parse(shape, &l, e) || algorithms_of(j, c, algorithms, sum, e))
        return -1;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)l.digest);
    if (strcmp(hex, told) != 0)
        return err_set(e, ERR_CORRUPT, "ready: layout_digest is %.20s, the layout's is %s", told,
                       hex);
    if (!j->layout && !(j->layout = strdup(l.text)))
        return err_set(e, ERR_NOMEM, "no memory for the layout");
    history_plan(j->record.history, "layout_digest", json_string(hex));
    round_event event = from(c, ROUND_READY);
    event.layout = hex;
    event.algorithms = sum;
    j->needs_losses |= losses;
    averaging_event on_gpu = averaging_from(c, AVERAGING_OFFER);
    on_gpu.offer = offer;
    job_average_before(j, on_gpu);
    int slot = offer.handle ? -1 : round_waits_for(j->machine, c->function);
    if (slot >= 0)
        return look_for_room(j, &event, slot, e);
    job_step(j, event);
    return 0;
}

/* A function has trained a batch: a heartbeat said so, or that it has published tells it. */
static void note_begun(job *j)
{
    if (!j->begun)
        connections_tell(j->host.connections, json_pack("{s:s}", "type", "begun"));
    j->begun = true;
}

static int published_share(const json_t *share, round_event *event, err *e)
{
    json_int_t samples, begin, stop_at, batches;
    json_error_t problem;
    if (json_unpack_ex((json_t *)(uintptr_t)share, &problem, JSON_STRICT,
                       "{s:i,s:I,s:I,s:I,s:F,s:I}", "function", &event->function, "samples",
                       &samples, "sample_begin", &begin, "sample_end", &stop_at, "loss_sum",
                       &event->loss_sum, "batches", &batches))
        return err_set(e, ERR_INVALID, "published: shares: %s", problem.text);
    if (samples < 0 || begin < 0 || stop_at < begin || batches < 0 || batches > UINT32_MAX)
        return err_set(e, ERR_INVALID, "published: shares: a count out of range");
    event->samples = (uint64_t)samples;
    event->sample_begin = (uint64_t)begin;
    event->sample_end = (uint64_t)stop_at;
    event->batches = (uint32_t)batches;
    return 0;
}

/* What functions of a shared process say is told as if each had said it, one after the other. All
 * or none: the one contribution holds them all. */
static int published_shared(job *j, conn *c, const json_t *m, err *e)
{
    round_event event = from(c, ROUND_PUBLISHED), checked = event;
    job_seconds s = {0};
    const char *type;
    json_t *shares, *share;
    json_error_t problem;
    size_t i;
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT,
                       "{s:s,s:i,s:i,s:o,s:{s:F,s:F,s:F,s:F,s:F}}", "type", &type, "epoch",
                       &event.epoch, "round", &event.round, "shares", &shares, "seconds", "fetch",
                       &s.fetch, "load", &s.load, "convert", &s.convert, "train", &s.train,
                       "publish", &s.publish))
        return err_set(e, ERR_INVALID, "published: %s", problem.text);
    if (!json_is_array(shares))
        return err_set(e, ERR_INVALID, "published: shares is no list");
    json_array_foreach(shares, i, share) if (published_share(share, &checked, e)) return -1;
    note_begun(j);
    job_record_seconds(&j->record, &s, json_array_size(shares));
    json_array_foreach(shares, i, share)
    {
        published_share(share, &event, e);
        job_step(j, event);
    }
    return 0;
}

static int published(job *j, conn *c, const json_t *m, err *e)
{
    round_event event = from(c, ROUND_PUBLISHED);
    json_int_t samples, begin, stop_at, batches;
    job_seconds s = {0};
    const char *type;
    json_t *fingerprint = NULL;
    json_error_t problem;
    if (job_is_shared(j))
        return published_shared(j, c, m, e);
    if (json_unpack_ex((json_t *)m, &problem, JSON_STRICT,
                       "{s:s,s:i,s:i,s:I,s:I,s:I,s:F,s:I,s:{s:F,s:F,s?F,s:F,s:F},s?o}", "type",
                       &type, "epoch", &event.epoch, "round", &event.round, "samples", &samples,
                       "sample_begin", &begin, "sample_end", &stop_at, "loss_sum", &event.loss_sum,
                       "batches", &batches, "seconds", "fetch", &s.fetch, "load", &s.load,
                       "convert", &s.convert, "train", &s.train, "publish", &s.publish, "seal",
                       &fingerprint))
        return err_set(e, ERR_INVALID, "published: %s", problem.text);
    if (samples < 0 || begin < 0 || stop_at < begin || batches < 0 || batches > UINT32_MAX)
        return err_set(e, ERR_INVALID, "published: a count out of range");
    averaging_event on_gpu = averaging_from(c, AVERAGING_PUBLISHED);
    on_gpu.epoch = event.epoch;
    on_gpu.round = event.round;
    if (fingerprint &&
        (json_unpack(fingerprint, "{s:s,s:I}", "sum", &on_gpu.sum, "step", &on_gpu.step) ||
         strlen(on_gpu.sum) >= AVERAGING_SUM_BYTES))
        return err_set(e, ERR_INVALID, "published: seal");
    job_average_before(j, on_gpu);
    event.samples = (uint64_t)samples;
    event.sample_begin = (uint64_t)begin;
    event.sample_end = (uint64_t)stop_at;
    event.batches = (uint32_t)batches;
    note_begun(j);
    job_record_seconds(&j->record, &s, 1);
    job_step(j, event);
    return 0;
}

static int validated_shared(job *j, conn *c, const json_t *m, err *e)
{
    round_event event = from(c, ROUND_VALIDATED);
    json_int_t samples, correct;
    const char *type;
    json_t *shares, *share;
    json_error_t problem;
    size_t i;
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT, "{s:s,s:i,s:o}", "type",
                       &type, "epoch", &event.epoch, "shares", &shares))
        return err_set(e, ERR_INVALID, "validated: %s", problem.text);
    if (!json_is_array(shares))
        return err_set(e, ERR_INVALID, "validated: shares is no list");
    json_array_foreach(shares, i, share)
    {
        if (json_unpack_ex(share, &problem, JSON_STRICT, "{s:i,s:I,s:F,s:I}", "function",
                           &event.function, "samples", &samples, "loss_sum", &event.loss_sum,
                           "correct", &correct))
            return err_set(e, ERR_INVALID, "validated: shares: %s", problem.text);
        if (samples < 0 || correct < 0 || correct > samples)
            return err_set(e, ERR_INVALID, "validated: shares: a count out of range");
        event.samples = (uint64_t)samples;
        event.correct = (uint64_t)correct;
        job_step(j, event);
    }
    return 0;
}

static int validated(job *j, conn *c, const json_t *m, err *e)
{
    round_event event = from(c, ROUND_VALIDATED);
    json_int_t samples, correct;
    const char *type;
    json_error_t problem;
    if (job_is_shared(j))
        return validated_shared(j, c, m, e);
    if (json_unpack_ex((json_t *)m, &problem, JSON_STRICT, "{s:s,s:i,s:I,s:F,s:I}", "type", &type,
                       "epoch", &event.epoch, "samples", &samples, "loss_sum", &event.loss_sum,
                       "correct", &correct))
        return err_set(e, ERR_INVALID, "validated: %s", problem.text);
    if (samples < 0 || correct < 0 || correct > samples)
        return err_set(e, ERR_INVALID, "validated: a count out of range");
    event.samples = (uint64_t)samples;
    event.correct = (uint64_t)correct;
    job_step(j, event);
    return 0;
}

static int heartbeat(job *j, conn *c, const json_t *m, err *e)
{
    round_event event = from(c, ROUND_HEARTBEAT);
    json_int_t batches;
    json_error_t problem;
    if (json_unpack_ex((json_t *)m, &problem, 0, "{s:s,s:i,s:i,s:I,s?s}", "phase", &event.phase,
                       "epoch", &event.epoch, "round", &event.round, "batches", &batches, "waits",
                       &event.message))
        return err_set(e, ERR_INVALID, "heartbeat: %s", problem.text);
    const json_t *usage = json_object_get(m, "usage");
    if (usage &&
        job_usage_take(&j->usage, c->function, c->incarnation, usage, clock_monotonic_ms(), e) != 0)
        return err_wrap(e, "heartbeat");
    event.batches = (uint32_t)batches;
    if (json_is_true(json_object_get(m, "begun")))
        note_begun(j);
    job_step(j, event);
    return 0;
}

static int failed(job *j, conn *c, const json_t *m, err *e)
{
    round_event event = from(c, ROUND_FAILED);
    const char *code = NULL;
    json_error_t problem;
    if (json_unpack_ex((json_t *)m, &problem, 0, "{s?s,s:s,s:s}", "code", &code, "reason",
                       &event.reason, "message", &event.message))
        return err_set(e, ERR_INVALID, "failed: %s", problem.text);
    log_warn("function %d (incarnation %d) failed: %s: %s", c->function, c->incarnation,
             event.reason, event.message);
    event.code = code ? err_from_name(code) : ERR_NONE;
    job_step(j, event);
    return 0;
}

static int initialised(job *j, conn *c, const json_t *m, err *e)
{
    (void)m;
    (void)e;
    if (c->function == 0 && c->incarnation == j->init_incarnation && !j->initial_done)
        job_post_initial(j, c->incarnation);
    return 0;
}

static int leads(job *j, conn *c, const json_t *m, err *e)
{
    averaging_event event = averaging_from(c, AVERAGING_LEADS);
    const char *type;
    json_error_t problem;
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT, "{s:s,s?s,s?s}", "type",
                       &type, "mean", &event.handle, "message", &event.message) ||
        !event.handle == !event.message ||
        (event.handle && strlen(event.handle) >= AVERAGING_HANDLE_BYTES))
        return err_set(e, ERR_INVALID, "leads: neither its mean nor why not");
    event.code = event.handle ? ERR_NONE : ERR_UNAVAILABLE;
    job_average(j, event);
    return 0;
}

static int averaged(job *j, conn *c, const json_t *m, err *e)
{
    averaging_event event = averaging_from(c, AVERAGING_AVERAGED);
    const char *type, *code = NULL;
    int unpublished = 0;
    json_error_t problem;
    event.about = -1;
    event.message = "";
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT,
                       "{s:s,s:i,s?b,s?s,s?i,s?s,s?s,s?I,s?s}", "type", &type, "ask", &event.ask,
                       "unpublished", &unpublished, "code", &code, "function", &event.about,
                       "message", &event.message, "sum", &event.sum, "step", &event.step,
                       "checksum", &event.checksum))
        return err_set(e, ERR_INVALID, "averaged: %s", problem.text);
    if (!code && (!event.sum || !event.checksum))
        return err_set(e, ERR_INVALID, "averaged: neither a mean nor why not");
    event.unpublished = unpublished;
    event.redis_down = j->redis_down;
    event.code = code ? err_from_name(code) : ERR_NONE;
    job_average(j, event);
    return 0;
}

/* The answer to `identify` or `connect`. */
static int joins(job *j, conn *c, const json_t *m, averaging_event_type type, err *e)
{
    averaging_event event = averaging_from(c, type);
    const char *name, *code = NULL;
    json_error_t problem;
    event.message = "";
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT, "{s:s,s:i,s?s,s?s,s?s}",
                       "type", &name, "set", &event.set, "id", &event.id, "code", &code, "message",
                       &event.message))
        return err_set(e, ERR_INVALID, "%s: %s", wire_type(m), problem.text);
    if (type == AVERAGING_IDENTIFIED && !code && !event.id)
        return err_set(e, ERR_INVALID, "identified: neither an id nor why not");
    event.code = code ? err_from_name(code) : ERR_NONE;
    job_average(j, event);
    return 0;
}

static int identified(job *j, conn *c, const json_t *m, err *e)
{
    return joins(j, c, m, AVERAGING_IDENTIFIED, e);
}

static int connected(job *j, conn *c, const json_t *m, err *e)
{
    return joins(j, c, m, AVERAGING_CONNECTED, e);
}

void job_from_function(job *j, conn *c, const json_t *message)
{
    static const struct {
        const char *type;
        int (*take)(job *, conn *, const json_t *, err *);
    } kinds[] = {{"ready", ready},         {"initialised", initialised}, {"published", published},
                 {"validated", validated}, {"heartbeat", heartbeat},     {"failed", failed},
                 {"leads", leads}, {"averaged", averaged},
                 {"identified", identified}, {"connected", connected}};
    if (j->stage != JOB_RUNNING)
        return;
    err e = ERR_INIT;
    const char *type = wire_type(message);
    int status = 1;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(type, kinds[i].type) == 0)
            status = kinds[i].take(j, c, message, &e);
    if (status == 0)
        return;
    if (status > 0)
        err_set(&e, ERR_INVALID, "a message of type \"%.40s\" is not understood", type);
    log_warn("function %d (incarnation %d): %s", c->function, c->incarnation, e.message);
    round_event event = from(c, ROUND_LOST);
    event.reason = "Protocol";
    event.message = e.message;
    job_drop(j, c);
    job_step(j, event);
}

void job_closed(job *j, conn *c, const err *why)
{
    if (c == j->asker)
        j->asker = NULL;
    if (c->kind != CONN_FUNCTION)
        return;
    log_write(is_news(j, c->function, c->incarnation) ? LOG_INFO : LOG_DEBUG,
              "function %d (incarnation %d): %s", c->function, c->incarnation, why->message);
    round_event event = from(c, ROUND_LOST);
    event.reason = "ConnectionLost";
    job_average_before(j, averaging_from(c, AVERAGING_GONE));
    event.message = why->message;
    if (j->stage == JOB_RUNNING)
        job_step(j, event);
}
