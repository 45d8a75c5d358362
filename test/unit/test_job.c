/* test_job.c: the jobs machine, step by step; the simulator has the schedules. */
#include "common/base/json_read.h"
#include "common/base/text.h"
#include "controller/job/policy.h"
#include "job_fixture.h"

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

TEST(all_that_fit_start_at_once)
{
    open_machine(5);
    for (int i = 0; i < 4; i++)
        submit((const char *[]){"a", "b", "c", "d"}[i], 2, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(number_of(JOB_TAKE), 2);
    CHECK_INT(jobs_find(m, "a")->state, JOB_STARTING);
    CHECK_INT(jobs_find(m, "b")->state, JOB_STARTING);
    step((job_event){.type = JOB_SLOTS, .value = 8});
    CHECK_INT(number_of(JOB_TAKE), 2);
    CHECK_INT(jobs_find(m, "d")->state, JOB_STARTING);
    CHECK_INT(jobs_slots_free(m), 0);
    jobs_close(m);
}

TEST(a_function_that_was_not_ready_in_time_is_told_with_that)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a"});
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .reason = "PoolEmpty",
                     .message = "one is being started"});
    step((job_event){.type = JOB_POD_READY, .job = "a", .pod = "a-f-0-0"});
    get(JOB_SPECIALISE);
    now += 60001;
    step((job_event){.type = JOB_TICK});
    CHECK_STR(get(JOB_STOP)->pod, "a-f-0-0");
    step((job_event){.type = JOB_POD_ENDED,
                     .pod = "a-f-0-0",
                     .reason = "Killed",
                     .message = "ended by signal 15"});
    CHECK_STR(get(JOB_TELL_LOST)->message,
              "its code was not loaded and its model made within 60 s: ended by signal 15");
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

/* Its process stands still: asked to end it would not, and the one that waits for its merge to be
 * suspended waits no longer. */
TEST(a_kubeml_ps_that_says_nothing_is_killed_and_started_again)
{
    const job_event silent = {
        .type = JOB_PS_SILENT, .job = "a", .message = "it said nothing for 120 s"};
    open_machine(2);
    run_job("a", 1);
    for (int generation = 0; generation < 2; generation++) {
        char pod[JOB_POD_BYTES];
        snprintf(pod, sizeof pod, "a-ps-%d", generation);
        if (generation == 1)
            step((job_event){.type = JOB_SUSPEND, .job = "a"});
        step(silent);
        CHECK_STR(get(JOB_STOP)->pod, pod);
        CHECK_INT(get(JOB_STOP)->value, 0);
        step(silent);
        CHECK(!find(JOB_STOP));
        step((job_event){
            .type = JOB_POD_ENDED, .pod = pod, .reason = "Crashed", .message = "signal 9"});
        if (generation == 1)
            break;
        CHECK_INT(get(JOB_TAKE)->incarnation, 1);
        CHECK(get(JOB_TAKE)->job->resumed);
        check_reason("a", "PSRestarted", "(Crashed: it said nothing for 120 s: signal 9)");
        ps_starts("a", 1);
    }
    CHECK_INT(jobs_find(m, "a")->state, JOB_SUSPENDED);
    jobs_close(m);
}

TEST(a_kubeml_ps_that_does_not_answer_is_started_again_with_that_reason)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p1"});
    now += 60000;
    step((job_event){.type = JOB_TICK});
    CHECK_STR(get(JOB_STOP)->pod, "p1");
    step((job_event){
        .type = JOB_POD_ENDED, .pod = "p1", .reason = "Crashed", .message = "signal 9"});
    check_reason("a", "PSRestarted", "(Crashed: it did not answer within 60 s: signal 9)");
    jobs_close(m);
}

TEST(a_kubeml_ps_that_cannot_take_the_job_now_is_started_again)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p"});
    step((job_event){.type = JOB_PS_REFUSED,
                     .job = "a",
                     .code = ERR_UNAVAILABLE,
                     .message = "the store does not answer"});
    CHECK_STR(get(JOB_STOP)->pod, "p");
    CHECK(!jobs_find(m, "a")->verdict);
    step((job_event){.type = JOB_POD_ENDED, .pod = "p"});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    CHECK(is_raised("a", "PSRestarted"));
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

