/* cpu_winograd_recomputed.c: Winograd layers of many channels and few tiles, such as the last
 * layers of a ResNet.
 *
 * Their weights, transformed, are four times as large, more than the caches hold, and a batch has
 * few tiles that use them: reading and writing them would take as long as the products. So all
 * tiles of the batch are transformed first. Then each block of weights is transformed, used for all
 * tiles while it is in the second cache, and dropped; the weight gradient goes by blocks in the
 * same way. Threads share first the tiles and then the blocks; no sum crosses threads except the
 * bias'. */
#include <stdio.h>
#include <string.h>

#include "cpu_winograd.h"

enum {
    PLANES = WINO_PLANES,
    TILES_MAX = 64,          /* tiles of the batch */
    WEIGHTS_MIN = 128 * 256, /* channels in times filters */
    TRAINED_MIN = 48 * 192,  /* the same where weights change with each batch */
    WIDE = PANEL_MOST,       /* channels of the result in a block */
    ROWS = 128,              /* channels that are summed over in a block */
    FILTERS = 48,            /* of a weight gradient's block */
};

/* The struct behind layer.wino: transformed tiles of one layer, leased. */
struct wino_recomputed {
    float *v;          /* forward: the input's tiles */
    float *x, *d, *dy; /* backward: the input's tiles, dy's for the weights, dy's for dx */
};

typedef struct wino_work {
    program *p;
    layer *l;
} wino_work;

static int tiles_of(const wino_tiling *t, int n)
{
    return n * t->down * t->across;
}

bool wino_is_recomputed(const program *p, const layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    return x->s.c * y->s.c >= (p->c.inference ? WEIGHTS_MIN : TRAINED_MIN) &&
           (int64_t)p->c.batch * t.down * t.across <= TILES_MAX;
}

/* ---- products of all tiles with weights that are made on the way ----------------------------- */

/* block_product computes a block of the result: m[36][n][width] = v[36][n][rows] *
 * u[36][rows][width]. u is made from the weights from w on, where row r, column c and tap lie at
 * w[r*rs + c*cs + tap]. */
typedef struct weights_at {
    int kernel;
    const float *w;
    size_t rs, cs;
    bool turned;
} weights_at;

static void block_product(const program *p, const wino_array *v, int rows, const weights_at *w,
                          int width, int real, float *u, const wino_array *m)
{
    for (int row = 0; row < rows; row += ROWS) {
        int n = least(ROWS, rows - row);
        wino_pack(p, w->kernel, n, real, width, w->w + (size_t)row * w->rs, w->rs, w->cs, w->turned,
                  0, 1, u);
        for (size_t q = 0; q < PLANES; q++)
            wino_products(p, q, v, row, n, u + q * wino_weights_plane(p, n, width), width, row > 0,
                          m->data + q * wino_plane(m->count, width));
    }
}

/* Transforms the input's tiles of this thread's samples. */
static void gather_part(void *arg, int thread, int threads)
{
    wino_work *w = arg;
    program *p = w->p;
    const layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    int n = p->b->n, from = tiles_of(&t, n * thread / threads),
        to = tiles_of(&t, n * (thread + 1) / threads);
    wino_gather(p, x, &x->y, &t, l->node->conv.pad_h, l->node->conv.pad_w, from, to - from,
                &(wino_array){l->wino->v, tiles_of(&t, n), wino_tile_ld(x->cs)}, from);
}

static void forward_part(void *arg, int thread, int threads)
{
    wino_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    size_t taps = wino_taps(l), filter = (size_t)x->s.c * taps;
    const wino_array v = {l->wino->v, tiles_of(&t, p->b->n), wino_tile_ld(x->cs)};
    const wino_end through = {l->bf, l->relu, false};
    float *u = layer_scratch(l, thread), *m = u + PLANES * wino_plane(ROWS, WIDE);
    int blocks = (y->cs + WIDE - 1) / WIDE;
    for (int i = blocks * thread / threads; i < blocks * (thread + 1) / threads; i++) {
        int at = i * WIDE, width = least(WIDE, y->cs - at);
        const wino_array out = {m, v.count, width};
        block_product(p, &v, x->s.c,
                      &(weights_at){t.kernel,
                                    program_param(p, l->node->weight) + (size_t)at * filter, taps,
                                    filter, false},
                      width, least(width, y->s.c - at), u, &out);
        wino_scatter(p, y, &y->y, &t, &through, at, 0, &out);
    }
}

