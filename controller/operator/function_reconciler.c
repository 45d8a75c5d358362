/* function_reconciler.c: see function_reconciler.h. The watches' threads only keep copies; another
 * thread goes through all objects, every two seconds and when an object has changed. */
#include "function_reconciler.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/name.h"
#include "common/dataset/dataset.h"
#include "controller/functions/build_failure.h"
#include "controller/functions/registry.h"
#include "controller/jobs/job_manager.h"
#include "controller/kube/kube_claim.h"
#include "controller/kube/kube_pods.h"
#include "controller/kube/kube_status.h"
#include "controller/kube/kube_watch.h"

enum {
    CALL_MS = 10000,
    RETRY_MS = 5000, /* until a failed function is tried again; doubled each time */
    RETRY_MS_MAX = 600000,
    PLATFORM_BYTES = 2 * KUBE_NAME_BYTES,
};

/* A collection of the store, by the function's name: {"platform", "uid", "created", "version"}. A
 * Function object of this platform, in the namespace of that uid (older versions did not write it),
 * made the function that was created then, and that version of it. The function is deleted with its
 * object, also where the object is deleted while no controller leads. A function that a user made
 * before, or made or changed through the API since, has another time or version, and stays; so does
 * a function whose object was deleted with its namespace. */
#define MADE "functionobjects"

/* Functions, or Datasets. */
typedef struct watched {
    struct function_reconciler *reconciler;
    const char *kind;
    char path[300];
    kube_watch *watch;
    kube_status *status; /* the reconciler's thread's */
    json_t *objects;     /* by name; with the lock */
    json_t *others;      /* names of another installation's objects; with the lock */
    json_t *gone;        /* names; with the lock */
    bool whole;          /* with the lock */
    err_code lacks;      /* why it is not whole or not current, as last logged; the watch's */
} watched;

struct function_reconciler {
    controller *controller;
    const kube_config *access;
    char install[KUBE_INSTALL_BYTES], platform[PLATFORM_BYTES];
    kube_client *client;
    pthread_t thread;
    bool running;
    watched functions, datasets;
    /* the reconciler's thread's: */
    char uid[KUBE_UID_BYTES]; /* the namespace's */
    bool knows_uid;
    json_t *tried;   /* uid: {"generation", "when", "wait", "reason", "message"} */
    json_t *leaving; /* functions to be deleted; true: a delay was logged */
    bool compared;   /* with what was made under earlier leaders */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping, dirty;
};

static json_int_t generation_of(const json_t *object)
{
    return json_integer_value(json_object_get(json_object_get(object, "metadata"), "generation"));
}

/* ---- status ---------------------------------------------------------------------------------- */

static json_t *ready_condition(const json_t *object, bool yes, const char *reason,
                               const char *message)
{
    const json_t *list = json_object_get(json_object_get(object, "status"), "conditions");
    const json_t *old = json_array_get(list, 0);
    const char *status = yes ? "True" : "False";
    char now[32];
    clock_rfc3339(clock_wall_ms() / 1000 * 1000, now);
    bool same = strcmp(text_of(old, "status"), status) == 0;
    return json_pack("[{s:s, s:s, s:s, s:s, s:I, s:s}]", "type", "Ready", "status", status,
                     "reason", reason, "message", message, "observedGeneration",
                     generation_of(object), "lastTransitionTime",
                     same ? text_of(old, "lastTransitionTime") : now);
}

/* Steals `status`. */
static void write_status(function_reconciler *k, const watched *s, const json_t *object,
                         json_t *status)
{
    err e = ERR_INIT;
    if (status &&
        kube_status_write(s->status, k->client, object, status, clock_deadline_ms(CALL_MS), &e) <
            0 &&
        e.code != ERR_NOT_FOUND && e.code != ERR_CANCELLED)
        log_warn("the status of %s %s: %s", s->kind, kube_object_text(object, "name"), e.message);
    json_decref(status);
}

/* Sets our label on the object; whether the object is ours. */
static bool claim(function_reconciler *k, const watched *s, const json_t *object)
{
    char path[700];
    err e = ERR_INIT;
    const char *name = kube_object_text(object, "name");
    snprintf(path, sizeof path, "%s/%s", s->path, name);
    if (kube_claim_note(k->client, path, object, k->install, NULL, clock_deadline_ms(CALL_MS),
                        &e) == 0)
        return true;
    if (e.code != ERR_CONFLICT && e.code != ERR_NOT_FOUND && e.code != ERR_CANCELLED)
        log_warn("%s %s cannot be noted as ours: %s", s->kind, name, e.message);
    return false;
}

