/* cpu_winograd.c: 3x3 convolutions with many channels by Winograd's F(4x4, 3x3): 36 matrix products over
 * groups of tiles, forward, for the input gradient and for the weight gradient; a quarter of the
 * multiplications of the direct way. Against it the result differs by about 1e-6 of the layer's largest
 * values (the transforms' constants), which is why narrow layers, where it gains little, do not use it. */
#include <stdio.h>
#include <string.h>

#include "cpu_winograd.h"

enum { PLANES = WINO_PLANES, CHANNELS_MIN = 16, PRODUCT_MIN = 1024, GROUP_MIN = 24, GROUP_MAX = 132, BACK_GROUP = 96 };

/* From this batch on, a model in training keeps no transformed weights between a layer's forward and the
 * next: four times the weights' memory, for a few percent more time where it only evaluates. */
enum { LEASE_BATCH = 64 };

bool conv_is_winograd(const graph_node *n, int channels)
{
    return n->conv.kernel_h == 3 && n->conv.kernel_w == 3 && n->conv.stride_h == 1 &&
           n->conv.stride_w == 1 && n->conv.dil_h == 1 && n->conv.dil_w == 1 && n->conv.groups == 1 &&
           n->conv.pad_h <= 2 && n->conv.pad_w <= 2 && channels >= CHANNELS_MIN &&
           n->shape.c >= CHANNELS_MIN && channels * n->shape.c >= PRODUCT_MIN && n->shape.h >= 4 && n->shape.w >= 4;
}

size_t wino_plane(int rows, int ld)
{
    return (size_t)rows * (size_t)ld + WINO_GAP;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

wino_tiling wino_tiles_over(int h, int w)
{
    return (wino_tiling){h, w, (h + 3) / 4, (w + 3) / 4};
}

typedef struct place {
    int sample, row, col; /* of the tile's first output pixel */
} place;

static place tile_place(const wino_tiling *t, int tile)
{
    int per = t->down * t->across, i = tile % per;
    return (place){tile / per, i / t->across * 4, i % t->across * 4};
}

void wino_gather(const program *p, const tensor *x, const plane *a, const wino_tiling *t, int pad_h, int pad_w,
                 int from, int n, const wino_array *v, int at)
{
    float *to = v->data + (size_t)at * (size_t)v->ld;
    for (int i = 0; i < n; i++, to += v->ld) {
        place w = tile_place(t, from + i);
        int r = w.row - pad_h + a->halo, c = w.col - pad_w + a->halo;
        int rows = x->s.h + 2 * a->halo - r, cols = x->s.w + 2 * a->halo - c;
        wino_span s = {r < 0 ? -r : 0, least(rows, 6), c < 0 ? -c : 0, least(cols, 6)};
        const float *from_pixel = a->data + (size_t)w.sample * a->sample +
                                  ((ptrdiff_t)r * (ptrdiff_t)a->row + (ptrdiff_t)c * x->step);
        p->k->wino_in(&s, x->cs, from_pixel, (size_t)x->step, a->row, to, wino_plane(v->count, v->ld));
    }
}

static float *tile_pixels(const tensor *t, const plane *a, const place *w)
{
    return tensor_pixels(a, t->cs, w->sample) + (size_t)w->row * a->row + (size_t)(w->col * t->step);
}

void wino_gather_dy(const program *p, const tensor *y, const wino_tiling *t, int from, int n,
                    const wino_array *v, int at)
{
    float *to = v->data + (size_t)at * (size_t)v->ld;
    for (int i = 0; i < n; i++, to += v->ld) {
        place w = tile_place(t, from + i);
        wino_span s = {0, least(t->h - w.row, 4), 0, least(t->w - w.col, 4)};
        p->k->wino_dy(&s, y->cs, tile_pixels(y, &y->dy, &w), (size_t)y->step, y->dy.row, to, wino_plane(v->count, v->ld));
    }
}

void wino_scatter(const program *p, const tensor *y, const plane *a, const wino_tiling *t, const wino_end *end,
                  int channel, int from, const wino_array *m)
{
    const float *mi = m->data;
    for (int i = 0; i < m->count; i++, mi += m->ld) {
        place w = tile_place(t, from + i);
        wino_span s = {0, least(t->h - w.row, 4), 0, least(t->w - w.col, 4)};
        p->k->wino_out(&s, m->ld, mi, wino_plane(m->count, m->ld), end->bias + channel, end->relu,
                       end->accumulate, tile_pixels(y, a, &w) + channel, (size_t)y->step, a->row);
    }
}

/* m[36][n][out] = v[36][n][in] * u[36][out / WINO_PANEL][in][WINO_PANEL]; `in` real channels in rows of in_ld. */
static void products(const program *p, int n, int in, int in_ld, int out, const float *v,
                     const float *u, float *m)
{
    for (size_t q = 0; q < PLANES; q++)
        for (int at = 0; at < out; at += WINO_PANEL) {
            int width = least(WINO_PANEL, out - at);
            p->k->gemm(n, width, in, v + q * wino_plane(n, in_ld), (size_t)in_ld, 1,
                       u + q * wino_plane(in, out) + (size_t)at * (size_t)in, (size_t)width, NULL, false, NULL,
                       0, m + q * wino_plane(n, out) + at, (size_t)out);
        }
}

static void winograd_forward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(y->s.h, y->s.w);
    int per = t.down * t.across, end = to * per;
    float *v = l->scratch + (size_t)thread * l->scratch_floats;
    float *m = v + PLANES * wino_plane(l->group, x->cs);
    const wino_end through = {l->bf, l->relu, false};
    for (int at = from * per; at < end; at += l->group) {
        int n = least(l->group, end - at);
        wino_gather(p, x, &x->y, &t, l->node->conv.pad_h, l->node->conv.pad_w, at, n,
                    &(wino_array){v, n, x->cs}, 0);
        products(p, n, x->s.c, x->cs, y->cs, v, l->u, m);
        wino_scatter(p, y, &y->y, &t, &through, 0, at, &(wino_array){m, n, y->cs});
    }
}

