/* sim_controller.c: the controller in the simulated world: a jobs machine, the records it saves,
 * and a cluster whose pods are processes. It can die at any moment and finds its jobs again. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static int job_index(const sim *s, const char *id)
{
    for (int i = 0; i < s->jobs; i++)
        if (strcmp(s->job[i].id, id) == 0)
            return i;
    return 0;
}

static int chunks_of(const sim_job *j)
{
    return (int)deal_chunks(j->samples, j->chunk_samples);
}

static process *living(sim *s, const char *name)
{
    process *p = sim_process(s, name);
    return p && p->alive ? p : NULL;
}

/* An event that comes to this controller by itself, after a while. */
static message *later(sim *s, int64_t ms, job_event_type type, int who)
{
    message *m = sim_after(s, ms, SIM_CONTROLLER, controller_hears);
    m->life = s->life;
    m->job = (job_event){.type = type, .job = s->job[who].id};
    return m;
}

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
static int land(sim *s)
{
    int at = (int)sim_between(s, 0, s->gpus - 1);
    bool even = sim_chance(s, 0.7);
    for (int i = 0; even && i < s->gpus; i++)
        at = pods_on(s, i) < pods_on(s, at) ? i : at;
    return at;
}

/* A pod says which one it has. */
static int show(sim *s, int gpu)
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

static void forget_gpus(sim *s)
{
    for (int i = 0; i < s->gpus; i++)
        if (s->gpu_known[i] && pods_on(s, i) == 0 && !is_given_out(s, i)) {
            jobs_gpu_gone(s->machine, s->gpu_index[i]);
            s->gpu_known[i] = false;
        }
}

/* One more warm pod; of many the one where the most are ends. */
static void add_idle(sim *s, int gpu)
{
    int all = 0, most = 0;
    s->idle[gpu]++;
    show(s, gpu);
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
        add_idle(s, land(s));
    controller_event(s, &(job_event){.type = JOB_TICK});
}

static void look_for_gpus(sim *s)
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
    int at = show(s, gpu);
    if (jobs_gpu_fits(s->machine, e->job, e->function, at)) {
        jobs_gpu_book(s->machine, e->job, e->function, e->incarnation, at);
        return true;
    }
    add_idle(s, gpu);
    job_event refused = *e;
    refused.type = JOB_POD_UNPLACED;
    refused.message = "no room there";
    controller_event(s, &refused);
    return false;
}

/* ---- pods ------------------------------------------------------------------------------------ */

static void taken(sim *s, message *m)
{
    job_event e = m->job;
    int gpu = m->number;
    e.type = JOB_POD_READY;
    if (s->gpus_elsewhere && e.function != JOB_KUBEML_PS && gpu < 0 &&
        !settles(s, &e, gpu = land(s)))
        return;
    if (sim_fault(s, 0.02)) {
        e.type = JOB_POD_FAILED;
        e.code = ERR_UNAVAILABLE;
        e.message = "simulated";
    } else {
        int p = sim_start_process(s, e.function == JOB_KUBEML_PS, job_index(s, e.job), e.function,
                                  e.incarnation);
        s->process[p].gpu = e.function == JOB_KUBEML_PS ? -1 : gpu;
        memcpy(m->text, s->process[p].name, sizeof m->text);
        e.pod = m->text;
    }
    controller_event(s, &e);
}

static void take(sim *s, int who, const job_action *a)
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
    if (cold) {
        message *w = later(s, 0, JOB_POD_WAITING, who);
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
static void untake(sim *s, int who, const job_action *a)
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
    message *m = later(s, sim_between(s, 0, 300), JOB_POD_FAILED, who);
    m->job.function = a->function;
    m->job.incarnation = a->incarnation;
    m->job.code = ERR_CANCELLED;
    found->deliver = controller_hears; /* nothing comes */
    found->job.type = JOB_TICK;
}

/* A pod that nobody asks for any more would wait for ever, or be given to nobody. */
static void check_none_reserved(sim *s, int who)
{
    for (int i = 0; i < s->heap_count; i++)
        if (is_reserved(s, s->heap[i], who))
            sim_wrong(s, "job %s has ended, and a pod for its function %d is still to come",
                      s->job[who].id, s->heap[i]->job.function);
}

static void stop_now(sim *s, message *m)
{
    process *p = living(s, m->text);
    if (p)
        sim_kill(s, (int)(p - s->process), "Stopped");
}

