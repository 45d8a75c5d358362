/* cuda_run.c: enqueues a forward pass, the loss and an update, and between them cuda_backward.c's
 * backward pass; see cuda_program.h.
 *
 * Nothing here waits and nothing depends on the batch: the work is captured once and replayed for
 * every batch, whose size and numbers lie in step_args on the device. */
#include <assert.h>

#include "cuda_run.h"

_Static_assert((int)ACT_RELU == (int)CUDA_RELU && (int)ACT_RELU6 == (int)CUDA_RELU6 &&
                   (int)ACT_LEAKY_RELU == (int)CUDA_LEAKY_RELU &&
                   (int)ACT_HARDSIGMOID == (int)CUDA_HARDSIGMOID &&
                   (int)ACT_HARDSWISH == (int)CUDA_HARDSWISH &&
                   (int)ACT_SIGMOID == (int)CUDA_SIGMOID && (int)ACT_TANH == (int)CUDA_TANH &&
                   (int)ACT_GELU == (int)CUDA_GELU && (int)ACT_SILU == (int)CUDA_SILU,
               "cuda_act is graph_act");

static float *buffer(const program *p, int var)
{
    return p->buffers + p->g->vars[var].offset;
}

/* ---- convolutions and linear layers ---------------------------------------------------------- */

conv_task cuda_conv_task(const program *p, const layer *l, conv_pass pass, bool add)
{
    conv_task t = {.s = l->conv, .pass = pass, .t = p->t, .precision = p->c.precision, .add = add};
    t.bias = pass == CONV_FORWARD && l->node->bias >= 0;
    t.relu = pass == CONV_FORWARD && l->relu;
    return t;
}

static void own_pass(program *p, const layer *l, conv_pass pass, const conv_operands *o, bool add)
{
    void *stream = p->d->stream(p->dev);
    if (pass == CONV_FORWARD)
        cuda_conv_forward(stream, p->t, l->conv, o->a, o->b, o->bias, l->relu, p->sums, o->out);
    else if (pass == CONV_DATA)
        cuda_conv_data(stream, p->t, l->conv, o->a, o->b, p->sums, o->out, add);
    else
        cuda_conv_weights(stream, p->t, l->conv, o->a, o->b, p->sums, o->out);
}

int cuda_conv_pass(program *p, const layer *l, conv_pass pass, int choice, bool add, err *e)
{
    const tensor *x = &p->tensors[l->node->in[0]], *y = &p->tensors[l->out];
    size_t aside = p->workspace_aside;
    conv_operands o = {.workspace = p->workspace,
                       .workspace_bytes = aside ? aside : p->workspace_bytes};
    if (aside && pass == CONV_WEIGHTS) {
        o.workspace = (char *)p->workspace + aside;
        o.workspace_bytes = p->workspace_bytes - aside;
    }
    if (pass == CONV_FORWARD) {
        o.a = x->y, o.b = weights(p, l), o.out = y->y;
        o.bias = param(p, l->node->bias);
    } else if (pass == CONV_DATA) {
        o.a = y->dy, o.b = weights(p, l), o.out = x->dy;
    } else {
        o.a = x->y, o.b = y->dy, o.out = grad(p, l->node->weight);
    }
    if (choice != CHOICE_OWN) {
        conv_task t = cuda_conv_task(p, l, pass, add);
        return p->d->run(p->dev, &t, choice, &o, e);
    }
    own_pass(p, l, pass, &o, add);
    return 0;
}

/* ---- forward --------------------------------------------------------------------------------- */

norm_shape cuda_norm_of(const run *r, const graph_node *n)
{
    return (norm_shape){.n = r->p->c.batch,
                        .c = n->shape.c,
                        .hw = plane(n->shape),
                        .eps = n->bn.eps,
                        .momentum = n->bn.momentum};
}

