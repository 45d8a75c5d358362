/* safetensors.c: see safetensors.h.
 *
 *     u64 length of the header, little-endian | JSON, filled up with spaces | tensors' bytes
 *
 *     {"__metadata__": {"key": "text"},
 *      "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} */
#include "safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "array.h"
#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/base/jsontext.h"
#include "common/store/store.h"

enum { PREFIX_BYTES = 8, DATA_ALIGNMENT = 64, CONVERT_BYTES = 4096 };

static const char metadata_key[] = "__metadata__";

static const struct {
    const char *name;
    size_t bytes;
} dtypes[SAFETENSORS_DTYPES] = {
    [SAFETENSORS_F32] = {"F32", 4},   [SAFETENSORS_F64] = {"F64", 8},
    [SAFETENSORS_F16] = {"F16", 2},   [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_I64] = {"I64", 8},   [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_I16] = {"I16", 2},   [SAFETENSORS_I8] = {"I8", 1},
    [SAFETENSORS_U64] = {"U64", 8},   [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_U16] = {"U16", 2},   [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_BOOL] = {"BOOL", 1},
};

size_t safetensors_dtype_bytes(safetensors_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *safetensors_dtype_name(safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

const char *safetensors_shape_text(int ndim, const uint64_t *shape,
                                   char out[SAFETENSORS_SHAPE_BYTES])
{
    size_t at = (size_t)snprintf(out, SAFETENSORS_SHAPE_BYTES, "(");
    for (int i = 0; i < ndim && i < SAFETENSORS_DIMS_MAX; i++)
        at += (size_t)snprintf(out + at, SAFETENSORS_SHAPE_BYTES - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)shape[i]);
    snprintf(out + at, SAFETENSORS_SHAPE_BYTES - at, ")");
    return out;
}

/* Bytes of a tensor; false when they overflow. */
static bool measure(safetensors_dtype dtype, int ndim, const uint64_t *shape, uint64_t *out)
{
    uint64_t bytes = dtypes[dtype].bytes;
    bool ok = true;
    for (int i = 0; i < ndim; i++)
        ok = !__builtin_mul_overflow(bytes, shape[i], &bytes) && ok;
    *out = bytes;
    return ok && bytes < (uint64_t)1 << 60;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct safetensors {
    int fd; /* -1: in memory */
    const uint8_t *bytes;
    uint64_t len;
    json_t *header; /* owns the names */
    safetensor *tensors;
    size_t count;
};

static int read_at(const safetensors *s, uint64_t offset, void *out, size_t len, err *e)
{
    if (s->fd >= 0)
        return fs_pread_all(s->fd, out, len, offset, "safetensors file", e);
    if (len > 0)
        memcpy(out, s->bytes + offset, len);
    return 0;
}

static int bad(const char *name, err *e, const char *what)
{
    err_set(e, ERR_CORRUPT, "safetensors: tensor \"%.100s\": %s", name, what);
    for (char *p = e ? e->message : NULL; p && *p; p++) /* a cut name may end inside a character */
        if (*p < ' ' || *p > '~')
            *p = '?';
    return -1;
}

static bool parse_count(const json_t *json, uint64_t *out)
{
    if (!json_is_integer(json) || json_integer_value(json) < 0)
        return false;
    *out = (uint64_t)json_integer_value(json);
    return true;
}

static int parse_dtype(const char *name, safetensors_dtype *out)
{
    for (int i = 0; name && i < SAFETENSORS_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (safetensors_dtype)i;
            return 0;
        }
    return -1;
}

/* `data`: where the tensors' bytes begin in the file. */
static int parse_tensor(const char *name, const json_t *json, uint64_t data, uint64_t end,
                        safetensor *out, err *e)
{
    const json_t *shape = json_object_get(json, "shape");
    const json_t *offsets = json_object_get(json, "data_offsets");
    uint64_t from, to, bytes;
    *out = (safetensor){.name = name, .ndim = (int)json_array_size(shape)};
    if (strlen(name) == 0 || strlen(name) > SAFETENSORS_NAME_BYTES_MAX)
        return bad(name, e, "its name is empty or too long");
    if (!json_is_object(json) || json_object_size(json) != 3)
        return bad(name, e, "it is not described by dtype, shape and data_offsets alone");
    if (parse_dtype(json_string_value(json_object_get(json, "dtype")), &out->dtype) != 0)
        return bad(name, e, "its dtype is not known");
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return bad(name, e, "its shape is no array of at most 8 numbers");
    for (int i = 0; i < out->ndim; i++)
        if (!parse_count(json_array_get(shape, (size_t)i), &out->shape[i]))
            return bad(name, e, "its shape has something else than counts");
    if (json_array_size(offsets) != 2 || !parse_count(json_array_get(offsets, 0), &from) ||
        !parse_count(json_array_get(offsets, 1), &to))
        return bad(name, e, "its data_offsets are not two counts");
    if (from > to || to > end - data)
        return bad(name, e, "its bytes lie beyond the end of the file");
    if (!measure(out->dtype, out->ndim, out->shape, &bytes) || bytes != to - from)
        return bad(name, e, "its shape and dtype do not match its data_offsets");
    out->offset = data + from;
    out->bytes = bytes;
    return 0;
}

static int parse_metadata(const json_t *json, err *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(json))
        return err_set(e, ERR_CORRUPT, "safetensors: __metadata__ is no object");
    json_object_foreach(
        (json_t *)(uintptr_t)json, key,
        value) if (!json_is_string(value)) return err_set(e, ERR_CORRUPT,
                                                          "safetensors: __metadata__ has something "
                                                          "else than text");
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const safetensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) /* an empty tensor comes before the tensor of the same offset */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Checks that, in order of offset, each tensor begins where the tensor before it ends, and that the
 * last ends at the end of the file. */
static int check_places(const safetensors *s, uint64_t data, err *e)
{
    uint64_t at = data;
    for (size_t i = 0; i < s->count; i++) {
        const safetensor *t = &s->tensors[i];
        if (t->offset != at)
            return bad(t->name, e,
                       t->offset < at ? "it overlaps another one" : "there is a gap before it");
        at += t->bytes;
    }
    if (at == s->len)
        return 0;
    char what[64];
    snprintf(what, sizeof what, "%llu bytes follow %s", (unsigned long long)(s->len - at),
             s->count ? "it, the last one" : "the header");
    return s->count ? bad(s->tensors[s->count - 1].name, e, what)
                    : err_set(e, ERR_CORRUPT, "safetensors: no tensors, and %s", what);
}

static int parse_tensors(safetensors *s, uint64_t data, err *e)
{
    const char *name;
    json_t *value;
    size_t count = json_object_size(s->header);
    if (count > SAFETENSORS_TENSORS_MAX)
        return err_set(e, ERR_LIMIT, "safetensors: %zu tensors, more than %d", count,
                       SAFETENSORS_TENSORS_MAX);
    s->tensors = calloc(count + 1, sizeof *s->tensors);
    if (!s->tensors)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", count);
    json_object_foreach(s->header, name, value)
    {
        int result = strcmp(name, metadata_key) == 0
                         ? parse_metadata(value, e)
                         : parse_tensor(name, value, data, s->len, &s->tensors[s->count++], e);
        if (result != 0)
            return -1;
    }
    qsort(s->tensors, s->count, sizeof *s->tensors, by_offset);
    return check_places(s, data, e);
}

/* The error for a header longer than the file; names the format if the file is PyTorch's or
 * NumPy's. A pickle's third byte is an opcode, so that its length is larger than any header's; a
 * first byte 0x80 alone may be of a safetensors file that was cut. */
static int other_format(const uint8_t prefix[PREFIX_BYTES], uint64_t header, uint64_t there, err *e)
{
    const char *what = NULL;
    if (memcmp(prefix, "PK\3\4", 4) == 0)
        what = "a zip file, as PyTorch's .pt and an .npz are";
    else if (prefix[0] == 0x80 && header > SAFETENSORS_HEADER_BYTES_MAX)
        what = "a pickle, as PyTorch's older .pt are";
    if (what)
        return err_set(
            e, ERR_CORRUPT,
            "safetensors: %s; in Python: safetensors.torch.save_file(model.state_dict(), F)", what);
    return err_set(e, ERR_CORRUPT,
                   "safetensors: cut, or of another format: a header of %llu bytes, %llu are there",
                   (unsigned long long)header, (unsigned long long)there);
}

static int read_header(safetensors *s, err *e)
{
    uint8_t prefix[PREFIX_BYTES];
    uint64_t header = 0;
    if (s->len < PREFIX_BYTES)
        return err_set(e, ERR_CORRUPT, "safetensors: the file has only %llu bytes",
                       (unsigned long long)s->len);
    if (read_at(s, 0, prefix, sizeof prefix, e) != 0)
        return -1;
    for (int i = 0; i < PREFIX_BYTES; i++)
        header |= (uint64_t)prefix[i] << (8 * i);
    if (header > s->len - PREFIX_BYTES)
        return other_format(prefix, header, s->len - PREFIX_BYTES, e);
    if (header > SAFETENSORS_HEADER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "safetensors: a header of %llu bytes, more than %d",
                       (unsigned long long)header, SAFETENSORS_HEADER_BYTES_MAX);
    cleanup_free char *text = malloc((size_t)header + 1);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for a safetensors header");
    if (read_at(s, PREFIX_BYTES, text, (size_t)header, e) != 0)
        return -1;
    json_error_t problem;
    s->header = json_loadb(text, (size_t)header, JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(s->header)) {
        const char *what = s->header ? "no object" : problem.text;
        err_set(e, ERR_CORRUPT, "safetensors: header: %.150s", what);
        for (char *p = e ? e->message : NULL; p && *p; p++)
            if (*p < ' ' || *p > '~')
                *p = '?';
        return -1;
    }
    return parse_tensors(s, PREFIX_BYTES + header, e);
}

static int open_source(int fd, const void *bytes, uint64_t len, safetensors **out, err *e)
{
    safetensors *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for a safetensors file");
    s->fd = fd;
    s->bytes = bytes;
    s->len = len;
    if (read_header(s, e) != 0) {
        safetensors_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

int safetensors_open(int fd, safetensors **out, err *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set_errno(e, errno, "safetensors file");
    return open_source(fd, NULL, (uint64_t)st.st_size, out, e);
}

int safetensors_open_memory(const void *bytes, size_t len, safetensors **out, err *e)
{
    return open_source(-1, bytes, len, out, e);
}

void safetensors_close(safetensors *s)
{
    if (!s)
        return;
    json_decref(s->header);
    free(s->tensors);
    free(s);
}

size_t safetensors_count(const safetensors *s)
{
    return s->count;
}

const safetensor *safetensors_at(const safetensors *s, size_t i)
{
    return &s->tensors[i];
}

const safetensor *safetensors_find(const safetensors *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->tensors[i].name, name) == 0)
            return &s->tensors[i];
    return NULL;
}

static bool is_float(safetensors_dtype dtype)
{
    return dtype == SAFETENSORS_F32 || dtype == SAFETENSORS_F64 || dtype == SAFETENSORS_F16 ||
           dtype == SAFETENSORS_BF16;
}

int safetensors_require(const safetensors *s, const char *name, safetensors_dtype dtype, int ndim,
                        const uint64_t *shape, const safetensor **out, err *e)
{
    const safetensor *t = *out = safetensors_find(s, name);
    if (!t)
        return err_set(e, ERR_INVALID, "tensor %s of the model is missing", name);
    if (t->dtype != dtype && !(dtype == SAFETENSORS_F32 && is_float(t->dtype)))
        return err_set(e, ERR_INVALID, "tensor %s is of type %s, not %s", name,
                       safetensors_dtype_name(t->dtype), safetensors_dtype_name(dtype));
    bool same = t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = t->shape[d] == shape[d];
    char has[SAFETENSORS_SHAPE_BYTES], wanted[SAFETENSORS_SHAPE_BYTES];
    if (!same)
        return err_set(e, ERR_INVALID, "tensor %.64s has shape %.64s, the model's is %.64s", name,
                       safetensors_shape_text(t->ndim, t->shape, has),
                       safetensors_shape_text(ndim, shape, wanted));
    return 0;
}

const char *safetensors_metadata(const safetensors *s, const char *key)
{
    return json_string_value(json_object_get(json_object_get(s->header, metadata_key), key));
}

int safetensors_read(safetensors *s, const safetensor *t, uint64_t offset, void *out, size_t len,
                     err *e)
{
    if (offset > t->bytes || len > t->bytes - offset)
        return err_set(e, ERR_INVALID, "bytes %llu to %llu of a tensor of %llu",
                       (unsigned long long)offset, (unsigned long long)(offset + len),
                       (unsigned long long)t->bytes);
    return read_at(s, t->offset + offset, out, len, e);
}

/* A bfloat16 is the upper half of a float32's bits. */
static void bf16_to_f32(const uint8_t *in, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)in[2 * i] << 16 | (uint32_t)in[2 * i + 1] << 24;
        memcpy(out + i, &bits, sizeof bits);
    }
}

