/* test_job.c: the jobs machine, step by step; the simulator has the schedules. */
#include "job.h"
#include "policy.h"
#include "test.h"

static jobs *m;
static const job_action *actions;
static size_t count;
static int64_t now;

static void open_machine(int slots)
{
    job_limits l;
    err e = ERR_INIT;
    job_limits_default(&l);
    now = 1000;
    CHECK_OK(jobs_open(&l, slots, &m, &e), e);
}

static void step(job_event e)
{
    e.now_ms = now;
    e.wall_ms = 1700000000000 + now;
    count = jobs_step(m, &e, &actions);
}

static const job_action *find(job_action_type type)
{
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == type)
            return &actions[i];
    return NULL;
}

static const job_action *get(job_action_type type)
{
    const job_action *a = find(type);
    if (!a)
        test_fail(__FILE__, __LINE__, "no action %d", (int)type);
    return a;
}

static int number_of(job_action_type type)
{
    int n = 0;
    for (size_t i = 0; i < count; i++)
        n += actions[i].type == type;
    return n;
}

static void submit(const char *id, int parallelism, int priority, bool is_static)
{
    request r = {.function_name = "f", .dataset = "d", .epochs = 3, .batch_size = 8, .lr = 0.1,
                 .default_parallelism = parallelism, .static_parallelism = is_static, .k = -1,
                 .validate_every = 1, .goal_accuracy = 100, .priority = priority};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
}

static void check_reason(const char *id, const char *reason, const char *part)
{
    job_reason r;
    jobs_explain(m, jobs_find(m, id), now, &r);
    CHECK_STR(r.reason, reason);
    CHECK_CONTAINS(r.message, part);
}

/* From submitted to training with `functions` functions; kubeml-ps is pod
 * "<id>-ps-<generation>". */
static void ps_starts(const char *id, int generation)
{
    char pod[JOB_POD_BYTES];
    snprintf(pod, sizeof pod, "%s-ps-%d", id, generation);
    step((job_event){.type = JOB_POD_READY, .job = id, .function = JOB_KUBEML_PS,
                     .incarnation = generation, .pod = pod});
    CHECK_STR(get(JOB_SEND)->pod, pod);
    step((job_event){.type = JOB_PS_ACCEPTED, .job = id});
    step((job_event){.type = JOB_PS_ACCESS, .job = id});
}

static void function_joins(const char *id, int f, int incarnation)
{
    char pod[JOB_POD_BYTES];
    snprintf(pod, sizeof pod, "%s-f-%d-%d", id, f, incarnation);
    step((job_event){.type = JOB_PS_NEED, .job = id, .function = f, .incarnation = incarnation});
    CHECK_INT(get(JOB_TAKE)->function, f);
    step((job_event){.type = JOB_POD_READY, .job = id, .function = f, .incarnation = incarnation,
                     .pod = pod});
    CHECK_STR(get(JOB_SPECIALISE)->pod, pod);
    step(
        (job_event){.type = JOB_SPECIALISED, .job = id, .function = f, .incarnation = incarnation});
}

static void run_job(const char *id, int functions)
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

TEST(a_whole_job)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 2);
    CHECK_INT(jobs_slots_free(m), 2);
    check_reason("a", "Training", "epoch 1 of 3");
    step((job_event){.type = JOB_PS_EPOCH, .job = "a", .epoch = 0, .value = 2, .seconds = 4});
    CHECK_INT(jobs_find(m, "a")->epochs, 1);
    get(JOB_SAVE);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3,
                     .reason = "Completed", .message = "3 epochs"});
    get(JOB_TELL_BYE);
    CHECK_INT(number_of(JOB_STOP), 3);
    CHECK_INT(jobs_slots_free(m), 2); /* until they have ended */
    CHECK_ERR(jobs_forget(m, "a", &e), e, ERR_CONFLICT, "has not ended");
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0"});
    CHECK(!find(JOB_DONE));
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    CHECK_INT(get(JOB_DONE)->job->state, JOB_SUCCEEDED);
    CHECK_INT(get(JOB_DONE)->job->epochs, 3);
    CHECK_INT(jobs_slots_free(m), 4);
    check_reason("a", "Completed", "3 epochs");
    CHECK(jobs_deadline(m) == INT64_MAX);
    CHECK_OK(jobs_forget(m, "a", &e), e);
    CHECK(!jobs_find(m, "a"));
    jobs_close(m);
}

TEST(what_a_job_waits_for_while_it_starts_is_said_with_the_time)
{
    open_machine(4);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    job_reason r;
    jobs_explain(m, jobs_find(m, "a"), now, &r);
    CHECK_STR(r.reason, "Starting");
    CHECK_STR(r.message, "waiting for kubeml-ps"); /* it has only begun to */
    now += 2500;
    check_reason("a", "Starting", "waiting for kubeml-ps for 2.5 s");
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a"});
    jobs_explain(m, jobs_find(m, "a"), now, &r);
    CHECK_STR(r.message, "waiting for function 0");
    step((job_event){.type = JOB_POD_READY, .job = "a", .pod = "a-f-0-0"});
    now += 1000;
    check_reason("a", "Starting", "waiting for function 0 (a-f-0-0) for 1.0 s");
    jobs_close(m);
}

TEST(a_job_of_one_function_is_told_in_the_singular)
{
    open_machine(4);
    run_job("a", 1);
    check_reason("a", "Training", "epoch 1 of 3, 1 function");
    job_reason r;
    jobs_explain(m, jobs_find(m, "a"), now, &r);
    CHECK(!strstr(r.message, "functions"));
    jobs_close(m);
}

TEST(the_queue_is_by_priority_then_by_age_and_nobody_overtakes)
{
    err e = ERR_INIT;
    request r = {.default_parallelism = 1};
    open_machine(4);
    run_job("first", 3);
    submit("big", 3, 0, true);
    submit("small", 1, 0, true);
    submit("urgent", 2, 5, true);
    CHECK_ERR(jobs_submit(m, "big", &r, false, 1, &e), e, ERR_EXISTS, "big");
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TAKE)); /* small would fit, and does not overtake */
    CHECK(jobs_waiting(m));
    check_reason("big", "NoFreeSlot", "needs 3 function slots, 1 of 4 are free, 1 job is before");
    check_reason("big", "NoFreeSlot", "first (3)");
    check_reason("urgent", "NoFreeSlot", "0 jobs are before");
    check_reason("small", "NoFreeSlot",
                 "needs 1 function slot, 1 of 4 are free, 2 jobs are before");
    step((job_event){.type = JOB_SLOTS, .value = 5});
    CHECK_STR(get(JOB_TAKE)->job->id, "urgent");
    CHECK_INT(number_of(JOB_TAKE), 1);
    step((job_event){.type = JOB_SLOTS, .value = 8});
    CHECK_STR(get(JOB_TAKE)->job->id, "big");
    step((job_event){.type = JOB_CANCEL, .job = "small", .message = "not needed"});
    CHECK_INT(jobs_find(m, "small")->state, JOB_CANCELLED);
    CHECK_STR(get(JOB_DONE)->job->id, "small");
    submit("huge", 10, 0, true);
    step((job_event){.type = JOB_TICK});
    check_reason("huge", "NoFreeSlot", "needs 10 function slots and the cluster has 8");
    /* It waits for the cluster to grow, and nobody waits for it. */
    submit("tiny", 1, 0, true);
    step((job_event){.type = JOB_SLOTS, .value = 9});
    CHECK_STR(get(JOB_TAKE)->job->id, "tiny");
    CHECK(!jobs_waiting(m));
    jobs_close(m);
}

