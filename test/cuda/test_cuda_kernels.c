/* test_cuda_kernels.c: our own CUDA kernels, run on the host by the shim, against the code of the
 * host that they must agree with: bit for bit where that is promised. What the layers compute is
 * tested by test_cuda_graph_ops, through the whole backend. */
#include "common/base/rng.h"
#include "common/modelstore/merge.h"
#include "common/modelstore/merge_variants.h"
#include "function-runtime/model/transform.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/optim.h"
#include "test.h"

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
    /* the largest grid does not take so many at once */
    enum { MANY = 128 * 1024 + 77, WORDS = 3001 };
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

/* ---- convolutions ---------------------------------------------------------------------------- */

extern unsigned shim_grid_most; /* shim.h: 65,535, until a test takes a smaller GPU for a large layer */

static conv_shape point(int c, int k, int groups)
{
    return (conv_shape){.n = 1, .c = c, .h = 1, .w = 1, .k = k, .r = 1, .s = 1, .p = 1, .q = 1,
                        .stride_h = 1, .stride_w = 1, .dil_h = 1, .dil_w = 1, .groups = groups};
}

/* A linear layer of millions of inputs has more blocks of columns, a depthwise one of many channels
 * more groups, than a grid takes in its second or third direction. */
TEST(a_layer_may_be_larger_than_a_grids_other_directions)
{
    enum { INPUTS = 64 * 4 + 1, CHANNELS = 9 };
    float x[INPUTS], w[CHANNELS], y[CHANNELS], dw[INPUTS], dy = 0.75f;
    draw_floats(1, INPUTS, x);
    draw_floats(2, CHANNELS, w);
    shim_grid_most = 4;
    cuda_conv_weights(NULL, ELEMENT_F32, point(INPUTS, 1, 1), x, &dy, NULL, dw);
    cuda_conv_forward(NULL, ELEMENT_F32, point(CHANNELS, CHANNELS, CHANNELS), x, w, NULL, false,
                      NULL, y);
    for (int i = 0; i < INPUTS; i++)
        CHECK(dw[i] == dy * x[i]);
    for (int i = 0; i < CHANNELS; i++)
        CHECK(y[i] == x[i] * w[i]);
}

/* ---- fused convolutions ---------------------------------------------------------------------- */

enum { FUSED_N = 3, FUSED_MOST = 1 << 15 };

typedef struct fused {
    conv_shape s;
    pool_shape o;
    bool relu, bias, add;
} fused;

