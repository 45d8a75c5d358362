/* sim_ps.c: kubeml-ps in the simulated world: a round_machine, its connections and its slow calls
 * of model store and store, which the process may not survive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define BYE_MS     60000
#define ANSWER_MS  10
#define RETRY_MS   1000  /* between two tries to begin or to end with the store away, */
#define GIVE_UP_MS 60000 /* and all of them */

static void tick(sim *s, message *m)
{
    if ((uint64_t)m->number == s->process[m->to].ps->tick)
        ps_step(s, m->to, &(round_event){.type = ROUND_TICK}, -1, -1);
}

static void plan_tick(sim *s, int p)
{
    ps *own = s->process[p].ps;
    int64_t due = round_deadline(own->machine);
    own->tick++;
    if (due == INT64_MAX)
        return;
    message *m = sim_after(s, due > s->now ? due - s->now : 1, p, tick);
    m->number = (int)own->tick;
}

/* ---- to the controller ----------------------------------------------------------------------- */

static message *to_controller(sim *s, int p, job_event_type type)
{
    const process *own = &s->process[p];
    static message nowhere;
    int conn = own->ps->controller;
    if (conn < 0 || !s->conn[conn].open)
        return &nowhere;
    message *m = sim_send(s, conn, SIM_CONTROLLER, controller_hears);
    m->life = s->life;
    m->job = (job_event){.type = type, .job = s->job[own->job].id};
    return m;
}

static void tell_epoch(sim *s, int p, const round_epoch *r)
{
    message *m = to_controller(s, p, JOB_PS_EPOCH);
    m->job.epoch = r->epoch;
    m->job.value = r->parallelism;
    m->job.seconds = r->seconds;
}

static void tell_end(sim *s, int p)
{
    const sim_end *end = &s->process[p].ps->end;
    message *m = to_controller(s, p, JOB_PS_FINISHED);
    m->job.state = end->state;
    m->job.reason = end->reason;
    m->job.message = end->message;
    m->job.value = end->epochs;
}

static void tell_controller(sim *s, int p, const round_action *a)
{
    message *m;
    switch (a->type) {
    case ROUND_NEED:
    case ROUND_RELEASE:
        m = to_controller(s, p, a->type == ROUND_NEED ? JOB_PS_NEED : JOB_PS_RELEASE);
        m->job.function = a->function;
        m->job.incarnation = a->incarnation;
        m->job.message = a->message[0] ? "simulated" : "";
        break;
    case ROUND_PHASE:
        m = to_controller(s, p, JOB_PS_PHASE);
        m->job.phase = a->phase;
        m->job.epoch = a->epoch;
        m->job.round = a->round;
        break;
    case ROUND_EPOCH: tell_epoch(s, p, &a->record); break;
    case ROUND_ASK:
        m = to_controller(s, p, JOB_PS_ASK);
        m->job.epoch = a->epoch;
        m->job.value = a->parallelism;
        m->job.seconds = a->seconds;
        break;
    case ROUND_CONDITION:
        m = to_controller(s, p, JOB_PS_CONDITION);
        m->job.name = a->name;
        m->job.status = a->status;
        m->job.reason = a->name;
        break;
    default: break;
    }
}

void ps_bye(sim *s, message *m)
{
    sim_kill(s, m->to, "Exited");
}

static void is_over(sim *s, int p)
{
    s->process[p].ps->finished = true;
    tell_end(s, p);
    sim_after(s, BYE_MS, p, ps_bye);
}

static void set_end(ps *o, job_state state, const char *reason, const char *why)
{
    o->end.state = state;
    snprintf(o->end.reason, sizeof o->end.reason, "%s", reason);
    snprintf(o->end.message, sizeof o->end.message, "%s", why);
}

/* ---- slow calls ------------------------------------------------------------------------------ */

