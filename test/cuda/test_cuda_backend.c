/* test_cuda_backend.c: the CUDA backend's own logic on the fake device: memory under a cap, the
 * choice of algorithms and its cache, graphs, bf16, a device that fails. */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "cuda/cuda_devices.h"
#include "cuda/cuda_memory.h"
#include "engine.h"
#include "fake_driver.h"
#include "merge_variants.h"
#include "rng.h"
#include "test.h"
#include "zoo/zoo.h"

enum { BATCH = 4, CLASSES = 10 };

void cuda_algorithms_forget(void); /* cuda_algo.c, for tests */

static int small(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_conv2d(g, x, (conv2d_options){.filters = 6, .kernel = 3, .padding = 1});
    x = graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){0}));
    x = graph_max_pool2d(g, x, (pool_options){.kernel = 2});
    x = graph_conv2d(g, x, (conv2d_options){.filters = 8, .kernel = 3});
    x = graph_flatten(g, graph_relu(g, x));
    return graph_linear(g, x, outputs, (linear_options){0});
}

static engine_config config(const char *on)
{
    return (engine_config){.build = small,
                           .input = {3, 2, 12, 12},
                           .outputs = CLASSES,
                           .batch = BATCH,
                           .backend = on,
                           .optim = {.kind = OPTIM_SGD, .momentum = 0.9},
                           .seed = 3};
}

typedef struct work {
    float x[BATCH * 2 * 12 * 12];
    int32_t labels[BATCH];
    engine_batch b;
} work;

static void draw_work(work *w, uint64_t key, int n)
{
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, key);
    for (size_t i = 0; i < sizeof w->x / sizeof *w->x; i++)
        w->x[i] = 2 * rng_uniform(&r) - 1;
    for (int i = 0; i < BATCH; i++)
        w->labels[i] = (int32_t)rng_below(&r, CLASSES);
    w->b = (engine_batch){.n = n, .x = w->x, .labels = w->labels};
}

/* Relative distance of the states of two models after some steps. */
static double distance(engine *a, engine *b, int steps)
{
    static work w;
    err e = ERR_INIT;
    engine_result r;
    for (int i = 0; i < steps; i++) {
        draw_work(&w, (uint64_t)i, i == 1 ? BATCH - 1 : BATCH);
        CHECK_OK(engine_train(a, &w.b, 0.05, &r, &e), e);
        CHECK_OK(engine_train(b, &w.b, 0.05, &r, &e), e);
    }
    const float *x = engine_floats(a, &e), *y = engine_floats(b, &e);
    double apart = 0, scale = 0;
    for (size_t i = 0; i < engine_weights_floats(a); i++) {
        apart += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        scale += (double)y[i] * (double)y[i];
    }
    return sqrt(apart / scale);
}

static double train_apart(engine_config c, int steps)
{
    err e = ERR_INIT;
    engine *m, *truth;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    c.backend = "reference", c.precision = PRECISION_FP32;
    CHECK_OK(engine_compile(&c, &truth, &e), e);
    double apart = distance(m, truth, steps);
    engine_free(m);
    engine_free(truth);
    return apart;
}

/* ---- memory ---------------------------------------------------------------------------------- */

TEST(over_the_cap_is_an_error_that_names_the_layer_and_the_need)
{
    err e = ERR_INIT;
    engine *first, *second;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &first, &e), e);
    size_t held = cuda_memory_held();
    CHECK(held > 0 && held == fake_memory_used());
    c.device_memory = held + held / 2; /* room for half of another */
    CHECK_ERR(engine_compile(&c, &second, &e), e, ERR_NOMEM, "layer conv1");
    CHECK_CONTAINS(e.message, "MiB of GPU memory are needed");
    CHECK_INT(cuda_memory_held(), held);
    static work w; /* the neighbour feels nothing */
    engine_result r;
    draw_work(&w, 1, BATCH);
    CHECK_OK(engine_train(first, &w.b, 0.1, &r, &e), e);
    engine_free(first);
    CHECK_INT(cuda_memory_held(), 0);
    CHECK_OK(engine_compile(&c, &second, &e), e);
    engine_free(second);
    CHECK_INT(fake_memory_used(), 0);
}