static fused make_fused(int c, int h, int k, int kernel, int stride, int pad, int dilation,
                        int window, int step)
{
    fused f = {.relu = true, .bias = true};
    int p = (h + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1,
        q = (p - window + step - 1) / step + 1;
    f.s = (conv_shape){.n = FUSED_N,
                       .c = c,
                       .h = h,
                       .w = h,
                       .k = k,
                       .r = kernel,
                       .s = kernel,
                       .p = p,
                       .q = p,
                       .stride_h = stride,
                       .stride_w = stride,
                       .pad_h = pad,
                       .pad_w = pad,
                       .dil_h = dilation,
                       .dil_w = dilation,
                       .groups = 1};
    f.o = (pool_shape){.n = FUSED_N,
                       .c = k,
                       .h = p,
                       .w = p,
                       .p = q,
                       .q = q,
                       .kernel_h = window,
                       .kernel_w = window,
                       .stride_h = step,
                       .stride_w = step};
    return f;
}

static fused of_batch(fused f, int n)
{
    f.s.n = f.o.n = n;
    return f;
}

/* What does not fill a window is in none. */
static fused whole_windows(fused f)
{
    f.o.p = f.o.q = (f.s.p - f.o.kernel_h) / f.o.stride_h + 1;
    return f;
}

typedef struct tensors {
    float y[FUSED_MOST], dw[FUSED_MOST], db[64], dx[FUSED_MOST];
    uint16_t winner[FUSED_MOST];
} tensors;

/* As layers of their own. */
static void run_parts(const fused *f, const float *x, const float *w, const float *bias,
                      const float *dy, tensors *out)
{
    static float z[FUSED_MOST], dz[FUSED_MOST], scratch[1 << 20];
    size_t places = (size_t)f->s.n * (size_t)f->s.p * (size_t)f->s.q;
    for (int pass = 0; pass < CONV_PASSES; pass++)
        CHECK(cuda_conv_scratch(f->s, (conv_pass)pass) <= sizeof scratch / sizeof *scratch);
    cuda_conv_forward(NULL, ELEMENT_F32, f->s, x, w, bias, f->relu, scratch, z);
    cuda_max_pool_forward(NULL, ELEMENT_F32, f->o, z, out->winner, out->y);
    cuda_max_pool_backward(NULL, ELEMENT_F32, f->o, out->winner, dy, dz, false);
    if (f->relu)
        cuda_relu_mask(NULL, ELEMENT_F32, places * (size_t)f->s.k, z, dz);
    cuda_column_sums(NULL, ELEMENT_F32, places, f->s.k, dz, scratch, out->db);
    cuda_conv_weights(NULL, ELEMENT_F32, f->s, x, dz, scratch, out->dw);
    cuda_conv_data(NULL, ELEMENT_F32, f->s, dz, w, scratch, out->dx, f->add);
}

static void run_fused(const fused *f, const float *x, const float *w, const float *bias,
                      const float *dy, tensors *out)
{
    static float scratch[1 << 17];
    CHECK(cuda_conv_pool_scratch(f->s) <= sizeof scratch / sizeof *scratch);
    cuda_conv_pool_forward(NULL, ELEMENT_F32, f->s, f->o, x, w, bias, f->relu, out->winner, out->y);
    cuda_conv_pool_backward(NULL, ELEMENT_F32, f->s, f->o, x, w, out->winner, out->y, f->relu, dy,
                            scratch, out->dw, out->db, out->dx, f->add, NULL);
}

static void check_close(const float *got, const float *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK_NEAR(got[i], want[i], 2e-4);
}

static void check_fused(fused f)
{
    static float x[FUSED_MOST], w[FUSED_MOST], bias[64], dy[FUSED_MOST];
    static tensors got, want;
    size_t inputs = (size_t)f.s.n * (size_t)(f.s.h * f.s.w * f.s.c),
           weights = (size_t)(f.s.k * f.s.r * f.s.s * f.s.c);
    size_t outputs = (size_t)f.s.n * (size_t)(f.o.p * f.o.q * f.s.k);
    CHECK(cuda_conv_pool_fits(f.s, f.o));
    draw_floats(1, FUSED_MOST, x);
    draw_floats(2, FUSED_MOST, w);
    draw_floats(3, 64, bias);
    draw_floats(4, FUSED_MOST, dy);
    draw_floats(5, FUSED_MOST, got.dx);
    memcpy(want.dx, got.dx, sizeof want.dx);
    run_parts(&f, x, w, f.bias ? bias : NULL, dy, &want);
    run_fused(&f, x, w, f.bias ? bias : NULL, dy, &got);
    check_close(got.y, want.y, outputs);
    check_close(got.dw, want.dw, weights);
    check_close(got.db, want.db, (size_t)f.s.k);
    check_close(got.dx, want.dx, inputs);
}

TEST_LIMIT(a_fused_convolution_computes_what_its_parts_do, 60)
{
    fused plain = make_fused(3, 9, 4, 3, 1, 1, 1, 2, 2); /* its last windows are cut off */
    check_fused(make_fused(1, 28, 6, 5, 1, 2, 1, 2, 2)); /* LeNet's */
    check_fused(make_fused(6, 14, 16, 5, 1, 0, 1, 2, 2));
    check_fused(plain);
    check_fused(make_fused(2, 13, 5, 3, 2, 1, 1, 2, 2));
    check_fused(make_fused(2, 13, 5, 3, 1, 0, 2, 3, 3));
    check_fused(make_fused(4, 8, 3, 1, 1, 0, 1, 2, 3)); /* places that no window reads */
    plain.relu = false;
    check_fused(plain);
    plain.bias = false, plain.add = true;
    check_fused(plain);
}

/* Filters and channels that are no pairs, places in no window, more channels than groups of
 * threads, more rows of taps than threads, more to bring than once; and shapes next to these that
 * are the general kernels'. */
TEST_LIMIT(a_fused_convolution_may_have_any_remainder, 60)
{
    check_fused(make_fused(3, 11, 5, 5, 1, 2, 1, 2, 2));
    check_fused(whole_windows(make_fused(3, 11, 5, 5, 1, 0, 1, 2, 2)));
    check_fused(whole_windows(make_fused(2, 9, 1, 3, 1, 2, 1, 2, 2)));
    check_fused(make_fused(12, 8, 9, 3, 1, 1, 1, 2, 2));
    check_fused(make_fused(45, 3, 2, 3, 1, 0, 1, 2, 2));
    check_fused(make_fused(1, 42, 1, 3, 1, 0, 1, 2, 2));
    check_fused(make_fused(1, 5, 40, 5, 1, 4, 1, 2, 2));
    check_fused(make_fused(1, 5, 3, 3, 1, 3, 1, 2, 2));   /* places that read padding alone */
    check_fused(make_fused(2, 20, 20, 3, 1, 1, 1, 2, 2)); /* too large */
}

/* How a sample is dealt to blocks depends on the batch; what it becomes does not. */
TEST_LIMIT(a_fused_convolutions_sample_has_its_bits_in_any_batch, 60)
{
    static float x[FUSED_MOST], w[FUSED_MOST], bias[64], dy[FUSED_MOST];
    static tensors one, many;
    enum { BATCH = 70 };
    fused f = of_batch(make_fused(5, 9, 4, 5, 1, 2, 1, 2, 2), BATCH), single = of_batch(f, 1);
    check_fused(f);
    check_fused(single);
    draw_floats(1, FUSED_MOST, x);
    draw_floats(2, FUSED_MOST, w);
    draw_floats(3, 64, bias);
    draw_floats(4, FUSED_MOST, dy);
    run_fused(&f, x, w, bias, dy, &many);
    run_fused(&single, x, w, bias, dy, &one);
    CHECK(memcmp(one.y, many.y, 5 * 5 * 4 * sizeof(float)) == 0);
    CHECK(memcmp(one.dx, many.dx, 9 * 9 * 5 * sizeof(float)) == 0);
}

/* The first of equals wins, a NaN wins over what came before it. */
TEST_LIMIT(a_fused_convolutions_windows_have_the_poolings_winners, 60)
{
    static float x[FUSED_MOST], w[FUSED_MOST], dy[FUSED_MOST];
    static tensors got, want;
    for (int kernel = 1; kernel <= 5; kernel += 2) {
        fused f = make_fused(2, 12, 4, kernel, 1, 0, 1, 2, 2);
        size_t outputs = (size_t)f.s.n * (size_t)(f.o.p * f.o.q * f.s.k), several = 0;
        f.relu = kernel == 3;
        draw_floats(2, FUSED_MOST, w);
        for (size_t i = 0; i < FUSED_MOST; i++) /* equals, and a NaN in the second sample */
            x[i] = (float)(i / 40 % 3);
        x[12 * 12 * 2 + 131] = NAN;
        run_parts(&f, x, w, NULL, dy, &want);
        run_fused(&f, x, w, NULL, dy, &got);
        for (size_t i = 0; i < outputs; i++) {
            CHECK_INT(isnan(got.y[i]), isnan(want.y[i]));
            several += isnan(got.y[i]) != 0;
            if (isnan(want.y[i]))
                CHECK_INT(got.winner[i], want.winner[i]);
            else
                CHECK_NEAR(got.y[i], want.y[i], 2e-4);
        }
        CHECK(several >= 4);
        draw_floats(2, FUSED_MOST, x);
        memset(x, 0, 12 * 12 * 2 * sizeof(float)); /* the first sample's are all equal */
        run_fused(&f, x, w, NULL, dy, &got);
        for (size_t i = 0; i < outputs / FUSED_N; i++)
            CHECK_INT(got.winner[i], 0);
    }
}

static void check_fused_bf16(fused f)
{
    static float x[FUSED_MOST], w[FUSED_MOST], bias[64], dy[FUSED_MOST], scratch[2 * FUSED_MOST];
    static uint16_t x16[FUSED_MOST], w16[FUSED_MOST], dy16[FUSED_MOST], y16[FUSED_MOST],
        dx16[FUSED_MOST];
    static tensors got, want;
    size_t inputs = (size_t)f.s.n * (size_t)(f.s.h * f.s.w * f.s.c),
           outputs = (size_t)f.s.n * (size_t)(f.o.p * f.o.q * f.s.k);
    draw_floats(1, FUSED_MOST, x);
    draw_floats(2, FUSED_MOST, w);
    draw_floats(3, 64, bias);
    draw_floats(4, FUSED_MOST, dy);
    cuda_to_bf16(NULL, FUSED_MOST, x, x16);
    cuda_to_bf16(NULL, FUSED_MOST, w, w16);
    cuda_to_bf16(NULL, FUSED_MOST, dy, dy16);
    cuda_from_bf16(NULL, FUSED_MOST, x16, x, false);
    cuda_from_bf16(NULL, FUSED_MOST, w16, w, false);
    cuda_from_bf16(NULL, FUSED_MOST, dy16, dy, false);
    run_parts(&f, x, w, bias, dy, &want);
    cuda_conv_pool_forward(NULL, ELEMENT_BF16, f.s, f.o, x16, w16, bias, f.relu, got.winner, y16);
    cuda_conv_pool_backward(NULL, ELEMENT_BF16, f.s, f.o, x16, w16, got.winner, y16, f.relu, dy16,
                            scratch, got.dw, got.db, dx16, false, NULL);
    cuda_from_bf16(NULL, outputs, y16, got.y, false);
    cuda_from_bf16(NULL, inputs, dx16, got.dx, false);
    for (size_t i = 0; i < outputs; i++)
        CHECK_NEAR(got.y[i], want.y[i], 2e-4 + fabs((double)want.y[i]) / 256);
    for (size_t i = 0; i < inputs; i++)
        CHECK_NEAR(got.dx[i], want.dx[i], 2e-4 + fabs((double)want.dx[i]) / 256);
    check_close(got.dw, want.dw, (size_t)(f.s.k * f.s.r * f.s.s * f.s.c));
    check_close(got.db, want.db, (size_t)f.s.k);
}

TEST_LIMIT(a_fused_convolution_of_bf16_sums_in_floats, 60)
{
    check_fused_bf16(make_fused(6, 14, 16, 5, 1, 0, 1, 2, 2));
    check_fused_bf16(make_fused(3, 11, 5, 3, 1, 1, 1, 2, 2));
    check_fused_bf16(make_fused(2, 13, 5, 3, 2, 1, 1, 2, 2));
}

/* ---- batch norm ------------------------------------------------------------------------------ */

enum {
    NORM_N = 4,
    NORM_LIVE = 3,
    NORM_HW = 600,
    NORM_C = 36,
    NORM_MOST = NORM_N * NORM_HW * NORM_C
};

typedef struct normed {
    float y[NORM_MOST + 1], dx[NORM_MOST + 1], dalso[NORM_MOST + 1];
    float saved[2 * NORM_C], mean[NORM_C], var[NORM_C], dw[NORM_C], db[NORM_C];
} normed;

typedef struct norm_input {
    float x[NORM_MOST + 1], also[NORM_MOST + 1], dy[NORM_MOST + 1], w[NORM_C], b[NORM_C];
} norm_input;

/* One channel in plain words. */
static void norm_channel(const norm_input *in, int shift, norm_shape s, size_t c, bool adds,
                         normed *out)
{
    size_t rows = (size_t)NORM_LIVE * (size_t)s.hw, C = (size_t)s.c;
    double n = (double)rows, sum = 0, squares = 0, db = 0, dw = 0;
    const float *x = in->x + shift + c, *also = in->also + shift + c, *dy = in->dy + shift + c;
    float *y = out->y + shift + c, *dx = out->dx + shift + c, *dalso = out->dalso + shift + c;
    for (size_t i = 0; i < rows; i++)
        sum += (double)x[i * C];
    for (size_t i = 0; i < rows; i++)
        squares += ((double)x[i * C] - sum / n) * ((double)x[i * C] - sum / n);
    double inverse = 1 / sqrt(squares / n + s.eps), w = (double)in->w[c];
    for (size_t i = 0; i < rows; i++) {
        double u = ((double)x[i * C] - sum / n) * inverse;
        double value = u * w + (double)in->b[c] + (adds ? (double)also[i * C] : 0);
        y[i * C] = value > 0 ? (float)value : 0;
        dalso[i * C] = y[i * C] > 0 ? dy[i * C] : 0;
        db += (double)dalso[i * C];
        dw += (double)dalso[i * C] * u;
    }
    for (size_t i = 0; i < rows; i++)
        dx[i * C] += (float)(w * inverse *
                             ((double)dalso[i * C] - db / n -
                              ((double)x[i * C] - sum / n) * inverse * dw / n));
    out->dw[c] = (float)dw;
    out->db[c] = (float)db;
    out->mean[c] = (float)(0.9 * (double)out->mean[c] + 0.1 * sum / n);
    out->var[c] = (float)(0.9 * (double)out->var[c] + 0.1 * squares / (n - 1));
}

/* What the kernels see of a block of floats: itself, or bf16, to which the floats are rounded. */
static void *stored(element t, float *x, size_t count, uint16_t *as_bf16)
{
    if (t == ELEMENT_F32)
        return x;
    cuda_to_bf16(NULL, count, x, as_bf16);
    cuda_to_float(NULL, t, count, as_bf16, x);
    return as_bf16;
}

static void check_near(element t, const float *got, const float *want, size_t count)
{
    if (t == ELEMENT_F32)
        check_close(got, want, count);
    else
        for (size_t i = 0; i < count; i++)
            CHECK_NEAR(got[i], want[i], 0.01 * (1 + fabs((double)want[i])));
}

/* `shift`: values begin so many floats behind where several of them could be read at once. */
static void check_norm_of(element t, int C, int hw, int shift, bool adds)
{
    enum { EACH = NORM_MOST + 8 };
    static norm_input in;
    static normed got, want;
    static double scratch[2048 + 2 * NORM_MOST]; /* zero: blocks are counted in it */
    static _Alignas(16) uint16_t halves[6][EACH];
    const step_args a = {.n = NORM_LIVE};
    norm_shape s = {.n = NORM_N, .c = C, .hw = hw, .eps = 1e-5, .momentum = 0.1};
    size_t live = (size_t)(NORM_LIVE * hw * C), all = live / NORM_LIVE * NORM_N;
    int64_t counter = 4;
    CHECK(cuda_norm_scratch(s) <= sizeof scratch / sizeof *scratch);
    draw_floats(1, sizeof in / sizeof(float), in.x);
    draw_floats(2, sizeof got / sizeof(float), got.y);
    void *x = stored(t, in.x + shift, all, halves[0] + shift);
    void *also = stored(t, in.also + shift, all, halves[1] + shift);
    void *dy = stored(t, in.dy + shift, all, halves[2] + shift);
    void *y = stored(t, got.y + shift, all, halves[3] + shift);
    void *dx = stored(t, got.dx + shift, all, halves[4] + shift);
    void *dalso = stored(t, got.dalso + shift, all, halves[5] + shift);
    memcpy(&want, &got, sizeof want);
    for (size_t c = 0; c < (size_t)C; c++)
        norm_channel(&in, shift, s, c, adds, &want);
    cuda_norm_forward(NULL, t, &a, s, x, scratch, got.saved, got.mean, got.var, &counter, in.w,
                      in.b, adds ? also : NULL, true, y);
    cuda_norm_backward(NULL, t, &a, s, x, true, adds ? y : NULL, got.saved, in.w, in.b, dy, scratch,
                       got.dw, got.db, dx, true, dalso, false);
    if (t == ELEMENT_BF16) {
        cuda_to_float(NULL, t, all, y, got.y + shift);
        cuda_to_float(NULL, t, all, dx, got.dx + shift);
        cuda_to_float(NULL, t, all, dalso, got.dalso + shift);
    }
    CHECK_INT(counter, 5);
    check_close(got.mean, want.mean, (size_t)C);
    check_close(got.var, want.var, (size_t)C);
    check_near(t, got.y + shift, want.y + shift, live);
    check_near(t, got.dw, want.dw, (size_t)C);
    check_near(t, got.db, want.db, (size_t)C);
    check_near(t, got.dx + shift, want.dx + shift, live);
    check_near(t, got.dalso + shift, want.dalso + shift, live);
    for (size_t i = live; i < all; i++)
        CHECK(got.y[(size_t)shift + i] == 0);
}

static void check_norm(element t, int C, int hw, int shift)
{
    check_norm_of(t, C, hw, shift, true);
    check_norm_of(t, C, hw, shift, false);
}

TEST_LIMIT(batch_norm_is_its_formula_whatever_the_channels, 60)
{
    for (element t = ELEMENT_F32; t <= ELEMENT_BF16; t++) {
        check_norm(t, 36, 600, 0); /* two blocks of channels, the second with few */
        check_norm(t, 32, 600, 0);
        check_norm(t, 32, 600, 1);
        check_norm(t, 24, 600, 0); /* rows that no block of threads is a multiple of */
        check_norm(t, 16, 600, 4);
        check_norm(t, 16, 600, 1);
        check_norm(t, 3, 600, 0);
        check_norm(t, 1, 600, 0);
        check_norm(t, 36, 150, 0); /* few values a channel */
        check_norm(t, 36, 150, 1);
        check_norm(t, 16, 150, 0);
        check_norm(t, 12, 7, 0);
        check_norm(t, 8, 1, 0);
        check_norm(t, 3, 150, 0);
        check_norm(t, 1, 64, 0);
    }
}

/* Single precision holds 24 bits, which squares about zero would use up. */
TEST(batch_norm_keeps_its_digits_far_from_zero)
{
    enum { ROWS = 4096, C = 8 };
    static _Alignas(16) float x[ROWS * C], y[ROWS * C];
    static const float w[C], b[C];
    static double scratch[2048 + 2 * ROWS * C];
    float saved[2 * C], mean[C] = {0}, var[C] = {0};
    const step_args a = {.n = 1};
    norm_shape s = {.n = 1, .c = C, .hw = ROWS, .eps = 0, .momentum = 1};
    int64_t counter = 0;
    draw_floats(3, ROWS * C, x);
    for (int i = 0; i < ROWS * C; i++)
        x[i] = 1000 + x[i] / 16;
    cuda_norm_forward(NULL, ELEMENT_F32, &a, s, x, scratch, saved, mean, var, &counter, w, b, NULL,
                      false, y);
    for (int c = 0; c < C; c++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < ROWS; i++)
            sum += (double)x[i * C + c] / ROWS;
        for (int i = 0; i < ROWS; i++)
            squares += ((double)x[i * C + c] - sum) * ((double)x[i * C + c] - sum) / ROWS;
        CHECK_NEAR(saved[C + c], 1 / sqrt(squares), 1e-5 / sqrt(squares));
    }
}

