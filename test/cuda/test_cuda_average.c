/* test_cuda_average.c: models averaged on the fake device: of one process, of several processes on
 * one device, and of ranks on several. */
#include <pthread.h>
#include <sched.h>

#include "common/modelstore/merge_variants.h"
#include "fake_driver.h"
#include "kernels/cuda/cuda_memory.h"
#include "small_model.h"

/* ---- averaging ------------------------------------------------------------------------------- */

enum { FUNCTIONS = 3 };

/* Three models of one beginning, each trained on other samples; their states before in `was`. */
static void diverge(engine *m[FUNCTIONS], const int devices[FUNCTIONS], backend_precision precision,
                    float *was[FUNCTIONS])
{
    static work w;
    err e = ERR_INIT;
    engine_result r;
    for (int i = 0; i < FUNCTIONS; i++) {
        engine_config c = config("cuda");
        c.device = devices[i];
        c.precision = precision;
        CHECK_OK(engine_compile(&c, &m[i], &e), e);
        for (int step = 0; step <= i; step++) {
            draw_work(&w, (uint64_t)(10 * i + step), BATCH);
            CHECK_OK(engine_train(m[i], &w.b, 0.1, &r, &e), e);
        }
        was[i] = malloc(engine_state_floats(m[i]) * sizeof(float));
        memcpy(was[i], engine_floats(m[i], &e), engine_state_floats(m[i]) * sizeof(float));
    }
}

static void check_mean(engine *m[FUNCTIONS], float *was[FUNCTIONS], const double *weight,
                       double bound)
{
    err e = ERR_INIT;
    size_t count = engine_state_floats(m[0]), last = engine_counter_count(m[0]) - 1;
    const void *in[FUNCTIONS];
    double some[FUNCTIONS];
    int inputs = 0;
    float *want = malloc(count * sizeof *want);
    for (int i = 0; i < FUNCTIONS; i++)
        if (weight[i] > 0) {
            in[inputs] = was[i];
            some[inputs++] = weight[i];
        }
    CHECK(merge_floats_generic(want, in, some, inputs, count));
    for (int i = 0; i < FUNCTIONS; i++) {
        const float *got = engine_floats(m[i], &e);
        for (size_t k = 0; k < count; k++)
            CHECK_NEAR(got[k], want[k], bound);
        CHECK(memcmp(got, engine_floats(m[0], &e), count * sizeof *got) == 0);
        CHECK_INT(engine_counters(m[i], &e)[last], FUNCTIONS);
        CHECK_INT(engine_counters(m[i], &e)[0], FUNCTIONS); /* num_batches_tracked */
    }
    free(want);
}

static void drop_all(engine *m[FUNCTIONS], float *was[FUNCTIONS])
{
    for (int i = 0; i < FUNCTIONS; i++) {
        engine_free(m[i]);
        free(was[i]);
    }
}

TEST(models_of_one_device_are_averaged_there_with_the_servers_bits)
{
    static const double weights[][FUNCTIONS] = {
        {0.25, 0.25, 0.5}, {0.1, 0.2, 0.7}, {0, 0.375, 0.625}};
    static work w;
    err e = ERR_INIT;
    engine *m[FUNCTIONS];
    engine_result a, b;
    float *was[FUNCTIONS];
    for (size_t i = 0; i < 3; i++) {
        diverge(m, (const int[]){0, 0, 0}, PRECISION_FP32, was);
        CHECK(engine_averages(m, FUNCTIONS));
        CHECK_OK(engine_average(m, weights[i], FUNCTIONS, false, &e), e);
        check_mean(m, was, weights[i], 0);
        CHECK_INT(fake_sums(), 0);
        draw_work(&w, 99, BATCH);
        /* from one state, one step is one step */
        CHECK_OK(engine_train(m[0], &w.b, 0.1, &a, &e), e);
        CHECK_OK(engine_train(m[2], &w.b, 0.1, &b, &e), e);
        CHECK(a.loss_sum == b.loss_sum);
        drop_all(m, was);
    }
    CHECK_INT(cuda_memory_held(), 0);
}

