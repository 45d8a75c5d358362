/* test_graph.c: building graphs: shapes, names, parameters' beginnings, and what each mistake says.
 */
#include "common/base/rng.h"
#include "kernels/graph.h"
#include "kernels/ops.h"
#include "kernels/plan.h"
#include "kernels/zoo/zoo_models.h"
#include "test.h"

static const shape small = {3, 3, 8, 9};

static void check_shape(shape s, int rank, int c, int h, int w)
{
    CHECK_INT(s.rank, rank);
    CHECK_INT(s.c, c);
    CHECK_INT(s.h, h);
    CHECK_INT(s.w, w);
}

TEST(result_shapes_are_pytorchs)
{
    graph *g = graph_new((shape){3, 3, 32, 30});
    int x = graph_conv2d(
        g, 0,
        (conv2d_options){.filters = 8, .kernel = 7, .stride = 2, .padding = 3, .dilation = 1});
    check_shape(graph_shape(g, x), 3, 8, 16, 15);
    check_shape(graph_shape(g, graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2})), 3,
                8, 7, 7);
    int y = graph_max_pool2d(g, x, (pool_options){.kernel = 3, .stride = 2, .ceil_mode = true});
    check_shape(graph_shape(g, y), 3, 8, 8, 7);
    y = graph_avg_pool2d(g, x,
                         (pool_options){.kernel = 2, .stride = 2, .padding = 1, .ceil_mode = true});
    check_shape(graph_shape(g, y), 3, 8, 9,
                8); /* torch: no ninth column that begins in the padding */
    y = graph_conv2d(g, x, (conv2d_options){.filters = 4, .kernel = 3, .dilation = 3});
    check_shape(graph_shape(g, y), 3, 4, 10, 9);
    y = graph_adaptive_avg_pool2d(g, x, 2, 2);
    y = graph_max_pool2d(g, y, (pool_options){.kernel = 3, .stride = 2, .ceil_mode = true});
    check_shape(graph_shape(g, y), 3, 8, 1, 1);
    check_shape(graph_shape(g, graph_flatten(g, x)), 1, 8 * 16 * 15, 1, 1);
    int parts[2] = {x, x};
    check_shape(graph_shape(g, graph_concat(g, parts, 2)), 3, 16, 16, 15);
    check_shape(graph_shape(g, graph_pad_channels(g, x, 1, 2)), 3, 11, 16, 15);
    check_shape(graph_shape(g, graph_adaptive_max_pool2d(g, x, 5, 7)), 3, 8, 5, 7);
    check_shape(graph_shape(g, graph_group_norm(g, x, 4, (group_norm_options){0})), 3, 8, 16, 15);
    CHECK_INT(g->error.code, ERR_NONE);
    graph_free(g);
}

TEST(variables_are_named_and_placed)
{
    graph *g = graph_new(small);
    err e = ERR_INIT;
    int x = graph_conv2d(g, 0, (conv2d_options){.filters = 5, .kernel = 3});
    x = graph_batch_norm(g, x, (batch_norm_options){.name = "stem.norm"});
    x = graph_linear(g, graph_flatten(g, x), 7, (linear_options){.no_bias = true});
    CHECK_OK(graph_finish(g, x, 7, &e), e);
    static const char *const names[] = {"conv1.weight",
                                        "conv1.bias",
                                        "stem.norm.weight",
                                        "stem.norm.bias",
                                        "stem.norm.running_mean",
                                        "stem.norm.running_var",
                                        "stem.norm.num_batches_tracked",
                                        "fc1.weight"};
    CHECK_INT(g->var_count, 8);
    for (int i = 0; i < 8; i++) {
        CHECK_STR(g->vars[i].name, names[i]);
        CHECK_INT(graph_var_find(g, names[i]), i);
        CHECK(g->vars[i].kind == VAR_COUNTER || g->vars[i].offset % GRAPH_ALIGN_FLOATS == 0);
    }
    CHECK_INT(graph_var_find(g, "conv1"), -1);
    CHECK_INT(g->vars[0].dims[1], 3);
    CHECK_INT(g->vars[7].dims[1], 5 * 6 * 7);
    CHECK_INT(g->param_count, 5 * 27 + 5 + 10 + 7 * 210);
    CHECK_INT(g->floats[VAR_PARAM], 144 + 16 * 3 + 1472);
    CHECK_INT(g->floats[VAR_BUFFER], 32);
    CHECK_INT(g->floats[VAR_COUNTER], 1);
    graph_free(g);
}

