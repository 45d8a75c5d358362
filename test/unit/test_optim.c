/* test_optim.c: optimizers and schedules against PyTorch's numbers. */
#include "golden.h"
#include "kernels/optim.h"
#include "kernels/schedule.h"

typedef struct recipe {
    const char *name;
    optim o;
} recipe;

static const recipe recipes[] = {
    {"sgd", {.kind = OPTIM_SGD}},
    {"sgd-decay", {.kind = OPTIM_SGD, .weight_decay = 0.1}},
    {"sgd-momentum", {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 0.1}},
    {"sgd-dampening", {.kind = OPTIM_SGD, .momentum = 0.9, .dampening = 0.5}},
    {"sgd-nesterov", {.kind = OPTIM_SGD, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1}},
    {"adam", {.kind = OPTIM_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}},
    {"adam-decay",
     {.kind = OPTIM_ADAM, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1}},
    {"adamw",
     {.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01}},
    {"adamw-decay",
     {.kind = OPTIM_ADAMW, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.2}},
};
enum { RECIPES = sizeof recipes / sizeof *recipes, WEIGHTS = 8 };

static void draw(uint32_t a, uint64_t b, float *to)
{
    rng r;
    rng_init(&r, GOLDEN_SEED, RNG_TEST, a, b);
    for (int i = 0; i < WEIGHTS; i++)
        to[i] = (float)golden_uniform(&r);
}

static void check_recipe(const recipe *r)
{
    err e = ERR_INIT;
    CHECK_OK(optim_check(&r->o, &e), e);
    float w[WEIGHTS], g[WEIGHTS], state[2 * WEIGHTS] = {0};
    draw(5, 0, w);
    for (int step = 0; step < 20; step++) {
        draw(4, (uint64_t)step, g);
        optim_update(&r->o, 0.1, step + 1, WEIGHTS, w, g, state, WEIGHTS);
        char key[64];
        double want[WEIGHTS];
        snprintf(key, sizeof key, "%s %d", r->name, step);
        if (golden_read("optim", key, want, WEIGHTS) == 0) {
            CHECK(step != 0 && step != 1 && step != 19);
            continue;
        }
        for (int i = 0; i < WEIGHTS; i++)
            CHECK_NEAR(w[i], want[i], 2e-6);
    }
}

TEST(updates_are_pytorchs)
{
    for (int i = 0; i < RECIPES; i++)
        check_recipe(&recipes[i]);
}

TEST(updating_in_pieces_gives_the_same_bits)
{
    for (int i = 0; i < RECIPES; i++) {
        float whole[WEIGHTS], parts[WEIGHTS], g[WEIGHTS], s1[2 * WEIGHTS] = {0},
                                                                 s2[2 * WEIGHTS] = {0};
        draw(5, 0, whole);
        draw(5, 0, parts);
        for (int step = 1; step < 4; step++) {
            draw(4, (uint64_t)step, g);
            optim_update(&recipes[i].o, 0.1, step, WEIGHTS, whole, g, s1, WEIGHTS);
            optim_update(&recipes[i].o, 0.1, step, 3, parts, g, s2, WEIGHTS);
            optim_update(&recipes[i].o, 0.1, step, WEIGHTS - 3, parts + 3, g + 3, s2 + 3, WEIGHTS);
        }
        CHECK(memcmp(whole, parts, sizeof whole) == 0);
        CHECK(memcmp(s1, s2, sizeof s1) == 0);
    }
}

TEST(wrong_optimizers_are_refused_by_name)
{
    err e = ERR_INIT;
    optim o = {.kind = OPTIM_SGD, .momentum = 1.5};
    CHECK_ERR(optim_check(&o, &e), e, ERR_INVALID, "momentum 1.5");
    o = (optim){.kind = OPTIM_SGD, .nesterov = true};
    CHECK_ERR(optim_check(&o, &e), e, ERR_INVALID, "Nesterov");
    o = optim_default(OPTIM_ADAM);
    o.beta2 = 1;
    CHECK_ERR(optim_check(&o, &e), e, ERR_INVALID, "beta2");
    o = optim_default(OPTIM_ADAMW);
    o.weight_decay = NAN;
    CHECK_ERR(optim_check(&o, &e), e, ERR_INVALID, "weight decay");
    o = optim_default(OPTIM_ADAM);
    for (o.eps = 1e-39; o.eps >= 0; o.eps -= 1e-39) /* as floats: denormal, and 0 */
        CHECK_ERR(optim_check(&o, &e), e, ERR_INVALID, "eps");
    o.eps = INFINITY;
    CHECK_ERR(optim_check(&o, &e), e, ERR_INVALID, "eps inf");
}

/* What a function publishes beside its weights. */
TEST(an_optimizer_has_the_state_that_it_needs)
{
    optim o = optim_default(OPTIM_SGD);
    CHECK_INT(optim_slots(&o), 0);
    o.momentum = 0.9;
    CHECK_INT(optim_slots(&o), 1);
    o = optim_default(OPTIM_ADAM);
    CHECK_INT(optim_slots(&o), 2);
}

/* Per epoch, from the golden line; the history is the golden metric where the schedule looks at it.
 */
