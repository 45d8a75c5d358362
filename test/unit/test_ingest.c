/* test_ingest.c: uploads in every format give the same dataset; what is wrong is refused, by name,
 * and leaves nothing. */
#include <pthread.h>
#include <unistd.h>

#include "arrays.h"
#include "common/base/rng.h"
#include "common/dataset/cifar.h"
#include "common/dataset/ingest.h"
#include "stores.h"
#include "store_memory.h"

static store *open_store(void)
{
    return test_store("");
}

/* An upload from memory: a part with no bytes at all is not given. */
typedef struct upload {
    bytes x_train, y_train, x_test, y_test;
} upload;

static int feed(ingest *i, const char *field, bytes b, size_t step, err *e)
{
    if (!b.at)
        return 0;
    if (ingest_part(i, field, "file", e) != 0)
        return -1;
    for (size_t at = 0; at < b.len; at += step)
        if (ingest_bytes(i, field, b.at + at, b.len - at < step ? b.len - at : step, e) != 0)
            return -1;
    return 0;
}

static int send(store *s, const char *name, const ingest_options *options, const upload *u,
                size_t step, dataset_info *out, err *e)
{
    ingest *i;
    if (ingest_begin(s, name, options, &i, e) != 0)
        return -1;
    if (feed(i, "x-train", u->x_train, step, e) != 0 ||
        feed(i, "y-train", u->y_train, step, e) != 0 ||
        feed(i, "x-test", u->x_test, step, e) != 0 || feed(i, "y-test", u->y_test, step, e) != 0) {
        ingest_abort(i);
        return -1;
    }
    return ingest_end(i, out, e);
}

/* ---- one set of samples -------------------------------------------------------------------- */

enum { TRAIN = 150, TEST_SAMPLES = 20, IMAGE = CIFAR_IMAGE_BYTES };

static uint8_t train_x[TRAIN * IMAGE], test_x[TEST_SAMPLES * IMAGE];
static uint8_t train_y[TRAIN], test_y[TEST_SAMPLES];

static void fill(void)
{
    rng r;
    rng_init(&r, 3, RNG_TEST, 0, 0);
    for (size_t i = 0; i < sizeof train_x; i++)
        train_x[i] = (uint8_t)(rng_u32(&r) >> (i / 1024 % 3)); /* channels that differ */
    for (size_t i = 0; i < sizeof test_x; i++)
        test_x[i] = (uint8_t)rng_u32(&r);
    for (size_t i = 0; i < TRAIN; i++)
        train_y[i] = (uint8_t)rng_below(&r, 9);
    for (size_t i = 0; i < TEST_SAMPLES; i++)
        test_y[i] = (uint8_t)rng_below(&r, 10);
    test_y[0] = 9; /* the largest label is in the test split alone */
}

static upload plain_upload(void)
{
    fill();
    return (upload){make_npy(ARRAY_U8, SHAPE(TRAIN, 3, 32, 32), train_x),
                    make_npy(ARRAY_U8, SHAPE(TRAIN), train_y),
                    make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES, 3, 32, 32), test_x),
                    make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES), test_y)};
}

static void upload_free(upload *u)
{
    bytes_free(&u->x_train);
    bytes_free(&u->y_train);
    bytes_free(&u->x_test);
    bytes_free(&u->y_test);
}
#define cleanup_upload __attribute__((cleanup(upload_free)))

/* Is what is read back what was sent: each training sample once, test samples in order? */
static void check_contents(store *s, const char *name)
{
    err e = ERR_INIT;
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    CHECK_OK(dataset_find(s, name, &info, NULL, &e), e);
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    CHECK_STR(dataset_get_info(d)->digest, info.digest);
    bool seen[TRAIN] = {false};
    size_t moved = 0, samples = 0;
    for (int split = 0; split < DATASET_SPLITS; split++)
        for (uint32_t c = 0; c < info.chunks[split]; c++) {
            dataset_chunk chunk;
            CHECK_OK(dataset_view(d, (dataset_split)split, c, &chunk, &e), e);
            CHECK_INT((uintptr_t)chunk.data % 16, 0);
            CHECK(!chunk.targets);
            for (uint32_t k = 0; k < chunk.samples; k++, samples++) {
                uint32_t from = chunk.index[k];
                const uint8_t *data = (const uint8_t *)chunk.data + (size_t)k * IMAGE;
                CHECK(from < (split ? TEST_SAMPLES : TRAIN));
                CHECK(memcmp(data, (split ? test_x : train_x) + (size_t)from * IMAGE, IMAGE) == 0);
                CHECK_INT(chunk.labels[k], (split ? test_y : train_y)[from]);
                if (split == DATASET_TEST)
                    CHECK_INT(from, c * info.chunk_samples + k);
                else
                    CHECK(!seen[from]);
                if (split == DATASET_TRAIN) {
                    seen[from] = true;
                    moved += from != c * info.chunk_samples + k;
                }
            }
            dataset_release(d, (dataset_split)split, c);
        }
    CHECK_INT(samples, TRAIN + TEST_SAMPLES);
    CHECK(moved > TRAIN / 2);
    dataset_close(d);
    dataset_info_free(&info);
}

static void check_one(store *s, const char *name, const upload *u, size_t step, const char *digest)
{
    err e = ERR_INIT;
    dataset_info info;
    if (send(s, name, NULL, u, step, &info, &e) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.message);
    if (strcmp(info.digest, digest) != 0)
        test_fail(__FILE__, __LINE__, "%s has another digest", name);
    CHECK_INT(info.classes, 10);
    CHECK(info.channels == 3 && info.height == 32 && info.width == 32 && info.dtype == DATASET_U8);
    dataset_info_free(&info);
    check_contents(s, name);
}

