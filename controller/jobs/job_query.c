/* job_query.c: calls of job_manager.h that show jobs, why they wait, their logs and the platform's
 * figures, and that give a runtime to /infer; see job_manager_call.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "job_manager_call.h"

/* ---- tasks ----------------------------------------------------------------------------------- */

static void run_task(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    const job *j = jobs_find(o->machine, c->id);
    jobs_look look = job_manager_look(o);
    if (j) {
        *c->out = jobs_live_json(o, &look, j);
        c->status = *c->out ? 0 : err_set(&c->why, ERR_NOMEM, "no memory for the answer");
        return;
    }
    cleanup_json json_t *record = NULL;
    c->status = job_query_record(o, c->id, &record, &c->why);
    if (c->status == 0) {
        *c->out = jobs_task_json(record);
        json_object_set_new(*c->out, "phase", json_null());
    }
}

int job_query_task(job_manager *o, const char *id, json_t **out, err *e)
{
    job_manager_call c = {.id = id, .out = out};
    job_manager_run(o, run_task, &c);
    return job_manager_call_end(&c, e);
}

static void run_live(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    jobs_look look = job_manager_look(o);
    for (size_t i = 0; i < jobs_count(o->machine); i++) {
        const job *j = jobs_at(o->machine, i);
        json_t *task = job_ended(j) && !c->drains ? NULL : jobs_live_json(o, &look, j);
        if (task)
            json_array_append_new(*c->out, task);
    }
    c->unsaved = json_deep_copy(o->unsaved);
}

static bool has_task(const json_t *list, const char *id)
{
    size_t i;
    json_t *task;
    json_array_foreach ((json_t *)(uintptr_t)list, i, task)
        if (strcmp(json_string_value(json_object_get(task, "id")), id) == 0)
            return true;
    return false;
}

/* For the jobs in the store that are not shown as live jobs. */
typedef struct recorded_jobs {
    const json_t *live, *unsaved;
    bool active; /* also jobs that have not ended by their record, and that nothing runs */
} recorded_jobs;

static json_t *show_recorded(void *context, const char *key, json_t *record)
{
    const recorded_jobs *s = context;
    job_state state;
    json_t *newer = json_object_get(s->unsaved, key);
    if (newer)
        record = newer;
    if (!jobs_record_state(record, &state) || (state < JOB_SUCCEEDED && !s->active) ||
        has_task(s->live, key))
        return NULL;
    json_t *task = jobs_task_json(record);
    json_object_set_new(task, "phase", json_null());
    return task;
}

int job_query_tasks(job_manager *o, bool active, bool ended, list_page *page, json_t **out, err *e)
{
    json_t *live = json_array();
    job_manager_call c = {.out = &live, .drains = !page};
    job_manager_run(o, run_live, &c);
    *out = json_array();
    if (active && (!page || !page->after[0]))
        json_array_extend(*out, live);
    /* The store has the ended jobs, also those whose pods are still ending. The caller's thread
     * reads it. */
    recorded_jobs s = {live, c.unsaved, active};
    int status =
        ended ? list_add(o->controller->store, "jobs", page, show_recorded, &s, *out, e) : 0;
    json_decref(live);
    json_decref(c.unsaved);
    if (status)
        json_decref(*out);
    return status;
}

static void run_news(job_manager *o, void *arg)
{
    json_t **out = arg;
    *out = o->news ? o->news : json_array();
    o->news = json_array();
}

json_t *job_query_news(job_manager *o)
{
    json_t *out = NULL;
    job_manager_run(o, run_news, &out);
    return out;
}

/* ---- explain --------------------------------------------------------------------------------- */

enum { LOG_END_LINES = 8, LOG_END_LINE_BYTES = 400 };

/* Adds a condition that is true; `Exact` where the weights are not exact; and how often functions
 * were lost, also when all are there again. */
static void add_condition(json_t *list, const json_t *condition)
{
    const char *type, *status, *reason, *message;
    if (json_unpack((json_t *)(uintptr_t)condition, "{s:s,s:s,s:s,s:s}", "type", &type, "status",
                    &status, "reason", &reason, "message", &message))
        return;
    bool is = strcmp(status, "True") == 0, exact = strcmp(type, "Exact") == 0;
    bool lost = strcmp(type, "FunctionLost") == 0 && strcmp(reason, "Ended") != 0;
    if (is || exact || lost)
        json_array_append_new(
            list, json_sprintf("%s%s: %s", type, exact && !is ? "=False" : "", message));
}

/* A line that JSON can hold: user code writes any bytes. */
static json_t *log_line(char *text, size_t len)
{
    len = len < LOG_END_LINE_BYTES ? len : LOG_END_LINE_BYTES;
    json_t *line = json_stringn(text, len);
    for (size_t i = 0; !line && i < len; i++)
        if ((unsigned char)text[i] >= 0x80)
            text[i] = '?';
    return line ? line : json_stringn(text, len);
}

