/* cpu_program.h: what the CPU backend's files share: a graph turned into layers over tensors.
 *
 * prepare fuses the graph's nodes into layers (convolution + ReLU + pooling is one), gives every
 * node that remains visible a tensor in the layout its neighbours want, and allocates all of it. A
 * layer either works on samples independently (`forward`, `backward` get a range; threads and cache
 * blocks are ranges) or on the batch as a whole (`*_whole`, which start the threads themselves).
 *
 * Gradients: a layer's backward reads its output's dy (and may overwrite it) and writes each
 * input's dy, or adds to it where `add[i]` says that a later reader of that input has written there
 * already. */
#ifndef KUBEML_CPU_PROGRAM_H
#define KUBEML_CPU_PROGRAM_H

#include "cpu_kernels16.h"
#include "cpu_threads.h"
#include "kernels/backend.h"

/* Results that go through several layers at a time: they are to stay in a core's second cache. */
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
    bool shared;        /* its memory is others' too, at other times: cpu_memory.c */
} plane;

typedef struct tensor {
    tensor_form form;
    shape s;
    int cs;
    /* floats from one pixel of an image to the next: cs, or more in a joined concat */
    int step;
    int root;     /* the concat in whose memory this tensor lies, cpu_concat.c; 0: in its own */
    int channel;  /* its first there */
    bool dy_over; /* the gradient is written over the values */
    int dy_in;    /* the node in whose gradient's memory this one's lies; 0: in its own */
    bool strided; /* a strided convolution takes one pixel of all samples at a time */
    plane y, dy; /* dy.data NULL: nobody needs it */
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

/* A max pooling that a convolution has taken over: 2x2 at stride 2, or another over the network's
 * input. */
typedef enum fused_pool { POOL_NONE, POOL_CELLS, POOL_WINDOWS } fused_pool;

typedef struct program program;
typedef struct layer layer;

/* Part `part` of `parts` of something that is done with a layer's weights, on any thread: it writes
 * nothing that another part reads or writes. */
typedef void layer_part(program *p, layer *l, int part, int parts);

typedef struct layer_ops {
    void (*forward)(program *p, layer *l, int from, int to, int thread);
    /* With all samples at once; where there is forward too, before that. */
    void (*forward_whole)(program *p, layer *l);
    /* Where the model only evaluates, in place of forward_whole, and before all samples. */
    void (*evaluate)(program *p, layer *l, int from, int to, int thread);
    void (*evaluate_ahead)(program *p, layer *l);
    void (*backward)(program *p, layer *l, int from, int to, int thread);
    void (*backward_whole)(program *p, layer *l); /* likewise */
    /* Backward has read all that it needs of the input where it writes the input's gradient. */
    bool overwrites;
    layer_part *finish;                 /* after backward: the summed weight gradient into grads */
    layer_part *pack;                   /* after the parameters have changed */
    layer_part *pack_ahead, *pack_back; /* before each forward, backward: into leased memory */
} layer_ops;

struct layer {
    const layer_ops *ops;
    const graph_node *node; /* the convolution, where several are fused */
    int in_count;
    int *in;   /* tensors */
    bool *add; /* see above */
    int out;
    bool relu;
    fused_pool pool;
    bool folds;                /* can take the norm after it into its weights */
    struct fold *fold;         /* and has one: cpu_fold.c */
    const layer *folded_from;  /* norms: by whom */
    char choice[48]; /* "direct-avx512" */

    /* Convolutions. */
    conv_geom g;
    float *wf, *bf, *wb;   /* packed weights, as cpu_kernels.h says; wb where backward scatters */
    conv_phase *phases;    /* where it gathers */
    int phase_count;
    bool gaps;             /* some inputs lie under no output */
    float *dw, *db;        /* a copy each thread */
    size_t dw_floats, db_floats;
    bool fresh;            /* backward writes dw, instead of adding to it; only where together */
    float *zeros;          /* bias of the phases */
    uint8_t *arg;          /* winners of the fused pooling */
    size_t arg_sample;
    pool_cells cells;      /* of POOL_WINDOWS */
    float *scratch;        /* scratch_floats a thread */
    size_t scratch_floats;
    bool scratch_shared; /* with the other layers that say so: cpu_memory.c allocates it */

    /* Depthwise convolutions and pooling: windows from inputs to outputs, and back. */
    window_geom ahead, back;

    /* Winograd convolutions: transformed weights for y and for dx, each thread's transformed weight
     * gradient (in dw), and room for the tiles of one group (in scratch). */
    float *u, *u_back;
    int group;     /* tiles */
    struct wino_recomputed *wino; /* of cpu_winograd_recomputed.c */
    struct points16 *points16;  /* of cpu_matmul16.c */
    /* takes all samples of a thread at once: its weights are too large to come back to */
    bool together;
    int samples; /* of such a layer: how many are enough where the model only evaluates; 0: all */
    int stretch; /* which it is in there: cpu_evaluate.c */

    bool updates; /* backward of a whole step updates the weight; its gradient is kept nowhere */
    struct linear16 *linear16; /* of cpu_linear16.c */
    /* Linear layers: the input in the other form, and the input's gradient before its transpose. */
    float *other, *dother;
    size_t other_ld;

    /* Batch norm: mean, 1/std, scale, shift, and the backward coefficients; sums a thread. */
    float *stats;
    double *sums;
    const layer *known; /* the norm over this one's first channels, which has their sums already */
    layer *entry; /* of a 1x1 convolution: the norm that it applies to what it reads, cpu_entry.c */
    const layer *entered; /* of that norm: by whom */
    /* of a norm: the activation whose result it writes where the model trains, norm_find_acts */
    const layer *act;
    const layer *acted;   /* of that: by whom */

    struct by_reference *by_reference; /* of cpu_reference.c; NULL: the backend has the op */
};

/* What a thread has of its own. */
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
    bool updating;   /* it is a whole step: layers that can update their weights do so */
    backend_update update; /* of that step */
    param_span *rest;      /* what no such layer updates */
    int rest_count;
    int folds;       /* layers that have a norm in their weights when `folded` */
    bool folded;
    float *fold_weights; /* room for one layer's */
    const backend_batch *b;
    int64_t convert_ns; /* of the call in progress: the first thread's, in the input layer */
    char *choices;
    size_t bytes;    /* allocated */
    struct evaluation *evaluation;
    struct lease *leases;
    struct block {
        struct block *next;
    } *blocks;
};

