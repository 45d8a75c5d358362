/* cluster_kubernetes.c: see cluster_kubernetes.h. The list of pods, the watch's reports, and the
 * calls of cluster.h; cluster_kubernetes_worker.c creates and deletes pods. */
#include "cluster_kubernetes_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "controller/kube/kube_trainjob.h"
#include "companion_objects.h"

/* ---- the list; with the lock held ------------------------------------------------------------ */

static entry *find(const kube *k, const char *name)
{
    for (entry *p = k->entries; p; p = p->next)
        if (strcmp(p->seen.name, name) == 0)
            return p;
    return NULL;
}

static entry *add(kube *k, const pod *seen)
{
    entry *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->seen = *seen;
    p->grace_s = -1;
    p->due_ms = p->slow_ms = INT64_MAX;
    kube_backoff_init(&p->backoff, (uint64_t)clock_monotonic_ns() + ++k->seeds);
    p->next = k->entries;
    k->entries = p;
    k->living++;
    return p;
}

void kube_drop(kube *k, entry *gone)
{
    for (entry **at = &k->entries; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    free(gone->log.text);
    free(gone);
}

void kube_note(kube *k, entry *p)
{
    uint64_t one = 1;
    p->untold = true;
    ssize_t n = write(k->event_fd, &one, sizeof one);
    (void)n; /* a full counter means that it is readable already */
}

static void want_it(kube *k, entry *p, want what, int64_t due_ms)
{
    p->want = what;
    p->late = false;
    p->due_ms = due_ms;
    kube_backoff_reset(&p->backoff);
    pthread_cond_signal(&k->changed);
}

void kube_has_ended(kube *k, entry *p)
{
    if (p->seen.phase != POD_ENDED) {
        p->seen.phase = POD_ENDED;
        k->living--;
        k->ended++;
    }
    /* A pod that was about to end before it was asked has another status than a deletion makes. */
    p->seen.by_itself = !p->asked || (p->seen.exit_status > 0 && p->seen.signal != SIGTERM &&
                                      p->seen.signal != SIGKILL);
    kube_note(k, p);
}

/* The entry of a node; where there is none, replaces the entry that runs out first. */
static suspect *suspect_of(kube *k, const char *node)
{
    suspect *at = &k->suspects[0];
    for (int i = 0; i < SUSPECTS_MAX; i++) {
        suspect *s = &k->suspects[i];
        if (strcmp(s->node, node) == 0)
            return s;
        at = s->until_ms < at->until_ms ? s : at;
    }
    *at = (suspect){0};
    snprintf(at->node, sizeof at->node, "%s", node);
    return at;
}

/* Reports each pod that is being made on a suspected node, since it may never start; not pods that
 * were made to avoid the node. */
static void doubt_pending(kube *k, const suspect *s)
{
    for (entry *p = k->entries; p; p = p->next) {
        bool waits = p->seen.reason[0] && strcmp(p->seen.reason, "ContainerCreating") != 0;
        if (p->asked || waits || p->seen.phase != POD_PENDING || p->create_ms >= s->since_ms ||
            strcmp(p->node, s->node) != 0)
            continue;
        kube_set_words(&p->seen, CLUSTER_NODE_SILENT, "the pod's node does not answer");
        kube_note(k, p);
    }
}

/* Lets new pods avoid a node if they can, until Kubernetes itself has noticed its loss. */
static void suspect_node(kube *k, const char *node)
{
    if (!node[0])
        return;
    suspect *s = suspect_of(k, node);
    s->since_ms = clock_monotonic_ms();
    s->until_ms = clock_deadline_ms(SUSPECT_MS);
    s->deaf_until_ms = clock_deadline_ms(DEAF_MS);
    doubt_pending(k, s);
}

bool kube_lives(const kube *k, const char *name)
{
    const entry *p = find(k, name);
    return p && p->seen.phase != POD_ENDED;
}

bool kube_is_deaf(const kube *k, const char *node)
{
    for (int i = 0; i < SUSPECTS_MAX; i++)
        if (node[0] && strcmp(k->suspects[i].node, node) == 0)
            return clock_left_ms(k->suspects[i].deaf_until_ms) > 0;
    return false;
}

/* Asks a node for no logs after one was waited for in vain: the API server waits for a lost node
 * longer than a caller can, and for each pod again. */
void kube_log_failed(kube *k, const char *node, int64_t began_ms, const err *why)
{
    bool silent = why->code == ERR_TIMEOUT || why->code == ERR_UNAVAILABLE;
    if (!silent || clock_monotonic_ms() - began_ms < DEAF_AFTER_MS || !node[0])
        return;
    pthread_mutex_lock(&k->lock);
    suspect_of(k, node)->deaf_until_ms = clock_deadline_ms(DEAF_MS);
    pthread_mutex_unlock(&k->lock);
    log_warn("node %s gives no logs: it is not asked for more for %d s", node, DEAF_MS / 1000);
}

json_t *kube_suspected(const kube *k)
{
    json_t *out = json_array();
    for (int i = 0; i < SUSPECTS_MAX; i++)
        if (clock_left_ms(k->suspects[i].until_ms) > 0)
            json_array_append_new(out, json_string(k->suspects[i].node));
    return out;
}

/* Forgets an ended pod and its log: deletes the pod if it is still there, then drops its entry. */
static void forget(kube *k, entry *p)
{
    if (p->untold || p->forgotten)
        return;
    k->ended--;
    p->forgotten = true;
    if (p->there || p->busy)
        want_it(k, p, WANT_DELETE, 0);
    else
        kube_drop(k, p);
}

static void forget_old(kube *k)
{
    while (k->ended > CLUSTER_KUBERNETES_ENDED_MAX) {
        entry *oldest = NULL;
        for (entry *p = k->entries; p; p = p->next)
            if (p->seen.phase == POD_ENDED && !p->untold && !p->forgotten)
                oldest = p;
        if (!oldest)
            return;
        forget(k, oldest);
    }
}

void kube_pods_path(const kube *k, const char *name, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "/api/v1/namespaces/%s/pods%s%s", k->access.namespace_name,
             *name ? "/" : "", name);
}