/* Nor is it put off, by whatever else is wanted or goes wrong meanwhile. */
TEST(what_was_decided_first_stands)
{
    open_machine(2);
    run_job("a", 1);
    step((job_event){.type = JOB_CANCEL, .job = "a", .message = "by hand"});
    const int64_t due = jobs_deadline(m);
    for (int i = 0; i < 3; i++) {
        now += 1000;
        step((job_event){.type = (job_event_type[]){JOB_CANCEL, JOB_SUSPEND, JOB_UNSPECIALISED}[i],
                         .job = "a",
                         .code = ERR_INVALID,
                         .reason = "LoadFailed",
                         .message = "once more"});
        CHECK(!find(JOB_TELL_STOP));
        check_reason("a", "Cancelled", "by hand");
        CHECK_INT(jobs_deadline(m), due);
    }
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUSPENDED});
    CHECK_INT(jobs_find(m, "a")->state, JOB_CANCELLED);
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

TEST(what_is_to_be_suspended_gets_the_functions_that_its_merge_waits_for)
{
    open_machine(2);
    run_job("a", 2);
    step((job_event){.type = JOB_SUSPEND, .job = "a"});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-1-0", .reason = "Killed"});
    get(JOB_TELL_LOST);
    function_joins("a", 1, 1);
    step((job_event){.type = JOB_CANCEL, .job = "a"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 2});
    CHECK(!find(JOB_TAKE)); /* nothing is waited for */
    jobs_close(m);
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

TEST(what_time_ends_leaves_its_place_to_the_next_at_once)
{
    open_machine(1);
    submit_bound("a", 60, 0);
    step((job_event){.type = JOB_TICK});
    submit("b", 1, 0, true);
    step((job_event){.type = JOB_POD_FAILED,
                     .job = "a",
                     .function = JOB_KUBEML_PS,
                     .code = ERR_UNAVAILABLE,
                     .message = "no"});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    now += 59900;
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_FAILED,
                     .job = "a",
                     .function = JOB_KUBEML_PS,
                     .code = ERR_UNAVAILABLE,
                     .message = "no"});
    now += 100; /* no pod is there or on its way whose end would be told */
    step((job_event){.type = JOB_TICK});
    CHECK_STR(jobs_find(m, "a")->reason, "DeadlineExceeded");
    CHECK_STR(get(JOB_DONE)->job->id, "a");
    CHECK_STR(get(JOB_TAKE)->job->id, "b");
    jobs_close(m);
}

TEST(what_time_ends_in_the_queue_leaves_its_turn_to_the_next_at_once)
{
    open_machine(2);
    submit_bound_of("a", 2, 60, 1);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "a", .function = JOB_KUBEML_PS, .pod = "p"});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    step(
        (job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_FAILED, .reason = "NaNLoss"});
    step((job_event){.type = JOB_POD_ENDED, .pod = "p"});
    CHECK_INT(jobs_find(m, "a")->state, JOB_QUEUED);
    run_job("c", 1);
    now += 10000; /* from here on all wait for the one that is tried again */
    submit("b", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    now = jobs_deadline(m);
    step((job_event){.type = JOB_TICK});
    CHECK_STR(jobs_find(m, "a")->reason, "DeadlineExceeded");
    CHECK_STR(get(JOB_DONE)->job->id, "a");
    CHECK_STR(get(JOB_TAKE)->job->id, "b");
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
        CHECK_STR(jobs_find(m, "a")->message, "");
        check_reason("a", "Starting", retry == 1 ? "; retry 1 of 2" : "; retry 2 of 2");
    }
    CHECK_INT(jobs_find(m, "a")->state, JOB_FAILED);
    check_reason("a", "NaNLoss", "function 0; after 2 of 2 retries");
    jobs_close(m);
}

