/* test_cpu_bf16.c: products in bf16 against what they promise, and training with them against
 * training in fp32. Layer by layer: test_cpu_layers.c. */
#include <math.h>

#include "common/base/rng.h"
#include "kernels/cpu/cpu_kernels16.h"
#include "kernels/engine.h"
#include "kernels/zoo/zoo.h"
#include "test.h"

static const cpu_kernels16 *kernels(void)
{
    const char *why;
    const cpu_kernels16 *k = cpu_kernels16_pick(&why);
    if (!k)
        test_skip(why);
    return k;
}

static void fill(rng *r, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_u32(r) >> 8) * 0x1p-23f - 1;
}

/* To the nearest bf16, ties to even; of finite values. */
static uint16_t rounded(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float value(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint16_t half_of(const bf16_word *words, size_t i)
{
    return (uint16_t)(words[i / 2] >> (i % 2 * 16));
}

/* Every value of words is the nearest bf16, in its place, and nothing is written beside. */
TEST(values_are_rounded_to_the_nearest_even)
{
    enum { ROWS = 5, COLS = 45, LD = 64, GUARD = 0x12345678 };
    const cpu_kernels16 *k = kernels();
    float x[ROWS * LD];
    static const float ties[] = {1.00390625f, 1.01171875f, -1.00390625f, 3.0e38f, 0, -0.0f, 1e-20f};
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    fill(&r, ROWS * LD, x);
    memcpy(x, ties, sizeof ties);
    for (int cols = 1; cols <= COLS; cols++) {
        bf16_word along[ROWS * LD], across[(ROWS + 1) / 2 * LD];
        for (int i = 0; i < ROWS * LD; i++)
            along[i] = GUARD;
        for (int i = 0; i < (ROWS + 1) / 2 * LD; i++)
            across[i] = GUARD;
        k->along(ROWS, cols, x, LD, along, LD);
        k->across(ROWS, cols, x, LD, across, LD);
        for (int row = 0; row < ROWS; row++)
            for (int c = 0; c < cols; c++) {
                uint16_t want = rounded(x[row * LD + c]);
                CHECK_INT(half_of(along + row * LD, (size_t)c), want);
                CHECK_INT((uint16_t)(across[row / 2 * LD + c] >> (row % 2 * 16)), want);
            }
        CHECK(cols % 2 == 0 || half_of(along, (size_t)cols) == 0);
        CHECK_INT(across[ROWS / 2 * LD] >> 16, 0); /* the row that is not there */
        CHECK_INT(along[(cols + 1) / 2], GUARD);
        CHECK_INT(across[cols], GUARD);
    }
}

/* Products of exact bf16 values: only the fp32 sums round. */
static void check_gemm(const cpu_kernels16 *k, int m, int n, int depth, bool sums)
{
    enum { LD = 96 };
    static bf16_word a[64 * LD], b[64 * LD];
    static float x[128 * LD], y[128 * LD], c[64 * LD], add[64 * LD], bias[64];
    rng r;
    rng_init(&r, (uint64_t)(m * 1000 + n * 10 + depth), RNG_TEST, 0, 0);
    fill(&r, 128 * LD, x);
    fill(&r, 128 * LD, y);
    fill(&r, 64 * LD, add);
    fill(&r, 64, bias);
    if (sums)
        k->across(depth, m, x, LD, a, LD); /* x[depth][m] */
    else
        k->along(m, depth, x, LD, a, LD); /* x[m][depth] */
    k->across(depth, n, y, LD, b, LD);
    k->gemm(m, n, (depth + 1) / 2, a, sums ? 1 : LD, sums ? LD : 1, b, LD, bias, true, add, LD, c,
            LD);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double want = (double)bias[i] + (double)add[i * LD + j], size = fabs(want);
            for (int q = 0; q < depth; q++) {
                double part = (double)value(rounded(sums ? x[q * LD + i] : x[i * LD + q])) *
                              (double)value(rounded(y[q * LD + j]));
                want += part, size += fabs(part);
            }
            CHECK_NEAR(c[i * LD + j], want > 0 ? want : 0, 1e-6 * size + 1e-7);
        }
}

TEST(products_round_their_factors_and_nothing_else)
{
    const cpu_kernels16 *k = kernels();
    static const int m[] = {1, 2, 7, 12, 31, 64}, n[] = {8, 16, 24, 32, 56},
                     depth[] = {1, 2, 9, 64};
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        for (size_t j = 0; j < sizeof n / sizeof *n; j++)
            for (size_t q = 0; q < sizeof depth / sizeof *depth; q++) {
                check_gemm(k, m[i], n[j], depth[q], false);
                check_gemm(k, m[i], n[j], depth[q], true);
            }
}

/* Winograd's transforms are fp32's, rounded: each value within 2^-8 of it. */
TEST(winograds_transforms_are_those_of_fp32)
{
    enum { C = 16, REAL = 13, PLANE = 64, LD = 8 * C };
    const cpu_kernels16 *k = kernels();
    const char *why;
    const cpu_kernels *single = cpu_kernels_pick(&why);
    static float x[8 * LD], want[2][36 * PLANE], dy[2][36 * PLANE];
    static bf16_word one[36 * PLANE], two[36 * PLANE], two_dy[36 * PLANE];
    rng r;
    rng_init(&r, 2, RNG_TEST, 0, 0);
    fill(&r, 8 * LD, x);
    const wino_span in[2] = {{0, 6, 0, 6}, {1, 5, 0, 4}}, out[2] = {{0, 4, 0, 4}, {0, 3, 0, 2}};
    const float *from[2] = {x, x + C};
    for (int i = 0; i < 2; i++) {
        single->wino_in(&in[i], C, from[i], C, LD, want[i], PLANE);
        single->wino_dy(3, &out[i], C, from[i], C, LD, dy[i], PLANE);
    }
    k->wino_in(&in[0], C, REAL, x, C, LD, one, PLANE);
    k->wino_in_two(in, C, from, C, LD, two, PLANE);
    k->wino_dy_two(out, C, from, C, LD, two_dy, PLANE);
    for (int q = 0; q < 36; q++)
        for (int c = 0; c < C; c++) {
            float w = want[0][q * PLANE + c];
            CHECK_NEAR(value(half_of(one + q * PLANE, (size_t)c)), c < REAL ? w : 0,
                       fabsf(w) * 0x1p-8f + 1e-6f);
            for (int i = 0; i < 2; i++) {
                w = want[i][q * PLANE + c];
                CHECK_NEAR(value((uint16_t)(two[q * PLANE + c] >> (16 * i))), w,
                           fabsf(w) * 0x1p-8f + 1e-6f);
                w = dy[i][q * PLANE + c];
                CHECK_NEAR(value((uint16_t)(two_dy[q * PLANE + c] >> (16 * i))), w,
                           fabsf(w) * 0x1p-8f + 1e-6f);
            }
        }
    const float *alone[2] = {x, NULL};
    k->wino_in_two(in, C, alone, C, LD, two, PLANE);
    for (int q = 0; q < 36 * PLANE; q++)
        CHECK_INT(two[q] >> 16, 0);
}

/* ---- training -------------------------------------------------------------------------------- */

enum { CLASSES = 4, BATCH = 16, TESTS = 10 * BATCH };

/* Samples of CLASSES: a pattern each, and as much noise. */
typedef struct samples {
    int count;
    float *x;
    int32_t *labels;
} samples;

static samples draw(shape s, int count, uint64_t seed)
{
    size_t each = shape_count(s);
    samples out = {count, malloc((size_t)count * each * sizeof(float)),
                   malloc((size_t)count * sizeof(int32_t))};
    float *patterns = malloc(CLASSES * each * sizeof *patterns);
    rng r;
    rng_init(&r, 7, RNG_TEST, 0, 0);
    fill(&r, CLASSES * each, patterns);
    rng_init(&r, seed, RNG_TEST, 0, 0);
    fill(&r, (size_t)count * each, out.x);
    for (int i = 0; i < count; i++) {
        out.labels[i] = (int32_t)(rng_u32(&r) % CLASSES);
        for (size_t j = 0; j < each; j++) {
            size_t w = j % (size_t)s.w / 4, h = j / (size_t)s.w / 4; /* coarse: pooling keeps it */
            out.x[(size_t)i * each + j] +=
                patterns[(size_t)out.labels[i] * each + h * (size_t)s.w + w];
        }
    }
    free(patterns);
    return out;
}

typedef struct outcome {
    double losses[64], accuracy; /* of the steps; of samples that were not trained on */
} outcome;

static outcome train(const char *name, int steps, double lr, backend_precision precision)
{
    err e = ERR_INIT;
    engine *m = NULL;
    const zoo_model *z = zoo_find(name, &e);
    CHECK(z);
    shape input = {3, z->channels, z->height, z->width};
    engine_config c = {.build = z->build,  .input = input,
                       .outputs = CLASSES, .batch = BATCH,
                       .backend = "cpu",   .precision = precision,
                       .seed = 3,          .optim = {.kind = OPTIM_SGD, .momentum = 0.9}};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK((strstr(engine_choices(m), "-bf16") != NULL) == (precision == PRECISION_BF16));
    size_t each = shape_count(input);
    samples s = draw(input, steps * BATCH, 11), t = draw(input, TESTS, 12);
    outcome o = {{0}, 0};
    for (int i = 0; i < steps; i++) {
        engine_batch b = {.n = BATCH, .x = s.x + (size_t)(i * BATCH) * each,
                          .labels = s.labels + i * BATCH};
        engine_result r;
        CHECK_OK(engine_train(m, &b, lr, &r, &e), e);
        o.losses[i] = r.loss;
    }
    for (int i = 0; i < TESTS; i += BATCH) {
        engine_batch b = {.n = BATCH, .x = t.x + (size_t)i * each, .labels = t.labels + i};
        engine_result r;
        CHECK_OK(engine_eval(m, &b, &r, &e), e);
        o.accuracy += (double)r.correct / TESTS;
    }
    free(s.x), free(s.labels), free(t.x), free(t.labels);
    engine_free(m);
    return o;
}

static double mean(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += v[i] / n;
    return sum;
}

static void check_training(const char *name, int steps, double lr)
{
    kernels();
    outcome single = train(name, steps, lr, PRECISION_FP32),
            half = train(name, steps, lr, PRECISION_BF16);
    /* the task can be learnt in so many steps, and chance is a quarter */
    CHECK(single.accuracy > 0.9);
    CHECK_NEAR(half.accuracy, single.accuracy, 0.05);
    CHECK_NEAR(half.losses[0], single.losses[0], 0.02 * single.losses[0]);
    CHECK_NEAR(mean(half.losses, steps), mean(single.losses, steps),
               0.1 * mean(single.losses, steps));
    CHECK(memcmp(half.losses, single.losses, sizeof half.losses) != 0);
}

TEST_LIMIT(lenet_learns_as_in_fp32, 60)
{
    check_training("lenet5", 60, 0.05);
}

TEST_LIMIT(resnet20_learns_as_in_fp32, 300)
{
    check_training("resnet20", 48, 0.004);
}

/* ---- the zoo ---- */

enum { FEW = 8 };

static engine *compile_zoo(const zoo_model *z, backend_precision precision, bool inference)
{
    err e = ERR_INIT;
    engine *m = NULL;
    int side = z->height < 32 ? z->height : 32;
    engine_config c = {.build = z->build,
                       .input = {3, z->channels, side, side},
                       .outputs = CLASSES,
                       .batch = FEW,
                       .backend = "cpu",
                       .precision = precision,
                       .seed = 3,
                       .inference = inference,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9}};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    return m;
}

