/* test_round_trouble.c: the round machine where functions are lost, silent, slow or wrong, and
 * Redis or the store is away. */
#include <math.h>

#include "round_fixture.h"

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

static const char *lost_as(bool status)
{
    const round_action *a = get(ROUND_CONDITION);
    CHECK_STR(a->name, "FunctionLost");
    CHECK(a->status == status);
    return a->message;
}

/* How it ended comes by another way than that its connection did. */
TEST(how_often_functions_were_lost_is_told_and_how_the_last_one_ended)
{
    round_config c = config(2, 1);
    round_event cut = {
        .type = ROUND_LOST, .function = 1, .reason = "ConnectionLost", .message = "closed"};
    round_event end = {.type = ROUND_LOST,
                       .function = 1,
                       .reason = "Killed",
                       .message = "signal 9",
                       .ended = true};
    begin(&c);
    step(cut);
    CHECK_STR(lost_as(true), "function 1 (incarnation 0): closed");
    step(end);
    CHECK_STR(lost_as(true), "function 1 (incarnation 0): signal 9");
    CHECK_STR(get(ROUND_CONDITION)->reason, "Killed");
    join(1, 1);
    CHECK_STR(lost_as(false), "a function was lost: function 1: signal 9");
    CHECK_STR(get(ROUND_CONDITION)->reason, "Replaced");
    cut.incarnation = end.incarnation = 1;
    step(cut);
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 2});
    step((round_event){
        .type = ROUND_READY, .function = 1, .incarnation = 2, .layout = "l", .algorithms = "a"});
    CHECK_STR(told("FunctionLost")->message,
              "functions were lost 2 times, last: function 1: closed");
    end.message = "signal 11";
    step(end);
    CHECK_STR(lost_as(false), "functions were lost 2 times, last: function 1: signal 11");
    CHECK_STR(get(ROUND_CONDITION)->reason, "Replaced");
    CHECK_INT(round_losses(m), 2);
    round_close(m);
    open_machine(&c);
    step((round_event){.type = ROUND_START, .value = 2}); /* of kubeml-ps before this one */
    CHECK_INT(round_losses(m), 2);
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

/* What a process published before it died is merged, and not written over by the one after it. */
TEST(a_slot_is_used_again_only_when_what_it_holds_is_merged)
{
    round_config c = config(2, 2);
    begin(&c);
    publish(&c, 1, 0, 0, 0);
    step((round_event){.type = ROUND_LOST, .function = 1, .ended = true, .reason = "Killed"});
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 1});
    int next = get(ROUND_WELCOME)->slot;
    publish(&c, 0, 0, 0, 0);
    const round_merge *merge = &get(ROUND_MERGE)->merge;
    int merged_slot = merge->rows[1].slot;
    CHECK_INT(merge->count, 2);
    CHECK_INT(merge->rows[1].incarnation, 0);
    CHECK(next != merged_slot && next != merge->rows[0].slot);
    merged(0, 0, 1);
    step((round_event){.type = ROUND_LOST, .function = 1, .incarnation = 1, .reason = "Killed"});
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 2});
    CHECK_INT(get(ROUND_WELCOME)->slot, merged_slot);
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

/* Half seconds in which functions 0 and 1 are heard of, until `end`. Whoever is in `works` does
 * something new meanwhile, and the other the same all the time. Nobody is lost of it. */
static void hear_of_two(int64_t end, const bool works[2])
{
    while (now + 500 < end) {
        now += 500;
        for (int f = 0; f < 2; f++)
            step((round_event){.type = ROUND_HEARTBEAT,
                               .function = f,
                               .phase = "train",
                               .batches = works[f] ? (uint32_t)now : 1});
        step((round_event){.type = ROUND_TICK});
        nobody_is_released();
        CHECK(round_deadline(m) > now);
    }
}