/* Zeroed, 64-byte aligned, freed with the program; NULL when there is no memory, or too much is
 * asked. */
void *program_alloc(program *p, size_t count, size_t size);
float *program_floats(program *p, size_t count);

/* Memory that l needs in its forward or its backward alone, and that others have at other times:
 * *to is set by program_place. Undefined at each beginning. -1 when there is no memory. */
typedef enum lease_time { LEASE_FORWARD, LEASE_BACKWARD } lease_time;
int program_lease(program *p, float **to, size_t floats, const layer *l, lease_time when);
/* May the plane of that node share memory? Then plane_postpone leaves it to program_place. */
bool plane_shares(const program *p, int node, const plane *a);
void plane_postpone(plane *a);
/* When all layers are made, and evaluate_find was called: finds memory for what was postponed,
 * leased, or is scratch of several. */
int program_place(program *p);

view tensor_view(const tensor *t);
view tensor_gradient(const tensor *t);
static inline float *tensor_pixels(const plane *a, int cs, int sample)
{
    return a->data + (size_t)sample * a->sample + (size_t)a->halo * (a->row + (size_t)cs);
}
/* Zeroes the border of one sample's gradient. */
void tensor_clear_halo(const tensor *t, int sample);

/* A convolution's dy of samples [from, to) through its ReLU, and the bias' gradient, added to db:
 * cpu_rows.c. */
void mask_samples(const program *p, const layer *l, int from, int to, float *db);
/* What is done once a batch with the weights of layers [first, last], on all threads:
 * cpu_weights.c. WEIGHTS_SUM: of a convolution's gradients every thread's into the first one's, and
 * the bias' to where it belongs. */
typedef enum weights_step {
    WEIGHTS_PACK,
    WEIGHTS_PACK_AHEAD,
    WEIGHTS_PACK_BACK,
    WEIGHTS_SUM,
    WEIGHTS_FINISH
} weights_step;
void weights_run(program *p, int first, int last, weights_step step);