/* ---- functions ------------------------------------------------------------------------------- */

static int put_function(controller *c, const char *name, const json_t *spec, bool update,
                        json_t **record, err *e)
{
    const char *source = json_string_value(json_object_get(spec, "source"));
    char file[BUILDER_NAME_BYTES];
    cleanup_json json_t *diagnostics = NULL;
    registry_upload *u = calloc(1, sizeof *u);
    if (!u)
        return err_set(e, ERR_NOMEM, "no memory for function %s", name);
    u->model = json_string_value(json_object_get(spec, "model"));
    snprintf(file, sizeof file, "%.40s.c", name);
    if (source) {
        u->files[0].name = file;
        u->files[0].text = source;
        u->files[0].len = strlen(source);
        u->count = 1;
    }
    int status = registry_put(c, name, u, update, record, &diagnostics, e);
    free(u);
    return status;
}

static json_t *mark_of(const function_reconciler *k, const json_t *record)
{
    return json_pack("{s:s, s:O, s:O}", "platform", k->platform, "created",
                     json_object_get(record, "created"), "version",
                     json_object_get(record, "version"));
}

/* Whether an object made the function, whoever made its newest version. */
static bool was_made(const function_reconciler *k, const json_t *record)
{
    cleanup_json json_t *mark = NULL;
    return store_get(k->controller->store, MADE, text_of(record, "name"), &mark, NULL, NULL) == 0 &&
           strcmp(text_of(mark, "created"), text_of(record, "created")) == 0;
}

/* Notes that an object made this version, unless a user had made the function before. */
static void note_made(function_reconciler *k, const json_t *record, bool fresh)
{
    const char *name = text_of(record, "name");
    err e = ERR_INIT;
    if (!fresh && !was_made(k, record))
        return;
    cleanup_json json_t *mark = mark_of(k, record);
    if (!mark || json_object_set_new(mark, "uid", json_string(k->uid)))
        err_set(&e, ERR_NOMEM, "no memory");
    else
        store_put(k->controller->store, MADE, name, mark, STORE_ANY, NULL, &e);
    if (e.code != ERR_NONE)
        log_warn("that function %s has an object cannot be noted: %s", name, e.message);
}

static void unnote_made(function_reconciler *k, const char *name)
{
    err e = ERR_INIT;
    if (store_delete(k->controller->store, MADE, name, STORE_ANY, &e) && e.code != ERR_NOT_FOUND)
        log_warn("that function %s has no object any more cannot be noted: %s", name, e.message);
}

/* How the last try of this generation failed; NULL: there was none. */
static const json_t *last_try(const function_reconciler *k, const json_t *object)
{
    const json_t *last = json_object_get(k->tried, kube_object_text(object, "uid"));
    return json_integer_value(json_object_get(last, "generation")) == generation_of(object) ? last
                                                                                            : NULL;
}

/* The failure to report; NULL: try now. A mistake in the code is not compiled again and again. */
static const json_t *failure_of(const function_reconciler *k, const json_t *object)
{
    const json_t *last = last_try(k, object);
    json_int_t when = json_integer_value(json_object_get(last, "when"));
    json_int_t wait = json_integer_value(json_object_get(last, "wait"));
    return wait == 0 || clock_monotonic_ms() < when + wait ? last : NULL;
}

/* Notes a failure. The function may be the cause of a failure that a retry may help: its compiler
 * may need more memory than the builder has, which compiles for everybody. So each wait is longer
 * than the one before. */
static json_t *function_failed(function_reconciler *k, const json_t *object, const err *e)
{
    bool again = err_retry_may_help(e->code);
    const char *reason = e->code == ERR_NOT_FOUND ? "NotFound"
                         : again                  ? "Unavailable"
                                                  : "BuildFailed";
    json_int_t wait = 2 * json_integer_value(json_object_get(last_try(k, object), "wait"));
    if (again)
        wait = wait == 0 ? RETRY_MS : wait < RETRY_MS_MAX ? wait : RETRY_MS_MAX;
    json_t *last = json_pack("{s:I, s:I, s:I, s:s, s:s}", "generation", generation_of(object),
                             "when", (json_int_t)clock_monotonic_ms(), "wait",
                             again ? wait : (json_int_t)0, "reason", reason, "message", e->message);
    json_object_set_new(k->tried, kube_object_text(object, "uid"), last);
    return last;
}

