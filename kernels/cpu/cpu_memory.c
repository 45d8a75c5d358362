/* cpu_memory.c: a program's memory, and which blocks share it, because they are never in use at the
 * same time.
 *
 * Time is counted in segments: a layer that works on the batch as a whole is one, and so is each
 * run of layers between two such, whose samples go through at their own pace. Forward segments come
 * first, then the loss, then the backward ones. Where the model only evaluates, samples go at their
 * own pace through whole stretches (cpu_evaluate.c): what has memory of the batch's then, too, is
 * in use as long as any layer of the stretch is. plan.h places the blocks.
 *
 * Two kinds of gradients have none of their own: a norm writes its input's where its result's was,
 * and a layer that is through with its input writes the gradient over it.
 *
 * What takes part: the pixels of images without padding lanes (an activation only if it has no
 * border, which must stay zero; the borders of gradients are cleared before each use), and what a
 * layer leased. Everything else has memory of its own. */
#include <limits.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "cpu_ops.h"
#include "kernels/large_pages.h"
#include "kernels/plan.h"

void *program_alloc(program *p, size_t count, size_t size)
{
    size_t bytes, head = 64;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + head + 63) / 64 * 64;
    struct block *b = large_pages_alloc(bytes);
    if (!b)
        return NULL;
    b->next = p->blocks;
    p->blocks = b;
    p->bytes += bytes;
    return (char *)b + head;
}

float *program_floats(program *p, size_t count)
{
    return program_alloc(p, count, sizeof(float));
}

/* A block that one layer needs during one of its two segments alone. */
struct lease {
    struct lease *next;
    float **to;
    size_t floats;
    const layer *l;
    lease_time when;
};

/* Where planes point until they are placed: layers ask whether there is a gradient before that. */
static float unplaced[CPU_SLACK];

int program_lease(program *p, float **to, size_t floats, const layer *l, lease_time when)
{
    struct lease *a = program_alloc(p, 1, sizeof *a);
    if (!a)
        return -1;
    *a = (struct lease){p->leases, to, floats, l, when};
    p->leases = a;
    *to = unplaced;
    return 0;
}

bool plane_shares(const program *p, int node, const plane *a)
{
    const tensor *t = &p->tensors[node];
    bool gradient = a == &t->dy;
    return node != 0 && node != p->g->output && t->form == FORM_IMAGE && t->cs == t->s.c &&
           (gradient || a->halo == 0);
}

void plane_postpone(plane *a)
{
    a->data = unplaced;
    a->shared = true;
}

/* ---- when a block is in use ------------------------------------------------------------------ */

typedef struct times {
    int *forward, *backward; /* of each layer */
    int *begin, *end;        /* forward, of all layers of its stretch */
    int *producer, *reader;  /* of each node: the layer that makes it, the last that reads it */
    int loss;
} times;

static int count_times(const program *p, times *t)
{
    int now = 0;
    for (int i = 0; i < p->layer_count; i++) {
        bool alone = p->layers[i].ops->forward_whole, before = i && !p->layers[i - 1].ops->forward,
             other = i && p->layers[i - 1].stretch != p->layers[i].stretch;
        now += i && (p->c.inference ? other : alone || before);
        t->forward[i] = now;
        t->begin[i] = i == 0 || other ? now : t->begin[i - 1];
        t->producer[p->layers[i].out] = i;
        for (int j = 0; j < p->layers[i].in_count; j++)
            t->reader[p->layers[i].in[j]] = i;
    }
    for (int i = p->layer_count - 1; i >= 0; i--) {
        bool last = i == p->layer_count - 1 || p->layers[i].stretch != p->layers[i + 1].stretch;
        t->end[i] = last ? t->forward[i] : t->end[i + 1];
    }
    t->loss = ++now;
    for (int i = p->layer_count - 1; i >= 0; i--) {
        bool last = i == p->layer_count - 1;
        bool alone = p->layers[i].ops->backward_whole,
             before = !last && !p->layers[i + 1].ops->backward;
        t->backward[i] = last || alone || before ? ++now : now;
    }
    return now;
}

/* Does the layer's backward look at the values of its input j? */
static bool reads_input(const layer *l, int j)
{
    if (l->acted) /* the norm computes it again */
        return false;
    if (l->by_reference)
        return op_rows[l->node->op].reads_inputs;
    cpu_reads reads = cpu_ops[l->node->op].inputs;
    return reads == READS_ALL || (reads == READS_FIRST && j == 0);
}