void wino_mask(program *p, layer *l, int i, float *db)
{
    const tensor *y = &p->tensors[l->out];
    const float *yi = tensor_pixels(&y->y, y->cs, i);
    float *dyi = tensor_pixels(&y->dy, y->cs, i);
    for (int h = 0; h < y->s.h && (l->relu || l->node->bias >= 0); h++)
        p->k->mask_bias(y->s.w, y->cs, (size_t)y->step, l->relu ? yi + (size_t)h * y->y.row : NULL,
                        dyi + (size_t)h * y->dy.row, dyi + (size_t)h * y->dy.row, db);
}

/* du[36][K][C] += sum over tiles of (A dy A^T)[k] * (B^T x B)[c]. */
static void weight_gradient(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    wino_tiling t = wino_tiles_over(y->s.h, y->s.w);
    int per = t.down * t.across, end = to * per, K = y->s.c;
    float *v = l->scratch + (size_t)thread * l->scratch_floats;
    float *d = v + PLANES * wino_plane(BACK_GROUP, x->cs);
    float *du = l->dw + (size_t)thread * l->dw_floats;
    for (int at = from * per; at < end; at += BACK_GROUP) {
        int n = least(BACK_GROUP, end - at);
        wino_gather(p, x, &x->y, &t, l->node->conv.pad_h, l->node->conv.pad_w, at, n,
                    &(wino_array){v, n, x->cs}, 0);
        wino_gather_dy(p, y, &t, at, n, &(wino_array){d, n, y->cs}, 0);
        for (size_t q = 0; q < PLANES; q++) {
            float *to_du = du + q * wino_plane(K, x->cs);
            p->k->gemm(K, x->cs, n, d + q * wino_plane(n, y->cs), 1, (size_t)y->cs,
                       v + q * wino_plane(n, x->cs), (size_t)x->cs, NULL, false,
                       at > from * per ? to_du : NULL, (size_t)x->cs, to_du, (size_t)x->cs);
        }
    }
}

static void winograd_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        wino_mask(p, l, i, l->db + (size_t)thread * l->db_floats);
    weight_gradient(p, l, from, to, thread);
    if (!x->dy.data)
        return;
    wino_tiling t = wino_tiles_over(x->s.h, x->s.w);
    int per = t.down * t.across, end = to * per;
    float *v = l->scratch + (size_t)thread * l->scratch_floats;
    float *m = v + PLANES * wino_plane(l->group, y->cs);
    const wino_end through = {l->zeros, false, l->add[0]};
    for (int at = from * per; at < end; at += l->group) {
        int n = least(l->group, end - at);
        wino_gather(p, y, &y->dy, &t, 2 - l->node->conv.pad_h, 2 - l->node->conv.pad_w, at, n,
                    &(wino_array){v, n, y->cs}, 0);
        products(p, n, y->s.c, y->cs, x->cs, v, l->u_back, m);
        wino_scatter(p, x, &x->dy, &t, &through, 0, at, &(wino_array){m, n, x->cs});
    }
}

