/* ops.h: the table of ops: what every part of the engine has to know of an op, one row each.
 *
 * A new op is a line in graph_op (graph.h), a row in ref_ops.c, and the two functions of that row in
 * kernels/reference, beside its builder in layers.c and its shape rule in shapes.c. Every backend
 * that can run the reference's functions then has the op: the CPU backend calls them for all ops
 * that its own table (cpu/cpu_ops.c) lacks. The CUDA backend refuses a layer whose op its table
 * (cuda/cuda_ops.c) lacks. docs/contributing/adding-an-op.md lists the steps and the tests. */
#ifndef KUBEML_OPS_H
#define KUBEML_OPS_H

#include "graph.h"

struct backend_batch;

/* One node for N samples, in double precision. Arrays are row-major NCHW without gaps. */
typedef struct op_call {
    const graph_node *n;
    int N;
    bool training;
    const shape *in;        /* of one sample of each input */
    const double *const *x; /* each input (N, in[i]) */
    double *y;              /* forward: the result (N, n->shape), which holds anything before */
    const double *dy;       /* backward: the result's gradient */
    /* Backward: each input's gradient, NULL where nobody needs it, and the parameters'. The op adds
     * to all of them. An op with one input and no parameters is called only if dx[0] is needed. */
    double *const *dx;
    const double *w, *b; /* copies of the parameters; NULL where the node has none */
    double *dw, *db;
    void *kept; /* op_row.keeps: written by forward if `training`, read by backward */
    /* The model's own; for ops that look at the whole batch. */
    float *running_mean, *running_var;
    int64_t *batches;
    const struct backend_batch *batch; /* of these N samples */
    uint64_t seed;                     /* of dropout */
} op_call;

/* Neither allocates, blocks nor fails. */
typedef void op_run(const op_call *o);

/* Checks a node's attributes and inputs, and completes its shape, of which the builder has set what
 * the caller asked for. False when the graph has failed; `what` names the layer in the message. */
typedef bool op_shape(graph *g, const char *what, graph_node *n, const int *x, int count);

typedef struct op_row {
    const char *name;   /* in messages: "conv2d" */
    const char *prefix; /* of automatic names, "conv" of "conv1"; NULL: the name */
    bool named;         /* messages name the layer before it exists: "conv2d 'conv1'" */
    int least, most;    /* inputs */
    op_shape *shape;
    /* Backward reads the inputs' values. It never reads the result's. */
    bool reads_inputs;
    bool whole_batch; /* a sample's result depends on the other samples of the batch */
    /* Bytes that forward keeps for backward, of N samples; at a multiple of 8 bytes. NULL: none. */
    size_t (*keeps)(const graph_node *n, int N);
    op_run *forward, *backward; /* kernels/reference */
} op_row;

extern const op_row op_rows[OP_COUNT];

#endif
