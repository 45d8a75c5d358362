/* cuda_program.h: what the files of the CUDA backend share: one graph made ready for the device.
 *
 * The graph's nodes become layers: a convolution, a linear layer, a batch norm or a sum takes the
 * ReLU behind it along, a batch norm also the sum before that ReLU (a residual block's end), each
 * of them a flatten that moves nothing. Where that was measured to be faster (cuda_fuse.c), a small
 * convolution takes the max pooling behind it and its ReLU along, and the linear layers before the
 * loss and the loss are run as one, the head. Every layer makes one tensor, NHWC. Parameters,
 * gradients and optimizer state lie on the device in the layout of the host's block, offset by
 * offset, but weights are (K, R, S, C) inside: the optimizer and the averaging see floats in a row
 * and do not care. */
#ifndef KUBEML_CUDA_PROGRAM_H
#define KUBEML_CUDA_PROGRAM_H

#include "cuda_samples.h"
#include "driver.h"

enum { CHOICE_OWN = -1, FUSINGS_MAX = 32, KEY_BYTES = 384, WINNER_BYTES = 32 };
#define WINNER_OWN "own" /* what no driver offers */

/* What can be done in two ways: the convolution `layer` fused with its pooling, the head that
 * begins there fused, or all gradients of weights beside what flows on to the layers before
 * (`layer` is the first one). */
typedef enum fusing_kind { FUSING_POOLING, FUSING_HEAD, FUSING_BESIDE } fusing_kind;

typedef struct fusing {
    int layer;
    fusing_kind kind;
} fusing;

/* As a key and the list of choices call it. */
static inline const char *fusing_name(fusing_kind kind)
{
    static const char *const names[] = {"pooling", "head", "beside"};
    return names[kind];
}

typedef struct layer {
    const graph_node *node;
    int out;           /* the node whose tensor this makes: the last one fused */
    int also;          /* batch norm: the node that is added, or -1 */
    bool relu;
    conv_shape conv;   /* convolutions and linear layers */
    bool pooled;       /* a convolution that takes the max pooling behind it along: fused.cu */
    pool_shape pool;   /* that pooling */
    int choice[CONV_PASSES]; /* CHOICE_OWN or the driver's offer */
    size_t workspace[CONV_PASSES];
} layer;

/* A node's value and gradient on the device; NULL where there is none. */
typedef struct tensor {
    void *y, *dy;
    bool needs;      /* a parameter lies at it or before it */
    int made, last;  /* layers: the one that makes it, the last that reads it */
    uint16_t *winner;
    float *saved;
} tensor;

/* A weight whose device order differs: (outer, rows, columns) on the host is (outer, columns,
 * rows). */
typedef struct turned {
    size_t offset, count;
    int outer, rows, columns;
} turned;

/* The batch as it travels: offsets into one pinned block and its twin on the device. */
typedef struct staging {
    size_t args, scale_shift, labels, keys, targets, x; /* x is last: only what is used is copied */
    size_t bytes;
    /* The way back: in the host's block alone, behind the rest. Kernels write to it, and no copy
     * follows them. */
    size_t result;
    char *host, *device;
} staging;

/* A share on the device: samples as the host has them, and a block of the program's own with what
 * differs between the updates, for some of them at a time.
 *
 * Updates take turns: the first, third ... of a list read their numbers from its first place, the
 * others from its second, each of them where the one before it has put them. So every second
 * update's graph is another. */
typedef struct share {
    char *memory;
    size_t bytes;
    cuda_samples *samples;
    backend_reader reader;
    backend_type type;
    uint32_t *order;
    step_args *steps; /* one an update */
    step_result *total;
    float *scale_shift; /* 2 * C */
    augmentation augment;
    device_graph *one[2]; /* by whose turn it is */
    device_graph *some;   /* `together` updates, from the first turn to the second */
    uint32_t together;
} share;

typedef enum run_kind { RUN_FORWARD, RUN_GRADIENTS, RUN_STEP, RUN_UPDATE, RUN_KINDS } run_kind;

typedef struct program {
    backend_program base;
    const driver *d;
    device *dev;
    const graph *g;
    backend_config c;
    element t;
    backend_state s; /* the caller's blocks */
    bool fresh;      /* the host's blocks are up to date */

    layer *layers;
    int layer_count, convolutions;
    /* the layer that the head begins with; layer_count: there is none */
    int head;
    /* gradients of weights by a library are enqueued on a branch of the graph, which is joined
     * before the backward pass of the layer after the next */
    bool beside;
    fusing fusings[FUSINGS_MAX];  /* in the order of their layers */
    int fusing_count;
    uint32_t apart;               /* bit i: fusings[i] is not done */
    tensor *tensors; /* by node */
    turned *turned;
    int turned_count;

    char *memory; /* all of it but the workspace: one block of the device's */
    size_t memory_bytes;
    float *params, *grads, *state, *buffers;
    int64_t *counters;
    void *weights16; /* bf16 copy of the parameters */
    char *arena;     /* activations; also the way in and out of parameters */
    float *sums;     /* scratch of our own products and sums */
    double *norm_sums;
    step_result *per_row, *result;
    float *logits;
    void *workspace; /* the libraries' */
    size_t workspace_bytes;
    size_t workspace_aside; /* where that of the gradients of weights begins; 0: they share it */
    /* what an offer's workspace may be here: a power of two, WORKSPACE_MAX where there is room */
    size_t workspace_limit;
    staging in;

    device_graph *graphs[RUN_KINDS];
    share share;
    struct peers *peers; /* cuda_peer.c's; NULL: nobody else reads this model */
    struct { /* cuda_models.c's: of models of several processes */
        char *memory; /* NULL: it was never wanted */
        size_t bytes;
        backend_ipc_handle place; /* where in it */
    } mean;
    device_comm *comm; /* cuda_comm.c's; NULL: not connected */
    char *choices;
} program;

