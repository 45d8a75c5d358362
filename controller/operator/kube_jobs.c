/* kube_jobs.c: see kube_jobs.h. The watch's thread only keeps the copy. Another thread goes through
 * all TrainJobs and active jobs, every second and when a TrainJob has changed in more than its
 * status. Ended TrainJobs rest: their number only grows, and each look at one is a read of the
 * store in the job manager's thread. */
#include "kube_jobs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "controller/kube/kube_claim.h"
#include "controller/kube/kube_status.h"

enum {
    CALL_MS = 10000,
    /* So long after a job's TrainJob was made, the job may still get a pod without an owner, which
     * was asked for before (cluster_kubernetes.c). */
    ADOPT_MS = 10000,
};

struct kube_jobs {
    const kube_config *access;
    kube_jobs_host host;
    kube_watch *watch;
    kube_client *client;
    kube_status *status; /* the turning thread's */
    pthread_t thread;
    bool running;
    char path[300];
    json_t *home;  /* the mark of our links; NULL: the namespace's uid is not known yet */
    json_t *tried; /* uid: when, in monotonic ms; the turning thread's, as all until the lock */
    json_t *owed;  /* id: the task of a job that ended before it could be shown */
    /* ids of jobs whose TrainJob was deleted, until they are inactive */
    json_t *leaving;
    json_t *adopting; /* id: until when to look at its pods, in monotonic ms */
    int64_t adopt_ms; /* when next */
    json_t *resting;  /* uid: {"version": of the object, "until": in monotonic ms} */
    rng random;
    bool turned;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    json_t *objects; /* by name; replaced as a whole and never changed, since turns share them */
    json_t *gone;    /* ids of jobs whose TrainJob was deleted */
    bool stopping, dirty, whole;

    err_code lacks; /* why the copy is not whole or not current, as last logged; the watch's */
};

/* ---- what the watch reports ------------------------------------------------------------------ */

/* Whether something has changed on which a turn acts; the generation counts changes of the spec. A
 * status is our own write, which must not start the next turn. A status that somebody else has
 * changed is repaired in the next turn. */
static bool is_news(const json_t *kept, const json_t *object)
{
    static const char *const acted_on[] = {"uid", "generation", "labels", "deletionTimestamp"};
    const json_t *before = json_object_get(kept, "metadata"),
                 *now = json_object_get(object, "metadata");
    for (size_t i = 0; i < sizeof acted_on / sizeof *acted_on; i++) {
        const json_t *a = json_object_get(before, acted_on[i]),
                     *b = json_object_get(now, acted_on[i]);
        if (a != b && !json_equal(a, b))
            return true;
    }
    return false;
}

