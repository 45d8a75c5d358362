/* driver_graph.c: a convolution with its bias and ReLU as one operation graph of cuDNN's; see
 * driver.h.
 *
 * The graph is conv -> add bias -> ReLU, with what lies between them in no memory. cuDNN's
 * heuristics list the engines for it; those are offered that are deterministic, keep the precision
 * that was asked for and are not compiled at run time (which would need a compiler, and write
 * files). Making a plan takes milliseconds, so a device keeps those of each task that it was asked
 * about. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver_cuda.h"

enum { TENSOR_X = 1, TENSOR_W, TENSOR_BIAS, TENSOR_Y, TENSOR_VIRTUAL }; /* unique in the graph */
enum { LISTED = 12, PIECES = 16, NOTES = 16 };

typedef cudnnBackendDescriptor_t descriptor;

/* What a graph is made of, in the order of making. */
typedef struct pieces {
    descriptor all[PIECES];
    int count;
} pieces;

struct driver_plans {
    conv_task task;
    pieces graph, engines; /* what the plans were made from, which may refer to it */
    descriptor plan[GRAPH_OFFERS];
    size_t workspace[GRAPH_OFFERS];
    char name[GRAPH_OFFERS][32];
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

static cudnnStatus_t convolution(pieces *p, const conv_task *t, descriptor x, descriptor w,
                                 descriptor y, descriptor *out)
{
    const conv_shape *s = &t->s;
    const int64_t pad[2] = {s->pad_h, s->pad_w}, stride[2] = {s->stride_h, s->stride_w};
    const int64_t dilation[2] = {s->dil_h, s->dil_w}, two = 2;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const float one = 1, zero = 0;
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
    TRY(piece(p, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, out));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y));
    TRY(set_piece(*out, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, c));
    TRY(set(*out, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one));
    TRY(set(*out, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero));
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

static cudnnStatus_t build(device *d, const conv_task *t, pieces *p, descriptor *out)
{
    const conv_shape *s = &t->s;
    cudnnDataType_t type = t->t == ELEMENT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    int operations = 1 + t->bias + t->relu, made = 0;
    descriptor x, w, bias = NULL, at[3], operation[3];
    TRY(tensor_nhwc(p, TENSOR_X, type, s->n, s->c, s->h, s->w, &x));
    TRY(tensor_nhwc(p, TENSOR_W, type, s->k, s->c / s->groups, s->r, s->s, &w));
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
        return true; /* what does not tell is not taken */
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

/* A plan of that configuration among `plans`, where it is one of those we take. */
static cudnnStatus_t add_plan(device *d, struct driver_plans *plans, descriptor config)
{
    cleanup_pieces pieces p = {.count = 0};
    descriptor engine, plan;
    int64_t found = 0, index = 0, workspace = 0;
    TRY(piece(&p, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    TRY(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &found, &engine));
    TRY(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                 &found, &index));
    if (!wanted(&plans->task, engine))
        return CUDNN_STATUS_NOT_SUPPORTED;
    TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
    cudnnStatus_t status =
        set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &d->cudnn);
    if (!status)
        status = set_piece(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!status)
        status = cudnnBackendFinalize(plan);
    if (!status)
        status = cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &found, &workspace);
    if (status) {
        cudnnBackendDestroyDescriptor(plan);
        return status;
    }
    int at = plans->count++;
    plans->plan[at] = plan;
    plans->workspace[at] = (size_t)workspace;
    snprintf(plans->name[at], sizeof plans->name[at], "cudnn-graph-%lld-%d", (long long)index, at);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t find_plans(device *d, struct driver_plans *plans)
{
    pieces *list = &plans->engines;
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor operations, heuristics, config[LISTED];
    int64_t found = 0;
    TRY(build(d, &plans->task, &plans->graph, &operations));
    TRY(piece(list, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    TRY(set_piece(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations));
    TRY(set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    TRY(cudnnBackendFinalize(heuristics));
    for (int i = 0; i < LISTED; i++)
        TRY(piece(list, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    TRY(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, LISTED, &found, config));
    for (int64_t i = 0; i < found && i < LISTED && plans->count < GRAPH_OFFERS; i++)
        (void)add_plan(d, plans, config[i]); /* one that does not work is one offer less */
    return CUDNN_STATUS_SUCCESS;
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
    (void)find_plans(d, made); /* without any the other ways are left */
    made->next = d->plans;
    d->plans = made;
    return made;
}

void driver_graph_forget(device *d)
{
    while (d->plans) {
        struct driver_plans *gone = d->plans;
        d->plans = gone->next;
        while (gone->count)
            cudnnBackendDestroyDescriptor(gone->plan[--gone->count]);
        forget(&gone->engines);
        forget(&gone->graph);
        free(gone);
    }
}

/* ---- offers and running ---------------------------------------------------------------------- */

int driver_graph_offers(device *d, const conv_task *t, conv_offer *list, int room)
{
    if (t->pass != CONV_FORWARD || (!t->bias && !t->relu))
        return 0;
    const struct driver_plans *p = plans_of(d, t);
    int count = 0;
    for (; p && count < p->count && count < room; count++) {
        list[count].id = GRAPH_FIRST_ID + count;
        list[count].workspace = p->workspace[count];
        memcpy(list[count].name, p->name[count], sizeof list[count].name);
    }
    return count;
}

static cudnnStatus_t execute(device *d, descriptor plan, bool bias, const conv_operands *o)
{
    cleanup_pieces pieces p = {.count = 0};
    const int64_t ids[4] = {TENSOR_X, TENSOR_W, TENSOR_Y, TENSOR_BIAS};
    const void *at[4] = {o->a, o->b, o->out, o->bias};
    descriptor pack;
    TRY(piece(&p, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, bias ? 4 : 3, ids));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, bias ? 4 : 3, at));
    TRY(set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &o->workspace));
    TRY(cudnnBackendFinalize(pack));
    return cudnnBackendExecute(d->cudnn, plan, pack);
}

int driver_graph_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    const struct driver_plans *p = plans_of(d, t);
    int at = id - GRAPH_FIRST_ID;
    if (!p || at >= p->count || o->workspace_bytes < p->workspace[at])
        return err_set(e, ERR_INTERNAL, "cuDNN's plan %d of a convolution is not there", at);
    cudnnStatus_t status = execute(d, p->plan[at], t->bias, o);
    return status ? err_set(e, ERR_UNAVAILABLE, "cuDNN's graph: %s", cudnnGetErrorString(status))
                  : 0;
}