/* ---- mistakes ------------------------------------------------------------------------------ */

typedef int (*mistake)(graph *g, int x);

static int big_kernel(graph *g, int x)
{
    x = graph_max_pool2d(g, graph_conv2d(g, x, (conv2d_options){.filters = 6, .kernel = 3}),
                         (pool_options){.kernel = 2});
    return graph_conv2d(g, x, (conv2d_options){.filters = 16, .kernel = 5});
}
static int dilated(graph *g, int x)
{
    return graph_conv2d(g, x,
                        (conv2d_options){.filters = 1, .kernel = 3, .dilation = 5, .padding = 1});
}
static int no_kernel(graph *g, int x)
{
    return graph_conv2d(g, x, (conv2d_options){.name = "stem", .filters = 6});
}
static int no_filters(graph *g, int x)
{
    return graph_conv2d(g, x, (conv2d_options){.kernel = 3});
}
static int bad_groups(graph *g, int x)
{
    return graph_conv2d(g, x, (conv2d_options){.filters = 6, .kernel = 1, .groups = 2});
}
static int huge_kernel(graph *g, int x)
{
    return graph_conv2d(g, x,
                        (conv2d_options){.filters = 1, .kernel = 1 << 30, .padding = 1 << 30});
}
static int huge_weights(graph *g, int x)
{
    x = graph_conv2d(g, x, (conv2d_options){.filters = 1 << 20, .kernel = 8});
    return graph_conv2d(g, x, (conv2d_options){.filters = 1 << 20, .kernel = 1});
}
static int unflattened(graph *g, int x)
{
    return graph_linear(g, x, 10, (linear_options){0});
}
static int flat_conv(graph *g, int x)
{
    return graph_conv2d(g, graph_flatten(g, x), (conv2d_options){.filters = 1, .kernel = 1});
}
static int flat_norm(graph *g, int x)
{
    return graph_batch_norm(g, graph_flatten(g, x), (batch_norm_options){0});
}
static int bad_features(graph *g, int x)
{
    return graph_linear(g, graph_flatten(g, x), -2, (linear_options){0});
}
static int bad_add(graph *g, int x)
{
    return graph_add(g, x, graph_conv2d(g, x, (conv2d_options){.filters = 3, .kernel = 3}));
}
static int bad_concat(graph *g, int x)
{
    int parts[2] = {x, graph_max_pool2d(g, x, (pool_options){.kernel = 2})};
    return graph_concat(g, parts, 2);
}
static int bad_pool(graph *g, int x)
{
    return graph_max_pool2d(g, graph_adaptive_avg_pool2d(g, x, 1, 1), (pool_options){.kernel = 2});
}
static int bad_pool_ceil(graph *g, int x)
{
    return graph_max_pool2d(g, graph_adaptive_avg_pool2d(g, x, 1, 1),
                            (pool_options){.kernel = 3, .stride = 2, .ceil_mode = true});
}
static int bad_pool_padding(graph *g, int x)
{
    return graph_avg_pool2d(g, x, (pool_options){.kernel = 2, .padding = 2});
}
static int bad_dropout(graph *g, int x)
{
    return graph_dropout(g, x, 1);
}
static int same_names(graph *g, int x)
{
    x = graph_conv2d(g, x, (conv2d_options){.name = "a", .filters = 3, .kernel = 1});
    x = graph_conv2d(g, x, (conv2d_options){.name = "a", .filters = 3, .kernel = 1});
    return graph_linear(g, graph_flatten(g, x), 10, (linear_options){0});
}
static int bad_name(graph *g, int x)
{
    return graph_conv2d(g, x, (conv2d_options){.name = "a/b", .filters = 3, .kernel = 1});
}
static int name_of_the_optimizer(graph *g, int x)
{
    return graph_linear(g, graph_flatten(g, x), 10, (linear_options){.name = "optimizer"});
}
static int name_below_the_optimizer(graph *g, int x)
{
    return graph_batch_norm(g, x, (batch_norm_options){.name = "optimizer.norm"});
}
static int unused(graph *g, int x)
{
    graph_conv2d(g, x, (conv2d_options){.name = "lost", .filters = 3, .kernel = 1});
    return graph_linear(g, graph_flatten(g, x), 10, (linear_options){0});
}
static int image_output(graph *g, int x)
{
    return graph_relu(g, x);
}
static int too_few_outputs(graph *g, int x)
{
    return graph_linear(g, graph_flatten(g, x), 4, (linear_options){.name = "head"});
}
static int nothing(graph *g, int x)
{
    (void)g;
    (void)x;
    return 12345;
}
static int stranger(graph *g, int x)
{
    (void)x;
    return graph_relu(g, 77);
}
static int bad_activation(graph *g, int x)
{
    return graph_activation(g, x, (graph_act)99, 0);
}
static int norm_of_features(graph *g, int x)
{
    return graph_batch_norm(g, graph_flatten(g, x), (batch_norm_options){0});
}
static int bad_group_norm(graph *g, int x)
{
    return graph_group_norm(g, x, 2, (group_norm_options){0});
}
static int group_norm_of_negative_eps(graph *g, int x)
{
    return graph_group_norm(g, graph_flatten(g, x), 3,
                            (group_norm_options){.name = "groups", .eps = -1});
}
static int bad_adaptive(graph *g, int x)
{
    return graph_adaptive_max_pool2d(g, x, 1, 0);
}
static int flat_adaptive(graph *g, int x)
{
    return graph_adaptive_max_pool2d(g, graph_flatten(g, x), 1, 1);
}
static int many_parts(graph *g, int x)
{
    int parts[GRAPH_INPUTS_MAX + 1] = {x};
    return graph_concat(g, parts, GRAPH_INPUTS_MAX + 1);
}
static int norm_of_negative_eps(graph *g, int x)
{
    return graph_batch_norm(g, x, (batch_norm_options){.eps = -1});
}
static int norm_of_negative_momentum(graph *g, int x)
{
    return graph_batch_norm(g, x, (batch_norm_options){.momentum = -3});
}

