/* test_ps.c: kubeml-ps with a real redis-server, a real store and functions that add numbers. What
 * goes on in another kubeml-ps: test_ps_resume.c. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/modelstore/layout.h"
#include "ps_world.h"
#include "small_disk.h"
#include "test.h"

TEST_LIMIT(a_whole_job, 60)
{
    world w;
    char sha256[65];
    world_start(&w, &(world_options){.epochs = 3});
    for (int epoch = 0; epoch < 3; epoch++) {
        json_t *m = world_wait(&w, "epoch");
        CHECK_INT(json_integer_value(json_object_get(m, "epoch")), epoch);
        CHECK_INT(json_integer_value(json_object_get(m, "samples")), 100);
        CHECK_NEAR(json_real_value(json_object_get(m, "accuracy")), 50, 5);
    }
    world_finish(&w, "succeeded", sha256);
    CHECK_INT(strlen(sha256), 64);
    json_t *record = world_history(&w);
    CHECK_STR(json_string_value(json_object_get(record, "sha256")), sha256);
    CHECK_INT(json_array_size(json_object_get(json_object_get(record, "data"), "accuracy")), 3);
    world_check_shares(record, 3, 100);
    json_decref(record);
    world_end(&w);
}

static void same_bits(const world_options *o, const char *want)
{
    world w;
    char got[65];
    world_start(&w, o);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    json_t *record = world_history(&w);
    world_check_shares(record, w.o.epochs, w.o.samples);
    json_decref(record);
    world_end(&w);
}

TEST_LIMIT(both_merges_and_carriers_give_the_same_bits, 60)
{
    char want[65];
    world_calm(&(world_options){.epochs = 2}, want);
    same_bits(&(world_options){.job = "server", .merge = "server"}, want);
    same_bits(&(world_options){.job = "socket", .tensor_path = "socket"}, want);
    same_bits(&(world_options){.job = "both", .tensor_path = "socket", .merge = "server"}, want);
}

TEST_LIMIT(between_pods_everything_goes_over_tcp, 60)
{
    char want[65];
    world_calm(&(world_options){.epochs = 2}, want);
    same_bits(&(world_options){.job = "tcp", .tensor_path = "socket", .tcp = true}, want);
}

TEST_LIMIT(other_numbers_give_other_bits, 60)
{
    world w;
    char one[65], other[65];
    world_calm(&(world_options){.epochs = 2}, one);
    world_start(&w, &(world_options){.job = "other", .epochs = 2, .functions = 2});
    world_finish(&w, "succeeded", other);
    CHECK(strcmp(one, other) != 0);
    world_end(&w);
}

/* ---- functions that end -------------------------------------------------------------------- */

static void lose_of(const world_options *o)
{
    world w;
    char want[65], got[65];
    world_calm(o, want);
    world_start(&w, o);
    world_finish(&w, "succeeded", got);
    CHECK_INT(w.deaths, 1);
    CHECK(world_told_condition(&w, "FunctionLost"));
    CHECK_STR(got, want);
    json_t *record = world_history(&w);
    world_check_shares(record, w.o.epochs, w.o.samples);
    json_decref(record);
    world_end(&w);
}

static void lose(const char *fault, int function, int epoch, int round)
{
    lose_of(&(world_options){.job = "loss",
                             .epochs = 2,
                             .fault = fault,
                             .fault_function = function,
                             .fault_epoch = epoch,
                             .fault_round = round});
}

TEST_LIMIT(a_function_dies_while_it_loads, 60)
{
    lose("load", 1, 0, 0);
}
TEST_LIMIT(function_0_dies_before_it_made_the_model, 60)
{
    lose("init", 0, -1, 0);
}
TEST_LIMIT(a_function_dies_before_it_fetches, 60)
{
    lose("fetch", 2, 1, 0);
}
TEST_LIMIT(a_function_dies_while_it_trains, 60)
{
    lose("train", 0, 0, 1);
}
TEST_LIMIT(a_function_dies_half_way_through_a_publish, 60)
{
    lose("publish", 1, 0, 1);
}
/* Two of the three chunks that its numbers travel in have left. */
TEST_LIMIT(a_function_dies_between_the_chunks_of_a_publish, 60)
{
    static const char *const merges[] = {"database", "server"};
    for (int i = 0; i < 2; i++)
        lose_of(&(world_options){.job = merges[i],
                                 .epochs = 1,
                                 .tensor_path = "socket",
                                 .merge = merges[i],
                                 .samples = 48,
                                 .floats = 150000,
                                 .fault = "chunk",
                                 .fault_function = 1,
                                 .fault_round = 1});
}
TEST_LIMIT(a_function_dies_before_it_says_published, 60)
{
    lose("published", 2, 0, 0);
}
TEST_LIMIT(a_function_dies_while_it_waits, 60)
{
    lose("wait", 1, 1, 1);
}
TEST_LIMIT(a_function_dies_while_it_validates, 60)
{
    lose("validate", 1, 0, 0);
}
TEST_LIMIT(a_frozen_function_is_replaced, 60)
{
    lose("freeze", 1, 0, 1);
}