static void recomputed_forward(program *p, layer *l)
{
    wino_work w = {p, l};
    cpu_threads_run(p->threads, gather_part, &w);
    cpu_threads_run(p->threads, forward_part, &w);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Where a thread's samples begin: an even number, because a bf16 word is two tiles. */
static int even_part(int n, int thread, int threads)
{
    return thread == threads ? n : n / 2 * thread / threads * 2;
}

/* Puts dy of this thread's samples through ReLU, and transforms the tiles that the gradients
 * need. */
static void gather_back_part(void *arg, int thread, int threads)
{
    wino_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int pad_h = l->node->conv.pad_h, pad_w = l->node->conv.pad_w;
    int n = p->b->n, first = even_part(n, thread, threads),
        last = even_part(n, thread + 1, threads);
    float *db = layer_db(l, thread);
    memset(db, 0, l->db_floats * sizeof *db);
    mask_samples(p, l, first, last, db);
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    int from = tiles_of(&t, first), count = tiles_of(&t, last) - from, all = tiles_of(&t, n);
    wino_gather_x(p, x, &t, pad_h, pad_w, from, count,
                  &(wino_array){l->wino->x, all, wino_tile_ld(x->cs)}, from);
    wino_gather_dy(p, y, &t, from, count, &(wino_array){l->wino->d, all, wino_tile_ld(y->cs)},
                   from);
    if (!x->dy.data)
        return;
    t = wino_tiles_over(l, x->s.h, x->s.w);
    from = tiles_of(&t, first), count = tiles_of(&t, last) - from, all = tiles_of(&t, n);
    wino_gather(p, y, &y->dy, &t, t.kernel - 1 - pad_h, t.kernel - 1 - pad_w, from, count,
                &(wino_array){l->wino->dy, all, wino_tile_ld(y->cs)}, from);
}

/* Computes some filters' gradients for `channels` channels from `channel` on. */
static void block_dw(program *p, layer *l, int tiles, int filter, int filters, int channel,
                     int channels, float *du)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const wino_array d = {l->wino->d, tiles, wino_tile_ld(y->cs)},
                     v = {l->wino->x, tiles, wino_tile_ld(x->cs)};
    const wino_part part = {filter, filters, channel, channels};
    for (size_t q = 0; q < PLANES; q++)
        wino_sum(p, q, &d, &v, &part, false, du + q * wino_plane(filters, channels),
                 (size_t)channels);
    size_t taps = wino_taps(l), row = (size_t)x->s.c * taps;
    p->k->wino_dw(l->node->conv.kernel_h, filters, least(channels, x->s.c - channel),
                  (size_t)channels, du, wino_plane(filters, channels),
                  program_grad(p, l->node->weight) + (size_t)filter * row + (size_t)channel * taps,
                  row);
}

static void weights_part(void *arg, int thread, int threads)
{
    wino_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    int tiles = tiles_of(&t, p->b->n), blocks = (y->s.c + FILTERS - 1) / FILTERS;
    /* the tiles of ROWS channels stay in the second cache for all filters */
    for (int channel = 0; channel < x->cs; channel += ROWS)
        for (int i = blocks * thread / threads; i < blocks * (thread + 1) / threads; i++)
            block_dw(p, l, tiles, i * FILTERS, least(FILTERS, y->s.c - i * FILTERS), channel,
                     least(ROWS, x->cs - channel), layer_scratch(l, thread));
}

