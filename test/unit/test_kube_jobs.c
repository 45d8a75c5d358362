/* test_kube_jobs.c: TrainJobs and jobs kept alike, and the lease of the leader. */
#include <stdatomic.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "../../controller/kube_jobs.h"
#include "../../controller/kube_lease.h"
#include "../../controller/kube_pods.h"
#include "clock.h"
#include "fake_kube.h"
#include "json_read.h"
#include "request.h"
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

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
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
    CHECK_STR(text(back, "mode"), "ps"); /* a column of kubectl shows it */
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
    CHECK_STR(text(one, "state"), "running");
    CHECK_STR(text(one, "accuracy"), "98.77");
    CHECK_STR(text(one, "loss"), "0.0123");
    CHECK_STR(text(one, "gpu"), "4 nvidia.com/gpu");
    CHECK_INT(json_integer_value(json_object_get(json_object_get(one, "startMilliseconds"), "ps")),
              4);
    CHECK_INT(json_integer_value(json_object_get(one, "observedGeneration")), 4);
    CHECK_STR(text(condition(one, "Training"), "status"), "True");
    CHECK_STR(text(condition(one, "Training"), "reason"), "Training");
    CHECK_STR(text(condition(one, "FunctionsReady"), "status"), "True");
    CHECK_STR(text(condition(one, "Complete"), "status"), "False");
    set_status(object, one);
    cleanup_json json_t *two =
        kube_trainjob_status(object, done, NULL, &gpu, "2027-01-01T00:00:00.000Z");
    CHECK(!json_object_get(two, "gpu"));
    CHECK_STR(text(condition(two, "Complete"), "status"), "True");
    CHECK_STR(text(condition(two, "Complete"), "lastTransitionTime"), "2027-01-01T00:00:00.000Z");
    /* did not change */
    CHECK_STR(text(condition(two, "Accepted"), "lastTransitionTime"), now_text);
    set_status(object, two);
    cleanup_json json_t *three =
        kube_trainjob_status(object, done, NULL, &gpu, "2028-01-01T00:00:00.000Z");
    CHECK(json_equal(two, three)); /* nothing to write */
}

