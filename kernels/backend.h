/* backend.h: the seam between a model's graph and what computes it.
 *
 * Implementations: reference (plain C loops in double precision: the truth the others are tested
 * against), cpu (fast) and cuda (NVIDIA's GPUs). A backend is given the whole graph once, at
 * `prepare`: there it chooses kernels, fusion, layouts and threads, and allocates all it will ever
 * need. After that no call allocates host or device memory, but for what a device's own driver
 * keeps of a kind of run when it is first asked for.
 *
 * State. The caller owns four host blocks laid out as the graph says (graph.h, graph_var.offset):
 * params, grads and optimizer state in the layout of params, buffers, and int64 counters. `load`
 * tells the program where they lie and that their contents are new; between `load` and `store` a
 * program may keep packed or device copies. A program that works in the blocks themselves leaves
 * `store` NULL.
 *
 * Threads. A program belongs to one thread at a time; programs share nothing. All calls return when
 * their work is done (a device backend synchronises before returning).
 *
 * Errors. ERR_UNSUPPORTED from prepare: this backend cannot run the graph or the precision, and the
 * message names the layer. ERR_NOMEM from prepare: host or device memory, of the device ERR_LIMIT
 * where it is over the cap; the message names the need. ERR_INTERNAL or ERR_UNAVAILABLE from the
 * running calls: the device failed. Backends for the host's CPU never fail after prepare. NaN is
 * not an error: it shows in the loss. */
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
    int device;           /* which GPU; 0 is the first. The host's backends have no use for it */
    size_t device_memory; /* cap on this process's device memory in bytes; 0: none */
    int programs;         /* so many like this one share that; 0: 1 */
} backend_config;

/* Host blocks of the model; 64-byte aligned. grads and state are NULL for inference. */
typedef struct backend_state {
    float *params, *grads; /* graph.floats[VAR_PARAM] */
    bool blank;            /* no weights yet: zeros, as prepare leaves a device's memory */
    bool state_zero;       /* no update yet: state holds zeros, which need not be read */
    float *buffers;        /* graph.floats[VAR_BUFFER] */
    float *state;      /* optim_slots() blocks of graph.floats[VAR_PARAM], one after the other */
    int64_t *counters; /* graph.floats[VAR_COUNTER]; batch norm's num_batches_tracked */
    /* Where parameters, buffers and state are read from, as they lie above (and so may be NULL),
     * for this call alone: the blocks of floats are then out of date until the next `store`. NULL:
     * from the blocks. For backends with a `store`. */
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
    const int32_t *labels;  /* cross-entropy; NULL where no loss is asked for */
    const float *targets;   /* MSE: (n, outputs); likewise */
    const uint64_t *sample; /* keys of dropout, one a sample; never NULL in training */
    uint32_t epoch;
} backend_batch;

/* Sums over the samples, so that shards and short batches add up. */
typedef struct backend_result {
    double loss_sum; /* the batch's mean loss is loss_sum / n */
    int64_t correct; /* samples whose largest logit (the first of equals) is the label; MSE: 0 */
    /* of the call's seconds: samples into the network's form; 0: not told (a GPU does it there) */
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
    const uint64_t *sample; /* (rows): their keys */
} backend_rows;

/* Where a share's rows come from: those from `first` on, as many as come at once, valid until the
 * next call. Blocks as long as a store may; its errors are its own. */
typedef struct backend_reader {
    int (*read)(void *from, uint32_t first, backend_rows *out, err *e);
    void *from;
} backend_reader;

/* Samples that stay on the device while epochs run over them, and what happens to them on their way
 * into a batch: function-runtime/model/transform.h's flip and crop, drawn by (seed, epoch, sample). */
enum { BACKEND_SET_NAME_BYTES = 80 };
typedef struct backend_share {
    uint32_t rows;
    uint32_t rows_each; /* that are read at once: from a multiple of it on, the last ones fewer */
    backend_type type;
    /* Names what rows there are (samples, labels, keys): programs that are given the same name may
     * share them. Shorter than BACKEND_SET_NAME_BYTES; NULL: they are nobody else's. */
    const char *set;
    backend_reader reader;
    const float *scale, *shift;
    bool flip;
    int crop;
    uint64_t seed; /* of the draws */
} backend_share;

/* Batches of `batch` rows in `order`, the last one short: ceil(rows / batch) updates, the first of
 * which has number `first_step`. lr: one an update. */
typedef struct backend_steps {
    const uint32_t *order; /* rows of the share */
    uint32_t rows;
    int batch;
    uint32_t epoch;
    const double *lr;
    int64_t first_step;
    /* Called while they run: so many more updates are done. NULL: nobody asks. */
    void (*done)(void *of, uint32_t updates);
    void *done_of;
} backend_steps;

