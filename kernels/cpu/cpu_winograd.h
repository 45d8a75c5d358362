/* cpu_winograd.h: what the two ways to run a Winograd layer share. cpu_winograd.c keeps the
 * transformed weights and takes group after group of tiles. cpu_winograd_recomputed.c transforms a
 * few filters' weights, uses these for all tiles of the batch at once, and drops them. */
#ifndef KUBEML_CPU_WINOGRAD_H
#define KUBEML_CPU_WINOGRAD_H

#include "cpu_program.h"

enum { WINO_PLANES = 36 };

/* Taps of a kernel, which lie together for each filter and channel. */
static inline size_t wino_taps(const layer *l)
{
    return (size_t)(l->node->conv.kernel_h * l->node->conv.kernel_w);
}

/* Tiles of edge x edge pixels over images of h x w: a kernel makes one tile from 6x6 inputs. */
typedef struct wino_tiling {
    int kernel, edge, h, w, down, across;
} wino_tiling;

wino_tiling wino_tiles_over(const layer *l, int h, int w);

/* Floats from one plane of a transformed array of `rows` x `ld` floats to the next. */
size_t wino_plane(int rows, int ld);
/* The same for weights, whose `rows` rows a product sums over, and the elements of a column. In a
 * bf16 program (p->k16) transformed weights and tiles are words, which are as large as floats and
 * half as many, and lie in the same memory. */
size_t wino_weights_plane(const program *p, int rows, int ld);
int wino_weights_rows(const program *p, int rows);

/* Floats from one tile to the next in an array of many channels: an odd number of cache lines, so
 * that the same channels of several tiles do not compete for the same few lines. */
int wino_tile_ld(int channels);

/* An array of `count` tiles. Some functions below write or read a part of it. */
typedef struct wino_array {
    float *data;
    int count, ld;
} wino_array;

/* Transforms the 6x6 surroundings of tiles [from, from + n) into v's tiles [at, at + n): plane `a`
 * of x, read with this padding. */
void wino_gather(const program *p, const tensor *x, const plane *a, const wino_tiling *t, int pad_h,
                 int pad_w, int from, int n, const wino_array *v, int at);
/* The same for weight gradients, which sum over tiles: `at` is even, and n is odd only at the end
 * of the array. */
void wino_gather_x(const program *p, const tensor *x, const wino_tiling *t, int pad_h, int pad_w,
                   int from, int n, const wino_array *v, int at);
/* The same for dy of tiles [from, from + n). */
void wino_gather_dy(const program *p, const tensor *y, const wino_tiling *t, int from, int n,
                    const wino_array *v, int at);
/* What is applied to a result. */
typedef struct wino_end {
    const float *bias;
    bool relu, accumulate;
} wino_end;
/* Transforms m, whose rows are channels [channel, channel + m->ld), back to plane `a` of y, tiles
 * [from, from + m->count). */
void wino_scatter(const program *p, const tensor *y, const plane *a, const wino_tiling *t,
                  const wino_end *end, int channel, int from, const wino_array *m);
/* Writes part `part` of `parts` of the transformed weights to u: cpu_kernels.wino_weights. */
void wino_pack(const program *p, int kernel, int rows, int cols, int ld, const float *w, size_t rs,
               size_t cs, bool turned, int part, int parts, float *u);
/* Plane q of the products over channels [row, row + rows), row even: m[count][width] (+)= v * u,
 * where u is plane q of the weights, in panels. */
void wino_products(const program *p, size_t q, const wino_array *v, int row, int rows,
                   const float *u, int width, bool add, float *m);
/* wino_sum: a part of plane q of a weight gradient, (+)= the sum over tiles of d's filters times
 * x's channels. */
typedef struct wino_part {
    int filter, filters, channel, channels;
} wino_part;
void wino_sum(const program *p, size_t q, const wino_array *d, const wino_array *x,
              const wino_part *part, bool add, float *du, size_t ld);

/* Does cpu_winograd_recomputed.c run this layer? Then layer_winograd_recomputed makes it. */
bool wino_is_recomputed(const program *p, const layer *l);
int layer_winograd_recomputed(program *p, layer *l);

/* Is a convolution that conv_is_winograd accepts pooled where its tiles are transformed back? Each
 * tile must be one cell of the pooling. Such a layer's backward goes by the winners: cpu_conv.c,
 * which has the rest of the layer. */
bool wino_pools(const graph_node *n);
int wino_pooled_make(program *p, layer *l); /* -1: no memory */
layer_part wino_pooled_pack;
void wino_pooled_forward(program *p, layer *l, int from, int to, int thread);

#endif
