/* cpu_matmul.c: convolutions as plain matrix products over the pixels of many samples at once,
 * without copies of the input. Two kinds: 1x1 kernels, where consecutive pixels are the rows of a
 * matrix; and small or strided images, where the rows are the same pixel of all samples.
 *
 * A pixel's window is cut to the taps that lie inside the image, so that padding costs nothing: on
 * 2x2 pixels a 3x3 kernel needs 16 products of channels instead of 36.
 *
 * In bf16 the operands of the products are not the tensors but cpu_matmul16.c's copies in words,
 * which lie in memory of the same kind and half as long. Weights are packed into words. Where
 * comments below count the rows that a product sums over, bf16 has half as many. */
#include <stdio.h>
#include <string.h>

#include "cpu_matmul16.h"
#include "cpu_spans.h"

enum {
    /* floats of the pixels computed at a time: they stay in the second cache */
    BLOCK_FLOATS = 1 << 16,
    BACK_PIXELS = 132, /* pixels whose panel stays in the first cache */
    TILE_ROWS = 12,    /* of the products' widest tile */
    FILTERS = 48,      /* of a weight gradient's block */
    PIXELS_MAX = 9,    /* of a small image */
    JOINED = 64,       /* runs of fewer pixels without gaps are brought together */
    CHANNELS_MIN = 8,
    SAMPLES_MIN = 8,
};

bool conv_is_pointwise(const graph_node *n)
{
    return n->conv.kernel_h == 1 && n->conv.kernel_w == 1 && n->conv.stride_h == 1 &&
           n->conv.stride_w == 1 && n->conv.pad_h == 0 && n->conv.pad_w == 0;
}

bool conv_is_matmul(const graph_node *n, shape in, int batch)
{
    if (n->conv.groups != 1 || in.c < CHANNELS_MIN)
        return false;
    bool strided = n->conv.stride_h > 1 || n->conv.stride_w > 1;
    bool small = n->shape.h * n->shape.w <= PIXELS_MAX;
    return conv_is_pointwise(n) ||
           ((strided || small) && batch >= SAMPLES_MIN && in.c >= 2 * CHANNELS_MIN);
}

/* The elements of an operand that hold k summed values. */
static int depth(const program *p, int k)
{
    return p->k16 ? (k + 1) / 2 : k;
}

/* cpu_kernels.gemm without a bias of rows, k values deep; a and b are floats or words. */
static void product(const program *p, int m, int n, int k, matmul_rows a, size_t am, size_t ak,
                    matmul_rows b, bool relu, const float *add, size_t lda, float *c, size_t ldc)
{
    if (p->k16)
        p->k16->gemm(m, n, depth(p, k), matmul_words(a.data), am, ak, matmul_words(b.data), b.ld,
                     NULL, relu, add, lda, c, ldc);
    else
        p->k->gemm(m, n, k, a.data, am, ak, b.data, b.ld, NULL, relu, add, lda, c, ldc,
                   p->training);
}

/* product_rows: a's rows are the product's rows. product_sum: the product sums over a's rows. */
static void product_rows(const program *p, int m, int n, int k, matmul_rows a, matmul_rows b,
                         bool relu, const float *add, size_t lda, float *c, size_t ldc)
{
    product(p, m, n, k, a, a.ld, 1, b, relu, add, lda, c, ldc);
}

static void product_sum(const program *p, int m, int n, int k, matmul_rows a, matmul_rows b,
                        const float *add, size_t lda, float *c, size_t ldc)
{
    product(p, m, n, k, a, 1, a.ld, b, false, add, lda, c, ldc);
}

static float *pixel(const tensor *t, const plane *a, int sample, int h, int w)
{
    return tensor_pixels(a, t->cs, sample) + (size_t)h * a->row + (size_t)(w * t->step);
}

/* ---- packed weights -------------------------------------------------------------------------- */

/* Where the panel at channel `at` begins in [C/panel][taps][rows][panel]; the last panel is as
 * narrow as the channels allow. */
