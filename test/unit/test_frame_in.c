/* test_frame_in.c: what controllers and functions say to a job, and what kubeml-ps takes it for: of
 * each type of message a form that is right, and what is refused. */
#include "common/base/json_read.h"
#include "common/modelstore/layout.h"
#include "common/net/wire.h"
#include "ps/job/frame_in.h"
#include "test.h"

static const frame_from third = {.function = 3, .incarnation = 7};
static const frame_from all_in_one = {.function = 0, .incarnation = 7, .shared = true};

/* Texts of the frames are borrowed: they stay until the case has ended. */
static json_t *parse(const char *text)
{
    json_error_t problem;
    json_t *m = json_loads(text, 0, &problem);
    if (!m)
        test_fail(__FILE__, __LINE__, "%s: %s", text, problem.text);
    return m;
}

static void take(json_t *m, const frame_from *from, frame_in *in)
{
    err e = ERR_INIT;
    CHECK_OK(from ? frame_in_function(m, from, in, &e) : frame_in_controller(m, in, &e), e);
}

/* ---- what is right --------------------------------------------------------------------------- */

TEST(controllers)
{
    cleanup_json json_t *m = parse("{\"type\":\"attach\",\"id\":\"j\",\"after_epoch\":4}");
    frame_in in;
    take(m, NULL, &in);
    CHECK_INT(in.kind, FRAME_ATTACH);
    CHECK_STR(in.job, "j");
    CHECK_INT(in.after_epoch, 4);
    cleanup_json json_t *first = parse("{\"type\":\"attach\",\"id\":\"j\"}");
    take(first, NULL, &in);
    CHECK_INT(in.after_epoch, -1);

    cleanup_json json_t *lost = parse("{\"type\":\"lost\",\"function\":2,\"incarnation\":5,"
                                      "\"reason\":\"OutOfMemory\",\"message\":\"m\"}");
    take(lost, NULL, &in);
    CHECK_INT(in.kind, FRAME_LOST);
    CHECK(in.event.type == ROUND_LOST && in.event.ended);
    CHECK_INT(in.event.function, 2);
    CHECK_INT(in.event.incarnation, 5);
    CHECK_STR(in.event.reason, "OutOfMemory");

    cleanup_json json_t *stop = parse("{\"type\":\"stop\",\"reason\":\"enough\"}");
    take(stop, NULL, &in);
    CHECK(in.kind == FRAME_STOP && in.event.type == ROUND_STOP);
    CHECK_STR(in.event.message, "enough");
    cleanup_json json_t *suspend = parse("{\"type\":\"stop\",\"suspend\":true}");
    take(suspend, NULL, &in);
    CHECK(in.kind == FRAME_STOP && in.event.type == ROUND_SUSPEND && !in.event.message);

    cleanup_json json_t *more = parse("{\"type\":\"parallelism\",\"epoch\":1,\"value\":8}");
    take(more, NULL, &in);
    CHECK(in.kind == FRAME_PARALLELISM && in.event.type == ROUND_PARALLELISM);
    CHECK_INT(in.event.epoch, 1);
    CHECK_INT(in.event.value, 8);
}

TEST(hello)
{
    char text[256];
    frame_in in;
    err e = ERR_INIT;
    snprintf(text, sizeof text,
             "{\"type\":\"hello\",\"token\":\"t\",\"job\":\"j\",\"function\":3,\"incarnation\":7,"
             "\"pid\":1,\"cpu\":\"avx2\",\"threads\":2,\"abi\":%d}",
             WIRE_ABI);
    cleanup_json json_t *m = parse(text);
    CHECK_OK(frame_in_hello(m, "j", &in, &e), e);
    CHECK(in.kind == FRAME_HELLO && in.event.type == ROUND_HELLO && in.count == 1);
    CHECK_INT(in.event.function, 3);
    CHECK_INT(in.event.incarnation, 7);
    CHECK_INT(json_integer_value(json_object_get(in.about, "threads")), 2);
    CHECK_STR(json_string_value(json_object_get(in.about, "cpu")), "avx2");
    frame_in_free(&in);

    CHECK_ERR(frame_in_hello(m, "k", &in, &e), e, ERR_NOT_FOUND, "another job");
    json_object_set_new(m, "function", json_integer(ROUND_FUNCTIONS_MAX));
    e = (err)ERR_INIT;
    CHECK_ERR(frame_in_hello(m, "j", &in, &e), e, ERR_INVALID, "hello: function 256");
    json_object_set_new(m, "abi", json_integer(WIRE_ABI + 1));
    e = (err)ERR_INIT;
    CHECK_ERR(frame_in_hello(m, "j", &in, &e), e, ERR_UNSUPPORTED, "abi");
    json_object_del(m, "cpu");
    e = (err)ERR_INIT;
    CHECK_ERR(frame_in_hello(m, "j", &in, &e), e, ERR_INVALID, "hello: ");
}