static void on_change(void *context, kube_change change, const json_t *object)
{
    kube_jobs *j = context;
    const char *name = kube_object_text(object, "name"), *id = kube_trainjob_job(object);
    bool ours = !kube_claim_is_others(object, j->host.install);
    pthread_mutex_lock(&j->lock);
    const json_t *kept = json_object_get(j->objects, name);
    bool news = ours ? change == KUBE_DELETED || is_news(kept, object) : kept != NULL;
    j->dirty = j->dirty || news;
    if (ours && change != KUBE_DELETED)
        json_object_set_new(j->objects, name, json_deep_copy(object));
    else
        json_object_del(j->objects, name);
    if (ours && change == KUBE_DELETED && *id)
        json_array_append_new(j->gone, json_string(id));
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

static void on_listed(void *context)
{
    kube_jobs *j = context;
    pthread_mutex_lock(&j->lock);
    bool news = !j->whole || j->lacks != ERR_NONE;
    j->whole = true;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
    if (j->lacks != ERR_NONE)
        log_info("TrainJobs are looked at");
    j->lacks = ERR_NONE;
    if (news && j->host.looks)
        j->host.looks(j->host.context, NULL);
}

/* Logs a failure. Before the first list nothing can be done; later failures that pass by themselves
 * are not logged. The watch goes on trying. */
static void on_failure(void *context, const err *why)
{
    kube_jobs *j = context;
    pthread_mutex_lock(&j->lock);
    bool news = why->code != j->lacks && (!j->whole || kube_watch_stands(why));
    pthread_mutex_unlock(&j->lock);
    if (!news)
        return;
    j->lacks = why->code;
    log_warn("TrainJobs are not looked at: %s", why->message);
    if (j->host.looks)
        j->host.looks(j->host.context, why);
}

/* ---- turning --------------------------------------------------------------------------------- */

static void object_path(const kube_jobs *j, const json_t *object, const char *what, char *out,
                        size_t bytes)
{
    snprintf(out, bytes, "%s/%s%s", j->path, kube_object_text(object, "name"), what);
}

/* Creates an Event, for people: `kubectl describe`, `kubectl get events`. Where that fails, the
 * status still has the same. */
static void tell_event(kube_jobs *j, const json_t *object, const json_t *status)
{
    char now[32], path[300];
    err e = ERR_INIT;
    clock_rfc3339(clock_wall_ms() / 1000 * 1000, now);
    cleanup_json json_t *event = kube_trainjob_event(object, status, now);
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/events", j->access->namespace_name);
    if (event && kube_create(j->client, path, event, clock_deadline_ms(CALL_MS), NULL, &e) &&
        e.code != ERR_EXISTS && e.code != ERR_CANCELLED)
        log_warn("an event of TrainJob %s: %s", kube_object_text(object, "name"), e.message);
}

/* Steals `status`. Returns whether the object had it already. */
static bool write_status(kube_jobs *j, const json_t *object, json_t *status)
{
    err e = ERR_INIT;
    int stands =
        kube_status_write(j->status, j->client, object, status, clock_deadline_ms(CALL_MS), &e);
    if (stands == 0)
        tell_event(j, object, status);
    else if (stands < 0 && e.code != ERR_NOT_FOUND && e.code != ERR_CANCELLED)
        log_warn("the status of TrainJob %s: %s", kube_object_text(object, "name"), e.message);
    json_decref(status);
    return stands > 0;
}

static bool too_early(kube_jobs *j, const char *uid)
{
    json_int_t now = clock_monotonic_ms();
    const json_t *last = json_object_get(j->tried, uid);
    if (last && now - json_integer_value(last) < KUBE_JOBS_RETRY_MS)
        return true;
    json_object_set_new(j->tried, uid, json_integer(now));
    return false;
}

/* Labels the object as ours and with its job's id, before the job exists: the job's pods get the
 * TrainJob with this label as their owner. */
static int note_job(kube_jobs *j, const json_t *object, const char *id)
{
    char path[700];
    err e = ERR_INIT;
    object_path(j, object, "", path, sizeof path);
    if (kube_claim_note(j->client, path, object, j->host.install, id, clock_deadline_ms(CALL_MS),
                        &e) == 0)
        return 0;
    /* another platform was quicker, or the object has changed: the watch reports it */
    if (e.code != ERR_CONFLICT && e.code != ERR_NOT_FOUND && e.code != ERR_CANCELLED)
        log_warn("TrainJob %s is to be job %s, which cannot be noted: %s",
                 kube_object_text(object, "name"), id, e.message);
    return -1;
}

static void submit(kube_jobs *j, const json_t *object, const char *now)
{
    const json_t *spec = json_object_get(object, "spec");
    const char *uid = kube_object_text(object, "uid");
    char id[KUBE_TRAINJOB_ID_BYTES];
    err e = ERR_INIT;
    kube_trainjob_id(object, id);
    if (json_is_true(json_object_get(spec, "suspend"))) {
        if (note_job(j, object, id) == 0)
            write_status(j, object, kube_trainjob_status(object, NULL, NULL, &j->host.gpu, now));
        return;
    }
    if (too_early(j, uid) || note_job(j, object, id))
        return;
    cleanup_json json_t *request = kube_trainjob_request(spec);
    /* Linked before the job exists. Otherwise show() would make a TrainJob again that was deleted
     * unseen. */
    j->host.link(j->host.context, id, j->home);
    if (j->host.submit(j->host.context, request, id, &e) && e.code != ERR_EXISTS) {
        if (e.code == ERR_CANCELLED) /* this controller ends; the next one submits it */
            return;
        write_status(j, object, kube_trainjob_status(object, NULL, &e, &j->host.gpu, now));
        return;
    }
    json_object_del(j->tried, uid);
}

/* Calls the controller for a job; false: try again later. */
static bool call(int (*what)(void *, const char *, err *), kube_jobs *j, const char *id,
                 const char *verb)
{
    err e = ERR_INIT;
    if (what(j->host.context, id, &e) && e.code != ERR_CONFLICT && e.code != ERR_NOT_FOUND)
        log_warn("job %s cannot be %s: %s", id, verb, e.message);
    return !err_retry_may_help(e.code);
}

/* Sets spec.suspend as the API has set the job. Returns the object after that, a new reference: the
 * status then has seen its generation, so that our edit does not count as the user's. NULL:
 * failed. */
static json_t *note_suspend(kube_jobs *j, const json_t *object, bool suspend)
{
    char path[700];
    err e = ERR_INIT;
    json_t *noted = NULL;
    cleanup_json json_t *patch = json_pack("{s:{s:b}}", "spec", "suspend", suspend);
    object_path(j, object, "", path, sizeof path);
    if (patch &&
        kube_merge_patch(j->client, path, patch, clock_deadline_ms(CALL_MS), &noted, &e) &&
        e.code != ERR_NOT_FOUND && e.code != ERR_CANCELLED)
        log_warn("TrainJob %s: %s", kube_object_text(object, "name"), e.message);
    return noted;
}

static void remove_object(kube_jobs *j, const json_t *object)
{
    char path[700];
    object_path(j, object, "", path, sizeof path);
    /* the watch reports another object of that name */
    kube_delete(j->client, path, kube_object_text(object, "uid"), -1, clock_deadline_ms(CALL_MS),
                NULL);
}

/* Makes spec and job agree. Returns the object whose status to write, a new reference; NULL: it is
 * deleted, or the spec has to be written first. */
static json_t *steer(kube_jobs *j, json_t *object, const json_t *task)
{
    const char *id = text_of(task, "id");
    switch (kube_trainjob_next(object, task, clock_wall_ms())) {
    case TRAINJOB_SUSPEND: call(j->host.suspend, j, id, "suspended"); break;
    case TRAINJOB_RESUME: call(j->host.resume, j, id, "resumed"); break;
    case TRAINJOB_NOTE_SUSPENDED: return note_suspend(j, object, true);
    case TRAINJOB_NOTE_RESUMED: return note_suspend(j, object, false);
    case TRAINJOB_EXPIRE: remove_object(j, object); return NULL;
    case TRAINJOB_KEEP: break;
    }
    return json_incref(object);
}

/* Lets an object rest whose status has all of its job. The times are spread, so that objects which
 * began together are not looked at together. */
static void rest(kube_jobs *j, const json_t *object)
{
    int64_t half = j->host.rest_ms / 2,
            most = half + (int64_t)rng_below(&j->random, (uint64_t)half + 1),
            ms = kube_trainjob_rests_ms(object, clock_wall_ms());
    if (ms > 0)
        json_object_set_new(j->resting, kube_object_text(object, "uid"),
                            json_pack("{s:s, s:I}", "version",
                                      kube_object_text(object, "resourceVersion"), "until",
                                      clock_deadline_ms(ms < most ? ms : most)));
}

/* Whether an object rests. `active`, by ids: a resumed job's object rests no more. */
static bool rests(const kube_jobs *j, const json_t *object, const json_t *active)
{
    const json_t *at = json_object_get(j->resting, kube_object_text(object, "uid"));
    return at && strcmp(text_of(at, "version"), kube_object_text(object, "resourceVersion")) == 0 &&
           clock_left_ms(json_integer_value(json_object_get(at, "until"))) > 0 &&
           !json_object_get(active, kube_trainjob_job(object));
}

/* The job's task, from this turn's list of active jobs or from the controller. */
static int task_of(kube_jobs *j, const json_t *active, const char *id, json_t **out, err *e)
{
    *out = json_incref(json_object_get(active, id));
    return *out ? 0 : j->host.task(j->host.context, id, out, e);
}

/* The object's job is not in the database. A job that was linked there has been deleted through the
 * API, with its history: deletes the object too. Otherwise this is another database than the
 * job's. */
static void lacks_job(kube_jobs *j, const json_t *object, const char *now)
{
    const char *id = kube_trainjob_job(object);
    err e = ERR_INIT;
    if (j->host.linked(j->host.context, id, &e) == 0) {
        log_info("TrainJob %s is deleted: the history of its job %s was",
                 kube_object_text(object, "name"), id);
        remove_object(j, object);
    } else if (e.code == ERR_NOT_FOUND &&
               write_status(j, object, kube_trainjob_unknown(object, now))) {
        rest(j, object);
    }
}

static void follow(kube_jobs *j, json_t *object, const json_t *active, const char *now)
{
    cleanup_json json_t *task = NULL;
    err e = ERR_INIT;
    if (note_job(j, object, kube_trainjob_job(object)))
        return;
    if (task_of(j, active, kube_trainjob_job(object), &task, &e)) {
        if (e.code == ERR_NOT_FOUND && *text_of(json_object_get(object, "status"), "job"))
            lacks_job(j, object, now);
        else if (e.code == ERR_NOT_FOUND) /* there was no job yet */
            submit(j, object, now);
        return;
    }
    cleanup_json json_t *steered = steer(j, object, task);
    if (steered &&
        write_status(j, steered, kube_trainjob_status(steered, task, NULL, &j->host.gpu, now)))
        rest(j, steered);
}

static void adopt_soon(kube_jobs *j, const char *id)
{
    json_object_set_new(j->adopting, id, json_integer(clock_deadline_ms(ADOPT_MS)));
}

/* Writes the first status of a TrainJob that shows a job of the API. From then on follow() knows by
 * the status that there was a job; without it follow() would take the object for a user's and train
 * it anew. The job may have been deleted since it was listed: then deletes the object. */
static void tell_first(kube_jobs *j, json_t *object, const char *id)
{
    cleanup_json json_t *task = NULL;
    char now[32];
    err e = ERR_INIT;
    clock_rfc3339(clock_wall_ms() / 1000 * 1000, now);
    if (j->host.task(j->host.context, id, &task, &e) == 0) {
        cleanup_json json_t *steered = steer(j, object, task); /* suspended in this moment */
        if (steered)
            write_status(j, steered, kube_trainjob_status(steered, task, NULL, &j->host.gpu, now));
    } else if (e.code == ERR_NOT_FOUND) {
        remove_object(j, object);
    }
}

/* Makes a TrainJob for a job of the API that has none. False: try again later. */
static bool show(kube_jobs *j, const json_t *task)
{
    const char *id = text_of(task, "id");
    cleanup_json json_t *made = NULL;
    err e = ERR_INIT;
    cleanup_json json_t *object = json_pack(
        "{s:s, s:s, s:{s:o, s:{s:s, s:s, s:s}}, s:o}", "apiVersion", KUBE_RESOURCES, "kind",
        "TrainJob", "metadata", "name", json_sprintf(KUBE_TRAINJOB_SHOWS "%s", id), "labels",
        KUBE_LABEL_JOB, id, KUBE_LABEL_INSTALL, j->host.install, "app.kubernetes.io/managed-by",
        "kubeml", "spec", kube_trainjob_spec(json_object_get(task, "request")));
    if (object && kube_create(j->client, j->path, object, clock_deadline_ms(CALL_MS), &made, &e) &&
        e.code != ERR_EXISTS) {
        if (e.code != ERR_CANCELLED)
            log_warn("job %s gets no TrainJob: %s", id, e.message);
        return !err_retry_may_help(e.code);
    }
    if (object) {
        j->host.link(j->host.context, id, j->home);
        adopt_soon(j, id);
    }
    if (made)
        tell_first(j, made, id);
    return object != NULL;
}

/* The objects by the ids of their jobs. NULL: no memory; a job that this list lacks would count as
 * deleted. */
static json_t *by_job(const json_t *objects)
{
    cleanup_json json_t *out = json_object();
    json_t *one;
    const char *name;
    char id[KUBE_TRAINJOB_ID_BYTES];
    json_object_foreach ((json_t *)(uintptr_t)objects, name, one) {
        const char *noted = kube_trainjob_job(one);
        kube_trainjob_id(one, id); /* submitted, and not labelled yet */
        if (json_object_set(out, id, one) || (*noted && json_object_set(out, noted, one)))
            return NULL;
    }
    return json_incref(out);
}

static bool is_deleted(kube_jobs *j, const char *id)
{
    cleanup_json json_t *task = NULL;
    err e = ERR_INIT;
    return j->host.task(j->host.context, id, &task, &e) && e.code == ERR_NOT_FOUND;
}

/* Makes the mark of our links. False: not now. */
static bool know_home(kube_jobs *j)
{
    char uid[KUBE_UID_BYTES];
    err e = ERR_INIT;
    if (j->home)
        return true;
    if (kube_claim_namespace(j->client, j->access->namespace_name, clock_deadline_ms(CALL_MS), uid,
                             &e))
        return false;
    j->home = json_pack("{s:s, s:s, s:s}", "install", j->host.install, "namespace",
                        j->access->namespace_name, "uid", uid);
    return j->home != NULL;
}

/* Whether any of the TrainJobs stands for a job. */
static bool any_job(const json_t *objects)
{
    json_t *one;
    const char *name;
    json_object_foreach ((json_t *)(uintptr_t)objects, name, one)
        if (*kube_trainjob_job(one))
            return true;
    return false;
}

/* Whether the TrainJob of a link was one of ours. Older versions did not write whose it was: where
 * no TrainJob stands for a job (`alone`), the namespace counts as a new one. */
static bool is_ours(const kube_jobs *j, const json_t *mark, bool alone)
{
    const char *uid = text_of(mark, "uid"), *own = text_of(j->home, "uid");
    if (!json_object_get(mark, "namespace"))
        return !alone;
    return json_equal(json_object_get(mark, "install"), json_object_get(j->home, "install")) &&
           json_equal(json_object_get(mark, "namespace"), json_object_get(j->home, "namespace")) &&
           (!*uid || !*own || strcmp(uid, own) == 0);
}

/* Writes our link for active and suspended jobs whose link is an older version's, another
 * namespace's, or could not be written. */
static void renew_links(kube_jobs *j, const json_t *links, const json_t *objects,
                        const json_t *active)
{
    json_t *one;
    const char *name;
    json_object_foreach ((json_t *)(uintptr_t)objects, name, one) {
        const char *id = kube_trainjob_job(one);
        const json_t *mark = json_object_get(links, id);
        const char *state = text_of(json_object_get(one, "status"), "state");
        if (json_object_get(active, id) || (mark && strcmp(state, "suspended") == 0))
            if (!mark || !json_equal(mark, j->home))
                j->host.link(j->host.context, id, j->home);
    }
}

static void leaves(kube_jobs *j, const char *id)
{
    log_info("job %s: its TrainJob was deleted; it is cancelled unless it has ended", id);
    json_object_set_new(j->leaving, id, json_true());
}

/* Cancels jobs whose TrainJob was deleted before this controller began to lead. */
static int compare_links(kube_jobs *j, const json_t *objects, const json_t *standing,
                         const json_t *active)
{
    cleanup_json json_t *links = NULL;
    json_t *mark;
    const char *id;
    bool alone = !any_job(objects);
    err e = ERR_INIT;
    if (j->host.links(j->host.context, &links, &e)) {
        log_warn("which jobs had a TrainJob is not known yet: %s", e.message);
        return -1;
    }
    json_object_foreach (links, id, mark)
        if (!json_object_get(standing, id) && !json_object_get(j->leaving, id) &&
            is_ours(j, mark, alone))
            leaves(j, id);
    renew_links(j, links, objects, active);
    return 0;
}

static void show_others(kube_jobs *j, const json_t *standing, const json_t *current)
{
    json_t *one;
    const char *id;
    void *next;
    size_t i;
    json_array_foreach(current, i, one) {
        const char *job = text_of(one, "id");
        if (json_object_get(j->leaving, job))
            continue;
        if (!json_object_get(standing, job))
            json_object_set(j->owed, job, one);
        else if (!j->turned) /* the leader before may have got no further */
            adopt_soon(j, job);
    }
    /* an ended job is not in the next list */
    json_object_foreach_safe(j->owed, next, id, one)
        if (json_object_get(standing, id) || is_deleted(j, id) || show(j, one))
            json_object_del(j->owed, id);
}

/* Tasks by id. NULL: no memory. */
static json_t *by_id(const json_t *current)
{
    json_t *out = json_object(), *one;
    size_t i;
    json_array_foreach(current, i, one)
        json_object_set(out, text_of(one, "id"), one);
    return out;
}

/* Cancels jobs whose TrainJobs were deleted. A job is active until its pods have ended, and gets no
 * new TrainJob meanwhile; it stays linked, for the next controller. */
static void let_go(kube_jobs *j, const json_t *active)
{
    const char *id;
    json_t *one;
    void *next;
    if (json_object_size(j->leaving) == 0 ||
        !kube_claim_stands(j->client, j->access->namespace_name, text_of(j->home, "uid"),
                           clock_deadline_ms(CALL_MS)))
        return;
    json_object_foreach_safe(j->leaving, next, id, one) {
        if (!call(j->host.cancel, j, id, "cancelled") || json_object_get(active, id))
            continue;
        j->host.link(j->host.context, id, NULL);
        json_object_del(j->leaving, id);
    }
}

static bool has_owner(const json_t *owned, const char *uid)
{
    const json_t *owners = json_object_get(json_object_get(owned, "metadata"), "ownerReferences");
    return strcmp(text_of(json_array_get(owners, 0), "uid"), uid) == 0;
}

static int give_owner(kube_jobs *j, const json_t *owned, const json_t *owner, err *e)
{
    char path[700];
    err why = ERR_INIT;
    cleanup_json json_t *patch = json_pack(
        "{s:{s:o}}", "metadata", "ownerReferences",
        kube_owner_reference(KUBE_RESOURCES, "TrainJob", kube_object_text(owner, "name"),
                             kube_object_text(owner, "uid")));
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods/%s", j->access->namespace_name,
             kube_object_text(owned, "name"));
    if (!patch)
        return err_set(e, ERR_NOMEM, "no memory for an owner");
    if (kube_merge_patch(j->client, path, patch, clock_deadline_ms(CALL_MS), NULL, &why) == 0 ||
        why.code == ERR_NOT_FOUND)
        return 0;
    return err_set(e, why.code, "%s", why.message);
}

