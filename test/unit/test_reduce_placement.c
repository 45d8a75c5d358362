/* test_reduce_placement.c: where models are averaged, by where the functions are. */
#include "common/contract/reduce_placement.h"
#include "test.h"

static const int none[] = {-1, -1, -1}, one[] = {2, 2, 2}, two[] = {0, 1, 0}, some[] = {0, -1, 0};

TEST(the_choice_follows_from_where_the_functions_are)
{
    static const struct {
        reduce_facts facts;
        reduce_path path;
        bool exact;
        const char *says;
    } cases[] = {
        {{3, true, NULL, NULL, REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "not every function has a GPU"},
        {{3, true, none, NULL, REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "not every function has a GPU"},
        {{3, true, some, NULL, REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "not every function has a GPU"},
        {{3, true, one, NULL, REDUCE_ANY, false, false, false, NULL},
         REDUCE_DEVICE,
         true,
         "one GPU, in function order"},
        {{3, true, one, NULL, REDUCE_NCCL_WANTED, false, false, false, NULL},
         REDUCE_DEVICE,
         true,
         "one GPU"},
        {{3, true, two, NULL, REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "was not asked for"},
        {{3, true, two, NULL, REDUCE_NCCL_WANTED, false, false, false, NULL},
         REDUCE_NCCL,
         false,
         "order of summation is its own"},
        {{1, true, two, NULL, REDUCE_ANY, false, false, false, NULL},
         REDUCE_DEVICE,
         true,
         "one GPU"},
        {{3, false, one, "shm", REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "shared memory"},
        {{3, false, two, "tcp", REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "sockets"},
        {{3, false, NULL, "shm", REDUCE_ANY, false, false, false, NULL},
         REDUCE_HOST,
         true,
         "shared memory"},
        {{3, false, NULL, "shm", REDUCE_ANY, false, true, false, NULL},
         REDUCE_IPC,
         true,
         "one GPU, in function order, by CUDA IPC"},
        {{3, false, NULL, "shm", REDUCE_ANY, false, false, false, "walls"},
         REDUCE_HOST,
         true,
         "shared memory; not on a GPU: walls"},
        {{3, false, NULL, "shm", REDUCE_NCCL_WANTED, false, false, true, NULL},
         REDUCE_NCCL,
         false,
         "between their GPUs by NCCL"},
        {{3, false, NULL, "shm", REDUCE_NCCL_WANTED, false, true, false, NULL},
         REDUCE_IPC,
         true,
         "by CUDA IPC"},
        {{3, false, NULL, "tcp", REDUCE_NCCL_WANTED, false, false, false, "walls"},
         REDUCE_HOST,
         true,
         "sockets; not by NCCL: walls"},
        {{3, true, one, NULL, REDUCE_ANY, true, false, false, NULL},
         REDUCE_HOST,
         true,
         "without optimizer state"},
        {{3, true, NULL, NULL, REDUCE_ANY, true, false, false, NULL},
         REDUCE_HOST,
         true,
         "not every function has a GPU"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        reduce_placement c;
        CHECK_OK(reduce_placement_choose(&cases[i].facts, &c, &e), e);
        CHECK_INT(c.path, cases[i].path);
        CHECK_INT(c.exact, cases[i].exact);
        CHECK_CONTAINS(c.text, cases[i].says);
    }
}

TEST(nccl_is_refused_where_it_cannot_be)
{
    static const struct {
        reduce_facts facts;
        const char *says;
    } cases[] = {{{3, true, two, NULL, REDUCE_NCCL_WANTED, true, false, false, NULL},
                  "the optimizer's state with the weights"},
                 {{3, true, some, NULL, REDUCE_NCCL_WANTED, false, false, false, NULL},
                  "not every function has one"},
                 {{3, true, NULL, NULL, REDUCE_NCCL_WANTED, false, false, false, NULL},
                  "not every function has one"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        reduce_placement c;
        CHECK_ERR(reduce_placement_choose(&cases[i].facts, &c, &e), e, ERR_UNSUPPORTED,
                  cases[i].says);
    }
}