static size_t panel_at(const program *p, const layer *l, int rows, int at)
{
    return (size_t)at * (size_t)(l->g.kh * l->g.kw) * (size_t)depth(p, rows);
}

/* The channel at which part `part` of the panels of so many channels begins. */
static int panels_begin(const program *p, int channels, int part, int parts)
{
    int panels = (channels + p->k->panel - 1) / p->k->panel;
    return least(part_begin(panels, part, parts) * p->k->panel, channels);
}

/* Where to pack a panel: in scratch where it has to become words, otherwise at `to`. panel_done
 * then makes the words of the panel, which has `rows` rows a tap. */
static float *panel_room(const program *p, const layer *l, int part, float *to)
{
    return p->k16 ? layer_scratch(l, part) : to;
}

static void panel_done(const program *p, const layer *l, int rows, int width, const float *room,
                       float *to)
{
    for (int tap = 0; tap < l->g.kh * l->g.kw && p->k16; tap++)
        p->k16->across(rows, width, room + (size_t)tap * (size_t)(rows * width), (size_t)width,
                       matmul_words_to(to) + (size_t)tap * (size_t)(depth(p, rows) * width),
                       (size_t)width);
}

/* Packs the filters of one panel, for y: [taps][C][width] from (K, C, taps). */
static void pack_panel(const program *p, const layer *l, const float *w, int from, int width,
                       float *to)
{
    enum { CHANNELS = 4, TAPS_MAX = 64 };
    float turned[CHANNELS * TAPS_MAX * PANEL_MOST];
    int taps = l->g.kh * l->g.kw, step = taps <= TAPS_MAX ? CHANNELS : 0,
        filters = least(l->g.k - from, width);
    size_t filter = (size_t)(l->g.c * taps);
    if (taps == 1) { /* lanes beyond the filters stay as they were allocated */
        p->k->transpose(filters, l->g.c, w + (size_t)from * filter, filter, to, (size_t)width);
        return;
    }
    memset(turned, 0, sizeof turned);
    for (int c = 0; c < l->g.c && step; c += step) {
        int channels = least(step, l->g.c - c);
        p->k->transpose(filters, channels * taps, w + (size_t)from * filter + (size_t)(c * taps),
                        filter, turned, (size_t)width);
        for (int i = 0; i < channels * taps; i++)
            memcpy(to + (size_t)((i % taps) * l->g.c + c + i / taps) * (size_t)width,
                   turned + (size_t)i * (size_t)width, (size_t)width * sizeof *to);
    }
    for (int i = 0; i < l->g.c * taps && !step; i++)
        for (int f = 0; f < filters; f++)
            to[(size_t)((i % taps) * l->g.c + i / taps) * (size_t)width + (size_t)f] =
                w[(size_t)(from + f) * filter + (size_t)i];
}

/* Packs the same weights for dx: panels of channels, [taps][K][width]. */
static void pack_back(const program *p, const layer *l, const float *w, int part, int parts)
{
    int taps = l->g.kh * l->g.kw;
    size_t filter = (size_t)(l->g.c * taps);
    for (int at = panels_begin(p, l->g.cs, part, parts),
             end = panels_begin(p, l->g.cs, part + 1, parts);
         at < end; at += p->k->panel) {
        int width = least(p->k->panel, l->g.cs - at), real = least(width, l->g.c - at);
        float *panel = l->wb + panel_at(p, l, l->g.k, at), *room = panel_room(p, l, part, panel),
              *to = room;
        if (p->k16 && real < width)
            memset(to, 0, (size_t)(taps * l->g.k * width) * sizeof *to);
        for (int f = 0; f < l->g.k && real > 0 && taps == 1; f++, to += width)
            memcpy(to, w + (size_t)f * filter + (size_t)at, (size_t)real * sizeof *to);
        for (int f = 0; f < l->g.k && real > 0 && taps > 1; f++, to += width)
            p->k->transpose(real, taps, w + (size_t)f * filter + (size_t)(at * taps), (size_t)taps,
                            to, (size_t)(l->g.k * width));
        panel_done(p, l, l->g.k, width, room, panel);
    }
}

