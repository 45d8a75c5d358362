/* fused.cuh: what fused.cu asks of fused_tiles.cu, which has its kernels for the usual geometry. */
#ifndef KUBEML_FUSED_CUH
#define KUBEML_FUSED_CUH

#include "device.cuh"

/* Windows of 3x3 or 5x5 taps next to each other, pooled by 2x2, that fit. */
bool cuda_tiles_fit(const conv_shape &s, const pool_shape &o);
void cuda_tiles_forward(void *stream, element t, const conv_shape &s, const pool_shape &o,
                        const void *x, const void *w, const float *bias, bool relu,
                        uint16_t *winner, void *y);
/* part: of each sample, its gradient of the weights and then of the biases. */
void cuda_tiles_backward(void *stream, element t, const conv_shape &s, const pool_shape &o,
                         const void *x, const void *w, const uint16_t *winner, const void *y,
                         bool relu, const void *dy, float *part, void *dx, bool add);

#endif
