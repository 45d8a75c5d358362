/* cpu_conv.c: convolutions with their bias, ReLU and max pooling as one layer, sample by sample.
 *
 * Backward through the pooling touches the winners alone, a quarter of the work. 2x2 pooling is
 * computed in registers, for a 5x5 kernel by cpu_winograd.c. Other windows, which overlap, are
 * pooled after the convolution, while its result is in the second cache; only over the network's
 * input, because only the weights' gradient is then by winners. Without pooling, the input gradient
 * is again a convolution, over dy with a border, for each phase of the stride; otherwise the output
 * pixels scatter. Each thread gathers weight gradients in a block of its own; the blocks are summed
 * in thread order. */
#include <stdio.h>
#include <string.h>

#include "cpu_winograd.h"

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

bool conv_is_direct(const graph_node *n)
{
    return n->conv.groups == 1;
}

/* Where the window of output (0,0) begins in sample i. */
static float *window(const plane *a, int cs, int sample, int pad_h, int pad_w)
{
    return a->data + (size_t)sample * a->sample + (size_t)(a->halo - pad_h) * a->row +
           (size_t)((a->halo - pad_w) * cs);
}

/* Where weights lie: filter f, channel i, kernel position (r, s) at base + f*f_step + i*i_step +
 * r*r_step + s*s_step, with the steps below, which may be negative. */
typedef struct bank {
    const float *base;
    ptrdiff_t f, i, r, s;
} bank;

/* Packs into blocks of filters: [K/block][R][S][C][block]. */
static void pack_forward(const cpu_kernels *k, const conv_geom *g, bank w, int part, int parts,
                         float *to)
{
    int padded = (g->k + 7) / 8 * 8, width, end = part_begin(padded / 16, part + 1, parts) * 16;
    int o = part_begin(padded / 16, part, parts) * 16;
    if (part + 1 == parts)
        end = padded;
    to += (size_t)o * (size_t)(g->kh * g->kw * g->c);
    for (; o < end; o += width) {
        width = k->block == 16 && o + 16 <= padded ? 16 : 8;
        for (int r = 0; r < g->kh; r++)
            for (int s = 0; s < g->kw; s++)
                for (int c = 0; c < g->c; c++, to += width) {
                    const float *from = w.base + o * w.f + c * w.i + r * w.r + s * w.s;
                    for (int j = 0; j < width; j++)
                        to[j] = o + j < g->k ? from[j * w.f] : 0;
                }
    }
}

/* Packs as [K][R][run], channels innermost. */
static void pack_backward(const conv_geom *g, const float *w, int part, int parts, float *to)
{
    size_t R = (size_t)g->kh, S = (size_t)g->kw, C = (size_t)g->c;
    size_t end = (size_t)part_begin(g->k, part + 1, parts);
    for (size_t f = (size_t)part_begin(g->k, part, parts); f < end; f++)
        for (size_t r = 0; r < R; r++)
            for (size_t s = 0; s < S; s++)
                for (size_t c = 0; c < C; c++)
                    to[(f * R + r) * g->run + s * (size_t)g->cs + c] =
                        w[((f * C + c) * R + r) * S + s];
}

static void winners_pack(program *p, layer *l, int part, int parts)
{
    wino_pooled_pack(p, l, part, parts);
    if (part == 0)
        layer_bias(p, l, l->bf);
    if (l->wb)
        pack_backward(&l->g, layer_weights(p, l), part, parts, l->wb);
}

static void conv_pack(program *p, layer *l, int part, int parts)
{
    const float *w = layer_weights(p, l);
    ptrdiff_t S = l->g.kw, tap = l->g.kh * S, filter = l->g.c * tap;
    pack_forward(p->k, &l->g, (bank){w, filter, tap, S, 1}, part, parts, l->wf);
    if (part == 0)
        layer_bias(p, l, l->bf);
    for (int i = 0; i < l->phase_count; i++) {
        const conv_phase *f = &l->phases[i];
        /* The last kernel row of the phase comes first; filters and channels change places. */
        ptrdiff_t last = f->h.first + f->h.step * (f->g.kh - 1),
                  end = f->w.first + f->w.step * (f->g.kw - 1);
        pack_forward(p->k, &f->g,
                     (bank){w + last * S + end, tap, filter, -f->h.step * S, -f->w.step}, part,
                     parts, f->wf);
    }
    if (l->wb)
        pack_backward(&l->g, w, part, parts, l->wb);
}

