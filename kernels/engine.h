/* engine.h: a model that trains: graph, backend, optimizer and all of the model's state in one
 * handle.
 *
 * State. All floats of a model lie in one block: parameters, buffers (running statistics),
 * optimizer state; all counters (num_batches_tracked, optimizer.step) in one int64 block. These two
 * blocks are what a function publishes and what is averaged; engine_layout names every piece.
 * Publishing the weights alone means the first engine_weights_floats() of the float block. The
 * blocks may be moved into the caller's memory (a shared-memory segment), so that publishing copies
 * nothing.
 *
 * A handle belongs to one thread at a time. After engine_compile no call allocates. */
#ifndef KUBEML_ENGINE_H
#define KUBEML_ENGINE_H

#include "backend.h"
#include "common/contract/limits.h"
#include "graph.h"
#include "optim.h"

typedef struct engine engine;

/* Appends the model to the graph, reading node `x`, and returns the logits' node. `outputs` is the
 * number of classes (or of regression outputs) wanted. Mistakes stay in the graph. */
typedef int (*engine_builder)(graph *g, int x, int outputs, void *user);

enum {
    ENGINE_BATCH_MAX = LIMITS_BATCH_MAX,
    ENGINE_THREADS_MAX = LIMITS_THREADS_MAX,
    ENGINE_OUTPUTS_MAX = LIMITS_OUTPUTS_MAX,
    ENGINE_AVERAGE_MAX = LIMITS_SHARED_MAX,
};

typedef struct engine_config {
    engine_builder build;
    void *user;
    shape input;         /* (C,H,W), rank 3 */
    int outputs;         /* 0: whatever the model has */
    int batch;           /* the most samples of one call */
    const char *backend; /* NULL: the fastest here */
    int threads;         /* 0: 1 */
    backend_precision precision;
    backend_loss loss;
    optim optim;
    uint64_t seed;  /* initial weights and dropout */
    bool inference; /* no gradients, no optimizer state */
    bool blank;     /* no weights are drawn: engine_import or engine_draw comes before all work */
    int device;           /* which GPU; host backends ignore this */
    size_t device_memory; /* cap on this process's memory there, in bytes; 0: none */
    int programs;         /* engines like this one that share that cap; 0: 1 */
} engine_config;

/* Builds the graph, compiles it, allocates everything and, unless `blank` is set, draws the
 * weights. (Drawing ResNet-34's takes a second of one core, which a caller that imports weights
 * need not spend.) Errors: the builder's (ERR_INVALID, naming the layer), ERR_LIMIT, ERR_NOMEM,
 * ERR_UNSUPPORTED. Free with engine_free. */
int engine_compile(const engine_config *c, engine **out, err *e);
void engine_free(engine *m);
/* Draws the first weights from the seed; the optimizer's state and all counters become 0. */
int engine_draw(engine *m, err *e);

/* ---- state ---------------------------------------------------------------------------------- */

/* One named piece of the state. `offset` counts from the start of the float block, or of the
 * counter block for VAR_COUNTER. Optimizer state is named "optimizer.<slot>.<parameter>", its
 * counter "optimizer.step". Order: as the blocks lie. */
typedef struct engine_var {
    const char *name;
    graph_kind kind; /* VAR_PARAM, VAR_BUFFER, VAR_STATE, VAR_COUNTER */
    int rank;
    int dims[4];
    size_t count, offset;
} engine_var;

/* The list of all pieces, `count` of them; owned by the engine, valid until engine_free. */
const engine_var *engine_layout(const engine *m, size_t *count);
size_t engine_state_floats(const engine *m);   /* parameters, buffers, optimizer state */
size_t engine_weights_floats(const engine *m); /* parameters and buffers alone: a prefix */
size_t engine_counter_count(const engine *m);
/* The layout as text ("name kind dims\n" a line), for comparing two models. Owned by the engine. */
const char *engine_layout_text(const engine *m);

/* The blocks where they lie now, brought up to date first (a device backend copies); NULL + e when
 * that fails. Valid until engine_place or engine_free. A caller that writes to them calls
 * engine_state_changed. */
float *engine_floats(engine *m, err *e);
int64_t *engine_counters(engine *m, err *e);
int engine_state_changed(engine *m, err *e);

/* Copy the state out, or in (engine_state_changed included). Sizes as above. */
int engine_export(engine *m, float *floats, int64_t *counters, err *e);
int engine_import(engine *m, const float *floats, const int64_t *counters, err *e);
/* As engine_import, but parameters, buffers and their counters alone; optimizer state becomes 0. */
int engine_import_weights(engine *m, const float *floats, const int64_t *counters, err *e);
/* Zeroes the optimizer's state and its step counter. */
int engine_reset_optimizer(engine *m, err *e);

/* Moves the state into the caller's memory (64-byte aligned, sizes as above, contents overwritten
 * by the current state), which must stay mapped until the next engine_place or engine_free. NULL,
 * NULL moves the state back into the engine's own memory. */
int engine_place(engine *m, float *floats, int64_t *counters, err *e);

/* ---- work ----------------------------------------------------------------------------------- */

/* One batch: n samples, each (C,H,W) without gaps. Either `rows` (n pointers, one a sample) or `x`
 * (all samples one after the other). scale and shift: C floats or NULL. Exactly one kind of
 * label. */
typedef struct engine_batch {
    int n;
    backend_type type;
    const void *x;
    const void *const *rows;
    const float *scale, *shift;
    const int32_t *labels;
    const int64_t *labels64;
    const float *targets;   /* MSE: (n, outputs) */
    const uint64_t *sample; /* sample numbers, the keys of dropout; NULL: 0, 1, 2, ... */
    uint32_t epoch;
} engine_batch;