TEST(an_elastic_job_begins_with_what_there_is)
{
    open_machine(2);
    submit("a", 4, 0, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TAKE)->job->parallelism, 2);
    jobs_close(m);
}

TEST(a_lost_function_gets_another_pod)
{
    open_machine(2);
    run_job("a", 2);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0", .reason = "Killed",
                     .message = "signal 9"});
    CHECK_INT(get(JOB_TELL_LOST)->function, 1);
    CHECK_STR(get(JOB_TELL_LOST)->message, "signal 9");
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    step((job_event){.type = JOB_POD_WAITING, .job = "a", .function = 1, .incarnation = 1,
                     .message = "no warm runtime, one is starting"});
    check_reason("a", "PoolEmpty", "no warm runtime");
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = 1, .incarnation = 1,
                     .pod = "x"});
    get(JOB_SPECIALISE);
    check_reason("a", "Training", "");
    jobs_close(m);
}

TEST(kubeml_ps_is_started_again_and_the_bound_holds)
{
    open_machine(2);
    run_job("a", 1);
    for (int g = 1; g <= 5; g++) {
        char pod[JOB_POD_BYTES];
        snprintf(pod, sizeof pod, "a-ps-%d", g - 1);
        step((job_event){.type = JOB_POD_ENDED, .pod = pod, .reason = "Killed",
                         .message = "signal 9"});
        CHECK_INT(get(JOB_TAKE)->incarnation, g);
        CHECK(get(JOB_TAKE)->job->resumed);
        check_reason("a", "PSRestarted", "signal 9");
        if (g == 1)
            CHECK_STR(get(JOB_STOP)->pod, "a-f-0-0"); /* it belongs to the one before */
        ps_starts("a", g);
    }
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-5", .reason = "Killed",
                     .message = "signal 9"});
    CHECK_INT(jobs_find(m, "a")->state, JOB_FAILED);
    check_reason("a", "PSCrashed", "signal 9");
    jobs_close(m);
}

TEST(a_broken_connection_is_made_again)
{
    open_machine(2);
    run_job("a", 1);
    step((job_event){.type = JOB_PS_CLOSED, .job = "a"});
    CHECK(!find(JOB_ATTACH));
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"}); /* told later */
    CHECK(!find(JOB_TELL_LOST));
    now = jobs_deadline(m);
    step((job_event){.type = JOB_TICK});
    CHECK_STR(get(JOB_ATTACH)->pod, "a-ps-0");
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    CHECK_INT(get(JOB_TELL_LOST)->function, 0);
    /* and when it cannot be made, kubeml-ps is replaced */
    step((job_event){.type = JOB_PS_CLOSED, .job = "a"});
    for (int i = 0; i < 1000 && !find(JOB_STOP); i++) {
        now = jobs_deadline(m);
        step((job_event){.type = JOB_TICK});
        if (find(JOB_ATTACH))
            step((job_event){.type = JOB_PS_CLOSED, .job = "a"});
    }
    CHECK_STR(get(JOB_STOP)->pod, "a-ps-0");
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    jobs_close(m);
}

TEST(cancel_gives_a_bounded_time)
{
    open_machine(2);
    run_job("a", 1);
    step((job_event){.type = JOB_CANCEL, .job = "a", .message = "by hand"});
    get(JOB_TELL_STOP);
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING);
    check_reason("a", "Cancelled", "by hand");
    now = jobs_deadline(m);
    CHECK_INT(now, 1000 + 10000);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->state, JOB_CANCELLED);
    CHECK_INT(number_of(JOB_STOP), 2);
    for (int i = 0; i < 100 && !find(JOB_DONE); i++) { /* their ends are never seen */
        now = jobs_deadline(m);
        step((job_event){.type = JOB_TICK});
    }
    get(JOB_DONE);
    jobs_close(m);
}

TEST(suspend_waits_for_the_merge_and_a_cancel_overtakes_it)
{
    open_machine(2);
    run_job("a", 1);
    step((job_event){.type = JOB_SUSPEND, .job = "a"});
    CHECK_INT(get(JOB_TELL_STOP)->value, 1);
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING);
    now += 3600 * 1000; /* however long the round takes */
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUSPENDED, .value = 3});
    const job *j = jobs_find(m, "a");
    CHECK_INT(j->state, JOB_SUSPENDED);
    CHECK_INT(j->epochs, 3);
    CHECK(j->finished_wall_ms == 0);
    get(JOB_TELL_BYE);
    check_reason("a", "Suspended", "on request");
    run_job("b", 1);
    step((job_event){.type = JOB_SUSPEND, .job = "b"});
    step((job_event){.type = JOB_CANCEL, .job = "b", .message = "enough"});
    CHECK_INT(get(JOB_TELL_STOP)->value, 0);
    step((job_event){.type = JOB_PS_FINISHED, .job = "b", .state = JOB_CANCELLED});
    CHECK_INT(jobs_find(m, "b")->state, JOB_CANCELLED);
    jobs_close(m);
    /* Queued it is suspended at once; what fails on the way to its merge has failed. */
    open_machine(1);
    run_job("a", 1);
    submit("b", 1, 0, true);
    step((job_event){.type = JOB_SUSPEND, .job = "b"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_SUSPENDED);
    step((job_event){.type = JOB_SUSPEND, .job = "a"});
    step(
        (job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_FAILED, .reason = "NaNLoss"});
    CHECK_INT(jobs_find(m, "a")->state, JOB_FAILED);
    check_reason("a", "NaNLoss", "");
    jobs_close(m);
}

static void submit_bound(const char *id, int deadline_s, int backoff)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 10,
                 .batch_size = 4,
                 .lr = 0.1,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .default_parallelism = 1,
                 .static_parallelism = true,
                 .active_deadline_seconds = deadline_s,
                 .backoff_limit = backoff};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
}

TEST(a_deadline_fails_the_job)
{
    open_machine(1);
    submit_bound("a", 60, 3);
    submit_bound("b", 60, 0);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p"});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    CHECK(jobs_deadline(m) <= 1000 + 60000);
    now = 1000 + 60000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TELL_STOP)->value, 0);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_CANCELLED});
    CHECK_INT(jobs_find(m, "a")->state, JOB_FAILED); /* without a retry */
    check_reason("a", "DeadlineExceeded", "longer than 60 s");
    /* its own has just begun: queued does not count */
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    jobs_close(m);
}