static void expect_stalled(int function)
{
    now = round_deadline(m);
    step((round_event){.type = ROUND_TICK});
    CHECK_INT(number_of(ROUND_NEED), 1);
    CHECK_INT(get(ROUND_NEED)->function, function);
    CHECK_STR(get(ROUND_NEED)->reason, "Stalled");
    CHECK_CONTAINS(told("FunctionLost")->message, "no progress for 180 s in phase \"train\"");
    round_close(m);
}

TEST(who_is_heard_of_and_does_nothing_is_lost)
{
    round_config c = config(2, 1);
    begin(&c);
    const int64_t began = now;
    hear_of_two(began + 500 + c.limits.stall_ms, (bool[]){true, false});
    expect_stalled(1);
    CHECK_INT(now, began + 500 + c.limits.stall_ms); /* its first word was new */
}

/* Who has published waits for the others, as long as they take. */
TEST(who_has_nothing_to_do_does_not_stall)
{
    round_config c = config(2, 1);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    hear_of_two(now + 2 * c.limits.stall_ms, (bool[]){false, true});
    publish(&c, 1, 0, 0, 0);
    get(ROUND_MERGE);
    round_close(m);
}

/* Its functions stall together: function 0 has published, and one of the others not. */
TEST(a_process_of_several_functions_stalls_while_any_of_them_works)
{
    round_config c = config(2, 1);
    c.functions_max = 2;
    c.request.process = PROCESS_SHARED;
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    join(0, 0);
    step((round_event){.type = ROUND_INITIALISED});
    const int64_t began = now;
    publish(&c, 0, 0, 0, 0);
    hear_of_two(began + 500 + c.limits.stall_ms, (bool[]){false, false});
    expect_stalled(0);
}

/* A data set may take longer to load than a function may be silent. */
TEST(who_loads_for_long_is_heard_of)
{
    round_config c = config(2, 1);
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    for (int f = 0; f < 2; f++)
        step((round_event){.type = ROUND_HELLO, .function = f});
    hear_of_two(now + 60000, (bool[]){true, true});
    for (int f = 0; f < 2; f++)
        step((round_event){.type = ROUND_READY, .function = f, .layout = "l", .algorithms = "a"});
    CHECK_INT(number_of(ROUND_RELEASE), 0);
    round_close(m);
}

TEST(who_is_stuck_before_it_trains_is_lost)
{
    round_config c = config(2, 1);
    for (int made = 0; made < 2; made++) { /* while it loads, and while it makes the model */
        open_machine(&c);
        step((round_event){.type = ROUND_START});
        for (int f = 0; f < 2; f++)
            if (made || f == 0)
                join(f, 0);
        if (!made)
            step((round_event){.type = ROUND_HELLO, .function = 1});
        hear_of_two(now + 500 + c.limits.stall_ms, (bool[]){!made, made});
        expect_stalled(made ? 0 : 1);
    }
}

