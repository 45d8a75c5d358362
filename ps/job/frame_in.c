/* frame_in.c: see frame_in.h. */
#include "frame_in.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/modelstore/layout.h"
#include "common/net/wire.h"

static json_t *loose(const json_t *frame) /* json_unpack takes no constants */
{
    return (json_t *)(uintptr_t)frame;
}

static void one_event(frame_in *out)
{
    out->events = &out->event;
    out->count = 1;
}

void frame_in_free(frame_in *f)
{
    if (f->events != &f->event)
        free(f->events);
    json_decref(f->about);
    free(f->layout);
    f->events = NULL;
    f->about = NULL;
    f->layout = NULL;
}

/* ---- a controller's -------------------------------------------------------------------------- */

static int read_attach(const json_t *m, frame_in *out, err *e)
{
    const char *type;
    json_error_t problem;
    out->after_epoch = -1;
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:s,s?i}", "type", &type, "id",
                       &out->job, "after_epoch", &out->after_epoch))
        return err_set(e, ERR_INVALID, "%s", problem.text);
    return 0;
}

static int read_lost(const json_t *m, frame_in *out, err *e)
{
    round_event *event = &out->event;
    json_error_t problem;
    *event = (round_event){.type = ROUND_LOST, .ended = true};
    if (json_unpack_ex(loose(m), &problem, 0, "{s:i,s:i,s:s,s:s}", "function", &event->function,
                       "incarnation", &event->incarnation, "reason", &event->reason, "message",
                       &event->message))
        return err_set(e, ERR_INVALID, "lost: %s", problem.text);
    one_event(out);
    return 0;
}

static int read_stop(const json_t *m, frame_in *out, err *e)
{
    bool suspend = json_is_true(json_object_get(m, "suspend"));
    (void)e;
    out->event = (round_event){.type = suspend ? ROUND_SUSPEND : ROUND_STOP,
                               .message = json_string_value(json_object_get(m, "reason"))};
    one_event(out);
    return 0;
}

static int read_parallelism(const json_t *m, frame_in *out, err *e)
{
    json_error_t problem;
    out->event = (round_event){.type = ROUND_PARALLELISM};
    if (json_unpack_ex(loose(m), &problem, 0, "{s:i,s:i}", "epoch", &out->event.epoch, "value",
                       &out->event.value))
        return err_set(e, ERR_INVALID, "parallelism: %s", problem.text);
    one_event(out);
    return 0;
}

int frame_in_controller(const json_t *frame, frame_in *out, err *e)
{
    static const struct {
        const char *type;
        frame_kind kind;
        int (*read)(const json_t *, frame_in *, err *);
    } table[] = {{"attach", FRAME_ATTACH, read_attach},
                 {"lost", FRAME_LOST, read_lost},
                 {"stop", FRAME_STOP, read_stop},
                 {"parallelism", FRAME_PARALLELISM, read_parallelism}};
    const char *type = wire_type(frame);
    *out = (frame_in){0};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(type, table[i].type) == 0) {
            out->kind = table[i].kind;
            return table[i].read(frame, out, e);
        }
    return err_set(e, ERR_INVALID, "a controller says %.40s: not understood", type);
}

/* ---- a function's first ---------------------------------------------------------------------- */

int frame_in_hello(const json_t *frame, const char *id, frame_in *out, err *e)
{
    const char *type, *token;
    json_t *cpu;
    json_int_t pid;
    int threads, abi;
    json_error_t problem;
    *out = (frame_in){.kind = FRAME_HELLO, .event = {.type = ROUND_HELLO}};
    round_event *event = &out->event;
    if (json_unpack_ex(loose(frame), &problem, JSON_STRICT, "{s:s,s:s,s:s,s:i,s:i,s:I,s:o,s:i,s:i}",
                       "type", &type, "token", &token, "job", &out->job, "function",
                       &event->function, "incarnation", &event->incarnation, "pid", &pid, "cpu",
                       &cpu, "threads", &threads, "abi", &abi))
        return err_set(e, ERR_INVALID, "hello: %s", problem.text);
    if (strcmp(out->job, id) != 0)
        return err_set(e, ERR_NOT_FOUND, "another job runs here");
    if (abi != WIRE_ABI)
        return err_set(e, ERR_UNSUPPORTED, "hello: abi %d, here it is %d", abi, WIRE_ABI);
    if (event->function < 0 || event->function >= ROUND_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "hello: function %d", event->function);
    out->about = json_pack("{s:O,s:i}", "cpu", cpu, "threads", threads);
    one_event(out);
    return 0;
}

/* ---- a function's: the job ------------------------------------------------------------------- */

