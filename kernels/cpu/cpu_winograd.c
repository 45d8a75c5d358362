/* cpu_winograd.c: 3x3, 4x4 and 5x5 convolutions with many channels by Winograd's F(4x4, 3x3),
 * F(3x3, 4x4) and F(2x2, 5x5): 36 matrix products over groups of tiles, forward, for the input
 * gradient and for the weight gradient. This takes a quarter, or a little more than a third, of the
 * multiplications of the direct way. The result differs from the direct way's by about 1e-6 of the
 * layer's largest values, because of the transforms' constants; so narrow layers, which gain
 * little, do not use this. In bf16 only 3x3. */
#include <stdio.h>
#include <string.h>

#include "cpu_winograd.h"

enum {
    PLANES = WINO_PLANES,
    CHANNELS_MIN = 16,
    PRODUCT_MIN = 1024,
    PRODUCT_MIN_LARGE = 512, /* for kernels larger than 3x3 */
    GROUP_MIN = 24,
    GROUP_MAX = 132,
    BACK_GROUP = 96
};

/* Up to SMALL_PAIRS pairs of channels, transformed weights leave the second cache room for a
 * group's tiles too: ROOM channels of tiles, in and out. */
enum { SMALL_PAIRS = 4096, ROOM = 3840 };

/* From this batch size on, a training model does not keep transformed weights from one forward of
 * the layer to the next. This saves four times the weights' memory, and costs a few percent more
 * time where the model only evaluates. */
enum { LEASE_BATCH = 64 };

bool conv_is_winograd(const program *p, const graph_node *n, int channels)
{
    int kernel = n->conv.kernel_h;
    return (kernel == 3 || ((kernel == 4 || kernel == 5) && !p->k16)) &&
           n->conv.kernel_w == kernel && n->conv.stride_h == 1 && n->conv.stride_w == 1 &&
           n->conv.dil_h == 1 && n->conv.dil_w == 1 && n->conv.groups == 1 &&
           n->conv.pad_h < kernel && n->conv.pad_w < kernel && channels >= CHANNELS_MIN &&
           n->shape.c >= CHANNELS_MIN &&
           channels * n->shape.c >= (kernel == 3 ? PRODUCT_MIN : PRODUCT_MIN_LARGE) &&
           n->shape.h >= 4 && n->shape.w >= 4;
}

size_t wino_plane(int rows, int ld)
{
    return (size_t)rows * (size_t)ld + WINO_GAP;
}

int wino_tile_ld(int channels)
{
    enum { MANY = 128 };
    return channels < MANY ? channels : ((channels + 15) / 16 | 1) * 16;
}

/* Words between two planes of `rows` x `ld` bf16. */
static size_t plane16(int rows, int ld)
{
    return (size_t)((rows + 1) / 2) * (size_t)ld + WINO_GAP;
}

size_t wino_weights_plane(const program *p, int rows, int ld)
{
    return p->k16 ? plane16(rows, ld) : wino_plane(rows, ld);
}

int wino_weights_rows(const program *p, int rows)
{
    return p->k16 ? (rows + 1) / 2 : rows;
}

wino_tiling wino_tiles_over(const layer *l, int h, int w)
{
    int kernel = l->node->conv.kernel_h, edge = 7 - kernel;
    return (wino_tiling){kernel, edge, h, w, (h + edge - 1) / edge, (w + edge - 1) / edge};
}

typedef struct place {
    int sample, row, col; /* of the tile's first output pixel */
} place;

static place tile_place(const wino_tiling *t, int tile)
{
    int per = t->down * t->across, i = tile % per;
    return (place){tile / per, i / t->across * t->edge, i % t->across * t->edge};
}

/* Where a tile's 6x6 surroundings begin, and in *s the rows and columns that exist. */
static const float *surroundings(const tensor *x, const plane *a, const wino_tiling *t, int pad_h,
                                 int pad_w, int tile, wino_span *s)
{
    place w = tile_place(t, tile);
    int r = w.row - pad_h + a->halo, c = w.col - pad_w + a->halo;
    int rows = x->s.h + 2 * a->halo - r, cols = x->s.w + 2 * a->halo - c;
    *s = (wino_span){r < 0 ? -r : 0, least(rows, 6), c < 0 ? -c : 0, least(cols, 6)};
    return a->data + (size_t)w.sample * a->sample +
           ((ptrdiff_t)r * (ptrdiff_t)a->row + (ptrdiff_t)c * x->step);
}

