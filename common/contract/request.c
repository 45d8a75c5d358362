/* request.c: see request.h. A value is read, checked and written by the row of its option. */
#include "request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job_options.h"
#include "tensor_filter.h"

static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a text";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

static int wrong_kind(const char *where, const char *want, const json_t *v, err *e)
{
    return err_set(e, ERR_INVALID, "%s: must be %s, not %s", where, want, kind_name(v));
}

static bool name_byte(char c, bool slash)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || (slash && c == '/');
}

/* Reads a name. Names become keys and file names: they have a small alphabet, and never lead out of
 * a folder. */
static int read_name(const char *where, const json_t *v, bool slash, char out[REQUEST_NAME_BYTES],
                     err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);
    if (len == 0)
        return err_set(e, ERR_INVALID, "%s: must not be empty", where);
    if (len >= REQUEST_NAME_BYTES)
        return err_set(e, ERR_INVALID, "%s: %zu characters, at most %d", where, len,
                       REQUEST_NAME_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if (!name_byte(text[i], slash))
            return err_set(e, ERR_INVALID, "%s: only letters, digits, '-', '_' and '.'%s", where,
                           slash ? " and '/'" : "");
    if (text[0] == '.' || text[0] == '-' || text[0] == '/' || strstr(text, ".."))
        return err_set(e, ERR_INVALID, "%s: must begin with a letter, digit or '_', without \"..\"",
                       where);
    memcpy(out, text, len + 1);
    return 0;
}

static int read_int(const char *where, const job_option *o, const json_t *v, int *out, err *e)
{
    if (!json_is_integer(v))
        return wrong_kind(where, "an integer", v, e);
    json_int_t n = json_integer_value(v);
    if (n < (json_int_t)o->low || n > (json_int_t)o->high)
        return err_set(e, ERR_INVALID, "%s: %lld is not within %.0f to %.0f", where, (long long)n,
                       o->low, o->high);
    *out = (int)n;
    return 0;
}

static int read_real(const char *where, const job_option *o, const json_t *v, double *out, err *e)
{
    if (!json_is_number(v))
        return wrong_kind(where, "a number", v, e);
    double x = json_number_value(v);
    if (!isfinite(x) || x <= o->low || x > o->high)
        return err_set(e, ERR_INVALID, "%s: %g is not above %g and at most %g", where, x, o->low,
                       o->high);
    *out = x;
    return 0;
}

/* Sets an error that lists the words: must be "a", "b" or "c". */
static int refuse_word(const job_option *o, err *e)
{
    char list[200] = "";
    size_t used = 0;
    for (size_t i = 0; o->words[i] && used < sizeof list; i++) {
        const char *before = i == 0 ? "" : o->words[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"", before, o->words[i]);
    }
    return err_set(e, ERR_INVALID, "must be %s", list);
}

static int find_word(const job_option *o, const char *text, unsigned *out, err *e)
{
    for (unsigned i = 0; o->words[i]; i++)
        if (strcmp(text, o->words[i]) == 0) {
            *out = i;
            return 0;
        }
    if (o->unbuilt && strcmp(text, o->unbuilt) == 0)
        return err_set(e, ERR_UNSUPPORTED, "\"%s\" is not built yet; use \"%s\"", text,
                       o->words[0]);
    return refuse_word(o, e);
}

static int read_word(const char *where, const job_option *o, const json_t *v, unsigned *out, err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    return find_word(o, json_string_value(v), out, e) ? err_wrap(e, "%s", where) : 0;
}

int request_precision(const char *text, gpu_precision *out, err *e)
{
    unsigned word = 0;
    if (find_word(job_option_find(IN_GPU, "precision"), text, &word, e) != 0)
        return -1;
    *out = (gpu_precision)word;
    return 0;
}