static bool winograd_leases(const program *p)
{
    return !p->c.inference && p->c.batch >= LEASE_BATCH;
}

static void winograd_pack(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t filter = (size_t)x->s.c * 9;
    if (!winograd_leases(p))
        p->k->wino_weights(x->s.c, y->s.c, (size_t)y->cs, layer_weights(p, l), 9, filter, false, l->u);
    layer_bias(p, l, l->bf);
}

static void winograd_pack_ahead(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    if (winograd_leases(p))
        p->k->wino_weights(x->s.c, y->s.c, (size_t)y->cs, program_param(p, l->node->weight), 9,
                           (size_t)x->s.c * 9, false, l->u);
}

static void winograd_pack_back(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const float *w = program_param(p, l->node->weight);
    if (l->u_back)
        p->k->wino_weights(y->s.c, x->s.c, (size_t)x->cs, w, (size_t)x->s.c * 9, 9, true, l->u_back);
}

static void winograd_finish(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int t = 1; t < cpu_threads_count(p->threads); t++) {
        p->k->add(l->dw_floats, l->dw, l->dw + (size_t)t * l->dw_floats, false, l->dw);
        p->k->add(l->db_floats, l->db, l->db + (size_t)t * l->db_floats, false, l->db);
    }
    p->k->wino_dw(y->s.c, x->s.c, (size_t)x->cs, l->dw, program_grad(p, l->node->weight), (size_t)x->s.c * 9);
    if (l->node->bias >= 0)
        memcpy(program_grad(p, l->node->bias), l->db, (size_t)y->s.c * sizeof(float));
}

static const layer_ops winograd_ops = {.forward = winograd_forward, .backward = winograd_backward,
                                       .finish = winograd_finish, .pack = winograd_pack,
                                       .pack_ahead = winograd_pack_ahead, .pack_back = winograd_pack_back};

static int alloc_backward(program *p, layer *l, const tensor *x, const tensor *y, size_t threads)
{
    l->dw_floats = PLANES * wino_plane(y->s.c, x->cs);
    l->db_floats = ((size_t)y->cs + 15) / 16 * 16;
    l->db = program_floats(p, threads * l->db_floats);
    if (!l->db || program_lease(p, &l->dw, threads * l->dw_floats, l, LEASE_BACKWARD) != 0)
        return -1;
    return x->dy.data ? program_lease(p, &l->u_back, PLANES * wino_plane(y->s.c, x->cs), l, LEASE_BACKWARD) : 0;
}

int layer_winograd(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t threads = (size_t)cpu_threads_count(p->threads);
    if (wino_is_fleeting(p, l))
        return layer_winograd_fleeting(p, l);
    int wanted = (x->s.c + 47) / 48 * 12;
    l->ops = &winograd_ops;
    l->together = l->fresh = true;
    l->folds = !winograd_leases(p);
    l->group = wanted < GROUP_MIN ? GROUP_MIN : wanted > GROUP_MAX ? GROUP_MAX : wanted;
    int widest = p->c.inference || l->group > BACK_GROUP ? l->group : BACK_GROUP;
    l->scratch_floats = PLANES * (wino_plane(widest, x->cs) + wino_plane(widest, y->cs)) + CPU_SLACK;
    l->scratch_shared = true;
    size_t u_floats = PLANES * wino_plane(x->s.c, y->cs);
    if (winograd_leases(p) && program_lease(p, &l->u, u_floats, l, LEASE_FORWARD) != 0)
        return -1;
    if (!winograd_leases(p))
        l->u = program_floats(p, u_floats);
    l->bf = program_floats(p, (size_t)y->cs + CPU_SLACK);
    l->zeros = program_floats(p, (size_t)x->cs + CPU_SLACK);
    snprintf(l->choice, sizeof l->choice, l->relu ? "winograd4+relu" : "winograd4");
    if (!l->u || !l->bf || !l->zeros)
        return -1;
    return p->c.inference ? 0 : alloc_backward(p, l, x, y, threads);
}