static void matmul_pack(program *p, layer *l, int part, int parts)
{
    const float *w = layer_weights(p, l);
    for (int at = panels_begin(p, l->g.ks, part, parts),
             end = panels_begin(p, l->g.ks, part + 1, parts);
         at < end; at += p->k->panel) {
        int width = least(p->k->panel, l->g.ks - at);
        float *to = l->wf + panel_at(p, l, l->g.c, at), *room = panel_room(p, l, part, to);
        if (p->k16)
            memset(room, 0, (size_t)(l->g.kh * l->g.kw * l->g.c * width) * sizeof *room);
        pack_panel(p, l, w, at, width, room);
        panel_done(p, l, l->g.c, width, room, to);
    }
    if (part == 0)
        layer_bias(p, l, l->bf);
    if (l->wb)
        pack_back(p, l, w, part, parts);
}

/* ---- pixels in a row ------------------------------------------------------------------------- */

/* Do the pixels of one sample (gapless: of all samples) follow each other without gaps? */
static bool sample_gapless(const plane *a)
{
    return a->halo == 0;
}

static bool gapless(const tensor *t, const plane *a)
{
    return a->halo == 0 && a->sample == (size_t)t->s.h * a->row;
}

/* How many of so many consecutive pixels to take at a time: at most `most`, a multiple of
 * TILE_ROWS, in parts as even as possible. */