TEST(a_failed_job_is_tried_again_from_its_checkpoint)
{
    open_machine(1);
    submit_bound("a", 0, 2);
    step((job_event){.type = JOB_TICK});
    for (int retry = 1; retry <= 3; retry++) {
        step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS,
                         .incarnation = retry - 1,
                         .pod = retry == 1 ? "p1"
                         : retry == 2      ? "p2"
                                           : "p3"});
        CHECK_INT(get(JOB_SEND)->job->resumed, retry > 1);
        step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
        step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_FAILED,
                         .reason = "NaNLoss", .message = "function 0"});
        get(JOB_TELL_BYE);
        get(JOB_STOP);
        if (retry == 3)
            break;
        CHECK_INT(jobs_find(m, "a")->state, JOB_QUEUED);
        CHECK_INT(jobs_find(m, "a")->retries, retry);
        check_reason("a", "Retrying", "function 0");
        CHECK_INT(jobs_slots_free(m), 1);
        CHECK(!jobs_waiting(m));
        CHECK_INT(jobs_deadline(m) - now, retry == 1 ? 10000 : 20000);
        now = jobs_deadline(m);
        step((job_event){.type = JOB_POD_ENDED, .pod = retry == 1 ? "p1" : "p2"});
        CHECK_INT(jobs_find(m, "a")->state, JOB_STARTING);
        CHECK_INT(jobs_find(m, "a")->generation, retry);
        check_reason("a", "Starting", retry == 1 ? "; retry 1 of 2" : "; retry 2 of 2");
    }
    CHECK_INT(jobs_find(m, "a")->state, JOB_FAILED);
    check_reason("a", "NaNLoss", "function 0; after 2 of 2 retries");
    jobs_close(m);
}

TEST(a_restarted_controller_waits_as_long_before_it_tries_again)
{
    err e = ERR_INIT;
    open_machine(1);
    submit_bound("a", 0, 2);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p1"});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    step(
        (job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_FAILED, .reason = "NaNLoss"});
    step((job_event){.type = JOB_POD_ENDED, .pod = "p1"});
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    open_machine(1);
    CHECK_OK(jobs_restore(m, record, &e), e);
    json_decref(record);
    now += 4000;
    step((job_event){.type = JOB_ADOPT});
    check_reason("a", "Retrying", "retry 1 of 2 in 6 s");
    CHECK_INT(jobs_deadline(m) - now, 6000);
    now += 6000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    jobs_close(m);
}

TEST(cancel_while_a_pod_is_on_its_way)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_CANCEL, .job = "a"});
    CHECK_INT(jobs_find(m, "a")->state, JOB_CANCELLED);
    CHECK(!find(JOB_DONE));
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p"});
    CHECK_STR(get(JOB_STOP)->pod, "p");
    step((job_event){.type = JOB_POD_ENDED, .pod = "p"});
    get(JOB_DONE);
    jobs_close(m);
}

TEST(a_pod_that_is_not_there_yet_holds_up_no_cancelled_job)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_CANCEL, .job = "a"});
    CHECK_INT(get(JOB_UNTAKE)->function, JOB_KUBEML_PS);
    step((job_event){.type = JOB_CANCEL, .job = "a"});
    CHECK(!find(JOB_UNTAKE)); /* once */
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = JOB_KUBEML_PS,
                     .code = ERR_CANCELLED});
    CHECK_INT(get(JOB_DONE)->job->state, JOB_CANCELLED);
    jobs_close(m);
}

/* An API server takes a moment to know of a role that was made just now, with the controller. */
TEST(a_right_that_is_missing_is_waited_for_within_bounds)
{
    open_machine(2);
    submit("a", 1, 0, true);
    for (int i = 1; i < 8; i++) {
        step((job_event){.type = JOB_TICK});
        CHECK_INT(get(JOB_TAKE)->function, JOB_KUBEML_PS);
        step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = JOB_KUBEML_PS,
                         .code = ERR_FORBIDDEN, .message = "may not patch pods"});
        CHECK_INT(jobs_find(m, "a")->state, JOB_STARTING);
        now += 5000;
    }
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = JOB_KUBEML_PS,
                     .code = ERR_FORBIDDEN, .message = "may not patch pods"});
    CHECK_INT(get(JOB_DONE)->job->state, JOB_FAILED);
    check_reason("a", "PodFailed", "after 8 tries: may not patch pods");
    jobs_close(m);
}

TEST(what_cannot_help_fails_at_once)
{
    open_machine(4);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p"});
    step((job_event){.type = JOB_PS_REFUSED, .job = "a", .code = ERR_NOT_FOUND,
                     .reason = "RedisMissing", .message = "redis-server is not installed"});
    step((job_event){.type = JOB_POD_ENDED, .pod = "p"});
    now += 20000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->state, JOB_FAILED);
    check_reason("a", "RedisMissing", "not installed");

    run_job("b", 1);
    step((job_event){.type = JOB_PS_NEED, .job = "b", .function = 0, .incarnation = 1});
    step((job_event){.type = JOB_POD_READY, .job = "b", .function = 0, .incarnation = 1,
                     .pod = "y"});
    step((job_event){.type = JOB_UNSPECIALISED, .job = "b", .function = 0, .incarnation = 1,
                     .code = ERR_INVALID, .reason = "LoadFailed", .message = "undefined symbol"});
    get(JOB_TELL_STOP);
    step((job_event){.type = JOB_PS_FINISHED, .job = "b", .state = JOB_CANCELLED});
    CHECK_INT(jobs_find(m, "b")->state, JOB_FAILED);
    check_reason("b", "LoadFailed", "function 0: undefined symbol");
    jobs_close(m);
}

TEST(conditions_keep_their_time_and_the_worst_one_is_the_reason)
{
    open_machine(2);
    run_job("a", 1);
    step((job_event){.type = JOB_PS_CONDITION, .job = "a", .name = "Straggler", .status = true,
                     .reason = "Straggler", .message = "function 0"});
    int64_t since = jobs_find(m, "a")->condition[0].since_wall_ms;
    check_reason("a", "Straggler", "function 0");
    now += 50;
    step((job_event){.type = JOB_PS_CONDITION, .job = "a", .name = "Straggler", .status = true,
                     .reason = "Straggler", .message = "function 0, still"});
    CHECK_INT(jobs_find(m, "a")->condition[0].since_wall_ms, since);
    step((job_event){.type = JOB_PS_CONDITION, .job = "a", .name = "RedisGone", .status = true,
                     .reason = "RedisGone", .message = "connection refused"});
    check_reason("a", "RedisGone", "connection refused");
    step((job_event){.type = JOB_PS_CONDITION, .job = "a", .name = "RedisGone", .status = false,
                     .reason = "Answers", .message = ""});
    check_reason("a", "Straggler", "still");
    jobs_close(m);
}

TEST(elastic_answers_stay_within_the_slots)
{
    open_machine(3);
    submit("a", 2, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_EPOCH, .job = "a", .epoch = 0, .value = 2, .seconds = 4});
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 0, .value = 2, .seconds = 4});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    CHECK_INT(jobs_slots_free(m), 0);
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 0, .value = 2, .seconds = 4});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3); /* asked again, answered the same */
    step((job_event){.type = JOB_PS_EPOCH, .job = "a", .epoch = 1, .value = 3, .seconds = 6});
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 1, .value = 3, .seconds = 6});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2); /* 1.5 times the last one */
    jobs_close(m);
}

