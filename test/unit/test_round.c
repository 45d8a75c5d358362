/* test_round.c: the round machine, step by step: a job from its begin, or from where it was, to its
 * end; the simulator has the schedules. */
#include "common/base/text.h"
#include "round_fixture.h"

TEST(a_whole_job)
{
    round_config c = config(2, 2);
    c.test_samples = 25;
    begin(&c);
    for (int epoch = 0; epoch < 2; epoch++) {
        publish(&c, 0, 0, epoch, 0);
        CHECK(!find(ROUND_MERGE));
        publish(&c, 1, 0, epoch, 0);
        const round_merge *merge = &get(ROUND_MERGE)->merge;
        CHECK_INT(merge->base_version, epoch);
        CHECK_INT(merge->samples, 100);
        CHECK_INT(merge->count, 2);
        CHECK_INT(merge->next_epoch, epoch + 1);
        CHECK(merge->rows[0].complete && merge->rows[1].complete);
        merged(epoch, 0, epoch + 1);
        if (epoch == 1) { /* validate_every 0: only at the end */
            CHECK_INT(number_of(ROUND_VALIDATE), 2);
            step((round_event){.type = ROUND_VALIDATED, .function = 1, .epoch = 1, .samples = 15,
                               .correct = 15, .loss_sum = 3});
            step((round_event){.type = ROUND_VALIDATED, .function = 0, .epoch = 1, .samples = 10,
                               .correct = 5, .loss_sum = 2});
        }
        const round_epoch *record = &get(ROUND_COMMIT)->record;
        CHECK_INT(record->validated, epoch == 1);
        CHECK_NEAR(record->train_loss, 0.02, 1e-12);
        CHECK_NEAR(record->accuracy, epoch == 1 ? 80 : 0, 1e-9);
        CHECK_NEAR(record->validation_loss, epoch == 1 ? 0.2 : 0, 1e-12);
        step((round_event){.type = ROUND_COMMITTED, .epoch = epoch});
        get(ROUND_EPOCH);
    }
    const round_action *end = get(ROUND_FINISHED);
    CHECK_INT(end->state, ROUND_SUCCEEDED);
    CHECK_INT(end->epochs, 2);
    CHECK_INT(number_of(ROUND_HALT), 2);
    CHECK_INT(number_of(ROUND_RELEASE), 2);
    step((round_event){.type = ROUND_STOP});
    CHECK_INT(count, 0);
    round_close(m);
}

TEST(without_a_test_set_nothing_is_validated)
{
    round_config c = config(1, 1);
    c.request.validate_every = 1;
    for (int samples = 0; samples < 2; samples++) {
        c.test_samples = (uint64_t)samples;
        begin(&c);
        publish(&c, 0, 0, 0, 0);
        merged(0, 0, 1);
        CHECK_INT(number_of(ROUND_VALIDATE), samples);
        CHECK_INT(number_of(ROUND_COMMIT), 1 - samples);
        if (samples == 0)
            CHECK(!get(ROUND_COMMIT)->record.validated);
        round_close(m);
    }
}

/* An elastic job is exact by its recorded parallelism, and keeps the last one beyond that. */
TEST(a_recorded_parallelism_is_replayed)
{
    static const int plan[] = {2, 1, 3};
    round_config c = config(4, 5);
    c.request.static_parallelism = false;
    c.plan = plan;
    c.plan_epochs = 3;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    CHECK_INT(number_of(ROUND_NEED), 2);
    join(0, 0);
    join(1, 0);
    step((round_event){.type = ROUND_INITIALISED});
    for (int epoch = 0; epoch < 3; epoch++) {
        c.parallelism = plan[epoch];
        if (epoch == 2) {
            CHECK_INT(number_of(ROUND_NEED), 2);
            join(1, 1);
            join(2, 0);
        }
        for (int f = 0; f < plan[epoch]; f++)
            publish(&c, f, epoch == 2 && f == 1, epoch, 0);
        CHECK_INT(get(ROUND_MERGE)->merge.parallelism, plan[epoch]);
        CHECK_INT(get(ROUND_MERGE)->merge.samples, 100);
        merged(epoch, 0, epoch + 1);
        step((round_event){.type = ROUND_COMMITTED, .epoch = epoch});
        CHECK_INT(number_of(ROUND_ASK), 0);
    }
    CHECK_INT(number_of(ROUND_TRAIN), 3);
    round_close(m);
}

