/* test_round.c: the round machine, step by step; the simulator has the schedules. */
#include <math.h>

#include "deal.h"
#include "round.h"
#include "test.h"
#include "text.h"

static round_machine *m;
static const round_action *actions;
static size_t count;
static int64_t now;

static round_config config(int parallelism, int epochs)
{
    round_config c = {.request = {.epochs = epochs,
                                  .batch_size = 10,
                                  .k = -1,
                                  .validate_every = 0,
                                  .goal_accuracy = 100,
                                  .static_parallelism = true,
                                  .seed = 3},
                      .parallelism = parallelism,
                      .functions_max = 4,
                      .train_samples = 100,
                      .chunk_samples = 10};
    round_limits_default(&c.limits);
    return c;
}

static void step(round_event e)
{
    e.now_ms = now;
    count = round_step(m, &e, &actions);
}

static const round_action *find(round_action_type type)
{
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == type)
            return &actions[i];
    return NULL;
}

static const round_action *get(round_action_type type)
{
    const round_action *a = find(type);
    if (!a)
        test_fail(__FILE__, __LINE__, "no action %s", round_action_name(type));
    return a;
}

static const round_action *told(const char *condition)
{
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == ROUND_CONDITION && strcmp(actions[i].name, condition) == 0)
            return &actions[i];
    return NULL;
}

static int number_of(round_action_type type)
{
    int n = 0;
    for (size_t i = 0; i < count; i++)
        n += actions[i].type == type;
    return n;
}

static void open_machine(const round_config *c)
{
    err e = ERR_INIT;
    now = 1000;
    CHECK_OK(round_open(c, &m, &e), e);
}

static void join(int f, int incarnation)
{
    step((round_event){.type = ROUND_HELLO, .function = f, .incarnation = incarnation});
    get(ROUND_WELCOME);
    step((round_event){.type = ROUND_READY, .function = f, .incarnation = incarnation,
                       .layout = "l", .algorithms = "a"});
}

/* To the first round with `functions` functions in training. */
static void begin(const round_config *c)
{
    open_machine(c);
    step((round_event){.type = ROUND_START});
    CHECK_INT(number_of(ROUND_NEED), c->parallelism);
    int first = c->generation * ROUND_GENERATION_STEP;
    for (int f = 0; f < c->parallelism; f++)
        join(f, first);
    step((round_event){.type = ROUND_INITIALISED, .function = 0, .incarnation = first});
    CHECK_INT(number_of(ROUND_TRAIN), c->parallelism);
}

static round_event report(const round_config *c, int f, int incarnation, int epoch, int round)
{
    deal d;
    err e = ERR_INIT;
    round_event p = {.type = ROUND_PUBLISHED, .function = f, .incarnation = incarnation,
                     .epoch = epoch, .round = round, .loss_sum = 1};
    uint32_t first;
    CHECK_OK(
        deal_init(&d,
                  &(deal_spec){.seed = 3, .samples = 100, .chunk_samples = 10, .batch_size = 10,
                               .parallelism = c->parallelism, .epoch = (uint32_t)epoch},
                  &e),
        e);
    deal_range(&d, f, c->request.k, (uint32_t)round, &first, &p.batches);
    deal_samples(&d, f, first, p.batches, &p.sample_begin, &p.sample_end);
    p.samples = p.sample_end - p.sample_begin;
    deal_free(&d);
    return p;
}

static void publish(const round_config *c, int f, int incarnation, int epoch, int round)
{
    step(report(c, f, incarnation, epoch, round));
}

static void merged(int epoch, int round, int64_t version)
{
    step((round_event){.type = ROUND_MERGED, .epoch = epoch, .round = round, .version = version});
}

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

TEST(a_lost_function_is_replaced_and_trains_the_same_again)
{
    round_config c = config(2, 1);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "Killed",
                       .message = "signal 9"});
    CHECK_INT(get(ROUND_NEED)->incarnation, 1);
    CHECK_INT(get(ROUND_RELEASE)->incarnation, 0);
    CHECK_STR(get(ROUND_CONDITION)->name, "FunctionLost");
    CHECK_CONTAINS(get(ROUND_CONDITION)->message, "signal 9");
    publish(&c, 1, 0, 0, 0); /* a late word of the dead one */
    CHECK(!find(ROUND_MERGE));
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 0});
    CHECK_INT(get(ROUND_REFUSE)->code, ERR_STALE);
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 1});
    int slot = get(ROUND_WELCOME)->slot;
    step((round_event){.type = ROUND_READY, .function = 1, .incarnation = 1, .layout = "l",
                       .algorithms = "a"});
    CHECK_INT(get(ROUND_TRAIN)->batch_begin, 0);
    CHECK_INT(get(ROUND_TRAIN)->slot, slot);
    publish(&c, 1, 1, 0, 0);
    CHECK_INT(get(ROUND_MERGE)->merge.rows[1].incarnation, 1);
    CHECK(get(ROUND_MERGE)->merge.rows[1].slot != get(ROUND_MERGE)->merge.rows[0].slot);
    round_close(m);
}

