/* storage_worker.h: writes what a job leaves behind: its model in the model store, its checkpoints
 * and its history.
 *
 * The storage worker owns the connection to the model store and the handle of the store, and works
 * on a worker thread alone. Each task is one blocking piece of work: the owner thread posts it with
 * its inputs and takes it back with its outcome. All tasks may be repeated: what is done already is
 * recognised.
 *
 * Failpoints, in the order of a job: opened, created, before-merge, before-copy, after-merge,
 * before-history, after-history, mid-checkpoint, after-checkpoint, before-final, after-final,
 * finished. */
#ifndef KUBEML_PS_STORAGE_WORKER_H
#define KUBEML_PS_STORAGE_WORKER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "checkpoint.h"
#include "common/base/err.h"
#include "common/modelstore/modelstore.h"
#include "common/round/round.h"
#include "ps/conn/worker.h"

enum {
    STORAGE_WORKER_CALL_MS = 60000, /* deadline of a call to the model store */
    STORAGE_WORKER_ROOM_MS = 3000,  /* of the question for room, for which an epoch waits */
    STORAGE_WORKER_INIT_EPOCH = -1, /* version 0 is this epoch's only contribution, merged */
    STORAGE_WORKER_LEDGER_BYTES_MAX = MODELSTORE_LEDGER_BYTES_MAX,
};

typedef struct storage_worker storage_worker;

typedef enum task_kind {
    TASK_OPEN,    /* in: access, store, job, resume. out: record; resumed, info */
    TASK_CREATE,  /* in: layout. An empty model store, its round (-1, 0) open for version 0 */
    TASK_LOAD,    /* in: layout, init. Version 0 from another model. out: version */
    TASK_INITIAL, /* in: incarnation, init, without. Merges function 0's model. out: version */
    TASK_MERGE,   /* in: merge, rows, ledger, incarnation. out: version, bad_function */
    TASK_ROOM,    /* in: function, slot. ERR_NOMEM: no room for the function's contributions */
    TASK_COMMIT,  /* in: record, info. History and checkpoint, durable. out: info.sha256 */
    /* After Redis came back empty. out: version, -1 where the model is to be made again; resumed,
     * info if from a checkpoint */
    TASK_RESTORE,
    TASK_FINISH, /* in: record, info, keep_model. out: info.sha256 ("" where there is no model) */
} task_kind;

typedef struct task {
    work work; /* first: a work is its task */
    task_kind kind;
    storage_worker *storage_worker;
    /* outcome */
    int status; /* 0 or -1 */
    err e;
    /* inputs; the task owns what they point to */
    modelstore_access access;
    char store[STORE_LOCATOR_BYTES], job[64], init[64];
    char without[REQUEST_TENSORS_BYTES]; /* INITIAL: tensors of init; "": takes no weights of it */
    bool resume, keep_model;
    bool last;       /* OPEN, RESTORE: no other try follows, see checkpoint_newest */
    int generation;  /* OPEN: this kubeml-ps writes nothing once a later one of the job has */
    int parallelism; /* OPEN: an epoch that was begun with more functions is begun anew */
    char *layout;
    int incarnation; /* INITIAL, and MERGE as one: function 0's that published; ROOM */
    int function, slot;
    char layout_digest[ROUND_DIGEST_BYTES], algorithms[ROUND_DIGEST_BYTES]; /* ROOM: of `ready` */
    round_merge merge;
    round_row *rows;
    char *ledger;
    json_t *record; /* TASK_OPEN's: out, NULL where there is none */
    /* outputs */
    checkpoint_info info;
    bool resumed;
    bool open; /* resumed within an epoch, which "open" of `record` describes */
    int64_t version;
    int bad_function;
    double merge_seconds;
} task;

task *task_new(storage_worker *k, task_kind kind); /* NULL when memory is gone */
void task_free(task *t);
void task_drop(work *w); /* task_free for worker_stop */
const char *task_name(task_kind kind);

storage_worker *storage_worker_new(int slots, err *e);
/* After the worker was joined. `drop_model`: drops the job's keys and segment. */
void storage_worker_free(storage_worker *k, bool drop_model);

#endif
