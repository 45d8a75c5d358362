/* sim_pool.c: the pods of the simulated world, warm and cold ones, and the GPUs that they come
 * with. See sim_controller.c for who asks for them. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* ---- GPUs of pods ---------------------------------------------------------------------------- */

static void taken(sim *s, message *m);

/* That a warm pod on it is on its way to a job. */
static bool is_given_out(const sim *s, int gpu)
{
    for (int i = 0; i < s->heap_count; i++)
        if (s->heap[i]->deliver == taken && s->heap[i]->life == s->life &&
            s->heap[i]->number == gpu)
            return true;
    return false;
}

static int pods_on(const sim *s, int gpu)
{
    int count = s->idle[gpu];
    for (int p = 0; p < s->processes; p++)
        count += s->process[p].alive && s->process[p].gpu == gpu;
    return count;
}

/* Where a new pod comes: mostly where the fewest are. */
int pool_land(sim *s)
{
    int at = (int)sim_between(s, 0, s->gpus - 1);
    bool even = sim_chance(s, 0.7);
    for (int i = 0; even && i < s->gpus; i++)
        at = pods_on(s, i) < pods_on(s, at) ? i : at;
    return at;
}

/* A pod says which one it has. */
int pool_show(sim *s, int gpu)
{
    if (!s->gpu_known[gpu]) {
        s->gpu_index[gpu] = jobs_gpu_add(s->machine, s->gpu_index[gpu], SIM_GPU_BYTES, false);
        s->gpu_known[gpu] = true;
        for (int i = 0; i < s->gpus; i++) /* it has the index of one that is gone */
            if (i != gpu && s->gpu_index[i] == s->gpu_index[gpu])
                s->gpu_index[i] = -1;
    }
    return s->gpu_index[gpu];
}

void pool_forget_gpus(sim *s)
{
    for (int i = 0; i < s->gpus; i++)
        if (s->gpu_known[i] && pods_on(s, i) == 0 && !is_given_out(s, i)) {
            jobs_gpu_gone(s->machine, s->gpu_index[i]);
            s->gpu_known[i] = false;
        }
}

/* One more warm pod; of many the one where the most are ends. */
void pool_add_idle(sim *s, int gpu)
{
    int all = 0, most = 0;
    s->idle[gpu]++;
    pool_show(s, gpu);
    for (int i = 0; i < s->gpus; i++) {
        all += s->idle[i];
        most = s->idle[i] > s->idle[most] ? i : most;
    }
    if (all > 6)
        s->idle[most]--;
}

static void look(sim *s, message *m)
{
    int pods;
    (void)m;
    s->looks = false;
    if (jobs_gpu_waiting(s->machine, &pods))
        pool_add_idle(s, pool_land(s));
    controller_event(s, &(job_event){.type = JOB_TICK});
}

void pool_look_for_gpus(sim *s)
{
    int pods;
    if (!s->gpus_elsewhere || s->looks || !jobs_gpu_waiting(s->machine, &pods))
        return;
    s->looks = true;
    sim_after(s, sim_between(s, 200, 2000), SIM_CONTROLLER, look)->life = s->life;
}

/* The GPU of a warm pod for that function, which is booked there; -1: it gets a new one. */
static int take_warm(sim *s, const job_action *a)
{
    bool offered[GPU_COUNT_MAX] = {false};
    for (int i = 0; i < s->gpus; i++)
        if (s->idle[i])
            offered[s->gpu_index[i]] = true;
    int at = jobs_gpu_choose(s->machine, a->job->id, a->function, offered);
    for (int i = 0; at >= 0 && i < s->gpus; i++)
        if (s->gpu_known[i] && s->gpu_index[i] == at) {
            s->idle[i]--;
            jobs_gpu_book(s->machine, a->job->id, a->function, a->incarnation, at);
            return i;
        }
    return -1;
}

/* Whether the function may have the pod that was started for it, and is booked there; otherwise it
 * is idle, and the machine told. */
static bool settles(sim *s, const job_event *e, int gpu)
{
    int at = pool_show(s, gpu);
    if (jobs_gpu_fits(s->machine, e->job, e->function, at)) {
        jobs_gpu_book(s->machine, e->job, e->function, e->incarnation, at);
        return true;
    }
    pool_add_idle(s, gpu);
    job_event refused = *e;
    refused.type = JOB_POD_UNPLACED;
    refused.message = "no room there";
    controller_event(s, &refused);
    return false;
}

/* ---- pods ------------------------------------------------------------------------------------ */

static int start_labelled(sim *s, const message *m, int gpu)
{
    bool is_ps = m->job.function == JOB_KUBEML_PS;
    int p = sim_start_process(s, is_ps, sim_job_index(s, m->job.job), m->job.function,
                              m->job.incarnation);
    s->process[p].gpu = is_ps ? -1 : gpu;
    return p;
}