/* An elastic job with two functions whose next epoch is to get a third. */
static void grows(const char *id)
{
    submit(id, 2, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts(id, 0);
    for (int f = 0; f < 2; f++)
        function_joins(id, f, 0);
    step((job_event){.type = JOB_PS_PHASE, .job = id, .phase = "training"});
    step((job_event){.type = JOB_PS_EPOCH, .job = id, .epoch = 0, .value = 2, .seconds = 4});
    step((job_event){.type = JOB_PS_ASK, .job = id, .epoch = 0, .value = 2, .seconds = 4});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    step((job_event){.type = JOB_PS_NEED, .job = id, .function = 2});
    CHECK_INT(get(JOB_TAKE)->function, 2);
}

static bool is_raised(const char *id, const char *type)
{
    const job *j = jobs_find(m, id);
    for (int i = 0; i < j->conditions; i++)
        if (strcmp(j->condition[i].type, type) == 0)
            return j->condition[i].status;
    return false;
}

static void trains_in(const char *id, int epoch, int functions, double seconds)
{
    step((job_event){.type = JOB_PS_PHASE, .job = id, .phase = "training", .epoch = epoch});
    step((job_event){.type = JOB_PS_EPOCH, .job = id, .epoch = epoch, .value = functions,
                     .seconds = seconds});
    step((job_event){.type = JOB_PS_ASK, .job = id, .epoch = epoch, .value = functions,
                     .seconds = seconds});
}

static void trains(const char *id, int epoch, int functions)
{
    trains_in(id, epoch, functions, 4);
}

TEST(an_elastic_job_does_not_wait_for_room_that_is_not_there)
{
    open_machine(8);
    grows("a");
    step((job_event){.type = JOB_POD_WAITING, .job = "a", .function = 2, .reason = "PoolEmpty",
                     .message = "one is being started"});
    CHECK(!find(JOB_TELL_PARALLELISM)); /* that one comes */
    step((job_event){.type = JOB_POD_WAITING, .job = "a", .function = 2, .reason = "Unschedulable",
                     .message = "no node takes the pod: Insufficient cpu"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->epoch, 0);
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    CHECK_INT(get(JOB_UNTAKE)->function, 2);
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 2, .code = ERR_CANCELLED});
    CHECK_INT(jobs_slots_free(m), 6);
    CHECK(!is_raised("a", "PoolEmpty")); /* nothing is wrong with the job */
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training", .epoch = 1});
    check_reason("a", "Training",
                 "epoch 2 of 3, 2 functions; there is no more of them: no node takes the pod");

    trains("a", 1, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2); /* not again and again */
    int64_t waits[] = {5000, 10000, 20000, 40000, 60000, 60000};
    int epoch = 2;
    for (int i = 0; i < 6; i++) { /* less and less often */
        now += waits[i] - 1;
        trains("a", epoch++, 2);
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
        now += 1;
        trains("a", epoch++, 2);
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
        step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 2, .incarnation = i + 1});
        step((job_event){.type = JOB_POD_WAITING, .job = "a", .function = 2, .incarnation = i + 1,
                         .reason = "Unschedulable", .message = "no node takes the pod"});
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
        step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2, .incarnation = i + 1});
        step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 2, .incarnation = i + 1,
                         .code = ERR_CANCELLED});
    }
    now += 60000;
    trains("a", epoch++, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    trains("a", epoch, 3);
    check_reason("a", "Training", "functions");
    CHECK_STR(jobs_find(m, "a")->no_more, "");
    jobs_close(m);
}

/* A job asks for four functions; function 0 has a pod. */
static void begins(const char *id, bool elastic)
{
    submit(id, 4, 0, !elastic);
    step((job_event){.type = JOB_TICK});
    ps_starts(id, 0);
    step((job_event){.type = JOB_PS_PHASE, .job = id, .phase = "starting"});
    function_joins(id, 0, 0);
    for (int f = 1; f < 4; f++)
        step((job_event){.type = JOB_PS_NEED, .job = id, .function = f});
}

static void no_room_for(const char *id, int function)
{
    step((job_event){.type = JOB_POD_WAITING,
                     .job = id,
                     .function = function,
                     .reason = "Unschedulable",
                     .message = "no node takes the pod"});
}

static void let_go(const char *id, int function)
{
    step((job_event){.type = JOB_PS_RELEASE, .job = id, .function = function});
    CHECK_INT(get(JOB_UNTAKE)->function, function);
    step((job_event){
        .type = JOB_POD_FAILED, .job = id, .function = function, .code = ERR_CANCELLED});
}

TEST(an_elastic_job_begins_with_the_functions_that_there_is_room_for)
{
    open_machine(8);
    begins("a", true);
    no_room_for("a", 3);
    check_reason("a", "Unschedulable", "no node takes the pod");
    now += 1000;
    no_room_for("a", 2);
    no_room_for("a", 1);
    CHECK(!find(JOB_TELL_PARALLELISM)); /* somebody's pods may be ending */
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 1,
                     .reason = "PoolEmpty",
                     .message = "there is room now"});
    CHECK_STR(jobs_find(m, "a")->no_more, "");
    now += 4000;
    CHECK_INT(jobs_deadline(m), now);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->epoch, -1);
    CHECK_STR(jobs_find(m, "a")->no_more, "no node takes the pod"); /* what that one waits for */
    no_room_for("a", 2); /* said again: it does not begin anew */
    now += 1000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    let_go("a", 2);
    let_go("a", 3);
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = 1, .pod = "a-f-1-0"});
    CHECK_INT(jobs_slots_free(m), 6);
    CHECK(!is_raised("a", "PoolEmpty"));
    trains("a", 0, 2);
    check_reason("a", "Training", "2 functions; there is no more of them: no node takes the pod");
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    now += 5000; /* two refusals at once are one */
    trains("a", 1, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    jobs_close(m);
}

TEST(a_kubeml_ps_that_may_not_have_heard_that_there_is_no_room_is_told_again)
{
    open_machine(8);
    begins("a", true);
    no_room_for("a", 2);
    now += 4900;
    step((job_event){.type = JOB_PS_CLOSED, .job = "a"});
    now += 200;
    step((job_event){.type = JOB_TICK});
    get(JOB_ATTACH);
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->epoch, -1);
    jobs_close(m);
}

TEST(a_job_needs_a_function)
{
    open_machine(8);
    submit("a", 4, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 0});
    no_room_for("a", 0);
    now += 5000;
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TELL_PARALLELISM));
    check_reason("a", "Unschedulable", "no node takes the pod");
    jobs_close(m);
}

TEST(a_static_job_waits_for_room_and_says_so)
{
    open_machine(8);
    begins("a", false);
    no_room_for("a", 2);
    now += 5000;
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TELL_PARALLELISM));
    check_reason("a", "Unschedulable", "no node takes the pod");
    jobs_close(m);
}