/* They have been heard of for longer than they may be silent, but nobody listened. */
TEST_LIMIT(a_frozen_kubeml_ps_loses_nobody, 60)
{
    world w;
    world_start(&w, &(world_options){.job = "still", .failpoint = "before-merge:2:stop"});
    world_hold(&w);
    poll(NULL, 0, 4000); /* so long it stands still */
    world_go_on(&w);
    world_finish(&w, "succeeded", NULL);
    CHECK_INT(w.deaths, 0);
    CHECK(!world_told_condition(&w, "FunctionLost"));
    world_end(&w);
}

/* The lost share comes in later rounds: other bits, but each sample once. */
TEST_LIMIT(on_loss_continue_trains_the_rest_later, 60)
{
    world w;
    world_start(&w, &(world_options){.fault = "train",
                                     .fault_function = 1,
                                     .fault_round = 1,
                                     .on_loss = "continue"});
    world_finish(&w, "succeeded", NULL);
    CHECK_INT(w.deaths, 1);
    CHECK(world_told_condition(&w, "Exact"));
    json_t *record = world_history(&w);
    world_check_shares(record, 2, 100);
    json_decref(record);
    world_end(&w);
}

/* ---- what a job's start ends with --------------------------------------------------------- */

/* Where in what the controller was told the next message of that type stands, from `from` on. */
static size_t told_at(const world *w, const char *type, size_t from)
{
    for (size_t i = from; i < json_array_size(w->told); i++)
        if (strcmp(wire_type(json_array_get(w->told, i)), type) == 0)
            return i;
    return json_array_size(w->told);
}

/* While there is no function, and the keeper waits. */
TEST_LIMIT(it_says_something_all_the_time, 60)
{
    world w;
    char waits[300];
    err e = ERR_INIT;
    snprintf(waits, sizeof waits, "%s/waits", test_tmp());
    CHECK_INT(setenv("KUBEML_FAILPOINT_FILE", waits, 1), 0);
    world_start(&w, &(world_options){.deaf = true, .failpoint = "opened:1:wait"});
    for (int i = 0; i < 3; i++) {
        const json_t *m = world_wait(&w, "usage");
        CHECK_INT(json_array_size(json_object_get(m, "functions")), 0);
    }
    CHECK(access(waits, F_OK) == 0);
    CHECK_INT(unlink(waits), 0);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", ""), e);
    world_finish(&w, "cancelled", NULL);
    world_end(&w);
}

/* Once, before any epoch; and before the first merge, where a function's heartbeat says it. */
static void begin(const char *fault)
{
    world w;
    world_start(&w, &(world_options){.functions = 1, .fault = fault});
    world_finish(&w, "succeeded", NULL);
    size_t at = told_at(&w, "begun", 0), told = json_array_size(w.told);
    CHECK(at < told_at(&w, "epoch", 0));
    CHECK_INT(told_at(&w, "begun", at + 1), told);
    if (fault)
        CHECK(at < told_at(&w, "condition", 0)); /* FunctionLost */
    world_end(&w);
}

TEST_LIMIT(the_first_batch_is_told, 60)
{
    begin(NULL);
    begin("begun");
}

/* ---- functions that are wrong -------------------------------------------------------------- */

static void go_wrong(const char *fault, const char *reason, const char *message)
{
    world w;
    world_start(&w, &(world_options){.fault = fault, .fault_function = 1, .fault_round = 1});
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "state")), "failed");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), reason);
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), message);
    w.waited--;
    world_finish(&w, "failed", NULL);
    world_end(&w);
}

TEST_LIMIT(nan_in_a_publication_fails_the_job, 60)
{
    go_wrong("nan", "NaNLoss", "function 1");
}
TEST_LIMIT(a_function_that_says_failed_fails_the_job, 60)
{
    go_wrong("nanloss", "NaNLoss", "the loss is not a number");
}
/* Its end comes by another connection, and may be read first. */
TEST_LIMIT(a_function_that_says_failed_and_ends_fails_the_job, 60)
{
    go_wrong("lastwords", "NaNLoss", "the loss is not a number");
}
TEST_LIMIT(another_layout_fails_the_job, 60)
{
    go_wrong("shape", "ShapeMismatch", "function");
}

/* Whose schedule does not go by them is spared what grows with every epoch. */
TEST_LIMIT(validation_losses_are_sent_to_who_needs_them, 60)
{
    for (int needs = 0; needs < 2; needs++) {
        world w;
        world_start(&w, &(world_options){
                            .job = needs ? "needs" : "spared", .epochs = 3, .needs_losses = needs});
        world_finish(&w, "succeeded", NULL);
        world_end(&w);
    }
}

TEST_LIMIT(a_function_that_talks_nonsense_is_replaced, 60)
{
    world w;
    char want[65], got[65];
    const world_options o = {.job = "nonsense", .fault = "garbage", .fault_function = 1};
    world_calm(&o, want);
    world_start(&w, &o);
    world_finish(&w, "succeeded", got);
    CHECK(world_told_condition(&w, "FunctionLost"));
    CHECK_STR(got, want);
    world_end(&w);
}

/* ---- Redis ends ---------------------------------------------------------------------------- */

