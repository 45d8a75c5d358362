/* npz.h: numpy's archives: zip files of npy files.
 *
 * Reading needs random access, and so a descriptor (of a spool, of a blob). libzip checks the
 * archive, and the spool that an array is decompressed into checks the array. Errors: ERR_CORRUPT,
 * ERR_UNSUPPORTED, ERR_LIMIT. Blocks on the disk. */
#ifndef KUBEML_NPZ_H
#define KUBEML_NPZ_H

#include <stdbool.h>

#include "common/base/err.h"
#include "spool.h"

enum {
    NPZ_ARRAYS_MAX = 1024,
    NPZ_NAME_BYTES = 128,
    NPZ_DIRECTORY_BYTES_MAX = 1 << 20, /* the zip file's list of its members */
};

typedef struct npz npz;

int npz_open(int fd, npz **out, err *e); /* the descriptor is borrowed */
void npz_close(npz *z);                  /* NULL is fine */
size_t npz_count(const npz *z);
const char *npz_name(const npz *z, size_t i); /* without ".npy" */
int npz_find(const npz *z, const char *name); /* -1: none */
/* Decompresses an array into a new spool in `dir`, which is complete and has format SPOOL_NPY. The
 * caller frees it. */
int npz_extract(npz *z, size_t i, const char *dir, spool_quota *quota, spool **out, err *e);

#endif
