/* graph_init.c: where a model's numbers come from: the first weights, and which ones dropout keeps.
 */
#include <math.h>
#include <string.h>

#include "graph.h"
#include "rng.h"

/* Box and Muller 1958: two uniforms to one normal deviate (the second is not used: draws stay
 * aligned with the elements). */
static double normal(rng *r)
{
    double u = ((double)rng_u32(r) + 1) * 0x1p-32, v = (double)rng_u32(r) * 0x1p-32;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static void fill(const graph_var *v, rng *r, float *to)
{
    for (size_t i = 0; i < v->count; i++) {
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

void graph_init_vars(const graph *g, uint64_t seed, float *params, float *buffers,
                     int64_t *counters)
{
    if (g->floats[VAR_PARAM])
        memset(params, 0, g->floats[VAR_PARAM] * sizeof *params);
    if (g->floats[VAR_BUFFER])
        memset(buffers, 0, g->floats[VAR_BUFFER] * sizeof *buffers);
    if (g->floats[VAR_COUNTER])
        memset(counters, 0, g->floats[VAR_COUNTER] * sizeof *counters);
    for (int i = 0; i < g->var_count; i++) {
        const graph_var *v = &g->vars[i];
        rng r;
        rng_init(&r, seed, RNG_INIT, (uint32_t)i, 0);
        if (v->kind == VAR_PARAM)
            fill(v, &r, params + v->offset);
        else if (v->kind == VAR_BUFFER)
            fill(v, &r, buffers + v->offset);
    }
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