/* Adds the end of a failed job's log, where its code may say why; nothing where there is no log. */
static void add_log_end(job_manager *o, const char *id, json_t *evidence)
{
    char *text = NULL;
    size_t held = 0, from, lines = 0;
    if (job_query_logs(o, id, &text, &held, NULL))
        return;
    size_t len = held;
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
    job_query_logs_give_back(o, text, held);
}

/* What is free on the GPUs that pods have reported. */
static void run_gpus_free(job_manager *o, void *arg)
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

int job_query_explain(job_manager *o, const char *id, json_t **out, err *e)
{
    cleanup_json json_t *task = NULL;
    if (job_query_task(o, id, &task, e))
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
    const json_t *note = json_object_get(task, "note");
    if (json_is_string(note))
        json_array_append_new(evidence, json_string(json_string_value(note)));
    json_array_foreach (json_object_get(task, "gpus"), i, gpu)
        json_array_append_new(
            evidence, json_sprintf("function %d is on GPU %s", (int)i, json_string_value(gpu)));
    const char *reason = json_string_value(json_object_get(task, "reason"));
    if (reason && strncmp(reason, "NoGpu", 5) == 0)
        job_manager_run(o, run_gpus_free, evidence);
    json_array_foreach (json_object_get(task, "conditions"), i, condition)
        add_condition(evidence, condition);
    if (strcmp(json_string_value(json_object_get(task, "state")), "failed") == 0)
        add_log_end(o, id, evidence);
    *out = json_pack("{s:O, s:O, s:O, s:O, s:o}", "id", json_object_get(task, "id"), "state",
                     json_object_get(task, "state"), "reason", json_object_get(task, "reason"),
                     "message", json_object_get(task, "message"), "evidence", evidence);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for the answer");
}

/* ---- logs ------------------------------------------------------------------------------------ */

int job_query_logs(job_manager *o, const char *id, char **out, size_t *len, err *e)
{
    return log_reader_read(o, id, out, len, e);
}

void job_query_logs_give_back(job_manager *o, char *text, size_t len)
{
    if (text)
        log_reader_give_back(o, text, len);
}

/* ---- followers ------------------------------------------------------------------------------- */

static void run_place(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    cleanup_json json_t *record = NULL;
    if (!jobs_find(o->machine, c->id) && job_query_record(o, c->id, &record, &c->why))
        c->status = -1;
    else
        c->status = follow_place(o, c->id, c->active, &c->follower, &c->why);
}

static int take_place(job_manager *o, job_manager_call *c, follower **out, err *e)
{
    job_manager_run(o, run_place, c);
    *out = c->follower;
    return job_manager_call_end(c, e);
}

int job_manager_follow_events(job_manager *o, const char *id, follower **out, err *e)
{
    if (take_place(o, &(job_manager_call){.id = id}, out, e))
        return -1;
    if (job_query_runs(o, id) || follow_recall(o, *out, e) == 0)
        return 0;
    follow_free(o, steal_ptr(*out));
    return -1;
}

int job_manager_follow_logs(job_manager *o, const char *id, follower **out, err *e)
{
    return take_place(o, &(job_manager_call){.id = id, .active = true}, out, e);
}

static void run_follow(job_manager *o, void *arg)
{
    follow_begin(o, arg);
}

void job_manager_follow(job_manager *o, follower *f, http_stream *stream)
{
    f->stream = stream;
    job_manager_run(o, run_follow, f);
}

/* ---- runtimes for /infer --------------------------------------------------------------------- */

static void run_take(job_manager *o, void *arg)
{
    pool_take_function(o, ((job_manager_call *)arg)->waiter);
}

static void run_forget_waiter(job_manager *o, void *arg)
{
    for (link_pod *p = o->pods; p; p = p->next)
        if (p->waiter == ((job_manager_call *)arg)->waiter)
            p->waiter = NULL;
}

int job_manager_take_function(job_manager *o, int64_t deadline_ms, wire **out,
                              char name[CLUSTER_NAME_BYTES], err *e)
{
    take_waiter w = {0};
    job_manager_call c = {.waiter = &w};
    job_manager_run(o, run_take, &c);
    pthread_mutex_lock(&o->lock);
    while (!w.done && !o->stopping && clock_cond_wait(&o->taken, &o->lock, deadline_ms))
        ;
    bool done = w.done;
    pthread_mutex_unlock(&o->lock);
    if (!done) {
        job_manager_run(o, run_forget_waiter, &c);
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

static void run_release(job_manager *o, void *arg)
{
    pool_stop(o, ((job_manager_call *)arg)->pod, POD_GRACE_MS);
}

void job_manager_release_function(job_manager *o, const char *name)
{
    job_manager_call c = {.pod = name};
    job_manager_run(o, run_release, &c);
}

/* ---- figures --------------------------------------------------------------------------------- */

static void run_status(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
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

int job_query_status(job_manager *o, json_t **out, err *e)
{
    job_manager_call c = {.out = out};
    job_manager_run(o, run_status, &c);
    return job_manager_call_end(&c, e);
}

void job_query_update_metrics(job_manager *o)
{
    cleanup_json json_t *s = NULL;
    controller_metrics *m = &o->controller->metrics;
    if (job_query_status(o, &s, NULL))
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
