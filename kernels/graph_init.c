/* graph_init.c: a model's random numbers: the first weights, and which elements dropout keeps. */
#include <string.h>

#include "common/base/parallel.h"
#include "common/base/rng.h"
#include "graph.h"

/* A few milliseconds of draws: enough to pay for starting a thread. */
enum { PART_FLOATS = 1 << 16 };

static void fill_normal(const graph_var *v, rng *r, size_t count, float *to)
{
    for (size_t i = 0; i < count; i += 4) {
        double four[4];
        rng_normals(r, four);
        for (size_t j = 0; j < 4 && i + j < count; j++)
            to[i + j] = (float)(v->init_a * four[j]);
    }
}

static void fill(const graph_var *v, rng *r, size_t count, float *to)
{
    switch (v->init) {
    case INIT_CONSTANT:
        for (size_t i = 0; i < count; i++)
            to[i] = (float)v->init_a;
        break;
    case INIT_UNIFORM:
        for (size_t i = 0; i < count; i++)
            to[i] = (float)(v->init_a * (2.0 * (double)rng_uniform(r) - 1.0));
        break;
    case INIT_NORMAL: fill_normal(v, r, count, to); break;
    }
}

/* Draws all variables in `parts` parts. */
typedef struct drawing {
    const graph *g;
    uint64_t seed;
    float *params, *buffers;
    size_t parts;
} drawing;

/* Where a part begins: at a multiple of four, because one draw gives four elements. */
static size_t begin_of(size_t count, size_t part, size_t parts)
{
    return part == parts ? count : count / 4 * part / parts * 4;
}

/* Fills one part of every variable. */
static void fill_part(size_t part, void *of)
{
    const drawing *d = of;
    for (int i = 0; i < d->g->var_count; i++) {
        const graph_var *v = &d->g->vars[i];
        if (v->kind != VAR_PARAM && v->kind != VAR_BUFFER)
            continue;
        size_t from = begin_of(v->count, part, d->parts),
               to = begin_of(v->count, part + 1, d->parts);
        rng r;
        rng_init(&r, d->seed, RNG_INIT, (uint32_t)i, 0);
        rng_skip(&r, from / 4);
        fill(v, &r, to - from, (v->kind == VAR_PARAM ? d->params : d->buffers) + v->offset + from);
    }
}

void graph_init_vars(const graph *g, uint64_t seed, int threads, float *params, float *buffers,
                     int64_t *counters)
{
    if (g->floats[VAR_PARAM])
        memset(params, 0, g->floats[VAR_PARAM] * sizeof *params);
    if (g->floats[VAR_BUFFER])
        memset(buffers, 0, g->floats[VAR_BUFFER] * sizeof *buffers);
    if (g->floats[VAR_COUNTER])
        memset(counters, 0, g->floats[VAR_COUNTER] * sizeof *counters);
    drawing d = {g, seed, params, buffers, g->floats[VAR_PARAM] / PART_FLOATS + 1};
    parallel_for(d.parts, threads, fill_part, &d);
}

uint32_t graph_dropout_below(double p)
{
    return (uint32_t)(p * 0x1p32); /* p < 1: fits */
}

void graph_dropout_stream(uint64_t seed, uint32_t epoch, uint64_t sample, uint32_t layer,
                          uint32_t key[2], uint32_t counter[4])
{
    rng_counter(seed, RNG_DROPOUT, epoch, sample, layer << 24, key, counter);
}

unsigned graph_dropout_draw(uint64_t seed, uint32_t epoch, uint64_t sample, uint32_t layer,
                            uint32_t block, double p)
{
    uint32_t word[4], drop_below = graph_dropout_below(p);
    rng_draw(seed, RNG_DROPOUT, epoch, sample, layer << 24 | block, word);
    unsigned keep = 0;
    for (unsigned i = 0; i < 4; i++)
        keep |= (unsigned)(word[i] >= drop_below) << i;
    return keep;
}
