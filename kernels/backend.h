/* backend.h: the seam between a model's graph and what computes it.
 *
 * Implementations: reference (plain C loops in double precision: the truth that the others are
 * tested against), cpu (fast) and cuda (NVIDIA's GPUs). `prepare` gets the whole graph once: it
 * chooses kernels, fusion, layouts and threads, and allocates all memory that the program will ever
 * need. After that no call allocates host or device memory. The exception is what a device's own
 * driver keeps of a kind of run when that kind is first asked for.
 *
 * State. The caller owns four host blocks laid out as the graph says (graph.h, graph_var.offset):
 * params, grads and optimizer state in the layout of params, buffers, and int64 counters. `load`
 * tells the program where the blocks lie and that their contents are new; between `load` and
 * `store` a program may keep packed or device copies. A program that works in the blocks themselves
 * leaves `store` NULL.
 *
 * Threads. A program belongs to one thread at a time; programs share nothing. All calls return when
 * their work is done (a device backend synchronises before returning).
 *
 * Errors. ERR_UNSUPPORTED from prepare: this backend cannot run the graph or the precision, and the
 * message names the layer. ERR_NOMEM from prepare: host or device memory is short; ERR_LIMIT:
 * device memory would exceed the cap. Both messages name the need. ERR_INTERNAL or ERR_UNAVAILABLE
 * from the running calls: the device failed. Backends for the host's CPU never fail after prepare.
 * NaN is not an error: it shows in the loss. */
#ifndef KUBEML_BACKEND_H
#define KUBEML_BACKEND_H

#include <stdint.h>

#include "graph.h"
#include "optim.h"

typedef enum backend_precision { PRECISION_FP32, PRECISION_TF32, PRECISION_BF16 } backend_precision;

typedef enum backend_loss {
    LOSS_CROSS_ENTROPY, /* mean over the batch of -log softmax(logits)[label] */
    LOSS_MSE,           /* mean over batch and outputs of (y - target)^2 */
} backend_loss;

typedef struct backend_config {
    int batch;      /* the most samples of one call */
    int threads;    /* the most threads to compute with, the caller's among them; >= 1 */
    bool inference; /* only `forward` will be called: no gradient memory */
    backend_precision precision;
    backend_loss loss;
    optim optim;
    uint64_t seed;        /* of dropout */
    int device;           /* which GPU; 0 is the first. The host's backends ignore this */
    size_t device_memory; /* cap on this process's device memory in bytes; 0: none */
    int programs;         /* programs like this one that share that cap; 0: 1 */
} backend_config;

/* Host blocks of the model; 64-byte aligned. grads and state are NULL for inference. */
typedef struct backend_state {
    float *params, *grads; /* graph.floats[VAR_PARAM] */
    bool blank;            /* no weights yet, only the zeros that prepare leaves in device memory */
    bool state_zero;       /* no update yet: state holds zeros and need not be read */
    float *buffers;        /* graph.floats[VAR_BUFFER] */
    float *state;      /* optim_slots() blocks of graph.floats[VAR_PARAM], one after the other */
    int64_t *counters; /* graph.floats[VAR_COUNTER]; batch norm's num_batches_tracked */
    /* For backends with a `store`: this call alone reads parameters, buffers and state from here,
     * where they lie one after the other. The blocks of floats are then out of date until the next
     * `store`. NULL: the call reads the blocks. */
    const float *given;
} backend_state;

typedef enum backend_type { INPUT_FLOAT, INPUT_UINT8 } backend_type;

/* n samples. Sample i lies at x[i], (C,H,W) without gaps, of `type`, any alignment; the network's
 * input is value * scale[c] + shift[c] (NULL: 1 and 0). 1 <= n <= config.batch, labels in [0,
 * outputs): the engine has checked both. */
typedef struct backend_batch {
    int n;
    backend_type type;
    const void *const *x;
    const float *scale, *shift;
    const int32_t *labels;  /* cross-entropy; NULL where no loss is wanted */
    const float *targets;   /* MSE: (n, outputs); likewise */
    const uint64_t *sample; /* keys of dropout, one a sample; never NULL in training */
    uint32_t epoch;
} backend_batch;

/* Sums over the samples, so that shards and short batches add up. */
typedef struct backend_result {
    double loss_sum; /* the batch's mean loss is loss_sum / n */
    int64_t correct; /* samples whose largest logit (the first of equals) is the label; MSE: 0 */
    /* seconds of the call in which samples were brought into the network's form; 0: not measured (a
     * GPU does this itself) */
    double convert_s;
} backend_result;

