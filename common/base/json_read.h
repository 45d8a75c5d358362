/* json_read.h: parses JSON from outside within limits. Errors name the line or the field. */
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

/* The value of a string field; "" where the field is absent or no string. */
static inline const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

enum {
    /* Memory that the values of a text may take: so many bytes for a short text, and so many times
     * its length for a longer text. A list of digits takes 30 times the length of its text, and a
     * list of empty objects 90 times. */
    JSON_VALUES_BYTES = 32 << 20,
    JSON_VALUES_TIMES = 48,
};

typedef struct json_extent {
    int depth;
    size_t bytes; /* memory for the parsed values, estimated a little too high */
} json_extent;

/* Estimates depth and memory of a text, which need not be JSON. Allocates nothing. */
json_extent json_measure(const char *text, size_t len);
/* Memory that the values of a text of at most `text_bytes_max` bytes may take. */
size_t json_values_max(size_t text_bytes_max);
/* Checks a text from outside before it is parsed: jansson recurses down 2048 levels and has no
 * limit of memory. ERR_INVALID for the depth, ERR_LIMIT for the values. */
int json_check(const char *text, size_t len, int depth_max, size_t values_max, err *e);
/* Parses a whole text: no duplicate keys, no NUL, valid UTF-8. The caller owns *out. json_check's
 * errors, or ERR_INVALID with line and column. */
int json_read_within(const char *text, size_t len, int depth_max, size_t values_max, json_t **out,
                     err *e);
/* json_read_within with json_values_max(len). */
int json_read(const char *text, size_t len, int depth_max, json_t **out, err *e);
/* ERR_INVALID naming the first field of `object` that is not in the NULL-terminated list. */
int json_read_known(const json_t *object, const char *const *known, err *e);

#endif
