/* test_ps_device.c: a job whose functions are processes of their own on one GPU: kubeml-ps has them
 * averaged there, and whatever ends, is refused or is not what it should be, the bits are those of
 * the host's averaging. The functions add numbers, and files are their GPU's memory
 * (fake_function.h). */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "ps_world.h"
#include "test.h"

/* A job of its own. */
static const char *next_job(void)
{
    static char names[16][16];
    static int count;
    CHECK(count < 16);
    snprintf(names[count], sizeof names[count], "job-%d", count);
    return names[count++];
}

/* The SHA-256 of the same job on the host, to which nothing happens. */
static void on_the_host(const world_options *like, char sha256[65])
{
    world w;
    world_options o = *like;
    o.job = next_job();
    o.fault = o.failpoint = NULL;
    o.device = o.nccl = false;
    if (like->nccl)
        o.merge = "database";
    world_start(&w, &o);
    world_finish(&w, "succeeded", sha256);
    world_end(&w);
}

/* How many means there were, or models that were taken from the device. */
static int noted(const world *w, const char *what)
{
    char path[400];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", w->folder, what);
    return stat(path, &st) == 0 ? (int)st.st_size : 0;
}

static bool told(const world *w, const char *part)
{
    size_t i;
    json_t *m;
    json_array_foreach(w->told, i, m)
    {
        const char *text = json_string_value(json_object_get(m, "text"));
        if (strcmp(wire_type(m), "averaging") == 0 && text && strstr(text, part))
            return true;
    }
    return false;
}

static void check_ledger(const world *w)
{
    json_t *record = world_history(w);
    size_t epoch, i;
    json_t *shares, *one;
    json_array_foreach(json_object_get(record, "shares"), epoch, shares)
    {
        json_int_t sum = 0;
        json_array_foreach(shares, i, one) sum +=
            json_integer_value(json_array_get(one, 3)) - json_integer_value(json_array_get(one, 2));
        CHECK_INT(sum, w->o.samples);
    }
    json_decref(record);
}

/* The job on the device, with what is to happen in it. */
static void run(world *w, world_options o, int deaths)
{
    char want[65], got[65];
    o.epochs = o.epochs ? o.epochs : 2;
    on_the_host(&o, want);
    o.job = next_job();
    o.device = true;
    world_start(w, &o);
    world_finish(w, "succeeded", got);
    CHECK_STR(got, want);
    CHECK_INT(w->deaths, deaths);
    check_ledger(w);
}

TEST_LIMIT(functions_of_one_gpu_are_averaged_there_with_the_hosts_bits, 60)
{
    static const struct {
        const char *merge, *tensor_path;
    } kinds[] = {
        {"database", "shm"}, {"server", "shm"}, {"database", "socket"}, {"server", "socket"}};
    for (size_t i = 0; i < 4; i++) {
        world w;
        run(&w, (world_options){.merge = kinds[i].merge, .tensor_path = kinds[i].tensor_path}, 0);
        CHECK(told(&w, "on their one GPU, in function order, by CUDA IPC"));
        CHECK(noted(&w, "averaged") >=
              8); /* of ten rounds; the first may be before anybody leads */
        CHECK(noted(&w, "adopted") >= 2 * 8);
        world_end(&w);
    }
}

TEST_LIMIT(a_function_alone_has_nobody_to_average_with, 60)
{
    world w;
    run(&w, (world_options){.functions = 1}, 0);
    CHECK_INT(noted(&w, "averaged"), 0);
    world_end(&w);
}

/* ---- functions that end ---------------------------------------------------------------------- */

static void lose(const char *fault, int function, int round)
{
    world w;
    run(&w,
        (world_options){
            .fault = fault, .fault_function = function, .fault_epoch = 1, .fault_round = round},
        1);
    CHECK(world_told_condition(&w, "FunctionLost"));
    CHECK(noted(&w, "averaged") >= 5);
    CHECK(!told(&w, "not on a GPU"));
    world_end(&w);
}