static void result(sim *s, message *m)
{
    ps *own = s->process[m->to].ps;
    ps_step(s, m->to, &m->round, -1, -1);
    if (s->process[m->to].alive && round_version(own->machine) == own->pending.version)
        own->merged = own->pending;
}

/* One after the other, each with its answer, as a thread of its own makes them. */
static message *slow_call(sim *s, int p, int64_t ms, void (*call)(sim *, message *))
{
    ps *o = s->process[p].ps;
    int64_t begin = o->io_free > s->now ? o->io_free : s->now;
    int64_t at = begin + sim_between(s, 1, ms);
    o->io_free = at + ANSWER_MS + 1;
    return sim_after(s, at - s->now, p, call);
}

static message *answer(sim *s, int p, round_event_type type)
{
    message *m = sim_after(s, sim_between(s, 0, ANSWER_MS), p, result);
    m->round = (round_event){.type = type, .function = -1, .message = "simulated"};
    return m;
}

static void merge_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    ps *o = own->ps;
    int bad = -1, code;
    if (sim_fault(s, 0.01)) {
        sim_kill(s, m->to, "Killed");
        return;
    }
    code = redis_merge(s, own->job, o->redis, &o->out, &bad);
    if (code == ERR_NONE)
        o->pending = o->redis->model;
    if (sim_fault(s, 0.02)) { /* committed, and nobody knows */
        sim_kill(s, m->to, "Killed");
        return;
    }
    if (s->lost_replies > 0 && sim_chance(s, 0.2)) {
        s->lost_replies--;
        code = ERR_TIMEOUT;
    }
    message *r = answer(s, m->to, code == ERR_NONE ? ROUND_MERGED : ROUND_MERGE_FAILED);
    r->round.epoch = o->out.epoch;
    r->round.round = o->out.round;
    r->round.version = o->out.base_version + 1;
    r->round.code = (err_code)code;
    r->round.function = bad;
    if (code == ERR_NONE && sim_chance(s, s->duplicate)) {
        message *twice = sim_after(s, sim_between(s, 0, 2000), m->to, result);
        twice->round = r->round;
    }
}

static void commit_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    if (sim_fault(s, 0.02)) {
        sim_kill(s, m->to, "Killed");
        return;
    }
    err_code code = store_commit(s, own->job, own->incarnation, own->ps, &m->task.record);
    if (sim_fault(s, 0.03)) {
        sim_kill(s, m->to, "Killed");
        return;
    }
    message *r = answer(s, m->to, code ? ROUND_COMMIT_FAILED : ROUND_COMMITTED);
    r->round.epoch = m->task.record.epoch;
    r->round.code = code;
}

static void finish_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    ps *o = own->ps;
    if (sim_fault(s, 0.05)) {
        sim_kill(s, m->to, "Killed");
        return;
    }
    err_code code = store_end(s, own->job, own->incarnation, o);
    if (code == ERR_UNAVAILABLE && s->now < o->give_up_ms) {
        sim_after(s, RETRY_MS, m->to, finish_now);
        return;
    }
    if (code == ERR_UNAVAILABLE)
        bounds_store_away(s, m->to, GIVE_UP_MS / 2);
    if (code != ERR_NONE)
        set_end(o, JOB_FAILED, "StoreUnavailable", "the end could not be written");
    is_over(s, m->to);
}

static void finish(sim *s, int p, const round_action *a)
{
    static const job_state states[] = {[ROUND_SUCCEEDED] = JOB_SUCCEEDED,
                                       [ROUND_FAILED_STATE] = JOB_FAILED,
                                       [ROUND_CANCELLED] = JOB_CANCELLED,
                                       [ROUND_SUSPENDED] = JOB_SUSPENDED};
    ps *o = s->process[p].ps;
    if (a->superseded) {
        sim_wrong(s, "%s: superseded, and there is no other kubeml-ps", s->process[p].name);
        return;
    }
    set_end(o, states[a->state], a->reason, a->message);
    o->end.epochs = a->epochs;
    o->give_up_ms = s->now + GIVE_UP_MS;
    slow_call(s, p, 50, finish_now);
}

