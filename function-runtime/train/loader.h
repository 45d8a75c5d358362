/* loader.h: hands out batches of a dataset: a function's share of an epoch, or a run of test
 * chunks.
 *
 * Samples are read where they lie: a batch is a list of pointers into the dataset's mapped chunks,
 * and the system's page cache is what keeps them between epochs, so that the loader holds no copy
 * and no state that a replacement would lack. Only where a transform moves bytes is a sample
 * copied. Where the dataset's store is far away, it is told at a run's begin which chunks will be
 * looked at, and fetches them with threads of its own. The loader has no thread that runs ahead:
 * pointers take 1 % of LeNet's step and flipped, cropped copies 4 %, less than a hand-over to
 * another thread costs as soon as there are more functions than cores.
 *
 * One thread owns a loader. What it hands out is valid until the next loader_next or loader_end. */
#ifndef KUBEML_LOADER_H
#define KUBEML_LOADER_H

#include "common/base/err.h"
#include "common/dataset/dataset.h"
#include "function-runtime/model/transform.h"
#include "kernels/engine.h"

typedef struct loader loader;

typedef struct loader_config {
    dataset *data;             /* borrowed, as the next */
    const transform *transform;
    uint64_t seed;             /* the job's */
    int batch;
    bool regression;           /* targets instead of labels */
} loader_config;

/* ERR_INVALID: numbers no deal can be made of; ERR_NOMEM. */
int loader_open(const loader_config *c, loader **out, err *e);
void loader_close(loader *l); /* NULL is fine */

/* Begins with batches [batch_begin, batch_begin + batch_count) of what `function` of `parallelism`
 * trains in `epoch`. *begin and *end are the positions in its share. ERR_INVALID beyond the
 * share. */
int loader_train(loader *l, uint32_t epoch, int parallelism, int function, uint32_t batch_begin,
                 uint32_t batch_count, uint64_t *begin, uint64_t *end, err *e);
/* Begins with the function's share of the test set, in its order, untransformed. */
int loader_test(loader *l, int parallelism, int function, uint64_t *samples, err *e);
/* How many batches a function has in an epoch; ends a run of another epoch or parallelism. */
int loader_batches(loader *l, uint32_t epoch, int parallelism, int function, uint32_t *out, err *e);

/* 1 and a batch, 0 at the end, -1: ERR_CORRUPT (a chunk), ERR_UNAVAILABLE. */
int loader_next(loader *l, engine_batch *out, err *e);
void loader_end(loader *l); /* lets go of the chunks; also before the end */

/* ---- for an engine that keeps the samples itself ---- */

/* The whole training set, a row a sample in the order of its chunks. A chunk is looked at when its
 * rows are asked for, and let go with the next one, or by loader_end. What `out` points to is the
 * loader's; its reader's errors are loader_next's. ERR_NOMEM. */
int loader_share(loader *l, backend_share *out, err *e);
/* The rows of the run begun with loader_train, instead of its batches. */
void loader_rows(const loader *l, uint32_t *out);

#endif