/* Makes the TrainJob the owner of the job's pods. Companion objects belong to the pod of kubeml-ps
 * (companion_objects.h) and need nothing. */
static int adopt_pods(kube_jobs *j, const char *id, const json_t *object, err *e)
{
    char path[300], query[300];
    cleanup_json json_t *list = NULL;
    json_t *one;
    size_t i;
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods", j->access->namespace_name);
    snprintf(query, sizeof query,
             "labelSelector=kubeml.dev%%2Fjob%%3D%s%%2Ckubeml.dev%%2Finstall%%3D%s", id,
             j->host.install);
    if (kube_get(j->client, path, query, clock_deadline_ms(CALL_MS), &list, e))
        return -1;
    json_array_foreach (json_object_get(list, "items"), i, one) {
        if (!has_owner(one, kube_object_text(object, "uid")) && give_owner(j, one, object, e))
            return -1;
    }
    return 0;
}

/* A job of the API may get pods before its TrainJob exists. Makes the TrainJob their owner, as it
 * is of later pods from the start, so that Kubernetes deletes them with it even without a
 * controller. */
static void adopt(kube_jobs *j, const json_t *standing)
{
    int64_t now = clock_monotonic_ms();
    const char *id;
    json_t *until;
    void *next;
    if (now < j->adopt_ms || json_object_size(j->adopting) == 0)
        return;
    j->adopt_ms = now + KUBE_JOBS_TURN_MS;
    json_object_foreach_safe (j->adopting, next, id, until) {
        err e = ERR_INIT;
        const json_t *object = json_object_get(standing, id);
        if (object && adopt_pods(j, id, object, &e) && e.code != ERR_CANCELLED)
            log_warn("the pods of job %s do not go with its TrainJob: %s", id, e.message);
        if (!err_retry_may_help(e.code) && (e.code != ERR_NONE || now >= json_integer_value(until)))
            json_object_del(j->adopting, id);
    }
}

