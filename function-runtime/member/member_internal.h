/* member_internal.h: the member, which member_open.c makes and member.c runs. member_shared.c does
 * the tasks of a process that all functions of the job share. */
#ifndef KUBEML_MEMBER_INTERNAL_H
#define KUBEML_MEMBER_INTERNAL_H

#include "common/contract/request.h"
#include "common/modelstore/modelstore.h"
#include "function-runtime/base/unsandboxed_thread.h"
#include "function-runtime/train/group.h"
#include "member.h"
#include "pslink.h"

enum { MEMBER_IPC_HANDLE_BYTES = 320, MEMBER_RANK_BYTES = 2 * BACKEND_DEVICE_BYTES + 1 };

/* The last mean that a shared process published. It becomes the next reference, if the merge has no
 * other contribution. */
typedef struct member_mean {
    int64_t version; /* of that reference; -1: there is no mean */
    uint64_t checksum;
    block at; /* the slot that the mean was published from */
} member_mean;

struct member {
    /* The order. */
    char job[MEMBER_JOB_BYTES], address[MEMBER_ADDRESS_BYTES], secret[256];
    int function, incarnation, threads;
    int functions; /* in this process, from `function` on; 1 unless it is shared */
    modelstore_access access;
    request request;
    /* gpu: as CUDA_VISIBLE_DEVICES takes it; "": the GPU that this process sees */
    char backend[32], gpu[96];
    uint64_t gpu_bytes;    /* this process's share of the GPU's memory; 0: all of it */
    uint64_t engine_bytes; /* the engine's part of it */
    char no_gpu[ERR_MESSAGE_BYTES]; /* member_without_gpu; "" for NULL */
    char object_path[512], object[256], locator[512];
    int object_fd; /* the code where object_path is empty; -1: not open */

    /* Made from the order. */
    dataset *data;
    program *program;
    trainer *trainer; /* of a group: its first function's */
    group *group;     /* NULL unless the process is shared */
    json_t *failed; /* the message `failed` to kubeml-ps, if member_open has failed */

    /* While it runs. */
    json_t *hello, *opening;
    usage *usage;
    pslink *link;
    modelstore *store;
    bool attached;
    _Atomic uint32_t carried; /* chunks of models sent to the store and fetched from it */
    block reference; /* the fetched version; the member's own memory */
    member_mean mean;
    /* the IPC handle of the model on a GPU, as text; "": other processes cannot read it */
    char ipc_handle[MEMBER_IPC_HANDLE_BYTES];
    char no_ipc_handle[ERR_MESSAGE_BYTES]; /* on a GPU: why they cannot; "": no reason to report */
    /* with `merge: nccl`: the GPU of its rank; "": it cannot be a rank */
    char rank[MEMBER_RANK_BYTES];
    char no_rank[ERR_MESSAGE_BYTES]; /* why it cannot; "": no rank was wanted */
    unsandboxed_thread *unsandboxed_thread; /* calls NCCL; NULL: the computing thread does */
    struct {
        int set, ask;    /* numbers of the last communicator and of its last mean; 0: none */
        unsigned dials;  /* pslink_dials when it was made */
        engine_fingerprint mean;
    } comm;
};

/* Copies the order into the member; ERR_INVALID naming the field. */
int member_read_order(const json_t *order, member *m, err *e);
/* Makes the trainer, or the group of trainers, without weights. */
int member_make_trainer(member *m, char reason[TRAINER_REASON_BYTES], err *e);
const char *member_cpu(void); /* "x86_64-v4", ... */

/* ---- parts of the tasks (member.c) ---- */

typedef struct train_order {
    json_int_t epoch, round, version, parallelism, function, batch_begin, batch_count, slot;
    double lr;
    bool keep;          /* the trained model stays on the GPU, where another function reads it */
    const json_t *mean; /* borrowed: where on the GPU the version is; NULL: nowhere */
    json_t *history; /* borrowed: the validation losses of the epochs before; may be NULL */
} train_order;

