/* idx.c: see idx.h. */
#include "idx.h"

static int dtype_of(uint8_t type)
{
    switch (type) {
    case 0x08:
        return ARRAY_U8;
    case 0x09:
        return ARRAY_I8;
    case 0x0B:
        return ARRAY_I16;
    case 0x0C:
        return ARRAY_I32;
    case 0x0D:
        return ARRAY_F32;
    case 0x0E:
        return ARRAY_F64;
    default:
        return -1;
    }
}

bool idx_is(const uint8_t *bytes, size_t len)
{
    return len >= 4 && bytes[0] == 0 && bytes[1] == 0 && dtype_of(bytes[2]) >= 0 && bytes[3] >= 1 &&
           bytes[3] <= ARRAY_DIMS_MAX;
}

int idx_parse(const uint8_t *bytes, size_t len, array_head *out, err *e)
{
    if (len < 4)
        return 0;
    if (!idx_is(bytes, len))
        return err_set(e, ERR_CORRUPT, "not an IDX file");
    int ndim = bytes[3];
    if (len < 4 + 4 * (size_t)ndim)
        return 0;
    *out = (array_head){.dtype = (array_dtype)dtype_of(bytes[2]),
                        .ndim = ndim,
                        .data_offset = 4 + 4 * (uint64_t)ndim};
    out->swap = array_dtype_bytes(out->dtype) > 1;
    for (int i = 0; i < ndim; i++) {
        const uint8_t *p = bytes + 4 + 4 * i;
        out->shape[i] = (uint64_t)p[0] << 24 | (uint64_t)p[1] << 16 | (uint64_t)p[2] << 8 | p[3];
    }
    return array_measure(out, e) == 0 ? 1 : -1;
}
