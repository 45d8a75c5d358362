/* test_kube_trainjob.c: what a TrainJob says of its job, and what its job is to do by it. */
#include "common/base/json_read.h"
#include "common/contract/request.h"
#include "controller/kube/kube_trainjob.h"
#include "test.h"

static const char now_text[] = "2026-01-02T03:04:05.000Z";

static const json_t *condition(const json_t *status, const char *type)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(status, "conditions"), i, one) {
        if (strcmp(json_string_value(json_object_get(one, "type")), type) == 0)
            return one;
    }
    test_fail(__FILE__, __LINE__, "no condition %s", type);
}

TEST(a_spec_is_a_request_and_back)
{
    cleanup_json json_t *spec =
        json_pack("{s:s, s:s, s:i, s:i, s:f, s:i, s:i, s:s, s:s, s:b, s:i, s:b, s:s}", "function",
                  "lenet", "dataset", "mnist", "epochs", 3, "batchSize", 64, "lr", 0.5, "k", 8,
                  "parallelism", 2, "mode", "ps", "merge", "server", "suspend", 0, "backoffLimit",
                  2, "staticParallelism", 1, "process", "shared");
    cleanup_json json_t *asked = kube_trainjob_request(spec);
    request r;
    err e = ERR_INIT;
    CHECK_OK(request_parse(asked, &r, &e), e); /* what steers is no part of it */
    CHECK_INT(r.k, 8);
    CHECK_INT(r.default_parallelism, 2);
    CHECK_INT(r.merge, MERGE_SERVER);
    CHECK_INT(r.backoff_limit, 2);
    CHECK_INT(r.process, PROCESS_SHARED);
    cleanup_json json_t *whole = request_json(&r), *back = kube_trainjob_spec(whole),
                        *again = kube_trainjob_request(back);
    CHECK_STR(text_of(back, "mode"), "ps"); /* a column of kubectl shows it */
    request same;
    CHECK_OK(request_parse(again, &same, &e), e);
    cleanup_json json_t *whole_again = request_json(&same);
    CHECK(json_equal(whole, whole_again));
}

static json_t *train_job(int suspend)
{
    return json_pack("{s:{s:s, s:i}, s:{s:b}}", "metadata", "name", "one", "generation", 4, "spec",
                     "suspend", suspend);
}

static json_t *task(const char *state)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "id", "j1", "state", state,
                     "reason", "", "message", "", "epoch", 3, "parallelism", 4, "accuracy", 98.765,
                     "validation_loss", 0.01234);
}

static void set_status(json_t *object, const json_t *status)
{
    json_object_set_new(object, "status", json_deep_copy(status));
}

TEST(a_status_says_what_happens)
{
    const kube_trainjob_gpu gpu = {"nvidia.com/gpu", 1};
    cleanup_json json_t *object = train_job(0), *running = task("running"),
                        *done = task("succeeded");
    json_object_set_new(running, "phase", json_string("training"));
    json_object_set_new(running, "start_ms",
                        json_pack("{s:i, s:i, s:n}", "queued", 3, "ps", 4, "total"));
    cleanup_json json_t *one = kube_trainjob_status(object, running, NULL, &gpu, now_text);
    CHECK_STR(text_of(one, "state"), "running");
    CHECK_STR(text_of(one, "accuracy"), "98.77");
    CHECK_STR(text_of(one, "loss"), "0.0123");
    CHECK_STR(text_of(one, "gpu"), "4 nvidia.com/gpu");
    CHECK_INT(json_integer_value(json_object_get(json_object_get(one, "startMilliseconds"), "ps")),
              4);
    CHECK_INT(json_integer_value(json_object_get(one, "observedGeneration")), 4);
    CHECK_STR(text_of(condition(one, "Training"), "status"), "True");
    CHECK_STR(text_of(condition(one, "Training"), "reason"), "Training");
    CHECK_STR(text_of(condition(one, "FunctionsReady"), "status"), "True");
    CHECK_STR(text_of(condition(one, "Complete"), "status"), "False");
    set_status(object, one);
    cleanup_json json_t *two =
        kube_trainjob_status(object, done, NULL, &gpu, "2027-01-01T00:00:00.000Z");
    CHECK(!json_object_get(two, "gpu"));
    CHECK_STR(text_of(condition(two, "Complete"), "status"), "True");
    CHECK_STR(text_of(condition(two, "Complete"), "lastTransitionTime"), "2027-01-01T00:00:00.000Z");
    /* did not change */
    CHECK_STR(text_of(condition(two, "Accepted"), "lastTransitionTime"), now_text);
    set_status(object, two);
    cleanup_json json_t *three =
        kube_trainjob_status(object, done, NULL, &gpu, "2028-01-01T00:00:00.000Z");
    CHECK(json_equal(two, three)); /* nothing to write */
}

