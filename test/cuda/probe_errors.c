/* probe_errors.c: the driver on a stand-in for the calls of CUDA's runtime that it is about: CUDA
 * keeps a thread's last error, also of a request that was refused and harms nothing, until it is
 * asked for it. What the driver has told the next wait must not tell again; and a wait that tells
 * of a kernel that did not start has waited nevertheless. A GPU that nothing of ours runs on is
 * said to be one before anything is tried there. Needs no GPU; part of make check-cuda. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/driver_cuda.h"

static cudaError_t last;
static int syncs, capability = 90;
static cudaError_t looked; /* what who counts the GPUs is told */

static cudaError_t keep(cudaError_t code)
{
    if (code != cudaSuccess)
        last = code;
    return code;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last;
    last = cudaSuccess;
    return code;
}

cudaError_t cudaSetDevice(int ordinal)
{
    return keep(ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = looked ? 0 : 1;
    return keep(looked);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal)
{
    if (ordinal != 0)
        return keep(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    (void)out;
    (void)bytes;
    return keep(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaMalloc(out, bytes);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    syncs++;
    return cudaSuccess;
}

static int wrong;

static void check(const char *what, bool holds)
{
    if (!holds)
        fprintf(stderr, "probe_errors: not so: %s\n", what);
    wrong |= !holds;
}

int main(void)
{
    struct device d = {0};
    device *none = NULL;
    void *memory;
    err e = ERR_INIT;
    check("no memory is an error",
          cuda_driver->alloc(&d, 1, &memory, &e) != 0 && e.code == ERR_NOMEM);
    check("after which the device works on", cuda_driver->wait(&d, &e) == 0);
    check("the host's memory is not the GPU's",
          cuda_driver->alloc_host(&d, 3 << 20, &memory, &e) != 0 && e.code == ERR_NOMEM &&
              strcmp(e.message, "no pinned memory of the host (3.0 MiB)") == 0);
    check("and without it the device works on too", cuda_driver->wait(&d, &e) == 0);
    check("a GPU that is not there is an error", cuda_driver->open(1, &none, &e) != 0);
    check("after which the others work on", cuda_driver->wait(&d, &e) == 0);
    keep(cudaErrorInvalidConfiguration);
    syncs = 0;
    check("a kernel that did not start is an error", cuda_driver->wait(&d, &e) != 0);
    check("what did start is waited for", syncs == 1);
    check("and all of it told once", cuda_driver->wait(&d, &e) == 0);
    check("a GPU of today is not missing", cuda_driver->missing(&e) == 0);
    looked = cudaErrorNoDevice;
    check("where there is none it is", cuda_driver->missing(&e) != 0 && e.code == ERR_UNSUPPORTED &&
                                           strstr(e.message, "no GPU"));
    looked = cudaErrorMpsConnectionFailed;
    check("one that does not answer now may come back", cuda_driver->missing(&e) != 0 &&
                                                            e.code == ERR_UNAVAILABLE &&
                                                            strstr(e.message, "the GPU says: "));
    check("and it is told once", cuda_driver->wait(&d, &e) == 0);
    looked = cudaSuccess;
    capability = 75;
    check("one that is too old is", cuda_driver->missing(&e) != 0 && e.code == ERR_UNSUPPORTED &&
                                        strstr(e.message, "7.5; 8.0 is needed"));
    check("and to try it again is no help", cuda_driver->open(0, &none, &e) != 0 &&
                                                e.code == ERR_UNSUPPORTED &&
                                                strstr(e.message, "7.5; 8.0 is needed"));
    if (!wrong)
        puts("the driver tells of an error once");
    return wrong;
}