static int read_seed(const char *where, const json_t *v, uint64_t *out, err *e)
{
    if (!json_is_integer(v))
        return wrong_kind(where, "an integer", v, e);
    json_int_t n = json_integer_value(v);
    if (n < 0 || n > REQUEST_SEED_MAX)
        return err_set(e, ERR_INVALID, "%s: %lld is not within 0 to 2^53", where, (long long)n);
    *out = (uint64_t)n;
    return 0;
}

static int read_memory(const char *where, const json_t *v, uint64_t *out, err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text such as \"2Gi\"", v, e);
    return gpu_memory_parse(json_string_value(v), out, e) ? err_wrap(e, "%s", where) : 0;
}

static int read_tensors(const char *where, const json_t *v, char out[REQUEST_TENSORS_BYTES], err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);
    if (len >= REQUEST_TENSORS_BYTES)
        return err_set(e, ERR_INVALID, "%s: %zu characters, at most %d", where, len,
                       REQUEST_TENSORS_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if (!name_byte(text[i], false) && text[i] != ',')
            return err_set(e, ERR_INVALID, "%s: only letters, digits, '-', '_', '.' and ','",
                           where);
    if (len && tensor_filter_check(text, e) != 0)
        return err_wrap(e, "%s", where);
    memcpy(out, text, len + 1);
    return 0;
}

static int read_object(const json_t *object, const char *prefix, option_object in, request *out,
                       err *e);

static int read_member(const char *where, const job_option *o, const json_t *v, request *out,
                       err *e)
{
    char prefix[OPTION_PATH_BYTES + 1];
    if (!json_is_object(v))
        return wrong_kind(where, "an object", v, e);
    snprintf(prefix, sizeof prefix, "%s.", where);
    return read_object(v, prefix, o->holds, out, e);
}

static int read_value(const char *where, const job_option *o, const json_t *v, request *out, err *e)
{
    void *at = (char *)out + o->at;
    switch (o->kind) {
    case VALUE_NAME: return read_name(where, v, false, at, e);
    case VALUE_PATH:
        /* The canonical form always has it; "" is a new model. */
        if (json_is_string(v) && json_string_length(v) == 0)
            return 0;
        return read_name(where, v, true, at, e);
    case VALUE_TENSORS: return read_tensors(where, v, at, e);
    case VALUE_MEMORY: return read_memory(where, v, at, e);
    case VALUE_INT: return read_int(where, o, v, at, e);
    case VALUE_SEED: return read_seed(where, v, at, e);
    case VALUE_REAL: return read_real(where, o, v, at, e);
    case VALUE_BOOL:
        if (!json_is_boolean(v))
            return wrong_kind(where, "true or false", v, e);
        *(bool *)at = json_is_true(v);
        return 0;
    case VALUE_WORD: return read_word(where, o, v, at, e);
    case VALUE_OBJECT: return read_member(where, o, v, out, e);
    case VALUE_IGNORED: return json_is_string(v) ? 0 : wrong_kind(where, "a text", v, e);
    }
    return err_set(e, ERR_INTERNAL, "%s: unknown kind of value", where);
}

/* Reads one option of the object, by its name or its alias. */
static int read_option(const json_t *object, const char *prefix, const job_option *o, request *out,
                       err *e)
{
    const json_t *value = json_object_get(object, o->name);
    const json_t *other = o->alias ? json_object_get(object, o->alias) : NULL;
    char where[OPTION_PATH_BYTES];
    if (value && other)
        return err_set(e, ERR_INVALID, "%s%s: given as %s too", prefix, o->name, o->alias);
    if (!value && !other)
        return o->required ? err_set(e, ERR_INVALID, "%s%s: missing", prefix, o->name) : 0;
    snprintf(where, sizeof where, "%s%s", prefix, value ? o->name : o->alias);
    return read_value(where, o, value ? value : other, out, e);
}

static int read_object(const json_t *object, const char *prefix, option_object in, request *out,
                       err *e)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, name, v)
        if (!job_option_find(in, name))
            return err_set(e, ERR_INVALID, "%s%.64s: unknown field", prefix, name);
    for (const job_option *o = job_options; o->name; o++)
        if (o->in == in && read_option(object, prefix, o, out, e) != 0)
            return -1;
    return 0;
}

