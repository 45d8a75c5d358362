/* graph.h: the static graph of a model: what is computed, from which parameters, in which order.
 *
 * A builder calls graph_conv2d, graph_relu, ... on a graph; each call appends one node and returns
 * its id. A node's inputs always have smaller ids, so that the node list is a topological order.
 * Shapes are those of one sample, (C, H, W) or (features); the batch size comes at compile time.
 * Logical layout is NCHW, row-major, fp32; a backend may keep any other layout inside.
 *
 * Errors: the first mistake (a kernel larger than its input, adding different shapes) is kept in
 * the graph with the layer's name and the reason; every later call returns GRAPH_FAILED and does
 * nothing, so that a builder needs no checks of its own. graph_finish reports it. Memory running
 * out is kept in the same way. Nothing here computes; the graph is read-only once finished, and
 * backends may read all of it (the structs are open for them; only graph.c writes).
 *
 * Semantics and parameter shapes are PyTorch's (torch.nn, version 2); formulas stand at each op. */
#ifndef KUBEML_GRAPH_H
#define KUBEML_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    GRAPH_FAILED = -1,
    GRAPH_NAME_BYTES = 96,
    GRAPH_NODES_MAX = 4096,
    GRAPH_INPUTS_MAX = 64,   /* of one concat */
    GRAPH_DIM_MAX = 1 << 20, /* any single extent */
    GRAPH_DROPOUTS_MAX = 256,
    GRAPH_DROPOUT_MAX = 1 << 26, /* elements of a sample that one dropout sees */
    GRAPH_ALIGN_FLOATS = 16,     /* each parameter starts on a 64-byte boundary of its block */
};
#define GRAPH_FLOATS_MAX ((size_t)1 << 31) /* of one block, and of one activation per sample */

/* One sample's shape: rank 3 is (C, H, W); rank 1 is (features), with h = w = 1. */
typedef struct shape {
    int rank, c, h, w;
} shape;

static inline size_t shape_count(shape s)
{
    return (size_t)s.c * (size_t)s.h * (size_t)s.w;
}
static inline bool shape_equal(shape a, shape b)
{
    return a.rank == b.rank && a.c == b.c && a.h == b.h && a.w == b.w;
}

/* What else holds for an op is in its row of the table in ref_ops.c.
 * y(N,K,P,Q), x(N,C,H,W); i over input channels of the group, (r, s) over the kernel. */
typedef enum graph_op {
    OP_INPUT,  /* the batch: x * scale[c] + shift[c] */
    OP_CONV2D, /* y[k,p,q] = b[k] + sum w[k,i,r,s] x[i, p*stride-pad+r*dil, q*stride-pad+s*dil] */
    OP_LINEAR, /* y[o] = b[o] + sum w[o,i] x[i] */
    OP_BATCH_NORM, /* y = (x - mean) / sqrt(var + eps) * weight + bias, per channel; see
                      graph_node.bn */
    OP_ACTIVATION, /* y = f(x); graph_node.act says which */
    OP_MAX_POOL,   /* padding counts as -inf; the first maximum wins (row-major) */
    OP_AVG_POOL,   /* divides by the window's size with or without padding (pool.count_pad) */
    OP_ADAPTIVE_AVG_POOL, /* window of p: [floor(p*H/P), ceil((p+1)*H/P)); global pooling is 1x1 */
    OP_ADD,               /* y = a + b; b may be (C,1,1) */
    OP_MUL,               /* y = a * b; b may be (C,1,1): squeeze and excite */
    OP_CONCAT,            /* along channels */
    OP_FLATTEN,           /* (C,H,W) -> (C*H*W), in NCHW order */
    OP_DROPOUT, /* training: y = keep ? x / (1-p) : 0, by graph_dropout_draw; otherwise y = x */
    OP_PAD_CHANNELS, /* zero channels before and after: He et al. 2015's shortcut A */
    OP_GROUP_NORM,   /* y = (x - mean) / sqrt(var + eps) * weight + bias, weight and bias a channel;
                        mean and biased variance of a sample's channels of one group (Wu and He
                        2018); graph_node.gn */
    OP_ADAPTIVE_MAX_POOL, /* the windows of OP_ADAPTIVE_AVG_POOL; the first maximum wins */
    OP_COUNT
} graph_op;

