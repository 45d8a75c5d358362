/* cpu_reference.c: layers whose op the CPU backend lacks, by the reference's loops. Values are
 * widened to double and brought into NCHW order, and what the op returns goes back into the layout
 * of the layer's tensors.
 *
 * Samples go one at a time, on the thread that has them. An op whose result depends on the whole
 * batch (op_row.whole_batch) gets all samples at once, on the caller's thread. Parameters are
 * widened when they have changed. Each thread sums their gradients over its samples, and the sums
 * are added in the threads' order: the same number of threads gives the same bits.
 *
 * Memory: what forward keeps for backward, the widened parameters and the sums are the layer's own.
 * The room for values is scratch for one sample a thread, or leased for a whole batch. */
#include <stdio.h>
#include <string.h>

#include "cpu_ops.h"

struct by_reference {
    const op_row *row;
    size_t weights, count; /* parameters: weights, and with the biases after them */
    double *params;        /* widened */
    double *sums;          /* of their gradients; `count` a thread */
    char *kept;            /* op_row.keeps */
    size_t kept_each;      /* bytes of a sample; of a whole batch: 0 */
    float *leased[2];      /* a whole batch's room, forward and backward */
};

/* ---- between layouts ------------------------------------------------------------------------- */

static float *element(view v, int i, int c, int h, int w)
{
    return &v.p[(size_t)i * v.sn + (size_t)c * v.sc + (size_t)h * v.sh + (size_t)w * v.sw];
}

/* n samples from `from` on, to (n, C, H, W). */
static void widen(view v, shape s, int from, int n, double *to)
{
    for (int i = from; i < from + n; i++)
        for (int c = 0; c < s.c; c++)
            for (int h = 0; h < s.h; h++)
                for (int w = 0; w < s.w; w++)
                    *to++ = (double)*element(v, i, c, h, w);
}

/* And back; where `add` is, to what is there. */
static void narrow(const double *x, view v, shape s, int from, int n, bool add)
{
    for (int i = from; i < from + n; i++)
        for (int c = 0; c < s.c; c++)
            for (int h = 0; h < s.h; h++)
                for (int w = 0; w < s.w; w++) {
                    float *to = element(v, i, c, h, w);
                    *to = (float)(add ? (double)*to + *x : *x);
                    x++;
                }
}

/* ---- one call of the op ---------------------------------------------------------------------- */

typedef struct call {
    op_call o;
    backend_batch b;
    shape in[GRAPH_INPUTS_MAX];
    const double *x[GRAPH_INPUTS_MAX];
    double *dx[GRAPH_INPUTS_MAX];
    double *values[GRAPH_INPUTS_MAX], *result; /* in the room: the inputs, and y or dy */
} call;

/* Doubles of the room for n samples: inputs, result, and the inputs' gradients. */
static size_t room_for(const program *p, const layer *l, int n)
{
    size_t inputs = 0;
    for (int j = 0; j < l->in_count; j++)
        inputs += shape_count(p->tensors[l->in[j]].s);
    return (size_t)n * (inputs * (p->c.inference ? 1 : 2) + shape_count(p->tensors[l->out].s));
}

static double *room_of(const layer *l, int thread, bool back)
{
    const struct by_reference *r = l->by_reference;
    float *room = r->row->whole_batch ? r->leased[back] : layer_scratch(l, thread);
    return (double *)(void *)room;
}

/* Gives inputs, result and gradients their places in the room. */
static void place(const program *p, const layer *l, call *a, double *room, bool back)
{
    size_t n = (size_t)a->o.N;
    for (int j = 0; j < l->in_count; j++) {
        a->in[j] = p->tensors[l->in[j]].s;
        a->x[j] = a->values[j] = room;
        room += n * shape_count(a->in[j]);
    }
    a->result = room;
    room += n * shape_count(p->tensors[l->out].s);
    for (int j = 0; j < l->in_count && back; j++) {
        bool wanted = p->tensors[l->in[j]].dy.data != NULL;
        a->dx[j] = wanted ? room : NULL;
        room += wanted ? n * shape_count(a->in[j]) : 0;
    }
}

