/* driver_cuda.c: the device itself, by CUDA's runtime; see driver.h. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_cuda.h"

/* Bytes of a piece, and of the smallest copy that is worth several threads. */
#define PIECE_BYTES  ((size_t)2 << 20)
#define PIECES_LEAST (2 * PIECE_BYTES)

enum { CAPABILITY_LEAST = 8 }; /* what kernels of ours are compiled for: scripts/cuda.mk */

/* ---- errors ---------------------------------------------------------------------------------- */

/* ERR_UNSUPPORTED: there is no GPU for us. ERR_UNAVAILABLE: the GPU fails now, as after a fault of
 * another client of MPS. ERR_NOMEM: the GPU has no memory left. */
static err_code kind_of(cudaError_t code)
{
    if (code == cudaErrorMemoryAllocation)
        return ERR_NOMEM;
    return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
                   code == cudaErrorInvalidDevice || code == cudaErrorNoKernelImageForDevice
               ? ERR_UNSUPPORTED
               : ERR_UNAVAILABLE;
}

/* CUDA keeps the thread's last error, also a harmless one (no memory), until it is asked for it.
 * This clears the error, so that the next wait does not report it again. */
static int failed(err *e, cudaError_t code, const char *what)
{
    cudaGetLastError();
    return err_set(e, kind_of(code), "%s: the GPU says: %s (%d)", what, cudaGetErrorString(code),
                   (int)code);
}

/* TRY with an error that names the action. */
#define ASK(call, what)                                                                            \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess)                                                                  \
            return failed(e, code_, what);                                                         \
    } while (0)

/* Refuses a GPU that is too old for our kernels, which CUDA reports only when a kernel is started.
 * 0: the GPU is new enough, or cannot be asked; opening it then gives the reason. */
static int check_age(int ordinal, err *e)
{
    int major = 0, minor = 0;
    bool told =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess;
    if (told && major >= CAPABILITY_LEAST)
        return 0;
    cudaGetLastError();
    return told ? err_set(e, ERR_UNSUPPORTED, "GPU %d has compute capability %d.%d; %d.0 is needed",
                          ordinal, major, minor, CAPABILITY_LEAST)
                : 0;
}

/* Looks at the first GPU: an engine takes it unless it is told otherwise. */
static int real_missing(err *e)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0)
        return check_age(0, e);
    cudaGetLastError();
    if (code == cudaSuccess || kind_of(code) == ERR_UNSUPPORTED)
        return err_set(e, ERR_UNSUPPORTED, "no GPU: %s",
                       code ? cudaGetErrorString(code) : "none is there");
    return failed(e, code, "looking for a GPU");
}

/* ---- devices --------------------------------------------------------------------------------- */

static void destroy(device *d)
{
    driver_graph_forget(d);
    for (int i = 0; i < DRIVER_PIECES; i++)
        if (d->pieces[i].empty)
            cudaEventDestroy(d->pieces[i].empty);
    cudaFreeHost(d->pieces[0].at);
    if (d->lt)
        cublasLtDestroy(d->lt);
    if (d->cudnn)
        cudnnDestroy(d->cudnn);
    for (int i = 0; i < 2; i++)
        if (d->marks[i])
            cudaEventDestroy(d->marks[i]);
    for (int i = 0; i < DRIVER_EVENTS; i++)
        if (d->events[i])
            cudaEventDestroy(d->events[i]);
    if (d->parted)
        cudaEventDestroy(d->parted);
    if (d->done)
        cudaEventDestroy(d->done);
    if (d->trunk)
        cudaStreamDestroy(d->trunk);
    if (d->side)
        cudaStreamDestroy(d->side);
    free(d);
}

static int ask_facts(device *d, err *e)
{
    struct cudaDeviceProp prop;
    device_facts *f = &d->facts;
    ASK(cudaGetDeviceProperties(&prop, d->ordinal), "the GPU's properties");
    snprintf(f->name, sizeof f->name, "%.95s", prop.name);
    memcpy(f->uuid, prop.uuid.bytes, sizeof f->uuid);
    snprintf(f->libraries, sizeof f->libraries, "sm%d%d cudnn%zu cublasLt%zu", prop.major,
             prop.minor, cudnnGetVersion(), cublasLtGetVersion());
    f->multiprocessors = prop.multiProcessorCount;
    f->memory_bytes = prop.totalGlobalMem;
    return 0;
}

/* Without pieces, copies are CUDA's own. */
static void make_pieces(device *d)
{
    void *all;
    for (int i = 0; i < DRIVER_PIECES; i++)
        if (cudaEventCreateWithFlags(&d->pieces[i].empty, cudaEventDisableTiming))
            return;
    if (cudaMallocHost(&all, DRIVER_PIECES * PIECE_BYTES))
        return;
    for (int i = 0; i < DRIVER_PIECES; i++)
        d->pieces[i].at = (char *)all + (size_t)i * PIECE_BYTES;
}

