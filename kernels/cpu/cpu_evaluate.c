/* cpu_evaluate.c: the forward pass of a model that only evaluates.
 *
 * A norm is then a factor and a summand for each channel, and no result is needed once the next
 * layers have read it. So samples can go through many layers a few at a time. What these layers
 * hand to each other lies in a room of the thread's own, which its caches keep, instead of in the
 * whole batch's memory.
 *
 * The layers are cut into stretches. In most stretches a thread takes `chunk` samples through all
 * layers, then the next samples; each layer gives the number of samples that makes reading its
 * weights pay. Layers that need all samples of a thread (heavy weights), or that start the threads
 * themselves, form stretches of their own, whose results lie in the batch's memory.
 *
 * Layers ask a program where a tensor lies. In a stretch of chunks they get the thread's view: a
 * copy of the program whose tensors begin with the chunk's first sample, in the batch's memory or
 * in the room. */
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "cpu_program.h"
#include "kernels/plan.h"

/* The most bytes of a chunk's inputs and result in one layer: CHUNK_BYTES_MOST where some layer
 * needs many samples; chunks grow to CHUNK_BYTES where none does. */
enum { CHUNK_BYTES_MOST = 1 << 20, CHUNK_BYTES = 1 << 16 };

/* Layers [first, last]. */
typedef struct stretch {
    int first, last;
    int chunk;     /* 0: all samples of a thread, or one layer that starts the threads itself */
    size_t widest; /* most bytes of a sample in one layer */
} stretch;

struct evaluation {
    stretch *stretches;
    int count;
    size_t *at;    /* each node's place in a thread's room; NOWHERE: not there */
    size_t floats; /* of a thread's room */
    float *room;
    program *views; /* one a thread */
};

static const size_t NOWHERE = SIZE_MAX;

/* Has the layer nothing to do? True for norms that convolutions fold into their weights, or apply
 * on reading. */
static bool is_idle(const program *p, const layer *l)
{
    return l->entered || (p->folded && l->folded_from);
}

/* Does the layer start the threads itself? */
static bool is_whole(const layer *l)
{
    return !l->ops->forward && !l->ops->evaluate;
}

/* ---- stretches ------------------------------------------------------------------------------- */

/* How many samples the layer wants at a time; 0: all. Features in columns share cache lines, so
 * they want all. */
static int wanted(const program *p, const layer *l)
{
    if (is_whole(l) || p->tensors[l->out].form == FORM_COLUMNS)
        return 0;
    for (int j = 0; j < l->in_count; j++)
        if (p->tensors[l->in[j]].form == FORM_COLUMNS)
            return 0;
    return l->together ? least(l->samples, p->c.batch) : 1;
}

static size_t layer_bytes(const program *p, const layer *l)
{
    size_t floats = p->tensors[l->out].y.sample;
    for (int j = 0; j < l->in_count; j++)
        floats += p->tensors[l->in[j]].y.sample;
    return floats * sizeof(float);
}

/* The stretch with layer i added. */
static stretch widened(const program *p, stretch s, int i)
{
    const layer *l = &p->layers[i];
    int samples = wanted(p, l);
    size_t bytes = layer_bytes(p, l);
    s.last = i;
    s.chunk = samples > s.chunk ? samples : s.chunk;
    s.widest = bytes > s.widest ? bytes : s.widest;
    return s;
}

static bool takes(const program *p, stretch s, int i)
{
    bool all = s.chunk == 0, wants_all = wanted(p, &p->layers[i]) == 0;
    if (all || wants_all)
        return all && wants_all && !is_whole(&p->layers[i]) && !is_whole(&p->layers[s.first]);
    s = widened(p, s, i);
    return s.chunk == 1 || (size_t)s.chunk * s.widest <= CHUNK_BYTES_MOST;
}

static void keep(const program *p, stretch s)
{
    if (s.chunk && (size_t)s.chunk < CHUNK_BYTES / s.widest)
        s.chunk = least((int)(CHUNK_BYTES / s.widest), p->c.batch);
    p->evaluation->stretches[p->evaluation->count++] = s;
}

