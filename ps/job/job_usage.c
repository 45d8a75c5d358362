/* job_usage.c: see job_usage.h. */
#include "job_usage.h"

#include <math.h>
#include <string.h>

#include "common/contract/nvml.h"

static void add(usage_sums *s, const json_t *row)
{
    const json_t *gpu = json_object_get(row, "gpu");
    uint64_t memory = (uint64_t)json_integer_value(json_object_get(row, "memory_bytes"));
    s->count++;
    s->cpu_percent += json_number_value(json_object_get(row, "cpu_percent"));
    s->memory_bytes = memory > s->memory_bytes ? memory : s->memory_bytes;
    const json_t *percent = json_object_get(gpu, "percent"), *watts = json_object_get(gpu, "watts");
    memory = (uint64_t)json_integer_value(json_object_get(gpu, "memory_bytes"));
    s->gpu_percent_count += percent != NULL;
    s->gpu_percent += json_number_value(percent);
    s->gpu_watts_count += watts != NULL;
    s->gpu_watts += json_number_value(watts);
    s->gpu_memory_bytes = memory > s->gpu_memory_bytes ? memory : s->gpu_memory_bytes;
}

int job_usage_take(job_usage *u, int function, int incarnation, const json_t *usage, int64_t now_ms,
                   err *e)
{
    double cpu, percent = 0, watts = 0, own_percent = 0;
    json_int_t memory, taken = 0, own;
    json_t *gpu = NULL;
    const char *name;
    json_error_t problem;
    if (json_unpack_ex((json_t *)(uintptr_t)usage, &problem, JSON_STRICT, "{s:F,s:I,s?o}",
                       "cpu_percent", &cpu, "memory_bytes", &memory, "gpu", &gpu) != 0 ||
        (gpu && json_unpack_ex(gpu, &problem, JSON_STRICT, "{s:s,s?F,s?I,s:I,s?F,s?F}", "name",
                               &name, "percent", &percent, "memory_bytes", &taken, "own_bytes",
                               &own, "watts", &watts, "own_percent", &own_percent) != 0))
        return err_set(e, ERR_INVALID, "usage: %s", problem.text);
    /* Bounded as by NVML: each report has the rows of all functions in one frame. */
    if (gpu && strlen(name) >= NVML_NAME_BYTES)
        return err_set(e, ERR_INVALID, "usage: a GPU's name of %zu bytes", strlen(name));
    if (function < 0 || function >= ROUND_FUNCTIONS_MAX || memory < 0 ||
        (gpu && (taken < 0 || own < 0)))
        return err_set(e, ERR_INVALID, "usage: a number out of range");
    json_t *row = json_deep_copy(usage);
    if (!row)
        return err_set(e, ERR_NOMEM, "no memory for what a function uses");
    json_object_set_new(row, "function", json_integer(function));
    json_object_set_new(row, "incarnation", json_integer(incarnation));
    const json_t *before = u->rows[function].last;
    if (!before || json_integer_value(json_object_get(before, "incarnation")) != incarnation)
        u->tell_ms = 0; /* at once, or a running job would seem to have no functions */
    json_decref(u->rows[function].last);
    u->rows[function] = (usage_row){row, now_ms};
    add(&u->sums, row);
    return 0;
}

json_t *job_usage_message(job_usage *u, int64_t now_ms)
{
    if (now_ms < u->tell_ms)
        return NULL;
    u->tell_ms = now_ms + JOB_USAGE_TELL_MS;
    json_t *rows = json_array();
    for (int i = 0; i < ROUND_FUNCTIONS_MAX; i++)
        if (u->rows[i].last && u->rows[i].heard_ms + JOB_USAGE_STALE_MS > now_ms)
            json_array_append(rows, u->rows[i].last);
    return json_pack("{s:s,s:o}", "type", "usage", "functions", rows);
}

void job_usage_epoch(job_usage *u, epoch_result *out)
{
    usage_sums *s = &u->sums;
    bool none = s->count == 0;
    for (int i = 0; none && i < ROUND_FUNCTIONS_MAX; i++)
        if (u->rows[i].last)
            add(s, u->rows[i].last);
    out->cpu_percent = s->count ? s->cpu_percent / s->count : NAN;
    out->memory_bytes = s->count ? s->memory_bytes : UINT64_MAX;
    out->gpu_percent = s->gpu_percent_count ? s->gpu_percent / s->gpu_percent_count : NAN;
    out->gpu_watts = s->gpu_watts_count ? s->gpu_watts / s->gpu_watts_count : NAN;
    out->gpu_memory_bytes = s->gpu_memory_bytes ? s->gpu_memory_bytes : UINT64_MAX;
    *s = (usage_sums){0};
}

void job_usage_clear(job_usage *u)
{
    for (int i = 0; i < ROUND_FUNCTIONS_MAX; i++) {
        json_decref(u->rows[i].last);
        u->rows[i].last = NULL;
    }
}