static void stop(sim *s, const char *pod)
{
    message *m = sim_after(s, sim_between(s, 0, 2000), SIM_CONTROLLER, stop_now);
    m->life = -1; /* the cluster does it, whoever asked */
    memcpy(m->text, pod, sizeof m->text);
}

void controller_pod_ended(sim *s, int p, const char *reason)
{
    message *m = sim_after(s, sim_between(s, 0, 300), SIM_CONTROLLER, controller_hears);
    m->life = s->life;
    m->job = (job_event){.type = JOB_POD_ENDED, .reason = reason, .message = "simulated"};
    memcpy(m->text, s->process[p].name, sizeof m->text);
}

/* ---- kubeml-ps and functions ----------------------------------------------------------------- */

static void given(sim *s, message *m)
{
    process *p = &s->process[m->to];
    if (!p->ps)
        ps_begin(s, m->to, m->job.status, m->job.incarnation, m->job.value, m->job.round);
    ps_attach(s, m);
}

static void send_job(sim *s, int who, const job_action *a, process *p)
{
    sim_job *j = &s->job[who];
    int index = (int)(p - s->process);
    if (a->job->generation < j->generation_sent ||
        (a->job->generation == j->generation_sent && j->generation_process != index))
        sim_wrong(s, "job %s: generation %d used for two kubeml-ps", j->id, a->job->generation);
    j->generation_sent = a->job->generation;
    j->generation_process = index;
    s->ps_conn[who] = sim_connect(s, SIM_CONTROLLER, (int)(p - s->process));
    message *m = sim_send(s, s->ps_conn[who], (int)(p - s->process), given);
    m->life = s->life;
    m->job = (job_event){.job = j->id,
                         .status = a->job->resumed,
                         .incarnation = a->job->generation,
                         .value = a->job->parallelism,
                         .round = a->job->functions_max};
}

static void attach(sim *s, int who, process *p)
{
    s->ps_conn[who] = sim_connect(s, SIM_CONTROLLER, (int)(p - s->process));
    sim_send(s, s->ps_conn[who], (int)(p - s->process), ps_attach)->life = s->life;
}

static void specialise(sim *s, int who, const job_action *a, process *p)
{
    int conn = sim_connect(s, SIM_CONTROLLER, (int)(p - s->process));
    message *m = sim_send(s, conn, (int)(p - s->process), function_specialise);
    m->life = s->life;
    m->job = (job_event){.job = s->job[who].id, .function = a->function,
                         .incarnation = a->incarnation, .message = "simulated"};
    for (int i = s->processes - 1; i >= 0; i--)
        if (s->process[i].is_ps && s->process[i].job == who) {
            m->number = i;
            break;
        }
}

static void tell(sim *s, int who, const job_action *a)
{
    int conn = s->ps_conn[who];
    if (conn < 0 || !s->conn[conn].open)
        return;
    message *m = sim_send(s, conn, s->conn[conn].end[1],
                          a->type == JOB_TELL_BYE ? ps_bye : ps_told);
    m->round = (round_event){.function = a->function,
                             .incarnation = a->incarnation,
                             .epoch = a->epoch,
                             .value = a->value,
                             .ended = true,
                             .reason = "Ended",
                             .message = "simulated",
                             .type = a->type == JOB_TELL_LOST          ? ROUND_LOST
                                     : a->type == JOB_TELL_PARALLELISM ? ROUND_PARALLELISM
                                                                       : ROUND_STOP};
}

static void act_on_pod(sim *s, int who, const job_action *a)
{
    process *p = living(s, a->pod);
    if (a->type == JOB_STOP)
        stop(s, a->pod);
    else if (!p && a->type == JOB_SPECIALISE) {
        message *m = later(s, 5, JOB_UNSPECIALISED, who);
        m->job.function = a->function;
        m->job.incarnation = a->incarnation;
        m->job.code = ERR_UNAVAILABLE;
    } else if (!p)
        later(s, 5, JOB_PS_CLOSED, who);
    else if (a->type == JOB_SEND)
        send_job(s, who, a, p);
    else if (a->type == JOB_ATTACH)
        attach(s, who, p);
    else
        specialise(s, who, a, p);
}

