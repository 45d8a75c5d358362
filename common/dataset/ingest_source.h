/* ingest_source.h: where an upload's samples and labels are read from, whatever file they came in.
 * For ingest.c alone. */
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
    int fd; /* a spool's */
    array_dtype dtype;
    bool swap;
    bool planes; /* (C, H, W) by its format, whatever the upload's layout says */
    int ndim;    /* of an element; its shape: */
    uint64_t shape[ARRAY_DIMS_MAX];
    uint64_t base, stride, element_bytes, count;
} ingest_source;

/* Finds a field's array in the spools that came (NULL: none): in its own, or y in the x's where
 * that is CIFAR binary or an npz with labels, or in the npz given as x-train. 1 found, 0 not
 * there. `from` is the part that it came in, or that the error is about. What is taken out of an
 * npz stands in `extracted`, the caller's to spool_free, also after an error. */
int ingest_find_source(spool *const spools[INGEST_FIELDS], ingest_field field, const char *dir,
                       spool_quota *quota, spool **extracted, ingest_source *out,
                       ingest_field *from, err *e);

/* How x's elements become (C, H, W) samples. */
typedef struct ingest_shape {
    uint32_t channels, height, width;
    bool channels_last; /* in the file; one channel lies the same either way */
} ingest_shape;

bool ingest_is_channels(uint64_t n); /* whether an image has as many: 1, 3 or 4 */
int ingest_shape_of(const ingest_source *x, ingest_layout layout, ingest_shape *out, err *e);

/* Reads elements [first, first + n) as they are in the file into `raw`. */
int ingest_read(const ingest_source *s, uint64_t first, size_t n, void *raw, err *e);
/* That element will be read soon: the system may fetch it meanwhile. */
void ingest_expect(const ingest_source *s, uint64_t index);
/* n raw elements to (C, H, W) samples: uint8 stays, all else becomes float32. `scratch` holds an
 * element as float32. */
void ingest_convert(const ingest_source *s, const ingest_shape *shape, const void *raw, size_t n,
                    float *scratch, void *out);

#endif
