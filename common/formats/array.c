/* array.c: see array.h. */
#include "array.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    size_t bytes;
    const char *name;
} dtypes[ARRAY_DTYPES] = {
    [ARRAY_U8] = {1, "uint8"},    [ARRAY_I8] = {1, "int8"},     [ARRAY_BOOL] = {1, "bool"},
    [ARRAY_U16] = {2, "uint16"},  [ARRAY_I16] = {2, "int16"},   [ARRAY_U32] = {4, "uint32"},
    [ARRAY_I32] = {4, "int32"},   [ARRAY_U64] = {8, "uint64"},  [ARRAY_I64] = {8, "int64"},
    [ARRAY_F16] = {2, "float16"}, [ARRAY_F32] = {4, "float32"}, [ARRAY_F64] = {8, "float64"},
};

#define BYTES_MAX ((uint64_t)1 << 48)

size_t array_dtype_bytes(array_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *array_dtype_name(array_dtype dtype)
{
    return dtypes[dtype].name;
}

int array_measure(array_head *head, err *e)
{
    uint64_t bytes = dtypes[head->dtype].bytes;
    bool empty = false;
    for (int i = 0; i < head->ndim; i++) {
        if (head->shape[i] == 0)
            empty = true;
        else if (head->shape[i] > BYTES_MAX / bytes)
            return err_set(e, ERR_LIMIT, "the header's shape has more than %llu bytes",
                           (unsigned long long)BYTES_MAX);
        else
            bytes *= head->shape[i];
    }
    head->data_bytes = empty ? 0 : bytes;
    return 0;
}

const char *array_text(const array_head *head, char out[ARRAY_TEXT_BYTES])
{
    size_t len = (size_t)snprintf(out, ARRAY_TEXT_BYTES, "%s (", dtypes[head->dtype].name);
    for (int i = 0; i < head->ndim && len < ARRAY_TEXT_BYTES; i++)
        len += (size_t)snprintf(out + len, ARRAY_TEXT_BYTES - len, i ? ", %llu" : "%llu",
                                (unsigned long long)head->shape[i]);
    if (len < ARRAY_TEXT_BYTES)
        snprintf(out + len, ARRAY_TEXT_BYTES - len, head->ndim == 1 ? ",)" : ")");
    return out;
}

/* ---- one number ---------------------------------------------------------------------------- */

/* IEEE 754 binary16 to binary32, exactly. */
static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = (half >> 10) & 31, part = half & 1023;
    if (exponent == 0) {
        float value = (float)part * 0x1p-24f;
        return sign ? -value : value;
    }
    uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | part << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void load(const uint8_t *in, size_t bytes, bool swap, void *out)
{
    uint8_t *o = out;
    for (size_t i = 0; i < bytes; i++)
        o[i] = in[swap ? bytes - 1 - i : i];
}

#define LOAD(type)                                                                                 \
    __extension__({                                                                                \
        type value_;                                                                               \
        load(in, sizeof value_, swap, &value_);                                                    \
        value_;                                                                                    \
    })

static double number(array_dtype dtype, bool swap, const uint8_t *in)
{
    switch (dtype) {
    case ARRAY_U8:
        return in[0];
    case ARRAY_I8:
        return (int8_t)in[0];
    case ARRAY_BOOL:
        return in[0] != 0;
    case ARRAY_U16:
        return LOAD(uint16_t);
    case ARRAY_I16:
        return LOAD(int16_t);
    case ARRAY_U32:
        return LOAD(uint32_t);
    case ARRAY_I32:
        return LOAD(int32_t);
    case ARRAY_U64:
        return (double)LOAD(uint64_t);
    case ARRAY_I64:
        return (double)LOAD(int64_t);
    case ARRAY_F16:
        return (double)half_to_float(LOAD(uint16_t));
    case ARRAY_F32:
        return (double)LOAD(float);
    default:
        return LOAD(double);
    }
}

/* A double beyond float32's range becomes infinite, and the caller refuses infinite values. */
static float narrow(double value)
{
    return fabs(value) > 0x1.fffffefffffffp127 ? (float)copysign(INFINITY, value) : (float)value;
}

void array_to_f32(array_dtype dtype, bool swap, const void *in, float *out, size_t n)
{
    const uint8_t *p = in;
    size_t bytes = dtypes[dtype].bytes;
    if (dtype == ARRAY_F32 && !swap) {
        memcpy(out, in, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++, p += bytes)
        out[i] = narrow(number(dtype, swap, p));
}

size_t array_to_labels(array_dtype dtype, bool swap, const void *in, int32_t *out, size_t n,
                       int32_t max, double *bad)
{
    const uint8_t *p = in;
    size_t bytes = dtypes[dtype].bytes;
    for (size_t i = 0; i < n; i++, p += bytes) {
        double value = number(dtype, swap, p);
        if (!(value >= 0 && value <= (double)max) || value != floor(value)) {
            *bad = value;
            return i;
        }
        out[i] = (int32_t)value;
    }
    return n;
}
