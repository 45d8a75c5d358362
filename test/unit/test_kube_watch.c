/* test_kube_watch.c: the client of the API server, and the copy kept by list and watch, against a
 * server that fails as scripted: the copy equals the cluster, nothing is told twice, and requests
 * are counted to show that nothing runs hot. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "controller/kube/kube_watch.h"
#include "fake_kube.h"
#include "test.h"

enum { WAIT_MS = 15000 };

typedef struct world {
    fake_kube *server;
    kube_config config;
    kube_watch *watch;
    pthread_mutex_t lock;
    json_t *copy;              /* what was told */
    int added, changed, deleted, wrong;
    int limits; /* times that it had too many */
    size_t objects_max;
} world;

static const char *name_of(const json_t *object)
{
    return json_string_value(json_object_get(json_object_get(object, "metadata"), "name"));
}

/* A copy that only believes what it is told, and counts what does not fit. */
static void on_change(void *context, kube_change change, const json_t *object)
{
    world *w = context;
    pthread_mutex_lock(&w->lock);
    bool there = json_object_get(w->copy, name_of(object)) != NULL;
    w->wrong += (change == KUBE_ADDED) == there;
    w->added += change == KUBE_ADDED;
    w->changed += change == KUBE_MODIFIED;
    w->deleted += change == KUBE_DELETED;
    if (change == KUBE_DELETED)
        json_object_del(w->copy, name_of(object));
    else
        json_object_set_new(w->copy, name_of(object), json_deep_copy(object));
    pthread_mutex_unlock(&w->lock);
}

static void on_failure(void *context, const err *why)
{
    world *w = context;
    pthread_mutex_lock(&w->lock);
    w->limits += why->code == ERR_LIMIT;
    pthread_mutex_unlock(&w->lock);
}

static void open_world(world *w, const char *token_file)
{
    *w = (world){.server = fake_kube_start(), .copy = json_object()};
    pthread_mutex_init(&w->lock, NULL);
    w->config.server = strdup(fake_kube_url(w->server));
    w->config.token_file = token_file ? strdup(token_file) : NULL;
}

static void start_watch(world *w)
{
    err e = ERR_INIT;
    kube_watch_config config = {.access = &w->config,
                                .path = FAKE_KUBE_PODS,
                                .objects_max = w->objects_max,
                                .changed = on_change,
                                .failed = on_failure,
                                .context = w};
    CHECK_OK(kube_watch_start(&config, &w->watch, &e), e);
    CHECK_OK(kube_watch_wait(w->watch, clock_deadline_ms(WAIT_MS), &e), e);
}

static void close_world(world *w)
{
    kube_watch_stop(w->watch);
    fake_kube_stop(w->server);
    kube_config_free(&w->config);
    json_decref(w->copy);
    pthread_mutex_destroy(&w->lock);
}

static bool equal(world *w)
{
    cleanup_json json_t *there = fake_kube_copy(w->server);
    pthread_mutex_lock(&w->lock);
    bool same = json_equal(there, w->copy);
    pthread_mutex_unlock(&w->lock);
    return same;
}

static void wait_equal(world *w)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (!equal(w)) {
        if (clock_monotonic_ms() > deadline) {
            cleanup_json json_t *there = fake_kube_copy(w->server);
            test_fail(__FILE__, __LINE__, "the copy has %zu objects, the cluster %zu",
                      json_object_size(w->copy), json_object_size(there));
        }
        poll(NULL, 0, 2);
    }
    CHECK_INT(w->wrong, 0);
}

static void wait_requests(world *w, fake_kind kind, int count)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (fake_kube_requests(w->server, kind) < count) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 2);
    }
}

static void put(world *w, const char *name, const char *phase)
{
    fake_kube_put(w->server, name, json_pack("{s:{s:s}}", "status", "phase", phase));
}

