/* function_fixture.h: data and functions for the runtime's tests: two classes of 8x8 uint8 images
 * in a store of the test's own, and small functions compiled from text. */
#ifndef KUBEML_FUNCTION_FIXTURE_H
#define KUBEML_FUNCTION_FIXTURE_H

#include <sys/stat.h>

#include "common/base/rng.h"
#include "common/compile/builder.h"
#include "common/dataset/dataset.h"
#include "common/dataset/ingest.h"
#include "common/store/store.h"
#include <kubeml.h>
#include "test.h"

enum { BLOB_TRAIN = 640, BLOB_TEST = 200, BLOB_SIDE = 8, BLOB_CHUNK = 64 };

static inline void write_npy(const char *path, const char *type, const char *dims,
                             const void *bytes, size_t len)
{
    char head[128];
    FILE *f = fopen(path, "w");
    CHECK(f);
    int used = snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                        type, dims);
    for (; (10 + used + 1) % 64 != 0; used++)
        head[used] = ' ';
    head[used++] = '\n';
    CHECK(fwrite("\x93NUMPY\x01\x00", 1, 8, f) == 8);
    CHECK(fputc(used & 255, f) != EOF && fputc(used >> 8, f) != EOF);
    CHECK(fwrite(head, 1, (size_t)used, f) == (size_t)used && fwrite(bytes, 1, len, f) == len);
    CHECK(fclose(f) == 0);
}

/* Class 1 is brighter in its upper half, class 0 in its lower one; the noise hides single
 * pixels. */
static inline void write_blobs(const char *x_path, const char *y_path, size_t n, uint64_t stream,
                               int classes)
{
    size_t each = BLOB_SIDE * BLOB_SIDE;
    unsigned char *x = malloc(n * each);
    int64_t *y = malloc(n * sizeof *y);
    char dims[64];
    rng r;
    CHECK(x && y);
    rng_init(&r, 7, RNG_TEST, 1, stream);
    for (size_t i = 0; i < n; i++) {
        y[i] = (int64_t)rng_below(&r, (uint64_t)classes);
        for (size_t p = 0; p < each; p++) {
            bool bright = (p < each / 2) == (y[i] & 1);
            x[i * each + p] = (unsigned char)((bright ? 100 : 60) + (int)rng_below(&r, 96));
        }
    }
    snprintf(dims, sizeof dims, "(%zu, %d, %d)", n, BLOB_SIDE, BLOB_SIDE);
    write_npy(x_path, "|u1", dims, x, n * each);
    snprintf(dims, sizeof dims, "(%zu,)", n);
    write_npy(y_path, "<i8", dims, y, n * sizeof *y);
    free(x);
    free(y);
}

/* In a store of that name, unless it is there already; its locator. */
static inline void store_arrays(const char *where, const char *name, bool regression,
                                char paths[4][300], char locator[STORE_LOCATOR_BYTES])
{
    char path[320];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "lmdb:%s/%s", test_tmp(), where);
    store *s = store_open(path, &e);
    if (!s)
        test_fail(__FILE__, __LINE__, "%s", e.message);
    ingest_options o = {.chunk_samples = BLOB_CHUNK, .regression = regression};
    ingest_files files = {paths[0], paths[1], paths[2], paths[3]};
    dataset_info info;
    if (dataset_find(s, name, &info, NULL, NULL) != 0)
        CHECK_OK(ingest_paths(s, name, &o, &files, &info, &e), e);
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    dataset_info_free(&info);
    store_close(s);
}

static inline dataset *open_stored(const char *locator)
{
    dataset *d;
    err e = ERR_INIT;
    CHECK_OK(dataset_open(locator, &d, &e), e);
    return d;
}

/* The dataset's locator; the store is closed again. */
static inline void make_blobs(int classes, char locator[STORE_LOCATOR_BYTES])
{
    char paths[4][300], where[32];
    static const char *const names[] = {"xtrain", "ytrain", "xtest", "ytest"};
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s.npy", test_tmp(), names[i]);
    write_blobs(paths[0], paths[1], BLOB_TRAIN, 1, classes);
    write_blobs(paths[2], paths[3], BLOB_TEST, 2, classes);
    snprintf(where, sizeof where, "store-%d", classes);
    store_arrays(where, "blobs", false, paths, locator);
}