/* From the first task to the last merge; what an epoch took before a resume counts. */
TEST(an_epoch_has_its_seconds)
{
    round_config c = config(1, 3);
    c.request.static_parallelism = false;
    begin(&c);
    now += 1500;
    publish(&c, 0, 0, 0, 0);
    merged(0, 0, 1);
    CHECK_NEAR(get(ROUND_COMMIT)->record.seconds, 1.5, 1e-9);
    now += 700;
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    CHECK_NEAR(get(ROUND_ASK)->seconds, 1.5, 1e-9);
    step((round_event){.type = ROUND_PARALLELISM, .epoch = 0, .value = 1});
    now += 250;
    publish(&c, 0, 0, 1, 0);
    CHECK_NEAR(round_seconds(m), 0.25, 1e-9);
    round_close(m);

    open_machine(&c);
    step((round_event){
        .type = ROUND_START,
        .resume = &(round_resume){.epoch = 1, .parallelism = 1, .version = 1, .seconds = 30}});
    join(0, 0);
    now += 2000;
    publish(&c, 0, 0, 1, 0);
    merged(1, 0, 2);
    CHECK_NEAR(get(ROUND_COMMIT)->record.seconds, 32, 1e-9);
    round_close(m);
}

/* What a function says is cut where words are put before it: at each byte of a character. */
TEST(a_message_stays_text_wherever_it_is_cut)
{
    round_config c = config(2, 1);
    for (int at = 0; at < 4; at++) {
        char text[600];
        snprintf(text, sizeof text, "%.*s", at, "xxx");
        for (int i = 0; i < 100; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "🐢");
        begin(&c);
        step((round_event){.type = ROUND_LOST, .function = 1, .reason = "Killed", .message = text});
        const round_action *lost = get(ROUND_CONDITION);
        CHECK(text_valid(lost->message, strlen(lost->message)));
        CHECK_CONTAINS(lost->message, "🐢");
        step((round_event){
            .type = ROUND_FAILED, .function = 0, .reason = "StepFailed", .message = text});
        const round_action *end = get(ROUND_FINISHED);
        CHECK(text_valid(end->message, strlen(end->message)));
        CHECK_CONTAINS(end->message, "function 0: ");
        round_close(m);
    }
}

TEST(resume_goes_on_in_the_middle_of_an_epoch)
{
    round_config c = config(2, 3);
    c.request.k = 2;
    c.generation = 2;
    round_row rows[2];
    for (int f = 0; f < 2; f++) {
        round_event p = report(&c, f, 7, 1, 0);
        rows[f] = (round_row){.epoch = 1, .function = f, .incarnation = 7, .samples = p.samples,
                              .sample_begin = p.sample_begin, .sample_end = p.sample_end,
                              .batches = p.batches};
    }
    round_resume r = {.epoch = 1, .parallelism = 2, .version = 4, .rows = rows, .count = 2};
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = &r});
    CHECK_INT(get(ROUND_NEED)->incarnation, 2 * ROUND_GENERATION_STEP);
    join(0, 20000);
    CHECK_INT(get(ROUND_TRAIN)->batch_begin, 2);
    CHECK_INT(get(ROUND_TRAIN)->round, 1);
    CHECK_INT(get(ROUND_TRAIN)->version, 4);
    round_close(m);

    /* What it computed with before is known: another machine's arithmetic is told, and no reason to
     * fail. */
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = &r, .algorithms = "a"});
    join(0, 20000);
    CHECK(!find(ROUND_CONDITION));
    round_close(m);
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = &r, .algorithms = "b"});
    join(0, 20000);
    CHECK_STR(get(ROUND_CONDITION)->name, "Exact");
    CHECK(!get(ROUND_CONDITION)->status);
    CHECK(get(ROUND_TRAIN));
    round_close(m);

    /* What made it inexact before is told again, and to whoever attaches. */
    open_machine(&c);
    step((round_event){.type = ROUND_START,
                       .resume = &r,
                       .reason = "LeftOut",
                       .message = "epoch 1, round 2 is merged without function 1"});
    for (int i = 0; i < 2; i++) {
        CHECK(told("Exact") && !told("Exact")->status);
        CHECK_STR(told("Exact")->reason, "LeftOut");
        CHECK_CONTAINS(told("Exact")->message, "epoch 1, round 2");
        count = round_tell(m, &actions);
    }
    round_close(m);

    rows[1].sample_begin++;
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = &r});
    expect_failure("LedgerCorrupt", "epoch 2");
}

static void fail_to_resume(const round_resume *r, int epochs)
{
    round_config c = config(2, 4);
    open_machine(&c);
    step((round_event){.type = ROUND_START, .resume = r});
    CHECK_INT(get(ROUND_FINISHED)->epochs, epochs);
    expect_failure("LedgerCorrupt", "epoch 3");
}