static int joined_conn(const ps *o, int function, int incarnation)
{
    return o->joined[function].incarnation == incarnation ? o->joined[function].conn : -1;
}

static void tell_function(sim *s, int p, const round_action *a, void (*deliver)(sim *, message *))
{
    int conn = joined_conn(s->process[p].ps, a->function, a->incarnation);
    if (conn < 0 || !s->conn[conn].open)
        return;
    message *m = sim_send(s, conn, s->conn[conn].end[0], deliver);
    m->task = *a;
}

/* The place of a model that is to be made: who has made it already is not asked whether it is still
 * there. */
static void create_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    ps *o = own->ps;
    if (!o->created && !o->redis->up) {
        answer(s, m->to, ROUND_LOAD_FAILED)->round.code = ERR_UNAVAILABLE;
        return;
    }
    if (!o->created)
        o->redis->created = o->created = true;
    if (o->initial_done) { /* function 0 was replaced after its model had been merged */
        message *a = answer(s, m->to, ROUND_INITIALISED);
        a->round.function = m->task.function;
        a->round.incarnation = m->task.incarnation;
        return;
    }
    o->init_incarnation = m->task.incarnation;
    tell_function(s, m->to, &m->task, function_task);
}

/* Function 0 has published version 0: it is merged as any other contribution. */
static void init_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    redis *r = own->ps->redis;
    if (!r->up || (!r->inited && r->model.version < 0)) {
        answer(s, m->to, ROUND_LOAD_FAILED)->round.code = r->up ? ERR_NOT_FOUND : ERR_UNAVAILABLE;
        return;
    }
    if (r->model.version < 0) {
        memset(&r->model, 0, sizeof r->model);
        r->model.value = model_first(&s->job[own->job]);
    }
    own->ps->initial_done = true;
    message *a = answer(s, m->to, ROUND_INITIALISED);
    a->round.function = m->round.function;
    a->round.incarnation = m->round.incarnation;
}

static void load_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    redis *r = own->ps->redis;
    if (r->up && s->store_up) {
        memset(&r->model, 0, sizeof r->model);
        r->model.value = model_first(&s->job[own->job]);
        answer(s, m->to, ROUND_LOADED);
    } else {
        answer(s, m->to, ROUND_LOAD_FAILED)->round.code = ERR_UNAVAILABLE;
    }
}

/* The checkpoint becomes the model store's state; the resume says the epoch is committed. */
static void load_checkpoint(sim *s, int p)
{
    process *own = &s->process[p];
    const sim_job *j = &s->job[own->job];
    int e = j->committed - 1;
    const round_epoch *record = &j->epoch[e].record;
    own->ps->redis->model = (sim_model){.version = record->version,
                                    .value = j->epoch[e].value,
                                    .epoch = e + 1,
                                    .rows_epoch = e,
                                    .parallelism = record->parallelism};
    own->ps->resume = (round_resume){.epoch = e,
                                     .parallelism = record->parallelism,
                                     .version = record->version,
                                     .committed = true,
                                     .validated = record->validated,
                                     .accuracy = record->accuracy};
}

static void restore_now(sim *s, message *m)
{
    process *own = &s->process[m->to];
    ps *o = own->ps;
    int64_t version = m->task.version;
    o->created = false;
    if (!o->redis->up) {
        answer(s, m->to, ROUND_LOAD_FAILED)->round.code = ERR_UNAVAILABLE;
        return;
    }
    if (s->job[own->job].committed > 0 && sim_chance(s, 0.4)) {
        load_checkpoint(s, m->to);
        o->merged = o->pending = o->redis->model;
        answer(s, m->to, ROUND_LOADED)->round.resume = &o->resume;
        return;
    }
    o->redis->created = o->created = true;
    /* Its copy may be lost, if it was in a segment; of version 0 there may be none yet. */
    if (version < 0 || (s->job[own->job].committed == 0 && sim_chance(s, 0.2))) {
        o->merged.version = o->pending.version = -1;
        o->initial_done = false;
        answer(s, m->to, ROUND_LOADED)->round.version = -1;
        return;
    }
    o->redis->model = o->merged.version == version ? o->merged : o->pending;
    if (o->redis->model.version != version)
        sim_wrong(s, "kubeml-ps has no version %lld to put back", (long long)version);
    answer(s, m->to, ROUND_LOADED);
}

