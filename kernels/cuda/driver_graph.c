/* driver_graph.c: convolutions as operation graphs of cuDNN's; see driver.h.
 *
 * A forward pass is conv -> add bias -> ReLU, and its intermediate results lie in no memory; the
 * other passes are one operation. cuDNN's heuristics list the engines for a graph, each with its
 * settings (tiles, splits of the sum), where the older interface has one kernel an algorithm.
 * Offered are engines that are deterministic, keep the precision that was asked for and are not
 * compiled at run time (which would need a compiler, and write files). Making an engine's plan
 * takes milliseconds, so a device keeps the plans of each task that it was asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_cuda.h"

enum { TENSOR_X = 1, TENSOR_W, TENSOR_BIAS, TENSOR_Y, TENSOR_VIRTUAL }; /* unique in the graph */
enum { PIECES = 24, NOTES = 16 };

typedef cudnnBackendDescriptor_t descriptor;

/* What a graph is made of, in the order of making. */
typedef struct pieces {
    descriptor all[PIECES];
    int count;
} pieces;

/* One engine with its settings. */
typedef struct way {
    descriptor config, plan; /* plan NULL: not made, or `refused` */
    bool refused;
    size_t workspace;
    char name[32];
} way;

/* What is known of a task. `narrow`: its dw leaves cuDNN in the type of x and dy, through the
 * workspace. */
struct driver_plans {
    conv_task task;
    bool narrow;
    pieces graph, engines; /* what the plans are made from, which may refer to it */
    way ways[GRAPH_OFFERS];
    int count;
    struct driver_plans *next;
};

static void forget(pieces *p)
{
    while (p->count)
        cudnnBackendDestroyDescriptor(p->all[--p->count]);
}

#define cleanup_pieces __attribute__((cleanup(forget)))

