/* tensor_filter.c: see tensor_filter.h. */
#include "tensor_filter.h"

#include <string.h>

/* The length of the name at `at`; sets `next` to the next name. */
static size_t part(const char *at, const char **next)
{
    size_t len = strcspn(at, ",");
    *next = at + len + (at[len] == ',');
    return len;
}

int tensor_filter_check(const char *list, err *e)
{
    int count = 0;
    const char *next;
    for (const char *at = list; *at; at = next, count++)
        if (part(at, &next) == 0 || (*next == '\0' && next[-1] == ','))
            return err_set(e, ERR_INVALID, "\"%.100s\" has an empty name", list);
    if (count == 0)
        return err_set(e, ERR_INVALID, "no tensor is named");
    if (count > TENSOR_FILTER_MAX)
        return err_set(e, ERR_INVALID, "%d names, more than %d", count, TENSOR_FILTER_MAX);
    return 0;
}

bool tensor_filter_has(tensor_filter *l, const char *tensor)
{
    bool has = false;
    const char *next;
    int i = 0;
    for (const char *at = l->list ? l->list : ""; *at && i < TENSOR_FILTER_MAX; at = next, i++) {
        size_t len = part(at, &next);
        if (strncmp(tensor, at, len) == 0 && (tensor[len] == '\0' || tensor[len] == '.')) {
            l->seen |= UINT32_C(1) << i;
            has = true;
        }
    }
    return has;
}

int tensor_filter_end(const tensor_filter *l, err *e)
{
    const char *next;
    int i = 0;
    for (const char *at = l->list ? l->list : ""; *at && i < TENSOR_FILTER_MAX; at = next, i++) {
        size_t len = part(at, &next);
        if (!(l->seen >> i & 1))
            return err_set(e, ERR_INVALID, "no tensor of the model is %.*s, nor begins with %.*s.",
                           (int)(len < 100 ? len : 100), at, (int)(len < 90 ? len : 90), at);
    }
    return 0;
}
