/* array.h: the description of an array that npy, IDX and CIFAR files have in common, and
 * conversions.
 *
 * Nothing here blocks or allocates. */
#ifndef KUBEML_ARRAY_H
#define KUBEML_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    ARRAY_DIMS_MAX = 8,
    ARRAY_TEXT_BYTES = 96, /* for array_text */
};

typedef enum array_dtype {
    ARRAY_U8,
    ARRAY_I8,
    ARRAY_BOOL,
    ARRAY_U16,
    ARRAY_I16,
    ARRAY_U32,
    ARRAY_I32,
    ARRAY_U64,
    ARRAY_I64,
    ARRAY_F16,
    ARRAY_F32,
    ARRAY_F64,
    ARRAY_DTYPES
} array_dtype;

typedef struct array_head {
    array_dtype dtype;
    bool swap; /* not this machine's byte order */
    int ndim;
    uint64_t shape[ARRAY_DIMS_MAX];
    uint64_t data_offset, data_bytes;
} array_head;

size_t array_dtype_bytes(array_dtype dtype);
const char *array_dtype_name(array_dtype dtype); /* "uint8", "float32", ... */
/* Sets data_bytes from shape and dtype: ERR_LIMIT when it is above 2^48. */
int array_measure(array_head *head, err *e);
/* "uint8 (60000, 28, 28)". */
const char *array_text(const array_head *head, char out[ARRAY_TEXT_BYTES]);

/* Converts `n` numbers to float32, rounded to nearest. `in` needs no alignment. */
void array_to_f32(array_dtype dtype, bool swap, const void *in, float *out, size_t n);
/* Converts `n` numbers to class labels. Returns how many were converted: fewer than n if the next
 * number is no integer from 0 to `max` (then *bad is that number, as a double). */
size_t array_to_labels(array_dtype dtype, bool swap, const void *in, int32_t *out, size_t n,
                       int32_t max, double *bad);

#endif