/* At that failpoint, or as soon as functions are asked for. */
static void kill_redis(const world_options *like, const char *failpoint)
{
    world w;
    char want[65], got[65];
    world_options o = *like;
    o.epochs = 3;
    o.job = "redis";
    world_calm(&o, want);
    o.failpoint = failpoint;
    world_start(&w, &o);
    if (failpoint)
        world_hold(&w);
    else
        world_wait(&w, "need");
    pid_t redis = world_redis(&w);
    CHECK(redis > 0 && kill(redis, SIGKILL) == 0);
    world_go_on(&w);
    world_finish(&w, "succeeded", got);
    CHECK(world_told_condition(&w, "RedisGone"));
    CHECK_STR(got, want);
    world_end(&w);
}

TEST_LIMIT(redis_dies_at_the_start, 60)
{
    kill_redis(&(world_options){.k = 1}, NULL);
}
/* Before there is a model, with its layout alone in it: in whichever way the model travels. */
TEST_LIMIT(redis_dies_when_the_model_is_created, 60)
{
    kill_redis(&(world_options){.k = 1}, "created:1:stop");
}
TEST_LIMIT(redis_dies_when_the_model_is_created_in_it, 60)
{
    kill_redis(&(world_options){.k = 1, .tensor_path = "socket"}, "created:1:stop");
}
TEST_LIMIT(redis_dies_when_the_model_is_created_for_a_server_merge, 60)
{
    kill_redis(&(world_options){.k = 1, .merge = "server"}, "created:1:stop");
}
/* Of another job's weights and what function 0 drew beside them: with the drawn ones alone in it,
 * before and after those are copied, and with both. */
static void kill_redis_with_weights(const char *tensor_path, const char *failpoint)
{
    world w;
    world_start(&w, &(world_options){.job = "first", .epochs = 1});
    world_finish(&w, "succeeded", NULL);
    world_end(&w);
    kill_redis(
        &(world_options){
            .k = 1, .tensor_path = tensor_path, .init = "first", .init_without = "fc.weight"},
        failpoint);
}
TEST_LIMIT(redis_dies_with_what_was_drawn_beside_weights, 60)
{
    kill_redis_with_weights("shm", "before-copy:1:stop");
}
TEST_LIMIT(redis_dies_before_weights_are_laid_over, 60)
{
    kill_redis_with_weights("shm", "before-weights:1:stop");
}
TEST_LIMIT(redis_dies_before_weights_are_laid_over_in_it, 60)
{
    kill_redis_with_weights("socket", "before-weights:1:stop");
}
TEST_LIMIT(redis_dies_after_weights_are_laid_over, 60)
{
    kill_redis_with_weights("shm", "after-weights:1:stop");
}
TEST_LIMIT(redis_dies_after_weights_are_laid_over_in_it, 60)
{
    kill_redis_with_weights("socket", "after-weights:1:stop");
}
/* With a merge that only it has. */
TEST_LIMIT(redis_dies_with_the_initial_model_in_the_segment, 60)
{
    kill_redis(&(world_options){.k = 1}, "before-copy:1:stop");
}
TEST_LIMIT(redis_dies_before_the_initial_model_is_copied, 60)
{
    kill_redis(&(world_options){.k = 1, .tensor_path = "socket"}, "before-copy:1:stop");
}
TEST_LIMIT(redis_dies_before_a_merge_of_the_first_epoch_is_copied, 60)
{
    kill_redis(&(world_options){.k = 1, .tensor_path = "socket"}, "before-copy:4:stop");
}
TEST_LIMIT(redis_dies_before_a_merge_of_the_second_epoch_is_copied, 60)
{
    kill_redis(&(world_options){.k = 1, .tensor_path = "socket"}, "before-copy:15:stop");
}
TEST_LIMIT(redis_dies_before_a_server_merge_is_copied, 60)
{
    kill_redis(&(world_options){.k = 1, .tensor_path = "socket", .merge = "server"},
               "before-copy:4:stop");
}
TEST_LIMIT(redis_dies_between_epochs, 60)
{
    kill_redis(&(world_options){.k = 1}, "after-checkpoint:1:stop");
}
/* It runs again long before the checkpoint is written; only then is it spoken to. */
TEST_LIMIT(redis_dies_in_a_checkpoint_and_is_back_before_it_ends, 60)
{
    world w;
    char want[65], got[65], waits[300];
    world_options o = {.k = 1};
    world_calm(&o, want);
    snprintf(waits, sizeof waits, "%s/waits", test_tmp());
    CHECK_INT(setenv("KUBEML_FAILPOINT_FILE", waits, 1), 0);
    o.job = "redis";
    o.failpoint = "mid-checkpoint:1:wait";
    world_start(&w, &o);
    json_t *m;
    do
        m = world_wait(&w, "phase");
    while (strcmp(json_string_value(json_object_get(m, "phase")), "checkpointing") != 0);
    for (int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS); access(waits, F_OK) != 0;) {
        CHECK(clock_monotonic_ms() < deadline);
        usleep(2000);
    }
    pid_t redis = world_redis(&w);
    CHECK(redis > 0 && kill(redis, SIGKILL) == 0);
    do
        m = world_wait(&w, "condition");
    while (strcmp(json_string_value(json_object_get(m, "reason")), "Restarted") != 0);
    CHECK_INT(unlink(waits), 0);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}