static void conv_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        p->k->conv(&l->g, window(&x->y, x->cs, i, l->node->conv.pad_h, l->node->conv.pad_w), l->wf,
                   l->bf, tensor_pixels(&y->y, y->cs, i));
}

static void pooled_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        p->k->conv_pool(&l->g, window(&x->y, x->cs, i, l->node->conv.pad_h, l->node->conv.pad_w),
                        l->wf, l->bf, tensor_pixels(&y->y, y->cs, i),
                        p->training ? l->arg + (size_t)i * l->arg_sample : NULL);
}

static void windows_forward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    float *result = layer_scratch(l, thread);
    for (int i = from; i < to; i++) {
        p->k->conv(&l->g, window(&x->y, x->cs, i, l->node->conv.pad_h, l->node->conv.pad_w), l->wf,
                   l->bf, result);
        p->k->window_max(&l->ahead, result, tensor_pixels(&y->y, y->cs, i),
                         p->training ? l->arg + (size_t)i * l->arg_sample : NULL);
    }
}

/* dp = one sample's dy through ReLU, without gaps; adds the bias' gradient to db. */
static void pooled_gradient(const program *p, const layer *l, int i, float *dp, float *db)
{
    const tensor *y = &p->tensors[l->out];
    const float *yi = tensor_pixels(&y->y, y->cs, i), *dyi = tensor_pixels(&y->dy, y->cs, i);
    size_t row = (size_t)(y->s.w * y->cs);
    if (y->y.halo == 0 && y->dy.halo == 0)
        p->k->mask_bias(y->s.h * y->s.w, y->cs, (size_t)y->cs, l->relu ? yi : NULL, dyi, dp, db);
    else
        for (int h = 0; h < y->s.h; h++)
            p->k->mask_bias(y->s.w, y->cs, (size_t)y->cs,
                            l->relu ? yi + (size_t)h * y->y.row : NULL, dyi + (size_t)h * y->dy.row,
                            dp + (size_t)h * row, db);
}

static void windows_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]];
    float *dp = layer_scratch(l, thread);
    float *dw = layer_dw(l, thread), *db = layer_db(l, thread);
    for (int i = from; i < to; i++) {
        pooled_gradient(p, l, i, dp, db);
        p->k->conv_window_dw(&l->g, &l->cells,
                             window(&x->y, x->cs, i, l->node->conv.pad_h, l->node->conv.pad_w), dp,
                             l->arg + (size_t)i * l->arg_sample, dw);
    }
}

static void pooled_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]];
    int ph = l->node->conv.pad_h, pw = l->node->conv.pad_w, t = thread;
    float *dp = layer_scratch(l, t);
    float *dw = layer_dw(l, t), *db = layer_db(l, t);
    conv_geom gx = l->g;
    gx.x_row = x->dy.row;
    for (int i = from; i < to; i++) {
        pooled_gradient(p, l, i, dp, db);
        const uint8_t *arg = l->arg + (size_t)i * l->arg_sample;
        p->k->conv_pool_dw(&l->g, window(&x->y, x->cs, i, ph, pw), dp, arg, dw);
        if (!x->dy.data)
            continue;
        if (!l->add[0])
            memset(x->dy.data + (size_t)i * x->dy.sample, 0, x->dy.sample * sizeof(float));
        p->k->conv_pool_dx(&gx, dp, arg, l->wb, window(&x->dy, x->cs, i, ph, pw));
        tensor_clear_halo(x, i);
    }
}

/* ---- the input gradient without pooling: a convolution over dy for each phase of the stride -- */

/* Input positions h = a, a + stride, ... read only the kernel rows first, first + step, ..., and
 * the rows of dy from h/stride - pad on: a convolution of stride 1 with the kernel reversed. */
static phase_axis axis_of(int a, int in, int out, int kernel, int stride, int pad, int dil)
{
    phase_axis f = {.from = a, .step = stride == 1 ? 1 : stride,
                    .count = (in - a + stride - 1) / stride};
    int reach = stride == 1 ? dil : 1; /* rows of dy between two taps */
    f.first = (a + pad) % stride;
    f.taps = f.first < kernel ? (kernel - f.first + f.step - 1) / f.step : 0;
    f.pad = (f.taps - 1) * reach - (a + pad - f.first) / stride;
    int beyond = f.count - 1 - f.pad + (f.taps - 1) * reach - (out - 1);
    f.halo = f.pad > beyond ? f.pad : beyond;
    return f;
}