/* How far the vectors are from each other, in units of the second one. */
static double apart(const float *a, const float *b, size_t n)
{
    double square = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        square += pow((double)a[i] - (double)b[i], 2);
        scale += pow((double)b[i], 2);
    }
    return sqrt(square) / fmax(sqrt(scale), 1e-6);
}

/* The logits of both, of programs that can train and of such as only evaluate. */
static void check_logits(const zoo_model *z, engine *const m[2], const engine_batch *b,
                         double within)
{
    err e = ERR_INIT;
    float logits[2][FEW * CLASSES];
    for (int i = 0; i < 2; i++)
        CHECK_OK(engine_infer(m[i], b, logits[i], &e), e);
    double distance = apart(logits[1], logits[0], FEW * CLASSES);
    if (!(distance > 0 && distance < within))
        test_fail(__FILE__, __LINE__, "%s: logits in bf16 are %.3g from fp32's", z->name, distance);
}

/* One model in both precisions, from the same weights: the logits, then a step of SGD. */
static void check_zoo(const zoo_model *z)
{
    err e = ERR_INIT;
    engine *m[2] = {compile_zoo(z, PRECISION_FP32, false), compile_zoo(z, PRECISION_BF16, false)};
    engine *fixed[2] = {compile_zoo(z, PRECISION_FP32, true), compile_zoo(z, PRECISION_BF16, true)};
    samples s = draw(
        (shape){3, z->channels, z->height < 32 ? z->height : 32, z->height < 32 ? z->height : 32},
        FEW, 5);
    engine_batch b = {.n = FEW, .x = s.x, .labels = s.labels};
    engine_result r[2];
    CHECK(strstr(engine_choices(m[1]), "-bf16") && strstr(engine_choices(fixed[1]), "-bf16"));
    check_logits(z, m, &b, 0.1);
    check_logits(z, fixed, &b, 0.1);
    for (int i = 0; i < 2; i++)
        CHECK_OK(engine_train(m[i], &b, 0.01, &r[i], &e), e);
    if (!(fabs(r[1].loss - r[0].loss) < 0.05 * r[0].loss))
        test_fail(__FILE__, __LINE__, "%s: loss %.4f in bf16, %.4f in fp32", z->name, r[1].loss,
                  r[0].loss);
    for (int i = 0; i < 2; i++)
        engine_free(m[i]), engine_free(fixed[i]);
    free(s.x), free(s.labels);
}

/* VGG's 123 million weights of linear layers, in four engines, are gigabytes; its kinds of layers
 * are others' too. */
TEST_LIMIT(every_model_of_the_zoo_but_vgg, 300)
{
    kernels();
    const zoo_model *z;
    for (int i = 0; (z = zoo_at(i)); i++)
        if (strncmp(z->name, "vgg", 3) != 0)
            check_zoo(z);
}