static inline dataset *open_blobs(int classes)
{
    char locator[STORE_LOCATOR_BYTES];
    make_blobs(classes, locator);
    return open_stored(locator);
}

/* ---- targets ---- */

enum { FEATURES = 8, TARGETS = 2 };

/* Float samples whose targets are sums of their features; only with a target beside its own sample
 * can a linear layer find them. */
static inline void write_sums(const char *x_path, const char *y_path, size_t n, uint64_t stream)
{
    float *x = calloc(n, FEATURES * sizeof *x), *y = calloc(n, TARGETS * sizeof *y);
    char text[64];
    rng r;
    CHECK(x && y);
    rng_init(&r, 7, RNG_TEST, 2, stream);
    for (size_t i = 0; i < n * FEATURES; i++) {
        x[i] = 2 * rng_uniform(&r) - 1;
        y[i / FEATURES * TARGETS + i % TARGETS] += x[i] * (float)(i % FEATURES);
    }
    snprintf(text, sizeof text, "(%zu, %d)", n, FEATURES);
    write_npy(x_path, "<f4", text, x, n * FEATURES * sizeof *x);
    snprintf(text, sizeof text, "(%zu, %d)", n, TARGETS);
    write_npy(y_path, "<f4", text, y, n * TARGETS * sizeof *y);
    free(x);
    free(y);
}

static inline dataset *open_sums(void)
{
    char paths[4][300], locator[STORE_LOCATOR_BYTES];
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/sums-%d.npy", test_tmp(), i);
    write_sums(paths[0], paths[1], BLOB_TRAIN, 1);
    write_sums(paths[2], paths[3], BLOB_TEST, 2);
    store_arrays("sums", "sums", true, paths, locator);
    return open_stored(locator);
}

/* ---- code ---- */

#define BLOB_MODEL(layers, settings)                                                               \
    "#include <kubeml.h>\n"                                                                        \
    "static kml_tensor model(kml_graph *g, kml_tensor x)\n"                                        \
    "{\n" layers "}\n"                                                                             \
    "KUBEML_FUNCTION(.model = model" settings ");\n"

/* Convolution, batch norm and dropout: running statistics, counters and draws all have a part. */
#define BLOB_LAYERS                                                                                \
    "    x = kml_conv2d(g, x, .filters = 4, .kernel = 3, .padding = 1);\n"                         \
    "    x = kml_relu(g, kml_batch_norm2d(g, x));\n"                                               \
    "    x = kml_max_pool2d(g, x, .kernel = 2);\n"                                                 \
    "    x = kml_dropout(g, kml_flatten(g, x), 0.25);\n"                                           \
    "    return kml_linear(g, x, kml_classes(g));\n"
#define BLOB_SETTINGS ", .optimizer = kml_sgd(.momentum = 0.9), .lr = 0.01"
#define BLOB_AUGMENTED                                                                             \
    BLOB_SETTINGS ", .transform = kml_transform(.flip = true, .crop = 1, .standardise = true)"

#define SUM_LAYERS "    return kml_linear(g, kml_flatten(g, x), kml_classes(g));\n"
#define SUM_SETTINGS ", .loss = KML_MSE, .optimizer = kml_sgd(.momentum = 0.9)"

/* Compiles and writes the object to TEST_TMP/NAME.so; its path in `out`. */
static inline void make_object(const char *name, const char *text, char out[300])
{
    builder_config c = {.include_dir = "function-runtime/include", .sandbox = BUILDER_SANDBOX_NONE,
                        .abi = KUBEML_ABI, .tmp_dir = test_tmp()};
    builder_source s = {"model.c", text, strlen(text)};
    builder_result r;
    err e = ERR_INIT;
    CHECK_OK(builder_compile(&s, 1, NULL, &c, &r, &e), e);
    snprintf(out, 300, "%s/%s.so", test_tmp(), name);
    FILE *f = fopen(out, "w");
    CHECK(f && fwrite(r.object, 1, r.object_bytes, f) == r.object_bytes && fclose(f) == 0);
    builder_result_free(&r);
}

#endif
