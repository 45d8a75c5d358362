/* test_fuzz.c: the fuzz targets over their corpus, and over variations of each file: cut, with
 * bytes changed, with pieces doubled. `make fuzz` looks further. */
#include <dirent.h>

#include "common/base/rng.h"
#include "test/fuzz/fuzz_dataset.c"
#include "test/fuzz/fuzz_http.c"
#include "test/fuzz/fuzz_idx.c"
#include "test/fuzz/fuzz_ingest.c"
#include "test/fuzz/fuzz_kubeconfig.c"
#include "test/fuzz/fuzz_layout.c"
#include "test/fuzz/fuzz_module.c"
#include "test/fuzz/fuzz_multipart.c"
#include "test/fuzz/fuzz_npy.c"
#include "test/fuzz/fuzz_object.c"
#include "test/fuzz/fuzz_record.c"
#include "test/fuzz/fuzz_redis.c"
#include "test/fuzz/fuzz_safetensors.c"
#include "test/fuzz/fuzz_spool.c"
#include "test/fuzz/fuzz_wire.c"
#include "test.h"

typedef int (*target)(const uint8_t *bytes, size_t len);

/* From an allocation of just that length, so that a read beyond it is seen. */
static void run_copy(target run, const char *bytes, size_t len)
{
    uint8_t *copy = malloc(len ? len : 1);
    CHECK(copy);
    if (len)
        memcpy(copy, bytes, len);
    run(copy, len);
    free(copy);
}

static void run_varied(target run, const buf *file, rng *r)
{
    enum { VARIATIONS = 150 };
    run_copy(run, file->bytes, file->len);
    for (int i = 0; i < VARIATIONS && file->len > 0; i++) {
        size_t len = file->len;
        char *copy = malloc(len);
        CHECK(copy);
        memcpy(copy, file->bytes, len);
        for (uint64_t changes = rng_below(r, 4); changes > 0; changes--)
            copy[rng_below(r, len < 200 || rng_below(r, 2) ? len : 200)] ^=
                (char)(1 << rng_below(r, 8));
        if (rng_below(r, 3) == 0) {
            size_t from = rng_below(r, len), to = rng_below(r, len), n = rng_below(r, 16);
            for (size_t k = 0; k < n && from + k < len && to + k < len; k++)
                copy[to + k] = copy[from + k];
        }
        if (rng_below(r, 3) == 0)
            len = rng_below(r, len);
        run_copy(run, copy, len);
        free(copy);
    }
}

static void run_corpus(const char *name, target run)
{
    char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "test/fuzz/corpus/%s", name);
    DIR *dir = opendir(path);
    if (!dir)
        test_fail(__FILE__, __LINE__, "no corpus %s (tests run in the repository's root)", path);
    struct dirent *entry;
    int files = 0;
    rng r;
    rng_init(&r, 11, RNG_TEST, 0, 0);
    while ((entry = readdir(dir))) {
        err e = ERR_INIT;
        buf file;
        if (entry->d_name[0] == '.')
            continue;
        buf_init(&file, 1 << 20);
        snprintf(path, sizeof path, "test/fuzz/corpus/%s/%.200s", name, entry->d_name);
        CHECK_OK(fs_read_file(path, &file, &e), e);
        run_varied(run, &file, &r);
        buf_free(&file);
        files++;
    }
    closedir(dir);
    CHECK(files > 0);
}

#define TEST_CORPUS(name)                                                                          \
    TEST_LIMIT(corpus_##name, 60)                                                                  \
    {                                                                                              \
        run_corpus(#name, fuzz_##name);                                                            \
    }

TEST_CORPUS(npy)
TEST_CORPUS(idx)
TEST_CORPUS(spool)
TEST_CORPUS(safetensors)
TEST_CORPUS(dataset)
TEST_CORPUS(ingest)
TEST_CORPUS(layout)
TEST_CORPUS(redis)
TEST_CORPUS(module)
TEST_CORPUS(multipart)
TEST_CORPUS(http)
TEST_CORPUS(wire)
TEST_CORPUS(record)
TEST_CORPUS(kubeconfig)
TEST_CORPUS(object)