typedef enum graph_act {
    ACT_RELU,        /* max(x, 0); the gradient at 0 is 0 */
    ACT_RELU6,       /* min(max(x, 0), 6); gradient 0 at 0 and 6 */
    ACT_LEAKY_RELU,  /* x > 0 ? x : slope * x */
    ACT_HARDSIGMOID, /* relu6(x + 3) / 6 */
    ACT_HARDSWISH,   /* x * relu6(x + 3) / 6 */
    ACT_SIGMOID,     /* 1 / (1 + exp(-x)) */
    ACT_TANH,
    ACT_GELU, /* x * (1 + erf(x / sqrt 2)) / 2 */
    ACT_SILU, /* x * sigmoid(x) */
    ACT_COUNT
} graph_act;

/* How a parameter or buffer begins. Uniform and normal draws: RNG_INIT, keyed by the variable's
 * index. */
typedef enum graph_init {
    INIT_CONSTANT, /* a */
    INIT_UNIFORM,  /* [-a, a) */
    INIT_NORMAL,   /* mean 0, deviation a */
} graph_init;

/* What a variable is: of float kinds one block each; counters are int64. */
typedef enum graph_kind {
    VAR_PARAM,
    VAR_BUFFER,
    VAR_COUNTER,
    VAR_STATE,
    VAR_KIND_COUNT
} graph_kind;

/* One named array of the model. `offset` counts floats (counters: int64) from the start of its
 * kind's block; gaps between variables are zero and stay zero. */
typedef struct graph_var {
    char name[GRAPH_NAME_BYTES]; /* "layer1.0.conv1.weight" */
    graph_kind kind;
    int rank;    /* 0 for counters */
    int dims[4]; /* PyTorch's: conv (K, C/groups, R, S), linear (out, in), bn (C) */
    size_t count, offset;
    graph_init init;
    double init_a;
} graph_var;

typedef struct graph_node {
    graph_op op;
    char name[GRAPH_NAME_BYTES]; /* "conv1"; given, or kind and number */
    int in_count;
    int *in;     /* ids of the inputs, all smaller than this node's */
    int uses;    /* how many nodes read this one; the output counts one more */
    shape shape; /* of the result */
    /* Indexes into graph.vars, -1 where there is none. */
    int weight, bias, running_mean, running_var, batches;
    union {
        struct {
            int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups;
        } conv;
        struct {
            int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
            bool ceil_mode, count_pad;
        } pool; /* max and average pooling; adaptive pooling needs only the shapes */
        struct {
            /* Training: mean and biased variance over N,H,W normalise;
             * running = (1 - momentum) * running + momentum * (mean | unbiased variance).
             * A batch with one value per channel leaves the running statistics alone.
             * Otherwise: the running statistics normalise. */
            double eps, momentum;
        } bn;
        struct {
            int groups;
            double eps;
        } gn;
        struct {
            graph_act kind;
            double slope; /* leaky_relu */
        } act;
        struct {
            double p;
            uint32_t layer; /* number of this dropout in the graph, from 0 */
        } dropout;
        struct {
            int before, after;
        } pad;
    };
} graph_node;

typedef struct graph {
    graph_node *nodes;
    int node_count;
    int output;      /* id of the logits; rank 1 */
    graph_var *vars; /* in the order of creation, which is PyTorch's registration order */
    int var_count;
    size_t
        floats[VAR_KIND_COUNT]; /* size of each kind's block, gaps included (int64s for counters) */
    size_t param_count;         /* trainable numbers, gaps not counted: what torchvision reports */
    err error;                  /* the first mistake */
    int made[OP_COUNT];         /* for automatic names */
    int node_room, var_room;
} graph;

/* An empty graph whose node 0 is the input of that shape. NULL without memory. Free with
 * graph_free. */
graph *graph_new(shape input);
void graph_free(graph *g);

