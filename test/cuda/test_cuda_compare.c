/* test_cuda_compare.c: the comparison that `make check-gpu` makes of every model
 * (test/gpu/compare.h) tells training that is right from training that is not: on the fake device,
 * against the CPU. */
#include "test/gpu/compare.h"
#include "kernels/zoo/zoo.h"

enum { BATCH = 4, CLASSES = 10 };

typedef struct setup {
    const char *model;
    double lr;
    engine_config c; /* on both */
} setup;

static setup of(const char *model, double lr)
{
    err e = ERR_INIT;
    const zoo_model *z = zoo_find(model, &e);
    CHECK(z);
    return (setup){.model = model,
                   .lr = lr,
                   .c = {.build = z->build,
                         .input = {3, z->channels, z->height, z->width},
                         .outputs = CLASSES,
                         .batch = BATCH,
                         .threads = 1,
                         .optim = {.kind = OPTIM_SGD, .momentum = 0.9},
                         .seed = 5}};
}

/* Of s on the device against the CPU's; `wrong` is what the device trains instead. */
static comparison seen(setup s, const engine_config *wrong, double wrong_lr)
{
    err e = ERR_INIT;
    engine *m, *truth;
    float *x;
    int32_t labels[BATCH];
    engine_config c = wrong ? *wrong : s.c;
    c.backend = "cuda", s.c.backend = "cpu";
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_OK(engine_compile(&s.c, &truth, &e), e);
    engine_batch b = fixed_batch(c.input, BATCH, CLASSES, &x, labels);
    comparison out = compare(m, truth, &b, (const double[2]){wrong_lr, s.lr});
    printf("%s: first %.1e, fell %.3f, apart %.1e\n", s.model, out.first, out.fell, out.apart);
    free(x);
    engine_free(m);
    engine_free(truth);
    return out;
}

static const bounds fp32 = {.first = 2e-5, .apart = 0.25}, bf16 = {.first = 5e-2, .apart = 0.4};

TEST_LIMIT(what_trains_as_the_cpu_does_agrees, 240)
{
    setup s = of("lenet5", 0.03);
    comparison c = seen(s, NULL, s.lr);
    CHECK(agrees(&c, fp32) && c.apart < 1e-3);
    s = of("mlp", 0.005);
    c = seen(s, NULL, s.lr);
    CHECK(agrees(&c, fp32) && c.apart < 1e-3);
    engine_config low = s.c;
    low.precision = PRECISION_BF16;
    c = seen(s, &low, s.lr);
    CHECK(agrees(&c, bf16) && c.apart > 1e-4);
}

/* One that is not there, too small, of another optimizer, or of other weights. */
TEST_LIMIT(a_wrong_update_does_not, 120)
{
    setup s = of("mlp", 0.005);
    engine_config wrong = s.c;
    comparison c = seen(s, NULL, 0); /* none at all */
    CHECK(!agrees(&c, bf16) && c.apart > 0.99 && c.fell > fell_max);
    c = seen(s, NULL, s.lr / 2);
    CHECK(!agrees(&c, fp32) && !agrees(&c, bf16));
    wrong.optim.momentum = 0.8;
    c = seen(s, &wrong, s.lr);
    CHECK(!agrees(&c, fp32));
    wrong = s.c;
    wrong.seed++; /* other weights to begin with */
    c = seen(s, &wrong, s.lr);
    CHECK(!agrees(&c, fp32) && !agrees(&c, bf16));
    c.apart = NAN;
    c.first = c.fell = 0;
    CHECK(!agrees(&c, bf16));
}