/* A pod that does not come is tried again; then an elastic job begins without. */
TEST(an_elastic_job_begins_without_what_always_fails)
{
    open_machine(8);
    begins("a", true);
    for (int i = 1; i < 8; i++) {
        step((job_event){.type = JOB_POD_FAILED,
                         .job = "a",
                         .function = 1,
                         .code = ERR_CRASHED,
                         .message = "it ended"});
        CHECK(!find(JOB_TELL_PARALLELISM));
        now += 5000;
        step((job_event){.type = JOB_TICK});
        CHECK_INT(get(JOB_TAKE)->function, 1);
    }
    step((job_event){.type = JOB_POD_FAILED,
                     .job = "a",
                     .function = 1,
                     .code = ERR_CRASHED,
                     .message = "it ended"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 1);
    CHECK(!jobs_find(m, "a")->verdict);
    jobs_close(m);
}

TEST(a_job_that_shrinks_may_grow_to_what_it_had)
{
    open_machine(8);
    grows("a");
    step((job_event){.type = JOB_POD_WAITING, .job = "a", .function = 2, .reason = "QuotaExceeded",
                     .message = "pods: 9"});
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 2, .code = ERR_CANCELLED});
    trains_in("a", 1, 2, 8);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 1);
    job_reason why;
    jobs_explain(m, jobs_find(m, "a"), now, &why);
    CHECK(!strstr(why.message, "no more"));
    trains_in("a", 2, 1, 8);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    trains_in("a", 3, 2, 8);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2); /* and no further */
    check_reason("a", "Training", "2 functions; there is no more of them: pods: 9");
    jobs_close(m);
}

TEST(a_job_outlives_that_it_cannot_grow)
{
    open_machine(8);
    grows("a");
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 2, .code = ERR_FORBIDDEN,
                     .message = "not allowed"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    trains("a", 1, 2);
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING);
    check_reason("a", "Training", "there is no more of them: not allowed");

    /* One that is lost is needed: that is waited for. */
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training", .epoch = 2});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0", .reason = "Killed",
                     .message = "SIGKILL"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    step((job_event){.type = JOB_POD_WAITING, .job = "a", .function = 1, .incarnation = 1,
                     .reason = "Unschedulable", .message = "no node takes the pod"});
    CHECK(!find(JOB_TELL_PARALLELISM));
    check_reason("a", "Unschedulable", "no node takes the pod");
    jobs_close(m);
}

#define GIB ((uint64_t)1 << 30)

static void submit_shared(const char *id, int parallelism, gpu_share share)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 3,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = parallelism,
                 .static_parallelism = true,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .process = PROCESS_SHARED,
                 .gpu = share};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
    step((job_event){.type = JOB_TICK});
}

static void submit_on_gpu(const char *id, int parallelism, bool is_static, train_device device,
                          gpu_share share)
{
    request r = {.function_name = "f", .dataset = "d", .epochs = 3, .batch_size = 8, .lr = 0.1,
                 .default_parallelism = parallelism, .static_parallelism = is_static, .k = -1,
                 .validate_every = 1, .goal_accuracy = 100, .device = device, .gpu = share};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(m, id, &r, false, 1, &e), e);
    step((job_event){.type = JOB_TICK});
}

static void open_with_gpus(gpu_policy policy, bool threads, uint64_t first, uint64_t second)
{
    const uint64_t bytes[] = {first, second};
    open_machine(8);
    jobs_gpus(m, policy, threads, bytes, second ? 2 : first ? 1 : 0);
}

static void check_places(const char *id, const char *want)
{
    char got[64] = "";
    const job *j = jobs_find(m, id);
    for (int f = 0; f < j->gpu_functions; f++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d", job_gpu(j, f));
    CHECK_STR(got, want);
}

TEST(functions_are_placed_on_gpus_by_policy)
{
    static const struct {
        gpu_policy policy;
        const char *places;
    } cases[] = {{GPU_BEST_FIT, "1100"}, {GPU_SPREAD, "0101"}, {GPU_PACK, "1100"}};
    for (size_t i = 0; i < 3; i++) {
        open_with_gpus(cases[i].policy, false, 16 * GIB, 8 * GIB);
        /* threads do not count here */
        submit_on_gpu("a", 4, true, DEVICE_AUTO, (gpu_share){3 * GIB, 50});
        check_places("a", cases[i].places);
        submit_on_gpu("c", 2, true, DEVICE_CPU, (gpu_share){0});
        CHECK_INT(jobs_find(m, "c")->state, JOB_STARTING);
        check_places("c", "");
        jobs_close(m);
    }
}

TEST(ranks_of_nccls_are_placed_apart_as_long_as_there_are_gpus)
{
    static const struct {
        int functions;
        uint64_t memory_bytes; /* of each */
        const char *places;
    } cases[] = {{2, 3 * GIB, "10"}, {4, 3 * GIB, "1010"}, {3, 6 * GIB, "100"}};
    for (size_t i = 0; i < 3; i++) {
        err e = ERR_INIT;
        request r = {.function_name = "f", .dataset = "d", .epochs = 3, .batch_size = 8, .lr = 0.1,
                     .default_parallelism = cases[i].functions, .static_parallelism = true, .k = -1,
                     .validate_every = 1, .goal_accuracy = 100, .device = DEVICE_CUDA,
                     .gpu = {cases[i].memory_bytes, 0}, .merge = MERGE_NCCL};
        open_with_gpus(GPU_BEST_FIT, false, 16 * GIB, 8 * GIB);
        CHECK_OK(jobs_submit(m, "a", &r, false, 1, &e), e);
        step((job_event){.type = JOB_TICK});
        check_places("a", cases[i].places);
        jobs_close(m);
    }
}

TEST(a_job_that_finds_no_gpu_memory_waits_until_another_has_ended)
{
    gpu_state gpus[GPU_COUNT_MAX];
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 0);
    submit_on_gpu("a", 2, true, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    function_joins("a", 1, 0);
    submit_on_gpu("b", 1, true, DEVICE_CUDA, (gpu_share){4 * GIB, 0});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    check_reason("b", "NoGpuMemory", "needs 4.0 GiB of GPU memory");
    check_reason("b", "NoGpuMemory", "2.0 of 8.0 GiB");
    check_reason("b", "NoGpuMemory", "a (2)");
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED); /* its functions still hold what they hold */
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    check_places("b", "0");
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0"});
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[0].taken_bytes, 4 * GIB);
    CHECK_INT(gpus[0].functions, 1);
    jobs_close(m);
}

TEST(a_shared_process_holds_the_slots_of_all_its_functions_until_it_has_ended)
{
    open_machine(4);
    submit_shared("a", 3, (gpu_share){0});
    CHECK_INT(jobs_slots_free(m), 1);
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    submit("b", 2, 0, true);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3});
    CHECK_INT(number_of(JOB_STOP), 2); /* one function's pod, and kubeml-ps */
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    CHECK_INT(jobs_slots_free(m), 1);
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    jobs_close(m);
}

TEST(the_functions_of_a_shared_process_have_one_gpu)
{
    gpu_state gpus[GPU_COUNT_MAX];
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 12 * GIB);
    submit_on_gpu("one", 1, true, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    check_places("one", "0");
    /* 9 GiB: two of them would fit on GPU 0 better */
    submit_shared("a", 3, (gpu_share){3 * GIB, 0});
    check_places("a", "111");
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    submit_shared("b", 2, (gpu_share){3 * GIB, 0}); /* 5 and 3 GiB are free */
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    check_reason("b", "NoGpuMemory",
                 "its 2 functions share a process and need 6.0 GiB of GPU memory on one GPU");
    /* it was replaced */
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 0, .incarnation = 1});
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[1].taken_bytes, 9 * GIB);
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED, .value = 3});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0"});
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[1].taken_bytes, 9 * GIB); /* what it holds it still holds */
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 0, .incarnation = 1,
                     .code = ERR_UNAVAILABLE});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    check_places("b", "11");
    jobs_close(m);
}

