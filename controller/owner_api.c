/* owner_api.c: the calls of owner.h. Each packs its arguments, runs in the owner's thread and
 * waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "dataset.h"
#include "failpoint.h"
#include "json_read.h"
#include "log.h"
#include "name.h"
#include "owner_internal.h"
#include "store_watch.h"

enum { HELD_BYTES = NAME_BYTES + 16 };

typedef struct request_call {
    const request *request;
    const char *id, *user;
    char *new_id;
    http_stream *stream;
    const char *function, *dataset;
    bool active, ended, drains;
    json_t **out;
    char **text;
    size_t *len;
    take_waiter *waiter;
    const char *pod;
    int status;
    err why;
} request_call;

static int finish(request_call *c, err *e)
{
    if (c->status && e)
        *e = c->why;
    return c->status;
}

static int unknown(const char *id, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no job \"%.40s\"", id);
}

static int check_id(const char *id, err *e)
{
    if (strlen(id) < JOB_ID_BYTES && name_check("job", id, NULL) == 0)
        return 0;
    return unknown(id, e);
}

/* ---- jobs that have ended, but whose pods have not ------------------------------------------- */

static void run_draining(owner *o, void *arg)
{
    request_call *c = arg;
    const job *j = jobs_find(o->machine, c->id);
    c->status = j && job_ended(j);
}

/* Waits until a job that has ended is let go by the machine; at most OWNER_DRAIN_MS. */
static void wait_drained(owner *o, const char *id)
{
    int64_t deadline = clock_deadline_ms(OWNER_DRAIN_MS);
    struct timespec until = {deadline / 1000, deadline % 1000 * 1000000};
    for (bool over = false; !over;) {
        request_call c = {.id = id};
        pthread_mutex_lock(&o->lock);
        uint64_t seen = o->jobs_done;
        pthread_mutex_unlock(&o->lock);
        owner_run(o, run_draining, &c);
        if (!c.status)
            return;
        pthread_mutex_lock(&o->lock);
        while (o->jobs_done == seen && !o->stopping && !over)
            over = pthread_cond_timedwait(&o->taken, &o->lock, &until) != 0;
        over |= o->stopping;
        pthread_mutex_unlock(&o->lock);
    }
}

/* ---- submit, stop, resume -------------------------------------------------------------------- */

static bool model_exists(owner *o, const char *id)
{
    char name[STORE_KEY_BYTES];
    snprintf(name, sizeof name, "models/%s/final", id);
    return store_blob_find(o->controller->store, name, NULL, NULL) == 0 ||
           store_blob_find(o->controller->store, id, NULL, NULL) == 0;
}

static int get_record(owner *o, const char *id, json_t **out, err *e);

/* It would wait for ever. */
static int check_slots(const owner *o, const request *r, err *e)
{
    if (!o->cluster->ops->slots_stay || !r->static_parallelism ||
        r->default_parallelism <= o->slots)
        return 0;
    return err_set(e, ERR_INVALID,
                   "options.default_parallelism: %d static functions, and there are %d slots here "
                   "(kubeml up --slots N)",
                   r->default_parallelism, o->slots);
}

/* How `held` names a function or dataset. */
static void held_name(char out[HELD_BYTES], const char *kind, const char *name)
{
    snprintf(out, HELD_BYTES, "%s/%s", kind, name); /* no id of a job has a slash */
}

static int check_not_held(const owner *o, const char *kind, const char *name, err *e)
{
    char held[HELD_BYTES];
    held_name(held, kind, name);
    return json_object_get(o->held, held)
               ? err_set(e, ERR_CONFLICT, "%s \"%s\" is being deleted", kind, name)
               : 0;
}

static int check_kept(const owner *o, const request *r, err *e)
{
    return check_not_held(o, "function", r->function_name, e) ||
                   check_not_held(o, "dataset", r->dataset, e)
               ? -1
               : 0;
}

static int check_init(owner *o, const request *r, err *e)
{
    if (!r->init[0] || model_exists(o, r->init))
        return 0;
    if (owner_runs(o, r->init))
        return err_set(e, ERR_CONFLICT,
                       "init: job %s still runs; its model is there once it has ended", r->init);
    return err_set(e, ERR_NOT_FOUND, "init: there is no model \"%s\"", r->init);
}