TEST(what_was_asked_for_is_not_exact_and_not_degraded)
{
    static const char *const reasons[] = {"NcclOrder", "LeftOut", "OtherAlgorithms"};
    for (int i = 0; i < 3; i++) {
        cleanup_json json_t *object = train_job(0), *running = task("running");
        json_object_set_new(running, "averaging", json_string("between their GPUs"));
        json_object_set_new(running, "conditions",
                            json_pack("[{s:s,s:s,s:s,s:s}]", "type", "Exact", "status", "False",
                                      "reason", reasons[i], "message", "why"));
        cleanup_json json_t *one = kube_trainjob_status(object, running, NULL, NULL, now_text);
        CHECK_STR(text_of(one, "averaging"), "between their GPUs");
        CHECK_STR(text_of(condition(one, "Exact"), "status"), "False");
        CHECK_STR(text_of(condition(one, "Exact"), "reason"), reasons[i]);
        CHECK_STR(text_of(condition(one, "Degraded"), "status"), i == 2 ? "True" : "False");
    }
}

TEST(what_a_job_waits_for_stands_in_its_conditions)
{
    cleanup_json json_t *object = train_job(0), *starting = task("starting");
    json_object_set_new(starting, "conditions",
                        json_pack("[{s:s, s:s, s:s, s:s}, {s:s, s:s, s:s, s:s}]", "type", "Exact",
                                  "status", "True", "reason", "Exact", "message", "", "type",
                                  "PoolEmpty", "status", "True", "reason", "ImageNotPulled",
                                  "message", "the image nowhere/f:1 cannot be pulled"));
    cleanup_json json_t *status = kube_trainjob_status(object, starting, NULL, NULL, now_text);
    CHECK_STR(text_of(condition(status, "FunctionsReady"), "status"), "False");
    CHECK_STR(text_of(condition(status, "FunctionsReady"), "reason"), "ImageNotPulled");
    CHECK_CONTAINS(text_of(condition(status, "Degraded"), "message"), "nowhere/f:1");
}

TEST(a_gpu_that_is_not_used_degrades_a_job_and_hides_no_other_trouble)
{
    cleanup_json json_t *object = train_job(0), *running = task("running");
    json_t *conditions = json_pack("[{s:s, s:s, s:s, s:s}]", "type", "GpuUnused", "status", "True",
                                   "reason", "GpuUnused", "message", "no device");
    json_object_set_new(running, "conditions", conditions);
    cleanup_json json_t *slow = kube_trainjob_status(object, running, NULL, NULL, now_text);
    CHECK_STR(text_of(condition(slow, "Degraded"), "message"), "no device");
    CHECK_STR(text_of(condition(slow, "FunctionsReady"), "status"), "True");
    json_array_append_new(conditions,
                          json_pack("{s:s, s:s, s:s, s:s}", "type", "FunctionLost", "status",
                                    "True", "reason", "FunctionLost", "message", "function 1"));
    cleanup_json json_t *lost = kube_trainjob_status(object, running, NULL, NULL, now_text);
    CHECK_STR(text_of(condition(lost, "Degraded"), "message"), "function 1");
    CHECK_STR(text_of(condition(lost, "FunctionsReady"), "reason"), "FunctionLost");
}

/* The seconds until then are others each second, and each would be a write of the status. */
TEST(a_wait_for_a_retry_is_told_once)
{
    cleanup_json json_t *object = train_job(0), *queued = task("queued");
    json_object_set_new(queued, "reason", json_string("Retrying"));
    json_object_set_new(queued, "message",
                        json_string("retry 1 of 2 in 9 s, after NaNLoss: function 0"));
    json_object_set_new(queued, "retries", json_integer(1));
    json_object_set_new(queued, "conditions",
                        json_pack("[{s:s, s:s, s:s, s:s}]", "type", "Retried", "status", "True",
                                  "reason", "NaNLoss", "message",
                                  "retry 1 of 2 after NaNLoss: function 0"));
    cleanup_json json_t *status = kube_trainjob_status(object, queued, NULL, NULL, now_text);
    CHECK_STR(text_of(status, "message"), "retry 1 of 2 after NaNLoss: function 0");
    CHECK_INT(json_integer_value(json_object_get(status, "retries")), 1);
    CHECK_STR(text_of(condition(status, "Training"), "message"),
              "retry 1 of 2 after NaNLoss: function 0");
    CHECK_STR(text_of(condition(status, "FunctionsReady"), "message"),
              "retry 1 of 2 after NaNLoss: function 0");
    CHECK_STR(text_of(condition(status, "Degraded"), "status"), "False");
}