/* Where a process keeps a model on a device so that other processes of that device can read it.
 * Plain bytes, which travel in messages; the model's owner may give it up at any time. */
enum { BACKEND_HANDLE_BYTES = 64, BACKEND_DEVICE_BYTES = 16 };
typedef struct backend_ipc_handle {
    unsigned char handle[BACKEND_HANDLE_BYTES], device[BACKEND_DEVICE_BYTES];
    uint64_t params, buffers, state, counters; /* where in the memory behind the handle */
} backend_ipc_handle;

/* One model of a mean. */
typedef struct backend_lent {
    backend_ipc_handle where;
    uint64_t sum; /* what backend_peers.sum said of it */
    double weight;
} backend_lent;

/* One graph made ready to run on one backend. The backend embeds this at the start of its own
 * struct. */
typedef struct backend_program {
    const struct backend *backend;
} backend_program;

/* Models of one graph in several processes on one device, averaged there. Each process lends its
 * model; one leads: it computes the mean, and lends that. Whoever reads makes sure that he read
 * what was lent, by a sum over it, so that nobody needs to know whether the others live:
 * ERR_CORRUPT when it was not. ERR_UNSUPPORTED, with the reason: the device does not share memory
 * between these processes, or the model's owner is gone. Nothing of others is open between two
 * calls: it would stay on the device when they have ended. */
typedef struct backend_peers {
    /* Where this program's model lies, as long as the program does. */
    int (*lend)(backend_program *p, backend_ipc_handle *out, err *e);
    /* Whether it can open the models that it will read; and takes memory for a mean. ERR_NOMEM: it
     * does not fit; ERR_LIMIT: it is over the cap. */
    int (*reduce_root)(backend_program *p, const backend_ipc_handle *of, int n,
                       backend_ipc_handle *mean, err *e);
    /* The sum over parameters, buffers, optimizer state and counters as they are now. */
    int (*sum)(backend_program *p, uint64_t *out, err *e);
    /* The leader: the weighted mean (weights sum to 1; those of 0 are not read), in that order,
     * with the bits of common/modelstore/merge.h, and of counters the largest; no model changes, its own
     * neither. `sum`: of the mean. ERR_CORRUPT (also where it cannot be opened any more),
     * ERR_UNSUPPORTED (it is on another device), ERR_INVALID (NaN or infinity): `bad` is whose
     * model it was, or -1. */
    int (*average)(backend_program *p, const backend_lent *of, int n, uint64_t *sum, int *bad,
                   err *e);
    /* The program's model becomes what lies there, if that has this sum; otherwise zeros. */
    int (*adopt)(backend_program *p, const backend_ipc_handle *from, uint64_t sum, err *e);
} backend_peers;

/* Asked again and again while other processes are waited for; it pauses. 0: go on; -1 with an error
 * ends the wait. */
typedef struct backend_patience {
    int (*wait)(void *user, err *e);
    void *user;
} backend_patience;

/* Models of one graph in several processes, each on a device of its own: ranks of a communicator
 * (NCCL), which sums in an order of its own. Nobody waits for a rank that is gone for longer than
 * its patience has: an error of `join` or `mean` ends the communicator, and no model has
 * changed. */
enum { BACKEND_COMM_ID_BYTES = 128 };
typedef struct backend_comm {
    /* The device, of which a communicator takes one rank. ERR_UNSUPPORTED: there can be none here,
     * and why. */
    int (*device)(backend_program *p, unsigned char device[BACKEND_DEVICE_BYTES], err *e);
    /* What names a new communicator; rank 0 makes it. ERR_UNAVAILABLE. */
    int (*id)(backend_program *p, unsigned char id[BACKEND_COMM_ID_BYTES], err *e);
    /* Leaves the one before; waits for all ranks. ERR_UNAVAILABLE; ERR_UNSUPPORTED (two ranks on
     * one device); ERR_NOMEM (the mean does not fit), ERR_LIMIT (it is over the cap); or what
     * the patience said. */
    int (*join)(backend_program *p, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank,
                int ranks, const backend_patience *patience, err *e);
    /* All ranks: the mean, each one's model times its weight (they sum to 1; with 0 it is not
     * read), and of counters the largest, into memory of the program's own. `sum`: of the mean, as
     * backend_peers.sum. ERR_INVALID: NaN or infinity, with `own` in this program's model, and then
     * it has left before the others knew. */
    int (*mean)(backend_program *p, double weight, const backend_patience *patience, uint64_t *sum,
                bool *own, err *e);
    /* The model becomes the last mean, if that has this sum; otherwise zeros, with ERR_CORRUPT. */
    int (*take)(backend_program *p, uint64_t sum, err *e);
    void (*leave)(backend_program *p); /* waits for nobody */
} backend_comm;

