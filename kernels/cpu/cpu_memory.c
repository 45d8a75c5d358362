/* cpu_memory.c: a program's memory, and the blocks that share memory because they are never in use
 * at the same time.
 *
 * Time is counted in segments. A layer that works on the batch as a whole is one segment; so is
 * each run of layers between two such layers, whose samples go through at their own pace. Forward
 * segments come first, then the loss, then the backward segments. Where the model only evaluates,
 * samples go at their own pace through whole stretches (cpu_evaluate.c): a block in the batch's
 * memory is then in use as long as any layer of the stretch. plan.h places the blocks.
 *
 * Two kinds of gradients have no memory of their own: a norm writes its input's gradient over its
 * result's, and a layer that has finished with its input writes the input's gradient over the
 * input.
 *
 * Blocks that share are leases and the pixels of images without padding lanes. An image with a
 * border shares only as a gradient, whose border is cleared before each use; an activation's border
 * must stay zero. Everything else has memory of its own. */
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

/* A block that one layer needs only in its forward or only in its backward segment. */
struct lease {
    struct lease *next;
    float **to;
    size_t floats;
    const layer *l;
    lease_time when;
};

/* Planes point here until they are placed: layers ask earlier whether there is a gradient. */
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
    int *forward, *backward; /* for each layer */
    int *begin, *end;        /* forward segments of all layers of its stretch */
    int *producer, *reader;  /* for each node: the layer that makes it, its last reader */
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

/* Does the layer's backward read the values of input j? */
static bool reads_input(const layer *l, int j)
{
    if (l->acted) /* the norm computes the value again */
        return false;
    if (l->by_reference)
        return op_rows[l->node->op].reads_inputs;
    cpu_reads reads = cpu_ops[l->node->op].inputs;
    return reads == READS_ALL || (reads == READS_FIRST && j == 0);
}

/* Does the layer's backward read its own result? */
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
    /* Backward runs in reverse order: the first layer that reads the node is the last to use it. */
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

/* The segments in which a node's values and gradient are in use, together with all that lies in the
 * node's memory. */
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
        const layer *from = p->layers[i].folded_from; /* writes the node outside training */
        life one = {first_use(p, t, n, from ? (int)(from - p->layers) : i), last_use(p, t, n),
                    t->backward[t->reader[n]], t->backward[i]};
        /* in training the norm before the activation writes the node, and reads its gradient */
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

/* A norm writes its input's gradient value by value where it has read its result's gradient, which
 * no layer needs after that: both share one memory. Later norms come first, so that of several
 * norms in a row all gradients lie in the last norm's. */
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

/* A layer whose backward has finished with a sample's input when it writes that input's gradient
 * may write the gradient over the input, if no layer reads the input afterwards. */
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

/* Does the result need no memory of its own? It lies in a thread's room, or, with a norm folded
 * into the weights, is never computed. */
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

/* Gives all layers with shared scratch one block for each thread: a thread runs one layer at a
 * time. */
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