TEST_LIMIT(a_function_ends_while_it_trains, 60)
{
    lose("train", 1, 1);
}
TEST_LIMIT(a_function_ends_before_it_says_what_it_has_there, 60)
{
    lose("published", 1, 1);
}
TEST_LIMIT(what_a_function_has_there_ends_with_it, 60)
{
    lose("sealed", 1, 1);
}
TEST_LIMIT(the_leader_ends_while_it_trains, 60)
{
    lose("train", 0, 1);
}
TEST_LIMIT(the_leader_ends_when_it_has_trained, 60)
{
    lose("sealed", 0, 1);
}
TEST_LIMIT(the_leader_ends_before_it_averages, 60)
{
    lose("average", 0, 1);
}
TEST_LIMIT(the_leader_ends_in_the_epochs_last_round, 60)
{
    lose("average", 0, 4);
}
TEST_LIMIT(the_leader_ends_when_the_mean_is_published, 60)
{
    lose("averaged", 0, 1);
}
TEST_LIMIT(the_leader_freezes_while_it_averages, 60)
{
    lose("freeze_average", 0, 1);
}
TEST_LIMIT(the_leader_ends_while_it_validates, 60)
{
    lose("validate", 0, 0);
}

static void go_on_without(int function, bool nccl)
{
    world w;
    world_start(&w, &(world_options){.job = next_job(),
                                     .device = true,
                                     .nccl = nccl,
                                     .merge = nccl ? "nccl" : NULL,
                                     .fault = "train",
                                     .fault_function = function,
                                     .fault_round = 2,
                                     .on_loss = "continue"});
    world_finish(&w, "succeeded", NULL);
    CHECK_INT(w.deaths, 1);
    CHECK(noted(&w, "averaged") >= 4);
    check_ledger(&w);
    world_end(&w);
}

TEST_LIMIT(on_loss_continue_averages_without_the_lost_one, 60)
{
    go_on_without(0, false);
    go_on_without(1, false);
}

/* ---- what is refused, and what is wrong ------------------------------------------------------ */

TEST_LIMIT(a_gpu_that_is_not_shared_is_named, 60)
{
    world w;
    run(&w, (world_options){.fault = "refuse"}, 0);
    CHECK(told(&w, "on the host, in function order, through shared memory; not on a GPU: walls "
                   "between processes"));
    CHECK_INT(noted(&w, "averaged"), 0);
    world_end(&w);
}

TEST_LIMIT(a_function_that_cannot_lend_says_why, 60)
{
    world w;
    run(&w, (world_options){.fault = "walled", .fault_function = 2}, 0);
    CHECK(told(&w, "not on a GPU: walls around it"));
    CHECK_INT(noted(&w, "averaged"), 0);
    world_end(&w);
}

TEST_LIMIT(a_leader_that_ends_of_it_is_not_asked_again, 60)
{
    world w;
    run(&w, (world_options){.fault = "lead"}, 1);
    CHECK(told(&w, "not on a GPU: function 0 ended when it was asked to lead"));
    CHECK_INT(noted(&w, "averaged"), 0);
    world_end(&w);
}

TEST_LIMIT(a_mean_that_is_refused_is_the_hosts_from_then_on, 60)
{
    world w;
    run(&w, (world_options){.fault = "refuse_average", .fault_epoch = 1, .fault_round = 1}, 0);
    CHECK(told(&w, "by CUDA IPC"));
    CHECK(told(&w, "not on a GPU: it cannot be read"));
    int averaged = noted(&w, "averaged");
    CHECK(averaged >= 4 && averaged <= 6);
    world_end(&w);
}

TEST_LIMIT(what_is_not_what_was_lent_is_trained_again, 60)
{
    world w;
    run(&w,
        (world_options){
            .fault = "spoiled", .fault_function = 2, .fault_epoch = 1, .fault_round = 1},
        0);
    CHECK(noted(&w, "averaged") >= 8);
    CHECK(!told(&w, "not on a GPU"));
    world_end(&w);
}

