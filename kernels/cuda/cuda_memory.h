/* cuda_memory.h: every byte of device memory that this process takes, under one cap.
 *
 * The ledger is the process's: programs of several threads share the cap that `--gpu-memory` sets,
 * and none can take what another was promised. Thread-safe. */
#ifndef KUBEML_CUDA_MEMORY_H
#define KUBEML_CUDA_MEMORY_H

#include "driver.h"

/* The size of a part of a block, rounded so that the next part begins where a load of any width
 * may. */
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
/* The same for memory that the caller can do without. `rest` bytes of the cap stay free. Without a
 * cap, half of the device's memory stays free, however many processes take memory in this way:
 * nobody here knows what other processes of the device will need. */
int cuda_memory_take_spare(const driver *d, device *dev, size_t bytes, size_t rest,
                           const char *what, void **out, err *e);
void cuda_memory_give(const driver *d, device *dev, void *p, size_t bytes);

#endif
