/* test_cuda_kernels.c: our own CUDA kernels, run on the host by the shim, against the code of the host
 * that they must agree with: bit for bit where that is promised. What the layers compute is tested by
 * test_cuda_graph_ops, through the whole backend. */
#include "cuda/cuda_kernels.h"
#include "merge.h"
#include "merge_variants.h"
#include "optim.h"
#include "rng.h"
#include "test.h"
#include "transform.h"

static void draw_floats(uint64_t key, size_t count, float *to)
{
    rng r;
    rng_init(&r, 7, RNG_TEST, 0, key);
    for (size_t i = 0; i < count; i++)
        to[i] = 2 * rng_uniform(&r) - 1;
}

/* ---- averaging ------------------------------------------------------------------------------- */

enum { MODELS = 5, FLOATS = 3001 };

TEST(merging_gives_the_servers_bits)
{
    static float models[MODELS][FLOATS], got[FLOATS], want[FLOATS];
    static const uint64_t samples[MODELS] = {600, 100, 7, 1024, 333};
    const float *in[MODELS];
    const void *host_in[MODELS];
    double weight[MODELS];
    const merge_rule *rule;
    err e = ERR_INIT;
    CHECK_OK(merge_rule_find("mean", &rule, &e), e);
    rule->weights(samples, MODELS, weight);
    for (int k = 0; k < MODELS; k++) {
        draw_floats((uint64_t)k, FLOATS, models[k]);
        in[k] = models[k];
        host_in[k] = models[k];
    }
    int32_t finite = 1;
    CHECK(merge_floats_generic(want, host_in, weight, MODELS, FLOATS));
    cuda_merge(NULL, MODELS, in, weight, FLOATS, got, &finite);
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK_INT(finite, 1);
    cuda_merge(NULL, MODELS, in, weight, FLOATS, models[0], &finite); /* over an input */
    CHECK(memcmp(models[0], want, sizeof got) == 0);
}

TEST(merging_tells_of_numbers_that_are_not_finite)
{
    float a[3] = {1, INFINITY, 2}, b[3] = {1, 2, 3}, out[3];
    const float *in[2] = {a, b};
    double weight[2] = {0.5, 0.5};
    int32_t finite = 1;
    cuda_merge(NULL, 2, in, weight, 3, out, &finite);
    CHECK_INT(finite, 0);
}

TEST(merged_counters_are_the_largest)
{
    int64_t a[2] = {5, 1}, b[2] = {3, 9}, out[2];
    const int64_t *in[2] = {a, b};
    cuda_merge_counters(NULL, 2, in, 2, out);
    CHECK_INT(out[0], 5);
    CHECK_INT(out[1], 9);
}

/* The same in plain words. */
static uint64_t sum_of(const uint32_t *words, size_t count, uint32_t which)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t x = (((uint64_t)which << 40) + i) * UINT64_C(0x9E3779B97F4A7C15) + words[i];
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        sum += x ^ (x >> 31);
    }
    return sum;
}

static uint64_t summed(const uint32_t *words, size_t count, uint32_t which)
{
    uint64_t sum = 0;
    cuda_sum_words(NULL, which, count, words, &sum);
    CHECK(sum == sum_of(words, count, which));
    return sum;
}