/* ---- the head -------------------------------------------------------------------------------- */

enum { HEAD_N = 5, HEAD_LIVE = 4, HEAD_MOST = 60000, HEAD_WIDE = 152, HEAD_IN = 2100 };

/* Tensors of either element. */
typedef struct head_run {
    float y[HEAD_LAYERS_MAX][HEAD_N * HEAD_WIDE], dy[HEAD_LAYERS_MAX][HEAD_N * HEAD_WIDE];
    float dw[HEAD_LAYERS_MAX][HEAD_MOST], db[HEAD_LAYERS_MAX][HEAD_WIDE], dx[HEAD_N * HEAD_IN];
    step_result rows[HEAD_N], sum;
} head_run;

typedef struct head_case {
    element t;
    int layers;
    int sizes[HEAD_LAYERS_MAX + 1];
    bool bias, last_relu;
    size_t shift; /* weights and x begin so many values behind where four are one load */
    bool full;    /* every sample counts */
} head_case;

static const void *values_from(element t, const void *values, size_t at)
{
    return (const char *)values + at * element_bytes(t);
}

static head_shape head_shape_of(const head_case *c, const void *weights, const float *biases,
                                head_run *out)
{
    head_shape h = {.layers = c->layers};
    for (int i = 0; i < c->layers; i++) {
        h.layer[i] = (head_layer){.c = c->sizes[i],
                                  .k = c->sizes[i + 1],
                                  .relu = i + 1 < c->layers || c->last_relu,
                                  .w = values_from(c->t, weights, 100 * (size_t)i + c->shift),
                                  .bias = c->bias ? biases + 7 * i : NULL,
                                  .y = out->y[i],
                                  .dy = out->dy[i],
                                  .dw = out->dw[i],
                                  .db = c->bias ? out->db[i] : NULL};
        CHECK(c->sizes[i] * c->sizes[i + 1] + 100 * i < HEAD_MOST);
    }
    CHECK(cuda_head_fits(&h));
    return h;
}