void kube_set_words(pod *p, const char *reason, const char *message)
{
    snprintf(p->reason, sizeof p->reason, "%s", reason);
    snprintf(p->message, sizeof p->message, "%s", message);
}

/* ---- what the watch reports ------------------------------------------------------------------ */

void kube_is_gone(kube *k, entry *p, const pod *last)
{
    bool ended = p->seen.phase == POD_ENDED;
    p->there = false;
    p->want = p->busy ? p->want : WANT_NOTHING;
    if (p->forgotten) {
        if (!p->busy)
            kube_drop(k, p);
        return;
    }
    if (ended)
        return;
    if (last->phase == POD_ENDED) {
        p->seen.exit_status = last->exit_status;
        p->seen.signal = last->signal;
    }
    bool said = last->phase == POD_ENDED || (!p->asked && last->reason[0]);
    snprintf(p->seen.reason, sizeof p->seen.reason, "%s",
             said       ? last->reason
             : p->asked ? "Stopped"
                        : "Deleted");
    snprintf(p->seen.message, sizeof p->seen.message, "%s",
             said       ? last->message
             : p->asked ? "the pod was deleted, as it was asked to"
                        : "the pod was deleted by somebody else, or with its node");
    kube_has_ended(k, p);
}

static bool differs(const pod *a, const pod *b)
{
    return a->phase != b->phase || a->untaken != b->untaken ||
           strcmp(a->address, b->address) != 0 || strcmp(a->reason, b->reason) != 0 ||
           strcmp(a->message, b->message) != 0;
}

/* Takes a pod's new state, except for its labels, which this controller sets: the watch may show an
 * older state than the last assign. */
static void pod_has_changed(kube *k, entry *p, const pod *now)
{
    if (p->seen.phase == POD_ENDED || !differs(&p->seen, now))
        return;
    pod kept = p->seen;
    p->seen = *now;
    p->seen.phase = kept.phase;
    snprintf(p->seen.job, sizeof p->seen.job, "%s", kept.job);
    p->seen.function = kept.function;
    p->seen.incarnation = kept.incarnation;
    p->seen.gpu = kept.gpu;
    if (now->phase == POD_ENDED) {
        kube_has_ended(k, p);
        return;
    }
    p->seen.phase = now->phase;
    kube_note(k, p);
}