TEST(a_full_device_is_an_error_too)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    fake_memory(1 << 10);
    CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_NOMEM, "layer conv1");
    CHECK_INT(cuda_memory_held(), 0);
}

/* A cap that leaves no room for a library's workspace leaves our own kernels. */
TEST(a_workspace_without_room_is_done_without)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    fake_favourite(1); /* the way that wants a workspace */
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward reversed");
    size_t all = cuda_memory_held();
    engine_free(m);
    cuda_algorithms_forget();
    setenv("KUBEML_CUDA_CACHE", "/dev/null/none", 1);
    c.device_memory = all - 512;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK(strstr(engine_choices(m), "conv2 forward reversed") == NULL);
    engine_free(m);
}

/* ---- algorithms ------------------------------------------------------------------------------ */

TEST(the_fastest_way_is_found_once_and_kept)
{
    err e = ERR_INIT;
    engine *m;
    char path[512];
    snprintf(path, sizeof path, "%s/algorithms", test_tmp());
    setenv("KUBEML_CUDA_CACHE", path, 1);
    engine_config c = config("cuda");
    fake_favourite(0);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    CHECK_CONTAINS(engine_choices(m), "conv2 data direct\n");
    CHECK_CONTAINS(engine_choices(m), "conv2 weights direct\n");
    CHECK_CONTAINS(engine_choices(m), "fc1 head fused\n");
    CHECK(strstr(engine_choices(m), "conv1 data") == NULL); /* nobody needs the input's gradient */
    engine_free(m);
    long first = fake_measurements();
    CHECK(first > 0);
    fake_favourite(-1); /* another process: memory is gone, the file is there */
    cuda_algorithms_forget();
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_INT(fake_measurements(), first);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    engine_free(m);
    CHECK(unlink(path) == 0);
    cuda_algorithms_forget();
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK(fake_measurements() > first);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward own\n");
    engine_free(m);
}

TEST(what_one_process_has_measured_another_is_told)
{
    err e = ERR_INIT;
    engine *m;
    char path[512];
    setenv("KUBEML_CUDA_CACHE", "", 1);
    engine_config c = config("cuda");
    fake_favourite(0);
    CHECK(!backend_learned("cuda"));
    CHECK_OK(engine_compile(&c, &m, &e), e);
    engine_free(m);
    char *learned = backend_learned("cuda");
    long first = fake_measurements();
    CHECK(learned && first > 0);
    CHECK_CONTAINS(learned, "\tdirect\n");
    cuda_algorithms_forget(); /* another process, of a machine whose file says otherwise */
    snprintf(path, sizeof path, "%s/algorithms", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f);
    for (const char *line = learned; *line; line = strchr(line, '\n') + 1)
        fprintf(f, "%.*s\town\n", (int)strcspn(line, "\t"), line);
    CHECK(fclose(f) == 0);
    setenv("KUBEML_CUDA_CACHE", path, 1);
    backend_known("cuda", "of another form\n");
    backend_known("cuda", learned);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    CHECK_INT(fake_measurements(), first);
    CHECK(!backend_learned("cuda"));
    engine_free(m);
    backend_known("reference", learned); /* which measures nothing */
    CHECK(!backend_learned("reference"));
    free(learned);
}

TEST(a_damaged_cache_is_measured_again)
{
    err e = ERR_INIT;
    engine *m;
    char path[512];
    snprintf(path, sizeof path, "%s/algorithms", test_tmp());
    setenv("KUBEML_CUDA_CACHE", path, 1);
    FILE *f = fopen(path, "w");
    CHECK(f);
    fputs("no tab\nkey\tan-algorithm-with-a-name-that-is-much-too-long-to-be-one\n\t\n", f);
    CHECK(fclose(f) == 0);
    engine_config c = config("cuda");
    fake_favourite(0);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    engine_free(m);
}

