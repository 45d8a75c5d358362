/* idx.h: MNIST's file format: two zero bytes, a type, the number of dimensions, each dimension as a
 * big-endian u32, and the numbers, big-endian. */
#ifndef KUBEML_IDX_H
#define KUBEML_IDX_H

#include "array.h"

bool idx_is(const uint8_t *bytes, size_t len); /* needs 4 bytes */
/* As npy_parse. */
int idx_parse(const uint8_t *bytes, size_t len, array_head *out, err *e);

#endif
