/* test_gpu_models.c: what only a GPU can show: every model of the zoo against the CPU's engine,
 * reduced precision, caps, several functions on one device, and two processes. Part of `make
 * check-gpu`. */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compare.h"
#include "host_share.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/driver.h"
#include "kernels/zoo/zoo.h"

enum { BATCH = 8, STEPS = 20, CLASSES = 10, FUNCTIONS = 8 };

static void need_gpu(void)
{
    err e = ERR_INIT;
    CHECK_OK(cuda_driver->missing(&e), e); /* who runs this has seen one */
}

/* Small models at the size of their data, the others at 32x32, which all of the zoo takes. */
static engine_config config(const zoo_model *z, const char *on, int batch)
{
    bool small = z->height <= 32;
    return (engine_config){.build = z->build,
                           .input = {3, z->channels, small ? z->height : 32, small ? z->width : 32},
                           .outputs = CLASSES,
                           .batch = batch,
                           .backend = on,
                           .threads = 4,
                           .optim = {.kind = OPTIM_SGD, .momentum = 0.9},
                           .seed = 5};
}

typedef struct work {
    float *x;
    int32_t labels[BATCH];
    engine_batch b;
} work;

static void draw_work(work *w, shape s, uint64_t key, int n)
{
    rng r;
    size_t count = shape_count(s) * (size_t)n;
    rng_init(&r, 3, RNG_TEST, 0, key);
    w->x = realloc(w->x, count * sizeof *w->x);
    CHECK(w->x);
    for (size_t i = 0; i < count; i++)
        w->x[i] = 2 * rng_uniform(&r) - 1;
    for (int i = 0; i < n; i++)
        w->labels[i] = (int32_t)rng_below(&r, CLASSES);
    w->b = (engine_batch){.n = n, .x = w->x, .labels = w->labels};
}

/* At which the model learns the batch, and two computations that round differently part but little:
 * deep ones with batch norm over eight samples part soon. */
static double learning_rate(const zoo_model *z)
{
    static const struct {
        const char *name;
        double lr;
    } known[] = {{"lenet5", 0.03},   {"mlp", 0.02},
                 {"vgg11", 0.02},    {"resnet20", 3e-4},
                 {"resnet32", 3e-4}, {"squeezenet1_1", 0.005},
                 {"resnet50", 1e-6}, {"mobilenet_v3_small", 0.01}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(z->name, known[i].name) == 0)
            return known[i].lr;
    return 1e-4;
}

static void compare_model(const zoo_model *z, backend_precision precision, bounds most)
{
    err e = ERR_INIT;
    engine *m, *truth;
    float *x;
    int32_t labels[BATCH];
    engine_config c = config(z, "cpu", BATCH);
    double lr = learning_rate(z);
    CHECK_OK(engine_compile(&c, &truth, &e), e);
    c.backend = "cuda", c.precision = precision;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    engine_batch b = fixed_batch(c.input, BATCH, CLASSES, &x, labels);
    comparison seen = compare(m, truth, &b, (const double[2]){lr, lr});
    printf("%s: first losses %.1e apart, they fell to %.3f, weights %.1e apart\n", z->name,
           seen.first, seen.fell, seen.apart);
    if (!agrees(&seen, most))
        test_fail(__FILE__, __LINE__,
                  "%s: first losses %.1e apart, %.1e allowed; fell to %.3f of %.1f; weights %.1e "
                  "apart, %.1e allowed",
                  z->name, seen.first, most.first, seen.fell, fell_max, seen.apart, most.apart);
    free(x);
    engine_free(m);
    engine_free(truth);
}

/* Half the learning rate is 0.39 to 0.53 apart, a momentum of 0.8 some 0.3. What rounding does was
 * estimated on the CPU, by changing the first weights by 1e-6 of theirs: up to 0.11. */
static void trains_as_on_the_cpu(void)
{
    err e = ERR_INIT;
    need_gpu();
    const zoo_model *z = zoo_find(test_name() + strlen("zoo_"), &e);
    compare_model(z, PRECISION_FP32, (bounds){.first = 2e-5, .apart = 0.25});
}

