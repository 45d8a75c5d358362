/* modelstore.h: the seam to the model store, which keeps a job's reference model and the published
 * blocks of its open round.
 *
 * Invariants of every implementation:
 *  1. Reference block, version, open round and ledger change together, in one atomic step: merge.
 *  2. A round is merged once. The store has one open round (epoch, round). Publishing or merging an
 *     earlier round is ERR_STALE, a later one ERR_CONFLICT.
 *  3. Publishing is idempotent by (epoch, round, function, incarnation). A higher incarnation of a
 *     function replaces what a lower one published; a lower one is then ERR_STALE.
 *  4. A block whose bytes do not match its published checksum is never merged: ERR_CORRUPT naming
 *     the function. The publication is forgotten, so that the block may be published again.
 *
 * Life of a job: kubeml-ps opens as MODELSTORE_OWNER and calls create with the layout, and with a
 * block when it resumes from a checkpoint. Without a block the store is empty (version -1):
 * function 0 publishes its initial model for the open round like any other contribution, and the
 * merge of that one contribution (the same bits) is version 0. Then in each round functions fetch,
 * train and publish, and kubeml-ps merges. After Redis has died any call gives ERR_UNAVAILABLE or
 * ERR_NOT_FOUND. kubeml-ps restarts Redis and calls create again with the last merged state.
 *
 * A handle belongs to one thread at a time. Every call blocks until it is done or its deadline
 * (clock_deadline_ms) has passed: ERR_TIMEOUT. Over sockets a model travels in chunks, and each
 * chunk may take as long as the call had left: a large model on a slow line times out only when the
 * line stands still. A call makes a lost connection anew, with back-off, until its deadline
 * (ERR_UNAVAILABLE). All calls can be repeated. */
#ifndef KUBEML_MODELSTORE_H
#define KUBEML_MODELSTORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "common/base/err.h"
#include "layout.h"

enum {
    MODELSTORE_ADDRESS_BYTES = 160,
    MODELSTORE_NAME_BYTES = 64,
    MODELSTORE_PATH_BYTES = 256,
    MODELSTORE_FUNCTIONS_MAX = 256,
    MODELSTORE_SLOTS_MAX = 4096,
    MODELSTORE_LEDGER_BYTES_MAX = 32 << 20,
};

typedef enum modelstore_role { MODELSTORE_OWNER, MODELSTORE_MEMBER } modelstore_role;

/* All that a process needs to open a job's model store. The JSON form travels in `access` and
 * `specialise`. */
typedef struct modelstore_access {
    char kind[MODELSTORE_NAME_BYTES]; /* "database": merged inside Redis; "server": merged by the
                                         owner; tests have "memory" */
    char address[MODELSTORE_ADDRESS_BYTES]; /* "unix:/path", "tcp:host:port"; memory: any name */
    char user[MODELSTORE_NAME_BYTES];
    char password[MODELSTORE_NAME_BYTES + 64];
    char job[MODELSTORE_NAME_BYTES];
    char tensor_path[MODELSTORE_NAME_BYTES]; /* "shm": one host; "socket" */
    char segment_dir[MODELSTORE_PATH_BYTES]; /* shm: folder of the segment; "": /dev/shm */
    /* Not in the JSON form: counts the chunks that travel over a socket; NULL: not counted. */
    _Atomic uint32_t *carried;
} modelstore_access;

json_t *modelstore_access_json(const modelstore_access *a); /* new reference; NULL: no memory */
int modelstore_access_parse(const json_t *json, modelstore_access *out, err *e); /* ERR_INVALID */

typedef struct modelstore_state {
    int64_t version;      /* of the reference; -1: there is none yet */
    int64_t epoch, round; /* the open round */
    uint64_t checksum;    /* of the reference block */
} modelstore_state;

typedef struct modelstore_publication {
    int64_t epoch, round,
        version; /* the open round; the version that was trained from (-1: none) */
    int function, incarnation;
    uint64_t samples;
    int slot; /* shm: the publish slot that the owner has given to the function; else 0 */
} modelstore_publication;

typedef struct modelstore_published {
    int function, incarnation;
    uint64_t samples, checksum;
} modelstore_published;

typedef struct modelstore_status {
    modelstore_state state;
    uint64_t layout_digest;
    size_t count; /* of the open round's publications, by function */
    modelstore_published published[MODELSTORE_FUNCTIONS_MAX];
} modelstore_status;

/* One expected contribution of the round to be merged. */
typedef struct modelstore_part {
    int function, incarnation;
    uint64_t samples; /* as published; otherwise ERR_CONFLICT */
} modelstore_part;

typedef struct modelstore_round {
    int64_t epoch, round; /* the open round */
    int64_t version;      /* of the reference that it was trained from; the merge is version + 1 */
    int64_t next_epoch, next_round; /* the round that the merge opens */
    const char *rule;               /* a name of merge.h */
    const modelstore_part *parts;   /* in the order of summation: by function */
    size_t count;
    /* What this merge adds to the ledger: JSON text, stored verbatim, committed with the reference.
     * By convention one object {"epoch","round","version","parts":[{"function","incarnation",
     * "samples","sample_begin","sample_end"}...]}. */
    const char *ledger;
} modelstore_round;

typedef struct modelstore_merged {
    modelstore_state state; /* after the commit */
    int bad_function;       /* with ERR_CORRUPT (wrong bytes) or ERR_INVALID (NaN, infinity): the
                               function that published them; else -1 */
} modelstore_merged;