/* Three pods, one changed and one removed behind the watch's back or before its eyes. */
static void churn(world *w)
{
    put(w, "a", "Running");
    put(w, "d", "Pending");
    fake_kube_remove(w->server, "b");
}

static void begin(world *w)
{
    open_world(w, NULL);
    put(w, "a", "Pending");
    put(w, "b", "Pending");
    put(w, "c", "Pending");
    start_watch(w);
    wait_equal(w);
    wait_requests(w, FAKE_WATCH, 1);
}

TEST(follows)
{
    world w;
    begin(&w);
    churn(&w);
    wait_equal(&w);
    CHECK_INT(w.added, 4);
    CHECK_INT(w.changed, 1);
    CHECK_INT(w.deleted, 1);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 1);
    CHECK_INT(fake_kube_requests(w.server, FAKE_WATCH), 1);
    close_world(&w);
}

TEST(goes_on_after_a_cut)
{
    world w;
    begin(&w);
    for (int i = 0; i < 5; i++) {
        fake_kube_cut(w.server);
        churn(&w);
        put(&w, "b", "Running");
        wait_equal(&w);
    }
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 1); /* from the last version, not anew */
    close_world(&w);
}

TEST(goes_on_after_the_server_vanished)
{
    world w;
    begin(&w);
    put(&w, "a", "Running");
    wait_equal(&w); /* the watch has begun to answer */
    fake_kube_vanish(w.server);
    wait_requests(&w, FAKE_WATCH, 2);
    churn(&w);
    wait_equal(&w);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 1);
    close_world(&w);
}

TEST(lists_again_when_gone)
{
    world w;
    begin(&w);
    fake_kube_leave_out_events(w.server, true);
    churn(&w);
    fake_kube_leave_out_events(w.server, false);
    fake_kube_compact(w.server);
    wait_equal(&w);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 2);
    CHECK_INT(w.added, 4); /* c was there before and is not told again */
    CHECK_INT(w.deleted, 1);
    close_world(&w);
}

TEST(lists_again_after_an_error_event)
{
    world w;
    begin(&w);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_GONE_EVENT, 0, 0, 1);
    fake_kube_leave_out_events(w.server, true);
    churn(&w);
    fake_kube_leave_out_events(w.server, false);
    fake_kube_cut(w.server);
    wait_equal(&w);
    CHECK_INT(fake_kube_pending_faults(w.server), 0);
    close_world(&w);
}

TEST(a_pod_made_anew_is_another)
{
    world w;
    begin(&w);
    fake_kube_leave_out_events(w.server, true);
    fake_kube_remove(w.server, "a");
    put(&w, "a", "Running");
    fake_kube_leave_out_events(w.server, false);
    fake_kube_compact(w.server);
    wait_equal(&w);
    CHECK_INT(w.deleted, 1);
    CHECK_INT(w.added, 4);
    close_world(&w);
}

TEST(half_an_event_is_none)
{
    world w;
    begin(&w);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_HALF, 0, 0, 3);
    fake_kube_cut(w.server);
    churn(&w);
    wait_equal(&w);
    CHECK_INT(fake_kube_pending_faults(w.server), 0);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 1);
    close_world(&w);
}

TEST(noise_makes_it_list)
{
    world w;
    begin(&w);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_NOISE, 0, 0, 1);
    fake_kube_cut(w.server);
    churn(&w);
    wait_equal(&w);
    wait_requests(&w, FAKE_LIST, 2);
    CHECK_INT(fake_kube_pending_faults(w.server), 0);
    close_world(&w);
}

TEST(half_a_list_is_none)
{
    world w;
    open_world(&w, NULL);
    put(&w, "a", "Pending");
    put(&w, "b", "Pending");
    fake_kube_fault(w.server, FAKE_LIST, FAULT_HALF, 0, 0, 2);
    start_watch(&w);
    wait_equal(&w);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 3);
    close_world(&w);
}

