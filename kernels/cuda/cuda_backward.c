/* cuda_backward.c: enqueues a backward pass; see cuda_run.h.
 *
 * Layers run from the last to the first. The gradients of weights that a library computes may run
 * on a branch of the graph, beside the gradients that flow on to the layers before
 * (program.beside). */
#include "cuda_run.h"

/* Where the gradient of the node's value goes; NULL: nothing needs it. *add: another reader has
 * written there before. */
static void *gradient_of(run *r, int node, bool *add)
{
    const tensor *x = &r->p->tensors[node];
    *add = r->written[node];
    if (x->dy)
        r->written[node] = true;
    return x->dy;
}

/* Computes the gradients of the weights on a branch, beside what comes next. A library's way
 * touches only its operands and the workspace of these passes. Our own kernels share their scratch,
 * and do not run on a branch. */
static int branch_weights(run *r, const layer *l, err *e)
{
    program *p = r->p;
    if (p->d->branch(p->dev, e))
        return -1;
    int failed = cuda_conv_pass(p, l, CONV_WEIGHTS, l->choice[CONV_WEIGHTS], false, e);
    if (p->d->trunk(p->dev, e) || failed)
        return -1;
    r->branch = (int)(l - p->layers);
    return 0;
}

/* Joins the branch before layer `next` runs backward, whose results may lie where the branch reads.
 * next -1: before the update. */
static int join_branch(run *r, int next, err *e)
{
    if (r->branch == 0 || next >= r->branch - 1)
        return 0;
    r->branch = 0;
    return r->p->d->join(r->p->dev, e);
}

static int weights_gradients(run *r, const layer *l, err *e)
{
    program *p = r->p;
    int at = (int)(l - p->layers);
    bool library = l->choice[CONV_WEIGHTS] != CHOICE_OWN;
    /* all ways of a library share one workspace here, on the branch or not */
    if (library && r->branch && (r->branch = 0, p->d->join(p->dev, e)))
        return -1;
    if (!p->beside || at <= 1 || !library)
        return cuda_conv_pass(p, l, CONV_WEIGHTS, l->choice[CONV_WEIGHTS], false, e);
    return branch_weights(r, l, e);
}

static int backward_pooled(run *r, const layer *l, const tensor *y)
{
    program *p = r->p;
    const graph_node *n = l->node;
    bool add;
    void *dx = gradient_of(r, n->in[0], &add);
    cuda_conv_pool_backward(r->stream, p->t, l->conv, l->pool, input(r, l, 0)->y, weights(p, l),
                            y->winner, y->y, l->relu, y->dy, p->sums, grad(p, n->weight),
                            n->bias < 0 ? NULL : grad(p, n->bias), dx, add, r->update);
    return 0;
}

int cuda_backward_conv(run *r, const layer *l, const tensor *y, err *e)
{
    program *p = r->p;
    const graph_node *n = l->node;
    bool add;
    if (l->pooled)
        return backward_pooled(r, l, y);
    if (n->bias >= 0)
        cuda_column_sums(r->stream, p->t, (size_t)p->c.batch * (size_t)plane(n->shape), n->shape.c,
                         y->dy, p->sums, grad(p, n->bias));
    if (weights_gradients(r, l, e))
        return -1;
    if (!gradient_of(r, n->in[0], &add))
        return 0;
    return cuda_conv_pass(p, l, CONV_DATA, l->choice[CONV_DATA], add, e);
}

int cuda_backward_norm(run *r, const layer *l, const tensor *y, err *e)
{
    program *p = r->p;
    (void)e;
    const graph_node *n = l->node;
    bool add, add_also = false;
    void *dx = gradient_of(r, n->in[0], &add), *dalso = NULL;
    if (l->also >= 0)
        dalso = gradient_of(r, l->also, &add_also);
    cuda_norm_backward(r->stream, p->t, r->args, cuda_norm_of(r, n), input(r, l, 0)->y, l->relu,
                       l->also >= 0 && l->relu ? y->y : NULL, y->saved, param(p, n->weight),
                       param(p, n->bias), y->dy, p->norm_sums, grad(p, n->weight), grad(p, n->bias),
                       dx, add, dalso, add_also);
    return 0;
}

