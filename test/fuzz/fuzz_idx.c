/* fuzz_idx.c: headers of IDX files. */
#include "common/formats/idx.h"
#include "fuzz.h"

FUZZ(idx)
{
    array_head head;
    err e = ERR_INIT;
    int known = idx_parse(bytes, len, &head, &e);
    FUZZ_CHECK((known < 0) == (e.code != ERR_NONE));
    if (known == 1)
        FUZZ_CHECK(head.data_offset <= len && head.ndim >= 1 && head.ndim <= ARRAY_DIMS_MAX);
    return 0;
}
