/* test_model_file.c: a model that PyTorch saved (test/golden/make_golden.py, make_checkpoint), and
 * the files that are not what the model needs. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/formats/safetensors.h"
#include "function-runtime/base/model_file.h"
#include "golden.h"

enum { BATCH = 4, CLASSES = 3 };

static const char golden[] = "test/golden/checkpoint.safetensors";

/* make_golden.py's class Small. */
static int small(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_conv2d(g, x,
                     (conv2d_options){.filters = 4, .kernel = 3, .padding = 1, .no_bias = true});
    x = graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){0}));
    x = graph_max_pool2d(g, x, (pool_options){.kernel = 2});
    x = graph_conv2d(
        g, x, (conv2d_options){.name = "layer1.0.conv1", .filters = 8, .kernel = 3, .padding = 1});
    x = graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){.name = "layer1.0.bn1"}));
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs, (linear_options){.name = "fc"});
}

static engine *open_small(void)
{
    err e = ERR_INIT;
    engine *m = NULL;
    engine_config c = {.build = small, .input = {3, 1, 8, 8}, .outputs = CLASSES, .batch = BATCH,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9}};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    return m;
}

static int load_without(engine *m, const char *path, const char *without, err *e)
{
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    return model_file_load(m, fd, without, e);
}

static int load(engine *m, const char *path, err *e)
{
    return load_without(m, path, NULL, e);
}

TEST(a_file_of_pytorchs_gives_its_logits)
{
    err e = ERR_INIT;
    engine *m = open_small();
    double want[BATCH * CLASSES];
    float got[BATCH * CLASSES];
    golden_batch b = {0};
    golden_line("checkpoint", "logits", want, BATCH * CLASSES);
    CHECK_OK(load(m, golden, &e), e);
    golden_draw(&b, 9, BATCH, (shape){3, 1, 8, 8}, CLASSES);
    CHECK_OK(engine_infer(m, &b.b, got, &e), e);
    double apart = 0, norm = 0;
    for (int i = 0; i < BATCH * CLASSES; i++) {
        apart += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += want[i] * want[i];
    }
    CHECK(sqrt(apart) < 1e-5 * sqrt(norm));
    free(b.x);
    engine_free(m);
}

/* Every tensor comes back under its name, with its type, shape and bytes, and nothing beside
 * them. */
TEST(what_is_saved_is_what_pytorch_saved)
{
    err e = ERR_INIT;
    engine *m = open_small();
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", test_tmp());
    CHECK_OK(load(m, golden, &e), e);
    CHECK_OK(model_file_save(m, path, &e), e);
    engine_free(m);
    cleanup_close int mine = open(path, O_RDONLY | O_CLOEXEC),
                      theirs = open(golden, O_RDONLY | O_CLOEXEC);
    safetensors *a, *b;
    CHECK_OK(safetensors_open(mine, &a, &e), e);
    CHECK_OK(safetensors_open(theirs, &b, &e), e);
    CHECK_INT(safetensors_count(a), safetensors_count(b));
    CHECK_STR(safetensors_metadata(a, "format"), "pt");
    for (size_t i = 0; i < safetensors_count(b); i++) {
        const safetensor *t = safetensors_at(b, i), *s = safetensors_find(a, t->name);
        char left[4096], right[4096], shape_a[SAFETENSORS_SHAPE_BYTES],
            shape_b[SAFETENSORS_SHAPE_BYTES];
        CHECK(s && s->bytes == t->bytes && t->bytes <= sizeof left);
        CHECK_INT(s->dtype, t->dtype);
        CHECK_STR(safetensors_shape_text(s->ndim, s->shape, shape_a),
                  safetensors_shape_text(t->ndim, t->shape, shape_b));
        CHECK_OK(safetensors_read(a, s, 0, left, s->bytes, &e), e);
        CHECK_OK(safetensors_read(b, t, 0, right, t->bytes, &e), e);
        CHECK(memcmp(left, right, t->bytes) == 0);
    }
    safetensors_close(a);
    safetensors_close(b);
}

/* As a job's export has them: counters, whose eight bytes nothing shifts, before all floats. */
TEST(what_is_saved_lies_aligned_in_the_order_of_an_export)
{
    err e = ERR_INIT;
    engine *m = open_small();
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", test_tmp());
    CHECK_OK(model_file_save(m, path, &e), e);
    engine_free(m);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    safetensors *saved;
    CHECK_OK(safetensors_open(fd, &saved, &e), e);
    static const char *const first[] = {"bn1.num_batches_tracked",
                                        "layer1.0.bn1.num_batches_tracked", "conv1.weight"};
    for (size_t i = 0; i < safetensors_count(saved); i++) {
        const safetensor *t = safetensors_at(saved, i);
        CHECK(i >= sizeof first / sizeof *first || strcmp(t->name, first[i]) == 0);
        CHECK_INT(t->offset % safetensors_dtype_bytes(t->dtype), 0);
    }
    safetensors_close(saved);
}