ON_STORES(every_format_gives_the_same_dataset)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    dataset_info info;
    CHECK_OK(send(s, "npy", NULL, &plain, 1 << 20, &info, &e), e);
    CHECK_INT(info.samples[DATASET_TRAIN], TRAIN);
    CHECK_INT(info.chunks[DATASET_TRAIN], 3);
    check_contents(s, "npy");

    check_one(s, "in-small-steps", &plain, 7, info.digest);
    upload gz = {make_gz(plain.x_train), make_gz(plain.y_train), make_gz(plain.x_test),
                 make_gz(plain.y_test)};
    check_one(s, "npy.gz", &gz, 100, info.digest);

    upload idx = {make_idx(ARRAY_U8, SHAPE(TRAIN, 3, 32, 32), train_x),
                  make_idx(ARRAY_U8, SHAPE(TRAIN), train_y),
                  make_idx(ARRAY_U8, SHAPE(TEST_SAMPLES, 3, 32, 32), test_x),
                  make_idx(ARRAY_U8, SHAPE(TEST_SAMPLES), test_y)};
    check_one(s, "idx", &idx, 1, info.digest);

    upload cifar = {.x_train = make_cifar(TRAIN, train_y, train_x),
                    .x_test = make_cifar(TEST_SAMPLES, test_y, test_x)};
    check_one(s, "cifar", &cifar, 5000, info.digest);
    upload both = {cifar.x_train, cifar.x_train, cifar.x_test, cifar.x_test};
    check_one(s, "cifar-as-y-too", &both, 5000, info.digest);

    const char *names[] = {"x_train", "y_train", "x_test", "y_test"};
    bytes arrays[] = {plain.x_train, plain.y_train, plain.x_test, plain.y_test};
    upload npz = {.x_train = make_npz(names, arrays, 4, false)};
    check_one(s, "npz-of-all", &npz, 999, info.digest);
    upload deflated = {.x_train = make_npz(names, arrays, 4, true)};
    check_one(s, "npz-deflated", &deflated, 1 << 20, info.digest);
    const char *xy[] = {"x", "y"};
    upload two = {.x_train = make_npz(xy, arrays, 2, true),
                  .x_test = make_npz(xy, arrays + 2, 2, true)};
    check_one(s, "npz-of-splits", &two, 1 << 20, info.digest);
    upload four = {make_npz(xy, arrays, 1, true), make_npz(xy, arrays + 1, 1, true),
                   make_npz(xy, arrays + 2, 1, true), make_npz(xy, arrays + 3, 1, true)};
    check_one(s, "npz-of-arrays", &four, 1 << 20, info.digest);

    upload *all[] = {&gz, &idx, &cifar, &npz, &deflated, &two, &four};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        upload_free(all[i]);
    dataset_info_free(&info);
    store_close(s);
}

ON_STORES(channels_last_and_other_labels_give_the_same_dataset)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    dataset_info info;
    CHECK_OK(send(s, "npy", NULL, &plain, 1 << 20, &info, &e), e);
    uint8_t *last = malloc(sizeof train_x), *last_test = malloc(sizeof test_x);
    for (size_t i = 0; i < sizeof train_x; i++)
        last[i / IMAGE * IMAGE + i % 1024 * 3 + i % IMAGE / 1024] = train_x[i];
    for (size_t i = 0; i < sizeof test_x; i++)
        last_test[i / IMAGE * IMAGE + i % 1024 * 3 + i % IMAGE / 1024] = test_x[i];
    int64_t y64[TRAIN];
    double yf[TEST_SAMPLES];
    for (int i = 0; i < TRAIN; i++)
        y64[i] = train_y[i];
    for (int i = 0; i < TEST_SAMPLES; i++)
        yf[i] = test_y[i];
    upload u = {make_npy(ARRAY_U8, SHAPE(TRAIN, 32, 32, 3), last),
                make_npy(ARRAY_I64, SHAPE(TRAIN, 1), y64),
                make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES, 32, 32, 3), last_test),
                make_npy(ARRAY_F64, SHAPE(TEST_SAMPLES), yf)};
    check_one(s, "nhwc", &u, 1 << 20, info.digest);
    ingest_options hwc = {.layout = INGEST_LAYOUT_CHW};
    dataset_info as_is;
    CHECK_OK(send(s, "as-is", &hwc, &u, 1 << 20, &as_is, &e), e);
    CHECK(as_is.channels == 32 && as_is.width == 3);
    dataset_info_free(&as_is);
    dataset_info_free(&info);
    upload_free(&u);
    free(last);
    free(last_test);
    store_close(s);
}

/* Of the two splits each is read as its own file has it. */
ON_STORES(train_and_test_files_may_have_different_orders)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    dataset_info info, mixed;
    CHECK_OK(send(s, "npy", NULL, &plain, 1 << 20, &info, &e), e);
    uint8_t *last = malloc(sizeof test_x);
    for (size_t i = 0; i < sizeof test_x; i++)
        last[i / IMAGE * IMAGE + i % 1024 * 3 + i % IMAGE / 1024] = test_x[i];
    bytes test = make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES, 32, 32, 3), last);
    upload u = {plain.x_train, plain.y_train, test, plain.y_test};
    CHECK_OK(send(s, "mixed", NULL, &u, 1 << 20, &mixed, &e), e);
    CHECK_STR(mixed.digest, info.digest);
    check_contents(s, "mixed");
    dataset_info_free(&info);
    dataset_info_free(&mixed);
    bytes_free(&test);
    free(last);
    store_close(s);
}

/* CIFAR's binary files are planes: an order asked for is about arrays that may have either. */
ON_STORES(cifar_is_planes_whatever_the_layout)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload(), cifar = {0};
    dataset_info info, other;
    CHECK_OK(send(s, "npy", NULL, &plain, 1 << 20, &info, &e), e);
    cifar.x_train = make_cifar(TRAIN, train_y, train_x);
    cifar.x_test = make_cifar(TEST_SAMPLES, test_y, test_x);
    ingest_options hwc = {.layout = INGEST_LAYOUT_HWC};
    CHECK_OK(send(s, "hwc", &hwc, &cifar, 4096, &other, &e), e);
    CHECK_STR(other.digest, info.digest);
    dataset_info_free(&info);
    dataset_info_free(&other);
    store_close(s);
}

/* Two label bytes a record, of which the fine one counts; coarse ones from 10 on are none of
 * CIFAR-10's. */
ON_STORES(cifar_100_has_the_fine_labels)
{
    err e = ERR_INIT;
    store *s = open_store();
    fill();
    for (size_t i = 0; i < TRAIN; i++)
        train_y[i] = (uint8_t)(i * 7 % 100);
    train_y[0] = 19; /* so that a file's first byte is none of CIFAR-10's */
    train_y[1] = 99;
    upload u = {.x_train = make_cifar_100(TRAIN, train_y, train_x),
                .x_test = make_cifar_100(TEST_SAMPLES, test_y, test_x)};
    dataset_info info;
    CHECK_OK(send(s, "fine", NULL, &u, 5000, &info, &e), e);
    CHECK_INT(info.classes, 100);
    CHECK(info.channels == 3 && info.height == 32 && info.width == 32);
    CHECK(info.samples[DATASET_TRAIN] == TRAIN && info.samples[DATASET_TEST] == TEST_SAMPLES);
    check_contents(s, "fine");
    u.x_train.at[7 * CIFAR_100_RECORD_BYTES + 1] = 100;
    CHECK_ERR(send(s, "wrong", NULL, &u, 5000, NULL, &e), e, ERR_CORRUPT,
              "as CIFAR-100 its record 7 would have label 100");
    u.x_train.at[7 * CIFAR_100_RECORD_BYTES + 1] = 99;
    u.x_train.len--;
    CHECK_ERR(send(s, "cut", NULL, &u, 5000, NULL, &e), e, ERR_CORRUPT, "no multiple of 3074");
    dataset_info_free(&info);
    upload_free(&u);
    store_close(s);
}

