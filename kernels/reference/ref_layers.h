/* ref_layers.h: the reference's layers: plain forward and backward functions, in double precision.
 *
 * N is the batch; x (N, in), y (N, out) are row-major NCHW without gaps. A backward function gets
 * dy and ADDS to dx, dw and db; dx is NULL where nobody needs it. w and b are double copies of the
 * float parameters. Nothing here allocates, blocks or fails. */
#ifndef KUBEML_REF_LAYERS_H
#define KUBEML_REF_LAYERS_H

#include "kernels/backend.h"

void ref_conv2d_forward(const graph_node *n, shape in, int N, const double *x, const double *w,
                        const double *b, double *y);
void ref_conv2d_backward(const graph_node *n, shape in, int N, const double *x, const double *w,
                         const double *dy, double *dx, double *dw, double *db);

void ref_linear_forward(int in, int out, int N, const double *x, const double *w, const double *b,
                        double *y);
void ref_linear_backward(int in, int out, int N, const double *x, const double *w, const double *dy,
                         double *dx, double *dw, double *db);

/* `saved` (2 * C): the batch's mean and 1/sqrt(var + eps), for the backward pass. running_mean and
 * running_var move on unless one channel has a single value. */
void ref_batch_norm_train(const graph_node *n, int N, const double *x, const double *w,
                          const double *b, float *running_mean, float *running_var, double *saved,
                          double *y);
void ref_batch_norm_infer(const graph_node *n, int N, const double *x, const double *w,
                          const double *b, const float *running_mean, const float *running_var,
                          double *y);
void ref_batch_norm_backward(const graph_node *n, int N, const double *x, const double *w,
                             const double *saved, const double *dy, double *dx, double *dw,
                             double *db);

void ref_activation_forward(const graph_node *n, size_t count, const double *x, double *y);
void ref_activation_backward(const graph_node *n, size_t count, const double *x, const double *dy,
                             double *dx);

/* `winner` (N, out): the position of each maximum in its plane (H, W); NULL forward for inference.
 */
void ref_max_pool_forward(const graph_node *n, shape in, int N, const double *x, int32_t *winner,
                          double *y);
void ref_max_pool_backward(const graph_node *n, shape in, int N, const int32_t *winner,
                           const double *dy, double *dx);
/* Average and adaptive average pooling. */
void ref_avg_pool_forward(const graph_node *n, shape in, int N, const double *x, double *y);
void ref_avg_pool_backward(const graph_node *n, shape in, int N, const double *dy, double *dx);

/* y = a op b for OP_ADD and OP_MUL; b has a's shape or (C,1,1). */
void ref_pairwise_forward(const graph_node *n, shape b_shape, int N, const double *a,
                          const double *b, double *y);
void ref_pairwise_backward(const graph_node *n, shape b_shape, int N, const double *a,
                           const double *b, const double *dy, double *da, double *db);

/* Copies `from` channels' worth of each sample between x (N, x_count) and y (N, y_count) at
 * y_offset: the parts of concat, and channel padding. */
void ref_part_forward(int N, size_t part, size_t y_offset, size_t y_count, const double *x,
                      double *y);
void ref_part_backward(int N, size_t part, size_t y_offset, size_t y_count, const double *dy,
                       double *dx);

/* x and y may not be NULL; called forward with x and y, backward with dy and dx (which it adds to).
 */
void ref_dropout(const graph_node *n, uint64_t seed, const backend_batch *b, const double *x,
                 double *y, bool add);

/* The loss of n samples' logits (n, outputs); `dlogits` (or NULL) gets the gradient of their mean.
 */
backend_result ref_loss(backend_loss kind, const backend_batch *b, int outputs,
                        const double *logits, double *dlogits);

#endif