TEST(averaged_bf16_models_compute_with_the_mean)
{
    static const double weight[FUNCTIONS] = {0.25, 0.25, 0.5};
    static work w;
    err e = ERR_INIT;
    engine *m[FUNCTIONS], *fresh;
    engine_result a, b;
    float *was[FUNCTIONS];
    diverge(m, (const int[]){0, 0, 0}, PRECISION_BF16, was);
    CHECK_OK(engine_average(m, weight, FUNCTIONS, false, &e), e);
    check_mean(m, was, weight, 0);
    engine_config c = config("cuda");
    c.precision = PRECISION_BF16;
    CHECK_OK(engine_compile(&c, &fresh, &e), e);
    CHECK_OK(engine_import(fresh, engine_floats(m[1], &e), engine_counters(m[1], &e), &e), e);
    draw_work(&w, 98, BATCH);
    CHECK_OK(engine_eval(m[1], &w.b, &a, &e), e);
    CHECK_OK(engine_eval(fresh, &w.b, &b, &e), e);
    CHECK(a.loss_sum == b.loss_sum);
    engine_free(fresh);
    drop_all(m, was);
}

TEST(models_of_several_devices_are_summed_by_the_library)
{
    static const double weight[FUNCTIONS] = {0.25, 0.35, 0.4}, last_alone[FUNCTIONS] = {0, 0, 1};
    err e = ERR_INIT;
    engine *m[FUNCTIONS];
    float *was[FUNCTIONS];
    fake_gpus(2);
    diverge(m, (const int[]){0, 1, 0}, PRECISION_FP32, was);
    CHECK_ERR(engine_average(m, weight, FUNCTIONS, false, &e), e, ERR_UNSUPPORTED, "on 2 devices");
    e = (err)ERR_INIT;
    CHECK_OK(engine_average(m, weight, FUNCTIONS, true, &e), e);
    CHECK_INT(fake_sums(), 3); /* parameters, buffers, optimizer state */
    check_mean(m, was, weight, 1e-6);
    drop_all(m, was);
    diverge(m, (const int[]){0, 1, 0}, PRECISION_FP32, was);
    /* one device gives nothing, and gets all */
    CHECK_OK(engine_average(m, last_alone, FUNCTIONS, true, &e), e);
    check_mean(m, was, last_alone, 0);
    drop_all(m, was);
}

TEST(what_is_not_finite_is_not_averaged)
{
    static const double weight[FUNCTIONS] = {0.25, 0.25, 0.5};
    err e = ERR_INIT;
    engine *m[FUNCTIONS], *host;
    float *was[FUNCTIONS];
    diverge(m, (const int[]){0, 0, 0}, PRECISION_FP32, was);
    engine_floats(m[1], &e)[5] = NAN;
    CHECK_OK(engine_state_changed(m[1], &e), e);
    CHECK_ERR(engine_average(m, weight, FUNCTIONS, false, &e), e, ERR_INVALID, "NaN or infinity");
    drop_all(m, was);
    engine_config c = config("reference");
    e = (err)ERR_INIT;
    CHECK_OK(engine_compile(&c, &host, &e), e);
    CHECK(!engine_averages(&host, 1));
    CHECK_ERR(engine_average(&host, weight, 1, false, &e), e, ERR_UNSUPPORTED,
              "cannot be averaged");
    engine_free(host);
}

/* ---- models of several processes ------------------------------------------------------------- */

/* Each engine is in the place of a process. What they tell each other: */
typedef struct company {
    engine *m[FUNCTIONS];
    float *was[FUNCTIONS];
    engine_peer of[FUNCTIONS];
    backend_ipc_handle mean;
    engine_fingerprint fingerprint;
} company;

static const double shares[FUNCTIONS] = {0.25, 0.35, 0.4};

/* A replacement's model has no weights before it takes the mean; all that it is, is the mean then.
 */