static json_t *queued_status(const char *reason, const char *message)
{
    cleanup_json json_t *object = train_job(0), *queued = task("queued");
    json_object_set_new(queued, "reason", json_string(reason));
    json_object_set_new(queued, "message", json_string(message));
    return kube_trainjob_status(object, queued, NULL, NULL, now_text);
}

/* Any start or end of another job would be another status of each that waits. */
TEST(a_queued_job_says_what_it_needs_and_not_what_others_hold)
{
    static const char *const said[][3] = {
        {"NoFreeSlot",
         "it needs 4 function slots, 3 of 8 are free, 2 jobs are before it (first b: "
         "NoGpuMemory); held by: a (5)",
         "it needs 4 function slots"},
        {"NoFreeSlot", "it needs 9 function slots and the cluster has 8",
         "it needs 9 function slots and the cluster has 8"},
        {"NoGpuMemory",
         "each of its 2 functions needs 3.0 GiB of GPU memory, and 1 find a place; free is 1.0 of "
         "8.0 GiB on GPU 0; slots are held by: a (1)",
         "each of its 2 functions needs 3.0 GiB of GPU memory, and 1 find a place"},
        {"NoGpuMemory",
         "a function of it needs 9.0 GiB of GPU memory, and the largest GPU has 8.0 GiB; slots are "
         "held by: a (1)",
         "a function of it needs 9.0 GiB of GPU memory, and the largest GPU has 8.0 GiB"},
        {"StoreDown", "the database, at a:1, does not answer; it is asked again",
         "the database, at a:1, does not answer; it is asked again"}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        cleanup_json json_t *status = queued_status(said[i][0], said[i][1]);
        CHECK_STR(text_of(status, "reason"), said[i][0]);
        CHECK_STR(text_of(status, "message"), said[i][2]);
        CHECK_STR(text_of(condition(status, "FunctionsReady"), "message"), said[i][2]);
        CHECK_STR(text_of(condition(status, "Training"), "message"), said[i][2]);
    }
    cleanup_json json_t *last = queued_status("NoFreeSlot", "it needs 1 function slot, 0 of 8 are "
                                                            "free, 9 jobs are before it; held by: "
                                                            "a (8)"),
                        *next = queued_status("NoFreeSlot", "it needs 1 function slot, 0 of 8 are "
                                                            "free, 0 jobs are before it; held by: "
                                                            "b (8)");
    CHECK(json_equal(last, next));
}

static void check_event(const json_t *object, const json_t *status, const char *type,
                        const char *reason, const char *message)
{
    cleanup_json json_t *event = kube_trainjob_event(object, status, now_text);
    CHECK(event);
    CHECK_STR(text_of(event, "type"), type);
    CHECK_STR(text_of(event, "reason"), reason);
    CHECK_STR(text_of(event, "message"), message);
    CHECK_STR(text_of(json_object_get(event, "involvedObject"), "name"), "one");
}