typedef struct backend {
    const char *name; /* "reference", "cpu", "cuda" */

    /* 0 when it can run on this machine. ERR_UNSUPPORTED: why it never can ("no AVX2"); of a GPU
     * that does not answer now ERR_UNAVAILABLE or ERR_NOMEM: another process may find it in order.
     * Does not block. */
    int (*missing)(err *e);

    /* Does once a process what takes long before the first prepare: a device's context, its
     * libraries' handles. ERR_UNSUPPORTED, ERR_UNAVAILABLE, ERR_NOMEM. NULL: there is no such
     * thing. */
    int (*warm)(int device, err *e);

    /* Runs once what is known (below) to be wanted of a model's layers on that device: their kernels
     * are loaded, and a model that has them is ready sooner. For a process that waits for its job:
     * takes seconds at the most. What fails here is told where it is wanted. NULL: there is no such
     * thing. */
    void (*preload)(int device);

    /* What prepare measures, as lines that other processes of such machines can be told: `known`
     * takes them, `learned` gives those that this process has measured (the caller's to free; NULL:
     * none). Lines of another form are passed over. Both NULL: nothing is measured. */
    void (*autotune_load)(const char *lines);
    char *(*autotune_dump)(void);

    /* Compiles the graph, which must outlive the program. May take long (it may measure kernels).
     * ERR_UNSUPPORTED, ERR_NOMEM, ERR_LIMIT; ERR_UNAVAILABLE: a thread could not be started. */
    int (*prepare)(const graph *g, const backend_config *c, backend_program **out, err *e);
    void (*release)(backend_program *p);

    /* The host blocks lie at *s (copied) and hold what counts now. First call after prepare, and
     * again whenever the caller has written to any of the blocks (after a `store`), or moved them.
     */
    int (*load)(backend_program *p, const backend_state *s, err *e);
    /* Brings the host blocks but grads up to date. NULL: all of them always are. */
    int (*store)(backend_program *p, err *e);
    /* Grads alone, the backend's to the host's block, or, `changed`, what lies there to the
     * backend: it is what the next update takes. Together with `store` or not at all. */
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

    /* Takes memory for a share and reads nothing yet; of `s` the reader alone is used later. It
     * replaces the one before; NULL leaves none. ERR_NOMEM: it does not fit, or others would miss
     * what it takes, and there is none now. All three NULL: there is no device to keep it on. */
    int (*share)(backend_program *p, const backend_share *s, err *e);
    /* Reads, in this order, those rows that are not on the device yet, with those that come at once
     * with them. The reader's errors; what has come stays. */
    int (*bring)(backend_program *p, const uint32_t *order, uint32_t rows, err *e);
    /* Steps over rows of the share, one after the other without the host; the sums of all of them.
     * ERR_INVALID: a row that nobody brought. */
    int (*steps)(backend_program *p, const backend_steps *s, backend_result *result, err *e);

    /* All programs' parameters, buffers and optimizer state become the weighted mean of them
     * (weights sum to 1; those of 0 are not read), counters the largest. n programs of this backend
     * for one graph, `load`ed. On one device with the bits of common/modelstore/merge.h; over several only
     * with `across`, in an order of the library's own: ERR_UNSUPPORTED otherwise. ERR_INVALID: NaN
     * or infinity; what the programs hold is then undefined. NULL: the host does it. */
    int (*average)(backend_program *const *programs, const double *weight, int n, bool across,
                   err *e);

    const backend_peers *peers; /* NULL: no process can read another's models */
    const backend_comm *comm;   /* NULL: there are no communicators */

    /* Bytes the program holds beside the state blocks. */
    size_t (*memory)(const backend_program *p);

    /* What was chosen, as text a job's record can keep: one line a node that has a choice
     * ("conv1 direct-avx512\n..."). Owned by the program. NULL: nothing was chosen. */
    const char *(*choices)(const backend_program *p);
} backend;

/* The backend of that name; "auto" (or NULL) is the fastest that can run here. NULL with
 * ERR_NOT_FOUND, or as backend.missing when this machine cannot run it. */
const backend *backend_find(const char *name, err *e);
/* Makes that backend ready on that device, so that a model is compiled sooner. Errors: both's. */
int backend_warm(const char *name, int device, err *e);
/* backend.rehearse of that backend, where there is one and it runs here. */
void backend_preload(const char *name, int device);
/* Tells that backend what was measured before, and asks it what it measured, where it is one of
 * those that do and runs here. */
void backend_autotune_load(const char *name, const char *lines);
char *backend_autotune_dump(const char *name);
/* All that were built, runnable or not; NULL past the end. */
const backend *backend_at(int index);

extern const backend backend_reference;
extern const backend backend_cpu; /* kernels/cpu */

#endif