/* Keeps a mistake found by a builder (the first one stays). Returns GRAPH_FAILED. */
int graph_fail(graph *g, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Declares node `out` the logits and checks the whole: rank 1, `outputs` features (0: any), every
 * node used, names unique. -1 with the graph's first mistake. */
int graph_finish(graph *g, int out, int outputs, err *e);

/* How a convolution's weights begin. Biases are as the default's unless zero_bias. */
typedef enum graph_weights {
    WEIGHTS_DEFAULT,    /* kaiming_uniform(a = sqrt 5): U(+-1/sqrt(fan_in)), biases the same */
    WEIGHTS_HE_FAN_OUT, /* kaiming_normal(fan_out): N(0, sqrt(2 / (K*R*S))) */
    WEIGHTS_HE_UNIFORM, /* kaiming_uniform(fan_in): U(+-sqrt(6 / fan_in)) */
    WEIGHTS_NORMAL,     /* N(0, deviation) */
} graph_weights;

/* Options: 0 and NULL mean the default. `name` NULL: "conv1", "bn1", "fc1", ... in order.
 * A pair (kernel_h, kernel_w) overrides the square number beside it where it is not 0. */
typedef struct conv2d_options {
    const char *name;
    int filters;                       /* output channels; required */
    int kernel, kernel_h, kernel_w;    /* required */
    int stride, stride_h, stride_w;    /* 1 */
    int padding, padding_h, padding_w; /* 0 */
    int dilation;                      /* 1 */
    int groups;                        /* 1; C = filters = groups is depthwise */
    bool no_bias;
    graph_weights weights;
    double deviation; /* of WEIGHTS_NORMAL */
    bool zero_bias;   /* biases begin at 0 */
} conv2d_options;

typedef struct linear_options {
    const char *name;
    bool no_bias;
    double deviation; /* > 0: weights N(0, deviation) instead of the default */
    bool zero_bias;
} linear_options;

typedef struct pool_options {
    const char *name;
    int kernel, kernel_h, kernel_w;    /* required */
    int stride, stride_h, stride_w;    /* the kernel */
    int padding, padding_h, padding_w; /* 0; at most half the kernel */
    bool ceil_mode;                    /* round the output's extent up, as torch.nn.MaxPool2d */
    bool exclude_pad;                  /* average: divide by the cells inside the image alone */
} pool_options;

typedef struct batch_norm_options {
    const char *name;
    double eps;      /* 1e-5 */
    double momentum; /* 0.1 */
} batch_norm_options;

typedef struct group_norm_options {
    const char *name;
    double eps; /* 1e-5 */
} group_norm_options;

int graph_conv2d(graph *g, int x, conv2d_options o);
int graph_linear(graph *g, int x, int features, linear_options o);
int graph_batch_norm(graph *g, int x, batch_norm_options o);
int graph_group_norm(graph *g, int x, int groups, group_norm_options o);
int graph_activation(graph *g, int x, graph_act kind, double slope);
static inline int graph_relu(graph *g, int x)
{
    return graph_activation(g, x, ACT_RELU, 0);
}
int graph_max_pool2d(graph *g, int x, pool_options o);
int graph_avg_pool2d(graph *g, int x, pool_options o);
int graph_adaptive_avg_pool2d(graph *g, int x, int out_h, int out_w);
int graph_adaptive_max_pool2d(graph *g, int x, int out_h, int out_w);
int graph_add(graph *g, int a, int b); /* b: a's shape, or (C,1,1) */
int graph_mul(graph *g, int a, int b);
int graph_concat(graph *g, const int *x, int count); /* 1 to GRAPH_INPUTS_MAX, equal H and W */
int graph_flatten(graph *g, int x);
int graph_dropout(graph *g, int x, double p); /* 0 <= p < 1 */
int graph_pad_channels(graph *g, int x, int before, int after);

/* Shape of node x; all zeros when the graph has failed. */
shape graph_shape(const graph *g, int x);
/* The one node that reads node x, or -1: none, several, or x is the output. */
int graph_only_reader(const graph *g, int x);
/* For backends. Is node x a ReLU? Of -1, which there is none of, no. */
bool graph_is_relu(const graph *g, int x);
/* needs[i]: a parameter lies at node i or before it, so that its gradient is wanted. */
void graph_mark_gradients(const graph *g, bool *needs);
/* The variable's index by its full name, -1 when there is none. */
int graph_var_find(const graph *g, const char *name);

/* Fills parameters and buffers with their beginnings; counters become 0. Same seed, same bits,
 * on any number of threads (which last as long as the call). The blocks have graph.floats[kind]
 * elements. */
void graph_init_vars(const graph *g, uint64_t seed, int threads, float *params, float *buffers,
                     int64_t *counters);

/* Which of the elements 4*block .. 4*block+3 of a sample's activation this dropout keeps: bit i of
 * the result. A function of (seed, epoch, sample, layer) alone; every backend must use it. */
unsigned graph_dropout_draw(uint64_t seed, uint32_t epoch, uint64_t sample, uint32_t layer,
                            uint32_t block, double p);
/* The same for backends that draw many blocks at once: rng.h's key and the counter of block 0; an
 * element is dropped where its 32 bits are below graph_dropout_below. */
void graph_dropout_stream(uint64_t seed, uint32_t epoch, uint64_t sample, uint32_t layer,
                          uint32_t key[2], uint32_t counter[4]);
uint32_t graph_dropout_below(double p);

const char *graph_op_name(graph_op op);
const char *graph_act_name(graph_act act);

#endif
