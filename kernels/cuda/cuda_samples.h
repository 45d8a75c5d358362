/* cuda_samples.h: a training set on a device: uint8 samples, labels, keys. Programs of this process
 * that are given a set of the same name on one device have one copy of it, until the last of them
 * gives it back. Thread-safe. */
#ifndef KUBEML_CUDA_SAMPLES_H
#define KUBEML_CUDA_SAMPLES_H

#include "backend.h"
#include "cuda/driver.h"

typedef struct cuda_samples {
    uint8_t *x; /* rows of `sample_bytes` */
    int32_t *labels;
    uint64_t *keys;
    /* its own */
    const driver *d;
    int ordinal, holders;
    char *memory;
    size_t bytes, sample_bytes;
    uint32_t rows;
    char name[BACKEND_SET_NAME_BYTES]; /* "": nobody else's */
    struct cuda_samples *next;
} cuda_samples;

/* Copies them, or finds them there. Blocks while another thread copies. ERR_NOMEM: over the cap, or
 * the device is full. */
int cuda_samples_take(const driver *d, device *dev, int ordinal, const backend_share *s,
                      size_t sample_bytes, cuda_samples **out, err *e);
void cuda_samples_give(device *dev, cuda_samples *s); /* NULL is fine */

#endif
