/* fuzz_ingest.c: a whole upload into a store in memory: the four parts stand one after the other,
 * each behind its length (u16); what is accepted can be read back. */
#include "common/dataset/ingest.h"
#include "fuzz.h"
#include "store_memory.h"

static void read_back(store *s, const dataset_info *info)
{
    char locator[STORE_LOCATOR_BYTES];
    dataset *d;
    err e = ERR_INIT;
    FUZZ_CHECK(dataset_locator(s, info, locator, &e) == 0 && dataset_open(locator, &d, &e) == 0);
    for (int split = 0; split < DATASET_SPLITS; split++)
        for (uint32_t c = 0; c < info->chunks[split]; c++) {
            dataset_chunk chunk;
            FUZZ_CHECK(dataset_view(d, (dataset_split)split, c, &chunk, &e) == 0);
            for (uint32_t k = 0; k < chunk.samples; k++)
                FUZZ_CHECK(chunk.index[k] < info->samples[split] &&
                           (uint32_t)chunk.labels[k] < info->classes);
        }
    dataset_close(d);
}

FUZZ(ingest)
{
    static const char *const fields[] = {"x-train", "y-train", "x-test", "y-test"};
    ingest_options options = {.bytes_max = 1 << 20, .chunk_samples = 3};
    err e = ERR_INIT;
    ingest *i;
    dataset_info info;
    store *s = store_open(store_memory_locator(), &e);
    FUZZ_CHECK(s && ingest_begin(s, "d", &options, &i, &e) == 0);
    int result = 0;
    for (int f = 0; result == 0 && f < 4 && len >= 2; f++) {
        size_t part = (size_t)bytes[0] | (size_t)bytes[1] << 8;
        bytes += 2;
        len -= 2;
        if (part > len)
            part = len;
        result = ingest_part(i, fields[f], NULL, &e);
        if (result == 0)
            result = ingest_bytes(i, fields[f], bytes, part, &e);
        bytes += part;
        len -= part;
    }
    if (result == 0 && ingest_end(i, &info, &e) == 0) {
        read_back(s, &info);
        dataset_info_free(&info);
    } else {
        FUZZ_CHECK(e.code != ERR_NONE && e.code != ERR_INTERNAL);
        if (result != 0)
            ingest_abort(i);
    }
    store_close(s);
    return 0;
}
