/* driver.h: the seam between the CUDA backend's logic and the device.
 *
 * Two implementations: driver_cuda.c (CUDA's runtime, cuDNN, cuBLASLt) and the tests' fake, which
 * runs everything on the host. The backend sees the device through this table alone, so that its
 * planning, its graphs, its memory and its choice of algorithms are tested without a GPU.
 *
 * A `device` is one program's own stream with the libraries' handles; it belongs to one thread at a
 * time. Everything between `capture` and `captured` is recorded, not run. Errors: ERR_NOMEM from
 * allocations, ERR_UNAVAILABLE when the device failed (after which every call on it fails); what
 * the device or a library says follows "the GPU says: " or "... on the GPU: ", by which the trainer
 * knows it. */
#ifndef KUBEML_CUDA_DRIVER_H
#define KUBEML_CUDA_DRIVER_H

#include <string.h>

#include "cuda_kernels.h"
#include "kernels/backend.h"

typedef struct device device;
typedef struct device_graph device_graph;
typedef struct device_comm device_comm;

/* A part of what is reduced: every rank has one, and the result replaces it. */
typedef struct comm_part {
    void *at;
    size_t count;
    bool largest; /* int64_t, of which the largest is taken; otherwise floats, which are summed */
} comm_part;

typedef enum copy_way { COPY_IN, COPY_OUT, COPY_WITHIN } copy_way;

typedef struct device_facts {
    char name[96];                            /* "NVIDIA H200": one machine type, one name */
    char libraries[96];                       /* versions; part of the algorithm cache's key */
    unsigned char uuid[BACKEND_DEVICE_BYTES]; /* of this very GPU */
    int multiprocessors;
    size_t memory_bytes, free_bytes;
} device_facts;

/* One pass of one convolution or linear layer. The forward pass adds a bias and applies ReLU where
 * asked for; the data pass adds to dx where asked for; the weights pass writes floats. */
typedef struct conv_task {
    conv_shape s;
    conv_pass pass;
    element t;
    backend_precision precision;
    bool bias, relu, add;
} conv_task;

static inline bool conv_task_same(const conv_task *a, const conv_task *b)
{
    return memcmp(&a->s, &b->s, sizeof a->s) == 0 && a->pass == b->pass && a->t == b->t &&
           a->precision == b->precision && a->bias == b->bias && a->relu == b->relu &&
           a->add == b->add;
}

enum { CONV_OFFERS_MAX = 32, DRIVER_EVENTS = 16 };

/* A library's way of a task; only the driver knows what `id` means. */
typedef struct conv_offer {
    int id;
    size_t workspace;
    char name[32];
} conv_offer;

/* The offer of that name; -1: none. */
static inline int conv_offer_find(const conv_offer *list, int count, const char *name,
                                  conv_offer *out)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) {
            *out = list[i];
            return 0;
        }
    return -1;
}

/* The three operands of a pass: forward x, w -> y; data dy, w -> dx; weights x, dy -> dw. */
typedef struct conv_operands {
    const void *a, *b;
    const float *bias;
    void *out;
    void *workspace;
    size_t workspace_bytes;
} conv_operands;

typedef struct driver {
    const char *name; /* "cuda", "fake" */

    /* 0 when there is a device, otherwise as backend.missing. May take a second the first time. */
    int (*missing)(err *e);
    /* May take seconds the first time in a process (the context, the libraries): cuda_devices.h
     * keeps them. */
    int (*open)(int ordinal, device **out, err *e);
    void (*close)(device *d);
    int (*facts)(device *d, device_facts *f, err *e);

    int (*alloc)(device *d, size_t bytes, void **out, err *e);
    void (*free)(device *d, void *p);
    /* Pinned; kernels read and write it at the same address. */
    int (*alloc_host)(device *d, size_t bytes, void **out, err *e);
    void (*free_host)(device *d, void *p);
    /* The host's memory may be written to again when COPY_IN returns, unless it is pinned: then
     * when the copy has run. */
    int (*copy)(device *d, void *to, const void *from, size_t bytes, copy_way way, err *e);
    int (*zero)(device *d, void *to, size_t bytes, err *e);

    /* for our own kernels; makes the device this thread's present one */
    void *(*stream)(device *d);
    /* Blocks until all work is done; the first error of any of it. */
    int (*wait)(device *d, err *e);
    /* Events, 0 to DRIVER_EVENTS - 1: `await` blocks until what was enqueued before `record` is
     * done. */
    int (*record)(device *d, int event, err *e);
    int (*await)(device *d, int event, err *e);

    int (*capture)(device *d, err *e);
    int (*captured)(device *d, device_graph **out, err *e);
    /* In a capture: the work between `branch` and `trunk` depends on what was before `branch`, and
     * runs beside what follows `trunk`. What follows `join` depends on the branch too. One branch
     * at a time, and none is open when the capture ends. */
    int (*branch)(device *d, err *e);
    int (*trunk)(device *d, err *e);
    int (*join)(device *d, err *e);
    int (*replay)(device *d, device_graph *g, err *e);
    void (*release)(device *d, device_graph *g);

    /* Microseconds of device time between two marks: `which` 0, then 1, then `elapsed` (waits). */
    int (*mark)(device *d, int which, err *e);
    int (*elapsed)(device *d, float *us, err *e);

    /* What the libraries offer for the task, deterministic ways only; 0: nothing. */
    int (*offers)(device *d, const conv_task *t, conv_offer *list, int room);
    /* The offer of that name, sooner than the list of all; -1: it is not available. The name may
     * come from outside: a name that `offers` does not give never gets a way that computes less
     * exactly or in any order. */
    int (*offer)(device *d, const conv_task *t, const char *name, conv_offer *out);
    int (*run)(device *d, const conv_task *t, int id, const conv_operands *o, err *e);

    /* Memory of `alloc` that another process opens: functions of one job on one device.
     * ERR_UNSUPPORTED: not between these processes (another GPU or part of one, a container or
     * sandbox between them), or the owner is gone; the device still works. Open memory stays
     * memory, of any contents, when its owner gives it up. */
    int (*share)(device *d, void *p, unsigned char handle[BACKEND_HANDLE_BYTES], err *e);
    int (*open_shared)(device *d, const unsigned char handle[BACKEND_HANDLE_BYTES], void **out,
                       err *e);
    void (*close_shared)(device *d, void *p);

    /* Every block becomes the sum of all of them: n different devices of this process, a block of
     * `count` floats on each. In an order of the library's own; enqueued on each device's
     * stream. */
    int (*sum)(device **devs, float **blocks, int n, size_t count, err *e);

    /* Communicators between processes; see backend_comm. None of these calls waits for another
     * process: what `comm_begin` and `comm_reduce` began is done when `comm_poll` says so. After an
     * error of any of them, comm_abort is the only call allowed. */
    const char *(*comm_missing)(void); /* why there are no communicators; NULL: there are */
    int (*comm_id)(unsigned char id[BACKEND_COMM_ID_BYTES], err *e);
    int (*comm_begin)(device *d, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int ranks,
                      device_comm **out, err *e);
    /* in place, on the stream */
    int (*comm_reduce)(device *d, device_comm *c, const comm_part *part, int parts, err *e);
    int (*comm_poll)(device *d, device_comm *c, bool *done, err *e);
    void (*comm_abort)(device *d, device_comm *c); /* also of a working one */
} driver;

/* The driver of this build. */
extern const driver *const cuda_driver;

#endif
