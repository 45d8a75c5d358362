/* ingest_source.h: reads an upload's samples and labels from spools of any format. For ingest.c
 * alone. */
#ifndef KUBEML_INGEST_SOURCE_H
#define KUBEML_INGEST_SOURCE_H

#include "ingest.h"
#include "npz.h"
#include "spool.h"

typedef enum ingest_field {
    INGEST_X_TRAIN,
    INGEST_Y_TRAIN,
    INGEST_X_TEST,
    INGEST_Y_TEST,
    INGEST_FIELDS
} ingest_field;

const char *ingest_field_name(ingest_field field); /* "x-train" */
int ingest_field_of(const char *name);             /* -1: none */

/* An array in a file: element i is `element_bytes` at base + i * stride. */
typedef struct ingest_source {
    int fd; /* owned by a spool */
    array_dtype dtype;
    bool swap;
    bool planes; /* (C, H, W) by the file's format; the upload's layout does not count */
    int ndim;    /* of an element */
    uint64_t shape[ARRAY_DIMS_MAX]; /* of an element */
    uint64_t base, stride, element_bytes, count;
} ingest_source;

/* Finds a field's array in the spools (NULL: that part did not come). Looks in the field's own
 * spool; then, for y, in the x of its split, if that is CIFAR binary or an npz with labels; then in
 * the npz given as x-train. 1: found; 0: not there; -1: error. *from is the part that has the
 * array, or that the error is about. An array of an npz is extracted into *extracted, which the
 * caller frees by spool_free, also after an error. */
int ingest_find_source(spool *const spools[INGEST_FIELDS], ingest_field field, const char *dir,
                       spool_quota *quota, spool **extracted, ingest_source *out,
                       ingest_field *from, err *e);

/* How x's elements become (C, H, W) samples. */
typedef struct ingest_shape {
    uint32_t channels, height, width;
    bool channels_last; /* in the file; false for one channel, where the order is the same */
} ingest_shape;

bool ingest_is_channels(uint64_t n); /* whether images have n channels: 1, 3 or 4 */
/* The shape of the samples. ERR_INVALID, ERR_LIMIT. */
int ingest_shape_of(const ingest_source *x, ingest_layout layout, ingest_shape *out, err *e);

/* Reads elements [first, first + n) into `raw`, as they are in the file. */
int ingest_read(const ingest_source *s, uint64_t first, size_t n, void *raw, err *e);
/* Announces that an element will be read soon: the system may fetch it meanwhile. */
void ingest_expect(const ingest_source *s, uint64_t index);
/* Converts n raw elements to (C, H, W) samples: uint8 stays, other types become float32. `scratch`
 * has room for one element as float32. */
void ingest_convert(const ingest_source *s, const ingest_shape *shape, const void *raw, size_t n,
                    float *scratch, void *out);

#endif