TEST(why_there_is_no_gpu_for_a_job)
{
    open_with_gpus(GPU_BEST_FIT, true, 8 * GIB, 0);
    submit_on_gpu("large", 1, false, DEVICE_AUTO, (gpu_share){9 * GIB, 0});
    check_reason("large", "NoGpuMemory",
                 "needs 9.0 GiB of GPU memory, and the largest GPU has 8.0 GiB");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, true, 8 * GIB, 0);
    submit_on_gpu("threads", 3, true, DEVICE_AUTO, (gpu_share){GIB, 40});
    check_reason("threads", "NoGpuThreads", "40 % of a GPU's threads, and 2 find a place");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, true, 0, 0);
    submit_on_gpu("none", 1, true, DEVICE_CUDA, (gpu_share){0});
    check_reason("none", "NoGpu", "knows none");
    jobs_close(m);
    open_with_gpus(GPU_BEST_FIT, true, 0, 0);
    jobs_gpus_elsewhere(m, GPU_BEST_FIT); /* the pod has one, or is not scheduled */
    submit_on_gpu("pod", 1, true, DEVICE_CUDA, (gpu_share){0});
    CHECK_INT(jobs_find(m, "pod")->state, JOB_STARTING);
    jobs_close(m);
}

TEST(an_elastic_job_has_as_many_functions_as_its_gpus_hold)
{
    open_with_gpus(GPU_BEST_FIT, false, 8 * GIB, 8 * GIB);
    submit_on_gpu("a", 6, false, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
    CHECK_INT(jobs_find(m, "a")->parallelism, 4);
    check_places("a", "0011");
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_EPOCH, .job = "a", .epoch = 0, .value = 4, .seconds = 4});
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 0, .value = 4, .seconds = 4});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 4); /* there is a slot, and no memory */
    step((job_event){.type = JOB_PS_EPOCH, .job = "a", .epoch = 1, .value = 4, .seconds = 9});
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 1, .value = 4, .seconds = 9});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    step((job_event){.type = JOB_TICK});
    check_places("a", "001");
    jobs_close(m);
}

TEST(a_replacement_takes_the_place_of_the_lost_one)
{
    err e = ERR_INIT;
    open_with_gpus(GPU_SPREAD, false, 8 * GIB, 8 * GIB);
    submit_on_gpu("a", 2, true, DEVICE_AUTO, (gpu_share){8 * GIB, 0});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    function_joins("a", 1, 0);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    check_places("a", "01");
    /* The controller comes back, and with one GPU only: whom it had lost its place waits. */
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    const uint64_t one = 8 * GIB;
    job_limits l;
    job_limits_default(&l);
    CHECK_OK(jobs_open(&l, 8, &m, &e), e);
    jobs_gpus(m, GPU_SPREAD, false, &one, 1);
    CHECK_OK(jobs_restore(m, record, &e), e);
    json_decref(record);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){.type = JOB_ADOPT});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 2});
    CHECK(!find(JOB_TAKE));
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 0, .incarnation = 1});
    CHECK_INT(get(JOB_TAKE)->function, 0);
    jobs_close(m);
}

/* It began without function 1, and those after it are there: one more is one more slot. */
TEST(a_function_that_is_granted_is_counted_beside_those_that_are_there_without)
{
    open_machine(4);
    submit("a", 4, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    function_joins("a", 2, 0);
    function_joins("a", 3, 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1});
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 1,
                     .reason = "Unschedulable",
                     .message = "no room"});
    now += 5000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 1);
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 1});
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 1, .code = ERR_CANCELLED});
    submit("b", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    CHECK_INT(jobs_slots_free(m), 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    CHECK(!find(JOB_TAKE));
    CHECK_INT(jobs_slots_free(m), 0);
    CHECK_INT(jobs_find(m, "a")->parallelism, 1);
    jobs_close(m);
}

/* ---- GPUs of pods ---------------------------------------------------------------------------- */

static void open_elsewhere(gpu_policy policy)
{
    open_machine(8);
    jobs_gpus_elsewhere(m, policy);
}

/* Its pod comes, on that GPU. */
static void pod_comes(const char *id, int f, int incarnation, int gpu)
{
    char pod[JOB_POD_BYTES];
    snprintf(pod, sizeof pod, "%s-f-%d-%d", id, f, incarnation);
    CHECK(jobs_gpu_fits(m, id, f, gpu));
    jobs_gpu_book(m, id, f, incarnation, gpu);
    step((job_event){
        .type = JOB_POD_READY, .job = id, .function = f, .incarnation = incarnation, .pod = pod});
    step(
        (job_event){.type = JOB_SPECIALISED, .job = id, .function = f, .incarnation = incarnation});
}

static void function_needs(const char *id, int f, int incarnation)
{
    step((job_event){.type = JOB_PS_NEED, .job = id, .function = f, .incarnation = incarnation});
    CHECK_INT(get(JOB_TAKE)->function, f);
}

static void check_taken(int gpu, uint64_t bytes)
{
    gpu_state gpus[GPU_COUNT_MAX];
    jobs_gpu_states(m, gpus);
    CHECK_INT(gpus[gpu].taken_bytes, bytes);
}

TEST(a_function_gets_a_pod_by_policy_among_those_with_room)
{
    static const struct {
        gpu_policy policy;
        int gpu;
    } cases[] = {{GPU_BEST_FIT, 1}, {GPU_SPREAD, 2}, {GPU_PACK, 0}};
    for (size_t i = 0; i < 3; i++) {
        bool offered[GPU_COUNT_MAX] = {[0] = true, [1] = true, [2] = true};
        open_elsewhere(cases[i].policy);
        CHECK_INT(jobs_gpu_add(m, -1, 16 * GIB, false), 0);
        submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){3 * GIB, 0});
        CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 1);
        CHECK_INT(jobs_gpu_add(m, -1, 24 * GIB, false), 2);
        submit_on_gpu("b", 1, true, DEVICE_CUDA, (gpu_share){4 * GIB, 0});
        ps_starts("b", 0);
        function_needs("b", 0, 0);
        CHECK_INT(jobs_gpu_choose(m, "b", 0, offered), cases[i].gpu);
        offered[cases[i].gpu] = false; /* no pod is there: another will do */
        CHECK(jobs_gpu_choose(m, "b", 0, offered) >= 0);
        CHECK(jobs_gpu_choose(m, "b", 0, offered) != cases[i].gpu);
        submit_on_gpu("c", 1, true, DEVICE_CPU, (gpu_share){40 * GIB, 0});
        CHECK(!jobs_gpu_places(m, "c"));
        CHECK(jobs_gpu_fits(m, "c", 0, 1));
        jobs_close(m);
    }
}