/* A case for each model of the zoo: one that fails, or hangs, hides no other. */
__attribute__((constructor)) static void register_zoo(void)
{
    enum { MODELS_MAX = 64 };
    static char names[MODELS_MAX][64];
    static test_case cases[MODELS_MAX];
    for (int i = 0; zoo_at(i); i++) {
        CHECK(i < MODELS_MAX);
        snprintf(names[i], sizeof names[i], "zoo_%s", zoo_at(i)->name);
        cases[i] = (test_case){names[i], trains_as_on_the_cpu, 60, NULL};
        test_register(&cases[i]);
    }
}

/* The CPU's own bf16 is 0.06, 0.1 and 0.26 away from its fp32 on LeNet-5, ResNet-20 and -18. */
static void stays_near(const char *model, backend_precision precision)
{
    err e = ERR_INIT;
    bool bf16 = precision == PRECISION_BF16;
    need_gpu();
    compare_model(zoo_find(model, &e), precision,
                  (bounds){.first = bf16 ? 5e-2 : 1e-2, .apart = bf16 ? 0.4 : 0.25});
}
TEST_LIMIT(lenet5_in_tf32_stays_near, 60)
{
    stays_near("lenet5", PRECISION_TF32);
}
TEST_LIMIT(lenet5_in_bf16_stays_near, 60)
{
    stays_near("lenet5", PRECISION_BF16);
}
TEST_LIMIT(resnet20_in_tf32_stays_near, 60)
{
    stays_near("resnet20", PRECISION_TF32);
}
TEST_LIMIT(resnet20_in_bf16_stays_near, 60)
{
    stays_near("resnet20", PRECISION_BF16);
}
TEST_LIMIT(resnet18_in_tf32_stays_near, 60)
{
    stays_near("resnet18", PRECISION_TF32);
}
TEST_LIMIT(resnet18_in_bf16_stays_near, 60)
{
    stays_near("resnet18", PRECISION_BF16);
}

TEST_LIMIT(same_bits_twice, 120)
{
    err e = ERR_INIT;
    need_gpu();
    engine_config c = config(zoo_find("resnet20", &e), "cuda", BATCH);
    engine *m[2];
    work w = {0};
    engine_result r;
    for (int k = 0; k < 2; k++) {
        CHECK_OK(engine_compile(&c, &m[k], &e), e);
        for (int i = 0; i < 5; i++) {
            draw_work(&w, c.input, (uint64_t)i, BATCH);
            CHECK_OK(engine_train(m[k], &w.b, 0.01, &r, &e), e);
        }
    }
    CHECK(memcmp(engine_floats(m[0], &e), engine_floats(m[1], &e),
                 engine_state_floats(m[0]) * sizeof(float)) == 0);
    engine_free(m[0]);
    engine_free(m[1]);
    free(w.x);
}

TEST_LIMIT(a_cap_holds_and_names_the_layer, 120)
{
    err e = ERR_INIT;
    need_gpu();
    engine *m;
    engine_config c = config(zoo_find("resnet34", &e), "cuda", 256);
    c.device_memory = (size_t)128 << 20;
    CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_NOMEM, "MiB of GPU memory");
    CHECK_CONTAINS(e.message, "layer layer1.0.conv1 the largest");
    CHECK_INT(cuda_memory_held(), 0);
    c.device_memory = (size_t)8 << 30;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK(cuda_memory_held() <= c.device_memory);
    engine_free(m);
}

/* ---- a share on the device ------------------------------------------------------------------- */

