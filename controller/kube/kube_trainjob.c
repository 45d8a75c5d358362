/* kube_trainjob.c: see kube_trainjob.h. */
#include "kube_trainjob.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/digest.h"
#include "common/base/json_read.h"
#include "common/contract/job_options.h"
#include "kube_pods.h"

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static bool has_ended(const char *state)
{
    return is(state, "succeeded") || is(state, "failed") || is(state, "cancelled");
}

/* ---- which job ------------------------------------------------------------------------------- */

void kube_trainjob_id(const json_t *object, char out[KUBE_TRAINJOB_ID_BYTES])
{
    const char *uid = kube_object_text(object, "uid");
    size_t n = 0;
    for (; *uid && n < 12; uid++)
        if (*uid != '-')
            out[n++] = *uid;
    out[n] = '\0';
}

const char *kube_trainjob_job(const json_t *object)
{
    const char *noted = kube_object_label(object, KUBE_LABEL_JOB);
    const char *name = kube_object_text(object, "name");
    char own[KUBE_TRAINJOB_ID_BYTES];
    kube_trainjob_id(object, own);
    bool shows = strncmp(name, KUBE_TRAINJOB_SHOWS, strlen(KUBE_TRAINJOB_SHOWS)) == 0 &&
                 is(name + strlen(KUBE_TRAINJOB_SHOWS), noted);
    return *noted && (shows || is(noted, own)) ? noted : "";
}

/* ---- spec and request ------------------------------------------------------------------------ */

/* Objects such as `gpu` are the same in both: their rows have no name of their own in a spec. */
json_t *kube_trainjob_request(const json_t *spec)
{
    json_t *asked = json_object(), *options = json_object();
    for (const job_option *o = job_options; o->name; o++) {
        json_t *value = o->spec ? json_object_get(spec, o->spec) : NULL;
        if (value)
            json_object_set_new(o->in == IN_OPTIONS ? options : asked, o->name,
                                json_deep_copy(value));
    }
    json_object_set_new(asked, "options", options);
    return asked;
}

json_t *kube_trainjob_spec(const json_t *asked)
{
    json_t *spec = json_object();
    const json_t *options = json_object_get(asked, "options");
    for (const job_option *o = job_options; o->name; o++) {
        json_t *value = json_object_get(o->in == IN_OPTIONS ? options : asked, o->name);
        if (o->spec && value && !json_is_null(value) &&
            !(json_is_string(value) && !*json_string_value(value)))
            json_object_set_new(spec, o->spec, json_deep_copy(value));
    }
    return spec;
}

/* ---- status ---------------------------------------------------------------------------------- */

static const json_t *condition(const json_t *status, const char *type)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(status, "conditions"), i, one) {
        if (is(text_of(one, "type"), type))
            return one;
    }
    return NULL;
}

typedef struct writing {
    const json_t *before;
    json_t *conditions;
    json_int_t generation;
    const char *now;
} writing;

/* Kubernetes writes reasons in CamelCase; a reason here may be a state or a phase of the job. */
static json_t *reason_json(const char *word)
{
    return json_sprintf("%c%s", toupper((unsigned char)*word), word + 1);
}

static void put(writing *w, const char *type, bool yes, const char *reason, const char *message)
{
    const json_t *old = condition(w->before, type);
    const char *status = yes ? "True" : "False";
    const char *since =
        old && is(text_of(old, "status"), status) ? text_of(old, "lastTransitionTime") : w->now;
    json_array_append_new(w->conditions,
                          json_pack("{s:s, s:s, s:o, s:s, s:I, s:s}", "type", type, "status",
                                    status, "reason", reason_json(*reason ? reason : status),
                                    "message", message, "observedGeneration", w->generation,
                                    "lastTransitionTime", since));
}

/* Whether the request itself makes the job inexact: merge: nccl, on_loss: continue. */
static bool is_wanted(const char *reason)
{
    return is(reason, "NcclOrder") || is(reason, "LeftOut");
}

/* The job's condition that shows what is wrong with it, or NULL. GpuUnused only makes the job slow,
 * and does not count, so that it hides no other. */
static const json_t *raised(const json_t *task)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(task, "conditions"), i, one) {
        const char *type = text_of(one, "type");
        bool yes = is(text_of(one, "status"), "True");
        if (is(type, "GpuUnused"))
            continue;
        if (is(type, "Exact") ? !yes && !is_wanted(text_of(one, "reason"))
                              : yes && !is(type, "Resumed") && !is(type, "Retried"))
            return one;
    }
    return NULL;
}