/* Does it look at its own result? */
static bool reads_result(const layer *l)
{
    if (l->acted)
        return false;
    switch (cpu_ops[l->node->op].result) {
    case READS_ALL: return true;
    case READS_FOR_RELU: return l->relu;
    case READS_FOR_RELU_OF_SUM: return l->relu && l->in_count > 1;
    default: return false;
    }
}

static int first_use(const program *p, const times *t, int node, int writer)
{
    return evaluate_hands_on(p, node) ? t->forward[writer] : t->begin[writer];
}

static int last_use(const program *p, const times *t, int node)
{
    int made = t->producer[node], reader = t->reader[node];
    int last = evaluate_hands_on(p, node) ? t->forward[reader] : t->end[reader];
    if (p->c.inference)
        return last;
    /* Backward runs the other way: the first of the layers that look at it is the last to do so. */
    if (reads_result(&p->layers[made]))
        return t->backward[made];
    for (int i = made + 1; i <= t->reader[node]; i++)
        for (int j = 0; j < p->layers[i].in_count; j++)
            if (p->layers[i].in[j] == node && reads_input(&p->layers[i], j))
                return t->backward[i];
    return last;
}

/* ---- placing --------------------------------------------------------------------------------- */

typedef struct places {
    plan_item *items;
    float ***to;
    int count;
} places;

static void add(places *a, float **to, size_t floats, int first, int last)
{
    a->items[a->count] = (plan_item){.bytes = floats * sizeof(float), .first = first, .last = last};
    a->to[a->count++] = to;
}

/* From when to when a node's values and gradient are in use, and those of all that lies in its
 * memory. */
typedef struct life {
    int y_first, y_last, dy_first, dy_last;
} life;

static life life_of(const program *p, const times *t, int node)
{
    life all = {INT_MAX, 0, INT_MAX, 0};
    for (int i = 0; i < p->layer_count; i++) {
        int n = p->layers[i].out;
        if (n != node && p->tensors[n].root != node)
            continue;
        const layer *from = p->layers[i].folded_from; /* writes it where there is no training */
        life one = {first_use(p, t, n, from ? (int)(from - p->layers) : i), last_use(p, t, n),
                    t->backward[t->reader[n]], t->backward[i]};
        /* the norm before it writes it where there is training, and reads its gradient */
        if (p->layers[i].acted) {
            int first = t->forward[p->layers[i].acted - p->layers];
            one.y_first = first < one.y_first ? first : one.y_first;
            one.dy_last = t->backward[p->layers[i].acted - p->layers];
        }
        all.y_first = one.y_first < all.y_first ? one.y_first : all.y_first;
        all.y_last = one.y_last > all.y_last ? one.y_last : all.y_last;
        all.dy_first = one.dy_first < all.dy_first ? one.dy_first : all.dy_first;
        all.dy_last = one.dy_last > all.dy_last ? one.dy_last : all.dy_last;
    }
    return all;
}

static bool has_parts(const program *p, int node)
{
    for (int i = 0; i < p->layer_count; i++)
        if (p->tensors[p->layers[i].out].root == node)
            return true;
    return false;
}

/* A norm writes its input's gradient value by value where it has read its result's, which nobody
 * asks for after that: one memory serves both. The later ones first, so that of several in a row
 * all lie in the last one's. */
static void find_in_place(program *p)
{
    for (int i = p->layer_count - 1; i >= 0 && !p->c.inference; i--) {
        const layer *l = &p->layers[i];
        int result = norm_result(l);
        tensor *x = &p->tensors[l->in_count ? l->in[0] : 0];
        const tensor *y = &p->tensors[result];
        const plane *from = &y->dy, *to = &x->dy;
        if (cpu_has(l->node, OP_BATCH_NORM) && !l->add[0] && !l->entered && from->shared &&
            to->shared && !x->root && !y->root && !has_parts(p, l->in[0]) &&
            !has_parts(p, result) && from->sample == to->sample && from->row == to->row &&
            from->halo == to->halo)
            x->dy_in = y->dy_in ? y->dy_in : result;
    }
}

/* The only layer that reads the node; NULL: there are none or several. */
static const layer *only_reader(const program *p, int node)
{
    const layer *found = NULL;
    for (int i = 0; i < p->layer_count; i++)
        for (int j = 0; j < p->layers[i].in_count; j++) {
            if (p->layers[i].in[j] != node)
                continue;
            if (found)
                return NULL;
            found = &p->layers[i];
        }
    return found;
}

/* A layer whose backward is through with a sample's input when it writes that input's gradient may
 * write it over the input, if nobody looks at that afterwards. */