/* Nothing tells them from channels of a narrow map: they are taken as such, and it is said. */
ON_STORES(floats_that_may_have_their_channels_last_are_told)
{
    err e = ERR_INIT;
    store *s = open_store();
    float x[8 * 6 * 5 * 3] = {0};
    int32_t y[8] = {0, 1};
    upload u = {make_npy(ARRAY_F32, SHAPE(8, 6, 5, 3), x), make_npy(ARRAY_I32, SHAPE(8), y),
                make_npy(ARRAY_F32, SHAPE(4, 6, 5, 3), x), make_npy(ARRAY_I32, SHAPE(4), y)};
    ingest_options hwc = {.layout = INGEST_LAYOUT_HWC};
    dataset_info info;
    char note[INGEST_NOTE_BYTES];
    CHECK_OK(send(s, "floats", NULL, &u, 1 << 20, &info, &e), e);
    CHECK(info.channels == 6 && info.height == 5 && info.width == 3);
    CHECK(ingest_note(&info, INGEST_LAYOUT_AUTO, note));
    CHECK_CONTAINS(note, "6 channels of 5x3; if they are images of 6x5");
    CHECK(!ingest_note(&info, INGEST_LAYOUT_CHW, note)); /* so it was meant */
    dataset_info_free(&info);
    CHECK_OK(send(s, "images", &hwc, &u, 1 << 20, &info, &e), e);
    CHECK(info.channels == 3 && info.height == 6 && info.width == 5);
    CHECK(!ingest_note(&info, INGEST_LAYOUT_HWC, note));
    dataset_info_free(&info);
    upload_free(&u);
    upload rows = {make_npy(ARRAY_F32, SHAPE(8, 90), x), make_npy(ARRAY_I32, SHAPE(8), y),
                   make_npy(ARRAY_F32, SHAPE(4, 90), x), make_npy(ARRAY_I32, SHAPE(4), y)};
    CHECK_OK(send(s, "rows", NULL, &rows, 1 << 20, &info, &e), e);
    CHECK(!ingest_note(&info, INGEST_LAYOUT_AUTO, note));
    dataset_info_free(&info);
    upload_free(&rows);
    store_close(s);
}

ON_STORES(cifar_batches_come_as_several_files)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    dataset_info info, batches;
    CHECK_OK(send(s, "npy", NULL, &plain, 1 << 20, &info, &e), e);
    bytes first = make_cifar(100, train_y, train_x),
          test = make_cifar(TEST_SAMPLES, test_y, test_x);
    bytes second_plain = make_cifar(50, train_y + 100, train_x + 100 * IMAGE),
          second = make_gz(second_plain);
    ingest *i;
    CHECK_OK(ingest_begin(s, "batches", NULL, &i, &e), e);
    CHECK_OK(feed(i, "x-train", first, 4096, &e), e);
    CHECK_OK(feed(i, "x-train", second, 4096, &e), e);
    CHECK_OK(feed(i, "x-test", test, 4096, &e), e);
    CHECK_OK(ingest_end(i, &batches, &e), e);
    CHECK_STR(batches.digest, info.digest);
    dataset_info_free(&info);
    dataset_info_free(&batches);
    bytes_free(&first);
    bytes_free(&second);
    bytes_free(&second_plain);
    bytes_free(&test);
    store_close(s);
}

ON_STORES(the_seed_decides_the_order_and_the_digest)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    dataset_info a, b, c;
    CHECK_OK(send(s, "a", &(ingest_options){.seed = 1}, &plain, 1 << 20, &a, &e), e);
    CHECK_OK(send(s, "b", &(ingest_options){.seed = 1}, &plain, 1 << 20, &b, &e), e);
    CHECK_OK(
        send(s, "c", &(ingest_options){.seed = 2, .chunk_samples = 10}, &plain, 1 << 20, &c, &e),
        e);
    CHECK_STR(a.digest, b.digest);
    CHECK(strcmp(a.digest, c.digest) != 0);
    CHECK_INT(c.chunks[DATASET_TRAIN], 15);
    check_contents(s, "a");
    check_contents(s, "c");
    dataset_info_free(&a);
    dataset_info_free(&b);
    dataset_info_free(&c);
    CHECK_ERR(send(s, "d", &(ingest_options){.chunk_samples = 1 << 20}, &plain, 1, NULL, &e), e,
              ERR_INVALID, "chunk_samples");
    store_close(s);
}

ON_STORES(statistics_are_those_of_the_training_samples)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    dataset_info info;
    CHECK_OK(send(s, "d", NULL, &plain, 1 << 20, &info, &e), e);
    for (int c = 0; c < 3; c++) {
        double sum = 0, squares = 0, low = 1, high = 0;
        for (int i = 0; i < TRAIN; i++)
            for (int p = 0; p < 1024; p++) {
                double x = train_x[i * IMAGE + c * 1024 + p] / 255.0;
                sum += x;
                low = fmin(low, x);
                high = fmax(high, x);
            }
        CHECK_NEAR(info.min[c], low, 1e-6);
        CHECK_NEAR(info.max[c], high, 1e-6);
        double mean = sum / (TRAIN * 1024);
        for (int i = 0; i < TRAIN; i++)
            for (int p = 0; p < 1024; p++) {
                double d = train_x[i * IMAGE + c * 1024 + p] / 255.0 - mean;
                squares += d * d;
            }
        CHECK_NEAR(info.mean[c], mean, 1e-6);
        CHECK_NEAR(info.std[c], sqrt(squares / (TRAIN * 1024)), 1e-6);
    }
    dataset_info_free(&info);
    store_close(s);
}

/* As large as a sample may be, of either type: what comes in can be read and deleted. */
ON_STORES(the_largest_samples_come_in)
{
    static const struct {
        array_dtype dtype;
        uint64_t width;
    } largest[] = {{ARRAY_U8, 4096}, {ARRAY_F32, 1024}};
    static uint8_t labels[1], sample[DATASET_CHUNK_BYTES];
    store *s = open_store();
    sample[sizeof sample - 1] = 63; /* the last float's too: 0.5 */
    for (size_t k = 0; k < sizeof largest / sizeof *largest; k++) {
        err e = ERR_INIT;
        dataset_info info;
        dataset *d;
        dataset_chunk chunk;
        char locator[STORE_LOCATOR_BYTES];
        cleanup_bytes bytes y = make_npy(ARRAY_U8, SHAPE(1), labels),
                            x = make_npy(largest[k].dtype, SHAPE(1, 1, 2048, largest[k].width),
                                         sample);
        CHECK_OK(send(s, "d", NULL, &(upload){x, y, x, y}, 1 << 20, NULL, &e), e);
        CHECK_OK(dataset_find(s, "d", &info, NULL, &e), e);
        CHECK_INT(dataset_sample_bytes(&info), DATASET_CHUNK_BYTES);
        CHECK_OK(dataset_locator(s, &info, locator, &e), e);
        CHECK_OK(dataset_open(locator, &d, &e), e);
        CHECK_OK(dataset_view(d, DATASET_TRAIN, 0, &chunk, &e), e);
        CHECK(memcmp(chunk.data, sample, sizeof sample) == 0);
        dataset_release(d, DATASET_TRAIN, 0);
        dataset_close(d);
        CHECK_OK(dataset_delete(s, "d", &e), e);
        dataset_info_free(&info);
    }
    store_close(s);
}

