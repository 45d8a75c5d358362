/* probe_graph.c: cuDNN itself takes every part of driver_graph.c's graphs, as far as it can without
 * a GPU: all but what needs a handle. Part of make check-cuda; includes the file, whose functions
 * are its own. */
#include "kernels/cuda/driver_graph.c"

static int wrong;

static void check(const char *what, cudnnStatus_t status)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return;
    fprintf(stderr, "probe_graph: %s: %s\n", what, cudnnGetErrorString(status));
    wrong = 1;
}

static void check_parts(const conv_task *t)
{
    cleanup_pieces pieces p = {.count = 0};
    const conv_shape *s = &t->s;
    const int64_t ids[4] = {TENSOR_X, TENSOR_W, TENSOR_Y, TENSOR_BIAS};
    const void *at[4] = {t, t, t, t}, *none = NULL;
    cudnnDataType_t type = t->t == ELEMENT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    descriptor x, w, bias, first, second, y, operation, pack;
    check("x", tensor_nhwc(&p, TENSOR_X, type, s->n, s->c, s->h, s->w, &x));
    check("w", tensor_nhwc(&p, TENSOR_W, type, s->k, s->c / s->groups, s->r, s->s, &w));
    check("bias", tensor_nhwc(&p, TENSOR_BIAS, CUDNN_DATA_FLOAT, 1, s->k, 1, 1, &bias));
    check("a virtual tensor",
          tensor_nhwc(&p, TENSOR_VIRTUAL, CUDNN_DATA_FLOAT, s->n, s->k, s->p, s->q, &first));
    check("another",
          tensor_nhwc(&p, TENSOR_VIRTUAL + 1, CUDNN_DATA_FLOAT, s->n, s->k, s->p, s->q, &second));
    check("y", tensor_nhwc(&p, TENSOR_Y, type, s->n, s->k, s->p, s->q, &y));
    if (wrong)
        return;
    check("the convolution", convolution(&p, t, x, w, first, &operation));
    check("the sum", pointwise(&p, CUDNN_POINTWISE_ADD, first, bias, second, &operation));
    check("ReLU", pointwise(&p, CUDNN_POINTWISE_RELU_FWD, second, NULL, y, &operation));
    for (conv_pass pass = CONV_DATA; pass < CONV_PASSES; pass++) {
        conv_task back = {.s = *s, .pass = pass, .t = t->t, .add = pass == CONV_DATA};
        check("a convolution's gradients", convolution(&p, &back, x, w, y, &operation));
    }
    check("the operands", piece(&p, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    if (wrong)
        return;
    check("their names", set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 4, ids));
    check("their places",
          set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 4, at));
    check("no workspace",
          set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &none));
    check("all operands", cudnnBackendFinalize(pack));
}

int main(void)
{
    const conv_shape shape_of = {.n = 8,        .c = 16,    .h = 12,    .w = 10,
                                 .k = 32,       .r = 3,     .s = 3,     .p = 6,
                                 .q = 5,        .pad_h = 1, .pad_w = 1, .stride_h = 2,
                                 .stride_w = 2, .dil_h = 1, .dil_w = 1, .groups = 2};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        conv_task t = {.s = shape_of, .pass = CONV_FORWARD, .t = bf16 ? ELEMENT_BF16 : ELEMENT_F32,
                       .bias = true, .relu = true};
        check_parts(&t);
    }
    /* The whole of it needs a device: it must say so, and not crash. */
    struct device d = {0};
    conv_offer list[GRAPH_OFFERS], one;
    for (conv_pass pass = CONV_FORWARD; pass < CONV_PASSES; pass++) {
        conv_task t = {.s = shape_of, .pass = pass, .t = ELEMENT_BF16};
        if (driver_graph_offers(&d, &t, list, GRAPH_OFFERS) != 0 ||
            driver_graph_offer(&d, &t, "cudnn-graph-0-0", &one) == 0) {
            fprintf(stderr, "probe_graph: ways are offered without a device\n");
            wrong = 1;
        }
    }
    driver_graph_forget(&d);
    if (!wrong)
        puts("cuDNN takes the parts of our graphs");
    return wrong;
}