/* As layers of their own. */
static void run_layers(element t, const head_shape *h, const step_args *a, const void *x,
                       const int32_t *labels, head_run *out)
{
    static float scratch[1 << 20];
    int last = h->layers - 1;
    conv_shape s[HEAD_LAYERS_MAX];
    for (int i = 0; i <= last; i++) {
        const head_layer *l = &h->layer[i];
        s[i] = (conv_shape){.n = HEAD_N,
                            .c = l->c,
                            .h = 1,
                            .w = 1,
                            .k = l->k,
                            .r = 1,
                            .s = 1,
                            .p = 1,
                            .q = 1,
                            .stride_h = 1,
                            .stride_w = 1,
                            .dil_h = 1,
                            .dil_w = 1,
                            .groups = 1};
        cuda_conv_forward(NULL, t, s[i], i ? h->layer[i - 1].y : x, l->w, l->bias, l->relu, scratch,
                          l->y);
    }
    cuda_cross_entropy(NULL, t, a, HEAD_N, h->layer[last].k, h->layer[last].y, labels,
                       h->layer[last].dy, out->rows, &out->sum);
    for (int i = last; i >= 0; i--) {
        const head_layer *l = &h->layer[i];
        if (l->relu)
            cuda_relu_mask(NULL, t, (size_t)(HEAD_N * l->k), l->y, l->dy);
        if (l->db)
            cuda_column_sums(NULL, t, HEAD_N, l->k, l->dy, scratch, l->db);
        cuda_conv_weights(NULL, t, s[i], i ? h->layer[i - 1].y : x, l->dy, scratch, l->dw);
        cuda_conv_data(NULL, t, s[i], l->dy, l->w, scratch, i ? h->layer[i - 1].dy : out->dx,
                       false);
    }
}

