/* npy.h: numpy's array files: a magic, a header that is a Python dict, and the numbers.
 *
 * npy_parse refuses arrays of objects (which are pickles), of records and of strings, and Fortran
 * order with more than one dimension. Each message has the line of Python that converts the
 * file. */
#ifndef KUBEML_NPY_H
#define KUBEML_NPY_H

#include "array.h"
#include "common/base/buf.h"

enum { NPY_HEADER_BYTES_MAX = 65536 };

bool npy_is(const uint8_t *bytes, size_t len); /* needs 6 bytes */
/* Reads the header at `bytes`, not the numbers. 1: done; 0: needs more than `len` bytes; -1:
 * ERR_CORRUPT, ERR_UNSUPPORTED, ERR_LIMIT. */
int npy_parse(const uint8_t *bytes, size_t len, array_head *out, err *e);
/* Appends a header (version 1) for numbers in C order, little-endian. */
int npy_header(array_dtype dtype, int ndim, const uint64_t *shape, buf *out, err *e);

#endif