pool_shape cuda_pool_of(const run *r, const layer *l)
{
    const graph_node *n = l->node;
    shape in = input_shape(r, l, 0);
    pool_shape s = {.n = r->p->c.batch, .c = in.c, .h = in.h, .w = in.w};
    s.p = n->shape.h, s.q = n->shape.w;
    if (n->op == OP_ADAPTIVE_AVG_POOL) {
        s.adaptive = 1;
        return s;
    }
    s.kernel_h = n->pool.kernel_h, s.kernel_w = n->pool.kernel_w;
    s.stride_h = n->pool.stride_h, s.stride_w = n->pool.stride_w;
    s.pad_h = n->pool.pad_h, s.pad_w = n->pool.pad_w;
    s.count_pad = n->pool.count_pad;
    return s;
}

int cuda_forward_input(run *r, const layer *l, const tensor *y, err *e)
{
    program *p = r->p;
    const staging *in = &p->in;
    shape s = l->node->shape;
    (void)e;
    if (r->from)
        cuda_gather(r->stream, r->from, p->c.batch, p->t, y->y);
    else
        cuda_input(r->stream, r->args, in->device + in->x,
                   (const float *)(const void *)(in->device + in->scale_shift), p->c.batch, s.c,
                   plane(s), p->t, y->y);
    return 0;
}

int cuda_forward_conv(run *r, const layer *l, const tensor *y, err *e)
{
    program *p = r->p;
    if (!l->pooled)
        return cuda_conv_pass(p, l, CONV_FORWARD, l->choice[CONV_FORWARD], false, e);
    cuda_conv_pool_forward(r->stream, p->t, l->conv, l->pool, input(r, l, 0)->y, weights(p, l),
                           param(p, l->node->bias), l->relu, r->training ? y->winner : NULL, y->y);
    return 0;
}

int cuda_forward_norm(run *r, const layer *l, const tensor *y, err *e)
{
    (void)e;
    program *p = r->p;
    const graph_node *n = l->node;
    norm_shape s = cuda_norm_of(r, n);
    const void *x = input(r, l, 0)->y;
    float *mean = buffer(p, n->running_mean), *var = buffer(p, n->running_var);
    const float *w = param(p, n->weight), *b = param(p, n->bias);
    const void *also = l->also < 0 ? NULL : p->tensors[l->also].y;
    if (r->training) {
        cuda_norm_forward(r->stream, p->t, r->args, s, x, p->norm_sums, y->saved, mean, var,
                          p->counters + p->g->vars[n->batches].offset, w, b, also, l->relu, y->y);
        return 0;
    }
    cuda_norm_running(r->stream, s, mean, var, y->saved);
    cuda_norm_apply(r->stream, p->t, r->args, s, x, y->saved, w, b, also, l->relu, y->y);
    return 0;
}

int cuda_forward_act(run *r, const layer *l, const tensor *y, err *e)
{
    const graph_node *n = l->node;
    (void)e;
    cuda_activation_forward(r->stream, r->p->t, (int)n->act.kind, (float)n->act.slope,
                            values(r, n->shape), input(r, l, 0)->y, y->y);
    return 0;
}

int cuda_forward_max_pool(run *r, const layer *l, const tensor *y, err *e)
{
    (void)e;
    cuda_max_pool_forward(r->stream, r->p->t, cuda_pool_of(r, l), input(r, l, 0)->y,
                          r->training ? y->winner : NULL, y->y);
    return 0;
}

int cuda_forward_avg_pool(run *r, const layer *l, const tensor *y, err *e)
{
    (void)e;
    cuda_avg_pool_forward(r->stream, r->p->t, cuda_pool_of(r, l), input(r, l, 0)->y, y->y);
    return 0;
}

int cuda_forward_pair(run *r, const layer *l, const tensor *y, err *e)
{
    const graph_node *n = l->node;
    (void)e;
    cuda_pair_forward(r->stream, r->p->t, n->op == OP_MUL, l->relu, broadcasts(r, l), r->p->c.batch,
                      n->shape.c, plane(n->shape), input(r, l, 0)->y, input(r, l, 1)->y, y->y);
    return 0;
}

