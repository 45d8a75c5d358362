/* modelstore.h: the seam to where a job's reference model and the published blocks of its open
 * round are kept.
 *
 * Invariants, whatever the implementation:
 *  1. Reference block, version, open round and ledger change together, in one atomic step: merge.
 *  2. A round is merged once. The store has one open round (epoch, round); publishing and merging
 * for an earlier one is ERR_STALE, for a later one ERR_CONFLICT.
 *  3. Publishing is idempotent by (epoch, round, function, incarnation). A higher incarnation of a
 *     function replaces what a lower one published; a lower one is then ERR_STALE.
 *  4. A block whose bytes do not match the checksum it was published with is never merged:
 * ERR_CORRUPT naming the function, and its publication is forgotten so that it may be published
 * again.
 *
 * Life of a job: kubeml-ps opens as MODELSTORE_OWNER and calls create with the layout (and a block
 * when it resumes from a checkpoint). Without a block the store is empty (version -1): function 0
 * publishes its initial model for the open round like any other contribution, and the merge of that
 * one contribution (the same bits) is version 0. Then per round: functions fetch, train, publish;
 * kubeml-ps merges. After Redis died: any call gives ERR_UNAVAILABLE or ERR_NOT_FOUND; kubeml-ps
 * restarts it and calls create again with the last merged state.
 *
 * A handle belongs to one thread at a time. Every call blocks until done or its deadline
 * (clock_deadline_ms): ERR_TIMEOUT. Over sockets a model travels in chunks, and each may take as
 * long as the call had left: a large model on a slow line is late only when it stands. A lost
 * connection is made anew within a call, with back-off, until the deadline (ERR_UNAVAILABLE); all
 * calls can be repeated. */
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

/* All that a participant needs; the JSON form travels in `access` and `specialise`. */
typedef struct modelstore_access {
    char kind[MODELSTORE_NAME_BYTES]; /* "database": merged inside Redis; "server": merged by the
                                         owner; tests have "memory" */
    char address[MODELSTORE_ADDRESS_BYTES]; /* "unix:/path", "tcp:host:port"; fake: any name */
    char user[MODELSTORE_NAME_BYTES];
    char password[MODELSTORE_NAME_BYTES + 64];
    char job[MODELSTORE_NAME_BYTES];
    char tensor_path[MODELSTORE_NAME_BYTES]; /* "shm": one host; "socket" */
    char segment_dir[MODELSTORE_PATH_BYTES]; /* shm: folder of the segment; "": /dev/shm */
    /* Not in the JSON form: counts the chunks that travel over a socket; NULL: nobody looks. */
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
    int slot; /* shm: which slot the block goes into, allotted by the owner; else 0 */
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
    uint64_t samples; /* must be what was published: ERR_CONFLICT otherwise */
} modelstore_part;

typedef struct modelstore_round {
    int64_t epoch, round; /* the open round */
    int64_t version;      /* of the reference it was trained from; the merge is version + 1 */
    int64_t next_epoch, next_round; /* the round that the merge opens */
    const char *rule;               /* a name of merge.h */
    const modelstore_part *parts;   /* in the order of summation: by function */
    size_t count;
    /* What this merge adds to the ledger: JSON text, kept verbatim, committed with the reference.
     * By convention one object {"epoch","round","version","parts":[{"function","incarnation",
     * "samples","sample_begin","sample_end"}...]}. */
    const char *ledger;
} modelstore_round;

typedef struct modelstore_merged {
    modelstore_state state; /* after the commit */
    int bad_function;       /* with ERR_CORRUPT (its bytes) or ERR_INVALID (NaN, infinity): whose
                               publication it was; else -1 */
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

/* Connects (no job needs to exist yet). ERR_UNSUPPORTED for a kind or carrier that is not built or
 * not possible with this Redis (no module, no shared memory), ERR_UNAUTHORIZED, ERR_UNAVAILABLE. */
int modelstore_open(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                    modelstore **out, err *e);

/* Owner only. Begins the job at `start` or, where the job's state is in the store already, replaces
 * it (resume, put back after Redis died; functions must attach again only if the layout changed).
 * b NULL and start->version -1: empty. b NULL and start->version >= 0: the reference still lies in
 * the shared segment at that version (ERR_CORRUPT when it does not match start->checksum,
 * ERR_NOT_FOUND when there is none). `ledger` is the whole ledger so far, a JSON array, NULL: [].
 * `slots`: how many publications may be written at the same time, zombies included
 * (1..MODELSTORE_SLOTS_MAX; they cost memory only when used). ERR_LIMIT, ERR_NOMEM, ERR_IO (segment
 * folder full). */
int modelstore_create(modelstore *m, const layout *l, const modelstore_state *start, int slots,
                      const block *b, const char *ledger, int64_t deadline_ms, err *e);

/* Learns the layout (and maps the segment) of a job that exists; members call it once before the
 * rest. ERR_NOT_FOUND when there is no such job yet. `out` may be
 * NULL; free with layout_free. */
int modelstore_attach(modelstore *m, layout *out, int64_t deadline_ms, err *e);

/* The memory that a publication of that slot is sent from: under shm the slot in the segment, so
 * that an engine placed there (engine_place) publishes without a copy; else memory of the handle's
 * own. 64-byte aligned; its contents are the caller's until the next publish and what was last
 * written after it. Valid until close or the next `slot` with another number. ERR_INVALID, ERR_IO
 * (no room). */
int modelstore_slot(modelstore *m, int slot, block *out, err *e);

/* Publishes. `b` NULL: what lies in the slot's memory now, which must stay unchanged until the
 * round is merged; else copied from there. `checksum` (may be NULL): of what was published; the
 * merge of that one contribution alone has the same. ERR_STALE, ERR_CONFLICT (another round is
 * open; published before with other bytes), ERR_NOT_FOUND (the store was lost, and its model is not
 * back yet: once more). */
int modelstore_publish(modelstore *m, const modelstore_publication *p, const block *b,
                       int64_t deadline_ms, uint64_t *checksum, err *e);

/* Owner only: merges and commits. ERR_STALE when that round was merged before (out->state tells the
 * present state), ERR_CONFLICT when a part has not been published as stated. */
int modelstore_merge(modelstore *m, const modelstore_round *r, int64_t deadline_ms,
                     modelstore_merged *out, err *e);

/* Owner only, between two rounds: whether one more function, which gets that slot, finds room for
 * what it publishes. Under shm the slot's room is taken; over sockets Redis is asked whether what
 * `functions` of them publish fits. ERR_NOMEM: there is none. */
int modelstore_room(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e);

/* Copies the reference of at least that version into `to` and verifies it; waits for it. */
int modelstore_fetch(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                     modelstore_state *out, err *e);

/* What the reference is now, without its bytes: for who may have them already. Waits for no
 * version.
 */
int modelstore_state_get(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e);

int modelstore_status_get(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e);

/* The ledger, a JSON array with one element a merge, NUL-terminated. Caller frees. It begins anew
 * with the merge whose element does not fit any more. */
int modelstore_ledger(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e);

/* Whether an element of `more` bytes does not fit; `bytes`: of the elements so far, commas
 * included. */
static inline bool modelstore_ledger_full(size_t bytes, size_t more)
{
    return bytes + more + 3 > MODELSTORE_LEDGER_BYTES_MAX; /* "[", "," and "]" */
}

/* Owner only: removes the job's keys and its segment. No error when there are none. */
int modelstore_drop(modelstore *m, int64_t deadline_ms, err *e);

void modelstore_close(modelstore *m); /* NULL is fine; leaves the job as it is */

#endif
