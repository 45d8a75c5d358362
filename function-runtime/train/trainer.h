/* trainer.h: the training loop that kubeml-function and `kubeml run` share: load, train, validate.
 *
 * Between two calls a trainer has no other state than the engine's that affects results: the state
 * after trainer_train depends only on (state, program, dataset, seed, task), so that a replacement
 * computes the same. One thread owns a trainer; `trainer_progress` may be called from another. */
#ifndef KUBEML_TRAINER_H
#define KUBEML_TRAINER_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/dataset/dataset.h"
#include "function-runtime/model/program.h"
#include "kernels/engine.h"
#include "state.h"

enum { TRAINER_REASON_BYTES = 32 };

typedef struct trainer trainer;

typedef struct trainer_config {
    program *program; /* borrowed */
    dataset *data;    /* borrowed */
    int batch, epochs, threads;
    uint64_t seed;
    const char *backend;   /* NULL: the fastest here */
    bool reset_optimizer;  /* the block has weights alone */
    bool blank;            /* has no weights until an import or trainer_draw */
    backend_precision precision;
    size_t device_memory;  /* cap of GPU memory; 0: none */
    int together;          /* trainers of this process that share device_memory; 0: 1 */
    int device;            /* the GPU, of those that the process sees */
    /* Called once, by the training thread, after the first batch (after the first batches, if the
     * backend trains several at once); may be NULL. */
    void (*begun)(void *of);
    void *begun_of;
} trainer_config;

typedef struct trainer_task {
    uint32_t epoch;
    int parallelism, function;
    uint32_t batch_begin, batch_count; /* of the function's share */
    double lr;
    /* The validation losses of the epochs before, for schedules that need them; NaN: not
     * validated. */
    const double *history;
    size_t history_count;
} trainer_task;

typedef struct trainer_result {
    uint64_t samples, sample_begin, sample_end; /* positions in the share */
    uint32_t batches;
    double loss_sum;
    int64_t correct;
    double load_s, convert_s, train_s; /* train_s is without convert_s */
} trainer_result;

/* Compiles the program for the dataset's shape. On failure `reason` is one of
 *   "ShapeMismatch"  the message names the layer, or both numbers
 *   "GpuMemory"      the message names the need, the layer, and the cap or the GPU's memory
 *   "GpuFailed", "LoadFailed" */
int trainer_open(const trainer_config *c, trainer **out, char reason[TRAINER_REASON_BYTES], err *e);
void trainer_close(trainer *t); /* NULL is fine */
/* Checks that trainer_open would take the dataset's samples and labels. Builds only the network's
 * graph. ERR_INVALID as "ShapeMismatch". */
int trainer_shape_check(program *p, const dataset_info *d, err *e);

/* Draws the first weights from the seed, and resets the optimizer. */
int trainer_draw(trainer *t, err *e);
state *trainer_state(trainer *t); /* owned by the trainer; for layout, import and export */
engine *trainer_engine(trainer *t);
/* The number of batches in the function's share of that epoch. */
int trainer_batches(trainer *t, uint32_t epoch, int parallelism, int function, uint32_t *out,
                    err *e);

/* -1 with trainer_reason: "NaNLoss" (the message names the epoch and, in training, the batch),
 * "ShapeMismatch" (a label), "StepFailed" (the code's own step), "DataError", "GpuFailed",
 * "GpuMemory". */
int trainer_train(trainer *t, const trainer_task *task, trainer_result *out, err *e);
int trainer_validate(trainer *t, uint32_t epoch, int parallelism, int function, trainer_result *out,
                     err *e);
const char *trainer_reason(const trainer *t);
/* A count that grows with all progress: a batch, or its samples brought to a device. */
uint32_t trainer_progress(const trainer *t);

#endif