static void fail_of_nan(bool nccl)
{
    world w;
    world_start(&w, &(world_options){.job = next_job(),
                                     .device = true,
                                     .nccl = nccl,
                                     .merge = nccl ? "nccl" : NULL,
                                     .fault = "nan",
                                     .fault_function = 1,
                                     .fault_round = 2});
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "NaNLoss");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "function 1");
    w.waited--;
    world_finish(&w, "failed", NULL);
    world_end(&w);
}

TEST_LIMIT(nan_on_the_device_fails_the_job, 60)
{
    fail_of_nan(false);
}

/* ---- each on a GPU of its own ---------------------------------------------------------------- */

/* Its fake of NCCL sums in the order of the functions: the bits are the host's here. */
static const char by_nccl[] = "between their GPUs by NCCL, whose order of summation is its own";

static void run_apart(world *w, world_options o, int deaths)
{
    o.nccl = true;
    o.merge = "nccl";
    run(w, o, deaths);
}

TEST_LIMIT(functions_on_gpus_of_their_own_are_averaged_by_nccl, 60)
{
    static const char *const tensor_paths[] = {"shm", "socket"};
    for (size_t i = 0; i < 2; i++) {
        world w;
        run_apart(&w, (world_options){.tensor_path = tensor_paths[i]}, 0);
        CHECK(told(&w, by_nccl));
        CHECK(!told(&w, "on the host"));
        CHECK(world_told_condition(&w, "Exact"));
        CHECK(noted(&w, "averaged") >= 8);
        CHECK(noted(&w, "adopted") >= 2 * 8);
        world_end(&w);
    }
}

TEST_LIMIT(without_being_asked_for_nccl_is_not_taken, 60)
{
    world w;
    run(&w, (world_options){.nccl = true}, 0);
    CHECK(!told(&w, "NCCL"));
    CHECK(!world_told_condition(&w, "Exact"));
    world_end(&w);
}

static void lose_rank(const char *fault, int function, int epoch, int round)
{
    world w;
    run_apart(&w,
              (world_options){.fault = fault,
                              .fault_function = function,
                              .fault_epoch = epoch,
                              .fault_round = round},
              1);
    CHECK(world_told_condition(&w, "FunctionLost"));
    CHECK(noted(&w, "averaged") >= 5);
    CHECK(!told(&w, "on the host"));
    world_end(&w);
}

TEST_LIMIT(a_rank_ends_while_it_trains, 60)
{
    lose_rank("train", 1, 1, 1);
    lose_rank("train", 0, 1, 1);
}
TEST_LIMIT(a_rank_ends_when_it_has_trained, 60)
{
    lose_rank("sealed", 1, 1, 1);
    lose_rank("sealed", 0, 1, 1);
}
TEST_LIMIT(rank_0_ends_when_it_is_asked_for_an_id, 60)
{
    lose_rank("identify", 0, 0, 0);
}
TEST_LIMIT(a_rank_ends_while_the_others_wait_for_it_to_join, 60)
{
    lose_rank("connect", 2, 0, 0);
    lose_rank("connect", 0, 0, 0);
}
TEST_LIMIT(a_rank_ends_in_the_middle_of_a_sum, 60)
{
    lose_rank("reduce", 1, 1, 1);
    lose_rank("reduce", 0, 1, 2);
}
TEST_LIMIT(rank_0_ends_when_the_mean_is_published, 60)
{
    lose_rank("averaged", 0, 1, 1);
}
TEST_LIMIT(a_rank_ends_while_it_validates, 60)
{
    lose_rank("validate", 1, 0, 0);
}
TEST_LIMIT(a_rank_freezes_while_it_joins, 60)
{
    lose_rank("freeze_connect", 1, 0, 0);
}
TEST_LIMIT(a_rank_freezes_in_the_middle_of_a_sum, 60)
{
    lose_rank("freeze_reduce", 1, 1, 1);
    lose_rank("freeze_reduce", 0, 1, 1);
}

TEST_LIMIT(on_loss_continue_sums_without_the_lost_one, 60)
{
    go_on_without(0, true);
    go_on_without(1, true);
}