/* cuda_plan.c. Both may be called once; cuda_release frees. */
int cuda_plan_layers(program *p, err *e);
int cuda_plan_memory(program *p, err *e);
/* Whether a flatten's values keep their order (the layer behind it has turned its weights). */
bool cuda_flatten_copies(const program *p, const graph_node *flatten);

/* cuda_algo.c: measures what the libraries offer against our own kernels, or knows it from the
 * cache; takes the workspace; writes `choices`. */
int cuda_choose(program *p, err *e);
/* Before something is timed: an idle GPU's clocks are low, and what comes first would seem slow.
 * May clear all of the program's memory. */
void cuda_wake(program *p);

/* cuda_autotune.c */
void cuda_algorithms_read(void); /* the cache's file, once a process */
/* The cache's entries, which cuda_fuse.c keeps there too; what was learned is written by `keep`. */
bool cuda_autotune_find(const char *key, char winner[WINNER_BYTES]);
/* The one that came so many before the last; false: there are not so many. */
bool cuda_algorithm_at(int at, char key[KEY_BYTES], char winner[WINNER_BYTES]);
void cuda_algorithm_learn(const char *key, const char *winner);
void cuda_algorithms_keep(void);
/* What a key begins with: machine type, libraries, and which kernels of ours there are. */
void cuda_begin_key(const device_facts *f, char key[KEY_BYTES]);
/* A shape in the words of a key. */
int cuda_shape_text(const conv_shape *s, char *text, size_t room);
extern const char *const cuda_pass_names[CONV_PASSES];
extern const char *const cuda_precision_names[]; /* by backend_precision */
/* The key of a convolution's or linear layer's pass, without a limit. */
void cuda_task_key(const device_facts *f, const conv_task *t, char key[KEY_BYTES]);
/* Whose key that is, if it is one of those, of this device and build. */
bool cuda_task_of_key(const device_facts *f, const char *key, conv_task *out);
/* backend.known and backend.learned. */
void cuda_autotune_load(const char *lines);
char *cuda_autotune_dump(void);

/* cuda_preload.c: backend.rehearse. */
void cuda_preload(int ordinal);

/* cuda_fuse.c: which of the fusings that this graph allows are not to be done, by what was measured
 * once per machine type and shape. */
int cuda_fuse(const graph *g, const backend_config *c, uint32_t *apart, err *e);

/* cuda_backend.c: a program with its layers, then its memory and choices; what a function enqueues,
 * as a graph (`out` stays as it is where that fails); a run's graph, captured the first time. */
typedef int cuda_work(program *p, const void *of, err *e);
int cuda_begin(const graph *g, const backend_config *c, uint32_t apart, program **out, err *e);
int cuda_finish(program *p, err *e);
int cuda_capture(program *p, cuda_work *enqueue, const void *of, device_graph **out, err *e);
int cuda_graph(program *p, run_kind kind, err *e);
void cuda_release(backend_program *base);

/* cuda_share.c: backend.share, backend.bring and backend.steps. */
int cuda_share_take(backend_program *base, const backend_share *s, err *e);
int cuda_share_bring(backend_program *base, const uint32_t *order, uint32_t rows, err *e);
int cuda_share_steps(backend_program *base, const backend_steps *s, backend_result *result, err *e);
void cuda_share_drop(program *p);

/* cuda_average.c: backend.average. */
int cuda_average(backend_program *const *programs, const double *weight, int n, bool across,
                 err *e);

/* cuda_peer.c: backend.peers. */
extern const backend_peers cuda_peers;
void cuda_peers_drop(program *p);

/* cuda_models.c: gives the mean's memory back. */
void cuda_mean_drop(program *p);

/* cuda_comm.c: backend.comm. */
extern const backend_comm cuda_comm;
void cuda_comm_drop(program *p);

/* cuda_backend.c: the optimizer's numbers of one update, as kernels/optim.c computes them. */
void cuda_set_update(const program *p, step_args *a, backend_update u);

/* cuda_backend.c: waits for all that was enqueued, and reads what it left in cuda_result. */
int cuda_read_result(program *p, backend_result *result, err *e);

/* Where the host finds a result: memory of its own that the device can write to. */
static inline step_result *cuda_result(const program *p)
{
    return (step_result *)(void *)(p->in.host + p->in.result);
}

/* cuda_run.c: enqueues one run's work. A batch that was given leaves its result in cuda_result, a
 * step whose batch is gathered in p->result, on the device. */
int cuda_enqueue(program *p, run_kind kind, err *e);
int cuda_enqueue_gathered(program *p, const gathering *from, err *e);

/* One pass of one layer as it was chosen, or, while choosing, as `choice` says. */
int cuda_conv_pass(program *p, const layer *l, conv_pass pass, int choice, bool add, err *e);
conv_task cuda_conv_task(const program *p, const layer *l, conv_pass pass, bool add);

#endif
