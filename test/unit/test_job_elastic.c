/* test_job_elastic.c: slots: jobs that grow and shrink, the policy, and what there is no room for.
 */
#include "common/base/json_read.h"
#include "common/base/text.h"
#include "controller/job/policy.h"
#include "job_fixture.h"

TEST(an_elastic_job_begins_with_what_there_is)
{
    open_machine(2);
    submit("a", 4, 0, false);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TAKE)->job->parallelism, 2);
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

/* A chunk is one function's; others would train nothing, and no epoch would tell. */
TEST(an_elastic_job_comes_to_no_more_functions_than_its_data_set_has_chunks)
{
    open_machine(8);
    submit("a", 4, 0, false);
    jobs_chunks(m, "a", 3);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TAKE)->job->parallelism, 3);
    jobs_close(m);
    open_machine(8);
    submit("a", 2, 0, false);
    jobs_chunks(m, "a", 3);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    for (int epoch = 0; epoch < 4; epoch++) {
        step((job_event){
            .type = JOB_PS_ASK, .job = "a", .epoch = epoch, .value = epoch ? 3 : 2, .seconds = 4});
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    }
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training", .epoch = 4});
    check_reason("a", "Training",
                 "3 functions; there is no more of them: its dataset has 3 chunks");
    jobs_close(m);
}

TEST(a_static_job_has_the_functions_that_it_asks_for_whatever_its_data_set)
{
    open_machine(8);
    submit("a", 4, 0, true);
    jobs_chunks(m, "a", 3);
    step((job_event){.type = JOB_TICK});
    CHECK_INT(get(JOB_TAKE)->job->parallelism, 4);
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
    CHECK_OK(jobs_resubmit(m, "a", &r, 0, 2, 1, 1, &e), e);
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
    step((job_event){
        .type = JOB_PS_EPOCH, .job = id, .epoch = epoch, .value = functions, .seconds = seconds});
    step((job_event){
        .type = JOB_PS_ASK, .job = id, .epoch = epoch, .value = functions, .seconds = seconds});
}

static void trains(const char *id, int epoch, int functions)
{
    trains_in(id, epoch, functions, 4);
}

TEST(an_elastic_job_does_not_wait_for_room_that_is_not_there)
{
    open_machine(8);
    grows("a");
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 2,
                     .reason = "PoolEmpty",
                     .message = "one is being started"});
    CHECK(!find(JOB_TELL_PARALLELISM)); /* that one comes */
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 2,
                     .reason = "Unschedulable",
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
        step((job_event){.type = JOB_POD_WAITING,
                         .job = "a",
                         .function = 2,
                         .incarnation = i + 1,
                         .reason = "Unschedulable",
                         .message = "no node takes the pod"});
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
        step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2, .incarnation = i + 1});
        step((job_event){.type = JOB_POD_FAILED,
                         .job = "a",
                         .function = 2,
                         .incarnation = i + 1,
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

static void is_specialised(const char *id, int function, int incarnation, const char *pod)
{
    step((job_event){.type = JOB_POD_READY,
                     .job = id,
                     .function = function,
                     .incarnation = incarnation,
                     .pod = pod});
    CHECK_STR(get(JOB_SPECIALISE)->pod, pod);
}

static void cannot_load(const char *id, int function, int incarnation)
{
    step((job_event){.type = JOB_UNSPECIALISED,
                     .job = id,
                     .function = function,
                     .incarnation = incarnation,
                     .code = ERR_LIMIT,
                     .reason = "GpuMemory",
                     .message = "3 MiB of GPU memory are free"});
}

TEST(an_elastic_job_goes_on_without_one_that_cannot_load)
{
    open_machine(8);
    grows("a");
    is_specialised("a", 2, 0, "a-f-2-0");
    cannot_load("a", 2, 0);
    CHECK(!jobs_find(m, "a")->verdict);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    CHECK_STR(get(JOB_STOP)->pod, "a-f-2-0");
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    step((job_event){.type = JOB_POD_ENDED, .pod = "a-f-2-0", .reason = "Exited"});
    trains("a", 1, 2);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    check_reason("a", "Training", "there is no more of them: 3 MiB of GPU memory are free");
    /* One that is needed fails it. */
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    is_specialised("a", 1, 1, "a-f-1-1");
    cannot_load("a", 1, 1);
    CHECK(jobs_find(m, "a")->verdict);
    check_reason("a", "GpuMemory", "function 1: 3 MiB");
    jobs_close(m);

    open_machine(8);
    submit("a", 2, 0, true);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1});
    is_specialised("a", 1, 0, "a-f-1-0");
    cannot_load("a", 1, 0);
    CHECK(jobs_find(m, "a")->verdict);
    jobs_close(m);
}