static void set_model(const program *p, const layer *l, call *a, int from, int thread)
{
    const struct by_reference *r = l->by_reference;
    const graph_node *n = l->node;
    double *sums = r->sums ? r->sums + (size_t)thread * r->count : NULL;
    op_call *o = &a->o;
    o->w = n->weight < 0 ? NULL : r->params;
    o->b = n->bias < 0 ? NULL : r->params + r->weights;
    o->dw = n->weight < 0 ? NULL : sums;
    o->db = n->bias < 0 || !sums ? NULL : sums + r->weights;
    o->kept = p->training && r->kept ? r->kept + (size_t)from * r->kept_each : NULL;
    o->running_mean =
        n->running_mean < 0 ? NULL : p->s.buffers + p->g->vars[n->running_mean].offset;
    o->running_var = n->running_var < 0 ? NULL : p->s.buffers + p->g->vars[n->running_var].offset;
    o->batches = n->batches < 0 ? NULL : p->s.counters + p->g->vars[n->batches].offset;
    o->seed = p->c.seed;
}

/* Samples [from, from + n), with the inputs' values in place. */
static void prepare(const program *p, const layer *l, call *a, int from, int n, int thread,
                    bool back)
{
    const backend_batch *b = p->b;
    a->b = *b;
    a->b.n = n, a->b.x = b->x + from, a->b.sample = b->sample ? b->sample + from : NULL;
    a->o = (op_call){.n = l->node, .N = n, .training = p->training, .batch = &a->b};
    a->o.in = a->in, a->o.x = a->x, a->o.dx = a->dx;
    place(p, l, a, room_of(l, thread, back), back);
    set_model(p, l, a, from, thread);
    for (int j = 0; j < l->in_count && (!back || l->by_reference->row->reads_inputs); j++)
        widen(tensor_view(&p->tensors[l->in[j]]), a->in[j], from, n, a->values[j]);
}

static void forward_samples(const program *p, const layer *l, int from, int n, int thread)
{
    const tensor *out = &p->tensors[l->out];
    call a;
    prepare(p, l, &a, from, n, thread, false);
    a.o.y = a.result;
    l->by_reference->row->forward(&a.o);
    narrow(a.result, tensor_view(out), out->s, from, n, false);
}

