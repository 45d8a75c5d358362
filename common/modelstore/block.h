/* block.h: the bytes of a model block, the unit that functions publish and fetch and that is
 * merged.
 *
 * A block is `floats` float32 (weights, running statistics, optimizer state: averaged) and
 * `counters` int64 (step counters: the largest of the contributions wins). In memory the two may
 * lie apart (the engine has two arrays). In a shared segment the counters begin at the next
 * multiple of 64 bytes after the floats. Little-endian, like every machine that KubeML runs on.
 *
 * The checksum is a tree: XXH3-64 of every piece of 64 KiB (the floats' pieces, then the
 * counters'), and XXH3-64 over that list of hashes. So several threads can hash pieces while these
 * lie in a core's cache, and the checksum does not depend on how the bytes travelled. */
#ifndef KUBEML_BLOCK_H
#define KUBEML_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define BLOCK_FLOATS_MAX   (UINT64_C(1) << 33) /* 32 GiB of float32 */
#define BLOCK_COUNTERS_MAX (UINT64_C(1) << 20)

enum {
    BLOCK_PIECE_BYTES = 64 << 10,
    BLOCK_PIECE_FLOATS = BLOCK_PIECE_BYTES / 4,
    BLOCK_PIECE_COUNTERS = BLOCK_PIECE_BYTES / 8,
    BLOCK_ALIGN = 64,
};

typedef struct block_shape {
    uint64_t floats, counters;
} block_shape;

/* A block where it lies. Borrowed memory; counters may be NULL when there are none. */
typedef struct block {
    float *floats;
    int64_t *counters;
} block;

/* ERR_LIMIT beyond the limits above, ERR_INVALID for a block of nothing. */
int block_shape_check(block_shape s, err *e);
size_t block_counter_offset(block_shape s); /* in a contiguous block */
size_t block_bytes(block_shape s);          /* of a contiguous block, a multiple of 64 */
block block_at(void *contiguous, block_shape s);
size_t block_float_pieces(block_shape s);
size_t block_pieces(block_shape s); /* of floats and counters together */

uint64_t block_piece_hash(const void *bytes, size_t len);
uint64_t block_root_hash(const uint64_t *piece_hashes, size_t pieces);
/* The checksum of a whole block, by `threads` threads (1: the caller's own). ERR_NOMEM. */
int block_checksum(block_shape s, block b, int threads, uint64_t *out, err *e);
/* Copies a block from `from` to `to`, giving the checksum of what was copied: each piece is hashed
 * in `to` after it was copied, while it is still in the cache. ERR_NOMEM. */
int block_copy(block_shape s, block to, block from, int threads, uint64_t *checksum, err *e);

#endif
