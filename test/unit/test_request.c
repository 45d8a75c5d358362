/* test_request.c: every field's default, limits and refusal, as data. */
#include <jansson.h>

#include "common/contract/job_options.h"
#include "test.h"

#define TOP                                                                                        \
    "\"function_name\":\"lenet\",\"dataset\":\"mnist\",\"epochs\":5,\"batch_size\":32,\"lr\":0.01"

static int parse(const char *text, request *r, err *e)
{
    json_error_t why;
    json_t *body = json_loads(text, JSON_DECODE_ANY, &why);
    if (!body)
        test_fail(__FILE__, __LINE__, "%s: %s", text, why.text);
    int result = request_parse(body, r, e);
    json_decref(body);
    return result;
}

TEST(defaults)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(parse("{" TOP "}", &r, &e), e);
    CHECK_STR(r.function_name, "lenet");
    CHECK_STR(r.dataset, "mnist");
    CHECK_STR(r.init, "");
    CHECK_INT(r.epochs, 5);
    CHECK_INT(r.batch_size, 32);
    CHECK_NEAR(r.lr, 0.01, 0);
    CHECK_INT(r.default_parallelism, 4);
    CHECK(!r.static_parallelism);
    CHECK_INT(r.k, -1);
    CHECK_INT(r.validate_every, 1);
    CHECK_NEAR(r.goal_accuracy, 100, 0);
    CHECK_INT(r.merge, MERGE_DATABASE);
    CHECK_INT(r.priority, 0);
    CHECK_INT(r.seed, 0);
    CHECK_INT(r.optimizer_state, STATE_AVERAGE);
    CHECK_INT(r.on_loss, ON_LOSS_RECOMPUTE);
}

TEST(the_device_comes_back_where_it_was_asked_for)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(parse("{" TOP ",\"options\":{\"device\":\"cuda\"}}", &r, &e), e);
    CHECK_INT(r.device, DEVICE_CUDA);
    json_t *back = request_json(&r);
    CHECK_STR(json_string_value(json_object_get(json_object_get(back, "options"), "device")),
              "cuda");
    json_decref(back);
    CHECK_OK(parse("{" TOP "}", &r, &e), e);
    CHECK_INT(r.device, DEVICE_AUTO);
    back = request_json(&r); /* digests of before stay */
    CHECK(!json_object_get(json_object_get(back, "options"), "device"));
    json_decref(back);
}

TEST(every_option)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(
        parse("{" TOP ",\"init\":\"models/j1/final\",\"init_without\":\"fc,layer4.1\","
              "\"options\":{\"default_parallelism\":256,"
              "\"static_parallelism\":true,\"k\":16,\"validate_every\":0,\"goal_accuracy\":99.5,"
              "\"merge\":\"server\",\"mode\":\"ps\",\"priority\":-1000,\"seed\":9007199254740992,"
              "\"optimizer_state\":\"reset\",\"on_loss\":\"continue\"}}",
              &r, &e),
        e);
    CHECK_STR(r.init, "models/j1/final");
    CHECK_STR(r.init_without, "fc,layer4.1");
    CHECK_INT(r.default_parallelism, 256);
    CHECK(r.static_parallelism);
    CHECK_INT(r.k, 16);
    CHECK_INT(r.validate_every, 0);
    CHECK_NEAR(r.goal_accuracy, 99.5, 0);
    CHECK_INT(r.merge, MERGE_SERVER);
    CHECK_INT(r.priority, -1000);
    CHECK_INT(r.seed, 9007199254740992);
    CHECK_INT(r.optimizer_state, STATE_RESET);
    CHECK_INT(r.on_loss, ON_LOSS_CONTINUE);
}