TEST(a_job_waits_while_the_known_gpus_have_no_room)
{
    int pods = 0;
    open_elsewhere(GPU_BEST_FIT);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    CHECK(!jobs_gpu_waiting(m, &pods));
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 0);
    submit_on_gpu("b", 2, true, DEVICE_AUTO, (gpu_share){4 * GIB, 0});
    check_reason("b", "NoGpuMemory", "and 0 find a place; free is 3.0 of 8.0 GiB on GPU 0");
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "b"));
    CHECK_INT(pods, 2);
    CHECK_INT(jobs_gpu_add(m, -1, 6 * GIB, false), 1);
    step((job_event){.type = JOB_TICK});
    check_reason("b", "NoGpuMemory", "1 find a place; free is 3.0 of 8.0 GiB on GPU 0, 6.0 of 6.0");
    CHECK_INT(jobs_gpu_add(m, -1, 5 * GIB, false), 2);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    CHECK(!jobs_gpu_waiting(m, &pods));
    jobs_close(m);
}

TEST(a_job_of_unlimited_functions_waits_for_larger_gpus)
{
    int pods = 0;
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 4, false, DEVICE_CUDA, (gpu_share){9 * GIB, 0});
    check_reason("a", "NoGpuMemory", "needs 9.0 GiB of GPU memory, and the largest GPU has 8.0");
    CHECK(jobs_gpu_waiting(m, &pods));
    CHECK_INT(pods, 1); /* an elastic one begins with one */
    jobs_gpu_add(m, -1, 10 * GIB, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->parallelism, 4); /* there may be more of them */
    jobs_close(m);
}

/* Neither knew of a GPU as it began. */
TEST(a_job_whose_pod_came_where_no_room_is_goes_back_into_the_queue)
{
    open_elsewhere(GPU_BEST_FIT);
    for (int i = 0; i < 2; i++) {
        submit_on_gpu(i ? "b" : "a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
        ps_starts(i ? "b" : "a", 0);
        function_needs(i ? "b" : "a", 0, 0);
    }
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    pod_comes("a", 0, 0, 0);
    CHECK(!jobs_gpu_fits(m, "b", 0, 0));
    step((job_event){.type = JOB_POD_UNPLACED, .job = "b", .message = "no room"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    CHECK_STR(get(JOB_STOP)->pod, "b-ps-0");
    get(JOB_SAVE);
    check_reason("b", "NoGpuMemory", "2.0 of 8.0 GiB");
    check_taken(0, 6 * GIB);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 1);
    step((job_event){.type = JOB_POD_ENDED, .pod = "b-ps-0"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    ps_starts("b", 1);
    CHECK(actions[0].job || count == 0);
    jobs_close(m);
}

TEST(a_function_whose_pod_came_where_no_room_is_asks_for_another)
{
    int64_t waits[] = {5000, 10000, 20000, 40000, 80000, 80000};
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 0);
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0}); /* booked on GPU 1 */
    ps_starts("b", 0);
    function_needs("b", 0, 0);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        CHECK(!jobs_gpu_fits(m, "b", 0, 0));
        step((job_event){.type = JOB_POD_UNPLACED, .job = "b", .message = "it came on GPU x"});
        CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
        check_reason("b", "NoGpuMemory", "it came on GPU x");
        CHECK_INT(jobs_deadline(m), now + waits[i]);
        now += waits[i];
        step((job_event){.type = JOB_TICK});
        get(JOB_TAKE);
    }
    pod_comes("b", 0, 0, 1);
    check_reason("b", "Starting", "load their code");
    jobs_close(m);
}

TEST(an_elastic_job_goes_on_without_a_function_whose_pod_came_where_no_room_is)
{
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 2, false, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    CHECK_INT(jobs_find(m, "a")->parallelism, 2);
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 0);
    function_needs("a", 1, 0);
    CHECK(!jobs_gpu_fits(m, "a", 1, 0));
    step((job_event){.type = JOB_POD_UNPLACED, .job = "a", .function = 1, .message = "no room"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 1);
    jobs_close(m);
}

TEST(an_additional_function_leaves_room_for_those_before_it)
{
    open_elsewhere(GPU_BEST_FIT);
    submit_on_gpu("a", 2, false, DEVICE_AUTO, (gpu_share){5 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    function_needs("a", 1, 0);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    CHECK(!jobs_gpu_fits(m, "a", 1, 0));
    pod_comes("a", 0, 0, 0);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    CHECK(jobs_gpu_fits(m, "a", 1, 1));
    jobs_close(m);
}

TEST(a_pod_is_booked_until_it_has_ended_also_where_the_next_one_is_elsewhere)
{
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 0);
    function_needs("a", 0, 1); /* its pod is silent */
    pod_comes("a", 0, 1, 1);
    check_places("a", "1");
    check_taken(0, 6 * GIB);
    check_taken(1, 6 * GIB);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    check_taken(0, 0);
    check_taken(1, 6 * GIB);
    jobs_close(m);
}

TEST(the_functions_of_a_shared_process_are_where_its_pod_is)
{
    bool offered[GPU_COUNT_MAX] = {[0] = true};
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 12 * GIB, false);
    submit_shared("a", 3, (gpu_share){3 * GIB, 0});
    check_places("a", "111");
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    CHECK_INT(jobs_gpu_choose(m, "a", 0, offered), -1); /* 9 of 8 GiB */
    CHECK_INT(jobs_gpu_add(m, -1, 9 * GIB, false), 2);
    pod_comes("a", 0, 0, 2);
    check_places("a", "222");
    check_taken(1, 0);
    jobs_close(m);
}

TEST(ranks_of_nccls_wait_for_pods_on_gpus_of_their_own)
{
    bool offered[GPU_COUNT_MAX] = {[0] = true};
    err e = ERR_INIT;
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = 3,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = 2,
                 .static_parallelism = true,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .merge = MERGE_NCCL,
                 .gpu = {.memory_bytes = GIB}};
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    jobs_gpu_add(m, -1, 8 * GIB, false);
    CHECK_OK(jobs_submit(m, "a", &r, false, 1, &e), e);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    CHECK_INT(jobs_gpu_choose(m, "a", 0, offered), 0);
    pod_comes("a", 0, 0, 0);
    function_needs("a", 1, 0);
    CHECK_INT(jobs_gpu_choose(m, "a", 1, offered), -1); /* a new pod may come on GPU 1 */
    CHECK(jobs_gpu_fits(m, "a", 1, 0));                 /* and has to do where it comes */
    offered[1] = true;
    CHECK_INT(jobs_gpu_choose(m, "a", 1, offered), 1);
    jobs_close(m);
}

TEST(a_gpu_is_forgotten_and_its_place_given_away_when_nothing_is_there)
{
    open_elsewhere(GPU_BEST_FIT);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 0);
    jobs_gpu_gone(m, 0);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false),
              1); /* the machine has not heard that the pod ended */
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0", .reason = "NodeLost"});
    function_needs("a", 0, 1);
    pod_comes("a", 0, 1, 1);
    CHECK_INT(jobs_gpu_add(m, -1, 4 * GIB, false), 0);
    check_taken(0, 0);
    check_taken(1, 6 * GIB);
    for (int i = 2; i < GPU_COUNT_MAX; i++)
        CHECK_INT(jobs_gpu_add(m, -1, GIB, false), i);
    CHECK_INT(jobs_gpu_add(m, -1, GIB, false), -1);
    jobs_close(m);
}

