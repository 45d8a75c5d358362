/* transform.h: what is done to a sample before the network sees it.
 *
 * Flips and crops move bytes and keep their type; standardisation is a scale and a shift per
 * channel, which the engine applies while it reads its input, so that uint8 samples are never
 * widened in memory. What chance decides is a pure function of (seed, epoch, the sample's index in
 * the upload): whoever draws it, in whatever order, draws the same. */
#ifndef KUBEML_TRANSFORM_H
#define KUBEML_TRANSFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/limits.h"
#include "common/dataset/dataset.h"

enum { TRANSFORM_CROP_MAX = LIMITS_CROP_MAX };

typedef struct transform {
    bool flip;       /* left-right, with probability 1/2; training only, as the next */
    int crop;        /* pads by this many zeros on each side and cuts the size back out at random */
    bool standardise;/* (x - mean[c]) / std[c] with the dataset's own, or the ones below */
    bool min_max;    /* (x - min[c]) / (max[c] - min[c]) with the dataset's own */
    int channels;    /* of mean and std; 0: the dataset's */
    float mean[16], std[16];
} transform;

/* ERR_INVALID: a crop as large as the image, a deviation of 0, another number of channels, min_max
 * beside standardise or of a dataset that does not know its extremes. */
int transform_check(const transform *t, const dataset_info *d, err *e);
/* Does it move bytes, so that a sample needs memory of its own? */
bool transform_moves(const transform *t);
/* The engine's scale and shift, C floats each: value * scale + shift. uint8 counts as x/255. */
void transform_scale(const transform *t, const dataset_info *d, float *scale, float *shift);
/* Writes one training sample, (C, H, W) of `bytes_each` (1 or 4) to `out`, which does not
 * overlap. */
void transform_move(const transform *t, uint64_t seed, uint32_t epoch, uint64_t sample, int c,
                    int h, int w, size_t bytes_each, const void *in, void *out);

#endif
