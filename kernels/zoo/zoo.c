/* zoo.c: the table of models and the search in it; see zoo.h. */
#include "zoo.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zoo_models.h"

static const zoo_model models[] = {
    {"lenet5", "LeNet-5 with ReLU and max pooling", zoo_lenet5, 1, 28, 28, 10, 61706, false},
    {"mlp", "multi-layer perceptron, 256 and 128 hidden units", zoo_mlp, 1, 28, 28, 10, 235146,
     false},
    {"resnet18", "ResNet-18 (torchvision)", zoo_resnet18, 3, 224, 224, 1000, 11689512, true},
    {"resnet34", "ResNet-34 (torchvision)", zoo_resnet34, 3, 224, 224, 1000, 21797672, true},
    {"resnet50", "ResNet-50 (torchvision)", zoo_resnet50, 3, 224, 224, 1000, 25557032, true},
    {"vgg11", "VGG-11 (torchvision)", zoo_vgg11, 3, 224, 224, 1000, 132863336, true},
    {"vgg11_bn", "VGG-11 with batch norm (torchvision)", zoo_vgg11_bn, 3, 224, 224, 1000, 132868840,
     true},
    {"squeezenet1_1", "SqueezeNet 1.1 (torchvision)", zoo_squeezenet1_1, 3, 224, 224, 1000, 1235496,
     true},
    {"mobilenet_v3_small", "MobileNetV3-Small (torchvision)", zoo_mobilenet_v3_small, 3, 224, 224,
     1000, 2542856, true},
    {"densenet121", "DenseNet-121 (torchvision)", zoo_densenet121, 3, 224, 224, 1000, 7978856,
     true},
    {"resnet20", "ResNet-20 for CIFAR (He et al. 2015)", zoo_resnet20, 3, 32, 32, 10, 269722,
     false},
    {"resnet32", "ResNet-32 for CIFAR (He et al. 2015)", zoo_resnet32, 3, 32, 32, 10, 464154,
     false},
    {"resnet56", "ResNet-56 for CIFAR (He et al. 2015)", zoo_resnet56, 3, 32, 32, 10, 853018,
     false},
};

const zoo_model *zoo_at(int index)
{
    return index >= 0 && (size_t)index < sizeof models / sizeof *models ? &models[index] : NULL;
}

zoo_label zoo_name(const char *fmt, ...)
{
    zoo_label l;
    va_list args;
    va_start(args, fmt);
    vsnprintf(l.text, sizeof l.text, fmt, args);
    va_end(args);
    return l;
}

bool zoo_small_images(const graph *g, int x, const void *user)
{
    const zoo_options *o = user;
    shape s = graph_shape(g, x);
    if (o && o->stem != ZOO_STEM_AUTO)
        return o->stem == ZOO_STEM_CIFAR;
    return s.h < 64 && s.w < 64;
}

int zoo_dropout(graph *g, int x, double p, const void *user)
{
    const zoo_options *o = user;
    return o && o->no_dropout ? x : graph_dropout(g, x, p);
}

enum { NAME_MAX_COMPARED = 48 };

/* Levenshtein's distance between the first la and lb letters, at most NAME_MAX_COMPARED each. */
static int distance(const char *a, int la, const char *b, int lb)
{
    int row[NAME_MAX_COMPARED + 1];
    for (int j = 0; j <= lb; j++)
        row[j] = j;
    for (int i = 1; i <= la; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int replace = corner + (a[i - 1] != b[j - 1]), best = row[j] + 1;
            corner = row[j];
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = replace < best ? replace : best;
        }
    }
    return row[lb];
}

/* The distance to the whole name, or one more than the distance to its beginning: "densnet" is near
 * "densenet121". */
static int remoteness(const char *wanted, const char *name)
{
    int lw = (int)strnlen(wanted, NAME_MAX_COMPARED), ln = (int)strnlen(name, NAME_MAX_COMPARED);
    int whole = distance(wanted, lw, name, ln);
    int beginning = 1 + distance(wanted, lw, name, lw + 1 < ln ? lw + 1 : ln);
    return whole < beginning ? whole : beginning;
}

/* Finds the nearest and the second nearest name. */
static void nearest(const char *name, const char *found[2])
{
    int best[2] = {1 << 20, 1 << 20};
    found[0] = found[1] = NULL;
    for (int i = 0; zoo_at(i); i++) {
        int d = remoteness(name, models[i].name);
        if (d < best[0]) {
            best[1] = best[0], found[1] = found[0];
            best[0] = d, found[0] = models[i].name;
        } else if (d < best[1]) {
            best[1] = d, found[1] = models[i].name;
        }
    }
}

