/* test_cuda_backend.c: the CUDA backend's own logic on the fake device: memory under a cap, graphs,
 * a share on the device, bf16, a device that fails. test_cuda_algorithms.c and test_cuda_average.c
 * have the rest. */
#include <pthread.h>
#include <unistd.h>

#include "fake_driver.h"
#include "host_share.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/zoo/zoo.h"
#include "small_model.h"

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
    CHECK_ERR(engine_compile(&c, &second, &e), e, ERR_LIMIT, "layer conv1");
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
    CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_LIMIT, want);
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

/* Each kind of run when it is first asked for; no memory is taken for it then. */
static int pooled(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_max_pool2d(g, x, (pool_options){.kernel = 16});
    return graph_linear(g, graph_flatten(g, x), outputs, (linear_options){0});
}

/* Of some megabytes, which several threads gather. */
TEST(a_large_batch_travels_whole)
{
    enum { LARGE = 41, PIXELS = 3 * 64 * 64 };
    err e = ERR_INIT;
    engine *m, *truth;
    engine_config c = config("cuda");
    c.build = pooled, c.batch = LARGE;
    c.input = (shape){3, 3, 64, 64};
    float *x = malloc(sizeof *x * LARGE * PIXELS);
    float got[LARGE * CLASSES], want[LARGE * CLASSES];
    CHECK(x);
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (size_t i = 0; i < (size_t)LARGE * PIXELS; i++)
        x[i] = (float)rng_uniform(&r);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    c.backend = "reference";
    CHECK_OK(engine_compile(&c, &truth, &e), e);
    engine_batch b = {.x = x};
    for (b.n = LARGE; b.n > 0; b.n -= 20) { /* the last one by itself */
        CHECK_OK(engine_infer(m, &b, got, &e), e);
        CHECK_OK(engine_infer(truth, &b, want, &e), e);
        for (int i = 0; i < b.n * CLASSES; i++)
            CHECK_NEAR(got[i], want[i], 1e-5);
    }
    free(x);
    engine_free(m);
    engine_free(truth);
}

TEST(a_graph_is_captured_when_it_is_first_wanted)
{
    err e = ERR_INIT;
    engine *m;
    static work w;
    engine_result r;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e); /* which measures */
    engine_free(m);
    long before = fake_captures();
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_INT(fake_captures(), before);
    size_t held = cuda_memory_held(), used = fake_memory_used();
    draw_work(&w, 1, BATCH);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(engine_train(m, &w.b, 0.05, &r, &e), e);
        CHECK_INT(fake_captures() - before, i ? 4 : 1);
        CHECK_OK(engine_eval(m, &w.b, &r, &e), e);
        CHECK_OK(engine_gradients(m, &w.b, &r, &e), e);
        CHECK_OK(engine_update(m, 0.05, &e), e);
        CHECK_INT(fake_captures() - before, 4);
    }
    CHECK_INT(cuda_memory_held(), held);
    CHECK_INT(fake_memory_used(), used);
    engine_free(m);
}

/* What a graph is spoilt by is the error of the call that wanted it, and is not kept. */
TEST(a_graph_that_cannot_be_captured_is_that_calls_error)
{
    err e = ERR_INIT;
    engine *m;
    static work w;
    engine_result r;
    engine_config c = config("cuda");
    fake_favourite(0);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    draw_work(&w, 1, BATCH);
    fake_break_capture(0);
    CHECK_ERR(engine_train(m, &w.b, 0.05, &r, &e), e, ERR_UNAVAILABLE, "waits for the stream");
    CHECK_ERR(engine_train(m, &w.b, 0.05, &r, &e), e, ERR_UNAVAILABLE, "waits for the stream");
    fake_break_capture(-1);
    engine_free(m);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_OK(engine_train(m, &w.b, 0.05, &r, &e), e);
    engine_free(m);
    CHECK_INT(cuda_memory_held(), 0);
}

/* ---- the state ------------------------------------------------------------------------------- */

static void same_state(engine *a, engine *b)
{
    err e = ERR_INIT;
    CHECK(memcmp(engine_floats(a, &e), engine_floats(b, &e),
                 engine_state_floats(a) * sizeof(float)) == 0);
    for (size_t i = 0; i < engine_counter_count(a); i++)
        CHECK_INT(engine_counters(a, &e)[i], engine_counters(b, &e)[i]);
}

/* Before the first update the optimizer's state is zeros, which do not travel; a device that has
 * other ones forgets them. */
