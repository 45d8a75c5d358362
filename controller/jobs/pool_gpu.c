/* pool_gpu.c: the GPUs that pods have reported, where the cluster hands them out. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "job_manager_internal.h"

bool pool_pods_have_gpus(const job_manager *o)
{
    return o->cluster->ops->pod_gpus && o->cluster->ops->pod_gpus(o->cluster) > 0;
}

int pool_gpu_shown(job_manager *o, const cluster_gpu *gpu)
{
    if (!gpu->id[0] || gpu->memory_bytes == 0)
        return -1;
    int was = -1;
    for (int i = 0; i < GPU_COUNT_MAX && was < 0; i++)
        if (strcmp(o->gpu[i].id, gpu->id) == 0)
            was = i;
    if (was >= 0 && o->gpu[was].memory_bytes)
        return was;
    int at = jobs_gpu_add(o->machine, was, gpu->memory_bytes, gpu->mps);
    if (at < 0) {
        log_error("GPU %s is one too many: nobody is placed there", gpu->id);
        return -1;
    }
    o->gpu[at] = *gpu;
    log_info("GPU %d: %s, %.1f GiB", at, gpu->id, (double)gpu->memory_bytes / 0x1p30);
    return at;
}

int pool_gpu_told(job_manager *o, const json_t *told)
{
    cluster_gpu gpu = {0};
    const char *id = json_string_value(json_object_get(told, "id"));
    json_int_t bytes = json_integer_value(json_object_get(told, "memory_bytes"));
    if (!id || strlen(id) >= sizeof gpu.id || bytes <= 0)
        return -1;
    snprintf(gpu.id, sizeof gpu.id, "%s", id);
    gpu.memory_bytes = (uint64_t)bytes;
    gpu.mps = json_is_true(json_object_get(told, "mps"));
    return pool_gpu_shown(o, &gpu);
}

/* With its last pod a GPU is unknown again. */
void pool_gpu_forget(job_manager *o, int gpu)
{
    if (!o->gpus_elsewhere || gpu < 0)
        return;
    for (const link_pod *p = o->pods; p; p = p->next)
        if (p->gpu == gpu)
            return;
    log_info("GPU %d: no pod is on %s any more", gpu, o->gpu[gpu].id);
    o->gpu[gpu].memory_bytes = 0;
    jobs_gpu_gone(o->machine, gpu);
}
