/* ingest.h: from uploaded files to a published dataset.
 *
 * The HTTP handler feeds the parts as they come; nothing is kept in memory but a buffer. Bytes are
 * decompressed into a nameless spool file, recognised by their content (npy, npz, IDX, each also
 * .gz, CIFAR binary; a pickle is refused with the lines that convert it) and their size is held
 * against what their header says. ingest_end checks the samples, writes the chunks and publishes
 * with one last step; before it nobody sees anything, and a process that dies leaves nothing but an
 * orphan for store_sweep.
 *
 * Refusals (ERR_INVALID, ERR_CORRUPT for cut or damaged files, ERR_LIMIT, ERR_UNSUPPORTED for
 * formats) name the field and where it is wrong. An ingest belongs to one thread. After any error
 * only ingest_abort (or ingest_end, which frees too) is of use. */
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

/* `done` of `total` bytes of this phase (INGEST_RECEIVE: total 0, it is not known). Called in the
 * feeding thread, at most every few MiB. Anything but 0 ends the upload with ERR_CANCELLED. */
typedef int (*ingest_progress)(void *arg, ingest_phase phase, uint64_t done, uint64_t total);

/* uint8 (N, a, b, c): AUTO takes it for (N, H, W, C) where c is 1, 3 or 4 and a is none of them. */
typedef enum ingest_layout {
    INGEST_LAYOUT_AUTO,
    INGEST_LAYOUT_CHW,
    INGEST_LAYOUT_HWC
} ingest_layout;

/* By its name. ERR_INVALID. */
int ingest_layout_parse(const char *name, ingest_layout *out, err *e);

typedef struct ingest_options {
    uint64_t seed;          /* of the order of the training samples; 0 is a seed like any other */
    uint32_t chunk_samples; /* 0: DATASET_CHUNK_SAMPLES */
    bool regression;        /* y are float targets and not classes */
    ingest_layout layout;
    uint64_t bytes_max;       /* after decompression, all parts; 0: INGEST_BYTES_MAX */
    spool_disk *disk;         /* of all uploads; NULL: it is theirs alone. Outlives the ingest */
    ingest_progress progress; /* may be NULL */
    void *progress_arg;
} ingest_options;

#define INGEST_BYTES_MAX ((uint64_t)256 << 30)

enum { INGEST_NOTE_BYTES = 160 };

/* Whether AUTO took floats for (N, C, H, W) that look like (N, H, W, C), which trains as well and
 * learns less; `out` says so. */
bool ingest_note(const dataset_info *info, ingest_layout layout, char out[INGEST_NOTE_BYTES]);

typedef struct ingest ingest;

/* `options` may be NULL. ERR_INVALID for the name, ERR_EXISTS when a dataset of that name is there.
 */
int ingest_begin(store *s, const char *name, const ingest_options *options, ingest **out, err *e);
/* A part begins: `field` is "x-train", "y-train", "x-test" or "y-test" (ERR_INVALID naming
 * another), `filename` (may be NULL) only shows in messages. A field comes once; CIFAR batches
 * may come as several x-train parts. */
int ingest_part(ingest *i, const char *field, const char *filename, err *e);
/* The part's next bytes. Parts may interleave. */
int ingest_bytes(ingest *i, const char *field, const void *bytes, size_t len, err *e);
/* A part that is a file of this machine, from its beginning to its end. */
int ingest_file(ingest *i, const char *field, const char *path, err *e);
/* Checks, writes and publishes; blocks for as long as that takes (about a second per GB and phase).
 * Frees `i` in any case. ERR_EXISTS: another upload of that name was first. `out` (may be NULL) is
 * the caller's, to dataset_info_free. */
int ingest_end(ingest *i, dataset_info *out, err *e);
void ingest_abort(ingest *i); /* NULL is fine */

/* All in one, for tools and tests: paths may be NULL where a part is not given. */
typedef struct ingest_files {
    const char *x_train, *y_train, *x_test, *y_test;
} ingest_files;
int ingest_paths(store *s, const char *name, const ingest_options *options,
                 const ingest_files *files, dataset_info *out, err *e);

#endif
