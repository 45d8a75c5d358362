/* test_graph_ops.c: every layer on every backend.
 *
 * A case is a small model around one layer, with a 1x1 convolution in front (so that the gradient
 * of the layer's input shows in that convolution's gradients) and a linear layer behind. The
 * reference's gradients are compared with central differences of its own loss, which it computes in
 * double; every other backend that runs here is compared with the reference. */
#include "common/base/rng.h"
#include "kernels/engine.h"
#include "test.h"

enum { BATCH = 5, OUTPUTS = 4, INPUT_MAX = 1 << 16 };

#ifndef RANDOM_MODELS /* fewer where each thread of a GPU is a fiber */
#define RANDOM_MODELS 150
#endif
/* There, and on a GPU, its backend is what is new: the others are tested by the program without
 * it. */
#if defined(ON_SHIM) || defined(TEST_GPU)
#define ONLY_BACKEND "cuda"
enum { THREADS_MAX = 1 };
#elif defined(BY_REFERENCE) /* test_cpu_reference.c */
#define ONLY_BACKEND "cpu"
enum { THREADS_MAX = 2 };
#else
#define ONLY_BACKEND ""
enum { THREADS_MAX = 2 };
#endif
#ifdef ON_SHIM
enum { ROUND_STEP = 3 }; /* of floats a full batch, of bytes a short one */
#else
enum { ROUND_STEP = 1 };
#endif

typedef int (*layer_builder)(graph *g, int x);

typedef struct op_case {
    const char *name;
    layer_builder build;
    shape input;
    backend_loss loss;
    int probe; /* channels after the first convolution; 0: the layer sees the input itself */
    const char *refused; /* what the CUDA backend says, which lacks the op; NULL: it has it */
} op_case;

#define CONV(label, ...)                                                                           \
    static int conv_##label(graph *g, int x)                                                       \
    {                                                                                              \
        return graph_conv2d(g, x, (conv2d_options){__VA_ARGS__});                                  \
    }
CONV(plain, .filters = 3, .kernel = 3)
CONV(padded, .filters = 5, .kernel = 3, .padding = 1)
CONV(five, .filters = 7, .kernel = 5, .padding = 2)
CONV(strided, .filters = 4, .kernel = 3, .stride = 2, .padding = 1)
CONV(strided3, .filters = 4, .kernel = 2, .stride = 3)
CONV(one, .filters = 9, .kernel = 1)
CONV(one_strided, .filters = 9, .kernel = 1, .stride = 2, .no_bias = true)
CONV(dilated, .filters = 3, .kernel = 3, .dilation = 2, .padding = 2)
CONV(grouped, .filters = 6, .kernel = 3, .groups = 2, .padding = 1)
CONV(depthwise, .filters = 4, .kernel = 3, .groups = 4, .padding = 1)
CONV(depthwise5, .filters = 4, .kernel = 5, .groups = 4, .padding = 2, .stride = 2)
CONV(multiplier, .filters = 8, .kernel = 3, .groups = 4)
CONV(oblong, .filters = 3, .kernel_h = 1, .kernel_w = 3, .padding_h = 0, .padding_w = 1,
     .stride_h = 2, .stride_w = 1)
CONV(wide, .filters = 20, .kernel = 3, .padding = 1)
CONV(many, .filters = 33, .kernel = 3, .padding = 1)
CONV(big_padding, .filters = 2, .kernel = 3, .padding = 4)
CONV(whole, .filters = 6, .kernel_h = 6, .kernel_w = 7)

#define ACT(label, kind, slope)                                                                    \
    static int act_##label(graph *g, int x)                                                        \
    {                                                                                              \
        return graph_activation(g, x, kind, slope);                                                \
    }
ACT(relu, ACT_RELU, 0)
ACT(relu6, ACT_RELU6, 0)
ACT(leaky_relu, ACT_LEAKY_RELU, 0.1)
ACT(hardsigmoid, ACT_HARDSIGMOID, 0)
ACT(hardswish, ACT_HARDSWISH, 0)
ACT(sigmoid, ACT_SIGMOID, 0)
ACT(tanh, ACT_TANH, 0)
ACT(gelu, ACT_GELU, 0)
ACT(silu, ACT_SILU, 0)

#define POOL(label, kind, ...)                                                                     \
    static int pool_##label(graph *g, int x)                                                       \
    {                                                                                              \
        return graph_##kind##_pool2d(g, x, (pool_options){__VA_ARGS__});                           \
    }
