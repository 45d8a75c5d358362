/* fuzz_dataset.c: a dataset's description (JSON) and, behind a NUL, a chunk of it. */
#include "common/dataset/dataset.h"
#include "fuzz.h"

static void check_chunk(const dataset_info *info, const uint8_t *at, size_t len)
{
    dataset_chunk chunk;
    err e = ERR_INIT;
    uint32_t samples = info->chunk_samples < 64 ? info->chunk_samples : 64;
    uint8_t *copy = malloc(len + 1); /* so that a read beyond the end is seen */
    FUZZ_CHECK(copy);
    memcpy(copy, at, len);
    if (dataset_chunk_parse(info, samples, copy, len, false, &chunk, &e) == 0) {
        const uint8_t *end = (const uint8_t *)chunk.data + samples * dataset_sample_bytes(info);
        FUZZ_CHECK(end <= copy + len);
    }
    if (dataset_chunk_parse(info, samples, copy, len, true, &chunk, &e) == 0)
        FUZZ_CHECK(chunk.samples == samples);
    free(copy);
}

FUZZ(dataset)
{
    size_t text = strnlen((const char *)bytes, len);
    json_t *json = json_loadb((const char *)bytes, text, 0, NULL);
    dataset_info info;
    err e = ERR_INIT;
    if (json && dataset_info_parse(json, &info, &e) == 0) {
        json_t *again = dataset_info_json(&info);
        dataset_info same;
        FUZZ_CHECK(again && dataset_info_parse(again, &same, &e) == 0);
        dataset_info_free(&same);
        json_decref(again);
        if (text < len)
            check_chunk(&info, bytes + text + 1, len - text - 1);
        dataset_info_free(&info);
    }
    json_decref(json);
    return 0;
}
