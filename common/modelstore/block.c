/* block.c: see block.h. */
#include "block.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/hash64.h"
#include "common/base/parallel.h"

int block_shape_check(block_shape s, err *e)
{
    if (s.floats == 0)
        return err_set(e, ERR_INVALID, "a model block without numbers");
    if (s.floats > BLOCK_FLOATS_MAX)
        return err_set(e, ERR_LIMIT, "%llu floats in a model block, at most %llu are allowed",
                       (unsigned long long)s.floats, (unsigned long long)BLOCK_FLOATS_MAX);
    if (s.counters > BLOCK_COUNTERS_MAX)
        return err_set(e, ERR_LIMIT, "%llu counters in a model block, at most %llu are allowed",
                       (unsigned long long)s.counters, (unsigned long long)BLOCK_COUNTERS_MAX);
    return 0;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t block_counter_offset(block_shape s)
{
    return round_up(s.floats * sizeof(float), BLOCK_ALIGN);
}

size_t block_bytes(block_shape s)
{
    return block_counter_offset(s) + round_up(s.counters * sizeof(int64_t), BLOCK_ALIGN);
}

block block_at(void *contiguous, block_shape s)
{
    char *bytes = contiguous;
    return (block){.floats = contiguous, .counters = (void *)(bytes + block_counter_offset(s))};
}

size_t block_float_pieces(block_shape s)
{
    return (s.floats + BLOCK_PIECE_FLOATS - 1) / BLOCK_PIECE_FLOATS;
}

size_t block_pieces(block_shape s)
{
    return block_float_pieces(s) + (s.counters + BLOCK_PIECE_COUNTERS - 1) / BLOCK_PIECE_COUNTERS;
}

uint64_t block_piece_hash(const void *bytes, size_t len)
{
    return hash64(bytes, len);
}

uint64_t block_root_hash(const uint64_t *piece_hashes, size_t pieces)
{
    return hash64(piece_hashes, pieces * sizeof *piece_hashes);
}

typedef struct walk {
    block_shape shape;
    block to, from;
    bool copy;
    uint64_t *hash;
} walk;

static void walk_piece(size_t piece, void *user)
{
    walk *w = user;
    size_t float_pieces = block_float_pieces(w->shape);
    bool counters = piece >= float_pieces;
    size_t at = (counters ? piece - float_pieces : piece) * BLOCK_PIECE_BYTES;
    size_t end = counters ? w->shape.counters * sizeof(int64_t) : w->shape.floats * sizeof(float);
    size_t len = end - at < BLOCK_PIECE_BYTES ? end - at : BLOCK_PIECE_BYTES;
    const char *from = counters ? (const char *)w->from.counters : (const char *)w->from.floats;
    char *to = counters ? (char *)w->to.counters : (char *)w->to.floats;
    if (w->copy)
        memcpy(to + at, from + at, len);
    w->hash[piece] = block_piece_hash((w->copy ? to : from) + at, len);
}

static int walk_run(walk *w, int threads, uint64_t *out, err *e)
{
    size_t pieces = block_pieces(w->shape);
    cleanup_free uint64_t *hash = malloc(pieces * sizeof *hash);
    if (!hash)
        return err_set(e, ERR_NOMEM, "no memory for the hashes of %zu pieces", pieces);
    w->hash = hash;
    parallel_for(pieces, threads, walk_piece, w);
    *out = block_root_hash(hash, pieces);
    return 0;
}

int block_checksum(block_shape s, block b, int threads, uint64_t *out, err *e)
{
    walk w = {.shape = s, .from = b};
    return walk_run(&w, threads, out, e);
}

int block_copy(block_shape s, block to, block from, int threads, uint64_t *checksum, err *e)
{
    walk w = {.shape = s, .from = from, .to = to, .copy = true};
    return walk_run(&w, threads, checksum, e);
}
