/* trainer.h: the training loop that kubeml-function and `kubeml run` share: load, train, validate.
 *
 * Between two calls a trainer keeps nothing but the engine's state that a replacement would not
 * compute alike: what trainer_train does to the state is a function of (state, program, dataset,
 * seed, task) alone. One thread owns it; `trainer_progress` may be asked from another. */
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
    program *program; /* borrowed, as the next */
    dataset *data;
    int batch, epochs, threads;
    uint64_t seed;
    const char *backend;   /* NULL: the fastest here */
    bool reset_optimizer;  /* the block has weights alone */
    bool blank;            /* no weights yet: they are imported, or trainer_draw comes first */
    backend_precision precision;
    size_t device_memory;  /* cap of GPU memory; 0: none */
    int together;          /* so many trainers of this process share that; 0: 1 */
    int device;            /* which GPU, of those that the process sees */
    /* Called once, by the thread that trains, when the first batch is trained (the first ones,
     * where a backend takes several at once); NULL: nobody asks. */
    void (*begun)(void *of);
    void *begun_of;
} trainer_config;

typedef struct trainer_task {
    uint32_t epoch;
    int parallelism, function;
    uint32_t batch_begin, batch_count; /* of the function's share */
    double lr;
    /* Each epoch's validation loss before this one, for schedules that look; NaN: not validated. */
    const double *history;
    size_t history_count;
} trainer_task;

typedef struct trainer_result {
    uint64_t samples, sample_begin, sample_end; /* positions in the share */
    uint32_t batches;
    double loss_sum;
    int64_t correct;
    double load_s, convert_s, train_s; /* converting is no part of training here */
} trainer_result;

/* Compiles the program for the dataset's shape. On failure `reason` is one of "ShapeMismatch" (the
 * message names the layer, or both numbers), "GpuMemory" (the message names the need, the layer,
 * and the cap or what the GPU has), "GpuFailed" and "LoadFailed". */
int trainer_open(const trainer_config *c, trainer **out, char reason[TRAINER_REASON_BYTES], err *e);
void trainer_close(trainer *t); /* NULL is fine */
/* Whether trainer_open would take that data set's samples and labels. Only the network's graph is
 * built. ERR_INVALID as its "ShapeMismatch". */
int trainer_shape_check(program *p, const dataset_info *d, err *e);

/* The first weights of all, from the seed; the optimizer begins anew. */
int trainer_draw(trainer *t, err *e);
state *trainer_state(trainer *t); /* the trainer's own: its layout, import and export */
engine *trainer_engine(trainer *t);
/* Batches of the function's share in that epoch. */
int trainer_batches(trainer *t, uint32_t epoch, int parallelism, int function, uint32_t *out,
                    err *e);

/* -1 with the reason: "NaNLoss" naming epoch and, in training, batch, "ShapeMismatch" (a label),
 * "StepFailed" (the code's own step), "DataError", "GpuFailed", "GpuMemory". */
int trainer_train(trainer *t, const trainer_task *task, trainer_result *out, err *e);
int trainer_validate(trainer *t, uint32_t epoch, int parallelism, int function, trainer_result *out,
                     err *e);
const char *trainer_reason(const trainer *t);
/* Grows with whatever is done: a batch, or its samples on their way to a device. */
uint32_t trainer_progress(const trainer *t);

#endif