TEST(many_pages)
{
    world w;
    char name[20];
    open_world(&w, NULL);
    fake_kube_leave_out_events(w.server, true);
    for (int i = 0; i < 1201; i++) {
        snprintf(name, sizeof name, "pod-%d", i);
        put(&w, name, "Pending");
    }
    fake_kube_leave_out_events(w.server, false);
    start_watch(&w);
    wait_equal(&w);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 3);
    CHECK_INT(w.added, 1201);
    CHECK_INT(kube_watch_size(w.watch), 1201);
    close_world(&w);
}

static void wait_limits(world *w, int count)
{
    int64_t until = clock_deadline_ms(WAIT_MS);
    for (int now = 0; now < count; poll(NULL, 0, 2)) {
        pthread_mutex_lock(&w->lock);
        now = w->limits;
        pthread_mutex_unlock(&w->lock);
        CHECK(clock_left_ms(until) > 0);
    }
}

/* The last of the names is in no list that is cut, and is there all the same. */
TEST(what_a_cut_list_lacks_is_not_gone)
{
    world w;
    char name[20];
    open_world(&w, NULL);
    w.objects_max = 600;
    put(&w, "zzz", "Running");
    start_watch(&w);
    fake_kube_leave_out_events(w.server, true);
    for (int i = 0; i < 1201; i++) {
        snprintf(name, sizeof name, "pod-%d", i);
        put(&w, name, "Pending");
    }
    fake_kube_leave_out_events(w.server, false);
    fake_kube_compact(w.server);
    fake_kube_cut(w.server);
    wait_limits(&w, 2);
    CHECK_INT(w.deleted, 0);
    CHECK_INT(w.added, 1);
    fake_kube_leave_out_events(w.server, true);
    for (int i = 500; i < 1201; i++) {
        snprintf(name, sizeof name, "pod-%d", i);
        fake_kube_remove(w.server, name);
    }
    fake_kube_leave_out_events(w.server, false);
    wait_equal(&w);
    CHECK_INT(w.added, 501);
    CHECK_INT(w.deleted, 0);
    CHECK_INT(w.wrong, 0);
    close_world(&w);
}

/* Those that a watch shows, too; and one that ends makes room. */
TEST(a_watch_that_shows_too_many_says_so)
{
    world w;
    open_world(&w, NULL);
    w.objects_max = 2;
    put(&w, "a", "Running");
    put(&w, "b", "Running");
    start_watch(&w);
    put(&w, "c", "Running");
    wait_limits(&w, 1);
    CHECK_INT(w.deleted, 0);
    fake_kube_remove(w.server, "a");
    wait_equal(&w);
    close_world(&w);
}

TEST(bookmarks_move_on)
{
    world w;
    kube_watch_counts counts;
    begin(&w);
    fake_kube_bookmark(w.server);
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    do {
        CHECK(clock_monotonic_ms() < deadline);
        kube_watch_counted(w.watch, &counts);
    } while (counts.bookmarks == 0);
    /* What was before the bookmark is gone; a watch from the bookmark on still works. */
    fake_kube_compact(w.server);
    churn(&w);
    wait_equal(&w);
    CHECK_INT(fake_kube_requests(w.server, FAKE_LIST), 1);
    close_world(&w);
}

static void write_token(const char *path, const char *token)
{
    err e = ERR_INIT;
    CHECK_OK(fs_write_file(path, token, strlen(token), 0600, &e), e);
}

TEST(a_rotated_token_is_read_again)
{
    world w;
    char path[600];
    snprintf(path, sizeof path, "%s/token", test_tmp());
    write_token(path, "first\n");
    open_world(&w, path);
    fake_kube_token(w.server, "first");
    put(&w, "a", "Pending");
    start_watch(&w);
    wait_equal(&w);
    wait_requests(&w, FAKE_WATCH, 1);
    fake_kube_token(w.server, "second");
    fake_kube_cut(w.server);
    put(&w, "b", "Running");
    wait_requests(&w, FAKE_WATCH, 2); /* refused: 401 */
    write_token(path, "second\n");
    wait_equal(&w);
    CHECK(fake_kube_requests(w.server, FAKE_LIST) >= 2);
    close_world(&w);
}