TEST_LIMIT(redis_dies_under_a_server_merge, 60)
{
    kill_redis(&(world_options){.k = 1, .merge = "server"}, "before-merge:12:stop");
}
TEST_LIMIT(redis_dies_with_all_tensors_in_it, 60)
{
    kill_redis(&(world_options){.k = 1, .tensor_path = "socket"}, "before-merge:12:stop");
}

/* It stands still, and its connections with it: in the middle of training, for that long. */
static void stop_redis(const char *merge, int ms, bool *gone)
{
    world w;
    char want[65], got[65];
    world_options o = {.k = 1, .epochs = 3, .merge = merge, .tensor_path = "socket"};
    world_calm(&o, want);
    o.job = "redis";
    o.failpoint = "before-merge:12:stop";
    world_start(&w, &o);
    world_hold(&w);
    pid_t redis = world_redis(&w);
    CHECK(redis > 0 && kill(redis, SIGSTOP) == 0);
    world_go_on(&w);
    if (ms) {
        poll(NULL, 0, ms);
        CHECK_INT(kill(redis, SIGCONT), 0);
    } else {
        const json_t *m;
        for (int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS);;) {
            m = world_wait(&w, "condition");
            if (strstr(json_string_value(json_object_get(m, "message")),
                       "answered nothing for 45 s"))
                break;
            CHECK(clock_monotonic_ms() < deadline);
        }
    }
    world_finish(&w, "succeeded", got);
    *gone = world_told_condition(&w, "RedisGone");
    CHECK(!world_told_condition(&w, "FunctionLost"));
    CHECK_STR(got, want);
    world_end(&w);
}
TEST_LIMIT(redis_that_hangs_is_killed, 120)
{
    bool gone;
    stop_redis("database", 0, &gone);
    CHECK(gone);
}
TEST_LIMIT(redis_that_hangs_under_a_server_merge_is_killed, 120)
{
    bool gone;
    stop_redis("server", 0, &gone);
    CHECK(gone);
}
TEST_LIMIT(redis_that_stands_still_for_a_while_is_waited_for, 120)
{
    bool gone;
    stop_redis("database", 30000, &gone);
    CHECK(!gone);
}

/* Again, while the model is put back into it: what we hold of it is as good as before, and the
 * epoch is not begun anew from its checkpoint. */
TEST_LIMIT(redis_dies_while_the_model_is_put_back, 60)
{
    world w;
    char want[65], got[65];
    world_options o = {.k = 1, .epochs = 3, .tensor_path = "socket"};
    int begun = 0;
    world_calm(&o, want);
    o.job = "redis";
    o.failpoint = "before-merge:12:stop,chunk-sent:1:stop"; /* 9 merges are an epoch */
    world_start(&w, &o);
    for (int i = 0; i < 2; i++) {
        world_hold(&w);
        pid_t redis = world_redis(&w);
        CHECK(redis > 0 && kill(redis, SIGKILL) == 0);
        world_go_on(&w);
    }
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    for (size_t i = 0; i < json_array_size(w.told); i++) {
        const char *phase = "";
        int epoch = -1, round = -1;
        json_unpack(json_array_get(w.told, i), "{s:s,s:i,s:i}", "phase", &phase, "epoch", &epoch,
                    "round", &round);
        begun += strcmp(phase, "training") == 0 && epoch == 1 && round == 0;
    }
    CHECK_INT(begun, 1);
    CHECK(!world_told_condition(&w, "FunctionLost"));
    world_end(&w);
}

/* In a pod Redis is a container of its own: the kubelet starts it anew, empty, with the old
 * password. */
static const world_options in_a_pod = {
    .k = 1, .tensor_path = "socket", .tcp = true, .container = true};

TEST_LIMIT(redis_in_its_own_container_gives_the_same_bits, 60)
{
    char want[65];
    world_calm(&(world_options){.epochs = 2}, want);
    same_bits(
        &(world_options){.job = "pod", .tensor_path = "socket", .tcp = true, .container = true},
        want);
}
TEST_LIMIT(the_container_of_redis_dies_at_the_start, 60)
{
    kill_redis(&in_a_pod, NULL);
}
TEST_LIMIT(the_container_of_redis_dies_between_epochs, 60)
{
    kill_redis(&in_a_pod, "after-checkpoint:1:stop");
}

/* Its kubelet finds that and kills it, later than calls to it have a deadline: as often as
 * charts/kubeml's probe must fail. */
