/* cuda_samples.h: a training set on a device: samples, labels or targets, keys.
 *
 * Programs of this process that are given a set of the same name on one device share one copy,
 * until the last of them gives it back. Room is taken for the whole set. Rows come in blocks as
 * they are wanted; each block is read once, by the program that wants it first. Thread-safe. */
#ifndef KUBEML_CUDA_SAMPLES_H
#define KUBEML_CUDA_SAMPLES_H

#include "driver.h"
#include "kernels/backend.h"

typedef struct cuda_samples {
    cuda_rows at;
    /* its own */
    const driver *d;
    int ordinal, holders;
    char *memory;
    size_t bytes, sample_bytes;
    uint32_t rows, rows_each; /* rows_each: of a block */
    int outputs;              /* targets a row; 0: it has labels */
    uint8_t *blocks;          /* which are there; read atomically, changed under the lock */
    char name[BACKEND_SET_NAME_BYTES]; /* "": not shared */
    struct cuda_samples *next;
} cuda_samples;

/* The form of a program's samples; `rest`: bytes of the cap that the program will still want. */
typedef struct cuda_samples_form {
    size_t sample_bytes, rest;
    int outputs;
} cuda_samples_form;

/* Makes room for the set, or finds it. ERR_NOMEM: cuda_memory_take_spare's. */
int cuda_samples_take(const driver *d, device *dev, int ordinal, const backend_share *s,
                      const cuda_samples_form *form, cuda_samples **out, err *e);
void cuda_samples_give(device *dev, cuda_samples *s); /* NULL is fine */

/* Brings the blocks of these rows, in this order. Waits while another thread brings one of them.
 * The reader's errors, the driver's. */
int cuda_samples_bring(cuda_samples *h, device *dev, const backend_reader *from,
                       const uint32_t *order, uint32_t rows, err *e);
/* ERR_INVALID: one of these rows was not brought. */
int cuda_samples_have(const cuda_samples *h, const uint32_t *order, uint32_t rows, err *e);

#endif
