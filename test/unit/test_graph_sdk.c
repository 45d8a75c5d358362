/* test_graph_sdk.c: kubeml.h: the examples, and what a wrong function is told. */
#include "function-runtime/model/sdk.h"
#include "golden.h"
#include "kernels/zoo/zoo.h"

/* As two programs would see them. */
#define kubeml_function lenet_function
#include "function-runtime/examples/lenet.c"
#undef kubeml_function
#define kubeml_function resnet_function
#include "function-runtime/examples/resnet.c"
#undef kubeml_function

static engine *compile(const kml_function *f, shape input, int batch, const char *on)
{
    err e = ERR_INIT;
    engine *m = NULL;
    engine_config c = {.input = input, .outputs = 10, .batch = batch, .backend = on, .seed = 4};
    CHECK_OK(sdk_check(f, &e), e);
    sdk_config(f, &c);
    CHECK_OK(engine_compile(&c, &m, &e), e);
    return m;
}

static engine *compile_zoo(const char *name, shape input, int batch, optim o)
{
    err e = ERR_INIT;
    engine *m = NULL;
    engine_config c = {.build = zoo_find(name, &e)->build,
                       .input = input,
                       .outputs = 10,
                       .batch = batch,
                       .seed = 4,
                       .optim = o};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    return m;
}

/* The example is the zoo's model: same names, same first weights, same training. */
static void check_example(const kml_function *example, const char *zoo, shape input)
{
    kml_function f = *example;
    f.step = NULL; /* resnet.c's own clips */
    engine *a = compile(&f, input, 8, NULL);
    engine *b = compile_zoo(zoo, input, 8,
                            (optim){.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4});
    CHECK_STR(engine_layout_text(a), engine_layout_text(b));
    err e = ERR_INIT;
    golden_batch batch = {0};
    engine_result ra, rb;
    golden_draw(&batch, 0, 8, input, 10);
    for (int step_count = 0; step_count < 3; step_count++) {
        CHECK_OK(sdk_step(&f, a, &batch.b, 0.001, &ra, &e), e);
        CHECK_OK(engine_train(b, &batch.b, 0.001, &rb, &e), e);
        CHECK_NEAR(ra.loss, rb.loss, 0);
    }
    free(batch.x);
    engine_free(a);
    engine_free(b);
}

TEST(the_examples_are_the_zoos_models)
{
    check_example(&lenet_function, "lenet5", (shape){3, 1, 28, 28});
    check_example(&resnet_function, "resnet20", (shape){3, 3, 32, 32});
}

TEST(an_example_with_the_wrong_images_says_which_layer)
{
    err e = ERR_INIT;
    engine *m = NULL;
    engine_config c = {.input = {3, 1, 8, 8}, .outputs = 10, .batch = 8};
    sdk_config(&lenet_function, &c);
    CHECK_ERR(engine_compile(&c, &m, &e), e, ERR_INVALID,
              "conv2d 'conv2': kernel 5 is larger than its input 4x4");
}

TEST(clipping_holds_the_norm)
{
    engine *m = compile(&lenet_function, (shape){3, 1, 28, 28}, 8, NULL);
    err e = ERR_INIT;
    golden_batch batch = {0};
    engine_result r;
    golden_draw(&batch, 0, 8, (shape){3, 1, 28, 28}, 10);
    CHECK_OK(engine_gradients(m, &batch.b, &r, &e), e);
    size_t count;
    float *grads = engine_grads(m, &count, &e);
    double before = 0, after = 0;
    for (size_t i = 0; i < count; i++)
        before += (double)grads[i] * (double)grads[i];
    kml_function f = lenet_function;
    f.step = step; /* clips at 5, far above */
    CHECK_OK(sdk_step(&f, m, &batch.b, 0, &r, &e), e);
    for (size_t i = 0; i < count; i++)
        after += (double)grads[i] * (double)grads[i];
    CHECK_NEAR(after, before, 1e-4 * before);
    free(batch.x);
    engine_free(m);
}