/* The task's message without what changes all the time, since each change would be a new status.
 * For a job that waits for its next try, leaves out the seconds until then. For a job that waits
 * for room, leaves out what other jobs hold, which its text (job_record.c) has after what the job
 * needs. */
static const char *message_of(const json_t *task, char cut[ERR_MESSAGE_BYTES])
{
    const char *reason = text_of(task, "reason"), *message = text_of(task, "message");
    bool slots = is(reason, "NoFreeSlot");
    if (is(reason, "Retrying"))
        return text_of(condition(task, "Retried"), "message");
    if (!is(text_of(task, "state"), "queued") || (!slots && strncmp(reason, "NoGpu", 5) != 0))
        return message;
    snprintf(cut, ERR_MESSAGE_BYTES, "%.*s", (int)strcspn(message, slots ? "," : ";"), message);
    return cut;
}

static void put_job(writing *w, const json_t *task, const char *message, bool suspending)
{
    const char *state = text_of(task, "state"), *reason = text_of(task, "reason"),
               *phase = text_of(task, "phase");
    const char *why = *reason ? reason : state;
    const json_t *wrong = raised(task), *exact = condition(task, "Exact");
    const json_t *slow = condition(task, "GpuUnused"), *worst = wrong ? wrong : slow;
    bool running = is(state, "running"), suspended = is(state, "suspended");
    bool ready = running && !(wrong && (is(text_of(wrong, "type"), "PoolEmpty") ||
                                        is(text_of(wrong, "type"), "FunctionLost")));
    bool failed = is(state, "failed") || is(state, "cancelled"), done = is(state, "succeeded");
    put(w, "Accepted", true, "Accepted", "");
    put(w, "FunctionsReady", ready, ready ? "Running" : wrong ? text_of(wrong, "reason") : why,
        ready ? "" : wrong ? text_of(wrong, "message") : message);
    put(w, "Training", running,
        running && *phase ? phase
        : running         ? "Running"
                          : why,
        running ? "" : message);
    put(w, "Degraded", worst != NULL, worst ? text_of(worst, "reason") : "AsExpected",
        worst ? text_of(worst, "message") : "");
    if (exact)
        put(w, "Exact", is(text_of(exact, "status"), "True"), text_of(exact, "reason"),
            text_of(exact, "message"));
    put(w, "Suspended", suspended,
        suspended    ? "Suspended"
        : suspending ? "Suspending"
                     : "NotSuspended",
        suspended    ? message
        : suspending ? "it stops at its next merge"
                     : "");
    put(w, "Complete", done, why, done ? message : "");
    put(w, "Failed", failed, why, failed ? message : "");
}

static void put_number(json_t *status, const char *key, const json_t *value, const char *format)
{
    char text[40];
    if (!json_is_number(value))
        return;
    snprintf(text, sizeof text, *format == '4' ? "%.4f" : "%.2f", json_number_value(value));
    json_object_set_new(status, key, json_string(text));
}

static void copy(json_t *to, const char *key, const json_t *from, const char *source)
{
    json_t *value = json_object_get(from, source);
    if (value && !json_is_null(value))
        json_object_set_new(to, key, json_deep_copy(value));
}

/* "4 nvidia.com/gpu": what the job's functions hold now. */
static void put_gpu(json_t *status, const kube_trainjob_gpu *gpu, const json_t *task)
{
    const char *state = text_of(task, "state");
    int workers = (int)json_integer_value(json_object_get(task, "parallelism"));
    if (gpu && gpu->count > 0 && workers > 0 && (is(state, "running") || is(state, "starting")))
        json_object_set_new(status, "gpu",
                            json_sprintf("%d %s", workers * gpu->count, gpu->resource));
}

static void put_start(json_t *status, const json_t *task)
{
    static const char *const parts[] = {"queued", "ps", "functions", "training", "total"};
    const json_t *from = json_object_get(task, "start_ms");
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        copy(out, parts[i], from, parts[i]);
    if (json_object_size(out))
        json_object_set(status, "startMilliseconds", out);
    json_decref(out);
}

static void put_task(writing *w, json_t *status, const json_t *task, const kube_trainjob_gpu *gpu,
                     bool suspending)
{
    static const char *const same[] = {"phase", "reason", "epoch", "retries", "user", "averaging"};
    char cut[ERR_MESSAGE_BYTES];
    const char *message = message_of(task, cut);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        copy(status, same[i], task, same[i]);
    json_object_set_new(status, "message", json_string(message));
    copy(status, "job", task, "id");
    copy(status, "workers", task, "parallelism");
    copy(status, "startTime", task, "started");
    copy(status, "completionTime", task, "finished");
    put_number(status, "accuracy", json_object_get(task, "accuracy"), "2");
    put_number(status, "loss", json_object_get(task, "validation_loss"), "4");
    put_gpu(status, gpu, task);
    put_start(status, task);
    put_job(w, task, message, suspending);
}

