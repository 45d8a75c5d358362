/* test_function_reconciler.c: functions come and go with their objects, and only with them. The API
 * server is scripted, and so is the registry: what stands below is linked in the place of
 * registry.c. */
#include <poll.h>
#include <pthread.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "controller/functions/registry.h"
#include "controller/operator/function_reconciler.h"
#include "fake_kube.h"
#include "test.h"
#include "store_memory.h"

enum { WAIT_MS = 15000 };

#define FOLDER "/apis/kubeml.dev/v1alpha1/namespaces/test"

/* ---- a registry that does as it is told ------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    json_t *functions; /* by name */
    int made;
    err_code refuses; /* to delete */
    int asked;        /* to delete */
    err_code fails;   /* to make */
    int64_t failed_ms[3];
    int failed;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static json_t *make_locked(const char *name, const char *model, int version, const char *created)
{
    char now[24];
    snprintf(now, sizeof now, "moment %d", ++registry.made);
    json_t *record = json_pack("{s:s, s:s, s:i, s:s, s:s}", "name", name, "model", model, "version",
                               version, "created", created ? created : now, "digest", model);
    json_object_set_new(registry.functions, name, record);
    return record;
}

int registry_get(controller *c, const char *name, json_t **out, err *e)
{
    (void)c;
    pthread_mutex_lock(&registry.lock);
    *out = json_deep_copy(json_object_get(registry.functions, name));
    pthread_mutex_unlock(&registry.lock);
    return *out ? 0 : err_set(e, ERR_NOT_FOUND, "there is no function \"%s\"", name);
}

int registry_put(controller *c, const char *name, const registry_upload *u, bool update,
                 json_t **out, json_t **said, err *e)
{
    (void)c;
    (void)said;
    pthread_mutex_lock(&registry.lock);
    err_code code = registry.fails;
    if (code != ERR_NONE && registry.failed < 3)
        registry.failed_ms[registry.failed++] = clock_monotonic_ms();
    if (code != ERR_NONE) {
        pthread_mutex_unlock(&registry.lock);
        return err_set(e, code, "as the test says");
    }
    json_t *old = json_incref(json_object_get(registry.functions, name));
    const json_t *now = old;
    int version = old ? (int)json_integer_value(json_object_get(old, "version")) : 0;
    bool fits = update == (old != NULL);
    if (fits && (!old || strcmp(text_of(old, "model"), u->model) != 0))
        now = make_locked(name, u->model, version + 1, old ? text_of(old, "created") : NULL);
    *out = fits ? json_deep_copy(now) : NULL;
    json_decref(old);
    pthread_mutex_unlock(&registry.lock);
    return fits ? 0 : err_set(e, update ? ERR_NOT_FOUND : ERR_EXISTS, "function \"%s\"", name);
}

int registry_delete(controller *c, const char *name,
                    int (*delete_unused)(job_manager *o, const char *name, err *e), err *e)
{
    (void)c;
    (void)delete_unused;
    pthread_mutex_lock(&registry.lock);
    registry.asked++;
    err_code code = registry.refuses;
    if (code == ERR_NONE && json_object_del(registry.functions, name))
        code = ERR_NOT_FOUND;
    pthread_mutex_unlock(&registry.lock);
    return code == ERR_NONE ? 0 : err_set(e, code, "as the test says");
}

/* ---- the test's hands ------------------------------------------------------------------------ */

/* Through the API; what was there before is deleted. */
static void user_makes(const char *name)
{
    pthread_mutex_lock(&registry.lock);
    make_locked(name, "lenet5", 1, NULL);
    pthread_mutex_unlock(&registry.lock);
}

static void user_updates(const char *name)
{
    pthread_mutex_lock(&registry.lock);
    json_t *old = json_incref(json_object_get(registry.functions, name));
    make_locked(name, "resnet20", 1 + (int)json_integer_value(json_object_get(old, "version")),
                text_of(old, "created"));
    json_decref(old);
    pthread_mutex_unlock(&registry.lock);
}