static double seen_norm, left_norm;
static int clipping_step(kml_step *s)
{
    size_t count;
    if (kml_gradients(s))
        return -1;
    seen_norm = kml_clip_gradient_norm(s, 1e-3);
    float *g = kml_gradient_values(s, &count);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)g[i] * (double)g[i];
    left_norm = sqrt(sum);
    return kml_update(s, kml_learning_rate(s));
}
/* Treats all numbers of the block alike, as one would who adds noise. */
static int shifting_step(kml_step *s)
{
    size_t count;
    if (kml_gradients(s))
        return -1;
    float *g = kml_gradient_values(s, &count);
    for (size_t i = 0; i < count; i++)
        g[i] += 0.01f;
    seen_norm = kml_clip_gradient_norm(s, 1);
    return kml_update(s, kml_learning_rate(s));
}
static int lazy_step(kml_step *s)
{
    (void)s;
    return 0;
}
static int stopping_step(kml_step *s)
{
    if (kml_gradients(s))
        return -1;
    return kml_step_fail(s, "loss %.0f in epoch %u is no good", kml_batch_loss(s), kml_epoch(s));
}
static int silent_step(kml_step *s)
{
    (void)s;
    return 7;
}
static int late_step(kml_step *s) /* would update with the last batch's */
{
    return kml_update(s, kml_learning_rate(s)) || kml_gradients(s) ? -1 : 0;
}
static int clipping_too_soon_step(kml_step *s)
{
    seen_norm = kml_clip_gradient_norm(s, 1e-3);
    return kml_gradients(s) || kml_update(s, kml_learning_rate(s)) ? -1 : 0;
}

static double norm_of_parameters(engine *m)
{
    err e = ERR_INIT;
    size_t count, vars;
    const float *g = engine_grads(m, &count, &e);
    const engine_var *var = engine_layout(m, &vars);
    double sum = 0;
    for (size_t i = 0; i < vars; i++)
        for (size_t j = 0; var[i].kind == VAR_PARAM && j < var[i].count; j++)
            sum += pow((double)g[var[i].offset + j] + 0.01, 2);
    return sqrt(sum);
}

static void check_gaps(const char *on)
{
    kml_function f = lenet_function;
    f.step = shifting_step;
    f.optimizer = (kml_optimizer)kml_sgd();
    engine *m = compile(&f, (shape){3, 1, 28, 28}, 8, on);
    err e = ERR_INIT;
    golden_batch batch = {0};
    engine_result r;
    golden_draw(&batch, 0, 8, (shape){3, 1, 28, 28}, 10);
    CHECK_OK(engine_gradients(m, &batch.b, &r, &e), e);
    double norm = norm_of_parameters(m);
    for (int i = 0; i < 3; i++) { /* at a rate of 0 the same each time */
        CHECK_OK(sdk_step(&f, m, &batch.b, 0, &r, &e), e);
        CHECK_NEAR(seen_norm, norm, 1e-6 * norm);
    }
    free(batch.x);
    engine_free(m);
}

TEST(what_is_written_between_gradients_does_not_count)
{
    check_gaps("cpu");
    check_gaps("reference");
}

TEST(a_step_of_ones_own)
{
    engine *m = compile(&lenet_function, (shape){3, 1, 28, 28}, 8, NULL);
    err e = ERR_INIT;
    golden_batch batch = {0};
    engine_result r;
    golden_draw(&batch, 0, 8, (shape){3, 1, 28, 28}, 10);
    kml_function f = lenet_function;
    f.step = clipping_step;
    float first = engine_floats(m, &e)[0];
    CHECK_OK(sdk_step(&f, m, &batch.b, 100, &r, &e), e);
    CHECK(seen_norm > 0.1);
    CHECK_NEAR(left_norm, 1e-3, 1e-6);
    CHECK(engine_floats(m, &e)[0] != first && r.loss > 2);
    f.step = lazy_step;
    CHECK_ERR(sdk_step(&f, m, &batch.b, 1, &r, &e), e, ERR_INVALID, "never called kml_gradients");
    f.step = stopping_step;
    batch.b.epoch = 3;
    CHECK_ERR(sdk_step(&f, m, &batch.b, 1, &r, &e), e, ERR_INVALID, "in epoch 3 is no good");
    f.step = silent_step;
    CHECK_ERR(sdk_step(&f, m, &batch.b, 1, &r, &e), e, ERR_INVALID, "gave up (7)");
    f.step = late_step;
    first = engine_floats(m, &e)[0];
    CHECK_ERR(sdk_step(&f, m, &batch.b, 1, &r, &e), e, ERR_INVALID, "kml_gradients(s) comes first");
    CHECK(engine_floats(m, &e)[0] == first);
    f.step = clipping_too_soon_step;
    CHECK_ERR(sdk_step(&f, m, &batch.b, 1, &r, &e), e, ERR_INVALID, "kml_gradients(s) comes first");
    CHECK(isnan(seen_norm));
    batch.labels[2] = 99;
    f.step = clipping_step;
    CHECK_ERR(sdk_step(&f, m, &batch.b, 1, &r, &e), e, ERR_INVALID, "label 99");
    free(batch.x);
    engine_free(m);
}