double member_seconds(int64_t *from_ns); /* the time since *from_ns, which becomes now */
/* Sets phase, epoch and round for heartbeats, log and crash line. */
void member_enter(member *m, const char *phase, int64_t epoch, int64_t round);
/* Reports to kubeml-ps that a batch is trained. `of` is the member; from any thread. */
void member_begun(void *of);
/* ERR_INVALID naming the task. */
int member_unpack(const json_t *task, err *e, const char *format, ...);
/* Gets version `version` into the engine, from a GPU if `mean` (may be NULL) names one. 1: the
 * store has a newer version already, and the task is stale. */
int member_fetch(member *m, int64_t version, const json_t *mean, err *e);
/* Gives the memory of a slot, from which a contribution is published. 1: there is no room for it,
 * which this has reported. */
int member_slot(member *m, int slot, block *to, err *e);
/* Publishes the contribution in that memory, and gives its checksum. 1: the round is over, and does
 * not take the contribution. */
int member_publish(member *m, const modelstore_publication *p, uint64_t *checksum, err *e);
void member_half_published(void);
/* Begins a round: fetches the model (time in `fetch_s`), and reads the validation losses, for
 * schedules that need them (the caller frees `history`). 1: there is nothing to train, because the
 * round is over, or an error was reported. */
int member_begin(member *m, const train_order *o, double *fetch_s, double **history, size_t *count,
                 err *e);
/* Reports an error that no retry can help to kubeml-ps, which ends the job. Returns 0. */
int member_tell_failed(member *m, const char *reason, err *e);
/* Reports an error in training or validation: 0. After a GPU error it returns -1: this process must
 * end, so that its GPU memory is free. kubeml-ps asks for another process, in which the GPU may
 * work. */
int member_task_failed(member *m, const char *reason, err *e);

/* ---- member_device.c ---- */

void member_lend(member *m); /* fills ipc_handle, or no_ipc_handle */
/* The fingerprint of the present model, for functions that read it on the GPU. A new reference;
 * NULL: the model must be published instead. */
json_t *member_fingerprint(member *m);
/* Takes version `version` from the GPU memory that `mean` (may be NULL) names; false: it must be
 * fetched. */
bool member_adopt(member *m, int64_t version, const json_t *mean, int64_t deadline_ms);
/* The tasks `lead` and `average`. */
int member_reduce_root(member *m, const json_t *task, err *e);
int member_average(member *m, const json_t *task, err *e);
/* Bytes as hexadecimal digits, with a NUL; and back, ERR_INVALID. */
void member_hex(const unsigned char *bytes, size_t count, char *out);
int member_unhex(const char *text, unsigned char *out, size_t count, err *e);

/* The task `average`, read. */
typedef struct average_order {
    json_int_t ask, epoch, round, version, slot;
    engine_peer of[ENGINE_AVERAGE_MAX]; /* models of the functions that trained */
    int function[ENGINE_AVERAGE_MAX];
    uint64_t samples;
    int n;
} average_order;

/* Publishes the engine's model as this round's one contribution. ERR_STALE: the round is over. */
int member_publish_mean(member *m, const average_order *o, uint64_t *checksum, err *e);
/* Reports the published mean. Returns 0. */
int member_averaged(member *m, const average_order *o, const engine_fingerprint *mean,
                    uint64_t checksum);
/* Reports that there is no published mean. `bad`: the index of the model at fault, or -1;
 * `averaged`: there is a mean, which could not be published. Returns 0. */
int member_not_averaged(member *m, const average_order *o, int bad, bool averaged, const err *why);

/* ---- member_ranks.c ---- */

void member_offer_rank(member *m); /* fills rank, or no_rank */
int member_identify(member *m, const json_t *task, err *e);
int member_connect(member *m, const json_t *task, err *e);
int member_sum(member *m, average_order *o, int set, err *e);
/* Takes the mean with that number, which this function has summed, into the engine. */
int member_take_sum(member *m, int ask, const engine_fingerprint *mean, err *e);
void member_ranks_leave(member *m);

/* ---- member_shared.c ---- */

int member_train_shared(member *m, const json_t *task, err *e);
int member_validate_shared(member *m, const json_t *task, err *e);

#endif