/* Before there is a job, where that is known then. */
static int check_can_run(const owner *o, err *e)
{
    return o->cluster->ops->can_run ? o->cluster->ops->can_run(o->cluster, e) : 0;
}

static void run_submit(owner *o, void *arg)
{
    request_call *c = arg;
    char id[JOB_ID_BYTES];
    cleanup_json json_t *record = NULL;
    owner_random_hex(id, 13);
    c->status = -1;
    if (!store_watch_writable(o->controller->watch, &c->why))
        return;
    if (c->id)
        snprintf(id, sizeof id, "%s", c->id);
    if (c->id && (jobs_find(o->machine, id) || get_record(o, id, &record, NULL) == 0)) {
        err_set(&c->why, ERR_EXISTS, "there is a job %s already", id);
        return;
    }
    side *s = sides_new(o, id);
    if (!s) {
        err_set(&c->why, ERR_NOMEM, "no memory for the job");
        return;
    }
    snprintf(s->user, sizeof s->user, "%s", c->user);
    if (check_slots(o, c->request, &c->why) || check_kept(o, c->request, &c->why) ||
        sides_resolve(o, s, c->request, &c->why) || check_can_run(o, &c->why) ||
        jobs_submit(o->machine, id, c->request, false, clock_wall_ms(), &c->why)) {
        sides_drop(o, id);
        return;
    }
    snprintf(c->new_id, JOB_ID_BYTES, "%s", id);
    if (s->user[0]) {
        log_context(id, -1, -1);
        log_info("asked for by %s", s->user);
        log_context(NULL, -1, -1);
    }
    if (o->news && !c->id)
        json_array_append_new(o->news, json_string(id));
    owner_event(o, &(job_event){.type = JOB_TICK}); /* saves the record, and may start the job */
    c->status = 0;
}

int owner_submit(owner *o, const request *r, const char *user, char id[40], err *e)
{
    if (check_init(o, r, e) || sides_fit(o, r, e))
        return -1;
    request_call c = {.request = r, .user = user, .new_id = id};
    owner_run(o, run_submit, &c);
    return finish(&c, e);
}

int owner_submit_as(owner *o, const request *r, const char *id, err *e)
{
    char same[JOB_ID_BYTES];
    /* A request through the API is not taken without a store. Here no model would be found in it.
     */
    if (!store_watch_up(o->controller->watch, e) || check_init(o, r, e) || sides_fit(o, r, e))
        return -1;
    request_call c = {.request = r, .id = id, .user = "", .new_id = same};
    owner_run(o, run_submit, &c);
    return finish(&c, e);
}

static int get_record(owner *o, const char *id, json_t **out, err *e)
{
    if (check_id(id, e))
        return -1;
    err why = ERR_INIT;
    json_t *unsaved = json_object_get(o->unsaved, id);
    if (unsaved && (*out = json_deep_copy(unsaved)))
        return 0;
    if (store_watch_up(o->controller->watch, &why) &&
        store_get(o->controller->store, "jobs", id, out, NULL, &why) == 0)
        return 0;
    if (e)
        *e = why;
    return why.code == ERR_NOT_FOUND ? unknown(id, e) : -1;
}

#define STOPPED "it was stopped through the API"

/* Record and history are all there is of a suspended job; its model is that of a stopped one
 * already, and the history's `open` is what it would be resumed by. */
static int cancel_suspended(owner *o, const char *id, json_t *record, err *e)
{
    static const job_ending ending = {JOB_CANCELLED, "Cancelled", STOPPED};
    if (json_object_get(o->held, id))
        return err_set(e, ERR_CONFLICT, "what job %s left is being deleted", id);
    if (!store_watch_writable(o->controller->watch, e))
        return -1;
    json_t *inner = json_object_get(record, "job");
    job_ending_set(&ending, inner);
    json_object_set_new(inner, "finished_ms", json_integer(clock_wall_ms()));
    jobs_save_record(o, id, record);
    metric_add(o->controller->metrics.jobs_total, 1, job_state_name(JOB_CANCELLED), NULL, NULL);
    history_end(o, id, &ending);
    return 0;
}