/* What fails leaves nothing behind that would be taken for the next one's failure. */
TEST(a_way_that_fails_is_not_taken_and_harms_no_other)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    fake_favourite(1);
    fake_break(0); /* which is tried before it */
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward reversed\n");
    engine_free(m);
    cuda_algorithms_forget();
    fake_break(1); /* the last */
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward own\n");
    engine_free(m);
}

TEST(what_was_known_and_fails_here_is_measured_again)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    fake_favourite(0);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    engine_free(m);
    fake_break(0);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward own\n");
    engine_free(m);
}

/* Our own way is timed first, and the fastest. */
TEST(an_idle_device_is_woken_before_anything_is_timed)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    fake_favourite(-1);
    fake_asleep(5000);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward own\n");
    engine_free(m);
}

TEST(what_is_known_has_run_once_before_it_is_captured)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    fake_favourite(0);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    engine_free(m);
    fake_first_runs_captured(); /* another process, which is told what to take */
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    CHECK_INT(fake_first_runs_captured(), 0);
    engine_free(m);
}

TEST_LIMIT(every_way_computes_the_same, 60)
{
    for (int favourite = -1; favourite <= 2; favourite++)
        for (int fused = 0; fused < 2; fused++) {
            cuda_algorithms_forget();
            fake_favourite(favourite);
            fake_favour_few_launches(fused);
            CHECK(train_apart(config("cuda"), 3) < 1e-5);
        }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

TEST(a_step_is_one_graph)
{
    err e = ERR_INIT;
    engine *m;
    static work w;
    engine_result r;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e);
    long before = fake_replays();
    for (int i = 0; i < 3; i++) {
        draw_work(&w, (uint64_t)i, BATCH - i);
        CHECK_OK(engine_train(m, &w.b, 0.05, &r, &e), e);
    }
    CHECK_INT(fake_replays() - before, 3);
    engine_free(m);
}

/* ---- a share on the device ------------------------------------------------------------------- */

enum { ROWS = 11, SAMPLE = 2 * 12 * 12 };

typedef struct shared {
    uint8_t x[ROWS][SAMPLE];
    const uint8_t *rows[ROWS];
    int32_t labels[ROWS];
    uint64_t keys[ROWS];
    backend_share s;
} shared;

static const float scale[2] = {0.01f, 0.02f}, shift[2] = {-1, -2};

static void draw_share(shared *h)
{
    rng r;
    rng_init(&r, 5, RNG_TEST, 0, 0);
    for (int i = 0; i < ROWS; i++) {
        h->rows[i] = h->x[i];
        h->labels[i] = (int32_t)rng_below(&r, CLASSES);
        h->keys[i] = 100 + (uint64_t)i;
        for (int j = 0; j < SAMPLE; j++)
            h->x[i][j] = (uint8_t)rng_u32(&r);
    }
    h->s = (backend_share){.rows = ROWS, .x = h->rows, .labels = h->labels, .sample = h->keys,
                           .scale = scale, .shift = shift};
}

/* The same batches, one call each. */
static void train_by_batch(engine *m, const shared *h, const uint32_t *order, const double *lr,
                           double *loss_sum)
{
    err e = ERR_INIT;
    engine_result r;
    for (int first = 0; first < ROWS; first += BATCH) {
        const void *rows[BATCH];
        int32_t labels[BATCH];
        int n = ROWS - first < BATCH ? ROWS - first : BATCH;
        for (int i = 0; i < n; i++) {
            rows[i] = h->x[order[first + i]];
            labels[i] = h->labels[order[first + i]];
        }
        engine_batch b = {.n = n, .type = INPUT_UINT8, .rows = rows, .labels = labels,
                          .scale = scale, .shift = shift};
        CHECK_OK(engine_train(m, &b, lr[first / BATCH], &r, &e), e);
        *loss_sum += r.loss_sum;
    }
}