TEST_LIMIT(steps_over_a_share_equal_steps_from_the_host, 120)
{
    enum { ROWS = 3 * BATCH - 2, SAMPLE = 3 * 32 * 32 };
    static uint8_t x[ROWS][SAMPLE];
    static const double lr[3] = {0.05, 0.02, 0.01};
    int32_t labels[ROWS];
    uint64_t keys[ROWS];
    uint32_t order[ROWS];
    err e = ERR_INIT;
    need_gpu();
    rng r;
    rng_init(&r, 9, RNG_TEST, 0, 0);
    rng_permutation(&r, order, ROWS);
    for (int i = 0; i < ROWS; i++) {
        labels[i] = (int32_t)rng_below(&r, CLASSES);
        keys[i] = (uint64_t)i;
        for (int j = 0; j < SAMPLE; j++)
            x[i][j] = (uint8_t)rng_u32(&r);
    }
    engine *m[2];
    engine_result result;
    engine_config c = config(zoo_find("resnet20", &e), "cuda", BATCH);
    for (int k = 0; k < 2; k++)
        CHECK_OK(engine_compile(&c, &m[k], &e), e);
    host_share host = {.x = x, .sample_bytes = SAMPLE, .labels = labels, .keys = keys};
    backend_share share = {.rows = ROWS, .rows_each = BATCH, .type = INPUT_UINT8,
                           .reader = {host_share_read, &host}};
    backend_steps steps = {.order = order, .rows = ROWS, .batch = BATCH, .lr = lr};
    CHECK_OK(engine_share(m[0], &share, &e), e);
    CHECK_OK(engine_bring(m[0], order, ROWS, &e), e);
    CHECK_OK(engine_train_share(m[0], &steps, &result, &e), e);
    for (int first = 0; first < ROWS; first += BATCH) {
        const void *taken[BATCH];
        int32_t taken_labels[BATCH];
        int n = ROWS - first < BATCH ? ROWS - first : BATCH;
        for (int i = 0; i < n; i++) {
            taken[i] = x[order[first + i]];
            taken_labels[i] = labels[order[first + i]];
        }
        engine_batch b = {.n = n, .type = INPUT_UINT8, .rows = taken, .labels = taken_labels};
        CHECK_OK(engine_train(m[1], &b, lr[first / BATCH], &result, &e), e);
    }
    CHECK(memcmp(engine_floats(m[0], &e), engine_floats(m[1], &e),
                 engine_state_floats(m[0]) * sizeof(float)) == 0);
    engine_free(m[0]);
    engine_free(m[1]);
}

/* ---- functions on one device ----------------------------------------------------------------- */

typedef struct function {
    pthread_t thread;
    double losses[STEPS];
    char error[ERR_MESSAGE_BYTES];
} function;

static void *train(void *arg)
{
    function *f = arg;
    err e = ERR_INIT;
    engine *m = NULL;
    work w = {0};
    engine_config c = config(zoo_find("lenet5", &e), "cuda", BATCH);
    int failed = engine_compile(&c, &m, &e);
    for (int i = 0; !failed && i < STEPS; i++) {
        engine_result r;
        draw_work(&w, c.input, (uint64_t)i, BATCH);
        failed = engine_train(m, &w.b, 0.01, &r, &e);
        f->losses[i] = r.loss;
    }
    if (failed)
        snprintf(f->error, sizeof f->error, "%s", e.message);
    engine_free(m);
    free(w.x);
    return NULL;
}

static void train_together(int functions)
{
    static function f[FUNCTIONS];
    memset(f, 0, sizeof f);
    for (int i = 0; i < functions; i++)
        CHECK(pthread_create(&f[i].thread, NULL, train, &f[i]) == 0);
    for (int i = 0; i < functions; i++)
        CHECK(pthread_join(f[i].thread, NULL) == 0);
    for (int i = 0; i < functions; i++) {
        CHECK_STR(f[i].error, "");
        CHECK(memcmp(f[i].losses, f[0].losses, sizeof f[0].losses) == 0);
    }
}

TEST_LIMIT(two_and_eight_functions_share_the_device, 240)
{
    need_gpu();
    train_together(1); /* chooses the algorithms: the others must not choose others */
    train_together(2);
    train_together(FUNCTIONS);
}

/* ---- averaging ------------------------------------------------------------------------------- */

enum { AVERAGED = 3 };

