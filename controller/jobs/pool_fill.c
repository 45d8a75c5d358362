/* pool_fill.c: how many warm pods there are, and which GPUs they are for. */
#include <limits.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "job_manager_internal.h"

enum {
    STARTING_MAX = 2, /* pods of the pool that start at the same time */
    LOOK_MS = 1000,   /* between pods that are started to find GPUs; doubled each time */
    LOOK_MS_MAX = 60000,
    VAIN_MAX = 4, /* pods on GPUs without room that wait beside the pool's */
};

/* Counts generic pods, warm or starting, that the job at the head of the queue could take; the
 * oldest warm pod in *oldest. A pod that waits for room counts as STARTING_MAX: no other is started
 * beside it. */
static int generic_count(job_manager *o, pod_role role, int *starting, link_pod **oldest)
{
    int count = 0;
    for (link_pod *p = o->pods; p; p = p->next) {
        if (p->role != role || p->job[0] || p->waiter || p->vain ||
            (p->use != USE_WARM && p->use != USE_STARTING))
            continue;
        count++;
        if (p->use == USE_STARTING)
            *starting += pool_waits_for_room(p) ? STARTING_MAX : 1;
        else
            *oldest = p;
    }
    return count;
}

/* As many warm functions as could get a slot, and one more to replace a lost function. No spare
 * where the cluster gives each pod a GPU: the spare would ask for one more GPU than functions may
 * have, and an autoscaler could start a node, which costs money, for it. */
static int functions_wanted(const job_manager *o)
{
    int useful = jobs_slots_free(o->machine) + (pool_pods_have_gpus(o) ? 0 : 1);
    int floor = o->controller->config.pool_functions;
    floor = jobs_waiting(o->machine) && floor > 1 ? 1 : floor;
    return floor < useful ? floor : useful;
}

/* The GPU on which to make the next warm pod ready: where a function without a limit would be
 * placed next, counting the warm pods there are; where all GPUs are full, the GPU with the fewest
 * warm pods. With MPS every second pod is on no GPU (-1), for jobs with limits. */
static int gpu_to_warm(const job_manager *o, pod_role role)
{
    const gpu_share one = {0};
    gpu_state gpus[GPU_COUNT_MAX];
    int ready[GPU_COUNT_MAX] = {0}, plain = 0, all = 0, least = 0;
    if (role != POD_FUNCTION || o->gpus == 0)
        return -1;
    jobs_gpu_states(o->machine, gpus);
    for (const link_pod *p = o->pods; p; p = p->next) {
        if (p->role != role || p->job[0] || p->waiter ||
            (p->use != USE_WARM && p->use != USE_STARTING))
            continue;
        all++;
        if (p->gpu < 0) {
            plain++;
            continue;
        }
        ready[p->gpu]++;
        gpu_book(&gpus[p->gpu], one);
    }
    if (o->mps && 2 * plain <= all)
        return -1;
    for (int i = 1; i < o->gpus; i++)
        least = ready[i] < ready[least] ? i : least;
    int at = gpu_place(o->controller->config.gpu_policy, gpus, o->gpus, one);
    return at < 0 ? least : at;
}

static void fill_role(job_manager *o, pod_role role, int wanted, int floor)
{
    int starting = 0;
    link_pod *oldest = NULL;
    int have = generic_count(o, role, &starting, &oldest);
    int64_t now = clock_monotonic_ms();
    for (; have < wanted && starting < STARTING_MAX && now >= o->pool_retry_ms;
         have++, starting++) {
        err e = ERR_INIT;
        if (!pool_start(o, role, gpu_to_warm(o, role), &e)) {
            log_error("the pool: %s", e.message);
            pool_retry_later(o);
            return;
        }
    }
    if (have > floor && oldest && now - oldest->since_ms > JOB_MANAGER_POOL_IDLE_MS)
        pool_stop(o, oldest->name, POD_GRACE_MS);
}

/* Marks the warm pods that a waiting job cannot use: books the job pod by pod on the GPUs of warm
 * pods, and marks the pods whose GPU has no room left. Returns their number, and the oldest. `j`
 * NULL: no job waits. */
static int mark_vain(job_manager *o, const job *j, link_pod **oldest)
{
    gpu_state gpus[GPU_COUNT_MAX];
    int count = 0;
    if (j)
        jobs_gpu_states(o->machine, gpus);
    for (link_pod *p = o->pods; p; p = p->next) {
        p->vain = j && pool_is_generic(p, POD_FUNCTION, USE_WARM) && p->gpu >= 0 &&
                  !job_gpu_fill(j, &gpus[p->gpu]);
        if (p->vain) {
            count++;
            *oldest = p;
        }
    }
    return count;
}

/* Starts pods for a job that waits for room on a GPU, until it has what it needs: there may be GPUs
 * that no pod has reported yet. Pods that came in vain, VAIN_MAX at most, stay for a while to keep
 * the next pods from their GPUs. */
static void look_for_gpus(job_manager *o, const job *j, int pods)
{
    link_pod *oldest = NULL, *warm = NULL;
    int64_t now = clock_monotonic_ms();
    int starting = 0, vain = mark_vain(o, j, &oldest);
    generic_count(o, POD_FUNCTION, &starting, &warm);
    if (vain && now < o->look_ms)
        return;
    if (vain) {
        int64_t wait = o->look_wait_ms ? 2 * o->look_wait_ms : LOOK_MS;
        o->look_wait_ms = wait < LOOK_MS_MAX ? wait : LOOK_MS_MAX;
        o->look_ms = now + o->look_wait_ms;
    }
    /* A pod that finds no place may find the place of the oldest. */
    if (vain > VAIN_MAX || (vain && (starting >= STARTING_MAX || now < o->pool_retry_ms)))
        pool_stop(o, oldest->name, POD_GRACE_MS);
    int floor = functions_wanted(o);
    fill_role(o, POD_FUNCTION, pods > floor ? pods : floor, INT_MAX);
}

void pool_fill(job_manager *o)
{
    int pods = 0;
    if (!o->machine)
        return;
    fill_role(o, POD_PS, o->controller->config.pool_ps, o->controller->config.pool_ps);
    const job *j = o->gpus_elsewhere ? jobs_gpu_waiting(o->machine, &pods) : NULL;
    if (j) {
        look_for_gpus(o, j, pods);
        return;
    }
    o->look_ms = o->look_wait_ms = 0;
    mark_vain(o, NULL, &(link_pod *){NULL});
    fill_role(o, POD_FUNCTION, functions_wanted(o), o->controller->config.pool_functions);
}
