/* cuda_ops.c: which ops the CUDA backend has; see cuda_run.h. */
#include "cuda_run.h"

const cuda_op cuda_ops[OP_COUNT] = {
    [OP_INPUT] = {cuda_forward_input, NULL},
    [OP_CONV2D] = {cuda_forward_conv, cuda_backward_conv},
    [OP_LINEAR] = {cuda_forward_conv, cuda_backward_conv},
    [OP_BATCH_NORM] = {cuda_forward_norm, cuda_backward_norm},
    [OP_ACTIVATION] = {cuda_forward_act, cuda_backward_act},
    [OP_MAX_POOL] = {cuda_forward_max_pool, cuda_backward_max_pool},
    [OP_AVG_POOL] = {cuda_forward_avg_pool, cuda_backward_avg_pool},
    [OP_ADAPTIVE_AVG_POOL] = {cuda_forward_avg_pool, cuda_backward_avg_pool},
    [OP_ADD] = {cuda_forward_pair, cuda_backward_pair},
    [OP_MUL] = {cuda_forward_pair, cuda_backward_pair},
    [OP_CONCAT] = {cuda_forward_parts, cuda_backward_parts},
    [OP_FLATTEN] = {cuda_forward_flatten, cuda_backward_flatten},
    [OP_DROPOUT] = {cuda_forward_dropout, cuda_backward_dropout},
    [OP_PAD_CHANNELS] = {cuda_forward_parts, cuda_backward_parts},
};