TEST(a_state_of_zeros_is_cleared_where_it_lies)
{
    err e = ERR_INIT;
    engine *a, *b;
    static work w;
    engine_result r;
    engine_config c = config("cuda");
    c.optim = (optim){.kind = OPTIM_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    CHECK_OK(engine_compile(&c, &a, &e), e);
    CHECK_OK(engine_compile(&c, &b, &e), e);
    size_t block = engine_param_count(a) * sizeof(float);
    draw_work(&w, 1, BATCH);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(engine_train(b, &w.b, 0.05, &r, &e), e);
        long before = fake_bytes_in(); /* of weights alone, then of a state with them */
        CHECK_OK(engine_import(b, engine_floats(a, &e), engine_counters(a, &e), &e), e);
        CHECK((fake_bytes_in() - before > (long)(2 * block)) == (i == 1));
        same_state(a, b);
        CHECK_OK(engine_train(a, &w.b, 0.05, &r, &e), e);
        CHECK_OK(engine_train(b, &w.b, 0.05, &r, &e), e);
        same_state(a, b);
    }
    CHECK_OK(engine_reset_optimizer(a, &e), e);
    CHECK_OK(engine_import_weights(b, engine_floats(a, &e), engine_counters(a, &e), &e), e);
    same_state(a, b);
    CHECK_OK(engine_train(a, &w.b, 0.05, &r, &e), e);
    CHECK_OK(engine_train(b, &w.b, 0.05, &r, &e), e);
    same_state(a, b);
    engine_free(a);
    engine_free(b);
}

/* A model that is brought in does not pass through the host's block, which has it when someone
 * asks. */
TEST(an_import_goes_to_the_device_alone)
{
    err e = ERR_INIT;
    engine *a, *b;
    static work w;
    engine_result r;
    engine_config c = config("cuda");
    size_t count;
    CHECK_OK(engine_compile(&c, &a, &e), e);
    CHECK_OK(engine_compile(&c, &b, &e), e);
    size_t floats = engine_state_floats(a);
    float *given = malloc(floats * sizeof *given), *was = malloc(floats * sizeof *was);
    int64_t counters[64];
    CHECK(given && was && engine_counter_count(a) <= 64);
    draw_work(&w, 1, BATCH);
    for (int weights = 0; weights <= 1; weights++) {
        CHECK_OK(engine_train(a, &w.b, 0.05, &r, &e), e);
        CHECK_OK(engine_train(b, &w.b, 0.01, &r, &e), e);
        CHECK_OK(engine_export(a, given, counters, &e), e);
        if (weights)
            CHECK_OK(engine_reset_optimizer(a, &e), e);
        float *block = engine_floats(b, &e);
        CHECK(block);
        memcpy(was, block, engine_weights_floats(b) * sizeof *was);
        CHECK_OK(weights ? engine_import_weights(b, given, counters, &e)
                         : engine_import(b, given, counters, &e),
                 e);
        CHECK(memcmp(was, block, engine_weights_floats(b) * sizeof *was) == 0);
        memset(given, 0xff, floats * sizeof *given); /* it is the caller's again */
        CHECK(engine_floats(b, &e) == block);
        same_state(a, b);
    }
    /* what is written to the block after it was asked for counts */
    CHECK_OK(engine_export(a, given, counters, &e), e);
    CHECK_OK(engine_import(b, given, counters, &e), e);
    engine_floats(b, &e)[0] = 3;
    CHECK_OK(engine_state_changed(b, &e), e);
    CHECK(engine_floats(b, &e)[0] == 3 && engine_floats(b, &e)[1] == given[1]);
    /* gradients that are out go back to the model that was brought in */
    CHECK_OK(engine_gradients(b, &w.b, &r, &e), e);
    float *grads = engine_grads(b, &count, &e);
    CHECK(grads);
    memset(grads, 0, count * sizeof *grads);
    CHECK_OK(engine_import(b, given, counters, &e), e);
    CHECK_OK(engine_update(b, 0, &e), e);
    CHECK(memcmp(engine_floats(b, &e), given, count * sizeof *given) == 0);
    /* the caller's memory may be the engine's own */
    CHECK_OK(engine_import(b, engine_floats(b, &e), engine_counters(b, &e), &e), e);
    CHECK(memcmp(engine_floats(b, &e), given, count * sizeof *given) == 0);
    engine_free(a);
    engine_free(b);
    free(given);
    free(was);
}

