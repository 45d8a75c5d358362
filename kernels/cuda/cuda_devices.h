/* cuda_devices.h: a process's devices, kept warm.
 *
 * Making one (the context, a stream, cuDNN's and cuBLASLt's handles) takes hundreds of milliseconds
 * to seconds, which the first batch of a warm function does not have. One that a program gives back
 * is kept and given out again. Thread-safe. */
#ifndef KUBEML_CUDA_DEVICES_H
#define KUBEML_CUDA_DEVICES_H

#include "driver.h"

/* One that is kept, else a new one. The driver's errors; ERR_NOMEM. */
int cuda_device_open(const driver *d, int ordinal, device **out, err *e);
/* Waits for its work; a device that has failed is of no more use and goes. NULL is fine. */
void cuda_device_close(const driver *d, int ordinal, device *dev);
/* Has one ready for the next open. */
int cuda_device_warm(const driver *d, int ordinal, err *e);
/* Drops those that are kept: for tests. */
void cuda_devices_forget(const driver *d);

#endif