/* What a controller knows of a job after its restart is what its record says. */
TEST(all_that_is_asked_for_comes_back)
{
    static const char *const bodies[] = {
        "{" TOP ",\"init\":\"models/j1/final\",\"init_without\":\"fc,layer4.1\","
        "\"options\":{\"active_deadline_seconds\":60,\"backoff_limit\":2,"
        "\"ttl_seconds_after_finished\":0,\"process\":\"shared\",\"static_parallelism\":true,"
        "\"default_parallelism\":3,\"k\":16,\"validate_every\":0,\"goal_accuracy\":99.5,"
        "\"merge\":\"server\",\"priority\":-3,\"seed\":9007199254740992,\"device\":\"cuda\","
        "\"gpu\":{\"memory\":\"1536Mi\",\"threads\":25,\"precision\":\"tf32\"},"
        "\"optimizer_state\":\"reset\",\"on_loss\":\"continue\"}}",
        "{" TOP ",\"options\":{\"merge\":\"nccl\",\"static_parallelism\":true}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        err e = ERR_INIT;
        request r, again;
        CHECK_OK(parse(bodies[i], &r, &e), e);
        json_t *back = request_json(&r);
        CHECK_OK(request_parse(back, &again, &e), e);
        CHECK_STR(again.function_name, r.function_name);
        CHECK_STR(again.dataset, r.dataset);
        CHECK_STR(again.init, r.init);
        CHECK_STR(again.init_without, r.init_without);
        CHECK_INT(again.epochs, r.epochs);
        CHECK_INT(again.batch_size, r.batch_size);
        CHECK_NEAR(again.lr, r.lr, 0);
        CHECK_INT(again.default_parallelism, r.default_parallelism);
        CHECK_INT(again.static_parallelism, r.static_parallelism);
        CHECK_INT(again.k, r.k);
        CHECK_INT(again.validate_every, r.validate_every);
        CHECK_NEAR(again.goal_accuracy, r.goal_accuracy, 0);
        CHECK_INT(again.merge, r.merge);
        CHECK_INT(again.priority, r.priority);
        CHECK_INT(again.seed, r.seed);
        CHECK_INT(again.optimizer_state, r.optimizer_state);
        CHECK_INT(again.on_loss, r.on_loss);
        CHECK_INT(again.active_deadline_seconds, r.active_deadline_seconds);
        CHECK_INT(again.backoff_limit, r.backoff_limit);
        CHECK_INT(again.ttl_seconds_after_finished, r.ttl_seconds_after_finished);
        CHECK_INT(again.process, r.process);
        CHECK_INT(again.device, r.device);
        CHECK_INT(again.precision, r.precision);
        CHECK_INT(again.gpu.memory_bytes, r.gpu.memory_bytes);
        CHECK_INT(again.gpu.threads, r.gpu.threads);
        json_decref(back);
    }
}

TEST(a_model_to_begin_with_is_a_jobs_or_a_file_of_it)
{
    char id[REQUEST_NAME_BYTES];
    request_init_id("models/j1/final", id);
    CHECK_STR(id, "j1");
    request_init_id("j1", id);
    CHECK_STR(id, "j1");
    request_init_id(NULL, id);
    CHECK_STR(id, "");
}

/* A manifest that is filled in by a program has all of its fields. */
TEST(an_empty_text_is_as_if_it_were_not_there)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(parse("{" TOP ",\"init\":\"\",\"init_without\":\"\"}", &r, &e), e);
    CHECK_STR(r.init, "");
    CHECK_STR(r.init_without, "");
    CHECK_OK(parse("{" TOP ",\"init\":\"a\",\"init_without\":\"\"}", &r, &e), e);
    CHECK_STR(r.init_without, "");
}

TEST(first_kubeml_names)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(parse("{\"model_type\":\"example\"," TOP ",\"options\":{\"K\":8}}", &r, &e), e);
    CHECK_INT(r.k, 8);
}