static int make(device *d, err *e)
{
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    ASK(cudaStreamCreateWithFlags(&d->trunk, cudaStreamNonBlocking), "a stream");
    ASK(cudaStreamCreateWithFlags(&d->side, cudaStreamNonBlocking), "a stream");
    ASK(cudaEventCreateWithFlags(&d->parted, cudaEventDisableTiming), "an event");
    ASK(cudaEventCreateWithFlags(&d->done, cudaEventDisableTiming), "an event");
    d->stream = d->trunk;
    for (int i = 0; i < 2; i++)
        ASK(cudaEventCreate(&d->marks[i]), "an event");
    for (int i = 0; i < DRIVER_EVENTS; i++)
        ASK(cudaEventCreateWithFlags(&d->events[i], cudaEventDisableTiming), "an event");
    cudnnStatus_t dnn = cudnnCreate(&d->cudnn);
    if (dnn == CUDNN_STATUS_SUCCESS)
        dnn = cudnnSetStream(d->cudnn, d->stream);
    if (dnn != CUDNN_STATUS_SUCCESS)
        return err_set(e, ERR_UNAVAILABLE, "cuDNN does not start on the GPU: %s",
                       cudnnGetErrorString(dnn));
    cublasStatus_t lt = cublasLtCreate(&d->lt);
    if (lt != CUBLAS_STATUS_SUCCESS)
        return err_set(e, ERR_UNAVAILABLE, "cuBLASLt does not start on the GPU: %s",
                       cublasLtGetStatusString(lt));
    make_pieces(d);
    cudaGetLastError();
    return ask_facts(d, e);
}

static int real_open(int ordinal, device **out, err *e)
{
    if (check_age(ordinal, e) != 0)
        return -1;
    device *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "no memory for a device");
    d->ordinal = ordinal;
    if (make(d, e)) {
        destroy(d);
        return -1;
    }
    driver_warm(d);
    *out = d;
    return 0;
}

