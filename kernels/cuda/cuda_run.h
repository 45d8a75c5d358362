/* cuda_run.h: what cuda_run.c and cuda_backward.c share: one pass through the layers. */
#ifndef KUBEML_CUDA_RUN_H
#define KUBEML_CUDA_RUN_H

#include "cuda_program.h"

/* One pass through the layers. */
typedef struct run {
    program *p;
    void *stream;
    const step_args *args;
    const gathering *from; /* where the batch comes from; NULL: it was given, and lies staged */
    step_result *result;
    bool training;
    const optim_block *update; /* parameters take their step where gradients are made; or NULL */
    bool written[GRAPH_NODES_MAX]; /* this node's gradient has its first part */
    int branch;                    /* the layer whose weights' gradients are on a branch; 0: none */
} run;

static inline const tensor *input(const run *r, const layer *l, int k)
{
    return &r->p->tensors[l->node->in[k]];
}

static inline shape input_shape(const run *r, const layer *l, int k)
{
    return r->p->g->nodes[l->node->in[k]].shape;
}

static inline int plane(shape s)
{
    return s.h * s.w;
}

static inline size_t values(const run *r, shape s)
{
    return (size_t)r->p->c.batch * shape_count(s);
}

static inline float *param(const program *p, int var)
{
    return var < 0 ? NULL : p->params + p->g->vars[var].offset;
}

static inline float *grad(const program *p, int var)
{
    return p->grads + p->g->vars[var].offset;
}

static inline const void *weights(const program *p, const layer *l)
{
    size_t offset = p->g->vars[l->node->weight].offset;
    if (p->t == ELEMENT_F32)
        return p->params + offset;
    return (const char *)p->weights16 + 2 * offset;
}

static inline bool broadcasts(const run *r, const layer *l)
{
    return !shape_equal(input_shape(r, l, 0), input_shape(r, l, 1));
}

/* cuda_run.c: the kernels' shapes of a layer, and dropout, which runs both ways. */
norm_shape cuda_norm_of(const run *r, const graph_node *n);
pool_shape cuda_pool_of(const run *r, const layer *l);
head_shape cuda_head_of(const program *p);
void cuda_run_dropout(run *r, const layer *l, const void *x, void *y, bool add);

/* Enqueues one layer, whose tensor is y. */
typedef int layer_run(run *r, const layer *l, const tensor *y, err *e);

/* cuda_ops.c: the backend's rows of the table of ops (kernels/ops.h). Without `forward` the backend
 * lacks the op: cuda_plan.c refuses the layer by its name. */
typedef struct cuda_op {
    layer_run *forward, *backward; /* the network's input has no gradient */
} cuda_op;
extern const cuda_op cuda_ops[OP_COUNT];

/* cuda_run.c */
layer_run cuda_forward_input, cuda_forward_conv, cuda_forward_norm, cuda_forward_act,
    cuda_forward_max_pool, cuda_forward_avg_pool, cuda_forward_pair, cuda_forward_parts,
    cuda_forward_flatten, cuda_forward_dropout;
/* cuda_backward.c */
layer_run cuda_backward_conv, cuda_backward_norm, cuda_backward_act, cuda_backward_max_pool,
    cuda_backward_avg_pool, cuda_backward_pair, cuda_backward_parts, cuda_backward_flatten,
    cuda_backward_dropout;

/* cuda_backward.c: from the output's gradient to all parameters'. */
int cuda_run_backward(run *r, err *e);

#endif
