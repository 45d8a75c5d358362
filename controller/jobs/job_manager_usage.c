/* job_manager_usage.c: what functions use, by each job's kubeml-ps, which reports it every few
 * seconds: for GET /usage and /metrics. */
#include <stdio.h>

#include "job_manager_internal.h"

/* Sets a gauge. A value that the driver does not report gets no figure, rather than an idle
 * function's 0. */
static void set_told(metric *gauge, const json_t *value, const char *id, const char *function)
{
    if (json_is_number(value))
        metric_set(gauge, json_number_value(value), id, function, NULL);
}

static void set_gauges(controller_metrics *g, const char *id, const json_t *row)
{
    char function[16];
    const json_t *gpu = json_object_get(row, "gpu"), *own = json_object_get(gpu, "own_bytes");
    snprintf(function, sizeof function, "%d",
             (int)json_integer_value(json_object_get(row, "function")));
    set_told(g->cpu_percent, json_object_get(row, "cpu_percent"), id, function);
    set_told(g->memory_bytes, json_object_get(row, "memory_bytes"), id, function);
    set_told(g->gpu_percent, json_object_get(gpu, "percent"), id, function);
    set_told(g->gpu_memory_bytes, json_object_get(gpu, "memory_bytes"), id, function);
    set_told(g->gpu_watts, json_object_get(gpu, "watts"), id, function);
    set_told(g->gpu_own_bytes, json_integer_value(own) > 0 ? own : NULL, id, function);
    set_told(g->gpu_own_percent, json_object_get(gpu, "own_percent"), id, function);
}

void usage_drop(job_manager *o, const char *id)
{
    controller_metrics *g = &o->controller->metrics;
    metric *const gauges[] = {g->cpu_percent,      g->memory_bytes, g->gpu_percent,
                              g->gpu_memory_bytes, g->gpu_watts,    g->gpu_own_bytes,
                              g->gpu_own_percent};
    job_context *s = job_context_find(o, id);
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
        metric_drop(gauges[i], id);
    if (s) {
        json_decref(s->usage);
        s->usage = NULL;
    }
}

/* Whether a job has functions. An ended job, or one that waits for a retry, releases its pods
 * first, and its kubeml-ps may report once more after that. */
static bool has_functions(const job *j)
{
    return j && j->state != JOB_QUEUED && !job_ended(j);
}

/* Replaces all rows: a released function is in them no more. */
void usage_take(job_manager *o, const char *id, const json_t *rows)
{
    job_context *s = job_context_find(o, id);
    json_t *row, *shown;
    size_t i;
    if (!s || !has_functions(jobs_find(o->machine, id)) || !json_is_array(rows))
        return;
    usage_drop(o, id);
    s->usage = json_array();
    json_array_foreach ((json_t *)(uintptr_t)rows, i, row) {
        shown = json_pack("{s:s}", "job", id);
        json_object_update(shown, row);
        if (!json_object_get(row, "gpu"))
            json_object_set_new(shown, "gpu", json_null());
        json_array_append_new(s->usage, shown);
        set_gauges(&o->controller->metrics, id, row);
    }
}

static void run_usage(job_manager *o, void *arg)
{
    json_t *all = json_array();
    for (const job_context *s = o->contexts; s; s = s->next) {
        if (s->usage && has_functions(jobs_find(o->machine, s->id)))
            json_array_extend(all, s->usage);
    }
    *(json_t **)arg = json_deep_copy(all); /* it goes to another thread */
    json_decref(all);
}

int job_query_usage(job_manager *o, json_t **out, err *e)
{
    *out = NULL;
    job_manager_run(o, run_usage, out);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for what functions use");
}