static int read_layout(const json_t *shape, const char *told, frame_in *out, err *e)
{
    cleanup_layout layout l = {0};
    if (layout_parse(shape, &l, e))
        return -1;
    snprintf(out->layout_digest, sizeof out->layout_digest, "%016" PRIx64, l.digest);
    if (strcmp(out->layout_digest, told) != 0)
        return err_set(e, ERR_CORRUPT, "ready: layout_digest is %.20s, the layout's is %s", told,
                       out->layout_digest);
    out->layout = strdup(l.text);
    return out->layout ? 0 : err_set(e, ERR_NOMEM, "no memory for the layout");
}

static int read_ready(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    averaging_offer *offer = &out->averaging.offer;
    const char *type, *told = NULL;
    int losses = 0;
    json_t *shape, *parameters;
    json_error_t problem;
    (void)from;
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:o,s:o,s:s,s:o,s?b,s?s,s?s,s?s,s?s}",
                       "type", &type, "layout", &shape, "parameters", &parameters, "layout_digest",
                       &told, "algorithms", &out->algorithms, "needs_losses", &losses, "loan",
                       &offer->handle, "no_loan", &offer->no_handle, "rank", &offer->gpu, "no_rank",
                       &offer->no_gpu) ||
        (offer->handle && strlen(offer->handle) >= AVERAGING_HANDLE_BYTES) ||
        (offer->gpu && strlen(offer->gpu) >= AVERAGING_GPU_BYTES))
        return err_set(e, ERR_INVALID, "ready: %s", problem.text);
    out->averaging.type = AVERAGING_OFFER;
    out->needs_losses = losses;
    if (read_layout(shape, told, out, e))
        return -1;
    out->event.type = ROUND_READY;
    out->event.layout = out->layout_digest;
    one_event(out);
    return 0;
}

static int read_initialised(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    (void)m;
    (void)from;
    (void)out;
    (void)e;
    return 0;
}

static int read_heartbeat(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    round_event *event = &out->event;
    json_int_t batches;
    json_error_t problem;
    (void)from;
    event->type = ROUND_HEARTBEAT;
    if (json_unpack_ex(loose(m), &problem, 0, "{s:s,s:i,s:i,s:I,s?s}", "phase", &event->phase,
                       "epoch", &event->epoch, "round", &event->round, "batches", &batches, "waits",
                       &event->message))
        return err_set(e, ERR_INVALID, "heartbeat: %s", problem.text);
    event->batches = (uint32_t)batches;
    out->usage = json_object_get(m, "usage");
    out->begun = json_is_true(json_object_get(m, "begun"));
    one_event(out);
    return 0;
}

static int read_failed(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    round_event *event = &out->event;
    const char *code = NULL;
    json_error_t problem;
    (void)from;
    event->type = ROUND_FAILED;
    if (json_unpack_ex(loose(m), &problem, 0, "{s?s,s:s,s:s}", "code", &code, "reason",
                       &event->reason, "message", &event->message))
        return err_set(e, ERR_INVALID, "failed: %s", problem.text);
    event->code = code ? err_from_name(code) : ERR_NONE;
    one_event(out);
    return 0;
}

/* ---- a function's: what it has trained ------------------------------------------------------- */

/* The counts of `published`, as they come. */
typedef struct trained {
    json_int_t samples, begin, end, batches;
} trained;

static int take_trained(const trained *t, round_event *event, const char *of, err *e)
{
    if (t->samples < 0 || t->begin < 0 || t->end < t->begin || t->batches < 0 ||
        t->batches > UINT32_MAX)
        return err_set(e, ERR_INVALID, "%s: a count out of range", of);
    event->samples = (uint64_t)t->samples;
    event->sample_begin = (uint64_t)t->begin;
    event->sample_end = (uint64_t)t->end;
    event->batches = (uint32_t)t->batches;
    return 0;
}

static int take_correct(json_int_t samples, json_int_t correct, round_event *event, const char *of,
                        err *e)
{
    if (samples < 0 || correct < 0 || correct > samples)
        return err_set(e, ERR_INVALID, "%s: a count out of range", of);
    event->samples = (uint64_t)samples;
    event->correct = (uint64_t)correct;
    return 0;
}

/* What functions of a shared process say is told as if each had said it. */
static int read_shares(const json_t *shares, const char *of,
                       int (*read)(const json_t *, round_event *, err *), frame_in *out, err *e)
{
    if (!json_is_array(shares))
        return err_set(e, ERR_INVALID, "%s: shares is no list", of);
    size_t count = json_array_size(shares);
    out->events = calloc(count + 1, sizeof *out->events);
    if (!out->events)
        return err_set(e, ERR_NOMEM, "no memory for the shares");
    for (; out->count < count; out->count++) {
        out->events[out->count] = out->event;
        if (read(json_array_get(shares, out->count), &out->events[out->count], e))
            return -1;
    }
    return 0;
}

