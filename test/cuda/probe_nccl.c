/* probe_nccl.c: the driver's way to NCCL, where there may be no GPU: the library is loaded when it
 * is wanted, names a communicator, and one on a GPU that is not there is an error, or with a GPU
 * comes about. Without the library both are named as missing. Exit status 0 unless it is otherwise.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/driver_cuda.h"

enum { POLLS_MAX = 30000 };

static int begin(const unsigned char id[BACKEND_COMM_ID_BYTES], err *e)
{
    struct device d = {0};
    device_comm *c;
    bool done = false;
    if (driver_comm_begin(&d, id, 0, 1, &c, e))
        return -1;
    int rc = 0;
    for (int i = 0; i < POLLS_MAX && rc == 0 && !done; i++) {
        rc = driver_comm_poll(&d, c, &done, e);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    driver_comm_abort(&d, c);
    return rc == 0 && !done ? err_set(e, ERR_TIMEOUT, "it does not come about") : rc;
}

int main(void)
{
    unsigned char id[BACKEND_COMM_ID_BYTES];
    err e = ERR_INIT;
    int gpus = 0;
    if (driver_nccl_missing()) {
        printf("%s\n", driver_nccl_missing());
        return driver_comm_id(id, &e) && e.code == ERR_UNSUPPORTED && begin(id, &e) ? 0 : 1;
    }
    printf("NCCL %d is loaded", driver_nccl_version());
    if (driver_comm_id(id, &e)) {
        printf("; no id: %s\n", e.message);
        return 1;
    }
    if (cudaGetDeviceCount(&gpus) != cudaSuccess)
        gpus = 0;
    int rc = begin(id, &e);
    printf("; on %d GPUs a communicator: %s\n", gpus, rc ? e.message : "comes about");
    return (rc == 0) == (gpus > 0) && e.code != ERR_TIMEOUT ? 0 : 1;
}