/* What a server that is down for seconds gets from us: a handful of requests. */
TEST(no_hot_loop)
{
    world w;
    begin(&w);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_STATUS, 500, -1, 4);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_DROP, 0, 0, 2);
    fake_kube_cut(w.server);
    int before = fake_kube_requests(w.server, FAKE_KINDS);
    int64_t began = clock_monotonic_ms();
    churn(&w);
    wait_equal(&w);
    CHECK_INT(fake_kube_pending_faults(w.server), 0);
    /* Six waits that double from at least 50 ms on: 3.15 s and more. */
    CHECK(clock_monotonic_ms() - began > 3000);
    CHECK(fake_kube_requests(w.server, FAKE_KINDS) - before <= 9);
    close_world(&w);
}

/* 410 again and again, as a server whose etcd is being compacted: lists must not run hot either. */
TEST(no_hot_loop_of_lists)
{
    world w;
    begin(&w);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_STATUS, 410, -1, 5);
    fake_kube_cut(w.server);
    int64_t began = clock_monotonic_ms();
    churn(&w);
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (fake_kube_pending_faults(w.server)) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
    CHECK(clock_monotonic_ms() - began > 700);
    CHECK(fake_kube_requests(w.server, FAKE_LIST) <= 6);
    wait_equal(&w);
    close_world(&w);
}

TEST(retry_after_is_obeyed)
{
    world w;
    begin(&w);
    fake_kube_fault(w.server, FAKE_WATCH, FAULT_STATUS, 429, 1, 1);
    fake_kube_cut(w.server);
    wait_requests(&w, FAKE_WATCH, 2);
    int64_t began = clock_monotonic_ms();
    churn(&w);
    wait_equal(&w);
    CHECK(clock_monotonic_ms() - began >= 900);
    CHECK_INT(fake_kube_requests(w.server, FAKE_WATCH), 3);
    close_world(&w);
}

TEST(forbidden_is_said_at_once)
{
    world w;
    open_world(&w, NULL);
    err e = ERR_INIT;
    fake_kube_fault(w.server, FAKE_LIST, FAULT_STATUS, 403, -1, 10);
    kube_watch_config config = {.access = &w.config, .path = FAKE_KUBE_PODS, .changed = on_change,
                                .context = &w};
    CHECK_OK(kube_watch_start(&config, &w.watch, &e), e);
    CHECK_ERR(kube_watch_wait(w.watch, clock_deadline_ms(WAIT_MS), &e), e, ERR_FORBIDDEN,
              "as the test says");
    close_world(&w);
}

/* ---- single calls ---------------------------------------------------------------------------- */

static kube_client *open_client(world *w)
{
    kube_client *c = NULL;
    err e = ERR_INIT;
    CHECK_OK(kube_client_open(&w->config, &c, &e), e);
    return c;
}

static json_t *a_pod(const char *name)
{
    return json_pack("{s:{s:s}}", "metadata", "name", name);
}

TEST(a_create_whose_answer_is_lost_is_not_doubled)
{
    world w;
    open_world(&w, NULL);
    kube_client *c = open_client(&w);
    cleanup_json json_t *pod = a_pod("x");
    err e = ERR_INIT;
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_DONE_DROP, 0, 0, 1);
    CHECK_OK(kube_create(c, FAKE_KUBE_PODS, pod, clock_deadline_ms(WAIT_MS), NULL, &e), e);
    cleanup_json json_t *there = fake_kube_copy(w.server);
    CHECK_INT(json_object_size(there), 1);
    CHECK_INT(fake_kube_requests(w.server, FAKE_CREATE), 2);
    /* Without a lost answer the name is somebody else's. */
    CHECK_ERR(kube_create(c, FAKE_KUBE_PODS, pod, clock_deadline_ms(WAIT_MS), NULL, &e), e,
              ERR_EXISTS, "exists");
    kube_client_close(c);
    close_world(&w);
}

