/* test_round_elastic.c: the round machine as a job grows, or does without functions that cannot be
 * had. */
#include "round_fixture.h"

TEST(parallelism_is_asked_for_and_grows_or_stays)
{
    round_config c = config(2, 3);
    c.request.static_parallelism = false;
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    get(ROUND_ASK);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 0, .value = 3});
    CHECK_INT(get(ROUND_NEED)->function, 2);
    CHECK(!find(ROUND_TRAIN));
    join(2, 0);
    CHECK_INT(number_of(ROUND_TRAIN), 3);
    c.parallelism = 3;
    for (int f = 0; f < 3; f++)
        publish(&c, f, 0, 1, 0);
    merged(1, 0, 2);
    step((round_event){.type = ROUND_COMMITTED, .epoch = 1});
    now = round_deadline(m); /* no controller answers: it stays */
    step((round_event){.type = ROUND_TICK});
    CHECK_INT(number_of(ROUND_TRAIN), 3);
    round_close(m);
}

TEST(a_function_that_cannot_be_had_is_not_waited_for)
{
    round_config c = config(2, 3);
    c.request.static_parallelism = false;
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 0, .value = 3});
    CHECK_INT(get(ROUND_NEED)->function, 2);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 0, .value = 3});
    CHECK(!find(ROUND_TRAIN)); /* the same answer again says nothing new */
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 0, .value = 2});
    CHECK_INT(get(ROUND_RELEASE)->function, 2);
    CHECK_INT(number_of(ROUND_TRAIN), 2);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 0, .value = 1});
    CHECK(!find(ROUND_RELEASE)); /* too late for this epoch */
    round_close(m);
}

/* An elastic job with two functions that is to get a third. */
static round_config grow_by_one(void)
{
    round_config c = config(2, 9);
    c.request.static_parallelism = false;
    begin(&c);
    return c;
}

static void train_two_and_grow(const round_config *c, int epoch)
{
    for (int f = 0; f < 2; f++)
        publish(c, f, 0, epoch, 0);
    merged(epoch, 0, epoch + 1);
    step((round_event){.type = ROUND_COMMITTED, .epoch = epoch});
    step((round_event){.type = ROUND_PARALLELISM, .epoch = epoch, .value = 3});
    CHECK_INT(get(ROUND_NEED)->function, 2);
}

static void two_go_on(const char *why)
{
    CHECK(!find(ROUND_FINISHED) && !find(ROUND_NEED));
    CHECK_INT(number_of(ROUND_RELEASE), 1);
    CHECK_INT(get(ROUND_RELEASE)->function, 2);
    CHECK_CONTAINS(get(ROUND_RELEASE)->message, why);
    CHECK_INT(number_of(ROUND_TRAIN), 2);
    CHECK_INT(get(ROUND_TRAIN)->parallelism, 2);
}

static void end_before_ready(int f, int incarnation, const char *reason)
{
    step((round_event){.type = ROUND_LOST,
                       .function = f,
                       .incarnation = incarnation,
                       .ended = true,
                       .reason = reason,
                       .message = "signal 9"});
}

