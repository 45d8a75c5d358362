/* checkpoint.h: a job's model as a blob of the store: all that is needed to resume the job with the
 * same bits.
 *
 * `models/<job>/epoch-NNNNNN` after N epochs, `models/<job>/final` at the end, and
 * `models/<job>/suspended-GGGGGG` by the job's kubeml-ps number G where it is suspended. The blob
 * is a safetensors file: the counters (I64), then parameters, buffers and optimizer state (F32)
 * under the names of the layout, each block in the order in which it lies in memory. Its metadata
 * hold the place in the job and the SHA-256 over the floats' bytes followed by the counters' bytes;
 * reading verifies it. A blob is written whole or not at all. All functions block on the store. */
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

/* ERR_EXISTS where there is a blob `name`. Fills info->sha256. */
int checkpoint_write(store *s, const char *name, checkpoint_info *info, const model *m, err *e);
/* The same, replacing a blob `name`, which stays until the new one is whole. */
int checkpoint_replace(store *s, const char *name, checkpoint_info *info, const model *m, err *e);
/* ERR_NOT_FOUND; ERR_CORRUPT when the bytes are not those of its SHA-256. */
int checkpoint_read(store *s, const char *name, checkpoint_info *info, model *out, err *e);
/* Whether the error of a read means that the checkpoint's bytes are wrong or missing. After any
 * other error the checkpoint may be whole. A disk error counts as damage on the `last` try alone:
 * going back to an older checkpoint costs time, and no bit. */
bool checkpoint_is_damaged(err_code code, bool last);
/* Reads the job's newest readable checkpoint after at most `epochs_max` epochs. Passes over damaged
 * checkpoints with a warning (checkpoint_is_damaged), but not because the store does not answer,
 * nor, before the `last` try, because the disk cannot be read. ERR_NOT_FOUND. */
int checkpoint_newest(store *s, const char *job, int epochs_max, bool last, checkpoint_info *info,
                      model *out, err *e);
/* Whether there are checkpoints after more than `epochs` epochs, readable or not. */
int checkpoint_beyond(store *s, const char *job, int epochs, bool *any, err *e);
/* Removes all but the `keep` newest of the checkpoints after at most `epochs_max` epochs. A later
 * checkpoint is of an earlier kubeml-ps of the job, or of this one's successor: it does not count,
 * and stays. */
int checkpoint_prune(store *s, const char *job, int epochs_max, size_t keep, err *e);
/* Removes the model of the job's end or suspension before it was resumed. */
int checkpoint_drop_final(store *s, const char *job, err *e);
/* Removes the models of suspensions within an epoch, but not that of kubeml-ps `generation` (-1:
 * removes all). */
int checkpoint_prune_suspended(store *s, const char *job, int generation, err *e);
/* Fills the weights of `m` (parameters, buffers, their counters) from `models/<init>/final` or the
 * blob `init`. Where the job `init` was resumed since, and has no final model now, its newest
 * checkpoint is taken. Optimizer state stays as it is, and so do the tensors that `without` names
 * (tensor_filter.h; NULL: none). Floats of 16 and 64 bits become float32. ERR_INVALID: there is no
 * such model, it is damaged, or a tensor, which is named, is missing, unknown, or of another shape
 * or type. */
int checkpoint_init(store *s, const char *init, const char *without, model *m, err *e);

int checkpoint_name(char out[STORE_KEY_BYTES], const char *job, int epochs, err *e);
int checkpoint_suspended_name(char out[STORE_KEY_BYTES], const char *job, int generation, err *e);
int checkpoint_final_name(char out[STORE_KEY_BYTES], const char *job, err *e);

#endif
