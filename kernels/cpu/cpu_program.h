/* cpu_program.h: what the CPU backend's files share: a graph turned into layers over tensors.
 *
 * prepare fuses the graph's nodes into layers (convolution + ReLU + pooling is one layer), gives
 * every node that remains visible a tensor in the layout that its neighbours want, and allocates
 * all memory. A layer either works on samples independently (`forward` and `backward` get a range:
 * a thread's, or a block for the cache) or on the batch as a whole (`*_whole`, which start the
 * threads themselves).
 *
 * Gradients: a layer's backward reads its output's dy, which it may overwrite. It writes each
 * input's dy, or adds to that dy where `add[i]` is set: a later reader of that input has written
 * there already. */
#ifndef KUBEML_CPU_PROGRAM_H
#define KUBEML_CPU_PROGRAM_H

#include "cpu_kernels16.h"
#include "cpu_threads.h"
#include "kernels/backend.h"

/* Bytes of results that go through several layers at a time: they fit a core's second cache. */
enum { CPU_CHUNK_BYTES = 256 * 1024 };

typedef enum tensor_form {
    FORM_NONE,    /* fused away */
    FORM_IMAGE,   /* (N, H + 2 halo, W + 2 halo, cs) */
    FORM_ROWS,    /* (N, cs): cs is features rounded up to 16 */
    FORM_COLUMNS, /* (features, batch_pad) */
} tensor_form;

/* One of the two arrays of a tensor. */
typedef struct plane {
    float *data;
    int halo;
    size_t row, sample; /* floats; FORM_COLUMNS: row is batch_pad, sample 1 */
    size_t floats;      /* of the whole batch, slack included */
    bool shared;        /* other blocks have this memory at other times: cpu_memory.c */
} plane;

typedef struct tensor {
    tensor_form form;
    shape s;
    int cs;
    /* floats from one pixel of an image to the next: cs, or more in a joined concat */
    int step;
    int root;     /* the concat in whose memory this tensor lies, cpu_concat.c; 0: it has its own */
    int channel;  /* its first channel there */
    bool dy_over; /* the gradient is written over the values */
    int dy_in;    /* the node whose gradient's memory this gradient shares; 0: it has its own */
    bool strided; /* a strided convolution takes one pixel of all samples at a time */
    plane y, dy; /* dy.data NULL: no layer needs the gradient */
} tensor;

/* A tensor's element (n, c, h, w) is p[n*sn + c*sc + h*sh + w*sw], whatever its form. */
typedef struct view {
    float *p;
    size_t sn, sc, sh, sw;
} view;

/* One axis of one phase of a strided convolution's input gradient; see cpu_conv.c. */
typedef struct phase_axis {
    int from, count;       /* input positions from, from + stride, ... */
    int first, step, taps; /* kernel rows first, first + step, ... */
    int pad, halo;         /* around dy */
} phase_axis;

typedef struct conv_phase {
    phase_axis h, w;
    conv_geom g;
    float *wf;
} conv_phase;

/* A max pooling that is fused into a convolution: 2x2 at stride 2, or any other over the network's
 * input. */
typedef enum fused_pool { POOL_NONE, POOL_CELLS, POOL_WINDOWS } fused_pool;

typedef struct program program;
typedef struct layer layer;

/* A function that does part `part` of `parts` of some work on a layer's weights, on any thread. It
 * writes nothing that another part reads or writes. */
typedef void layer_part(program *p, layer *l, int part, int parts);

typedef struct layer_ops {
    void (*forward)(program *p, layer *l, int from, int to, int thread);
    /* All samples at once; runs before `forward` where a layer has both. */
    void (*forward_whole)(program *p, layer *l);
    /* Where the model only evaluates: `evaluate` in place of `forward`, and `evaluate_ahead` before
     * all samples in place of `forward_whole`. */
    void (*evaluate)(program *p, layer *l, int from, int to, int thread);
    void (*evaluate_ahead)(program *p, layer *l);
    void (*backward)(program *p, layer *l, int from, int to, int thread);
    void (*backward_whole)(program *p, layer *l); /* as forward_whole */
    /* Backward writes each part of the input's gradient only after it has read all that it needs of
     * that part of the input. */
    bool overwrites;
    layer_part *finish;                 /* after backward: writes the weight gradient to grads */
    layer_part *pack;                   /* after the parameters have changed */
    layer_part *pack_ahead, *pack_back; /* before each forward, backward: into leased memory */
} layer_ops;