/* Phases pay for strides up to 4; a layer with both stride and dilation scatters. */
static bool has_phases(const graph_node *n)
{
    bool plain = n->conv.stride_h == 1 && n->conv.stride_w == 1;
    return plain || (n->conv.dil_h == 1 && n->conv.dil_w == 1 && n->conv.stride_h <= 4 &&
                     n->conv.stride_w <= 4);
}

static phase_axis axis_h(const graph_node *n, int in, int a)
{
    return axis_of(a, in, n->shape.h, n->conv.kernel_h, n->conv.stride_h, n->conv.pad_h,
                   n->conv.dil_h);
}

static phase_axis axis_w(const graph_node *n, int in, int a)
{
    return axis_of(a, in, n->shape.w, n->conv.kernel_w, n->conv.stride_w, n->conv.pad_w,
                   n->conv.dil_w);
}

int conv_dy_halo(const graph_node *n, shape in)
{
    int halo = 0;
    if (!has_phases(n))
        return -1;
    for (int a = 0; a < n->conv.stride_h; a++) {
        phase_axis f = axis_h(n, in.h, a);
        halo = f.taps > 0 && f.count > 0 && f.halo > halo ? f.halo : halo;
    }
    for (int a = 0; a < n->conv.stride_w; a++) {
        phase_axis f = axis_w(n, in.w, a);
        halo = f.taps > 0 && f.count > 0 && f.halo > halo ? f.halo : halo;
    }
    return halo;
}

/* Computes one phase of sample i: into dx itself, or through scratch where it adds to dx. */
static void phase_dx(program *p, layer *l, const conv_phase *f, int i, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const float *dy = window(&y->dy, y->cs, i, f->h.pad, f->w.pad);
    float *dx = tensor_pixels(&x->dy, x->cs, i) + (size_t)f->h.from * x->dy.row +
                (size_t)(f->w.from * x->cs);
    if (!l->add[0]) {
        p->k->conv(&f->g, dy, f->wf, l->zeros, dx);
        return;
    }
    conv_geom g = f->g;
    g.y_row = (size_t)(g.ow * g.ks), g.y_step = (size_t)g.ks;
    float *scratch = layer_scratch(l, thread);
    p->k->conv(&g, dy, f->wf, l->zeros, scratch);
    size_t at_once = f->g.y_step == (size_t)g.ks ? g.y_row : (size_t)g.ks;
    for (int h = 0; h < g.oh; h++) {
        float *to = dx + (size_t)h * f->g.y_row;
        for (size_t done = 0; done < g.y_row; done += at_once, scratch += at_once) {
            p->k->add(at_once, to, scratch, false, to);
            to += f->g.y_step;
        }
    }
}

static void dense_dx(program *p, layer *l, int i, int thread)
{
    const tensor *x = &p->tensors[l->in[0]];
    if (l->gaps && !l->add[0])
        memset(x->dy.data + (size_t)i * x->dy.sample, 0, x->dy.sample * sizeof(float));
    for (int q = 0; q < l->phase_count; q++)
        phase_dx(p, l, &l->phases[q], i, thread);
}

static void dense_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int ph = l->node->conv.pad_h, pw = l->node->conv.pad_w;
    float *dw = layer_dw(l, thread), *db = layer_db(l, thread);
    conv_geom gw = l->g, gx = l->g;
    gw.y_row = gx.y_row = y->dy.row;
    gx.x_row = x->dy.row;
    for (int i = from; i < to; i++) {
        const float *yi = tensor_pixels(&y->y, y->cs, i);
        float *dyi = tensor_pixels(&y->dy, y->cs, i);
        for (int h = 0; h < y->s.h && (l->relu || l->node->bias >= 0); h++)
            p->k->mask_bias(y->s.w, y->cs, (size_t)y->cs,
                            l->relu ? yi + (size_t)h * y->y.row : NULL, dyi + (size_t)h * y->dy.row,
                            dyi + (size_t)h * y->dy.row, db);
        p->k->conv_dw(&gw, window(&x->y, x->cs, i, ph, pw), dyi, dw);
        if (!x->dy.data)
            continue;
        if (!l->wb) {
            dense_dx(p, l, i, thread);
            continue;
        }
        if (!l->add[0])
            memset(x->dy.data + (size_t)i * x->dy.sample, 0, x->dy.sample * sizeof(float));
        p->k->conv_dx(&gx, dyi, l->wb, window(&x->dy, x->cs, i, ph, pw));
        tensor_clear_halo(x, i);
    }
}