/* Drops entries (by uid) of objects that are gone. */
static void forget_gone(json_t *known, const json_t *objects)
{
    json_t *one;
    const char *name;
    if (json_object_size(known) <= json_object_size(objects))
        return;
    json_t *kept = json_object();
    json_object_foreach ((json_t *)(uintptr_t)objects, name, one) {
        const char *uid = kube_object_text(one, "uid");
        json_object_set(kept, uid, json_object_get(known, uid));
    }
    json_object_clear(known);
    json_object_update(known, kept);
    json_decref(kept);
}

static void turn(kube_jobs *j, const json_t *objects, const json_t *gone)
{
    char now[32];
    cleanup_json json_t *current = NULL;
    bool known = j->host.current(j->host.context, &current, NULL) == 0;
    cleanup_json json_t *active = by_id(current);
    json_t *one;
    const char *name;
    size_t i;
    clock_rfc3339(clock_wall_ms() / 1000 * 1000, now);
    json_array_foreach(gone, i, one)
        leaves(j, json_string_value(one));
    if (!know_home(j))
        return;
    json_object_foreach((json_t *)(uintptr_t)objects, name, one) {
        if (*kube_object_text(one, "deletionTimestamp") || rests(j, one, active))
            continue;
        if (*kube_trainjob_job(one))
            follow(j, one, active, now);
        else
            submit(j, one, now);
    }
    forget_gone(j->resting, objects);
    forget_gone(j->tried, objects);
    kube_status_keep(j->status, objects);
    cleanup_json json_t *standing = by_job(objects);
    adopt(j, standing);
    if (!standing || !known || (!j->turned && compare_links(j, objects, standing, active)))
        return;
    show_others(j, standing, current);
    let_go(j, active);
    j->turned = true;
}

