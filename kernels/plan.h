/* plan.h: lays out blocks with known lifetimes in one piece of memory, so that blocks which never
 * live at the same time share bytes. Pure; used by the backends when they compile. */
#ifndef KUBEML_PLAN_H
#define KUBEML_PLAN_H

#include <stddef.h>

enum { PLAN_ALIGN = 64 };

/* In: bytes (0: not placed), and the first and last moment at which the block is used, first <=
 * last. Out: offset, a multiple of PLAN_ALIGN. */
typedef struct plan_item {
    size_t bytes;
    int first, last;
    size_t offset;
} plan_item;

/* Places all items. Returns the bytes needed in total, or SIZE_MAX when there is no memory for its
 * own list. Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural
 * net inference", section 5.1): largest first, each at the lowest offset that is free during its
 * whole life. */
size_t plan_assign(plan_item *items, int count);

#endif