static void check_values(element t, const void *got, const void *want, size_t count)
{
    static float floats[2][HEAD_N * HEAD_IN];
    CHECK(count <= HEAD_N * HEAD_IN);
    cuda_to_float(NULL, t, count, got, floats[0]);
    cuda_to_float(NULL, t, count, want, floats[1]);
    for (size_t i = 0; i < count; i++)
        CHECK_NEAR(floats[0][i], floats[1][i], t == ELEMENT_BF16 ? 1e-2 : 2e-4);
}

typedef struct head_input {
    float x[HEAD_N * HEAD_IN + 4], weights[HEAD_MOST], biases[HEAD_MOST];
} head_input;

/* Values of the element in the floats' places. */
static void draw_head_input(element t, head_input *in)
{
    static float drawn[HEAD_MOST];
    draw_floats(2, HEAD_MOST, in->biases);
    for (size_t i = 0; i < HEAD_MOST; i++)
        in->biases[i] *= 0.1f; /* or one class is certain, and its gradient a step */
    draw_floats(1, HEAD_N * HEAD_IN + 4, drawn);
    if (t == ELEMENT_BF16) {
        cuda_to_bf16(NULL, HEAD_MOST, in->biases, in->weights);
        cuda_to_bf16(NULL, HEAD_N * HEAD_IN + 4, drawn, in->x);
    } else {
        memcpy(in->weights, in->biases, sizeof in->weights);
        memcpy(in->x, drawn, sizeof in->x);
    }
}

static const int32_t head_labels[HEAD_N] = {1, 0, 2, 1, 0};

