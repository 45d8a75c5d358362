/* json_read.c: see json_read.h. */
#include "json_read.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Memory that jansson takes for one value, with malloc's overhead and with lists and tables that
 * have just doubled. An object or array has room for eight values from the start. A quote counts
 * for strings and for members' keys. */
enum {
    OBJECT_BYTES = 224,
    ARRAY_BYTES = 128,
    QUOTE_BYTES = 40,
    MEMBER_BYTES = 96,
    NEXT_BYTES = 56
};

json_extent json_measure(const char *text, size_t len)
{
    json_extent x = {.bytes = len};
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            i++;
        if (c == '"') {
            quoted = !quoted;
            x.bytes += QUOTE_BYTES;
        }
        if (quoted)
            continue;
        if (c == '{' || c == '[') {
            x.depth = ++depth > x.depth ? depth : x.depth;
            x.bytes += c == '{' ? OBJECT_BYTES : ARRAY_BYTES;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',' || c == ':') {
            x.bytes += c == ',' ? NEXT_BYTES : MEMBER_BYTES;
        }
    }
    return x;
}

size_t json_values_max(size_t text_bytes_max)
{
    return text_bytes_max < JSON_VALUES_BYTES / JSON_VALUES_TIMES
               ? (size_t)JSON_VALUES_BYTES
               : text_bytes_max * JSON_VALUES_TIMES;
}

int json_check(const char *text, size_t len, int depth_max, size_t values_max, err *e)
{
    json_extent x = json_measure(text, len);
    if (x.depth > depth_max)
        return err_set(e, ERR_INVALID, "the JSON is nested deeper than %d levels", depth_max);
    if (x.bytes > values_max)
        return err_set(e, ERR_LIMIT, "the JSON has too many values: they would take %zu of %zu MiB",
                       x.bytes >> 20, values_max >> 20);
    return 0;
}

/* Replaces jansson's message for a NUL, which names its own flags. */
static const char *what_is_wrong(const json_error_t *problem)
{
    return json_error_code(problem) == json_error_null_character ? "\\u0000 is not allowed"
                                                                 : problem->text;
}

int json_read_within(const char *text, size_t len, int depth_max, size_t values_max, json_t **out,
                     err *e)
{
    if (len == 0)
        return err_set(e, ERR_INVALID, "the body is empty; JSON is expected");
    if (json_check(text, len, depth_max, values_max, e))
        return -1;
    json_error_t problem;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    if (!value)
        return err_set(e, ERR_INVALID, "not JSON: line %d, column %d: %s", problem.line,
                       problem.column, what_is_wrong(&problem));
    *out = value;
    return 0;
}

int json_read(const char *text, size_t len, int depth_max, json_t **out, err *e)
{
    return json_read_within(text, len, depth_max, json_values_max(len), out, e);
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