struct layer {
    const layer_ops *ops;
    const graph_node *node; /* the convolution, where several are fused */
    int in_count;
    int *in;   /* tensors */
    bool *add; /* see the head */
    int out;
    bool relu;
    fused_pool pool;
    bool folds;                /* can fold the norm after it into its weights */
    struct fold *fold;         /* the folded norm, if any: cpu_fold.c */
    const layer *folded_from;  /* norms: the convolution that folds this norm */
    char choice[48]; /* "direct-avx512" */

    /* Convolutions. */
    conv_geom g;
    float *wf, *bf, *wb;   /* packed weights, as in cpu_kernels.h; wb where backward scatters */
    conv_phase *phases;    /* where backward gathers */
    int phase_count;
    bool gaps;             /* some inputs lie under no output */
    float *dw, *db;        /* one copy for each thread */
    size_t dw_floats, db_floats;
    bool fresh;            /* backward writes dw instead of adding to dw; only where `together` */
    float *zeros;          /* bias of the phases */
    uint8_t *arg;          /* winners of the fused pooling */
    size_t arg_sample;
    pool_cells cells;      /* of POOL_WINDOWS */
    float *scratch;        /* scratch_floats a thread */
    size_t scratch_floats;
    bool scratch_shared; /* shared with the other layers that set this: cpu_memory.c allocates it */

    /* Depthwise convolutions and pooling: windows from inputs to outputs, and back. */
    window_geom ahead, back;

    /* Winograd convolutions: transformed weights for y and for dx. Each thread's transformed weight
     * gradient is in dw; the tiles of one group are in scratch. */
    float *u, *u_back;
    int group;     /* tiles */
    struct wino_recomputed *wino; /* of cpu_winograd_recomputed.c */
    struct points16 *points16;  /* of cpu_matmul16.c */
    /* forward and backward take all samples of a thread at once: the weights are too large to read
     * often */
    bool together;
    int samples; /* of a `together` layer: how many at a time suffice where the model only
                  * evaluates; 0: all */
    int stretch; /* the layer's stretch in cpu_evaluate.c */

    bool updates; /* backward of a whole step updates the weight; the gradient is not stored */
    struct linear16 *linear16; /* of cpu_linear16.c */
    /* Linear layers: the input in the other form, and the input's gradient before its transpose. */
    float *other, *dother;
    size_t other_ld;

    /* Batch norm: mean, 1/std, scale, shift, and the backward coefficients; one set of sums for
     * each thread. */
    float *stats;
    double *sums;
    const layer *known; /* the norm over this norm's first channels, which has their sums already */
    layer *entry; /* of a 1x1 convolution: the norm that it applies to its input, cpu_entry.c */
    const layer *entered; /* of that norm: the convolution that applies it */
    /* of a norm: the activation whose result it writes in training, norm_find_acts */
    const layer *act;
    const layer *acted;   /* of that activation: the norm */

    struct by_reference *by_reference; /* of cpu_reference.c; NULL: the backend has the op */
};

/* A thread's own part. */
static inline float *layer_scratch(const layer *l, int thread)
{
    return l->scratch + (size_t)thread * l->scratch_floats;
}
static inline float *layer_dw(const layer *l, int thread)
{
    return l->dw + (size_t)thread * l->dw_floats;
}
static inline float *layer_db(const layer *l, int thread)
{
    return l->db + (size_t)thread * l->db_floats;
}

/* Floats [from, to) of the parameter block. */
typedef struct param_span {
    size_t from, to;
} param_span;