/* Takes a generic pod as ended when somebody else deletes it, for example by draining its node: it
 * is of no use from then on, however long its process takes to end. A job's pod ends when its
 * process does. */
static void leaves(kube *k, entry *p)
{
    if (!p->leaving || p->asked || p->seen.job[0] || p->seen.phase == POD_ENDED)
        return;
    if (!p->seen.reason[0])
        kube_set_words(&p->seen, "Deleted", "the pod is being deleted by somebody else");
    p->seen.exit_status = 0; /* its log would explain nothing */
    kube_has_ended(k, p);
}

/* Adds a pod of an earlier controller. At the start it is adopted. A warm pod that appears later
 * comes from a request whose response was lost, and is deleted. */
static void stranger(kube *k, const pod *seen, const char *uid, const char *node)
{
    entry *p = add(k, seen);
    if (!p)
        return;
    snprintf(p->uid, sizeof p->uid, "%s", uid);
    snprintf(p->node, sizeof p->node, "%s", node);
    p->there = p->listed = true;
    if (seen->phase == POD_ENDED) {
        p->seen.phase = POD_RUNNING; /* counted as living until here */
        kube_has_ended(k, p);
    }
    if (k->synced && !seen->job[0]) {
        log_warn("pod %s is warm and nobody here has asked for it: it is deleted", seen->name);
        p->asked = true;
        want_it(k, p, WANT_DELETE, 0);
    }
}

static void on_change(void *context, kube_change change, const json_t *object)
{
    kube *k = context;
    pod now;
    err e = ERR_INIT;
    if (kube_pod_read(object, k->templates.port, &now, &e)) {
        log_warn("%s", e.message);
        return;
    }
    pthread_mutex_lock(&k->lock);
    entry *p = find(k, now.name);
    if (!p && change != KUBE_DELETED) {
        stranger(k, &now, kube_object_text(object, "uid"), kube_pod_node(object));
    } else if (p && change == KUBE_DELETED) {
        kube_is_gone(k, p, &now);
    } else if (p) {
        p->there = p->listed = true;
        if (p->want == WANT_CREATE)
            p->want = WANT_NOTHING; /* only the response was lost */
        snprintf(p->uid, sizeof p->uid, "%s", kube_object_text(object, "uid"));
        bool placed = !p->node[0] && *kube_pod_node(object);
        snprintf(p->node, sizeof p->node, "%s", kube_pod_node(object));
        p->leaving = *kube_object_text(object, "deletionTimestamp");
        now.kept_back = p->avoids && strcmp(now.reason, "Unschedulable") == 0;
        pod_has_changed(k, p, &now);
        for (int i = 0; i < SUSPECTS_MAX && placed; i++)
            if (clock_left_ms(k->suspects[i].until_ms) > 0)
                doubt_pending(k, &k->suspects[i]);
        leaves(k, p);
    }
    pthread_mutex_unlock(&k->lock);
}

static void on_failure(void *context, const err *why)
{
    (void)context;
    log_warn("the watch of pods: %s", why->message);
}

/* ---- cluster.h ------------------------------------------------------------------------------- */

static int kube_start(cluster *c, const pod_spec *spec, pod *out, err *e)
{
    kube *k = (kube *)c;
    pod fresh = {.role = spec->role, .phase = POD_PENDING, .function = -1, .incarnation = -1,
                 .exit_status = -1};
    snprintf(fresh.name, sizeof fresh.name, "%s", spec->name);
    int status = 0;
    pthread_mutex_lock(&k->lock);
    entry *p = NULL;
    if (find(k, spec->name))
        status = err_set(e, ERR_EXISTS, "there is a pod %s already", spec->name);
    else if (k->living >= CLUSTER_KUBERNETES_PODS_MAX)
        status = err_set(e, ERR_LIMIT, "there are %d pods already", k->living);
    else if (!(p = add(k, &fresh)))
        status = err_set(e, ERR_NOMEM, "no memory for pod %s", spec->name);
    else
        want_it(k, p, WANT_CREATE, 0);
    if (p) {
        p->anywhere = spec->anywhere;
        *out = p->seen;
    }
    pthread_mutex_unlock(&k->lock);
    return status;
}