typedef struct modelstore modelstore;

typedef struct modelstore_ops {
    const char *name; /* "database", "server", "memory" */
    int (*open)(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                modelstore **out, err *e);
    int (*create)(modelstore *m, const layout *l, const modelstore_state *start, int slots,
                  const block *b, const char *ledger, int64_t deadline_ms, err *e);
    int (*attach)(modelstore *m, layout *out, int64_t deadline_ms, err *e);
    int (*slot)(modelstore *m, int slot, block *out, err *e);
    int (*publish)(modelstore *m, const modelstore_publication *p, const block *b,
                   int64_t deadline_ms, uint64_t *checksum, err *e);
    int (*merge)(modelstore *m, const modelstore_round *r, int64_t deadline_ms,
                 modelstore_merged *out, err *e);
    int (*fetch)(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                 modelstore_state *out, err *e);
    int (*room)(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e);
    int (*state)(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e);
    int (*status)(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e);
    int (*ledger)(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e);
    int (*drop)(modelstore *m, int64_t deadline_ms, err *e);
    void (*close)(modelstore *m);
} modelstore_ops;

struct modelstore {
    const modelstore_ops *ops;
};

/* Connects; the job need not exist yet. ERR_UNSUPPORTED: the kind or tensor path is not built, or
 * not possible with this Redis (no module, no shared memory). ERR_UNAUTHORIZED, ERR_UNAVAILABLE. */
int modelstore_open(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                    modelstore **out, err *e);

/* Owner only. Begins the job at `start`, or replaces the job's state where the store has one: on
 * resuming, and on restoring after Redis has died. Functions must attach again only if the layout
 * has changed. ERR_LIMIT, ERR_NOMEM, ERR_IO (segment folder full).
 *   b NULL, start->version -1    the store is empty
 *   b NULL, start->version >= 0  the reference of that version is still in the shared segment
 *                                (ERR_CORRUPT: it does not match start->checksum; ERR_NOT_FOUND:
 *                                there is none)
 *   ledger                       the whole ledger so far, a JSON array; NULL: []
 *   slots                        how many publications may be written at the same time, those of
 *                                lost processes included (1..MODELSTORE_SLOTS_MAX; a slot costs
 *                                memory only when it is used) */
int modelstore_create(modelstore *m, const layout *l, const modelstore_state *start, int slots,
                      const block *b, const char *ledger, int64_t deadline_ms, err *e);

/* Reads the layout of a job that exists, and maps its segment; members call this once before the
 * rest. ERR_NOT_FOUND: there is no such job yet. `out` may be NULL; free it by layout_free. */
int modelstore_attach(modelstore *m, layout *out, int64_t deadline_ms, err *e);

/* The memory from which a publication of that slot is sent. Under shm it is the slot in the
 * segment, so that an engine placed there (engine_place) publishes without a copy; else it is the
 * handle's own. 64-byte aligned. The caller writes it until the next publish; it has what was
 * written last after that. Valid until close or the next `slot` with another number. ERR_INVALID,
 * ERR_IO (no room). */
int modelstore_slot(modelstore *m, int slot, block *out, err *e);

/* Publishes a copy of `b`; NULL: the slot's memory, which must stay unchanged until the round is
 * merged. `checksum` (may be NULL): of what was published; the merge of this one contribution alone
 * has the same. ERR_STALE; ERR_CONFLICT: another round is open, or other bytes were published
 * before; ERR_NOT_FOUND: the store was lost, and its model is not restored yet: try again. */
int modelstore_publish(modelstore *m, const modelstore_publication *p, const block *b,
                       int64_t deadline_ms, uint64_t *checksum, err *e);

/* Owner only: merges and commits. ERR_STALE: that round was merged before (out->state has the
 * present state); ERR_CONFLICT: a part was not published as stated. */
int modelstore_merge(modelstore *m, const modelstore_round *r, int64_t deadline_ms,
                     modelstore_merged *out, err *e);

/* Owner only, between two rounds: whether there is room for the contributions of one more function,
 * which gets that slot. Under shm the slot's room is reserved; over sockets Redis is asked whether
 * the contributions of `functions` functions fit. ERR_NOMEM: there is no room. */
int modelstore_room(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e);

/* Waits for a reference of at least that version, copies it into `to` and verifies it. */
int modelstore_fetch(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                     modelstore_state *out, err *e);

/* The state of the present reference, without its bytes: for a caller that may have them already.
 * Waits for no version. */
int modelstore_state_get(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e);

int modelstore_status_get(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e);

/* The ledger, a JSON array with one element a merge, NUL-terminated. Caller frees. It begins anew
 * with the merge whose element does not fit any more. */
int modelstore_ledger(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e);

/* Whether an element of `more` bytes does not fit behind `bytes` bytes of elements, commas
 * included. */
static inline bool modelstore_ledger_full(size_t bytes, size_t more)
{
    return bytes + more + 3 > MODELSTORE_LEDGER_BYTES_MAX; /* "[", "," and "]" */
}

/* Owner only: removes the job's keys and its segment. No error when there are none. */
int modelstore_drop(modelstore *m, int64_t deadline_ms, err *e);

void modelstore_close(modelstore *m); /* NULL is fine; leaves the job as it is */

#endif