TEST(the_memory_store_holds_datasets_too)
{
    err e = ERR_INIT;
    store *s = store_open(store_memory_locator(), &e);
    cleanup_upload upload plain = plain_upload();
    CHECK_OK(send(s, "d", NULL, &plain, 1 << 20, NULL, &e), e);
    check_contents(s, "d");
    CHECK_ERR(send(s, "d", NULL, &plain, 1 << 20, NULL, &e), e, ERR_EXISTS, "dataset \"d\" exists");
    CHECK_OK(dataset_delete(s, "d", &e), e);
    /* Each single operation fails once: an error, and nothing is left. */
    for (unsigned n = 1;; n++) {
        store_memory_fail(s, n, ERR_UNAVAILABLE);
        if (send(s, "d", NULL, &plain, 1 << 20, NULL, &e) == 0)
            break;
        CHECK_INT(e.code, ERR_UNAVAILABLE);
        store_memory_fail(s, 0, ERR_NONE);
        dataset_info info;
        CHECK_ERR(dataset_find(s, "d", &info, NULL, &e), e, ERR_NOT_FOUND, "no dataset");
        CHECK(n < 20);
    }
    store_close(s);
}

/* ---- numbers ------------------------------------------------------------------------------- */

static const float numbers[2 * 3] = {0.5f, -1.25f, 3, 1e6f, -0.0f, 2};
static const uint8_t classes[3] = {0, 1, 0};

/* Uploads (2, 3) of a dtype, as training and test samples, and checks the values and their shape.
 */
static void check_numbers(store *s, const char *name, bytes x, const float *want)
{
    err e = ERR_INIT;
    bytes y = make_npy(ARRAY_U8, SHAPE(2), classes);
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    if (send(s, name, NULL, &(upload){x, y, x, y}, 3, &info, &e) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.message);
    CHECK(info.channels == 3 && info.height == 1 && info.width == 1 && info.dtype == DATASET_F32);
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    dataset_chunk chunk;
    CHECK_OK(dataset_view(d, DATASET_TEST, 0, &chunk, &e), e);
    CHECK_INT(chunk.samples, 2);
    const float *got = chunk.data;
    for (int i = 0; i < 6; i++)
        if (got[i] != want[i])
            test_fail(__FILE__, __LINE__, "%s: %g, not %g", name, (double)got[i], (double)want[i]);
    for (int c = 0; c < 3; c++)
    {
        CHECK_NEAR(info.mean[c], ((double)want[c] + (double)want[3 + c]) / 2,
                   1e-6 * (1 + fabs((double)want[c]) + fabs((double)want[3 + c])));
        CHECK(info.min[c] == fminf(want[c], want[3 + c]) &&
              info.max[c] == fmaxf(want[c], want[3 + c]));
    }
    dataset_close(d);
    dataset_info_free(&info);
    bytes_free(&y);
    bytes_free(&x);
}

ON_STORES(numbers_of_every_type_become_float32)
{
    store *s = open_store();
    double f64[6];
    int32_t i32[6] = {1, -2, 3, 1000000, 0, -2147483647};
    int16_t i16[6] = {1, -2, 3, 32767, -32768, 0};
    uint64_t u64[6] = {1, 2, 3, 4, 5, 1ull << 40};
    uint16_t f16[6] = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x8000, 0x3555};
    uint8_t b1[6] = {0, 1, 1, 0, 1, 0};
    for (int i = 0; i < 6; i++)
        f64[i] = (double)numbers[i];
    check_numbers(s, "f32", make_npy(ARRAY_F32, SHAPE(2, 3), numbers), numbers);
    check_numbers(s, "f64", make_npy(ARRAY_F64, SHAPE(2, 3), f64), numbers);
    check_numbers(s, "f32-idx", make_idx(ARRAY_F32, SHAPE(2, 3), numbers), numbers);
    check_numbers(s, "f64-idx", make_idx(ARRAY_F64, SHAPE(2, 3), f64), numbers);
    check_numbers(s, "i32", make_npy(ARRAY_I32, SHAPE(2, 3), i32),
                  (float[]){1, -2, 3, 1e6f, 0, -2147483648.f});
    check_numbers(s, "i16", make_idx(ARRAY_I16, SHAPE(2, 3), i16),
                  (float[]){1, -2, 3, 32767, -32768, 0});
    check_numbers(s, "u64", make_npy(ARRAY_U64, SHAPE(2, 3), u64),
                  (float[]){1, 2, 3, 4, 5, 0x1p40f});
    check_numbers(s, "f16", make_npy(ARRAY_F16, SHAPE(2, 3), f16),
                  (float[]){1, -2, 65504, 0x1p-24f, -0.0f, 0x1.554p-2f});
    check_numbers(s, "bool", make_npy(ARRAY_BOOL, SHAPE(2, 3), b1), (float[]){0, 1, 1, 0, 1, 0});
    uint8_t big[24];
    for (int i = 0; i < 24; i++)
        big[i] = ((const uint8_t *)numbers)[i / 4 * 4 + 3 - i % 4];
    check_numbers(
        s, "big-endian",
        make_npy_raw("{\"shape\": (2, 3), 'descr': '>f4', 'fortran_order': False}\n", big, 24),
        numbers);
    store_close(s);
}

