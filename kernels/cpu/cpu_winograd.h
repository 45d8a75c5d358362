/* cpu_winograd.h: what the two ways of running a Winograd layer share. cpu_winograd.c keeps the
 * transformed weights and takes group after group of tiles; cpu_winograd_recomputed.c transforms a
 * few filters' weights, uses them for all tiles of the batch at once, and forgets them. */
#ifndef KUBEML_CPU_WINOGRAD_H
#define KUBEML_CPU_WINOGRAD_H

#include "cpu_program.h"

enum { WINO_PLANES = 36 };

/* Taps of a kernel, one behind the other for each filter and channel. */
static inline size_t wino_taps(const layer *l)
{
    return (size_t)(l->node->conv.kernel_h * l->node->conv.kernel_w);
}

/* Tiles of edge x edge pixels over images of h x w: what a kernel makes of 6x6. */
typedef struct wino_tiling {
    int kernel, edge, h, w, down, across;
} wino_tiling;

wino_tiling wino_tiles_over(const layer *l, int h, int w);

/* From one plane of a transformed array of `rows` x `ld` floats to the next. */
size_t wino_plane(int rows, int ld);
/* The same of weights, `rows` of them summed over, and of how many elements each column has: in a
 * program of bf16 (p->k16) transformed weights and tiles are words, which are as large as floats
 * and half as many, and lie in the same memory. */
size_t wino_weights_plane(const program *p, int rows, int ld);
int wino_weights_rows(const program *p, int rows);

/* Floats from one tile to the next in an array of many channels: an odd number of lines of the
 * cache, so that the same channels of several tiles do not all want the same few. */
int wino_tile_ld(int channels);

/* An array of `count` tiles, of which some functions below write or read a part. */
typedef struct wino_array {
    float *data;
    int count, ld;
} wino_array;

/* Transforms the 6x6 surroundings of tiles [from, from + n) into v's tiles [at, at + n): plane `a`
 * of x, read with this padding. */
void wino_gather(const program *p, const tensor *x, const plane *a, const wino_tiling *t, int pad_h,
                 int pad_w, int from, int n, const wino_array *v, int at);
/* The same for weight gradients, which sum over tiles: `at` is even, and an odd n ends the
 * array. */
void wino_gather_x(const program *p, const tensor *x, const wino_tiling *t, int pad_h, int pad_w,
                   int from, int n, const wino_array *v, int at);
/* dy of tiles [from, from + n), likewise. */
void wino_gather_dy(const program *p, const tensor *y, const wino_tiling *t, int from, int n,
                    const wino_array *v, int at);
/* What a result is put through. */
typedef struct wino_end {
    const float *bias;
    bool relu, accumulate;
} wino_end;
/* m, whose rows are channels [channel, channel + m->ld), -> plane `a` of y, tiles [from, from +
 * m->count). */
void wino_scatter(const program *p, const tensor *y, const plane *a, const wino_tiling *t,
                  const wino_end *end, int channel, int from, const wino_array *m);
/* u = part `part` of `parts` of the weights in the transformed form: cpu_kernels.wino_weights. */
void wino_pack(const program *p, int kernel, int rows, int cols, int ld, const float *w, size_t rs,
               size_t cs, bool turned, int part, int parts, float *u);
/* Plane q of the products over channels [row, row + rows), row even: m[count][width] (+)= v * u,
 * u plane q of the weights, in panels. */
void wino_products(const program *p, size_t q, const wino_array *v, int row, int rows,
                   const float *u, int width, bool add, float *m);
/* A part of plane q of a weight gradient, (+)= the sum over tiles of d's filters times x's
 * channels. */
typedef struct wino_part {
    int filter, filters, channel, channels;
} wino_part;
void wino_sum(const program *p, size_t q, const wino_array *d, const wino_array *x,
              const wino_part *part, bool add, float *du, size_t ld);

/* Is it for this layer? Then layer_winograd_recomputed makes it. */
bool wino_is_recomputed(const program *p, const layer *l);
int layer_winograd_recomputed(program *p, layer *l);

/* Is a convolution of the kind conv_is_winograd pooled where its tiles are transformed back? Each
 * tile must be one cell of the pooling. Backward such a layer goes by the winners: cpu_conv.c,
 * which has the rest of it. */
bool wino_pools(const graph_node *n);
int wino_pooled_make(program *p, layer *l); /* -1: no memory */
layer_part wino_pooled_pack;
void wino_pooled_forward(program *p, layer *l, int from, int to, int thread);

#endif