static bf16_word *words(float *data)
{
    return (bf16_word *)(void *)data;
}

static const bf16_word *words_of(const float *data)
{
    return (const bf16_word *)(const void *)data;
}

void wino_gather(const program *p, const tensor *x, const plane *a, const wino_tiling *t, int pad_h,
                 int pad_w, int from, int n, const wino_array *v, int at)
{
    size_t ld = (size_t)v->ld;
    for (int i = 0; i < n; i++) {
        wino_span s;
        const float *pixel = surroundings(x, a, t, pad_h, pad_w, from + i, &s);
        if (p->k16)
            p->k16->wino_in(&s, x->cs, x->s.c, pixel, (size_t)x->step, a->row,
                            words(v->data) + (size_t)(at + i) * ld / 2, plane16(v->count, v->ld));
        else
            p->k->wino_in(&s, x->cs, pixel, (size_t)x->step, a->row,
                          v->data + (size_t)(at + i) * ld, wino_plane(v->count, v->ld));
    }
}

void wino_gather_x(const program *p, const tensor *x, const wino_tiling *t, int pad_h, int pad_w,
                   int from, int n, const wino_array *v, int at)
{
    if (!p->k16) {
        wino_gather(p, x, &x->y, t, pad_h, pad_w, from, n, v, at);
        return;
    }
    for (int i = 0; i < n; i += 2) {
        wino_span s[2];
        const float *pixel[2] = {surroundings(x, &x->y, t, pad_h, pad_w, from + i, &s[0]), NULL};
        if (i + 1 < n)
            pixel[1] = surroundings(x, &x->y, t, pad_h, pad_w, from + i + 1, &s[1]);
        p->k16->wino_in_two(s, x->cs, pixel, (size_t)x->step, x->y.row,
                            words(v->data) + (size_t)((at + i) / 2) * (size_t)v->ld,
                            plane16(v->count, v->ld));
    }
}

static float *tile_pixels(const tensor *t, const plane *a, const place *w)
{
    return tensor_pixels(a, t->cs, w->sample) + (size_t)w->row * a->row +
           (size_t)(w->col * t->step);
}

static const float *result(const tensor *y, const wino_tiling *t, int tile, wino_span *s)
{
    place w = tile_place(t, tile);
    *s = (wino_span){0, least(t->h - w.row, t->edge), 0, least(t->w - w.col, t->edge)};
    return tile_pixels(y, &y->dy, &w);
}

void wino_gather_dy(const program *p, const tensor *y, const wino_tiling *t, int from, int n,
                    const wino_array *v, int at)
{
    size_t ld = (size_t)v->ld, step = (size_t)y->step;
    for (int i = 0; i < n && !p->k16; i++) {
        wino_span s;
        const float *pixel = result(y, t, from + i, &s);
        p->k->wino_dy(t->kernel, &s, y->cs, pixel, step, y->dy.row, v->data + (size_t)(at + i) * ld,
                      wino_plane(v->count, v->ld));
    }
    for (int i = 0; i < n && p->k16; i += 2) {
        wino_span s[2];
        const float *pixel[2] = {result(y, t, from + i, &s[0]), NULL};
        if (i + 1 < n)
            pixel[1] = result(y, t, from + i + 1, &s[1]);
        p->k16->wino_dy_two(s, y->cs, pixel, step, y->dy.row,
                            words(v->data) + (size_t)((at + i) / 2) * ld, plane16(v->count, v->ld));
    }
}

void wino_scatter(const program *p, const tensor *y, const plane *a, const wino_tiling *t,
                  const wino_end *end, int channel, int from, const wino_array *m)
{
    const float *mi = m->data;
    for (int i = 0; i < m->count; i++, mi += m->ld) {
        place w = tile_place(t, from + i);
        wino_span s = {0, least(t->h - w.row, t->edge), 0, least(t->w - w.col, t->edge)};
        p->k->wino_out(t->kernel, &s, m->ld, mi, wino_plane(m->count, m->ld), end->bias + channel,
                       end->relu, end->accumulate, tile_pixels(y, a, &w) + channel, (size_t)y->step,
                       a->row);
    }
}