TEST(what_was_averaged_by_nccl_is_not_exact_and_not_degraded)
{
    static const char *const reasons[] = {"NcclOrder", "OtherAlgorithms"};
    for (int i = 0; i < 2; i++) {
        cleanup_json json_t *object = train_job(0), *running = task("running");
        json_object_set_new(running, "averaging", json_string("between their GPUs"));
        json_object_set_new(running, "conditions",
                            json_pack("[{s:s,s:s,s:s,s:s}]", "type", "Exact", "status", "False",
                                      "reason", reasons[i], "message", "why"));
        cleanup_json json_t *one = kube_trainjob_status(object, running, NULL, NULL, now_text);
        CHECK_STR(text(one, "averaging"), "between their GPUs");
        CHECK_STR(text(condition(one, "Exact"), "status"), "False");
        CHECK_STR(text(condition(one, "Exact"), "reason"), reasons[i]);
        CHECK_STR(text(condition(one, "Degraded"), "status"), i ? "True" : "False");
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
    CHECK_STR(text(condition(status, "FunctionsReady"), "status"), "False");
    CHECK_STR(text(condition(status, "FunctionsReady"), "reason"), "ImageNotPulled");
    CHECK_CONTAINS(text(condition(status, "Degraded"), "message"), "nowhere/f:1");
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
    CHECK_STR(text(status, "message"), "retry 1 of 2 after NaNLoss: function 0");
    CHECK_INT(json_integer_value(json_object_get(status, "retries")), 1);
    CHECK_STR(text(condition(status, "Training"), "message"),
              "retry 1 of 2 after NaNLoss: function 0");
    CHECK_STR(text(condition(status, "FunctionsReady"), "message"),
              "retry 1 of 2 after NaNLoss: function 0");
    CHECK_STR(text(condition(status, "Degraded"), "status"), "False");
}

static void check_event(const json_t *object, const json_t *status, const char *type,
                        const char *reason, const char *message)
{
    cleanup_json json_t *event = kube_trainjob_event(object, status, now_text);
    CHECK(event);
    CHECK_STR(text(event, "type"), type);
    CHECK_STR(text(event, "reason"), reason);
    CHECK_STR(text(event, "message"), message);
    CHECK_STR(text(json_object_get(event, "involvedObject"), "name"), "one");
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
    CHECK_STR(text(json_object_get(first, "metadata"), "name"),
              text(json_object_get(second, "metadata"), "name"));
}

TEST(a_refusal_and_a_suspension_are_told)
{
    err why = ERR_INIT;
    err_set(&why, ERR_NOT_FOUND, "there is no function \"x\"");
    cleanup_json json_t *object = train_job(0), *held = train_job(1), *stopped = task("suspended");
    cleanup_json json_t *refused = kube_trainjob_status(object, NULL, &why, NULL, now_text);
    CHECK_STR(text(condition(refused, "Accepted"), "status"), "False");
    CHECK_STR(text(condition(refused, "Accepted"), "message"), "there is no function \"x\"");
    cleanup_json json_t *suspended = kube_trainjob_status(held, stopped, NULL, NULL, now_text);
    CHECK_STR(text(suspended, "state"), "suspended");
    CHECK_STR(text(condition(suspended, "Suspended"), "status"), "True");
    CHECK_STR(text(condition(suspended, "Failed"), "status"), "False");
    cleanup_json json_t *never = kube_trainjob_status(held, NULL, NULL, NULL, now_text);
    CHECK_STR(text(condition(never, "Accepted"), "status"), "True");
    CHECK_STR(text(never, "state"), "suspended");
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
    CHECK_STR(text(condition(refused, "Accepted"), "status"), "False");
    CHECK_STR(text(condition(refused, "Accepted"), "reason"), "Unsupported");
    CHECK_CONTAINS(text(condition(refused, "Accepted"), "message"), "not built");
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
        CHECK_STR(text(status, "state"), known[i].state);
        CHECK_STR(text(status, "reason"), known[i].reason);
        CHECK_STR(text(condition(status, "Accepted"), "status"), "False");
        CHECK_STR(text(condition(status, "Accepted"), "reason"), known[i].reason);
        CHECK_STR(text(condition(status, "Accepted"), "message"), "in words");
        cleanup_json json_t *event = kube_trainjob_event(object, status, now_text);
        CHECK_STR(text(event, "type"), "Warning");
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

static int suspended_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    (void)id;
    (void)e;
    *out = task("suspended");
    return 0;
}

static int none_current(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_array();
    return 0;
}

/* Suspended through the API: our own edit of the spec is nothing that is still to be followed, or a
 * resume through the API that comes next would be undone by it. */
TEST(a_suspension_that_was_noted_is_seen)
{
    static const char path[] = "/apis/" KUBE_RESOURCES "/namespaces/test/trainjobs";
    fake_kube *server = fake_kube_start();
    kube_config access = {.server = strdup(fake_kube_url(server)), .namespace_name = "test"};
    kube_jobs_host host = {.task = suspended_task, .current = none_current};
    kube_jobs *jobs;
    err e = ERR_INIT;
    char status[200];
    fake_kube_collection(server, path);
    json_t *object = train_job(0);
    json_object_set_new(json_object_get(object, "metadata"), "labels",
                        json_pack("{s:s}", KUBE_LABEL_JOB, "j1"));
    json_object_set_new(object, "status",
                        json_pack("{s:s, s:i}", "state", "running", "observedGeneration", 4));
    json_object_set_new(json_object_get(object, "metadata"), "name", json_string("job-j1"));
    fake_kube_put(server, "job-j1", object);
    CHECK_OK(kube_jobs_start(&access, &host, &jobs, &e), e);
    snprintf(status, sizeof status, "%s/job-j1/status", path);
    json_t *written = NULL;
    int64_t until = clock_deadline_ms(10000);
    while (!(written = fake_kube_object(server, status)) && clock_left_ms(until) > 0)
        poll(NULL, 0, 2);
    CHECK(written);
    kube_jobs_stop(jobs);
    cleanup_json json_t *objects = fake_kube_copy(server);
    const json_t *one = json_object_get(objects, "job-j1"),
                 *said = json_object_get(written, "status");
    CHECK(json_is_true(json_object_get(json_object_get(one, "spec"), "suspend")));
    CHECK_STR(text(said, "state"), "suspended");
    CHECK_INT(json_integer_value(json_object_get(said, "observedGeneration")), 5);
    const json_t *metadata = json_object_get(one, "metadata");
    CHECK_INT(json_integer_value(json_object_get(metadata, "generation")), 5);
    json_decref(written);
    fake_kube_stop(server);
    kube_config_free(&access);
}

/* ---- whose TrainJobs they are ---------------------------------------------------------------- */

#define TRAINJOBS_PATH "/apis/" KUBE_RESOURCES "/namespaces/test/trainjobs"

typedef struct platform {
    fake_kube *server;
    kube_config access;
    kube_jobs *jobs;
    pthread_mutex_t lock;
    json_t *submitted; /* ids */
    json_t *looks;     /* err_codes */
    bool told, deleted;
    atomic_bool resumed;
} platform;

static int take(void *context, const json_t *asked, const char *id, err *e)
{
    platform *p = context;
    (void)asked;
    (void)e;
    pthread_mutex_lock(&p->lock);
    json_array_append_new(p->submitted, json_string(id));
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* It knows one job, which has ended. */
static int old_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    if (strcmp(id, "aaaaaaaaaaaa") == 0) {
        *out = task("succeeded");
        return 0;
    }
    return err_set(e, ERR_NOT_FOUND, "there is no job %s", id);
}

static void no_link(void *context, const char *id, bool yes)
{
    (void)context;
    (void)id;
    (void)yes;
}

static bool never_linked(void *context, const char *id)
{
    (void)context;
    (void)id;
    return false;
}

/* A TrainJob with those labels, NULL where it has not the one. */
static void put_train_job(platform *p, const char *name, const char *uid, const char *job,
                          const char *install)
{
    fake_kube_put(p->server, name,
                  json_pack("{s:{s:s, s:i, s:{s:s*, s:s*}}, s:{s:s}}", "metadata", "uid", uid,
                            "generation", 1, "labels", KUBE_LABEL_JOB, job, KUBE_LABEL_INSTALL,
                            install, "spec", "function", "lenet"));
}

static void open_platform(platform *p)
{
    *p = (platform){.server = fake_kube_start(), .submitted = json_array(), .looks = json_array()};
    p->access = (kube_config){.server = strdup(fake_kube_url(p->server)), .namespace_name = "test"};
    pthread_mutex_init(&p->lock, NULL);
    fake_kube_collection(p->server, TRAINJOBS_PATH);
}

static void run_platform(platform *p)
{
    kube_jobs_host host = {.submit = take, .task = old_task, .current = none_current, .link = no_link,
                           .context = p, .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p->access, &host, &p->jobs, &e), e);
}

