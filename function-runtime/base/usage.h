/* usage.h: the resources that a function's process uses: CPU time, memory, and the GPU, if it
 * computes on one. */
#ifndef KUBEML_FUNCTION_USAGE_H
#define KUBEML_FUNCTION_USAGE_H

#include <jansson.h>
#include <stdint.h>

typedef struct usage usage;

/* Opens NVML too, if there is one. NULL: no memory. Call before the sandbox, which does not allow
 * NVML's files. */
usage *usage_open(void);
/* Leaves the GPU out: this process does not compute on it. NULL is fine. */
void usage_without_gpu(usage *u);
void usage_close(usage *u); /* NULL is fine */
/* The GPU memory that this process has; 0: not known. NULL is fine. */
uint64_t usage_gpu_own_bytes(usage *u);
/* {"cpu_percent" of one core, since the call before, "memory_bytes": the largest resident size,
 *  "gpu": {"name", "percent"?, "memory_bytes"?, "own_bytes", "watts"?, "own_percent"?}?}, without
 * fields that NVML does not give. A new reference, NULL when memory is gone. One thread at a
 * time. */
json_t *usage_json(usage *u);

#endif