/* ---- files that do not fit ------------------------------------------------------------------- */

/* The golden file with `from` in its header replaced by `to` of the same length, and `cut` bytes
 * less. */
static int spoilt(const char *from, const char *to, size_t cut, char path[256])
{
    static char bytes[1 << 16];
    cleanup_close int in = open(golden, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(in, bytes, sizeof bytes);
    CHECK(n > 0 && (size_t)n < sizeof bytes && strlen(from) == strlen(to));
    char *at = memmem(bytes, (size_t)n, from, strlen(from));
    CHECK(at);
    memcpy(at, to, strlen(to));
    snprintf(path, 256, "%s/spoilt.safetensors", test_tmp());
    cleanup_close int out = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(write(out, bytes, (size_t)n - cut) == n - (ssize_t)cut);
    return 0;
}

TEST(what_does_not_fit_is_named_and_changes_nothing)
{
    static const struct {
        const char *from, *to, *says;
        size_t cut;
    } cases[] = {
        {"\"fc.bias\"", "\"fc.bios\"", "tensor fc.bias of the model is missing", 0},
        {"\"bn1.num_batches_tracked\"", "\"bn1.num_batches_tackled\"",
         "tensor bn1.num_batches_tackled is none", 0},
        {"[4,1,3,3]", "[4,3,1,3]",
         "tensor conv1.weight has shape (4, 3, 1, 3), the model's is (4, 1, 3, 3)", 0},
        {"\"fc.bias\":{\"dtype\":\"F32\"", "\"fc.bias\":{\"dtype\":\"I32\"",
         "tensor fc.bias is of type I32, not F32", 0},
        {"[3,8]", "[8,3]", "tensor fc.weight has shape (8, 3), the model's is (3, 8)", 0},
        {"[3,8]", "[3,9]", "\"fc.weight\": its shape and dtype", 0},
        {"[3,8]", "[3,8]", "its bytes lie beyond", 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        engine *m = open_small();
        char path[256];
        size_t bytes = engine_state_floats(m) * sizeof(float);
        cleanup_free float *before = malloc(bytes);
        CHECK(before);
        memcpy(before, engine_floats(m, &e), bytes);
        spoilt(cases[i].from, cases[i].to, cases[i].cut, path);
        CHECK(load(m, path, &e) == -1);
        CHECK_CONTAINS(e.message, cases[i].says);
        CHECK(memcmp(before, engine_floats(m, &e), bytes) == 0);
        engine_free(m);
    }
}

static bool is_under(const engine_var *v, const char *layer)
{
    return strncmp(v->name, layer, strlen(layer)) == 0;
}

/* For as many classes as one likes: the last layer has its drawn values, all others the file's. */
TEST(what_is_left_out_stays_as_it_is)
{
    err e = ERR_INIT;
    char path[256];
    engine *m = open_small(), *drawn = open_small();
    const float *got = engine_floats(m, &e), *before = engine_floats(drawn, &e);
    size_t count;
    const engine_var *v = engine_layout(m, &count);
    spoilt("[3,8]", "[4,6]", 0, path); /* a fc.weight of another shape */
    CHECK_ERR(load_without(m, path, "fc.bias", &e), e, ERR_INVALID,
              "tensor fc.weight has shape (4, 6)");
    err_clear(&e);
    CHECK_ERR(load_without(m, path, "fc,conv2", &e), e, ERR_INVALID,
              "no tensor of the model is conv2, nor begins with conv2.");
    err_clear(&e);
    CHECK_OK(load_without(m, path, "fc", &e), e);
    for (size_t i = 0; i < count; i++) {
        if (v[i].kind != VAR_PARAM || v[i].count < 8)
            continue; /* a scale begins as 1 there too */
        bool same = memcmp(got + v[i].offset, before + v[i].offset, v[i].count * sizeof *got) == 0;
        CHECK(same == is_under(&v[i], "fc."));
    }
    spoilt("\"fc.bias\"", "\"fc.bios\"", 0, path); /* and one that the model has not */
    CHECK_OK(load_without(m, path, "fc", &e), e);
    engine_free(m);
    engine_free(drawn);
}