ON_STORES(shapes_become_channels_height_width)
{
    err e = ERR_INIT;
    store *s = open_store();
    uint8_t data[2 * 5 * 7] = {0};
    bytes y = make_npy(ARRAY_U8, SHAPE(2), classes);
    bytes x = make_idx(ARRAY_U8, SHAPE(2, 5, 7), data);
    dataset_info info;
    CHECK_OK(send(s, "grey", NULL, &(upload){x, y, x, y}, 64, &info, &e), e);
    CHECK(info.channels == 1 && info.height == 5 && info.width == 7);
    CHECK_INT(info.classes, 2);
    dataset_info_free(&info);
    bytes_free(&x);
    x = make_npy(ARRAY_U8, SHAPE(2), data);
    CHECK_OK(send(s, "one", NULL, &(upload){x, y, x, y}, 64, &info, &e), e);
    CHECK(info.channels == 1 && info.height == 1 && info.width == 1);
    dataset_info_free(&info);
    bytes_free(&x);
    x = make_npy(ARRAY_U8, SHAPE(2, 3, 5, 1), data); /* both ends could be channels: the first is */
    CHECK_OK(send(s, "chw", NULL, &(upload){x, y, x, y}, 64, &info, &e), e);
    CHECK(info.channels == 3 && info.height == 5 && info.width == 1);
    dataset_info_free(&info);
    bytes_free(&x);
    bytes_free(&y);
    store_close(s);
}

ON_STORES(regression_has_float_targets)
{
    err e = ERR_INIT;
    store *s = open_store();
    bytes x = make_npy(ARRAY_F32, SHAPE(3, 2), numbers),
          y = make_npy(ARRAY_F32, SHAPE(3, 2), numbers);
    bytes narrow = make_npy(ARRAY_F32, SHAPE(3), numbers);
    ingest_options regression = {.regression = true};
    dataset_info info;
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    CHECK_OK(send(s, "r", &regression, &(upload){x, y, x, y}, 64, &info, &e), e);
    CHECK(info.targets == 2 && info.classes == 0);
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    dataset_chunk chunk;
    CHECK_OK(dataset_view(d, DATASET_TRAIN, 0, &chunk, &e), e);
    CHECK(!chunk.labels);
    for (uint32_t k = 0; k < 3; k++)
        CHECK(memcmp(chunk.targets + 2 * k, numbers + 2 * chunk.index[k], 8) == 0);
    dataset_close(d);
    dataset_info_free(&info);
    CHECK_ERR(send(s, "q", &regression, &(upload){x, y, x, narrow}, 64, NULL, &e), e, ERR_INVALID,
              "1 targets a sample and y-train 2");
    CHECK_ERR(send(s, "q", NULL, &(upload){x, y, x, y}, 64, NULL, &e), e, ERR_INVALID, "one-hot");
    bytes_free(&x);
    bytes_free(&y);
    bytes_free(&narrow);
    store_close(s);
}

/* ---- refusals ------------------------------------------------------------------------------ */

/* The store holds no file that was not there when it was empty. */
static void check_empty(store *s)
{
    err e = ERR_INIT;
    store_page page;
    CHECK_OK(store_list(s, STORE_DATASETS, NULL, NULL, 0, &page, &e), e);
    CHECK_INT(page.count, 0);
    store_page_free(&page);
    char command[700];
    snprintf(command, sizeof command, "find '%s/store' -mindepth 2 | wc -l", test_tmp());
    FILE *f = popen(command, "r");
    int files = -1;
    CHECK(f && fscanf(f, "%d", &files) == 1);
    pclose(f);
    CHECK_INT(files, 0);
}

/* The good upload with one part replaced is refused. Frees `part`. */
static void refused(store *s, const char *field, bytes part, err_code code, const char *message)
{
    err e = ERR_INIT;
    cleanup_upload upload u = plain_upload();
    bytes *slot = strcmp(field, "x-train") == 0   ? &u.x_train
                  : strcmp(field, "y-train") == 0 ? &u.y_train
                  : strcmp(field, "x-test") == 0  ? &u.x_test
                                                  : &u.y_test;
    bytes_free(slot);
    *slot = part;
    dataset_info info;
    CHECK_ERR(send(s, "d", NULL, &u, 10000, &info, &e), e, code, message);
    if (!strstr(message, field) && part.at && !strstr(e.message, field))
        test_fail(__FILE__, __LINE__, "\"%s\" does not name %s", e.message, field);
    for (const char *p = e.message; *p; p++)
        CHECK((*p >= ' ' && *p <= '~') || *p == '\n');
    check_empty(s);
}

static bytes part_of(bytes whole, size_t len)
{
    bytes b = bytes_copy(whole.at, len);
    bytes_free(&whole);
    return b;
}

static bytes plus(bytes whole, const char *more)
{
    bytes tail = bytes_copy(more, strlen(more)), both = bytes_join(whole, tail);
    bytes_free(&whole);
    bytes_free(&tail);
    return both;
}

#define TEXT(text) bytes_copy(text, sizeof text - 1)

TEST_LIMIT(cut_and_damaged_files_are_refused, 60)
{
    store *s = open_store();
    fill();
    upload u = plain_upload();
    bytes gz = make_gz(u.x_train), damaged = bytes_copy(gz.at, gz.len),
          idx = make_idx(ARRAY_U8, SHAPE(TRAIN), train_y);
    size_t half = gz.len / 2;
    damaged.at[gz.len - 6] ^= 1; /* the checksum at its end */
    refused(s, "x-train", TEXT(""), ERR_CORRUPT, "x-train (file): the file is empty");
    refused(s, "x-train", bytes_copy(u.x_train.at, u.x_train.len - 5), ERR_CORRUPT,
            "the npy file is cut: its header says 460800 bytes of data, 460795 are there");
    refused(s, "x-train", bytes_copy(u.x_train.at, 40), ERR_CORRUPT,
            "cut within its header, after 40 bytes");
    refused(s, "x-train", bytes_copy(u.x_train.at, 7), ERR_CORRUPT, "cut within its header");
    refused(s, "y-train", bytes_copy(idx.at, idx.len - 1), ERR_CORRUPT,
            "the IDX file is cut: its header says 150 bytes of data, 149 are there");
    refused(s, "y-train", bytes_copy(idx.at, 6), ERR_CORRUPT,
            "the IDX file is cut within its header");
    refused(s, "x-train", bytes_copy(gz.at, half), ERR_CORRUPT,
            "the gz file is cut: it ends after");
    refused(s, "x-train", bytes_copy(gz.at, 2), ERR_CORRUPT,
            "the gz file is cut: it ends after 0 bytes");
    refused(s, "x-train", damaged, ERR_CORRUPT, "the gz file is damaged");
    refused(s, "x-train", plus(bytes_copy(gz.at, gz.len), "xx"), ERR_CORRUPT, "the gz file is ");
    refused(s, "y-test", plus(bytes_copy(u.y_test.at, u.y_test.len), "x"), ERR_CORRUPT,
            "20 bytes of data, and more");
    bytes cifar = make_cifar(TRAIN, train_y, train_x);
    cifar.at[0] = 5;
    refused(s, "x-train", bytes_copy(cifar.at, cifar.len - 1), ERR_CORRUPT, "no multiple of 3073");
    cifar.at[7 * CIFAR_RECORD_BYTES] = 10;
    refused(s, "x-train", cifar, ERR_CORRUPT, "record 7 would have label 10");
    bytes_free(&gz);
    bytes_free(&idx);
    upload_free(&u);
    store_close(s);
}