TEST(a_sum_of_words_tells_what_differs)
{
    enum { MANY = 128 * 1024 + 77, WORDS = 3001 }; /* the largest grid does not take so many at once */
    static uint32_t words[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        words[i] = i * 2654435761u;
    summed(words, MANY, 2);
    uint64_t was = summed(words, WORDS, 0), zero[2] = {0};
    CHECK(summed(words, WORDS, 1) != was); /* another block */
    CHECK(summed(words, WORDS - 1, 0) != was);
    for (int bit = 0; bit < 32; bit++) {
        words[90 * bit] ^= 1u << bit;
        CHECK(summed(words, WORDS, 0) != was);
        words[90 * bit] ^= 1u << bit;
    }
    uint32_t first = words[0];
    words[0] = words[1], words[1] = first; /* the same words elsewhere */
    CHECK(summed(words, WORDS, 0) != was);
    words[1] = words[0], words[0] = first;
    CHECK(summed(words, WORDS, 0) == was);
    cuda_sum_words(NULL, 0, 0, words, zero); /* nothing */
    CHECK_INT(zero[0], 0);
    cuda_sum_words(NULL, 0, 3, words, zero); /* onto what is there */
    cuda_sum_words(NULL, 1, 5, words, zero);
    CHECK(zero[0] == sum_of(words, 3, 0) + sum_of(words, 5, 1));
}

/* ---- optimizers ------------------------------------------------------------------------------ */

enum { WEIGHTS = 1000, UPDATES = 4 };

static void compare_optim(const char *name, optim o)
{
    static float w[2][WEIGHTS], g[WEIGHTS], state[2][2 * WEIGHTS];
    memset(state, 0, sizeof state);
    draw_floats(1, WEIGHTS, w[0]);
    memcpy(w[1], w[0], sizeof w[0]);
    optim_args args = {.adam = o.kind != OPTIM_SGD,
                       .nesterov = o.nesterov,
                       .has_momentum = o.momentum > 0,
                       .decay = o.kind == OPTIM_ADAMW ? 0.0f : (float)o.weight_decay,
                       .momentum = (float)o.momentum,
                       .fresh1 = (float)(1 - o.beta1),
                       .beta2 = (float)o.beta2,
                       .fresh2 = (float)(1 - o.beta2),
                       .eps = (float)o.eps};
    for (int step = 1; step <= UPDATES; step++) {
        double lr = 0.1 / step;
        step_args a = {.lr = (float)lr,
                       .kept = step == 1 ? 0 : (float)o.momentum,
                       .fresh = step == 1 ? 1 : (float)(1 - o.dampening)};
        a.rate = (float)(lr / (1 - pow(o.beta1, step)));
        a.root2 = (float)sqrt(1 - pow(o.beta2, step));
        a.shrink = o.kind == OPTIM_ADAMW ? (float)(1 - lr * o.weight_decay) : 1;
        draw_floats(10 + (uint64_t)step, WEIGHTS, g);
        cuda_optim(NULL, &a, args, WEIGHTS, w[0], g, state[0], WEIGHTS);
        optim_update(&o, lr, step, WEIGHTS, w[1], g, state[1], WEIGHTS);
    }
    for (int i = 0; i < WEIGHTS; i++)
        if (!(fabsf(w[0][i] - w[1][i]) <= 2e-6f))
            test_fail(__FILE__, __LINE__, "%s: weight %d is %.9g, not %.9g", name, i,
                      (double)w[0][i], (double)w[1][i]);
}

TEST(optimizers_are_the_hosts)
{
    compare_optim("sgd", (optim){.kind = OPTIM_SGD, .weight_decay = 0.01});
    compare_optim("momentum", (optim){.kind = OPTIM_SGD, .momentum = 0.9, .dampening = 0.3});
    compare_optim("nesterov", (optim){.kind = OPTIM_SGD, .momentum = 0.9, .nesterov = true});
    compare_optim("adam", optim_default(OPTIM_ADAM));
    compare_optim("adamw", optim_default(OPTIM_ADAMW));
}

/* ---- a share on the device ------------------------------------------------------------------- */

enum { ROWS = 12, TAKEN = 5, C = 3, H = 6, W = 7, SAMPLE = C * H * W };

static void compare_gather(transform t)
{
    static uint8_t share[ROWS][SAMPLE], got[TAKEN][SAMPLE], want[SAMPLE];
    int32_t share_labels[ROWS], labels[TAKEN];
    uint64_t share_keys[ROWS], keys[TAKEN];
    uint32_t order[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        share_labels[i] = (int32_t)i * 3;
        share_keys[i] = 1000 + i * 17;
        order[i] = (i * 5 + 2) % ROWS;
        for (uint32_t j = 0; j < SAMPLE; j++)
            share[i][j] = (uint8_t)(i * 31 + j * 7 + 1);
    }
    step_args a = {.n = TAKEN, .row = 4, .epoch = 9};
    augmentation g = {.flip = t.flip, .crop = t.crop, .c = C, .h = H, .w = W, .seed = 77};
    cuda_gather(NULL, &a, g, TAKEN, share[0], share_labels, share_keys, order, got[0], labels, keys);
    for (int i = 0; i < TAKEN; i++) {
        uint32_t row = order[4 + i];
        transform_move(&t, 77, 9, share_keys[row], C, H, W, 1, share[row], want);
        CHECK(memcmp(got[i], want, SAMPLE) == 0);
        CHECK_INT(labels[i], share_labels[row]);
        CHECK_INT(keys[i], share_keys[row]);
    }
}

TEST(augmentation_on_the_device_gives_the_hosts_bytes)
{
    compare_gather((transform){0});
    compare_gather((transform){.flip = true});
    compare_gather((transform){.crop = 2});
    compare_gather((transform){.flip = true, .crop = 4});
}

/* ---- types and layouts ----------------------------------------------------------------------- */

TEST(bf16_rounds_to_the_nearest_even)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
                 {0x3f808001, 0x3f81}, {0x7f800000, 0x7f80}, {0x7f7fffff, 0x7f80},
                 {0x80000000, 0x8000}, {0x7f800001, 0x7fc0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x;
        uint16_t got;
        memcpy(&x, &cases[i].from, sizeof x);
        cuda_to_bf16(NULL, 1, &x, &got);
        CHECK_INT(got, cases[i].to);
    }
}