static void find_over_values(program *p, const times *t)
{
    for (int i = 0; i < p->layer_count && !p->c.inference; i++) {
        int node = p->layers[i].out;
        tensor *x = &p->tensors[node];
        const layer *reader = only_reader(p, node);
        x->dy_over = reader && reader->ops->overwrites && !reader->entry && !reader->add[0] &&
                     x->y.shared && x->dy.shared && !x->root && !has_parts(p, node) &&
                     !reads_result(&p->layers[t->producer[node]]) && x->y.sample == x->dy.sample &&
                     x->y.row == x->dy.row && x->y.halo == x->dy.halo;
    }
}

/* Never in memory of its own: handed on in a thread's room, or, of a convolution that has the norm
 * after it in its weights, never computed. */
static bool has_no_place(const program *p, const layer *l)
{
    return p->c.inference && (l->fold || evaluate_hands_on(p, l->out));
}

static void collect(program *p, const times *t, places *a)
{
    for (int i = 0; i < p->layer_count; i++) {
        tensor *x = &p->tensors[p->layers[i].out];
        if (x->root || (!x->y.shared && !x->dy.shared) || has_no_place(p, &p->layers[i]))
            continue;
        life lives = life_of(p, t, p->layers[i].out);
        for (int j = i; j-- > 0;)
            if (p->tensors[p->layers[j].out].dy_in == p->layers[i].out)
                lives.dy_last = t->backward[j];
        if (x->dy_over && !x->dy_in)
            lives.y_last = lives.dy_last;
        if (x->y.shared)
            add(a, &x->y.data, x->y.floats, lives.y_first, lives.y_last);
        if (x->dy.shared && !x->dy_in && !x->dy_over)
            add(a, &x->dy.data, x->dy.floats, lives.dy_first, lives.dy_last);
    }
    for (struct lease *l = p->leases; l; l = l->next) {
        ptrdiff_t i = l->l - p->layers;
        bool forward = l->when == LEASE_FORWARD;
        add(a, l->to, l->floats, forward ? t->begin[i] : t->backward[i],
            forward ? t->end[i] : t->backward[i]);
    }
}

static int place(program *p, places *a)
{
    size_t bytes = plan_assign(a->items, a->count);
    char *block = bytes == SIZE_MAX ? NULL : program_alloc(p, bytes + PLAN_ALIGN, 1);
    if (!block)
        return -1;
    for (int i = 0; i < a->count; i++)
        *a->to[i] = (float *)(void *)(block + a->items[i].offset);
    for (int i = p->layer_count - 1; i >= 0; i--) {
        tensor *x = &p->tensors[p->layers[i].out];
        if (x->dy_in)
            x->dy.data = p->tensors[x->dy_in].dy.data;
        else if (x->dy_over)
            x->dy.data = x->y.data;
    }
    for (int i = 0; i < p->layer_count; i++) {
        tensor *x = &p->tensors[p->layers[i].out];
        const tensor *root = &p->tensors[x->root];
        if (!x->root || has_no_place(p, &p->layers[i]))
            continue;
        x->y.data = root->y.data + x->channel;
        x->dy.data = x->dy.data ? root->dy.data + x->channel : NULL;
    }
    return 0;
}

/* One block for each thread serves all layers that asked: a thread is in one of them at a time. */
static int share_scratch(program *p)
{
    size_t most = 0, threads = (size_t)cpu_threads_count(p->threads);
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].scratch_shared && p->layers[i].scratch_floats > most)
            most = p->layers[i].scratch_floats;
    most = (most + 15) / 16 * 16;
    float *block = most ? program_floats(p, threads * most) : NULL;
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].scratch_shared) {
            p->layers[i].scratch = block;
            p->layers[i].scratch_floats = most;
        }
    return most && !block ? -1 : 0;
}

int program_place(program *p)
{
    size_t nodes = (size_t)p->g->node_count, leases = 0;
    for (struct lease *l = p->leases; l; l = l->next)
        leases++;
    cleanup_free int *numbers = calloc(6 * nodes + 6, sizeof *numbers);
    cleanup_free plan_item *items = calloc(2 * nodes + leases + 1, sizeof *items);
    cleanup_free float ***to = calloc(2 * nodes + leases + 1, sizeof *to);
    if (!numbers || !items || !to)
        return -1;
    times t = {.forward = numbers,
               .backward = numbers + nodes,
               .producer = numbers + 2 * nodes,
               .reader = numbers + 3 * nodes,
               .begin = numbers + 4 * nodes,
               .end = numbers + 5 * nodes};
    places a = {.items = items, .to = to};
    count_times(p, &t);
    find_in_place(p);
    find_over_values(p, &t);
    collect(p, &t, &a);
    return place(p, &a) || share_scratch(p) ? -1 : 0;
}
