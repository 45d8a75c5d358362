/* sim_controller.c: the controller in the simulated world: a jobs machine and the records it saves.
 * It can die at any moment and finds its jobs again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

int sim_job_index(const sim *s, const char *id)
{
    for (int i = 0; i < s->jobs; i++)
        if (strcmp(s->job[i].id, id) == 0)
            return i;
    return 0;
}

int sim_chunks(const sim_job *j)
{
    return (int)shard_plan_chunks(j->samples, j->chunk_samples);
}

process *sim_living(sim *s, const char *name)
{
    process *p = sim_process(s, name);
    return p && p->alive ? p : NULL;
}

/* An event that comes to this controller by itself, after a while. */
message *controller_later(sim *s, int64_t ms, job_event_type type, int who)
{
    message *m = sim_after(s, ms, SIM_CONTROLLER, controller_hears);
    m->life = s->life;
    m->job = (job_event){.type = type, .job = s->job[who].id};
    return m;
}

/* ---- kubeml-ps and functions ----------------------------------------------------------------- */

static void given(sim *s, message *m)
{
    process *p = &s->process[m->to];
    if (!p->ps)
        ps_begin(s, m->to, m->job.status, m->job.incarnation, m->job.value, m->job.round);
    ps_attach(s, m);
}

/* Its number fences whoever had the job before: it is neither that of a history, nor not above that
 * of one that lives. One that died before it wrote anything may have had the same number. */
static void check_generation(sim *s, int who, const job_action *a, int index)
{
    sim_job *j = &s->job[who];
    int generation = a->job->generation;
    bool used =
        generation <= j->writer && (generation < j->writer || j->generation_process != index);
    for (int p = 0; p < s->processes && !used; p++) {
        const process *other = &s->process[p];
        used = p != index && other->is_ps && other->job == who && other->alive && other->ps &&
               other->incarnation >= generation;
    }
    if (used)
        sim_wrong(s, "job %s: generation %d used for two kubeml-ps", j->id, generation);
    if (!a->job->resumed && j->committed > 0)
        sim_wrong(s, "job %s begins anew after %d epochs", j->id, j->committed);
    j->generation_process = index;
}

static void send_job(sim *s, int who, const job_action *a, process *p)
{
    sim_job *j = &s->job[who];
    check_generation(s, who, a, (int)(p - s->process));
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
    memcpy(m->text, a->reason, sizeof a->reason);
    m->round = (round_event){.function = a->function,
                             .incarnation = a->incarnation,
                             .epoch = a->epoch,
                             .value = a->value,
                             .ended = true,
                             .reason = m->text,
                             .message = "simulated",
                             .type = a->type == JOB_TELL_LOST          ? ROUND_LOST
                                     : a->type == JOB_TELL_PARALLELISM ? ROUND_PARALLELISM
                                     : a->value                        ? ROUND_SUSPEND
                                                                       : ROUND_STOP};
}

static void act_on_pod(sim *s, int who, const job_action *a)
{
    process *p = sim_living(s, a->pod);
    if (a->type == JOB_STOP)
        pool_stop(s, a->pod);
    else if (!p && a->type == JOB_SPECIALISE) {
        message *m = controller_later(s, 5, JOB_UNSPECIALISED, who);
        m->job.function = a->function;
        m->job.incarnation = a->incarnation;
        m->job.code = ERR_UNAVAILABLE;
    } else if (!p)
        controller_later(s, 5, JOB_PS_CLOSED, who);
    else if (a->type == JOB_SEND)
        send_job(s, who, a, p);
    else if (a->type == JOB_ATTACH)
        attach(s, who, p);
    else
        specialise(s, who, a, p);
}

/* While the store is away the newest record waits for it, and what follows does not. */
static void save(sim *s, sim_job *j, const job *from)
{
    json_t **to = s->store_up ? &j->record : &j->unsaved;
    json_decref(j->unsaved);
    j->unsaved = NULL;
    if (s->store_up)
        json_decref(j->record);
    *to = job_record(from);
    j->noted = from->generation;
    if (j->queued && from->state == JOB_STARTING)
        check_turn(s, from);
    j->queued = from->state == JOB_QUEUED;
    bounds_saved(s, (int)(j - s->job), from);
}

