/* test_kube_jobs.c: TrainJobs and jobs kept alike. */
#include "kube_jobs_fixture.h"

static int suspended_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    (void)id;
    (void)e;
    *out = task("suspended");
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

static int queued_current(void *context, json_t **out, err *e)
{
    int status = running_current(context, out, e);
    json_object_set_new(json_array_get(*out, 0), "state", json_string("queued"));
    return status;
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
