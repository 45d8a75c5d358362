/* bench_onednn.c: a chain of like convolutions on oneDNN, timed on request as bench_engine does its
 * "conv:" models; bench_onednn.py drives both.
 *
 *   bench_onednn CHANNELS:SIDE:KERNEL:LAYERS BATCH
 *
 * Reads "train K" or "infer K" from stdin, does K steps, and writes the seconds they took by the
 * wall clock and of CPU time; "choices" writes the library's version and the algorithms taken. A
 * layer has CHANNELS in and out on SIDE x SIDE, stride 1, its size kept. Everything is done in
 * oneDNN's favour: of the direct and Winograd algorithms each direction takes the faster, measured
 * at the start; weights lie in the form that it asks for, and no update brings them there. */
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

enum { LAYERS_MAX = 16, TIMED = 5 };

typedef enum direction { INFER, FORWARD, DATA, WEIGHTS, DIRECTIONS } direction;
static const char *const direction_names[] = {"infer", "forward", "data", "weights"};

static const struct {
    dnnl_alg_kind_t kind;
    const char *name;
} algorithms[] = {{dnnl_convolution_direct, "direct"}, {dnnl_convolution_winograd, "winograd"}};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

typedef struct conv {
    int channels, side, kernel, layers, batch;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_t activations[LAYERS_MAX + 1], gradients[LAYERS_MAX + 1];
    dnnl_primitive_t chosen[DIRECTIONS];
    dnnl_memory_t weights[DIRECTIONS][LAYERS_MAX];
    const char *names[DIRECTIONS];
} conv;

static void must(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "bench_onednn: %s: oneDNN's status %d\n", what, (int)status);
    exit(1);
}

/* ---- the two versions of the API ------------------------------------------------------------- */

#if DNNL_VERSION_MAJOR < 3
typedef dnnl_memory_desc_t form;
typedef const dnnl_memory_desc_t *form_of;

static form make_form(const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    form f;
    must(dnnl_memory_desc_init_by_tag(&f, 4, dims, dnnl_f32, tag), "a memory's form");
    return f;
}

static bool make_plan(const conv *c, direction d, dnnl_alg_kind_t kind, const form *image,
                      const form *filter, dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    const dnnl_dims_t stride = {1, 1}, pad = {c->kernel / 2, c->kernel / 2};
    dnnl_convolution_desc_t plan;
    if (d == DATA)
        must(dnnl_convolution_backward_data_desc_init(&plan, kind, image, filter, image, stride,
                                                      pad, pad),
             "data");
    else if (d == WEIGHTS)
        must(dnnl_convolution_backward_weights_desc_init(&plan, kind, image, filter, NULL, image,
                                                         stride, pad, pad),
             "weights");
    else
        must(dnnl_convolution_forward_desc_init(
                 &plan, d == INFER ? dnnl_forward_inference : dnnl_forward_training, kind, image,
                 filter, NULL, image, stride, pad, pad),
             "forward");
    return dnnl_primitive_desc_create(out, &plan, NULL, c->engine, hint) == dnnl_success;
}
#else
typedef dnnl_memory_desc_t form;
typedef const_dnnl_memory_desc_t form_of;

static form make_form(const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    form f;
    must(dnnl_memory_desc_create_with_tag(&f, 4, dims, dnnl_f32, tag), "a memory's form");
    return f;
}

static bool make_plan(const conv *c, direction d, dnnl_alg_kind_t kind, const form *image,
                      const form *filter, dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    const dnnl_dims_t stride = {1, 1}, dilation = {0, 0}, pad = {c->kernel / 2, c->kernel / 2};
    dnnl_status_t status;
    if (d == DATA)
        status = dnnl_convolution_backward_data_primitive_desc_create(
            out, c->engine, kind, *image, *filter, *image, stride, dilation, pad, pad, hint, NULL);
    else if (d == WEIGHTS)
        status = dnnl_convolution_backward_weights_primitive_desc_create(
            out, c->engine, kind, *image, *filter, NULL, *image, stride, dilation, pad, pad, hint,
            NULL);
    else
        status = dnnl_convolution_forward_primitive_desc_create(
            out, c->engine, d == INFER ? dnnl_forward_inference : dnnl_forward_training, kind,
            *image, *filter, NULL, *image, stride, dilation, pad, pad, NULL);
    return status == dnnl_success;
}
#endif

/* ---- one direction --------------------------------------------------------------------------- */

static dnnl_memory_t make_memory(const conv *c, form_of f)
{
    dnnl_memory_t m;
    must(dnnl_memory_create(&m, f, c->engine, DNNL_MEMORY_ALLOCATE), "memory");
    return m;
}

/* Small numbers of both signs: neither denormal nor growing out of range along the chain. */
static void fill(dnnl_memory_t m, size_t bytes)
{
    void *at;
    must(dnnl_memory_map_data(m, &at), "map");
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)at)[i] = (float)((int)(i * 2654435761u >> 16 & 255) - 128) * 0x1p-12f;
    must(dnnl_memory_unmap_data(m, at), "unmap");
}