static int part_of(int pixels, int most)
{
    int parts = (pixels + most - 1) / most, each = parts ? (pixels + parts - 1) / parts : 0;
    return (each + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

/* Pixels of a block forward: input and results stay in the second cache. A norm on entry has its
 * input and its result there, which are equally wide. */
static int most_forward(const layer *l)
{
    int pixels = BLOCK_FLOATS / (l->g.cs * (l->entry ? 2 : 1) + l->g.ks) / TILE_ROWS * TILE_ROWS;
    return pixels > 2 * TILE_ROWS ? pixels : 2 * TILE_ROWS;
}

/* Pixels of a block backward: the results' gradient stays in the second cache, and one panel of the
 * input at a time in the first. */
static int most_backward(const layer *l)
{
    int pixels = least(BACK_PIXELS, BLOCK_FLOATS / l->g.ks / TILE_ROWS * TILE_ROWS);
    return pixels > 2 * TILE_ROWS ? pixels : 2 * TILE_ROWS;
}

/* Floats from one pixel to the next in the result of the norm on entry: an odd number of lines, so
 * that pixels do not share lines of the cache. */
static size_t entry_step(const layer *l)
{
    return (((size_t)l->g.cs + 15) / 16 | 1) * 16;
}

/* The first part of a thread's scratch: a span's input where the products cannot read it in place,
 * then its results where the products cannot write them in place. Sizes do not depend on where the
 * results lie, because a folded layer writes another layer's result (cpu_fold.c). */
static size_t input_step(const layer *l)
{
    return l->entry ? entry_step(l) : (size_t)l->g.cs;
}

static size_t input_floats(const layer *l)
{
    return (size_t)most_forward(l) * input_step(l);
}

static size_t result_floats(const layer *l)
{
    return (size_t)most_forward(l) * (size_t)l->g.ks;
}

/* Room for a panel backward, which later holds the panel's gradient. */
static size_t entry_back_floats(const layer *l)
{
    return l->entry ? (size_t)most_backward(l) * PANEL_MOST : 0;
}

/* Is the gradient of the products' input needed? */
static bool asks_gradient(const program *p, const layer *l)
{
    return p->tensors[l->in[0]].dy.data || l->entry;
}

/* dy of some pixels, in two forms: `sum` to sum over rows, `rows` to multiply with weights. */
typedef struct back_block {
    int thread, pixels;
    matmul_rows sum, rows;
    float *panel, *room; /* for a norm on entry, and for words */
} back_block;

/* Computes one panel of channels: the weight gradient, which lies panel by panel as [K][width], and
 * dx. */
static void panel_backward(const program *p, const layer *l, const back_block *b, int at,
                           const float *x, float *dx)
{
    int width = least(p->k->panel, l->g.cs - at);
    size_t ld = (size_t)width, step = (size_t)l->g.cs;
    const norm_part part = {b->pixels, at, width};
    matmul_rows xr = {x, step}, w = {l->wb ? l->wb + panel_at(p, l, l->g.k, at) : NULL, ld};
    float *dw = layer_dw(l, b->thread) + (size_t)at * (size_t)l->g.k;
    if (l->entry) {
        norm_enter(p, l->entry, part, x, b->panel, ld);
        xr = (matmul_rows){b->panel, ld};
    }
    product_sum(p, l->g.k, width, b->pixels, b->sum,
                matmul_across(p, b->pixels, width, xr, b->room), dw, ld, dw, ld);
    if (l->entry) {
        product_rows(p, b->pixels, width, l->g.k, b->rows, w, false, NULL, 0, b->panel, ld);
        norm_leave(p, l->entry, b->thread, part, x, b->panel, ld, l->add[0], dx);
    } else if (dx) {
        product_rows(p, b->pixels, width, l->g.k, b->rows, w, false, l->add[0] ? dx : NULL, step,
                     dx, step);
    }
}

static void rows_backward(const program *p, const layer *l, int thread, int m, const float *x,
                          const float *dy, float *dx)
{
    size_t ks = (size_t)l->g.ks, pairs = (size_t)(m + 1) / 2;
    float *panel = layer_scratch(l, thread), *room = panel + entry_back_floats(l);
    const matmul_rows dyr = {dy, (size_t)p->tensors[l->out].step};
    back_block b = {thread, m,     matmul_across(p, m, l->g.ks, dyr, room),
                    dyr,    panel, room + pairs * ks};
    if (asks_gradient(p, l))
        b.rows = matmul_along(p, m, l->g.k, dyr, b.room), b.room += (size_t)m * b.rows.ld;
    /* with a norm, x may lie in a concat, its pixels further apart */
    for (int at = 0; at < l->g.cs; at += p->k->panel)
        panel_backward(p, l, &b, at, x + at, dx ? dx + at : NULL);
}

/* How many pixels of `samples` samples lie without gaps in one run. */
static int gapless_pixels(const tensor *t, const plane *a, int samples)
{
    int sample = t->s.h * t->s.w;
    return !sample_gapless(a) ? t->s.w : gapless(t, a) ? samples * sample : sample;
}

/* `pixels` consecutive pixels of a thread's samples, from pixel `first` on. */
typedef struct span {
    int from, samples, first, pixels;
} span;

static bool lies_gapless(const tensor *t, const plane *a, const span *b)
{
    int run = gapless_pixels(t, a, b->samples);
    return b->first / run == (b->first + b->pixels - 1) / run;
}

static float *span_pixel(const tensor *t, const plane *a, const span *b, int i)
{
    int at = b->first + i, line = at / t->s.w;
    return pixel(t, a, b->from + line / t->s.h, line % t->s.h, at % t->s.w);
}

/* How many of the span's pixels, from pixel i on, lie in i's row. */
static int span_row(const tensor *t, const span *b, int i)
{
    return least(t->s.w - (b->first + i) % t->s.w, b->pixels - i);
}

/* A span's input as consecutive rows: in place or, in `room`, the result of the norm on entry or a
 * copy. */
static matmul_rows span_input(const program *p, const layer *l, const span *b, float *room)
{
    const tensor *x = &p->tensors[l->in[0]];
    bool lies = lies_gapless(x, &x->y, b);
    size_t step = input_step(l);
    if (lies && !l->entry)
        return (matmul_rows){span_pixel(x, &x->y, b, 0), step};
    for (int i = 0, n; i < b->pixels; i += n) {
        const float *row = span_pixel(x, &x->y, b, i);
        n = lies ? b->pixels : span_row(x, b, i);
        if (l->entry)
            norm_enter(p, l->entry, (norm_part){n, 0, l->g.cs}, row, room + (size_t)i * step, step);
        else
            memcpy(room + (size_t)i * step, row, (size_t)n * step * sizeof *room);
    }
    return (matmul_rows){room, step};
}

/* Copies the consecutive results to y's rows. */
static void spread(const program *p, const layer *l, const span *b, const float *results)
{
    const tensor *y = &p->tensors[l->out];
    size_t ks = (size_t)l->g.ks;
    for (int i = 0, n; i < b->pixels; i += n) {
        float *row = span_pixel(y, &y->y, b, i);
        n = span_row(y, b, i);
        for (int j = 0; j < n; j++)
            memcpy(row + (size_t)(j * y->step), results + (size_t)(i + j) * ks, ks * sizeof *row);
    }
}

static void span_forward(const program *p, const layer *l, const span *b, float *room)
{
    const tensor *y = &p->tensors[l->out];
    bool lies = lies_gapless(y, &y->y, b);
    float *results = room + input_floats(l);
    matmul_rows x = span_input(p, l, b, room),
                a = matmul_along(p, b->pixels, l->g.c, x, results + result_floats(l));
    float *to = lies ? span_pixel(y, &y->y, b, 0) : results;
    size_t step = lies ? (size_t)y->step : (size_t)l->g.ks;
    for (int at = 0; at < l->g.ks; at += p->k->panel) {
        int width = least(p->k->panel, l->g.ks - at);
        matmul_rows w = {l->wf + panel_at(p, l, l->g.c, at), (size_t)width};
        product_rows(p, b->pixels, width, l->g.c, a, w, l->relu, l->bf + at, 0, to + at, step);
    }
    if (!lies)
        spread(p, l, b, results);
}

static void pointwise_forward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int samples = to - from, pixels = samples * x->s.h * x->s.w;
    int run = least(gapless_pixels(x, &x->y, samples), gapless_pixels(y, &y->y, samples));
    if (run < JOINED)
        run = pixels;
    int size = part_of(run, most_forward(l));
    for (int first = 0; first < pixels; first += run)
        for (int at = 0; at < run; at += size) {
            span b = {from, samples, first + at, least(size, run - at)};
            span_forward(p, l, &b, layer_scratch(l, thread));
        }
}

static void pointwise_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    float *db = layer_db(l, thread);
    int samples = to - from, pixels = samples * x->s.h * x->s.w;
    int run = least(gapless_pixels(x, &x->y, samples),
                    least(gapless_pixels(x, &x->dy, samples), gapless_pixels(y, &y->dy, samples)));
    int size = part_of(run, most_backward(l));
    mask_samples(p, l, from, to, db);
    for (int first = 0; first < pixels; first += run)
        for (int at = 0; at < run; at += size) {
            span b = {from, samples, first + at, least(size, run - at)};
            rows_backward(p, l, thread, b.pixels, span_pixel(x, &x->y, &b, 0),
                          span_pixel(y, &y->dy, &b, 0),
                          x->dy.data ? span_pixel(x, &x->dy, &b, 0) : NULL);
        }
}

