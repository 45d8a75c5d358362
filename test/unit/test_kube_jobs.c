/* test_kube_jobs.c: TrainJobs and jobs kept alike. */
#include <stdatomic.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "../../controller/kube_jobs.h"
#include "../../controller/kube_pods.h"
#include "clock.h"
#include "fake_kube.h"
#include "json_read.h"
#include "test.h"

static json_t *task(const char *state)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "id", "j1", "state", state,
                     "reason", "", "message", "", "epoch", 3, "parallelism", 4, "accuracy", 98.765,
                     "validation_loss", 0.01234);
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

static int no_links(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_object();
    return 0;
}

/* Suspended through the API: our own edit of the spec is nothing that is still to be followed, or a
 * resume through the API that comes next would be undone by it. */
TEST(a_suspension_that_was_noted_is_seen)
{
    static const char path[] = "/apis/" KUBE_RESOURCES "/namespaces/test/trainjobs";
    fake_kube *server = fake_kube_start();
    kube_config access = {.server = strdup(fake_kube_url(server)), .namespace_name = "test"};
    kube_jobs_host host = {.task = suspended_task, .current = none_current, .links = no_links};
    kube_jobs *jobs;
    err e = ERR_INIT;
    char status[200];
    fake_kube_collection(server, path);
    json_t *object = json_pack("{s:{s:s, s:i}, s:{s:b}}", "metadata", "name", "one", "generation",
                               4, "spec", "suspend", 0);
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
    CHECK_STR(text_of(said, "state"), "suspended");
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
    json_t *linked;    /* marks by the jobs' ids, null: noted as one without a TrainJob */
    int cancels, cancels_unlinked; /* those before the job was noted as one without a TrainJob */
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

static void no_link(void *context, const char *id, json_t *mark)
{
    (void)context;
    (void)id;
    (void)mark;
}

static int is_linked(void *context, const char *id, err *e)
{
    (void)context;
    (void)id;
    (void)e;
    return 0;
}

static int is_not_linked(void *context, const char *id, err *e)
{
    (void)context;
    return err_set(e, ERR_NOT_FOUND, "job %s had no TrainJob", id);
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
    *p = (platform){.server = fake_kube_start(),
                    .submitted = json_array(),
                    .looks = json_array(),
                    .linked = json_object()};
    p->access = (kube_config){.server = strdup(fake_kube_url(p->server)), .namespace_name = "test"};
    pthread_mutex_init(&p->lock, NULL);
    fake_kube_collection(p->server, TRAINJOBS_PATH);
}

static void run_platform(platform *p)
{
    kube_jobs_host host = {.submit = take,
                           .task = old_task,
                           .current = none_current,
                           .link = no_link,
                           .links = no_links,
                           .context = p,
                           .install = "here"};
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
    json_decref(p->linked);
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
    kube_jobs_host host = {.submit = take,
                           .task = old_task,
                           .current = short_current,
                           .link = no_link,
                           .links = no_links,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    int64_t until = clock_deadline_ms(10000);
    for (;;) {
        cleanup_json json_t *labels = labels_now(&p, KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa");
        if (labels && strcmp(text_of(labels, KUBE_LABEL_JOB), "aaaaaaaaaaaa") == 0)
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
                           .links = no_links,
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
                 strcmp(text_of(json_object_get(written, "status"), "state"), "suspended") == 0;
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
        if (strcmp(text_of(owner_of(now), "kind"), "TrainJob") == 0)
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
    CHECK_STR(text_of(owner_of(ps), "apiVersion"), KUBE_RESOURCES);
    CHECK_STR(text_of(owner_of(ps), "name"), object);
    CHECK(json_is_true(json_object_get(owner_of(ps), "controller"))); /* or no node is drained */
    CHECK_STR(text_of(owner_of(ps), "uid"),
              text_of(json_object_get(json_object_get(all, object), "metadata"), "uid"));
    CHECK(json_equal(owner_of(ps), owner_of(function)));
}

static int deleted_task(void *context, const char *id, json_t **out, err *e)
{
    return ((platform *)context)->deleted ? err_set(e, ERR_NOT_FOUND, "there is no job %s", id)
                                          : old_task(context, id, out, e);
}

static void delete_when_linked(void *context, const char *id, json_t *mark)
{
    platform *p = context;
    (void)id;
    p->deleted = p->deleted || mark;
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
                           .links = no_links,
                           .linked = is_linked,
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
                           .links = no_links,
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
    CHECK_STR(text_of(copied, KUBE_LABEL_JOB), "111111112222");
    int64_t until = clock_deadline_ms(10000);
    for (;;) { /* its pods' owner is looked for by the label */
        cleanup_json json_t *labels = labels_now(&p, "waits");
        if (strcmp(text_of(labels, KUBE_LABEL_JOB), "444444445555") == 0)
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
    CHECK_STR(text_of(labels, KUBE_LABEL_INSTALL), "here");
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
    CHECK_STR(text_of(labels, KUBE_LABEL_INSTALL), "there");
    close_platform(&p);
}

/* As of a suspended job while the store is away: only its record can be cancelled. */
static int cancel_later(void *context, const char *id, err *e)
{
    platform *p = context;
    (void)id;
    pthread_mutex_lock(&p->lock);
    int tries = ++p->cancels;
    pthread_mutex_unlock(&p->lock);
    return tries > 1 ? 0 : err_set(e, ERR_UNAVAILABLE, "the database does not answer");
}

static void note_unlink(void *context, const char *id, json_t *mark)
{
    platform *p = context;
    (void)id;
    pthread_mutex_lock(&p->lock);
    if (!mark)
        p->cancels_unlinked = p->cancels;
    pthread_mutex_unlock(&p->lock);
}

static void wait_unlinked(platform *p)
{
    int64_t until = clock_deadline_ms(10000);
    for (int unlinked = 0; !unlinked; poll(NULL, 0, 2)) {
        pthread_mutex_lock(&p->lock);
        unlinked = p->cancels_unlinked;
        pthread_mutex_unlock(&p->lock);
        CHECK(clock_left_ms(until) > 0);
    }
}

TEST(a_job_whose_train_job_was_deleted_is_cancelled_when_that_can_be)
{
    platform p;
    open_platform(&p);
    put_train_job(&p, "one", "aaaaaaaa-aaaa-aaaa", "aaaaaaaaaaaa", "here");
    kube_jobs_host host = {.submit = take,
                           .cancel = cancel_later,
                           .task = old_task,
                           .current = none_current,
                           .link = note_unlink,
                           .links = no_links,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    put_train_job(&p, "two", "44444444-5555-6666", NULL, NULL);
    wait_submitted(&p, 1);
    fake_kube_remove(p.server, "one");
    wait_unlinked(&p);
    CHECK_INT(p.cancels_unlinked, 2);
    close_platform(&p);
}

static void wait_submitted_as(platform *p, const char *id)
{
    int64_t until = clock_deadline_ms(10000);
    for (bool found = false; !found; poll(NULL, 0, 2)) {
        json_t *one;
        size_t i;
        pthread_mutex_lock(&p->lock);
        json_array_foreach (p->submitted, i, one)
            found = found || strcmp(json_string_value(one), id) == 0;
        pthread_mutex_unlock(&p->lock);
        CHECK(clock_left_ms(until) > 0);
    }
}

static void be_namespace(platform *p, const char *deleted)
{
    fake_kube_set(p->server, "/api/v1/namespaces/test",
                  json_pack("{s:{s:s, s:s, s:s*}}", "metadata", "name", "test", "uid", "now",
                            "deletionTimestamp", deleted));
}

/* It is there no more because nothing is: an installation that comes after goes on with the job. */
TEST(jobs_are_not_cancelled_while_their_namespace_is_deleted)
{
    platform p;
    open_platform(&p);
    be_namespace(&p, NULL);
    put_train_job(&p, "one", "aaaaaaaa-aaaa-aaaa", "aaaaaaaaaaaa", "here");
    kube_jobs_host host = {.submit = take,
                           .cancel = cancel_later,
                           .task = old_task,
                           .current = none_current,
                           .link = note_unlink,
                           .links = no_links,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    put_train_job(&p, "two", "44444444-5555-6666", NULL, NULL);
    wait_submitted(&p, 1); /* the namespace's uid is known */
    be_namespace(&p, "2026-01-01T00:00:00Z");
    fake_kube_remove(p.server, "one");
    put_train_job(&p, "three", "77777777-8888-9999", NULL, NULL);
    wait_submitted_as(&p, "777777778888"); /* with the removal, or in a turn after it */
    put_train_job(&p, "four", "99999999-8888-7777", NULL, NULL);
    wait_submitted_as(&p, "999999998888");
    pthread_mutex_lock(&p.lock);
    int cancels = p.cancels;
    pthread_mutex_unlock(&p.lock);
    CHECK_INT(cancels, 0);
    close_platform(&p);
}

static int two_links(void *context, json_t **out, err *e)
{
    platform *p = context;
    pthread_mutex_lock(&p->lock);
    bool away = !p->told;
    p->told = true;
    pthread_mutex_unlock(&p->lock);
    if (away)
        return err_set(e, ERR_UNAVAILABLE, "the database does not answer");
    *out = json_pack("{s:{}, s:{}}", "aaaaaaaaaaaa", "dddddddddddd");
    return 0;
}

static int note_cancel(void *context, const char *id, err *e)
{
    platform *p = context;
    (void)e;
    CHECK_STR(id, "dddddddddddd");
    pthread_mutex_lock(&p->lock);
    p->cancels++;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* It is suspended, say: among those that are active there is none. */
TEST(a_job_whose_train_job_was_deleted_while_nobody_looked_is_cancelled)
{
    platform p;
    open_platform(&p);
    put_train_job(&p, "one", "aaaaaaaa-aaaa-aaaa", "aaaaaaaaaaaa", "here");
    kube_jobs_host host = {.submit = take,
                           .cancel = note_cancel,
                           .task = old_task,
                           .current = none_current,
                           .link = note_unlink,
                           .links = two_links,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_unlinked(&p);
    CHECK_INT(p.cancels_unlinked, 1);
    CHECK(has_train_job(&p, "one"));
    close_platform(&p);
}

/* ---- other databases, other namespaces ------------------------------------------------------- */

static int no_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    (void)out;
    return err_set(e, ERR_NOT_FOUND, "there is no job %s", id);
}

static json_t *status_now(platform *p, const char *name)
{
    cleanup_json json_t *all = fake_kube_copy(p->server);
    return json_incref(json_object_get(json_object_get(all, name), "status"));
}

/* As the database that knows its job has left it. */
static void put_state(platform *p, const char *name, const char *uid, const char *id,
                      const char *state)
{
    put_train_job(p, name, uid, id, "here");
    fake_kube_put(p->server, name,
                  json_pack("{s:{s:s, s:s, s:i, s:[{s:s, s:s}, {s:s, s:s}]}}", "status", "state",
                            state, "job", id, "observedGeneration", 1, "conditions", "type",
                            "Accepted", "status", "True", "type", "Training", "status", "True"));
}

static void wait_message(platform *p, const char *name, const char *message)
{
    int64_t until = clock_deadline_ms(10000);
    for (bool said = false; !said; poll(NULL, 0, 2)) {
        cleanup_json json_t *status = status_now(p, name);
        said = strcmp(text_of(status, "message"), message) == 0;
        CHECK(clock_left_ms(until) > 0);
    }
}

static void wait_status(platform *p, const char *name)
{
    int64_t until = clock_deadline_ms(10000);
    for (bool there = false; !there; poll(NULL, 0, 2)) {
        cleanup_json json_t *objects = fake_kube_copy(p->server);
        const json_t *status = json_object_get(json_object_get(objects, name), "status");
        there = strcmp(text_of(status, "state"), "running") == 0;
        CHECK(clock_left_ms(until) > 0);
    }
}

static int known_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = task(strcmp(id, "444444445555") == 0 ? "suspended" : "running");
    json_object_set_new(*out, "id", json_string(id));
    return 0;
}

/* The release was pointed to another database: none of its TrainJobs goes, and none is trained
 * anew. When it is back all is as it was. */
TEST(train_jobs_stay_while_another_database_is_looked_at)
{
    static const char *const made[][4] = {
        {"one", "11111111-2222-3333", "111111112222", "running"},
        {"two", "44444444-5555-6666", "444444445555", "suspended"},
        {"three", "77777777-8888-9999", "777777778888", "succeeded"}};
    platform p;
    open_platform(&p);
    kube_jobs_host host = {.submit = take,
                           .cancel = note_cancel,
                           .resume = note_resume,
                           .task = no_task,
                           .current = none_current,
                           .link = no_link,
                           .links = no_links,
                           .linked = is_not_linked,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    for (size_t i = 0; i < 3; i++)
        put_state(&p, made[i][0], made[i][1], made[i][2], made[i][3]);
    fake_kube_put(p.server, "two", json_pack("{s:{s:b}}", "spec", "suspend", 1));
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_message(&p, "one", "this database has no job 111111112222");
    wait_message(&p, "two", "this database has no job 444444445555");
    wait_message(&p, "three", "this database has no job 777777778888");
    put_train_job(&p, "four", "12345678-1234-1234", NULL, NULL);
    wait_submitted(&p, 1);
    kube_jobs_stop(p.jobs);
    for (size_t i = 0; i < 3; i++) {
        cleanup_json json_t *status = status_now(&p, made[i][0]);
        const json_t *accepted = json_array_get(json_object_get(status, "conditions"), 0);
        CHECK_STR(text_of(status, "job"), made[i][2]);
        CHECK_STR(text_of(status, "state"), i == 0 ? "waiting" : made[i][3]);
        CHECK_STR(text_of(accepted, "type"), "Accepted");
        CHECK_STR(text_of(accepted, "reason"), "NotInDatabase");
    }
    CHECK_STR(json_string_value(json_array_get(p.submitted, 0)), "123456781234");
    host.task = known_task;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_status(&p, "one");
    wait_message(&p, "two", "");
    close_platform(&p);
    CHECK(!p.resumed);
    CHECK_INT(p.cancels, 0);
}

static json_t *link_of(const char *install, const char *namespace, const char *uid)
{
    return json_pack("{s:s, s:s, s:s}", "install", install, "namespace", namespace, "uid", uid);
}

/* That of "dddddddddddd" alone is ours. */
static int foreign_links(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out =
        json_pack("{s:o, s:o, s:o, s:o}", "aaaaaaaaaaaa", link_of("here", "test", "before"),
                  "bbbbbbbbbbbb", link_of("here", "elsewhere", "now"), "cccccccccccc",
                  link_of("there", "test", "now"), "dddddddddddd", link_of("here", "test", "now"));
    return 0;
}

static int only_old_link(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_pack("{s:{}}", "aaaaaaaaaaaa");
    return 0;
}

static int old_links(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_pack("{s:{}, s:{}}", "aaaaaaaaaaaa", "eeeeeeeeeeee");
    return 0;
}

static void note_link(void *context, const char *id, json_t *mark)
{
    platform *p = context;
    pthread_mutex_lock(&p->lock);
    json_object_set(p->linked, id, mark ? mark : json_null());
    pthread_mutex_unlock(&p->lock);
}

static void wait_linked(platform *p, const char *id, json_t *mark)
{
    int64_t until = clock_deadline_ms(10000);
    for (bool linked = false; !linked; poll(NULL, 0, 2)) {
        pthread_mutex_lock(&p->lock);
        linked = json_equal(json_object_get(p->linked, id), mark);
        pthread_mutex_unlock(&p->lock);
        CHECK(clock_left_ms(until) > 0);
    }
    json_decref(mark);
}

static int take_linked(void *context, const json_t *asked, const char *id, err *e)
{
    platform *p = context;
    pthread_mutex_lock(&p->lock);
    if (json_array_size(p->submitted) == 0)
        p->told = json_is_object(json_object_get(p->linked, id));
    pthread_mutex_unlock(&p->lock);
    return take(context, asked, id, e);
}

/* A controller may end right behind the submission, and the TrainJob be deleted before another
 * begins, which knows by the link that the job had one. */
TEST(a_train_job_is_linked_before_there_is_its_job)
{
    platform p;
    open_platform(&p);
    put_train_job(&p, "mine", "11111111-2222-3333", NULL, NULL);
    kube_jobs_host host = {.submit = take_linked,
                           .task = old_task,
                           .current = none_current,
                           .link = note_link,
                           .links = no_links,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_submitted(&p, 1);
    close_platform(&p);
    CHECK(p.told);
}

/* Installed again on the same database, after `kubectl delete namespace`, or beside another: jobs
 * go on, with TrainJobs of this namespace, and are not taken for deleted here. */
TEST(jobs_of_another_namespaces_train_jobs_go_on)
{
    platform p;
    open_platform(&p);
    fake_kube_set(p.server, "/api/v1/namespaces/test",
                  json_pack("{s:{s:s, s:s}}", "metadata", "name", "test", "uid", "now"));
    kube_jobs_host host = {.submit = take,
                           .cancel = note_cancel,
                           .task = running_task,
                           .current = running_current,
                           .link = note_link,
                           .links = foreign_links,
                           .linked = is_linked,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_linked(&p, "dddddddddddd", json_null());
    wait_linked(&p, "aaaaaaaaaaaa", link_of("here", "test", "now"));
    CHECK(has_train_job(&p, KUBE_TRAINJOB_SHOWS "aaaaaaaaaaaa"));
    close_platform(&p);
    CHECK_INT(p.cancels, 1);
}

/* In a namespace without a TrainJob that stands for a job, what has no name is taken for another's;
 * where there are some, what may go on is linked with the name. */
TEST(links_of_older_versions_get_names)
{
    platform p;
    open_platform(&p);
    kube_jobs_host host = {.submit = take,
                           .cancel = note_cancel,
                           .task = running_task,
                           .current = running_current,
                           .link = note_link,
                           .links = old_links,
                           .linked = is_linked,
                           .context = &p,
                           .install = "here"};
    err e = ERR_INIT;
    put_train_job(&p, "new", "12345678-1234-1234", NULL, NULL);
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_submitted(&p, 1);
    wait_linked(&p, "aaaaaaaaaaaa", link_of("here", "test", ""));
    kube_jobs_stop(p.jobs);
    json_object_clear(p.linked);
    host.links = only_old_link;
    CHECK_OK(kube_jobs_start(&p.access, &host, &p.jobs, &e), e);
    wait_linked(&p, "aaaaaaaaaaaa", link_of("here", "test", ""));
    close_platform(&p);
    CHECK_INT(p.cancels, 0);
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
    json_t *status = kube_trainjob_status(object, done, NULL, NULL, "2026-01-02T03:04:05.000Z");
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
                           .links = no_links,
                           .linked = is_linked,
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
    fake_kube_put(a.p.server, "ended-7",
                  json_pack("{s:{s:{s:s}}}", "metadata", "labels", "of", "a user"));
    int64_t until = clock_deadline_ms(10000);
    while (asked_for(&a, 7) < 2) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    set_number(&a, &a.resumed, 9);
    wait_patches(&a.p, 1); /* its status */
    wait_turns(&a, 2);
    CHECK_INT(asked_for(&a, 7), 2);
    CHECK_INT(asked_for(&a, 9), 1); /* the list has it */
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

/* ---- when turns begin ------------------------------------------------------------------------ */

typedef struct busy {
    platform p; /* first: what the other calls take for their context */
    int turns, looks;
} busy;

static int count_turn(void *context, json_t **out, err *e)
{
    busy *b = context;
    pthread_mutex_lock(&b->p.lock);
    b->turns++;
    pthread_mutex_unlock(&b->p.lock);
    return none_current(context, out, e);
}

/* Another phase each time that it is looked at. */
static int busy_task(void *context, const char *id, json_t **out, err *e)
{
    busy *b = context;
    pthread_mutex_lock(&b->p.lock);
    int look = ++b->looks;
    pthread_mutex_unlock(&b->p.lock);
    *out = task("running");
    json_object_set_new(*out, "id", json_string(id));
    json_object_set_new(*out, "phase", json_sprintf("phase %d", look));
    (void)e;
    return 0;
}

/* What was changed before that has been told by then. */
static void renew_watch(platform *p)
{
    int64_t until = clock_deadline_ms(10000);
    for (int i = 0; i < 3; i++) {
        int before = fake_kube_requests(p->server, FAKE_WATCH);
        for (fake_kube_cut(p->server); fake_kube_requests(p->server, FAKE_WATCH) == before;) {
            CHECK(clock_left_ms(until) > 0);
            poll(NULL, 0, 2);
        }
    }
}

/* Of each that is made there are two: to submit it, and to follow its job when that is noted. */
TEST(a_status_that_was_written_begins_no_turn)
{
    static const char *const made[][2] = {{"one", "11111111-2222-3333"},
                                          {"two", "44444444-5555-6666"},
                                          {"three", "77777777-8888-9999"}};
    busy b = {.turns = 0};
    open_platform(&b.p);
    kube_jobs_host host = {.submit = take,
                           .task = busy_task,
                           .current = count_turn,
                           .link = no_link,
                           .links = no_links,
                           .turn_ms = 3600 * 1000,
                           .context = &b,
                           .install = "here"};
    err e = ERR_INIT;
    put_train_job(&b.p, "begun", "12345678-1234-1234", "123456781234", "here");
    CHECK_OK(kube_jobs_start(&b.p.access, &host, &b.p.jobs, &e), e);
    wait_status(&b.p, "begun");
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        put_train_job(&b.p, made[i][0], made[i][1], NULL, NULL);
        wait_status(&b.p, made[i][0]);
        renew_watch(&b.p);
    }
    kube_jobs_stop(b.p.jobs);
    b.p.jobs = NULL;
    CHECK_INT(b.turns, 7);
    close_platform(&b.p);
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
                           .links = no_links,
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
                           .links = no_links,
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
