/* job_queue.c: which job of the queue starts next, and the slots for it. See job.c for the whole
 * machine. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mutation.h"
#include "job_internal.h"

/* ---- slots ----------------------------------------------------------------------------------- */

int jobs_slots_held(const jobs *m)
{
    int held = 0;
    for (size_t k = 0; k < m->count; k++)
        held += job_held(m->job[k]);
    return held;
}

bool jobs_slots_for(const jobs *m, const job *j, int parallelism)
{
    int held = job_held(j), then = job_held_with(j, parallelism);
    return then <= held || jobs_slots_held(m) - held + then <= m->slots;
}

int jobs_slots_free(const jobs *m)
{
    int free = m->slots - jobs_slots_held(m);
    return free > 0 ? free : 0;
}

/* ---- the queue ------------------------------------------------------------------------------- */

bool job_sooner(const job *a, const job *b)
{
    bool more = a->request.priority > b->request.priority, older = a->order < b->order;
    if (a->request.priority != b->request.priority)
        return MUTATE(44, more, !more);
    return MUTATE(45, older, !older);
}

/* At most one function a chunk for an elastic job: a chunk belongs to one function, so that more
 * functions would have no work, and the policy would not see it in the time of an epoch. A static
 * job has the functions that it asks for. */
int job_useful(const job *j, int functions)
{
    bool idle = !j->request.static_parallelism && j->chunks > 0 && functions > j->chunks;
    return MUTATE(34, idle, false) ? j->chunks : functions;
}

/* A static job starts with the functions that it asks for, or waits; an elastic job starts with the
 * functions that the cluster could hold. */
int job_wants(const jobs *m, const job *j)
{
    int want = job_useful(j, j->request.default_parallelism);
    if (!j->request.static_parallelism && want > m->slots)
        want = m->slots > 0 ? m->slots : 1;
    if (!j->request.static_parallelism)
        want = job_gpu_room(m, j, want);
    return want > 0 ? want : 1;
}

bool job_possible(const jobs *m, const job *j)
{
    int wants = job_wants(m, j);
    return wants <= m->slots && MUTATE(29, job_gpus_hold(m, j, wants), true);
}

static job *first_queued(const jobs *m, bool possible)
{
    job *best = NULL;
    for (size_t k = 0; k < m->count; k++) {
        job *j = m->job[k];
        if (j->state == JOB_QUEUED && j->again_ms <= m->now_ms && (!best || job_sooner(j, best)) &&
            (possible ? job_possible(m, j) : job_wants(m, j) <= m->slots))
            best = j;
    }
    return best;
}

void jobs_cpus(jobs *m, int cpus, bool of_each_pod)
{
    m->cpus = cpus;
    m->pods_own_cpus = of_each_pod;
}

/* The most functions that the job can reach: an elastic job gets one more after each epoch, while
 * there are slots. */
static int most_ever(const jobs *m, const job *j)
{
    int most = j->request.default_parallelism;
    if (!j->request.static_parallelism) {
        most += j->request.epochs - 1;
        most = most < m->slots ? most : m->slots;
        most = most < j->functions_max ? most : j->functions_max;
        most = job_useful(j, most);
    }
    return most > 1 ? most : 1;
}

/* Decides the threads of each function. A function's result depends on them to the bit, so all
 * functions of a job have the same number, later ones and replacements too.
 *
 * Shared CPUs are divided by the most functions that the job can reach, not by those that it begins
 * with: a job that began with one function of eight threads on eight CPUs would grow to 64 threads,
 * without any CPU left for them. So an elastic job takes up the CPUs by growing, one slot a CPU; a
 * job that does not grow has all CPUs at once. */
void job_decide_threads(const jobs *m, job *j)
{
    bool own = m->pods_own_cpus && j->request.process != PROCESS_SHARED;
    int threads = own ? m->cpus : m->cpus / most_ever(m, j);
    if (j->threads == 0)
        j->threads = threads < 1 ? 1 : threads < JOB_THREADS_MAX ? threads : JOB_THREADS_MAX;
}

/* A job that asks for more than there is waits for the cluster to grow; other jobs overtake it. */
job *jobs_next(const jobs *m)
{
    return first_queued(m, true);
}

job *jobs_head(const jobs *m)
{
    return first_queued(m, false);
}

static bool start_job(jobs *m, job *j)
{
    bool first = !j->pod; /* at a retry the room is there */
    if (job_pods_room(m, j) < 0)
        return false;
    if (first && jobs_reserve_actions(m, job_pod_actions(j)) < 0) {
        free(j->pod);
        j->pod = NULL;
        return false;
    }
    job_decide_threads(m, j);
    j->parallelism = job_wants(m, j);
    j->state = JOB_STARTING;
    j->message[0] = '\0';
    if (j->begun_ms == 0) {
        j->started_wall_ms = m->wall_ms;
        j->begun_ms = m->now_ms;
    }
    snprintf(j->phase, sizeof j->phase, "starting");
    job_start_ps(m, j);
    return true;
}

void jobs_schedule(jobs *m)
{
    job *j;
    while ((j = jobs_next(m))) {
        int wants = job_wants(m, j);
        if (m->slots - jobs_slots_held(m) < wants)
            return;
        /* there is no GPU for it, or no memory here: it waits for the next step */
        if (job_place(m, j, wants) < wants || !start_job(m, j)) {
            job_unplace(j);
            return;
        }
    }
}

bool jobs_waiting(const jobs *m)
{
    return jobs_next(m) != NULL;
}