const zoo_model *zoo_find(const char *name, err *e)
{
    for (int i = 0; zoo_at(i); i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    const char *near[2];
    nearest(name, near);
    err_set(e, ERR_NOT_FOUND,
            "no model in the zoo is named '%.48s'; the nearest are '%s' and '%s' (see: kubeml zoo "
            "list)",
            name, near[0], near[1]);
    return NULL;
}

/* The index of `text` in names, which end in NULL; -1: absent. */
static int choose(const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

int zoo_stem_parse(const char *text, zoo_stem *out, err *e)
{
    int i = choose(text, (const char *const[]){"auto", "cifar", "imagenet", NULL});
    if (i < 0)
        return err_set(e, ERR_INVALID, "stem '%.40s' is neither cifar, imagenet nor auto", text);
    *out = (zoo_stem)i;
    return 0;
}

static int take_stem(const zoo_model *z, const char *text, zoo_options *o, err *e)
{
    if (zoo_stem_parse(text, &o->stem, e) != 0)
        return -1;
    if (o->stem != ZOO_STEM_AUTO && !z->stems)
        return err_set(e, ERR_INVALID, "%s has one stem alone, for images of any size", z->name);
    return 0;
}

static int take_flip(const zoo_model *z, const char *text, zoo_options *o, err *e)
{
    (void)z;
    int i = choose(text, (const char *const[]){"off", "on", NULL});
    if (i < 0)
        return err_set(e, ERR_INVALID, "flip '%.40s' is neither on nor off", text);
    o->flip = i == 1;
    return 0;
}

static int take_crop(const zoo_model *z, const char *text, zoo_options *o, err *e)
{
    (void)z;
    char *end;
    long n = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || n > ZOO_CROP_MAX)
        return err_set(e, ERR_INVALID, "crop '%.40s' is not a number of pixels from 0 to %d", text,
                       ZOO_CROP_MAX);
    o->crop = (int)n;
    return 0;
}

static int take_scale(const zoo_model *z, const char *text, zoo_options *o, err *e)
{
    (void)z;
    int i = choose(text, (const char *const[]){"standardise", "min_max", "none", NULL});
    if (i < 0)
        return err_set(e, ERR_INVALID, "scale '%.40s' is neither standardise, min_max nor none",
                       text);
    o->scale = (zoo_scale)i;
    return 0;
}

/* Takes one "key=value" of a model's text; sets a bit of `seen` for its key. */
static int take_option(const zoo_model *z, const char *option, zoo_options *o, unsigned *seen,
                       err *e)
{
    static const struct {
        const char *key;
        int (*take)(const zoo_model *z, const char *text, zoo_options *o, err *e);
    } known[] = {
        {"stem=", take_stem}, {"flip=", take_flip}, {"crop=", take_crop}, {"scale=", take_scale}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t len = strlen(known[i].key);
        if (strncmp(option, known[i].key, len) != 0)
            continue;
        if (*seen & 1u << i)
            return err_set(e, ERR_INVALID, "model option '%.40s': %s is given twice", option,
                           known[i].key);
        *seen |= 1u << i;
        return known[i].take(z, option + len, o, e);
    }
    return err_set(e, ERR_INVALID,
                   "model option '%.40s' is unknown; known are stem=cifar|imagenet|auto, "
                   "flip=on|off, crop=PIXELS and scale=standardise|min_max|none",
                   option);
}

const zoo_model *zoo_parse(const char *text, zoo_options *o, err *e)
{
    char copy[ZOO_TEXT_BYTES];
    if (strlen(text) >= sizeof copy) {
        err_set(e, ERR_INVALID, "model '%.48s...' is longer than %d characters", text,
                ZOO_TEXT_BYTES - 1);
        return NULL;
    }
    snprintf(copy, sizeof copy, "%s", text);
    char *rest = strchr(copy, ',');
    unsigned seen = 0;
    if (rest)
        *rest++ = '\0';
    const zoo_model *z = zoo_find(copy, e);
    for (char *option = rest; z && option; option = rest) {
        rest = strchr(option, ',');
        if (rest)
            *rest++ = '\0';
        if (take_option(z, option, o, &seen, e) != 0)
            return NULL;
    }
    return z;
}