/* `ready` of a model of two floats; its digest is told as `digest`, NULL: rightly. */
static json_t *ready_frame(const char *digest)
{
    char hex[20];
    err e = ERR_INIT;
    cleanup_layout layout l = {0};
    const layout_entry entries[] = {{.name = "w", .kind = LAYOUT_PARAM, .dims = {2}, .rank = 1}};
    CHECK_OK(layout_make(entries, 1, &l, &e), e);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)l.digest);
    return json_pack("{s:s,s:o,s:i,s:s,s:s}", "type", "ready", "layout", layout_json(&l),
                     "parameters", 2, "layout_digest", digest ? digest : hex, "algorithms", "a");
}

TEST(ready)
{
    frame_in in;
    err e = ERR_INIT;
    cleanup_json json_t *m = ready_frame(NULL), *other = ready_frame("0123456789abcdef");
    CHECK_OK(frame_in_function(m, &third, &in, &e), e);
    CHECK(in.kind == FRAME_READY && in.events->type == ROUND_READY && in.count == 1);
    CHECK_INT(in.events->function, 3);
    CHECK_INT(in.events->incarnation, 7);
    CHECK_STR(in.events->layout, in.layout_digest);
    CHECK_CONTAINS(in.layout, "\"w\"");
    CHECK_STR(json_string_value(in.algorithms), "a");
    CHECK(!in.needs_losses && !in.averaging.offer.handle);
    CHECK(in.averaging.type == AVERAGING_OFFER && in.averaging.function == 3);
    frame_in_free(&in);

    json_object_set_new(m, "needs_losses", json_true());
    json_object_set_new(m, "loan", json_string("h"));
    json_object_set_new(m, "no_rank", json_string("no NCCL"));
    CHECK_OK(frame_in_function(m, &third, &in, &e), e);
    CHECK(in.needs_losses);
    CHECK_STR(in.averaging.offer.handle, "h");
    CHECK_STR(in.averaging.offer.no_gpu, "no NCCL");
    frame_in_free(&in);

    CHECK_ERR(frame_in_function(other, &third, &in, &e), e, ERR_CORRUPT,
              "layout_digest is 0123456789abcdef");
    char long_handle[AVERAGING_HANDLE_BYTES + 1];
    memset(long_handle, 'h', sizeof long_handle - 1);
    long_handle[sizeof long_handle - 1] = '\0';
    json_object_set_new(m, "loan", json_string(long_handle));
    e = (err)ERR_INIT;
    CHECK_ERR(frame_in_function(m, &third, &in, &e), e, ERR_INVALID, "ready: ");
}

#define SECONDS "\"seconds\":{\"fetch\":1,\"load\":2,\"convert\":3,\"train\":4,\"publish\":5}"
#define COUNTS                                                                                     \
    "\"samples\":10,\"sample_begin\":20,\"sample_end\":30,\"loss_sum\":1.5,\"batches\":4"