/* Nor is it given to others meanwhile, where it is to come back. */
TEST(a_place_on_a_gpu_that_no_pod_has_is_kept_until_there_is_another)
{
    int pods;
    open_elsewhere(GPU_BEST_FIT);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 0);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-0"});
    jobs_gpu_gone(m, 0);
    CHECK_INT(jobs_gpu_add(m, -1, 4 * GIB, false), 1);
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    check_reason("b", "NoGpuMemory", "the largest GPU has 4.0 GiB");
    CHECK_INT(jobs_gpu_add(m, 0, 8 * GIB, false), 0);
    check_taken(0, 6 * GIB);
    CHECK(jobs_gpu_waiting(m, &pods) == jobs_find(m, "b"));
    function_needs("a", 0, 1);
    pod_comes("a", 0, 1, 0);
    jobs_close(m);
}

TEST(threads_count_on_the_gpus_whose_pods_say_that_mps_runs)
{
    open_elsewhere(GPU_BEST_FIT);
    jobs_gpu_add(m, -1, 8 * GIB, true);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){GIB, 60});
    submit_on_gpu("b", 1, true, DEVICE_AUTO, (gpu_share){GIB, 60});
    check_reason("b", "NoGpuThreads", "needs 60 % of a GPU's threads, and 0 find a place");
    jobs_gpu_add(m, -1, 8 * GIB, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    submit_on_gpu("c", 1, true, DEVICE_AUTO, (gpu_share){GIB, 60});
    check_places("c", "1");
    jobs_close(m);
}

TEST(a_controller_that_comes_back_hears_where_pods_are)
{
    err e = ERR_INIT;
    open_elsewhere(GPU_BEST_FIT);
    for (int i = 0; i < 3; i++)
        CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), i);
    submit_on_gpu("a", 1, true, DEVICE_AUTO, (gpu_share){6 * GIB, 0});
    ps_starts("a", 0);
    function_needs("a", 0, 0);
    pod_comes("a", 0, 0, 2);
    function_needs("a", 0, 1);
    pod_comes("a", 0, 1, 1);
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    open_elsewhere(GPU_BEST_FIT);
    CHECK_OK(jobs_restore(m, record, &e), e);
    json_decref(record);
    CHECK_INT(job_gpu(jobs_find(m, "a"), 0), -1); /* it is another table */
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 0);
    CHECK_INT(jobs_gpu_add(m, -1, 8 * GIB, false), 1);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){
        .type = JOB_POD_FOUND, .job = "a", .incarnation = 1, .pod = "a-f-0-1", .value = 1});
    step((job_event){.type = JOB_POD_FOUND, .job = "a", .pod = "a-f-0-0", .value = 2});
    step((job_event){.type = JOB_ADOPT});
    check_places("a", "0"); /* the younger one's */
    check_taken(0, 6 * GIB);
    check_taken(1, 6 * GIB);
    jobs_close(m);
}

TEST(the_policy)
{
    static const struct {
        int parallelism;
        double seconds, last;
        int ceiling, want;
    } cases[] = {
        {4, 10, 0, 8, 5},    {4, 10.5, 10, 8, 5}, {4, 10.6, 10, 8, 4}, {4, 11.9, 10, 8, 4},
        {4, 12, 10, 8, 3},   {1, 99, 10, 8, 1},   {4, 5, 10, 4, 4},    {4, 5, 10, 2, 2},
        {4, 99, 10, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_INT(policy_elastic(cases[i].parallelism, cases[i].seconds, cases[i].last,
                                 cases[i].ceiling),
                  cases[i].want);
}

TEST(a_restarted_controller_adopts)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 2);
    submit("q", 4, 7, true);
    step((job_event){.type = JOB_PS_CONDITION, .job = "a", .name = "Straggler", .status = true,
                     .reason = "Straggler", .message = "function 1"});
    json_t *a = job_record(jobs_find(m, "a")), *q = job_record(jobs_find(m, "q"));
    jobs_close(m);
    open_machine(4);
    CHECK_OK(jobs_restore(m, a, &e), e);
    CHECK_OK(jobs_restore(m, q, &e), e);
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TAKE)); /* nothing before JOB_ADOPT */
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){.type = JOB_POD_FOUND, .job = "a", .function = 0, .pod = "a-f-0-0"});
    step((job_event){.type = JOB_POD_FOUND, .job = "who", .function = 0, .pod = "nobodys"});
    CHECK_STR(get(JOB_STOP)->pod, "nobodys");
    CHECK(!get(JOB_STOP)->job);
    step((job_event){.type = JOB_ADOPT});
    CHECK_STR(get(JOB_ATTACH)->pod, "a-ps-0");
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING);
    CHECK_INT(jobs_find(m, "q")->state, JOB_QUEUED);
    check_reason("a", "Straggler", "function 1");
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    step((job_event){.type = JOB_PS_ACCESS, .job = "a"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    get(JOB_TAKE);

    json_object_set_new(a, "state", json_string("asleep"));
    CHECK_ERR(jobs_restore(m, a, &e), e, ERR_INVALID, "state");
    CHECK_ERR(jobs_restore(m, q, &e), e, ERR_EXISTS, "q");
    json_decref(a);
    json_decref(q);
    jobs_close(m);
}

/* When the kubeml-ps that was adopted is given up: each try to reach it ends with `code`, but for
 * the one `answered` (counted from 0), after which the node does not answer any more. */
static int64_t given_up_after_ms(err_code code, int answered)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 1);
    json_t *a = job_record(jobs_find(m, "a"));
    jobs_close(m);
    job_limits l;
    job_limits_default(&l);
    l.attach_ms = 1500;
    l.adopt_ms = 700;
    CHECK_OK(jobs_open(&l, 4, &m, &e), e);
    CHECK_OK(jobs_restore(m, a, &e), e);
    json_decref(a);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    int64_t began = now;
    step((job_event){.type = JOB_ADOPT});
    for (int i = 0; i < 100 && !find(JOB_STOP); i++) {
        if (find(JOB_ATTACH))
            step((job_event){
                .type = JOB_PS_CLOSED, .job = "a", .code = i == answered ? ERR_UNAVAILABLE : code});
        now = jobs_deadline(m);
        step((job_event){.type = JOB_TICK});
    }
    CHECK_STR(get(JOB_STOP)->pod, "a-ps-0");
    jobs_close(m);
    return now - began;
}

TEST(a_node_that_never_answered_since_the_adoption_is_given_up_sooner)
{
    CHECK_INT(given_up_after_ms(ERR_TIMEOUT, -1), 701);
    CHECK_INT(given_up_after_ms(ERR_UNAVAILABLE, -1), 1501);
    CHECK_INT(given_up_after_ms(ERR_TIMEOUT, 0), 1501); /* it lives: as any other */
}

TEST(a_job_whose_kubeml_ps_is_gone_at_adoption_gets_another)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 1);
    json_t *a = job_record(jobs_find(m, "a"));
    jobs_close(m);
    open_machine(4);
    CHECK_OK(jobs_restore(m, a, &e), e);
    step((job_event){.type = JOB_POD_FOUND, .job = "a", .function = 0, .pod = "a-f-0-0"});
    step((job_event){.type = JOB_ADOPT});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    CHECK_STR(get(JOB_STOP)->pod, "a-f-0-0");
    json_decref(a);
    jobs_close(m);
}
