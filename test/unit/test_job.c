/* test_job.c: the jobs machine, step by step; the simulator has the schedules. */
#include "job_fixture.h"
#include "json_read.h"
#include "policy.h"
#include "text.h"

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

static bool is_raised(const char *id, const char *type)
{
    const job *j = jobs_find(m, id);
    for (int i = 0; i < j->conditions; i++)
        if (strcmp(j->condition[i].type, type) == 0)
            return j->condition[i].status;
    return false;
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

/* "a" asked for two functions and has grown to the four that there are. */
static void grows_to_four(void)
{
    open_machine(4);
    submit("a", 2, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        step((job_event){
            .type = JOB_PS_EPOCH, .job = "a", .epoch = epoch, .value = 2 + epoch, .seconds = 4});
        step((job_event){
            .type = JOB_PS_ASK, .job = "a", .epoch = epoch, .value = 2 + epoch, .seconds = 4});
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3 + epoch);
    }
}

static int answer_after(int epoch, int functions, double seconds)
{
    step((job_event){
        .type = JOB_PS_EPOCH, .job = "a", .epoch = epoch, .value = functions, .seconds = seconds});
    step((job_event){
        .type = JOB_PS_ASK, .job = "a", .epoch = epoch, .value = functions, .seconds = seconds});
    return get(JOB_TELL_PARALLELISM)->value;
}

TEST(what_an_elastic_job_grew_it_gives_back_to_one_that_waits)
{
    grows_to_four();
    submit("b", 2, 0, true);
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TAKE));
    CHECK_INT(answer_after(2, 4, 3), 2);
    /* Here it has no pods; where it has, their slots are free when they have gone. */
    CHECK_STR(get(JOB_TAKE)->job->id, "b");
    /* Its next epoch has fewer functions and takes longer, which says nothing of the machine. */
    CHECK_INT(answer_after(3, 2, 6), 2);
    CHECK_INT(jobs_slots_free(m), 0);
    jobs_close(m);
}

TEST(an_elastic_job_gives_back_no_more_than_is_lacking_or_than_it_grew)
{
    grows_to_four();
    submit("b", 1, 0, true);
    CHECK_INT(answer_after(2, 4, 3), 3);
    jobs_close(m);
    grows_to_four();
    submit("b", 3, 0, true); /* which would not do */
    CHECK_INT(answer_after(2, 4, 3), 4);
    jobs_close(m);
}

/* Resumed it has what it asked for, and kubeml-ps tells of the four that its last epoch had. */
static int answer_to_one_that_had_four(int slots)
{
    err e = ERR_INIT;
    open_machine(4);
    submit("a", 2, 0, false);
    request r = jobs_find(m, "a")->request;
    jobs_close(m);
    open_machine(slots);
    run_job("b", 2);
    CHECK_OK(jobs_resubmit(m, "a", &r, 0, 2, 1, &e), e);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 1);
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 1, .value = 4, .seconds = 4});
    return get(JOB_TELL_PARALLELISM)->value;
}

TEST(an_elastic_job_goes_on_with_more_than_it_holds_only_where_slots_are_free)
{
    CHECK_INT(answer_to_one_that_had_four(4), 2);
    CHECK_INT(jobs_slots_free(m), 0);
    step((job_event){.type = JOB_SLOTS, .value = 5});
    CHECK_INT(jobs_slots_free(m), 1);
    jobs_close(m);
    CHECK_INT(answer_to_one_that_had_four(5), 3);
    jobs_close(m);
    CHECK_INT(answer_to_one_that_had_four(8), 5);
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
    open_machine(5);
    grows("a");
    trains("a", 1, 3);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 4);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 3});
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 3,
                     .reason = "QuotaExceeded",
                     .message = "pods: 9"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 3});
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 3, .code = ERR_CANCELLED});
    submit("b", 3, 0, true);
    trains("a", 2, 3);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    job_reason why;
    jobs_explain(m, jobs_find(m, "a"), now, &why);
    CHECK(!strstr(why.message, "no more"));
    step((job_event){.type = JOB_SLOTS, .value = 9});
    trains("a", 3, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    trains("a", 4, 3);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3); /* and no further */
    check_reason("a", "Training", "3 functions; there is no more of them: pods: 9");
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

/* How long an epoch takes. */
typedef double pace(int epoch, int functions);

/* Trains epochs of "a", which begins with two functions; the number it has then. `changes`: how
 * often it had another number, from that epoch on. */
