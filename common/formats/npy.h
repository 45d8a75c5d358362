/* npy.h: numpy's array files: a magic, a header that is a Python dict, and the numbers.
 *
 * Arrays of objects (which are pickles), of records and of strings are refused, and Fortran order
 * of more than one dimension; each message has the line of Python that helps. */
#ifndef KUBEML_NPY_H
#define KUBEML_NPY_H

#include "array.h"
#include "common/base/buf.h"

enum { NPY_HEADER_BYTES_MAX = 65536 };

bool npy_is(const uint8_t *bytes, size_t len); /* needs 6 bytes */
/* Reads the header at `bytes`. 1: done; 0: more bytes are needed than these `len`; -1: ERR_CORRUPT,
 * ERR_UNSUPPORTED, ERR_LIMIT. Does not look at the numbers. */
int npy_parse(const uint8_t *bytes, size_t len, array_head *out, err *e);
/* Appends a header (version 1) for what follows in C order, little-endian. */
int npy_header(array_dtype dtype, int ndim, const uint64_t *shape, buf *out, err *e);

#endif