/* ---- gradients that the caller changes ------------------------------------------------------- */

/* One step whose first half of gradients is frozen, asked for again as who clips them does. */
static void frozen_step(engine *m, const engine_batch *b)
{
    err e = ERR_INIT;
    engine_result r;
    size_t count;
    CHECK_OK(engine_gradients(m, b, &r, &e), e);
    float *g = engine_grads(m, &count, &e);
    CHECK(g);
    memset(g, 0, count / 2 * sizeof *g);
    CHECK(engine_grads(m, &count, &e) == g);
    for (size_t i = 0; i < count / 2; i++)
        CHECK(g[i] == 0);
    CHECK_OK(engine_update(m, 0.05, &e), e);
}

TEST(gradients_that_were_changed_stay_so_and_move_alone)
{
    err e = ERR_INIT;
    engine *m, *truth;
    static work w;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e);
    c.backend = "reference";
    CHECK_OK(engine_compile(&c, &truth, &e), e);
    CHECK(distance(m, truth, 2) < 1e-5); /* momentum has begun */
    size_t block = engine_weights_floats(m) * sizeof(float);
    for (int i = 0; i < 3; i++) {
        draw_work(&w, (uint64_t)i, BATCH);
        long in = fake_bytes_in(), out = fake_bytes_out();
        frozen_step(m, &w.b);
        in = fake_bytes_in() - in, out = fake_bytes_out() - out;
        CHECK(out < (long)(block + 4096) && in < (long)(block + sizeof w + 4096));
        frozen_step(truth, &w.b);
    }
    CHECK(distance(m, truth, 0) < 1e-5);
    engine_free(m);
    engine_free(truth);
}

/* ---- a share on the device ------------------------------------------------------------------- */

enum { ROWS = 11, ROWS_EACH = 4, BLOCKS = 3, SAMPLE = 2 * 12 * 12 };

typedef struct shared {
    uint8_t x[ROWS][SAMPLE];
    float floats[ROWS][SAMPLE], targets[ROWS][CLASSES];
    int32_t labels[ROWS];
    uint64_t keys[ROWS];
    host_share host;
    backend_share s;
} shared;

static const float scale[2] = {0.01f, 0.02f}, shift[2] = {-1, -2};

static void draw_share(shared *h, backend_type type, backend_loss loss)
{
    rng r;
    rng_init(&r, 5, RNG_TEST, 0, 0);
    for (int i = 0; i < ROWS; i++) {
        h->labels[i] = (int32_t)rng_below(&r, CLASSES);
        h->keys[i] = 100 + (uint64_t)i;
        for (int j = 0; j < SAMPLE; j++) {
            h->x[i][j] = (uint8_t)rng_u32(&r);
            h->floats[i][j] = 200 * rng_uniform(&r);
        }
        for (int j = 0; j < CLASSES; j++)
            h->targets[i][j] = rng_uniform(&r);
    }
    bool bytes = type == INPUT_UINT8, mse = loss == LOSS_MSE;
    h->host = (host_share){.x = bytes ? (void *)h->x : (void *)h->floats,
                           .sample_bytes = SAMPLE * (bytes ? 1 : sizeof(float)),
                           .labels = mse ? NULL : h->labels,
                           .targets = mse ? h->targets[0] : NULL,
                           .outputs = CLASSES,
                           .keys = h->keys};
    h->s = (backend_share){.rows = ROWS, .rows_each = ROWS_EACH, .type = type,
                           .reader = {host_share_read, &h->host}, .scale = scale, .shift = shift};
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
        float targets[BATCH][CLASSES];
        int n = ROWS - first < BATCH ? ROWS - first : BATCH;
        for (int i = 0; i < n; i++) {
            uint32_t row = order[first + i];
            rows[i] = (const char *)h->host.x + row * h->host.sample_bytes;
            labels[i] = h->labels[row];
            memcpy(targets[i], h->targets[row], sizeof targets[i]);
        }
        engine_batch b = {.n = n, .type = h->s.type, .rows = rows, .scale = scale, .shift = shift};
        b.labels = h->host.labels ? labels : NULL;
        b.targets = h->host.targets ? targets[0] : NULL;
        CHECK_OK(engine_train(m, &b, lr[first / BATCH], &r, &e), e);
        *loss_sum += r.loss_sum;
    }
}