/* ---- one pixel of all samples ---------------------------------------------------------------- */

/* Kernel rows [from, to) that meet the image at output row `o`, and the input row of the first. */
typedef struct cut {
    int from, to, first;
} cut;

static cut taps_of(int o, int in, int kernel, int stride, int pad, int dil)
{
    cut t = {.from = 0, .to = kernel};
    int at = o * stride - pad;
    while (t.from < kernel && at + t.from * dil < 0)
        t.from++;
    while (t.to > t.from && at + (t.to - 1) * dil >= in)
        t.to--;
    t.first = at + t.from * dil;
    return t;
}

static cut taps_h(const layer *l, shape in, int o)
{
    return taps_of(o, in.h, l->g.kh, l->g.sh, l->node->conv.pad_h, l->g.dh);
}

static cut taps_w(const layer *l, shape in, int o)
{
    return taps_of(o, in.w, l->g.kw, l->g.sw, l->node->conv.pad_w, l->g.dw);
}

/* One pixel of the samples from `from` on: x_rows and dy_rows to multiply with weights, x_sum and
 * dy_sum to sum over. */
static matmul_rows x_rows(const program *p, const layer *l, int from, int h, int w)
{
    const tensor *x = &p->tensors[l->in[0]];
    return p->k16 ? points16_row(p, l->points16->x, x, from, h, w)
                  : (matmul_rows){pixel(x, &x->y, from, h, w), x->y.sample};
}