/* It would be tried again from its newest checkpoint: so it is when it is resumed. */
TEST(what_fails_on_the_way_to_its_suspension_is_not_tried_again)
{
    open_machine(1);
    submit_bound("a", 0, 2);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_SUSPEND, .job = "a"});
    step((job_event){.type = JOB_PS_FINISHED,
                     .job = "a",
                     .state = JOB_FAILED,
                     .reason = "NaNLoss",
                     .message = "function 0"});
    CHECK_INT(jobs_find(m, "a")->state, JOB_SUSPENDED);
    check_reason("a", "Suspended", "NaNLoss: function 0");
    jobs_close(m);
    /* Nor where it does not come to train. */
    open_machine(1);
    submit_bound("a", 0, 2);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a"});
    step((job_event){.type = JOB_POD_READY, .job = "a", .pod = "a-f-0-0"});
    step((job_event){.type = JOB_SUSPEND, .job = "a"});
    step((job_event){.type = JOB_UNSPECIALISED,
                     .job = "a",
                     .code = ERR_INVALID,
                     .reason = "LoadFailed",
                     .message = "no such symbol"});
    CHECK_INT(jobs_find(m, "a")->verdict_state, JOB_SUSPENDED);
    now = jobs_deadline(m);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->state, JOB_SUSPENDED);
    check_reason("a", "Suspended", "LoadFailed: function 0: no such symbol");
    jobs_close(m);
}

TEST(a_job_may_be_taken_back_until_a_step_has_seen_it)
{
    err e = ERR_INIT;
    open_machine(1);
    submit("a", 1, 0, true);
    CHECK_OK(jobs_forget(m, "a", &e), e);
    CHECK_INT(jobs_count(m), 0);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(count, 0);
    submit("b", 2, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "b")->state, JOB_QUEUED);
    CHECK_ERR(jobs_forget(m, "b", &e), e, ERR_CONFLICT, "job b has not ended");
    jobs_close(m);
}

static void condition_of(const char *id, const char *type)
{
    step((job_event){.type = JOB_PS_CONDITION,
                     .job = id,
                     .name = type,
                     .status = true,
                     .reason = type,
                     .message = "said by kubeml-ps"});
}

/* Whatever is still said of it. */
TEST(a_job_that_has_ended_does_not_change_and_is_forgotten_by_its_name)
{
    static const char *const ids[] = {"a", "b", "c"};
    err e = ERR_INIT;
    open_machine(1);
    for (int i = 0; i < 3; i++) {
        submit(ids[i], 1, 0, true);
        step((job_event){.type = JOB_CANCEL, .job = ids[i], .message = "not needed"});
    }
    run_job("d", 1);
    condition_of("d", "Straggler");
    step((job_event){.type = JOB_PS_FINISHED,
                     .job = "d",
                     .state = JOB_SUCCEEDED,
                     .reason = "Completed",
                     .message = "3 epochs are trained"});
    CHECK(!is_raised("d", "Straggler"));
    const job_event late[] = {
        {.type = JOB_CANCEL, .job = "d", .message = "too late"},
        {.type = JOB_SUSPEND, .job = "d", .message = "too late"},
        {.type = JOB_PS_FINISHED, .job = "d", .state = JOB_FAILED, .reason = "NaNLoss"},
        {.type = JOB_PS_PHASE, .job = "d", .phase = "training"},
        {.type = JOB_PS_EPOCH, .job = "d", .epoch = 7},
        {.type = JOB_PS_ASK, .job = "d", .epoch = 7, .value = 1},
    };
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        step(late[i]);
        CHECK_INT(count, 0);
        const job *d = jobs_find(m, "d");
        CHECK_INT(d->state, JOB_SUCCEEDED);
        CHECK(!d->verdict);
        CHECK_STR(d->reason, "Completed");
        CHECK_STR(d->message, "3 epochs are trained");
    }
    CHECK_ERR(jobs_forget(m, "d", &e), e, ERR_CONFLICT, "has not ended"); /* nor have its pods */
    CHECK_OK(jobs_forget(m, "b", &e), e);
    CHECK_ERR(jobs_forget(m, "b", &e), e, ERR_NOT_FOUND, "b");
    CHECK(jobs_find(m, "a") && !jobs_find(m, "b") && jobs_find(m, "c") && jobs_find(m, "d"));
    CHECK_INT(jobs_count(m), 3);
    jobs_close(m);
}