/* A reference to the TrainJob that stands for a job, as a list of one; NULL where the list has
 * none. New reference. */
static json_t *owner_in(const json_t *list)
{
    json_t *one;
    size_t i;
    json_array_foreach (json_object_get(list, "items"), i, one) {
        if (*kube_trainjob_job(one)) /* a copied TrainJob has the label too */
            return kube_owner_reference(KUBE_RESOURCES, "TrainJob", kube_object_text(one, "name"),
                                        kube_object_text(one, "uid"));
    }
    return NULL;
}

/* The reference of the TrainJob that stands for the job; NULL where there is none. A TrainJob may
 * be made after its job, and anew for a job that is resumed. So an answer is kept only for a
 * moment, and a failed request not at all. */
static const json_t *owner_of_job(kube *k, const char *job, int64_t deadline_ms)
{
    char path[PATH_BYTES], query[PATH_BYTES];
    cleanup_json json_t *list = NULL;
    err why = ERR_INIT;
    if (strcmp(k->job_known, job) == 0 && clock_left_ms(k->job_known_ms) > 0)
        return k->job_owner;
    snprintf(path, sizeof path, "/apis/" KUBE_RESOURCES "/namespaces/%s/trainjobs",
             k->access.namespace_name);
    snprintf(query, sizeof query,
             "labelSelector=kubeml.dev%%2Fjob%%3D%s%%2Ckubeml.dev%%2Finstall%%3D%s", job,
             k->templates.install);
    json_decref(k->job_owner);
    k->job_owner = NULL;
    k->job_known[0] = '\0';
    if (kube_get(k->calls, path, query, deadline_ms, &list, &why) && err_retry_may_help(why.code)) {
        log_warn("job %s gets a pod without an owner: %s", job, why.message);
        return NULL;
    }
    k->job_owner = owner_in(list);
    snprintf(k->job_known, sizeof k->job_known, "%s", job);
    k->job_known_ms = clock_deadline_ms(JOB_OWNER_KNOWN_MS);
    return k->job_owner;
}

static int relabel(kube *k, const char *name, const char *job, int function, int incarnation,
                   const cluster_gpu *gpu, err *e)
{
    char path[PATH_BYTES];
    err why = ERR_INIT;
    int64_t deadline = clock_deadline_ms(CALL_MS);
    cleanup_json json_t *patch = kube_pod_assignment(job, function, incarnation, gpu,
                                                     owner_of_job(k, job, deadline - CALL_MS / 2));
    kube_pods_path(k, name, path);
    if (!patch)
        return err_set(e, ERR_NOMEM, "no memory to give pod %s away", name);
    kube_request r = {.method = "PATCH", .path = path, .body = patch,
                      .type = "application/json-patch+json",
                      .query = "fieldManager=" KUBE_FIELD_MANAGER};
    if (kube_call(k->calls, &r, deadline, NULL, NULL, &why) == 0)
        return 0;
    /* The patch's tests fail where another job has the pod, where it is being deleted, or where the
     * patch was applied and our response was lost. */
    cleanup_json json_t *now = NULL;
    if (why.code == ERR_INVALID && kube_get(k->calls, path, NULL, deadline, &now, NULL) == 0) {
        if (kube_pod_is_given(now, job, function, incarnation))
            return 0;
        return err_set(e, ERR_CONFLICT, "pod %s %s", name,
                       *kube_object_text(now, "deletionTimestamp") ? "is being deleted"
                                                                   : "was given away already");
    }
    if (why.code == ERR_NOT_FOUND)
        return err_set(e, ERR_UNAVAILABLE, "there is no pod %s any more", name);
    return err_set(e, why.code, "%s", why.message);
}

/* Whether a pod has not ended, and its uid. */
static bool living_uid(kube *k, const char *name, char uid[KUBE_UID_BYTES])
{
    pthread_mutex_lock(&k->lock);
    bool living = kube_lives(k, name);
    snprintf(uid, KUBE_UID_BYTES, "%s", living ? find(k, name)->uid : "");
    pthread_mutex_unlock(&k->lock);
    return living;
}