int cuda_backward_pair(run *r, const layer *l, const tensor *y, err *e)
{
    program *p = r->p;
    (void)e;
    const graph_node *n = l->node;
    int cap = p->c.batch, C = n->shape.c, HW = plane(n->shape);
    bool multiply = n->op == OP_MUL, wide = broadcasts(r, l), add;
    const void *a = input(r, l, 0)->y, *b = input(r, l, 1)->y;
    void *da = gradient_of(r, n->in[0], &add);
    if (da)
        cuda_pair_backward(r->stream, p->t, multiply, wide, cap, C, HW, b, y->dy, da, add);
    void *db = gradient_of(r, n->in[1], &add);
    if (db && wide)
        cuda_pair_backward_broadcast(r->stream, p->t, multiply, cap, C, HW, a, y->dy, db, add);
    else if (db)
        cuda_pair_backward(r->stream, p->t, multiply, false, cap, C, HW, a, y->dy, db, add);
    return 0;
}

int cuda_backward_parts(run *r, const layer *l, const tensor *y, err *e)
{
    const graph_node *n = l->node;
    (void)e;
    size_t rows = (size_t)r->p->c.batch * (size_t)plane(n->shape);
    int at = n->op == OP_PAD_CHANNELS ? n->pad.before : 0;
    for (int k = 0; k < n->in_count; k++) {
        bool add;
        int part = input_shape(r, l, k).c;
        void *dx = gradient_of(r, n->in[k], &add);
        if (dx)
            cuda_part_backward(r->stream, r->p->t, rows, part, n->shape.c, at, y->dy, dx, add);
        at += part;
    }
    return 0;
}

/* Of layers with one input and no parameters: nobody may need the gradient. */
int cuda_backward_act(run *r, const layer *l, const tensor *y, err *e)
{
    const graph_node *n = l->node;
    bool add;
    void *dx = gradient_of(r, n->in[0], &add);
    (void)e;
    if (dx)
        cuda_activation_backward(r->stream, r->p->t, (int)n->act.kind, (float)n->act.slope,
                                 values(r, input_shape(r, l, 0)), input(r, l, 0)->y, y->dy, dx,
                                 add);
    return 0;
}

int cuda_backward_max_pool(run *r, const layer *l, const tensor *y, err *e)
{
    bool add;
    void *dx = gradient_of(r, l->node->in[0], &add);
    (void)e;
    if (dx)
        cuda_max_pool_backward(r->stream, r->p->t, cuda_pool_of(r, l), y->winner, y->dy, dx, add);
    return 0;
}

int cuda_backward_avg_pool(run *r, const layer *l, const tensor *y, err *e)
{
    bool add;
    void *dx = gradient_of(r, l->node->in[0], &add);
    (void)e;
    if (dx)
        cuda_avg_pool_backward(r->stream, r->p->t, cuda_pool_of(r, l), y->dy, dx, add);
    return 0;
}

int cuda_backward_dropout(run *r, const layer *l, const tensor *y, err *e)
{
    bool add;
    void *dx = gradient_of(r, l->node->in[0], &add);
    (void)e;
    if (dx)
        cuda_run_dropout(r, l, y->dy, dx, add);
    return 0;
}

int cuda_backward_flatten(run *r, const layer *l, const tensor *y, err *e)
{
    const program *p = r->p;
    bool add;
    void *dx = gradient_of(r, l->node->in[0], &add);
    shape in = input_shape(r, l, 0);
    (void)e;
    if (dx && cuda_flatten_copies(p, l->node))
        cuda_copy(r->stream, p->t, values(r, in), y->dy, dx, add);
    else if (dx)
        cuda_transpose(r->stream, p->t, p->c.batch, in.c, plane(in), y->dy, dx, add);
    return 0;
}

static int backward_layer(run *r, const layer *l, err *e)
{
    program *p = r->p;
    const tensor *y = &p->tensors[l->out];
    graph_op op = l->node->op;
    if (l->relu && !l->pooled && op != OP_BATCH_NORM) /* those mask while they read */
        cuda_relu_mask(r->stream, p->t, values(r, l->node->shape), y->y, y->dy);
    return cuda_ops[op].backward ? cuda_ops[op].backward(r, l, y, e) : 0;
}

int cuda_run_backward(run *r, err *e)
{
    program *p = r->p;
    if (p->head < p->layer_count) {
        const head_shape h = cuda_head_of(p);
        cuda_head_gradients(r->stream, p->t, p->c.batch, &h, input(r, &p->layers[p->head], 0)->y,
                            p->per_row, r->result, r->update);
    }
    for (int l = p->head - 1; l >= 0; l--)
        if (p->tensors[p->layers[l].out].dy &&
            (join_branch(r, l, e) || backward_layer(r, &p->layers[l], e)))
            return -1;
    return join_branch(r, -1, e);
}
