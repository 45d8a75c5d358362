/* checkpoint.h: a job's model as a blob of the store: all that is needed to go on with the same
 * bits.
 *
 * `models/<job>/epoch-NNNNNN` after N epochs, `models/<job>/final` at the end, and
 * `models/<job>/suspended-GGGGGG` by the job's kubeml-ps number G where it is suspended. The blob
 * is a safetensors file: the counters (I64), then parameters, buffers and optimizer state (F32)
 * under the names of the layout, each block in the order in which it lies in memory. Its metadata
 * hold the place in the job and the SHA-256 over the floats' bytes followed by the counters' bytes;
 * reading verifies it. There is the whole blob or none. Everything here blocks on the store. */
#ifndef KUBEML_PS_CHECKPOINT_H
#define KUBEML_PS_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/digest.h"
#include "common/base/err.h"
#include "common/modelstore/block.h"
#include "common/modelstore/layout.h"
#include "common/store/store.h"

enum { CHECKPOINTS_KEPT = 2 };

typedef struct checkpoint_info {
    char job[STORE_KEY_BYTES];
    char state[16]; /* "running", or how the job ended */
    int epochs;     /* done; the next one has this number */
    int64_t version;
    int64_t epoch, round; /* the round that was open */
    uint64_t seed;
    int parallelism; /* of the epoch done last */
    char sha256[DIGEST_HEX_BYTES];
} checkpoint_info;

/* A model in memory of its own. */
typedef struct model {
    layout layout;
    void *memory; /* contiguous, block_bytes(layout.shape) */
    block block;
} model;

/* Zeroed memory for a copy of `text`'s layout. */
int model_new(model *m, const char *layout_text, err *e);
void model_free(model *m); /* all zero is fine */
int model_digest(const model *m, char out[DIGEST_HEX_BYTES], err *e);

/* ERR_EXISTS where something stands under `name`. Fills info->sha256. */
int checkpoint_write(store *s, const char *name, checkpoint_info *info, const model *m, err *e);
/* The same instead of what stands there, which stays until the new one is whole. */
int checkpoint_replace(store *s, const char *name, checkpoint_info *info, const model *m, err *e);
/* ERR_NOT_FOUND; ERR_CORRUPT when the bytes are not those of its SHA-256. */
int checkpoint_read(store *s, const char *name, checkpoint_info *info, model *out, err *e);
/* Is that what a checkpoint's reading ends with whose bytes are wrong, or not there? After any
 * other error it may be as whole as ever. Of a disk that gives errors up to the `last` try nothing
 * is awaited any more: going back costs time, and no bit. */
bool checkpoint_is_damaged(err_code code, bool last);
/* The newest readable one of the job after at most `epochs_max` epochs; damaged ones are passed
 * over with a warning, and none for a store that does not answer, nor, but for the `last` try, for
 * a disk that cannot be read. ERR_NOT_FOUND. */
int checkpoint_newest(store *s, const char *job, int epochs_max, bool last, checkpoint_info *info,
                      model *out, err *e);
/* Whether there are any after more than `epochs` epochs, readable or not. */
int checkpoint_beyond(store *s, const char *job, int epochs, bool *any, err *e);
/* Of those after at most `epochs_max` epochs removes all but the `keep` newest. What is beyond is
 * of a kubeml-ps that was overtaken, or of the one that overtook us: no reason to remove ours, and
 * not ours to remove. */
int checkpoint_prune(store *s, const char *job, int epochs_max, size_t keep, err *e);
/* The model that the job ended with, or was suspended with, before it went on. */
int checkpoint_drop_final(store *s, const char *job, err *e);
/* Of those written where it was suspended, all but that of kubeml-ps `generation` (-1: all). */
int checkpoint_prune_suspended(store *s, const char *job, int generation, err *e);
/* Fills the weights of `m` (parameters, buffers, their counters; optimizer state stays as it is, as
 * what `without` names does: tensor_filter.h, NULL: none) from `models/<init>/final` or the blob
 * `init`; of a job that was resumed since, and has no final model now, from its newest checkpoint.
 * ERR_INVALID where there is none, where it is damaged, or naming a tensor that is missing, too
 * much, or of another shape or type. Floats of 16 and 64 bits become float32. */
int checkpoint_init(store *s, const char *init, const char *without, model *m, err *e);

int checkpoint_name(char out[STORE_KEY_BYTES], const char *job, int epochs, err *e);
int checkpoint_suspended_name(char out[STORE_KEY_BYTES], const char *job, int generation, err *e);
int checkpoint_final_name(char out[STORE_KEY_BYTES], const char *job, err *e);

#endif
