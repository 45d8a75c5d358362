/* cpu_fold.c: convolutions that take the batch norm after them into their weights, where a model
 * only evaluates: y = scale (w x + b) + shift = (scale w) x + (scale b + shift). The norm's layer
 * has nothing to do then, and the convolution writes its result, ReLU included.
 *
 * A program changes between the two ways with what it is asked for, by an exchange of a few fields
 * and weights packed again; so an epoch of training and its evaluation pay for that once each.
 * Norms that take a sum with them stay: they save no pass. */
#include <math.h>

#include "cpu_ops.h"

/* What a convolution's fields are when it is not in use as `layer` says now. */
struct fold {
    const layer *norm;
    int out;
    bool relu;
    size_t y_row;
};

static size_t filter_floats(const program *p, const layer *l)
{
    return p->g->vars[l->node->weight].count / (size_t)l->node->shape.c;
}

/* The norm that alone reads what l makes, or NULL. */
static layer *norm_after(program *p, const layer *l)
{
    layer *norm = NULL;
    if (!l->folds || l->relu || l->out == p->g->output)
        return NULL;
    for (int i = 0; i < p->layer_count; i++)
        for (int j = 0; j < p->layers[i].in_count; j++) {
            if (p->layers[i].in[j] != l->out)
                continue;
            if (norm || !cpu_has(p->layers[i].node, OP_BATCH_NORM) || p->layers[i].in_count > 1)
                return NULL;
            norm = &p->layers[i];
        }
    return norm && p->tensors[norm->out].root == 0 && p->tensors[l->out].root == 0 ? norm : NULL;
}

int fold_find(program *p)
{
    size_t most = 0;
    for (int i = 0; i < p->layer_count; i++) {
        layer *l = &p->layers[i], *norm = norm_after(p, l);
        if (!norm)
            continue;
        const tensor *y = &p->tensors[norm->out];
        l->fold = program_alloc(p, 1, sizeof *l->fold);
        if (!l->fold)
            return -1;
        *l->fold = (struct fold){norm, norm->out, norm->relu, y->y.row};
        norm->folded_from = l;
        p->folds++;
        size_t floats = filter_floats(p, l) * (size_t)l->node->shape.c;
        most = floats > most ? floats : most;
    }
    p->fold_weights = program_floats(p, most + CPU_SLACK);
    return p->fold_weights ? 0 : -1;
}

static void exchange(layer *l)
{
    struct fold *f = l->fold;
    int out = l->out;
    bool relu = l->relu;
    size_t y_row = l->g.kh ? l->g.y_row : l->ahead.y_row;
    l->out = f->out, l->relu = f->relu;
    l->g.relu = l->ahead.relu = f->relu;
    l->g.y_row = l->ahead.y_row = f->y_row;
    f->out = out, f->relu = relu, f->y_row = y_row;
}

bool fold_turn(program *p, bool folded)
{
    if (p->folds == 0 || p->folded == folded)
        return false;
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].fold)
            exchange(&p->layers[i]);
    p->folded = folded;
    return true;
}

/* The norm's factor and summand of channel c. */
static void norm_line(const program *p, const graph_node *n, int c, float *scale, float *shift)
{
    const float *mean = p->s.buffers + p->g->vars[n->running_mean].offset;
    const float *var = p->s.buffers + p->g->vars[n->running_var].offset;
    *scale = program_param(p, n->weight)[c] * (float)(1 / sqrt((double)var[c] + n->bn.eps));
    *shift = program_param(p, n->bias)[c] - mean[c] * *scale;
}

const float *layer_weights(const program *p, const layer *l)
{
    const float *w = program_param(p, l->node->weight);
    if (!p->folded || !l->fold)
        return w;
    size_t each = filter_floats(p, l);
    for (int k = 0; k < l->node->shape.c; k++) {
        float scale, shift;
        norm_line(p, l->fold->norm->node, k, &scale, &shift);
        for (size_t i = 0; i < each; i++)
            p->fold_weights[(size_t)k * each + i] = w[(size_t)k * each + i] * scale;
    }
    return p->fold_weights;
}

void layer_bias(const program *p, const layer *l, float *to)
{
    const float *b = program_param(p, l->node->bias);
    for (int k = 0; k < l->node->shape.c; k++) {
        float scale = 1, shift = 0;
        if (p->folded && l->fold)
            norm_line(p, l->fold->norm->node, k, &scale, &shift);
        to[k] = (b ? b[k] * scale : 0) + shift;
    }
}