TEST(published)
{
    cleanup_json json_t *m =
        parse("{\"type\":\"published\",\"epoch\":2,\"round\":1," COUNTS "," SECONDS "}");
    frame_in in;
    take(m, &third, &in);
    CHECK(in.kind == FRAME_PUBLISHED && in.event.type == ROUND_PUBLISHED);
    CHECK_INT(in.event.function, 3);
    CHECK_INT(in.event.epoch, 2);
    CHECK_INT(in.event.round, 1);
    CHECK_INT(in.event.samples, 10);
    CHECK_INT(in.event.sample_begin, 20);
    CHECK_INT(in.event.sample_end, 30);
    CHECK_INT(in.event.batches, 4);
    CHECK_NEAR(in.event.loss_sum, 1.5, 0);
    CHECK_NEAR(in.seconds.fetch + 10 * in.seconds.convert + 100 * in.seconds.publish, 531, 0);
    CHECK(in.averaging.type == AVERAGING_PUBLISHED && !in.averaging.sum);

    json_object_set_new(m, "seal", json_pack("{s:s,s:i}", "sum", "9", "step", 5));
    take(m, &third, &in);
    CHECK_STR(in.averaging.sum, "9");
    CHECK_INT(in.averaging.step, 5);
    CHECK_INT(in.averaging.epoch, 2);
    CHECK_INT(in.averaging.round, 1);
}

TEST(what_a_shared_process_says_is_said_by_each_of_its_functions)
{
    cleanup_json json_t *m =
        parse("{\"type\":\"published\",\"epoch\":2,\"round\":1," SECONDS
              ",\"shares\":[{\"function\":0," COUNTS "},{\"function\":1," COUNTS "}]}");
    cleanup_json json_t *v = parse("{\"type\":\"validated\",\"epoch\":2,\"shares\":["
                                   "{\"function\":1,\"samples\":4,\"loss_sum\":1,\"correct\":3}]}");
    frame_in in;
    take(m, &all_in_one, &in);
    CHECK_INT(in.count, 2);
    for (int f = 0; f < 2; f++) {
        CHECK(in.events[f].type == ROUND_PUBLISHED && in.events[f].function == f);
        CHECK_INT(in.events[f].incarnation, 7);
        CHECK_INT(in.events[f].epoch, 2);
        CHECK_INT(in.events[f].samples, 10);
    }
    frame_in_free(&in);
    take(v, &all_in_one, &in);
    CHECK_INT(in.count, 1);
    CHECK(in.events[0].type == ROUND_VALIDATED && in.events[0].function == 1);
    CHECK_INT(in.events[0].correct, 3);
    frame_in_free(&in);
}

TEST(validated_heartbeat_failed_initialised)
{
    cleanup_json json_t *v = parse("{\"type\":\"validated\",\"epoch\":2,\"samples\":4,"
                                   "\"loss_sum\":0.5,\"correct\":3}");
    frame_in in;
    take(v, &third, &in);
    CHECK(in.kind == FRAME_VALIDATED && in.event.type == ROUND_VALIDATED);
    CHECK_INT(in.event.samples, 4);
    CHECK_INT(in.event.correct, 3);

    cleanup_json json_t *h = parse("{\"type\":\"heartbeat\",\"phase\":\"train\",\"epoch\":1,"
                                   "\"round\":2,\"batches\":9,\"begun\":true,\"waits\":\"store\","
                                   "\"usage\":{},\"later\":1}");
    take(h, &third, &in);
    CHECK(in.kind == FRAME_HEARTBEAT && in.event.type == ROUND_HEARTBEAT && in.begun && in.usage);
    CHECK_STR(in.event.phase, "train");
    CHECK_STR(in.event.message, "store");
    CHECK_INT(in.event.batches, 9);
    cleanup_json json_t *quiet =
        parse("{\"type\":\"heartbeat\",\"phase\":\"load\",\"epoch\":0,\"round\":0,\"batches\":0}");
    take(quiet, &third, &in);
    CHECK(!in.begun && !in.usage && !in.event.message);

    cleanup_json json_t *f = parse("{\"type\":\"failed\",\"code\":\"no-memory\","
                                   "\"reason\":\"GpuMemory\",\"message\":\"m\"}");
    take(f, &third, &in);
    CHECK(in.kind == FRAME_FAILED && in.event.type == ROUND_FAILED && in.event.code == ERR_NOMEM);
    CHECK_STR(in.event.reason, "GpuMemory");

    cleanup_json json_t *i = parse("{\"type\":\"initialised\"}");
    take(i, &third, &in);
    CHECK(in.kind == FRAME_INITIALISED && in.count == 0);
}

