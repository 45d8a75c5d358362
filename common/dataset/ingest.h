/* ingest.h: turns uploaded files into a published dataset.
 *
 * The HTTP handler feeds the parts as they come; only a buffer is in memory. Bytes are decompressed
 * into a nameless spool file. Their content shows the format: npy, npz, IDX, each also .gz, CIFAR
 * binary; a pickle is refused with the lines of Python that convert it. The size is compared with
 * the size in the file's header. ingest_end checks the samples, writes the chunks and publishes the
 * dataset in one last step. Before that step the dataset cannot be seen, and a process that dies
 * leaves only a chunk set for store_sweep.
 *
 * Errors name the field and the place in it: ERR_INVALID, ERR_CORRUPT for cut or damaged files,
 * ERR_LIMIT, ERR_UNSUPPORTED for formats. An ingest belongs to one thread. After any error only
 * ingest_abort, or ingest_end, which frees too, is of use. */
#ifndef KUBEML_INGEST_H
#define KUBEML_INGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/store/store.h"
#include "dataset.h"
#include "spool.h"

typedef enum ingest_phase {
    INGEST_RECEIVE,
    INGEST_CHECK,
    INGEST_WRITE,
    INGEST_PUBLISH
} ingest_phase;

/* Reports `done` of `total` bytes of this phase (INGEST_RECEIVE: total is not known, 0). Called in
 * the feeding thread, at most every few MiB. A result other than 0 ends the upload with
 * ERR_CANCELLED. */
typedef int (*ingest_progress)(void *arg, ingest_phase phase, uint64_t done, uint64_t total);

/* The layout of arrays (N, a, b, c). AUTO takes uint8 as (N, H, W, C) if c is 1, 3 or 4 and a is
 * not; other arrays are (N, C, H, W). */
typedef enum ingest_layout {
    INGEST_LAYOUT_AUTO,
    INGEST_LAYOUT_CHW,
    INGEST_LAYOUT_HWC
} ingest_layout;

/* `name`: "auto", "chw" or "hwc"; else ERR_INVALID. */
int ingest_layout_parse(const char *name, ingest_layout *out, err *e);

typedef struct ingest_options {
    uint64_t seed;          /* of the order of the training samples; 0 is a seed too */
    uint32_t chunk_samples; /* 0: DATASET_CHUNK_SAMPLES */
    bool regression;        /* y are float targets, not classes */
    ingest_layout layout;
    uint64_t bytes_max;       /* after decompression, all parts; 0: INGEST_BYTES_MAX */
    spool_disk *disk;         /* shared by all uploads; NULL: no such limit. Outlives the ingest */
    ingest_progress progress; /* may be NULL */
    void *progress_arg;
} ingest_options;

#define INGEST_BYTES_MAX ((uint64_t)256 << 30)

enum { INGEST_NOTE_BYTES = 160 };

/* Whether AUTO took floats as (N, C, H, W) that look like (N, H, W, C): such a dataset trains
 * without an error, but learns less. `out` gets a note for the user. */
bool ingest_note(const dataset_info *info, ingest_layout layout, char out[INGEST_NOTE_BYTES]);

typedef struct ingest ingest;

/* `options` may be NULL. ERR_INVALID for a bad name or option, ERR_EXISTS if there is a dataset of
 * that name. */
int ingest_begin(store *s, const char *name, const ingest_options *options, ingest **out, err *e);
/* Begins a part: `field` is "x-train", "y-train", "x-test" or "y-test" (else ERR_INVALID);
 * `filename` (may be NULL) is for messages alone. A field comes once; CIFAR batches may come as
 * several x-train parts. */
int ingest_part(ingest *i, const char *field, const char *filename, err *e);
/* Feeds the next bytes of a part. Parts may interleave. */
int ingest_bytes(ingest *i, const char *field, const void *bytes, size_t len, err *e);
/* Feeds a whole part from a file of this machine. */
int ingest_file(ingest *i, const char *field, const char *path, err *e);
/* Checks, writes and publishes the dataset; blocks (about a second per GB and phase). Frees `i` in
 * any case. ERR_EXISTS: another upload of that name was first. The caller frees `out` (may be NULL)
 * by dataset_info_free. */
int ingest_end(ingest *i, dataset_info *out, err *e);
void ingest_abort(ingest *i); /* NULL is fine */

/* A whole ingest from files, for tools and tests. A path may be NULL: that part is not given. */
typedef struct ingest_files {
    const char *x_train, *y_train, *x_test, *y_test;
} ingest_files;
int ingest_paths(store *s, const char *name, const ingest_options *options,
                 const ingest_files *files, dataset_info *out, err *e);

#endif