static void run_cancel(owner *o, void *arg)
{
    request_call *c = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, c->id);
    if (j && !job_ended(j)) {
        owner_event(o, &(job_event){.type = JOB_CANCEL, .job = c->id, .message = STOPPED});
        return;
    }
    c->drains = j && j->state == JOB_SUSPENDED;
    if (c->drains)
        c->status = err_set(&c->why, ERR_CONFLICT, "the pods of job %s have not ended", c->id);
    else
        c->status = get_record(o, c->id, &record, &c->why);
    if (c->status)
        return;
    const char *state = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    if (state && strcmp(state, job_state_name(JOB_SUSPENDED)) == 0)
        c->status = cancel_suspended(o, c->id, record, &c->why);
    else
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s has ended already: %s", c->id,
                            state ? state : "?");
}

int owner_cancel(owner *o, const char *id, err *e)
{
    request_call c = {.id = id}, again = {.id = id};
    owner_run(o, run_cancel, &c);
    if (!c.drains)
        return finish(&c, e);
    wait_drained(o, id);
    owner_run(o, run_cancel, &again);
    return finish(&again, e);
}

static void run_suspend(owner *o, void *arg)
{
    request_call *c = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, c->id);
    if (j && !job_ended(j)) {
        owner_event(
            o, &(job_event){
                   .type = JOB_SUSPEND, .job = c->id,
                   .message = "it was asked to stop at its next merge; resume goes on from there"});
        return;
    }
    c->status = get_record(o, c->id, &record, &c->why);
    const char *state = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    if (c->status == 0 && (!state || strcmp(state, "suspended") != 0))
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s has ended already: %s", c->id,
                            state ? state : "?");
}

int owner_suspend(owner *o, const char *id, err *e)
{
    request_call c = {.id = id};
    owner_run(o, run_suspend, &c);
    return finish(&c, e);
}

/* Its samples went with the dataset; others of the same name are not those that it trains on. */
static int check_data(const owner *o, const request *r, const json_t *record, err *e)
{
    const char *upload =
        json_string_value(json_object_get(json_object_get(record, "dataset_info"), "upload"));
    dataset_info now;
    err why = ERR_INIT;
    bool there = dataset_find(o->controller->store, r->dataset, &now, NULL, &why) == 0;
    if (!there && why.code != ERR_NOT_FOUND)
        return err_set(e, why.code, "%s", why.message);
    bool same = there && upload && strcmp(now.upload, upload) == 0;
    if (there)
        dataset_info_free(&now);
    if (same)
        return 0;
    return err_set(e, ERR_CONFLICT, "dataset \"%s\", on which the job trains, was deleted%s",
                   r->dataset, there ? "; the one of that name is another" : "");
}

/* The record of an ended job becomes that of a queued one. */
static int resume(owner *o, const char *id, const json_t *record, err *e)
{
    const json_t *inner = json_object_get(record, "job");
    request r;
    side *s = NULL;
    if (request_parse(json_object_get(inner, "request"), &r, e))
        return err_wrap(e, "the record of job %s", id);
    if (check_kept(o, &r, e) || check_data(o, &r, record, e) || check_can_run(o, e) ||
        sides_restore(o, record, &s, e))
        return -1;
    sides_revoke(o, s); /* done at its end, mostly; it gets new ones */
    s->times = (job_times){.submitted = clock_monotonic_ms()};
    json_decref(s->start_ms);
    s->start_ms = NULL;
    int generation = (int)json_integer_value(json_object_get(inner, "generation"));
    int epochs = (int)json_integer_value(json_object_get(inner, "epochs"));
    int64_t created = json_integer_value(json_object_get(inner, "created_ms"));
    if (jobs_resubmit(o->machine, id, &r, generation, epochs, created, e) == 0)
        return 0;
    sides_drop(o, id);
    return -1;
}

static void run_resume(owner *o, void *arg)
{
    request_call *c = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, c->id);
    if (j) {
        bool stops = !job_ended(j) && j->verdict && j->verdict_state == JOB_SUSPENDED;
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s %s", c->id,
                            stops ? "stops at its next merge: it can be resumed then"
                                  : "has not ended");
        return;
    }
    if (json_object_get(o->held, c->id)) {
        c->status = err_set(&c->why, ERR_CONFLICT, "what job %s left is being deleted", c->id);
        return;
    }
    c->status = get_record(o, c->id, &record, &c->why);
    if (c->status)
        return;
    const char *state = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    if (state && strcmp(state, "succeeded") == 0)
        c->status = err_set(&c->why, ERR_CONFLICT,
                            "job %s has succeeded: there is nothing left to do", c->id);
    else
        c->status = resume(o, c->id, record, &c->why);
    if (c->status == 0)
        owner_event(o, &(job_event){.type = JOB_TICK});
}