static void check_head(head_case c)
{
    static head_input in;
    static head_run got, want;
    const step_args a = {.n = c.full ? HEAD_N : HEAD_LIVE};
    const head_shape h = head_shape_of(&c, in.weights, in.biases, &got),
                     parts = head_shape_of(&c, in.weights, in.biases, &want);
    draw_head_input(c.t, &in);
    const void *x = values_from(c.t, in.x, c.shift);
    cuda_head(NULL, c.t, &a, HEAD_N, &h, x, head_labels, true, got.dx, got.rows, &got.sum);
    cuda_head_gradients(NULL, c.t, HEAD_N, &h, x, got.rows, &got.sum, NULL);
    run_layers(c.t, &parts, &a, x, head_labels, &want);
    for (int i = 0; i < c.layers; i++) {
        check_values(c.t, got.y[i], want.y[i], (size_t)(HEAD_N * c.sizes[i + 1]));
        check_values(c.t, got.dy[i], want.dy[i], (size_t)(HEAD_N * c.sizes[i + 1]));
        for (int j = 0; j < c.sizes[i] * c.sizes[i + 1]; j++)
            CHECK_NEAR(got.dw[i][j], want.dw[i][j], c.t == ELEMENT_BF16 ? 1e-2 : 2e-4);
        check_values(ELEMENT_F32, got.db[i], want.db[i], (size_t)c.sizes[i + 1]);
    }
    check_values(c.t, got.dx, want.dx, (size_t)(HEAD_N * c.sizes[0]));
    CHECK_NEAR(got.sum.loss_sum, want.sum.loss_sum, c.t == ELEMENT_BF16 ? 1e-2 : 1e-4);
    CHECK_INT(got.sum.correct, want.sum.correct);
    CHECK(want.sum.loss_sum > 0);
    /* nobody asks for dx */
    static head_run again;
    const head_shape same = head_shape_of(&c, in.weights, in.biases, &again);
    cuda_head(NULL, c.t, &a, HEAD_N, &same, x, head_labels, true, NULL, again.rows, &again.sum);
    CHECK(memcmp(again.y, got.y, sizeof got.y) == 0);
    CHECK(memcmp(again.dy, got.dy, sizeof got.dy) == 0);
    /* forward alone */
    double loss = got.sum.loss_sum;
    cuda_head(NULL, c.t, &a, HEAD_N, &h, x, head_labels, false, NULL, got.rows, &got.sum);
    CHECK_NEAR(got.sum.loss_sum, loss, 1e-12);
}

TEST_LIMIT(a_head_computes_what_its_layers_do, 60)
{
    check_head(
        (head_case){ELEMENT_F32, 3, {400, 120, 84, 10}, true, false, 0, false}); /* LeNet's */
    check_head((head_case){ELEMENT_F32, 3, {400, 120, 84, 10}, true, false, 1, false});
    check_head((head_case){ELEMENT_BF16, 3, {400, 120, 84, 10}, true, false, 0, false});
    check_head((head_case){ELEMENT_F32, 1, {37, 3}, true, false, 0, true});
    check_head((head_case){ELEMENT_F32, 4, {5, 33, 65, 40, 3}, false, false, 0, false});
    check_head((head_case){ELEMENT_BF16, 4, {5, 33, 65, 40, 3}, true, true, 0, false});
}

TEST_LIMIT(a_head_may_be_wider_than_its_blocks, 60)
{
    check_head((head_case){ELEMENT_F32, 2, {36, 150, 40}, true, true, 0, false});
    check_head((head_case){ELEMENT_BF16, 1, {512, 10}, true, false, 0, false}); /* ResNet's */
    check_head((head_case){ELEMENT_F32, 1, {2100, 9}, true, false, 0, true});
    check_head((head_case){ELEMENT_F32, 1, {2099, 9}, false, false, 0, false});
}

/* A row's loss is that of the loss's own kernel, bit for bit. */
TEST(a_heads_loss_is_the_losss_own)
{
    static head_input in;
    static head_run out;
    const head_case c = {ELEMENT_F32, 2, {24, 30, 50}, true, false, 0, false};
    const step_args a = {.n = HEAD_LIVE};
    const head_shape h = head_shape_of(&c, in.weights, in.biases, &out);
    draw_head_input(c.t, &in);
    step_result rows[HEAD_N], sum;
    static float dz[HEAD_N * 50];
    cuda_head(NULL, c.t, &a, HEAD_N, &h, in.x, head_labels, true, NULL, out.rows, &out.sum);
    cuda_cross_entropy(NULL, c.t, &a, HEAD_N, 50, out.y[1], head_labels, dz, rows, &sum);
    CHECK(memcmp(rows, out.rows, sizeof rows) == 0);
    CHECK(memcmp(dz, out.dy[1], sizeof dz) == 0);
}

enum { HEAD_BLOCK = 4096 };

/* The whole block of parameters, some of them in between of no layer. */
typedef struct head_block {
    float w[HEAD_BLOCK], state[2 * HEAD_BLOCK], g[HEAD_BLOCK];
    uint16_t w16[HEAD_BLOCK];
} head_block;