static void cut(program *p)
{
    stretch s = widened(p, (stretch){0}, 0); /* the input */
    for (int i = 1; i < p->layer_count; i++) {
        if (is_idle(p, &p->layers[i])) {
            s.last = i;
        } else if (takes(p, s, i)) {
            s = widened(p, s, i);
        } else {
            keep(p, s);
            s = widened(p, (stretch){.first = i}, i);
        }
        p->layers[i].stretch = p->evaluation->count;
    }
    keep(p, s);
}

/* ---- what is handed on within one ------------------------------------------------------------ */

/* The first and the last layer that use a node, or a tensor in its memory. */
static stretch users(const program *p, int node)
{
    stretch s = {.first = INT_MAX, .last = -1};
    for (int i = 0; i < p->layer_count; i++) {
        const layer *l = &p->layers[i];
        bool uses = !is_idle(p, l) && (l->out == node || p->tensors[l->out].root == node);
        for (int j = 0; j < l->in_count && !is_idle(p, l); j++)
            uses |= l->in[j] == node || p->tensors[l->in[j]].root == node;
        if (uses && i < s.first)
            s.first = i;
        if (uses)
            s.last = i;
    }
    return s;
}

/* Has the tensor borders or padding lanes? These are zeros that no layer writes. */
static bool has_zeros(const tensor *t)
{
    return t->form != FORM_IMAGE || t->y.halo || t->cs != t->s.c;
}

static size_t floats_of(const tensor *t, int chunk)
{
    return (size_t)chunk * t->y.sample + CPU_SLACK;
}

/* Gives tensors that are used in one stretch alone their place in a thread's room. A tensor with
 * zeros shares its place with no other. */
static int find_places(program *p, struct evaluation *e)
{
    int nodes = p->g->node_count;
    cleanup_free plan_item *items = calloc((size_t)nodes, sizeof *items);
    if (!items)
        return -1;
    for (int i = 0; i < nodes; i++) {
        const tensor *t = &p->tensors[i];
        e->at[i] = NOWHERE;
        if (t->form == FORM_NONE || t->form == FORM_COLUMNS || t->root || i == p->g->output)
            continue;
        stretch u = users(p, i);
        if (u.last < 0 || p->layers[u.first].stretch != p->layers[u.last].stretch)
            continue;
        int chunk = e->stretches[p->layers[u.first].stretch].chunk;
        if (chunk == 0)
            continue;
        bool zeros = has_zeros(t);
        e->at[i] = 0;
        items[i] = (plan_item){.bytes = floats_of(t, chunk) * sizeof(float),
                               .first = zeros ? 0 : u.first,
                               .last = zeros ? p->layer_count : u.last};
    }
    size_t bytes = plan_assign(items, nodes);
    if (bytes == SIZE_MAX)
        return -1;
    for (int i = 0; i < nodes; i++)
        if (e->at[i] != NOWHERE)
            e->at[i] = items[i].offset / sizeof(float);
    e->floats = bytes / sizeof(float);
    return 0;
}

int evaluate_find(program *p)
{
    struct evaluation *e = program_alloc(p, 1, sizeof *e);
    if (!e)
        return -1;
    p->evaluation = e;
    e->stretches = program_alloc(p, (size_t)p->layer_count, sizeof *e->stretches);
    e->at = program_alloc(p, (size_t)p->g->node_count, sizeof *e->at);
    if (!e->stretches || !e->at)
        return -1;
    bool turned = fold_turn(p, true);
    cut(p);
    int rc = find_places(p, e);
    if (turned)
        fold_turn(p, false);
    return rc;
}

bool evaluate_hands_on(const program *p, int node)
{
    const tensor *t = &p->tensors[node];
    return p->evaluation->at[t->root ? t->root : node] != NOWHERE;
}