static matmul_rows dy_rows(const program *p, const layer *l, int from, int h, int w)
{
    const tensor *y = &p->tensors[l->out];
    return p->k16 ? points16_row(p, l->points16->dy, y, from, h, w)
                  : (matmul_rows){pixel(y, &y->dy, from, h, w), y->dy.sample};
}

static matmul_rows x_sum(const program *p, const layer *l, int from, int thread, int h, int w)
{
    const tensor *x = &p->tensors[l->in[0]];
    return p->k16 ? points16_two(p, l->points16->x_two, x, from, thread, h, w)
                  : (matmul_rows){pixel(x, &x->y, from, h, w), x->y.sample};
}

static matmul_rows dy_sum(const program *p, const layer *l, int from, int thread, int h, int w)
{
    const tensor *y = &p->tensors[l->out];
    return p->k16 ? points16_two(p, l->points16->dy_two, y, from, thread, h, w)
                  : (matmul_rows){pixel(y, &y->dy, from, h, w), y->dy.sample};
}

/* Computes one panel of filters at output pixel (h, w) of the samples [from, to). */
static void point_forward(const program *p, const layer *l, int from, int to, int h, int w, int at)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int width = least(p->k->panel, l->g.ks - at);
    cut v = taps_h(l, x->s, h), u = taps_w(l, x->s, w);
    /* the taps of a kernel row follow each other in memory */
    bool merged = l->g.dw == 1 && l->g.c == l->g.cs && !p->k16;
    int step = merged ? u.to - u.from : 1;
    float *to_y = pixel(y, &y->y, from, h, w) + at;
    const float *add = l->bf + at, *wf = l->wf + panel_at(p, l, l->g.c, at);
    for (int r = v.from; r < v.to; r++) {
        for (int s = u.from; s < u.to; s += step) {
            matmul_rows a = x_rows(p, l, from, v.first + (r - v.from) * l->g.dh,
                                   u.first + (s - u.from) * l->g.dw);
            matmul_rows b = {wf + (size_t)((r * l->g.kw + s) * depth(p, l->g.c) * width),
                             (size_t)width};
            product_rows(p, to - from, width, step * l->g.c, a, b,
                         l->relu && r + 1 == v.to && s + step >= u.to, add,
                         add == to_y ? y->y.sample : 0, to_y, y->y.sample);
            add = to_y;
        }
    }
    if (add != to_y) /* the window has only padding */
        for (int i = from; i < to; i++, to_y += y->y.sample)
            p->k->add((size_t)width, add, NULL, l->relu, to_y);
}

static void points_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    if (p->k16)
        points16_forward(p, l, from, to);
    for (int at = 0; at < l->g.ks; at += p->k->panel)
        for (int h = 0; h < l->g.oh; h++)
            for (int w = 0; w < l->g.ow; w++)
                point_forward(p, l, from, to, h, w, at);
}

/* dw of some filters at one tap, from row h of the outputs whose tap lies in the image. The first
 * row writes dw, later rows add. */