/* Steps that the gradients' kernel takes, against those of the optimizer's own. */
static void check_head_steps(head_case c, optim_args o, size_t begin)
{
    static head_input in;
    static head_run out;
    static head_block taken, apart;
    const step_args a = {.n = HEAD_LIVE,
                         .lr = 0.1f,
                         .kept = 0.9f,
                         .fresh = 0.7f,
                         .rate = 0.2f,
                         .root2 = 0.3f,
                         .shrink = 0.99f};
    head_shape h = head_shape_of(&c, in.weights, in.biases, &out);
    draw_head_input(c.t, &in);
    memset(&taken, 0, sizeof taken);
    draw_floats(5, HEAD_BLOCK, taken.w);
    size_t at = begin;
    for (int i = 0; i < c.layers; i++) {
        h.layer[i].dw = taken.g + at;
        at += (size_t)(c.sizes[i] * c.sizes[i + 1]);
        h.layer[i].db = taken.g + at;
        at += (size_t)c.sizes[i + 1] + begin;
    }
    CHECK(at <= HEAD_BLOCK);
    memcpy(&apart, &taken, sizeof taken);
    cuda_head(NULL, c.t, &a, HEAD_N, &h, in.x, head_labels, true, NULL, out.rows, &out.sum);
    for (int step = 0; step < 3; step++) {
        const optim_block update = {&a, o, HEAD_BLOCK, taken.w, taken.state, taken.g, taken.w16},
                          all = {&a, o, HEAD_BLOCK, apart.w, apart.state, apart.g, apart.w16};
        cuda_head_gradients(NULL, c.t, HEAD_N, &h, in.x, out.rows, &out.sum, &update);
        memcpy(apart.g, taken.g, sizeof taken.g);
        cuda_optim(NULL, &all);
    }
    for (int i = 0; i < c.layers; i++) {
        size_t from = (size_t)(h.layer[i].dw - taken.g), to = (size_t)(h.layer[i].db - taken.g);
        to += (size_t)c.sizes[i + 1];
        for (size_t j = from; j < to; j++) {
            CHECK(memcmp(&taken.w[j], &apart.w[j], sizeof(float)) == 0);
            CHECK(memcmp(&taken.state[j], &apart.state[j], sizeof(float)) == 0);
            CHECK(memcmp(&taken.state[HEAD_BLOCK + j], &apart.state[HEAD_BLOCK + j],
                         sizeof(float)) == 0);
            CHECK_INT(taken.w16[j], apart.w16[j]);
            CHECK(taken.g[j] != 0 || taken.w[j] != 0);
        }
    }
    CHECK(taken.w16[0] == 0); /* nobody's */
}

TEST_LIMIT(a_heads_parameters_take_the_optimizers_step, 60)
{
    const optim_args plain = {.decay = 0.01f},
                     nesterov = {.has_momentum = 1, .nesterov = 1, .momentum = 0.9f},
                     adam = {
                         .adam = 1, .fresh1 = 0.1f, .beta2 = 0.9f, .fresh2 = 0.1f, .eps = 1e-3f};
    const head_case fours = {ELEMENT_F32, 2, {20, 32, 12}, true, false, 0, false},
                    ones = {ELEMENT_F32, 2, {21, 33, 11}, true, false, 0, false},
                    halves = {ELEMENT_BF16, 2, {20, 32, 12}, true, false, 0, false};
    check_head_steps(fours, plain, 4);
    check_head_steps(fours, nesterov, 4);
    check_head_steps(fours, adam, 4);
    check_head_steps(fours, adam, 5); /* parameters begin where four are not one load */
    check_head_steps(ones, nesterov, 4);
    check_head_steps(halves, adam, 4);
}

TEST(a_head_that_is_too_large_is_none)
{
    head_shape h = {.layers = 1, .layer = {{.c = 6000, .k = 10}}};
    CHECK(!cuda_head_fits(&h)); /* for a block's shared memory */
    h.layer[0] = (head_layer){.c = 1024, .k = 1000};
    CHECK(!cuda_head_fits(&h)); /* for a cache */
    h.layer[0] = (head_layer){.c = 512, .k = 100};
    CHECK(cuda_head_fits(&h));
}

TEST(what_is_too_large_or_overlaps_is_not_fused)
{
    fused f = make_fused(1, 28, 6, 5, 1, 2, 1, 2, 2);
    CHECK(cuda_conv_pool_fits(f.s, f.o));
    f.o.stride_h = 1;
    CHECK(!cuda_conv_pool_fits(f.s, f.o));
    f = make_fused(1, 28, 6, 5, 1, 2, 1, 2, 2);
    f.o.pad_w = 1;
    CHECK(!cuda_conv_pool_fits(f.s, f.o));
    f = make_fused(2, 28, 6, 5, 1, 2, 1, 2, 2);
    f.s.groups = 2;
    CHECK(!cuda_conv_pool_fits(f.s, f.o));
    f = make_fused(64, 32, 64, 3, 1, 1, 1, 2, 2);
    CHECK(!cuda_conv_pool_fits(f.s, f.o));
}

/* ---- optimizers ------------------------------------------------------------------------------ */

enum { WEIGHTS = 1000, UPDATES = 4 };

static void compare_optim(const char *name, optim o)
{
    static float w[2][WEIGHTS], g[WEIGHTS], state[2][2 * WEIGHTS];
    static uint16_t w16[WEIGHTS], want16[WEIGHTS];
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
        const optim_block all = {
            .a = &a, .o = args, .count = WEIGHTS, .w = w[0], .state = state[0], .g = g, .w16 = w16};
        cuda_optim(NULL, &all);
        optim_update(&o, lr, step, WEIGHTS, w[1], g, state[1], WEIGHTS);
    }
    for (int i = 0; i < WEIGHTS; i++)
        if (memcmp(&w[0][i], &w[1][i], sizeof(float)) != 0)
            test_fail(__FILE__, __LINE__, "%s: weight %d is %.9g, not %.9g", name, i,
                      (double)w[0][i], (double)w[1][i]);
    cuda_to_bf16(NULL, WEIGHTS, w[0], want16);
    CHECK(memcmp(w16, want16, sizeof w16) == 0);
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

/* Samples are gathered as the host's are moved and then brought in. */
enum { ROWS = 12, TAKEN = 5, CAP = 7, OUTPUTS = 3, LARGEST = 3 * 113 * 111 };

typedef struct taken {
    float x[CAP * LARGEST]; /* or bf16s */
    int32_t labels[CAP];
    float targets[CAP * OUTPUTS];
    uint64_t keys[CAP];
} taken;

static float share_floats[ROWS * LARGEST];
static uint8_t share_bytes[ROWS * LARGEST];