/* ---- everything at once, so that each kml_ name is called ---------------------------------- */

static kml_tensor kitchen_sink(kml_graph *g, kml_tensor x)
{
    x = kml_conv2d(g, x, .filters = 4, .kernel_h = 3, .kernel_w = 1, .he = true, .name = "stem");
    x = kml_batch_norm2d(g, x, .momentum = 0.2);
    x = kml_group_norm(g, kml_group_norm(g, x, 2), 4, .eps = 1e-3, .name = "each");
    kml_tensor a = kml_relu(g, x), b = kml_relu6(g, x), c = kml_leaky_relu(g, x, 0.1);
    kml_tensor d = kml_hardsigmoid(g, x), e = kml_hardswish(g, x), f = kml_sigmoid(g, x);
    kml_tensor h = kml_tanh(g, x), i = kml_gelu(g, x), j = kml_silu(g, x);
    x = kml_concat(g, a, b, c, d, e, f, h, i, j);
    if (kml_channels(g, x) != 36 || kml_height(g, x) != 14 || kml_width(g, x) != 16)
        return kml_fail(g, "%d %d %d", kml_channels(g, x), kml_height(g, x), kml_width(g, x));
    x = kml_max_pool2d(g, x, .kernel = 3, .stride = 2, .padding = 1);
    x = kml_avg_pool2d(g, x, .kernel = 2, .ceil_mode = true, .exclude_padding = true);
    x = kml_mul(g, x, kml_global_avg_pool2d(g, x));
    x = kml_add(g, x, kml_adaptive_avg_pool2d(g, x, 1, 1));
    x = kml_mul(g, x, kml_global_max_pool2d(g, kml_adaptive_max_pool2d(g, x, 2, 2)));
    x = kml_dropout(g, kml_pad_channels(g, x, 1, 0), 0.5);
    return kml_linear(g, kml_flatten(g, x), kml_classes(g), .no_bias = true);
}

TEST(every_name_of_the_sdk_works)
{
    kml_function f = {.abi = KUBEML_ABI, .size = sizeof f, .model = kitchen_sink};
    f.optimizer = (kml_optimizer)kml_adamw(.beta1 = 0.8);
    engine *m = compile(&f, (shape){3, 2, 16, 16}, 4, NULL);
    err e = ERR_INIT;
    golden_batch batch = {0};
    engine_result r;
    golden_draw(&batch, 0, 4, (shape){3, 2, 16, 16}, 10);
    double first = 0;
    for (int i = 0; i < 20; i++) {
        CHECK_OK(sdk_step(&f, m, &batch.b, 0.01, &r, &e), e);
        first = i == 0 ? r.loss : first;
    }
    CHECK(r.loss < first / 2);
    CHECK(graph_var_find(engine_graph(m), "stem.weight") == 0);
    CHECK(graph_var_find(engine_graph(m), "gn1.weight") > 0);
    CHECK(graph_var_find(engine_graph(m), "each.bias") > 0);
    free(batch.x);
    engine_free(m);
}

static kml_tensor from_zoo(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "mlp", kml_classes(g));
}
static kml_tensor wrong_zoo(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "resnet21", 10);
}
static kml_tensor moved_zoo(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "mlp,crop=4", 10);
}
static kml_tensor unmoved_zoo(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "mlp,crop=0", 10);
}
static kml_tensor unflipped_zoo(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "mlp,stem=auto,flip=off", 10);
}
static kml_tensor standardised_zoo(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "resnet18,scale=standardise", 10);
}
static kml_tensor zoo_with_stem(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "mlp,stem=auto", kml_classes(g));
}
static kml_tensor failing(kml_graph *g, kml_tensor x)
{
    if (kml_channels(g, x) != 3)
        return kml_fail(g, "this model is for colour images, not for %d channels",
                        kml_channels(g, x));
    return x;
}

static void check_build_error(kml_model model, err_code code, const char *says)
{
    kml_function f = {.abi = KUBEML_ABI, .size = sizeof f, .model = model};
    err e = ERR_INIT;
    engine *m = NULL;
    engine_config c = {.input = {3, 1, 28, 28}, .outputs = 10, .batch = 8};
    sdk_config(&f, &c);
    CHECK_ERR(engine_compile(&c, &m, &e), e, code, says);
}