TEST(a_slot_is_used_again_only_after_its_process_ended)
{
    round_config c = config(1, 1);
    c.limits.losses_max = 100;
    begin(&c);
    step((round_event){.type = ROUND_LOST, .function = 0, .incarnation = 0});
    step((round_event){.type = ROUND_HELLO, .function = 0, .incarnation = 1});
    CHECK_INT(get(ROUND_WELCOME)->slot, 1); /* 0 may still be written to */
    step((round_event){.type = ROUND_LOST, .function = 0, .incarnation = 0, .ended = true});
    CHECK_INT(number_of(ROUND_NEED), 0);
    step((round_event){.type = ROUND_LOST, .function = 0, .incarnation = 1});
    step((round_event){.type = ROUND_HELLO, .function = 0, .incarnation = 2});
    CHECK_INT(get(ROUND_WELCOME)->slot, 0);
    round_close(m);
}

TEST(who_was_sent_home_is_not_lost)
{
    round_config c = config(2, 1);
    begin(&c);
    CHECK(!round_dismissed(m, 0, 0) && !round_dismissed(m, 1, 0));
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "Killed",
                       .message = "signal 9"});
    CHECK(!round_dismissed(m, 1, 0)); /* how it died is still to be told */
    CHECK(!round_dismissed(m, 1, 1)); /* awaited */
    step((round_event){.type = ROUND_STOP});
    CHECK(round_dismissed(m, 0, 0));
    CHECK(!round_dismissed(m, 1, 0));
    CHECK(round_dismissed(m, 1, 1));
    CHECK(round_dismissed(m, 99, 0) && round_dismissed(m, -1, 0));
    round_close(m);
}

TEST(on_loss_continue_merges_the_others_and_catches_up)
{
    round_config c = config(2, 1);
    c.request.on_loss = ON_LOSS_CONTINUE;
    c.request.k = 2; /* 5 batches each */
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "Killed", .message = ""});
    CHECK_INT(get(ROUND_MERGE)->merge.count, 1);
    CHECK_INT(get(ROUND_MERGE)->merge.samples, 20);
    CHECK(told("Exact") && !told("Exact")->status);
    CHECK_STR(told("Exact")->reason, "LeftOut");
    CHECK_CONTAINS(told("Exact")->message, "epoch 1, round 1 is merged without function 1");
    merged(0, 0, 1);
    publish(&c, 0, 0, 0, 1);
    merged(0, 1, 2);
    join(1, 1);
    publish(&c, 0, 0, 0, 2); /* its last batch */
    merged(0, 2, 3);
    CHECK_INT(get(ROUND_TRAIN)->function, 1);
    CHECK_INT(get(ROUND_TRAIN)->batch_begin, 0);
    for (int round = 3; round < 6; round++) {
        round_event p = report(&c, 1, 1, 0, round - 3);
        p.round = round;
        step(p);
        CHECK_INT(get(ROUND_MERGE)->merge.count, 1);
        merged(0, round, round + 1);
    }
    CHECK_INT(get(ROUND_COMMIT)->record.samples, 100);
    round_close(m);
}

TEST(silence_is_a_loss_but_not_when_we_slept_ourselves)
{
    round_config c = config(2, 1);
    begin(&c);
    while (now < 3500) {
        now += 500;
        step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .phase = "train", .batches = 1});
        CHECK(!find(ROUND_NEED));
    }
    CHECK_INT(round_deadline(m), 1000 + 3500);
    now = 1000 + 3500;
    step((round_event){.type = ROUND_TICK});
    CHECK_INT(get(ROUND_NEED)->function, 1);
    CHECK_STR(get(ROUND_NEED)->reason, "Silent");
    now += 60000; /* this process was stopped */
    step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .phase = "train", .batches = 2});
    CHECK(!find(ROUND_NEED));
    round_close(m);
}