typedef struct backend_update {
    double lr;
    int64_t step; /* 1 for the first update since the optimizer's state was zeroed */
} backend_update;

/* Rows of a share, one after the other. */
typedef struct backend_rows {
    const void *x;          /* (rows, C, H, W), any alignment */
    const int32_t *labels;  /* (rows), cross-entropy */
    const float *targets;   /* (rows, outputs), MSE */
    const uint64_t *sample; /* (rows): keys of dropout */
} backend_rows;

/* Reads a share's rows: those from `first` on, as many as one read gives (rows_each). They are
 * valid until the next call. Blocks as long as a store may, and returns the store's errors. */
typedef struct backend_reader {
    int (*read)(void *from, uint32_t first, backend_rows *out, err *e);
    void *from;
} backend_reader;

/* Samples that stay on the device while epochs run over them, and the changes to a sample on its
 * way into a batch: function-runtime/model/transform.h's flip and crop, drawn by (seed, epoch,
 * sample). */
enum { BACKEND_SET_NAME_BYTES = 80 };
typedef struct backend_share {
    uint32_t rows;
    uint32_t rows_each; /* rows of one read, from a multiple of this; the last has fewer */
    backend_type type;
    /* Names the rows (samples, labels, keys): programs with the same name may share them. Shorter
     * than BACKEND_SET_NAME_BYTES; NULL: no other program shares them. */
    const char *set;
    backend_reader reader;
    const float *scale, *shift;
    bool flip;
    int crop;
    uint64_t seed; /* of the draws */
} backend_share;

/* Batches of `batch` rows in `order`, the last one short: ceil(rows / batch) updates. `first_step`
 * is the number of the first update. lr: one for each update. */
typedef struct backend_steps {
    const uint32_t *order; /* rows of the share */
    uint32_t rows;
    int batch;
    uint32_t epoch;
    const double *lr;
    int64_t first_step;
    /* Called while the updates run, with how many more are done. NULL: no calls. */
    void (*done)(void *of, uint32_t updates);
    void *done_of;
} backend_steps;

/* Names the device memory in which a process keeps a model, so that other processes of that device
 * can read the model. Plain bytes, which travel in messages; the model's owner may free the memory
 * at any time. */
enum { BACKEND_HANDLE_BYTES = 64, BACKEND_DEVICE_BYTES = 16 };
typedef struct backend_ipc_handle {
    unsigned char handle[BACKEND_HANDLE_BYTES], device[BACKEND_DEVICE_BYTES];
    uint64_t params, buffers, state, counters; /* where in the memory behind the handle */
} backend_ipc_handle;

/* One model of a mean. */
typedef struct backend_ipc_model {
    backend_ipc_handle where;
    uint64_t sum; /* its backend_peers.sum */
    double weight;
} backend_ipc_model;

/* One graph made ready to run on one backend. The backend embeds this at the start of its own
 * struct. */
typedef struct backend_program {
    const struct backend *backend;
} backend_program;

/* Averages the models of several processes on the device that they share; all are of one graph.
 * Each process lends its model; the reduce root computes the mean and lends that. A reader checks
 * by a sum over the memory that it has read what was lent (ERR_CORRUPT otherwise), so that no
 * process needs to know whether the others live.
 *
 * ERR_UNSUPPORTED, with the reason: the device does not share memory between these processes, or
 * the model's owner is gone. Between two calls no memory of another process stays open: it would
 * stay on the device after that process has ended. */
typedef struct backend_peers {
    /* Gives the place of this program's model, which holds as long as the program lives. */
    int (*lend)(backend_program *p, backend_ipc_handle *out, err *e);
    /* Makes this program the reduce root: checks that it can open the models that it will read, and
     * takes memory for a mean. ERR_NOMEM: the mean does not fit; ERR_LIMIT: it is over the cap. */
    int (*reduce_root)(backend_program *p, const backend_ipc_handle *of, int n,
                       backend_ipc_handle *mean, err *e);
    /* The sum over parameters, buffers, optimizer state and counters as they are now. */
    int (*sum)(backend_program *p, uint64_t *out, err *e);
    /* For the reduce root: computes the weighted mean in the order of `of`, with the bits of
     * common/modelstore/merge.h. Weights sum to 1; models of weight 0 are not read. Of counters the
     * mean has the largest. No model changes, not even this program's. `sum`: of the mean.
     * ERR_CORRUPT: a model has another sum, or cannot be opened any more; ERR_UNSUPPORTED: a model
     * is on another device; ERR_INVALID: NaN or infinity. `bad` is the index of the model at fault,
     * or -1. */
    int (*average)(backend_program *p, const backend_ipc_model *of, int n, uint64_t *sum, int *bad,
                   err *e);
    /* Copies what lies there into the program's model, if it has this sum; otherwise the model
     * becomes zeros. */
    int (*adopt)(backend_program *p, const backend_ipc_handle *from, uint64_t sum, err *e);
} backend_peers;

