/* test_dataset.c: reading a dataset: by a passed descriptor, by several threads, after its
 * deletion, and when its bytes are not what was written. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arrays.h"
#include "common/base/json_read.h"
#include "common/dataset/ingest.h"
#include "stores.h"

enum { SAMPLES = 200, VALUES = 3 * 8 * 8 };

/* 200 uint8 samples of (3, 8, 8), each filled with its number, in a store of its own. */
static store *make_dataset(dataset_info *info, char locator[STORE_LOCATOR_BYTES])
{
    err e = ERR_INIT;
    char paths[2][600];
    static uint8_t images[SAMPLES * VALUES], labels[SAMPLES];
    store *s = test_store("");
    for (int i = 0; i < SAMPLES; i++) {
        memset(images + i * VALUES, i, VALUES);
        labels[i] = (uint8_t)(i % 7);
    }
    cleanup_bytes bytes x = make_npy(ARRAY_U8, SHAPE(SAMPLES, 3, 8, 8), images);
    cleanup_bytes bytes y = make_npy(ARRAY_U8, SHAPE(SAMPLES), labels);
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%c.npy", test_tmp(), i ? 'y' : 'x');
    write_bytes(paths[0], x);
    write_bytes(paths[1], y);
    ingest_files files = {paths[0], paths[1], paths[0], paths[1]};
    CHECK_OK(ingest_paths(s, "d", NULL, &files, info, &e), e);
    CHECK_OK(dataset_locator(s, info, locator, &e), e);
    return s;
}

static void check_all(dataset *d)
{
    err e = ERR_INIT;
    const dataset_info *info = dataset_get_info(d);
    CHECK_INT(info->chunks[DATASET_TRAIN], 4);
    for (uint32_t c = 0; c < 4; c++) {
        dataset_chunk chunk;
        CHECK_OK(dataset_view(d, DATASET_TRAIN, c, &chunk, &e), e);
        CHECK_INT(chunk.samples, c < 3 ? 64 : 8);
        for (uint32_t k = 0; k < chunk.samples; k++) {
            CHECK_INT(((const uint8_t *)chunk.data)[k * VALUES + 5], chunk.index[k]);
            CHECK_INT(chunk.labels[k], chunk.index[k] % 7);
        }
        dataset_release(d, DATASET_TRAIN, c);
    }
    dataset_chunk chunk;
    CHECK_ERR(dataset_view(d, DATASET_TEST, 4, &chunk, &e), e, ERR_INVALID,
              "4 test chunks, no number 4");
}

TEST(a_descriptor_is_enough)
{
    err e = ERR_INIT;
    dataset_info info;
    char locator[STORE_LOCATOR_BYTES], passed[64];
    store *s = make_dataset(&info, locator);
    int fd = open(locator + strlen("lmdb:"), O_RDONLY);
    CHECK(fd >= 0);
    struct stat st;
    CHECK_INT(fstat(fd, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0444); /* nobody writes to it again */
    snprintf(passed, sizeof passed, "/proc/self/fd/%d", fd);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        /* Another process, that knows nothing but the descriptor's number. */
        dataset *d;
        CHECK_OK(dataset_open(passed, &d, &e), e);
        check_all(d);
        dataset_close(d);
        _exit(0);
    }
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(fd);
    dataset_info_free(&info);
    store_close(s);
}

TEST(views_are_no_copies)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    dataset_chunk first, again;
    char locator[STORE_LOCATOR_BYTES];
    store *s = make_dataset(&info, locator);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    CHECK_OK(dataset_view(d, DATASET_TRAIN, 1, &first, &e), e);
    CHECK_OK(dataset_view(d, DATASET_TRAIN, 1, &again, &e), e);
    CHECK(first.data == again.data && first.labels == again.labels);
    CHECK_INT((uintptr_t)first.data % 64, 0);
    /* It is the file that is seen: the mapping is shared and read-only. */
    char line[512], *end;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from = strtoul(line, &end, 16), to = strtoul(end + 1, &end, 16);
        if ((uintptr_t)first.data >= from && (uintptr_t)first.data < to) {
            CHECK_CONTAINS(line, "data.mdb");
            CHECK_CONTAINS(line, "r--s");
            found = true;
        }
    }
    fclose(maps);
    CHECK(found);
    dataset_close(d);
    dataset_info_free(&info);
    store_close(s);
}

ON_STORES(an_open_dataset_outlives_its_deletion)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    store *s = make_dataset(&info, locator);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    CHECK_OK(dataset_delete(s, "d", &e), e);
    CHECK_ERR(dataset_delete(s, "d", &e), e, ERR_NOT_FOUND, "no dataset \"d\"");
    check_all(d);
    dataset_close(d);
    CHECK_ERR(dataset_open(locator, &d, &e), e, ERR_NOT_FOUND, "dataset");
    dataset_info_free(&info);
    store_close(s);
}

