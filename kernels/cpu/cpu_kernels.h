/* cpu_kernels.h: the inner loops of the CPU backend, as one table per instruction set.
 *
 * Every kernel works on one sample or on a range of rows that the caller gives, without threads,
 * allocation or errors. Sums run in an order fixed by the shapes alone, so that the same table
 * gives the same bits on the same arguments.
 *
 * Layouts (a kernel stays inside these):
 *   image    [H + 2 halo][W + 2 halo][cs], channels innermost. cs is C rounded up to CPU_LANES,
 *            or C itself for the network's input when C <= 4. Halo cells are zero wherever a kernel
 *            reads them. Pad channels hold values that are not data. Reading up to
 *            CPU_SLACK floats past the end is allowed.
 *   columns  [F][batch_pad], a feature's samples innermost; batch_pad is a multiple of 16.
 *   wf       forward weights, blocks of `block` filters: [K/block][kh][kw][C][block], the last
 *            block 8 wide where K rounded up to 8 leaves 8. Pad filters are zero.
 *   wb, dw   backward weights and weight gradients: [K][kh][run], run = kw * cs rounded up to 8. */
#ifndef KUBEML_CPU_KERNELS_H
#define KUBEML_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/graph.h"
#include "kernels/optim.h"

enum { CPU_LANES = 8, CPU_SLACK = 32 };

/* A convolution over one sample. Pointers to x point at the window of output (0,0), padding
 * included. */
typedef struct conv_geom {
    int c, cs;            /* input channels, and floats from one pixel to the next */
    size_t x_row;         /* floats from one input row to the next */
    int k, ks;            /* filters, and floats from one output pixel to the next */
    int oh, ow;           /* output pixels of the convolution itself, even where pooling follows */
    /* floats from one written row to the next (of pooled rows where pooling follows) */
    size_t y_row;
    size_t y_step;        /* conv alone: floats from one written pixel to the next */
    int kh, kw, sh, sw, dh, dw;
    size_t run;           /* floats of one kernel row in wb and dw */
    bool relu;
} conv_geom;

/* Windows that keep channels apart. Along one axis, destination d gathers taps[begin[d] ..
 * begin[d+1]): source position `from`, kernel position `tap`, factor `scale`. alike[d]
 * destinations, d and the next ones `every` apart, have the same taps, each step[d] sources further
 * than the one before; alike[d] is 1, 2 or 4. */
typedef struct window_tap {
    int from, tap;
    float scale;
} window_tap;

/* The outputs [from, to) at which a kernel position meets inputs: output o meets input o * stride +
 * shift. */
typedef struct window_span {
    int from, to, shift;
} window_span;

typedef struct window_axis {
    int count, stride, every;
    int *begin, *alike, *step;
    window_tap *taps;
    window_span *spans; /* for convolutions alone */
} window_axis;

typedef struct window_geom {
    window_axis h, w;
    int cs, kh, kw;
    /* floats from one row to the next, of what is read and of what is written */
    size_t x_row, y_row;
    /* floats from this sample's result to that of the sample that comes next, whose memory is
     * prefetched; 0: no prefetch */
    ptrdiff_t next;
    bool relu, accumulate;
} window_geom;

/* The windows of a pooling over a convolution's results, as offsets into the convolution's input:
 * cells lie `row` and `step` floats apart, and tap t's window lies at[t] floats (modulo 2^32) after
 * its cell's. */
typedef struct pool_cells {
    int h, w;
    size_t row, step;
    uint32_t *at;
} pool_cells;

/* What batch norm's backward reads. The gradient g is dy where ReLU let the value through, which
 * follows from the result y if y is set; else from x * scale + shift, which the forward computed,
 * if scale is set. With both NULL everything passed. */
typedef struct bn_pass {
    const float *x, *mean, *dy, *y, *scale, *shift;
    size_t x_step; /* floats from one pixel of x, and of dx, to the next */
    /* `act`, not ReLU, came after x * scale + shift: g is dy times its slope */
    bool acts;
    graph_act act;
    float slope;
} bn_pass;

/* Floats of the gap after each of the 36 planes of a transformed array, which has rows * ld floats:
 * without the gap the planes of usual sizes would all compete for the same few lines of the
 * cache. */
enum { WINO_GAP = 48 };

/* The largest cpu_kernels.panel. */
enum { PANEL_MOST = 32 };

/* Which rows and columns of a Winograd tile exist: [r0, r1) x [c0, c1). */
typedef struct wino_span {
    int r0, r1, c0, c1;
} wino_span;

