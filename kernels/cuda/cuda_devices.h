/* cuda_devices.h: a process's devices, kept warm.
 *
 * Opening a device (the context, a stream, cuDNN's and cuBLASLt's handles) takes hundreds of
 * milliseconds to seconds, which the first batch of a warm function does not have. A device that a
 * program gives back is kept and given out again. Thread-safe. */
#ifndef KUBEML_CUDA_DEVICES_H
#define KUBEML_CUDA_DEVICES_H

#include "driver.h"

/* Gives out a kept device, or else a new one. The driver's errors; ERR_NOMEM. */
int cuda_device_open(const driver *d, int ordinal, device **out, err *e);
/* Waits for the device's work and keeps the device. A device that has failed is closed. NULL is
 * fine. */
void cuda_device_close(const driver *d, int ordinal, device *dev);
/* Keeps a device ready for the next open. */
int cuda_device_warm(const driver *d, int ordinal, err *e);
/* Closes the kept devices: for tests. */
void cuda_devices_forget(const driver *d);

#endif