/* Of another version, or damaged: it cannot be used, and so must be able to go. */
ON_STORES(what_cannot_be_read_can_be_deleted)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    store *s = make_dataset(&info, locator);
    json_t *record;
    CHECK_OK(store_get(s, STORE_DATASETS, "d", &record, NULL, &e), e);
    json_object_set_new(record, "version", json_integer(2));
    CHECK_OK(store_put(s, STORE_DATASETS, "d", record, STORE_ANY, NULL, &e), e);
    json_decref(record);
    dataset_info_free(&info);
    CHECK_ERR(dataset_find(s, "d", &info, NULL, &e), e, ERR_UNSUPPORTED, "dataset d");
    e = (err)ERR_INIT;
    CHECK_OK(dataset_delete(s, "d", &e), e);
    CHECK_ERR(dataset_find(s, "d", &info, NULL, &e), e, ERR_NOT_FOUND, "no dataset \"d\"");
    CHECK_ERR(dataset_open(locator, &d, &e), e, ERR_NOT_FOUND, "dataset");
    /* One that names no chunks has none to remove. */
    record = json_object();
    e = (err)ERR_INIT;
    CHECK_OK(store_put(s, STORE_DATASETS, "d", record, STORE_NEW, NULL, &e), e);
    json_decref(record);
    CHECK_OK(dataset_delete(s, "d", &e), e);
    store_close(s);
}

static void *read_all(void *arg)
{
    for (int i = 0; i < 20; i++)
        check_all(arg);
    return NULL;
}

ON_STORES(threads_share_a_dataset)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    store *s = make_dataset(&info, locator);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, read_all, d), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    dataset_close(d);
    dataset_info_free(&info);
    store_close(s);
}

/* One byte of a chunk changed on disk: that chunk is refused by number, the others are good. */
TEST(a_changed_byte_is_noticed)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    dataset_chunk chunk;
    char locator[STORE_LOCATOR_BYTES];
    store *s = make_dataset(&info, locator);
    const char *path = locator + strlen("lmdb:");
    CHECK_OK(dataset_open(locator, &d, &e), e);
    CHECK_OK(dataset_view(d, DATASET_TRAIN, 2, &chunk, &e), e);
    cleanup_bytes bytes sample = bytes_copy(chunk.data, VALUES);
    dataset_close(d);
    CHECK_INT(chmod(path, 0600), 0);
    int fd = open(path, O_RDWR);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    uint8_t *at = NULL; /* the training chunks come first: the test split has the sample too */
    for (uint8_t *p = map; !at && p + VALUES < map + st.st_size; p++)
        if (memcmp(p, sample.at, VALUES) == 0)
            at = p;
    CHECK(at);
    at[9] ^= 4;
    munmap(map, (size_t)st.st_size);
    close(fd);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    CHECK_OK(dataset_view(d, DATASET_TRAIN, 1, &chunk, &e), e);
    CHECK_ERR(dataset_view(d, DATASET_TRAIN, 2, &chunk, &e), e, ERR_CORRUPT,
              "dataset d, train chunk 2: does not match its checksum");
    CHECK_OK(dataset_view(d, DATASET_TRAIN, 3, &chunk, &e), e);
    dataset_close(d);
    dataset_info_free(&info);
    store_close(s);
}

TEST(files_that_are_no_datasets_are_refused)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES], path[600];
    store *s = make_dataset(&info, locator);
    const char *data = locator + strlen("lmdb:");
    CHECK_INT(chmod(data, 0600), 0);
    CHECK_INT(truncate(data, 65536), 0); /* its first two pages are whole, however large */
    CHECK_ERR(dataset_open(locator, &d, &e), e, ERR_CORRUPT, "has 65536 bytes and should have");
    CHECK_INT(truncate(data, 0), 0);
    CHECK_INT(dataset_open(locator, &d, &e), -1);
    snprintf(path, sizeof path, "%s/x.npy", test_tmp());
    CHECK_ERR(dataset_open(path, &d, &e), e, ERR_CORRUPT, "x.npy");
    CHECK_ERR(dataset_open("/no/such/file", &d, &e), e, ERR_NOT_FOUND, "/no/such/file");
    CHECK_ERR(dataset_open("ftp://x", &d, &e), e, ERR_UNSUPPORTED, "the store \"ftp:...\"");
    dataset_info_free(&info);
    store_close(s);
}

