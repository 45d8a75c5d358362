/* simulate.c: runs schedules of the simulator.
 *
 *   simulate [--from N] [--seeds N]   runs N seeds; stops at the first violation, exit status 1
 *   simulate --seed N [-v]            replays one; -v prints every event and action */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static int run_one(uint64_t seed, bool verbose)
{
    char wrong[512];
    uint64_t hash;
    if (sim_run(seed, verbose, wrong, &hash) == 0)
        return 0;
    printf("seed %llu: %s\nreplay: simulate --seed %llu -v\n", (unsigned long long)seed, wrong,
           (unsigned long long)seed);
    return 1;
}

int main(int argc, char **argv)
{
    uint64_t from = 0, seeds = 10000, seed = 0;
    bool one = false, verbose = false;
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        return 0; /* no cases of its own for the test runner: test_simulate has them */
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        uint64_t *number = strcmp(argv[i], "--seed") == 0    ? &seed
                           : strcmp(argv[i], "--seeds") == 0 ? &seeds
                           : strcmp(argv[i], "--from") == 0  ? &from
                                                             : NULL;
        if (number && i + 1 < argc)
            *number = strtoull(argv[i + 1], &end, 10);
        if (strcmp(argv[i], "-v") == 0) {
            verbose = true;
        } else if (!end || *end != '\0' || end == argv[i + 1]) {
            fprintf(stderr, "usage: simulate [--from N] [--seeds N] | --seed N [-v]\n");
            return 2;
        } else {
            one = one || number == &seed;
            i++;
        }
    }
    if (one)
        return run_one(seed, verbose);
    for (uint64_t s = from; s < from + seeds; s++)
        if (run_one(s, false))
            return 1;
    printf("%llu seeds without a violation\n", (unsigned long long)seeds);
    return 0;
}