/* Where part `part` of `parts` of n things begins; the one after it, where it ends. */
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

/* Updates n parameters from `at` on, a multiple of 8, with these gradients. */
void program_update(const program *p, const backend_update *u, size_t at, size_t n,
                    const float *grads);

/* Layers, tensors and their memory, of p->g: cpu_build.c. -1 when memory is gone; p is then only to
 * be released. */
int program_build(program *p);

/* Each returns -1 when memory is gone. They set ops, choice and what the layer needs. */
int layer_input(layer *l);
int layer_conv(program *p, layer *l);
bool conv_is_matmul(const graph_node *n, shape in, int batch);
bool conv_is_pointwise(const graph_node *n); /* 1x1, neither strided nor padded */
int layer_matmul(program *p, layer *l);
bool conv_is_winograd(const program *p, const graph_node *n, int channels);
int layer_winograd(program *p, layer *l);
int layer_linear(program *p, layer *l);
int layer_linear16(program *p, layer *l);
/* dy of the linear layer's outputs [from, to) through its ReLU, and their bias' gradient. */
void linear_mask(program *p, const layer *l, int from, int to);
int layer_batch_norm(program *p, layer *l);
/* Norms that apply the activation after them, where the model trains; one that only evaluates has
 * better: cpu_fold.c. When all layers are known, before memory is. */
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
/* Lets concats and what they are made of share memory, so that nothing is copied; `slices`: layers
 * that can write pixels apart. When forms and borders are known, before memory is. */
void concat_join(program *p, const bool *slices);
bool conv_is_depthwise(const graph_node *n, int channels); /* that it reads */
int layer_any(layer *l); /* some other ops, and odd cases of the above: plain loops */
int layer_reference(program *p, layer *l); /* ops that cpu_ops.c lacks */

/* Norms that the 1x1 convolution after them applies: cpu_entry.c. entry_find: which; when all
 * layers are known, before memory is. What such a convolution calls, for some channels of some
 * pixels, which are `step` floats apart but in x and dx: norm_enter, y = norm(x); norm_leave, from
 * dy, the thread's sums and dx but for what only the whole sums tell, which the norm's own backward
 * adds. norm_begin: before the first of a thread. */
typedef struct norm_part {
    int pixels, channel, channels;
} norm_part;
void entry_find(program *p);
void norm_enter(const program *p, const layer *norm, norm_part part, const float *x, float *y,
                size_t step);
void norm_begin(const program *p, const layer *norm, int thread);
/* The node that a norm makes where the model trains: itself, or the activation after it. */
int norm_result(const layer *l);
void norm_leave(const program *p, const layer *norm, int thread, norm_part part, const float *x,
                const float *dy, size_t step, bool dx_add, float *dx);

/* Norms in convolutions' weights, where there is no training: cpu_fold.c. fold_find: which; when
 * all layers are made. fold_turn: true if weights have to be packed again. */
int fold_find(program *p);
bool fold_turn(program *p, bool folded);
/* A convolution's weights and bias as they are to be packed; the former until the next call. */
const float *layer_weights(const program *p, const layer *l);
void layer_bias(const program *p, const layer *l, float *to);

/* Forward where there is no training: cpu_evaluate.c. evaluate_find: when all layers are made, and
 * fold_find was called; evaluate_place: when memory is there. evaluate_hands_on: does the node's
 * tensor then lie in the threads' rooms, and not in its own memory? */
int evaluate_find(program *p);
int evaluate_place(program *p);
bool evaluate_hands_on(const program *p, int node);
void evaluate_forward(program *p);

/* Can the convolution kernels do it (then which paddings they want), or only the plain loops? */
bool conv_is_direct(const graph_node *n);
conv_geom conv_geometry(const program *p, const layer *l);
/* The border that the input gradient's phases read around dy; -1: it scatters into dx instead. */
int conv_dy_halo(const graph_node *n, shape in);

/* Loss over the logits' tensor: result, and with `gradient` its dy. */
void loss_compute(program *p, const tensor *t, bool gradient, backend_result *r);

#endif
