/* sim_function.c: a function as kubeml-ps and the controller meet it: it loads, fetches, trains,
 * writes its contribution in two halves, says so, and sends heartbeats. It dies at any of these
 * points. */
#include <string.h>

#include "sim.h"

#define HEARTBEAT_MS 1000
#define RETRY_MS     150
#define TRIES_MAX    500

static void next_task(sim *s, int p);

static int64_t takes(sim *s, int p, int64_t low, int64_t high)
{
    return sim_between(s, low, high) * s->process[p].slow;
}

static message *report(sim *s, int p, round_event_type type)
{
    process *f = &s->process[p];
    message *m = sim_send(s, f->conn, f->ps_process, ps_from_function);
    m->from = p;
    m->round = (round_event){.type = type,
                             .function = f->function,
                             .incarnation = f->incarnation,
                             .epoch = f->task.epoch,
                             .round = f->task.round};
    return m;
}

static void beat(sim *s, message *m)
{
    int p = m->to;
    process *f = &s->process[p];
    if (f->halted)
        return;
    message *r = report(s, p, ROUND_HEARTBEAT);
    r->round.phase = f->busy ? "train" : "wait";
    r->round.batches = (uint32_t)s->now; /* progress, as far as anybody can see */
    sim_after(s, HEARTBEAT_MS, p, beat);
}

/* Of those that cannot start some are killed, some say it to kubeml-ps, some to the controller. */
enum { STARTS, IS_KILLED, TELLS_PS, TELLS_CONTROLLER };

static int start_of(const sim *s, int p)
{
    const process *f = &s->process[p];
    if (!s->narrow || f->function < s->job[f->job].request.default_parallelism)
        return STARTS;
    return IS_KILLED + (int)(sim_mix(s->seed, (uint64_t)p) % 3);
}

static void loaded(sim *s, message *m)
{
    if (start_of(s, m->to) == TELLS_PS) {
        message *bad = report(s, m->to, ROUND_FAILED);
        bad->round.reason = "GpuMemory";
        bad->round.message = "the GPU is full";
        return;
    }
    bool frail = sim_frailty(s, 0.2);
    if (start_of(s, m->to) == IS_KILLED || frail) {
        sim_kill(s, m->to, frail && sim_chance(s, 0.5) ? "Evicted" : "Killed");
        return;
    }
    if (sim_fault(s, 0.01)) {
        if (sim_mix(s->seed, (uint64_t)m->to) % 2) {
            sim_kill(s, m->to, "Killed");
            return;
        }
        message *bad = report(s, m->to, ROUND_FAILED);
        bad->round.reason = "GpuFailed";
        bad->round.code = ERR_UNAVAILABLE; /* the next one may find it in order */
        bad->round.message = "the GPU does not answer";
        return;
    }
    message *r = report(s, m->to, ROUND_READY);
    r->round.layout = "layout";
    r->round.algorithms = "plain";
}

void function_welcome(sim *s, message *m)
{
    sim_after(s, HEARTBEAT_MS, m->to, beat);
    sim_after(s, takes(s, m->to, 5, 200), m->to, loaded);
}

static void dial(sim *s, message *m)
{
    process *f = &s->process[m->to];
    if (!s->process[f->ps_process].alive) {
        sim_kill(s, m->to, "Exited");
        return;
    }
    f->conn = sim_connect(s, m->to, f->ps_process);
    report(s, m->to, ROUND_HELLO);
}

void function_specialise(sim *s, message *m)
{
    process *f = &s->process[m->to];
    message *answer = sim_send(s, m->conn, SIM_CONTROLLER, controller_hears);
    answer->life = m->life;
    answer->job = m->job;
    bool refuses = start_of(s, m->to) == TELLS_CONTROLLER;
    answer->job.type = f->specialised || refuses ? JOB_UNSPECIALISED : JOB_SPECIALISED;
    answer->job.code = refuses ? ERR_LIMIT : ERR_UNAVAILABLE;
    if (f->specialised || refuses)
        return;
    f->specialised = true;
    f->ps_process = m->number;
    sim_after(s, takes(s, m->to, 1, 50), m->to, dial);
}