/* Whether a cause passes by itself: all causes but a fault of the spec. */
static bool passes(const err *why)
{
    return why->code != ERR_INVALID && why->code != ERR_LIMIT && why->code != ERR_NOT_FOUND &&
           why->code != ERR_UNSUPPORTED;
}

static const char *reason_of(const err *why)
{
    switch (why->code) {
    case ERR_NOT_FOUND: return "NotFound";
    case ERR_UNSUPPORTED: return "Unsupported";
    case ERR_CONFLICT: return "Conflict";
    default: return passes(why) ? "Unavailable" : "InvalidSpec";
    }
}

static const char *state_without_job(const err *why)
{
    return !why ? "suspended" : passes(why) ? "waiting" : "refused";
}

json_t *kube_trainjob_status(const json_t *object, const json_t *task, const err *why,
                             const kube_trainjob_gpu *gpu, const char *now)
{
    const json_t *spec = json_object_get(object, "spec"),
                 *meta = json_object_get(object, "metadata");
    writing w = {.before = json_object_get(object, "status"), .conditions = json_array(),
                 .now = now, .generation = json_integer_value(json_object_get(meta, "generation"))};
    json_t *status = json_pack("{s:I, s:s}", "observedGeneration", w.generation, "state",
                               task ? text_of(task, "state") : state_without_job(why));
    if (task) {
        put_task(&w, status, task, gpu, json_is_true(json_object_get(spec, "suspend")));
    } else {
        const char *reason = why ? reason_of(why) : "Suspended";
        put(&w, "Accepted", !why, reason, why ? why->message : "");
        put(&w, "Suspended", !why, !why ? "Suspended" : "NotSuspended",
            !why ? "it has not begun" : "");
        json_object_set_new(status, "reason", json_string(reason));
        json_object_set_new(status, "message",
                            json_string(why ? why->message : "it has not begun"));
    }
    json_object_set_new(status, "conditions", w.conditions);
    return status;
}

json_t *kube_trainjob_unknown(const json_t *object, const char *now)
{
    static const char why[] = "NotInDatabase";
    const json_t *before = json_object_get(object, "status");
    const char *state = text_of(before, "state");
    bool waits = !has_ended(state) && !is(state, "suspended");
    char message[200];
    json_t *status = json_deep_copy(before), *one;
    size_t i;
    writing w = {.before = before,
                 .conditions = json_array(),
                 .now = now,
                 .generation = json_integer_value(json_object_get(before, "observedGeneration"))};
    snprintf(message, sizeof message, "this database has no job %.60s", text_of(before, "job"));
    put(&w, "Accepted", false, why, message);
    json_array_foreach (json_object_get(before, "conditions"), i, one) {
        const char *type = text_of(one, "type");
        if (waits && (is(type, "FunctionsReady") || is(type, "Training")))
            put(&w, type, false, why, message);
        else if (!is(type, "Accepted"))
            json_array_append(w.conditions, one);
    }
    if (waits) {
        json_object_set_new(status, "state", json_string("waiting"));
        json_object_del(status, "phase");
        json_object_del(status, "gpu");
    }
    json_object_set_new(status, "reason", json_string(why));
    json_object_set_new(status, "message", json_string(message));
    json_object_set_new(status, "conditions", w.conditions);
    return status;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool degraded(const json_t *status)
{
    return is(text_of(condition(status, "Degraded"), "status"), "True");
}

/* Whether there is something to report, and its reason and message. */
static bool is_news(const json_t *before, const json_t *now, const char **reason,
                    const char **message)
{
    const json_t *wrong = condition(now, "Degraded");
    bool again = json_integer_value(json_object_get(before, "retries")) !=
                 json_integer_value(json_object_get(now, "retries"));
    *reason = text_of(now, "reason");
    *message = text_of(now, "message");
    if (again || !is(text_of(before, "state"), text_of(now, "state")))
        return true;
    if (!degraded(now) || (degraded(before) && is(text_of(condition(before, "Degraded"), "reason"),
                                                  text_of(wrong, "reason"))))
        return false;
    *reason = text_of(wrong, "reason");
    *message = text_of(wrong, "message");
    return true;
}

static json_t *reference_of(const json_t *object)
{
    const json_t *meta = json_object_get(object, "metadata");
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "apiVersion", text_of(object, "apiVersion"),
                     "kind", "TrainJob", "namespace", text_of(meta, "namespace"), "name",
                     text_of(meta, "name"), "uid", text_of(meta, "uid"));
}

