/* driver_nccl.c: sums over several devices by NCCL, of this process and of several processes; see
 * driver.h.
 *
 * The library is loaded when it is first wanted: where it is not installed, all else works.
 * Communicators between processes never block (ncclConfig.blocking = 0), so that a caller that
 * waits can give up. Making the communicators of one process takes long, so those of the last set
 * of devices are kept. */
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_cuda.h"

enum { RANKS_MAX = 64 };

/* ---- the library ----------------------------------------------------------------------------- */

#define NCCL_CALLS(X)                                                                              \
    X(ncclGetVersion)                                                                              \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitAll)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommAbort)                                                                               \
    X(ncclCommDestroy)                                                                             \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclAllReduce)

static struct {
#define X(name) __typeof__(&name) name;
    NCCL_CALLS(X)
#undef X
} nccl;
static const char *(*last_error)(ncclComm_t); /* NULL: it is older than 2.13 */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[160];

/* Looks for the library beside this object's other libraries (its run path) and where the system
 * looks. */
static void load(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(missing, sizeof missing, "NCCL is not installed: %.120s", dlerror());
        return;
    }
#define X(name)                                                                                    \
    if (!(nccl.name = (__typeof__(&name))dlsym(library, #name)))                                   \
        snprintf(missing, sizeof missing, "NCCL is too old: it has no %s", #name);
    NCCL_CALLS(X)
#undef X
    last_error = (__typeof__(last_error))dlsym(library, "ncclGetLastError");
}

const char *driver_nccl_missing(void)
{
    pthread_once(&once, load);
    return missing[0] ? missing : NULL;
}

int driver_nccl_version(void)
{
    int version = 0;
    if (!driver_nccl_missing())
        nccl.ncclGetVersion(&version);
    return version;
}

static int check_there(err *e)
{
    const char *why = driver_nccl_missing();
    return why ? err_set(e, ERR_UNSUPPORTED, "%s", why) : 0;
}

/* NCCL's last warning is the process's: it may be of an earlier failure. */
static int failed(err *e, ncclResult_t code)
{
    const char *warned = last_error ? last_error(NULL) : NULL;
    err_code kind =
        code == ncclInvalidUsage || code == ncclInvalidArgument ? ERR_UNSUPPORTED : ERR_UNAVAILABLE;
    return err_set(e, kind, "NCCL says: %s%s%.150s", nccl.ncclGetErrorString(code),
                   warned && *warned ? "; its last warning: " : "", warned ? warned : "");
}

/* ---- devices of this process ----------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ranks, ordinals[RANKS_MAX]; /* all under the lock */
static ncclComm_t comms[RANKS_MAX];

/* Drops the communicators. One that met an error may wait for ever for what it began, so it is
 * aborted. */
static void forget(bool whole)
{
    for (int i = 0; i < ranks; i++)
        (void)(whole ? nccl.ncclCommDestroy(comms[i]) : nccl.ncclCommAbort(comms[i]));
    ranks = 0;
}

static int connect(device **devs, int n, err *e)
{
    int wanted[RANKS_MAX];
    for (int i = 0; i < n; i++)
        wanted[i] = devs[i]->ordinal;
    if (n == ranks && memcmp(wanted, ordinals, (size_t)n * sizeof *wanted) == 0)
        return 0;
    forget(true);
    ncclResult_t code = nccl.ncclCommInitAll(comms, n, wanted);
    if (code != ncclSuccess)
        return failed(e, code);
    memcpy(ordinals, wanted, (size_t)n * sizeof *wanted);
    ranks = n;
    return 0;
}

/* One group: NCCL starts nothing before all ranks are known. */
static int reduce(device **devs, float **blocks, int n, size_t count, err *e)
{
    ncclResult_t first = nccl.ncclGroupStart();
    for (int i = 0; first == ncclSuccess && i < n; i++)
        first = nccl.ncclAllReduce(blocks[i], blocks[i], count, ncclFloat, ncclSum, comms[i],
                                   devs[i]->stream);
    ncclResult_t ended = nccl.ncclGroupEnd();
    if (first != ncclSuccess || ended != ncclSuccess)
        return failed(e, first != ncclSuccess ? first : ended);
    return 0;
}

int driver_nccl_sum(device **devs, float **blocks, int n, size_t count, err *e)
{
    if (check_there(e))
        return -1;
    if (n > RANKS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d devices, at most %d", n, RANKS_MAX);
    pthread_mutex_lock(&lock);
    int status = connect(devs, n, e) || reduce(devs, blocks, n, count, e) ? -1 : 0;
    if (status != 0)
        forget(false);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- processes ------------------------------------------------------------------------------- */

struct device_comm {
    ncclComm_t comm;
};

_Static_assert(sizeof(ncclUniqueId) == BACKEND_COMM_ID_BYTES, "NCCL's ids are of another size");

int driver_comm_id(unsigned char id[BACKEND_COMM_ID_BYTES], err *e)
{
    ncclUniqueId made;
    if (check_there(e))
        return -1;
    ncclResult_t code = nccl.ncclGetUniqueId(&made);
    if (code != ncclSuccess)
        return failed(e, code);
    memcpy(id, &made, sizeof made);
    return 0;
}

int driver_comm_begin(device *d, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int count,
                      device_comm **out, err *e)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId given;
    if (check_there(e))
        return -1;
    device_comm *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for a communicator");
    config.blocking = 0;
    memcpy(&given, id, sizeof given);
    cudaSetDevice(d->ordinal);
    ncclResult_t code = nccl.ncclCommInitRankConfig(&c->comm, count, given, rank, &config);
    if (code == ncclSuccess || code == ncclInProgress) {
        *out = c;
        return 0;
    }
    driver_comm_abort(d, c);
    return failed(e, code);
}

int driver_comm_reduce(device *d, device_comm *c, const comm_part *part, int parts, err *e)
{
    cudaSetDevice(d->ordinal);
    ncclResult_t code = nccl.ncclGroupStart();
    for (int i = 0; i < parts && (code == ncclSuccess || code == ncclInProgress); i++)
        code = nccl.ncclAllReduce(part[i].at, part[i].at, part[i].count,
                                  part[i].largest ? ncclInt64 : ncclFloat,
                                  part[i].largest ? ncclMax : ncclSum, c->comm, d->stream);
    ncclResult_t ended = nccl.ncclGroupEnd();
    if (code == ncclSuccess || code == ncclInProgress)
        code = ended;
    return code == ncclSuccess || code == ncclInProgress ? 0 : failed(e, code);
}

/* Asks first whether the work is enqueued, then whether it has run. */
int driver_comm_poll(device *d, device_comm *c, bool *done, err *e)
{
    ncclResult_t state = ncclSuccess;
    *done = false;
    ncclResult_t code = nccl.ncclCommGetAsyncError(c->comm, &state);
    if (code != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
        return failed(e, code != ncclSuccess ? code : state);
    if (state == ncclInProgress)
        return 0;
    cudaError_t ran = cudaStreamQuery(d->stream);
    *done = ran == cudaSuccess;
    if (ran != cudaSuccess)
        cudaGetLastError(); /* reported below, or no error: the next wait must not report it */
    if (ran == cudaSuccess || ran == cudaErrorNotReady)
        return 0;
    return err_set(e, ERR_UNAVAILABLE, "summing between GPUs: the GPU says: %s (%d)",
                   cudaGetErrorString(ran), (int)ran);
}

void driver_comm_abort(device *d, device_comm *c)
{
    cudaSetDevice(d->ordinal);
    if (c->comm)
        nccl.ncclCommAbort(c->comm);
    free(c);
}