TEST(models_of_the_zoo_and_mistakes)
{
    kml_function f = {.abi = KUBEML_ABI, .size = sizeof f, .model = from_zoo};
    engine *m = compile(&f, (shape){3, 1, 28, 28}, 4, NULL);
    CHECK_INT(engine_param_count(m), 235146);
    engine_free(m);
    check_build_error(wrong_zoo, ERR_NOT_FOUND, "the nearest are 'resnet20' and");
    check_build_error(moved_zoo, ERR_INVALID,
                      "(\"mlp,crop=4\"): flip, crop and scale are KUBEML_FUNCTION's .transform");
    /* Also where the value is what there is without the option. */
    check_build_error(unmoved_zoo, ERR_INVALID, "(\"mlp,crop=0\"): flip, crop and scale are");
    check_build_error(unflipped_zoo, ERR_INVALID, "flip=off\"): flip, crop and scale are");
    check_build_error(standardised_zoo, ERR_INVALID, "scale=standardise\"): flip, crop and scale");
    f.model = zoo_with_stem;
    engine_free(compile(&f, (shape){3, 1, 28, 28}, 4, NULL));
    check_build_error(failing, ERR_INVALID, "this model is for colour images, not for 1 channels");
}

TEST(wrong_functions_are_refused)
{
    err e = ERR_INIT;
    kml_function f = lenet_function;
    f.abi = 99;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_UNSUPPORTED, "ABI 99");
    f = lenet_function, f.size--;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_UNSUPPORTED, "create it anew");
    f = lenet_function, f.model = NULL;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "no .model");
    f = lenet_function, f.optimizer.kind = (kml_optimizer_kind)9;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "optimizer 9");
    f = lenet_function, f.optimizer.momentum = 2;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "momentum 2");
    f = lenet_function, f.schedule = (kml_schedule)kml_step_lr();
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "every 0 epochs");
    f = lenet_function, f.transform.std[0] = 0;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "channel 0 has no deviation");
    f = lenet_function, f.lr = -1;
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "learning rate -1");
    f = lenet_function, f.schedule = (kml_schedule)kml_milestones(.at = {3, 2});
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "2 does not follow 3");
    f = lenet_function, f.schedule = (kml_schedule)kml_milestones();
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "none is given");
    f = lenet_function, f.schedule = (kml_schedule)kml_milestones(.at = {0, 1});
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "0 is not possible");
    f = lenet_function, f.schedule = (kml_schedule)kml_milestones(.at = {-1, 1});
    CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "-1 is not possible");
}

static void refuse_optimizer(kml_optimizer o, const char *says)
{
    kml_function f = lenet_function;
    err e = ERR_INIT;
    f.optimizer = o;
    CHECK_OK(sdk_check(&f, &e), e);
    CHECK_ERR(sdk_check_options(&f, &e), e, ERR_INVALID, says);
}

static void refuse_schedule(kml_schedule s, const char *says)
{
    kml_function f = lenet_function;
    err e = ERR_INIT;
    f.schedule = s;
    CHECK_OK(sdk_check(&f, &e), e);
    CHECK_ERR(sdk_check_options(&f, &e), e, ERR_INVALID, says);
}