static companion_objects companion_objects_of(kube *k, const char *job, const char *name, const char *uid)
{
    return (companion_objects){.client = k->calls,
                               .templates = &k->templates,
                               .namespace_name = k->access.namespace_name,
                               .job = job,
                               .ps_pod = name,
                               .ps_uid = uid,
                               .deadline_ms = clock_deadline_ms(COMPANION_OBJECTS_MS),
                               .owed = json_array()};
}

/* Gives the worker the objects for which the job manager has waited long enough. */
static void hand_over_owed(kube *k, const companion_objects *b)
{
    pthread_mutex_lock(&k->lock);
    if (json_array_size(b->owed) && k->owed_ms == INT64_MAX)
        k->owed_ms = clock_deadline_ms(kube_backoff_next(&k->owed_backoff));
    json_array_extend(k->owed, b->owed);
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    json_decref(b->owed);
}

static void make_companion_objects(kube *k, const companion_objects *b)
{
    companion_objects_make(b);
    pthread_mutex_lock(&k->lock);
    entry *p = find(k, b->ps_pod);
    if (p)
        p->beside = true;
    pthread_mutex_unlock(&k->lock);
}

static bool has_beside(kube *k, const char *name)
{
    pthread_mutex_lock(&k->lock);
    const entry *p = find(k, name);
    bool yes = p && p->beside;
    pthread_mutex_unlock(&k->lock);
    return yes;
}

static int kube_assign(cluster *c, const char *name, const char *job, int function, int incarnation,
                       const cluster_gpu *gpu, err *e)
{
    kube *k = (kube *)c;
    char uid[KUBE_UID_BYTES];
    if (!living_uid(k, name, uid))
        return err_set(e, ERR_UNAVAILABLE, "there is no pod %s any more", name);
    if (relabel(k, name, job, function, incarnation, gpu, e))
        return -1;
    if (function < 0) {
        companion_objects b = companion_objects_of(k, job, name, uid);
        make_companion_objects(k, &b);
        hand_over_owed(k, &b);
    }
    pthread_mutex_lock(&k->lock);
    entry *p = find(k, name);
    if (p) {
        snprintf(p->seen.job, sizeof p->seen.job, "%s", job);
        p->seen.function = function;
        p->seen.incarnation = incarnation;
        p->seen.gpu = gpu ? *gpu : (cluster_gpu){0};
    }
    pthread_mutex_unlock(&k->lock);
    return 0;
}

static void kube_publish(cluster *c, const char *name, const char *job, const json_t *access)
{
    kube *k = (kube *)c;
    char uid[KUBE_UID_BYTES];
    if (!living_uid(k, name, uid))
        return;
    companion_objects b = companion_objects_of(k, job, name, uid);
    /* the controller that assigned the pod may have died before it made them */
    if (!has_beside(k, name))
        make_companion_objects(k, &b);
    companion_objects_publish(&b, access);
    hand_over_owed(k, &b);
}

static void kube_let_meet(cluster *c, const char *name, const char *job)
{
    kube *k = (kube *)c;
    char uid[KUBE_UID_BYTES];
    if (!living_uid(k, name, uid))
        return;
    companion_objects b = companion_objects_of(k, job, name, uid);
    companion_objects_let_meet(&b);
    hand_over_owed(k, &b);
}

static int kube_stop(cluster *c, const char *name, int grace_ms, err *e)
{
    (void)e;
    kube *k = (kube *)c;
    pthread_mutex_lock(&k->lock);
    entry *p = find(k, name);
    if (p && p->seen.phase == POD_ENDED) {
        forget(k, p);
    } else if (p && p->want == WANT_CREATE && !p->there && !p->busy) {
        p->want = WANT_NOTHING; /* the API server has not heard of it */
        kube_set_words(&p->seen, "Stopped", "it was not started yet");
        kube_has_ended(k, p);
    } else if (p && (!p->asked || (grace_ms + 999) / 1000 < p->grace_s)) {
        p->asked = true;
        p->grace_s = (grace_ms + 999) / 1000;
        /* grace 0 gives the pod up; a pod that somebody deletes is silent for that reason */
        if (p->grace_s == 0 && !p->leaving)
            suspect_node(k, p->node);
        want_it(k, p, WANT_DELETE, p->seen.job[0] ? clock_deadline_ms(DELETE_AFTER_MS) : 0);
    }
    pthread_mutex_unlock(&k->lock);
    return 0;
}

