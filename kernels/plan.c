/* plan.c: see plan.h. */
#include "plan.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/cleanup.h"

static size_t aligned(size_t bytes)
{
    return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static bool larger(const plan_item *items, int a, int b)
{
    return items[a].bytes > items[b].bytes || (items[a].bytes == items[b].bytes && a < b);
}

/* Insertion sort, for a few hundred items once in a compile. Equal sizes are ordered by index, so
 * that plans are repeatable. */
static void sort_by_size(const plan_item *items, int *order, int count)
{
    for (int i = 0; i < count; i++) {
        int j = i;
        for (; j > 0 && larger(items, i, order[j - 1]); j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

/* The lowest offset at which `it` fits beside `placed`, which is in ascending order of offset. */
static size_t lowest_gap(const plan_item *items, const int *placed, int count, const plan_item *it)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const plan_item *other = &items[placed[i]];
        if (other->last < it->first || other->first > it->last)
            continue;
        if (at + it->bytes <= other->offset)
            break;
        size_t end = other->offset + aligned(other->bytes);
        if (end > at)
            at = end;
    }
    return at;
}

size_t plan_assign(plan_item *items, int count)
{
    cleanup_free int *order = calloc((size_t)count + 1, sizeof *order);
    cleanup_free int *placed = calloc((size_t)count + 1, sizeof *placed);
    if (!order || !placed)
        return SIZE_MAX;
    sort_by_size(items, order, count);
    size_t total = 0;
    for (int i = 0, done = 0; i < count; i++) {
        plan_item *it = &items[order[i]];
        it->offset = 0;
        if (it->bytes == 0)
            continue;
        it->offset = lowest_gap(items, placed, done, it);
        int j = done++;
        for (; j > 0 && items[placed[j - 1]].offset > it->offset; j--)
            placed[j] = placed[j - 1];
        placed[j] = order[i];
        if (it->offset + aligned(it->bytes) > total)
            total = it->offset + aligned(it->bytes);
    }
    return total;
}