struct program {
    backend_program base;
    const graph *g;
    backend_config c;
    const cpu_kernels *k;
    const cpu_kernels16 *k16; /* NULL: all is fp32 */
    cpu_threads *threads;
    tensor *tensors; /* one a node */
    layer *layers;
    int layer_count;
    int batch_pad;
    backend_state s;
    bool stale;      /* the packed weights are older than the parameters */
    bool training;   /* of the call in progress */
    bool updating;   /* the call is a whole step: layers that can update their weights do so */
    backend_update update; /* of that step */
    param_span *rest;      /* parameters that no such layer updates */
    int rest_count;
    int folds;       /* layers that fold a norm into their weights when `folded` */
    bool folded;
    float *fold_weights; /* room for one layer's weights */
    const backend_batch *b;
    int64_t convert_ns; /* of the call in progress: time of the first thread in the input layer */
    char *choices;
    size_t bytes;    /* allocated */
    struct evaluation *evaluation;
    struct lease *leases;
    struct block {
        struct block *next;
    } *blocks;
};

/* Zeroed, 64-byte aligned memory, freed with the program. NULL when there is no memory, or the size
 * is too large. */
void *program_alloc(program *p, size_t count, size_t size);
float *program_floats(program *p, size_t count);

/* Memory that l needs only in its forward or only in its backward, and that other blocks have at
 * other times. program_place sets *to. The contents are undefined at each beginning. -1 when there
 * is no memory. */
typedef enum lease_time { LEASE_FORWARD, LEASE_BACKWARD } lease_time;
int program_lease(program *p, float **to, size_t floats, const layer *l, lease_time when);
/* plane_shares: may this plane of the node share memory? plane_postpone then leaves the plane to
 * program_place. */
bool plane_shares(const program *p, int node, const plane *a);
void plane_postpone(plane *a);
/* Finds memory for postponed planes, leases and shared scratch. Called when all layers are made,
 * after evaluate_find. */
int program_place(program *p);

view tensor_view(const tensor *t);
view tensor_gradient(const tensor *t);
static inline float *tensor_pixels(const plane *a, int cs, int sample)
{
    return a->data + (size_t)sample * a->sample + (size_t)a->halo * (a->row + (size_t)cs);
}
/* Zeroes the border of one sample's gradient. */
void tensor_clear_halo(const tensor *t, int sample);

/* Puts a convolution's dy of samples [from, to) through its ReLU, and adds the bias' gradient to
 * db: cpu_rows.c. */
void mask_samples(const program *p, const layer *l, int from, int to, float *db);
/* Runs a step that layers [first, last] need once a batch for their weights, on all threads:
 * cpu_weights.c. WEIGHTS_SUM adds every thread's gradient of a convolution to the first thread's,
 * and writes the bias' gradient to grads. */
typedef enum weights_step {
    WEIGHTS_PACK,
    WEIGHTS_PACK_AHEAD,
    WEIGHTS_PACK_BACK,
    WEIGHTS_SUM,
    WEIGHTS_FINISH
} weights_step;
void weights_run(program *p, int first, int last, weights_step step);

/* Where part `part` of `parts` of n things begins; the next part begins where this part ends. */
static inline int part_begin(int n, int part, int parts)
{
    return (int)((int64_t)n * part / parts);
}

static inline int least(int a, int b)
{
    return a < b ? a : b;
}

static inline const float *program_param(const program *p, int var)
{
    return var < 0 ? NULL : p->s.params + p->g->vars[var].offset;
}
static inline float *program_grad(const program *p, int var)
{
    return p->s.grads + p->g->vars[var].offset;
}

/* Updates n parameters, a multiple of 8, from `at` on with these gradients. */
void program_update(const program *p, const backend_update *u, size_t at, size_t n,
                    const float *grads);

/* Makes the layers and tensors of p->g and their memory: cpu_build.c. -1 when there is no memory; p
 * can then only be released. */
int program_build(program *p);

/* Each sets ops, choice and what the layer needs, and returns -1 when there is no memory. */
int layer_input(layer *l);
int layer_conv(program *p, layer *l);
bool conv_is_matmul(const graph_node *n, shape in, int batch);
bool conv_is_pointwise(const graph_node *n); /* 1x1, neither strided nor padded */
int layer_matmul(program *p, layer *l);
bool conv_is_winograd(const program *p, const graph_node *n, int channels);
int layer_winograd(program *p, layer *l);
int layer_linear(program *p, layer *l);
int layer_linear16(program *p, layer *l);
/* Puts dy of the linear layer's outputs [from, to) through its ReLU, and writes their bias'
 * gradient. */