/* The default of the other kinds is 0: no text, no limit, false, the first word. */
static void set_default(const job_option *o, request *r)
{
    void *at = (char *)r + o->at;
    if (o->kind == VALUE_INT)
        *(int *)at = (int)o->default_value;
    if (o->kind == VALUE_REAL)
        *(double *)at = o->default_value;
}

int request_parse(const json_t *body, request *out, err *e)
{
    request r = {0};
    for (const job_option *o = job_options; o->name; o++)
        set_default(o, &r);
    if (!json_is_object(body))
        return err_set(e, ERR_INVALID, "the request must be a JSON object");
    if (read_object(body, "", IN_REQUEST, &r, e) != 0 || job_options_check(&r, e) != 0)
        return -1;
    *out = r;
    return 0;
}

/* ---- the canonical form ---------------------------------------------------------------------- */

static bool is_default(const job_option *o, const request *r)
{
    const void *at = (const char *)r + o->at;
    switch (o->kind) {
    case VALUE_NAME:
    case VALUE_PATH:
    case VALUE_TENSORS: return *(const char *)at == '\0';
    case VALUE_MEMORY:
    case VALUE_SEED: return *(const uint64_t *)at == 0;
    case VALUE_INT: return *(const int *)at == (int)o->default_value;
    case VALUE_REAL: return *(const double *)at == o->default_value;
    case VALUE_BOOL: return !*(const bool *)at;
    case VALUE_WORD: return *(const unsigned *)at == 0;
    case VALUE_IGNORED: return true;
    case VALUE_OBJECT: break;
    }
    for (const job_option *inner = job_options; inner->name; inner++)
        if (inner->in == o->holds && !is_default(inner, r))
            return false;
    return true;
}

static json_t *memory_json(uint64_t bytes)
{
    char text[GPU_MEMORY_TEXT_BYTES];
    gpu_memory_text(bytes, text);
    return json_string(text);
}

static json_t *object_json(option_object in, const request *r);

static json_t *value_json(const job_option *o, const request *r)
{
    const void *at = (const char *)r + o->at;
    switch (o->kind) {
    case VALUE_NAME:
    case VALUE_PATH:
    case VALUE_TENSORS: return json_string(at);
    case VALUE_MEMORY: return memory_json(*(const uint64_t *)at);
    case VALUE_INT: return json_integer(*(const int *)at);
    case VALUE_SEED: return json_integer((json_int_t)(*(const uint64_t *)at));
    case VALUE_REAL: return json_real(*(const double *)at);
    case VALUE_BOOL: return json_boolean(*(const bool *)at);
    case VALUE_WORD: return json_string(o->words[*(const unsigned *)at]);
    case VALUE_OBJECT: return object_json(o->holds, r);
    case VALUE_IGNORED: break;
    }
    return NULL;
}

/* Writes the `always` options first, as records did before the other options existed. */
static json_t *object_json(option_object in, const request *r)
{
    json_t *object = json_object();
    for (int always = 1; always >= 0; always--)
        for (const job_option *o = job_options; o->name; o++) {
            if (o->in != in || o->always != always || (!always && is_default(o, r)))
                continue;
            if (json_object_set_new(object, o->name, value_json(o, r)) != 0) {
                json_decref(object);
                return NULL;
            }
        }
    return object;
}

json_t *request_json(const request *r)
{
    return object_json(IN_REQUEST, r);
}

void request_init_id(const char *init, char out[REQUEST_NAME_BYTES])
{
    static const char folder[] = "models/";
    size_t skip = init && strncmp(init, folder, sizeof folder - 1) == 0 ? sizeof folder - 1 : 0;
    snprintf(out, REQUEST_NAME_BYTES, "%s", init ? init + skip : "");
    if (skip)
        out[strcspn(out, "/")] = '\0';
}
