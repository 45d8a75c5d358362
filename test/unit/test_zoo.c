/* test_zoo.c: the zoo's models against torchvision's: names, counts, logits, losses and every
 * gradient. */
#include "golden.h"
#include "kernels/zoo/zoo.h"
#include "kernels/zoo/zoo_models.h"

static graph *build(const zoo_model *z, shape input, int outputs, zoo_stem stem)
{
    err e = ERR_INIT;
    zoo_options o = {.stem = stem};
    graph *g = graph_new(input);
    CHECK(g);
    CHECK_OK(graph_finish(g, z->build(g, 0, outputs, &o), outputs, &e), e);
    return g;
}

TEST(parameter_counts_are_the_tables_and_torchvisions)
{
    for (int i = 0; zoo_at(i); i++) {
        const zoo_model *z = zoo_at(i);
        graph *g =
            build(z, (shape){3, z->channels, z->height, z->width}, z->outputs, ZOO_STEM_AUTO);
        char key[64];
        double want;
        if (g->param_count != z->params)
            test_fail(__FILE__, __LINE__, "%s has %zu parameters, not %zu", z->name, g->param_count,
                      z->params);
        snprintf(key, sizeof key, "%s params", z->name);
        if (golden_read("zoo", key, &want, 1) == 1) {
            CHECK_INT(g->param_count, want);
            snprintf(key, sizeof key, "%s tensors", z->name);
            golden_line("zoo", key, &want, 1);
            CHECK_INT(g->var_count, want);
        }
        graph_free(g);
    }
}