static void tap_dw(const program *p, const layer *l, int from, int to, int thread, int h, int tap,
                   int filter, float *dw)
{
    const tensor *x = &p->tensors[l->in[0]];
    int filters = least(FILTERS, l->g.k - filter), pw = l->node->conv.pad_w, s = tap % l->g.kw;
    int ih = h * l->g.sh - l->node->conv.pad_h + tap / l->g.kw * l->g.dh;
    float *c = dw + (size_t)(tap * l->g.k + filter) * (size_t)l->g.cs, *add = h == 0 ? NULL : c;
    for (int w = 0; w < l->g.ow && ih >= 0 && ih < x->s.h; w++) {
        int iw = w * l->g.sw - pw + s * l->g.dw;
        if (iw < 0 || iw >= x->s.w)
            continue;
        matmul_rows a = dy_sum(p, l, from, thread, h, w);
        a.data += filter;
        product_sum(p, filters, l->g.cs, to - from, a, x_sum(p, l, from, thread, ih, iw), add,
                    (size_t)l->g.cs, c, (size_t)l->g.cs);
        add = c;
    }
    if (!add)
        memset(c, 0, (size_t)filters * (size_t)l->g.cs * sizeof *c);
}

/* Computes one panel of channels of dx at input pixel (h, w), from every output that read the
 * pixel. */
static void point_dx(const program *p, const layer *l, int from, int to, int h, int w, int at)
{
    const tensor *x = &p->tensors[l->in[0]];
    int width = least(p->k->panel, l->g.cs - at);
    float *c = pixel(x, &x->dy, from, h, w) + at;
    const float *add = l->add[0] ? c : NULL, *wb = l->wb + panel_at(p, l, l->g.k, at);
    bool any = l->add[0];
    for (int r = 0; r < l->g.kh; r++) {
        int oh = h + l->node->conv.pad_h - r * l->g.dh;
        if (oh < 0 || oh % l->g.sh || oh / l->g.sh >= l->g.oh)
            continue;
        for (int s = 0; s < l->g.kw; s++) {
            int ow = w + l->node->conv.pad_w - s * l->g.dw;
            if (ow < 0 || ow % l->g.sw || ow / l->g.sw >= l->g.ow)
                continue;
            matmul_rows b = {wb + (size_t)((r * l->g.kw + s) * depth(p, l->g.k) * width),
                             (size_t)width};
            product_rows(p, to - from, width, l->g.k,
                         dy_rows(p, l, from, oh / l->g.sh, ow / l->g.sw), b, false, add,
                         x->dy.sample, c, x->dy.sample);
            add = c, any = true;
        }
    }
    for (int i = from; i < to && !any; i++, c += x->dy.sample)
        memset(c, 0, (size_t)width * sizeof *c);
}

static void points_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]];
    float *dw = layer_dw(l, thread), *db = layer_db(l, thread);
    mask_samples(p, l, from, to, db);
    if (p->k16)
        points16_backward(p, l, from, to, thread);
    for (int filter = 0; filter < l->g.k; filter += FILTERS)
        for (int h = 0; h < l->g.oh; h++) /* all taps of a row, because they meet the same pixels */
            for (int t = 0; t < l->g.kh * l->g.kw; t++)
                tap_dw(p, l, from, to, thread, h, t, filter, dw);
    for (int at = 0; at < l->g.cs && x->dy.data; at += p->k->panel)
        for (int h = 0; h < x->s.h; h++)
            for (int w = 0; w < x->s.w; w++)
                point_dx(p, l, from, to, h, w, at);
}

/* ---- the layer ------------------------------------------------------------------------------- */

/* Writes [cs/panel][K][panel] to grads as (K, C). */
static void pointwise_finish(program *p, layer *l, int part, int parts)
{
    size_t first = (size_t)part_begin(l->g.k, part, parts),
           end = (size_t)part_begin(l->g.k, part + 1, parts);
    float *to = program_grad(p, l->node->weight);
    for (int at = 0; at < l->g.c; at += p->k->panel) {
        size_t width = (size_t)least(p->k->panel, l->g.cs - at),
               real = (size_t)least(p->k->panel, l->g.c - at);
        const float *from = l->dw + (size_t)at * (size_t)l->g.k;
        for (size_t f = first; f < end; f++)
            memcpy(to + f * (size_t)l->g.c + (size_t)at, from + f * width, real * sizeof *to);
    }
}

