/* layout.h: the names and shapes of a model block's numbers.
 *
 * The engine produces the list of named entries. The model store keeps the list's text, opaque,
 * beside the block and compares digests, so that a function of another shape never publishes into a
 * job.
 * JSON: {"floats":N,"weights":W,"counters":C,"entries":[{"name","kind":"param"|"buffer"|"state"|
 * "counter","shape":[...],"offset"}]}; offsets count numbers within the floats, or within the
 * counters for kind "counter". The first W floats are parameters and buffers, the rest optimizer
 * state. Entries do not overlap and fill both blocks. */
#ifndef KUBEML_LAYOUT_H
#define KUBEML_LAYOUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "block.h"
#include "common/base/err.h"

enum {
    LAYOUT_NAME_BYTES = 192,
    LAYOUT_RANK_MAX = 8,
    LAYOUT_ENTRIES_MAX = 100000,
    LAYOUT_TEXT_BYTES_MAX = 16 << 20,
};

typedef enum layout_kind { LAYOUT_PARAM, LAYOUT_BUFFER, LAYOUT_STATE, LAYOUT_COUNTER } layout_kind;

typedef struct layout_entry {
    char name[LAYOUT_NAME_BYTES];
    layout_kind kind;
    int rank;
    uint64_t dims[LAYOUT_RANK_MAX];
    uint64_t count, offset; /* product of dims; place in its block */
} layout_entry;

typedef struct layout {
    block_shape shape; /* floats and counters */
    uint64_t weights;  /* parameters and buffers: the first floats */
    layout_entry *entries;
    size_t count;
    char *text; /* canonical JSON; the digest is XXH3-64 of it */
    uint64_t digest;
} layout;

/* Makes a layout from entries in any order (copied; `count` and, where all are 0, `offset` of each
 * are filled in). ERR_INVALID naming the entry: overlap, gap, duplicate name, a state before a
 * weight. */
int layout_make(const layout_entry *entries, size_t count, layout *out, err *e);
int layout_parse(const json_t *json, layout *out, err *e); /* ERR_INVALID, ERR_LIMIT */
int layout_parse_text(const char *text, size_t len, layout *out, err *e);
json_t *layout_json(const layout *l); /* new reference, NULL when memory is gone */
/* The layout without optimizer state, for jobs that reset it: the first `weights` floats, and all
 * counters but those whose name starts with "optimizer." and that stand last. */
int layout_without_state(const layout *l, layout *out, err *e);
const layout_entry *layout_find(const layout *l, const char *name); /* NULL */
void layout_free(layout *l);                                        /* NULL or all zero is fine */

#define cleanup_layout __attribute__((cleanup(layout_free)))

#endif