static const struct {
    mistake make;
    err_code code;
    const char *says;
} mistakes[] = {
    {big_kernel, ERR_INVALID, "conv2d 'conv2': kernel 5 is larger than its input 3x3"},
    {dilated, ERR_INVALID, "conv2d 'conv1': kernel 11 (dilated) is larger than its input 8x9 with"},
    {no_kernel, ERR_INVALID, "conv2d 'stem': kernel 0 is not possible"},
    {no_filters, ERR_INVALID, "conv2d 'conv1': 0 filters"},
    {bad_groups, ERR_INVALID, "2 groups do not divide its 3 input channels and 6 filters"},
    {huge_kernel, ERR_INVALID, "kernel 1073741824 is not possible"},
    {huge_weights, ERR_LIMIT, "more than 2^31 parameters"},
    {unflattened, ERR_INVALID, "linear 'fc1': its input is an image (3, 8, 9); flatten it first"},
    {flat_conv, ERR_INVALID,
     "conv2d 'conv1': needs an image (C, H, W), its input is flat with 216"},
    {flat_norm, ERR_INVALID,
     "batch_norm 'bn1': needs an image (C, H, W), its input is flat; a conv2d"},
    {bad_features, ERR_INVALID, "linear 'fc1': -2 output features"},
    {bad_add, ERR_INVALID, "add of 'input' (3, 8, 9) and 'conv1' (3, 6, 7)"},
    {bad_concat, ERR_INVALID, "concat: 'input' is 8x9, 'max_pool2d1' is 4x4"},
    {bad_pool, ERR_INVALID, "max_pool2d 'max_pool2d1': kernel 2 is larger than its input 1x1"},
    {bad_pool_ceil, ERR_INVALID, "max_pool2d 'max_pool2d1': kernel 3 is larger than its input 1x1"},
    {bad_pool_padding, ERR_INVALID, "padding 2x2 is more than half of kernel 2x2"},
    {bad_dropout, ERR_INVALID, "dropout: probability 1 is not in [0, 1)"},
    {same_names, ERR_INVALID, "two layers are named 'a'"},
    {bad_name, ERR_INVALID, "conv2d 'a/b': a layer's name"},
    {name_of_the_optimizer, ERR_INVALID,
     "linear 'optimizer': that name is the optimizer's state's"},
    {name_below_the_optimizer, ERR_INVALID,
     "batch_norm 'optimizer.norm': that name is the optimizer's state's"},
    {unused, ERR_INVALID, "conv2d 'lost': its result is not used"},
    {image_output, ERR_INVALID, "activation 'relu1': the model's output has shape (3, 8, 9)"},
    {too_few_outputs, ERR_INVALID, "linear 'head': the model has 4 outputs, 10 are needed"},
    {nothing, ERR_INVALID, "the model returned no tensor"},
    {stranger, ERR_INVALID, "relu: input 1 is not a tensor of this graph"},
    {bad_activation, ERR_INVALID, "activation 99 does not exist"},
    {norm_of_features, ERR_INVALID, "batch_norm 'bn1': needs an image"},
    {bad_group_norm, ERR_INVALID, "group_norm 'gn1': 2 groups do not divide its 3 channels"},
    {group_norm_of_negative_eps, ERR_INVALID, "group_norm 'groups': eps -1 must be in (0, 1]"},
    {bad_adaptive, ERR_INVALID, "adaptive_max_pool2d: an output of 1x0 is not possible"},
    {flat_adaptive, ERR_INVALID, "adaptive_max_pool2d: needs an image (C, H, W)"},
    {many_parts, ERR_LIMIT, "concat of 65 tensors: 1 to 64 are possible"},
    {norm_of_negative_eps, ERR_INVALID, "eps -1 and momentum 0.1 must be in (0, 1]"},
    {norm_of_negative_momentum, ERR_INVALID, "eps 1e-05 and momentum -3 must be in (0, 1]"},
};

