/* left_out.c: see left_out.h. */
#include "left_out.h"

#include <string.h>

/* How long the part at `at` is; `next` is where the one after it begins. */
static size_t part(const char *at, const char **next)
{
    size_t len = strcspn(at, ",");
    *next = at + len + (at[len] == ',');
    return len;
}

int left_out_check(const char *list, err *e)
{
    int count = 0;
    const char *next;
    for (const char *at = list; *at; at = next, count++)
        if (part(at, &next) == 0 || (*next == '\0' && next[-1] == ','))
            return err_set(e, ERR_INVALID, "\"%.100s\" has an empty name", list);
    if (count == 0)
        return err_set(e, ERR_INVALID, "no tensor is named");
    if (count > LEFT_OUT_MAX)
        return err_set(e, ERR_INVALID, "%d names, more than %d", count, LEFT_OUT_MAX);
    return 0;
}

bool left_out_has(left_out *l, const char *tensor)
{
    bool has = false;
    const char *next;
    int i = 0;
    for (const char *at = l->list ? l->list : ""; *at && i < LEFT_OUT_MAX; at = next, i++) {
        size_t len = part(at, &next);
        if (strncmp(tensor, at, len) == 0 && (tensor[len] == '\0' || tensor[len] == '.')) {
            l->seen |= UINT32_C(1) << i;
            has = true;
        }
    }
    return has;
}

int left_out_end(const left_out *l, err *e)
{
    const char *next;
    int i = 0;
    for (const char *at = l->list ? l->list : ""; *at && i < LEFT_OUT_MAX; at = next, i++) {
        size_t len = part(at, &next);
        if (!(l->seen >> i & 1))
            return err_set(e, ERR_INVALID, "no tensor of the model is %.*s, nor begins with %.*s.",
                           (int)(len < 100 ? len : 100), at, (int)(len < 90 ? len : 90), at);
    }
    return 0;
}