static void backward_samples(const program *p, const layer *l, int from, int n, int thread)
{
    const tensor *out = &p->tensors[l->out];
    call a;
    prepare(p, l, &a, from, n, thread, true);
    widen(tensor_gradient(out), out->s, from, n, a.result);
    a.o.dy = a.result;
    for (int j = 0; j < l->in_count; j++)
        if (a.dx[j])
            memset(a.dx[j], 0, (size_t)n * shape_count(a.in[j]) * sizeof(double));
    l->by_reference->row->backward(&a.o);
    for (int j = 0; j < l->in_count; j++)
        if (a.dx[j])
            narrow(a.dx[j], tensor_gradient(&p->tensors[l->in[j]]), a.in[j], from, n, l->add[j]);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static void pack(program *p, layer *l, int part, int parts)
{
    struct by_reference *r = l->by_reference;
    const float *w = program_param(p, l->node->weight), *b = program_param(p, l->node->bias);
    size_t from = r->count * (size_t)part / (size_t)parts,
           to = r->count * (size_t)(part + 1) / (size_t)parts;
    for (size_t i = from; i < to; i++)
        r->params[i] = (double)(i < r->weights ? w[i] : b[i - r->weights]);
}

/* All threads' sums into the model's gradients; they begin at zero again. */
static void finish(program *p, layer *l, int part, int parts)
{
    struct by_reference *r = l->by_reference;
    int threads = cpu_threads_count(p->threads);
    size_t from = r->count * (size_t)part / (size_t)parts,
           to = r->count * (size_t)(part + 1) / (size_t)parts;
    for (size_t i = from; i < to; i++) {
        double sum = 0;
        for (int t = 0; t < threads; t++) {
            sum += r->sums[(size_t)t * r->count + i];
            r->sums[(size_t)t * r->count + i] = 0;
        }
        if (i < r->weights)
            program_grad(p, l->node->weight)[i] = (float)sum;
        else
            program_grad(p, l->node->bias)[i - r->weights] = (float)sum;
    }
}

/* ---- the layer ------------------------------------------------------------------------------- */

static void forward(program *p, layer *l, int from, int to, int thread)
{
    for (int i = from; i < to; i++)
        forward_samples(p, l, i, 1, thread);
}

static void backward(program *p, layer *l, int from, int to, int thread)
{
    for (int i = from; i < to; i++)
        backward_samples(p, l, i, 1, thread);
}

static void forward_whole(program *p, layer *l)
{
    forward_samples(p, l, 0, p->b->n, 0);
}

static void backward_whole(program *p, layer *l)
{
    backward_samples(p, l, 0, p->b->n, 0);
    if (l->by_reference->count)
        finish(p, l, 0, 1);
}

static int take_params(program *p, layer *l, struct by_reference *r)
{
    size_t threads = (size_t)cpu_threads_count(p->threads);
    if (l->node->weight < 0)
        return 0;
    r->weights = p->g->vars[l->node->weight].count;
    r->count = r->weights + (l->node->bias < 0 ? 0 : p->g->vars[l->node->bias].count);
    r->params = program_alloc(p, r->count, sizeof *r->params);
    if (!p->c.inference)
        r->sums = program_alloc(p, threads * r->count, sizeof *r->sums);
    return r->params && (p->c.inference || r->sums) ? 0 : -1;
}

static int take_kept(program *p, const layer *l, struct by_reference *r)
{
    bool whole = r->row->whole_batch;
    int batch = p->c.batch;
    if (p->c.inference || !r->row->keeps)
        return 0;
    size_t each = (r->row->keeps(l->node, whole ? batch : 1) + 7) / 8 * 8;
    r->kept_each = whole ? 0 : each;
    r->kept = program_alloc(p, whole ? 1 : (size_t)batch, each);
    return r->kept ? 0 : -1;
}

static int take_room(program *p, layer *l, struct by_reference *r)
{
    bool whole = r->row->whole_batch;
    size_t floats = room_for(p, l, whole ? p->c.batch : 1) * sizeof(double) / sizeof(float);
    if (!whole) {
        l->scratch_floats = floats;
        l->scratch_shared = true;
        return 0;
    }
    if (program_lease(p, &r->leased[false], floats, l, LEASE_FORWARD) != 0)
        return -1;
    return p->c.inference ? 0 : program_lease(p, &r->leased[true], floats, l, LEASE_BACKWARD);
}

int layer_reference(program *p, layer *l)
{
    static const layer_ops each = {.forward = forward, .backward = backward};
    static const layer_ops each_with_params = {
        .forward = forward, .backward = backward, .pack = pack, .finish = finish};
    static const layer_ops whole = {.forward_whole = forward_whole,
                                    .backward_whole = backward_whole};
    static const layer_ops whole_with_params = {
        .forward_whole = forward_whole, .backward_whole = backward_whole, .pack = pack};
    struct by_reference *r = program_alloc(p, 1, sizeof *r);
    if (!r)
        return -1;
    r->row = &op_rows[l->node->op];
    l->by_reference = r;
    bool params = l->node->weight >= 0;
    if (r->row->whole_batch)
        l->ops = params ? &whole_with_params : &whole;
    else
        l->ops = params ? &each_with_params : &each;
    snprintf(l->choice, sizeof l->choice, "reference");
    return take_params(p, l, r) || take_kept(p, l, r) || take_room(p, l, r) ? -1 : 0;
}
