/* fuzz_npy.c: headers of npy files. */
#include "common/formats/npy.h"
#include "fuzz.h"

FUZZ(npy)
{
    array_head head;
    char text[ARRAY_TEXT_BYTES];
    err e = ERR_INIT;
    int known = npy_parse(bytes, len, &head, &e);
    FUZZ_CHECK(known < 0 ? e.code != ERR_NONE && e.message[0] : e.code == ERR_NONE);
    if (known == 1) {
        FUZZ_CHECK(head.data_offset <= len && head.ndim >= 0 && head.ndim <= ARRAY_DIMS_MAX);
        FUZZ_CHECK(strlen(array_text(&head, text)) < sizeof text);
    }
    return 0;
}