TEST(a_step_of_a_job_is_an_event)
{
    cleanup_json json_t *object = train_job(0), *running = task("running"),
                        *queued = task("queued"), *done = task("succeeded");
    json_object_set_new(running, "reason", json_string("Training"));
    cleanup_json json_t *one = kube_trainjob_status(object, running, NULL, NULL, now_text);
    check_event(object, one, "Normal", "Training", "");
    set_status(object, one);
    json_object_set_new(running, "epoch", json_integer(4));
    cleanup_json json_t *two = kube_trainjob_status(object, running, NULL, NULL, now_text);
    CHECK(!kube_trainjob_event(object, two, now_text)); /* an epoch is none */
    json_object_set_new(running, "conditions",
                        json_pack("[{s:s, s:s, s:s, s:s}]", "type", "PSRestarted", "status", "True",
                                  "reason", "PSRestarted", "message", "its node is gone"));
    cleanup_json json_t *three = kube_trainjob_status(object, running, NULL, NULL, now_text);
    check_event(object, three, "Warning", "PSRestarted", "its node is gone");
    set_status(object, three);
    CHECK(!kube_trainjob_event(object, three, now_text));
    json_object_set_new(queued, "reason", json_string("Retrying"));
    json_object_set_new(queued, "retries", json_integer(1));
    json_object_set_new(queued, "conditions",
                        json_pack("[{s:s, s:s, s:s, s:s}]", "type", "Retried", "status", "True",
                                  "reason", "NaNLoss", "message", "retry 1 of 2 after NaNLoss"));
    cleanup_json json_t *four = kube_trainjob_status(object, queued, NULL, NULL, now_text);
    check_event(object, four, "Warning", "Retrying", "retry 1 of 2 after NaNLoss");
    set_status(object, four);
    json_object_set_new(done, "reason", json_string("Completed"));
    cleanup_json json_t *five = kube_trainjob_status(object, done, NULL, NULL, now_text);
    check_event(object, five, "Normal", "Completed", "");
    cleanup_json json_t *first = kube_trainjob_event(object, five, now_text),
                        *second = kube_trainjob_event(object, five, "2027-01-01T00:00:00.000Z");
    CHECK_STR(text_of(json_object_get(first, "metadata"), "name"),
              text_of(json_object_get(second, "metadata"), "name"));
}

TEST(a_refusal_and_a_suspension_are_told)
{
    err why = ERR_INIT;
    err_set(&why, ERR_NOT_FOUND, "there is no function \"x\"");
    cleanup_json json_t *object = train_job(0), *held = train_job(1), *stopped = task("suspended");
    cleanup_json json_t *refused = kube_trainjob_status(object, NULL, &why, NULL, now_text);
    CHECK_STR(text_of(condition(refused, "Accepted"), "status"), "False");
    CHECK_STR(text_of(condition(refused, "Accepted"), "message"), "there is no function \"x\"");
    cleanup_json json_t *suspended = kube_trainjob_status(held, stopped, NULL, NULL, now_text);
    CHECK_STR(text_of(suspended, "state"), "suspended");
    CHECK_STR(text_of(condition(suspended, "Suspended"), "status"), "True");
    CHECK_STR(text_of(condition(suspended, "Failed"), "status"), "False");
    cleanup_json json_t *never = kube_trainjob_status(held, NULL, NULL, NULL, now_text);
    CHECK_STR(text_of(condition(never, "Accepted"), "status"), "True");
    CHECK_STR(text_of(never, "state"), "suspended");
}

/* `was`: the state that the status has; `seen`: of the present generation. */
static kube_trainjob_step next(int suspend, const char *was, bool seen, const char *state)
{
    cleanup_json json_t *object = train_job(suspend), *now = task(state);
    json_object_set_new(object, "status",
                        json_pack("{s:s*, s:i}", "state", was, "observedGeneration", seen ? 4 : 3));
    return kube_trainjob_next(object, now, 0);
}

TEST(a_mode_that_is_not_built_is_refused_as_the_api_does)
{
    cleanup_json json_t *object = train_job(0),
                        *spec = json_pack("{s:s, s:s, s:i, s:i, s:f, s:s}", "function", "lenet",
                                          "dataset", "mnist", "epochs", 3, "batchSize", 64, "lr",
                                          0.5, "mode", "p2p"),
                        *asked = kube_trainjob_request(spec);
    request r;
    err e = ERR_INIT;
    CHECK_ERR(request_parse(asked, &r, &e), e, ERR_UNSUPPORTED, "options.mode: \"p2p\"");
    cleanup_json json_t *refused = kube_trainjob_status(object, NULL, &e, NULL, now_text);
    CHECK_STR(text_of(condition(refused, "Accepted"), "status"), "False");
    CHECK_STR(text_of(condition(refused, "Accepted"), "reason"), "Unsupported");
    CHECK_CONTAINS(text_of(condition(refused, "Accepted"), "message"), "not built");
}