TEST_LIMIT(the_container_of_redis_hangs, 200)
{
    world w;
    char want[65], got[65];
    world_options o = in_a_pod;
    world_calm(&o, want);
    o.job = "redis";
    o.failpoint = "before-merge:5:stop";
    world_start(&w, &o);
    world_hold(&w);
    CHECK_INT(world_ping_redis(&w), 0);
    pid_t redis = world_redis(&w);
    CHECK(redis > 0 && kill(redis, SIGSTOP) == 0);
    world_go_on(&w);
    for (int i = 0; i < 7; i++) {
        int64_t next_ms = clock_deadline_ms(10000);
        CHECK_INT(world_ping_redis(&w), err_exit_status(ERR_TIMEOUT));
        if (i < 6)
            poll(NULL, 0, clock_left_ms(next_ms)); /* the probe's period */
    }
    CHECK_INT(kill(redis, SIGKILL), 0);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    CHECK_INT(world_ping_redis(&w), err_exit_status(ERR_UNAVAILABLE));
    world_end(&w);
}

/* ---- controllers --------------------------------------------------------------------------- */

TEST_LIMIT(a_controller_comes_back, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    const world_options o = {.job = "attach", .epochs = 4};
    world_calm(&o, want);
    world_start(&w, &o);
    world_wait(&w, "epoch");
    world_dial(&w); /* the old connection is closed without a word */
    json_array_clear(w.told);
    w.waited = 0;
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s,s:i}", "type", "attach", "id", "attach",
                        "after_epoch", -1),
             e);
    world_wait(&w, "access");
    for (int epoch = 0; epoch < 4; epoch++)
        CHECK_INT(json_integer_value(json_object_get(world_wait(&w, "epoch"), "epoch")), epoch);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}

TEST_LIMIT(attaching_after_the_end_tells_the_end, 60)
{
    world w;
    err e = ERR_INIT;
    world_start(&w, &(world_options){.epochs = 2});
    world_wait(&w, "finished");
    world_dial(&w);
    json_array_clear(w.told);
    w.waited = 0;
    CHECK_OK(
        wire_sendf(w.wire, &e, "{s:s,s:s,s:i}", "type", "attach", "id", "job", "after_epoch", 0),
        e);
    CHECK_INT(json_integer_value(json_object_get(world_wait(&w, "epoch"), "epoch")), 1);
    world_finish(&w, "succeeded", NULL);
    world_end(&w);
}

TEST_LIMIT(stop_in_the_middle_keeps_what_was_merged, 60)
{
    world w;
    err e = ERR_INIT;
    char sha256[65];
    world_start(&w, &(world_options){.epochs = 1000});
    world_wait(&w, "epoch");
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", "asked to"), e);
    world_finish(&w, "cancelled", sha256);
    CHECK_INT(strlen(sha256), 64);
    world_end(&w);
}

static bool was_told(const world *w, const char *type)
{
    size_t i;
    json_t *m;
    json_array_foreach(w->told, i, m)
    {
        if (strcmp(wire_type(m), type) == 0)
            return true;
    }
    return false;
}

/* The same job with a plan, which nobody is asked about; killed there, where `failpoint` is one. */
static void replay(const char *job, int functions, const json_t *plan, const char *failpoint,
                   const json_t *record, const char *want)
{
    world w;
    char got[65];
    world_start(&w, &(world_options){.job = job, .functions = functions, .epochs = 4,
                                     .elastic = true, .plan = plan, .failpoint = failpoint});
    if (failpoint) {
        world_await_death(&w);
        world_restart(&w);
    }
    world_finish(&w, "succeeded", got);
    CHECK(!was_told(&w, "ask"));
    CHECK_STR(got, want);
    json_t *again = world_history(&w);
    CHECK(json_equal(json_object_get(again, "ledger"), json_object_get(record, "ledger")));
    json_decref(again);
    world_end(&w);
}

TEST_LIMIT(an_elastic_job_replays_from_its_record, 60)
{
    world w;
    char elastic[65], fixed[65];
    world_start(&w, &(world_options){.epochs = 4, .elastic = true});
    world_wait(&w, "ask");
    world_finish(&w, "succeeded", elastic);
    json_t *record = world_history(&w);
    json_t *plan = json_object_get(json_object_get(record, "data"), "parallelism");
    const int want[] = {3, 4, 2, 4};
    for (size_t i = 0; i < 4; i++)
        CHECK_INT(json_integer_value(json_array_get(plan, i)), want[i]);
    world_check_shares(record, 4, 100);
    world_end(&w);

    replay("again", 3, plan, NULL, record, elastic);
    /* the plan says how many, from the first epoch on */
    replay("other", 2, plan, NULL, record, elastic);
    replay("early", 2, plan, "before-history", record, elastic);
    replay("later", 2, plan, "before-merge:4", record, elastic);
    world_calm(&(world_options){.epochs = 4}, fixed);
    CHECK(strcmp(fixed, elastic) != 0); /* so that how many there are does count */
    json_decref(record);
}

/* Of the fourth, which is asked for after the first epoch, the first one cannot load. */
TEST_LIMIT(an_elastic_job_goes_on_without_one_that_says_failed, 60)
{
    world w;
    world_start(
        &w, &(world_options){.epochs = 4, .elastic = true, .fault = "unable", .fault_function = 3});
    const json_t *why = NULL;
    for (json_t *m; !why; why = json_object_get(m, "message")) {
        m = world_wait(&w, "release");
        CHECK_INT(json_integer_value(json_object_get(m, "function")), 3);
    }
    CHECK_CONTAINS(json_string_value(why), "function 3: the loss is not a number");
    world_finish(&w, "succeeded", NULL);
    json_t *record = world_history(&w);
    json_t *plan = json_object_get(json_object_get(record, "data"), "parallelism");
    const int want[] = {3, 3, 2, 4};
    for (size_t i = 0; i < 4; i++)
        CHECK_INT(json_integer_value(json_array_get(plan, i)), want[i]);
    world_check_shares(record, 4, 100);
    json_decref(record);
    world_end(&w);
}

