/* reference.c: the reference backend: the graph's nodes one after the other, in double precision,
 * on the caller's thread. It is the truth that other backends are compared with; it is not fast.
 *
 * Memory: one arena for activations and their gradients, planned by lifetime at prepare; double
 * copies of parameters and gradients; what ops keep from forward to backward. */
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/plan.h"
#include "ref_layers.h"

/* What one node keeps; pointers into the program's memory, NULL where it keeps none. */
typedef struct ref_node {
    double *y, *dy; /* (N, shape) */
    double *kept;   /* op_row.keeps, training */
    int last_use;   /* the largest id among its readers; its own id where nobody reads it */
} ref_node;

typedef struct ref_program {
    backend_program base;
    const graph *g;
    backend_config c;
    backend_state s;
    ref_node *nodes;
    double *arena, *w, *dw; /* dw, like w, in the layout of the parameter block */
    double *kept;
    size_t bytes;
} ref_program;

/* ---- prepare --------------------------------------------------------------------------------- */

/* Moments: node i runs forward at i, the loss at T = node_count, node i backward at 2T - i.
 * items[i] is node i's value, items[T + i] its gradient. */
static void set_lifetimes(const graph *g, const backend_config *c, ref_node *nodes,
                          const bool *needs, plan_item *items)
{
    int T = g->node_count;
    for (int i = 0; i < T; i++) {
        size_t bytes = shape_count(g->nodes[i].shape) * (size_t)c->batch * sizeof(double);
        items[i] = (plan_item){.bytes = bytes, .first = i, .last = i == g->output ? T : i};
        nodes[i].last_use = i;
    }
    for (int j = 0; j < T; j++) {
        const graph_node *n = &g->nodes[j];
        int until = !c->inference && op_rows[n->op].reads_inputs ? 2 * T - j : j;
        for (int k = 0; k < n->in_count; k++) {
            int i = n->in[k];
            nodes[i].last_use = j;
            if (items[i].last < until)
                items[i].last = until;
        }
    }
    for (int i = 0; i < T; i++) {
        items[T + i] = (plan_item){0};
        if (c->inference || !needs[i])
            continue;
        int begin = i == g->output ? T : 2 * T - nodes[i].last_use;
        items[T + i] = (plan_item){.bytes = items[i].bytes, .first = begin, .last = 2 * T - i};
    }
}

/* In doubles. */
static size_t kept_by(const graph_node *n, int batch)
{
    const op_row *row = &op_rows[n->op];
    return row->keeps ? (row->keeps(n, batch) + sizeof(double) - 1) / sizeof(double) : 0;
}

static size_t count_kept(const graph *g, const backend_config *c)
{
    size_t doubles = 0;
    for (int i = 0; i < g->node_count && !c->inference; i++)
        doubles += kept_by(&g->nodes[i], c->batch);
    return doubles;
}

static void place_kept(ref_program *p)
{
    double *at = p->kept;
    for (int i = 0; i < p->g->node_count && !p->c.inference; i++) {
        p->nodes[i].kept = at;
        at += kept_by(&p->g->nodes[i], p->c.batch);
    }
}

static void ref_release(backend_program *base)
{
    ref_program *p = (ref_program *)base;
    if (!p)
        return;
    free(p->nodes);
    free(p->arena);
    free(p->w);
    free(p->dw);
    free(p->kept);
    free(p);
}

/* Zeroed memory of count elements, counted; one element at least, so that NULL is a failure. */
static void *take(ref_program *p, size_t count, size_t size)
{
    p->bytes += count * size;
    return calloc(count + 1, size);
}

static int allocate(ref_program *p, plan_item *items, bool *needs, err *e)
{
    size_t params = p->g->floats[VAR_PARAM];
    int T = p->g->node_count;
    p->nodes = take(p, (size_t)T, sizeof *p->nodes);
    if (!p->nodes)
        return err_set(e, ERR_NOMEM, "no memory for %d layers", T);
    graph_mark_gradients(p->g, needs);
    set_lifetimes(p->g, &p->c, p->nodes, needs, items);
    size_t arena = plan_assign(items, 2 * T);
    if (arena == SIZE_MAX)
        return err_set(e, ERR_NOMEM, "no memory for the plan of %d layers", T);
    p->arena = take(p, arena / sizeof(double), sizeof(double));
    p->w = take(p, params, sizeof(double));
    p->dw = take(p, p->c.inference ? 0 : params, sizeof(double));
    p->kept = take(p, count_kept(p->g, &p->c), sizeof(double));
    if (!p->arena || !p->w || !p->dw || !p->kept)
        return err_set(e, ERR_NOMEM, "no memory: the model needs %zu MiB at batch %d",
                       p->bytes >> 20, p->c.batch);
    for (int i = 0; i < T; i++) {
        p->nodes[i].y = p->arena + items[i].offset / sizeof(double);
        if (items[T + i].bytes)
            p->nodes[i].dy = p->arena + items[T + i].offset / sizeof(double);
    }
    place_kept(p);
    return 0;
}

static int ref_prepare(const graph *g, const backend_config *c, backend_program **out, err *e)
{
    if (c->precision != PRECISION_FP32)
        return err_set(e, ERR_UNSUPPORTED, "the reference backend computes in fp32 only");
    size_t count = (size_t)g->node_count;
    cleanup_free plan_item *items = calloc(2 * count, sizeof *items);
    cleanup_free bool *needs = calloc(count, sizeof *needs);
    ref_program *p = calloc(1, sizeof *p);
    if (!items || !needs || !p) {
        free(p);
        return err_set(e, ERR_NOMEM, "no memory for %zu layers", count);
    }
    p->base.backend = &backend_reference;
    p->g = g;
    p->c = *c;
    if (allocate(p, items, needs, e)) {
        ref_release(&p->base);
        return -1;
    }
    *out = &p->base;
    return 0;
}

