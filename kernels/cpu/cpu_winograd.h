/* cpu_winograd.h: what the two ways of running a Winograd layer share. cpu_winograd.c keeps the transformed
 * weights and takes group after group of tiles; cpu_winograd_fleeting.c transforms a few filters' weights,
 * uses them for all tiles of the batch at once, and forgets them. */
#ifndef KUBEML_CPU_WINOGRAD_H
#define KUBEML_CPU_WINOGRAD_H

#include "cpu_program.h"

enum { WINO_PLANES = 36 };

/* 4x4 tiles over images of h x w pixels. */
typedef struct wino_tiling {
    int h, w, down, across;
} wino_tiling;

wino_tiling wino_tiles_over(int h, int w);

/* From one plane of a transformed array of `rows` x `ld` to the next. */
size_t wino_plane(int rows, int ld);

/* An array of `count` tiles, of which some functions below write or read a part. */
typedef struct wino_array {
    float *data;
    int count, ld;
} wino_array;

/* Transforms the 6x6 surroundings of tiles [from, from + n) into v's tiles [at, at + n): plane `a` of x,
 * read with this padding. */
void wino_gather(const program *p, const tensor *x, const plane *a, const wino_tiling *t, int pad_h, int pad_w,
                 int from, int n, const wino_array *v, int at);
/* dy of tiles [from, from + n) as the weight gradient needs it. */
void wino_gather_dy(const program *p, const tensor *y, const wino_tiling *t, int from, int n,
                    const wino_array *v, int at);
/* What a result is put through. */
typedef struct wino_end {
    const float *bias;
    bool relu, accumulate;
} wino_end;
/* m, whose rows are channels [channel, channel + m->ld), -> plane `a` of y, tiles [from, from + m->count). */
void wino_scatter(const program *p, const tensor *y, const plane *a, const wino_tiling *t, const wino_end *end,
                  int channel, int from, const wino_array *m);
/* dy of one sample through ReLU, and the bias' gradient. */
void wino_mask(program *p, layer *l, int sample, float *db);

/* Is it for this layer? Then layer_winograd_fleeting makes it. */
bool wino_is_fleeting(const program *p, const layer *l);
int layer_winograd_fleeting(program *p, layer *l);

#endif