static void check_recorded(const char *id, const char *part)
{
    job_reason why;
    err e = ERR_INIT;
    cleanup_json json_t *record = job_record(jobs_find(m, id));
    CHECK(record);
    CHECK_CONTAINS(json_string_value(json_object_get(record, "message")), part);
    jobs_explain(m, jobs_find(m, id), now, &why);
    CHECK(text_valid(why.message, strlen(why.message)));
    CHECK_CONTAINS(why.message, part);
    jobs *other;
    job_limits l;
    job_limits_default(&l);
    CHECK_OK(jobs_open(&l, 1, &other, &e), e);
    CHECK_OK(jobs_restore(other, record, &e), e);
    jobs_close(other);
}

/* Words are put before a message and behind it: it is cut at each byte of a character. */
TEST(a_record_is_made_wherever_its_message_is_cut)
{
    for (int at = 0; at < 4; at++) {
        char text[600];
        snprintf(text, sizeof text, "%.*s", at, "xxx");
        for (int i = 0; i < 100; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "🐢");
        open_machine(1);
        submit_bound("a", 0, 1);
        step((job_event){.type = JOB_TICK});
        ps_starts("a", 0);
        step((job_event){
            .type = JOB_POD_ENDED, .pod = "a-ps-0", .reason = "Crashed", .message = text});
        check_recorded("a", "");
        ps_starts("a", 1);
        function_joins("a", 0, 0);
        step((job_event){.type = JOB_PS_CONDITION,
                         .job = "a",
                         .name = "FunctionLost",
                         .status = true,
                         .reason = "Killed",
                         .message = text});
        check_recorded("a", "");
        step((job_event){
            .type = JOB_POD_ENDED, .pod = "a-f-0-0", .reason = "Killed", .message = text});
        const job_action *lost = get(JOB_TELL_LOST);
        CHECK(text_valid(lost->message, strlen(lost->message)));
        step((job_event){.type = JOB_PS_FINISHED,
                         .job = "a",
                         .state = JOB_FAILED,
                         .reason = "StepFailed",
                         .message = text});
        CHECK_INT(jobs_find(m, "a")->state, JOB_QUEUED);
        check_recorded("a", "StepFailed: ");
        now = jobs_deadline(m);
        step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-1"});
        ps_starts("a", 2);
        step((job_event){.type = JOB_PS_FINISHED,
                         .job = "a",
                         .state = JOB_FAILED,
                         .reason = "StepFailed",
                         .message = text});
        check_recorded("a", "; after 1 of 1 retries");
        jobs_close(m);
    }
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
    CHECK_INT(get(JOB_UNTAKE)->value, 0);
    step((job_event){.type = JOB_CANCEL, .job = "a"});
    CHECK(!find(JOB_UNTAKE)); /* once */
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = JOB_KUBEML_PS,
                     .code = ERR_CANCELLED});
    CHECK_INT(get(JOB_DONE)->job->state, JOB_CANCELLED);
    jobs_close(m);
}

static void no_node_takes(const char *id, int function)
{
    step((job_event){.type = JOB_POD_WAITING,
                     .job = id,
                     .function = function,
                     .reason = "Unschedulable",
                     .message = "no node takes the pod: 2 Insufficient nvidia.com/gpu"});
}

/* Asks for another in the place of one that did not come in time. */
static void wait_in_vain(int function)
{
    now += 300000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_UNTAKE)->function, function);
    CHECK_INT(get(JOB_UNTAKE)->value, 1);
    CHECK(!find(JOB_TAKE));
    step((job_event){.type = JOB_POD_FAILED,
                     .job = "a",
                     .function = function,
                     .code = ERR_CANCELLED,
                     .message = "it is wanted no more"});
    CHECK_INT((int)count, 0);
}

