/* nvml.h: lists and measures GPUs by NVIDIA's management library (NVML).
 *
 * The library comes with the driver and is loaded at run time; its header is not needed.
 * KUBEML_NVML may name its file. One thread at a time. */
#ifndef KUBEML_NVML_H
#define KUBEML_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { NVML_NAME_BYTES = 96 };

/* A GPU of this machine, or a part of a GPU (MIG). The UUID is a value for CUDA_VISIBLE_DEVICES,
 * and does not depend on CUDA's order of devices. The memory is without the driver's own part; it
 * is the machine's memory where the GPU has no memory of its own. */
typedef struct nvml_gpu {
    char uuid[NVML_NAME_BYTES];
    uint64_t memory_bytes;
} nvml_gpu;

typedef struct nvml nvml;

/* The major version of the CUDA with which the engine is built, 13 say; 0: built without CUDA.
 * Tests set it. */
extern int nvml_cuda_major;

typedef struct nvml_sample {
    char name[NVML_NAME_BYTES];
    /* share of the last second or less in which a kernel of any process ran; -1: unknown (for a
     * part of a GPU) */
    int busy_percent;
    /* used by all processes; used by this process, 0 where it cannot be distinguished */
    uint64_t memory_bytes, own_bytes;
    uint64_t memory_total; /* 0: total and use are unknown (the memory is the host's) */
    double own_percent; /* busy with kernels of this process; -1: unknown */
    double watts;       /* of the whole GPU; -1: unknown */
} nvml_sample;

/* Opens the first GPU that CUDA shows to this process: CUDA_VISIBLE_DEVICES by number, UUID or
 * prefix of a UUID; else the name that nvml_given uses; else GPU 0. Errors, also of nvml_list and
 * nvml_given: ERR_NOT_FOUND: no library; ERR_UNAVAILABLE: the library does not start, or there is
 * no such GPU. */
int nvml_open(nvml **out, err *e);
void nvml_close(nvml *n); /* NULL is fine */
/* Lists the GPUs that this process may use (CUDA_VISIBLE_DEVICES, else all), `max` at most. Skips
 * GPUs whose compute capability or driver is too old for the engine, with a warning in the log.
 * A GPU that does not respond is skipped too, or is ERR_UNAVAILABLE if `each` is set. */
int nvml_list(bool each, nvml_gpu *out, int max, int *count, err *e);
/* Finds the one GPU, or part of a GPU (MIG), of this container: the name in NVIDIA_VISIBLE_DEVICES
 * if that is one name, without the number of a share (GPU-x::2), else the only GPU of the machine.
 * ERR_UNAVAILABLE: there are several GPUs, or no GPU that nvml_list would list. */
int nvml_given(nvml_gpu *out, err *e);
/* Measures the GPU now. ERR_UNAVAILABLE: the GPU does not respond. */
int nvml_read(nvml *n, nvml_sample *out, err *e);

#endif
