/* arrays.h: makes array files for tests, in memory: npy, npz, IDX, CIFAR-10, CIFAR-100 and gz of
 * them.
 *
 * Any failure fails the test. The caller frees a `bytes` value by bytes_free. */
#ifndef KUBEML_TEST_ARRAYS_H
#define KUBEML_TEST_ARRAYS_H

#include "common/formats/array.h"

typedef struct bytes {
    uint8_t *at;
    size_t len;
} bytes;

void bytes_free(bytes *b);
#define cleanup_bytes __attribute__((cleanup(bytes_free)))

bytes bytes_copy(const void *at, size_t len);
bytes bytes_join(bytes a, bytes b); /* frees neither */

/* `data` is in this machine's order; `shape` ends with UINT64_MAX or after 8. */
#define SHAPE(...) ((const uint64_t[]){__VA_ARGS__, UINT64_MAX})
bytes make_npy(array_dtype dtype, const uint64_t *shape, const void *data);
/* An npy file with this header text and these bytes behind it, right or wrong. */
bytes make_npy_raw(const char *dict, const void *data, size_t len);
bytes make_idx(array_dtype dtype, const uint64_t *shape, const void *data);
bytes make_cifar(size_t n, const uint8_t *labels, const uint8_t *images);
bytes make_cifar_100(size_t n, const uint8_t *labels, const uint8_t *images); /* fine labels */
bytes make_gz(bytes of);
/* `names` and `arrays` (npy files) of `count` members. */
bytes make_npz(const char *const *names, const bytes *arrays, size_t count, bool deflate);

void write_bytes(const char *path, bytes b);

#endif
