/* nvml.h: what a GPU does, as NVIDIA's management library says.
 *
 * The library comes with the driver and is loaded when it is there; no header of it is needed. Its
 * file may be named by KUBEML_NVML. One thread at a time. */
#ifndef KUBEML_NVML_H
#define KUBEML_NVML_H

#include <stdint.h>

#include "err.h"

enum { NVML_NAME_BYTES = 96 };

/* A GPU of this machine; its UUID is what CUDA_VISIBLE_DEVICES takes, whatever order CUDA counts
 * in. */
typedef struct nvml_gpu {
    char uuid[NVML_NAME_BYTES];
    uint64_t memory_bytes;
} nvml_gpu;

typedef struct nvml nvml;

typedef struct nvml_sample {
    char name[NVML_NAME_BYTES];
    /* of the last second or less in which a kernel ran; of all processes */
    unsigned busy_percent;
    /* taken by all processes; by this one, 0 where processes cannot be told apart */
    uint64_t memory_bytes, own_bytes;
    uint64_t memory_total;
    double own_percent; /* busy with kernels of this process; -1 where that is not told */
    double watts;       /* of the whole GPU */
} nvml_sample;

/* The GPU that CUDA counts as the first of this process (CUDA_VISIBLE_DEVICES by number or UUID,
 * else 0). ERR_UNAVAILABLE: no library, or no such GPU. */
int nvml_open(nvml **out, err *e);
void nvml_close(nvml *n); /* NULL is fine */
/* The GPUs that this process may use (CUDA_VISIBLE_DEVICES, else all), `max` at most.
 * ERR_UNAVAILABLE: no library, or one of them does not answer. */
int nvml_list(nvml_gpu *out, int max, int *count, err *e);
/* The one GPU, or part of one (MIG), that this container was given: what its runtime was told
 * (NVIDIA_VISIBLE_DEVICES), where that is one name, without the number of a share (GPU-x::2), else
 * the only one that is there. ERR_UNAVAILABLE: no library, several GPUs, or none. */
int nvml_given(nvml_gpu *out, err *e);
/* What the library does not tell is 0, or as said there. ERR_UNAVAILABLE: the GPU does not answer.
 */
int nvml_read(nvml *n, nvml_sample *out, err *e);

#endif
