/* npy.c: see npy.h. The parser of the header's dict knows no more Python than strings, True, False
 * and a tuple of numbers. */
#include "npy.h"

#include <stdio.h>
#include <string.h>

static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

bool npy_is(const uint8_t *bytes, size_t len)
{
    return len >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

static bool take(cursor *c, char want)
{
    skip_space(c);
    if (c->at == c->end || *c->at != want)
        return false;
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word)
{
    skip_space(c);
    size_t len = strlen(word);
    if ((size_t)(c->end - c->at) < len || memcmp(c->at, word, len) != 0)
        return false;
    c->at += len;
    return true;
}

/* A quoted string without escapes, shorter than `size`. */
static bool take_string(cursor *c, char *out, size_t size)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    char quote = *c->at++;
    size_t len = 0;
    while (c->at < c->end && *c->at != quote) {
        if (len + 1 >= size || *c->at == '\\' || (unsigned char)*c->at < ' ')
            return false;
        out[len++] = *c->at++;
    }
    out[len] = '\0';
    return take(c, quote);
}

static bool take_number(cursor *c, uint64_t *out)
{
    skip_space(c);
    const char *begin = c->at;
    *out = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        if (*out > (UINT64_MAX - 9) / 10)
            return false;
        *out = *out * 10 + (uint64_t)(*c->at++ - '0');
    }
    if (c->at == begin)
        return false;
    take(c, 'L'); /* Python 2 */
    return true;
}

static bool take_shape(cursor *c, array_head *out)
{
    if (!take(c, '('))
        return false;
    for (out->ndim = 0; !take(c, ')'); out->ndim++) {
        if (out->ndim == ARRAY_DIMS_MAX || !take_number(c, &out->shape[out->ndim]))
            return false;
        if (!take(c, ',')) {
            out->ndim++;
            return take(c, ')');
        }
    }
    return true;
}

static const struct {
    const char *code;
    array_dtype dtype;
} codes[] = {
    {"u1", ARRAY_U8},  {"i1", ARRAY_I8},  {"b1", ARRAY_BOOL}, {"u2", ARRAY_U16},
    {"i2", ARRAY_I16}, {"u4", ARRAY_U32}, {"i4", ARRAY_I32},  {"u8", ARRAY_U64},
    {"i8", ARRAY_I64}, {"f2", ARRAY_F16}, {"f4", ARRAY_F32},  {"f8", ARRAY_F64},
};

/* "<f4": byte order, kind, bytes. */
static int take_descr(const char *descr, array_head *out, err *e)
{
    const char *code = descr + 1;
    if (*descr && strchr("<>|=", *descr))
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            if (strcmp(code, codes[i].code) == 0) {
                out->dtype = codes[i].dtype;
                out->swap = *descr == '>' && array_dtype_bytes(out->dtype) > 1;
                return 0;
            }
    if (*descr && descr[1] == 'O')
        return err_set(
            e, ERR_UNSUPPORTED,
            "an npy array of Python objects is a pickle, which can run code; convert it: "
            "np.save(\"x.npy\", np.stack(list(a)).astype(\"float32\"))");
    return err_set(e, ERR_UNSUPPORTED,
                   "npy dtype '%.20s' is no plain number; convert it: a.astype(\"float32\")",
                   descr);
}

static int malformed(err *e)
{
    return err_set(e, ERR_CORRUPT, "the npy header is malformed");
}

static int parse_dict(cursor *c, array_head *out, err *e)
{
    bool fortran = false, have_descr = false, have_order = false, have_shape = false;
    if (!take(c, '{'))
        return malformed(e);
    while (!take(c, '}')) {
        char key[16], descr[32];
        if (!take_string(c, key, sizeof key) || !take(c, ':'))
            return malformed(e);
        if (strcmp(key, "descr") == 0 && !have_descr) {
            have_descr = true;
            if (take(c, '['))
                return err_set(e, ERR_UNSUPPORTED,
                               "the npy file has records; save each field as an array of its own");
            if (!take_string(c, descr, sizeof descr))
                return malformed(e);
            if (take_descr(descr, out, e) != 0)
                return -1;
        } else if (strcmp(key, "fortran_order") == 0 && !have_order) {
            have_order = true;
            fortran = take_word(c, "True");
            if (!fortran && !take_word(c, "False"))
                return malformed(e);
        } else if (strcmp(key, "shape") == 0 && !have_shape) {
            have_shape = true;
            if (!take_shape(c, out))
                return malformed(e);
        } else {
            return malformed(e);
        }
        if (!take(c, ',')) {
            if (!take(c, '}'))
                return malformed(e);
            break;
        }
    }
    skip_space(c);
    if (c->at != c->end || !have_descr || !have_order || !have_shape)
        return malformed(e);
    if (fortran && out->ndim > 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "the npy file is in Fortran order; convert it: "
                       "np.save(\"x.npy\", np.ascontiguousarray(a))");
    return array_measure(out, e);
}

int npy_parse(const uint8_t *bytes, size_t len, array_head *out, err *e)
{
    if (len < 12)
        return 0;
    if (!npy_is(bytes, len))
        return err_set(e, ERR_CORRUPT, "not an npy file");
    size_t prefix, header;
    if (bytes[6] == 1) {
        prefix = 10;
        header = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    } else if (bytes[6] == 2 || bytes[6] == 3) {
        prefix = 12;
        header = (size_t)bytes[8] | (size_t)bytes[9] << 8 | (size_t)bytes[10] << 16 |
                 (size_t)bytes[11] << 24;
    } else {
        return err_set(e, ERR_UNSUPPORTED, "npy version %d.%d is not known", bytes[6], bytes[7]);
    }
    if (header > NPY_HEADER_BYTES_MAX - prefix)
        return err_set(e, ERR_LIMIT, "an npy header of %zu bytes, more than %d", header,
                       NPY_HEADER_BYTES_MAX);
    if (len < prefix + header)
        return 0;
    *out = (array_head){.data_offset = prefix + header};
    cursor c = {(const char *)bytes + prefix, (const char *)bytes + prefix + header};
    return parse_dict(&c, out, e) == 0 ? 1 : -1;
}

int npy_header(array_dtype dtype, int ndim, const uint64_t *shape, buf *out, err *e)
{
    char dict[256];
    const char *code = "u1";
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].dtype == dtype)
            code = codes[i].code;
    size_t len =
        (size_t)snprintf(dict, sizeof dict, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                         array_dtype_bytes(dtype) > 1 ? '<' : '|', code);
    for (int i = 0; i < ndim; i++)
        len +=
            (size_t)snprintf(dict + len, sizeof dict - len, i && i == ndim - 1 ? "%llu" : "%llu, ",
                             (unsigned long long)shape[i]);
    len += (size_t)snprintf(dict + len, sizeof dict - len, "), }");
    /* The numbers begin at a multiple of 64; the header ends with a newline. */
    size_t total = (10 + len + 1 + 63) / 64 * 64;
    uint8_t prefix[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)(total - 10), (uint8_t)((total - 10) >> 8)};
    if (buf_append(out, prefix, sizeof prefix, e) != 0 || buf_append(out, dict, len, e) != 0 ||
        buf_printf(out, e, "%*s\n", (int)(total - 10 - len - 1), "") != 0)
        return -1;
    return 0;
}
