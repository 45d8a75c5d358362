/* driver_nccl.c: sums over several devices of this process, by NCCL; see driver.h.
 *
 * Making communicators takes long, so those of the last set of devices are kept. */
#include <nccl.h>
#include <pthread.h>
#include <string.h>

#include "cuda/driver_cuda.h"

enum { RANKS_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ranks, ordinals[RANKS_MAX]; /* all under the lock */
static ncclComm_t comms[RANKS_MAX];

static int failed(err *e, ncclResult_t code)
{
    return err_set(e, ERR_UNAVAILABLE, "NCCL says: %s", ncclGetErrorString(code));
}

static void forget(void)
{
    for (int i = 0; i < ranks; i++)
        ncclCommDestroy(comms[i]);
    ranks = 0;
}

static int connect(device **devs, int n, err *e)
{
    int wanted[RANKS_MAX];
    for (int i = 0; i < n; i++)
        wanted[i] = devs[i]->ordinal;
    if (n == ranks && memcmp(wanted, ordinals, (size_t)n * sizeof *wanted) == 0)
        return 0;
    forget();
    ncclResult_t code = ncclCommInitAll(comms, n, wanted);
    if (code != ncclSuccess)
        return failed(e, code);
    memcpy(ordinals, wanted, (size_t)n * sizeof *wanted);
    ranks = n;
    return 0;
}

/* One group: NCCL starts nothing before all ranks are known. */
static int reduce(device **devs, float **blocks, int n, size_t count, err *e)
{
    ncclResult_t first = ncclGroupStart();
    for (int i = 0; first == ncclSuccess && i < n; i++)
        first = ncclAllReduce(blocks[i], blocks[i], count, ncclFloat, ncclSum, comms[i], devs[i]->stream);
    ncclResult_t ended = ncclGroupEnd();
    if (first != ncclSuccess || ended != ncclSuccess)
        return failed(e, first != ncclSuccess ? first : ended);
    return 0;
}

int driver_nccl_sum(device **devs, float **blocks, int n, size_t count, err *e)
{
    if (n > RANKS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d devices, at most %d", n, RANKS_MAX);
    pthread_mutex_lock(&lock);
    int status = connect(devs, n, e) || reduce(devs, blocks, n, count, e) ? -1 : 0;
    if (status != 0)
        forget();
    pthread_mutex_unlock(&lock);
    return status;
}