TEST(canonical_text)
{
    err e = ERR_INIT;
    request r, again;
    CHECK_OK(parse("{\"options\":{\"seed\":7,\"K\":3}," TOP "}", &r, &e), e);
    json_t *j = request_json(&r);
    CHECK(j);
    char *text = json_dumps(j, JSON_COMPACT);
    CHECK_OK(parse(text, &again, &e), e);
    json_t *k = request_json(&again);
    char *second = json_dumps(k, JSON_COMPACT);
    CHECK_STR(second, text);
    CHECK_STR(text, "{\"function_name\":\"lenet\",\"dataset\":\"mnist\",\"init\":\"\",\"epochs\":5,"
                    "\"batch_size\":32,\"lr\":0.01,\"options\":{\"default_parallelism\":4,"
                    "\"static_parallelism\":false,\"k\":3,\"validate_every\":1,"
                    "\"goal_accuracy\":100.0,\"merge\":\"database\",\"mode\":\"ps\",\"priority\":0,"
                    "\"seed\":7,\"optimizer_state\":\"average\",\"on_loss\":\"recompute\"}}");
    free(text);
    free(second);
    json_decref(j);
    json_decref(k);
}

/* Records and digests of plans hold these bytes: what is always written comes first, then what
 * differs from its default. */
TEST(canonical_text_of_every_option)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(parse("{" TOP ",\"init\":\"j1\",\"init_without\":\"fc\",\"options\":{"
                   "\"ttl_seconds_after_finished\":3,\"process\":\"shared\",\"backoff_limit\":2,"
                   "\"active_deadline_seconds\":60,\"on_loss\":\"continue\","
                   "\"gpu\":{\"precision\":\"tf32\",\"threads\":25,\"memory\":\"1536Mi\"},"
                   "\"device\":\"cuda\",\"optimizer_state\":\"reset\",\"seed\":7,\"priority\":-3,"
                   "\"merge\":\"server\",\"goal_accuracy\":99.5,\"validate_every\":0,\"k\":16,"
                   "\"static_parallelism\":true,\"default_parallelism\":3}}",
                   &r, &e),
             e);
    json_t *j = request_json(&r);
    char *text = json_dumps(j, JSON_COMPACT);
    CHECK_STR(text,
              "{\"function_name\":\"lenet\",\"dataset\":\"mnist\",\"init\":\"j1\",\"epochs\":5,"
              "\"batch_size\":32,\"lr\":0.01,\"options\":{\"default_parallelism\":3,"
              "\"static_parallelism\":true,\"k\":16,\"validate_every\":0,\"goal_accuracy\":99.5,"
              "\"merge\":\"server\",\"mode\":\"ps\",\"priority\":-3,\"seed\":7,"
              "\"optimizer_state\":\"reset\",\"on_loss\":\"continue\",\"device\":\"cuda\","
              "\"gpu\":{\"memory\":\"1536Mi\",\"threads\":25,\"precision\":\"tf32\"},"
              "\"active_deadline_seconds\":60,\"backoff_limit\":2,\"process\":\"shared\","
              "\"ttl_seconds_after_finished\":3},\"init_without\":\"fc\"}");
    free(text);
    json_decref(j);
}

static bool is_same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

/* A name is one option's, wherever names must not be mixed up. */
TEST(no_two_rows_of_the_table_have_one_name)
{
    for (const job_option *a = job_options; a->name; a++) {
        CHECK(!a->flag || (a->help && a->about));
        CHECK(a->kind != VALUE_WORD || a->words[0]);
        for (const job_option *b = job_options; b < a; b++) {
            CHECK(a->in != b->in || !(is_same(a->name, b->name) || is_same(a->alias, b->name) ||
                                      is_same(a->name, b->alias)));
            CHECK(!is_same(a->flag, b->flag) && !is_same(a->spec, b->spec));
            CHECK(!a->letter || a->letter != b->letter);
        }
    }
}

TEST(an_option_is_found_by_its_names)
{
    CHECK_STR(job_option_find(IN_OPTIONS, "K")->name, "k");
    CHECK_STR(job_option_of_flag("gpu-memory")->name, "memory");
    CHECK_STR(job_option_parent(IN_GPU)->name, "gpu");
    CHECK(!job_option_find(IN_REQUEST, "k") && !job_option_find(IN_OPTIONS, "memory"));
    CHECK(!job_option_of_flag("sparse-avg") && !job_option_parent(IN_REQUEST));
}

