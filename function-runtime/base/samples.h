/* samples.h: reads a batch of samples from a request.
 *
 * The request has nested arrays, of one sample or several. For samples of (C, H, W) the nesting has
 * these extents, with or without extents of 1, and may have a first extent that counts the
 * samples. */
#ifndef KUBEML_SAMPLES_H
#define KUBEML_SAMPLES_H

#include <jansson.h>
#include <stddef.h>

#include "common/base/err.h"
#include "kernels/graph.h"

enum { SAMPLES_RANK_MAX = 8 };

typedef struct samples {
    size_t n;
    float *values; /* (n, C, H, W); the caller frees it */
} samples;

/* ERR_INVALID: ragged arrays, a value that is no number or beyond a float's range (the message
 * names its place), or another shape (it names both); ERR_LIMIT above `n_max`; ERR_NOMEM. */
int samples_read(const json_t *data, shape one, size_t n_max, samples *out, err *e);

#endif