TEST(transposing_twice_changes_nothing)
{
    enum { N = 3, A = 37, B = 50 };
    static float x[N * A * B], y[N * A * B], z[N * A * B];
    draw_floats(3, N * A * B, x);
    cuda_transpose(NULL, ELEMENT_F32, N, A, B, x, y, false);
    CHECK(y[(1 * B + 7) * A + 20] == x[(1 * A + 20) * B + 7]);
    cuda_transpose(NULL, ELEMENT_F32, N, B, A, y, z, false);
    CHECK(memcmp(x, z, sizeof x) == 0);
}

/* ---- QSGD ------------------------------------------------------------------------------------ */

/* The same draws and roundings in plain C. */
static int quantised(float x, float norm, uint64_t seed, uint32_t round, size_t i)
{
    uint32_t word[4];
    rng_draw(seed, (rng_use)QSGD_USE, round, i / 4, 0, word);
    float level = fabsf(x) / norm * QSGD_LEVELS, low = floorf(level);
    int steps = (int)low + ((float)(word[i % 4] >> 8) * 0x1p-24f < level - low);
    return x < 0 ? -steps : steps;
}

TEST(qsgd_is_its_formula_and_unbiased)
{
    enum { COUNT = 1200, BUCKETS = 3, ROUNDS = 400 };
    static float x[COUNT], y[COUNT];
    static double sum[COUNT];
    static int8_t q[COUNT];
    float norms[BUCKETS];
    draw_floats(4, COUNT, x);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        cuda_quantise(NULL, 5, round, COUNT, x, q, norms);
        cuda_dequantise(NULL, COUNT, q, norms, y, false);
        for (size_t i = 0; i < COUNT; i++) {
            sum[i] += (double)y[i];
            CHECK(round > 0 || q[i] == quantised(x[i], norms[i / QSGD_BUCKET], 5, 0, i));
        }
    }
    for (size_t i = 0; i < COUNT; i++) { /* a step is norm / 127; the mean of 400 errs by its 1/40 */
        double step = (double)norms[i / QSGD_BUCKET] / QSGD_LEVELS;
        CHECK_NEAR(sum[i] / ROUNDS, x[i], step * 0.5 / 20 * 5);
    }
    for (int b = 0; b < BUCKETS; b++) {
        double squares = 0;
        for (int i = b * QSGD_BUCKET; i < COUNT && i < (b + 1) * QSGD_BUCKET; i++)
            squares += (double)x[i] * (double)x[i];
        CHECK_NEAR(norms[b], sqrt(squares), 1e-5 * sqrt(squares));
    }
}