static int read_published_share(const json_t *share, round_event *event, err *e)
{
    trained t;
    json_error_t problem;
    if (json_unpack_ex(loose(share), &problem, JSON_STRICT, "{s:i,s:I,s:I,s:I,s:F,s:I}", "function",
                       &event->function, "samples", &t.samples, "sample_begin", &t.begin,
                       "sample_end", &t.end, "loss_sum", &event->loss_sum, "batches", &t.batches))
        return err_set(e, ERR_INVALID, "published: shares: %s", problem.text);
    return take_trained(&t, event, "published: shares", e);
}

static int read_published_shared(const json_t *m, frame_in *out, err *e)
{
    job_seconds *s = &out->seconds;
    const char *type;
    json_t *shares;
    json_error_t problem;
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:i,s:i,s:o,s:{s:F,s:F,s:F,s:F,s:F}}",
                       "type", &type, "epoch", &out->event.epoch, "round", &out->event.round,
                       "shares", &shares, "seconds", "fetch", &s->fetch, "load", &s->load,
                       "convert", &s->convert, "train", &s->train, "publish", &s->publish))
        return err_set(e, ERR_INVALID, "published: %s", problem.text);
    return read_shares(shares, "published", read_published_share, out, e);
}

/* What is left where it was trained; NULL: it lies in the model store. */
static int read_fingerprint(json_t *fingerprint, frame_in *out, err *e)
{
    averaging_event *on_gpu = &out->averaging;
    on_gpu->type = AVERAGING_PUBLISHED;
    on_gpu->epoch = out->event.epoch;
    on_gpu->round = out->event.round;
    if (fingerprint &&
        (json_unpack(fingerprint, "{s:s,s:I}", "sum", &on_gpu->sum, "step", &on_gpu->step) ||
         strlen(on_gpu->sum) >= AVERAGING_SUM_BYTES))
        return err_set(e, ERR_INVALID, "published: seal");
    return 0;
}

static int read_published(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    round_event *event = &out->event;
    job_seconds *s = &out->seconds;
    trained t;
    const char *type;
    json_t *fingerprint = NULL;
    json_error_t problem;
    event->type = ROUND_PUBLISHED;
    if (from->shared)
        return read_published_shared(m, out, e);
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT,
                       "{s:s,s:i,s:i,s:I,s:I,s:I,s:F,s:I,s:{s:F,s:F,s?F,s:F,s:F},s?o}", "type",
                       &type, "epoch", &event->epoch, "round", &event->round, "samples", &t.samples,
                       "sample_begin", &t.begin, "sample_end", &t.end, "loss_sum", &event->loss_sum,
                       "batches", &t.batches, "seconds", "fetch", &s->fetch, "load", &s->load,
                       "convert", &s->convert, "train", &s->train, "publish", &s->publish, "seal",
                       &fingerprint))
        return err_set(e, ERR_INVALID, "published: %s", problem.text);
    if (take_trained(&t, event, "published", e) || read_fingerprint(fingerprint, out, e))
        return -1;
    one_event(out);
    return 0;
}

static int read_validated_share(const json_t *share, round_event *event, err *e)
{
    json_int_t samples, correct;
    json_error_t problem;
    if (json_unpack_ex(loose(share), &problem, JSON_STRICT, "{s:i,s:I,s:F,s:I}", "function",
                       &event->function, "samples", &samples, "loss_sum", &event->loss_sum,
                       "correct", &correct))
        return err_set(e, ERR_INVALID, "validated: shares: %s", problem.text);
    return take_correct(samples, correct, event, "validated: shares", e);
}

static int read_validated_shared(const json_t *m, frame_in *out, err *e)
{
    const char *type;
    json_t *shares;
    json_error_t problem;
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:i,s:o}", "type", &type, "epoch",
                       &out->event.epoch, "shares", &shares))
        return err_set(e, ERR_INVALID, "validated: %s", problem.text);
    return read_shares(shares, "validated", read_validated_share, out, e);
}

static int read_validated(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    round_event *event = &out->event;
    json_int_t samples, correct;
    const char *type;
    json_error_t problem;
    event->type = ROUND_VALIDATED;
    if (from->shared)
        return read_validated_shared(m, out, e);
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:i,s:I,s:F,s:I}", "type", &type,
                       "epoch", &event->epoch, "samples", &samples, "loss_sum", &event->loss_sum,
                       "correct", &correct))
        return err_set(e, ERR_INVALID, "validated: %s", problem.text);
    one_event(out);
    return take_correct(samples, correct, event, "validated", e);
}

