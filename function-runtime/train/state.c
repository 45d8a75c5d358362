/* state.c: see state.h. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"

/* A run of numbers that are consecutive in the engine and in the block. */
typedef struct piece {
    bool counter;
    size_t engine_offset, block_offset, count;
} piece;

struct state {
    engine *m;
    bool with_optimizer;
    layout layout;
    piece *pieces;
    size_t piece_count;
};

static bool is_optimizer(const engine_var *v)
{
    return v->kind == VAR_STATE || strncmp(v->name, "optimizer.", 10) == 0;
}

static layout_kind kind_of(graph_kind kind)
{
    switch (kind) {
    case VAR_BUFFER:
        return LAYOUT_BUFFER;
    case VAR_STATE:
        return LAYOUT_STATE;
    case VAR_COUNTER:
        return LAYOUT_COUNTER;
    default:
        return LAYOUT_PARAM;
    }
}

static int add_entry(state *s, layout_entry *l, const engine_var *v, uint64_t used[2], err *e)
{
    bool counter = v->kind == VAR_COUNTER;
    if (strlen(v->name) >= sizeof l->name)
        return err_set(e, ERR_LIMIT, "the name of %s is too long", v->name);
    strcpy(l->name, v->name); /* the length was just checked */
    l->kind = kind_of(v->kind);
    l->rank = v->rank;
    for (int i = 0; i < v->rank; i++)
        l->dims[i] = (uint64_t)v->dims[i];
    l->count = v->count;
    l->offset = used[counter];
    s->pieces[s->piece_count++] = (piece){counter, v->offset, used[counter], v->count};
    used[counter] += v->count;
    return 0;
}

int state_open(engine *m, bool with_optimizer, state **out, err *e)
{
    size_t count, kept = 0;
    uint64_t used[2] = {0, 0};
    const engine_var *vars = engine_layout(m, &count);
    state *s = calloc(1, sizeof *s);
    cleanup_free layout_entry *entries = calloc(count ? count : 1, sizeof *entries);
    if (s)
        s->pieces = calloc(count ? count : 1, sizeof *s->pieces);
    if (!s || !entries || !s->pieces) {
        state_close(s);
        return err_set(e, ERR_NOMEM, "no memory for the layout");
    }
    s->m = m;
    s->with_optimizer = with_optimizer;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (with_optimizer || !is_optimizer(&vars[i]))
            rc = add_entry(s, &entries[kept++], &vars[i], used, e);
    if (rc != 0 || layout_make(entries, kept, &s->layout, e) != 0) {
        state_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void state_close(state *s)
{
    if (!s)
        return;
    layout_free(&s->layout);
    free(s->pieces);
    free(s);
}

const layout *state_layout(const state *s)
{
    return &s->layout;
}

size_t state_floats(const state *s)
{
    return (size_t)s->layout.shape.floats;
}

size_t state_counters(const state *s)
{
    return (size_t)s->layout.shape.counters;
}

int state_export(state *s, block to, void (*half)(void), err *e)
{
    const float *floats = engine_floats(s->m, e);
    const int64_t *counters = engine_counters(s->m, e);
    if (!floats || (!counters && state_counters(s) > 0))
        return -1;
    for (size_t i = 0; i < s->piece_count; i++) {
        const piece *p = &s->pieces[i];
        if (p->counter)
            memcpy(to.counters + p->block_offset, counters + p->engine_offset,
                   p->count * sizeof *counters);
        else
            memcpy(to.floats + p->block_offset, floats + p->engine_offset,
                   p->count * sizeof *floats);
        if (half && !p->counter && 2 * (p->block_offset + p->count) >= state_floats(s)) {
            half();
            half = NULL;
        }
    }
    return 0;
}

int state_import(state *s, block from, err *e)
{
    if (!s->with_optimizer && engine_reset_optimizer(s->m, e) != 0)
        return -1;
    float *floats = engine_floats(s->m, e);
    int64_t *counters = engine_counters(s->m, e);
    if (!floats || (!counters && state_counters(s) > 0))
        return -1;
    for (size_t i = 0; i < s->piece_count; i++) {
        const piece *p = &s->pieces[i];
        if (p->counter)
            memcpy(counters + p->engine_offset, from.counters + p->block_offset,
                   p->count * sizeof *counters);
        else
            memcpy(floats + p->engine_offset, from.floats + p->block_offset,
                   p->count * sizeof *floats);
    }
    return engine_state_changed(s->m, e);
}
