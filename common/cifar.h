/* cifar.h: CIFAR-10's binary files: records of a label byte (0 to 9) and 32x32 pixels, red, green,
 * blue planes. Without a magic: what else begins with a byte below 10 is told apart by the file's
 * length and the label of every record. */
#ifndef KUBEML_CIFAR_H
#define KUBEML_CIFAR_H

#include "array.h"

enum {
    CIFAR_IMAGE_BYTES = 3 * 32 * 32,
    CIFAR_RECORD_BYTES = 1 + CIFAR_IMAGE_BYTES,
    CIFAR_CLASSES = 10
};

bool cifar_may_be(const uint8_t *bytes, size_t len); /* needs 1 byte */
/* Checks the labels in bytes [offset, offset + len) of a file: ERR_CORRUPT naming the record. */
int cifar_check(const uint8_t *bytes, size_t len, uint64_t offset, err *e);
/* Holds a file's length against the record's: ERR_CORRUPT. */
int cifar_check_length(uint64_t bytes, err *e);

#endif