void wino_pack(const program *p, int kernel, int rows, int cols, int ld, const float *w, size_t rs,
               size_t cs, bool turned, int part, int parts, float *u)
{
    int panel = p->k16 ? PANEL_MOST : p->k->panel, panels = (ld + panel - 1) / panel,
        first = part_begin(panels, part, parts) * panel,
        end = least(part_begin(panels, part + 1, parts) * panel, ld);
    if (first >= end)
        return;
    size_t apart = wino_weights_plane(p, rows, ld), part_ld = (size_t)(end - first),
           at = (size_t)first * (size_t)wino_weights_rows(p, rows);
    w += (size_t)first * cs;
    cols = least(cols, end) - first;
    if (p->k16)
        p->k16->wino_weights(rows, cols, part_ld, w, rs, cs, turned, words(u) + at, apart);
    else
        p->k->wino_weights(kernel, rows, cols, part_ld, w, rs, cs, turned, u + at, apart);
}

/* One panel of wino_products. */
static void wino_product(const program *p, size_t q, const wino_array *v, int row, int rows,
                         const float *u, int width, bool add, float *m, size_t ldm)
{
    size_t ld = (size_t)v->ld;
    if (p->k16)
        p->k16->gemm(v->count, width, (rows + 1) / 2,
                     words_of(v->data) + q * plane16(v->count, v->ld) + row / 2, ld / 2, 1,
                     words_of(u), (size_t)width, NULL, false, add ? m : NULL, ldm, m, ldm);
    else
        p->k->gemm(v->count, width, rows, v->data + q * wino_plane(v->count, v->ld) + row, ld, 1, u,
                   (size_t)width, NULL, false, add ? m : NULL, ldm, m, ldm, false);
}

void wino_products(const program *p, size_t q, const wino_array *v, int row, int rows,
                   const float *u, int width, bool add, float *m)
{
    size_t deep = (size_t)wino_weights_rows(p, rows);
    for (int at = 0, panel = p->k->panel; at < width; at += panel)
        wino_product(p, q, v, row, rows, u + (size_t)at * deep, least(panel, width - at), add,
                     m + at, (size_t)width);
}

void wino_sum(const program *p, size_t q, const wino_array *d, const wino_array *x,
              const wino_part *part, bool add, float *du, size_t ld)
{
    size_t d_ld = (size_t)d->ld, x_ld = (size_t)x->ld;
    if (p->k16)
        p->k16->gemm(part->filters, part->channels, (d->count + 1) / 2,
                     words_of(d->data) + q * plane16(d->count, d->ld) + part->filter, 1, d_ld,
                     words_of(x->data) + q * plane16(x->count, x->ld) + part->channel, x_ld, NULL,
                     false, add ? du : NULL, ld, du, ld);
    else
        p->k->gemm(part->filters, part->channels, d->count,
                   d->data + q * wino_plane(d->count, d->ld) + part->filter, 1, d_ld,
                   x->data + q * wino_plane(x->count, x->ld) + part->channel, x_ld, NULL, false,
                   add ? du : NULL, ld, du, ld, false);
}

/* m[36][n][out] = v[36][n][in] * u[36][in][out] over `in` real channels. */
static void products(const program *p, const wino_array *v, int in, int out, const float *u,
                     float *m)
{
    size_t step = wino_weights_plane(p, in, out);
    for (size_t q = 0; q < PLANES; q++)
        wino_products(p, q, v, 0, in, u + q * step, out, false, m + q * wino_plane(v->count, out));
}

static void winograd_forward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    int per = t.down * t.across, end = to * per;
    float *v = layer_scratch(l, thread);
    float *m = v + PLANES * wino_plane(l->group, wino_tile_ld(x->cs));
    const wino_end through = {l->bf, l->relu, false};
    for (int at = from * per; at < end; at += l->group) {
        int n = least(l->group, end - at);
        const wino_array tiles = {v, n, wino_tile_ld(x->cs)};
        wino_gather(p, x, &x->y, &t, l->node->conv.pad_h, l->node->conv.pad_w, at, n, &tiles, 0);
        products(p, &tiles, x->s.c, y->cs, l->u, m);
        wino_scatter(p, y, &y->y, &t, &through, 0, at, &(wino_array){m, n, y->cs});
    }
}

static int group_for(int room, int channels, int most)
{
    int tiles = room / channels / 12 * 12;
    return tiles < GROUP_MIN ? GROUP_MIN : least(tiles, most);
}

/* Tiles of a group, forward and for dx. */
static int group_ahead(int in, int out)
{
    int wanted = least((in + 47) / 48 * 12, GROUP_MAX);
    wanted = wanted < GROUP_MIN ? GROUP_MIN : wanted;
    return in * out <= SMALL_PAIRS ? group_for(ROOM, in + out, wanted) : wanted;
}