TEST(a_pod_that_does_not_come_is_taken_back_before_another_is_asked_for)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a"});
    no_node_takes("a", 0);
    wait_in_vain(0);
    check_reason("a", "PodFailed", "not there after 300 s: no node takes the pod");
    now = jobs_deadline(m);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TAKE)->function, 0);
    CHECK(!find(JOB_UNTAKE));
    no_node_takes("a", 0);
    now += 300000;
    step((job_event){.type = JOB_PS_FINISHED,
                     .job = "a",
                     .state = JOB_FAILED,
                     .reason = "FunctionMissing",
                     .message = "function 0 (incarnation 0) did not join within 600 s"});
    CHECK_INT(get(JOB_UNTAKE)->function, 0);
    check_reason("a", "FunctionMissing",
                 "within 600 s: no node takes the pod: 2 Insufficient nvidia.com/gpu");
    jobs_close(m);
}

TEST(a_kubeml_ps_that_finds_no_room_leaves_no_pod_and_says_why)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    for (int i = 1; i < 8; i++) {
        no_node_takes("a", JOB_KUBEML_PS);
        wait_in_vain(JOB_KUBEML_PS);
        now = jobs_deadline(m);
        step((job_event){.type = JOB_TICK});
        CHECK_INT(get(JOB_TAKE)->function, JOB_KUBEML_PS);
    }
    no_node_takes("a", JOB_KUBEML_PS);
    now += 300000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_UNTAKE)->function, JOB_KUBEML_PS);
    get(JOB_DONE);
    check_reason("a", "PodFailed",
                 "after 8 tries: not there after 300 s: no node takes the pod: 2 "
                 "Insufficient nvidia.com/gpu");
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

    submit("c", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    step((job_event){.type = JOB_POD_READY, .job = "c", .function = JOB_KUBEML_PS, .pod = "q"});
    get(JOB_SEND);
    step((job_event){.type = JOB_PS_REFUSED,
                     .job = "c",
                     .code = ERR_FORBIDDEN,
                     .reason = "StoreAccess",
                     .message = "access to the store: not authorized"});
    check_reason("c", "StoreAccess", "not authorized");
    now = jobs_deadline(m);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "c")->state, JOB_FAILED);

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

TEST(a_function_that_does_without_its_gpu_is_told_of_for_good)
{
    open_machine(2);
    submit("a", 1, 0, true);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a"});
    step((job_event){.type = JOB_POD_READY, .job = "a", .pod = "a-f-0-0"});
    step((job_event){.type = JOB_SPECIALISED, .job = "a", .message = "no NVIDIA device"});
    const job_condition *c = &jobs_find(m, "a")->condition[0];
    CHECK_STR(c->type, "GpuUnused");
    CHECK_STR(c->message, "function 0: no NVIDIA device");
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training"});
    check_reason("a", "Training", "training"); /* which is what it does all the same */
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUCCEEDED});
    CHECK(is_raised("a", "GpuUnused"));
    jobs_close(m);
}

/* The next one says what is so then. */
TEST(what_a_kubeml_ps_said_goes_with_it)
{
    open_machine(2);
    submit_bound("a", 0, 1);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    function_joins("a", 0, 0);
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training"});
    condition_of("a", "FunctionLost");
    condition_of("a", "StoreUnavailable");
    condition_of("a", "Resumed");
    step((job_event){
        .type = JOB_POD_ENDED, .pod = "a-ps-0", .reason = "Killed", .message = "signal 9"});
    check_reason("a", "PSRestarted", "signal 9");
    CHECK(!is_raised("a", "FunctionLost") && !is_raised("a", "StoreUnavailable"));
    CHECK(is_raised("a", "Resumed"));
    ps_starts("a", 1);
    condition_of("a", "Straggler");
    step(
        (job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_FAILED, .reason = "NaNLoss"});
    CHECK_INT(jobs_find(m, "a")->state, JOB_QUEUED);
    CHECK(!is_raised("a", "Straggler"));
    CHECK(is_raised("a", "Retried"));
    jobs_close(m);
}