TEST(steps_over_a_share_equal_steps_from_the_host)
{
    static const uint32_t order[ROWS] = {3, 9, 0, 10, 4, 4, 7, 1, 2, 8, 5};
    static const double lr[] = {0.1, 0.05, 0.02};
    static shared h;
    err e = ERR_INIT;
    engine *a, *b;
    engine_result r;
    double loss_sum = 0;
    engine_config c = config("cuda");
    draw_share(&h);
    CHECK_OK(engine_compile(&c, &a, &e), e);
    CHECK_OK(engine_compile(&c, &b, &e), e);
    CHECK_OK(engine_share(a, &h.s, &e), e);
    backend_steps steps = {.order = order, .rows = ROWS, .batch = BATCH, .lr = lr};
    long before = fake_replays();
    CHECK_OK(engine_train_share(a, &steps, &r, &e), e);
    CHECK_INT(fake_replays() - before, 3);
    CHECK_INT(r.n, ROWS);
    train_by_batch(b, &h, order, lr, &loss_sum);
    CHECK_NEAR(r.loss_sum, loss_sum, 1e-12);
    CHECK(memcmp(engine_floats(a, &e), engine_floats(b, &e),
                 engine_state_floats(a) * sizeof(float)) == 0);
    for (size_t i = 0; i < engine_counter_count(a); i++)
        CHECK_INT(engine_counters(a, &e)[i], engine_counters(b, &e)[i]);
    engine_free(a);
    engine_free(b);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST(a_share_has_limits)
{
    static const uint32_t order[1] = {ROWS};
    static const double lr[1] = {0.1};
    static shared h;
    err e = ERR_INIT;
    engine *m;
    engine_result r;
    engine_config c = config("cuda");
    draw_share(&h);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    backend_steps steps = {.order = order, .rows = 1, .batch = 1, .lr = lr};
    CHECK_ERR(engine_train_share(m, &steps, &r, &e), e, ERR_INVALID, "of a share of 0");
    CHECK_OK(engine_share(m, &h.s, &e), e);
    CHECK_ERR(engine_train_share(m, &steps, &r, &e), e, ERR_INVALID, "row 11 of a share of 11");
    steps.batch = BATCH + 1;
    CHECK_ERR(engine_train_share(m, &steps, &r, &e), e, ERR_INVALID, "batches of 5");
    h.labels[2] = CLASSES;
    CHECK_ERR(engine_share(m, &h.s, &e), e, ERR_INVALID, "label 10");
    h.labels[2] = 0;
    CHECK_OK(engine_share(m, NULL, &e), e);
    cuda_memory_cap(cuda_memory_held() + 512);
    CHECK_ERR(engine_share(m, &h.s, &e), e, ERR_NOMEM, "the share's samples");
    engine_free(m);
    c.backend = "cpu";
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_ERR(engine_share(m, &h.s, &e), e, ERR_UNSUPPORTED, "keeps no share");
    engine_free(m);
}

/* ---- precision ------------------------------------------------------------------------------- */

/* A bf16 has 8 bits: each layer rounds to 2^-9 of a value. Masters stay fp32, or small updates
 * would be lost. */
TEST_LIMIT(bf16_stays_near_and_keeps_fp32_masters, 60)
{
    engine_config c = config("cuda");
    c.precision = PRECISION_BF16;
    for (int favourite = -1; favourite <= 0; favourite++) {
        cuda_algorithms_forget();
        fake_favourite(favourite);
        double apart = train_apart(c, 4);
        CHECK(apart < 2e-2);
        CHECK(apart > 1e-7); /* it does compute in bf16 */
    }
    err e = ERR_INIT;
    engine *m;
    static work w;
    engine_result r;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    draw_work(&w, 1, BATCH);
    float before = engine_floats(m, &e)[0], last = before;
    for (int i = 0; i < 8; i++) {
        CHECK_OK(engine_train(m, &w.b, 1e-5, &r, &e), e);
        CHECK(engine_floats(m, &e)[0] != last); /* each step moves less than a bf16 can hold */
        last = engine_floats(m, &e)[0];
    }
    CHECK(fabsf(last - before) < fabsf(before) / 256);
    engine_free(m);
}

/* ---- failure --------------------------------------------------------------------------------- */

TEST(a_device_that_fails_is_unavailable)
{
    err e = ERR_INIT;
    engine *m;
    static work w;
    engine_result r;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e);
    draw_work(&w, 1, BATCH);
    CHECK_OK(engine_train(m, &w.b, 0.05, &r, &e), e);
    for (int calls = 0; calls < 4; calls++) {
        fake_fail_after(calls);
        CHECK_ERR(engine_train(m, &w.b, 0.05, &r, &e), e, ERR_UNAVAILABLE, "GPU failed");
    }
    CHECK(engine_floats(m, &e) == NULL);
    engine_free(m);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST(a_device_that_is_not_there_is_named)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    c.device = 3;
    CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_UNSUPPORTED, "GPU 3");
}