static json_t *function_status(const json_t *object, const json_t *record)
{
    json_t *status = json_pack("{s:I, s:o}", "observedGeneration", generation_of(object),
                               "conditions", ready_condition(object, true, "Registered", ""));
    json_object_set(status, "version", json_object_get(record, "version"));
    json_object_set(status, "digest", json_object_get(record, "digest"));
    return status;
}

static void take_function(function_reconciler *k, const json_t *object)
{
    const char *name = kube_object_text(object, "name");
    const json_t *status = json_object_get(object, "status"), *failed = failure_of(k, object);
    cleanup_json json_t *record = NULL;
    err e = ERR_INIT;
    bool known = registry_get(k->controller, name, &record, &e) == 0;
    bool seen = json_integer_value(json_object_get(status, "observedGeneration")) ==
                    generation_of(object) &&
                json_object_get(status, "version");
    if (!known && e.code != ERR_NOT_FOUND)
        return; /* the store is away: the status stays */
    if (!(known && seen) && !failed) {
        json_t *made = NULL;
        err_clear(&e);
        if (name_check("function", name, &e) ||
            put_function(k->controller, name, json_object_get(object, "spec"), known, &made, &e)) {
            failed = function_failed(k, object, &e);
        } else {
            json_object_del(k->tried, kube_object_text(object, "uid"));
            note_made(k, made, !known);
            json_decref(record);
            record = made;
        }
    }
    if (failed)
        write_status(k, &k->functions, object,
                     json_pack("{s:I, s:o}", "observedGeneration", generation_of(object),
                               "conditions",
                               ready_condition(object, false, text_of(failed, "reason"),
                                               text_of(failed, "message"))));
    else if (record)
        write_status(k, &k->functions, object, function_status(object, record));
}

/* Whether the function is still as its deleted object has made it. False with an error: unknown;
 * with ERR_NOT_FOUND: there is no function that an object made. */
static bool is_as_made(function_reconciler *k, const char *name, err *e)
{
    cleanup_json json_t *record = NULL, *mark = NULL;
    if (registry_get(k->controller, name, &record, e) ||
        store_get(k->controller->store, MADE, name, &mark, NULL, e))
        return false;
    cleanup_json json_t *now = mark_of(k, record);
    json_object_del(mark, "uid"); /* its object was just here, or compare() has checked it */
    return json_equal(now, mark);
}

/* Deletes the function of a deleted object; false: to be tried again. */
static bool drop_function(function_reconciler *k, const char *name, bool said)
{
    err e = ERR_INIT;
    if (name_check("function", name, NULL))
        return true;
    if (!kube_config_may_write(k->access))
        return false;
    if (is_as_made(k, name, &e))
        registry_delete(k->controller, name, job_delete_function, &e);
    bool again = err_retry_may_help(e.code);
    if (e.code == ERR_NOT_FOUND) /* it never compiled */
        build_failure_drop(k->controller->store, name);
    else if (e.code != ERR_NONE && !(again && said))
        log_warn("function %s stays%s, though its object was deleted: %s", name,
                 again ? " for now" : "", e.message);
    if (!again)
        unnote_made(k, name);
    return !again;
}

/* Deletes the functions of deleted objects. Stops at the first that cannot be deleted yet: then no
 * other can. */
static void drop_leaving(function_reconciler *k, const json_t *functions)
{
    const char *name;
    json_t *said;
    void *next;
    if (json_object_size(k->leaving) == 0 ||
        !kube_claim_stands(k->client, k->access->namespace_name, k->uid,
                           clock_deadline_ms(CALL_MS)))
        return;
    json_object_foreach_safe (k->leaving, next, name, said) {
        if (!json_object_get(functions, name) && !drop_function(k, name, json_is_true(said))) {
            json_object_set_new(k->leaving, name, json_true());
            return;
        }
        json_object_del(k->leaving, name);
    }
}

static int take_mark(void *context, const char *key, json_t *value, err *e)
{
    return json_object_set(context, key, value) ? err_set(e, ERR_NOMEM, "no memory for names") : 0;
}

/* Whether the object of a mark was one of ours. Where there is no Function object (`alone`), a mark
 * without a uid counts as that of an earlier namespace. */
static bool is_ours(const function_reconciler *k, const json_t *mark, bool alone)
{
    const char *uid = text_of(mark, "uid");
    if (strcmp(text_of(mark, "platform"), k->platform) != 0)
        return false;
    return json_object_get(mark, "uid") ? !*uid || !*k->uid || strcmp(uid, k->uid) == 0 : !alone;
}