static void refuse(err_code code)
{
    pthread_mutex_lock(&registry.lock);
    registry.refuses = code;
    registry.asked = 0;
    pthread_mutex_unlock(&registry.lock);
}

static int asked(void)
{
    pthread_mutex_lock(&registry.lock);
    int n = registry.asked;
    pthread_mutex_unlock(&registry.lock);
    return n;
}

static void wait_asked(void)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (asked() == 0) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
}

static void make_fail(err_code code)
{
    pthread_mutex_lock(&registry.lock);
    registry.fails = code;
    pthread_mutex_unlock(&registry.lock);
}

/* When it was tried so often in vain. */
static int64_t wait_failed(int times)
{
    int64_t deadline = clock_deadline_ms(2 * WAIT_MS), when = 0;
    while (when == 0) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
        pthread_mutex_lock(&registry.lock);
        when = registry.failed_ms[times - 1];
        pthread_mutex_unlock(&registry.lock);
    }
    return when;
}

/* 0: there is none */
static int version_of(const char *name)
{
    pthread_mutex_lock(&registry.lock);
    const json_t *record = json_object_get(registry.functions, name);
    int version = (int)json_integer_value(json_object_get(record, "version"));
    pthread_mutex_unlock(&registry.lock);
    return version;
}

static void wait_version(const char *name, int version)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (version_of(name) != version) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
}

typedef struct world {
    fake_kube *server;
    kube_config access;
    controller controller;
    function_reconciler *reconciler;
} world;

static void lead(world *w)
{
    err e = ERR_INIT;
    CHECK_OK(function_reconciler_start(&w->access, "here", &w->controller, &w->reconciler, &e), e);
}

static void open_world(world *w)
{
    err e = ERR_INIT;
    *w = (world){.server = fake_kube_start()};
    fake_kube_collection(w->server, FOLDER "/functions");
    fake_kube_set(w->server, FOLDER "/datasets",
                  json_pack("{s:{s:s}, s:[]}", "metadata", "resourceVersion", "1", "items"));
    w->access.server = strdup(fake_kube_url(w->server));
    snprintf(w->access.namespace_name, sizeof w->access.namespace_name, "test");
    w->controller.store = store_open(store_memory_locator(), &e);
    CHECK(w->controller.store);
    registry.functions = json_object();
    lead(w);
}

static void close_world(world *w)
{
    function_reconciler_stop(w->reconciler);
    fake_kube_stop(w->server);
    store_close(w->controller.store);
    kube_config_free(&w->access);
    json_decref(registry.functions);
}

static void apply(world *w, const char *name, const char *model)
{
    fake_kube_put(w->server, name, json_pack("{s:{s:s}}", "spec", "model", model));
}

static void apply_and_wait(world *w, const char *name)
{
    apply(w, name, "lenet5");
    wait_version(name, 1);
}

/* ---- cases ----------------------------------------------------------------------------------- */

TEST(a_function_comes_and_goes_with_its_object)
{
    world w;
    open_world(&w);
    apply_and_wait(&w, "lenet");
    apply(&w, "lenet", "resnet20");
    wait_version("lenet", 2);
    fake_kube_remove(w.server, "lenet");
    wait_version("lenet", 0);
    close_world(&w);
}

/* The builder is everybody's: it may be that very code that it has no memory for. */
TEST_LIMIT(a_function_that_cannot_be_built_now_is_tried_less_and_less, 90)
{
    world w;
    open_world(&w);
    make_fail(ERR_NOMEM);
    apply(&w, "lenet", "lenet5");
    int64_t second = wait_failed(2), third = wait_failed(3);
    CHECK(third - second >= 10000);
    make_fail(ERR_NONE);
    apply(&w, "lenet", "resnet20"); /* other code is tried at once */
    wait_version("lenet", 1);
    close_world(&w);
}