static void check_schedule(const char *name, const schedule *s, int epochs)
{
    err e = ERR_INIT;
    double want[16], metric[16];
    CHECK_OK(schedule_check(s, &e), e);
    golden_line("schedule", name, want, epochs);
    golden_line("schedule", "metric", metric, 16);
    for (int i = 0; i < epochs; i++) {
        schedule_point at = {.epoch = i, .history = metric, .history_count = (size_t)i};
        CHECK_NEAR(schedule_lr(s, 0.1, &at), want[i], 1e-12);
    }
}

TEST(schedules_are_pytorchs)
{
    check_schedule("step", &(schedule){.kind = SCHEDULE_STEP, .every = 3, .gamma = 0.5}, 12);
    check_schedule("milestones",
                   &(schedule){.kind = SCHEDULE_MILESTONES,
                               .milestones = {2, 5, 9},
                               .milestone_count = 3,
                               .gamma = 0.1},
                   12);
    check_schedule("cosine", &(schedule){.kind = SCHEDULE_COSINE, .epochs = 12, .min_lr = 0.001},
                   12);
    check_schedule("plateau", &(schedule){.kind = SCHEDULE_PLATEAU, .gamma = 0.5, .patience = 2},
                   16);
    check_schedule(
        "plateau-cooldown",
        &(schedule){
            .kind = SCHEDULE_PLATEAU, .gamma = 0.1, .patience = 1, .cooldown = 2, .min_lr = 0.0005},
        16);
}

/* Patience and cooldown are epochs, also where few of them are validated. */
TEST(a_plateau_counts_epochs_and_judges_validations)
{
    schedule s = {.kind = SCHEDULE_PLATEAU, .patience = 3};
    double history[32];
    schedule_point at = {.history = history};
    for (int i = 0; i < 32; i++)
        history[i] = i % 5 == 4 ? 1 : (double)NAN;
    const struct {
        int warmup_epochs, cooldown, epoch;
        double lr;
    } want[] = {{0, 0, 4, 1},     {0, 0, 5, 1},     {0, 0, 9, 1},    {0, 0, 10, 0.1},
                {0, 0, 14, 0.1},  {0, 0, 15, 0.01}, {0, 7, 15, 0.1}, {0, 7, 20, 0.1},
                {0, 7, 25, 0.01}, {5, 0, 10, 1},    {5, 0, 14, 1},   {5, 0, 15, 0.1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        s.warmup_epochs = want[i].warmup_epochs, s.cooldown = want[i].cooldown;
        at.epoch = want[i].epoch, at.history_count = (size_t)want[i].epoch;
        CHECK_NEAR(schedule_lr(&s, 1, &at), want[i].lr, 1e-12);
    }
    history[4] = 2, history[9] = 1.5, history[14] = 1; /* each better than the one before */
    s = (schedule){.kind = SCHEDULE_PLATEAU, .patience = 3};
    at.epoch = 15, at.history_count = 15;
    CHECK_NEAR(schedule_lr(&s, 1, &at), 1, 1e-12);
}

TEST(warm_up_rises_and_then_the_schedule_begins)
{
    schedule s = {.kind = SCHEDULE_STEP, .every = 1, .gamma = 0.5, .warmup_epochs = 2};
    schedule_point at = {.steps = 10};
    CHECK_NEAR(schedule_lr(&s, 1, &at), 0.05, 1e-15);
    at.epoch = 1, at.step = 9;
    CHECK_NEAR(schedule_lr(&s, 1, &at), 1, 1e-15);
    at.epoch = 2;
    CHECK_NEAR(schedule_lr(&s, 1, &at), 1, 1e-15);
    at.epoch = 4;
    CHECK_NEAR(schedule_lr(&s, 1, &at), 0.25, 1e-15);
    s = (schedule){.kind = SCHEDULE_COSINE, .epochs = 2, .per_step = true};
    at = (schedule_point){.epoch = 0, .step = 5, .steps = 10};
    CHECK_NEAR(schedule_lr(&s, 1, &at), (1 + sqrt(0.5)) / 2, 1e-12);
    at.epoch = 7;
    CHECK_NEAR(schedule_lr(&s, 1, &at), 0, 1e-12);
}

TEST(wrong_schedules_are_refused_by_name)
{
    err e = ERR_INIT;
    schedule s = {.kind = SCHEDULE_STEP};
    CHECK_ERR(schedule_check(&s, &e), e, ERR_INVALID, "every 0 epochs");
    s = (schedule){.kind = SCHEDULE_COSINE, .epochs = -1};
    CHECK_ERR(schedule_check(&s, &e), e, ERR_INVALID, "cosine");
    s = (schedule){.kind = SCHEDULE_MILESTONES, .milestones = {5, 5}, .milestone_count = 2};
    CHECK_ERR(schedule_check(&s, &e), e, ERR_INVALID, "5 does not follow 5");
    s = (schedule){.kind = SCHEDULE_CONSTANT, .gamma = 2};
    CHECK_ERR(schedule_check(&s, &e), e, ERR_INVALID, "gamma");
}

/* By a ten-thousandth, where nothing else is said, as in PyTorch. */
TEST(a_plateau_ends_by_as_much_as_is_said)
{
    const double history[] = {1, 0.9995, 0.9990};
    const schedule_point at = {.epoch = 3, .history = history, .history_count = 3};
    schedule s = {.kind = SCHEDULE_PLATEAU, .patience = 1};
    CHECK_NEAR(schedule_lr(&s, 0.1, &at), 0.1, 1e-12);
    s.threshold = 0.01;
    CHECK_NEAR(schedule_lr(&s, 0.1, &at), 0.01, 1e-12);
}
