/* layout.c: see layout.h. */
#include "layout.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/cleanup.h"
#include "common/base/json_read.h"

static const char *const kind_name[] = {"param", "buffer", "state", "counter"};
enum { KINDS = sizeof kind_name / sizeof kind_name[0] };

void layout_free(layout *l)
{
    if (!l)
        return;
    free(l->entries);
    free(l->text);
    *l = (layout){.count = 0};
}

/* ---- checking ------------------------------------------------------------------------------- */

static int count_entry(layout_entry *entry, err *e)
{
    entry->count = 1;
    if (entry->rank < 0 || entry->rank > LAYOUT_RANK_MAX)
        return err_set(e, ERR_INVALID, "layout: \"%.100s\" has rank %d", entry->name, entry->rank);
    for (int i = 0; i < entry->rank; i++)
        if (entry->dims[i] == 0 ||
            __builtin_mul_overflow(entry->count, entry->dims[i], &entry->count) ||
            entry->count > BLOCK_FLOATS_MAX)
            return err_set(e, ERR_INVALID, "layout: the shape of \"%.100s\" is out of range",
                           entry->name);
    if (!entry->name[0])
        return err_set(e, ERR_INVALID, "layout: an entry without a name");
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const layout_entry *x = a, *y = b;
    bool xc = x->kind == LAYOUT_COUNTER, yc = y->kind == LAYOUT_COUNTER;
    if (xc != yc)
        return xc ? 1 : -1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const layout *l, err *e)
{
    cleanup_free const char **name = malloc((l->count + 1) * sizeof *name);
    if (!name)
        return err_set(e, ERR_NOMEM, "layout: no memory");
    for (size_t i = 0; i < l->count; i++)
        name[i] = l->entries[i].name;
    qsort(name, l->count, sizeof *name, by_name);
    for (size_t i = 1; i < l->count; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            return err_set(e, ERR_INVALID, "layout: two entries are called \"%.100s\"", name[i]);
    return 0;
}

/* Places the entries in the order given, if all offsets are 0. */
static void place(layout *l)
{
    uint64_t next[2] = {0, 0};
    for (size_t i = 0; i < l->count; i++)
        if (l->entries[i].offset != 0)
            return;
    for (size_t i = 0; i < l->count; i++) {
        uint64_t *at = &next[l->entries[i].kind == LAYOUT_COUNTER];
        l->entries[i].offset = *at;
        *at += l->entries[i].count;
    }
}

/* Checks the entries, sorted by place: no gap, no overlap, weights before state. */
static int check_places(layout *l, err *e)
{
    uint64_t next[2] = {0, 0};
    bool state = false;
    for (size_t i = 0; i < l->count; i++) {
        const layout_entry *entry = &l->entries[i];
        bool counter = entry->kind == LAYOUT_COUNTER;
        if (entry->offset != next[counter])
            return err_set(e, ERR_INVALID, "layout: \"%.100s\" begins at %llu, not at %llu",
                           entry->name, (unsigned long long)entry->offset,
                           (unsigned long long)next[counter]);
        next[counter] += entry->count;
        state = state || entry->kind == LAYOUT_STATE;
        if (state && (entry->kind == LAYOUT_PARAM || entry->kind == LAYOUT_BUFFER))
            return err_set(e, ERR_INVALID, "layout: the weight \"%.100s\" lies behind state",
                           entry->name);
        if (entry->kind == LAYOUT_PARAM || entry->kind == LAYOUT_BUFFER)
            l->weights = next[0];
    }
    l->shape = (block_shape){next[0], next[1]};
    return block_shape_check(l->shape, e);
}

static json_t *entry_json(const layout_entry *entry)
{
    json_t *shape = json_array();
    for (int i = 0; i < entry->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)entry->dims[i]));
    return json_pack("{s:s, s:s, s:o, s:I}", "name", entry->name, "kind", kind_name[entry->kind],
                     "shape", shape, "offset", (json_int_t)entry->offset);
}

json_t *layout_json(const layout *l)
{
    json_t *entries = json_array();
    for (size_t i = 0; i < l->count; i++)
        if (json_array_append_new(entries, entry_json(&l->entries[i])) != 0) {
            json_decref(entries);
            return NULL;
        }
    return json_pack("{s:I, s:I, s:I, s:o}", "floats", (json_int_t)l->shape.floats, "weights",
                     (json_int_t)l->weights, "counters", (json_int_t)l->shape.counters, "entries",
                     entries);
}

static int finish(layout *l, err *e)
{
    for (size_t i = 0; i < l->count; i++)
        if (count_entry(&l->entries[i], e))
            return -1;
    place(l);
    qsort(l->entries, l->count, sizeof *l->entries, by_place);
    if (check_places(l, e) || check_names(l, e))
        return -1;
    cleanup_json json_t *json = layout_json(l);
    l->text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    if (!l->text)
        return err_set(e, ERR_INVALID, "layout: a name is not UTF-8, or memory is gone");
    if (strlen(l->text) > LAYOUT_TEXT_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "layout: a text over %d bytes", LAYOUT_TEXT_BYTES_MAX);
    l->digest = XXH3_64bits(l->text, strlen(l->text));
    return 0;
}