static void save_unsaved(sim *s, message *m)
{
    (void)m;
    for (int i = 0; i < s->jobs; i++)
        if (s->store_up && s->job[i].unsaved) {
            json_decref(s->job[i].record);
            s->job[i].record = s->job[i].unsaved;
            s->job[i].unsaved = NULL;
        }
}

void controller_store_back(sim *s)
{
    if (s->machine)
        sim_after(s, sim_between(s, 0, 1000), SIM_CONTROLLER, save_unsaved)->life = s->life;
}

static void check_saved(sim *s, int who, const job_action *a)
{
    if (s->job[who].noted < a->job->generation)
        sim_wrong(s, "job %s: kubeml-ps %d is asked for before that is saved", s->job[who].id,
                  a->job->generation);
}

static void end(sim *s, int who, job_state state, const char *reason)
{
    sim_job *j = &s->job[who];
    j->state = state;
    snprintf(j->reason, sizeof j->reason, "%s", reason);
    j->done = !user_resumes(s, who);
}

/* When its log lies where it is looked for. */
static void forget(sim *s, message *m)
{
    err e = ERR_INIT;
    if (jobs_forget(s->machine, s->job[m->number].id, &e) < 0)
        sim_wrong(s, "forget: %s", e.message);
}

static void act(sim *s, const job_action *a)
{
    int who = a->job ? sim_job_index(s, a->job->id) : 0;
    sim_job *j = &s->job[who];
    message *forgets;
    const int said[] = {(int)a->type, who, a->function, a->incarnation, a->epoch, a->value};
    sim_note(s, said, sizeof said);
    sim_note(s, a->reason, strlen(a->reason));
    if (a->type != JOB_CHANGED)
        sim_trace(s, "controller: %d %s pod=%s f=%d i=%d e=%d value=%d %s", (int)a->type,
                  a->job ? a->job->id : "-", a->pod, a->function, a->incarnation, a->epoch,
                  a->value, a->job ? job_state_name(a->job->state) : "");
    switch (a->type) {
    case JOB_SAVE: save(s, j, a->job); break;
    case JOB_TAKE:
        check_saved(s, who, a);
        pool_take(s, who, a);
        break;
    case JOB_UNTAKE:
        if (a->value)
            bounds_pod_failed(s, who, a->function, a->incarnation);
        pool_untake(s, who, a);
        break;
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
        pool_check_none_reserved(s, who);
        end(s, who, a->job->state, a->job->reason);
        forgets = sim_after(s, sim_between(s, 0, 100), SIM_CONTROLLER, forget);
        forgets->life = s->life;
        forgets->number = who;
        break;
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

static void tick(sim *s, message *m)
{
    if ((uint64_t)m->number == s->controller_tick)
        controller_event(s, &(job_event){.type = JOB_TICK});
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
    for (size_t i = 0; i < n; i++) {
        act(s, &actions[i]);
        if (actions[i].type != JOB_CHANGED && sim_fault(s, 0.002)) {
            controller_die(s, sim_between(s, 50, 20000));
            return;
        }
    }
    check_jobs(s);
    pool_look_for_gpus(s);
    int64_t due = jobs_deadline(s->machine);
    s->controller_tick++;
    if (due != INT64_MAX) {
        message *m = sim_after(s, due > s->now ? due - s->now : 1, SIM_CONTROLLER, tick);
        m->life = s->life;
        m->number = (int)s->controller_tick;
    }
}

void controller_slots(sim *s, int slots)
{
    sim_trace(s, "%d slots", slots);
    s->slots = slots;
    controller_event(s, &(job_event){.type = JOB_SLOTS, .value = slots});
}

void controller_hears(sim *s, message *m)
{
    if (m->text[0])
        m->job.pod = m->text;
    controller_event(s, &m->job);
    if (s->machine && s->gpus_elsewhere && m->job.type == JOB_POD_ENDED)
        pool_forget_gpus(s);
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

/* ---- begin and die --------------------------------------------------------------------------- */

/* Its record is written before anybody hears that there is the job. */
void controller_new_job(sim *s, int who)
{
    sim_job *j = &s->job[who];
    jobs_chunks(s->machine, j->id, sim_chunks(j));
    save(s, j, jobs_find(s->machine, j->id));
    controller_event(s, &(job_event){.type = JOB_TICK});
}

static void restore_job(sim *s, int who)
{
    sim_job *j = &s->job[who];
    job_state state;
    err e = ERR_INIT;
    if (!job_state_from_name(json_string_value(json_object_get(j->record, "state")), &state))
        sim_wrong(s, "the record of job %s has no state", j->id);
    j->noted = (int)json_integer_value(json_object_get(j->record, "generation"));
    if (state >= JOB_SUCCEEDED) {
        end(s, who, state, json_string_value(json_object_get(j->record, "reason")));
        return;
    }
    j->done = false; /* else that was in no record */
    j->placed = j->placed || json_integer_value(json_object_get(j->record, "parallelism")) > 0;
    j->queued = state == JOB_QUEUED;
    bounds_restored(j);
    if (jobs_restore(s->machine, j->record, &e) < 0)
        sim_wrong(s, "restore: %s", e.message);
    jobs_chunks(s->machine, j->id, sim_chunks(j));
}

static void find_pods(sim *s)
{
    for (int p = 0; p < s->processes && s->machine; p++) {
        const process *own = &s->process[p];
        job_event found = {.type = JOB_POD_FOUND,
                           .job = s->job[own->job].id,
                           .pod = own->name,
                           .function = own->function,
                           .incarnation = own->incarnation};
        if (!own->alive)
            continue;
        found.value = own->gpu < 0 ? 0 : pool_show(s, own->gpu) + 1;
        controller_event(s, &found);
    }
}

/* What histories say, which kubeml-ps wrote while no controller was there. */
static void read_histories(sim *s)
{
    for (int i = 0; i < s->jobs; i++) {
        const sim_job *j = &s->job[i];
        const job *of = s->machine ? jobs_find(s->machine, j->id) : NULL;
        if (of && j->writer >= 0)
            controller_event(
                s, &(job_event){.type = JOB_PS_BEFORE, .job = j->id, .incarnation = j->writer});
        of = s->machine ? of : NULL;
        if (of && j->final && j->writer >= of->generation)
            controller_event(s, &(job_event){.type = JOB_PS_FINISHED,
                                             .job = j->id,
                                             .state = j->end.state,
                                             .reason = j->end.reason,
                                             .message = j->end.message,
                                             .value = j->end.epochs});
    }
}

static void restore(sim *s)
{
    for (int i = 0; i < s->jobs; i++)
        if (s->job[i].record)
            restore_job(s, i);
    s->adopting = true;
    find_pods(s);
    read_histories(s);
    s->adopting = false;
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
    for (int i = 0; i < SIM_JOBS_MAX; i++) {
        s->ps_conn[i] = -1;
        s->job[i].decided_ms = s->job[i].ended_ms = INT64_MAX;
    }
    s->began_ms = s->now;
    s->held = SIM_JOBS_MAX * SIM_FUNCTIONS_MAX;
    restore(s);
    if (!s->machine)
        return;
    for (int64_t n = s->gpus_elsewhere ? sim_between(s, 0, 3) : 0; n > 0 && !s->blind; n--)
        pool_add_idle(s, pool_land(s));
}

static void come_back(sim *s, message *m)
{
    (void)m;
    if (s->store_up)
        controller_begin(s);
    else
        sim_after(s, 500, SIM_CONTROLLER, come_back);
}

void controller_die(sim *s, int64_t away_ms)
{
    if (!s->machine)
        return;
    sim_trace(s, "the controller dies for %lld ms", (long long)away_ms);
    pool_controller_dies(s);
    jobs_close(s->machine);
    s->machine = NULL;
    s->life++;
    for (int i = 0; i < s->jobs; i++) {
        s->job[i].lost_record |= s->job[i].unsaved != NULL;
        json_decref(s->job[i].unsaved);
        s->job[i].unsaved = NULL;
    }
    for (int c = 0; c < s->conns; c++)
        if (s->conn[c].open && s->conn[c].end[0] == SIM_CONTROLLER)
            sim_break(s, c);
    sim_after(s, away_ms, SIM_CONTROLLER, come_back)->life = -1;
}