/* What is wrong with the platform is not said of the spec. */
TEST(what_passes_by_itself_is_no_fault_of_the_spec)
{
    static const struct {
        err_code code;
        const char *state, *reason;
    } known[] = {
        {ERR_INVALID, "refused", "InvalidSpec"},     {ERR_LIMIT, "refused", "InvalidSpec"},
        {ERR_NOT_FOUND, "refused", "NotFound"},      {ERR_CONFLICT, "waiting", "Conflict"},
        {ERR_UNAVAILABLE, "waiting", "Unavailable"}, {ERR_TIMEOUT, "waiting", "Unavailable"},
        {ERR_IO, "waiting", "Unavailable"}};
    cleanup_json json_t *object = train_job(0);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        err e = ERR_INIT;
        err_set(&e, known[i].code, "in words");
        cleanup_json json_t *status = kube_trainjob_status(object, NULL, &e, NULL, now_text);
        CHECK_STR(text_of(status, "state"), known[i].state);
        CHECK_STR(text_of(status, "reason"), known[i].reason);
        CHECK_STR(text_of(condition(status, "Accepted"), "status"), "False");
        CHECK_STR(text_of(condition(status, "Accepted"), "reason"), known[i].reason);
        CHECK_STR(text_of(condition(status, "Accepted"), "message"), "in words");
        cleanup_json json_t *event = kube_trainjob_event(object, status, now_text);
        CHECK_STR(text_of(event, "type"), "Warning");
    }
}

TEST(suspended_here_or_there_both_agree)
{
    CHECK_INT(next(0, "running", true, "running"), TRAINJOB_KEEP);
    CHECK_INT(next(1, "running", false, "running"), TRAINJOB_SUSPEND); /* in the spec */
    /* still on its way to the merge */
    CHECK_INT(next(1, "running", true, "running"), TRAINJOB_SUSPEND);
    CHECK_INT(next(1, "running", true, "suspended"), TRAINJOB_KEEP);
    CHECK_INT(next(0, "suspended", false, "suspended"), TRAINJOB_RESUME);
    CHECK_INT(next(0, "suspended", false, "queued"), TRAINJOB_KEEP);
    CHECK_INT(next(0, "running", true, "suspended"), TRAINJOB_NOTE_SUSPENDED); /* through the API */
    /* likewise, before there was a status by which anybody could have resumed it */
    CHECK_INT(next(0, NULL, false, "suspended"), TRAINJOB_NOTE_SUSPENDED);
    CHECK_INT(next(1, "suspended", true, "queued"), TRAINJOB_NOTE_RESUMED);
    CHECK_INT(next(1, "cancelled", true, "queued"), TRAINJOB_NOTE_RESUMED);
    /* again, before we looked */
    CHECK_INT(next(1, "suspended", false, "running"), TRAINJOB_SUSPEND);
    CHECK_INT(next(1, "running", true, "succeeded"), TRAINJOB_KEEP);
}

TEST(a_finished_one_has_its_time_to_live)
{
    cleanup_json json_t *object = train_job(0), *done = task("failed");
    json_object_set_new(done, "finished", json_string("2026-01-02T03:04:05.000Z"));
    const int64_t finished_ms = INT64_C(1767323045000);
    CHECK_INT(kube_trainjob_next(object, done, finished_ms + 100000), TRAINJOB_KEEP);
    json_object_set_new(json_object_get(object, "spec"), "ttlSecondsAfterFinished",
                        json_integer(60));
    CHECK_INT(kube_trainjob_next(object, done, finished_ms + 59000), TRAINJOB_KEEP);
    CHECK_INT(kube_trainjob_next(object, done, finished_ms + 60000), TRAINJOB_EXPIRE);
}

TEST(a_finished_one_rests_until_its_time_to_live_is_over)
{
    const int64_t finished_ms = INT64_C(1767323045000);
    cleanup_json json_t *object = train_job(0), *done = task("succeeded"), *runs = task("running");
    json_object_set_new(done, "finished", json_string("2026-01-02T03:04:05.000Z"));
    json_object_set_new(object, "status", kube_trainjob_status(object, runs, NULL, NULL, now_text));
    CHECK_INT(kube_trainjob_rests_ms(object, finished_ms), 0);
    json_object_set_new(object, "status", kube_trainjob_status(object, done, NULL, NULL, now_text));
    CHECK(kube_trainjob_rests_ms(object, finished_ms) == INT64_MAX);
    json_object_set_new(json_object_get(object, "spec"), "ttlSecondsAfterFinished",
                        json_integer(60));
    CHECK_INT(kube_trainjob_rests_ms(object, finished_ms + 20000), 40000);
    CHECK_INT(kube_trainjob_rests_ms(object, finished_ms + 60000), 0);
    json_object_del(json_object_get(object, "spec"), "ttlSecondsAfterFinished");
    json_object_set_new(json_object_get(object, "metadata"), "generation", json_integer(7));
    CHECK_INT(kube_trainjob_rests_ms(object, finished_ms), 0); /* its spec was changed */
}