static int real_facts(device *d, device_facts *f, err *e)
{
    size_t available, total;
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    ASK(cudaMemGetInfo(&available, &total), "the GPU's memory");
    *f = d->facts;
    f->free_bytes = available;
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int real_alloc(device *d, size_t bytes, void **out, err *e)
{
    /* The thread may have used another device, or none. */
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    ASK(cudaMalloc(out, bytes), "memory");
    return 0;
}

static void real_free(device *d, void *p)
{
    (void)d;
    cudaFree(p);
}

static int real_alloc_host(device *d, size_t bytes, void **out, err *e)
{
    (void)d;
    cudaError_t code = cudaMallocHost(out, bytes);
    if (code == cudaErrorMemoryAllocation) { /* the host's memory, not the GPU's */
        cudaGetLastError();
        return err_set(e, ERR_NOMEM, "no pinned memory of the host (%.1f MiB)",
                       (double)bytes / 0x1p20);
    }
    ASK(code, "pinned memory of the host");
    return 0;
}

static void real_free_host(device *d, void *p)
{
    (void)d;
    cudaFreeHost(p);
}

/* One of the threads that fill the pieces of a large copy in turn: the host copies to pinned memory
 * more slowly than the GPU copies from there. */
typedef struct filler {
    device *d;
    char *to;
    const char *from;
    size_t bytes;
    int first, threads; /* every `threads`th piece, from `first` on */
    cudaError_t failed;
} filler;

static cudaError_t bring_piece(const filler *f, size_t at)
{
    size_t left = f->bytes - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    char *piece = f->d->pieces[f->first].at;
    TRY(cudaEventSynchronize(f->d->pieces[f->first].empty));
    memcpy(piece, f->from + at, bytes);
    TRY(cudaMemcpyAsync(f->to + at, piece, bytes, cudaMemcpyHostToDevice, f->d->stream));
    return cudaEventRecord(f->d->pieces[f->first].empty, f->d->stream);
}

static void *fill(void *arg)
{
    filler *f = arg;
    f->failed = cudaSetDevice(f->d->ordinal);
    for (size_t at = (size_t)f->first * PIECE_BYTES; !f->failed && at < f->bytes;
         at += (size_t)f->threads * PIECE_BYTES)
        f->failed = bring_piece(f, at);
    return NULL;
}

/* Where a thread does not start, this thread does its part. */
static cudaError_t bring(device *d, char *to, const char *from, size_t bytes)
{
    filler f[DRIVER_PIECES];
    pthread_t thread[DRIVER_PIECES];
    bool started[DRIVER_PIECES] = {false};
    cudaError_t failed = cudaSuccess;
    for (int i = DRIVER_PIECES - 1; i >= 0; i--) {
        f[i] = (filler){
            .d = d, .to = to, .from = from, .bytes = bytes, .first = i, .threads = DRIVER_PIECES};
        started[i] = i > 0 && pthread_create(&thread[i], NULL, fill, &f[i]) == 0;
        if (!started[i])
            fill(&f[i]);
    }
    for (int i = 0; i < DRIVER_PIECES; i++) {
        if (started[i])
            pthread_join(thread[i], NULL);
        failed = f[i].failed ? f[i].failed : failed;
    }
    return failed;
}

/* Whether the copy goes through the pieces: memory that is not pinned does. */
static bool takes_pieces(const device *d, const void *from, size_t bytes, copy_way way)
{
    struct cudaPointerAttributes of;
    if (way != COPY_IN || bytes < PIECES_LEAST || !d->pieces[0].at)
        return false;
    if (cudaPointerGetAttributes(&of, from) == cudaSuccess)
        return of.type == cudaMemoryTypeUnregistered;
    cudaGetLastError();
    return false;
}

static int real_copy(device *d, void *to, const void *from, size_t bytes, copy_way way, err *e)
{
    static const enum cudaMemcpyKind kinds[] = {[COPY_IN] = cudaMemcpyHostToDevice,
                                                [COPY_OUT] = cudaMemcpyDeviceToHost,
                                                [COPY_WITHIN] = cudaMemcpyDeviceToDevice};
    if (takes_pieces(d, from, bytes, way))
        ASK(bring(d, to, from, bytes), "copying");
    else if (bytes)
        ASK(cudaMemcpyAsync(to, from, bytes, kinds[way], d->stream), "copying");
    return 0;
}

static int real_zero(device *d, void *to, size_t bytes, err *e)
{
    if (!bytes)
        return 0;
    /* Clearing is a kernel for some sizes, and kernels start on the thread's present device. */
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    ASK(cudaMemsetAsync(to, 0, bytes, d->stream), "clearing");
    return 0;
}

/* Kernels are launched on the thread's present device, whichever thread that is. */
static void *real_stream(device *d)
{
    cudaSetDevice(d->ordinal);
    return d->stream;
}

/* Waits also where a kernel did not start: the kernels that did may still read memory that is given
 * back next. */
static int real_wait(device *d, err *e)
{
    cudaError_t started = cudaGetLastError(), ran = cudaStreamSynchronize(d->stream);
    ASK(started, "starting a kernel");
    ASK(ran, "running");
    return 0;
}

static int real_record(device *d, int event, err *e)
{
    ASK(cudaEventRecord(d->events[event], d->stream), "an event");
    return 0;
}

static int real_await(device *d, int event, err *e)
{
    ASK(cudaEventSynchronize(d->events[event]), "running");
    return 0;
}

/* ---- graphs and time ------------------------------------------------------------------------- */

static int real_capture(device *d, err *e)
{
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    ASK(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capturing");
    return 0;
}

static int real_captured(device *d, device_graph **out, err *e)
{
    cudaGraph_t recorded;
    cudaGraphExec_t ready;
    ASK(cudaStreamEndCapture(d->stream, &recorded), "capturing");
    cudaError_t code = cudaGraphInstantiate(&ready, recorded, 0);
    cudaGraphDestroy(recorded);
    if (code != cudaSuccess)
        return failed(e, code, "preparing a graph");
    code = cudaGraphUpload(ready, d->stream); /* otherwise its first launch does so */
    if (code != cudaSuccess) {
        cudaGraphExecDestroy(ready);
        return failed(e, code, "bringing a graph to the GPU");
    }
    *out = (device_graph *)(void *)ready;
    return 0;
}

/* cuDNN's handle follows, because its stream must be the capture's. */
static int enqueue_on(device *d, cudaStream_t stream, err *e)
{
    d->stream = stream;
    cudnnStatus_t status = cudnnSetStream(d->cudnn, stream);
    return status ? err_set(e, ERR_UNAVAILABLE, "cuDNN takes no stream on the GPU: %s",
                            cudnnGetErrorString(status))
                  : 0;
}

static int real_branch(device *d, err *e)
{
    ASK(cudaEventRecord(d->parted, d->trunk), "a branch");
    ASK(cudaStreamWaitEvent(d->side, d->parted, 0), "a branch");
    return enqueue_on(d, d->side, e);
}

static int real_trunk(device *d, err *e)
{
    cudaError_t code = cudaEventRecord(d->done, d->side);
    if (enqueue_on(d, d->trunk, e))
        return -1;
    ASK(code, "a branch");
    return 0;
}

static int real_join(device *d, err *e)
{
    ASK(cudaStreamWaitEvent(d->trunk, d->done, 0), "a branch");
    return 0;
}

static int real_replay(device *d, device_graph *g, err *e)
{
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    ASK(cudaGraphLaunch((cudaGraphExec_t)(void *)g, d->stream), "starting a graph");
    return 0;
}

static void real_release(device *d, device_graph *g)
{
    (void)d;
    cudaGraphExecDestroy((cudaGraphExec_t)(void *)g);
}

static int real_mark(device *d, int which, err *e)
{
    ASK(cudaEventRecord(d->marks[which], d->stream), "an event");
    return 0;
}

static int real_elapsed(device *d, float *us, err *e)
{
    float ms;
    ASK(cudaEventSynchronize(d->marks[1]), "an event");
    ASK(cudaEventElapsedTime(&ms, d->marks[0], d->marks[1]), "an event");
    *us = ms * 1000;
    return 0;
}

/* ---- what the libraries compute -------------------------------------------------------------- */

static int real_offers(device *d, const conv_task *t, conv_offer *list, int room)
{
    int count = driver_conv_offers(d, t, list, room);
    count += driver_graph_offers(d, t, list + count, room - count);
    if (driver_gemm_fits(t))
        count += driver_gemm_offers(d, t, list + count, room - count);
    return count;
}

static int real_offer(device *d, const conv_task *t, const char *name, conv_offer *out)
{
    return driver_conv_offer(d, t, name, out) && driver_gemm_offer(d, t, name, out) &&
                   driver_graph_offer(d, t, name, out)
               ? -1
               : 0;
}

static int real_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e)
{
    return id >= GEMM_FIRST_ID    ? driver_gemm_run(d, t, id, o, e)
           : id >= GRAPH_FIRST_ID ? driver_graph_run(d, t, id, o, e)
                                  : driver_conv_run(d, t, id, o, e);
}

/* ---- between processes ----------------------------------------------------------------------- */

_Static_assert(sizeof(cudaIpcMemHandle_t) == BACKEND_HANDLE_BYTES,
               "CUDA's handles are of another size");
_Static_assert(sizeof(cudaUUID_t) == BACKEND_DEVICE_BYTES, "a GPU's name is of another size");

/* The device stays usable: the error is cleared, or the next wait would report it. */
static int not_shared(err *e, cudaError_t code)
{
    cudaGetLastError();
    return err_set(e, ERR_UNSUPPORTED,
                   "the GPU's memory is not shared between these processes: %s (%d)",
                   cudaGetErrorString(code), (int)code);
}

static int real_share(device *d, void *p, unsigned char handle[BACKEND_HANDLE_BYTES], err *e)
{
    cudaIpcMemHandle_t h;
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    cudaError_t code = cudaIpcGetMemHandle(&h, p);
    if (code != cudaSuccess)
        return not_shared(e, code);
    memcpy(handle, &h, sizeof h);
    return 0;
}

static int real_open_shared(device *d, const unsigned char handle[BACKEND_HANDLE_BYTES], void **out,
                            err *e)
{
    cudaIpcMemHandle_t h;
    memcpy(&h, handle, sizeof h);
    ASK(cudaSetDevice(d->ordinal), "choosing the GPU");
    cudaError_t code = cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess);
    return code == cudaSuccess ? 0 : not_shared(e, code);
}