/* Nor does it count against who is awaited that nobody listened. */
TEST(who_is_awaited_has_the_time_that_we_stood_still)
{
    enum { PAUSE_MS = 400000 };
    round_config c = config(2, 1);
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    const int64_t began = now;
    join(0, 0);
    now = round_deadline(m) + PAUSE_MS;
    step((round_event){.type = ROUND_TICK});
    while (!find(ROUND_FINISHED) && now < began + 2 * c.limits.function_wait_ms) {
        now += 500;
        hear_of(1);
        step((round_event){.type = ROUND_TICK});
    }
    CHECK_INT(now, began + c.limits.function_wait_ms + PAUSE_MS);
    expect_failure("FunctionMissing", "function 1 (incarnation 0) did not join within 600 s");
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

/* Late is who takes twice as long as the median of those who are done, once these are half. */
TEST(who_takes_as_long_as_the_others_is_no_straggler)
{
    round_config c = config(4, 1);
    begin(&c);
    const int64_t began = now;
    now = began + 20000;
    hear_of(4);
    CHECK(!told("Straggler")); /* nobody is done */
    publish(&c, 1, 0, 0, 0);
    now = began + 30000;
    publish(&c, 3, 0, 0, 0);
    CHECK(!told("Straggler"));
    now = began + 59999;
    hear_of(4);
    CHECK(!told("Straggler"));
    now = began + 60000;
    step((round_event){.type = ROUND_HEARTBEAT, .function = 0});
    CHECK(told("Straggler")->status);
    CHECK_CONTAINS(told("Straggler")->message,
                   "function 2 (incarnation 0) has not published epoch 1, round 1; "
                   "the others took 30.0 s");
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

/* The next one is asked for after a while, and not as soon as the end of the one before is known.
 */
static void wait_for_gpu(int f, int incarnation, int64_t ms)
{
    int64_t until = now + ms;
    CHECK(!find(ROUND_NEED));
    step((round_event){.type = ROUND_LOST,
                       .function = f,
                       .incarnation = incarnation,
                       .reason = "Exited",
                       .message = "exit status 75",
                       .ended = true});
    for (; now < until; now += 100) {
        CHECK(!find(ROUND_NEED));
        for (int g = 0; g < 2; g++)
            step((round_event){.type = ROUND_HEARTBEAT, .function = g, .phase = "wait"});
        step((round_event){.type = ROUND_TICK});
    }
    CHECK(!find(ROUND_NEED));
    step((round_event){.type = ROUND_TICK});
    CHECK_INT(get(ROUND_NEED)->incarnation, incarnation + 1);
}

/* Another process may find the GPU in order, but not for ever; a share that is too small stays so.
 */
TEST(a_function_whose_gpu_failed_is_started_anew)
{
    round_config c = config(2, 1);
    round_event bad = {.type = ROUND_FAILED,
                       .code = ERR_UNAVAILABLE,
                       .reason = "GpuFailed",
                       .message = "running: the GPU says: an ECC error"};
    begin(&c);
    for (; bad.incarnation < 4; bad.incarnation++) {
        step(bad);
        CHECK(!find(ROUND_FINISHED) && find(ROUND_RELEASE));
        wait_for_gpu(0, bad.incarnation, 1000 << bad.incarnation);
        join(0, bad.incarnation + 1);
    }
    step(bad);
    expect_failure("GpuFailed", "lost 5 times without a contribution: GpuFailed: running: the GPU");

    begin(&c);
    bad.incarnation = 0;
    bad.reason = "GpuMemory", bad.code = ERR_LIMIT;
    step(bad);
    expect_failure("GpuMemory", "function 0: running");

    open_machine(&c);
    step((round_event){.type = ROUND_START});
    for (bad.code = ERR_NOMEM;; bad.incarnation++) { /* also one that cannot start there yet */
        step((round_event){.type = ROUND_HELLO, .incarnation = bad.incarnation});
        step(bad);
        if (bad.incarnation == 4)
            break;
        wait_for_gpu(0, bad.incarnation, 1000 << bad.incarnation);
    }
    expect_failure("GpuMemory", "lost 5 times without a contribution: GpuMemory: running");
}

/* A drain of one node after the other is no fault of the code. */
TEST(functions_that_the_cluster_ends_before_they_are_ready_are_tried_again)
{
    static const char *const reasons[] = {"EvictionByEvictionAPI", "Deleted",
                                          "ControllerRestarted"};
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
    round_close(m);

    /* Also where that is told behind the end of their connections. */
    open_machine(&c);
    step((round_event){.type = ROUND_START});
    join(0, 0);
    for (int i = 0; i < 4; i++) {
        step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = i});
        step((round_event){
            .type = ROUND_LOST, .function = 1, .incarnation = i, .reason = "ConnectionLost"});
        CHECK(!find(ROUND_FINISHED));
        for (int twice = 0; twice < 2; twice++)
            step((round_event){.type = ROUND_LOST,
                               .function = 1,
                               .incarnation = i,
                               .ended = true,
                               .reason = reasons[0],
                               .message = "node n1"});
        CHECK(!find(ROUND_FINISHED));
    }
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 4});
    step((round_event){
        .type = ROUND_LOST, .function = 1, .incarnation = 4, .reason = "ConnectionLost"});
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .incarnation = 4,
                       .ended = true,
                       .reason = reasons[0],
                       .message = "node n1"});
    expect_failure("Crashed", "function 1 was lost 5 times without a contribution");
}