TEST(answers_of_the_averaging_on_gpus)
{
    static const struct {
        const char *text;
        averaging_event want;
    } cases[] = {{"{\"type\":\"leads\",\"mean\":\"h\"}", {.type = AVERAGING_LEADS, .handle = "h"}},
                 {"{\"type\":\"leads\",\"message\":\"m\"}",
                  {.type = AVERAGING_LEADS, .code = ERR_UNAVAILABLE, .message = "m"}},
                 {"{\"type\":\"averaged\",\"ask\":2,\"sum\":\"5\",\"step\":9,\"checksum\":\"7\"}",
                  {.type = AVERAGING_AVERAGED,
                   .ask = 2,
                   .sum = "5",
                   .step = 9,
                   .checksum = "7",
                   .about = -1,
                   .message = ""}},
                 {"{\"type\":\"averaged\",\"ask\":2,\"code\":\"corrupt\",\"function\":1,"
                  "\"message\":\"m\",\"unpublished\":true}",
                  {.type = AVERAGING_AVERAGED,
                   .ask = 2,
                   .code = ERR_CORRUPT,
                   .about = 1,
                   .message = "m",
                   .unpublished = true}},
                 {"{\"type\":\"identified\",\"set\":3,\"id\":\"x\"}",
                  {.type = AVERAGING_IDENTIFIED, .set = 3, .id = "x", .message = ""}},
                 {"{\"type\":\"connected\",\"set\":3}",
                  {.type = AVERAGING_CONNECTED, .set = 3, .message = ""}},
                 {"{\"type\":\"connected\",\"set\":3,\"code\":\"timeout\",\"message\":\"m\"}",
                  {.type = AVERAGING_CONNECTED, .set = 3, .code = ERR_TIMEOUT, .message = "m"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cleanup_json json_t *m = parse(cases[i].text);
        const averaging_event *want = &cases[i].want, *got;
        frame_in in;
        take(m, &third, &in);
        got = &in.averaging;
        CHECK(in.kind == FRAME_AVERAGING && in.count == 0);
        CHECK(got->type == want->type && got->function == 3 && got->incarnation == 7);
        CHECK(got->ask == want->ask && got->set == want->set && got->step == want->step);
        CHECK(got->code == want->code && got->about == want->about &&
              got->unpublished == want->unpublished);
        const char *const texts[][2] = {{got->handle, want->handle},
                                        {got->sum, want->sum},
                                        {got->checksum, want->checksum},
                                        {got->id, want->id},
                                        {got->message, want->message}};
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            CHECK(!texts[t][0] == !texts[t][1] &&
                  (!texts[t][0] || strcmp(texts[t][0], texts[t][1]) == 0));
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

TEST(what_is_refused)
{
    static const struct {
        const frame_from *from; /* NULL: a controller */
        const char *text, *says;
    } cases[] = {
        {NULL, "{\"type\":\"attach\"}", "id"},
        {NULL, "{\"type\":\"attach\",\"id\":\"j\",\"more\":1}", "more"},
        {NULL, "{\"type\":\"lost\",\"function\":2,\"incarnation\":5,\"reason\":\"r\"}", "lost: "},
        {NULL, "{\"type\":\"parallelism\",\"epoch\":1}", "parallelism: "},
        {NULL, "{\"type\":\"ready\"}", "a controller says ready: not understood"},
        {NULL, "{}", "a controller says : not understood"},
        {&third, "{\"type\":\"stop\"}", "a message of type \"stop\" is not understood"},
        {&third, "{\"type\":7}", "a message of type \"\" is not understood"},
        {&third, "{\"type\":\"ready\",\"layout\":{}}", "ready: "},
        {&third, "{\"type\":\"published\",\"epoch\":2,\"round\":1," COUNTS "}", "published: "},
        {&third, "{\"type\":\"published\",\"epoch\":2,\"round\":1," COUNTS "," SECONDS ",\"x\":1}",
         "published: "},
        {&third,
         "{\"type\":\"published\",\"epoch\":2,\"round\":1," SECONDS
         ",\"samples\":-1,\"sample_begin\":0,\"sample_end\":0,\"loss_sum\":1.5,"
         "\"batches\":1}",
         "published: a count out of range"},
        {&third,
         "{\"type\":\"published\",\"epoch\":2,\"round\":1," SECONDS
         ",\"samples\":1,\"sample_begin\":3,\"sample_end\":2,\"loss_sum\":1.5,"
         "\"batches\":1}",
         "published: a count out of range"},
        {&third,
         "{\"type\":\"published\",\"epoch\":2,\"round\":1," SECONDS
         ",\"samples\":1,\"sample_begin\":0,\"sample_end\":1,\"loss_sum\":1.5,"
         "\"batches\":4294967296}",
         "published: a count out of range"},
        {&third,
         "{\"type\":\"published\",\"epoch\":2,\"round\":1," COUNTS "," SECONDS
         ",\"seal\":{\"sum\":\"1\"}}",
         "published: seal"},
        {&third,
         "{\"type\":\"published\",\"epoch\":2,\"round\":1," COUNTS "," SECONDS
         ",\"seal\":{\"sum\":\"12345678901234567890\",\"step\":1}}",
         "published: seal"},
        {&all_in_one, "{\"type\":\"published\",\"epoch\":2,\"round\":1," COUNTS "," SECONDS "}",
         "published: "},
        {&all_in_one, "{\"type\":\"published\",\"epoch\":2,\"round\":1,\"shares\":{}," SECONDS "}",
         "published: shares is no list"},
        {&all_in_one,
         "{\"type\":\"published\",\"epoch\":2,\"round\":1," SECONDS
         ",\"shares\":[{\"function\":0," COUNTS "},{\"function\":1}]}",
         "published: shares: "},
        {&third, "{\"type\":\"validated\",\"epoch\":2,\"samples\":4,\"loss_sum\":0.5}",
         "validated: "},
        {&third,
         "{\"type\":\"validated\",\"epoch\":2,\"samples\":4,\"loss_sum\":0.5,\"correct\":5}",
         "validated: a count out of range"},
        {&all_in_one, "{\"type\":\"validated\",\"epoch\":2,\"shares\":1}",
         "validated: shares is no list"},
        {&all_in_one,
         "{\"type\":\"validated\",\"epoch\":2,\"shares\":["
         "{\"function\":1,\"samples\":-4,\"loss_sum\":1,\"correct\":-5}]}",
         "validated: shares: a count out of range"},
        {&third, "{\"type\":\"heartbeat\",\"phase\":\"train\",\"epoch\":1,\"round\":2}",
         "heartbeat: "},
        {&third, "{\"type\":\"failed\",\"reason\":\"r\"}", "failed: "},
        {&third, "{\"type\":\"leads\"}", "leads: neither its mean nor why not"},
        {&third, "{\"type\":\"leads\",\"mean\":\"h\",\"message\":\"m\"}",
         "leads: neither its mean nor why not"},
        {&third, "{\"type\":\"averaged\",\"sum\":\"5\",\"step\":9,\"checksum\":\"7\"}",
         "averaged: "},
        {&third, "{\"type\":\"averaged\",\"ask\":2,\"sum\":\"5\"}",
         "averaged: neither a mean nor why not"},
        {&third, "{\"type\":\"identified\",\"set\":3}", "identified: neither an id nor why not"},
        {&third, "{\"type\":\"identified\",\"id\":\"x\"}", "identified: "},
        {&third, "{\"type\":\"connected\"}", "connected: "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cleanup_json json_t *m = parse(cases[i].text);
        frame_in in;
        err e = ERR_INIT;
        if (cases[i].from)
            CHECK_ERR(frame_in_function(m, cases[i].from, &in, &e), e, ERR_INVALID, cases[i].says);
        else
            CHECK_ERR(frame_in_controller(m, &in, &e), e, ERR_INVALID, cases[i].says);
    }
}

TEST(who_attaches_and_is_refused_is_answered)
{
    cleanup_json json_t *m = parse("{\"type\":\"attach\"}");
    frame_in in;
    err e = ERR_INIT;
    CHECK_ERR(frame_in_controller(m, &in, &e), e, ERR_INVALID, "id");
    CHECK_INT(in.kind, FRAME_ATTACH);
}