static void real_close_shared(device *d, void *p)
{
    if (cudaSetDevice(d->ordinal) != cudaSuccess || cudaIpcCloseMemHandle(p) != cudaSuccess)
        cudaGetLastError(); /* its owner is gone: there is nothing left to close */
}

static const driver real = {
    .name = "cuda",
    .missing = real_missing,
    .open = real_open,
    .close = destroy,
    .facts = real_facts,
    .alloc = real_alloc,
    .free = real_free,
    .alloc_host = real_alloc_host,
    .free_host = real_free_host,
    .copy = real_copy,
    .zero = real_zero,
    .stream = real_stream,
    .wait = real_wait,
    .record = real_record,
    .await = real_await,
    .capture = real_capture,
    .captured = real_captured,
    .branch = real_branch,
    .trunk = real_trunk,
    .join = real_join,
    .replay = real_replay,
    .release = real_release,
    .mark = real_mark,
    .elapsed = real_elapsed,
    .offers = real_offers,
    .offer = real_offer,
    .run = real_run,
    .share = real_share,
    .open_shared = real_open_shared,
    .close_shared = real_close_shared,
    .sum = driver_nccl_sum,
    .comm_missing = driver_nccl_missing,
    .comm_id = driver_comm_id,
    .comm_begin = driver_comm_begin,
    .comm_reduce = driver_comm_reduce,
    .comm_poll = driver_comm_poll,
    .comm_abort = driver_comm_abort,
};

const driver *const cuda_driver = &real;