/* ---- a task ---------------------------------------------------------------------------------- */

static redis *store_of(sim *s, int p)
{
    return s->process[s->process[p].ps_process].ps->redis;
}

/* The model store does not answer or has not what is needed: later again, within bounds. */
static bool again(sim *s, int p, void (*step)(sim *, message *))
{
    if (s->process[p].tries++ > TRIES_MAX)
        return false;
    sim_after(s, RETRY_MS, p, step);
    return true;
}

static void task_over(sim *s, int p)
{
    s->process[p].busy = false;
    next_task(s, p);
}

static int shard_plan_of_task(sim *s, int which, const round_action *t, shard_plan *d)
{
    const sim_job *j = &s->job[which];
    err e = ERR_INIT;
    return shard_plan_init(d,
                           &(shard_plan_spec){.seed = j->request.seed,
                                              .samples = j->samples,
                                              .chunk_samples = j->chunk_samples,
                                              .batch_size = (uint32_t)j->request.batch_size,
                                              .parallelism = t->parallelism,
                                              .epoch = (uint32_t)t->epoch},
                           &e);
}

static uint64_t share_samples(sim *s, int which, const round_action *t, const sim_share *share,
                              uint64_t *begin, uint64_t *end)
{
    shard_plan d;
    if (shard_plan_of_task(s, which, t, &d) < 0)
        return 0;
    shard_plan_samples(&d, share->function, share->batch_begin, share->batch_count, begin, end);
    shard_plan_free(&d);
    return *end - *begin;
}

void report_share(sim *s, int which, const round_action *task, const sim_share *share,
                  round_event *out)
{
    const sim_job *j = &s->job[which];
    uint32_t begin, end;
    out->function = share->function;
    if (out->type == ROUND_PUBLISHED) {
        out->samples = share_samples(s, which, task, share, &out->sample_begin, &out->sample_end);
        out->batches = share->batch_count;
        out->loss_sum = (double)out->samples;
    } else if (out->type == ROUND_VALIDATED) {
        shard_plan_test_share(j->test_samples, j->chunk_samples, task->parallelism, share->function,
                              &begin, &end, &out->samples);
        out->correct = model_correct(share->value, share->function, out->samples);
        out->loss_sum = 1;
    }
}

/* All its functions in one frame. */
static message *report_shares(sim *s, int p, round_event_type type)
{
    message *m = report(s, p, type);
    m->task = s->process[p].task;
    m->shares = s->process[p].shares;
    return m;
}

static void say_published(sim *s, int p)
{
    message *m = report_shares(s, p, ROUND_PUBLISHED);
    if (sim_chance(s, s->duplicate)) { /* the same frame again, at some other time, by any way */
        message *twice =
            sim_after(s, sim_between(s, 0, 3000), s->process[p].ps_process, ps_from_function);
        twice->round = m->round;
        twice->task = m->task;
        twice->shares = m->shares;
        twice->from = p;
    }
}

static void publish_end(sim *s, message *m)
{
    int p = m->to;
    process *f = &s->process[p];
    redis *r = store_of(s, p);
    sim_place *at = &r->place[f->task.slot];
    if (at->writer != p) {
        sim_wrong(s, "%s finished writing slot %d, which process %d writes to", f->name,
                  f->task.slot, at->writer);
        return;
    }
    if (!r->up || r->model.version < 0) {
        again(s, p, publish_end);
        return;
    }
    at->writing = false;
    if (r->model.epoch == f->task.epoch && r->model.round == f->task.round) {
        at->published = true;
        at->function = f->function;
        at->incarnation = f->incarnation;
        at->epoch = f->task.epoch;
        at->round = f->task.round;
        at->samples = 0;
        at->shares = f->shares;
        for (int i = 0; i < f->shares.count; i++) {
            uint64_t begin, end;
            at->samples += share_samples(s, f->job, &f->task, &f->shares.of[i], &begin, &end);
        }
        if (s->flips > 0 && sim_chance(s, 0.2)) { /* a bit flips; the checksum tells */
            s->flips--;
            at->published = false;
        }
        if (sim_fault(s, 0.01)) {
            sim_kill(s, p, "Killed");
            return;
        }
        say_published(s, p);
    }
    task_over(s, p);
}