/* kubeml-ps asks once more after an older state was put back. */
TEST(an_elastic_job_that_was_put_back_goes_on_without_one_that_cannot_load)
{
    open_machine(8);
    grows("a");
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training", .epoch = 1});
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    step((job_event){.type = JOB_PS_ASK, .job = "a", .epoch = 0, .value = 2, .seconds = 10});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 2, .incarnation = 1});
    is_specialised("a", 2, 1, "a-f-2-1");
    cannot_load("a", 2, 1);
    CHECK(!jobs_find(m, "a")->verdict);
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    jobs_close(m);
}

/* kubeml-ps has given it up: its pod has ended already, or does nothing. Each time costs what the
 * others wait meanwhile. */
TEST(a_function_that_never_starts_is_asked_for_less_and_less_often)
{
    open_machine(8);
    grows("a");
    /* Of one that is lost the next one is waited for. */
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    CHECK(!find(JOB_TELL_PARALLELISM));
    step((job_event){.type = JOB_POD_FAILED, .job = "a", .function = 2, .code = ERR_CANCELLED});
    int64_t waits[] = {5000, 10000, 20000, 40000, 80000, 160000, 320000, 600000, 600000};
    int epoch = 1;
    for (int i = 0; i < 9; i++) {
        step((job_event){.type = JOB_PS_RELEASE,
                         .job = "a",
                         .function = 2,
                         .incarnation = 2 * i + 1,
                         .message = "function 2 ended 2 times before it was ready"});
        CHECK_INT(jobs_find(m, "a")->parallelism, 2);
        trains("a", epoch++, 2);
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
        check_reason("a", "Training", "no more of them: function 2 ended 2 times");
        now += waits[i] - 1;
        trains("a", epoch++, 2);
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
        now += 1;
        trains("a", epoch++, 2);
        CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 3);
    }
    trains("a", epoch, 3);
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
    step((job_event){.type = JOB_POD_FAILED,
                     .job = "a",
                     .function = 2,
                     .code = ERR_FORBIDDEN,
                     .message = "not allowed"});
    CHECK_INT(get(JOB_TELL_PARALLELISM)->value, 2);
    step((job_event){.type = JOB_PS_RELEASE, .job = "a", .function = 2});
    trains("a", 1, 2);
    CHECK_INT(jobs_find(m, "a")->state, JOB_RUNNING);
    check_reason("a", "Training", "there is no more of them: not allowed");

    /* One that is lost is needed: that is waited for. */
    step((job_event){.type = JOB_PS_PHASE, .job = "a", .phase = "training", .epoch = 2});
    step((job_event){
        .type = JOB_POD_ENDED, .pod = "a-f-1-0", .reason = "Killed", .message = "SIGKILL"});
    step((job_event){.type = JOB_PS_NEED, .job = "a", .function = 1, .incarnation = 1});
    step((job_event){.type = JOB_POD_WAITING,
                     .job = "a",
                     .function = 1,
                     .incarnation = 1,
                     .reason = "Unschedulable",
                     .message = "no node takes the pod"});
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
        {4, 10, 0, 8, 5},    {4, 10.5, 10, 8, 5}, {4, 10.6, 10, 8, 4},
        {4, 11.9, 10, 8, 4}, {4, 12, 10, 8, 3},   {1, 99, 10, 8, 1},
        {4, 5, 10, 4, 4},    {4, 5, 10, 2, 2},    {4, 99, 10, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_INT(
            policy_elastic(cases[i].parallelism, cases[i].seconds, cases[i].last, cases[i].ceiling),
            cases[i].want);
}

