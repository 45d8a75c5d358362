/* test_simulate.c: ten thousand schedules without a violation, and every planted mistake found in
 * them. */
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim.h"
#include "test.h"

enum { SEEDS = 10000 };
/* A sanitizer looks for what the same lines do wrong in few of them. */
#ifdef __SANITIZE_ADDRESS__
enum { WATCHED_SEEDS = 2000 };
#else
enum { WATCHED_SEEDS = SEEDS };
#endif

static void run_seeds(uint64_t from, uint64_t to)
{
    char wrong[512];
    uint64_t hash;
    for (uint64_t seed = from; seed < to; seed++)
        if (sim_run(seed, false, wrong, &hash) < 0)
            test_fail(__FILE__, __LINE__, "seed %llu: %s; replay with simulate --seed %llu -v",
                      (unsigned long long)seed, wrong, (unsigned long long)seed);
}

TEST_LIMIT(ten_thousand_seeds, 300)
{
    run_seeds(0, WATCHED_SEEDS);
}

TEST_LIMIT(the_same_seed_is_the_same_trace, 60)
{
    char wrong[512];
    uint64_t first, again, other;
    for (uint64_t seed = 0; seed < 200; seed++) {
        sim_run(seed, false, wrong, &first);
        sim_run(seed, false, wrong, &again);
        sim_run(seed + 1, false, wrong, &other);
        CHECK(first == again);
        CHECK(first != other);
    }
}

TEST(an_assertion_names_its_seed)
{
    int ends[2], status;
    char said[200] = "", wrong[512];
    uint64_t hash;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        sim_run(7, false, wrong, &hash);
        abort();
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
          WTERMSIG(status) == SIGABRT);
    CHECK(read(ends[0], said, sizeof said - 1) > 0);
    CHECK_STR(said, "seed 7: aborted\nreplay: simulate --seed 7 -v\n");
}

/* Whether `command` found a violation, by a check (1) or by an assertion of the logic itself, and
 * the line that says so. Never: could not be run (127). */
static bool finds(const char *command, char line[600])
{
    FILE *out = popen(command, "r");
    CHECK(out);
    if (!fgets(line, 600, out))
        line[0] = '\0';
    for (char rest[256]; fgets(rest, sizeof rest, out);)
        ;
    int status = pclose(out);
    return (WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 134)) ||
           (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* Runs the simulator whose logic was compiled with one mistake: it must find a violation, name the
 * seed, and find the same with that seed alone. */
static void check_found(int mutation)
{
    char self[4096], path[4352], command[4400], line[600], again[600];
    unsigned long long seed;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(len > 0);
    self[len] = '\0';
    snprintf(path, sizeof path, "%s/mutant-%d", dirname(self), mutation);
    snprintf(command, sizeof command, "%s --seeds %d", path, SEEDS);
    bool found = finds(command, line);
    printf("mutation %d: %s", mutation, line[0] ? line : "ended without a word\n");
    CHECK(found && sscanf(line, "seed %llu:", &seed) == 1);
    snprintf(command, sizeof command, "%s --seed %llu", path, seed);
    CHECK(finds(command, again));
    CHECK_STR(again, line);
}

#define FINDS(number, mistake)                                                                     \
    TEST_LIMIT(finds_##mistake, 300)                                                               \
    {                                                                                              \
        check_found(number);                                                                       \
    }

FINDS(1, slot_given_away_while_its_old_process_lives)
FINDS(2, lost_function_not_trained_again)
FINDS(3, incarnation_ignored)
FINDS(4, stale_round_accepted)
FINDS(5, wrong_divisor)
FINDS(6, merge_in_order_of_arrival)
FINDS(7, merge_counted_twice)
FINDS(8, samples_merged_and_trained_again)
FINDS(9, corrupt_contribution_not_trained_again)
FINDS(10, ledger_not_replayed_on_resume)
FINDS(11, published_before_redis_restarted_still_counts)
FINDS(12, lost_chunk)
FINDS(13, shared_contribution_half_trained_again)
FINDS(14, shared_contribution_taken_for_separate_ones)
FINDS(15, ends_before_ready_counted_on_after_one_was_ready)
FINDS(16, losses_counted_on_after_a_contribution)
FINDS(17, crashes_counted_on_after_a_contribution)
FINDS(18, crash_counted_that_is_told_after_the_next_one_has_contributed)
FINDS(19, ends_of_redis_counted_on_after_a_merge)
FINDS(20, pods_kept_after_cancel)
FINDS(21, generation_used_twice)
FINDS(22, more_functions_than_slots)
FINDS(23, gpu_given_away_while_its_function_lives)
FINDS(24, shared_process_counted_as_one_function)
FINDS(25, gpu_given_away_while_its_shared_process_lives)
FINDS(26, ranks_put_on_one_gpu_beside_a_free_one)
FINDS(27, gpu_given_away_while_a_pod_of_before_lives_there)
FINDS(28, gpu_of_a_pod_taken_without_room)
FINDS(29, job_held_up_by_one_that_no_gpu_could_hold)
FINDS(30, pod_that_did_not_come_left_to_its_job)
FINDS(31, job_failed_by_an_additional_function_that_does_not_start)
FINDS(32, job_failed_by_an_additional_function_that_does_not_load)
FINDS(33, jobs_that_hold_what_the_other_lacks)
FINDS(34, functions_added_beyond_the_data_sets_chunks)
FINDS(35, label_of_an_unsaved_kubeml_ps_ignored)
FINDS(36, generation_saved_after_its_pod_is_asked_for)
FINDS(37, ends_of_kubeml_ps_counted_on_after_an_epoch)
FINDS(38, queue_forgotten_where_time_alone_has_ended_a_job)
FINDS(39, kubeml_ps_started_again_beyond_its_bound)
FINDS(40, function_lost_beyond_its_bound)
FINDS(41, function_refused_that_the_merge_of_a_suspension_waits_for)
FINDS(42, function_that_the_cluster_ended_counted_as_one_that_does_not_start)
FINDS(43, job_tried_again_beyond_its_limit)
FINDS(44, lower_priority_first)
FINDS(45, later_job_first)
FINDS(46, deadline_forgotten)
FINDS(47, end_that_waits_for_a_kubeml_ps_without_a_bound)
FINDS(48, slots_that_are_gone_given_away)
FINDS(49, what_is_away_given_up_too_soon)
FINDS(50, queue_forgotten_where_time_alone_has_ended_the_first_of_it)
FINDS(51, function_given_up_before_it_is_told_how_it_ended)
