/* cpu_concat.c: concat of images, without copies where what makes the parts can write pixels apart.
 *
 * DenseNet's concats grow: each begins with all of the one before. Such a chain lies in the memory
 * of its last concat, the root: every concat of it is the root's first channels, and a part that
 * only the chain reads is some channels of it, written there by the layer that makes it. So a chain
 * is rewritten as "the one before, and what is new", which also tells the norms over it whose
 * gradients add up to what is there. Other parts are copied, once.
 *
 * A tensor in a root's memory has `root` set; its pixels are `step` floats apart. Layers that read
 * one with step > cs: batch norm, a convolution that applies one, and concat alone. Layers that
 * write one: those of `slices`. */
#include <stdio.h>
#include <string.h>

#include "cpu_ops.h"

static float *row_of(const tensor *t, const plane *a, int i, int h)
{
    return tensor_pixels(a, t->cs, i) + (size_t)h * a->row;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* An image without border and padding lanes. */
static bool plain(const program *p, int node)
{
    const tensor *t = &p->tensors[node];
    return node != 0 && node != p->g->output && t->form == FORM_IMAGE && t->cs == t->s.c &&
           t->y.halo == 0;
}

static bool joinable(const program *p, const layer *l)
{
    if (!cpu_has(l->node, OP_CONCAT) || !plain(p, l->out) || p->tensors[l->out].dy.halo)
        return false;
    for (int j = 0; j < l->in_count; j++) {
        const tensor *t = &p->tensors[l->in[j]];
        if (t->form != FORM_IMAGE || t->s.c % CPU_LANES != 0)
            return false;
        for (int k = 0; k < j; k++)
            if (l->in[k] == l->in[j])
                return false;
    }
    return true;
}

/* Is `before` the beginning of l? */
static bool continues(const layer *l, const layer *before)
{
    return before->in_count < l->in_count &&
           memcmp(l->in, before->in, (size_t)before->in_count * sizeof *l->in) == 0;
}

/* Do norms alone read the node, or what applies them? */
static bool read_by_norms(const program *p, int node)
{
    for (int i = 0; i < p->layer_count; i++)
        for (int j = 0; j < p->layers[i].in_count; j++)
            if (p->layers[i].in[j] == node && !p->layers[i].entry &&
                (!cpu_has(p->layers[i].node, OP_BATCH_NORM) || j > 0))
                return false;
    return true;
}

/* How many concats of the chain that ends with layer `last` there are: their indices, last
 * first. */
static int find_chain(const program *p, int last, int *chain)
{
    int count = 0;
    chain[count++] = last;
    for (int i = last - 1; i >= 0; i--) {
        const layer *l = &p->layers[i];
        if (joinable(p, l) && p->tensors[l->out].root == 0 &&
            continues(&p->layers[chain[count - 1]], l) && read_by_norms(p, l->out))
            chain[count++] = i;
    }
    return count;
}

static bool in_chain(int layer_index, const int *chain, int count)
{
    for (int i = 0; i < count; i++)
        if (chain[i] == layer_index)
            return true;
    return false;
}

/* May the part lie in the chain's memory: made by a layer that can write there (and does without a
 * border of its gradient), read by the chain alone? */
static bool part_joins(const program *p, int node, const int *chain, int count, const bool *slices)
{
    bool made = false;
    if (!plain(p, node) || p->tensors[node].root || p->tensors[node].strided)
        return false;
    for (int i = 0; i < p->layer_count; i++) {
        made |= p->layers[i].out == node && slices[i];
        for (int j = 0; j < p->layers[i].in_count; j++)
            if (p->layers[i].in[j] == node && !in_chain(i, chain, count))
                return false;
    }
    return made;
}

static void place_at(program *p, int node, int root, int channel)
{
    p->tensors[node].root = root;
    p->tensors[node].channel = channel;
    p->tensors[node].step = p->tensors[root].cs;
    p->tensors[node].dy.halo = 0;
}

/* Everything that joins gets its place; then each concat but the first is the one before and what
 * is new. */
static void join(program *p, const int *chain, int count, const bool *slices)
{
    const layer *all = &p->layers[chain[0]];
    for (int j = 0, channel = 0; j < all->in_count; j++) {
        if (part_joins(p, all->in[j], chain, count, slices))
            place_at(p, all->in[j], all->out, channel);
        channel += p->tensors[all->in[j]].s.c;
    }
    for (int i = 0; i < count; i++) {
        layer *l = &p->layers[chain[i]];
        if (i > 0)
            place_at(p, l->out, all->out, 0);
        if (i + 1 == count)
            continue;
        const layer *before = &p->layers[chain[i + 1]];
        int fresh = l->in_count - before->in_count;
        memmove(l->in + 1, l->in + before->in_count, (size_t)fresh * sizeof *l->in);
        l->in[0] = before->out;
        l->in_count = 1 + fresh;
    }
}

/* The norm over the concat before the one that l reads. */
static const layer *norm_before(const program *p, const layer *l)
{
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].out == l->in[0] && cpu_has(p->layers[i].node, OP_CONCAT))
            for (int j = 0; j < p->layer_count; j++)
                if (cpu_has(p->layers[j].node, OP_BATCH_NORM) &&
                    p->layers[j].in[0] == p->layers[i].in[0] && &p->layers[j] < l &&
                    p->tensors[p->layers[j].out].cs == p->layers[j].node->shape.c)
                    return &p->layers[j];
    return NULL;
}

