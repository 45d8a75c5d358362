/* loader.h: gives batches of a dataset: of a function's share of an epoch, or of a run of test
 * chunks.
 *
 * Samples are not copied: a batch is a list of pointers into the dataset's mapped chunks. The
 * system's page cache keeps the chunks between epochs, so that the loader has no copy, and no state
 * that a replacement would lack. A sample is copied only if a transform moves its bytes. At the
 * begin of a run the loader announces its chunks, which a store over the network fetches with its
 * own threads. The loader itself has no thread that runs ahead: pointers take 1 % of LeNet's step,
 * and flipped, cropped copies 4 %, less than passing them to another thread costs once there are
 * more functions than cores.
 *
 * One thread owns a loader. A batch is valid until the next loader_next or loader_end. */
#ifndef KUBEML_LOADER_H
#define KUBEML_LOADER_H

#include "common/base/err.h"
#include "common/dataset/dataset.h"
#include "function-runtime/model/transform.h"
#include "kernels/engine.h"

typedef struct loader loader;

typedef struct loader_config {
    dataset *data;             /* borrowed */
    const transform *transform; /* borrowed */
    uint64_t seed;             /* the job's */
    int batch;
    bool regression;           /* targets instead of labels */
} loader_config;

/* ERR_NOMEM. */
int loader_open(const loader_config *c, loader **out, err *e);
void loader_close(loader *l); /* NULL is fine */

/* Begins a run of batches [batch_begin, batch_begin + batch_count) in the share of `function` of
 * `parallelism` in `epoch`. *begin and *end: the samples' positions in the share. ERR_INVALID:
 * numbers without a shard plan, or beyond the share; ERR_NOMEM. */
int loader_train(loader *l, uint32_t epoch, int parallelism, int function, uint32_t batch_begin,
                 uint32_t batch_count, uint64_t *begin, uint64_t *end, err *e);
/* Begins a run of the function's share of the test set, in order, without transforms. */
int loader_test(loader *l, int parallelism, int function, uint64_t *samples, err *e);
/* The number of a function's batches in an epoch; ends a run of another epoch or parallelism. */
int loader_batches(loader *l, uint32_t epoch, int parallelism, int function, uint32_t *out, err *e);

/* 1: a batch; 0: the end of the run; -1: ERR_CORRUPT (a chunk), ERR_UNAVAILABLE. */
int loader_next(loader *l, engine_batch *out, err *e);
void loader_end(loader *l); /* ends the run, and releases its chunks */

/* ---- for an engine that keeps the samples itself ---- */

/* Describes the whole training set, one row a sample, in the order of its chunks. A chunk is viewed
 * when its rows are asked for, and released with the next chunk or by loader_end. The loader owns
 * the memory that `out` points to; its reader has the errors of loader_next. ERR_NOMEM. */
int loader_share(loader *l, backend_share *out, err *e);
/* Gives the rows of the run of loader_train, instead of its batches. */
void loader_rows(const loader *l, uint32_t *out);

#endif