/* By who asks before there is a job; who has one passes over them. */
TEST(options_of_another_kind_are_refused)
{
    refuse_optimizer((kml_optimizer)kml_adam(.momentum = 0.9), "kml_adam has no .momentum");
    refuse_optimizer((kml_optimizer)kml_adam(.dampening = 0.1), "kml_adam has no .dampening");
    refuse_optimizer((kml_optimizer)kml_adamw(.nesterov = true), "kml_adamw has no .nesterov");
    refuse_optimizer((kml_optimizer)kml_sgd(.beta1 = 0.9), "kml_sgd has no .beta1");
    refuse_optimizer((kml_optimizer)kml_sgd(.beta2 = 0.9), "kml_sgd has no .beta2");
    refuse_optimizer((kml_optimizer)kml_sgd(.eps = 1e-8), "kml_sgd has no .eps");
    refuse_schedule((kml_schedule)kml_cosine(.every = 3), "kml_cosine has no .every");
    refuse_schedule((kml_schedule)kml_constant(.gamma = 0.1), "kml_constant has no .gamma");
    refuse_schedule((kml_schedule)kml_step_lr(.every = 1, .at = {2}), "kml_step_lr has no .at");
    refuse_schedule((kml_schedule)kml_milestones(.at = {1}, .epochs = 4),
                    "kml_milestones has no .epochs");
    refuse_schedule((kml_schedule)kml_plateau(.per_step = true), "kml_plateau has no .per_step");
    refuse_schedule((kml_schedule)kml_step_lr(.every = 1, .min_lr = 1e-3),
                    "kml_step_lr has no .min_lr");
    refuse_schedule((kml_schedule)kml_cosine(.patience = -1), "kml_cosine has no .patience");
    refuse_schedule((kml_schedule)kml_cosine(.cooldown = 1), "kml_cosine has no .cooldown");
    refuse_schedule((kml_schedule)kml_cosine(.threshold = 0.1), "kml_cosine has no .threshold");
    kml_function f = lenet_function; /* has .mean and .std */
    err e = ERR_INIT;
    f.transform.standardise = true;
    CHECK_OK(sdk_check(&f, &e), e);
    CHECK_ERR(sdk_check_options(&f, &e), e, ERR_INVALID,
              ".standardise and .std exclude each other");
}

TEST(every_kind_takes_its_own_options)
{
    static const kml_optimizer optimizers[] = {
        kml_sgd(.weight_decay = 0.1, .momentum = 0.9, .dampening = 0.1),
        kml_sgd(.momentum = 0.9, .nesterov = true),
        kml_adam(.weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6),
        kml_adamw(.weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6),
    };
    static const kml_schedule schedules[] = {
        kml_constant(.warmup_epochs = 1),
        kml_step_lr(.every = 2, .gamma = 0.5, .warmup_epochs = 1),
        kml_milestones(.at = {1, 3}, .gamma = 0.5, .warmup_epochs = 1),
        kml_cosine(.epochs = 3, .per_step = true, .min_lr = 1e-4, .warmup_epochs = 1),
        kml_plateau(.gamma = 0.5, .min_lr = 1e-4, .patience = 1, .cooldown = 1, .threshold = 0.1,
                    .warmup_epochs = 1),
    };
    err e = ERR_INIT;
    kml_function f = lenet_function;
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        f.optimizer = optimizers[i];
        CHECK_OK(sdk_check(&f, &e) || sdk_check_options(&f, &e) ? -1 : 0, e);
    }
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        f.schedule = schedules[i];
        CHECK_OK(sdk_check(&f, &e) || sdk_check_options(&f, &e) ? -1 : 0, e);
    }
}

static double decay_of(kml_optimizer o)
{
    kml_function f = lenet_function;
    err e = ERR_INIT;
    engine_config c = {0};
    f.optimizer = o;
    CHECK_OK(sdk_check(&f, &e), e);
    sdk_config(&f, &c);
    return c.optim.weight_decay;
}

TEST(adamw_can_be_without_weight_decay)
{
    CHECK_NEAR(decay_of((kml_optimizer)kml_adamw()), 0.01, 0);
    CHECK_NEAR(decay_of((kml_optimizer)kml_adamw(.weight_decay = -1)), 0, 0);
    static const kml_optimizer others[] = {kml_adam(.weight_decay = -1),
                                           kml_sgd(.weight_decay = -1)};
    for (size_t i = 0; i < 2; i++) {
        kml_function f = lenet_function;
        err e = ERR_INIT;
        f.optimizer = others[i];
        CHECK_ERR(sdk_check(&f, &e), e, ERR_INVALID, "weight decay -1 is negative");
    }
}

TEST(schedules_take_the_jobs_length)
{
    err e = ERR_INIT;
    kml_function f = lenet_function;
    f.schedule = (kml_schedule)kml_cosine(.warmup_epochs = 2);
    CHECK_INT(sdk_schedule(&f, 12).epochs, 10);
    CHECK_INT(sdk_schedule(&f, 1).epochs, 1);
    f.schedule = (kml_schedule)kml_plateau(.patience = -1);
    CHECK_OK(sdk_check(&f, &e), e);
    CHECK_INT(sdk_schedule(&f, 1).patience, 0);
    f.schedule = (kml_schedule)kml_plateau();
    CHECK_INT(sdk_schedule(&f, 1).patience, 10);
    schedule s = sdk_schedule(&resnet_function, 200);
    CHECK_INT(s.milestone_count, 2);
    CHECK_INT(s.milestones[1], 123);
}
