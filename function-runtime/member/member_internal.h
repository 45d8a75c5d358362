/* member_internal.h: what member_open.c makes and member.c runs; member_shared.c does the tasks of
 * a process that all functions of the job share. */
#ifndef KUBEML_MEMBER_INTERNAL_H
#define KUBEML_MEMBER_INTERNAL_H

#include "common/contract/request.h"
#include "common/modelstore/modelstore.h"
#include "function-runtime/base/unsandboxed_thread.h"
#include "function-runtime/train/group.h"
#include "member.h"
#include "pslink.h"

enum { MEMBER_IPC_HANDLE_BYTES = 320, MEMBER_RANK_BYTES = 2 * BACKEND_DEVICE_BYTES + 1 };

/* What a shared process published last: the next reference, if the merge was of that alone. */
typedef struct member_mean {
    int64_t version; /* that it becomes; -1: there is none */
    uint64_t checksum;
    block at; /* the slot that it was published from */
} member_mean;

struct member {
    /* The order. */
    char job[MEMBER_JOB_BYTES], address[MEMBER_ADDRESS_BYTES], secret[256];
    int function, incarnation, threads;
    int functions; /* of this process, `function` being the first; 1 unless it is shared */
    modelstore_access access;
    request request;
    /* gpu: as CUDA_VISIBLE_DEVICES takes it; "": whatever this process sees */
    char backend[32], gpu[96];
    uint64_t gpu_bytes;    /* this process's share of the GPU's memory; 0: all of it */
    uint64_t engine_bytes; /* of it the engine's */
    char no_gpu[ERR_MESSAGE_BYTES]; /* that it was given one, and why it is not used; "" */
    char object_path[512], object[256], locator[512];
    int object_fd; /* the code where object_path is empty; -1: not open */

    /* What was made of it. */
    dataset *data;
    program *program;
    trainer *trainer; /* of a group: its first function's */
    group *group;     /* NULL unless the process is shared */
    json_t *failed; /* the message to kubeml-ps when something above could not be made */

    /* While it runs. */
    json_t *hello, *opening;
    usage *usage;
    pslink *link;
    modelstore *store;
    bool attached;
    _Atomic uint32_t carried; /* chunks of the model, to the store and from there */
    block reference; /* fetched versions; the member's own memory */
    member_mean mean;
    /* where the model lies on a GPU, for other processes; "": nowhere that they can read */
    char ipc_handle[MEMBER_IPC_HANDLE_BYTES];
    char no_ipc_handle[ERR_MESSAGE_BYTES]; /* on a GPU, and why they cannot; "": no such thing */
    /* of `merge: nccl`: the GPU that it would be a rank on; "": it cannot be one */
    char rank[MEMBER_RANK_BYTES];
    char no_rank[ERR_MESSAGE_BYTES]; /* and why not; "": it was not wanted */
    unsandboxed_thread *unsandboxed_thread; /* where NCCL is called; NULL: this thread */
    struct {
        int set, ask;    /* of the last communicator, and of its last mean; 0: none */
        unsigned dials;  /* of the link, when it was made */
        engine_fingerprint mean;
    } comm;
};

/* Copies the order into the member; ERR_INVALID naming the field. */
int member_read_order(const json_t *order, member *m, err *e);
/* The trainer, or the group of them, without weights. */
int member_make_trainer(member *m, char reason[TRAINER_REASON_BYTES], err *e);
const char *member_cpu(void); /* "x86_64-v4", ... */

/* ---- what the tasks are made of (member.c) ---- */

typedef struct train_order {
    json_int_t epoch, round, version, parallelism, function, batch_begin, batch_count, slot;
    double lr;
    bool keep;          /* what is trained stays on the GPU, where another function reads it */
    const json_t *mean; /* borrowed: where on the GPU the version lies; NULL: nowhere */
    json_t *history; /* borrowed: the validation losses of the epochs before; may be NULL */
} train_order;

double member_seconds(int64_t *from_ns); /* since then; moves it on */
void member_enter(member *m, const char *phase, int64_t epoch, int64_t round);
/* A batch is trained: kubeml-ps hears of it. `of` is the member; from any thread. */
void member_begun(void *of);
/* ERR_INVALID naming the task. */
int member_unpack(const json_t *task, err *e, const char *format, ...);
/* Version `version` into the engine, from the GPU where `mean` (may be NULL) says that it lies
 * there; 1 when the store has a newer one already: the task is stale. */
int member_fetch(member *m, int64_t version, const json_t *mean, err *e);
/* The memory that a contribution of that slot is published from. 1: there is no room for it, which
 * was told. */
int member_slot(member *m, int slot, block *to, err *e);
/* What lies there, with its checksum. 1: the round was over already; the contribution is not wanted
 * any more. */
int member_publish(member *m, const modelstore_publication *p, uint64_t *checksum, err *e);
void member_half_published(void);
/* What every round begins with: fetches the model (`fetch_s`), and reads the validation losses, for
 * a schedule that looks at them (caller frees). 1: it was told, or the round is over: there is
 * nothing to train. */
int member_begin(member *m, const train_order *o, double *fetch_s, double **history, size_t *count,
                 err *e);
/* What can never work is told to kubeml-ps, which ends the job. 0. */
int member_tell_failed(member *m, const char *reason, err *e);
/* The same of training or validating: 0. A GPU that failed in this process may do in another, which
 * kubeml-ps has started then: -1, this one is to end, so that its memory there is free. */
int member_task_failed(member *m, const char *reason, err *e);

/* ---- member_device.c ---- */

void member_lend(member *m); /* fills loan, or no_ipc_handle */
/* What the model is now, for those who read it there; NULL: it has to be published. New
 * reference. */
json_t *member_fingerprint(member *m);
/* The engine has version `version` from where `mean` (may be NULL) says; false: it has to be
 * fetched. */
bool member_adopt(member *m, int64_t version, const json_t *mean, int64_t deadline_ms);
int member_reduce_root(member *m, const json_t *task, err *e);
int member_average(member *m, const json_t *task, err *e);
/* Bytes as hexadecimal digits, with a NUL; and back, ERR_INVALID. */
void member_hex(const unsigned char *bytes, size_t count, char *out);
int member_unhex(const char *text, unsigned char *out, size_t count, err *e);

/* The task `average`, read. */
typedef struct average_order {
    json_int_t ask, epoch, round, version, slot;
    engine_peer of[ENGINE_AVERAGE_MAX]; /* those that trained */
    int function[ENGINE_AVERAGE_MAX];
    uint64_t samples;
    int n;
} average_order;

/* The engine's model as this round's one contribution. ERR_STALE: the round is over. */
int member_publish_mean(member *m, const average_order *o, uint64_t *checksum, err *e);
int member_averaged(member *m, const average_order *o, const engine_fingerprint *mean,
                    uint64_t checksum);
/* `bad`: whose model it was, or -1; `averaged`: there was a mean, which could not be published. */
int member_not_averaged(member *m, const average_order *o, int bad, bool averaged, const err *why);

/* ---- member_ranks.c ---- */

void member_offer_rank(member *m); /* fills rank, or no_rank */
int member_identify(member *m, const json_t *task, err *e);
int member_connect(member *m, const json_t *task, err *e);
int member_sum(member *m, average_order *o, int set, err *e);
/* The engine has the mean of that ask. */
int member_take_sum(member *m, int ask, const engine_fingerprint *mean, err *e);
void member_ranks_leave(member *m);

/* ---- member_shared.c ---- */

int member_train_shared(member *m, const json_t *task, err *e);
int member_validate_shared(member *m, const json_t *task, err *e);

#endif
