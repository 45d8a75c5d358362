/* cpu_weights.c: the work on layers' weights once a batch: packing weights and summing gradients.
 *
 * All threads share this work, because it does not shrink with the number of threads: each thread
 * adds a weight gradient of its own, and Winograd's layers have weights and gradients four times as
 * large as their parameters. */
#include <string.h>

#include "cpu_program.h"

/* Adds every thread's sums to the first thread's, in the threads' order: the same bits for any
 * number of parts. */
static void sum_gradients(program *p, layer *l, int part, int parts)
{
    enum { LINE = 16, BLOCK = 4096 }; /* floats: the first cache holds a block of each thread */
    size_t lines = l->dw_floats / LINE, from = lines * (size_t)part / (size_t)parts * LINE,
           to = part + 1 < parts ? lines * (size_t)(part + 1) / (size_t)parts * LINE : l->dw_floats;
    int threads = cpu_threads_count(p->threads);
    for (size_t at = from, n; at < to; at += n) {
        n = to - at < BLOCK ? to - at : BLOCK;
        for (int t = 1; t < threads; t++)
            p->k->add(n, l->dw + at, layer_dw(l, t) + at, false, l->dw + at);
    }
    if (part > 0)
        return;
    for (int t = 1; t < threads; t++)
        p->k->add(l->db_floats, l->db, layer_db(l, t), false, l->db);
    if (l->node->bias >= 0)
        memcpy(program_grad(p, l->node->bias), l->db, (size_t)l->node->shape.c * sizeof(float));
}

typedef struct weights_work {
    program *p;
    int first, last;
    weights_step step;
} weights_work;

static layer_part *part_of(const layer *l, weights_step step)
{
    switch (step) {
    case WEIGHTS_PACK: return l->ops->pack;
    case WEIGHTS_PACK_AHEAD: return l->ops->pack_ahead;
    case WEIGHTS_PACK_BACK: return l->ops->pack_back;
    case WEIGHTS_SUM: return l->db ? sum_gradients : NULL;
    case WEIGHTS_FINISH: return l->ops->finish;
    }
    return NULL;
}

/* How many floats the step reads. */
static size_t floats_of(const program *p, const layer *l, weights_step step)
{
    return step == WEIGHTS_SUM ? l->dw_floats * (size_t)(cpu_threads_count(p->threads) - 1)
                               : p->g->vars[l->node->weight].count;
}

static void do_part(void *arg, int part, int parts)
{
    const weights_work *w = arg;
    for (int i = w->first; i <= w->last; i++) {
        layer_part *run = part_of(&w->p->layers[i], w->step);
        if (run)
            run(w->p, &w->p->layers[i], part, parts);
    }
}

void weights_run(program *p, int first, int last, weights_step step)
{
    enum { FEW = 1 << 15 }; /* fewer floats take less time than waking the threads */
    weights_work w = {p, first, last, step};
    size_t floats = 0;
    for (int i = first; i <= last; i++)
        if (part_of(&p->layers[i], step))
            floats += floats_of(p, &p->layers[i], step);
    /* layer_weights has a single buffer for weights with a folded norm */
    if (floats < FEW || (step == WEIGHTS_PACK && p->folded))
        do_part(&w, 0, 1);
    else
        cpu_threads_run(p->threads, do_part, &w);
}
