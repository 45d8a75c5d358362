/* cuda_program.h: what the files of the CUDA backend share: one graph made ready for the device.
 *
 * The graph's nodes become layers. A convolution, a linear layer, a batch norm or a sum takes the
 * ReLU behind it along. A batch norm also takes the sum before that ReLU (the end of a residual
 * block). Each of them takes a flatten that moves nothing. Where it was measured to be faster
 * (cuda_fuse.c), a small convolution takes its ReLU and the max pooling behind it along, and the
 * linear layers before the loss run with the loss as one, the head. Every layer makes one tensor,
 * NHWC.
 *
 * Parameters, gradients and optimizer state lie on the device in the layout of the host's block,
 * offset by offset. Weights are (K, R, S, C) inside: the optimizer and the averaging see floats in
 * a row, and their order does not matter. */
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

/* The name in a key and in the list of choices. */
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
    /* The result: in the host's block alone, behind the rest. Kernels write to it, and no copy
     * follows them. */
    size_t result;
    char *host, *device;
} staging;

/* A share on the device: samples as the host has them, and a block of the program's own with the
 * numbers that differ between updates, for some updates at a time.
 *
 * Updates take turns at two places. The first, third ... update of a list reads its numbers from
 * the first place, the others from the second. The update before has put the numbers there. Every
 * second update therefore has another graph. */
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
    size_t workspace_aside; /* where the workspace of weights' gradients begins; 0: shared */
    /* the largest workspace of an offer here: a power of two, WORKSPACE_MAX where there is room */
    size_t workspace_limit;
    staging in;

    device_graph *graphs[RUN_KINDS];
    share share;
    struct peers *peers; /* cuda_peer.c's; NULL: no other process reads this model */
    struct { /* cuda_models.c's: of models of several processes */
        char *memory; /* NULL: not wanted yet */
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

/* cuda_algo.c: takes each choice from the cache, or times what the libraries offer against our own
 * kernels; takes the workspace; writes `choices`. */
int cuda_choose(program *p, err *e);
/* Called before something is timed: an idle GPU's clocks are low, and what runs first would seem
 * slow. May clear all of the program's memory. */
void cuda_wake(program *p);

/* cuda_autotune.c */
void cuda_algorithms_read(void); /* the cache's file, once a process */
/* The cache's entries; cuda_fuse.c has its own there too. cuda_algorithms_keep writes the file. */
bool cuda_autotune_find(const char *key, char winner[WINNER_BYTES]);
/* The entry `at` places before the newest; false: there are fewer. */
bool cuda_algorithm_at(int at, char key[KEY_BYTES], char winner[WINNER_BYTES]);
void cuda_algorithm_learn(const char *key, const char *winner);
void cuda_algorithms_keep(void);
/* The beginning of a key: machine type, libraries, and the version of our own kernels. */
void cuda_begin_key(const device_facts *f, char key[KEY_BYTES]);
/* A shape as a key writes it. */
int cuda_shape_text(const conv_shape *s, char *text, size_t room);
extern const char *const cuda_pass_names[CONV_PASSES];
extern const char *const cuda_precision_names[]; /* by backend_precision */
/* The key of a convolution's or linear layer's pass, without a limit. */
void cuda_task_key(const device_facts *f, const conv_task *t, char key[KEY_BYTES]);
/* The task whose key that is; false: it is none of this device and build. */
bool cuda_task_of_key(const device_facts *f, const char *key, conv_task *out);
/* backend.autotune_load and backend.autotune_dump. */
void cuda_autotune_load(const char *lines);
char *cuda_autotune_dump(void);

/* cuda_preload.c: backend.preload. */
void cuda_preload(int ordinal);

/* cuda_fuse.c: sets a bit of *apart for each fusing of this graph that is not to be done, as
 * measured once for each machine type and shape. */
int cuda_fuse(const graph *g, const backend_config *c, uint32_t *apart, err *e);

/* cuda_backend.c. cuda_begin makes a program with its layers, cuda_finish its memory and choices.
 * cuda_capture makes a graph of what `enqueue` enqueues; `out` stays as it is on failure.
 * cuda_graph makes a run's graph, the first time. */
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

/* cuda_backend.c: waits for all enqueued work, and reads what it left in cuda_result. */
int cuda_read_result(program *p, backend_result *result, err *e);

/* Where the host finds a result: memory of its own that the device can write to. */
static inline step_result *cuda_result(const program *p)
{
    return (step_result *)(void *)(p->in.host + p->in.result);
}

/* cuda_run.c: enqueues one run's work. A step with a given batch leaves its result in cuda_result;
 * a step whose batch is gathered leaves it in p->result, on the device. */
int cuda_enqueue(program *p, run_kind kind, err *e);
int cuda_enqueue_gathered(program *p, const gathering *from, err *e);

/* One pass of one layer, by the way `choice`: the layer's own, or another while ways are timed. */
int cuda_conv_pass(program *p, const layer *l, conv_pass pass, int choice, bool add, err *e);
conv_task cuda_conv_task(const program *p, const layer *l, conv_pass pass, bool add);

#endif