static void dx_part(void *arg, int thread, int threads)
{
    wino_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, x->s.h, x->s.w);
    size_t taps = wino_taps(l), filter = (size_t)x->s.c * taps;
    const wino_array v = {l->wino->dy, tiles_of(&t, p->b->n), wino_tile_ld(y->cs)};
    const wino_end through = {l->zeros, false, l->add[0]};
    float *u = layer_scratch(l, thread), *m = u + PLANES * wino_plane(ROWS, WIDE);
    int blocks = (x->cs + WIDE - 1) / WIDE;
    for (int i = blocks * thread / threads; i < blocks * (thread + 1) / threads; i++) {
        int at = i * WIDE, width = least(WIDE, x->cs - at);
        const wino_array out = {m, v.count, width};
        block_product(p, &v, y->s.c,
                      &(weights_at){t.kernel, program_param(p, l->node->weight) + (size_t)at * taps,
                                    filter, taps, true},
                      width, least(width, x->s.c - at), u, &out);
        wino_scatter(p, x, &x->dy, &t, &through, at, 0, &out);
    }
}

static void recomputed_backward(program *p, layer *l)
{
    wino_work w = {p, l};
    cpu_threads_run(p->threads, gather_back_part, &w);
    cpu_threads_run(p->threads, weights_part, &w);
    if (p->tensors[l->in[0]].dy.data)
        cpu_threads_run(p->threads, dx_part, &w);
    int i = (int)(l - p->layers);
    weights_run(p, i, i, WEIGHTS_SUM); /* sums the bias' gradient alone: the layer has no dw */
}

/* ---- the layer ------------------------------------------------------------------------------- */

static void recomputed_pack(program *p, layer *l, int part, int parts)
{
    (void)parts;
    if (part == 0)
        layer_bias(p, l, l->bf);
}

static const layer_ops recomputed_ops = {.forward_whole = recomputed_forward,
                                         .backward_whole = recomputed_backward,
                                         .pack = recomputed_pack};

static int lease_tiles(program *p, layer *l, float **to, const tensor *over, int channels,
                       lease_time when)
{
    wino_tiling t = wino_tiles_over(l, over->s.h, over->s.w);
    return program_lease(
        p, to, PLANES * wino_plane(tiles_of(&t, p->c.batch), wino_tile_ld(channels)) + CPU_SLACK, l,
        when);
}

int layer_winograd_recomputed(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling tx = wino_tiles_over(l, x->s.h, x->s.w), ty = wino_tiles_over(l, y->s.h, y->s.w);
    int over_x = tiles_of(&tx, p->c.batch), over_y = tiles_of(&ty, p->c.batch);
    l->ops = &recomputed_ops;
    snprintf(l->choice, sizeof l->choice, "winograd%d-fleeting%s%s", ty.edge, p->k16 ? "-bf16" : "",
             l->relu ? "+relu" : "");
    size_t u =
        PLANES * (wino_plane(ROWS, WIDE) + wino_plane(over_x > over_y ? over_x : over_y, WIDE));
    size_t du = PLANES * wino_plane(FILTERS, ROWS);
    l->scratch_floats = (u > du ? u : du) + CPU_SLACK;
    l->scratch_shared = true;
    l->wino = program_alloc(p, 1, sizeof *l->wino);
    l->bf = program_floats(p, (size_t)y->cs + CPU_SLACK);
    l->zeros = program_floats(p, (size_t)x->cs + CPU_SLACK);
    if (!l->wino || !l->bf || !l->zeros ||
        lease_tiles(p, l, &l->wino->v, y, x->cs, LEASE_FORWARD) != 0)
        return -1;
    if (p->c.inference)
        return 0;
    l->db_floats = ((size_t)y->cs + 15) / 16 * 16;
    l->db = program_floats(p, (size_t)cpu_threads_count(p->threads) * l->db_floats);
    if (!l->db || lease_tiles(p, l, &l->wino->x, y, x->cs, LEASE_BACKWARD) != 0 ||
        lease_tiles(p, l, &l->wino->d, y, y->cs, LEASE_BACKWARD) != 0)
        return -1;
    return x->dy.data ? lease_tiles(p, l, &l->wino->dy, x, y->cs, LEASE_BACKWARD) : 0;
}