TEST_LIMIT(an_error_of_nccls_is_tried_again, 60)
{
    static const char *const faults[] = {"error_connect", "error_reduce"};
    for (size_t i = 0; i < 4; i++) {
        world w;
        run_apart(&w, (world_options){.fault = faults[i % 2], .fault_function = (int)(i / 2)}, 0);
        CHECK(noted(&w, "averaged") >= 8);
        CHECK(!told(&w, "on the host"));
        world_end(&w);
    }
}

TEST_LIMIT(what_was_sealed_and_is_something_else_is_trained_again, 60)
{
    world w;
    run_apart(&w,
              (world_options){
                  .fault = "spoiled", .fault_function = 2, .fault_epoch = 1, .fault_round = 1},
              0);
    CHECK(noted(&w, "averaged") >= 8);
    CHECK(!told(&w, "on the host"));
    world_end(&w);
}

TEST_LIMIT(where_nccl_cannot_be_the_host_averages_and_why_is_named, 60)
{
    static const struct {
        const char *fault, *says;
    } cases[] = {
        {"missing", "not by NCCL: NCCL is not installed"},
        {"pair", "not by NCCL: functions 0 and 2 are on one GPU, of which NCCL takes one rank"},
        {"broken", "not by NCCL: the link is down"}};
    for (size_t i = 0; i < 3; i++) {
        world w;
        run_apart(&w, (world_options){.fault = cases[i].fault, .fault_function = 2}, 0);
        CHECK(told(&w, "on the host, in function order, through shared memory"));
        CHECK(told(&w, cases[i].says));
        CHECK_INT(noted(&w, "averaged"), 0);
        CHECK(!world_told_condition(&w, "Exact"));
        world_end(&w);
    }
}

TEST_LIMIT(nan_on_a_gpu_of_its_own_fails_the_job, 60)
{
    fail_of_nan(true);
}

/* ---- kubeml-ps and Redis end ----------------------------------------------------------------- */

TEST_LIMIT(a_resumed_job_is_averaged_there_again, 60)
{
    static const char *const at[] = {"before-merge:4", "after-merge:4", "after-checkpoint:2"};
    char want[65], got[65];
    on_the_host(&(world_options){.epochs = 3}, want);
    for (size_t i = 0; i < 6; i++) {
        world w;
        world_start(&w, &(world_options){.job = next_job(),
                                         .epochs = 3,
                                         .device = true,
                                         .nccl = i >= 3,
                                         .merge = i < 3 ? NULL : "nccl",
                                         .failpoint = at[i % 3]});
        world_await_death(&w);
        int before = noted(&w, "averaged");
        world_restart(&w);
        world_finish(&w, "succeeded", got);
        CHECK_STR(got, want);
        CHECK(noted(&w, "averaged") > before);
        check_ledger(&w);
        world_end(&w);
    }
}

TEST_LIMIT(redis_ends_again_and_again, 60)
{
    static const char *const tensor_paths[] = {"shm", "socket"};
    char want[65], got[65];
    on_the_host(&(world_options){.epochs = 4, .k = 1}, want);
    for (size_t i = 0; i < 4; i++) {
        world w;
        world_start(&w, &(world_options){.job = next_job(),
                                         .epochs = 4,
                                         .k = 1,
                                         .device = true,
                                         .nccl = i >= 2,
                                         .merge = i < 2 ? NULL : "nccl",
                                         .tensor_path = tensor_paths[i % 2]});
        for (int epoch = 0; epoch < 3; epoch++) {
            int64_t deadline_ms = clock_deadline_ms(WORLD_WAIT_MS);
            pid_t redis;
            world_wait(&w, "epoch");
            /* The one before may not be there again: its epoch was over. */
            while ((redis = world_redis(&w)) <= 0 && clock_left_ms(deadline_ms) > 0)
                usleep(2000);
            CHECK(redis > 0 && kill(redis, SIGKILL) == 0);
        }
        world_finish(&w, "succeeded", got);
        CHECK_STR(got, want);
        check_ledger(&w);
        world_end(&w);
    }
}