/* Whose connection ends before it is ready, once too often if that was its own doing. */
static void lose_after_one_that_did_not_start(const round_config *c)
{
    open_machine(c);
    step((round_event){.type = ROUND_START});
    join(0, 0);
    step((round_event){.type = ROUND_HELLO, .function = 1});
    step((round_event){
        .type = ROUND_LOST, .function = 1, .ended = true, .reason = "Exited", .message = "75"});
    CHECK_INT(get(ROUND_NEED)->incarnation, 1);
    step((round_event){.type = ROUND_HELLO, .function = 1, .incarnation = 1});
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .incarnation = 1,
                       .reason = "ConnectionLost",
                       .message = "closed"});
    CHECK(!find(ROUND_FINISHED) && !find(ROUND_NEED));
}

TEST(how_one_ended_that_did_not_start_once_too_often_is_waited_for)
{
    round_config c = config(2, 1);
    round_event end = {.type = ROUND_LOST,
                       .function = 1,
                       .incarnation = 1,
                       .ended = true,
                       .reason = "Evicted",
                       .message = "node n1"};
    lose_after_one_that_did_not_start(&c);
    step(end);
    CHECK(!find(ROUND_FINISHED));
    CHECK_INT(get(ROUND_NEED)->incarnation, 2);
    join(1, 2);
    CHECK(!find(ROUND_FINISHED));
    round_close(m);

    lose_after_one_that_did_not_start(&c);
    end.reason = "Exited", end.message = "exited with status 75";
    step(end);
    CHECK(!find(ROUND_NEED));
    expect_failure("Crashed", "function 1 ended 2 times before it was ready: Exited: exited with");

    /* Not for ever. */
    lose_after_one_that_did_not_start(&c);
    CHECK_INT(round_deadline(m) - now, c.limits.end_wait_ms);
    now = round_deadline(m);
    step((round_event){.type = ROUND_TICK});
    CHECK(!find(ROUND_NEED));
    expect_failure("Crashed",
                   "function 1 ended 2 times before it was ready: ConnectionLost: closed");
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
    /* Nor is a second time bad luck, where nothing of it was merged in between. How the first ended
     * may come only now. */
    step((round_event){
        .type = ROUND_LOST, .function = 1, .incarnation = 1, .reason = "ConnectionLost"});
    CHECK(!find(ROUND_NEED)); /* the next might end before that is told */
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .incarnation = 1,
                       .ended = true,
                       .reason = "Crashed",
                       .message = "ended by SIGFPE"});
    expect_failure("Crashed", "function 1 crashed 2 times without a contribution: ended by SIGFPE");
}

/* It may be told so late that the next one has contributed; the one after that has crashed once then. */
TEST(a_crash_that_is_made_good_counts_no_more_when_it_is_told)
{
    round_config c = config(2, 2);
    begin(&c);
    step((round_event){.type = ROUND_LOST, .function = 1, .reason = "ConnectionLost"});
    join(1, 1);
    publish(&c, 0, 0, 0, 0);
    publish(&c, 1, 1, 0, 0);
    merged(0, 0, 1);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            step((round_event){.type = ROUND_LOST,
                               .function = 1,
                               .incarnation = 1,
                               .reason = "ConnectionLost"});
        step((round_event){.type = ROUND_LOST,
                           .function = 1,
                           .incarnation = i,
                           .ended = true,
                           .reason = "Crashed",
                           .message = "ended by SIGSEGV"});
        CHECK(!find(ROUND_FINISHED));
    }
    round_close(m);
}