POOL(max2, max, .kernel = 2)
POOL(max3s2, max, .kernel = 3, .stride = 2, .padding = 1)
POOL(max_ceil, max, .kernel = 3, .stride = 2, .ceil_mode = true)
POOL(max2_ceil, max, .kernel = 2, .ceil_mode = true)
POOL(max_over, max, .kernel = 3, .stride = 1)
POOL(avg2, avg, .kernel = 2)
POOL(avg3s2, avg, .kernel = 3, .stride = 2, .padding = 1)
POOL(avg_inside, avg, .kernel = 3, .stride = 2, .padding = 1, .exclude_pad = true)
POOL(avg_ceil, avg, .kernel = 3, .stride = 2, .ceil_mode = true, .padding = 1)
POOL(avg4_ceil, avg, .kernel = 4, .stride = 3, .ceil_mode = true, .padding = 1)
POOL(subsample, avg, .kernel = 1, .stride = 2)

static int adaptive_1(graph *g, int x)
{
    return graph_adaptive_avg_pool2d(g, x, 1, 1);
}
static int adaptive_35(graph *g, int x)
{
    return graph_adaptive_avg_pool2d(g, x, 3, 5);
}
static int identity(graph *g, int x)
{
    (void)g;
    return x;
}
static int norm(graph *g, int x)
{
    return graph_batch_norm(g, x, (batch_norm_options){0});
}
static int norm_relu(graph *g, int x)
{
    return graph_relu(g,
                      graph_batch_norm(g, x, (batch_norm_options){.eps = 1e-3, .momentum = 0.01}));
}
static int norm_plus_input(graph *g, int x)
{
    return graph_add(g, norm(g, x), x);
}
static int norm_plus_input_relu(graph *g, int x)
{
    return graph_relu(g, graph_add(g, x, norm(g, x)));
}
static int conv_norm_relu_pool(graph *g, int x)
{
    return pool_max2(g, norm_relu(g, conv_five(g, x)));
}
static int conv_relu_pool(graph *g, int x)
{
    return pool_max2(g, graph_relu(g, conv_five(g, x)));
}
static int conv_relu_pool_ceil(graph *g, int x)
{
    return pool_max2_ceil(g, graph_relu(g, conv_five(g, x)));
}
static int residual(graph *g, int x)
{
    int y = graph_relu(g, norm(g, conv_padded(g, x)));
    int z = norm(g, conv_padded(g, y));
    return graph_relu(g, graph_add(g, z, y));
}
static int add_self(graph *g, int x)
{
    return graph_add(g, x, x);
}
static int mul_self(graph *g, int x)
{
    return graph_mul(g, x, x);
}
static int add_broadcast(graph *g, int x)
{
    return graph_add(g, adaptive_1(g, x), x);
}
/* The norm's result is smaller than the sum. */
static int norm_pooled_plus_input(graph *g, int x)
{
    return graph_relu(g, graph_add(g, x, norm(g, adaptive_1(g, x))));
}
static int squeeze_excite(graph *g, int x)
{
    int s = adaptive_1(g, x);
    s = graph_relu(g, graph_conv2d(g, s, (conv2d_options){.filters = 2, .kernel = 1}));
    s = graph_conv2d(g, s, (conv2d_options){.filters = graph_shape(g, x).c, .kernel = 1});
    return graph_mul(g, x, graph_activation(g, s, ACT_HARDSIGMOID, 0));
}
static int concat(graph *g, int x)
{
    int parts[3] = {conv_padded(g, x), x, act_tanh(g, x)};
    return graph_concat(g, parts, 3);
}
static int concat_same(graph *g, int x)
{
    int parts[2] = {x, x};
    return graph_concat(g, parts, 2);
}
static int dropout(graph *g, int x)
{
    return graph_dropout(g, graph_dropout(g, x, 0.5), 0.1);
}
static int group_norm(graph *g, int x)
{
    return graph_group_norm(g, x, 3, (group_norm_options){.eps = 1e-3});
}
static int instance_norm(graph *g, int x)
{
    x = graph_relu(g, graph_group_norm(g, x, graph_shape(g, x).c, (group_norm_options){0}));
    return graph_add(g, x, conv_padded(g, x));
}
static int layer_norm(graph *g, int x)
{
    x = graph_linear(g, graph_flatten(g, x), 11, (linear_options){0});
    return graph_relu(g, graph_group_norm(g, x, 1, (group_norm_options){.name = "layer"}));
}
static int max_1(graph *g, int x)
{
    return graph_adaptive_max_pool2d(g, x, 1, 1);
}
static int max_35(graph *g, int x)
{
    return graph_mul(g, graph_adaptive_max_pool2d(g, x, 3, 5), adaptive_35(g, x));
}
static int pad_channels(graph *g, int x)
{
    return graph_pad_channels(g, x, 1, 2);
}
static int linear_chain(graph *g, int x)
{
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 11, (linear_options){0}));
    return graph_linear(g, x, 17, (linear_options){.no_bias = true});
}
static int flat_ops(graph *g, int x)
{
    x = graph_linear(g, graph_flatten(g, x), 9, (linear_options){0});
    int parts[2] = {graph_activation(g, x, ACT_SIGMOID, 0), graph_dropout(g, x, 0.3)};
    return graph_concat(g, parts, 2);
}
static int lenet(graph *g, int x)
{
    x = conv_relu_pool(g, x);
    return linear_chain(g, x);
}

