/* cifar.h: CIFAR's binary files. A record is one label byte (CIFAR-10: 0 to 9) or two (CIFAR-100:
 * the coarse label, 0 to 19, then the fine label, 0 to 99, which is used), and 32x32 pixels in red,
 * green and blue planes. The files have no magic: the labels of every record and the file's length
 * decide which of the two formats a file has, if any. */
#ifndef KUBEML_CIFAR_H
#define KUBEML_CIFAR_H

#include "common/formats/array.h"

enum {
    CIFAR_10 = 1, /* bits: the formats that a file may still have */
    CIFAR_100 = 2,
    CIFAR_ANY = CIFAR_10 | CIFAR_100,
    CIFAR_IMAGE_BYTES = 3 * 32 * 32,
    CIFAR_RECORD_BYTES = 1 + CIFAR_IMAGE_BYTES, /* of CIFAR-10 */
    CIFAR_100_RECORD_BYTES = 2 + CIFAR_IMAGE_BYTES,
};

bool cifar_may_be(const uint8_t *bytes, size_t len); /* needs 2 bytes */
/* Removes from `kinds` the formats that do not agree with the labels in bytes [offset, offset +
 * len) of a file. ERR_CORRUPT naming the record when no format is left. */
int cifar_check(unsigned *kinds, const uint8_t *bytes, size_t len, uint64_t offset, err *e);
/* The same with the file's length. A file that agrees with both formats is CIFAR-10. */
int cifar_check_length(unsigned *kinds, uint64_t bytes, err *e);

#endif