/* The folder of segments is full when the fourth is asked for, and is not any more later. */
TEST_LIMIT(an_elastic_job_goes_on_without_one_that_the_model_store_has_no_room_for, 60)
{
    world w;
    char folder[300], others[320];
    snprintf(folder, sizeof folder, "%s/job", test_tmp());
    CHECK(mkdir(folder, 0700) == 0);
    snprintf(folder, sizeof folder, "%s/job/shm", test_tmp());
    CHECK(mkdir(folder, 0700) == 0);
    small_disk_mount(folder, "1m");
    world_start(
        &w, &(world_options){.epochs = 4, .elastic = true, .failpoint = "after-checkpoint:1:stop"});
    world_hold(&w);
    snprintf(others, sizeof others, "%s/others", folder);
    small_disk_fill(others); /* takes what the three have left */
    world_go_on(&w);
    const json_t *why = NULL;
    for (json_t *m; !why; why = json_object_get(m, "message")) {
        m = world_wait(&w, "release");
        CHECK_INT(json_integer_value(json_object_get(m, "function")), 3);
    }
    CHECK_CONTAINS(json_string_value(why), "function 3: ");
    CHECK_CONTAINS(json_string_value(why), "No space left on device");
    CHECK(unlink(others) == 0);
    world_finish(&w, "succeeded", NULL);
    json_t *record = world_history(&w);
    json_t *plan = json_object_get(json_object_get(record, "data"), "parallelism");
    const int want[] = {3, 3, 2, 4};
    for (size_t i = 0; i < 4; i++)
        CHECK_INT(json_integer_value(json_array_get(plan, i)), want[i]);
    world_check_shares(record, 4, 100);
    json_decref(record);
    world_end(&w);
}

TEST_LIMIT(init_from_another_job, 60)
{
    world w;
    char one[65], two[65], part[65], near[65];
    world_calm(&(world_options){.epochs = 1}, one);
    world_start(&w, &(world_options){.job = "next", .init = "calm", .epochs = 1});
    world_finish(&w, "succeeded", two);
    CHECK(strcmp(one, two) != 0);
    world_end(&w);
    world_start(&w, &(world_options){.job = "wide", .init = "calm", .floats = 51});
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "InitFailed");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "fc.weight");
    w.waited--;
    world_finish(&w, "failed", NULL);
    world_end(&w);
    /* What is left out is drawn: in its own shape, and other than what another model has. */
    world_start(
        &w, &(world_options){
                .job = "wider", .init = "calm", .init_without = "fc", .floats = 51, .epochs = 1});
    world_finish(&w, "succeeded", NULL);
    world_end(&w);
    world_start(&w, &(world_options){
                        .job = "part", .init = "calm", .init_without = "fc.weight", .epochs = 1});
    world_finish(&w, "succeeded", part);
    CHECK(strcmp(part, one) != 0 && strcmp(part, two) != 0);
    world_end(&w);
    world_start(&w, &(world_options){.job = "near",
                                     .init = "calm",
                                     .init_without = "fc.weight",
                                     .epochs = 1,
                                     .device = true});
    world_finish(&w, "succeeded", near);
    CHECK_STR(near, part);
    world_end(&w);
    world_start(&w, &(world_options){.job = "lost", .init = "calm", .init_without = "conv"});
    m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "InitFailed");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")),
                   "init: calm: no tensor of the model is conv, nor begins with conv.");
    w.waited--;
    world_finish(&w, "failed", NULL);
    world_end(&w);
    /* No patience brings it back, and it was not made by the job: it cannot be made again. */
    world_start(&w, &(world_options){.job = "poor", .init = "gone", .epochs = 1});
    m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "InitFailed");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "init: gone: ");
    w.waited--;
    world_finish(&w, "failed", NULL);
    world_end(&w);
}

/* ---- strangers and refusals ---------------------------------------------------------------- */

/* What kubeml-ps answers to a first message; NULL when it closes instead. */
static json_t *first_words(const world *w, json_t *m)
{
    err e = ERR_INIT;
    json_t *answer = NULL;
    wire *c = wire_dial(w->address, clock_deadline_ms(5000), &e);
    CHECK(c != NULL);
    CHECK_OK(wire_send_wait(c, m, clock_deadline_ms(5000), &e), e);
    json_decref(m);
    if (wire_receive_wait(c, &answer, clock_deadline_ms(5000), &e))
        CHECK_INT(e.code, ERR_UNAVAILABLE); /* closed, and not silent until a deadline */
    wire_close(c);
    return answer;
}

static json_t *function_hello(const char *token, int function, int incarnation)
{
    return json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:s,s:i,s:i}", "type", "hello", "token", token,
                     "job", "job", "function", function, "incarnation", incarnation, "pid", 1,
                     "cpu", "fake", "threads", 1, "abi", 1);
}

