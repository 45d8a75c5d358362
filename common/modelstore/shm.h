/* shm.h: a job's shared-memory segment, through which model blocks pass between processes of a
 * host.
 *
 * A segment is one file (0600, sparse, with a name that cannot be guessed) in a folder, by default
 * /dev/shm. It has a header page, two reference blocks and the publish slots. The reference of
 * version v lies in block v & 1, so that the next one is written beside it while it is read.
 * kubeml-ps gives a slot to one (function, incarnation) at a time, so that a lost process never
 * writes where a live function does. The merger (module or kubeml-ps) writes the header and the
 * references, a function its slot; members have the rest mapped read-only.
 *
 * The header's state is a copy of the state that was committed last, for fast readers; the
 * database's state is the truth. Room is reserved before it is written, so that a full folder is an
 * error (ERR_IO) and not a signal. */
#ifndef KUBEML_SHM_H
#define KUBEML_SHM_H

#include <stdbool.h>
#include <stdint.h>

#include "block.h"
#include "common/base/err.h"

enum {
    SHM_NAME_BYTES = 128,
    SHM_PATH_BYTES = 256,
    SHM_SLOTS_MAX = 4096,
};
#define SHM_FOLDER "/dev/shm"

typedef struct shm shm;

typedef struct shm_state {
    int64_t version; /* -1: there is no reference yet */
    int64_t epoch, round;
    uint64_t checksum;
} shm_state;

/* Makes the segment "kubeml-<job>-<random>" in `folder`. Removes older segments of the job first.
 * ERR_IO, ERR_LIMIT (geometry), ERR_INVALID (job's name). */
int shm_create(const char *folder, const char *job, block_shape shape, int slots,
               uint64_t layout_digest, shm **out, err *e);
/* Opens by name. `merger`: header and references are writable. ERR_NOT_FOUND, ERR_CORRUPT (not a
 * segment, or cut short), ERR_INVALID (not a segment's name). */
int shm_open_segment(const char *folder, const char *name, bool merger, shm **out, err *e);
void shm_close(shm *s); /* unmaps; the file stays. NULL is fine */
/* Removes all segments of a job (`job` NULL: of every job). Returns how many. */
int shm_sweep(const char *folder, const char *job);
/* Calls `found` with the job of every segment; `found` may sweep it. */
void shm_each_job(const char *folder, void (*found)(const char *job, void *user), void *user);

const char *shm_name(const shm *s);
block_shape shm_shape(const shm *s);
uint64_t shm_layout_digest(const shm *s);
int shm_slots(const shm *s);

block shm_reference(const shm *s, int64_t version);
/* Reserves the references' pages; before the first write to them. ERR_IO. */
int shm_reserve_references(shm *s, err *e);
/* Maps a slot (kept until close); `writer` reserves its room. ERR_INVALID, ERR_IO, ERR_CORRUPT. */
int shm_slot(shm *s, int slot, bool writer, block *out, err *e);
/* Whether the segment is as long as it was made; a merger checks this before it reads slots. */
bool shm_whole(const shm *s);

shm_state shm_state_get(const shm *s); /* a consistent copy */
void shm_state_set(shm *s, shm_state state);

#endif
