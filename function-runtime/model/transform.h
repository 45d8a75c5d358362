/* transform.h: the transform of a sample before the network reads it.
 *
 * Flips and crops move bytes and keep their type. Standardisation is a scale and a shift for each
 * channel, which the engine applies while it reads its input, so that uint8 samples are never
 * widened in memory. Random choices are a pure function of (seed, epoch, the sample's index in the
 * upload): they are the same in every process and in every order. */
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
    bool flip;       /* left-right, with probability 1/2; training only, as crop */
    int crop;        /* pads by this many zeros on each side, and cuts out the size at random */
    bool standardise;/* (x - mean[c]) / std[c], with the dataset's values or those below */
    bool min_max;    /* (x - min[c]) / (max[c] - min[c]), with the dataset's values */
    int channels;    /* of mean and std; 0: use the dataset's values */
    float mean[16], std[16];
} transform;

/* Checks the transform with a dataset. ERR_INVALID: a crop as large as the image, a deviation of 0,
 * another number of channels, min_max together with standardise, or min_max with a dataset that has
 * no extremes. */
int transform_check(const transform *t, const dataset_info *d, err *e);
/* Whether it moves bytes, so that a sample needs memory of its own. */
bool transform_moves(const transform *t);
/* Sets the engine's scale and shift, C floats each: value * scale + shift. uint8 counts as
 * x/255. */
void transform_scale(const transform *t, const dataset_info *d, float *scale, float *shift);
/* Writes one training sample, (C, H, W) of `bytes_each` (1 or 4) to `out`, which does not
 * overlap. */
void transform_move(const transform *t, uint64_t seed, uint32_t epoch, uint64_t sample, int c,
                    int h, int w, size_t bytes_each, const void *in, void *out);

#endif
