/* test_kube_jobs_turns.c: how often TrainJobs are looked at: those that have ended once, and a turn
 * begins as soon as there is something to do in it. */
#include "kube_jobs_fixture.h"

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

/* Another of that name, which the watch has yet to tell of. */
TEST(what_was_made_anew_under_a_name_is_not_deleted_for_the_one_before)
{
    archive a;
    open_archive(&a, 1000);
    fake_kube_leave_out_events(a.p.server, true);
    fake_kube_put(a.p.server, "ended-5", json_pack("{s:{s:s}}", "metadata", "uid", "another"));
    set_number(&a, &a.forgotten, 5);
    int64_t until = clock_deadline_ms(20000);
    while (fake_kube_requests(a.p.server, FAKE_DELETE) == 0) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
    wait_turns(&a, 2);
    CHECK(has_train_job(&a.p, "ended-5"));
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

/* ---- CRDs of an older version ---------------------------------------------------------------- */

static atomic_int counted_turns;

static int counted_current(void *context, json_t **out, err *e)
{
    atomic_fetch_add(&counted_turns, 1);
    return running_current(context, out, e);
}

static void let_turn(int times)
{
    int64_t until = clock_deadline_ms(20000);
    for (int wanted = atomic_load(&counted_turns) + times; atomic_load(&counted_turns) < wanted;
         poll(NULL, 0, 2))
        CHECK(clock_left_ms(until) > 0);
}

static json_t *status_now(platform *p)
{
    cleanup_json json_t *all = fake_kube_copy(p->server);
    return json_incref(json_object_get(json_object_get(all, "one"), "status"));
}

/* Until `accuracy`, which the older CRDs lack, is in it, or is not. */
static void wait_stands(platform *p, bool whole)
{
    int64_t until = clock_deadline_ms(20000);
    for (;; poll(NULL, 0, 2)) {
        cleanup_json json_t *status = status_now(p);
        if (strcmp(text_of(status, "state"), "running") == 0 &&
            (json_object_get(status, "accuracy") != NULL) == whole)
            return;
        CHECK(clock_left_ms(until) > 0);
    }
}

static void follow_one(platform *p, int probe_ms, atomic_int *lacking)
{
    kube_jobs_host host = {.submit = take,
                           .task = running_task,
                           .current = counted_current,
                           .link = no_link,
                           .links = no_links,
                           .linked = is_linked,
                           .turn_ms = 20,
                           .probe_ms = probe_ms,
                           .lacking = lacking,
                           .context = p,
                           .install = "here"};
    err e = ERR_INIT;
    open_platform(p);
    put_train_job(p, "one", "aaaaaaaa-1111", "aaaaaaaaaaaa", "here");
    fake_kube_undeclare(p->server, "accuracy");
    CHECK_OK(kube_jobs_start(&p->access, &host, &p->jobs, &e), e);
    wait_stands(p, false);
    CHECK_INT(atomic_load(lacking), 1);
}

/* Until ten turns have written nothing: what was written comes back by the watch a moment later. */
static void wait_quiet(platform *p)
{
    int64_t until = clock_deadline_ms(10000);
    for (int before = -1; before != fake_kube_requests(p->server, FAKE_PATCH);) {
        before = fake_kube_requests(p->server, FAKE_PATCH);
        let_turn(10);
        CHECK(clock_left_ms(until) > 0);
    }
}

/* The apply that is refused and the patch in its place are not repeated while it says the same. */
TEST(a_status_is_written_without_what_an_older_crd_lacks)
{
    platform p;
    atomic_int lacking = 0;
    follow_one(&p, 0, &lacking);
    wait_quiet(&p);
    /* somebody else's is put right */
    fake_kube_put(p.server, "one", json_pack("{s:{s:s}}", "status", "state", "mine"));
    wait_stands(&p, false);
    wait_quiet(&p);
    close_platform(&p);
    CHECK_INT(atomic_load(&lacking), 0);
}

TEST(a_status_is_whole_once_the_crd_is)
{
    platform p;
    atomic_int lacking = 0;
    follow_one(&p, 50, &lacking);
    fake_kube_undeclare(p.server, NULL);
    wait_stands(&p, true);
    let_turn(2);
    CHECK_INT(atomic_load(&lacking), 0);
    close_platform(&p);
}