#define IMAGE                                                                                      \
    {                                                                                              \
        3, 3, 8, 9                                                                                 \
    }
static const op_case cases[] = {
    {"identity", identity, IMAGE, LOSS_CROSS_ENTROPY, 2, NULL},
    {"mse", identity, IMAGE, LOSS_MSE, 2, NULL},
    {"conv plain", conv_plain, IMAGE, 0, 3, NULL},
    {"conv on the input", conv_plain, IMAGE, 0, 0, NULL},
    {"conv padded", conv_padded, IMAGE, 0, 3, NULL},
    {"conv five", conv_five, IMAGE, 0, 1, NULL},
    {"conv strided", conv_strided, IMAGE, 0, 3, NULL},
    {"conv stride above kernel", conv_strided3, IMAGE, 0, 3, NULL},
    {"conv 1x1", conv_one, IMAGE, 0, 17, NULL},
    {"conv 1x1 strided", conv_one_strided, IMAGE, 0, 4, NULL},
    {"conv dilated", conv_dilated, IMAGE, 0, 2, NULL},
    {"conv grouped", conv_grouped, IMAGE, 0, 4, NULL},
    {"conv depthwise", conv_depthwise, IMAGE, 0, 4, NULL},
    {"conv depthwise 5x5", conv_depthwise5, IMAGE, 0, 4, NULL},
    {"conv depth multiplier", conv_multiplier, IMAGE, 0, 4, NULL},
    {"conv oblong", conv_oblong, IMAGE, 0, 3, NULL},
    {"conv 20 filters", conv_wide, {3, 3, 13, 6}, 0, 8, NULL},
    {"conv 33 filters", conv_many, {3, 1, 5, 18}, 0, 17, NULL},
    {"conv padding above kernel", conv_big_padding, {3, 2, 3, 3}, 0, 2, NULL},
    {"conv whole image", conv_whole, {3, 2, 6, 7}, 0, 3, NULL},
    {"conv on 1x1", conv_padded, {3, 2, 1, 1}, 0, 3, NULL},
    {"relu", act_relu, IMAGE, 0, 3, NULL},
    {"relu6", act_relu6, IMAGE, 0, 3, NULL},
    {"leaky_relu", act_leaky_relu, IMAGE, 0, 3, NULL},
    {"hardsigmoid", act_hardsigmoid, IMAGE, 0, 3, NULL},
    {"hardswish", act_hardswish, IMAGE, 0, 3, NULL},
    {"sigmoid", act_sigmoid, IMAGE, 0, 3, NULL},
    {"tanh", act_tanh, IMAGE, 0, 3, NULL},
    {"gelu", act_gelu, IMAGE, 0, 3, NULL},
    {"silu", act_silu, IMAGE, 0, 3, NULL},
    {"max pool 2", pool_max2, IMAGE, 0, 3, NULL},
    {"max pool 3 stride 2", pool_max3s2, IMAGE, 0, 3, NULL},
    {"max pool ceil", pool_max_ceil, IMAGE, 0, 3, NULL},
    {"max pool ceil above its image", pool_max_ceil, {3, 3, 2, 2}, 0, 3, NULL},
    {"max pool ceil above one pixel", pool_max2_ceil, {3, 3, 1, 1}, 0, 3, NULL},
    {"max pool overlapping", pool_max_over, IMAGE, 0, 3, NULL},
    {"avg pool 2", pool_avg2, IMAGE, 0, 3, NULL},
    {"avg pool 3 stride 2", pool_avg3s2, IMAGE, 0, 3, NULL},
    {"avg pool without padding's cells", pool_avg_inside, IMAGE, 0, 3, NULL},
    {"avg pool ceil", pool_avg_ceil, IMAGE, 0, 3, NULL},
    {"avg pool ceil above its image", pool_avg4_ceil, {3, 3, 1, 2}, 0, 3, NULL},
    {"subsample", pool_subsample, IMAGE, 0, 3, NULL},
    {"global pool", adaptive_1, IMAGE, 0, 3, NULL},
    {"adaptive pool", adaptive_35, IMAGE, 0, 3, NULL},
    {"batch norm", norm, IMAGE, 0, 3, NULL},
    {"batch norm and relu", norm_relu, IMAGE, 0, 5, NULL},
    {"batch norm plus its input", norm_plus_input, IMAGE, 0, 3, NULL},
    {"batch norm plus its input, relu", norm_plus_input_relu, IMAGE, 0, 5, NULL},
    {"conv norm relu pool", conv_norm_relu_pool, IMAGE, 0, 3, NULL},
    {"conv relu pool", conv_relu_pool, IMAGE, 0, 3, NULL},
    {"conv relu pool ceil above one pixel", conv_relu_pool_ceil, {3, 3, 1, 1}, 0, 3, NULL},
    {"the same on the input", conv_relu_pool_ceil, {3, 3, 1, 1}, 0, 0, NULL},
    {"residual block", residual, IMAGE, 0, 5, NULL},
    {"add itself", add_self, IMAGE, 0, 3, NULL},
    {"multiply itself", mul_self, IMAGE, 0, 3, NULL},
    {"add broadcast", add_broadcast, IMAGE, 0, 3, NULL},
    {"batch norm of a pooled branch plus its input", norm_pooled_plus_input, IMAGE, 0, 3, NULL},
    {"squeeze and excite", squeeze_excite, IMAGE, 0, 6, NULL},
    {"concat", concat, IMAGE, 0, 3, NULL},
    {"concat of one tensor", concat_same, IMAGE, 0, 3, NULL},
    {"dropout", dropout, IMAGE, 0, 3, NULL},
    {"pad channels", pad_channels, IMAGE, 0, 3, NULL},
    {"linear", linear_chain, IMAGE, 0, 3, NULL},
    {"flat operations", flat_ops, IMAGE, 0, 3, NULL},
    {"small lenet", lenet, {3, 1, 12, 12}, 0, 0, NULL},
    {"group norm", group_norm, IMAGE, 0, 6, "gn1: the GPU has no kernels for group_norm"},
    {"group norm of the input", group_norm, IMAGE, 0, 0, "gn1: the GPU has no kernels"},
    {"instance norm", instance_norm, IMAGE, 0, 5, "gn1: the GPU has no kernels"},
    {"layer norm", layer_norm, IMAGE, 0, 3, "layer: the GPU has no kernels for group_norm"},
    {"global max pool", max_1, IMAGE, 0, 3, "adaptive_max_pool2d1: the GPU has no kernels"},
    {"adaptive max pool", max_35, IMAGE, 0, 9, "adaptive_max_pool2d1: the GPU has no kernels"},
};
enum { CASES = sizeof cases / sizeof *cases };