TEST_LIMIT(what_is_no_array_file_is_refused, 60)
{
    store *s = open_store();
    refused(s, "x-train",
            TEXT("\x80\x02}q\x01(U\x05"
                 "batch"),
            ERR_UNSUPPORTED, "np.load(\"f\", None, True");
    refused(s, "x-train", TEXT("\x80\x04\x95lots"), ERR_UNSUPPORTED, "or d[\"labels\"])");
    refused(s, "y-train", TEXT("(dp0\nS'data'\n"), ERR_UNSUPPORTED, "np.savez(\"f.npz\"");
    refused(s, "x-train", TEXT("\x89PNG\r\n\x1a\n"), ERR_UNSUPPORTED, "a PNG image");
    refused(s, "x-train", TEXT("1,2,3\n4,5,6\n"), ERR_UNSUPPORTED,
            "neither npy, npz, IDX nor CIFAR binary");
    refused(s, "y-train", TEXT("["), ERR_UNSUPPORTED, "begins with 5b");
    refused(s, "x-train",
            make_npy_raw("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", "", 0),
            ERR_UNSUPPORTED, "np.stack(list(a))");
    refused(s, "x-train",
            make_npy_raw("{'descr': '<U5', 'fortran_order': False, 'shape': (3,), }", "", 0),
            ERR_UNSUPPORTED, "npy dtype '<U5'");
    refused(
        s, "x-train",
        make_npy_raw("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", "", 0),
        ERR_UNSUPPORTED, "records");
    refused(s, "x-train",
            make_npy_raw("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }", "", 0),
            ERR_UNSUPPORTED, "np.ascontiguousarray(a)");
    refused(s, "x-train", make_npy_raw("{'descr': '<f4', 'shape': (3, 2), }", "", 0), ERR_CORRUPT,
            "malformed");
    refused(s, "x-train", make_npy_raw("__import__('os').system('true')", "", 0), ERR_CORRUPT,
            "malformed");
    refused(s, "x-train",
            make_npy_raw("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 2), }", "", 0),
            ERR_CORRUPT, "malformed");
    refused(s, "x-train",
            make_npy_raw(
                "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296, 16), }",
                "", 0),
            ERR_LIMIT, "shape has more than");
    refused(s, "x-train",
            make_npy_raw("{'descr': '<f8', 'fortran_order': False, 'shape': (33554432, 1000000), }",
                         "", 0),
            ERR_LIMIT, "are over the limit");
    const char *names[] = {"a/data.pkl"}, *arrays[] = {"x", "z"}, *single[] = {"q", "r"};
    bytes text = TEXT("hello"), number = make_npy(ARRAY_U8, SHAPE(2), "12"),
          both[2] = {number, number};
    refused(s, "x-train", make_npz(names, &text, 1, false), ERR_UNSUPPORTED, "torch.load");
    refused(s, "x-train", make_npz((const char *[]){"readme.txt"}, &text, 1, false),
            ERR_UNSUPPORTED, "\"readme.txt\"");
    refused(s, "x-train", make_npz(single, both, 2, false), ERR_INVALID, "it has q, r");
    bytes fake[2] = {text, text};
    refused(s, "x-train", make_npz(arrays, fake, 2, false), ERR_UNSUPPORTED, "array \"x\"");
    bytes npz = make_npz(arrays, both, 2, true);
    refused(s, "x-train", part_of(npz, npz.len - 20), ERR_CORRUPT,
            "the npz file is damaged or cut");
    bytes_free(&text);
    bytes_free(&number);
    store_close(s);
}

TEST_LIMIT(samples_and_labels_are_checked, 60)
{
    store *s = open_store();
    int32_t labels[TRAIN] = {0};
    float floats[TRAIN] = {0};
    refused(s, "y-train", make_npy(ARRAY_I32, SHAPE(149), labels), ERR_INVALID,
            "x-train has 150 samples and y-train has 149");
    labels[17] = -1;
    refused(s, "y-train", make_npy(ARRAY_I32, SHAPE(TRAIN), labels), ERR_INVALID,
            "label -1 at sample 17");
    labels[17] = 65536;
    refused(s, "y-train", make_npy(ARRAY_I32, SHAPE(TRAIN), labels), ERR_INVALID,
            "label 65536 at sample 17");
    floats[3] = 0.5f;
    refused(
        s, "y-train", make_npy(ARRAY_F32, SHAPE(TRAIN), floats), ERR_INVALID,
        "label 0.5 at sample 3 is no integer from 0 to 65535; if they are targets, not classes: "
        "--regression");
    floats[3] = NAN;
    refused(s, "y-train", make_npy(ARRAY_F32, SHAPE(TRAIN), floats), ERR_INVALID,
            "label nan at sample 3");
    refused(s, "y-train", make_npy(ARRAY_F32, SHAPE(15, 10), floats), ERR_INVALID,
            "x-train has 150 samples and y-train has 15");
    refused(s, "y-test", make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES, 2), train_x), ERR_INVALID,
            "y.argmax(1); if they are targets, not classes: --regression");
    refused(s, "y-test", (bytes){0}, ERR_INVALID, "y-test is missing");
    refused(s, "x-test", (bytes){0}, ERR_INVALID, "x-test is missing");
    refused(s, "x-test", make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES, 3, 16, 32), test_x), ERR_INVALID,
            "x-train has samples of (3, 32, 32) and x-test of (3, 16, 32)");
    refused(s, "x-test", make_npy(ARRAY_U8, SHAPE(TEST_SAMPLES, 1, 3, 32, 32), test_x), ERR_INVALID,
            "has 5 dimensions");
    refused(s, "x-test", make_npy(ARRAY_U8, SHAPE(0, 3, 32, 32), test_x), ERR_INVALID,
            "x-test has no samples");
    refused(s, "x-test", make_npy(ARRAY_U8, SHAPE(20, 3, 0, 32), test_x), ERR_INVALID,
            "its samples are empty");
    float *images = calloc(TEST_SAMPLES * IMAGE, sizeof *images);
    refused(s, "x-test", make_npy(ARRAY_F32, SHAPE(TEST_SAMPLES, 3, 32, 32), images), ERR_INVALID,
            "x-train is uint8 and x-test is float32");
    free(images);
    store_close(s);
}