typedef struct cpu_kernels {
    const char *name;
    int block; /* the widest block of filters: 16 or 8 */
    /* Columns of a panel of packed weights: as many as gemm's tile takes at a time, so that gemm
     * reads a panel from end to end. A product that used every other line of a panel ran at half
     * its speed where the weights came from the third cache. */
    int panel;

    /* y = conv(x) + b, and ReLU when g->relu. */
    void (*conv)(const conv_geom *g, const float *x, const float *wf, const float *b, float *y);
    /* Stride 1, undilated: y = relu(maxpool 2x2(conv(x) + b)). arg (NULL: not wanted) gets which of
     * the four won, [oh/2][ow/2][ks] without gaps. Odd last rows and columns are skipped. */
    void (*conv_pool)(const conv_geom *g, const float *x, const float *wf, const float *b, float *y,
                      uint8_t *arg);
    /* dw += the weight gradient of x and dy. Dense: dy is [oh][ow][ks] with rows y_row apart. */
    void (*conv_dw)(const conv_geom *g, const float *x, const float *dy, float *dw);
    /* The same through 2x2 pooling: dp[oh/2][ow/2][ks] without gaps; only the winners count. */
    void (*conv_pool_dw)(const conv_geom *g, const float *x, const float *dp, const uint8_t *arg,
                         float *dw);
    /* The same for other windows: arg[cells][ks] is the winner's tap. */
    void (*conv_window_dw)(const conv_geom *g, const pool_cells *cells, const float *x,
                           const float *dp, const uint8_t *arg, float *dw);
    /* dx += the input gradient through 2x2 pooling, laid out as x (x_row, cs); the halo is written
     * too. cs is a multiple of 8. */
    void (*conv_pool_dx)(const conv_geom *g, const float *dp, const uint8_t *arg, const float *wb,
                         float *dx);
    /* As conv_pool_dx for the dense case, with any stride and dilation. wb rows are gathered as
     * [K][kh][kw][cs]. */
    void (*conv_dx)(const conv_geom *g, const float *dy, const float *wb, float *dx);

    /* dst[i] = y[i] > 0 ? dy[i] : 0 over `pixels` pixels of ks floats, `step` apart in all three;
     * db[ks] += their sum. y NULL: all count. dst may be dy. */
    void (*mask_bias)(int pixels, int ks, size_t step, const float *y, const float *dy, float *dst,
                      float *db);

    /* c[m][n] = sum_k a[m*am + k*ak] * b[k*ldb + n] (+ bias[m]) (+ add[m*lda + n]), then ReLU if
     * `relu`. n is a multiple of 8; add may be c itself. far: c is likely in no cache, and is
     * prefetched before it is written. */
    void (*gemm)(int m, int n, int k, const float *a, size_t am, size_t ak, const float *b,
                 size_t ldb, const float *bias, bool relu, const float *add, size_t lda, float *c,
                 size_t ldc, bool far);
    /* dst[c][r] = src[r][c] for rows x cols; leading dimensions in floats. */
    void (*transpose)(int rows, int cols, const float *src, size_t lds, float *dst, size_t ldd);

    /* SGD over n floats, as optim_update. first: step 1. b NULL: no momentum. */
    void (*sgd)(size_t n, float *w, const float *g, float *b, float lr, float wd, float momentum,
                float dampening, bool nesterov, bool first);
    /* Adam and AdamW likewise; m and v are the moments. */
    void (*adam)(const optim *o, double lr, int64_t step, size_t n, float *w, const float *g,
                 float *m, float *v);
    /* y = x * scale + shift (+ add), then ReLU if `relu`; scale and shift per channel of cs. Pixels
     * of x are x_step floats apart, of y y_step, of add cs. */
    void (*affine)(int pixels, int cs, const float *x, size_t x_step, const float *scale,
                   const float *shift, const float *add, bool relu, float *y, size_t y_step);
    /* The same with an activation of act_tile_impl.h: y = act(x * scale + shift). */
    void (*affine_act)(graph_act kind, float slope, int pixels, int cs, const float *x,
                       size_t x_step, const float *scale, const float *shift, float *y,
                       size_t y_step);
    /* sum[c] += x, square[c] += (x - center[c])^2 over the pixels. */
    void (*moments)(int pixels, int cs, const float *x, size_t x_step, const float *center,
                    float *sum, float *square);
    /* sum[c] += g, dot[c] += g * (x - mean[c]). */
    void (*bn_sums)(int pixels, int cs, const bn_pass *in, float *sum, float *dot);
    /* dx = a[c]*g + b[c]*(x - mean[c]) + d[c], and dres = g; with dx_add, dres_add they are added
     * to what is there. dx or dres may be NULL. */
    void (*bn_dx)(int pixels, int cs, const bn_pass *in, const float *a, const float *b,
                  const float *d, bool dx_add, float *dx, bool dres_add, float *dres);
    /* Both at once, except the terms of dx that need the sums: sum and dot as in bn_sums, and dx
     * (+)= scale[c]*g, because a is the forward's factor. relu: dy counts where x * scale + shift
     * is above 0. Pixels of dy are `step` floats apart; y is not read; dx may be NULL. */
    void (*bn_through)(int pixels, int cs, const bn_pass *in, size_t step, bool relu, bool dx_add,
                       float *dx, float *sum, float *dot);
    /* y += b[c]*(x - mean[c]) + d[c]; pixels of both are `step` floats apart. */
    void (*bn_line)(int pixels, int cs, size_t step, const float *x, const float *mean,
                    const float *b, const float *d, float *y);
    /* y = a + b (b NULL: a), then ReLU if `relu`; n a multiple of 8. */
    void (*add)(size_t n, const float *a, const float *b, bool relu, float *y);
    /* dx (+)= y > 0 ? dy : 0; y NULL: all. */
    void (*relu_back)(size_t n, const float *y, const float *dy, bool accumulate, float *dx);

    /* y = b + sum of w * x over each window (w [kh*kw][cs]); w NULL: the taps' scales instead of
     * weights. b may be NULL. g->accumulate: y +=. */
    void (*window)(const window_geom *g, const float *x, const float *w, const float *b, float *y);
    /* dw[kh*kw][cs] += the weight gradient; g is the forward window's. */
    void (*window_dw)(const window_geom *g, const float *x, const float *dy, size_t dy_row,
                      float *dw);
    /* y = the window's first maximum (NaN wins), and in arg [h.count][w.count][cs] its tap; arg may
     * be NULL. */
    void (*window_max)(const window_geom *g, const float *x, float *y, uint8_t *arg);
    /* The gradient of window_max. g's axes go from inputs to the outputs that read them. */
    void (*window_max_back)(const window_geom *g, const float *dy, const uint8_t *arg,
                            size_t arg_row, float *dx);

    /* y = f(x), and dx (+)= dy f'(x), over n values; n a multiple of 8. */
    void (*act)(graph_act kind, float slope, size_t n, const float *x, float *y);
    void (*act_back)(graph_act kind, float slope, size_t n, const float *x, const float *dy,
                     bool accumulate, float *dx);
    /* For y = x * gate[c]: dx (+)= dy * gate (dx may be NULL), dgate[c] += dy * x. */
    void (*gate_back)(int pixels, int cs, const float *x, const float *gate, const float *dy,
                      bool accumulate, float *dx, float *dgate);

    /* Dropout: y[4 i + j] = scale where word j of Philox4x32-10 at counter {c[0] + i, c[1], c[2],
     * c[3]} is at least drop_below, otherwise 0; for n values rounded up to 32. */
    void (*keep)(const uint32_t key[2], const uint32_t c[4], size_t n, uint32_t drop_below,
                 float scale, float *y);
    /* y (+)= a * b, n a multiple of 8. */
    void (*multiply)(size_t n, const float *a, const float *b, bool accumulate, float *y);

    /* y = src * scale + shift over n values of the network's input, at any address. */
    void (*input_floats)(size_t n, const void *src, float scale, float shift, float *y);
    void (*input_bytes)(size_t n, const void *src, float scale, float shift, float *y);
    /* The same for h rows of w bytes without gaps; rows of y lie `row` floats apart. */
    void (*input_plane)(size_t h, size_t w, const uint8_t *src, float scale, float shift, float *y,
                        size_t row);
    /* y = a[0], b[0], c[0], a[1], ... */
    void (*interleave3)(size_t n, const float *a, const float *b, const float *c, float *y);

    /* Winograd F(4x4, 3x3), F(3x3, 4x4) and F(2x2, 5x5), chosen by `kernel`, tile by tile. Each
     * takes `channels` channels of pixels that lie x_step or y_step floats apart: see
     * wino_impl.h. */
    void (*wino_in)(const wino_span *s, int channels, const float *x, size_t x_step, size_t x_row,
                    float *v, size_t plane);
    void (*wino_out)(int kernel, const wino_span *s, int channels, const float *m, size_t plane,
                     const float *bias, bool relu, bool accumulate, float *y, size_t y_step,
                     size_t y_row);
    /* F(2x2, 5x5) with ReLU and 2x2 max pooling: writes one pixel of y, and of arg as in
     * conv_pool. */
    void (*wino_out_pool)(int channels, const float *m, size_t plane, const float *bias, float *y,
                          uint8_t *arg);
    void (*wino_dy)(int kernel, const wino_span *s, int channels, const float *dy, size_t y_step,
                    size_t y_row, float *v, size_t plane);
    void (*wino_weights)(int kernel, int rows, int cols, size_t ld, const float *w, size_t rs,
                         size_t cs, bool turned, float *u, size_t plane);
    void (*wino_dw)(int kernel, int rows, int cols, size_t ld, const float *u, size_t plane,
                    float *dw, size_t dw_row);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_generic;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif

/* The table for this machine, or the table that KUBEML_CPU=avx512|avx2|generic names. NULL, with
 * the reason in *why, when that name is unknown or cannot run here. */
const cpu_kernels *cpu_kernels_pick(const char **why);

#endif