/* Whether an Event is a warning. An empty pool only costs a moment. */
static bool is_trouble(const json_t *status, const char *reason)
{
    const char *state = text_of(status, "state");
    return is(state, "failed") || is(state, "refused") || is(state, "waiting") ||
           is(reason, "Retrying") || (degraded(status) && !is(reason, "PoolEmpty"));
}

json_t *kube_trainjob_event(const json_t *object, const json_t *status, const char *now)
{
    const char *reason, *message, *state = text_of(status, "state");
    char said[1200], sum[DIGEST_HEX_BYTES];
    if (!is_news(json_object_get(object, "status"), status, &reason, &message))
        return NULL;
    reason = *reason ? reason : state;
    const json_t *meta = json_object_get(object, "metadata");
    int len = snprintf(said, sizeof said, "%.100s %.20s %.60s %.800s %lld", text_of(meta, "uid"),
                       state, reason, message,
                       (long long)json_integer_value(json_object_get(status, "retries")));
    if (digest_of(said, (size_t)len, sum, NULL))
        return NULL;
    return json_pack("{s:s, s:s, s:{s:o, s:s}, s:o, s:o, s:s, s:s, s:{s:s}, s:s, s:s, s:i}",
                     "apiVersion", "v1", "kind", "Event", "metadata", "name",
                     json_sprintf("%.200s.%.16s", text_of(meta, "name"), sum), "namespace",
                     text_of(meta, "namespace"), "involvedObject", reference_of(object), "reason",
                     reason_json(reason), "message", message, "type",
                     is_trouble(status, reason) ? "Warning" : "Normal", "source", "component",
                     "kubeml-controller", "firstTimestamp", now, "lastTimestamp", now, "count", 1);
}

/* ---- steering -------------------------------------------------------------------------------- */

/* Seconds since a time in our RFC 3339 form; 0 where there is none. */
static int64_t seconds_since(const char *text, int64_t wall_ms)
{
    struct tm when = {0};
    if (!*text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &when))
        return 0;
    return wall_ms / 1000 - (int64_t)timegm(&when);
}

/* Whether the spec has not changed since the status was written. */
static bool is_seen(const json_t *object)
{
    const json_t *meta = json_object_get(object, "metadata"),
                 *status = json_object_get(object, "status");
    return json_integer_value(json_object_get(status, "observedGeneration")) ==
           json_integer_value(json_object_get(meta, "generation"));
}

int64_t kube_trainjob_rests_ms(const json_t *object, int64_t wall_ms)
{
    const json_t *status = json_object_get(object, "status");
    const json_t *ttl = json_object_get(json_object_get(object, "spec"), "ttlSecondsAfterFinished");
    if (!has_ended(text_of(status, "state")) || !is_seen(object))
        return 0;
    if (!ttl)
        return INT64_MAX;
    int64_t left_s =
        json_integer_value(ttl) - seconds_since(text_of(status, "completionTime"), wall_ms);
    return left_s > 0 ? 1000 * left_s : 0;
}

kube_trainjob_step kube_trainjob_next(const json_t *object, const json_t *task, int64_t wall_ms)
{
    const json_t *spec = json_object_get(object, "spec"),
                 *status = json_object_get(object, "status");
    const json_t *ttl = json_object_get(spec, "ttlSecondsAfterFinished");
    const char *state = text_of(task, "state"), *finished = text_of(task, "finished"),
               *before = text_of(status, "state");
    bool suspend = json_is_true(json_object_get(spec, "suspend")), was = is(before, "suspended");
    bool stood = was || is(before, "cancelled") || is(before, "failed");
    /* Without a status the user cannot have resumed the job in the spec. */
    bool seen = is_seen(object) || !*before;
    if (has_ended(state))
        return ttl && *finished && seconds_since(finished, wall_ms) >= json_integer_value(ttl)
                   ? TRAINJOB_EXPIRE
                   : TRAINJOB_KEEP;
    if (is(state, "suspended"))
        return suspend ? TRAINJOB_KEEP : !was && seen ? TRAINJOB_NOTE_SUSPENDED : TRAINJOB_RESUME;
    return !suspend ? TRAINJOB_KEEP : stood && seen ? TRAINJOB_NOTE_RESUMED : TRAINJOB_SUSPEND;
}
