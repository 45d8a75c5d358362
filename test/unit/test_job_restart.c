/* test_job_restart.c: what a controller makes of the jobs of the one before. */
#include "common/base/json_read.h"
#include "common/base/text.h"
#include "controller/job/policy.h"
#include "job_fixture.h"

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

TEST(a_record_of_a_retry_that_no_job_has_is_refused)
{
    err e = ERR_INIT;
    open_machine(1);
    submit_bound("a", 0, 2);
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    open_machine(1);
    json_object_set_new(record, "again_ms", json_integer(INT64_MIN));
    CHECK_ERR(jobs_restore(m, record, &e), e, ERR_INVALID, "again_ms");
    json_object_set_new(record, "again_ms", json_integer(0));
    json_object_set_new(record, "retries", json_integer((json_int_t)1 << 32));
    CHECK_ERR(jobs_restore(m, record, &e), e, ERR_INVALID, "retries");
    json_object_del(record, "retries");
    json_object_del(record, "again_ms");
    CHECK_OK(jobs_restore(m, record, &e), e); /* an older one */
    json_decref(record);
    jobs_close(m);
}

TEST(a_restarted_controller_adopts)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 2);
    submit("q", 4, 7, true);
    step((job_event){.type = JOB_PS_CONDITION,
                     .job = "a",
                     .name = "Straggler",
                     .status = true,
                     .reason = "Straggler",
                     .message = "function 1"});
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

/* The function was told what to do, or not: by the controller before. It cannot be told again. */
static void restart_while_it_loads(const char *end)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 1);
    cleanup_json json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    open_machine(4);
    CHECK_OK(jobs_restore(m, record, &e), e);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    step((job_event){.type = JOB_POD_FOUND, .job = "a", .function = 0, .pod = "a-f-0-0"});
    step((job_event){.type = JOB_ADOPT});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    step((job_event){.type = JOB_PS_ACCESS, .job = "a"});
    step((job_event){.type = JOB_PS_NEED, .job = "a"});
    CHECK_STR(get(JOB_SPECIALISE)->pod, "a-f-0-0");
    step((job_event){.type = JOB_UNSPECIALISED,
                     .job = "a",
                     .code = ERR_UNAVAILABLE,
                     .reason = "ConnectionLost",
                     .message = "the pod is gone"});
    CHECK_STR(get(JOB_STOP)->pod, "a-f-0-0");
    step((job_event){
        .type = JOB_POD_ENDED, .pod = "a-f-0-0", .reason = end, .message = "as it was asked to"});
}

TEST(a_restart_while_a_function_loads_is_no_failure_of_it)
{
    restart_while_it_loads("Exited");
    CHECK_STR(get(JOB_TELL_LOST)->reason, "ControllerRestarted");
    CHECK_CONTAINS(get(JOB_TELL_LOST)->message, "started again before it had loaded: as it was");
    /* The next one has a controller that it answers. */
    function_joins("a", 0, 1);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-0-1", .reason = "Exited"});
    CHECK_STR(get(JOB_TELL_LOST)->reason, "Exited");
    jobs_close(m);
}