/* Adds functions whose objects were deleted while no controller led. */
static int compare(function_reconciler *k, const json_t *functions, const json_t *others, err *e)
{
    cleanup_json json_t *marks = json_object();
    const char *name;
    json_t *mark;
    if (!marks)
        return err_set(e, ERR_NOMEM, "no memory for names");
    if (store_walk(k->controller->store, MADE, take_mark, marks, e))
        return -1;
    json_object_foreach (marks, name, mark) {
        bool ours = is_ours(k, mark, json_object_size(functions) == 0);
        if (ours && !json_object_get(functions, name) && !json_object_get(others, name))
            json_object_set_new(k->leaving, name, json_false());
    }
    return 0;
}

/* Once, at the start, when the store is there. */
static void compare_once(function_reconciler *k, const json_t *functions, const json_t *others)
{
    err e = ERR_INIT;
    if (k->compared)
        return;
    k->compared = compare(k, functions, others, &e) == 0 || !err_retry_may_help(e.code);
    if (k->compared && e.code != ERR_NONE)
        log_warn("functions stay whose objects were deleted while nobody led: %s", e.message);
}

/* ---- datasets -------------------------------------------------------------------------------- */

static void take_dataset(function_reconciler *k, const json_t *object)
{
    const char *name = kube_object_text(object, "name");
    dataset_info info;
    err e = ERR_INIT;
    json_t *status = NULL;
    if (dataset_find(k->controller->store, name, &info, NULL, &e) == 0) {
        status = json_pack("{s:I, s:I, s:I, s:s, s:o}", "observedGeneration", generation_of(object),
                           "trainSamples", (json_int_t)info.samples[DATASET_TRAIN], "testSamples",
                           (json_int_t)info.samples[DATASET_TEST], "digest", info.digest,
                           "conditions", ready_condition(object, true, "Uploaded", ""));
        dataset_info_free(&info);
    } else if (e.code == ERR_NOT_FOUND) {
        status = json_pack(
            "{s:I, s:o}", "observedGeneration", generation_of(object), "conditions",
            ready_condition(
                object, false, "NotFound",
                "there is no data set of this name yet; upload it: kubeml dataset create"));
    }
    write_status(k, &k->datasets, object, status);
}

/* ---- turning --------------------------------------------------------------------------------- */