TEST_LIMIT(tokens_and_incarnations_are_checked, 60)
{
    world w;
    world_start(&w, &(world_options){.deaf = true});
    world_wait(&w, "need");
    const char *secret = "the-job-secret-of-this-test";
    CHECK(!first_words(&w, json_pack("{s:s,s:s}", "type", "hello", "token", "wrong")));
    CHECK(!first_words(&w, json_pack("{s:s,s:s}", "type", "hello", "token", secret)));
    CHECK(!first_words(&w, json_pack("{s:s}", "type", "hello")));
    CHECK(!first_words(&w, json_pack("{s:s,s:s}", "type", "attach", "id", "job")));
    CHECK(!first_words(&w, function_hello("the-pool-token-of-this-test", 0, 0)));
    json_t *answer = first_words(&w, function_hello(secret, 0, 1));
    CHECK_STR(wire_type(answer), "refused");
    CHECK_STR(json_string_value(json_object_get(answer, "code")), "stale");
    json_decref(answer);
    answer = first_words(&w, function_hello(secret, 200, 0));
    CHECK_STR(wire_type(answer), "refused");
    json_decref(answer);
    answer = first_words(&w, function_hello(secret, 0, 0)); /* joins, and is lost again */
    CHECK_STR(wire_type(answer), "welcome");
    json_decref(answer);
    for (json_t *m = world_wait(&w, "need");; m = world_wait(&w, "need"))
        if (json_integer_value(json_object_get(m, "incarnation")) == 1)
            break;
    answer = first_words(&w, function_hello(secret, 0, 0)); /* stale by now */
    CHECK_STR(wire_type(answer), "refused");
    json_decref(answer);
    err e = ERR_INIT;
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", "seen enough"), e);
    world_finish(&w, "cancelled", NULL);
    world_end(&w);
}

static void say_ready(wire *w)
{
    layout_entry entries[] = {{.name = "weight", .kind = LAYOUT_PARAM, .rank = 1, .dims = {4}}};
    layout l;
    char digest[20];
    err e = ERR_INIT;
    CHECK_OK(layout_make(entries, 1, &l, &e), e);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)l.digest);
    CHECK_OK(wire_sendf(w, &e, "{s:s,s:o,s:i,s:s,s:s}", "type", "ready", "layout", layout_json(&l),
                        "parameters", 4, "layout_digest", digest, "algorithms", "adding"),
             e);
    layout_free(&l);
}

/* What a function computes with decides whether a job is exact: it is the member's, not that of one
 * that was refused meanwhile. */
TEST_LIMIT(a_stale_function_leaves_no_trace, 60)
{
    world w;
    err e = ERR_INIT;
    json_t *answer = NULL, *stale;
    const char *secret = "the-job-secret-of-this-test";
    world_start(&w, &(world_options){.deaf = true});
    world_wait(&w, "need");
    wire *member = wire_dial(w.address, clock_deadline_ms(5000), &e);
    CHECK(member);
    json_t *hello = function_hello(secret, 0, 0);
    CHECK_OK(wire_send_wait(member, hello, clock_deadline_ms(5000), &e), e);
    json_decref(hello);
    CHECK_OK(wire_receive_wait(member, &answer, clock_deadline_ms(5000), &e), e);
    CHECK_STR(wire_type(answer), "welcome");
    json_decref(answer);
    stale = function_hello(secret, 0, -1);
    json_object_set_new(stale, "cpu", json_string("another"));
    answer = first_words(&w, stale);
    CHECK_STR(wire_type(answer), "refused");
    json_decref(answer);
    say_ready(member);
    CHECK_OK(wire_receive_wait(member, &answer, clock_deadline_ms(20000), &e), e);
    CHECK_STR(wire_type(answer), "init");
    json_decref(answer);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", "seen enough"), e);
    world_finish(&w, "cancelled", NULL);
    wire_close(member);
    json_t *record = world_history(&w);
    CHECK_STR(json_string_value(json_object_get(json_object_get(record, "plan"), "cpu")), "fake");
    json_decref(record);
    world_end(&w);
}

TEST_LIMIT(wrong_jobs_are_refused_by_field, 60)
{
    world w;
    json_t *answer;
    world_start(&w, &(world_options){.deaf = true});
    world_wait(&w, "need");
    err e = ERR_INIT;
    world_dial(&w);
    world_send_job(&w, &answer);
    CHECK_STR(wire_type(answer), "refused");
    CHECK_STR(json_string_value(json_object_get(answer, "code")), "conflict");
    json_decref(answer);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "attach", "id", "another"), e);
    json_t *m = world_wait(&w, "refused");
    CHECK_STR(json_string_value(json_object_get(m, "code")), "not-found");
    world_dial(&w);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "attach", "id", "job"), e);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", ""), e);
    world_finish(&w, "cancelled", NULL);
    world_end(&w);
}