TEST(code_that_crashes_while_the_controller_restarts_has_crashed)
{
    restart_while_it_loads("Crashed");
    CHECK_STR(get(JOB_TELL_LOST)->reason, "Crashed");
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

TEST(how_long_a_job_was_active_before_counts_for_its_deadline)
{
    open_machine(1);
    now = 3600 * 1000;
    submit_bound("a", 60, 0);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    now += 40000;
    restart_with("a", 1);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    CHECK(jobs_deadline(m) == INT64_MAX); /* all of its pods have still to be told */
    step((job_event){.type = JOB_ADOPT});
    step((job_event){.type = JOB_PS_ACCEPTED, .job = "a"});
    CHECK_INT(jobs_deadline(m), now + 20000);
    now += 19999;
    step((job_event){.type = JOB_TICK});
    CHECK(!find(JOB_TELL_STOP));
    now += 1;
    step((job_event){.type = JOB_TICK});
    get(JOB_TELL_STOP);
    check_reason("a", "DeadlineExceeded", "longer than 60 s");
    jobs_close(m);
}

/* It may know another job by that name, or be one that was never told: its end brings the next. */
TEST(a_kubeml_ps_that_refuses_the_controller_that_came_back_is_replaced)
{
    static const err_code codes[] = {ERR_NOT_FOUND, ERR_CONFLICT};
    for (int i = 0; i < 2; i++) {
        open_machine(1);
        run_job("a", 1);
        restart_with("a", 1);
        step((job_event){
            .type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
        step((job_event){.type = JOB_ADOPT});
        get(JOB_ATTACH);
        step((job_event){.type = JOB_PS_REFUSED, .job = "a", .code = codes[i], .message = "no"});
        CHECK(!jobs_find(m, "a")->verdict);
        CHECK_STR(get(codes[i] == ERR_NOT_FOUND ? JOB_SEND : JOB_STOP)->pod, "a-ps-0");
        CHECK_INT(number_of(JOB_STOP), codes[i] != ERR_NOT_FOUND);
        jobs_close(m);
    }
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

/* By its record, and by that of the one that it is restored as. */
static void check_comes_back(const char *id, const uint64_t gpus[2])
{
    err e = ERR_INIT;
    jobs *other;
    job_limits l;
    cleanup_json json_t *record = job_record(jobs_find(m, id));
    job_limits_default(&l);
    CHECK_OK(jobs_open(&l, 6, &other, &e), e);
    jobs_gpus(other, GPU_SPREAD, true, gpus, 2);
    CHECK_OK(jobs_restore(other, record, &e), e);
    cleanup_json json_t *again = job_record(jobs_find(other, id));
    CHECK(json_equal(record, again));
    CHECK(jobs_find(other, id)->trained == jobs_find(m, id)->trained);
    jobs_close(other);
}

TEST(what_a_record_says_comes_back)
{
    static const uint64_t gpus[] = {80ULL << 30, 80ULL << 30};
    const request r = {.function_name = "f",
                       .dataset = "d",
                       .epochs = 9,
                       .batch_size = 8,
                       .lr = 0.1,
                       .default_parallelism = 2,
                       .k = -1,
                       .goal_accuracy = 100,
                       .backoff_limit = 3,
                       .gpu = {.memory_bytes = 1 << 20},
                       .ttl_seconds_after_finished = -1};
    err e = ERR_INIT;
    open_machine(6);
    jobs_gpus(m, GPU_SPREAD, true, gpus, 2);
    submit("before", 1, 0, true);
    CHECK_OK(jobs_submit(m, "a", &r, false, 5, &e), e);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    for (int f = 0; f < 2; f++)
        function_joins("a", f, 0);
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0", .reason = "Killed"}); /* a restart */
    ps_starts("a", 1);
    step((job_event){.type = JOB_PS_EPOCH, .job = "a", .epoch = 4, .value = 2});
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 4, .value = 2, .seconds = 4.5});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    step(
        (job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training", .epoch = 5, .round = 7});
    const job *a = jobs_find(m, "a");
    CHECK(a->decided_epoch == 4 && a->reference_seconds > 0 && a->conditions > 0);
    CHECK(a->gpu_functions == 3 && a->generation == 1 && a->resumed && a->order == 1);
    check_comes_back("a", gpus);
    step((job_event){.type = JOB_PS_FINISHED,
                     .job = "a",
                     .state = JOB_FAILED,
                     .reason = "NaNLoss",
                     .message = "function 0"});
    CHECK(a->state == JOB_QUEUED && a->retries == 1 && a->again_wall_ms > 0);
    check_comes_back("a", gpus);
    step((job_event){.type = JOB_CANCEL, .job = "a", .message = "by hand"});
    CHECK(a->state == JOB_CANCELLED && a->finished_wall_ms > 0);
    check_comes_back("a", gpus);
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

TEST(what_made_the_weights_others_stays_so_in_a_job_that_is_resumed)
{
    err e = ERR_INIT;
    open_machine(1);
    run_job("a", 1);
    step((job_event){.type = JOB_PS_CONDITION,
                     .job = "a",
                     .name = "Exact",
                     .reason = "LeftOut",
                     .message = "epoch 2"});
    step((job_event){.type = JOB_PS_CONDITION,
                     .job = "a",
                     .name = "Straggler",
                     .status = true,
                     .reason = "Straggler"});
    step((job_event){.type = JOB_PS_FINISHED, .job = "a", .state = JOB_SUSPENDED});
    cleanup_json json_t *record = job_record(jobs_find(m, "a"));
    request r = jobs_find(m, "a")->request;
    jobs_close(m);
    open_machine(1);
    CHECK_OK(jobs_resubmit(m, "a", &r, 0, 1, 1, 1, &e), e);
    jobs_recall(m, "a", record);
    const job *j = jobs_find(m, "a");
    CHECK_INT(j->conditions, 1);
    CHECK_STR(j->condition[0].type, "Exact");
    CHECK_STR(j->condition[0].reason, "LeftOut");
    CHECK(!j->condition[0].status);
    json_object_del(json_array_get(json_object_get(record, "conditions"), 1), "type");
    jobs_recall(m, "a", record); /* not a record: nothing is known */
    CHECK_INT(j->conditions, 0);
    jobs_close(m);
}

/* By the record of "a", when it goes on where there are 64 CPUs for it alone. */
static int threads_by(json_t *record, bool resumed)
{
    err e = ERR_INIT;
    open_machine(4);
    jobs_cpus(m, 64, false);
    if (resumed) {
        request r;
        CHECK_OK(request_parse(json_object_get(record, "request"), &r, &e), e);
        CHECK_OK(jobs_resubmit(m, "a", &r, 0, 1,
                               (int)json_integer_value(json_object_get(record, "threads")), 1, &e),
                 e);
        step((job_event){.type = JOB_TICK});
    } else {
        CHECK_OK(jobs_restore(m, record, &e), e);
    }
    int threads = jobs_find(m, "a")->threads;
    jobs_close(m);
    return threads;
}

TEST(a_job_keeps_its_threads_wherever_it_goes_on)
{
    err e = ERR_INIT;
    open_machine(4);
    jobs_cpus(m, 6, false);
    run_job("a", 2);
    json_t *record = job_record(jobs_find(m, "a"));
    jobs_close(m);
    CHECK_INT(threads_by(record, false), 3);
    CHECK_INT(threads_by(record, true), 3);
    json_object_del(record, "threads"); /* as before they were kept */
    CHECK_INT(threads_by(record, false), 32);
    CHECK_INT(threads_by(record, true), 32);
    json_object_set_new(record, "threads", json_integer(1000));
    open_machine(4);
    CHECK_ERR(jobs_restore(m, record, &e), e, ERR_INVALID, "threads");
    jobs_close(m);
    json_decref(record);
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

/* The store was away when "a" got its second kubeml-ps: the record is of the first. */
static void restart_before_it_was_saved(void)
{
    err e = ERR_INIT;
    open_machine(4);
    run_job("a", 1);
    cleanup_json json_t *old = job_record(jobs_find(m, "a"));
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-ps-0", .reason = "Killed"});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    ps_starts("a", 1);
    jobs_close(m);
    open_machine(4);
    CHECK_OK(jobs_restore(m, old, &e), e);
}

TEST(a_kubeml_ps_that_the_record_does_not_know_is_adopted)
{
    restart_before_it_was_saved();
    step((job_event){.type = JOB_POD_FOUND,
                     .job = "a",
                     .function = JOB_KUBEML_PS,
                     .incarnation = 1,
                     .pod = "a-ps-1"});
    CHECK(!find(JOB_STOP));
    get(JOB_SAVE);
    step((job_event){.type = JOB_ADOPT});
    CHECK(!find(JOB_TAKE));
    CHECK_STR(get(JOB_ATTACH)->pod, "a-ps-1");
    CHECK_INT(jobs_find(m, "a")->generation, 1);
    CHECK(jobs_find(m, "a")->resumed);
    jobs_close(m);
}

TEST(the_older_of_two_kubeml_ps_is_stopped_whichever_is_found_first)
{
    for (int first = 0; first < 2; first++) {
        restart_before_it_was_saved();
        for (int i = 0; i < 2; i++) {
            int generation = i == 0 ? first : !first;
            step((job_event){.type = JOB_POD_FOUND,
                             .job = "a",
                             .function = JOB_KUBEML_PS,
                             .incarnation = generation,
                             .pod = generation ? "a-ps-1" : "a-ps-0"});
        }
        CHECK_STR(get(JOB_STOP)->pod, "a-ps-0");
        step((job_event){.type = JOB_ADOPT});
        CHECK_STR(get(JOB_ATTACH)->pod, "a-ps-1");
        jobs_close(m);
    }
}

TEST(a_number_that_the_history_or_a_function_knows_is_not_used_again)
{
    restart_before_it_was_saved();
    step((job_event){.type = JOB_PS_BEFORE, .job = "a", .incarnation = 1});
    step((job_event){.type = JOB_ADOPT});
    CHECK_INT(get(JOB_TAKE)->incarnation, 2);
    jobs_close(m);
    restart_before_it_was_saved();
    step((job_event){
        .type = JOB_POD_FOUND, .job = "a", .function = 0, .incarnation = 10000, .pod = "f"});
    step((job_event){.type = JOB_ADOPT});
    CHECK_INT(get(JOB_TAKE)->incarnation, 2);
    jobs_close(m);
}

TEST(a_job_that_had_begun_when_its_record_says_queued_goes_on)
{
    open_machine(4);
    submit("a", 1, 0, true);
    restart_with("a", 4);
    step(
        (job_event){.type = JOB_POD_FOUND, .job = "a", .function = JOB_KUBEML_PS, .pod = "a-ps-0"});
    CHECK_STR(get(JOB_STOP)->pod, "a-ps-0");
    step((job_event){.type = JOB_ADOPT});
    CHECK_INT(get(JOB_TAKE)->incarnation, 1);
    CHECK(jobs_find(m, "a")->resumed); /* what it has done so far counts */
    restart_with("a", 4);
    step((job_event){.type = JOB_PS_BEFORE, .job = "a", .incarnation = 0});
    step((job_event){.type = JOB_ADOPT});
    CHECK_INT(get(JOB_TAKE)->incarnation, 2); /* an older history changes nothing */
    jobs_close(m);
}
