/* job_fixture.h: a jobs machine, its clock, and the actions of its last step. */
#ifndef KUBEML_JOB_FIXTURE_H
#define KUBEML_JOB_FIXTURE_H

#include "controller/job/job.h"
#include "test.h"

static jobs *m;
static const job_action *actions;
static size_t count;
static int64_t now;

static inline void open_machine(int slots)
{
    job_limits l;
    err e = ERR_INIT;
    job_limits_default(&l);
    now = 1000;
    CHECK_OK(jobs_open(&l, slots, &m, &e), e);
}

static inline void step(job_event e)
{
    e.now_ms = now;
    e.wall_ms = 1700000000000 + now;
    count = jobs_step(m, &e, &actions);
}

static inline const job_action *find(job_action_type type)
{
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == type)
            return &actions[i];
    return NULL;
}

static inline const job_action *get(job_action_type type)
{
    const job_action *a = find(type);
    if (!a)
        test_fail(__FILE__, __LINE__, "no action %d", (int)type);
    return a;
}

static inline int number_of(job_action_type type)
{
    int n = 0;
    for (size_t i = 0; i < count; i++)
        n += actions[i].type == type;
    return n;
}

static inline void submit(const char *id, int parallelism, int priority, bool is_static)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 3,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = parallelism,
                 .static_parallelism = is_static,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .priority = priority};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
}

static inline void check_reason(const char *id, const char *reason, const char *part)
{
    job_reason r;
    jobs_explain(m, jobs_find(m, id), now, &r);
    CHECK_STR(r.reason, reason);
    CHECK_CONTAINS(r.message, part);
}

/* From submitted to training with `functions` functions; kubeml-ps is pod
 * "<id>-ps-<generation>". */
static inline void ps_starts(const char *id, int generation)
{
    char pod[JOB_POD_BYTES];
    snprintf(pod, sizeof pod, "%s-ps-%d", id, generation);
    step((job_event){.type = JOB_POD_READY,
                     .job = id,
                     .function = JOB_KUBEML_PS,
                     .incarnation = generation,
                     .pod = pod});
    CHECK_STR(get(JOB_SEND)->pod, pod);
    step((job_event){.type = JOB_PS_ACCEPTED, .job = id});
    step((job_event){.type = JOB_PS_ACCESS, .job = id});
}

static inline void function_joins(const char *id, int f, int incarnation)
{
    char pod[JOB_POD_BYTES];
    snprintf(pod, sizeof pod, "%s-f-%d-%d", id, f, incarnation);
    step((job_event){.type = JOB_PS_NEED, .job = id, .function = f, .incarnation = incarnation});
    CHECK_INT(get(JOB_TAKE)->function, f);
    step((job_event){
        .type = JOB_POD_READY, .job = id, .function = f, .incarnation = incarnation, .pod = pod});
    CHECK_STR(get(JOB_SPECIALISE)->pod, pod);
    step(
        (job_event){.type = JOB_SPECIALISED, .job = id, .function = f, .incarnation = incarnation});
}

static inline void run_job(const char *id, int functions)
{
    submit(id, functions, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(actions[0].type, JOB_SAVE); /* before anything is asked for */
    CHECK_INT(get(JOB_TAKE)->function, JOB_KUBEML_PS);
    ps_starts(id, 0);
    for (int f = 0; f < functions; f++)
        function_joins(id, f, 0);
    step((job_event){.type = JOB_PS_PHASE, .job = id, .phase = "training"});
    CHECK_INT(jobs_find(m, id)->state, JOB_RUNNING);
}

static inline void submit_bound_of(const char *id, int functions, int deadline_s, int backoff)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 10,
                 .batch_size = 4,
                 .lr = 0.1,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .default_parallelism = functions,
                 .static_parallelism = true,
                 .active_deadline_seconds = deadline_s,
                 .backoff_limit = backoff};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
}

static inline void submit_bound(const char *id, int deadline_s, int backoff)
{
    submit_bound_of(id, 1, deadline_s, backoff);
}

static inline bool is_raised(const char *id, const char *type)
{
    const job *j = jobs_find(m, id);
    for (int i = 0; i < j->conditions; i++)
        if (strcmp(j->condition[i].type, type) == 0)
            return j->condition[i].status;
    return false;
}

#endif