static int build(graph *g, int x, int outputs, void *user)
{
    const op_case *c = user;
    if (c->probe)
        x = graph_conv2d(g, x, (conv2d_options){.name = "probe", .filters = c->probe, .kernel = 1});
    x = graph_flatten(g, c->build(g, x));
    return graph_linear(g, x, outputs, (linear_options){.name = "last"});
}

/* A batch that is the same for every backend. */
typedef struct work {
    float x[INPUT_MAX];
    unsigned char bytes[INPUT_MAX];
    int32_t labels[BATCH];
    float targets[BATCH * OUTPUTS];
    uint64_t samples[BATCH];
    engine_batch b;
} work;

static work *draw_work(const op_case *c, int n, uint64_t seed)
{
    work *w = calloc(1, sizeof *w);
    CHECK(w && (size_t)BATCH * shape_count(c->input) <= INPUT_MAX);
    rng r;
    rng_init(&r, seed, RNG_TEST, 0, 0);
    for (size_t i = 0; i < (size_t)BATCH * shape_count(c->input); i++) {
        w->x[i] = 4 * rng_uniform(&r) - 2;
        w->bytes[i] = (unsigned char)rng_below(&r, 256);
    }
    for (int i = 0; i < BATCH; i++) {
        w->labels[i] = (int32_t)rng_below(&r, OUTPUTS);
        w->samples[i] = rng_u64(&r);
        for (int o = 0; o < OUTPUTS; o++)
            w->targets[i * OUTPUTS + o] = rng_uniform(&r);
    }
    w->b = (engine_batch){.n = n, .x = w->x, .sample = w->samples, .epoch = 3};
    if (c->loss == LOSS_MSE)
        w->b.targets = w->targets;
    else
        w->b.labels = w->labels;
    return w;
}

static int try_compile(const op_case *c, const char *on, int threads, engine **m, err *e)
{
    union {
        const op_case *in;
        void *out;
    } user = {.in = c};
    engine_config config = {.build = build,
                            .user = user.out,
                            .input = c->input,
                            .outputs = OUTPUTS,
                            .batch = BATCH,
                            .backend = on,
                            .threads = threads,
                            .loss = c->loss,
                            .seed = 11,
                            .optim = {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 0.01}};
    return engine_compile(&config, m, e);
}