static void conv_finish(program *p, layer *l, int part, int parts)
{
    const conv_geom *g = &l->g;
    size_t R = (size_t)g->kh, S = (size_t)g->kw, C = (size_t)g->c;
    size_t end = (size_t)part_begin(g->k, part + 1, parts);
    float *to = program_grad(p, l->node->weight);
    for (size_t f = (size_t)part_begin(g->k, part, parts); f < end; f++)
        for (size_t r = 0; r < R; r++)
            for (size_t s = 0; s < S; s++)
                for (size_t c = 0; c < C; c++)
                    to[((f * C + c) * R + r) * S + s] =
                        l->dw[(f * R + r) * g->run + s * (size_t)g->cs + c];
}

static const layer_ops conv_ops = {
    .forward = conv_forward, .backward = dense_backward, .finish = conv_finish, .pack = conv_pack};
static const layer_ops pooled_ops = {.forward = pooled_forward, .backward = pooled_backward,
                                     .finish = conv_finish, .pack = conv_pack};
static const layer_ops wino_pooled_ops = {.forward = wino_pooled_forward,
                                          .backward = pooled_backward,
                                          .finish = conv_finish,
                                          .pack = winners_pack};
static const layer_ops windows_ops = {.forward = windows_forward, .backward = windows_backward,
                                      .finish = conv_finish, .pack = conv_pack};

conv_geom conv_geometry(const program *p, const layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const graph_node *n = l->node;
    shape out = n->shape;
    return (conv_geom){.c = x->s.c, .cs = x->cs, .x_row = x->y.row, .k = out.c, .ks = y->cs,
                       .oh = out.h, .ow = out.w, .y_row = y->y.row, .y_step = (size_t)y->cs,
                       .kh = n->conv.kernel_h, .kw = n->conv.kernel_w,
                       .sh = n->conv.stride_h, .sw = n->conv.stride_w,
                       .dh = n->conv.dil_h, .dw = n->conv.dil_w,
                       .run = round_up((size_t)(n->conv.kernel_w * x->cs), 8), .relu = l->relu};
}

static int make_phase(program *p, layer *l, phase_axis h, phase_axis w)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    conv_phase *f = &l->phases[l->phase_count];
    if (h.taps <= 0 || w.taps <= 0 || h.count <= 0 || w.count <= 0) {
        l->gaps |= h.count > 0 && w.count > 0;
        return 0;
    }
    int sh = l->g.sh, sw = l->g.sw;
    f->h = h, f->w = w;
    f->g = (conv_geom){.c = y->s.c, .cs = y->cs, .x_row = y->dy.row, .k = x->s.c, .ks = x->cs,
                       .oh = h.count, .ow = w.count, .y_row = (size_t)sh * x->dy.row,
                       .y_step = (size_t)(sw * x->cs), .kh = h.taps, .kw = w.taps, .sh = 1, .sw = 1,
                       .dh = sh == 1 ? l->g.dh : 1, .dw = sw == 1 ? l->g.dw : 1};
    f->wf = program_floats(p, round_up((size_t)x->s.c, 8) * (size_t)(h.taps * w.taps * y->s.c));
    l->phase_count++;
    return f->wf ? 0 : -1;
}

static int make_phases(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]];
    const graph_node *n = l->node;
    l->zeros = program_floats(p, round_up((size_t)x->cs, 16));
    l->phases = program_alloc(p, (size_t)(l->g.sh * l->g.sw), sizeof *l->phases);
    if (!l->zeros || !l->phases)
        return -1;
    for (int a = 0; a < l->g.sh; a++)
        for (int b = 0; b < l->g.sw; b++)
            if (make_phase(p, l, axis_h(n, x->s.h, a), axis_w(n, x->s.w, b)) != 0)
                return -1;
    return 0;
}

