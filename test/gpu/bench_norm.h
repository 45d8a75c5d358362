/* bench_norm.h: batch norm of ours beside cuDNN's; needs a GPU and cuDNN. */
#ifndef KUBEML_BENCH_NORM_H
#define KUBEML_BENCH_NORM_H

#include "common/base/err.h"
#include "kernels/cuda/cuda_kernels.h"

/* Prints a line: for the forward pass, then for the backward pass, microseconds of ours, of cuDNN's
 * CUDNN_BATCHNORM_SPATIAL and of its _PERSISTENT (less than 0: not done; -1 it does not run, -2 it
 * cannot be captured, otherwise cuDNN's status), and our GB/s; last, by how much cuDNN's results
 * differ from ours at most, as a share of ours. */
int bench_norm(int channels, int side, int batch, element t, err *e);

#endif