TEST(a_warm_process_opens_its_device_before_the_first_model)
{
    err e = ERR_INIT;
    engine *m, *other;
    engine_config c = config("cuda");
    CHECK_OK(backend_warm("cuda", 0, &e), e);
    CHECK_INT(fake_opens(), 1);
    CHECK_OK(backend_warm("cuda", 0, &e), e); /* it is there */
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_INT(fake_opens(), 1);
    CHECK_OK(engine_compile(&c, &other, &e), e); /* two models have a stream each */
    CHECK_INT(fake_opens(), 2);
    engine_free(m);
    engine_free(other);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_INT(fake_opens(), 2);
    fake_fail_after(0); /* one that has failed is not kept */
    engine_free(m);
    fake_fail_after(-1);
    cuda_devices_forget(cuda_driver);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_INT(fake_opens(), 3);
    engine_free(m);
    CHECK_OK(backend_warm("reference", 0, &e), e);
    CHECK_ERR(backend_warm("cuda", 4, &e), e, ERR_UNSUPPORTED, "GPU 4");
}

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
    backend_loan mean;
    engine_seal seal;
} company;

static const double shares[FUNCTIONS] = {0.25, 0.35, 0.4};

/* Function 0 leads. */
static void meet(company *c, const double *weight, backend_precision precision)
{
    err e = ERR_INIT;
    diverge(c->m, (const int[]){0, 0, 0}, precision, c->was);
    CHECK_OK(engine_lead(c->m[0], NULL, 0, &c->mean, &e), e);
    for (int i = 0; i < FUNCTIONS; i++) {
        CHECK_OK(engine_lend(c->m[i], &c->of[i].where, &e), e);
        CHECK_OK(engine_sealed(c->m[i], &c->of[i].seal, &e), e);
        c->of[i].weight = weight[i];
    }
}