TEST(a_function_goes_when_the_store_is_back)
{
    world w;
    open_world(&w);
    apply_and_wait(&w, "lenet");
    refuse(ERR_UNAVAILABLE);
    fake_kube_remove(w.server, "lenet");
    wait_asked();
    CHECK_INT(version_of("lenet"), 1);
    refuse(ERR_NONE);
    wait_version("lenet", 0);
    close_world(&w);
}

TEST(a_function_whose_object_is_there_again_stays)
{
    world w;
    open_world(&w);
    apply_and_wait(&w, "lenet");
    refuse(ERR_UNAVAILABLE);
    fake_kube_remove(w.server, "lenet");
    wait_asked();
    apply(&w, "lenet", "resnet20");
    wait_version("lenet", 2);
    refuse(ERR_NONE);
    apply_and_wait(&w, "later"); /* a turn later */
    CHECK_INT(version_of("lenet"), 2);
    CHECK_INT(asked(), 0);
    close_world(&w);
}

/* As the API says to who deletes it: once. */
TEST(a_function_that_a_job_uses_stays)
{
    world w;
    open_world(&w);
    apply_and_wait(&w, "lenet");
    refuse(ERR_CONFLICT);
    fake_kube_remove(w.server, "lenet");
    wait_asked();
    apply_and_wait(&w, "later");
    CHECK_INT(asked(), 1);
    function_reconciler_stop(w.reconciler);
    refuse(ERR_NONE);
    lead(&w); /* for another leader too it is nobody's but the user's */
    apply_and_wait(&w, "last");
    CHECK_INT(asked(), 0);
    CHECK_INT(version_of("lenet"), 1);
    close_world(&w);
}

TEST(what_was_deleted_while_nobody_led_goes_as_somebody_leads)
{
    world w;
    open_world(&w);
    apply_and_wait(&w, "gone");
    apply_and_wait(&w, "changed");
    apply(&w, "changed", "resnet20");
    wait_version("changed", 2);
    apply_and_wait(&w, "kept");
    function_reconciler_stop(w.reconciler);
    fake_kube_remove(w.server, "gone");
    fake_kube_remove(w.server, "changed");
    user_makes("own");
    store_memory_fail(w.controller.store, 1, ERR_UNAVAILABLE); /* it is tried again */
    lead(&w);
    wait_version("gone", 0);
    wait_version("changed", 0);
    apply_and_wait(&w, "later");
    CHECK_INT(version_of("kept"), 1);
    CHECK_INT(version_of("own"), 1);
    close_world(&w);
}

static void be_namespace(world *w, const char *uid)
{
    fake_kube_set(w->server, "/api/v1/namespaces/test",
                  json_pack("{s:{s:s, s:s}}", "metadata", "name", "test", "uid", uid));
}

/* Installed again on the same database after `kubectl delete namespace`, which took the objects. */
TEST(functions_of_a_namespace_that_was_deleted_stay)
{
    world w;
    open_world(&w);
    function_reconciler_stop(w.reconciler);
    be_namespace(&w, "before");
    lead(&w);
    apply_and_wait(&w, "lenet");
    apply_and_wait(&w, "other");
    function_reconciler_stop(w.reconciler);
    fake_kube_remove(w.server, "lenet");
    fake_kube_remove(w.server, "other");
    be_namespace(&w, "now");
    lead(&w);
    apply_and_wait(&w, "later");
    CHECK_INT(version_of("lenet"), 1);
    CHECK_INT(version_of("other"), 1);
    apply(&w, "lenet", "resnet20"); /* applied again it comes and goes with its object */
    wait_version("lenet", 2);
    fake_kube_remove(w.server, "lenet");
    wait_version("lenet", 0);
    CHECK_INT(asked(), 1);
    close_world(&w);
}