static engine *compile(const op_case *c, const char *on, int threads)
{
    err e = ERR_INIT;
    engine *m = NULL;
    if (try_compile(c, on, threads, &m, &e))
        test_fail(__FILE__, __LINE__, "%s on %s: %s", c->name, on, e.message);
    return m;
}

#if !defined(ON_SHIM) && !defined(TEST_GPU) && !defined(BY_REFERENCE)
/* ---- gradients against finite differences, in the reference -------------------------------- */

static double loss_at(engine *m, const engine_batch *b)
{
    err e = ERR_INIT;
    engine_result r;
    CHECK_OK(engine_gradients(m, b, &r, &e), e);
    return r.loss_sum / r.n;
}

/* The loss is good to 1e-15, so that h can be far below the distance to most kinks. */
static double difference(engine *m, const engine_batch *b, float *w, float h)
{
    const float kept = *w;
    volatile float above = kept + h, below = kept - h;
    *w = above;
    double up = loss_at(m, b);
    *w = below;
    double down = loss_at(m, b);
    *w = kept;
    return (up - down) / ((double)above - (double)below);
}

static void check_differences(const op_case *c)
{
    err e = ERR_INIT;
    engine *m = compile(c, "reference", 1);
    work *w = draw_work(c, BATCH, 5);
    size_t count, vars;
    const engine_var *layout = engine_layout(m, &vars);
    loss_at(m, &w->b);
    float *params = engine_floats(m, &e), *grads = engine_grads(m, &count, &e);
    float *kept = calloc(count, sizeof *kept);
    CHECK(kept);
    memcpy(kept, grads, count * sizeof *kept);
    for (size_t v = 0; v < vars; v++) {
        if (layout[v].kind != VAR_PARAM)
            continue;
        size_t stride = layout[v].count / 40 + 1; /* about 40 of each parameter */
        for (size_t i = 0; i < layout[v].count; i += stride) {
            size_t at = layout[v].offset + i;
            double want = 0, got = (double)kept[at];
            bool near = false;
            /* Where a ReLU or a maximum switches between w - h and w + h, a smaller h decides. */
            for (int power = -15; !near && power >= -20; power--) {
                want = difference(m, &w->b, &params[at], ldexpf(1, power));
                near = fabs(got - want) <= 2e-6 * fmax(1, fabs(want));
            }
            if (!near)
                test_fail(__FILE__, __LINE__, "%s: d loss/d %s[%zu] is %.9g, by differences %.9g",
                          c->name, layout[v].name, i, got, want);
        }
    }
    free(kept);
    free(w);
    engine_free(m);
}

TEST_LIMIT(gradients_are_finite_differences, 120)
{
    for (int i = 0; i < CASES; i++)
        check_differences(&cases[i]);
}
#endif

/* ---- other backends against the reference -------------------------------------------------- */

typedef struct distance {
    double apart, scale; /* norms of got - want, and of want */
} distance;

static distance distance_of(const float *got, const float *want, size_t count)
{
    double apart = 0, scale = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)want[i];
        apart += d * d;
        scale += (double)want[i] * (double)want[i];
    }
    return (distance){sqrt(apart), sqrt(scale)};
}

/* Relative to the norm of the whole: what fp32 in another order may differ by. */
static void check_close(const op_case *c, const char *on, const char *what, const char *name,
                        distance d, double scale, double tolerance)
{
    if (!(d.apart <= tolerance * scale))
        test_fail(__FILE__, __LINE__, "%s on %s, %s %s: %.2g apart, %.2g allowed (norm %.2g)",
                  c->name, on, what, name, d.apart, tolerance * scale, d.scale);
}

/* The norm of all that the layer of `v` has of this kind: weight and bias together. A gradient that
 * is zero but for rounding (of a bias before batch norm) is held to what its layer's is. */
static double layer_norm_of(const engine_var *layout, size_t vars, const engine_var *v,
                            const float *values)
{
    size_t prefix = (size_t)(strrchr(v->name, '.') - v->name);
    double sum = 0;
    for (size_t i = 0; i < vars; i++) {
        if (layout[i].kind != v->kind || strncmp(layout[i].name, v->name, prefix + 1) != 0 ||
            strchr(layout[i].name + prefix + 1, '.'))
            continue;
        double norm = distance_of(values + layout[i].offset, values + layout[i].offset,
                                  layout[i].count).scale;
        sum += norm * norm;
    }
    return sqrt(sum);
}