static int average_company(company *c, int *bad, err *e)
{
    return engine_average_lent(c->m[0], c->of, FUNCTIONS, &c->seal, bad, e);
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
            engine_seal now;
            CHECK_OK(engine_sealed(c.m[k], &now, &e), e);
            CHECK(now.sum == c.of[k].seal.sum && now.step == c.of[k].seal.step);
        }
        long copied = fake_copies_in();
        for (int k = 1; k < FUNCTIONS; k++)
            CHECK_OK(engine_adopt(c.m[k], &c.mean, &c.seal, &e), e);
        CHECK_INT(fake_copies_in(), copied); /* not through the host */
        CHECK_OK(engine_adopt(c.m[0], &c.mean, &c.seal, &e), e);
        check_mean(c.m, c.was, weights[i / 2], 0);
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
    if (known) /* of a round before: their memory is open */
        CHECK_OK(average_company(&c, &bad, &e), e);
    fake_interrupt(calls, what, &c);
    int rc = average_company(&c, &bad, &e);
    fake_interrupt(0, NULL, NULL);
    if (rc == 0) {
        CHECK(merge_floats_generic(want, (const void *const[]){c.was[0], c.was[1], c.was[2]},
                                   shares, FUNCTIONS, count));
        CHECK_OK(engine_adopt(c.m[0], &c.mean, &c.seal, &e), e);
        memcpy(got, engine_floats(c.m[0], &e), count * sizeof *got);
        CHECK(memcmp(got, want, count * sizeof *got) == 0);
    } else {
        CHECK(e.code == ERR_CORRUPT || (e.code == ERR_UNSUPPORTED && !known));
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
        engine_seal now;
        int bad;
        meet(&c, shares, PRECISION_FP32);
        CHECK_OK(average_company(&c, &bad, &e), e);
        CHECK_OK(engine_adopt(c.m[2], &c.mean, &c.seal, &e), e);
        fake_interrupt(calls, kill_leader, &c);
        right += engine_adopt(c.m[1], &c.mean, &c.seal, &e) == 0;
        fake_interrupt(0, NULL, NULL);
        if (right) {
            CHECK_OK(engine_sealed(c.m[1], &now, &e), e);
            CHECK(now.sum == c.seal.sum && now.step == c.seal.step);
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
    backend_loan mean;
    engine *host, *other;
    int bad;
    meet(&c, shares, PRECISION_FP32);
    fake_refuse_sharing(true); /* walls that came between */
    CHECK_ERR(average_company(&c, &bad, &e), e, ERR_UNSUPPORTED,
              "not shared between these processes");
    CHECK_INT(bad, 1); /* its own it need not open */
    CHECK_ERR(engine_adopt(c.m[1], &c.mean, &c.seal, &e), e, ERR_UNSUPPORTED, "not shared");
    engine_config own = config("cuda");
    CHECK_OK(engine_compile(&own, &other, &e), e);
    size_t held = cuda_memory_held();
    CHECK_ERR(engine_lend(other, &c.of[1].where, &e), e, ERR_UNSUPPORTED, "not shared");
    /* its own mean */
    CHECK_ERR(engine_lead(other, NULL, 0, &mean, &e), e, ERR_UNSUPPORTED, "not shared");
    CHECK_ERR(engine_lead(c.m[0], &c.of[1].where, 1, &mean, &e), e, ERR_UNSUPPORTED, "not shared");
    CHECK_INT(cuda_memory_held(), held);
    fake_refuse_sharing(false);
    CHECK_ERR(engine_average_lent(other, c.of, FUNCTIONS, &c.seal, &bad, &e), e, ERR_UNSUPPORTED,
              "does not lead");
    engine_free(other);
    fake_gpus(2);
    own.device = 1;
    CHECK_OK(engine_compile(&own, &other, &e), e);
    CHECK_OK(engine_lend(other, &c.of[1].where, &e), e);
    CHECK_OK(engine_sealed(other, &c.of[1].seal, &e), e);
    CHECK_ERR(average_company(&c, &bad, &e), e, ERR_UNSUPPORTED, "on another GPU");
    CHECK_INT(bad, 1);
    engine_free(other);
    own = config("reference");
    CHECK_OK(engine_compile(&own, &host, &e), e);
    CHECK_ERR(engine_lend(host, &c.of[1].where, &e), e, ERR_UNSUPPORTED,
              "the reference backend shares no memory");
    CHECK_ERR(engine_adopt(host, &c.mean, &c.seal, &e), e, ERR_UNSUPPORTED, "shares no memory");
    engine_free(host);
    part(&c);
}

TEST(a_mean_that_does_not_fit_under_the_cap)
{
    err e = ERR_INIT;
    engine *m;
    backend_loan mean;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e);
    cuda_memory_cap(cuda_memory_held() + 1000);
    CHECK_ERR(engine_lead(m, NULL, 0, &mean, &e), e, ERR_NOMEM,
              "the mean of models of other processes");
    cuda_memory_cap(0);
    CHECK_OK(engine_lead(m, NULL, 0, &mean, &e), e);
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
    CHECK_OK(engine_sealed(c.m[1], &c.of[1].seal, &e), e);
    CHECK_ERR(average_company(&c, &bad, &e), e, ERR_INVALID, "model 1 holds NaN or infinity");
    CHECK_INT(bad, 1);
    for (int i = 0; i < FUNCTIONS; i++)
        c.of[i].weight = not_the_second[i];
    CHECK_OK(average_company(&c, &bad, &e), e); /* what has no weight is not read */
    part(&c);
}

