/* safetensors.h: models as files: a JSON header with name, dtype, shape and offsets of each tensor,
 * then the tensors' bytes, little-endian, without gaps (github.com/huggingface/safetensors).
 *
 * The writer streams: tensors are declared, then their bytes are given in that order. The reader
 * checks everything before it gives out a tensor: header size, JSON depth and duplicate names,
 * dtype, shape times dtype against the bytes, offsets in range, no overlap, no gap. Its errors
 * (ERR_CORRUPT, ERR_LIMIT) name the tensor. */
#ifndef KUBEML_SAFETENSORS_H
#define KUBEML_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    SAFETENSORS_HEADER_BYTES_MAX = 1 << 20,
    SAFETENSORS_TENSORS_MAX = 8192,
    SAFETENSORS_DIMS_MAX = 8,
    SAFETENSORS_NAME_BYTES_MAX = 256,
};

typedef enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U64,
    SAFETENSORS_U32,
    SAFETENSORS_U16,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_DTYPES
} safetensors_dtype;

size_t safetensors_dtype_bytes(safetensors_dtype dtype);
const char *safetensors_dtype_name(safetensors_dtype dtype); /* "F32", ... */

typedef struct safetensor {
    const char *name;
    safetensors_dtype dtype;
    int ndim; /* 0: a scalar */
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t offset, bytes; /* in the file */
} safetensor;

enum { SAFETENSORS_SHAPE_BYTES = SAFETENSORS_DIMS_MAX * 21 + 4 };
/* Writes "(64, 3, 7, 7)" for messages; "()" for a scalar. Returns `out`. */
const char *safetensors_shape_text(int ndim, const uint64_t *shape,
                                   char out[SAFETENSORS_SHAPE_BYTES]);

/* ---- reading: blocks on the disk ----------------------------------------------------------- */

typedef struct safetensors safetensors;

/* Reads and checks the header. The descriptor (of a file, or of a blob: blob_fd) is borrowed until
 * safetensors_close, and read without its file offset. */
int safetensors_open(int fd, safetensors **out, err *e);
/* The same for bytes in memory, borrowed until safetensors_close. */
int safetensors_open_memory(const void *bytes, size_t len, safetensors **out, err *e);
void safetensors_close(safetensors *s); /* NULL is fine */
size_t safetensors_count(const safetensors *s);
const safetensor *safetensors_at(const safetensors *s, size_t i);           /* in order of offset */
const safetensor *safetensors_find(const safetensors *s, const char *name); /* NULL: none */
/* Finds a tensor of that dtype and shape; for F32 any float dtype, which safetensors_read_f32
 * converts. ERR_INVALID with the dtype or shape that the file has. */
int safetensors_require(const safetensors *s, const char *name, safetensors_dtype dtype, int ndim,
                        const uint64_t *shape, const safetensor **out, err *e);
const char *safetensors_metadata(const safetensors *s, const char *key);    /* NULL: none */
/* Bytes [offset, offset + len) of the tensor. ERR_INVALID beyond its end. */
int safetensors_read(safetensors *s, const safetensor *t, uint64_t offset, void *out, size_t len,
                     err *e);
/* Reads a whole tensor of F32, F64, F16 or BF16, rounded to nearest. */
int safetensors_read_f32(safetensors *s, const safetensor *t, float *out, err *e);

/* ---- writing ------------------------------------------------------------------------------- */

typedef int (*safetensors_sink)(void *arg, const void *bytes, size_t len, err *e);
typedef struct safetensors_writer safetensors_writer;

int safetensors_writer_new(safetensors_writer **out, err *e);
void safetensors_writer_free(safetensors_writer *w); /* NULL is fine */
int safetensors_writer_metadata(safetensors_writer *w, const char *key, const char *value, err *e);
int safetensors_writer_add(safetensors_writer *w, const char *name, safetensors_dtype dtype,
                           int ndim, const uint64_t *shape,
                           err *e); /* ERR_EXISTS for a name used before */
/* Writes the header into the sink, padded with spaces so that the data begin at a multiple of 64.
 * The same declarations give the same bytes. */
int safetensors_writer_begin(safetensors_writer *w, safetensors_sink sink, void *arg, err *e);
/* Gives the next bytes, in the order of the declarations, in pieces of any size. */
int safetensors_writer_data(safetensors_writer *w, const void *bytes, size_t len, err *e);
int safetensors_writer_end(safetensors_writer *w, err *e); /* ERR_INVALID when bytes are missing */

/* A sink that writes to the blob_writer in its first argument. */
int safetensors_blob_sink(void *blob_writer, const void *bytes, size_t len, err *e);

#endif
