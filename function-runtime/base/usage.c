/* usage.c: see usage.h. */
#include "usage.h"

#include <stdlib.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/contract/nvml.h"

struct usage {
    nvml *gpu; /* NULL: none */
    int64_t at_ns, cpu_ns;
};

static int64_t cpu_ns(const struct rusage *r)
{
    return (int64_t)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) * 1000000000 +
           (int64_t)(r->ru_utime.tv_usec + r->ru_stime.tv_usec) * 1000;
}

usage *usage_open(void)
{
    usage *u = calloc(1, sizeof *u);
    err e = ERR_INIT;
    struct rusage now;
    if (!u)
        return NULL;
    if (nvml_open(&u->gpu, &e) != 0)
        log_debug("what a GPU does is not told: %s", e.message);
    getrusage(RUSAGE_SELF, &now);
    u->at_ns = clock_monotonic_ns();
    u->cpu_ns = cpu_ns(&now);
    return u;
}

void usage_close(usage *u)
{
    if (!u)
        return;
    nvml_close(u->gpu);
    free(u);
}

void usage_without_gpu(usage *u)
{
    if (!u)
        return;
    nvml_close(u->gpu);
    u->gpu = NULL;
}

uint64_t usage_gpu_own_bytes(usage *u)
{
    nvml_sample s;
    return u && u->gpu && nvml_read(u->gpu, &s, NULL) == 0 ? s.own_bytes : 0;
}

static json_t *gpu_json(nvml *n)
{
    nvml_sample s;
    if (nvml_read(n, &s, NULL) != 0)
        return NULL;
    json_t *percent = s.busy_percent < 0 ? NULL : json_integer(s.busy_percent);
    json_t *taken = s.memory_total ? json_integer((json_int_t)s.memory_bytes) : NULL;
    json_t *watts = s.watts < 0 ? NULL : json_real(s.watts);
    json_t *own = s.own_percent < 0 ? NULL : json_real(s.own_percent);
    return json_pack("{s:s,s:o*,s:o*,s:I,s:o*,s:o*}", "name", s.name, "percent", percent,
                     "memory_bytes", taken, "own_bytes", (json_int_t)s.own_bytes, "watts", watts,
                     "own_percent", own);
}

json_t *usage_json(usage *u)
{
    struct rusage now;
    getrusage(RUSAGE_SELF, &now);
    int64_t at_ns = clock_monotonic_ns(), used_ns = cpu_ns(&now), passed_ns = at_ns - u->at_ns;
    double percent = passed_ns > 0 ? 100.0 * (double)(used_ns - u->cpu_ns) / (double)passed_ns : 0;
    json_t *out = json_pack("{s:f,s:I}", "cpu_percent", percent, "memory_bytes",
                            (json_int_t)now.ru_maxrss * 1024);
    json_t *gpu = u->gpu && out ? gpu_json(u->gpu) : NULL;
    if (gpu)
        json_object_set_new(out, "gpu", gpu);
    u->at_ns = at_ns;
    u->cpu_ns = used_ns;
    return out;
}