int safetensors_read_f32(safetensors *s, const safetensor *t, float *out, err *e)
{
    uint8_t some[CONVERT_BYTES];
    size_t each = dtypes[t->dtype].bytes;
    if (!is_float(t->dtype))
        return err_set(e, ERR_INVALID, "tensor %s is of type %s, and no floats", t->name,
                       dtypes[t->dtype].name);
    if (t->dtype == SAFETENSORS_F32)
        return safetensors_read(s, t, 0, out, (size_t)t->bytes, e);
    for (uint64_t at = 0; at < t->bytes; at += sizeof some) {
        size_t n = t->bytes - at < sizeof some ? (size_t)(t->bytes - at) : sizeof some;
        if (safetensors_read(s, t, at, some, n, e) != 0)
            return -1;
        if (t->dtype == SAFETENSORS_BF16)
            bf16_to_f32(some, out + at / each, n / each);
        else
            array_to_f32(t->dtype == SAFETENSORS_F16 ? ARRAY_F16 : ARRAY_F64, false, some,
                         out + at / each, n / each);
    }
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------- */

struct safetensors_writer {
    json_t *header; /* in order of declaration */
    json_t *metadata;
    uint64_t bytes; /* of all tensors */
    uint64_t given;
    safetensors_sink sink;
    void *arg;
};

static int no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for a safetensors header");
}