static void hear_of(int functions)
{
    for (int f = 0; f < functions; f++)
        step((round_event){.type = ROUND_HEARTBEAT, .function = f, .batches = (uint32_t)now});
}

static void nobody_is_released(void)
{
    CHECK_INT(number_of(ROUND_RELEASE), 0);
    CHECK(!find(ROUND_FINISHED));
}

/* For ten seconds all are heard of. */
static void begin_with_four(const round_config *c)
{
    begin(c);
    for (int64_t end = now + 10000; now < end; now += 500)
        hear_of(4);
    now -= 500;
}

/* What the others have said lies in their sockets: it is read one by one, and time is looked at
 * when all is. */
TEST(nobody_is_silent_while_we_do_not_listen)
{
    static const int64_t pauses[] = {3500, 3501, 3750, 3751, 4000, 4500, 4501, 8000, 60000};
    round_config c = config(4, 1);
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        begin_with_four(&c);
        for (int time = 0; time < 2; time++) {
            now += pauses[i];
            for (int f = 0; f < 4; f++) {
                step((round_event){
                    .type = ROUND_HEARTBEAT, .function = f, .batches = (uint32_t)now});
                nobody_is_released();
            }
            step((round_event){.type = ROUND_TICK});
            nobody_is_released();
        }
        round_close(m);
    }
}

/* Where the whole machine stood still they have said nothing either. */
TEST(who_stood_still_with_us_is_not_silent)
{
    static const int64_t pauses[] = {4000, 8000};
    round_config c = config(4, 1);
    begin_with_four(&c);
    for (int i = 0; i < 2; i++) {
        now += pauses[i];
        step((round_event){.type = ROUND_TICK});
        nobody_is_released();
        CHECK_INT(round_deadline(m), now + c.limits.heartbeat_ms);
        now += 500;
        hear_of(4);
    }
    round_close(m);
}

/* The last one says nothing from the pause on. `late_ms`: of every tick. When it is found. */
static int64_t found_silent(int64_t pause_ms, int64_t late_ms)
{
    round_config c = config(4, 1);
    begin_with_four(&c);
    const int64_t since = now;
    now += pause_ms;
    for (;;) {
        const int64_t due = round_deadline(m) + late_ms;
        hear_of(3);
        nobody_is_released();
        if (now >= due) {
            step((round_event){.type = ROUND_TICK});
            if (find(ROUND_RELEASE))
                break;
        }
        CHECK(now < since + 60000);
        now = now < due && due < now + 500 ? due : now + 500;
    }
    CHECK_INT(number_of(ROUND_RELEASE), 1);
    CHECK_INT(get(ROUND_RELEASE)->function, 3);
    CHECK_STR(get(ROUND_NEED)->reason, "Silent");
    round_close(m);
    return now - since;
}

TEST(who_is_silent_is_found_all_the_same)
{
    CHECK_INT(found_silent(0, 0), 3500);
    CHECK_INT(found_silent(4000, 0), 4000 + 3500);
    CHECK(found_silent(0, 300) <= 2 * (3500 + 500)); /* by one who is always late */
}

/* As long as anybody waits: one function, the other, or who writes the checkpoint. */
TEST(a_store_that_functions_wait_for_is_named)
{
    round_config c = config(2, 1);
    begin(&c);
    round_event away = {.type = ROUND_HEARTBEAT, .phase = "train", .message = "store x: no answer"};
    step(away);
    CHECK_STR(get(ROUND_CONDITION)->name, "StoreUnavailable");
    CHECK_STR(get(ROUND_CONDITION)->reason, "StoreDown");
    CHECK(get(ROUND_CONDITION)->status);
    CHECK_STR(get(ROUND_CONDITION)->message, "function 0 waits: store x: no answer");
    away.function = 1;
    step(away);
    CHECK(!find(ROUND_CONDITION));
    step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .phase = "train"});
    CHECK(!find(ROUND_CONDITION));
    step((round_event){.type = ROUND_HEARTBEAT, .function = 1, .phase = "train"});
    CHECK(!get(ROUND_CONDITION)->status);
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_COMMIT_FAILED, .code = ERR_UNAVAILABLE, .message = "away"});
    CHECK(get(ROUND_CONDITION)->status);
    step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .phase = "wait"});
    CHECK(!find(ROUND_CONDITION)); /* the checkpoint is not written */
    step((round_event){.type = ROUND_COMMITTED, .epoch = 0});
    CHECK(!get(ROUND_CONDITION)->status);
    round_close(m);
}

