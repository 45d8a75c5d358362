/* test_serve.c: a runtime that serves a model: the model and its code come from files of the host
 * or, in a pod, from the store, and answer alike. */
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/contract/infer_answer.h"
#include "common/net/wire.h"
#include "function-runtime/base/model_file.h"
#include "function-runtime/model/program.h"
#include "function-runtime/serve/serve.h"
#include "function_fixture.h"

enum { WAIT_MS = 60000 };

static void put_file(store *s, const char *name, const char *path)
{
    buf bytes;
    err e = ERR_INIT;
    buf_init(&bytes, 64 << 20);
    CHECK_OK(fs_read_file(path, &bytes, &e), e);
    CHECK_OK(store_blob_put(s, name, bytes.bytes, bytes.len, &e), e);
    buf_free(&bytes);
}

typedef struct world {
    char object[300], model[300], locator[320];
    json_t *info;
} world;

/* A model as file and blob, with the code that it needs: untrained, or of numbers so large that
 * what it computes is not finite. */
static void make_model(world *w, const char *code, bool huge)
{
    char data[STORE_LOCATOR_BYTES];
    program *p;
    dataset_info info;
    engine *m;
    err e = ERR_INIT;
    make_blobs(2, data);
    make_object("served", code, w->object);
    snprintf(w->locator, sizeof w->locator, "lmdb:%s/store-2", test_tmp());
    snprintf(w->model, sizeof w->model, "%s/model.safetensors", test_tmp());
    store *s = store_open(w->locator, &e);
    CHECK(s);
    CHECK_OK(dataset_find(s, "blobs", &info, NULL, &e), e);
    CHECK_OK(program_open_object(w->object, &p, &e), e);
    engine_config c = {.seed = 3};
    program_config(p, &info, &c);
    c.input = (shape){3, (int)info.channels, (int)info.height, (int)info.width};
    c.batch = 8;
    CHECK_OK(engine_compile(&c, &m, &e), e);
    float *floats = huge ? engine_floats(m, &e) : NULL;
    for (size_t i = 0; floats && i < engine_param_count(m); i++)
        floats[i] = 3e38f;
    CHECK_OK(model_file_save(m, w->model, &e), e);
    engine_free(m);
    program_close(p);
    put_file(s, "models/job1/final", w->model);
    put_file(s, "objects/served", w->object);
    w->info = dataset_info_json(&info);
    dataset_info_free(&info);
    store_close(s);
}

static void make_world(world *w)
{
    make_model(w, BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), false);
}

static json_t *answer_to(wire *w, json_t *message)
{
    json_t *reply = NULL;
    err e = ERR_INIT;
    CHECK_OK(wire_send_wait(w, message, clock_deadline_ms(WAIT_MS), &e), e);
    CHECK_OK(wire_receive_wait(w, &reply, clock_deadline_ms(WAIT_MS), &e), e);
    json_decref(message);
    return reply;
}

/* A process of its own that was given `order`, and its answer. */
static wire *begin_serving(json_t *order, json_t **first, pid_t *pid)
{
    int ends[2];
    err e = ERR_INIT;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    *pid = fork();
    if (*pid == 0) {
        json_t *got = NULL;
        close(ends[0]);
        wire *w = wire_adopt(ends[1], &e);
        bool well = w && wire_receive_wait(w, &got, clock_deadline_ms(WAIT_MS), &e) == 0 &&
                    serve(got, w, &e) == 0;
        _exit(well ? 0 : 1);
    }
    close(ends[1]);
    wire *w = wire_adopt(ends[0], &e);
    CHECK(w);
    wire_set_limit(w, WIRE_FRAME_BYTES_MAX);
    *first = answer_to(w, order);
    return w;
}

static void end_serving(wire *w, pid_t pid)
{
    wire_close(w);
    CHECK(waitpid(pid, NULL, 0) == pid);
}

static json_t *question(int samples)
{
    json_t *rows = json_array(), *data = json_array();
    for (int y = 0; y < BLOB_SIDE; y++) {
        json_t *row = json_array();
        for (int x = 0; x < BLOB_SIDE; x++)
            json_array_append_new(row, json_integer(y * 20 + x));
        json_array_append_new(rows, row);
    }
    for (int i = 0; i < samples; i++)
        json_array_append_new(data, json_pack("[O]", rows));
    json_decref(rows);
    return json_pack("{s:s, s:o}", "type", "infer", "data", data);
}

/* The answer to `order`, and to one sample after it; NULL where it failed. */
static json_t *serve_once(json_t *order, json_t **first)
{
    pid_t pid;
    wire *w = begin_serving(order, first, &pid);
    json_t *guess = strcmp(wire_type(*first), "serving") == 0 ? answer_to(w, question(1)) : NULL;
    end_serving(w, pid);
    return guess;
}

static json_t *order_of(const world *w, bool files, const char *model, const char *object)
{
    return json_pack("{s:s, s:s*, s:s*, s:s*, s:s*, s:s, s:O}", "type", "serve", "model_path",
                     files ? w->model : NULL, "object_path", files ? w->object : NULL, "store",
                     files ? NULL : w->locator, "model", files ? NULL : model, "object", object,
                     "dataset", w->info);
}