static void draw_share(void)
{
    rng r;
    draw_floats(2, ROWS * LARGEST, share_floats);
    rng_init(&r, 7, RNG_TEST, 0, 3);
    for (size_t i = 0; i < ROWS * LARGEST; i++)
        share_bytes[i] = (uint8_t)rng_below(&r, 256);
}

static void compare_input(const gathering *g, const taken *got, element t)
{
    static float moved[CAP * LARGEST], want[CAP * LARGEST];
    const augmentation *m = &g->augment;
    transform how = {.flip = m->flip, .crop = m->crop};
    size_t size = (size_t)m->c * (size_t)m->h * (size_t)m->w, each = g->uint8 ? 1 : sizeof(float);
    step_args a = {.n = TAKEN, .uint8 = g->uint8};
    for (size_t i = 0; i < TAKEN; i++) {
        size_t row = g->order[g->a->row + (int32_t)i];
        transform_move(&how, m->seed, g->a->epoch, g->share.keys[row], m->c, m->h, m->w, each,
                       (const char *)g->share.x + row * size * each,
                       (char *)moved + i * size * each);
    }
    cuda_input(NULL, &a, moved, g->scale_shift, CAP, m->c, m->h * m->w, t, want);
    CHECK(memcmp(got->x, want, CAP * size * element_bytes(t)) == 0);
}

static void compare_gather(augmentation m, bool uint8, int outputs, element t)
{
    static taken got;
    static float targets[ROWS * OUTPUTS];
    int32_t labels[ROWS];
    uint64_t keys[ROWS];
    uint32_t order[ROWS];
    float scale_shift[6];
    size_t n = (size_t)outputs;
    step_args a = {.n = TAKEN, .row = 4, .epoch = 9}, next = a;
    step_result before = {0, 0}, total = before;
    for (uint32_t i = 0; i < ROWS; i++) {
        labels[i] = (int32_t)i * 3;
        keys[i] = 1000 + i * 17;
        order[i] = (i * 5 + 2) % ROWS;
    }
    draw_floats(1, ROWS * OUTPUTS, targets);
    draw_floats(4, 6, scale_shift);
    memset(&got, 0xff, sizeof got);
    gathering g = {.a = &a,
                   .augment = m,
                   .uint8 = uint8,
                   .outputs = outputs,
                   .share = {uint8 ? (void *)share_bytes : share_floats, labels, targets, keys},
                   .order = order,
                   .scale_shift = scale_shift,
                   .batch = {NULL, outputs ? NULL : got.labels, got.targets, got.keys},
                   .next = &next,
                   .before = &before,
                   .total = &total};
    cuda_gather(NULL, &g, CAP, t, got.x);
    compare_input(&g, &got, t);
    for (size_t i = 0; i < TAKEN; i++) {
        size_t row = order[4 + i];
        CHECK(outputs || got.labels[i] == labels[row]);
        CHECK(memcmp(got.targets + i * n, targets + row * n, n * sizeof *targets) == 0);
        CHECK_INT(got.keys[i], keys[row]);
    }
    CHECK_INT(got.keys[TAKEN], -1); /* past the end */
}

/* Less than a block, one value of a second block, few values and many. */
TEST_LIMIT(samples_of_a_share_have_the_bits_of_the_hosts, 60)
{
    static const augmentation shapes[] = {{.c = 1, .h = 5, .w = 7},
                                          {.c = 1, .h = 1, .w = 257},
                                          {.c = 3, .h = 20, .w = 19},
                                          {.c = 3, .h = 113, .w = 111}};
    draw_share();
    for (size_t i = 0; i < 4 * sizeof shapes / sizeof *shapes; i++)
        for (int uint8 = 0; uint8 < 2; uint8++)
            for (int outputs = 0; outputs <= OUTPUTS; outputs += OUTPUTS) {
                augmentation m = shapes[i / 4];
                m.flip = i & 1;
                m.crop = i & 2 ? 2 : 0;
                m.seed = 77;
                compare_gather(m, uint8, outputs, ELEMENT_F32);
                compare_gather(m, uint8, outputs, ELEMENT_BF16);
            }
}

/* Three steps that read their numbers from the first two places of their list. */
TEST(a_step_over_a_share_hands_over_to_the_next)
{
    step_args list[3] = {{.n = 1, .first = 1, .next = 1},
                         {.n = 1, .row = 1, .next = 2},
                         {.n = 1, .row = 2, .lr = 3}};
    const step_result results[3] = {{0.5, 1}, {0.25, 0}, {4, 1}};
    step_result before = {NAN, 77}, total = {NAN, -1}, sum;
    const uint32_t order[3] = {2, 0, 1};
    float x[3] = {10, 11, 12}, y, scale_shift[2] = {1, 0};
    int32_t labels[3] = {5, 6, 7}, label;
    uint64_t keys[3] = {100, 101, 102}, key;
    for (int step = 0; step < 3; step++) {
        gathering g = {.a = &list[step % 2],
                       .augment = {.c = 1, .h = 1, .w = 1},
                       .share = {x, labels, NULL, keys},
                       .order = order,
                       .scale_shift = scale_shift,
                       .batch = {NULL, &label, NULL, &key},
                       .list = list,
                       .next = &list[(step + 1) % 2],
                       .before = &before,
                       .total = &total};
        cuda_gather(NULL, &g, 1, ELEMENT_F32, &y);
        CHECK(y == x[order[step]]);
        CHECK_INT(label, labels[order[step]]);
        CHECK_INT(key, keys[order[step]]);
        before = results[step];
    }
    CHECK(list[0].lr == 3 && list[1].lr == 0);
    cuda_add_results(NULL, &total, &before, &sum);
    CHECK(sum.loss_sum == 4.75);
    CHECK_INT(sum.correct, 2);
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
    /* a step is norm / 127; the mean of 400 errs by its 1/40 */
    for (size_t i = 0; i < COUNT; i++) {
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