/* Who waited is gone, and does not hold the condition up. */
TEST(a_lost_function_waits_for_no_store)
{
    round_config c = config(2, 1);
    begin(&c);
    step((round_event){.type = ROUND_HEARTBEAT, .function = 1, .message = "store x: no answer"});
    CHECK(get(ROUND_CONDITION)->status);
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "Killed", .message = "killed"});
    step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .phase = "train"});
    const round_action *a = get(ROUND_CONDITION);
    CHECK_STR(a->name, "StoreUnavailable");
    CHECK(!a->status);
    round_close(m);
}

TEST(a_straggler_is_named)
{
    round_config c = config(3, 1);
    begin(&c);
    now += 500;
    publish(&c, 0, 0, 0, 0);
    publish(&c, 2, 0, 0, 0);
    now += 1600;
    step((round_event){.type = ROUND_HEARTBEAT, .function = 1, .phase = "train", .batches = 1});
    CHECK_STR(get(ROUND_CONDITION)->name, "Straggler");
    CHECK(get(ROUND_CONDITION)->status);
    CHECK_CONTAINS(get(ROUND_CONDITION)->message, "function 1");
    publish(&c, 1, 0, 0, 0);
    CHECK(!get(ROUND_CONDITION)->status);
    get(ROUND_MERGE);
    round_close(m);
}

TEST(a_straggler_in_a_validation_is_named)
{
    round_config c = config(2, 1);
    c.test_samples = 25;
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    merged(0, 0, 1);
    now += 500;
    step((round_event){.type = ROUND_VALIDATED, .function = 0, .samples = 10, .correct = 9,
                       .loss_sum = 1});
    now += 1600;
    step((round_event){.type = ROUND_HEARTBEAT, .function = 1, .phase = "validate"});
    CHECK_STR(get(ROUND_CONDITION)->name, "Straggler");
    CHECK_CONTAINS(get(ROUND_CONDITION)->message,
                   "function 1 (incarnation 0) has not validated epoch 1");
    step((round_event){.type = ROUND_VALIDATED, .function = 1, .samples = 15, .correct = 9,
                       .loss_sum = 1});
    CHECK(!get(ROUND_CONDITION)->status);
    round_close(m);
}

static void expect_failure(const char *reason, const char *part)
{
    const round_action *end = get(ROUND_FINISHED);
    CHECK_INT(end->state, ROUND_FAILED_STATE);
    CHECK_STR(end->reason, reason);
    CHECK_CONTAINS(end->message, part);
    CHECK(round_finished(m));
    CHECK(round_deadline(m) == INT64_MAX);
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

TEST(bad_code_fails_at_once)
{
    round_config c = config(2, 1);
    begin(&c);
    step((round_event){.type = ROUND_FAILED, .function = 1, .reason = "NaNLoss",
                       .message = "epoch 0, batch 7"});
    expect_failure("NaNLoss", "function 1: epoch 0, batch 7");

    begin(&c);
    round_event p = report(&c, 0, 0, 0, 0);
    p.loss_sum = (double)NAN;
    step(p);
    expect_failure("NaNLoss", "function 0");

    open_machine(&c);
    step((round_event){.type = ROUND_START});
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){.type = ROUND_LOST, .function = 1, .message = "exit status 3"});
    CHECK(!find(ROUND_FINISHED)); /* once may be bad luck */
    step((round_event){.type = ROUND_LOST, .function = 1, .incarnation = 1,
                       .message = "exit status 3"});
    expect_failure("Crashed", "exit status 3");

    open_machine(&c);
    step((round_event){.type = ROUND_START});
    join(0, 0);
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){.type = ROUND_READY, .function = 1, .layout = "other", .algorithms = "a"});
    expect_failure("ShapeMismatch", "function 1");

    begin(&c);
    for (int i = 0; i < 4; i++) {
        step((round_event){.type = ROUND_LOST, .function = 0, .incarnation = i,
                           .message = "SIGSEGV"});
        CHECK(!find(ROUND_FINISHED));
        join(0, i + 1);
    }
    step((round_event){.type = ROUND_LOST, .function = 0, .incarnation = 4, .message = "SIGSEGV"});
    expect_failure("Crashed", "SIGSEGV");
}