/* A long job may lose a function every hour: what it contributed in between makes good for it. */
TEST(losses_between_contributions_are_not_added_up)
{
    static const char *const reasons[] = {"Killed", "Crashed"};
    for (int i = 0; i < 2; i++) {
        round_config c = config(2, 12);
        begin(&c);
        for (int epoch = 0; epoch < 10; epoch++) {
            step((round_event){.type = ROUND_LOST,
                               .function = 1,
                               .incarnation = epoch,
                               .ended = true,
                               .reason = reasons[i],
                               .message = "ended"});
            CHECK_INT(get(ROUND_NEED)->incarnation, epoch + 1);
            join(1, epoch + 1);
            publish(&c, 0, 0, epoch, 0);
            publish(&c, 1, epoch + 1, epoch, 0);
            merged(epoch, 0, epoch + 1);
            step((round_event){.type = ROUND_COMMITTED, .epoch = epoch});
        }
        CHECK_INT(round_losses(m), 10);
        round_close(m);
    }
}

/* On a cluster that tells how a pod ended a second later, others would be lost meanwhile. */
TEST(who_is_lost_again_and_again_waits_to_hear_how_it_ended)
{
    round_config c = config(2, 1);
    begin(&c);
    for (int i = 0; i < 4; i++) {
        step((round_event){
            .type = ROUND_LOST, .function = 1, .incarnation = i, .reason = "ConnectionLost"});
        int64_t lost_ms = now;
        while (!find(ROUND_NEED) && now < lost_ms + 60000) {
            now += 500;
            step((round_event){.type = ROUND_HEARTBEAT, .function = 0, .batches = (uint32_t)now});
            step((round_event){.type = ROUND_TICK});
        }
        CHECK_INT(now - lost_ms, i * c.limits.end_wait_ms); /* once, no time is lost */
        CHECK_INT(get(ROUND_NEED)->incarnation, i + 1);
        join(1, i + 1);
    }
    step((round_event){.type = ROUND_LOST,
                       .function = 1,
                       .incarnation = 4,
                       .reason = "ConnectionLost",
                       .message = "closed"});
    expect_failure("Crashed", "function 1 was lost 5 times without a contribution: ConnectionLost");
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

TEST(a_store_that_answers_again_is_said_to)
{
    round_config c = config(1, 2);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_MERGE_FAILED,
                       .function = -1,
                       .code = ERR_UNAVAILABLE,
                       .message = "connection refused"});
    CHECK(told("RedisGone")->status);
    now = round_deadline(m);
    step((round_event){.type = ROUND_TICK});
    get(ROUND_MERGE);
    merged(0, 0, 1);
    CHECK(!told("RedisGone")->status);
    CHECK_STR(told("RedisGone")->reason, "Answers");
    round_close(m);
}

/* The model that a job begins with, on a disk that is away for a while. */
TEST(what_cannot_be_read_to_begin_with_is_tried_again_within_bounds)
{
    for (int without = 0; without < 2; without++) {
        round_config c = config(1, 1);
        round_action_type asks = without ? ROUND_INIT : ROUND_LOAD;
        snprintf(c.request.init, sizeof c.request.init, "other");
        snprintf(c.request.init_without, sizeof c.request.init_without, "%s", without ? "fc" : "");
        open_machine(&c);
        step((round_event){.type = ROUND_START});
        join(0, 0);
        int64_t began = now;
        int tries = 0;
        for (; find(asks) && tries < 99; tries++) {
            step((round_event){.type = ROUND_LOAD_FAILED, .code = ERR_IO, .message = "I/O"});
            while (!round_finished(m) && !find(asks)) {
                now += 50;
                step((round_event){
                    .type = ROUND_HEARTBEAT, .phase = "wait", .batches = (uint32_t)now});
            }
        }
        CHECK(tries > 10 && tries < 99 && now - began >= c.limits.store_ms);
        expect_failure("StoreDown", "I/O");
    }
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
    CHECK_INT(get(ROUND_RESTORE)->version, 0);
    CHECK(!find(ROUND_TRAIN));
    step((round_event){.type = ROUND_LOADED});
    CHECK_INT(get(ROUND_TRAIN)->function, 0);
    CHECK_INT(number_of(ROUND_TRAIN), 1);
    round_close(m);
}