TEST(nan_and_infinity_are_refused_with_their_place)
{
    err e = ERR_INIT;
    store *s = open_store();
    float data[4 * 2 * 3 * 5] = {0};
    uint8_t labels[4] = {0, 1, 2, 3};
    bytes y = make_npy(ARRAY_U8, SHAPE(4), labels),
          good = make_npy(ARRAY_F32, SHAPE(4, 2, 3, 5), data);
    data[2 * 30 + 15 + 5 * 1 + 4] = NAN;
    bytes nan = make_npy(ARRAY_F32, SHAPE(4, 2, 3, 5), data);
    data[2 * 30 + 15 + 5 * 1 + 4] = -INFINITY;
    bytes infinite = make_npy(ARRAY_F32, SHAPE(4, 2, 3, 5), data);
    double wide[4] = {1, 2, 1e300, 4};
    bytes large = make_npy(ARRAY_F64, SHAPE(4), wide);
    CHECK_ERR(send(s, "d", NULL, &(upload){nan, y, good, y}, 64, NULL, &e), e, ERR_INVALID,
              "x-train (file): NaN at sample 2, channel 1, row 1, column 4");
    CHECK_ERR(send(s, "d", NULL, &(upload){good, y, infinite, y}, 64, NULL, &e), e, ERR_INVALID,
              "x-test (file): an infinite value at sample 2, channel 1, row 1, column 4");
    CHECK_ERR(send(s, "d", NULL, &(upload){large, y, large, y}, 64, NULL, &e), e, ERR_INVALID,
              "an infinite value at sample 2");
    check_empty(s);
    bytes_free(&y);
    bytes_free(&good);
    bytes_free(&nan);
    bytes_free(&infinite);
    bytes_free(&large);
    store_close(s);
}

TEST(limits_stop_bombs)
{
    err e = ERR_INIT;
    store *s = open_store();
    /* 64 MiB of zeros behind a header of 100 bytes: refused after the 101st. */
    static uint8_t zeros[64 << 20];
    bytes header =
        make_npy_raw("{'descr': '|u1', 'fortran_order': False, 'shape': (100,), }", "", 0);
    bytes all = bytes_join(header, (bytes){zeros, sizeof zeros}), bomb = make_gz(all);
    CHECK(bomb.len < 100000);
    refused(s, "x-train", bytes_copy(bomb.at, bomb.len), ERR_CORRUPT,
            "100 bytes of data, and more follow");
    /* A header that says all of it: over the upload's limit. */
    bytes honest_header =
        make_npy_raw("{'descr': '|u1', 'fortran_order': False, 'shape': (67108864,), }", "", 0);
    bytes honest = bytes_join(honest_header, (bytes){zeros, sizeof zeros}), gz = make_gz(honest);
    ingest_options small = {.bytes_max = 1 << 20};
    CHECK_ERR(send(s, "d", &small, &(upload){.x_train = gz}, 4096, NULL, &e), e, ERR_LIMIT,
              "over the limit");
    /* The same in an npz. */
    const char *names[] = {"x"};
    bytes npz = make_npz(names, &honest, 1, true);
    CHECK_ERR(send(s, "d", &small, &(upload){npz, npz, npz, npz}, 4096, NULL, &e), e, ERR_LIMIT,
              "over the limit");
    /* What has no length in a header, CIFAR-10, ends at the limit too. */
    bytes cifar = make_gz((bytes){zeros, sizeof zeros / CIFAR_RECORD_BYTES * CIFAR_RECORD_BYTES});
    CHECK_ERR(send(s, "d", &small, &(upload){.x_train = cifar}, 4096, NULL, &e), e, ERR_LIMIT,
              "limit of bytes");
    check_empty(s);
    bytes *used[] = {&header, &all, &bomb, &honest_header, &honest, &gz, &npz, &cifar};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        bytes_free(used[i]);
    store_close(s);
}

/* Whichever field it is that lacks its array, or has a bad one: the file is the one that came. */
TEST(the_npz_that_is_wrong_is_named)
{
    store *s = open_store();
    fill();
    static const int32_t labels[2] = {3, -1};
    bytes images = make_npy(ARRAY_U8, SHAPE(2, 3, 32, 32), train_x), text = TEXT("hello"),
          bad = make_npy(ARRAY_I32, SHAPE(2), labels);
    const struct {
        const char *names[4];
        bytes arrays[4];
        size_t count;
        err_code code;
        const char *says;
    } known[] = {
        {{"q", "r"}, {images, images}, 2, ERR_INVALID,
         "x-train (all.npz): the npz file has no array \"x_train\" or \"x\"; it has q, r"},
        {{"x_train", "y_train"}, {images, text}, 2, ERR_UNSUPPORTED,
         "y-train (all.npz): array \"y_train\""},
        {{"x_train", "y_train", "x_test", "y_test"}, {images, bad, images, bad}, 4, ERR_INVALID,
         "y-train (all.npz): label -1 at sample 1"},
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        err e = ERR_INIT;
        ingest *i;
        bytes npz = make_npz(known[k].names, known[k].arrays, known[k].count, false);
        CHECK_OK(ingest_begin(s, "d", NULL, &i, &e), e);
        CHECK_OK(ingest_part(i, "x-train", "all.npz", &e), e);
        CHECK_OK(ingest_bytes(i, "x-train", npz.at, npz.len, &e), e);
        CHECK_ERR(ingest_end(i, NULL, &e), e, known[k].code, known[k].says);
        bytes_free(&npz);
    }
    bytes_free(&images);
    bytes_free(&text);
    bytes_free(&bad);
    store_close(s);
}

/* The lines that convert a pickle are whole, whatever its name. */
TEST(a_pickle_with_a_long_name_gets_all_the_lines)
{
    err e = ERR_INIT;
    store *s = open_store();
    ingest *i;
    CHECK_OK(ingest_begin(s, "d", NULL, &i, &e), e);
    CHECK_OK(
        ingest_part(i, "x-train", "a-name-of-a-pickle-that-is-rather-long-and-goes-on.pkl", &e), e);
    CHECK_ERR(ingest_bytes(i, "x-train", "\x80\x04\x95 and so on", 13, &e), e, ERR_UNSUPPORTED,
              "or d[\"labels\"])");
    CHECK_CONTAINS(e.message, "x-train (a-name-of-a-");
    ingest_abort(i);
    store_close(s);
}

