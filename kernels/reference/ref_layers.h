/* ref_layers.h: the reference's layers: a forward and a backward function of each op, in double
 * precision, as ops.h describes their argument, and the loss.
 *
 * A function of this header is in a row of the table of ops, and so on every backend that lacks the
 * op. Nothing here allocates, blocks or fails. */
#ifndef KUBEML_REF_LAYERS_H
#define KUBEML_REF_LAYERS_H

#include "kernels/backend.h"
#include "kernels/ops.h"

op_run ref_input; /* reads op_call.batch */

op_run ref_conv2d_forward, ref_conv2d_backward;
op_run ref_linear_forward, ref_linear_backward;

/* Keeps the batch's mean and 1/sqrt(var + eps) of each channel. The running statistics move on
 * unless one channel has a single value. */
op_run ref_batch_norm_forward, ref_batch_norm_backward;
size_t ref_batch_norm_keeps(const graph_node *n, int N);

/* Keeps the mean and 1/sqrt(var + eps) of each sample's groups. */
op_run ref_group_norm_forward, ref_group_norm_backward;
size_t ref_group_norm_keeps(const graph_node *n, int N);

op_run ref_activation_forward, ref_activation_backward;

/* Adaptive pooling, too. Max pooling keeps the position of each maximum in its plane (H, W). */
op_run ref_max_pool_forward, ref_max_pool_backward;
size_t ref_max_pool_keeps(const graph_node *n, int N);
op_run ref_avg_pool_forward, ref_avg_pool_backward;

/* The second input has the first one's shape or (C,1,1). */
op_run ref_add_forward, ref_add_backward;
op_run ref_mul_forward, ref_mul_backward;
op_run ref_concat_forward, ref_concat_backward;
op_run ref_pad_channels_forward, ref_pad_channels_backward;
op_run ref_flatten_forward, ref_flatten_backward;
op_run ref_dropout_forward, ref_dropout_backward;

/* The loss of n samples' logits (n, outputs); `dlogits` (or NULL) gets the gradient of their mean.
 */
backend_result ref_loss(backend_loss kind, const backend_batch *b, int outputs,
                        const double *logits, double *dlogits);

#endif