TEST(each_mistake_names_its_layer_and_reason)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        err e = ERR_INIT;
        graph *g = graph_new(small);
        int out = mistakes[i].make(g, 0);
        CHECK_ERR(graph_finish(g, out, 10, &e), e, mistakes[i].code, mistakes[i].says);
        graph_free(g);
    }
}

TEST(the_first_mistake_stays)
{
    err e = ERR_INIT;
    graph *g = graph_new(small);
    int x = graph_conv2d(g, 0, (conv2d_options){.name = "first", .filters = 1, .kernel = 20});
    CHECK_INT(x, GRAPH_FAILED);
    x = graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){0}));
    CHECK_INT(graph_linear(g, x, 10, (linear_options){.name = "second"}), GRAPH_FAILED);
    check_shape(graph_shape(g, x), 0, 0, 0, 0);
    CHECK_ERR(graph_finish(g, x, 10, &e), e, ERR_INVALID, "first");
    graph_free(g);
    g = graph_new((shape){3, 0, 8, 8});
    CHECK_ERR(graph_finish(g, 0, 10, &e), e, ERR_INVALID, "input's shape (0, 8, 8)");
    graph_free(g);
}

TEST(a_graph_without_end_is_refused)
{
    err e = ERR_INIT;
    graph *g = graph_new(small);
    int x = 0;
    for (int i = 0; i < 2 * GRAPH_NODES_MAX; i++)
        x = graph_relu(g, x);
    CHECK_ERR(graph_finish(g, x, 10, &e), e, ERR_LIMIT, "more than 4096 layers");
    graph_free(g);
}

/* ---- beginnings ---------------------------------------------------------------------------- */