void concat_join(program *p, const bool *slices)
{
    int *chain = program_alloc(p, (size_t)p->layer_count, sizeof *chain);
    for (int i = p->layer_count - 1; i >= 0 && chain; i--)
        if (joinable(p, &p->layers[i]) && p->tensors[p->layers[i].out].root == 0)
            join(p, chain, find_chain(p, i, chain), slices);
    for (int i = 0; i < p->layer_count; i++) {
        layer *l = &p->layers[i];
        if (cpu_has(l->node, OP_BATCH_NORM) && p->tensors[l->in[0]].form == FORM_IMAGE)
            l->known = norm_before(p, l);
    }
}

/* ---- the layer ------------------------------------------------------------------------------- */

/* Does the part lie in y's memory already? */
static bool in_place(const program *p, const layer *l, int j)
{
    const tensor *x = &p->tensors[l->in[j]], *y = &p->tensors[l->out];
    return x->root && x->root == (y->root ? y->root : l->out);
}

static void concat_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        for (int j = 0, channel = 0; j < l->in_count; channel += p->tensors[l->in[j++]].s.c) {
            const tensor *x = &p->tensors[l->in[j]];
            for (int h = 0; h < y->s.h && !in_place(p, l, j); h++) {
                const float *src = row_of(x, &x->y, i, h);
                float *row = row_of(y, &y->y, i, h) + channel;
                for (int w = 0; w < y->s.w; w++)
                    memcpy(row + w * y->step, src + w * x->step, (size_t)x->s.c * sizeof *row);
            }
        }
}

/* One pixel's channels. The last few one by one: a whole vector would reach into the next pixel,
 * which may be another thread's at this moment. */
static void pixel_back(const program *p, int channels, const float *dy, bool accumulate, float *dx)
{
    int whole = channels / CPU_LANES * CPU_LANES;
    p->k->relu_back((size_t)whole, NULL, dy, accumulate, dx);
    for (int c = whole; c < channels; c++)
        dx[c] = accumulate ? dx[c] + dy[c] : dy[c];
}

static void concat_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        for (int j = 0, channel = 0; j < l->in_count; channel += p->tensors[l->in[j++]].s.c) {
            const tensor *x = &p->tensors[l->in[j]];
            for (int h = 0; h < y->s.h && x->dy.data && !in_place(p, l, j); h++) {
                const float *row = row_of(y, &y->dy, i, h) + channel;
                for (int w = 0; w < y->s.w; w++)
                    pixel_back(p, x->s.c, row + w * y->step, l->add[j],
                               row_of(x, &x->dy, i, h) + w * x->step);
            }
        }
}

static const layer_ops concat_ops = {.forward = concat_forward, .backward = concat_backward};

int layer_concat(program *p, layer *l)
{
    int copied = 0;
    for (int j = 0; j < l->in_count; j++) {
        if (p->tensors[l->in[j]].cs % CPU_LANES != 0)
            return layer_any(l);
        copied += !in_place(p, l, j);
    }
    l->ops = &concat_ops;
    snprintf(l->choice, sizeof l->choice,
             copied == 0             ? "joined"
             : copied == l->in_count ? "copy"
                                     : "joined+copy");
    return 0;
}
