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

enum {
    /* What the values of a text may take: of one that is short, and how many times its length. A
     * list of digits takes 30 times as much as its text, and one of empty objects 90 times. */
    JSON_VALUES_BYTES = 32 << 20,
    JSON_VALUES_TIMES = 48,
};

typedef struct json_extent {
    int depth;
    size_t bytes; /* that its values take when they are read; a little more than they do */
} json_extent;

/* What would become of a text, which need not be JSON; nothing is allocated. */
json_extent json_measure(const char *text, size_t len);
/* What the values of a text of at most so many bytes may take. */
size_t json_values_max(size_t text_bytes_max);
/* To be asked before a text from outside is parsed: jansson goes down 2048 levels by recursion, and
 * takes what memory it needs. ERR_INVALID, and ERR_LIMIT for the values. */
int json_check(const char *text, size_t len, int depth_max, size_t values_max, err *e);
/* Parses a whole text: no duplicate keys, no NUL, valid UTF-8. json_check's errors, ERR_INVALID
 * with line and column. */
int json_read_within(const char *text, size_t len, int depth_max, size_t values_max, json_t **out,
                     err *e);
/* With what is usual for its length. */
int json_read(const char *text, size_t len, int depth_max, json_t **out, err *e);
/* ERR_INVALID naming the first field of `object` that is not in the NULL-terminated list. */
int json_read_known(const json_t *object, const char *const *known, err *e);

#endif
