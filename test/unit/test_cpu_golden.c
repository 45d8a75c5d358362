/* test_cpu_golden.c: LeNet-5 and ResNet-20 on the fast CPU backend, on every instruction set that
 * this machine has: 50 losses beside the reference's from the same weights and batches; the same
 * bits twice, and with two threads. */
#include "golden.h"
#include "kernels/zoo/zoo.h"

/* A skip unless this machine can run the set; every engine compiled afterwards uses it. */
static void use_set(const char *set)
{
    err e = ERR_INIT;
    setenv("KUBEML_CPU", set, 1);
    if (!backend_find("cpu", &e))
        test_skip(e.message);
}

static engine *open_model(const zoo_model *z, const char *on, int n, int threads)
{
    err e = ERR_INIT;
    engine *m = NULL;
    engine_config c = {.build = z->build,
                       .input = {3, z->channels, z->height, z->width},
                       .outputs = z->outputs,
                       .batch = n,
                       .backend = on,
                       .threads = threads,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4}};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    golden_fill(m, 1);
    return m;
}

static double train(engine *m, const zoo_model *z, golden_batch *b, int step, int n, double lr)
{
    err e = ERR_INIT;
    engine_result r;
    golden_draw(b, (uint64_t)step % 4, n, (shape){3, z->channels, z->height, z->width}, z->outputs);
    CHECK_OK(engine_train(m, &b->b, lr, &r, &e), e);
    return r.loss;
}

/* The losses drift apart by rounding alone, which ReLU's kinks and batch norm amplify: tolerance
 * grows with the step. */
static void check_model(const char *name, const char *set, int n, int steps, double lr,
                        double tolerance)
{
    err e = ERR_INIT;
    use_set(set);
    const zoo_model *z = zoo_find(name, &e);
    CHECK(z);
    engine *reference = open_model(z, "reference", n, 1), *m = open_model(z, "cpu", n, 1);
    golden_batch b = {0};
    double worst = 0;
    for (int step = 0; step < steps; step++) {
        double want = train(reference, z, &b, step, n, lr), got = train(m, z, &b, step, n, lr);
        worst = fmax(worst, fabs(got - want) / want);
        CHECK_NEAR(got / want, 1, tolerance);
    }
    printf("%s, %s: losses within %.2g of the reference's\n", name, set, worst);
    free(b.x);
    engine_free(m);
    engine_free(reference);
}

#define ON_EVERY_SET(X) X(avx512) X(avx2) X(generic)
#define LENET(set)                                                                                 \
    TEST_LIMIT(lenet5_##set, 120)                                                                  \
    {                                                                                              \
        check_model("lenet5", #set, 32, 50, 0.01, 1e-4);                                           \
    }
#define RESNET(set)                                                                                \
    TEST_LIMIT(resnet20_##set, 300)                                                                \
    {                                                                                              \
        check_model("resnet20", #set, 4, 6, 0.001, 1e-4);                                          \
    }
ON_EVERY_SET(LENET)
ON_EVERY_SET(RESNET)

/* The same plan, the same bits: weights after some steps, short batches among them. */
static void check_bits(const char *name, const char *set, int threads)
{
    err e = ERR_INIT;
    use_set(set);
    const zoo_model *z = zoo_find(name, &e);
    CHECK(z);
    engine *m[2] = {open_model(z, "cpu", 8, threads), open_model(z, "cpu", 8, threads)};
    golden_batch b = {0};
    for (int step = 0; step < 4; step++)
        for (int i = 0; i < 2; i++)
            train(m[i], z, &b, step, step == 2 ? 5 : 8, 0.001);
    float *state[2] = {engine_floats(m[0], &e), engine_floats(m[1], &e)};
    CHECK(memcmp(state[0], state[1], engine_state_floats(m[0]) * sizeof(float)) == 0);
    free(b.x);
    engine_free(m[0]);
    engine_free(m[1]);
}

/* With fewer threads a sanitizer sees what it sees in the cases above. */
#ifdef __SANITIZE_ADDRESS__
enum { THREADS_MIN = 3 };
#else
enum { THREADS_MIN = 1 };
#endif

#define BITS(set)                                                                                  \
    TEST_LIMIT(same_bits_##set, 120)                                                               \
    {                                                                                              \
        for (int threads = THREADS_MIN; threads <= 3; threads++) {                                 \
            check_bits("lenet5", #set, threads);                                                   \
            check_bits("resnet20", #set, threads);                                                 \
        }                                                                                          \
    }
ON_EVERY_SET(BITS)

/* Two threads agree with one within rounding; a third that gets no sample does no harm. */
TEST(threads_agree)
{
    err e = ERR_INIT;
    const zoo_model *z = zoo_find("lenet5", &e);
    CHECK(z);
    golden_batch b = {0};
    double loss[3];
    for (int threads = 1; threads <= 3; threads++) {
        engine *m = open_model(z, "cpu", 8, threads);
        for (int step = 0; step < 3; step++)
            loss[threads - 1] = train(m, z, &b, step, step == 1 ? 2 : 8, 0.01);
        engine_free(m);
    }
    CHECK_NEAR(loss[1], loss[0], 1e-5);
    CHECK_NEAR(loss[2], loss[0], 1e-5);
    free(b.x);
}