/* Through all layers once. */
static void run_layers(const conv *c, direction d, dnnl_primitive_t p, const dnnl_memory_t *weights)
{
    for (int i = 0; i < c->layers; i++) {
        const int at = d == DATA || d == WEIGHTS ? c->layers - 1 - i : i;
        const dnnl_memory_t in = c->activations[at], gradient = c->gradients[at + 1];
        const dnnl_exec_arg_t forward[] = {{DNNL_ARG_SRC, in},
                                           {DNNL_ARG_WEIGHTS, weights[at]},
                                           {DNNL_ARG_DST, c->activations[at + 1]}};
        const dnnl_exec_arg_t data[] = {{DNNL_ARG_DIFF_DST, gradient},
                                        {DNNL_ARG_WEIGHTS, weights[at]},
                                        {DNNL_ARG_DIFF_SRC, c->gradients[at]}};
        const dnnl_exec_arg_t update[] = {{DNNL_ARG_SRC, in},
                                          {DNNL_ARG_DIFF_DST, gradient},
                                          {DNNL_ARG_DIFF_WEIGHTS, weights[at]}};
        must(dnnl_primitive_execute(p, c->stream, 3,
                                    d == DATA      ? data
                                    : d == WEIGHTS ? update
                                                   : forward),
             "execute");
    }
    must(dnnl_stream_wait(c->stream), "wait");
}

/* One algorithm's primitive with weights of its form; false: oneDNN has none for this layer
 * here. */
static bool prepare(conv *c, direction d, dnnl_alg_kind_t kind, const form *image,
                    const form *filter, dnnl_primitive_t *out, dnnl_memory_t weights[LAYERS_MAX])
{
    dnnl_primitive_desc_t hint = NULL, plan;
    bool backward = d == DATA || d == WEIGHTS;
    if (backward && !make_plan(c, FORWARD, kind, image, filter, NULL, &hint))
        return false;
    bool found = make_plan(c, d, kind, image, filter, hint, &plan);
    if (found) {
        form_of f = dnnl_primitive_desc_query_md(
            plan, d == WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
        must(dnnl_primitive_create(out, plan), "primitive");
        for (int i = 0; i < c->layers; i++) {
            weights[i] = make_memory(c, f);
            fill(weights[i], dnnl_memory_desc_get_size(f));
        }
        must(dnnl_primitive_desc_destroy(plan), "destroy");
    }
    if (hint)
        must(dnnl_primitive_desc_destroy(hint), "destroy");
    return found;
}

static void choose(conv *c, direction d, const form *image, const form *filter)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < ALGORITHMS; i++) {
        dnnl_primitive_t p;
        dnnl_memory_t weights[LAYERS_MAX];
        if (!prepare(c, d, algorithms[i].kind, image, filter, &p, weights))
            continue;
        int64_t least = INT64_MAX;
        for (int t = 0; t < TIMED; t++) {
            int64_t begin = clock_monotonic_ns();
            run_layers(c, d, p, weights);
            int64_t took = clock_monotonic_ns() - begin;
            least = took < least ? took : least;
        }
        if (least < best) { /* what loses is left to the process' end */
            best = least;
            c->chosen[d] = p;
            c->names[d] = algorithms[i].name;
            memcpy(c->weights[d], weights, sizeof weights);
        }
    }
    if (best == INT64_MAX)
        must(dnnl_unimplemented, direction_names[d]);
}

static void set_up(conv *c)
{
    const dnnl_dims_t images = {c->batch, c->channels, c->side, c->side};
    const dnnl_dims_t filters = {c->channels, c->channels, c->kernel, c->kernel};
    const form any = make_form(images, dnnl_format_tag_any),
               filter = make_form(filters, dnnl_format_tag_any);
    dnnl_primitive_desc_t plan;
    must(dnnl_engine_create(&c->engine, dnnl_cpu, 0), "engine");
    must(dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags), "stream");
    /* Images lie as the direct convolution wants them; all layers and directions share that
     * form. */
    if (!make_plan(c, FORWARD, dnnl_convolution_direct, &any, &filter, NULL, &plan))
        must(dnnl_unimplemented, "forward");
    form_of f = dnnl_primitive_desc_query_md(plan, dnnl_query_src_md, 0);
    for (int i = 0; i <= c->layers; i++) {
        c->activations[i] = make_memory(c, f);
        c->gradients[i] = make_memory(c, f);
        fill(c->activations[i], dnnl_memory_desc_get_size(f));
        fill(c->gradients[i], dnnl_memory_desc_get_size(f));
    }
#if DNNL_VERSION_MAJOR < 3
    const form image = *f;
#else
    form image;
    must(dnnl_memory_desc_clone(&image, f), "form");
#endif
    for (direction d = 0; d < DIRECTIONS; d++)
        choose(c, d, &image, &filter);
}

/* ---- on request ------------------------------------------------------------------------------ */

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run(const conv *c, bool train, long steps)
{
    double cpu = cpu_seconds();
    int64_t begin = clock_monotonic_ns();
    for (long i = 0; i < steps; i++)
        for (direction d = train ? FORWARD : INFER; d <= (train ? WEIGHTS : INFER); d++)
            run_layers(c, d, c->chosen[d], c->weights[d]);
    printf("%.9f %.9f\n", (double)(clock_monotonic_ns() - begin) * 1e-9, cpu_seconds() - cpu);
}

static void serve(const conv *c)
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "choices", 7) == 0) {
            const dnnl_version_t *v = dnnl_version();
            printf("oneDNN %d.%d.%d:", v->major, v->minor, v->patch);
            for (direction d = 0; d < DIRECTIONS; d++)
                printf(" %s %s", direction_names[d], c->names[d]);
            printf("\n");
        } else {
            run(c, line[0] == 't', strtol(line + 6, NULL, 10));
        }
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    conv c = {0};
    if (argc != 3 ||
        sscanf(argv[1], "%d:%d:%d:%d", &c.channels, &c.side, &c.kernel, &c.layers) != 4 ||
        c.layers < 1 || c.layers > LAYERS_MAX || (c.batch = (int)strtol(argv[2], NULL, 10)) < 1) {
        fprintf(stderr, "usage: bench_onednn CHANNELS:SIDE:KERNEL:LAYERS BATCH\n");
        return 2;
    }
    set_up(&c);
    serve(&c);
    return 0;
}