TEST(files_and_blobs_answer_alike)
{
    world w;
    json_t *first;
    make_world(&w);
    json_t *files = serve_once(order_of(&w, true, NULL, "objects/served"), &first);
    json_decref(first);
    json_t *blobs = serve_once(order_of(&w, false, "models/job1/final", "objects/served"), &first);
    CHECK_STR(wire_type(first), "serving");
    json_decref(first);
    CHECK_STR(wire_type(files), "predictions");
    CHECK(json_equal(files, blobs));
    json_decref(files);
    json_decref(blobs);
    json_decref(w.info);
}

TEST(outputs_that_are_not_finite_are_no_answer)
{
    world w;
    json_t *first;
    make_model(&w, BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), true);
    json_t *answer = serve_once(order_of(&w, true, NULL, "objects/served"), &first);
    CHECK_STR(wire_type(first), "serving");
    json_decref(first);
    CHECK_STR(wire_type(answer), "failed");
    CHECK_STR(json_string_value(json_object_get(answer, "code")), "invalid");
    CHECK_CONTAINS(json_string_value(json_object_get(answer, "message")),
                   "the model's outputs are not finite");
    json_decref(answer);
    json_decref(w.info);
}

TEST(what_is_not_in_the_store_is_named)
{
    static const struct {
        const char *model, *object, *says;
    } known[] = {{"models/job2/final", "objects/served", "the model"},
                 {"models/job1/final", "objects/none", "the code"},
                 {NULL, "objects/served", "neither model_path nor"}};
    world w;
    make_world(&w);
    for (int i = 0; i < 3; i++) {
        json_t *first;
        CHECK(!serve_once(order_of(&w, false, known[i].model, known[i].object), &first));
        CHECK_STR(wire_type(first), "failed");
        CHECK_CONTAINS(json_string_value(json_object_get(first, "message")), known[i].says);
        json_decref(first);
    }
    json_decref(w.info);
}

/* Its log is a file, which nothing else keeps short. */
TEST(what_the_code_writes_and_reaches_is_limited)
{
    world w;
    json_t *first;
    make_world(&w);
    make_object(
        "tells",
        "#include <kubeml.h>\n#include <sys/resource.h>\n#include <sys/socket.h>\n"
        "static kml_tensor model(kml_graph *g, kml_tensor x)\n"
        "{\n    struct rlimit l;\n    (void)x;\n    getrlimit(RLIMIT_FSIZE, &l);\n"
        "    return kml_fail(g, \"%s, unix %d\", l.rlim_max > 64 << 20 ? \"endless\" : \"limited\",\n"
        "                    socket(AF_UNIX, SOCK_STREAM, 0));\n"
        "}\nKUBEML_FUNCTION(.model = model);\n",
        w.object);
    CHECK(!serve_once(order_of(&w, true, NULL, "objects/tells"), &first));
    CHECK_STR(wire_type(first), "failed");
    CHECK_CONTAINS(json_string_value(json_object_get(first, "message")), "limited, unix -1");
    json_decref(first);
    json_decref(w.info);
}

#define WIDE(settings) BLOB_MODEL("    return kml_linear(g, kml_flatten(g, x), 4000);\n", settings)

/* It is refused with what fits, which it does, and the runtime is there as before. */
static void check_too_long(const char *code)
{
    static const char part[] = "at most ";
    world w;
    json_t *first;
    pid_t pid;
    make_model(&w, code, false);
    wire *to = begin_serving(order_of(&w, true, NULL, "objects/served"), &first, &pid);
    CHECK_STR(wire_type(first), "serving");
    cleanup_json json_t *refused = answer_to(to, question(1000));
    CHECK_STR(wire_type(refused), "failed");
    CHECK_STR(json_string_value(json_object_get(refused, "code")), "limit");
    const char *message = json_string_value(json_object_get(refused, "message"));
    CHECK_CONTAINS(message, part);
    int fits = (int)strtol(strstr(message, part) + strlen(part), NULL, 10);
    CHECK(fits > 0 && fits < 1000);
    size_t frame_bytes, values_bytes, outputs;
    outputs = (size_t)json_integer_value(json_object_get(first, "outputs"));
    CHECK_INT(outputs, 4000);
    infer_answer_limits((size_t)fits, outputs, WIRE_FRAME_BYTES_MAX, &frame_bytes, &values_bytes);
    wire_set_limit(to, frame_bytes);
    wire_set_values_limit(to, values_bytes);
    cleanup_json json_t *answer = answer_to(to, question(fits));
    CHECK_STR(wire_type(answer), "predictions");
    CHECK_INT(json_array_size(json_object_get(json_object_get(answer, "data"), "logits")), fits);
    end_serving(to, pid);
    json_decref(first);
    json_decref(w.info);
}

TEST_LIMIT(an_answer_that_would_be_too_long_is_refused, 120)
{
    check_too_long(WIDE(""));
}

TEST_LIMIT(an_answer_of_targets_has_each_number_twice, 120)
{
    check_too_long(WIDE(", .loss = KML_MSE"));
}