static cudnnStatus_t piece(pieces *p, cudnnBackendDescriptorType_t type, descriptor *out)
{
    if (p->count == PIECES)
        return CUDNN_STATUS_INTERNAL_ERROR;
    TRY(cudnnBackendCreateDescriptor(type, out));
    p->all[p->count++] = *out;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set(descriptor d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    return cudnnBackendSetAttribute(d, name, type, count, values);
}

static cudnnStatus_t set_piece(descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
    return set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* ---- the graph ------------------------------------------------------------------------------- */

/* dims and strides as cuDNN counts them, (N, C, H, W), whatever the order in memory. */
static cudnnStatus_t tensor(pieces *p, int64_t id, cudnnDataType_t type, const int64_t dims[4],
                            const int64_t strides[4], bool in_memory, descriptor *out)
{
    int64_t align = 16;
    bool nowhere = !in_memory;
    TRY(piece(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    TRY(set(*out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(set(*out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims));
    TRY(set(*out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides));
    TRY(set(*out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    TRY(set(*out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
    TRY(set(*out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &nowhere));
    return cudnnBackendFinalize(*out);
}

/* (n, c, h, w) with the channels next to each other. */
static cudnnStatus_t tensor_nhwc(pieces *p, int64_t id, cudnnDataType_t type, int n, int c, int h,
                                 int w, descriptor *out)
{
    const int64_t dims[4] = {n, c, h, w};
    const int64_t strides[4] = {(int64_t)h * w * c, 1, (int64_t)w * c, c};
    return tensor(p, id, type, dims, strides, id < TENSOR_VIRTUAL, out);
}

/* The attributes of an operation, which each pass has its own names for. */
#define NAMES(operation, x, w, y)                                                                  \
    {                                                                                              \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##operation##_##x,                                        \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##operation##_##w,                                    \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##operation##_##y,                                    \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##operation##_CONV_DESC,                              \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##operation##_ALPHA,                                  \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##operation##_BETA                                    \
    }

static cudnnStatus_t convolution(pieces *p, const conv_task *t, descriptor x, descriptor w,
                                 descriptor y, descriptor *out)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        struct {
            cudnnBackendAttributeName_t x, w, y, how, alpha, beta;
        } name;
    } operations[CONV_PASSES] = {
        [CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                          NAMES(FORWARD, X, W, Y)},
        [CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                       NAMES(BWD_DATA, DX, W, DY)},
        [CONV_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                          NAMES(BWD_FILTER, X, DW, DY)}};
    const conv_shape *s = &t->s;
    const int64_t pad[2] = {s->pad_h, s->pad_w}, stride[2] = {s->stride_h, s->stride_w};
    const int64_t dilation[2] = {s->dil_h, s->dil_w}, two = 2;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const float one = 1, beta = t->add ? 1 : 0;
    __typeof__(&operations[0].name) name = &operations[t->pass].name;
    descriptor c;
    TRY(piece(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &c));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride));
    TRY(set(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation));
    TRY(cudnnBackendFinalize(c));
    TRY(piece(p, operations[t->pass].type, out));
    TRY(set_piece(*out, name->x, x));
    TRY(set_piece(*out, name->w, w));
    TRY(set_piece(*out, name->y, y));
    TRY(set_piece(*out, name->how, c));
    TRY(set(*out, name->alpha, CUDNN_TYPE_FLOAT, 1, &one));
    TRY(set(*out, name->beta, CUDNN_TYPE_FLOAT, 1, &beta));
    return cudnnBackendFinalize(*out);
}

/* y = mode(x) or mode(x, b). */
static cudnnStatus_t pointwise(pieces *p, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                               descriptor y, descriptor *out)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    descriptor how;
    TRY(piece(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &how));
    TRY(set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TRY(set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(cudnnBackendFinalize(how));
    TRY(piece(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, out));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (b)
        TRY(set_piece(*out, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    return cudnnBackendFinalize(*out);
}

static cudnnStatus_t build(device *d, const struct driver_plans *plans, pieces *p, descriptor *out)
{
    const conv_task *t = &plans->task;
    const conv_shape *s = &t->s;
    cudnnDataType_t type = t->t == ELEMENT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    cudnnDataType_t type_of_w = t->pass == CONV_WEIGHTS && !plans->narrow ? CUDNN_DATA_FLOAT : type;
    int operations = 1 + t->bias + t->relu, made = 0;
    descriptor x, w, bias = NULL, at[3], operation[3];
    TRY(tensor_nhwc(p, TENSOR_X, type, s->n, s->c, s->h, s->w, &x));
    TRY(tensor_nhwc(p, TENSOR_W, type_of_w, s->k, s->c / s->groups, s->r, s->s, &w));
    if (t->bias)
        TRY(tensor_nhwc(p, TENSOR_BIAS, CUDNN_DATA_FLOAT, 1, s->k, 1, 1, &bias));
    for (int i = 0; i < operations; i++) { /* only the last result goes to memory */
        bool last = i + 1 == operations;
        TRY(tensor_nhwc(p, last ? TENSOR_Y : TENSOR_VIRTUAL + i, last ? type : CUDNN_DATA_FLOAT,
                        s->n, s->k, s->p, s->q, &at[i]));
    }
    TRY(convolution(p, t, x, w, at[0], &operation[made++]));
    if (t->bias) {
        TRY(pointwise(p, CUDNN_POINTWISE_ADD, at[made - 1], bias, at[made], &operation[made]));
        made++;
    }
    if (t->relu) {
        TRY(pointwise(p, CUDNN_POINTWISE_RELU_FWD, at[made - 1], NULL, at[made], &operation[made]));
        made++;
    }
    TRY(piece(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, out));
    TRY(set(*out, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &d->cudnn));
    TRY(set(*out, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, operation));
    return cudnnBackendFinalize(*out);
}

/* ---- engines --------------------------------------------------------------------------------- */

static bool noted(descriptor engine, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int note)
{
    int notes[NOTES]; /* both kinds of notes are enums */
    int64_t count = 0;
    _Static_assert(sizeof(cudnnBackendNumericalNote_t) == sizeof(int) &&
                       sizeof(cudnnBackendBehaviorNote_t) == sizeof(int),
                   "notes are ints");
    if (cudnnBackendGetAttribute(engine, name, type, NOTES, &count, notes))
        return true; /* an engine whose notes cannot be read is left out */
    for (int64_t i = 0; i < count && i < NOTES; i++)
        if (notes[i] == note)
            return true;
    return false;
}

static bool wanted(const conv_task *t, descriptor engine)
{
    const cudnnBackendAttributeName_t numbers = CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
    const cudnnBackendAttributeType_t type = CUDNN_TYPE_NUMERICAL_NOTE;
    if (noted(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
              CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) ||
        noted(engine, numbers, type, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
        return false;
    if (t->t == ELEMENT_F32 &&
        noted(engine, numbers, type, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS))
        return false;
    return t->precision != PRECISION_FP32 ||
           !noted(engine, numbers, type, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
}

static size_t narrow_bytes(const struct driver_plans *p)
{
    return p->narrow ? driver_narrow_bytes(&p->task.s) : 0;
}

static cudnnStatus_t engine_of(const way *w, pieces *p, descriptor *out)
{
    int64_t found = 0;
    TRY(piece(p, CUDNN_BACKEND_ENGINE_DESCRIPTOR, out));
    return cudnnBackendGetAttribute(w->config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found, out);
}

static cudnnStatus_t plan_way(device *d, const struct driver_plans *plans, way *w)
{
    cleanup_pieces pieces p = {.count = 0};
    descriptor engine;
    int64_t found = 0, workspace = 0;
    TRY(engine_of(w, &p, &engine));
    if (!wanted(&plans->task, engine))
        return CUDNN_STATUS_NOT_SUPPORTED;
    TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &w->plan));
    TRY(set(w->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &d->cudnn));
    TRY(set_piece(w->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, w->config));
    TRY(cudnnBackendFinalize(w->plan));
    TRY(cudnnBackendGetAttribute(w->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &found, &workspace));
    w->workspace = (size_t)workspace + narrow_bytes(plans);
    return CUDNN_STATUS_SUCCESS;
}

/* Whether the way can be used. Its plan is made at the first call. */
static bool usable(device *d, const struct driver_plans *plans, way *w)
{
    if (!w->plan && !w->refused && plan_way(d, plans, w) != CUDNN_STATUS_SUCCESS) {
        if (w->plan)
            cudnnBackendDestroyDescriptor(w->plan);
        w->plan = NULL;
        w->refused = true;
    }
    return !w->refused;
}

/* The number of the way's engine, for the way's name. */
static cudnnStatus_t name_way(way *w, int at)
{
    cleanup_pieces pieces p = {.count = 0};
    descriptor engine;
    int64_t found = 0, index = 0;
    TRY(engine_of(w, &p, &engine));
    TRY(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                 &found, &index));
    snprintf(w->name, sizeof w->name, "cudnn-graph-%lld-%d", (long long)index, at);
    return CUDNN_STATUS_SUCCESS;
}

/* What the heuristics list, best first. */
static cudnnStatus_t find_ways(device *d, struct driver_plans *plans)
{
    pieces *list = &plans->engines;
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor operations, heuristics, config[GRAPH_OFFERS];
    int64_t found = 0;
    TRY(build(d, plans, &plans->graph, &operations));
    TRY(piece(list, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    TRY(set_piece(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations));
    TRY(set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    TRY(cudnnBackendFinalize(heuristics));
    for (int i = 0; i < GRAPH_OFFERS; i++)
        TRY(piece(list, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    TRY(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, GRAPH_OFFERS, &found, config));
    for (int64_t i = 0; i < found && i < GRAPH_OFFERS; i++) {
        way *w = &plans->ways[plans->count];
        *w = (way){.config = config[i]};
        plans->count += name_way(w, (int)i) == CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_SUCCESS;
}

static void forget_ways(struct driver_plans *p)
{
    while (p->count) {
        way *w = &p->ways[--p->count];
        if (w->plan)
            cudnnBackendDestroyDescriptor(w->plan);
    }
    forget(&p->engines);
    forget(&p->graph);
}

static bool any_usable(device *d, struct driver_plans *p)
{
    for (int i = 0; i < p->count; i++)
        if (usable(d, p, &p->ways[i]))
            return true;
    return false;
}

static struct driver_plans *plans_of(device *d, const conv_task *t)
{
    for (struct driver_plans *p = d->plans; p; p = p->next)
        if (conv_task_same(&p->task, t))
            return p;
    struct driver_plans *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->task = *t;
    (void)find_ways(d, made); /* on failure the ways of the other files are left */
    if (t->pass == CONV_WEIGHTS && t->t == ELEMENT_BF16 && !any_usable(d, made)) {
        forget_ways(made); /* no engine makes floats of bf16 */
        made->narrow = true;
        (void)find_ways(d, made);
    }
    made->next = d->plans;
    d->plans = made;
    return made;
}

void driver_graph_forget(device *d)
{
    while (d->plans) {
        struct driver_plans *gone = d->plans;
        d->plans = gone->next;
        forget_ways(gone);
        free(gone);
    }
}

/* ---- offers and running ---------------------------------------------------------------------- */

static conv_offer offer_of(const struct driver_plans *p, int at)
{
    conv_offer o = {.id = GRAPH_FIRST_ID + at, .workspace = p->ways[at].workspace};
    memcpy(o.name, p->ways[at].name, sizeof o.name);
    return o;
}

int driver_graph_offers(device *d, const conv_task *t, conv_offer *list, int room)
{
    struct driver_plans *p = plans_of(d, t);
    int count = 0;
    for (int i = 0; p && i < p->count && count < room; i++)
        if (usable(d, p, &p->ways[i]))
            list[count++] = offer_of(p, i);
    return count;
}

/* Makes the plan of this offer alone. */
int driver_graph_offer(device *d, const conv_task *t, const char *name, conv_offer *out)
{
    struct driver_plans *p = plans_of(d, t);
    for (int i = 0; p && i < p->count; i++)
        if (strcmp(p->ways[i].name, name) == 0 && usable(d, p, &p->ways[i])) {
            *out = offer_of(p, i);
            return 0;
        }
    return -1;
}

static cudnnStatus_t execute(device *d, const struct driver_plans *p, const way *w,
                             const conv_operands *o)
{
    cleanup_pieces pieces made = {.count = 0};
    const conv_task *t = &p->task;
    size_t narrow = narrow_bytes(p);
    void *workspace = (char *)o->workspace + narrow;
    const int64_t ids[4] = {TENSOR_X, TENSOR_W, TENSOR_Y, TENSOR_BIAS};
    const void *at[4] = {o->a, o->b, o->out, o->bias};
    descriptor pack;
    if (t->pass == CONV_DATA)
        at[0] = o->out, at[2] = o->a;
    else if (t->pass == CONV_WEIGHTS)
        at[1] = narrow ? o->workspace : o->out, at[2] = o->b;
    TRY(piece(&made, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, t->bias ? 4 : 3, ids));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, t->bias ? 4 : 3, at));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    TRY(cudnnBackendFinalize(pack));
    TRY(cudnnBackendExecute(d->cudnn, w->plan, pack));
    if (narrow)
        cuda_from_bf16(d->stream, driver_weights(&t->s), o->workspace, o->out, false);
    return CUDNN_STATUS_SUCCESS;
}

int driver_graph_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    struct driver_plans *p = plans_of(d, t);
    int at = id - GRAPH_FIRST_ID;
    if (!p || at >= p->count || !usable(d, p, &p->ways[at]) ||
        o->workspace_bytes < p->ways[at].workspace)
        return err_set(e, ERR_INTERNAL, "cuDNN's plan %d of a convolution is not there", at);
    cudnnStatus_t status = execute(d, p, &p->ways[at], o);
    return status ? err_set(e, ERR_UNAVAILABLE, "cuDNN's graph on the GPU: %s",
                            cudnnGetErrorString(status))
                  : 0;
}