/* While somebody leads until the end. */
TEST(functions_stay_while_their_namespace_is_deleted)
{
    world w;
    open_world(&w);
    function_reconciler_stop(w.reconciler);
    be_namespace(&w, "before");
    lead(&w);
    apply_and_wait(&w, "lenet");
    fake_kube_set(w.server, "/api/v1/namespaces/test",
                  json_pack("{s:{s:s, s:s, s:s}}", "metadata", "name", "test", "uid", "before",
                            "deletionTimestamp", "2026-01-01T00:00:00Z"));
    fake_kube_remove(w.server, "lenet");
    apply_and_wait(&w, "later"); /* in the turn that knows of the removal, or after it */
    CHECK_INT(version_of("lenet"), 1);
    CHECK_INT(asked(), 0);
    close_world(&w);
}

/* Older versions did not write whose they were. */
TEST(functions_of_older_versions_go_where_objects_of_others_stand)
{
    world w;
    open_world(&w);
    err e = ERR_INIT;
    cleanup_json json_t *mark = NULL;
    apply_and_wait(&w, "gone");
    apply_and_wait(&w, "kept");
    function_reconciler_stop(w.reconciler);
    CHECK_OK(store_get(w.controller.store, "functionobjects", "gone", &mark, NULL, &e), e);
    json_object_del(mark, "uid");
    CHECK_OK(store_put(w.controller.store, "functionobjects", "gone", mark, STORE_ANY, NULL, &e),
             e);
    fake_kube_remove(w.server, "gone");
    lead(&w);
    wait_version("gone", 0);
    CHECK_INT(version_of("kept"), 1);
    close_world(&w);
}

/* Whatever objects of its name there were. */
TEST(what_a_user_made_never_goes_as_somebody_leads)
{
    world w;
    open_world(&w);
    user_makes("first"); /* and then there is an object of that name */
    apply(&w, "first", "lenet5");
    apply_and_wait(&w, "anew");
    apply_and_wait(&w, "updated");
    apply_and_wait(&w, "moved");
    apply_and_wait(&w, "gone");
    function_reconciler_stop(w.reconciler);
    fake_kube_remove(w.server, "first");
    fake_kube_remove(w.server, "anew");
    user_makes("anew");
    fake_kube_remove(w.server, "updated");
    user_updates("updated");
    fake_kube_put(w.server, "moved", /* another platform's by now */
                  json_pack("{s:{s:{s:s}}}", "metadata", "labels", "kubeml.dev/install", "there"));
    fake_kube_remove(w.server, "gone");
    lead(&w);
    wait_version("gone", 0);
    apply_and_wait(&w, "later");
    CHECK_INT(asked(), 1);
    CHECK_INT(version_of("first"), 1);
    CHECK_INT(version_of("anew"), 1);
    CHECK_INT(version_of("updated"), 2);
    CHECK_INT(version_of("moved"), 1);
    close_world(&w);
}

/* Nor while somebody leads. */
TEST(what_a_user_made_does_not_go_with_an_object_of_its_name)
{
    world w;
    open_world(&w);
    user_makes("first"); /* and then there is an object of that name */
    apply(&w, "first", "resnet20");
    wait_version("first", 2);
    apply_and_wait(&w, "anew");
    user_makes("anew");
    apply_and_wait(&w, "updated");
    fake_kube_put(w.server, "updated", json_pack("{s:{s:i}}", "status", "version", 1));
    apply_and_wait(&w, "gone"); /* from now on it is known that the other is registered */
    user_updates("updated");
    fake_kube_remove(w.server, "first");
    fake_kube_remove(w.server, "anew");
    fake_kube_remove(w.server, "updated");
    fake_kube_remove(w.server, "gone");
    wait_version("gone", 0);
    CHECK_INT(asked(), 1);
    CHECK_INT(version_of("first"), 2);
    CHECK_INT(version_of("anew"), 1);
    CHECK_INT(version_of("updated"), 2);
    close_world(&w);
}