static void taken(sim *s, message *m)
{
    job_event e = m->job;
    int gpu = m->number;
    e.type = JOB_POD_READY;
    if (s->gpus_elsewhere && e.function != JOB_KUBEML_PS && gpu < 0 &&
        !settles(s, &e, gpu = pool_land(s)))
        return;
    if (sim_fault(s, 0.02)) {
        bounds_pod_failed(s, sim_job_index(s, e.job), e.function, e.incarnation);
        e.type = JOB_POD_FAILED;
        e.code = ERR_UNAVAILABLE;
        e.message = "simulated";
    } else {
        int p = start_labelled(s, m, gpu);
        memcpy(m->text, s->process[p].name, sizeof m->text);
        e.pod = m->text;
    }
    controller_event(s, &e);
}

void pool_take(sim *s, int who, const job_action *a)
{
    bool cold = sim_chance(s, 0.2);
    int64_t ms = cold ? sim_between(s, 200, 3000) : sim_between(s, 0, 20);
    bool full = cold && ms % 4 == 0; /* no node has room for it, for a while */
    bool longer = full && ms % 16 == 0 && ms > 1500 && !s->withheld; /* than it is waited for */
    ms = longer ? 200 * ms : full ? 14 * ms : ms;
    s->withheld = s->withheld || longer;
    int gpu = s->gpus_elsewhere && a->function != JOB_KUBEML_PS && !cold ? take_warm(s, a) : -1;
    message *m = sim_after(s, ms, SIM_CONTROLLER, taken);
    m->life = s->life;
    m->number = gpu;
    m->job =
        (job_event){.job = s->job[who].id, .function = a->function, .incarnation = a->incarnation};
    m->warm = !cold && (gpu >= 0 || !s->gpus_elsewhere || a->function == JOB_KUBEML_PS);
    if (cold) {
        message *w = controller_later(s, 0, JOB_POD_WAITING, who);
        w->job.function = a->function;
        w->job.incarnation = a->incarnation;
        w->job.reason = full ? "Unschedulable" : "PoolEmpty";
        w->job.message = full ? "no node takes the pod" : "no warm pod";
    }
}

/* What is on its way to the job. */
static bool is_reserved(const sim *s, const message *m, int who)
{
    return m->deliver == taken && m->life == s->life && strcmp(m->job.job, s->job[who].id) == 0;
}

/* Of what is on its way; what came too late is stopped by the machine. */
void pool_untake(sim *s, int who, const job_action *a)
{
    message *found = NULL;
    for (int i = 0; i < s->heap_count; i++) {
        message *m = s->heap[i];
        if (is_reserved(s, m, who) && m->job.function == a->function &&
            m->job.incarnation == a->incarnation)
            found = m;
    }
    if (!found)
        return;
    message *m = controller_later(s, sim_between(s, 0, 300), JOB_POD_FAILED, who);
    m->job.function = a->function;
    m->job.incarnation = a->incarnation;
    m->job.code = ERR_CANCELLED;
    found->deliver = controller_hears; /* nothing comes */
    found->job.type = JOB_TICK;
}

/* A pod that nobody asks for any more would wait for ever, or be given to nobody. */
void pool_check_none_reserved(sim *s, int who)
{
    for (int i = 0; i < s->heap_count; i++)
        if (is_reserved(s, s->heap[i], who))
            sim_wrong(s, "job %s has ended, and a pod for its function %d is still to come",
                      s->job[who].id, s->heap[i]->job.function);
}

/* A warm one is labelled before anybody says that it is there. */
void pool_controller_dies(sim *s)
{
    for (int i = 0; i < s->heap_count; i++) {
        const message *m = s->heap[i];
        if (m->deliver == taken && m->life == s->life && m->warm && sim_chance(s, 0.5))
            start_labelled(s, m, m->number);
    }
}

static void stop_now(sim *s, message *m)
{
    process *p = sim_living(s, m->text);
    if (p)
        sim_kill(s, (int)(p - s->process), "Stopped");
}

void pool_stop(sim *s, const char *pod)
{
    message *m = sim_after(s, sim_between(s, 0, 2000), SIM_CONTROLLER, stop_now);
    m->life = -1; /* the cluster does it, whoever asked */
    memcpy(m->text, pod, sizeof m->text);
}

void controller_pod_ended(sim *s, int p, const char *reason)
{
    int64_t most = s->frail ? 1500 : sim_chance(s, 0.1) ? 5000 : 300;
    int64_t ms = sim_between(s, 0, most); /* behind its connection's end */
    message *m = sim_after(s, ms, SIM_CONTROLLER, controller_hears);
    m->life = s->life;
    m->job = (job_event){.type = JOB_POD_ENDED, .reason = reason, .message = "simulated"};
    memcpy(m->text, s->process[p].name, sizeof m->text);
}