/* One client, through all of it: the file is read for every try. */
TEST(a_rotated_token_is_in_the_next_call)
{
    world w;
    char path[600];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/token", test_tmp());
    write_token(path, "first\n");
    open_world(&w, path);
    fake_kube_token(w.server, "first");
    put(&w, "a", "Pending");
    kube_client *c = open_client(&w);
    const char *pod = FAKE_KUBE_PODS "/a";
    CHECK_OK(kube_get(c, pod, NULL, clock_deadline_ms(WAIT_MS), NULL, &e), e);
    CHECK_INT(fake_kube_requests(w.server, FAKE_GET), 1);
    /* The file was rotated in time: the next call, on the connection that is there, has it. */
    fake_kube_token(w.server, "second");
    write_token(path, "second\n");
    CHECK_OK(kube_get(c, pod, NULL, clock_deadline_ms(WAIT_MS), NULL, &e), e);
    CHECK_INT(fake_kube_requests(w.server, FAKE_GET), 2);
    /* It is rotated while the call is under way: refused once, and tried with the new one. */
    fake_kube_token(w.server, "third");
    fake_kube_rotate(w.server, path);
    cleanup_json json_t *more = a_pod("b");
    CHECK_OK(kube_create(c, FAKE_KUBE_PODS, more, clock_deadline_ms(WAIT_MS), NULL, &e), e);
    CHECK_INT(fake_kube_requests(w.server, FAKE_CREATE), 2);
    /* One that nobody renews is an error after a few tries. */
    fake_kube_token(w.server, "fourth");
    CHECK_ERR(kube_get(c, pod, NULL, clock_deadline_ms(WAIT_MS), NULL, &e), e, ERR_UNAUTHORIZED,
              "Unauthorized");
    CHECK_INT(fake_kube_requests(w.server, FAKE_GET), 2 + KUBE_UNAUTHORIZED_TRIES);
    kube_client_close(c);
    close_world(&w);
}

TEST(what_a_status_means)
{
    static const struct {
        int status;
        err_code code;
    } known[] = {{400, ERR_INVALID},     {401, ERR_UNAUTHORIZED}, {403, ERR_FORBIDDEN},
                 {404, ERR_NOT_FOUND},   {409, ERR_CONFLICT},     {410, ERR_STALE},
                 {422, ERR_INVALID},     {429, ERR_UNAVAILABLE},  {500, ERR_UNAVAILABLE},
                 {503, ERR_UNAVAILABLE}, {504, ERR_UNAVAILABLE}};
    world w;
    open_world(&w, NULL);
    kube_client *c = open_client(&w);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        err e = ERR_INIT;
        kube_outcome o;
        fake_kube_fault(w.server, FAKE_GET, FAULT_STATUS, known[i].status, -1, 1);
        kube_request r = {.method = "GET", .path = FAKE_KUBE_PODS "/x"};
        CHECK_ERR(kube_try(c, &r, clock_deadline_ms(WAIT_MS), NULL, &o, &e), e, known[i].code,
                  "as the test says");
    }
    err e = ERR_INIT;
    cleanup_json json_t *pod = a_pod("x");
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_QUOTA, 0, 0, 1);
    CHECK_ERR(kube_create(c, FAKE_KUBE_PODS, pod, clock_deadline_ms(WAIT_MS), NULL, &e), e,
              ERR_LIMIT, "quota");
    kube_client_close(c);
    close_world(&w);
}