static void compare_steps(backend_type type, backend_loss loss)
{
    static const uint32_t order[ROWS] = {3, 9, 0, 10, 4, 4, 7, 1, 2, 8, 5};
    static const double lr[] = {0.1, 0.05, 0.02};
    static shared h;
    err e = ERR_INIT;
    engine *a, *b;
    engine_result r;
    double loss_sum = 0;
    engine_config c = config("cuda");
    c.loss = loss;
    draw_share(&h, type, loss);
    CHECK_OK(engine_compile(&c, &a, &e), e);
    CHECK_OK(engine_compile(&c, &b, &e), e);
    CHECK_OK(engine_share(a, &h.s, &e), e);
    CHECK_OK(engine_bring(a, order, ROWS, &e), e);
    backend_steps steps = {.order = order, .rows = ROWS, .batch = BATCH, .lr = lr};
    long before = fake_replays();
    CHECK_OK(engine_train_share(a, &steps, &r, &e), e);
    CHECK_INT(fake_replays() - before, 3);
    CHECK_INT(r.n, ROWS);
    train_by_batch(b, &h, order, lr, &loss_sum);
    CHECK_NEAR(r.loss_sum, loss_sum, 1e-12 * loss_sum);
    CHECK(memcmp(engine_floats(a, &e), engine_floats(b, &e),
                 engine_state_floats(a) * sizeof(float)) == 0);
    for (size_t i = 0; i < engine_counter_count(a); i++)
        CHECK_INT(engine_counters(a, &e)[i], engine_counters(b, &e)[i]);
    engine_free(a);
    engine_free(b);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST(steps_over_a_share_equal_steps_from_the_host)
{
    compare_steps(INPUT_UINT8, LOSS_CROSS_ENTROPY);
    compare_steps(INPUT_FLOAT, LOSS_CROSS_ENTROPY);
    compare_steps(INPUT_UINT8, LOSS_MSE);
    compare_steps(INPUT_FLOAT, LOSS_MSE);
}

/* How often, and of how many updates it was told. */
typedef struct told {
    int calls;
    uint32_t updates;
} told;

static void tell(void *of, uint32_t updates)
{
    told *t = of;
    t->calls++;
    t->updates += updates;
}

/* More updates than the device has the numbers of at once. */
TEST_LIMIT(any_number_of_steps_is_one_call, 120)
{
    enum { UPDATES = 150 };
    static uint32_t order[UPDATES];
    static double lr[UPDATES];
    static shared h;
    err e = ERR_INIT;
    engine *m[2];
    engine_result r, sum;
    engine_config c = config("cuda");
    draw_share(&h, INPUT_UINT8, LOSS_CROSS_ENTROPY);
    for (uint32_t i = 0; i < UPDATES; i++) {
        order[i] = i * 3 % ROWS;
        lr[i] = 0.001 * (i + 1);
    }
    for (int k = 0; k < 2; k++) {
        CHECK_OK(engine_compile(&c, &m[k], &e), e);
        CHECK_OK(engine_share(m[k], &h.s, &e), e);
        CHECK_OK(engine_bring(m[k], order, UPDATES, &e), e);
    }
    told heard = {.calls = 0};
    backend_steps all = {
        .order = order, .rows = UPDATES, .batch = 1, .lr = lr, .done = tell, .done_of = &heard};
    long before = fake_replays();
    double loss_sum = 0;
    int64_t correct = 0;
    CHECK_OK(engine_train_share(m[0], &all, &sum, &e), e);
    CHECK_INT(fake_replays() - before, 8 + 8 + 2 + 6); /* of eight updates each, and six of one */
    CHECK_INT(heard.calls, 8 + 8 + 2 + 6);
    CHECK_INT(heard.updates, UPDATES);
    for (uint32_t i = 0; i < UPDATES; i++) {
        backend_steps one = {.order = order + i, .rows = 1, .batch = 1, .lr = lr + i};
        CHECK_OK(engine_train_share(m[1], &one, &r, &e), e);
        loss_sum += r.loss_sum;
        correct += r.correct;
    }
    CHECK(sum.loss_sum == loss_sum);
    CHECK_INT(sum.correct, correct);
    CHECK(memcmp(engine_floats(m[0], &e), engine_floats(m[1], &e),
                 engine_state_floats(m[0]) * sizeof(float)) == 0);
    engine_free(m[0]);
    engine_free(m[1]);
}

TEST(rows_come_once_when_they_are_wanted)
{
    static const uint32_t order[ROWS] = {0, 3, 2, 9, 4, 1, 10, 5, 6, 7, 8};
    static const double lr[1] = {0.1};
    static shared h[2];
    err e = ERR_INIT;
    engine *m[2];
    engine_result r;
    engine_config c = config("cuda");
    for (int k = 0; k < 2; k++) {
        draw_share(&h[k], INPUT_UINT8, LOSS_CROSS_ENTROPY);
        h[k].s.set = "a set";
        CHECK_OK(engine_compile(&c, &m[k], &e), e);
        CHECK_OK(engine_share(m[k], &h[k].s, &e), e);
    }
    CHECK_OK(engine_bring(m[0], order, 3, &e), e);
    CHECK_INT(h[0].host.reads, 1);
    backend_steps steps = {.order = order, .rows = 4, .batch = 4, .lr = lr};
    CHECK_ERR(engine_train_share(m[0], &steps, &r, &e), e, ERR_INVALID,
              "row 9 of the share was not brought");
    CHECK_OK(engine_bring(m[1], order, 4, &e), e); /* one of the blocks is the other's */
    CHECK_INT(h[1].host.reads, 1);
    CHECK_OK(engine_train_share(m[0], &steps, &r, &e), e);
    h[0].host.fails = 2;
    CHECK_ERR(engine_bring(m[0], order, ROWS, &e), e, ERR_UNAVAILABLE, "row 4 does not come");
    CHECK_OK(engine_train_share(m[0], &steps, &r, &e), e); /* what has come stays */
    CHECK_OK(engine_bring(m[0], order, ROWS, &e), e);
    CHECK_OK(engine_bring(m[0], order, ROWS, &e), e);
    CHECK_INT(h[0].host.reads, 3);
    CHECK_OK(engine_bring(m[0], NULL, 0, &e), e);
    engine_free(m[0]);
    engine_free(m[1]);
}

/* One program's thread, whose store is slow. */
typedef struct slow {
    pthread_t thread;
    engine *m;
    shared h;
    int reading; /* atomic */
    bool failed;
} slow;

static int read_slowly(void *from, uint32_t first, backend_rows *out, err *e)
{
    slow *s = from;
    __atomic_store_n(&s->reading, 1, __ATOMIC_SEQ_CST);
    usleep(50000);
    return host_share_read(&s->h.host, first, out, e);
}

static void *bring_slowly(void *arg)
{
    static const uint32_t row[1] = {0};
    slow *s = arg;
    s->failed = engine_bring(s->m, row, 1, NULL) != 0;
    return NULL;
}

/* The second waits for what the first reads, and reads it itself where the first gets nothing. */
static void bring_together(bool fails)
{
    static const uint32_t row[1] = {0};
    static const double lr[1] = {0.1};
    static slow first;
    static shared second;
    err e = ERR_INIT;
    engine *m;
    engine_result r;
    engine_config c = config("cuda");
    first = (slow){0};
    draw_share(&first.h, INPUT_UINT8, LOSS_CROSS_ENTROPY);
    draw_share(&second, INPUT_UINT8, LOSS_CROSS_ENTROPY);
    first.h.s.reader = (backend_reader){read_slowly, &first};
    first.h.s.set = second.s.set = "a set";
    first.h.host.fails = fails;
    CHECK_OK(engine_compile(&c, &first.m, &e), e);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_OK(engine_share(first.m, &first.h.s, &e), e);
    CHECK_OK(engine_share(m, &second.s, &e), e);
    CHECK_INT(pthread_create(&first.thread, NULL, bring_slowly, &first), 0);
    while (!__atomic_load_n(&first.reading, __ATOMIC_SEQ_CST))
        usleep(100);
    CHECK_OK(engine_bring(m, row, 1, &e), e);
    backend_steps steps = {.order = row, .rows = 1, .batch = 1, .lr = lr};
    CHECK_OK(engine_train_share(m, &steps, &r, &e), e);
    pthread_join(first.thread, NULL);
    CHECK_INT(first.failed, fails);
    CHECK_INT(second.host.reads, fails);
    engine_free(first.m);
    engine_free(m);
}

TEST(two_programs_bring_a_set_together)
{
    bring_together(false);
    bring_together(true);
}

TEST(a_share_has_limits)
{
    static const uint32_t order[1] = {ROWS}, first[1] = {0};
    static const double lr[1] = {0.1};
    static shared h;
    err e = ERR_INIT;
    engine *m;
    engine_result r;
    engine_config c = config("cuda");
    draw_share(&h, INPUT_UINT8, LOSS_CROSS_ENTROPY);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    backend_steps steps = {.order = order, .rows = 1, .batch = 1, .lr = lr};
    CHECK_ERR(engine_train_share(m, &steps, &r, &e), e, ERR_INVALID, "of a share of 0");
    CHECK_ERR(engine_bring(m, first, 1, &e), e, ERR_INVALID, "of a share of 0");
    CHECK_OK(engine_share(m, &h.s, &e), e);
    CHECK_ERR(engine_train_share(m, &steps, &r, &e), e, ERR_INVALID, "row 11 of a share of 11");
    CHECK_ERR(engine_bring(m, order, 1, &e), e, ERR_INVALID, "row 11 of a share of 11");
    steps.batch = BATCH + 1;
    CHECK_ERR(engine_train_share(m, &steps, &r, &e), e, ERR_INVALID, "batches of 5");
    h.labels[2] = CLASSES;
    CHECK_ERR(engine_bring(m, first, 1, &e), e, ERR_INVALID, "label 10");
    h.labels[2] = 0;
    h.host.labels = NULL;
    CHECK_ERR(engine_bring(m, first, 1, &e), e, ERR_INVALID, "no labels");
    CHECK_OK(engine_share(m, NULL, &e), e);
    cuda_memory_cap(cuda_memory_held() + 512);
    CHECK_ERR(engine_share(m, &h.s, &e), e, ERR_LIMIT, "the share's order");
    engine_free(m);
    c.backend = "cpu";
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK(!engine_keeps_share(m));
    CHECK_ERR(engine_share(m, &h.s, &e), e, ERR_UNSUPPORTED, "keeps no share");
    engine_free(m);
}

/* A share takes what nobody will want later: here the memory of a mean. */
TEST(under_a_cap_a_share_leaves_room_for_a_mean)
{
    static shared h;
    err e = ERR_INIT;
    engine *m;
    backend_ipc_handle mean;
    engine_config c = config("cuda");
    draw_share(&h, INPUT_UINT8, LOSS_CROSS_ENTROPY);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    size_t model = cuda_memory_held();
    CHECK_OK(engine_share(m, &h.s, &e), e);
    CHECK_OK(engine_reduce_root(m, NULL, 0, &mean, &e), e);
    size_t all = cuda_memory_held();
    for (size_t lacking = 0; lacking < 2; lacking++) {
        engine_free(m);
        cuda_memory_cap(0);
        CHECK_OK(engine_compile(&c, &m, &e), e);
        CHECK_INT(cuda_memory_held(), model);
        cuda_memory_cap(all - lacking);
        if (lacking)
            CHECK_ERR(engine_share(m, &h.s, &e), e, ERR_LIMIT, "the share's samples");
        else
            CHECK_OK(engine_share(m, &h.s, &e), e);
        CHECK_OK(engine_reduce_root(m, NULL, 0, &mean, &e), e);
    }
    engine_free(m);
    CHECK_INT(cuda_memory_held(), 0);
}

static void others_take_some(void)
{
    fake_memory(fake_memory_used() + 1024);
}

static void refuse_half(engine *m, const shared *h, size_t model)
{
    err e = ERR_INIT;
    CHECK_ERR(engine_share(m, &h->s, &e), e, ERR_NOMEM, "half stays so without a cap");
    CHECK_CONTAINS(e.message, "the share's samples");
    CHECK_INT(fake_memory_used(), model);
}

TEST(without_a_cap_a_share_leaves_half_of_the_device_free)
{
    static shared h;
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    draw_share(&h, INPUT_UINT8, LOSS_CROSS_ENTROPY);
    h.s.reader = (backend_reader){0}; /* nothing is read */
    CHECK_OK(engine_compile(&c, &m, &e), e);
    size_t model = fake_memory_used();
    CHECK_OK(engine_share(m, &h.s, &e), e);
    size_t all = fake_memory_used();
    CHECK_OK(engine_share(m, NULL, &e), e);
    fake_memory(2 * all - 2);
    refuse_half(m, &h, model);
    fake_memory(all); /* less than half is free before */
    refuse_half(m, &h, model);
    fake_memory(2 * all);
    CHECK_OK(engine_share(m, &h.s, &e), e);
    CHECK_OK(engine_share(m, NULL, &e), e);
    fake_at_alloc(2, others_take_some); /* between the asking and the taking */
    refuse_half(m, &h, model);
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
    for (int calls = 0; calls < 3; calls++) { /* copies in, starts the graph, waits */
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
