/* reference.c: the reference backend: the graph's nodes one after the other, in double precision,
 * on the caller's thread. It is the truth that other backends are compared with; it is not fast.
 *
 * Memory: one arena for activations and their gradients, planned by lifetime at prepare; double
 * copies of parameters and gradients; max pooling's winners and batch norm's saved statistics. */
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/plan.h"
#include "ref_layers.h"

/* What one node keeps; pointers into the program's memory, NULL where it keeps none. */
typedef struct ref_node {
    double *y, *dy;  /* (N, shape) */
    int32_t *winner; /* max pooling, training */
    double *saved;   /* batch norm, training: (2 * C) */
    int last_use;    /* the largest id among its readers; its own id where nobody reads it */
} ref_node;

typedef struct ref_program {
    backend_program base;
    const graph *g;
    backend_config c;
    backend_state s;
    ref_node *nodes;
    double *arena, *w, *dw; /* dw, like w, in the layout of the parameter block */
    int32_t *winners;
    double *saved;
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
        int until = !c->inference && graph_reads_inputs(n->op) ? 2 * T - j : j;
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

static void count_extras(const graph *g, const backend_config *c, size_t *winners, size_t *saved)
{
    *winners = *saved = 0;
    for (int i = 0; i < g->node_count && !c->inference; i++) {
        const graph_node *n = &g->nodes[i];
        if (n->op == OP_MAX_POOL)
            *winners += shape_count(n->shape) * (size_t)c->batch;
        else if (n->op == OP_BATCH_NORM)
            *saved += 2 * (size_t)n->shape.c;
    }
}

static void place_extras(ref_program *p)
{
    int32_t *winner = p->winners;
    double *saved = p->saved;
    for (int i = 0; i < p->g->node_count && !p->c.inference; i++) {
        const graph_node *n = &p->g->nodes[i];
        if (n->op == OP_MAX_POOL) {
            p->nodes[i].winner = winner;
            winner += shape_count(n->shape) * (size_t)p->c.batch;
        } else if (n->op == OP_BATCH_NORM) {
            p->nodes[i].saved = saved;
            saved += 2 * (size_t)n->shape.c;
        }
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
    free(p->winners);
    free(p->saved);
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
    size_t winners, saved, params = p->g->floats[VAR_PARAM];
    int T = p->g->node_count;
    p->nodes = take(p, (size_t)T, sizeof *p->nodes);
    if (!p->nodes)
        return err_set(e, ERR_NOMEM, "no memory for %d layers", T);
    graph_mark_gradients(p->g, needs);
    set_lifetimes(p->g, &p->c, p->nodes, needs, items);
    size_t arena = plan_assign(items, 2 * T);
    if (arena == SIZE_MAX)
        return err_set(e, ERR_NOMEM, "no memory for the plan of %d layers", T);
    count_extras(p->g, &p->c, &winners, &saved);
    p->arena = take(p, arena / sizeof(double), sizeof(double));
    p->w = take(p, params, sizeof(double));
    p->dw = take(p, p->c.inference ? 0 : params, sizeof(double));
    p->winners = take(p, winners, sizeof *p->winners);
    p->saved = take(p, saved, sizeof(double));
    if (!p->arena || !p->w || !p->dw || !p->winners || !p->saved)
        return err_set(e, ERR_NOMEM, "no memory: the model needs %zu MiB at batch %d",
                       p->bytes >> 20, p->c.batch);
    for (int i = 0; i < T; i++) {
        p->nodes[i].y = p->arena + items[i].offset / sizeof(double);
        if (items[T + i].bytes)
            p->nodes[i].dy = p->arena + items[T + i].offset / sizeof(double);
    }
    place_extras(p);
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
    return p->s.buffers + p->g->vars[var].offset;
}

static void read_input(const ref_program *p, const backend_batch *b)
{
    shape s = p->g->nodes[0].shape;
    size_t plane = (size_t)s.h * (size_t)s.w, count = shape_count(s);
    double *y = p->nodes[0].y;
    for (int i = 0; i < b->n; i++) {
        const unsigned char *bytes = b->x[i];
        for (size_t j = 0; j < count; j++) {
            float value;
            if (b->type == INPUT_UINT8)
                value = (float)bytes[j];
            else
                memcpy(&value, bytes + j * sizeof value, sizeof value);
            double scale = b->scale ? (double)b->scale[j / plane] : 1;
            double shift = b->shift ? (double)b->shift[j / plane] : 0;
            y[(size_t)i * count + j] = (double)value * scale + shift;
        }
    }
}

static void forward_norm(ref_program *p, const graph_node *n, ref_node *r, int N, const double *x,
                         bool training)
{
    const double *w = param(p, n->weight), *b = param(p, n->bias);
    float *mean = buffer(p, n->running_mean), *var = buffer(p, n->running_var);
    if (!training) {
        ref_batch_norm_infer(n, N, x, w, b, mean, var, r->y);
        return;
    }
    ref_batch_norm_train(n, N, x, w, b, mean, var, r->saved, r->y);
    p->s.counters[p->g->vars[n->batches].offset]++;
}

/* Concat's and pad_channels' parts; also serves backward, where dy is spread over the inputs. */
static void run_parts(ref_program *p, const graph_node *n, ref_node *r, int N, bool backward)
{
    size_t plane = (size_t)n->shape.h * (size_t)n->shape.w, count = shape_count(n->shape);
    size_t at = n->op == OP_PAD_CHANNELS ? (size_t)n->pad.before * plane : 0;
    if (n->op == OP_PAD_CHANNELS && !backward)
        memset(r->y, 0, (size_t)N * count * sizeof *r->y);
    for (int i = 0; i < n->in_count; i++) {
        ref_node *x = &p->nodes[n->in[i]];
        size_t part = shape_count(p->g->nodes[n->in[i]].shape);
        if (!backward)
            ref_part_forward(N, part, at, count, x->y, r->y);
        else if (x->dy)
            ref_part_backward(N, part, at, count, r->dy, x->dy);
        at += part;
    }
}

static void forward_node(ref_program *p, int id, const backend_batch *b, bool training)
{
    const graph_node *n = &p->g->nodes[id];
    ref_node *r = &p->nodes[id];
    if (n->op == OP_INPUT) {
        read_input(p, b);
        return;
    }
    int N = b->n;
    shape in = p->g->nodes[n->in[0]].shape;
    size_t count = (size_t)N * shape_count(n->shape);
    const double *x = p->nodes[n->in[0]].y;
    switch (n->op) {
    case OP_CONV2D:
        ref_conv2d_forward(n, in, N, x, param(p, n->weight), param(p, n->bias), r->y);
        break;
    case OP_LINEAR:
        ref_linear_forward(in.c, n->shape.c, N, x, param(p, n->weight), param(p, n->bias), r->y);
        break;
    case OP_BATCH_NORM:
        forward_norm(p, n, r, N, x, training);
        break;
    case OP_ACTIVATION:
        ref_activation_forward(n, count, x, r->y);
        break;
    case OP_MAX_POOL: {
        ref_max_pool_forward(n, in, N, x, r->winner, r->y);
        break;
    }
    case OP_AVG_POOL:
    case OP_ADAPTIVE_AVG_POOL:
        ref_avg_pool_forward(n, in, N, x, r->y);
        break;
    case OP_ADD:
    case OP_MUL:
        ref_pairwise_forward(n, p->g->nodes[n->in[1]].shape, N, x, p->nodes[n->in[1]].y, r->y);
        break;
    case OP_CONCAT:
    case OP_PAD_CHANNELS:
        run_parts(p, n, r, N, false);
        break;
    case OP_DROPOUT:
        if (training) {
            ref_dropout(n, p->c.seed, b, x, r->y, false);
            break;
        }
        memcpy(r->y, x, count * sizeof *x);
        break;
    case OP_FLATTEN:
        memcpy(r->y, x, count * sizeof *x);
        break;
    case OP_INPUT:
    case OP_COUNT:
        break;
    }
}

static void backward_node(ref_program *p, int id, const backend_batch *b)
{
    const graph_node *n = &p->g->nodes[id];
    ref_node *r = &p->nodes[id], *x = &p->nodes[n->in[0]];
    int N = b->n;
    shape in = p->g->nodes[n->in[0]].shape;
    size_t count = (size_t)N * shape_count(n->shape);
    switch (n->op) {
    case OP_CONV2D:
        ref_conv2d_backward(n, in, N, x->y, param(p, n->weight), r->dy, x->dy, grad(p, n->weight),
                            grad(p, n->bias));
        break;
    case OP_LINEAR:
        ref_linear_backward(in.c, n->shape.c, N, x->y, param(p, n->weight), r->dy, x->dy,
                            grad(p, n->weight), grad(p, n->bias));
        break;
    case OP_BATCH_NORM:
        ref_batch_norm_backward(n, N, x->y, param(p, n->weight), r->saved, r->dy, x->dy,
                                grad(p, n->weight), grad(p, n->bias));
        break;
    case OP_ACTIVATION:
        ref_activation_backward(n, count, x->y, r->dy, x->dy);
        break;
    case OP_MAX_POOL:
        ref_max_pool_backward(n, in, N, r->winner, r->dy, x->dy);
        break;
    case OP_AVG_POOL:
    case OP_ADAPTIVE_AVG_POOL:
        ref_avg_pool_backward(n, in, N, r->dy, x->dy);
        break;
    case OP_ADD:
    case OP_MUL: {
        ref_node *second = &p->nodes[n->in[1]];
        ref_pairwise_backward(n, p->g->nodes[n->in[1]].shape, N, x->y, second->y, r->dy, x->dy,
                              second->dy);
        break;
    }
    case OP_CONCAT:
    case OP_PAD_CHANNELS:
        run_parts(p, n, r, N, true);
        break;
    case OP_DROPOUT:
        ref_dropout(n, p->c.seed, b, r->dy, x->dy, true);
        break;
    case OP_FLATTEN:
        for (size_t i = 0; i < count; i++)
            x->dy[i] += r->dy[i];
        break;
    case OP_INPUT:
    case OP_COUNT:
        break;
    }
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
