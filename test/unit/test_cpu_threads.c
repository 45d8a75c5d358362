/* test_cpu_threads.c: each part of each round is computed once, whoever of the threads is there. */
#include <poll.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu_threads.h"
#include "test.h"

enum { THREADS = 4, ROUNDS = 20000 };

typedef struct rounds {
    int round; /* plain: it changes between rounds alone, and each thread must see that */
    int seen[THREADS];
    int wrong;
    int slow; /* the part that takes a while, or -1 */
} rounds;

static void note(void *arg, int part, int parts)
{
    rounds *r = arg;
    if (part < 0 || part >= parts || parts != THREADS || r->seen[part] != r->round - 1)
        r->wrong++;
    else
        r->seen[part] = r->round;
    if (part == r->slow)
        poll(NULL, 0, 1); /* long enough for the others to sleep */
}

static void check_rounds(int count, int slow)
{
    err e = ERR_INIT;
    cpu_threads *t;
    rounds r = {.slow = slow};
    CHECK_OK(cpu_threads_start(THREADS, &t, &e), e);
    CHECK_INT(cpu_threads_count(t), THREADS);
    for (r.round = 1; r.round <= count; r.round++) {
        cpu_threads_run(t, note, &r);
        for (int i = 0; i < THREADS; i++)
            CHECK_INT(r.seen[i], r.round);
        CHECK_INT(r.wrong, 0);
    }
    cpu_threads_stop(t);
}

TEST(every_part_is_computed_once_a_round)
{
    check_rounds(ROUNDS, -1);
}

TEST(who_sleeps_is_woken_and_who_is_slow_waited_for)
{
    for (int slow = 0; slow < THREADS; slow++)
        check_rounds(50, slow);
}

static void count(void *arg, int part, int parts)
{
    atomic_int *of = arg;
    (void)part;
    (void)parts;
    atomic_fetch_add(of, 1);
}

/* Some stop before any worker has come to its first round. */
TEST(threads_end_whenever_they_are_stopped)
{
    for (int i = 0; i < 200; i++) {
        err e = ERR_INIT;
        cpu_threads *t;
        atomic_int done = 0;
        CHECK_OK(cpu_threads_start(1 + i % THREADS, &t, &e), e);
        for (int k = 0; k < i % 3; k++)
            cpu_threads_run(t, count, &done);
        cpu_threads_stop(t);
        CHECK_INT(atomic_load(&done), (1 + i % THREADS) * (i % 3));
    }
}