static void moments(const float *x, size_t count, double *mean, double *deviation, double *largest)
{
    double sum = 0, squares = 0;
    *largest = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        *largest = fmax(*largest, fabs((double)x[i]));
    }
    *mean = sum / (double)count;
    *deviation = sqrt(squares / (double)count - *mean * *mean);
}

/* Parts of every variable are drawn by whichever thread comes; odd counts, and fewer elements than
 * parts. */
TEST(weights_are_the_same_whoever_draws_them)
{
    enum { THREADS = 5 };
    err e = ERR_INIT;
    graph *g = graph_new((shape){3, 3, 9, 9});
    int x = graph_conv2d(
        g, 0, (conv2d_options){.filters = 35, .kernel = 3, .weights = WEIGHTS_HE_FAN_OUT});
    x = graph_batch_norm(g, x, (batch_norm_options){0});
    x = graph_linear(g, graph_flatten(g, x), 431, (linear_options){0});
    x = graph_linear(g, x, 3, (linear_options){.deviation = 0.01});
    CHECK_OK(graph_finish(g, x, 3, &e), e);
    size_t count = g->floats[VAR_PARAM], more = g->floats[VAR_BUFFER];
    CHECK(count > THREADS << 16); /* worth so many */
    float *params[2], *buffers[2];
    int64_t counters[1];
    for (int i = 0; i < 2; i++) {
        params[i] = malloc(count * sizeof(float));
        buffers[i] = malloc(more * sizeof(float));
        CHECK(params[i] && buffers[i]);
        graph_init_vars(g, 7, i ? THREADS : 1, params[i], buffers[i], counters);
    }
    CHECK(memcmp(params[0], params[1], count * sizeof(float)) == 0);
    CHECK(memcmp(buffers[0], buffers[1], more * sizeof(float)) == 0);
    for (int i = 0; i < 2; i++)
        free(params[i]), free(buffers[i]);
    graph_free(g);
}

TEST(weights_begin_as_pytorchs)
{
    err e = ERR_INIT;
    graph *g = graph_new((shape){3, 64, 3, 3});
    int x = graph_conv2d(g, 0, (conv2d_options){.filters = 128, .kernel = 3});
    x = graph_batch_norm(g, x, (batch_norm_options){0});
    x = graph_conv2d(
        g, x,
        (conv2d_options){
            .filters = 256, .kernel = 1, .weights = WEIGHTS_HE_FAN_OUT, .zero_bias = true});
    x = graph_conv2d(g, x,
                     (conv2d_options){.filters = 256,
                                      .kernel = 3,
                                      .padding = 1,
                                      .groups = 256,
                                      .weights = WEIGHTS_HE_FAN_OUT});
    x = graph_linear(g, graph_flatten(g, x), 100, (linear_options){.deviation = 0.01});
    x = graph_linear(g, x, 400, (linear_options){0});
    CHECK_OK(graph_finish(g, x, 400, &e), e);
    float *params = calloc(g->floats[VAR_PARAM], sizeof *params), buffers[256];
    int64_t counters[1] = {9};
    graph_init_vars(g, 1, 1, params, buffers, counters);
    double mean, deviation, largest, bound = 1 / sqrt(64 * 9.0);
    moments(params + g->vars[0].offset, g->vars[0].count, &mean, &deviation, &largest);
    CHECK_NEAR(mean, 0, bound * 0.01);
    CHECK_NEAR(deviation, bound / sqrt(3), bound * 0.01);
    CHECK(largest <= bound && largest > bound * 0.999);
    moments(params + g->vars[1].offset, g->vars[1].count, &mean, &deviation, &largest);
    CHECK(largest <= bound && largest > bound * 0.9);
    int he = graph_var_find(g, "conv2.weight"), bias = graph_var_find(g, "conv2.bias");
    moments(params + g->vars[he].offset, g->vars[he].count, &mean, &deviation, &largest);
    CHECK_NEAR(deviation, sqrt(2.0 / 256), 0.002);
    int depthwise = graph_var_find(g, "conv3.weight");
    moments(params + g->vars[depthwise].offset, g->vars[depthwise].count, &mean, &deviation,
            &largest);
    CHECK_NEAR(deviation, sqrt(2.0 / (256 * 9)), 0.002); /* fan_out knows of no groups */
    moments(params + g->vars[bias].offset, g->vars[bias].count, &mean, &deviation, &largest);
    CHECK(largest == 0);
    int fc = graph_var_find(g, "fc1.weight");
    moments(params + g->vars[fc].offset, g->vars[fc].count, &mean, &deviation, &largest);
    CHECK_NEAR(deviation, 0.01, 0.0003);
    static const char *const plain[] = {"fc2.weight", "fc2.bias"};
    for (int i = 0; i < 2; i++) {
        const graph_var *v = &g->vars[graph_var_find(g, plain[i])];
        moments(params + v->offset, v->count, &mean, &deviation, &largest);
        CHECK_NEAR(mean, 0, 0.01);
        CHECK_NEAR(deviation, 0.1 / sqrt(3), 0.006);
        CHECK(largest <= 0.1 && largest > 0.095);
    }
    CHECK(params[g->vars[graph_var_find(g, "bn1.weight")].offset] == 1 && buffers[0] == 0);
    CHECK(buffers[g->vars[graph_var_find(g, "bn1.running_var")].offset] == 1 && counters[0] == 0);
    free(params);
    graph_free(g);
}