/* A drain of one node after the other is no fault of the code. */
TEST(functions_that_the_cluster_ends_before_they_are_ready_are_tried_again)
{
    static const char *const reasons[] = {"EvictionByEvictionAPI", "Deleted", "NodeLost"};
    round_config c = config(2, 1);
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    join(0, 0);
    for (int i = 0; i < 3; i++) {
        step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = i});
        step((round_event){.type = ROUND_LOST, .function = 1, .incarnation = i, .ended = true,
                           .reason = reasons[i], .message = "node n1"});
        CHECK(!find(ROUND_FINISHED));
    }
    join(1, 3);
    CHECK(!find(ROUND_FINISHED));
    round_close(m);
}

TEST(a_crash_before_ready_is_not_tried_again)
{
    round_config c = config(2, 1);
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){
        .type = ROUND_LOST, .function = 1, .reason = "Crashed", .message = "ended by SIGSEGV"});
    expect_failure("Crashed", "function 1 crashed before it was ready: ended by SIGSEGV");

    /* Its connection ends before anybody knows how it ended. */
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "ConnectionLost"});
    CHECK(!find(ROUND_FINISHED));
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .ended = true,
                       .reason = "Crashed",
                       .message = "exited with status 3"});
    expect_failure("Crashed", "exited with status 3");

    /* Killed is bad luck, once. */
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "ConnectionLost"});
    step((round_event){.type = ROUND_LOST, .function = 1, .ended = true, .reason = "Killed"});
    CHECK(!find(ROUND_FINISHED));
    join(1, 1);
    CHECK(!find(ROUND_FINISHED));
    round_close(m);

    /* One that was ready had code that starts. */
    begin(&c);
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "ConnectionLost"});
    step((round_event){.type = ROUND_LOST, .function = 1, .ended = true, .reason = "Crashed"});
    CHECK(!find(ROUND_FINISHED));
    join(1, 1);
    CHECK(!find(ROUND_FINISHED));
    /* Nor is a second time bad luck, where nothing of it was merged in between. */
    step((round_event){
        .type = ROUND_LOST, .function = 1, .incarnation = 1, .reason = "ConnectionLost"});
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .incarnation = 1,
                       .ended = true,
                       .reason = "Crashed",
                       .message = "ended by SIGFPE"});
    expect_failure("Crashed", "function 1 crashed 2 times without a contribution: ended by SIGFPE");
}

TEST(a_store_that_is_away_is_tried_again_within_bounds)
{
    round_config c = config(1, 1);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    get(ROUND_MERGE);
    int tries = 0;
    while (!round_finished(m)) {
        step((round_event){.type = ROUND_MERGE_FAILED, .function = -1, .code = ERR_UNAVAILABLE,
                           .message = "connection refused"});
        if (tries++ == 0)
            CHECK_STR(get(ROUND_CONDITION)->name, "RedisGone");
        CHECK(tries < 100);
        if (round_finished(m))
            break;
        CHECK(round_deadline(m) > now);
        while (!find(ROUND_MERGE)) {
            now = round_deadline(m);
            step((round_event){.type = ROUND_HEARTBEAT, .phase = "wait", .batches = (uint32_t)now});
        }
    }
    CHECK(tries > 10);
    expect_failure("RedisGone", "connection refused");
}

TEST(a_corrupt_contribution_is_trained_again)
{
    round_config c = config(2, 1);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 0, 0, 0);
    step((round_event){.type = ROUND_MERGE_FAILED, .function = 1, .code = ERR_CORRUPT,
                       .message = "x"});
    CHECK_INT(number_of(ROUND_TRAIN), 1);
    CHECK_INT(get(ROUND_TRAIN)->function, 1);
    publish(&c, 1, 0, 0, 0);
    CHECK_INT(get(ROUND_MERGE)->merge.count, 2);
    round_close(m);
}

TEST(redis_restarted_empty_puts_back_and_redoes_the_round)
{
    round_config c = config(2, 2);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_REDIS_GONE, .message = "closed"});
    CHECK_STR(get(ROUND_CONDITION)->name, "RedisGone");
    step((round_event){.type = ROUND_REDIS_BACK, .empty = true});
    CHECK_INT(get(ROUND_PUT_BACK)->version, 0);
    CHECK(!find(ROUND_TRAIN));
    step((round_event){.type = ROUND_LOADED});
    CHECK_INT(get(ROUND_TRAIN)->function, 0);
    CHECK_INT(number_of(ROUND_TRAIN), 1);
    round_close(m);
}