TEST(names_are_torchvisions)
{
    static const struct {
        const char *model, *first, *some, *last;
    } names[] = {
        {"resnet18", "conv1.weight", "layer2.0.downsample.1.running_var", "fc.bias"},
        {"resnet50", "conv1.weight", "layer4.2.conv3.weight", "fc.bias"},
        {"vgg11", "features.0.weight", "features.18.bias", "classifier.6.bias"},
        {"vgg11_bn", "features.0.weight", "features.26.num_batches_tracked", "classifier.6.bias"},
        {"squeezenet1_1", "features.0.weight", "features.12.expand3x3.bias", "classifier.1.bias"},
        {"mobilenet_v3_small", "features.0.0.weight", "features.4.block.2.fc2.weight",
         "classifier.3.bias"},
        {"densenet121", "features.conv0.weight", "features.denseblock4.denselayer16.conv2.weight",
         "classifier.bias"},
        {"resnet20", "conv1.weight", "layer3.2.bn2.bias", "linear.bias"},
        {"lenet5", "conv1.weight", "fc2.weight", "fc3.bias"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        err e = ERR_INIT;
        const zoo_model *z = zoo_find(names[i].model, &e);
        graph *g =
            build(z, (shape){3, z->channels, z->height, z->width}, z->outputs, ZOO_STEM_AUTO);
        CHECK_STR(g->vars[0].name, names[i].first);
        CHECK(graph_var_find(g, names[i].some) > 0);
        CHECK_STR(g->vars[g->var_count - 1].name, names[i].last);
        graph_free(g);
    }
}

TEST(stems_follow_the_image_and_channels_and_classes_the_dataset)
{
    err e = ERR_INIT;
    const zoo_model *z = zoo_find("resnet18", &e);
    graph *g = build(z, (shape){3, 1, 28, 28}, 7, ZOO_STEM_AUTO);
    CHECK_INT(g->vars[0].dims[1], 1);
    CHECK_INT(g->vars[0].dims[2], 3); /* CIFAR's stem */
    CHECK_INT(graph_shape(g, g->output).c, 7);
    graph_free(g);
    g = build(z, (shape){3, 3, 32, 32}, 10, ZOO_STEM_IMAGENET);
    CHECK_INT(g->vars[0].dims[2], 7);
    graph_free(g);
    g = build(z, (shape){3, 3, 224, 224}, 10, ZOO_STEM_AUTO);
    CHECK_INT(g->vars[0].dims[2], 7);
    graph_free(g);
    zoo_stem stem;
    CHECK_OK(zoo_stem_parse("cifar", &stem, &e), e);
    CHECK_INT(stem, ZOO_STEM_CIFAR);
    CHECK_ERR(zoo_stem_parse("mnist", &stem, &e), e, ERR_INVALID, "mnist");
}

TEST(a_models_text_may_say_how_samples_are_transformed)
{
    err e = ERR_INIT;
    zoo_options o = {0};
    CHECK(zoo_parse("mlp", &o, &e));
    CHECK(!o.flip && o.crop == 0 && o.scale == ZOO_SCALE_STANDARDISE);
    const char *longest = "mobilenet_v3_small,stem=imagenet,flip=on,crop=64,scale=min_max";
    CHECK(zoo_parse(longest, &o, &e));
    CHECK(o.stem == ZOO_STEM_IMAGENET && o.flip && o.crop == 64 && o.scale == ZOO_SCALE_MIN_MAX);
    CHECK(zoo_parse("mlp,scale=none,crop=0,flip=off,stem=auto", &o, &e));
    CHECK(!o.flip && o.crop == 0 && o.scale == ZOO_SCALE_NONE);
}

TEST(a_models_text_may_say_its_stem)
{
    err e = ERR_INIT;
    zoo_options o = {0};
    CHECK_STR(zoo_parse("resnet34", &o, &e)->name, "resnet34");
    CHECK_INT(o.stem, ZOO_STEM_AUTO);
    CHECK_STR(zoo_parse("resnet34,stem=imagenet", &o, &e)->name, "resnet34");
    CHECK_INT(o.stem, ZOO_STEM_IMAGENET);
    CHECK(zoo_parse("mlp,stem=auto", &o, &e));
    CHECK_INT(o.stem, ZOO_STEM_AUTO);
    static const struct {
        const char *text, *says;
        err_code code;
    } wrong[] = {
        {"resnet21,stem=cifar", "'resnet21'; the nearest are", ERR_NOT_FOUND},
        {"resnet34,stem=mnist", "stem 'mnist' is neither", ERR_INVALID},
        {"resnet34,", "model option '' is unknown", ERR_INVALID},
        {"resnet34,steam=cifar", "model option 'steam=cifar' is unknown", ERR_INVALID},
        {"resnet34,flip",
         "'flip' is unknown; known are stem=cifar|imagenet|auto, flip=on|off, "
         "crop=PIXELS and scale=standardise|min_max|none",
         ERR_INVALID},
        {"resnet34,flip=yes", "flip 'yes' is neither on nor off", ERR_INVALID},
        {"resnet34,crop=", "crop '' is not a number of pixels from 0 to 64", ERR_INVALID},
        {"resnet34,crop=-1", "crop '-1' is not", ERR_INVALID},
        {"resnet34,crop=4px", "crop '4px' is not", ERR_INVALID},
        {"resnet34,crop=65", "crop '65' is not", ERR_INVALID},
        {"resnet34,crop=99999999999999999999", "crop '99999999999999999999' is not", ERR_INVALID},
        {"resnet34,scale=minmax", "scale 'minmax' is neither standardise, min_max nor none",
         ERR_INVALID},
        {"resnet20,stem=cifar", "resnet20 has one stem alone", ERR_INVALID},
        {"resnet34,stem=cifar,stem=imagenet", "model option 'stem=imagenet': stem= is given twice",
         ERR_INVALID},
        {"resnet34,crop=2,flip=on,crop=2", "crop= is given twice", ERR_INVALID},
        {",stem=cifar", "no model in the zoo is named ''", ERR_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err_clear(&e);
        CHECK(!zoo_parse(wrong[i].text, &o, &e));
        CHECK_INT(e.code, wrong[i].code);
        CHECK_CONTAINS(e.message, wrong[i].says);
    }
    char longest[600];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    err_clear(&e);
    CHECK(!zoo_parse(longest, &o, &e));
    CHECK_ERR(-1, e, ERR_INVALID, "xxx...' is longer than 63 characters");
}

TEST(images_that_do_not_fit_say_which_layer)
{
    err e = ERR_INIT;
    const zoo_model *z = zoo_find("vgg11", &e);
    graph *g = graph_new((shape){3, 3, 15, 15});
    CHECK_ERR(graph_finish(g, z->build(g, 0, 10, NULL), 10, &e), e, ERR_INVALID,
              "max_pool2d 'features.15': kernel 2 is larger than its input 1x1");
    graph_free(g);
    zoo_options large = {.stem = ZOO_STEM_IMAGENET};
    g = graph_new((shape){3, 3, 28, 28});
    err_clear(&e);
    CHECK_ERR(graph_finish(g, z->build(g, 0, 10, &large), 10, &e), e, ERR_INVALID,
              "max_pool2d 'features.20': kernel 2 is larger than its input 1x1");
    graph_free(g);
}

/* MNIST's images are down to one pixel before the fifth pooling. */
TEST(every_model_takes_one_channel_of_28x28)
{
    for (int i = 0; zoo_at(i); i++) {
        graph *g = build(zoo_at(i), (shape){3, 1, 28, 28}, 10, ZOO_STEM_AUTO);
        CHECK_INT(graph_shape(g, g->output).c, 10);
        graph_free(g);
    }
    err e = ERR_INIT;
    static const char *const names[] = {"vgg11", "vgg11_bn"};
    /* VGG's weights are those for 32x32, but for the first layer's. */
    for (int i = 0; i < 2; i++) {
        const zoo_model *z = zoo_find(names[i], &e);
        graph *g = build(z, (shape){3, 1, 28, 28}, 10, ZOO_STEM_AUTO);
        graph *other = build(z, (shape){3, 3, 32, 32}, 10, ZOO_STEM_AUTO);
        CHECK_INT(g->var_count, other->var_count);
        CHECK_INT(g->param_count, other->param_count - 64 * 2 * 9);
        for (int v = 0; v < (int)g->var_count; v++)
            CHECK_STR(g->vars[v].name, other->vars[v].name);
        graph_free(g);
        graph_free(other);
    }
}

TEST(an_unknown_name_gets_the_nearest)
{
    err e = ERR_INIT;
    CHECK(!zoo_find("resnet43", &e));
    CHECK_INT(e.code, ERR_NOT_FOUND);
    CHECK_CONTAINS(e.message, "'resnet43'; the nearest are 'resnet");
    err_clear(&e);
    CHECK(!zoo_find("densnet", &e));
    CHECK_CONTAINS(e.message, "densenet121");
    err_clear(&e);
    CHECK(!zoo_find("", &e) && e.code == ERR_NOT_FOUND);
    char longest[600];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    err_clear(&e);
    CHECK(!zoo_find(longest, &e) && e.code == ERR_NOT_FOUND);
}

/* ---- numbers ------------------------------------------------------------------------------- */

enum { IMAGES = 2, CLASSES = 10, VARS_MAX = 1024 };

static void check_row(const char *key, const float *got, const double *want, int count,
                      double tolerance)
{
    double apart = 0, scale = 0;
    for (int i = 0; i < count; i++) {
        double d = (double)got[i] - want[i];
        apart += d * d;
        scale += want[i] * want[i];
    }
    if (!(sqrt(apart) <= tolerance * sqrt(scale)))
        test_fail(__FILE__, __LINE__, "%s: relative error %.2g, %.2g allowed", key,
                  sqrt(apart / scale), tolerance);
}

/* The norms of all variables of a kind, in the order of the graph, against a golden line.
 *
 * In fp32 a value close to 0 may fall on the other side of a ReLU; with two images that alone was
 * seen to move the gradients before it by 1e-2 (PyTorch's own fp32 too). The reference computes in
 * fp64 and is held to 1e-5. Gradients that are 0 but for rounding (a bias before batch norm) count
 * against the largest. */
static void check_norms(const char *key, engine *m, const float *block, graph_kind kind,
                        double tolerance)
{
    static double want[VARS_MAX];
    size_t count;
    int at = 0, line = golden_read("zoo", key, want, VARS_MAX);
    double largest = 0;
    for (int i = 0; i < line; i++)
        largest = fmax(largest, want[i]);
    const engine_var *layout = engine_layout(m, &count);
    for (size_t i = 0; i < count; i++) {
        if (layout[i].kind != kind)
            continue;
        CHECK(at < line);
        double sum = 0;
        for (size_t j = 0; j < layout[i].count; j++) {
            double x = (double)block[layout[i].offset + j];
            sum += x * x;
        }
        if (!(fabs(sqrt(sum) - want[at]) <= tolerance * want[at] + 1e-5 * largest))
            test_fail(__FILE__, __LINE__, "%s of %s: norm %.9g, not %.9g", key, layout[i].name,
                      sqrt(sum), want[at]);
        at++;
    }
    CHECK_INT(at, line);
}

static void check_model(const zoo_model *z, const char *stem, int size, const char *on)
{
    char key[96];
    double want[IMAGES * CLASSES], loss;
    float logits[IMAGES * CLASSES];
    err e = ERR_INIT;
    zoo_options o = {.no_dropout = true};
    CHECK_OK(zoo_stem_parse(stem, &o.stem, &e), e);
    snprintf(key, sizeof key, "%s %s logits", z->name, stem);
    if (golden_read("zoo", key, want, IMAGES * CLASSES) != IMAGES * CLASSES)
        return; /* the golden file leaves vgg's large stem out; parameter_counts needs all */
    engine *m = NULL;
    engine_config c = {.build = z->build,
                       .user = &o,
                       .input = {3, 3, size, size},
                       .outputs = CLASSES,
                       .batch = IMAGES,
                       .backend = on,
                       .optim = {.kind = OPTIM_SGD}};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    golden_fill(m, sqrt(6));
    golden_batch b = {0};
    engine_result r;
    golden_draw(&b, 0, IMAGES, c.input, CLASSES);
    CHECK_OK(engine_infer(m, &b.b, logits, &e), e);
    check_row(key, logits, want, IMAGES * CLASSES, 1e-4);
    CHECK_OK(engine_gradients(m, &b.b, &r, &e), e);
    snprintf(key, sizeof key, "%s %s loss", z->name, stem);
    golden_line("zoo", key, &loss, 1);
    /* Batch norm over two images of few pixels magnifies rounding: without fused products the loss of
     * resnet50 was seen 1.2e-4 away. */
    CHECK_NEAR(r.loss, loss, (on ? 1e-5 : 3e-4) * loss);
    size_t count;
    snprintf(key, sizeof key, "%s %s grads", z->name, stem);
    check_norms(key, m, engine_grads(m, &count, &e), VAR_PARAM, on ? 1e-5 : 2e-2);
    snprintf(key, sizeof key, "%s %s buffers", z->name, stem);
    check_norms(key, m, engine_floats(m, &e), VAR_BUFFER, 1e-4);
    free(b.x);
    engine_free(m);
}

static void check_named(const char *name, const char *on)
{
    err e = ERR_INIT;
    const zoo_model *z = zoo_find(name, &e);
    CHECK(z);
    if (!on || strncmp(name, "vgg", 3) != 0)
        check_model(z, "imagenet", 64, on);
    check_model(z, "cifar", 32, on);
    printf("%s: as torchvision's\n", name);
}

static const char *const torchvisions[] = {
    "resnet18", "resnet50", "vgg11_bn", "squeezenet1_1", "mobilenet_v3_small", "densenet121",
#ifndef __SANITIZE_ADDRESS__ /* which would see the layers of resnet18 and vgg11_bn again */
    "resnet34", "vgg11",
#endif
};

TEST_LIMIT(models_compute_what_torchvisions_do, 120)
{
    for (size_t i = 0; i < sizeof torchvisions / sizeof *torchvisions; i++)
        check_named(torchvisions[i], NULL);
}

/* The reference is slow: the models with a layer or a shape of their own. */
TEST_LIMIT(models_compute_what_torchvisions_do_on_the_reference, 300)
{
    err e = ERR_INIT;
    check_model(zoo_find("resnet18", &e), "imagenet", 64, "reference");
    check_model(zoo_find("squeezenet1_1", &e), "imagenet", 64, "reference");
    check_model(zoo_find("mobilenet_v3_small", &e), "cifar", 32, "reference");
    check_model(zoo_find("densenet121", &e), "imagenet", 64, "reference");
}