int cuda_forward_parts(run *r, const layer *l, const tensor *y, err *e)
{
    const graph_node *n = l->node;
    size_t rows = (size_t)r->p->c.batch * (size_t)plane(n->shape);
    int at = n->op == OP_PAD_CHANNELS ? n->pad.before : 0;
    if (n->op == OP_PAD_CHANNELS &&
        r->p->d->zero(r->p->dev, y->y, values(r, n->shape) * element_bytes(r->p->t), e))
        return -1;
    for (int k = 0; k < n->in_count; k++) {
        int part = input_shape(r, l, k).c;
        cuda_part_forward(r->stream, r->p->t, rows, part, n->shape.c, at, input(r, l, k)->y, y->y);
        at += part;
    }
    return 0;
}

int cuda_forward_flatten(run *r, const layer *l, const tensor *y, err *e)
{
    shape in = input_shape(r, l, 0);
    (void)e;
    if (cuda_flatten_copies(r->p, l->node))
        cuda_copy(r->stream, r->p->t, values(r, in), input(r, l, 0)->y, y->y, false);
    else
        cuda_transpose(r->stream, r->p->t, r->p->c.batch, plane(in), in.c, input(r, l, 0)->y, y->y,
                       false);
    return 0;
}

void cuda_run_dropout(run *r, const layer *l, const void *x, void *y, bool add)
{
    const graph_node *n = l->node;
    const program *p = r->p;
    cuda_dropout(r->stream, p->t, r->args,
                 (const uint64_t *)(const void *)(p->in.device + p->in.keys), n->dropout.p,
                 n->dropout.layer, p->c.batch, n->shape.c, plane(n->shape), x, y, add);
}

int cuda_forward_dropout(run *r, const layer *l, const tensor *y, err *e)
{
    (void)e;
    if (r->training)
        cuda_run_dropout(r, l, input(r, l, 0)->y, y->y, false);
    else
        cuda_copy(r->stream, r->p->t, values(r, l->node->shape), input(r, l, 0)->y, y->y, false);
    return 0;
}

static int forward(run *r, err *e)
{
    const program *p = r->p;
    for (int i = 0; i < p->head; i++) {
        const layer *l = &p->layers[i];
        if (cuda_ops[l->node->op].forward(r, l, &p->tensors[l->out], e))
            return -1;
    }
    return 0;
}

/* ---- the head -------------------------------------------------------------------------------- */

head_shape cuda_head_of(const program *p)
{
    head_shape h = {.layers = p->layer_count - p->head};
    for (int i = 0; i < h.layers; i++) {
        const layer *l = &p->layers[p->head + i];
        const tensor *y = &p->tensors[l->out];
        bool training = !p->c.inference;
        h.layer[i] =
            (head_layer){.c = l->conv.c,
                         .k = l->conv.k,
                         .relu = l->relu,
                         .w = weights(p, l),
                         .bias = param(p, l->node->bias),
                         .y = y->y,
                         .dy = y->dy,
                         .dw = training ? grad(p, l->node->weight) : NULL,
                         .db = training && l->node->bias >= 0 ? grad(p, l->node->bias) : NULL};
    }
    return h;
}

/* Enqueues the head's layers and the loss; in training also the gradient of the head's input, to
 * which nothing has written before. */
static void run_head(run *r)
{
    program *p = r->p;
    const head_shape h = cuda_head_of(p);
    const int32_t *labels = (const int32_t *)(const void *)(p->in.device + p->in.labels);
    int in = p->layers[p->head].node->in[0];
    void *dx = r->training ? p->tensors[in].dy : NULL;
    r->written[in] = dx != NULL;
    cuda_head(r->stream, p->t, r->args, p->c.batch, &h, p->tensors[in].y, labels, r->training, dx,
              p->per_row, r->result);
}