static int kube_list(cluster *c, pod *out, size_t max, size_t *count, err *e)
{
    (void)e;
    kube *k = (kube *)c;
    *count = 0;
    pthread_mutex_lock(&k->lock);
    for (entry *p = k->entries; p; p = p->next) {
        if (p->forgotten)
            continue;
        if (*count < max)
            out[*count] = p->seen;
        ++*count;
    }
    pthread_mutex_unlock(&k->lock);
    return 0;
}

static int kube_event_fd(cluster *c)
{
    return ((kube *)c)->event_fd;
}

static int kube_next_event(cluster *c, pod *out, err *e)
{
    (void)e;
    kube *k = (kube *)c;
    uint64_t times;
    int got = 0;
    pthread_mutex_lock(&k->lock);
    for (entry *p = k->entries; p && !got; p = p->next)
        if (p->untold) {
            p->untold = false;
            *out = p->seen;
            got = 1;
        }
    if (!got && read(k->event_fd, &times, sizeof times) < 0 && errno != EAGAIN)
        log_error("the cluster's events: %s", strerror(errno));
    if (got)
        forget_old(k);
    pthread_mutex_unlock(&k->lock);
    return got;
}

/* Counts the GPU shares that the nodes have, in functions: each function takes its shares from one
 * node. */
int kube_count_slots(kube *k, kube_client *c, int *out, err *e)
{
    char resource[128];
    int each = kube_templates_gpu(&k->templates, resource, sizeof resource);
    cleanup_json json_t *nodes = NULL;
    json_t *node;
    size_t i;
    long total = 0;
    each = each > 0 && strcmp(resource, k->templates.slots_resource) == 0 ? each : 1;
    if (kube_get(c, "/api/v1/nodes", NULL, clock_deadline_ms(SLOTS_MS), &nodes, e))
        return err_wrap(e, "slots from %s need a ClusterRole that may list nodes (or set `slots`)",
                        k->templates.slots_resource);
    json_array_foreach(json_object_get(nodes, "items"), i, node) {
        const json_t *has = json_object_get(json_object_get(node, "status"), "allocatable");
        const char *text = json_string_value(json_object_get(has, k->templates.slots_resource));
        long n = text ? strtol(text, NULL, 10) : 0;
        total +=
            n > 0 && !json_is_true(json_object_get(json_object_get(node, "spec"), "unschedulable"))
                ? n / each
                : 0;
    }
    *out = total < 1 ? 1 : total > 100000 ? 100000 : (int)total;
    return 0;
}

static int kube_pod_gpus(cluster *c)
{
    char resource[128];
    return kube_templates_gpu(&((kube *)c)->templates, resource, sizeof resource);
}

static int kube_slots(cluster *c, int *out, err *e)
{
    kube *k = (kube *)c;
    bool counts = k->templates.slots_resource[0] && !k->templates.slots;
    pthread_mutex_lock(&k->lock);
    *out = k->counted;
    pthread_mutex_unlock(&k->lock);
    if (counts && *out == 0) { /* the first time; later the worker counts */
        if (kube_count_slots(k, k->calls, out, e))
            return -1;
        pthread_mutex_lock(&k->lock);
        k->counted = *out;
        k->count_ms = clock_deadline_ms(k->slots_every_ms);
        pthread_cond_signal(&k->changed);
        pthread_mutex_unlock(&k->lock);
    }
    if (counts)
        return 0;
    *out = k->templates.slots ? k->templates.slots : k->slots;
    return 0;
}

static int kube_cpus(cluster *c)
{
    return kube_templates_cpus(&((kube *)c)->templates);
}

/* The log that was taken before the pod was deleted; -1: none. */
static int kept_log(kube *k, const char *name, size_t bytes_max, cluster_log *out)
{
    pthread_mutex_lock(&k->lock);
    const entry *p = find(k, name);
    int status = p && p->log.text ? kube_tail(&p->log, bytes_max, out, NULL) : -1;
    pthread_mutex_unlock(&k->lock);
    return status;
}