TEST(dropout_keeps_its_share_and_depends_on_its_key_alone)
{
    int kept = 0, same = 0;
    for (uint32_t block = 0; block < 10000; block++) {
        unsigned mask = graph_dropout_draw(1, 2, 3, 0, block, 0.3);
        kept += __builtin_popcount(mask);
        same += mask == graph_dropout_draw(1, 2, 3, 1, block, 0.3);
        CHECK_INT(mask, graph_dropout_draw(1, 2, 3, 0, block, 0.3));
    }
    CHECK_NEAR(kept / 40000.0, 0.7, 0.01);
    CHECK(same < 4000); /* sum over masks of p^2 is about 0.16 */
    CHECK_INT(graph_dropout_draw(1, 2, 3, 0, 0, 0), 15);
}

/* What is known of an op stands in its row: nothing of the engine works without. */
TEST(every_op_has_a_row)
{
    for (int i = 0; i < OP_COUNT; i++) {
        const op_row *row = &op_rows[i];
        CHECK(row->name && row->forward);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(row->name, op_rows[j].name) != 0);
        if (i != OP_INPUT)
            CHECK(row->backward && row->shape && row->least >= 1 && row->least <= row->most &&
                  row->most <= GRAPH_INPUTS_MAX);
    }
}

/* ---- memory plan --------------------------------------------------------------------------- */

TEST(planned_blocks_never_overlap_in_time_and_place)
{
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (int round = 0; round < 200; round++) {
        plan_item items[60];
        size_t sum = 0, total;
        int count = 1 + (int)rng_below(&r, 60);
        for (int i = 0; i < count; i++) {
            int first = (int)rng_below(&r, 50);
            items[i] = (plan_item){.bytes = rng_below(&r, 5000),
                                   .first = first,
                                   .last = first + (int)rng_below(&r, 10)};
            sum += (items[i].bytes + 63) / 64 * 64;
        }
        total = plan_assign(items, count);
        CHECK(total <= sum);
        for (int i = 0; i < count; i++) {
            CHECK(items[i].offset % PLAN_ALIGN == 0 && items[i].offset + items[i].bytes <= total);
            for (int j = 0; j < i; j++)
                CHECK(items[i].last < items[j].first || items[j].last < items[i].first ||
                      items[i].offset + items[i].bytes <= items[j].offset ||
                      items[j].offset + items[j].bytes <= items[i].offset);
        }
    }
}

TEST(a_chain_needs_memory_for_two_of_its_blocks)
{
    plan_item items[100];
    for (int i = 0; i < 100; i++)
        items[i] = (plan_item){.bytes = 1000, .first = i, .last = i + 1};
    CHECK_INT(plan_assign(items, 100), 2 * 1024);
}
