/* json_read.h: JSON from outside: parsed within limits, and its fields taken with errors that name
 * them. */
#ifndef KUBEML_JSON_READ_H
#define KUBEML_JSON_READ_H

#include <jansson.h>
#include <stddef.h>

#include "err.h"

static inline void json_cleanup_(json_t **value)
{
    json_decref(*value);
}
#define cleanup_json __attribute__((cleanup(json_cleanup_)))

/* A field that is a text; "" where it is none. */
static inline const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* How deep a text nests; it need not be JSON. jansson goes down 2048 levels by recursion, so ours
 * is checked before it starts. */
int json_depth(const char *text, size_t len);
/* Parses a whole text: no duplicate keys, no NUL, valid UTF-8, at most `depth_max` levels.
 * ERR_INVALID with line and column. */
int json_read(const char *text, size_t len, int depth_max, json_t **out, err *e);
/* ERR_INVALID naming the first field of `object` that is not in the NULL-terminated list. */
int json_read_known(const json_t *object, const char *const *known, err *e);

#endif