TEST_LIMIT(processes_that_came_and_went_are_closed, 60)
{
    static const double both[2] = {0.5, 0.5};
    err e = ERR_INIT;
    engine *m[2];
    engine_peer of[2];
    backend_loan mean;
    engine_seal seal;
    int bad, most = 0;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m[0], &e), e);
    CHECK_OK(engine_lead(m[0], NULL, 0, &mean, &e), e);
    for (int i = 0; i < 140; i++) { /* more than are kept open */
        CHECK_OK(engine_compile(&c, &m[1], &e), e);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(engine_lend(m[k], &of[k].where, &e), e);
            CHECK_OK(engine_sealed(m[k], &of[k].seal, &e), e);
            of[k].weight = both[k];
        }
        CHECK_OK(engine_average_lent(m[0], of, 2, &seal, &bad, &e), e);
        CHECK(seal.sum == of[0].seal.sum); /* of two alike */
        most = fake_opened() > most ? fake_opened() : most;
        engine_free(m[1]);
    }
    CHECK(most > 2 && most < 140);
    engine_free(m[0]);
    CHECK_INT(fake_opened(), 0);
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
        const engine_seal mean = {.sum = r[0].sum, .step = FUNCTIONS};
        for (int k = 0; k < FUNCTIONS; k++)
            CHECK_OK(engine_comm_take(m[k], &mean, &e), e);
        check_mean(m, was, weights[i], 1e-6);
        const engine_seal other = {.sum = mean.sum + 1};
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

/* ---- models ---------------------------------------------------------------------------------- */

/* Four steps of LeNet on that backend. */
static void train_lenet(const char *on, backend_precision precision, const char *choice,
                        double loss[4])
{
    static float x[2 * 28 * 28];
    static const int32_t labels[2] = {3, 8};
    err found = ERR_INIT, e = ERR_INIT;
    engine_config c = {.build = zoo_find("lenet5", &found)->build,
                       .input = {3, 1, 28, 28},
                       .outputs = CLASSES,
                       .batch = 2,
                       .backend = on,
                       .precision = precision,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4},
                       .seed = 11};
    engine *m;
    engine_result result;
    rng r;
    rng_init(&r, 2, RNG_TEST, 0, 0);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = rng_uniform(&r);
    engine_batch b = {.n = 2, .x = x, .labels = labels};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    if (choice)
        CHECK_CONTAINS(engine_choices(m), choice);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(engine_train(m, &b, 0.05, &result, &e), e);
        loss[i] = result.loss;
    }
    engine_free(m);
}

/* Its convolutions with their pooling, and its linear layers with the loss; and all of it as layers
 * of their own. */
TEST_LIMIT(lenet_trains_as_on_the_reference, 120)
{
    static const char fused[] = "conv1 pooling fused\nconv2 pooling fused\nfc1 head fused\n";
    static const char apart[] = "conv1 pooling apart\nconv2 pooling apart\nfc1 head apart\n";
    double want[4], got[4], alone[4];
    fake_favourite(-1);
    train_lenet("reference", PRECISION_FP32, NULL, want);
    train_lenet("cuda", PRECISION_FP32, fused, got);
    CHECK_INT(fake_launches(), 9);
    cuda_algorithms_forget();
    fake_favour_few_launches(false);
    train_lenet("cuda", PRECISION_FP32, apart, alone);
    CHECK_INT(fake_launches(), 41);
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(got[i], want[i], 1e-5);
        CHECK_NEAR(alone[i], want[i], 1e-5);
    }
    CHECK(want[3] < want[0]);
}