static void compare_vars(const op_case *c, engine *m, engine *truth, bool gradients)
{
    err e = ERR_INIT;
    size_t vars, count;
    const engine_var *layout = engine_layout(truth, &vars);
    const float *got = gradients ? engine_grads(m, &count, &e) : engine_floats(m, &e);
    const float *want = gradients ? engine_grads(truth, &count, &e) : engine_floats(truth, &e);
    for (size_t i = 0; i < vars; i++) {
        const engine_var *v = &layout[i];
        if (v->kind == VAR_COUNTER) {
            CHECK_INT(engine_counters(m, &e)[v->offset], engine_counters(truth, &e)[v->offset]);
            continue;
        }
        if (gradients && v->kind != VAR_PARAM)
            continue;
        check_close(c, engine_backend(m), gradients ? "gradient of" : "after training,", v->name,
                    distance_of(got + v->offset, want + v->offset, v->count),
                    layer_norm_of(layout, vars, v, want), 2e-5);
    }
}

static void compare_infer(const op_case *c, engine *m, engine *truth, const engine_batch *b)
{
    err e = ERR_INIT;
    float got[BATCH * OUTPUTS], want[BATCH * OUTPUTS];
    CHECK_OK(engine_infer(m, b, got, &e), e);
    CHECK_OK(engine_infer(truth, b, want, &e), e);
    distance d = distance_of(got, want, (size_t)b->n * OUTPUTS);
    check_close(c, engine_backend(m), "logits", "", d, d.scale, 1e-5);
    engine_result r, s;
    CHECK_OK(engine_eval(m, b, &r, &e), e);
    CHECK_OK(engine_eval(truth, b, &s, &e), e);
    CHECK_NEAR(r.loss, s.loss, 1e-5 * fmax(1, s.loss));
    CHECK_INT(r.correct, s.correct);
}

/* A backend that lacks the op says so before anything runs, and names the layer. */
static void check_refused(const op_case *c, const char *on)
{
    err e = ERR_INIT;
    engine *m = NULL;
    CHECK_ERR(try_compile(c, on, 1, &m, &e), e, ERR_UNSUPPORTED, c->refused);
    CHECK(!m);
}

/* Gradients of a full and of a short batch, in floats and in bytes; inference; 3 steps of training.
 */
static void compare_case(const op_case *c, const char *on, int threads)
{
    if (c->refused && strcmp(on, "cuda") == 0) {
        check_refused(c, on);
        return;
    }
    static const float scale[3] = {0.03f, 0.02f, 0.01f}, shift[3] = {-2, -1.5f, -1};
    err e = ERR_INIT;
    engine *m = compile(c, on, threads), *truth = compile(c, "reference", 1);
    engine_result r, s;
    for (int round = 0; round < 4; round += ROUND_STEP) {
        work *w = draw_work(c, round % 2 ? BATCH - 2 : BATCH, 5 + (uint64_t)round);
        if (round >= 2) {
            w->b.type = INPUT_UINT8;
            w->b.x = w->bytes;
            w->b.scale = scale;
            w->b.shift = shift;
        }
        CHECK_OK(engine_gradients(m, &w->b, &r, &e), e);
        CHECK_OK(engine_gradients(truth, &w->b, &s, &e), e);
        CHECK_NEAR(r.loss, s.loss, 1e-5 * fmax(1, s.loss));
        CHECK_INT(r.correct, s.correct);
        compare_vars(c, m, truth, true);
        compare_infer(c, m, truth, &w->b);
        free(w);
    }
    for (int step = 0; step < 3; step++) {
        work *w = draw_work(c, step == 1 ? 1 : BATCH, 50 + (uint64_t)step);
        CHECK_OK(engine_train(m, &w->b, 0.01, &r, &e), e);
        CHECK_OK(engine_train(truth, &w->b, 0.01, &s, &e), e);
        CHECK_NEAR(r.loss, s.loss, 2e-5 * fmax(1, s.loss));
        if (step == 2)
            compare_infer(c, m, truth, &w->b);
        free(w);
    }
    compare_vars(c, m, truth, false);
    engine_free(m);
    engine_free(truth);
}

#ifdef TEST_GPU
/* A case for each layer: one that fails, or hangs, hides no other. */
static char case_names[CASES][64];

static void layer_agrees(void)
{
    for (int i = 0; i < CASES; i++)
        if (strcmp(case_names[i], test_name()) == 0)
            compare_case(&cases[i], ONLY_BACKEND, 1);
}