ON_STORES(parts_and_names_are_checked)
{
    err e = ERR_INIT;
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    ingest *i;
    char longer[301];
    memset(longer, 'n', 300);
    longer[300] = '\0';
    const char *bad[] = {"", "a/b", "../x", ".hidden", "a b", "\xC3\xA4", longer};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        CHECK_ERR(ingest_begin(s, bad[k], NULL, &i, &e), e, ERR_INVALID, "dataset name");
    CHECK_OK(ingest_begin(s, "d", NULL, &i, &e), e);
    CHECK_ERR(ingest_part(i, "x_train", NULL, &e), e, ERR_INVALID,
              "\"x_train\" is none of x-train");
    CHECK_ERR(ingest_part(i, "x-train", NULL, &e), e, ERR_CONFLICT, "failed before");
    CHECK_ERR(ingest_end(i, NULL, &e), e, ERR_CONFLICT, "failed before");
    CHECK_OK(ingest_begin(s, "d", NULL, &i, &e), e);
    CHECK_ERR(ingest_bytes(i, "x-train", "x", 1, &e), e, ERR_INVALID, "before the part");
    ingest_abort(i);
    CHECK_OK(ingest_begin(s, "d", NULL, &i, &e), e);
    CHECK_OK(feed(i, "y-train", plain.y_train, 1000, &e), e);
    CHECK_ERR(ingest_part(i, "y-train", "b\xFFx\n.npy", &e), e, ERR_INVALID,
              "join the arrays first");
    CHECK_CONTAINS(e.message, "y-train (b?x");
    ingest_abort(i);
    CHECK_OK(ingest_begin(s, "d", NULL, &i, &e), e);
    CHECK_ERR(ingest_end(i, NULL, &e), e, ERR_INVALID, "x-train is missing");
    check_empty(s);
    CHECK_OK(send(s, "d", NULL, &plain, 1 << 20, NULL, &e), e);
    CHECK_ERR(ingest_begin(s, "d", NULL, &i, &e), e, ERR_EXISTS, "dataset \"d\" exists");
    store_close(s);
}

static int stop_at(void *arg, ingest_phase phase, uint64_t done, uint64_t total)
{
    CHECK(done <= total || total == 0);
    return phase == *(ingest_phase *)arg;
}

ON_STORES(progress_can_cancel_until_it_is_published)
{
    err e = ERR_INIT;
    store *s = open_store();
    static uint8_t images[8 << 20], labels[1024];
    bytes x = make_npy(ARRAY_U8, SHAPE(1024, 8, 32, 32), images),
          y = make_npy(ARRAY_U8, SHAPE(1024), labels);
    for (ingest_phase phase = INGEST_RECEIVE; phase < INGEST_PUBLISH; phase++) {
        ingest_options options = {.progress = stop_at, .progress_arg = &phase};
        CHECK_ERR(send(s, "d", &options, &(upload){x, y, x, y}, 1 << 20, NULL, &e), e,
                  ERR_CANCELLED, "cancelled");
        check_empty(s);
    }
    ingest_phase phase = INGEST_PUBLISH;
    ingest_options options = {.progress = stop_at, .progress_arg = &phase};
    CHECK_OK(send(s, "d", &options, &(upload){x, y, x, y}, 1 << 20, NULL, &e), e);
    bytes_free(&x);
    bytes_free(&y);
    store_close(s);
}

/* ---- two at once --------------------------------------------------------------------------- */

typedef struct racer {
    store *store;
    pthread_barrier_t *start;
    const upload *upload;
    int result;
    err e;
} racer;

static void *race(void *arg)
{
    racer *r = arg;
    ingest *i;
    CHECK_OK(ingest_begin(r->store, "d", NULL, &i, &r->e), r->e);
    CHECK_OK(feed(i, "x-train", r->upload->x_train, 1 << 20, &r->e), r->e);
    CHECK_OK(feed(i, "y-train", r->upload->y_train, 1 << 20, &r->e), r->e);
    CHECK_OK(feed(i, "x-test", r->upload->x_test, 1 << 20, &r->e), r->e);
    CHECK_OK(feed(i, "y-test", r->upload->y_test, 1 << 20, &r->e), r->e);
    pthread_barrier_wait(r->start); /* all have seen that the name is free */
    r->result = ingest_end(i, NULL, &r->e);
    return NULL;
}

ON_STORES(of_two_uploads_at_once_one_wins)
{
    enum { RACERS = 3 };
    store *s = open_store();
    cleanup_upload upload plain = plain_upload();
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, RACERS);
    racer racers[RACERS];
    pthread_t threads[RACERS];
    int won = 0;
    for (int k = 0; k < RACERS; k++) {
        racers[k] = (racer){s, &start, &plain, 0, ERR_INIT};
        CHECK_INT(pthread_create(&threads[k], NULL, race, &racers[k]), 0);
    }
    for (int k = 0; k < RACERS; k++) {
        pthread_join(threads[k], NULL);
        if (racers[k].result == 0)
            won++;
        else
            CHECK_INT(racers[k].e.code, ERR_EXISTS);
    }
    CHECK_INT(won, 1);
    check_contents(s, "d");
    err e = ERR_INIT;
    size_t removed;
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0); /* the losers took their chunks with them */
    pthread_barrier_destroy(&start);
    store_close(s);
}

/* ---- real data ----------------------------------------------------------------------------- */

TEST_LIMIT(mnist_comes_in, 60)
{
    const char *data = getenv("MNIST");
    char x[512], y[512], xt[512], yt[512];
    if (!data)
        test_skip("MNIST is not at hand: MNIST names the folder of its four files");
    snprintf(x, sizeof x, "%s/train-images-idx3-ubyte.gz", data);
    snprintf(y, sizeof y, "%s/train-labels-idx1-ubyte.gz", data);
    snprintf(xt, sizeof xt, "%s/t10k-images-idx3-ubyte.gz", data);
    snprintf(yt, sizeof yt, "%s/t10k-labels-idx1-ubyte.gz", data);
    err e = ERR_INIT;
    store *s = open_store();
    dataset_info info;
    CHECK_OK(ingest_paths(s, "mnist", NULL, &(ingest_files){x, y, xt, yt}, &info, &e), e);
    CHECK(info.samples[DATASET_TRAIN] == 60000 && info.samples[DATASET_TEST] == 10000);
    CHECK(info.classes == 10 && info.channels == 1 && info.height == 28 && info.width == 28);
    CHECK_INT(info.chunks[DATASET_TRAIN], 938);
    CHECK_NEAR(info.mean[0], 0.13, 0.01);
    CHECK_NEAR(info.std[0], 0.31, 0.01);
    /* Chunks are random samples of all: each has most of the classes. */
    dataset *d;
    char locator[STORE_LOCATOR_BYTES];
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    for (uint32_t c = 0; c < 937; c++) {
        dataset_chunk chunk;
        unsigned classes_seen = 0;
        CHECK_OK(dataset_view(d, DATASET_TRAIN, c, &chunk, &e), e);
        for (uint32_t k = 0; k < chunk.samples; k++)
            classes_seen |= 1u << chunk.labels[k];
        CHECK(__builtin_popcount(classes_seen) >= 7);
    }
    dataset_close(d);
    dataset_info_free(&info);
    CHECK_ERR(ingest_paths(s, "mnist", NULL, &(ingest_files){x, y, xt, yt}, NULL, &e), e,
              ERR_EXISTS, "mnist");
    store_close(s);
}