/* ---- loss ------------------------------------------------------------------------------------ */

static void loss(run *r)
{
    program *p = r->p;
    const tensor *out = &p->tensors[p->g->output];
    if (p->head < p->layer_count) {
        run_head(r);
        return;
    }
    int outputs = p->g->nodes[p->g->output].shape.c;
    const void *labels = p->in.device + p->in.labels, *targets = p->in.device + p->in.targets;
    void *d = r->training ? out->dy : NULL;
    if (p->c.loss == LOSS_MSE)
        cuda_squared_error(r->stream, p->t, r->args, p->c.batch, outputs, out->y, targets, d,
                           p->per_row, r->result);
    else
        cuda_cross_entropy(r->stream, p->t, r->args, p->c.batch, outputs, out->y, labels, d,
                           p->per_row, r->result);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* ---- update ---------------------------------------------------------------------------------- */

static optim_args optim_args_of(const optim *o)
{
    return (optim_args){.adam = o->kind != OPTIM_SGD,
                        .nesterov = o->nesterov,
                        .has_momentum = o->kind == OPTIM_SGD && optim_slots(o) > 0,
                        .decay = o->kind == OPTIM_ADAMW ? 0.0f : (float)o->weight_decay,
                        .momentum = (float)o->momentum,
                        .fresh1 = (float)(1 - o->beta1),
                        .beta2 = (float)o->beta2,
                        .fresh2 = (float)(1 - o->beta2),
                        .eps = (float)o->eps};
}

static optim_block block_of(const run *r)
{
    const program *p = r->p;
    return (optim_block){.a = r->args,
                         .o = optim_args_of(&p->c.optim),
                         .count = p->g->floats[VAR_PARAM],
                         .w = p->params,
                         .state = p->state,
                         .g = p->grads,
                         .w16 = p->t == ELEMENT_BF16 ? p->weights16 : NULL};
}

/* Whether every gradient is made by a kernel that can take its parameter's step along: our kernels
 * of the head and of convolutions with their pooling. Otherwise the optimizer's kernel would still
 * run for the other gradients, and no launch would be saved. */
static bool updates_itself(const program *p)
{
    for (int l = 0; l < p->head; l++)
        if (p->layers[l].node->weight >= 0 && !p->layers[l].pooled)
            return false;
    return true;
}

static int enqueue(run *r, run_kind kind, err *e)
{
    program *p = r->p;
    r->stream = p->d->stream(p->dev);
    r->training = kind != RUN_FORWARD;
    assert(p->g->node_count <= GRAPH_NODES_MAX);
    if (kind != RUN_UPDATE) {
        if (forward(r, e))
            return -1;
        loss(r);
    }
    const graph_node *out = &p->g->nodes[p->g->output];
    const optim_block block = block_of(r);
    r->update = kind == RUN_STEP && updates_itself(p) ? &block : NULL;
    if (kind == RUN_FORWARD)
        cuda_to_float(r->stream, p->t, values(r, out->shape), p->tensors[p->g->output].y,
                      p->logits);
    if ((kind == RUN_GRADIENTS || kind == RUN_STEP) && cuda_run_backward(r, e))
        return -1;
    if (kind == RUN_UPDATE || (kind == RUN_STEP && !r->update))
        cuda_optim(r->stream, &block);
    return 0;
}

int cuda_enqueue(program *p, run_kind kind, err *e)
{
    run r = {.p = p,
             .args = (const step_args *)(const void *)(p->in.device + p->in.args),
             .result = cuda_result(p)};
    return enqueue(&r, kind, e);
}

int cuda_enqueue_gathered(program *p, const gathering *from, err *e)
{
    run r = {.p = p, .args = from->a, .from = from, .result = p->result};
    return enqueue(&r, RUN_STEP, e);
}
