/* cuda_memory.h: every byte of device memory that this process takes, under one cap.
 *
 * The ledger is the process's: programs of several threads share the cap that `--gpu-memory` sets,
 * and none can take what another was promised. Thread-safe. */
#ifndef KUBEML_CUDA_MEMORY_H
#define KUBEML_CUDA_MEMORY_H

#include "driver.h"

/* What a part of a block takes, so that the next one begins where a load of any width may. */
static inline size_t cuda_aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* 0: no cap but the device's. What is already held stays. */
void cuda_memory_cap(size_t bytes);
size_t cuda_memory_held(void);
size_t cuda_memory_left(void); /* SIZE_MAX without a cap */

/* ERR_LIMIT over the cap, ERR_NOMEM when the device has no more; `what` ("layer conv1:
 * activations") and the need stand in the message. */
int cuda_memory_take(const driver *d, device *dev, size_t bytes, const char *what, void **out,
                     err *e);
/* The same for what can be done without. Of the cap `rest` bytes are left. Where there is none,
 * nobody here knows what other processes of the device will need: half of its memory stays free,
 * however many of them take some in this way. */
int cuda_memory_take_spare(const driver *d, device *dev, size_t bytes, size_t rest,
                           const char *what, void **out, err *e);
void cuda_memory_give(const driver *d, device *dev, void *p, size_t bytes);

#endif
