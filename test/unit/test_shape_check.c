/* test_shape_check.c: what uploaded code says of a data set's samples, and code that does not say
 * it. */
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/compile/shape_check.h"
#include "common/dataset/dataset.h"
#include "controller/functions/code_shape_check.h"
#include "test.h"
#include "store_memory.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#define MODEL(body)                                                                                \
    "#include <kubeml.h>\n"                                                                        \
    "#include <stdio.h>\n"                                                                         \
    "#include <stdlib.h>\n"                                                                        \
    "#include <sys/socket.h>\n"                                                                    \
    "static kml_tensor model(kml_graph *g, kml_tensor x)\n"                                        \
    "{\n" body "\n}\n"                                                                             \
    "KUBEML_FUNCTION(.model = model);\n"
#define TEN MODEL("    return kml_linear(g, kml_flatten(g, x), 10);")

static void build(const char *text, builder_result *out)
{
    builder_config c = {.include_dir = "function-runtime/include",
                        .sandbox = BUILDER_SANDBOX_NONE,
                        .abi = builder_abi("function-runtime/include"),
                        .tmp_dir = test_tmp()};
    builder_source s = {"f.c", text, strlen(text)};
    err e = ERR_INIT;
    CHECK_OK(builder_compile(&s, 1, NULL, &c, out, &e), e);
}

static json_t *samples(uint32_t channels, uint32_t size, uint32_t classes)
{
    float *mean = calloc(channels, sizeof *mean), *std = calloc(channels, sizeof *std);
    dataset_info info = {.name = "shapes",
                         .samples = {64, 64},
                         .chunks = {1, 1},
                         .chunk_samples = 64,
                         .dtype = DATASET_F32,
                         .channels = channels,
                         .height = size,
                         .width = size,
                         .classes = classes,
                         .mean = mean,
                         .std = std};
    snprintf(info.upload, sizeof info.upload, "0000000000000000");
    memset(info.digest, 'a', DIGEST_HEX_BYTES - 1);
    json_t *out = dataset_info_json(&info);
    CHECK(out);
    free(mean);
    free(std);
    return out;
}

static int ask(const char *code, uint32_t channels, uint32_t size, uint32_t classes, err *e)
{
    const char *folder = getenv("BUILD");
    char program[512];
    builder_result built;
    cleanup_json json_t *data = samples(channels, size, classes);
    snprintf(program, sizeof program, "%s/bin/kubeml-function", folder ? folder : "build/release");
    build(code, &built);
    int rc = shape_check(program, built.object, built.object_bytes, data, e);
    builder_result_free(&built);
    if (rc < 0 && strstr(e->message, "no Landlock"))
        test_skip(e->message);
    return rc;
}

static void misfits(const char *code, uint32_t channels, uint32_t size, uint32_t classes,
                    const char *part)
{
    err e = ERR_INIT;
    CHECK_INT(ask(code, channels, size, classes, &e), 1);
    CHECK_INT(e.code, ERR_INVALID);
    CHECK_CONTAINS(e.message, part);
}

static void stays_unknown(const char *code, const char *part)
{
    err e = ERR_INIT;
    CHECK_INT(ask(code, 1, 8, 10, &e), -1);
    CHECK_CONTAINS(e.message, part);
}

TEST_LIMIT(code_that_takes_the_samples_fits, 60)
{
    err e = ERR_INIT;
    CHECK_INT(ask(TEN, 3, 32, 10, &e), 0);
    CHECK_OK(ask(TEN, DATASET_CHANNELS_MAX, 1, 2, &e),
             e); /* a long record; fewer classes than outputs */
}

TEST_LIMIT(a_misfit_names_its_layer_or_its_label, 60)
{
    static const char conv[] = MODEL("    x = kml_conv2d(g, x, .filters = 4, .kernel = 5);\n"
                                     "    return kml_linear(g, kml_flatten(g, x), 10);");
    err e = ERR_INIT;
    CHECK_INT(ask(conv, 1, 5, 10, &e), 0);
    misfits(conv, 1, 3, 10, "conv2d 'conv1': kernel 5 is larger");
    misfits(TEN, 1, 8, 11, "labels up to 10, the model has 10 outputs");
    misfits(MODEL("    return kml_conv2d(g, x, .filters = 4, .kernel = 3);"), 1, 8, 4,
            "must be flat");
}

TEST_LIMIT(what_code_prints_is_no_answer, 60)
{
    static const char talks[] = MODEL("    puts(\"{}\");\n    fflush(stdout);\n"
                                      "    return kml_linear(g, kml_flatten(g, x), 10);");
    err e = ERR_INIT;
    CHECK_INT(ask(talks, 1, 8, 10, &e), 0);
    misfits(talks, 1, 8, 11, "labels up to 10");
}

