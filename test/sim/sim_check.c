/* sim_check.c: what must be true of the jobs machine after every step of it. */
#include <string.h>

#include "sim.h"

enum {
    GONE_MS = 320000, /* a pod is stopped ten times, in 300 s */
    SOON_MS = 100,    /* within a few steps */
};

/* What the function takes of a GPU: by what is there, not by the machine's own books. */
static void use_gpu(sim *s, const job *j, int f, uint64_t taken[SIM_GPUS_MAX])
{
    int at = job_gpu(j, f);
    if (s->gpus == 0 || s->gpus_elsewhere || j->request.device == DEVICE_CPU)
        return;
    if (at < 0 || at >= s->gpus)
        sim_wrong(s, "function %d of job %s has no GPU", f, j->id);
    else
        taken[at] += j->request.gpu.memory_bytes ? j->request.gpu.memory_bytes
                                                 : SIM_GPU_BYTES / GPU_UNCAPPED_PARTS;
}

/* What a pod takes of the GPU that it has; of pods of one function on one GPU the first. */
static void use_gpu_of_pod(sim *s, const job *j, int i, uint64_t taken[SIM_GPUS_MAX])
{
    uint64_t each = j->request.gpu.memory_bytes;
    const job_pod *p = &j->pod[i];
    const process *own = p->name[0] && p->function >= 0 ? sim_living(s, p->name) : NULL;
    if (!own || own->gpu < 0 || p->phase == JOB_POD_GONE || j->request.device == DEVICE_CPU)
        return;
    for (int k = 0; k < i; k++) {
        const process *before = j->pod[k].name[0] ? sim_living(s, j->pod[k].name) : NULL;
        if (before && before->function == own->function && before->gpu == own->gpu)
            return;
    }
    each = each ? each : SIM_GPU_BYTES / GPU_UNCAPPED_PARTS;
    taken[own->gpu] +=
        each *
        (uint64_t)(j->request.process == PROCESS_SHARED ? j->request.default_parallelism : 1);
}

/* Ranks of NCCL's are on GPUs of their own: none is put on another's while a GPU that has none of
 * them has room for one. */
static void check_apart(sim *s, const job *j, const uint64_t taken[SIM_GPUS_MAX])
{
    const gpu_share *share = &j->request.gpu;
    uint64_t bytes = share->memory_bytes ? share->memory_bytes : SIM_GPU_BYTES / GPU_UNCAPPED_PARTS;
    sim_job *own = NULL;
    int ranks[SIM_GPUS_MAX] = {0}, most = 0;
    for (int i = 0; i < s->jobs; i++)
        own = strcmp(s->job[i].id, j->id) == 0 ? &s->job[i] : own;
    if (!own || own->placed || s->gpus == 0 || s->gpus_elsewhere || job_ended(j) ||
        j->parallelism == 0 || j->request.merge != MERGE_NCCL)
        return;
    own->placed = true; /* later others may have made room */
    for (int f = 0; f < j->parallelism; f++)
        if (job_gpu(j, f) >= 0 && ++ranks[job_gpu(j, f)] > most)
            most = ranks[job_gpu(j, f)];
    for (int i = 0; i < s->gpus && most > 1; i++)
        if (ranks[i] == 0 && taken[i] + bytes <= SIM_GPU_BYTES)
            sim_wrong(s, "job %s has %d ranks on one GPU and none on GPU %d, which has room", j->id,
                      most, i);
}

/* Of an elastic job none is without data. */
static void check_useful(sim *s, const job *j)
{
    int chunks = sim_chunks(&s->job[sim_job_index(s, j->id)]);
    if (!j->request.static_parallelism && j->parallelism > chunks)
        sim_wrong(s, "job %s has %d functions for %d chunks", j->id, j->parallelism, chunks);
}

/* What it would need is there, though others may have it. */
static bool is_possible(const sim *s, const job *j)
{
    bool unknown =
        s->gpus_elsewhere && j->request.device != DEVICE_CPU; /* it may not be shown yet */
    return !s->job[sim_job_index(s, j->id)].hopeless && !unknown &&
           (!j->request.static_parallelism || j->request.default_parallelism <= s->slots);
}

static bool may_start(const sim *s, const job *j)
{
    return j->state == JOB_QUEUED && j->again_ms <= s->now && is_possible(s, j);
}

static bool is_before(const job *a, const job *b)
{
    int more = a->request.priority - b->request.priority;
    return more > 0 || (more == 0 && a->order < b->order);
}

void check_turn(sim *s, const job *started)
{
    for (size_t k = 0; k < jobs_count(s->machine); k++) {
        const job *j = jobs_at(s->machine, k);
        if (may_start(s, j) && is_before(j, started))
            sim_wrong(s, "job %s starts before job %s, whose turn it is", started->id, j->id);
    }
}