TEST(a_job_that_cannot_go_on_keeps_the_epochs_it_has)
{
    const round_row stray = {
        .epoch = 2, .batches = 1, .samples = 10, .sample_begin = 1, .sample_end = 11};
    fail_to_resume(&(round_resume){.epoch = 2, .parallelism = 5, .committed = true}, 3);
    fail_to_resume(&(round_resume){.epoch = 2, .parallelism = 5}, 2);
    fail_to_resume(&(round_resume){.epoch = 2, .parallelism = 2, .rows = &stray, .count = 1}, 2);
}

/* It may not have heard that a condition which it was told of is over. */
TEST(a_controller_that_attaches_hears_of_what_is_over_too)
{
    round_config c = config(2, 1);
    begin(&c);
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .reason = "Killed",
                       .message = "signal 9",
                       .ended = true});
    count = round_tell(m, &actions);
    CHECK(told("FunctionLost")->status);
    join(1, 1);
    count = round_tell(m, &actions);
    const round_action *lost = told("FunctionLost");
    CHECK(lost && !lost->status);
    CHECK_STR(lost->reason, "Replaced");
    CHECK(!told("Straggler") && !told("Exact")); /* never were */
    round_close(m);
}

/* The one before it may have died of the question. */
TEST(a_controller_that_attaches_is_asked_again)
{
    round_config c = config(2, 2);
    c.request.static_parallelism = false;
    begin(&c);
    count = round_tell(m, &actions);
    CHECK(!find(ROUND_ASK));
    now += 3000;
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    for (int i = 0; i < 2; i++) {
        const round_action *ask = get(ROUND_ASK);
        CHECK_INT(ask->epoch, 0);
        CHECK_INT(ask->parallelism, 2);
        CHECK_NEAR(ask->seconds, 3, 1e-9);
        count = round_tell(m, &actions);
    }
    round_close(m);
}

TEST(a_goal_ends_the_job_early)
{
    round_config c = config(1, 9);
    c.test_samples = 10;
    c.request.validate_every = 1;
    c.request.goal_accuracy = 90;
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_VALIDATED, .samples = 10, .correct = 9, .loss_sum = 1});
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    CHECK_STR(get(ROUND_FINISHED)->reason, "GoalReached");
    round_close(m);
}

TEST(stop_at_any_moment)
{
    round_config c = config(2, 1);
    begin(&c);
    step((round_event){.type = ROUND_STOP, .message = "by hand"});
    CHECK_INT(get(ROUND_FINISHED)->state, ROUND_CANCELLED);
    CHECK_STR(get(ROUND_FINISHED)->message, "by hand");
    round_close(m);
}

TEST(suspended_after_the_round_in_training)
{
    round_config c = config(2, 2);
    c.request.k = 2;
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_SUSPEND, .message = "by hand"});
    CHECK(!find(ROUND_FINISHED)); /* function 1 still trains */
    publish(&c, 1, 0, 0, 0);
    get(ROUND_MERGE);
    merged(0, 0, 1);
    CHECK_INT(get(ROUND_FINISHED)->state, ROUND_SUSPENDED);
    CHECK_STR(get(ROUND_FINISHED)->message, "by hand");
    CHECK_INT(get(ROUND_FINISHED)->epochs, 0);
    CHECK(!find(ROUND_TRAIN));
    round_close(m);
}

TEST(suspended_after_the_epoch_that_is_being_written)
{
    round_config c = config(1, 2);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    merged(0, 0, 1);
    get(ROUND_COMMIT);
    step((round_event){.type = ROUND_SUSPEND});
    CHECK(!find(ROUND_FINISHED));
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    CHECK_INT(get(ROUND_FINISHED)->state, ROUND_SUSPENDED);
    CHECK_INT(get(ROUND_FINISHED)->epochs, 1);
    round_close(m);
}

TEST(suspended_at_once_where_nobody_trains)
{
    round_config c = config(2, 1);
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    step((round_event){.type = ROUND_SUSPEND});
    CHECK_INT(get(ROUND_FINISHED)->state, ROUND_SUSPENDED);
    round_close(m);
    /* What is lost in the round is not waited for. */
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_SUSPEND});
    step((round_event){.type = ROUND_LOST, .function = 1, .incarnation = 0, .ended = true});
    CHECK_INT(get(ROUND_FINISHED)->state, ROUND_SUSPENDED);
    round_close(m);
}

/* Functions 0 to 2 in one process, which joined as function 0. */
static round_config begin_shared(void)
{
    round_config c = config(3, 2);
    c.functions_max = 3;
    c.request.k = 2;
    c.request.process = PROCESS_SHARED;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    CHECK_INT(number_of(ROUND_NEED), 1);
    CHECK_INT(get(ROUND_NEED)->function, 0);
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 0});
    CHECK_INT(get(ROUND_REFUSE)->code, ERR_STALE);
    join(0, 0);
    CHECK_INT(get(ROUND_INIT)->function, 0);
    step((round_event){.type = ROUND_INITIALISED, .function = 0, .incarnation = 0});
    return c;
}