static int ref_load(backend_program *base, const backend_state *s, err *e)
{
    (void)e;
    ((ref_program *)base)->s = *s;
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

static const double *param(const ref_program *p, int var)
{
    return var < 0 ? NULL : p->w + p->g->vars[var].offset;
}

static double *grad(const ref_program *p, int var)
{
    return var < 0 ? NULL : p->dw + p->g->vars[var].offset;
}

static float *buffer(const ref_program *p, int var)
{
    return var < 0 ? NULL : p->s.buffers + p->g->vars[var].offset;
}

/* What a call of the op of one node gets; the arrays are as long as a node may have inputs. */
typedef struct call_room {
    shape in[GRAPH_INPUTS_MAX];
    const double *x[GRAPH_INPUTS_MAX];
    double *dx[GRAPH_INPUTS_MAX];
} call_room;

static op_call call_of(ref_program *p, int id, const backend_batch *b, bool training,
                       call_room *room)
{
    const graph_node *n = &p->g->nodes[id];
    const ref_node *r = &p->nodes[id];
    for (int i = 0; i < n->in_count; i++) {
        room->in[i] = p->g->nodes[n->in[i]].shape;
        room->x[i] = p->nodes[n->in[i]].y;
        room->dx[i] = p->nodes[n->in[i]].dy;
    }
    return (op_call){.n = n,
                     .N = b->n,
                     .training = training,
                     .in = room->in,
                     .x = room->x,
                     .y = r->y,
                     .dy = r->dy,
                     .dx = room->dx,
                     .w = param(p, n->weight),
                     .b = param(p, n->bias),
                     .dw = grad(p, n->weight),
                     .db = grad(p, n->bias),
                     .kept = r->kept,
                     .running_mean = buffer(p, n->running_mean),
                     .running_var = buffer(p, n->running_var),
                     .batches =
                         n->batches < 0 ? NULL : p->s.counters + p->g->vars[n->batches].offset,
                     .batch = b,
                     .seed = p->c.seed};
}

static void forward_node(ref_program *p, int id, const backend_batch *b, bool training)
{
    call_room room;
    op_call o = call_of(p, id, b, training, &room);
    op_rows[o.n->op].forward(&o);
}

static void backward_node(ref_program *p, int id, const backend_batch *b)
{
    call_room room;
    op_call o = call_of(p, id, b, true, &room);
    op_rows[o.n->op].backward(&o);
}

static void run_forward(ref_program *p, const backend_batch *b, bool training)
{
    for (size_t i = 0; i < p->g->floats[VAR_PARAM]; i++)
        p->w[i] = (double)p->s.params[i];
    for (int i = 0; i < p->g->node_count; i++)
        forward_node(p, i, b, training);
}

static backend_result loss_of(const ref_program *p, const backend_batch *b, double *dlogits)
{
    int out = p->g->output;
    return ref_loss(p->c.loss, b, p->g->nodes[out].shape.c, p->nodes[out].y, dlogits);
}

static int ref_forward(backend_program *base, const backend_batch *b, float *logits,
                       backend_result *result, err *e)
{
    (void)e;
    ref_program *p = (ref_program *)base;
    run_forward(p, b, false);
    const graph_node *out = &p->g->nodes[p->g->output];
    size_t count = (size_t)b->n * shape_count(out->shape);
    for (size_t i = 0; logits && i < count; i++)
        logits[i] = (float)p->nodes[p->g->output].y[i];
    if (result)
        *result = loss_of(p, b, NULL);
    return 0;
}

/* A gradient begins at 0 when its life does: just before the first backward pass that adds to it.
 */
static void clear_inputs(ref_program *p, int id, int N)
{
    const graph_node *n = &p->g->nodes[id];
    for (int i = 0; i < n->in_count; i++) {
        ref_node *x = &p->nodes[n->in[i]];
        if (x->dy && x->last_use == id && n->in[i] != p->g->output)
            memset(x->dy, 0, (size_t)N * shape_count(p->g->nodes[n->in[i]].shape) * sizeof *x->dy);
    }
}

static int ref_gradients(backend_program *base, const backend_batch *b, backend_result *result,
                         err *e)
{
    (void)e;
    ref_program *p = (ref_program *)base;
    size_t params = p->g->floats[VAR_PARAM];
    run_forward(p, b, true);
    memset(p->dw, 0, params * sizeof *p->dw);
    *result = loss_of(p, b, p->nodes[p->g->output].dy);
    for (int i = p->g->node_count - 1; i > 0; i--) {
        if (!p->nodes[i].dy)
            continue;
        clear_inputs(p, i, b->n);
        backward_node(p, i, b);
    }
    for (size_t i = 0; i < params; i++)
        p->s.grads[i] = (float)p->dw[i];
    return 0;
}

static int ref_update(backend_program *base, backend_update u, err *e)
{
    (void)e;
    ref_program *p = (ref_program *)base;
    size_t params = p->g->floats[VAR_PARAM];
    optim_update(&p->c.optim, u.lr, u.step, params, p->s.params, p->s.grads, p->s.state, params);
    return 0;
}

static int ref_missing(err *e)
{
    (void)e;
    return 0;
}

static size_t ref_memory(const backend_program *base)
{
    return ((const ref_program *)base)->bytes;
}

const backend backend_reference = {
    .name = "reference",
    .missing = ref_missing,
    .prepare = ref_prepare,
    .release = ref_release,
    .load = ref_load,
    .forward = ref_forward,
    .gradients = ref_gradients,
    .update = ref_update,
    .memory = ref_memory,
};
