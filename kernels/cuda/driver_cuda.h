/* driver_cuda.h: what the real driver's files share. */
#ifndef KUBEML_DRIVER_CUDA_H
#define KUBEML_DRIVER_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "driver.h"

enum { DRIVER_PIECES = 4 };

struct device {
    int ordinal;
    device_facts facts; /* all but free_bytes: asking for them takes milliseconds */
    cudaStream_t stream;      /* what is enqueued goes there: `trunk`, or `side` in a branch */
    cudaStream_t trunk, side; /* the latter runs nothing but in captures */
    cudaEvent_t parted, done;
    cudaEvent_t marks[2], events[DRIVER_EVENTS];
    cudnnHandle_t cudnn;
    cublasLtHandle_t lt;
    struct driver_plans *plans; /* driver_graph.c's */
    struct {                    /* pinned, on the way in of what is not */
        char *at;               /* NULL: there is none */
        cudaEvent_t empty;
    } pieces[DRIVER_PIECES];
};

/* Returns the status of a library's call unless it is success: 0 for cuDNN and cuBLASLt. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        __typeof__(call) status_ = (call);                                                         \
        if (status_ != 0)                                                                          \
            return status_;                                                                        \
    } while (0)

static inline size_t driver_weights(const conv_shape *s)
{
    return (size_t)s->k * (size_t)s->r * (size_t)s->s * (size_t)(s->c / s->groups);
}

/* Bytes of the workspace for a dw that leaves cuDNN as bf16, on its way to floats. */
static inline size_t driver_narrow_bytes(const conv_shape *s)
{
    return (2 * driver_weights(s) + 255) / 256 * 256;
}

/* driver_warm.c: runs once a process, with its first device. */
void driver_warm(device *d);
/* driver_conv.c */
int driver_conv_offers(device *d, const conv_task *t, conv_offer *list, int room);
int driver_conv_offer(device *d, const conv_task *t, const char *name, conv_offer *out);
int driver_conv_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e);
/* driver_graph.c: the passes as graphs of cuDNN's, a forward one with its bias and ReLU */
enum { GRAPH_FIRST_ID = 60, GRAPH_OFFERS = 12 };
int driver_graph_offers(device *d, const conv_task *t, conv_offer *list, int room);
int driver_graph_offer(device *d, const conv_task *t, const char *name, conv_offer *out);
int driver_graph_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e);
void driver_graph_forget(device *d);
/* driver_nccl.c */
const char *driver_nccl_missing(void); /* why there is no NCCL; NULL: there is */
int driver_nccl_version(void);         /* 0: there is none */
int driver_nccl_sum(device **devs, float **blocks, int n, size_t count, err *e);
int driver_comm_id(unsigned char id[BACKEND_COMM_ID_BYTES], err *e);
int driver_comm_begin(device *d, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int ranks,
                      device_comm **out, err *e);
int driver_comm_reduce(device *d, device_comm *c, const comm_part *part, int parts, err *e);
int driver_comm_poll(device *d, device_comm *c, bool *done, err *e);
void driver_comm_abort(device *d, device_comm *c);
/* driver_gemm.c: for what is a plain matrix product */
enum { GEMM_FIRST_ID = 100, GEMM_OFFERS = 4 };
bool driver_gemm_fits(const conv_task *t);
int driver_gemm_offers(device *d, const conv_task *t, conv_offer *list, int room);
int driver_gemm_offer(device *d, const conv_task *t, const char *name, conv_offer *out);
int driver_gemm_run(device *d, const conv_task *t, int id, const conv_operands *o, err *e);

#endif