/* Published once more it may be what Redis dies of; what is merged says that it is not. */
TEST(redis_that_dies_of_every_round_fails_the_job)
{
    round_config c = config(1, 2);
    c.request.k = 5;
    begin(&c);
    for (int ends = 1, round = 0; !round_finished(m); ends++) {
        CHECK(ends < 2 * c.limits.redis_ends_max);
        publish(&c, 0, 0, 0, round);
        if (ends == c.limits.redis_ends_max - 1)
            merged(0, round++, 1);
        step((round_event){.type = ROUND_REDIS_GONE, .message = "ended by signal 11"});
        CHECK_INT(round_finished(m), ends == 2 * c.limits.redis_ends_max - 2);
        if (round_finished(m))
            break;
        step((round_event){.type = ROUND_REDIS_GONE, .message = "it cannot be restarted yet"});
        step((round_event){.type = ROUND_REDIS_BACK, .empty = true});
        get(ROUND_PUT_BACK);
        step((round_event){.type = ROUND_LOADED});
    }
    expect_failure("RedisGone", "ended 5 times without a merged round: ended by signal 11");
}

TEST(redis_that_stays_away_is_said_with_its_reason)
{
    round_config c = config(2, 2);
    begin(&c);
    step((round_event){.type = ROUND_REDIS_GONE, .message = "ended by signal 9"});
    CHECK_CONTAINS(get(ROUND_CONDITION)->message, "signal 9");
    for (int i = 0; i < 2; i++) {
        step((round_event){.type = ROUND_REDIS_GONE,
                           .message = "it cannot be restarted: no memory"});
        CHECK_INT(number_of(ROUND_CONDITION), i == 0); /* news is told once */
    }
    now += c.limits.store_ms;
    step((round_event){.type = ROUND_TICK});
    expect_failure("RedisGone", "cannot be restarted: no memory");
}

/* A long checkpoint may hold a call to the old one for longer than Redis is waited for. */
TEST(redis_that_runs_again_is_not_given_up)
{
    round_config c = config(1, 2);
    begin(&c);
    step((round_event){.type = ROUND_REDIS_GONE, .message = "ended by signal 9"});
    step((round_event){.type = ROUND_REDIS_RUNS, .message = "runs again"});
    CHECK_STR(get(ROUND_CONDITION)->reason, "Restarted");
    const int64_t due = now + c.limits.store_ms;
    while (now < due) {
        now = round_deadline(m) < due ? round_deadline(m) : due;
        step((round_event){.type = ROUND_HEARTBEAT, .phase = "train", .batches = (uint32_t)now});
        CHECK(!find(ROUND_FINISHED));
    }
    step((round_event){.type = ROUND_REDIS_GONE, .message = "ended by signal 11"});
    CHECK_STR(get(ROUND_CONDITION)->reason, "RedisGone");
    now += c.limits.store_ms;
    step((round_event){.type = ROUND_TICK});
    expect_failure("RedisGone", "did not come back within 60 s: ended by signal 11");
}

/* Its numbers may be those of a round that is opened anew, of another deal. */
TEST(what_trains_on_a_state_that_was_lost_is_replaced)
{
    round_config c = config(2, 2);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_REDIS_GONE, .message = "connection refused"});
    step((round_event){.type = ROUND_REDIS_BACK, .empty = true});
    get(ROUND_PUT_BACK);
    round_resume older = {.epoch = 0, .parallelism = 2, .version = 0};
    step((round_event){.type = ROUND_LOADED, .resume = &older});
    CHECK_INT(number_of(ROUND_NEED), 1);
    CHECK_INT(get(ROUND_NEED)->function, 1);
    CHECK_INT(get(ROUND_NEED)->incarnation, 1);
    CHECK_INT(number_of(ROUND_TRAIN), 1); /* function 0 had published, and trains again */
    publish(&c, 1, 0, 0, 0);
    publish(&c, 0, 0, 0, 0);
    CHECK(!find(ROUND_MERGE));
    join(1, 1);
    publish(&c, 1, 1, 0, 0);
    get(ROUND_MERGE);
    round_close(m);
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
    CHECK(!told("FunctionLost")->status);
    CHECK_STR(told("FunctionLost")->reason, "Replaced");
    CHECK(!told("Straggler") && !told("Exact")); /* never were */
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
}