static void close_platform(platform *p)
{
    kube_jobs_stop(p->jobs);
    fake_kube_stop(p->server);
    kube_config_free(&p->access);
    json_decref(p->submitted);
    json_decref(p->looks);
    pthread_mutex_destroy(&p->lock);
}

static size_t submitted(platform *p)
{
    pthread_mutex_lock(&p->lock);
    size_t n = json_array_size(p->submitted);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void wait_submitted(platform *p, size_t count)
{
    int64_t until = clock_deadline_ms(10000);
    while (submitted(p) < count) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
}

static void wait_patches(platform *p, int count)
{
    int64_t until = clock_deadline_ms(10000);
    while (fake_kube_requests(p->server, FAKE_PATCH) < count) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
}

static json_t *labels_now(platform *p, const char *name)
{
    cleanup_json json_t *all = fake_kube_copy(p->server);
    const json_t *meta = json_object_get(json_object_get(all, name), "metadata");
    return json_incref(json_object_get(meta, "labels"));
}

/* One job that the API made and that has ended, told of once. */
static int short_current(void *context, json_t **out, err *e)
{
    platform *p = context;
    (void)e;
    *out = json_array();
    if (p->told)
        return 0;
    p->told = true;
    json_t *one = task("succeeded");
    json_object_set_new(one, "id", json_string("aaaaaaaaaaaa"));
    json_object_set_new(one, "request", json_object());
    return json_array_append_new(*out, one);
}

/* Jobs may end between two turns, and the API server may be away in the one that comes then. */
TEST(a_short_job_of_the_api_gets_its_train_job)
{
    platform p;
    open_platform(&p);
    fake_kube_fault(p.server, FAKE_CREATE, FAULT_STATUS, 500, -1, 1);
    kube_jobs_host host = {.submit = take, .task = old_task, .current = short_current,
                           .link = no_link, .linked = never_linked, .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    int64_t until = clock_deadline_ms(10000);
    for (;;) {
        cleanup_json json_t *labels = labels_now(&p, KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa");
        if (labels && strcmp(text(labels, KUBE_LABEL_JOB), "aaaaaaaaaaaa") == 0)
            break;
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    CHECK_INT(fake_kube_pending_faults(p.server), 0);
    CHECK_INT(submitted(&p), 0);
    close_platform(&p);
}

/* One job of the API that runs, and got its pod before there was a TrainJob. */
static int running_current(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_array();
    json_t *one = task("running");
    json_object_set_new(one, "id", json_string("aaaaaaaaaaaa"));
    json_object_set_new(one, "request", json_object());
    return json_array_append_new(*out, one);
}

static int running_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    (void)id;
    (void)e;
    *out = task("running");
    return 0;
}

static int queued_current(void *context, json_t **out, err *e)
{
    int status = running_current(context, out, e);
    json_object_set_new(json_array_get(*out, 0), "state", json_string("queued"));
    return status;
}

static int note_resume(void *context, const char *id, err *e)
{
    (void)id;
    (void)e;
    ((platform *)context)->resumed = true;
    return 0;
}

/* Suspended in the moment in which it is shown, it is not taken for one that was resumed there. */
TEST(a_job_that_is_suspended_as_it_gets_its_train_job_stays_suspended)
{
    static const char name[] = KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa";
    platform p;
    open_platform(&p);
    kube_jobs_host host = {.submit = take,
                           .resume = note_resume,
                           .task = suspended_task,
                           .current = queued_current,
                           .link = no_link,
                           .linked = never_linked,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    int64_t until = clock_deadline_ms(10000);
    for (bool agreed = false; !agreed;) {
        CHECK(!p.resumed);
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
        cleanup_json json_t *objects = fake_kube_copy(p.server);
        const json_t *spec = json_object_get(json_object_get(objects, name), "spec");
        cleanup_json json_t *written =
            fake_kube_object(p.server, TRAINJOBS_PATH "/job-aaaaaaaaaaaa/status");
        agreed = json_is_true(json_object_get(spec, "suspend")) &&
                 strcmp(text(json_object_get(written, "status"), "state"), "suspended") == 0;
    }
    close_platform(&p);
    CHECK(!p.resumed);
}

static const json_t *owner_of(const json_t *object)
{
    const json_t *meta = json_object_get(object, "metadata");
    return json_array_get(json_object_get(meta, "ownerReferences"), 0);
}

/* Until it is owned by a TrainJob. */
static json_t *wait_owned(platform *p, const char *name)
{
    char path[200];
    int64_t until = clock_deadline_ms(10000);
    snprintf(path, sizeof path, FAKE_KUBE_PODS "/%s", name);
    for (;;) {
        cleanup_json json_t *now = fake_kube_object(p->server, path);
        if (strcmp(text(owner_of(now), "kind"), "TrainJob") == 0)
            return json_incref(now);
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
}

static void has_pods(platform *p)
{
    static const char *const names[] = {"ps-1", "function-1"};
    json_t *all = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[200];
        json_t *one = json_pack("{s:{s:s, s:[{s:s, s:s}]}}", "metadata", "name", names[i],
                                "ownerReferences", "kind", "ConfigMap", "uid", "of-the-pool");
        snprintf(path, sizeof path, FAKE_KUBE_PODS "/%s", names[i]);
        json_array_append(all, one);
        fake_kube_set(p->server, path, one);
    }
    fake_kube_set(p->server, FAKE_KUBE_PODS, json_pack("{s:o}", "items", all));
}

static void check_owned(platform *p, const char *object)
{
    cleanup_json json_t *ps = wait_owned(p, "ps-1"), *function = wait_owned(p, "function-1");
    cleanup_json json_t *all = fake_kube_copy(p->server);
    CHECK_STR(text(owner_of(ps), "apiVersion"), KUBE_RESOURCES);
    CHECK_STR(text(owner_of(ps), "name"), object);
    CHECK_STR(text(owner_of(ps), "uid"),
              text(json_object_get(json_object_get(all, object), "metadata"), "uid"));
    CHECK(json_equal(owner_of(ps), owner_of(function)));
}

static int deleted_task(void *context, const char *id, json_t **out, err *e)
{
    return ((platform *)context)->deleted ? err_set(e, ERR_NOT_FOUND, "there is no job %s", id)
                                          : old_task(context, id, out, e);
}

static void delete_when_linked(void *context, const char *id, bool yes)
{
    platform *p = context;
    (void)id;
    p->deleted = p->deleted || yes;
}

/* The watch tells of the TrainJob that went, too. */
static int cancel_deleted(void *context, const char *id, err *e)
{
    (void)context;
    return err_set(e, ERR_NOT_FOUND, "there is no job %s", id);
}

static bool has_train_job(platform *p, const char *name)
{
    cleanup_json json_t *objects = fake_kube_copy(p->server);
    return json_object_get(objects, name) != NULL;
}

/* What stands for it goes, and is not taken for what somebody asks to be trained. */
TEST(a_job_that_is_deleted_as_it_gets_its_train_job_stays_deleted)
{
    platform p;
    open_platform(&p);
    kube_jobs_host host = {.submit = take,
                           .cancel = cancel_deleted,
                           .task = deleted_task,
                           .current = short_current,
                           .link = delete_when_linked,
                           .linked = never_linked,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    int64_t until = clock_deadline_ms(10000);
    /* A request is counted before it is performed. */
    while (fake_kube_requests(p.server, FAKE_DELETE) == 0 ||
           has_train_job(&p, KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa")) {
        CHECK_INT(submitted(&p), 0);
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    CHECK_INT(submitted(&p), 0);
    close_platform(&p);
}

/* Or they would outlive a TrainJob that is deleted while no controller runs. */
TEST(pods_that_were_there_before_their_train_job_become_its_own)
{
    platform p;
    open_platform(&p);
    has_pods(&p);
    kube_jobs_host host = {.submit = take,
                           .task = running_task,
                           .current = running_current,
                           .link = no_link,
                           .linked = never_linked,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    check_owned(&p, KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa");
    kube_jobs_stop(p.jobs);
    /* Nor did the controller that made the TrainJob come to it. */
    has_pods(&p);
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    check_owned(&p, KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa");
    close_platform(&p);
}

/* As `kubectl get -o yaml` gives it, under another name: with the labels of what it was copied
 * from, suspended or not. */
TEST(a_copy_of_a_train_job_is_a_job_of_its_own)
{
    platform p;
    open_platform(&p);
    put_train_job(&p, "copy", "11111111-2222-3333", "aaaaaaaaaaaa", "here");
    put_train_job(&p, "waits", "44444444-5555-6666", "aaaaaaaaaaaa", "here");
    fake_kube_put(p.server, "waits", json_pack("{s:{s:b}}", "spec", "suspend", 1));
    run_platform(&p);
    wait_submitted(&p, 1);
    CHECK_STR(json_string_value(json_array_get(p.submitted, 0)), "111111112222");
    cleanup_json json_t *copied = labels_now(&p, "copy");
    CHECK_STR(text(copied, KUBE_LABEL_JOB), "111111112222");
    int64_t until = clock_deadline_ms(10000);
    for (;;) { /* its pods' owner is looked for by the label */
        cleanup_json json_t *labels = labels_now(&p, "waits");
        if (strcmp(text(labels, KUBE_LABEL_JOB), "444444445555") == 0)
            break;
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    CHECK_INT(submitted(&p), 1);
    close_platform(&p);
}

/* Nor is one that shows a job of the API taken for one that nobody knows any more. */
TEST(what_another_installation_has_is_left_alone)
{
    static const char *const names[] = {"job-bbbbbbbbbbbb", "theirs", "waits"};
    platform p;
    open_platform(&p);
    put_train_job(&p, names[0], "77777777-8888-9999", "bbbbbbbbbbbb", "there");
    put_train_job(&p, names[1], "11111111-2222-3333", "111111112222", "there");
    put_train_job(&p, names[2], "44444444-5555-6666", NULL, "there");
    for (int i = 0; i < 2; i++)
        fake_kube_put(p.server, names[i],
                      json_pack("{s:{s:s, s:s}}", "status", "state", "running", "job", "x"));
    cleanup_json json_t *before = fake_kube_copy(p.server);
    run_platform(&p);
    put_train_job(&p, "ours", "12345678-1234-1234", NULL, NULL); /* looked at after them */
    wait_submitted(&p, 1);
    cleanup_json json_t *after = fake_kube_copy(p.server);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK(json_equal(json_object_get(before, names[i]), json_object_get(after, names[i])));
    CHECK_STR(json_string_value(json_array_get(p.submitted, 0)), "123456781234");
    cleanup_json json_t *labels = labels_now(&p, "ours");
    CHECK_STR(text(labels, KUBE_LABEL_INSTALL), "here");
    CHECK_INT(fake_kube_requests(p.server, FAKE_DELETE), 0);
    close_platform(&p);
}

/* Both platforms of a namespace have seen one without a label. The other has noted itself while our
 * note was on its way. */
TEST(who_notes_itself_second_submits_nothing)
{
    platform p;
    open_platform(&p);
    put_train_job(&p, "one", "11111111-2222-3333", NULL, NULL);
    fake_kube_fault(p.server, FAKE_PATCH, FAULT_STATUS, 503, 1, 1);
    run_platform(&p);
    wait_patches(&p, 1);
    fake_kube_leave_out_events(p.server, true);
    put_train_job(&p, "one", "11111111-2222-3333", "111111112222", "there");
    fake_kube_leave_out_events(p.server, false);
    wait_patches(&p, 2);
    put_train_job(&p, "two", "44444444-5555-6666", NULL, NULL);
    wait_submitted(&p, 1);
    CHECK_STR(json_string_value(json_array_get(p.submitted, 0)), "444444445555");
    cleanup_json json_t *labels = labels_now(&p, "one");
    CHECK_STR(text(labels, KUBE_LABEL_INSTALL), "there");
    close_platform(&p);
}

/* ---- what has ended -------------------------------------------------------------------------- */

enum { ENDED_MANY = 100 };

/* How often each of them was asked for, and which of them goes on or is known no more. */
typedef struct archive {
    platform p; /* first: what the other calls take for their context */
    int asked[ENDED_MANY], turns, resumed, forgotten; /* behind the platform's lock */
} archive;

static int ended_number(const char *id)
{
    return (int)strtol(id, NULL, 10);
}

static int ended_task(void *context, const char *id, json_t **out, err *e)
{
    archive *a = context;
    int at = ended_number(id);
    pthread_mutex_lock(&a->p.lock);
    a->asked[at]++;
    bool known = at != a->forgotten, runs = at == a->resumed;
    pthread_mutex_unlock(&a->p.lock);
    if (!known)
        return err_set(e, ERR_NOT_FOUND, "there is no job %s", id);
    *out = task(runs ? "running" : "succeeded");
    json_object_set_new(*out, "id", json_string(id));
    return 0;
}

static int resumed_current(void *context, json_t **out, err *e)
{
    archive *a = context;
    char id[KUBE_TRAINJOB_ID_BYTES];
    (void)e;
    *out = json_array();
    pthread_mutex_lock(&a->p.lock);
    a->turns++;
    int at = a->resumed;
    pthread_mutex_unlock(&a->p.lock);
    snprintf(id, sizeof id, "%012d", at);
    if (at >= 0)
        json_array_append_new(*out, json_pack("{s:s, s:s}", "id", id, "state", "running"));
    return 0;
}

/* As an earlier turn has left it. */
static void put_ended(archive *a, int at)
{
    char name[40], uid[40], id[40];
    snprintf(name, sizeof name, "ended-%d", at);
    snprintf(uid, sizeof uid, "%012d-1111", at);
    snprintf(id, sizeof id, "%012d", at);
    json_t *object = json_pack("{s:{s:s, s:i, s:{s:s, s:s}}, s:{s:s}}", "metadata", "uid", uid,
                               "generation", 1, "labels", KUBE_LABEL_JOB, id, KUBE_LABEL_INSTALL,
                               "here", "spec", "function", "lenet");
    cleanup_json json_t *done = task("succeeded");
    json_object_set_new(done, "id", json_string(id));
    json_t *status = kube_trainjob_status(object, done, NULL, NULL, now_text);
    json_object_set_new(status, "phase", json_null()); /* not that of a new pod */
    json_object_set_new(object, "status", status);
    fake_kube_put(a->p.server, name, object);
}

static int asked_for(archive *a, int at)
{
    int count = 0;
    pthread_mutex_lock(&a->p.lock);
    for (int i = 0; i < ENDED_MANY; i++)
        count += at < 0 || i == at ? a->asked[i] : 0;
    pthread_mutex_unlock(&a->p.lock);
    return count;
}

/* Until so many more turns have begun: all before the last of them have ended. */
static void wait_turns(archive *a, int more)
{
    int64_t until = clock_deadline_ms(20000);
    pthread_mutex_lock(&a->p.lock);
    int wanted = a->turns + more;
    pthread_mutex_unlock(&a->p.lock);
    for (int turns = 0; turns < wanted; poll(NULL, 0, 2)) {
        pthread_mutex_lock(&a->p.lock);
        turns = a->turns;
        pthread_mutex_unlock(&a->p.lock);
        CHECK(clock_left_ms(until) > 0);
    }
}

static void open_archive(archive *a, int rest_ms)
{
    kube_jobs_host host = {.submit = take,
                           .cancel = cancel_deleted,
                           .task = ended_task,
                           .current = resumed_current,
                           .link = no_link,
                           .linked = never_linked,
                           .rest_ms = rest_ms,
                           .context = a,
                           .install = "here"};
    err e = ERR_INIT;
    *a = (archive){.resumed = -1, .forgotten = -1};
    open_platform(&a->p);
    for (int i = 0; i < ENDED_MANY; i++)
        put_ended(a, i);
    CHECK_OK(kube_jobs_start(&a->p.access, &host, &a->p.jobs, &e), e);
    wait_turns(a, 2);
}

static void set_number(archive *a, int *number, int value)
{
    pthread_mutex_lock(&a->p.lock);
    *number = value;
    pthread_mutex_unlock(&a->p.lock);
}

/* Each look at one reads the store on the owner's thread, and there are only ever more of them. */
TEST(ended_train_jobs_are_asked_for_once)
{
    archive a;
    open_archive(&a, 3600 * 1000);
    CHECK_INT(asked_for(&a, -1), ENDED_MANY);
    wait_turns(&a, 4);
    CHECK_INT(asked_for(&a, -1), ENDED_MANY);
    CHECK_INT(fake_kube_requests(a.p.server, FAKE_PATCH), 0);
    /* but one that was changed is, and one that goes on */
    fake_kube_put(a.p.server, "ended-7", json_pack("{s:{s:i}}", "spec", "epochs", 3));
    int64_t until = clock_deadline_ms(10000);
    while (asked_for(&a, 7) < 2) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    set_number(&a, &a.resumed, 9);
    wait_patches(&a.p, 1); /* its status */
    wait_turns(&a, 2);
    CHECK_INT(asked_for(&a, 7), 2);
    CHECK(asked_for(&a, 9) > 1);
    CHECK_INT(asked_for(&a, 11), 1);
    close_platform(&a.p);
}

TEST(the_train_job_of_a_deleted_history_goes)
{
    archive a;
    open_archive(&a, 1000);
    set_number(&a, &a.forgotten, 5);
    int64_t until = clock_deadline_ms(20000);
    while (has_train_job(&a.p, "ended-5")) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    CHECK_INT(submitted(&a.p), 0);
    cleanup_json json_t *others = fake_kube_copy(a.p.server);
    CHECK_INT(json_object_size(others), ENDED_MANY - 1);
    close_platform(&a.p);
}

static void looks(void *context, const err *why)
{
    platform *p = context;
    pthread_mutex_lock(&p->lock);
    json_array_append_new(p->looks, json_integer(why ? (json_int_t)why->code : ERR_NONE));
    pthread_mutex_unlock(&p->lock);
}

/* Who leads waits for nothing, and is told why until it is so. */
TEST(train_jobs_are_looked_at_as_soon_as_they_can_be_listed)
{
    static const err_code told[] = {ERR_UNAVAILABLE, ERR_NOT_FOUND, ERR_FORBIDDEN, ERR_NONE};
    platform p;
    open_platform(&p);
    put_train_job(&p, "one", "11111111-2222-3333", NULL, NULL);
    fake_kube_fault(p.server, FAKE_LIST, FAULT_STATUS, 503, -1, 2);
    fake_kube_fault(p.server, FAKE_LIST, FAULT_STATUS, 404, -1, 2); /* no CRDs */
    fake_kube_fault(p.server, FAKE_LIST, FAULT_STATUS, 403, -1, 1);
    kube_jobs_host host = {.submit = take,
                           .task = old_task,
                           .current = none_current,
                           .link = no_link,
                           .looks = looks,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_submitted(&p, 1);
    kube_jobs_stop(p.jobs);
    p.jobs = NULL;
    CHECK_INT(json_array_size(p.looks), sizeof told / sizeof *told);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        CHECK_INT(json_integer_value(json_array_get(p.looks, i)), told[i]);
    close_platform(&p);
}

static void wait_looks(platform *p, const err_code *told, size_t count)
{
    int64_t until = clock_deadline_ms(10000);
    for (size_t now = 0; now < count; poll(NULL, 0, 2)) {
        pthread_mutex_lock(&p->lock);
        now = json_array_size(p->looks);
        pthread_mutex_unlock(&p->lock);
        CHECK(clock_left_ms(until) > 0);
    }
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < count; i++)
        CHECK_INT(json_integer_value(json_array_get(p->looks, i)), told[i]);
    pthread_mutex_unlock(&p->lock);
}

/* Or new ones are not submitted, and nobody knows why. */
TEST(too_many_train_jobs_are_told_of)
{
    static const err_code told[] = {ERR_NONE, ERR_LIMIT, ERR_NONE};
    platform p;
    open_platform(&p);
    kube_jobs_host host = {.submit = take,
                           .cancel = cancel_deleted,
                           .task = old_task,
                           .current = none_current,
                           .link = no_link,
                           .looks = looks,
                           .objects_max = 1,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    put_train_job(&p, "one", "11111111-2222-3333", NULL, NULL);
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_looks(&p, told, 1);
    put_train_job(&p, "two", "44444444-5555-6666", NULL, NULL);
    wait_looks(&p, told, 2);
    fake_kube_remove(p.server, "one");
    wait_looks(&p, told, 3);
    close_platform(&p);
}

/* Its end waits for no list. */
TEST(who_waits_for_train_jobs_can_end)
{
    platform p;
    open_platform(&p);
    fake_kube_fault(p.server, FAKE_LIST, FAULT_SILENT, 0, 0, 1);
    run_platform(&p);
    int64_t until = clock_deadline_ms(10000);
    while (fake_kube_requests(p.server, FAKE_LIST) == 0) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    close_platform(&p);
}

/* Two replicas before one API server. */
typedef struct replicas {
    fake_kube *server;
    kube_config access;
    kube_lease *a, *b;
} replicas;

static void open_replicas(replicas *r)
{
    err e = ERR_INIT;
    r->server = fake_kube_start();
    r->access = (kube_config){.server = strdup(fake_kube_url(r->server)), .namespace_name = "test"};
    CHECK_OK(kube_lease_open(&r->access, "kubeml", "a", "http://a", &r->a, &e), e);
    CHECK_OK(kube_lease_open(&r->access, "kubeml", "b", "http://b", &r->b, &e), e);
}

static void close_replicas(replicas *r)
{
    kube_lease_close(r->a, false);
    kube_lease_close(r->b, false);
    fake_kube_stop(r->server);
    kube_config_free(&r->access);
}

static void check_try(kube_lease *l, int64_t now_ms, int leads)
{
    err e = ERR_INIT;
    CHECK_INT(kube_lease_try(l, now_ms, &e), leads);
}

static void check_renew(kube_lease *l, int64_t now_ms, int leads)
{
    err e = ERR_INIT;
    CHECK_INT(kube_lease_renew(l, now_ms, &e), leads);
}

/* `l` looks as often as it does, and finds that another holds it. */
static void stand_by(kube_lease *l, int64_t from_ms, int64_t to_ms)
{
    for (int64_t at = from_ms; at <= to_ms; at += KUBE_LEASE_RENEW_MS)
        check_try(l, at, 0);
}

TEST(one_of_two_leads)
{
    replicas r;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    check_try(r.b, 1000, 0);
    CHECK_STR(kube_lease_leader(r.b), "http://a");
    CHECK_STR(kube_lease_leader(r.a), "");
    check_renew(r.a, 1500, 1);
    CHECK(kube_lease_held(r.a, 3699) && !kube_lease_held(r.a, 3700));
    CHECK(!kube_lease_held(r.b, 1500));
    /* a is gone: nobody takes over before its time is up, as b sees it. */
    stand_by(r.b, 1600, 4100);
    CHECK_INT(kube_lease_next_ms(r.b, 3600), 4100);
    CHECK_INT(kube_lease_next_ms(r.b, 4200), 4600); /* sooner than it looks */
    check_try(r.b, 4599, 0);
    check_try(r.b, 4600, 1);
    CHECK_INT(kube_lease_next_ms(r.b, 4600), 5100);
    CHECK_STR(kube_lease_leader(r.b), "");
    check_renew(r.a, 4700, 0);
    CHECK_STR(kube_lease_leader(r.a), "http://b");
    CHECK(!kube_lease_held(r.a, 4700));
    /* An orderly end lets go, and a third need not wait. */
    kube_lease_close(r.b, true);
    err e = ERR_INIT;
    CHECK_OK(kube_lease_open(&r.access, "kubeml", "c", "http://c", &r.b, &e), e);
    check_try(r.b, 5000, 1);
    close_replicas(&r);
}

TEST(of_two_that_stand_by_one_takes_over)
{
    replicas r;
    kube_lease *c;
    err e = ERR_INIT;
    open_replicas(&r);
    CHECK_OK(kube_lease_open(&r.access, "kubeml", "c", "http://c", &c, &e), e);
    check_try(c, 1000, 1);
    for (int64_t at = 1100; at <= 3600; at += 500) {
        check_try(r.a, at, 0);
        check_try(r.b, at, 0);
    }
    check_try(r.a, 4100, 1);
    check_try(r.b, 4100, 0); /* it is a's, and new */
    CHECK_STR(kube_lease_leader(r.b), "http://a");
    stand_by(r.b, 4600, 6600);
    kube_lease_close(c, false);
    close_replicas(&r);
}

/* The server comes back for both at once: who leads has time to renew. */
TEST(what_a_standby_could_not_see_is_not_counted)
{
    replicas r;
    err e = ERR_INIT;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    stand_by(r.b, 1000, 2000);
    fake_kube_fault(r.server, FAKE_GET, FAULT_STATUS, 503, -1, 1);
    CHECK_ERR(kube_lease_try(r.b, 2500, &e), e, ERR_UNAVAILABLE, "test says");
    check_try(r.b, 2600, 0);  /* 1600 ms before its eyes */
    check_try(r.b, 90000, 0); /* and one second more */
    check_try(r.b, 90399, 0);
    check_renew(r.a, 90399, 1);
    check_try(r.b, 90400, 0);
    stand_by(r.b, 90900, 92900);
    check_try(r.b, 93400, 1);
    close_replicas(&r);
}

TEST(who_could_not_renew_leads_on_when_nobody_else_has_led)
{
    replicas r;
    err e = ERR_INIT;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    fake_kube_fault(r.server, FAKE_PATCH, FAULT_STATUS, 503, -1, 1);
    CHECK_ERR(kube_lease_renew(r.a, 1500, &e), e, ERR_UNAVAILABLE, "test says");
    CHECK(!kube_lease_held(r.a, 9000));
    check_renew(r.a, 9000, 1);
    CHECK(kube_lease_held(r.a, 11199));
    /* Its answer is lost, and the next write meets another version: that was its own. */
    fake_kube_fault(r.server, FAKE_PATCH, FAULT_DONE_DROP, 0, 0, 1);
    check_renew(r.a, 20000, 1);
    check_renew(r.a, 20500, 1);
    close_replicas(&r);
}

TEST(who_was_followed_by_another_does_not_lead_again)
{
    replicas r;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    stand_by(r.b, 1000, 3500);
    check_try(r.b, 4000, 1);
    check_renew(r.a, 4100, 0);
    CHECK_STR(kube_lease_leader(r.a), "http://b");
    /* Not even where that one has let go of it, */
    kube_lease_close(r.b, true);
    check_renew(r.a, 4200, 0);
    /* or it was taken under the same name: another process, as far as anybody knows. */
    err e = ERR_INIT;
    CHECK_OK(kube_lease_open(&r.access, "kubeml", "a", "http://a", &r.b, &e), e);
    check_try(r.b, 4300, 1);
    check_renew(r.a, 4400, 0);
    close_replicas(&r);
}

TEST(a_write_that_comes_second_does_not_lead)
{
    replicas r;
    open_replicas(&r);
    fake_kube_fault(r.server, FAKE_CREATE, FAULT_STATUS, 409, -1, 1);
    check_try(r.a, 1000, 0);
    CHECK(!kube_lease_held(r.a, 1000));
    close_replicas(&r);
}

static bool says(const void *yes)
{
    return *(const bool *)yes;
}

/* As long as another may lead, nothing is changed; what is there can be read. */
TEST(who_may_not_write_reads)
{
    fake_kube *server = fake_kube_start();
    bool leads = false;
    kube_config access = {.server = strdup(fake_kube_url(server)),
                          .namespace_name = "test",
                          .may_write = says,
                          .writer = &leads};
    kube_client *c;
    json_t *object = json_pack("{s:{s:s}}", "metadata", "name", "x");
    err e = ERR_INIT;
    CHECK_OK(kube_client_open(&access, &c, &e), e);
    fake_kube_put(server, "y", json_object());
    CHECK_ERR(kube_create(c, FAKE_KUBE_PODS, object, clock_deadline_ms(300), NULL, &e), e,
              ERR_UNAVAILABLE, "does not lead");
    CHECK_INT(fake_kube_requests(server, FAKE_KINDS), 0);
    err_clear(&e);
    CHECK_OK(kube_get(c, FAKE_KUBE_PODS "/y", NULL, clock_deadline_ms(10000), NULL, &e), e);
    leads = true;
    CHECK_OK(kube_create(c, FAKE_KUBE_PODS, object, clock_deadline_ms(10000), NULL, &e), e);
    json_decref(object);
    kube_client_close(c);
    fake_kube_stop(server);
    kube_config_free(&access);
}
