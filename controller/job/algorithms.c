/* algorithms.c: see algorithms.h. */
#include "algorithms.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct line {
    const char *at;
    size_t key, all; /* bytes of the key, and of the line without its end */
} line;

static bool is_text(const char *at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (at[i] < ' ' || at[i] > '~')
            return false;
    return count > 0;
}

/* Reads the next line of that form, and moves *text past it; false: there is none. */
static bool next(const char **text, line *out)
{
    while (**text) {
        const char *at = *text, *end = strchr(at, '\n');
        if (!end)
            return false; /* cut off */
        const char *tab = memchr(at, '\t', (size_t)(end - at));
        *text = end + 1;
        if (!tab)
            continue;
        *out = (line){at, (size_t)(tab - at), (size_t)(end - at)};
        size_t winner = out->all - out->key - 1;
        if (out->key < ALGORITHMS_KEY_BYTES && winner < ALGORITHMS_WINNER_BYTES &&
            is_text(at, out->key) && is_text(tab + 1, winner))
            return true;
    }
    return false;
}

static bool has_key(const line *list, int count, const line *l)
{
    for (int i = 0; i < count; i++)
        if (list[i].key == l->key && memcmp(list[i].at, l->at, l->key) == 0)
            return true;
    return false;
}

int algorithms_add(const char *known, const char *told, char **out, int *added, err *e)
{
    line *list = calloc(ALGORITHMS_MAX + ALGORITHMS_TOLD_MAX, sizeof *list), l;
    char *text = malloc(strlen(known) + strlen(told) + 1), *to = text;
    int count = 0;
    *added = 0;
    if (!list || !text) {
        free(list);
        free(text);
        return err_set(e, ERR_NOMEM, "no memory for algorithms");
    }
    while (count < ALGORITHMS_MAX && next(&known, &l))
        list[count++] = l;
    for (int i = 0; i < ALGORITHMS_MAX && *added < ALGORITHMS_TOLD_MAX && next(&told, &l); i++)
        if (!has_key(list, count, &l)) {
            list[count++] = l;
            ++*added;
        }
    for (int i = count > ALGORITHMS_MAX ? count - ALGORITHMS_MAX : 0; i < count; i++) {
        memcpy(to, list[i].at, list[i].all + 1);
        to += list[i].all + 1;
    }
    *to = '\0';
    free(list);
    *out = text;
    return 0;
}