/* A client for one thread that reads a log. */
static kube_client *take_reader(kube *k, err *e)
{
    kube_client *c = NULL;
    pthread_mutex_lock(&k->lock);
    if (k->reader_count)
        c = k->readers[--k->reader_count];
    pthread_mutex_unlock(&k->lock);
    return c || kube_client_open(&k->access, &c, e) == 0 ? c : NULL;
}

static void give_reader(kube *k, kube_client *c)
{
    pthread_mutex_lock(&k->lock);
    if (c && k->reader_count < READERS_MAX) {
        k->readers[k->reader_count++] = c;
        c = NULL;
    }
    pthread_mutex_unlock(&k->lock);
    kube_client_close(c);
}

static int kube_log_tail(cluster *c, const char *name, size_t bytes_max, cluster_log *out, err *e)
{
    kube *k = (kube *)c;
    pthread_mutex_lock(&k->lock);
    const entry *p = find(k, name);
    bool known = p != NULL, gone = p && p->log.text && !p->there;
    pod_role role = p ? p->seen.role : POD_FUNCTION;
    char node[NODE_BYTES];
    snprintf(node, sizeof node, "%s", p ? p->node : "");
    bool deaf = kube_is_deaf(k, node);
    pthread_mutex_unlock(&k->lock);
    if (!known)
        return err_set(e, ERR_NOT_FOUND, "there is no pod %s", name);
    if ((gone || deaf) && kept_log(k, name, bytes_max, out) == 0)
        return 0;
    if (deaf)
        return err_set(e, ERR_UNAVAILABLE, "node %.150s, which pod %.60s is on, does not answer",
                       node, name);
    err why = ERR_INIT;
    int64_t began_ms = clock_monotonic_ms();
    cluster_log now = {0};
    kube_client *client = take_reader(k, &why);
    int status =
        client ? kube_fetch_log(k, client, name, role, bytes_max, began_ms + CALL_MS, &now, &why)
               : -1;
    give_reader(k, client);
    if (status)
        kube_log_failed(k, node, began_ms, &why);
    /* A pod that is ending gives no log from some moment on. */
    if ((status || now.len == 0) && kept_log(k, name, bytes_max, out) == 0) {
        free(now.text);
        return 0;
    }
    if (status)
        return err_set(e, why.code, "%s", why.message);
    *out = now;
    return 0;
}