static void newcomer_adopts(const company *c, backend_precision precision)
{
    static work w;
    err e = ERR_INIT;
    engine *m;
    engine_result a, b;
    engine_config blank = config("cuda");
    blank.precision = precision;
    blank.blank = true;
    CHECK_OK(engine_compile(&blank, &m, &e), e);
    long copied = fake_copies_in();
    CHECK_OK(engine_adopt(m, &c->mean, &c->fingerprint, &e), e);
    CHECK_INT(fake_copies_in(), copied);
    size_t bytes = engine_state_floats(m) * sizeof(float);
    CHECK(memcmp(engine_floats(m, &e), engine_floats(c->m[0], &e), bytes) == 0);
    draw_work(&w, 97, BATCH);
    CHECK_OK(engine_eval(m, &w.b, &a, &e), e);
    CHECK_OK(engine_eval(c->m[0], &w.b, &b, &e), e);
    CHECK(a.loss_sum == b.loss_sum);
    engine_free(m);
}

/* Function 0 leads. */
static void meet(company *c, const double *weight, backend_precision precision)
{
    err e = ERR_INIT;
    diverge(c->m, (const int[]){0, 0, 0}, precision, c->was);
    CHECK_OK(engine_reduce_root(c->m[0], NULL, 0, &c->mean, &e), e);
    for (int i = 0; i < FUNCTIONS; i++) {
        CHECK_OK(engine_lend(c->m[i], &c->of[i].where, &e), e);
        CHECK_OK(engine_fingerprint_now(c->m[i], &c->of[i].fingerprint, &e), e);
        c->of[i].weight = weight[i];
    }
}

static int average_company(company *c, int *bad, err *e)
{
    return engine_average_ipc(c->m[0], c->of, FUNCTIONS, &c->fingerprint, bad, e);
}