/* Trained on different samples; their states in `was`. */
static void diverge(engine *m[AVERAGED], const int *devices, float *was[AVERAGED])
{
    err e = ERR_INIT;
    engine_result r;
    work w = {0};
    for (int i = 0; i < AVERAGED; i++) {
        engine_config c = config(zoo_find("resnet20", &e), "cuda", BATCH);
        c.device = devices[i];
        CHECK_OK(engine_compile(&c, &m[i], &e), e);
        for (int step = 0; step <= i; step++) {
            draw_work(&w, c.input, (uint64_t)(100 * i + step), BATCH);
            CHECK_OK(engine_train(m[i], &w.b, 0.05, &r, &e), e);
        }
        size_t bytes = engine_state_floats(m[i]) * sizeof(float);
        was[i] = malloc(bytes);
        CHECK(was[i]);
        memcpy(was[i], engine_floats(m[i], &e), bytes);
    }
    free(w.x);
}

/* common/modelstore/merge.h's sum; `bound` 0: its bits. */
static void check_mean(engine *m[AVERAGED], float *was[AVERAGED], const double *weight,
                       double bound)
{
    err e = ERR_INIT;
    size_t count = engine_state_floats(m[0]);
    for (int i = 0; i < AVERAGED; i++) {
        const float *got = engine_floats(m[i], &e);
        CHECK(got);
        for (size_t k = 0; k < count; k++) {
            volatile double sum = weight[0] * (double)was[0][k]; /* rounded at every step */
            for (int j = 1; j < AVERAGED; j++) {
                volatile double product = weight[j] * (double)was[j][k];
                sum = sum + product;
            }
            CHECK_NEAR(got[k], (double)(float)sum, bound);
        }
    }
    for (int i = 0; i < AVERAGED; i++) {
        engine_free(m[i]);
        free(was[i]);
    }
}

TEST_LIMIT(models_of_one_device_are_averaged_there_with_the_hosts_bits, 120)
{
    static const double weight[AVERAGED] = {0.25, 0.15, 0.6};
    static const int devices[AVERAGED] = {0, 0, 0};
    err e = ERR_INIT;
    engine *m[AVERAGED];
    float *was[AVERAGED];
    need_gpu();
    diverge(m, devices, was);
    CHECK_OK(engine_average(m, weight, AVERAGED, false, &e), e);
    check_mean(m, was, weight, 0);
}

TEST_LIMIT(models_of_two_devices_are_averaged_by_nccl, 120)
{
    static const double weight[AVERAGED] = {0.25, 0.15, 0.6};
    static const int devices[AVERAGED] = {0, 1, 0};
    err e = ERR_INIT;
    engine *m[AVERAGED];
    float *was[AVERAGED];
    device *second;
    need_gpu();
    if (cuda_driver->open(1, &second, &e) != 0)
        test_skip("there is one GPU only");
    cuda_driver->close(second);
    diverge(m, devices, was);
    CHECK_OK(engine_average(m, weight, AVERAGED, true, &e), e);
    check_mean(m, was, weight, 1e-5);
}

/* ---- models of two processes ----------------------------------------------------------------- */

enum { PEER_FD = 100 };
extern char **environ;

static void send_all(int fd, const void *bytes, size_t len)
{
    for (const char *at = bytes; len > 0;) {
        ssize_t n = write(fd, at, len);
        CHECK(n > 0);
        at += n, len -= (size_t)n;
    }
}

static void receive_all(int fd, void *bytes, size_t len)
{
    for (char *at = bytes; len > 0;) {
        ssize_t n = read(fd, at, len);
        CHECK(n > 0);
        at += n, len -= (size_t)n;
    }
}

static engine *trained(int steps)
{
    err e = ERR_INIT;
    engine *m;
    engine_result r;
    work w = {0};
    engine_config c = config(zoo_find("resnet20", &e), "cuda", BATCH);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    for (int step = 0; step < steps; step++) {
        draw_work(&w, c.input, (uint64_t)(1000 * steps + step), BATCH);
        CHECK_OK(engine_train(m, &w.b, 0.05, &r, &e), e);
    }
    free(w.x);
    return m;
}

