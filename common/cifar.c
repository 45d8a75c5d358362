/* cifar.c: see cifar.h. */
#include "cifar.h"

bool cifar_may_be(const uint8_t *bytes, size_t len)
{
    return len >= 1 && bytes[0] < CIFAR_CLASSES;
}

int cifar_check(const uint8_t *bytes, size_t len, uint64_t offset, err *e)
{
    uint64_t record = (offset + CIFAR_RECORD_BYTES - 1) / CIFAR_RECORD_BYTES;
    for (uint64_t at = record * CIFAR_RECORD_BYTES - offset; at < len;
         at += CIFAR_RECORD_BYTES, record++)
        if (bytes[at] >= CIFAR_CLASSES)
            return err_set(
                e, ERR_CORRUPT,
                "neither npy, npz, IDX nor CIFAR-10 binary (as which record %llu would have "
                "label %d)",
                (unsigned long long)record, bytes[at]);
    return 0;
}

int cifar_check_length(uint64_t bytes, err *e)
{
    if (bytes == 0 || bytes % CIFAR_RECORD_BYTES != 0)
        return err_set(
            e, ERR_CORRUPT,
            "neither npy, npz, IDX nor CIFAR-10 binary (as which it would be cut: %llu bytes "
            "are no multiple of %d)",
            (unsigned long long)bytes, CIFAR_RECORD_BYTES);
    return 0;
}