/* Called again and again while the program waits for other processes; it pauses before it returns.
 * 0: go on; -1 with an error ends the wait. */
typedef struct backend_patience {
    int (*wait)(void *user, err *e);
    void *user;
} backend_patience;

/* Averages the models of several processes, each on a device of its own: ranks of a communicator
 * (NCCL), which sums in an order of its own. No rank waits for a rank that is gone for longer than
 * its patience allows: an error of `join` or `mean` ends the communicator, and no model has
 * changed. */
enum { BACKEND_COMM_ID_BYTES = 128 };
typedef struct backend_comm {
    /* The identity of this program's device; a communicator takes one rank of a device.
     * ERR_UNSUPPORTED, with the reason: no communicator is possible here. */
    int (*device)(backend_program *p, unsigned char device[BACKEND_DEVICE_BYTES], err *e);
    /* Makes the name of a new communicator; rank 0 calls this. ERR_UNAVAILABLE. */
    int (*id)(backend_program *p, unsigned char id[BACKEND_COMM_ID_BYTES], err *e);
    /* Leaves the previous communicator and waits for all ranks of the new one. ERR_UNAVAILABLE;
     * ERR_UNSUPPORTED: two ranks on one device; ERR_NOMEM: the mean does not fit; ERR_LIMIT: the
     * mean is over the cap; or the error of `patience`. */
    int (*join)(backend_program *p, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank,
                int ranks, const backend_patience *patience, err *e);
    /* Called by all ranks: computes the mean, each rank's model times its weight, into memory of
     * the program's own. Weights sum to 1; a model of weight 0 is not read. Of counters the mean
     * has the largest. `sum`: of the mean, as backend_peers.sum. ERR_INVALID: NaN or infinity; with
     * `own` it is in this program's model, and the program has then left before the other ranks
     * knew. */
    int (*mean)(backend_program *p, double weight, const backend_patience *patience, uint64_t *sum,
                bool *own, err *e);
    /* Copies the last mean into the model, if the mean has this sum; otherwise the model becomes
     * zeros, with ERR_CORRUPT. */
    int (*take)(backend_program *p, uint64_t sum, err *e);
    void (*leave)(backend_program *p); /* waits for no other rank */
} backend_comm;

