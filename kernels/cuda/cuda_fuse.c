/* cuda_fuse.c: decides what is fused; see cuda_program.h.
 *
 * A fused kernel saves launches and the way through memory, but uses fewer of the GPU's processors
 * than a library's kernel. Each possible fusing is therefore timed once for each machine type and
 * shape: the graph of a whole step (or of a forward pass, where nothing is trained) with everything
 * fused, and with this one thing apart. The faster one is kept in the cache of algorithms, travels
 * with its entries, and is listed among the choices. */
#include <stdio.h>
#include <string.h>

#include "cuda_program.h"

enum { TIMED_RUNS = 5, TIMED_ROUNDS = 3 };

static const char apart_name[] = "apart", fused_name[] = "fused";

/* ---- keys ------------------------------------------------------------------------------------ */

static void add_text(char *key, const char *text)
{
    size_t used = strlen(key);
    snprintf(key + used, KEY_BYTES - used, "%s", text);
}

static void add_pooling(const layer *l, char *key)
{
    char text[KEY_BYTES / 2];
    const pool_shape *o = &l->pool;
    cuda_shape_text(&l->conv, text, sizeof text);
    add_text(key, text);
    snprintf(text, sizeof text, " pool%dx%d stride%dx%d%s%s", o->kernel_h, o->kernel_w, o->stride_h,
             o->stride_w, l->node->bias >= 0 ? " bias" : "", l->relu ? " relu" : "");
    add_text(key, text);
}

static void add_head(const program *p, int first, char *key)
{
    char text[64];
    snprintf(text, sizeof text, "n%d c%d", p->c.batch, p->layers[first].conv.c);
    add_text(key, text);
    for (const layer *l = &p->layers[first]; l < p->layers + p->layer_count; l++) {
        snprintf(text, sizeof text, " %d%s%s", l->conv.k, l->node->bias >= 0 ? "b" : "",
                 l->relu ? "r" : "");
        add_text(key, text);
    }
}

/* A summary of the whole model. */
static void add_model(const program *p, char *key)
{
    char text[96];
    const shape in = p->g->nodes[0].shape;
    snprintf(text, sizeof text, "n%d c%d h%d w%d convolutions%d parameters%zu", p->c.batch, in.c,
             in.h, in.w, p->convolutions, p->g->floats[VAR_PARAM]);
    add_text(key, text);
}

static void make_key(const program *p, const device_facts *f, const fusing *what,
                     char key[KEY_BYTES])
{
    char text[64];
    cuda_begin_key(f, key);
    snprintf(text, sizeof text, "%s %s %s ", p->c.inference ? "infer" : "train",
             fusing_name(what->kind), cuda_precision_names[p->c.precision]);
    add_text(key, text);
    if (what->kind == FUSING_HEAD)
        add_head(p, what->layer, key);
    else if (what->kind == FUSING_BESIDE)
        add_model(p, key);
    else
        add_pooling(&p->layers[what->layer], key);
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* Fills in a whole batch of zeros, and an update that changes nothing. */
static int fill_batch(program *p, err *e)
{
    step_args *a = (step_args *)(void *)(p->in.host + p->in.args);
    a->n = p->c.batch;
    if (!p->c.inference)
        cuda_set_update(p, a, (backend_update){.lr = 0, .step = 1});
    return p->d->copy(p->dev, p->in.device, p->in.host, p->in.bytes, COPY_IN, e);
}

static int time_graph(program *p, device_graph *what, float *best, err *e)
{
    float us;
    cuda_wake(p);
    if (fill_batch(p, e) || p->d->replay(p->dev, what, e) || p->d->wait(p->dev, e))
        return -1;
    for (int round = 0; round < TIMED_ROUNDS; round++) {
        if (p->d->mark(p->dev, 0, e))
            return -1;
        for (int i = 0; i < TIMED_RUNS; i++)
            if (p->d->replay(p->dev, what, e))
                return -1;
        if (p->d->mark(p->dev, 1, e) || p->d->elapsed(p->dev, &us, e))
            return -1;
        *best = round == 0 || us / TIMED_RUNS < *best ? us / TIMED_RUNS : *best;
    }
    return 0;
}

/* Makes one model at a time, so that measuring takes no more memory than the model that is kept. */
static int time_program(const graph *g, const backend_config *c, uint32_t apart, float *us, err *e)
{
    program *p;
    if (cuda_begin(g, c, apart, &p, e))
        return -1;
    run_kind kind = c->inference ? RUN_FORWARD : RUN_STEP;
    int status = cuda_finish(p, e) || cuda_graph(p, kind, e) ? -1 : 0;
    if (status == 0)
        status = time_graph(p, p->graphs[kind], us, e);
    cuda_release(&p->base);
    return status;
}

/* ---- choosing -------------------------------------------------------------------------------- */

typedef struct plan {
    char key[FUSINGS_MAX][KEY_BYTES];
    int count;
    uint32_t apart, unknown;
} plan;

static int list(const graph *g, const backend_config *c, plan *out, err *e)
{
    program *p;
    device_facts f;
    char winner[WINNER_BYTES];
    if (cuda_begin(g, c, 0, &p, e))
        return -1;
    int status = p->fusing_count ? p->d->facts(p->dev, &f, e) : 0;
    out->count = status == 0 ? p->fusing_count : 0;
    for (int i = 0; i < out->count; i++) {
        make_key(p, &f, &p->fusings[i], out->key[i]);
        if (!cuda_autotune_find(out->key[i], winner))
            out->unknown |= UINT32_C(1) << i;
        else if (strcmp(winner, apart_name) == 0)
            out->apart |= UINT32_C(1) << i;
    }
    cuda_release(&p->base);
    return status;
}

/* A fusing that could not be timed apart stays fused, and is not kept in the cache. Where the fused
 * model cannot be had at all, what is unknown stays apart. */
static void measure(const graph *g, const backend_config *c, plan *all)
{
    float fused, apart;
    uint32_t known = all->apart;
    if (time_program(g, c, known, &fused, NULL)) {
        all->apart |= all->unknown;
        return;
    }
    for (int i = 0; i < all->count; i++) {
        uint32_t bit = UINT32_C(1) << i;
        if (!(all->unknown & bit) || time_program(g, c, known | bit, &apart, NULL))
            continue;
        cuda_algorithm_learn(all->key[i], apart < fused ? apart_name : fused_name);
        all->apart |= apart < fused ? bit : 0;
    }
    cuda_algorithms_keep();
}

int cuda_fuse(const graph *g, const backend_config *c, uint32_t *apart, err *e)
{
    plan all = {.count = 0};
    if (list(g, c, &all, e))
        return -1;
    if (all.unknown)
        measure(g, c, &all);
    *apart = all.apart;
    return 0;
}