/* What it knows without a merge of its own: version 0, and what a resume found. */
static void keep_known(sim *s, int p)
{
    ps *o = s->process[p].ps;
    if (o->merged.version < 0 && round_version(o->machine) == 0)
        o->merged = o->pending = (sim_model){.value = model_first(&s->job[s->process[p].job])};
    else if (o->redis->model.version >= 0 && round_version(o->machine) == o->redis->model.version)
        o->merged = o->pending = o->redis->model;
}

/* ---- functions ------------------------------------------------------------------------------- */

void ps_conn_closed(sim *s, int p, int conn, int other)
{
    ps *o = s->process[p].ps;
    if (!o)
        return;
    if (conn == o->controller) {
        o->controller = -1;
        return;
    }
    if (other == SIM_CONTROLLER)
        return; /* an older connection than the present one */
    const process *f = &s->process[other];
    if (!o->finished && joined_conn(o, f->function, f->incarnation) == conn)
        ps_step(s, p,
                &(round_event){.type = ROUND_LOST,
                               .function = f->function,
                               .incarnation = f->incarnation,
                               .reason = "ConnectionLost",
                               .message = "the connection broke"},
                -1, -1);
}

void ps_from_function(sim *s, message *m)
{
    if (!s->process[m->to].ps)
        return;
    const ps *o = s->process[m->to].ps;
    if (m->round.type == ROUND_INITIALISED) {
        if (!o->initial_done && m->round.incarnation == o->init_incarnation)
            slow_call(s, m->to, 30, init_now)->round = m->round;
    } else if (m->shares.count == 0)
        ps_step(s, m->to, &m->round, m->conn, m->from);
    for (int i = 0; i < m->shares.count && s->process[m->to].alive;
         i++) { /* with nothing in between */
        round_event one = m->round;
        report_share(s, s->process[m->to].job, &m->task, &m->shares.of[i], &one);
        ps_step(s, m->to, &one, m->conn, m->from);
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* What was published when Redis ended is in no model store. */
static void note_published(ps *o, const round_event *e)
{
    for (int f = 0; f < SIM_FUNCTIONS_MAX && e->type == ROUND_LOADED; f++)
        o->trains[f].gone = o->trains[f].published;
    if (e->type == ROUND_PUBLISHED && e->incarnation == o->trains[e->function].incarnation &&
        e->epoch == o->trains[e->function].epoch && e->round == o->trains[e->function].round)
        o->trains[e->function].published = true;
}

static void check_published(sim *s, int p, const round_merge *merge)
{
    for (size_t i = 0; i < merge->count; i++)
        if (s->process[p].ps->trains[merge->rows[i].function].gone)
            sim_wrong(s, "%s merges what function %d published before Redis ended",
                      s->process[p].name, merge->rows[i].function);
}

static void act(sim *s, int p, const round_action *a, int conn)
{
    ps *o = s->process[p].ps;
    sim_trace(s, "%s: %s f=%d i=%d e=%d r=%d v=%lld p=%d slot=%d batches=%u+%u %s %s",
              s->process[p].name, round_action_name(a->type), a->function, a->incarnation, a->epoch,
              a->round, (long long)a->version, a->parallelism, a->slot, a->batch_begin,
              a->batch_count, a->reason, a->message);
    const int said[] = {
        (int)a->type,    p,       a->function,         a->incarnation,     a->epoch, a->round,
        (int)a->version, a->slot, (int)a->batch_begin, (int)a->batch_count};
    sim_note(s, said, sizeof said);
    sim_note(s, a->reason, strlen(a->reason));
    switch (a->type) {
    case ROUND_WELCOME:
        o->joined[a->function].incarnation = a->incarnation;
        o->joined[a->function].conn = conn;
        tell_function(s, p, a, function_welcome);
        break;
    case ROUND_REFUSE:
        if (conn >= 0)
            sim_break(s, conn);
        break;
    case ROUND_CLOSE:
        if (joined_conn(o, a->function, a->incarnation) >= 0)
            sim_break(s, joined_conn(o, a->function, a->incarnation));
        break;
    case ROUND_INIT: slow_call(s, p, 10, create_now)->task = *a; break;
    case ROUND_TRAIN:
        o->trains[a->function].incarnation = a->incarnation;
        o->trains[a->function].epoch = a->epoch;
        o->trains[a->function].round = a->round;
        o->trains[a->function].published = o->trains[a->function].gone = false;
        break; /* give_tasks */
    case ROUND_VALIDATE:
        break; /* give_tasks */
    case ROUND_HALT: tell_function(s, p, a, function_halt); break;
    case ROUND_MERGE:
        check_published(s, p, &a->merge);
        o->out = a->merge;
        memcpy(o->out_row, a->merge.rows, a->merge.count * sizeof *a->merge.rows);
        o->out.rows = o->out_row;
        slow_call(s, p, 30, merge_now);
        break;
    case ROUND_LOAD: slow_call(s, p, 50, load_now); break;
    case ROUND_COMMIT: slow_call(s, p, 50, commit_now)->task = *a; break;
    case ROUND_RESTORE:
        o->init_incarnation = -1;
        slow_call(s, p, 50, restore_now)->task = *a;
        break;
    case ROUND_FINISHED: finish(s, p, a); break;
    default: tell_controller(s, p, a); break;
    }
}

/* A process gets what a step gives its functions to do as one frame. */
static void give_tasks(sim *s, int p, const round_action *actions, size_t n)
{
    bool shared = s->job[s->process[p].job].request.process == PROCESS_SHARED;
    for (size_t i = 0, next; i < n; i = next) {
        round_action first = actions[i];
        sim_shares shares = {0};
        next = i + 1;
        if (first.type != ROUND_TRAIN && first.type != ROUND_VALIDATE)
            continue;
        for (next = i; next < n && actions[next].type == first.type && (shared || next == i);
             next++)
            shares.of[shares.count++] = (sim_share){.function = actions[next].function,
                                                    .batch_begin = actions[next].batch_begin,
                                                    .batch_count = actions[next].batch_count};
        first.function = shared ? 0 : first.function;
        int conn = joined_conn(s->process[p].ps, first.function, first.incarnation);
        if (conn < 0 || !s->conn[conn].open)
            continue;
        message *m = sim_send(s, conn, s->conn[conn].end[0], function_task);
        m->task = first;
        m->shares = shares;
    }
}

void ps_step(sim *s, int p, const round_event *event, int conn, int from)
{
    ps *o = s->process[p].ps;
    round_event e = *event;
    const round_action *actions;
    if (!o || !o->started)
        return;
    (void)from;
    e.now_ms = s->now;
    if (e.type != ROUND_HEARTBEAT && e.type != ROUND_TICK)
        sim_trace(s, "%s < %s f=%d i=%d e=%d r=%d v=%lld", s->process[p].name,
                  round_event_name(e.type), e.function, e.incarnation, e.epoch, e.round,
                  (long long)e.version);
    int64_t before = round_version(o->machine);
    note_published(o, &e);
    bounds_ps_hears(s, p, &e);
    size_t n = round_step(o->machine, &e, &actions);
    if (round_version(o->machine) < before && e.type != ROUND_LOADED)
        sim_wrong(s, "%s: the version went back from %lld to %lld", s->process[p].name,
                  (long long)before, (long long)round_version(o->machine));
    bool fenced = s->job[s->process[p].job].writer > s->process[p].incarnation;
    if (round_version(o->machine) > before + 1 && e.type != ROUND_START && !fenced)
        sim_wrong(s, "%s: the version jumped", s->process[p].name);
    if (e.type == ROUND_MERGED && round_version(o->machine) == before + 1)
        bounds_ps_merged(s, p);
    for (size_t i = 0; i < n && s->process[p].alive; i++) {
        bounds_ps_does(s, p, &actions[i]);
        act(s, p, &actions[i], conn);
        if (sim_fault(s, 0.0005))
            sim_kill(s, p, "Killed");
    }
    if (!s->process[p].alive)
        return;
    give_tasks(s, p, actions, n);
    if (e.type == ROUND_INITIALISED || e.type == ROUND_LOADED || e.type == ROUND_START)
        keep_known(s, p);
    plan_tick(s, p);
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* The merges of the epoch that the job was suspended in: its model is the model store's. */
static void load_open(sim *s, int p)
{
    process *own = &s->process[p];
    ps *o = own->ps;
    const sim_model *m = &s->job[own->job].open_model;
    o->redis->model = o->merged = o->pending = *m;
    o->resume = (round_resume){.epoch = m->rows_epoch,
                               .parallelism = m->parallelism,
                               .version = m->version,
                               .rows = o->redis->model.row,
                               .count = (size_t)m->rows};
}

/* From where it was suspended, if it has as many functions as then; else from the checkpoint, else
 * from the start. */
static const round_resume *find_resume(sim *s, int p)
{
    process *own = &s->process[p];
    ps *o = own->ps;
    sim_job *j = &s->job[own->job];
    bool open = j->open && j->open_model.rows_epoch == j->committed &&
                j->open_model.parallelism <= o->parallelism;
    if (!open && j->committed == 0)
        return NULL;
    if (open)
        load_open(s, p);
    else
        load_checkpoint(s, p);
    o->redis->created = o->created = o->initial_done = true;
    return &o->resume;
}

/* Who goes on writes his number first. */
static void start(sim *s, message *m)
{
    process *own = &s->process[m->to];
    ps *o = own->ps;
    err_code code = m->number ? store_claim(s, own->job, own->incarnation) : ERR_NONE;
    if (code == ERR_UNAVAILABLE && s->now < o->give_up_ms) {
        sim_after(s, RETRY_MS, m->to, start)->number = m->number;
        return;
    }
    if (code == ERR_UNAVAILABLE)
        bounds_store_away(s, m->to, GIVE_UP_MS / 2);
    if (code) {
        set_end(o, JOB_FAILED, "StoreUnavailable", "the job could not be begun");
        is_over(s, m->to);
        return;
    }
    if (m->number && s->job[own->job].final) {
        o->end = s->job[own->job].end;
        is_over(s, m->to);
        return;
    }
    o->started = true;
    const round_resume *resume = m->number ? find_resume(s, m->to) : NULL;
    ps_step(s, m->to, &(round_event){.type = ROUND_START, .resume = resume}, -1, -1);
    if (own->alive && o->stop.type != ROUND_TICK)
        ps_step(s, m->to, &o->stop, -1, -1);
}

void ps_begin(sim *s, int p, bool resume, int generation, int parallelism, int functions_max)
{
    process *own = &s->process[p];
    sim_job *j = &s->job[own->job];
    err e = ERR_INIT;
    ps *o = calloc(1, sizeof *o);
    if (!o)
        abort();
    own->ps = o;
    o->controller = -1;
    o->give_up_ms = s->now + GIVE_UP_MS;
    o->merged.version = o->pending.version = -1;
    o->redis = redis_new(s);
    o->parallelism = parallelism;
    for (int f = 0; f < SIM_FUNCTIONS_MAX; f++)
        o->joined[f].incarnation = o->bound[f].ready = o->bound[f].lost = -1;
    round_config c = {.request = j->request,
                      .parallelism = parallelism,
                      .functions_max =
                          j->request.process == PROCESS_SHARED ? parallelism : functions_max,
                      .train_samples = j->samples,
                      .test_samples = j->test_samples,
                      .chunk_samples = j->chunk_samples,
                      .generation = generation,
                      .limits = j->limits};
    if (round_open(&c, &o->machine, &e) < 0) {
        sim_wrong(s, "round_open: %s", e.message);
        return;
    }
    sim_after(s, sim_between(s, 1, 100), p, start)->number = resume;
}

void ps_free(ps *o)
{
    if (!o)
        return;
    round_close(o->machine);
    free(o);
}

void ps_told(sim *s, message *m)
{
    ps *o = s->process[m->to].ps;
    bool stops = m->round.type == ROUND_STOP || m->round.type == ROUND_SUSPEND;
    if (o && !o->started && stops) /* the last word counts */
        o->stop = (round_event){.type = m->round.type, .message = "simulated"};
    else if (o)
        ps_step(s, m->to, &m->round, -1, -1);
}

/* A controller has dialled: it hears what is open. */
void ps_attach(sim *s, message *m)
{
    process *own = &s->process[m->to];
    const round_action *actions;
    if (!own->ps) { /* it never got its job */
        message *no = sim_send(s, m->conn, SIM_CONTROLLER, controller_hears);
        no->life = m->life;
        no->job =
            (job_event){.type = JOB_PS_REFUSED, .job = s->job[own->job].id, .code = ERR_NOT_FOUND};
        return;
    }
    own->ps->controller = m->conn;
    to_controller(s, m->to, JOB_PS_ACCEPTED);
    to_controller(s, m->to, JOB_PS_ACCESS);
    for (int e = 0; e < s->job[own->job].committed; e++)
        tell_epoch(s, m->to, &s->job[own->job].epoch[e].record);
    if (own->ps->finished) {
        tell_end(s, m->to);
        return;
    }
    if (!own->ps->started)
        return;
    size_t n = round_tell(own->ps->machine, &actions);
    for (size_t i = 0; i < n; i++)
        tell_controller(s, m->to, &actions[i]);
}

/* ---- Redis ----------------------------------------------------------------------------------- */

static void redis_is_gone(sim *s, message *m)
{
    ps_step(s, m->to, &(round_event){.type = ROUND_REDIS_GONE, .message = "simulated"}, -1, -1);
}

/* The news waits for the calls that still spoke to the old one. */
static void redis_is_back(sim *s, message *m)
{
    ps *o = s->process[m->to].ps;
    o->redis->up = true;
    if (o->io_free > s->now) {
        sim_after(s, o->io_free - s->now, m->to, redis_is_back)->number = m->number;
        ps_step(s, m->to, &(round_event){.type = ROUND_REDIS_RUNS, .message = "simulated"}, -1, -1);
        return;
    }
    ps_step(s, m->to, &(round_event){.type = ROUND_REDIS_BACK, .empty = m->number}, -1, -1);
}

void ps_redis_down(sim *s, int p, bool empty, int64_t ms)
{
    ps *o = s->process[p].ps;
    if (!o || !o->started || o->finished || !o->redis->up)
        return;
    o->redis->up = false;
    o->redis->down_ms = s->now;
    if (empty) {
        o->redis->model.version = -1;
        o->redis->inited = o->redis->created = false;
        for (int i = 0; i < SIM_SLOTS_MAX; i++)
            o->redis->place[i].published = false;
    }
    sim_after(s, ms / 2 < 2000 ? ms / 2 : 2000, p, redis_is_gone);
    sim_after(s, ms, p, redis_is_back)->number = empty;
}
