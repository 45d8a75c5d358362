/* program.c: see program.h. */
#include "program.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/contract/request.h"
#include "kernels/zoo/zoo.h"
#include "sdk.h"

struct program {
    char name[ZOO_TEXT_BYTES];
    const kml_function *function; /* of an object, or the zoo's below */
    const zoo_model *zoo;         /* NULL: an object */
    zoo_options zoo_options;
    kml_function zoo_function;
    transform transform;
    int outputs; /* the outputs that the model is asked for; 0 until the dataset is known */
};

static void read_transform(const kml_transform *from, transform *to)
{
    *to = (transform){.flip = from->flip, .crop = from->crop, .standardise = from->standardise,
                        .min_max = from->min_max};
    while (to->channels < KML_CHANNELS_MAX && from->std[to->channels] > 0)
        to->channels++;
    memcpy(to->mean, from->mean, sizeof to->mean);
    memcpy(to->std, from->std, sizeof to->std);
    to->standardise |= to->channels > 0;
}

static int load_object(program *p, const char *path, err *e)
{
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return err_set(e, ERR_UNSUPPORTED, "the function cannot be loaded: %.200s", dlerror());
    p->function = dlsym(object, SDK_SYMBOL);
    if (!p->function)
        return err_set(e, ERR_INVALID, "the function has no KUBEML_FUNCTION(...)");
    return sdk_check(p->function, e);
}

int program_open_object(const char *path, program **out, err *e)
{
    program *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the program");
    snprintf(p->name, sizeof p->name, "function");
    if (load_object(p, path, e) != 0) {
        free(p);
        return -1;
    }
    read_transform(&p->function->transform, &p->transform);
    *out = p;
    return 0;
}

int program_open_fd(int fd, program **out, err *e)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return program_open_object(path, out, e);
}

/* A model of the zoo trains with default settings. `kubeml zoo list --help` and
 * docs/guides/functions.md describe them, and the settings that `text` can change. */
int program_open_zoo(const char *text, program **out, err *e)
{
    zoo_options o = {0};
    const zoo_model *z = zoo_parse(text, &o, e);
    if (!z)
        return -1;
    program *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the program");
    p->zoo = z;
    p->zoo_options = o;
    p->zoo_function =
        (kml_function){.abi = KUBEML_ABI,
                       .size = sizeof(kml_function),
                       .optimizer = kml_sgd(.momentum = 0.9, .weight_decay = 1e-4),
                       .transform = kml_transform(.flip = o.flip, .crop = o.crop,
                                                  .standardise = o.scale == ZOO_SCALE_STANDARDISE,
                                                  .min_max = o.scale == ZOO_SCALE_MIN_MAX),
                       .lr = REQUEST_LR};
    p->function = &p->zoo_function;
    read_transform(&p->function->transform, &p->transform);
    snprintf(p->name, sizeof p->name, "%s", text);
    *out = p;
    return 0;
}

void program_close(program *p)
{
    free(p);
}

int program_check_options(const program *p, err *e)
{
    return sdk_check_options(p->function, e);
}

void program_warn(const program *p)
{
    err e = ERR_INIT;
    if (program_check_options(p, &e) != 0)
        log_warn("passing over an option of the code: %s", e.message);
}

const char *program_name(const program *p)
{
    return p->name;
}

const transform *program_transform(const program *p)
{
    return &p->transform;
}

/* Builds the graph. The model may have more outputs than the dataset has classes; the trainer
 * checks that it does not have fewer. So the model gets a number of outputs, but the engine does
 * not. */
static int build(graph *g, int x, int outputs, void *user)
{
    program *p = user;
    (void)outputs;
    if (p->zoo)
        return p->zoo->build(g, x, p->outputs, &p->zoo_options);
    union {
        const kml_function *in;
        void *out;
    } function = {.in = p->function}; /* sdk_build only reads it */
    return sdk_build(g, x, p->outputs, function.out);
}

void program_config(program *p, const dataset_info *data, engine_config *out)
{
    sdk_config(p->function, out);
    p->outputs = (int)(data->classes ? data->classes : data->targets);
    out->build = build;
    out->user = p;
    out->outputs = 0;
    if (p->zoo && data->targets)
        out->loss = LOSS_MSE;
}

double program_default_lr(const program *p)
{
    return p->function->lr > 0 ? p->function->lr : REQUEST_LR;
}

bool program_needs_history(const program *p)
{
    return p->function->schedule.kind == KML_PLATEAU;
}

double program_lr(const program *p, double lr, int epochs, const schedule_point *at)
{
    schedule s = sdk_schedule(p->function, epochs);
    return schedule_lr(&s, lr, at);
}

bool program_has_step(const program *p)
{
    return p->function->step != NULL;
}

int program_step(const program *p, engine *m, const engine_batch *b, double lr, engine_result *r,
                 err *e)
{
    return sdk_step(p->function, m, b, lr, r, e);
}