TEST_LIMIT(without_redis_a_job_is_refused, 60)
{
    world w;
    json_t *answer;
    world_start(&w, &(world_options){.redis = "/nowhere/redis-server", .no_job = true});
    world_send_job(&w, &answer);
    CHECK_STR(wire_type(answer), "refused");
    CHECK_STR(json_string_value(json_object_get(answer, "code")), "not-found");
    CHECK_CONTAINS(json_string_value(json_object_get(answer, "message")), "redis-server");
    json_decref(answer);
    world_ended(&w, -1);
    world_end(&w);
}

TEST_LIMIT(a_wrong_field_is_named, 60)
{
    world w;
    err e = ERR_INIT;
    world_start(&w, &(world_options){.no_job = true});
    static const struct {
        const char *text, *part;
    } wrong[] = {{"{\"type\":\"job\"}", "id is missing"},
                 {"{\"type\":\"job\",\"id\":7}", "id is not a text"},
                 {"{\"type\":\"attach\",\"id\":\"job\"}", "no job"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_t *m = json_loads(wrong[i].text, 0, NULL), *answer = NULL;
        CHECK_OK(wire_send_wait(w.wire, m, clock_deadline_ms(5000), &e), e);
        CHECK_OK(wire_receive_wait(w.wire, &answer, clock_deadline_ms(5000), &e), e);
        CHECK_STR(wire_type(answer), "refused");
        CHECK_CONTAINS(json_string_value(json_object_get(answer, "message")), wrong[i].part);
        json_decref(m);
        json_decref(answer);
    }
    w.o.batch_size = -3;
    json_t *answer;
    world_send_job(&w, &answer);
    CHECK_CONTAINS(json_string_value(json_object_get(answer, "message")), "batch_size");
    json_decref(answer);
    CHECK_INT(kill(w.ps, SIGTERM), 0);
    world_ended(&w, world_redis(&w));
    world_end(&w);
}

TEST_LIMIT(sigterm_ends_it_and_leaves_nothing, 60)
{
    world w;
    world_start(&w, &(world_options){.epochs = 100000});
    world_wait(&w, "epoch");
    pid_t redis = world_redis(&w);
    CHECK_INT(kill(w.ps, SIGTERM), 0);
    world_ended(&w, redis);
    world_end(&w);
}

/* While it waits for an answer of one that stands still. */
TEST_LIMIT(sigterm_ends_a_redis_that_hangs, 60)
{
    world w;
    world_start(&w, &(world_options){.deaf = true});
    world_wait(&w, "need");
    pid_t redis = world_redis(&w);
    CHECK(redis > 0 && kill(redis, SIGSTOP) == 0);
    for (int i = 0; i < 4; i++) /* six seconds: it asks after five */
        world_wait(&w, "usage");
    CHECK_INT(kill(w.ps, SIGTERM), 0);
    world_ended(&w, redis);
    world_end(&w);
}

TEST_LIMIT(killed_it_takes_redis_along, 60)
{
    world w;
    world_start(&w, &(world_options){.epochs = 100000});
    world_wait(&w, "epoch");
    pid_t redis = world_redis(&w);
    CHECK(redis > 0);
    CHECK_INT(kill(w.ps, SIGKILL), 0);
    world_await_death(&w);
    int64_t deadline = clock_deadline_ms(5000);
    while (kill(redis, 0) == 0)
        CHECK(clock_monotonic_ms() < deadline);
    world_restart(&w); /* the socket, the folder and the segment of the dead one are no hindrance */
    world_wait(&w, "epoch");
    err e = ERR_INIT;
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", ""), e);
    world_finish(&w, "cancelled", NULL);
    world_end(&w);
}

TEST_LIMIT(the_goal_ends_a_job_early, 60)
{
    world w;
    world_start(&w, &(world_options){.epochs = 10, .goal = 40});
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "GoalReached");
    CHECK_INT(json_integer_value(json_object_get(m, "epochs")), 1);
    w.waited--;
    world_finish(&w, "succeeded", NULL);
    world_end(&w);
}

TEST_LIMIT(redis_dies_again_and_again, 60)
{
    world w;
    char want[65], got[65];
    const world_options o = {.job = "storm", .epochs = 6, .k = 1};
    world_calm(&o, want);
    world_start(&w, &o);
    for (int i = 0; i < 4; i++) {
        world_wait(&w, "epoch");
        int64_t deadline = clock_deadline_ms(10000);
        while (world_redis(&w) < 0) /* the last kill is still being repaired */
            CHECK(clock_monotonic_ms() < deadline);
        kill(world_redis(&w), SIGKILL);
    }
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}

/* Private bytes of an idle kubeml-ps; Redis beside it is counted by itself. */
TEST_LIMIT(an_idle_one_is_small, 60)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    test_skip("a sanitizer's own memory is counted too");
#endif
    world w;
    char path[64], line[256];
    long kib = 0, part;
    world_start(&w, &(world_options){.deaf = true});
    world_wait(&w, "need");
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)w.ps);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Private_%*[^:]: %ld", &part) == 1)
            kib += part;
    fclose(f);
    printf("private: %ld KiB\n", kib);
    CHECK(kib > 0 && kib < 6144);
    err e = ERR_INIT;
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", ""), e);
    world_finish(&w, "cancelled", NULL);
    world_end(&w);
}