/* Nor does that one wait beside slots that are enough for it; where GPUs count, it may. */
static void check_waits(sim *s, int free)
{
    const job *first = NULL;
    for (size_t k = 0; k < jobs_count(s->machine) && !s->gpus && !s->adopting; k++) {
        const job *j = jobs_at(s->machine, k);
        if (may_start(s, j) && (!first || is_before(j, first)))
            first = j;
    }
    if (!first)
        return;
    int wants = first->request.default_parallelism;
    int chunks = sim_chunks(&s->job[sim_job_index(s, first->id)]);
    if (!first->request.static_parallelism && wants > chunks)
        wants = chunks;
    if (wants <= free)
        sim_wrong(s, "job %s, whose turn it is, waits for %d slots, and %d are free", first->id,
                  wants, free);
}

/* Every wait for its end is bounded. */
static void check_ends(sim *s, const job *j)
{
    sim_job *own = &s->job[sim_job_index(s, j->id)];
    int64_t deadline = j->started_wall_ms + 1000 * (int64_t)j->request.active_deadline_seconds;
    deadline = deadline > s->began_ms ? deadline : s->began_ms;
    bool decided = !job_ended(j) && j->verdict && j->verdict_state != JOB_SUSPENDED;
    own->decided_ms = !decided ? INT64_MAX : own->decided_ms < s->now ? own->decided_ms : s->now;
    own->ended_ms = !job_ended(j) ? INT64_MAX : own->ended_ms < s->now ? own->ended_ms : s->now;
    if (decided && s->now > own->decided_ms + s->limits.stop_ms)
        sim_wrong(s, "job %s has not ended %lld ms after that was decided", j->id,
                  (long long)(s->now - own->decided_ms));
    if (job_ended(j) && !own->done && !own->waits_resume && s->now > own->ended_ms + GONE_MS)
        sim_wrong(s, "job %s has pods %d s after its end", j->id, GONE_MS / 1000);
    if (j->request.active_deadline_seconds && j->started_wall_ms && s->now > deadline + SOON_MS &&
        !decided && !job_ended(j))
        sim_wrong(s, "job %s goes on beyond its deadline", j->id);
}

/* The slots that it holds. */
static int check_pods(sim *s, const job *j, uint64_t taken[SIM_GPUS_MAX])
{
    int present = 0, held = 0;
    uint64_t used = 0;
    for (int i = 0; i < j->pods; i++) {
        const job_pod *p = &j->pod[i];
        present += p->function == JOB_KUBEML_PS && p->phase < JOB_POD_STOPPING && !p->unwanted;
        bool waits = p->phase == JOB_POD_WANTED && p->name[0] == '\0';
        if (s->gpus_elsewhere)
            use_gpu_of_pod(s, j, i, taken);
        if (p->function >= 0 && p->phase != JOB_POD_GONE && !waits)
            used |= j->request.process == PROCESS_SHARED
                        ? (UINT64_C(1) << j->request.default_parallelism) - 1
                        : UINT64_C(1) << p->function;
    }
    /* A function that ends while its replacement starts counts once, a granted one always. */
    for (int f = 0; f < SIM_FUNCTIONS_MAX; f++) {
        bool holds = (used >> f & 1) || (!job_ended(j) && f < j->parallelism);
        held += holds;
        if (holds)
            use_gpu(s, j, f, taken);
    }
    if (present > 1)
        sim_wrong(s, "job %s has %d kubeml-ps", j->id, present);
    if (!s->gpus_elsewhere && s->job[sim_job_index(s, j->id)].hopeless && j->started_wall_ms)
        sim_wrong(s, "job %s was started, and no GPU could hold it", j->id);
    return held;
}

void check_jobs(sim *s)
{
    int held = 0;
    uint64_t taken[SIM_GPUS_MAX] = {0};
    for (size_t k = 0; k < jobs_count(s->machine); k++)
        held += check_pods(s, jobs_at(s->machine, k), taken);
    if (held > s->slots && held > s->held && !s->adopting) /* there may have been more */
        sim_wrong(s, "%d of %d slots are held", held, s->slots);
    check_waits(s, s->slots - held);
    s->held = held;
    for (int i = 0; i < s->gpus; i++)
        if (taken[i] > SIM_GPU_BYTES)
            sim_wrong(s, "%llu of %d bytes of GPU %d are taken", (unsigned long long)taken[i],
                      SIM_GPU_BYTES, i);
    for (size_t k = 0; k < jobs_count(s->machine); k++) {
        check_apart(s, jobs_at(s->machine, k), taken);
        check_useful(s, jobs_at(s->machine, k));
        if (!s->adopting)
            check_ends(s, jobs_at(s->machine, k));
    }
}