/* Writes [taps][K][cs] to grads as (K, C, taps). */
static void points_finish(program *p, layer *l, int part, int parts)
{
    size_t end = (size_t)part_begin(l->g.k, part + 1, parts);
    size_t tap_count = (size_t)(l->g.kh * l->g.kw), filter = (size_t)l->g.c * tap_count;
    float *to = program_grad(p, l->node->weight);
    for (size_t f = (size_t)part_begin(l->g.k, part, parts); f < end; f++)
        if (tap_count == 1)
            memcpy(to + f * filter, l->dw + f * (size_t)l->g.cs, filter * sizeof *to);
        else
            p->k->transpose((int)tap_count, l->g.c, l->dw + f * (size_t)l->g.cs,
                            (size_t)(l->g.k * l->g.cs), to + f * filter, tap_count);
}

static const layer_ops pointwise_ops = {.forward = pointwise_forward,
                                        .backward = pointwise_backward,
                                        .overwrites = true,
                                        .finish = pointwise_finish,
                                        .pack = matmul_pack};
static const layer_ops points_ops = {.forward = points_forward, .backward = points_backward,
                                     .finish = points_finish, .pack = matmul_pack};

/* Sizes a thread's scratch: input and results of a span, and in bf16 a block's words or a packed
 * panel. Backward, words hold dy in two forms and a panel. */
static void size_scratch(const program *p, layer *l, bool rows)
{
    size_t ahead = rows ? input_floats(l) + result_floats(l) : 0, back = entry_back_floats(l),
           panel = 0;
    if (p->k16) {
        int deepest = l->g.c > l->g.k ? l->g.c : l->g.k;
        panel = (size_t)(l->g.kh * l->g.kw * deepest) * PANEL_MOST;
    }
    if (p->k16 && rows) {
        ahead += (size_t)(most_forward(l) + 1) * (size_t)l->g.cs;
        back += (size_t)(most_backward(l) + 1) * (size_t)(l->g.ks + PANEL_MOST);
    }
    size_t most = ahead > back ? ahead : back;
    l->scratch_floats = (most > panel ? most : panel) + CPU_SLACK;
    l->scratch_shared = p->k16 || most > 0;
}

int layer_matmul(program *p, layer *l)
{
    enum { NARROW = 8, SMALL = 64, ENOUGH = 128 }; /* pixels */
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t threads = (size_t)cpu_threads_count(p->threads);
    l->g = conv_geometry(p, l);
    bool whole = x->y.halo == 0 && y->y.halo == 0 && x->dy.halo == 0 && y->dy.halo == 0;
    bool rows = conv_is_pointwise(l->node) &&
                (l->entry || whole || x->s.w >= NARROW || p->c.batch < SAMPLES_MIN);
    l->ops = rows ? &pointwise_ops : &points_ops;
    l->folds = true;
    l->fresh = !rows;
    l->together = !rows || x->s.h * x->s.w < SMALL;
    l->samples = rows ? (ENOUGH + x->s.h * x->s.w - 1) / (x->s.h * x->s.w) : 0;
    size_t taps = (size_t)(l->g.kh * l->g.kw);
    l->wf = program_floats(p, taps * (size_t)l->g.c * (size_t)l->g.ks);
    l->bf = program_floats(p, (size_t)l->g.ks + CPU_SLACK);
    snprintf(l->choice, sizeof l->choice, "%s%s%s", rows ? "matmul" : "matmul-points",
             p->k16 ? "-bf16" : "", l->relu ? "+relu" : "");
    size_scratch(p, l, rows);
    if (!l->wf || !l->bf || (p->k16 && !rows && points16_alloc(p, l) != 0))
        return -1;
    if (p->c.inference)
        return 0;
    l->dw_floats = taps * (size_t)l->g.k * (size_t)l->g.cs;
    l->db_floats = ((size_t)l->g.ks + 15) / 16 * 16;
    l->dw = program_floats(p, threads * l->dw_floats + CPU_SLACK);
    l->db = program_floats(p, threads * l->db_floats);
    bool back = asks_gradient(p, l);
    if (back)
        l->wb = program_floats(p, taps * (size_t)l->g.k * (size_t)l->g.cs);
    return l->dw && l->db && (!back || l->wb) ? 0 : -1;
}