TEST(a_job_that_trains_goes_on_without_one_that_cannot_start)
{
    round_config c = grow_by_one();
    int incarnation = 0;
    for (int epoch = 0; epoch < 3; epoch++) { /* the second time as patient as the first */
        train_two_and_grow(&c, epoch);
        CHECK_INT(get(ROUND_NEED)->incarnation, incarnation);
        end_before_ready(2, incarnation, "OutOfMemory");
        CHECK_INT(get(ROUND_NEED)->incarnation, ++incarnation);
        CHECK(told("FunctionLost")->status);
        end_before_ready(2, incarnation++, "OutOfMemory");
        two_go_on("function 2 ended 2 times before it was ready: OutOfMemory: signal 9");
        CHECK(!told("FunctionLost")->status);
    }
    /* One whose code crashes there, */
    train_two_and_grow(&c, 3);
    end_before_ready(2, incarnation++, "Crashed");
    two_go_on("function 2 crashed before it was ready");
    /* also where that is known a moment later, */
    train_two_and_grow(&c, 4);
    step((round_event){.type = ROUND_HELLO, .function = 2, .incarnation = incarnation});
    step((round_event){
        .type = ROUND_LOST, .function = 2, .incarnation = incarnation, .reason = "ConnectionLost"});
    end_before_ready(2, incarnation, "Crashed");
    two_go_on("function 2 crashed before it was ready");
    /* or that says that it cannot, */
    train_two_and_grow(&c, 5);
    incarnation = get(ROUND_NEED)->incarnation;
    step((round_event){.type = ROUND_HELLO, .function = 2, .incarnation = incarnation});
    step((round_event){.type = ROUND_FAILED,
                       .function = 2,
                       .incarnation = incarnation,
                       .reason = "GpuMemory",
                       .message = "3 MiB are free"});
    two_go_on("function 2: 3 MiB are free");
    CHECK_INT(number_of(ROUND_HALT), 1);
    /* or does nothing. */
    train_two_and_grow(&c, 6);
    for (int64_t end = now + c.limits.grow_wait_ms; now < end; now += 1000)
        hear_of(2);
    step((round_event){.type = ROUND_TICK});
    two_go_on("function 2 was not ready in time");
    round_close(m);
}

TEST(a_job_fails_with_a_function_that_it_must_have)
{
    round_config c = grow_by_one();
    train_two_and_grow(&c, 0);
    step((round_event){.type = ROUND_FAILED, .function = 1, .reason = "NaNLoss", .message = "x"});
    expect_failure("NaNLoss", "function 1: x");

    c = grow_by_one();
    train_two_and_grow(&c, 0);
    join(2, 0);
    step((round_event){.type = ROUND_FAILED, .function = 2, .reason = "NaNLoss", .message = "x"});
    expect_failure("NaNLoss", "function 2: x"); /* it has a share of the epoch */

    c = config(2, 1);
    c.request.static_parallelism = false;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    end_before_ready(0, 0, "Crashed");
    expect_failure("Crashed", "function 0 crashed before it was ready");
}

TEST(an_elastic_job_begins_without_one_that_cannot_start)
{
    round_config c = config(3, 2);
    c.request.static_parallelism = false;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    end_before_ready(2, 0, "Killed");
    end_before_ready(2, 1, "Killed");
    CHECK_INT(get(ROUND_RELEASE)->function, 2);
    join(0, 0);
    step((round_event){.type = ROUND_INITIALISED, .function = 0});
    CHECK(!find(ROUND_TRAIN));
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){
        .type = ROUND_FAILED, .function = 1, .reason = "GpuMemory", .message = "none is free"});
    CHECK_CONTAINS(get(ROUND_RELEASE)->message, "none is free");
    CHECK_INT(number_of(ROUND_TRAIN), 1);
    round_close(m);
}

/* Four functions are asked for, two are there and the model is made. */
static round_config begin_with_two_of_four(bool elastic)
{
    round_config c = config(4, 2);
    c.request.static_parallelism = !elastic;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    CHECK_INT(number_of(ROUND_NEED), 4);
    join(0, 0);
    join(1, 0);
    step((round_event){.type = ROUND_INITIALISED, .function = 0});
    return c;
}

/* Time passes, and functions 0 and 1 are heard of. Ends where the job does. */
static void hear_of_two(int64_t ms)
{
    for (int64_t end = now + ms; now < end && !round_finished(m); now += 1000)
        for (int f = 0; f < 2; f++)
            step((round_event){.type = ROUND_HEARTBEAT, .function = f, .batches = (uint32_t)now});
}