TEST_LIMIT(code_that_no_data_set_fits, 60)
{
    misfits("#include <kubeml.h>\nKUBEML_FUNCTION(.lr = 0.1);\n", 1, 8, 10, "model");
    misfits("#include <kubeml.h>\n"
            "static kml_tensor model(kml_graph *g, kml_tensor x)\n"
            "{ return kml_linear(g, kml_flatten(g, x), 10); }\n"
            "KUBEML_FUNCTION(.model = model, .optimizer = kml_adam(.momentum = 0.9));\n",
            1, 8, 10, "kml_adam has no .momentum");
    err e = ERR_INIT;
    CHECK_INT(ask(MODEL("    x = kml_linear(g, kml_flatten(g, x), 1000000);\n"
                        "    return kml_linear(g, kml_linear(g, x, 3000), 10);"),
                  1, 8, 10, &e),
              1);
    CHECK_INT(e.code, ERR_LIMIT);
    CHECK_CONTAINS(e.message, "more than 2^31 parameters");
}

/* Its job tells more of these than a request could wait for. */
TEST_LIMIT(code_that_does_not_answer_leaves_it_unknown, 60)
{
    stays_unknown(MODEL("    abort();"), "signal 6");
    stays_unknown(MODEL("    exit(0);"), "");
    stays_unknown(MODEL("    for (volatile int i = 0; i >= 0;)\n        ;\n    return x;"), "");
}

/* No environment, no file, no program: less than a function has. */
TEST_LIMIT(code_is_behind_the_walls_of_a_function, 60)
{
    err e = ERR_INIT;
    setenv("KUBEML_TOKEN", "a-secret-of-the-one-who-asks", 1);
    CHECK_INT(
        ask(MODEL(
                "    if (getenv(\"KUBEML_TOKEN\") || system(\"true\") == 0 ||\n"
                "        fopen(\"/etc/hostname\", \"r\") || socket(AF_UNIX, SOCK_STREAM, 0) >= 0)\n"
                "        return kml_conv2d(g, x, .filters = 4, .kernel = 99);\n"
                "    return kml_linear(g, kml_flatten(g, x), 10);"),
            1, 8, 10, &e),
        0);
}

/* Neither kind of memory counts as the other's. */
TEST_LIMIT(memory_that_is_shared_has_a_limit_too, 60)
{
    err e = ERR_INIT;
    if (SANITIZED)
        test_skip("a sanitizer's shadow memory is larger than any limit");
    CHECK_OK(
        ask("#include <sys/mman.h>\n" MODEL(
                "    if (mmap(0, 1 << 30, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,\n"
                "             -1, 0) != MAP_FAILED)\n"
                "        return kml_fail(g, \"shared\");\n"
                "    if (mmap(0, 600 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,\n"
                "             -1, 0) != MAP_FAILED)\n"
                "        return kml_fail(g, \"private\");\n"
                "    return kml_linear(g, kml_flatten(g, x), 10);"),
            1, 8, 10, &e),
        e);
}

/* Each one who asks for a job would wait for it anew. */
TEST(that_it_is_not_known_is_kept_for_a_while)
{
    static const char crashes[] = "#!/bin/sh\necho asked >> %s\nexit 3\n";
    controller c = {.config = {.cluster = "local"}};
    dataset_info info = {.name = "shapes",
                         .samples = {64, 64},
                         .chunks = {1, 1},
                         .chunk_samples = 64,
                         .channels = 1,
                         .height = 8,
                         .width = 8,
                         .classes = 10,
                         .mean = (float[]){0},
                         .std = (float[]){1}};
    cleanup_json json_t *function = json_pack("{s:s, s:s}", "name", "f", "object", "objects/f");
    char asked[FS_PATH_BYTES], program[FS_PATH_BYTES], script[FS_PATH_BYTES + 64];
    cleanup_buf buf times;
    err e = ERR_INIT;
    buf_init(&times, 4096);
    snprintf(info.upload, sizeof info.upload, "0000000000000000");
    memset(info.digest, 'a', DIGEST_HEX_BYTES - 1);
    snprintf(c.config.bin_dir, sizeof c.config.bin_dir, "%s", test_tmp());
    CHECK_OK(fs_path(asked, &e, "%s/asked", test_tmp()), e);
    CHECK_OK(fs_path(program, &e, "%s/kubeml-function", test_tmp()), e);
    snprintf(script, sizeof script, crashes, asked);
    CHECK_OK(fs_write_file(program, script, strlen(script), 0700, &e), e);
    c.store = store_open(store_memory_locator(), &e);
    CHECK(c.store);
    CHECK_OK(store_blob_put(c.store, "objects/f", "code", 4, &e), e);
    for (int i = 0; i < 3; i++)
        CHECK_OK(code_shape_check(&c, function, &info, &e), e);
    CHECK_OK(fs_read_file(asked, &times, &e), e);
    CHECK_STR(times.bytes, "asked\n");
    store_close(c.store);
}