__attribute__((constructor)) static void register_layers(void)
{
    static test_case registered[CASES];
    for (int i = 0; i < CASES; i++) {
        snprintf(case_names[i], sizeof case_names[i], "layer_%s", cases[i].name);
        for (char *c = case_names[i]; *c; c++)
            *c = strchr(" '", *c) ? '_' : *c;
        registered[i] = (test_case){case_names[i], layer_agrees, 20, NULL};
        test_register(&registered[i]);
    }
}
#else
/* The reference too: it must not depend on what ran before. */
TEST_LIMIT(every_backend_agrees_with_the_reference, 120)
{
    int compared = 0;
    for (int b = 0; backend_at(b); b++) {
        const backend *on = backend_at(b);
        if (ONLY_BACKEND[0] && strcmp(on->name, ONLY_BACKEND) != 0)
            continue;
        err why = ERR_INIT;
        if (on->missing(&why) != 0) {
            printf("%s cannot run here: %s\n", on->name, why.message);
            continue;
        }
        for (int i = 0; i < CASES; i++)
            for (int threads = 1; threads <= THREADS_MAX; threads++)
                compare_case(&cases[i], on->name, threads);
        printf("%s: %d cases\n", on->name, CASES);
        compared++;
    }
    CHECK(compared);
}

/* Gives logits that do not depend on the sample. */
static void set_logits(engine *m, const float logits[OUTPUTS])
{
    err e = ERR_INIT;
    size_t vars;
    float *floats = engine_floats(m, &e);
    const engine_var *layout = engine_layout(m, &vars);
    memset(floats, 0, engine_weights_floats(m) * sizeof *floats);
    for (size_t i = 0; i < vars; i++)
        if (strcmp(layout[i].name, "last.bias") == 0)
            memcpy(floats + layout[i].offset, logits, OUTPUTS * sizeof *logits);
    CHECK_OK(engine_state_changed(m, &e), e);
}

/* Its loss is far below the spacing of floats at its largest logit: 5e-7, where that is 2e-6. */
TEST(a_sure_samples_loss_is_not_rounded_to_its_logits_spacing)
{
    static const op_case c = {"sure", identity, {3, 1, 2, 2}, 0, 0, NULL};
    static const float logits[OUTPUTS] = {20, 5.5f, -20, -20};
    err e = ERR_INIT;
    engine_result r;
    work *w = draw_work(&c, BATCH, 5);
    memset(w->labels, 0, sizeof w->labels);
    for (int b = 0; backend_at(b); b++) {
        const backend *on = backend_at(b);
        if ((ONLY_BACKEND[0] && strcmp(on->name, ONLY_BACKEND) != 0) || on->missing(NULL) != 0)
            continue;
        engine *m = compile(&c, on->name, 1);
        set_logits(m, logits);
        CHECK_OK(engine_gradients(m, &w->b, &r, &e), e);
        CHECK_NEAR(r.loss, 5.04e-7,
                   6e-8); /* half a spacing of the sum of exponentials, which is 1 */
        engine_free(m);
    }
    free(w);
}
#endif

/* ---- random models: what a backend fuses, it must fuse rightly wherever it stands ---------- */

static uint64_t random_seed;

static int random_conv(graph *g, int x, rng *r, bool same_size)
{
    int c = graph_shape(g, x).c, kernel = 1 + 2 * (int)rng_below(r, 3);
    conv2d_options o = {.filters = 1 + (int)rng_below(r, 20), .kernel = kernel};
    if (rng_below(r, 2))
        /* no padding lanes: such tensors share memory */
        o.filters = 8 * (1 + (int)rng_below(r, 5));
    o.padding = kernel / 2;
    o.no_bias = rng_below(r, 2);
    if (same_size)
        o.filters = c;
    else if (rng_below(r, 3) == 0)
        o.stride = 2;
    if (rng_below(r, 4) == 0) {
        o.groups = c;
        o.filters = c;
    } else if (rng_below(r, 4) == 0 && kernel > 1) {
        o.dilation = 2;
        o.padding = kernel - 1;
    }
    return graph_conv2d(g, x, o);
}

static int random_act(graph *g, int x, rng *r)
{
    /* Half of them ReLU, as in life. */
    graph_act kind = rng_below(r, 2) ? ACT_RELU : (graph_act)rng_below(r, ACT_COUNT);
    return graph_activation(g, x, kind, 0.1);
}

static int random_pool(graph *g, int x, rng *r)
{
    shape s = graph_shape(g, x);
    if (s.h < 3 || s.w < 3)
        return x;
    pool_options o = {.kernel = 2 + (int)rng_below(r, 2), .stride = 1 + (int)rng_below(r, 2)};
    o.ceil_mode = rng_below(r, 2);
    o.padding = (int)rng_below(r, 2);
    o.exclude_pad = rng_below(r, 2);
    return rng_below(r, 2) ? graph_max_pool2d(g, x, o) : graph_avg_pool2d(g, x, o);
}