/* ---- a function's: averaging on GPUs --------------------------------------------------------- */

static int read_leads(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    averaging_event *event = &out->averaging;
    const char *type;
    json_error_t problem;
    (void)from;
    event->type = AVERAGING_LEADS;
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s?s,s?s}", "type", &type, "mean",
                       &event->handle, "message", &event->message) ||
        !event->handle == !event->message ||
        (event->handle && strlen(event->handle) >= AVERAGING_HANDLE_BYTES))
        return err_set(e, ERR_INVALID, "leads: neither its mean nor why not");
    event->code = event->handle ? ERR_NONE : ERR_UNAVAILABLE;
    return 0;
}

static int read_averaged(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    averaging_event *event = &out->averaging;
    const char *type, *code = NULL;
    int unpublished = 0;
    json_error_t problem;
    (void)from;
    event->type = AVERAGING_AVERAGED;
    event->about = -1;
    event->message = "";
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:i,s?b,s?s,s?i,s?s,s?s,s?I,s?s}",
                       "type", &type, "ask", &event->ask, "unpublished", &unpublished, "code",
                       &code, "function", &event->about, "message", &event->message, "sum",
                       &event->sum, "step", &event->step, "checksum", &event->checksum))
        return err_set(e, ERR_INVALID, "averaged: %s", problem.text);
    if (!code && (!event->sum || !event->checksum))
        return err_set(e, ERR_INVALID, "averaged: neither a mean nor why not");
    event->unpublished = unpublished;
    event->code = code ? err_from_name(code) : ERR_NONE;
    return 0;
}

/* The answer to `identify` or `connect`. */
static int read_joining(const json_t *m, averaging_event_type type, frame_in *out, err *e)
{
    averaging_event *event = &out->averaging;
    const char *name, *code = NULL;
    json_error_t problem;
    event->type = type;
    event->message = "";
    if (json_unpack_ex(loose(m), &problem, JSON_STRICT, "{s:s,s:i,s?s,s?s,s?s}", "type", &name,
                       "set", &event->set, "id", &event->id, "code", &code, "message",
                       &event->message))
        return err_set(e, ERR_INVALID, "%s: %s", wire_type(m), problem.text);
    event->code = code ? err_from_name(code) : ERR_NONE;
    return 0;
}

static int read_identified(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    (void)from;
    if (read_joining(m, AVERAGING_IDENTIFIED, out, e))
        return -1;
    if (out->averaging.code == ERR_NONE && !out->averaging.id)
        return err_set(e, ERR_INVALID, "identified: neither an id nor why not");
    return 0;
}

static int read_connected(const json_t *m, const frame_from *from, frame_in *out, err *e)
{
    (void)from;
    return read_joining(m, AVERAGING_CONNECTED, out, e);
}

/* ---- a function's ---------------------------------------------------------------------------- */

typedef int function_reader(const json_t *m, const frame_from *from, frame_in *out, err *e);

static const struct {
    const char *type;
    frame_kind kind;
    function_reader *read;
} of_functions[] = {{"ready", FRAME_READY, read_ready},
                    {"initialised", FRAME_INITIALISED, read_initialised},
                    {"published", FRAME_PUBLISHED, read_published},
                    {"validated", FRAME_VALIDATED, read_validated},
                    {"heartbeat", FRAME_HEARTBEAT, read_heartbeat},
                    {"failed", FRAME_FAILED, read_failed},
                    {"leads", FRAME_AVERAGING, read_leads},
                    {"averaged", FRAME_AVERAGING, read_averaged},
                    {"identified", FRAME_AVERAGING, read_identified},
                    {"connected", FRAME_AVERAGING, read_connected}};

static function_reader *reader_of(const char *type, frame_kind *kind)
{
    for (size_t i = 0; i < sizeof of_functions / sizeof *of_functions; i++)
        if (strcmp(type, of_functions[i].type) == 0) {
            *kind = of_functions[i].kind;
            return of_functions[i].read;
        }
    return NULL;
}

int frame_in_function(const json_t *frame, const frame_from *from, frame_in *out, err *e)
{
    const char *type = wire_type(frame);
    *out = (frame_in){.event = {.function = from->function, .incarnation = from->incarnation},
                      .averaging = {.function = from->function, .incarnation = from->incarnation}};
    function_reader *read = reader_of(type, &out->kind);
    if (!read)
        return err_set(e, ERR_INVALID, "a message of type \"%.40s\" is not understood", type);
    if (read(frame, from, out, e) == 0)
        return 0;
    frame_in_free(out);
    return -1;
}