/* Tiles of a group for the weight gradient, which is read and written once for each group. */
static int group_back(const tensor *x, const tensor *y)
{
    return x->s.c * y->s.c <= SMALL_PAIRS ? group_for(2 * ROOM, x->s.c + y->s.c, BACK_GROUP)
                                          : BACK_GROUP;
}

/* du[36][K][C] += sum over tiles of (A dy A^T)[k] * (B^T x B)[c]. */
static void weight_gradient(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    int per = t.down * t.across, end = to * per, K = y->s.c, group = group_back(x, y);
    float *v = layer_scratch(l, thread);
    float *d = v + PLANES * wino_plane(group, wino_tile_ld(x->cs));
    float *du = layer_dw(l, thread);
    for (int at = from * per; at < end; at += group) {
        int n = least(group, end - at);
        const wino_array xs = {v, n, wino_tile_ld(x->cs)}, ds = {d, n, wino_tile_ld(y->cs)};
        wino_gather_x(p, x, &t, l->node->conv.pad_h, l->node->conv.pad_w, at, n, &xs, 0);
        wino_gather_dy(p, y, &t, at, n, &ds, 0);
        for (size_t q = 0; q < PLANES; q++)
            wino_sum(p, q, &ds, &xs, &(wino_part){0, K, 0, x->cs}, at > from * per,
                     du + q * wino_plane(K, x->cs), (size_t)x->cs);
    }
}

static void winograd_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    mask_samples(p, l, from, to, layer_db(l, thread));
    weight_gradient(p, l, from, to, thread);
    if (!x->dy.data)
        return;
    wino_tiling t = wino_tiles_over(l, x->s.h, x->s.w);
    int per = t.down * t.across, end = to * per;
    float *v = layer_scratch(l, thread);
    float *m = v + PLANES * wino_plane(l->group, wino_tile_ld(y->cs));
    const wino_end through = {l->zeros, false, l->add[0]};
    for (int at = from * per; at < end; at += l->group) {
        int n = least(l->group, end - at);
        const wino_array tiles = {v, n, wino_tile_ld(y->cs)};
        wino_gather(p, y, &y->dy, &t, t.kernel - 1 - l->node->conv.pad_h,
                    t.kernel - 1 - l->node->conv.pad_w, at, n, &tiles, 0);
        products(p, &tiles, y->s.c, x->cs, l->u_back, m);
        wino_scatter(p, x, &x->dy, &t, &through, 0, at, &(wino_array){m, n, x->cs});
    }
}

static bool winograd_leases(const program *p)
{
    return !p->c.inference && p->c.batch >= LEASE_BATCH;
}

/* Writes the weights w to u in forward's form. */
static void pack_forward(const program *p, const layer *l, const float *w, int part, int parts)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t taps = wino_taps(l);
    wino_pack(p, l->node->conv.kernel_h, x->s.c, y->s.c, y->cs, w, taps, (size_t)x->s.c * taps,
              false, part, parts, l->u);
}

static void winograd_pack(program *p, layer *l, int part, int parts)
{
    if (!winograd_leases(p))
        pack_forward(p, l, layer_weights(p, l), part, parts);
    if (part == 0)
        layer_bias(p, l, l->bf);
}

static void winograd_pack_ahead(program *p, layer *l, int part, int parts)
{
    if (winograd_leases(p))
        pack_forward(p, l, program_param(p, l->node->weight), part, parts);
}

static void winograd_pack_back(program *p, layer *l, int part, int parts)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const float *w = program_param(p, l->node->weight);
    size_t taps = wino_taps(l);
    if (l->u_back)
        wino_pack(p, l->node->conv.kernel_h, y->s.c, x->s.c, x->cs, w, (size_t)x->s.c * taps, taps,
                  true, part, parts, l->u_back);
}

static void winograd_finish(program *p, layer *l, int part, int parts)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int first = part_begin(y->s.c, part, parts), end = part_begin(y->s.c, part + 1, parts);
    size_t row = (size_t)x->s.c * wino_taps(l);
    p->k->wino_dw(l->node->conv.kernel_h, end - first, x->s.c, (size_t)x->cs,
                  l->dw + (size_t)first * (size_t)x->cs, wino_plane(y->s.c, x->cs),
                  program_grad(p, l->node->weight) + (size_t)first * row, row);
}

static const layer_ops winograd_ops = {
    .forward = winograd_forward,       .backward = winograd_backward,
    .finish = winograd_finish,         .pack = winograd_pack,
    .pack_ahead = winograd_pack_ahead, .pack_back = winograd_pack_back};