static void publish_begin(sim *s, message *m)
{
    int p = m->to;
    process *f = &s->process[p];
    sim_place *at = &store_of(s, p)->place[f->task.slot];
    if (sim_frailty(s, 0.15)) {
        sim_kill(s, p, "Crashed");
        return;
    }
    if (at->writing && at->writer != p && s->process[at->writer].alive) {
        sim_wrong(s, "%s writes to slot %d while %s does", f->name, f->task.slot,
                  s->process[at->writer].name);
        return;
    }
    at->writing = true;
    at->published = false;
    at->writer = p;
    if (sim_fault(s, 0.02)) {
        sim_kill(s, p, "Killed");
        return;
    }
    sim_after(s, takes(s, p, 1, 40), p, publish_end);
}

static void validate_end(sim *s, message *m)
{
    report_shares(s, m->to, ROUND_VALIDATED);
    task_over(s, m->to);
}

static void fetch(sim *s, message *m)
{
    int p = m->to;
    process *f = &s->process[p];
    const redis *r = store_of(s, p);
    if (!r->up || r->model.version < f->task.version) {
        if (!f->waiting) /* a newer task does not wait behind one that cannot be done */
            again(s, p, fetch);
        else
            task_over(s, p);
        return;
    }
    if (r->model.version > f->task.version) {
        task_over(s, p); /* the round is merged without it */
        return;
    }
    if (f->task.type == ROUND_VALIDATE) {
        for (int i = 0; i < f->shares.count; i++)
            f->shares.of[i].value = r->model.value;
        sim_after(s, takes(s, p, 5, 100), p, validate_end);
        return;
    }
    for (int i = 0; i < f->shares.count; i++) {
        sim_share *share = &f->shares.of[i];
        uint64_t begin, end;
        share_samples(s, f->job, &f->task, share, &begin, &end);
        share->value = model_contribution(r->model.value, f->task.epoch, f->task.parallelism,
                                          share->function, begin, end);
    }
    if (s->job[f->job].nan && sim_chance(s, 0.2)) {
        message *bad = report(s, p, ROUND_FAILED);
        bad->round.reason = "NaNLoss";
        bad->round.message = "the loss is not a number";
        return;
    }
    if (sim_fault(s, 0.01)) {
        sim_kill(s, p, "Killed");
        return;
    }
    sim_after(s, takes(s, p, 10, 300), p, publish_begin);
}

static void initialise(sim *s, message *m)
{
    redis *r = store_of(s, m->to);
    if (sim_fault(s, 0.03)) {
        sim_kill(s, m->to, "Killed");
        return;
    }
    if (!r->up || !r->created) {
        again(s, m->to, initialise);
        return;
    }
    r->inited = true;
    report(s, m->to, ROUND_INITIALISED);
    task_over(s, m->to);
}

static void next_task(sim *s, int p)
{
    process *f = &s->process[p];
    if (f->busy || !f->waiting || f->halted)
        return;
    f->waiting = false;
    f->busy = true;
    f->tries = 0;
    f->task = f->next;
    f->shares = f->next_shares;
    sim_after(s, takes(s, p, 0, 10), p, f->task.type == ROUND_INIT ? initialise : fetch);
}

void function_task(sim *s, message *m)
{
    process *f = &s->process[m->to];
    f->next = m->task;
    f->next_shares = m->shares;
    f->waiting = true;
    next_task(s, m->to);
}

static void leave(sim *s, message *m)
{
    sim_kill(s, m->to, "Exited");
}

void function_halt(sim *s, message *m)
{
    s->process[m->to].halted = true;
    sim_after(s, sim_between(s, 0, 20), m->to, leave);
}

/* It notices, but what it writes at this moment it goes on writing for a while. */
void function_conn_closed(sim *s, int p)
{
    s->process[p].halted = true;
    sim_after(s, sim_between(s, 0, 2000), p, leave);
}