TEST(an_elastic_job_begins_with_those_that_can_be_had)
{
    round_config c = begin_with_two_of_four(true);
    CHECK(!find(ROUND_TRAIN)); /* the others may be on their way */
    step((round_event){.type = ROUND_PARALLELISM, .epoch = -1, .value = 3});
    CHECK_INT(get(ROUND_RELEASE)->function, 3);
    CHECK(!find(ROUND_TRAIN));
    step((round_event){.type = ROUND_PARALLELISM, .epoch = -1, .value = 2});
    CHECK_INT(get(ROUND_RELEASE)->function, 2);
    CHECK_INT(number_of(ROUND_TRAIN), 2);
    CHECK_INT(get(ROUND_TRAIN)->parallelism, 2);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = -1, .value = 1});
    CHECK(!find(ROUND_RELEASE)); /* too late for this epoch */
    c.parallelism = 2;
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    CHECK_INT(get(ROUND_ASK)->parallelism, 2);
    round_close(m);
}

TEST(an_elastic_job_is_told_before_its_model_is_made)
{
    round_config c = config(4, 2);
    c.request.static_parallelism = false;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    step((round_event){.type = ROUND_PARALLELISM, .epoch = -1, .value = 0});
    CHECK_INT(number_of(ROUND_RELEASE), 3); /* one it must have */
    join(0, 0);
    step((round_event){.type = ROUND_INITIALISED, .function = 0});
    CHECK_INT(number_of(ROUND_TRAIN), 1);
    round_close(m);
}

TEST(an_elastic_job_waits_for_what_is_on_its_way_but_not_for_ever)
{
    round_config c = begin_with_two_of_four(true);
    hear_of_two(c.limits.function_wait_ms);
    CHECK(!find(ROUND_TRAIN));
    step((round_event){.type = ROUND_TICK});
    CHECK_INT(number_of(ROUND_RELEASE), 2);
    CHECK_INT(number_of(ROUND_TRAIN), 2);
    round_close(m);
}

TEST(a_static_job_waits_for_all_of_its_functions)
{
    round_config c = begin_with_two_of_four(false);
    CHECK_INT(number_of(ROUND_TRAIN), 2);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = -1, .value = 2});
    CHECK(!find(ROUND_RELEASE));
    hear_of_two(c.limits.function_wait_ms);
    step((round_event){.type = ROUND_TICK});
    CHECK_STR(get(ROUND_FINISHED)->reason, "FunctionMissing");
    round_close(m);
}

TEST(an_elastic_job_goes_on_with_those_that_can_be_had)
{
    round_config c = config(3, 4);
    c.request.static_parallelism = false;
    round_resume r = {.epoch = 1, .parallelism = 3, .version = 2, .committed = true};
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = &r});
    get(ROUND_ASK);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 1, .value = 3});
    CHECK_INT(number_of(ROUND_NEED), 3);
    CHECK_STR(get(ROUND_PHASE)->phase, "starting");
    join(0, 0);
    CHECK(!find(ROUND_TRAIN));
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 1, .value = 1});
    CHECK_INT(number_of(ROUND_RELEASE), 2);
    CHECK_INT(get(ROUND_TRAIN)->parallelism, 1);
    CHECK_INT(get(ROUND_TRAIN)->epoch, 2);
    round_close(m);
}

/* It had grown beyond what there is room for now. */
TEST(an_elastic_job_goes_on_where_there_is_room_for_fewer)
{
    round_config c = config(1, 4);
    c.request.static_parallelism = false;
    round_resume r = {.epoch = 1, .parallelism = 6, .version = 2, .committed = true};
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = &r});
    CHECK_INT(get(ROUND_ASK)->parallelism, 4);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 1, .value = 2});
    CHECK_INT(number_of(ROUND_NEED), 2);
    join(0, 0);
    join(1, 0);
    CHECK_INT(number_of(ROUND_TRAIN), 2);
    CHECK_INT(get(ROUND_TRAIN)->epoch, 2);
    round_close(m);
}