static void kube_close(cluster *c, bool stop_all)
{
    kube *k = (kube *)c;
    (void)stop_all;
    pthread_mutex_lock(&k->lock);
    k->stopping = true;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
    if (k->work)
        kube_client_cancel(k->work);
    if (k->working)
        pthread_join(k->worker, NULL);
    kube_watch_stop(k->watch);
    kube_client_close(k->work);
    kube_client_close(k->calls);
    while (k->reader_count)
        kube_client_close(k->readers[--k->reader_count]);
    while (k->entries)
        kube_drop(k, k->entries);
    json_decref(k->job_owner);
    json_decref(k->owed);
    kube_templates_free(&k->templates);
    kube_config_free(&k->access);
    if (k->event_fd >= 0)
        close(k->event_fd);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

static const cluster_ops ops = {
    .name = "kubernetes",
    .start = kube_start,
    .assign = kube_assign,
    .publish = kube_publish,
    .let_meet = kube_let_meet,
    .stop = kube_stop,
    .list = kube_list,
    .event_fd = kube_event_fd,
    .next_event = kube_next_event,
    .slots = kube_slots,
    .cpus = kube_cpus,
    .pods_own_cpus = true,
    .pod_gpus = kube_pod_gpus,
    .log_tail = kube_log_tail,
    .close = kube_close,
};

/* ---- open ------------------------------------------------------------------------------------ */

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static int take_access(kube *k, const cluster_kubernetes_config *c, err *e)
{
    const kube_config *from = c->access;
    if (!from)
        return kube_config_find(c->context, &k->access, e);
    k->access =
        (kube_config){.server = copy_of(from->server),     .ca_file = copy_of(from->ca_file),
                      .ca_pem = copy_of(from->ca_pem),     .token_file = copy_of(from->token_file),
                      .token = copy_of(from->token),       .cert_file = copy_of(from->cert_file),
                      .cert_pem = copy_of(from->cert_pem), .key_file = copy_of(from->key_file),
                      .key_pem = copy_of(from->key_pem),   .insecure = from->insecure};
    snprintf(k->access.namespace_name, sizeof k->access.namespace_name, "%s", from->namespace_name);
    return k->access.server ? 0 : err_set(e, ERR_NOMEM, "no memory for the cluster's access");
}

static int find_owner(kube *k, err *e)
{
    char path[PATH_BYTES];
    const json_t *owner = k->templates.owner;
    if (!owner)
        return 0;
    const char *version = json_string_value(json_object_get(owner, "apiVersion"));
    snprintf(path, sizeof path, "/%s/%.80s/namespaces/%s/%.80s/%.250s",
             strchr(version, '/') ? "apis" : "api", version, k->access.namespace_name,
             json_string_value(json_object_get(owner, "plural")),
             json_string_value(json_object_get(owner, "name")));
    cleanup_json json_t *object = NULL;
    if (kube_get(k->calls, path, NULL, clock_deadline_ms(CLUSTER_KUBERNETES_OPEN_MS), &object, e))
        return err_wrap(e, "the owner of our pods");
    snprintf(k->owner_uid, sizeof k->owner_uid, "%s", kube_object_text(object, "uid"));
    return 0;
}

static int start_threads(kube *k, err *e)
{
    char path[PATH_BYTES], selector[200];
    kube_pods_path(k, "", path);
    snprintf(selector, sizeof selector, "kubeml.dev%%2Finstall%%3D%s", k->templates.install);
    kube_watch_config config = {.access = &k->access, .path = path,         .selector = selector,
                                .changed = on_change, .failed = on_failure, .context = k};
    if (kube_watch_start(&config, &k->watch, e) ||
        kube_watch_wait(k->watch, clock_deadline_ms(CLUSTER_KUBERNETES_OPEN_MS), e))
        return err_wrap(e, "pods in namespace %s", k->access.namespace_name);
    pthread_mutex_lock(&k->lock);
    k->synced = true;
    pthread_mutex_unlock(&k->lock);
    if (pthread_create(&k->worker, NULL, kube_worker, k))
        return err_set(e, ERR_NOMEM, "no thread for the cluster");
    k->working = true;
    return 0;
}

static kube *kube_new(const cluster_kubernetes_config *c)
{
    kube *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->base.ops = &ops;
    k->slots = c->slots;
    k->slots_every_ms = c->slots_every_ms ? c->slots_every_ms : CLUSTER_KUBERNETES_SLOTS_MS;
    k->late_ms = c->late_ms ? c->late_ms : CLUSTER_KUBERNETES_LATE_MS;
    k->count_ms = INT64_MAX;
    k->owed = json_array();
    k->owed_ms = INT64_MAX;
    kube_backoff_init(&k->owed_backoff, (uint64_t)clock_monotonic_ns());
    k->event_fd = -1;
    pthread_mutex_init(&k->lock, NULL);
    clock_cond_init(&k->changed);
    return k;
}

int cluster_kubernetes_open(const void *config, cluster **out, err *e)
{
    const cluster_kubernetes_config *c = config;
    kube *k = kube_new(c);
    if (!k)
        return err_set(e, ERR_NOMEM, "no memory for the cluster");
    int status =
        kube_templates_read(c->templates, &k->templates, e) || take_access(k, c, e) ? -1 : 0;
    if (status == 0 && k->templates.namespace_name[0])
        snprintf(k->access.namespace_name, sizeof k->access.namespace_name, "%s",
                 k->templates.namespace_name);
    k->access.may_write = c->may_write;
    k->access.writer = c->writer;
    if (status == 0) {
        k->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        status = k->event_fd < 0 ? err_set_errno(e, errno, "eventfd") : 0;
    }
    if (status || kube_client_open(&k->access, &k->calls, e) ||
        kube_client_open(&k->access, &k->work, e) || find_owner(k, e) || start_threads(k, e)) {
        kube_close(&k->base, false);
        return -1;
    }
    *out = &k->base;
    return 0;
}