int owner_resume(owner *o, const char *id, err *e)
{
    request_call c = {.id = id};
    wait_drained(o, id);
    owner_run(o, run_resume, &c);
    return finish(&c, e);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void run_task(owner *o, void *arg)
{
    request_call *c = arg;
    const job *j = jobs_find(o->machine, c->id);
    if (j) {
        *c->out = jobs_live_json(o, j);
        c->status = *c->out ? 0 : err_set(&c->why, ERR_NOMEM, "no memory for the answer");
        return;
    }
    cleanup_json json_t *record = NULL;
    c->status = get_record(o, c->id, &record, &c->why);
    if (c->status == 0) {
        *c->out = jobs_task_json(record);
        json_object_set_new(*c->out, "phase", json_null());
    }
}

int owner_task(owner *o, const char *id, json_t **out, err *e)
{
    request_call c = {.id = id, .out = out};
    owner_run(o, run_task, &c);
    return finish(&c, e);
}

static void run_live(owner *o, void *arg)
{
    request_call *c = arg;
    for (size_t i = 0; i < jobs_count(o->machine); i++) {
        json_t *task = jobs_live_json(o, jobs_at(o->machine, i));
        if (task)
            json_array_append_new(*c->out, task);
    }
}

static bool has_task(const json_t *list, const char *id)
{
    size_t i;
    json_t *task;
    json_array_foreach((json_t *)(uintptr_t)list, i, task)
        if (strcmp(json_string_value(json_object_get(task, "id")), id) == 0)
            return true;
    return false;
}

static bool record_ended(const json_t *record)
{
    job_state state;
    const char *name = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    return name && job_state_from_name(name, &state) && state >= JOB_SUCCEEDED;
}

static json_t *show_if_ended(void *live, const char *key, json_t *record)
{
    if (!record_ended(record) || has_task(live, key))
        return NULL;
    json_t *task = jobs_task_json(record);
    json_object_set_new(task, "phase", json_null());
    return task;
}

int owner_tasks(owner *o, bool active, bool ended, list_page *page, json_t **out, err *e)
{
    json_t *live = json_array();
    request_call c = {.out = &live};
    owner_run(o, run_live, &c);
    *out = json_array();
    if (active && (!page || !page->after[0]))
        json_array_extend(*out, live);
    /* Those that have ended are the store's, which the caller's thread asks. */
    int status =
        ended ? list_add(o->controller->store, "jobs", page, show_if_ended, live, *out, e) : 0;
    json_decref(live);
    if (status)
        json_decref(*out);
    return status;
}

static void run_news(owner *o, void *arg)
{
    json_t **out = arg;
    *out = o->news ? o->news : json_array();
    o->news = json_array();
}

json_t *owner_news(owner *o)
{
    json_t *out = NULL;
    owner_run(o, run_news, &out);
    return out;
}

/* ---- why ------------------------------------------------------------------------------------- */

enum { LOG_END_LINES = 8, LOG_END_LINE_BYTES = 400 };

static void add_evidence(json_t *list, const char *fmt, const char *a, const char *b)
{
    json_array_append_new(list, json_sprintf(fmt, a, b));
}

/* A line as JSON can hold it: user code writes whatever it likes. */
static json_t *log_line(char *text, size_t len)
{
    len = len < LOG_END_LINE_BYTES ? len : LOG_END_LINE_BYTES;
    json_t *line = json_stringn(text, len);
    for (size_t i = 0; !line && i < len; i++)
        if ((unsigned char)text[i] >= 0x80)
            text[i] = '?';
    return line ? line : json_stringn(text, len);
}

/* The end of a failed job's log, where its code said why; nothing where there is no log. */
static void add_log_end(owner *o, const char *id, json_t *evidence)
{
    cleanup_free char *text = NULL;
    size_t len = 0, from, lines = 0;
    if (owner_logs(o, id, &text, &len, NULL))
        return;
    while (len && text[len - 1] == '\n')
        len--;
    for (from = len; from > 0 && !(text[from - 1] == '\n' && ++lines == LOG_END_LINES); from--)
        ;
    while (from < len) {
        const char *newline = memchr(text + from, '\n', len - from);
        size_t end = newline ? (size_t)(newline - text) : len;
        json_array_append_new(evidence, log_line(text + from, end - from));
        from = end + 1;
    }
}

/* What is free on the GPUs of pods, which have names alone. */
static void run_gpus_free(owner *o, void *arg)
{
    gpu_state gpus[GPU_COUNT_MAX];
    jobs_gpu_states(o->machine, gpus);
    for (int i = 0; o->gpus_elsewhere && i < GPU_COUNT_MAX; i++) {
        if (o->gpu[i].memory_bytes == 0)
            continue;
        const gpu_state *g = &gpus[i];
        uint64_t left = g->taken_bytes < g->memory_bytes ? g->memory_bytes - g->taken_bytes : 0;
        json_array_append_new(arg,
                              json_sprintf("%.1f of %.1f GiB are free on GPU %s, with %d "
                                           "functions",
                                           (double)left / 0x1p30, (double)g->memory_bytes / 0x1p30,
                                           o->gpu[i].id, g->functions));
    }
}

int owner_explain(owner *o, const char *id, json_t **out, err *e)
{
    cleanup_json json_t *task = NULL;
    if (owner_task(o, id, &task, e))
        return -1;
    json_t *evidence = json_array(), *condition, *gpu;
    size_t i;
    const json_t *phase = json_object_get(task, "phase");
    if (json_is_string(phase))
        json_array_append_new(
            evidence, json_sprintf("kubeml-ps is %s; epochs done: %d", json_string_value(phase),
                                   (int)json_integer_value(json_object_get(task, "epoch"))));
    const json_t *averaging = json_object_get(task, "averaging");
    if (json_is_string(averaging))
        json_array_append_new(evidence, json_string(json_string_value(averaging)));
    json_array_foreach(json_object_get(task, "gpus"), i, gpu)
        json_array_append_new(
            evidence, json_sprintf("function %d is on GPU %s", (int)i, json_string_value(gpu)));
    const char *reason = json_string_value(json_object_get(task, "reason"));
    if (reason && strncmp(reason, "NoGpu", 5) == 0)
        owner_run(o, run_gpus_free, evidence);
    json_array_foreach(json_object_get(task, "conditions"), i, condition) {
        const char *message = json_string_value(json_object_get(condition, "message"));
        if (strcmp(json_string_value(json_object_get(condition, "status")), "True") == 0)
            add_evidence(evidence, "%s: %s", json_string_value(json_object_get(condition, "type")),
                         message ? message : "");
    }
    if (strcmp(json_string_value(json_object_get(task, "state")), "failed") == 0)
        add_log_end(o, id, evidence);
    *out = json_pack("{s:O, s:O, s:O, s:O, s:o}", "id", json_object_get(task, "id"), "state",
                     json_object_get(task, "state"), "reason", json_object_get(task, "reason"),
                     "message", json_object_get(task, "message"), "evidence", evidence);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for the answer");
}

/* ---- logs ------------------------------------------------------------------------------------ */

static void run_logs(owner *o, void *arg)
{
    request_call *c = arg;
    cleanup_json json_t *record = NULL;
    cleanup_buf buf text;
    buf_init(&text, (size_t)CONTROLLER_LOG_BYTES_MAX * 32);
    c->status = jobs_find(o->machine, c->id) ? 0 : get_record(o, c->id, &record, &c->why);
    if (c->status == 0)
        c->status =
            logs_stored(o, c->id, &text, &c->why) || logs_merged(o, c->id, &text, &c->why) ? -1 : 0;
    if (c->status)
        return;
    *c->len = text.len;
    *c->text = text.bytes ? steal_ptr(text.bytes) : strdup("");
}

int owner_logs(owner *o, const char *id, char **out, size_t *len, err *e)
{
    request_call c = {.id = id, .text = out, .len = len};
    owner_run(o, run_logs, &c);
    return finish(&c, e);
}

/* ---- what is in use -------------------------------------------------------------------------- */

static void run_hold_unused(owner *o, void *arg)
{
    request_call *c = arg;
    const char *kind = c->function ? "function" : "dataset";
    const char *name = c->function ? c->function : c->dataset;
    char held[HELD_BYTES];
    c->status = check_not_held(o, kind, name, &c->why);
    for (size_t i = 0; i < jobs_count(o->machine); i++) {
        const job *j = jobs_at(o->machine, i);
        if (job_ended(j))
            continue;
        if (c->function && strcmp(c->function, j->request.function_name) == 0)
            c->status =
                err_set(&c->why, ERR_CONFLICT, "job %s uses function \"%s\"", j->id, c->function);
        if (c->dataset && strcmp(c->dataset, j->request.dataset) == 0)
            c->status =
                err_set(&c->why, ERR_CONFLICT, "job %s uses dataset \"%s\"", j->id, c->dataset);
    }
    held_name(held, kind, name);
    if (c->status == 0 && json_object_set_new(o->held, held, json_true()))
        c->status = err_set(&c->why, ERR_NOMEM, "no memory to hold %s \"%s\"", kind, name);
}

static void run_let_go(owner *o, void *arg)
{
    json_object_del(o->held, ((request_call *)arg)->id);
}

static void release(owner *o, const char *kind, const char *name)
{
    char held[HELD_BYTES];
    request_call c = {.id = held};
    held_name(held, kind, name);
    owner_run(o, run_let_go, &c);
}

/* A job that is suspended goes on with its dataset; of its function it has the object. */
static int check_not_suspended(void *context, const char *id, json_t *record, err *e)
{
    const json_t *inner = json_object_get(record, "job");
    const char *state = json_string_value(json_object_get(inner, "state")),
               *name = json_string_value(json_object_get(json_object_get(inner, "request"), "dataset"));
    if (!state || strcmp(state, "suspended") != 0 || !name || strcmp(name, context) != 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "job %s, which is suspended, uses dataset \"%s\"", id, name);
}

/* Deletes the function or the dataset that the call names, while no job can begin to use it. */
static int delete_unused(owner *o, request_call *c, err *e)
{
    store *s = o->controller->store;
    const char *name = c->function ? c->function : c->dataset;
    owner_run(o, run_hold_unused, c);
    if (c->status)
        return finish(c, e);
    failpoint(c->function ? "controller.delete-function" : "controller.delete-dataset");
    int status = c->function ? store_delete(s, "functions", name, STORE_ANY, e)
                 : store_walk(s, "jobs", check_not_suspended, (void *)(uintptr_t)name, e)
                     ? -1
                     : dataset_delete(s, name, e);
    release(o, c->function ? "function" : "dataset", name);
    return status;
}

int owner_delete_function(owner *o, const char *name, err *e)
{
    return delete_unused(o, &(request_call){.function = name}, e);
}

int owner_delete_dataset(owner *o, const char *name, err *e)
{
    return delete_unused(o, &(request_call){.dataset = name}, e);
}

static void run_check_ended(owner *o, void *arg)
{
    request_call *c = arg;
    if (jobs_find(o->machine, c->id))
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s has not ended", c->id);
}

bool owner_runs(owner *o, const char *id)
{
    request_call c = {.id = id};
    owner_run(o, run_check_ended, &c);
    return c.status != 0;
}

static void run_hold(owner *o, void *arg)
{
    request_call *c = arg;
    run_check_ended(o, arg);
    if (c->status == 0 && json_object_get(o->held, c->id))
        c->status = err_set(&c->why, ERR_CONFLICT, "what job %s left is being deleted", c->id);
    if (c->status == 0 && json_object_set_new(o->held, c->id, json_true()))
        c->status = err_set(&c->why, ERR_NOMEM, "no memory to hold job %s", c->id);
}

int owner_hold(owner *o, const char *id, err *e)
{
    request_call c = {.id = id};
    wait_drained(o, id);
    owner_run(o, run_hold, &c);
    return finish(&c, e);
}

void owner_let_go(owner *o, const char *id)
{
    request_call c = {.id = id};
    owner_run(o, run_let_go, &c);
}

static void run_forget(owner *o, void *arg)
{
    request_call *c = arg;
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *entries = NULL;
    size_t count = 0;
    err why = ERR_INIT;
    run_check_ended(o, arg);
    if (c->status)
        return;
    if (store_delete(o->controller->store, "jobs", c->id, STORE_ANY, &why) &&
        why.code != ERR_NOT_FOUND) {
        c->why = why;
        c->status = -1;
        return;
    }
    snprintf(prefix, sizeof prefix, "logs/%s/", c->id);
    if (store_blob_list(o->controller->store, prefix, NULL, 0, &entries, &count, NULL) == 0)
        for (size_t i = 0; i < count; i++)
            store_blob_delete(o->controller->store, entries[i].name, NULL);
}

int owner_forget(owner *o, const char *id, err *e)
{
    request_call c = {.id = id};
    owner_run(o, run_forget, &c);
    return finish(&c, e);
}

/* ---- followers ------------------------------------------------------------------------------- */

static void run_follow(owner *o, void *arg)
{
    request_call *c = arg;
    c->status = follow_add(o, c->id, c->stream, c->active, &c->why);
}

int owner_follow_events(owner *o, const char *id, http_stream *stream, err *e)
{
    request_call c = {.id = id, .stream = stream};
    owner_run(o, run_follow, &c);
    return finish(&c, e);
}

int owner_follow_logs(owner *o, const char *id, http_stream *stream, err *e)
{
    request_call c = {.id = id, .stream = stream, .active = true};
    owner_run(o, run_follow, &c);
    return finish(&c, e);
}

/* ---- runtimes for /infer --------------------------------------------------------------------- */

static void run_take(owner *o, void *arg)
{
    pool_take_function(o, ((request_call *)arg)->waiter);
}

static void run_forget_waiter(owner *o, void *arg)
{
    for (link_pod *p = o->pods; p; p = p->next)
        if (p->waiter == ((request_call *)arg)->waiter)
            p->waiter = NULL;
}

int owner_take_function(owner *o, int64_t deadline_ms, wire **out, char name[CLUSTER_NAME_BYTES],
                        err *e)
{
    take_waiter w = {0};
    request_call c = {.waiter = &w};
    owner_run(o, run_take, &c);
    pthread_mutex_lock(&o->lock);
    while (!w.done && !o->stopping && clock_monotonic_ms() < deadline_ms) {
        struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
        pthread_cond_timedwait(&o->taken, &o->lock, &until);
    }
    bool done = w.done;
    pthread_mutex_unlock(&o->lock);
    if (!done) {
        owner_run(o, run_forget_waiter, &c);
        if (!w.done)
            return err_set(e, ERR_UNAVAILABLE, "no runtime was ready in time");
    }
    if (!w.wire) {
        if (e)
            *e = w.why;
        return -1;
    }
    *out = w.wire;
    snprintf(name, CLUSTER_NAME_BYTES, "%s", w.pod);
    return 0;
}

static void run_release(owner *o, void *arg)
{
    pool_stop(o, ((request_call *)arg)->pod, POD_GRACE_MS);
}

void owner_release_function(owner *o, const char *name)
{
    request_call c = {.pod = name};
    owner_run(o, run_release, &c);
}

/* ---- figures --------------------------------------------------------------------------------- */

static void run_status(owner *o, void *arg)
{
    request_call *c = arg;
    int queued = 0, running = 0, functions, ps, all;
    for (size_t i = 0; i < jobs_count(o->machine); i++) {
        const job *j = jobs_at(o->machine, i);
        queued += j->state == JOB_QUEUED;
        running += j->state == JOB_STARTING || j->state == JOB_RUNNING;
    }
    pool_counts(o, &functions, &ps, &all);
    *c->out = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "slots", o->slots, "slots_free",
                        jobs_slots_free(o->machine), "queued", queued, "running", running,
                        "warm_functions", functions, "warm_ps", ps, "pods", all);
    c->status = *c->out ? 0 : err_set(&c->why, ERR_NOMEM, "no memory for the answer");
}

int owner_status(owner *o, json_t **out, err *e)
{
    request_call c = {.out = out};
    owner_run(o, run_status, &c);
    return finish(&c, e);
}

void owner_update_metrics(owner *o)
{
    cleanup_json json_t *s = NULL;
    controller_metrics *m = &o->controller->metrics;
    if (owner_status(o, &s, NULL))
        return;
    const struct {
        metric *to;
        const char *key, *label;
    } gauges[] = {{m->slots, "slots", NULL},      {m->slots_free, "slots_free", NULL},
                  {m->queue, "queued", NULL},     {m->running, "running", "train"},
                  {m->pods, "pods", NULL},        {m->pool_warm, "warm_functions", "function"},
                  {m->pool_warm, "warm_ps", "ps"}};
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
        metric_set(gauges[i].to, (double)json_integer_value(json_object_get(s, gauges[i].key)),
                   gauges[i].label, NULL, NULL);
}
