/* gpu.h: a function's share of a GPU, and the choice of its GPU. Pure, except for the functions
 * that read and set the environment of a process before it starts CUDA. */
#ifndef KUBEML_GPU_H
#define KUBEML_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum { GPU_COUNT_MAX = 255, GPU_MEMORY_TEXT_BYTES = 32 };

/* A job's request for each of its functions; 0: no limit. */
typedef struct gpu_share {
    uint64_t memory_bytes;
    int threads; /* per cent of the GPU's threads, 1 to 100; takes effect where MPS runs */
} gpu_share;

/* "2Gi", "512Mi", "1.5Gi" or bytes, below 2^53, which JSON numbers represent. ERR_INVALID. */
int gpu_memory_parse(const char *text, uint64_t *bytes, err *e);
/* The shortest text that parses to the same bytes. */
void gpu_memory_text(uint64_t bytes, char out[GPU_MEMORY_TEXT_BYTES]);

/* ---- placing --------------------------------------------------------------------------------- */

typedef enum gpu_policy {
    GPU_BEST_FIT, /* where the least memory stays free, so that large requests still find room */
    GPU_SPREAD,   /* where the fewest functions are, then where the most memory is free */
    GPU_PACK,     /* where the most functions are, then where the least memory stays free */
} gpu_policy;

typedef struct gpu_state {
    uint64_t memory_bytes, taken_bytes; /* memory_bytes 0: the GPU is absent, and is never chosen */
    int threads_taken; /* per cent */
    int functions;
    bool time_sliced; /* without MPS nothing limits threads, so that they do not count */
} gpu_state;

/* "best-fit", "spread", "pack". ERR_INVALID. */
int gpu_policy_parse(const char *text, gpu_policy *out, err *e);
/* Index of the GPU for one more function, the first of equals; -1: no GPU has room. A function
 * without a memory limit counts with an equal part: GPU_UNCAPPED_PARTS such functions fill a GPU.
 */
enum { GPU_UNCAPPED_PARTS = 8 };
int gpu_place(gpu_policy policy, const gpu_state *gpus, int count, gpu_share want);
uint64_t gpu_share_bytes(const gpu_state *gpu, gpu_share want); /* memory that `want` takes there */
void gpu_book(gpu_state *gpu, gpu_share want); /* counts one more function on the GPU */
/* The part of a process's share that its engine may allocate. The rest is for memory that CUDA
 * takes by itself: its context with the libraries' kernels (`context_bytes`, from the driver), and
 * GPU_LATER_BYTES for kernels that a model loads. Where the driver does not report it
 * (`context_bytes` 0), the rest is GPU_CONTEXT_BYTES, but at most half of the share, so that a
 * small share has room for a model. A share of 0 (no limit) gives 0. ERR_LIMIT: the share has no
 * room for an engine. */
#define GPU_CONTEXT_BYTES ((uint64_t)1280 << 20) /* 1,150 MiB on an H200: docs/guides/gpus.md */
#define GPU_LATER_BYTES   ((uint64_t)128 << 20)
#define GPU_ENGINE_LEAST  ((uint64_t)16 << 20)
int gpu_engine_bytes(uint64_t share_bytes, uint64_t context_bytes, uint64_t *out, err *e);

/* ---- MPS ------------------------------------------------------------------------------------- */

/* Whether the MPS daemon's pipe exists: in CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps. */
bool gpu_mps_runs(void);
/* Sets the environment that MPS reads when CUDA starts in this process: the share's threads and
 * memory. Call it before any thread and any call of CUDA; does nothing where MPS does not run. */
int gpu_mps_limit(gpu_share share, int device, err *e);

#endif
