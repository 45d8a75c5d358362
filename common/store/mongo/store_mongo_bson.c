/* store_mongo_bson.c: records as documents: JSON to BSON and back without a loss. See
 * store_mongo.h.
 *
 * Integers become int64, reals doubles. In names of fields '%', '.' and a '$' at the beginning are
 * written %25, %2E and %24: servers give the latter two a meaning. The empty name, which libmongoc
 * refuses, is written as a single %. */
#include <jansson.h>
#include <string.h>

#include "common/base/jsontext.h"
#include "store_mongo.h"

enum {
    DEPTH_MAX = 90,                 /* servers refuse 100, and the record is inside a document */
    DOCUMENT_BYTES_MAX = 16000000,  /* servers refuse 16 MiB */
    FIELD_BYTES_MAX = 3 * (64 << 10), /* a name, escaped */
};

static int append_value(bson_t *out, const char *key, size_t key_len, const json_t *value,
                        int depth, err *e);

static int too_large(err *e)
{
    return err_set(e, ERR_LIMIT, "as a document it has more than %d bytes", DOCUMENT_BYTES_MAX);
}

static int escape(buf *out, const char *name, err *e)
{
    buf_reset(out);
    if (!*name)
        return buf_append(out, "%", 1, e);
    for (const char *p = name; *p; p++) {
        bool special = *p == '%' || *p == '.' || (*p == '$' && p == name);
        if (special ? buf_printf(out, e, "%%%02X", (unsigned)*p) != 0
                    : buf_append(out, p, 1, e) != 0)
            return -1;
    }
    return 0;
}

static int append_object(bson_t *out, const json_t *object, int depth, err *e)
{
    const char *name;
    json_t *value;
    cleanup_buf buf field;
    buf_init(&field, FIELD_BYTES_MAX);
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
        if (escape(&field, name, e) != 0 ||
            append_value(out, field.bytes, field.len, value, depth, e) != 0)
            return -1;
    return 0;
}

static int append_array(bson_t *out, const json_t *array, int depth, err *e)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        char number[16];
        const char *key;
        size_t len = bson_uint32_to_string((uint32_t)i, &key, number, sizeof number);
        if (append_value(out, key, len, json_array_get(array, i), depth, e) != 0)
            return -1;
    }
    return 0;
}

static int append_nested(bson_t *out, const char *key, int key_len, const json_t *value, int depth,
                         err *e)
{
    bson_t inner;
    int result;
    if (depth >= DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "it is nested deeper than %d", DEPTH_MAX);
    if (json_is_object(value)) {
        if (!bson_append_document_begin(out, key, key_len, &inner))
            return too_large(e);
        result = append_object(&inner, value, depth + 1, e);
        return bson_append_document_end(out, &inner) ? result : too_large(e);
    }
    if (!bson_append_array_begin(out, key, key_len, &inner))
        return too_large(e);
    result = append_array(&inner, value, depth + 1, e);
    return bson_append_array_end(out, &inner) ? result : too_large(e);
}

static int append_value(bson_t *out, const char *key, size_t key_len, const json_t *value,
                        int depth, err *e)
{
    int len = (int)key_len;
    bool ok = true;
    if (out->len > DOCUMENT_BYTES_MAX)
        return too_large(e);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        return append_nested(out, key, len, value, depth, e);
    case JSON_STRING:
        ok = bson_append_utf8(out, key, len, json_string_value(value),
                              (int)json_string_length(value));
        break;
    case JSON_INTEGER:
        ok = bson_append_int64(out, key, len, json_integer_value(value));
        break;
    case JSON_REAL:
        ok = bson_append_double(out, key, len, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        ok = bson_append_bool(out, key, len, json_is_true(value));
        break;
    case JSON_NULL:
        ok = bson_append_null(out, key, len);
        break;
    }
    return ok && out->len <= DOCUMENT_BYTES_MAX ? 0 : too_large(e);
}

int mongo_bson_append_json(bson_t *out, const char *key, const char *text, size_t len, err *e)
{
    json_error_t problem;
    json_t *value = json_loadb(text, len, JSON_ALLOW_NUL, &problem);
    int result = json_is_object(value)
                     ? append_value(out, key, strlen(key), value, 0, e)
                     : err_set(e, ERR_CORRUPT, "no JSON object: %s", problem.text);
    json_decref(value);
    return result;
}

/* ---- back ------------------------------------------------------------------------------------ */

static json_t *from_bson(const bson_iter_t *iter, int depth);

static void unescape(const char *name, char *out)
{
    if (strcmp(name, "%") == 0)
        name++;
    for (; *name; name++) {
        char c = *name;
        if (c == '%' && name[1] == '2' && name[2]) {
            c = name[2] == '5' ? '%' : name[2] == 'E' ? '.' : '$';
            name += 2;
        }
        *out++ = c;
    }
    *out = '\0';
}

static json_t *nested_from(const bson_iter_t *iter, bool object, int depth)
{
    bson_iter_t inner;
    json_t *out = depth > 2 * DEPTH_MAX || !bson_iter_recurse(iter, &inner) ? NULL
                  : object                                                  ? json_object()
                                                                            : json_array();
    while (out && bson_iter_next(&inner)) {
        json_t *value = from_bson(&inner, depth + 1);
        int status = -1;
        if (value && object) {
            char *name = strdup(bson_iter_key(&inner));
            if (name) {
                unescape(name, name);
                status = json_object_set_new(out, name, value);
            } else {
                json_decref(value);
            }
            free(name);
        } else if (value) {
            status = json_array_append_new(out, value);
        }
        if (status != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

/* NULL for a type that append_value does not write. */
static json_t *from_bson(const bson_iter_t *iter, int depth)
{
    uint32_t len;
    const char *text;
    switch (bson_iter_type(iter)) {
    case BSON_TYPE_DOCUMENT: return nested_from(iter, true, depth);
    case BSON_TYPE_ARRAY: return nested_from(iter, false, depth);
    case BSON_TYPE_UTF8: text = bson_iter_utf8(iter, &len); return json_stringn(text, len);
    case BSON_TYPE_INT32: return json_integer(bson_iter_int32(iter));
    case BSON_TYPE_INT64: return json_integer(bson_iter_int64(iter));
    case BSON_TYPE_DOUBLE: return json_real(bson_iter_double(iter));
    case BSON_TYPE_BOOL: return json_boolean(bson_iter_bool(iter));
    case BSON_TYPE_NULL: return json_null();
    default: return NULL;
    }
}

int mongo_bson_to_json(const bson_iter_t *iter, buf *out, err *e)
{
    json_t *value = BSON_ITER_HOLDS_DOCUMENT(iter) ? from_bson(iter, 0) : NULL;
    if (!value)
        return err_set(e, ERR_CORRUPT, "the document is no record");
    int result = jsontext_append(out, value, JSON_COMPACT | JSON_REAL_PRECISION(17), e);
    json_decref(value);
    return result;
}
