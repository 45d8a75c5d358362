/* usage.h: what a function's process uses: processor time, memory, and the GPU where it computes on
 * one. */
#ifndef KUBEML_FUNCTION_USAGE_H
#define KUBEML_FUNCTION_USAGE_H

#include <jansson.h>
#include <stdint.h>

typedef struct usage usage;

/* NULL: memory was gone. Asks NVML too, where there is one. Before the sandbox, which knows no such
 * files. */
usage *usage_open(void);
/* what it does is not this process's: it computes elsewhere. NULL is fine */
void usage_without_gpu(usage *u);
void usage_close(usage *u); /* NULL is fine */
/* What this process has of its GPU's memory; 0: nobody tells. NULL is fine */
uint64_t usage_gpu_own_bytes(usage *u);
/* {"cpu_percent" of one core, since the call before, "memory_bytes": the most that was resident,
 *  "gpu": {"name", "percent"?, "memory_bytes"?, "own_bytes", "watts"?, "own_percent"?}?}: what
 *  NVML does not tell is left out. A new reference, NULL without memory.
 * One thread at a time. */
json_t *usage_json(usage *u);

#endif