int safetensors_writer_new(safetensors_writer **out, err *e)
{
    safetensors_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->header = json_object())) {
        free(w);
        return no_memory(e);
    }
    *out = w;
    return 0;
}

void safetensors_writer_free(safetensors_writer *w)
{
    if (!w)
        return;
    json_decref(w->header);
    free(w);
}

int safetensors_writer_metadata(safetensors_writer *w, const char *key, const char *value, err *e)
{
    json_t *text = json_string(value);
    if (!text)
        return err_set(e, ERR_INVALID, "safetensors: metadata \"%.40s\" is no UTF-8", key);
    if (!w->metadata) {
        json_t *metadata = json_object();
        if (!metadata || json_object_set_new(w->header, metadata_key, metadata) != 0) {
            json_decref(text);
            return no_memory(e);
        }
        w->metadata = metadata;
    }
    return json_object_set_new(w->metadata, key, text) == 0 ? 0 : no_memory(e);
}

int safetensors_writer_add(safetensors_writer *w, const char *name, safetensors_dtype dtype,
                           int ndim, const uint64_t *shape, err *e)
{
    uint64_t bytes;
    if (w->sink)
        return err_set(e, ERR_CONFLICT, "safetensors: the header has been written");
    if (!*name || strlen(name) > SAFETENSORS_NAME_BYTES_MAX || strcmp(name, metadata_key) == 0 ||
        ndim < 0 || ndim > SAFETENSORS_DIMS_MAX || !measure(dtype, ndim, shape, &bytes))
        return err_set(e, ERR_INVALID, "safetensors: tensor \"%.100s\" cannot be written", name);
    if (json_object_get(w->header, name))
        return err_set(e, ERR_EXISTS, "safetensors: tensor \"%.100s\" is declared twice", name);
    if (json_object_size(w->header) >= SAFETENSORS_TENSORS_MAX)
        return err_set(e, ERR_LIMIT, "safetensors: more than %d tensors", SAFETENSORS_TENSORS_MAX);
    json_t *dims = json_array();
    for (int i = 0; dims && i < ndim; i++)
        if (json_array_append_new(dims, json_integer((json_int_t)shape[i])) != 0) {
            json_decref(dims);
            return no_memory(e);
        }
    json_t *tensor =
        json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtypes[dtype].name, "shape", dims, "data_offsets",
                  (json_int_t)w->bytes, (json_int_t)(w->bytes + bytes));
    if (json_object_set_new(w->header, name, tensor) != 0)
        return err_set(e, ERR_INVALID, "safetensors: tensor \"%.40s\" cannot be written", name);
    w->bytes += bytes;
    return 0;
}

