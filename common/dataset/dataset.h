/* dataset.h: a dataset for functions to train on: two splits of samples, in chunks of a fixed
 * number of samples.
 *
 * A dataset is immutable. The upload puts the training samples in a seeded random order (ingest.h),
 * so that a chunk is a random sample of all; each sample has its original index beside it. Test
 * samples keep their order. Chunk i of a split holds samples [i * chunk_samples, (i + 1) *
 * chunk_samples), the last chunk the rest. A sample is uint8 or float32, (C, H, W); a uint8 x
 * stands for x/255. */
#ifndef KUBEML_DATASET_H
#define KUBEML_DATASET_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/digest.h"
#include "common/base/err.h"
#include "common/base/name.h"
#include "common/store/store.h"

enum {
    DATASET_CHUNK_SAMPLES = 64, /* by default; fewer if they exceed DATASET_CHUNK_BYTES */
    DATASET_CHUNK_SAMPLES_MAX = 65536,
    DATASET_CHUNK_BYTES = 8 << 20, /* the most bytes of a chunk's samples */
    DATASET_SAMPLES_MAX = 1 << 25, /* a split */
    DATASET_CHANNELS_MAX = 16384,
    DATASET_SIDE_MAX = 1 << 16, /* height or width */
    DATASET_CLASSES_MAX = 1 << 16,
    DATASET_TARGETS_MAX = 1024, /* targets of a sample, in regression */
};

typedef enum dataset_split { DATASET_TRAIN, DATASET_TEST, DATASET_SPLITS } dataset_split;
typedef enum dataset_dtype { DATASET_U8, DATASET_F32 } dataset_dtype;

typedef struct dataset_info {
    char name[NAME_BYTES];
    /* SHA-256 over the samples, labels, seed and chunk_samples: the same samples in any file format
     * give the same digest, and the same digest gives the same chunks. */
    char digest[DIGEST_HEX_BYTES];
    char upload[STORE_ID_BYTES]; /* its chunk set */
    uint64_t samples[DATASET_SPLITS];
    uint32_t chunks[DATASET_SPLITS];
    uint32_t chunk_samples;
    uint64_t seed; /* of the order of the training samples */
    dataset_dtype dtype;
    uint32_t channels, height, width;
    uint32_t classes; /* largest label + 1 (of both splits); 0: regression */
    uint32_t targets; /* float32 targets a sample; 0: classification */
    uint64_t bytes;   /* of the samples alone */
    int64_t created_ms;
    /* Per channel, of the training samples as float32 (uint8: of x/255); owned by the info.
     * Datasets of older versions have no min and max: NULL. */
    float *mean, *std, *min, *max;
} dataset_info;

void dataset_info_free(dataset_info *info);
size_t dataset_sample_values(const dataset_info *info); /* C * H * W */
size_t dataset_sample_bytes(const dataset_info *info);
uint32_t dataset_chunk_count(uint64_t samples, uint32_t chunk_samples);
json_t *dataset_info_json(const dataset_info *info); /* new reference; NULL when memory is gone */
int dataset_info_parse(const json_t *json, dataset_info *out, err *e); /* ERR_CORRUPT */

/* ---- in a store ---------------------------------------------------------------------------- */

/* ERR_NOT_FOUND: no such dataset. `version` (may be NULL) is the record's. */
int dataset_find(store *s, const char *name, dataset_info *out, uint64_t *version, err *e);
int dataset_locator(store *s, const dataset_info *info, char out[STORE_LOCATOR_BYTES], err *e);
/* Deletes a dataset, even if its description cannot be read. Open datasets stay readable.
 * ERR_NOT_FOUND. */
int dataset_delete(store *s, const char *name, err *e);

/* ---- reading ------------------------------------------------------------------------------- */

typedef struct dataset dataset;

typedef struct dataset_chunk {
    uint32_t samples;
    const uint32_t *index; /* (samples): the sample's index in the upload */
    const int32_t *labels; /* (samples); NULL for regression */
    const float *targets;  /* (samples, info->targets); NULL for classification */
    const void *data;      /* (samples, C, H, W), at least 16-byte aligned */
} dataset_chunk;

/* Opens a dataset for reading. `locator`: from dataset_locator, or "/proc/self/fd/N" for a
 * descriptor that was passed on. ERR_CORRUPT, ERR_UNSUPPORTED (a newer format), ERR_UNAVAILABLE. */
int dataset_open(const char *locator, dataset **out, err *e);
/* Opens a dataset on a reader, and owns the reader from then on, also on error. */
int dataset_open_on(chunk_reader *r, dataset **out, err *e);
void dataset_close(dataset *d); /* NULL is fine */
const dataset_info *dataset_get_info(const dataset *d);

/* Gives a view without a copy, valid until dataset_release or dataset_close. The first view of a
 * chunk verifies its checksum: ERR_CORRUPT names split and chunk. Several threads may call. */
int dataset_view(dataset *d, dataset_split split, uint32_t chunk, dataset_chunk *out, err *e);
void dataset_release(dataset *d, dataset_split split, uint32_t chunk);
/* Announces chunks that will be viewed, in about this order: as chunk_prefetch. Does not block. */
void dataset_prefetch(dataset *d, dataset_split split, const uint32_t *chunks, size_t count);
/* As chunk_prefetches. */
bool dataset_prefetches(const dataset *d);
/* As chunk_reader_scratch_bytes. */
uint64_t dataset_scratch_bytes(const dataset *d);
/* As chunk_reader_reach. */
void dataset_reach(const dataset *d, store_reach *out);
/* As chunk_reader_waits. */
bool dataset_waits(const dataset *d, char *why, size_t size);

const char *dataset_split_name(dataset_split split); /* "train", "test" */

/* ---- the bytes of a chunk, for the writer (ingest.c) and tests ----------------------------- */

/* Where the parts of a chunk's value begin, and its size. */
typedef struct dataset_layout {
    size_t index, labels, data, bytes;
} dataset_layout;

void dataset_layout_of(const dataset_info *info, uint32_t samples, dataset_layout *out);
/* Adds header, padding and checksum to a value that has its parts. */
void dataset_chunk_finish(const dataset_info *info, uint32_t samples, uint8_t *value);
/* Checks a value, and its checksum if `verify`; `out` points into it. ERR_CORRUPT,
 * ERR_UNSUPPORTED. */
int dataset_chunk_parse(const dataset_info *info, uint32_t samples, const void *value, size_t len,
                        bool verify, dataset_chunk *out, err *e);

#endif