typedef struct backend {
    const char *name; /* "reference", "cpu", "cuda" */

    /* 0 when the backend can run on this machine. ERR_UNSUPPORTED: it never can, with the reason
     * ("no AVX2"). ERR_UNAVAILABLE or ERR_NOMEM: a GPU does not respond now; another process may
     * find it in order. Does not block. */
    int (*missing)(err *e);

    /* Does what takes long before the first prepare, once in a process: a device's context, its
     * libraries' handles. ERR_UNSUPPORTED, ERR_UNAVAILABLE, ERR_NOMEM. NULL: nothing takes long. */
    int (*warm)(int device, err *e);

    /* Runs, once, the kernels that autotune_load's lines choose for a model's layers on that
     * device, so that the driver loads them and such a model is ready sooner. For a process that
     * waits for its job: takes seconds at the most. A failure here is reported where the kernel is
     * wanted. NULL: nothing to load. */
    void (*preload)(int device);

    /* What prepare measures, as lines for other processes on machines of this kind: autotune_load
     * takes such lines and skips lines of another form; autotune_dump returns those that this
     * process has measured (the caller frees them; NULL: none). Both NULL: prepare measures
     * nothing. */
    void (*autotune_load)(const char *lines);
    char *(*autotune_dump)(void);

    /* Compiles the graph, which must outlive the program. May take long, because it may measure
     * kernels. ERR_UNSUPPORTED, ERR_NOMEM, ERR_LIMIT; ERR_UNAVAILABLE: a thread could not be
     * started. */
    int (*prepare)(const graph *g, const backend_config *c, backend_program **out, err *e);
    void (*release)(backend_program *p);

    /* Takes over the host blocks at *s (copied), whose contents are valid. First call after
     * prepare, and again whenever the caller has written to any of the blocks (after a `store`) or
     * has moved them. */
    int (*load)(backend_program *p, const backend_state *s, err *e);
    /* Brings all host blocks except grads up to date. NULL: they always are. */
    int (*store)(backend_program *p, err *e);
    /* Copies gradients alone: from the backend to the host's block, or, with `changed`, from the
     * block to the backend for the next update. NULL exactly where `store` is NULL. */
    int (*grads)(backend_program *p, bool changed, err *e);

    /* Forward without training behaviour (running statistics, no dropout). logits: (n, outputs) or
     * NULL. result: filled when not NULL, and then the batch has labels or targets. */
    int (*forward)(backend_program *p, const backend_batch *b, float *logits,
                   backend_result *result, err *e);

    /* Forward in training mode and backward. Afterwards grads holds d(mean loss over the n
     * samples)/dw of every parameter (after `grads`, where there is one); running statistics and
     * num_batches_tracked have moved on. */
    int (*gradients)(backend_program *p, const backend_batch *b, backend_result *result, err *e);

    /* Applies grads to params by config.optim. The caller may have changed grads since `gradients`,
     * and then has called `grads`. */
    int (*update)(backend_program *p, backend_update u, err *e);

    /* gradients and update in one, for fusion; grads need not be written. The result must equal the
     * two calls within rounding. NULL: the engine makes the two calls. */
    int (*step)(backend_program *p, const backend_batch *b, backend_update u,
                backend_result *result, err *e);

    /* Takes memory for a share and reads nothing yet; of `s` only the reader is used later.
     * Replaces the previous share; NULL only removes it. ERR_NOMEM: the share does not fit, or
     * would take memory that others need; there is then no share. `share`, `bring` and `steps` are
     * all NULL where there is no device to keep samples on. */
    int (*share)(backend_program *p, const backend_share *s, err *e);
    /* Reads, in this order, the rows that are not on the device yet, with the rows that come in the
     * same read. Returns the reader's errors; rows that have come stay. */
    int (*bring)(backend_program *p, const uint32_t *order, uint32_t rows, err *e);
    /* Runs the updates over rows of the share, one after the other, without the host in between.
     * The result is the sum over all of them. ERR_INVALID: a row that was not brought. */
    int (*steps)(backend_program *p, const backend_steps *s, backend_result *result, err *e);

    /* Sets all programs' parameters, buffers and optimizer state to their weighted mean, and
     * counters to the largest. Weights sum to 1; programs of weight 0 are not read. n programs of
     * this backend for one graph, after `load`. On one device with the bits of
     * common/modelstore/merge.h. Over several devices only with `across` (ERR_UNSUPPORTED without),
     * in an order of the library's own. ERR_INVALID: NaN or infinity; what the programs hold is
     * then undefined. NULL: the host averages. */
    int (*average)(backend_program *const *programs, const double *weight, int n, bool across,
                   err *e);

    const backend_peers *peers; /* NULL: no process can read another's models */
    const backend_comm *comm;   /* NULL: the backend has no communicators */

    /* Bytes that the program holds beside the state blocks. */
    size_t (*memory)(const backend_program *p);

    /* What prepare chose, as text for a job's record: one line for each node that has a choice
     * ("conv1 direct-avx512\n..."). Owned by the program. NULL: nothing to choose. */
    const char *(*choices)(const backend_program *p);
} backend;

/* The backend of that name; "auto" (or NULL) is the fastest that can run here. NULL with
 * ERR_NOT_FOUND, or with the error of backend.missing when this machine cannot run it. */
const backend *backend_find(const char *name, err *e);
/* Calls backend.warm of that backend, so that a model is compiled sooner. Errors: those of
 * backend_find and backend.warm. */
int backend_warm(const char *name, int device, err *e);
/* Calls backend.preload of that backend, where it has one and runs here. */
void backend_preload(const char *name, int device);
/* Call backend.autotune_load and backend.autotune_dump of that backend, where it has them and runs
 * here. */
void backend_autotune_load(const char *name, const char *lines);
char *backend_autotune_dump(const char *name);
/* The backends of this build, runnable or not; NULL past the end. */
const backend *backend_at(int index);

extern const backend backend_reference;
extern const backend backend_cpu; /* kernels/cpu */

#endif