static int random_same(graph *g, int x, rng *r)
{
    int y = rng_below(r, 2) ? random_conv(g, x, r, true) : x;
    y = rng_below(r, 2) ? norm(g, y) : y;
    return rng_below(r, 2) ? random_act(g, y, r) : y;
}

static int random_join(graph *g, int x, rng *r)
{
    uint64_t kind = rng_below(r, 4);
    if (kind == 3)
        return squeeze_excite(g, x);
    int parts[3] = {random_same(g, x, r), x, x};
    switch (kind) {
    case 0:
        return graph_add(g, parts[0], x);
    case 1:
        return graph_mul(g, parts[0], x);
    default:
        parts[2] = random_same(g, x, r);
        return graph_concat(g, parts, 3);
    }
}

static int random_layers(graph *g, int x)
{
    rng r;
    rng_init(&r, random_seed, RNG_TEST, 1, 0);
    int count = 2 + (int)rng_below(&r, 8);
    for (int i = 0; i < count; i++) {
        uint64_t kind = rng_below(&r, 10);
        if (kind < 3)
            x = random_conv(g, x, &r, false);
        else if (kind < 5)
            x = random_act(g, x, &r);
        else if (kind < 6)
            x = norm(g, x);
        else if (kind < 7)
            x = random_pool(g, x, &r);
        else if (kind < 9)
            x = random_join(g, x, &r);
        else
            x = graph_dropout(g, x, 0.2);
    }
    return x;
}

/* Some shapes leave no room for a kernel: such a model is refused, and passed over. */
static bool is_whole(const op_case *c)
{
    err e = ERR_INIT;
    graph *g = graph_new(c->input);
    union {
        const op_case *in;
        void *out;
    } user = {.in = c};
    bool whole = graph_finish(g, build(g, 0, OUTPUTS, user.out), OUTPUTS, &e) == 0;
    graph_free(g);
    return whole;
}

/* fp32 may put a value on the other side of a kink; two in a hundred models may differ by that. */
static bool gradients_close(const op_case *c, engine *m, engine *truth, const engine_batch *b)
{
    err e = ERR_INIT;
    engine_result r, s;
    size_t count;
    CHECK_OK(engine_gradients(m, b, &r, &e), e);
    CHECK_OK(engine_gradients(truth, b, &s, &e), e);
    if (!(fabs(r.loss - s.loss) <= 1e-4 * fmax(1, fabs(s.loss))))
        test_fail(__FILE__, __LINE__, "model %llu on %s: loss %.9g, not %.9g",
                  (unsigned long long)random_seed, engine_backend(m), r.loss, s.loss);
    const float *got = engine_grads(m, &count, &e), *want = engine_grads(truth, &count, &e);
    double apart = 0, scale = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)want[i];
        apart += d * d;
        scale += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(apart) <= 0.1 * sqrt(scale) + 1e-3))
        test_fail(__FILE__, __LINE__, "%s %llu on %s: gradients %.2g from the reference, relative",
                  c->name, (unsigned long long)random_seed, engine_backend(m), sqrt(apart / scale));
    return sqrt(apart) <= 1e-4 * sqrt(scale) + 1e-6;
}

TEST_LIMIT(random_models_agree_with_the_reference, 120)
{
    err e = ERR_INIT;
    const backend *fast = backend_find(ONLY_BACKEND[0] ? ONLY_BACKEND : NULL, &e);
    CHECK(fast);
    int compared = 0, apart = 0;
    for (random_seed = 1; compared < RANDOM_MODELS; random_seed++) {
        rng r;
        rng_init(&r, random_seed, RNG_TEST, 2, 0);
        op_case c = {
            "random model", random_layers, {3, 1 + (int)rng_below(&r, 4), 0, 0}, 0, 0, NULL};
        c.input.h = 4 + (int)rng_below(&r, 12);
        c.input.w = 4 + (int)rng_below(&r, 12);
        if (!is_whole(&c))
            continue;
        engine *m = compile(&c, fast->name, 1 + (int)(random_seed % 2));
        engine *truth = compile(&c, "reference", 1);
        for (int n = BATCH; n > 0; n -= 3) {
            work *w = draw_work(&c, n, random_seed);
            apart += !gradients_close(&c, m, truth, &w->b);
            compare_infer(&c, m, truth, &w->b);
            free(w);
        }
        engine_free(m);
        engine_free(truth);
        compared++;
    }
    printf("%d random models on %s, %d gradients apart by a kink\n", compared, fast->name, apart);
    CHECK(apart <= 2 * compared * 2 / 100);
}