TEST_LIMIT(fused_bf16_computes_what_its_layers_do, 120)
{
    double fused[4], apart[4];
    fake_favourite(-1);
    train_lenet("cuda", PRECISION_BF16, "fc1 head fused\n", fused);
    cuda_algorithms_forget();
    fake_favour_few_launches(false);
    train_lenet("cuda", PRECISION_BF16, "fc1 head apart\n", apart);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(fused[i], apart[i], 1e-2);
}

/* Two steps, each at once or in two calls: the gradients, then the update. */
static engine *train_in(bool two_calls, optim o, backend_precision precision)
{
    static float x[2 * 28 * 28];
    static const int32_t labels[2] = {3, 8};
    err e = ERR_INIT;
    engine_config c = {.build = zoo_find("lenet5", &e)->build,
                       .input = {3, 1, 28, 28},
                       .outputs = CLASSES,
                       .batch = 2,
                       .backend = "cuda",
                       .precision = precision,
                       .optim = o,
                       .seed = 11};
    engine *m;
    engine_result result;
    rng r;
    rng_init(&r, 2, RNG_TEST, 0, 0);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = rng_uniform(&r);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), "fc1 head fused\n");
    for (int i = 0; i < 2; i++) {
        engine_batch b = {.n = 2 - i, .x = x, .labels = labels};
        if (!two_calls)
            CHECK_OK(engine_train(m, &b, 0.05, &result, &e), e);
        else if (engine_gradients(m, &b, &result, &e) || engine_update(m, 0.05, &e))
            test_fail(__FILE__, __LINE__, "%s", e.message);
    }
    return m;
}

/* Where each gradient is made its parameter takes its step: with the bits of the optimizer's own
 * kernel. */
TEST_LIMIT(a_small_models_step_needs_no_optimizers_kernel, 240)
{
    static const optim each[] = {
        {.kind = OPTIM_SGD, .weight_decay = 1e-3},
        {.kind = OPTIM_SGD, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3},
        {.kind = OPTIM_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-3},
        {.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2}};
    err e = ERR_INIT;
    fake_favourite(-1);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        backend_precision precision = i == 1 ? PRECISION_BF16 : PRECISION_FP32;
        engine *at_once = train_in(false, each[i], precision);
        CHECK_INT(fake_launches(), 9);
        engine *in_two = train_in(true, each[i], precision);
        CHECK_INT(fake_launches(), 1); /* the update */
        size_t bytes = engine_state_floats(at_once) * sizeof(float);
        CHECK(memcmp(engine_floats(at_once, &e), engine_floats(in_two, &e), bytes) == 0);
        engine_free(at_once);
        engine_free(in_two);
    }
}

/* What is fused is timed first, and is the faster. */
TEST_LIMIT(fusing_is_not_judged_on_an_idle_device, 120)
{
    double loss[4];
    fake_favourite(-1);
    fake_asleep(5000); /* with everything fused there is nothing to choose before */
    train_lenet("cuda", PRECISION_FP32, "fc1 head fused\n", loss);
}

/* Measured once: what was faster is known to the next model, and told to other processes. */
TEST_LIMIT(what_is_fused_is_measured_and_kept, 120)
{
    double loss[4];
    setenv("KUBEML_CUDA_CACHE", "", 1);
    fake_favour_few_launches(false);
    train_lenet("cuda", PRECISION_FP32, "fc1 head apart\n", loss);
    long measured = fake_measurements();
    char *learned = backend_learned("cuda");
    CHECK(learned);
    CHECK_CONTAINS(learned, "|train head fp32 n2 c400 120br 84br 10b\tapart\n");
    fake_favour_few_launches(true);
    train_lenet("cuda", PRECISION_FP32, "fc1 head apart\n", loss);
    cuda_algorithms_forget();
    backend_known("cuda", learned);
    train_lenet("cuda", PRECISION_FP32, "conv1 pooling apart\n", loss);
    CHECK_INT(fake_measurements(), measured);
    cuda_algorithms_forget();
    train_lenet("cuda", PRECISION_FP32, "conv1 pooling fused\n", loss);
    CHECK(fake_measurements() > measured);
    free(learned);
}