int safetensors_writer_begin(safetensors_writer *w, safetensors_sink sink, void *arg, err *e)
{
    cleanup_buf buf text;
    buf_init(&text, SAFETENSORS_HEADER_BYTES_MAX - DATA_ALIGNMENT);
    if (jsontext_append(&text, w->header, JSON_COMPACT, e) != 0)
        return err_wrap(e, "safetensors: header");
    size_t len = text.len;
    size_t padded = (PREFIX_BYTES + len + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    cleanup_free uint8_t *all = malloc(padded);
    if (!all)
        return no_memory(e);
    for (int i = 0; i < PREFIX_BYTES; i++)
        all[i] = (uint8_t)((uint64_t)(padded - PREFIX_BYTES) >> (8 * i));
    memcpy(all + PREFIX_BYTES, text.bytes, len);
    memset(all + PREFIX_BYTES + len, ' ', padded - PREFIX_BYTES - len);
    w->sink = sink;
    w->arg = arg;
    return sink(arg, all, padded, e);
}

int safetensors_writer_data(safetensors_writer *w, const void *bytes, size_t len, err *e)
{
    if (!w->sink || len > w->bytes - w->given)
        return err_set(e, ERR_INVALID, "safetensors: more bytes than were declared");
    w->given += len;
    return w->sink(w->arg, bytes, len, e);
}

int safetensors_writer_end(safetensors_writer *w, err *e)
{
    if (!w->sink || w->given != w->bytes)
        return err_set(e, ERR_INVALID, "safetensors: %llu bytes were declared, %llu given",
                       (unsigned long long)w->bytes, (unsigned long long)w->given);
    return 0;
}

int safetensors_blob_sink(void *blob_writer_arg, const void *bytes, size_t len, err *e)
{
    return blob_write(blob_writer_arg, bytes, len, e);
}