ON_STORES(a_description_comes_back)
{
    err e = ERR_INIT;
    dataset_info info, same;
    char locator[STORE_LOCATOR_BYTES];
    store *s = make_dataset(&info, locator);
    CHECK_OK(dataset_find(s, "d", &same, NULL, &e), e);
    json_t *a = dataset_info_json(&info), *b = dataset_info_json(&same);
    CHECK(a && b && json_equal(a, b));
    CHECK(memcmp(info.mean, same.mean, 3 * sizeof(float)) == 0);
    CHECK(memcmp(info.min, same.min, 3 * sizeof(float)) == 0);
    CHECK(memcmp(info.max, same.max, 3 * sizeof(float)) == 0);
    dataset_info_free(&info);
    dataset_info_free(&same);
    static const struct {
        const char *field, *value;
        err_code code;
    } lies[] = {
        {"version", "2", ERR_UNSUPPORTED},     {"version", "\"1\"", ERR_CORRUPT},
        {"train_set_size", "-1", ERR_CORRUPT}, {"train_set_size", "99999999999", ERR_CORRUPT},
        {"chunk_samples", "0", ERR_CORRUPT},   {"shape", "[0,1,1]", ERR_CORRUPT},
        {"shape", "[3,8]", ERR_CORRUPT},       {"shape", "[16384,65536,65536]", ERR_CORRUPT},
        {"dtype", "\"int8\"", ERR_CORRUPT},    {"targets", "1", ERR_CORRUPT},
        {"mean", "[1]", ERR_CORRUPT},          {"mean", "[1, 2, \"3\"]", ERR_CORRUPT},
        {"std", "[1e300, 1, 1]", ERR_CORRUPT}, {"name", "\"../x\"", ERR_CORRUPT},
        {"min", "[1]", ERR_CORRUPT},           {"max", "[1, 2, null]", ERR_CORRUPT},
        {"digest", "\"\"", ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        json_t *lie = json_deep_copy(a);
        json_object_set_new(lie, lies[i].field, json_loads(lies[i].value, JSON_DECODE_ANY, NULL));
        CHECK_ERR(dataset_info_parse(lie, &same, &e), e, lies[i].code, "dataset");
        json_decref(lie);
    }
    json_decref(a);
    json_decref(b);
    CHECK_ERR(dataset_find(s, "other", &same, NULL, &e), e, ERR_NOT_FOUND, "no dataset \"other\"");
    CHECK_ERR(dataset_find(s, "a/b", &same, NULL, &e), e, ERR_INVALID, "dataset name");
    store_close(s);
}

/* Written out by hand, each number another. */
TEST(a_description_says_the_same_again)
{
    static float mean[] = {0.5f, 0.25f}, std[] = {1, 2}, min[] = {-1, 0}, max[] = {3, 4};
    dataset_info info = {.name = "d",
                         .upload = "u1",
                         .samples = {1000, 300},
                         .chunks = {16, 5},
                         .chunk_samples = 64,
                         .seed = 7,
                         .dtype = DATASET_F32,
                         .channels = 2,
                         .height = 3,
                         .width = 5,
                         .targets = 4,
                         .bytes = 156000,
                         .created_ms = 1700000000000,
                         .mean = mean,
                         .std = std,
                         .min = min,
                         .max = max};
    memset(info.digest, 'a', DIGEST_HEX_BYTES - 1);
    for (int labels = 0; labels < 2; labels++) {
        err e = ERR_INIT;
        dataset_info same;
        info.classes = labels ? 9 : 0;
        info.targets = labels ? 0 : 4;
        info.dtype = labels ? DATASET_U8 : DATASET_F32;
        cleanup_json json_t *json = dataset_info_json(&info);
        CHECK_OK(dataset_info_parse(json, &same, &e), e);
        CHECK_STR(same.name, info.name);
        CHECK_STR(same.digest, info.digest);
        CHECK_STR(same.upload, info.upload);
        CHECK(memcmp(same.samples, info.samples, sizeof same.samples) == 0);
        CHECK(memcmp(same.chunks, info.chunks, sizeof same.chunks) == 0);
        CHECK_INT(same.chunk_samples, 64);
        CHECK_INT(same.seed, 7);
        CHECK_INT(same.dtype, info.dtype);
        CHECK(same.channels == 2 && same.height == 3 && same.width == 5);
        CHECK(same.classes == info.classes && same.targets == info.targets);
        CHECK_INT(same.bytes, 156000);
        CHECK_INT(same.created_ms, 1700000000000);
        CHECK(memcmp(same.mean, mean, sizeof mean) == 0 && memcmp(same.std, std, sizeof std) == 0);
        CHECK(memcmp(same.min, min, sizeof min) == 0 && memcmp(same.max, max, sizeof max) == 0);
        dataset_info_free(&same);
    }
}

TEST(a_sample_fits_into_a_chunk)
{
    static float one[] = {1};
    for (int over = 0; over < 2; over++) {
        err e = ERR_INIT;
        dataset_info same, info = {.name = "d",
                                   .upload = "u",
                                   .samples = {1, 1},
                                   .chunks = {1, 1},
                                   .chunk_samples = 1,
                                   .dtype = DATASET_F32,
                                   .channels = 1,
                                   .height = 1024,
                                   .width = DATASET_CHUNK_BYTES / 4096 + (uint32_t)over,
                                   .classes = 2,
                                   .mean = one,
                                   .std = one};
        memset(info.digest, 'a', DIGEST_HEX_BYTES - 1);
        cleanup_json json_t *json = dataset_info_json(&info);
        if (over) {
            CHECK_ERR(dataset_info_parse(json, &same, &e), e, ERR_CORRUPT, "out of range");
        } else {
            CHECK_OK(dataset_info_parse(json, &same, &e), e);
            CHECK(!same.min && !same.max);
            dataset_info_free(&same);
        }
    }
}