/* As its order says. */
static int threads_told(const char *id, int f, int incarnation)
{
    step((job_event){.type = JOB_PS_NEED, .job = id, .function = f, .incarnation = incarnation});
    step((job_event){
        .type = JOB_POD_READY, .job = id, .function = f, .incarnation = incarnation, .pod = "f"});
    return get(JOB_SPECIALISE)->job->threads;
}

/* Otherwise they compute other bits than those that they stand beside, or in for. */
TEST(all_functions_of_a_job_have_as_many_threads_whatever_it_grows_to)
{
    open_machine(6);
    jobs_cpus(m, 16, false);
    submit("a", 4, 0, false);
    step((job_event){.type = JOB_TICK});
    ps_starts("a", 0);
    for (int f = 0; f < 4; f++)
        CHECK_INT(threads_told("a", f, 0), 2);
    CHECK_INT(answer_after(0, 4, 4), 5);
    CHECK_INT(threads_told("a", 4, 0), 2);
    CHECK_INT(answer_after(1, 5, 4), 6);
    CHECK_INT(threads_told("a", 0, 1), 2); /* in the place of one that was lost */
    jobs_close(m);
}

static int threads_of_chunks(int cpus, bool of_each_pod, int slots, int chunks, request r)
{
    err e = ERR_INIT;
    open_machine(slots);
    jobs_cpus(m, cpus, of_each_pod);
    CHECK_OK(jobs_submit(m, "a", &r, false, 1, &e), e);
    jobs_chunks(m, "a", chunks);
    step((job_event){.type = JOB_TICK});
    int threads = get(JOB_TAKE)->job->threads;
    jobs_close(m);
    return threads;
}

static int threads_of(int cpus, bool of_each_pod, int slots, request r)
{
    return threads_of_chunks(cpus, of_each_pod, slots, 0, r);
}

TEST(the_cpus_are_divided_by_the_most_functions_that_a_job_can_come_to)
{
    static const request one = {.default_parallelism = 1, .epochs = 1},
                         four = {.default_parallelism = 4, .epochs = 1},
                         longer = {.default_parallelism = 4, .epochs = 5},
                         ever = {.default_parallelism = 1, .epochs = 1000},
                         alone = {
                             .default_parallelism = 1, .epochs = 1000, .static_parallelism = true};
    CHECK_INT(threads_of(8, false, 8, one), 8);
    CHECK_INT(threads_of(8, false, 8, four), 2);
    CHECK_INT(threads_of(16, false, 16, longer), 2);
    CHECK_INT(threads_of(8, false, 8, ever), 1);
    CHECK_INT(threads_of(8, false, 2, ever), 4);
    CHECK_INT(threads_of(8, false, 2, four), 4); /* which begins with two */
    CHECK_INT(threads_of(8, false, 8, alone), 8);
    CHECK_INT(threads_of(2, false, 4, four), 1);
    CHECK_INT(threads_of(384, false, 384, alone), 256);
    CHECK_INT(threads_of(768, false, 384, ever), 3);       /* 256 functions at the most */
    CHECK_INT(threads_of_chunks(8, false, 8, 2, ever), 4); /* more would have nothing to train */
    CHECK_INT(threads_of_chunks(8, false, 8, 2, four), 4);
}

TEST(a_pods_cpus_are_its_functions_alone)
{
    static const request four = {.default_parallelism = 4, .epochs = 100},
                         shared = {.default_parallelism = 4,
                                   .epochs = 1,
                                   .static_parallelism = true,
                                   .process = PROCESS_SHARED};
    CHECK_INT(threads_of(2, true, 8, four), 2);
    CHECK_INT(threads_of(384, true, 8, four), 256);
    CHECK_INT(threads_of(8, true, 8, shared), 2);
    CHECK_INT(threads_of(2, true, 8, shared), 1);
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
