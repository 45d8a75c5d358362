/* sim_user.c: who asks for the jobs: submits them, cancels some, suspends some, and has what has
 * ended go on. */
#include <string.h>

#include "sim.h"

enum { ASK_AGAIN_MS = 500, RESUMES_MAX = 3 };

static message *ask(sim *s, int64_t ms, int who, void (*deliver)(sim *, message *))
{
    message *m = sim_after(s, ms, SIM_CONTROLLER, deliver);
    m->number = who;
    return m;
}

/* Its record is written before anybody hears that there is the job. */
static void submit(sim *s, message *m)
{
    sim_job *j = &s->job[m->number];
    err e = ERR_INIT;
    if (!s->machine || !s->store_up) {
        ask(s, ASK_AGAIN_MS, m->number, submit);
        return;
    }
    if (jobs_submit(s->machine, j->id, &j->request, false, s->now, &e) < 0)
        sim_wrong(s, "submit: %s", e.message);
    controller_new_job(s, m->number);
}

static void cancel(sim *s, int who)
{
    s->job[who].cancelled = true;
    controller_event(s, &(job_event){.type = JOB_CANCEL, .job = s->job[who].id});
}

static void cancel_now(sim *s, message *m)
{
    cancel(s, m->number);
}

static void suspend_now(sim *s, message *m)
{
    sim_job *j = &s->job[m->number];
    j->suspended = true;
    controller_event(s, &(job_event){.type = JOB_SUSPEND, .job = j->id});
}

/* As soon as the last pod of the job has ended. */
static void resume_now(sim *s, message *m)
{
    sim_job *j = &s->job[m->number];
    const job *there = s->machine ? jobs_find(s->machine, j->id) : NULL;
    job_state state;
    err e = ERR_INIT;
    if (!s->machine || !s->store_up || j->unsaved || (there && job_ended(there))) {
        ask(s, ASK_AGAIN_MS, m->number, resume_now);
        return;
    }
    j->waits_resume = false;
    bool is = job_state_from_name(json_string_value(json_object_get(j->record, "state")), &state);
    if (there || !is || state < JOB_FAILED) {
        j->done = !there && is && state == JOB_SUCCEEDED;
        return; /* its end was in no record */
    }
    if (jobs_resubmit(s->machine, j->id, &j->request,
                      (int)json_integer_value(json_object_get(j->record, "generation")),
                      (int)json_integer_value(json_object_get(j->record, "epochs")),
                      (int)json_integer_value(json_object_get(j->record, "threads")), s->now,
                      &e) < 0)
        sim_wrong(s, "resubmit: %s", e.message);
    j->done = false;
    j->retries = 0;
    j->again_ms = 0;
    controller_new_job(s, m->number);
}

bool user_resumes(sim *s, int who)
{
    sim_job *j = &s->job[who];
    bool may = j->state == JOB_SUSPENDED || (j->state != JOB_SUCCEEDED && !j->hopeless &&
                                             j->resumes < RESUMES_MAX && sim_chance(s, 0.2));
    if (j->waits_resume)
        return true;
    if (!may)
        return false;
    j->resumes++;
    j->waits_resume = true;
    ask(s, sim_between(s, 0, 3000), who, resume_now);
    return true;
}

void user_begin(sim *s)
{
    for (int i = 0; i < s->jobs; i++) {
        ask(s, sim_between(s, 0, 1000), i, submit);
        if (sim_chance(s, 0.05))
            ask(s, sim_between(s, 0, 15000), i, cancel_now);
        for (int n = sim_chance(s, 0.15) ? (int)sim_between(s, 1, 3) : 0; n > 0; n--)
            ask(s, sim_between(s, 100, 8000), i, suspend_now);
    }
}

void user_cancels_hopeless(sim *s)
{
    for (int i = 0; i < s->jobs; i++)
        if (!s->job[i].hopeless && !s->job[i].done)
            return;
    for (int i = 0; i < s->jobs && s->machine; i++) {
        const job *j = s->job[i].hopeless ? jobs_find(s->machine, s->job[i].id) : NULL;
        if (j && !job_ended(j) && !j->verdict)
            cancel(s, i);
    }
}
