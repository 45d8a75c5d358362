/* cpu_entry.c: 1x1 convolutions that apply the norm before them, ReLU included, to each block of
 * pixels as they read it, where that norm cannot go into the weights of a convolution before it:
 * DenseNet's way. The norm's layer then finds its statistics alone. Its result and the result's
 * gradient are no tensors any more: a block of the result lies in the second cache, and backward a
 * panel of either in the first; the result is computed again where backward needs it, and the
 * norm's sums are taken while the gradient is there. So of three passes over memory forward and
 * eight backward, one and three are left.
 *
 * The convolution reads the norm's input as its own, and writes its gradient but for a line in x:
 * cpu_norm.c. */
#include "cpu_ops.h"

static layer *maker(program *p, int node)
{
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].out == node)
            return &p->layers[i];
    return NULL;
}

/* Where a model only evaluates, cpu_fold.c takes these into the weights: better still. */
static bool follows_convolution(program *p, const layer *norm)
{
    const layer *before = maker(p, norm->in[0]);
    return before && cpu_has(before->node, OP_CONV2D) && graph_only_reader(p->g, norm->in[0]) >= 0;
}

static bool applies(program *p, const layer *l, const layer *norm)
{
    shape in = p->g->nodes[l->in[0]].shape;
    return conv_is_pointwise(l->node) && conv_is_direct(l->node) &&
           conv_is_matmul(l->node, in, p->c.batch) && norm && cpu_has(norm->node, OP_BATCH_NORM) &&
           norm->in_count == 1 && norm->in[0] != 0 && graph_only_reader(p->g, l->in[0]) >= 0 &&
           !follows_convolution(p, norm);
}

void entry_find(program *p)
{
    for (int i = 0; i < p->layer_count; i++) {
        layer *l = &p->layers[i], *norm = cpu_has(l->node, OP_CONV2D) ? maker(p, l->in[0]) : NULL;
        if (!norm || !applies(p, l, norm))
            continue;
        l->entry = norm;
        norm->entered = l;
        l->in[0] = norm->in[0];
    }
}