int layout_make(const layout_entry *entries, size_t count, layout *out, err *e)
{
    if (count < 1 || count > LAYOUT_ENTRIES_MAX)
        return err_set(e, ERR_LIMIT, "layout: %zu entries, 1 to %d are allowed", count,
                       LAYOUT_ENTRIES_MAX);
    *out = (layout){.count = count, .entries = malloc(count * sizeof *entries)};
    if (!out->entries)
        return err_set(e, ERR_NOMEM, "layout: no memory");
    memcpy(out->entries, entries, count * sizeof *entries);
    if (finish(out, e)) {
        layout_free(out);
        return -1;
    }
    return 0;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static int parse_kind(const json_t *j, layout_kind *out)
{
    const char *text = json_string_value(j);
    for (int k = 0; text && k < KINDS; k++)
        if (strcmp(text, kind_name[k]) == 0) {
            *out = (layout_kind)k;
            return 0;
        }
    return -1;
}

static int parse_natural(const json_t *j, uint64_t max, uint64_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0 || (uint64_t)json_integer_value(j) > max)
        return -1;
    *out = (uint64_t)json_integer_value(j);
    return 0;
}

static int parse_entry(const json_t *j, size_t i, layout_entry *out, err *e)
{
    const char *name = json_string_value(json_object_get(j, "name"));
    const json_t *shape = json_object_get(j, "shape");
    *out = (layout_entry){.rank = (int)json_array_size(shape)};
    if (!name || !name[0] || strlen(name) >= sizeof out->name)
        return err_set(e, ERR_INVALID, "layout: entries[%zu].name is missing or too long", i);
    memcpy(out->name, name, strlen(name) + 1);
    if (parse_kind(json_object_get(j, "kind"), &out->kind))
        return err_set(e, ERR_INVALID,
                       "layout: entries[%zu].kind is none of param, buffer, "
                       "state, counter",
                       i);
    if (!json_is_array(shape) || json_array_size(shape) > LAYOUT_RANK_MAX)
        return err_set(e, ERR_INVALID, "layout: entries[%zu].shape is no list of at most %d", i,
                       LAYOUT_RANK_MAX);
    for (int d = 0; d < out->rank; d++)
        if (parse_natural(json_array_get(shape, (size_t)d), BLOCK_FLOATS_MAX, &out->dims[d]))
            return err_set(e, ERR_INVALID, "layout: entries[%zu].shape holds a wrong number", i);
    if (parse_natural(json_object_get(j, "offset"), BLOCK_FLOATS_MAX, &out->offset))
        return err_set(e, ERR_INVALID, "layout: entries[%zu].offset is wrong", i);
    return 0;
}

static int check_totals(const json_t *j, const layout *l, err *e)
{
    const struct {
        const char *name;
        uint64_t want;
    } total[] = {
        {"floats", l->shape.floats}, {"weights", l->weights}, {"counters", l->shape.counters}};
    for (size_t i = 0; i < 3; i++) {
        uint64_t n;
        if (parse_natural(json_object_get(j, total[i].name), UINT64_MAX >> 1, &n) ||
            n != total[i].want)
            return err_set(e, ERR_INVALID, "layout: \"%s\" does not agree with the entries",
                           total[i].name);
    }
    return 0;
}

int layout_parse(const json_t *json, layout *out, err *e)
{
    const json_t *list = json_object_get(json, "entries");
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count < 1 || count > LAYOUT_ENTRIES_MAX)
        return err_set(e, ERR_INVALID, "layout: \"entries\" is no list of 1 to %d entries",
                       LAYOUT_ENTRIES_MAX);
    cleanup_free layout_entry *entries = malloc(count * sizeof *entries);
    if (!entries)
        return err_set(e, ERR_NOMEM, "layout: no memory");
    for (size_t i = 0; i < count; i++)
        if (parse_entry(json_array_get(list, i), i, &entries[i], e))
            return -1;
    if (layout_make(entries, count, out, e))
        return -1;
    if (check_totals(json, out, e)) {
        layout_free(out);
        return -1;
    }
    return 0;
}

int layout_parse_text(const char *text, size_t len, layout *out, err *e)
{
    json_error_t where;
    if (len > LAYOUT_TEXT_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "layout: a text over %d bytes", LAYOUT_TEXT_BYTES_MAX);
    cleanup_json json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!json)
        return err_set(e, ERR_INVALID, "layout: %.150s", where.text);
    return layout_parse(json, out, e);
}

/* ---- other ---------------------------------------------------------------------------------- */

int layout_without_state(const layout *l, layout *out, err *e)
{
    cleanup_free layout_entry *kept = malloc(l->count * sizeof *kept);
    size_t count = 0, end = l->count;
    if (!kept)
        return err_set(e, ERR_NOMEM, "layout: no memory");
    /* The counters come last, in order of place. The optimizer's counters at the end go. */
    while (end > 0 && l->entries[end - 1].kind == LAYOUT_COUNTER &&
           strncmp(l->entries[end - 1].name, "optimizer.", strlen("optimizer.")) == 0)
        end--;
    for (size_t i = 0; i < end; i++)
        if (l->entries[i].kind != LAYOUT_STATE)
            kept[count++] = l->entries[i];
    return layout_make(kept, count, out, e);
}

const layout_entry *layout_find(const layout *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++)
        if (strcmp(l->entries[i].name, name) == 0)
            return &l->entries[i];
    return NULL;
}