TEST(functions_of_one_process_train_and_are_merged_as_one)
{
    round_config c = begin_shared();
    CHECK_INT(number_of(ROUND_TRAIN), 3);
    int slot = get(ROUND_TRAIN)->slot;
    for (size_t i = 0, f = 0; i < count; i++)
        if (actions[i].type == ROUND_TRAIN) {
            CHECK_INT(actions[i].function, (int)f++);
            CHECK_INT(actions[i].incarnation, 0);
            CHECK_INT(actions[i].slot, slot);
        }
    for (int f = 0; f < 3; f++) {
        CHECK(!find(ROUND_MERGE));
        publish(&c, f, 0, 0, 0);
    }
    const round_merge merge = get(ROUND_MERGE)->merge;
    CHECK(merge.as_one);
    CHECK_INT(merge.count, 3);
    CHECK_INT(merge.samples, 60);
    for (int f = 0; f < 3; f++)
        CHECK_INT(merge.rows[f].function, f);
    merged(0, 0, 1);
    CHECK_INT(number_of(ROUND_TRAIN), 3); /* of 4, 3 and 3 batches */
    CHECK_INT(get(ROUND_TRAIN)->batch_count, 2);
    round_close(m);
}

TEST(functions_of_one_process_are_lost_and_replaced_together)
{
    round_config c = begin_shared();
    for (int f = 0; f < 3; f++)
        publish(&c, f, 0, 0, 0);
    get(ROUND_MERGE);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_LOST, .function = 0, .incarnation = 0, .ended = true,
                       .reason = "Killed"});
    CHECK_INT(number_of(ROUND_NEED), 1);
    CHECK_INT(get(ROUND_NEED)->function, 0);
    CHECK_INT(get(ROUND_NEED)->incarnation, 1);
    CHECK_INT(number_of(ROUND_RELEASE), 1);
    publish(&c, 1, 0, 0, 1); /* of the process that is gone */
    join(0, 1);
    CHECK_INT(number_of(ROUND_TRAIN), 3);
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == ROUND_TRAIN)
            CHECK_INT(actions[i].incarnation, 1);
    for (int f = 0; f < 3; f++)
        publish(&c, f, 1, 0, 1);
    step((round_event){.type = ROUND_MERGE_FAILED, .code = ERR_CORRUPT, .epoch = 0, .round = 1,
                       .function = 0, .message = "a checksum"});
    CHECK_INT(number_of(ROUND_TRAIN), 3); /* none of them was merged */
    round_close(m);
}

/* It is heard of as function 0 alone, and works as long as any of them does. */
TEST(a_silent_process_is_a_loss_of_all_its_functions)
{
    begin_shared();
    for (int beat = 1; beat <= 40; beat++) {
        now += 4000;
        step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .incarnation = 0,
                           .phase = "train", .batches = (uint32_t)beat});
        CHECK(!find(ROUND_NEED));
    }
    now = round_deadline(m);
    step((round_event){.type = ROUND_TICK});
    CHECK_STR(get(ROUND_NEED)->reason, "Silent");
    CHECK_INT(number_of(ROUND_NEED), 1);
    CHECK_INT(number_of(ROUND_CLOSE), 1);
    round_close(m);
}

TEST(a_process_is_not_shared_by_some)
{
    err e = ERR_INIT;
    round_config c = config(3, 2);
    c.request.process = PROCESS_SHARED; /* of 4 */
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "parallelism: 3 functions of 4");
    c.functions_max = 3;
    c.request.static_parallelism = false;
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "parallelism");
    c.request.static_parallelism = true;
    const int plan[] = {3, 2};
    c.plan = plan;
    c.plan_epochs = 2;
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "plan: 2 functions");
}

TEST(wrong_configurations)
{
    err e = ERR_INIT;
    round_config c = config(5, 1);
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "parallelism: 5");
    c = config(1, 1);
    c.functions_max = 257;
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "functions_max: 257");
    c = config(1, 1);
    c.train_samples = 0;
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "samples: 0");
    c = config(1, 2);
    c.plan = (const int[]){1, 5};
    c.plan_epochs = 2;
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "plan: 5 functions in epoch 1");
    c.plan = (const int[]){1, 0};
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "plan: 0 functions in epoch 1");
    c.plan = (const int[]){1, 4};
    CHECK_OK(round_open(&c, &m, &e), e);
    round_close(m);
    c.plan = NULL;
    CHECK_ERR(round_open(&c, &m, &e), e, ERR_INVALID, "plan: missing");
}
