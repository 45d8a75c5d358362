/* nvml.h: what a GPU does, as NVIDIA's management library says.
 *
 * The library comes with the driver and is loaded when it is there; no header of it is needed. Its
 * file may be named by KUBEML_NVML. One thread at a time. */
#ifndef KUBEML_NVML_H
#define KUBEML_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { NVML_NAME_BYTES = 96 };

/* A GPU of this machine, or a part of one (MIG), as CUDA computes on; its UUID is what
 * CUDA_VISIBLE_DEVICES takes, whatever order CUDA counts in. The memory is without what the driver
 * keeps for itself, and the machine's where the GPU has none of its own. */
typedef struct nvml_gpu {
    char uuid[NVML_NAME_BYTES];
    uint64_t memory_bytes;
} nvml_gpu;

typedef struct nvml nvml;

/* Of the CUDA that the engine is built with, 13 say; 0: none is built. Tests set it. */
extern int nvml_cuda_major;

typedef struct nvml_sample {
    char name[NVML_NAME_BYTES];
    /* of the last second or less in which a kernel ran; of all processes; -1: not told (of a part
     * of a GPU) */
    int busy_percent;
    /* taken by all processes; by this one, 0 where processes cannot be told apart */
    uint64_t memory_bytes, own_bytes;
    uint64_t memory_total; /* 0: neither it nor what is taken is told (the memory is the host's) */
    double own_percent; /* busy with kernels of this process; -1 where that is not told */
    double watts;       /* of the whole GPU; -1 where that is not told */
} nvml_sample;

/* The GPU that CUDA counts as the first of this process (CUDA_VISIBLE_DEVICES by number, UUID or
 * the begin of one, else what nvml_given says of names, else 0). ERR_NOT_FOUND: no library;
 * ERR_UNAVAILABLE: it does not start, or there is no such GPU; of the next two too. */
int nvml_open(nvml **out, err *e);
void nvml_close(nvml *n); /* NULL is fine */
/* The GPUs that this process may use (CUDA_VISIBLE_DEVICES, else all), `max` at most. One whose
 * compute capability or driver is less than the engine needs is left out, with a warning in the
 * log, and so is one that does not answer, unless `each` must (ERR_UNAVAILABLE). */
int nvml_list(bool each, nvml_gpu *out, int max, int *count, err *e);
/* The one GPU, or part of one (MIG), that this container was given: what its runtime was told
 * (NVIDIA_VISIBLE_DEVICES), where that is one name, without the number of a share (GPU-x::2), else
 * the only one that is there. ERR_UNAVAILABLE: several GPUs, or none that nvml_list would not leave
 * out. */
int nvml_given(nvml_gpu *out, err *e);
/* ERR_UNAVAILABLE: the GPU does not answer. */
int nvml_read(nvml *n, nvml_sample *out, err *e);

#endif
