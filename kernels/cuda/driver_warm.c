/* driver_warm.c: the libraries' first use, while a process is made warm; see driver_cuda.h.
 *
 * cuDNN loads the parts of itself that it needs when it first lists or runs something, and either
 * library's first product brings its tables and kernels to the device. That takes hundreds of
 * milliseconds that a job would wait for, and opens files, which a function's sandbox does not
 * allow. Small layers therefore go through each library once, every pass of them, in floats and in
 * bf16. A failure here is ignored: it shows again, with its reason, where the library is used. */
#include <stdatomic.h>

#include "driver_cuda.h"

#define OPERAND_BYTES   ((size_t)256 << 10)
#define WORKSPACE_BYTES ((size_t)32 << 20)

enum { KINDS = 3 };

/* Which of the driver's files makes an offer. */
static int kind_of(int id)
{
    return id >= GEMM_FIRST_ID ? 2 : id >= GRAPH_FIRST_ID ? 1 : 0;
}

static void run_task(device *d, const conv_task *t, char *memory)
{
    conv_offer list[CONV_OFFERS_MAX];
    bool done[KINDS] = {false};
    conv_operands o = {.a = memory,
                       .b = memory + OPERAND_BYTES,
                       .bias = (float *)(void *)(memory + 2 * OPERAND_BYTES),
                       .out = memory + 3 * OPERAND_BYTES,
                       .workspace = memory + 4 * OPERAND_BYTES,
                       .workspace_bytes = WORKSPACE_BYTES};
    int count = cuda_driver->offers(d, t, list, CONV_OFFERS_MAX);
    for (int i = 0; i < count; i++) {
        int kind = kind_of(list[i].id);
        if (!done[kind] && list[i].workspace <= WORKSPACE_BYTES)
            done[kind] = cuda_driver->run(d, t, list[i].id, &o, NULL) == 0;
    }
}

static void run_layers(device *d, char *memory)
{
    static const conv_shape layers[] = {{.n = 4,
                                         .c = 16,
                                         .h = 8,
                                         .w = 8,
                                         .k = 16,
                                         .r = 3,
                                         .s = 3,
                                         .p = 8,
                                         .q = 8,
                                         .stride_h = 1,
                                         .stride_w = 1,
                                         .pad_h = 1,
                                         .pad_w = 1,
                                         .dil_h = 1,
                                         .dil_w = 1,
                                         .groups = 1},
                                        {.n = 16,
                                         .c = 64,
                                         .h = 1,
                                         .w = 1,
                                         .k = 64,
                                         .r = 1,
                                         .s = 1,
                                         .p = 1,
                                         .q = 1,
                                         .stride_h = 1,
                                         .stride_w = 1,
                                         .dil_h = 1,
                                         .dil_w = 1,
                                         .groups = 1}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int pass = 0; pass < CONV_PASSES; pass++)
            for (int half = 0; half < 2; half++) {
                bool first = pass == CONV_FORWARD;
                conv_task t = {.s = layers[i],
                               .pass = (conv_pass)pass,
                               .t = half ? ELEMENT_BF16 : ELEMENT_F32,
                               .precision = half ? PRECISION_BF16 : PRECISION_FP32,
                               .bias = first,
                               .relu = first};
                run_task(d, &t, memory);
            }
}

void driver_warm(device *d)
{
    static atomic_flag once = ATOMIC_FLAG_INIT;
    size_t bytes = 4 * OPERAND_BYTES + WORKSPACE_BYTES;
    void *memory;
    if (atomic_flag_test_and_set(&once) || cuda_driver->alloc(d, bytes, &memory, NULL))
        return;
    if (cuda_driver->zero(d, memory, bytes, NULL) == 0)
        run_layers(d, memory);
    cuda_driver->wait(d, NULL);
    cuda_driver->free(d, memory);
}