static int alloc_backward(program *p, layer *l, const tensor *x, const tensor *y, size_t threads)
{
    l->dw_floats = PLANES * wino_plane(y->s.c, x->cs);
    l->db_floats = ((size_t)y->cs + 15) / 16 * 16;
    l->db = program_floats(p, threads * l->db_floats);
    if (!l->db || program_lease(p, &l->dw, threads * l->dw_floats, l, LEASE_BACKWARD) != 0)
        return -1;
    return x->dy.data
               ? program_lease(p, &l->u_back, PLANES * wino_plane(y->s.c, x->cs), l, LEASE_BACKWARD)
               : 0;
}

int layer_winograd(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t threads = (size_t)cpu_threads_count(p->threads);
    if (wino_is_recomputed(p, l))
        return layer_winograd_recomputed(p, l);
    l->ops = &winograd_ops;
    l->together = l->fresh = true;
    l->folds = !winograd_leases(p);
    l->group = group_ahead(x->s.c, y->s.c);
    wino_tiling t = wino_tiles_over(l, y->s.h, y->s.w);
    int per = t.down * t.across;
    l->samples = winograd_leases(p) ? 0 : l->group > per ? l->group / per : 1;
    int back = group_back(x, y), widest = p->c.inference || l->group > back ? l->group : back;
    l->scratch_floats = PLANES * (wino_plane(widest, wino_tile_ld(x->cs)) +
                                  wino_plane(widest, wino_tile_ld(y->cs))) +
                        CPU_SLACK;
    l->scratch_shared = true;
    size_t u_floats = PLANES * wino_plane(x->s.c, y->cs);
    if (winograd_leases(p) && program_lease(p, &l->u, u_floats, l, LEASE_FORWARD) != 0)
        return -1;
    if (!winograd_leases(p))
        l->u = program_floats(p, u_floats);
    l->bf = program_floats(p, (size_t)y->cs + CPU_SLACK);
    l->zeros = program_floats(p, (size_t)x->cs + CPU_SLACK);
    snprintf(l->choice, sizeof l->choice, "winograd%d%s%s", 7 - l->node->conv.kernel_h,
             p->k16 ? "-bf16" : "", l->relu ? "+relu" : "");
    if (!l->u || !l->bf || !l->zeros)
        return -1;
    return p->c.inference ? 0 : alloc_backward(p, l, x, y, threads);
}

/* ---- with 2x2 max pooling -------------------------------------------------------------------- */

bool wino_pools(const graph_node *n)
{
    return n->conv.kernel_h == 5;
}

int wino_pooled_make(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    l->group = group_ahead(x->s.c, y->s.c);
    l->u = program_floats(p, PLANES * wino_plane(x->s.c, y->cs));
    l->scratch_floats =
        PLANES * (wino_plane(l->group, wino_tile_ld(x->cs)) + wino_plane(l->group, y->cs)) +
        CPU_SLACK;
    l->scratch_shared = true;
    return l->u ? 0 : -1;
}

void wino_pooled_pack(program *p, layer *l, int part, int parts)
{
    pack_forward(p, l, layer_weights(p, l), part, parts);
}

/* Each pixel of the result is a tile. An odd last row or column, which belongs to no cell, is not
 * computed. */
void wino_pooled_forward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(l, 2 * y->s.h, 2 * y->s.w);
    int per = t.down * t.across, end = to * per;
    float *v = layer_scratch(l, thread);
    float *m = v + PLANES * wino_plane(l->group, wino_tile_ld(x->cs));
    for (int at = from * per; at < end; at += l->group) {
        int n = least(l->group, end - at);
        const wino_array tiles = {v, n, wino_tile_ld(x->cs)};
        wino_gather(p, x, &x->y, &t, l->node->conv.pad_h, l->node->conv.pad_w, at, n, &tiles, 0);
        products(p, &tiles, x->s.c, y->cs, l->u, m);
        for (int i = 0; i < n; i++) {
            place w = tile_place(&t, at + i);
            size_t cell = (size_t)((at + i) % per * y->cs);
            w.row /= t.edge, w.col /= t.edge;
            p->k->wino_out_pool(y->cs, m + (size_t)i * (size_t)y->cs, wino_plane(n, y->cs), l->bf,
                                tile_pixels(y, &y->y, &w),
                                p->training ? l->arg + (size_t)w.sample * l->arg_sample + cell
                                            : NULL);
        }
    }
}