static void part(company *c)
{
    drop_all(c->m, c->was);
    CHECK_INT(fake_opened(), 0);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST_LIMIT(models_of_several_processes_are_averaged_on_their_device_with_the_servers_bits, 60)
{
    static const double weights[][FUNCTIONS] = {{0.25, 0.35, 0.4}, {0, 0.375, 0.625}};
    static work w;
    for (int i = 0; i < 4; i++) {
        err e = ERR_INIT;
        company c;
        engine_result a, b;
        int bad;
        meet(&c, weights[i / 2], i % 2 ? PRECISION_BF16 : PRECISION_FP32);
        CHECK_OK(average_company(&c, &bad, &e), e);
        for (int k = 0; k < FUNCTIONS; k++) { /* nobody's model has changed yet */
            engine_fingerprint now;
            CHECK_OK(engine_fingerprint_now(c.m[k], &now, &e), e);
            CHECK(now.sum == c.of[k].fingerprint.sum && now.step == c.of[k].fingerprint.step);
        }
        long copied = fake_copies_in();
        for (int k = 1; k < FUNCTIONS; k++)
            CHECK_OK(engine_adopt(c.m[k], &c.mean, &c.fingerprint, &e), e);
        CHECK_INT(fake_copies_in(), copied); /* not through the host */
        CHECK_OK(engine_adopt(c.m[0], &c.mean, &c.fingerprint, &e), e);
        check_mean(c.m, c.was, weights[i / 2], 0);
        newcomer_adopts(&c, i % 2 ? PRECISION_BF16 : PRECISION_FP32);
        draw_work(&w, 99, BATCH);
        /* from one state, one step is one step */
        CHECK_OK(engine_train(c.m[0], &w.b, 0.1, &a, &e), e);
        CHECK_OK(engine_train(c.m[2], &w.b, 0.1, &b, &e), e);
        CHECK(a.loss_sum == b.loss_sum);
        part(&c);
    }
}

/* What may happen to a process of the company at any time. */
static void kill_second(void *user)
{
    company *c = user;
    engine_free(c->m[1]);
    c->m[1] = NULL;
}

static void train_second(void *user)
{
    static work w;
    company *c = user;
    err e = ERR_INIT;
    engine_result r;
    draw_work(&w, 77, BATCH);
    CHECK_OK(engine_train(c->m[1], &w.b, 0.1, &r, &e), e);
}

/* The mean is right, or it is none, and whose fault it was is known. True: it is one. */
static bool average_disturbed(int calls, void (*what)(void *), bool known)
{
    static float got[8192], want[8192];
    err e = ERR_INIT;
    company c;
    int bad;
    meet(&c, shares, PRECISION_FP32);
    size_t count = engine_state_floats(c.m[0]);
    CHECK(count <= sizeof want / sizeof *want);
    if (known) /* of a round before */
        CHECK_OK(average_company(&c, &bad, &e), e);
    fake_interrupt(calls, what, &c);
    int rc = average_company(&c, &bad, &e);
    fake_interrupt(0, NULL, NULL);
    if (rc == 0) {
        CHECK(merge_floats_generic(want, (const void *const[]){c.was[0], c.was[1], c.was[2]},
                                   shares, FUNCTIONS, count));
        CHECK_OK(engine_adopt(c.m[0], &c.mean, &c.fingerprint, &e), e);
        memcpy(got, engine_floats(c.m[0], &e), count * sizeof *got);
        CHECK(memcmp(got, want, count * sizeof *got) == 0);
    } else {
        CHECK_INT(e.code, ERR_CORRUPT);
        CHECK_INT(bad, 1);
        /* it can be published yet */
        CHECK(memcmp(engine_floats(c.m[0], &e), c.was[0], count * sizeof *got) == 0);
    }
    part(&c);
    return rc == 0;
}

static void disturb(void (*what)(void *))
{
    for (int known = 0; known < 2; known++) {
        int right = 0, calls = 0;
        for (; right < 3 && calls < 100; calls++)
            right += average_disturbed(calls, what, known);
        CHECK(right == 3 && calls > 5); /* at first it was too early, at last too late to matter */
    }
}

TEST_LIMIT(a_process_killed_in_the_middle_is_never_part_of_a_mean, 120)
{
    disturb(kill_second);
}

TEST_LIMIT(nor_is_one_that_has_trained_on, 120)
{
    disturb(train_second);
}

static void kill_leader(void *user)
{
    company *c = user;
    engine_free(c->m[0]);
    c->m[0] = NULL;
}

TEST_LIMIT(a_mean_whose_process_ends_is_adopted_whole_or_not_at_all, 120)
{
    int right = 0, calls = 0;
    for (; right < 1 && calls < 100; calls++) {
        err e = ERR_INIT;
        company c;
        engine_fingerprint now;
        int bad;
        meet(&c, shares, PRECISION_FP32);
        CHECK_OK(average_company(&c, &bad, &e), e);
        CHECK_OK(engine_adopt(c.m[2], &c.mean, &c.fingerprint, &e), e);
        fake_interrupt(calls, kill_leader, &c);
        right += engine_adopt(c.m[1], &c.mean, &c.fingerprint, &e) == 0;
        fake_interrupt(0, NULL, NULL);
        if (right) {
            CHECK_OK(engine_fingerprint_now(c.m[1], &now, &e), e);
            CHECK(now.sum == c.fingerprint.sum && now.step == c.fingerprint.step);
        } else {
            CHECK_INT(e.code, ERR_CORRUPT);
            const float *left = engine_floats(c.m[1], &e);
            for (size_t i = 0; i < engine_state_floats(c.m[1]); i++)
                CHECK(left[i] == 0.0f);
        }
        CHECK(c.m[0] == NULL || right);
        part(&c);
    }
    CHECK(right == 1 && calls > 2);
}

TEST(processes_whose_device_shares_no_memory_say_so)
{
    err e = ERR_INIT;
    company c;
    backend_ipc_handle mean;
    engine *host, *other;
    int bad;
    meet(&c, shares, PRECISION_FP32);
    fake_refuse_sharing(true); /* walls that came between */
    CHECK_ERR(average_company(&c, &bad, &e), e, ERR_CORRUPT, "not shared between these processes");
    CHECK_INT(bad, 1); /* its own it need not open */
    CHECK_ERR(engine_adopt(c.m[1], &c.mean, &c.fingerprint, &e), e, ERR_UNSUPPORTED, "not shared");
    engine_config own = config("cuda");
    CHECK_OK(engine_compile(&own, &other, &e), e);
    size_t held = cuda_memory_held();
    CHECK_ERR(engine_lend(other, &c.of[1].where, &e), e, ERR_UNSUPPORTED, "not shared");
    /* its own mean */
    CHECK_ERR(engine_reduce_root(other, NULL, 0, &mean, &e), e, ERR_UNSUPPORTED, "not shared");
    CHECK_ERR(engine_reduce_root(c.m[0], &c.of[1].where, 1, &mean, &e), e, ERR_UNSUPPORTED,
              "not shared");
    CHECK_INT(cuda_memory_held(), held);
    fake_refuse_sharing(false);
    CHECK_ERR(engine_average_ipc(other, c.of, FUNCTIONS, &c.fingerprint, &bad, &e), e,
              ERR_UNSUPPORTED, "does not lead");
    engine_free(other);
    fake_gpus(2);
    own.device = 1;
    CHECK_OK(engine_compile(&own, &other, &e), e);
    CHECK_OK(engine_lend(other, &c.of[1].where, &e), e);
    CHECK_OK(engine_fingerprint_now(other, &c.of[1].fingerprint, &e), e);
    CHECK_ERR(average_company(&c, &bad, &e), e, ERR_UNSUPPORTED, "on another GPU");
    CHECK_INT(bad, 1);
    engine_free(other);
    own = config("reference");
    CHECK_OK(engine_compile(&own, &host, &e), e);
    CHECK_ERR(engine_lend(host, &c.of[1].where, &e), e, ERR_UNSUPPORTED,
              "the reference backend shares no memory");
    CHECK_ERR(engine_adopt(host, &c.mean, &c.fingerprint, &e), e, ERR_UNSUPPORTED,
              "shares no memory");
    engine_free(host);
    part(&c);
}

TEST(a_mean_that_does_not_fit_under_the_cap)
{
    err e = ERR_INIT;
    engine *m;
    backend_ipc_handle mean;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e);
    cuda_memory_cap(cuda_memory_held() + 1000);
    CHECK_ERR(engine_reduce_root(m, NULL, 0, &mean, &e), e, ERR_LIMIT,
              "the mean of models of other processes");
    cuda_memory_cap(0);
    CHECK_OK(engine_reduce_root(m, NULL, 0, &mean, &e), e);
    engine_free(m);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST(a_model_that_is_not_finite_is_named)
{
    static const double not_the_second[FUNCTIONS] = {0.5, 0, 0.5};
    err e = ERR_INIT;
    company c;
    int bad;
    meet(&c, shares, PRECISION_FP32);
    engine_floats(c.m[1], &e)[5] = INFINITY;
    CHECK_OK(engine_state_changed(c.m[1], &e), e);
    CHECK_OK(engine_fingerprint_now(c.m[1], &c.of[1].fingerprint, &e), e);
    CHECK_ERR(average_company(&c, &bad, &e), e, ERR_INVALID, "model 1 holds NaN or infinity");
    CHECK_INT(bad, 1);
    for (int i = 0; i < FUNCTIONS; i++)
        c.of[i].weight = not_the_second[i];
    CHECK_OK(average_company(&c, &bad, &e), e); /* what has no weight is not read */
    part(&c);
}

/* What is open of a process stays on the device when that has ended: there is room for two models
 * and the mean. */
TEST_LIMIT(the_next_process_finds_the_room_of_the_one_that_ended, 60)
{
    static const double both[2] = {0.5, 0.5};
    err e = ERR_INIT;
    engine *m[2];
    engine_peer of[2];
    backend_ipc_handle mean;
    engine_fingerprint fingerprint;
    int bad;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m[0], &e), e);
    size_t model = fake_memory_used();
    CHECK_OK(engine_reduce_root(m[0], NULL, 0, &mean, &e), e);
    fake_memory(fake_memory_used() + model + model / 2);
    for (int i = 0; i < 10; i++) {
        CHECK_OK(engine_compile(&c, &m[1], &e), e);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(engine_lend(m[k], &of[k].where, &e), e);
            CHECK_OK(engine_fingerprint_now(m[k], &of[k].fingerprint, &e), e);
            of[k].weight = both[k];
        }
        CHECK_OK(engine_reduce_root(m[0], &of[1].where, 1, &mean, &e), e);
        CHECK_INT(fake_opened(), 0);
        CHECK_OK(engine_average_ipc(m[0], of, 2, &fingerprint, &bad, &e), e);
        CHECK(fingerprint.sum == of[0].fingerprint.sum); /* of two alike */
        CHECK_OK(engine_adopt(m[1], &mean, &fingerprint, &e), e);
        CHECK_INT(fake_opened(), 0);
        engine_free(m[1]);
    }
    engine_free(m[0]);
    CHECK_INT(fake_memory_used(), 0);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Each thread is in the place of a process, with an engine on a device of its own. */