TEST(where_models_are_merged_comes_back)
{
    static const char *const places[] = {"database", "server", "nccl"};
    for (int i = 0; i < 3; i++) {
        char text[256];
        request r;
        err e = ERR_INIT;
        snprintf(
            text, sizeof text,
            "{\"function_name\":\"f\",\"dataset\":\"d\",\"epochs\":1,\"batch_size\":1,\"lr\":1,"
            "\"options\":{\"static_parallelism\":true,\"merge\":\"%s\"}}",
            places[i]);
        CHECK_OK(parse(text, &r, &e), e);
        CHECK_INT(r.merge, i);
        json_t *j = request_json(&r);
        CHECK_STR(json_string_value(json_object_get(json_object_get(j, "options"), "merge")),
                  places[i]);
        json_decref(j);
    }
}

#define NAME64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define WITH(extra) "{" TOP "," extra "}"
#define OPTION(text) "{" TOP ",\"options\":{" text "}}"
#define REST ",\"dataset\":\"d\",\"epochs\":1,\"batch_size\":1,\"lr\":1}"
#define NUMBERS(epochs, batch, lr)                                                                 \
    "{\"function_name\":\"f\",\"dataset\":\"d\",\"epochs\":" epochs ",\"batch_size\":" batch       \
    ",\"lr\":" lr "}"

#define NCCL "\"merge\":\"nccl\",\"static_parallelism\":true"
#define SHARED "\"process\":\"shared\",\"static_parallelism\":true"

TEST(a_shared_process_comes_back_where_it_was_asked_for)
{
    err e = ERR_INIT;
    request r;
    CHECK_OK(parse("{" TOP ",\"options\":{" SHARED
                   ",\"default_parallelism\":64,\"gpu\":{\"memory\":\"1Gi\"}}}",
                   &r, &e),
             e);
    CHECK_INT(r.process, PROCESS_SHARED);
    json_t *back = request_json(&r);
    CHECK_STR(json_string_value(json_object_get(json_object_get(back, "options"), "process")),
              "shared");
    json_decref(back);
    CHECK_OK(parse("{" TOP ",\"options\":{\"process\":\"own\"}}", &r, &e), e);
    CHECK_INT(r.process, PROCESS_OWN);
    back = request_json(&r); /* digests of before stay */
    CHECK(!json_object_get(json_object_get(back, "options"), "process"));
    json_decref(back);
}