typedef struct engine_result {
    double loss; /* mean over the n samples; NaN or infinite when training has diverged */
    double loss_sum;
    int64_t correct;
    int n;
    /* seconds of the call in which samples were brought into the network's form; 0: not measured (a
     * GPU does this itself) */
    double convert_s;
} engine_result;

/* One update. ERR_INVALID: n out of range, or a label outside the outputs (named with its
 * position). */
int engine_train(engine *m, const engine_batch *b, double lr, engine_result *r, err *e);
/* Whether the model's backend can keep a share at all. */
bool engine_keeps_share(const engine *m);
/* Makes room for a share of samples on the engine's device, for engine_train_share; nothing is read
 * yet, and the share's reader is used until the share is released. NULL releases it.
 * ERR_UNSUPPORTED: this backend keeps no share; ERR_NOMEM: the share does not fit. */
int engine_share(engine *m, const backend_share *s, err *e);
/* Reads, in this order, the rows that are not there yet. The reader's errors; ERR_INVALID: a row
 * outside the share, or a label outside the outputs. Rows that have come stay. */
int engine_bring(engine *m, const uint32_t *order, uint32_t rows, err *e);
/* Makes all updates of `s` (the engine fills in its first_step) on rows that were brought, without
 * the host between them. Equals engine_train on the same batches. ERR_INVALID: a row outside the
 * share or not brought, a wrong batch. */
int engine_train_share(engine *m, const backend_steps *s, engine_result *r, err *e);
/* Whether engine_average can average these models where they are. */
bool engine_averages(engine *const *models, int n);
/* Sets all models to their weighted mean, on the devices where they are (backend.h's average);
 * their layouts are alike. ERR_UNSUPPORTED, ERR_INVALID as in backend.h. */
int engine_average(engine *const *models, const double *weight, int n, bool across, err *e);
/* Models of one device in processes of their own (backend_peers). Each process lends its model and
 * sends a fingerprint of it for every round; one process is the reduce root. All models have one
 * layout. ERR_UNSUPPORTED, with the reason: not possible here. */
typedef struct engine_fingerprint {
    uint64_t sum; /* backend_peers.sum over all that is averaged */
    int64_t step; /* optimizer.step */
} engine_fingerprint;
typedef struct engine_peer {
    backend_ipc_handle where;
    engine_fingerprint fingerprint;
    double weight;
} engine_peer;
int engine_lend(engine *m, backend_ipc_handle *out, err *e);
int engine_reduce_root(engine *m, const backend_ipc_handle *of, int n, backend_ipc_handle *mean,
                       err *e);
int engine_fingerprint_now(engine *m, engine_fingerprint *out, err *e);
/* Computes the mean into the memory of engine_reduce_root; no model changes. Weights, bits, `bad`
 * and errors as in backend_peers. */
int engine_average_ipc(engine *m, const engine_peer *of, int n, engine_fingerprint *mean, int *bad,
                       err *e);
/* Sets the model to the mean. ERR_CORRUPT: the mean lies there no more, and the model has to be
 * imported. */
int engine_adopt(engine *m, const backend_ipc_handle *mean, const engine_fingerprint *fingerprint,
                 err *e);
/* Models in processes of their own, each on a device of its own: ranks of a communicator. Errors as
 * in backend_comm. */
int engine_comm_device(engine *m, unsigned char device[BACKEND_DEVICE_BYTES], err *e);
int engine_comm_id(engine *m, unsigned char id[BACKEND_COMM_ID_BYTES], err *e);
int engine_comm_join(engine *m, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int ranks,
                     const backend_patience *patience, err *e);
/* Computes the mean into the engine's own memory; the model does not change. `own`: the ERR_INVALID
 * is of this model. */
int engine_comm_mean(engine *m, double weight, const backend_patience *patience, uint64_t *sum,
                     bool *own, err *e);
/* Sets the model to that mean. ERR_CORRUPT: the mean is another, and the model has to be
 * imported. */
int engine_comm_take(engine *m, const engine_fingerprint *fingerprint, err *e);
void engine_comm_leave(engine *m);
/* The two halves of engine_train, for a custom step: gradients of the mean loss, then the update.
 * Between the two the caller may change engine_grads. After engine_train, engine_grads are
 * undefined. */
int engine_gradients(engine *m, const engine_batch *b, engine_result *r, err *e);
/* The gradients in the layout of the parameters, gaps included; NULL + e when a device cannot copy
 * them. */
float *engine_grads(engine *m, size_t *count, err *e);
int engine_update(engine *m, double lr, err *e);

/* Loss and correct predictions, without training behaviour. */
int engine_eval(engine *m, const engine_batch *b, engine_result *r, err *e);
/* logits: (n, outputs). Labels are not needed. */
int engine_infer(engine *m, const engine_batch *b, float *logits, err *e);

/* ---- facts ---------------------------------------------------------------------------------- */

const graph *engine_graph(const engine *m);
int engine_outputs(const engine *m);
int engine_batch_max(const engine *m);
shape engine_input(const engine *m);
size_t engine_param_count(const engine *m);  /* trainable numbers */
size_t engine_memory(const engine *m);       /* bytes held, state included */
const char *engine_backend(const engine *m); /* "reference", "cpu" */
int engine_device(const engine *m);          /* which GPU; meaningless on the CPU */
const char *engine_choices(const engine *m); /* see backend.h; "" when none */

#endif