/* That what is to be put back cannot be read; up to the next try. */
static void unreadable(void)
{
    step(
        (round_event){.type = ROUND_LOAD_FAILED, .function = -1, .code = ERR_IO, .message = "I/O"});
    while (!round_finished(m) && !find(ROUND_RESTORE)) {
        now += 50;
        step((round_event){.type = ROUND_HEARTBEAT, .phase = "wait", .batches = (uint32_t)now});
    }
}

/* A checkpoint on a disk that is away for a while is as whole as ever. */
TEST(what_cannot_be_read_to_be_put_back_is_tried_again)
{
    round_config c = config(2, 2);
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    step((round_event){.type = ROUND_REDIS_GONE, .message = "closed"});
    step((round_event){.type = ROUND_REDIS_BACK, .empty = true});
    CHECK(!get(ROUND_RESTORE)->last);
    unreadable();
    CHECK(!get(ROUND_RESTORE)->last);
    step((round_event){.type = ROUND_LOADED});
    CHECK_INT(get(ROUND_TRAIN)->function, 0);
    round_close(m);
}

/* The last try is told that it is, however long the one before took. */
/* Every loss has its own time. */
TEST(redis_that_is_lost_again_is_put_back_as_the_first_time)
{
    round_config c = config(1, 2);
    begin(&c);
    for (int i = 0; i < 3; i++) {
        step((round_event){.type = ROUND_REDIS_GONE, .message = "closed"});
        step((round_event){.type = ROUND_REDIS_BACK, .empty = true});
        for (int tries = 0; tries < 3; tries++) {
            CHECK(!get(ROUND_RESTORE)->last);
            unreadable();
        }
        step((round_event){.type = ROUND_LOADED});
        now += c.limits.store_ms;
        step((round_event){.type = ROUND_HEARTBEAT, .batches = (uint32_t)now});
    }
    round_close(m);
}

TEST(what_can_never_be_read_is_passed_over_by_the_last_try)
{
    for (int slow = 0; slow < 2; slow++) {
        round_config c = config(2, 2);
        begin(&c);
        publish(&c, 0, 0, 0, 0);
        step((round_event){.type = ROUND_REDIS_GONE, .message = "closed"});
        step((round_event){.type = ROUND_REDIS_BACK, .empty = true});
        int64_t began = now;
        int tries = 0;
        for (; !get(ROUND_RESTORE)->last && tries < 99; tries++) {
            if (slow && tries == 1)
                now += c.limits.store_ms;
            unreadable();
        }
        CHECK(tries < 99 && now - began >= c.limits.store_ms);
        CHECK(now - began < c.limits.store_ms + 4000);
        unreadable();
        CHECK(get(ROUND_FINISHED)->state == ROUND_FAILED_STATE);
        CHECK_STR(get(ROUND_FINISHED)->reason, "RedisGone");
        round_close(m);
    }
}

/* Published once more it may be what Redis dies of; what is merged says that it is not. */
/* A checkpoint is read from Redis: one that is due while it is away is written when it is back. */
TEST(an_epoch_that_ends_while_redis_is_away_is_committed_when_it_is_back)
{
    round_config c = config(1, 2);
    c.test_samples = 10;
    c.request.validate_every = 1;
    begin(&c);
    publish(&c, 0, 0, 0, 0);
    merged(0, 0, 1);
    CHECK_INT(number_of(ROUND_VALIDATE), 1);
    step((round_event){.type = ROUND_REDIS_GONE, .message = "closed"});
    step((round_event){
        .type = ROUND_VALIDATED, .epoch = 0, .samples = 10, .correct = 9, .loss_sum = 1});
    CHECK(!find(ROUND_COMMIT));
    now += 1000;
    step((round_event){.type = ROUND_HEARTBEAT, .batches = 1});
    CHECK(!find(ROUND_COMMIT));
    step((round_event){.type = ROUND_REDIS_BACK});
    CHECK_INT(get(ROUND_COMMIT)->record.version, 1);
    CHECK_NEAR(get(ROUND_COMMIT)->record.accuracy, 90, 1e-9);
    round_close(m);
}

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
        get(ROUND_RESTORE);
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
    get(ROUND_RESTORE);
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