static void act(sim *s, const job_action *a)
{
    int who = a->job ? job_index(s, a->job->id) : 0;
    sim_job *j = &s->job[who];
    if (a->type != JOB_CHANGED)
        sim_trace(s, "controller: %d %s pod=%s f=%d i=%d e=%d value=%d %s", (int)a->type,
                  a->job ? a->job->id : "-", a->pod, a->function, a->incarnation, a->epoch,
                  a->value, a->job ? job_state_name(a->job->state) : "");
    switch (a->type) {
    case JOB_SAVE:
        json_decref(j->record);
        j->record = job_record(a->job);
        break;
    case JOB_TAKE: take(s, who, a); break;
    case JOB_UNTAKE: untake(s, who, a); break;
    case JOB_SEND:
    case JOB_ATTACH:
    case JOB_SPECIALISE:
    case JOB_STOP: act_on_pod(s, who, a); break;
    case JOB_TELL_LOST:
    case JOB_TELL_PARALLELISM:
    case JOB_TELL_STOP:
    case JOB_TELL_BYE: tell(s, who, a); break;
    case JOB_CHANGED: break;
    case JOB_DONE:
        check_none_reserved(s, who);
        j->done = true;
        j->state = a->job->state;
        memcpy(j->reason, a->job->reason, sizeof j->reason);
        break;
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

static void tick(sim *s, message *m)
{
    if ((uint64_t)m->number == s->controller_tick)
        controller_event(s, &(job_event){.type = JOB_TICK});
}

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
    const process *own = p->name[0] && p->function >= 0 ? living(s, p->name) : NULL;
    if (!own || own->gpu < 0 || p->phase == JOB_POD_GONE || j->request.device == DEVICE_CPU)
        return;
    for (int k = 0; k < i; k++) {
        const process *before = j->pod[k].name[0] ? living(s, j->pod[k].name) : NULL;
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
    int chunks = chunks_of(&s->job[job_index(s, j->id)]);
    if (!j->request.static_parallelism && j->parallelism > chunks)
        sim_wrong(s, "job %s has %d functions for %d chunks", j->id, j->parallelism, chunks);
}

static void check(sim *s)
{
    int held = 0;
    uint64_t taken[SIM_GPUS_MAX] = {0};
    for (size_t k = 0; k < jobs_count(s->machine); k++) {
        const job *j = jobs_at(s->machine, k);
        int present = 0;
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
        if (!s->gpus_elsewhere && s->job[job_index(s, j->id)].hopeless && j->started_wall_ms)
            sim_wrong(s, "job %s was started, and no GPU could hold it", j->id);
    }
    if (held > s->slots)
        sim_wrong(s, "%d of %d slots are held", held, s->slots);
    for (int i = 0; i < s->gpus; i++)
        if (taken[i] > SIM_GPU_BYTES)
            sim_wrong(s, "%llu of %d bytes of GPU %d are taken", (unsigned long long)taken[i],
                      SIM_GPU_BYTES, i);
    for (size_t k = 0; k < jobs_count(s->machine); k++) {
        check_apart(s, jobs_at(s->machine, k), taken);
        check_useful(s, jobs_at(s->machine, k));
    }
}

void controller_event(sim *s, const job_event *event)
{
    job_event e = *event;
    const job_action *actions;
    if (!s->machine)
        return;
    e.now_ms = s->now;
    e.wall_ms = s->now;
    if (e.type != JOB_TICK)
        sim_trace(s, "controller < %d %s pod=%s f=%d i=%d e=%d value=%d", (int)e.type,
                  e.job ? e.job : "-", e.pod ? e.pod : "-", e.function, e.incarnation, e.epoch,
                  e.value);
    size_t n = jobs_step(s->machine, &e, &actions);
    for (size_t i = 0; i < n; i++)
        act(s, &actions[i]);
    check(s);
    look_for_gpus(s);
    int64_t due = jobs_deadline(s->machine);
    s->controller_tick++;
    if (due != INT64_MAX) {
        message *m = sim_after(s, due > s->now ? due - s->now : 1, SIM_CONTROLLER, tick);
        m->life = s->life;
        m->number = (int)s->controller_tick;
    }
}

void controller_hears(sim *s, message *m)
{
    if (m->text[0])
        m->job.pod = m->text;
    controller_event(s, &m->job);
    if (s->gpus_elsewhere && m->job.type == JOB_POD_ENDED)
        forget_gpus(s);
}

void controller_conn_closed(sim *s, int conn)
{
    const process *p = &s->process[s->conn[conn].end[1]];
    job_event e = {.job = s->job[p->job].id, .function = p->function, .incarnation = p->incarnation,
                   .code = ERR_UNAVAILABLE, .message = "simulated"};
    e.type = p->is_ps ? JOB_PS_CLOSED : JOB_UNSPECIALISED;
    if (!p->is_ps || s->ps_conn[p->job] == conn)
        controller_event(s, &e);
}

void controller_cancel(sim *s, int who)
{
    s->job[who].cancelled = true;
    controller_event(s, &(job_event){.type = JOB_CANCEL, .job = s->job[who].id});
}

void controller_cancel_hopeless(sim *s)
{
    for (int i = 0; i < s->jobs; i++)
        if (!s->job[i].hopeless && !s->job[i].done)
            return;
    for (int i = 0; i < s->jobs && s->machine; i++) {
        const job *j = s->job[i].hopeless ? jobs_find(s->machine, s->job[i].id) : NULL;
        if (j && !job_ended(j) && !j->verdict)
            controller_cancel(s, i);
    }
}

/* ---- begin and die --------------------------------------------------------------------------- */

static void submit(sim *s, message *m)
{
    sim_job *j = &s->job[m->number];
    err e = ERR_INIT;
    if (jobs_submit(s->machine, j->id, &j->request, false, s->now, &e) < 0)
        sim_wrong(s, "submit: %s", e.message);
    jobs_chunks(s->machine, j->id, chunks_of(j));
    j->submitted = true;
    controller_event(s, &(job_event){.type = JOB_TICK});
}

static void restore(sim *s)
{
    err e = ERR_INIT;
    for (int i = 0; i < s->jobs; i++)
        if (s->job[i].record && !s->job[i].done) {
            if (jobs_restore(s->machine, s->job[i].record, &e) < 0)
                sim_wrong(s, "restore: %s", e.message);
            jobs_chunks(s->machine, s->job[i].id, chunks_of(&s->job[i]));
        }
    for (int p = 0; p < s->processes; p++)
        if (s->process[p].alive)
            controller_event(
                s,
                &(job_event){.type = JOB_POD_FOUND,
                             .job = s->job[s->process[p].job].id,
                             .pod = s->process[p].name,
                             .function = s->process[p].function,
                             .incarnation = s->process[p].incarnation,
                             .value = s->process[p].gpu < 0 ? 0 : show(s, s->process[p].gpu) + 1});
    for (int i = 0; i < s->jobs; i++)
        if (s->job[i].final)
            controller_event(s, &(job_event){.type = JOB_PS_FINISHED,
                                             .job = s->job[i].id,
                                             .state = s->job[i].final_state,
                                             .reason = s->job[i].final_reason,
                                             .message = s->job[i].final_message,
                                             .value = s->job[i].final_epochs});
    controller_event(s, &(job_event){.type = JOB_ADOPT});
}

void controller_begin(sim *s)
{
    err e = ERR_INIT;
    const uint64_t gpus[SIM_GPUS_MAX] = {SIM_GPU_BYTES, SIM_GPU_BYTES, SIM_GPU_BYTES};
    if (jobs_open(&s->limits, s->slots, &s->machine, &e) < 0)
        abort();
    if (s->gpus_elsewhere)
        jobs_gpus_elsewhere(s->machine, (gpu_policy)(s->seed % 3));
    else
        jobs_gpus(s->machine, (gpu_policy)(s->seed % 3), false, gpus, s->gpus);
    s->looks = false;
    for (int i = 0; i < SIM_GPUS_MAX; i++) {
        s->gpu_index[i] = -1;
        s->gpu_known[i] = false;
        s->idle[i] = 0; /* the one before had them */
    }
    for (int i = 0; i < SIM_JOBS_MAX; i++)
        s->ps_conn[i] = -1;
    restore(s);
    for (int64_t n = s->gpus_elsewhere ? sim_between(s, 0, 3) : 0; n > 0 && !s->blind; n--)
        add_idle(s, land(s));
    for (int i = 0; i < s->jobs; i++)
        if (!s->job[i].submitted) {
            message *m = sim_after(s, sim_between(s, 0, 1000), SIM_CONTROLLER, submit);
            m->life = s->life;
            m->number = i;
        }
}

static void come_back(sim *s, message *m)
{
    (void)m;
    controller_begin(s);
}

void controller_die(sim *s, int64_t away_ms)
{
    if (!s->machine)
        return;
    sim_trace(s, "the controller dies for %lld ms", (long long)away_ms);
    jobs_close(s->machine);
    s->machine = NULL;
    s->life++;
    for (int c = 0; c < s->conns; c++)
        if (s->conn[c].open && s->conn[c].end[0] == SIM_CONTROLLER)
            sim_break(s, c);
    sim_after(s, away_ms, SIM_CONTROLLER, come_back)->life = -1;
}
