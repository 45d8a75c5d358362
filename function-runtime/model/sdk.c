/* sdk.c: the names of kubeml.h, as a thin layer over the engine's graph; see kubeml.h and sdk.h. */
#include "sdk.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/zoo/zoo.h"

struct kml_graph {
    graph *g;
    int classes;
};

static kml_tensor tensor(int id)
{
    return (kml_tensor){id};
}

/* ---- graph --------------------------------------------------------------------------------- */

int kml_classes(const kml_graph *g)
{
    return g->classes;
}

int kml_channels(const kml_graph *g, kml_tensor x)
{
    return graph_shape(g->g, x.id).c;
}

int kml_height(const kml_graph *g, kml_tensor x)
{
    return graph_shape(g->g, x.id).h;
}

int kml_width(const kml_graph *g, kml_tensor x)
{
    return graph_shape(g->g, x.id).w;
}

kml_tensor kml_fail(kml_graph *g, const char *fmt, ...)
{
    char message[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return tensor(graph_fail(g->g, ERR_INVALID, "%s", message));
}

kml_tensor kml_conv2d_with(kml_graph *g, kml_tensor x, kml_conv2d_options o)
{
    return tensor(
        graph_conv2d(g->g, x.id,
                     (conv2d_options){.name = o.name,
                                      .filters = o.filters,
                                      .kernel = o.kernel,
                                      .kernel_h = o.kernel_h,
                                      .kernel_w = o.kernel_w,
                                      .stride = o.stride,
                                      .stride_h = o.stride_h,
                                      .stride_w = o.stride_w,
                                      .padding = o.padding,
                                      .padding_h = o.padding_h,
                                      .padding_w = o.padding_w,
                                      .dilation = o.dilation,
                                      .groups = o.groups,
                                      .no_bias = o.no_bias,
                                      .weights = o.he ? WEIGHTS_HE_FAN_OUT : WEIGHTS_DEFAULT}));
}

kml_tensor kml_linear_with(kml_graph *g, kml_tensor x, int features, kml_linear_options o)
{
    return tensor(
        graph_linear(g->g, x.id, features, (linear_options){.name = o.name, .no_bias = o.no_bias}));
}

kml_tensor kml_batch_norm2d_with(kml_graph *g, kml_tensor x, kml_batch_norm_options o)
{
    return tensor(graph_batch_norm(
        g->g, x.id, (batch_norm_options){.name = o.name, .eps = o.eps, .momentum = o.momentum}));
}

kml_tensor kml_group_norm_with(kml_graph *g, kml_tensor x, int groups, kml_group_norm_options o)
{
    return tensor(
        graph_group_norm(g->g, x.id, groups, (group_norm_options){.name = o.name, .eps = o.eps}));
}

#define ACTIVATION(name, kind)                                                                     \
    kml_tensor kml_##name(kml_graph *g, kml_tensor x)                                              \
    {                                                                                              \
        return tensor(graph_activation(g->g, x.id, kind, 0));                                      \
    }
ACTIVATION(relu, ACT_RELU)
ACTIVATION(relu6, ACT_RELU6)
ACTIVATION(hardsigmoid, ACT_HARDSIGMOID)
ACTIVATION(hardswish, ACT_HARDSWISH)
ACTIVATION(sigmoid, ACT_SIGMOID)
ACTIVATION(tanh, ACT_TANH)
ACTIVATION(gelu, ACT_GELU)
ACTIVATION(silu, ACT_SILU)

kml_tensor kml_leaky_relu(kml_graph *g, kml_tensor x, double slope)
{
    return tensor(graph_activation(g->g, x.id, ACT_LEAKY_RELU, slope));
}

static pool_options pool(kml_pool_options o)
{
    return (pool_options){.name = o.name,
                          .kernel = o.kernel,
                          .kernel_h = o.kernel_h,
                          .kernel_w = o.kernel_w,
                          .stride = o.stride,
                          .stride_h = o.stride_h,
                          .stride_w = o.stride_w,
                          .padding = o.padding,
                          .padding_h = o.padding_h,
                          .padding_w = o.padding_w,
                          .ceil_mode = o.ceil_mode,
                          .exclude_pad = o.exclude_padding};
}

kml_tensor kml_max_pool2d_with(kml_graph *g, kml_tensor x, kml_pool_options o)
{
    return tensor(graph_max_pool2d(g->g, x.id, pool(o)));
}

kml_tensor kml_avg_pool2d_with(kml_graph *g, kml_tensor x, kml_pool_options o)
{
    return tensor(graph_avg_pool2d(g->g, x.id, pool(o)));
}

kml_tensor kml_adaptive_avg_pool2d(kml_graph *g, kml_tensor x, int height, int width)
{
    return tensor(graph_adaptive_avg_pool2d(g->g, x.id, height, width));
}

kml_tensor kml_global_avg_pool2d(kml_graph *g, kml_tensor x)
{
    return kml_adaptive_avg_pool2d(g, x, 1, 1);
}

kml_tensor kml_adaptive_max_pool2d(kml_graph *g, kml_tensor x, int height, int width)
{
    return tensor(graph_adaptive_max_pool2d(g->g, x.id, height, width));
}

kml_tensor kml_global_max_pool2d(kml_graph *g, kml_tensor x)
{
    return kml_adaptive_max_pool2d(g, x, 1, 1);
}

kml_tensor kml_add(kml_graph *g, kml_tensor a, kml_tensor b)
{
    return tensor(graph_add(g->g, a.id, b.id));
}

kml_tensor kml_mul(kml_graph *g, kml_tensor a, kml_tensor b)
{
    return tensor(graph_mul(g->g, a.id, b.id));
}

kml_tensor kml_concat_all(kml_graph *g, const kml_tensor *x, size_t count)
{
    int ids[GRAPH_INPUTS_MAX] = {0};
    for (size_t i = 0; i < count && i < GRAPH_INPUTS_MAX; i++)
        ids[i] = x[i].id;
    return tensor(
        graph_concat(g->g, ids, count > GRAPH_INPUTS_MAX ? GRAPH_INPUTS_MAX + 1 : (int)count));
}

kml_tensor kml_flatten(kml_graph *g, kml_tensor x)
{
    return tensor(graph_flatten(g->g, x.id));
}

kml_tensor kml_dropout(kml_graph *g, kml_tensor x, double p)
{
    return tensor(graph_dropout(g->g, x.id, p));
}

kml_tensor kml_pad_channels(kml_graph *g, kml_tensor x, int before, int after)
{
    return tensor(graph_pad_channels(g->g, x.id, before, after));
}

kml_tensor kml_zoo(kml_graph *g, kml_tensor x, const char *name, int outputs)
{
    err e = ERR_INIT;
    zoo_options o = {0};
    const zoo_model *z = zoo_parse(name ? name : "", &o, &e);
    if (!z)
        return tensor(graph_fail(g->g, e.code, "%s", e.message));
    for (const char *at = strchr(name, ','); at; at = strchr(at + 1, ','))
        if (strncmp(at, ",stem=", 6) != 0)
            return tensor(graph_fail(g->g, ERR_INVALID,
                                     "kml_zoo(\"%.100s\"): flip, crop and scale are "
                                     "KUBEML_FUNCTION's .transform = kml_transform(...)",
                                     name));
    return tensor(z->build(g->g, x.id, outputs, &o));
}

/* ---- the function -------------------------------------------------------------------------- */

static optim optim_of(const kml_optimizer *o)
{
    static const optim_kind kinds[] = {
        [KML_SGD] = OPTIM_SGD, [KML_ADAM] = OPTIM_ADAM, [KML_ADAMW] = OPTIM_ADAMW};
    optim to = optim_default(kinds[o->kind]);
    to.momentum = o->momentum;
    to.dampening = o->dampening;
    to.nesterov = o->nesterov;
    if (o->weight_decay != 0)
        to.weight_decay = o->kind == KML_ADAMW && o->weight_decay < 0 ? 0 : o->weight_decay;
    if (o->beta1 != 0)
        to.beta1 = o->beta1;
    if (o->beta2 != 0)
        to.beta2 = o->beta2;
    if (o->eps != 0)
        to.eps = o->eps;
    return to;
}

schedule sdk_schedule(const kml_function *f, int epochs)
{
    static const schedule_kind kinds[] = {[KML_CONSTANT] = SCHEDULE_CONSTANT,
                                          [KML_STEP] = SCHEDULE_STEP,
                                          [KML_MILESTONES] = SCHEDULE_MILESTONES,
                                          [KML_COSINE] = SCHEDULE_COSINE,
                                          [KML_PLATEAU] = SCHEDULE_PLATEAU};
    const kml_schedule *s = &f->schedule;
    schedule to = {.kind = kinds[s->kind],
                   .every = s->every,
                   .gamma = s->gamma,
                   .epochs = s->epochs ? s->epochs : epochs - s->warmup_epochs,
                   .min_lr = s->min_lr,
                   .per_step = s->per_step,
                   .patience = s->patience == 0  ? 10
                               : s->patience < 0 ? 0
                                                 : s->patience,
                   .cooldown = s->cooldown,
                   .threshold = s->threshold,
                   .warmup_epochs = s->warmup_epochs};
    if (to.epochs < 1 && !s->epochs)
        to.epochs = 1; /* a job shorter than its warm-up */
    for (int i = 0; i < KML_MILESTONES_MAX; i++) {
        to.milestones[i] = s->at[i];
        to.milestone_count = s->at[i] != 0 ? i + 1 : to.milestone_count;
    }
    return to;
}

/* What a kind does not have is passed over. `kinds` has a bit for each that has it. */
typedef struct option {
    const char *name;
    bool given;
    unsigned kinds;
} option;

static int check_given(const char *kind, unsigned bit, const option *options, size_t count, err *e)
{
    for (size_t i = 0; i < count; i++)
        if (options[i].given && !(options[i].kinds & bit))
            return err_set(e, ERR_INVALID, "%s has no .%s", kind, options[i].name);
    return 0;
}

static int check_optimizer(const kml_optimizer *o, err *e)
{
    static const char *const names[] = {
        [KML_SGD] = "kml_sgd", [KML_ADAM] = "kml_adam", [KML_ADAMW] = "kml_adamw"};
    const unsigned sgd = 1u << KML_SGD, adam = 1u << KML_ADAM | 1u << KML_ADAMW;
    const option options[] = {
        {"momentum", o->momentum != 0, sgd}, {"dampening", o->dampening != 0, sgd},
        {"nesterov", o->nesterov, sgd},      {"beta1", o->beta1 != 0, adam},
        {"beta2", o->beta2 != 0, adam},      {"eps", o->eps != 0, adam}};
    return check_given(names[o->kind], 1u << o->kind, options, sizeof options / sizeof *options, e);
}

static int check_schedule(const kml_schedule *s, err *e)
{
    static const char *const names[] = {[KML_CONSTANT] = "kml_constant",
                                        [KML_STEP] = "kml_step_lr",
                                        [KML_MILESTONES] = "kml_milestones",
                                        [KML_COSINE] = "kml_cosine",
                                        [KML_PLATEAU] = "kml_plateau"};
    const unsigned step = 1u << KML_STEP, milestones = 1u << KML_MILESTONES,
                   cosine = 1u << KML_COSINE, plateau = 1u << KML_PLATEAU;
    bool at = false;
    for (int i = 0; i < KML_MILESTONES_MAX; i++)
        at |= s->at[i] != 0;
    const option options[] = {{"every", s->every != 0, step},
                              {"at", at, milestones},
                              {"gamma", s->gamma != 0, step | milestones | plateau},
                              {"epochs", s->epochs != 0, cosine},
                              {"per_step", s->per_step, cosine},
                              {"min_lr", s->min_lr != 0, cosine | plateau},
                              {"patience", s->patience != 0, plateau},
                              {"cooldown", s->cooldown != 0, plateau},
                              {"threshold", s->threshold != 0, plateau}};
    return check_given(names[s->kind], 1u << s->kind, options, sizeof options / sizeof *options, e);
}

static int check_transform(const kml_transform *t, err *e)
{
    if (t->crop < 0)
        return err_set(e, ERR_INVALID, "transform: a crop of %d is not possible", t->crop);
    for (int i = 0; i < KML_CHANNELS_MAX; i++) {
        if (!isfinite(t->mean[i]) || !isfinite(t->std[i]) || t->std[i] < 0)
            return err_set(e, ERR_INVALID, "transform: mean %g and deviation %g of channel %d",
                           (double)t->mean[i], (double)t->std[i], i);
        if (t->std[i] == 0 && (t->mean[i] != 0 || (i + 1 < KML_CHANNELS_MAX && t->std[i + 1] > 0)))
            return err_set(e, ERR_INVALID, "transform: channel %d has no deviation (.std)", i);
    }
    return 0;
}

int sdk_check(const kml_function *f, err *e)
{
    if (f->abi != KUBEML_ABI || f->size != sizeof *f)
        return err_set(
            e, ERR_UNSUPPORTED,
            "the function was built for SDK ABI %u (%u bytes), this is ABI %d (%zu bytes); "
            "create it anew",
            f->abi, f->size, KUBEML_ABI, sizeof *f);
    if (!f->model)
        return err_set(e, ERR_INVALID, "KUBEML_FUNCTION has no .model");
    if ((unsigned)f->optimizer.kind > KML_ADAMW)
        return err_set(e, ERR_INVALID, "optimizer %d does not exist", (int)f->optimizer.kind);
    if ((unsigned)f->schedule.kind > KML_PLATEAU)
        return err_set(e, ERR_INVALID, "schedule %d does not exist", (int)f->schedule.kind);
    if ((unsigned)f->loss > KML_MSE)
        return err_set(e, ERR_INVALID, "loss %d does not exist", (int)f->loss);
    if (!(f->lr >= 0 && isfinite(f->lr)))
        return err_set(e, ERR_INVALID, "learning rate %g is negative or not finite", f->lr);
    optim o = optim_of(&f->optimizer);
    schedule s = sdk_schedule(f, 1);
    return optim_check(&o, e) || schedule_check(&s, e) || check_transform(&f->transform, e) ? -1
                                                                                            : 0;
}

int sdk_check_options(const kml_function *f, err *e)
{
    if (f->transform.standardise && f->transform.std[0] > 0)
        return err_set(e, ERR_INVALID,
                       "transform: .standardise and .std exclude each other: the dataset's own "
                       "deviations, or these");
    return check_optimizer(&f->optimizer, e) || check_schedule(&f->schedule, e) ? -1 : 0;
}

int sdk_build(graph *g, int x, int outputs, void *user)
{
    const kml_function *f = user;
    kml_graph view = {.g = g, .classes = outputs};
    return f->model(&view, tensor(x)).id;
}

void sdk_config(const kml_function *f, engine_config *c)
{
    union {
        const kml_function *in;
        void *out;
    } user = {.in = f}; /* sdk_build only reads it */
    c->build = sdk_build;
    c->user = user.out;
    c->loss = f->loss == KML_MSE ? LOSS_MSE : LOSS_CROSS_ENTROPY;
    c->optim = optim_of(&f->optimizer);
}

/* ---- a step -------------------------------------------------------------------------------- */

struct kml_step {
    engine *m;
    const engine_batch *b;
    double lr;
    engine_result *r;
    err *e;
    bool computed, failed; /* has a loss; has its error */
};

static int step_failed(kml_step *s)
{
    s->failed = true;
    return -1;
}

int kml_gradients(kml_step *s)
{
    if (s->failed || engine_gradients(s->m, s->b, s->r, s->e))
        return step_failed(s);
    s->computed = true;
    return 0;
}

/* Those of the batch before would lie there, or of none in a function that replaces another: the
 * job would end with other weights where one was killed. */
static int need_gradients(kml_step *s)
{
    if (s->failed || s->computed)
        return s->failed ? -1 : 0;
    err_set(s->e, ERR_INVALID,
            "kml_gradients(s) comes first: there are no gradients of this batch yet");
    return step_failed(s);
}

int kml_update(kml_step *s, double lr)
{
    return need_gradients(s) || engine_update(s->m, lr, s->e) ? step_failed(s) : 0;
}

double kml_batch_loss(const kml_step *s)
{
    return s->r->loss;
}

double kml_learning_rate(const kml_step *s)
{
    return s->lr;
}

unsigned kml_epoch(const kml_step *s)
{
    return s->b->epoch;
}

int kml_batch_size(const kml_step *s)
{
    return s->b->n;
}

float *kml_gradient_values(kml_step *s, size_t *count)
{
    *count = 0;
    float *grads = need_gradients(s) ? NULL : engine_grads(s->m, count, s->e);
    if (!grads)
        step_failed(s);
    return grads;
}

double kml_clip_gradient_norm(kml_step *s, double max)
{
    size_t count;
    float *grads = kml_gradient_values(s, &count);
    if (!grads)
        return NAN;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)grads[i] * (double)grads[i];
    double norm = sqrt(sum), scale = max / (norm + 1e-6);
    for (size_t i = 0; scale < 1 && i < count; i++)
        grads[i] = (float)((double)grads[i] * scale);
    return norm;
}

int kml_step_fail(kml_step *s, const char *fmt, ...)
{
    if (s->failed)
        return -1;
    char message[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    err_set(s->e, ERR_INVALID, "%s", message);
    return step_failed(s);
}

int sdk_step(const kml_function *f, engine *m, const engine_batch *b, double lr, engine_result *r,
             err *e)
{
    if (!f->step)
        return engine_train(m, b, lr, r, e);
    err own = ERR_INIT;
    kml_step s = {.m = m, .b = b, .lr = lr, .r = r, .e = &own};
    *r = (engine_result){.n = b->n};
    int status = f->step(&s);
    if (s.failed)
        return err_set(e, own.code, "%s", own.message);
    if (status != 0)
        return err_set(e, ERR_INVALID, "the function's own step gave up (%d)", status);
    if (!s.computed)
        return err_set(e, ERR_INVALID, "the function's own step never called kml_gradients");
    return 0;
}
