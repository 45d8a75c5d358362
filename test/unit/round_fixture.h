/* round_fixture.h: a round machine, its clock, and what its last step asked for. */
#ifndef KUBEML_ROUND_FIXTURE_H
#define KUBEML_ROUND_FIXTURE_H

#include "common/contract/shard_plan.h"
#include "common/round/round.h"
#include "test.h"

static round_machine *m;
static const round_action *actions;
static size_t count;
static int64_t now;

static inline round_config config(int parallelism, int epochs)
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

static inline void step(round_event e)
{
    e.now_ms = now;
    count = round_step(m, &e, &actions);
}

static inline const round_action *find(round_action_type type)
{
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == type)
            return &actions[i];
    return NULL;
}

static inline const round_action *get(round_action_type type)
{
    const round_action *a = find(type);
    if (!a)
        test_fail(__FILE__, __LINE__, "no action %s", round_action_name(type));
    return a;
}

static inline const round_action *told(const char *condition)
{
    for (size_t i = 0; i < count; i++)
        if (actions[i].type == ROUND_CONDITION && strcmp(actions[i].name, condition) == 0)
            return &actions[i];
    return NULL;
}

static inline int number_of(round_action_type type)
{
    int n = 0;
    for (size_t i = 0; i < count; i++)
        n += actions[i].type == type;
    return n;
}

static inline void open_machine(const round_config *c)
{
    err e = ERR_INIT;
    now = 1000;
    CHECK_OK(round_open(c, &m, &e), e);
}

static inline void join(int f, int incarnation)
{
    step((round_event){.type = ROUND_HELLO, .function = f, .incarnation = incarnation});
    get(ROUND_WELCOME);
    step((round_event){.type = ROUND_READY, .function = f, .incarnation = incarnation,
                       .layout = "l", .algorithms = "a"});
}

/* To the first round with `functions` functions in training. */
static inline void begin(const round_config *c)
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

static inline round_event report(const round_config *c, int f, int incarnation, int epoch,
                                 int round)
{
    shard_plan d;
    err e = ERR_INIT;
    round_event p = {.type = ROUND_PUBLISHED, .function = f, .incarnation = incarnation,
                     .epoch = epoch, .round = round, .loss_sum = 1};
    uint32_t first;
    CHECK_OK(shard_plan_init(&d,
                             &(shard_plan_spec){.seed = 3,
                                                .samples = 100,
                                                .chunk_samples = 10,
                                                .batch_size = 10,
                                                .parallelism = c->parallelism,
                                                .epoch = (uint32_t)epoch},
                             &e),
             e);
    shard_plan_range(&d, f, c->request.k, (uint32_t)round, &first, &p.batches);
    shard_plan_samples(&d, f, first, p.batches, &p.sample_begin, &p.sample_end);
    p.samples = p.sample_end - p.sample_begin;
    shard_plan_free(&d);
    return p;
}

static inline void publish(const round_config *c, int f, int incarnation, int epoch, int round)
{
    step(report(c, f, incarnation, epoch, round));
}

static inline void merged(int epoch, int round, int64_t version)
{
    step((round_event){.type = ROUND_MERGED, .epoch = epoch, .round = round, .version = version});
}

static inline void hear_of(int functions)
{
    for (int f = 0; f < functions; f++)
        step((round_event){.type = ROUND_HEARTBEAT, .function = f, .batches = (uint32_t)now});
}

static inline void expect_failure(const char *reason, const char *part)
{
    const round_action *end = get(ROUND_FINISHED);
    CHECK_INT(end->state, ROUND_FAILED_STATE);
    CHECK_STR(end->reason, reason);
    CHECK_CONTAINS(end->message, part);
    CHECK(round_finished(m));
    CHECK(round_deadline(m) == INT64_MAX);
    round_close(m);
}

#endif