TEST(calls_go_on_after_faults)
{
    world w;
    open_world(&w, NULL);
    put(&w, "x", "Running");
    kube_client *c = open_client(&w);
    err e = ERR_INIT;
    cleanup_json json_t *got = NULL;
    fake_kube_fault(w.server, FAKE_GET, FAULT_STATUS, 503, -1, 1);
    fake_kube_fault(w.server, FAKE_GET, FAULT_DROP, 0, 0, 1);
    fake_kube_fault(w.server, FAKE_GET, FAULT_STATUS, 429, 1, 1);
    int64_t began = clock_monotonic_ms();
    CHECK_OK(kube_get(c, FAKE_KUBE_PODS "/x", NULL, clock_deadline_ms(WAIT_MS), &got, &e), e);
    CHECK_STR(name_of(got), "x");
    CHECK(clock_monotonic_ms() - began >= 1000); /* Retry-After */
    kube_client_close(c);
    close_world(&w);
}

TEST(a_status_is_applied_whole)
{
    static const char collection[] = "/apis/" KUBE_RESOURCES "/namespaces/test/trainjobs";
    world w;
    char path[200];
    open_world(&w, NULL);
    kube_client *c = open_client(&w);
    err e = ERR_INIT;
    cleanup_json json_t *done = json_pack("{s:s, s:i}", "state", "succeeded", "epoch", 3);
    snprintf(path, sizeof path, "%s/one/status", collection);
    /* Of another manager, which an apply leaves there. */
    fake_kube_set(
        w.server, path,
        json_pack("{s:{s:s, s:s}}", "status", "state", "running", "gpu", "4 nvidia.com/gpu"));
    CHECK_OK(
        kube_apply_status(c, collection, "TrainJob", "one", done, clock_deadline_ms(WAIT_MS), &e),
        e);
    cleanup_json json_t *now = fake_kube_object(w.server, path);
    CHECK(json_equal(json_object_get(now, "status"), done));
    /* an apply says what it is */
    CHECK_STR(json_string_value(json_object_get(now, "kind")), "TrainJob");
    CHECK_INT(fake_kube_requests(w.server, FAKE_PATCH), 2);
    CHECK_OK(
        kube_apply_status(c, collection, "TrainJob", "one", done, clock_deadline_ms(WAIT_MS), &e),
        e);
    CHECK_INT(fake_kube_requests(w.server, FAKE_PATCH), 3);
    fake_kube_fault(w.server, FAKE_PATCH, FAULT_STATUS, 404, -1, 1);
    CHECK_ERR(
        kube_apply_status(c, collection, "TrainJob", "one", done, clock_deadline_ms(WAIT_MS), &e),
        e, ERR_NOT_FOUND, "test says");
    kube_client_close(c);
    close_world(&w);
}

TEST(a_deadline_ends_it)
{
    world w;
    open_world(&w, NULL);
    kube_client *c = open_client(&w);
    err e = ERR_INIT;
    fake_kube_fault(w.server, FAKE_GET, FAULT_STATUS, 503, -1, 50);
    CHECK_ERR(kube_get(c, FAKE_KUBE_PODS "/x", NULL, clock_deadline_ms(700), NULL, &e), e,
              ERR_UNAVAILABLE, "test says");
    CHECK(fake_kube_requests(w.server, FAKE_GET) <= 6);
    kube_client_close(c);
    close_world(&w);
}

static void *cancel_soon(void *arg)
{
    poll(NULL, 0, 50);
    kube_client_cancel(arg);
    return NULL;
}

TEST(a_cancelled_watch_ends)
{
    world w;
    begin(&w); /* its watch is open and quiet */
    kube_watch_stop(w.watch);
    w.watch = NULL;
    kube_client *c = open_client(&w);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, cancel_soon, c) == 0);
    CHECK(!kube_client_sleep(c, 60000));
    pthread_join(other, NULL);
    kube_client_close(c);
    close_world(&w);
}