/* The other process: lends its model, and adopts the mean that it is told of. */
static void be_peer(void)
{
    err e = ERR_INIT;
    engine_peer own = {.weight = 0.75};
    backend_ipc_handle mean;
    engine_fingerprint fingerprint;
    engine *m = trained(3);
    size_t bytes = engine_state_floats(m) * sizeof(float);
    CHECK_OK(engine_lend(m, &own.where, &e), e);
    CHECK_OK(engine_fingerprint_now(m, &own.fingerprint, &e), e);
    send_all(PEER_FD, &own, sizeof own);
    send_all(PEER_FD, engine_floats(m, &e), bytes);
    receive_all(PEER_FD, &mean, sizeof mean);
    receive_all(PEER_FD, &fingerprint, sizeof fingerprint);
    CHECK_OK(engine_adopt(m, &mean, &fingerprint, &e), e);
    send_all(PEER_FD, engine_floats(m, &e), bytes);
    while (read(PEER_FD, &fingerprint, sizeof fingerprint) >
           0) /* until it is killed, or the other has ended */
        ;
}

/* This program once more, as the case that is running. */
static pid_t start_peer(const char *name, int *fd)
{
    char *argv[] = {(char *)"peer", (char *)(uintptr_t)name, NULL};
    posix_spawn_file_actions_t actions;
    int both[2];
    pid_t pid;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) == 0);
    CHECK(setenv("KUBEML_TEST_PEER", "1", 1) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, both[1], PEER_FD);
    CHECK(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    CHECK(unsetenv("KUBEML_TEST_PEER") == 0);
    close(both[1]);
    *fd = both[0];
    return pid;
}

TEST_LIMIT(models_of_two_processes_are_averaged_on_their_device, 120)
{
    int fd, bad, status;
    err e = ERR_INIT;
    engine_result r;
    engine_peer of[2] = {{.weight = 0.25}};
    backend_ipc_handle mean;
    engine_fingerprint fingerprint;
    work w = {0};
    if (getenv("KUBEML_TEST_PEER"))
        be_peer();
    need_gpu();
    pid_t peer = start_peer("models_of_two_processes_are_averaged_on_their_device", &fd);
    engine *m = trained(2);
    size_t count = engine_state_floats(m), bytes = count * sizeof(float);
    float *theirs = malloc(bytes), *ours = malloc(bytes), *adopted = malloc(bytes);
    CHECK(theirs && ours && adopted);
    memcpy(ours, engine_floats(m, &e), bytes);
    receive_all(fd, &of[1], sizeof of[1]);
    receive_all(fd, theirs, bytes);
    CHECK_OK(engine_reduce_root(m, &of[1].where, 1, &mean, &e), e);
    CHECK_OK(engine_lend(m, &of[0].where, &e), e);
    CHECK_OK(engine_fingerprint_now(m, &of[0].fingerprint, &e), e);
    CHECK_OK(engine_average_ipc(m, of, 2, &fingerprint, &bad, &e), e);
    CHECK_OK(engine_adopt(m, &mean, &fingerprint, &e), e);
    send_all(fd, &mean, sizeof mean);
    send_all(fd, &fingerprint, sizeof fingerprint);
    receive_all(fd, adopted, bytes);
    const float *got = engine_floats(m, &e);
    for (size_t i = 0; i < count; i++) {
        volatile double first = 0.25 * (double)ours[i], second = 0.75 * (double)theirs[i];
        CHECK_NEAR(got[i], (double)(float)(first + second), 0);
    }
    CHECK(memcmp(got, adopted, bytes) == 0);
    /* Whoever is gone is part of no mean, and the device works on. */
    CHECK(kill(peer, SIGKILL) == 0 && waitpid(peer, &status, 0) == peer);
    CHECK_OK(engine_fingerprint_now(m, &of[0].fingerprint, &e), e);
    CHECK_INT(engine_average_ipc(m, of, 2, &fingerprint, &bad, &e), -1);
    CHECK_INT(bad, 1);
    draw_work(&w, engine_input(m), 7, BATCH);
    CHECK_OK(engine_train(m, &w.b, 0.05, &r, &e), e);
    engine_free(m);
    free(theirs), free(ours), free(adopted), free(w.x);
}