typedef struct rank {
    engine *m;
    const unsigned char *id;
    int number;
    double weight;
    uint64_t sum;
    bool own;
    int joined, rc; /* what the calls returned */
    long turns;     /* of its patience; -1: none has run out */
    err e;
} rank;

static int wait_turns(void *user, err *e)
{
    rank *r = user;
    sched_yield();
    return r->turns < 0 || r->turns-- > 0 ? 0 : err_set(e, ERR_TIMEOUT, "its patience is over");
}

static void *be_rank(void *of)
{
    rank *r = of;
    const backend_patience patience = {wait_turns, r};
    r->rc = r->joined = engine_comm_join(r->m, r->id, r->number, FUNCTIONS, &patience, &r->e);
    if (r->joined == 0)
        r->rc = engine_comm_mean(r->m, r->weight, &patience, &r->sum, &r->own, &r->e);
    return NULL;
}

/* Ranks 0 to `count`. */
static void run_ranks(engine *m[FUNCTIONS], rank *r, int count, const double *weight, long turns)
{
    static unsigned char id[BACKEND_COMM_ID_BYTES];
    pthread_t thread[FUNCTIONS];
    err e = ERR_INIT;
    CHECK_OK(engine_comm_id(m[0], id, &e), e);
    for (int i = 0; i < count; i++) {
        r[i] = (rank){.m = m[i],           .id = id,       .number = i,
                      .weight = weight[i], .turns = turns, .e = ERR_INIT};
        CHECK(pthread_create(&thread[i], NULL, be_rank, &r[i]) == 0);
    }
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

static void check_as_was(engine *m, const float *was)
{
    err e = ERR_INIT;
    CHECK(memcmp(engine_floats(m, &e), was, engine_state_floats(m) * sizeof *was) == 0);
}

TEST_LIMIT(models_of_several_processes_on_several_devices_are_summed_by_the_library, 60)
{
    static const double weights[][FUNCTIONS] = {
        {0.25, 0.35, 0.4}, {0, 0.375, 0.625}, {0.25, 0.35, 0.4}};
    err e = ERR_INIT;
    fake_gpus(FUNCTIONS);
    for (int i = 0; i < 3; i++) {
        engine *m[FUNCTIONS];
        float *was[FUNCTIONS];
        rank r[FUNCTIONS];
        unsigned char uuid[2][BACKEND_DEVICE_BYTES];
        diverge(m, (const int[]){0, 1, 2}, i == 2 ? PRECISION_BF16 : PRECISION_FP32, was);
        CHECK_OK(engine_comm_device(m[0], uuid[0], &e), e);
        CHECK_OK(engine_comm_device(m[1], uuid[1], &e), e);
        CHECK(memcmp(uuid[0], uuid[1], sizeof uuid[0]) != 0);
        run_ranks(m, r, FUNCTIONS, weights[i], -1);
        for (int k = 0; k < FUNCTIONS; k++) {
            CHECK_OK(r[k].rc, r[k].e);
            CHECK(r[k].sum == r[0].sum);
            check_as_was(m[k], was[k]);
        }
        const engine_fingerprint mean = {.sum = r[0].sum, .step = FUNCTIONS};
        for (int k = 0; k < FUNCTIONS; k++)
            CHECK_OK(engine_comm_take(m[k], &mean, &e), e);
        check_mean(m, was, weights[i], 1e-6);
        const engine_fingerprint other = {.sum = mean.sum + 1};
        CHECK_ERR(engine_comm_take(m[1], &other, &e), e, ERR_CORRUPT, "not what was lent");
        e = (err)ERR_INIT;
        drop_all(m, was);
    }
    CHECK_INT(cuda_memory_held(), 0);
}

TEST_LIMIT(a_rank_that_is_missing_is_waited_for_as_long_as_the_patience_lasts, 60)
{
    engine *m[FUNCTIONS];
    float *was[FUNCTIONS];
    rank r[FUNCTIONS];
    err e = ERR_INIT;
    bool own;
    uint64_t sum;
    fake_gpus(FUNCTIONS);
    diverge(m, (const int[]){0, 1, 2}, PRECISION_FP32, was);
    run_ranks(m, r, FUNCTIONS - 1, shares, 1000);
    for (int i = 0; i < FUNCTIONS - 1; i++) {
        CHECK(r[i].joined != 0);
        CHECK_ERR(r[i].rc, r[i].e, ERR_TIMEOUT, "its patience is over");
        check_as_was(m[i], was[i]);
    }
    const backend_patience patience = {wait_turns, &r[0]};
    CHECK_ERR(engine_comm_mean(m[0], 1, &patience, &sum, &own, &e), e, ERR_UNAVAILABLE, "no rank");
    run_ranks(m, r, FUNCTIONS, shares, -1); /* once all are there it goes on */
    CHECK_OK(r[0].rc, r[0].e);
    drop_all(m, was);
}

TEST_LIMIT(a_rank_that_is_not_finite_says_so_itself, 60)
{
    engine *m[FUNCTIONS];
    float *was[FUNCTIONS];
    rank r[FUNCTIONS];
    err e = ERR_INIT;
    fake_gpus(FUNCTIONS);
    for (int weighs = 0; weighs < 2; weighs++) {
        const double weight[FUNCTIONS] = {0.5, weighs ? 0.25 : 0, weighs ? 0.25 : 0.5};
        diverge(m, (const int[]){0, 1, 2}, PRECISION_FP32, was);
        engine_floats(m[1], &e)[5] = INFINITY;
        CHECK_OK(engine_state_changed(m[1], &e), e);
        run_ranks(m, r, FUNCTIONS, weight, 200000);
        if (weighs) {
            CHECK_ERR(r[1].rc, r[1].e, ERR_INVALID, "NaN or infinity");
            CHECK(r[1].own && !r[0].own && !r[2].own);
            CHECK_ERR(r[0].rc, r[0].e, ERR_TIMEOUT, "its patience is over");
        } else {
            CHECK_OK(r[1].rc, r[1].e); /* what has no weight is not read */
        }
        drop_all(m, was);
    }
    CHECK_INT(cuda_memory_held(), 0);
}

TEST_LIMIT(where_there_can_be_no_ranks_is_said, 60)
{
    engine *m[FUNCTIONS], *host;
    float *was[FUNCTIONS];
    rank r[FUNCTIONS];
    unsigned char uuid[BACKEND_DEVICE_BYTES];
    err e = ERR_INIT;
    fake_gpus(2);
    diverge(m, (const int[]){0, 1, 0}, PRECISION_FP32, was);
    run_ranks(m, r, FUNCTIONS, shares, 200000);
    CHECK_ERR(r[0].rc, r[0].e, ERR_UNSUPPORTED, "two ranks on one device");
    setenv("KUBEML_FAKE_NCCL", "missing", 1);
    CHECK_ERR(engine_comm_device(m[0], uuid, &e), e, ERR_UNSUPPORTED, "not installed");
    unsetenv("KUBEML_FAKE_NCCL");
    drop_all(m, was);
    engine_config c = config("reference");
    e = (err)ERR_INIT;
    CHECK_OK(engine_compile(&c, &host, &e), e);
    CHECK_ERR(engine_comm_device(host, uuid, &e), e, ERR_UNSUPPORTED, "has no communicators");
    engine_comm_leave(host);
    engine_free(host);
}
