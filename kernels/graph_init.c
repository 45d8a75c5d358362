/* graph_init.c: where a model's numbers come from: the first weights, and which ones dropout keeps.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "graph.h"
#include "rng.h"

/* A thread is worth its start from a millisecond of draws on. */
enum { INIT_PARTS_MAX = 64, PART_FLOATS_MIN = 1 << 16 };

/* Box and Muller 1958: two uniforms to one normal deviate (the second is not used: draws stay
 * aligned with the elements). */
static double normal(rng *r)
{
    double u = ((double)rng_u32(r) + 1) * 0x1p-32, v = (double)rng_u32(r) * 0x1p-32;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static void fill(const graph_var *v, rng *r, size_t count, float *to)
{
    for (size_t i = 0; i < count; i++) {
        switch (v->init) {
        case INIT_CONSTANT:
            to[i] = (float)v->init_a;
            break;
        case INIT_UNIFORM:
            to[i] = (float)(v->init_a * (2.0 * (double)rng_uniform(r) - 1.0));
            break;
        case INIT_NORMAL:
            to[i] = (float)(v->init_a * normal(r));
            break;
        }
    }
}

/* What one thread fills: a part of every variable. */
typedef struct part {
    const graph *g;
    uint64_t seed;
    float *params, *buffers;
    size_t index, parts;
} part;

/* A draw is four words, and a normal deviate takes two of them: a part begins with a draw. */
static size_t begin_of(size_t count, size_t index, size_t parts)
{
    return index == parts ? count : count / 4 * index / parts * 4;
}

static void *fill_part(void *of)
{
    const part *p = of;
    for (int i = 0; i < p->g->var_count; i++) {
        const graph_var *v = &p->g->vars[i];
        if (v->kind != VAR_PARAM && v->kind != VAR_BUFFER)
            continue;
        size_t from = begin_of(v->count, p->index, p->parts),
               to = begin_of(v->count, p->index + 1, p->parts);
        rng r;
        rng_init(&r, p->seed, RNG_INIT, (uint32_t)i, 0);
        rng_skip(&r, v->init == INIT_NORMAL ? from / 2 : from / 4);
        fill(v, &r, to - from, (v->kind == VAR_PARAM ? p->params : p->buffers) + v->offset + from);
    }
    return NULL;
}

/* A part without a thread of its own is filled by the caller's. */
static void fill_all(part *all, size_t parts)
{
    pthread_t threads[INIT_PARTS_MAX];
    bool started[INIT_PARTS_MAX] = {false};
    for (size_t i = 1; i < parts; i++)
        started[i] = pthread_create(&threads[i], NULL, fill_part, &all[i]) == 0;
    for (size_t i = 0; i < parts; i++)
        if (!started[i])
            fill_part(&all[i]);
    for (size_t i = 1; i < parts; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
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
    size_t parts = g->floats[VAR_PARAM] / PART_FLOATS_MIN + 1, most = (size_t)threads;
    parts = parts < most ? parts : most;
    parts = parts < 1 ? 1 : parts < INIT_PARTS_MAX ? parts : INIT_PARTS_MAX;
    part all[INIT_PARTS_MAX];
    for (size_t i = 0; i < parts; i++)
        all[i] = (part){g, seed, params, buffers, i, parts};
    fill_all(all, parts);
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
