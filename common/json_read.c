/* json_read.c: see json_read.h. */
#include "json_read.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

int json_depth(const char *text, size_t len)
{
    int depth = 0, deepest = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        if (quoted) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                quoted = false;
        } else if (text[i] == '"') {
            quoted = true;
        } else if (text[i] == '{' || text[i] == '[') {
            deepest = ++depth > deepest ? depth : deepest;
        } else if (text[i] == '}' || text[i] == ']') {
            depth--;
        }
    }
    return deepest;
}

/* The library's own words tell of its flags. */
static const char *what_is_wrong(const json_error_t *problem)
{
    return json_error_code(problem) == json_error_null_character ? "\\u0000 is not allowed"
                                                                 : problem->text;
}

int json_read(const char *text, size_t len, int depth_max, json_t **out, err *e)
{
    if (len == 0)
        return err_set(e, ERR_INVALID, "the body is empty; JSON is expected");
    if (json_depth(text, len) > depth_max)
        return err_set(e, ERR_INVALID, "the JSON is nested deeper than %d levels", depth_max);
    json_error_t problem;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    if (!value)
        return err_set(e, ERR_INVALID, "not JSON: line %d, column %d: %s", problem.line,
                       problem.column, what_is_wrong(&problem));
    *out = value;
    return 0;
}

int json_read_known(const json_t *object, const char *const *known, err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        const char *const *name = known;
        while (*name && strcmp(*name, key) != 0)
            name++;
        if (!*name)
            return err_set(e, ERR_INVALID, "unknown field \"%.64s\"", key);
    }
    return 0;
}