static void *run(void *arg)
{
    kube_jobs *j = arg;
    pthread_mutex_lock(&j->lock);
    while (!j->stopping && !j->whole)
        pthread_cond_wait(&j->changed, &j->lock);
    while (!j->stopping) {
        cleanup_json json_t *objects = json_copy(j->objects);
        cleanup_json json_t *gone = j->gone;
        j->gone = json_array();
        j->dirty = false;
        pthread_mutex_unlock(&j->lock);
        turn(j, objects, gone);
        int64_t next = clock_deadline_ms(j->host.turn_ms);
        pthread_mutex_lock(&j->lock);
        while (!j->stopping && !j->dirty && clock_cond_wait(&j->changed, &j->lock, next))
            ;
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* ---- start and end --------------------------------------------------------------------------- */

static int start(kube_jobs *j, err *e)
{
    kube_watch_config config = {.access = j->access,
                                .path = j->path,
                                .objects_max = j->host.objects_max,
                                .changed = on_change,
                                .failed = on_failure,
                                .listed = on_listed,
                                .context = j};
    if (!j->status || !j->objects || !j->gone || !j->tried || !j->owed || !j->leaving ||
        !j->adopting || !j->resting)
        return err_set(e, ERR_NOMEM, "no memory for the TrainJobs");
    if (kube_client_open(j->access, &j->client, e) || kube_watch_start(&config, &j->watch, e))
        return err_wrap(e, "TrainJobs");
    if (pthread_create(&j->thread, NULL, run, j))
        return err_set(e, ERR_NOMEM, "no thread for the TrainJobs");
    j->running = true;
    return 0;
}

int kube_jobs_start(const kube_config *access, const kube_jobs_host *host, kube_jobs **out, err *e)
{
    kube_jobs *j = calloc(1, sizeof *j);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for the TrainJobs");
    j->access = access;
    j->host = *host;
    snprintf(j->path, sizeof j->path, "/apis/" KUBE_RESOURCES "/namespaces/%s/trainjobs",
             access->namespace_name);
    pthread_mutex_init(&j->lock, NULL);
    clock_cond_init(&j->changed);
    j->status = kube_status_open(j->path, "TrainJob", host->probe_ms, host->lacking);
    j->objects = json_object();
    j->gone = json_array();
    j->tried = json_object();
    j->owed = json_object();
    j->leaving = json_object();
    j->adopting = json_object();
    j->resting = json_object();
    j->host.turn_ms = host->turn_ms ? host->turn_ms : KUBE_JOBS_TURN_MS;
    j->host.rest_ms = host->rest_ms ? host->rest_ms : KUBE_JOBS_REST_MS;
    rng_init(&j->random, (uint64_t)clock_monotonic_ns(), RNG_BACKOFF, 0, 0);
    if (start(j, e)) {
        kube_jobs_stop(j);
        return -1;
    }
    *out = j;
    return 0;
}

void kube_jobs_stop(kube_jobs *j)
{
    if (!j)
        return;
    pthread_mutex_lock(&j->lock);
    j->stopping = true;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
    if (j->client)
        kube_client_cancel(j->client);
    if (j->running)
        pthread_join(j->thread, NULL);
    kube_watch_stop(j->watch);
    kube_client_close(j->client);
    kube_status_close(j->status);
    json_decref(j->objects);
    json_decref(j->gone);
    json_decref(j->home);
    json_decref(j->tried);
    json_decref(j->owed);
    json_decref(j->leaving);
    json_decref(j->adopting);
    json_decref(j->resting);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    free(j);
}