static int alloc_backward(program *p, layer *l)
{
    const bool pooled = l->pool != POOL_NONE;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    const conv_geom *g = &l->g;
    size_t threads = (size_t)cpu_threads_count(p->threads);
    l->dw_floats = round_up((size_t)g->k * (size_t)g->kh * g->run, 16);
    l->db_floats = round_up((size_t)y->cs, 16);
    l->dw = program_floats(p, threads * l->dw_floats);
    l->db = program_floats(p, threads * l->db_floats);
    size_t result =
        round_up(pooled ? (size_t)(y->s.h * y->s.w * y->cs) : (size_t)(x->s.h * x->s.w * x->cs),
                 16) +
        CPU_SLACK;
    bool own = !l->scratch_shared && (l->pool == POOL_CELLS || (!pooled && l->add[0]));
    if (own) {
        l->scratch_floats = result;
        l->scratch = program_floats(p, threads * l->scratch_floats);
    } else if (l->pool == POOL_CELLS && l->scratch_floats < result) {
        l->scratch_floats = result;
    }
    if (pooled) {
        l->arg_sample = (size_t)(y->s.h * y->s.w * y->cs);
        l->arg = program_alloc(p, (size_t)p->c.batch * l->arg_sample + CPU_SLACK, 1);
    }
    if (!l->dw || !l->db || (pooled && !l->arg) || (own && !l->scratch))
        return -1;
    if (!x->dy.data)
        return 0;
    if (!pooled && has_phases(l->node))
        return make_phases(p, l);
    l->wb = program_floats(p, (size_t)g->k * (size_t)g->kh * g->run);
    return l->wb ? 0 : -1;
}

/* The convolution writes its result into scratch, without gaps, and the pooling reads it there. */
static int make_windows(program *p, layer *l)
{
    const graph *g = p->g;
    const tensor *y = &p->tensors[l->out];
    int after = graph_only_reader(g, (int)(l->node - g->nodes));
    if (g->nodes[after].op != OP_MAX_POOL) /* ReLU */
        after = graph_only_reader(g, after);
    const graph_node *n = &g->nodes[after];
    l->g.y_row = (size_t)(l->g.ow * l->g.ks), l->g.y_step = (size_t)l->g.ks;
    size_t result = (size_t)l->g.oh * l->g.y_row, pooled = (size_t)(y->s.h * y->s.w * y->cs);
    l->scratch_floats = (result > pooled ? result : pooled) + CPU_SLACK;
    l->scratch_shared = true;
    if (pool_windows(p, n, l->node->shape, l->g.ks, &l->ahead) != 0)
        return -1;
    l->ahead.y_row = y->y.row;
    int64_t row = (int64_t)l->g.x_row * l->g.sh, step = (int64_t)l->g.cs * l->g.sw;
    l->cells = (pool_cells){
        y->s.h, y->s.w, (size_t)(row * n->pool.stride_h), (size_t)(step * n->pool.stride_w),
        program_alloc(p, (size_t)(n->pool.kernel_h * n->pool.kernel_w), sizeof(uint32_t))};
    for (int r = 0, t = 0; l->cells.at && r < n->pool.kernel_h; r++)
        for (int s = 0; s < n->pool.kernel_w; s++, t++)
            l->cells.at[t] = (uint32_t)((r - n->pool.pad_h) * row + (s - n->pool.pad_w) * step);
    return l->cells.at ? 0 : -1;
}

int layer_conv(program *p, layer *l)
{
    static const layer_ops *const ops[] = {&conv_ops, &pooled_ops, &windows_ops};
    static const char *const names[] = {"direct", "direct+pool", "direct+windows"};
    const graph_node *n = l->node;
    l->g = conv_geometry(p, l);
    bool winograd = l->pool == POOL_CELLS && conv_is_winograd(p, n, l->g.c);
    l->ops = winograd ? &wino_pooled_ops : ops[l->pool];
    l->folds = l->pool == POOL_NONE;
    size_t taps = (size_t)(n->conv.kernel_h * n->conv.kernel_w) * (size_t)l->g.c;
    l->bf = program_floats(p, round_up((size_t)l->g.k, 16));
    snprintf(l->choice, sizeof l->choice, "%s%s", winograd ? "winograd2+pool" : names[l->pool],
             l->pool == POOL_NONE && l->relu ? "+relu" : "");
    if (!winograd)
        l->wf = program_floats(p, round_up((size_t)l->g.k, 8) * taps);
    if (!l->bf || (winograd ? wino_pooled_make(p, l) != 0 : !l->wf) ||
        (l->pool == POOL_WINDOWS && make_windows(p, l) != 0))
        return -1;
    return p->c.inference ? 0 : alloc_backward(p, l);
}
