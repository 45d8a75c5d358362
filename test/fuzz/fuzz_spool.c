/* fuzz_spool.c: an uploaded file of any format: gz, npy, IDX, CIFAR-10, and an npz's arrays. */
#include "common/dataset/npz.h"
#include "common/dataset/spool.h"
#include "fuzz.h"

static void extract_all(spool *s, spool_quota *quota)
{
    npz *z;
    err e = ERR_INIT;
    if (npz_open(spool_fd(s), &z, &e) != 0)
        return;
    for (size_t i = 0; i < npz_count(z) && i < 8; i++) {
        spool *array = NULL;
        if (npz_extract(z, i, "/tmp", quota, &array, &e) == 0)
            FUZZ_CHECK(spool_bytes(array) ==
                       spool_head(array)->data_offset + spool_head(array)->data_bytes);
        spool_free(array);
    }
    npz_close(z);
}

FUZZ(spool)
{
    enum { QUOTA = 1 << 20 };
    spool_quota quota = {.bytes = QUOTA};
    spool *s;
    err e = ERR_INIT;
    FUZZ_CHECK(spool_new("/tmp", &quota, &s, &e) == 0);
    /* The first byte decides where the file is cut into pieces. */
    size_t step = len > 0 ? (size_t)bytes[0] * 37 + 1 : 1;
    int result = 0;
    for (size_t at = 0; result == 0 && at < len; at += step)
        result = spool_feed(s, bytes + at, len - at < step ? len - at : step, &e);
    if (result == 0)
        result = spool_end(s, &e);
    FUZZ_CHECK((result != 0) == (e.code != ERR_NONE));
    FUZZ_CHECK(spool_bytes(s) + quota.bytes == QUOTA);
    if (result == 0 && spool_get_format(s) == SPOOL_NPZ)
        extract_all(s, &quota);
    spool_free(s);
    return 0;
}
