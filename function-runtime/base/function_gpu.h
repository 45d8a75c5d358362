/* function_gpu.h: a function's process and its GPU.
 *
 * CUDA reads the visible GPU, and MPS its limits, when CUDA starts: so both are set before. CUDA
 * starts before the process enters the sandbox, which allows only those device files of the driver
 * that are open, and the folder of CUDA's libraries. */
#ifndef KUBEML_FUNCTION_GPU_H
#define KUBEML_FUNCTION_GPU_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "common/contract/gpu.h"

/* Warms up the GPU (context and libraries) in a warm process that was started for one
 * (KUBEML_WARM_GPU). Logs a failure; a job that needs the GPU fails later. */
void function_gpu_warm(void);
/* Gives the known algorithms (backend_autotune_load) to a warm process whose GPU is ready, and
 * preloads them, so that its job does not wait for them. Takes seconds at most. Does nothing if no
 * GPU is ready. */
void function_gpu_preload(const char *known);
/* The process's one GPU as `gpu` of welcome in docs/internals/protocol.md, if KUBEML_TELL_GPU asks
 * for it. A new reference; NULL: there is nothing to report. Logs a failure. */
json_t *function_gpu_told(void);
/* Opens the GPU of an order. `gpu` is its name, "" the GPU that this process sees. Does nothing if
 * the backend `on` computes on the CPU. ERR_CONFLICT: the process was made ready on another GPU. If
 * "auto" finds no GPU, that is no error, and `none` has the reason. A GPU that fails is an error,
 * ERR_UNAVAILABLE: the next process may find it in order. */
int function_gpu_open(const char *on, const char *gpu, gpu_share share, err *none, err *e);
/* The folder of cuDNN's libraries; false: they are not loaded. */
bool function_gpu_libraries(char out[256]);
/* The GPU's device files that are open, each once; returns their number. The sandbox must allow
 * opening them again: the driver opens a file for each piece of memory that the CPU sees too, which
 * a further stream, graph or pinned block needs. */
enum { FUNCTION_GPU_DEVICES_MAX = 24, FUNCTION_GPU_DEVICE_BYTES = 64 };
int function_gpu_devices(char out[FUNCTION_GPU_DEVICES_MAX][FUNCTION_GPU_DEVICE_BYTES]);

#endif
