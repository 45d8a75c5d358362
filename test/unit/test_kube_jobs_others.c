/* test_kube_jobs_others.c: TrainJobs of other installations, databases and namespaces: they are
 * left alone, and jobs go on. */
#include "kube_jobs_fixture.h"

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

/* ---- other databases, other namespaces ------------------------------------------------------- */

static int is_not_linked(void *context, const char *id, err *e)
{
    (void)context;
    return err_set(e, ERR_NOT_FOUND, "job %s had no TrainJob", id);
}

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
