/* test_cuda_backend.c: the CUDA backend's own logic on the fake device: memory under a cap, graphs,
 * a share on the device, bf16, a device that fails. test_cuda_algorithms.c and test_cuda_average.c
 * have the rest. */
#include "cuda/cuda_devices.h"
#include "cuda/cuda_memory.h"
#include "fake_driver.h"
#include "small_model.h"
#include "zoo/zoo.h"

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

/* Compiled with room for nothing, the model names that layer. */
static void names(const char *model, int batch, const char *layer)
{
    err e = ERR_INIT;
    engine *m;
    const zoo_model *z = zoo_find(model, &e);
    char want[80];
    engine_config c = {.build = z->build,
                       .input = {3, z->channels, 32, 32},
                       .outputs = CLASSES,
                       .batch = batch,
                       .backend = "cuda",
                       .device_memory = 1 << 20,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9}};
    snprintf(want, sizeof want, "batch %d, layer %s the largest", batch, layer);
    CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_NOMEM, want);
}

/* Weights, which training keeps three times, and what is made of a batch, twice; never the input,
 * however large a batch is. */
TEST_LIMIT(the_layer_that_is_named_is_the_one_that_needs_the_most, 60)
{
    names("resnet34", 256, "layer1.0.conv1");
    names("resnet34", 1, "layer4.0.conv2");
    names("mlp", 1, "fc1");
    names("mlp", 4096, "fc1");
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
