/* samples.h: numbers from a request as a batch of samples.
 *
 * Nested arrays, one sample or several: for samples of (C, H, W) any nesting whose extents are
 * that, extents of 1 left out or not, with or without a first extent that counts the samples. */
#ifndef KUBEML_SAMPLES_H
#define KUBEML_SAMPLES_H

#include <jansson.h>
#include <stddef.h>

#include "common/base/err.h"
#include "kernels/graph.h"

enum { SAMPLES_RANK_MAX = 8 };

typedef struct samples {
    size_t n;
    float *values; /* (n, C, H, W); the caller's to free */
} samples;

/* ERR_INVALID: ragged, not numbers, or none that a float holds (the place is named), or another
 * shape (both are named); ERR_LIMIT above `n_max`; ERR_NOMEM. */
int samples_read(const json_t *data, shape one, size_t n_max, samples *out, err *e);

#endif
