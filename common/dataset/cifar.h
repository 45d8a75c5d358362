/* cifar.h: CIFAR's binary files: records of a label byte (CIFAR-10: 0 to 9) or two (CIFAR-100: the
 * coarse one, 0 to 19, and the fine one, 0 to 99, which counts), and 32x32 pixels, red, green, blue
 * planes. Without a magic: which of the two it is, and what is neither, is told by the labels of
 * every record and the file's length. */
#ifndef KUBEML_CIFAR_H
#define KUBEML_CIFAR_H

#include "common/formats/array.h"

enum {
    CIFAR_10 = 1, /* bits: which of the two a file may be yet */
    CIFAR_100 = 2,
    CIFAR_ANY = CIFAR_10 | CIFAR_100,
    CIFAR_IMAGE_BYTES = 3 * 32 * 32,
    CIFAR_RECORD_BYTES = 1 + CIFAR_IMAGE_BYTES, /* of CIFAR-10 */
    CIFAR_100_RECORD_BYTES = 2 + CIFAR_IMAGE_BYTES,
};

bool cifar_may_be(const uint8_t *bytes, size_t len); /* needs 2 bytes */
/* Takes from `kinds` what the labels in bytes [offset, offset + len) of a file speak against.
 * ERR_CORRUPT naming the record when none is left. */
int cifar_check(unsigned *kinds, const uint8_t *bytes, size_t len, uint64_t offset, err *e);
/* The same with a file's length. Where both are left it is CIFAR-10. */
int cifar_check_length(unsigned *kinds, uint64_t bytes, err *e);

#endif