void linear_mask(program *p, const layer *l, int from, int to);
int layer_batch_norm(program *p, layer *l);
/* Finds the norms that apply the activation after them in training; a model that only evaluates
 * folds norms instead: cpu_fold.c. Called when all layers are known, before there is memory. */
void norm_find_acts(program *p);
int layer_add(program *p, layer *l);
int layer_flatten(program *p, layer *l);
int layer_relu(program *p, layer *l);
int layer_depthwise(program *p, layer *l);
int layer_group(program *p, layer *l);
int layer_pool(program *p, layer *l);
/* The windows of max pooling n over a gapless image of shape `in`, with cs floats a pixel. */
int pool_windows(program *p, const graph_node *n, shape in, int cs, window_geom *to);
int layer_act(program *p, layer *l);
int layer_dropout(program *p, layer *l);
int layer_gate(program *p, layer *l);   /* image times one factor a channel */
int layer_concat(program *p, layer *l);
/* Lets concats and their parts share memory, so that nothing is copied; `slices` marks the layers
 * that can write pixels apart. Called when forms and borders are known, before there is memory. */
void concat_join(program *p, const bool *slices);
bool conv_is_depthwise(const graph_node *n, int channels); /* channels: of the input */
int layer_any(layer *l); /* some other ops, and odd cases of those above: plain loops */
int layer_reference(program *p, layer *l); /* ops that cpu_ops.c lacks */

/* Norms that the 1x1 convolution after them applies: cpu_entry.c. entry_find finds them, when all
 * layers are known, before there is memory. Such a convolution calls norm_enter and norm_leave for
 * some channels of some pixels, which are `step` floats apart except in x and dx. norm_begin:
 * called before the first call of a thread. norm_enter: y = norm(x). norm_leave: from dy, adds to
 * the thread's sums and to dx. The norm's own backward adds the part of dx that needs the sums of
 * the whole batch. */
typedef struct norm_part {
    int pixels, channel, channels;
} norm_part;
void entry_find(program *p);
void norm_enter(const program *p, const layer *norm, norm_part part, const float *x, float *y,
                size_t step);
void norm_begin(const program *p, const layer *norm, int thread);
/* The node that a norm makes in training: its own, or that of the activation after it. */
int norm_result(const layer *l);
void norm_leave(const program *p, const layer *norm, int thread, norm_part part, const float *x,
                const float *dy, size_t step, bool dx_add, float *dx);

/* Norms that convolutions fold into their weights outside training: cpu_fold.c. fold_find finds
 * them, when all layers are made. fold_turn: true if weights have to be packed again. */
int fold_find(program *p);
bool fold_turn(program *p, bool folded);
/* A convolution's weights and bias as they are to be packed. The weights are valid until the next
 * call. */
const float *layer_weights(const program *p, const layer *l);
void layer_bias(const program *p, const layer *l, float *to);

/* Forward outside training: cpu_evaluate.c. evaluate_find: called when all layers are made, after
 * fold_find. evaluate_place: called when there is memory. evaluate_hands_on: does the node's tensor
 * lie in the threads' rooms instead of its own memory? */
int evaluate_find(program *p);
int evaluate_place(program *p);
bool evaluate_hands_on(const program *p, int node);
void evaluate_forward(program *p);

/* Can the convolution kernels compute this node? Otherwise plain loops do. */
bool conv_is_direct(const graph_node *n);
conv_geom conv_geometry(const program *p, const layer *l);
/* The border around dy that the input gradient's phases read; -1: dy scatters into dx instead. */
int conv_dy_halo(const graph_node *n, shape in);

/* Computes the loss over the logits' tensor into *r (NULL: not wanted), and with `gradient` the
 * tensor's dy. */
void loss_compute(program *p, const tensor *t, bool gradient, backend_result *r);

#endif