int evaluate_place(program *p)
{
    struct evaluation *e = p->evaluation;
    size_t threads = (size_t)cpu_threads_count(p->threads), nodes = (size_t)p->g->node_count;
    e->room = program_floats(p, threads * e->floats + CPU_SLACK);
    e->views = program_alloc(p, threads, sizeof *e->views);
    tensor *tensors = program_alloc(p, threads * nodes, sizeof *tensors);
    if (!e->room || !e->views || !tensors)
        return -1;
    for (size_t i = 0; i < threads * nodes; i++)
        tensors[i] = p->tensors[i % nodes];
    for (size_t i = 0; i < threads; i++)
        e->views[i].tensors = tensors + i * nodes;
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct stretch_work {
    program *p;
    const stretch *s;
} stretch_work;

static void view_tensor(const program *p, int thread, int node, int from)
{
    const struct evaluation *e = p->evaluation;
    const tensor *t = &p->tensors[node];
    int owner = t->root ? t->root : node;
    const plane *a = &p->tensors[owner].y;
    float *begin = e->at[owner] != NOWHERE
                       ? e->room + (size_t)thread * e->floats + e->at[owner]
                       : a->data + (size_t)from * a->sample;
    e->views[thread].tensors[node].y.data = begin + (t->root ? t->channel : 0);
}

/* Makes the thread's view of these layers begin with sample `from`. */
static void view_samples(const program *p, const stretch *s, int thread, int from)
{
    for (int i = s->first; i <= s->last; i++) {
        const layer *l = &p->layers[i];
        for (int j = 0; j < l->in_count && !is_idle(p, l); j++)
            view_tensor(p, thread, l->in[j], from);
        if (!is_idle(p, l))
            view_tensor(p, thread, l->out, from);
    }
}

static void run_layers(program *p, const stretch *s, int from, int to, int thread)
{
    for (int i = s->first; i <= s->last; i++) {
        layer *l = &p->layers[i];
        if (!is_idle(p, l))
            (l->ops->evaluate ? l->ops->evaluate : l->ops->forward)(p, l, from, to, thread);
    }
}

static void run_chunks(const program *p, const stretch *s, int from, int to, int thread)
{
    program *v = &p->evaluation->views[thread];
    tensor *tensors = v->tensors;
    *v = *p;
    v->tensors = tensors;
    backend_batch b = *p->b;
    v->b = &b;
    v->convert_ns = 0;
    for (; from < to; from += s->chunk) {
        b.x = p->b->x + from, b.n = p->b->n - from;
        view_samples(p, s, thread, from);
        run_layers(v, s, 0, least(s->chunk, to - from), thread);
    }
    v->b = NULL;
}

static void run_part(void *arg, int thread, int threads)
{
    const stretch_work *w = arg;
    int n = w->p->b->n, from = n * thread / threads, to = n * (thread + 1) / threads;
    if (w->s->chunk == 0)
        run_layers(w->p, w->s, from, to, thread);
    else
        run_chunks(w->p, w->s, from, to, thread);
}

void evaluate_forward(program *p)
{
    const struct evaluation *e = p->evaluation;
    p->convert_ns = 0;
    for (int i = 0; i < e->count; i++) {
        const stretch *s = &e->stretches[i];
        for (int j = s->first; j <= s->last; j++) {
            layer *l = &p->layers[j];
            if (l->ops->pack_ahead && !is_idle(p, l))
                weights_run(p, j, j, WEIGHTS_PACK_AHEAD);
            if (l->ops->evaluate_ahead && !(p->folded && l->folded_from))
                l->ops->evaluate_ahead(p, l);
        }
        if (is_whole(&p->layers[s->first])) {
            p->layers[s->first].ops->forward_whole(p, &p->layers[s->first]);
            continue;
        }
        cpu_threads_run(p->threads, run_part, &(stretch_work){p, s});
        if (s->chunk)
            p->convert_ns += e->views[0].convert_ns;
    }
}