TEST(refusals_name_the_field)
{
    static const struct {
        const char *text;
        err_code code;
        const char *part;
    } cases[] = {
        {"[]", ERR_INVALID, "JSON object"},
        {"{}", ERR_INVALID, "function_name: missing"},
        {"{\"function_name\":\"f\"}", ERR_INVALID, "dataset: missing"},
        {"{\"function_name\":5" REST, ERR_INVALID, "function_name: must be a text, not an integer"},
        {"{\"function_name\":\"\"" REST, ERR_INVALID, "function_name: must not be empty"},
        {"{\"function_name\":\"a/b\"" REST, ERR_INVALID, "function_name: only letters"},
        {"{\"function_name\":\"../x\"" REST, ERR_INVALID, "function_name: only letters"},
        {"{\"function_name\":\".hidden\"" REST, ERR_INVALID, "function_name: must begin"},
        {"{\"function_name\":\"a\\u0000b\"" REST, ERR_INVALID, "function_name: only letters"},
        {"{\"function_name\":\"" NAME64 "\"" REST, ERR_INVALID, "function_name: 64 characters"},
        {NUMBERS("0", "1", "1"), ERR_INVALID, "epochs: 0 is not within 1 to 100000"},
        {NUMBERS("-1", "1", "1"), ERR_INVALID, "epochs: -1"},
        {NUMBERS("1.5", "1", "1"), ERR_INVALID, "epochs: must be an integer, not a real number"},
        {NUMBERS("\"5\"", "1", "1"), ERR_INVALID, "epochs: must be an integer, not a text"},
        {NUMBERS("100001", "1", "1"), ERR_INVALID, "epochs: 100001"},
        {NUMBERS("1", "0", "1"), ERR_INVALID, "batch_size: 0"},
        {NUMBERS("1", "65537", "1"), ERR_INVALID, "batch_size: 65537"},
        {NUMBERS("1", "1", "0"), ERR_INVALID, "lr: 0 is not above 0"},
        {NUMBERS("1", "1", "-0.1"), ERR_INVALID, "lr: -0.1"},
        {NUMBERS("1", "1", "1e300"), ERR_INVALID, "lr: 1e+300"},
        {NUMBERS("1", "1", "null"), ERR_INVALID, "lr: must be a number, not null"},
        {WITH("\"colour\":1"), ERR_INVALID, "colour: unknown field"},
        {WITH("\"options\":{\"process\":\"both\"}"), ERR_INVALID,
         "options.process: must be \"own\" or \"shared\""},
        {WITH("\"options\":{\"process\":\"shared\"}"), ERR_INVALID,
         "needs options.static_parallelism"},
        {WITH("\"options\":{" SHARED ",\"default_parallelism\":65}"), ERR_INVALID,
         "65 functions in one process, at most 64"},
        {WITH("\"options\":{" SHARED ",\"merge\":\"nccl\"}"), ERR_UNSUPPORTED,
         "a shared process has one"},
        {WITH("\"options\":[]"), ERR_INVALID, "options: must be an object, not an array"},
        {WITH("\"model_type\":7"), ERR_INVALID, "model_type: must be a text"},
        {WITH("\"init\":\"a/../b\""), ERR_INVALID, "init: must begin"},
        {WITH("\"init\":\"/abs\""), ERR_INVALID, "init: must begin"},
        {WITH("\"init_without\":\"fc\""), ERR_INVALID, "init_without: goes with init"},
        {WITH("\"init\":\"a\",\"init_without\":[\"fc\"]"), ERR_INVALID,
         "init_without: must be a text, not an array"},
        {WITH("\"init\":\"a\",\"init_without\":\"fc,\""), ERR_INVALID,
         "init_without: \"fc,\" has an empty name"},
        {WITH("\"init\":\"a\",\"init_without\":\"f c\""), ERR_INVALID,
         "init_without: only letters"},
        {WITH("\"init\":\"a\",\"init_without\":\"a/c\""), ERR_INVALID,
         "init_without: only letters"},
        {OPTION("\"speed\":1"), ERR_INVALID, "options.speed: unknown field"},
        {OPTION("\"k\":0"), ERR_INVALID, "options.k: must be 1 or more"},
        {OPTION("\"k\":-2"), ERR_INVALID, "options.k: -2"},
        {OPTION("\"K\":1.0"), ERR_INVALID, "options.K: must be an integer"},
        {OPTION("\"k\":1,\"K\":1"), ERR_INVALID, "options.k: given as K too"},
        {OPTION("\"default_parallelism\":0"), ERR_INVALID, "options.default_parallelism: 0"},
        {OPTION("\"default_parallelism\":257"), ERR_INVALID, "options.default_parallelism: 257"},
        {OPTION("\"static_parallelism\":1"), ERR_INVALID,
         "options.static_parallelism: must be true"},
        {OPTION("\"validate_every\":-1"), ERR_INVALID, "options.validate_every: -1"},
        {OPTION("\"goal_accuracy\":0"), ERR_INVALID, "options.goal_accuracy: 0"},
        {OPTION("\"goal_accuracy\":100.5"), ERR_INVALID, "options.goal_accuracy: 100.5"},
        {OPTION("\"merge\":\"client\""), ERR_INVALID,
         "options.merge: must be \"database\", \"server\" or"},
        {OPTION("\"merge\":1"), ERR_INVALID, "options.merge: must be a text"},
        {OPTION("\"mode\":\"p2p\""), ERR_UNSUPPORTED, "options.mode: \"p2p\" is not built"},
        {OPTION("\"mode\":\"other\""), ERR_INVALID, "options.mode: must be \"ps\""},
        {OPTION("\"priority\":1001"), ERR_INVALID, "options.priority: 1001"},
        {OPTION("\"seed\":-1"), ERR_INVALID, "options.seed: -1"},
        {OPTION("\"seed\":9007199254740993"), ERR_INVALID, "options.seed: 9007199254740993"},
        {OPTION("\"optimizer_state\":\"keep\""), ERR_INVALID, "options.optimizer_state: must be"},
        {OPTION("\"on_loss\":\"ignore\""), ERR_INVALID, "options.on_loss: must be"},
        {OPTION("\"merge\":\"nccl\""), ERR_INVALID,
         "options.merge: \"nccl\" needs options.static_parallelism"},
        {OPTION(NCCL ",\"optimizer_state\":\"reset\""), ERR_UNSUPPORTED,
         "averages the optimizer's state"},
        {OPTION(NCCL ",\"device\":\"cpu\""), ERR_UNSUPPORTED, "options.device is \"cpu\""},
        {OPTION("\"device\":\"gpu\""), ERR_INVALID,
         "options.device: must be \"auto\", \"cpu\" or \"cuda\""},
        {OPTION("\"gpu\":1"), ERR_INVALID, "options.gpu: must be an object"},
        {OPTION("\"gpu\":{\"cores\":1}"), ERR_INVALID, "options.gpu.cores: unknown field"},
        {OPTION("\"gpu\":{\"memory\":2}"), ERR_INVALID, "options.gpu.memory: must be a text"},
        {OPTION("\"gpu\":{\"memory\":\"2GB\"}"), ERR_INVALID, "options.gpu.memory: \"2GB\""},
        {OPTION("\"gpu\":{\"threads\":101}"), ERR_INVALID, "options.gpu.threads: 101"},
        {OPTION("\"gpu\":{\"threads\":0}"), ERR_INVALID, "options.gpu.threads: 0"},
        {OPTION("\"gpu\":{\"precision\":\"fp16\"}"), ERR_INVALID, "options.gpu.precision: must"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        request r, before;
        memset(&r, 0x5a, sizeof r);
        before = r;
        json_t *body = json_loads(cases[i].text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!body)
            test_fail(__FILE__, __LINE__, "case %zu is no JSON: %s", i, cases[i].text);
        CHECK_ERR(request_parse(body, &r, &e), e, cases[i].code, cases[i].part);
        CHECK(memcmp(&r, &before, sizeof r) == 0); /* a refusal changes nothing */
        json_decref(body);
    }
}

TEST(a_share_of_a_gpu_comes_back_as_it_was_asked_for)
{
    static const char *const texts[] = {"{\"memory\":\"2Gi\",\"threads\":25}",
                                        "{\"threads\":100,\"precision\":\"bf16\"}",
                                        "{\"memory\":\"1537Mi\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        err e = ERR_INIT;
        request r;
        json_t *body = json_pack("{s:s, s:s, s:i, s:i, s:f, s:{s:o}}", "function_name", "f",
                                 "dataset", "d", "epochs", 1, "batch_size", 8, "lr", 0.1, "options",
                                 "gpu", json_loads(texts[i], 0, NULL));
        CHECK(body);
        CHECK_OK(request_parse(body, &r, &e), e);
        json_t *back = request_json(&r),
               *gpu = json_object_get(json_object_get(back, "options"), "gpu");
        CHECK(json_equal(gpu, json_object_get(json_object_get(body, "options"), "gpu")));
        json_decref(back);
        json_decref(body);
    }
}