static int trained_for(int slots, pace *seconds, int epochs, int from, int *changes)
{
    int functions = 2;
    *changes = 0;
    open_machine(slots);
    submit("a", 2, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    for (int epoch = 0; epoch < epochs; epoch++) {
        int next = answer_after(epoch, functions, seconds(epoch, functions));
        *changes += epoch >= from && next != functions;
        functions = next;
    }
    jobs_close(m);
    return functions;
}

/* Each function beyond the fourth takes more than it gives. */
static double four_are_enough(int epoch, int functions)
{
    (void)epoch;
    return functions <= 4 ? 40.0 / functions : 10.0 + (functions - 4);
}

static double up_to_a_tenth_off(int epoch, int functions)
{
    static const double off[] = {1, 0.9, 1.1, 0.95, 1.08, 0.9, 1, 1.1};
    return off[epoch % 8] * 40.0 / functions;
}

static double slower_for_a_while(int epoch, int functions)
{
    return (epoch >= 10 && epoch < 20 ? 4 : 1) * 40.0 / functions;
}

TEST(functions_that_slow_a_job_down_are_not_added_again_and_again)
{
    int changes;
    CHECK_INT(trained_for(32, four_are_enough, 100, 3, &changes), 5);
    CHECK_INT(changes, 0);
}

TEST(epochs_that_differ_by_chance_change_nothing)
{
    int changes;
    CHECK_INT(trained_for(4, up_to_a_tenth_off, 200, 4, &changes), 4);
    CHECK_INT(changes, 0);
}

TEST(a_job_that_was_slowed_down_is_back_at_what_it_had)
{
    int changes;
    CHECK_INT(trained_for(3, slower_for_a_while, 40, 10, &changes), 3);
    CHECK_INT(changes, 2); /* one fewer, which is slower still, and one more */
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

/* The controller of "a" is another one from here on, and the pods of "a" have gone. */
static void restart_with(const char *id, int slots)
{
    err e = ERR_INIT;
    cleanup_json json_t *record = job_record(jobs_find(m, id));
    jobs_close(m);
    job_limits l;
    job_limits_default(&l);
    CHECK_OK(jobs_open(&l, slots, &m, &e), e);
    CHECK_OK(jobs_restore(m, record, &e), e);
}

TEST(what_a_job_waited_before_its_first_start_counts_for_no_deadline)
{
    open_machine(1);
    now = 3600 * 1000;
    submit_bound("a", 60, 0);
    step((job_event){.type = JOB_SLOTS, .value = 0});
    restart_with("a", 0);
    step((job_event){.type = JOB_ADOPT});
    CHECK_INT(jobs_find(m, "a")->state, JOB_QUEUED);
    step((job_event){.type = JOB_SLOTS, .value = 1});
    CHECK_INT(jobs_find(m, "a")->state, JOB_STARTING);
    CHECK_INT(jobs_find(m, "a")->started_wall_ms, 1700000000000 + now);
    ps_starts("a", 0);
    now += 59999;
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TELL_STOP));
    now += 1;
    step((job_event){.type = JOB_TICK});
    check_reason("a", "DeadlineExceeded", "longer than 60 s");
    jobs_close(m);
}

TEST(a_stop_outlives_the_controller_with_the_time_for_it)
{
    open_machine(1);
    run_job("a", 1);
    step((job_event){.type = JOB_CANCEL, .job = "a"});
    restart_with("a", 1);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){.type = JOB_ADOPT});
    get(JOB_ATTACH);
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING); /* it may be writing its model */
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    get(JOB_TELL_STOP);
    now += 10000;
    step((job_event){.type = JOB_TICK});
    CHECK_INT(jobs_find(m, "a")->state, JOB_CANCELLED);
    jobs_close(m);
}

TEST(what_a_job_had_grown_to_is_adopted_where_there_are_fewer_slots_now)
{
    open_machine(30);
    submit("a", 1, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    for (int f = 0; f < 30; f++)
        function_joins("a", f, 0);
    restart_with("a", 1);
    step((job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "ps"});
    for (int f = 0; f < 30; f++) {
        char pod[JOB_POD_BYTES];
        snprintf(pod, sizeof pod, "f-%d", f);
        step((job_event){.type = JOB_POD_FOUND, .job = "a", .function = f, .pod = pod});
        CHECK(!find(JOB_STOP));
    }
    CHECK_INT(jobs_find(m, "a")->functions_max, 30); /* as kubeml-ps knows it */
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