TEST(waits_double_with_chance)
{
    kube_backoff one, other;
    kube_backoff_init(&one, 1);
    kube_backoff_init(&other, 2);
    int same = 0, most = KUBE_BACKOFF_MS;
    for (int i = 0; i < 12; i++) {
        int a = kube_backoff_next(&one), b = kube_backoff_next(&other);
        CHECK(a >= most / 2 && a <= most);
        same += a == b;
        most = most * 2 < KUBE_BACKOFF_MS_MAX ? most * 2 : KUBE_BACKOFF_MS_MAX;
    }
    CHECK(same < 4);
}

/* ---- kubeconfig ------------------------------------------------------------------------------ */

static const char *write_kubeconfig(const char *user)
{
    static char path[600];
    char text[2000];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/kubeconfig", test_tmp());
    int len = snprintf(text, sizeof text,
                       "apiVersion: v1\nkind: Config\ncurrent-context: one\n"
                       "clusters:\n- name: c\n  cluster: {server: 'https://10.0.0.1:6443/', "
                       "certificate-authority-data: SGVsbG8=}\n"
                       "contexts:\n- name: one\n  context: {cluster: c, user: u, namespace: ml}\n"
                       "- name: two\n  context: {cluster: c, user: missing}\n"
                       "users:\n- name: u\n  user: %s\n",
                       user);
    CHECK_OK(fs_write_file(path, text, (size_t)len, 0600, &e), e);
    return path;
}

TEST(kubeconfig_is_read)
{
    kube_config c;
    err e = ERR_INIT;
    const char *path =
        write_kubeconfig("{client-certificate: pki/u.crt, client-key-data: SGVsbG8=, token: abc}");
    char crt[700];
    CHECK_OK(kube_config_read(path, NULL, &c, &e), e);
    snprintf(crt, sizeof crt, "%s/pki/u.crt", test_tmp());
    CHECK_STR(c.server, "https://10.0.0.1:6443");
    CHECK_STR(c.ca_pem, "Hello");
    CHECK_STR(c.key_pem, "Hello");
    CHECK_STR(c.cert_file, crt);
    CHECK_STR(c.token, "abc");
    CHECK_STR(c.namespace_name, "ml");
    kube_config_free(&c);
    CHECK_ERR(kube_config_read(path, "two", &c, &e), e, ERR_NOT_FOUND, "missing");
    CHECK_ERR(kube_config_read(path, "three", &c, &e), e, ERR_NOT_FOUND, "three");
    CHECK_ERR(kube_config_read("/nowhere/config", NULL, &c, &e), e, ERR_NOT_FOUND,
              "/nowhere/config");
}

TEST(kubeconfig_plugins_are_refused)
{
    kube_config c;
    err e = ERR_INIT;
    const char *path = write_kubeconfig("{exec: {command: aws, apiVersion: v1}}");
    CHECK_ERR(kube_config_read(path, NULL, &c, &e), e, ERR_UNSUPPORTED, "\"exec\"");
    path = write_kubeconfig("{token: [unclosed");
    CHECK_ERR(kube_config_read(path, NULL, &c, &e), e, ERR_INVALID, "line");
}

TEST(service_account_is_read)
{
    kube_config c;
    err e = ERR_INIT;
    char path[700];
    static const char *const files[][2] = {{"token", "t"}, {"ca.crt", "pem"}, {"namespace", "ml"}};
    setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "443", 1);
    CHECK_ERR(kube_config_in_cluster(test_tmp(), &c, &e), e, ERR_NOT_FOUND, "service account");
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", test_tmp(), files[i][0]);
        CHECK_OK(fs_write_file(path, files[i][1], strlen(files[i][1]), 0600, &e), e);
    }
    CHECK_OK(kube_config_in_cluster(test_tmp(), &c, &e), e);
    CHECK_STR(c.server, "https://10.96.0.1:443");
    CHECK_STR(c.namespace_name, "ml");
    kube_config_free(&c);
    unsetenv("KUBERNETES_SERVICE_HOST");
    CHECK_ERR(kube_config_in_cluster(test_tmp(), &c, &e), e, ERR_NOT_FOUND, "not in a pod");
}
