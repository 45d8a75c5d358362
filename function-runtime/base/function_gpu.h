/* function_gpu.h: a function's process and its GPU.
 *
 * CUDA reads which GPU it sees, and MPS its limits, when it starts: so both are set before, and all
 * is opened before the sandbox, behind which are CUDA's libraries and of the driver's devices no
 * others than those that are open. */
#ifndef KUBEML_FUNCTION_GPU_H
#define KUBEML_FUNCTION_GPU_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "common/contract/gpu.h"

/* A warm process that was started for a GPU (KUBEML_WARM_GPU) makes it ready: context and
 * libraries. What fails is logged; who is specialised later fails with it. */
void function_gpu_warm(void);
/* Tells a warm process that is ready what is known (backend_autotune_load), which is run there, so
 * that its job does not wait for it: seconds at the most. Nothing in one that is not. */
void function_gpu_preload(const char *known);
/* What a warm process that is asked for it (KUBEML_TELL_GPU) says of the one GPU that it has, as
 * `gpu` of welcome in docs/internals/protocol.md. New reference; NULL: nothing, which is logged
 * where it was asked. */
json_t *function_gpu_told(void);
/* The GPU of an order: `gpu` is its name, "" the one that this process sees; does nothing where the
 * backend `on` computes on the CPU. ERR_CONFLICT: the process was made ready on another. Where
 * "auto" finds none that is no error: `none` says why. One that fails now is, ERR_UNAVAILABLE: the
 * next process may find it in order. */
int function_gpu_open(const char *on, const char *gpu, gpu_share share, err *none, err *e);
/* The folder of the libraries that were loaded; false: none were. */
bool function_gpu_libraries(char out[256]);
/* The GPU's device files that are open, each once; gives how many. Behind the sandbox they must be
 * opened again: the driver wants a file of its own for each piece of memory that the processor sees
 * too, which a further stream, graph or pinned block brings. */
enum { FUNCTION_GPU_DEVICES_MAX = 24, FUNCTION_GPU_DEVICE_BYTES = 64 };
int function_gpu_devices(char out[FUNCTION_GPU_DEVICES_MAX][FUNCTION_GPU_DEVICE_BYTES]);

#endif