static void on_change(void *context, kube_change change, const json_t *object)
{
    watched *s = context;
    function_reconciler *k = s->reconciler;
    const char *name = kube_object_text(object, "name");
    pthread_mutex_lock(&k->lock);
    bool ours = !kube_claim_is_others(object, k->install);
    if (!ours && change != KUBE_DELETED)
        json_object_set_new(s->others, name, json_true());
    else
        json_object_del(s->others, name);
    if (ours && change != KUBE_DELETED)
        json_object_set_new(s->objects, name, json_deep_copy(object));
    else
        json_object_del(s->objects, name);
    if (ours && change == KUBE_DELETED)
        json_array_append_new(s->gone, json_string(name));
    k->dirty = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

static void on_listed(void *context)
{
    watched *s = context;
    function_reconciler *k = s->reconciler;
    pthread_mutex_lock(&k->lock);
    s->whole = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    if (s->lacks != ERR_NONE)
        log_info("%ss are looked at", s->kind);
    s->lacks = ERR_NONE;
}

/* Logs a failure. The watch goes on trying; once the copy is whole, failures that pass by
 * themselves are not logged. */
static void on_failure(void *context, const err *why)
{
    watched *s = context;
    function_reconciler *k = s->reconciler;
    pthread_mutex_lock(&k->lock);
    bool news = why->code != s->lacks && (!s->whole || kube_watch_stands(why));
    pthread_mutex_unlock(&k->lock);
    if (!news)
        return;
    s->lacks = why->code;
    log_warn("%ss are not looked at: %s", s->kind, why->message);
}

static bool know_uid(function_reconciler *k)
{
    err e = ERR_INIT;
    k->knows_uid =
        k->knows_uid || kube_claim_namespace(k->client, k->access->namespace_name,
                                             clock_deadline_ms(CALL_MS), k->uid, &e) == 0;
    return k->knows_uid;
}

static void turn(function_reconciler *k, json_t *functions, json_t *datasets, const json_t *others,
                 const json_t *gone)
{
    json_t *one;
    const char *name;
    size_t i;
    json_array_foreach (gone, i, one)
        json_object_set_new(k->leaving, json_string_value(one), json_false());
    if (!know_uid(k))
        return;
    compare_once(k, functions, others);
    drop_leaving(k, functions);
    json_object_foreach (functions, name, one) {
        if (!*kube_object_text(one, "deletionTimestamp") && claim(k, &k->functions, one))
            take_function(k, one);
    }
    json_object_foreach (datasets, name, one) {
        if (claim(k, &k->datasets, one))
            take_dataset(k, one);
    }
    kube_status_keep(k->functions.status, functions);
    kube_status_keep(k->datasets.status, datasets);
}

static void *run(void *arg)
{
    function_reconciler *k = arg;
    pthread_mutex_lock(&k->lock);
    while (!k->stopping && !(k->functions.whole && k->datasets.whole))
        pthread_cond_wait(&k->changed, &k->lock);
    while (!k->stopping) {
        cleanup_json json_t *functions = json_deep_copy(k->functions.objects);
        cleanup_json json_t *datasets = json_deep_copy(k->datasets.objects);
        cleanup_json json_t *others = json_deep_copy(k->functions.others);
        cleanup_json json_t *gone = k->functions.gone;
        k->functions.gone = json_array();
        json_array_clear(k->datasets.gone);
        k->dirty = false;
        pthread_mutex_unlock(&k->lock);
        turn(k, functions, datasets, others, gone);
        int64_t next = clock_deadline_ms(FUNCTION_RECONCILER_TURN_MS);
        pthread_mutex_lock(&k->lock);
        while (!k->stopping && !k->dirty && clock_cond_wait(&k->changed, &k->lock, next))
            ;
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* ---- start and end --------------------------------------------------------------------------- */

static int open_watched(function_reconciler *k, watched *s, const kube_config *access, const char *kind,
                      const char *plural, err *e)
{
    kube_watch_config config = {.access = access,
                                .path = s->path,
                                .changed = on_change,
                                .failed = on_failure,
                                .listed = on_listed,
                                .context = s};
    s->reconciler = k;
    s->kind = kind;
    s->objects = json_object();
    s->others = json_object();
    s->gone = json_array();
    snprintf(s->path, sizeof s->path, "/apis/" KUBE_RESOURCES "/namespaces/%s/%s",
             access->namespace_name, plural);
    s->status = kube_status_open(s->path, kind, 0, &k->controller->lacking);
    if (!s->status || !s->objects || !s->others || !s->gone)
        return err_set(e, ERR_NOMEM, "no memory for the %s", plural);
    return kube_watch_start(&config, &s->watch, e) ? err_wrap(e, "%s", plural) : 0;
}

static void close_watched(watched *s)
{
    kube_watch_stop(s->watch);
    kube_status_close(s->status);
    json_decref(s->objects);
    json_decref(s->others);
    json_decref(s->gone);
}

static int start(function_reconciler *k, const kube_config *access, err *e)
{
    if (!k->tried || !k->leaving)
        return err_set(e, ERR_NOMEM, "no memory for functions and data sets");
    if (kube_client_open(access, &k->client, e) ||
        open_watched(k, &k->functions, access, "Function", "functions", e) ||
        open_watched(k, &k->datasets, access, "Dataset", "datasets", e))
        return -1;
    if (pthread_create(&k->thread, NULL, run, k))
        return err_set(e, ERR_NOMEM, "no thread for functions and data sets");
    k->running = true;
    return 0;
}

int function_reconciler_start(const kube_config *access, const char *install, controller *c,
                              function_reconciler **out, err *e)
{
    function_reconciler *k = calloc(1, sizeof *k);
    if (!k)
        return err_set(e, ERR_NOMEM, "no memory for functions and data sets");
    k->controller = c;
    snprintf(k->install, sizeof k->install, "%s", install);
    snprintf(k->platform, sizeof k->platform, "%s/%s", access->namespace_name, install);
    k->access = access;
    k->tried = json_object();
    k->leaving = json_object();
    pthread_mutex_init(&k->lock, NULL);
    clock_cond_init(&k->changed);
    if (start(k, access, e)) {
        function_reconciler_stop(k);
        return -1;
    }
    *out = k;
    return 0;
}

void function_reconciler_stop(function_reconciler *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stopping = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    if (k->client)
        kube_client_cancel(k->client);
    if (k->running)
        pthread_join(k->thread, NULL);
    close_watched(&k->functions);
    close_watched(&k->datasets);
    kube_client_close(k->client);
    json_decref(k->tried);
    json_decref(k->leaving);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    free(k);
}
