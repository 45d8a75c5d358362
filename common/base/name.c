/* name.c: see name.h. */
#include "name.h"

#include <string.h>

static bool is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

int name_check(const char *kind, const char *name, err *e)
{
    if (!name || !*name)
        return err_set(e, ERR_INVALID, "%s name is empty", kind);
    size_t len = strlen(name);
    if (len >= NAME_BYTES)
        return err_set(e, ERR_INVALID, "%s name \"%.20s...\" has %zu characters, more than %d",
                       kind, name, len, NAME_BYTES - 1);
    if (!is_letter_or_digit(name[0]))
        return err_set(e, ERR_INVALID, "%s name \"%s\" does not begin with a letter or digit", kind,
                       name);
    for (size_t i = 0; i < len; i++)
        if (!is_letter_or_digit(name[i]) && !strchr("._-", name[i]))
            return err_set(e, ERR_INVALID,
                           "%s name \"%s\" has a character other than A-Z a-z 0-9 . _ -", kind,
                           name);
    return 0;
}
