/* pool.c: pods and the connections to them; pool_fill.c decides how many warm pods there are.
 *
 * A pod starts generic and is dialled until it sends `welcome`. Then it is warm, or goes at once to
 * the job that asked for it. It is labelled before it hears of the job. A pod that was given away
 * never returns to the pool. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/contract/exit_cause.h"
#include "job_manager_internal.h"

enum {
    REFILL_AFTER_MS = 150, /* a job that has just taken pods needs the cores first */
    RETRY_MS = 1000,       /* after a pod of the pool did not start; doubled each time */
    RETRY_MS_MAX = 30000,
    STUCK_MS = 10000, /* until a placed pod that its node has not accepted is stuck */
    STUCK_MS_MAX = 80000,
    MADE_MS = 600000,  /* until another pod is; a job gives up before (job_limits.pod_ms) */
    PATIENCE_MAX = 32, /* factor of these waits, not of MADE_MS: a node may be slow */
};

/* A pod has started, so pods can start: the next failure waits as the first did. */
static void forget_failures(job_manager *o)
{
    o->pool_wait_ms = RETRY_MS;
    o->patience = 1;
}

void pool_retry_later(job_manager *o)
{
    o->pool_wait_ms = o->pool_wait_ms * 2 > RETRY_MS_MAX ? RETRY_MS_MAX : o->pool_wait_ms * 2;
    o->pool_retry_ms = clock_deadline_ms(o->pool_wait_ms);
}

/* ---- the list -------------------------------------------------------------------------------- */

link_pod *pool_find(job_manager *o, const char *name)
{
    for (link_pod *p = o->pods; p; p = p->next)
        if (strcmp(p->name, name) == 0)
            return p;
    return NULL;
}

link_pod *pool_of(job_manager *o, const char *id, int function, int incarnation)
{
    for (link_pod *p = o->pods; p; p = p->next)
        if (strcmp(p->job, id) == 0 && p->function == function && p->incarnation == incarnation &&
            p->use != USE_STOPPING)
            return p;
    return NULL;
}

void pool_hang_up(link_pod *p)
{
    wire_close(p->wire);
    wire_close(p->dialled);
    p->wire = p->dialled = NULL;
    p->talk = TALK_NONE;
}

static void drop(job_manager *o, link_pod *gone)
{
    for (link_pod **at = &o->pods; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    pool_hang_up(gone);
    pool_gpu_forget(o, gone->gpu);
    free(gone);
}

void pool_close(job_manager *o)
{
    while (o->pods)
        drop(o, o->pods);
}

void pool_counts(const job_manager *o, int *functions, int *ps, int *all)
{
    *functions = *ps = *all = 0;
    for (const link_pod *p = o->pods; p; p = p->next) {
        ++*all;
        if (p->use == USE_WARM)
            ++*(p->role == POD_PS ? ps : functions);
    }
}

void pool_use(link_pod *p, pod_use use)
{
    p->use = use;
    p->since_ms = clock_monotonic_ms();
}

/* ---- events ---------------------------------------------------------------------------------- */

void pool_event(job_manager *o, const link_pod *p, job_event_type type, err_code code,
                const char *reason, const char *message)
{
    job_manager_event(o, &(job_event){.type = type,
                                      .job = p->job,
                                      .pod = p->name,
                                      .function = p->function,
                                      .incarnation = p->incarnation,
                                      .code = code,
                                      .reason = reason,
                                      .message = message});
}

static void waiter_done(job_manager *o, link_pod *p, const err *why)
{
    take_waiter *w = p->waiter;
    p->waiter = NULL;
    pthread_mutex_lock(&o->lock);
    if (why) {
        w->why = *why;
    } else {
        w->wire = p->wire;
        p->wire = NULL;
        p->talk = TALK_NONE;
        snprintf(w->pod, sizeof w->pod, "%s", p->name);
    }
    w->done = true;
    pthread_cond_broadcast(&o->taken);
    pthread_mutex_unlock(&o->lock);
}

/* ---- starting -------------------------------------------------------------------------------- */

static link_pod *add(job_manager *o, const pod *from)
{
    link_pod *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    snprintf(p->name, sizeof p->name, "%s", from->name);
    snprintf(p->address, sizeof p->address, "%s", from->address);
    snprintf(p->job, sizeof p->job, "%s", from->job);
    p->role = from->role;
    p->function = from->function;
    p->incarnation = from->incarnation;
    p->dial_ms = INT64_MAX;
    p->silent_ms = INT64_MAX;
    p->gpu = -1;
    p->next = o->pods;
    o->pods = p;
    return p;
}

static link_pod *start(job_manager *o, pod_role role, int gpu, bool anywhere, err *e)
{
    pod_spec spec = {.role = role, .anywhere = anywhere};
    pod started;
    char random[9];
    job_manager_random_hex(random, sizeof random);
    snprintf(spec.name, sizeof spec.name, "%s-%s", role == POD_PS ? "ps" : "function", random);
    /* CUDA reserves terabytes of addresses. */
    spec.limits.memory_bytes =
        role == POD_FUNCTION && o->gpus == 0 ? o->controller->config.function_memory : 0;
    spec.limits.goes_first = role == POD_FUNCTION;
    if (gpu >= 0)
        snprintf(spec.gpu, sizeof spec.gpu, "%s", o->gpu[gpu].id);
    if (o->cluster->ops->start(o->cluster, &spec, &started, e))
        return NULL;
    link_pod *p = add(o, &started);
    if (!p) {
        o->cluster->ops->stop(o->cluster, spec.name, 0, NULL);
        err_set(e, ERR_NOMEM, "no memory for pod %s", spec.name);
        return NULL;
    }
    pool_use(p, USE_STARTING);
    p->gpu = gpu;
    p->dial_wait_ms = POD_DIAL_MS;
    /* Kubernetes may give the address later: pool_changed has it then. */
    p->dial_ms = p->address[0] ? clock_deadline_ms(POD_DIAL_MS) : INT64_MAX;
    return p;
}

/* `gpu` -1: any, or none. */
link_pod *pool_start(job_manager *o, pod_role role, int gpu, err *e)
{
    return start(o, role, gpu, false, e);
}

/* ---- giving pods to jobs --------------------------------------------------------------------- */

/* Gives a pod that has sent `welcome` to the job in its fields. */
static void give(job_manager *o, link_pod *p)
{
    err e = ERR_INIT;
    bool shown = o->gpus_elsewhere && p->gpu >= 0;
    if (shown)
        jobs_gpu_book(o->machine, p->job, p->function, p->incarnation, p->gpu);
    if (o->cluster->ops->assign(o->cluster, p->name, p->job, p->function, p->incarnation,
                                shown ? &o->gpu[p->gpu] : NULL, &e)) {
        pool_event(o, p, JOB_POD_FAILED, e.code, "PodLost", e.message);
        p->job[0] = '\0';
        pool_stop(o, p->name, POD_GRACE_MS);
        return;
    }
    pool_use(p, USE_JOB);
    pool_event(o, p, JOB_POD_READY, ERR_NONE, NULL, NULL);
}

static void tell_waiting(job_manager *o, const link_pod *p)
{
    if (p->waits_reason[0])
        pool_event(o, p, JOB_POD_WAITING, ERR_NONE, p->waits_reason, p->waits_message);
}

/* Whether a pod can work for that function. CUDA reads MPS's limits when it starts: a pod that is
 * ready on a GPU can no longer get them. */
static bool suits(const job_manager *o, const link_pod *p, const char *id, int function)
{
    const job *j = jobs_find(o->machine, id);
    if (p->gpu < 0)
        return true;
    if (o->gpus_elsewhere)
        return jobs_gpu_fits(o->machine, id, function, p->gpu);
    return j && p->gpu == job_gpu(j, function) &&
           (!o->mps || (j->request.gpu.memory_bytes == 0 && j->request.gpu.threads == 0));
}

bool pool_is_generic(const link_pod *p, pod_role role, pod_use use)
{
    return p->role == role && p->use == use && !p->job[0] && !p->waiter;
}

/* Whether a pod has been starting for long: its node pulls a large image, or cannot make the
 * pod. */
static bool is_made_for_long(const link_pod *p)
{
    return p->use == USE_STARTING && !p->address[0] && !pool_waits_for_room(p) &&
           clock_monotonic_ms() - p->since_ms >= STUCK_MS;
}

/* Of the GPUs that warm pods are on, the GPU for the function; -1: any, or none of them. */
static int gpu_chosen(const job_manager *o, const char *id, int function)
{
    bool offered[GPU_COUNT_MAX] = {false};
    for (const link_pod *p = o->pods; p; p = p->next)
        if (pool_is_generic(p, POD_FUNCTION, USE_WARM) && p->gpu >= 0)
            offered[p->gpu] = true;
    return jobs_gpu_choose(o->machine, id, function, offered);
}

/* The oldest generic pod, and before it one that is ready on the function's GPU. A pod that has
 * been starting for long is not reserved for a job; the job still gets it where it is ready first
 * (give_or_keep). `id` NULL: for no job. */
static link_pod *find_generic(job_manager *o, pod_role role, pod_use use, const char *id,
                              int function)
{
    link_pod *oldest = NULL;
    for (link_pod *p = o->pods; p; p = p->next)
        if (pool_is_generic(p, role, use) &&
            (id ? suits(o, p, id, function) && !is_made_for_long(p)
                : p->gpu < 0 || o->gpus_elsewhere) &&
            (!oldest || oldest->gpu < 0 || p->gpu >= 0))
            oldest = p;
    return oldest;
}

static link_pod *find_warm(job_manager *o, pod_role role, const char *id, int function)
{
    link_pod *oldest = NULL;
    bool placed = o->gpus_elsewhere && role == POD_FUNCTION && jobs_gpu_places(o->machine, id);
    int gpu = placed ? gpu_chosen(o, id, function) : -1;
    for (link_pod *p = o->pods; placed && p; p = p->next)
        if (pool_is_generic(p, role, USE_WARM) && p->gpu == gpu)
            oldest = p;
    return placed ? oldest : find_generic(o, role, USE_WARM, id, function);
}

static void reserve(link_pod *p, const char *id, int function, int incarnation)
{
    snprintf(p->job, sizeof p->job, "%s", id);
    p->function = function;
    p->incarnation = incarnation;
}

void pool_take(job_manager *o, const job_action *a)
{
    pod_role role = a->function == JOB_KUBEML_PS ? POD_PS : POD_FUNCTION;
    o->pool_retry_ms = clock_deadline_ms(REFILL_AFTER_MS);
    link_pod *p = find_warm(o, role, a->job->id, a->function);
    if (p) {
        reserve(p, a->job->id, a->function, a->incarnation);
        give(o, p);
        return;
    }
    err e = ERR_INIT;
    p = find_generic(o, role, USE_STARTING, a->job->id, a->function);
    if (!p)
        p = pool_start(o, role, -1, &e);
    if (!p) {
        job_manager_event(o, &(job_event){.type = JOB_POD_FAILED,
                                          .job = a->job->id,
                                          .function = a->function,
                                          .incarnation = a->incarnation,
                                          .code = e.code,
                                          .reason = "PodNotStarted",
                                          .message = e.message});
        return;
    }
    reserve(p, a->job->id, a->function, a->incarnation);
    pool_event(o, p, JOB_POD_WAITING, ERR_NONE, "PoolEmpty",
         role == POD_PS ? "no warm kubeml-ps was there; one is being started"
                        : "no warm function was there; one is being started");
    tell_waiting(o, p);
}

void pool_untake(job_manager *o, const job_action *a)
{
    link_pod *p = pool_of(o, a->job->id, a->function, a->incarnation);
    if (!p || p->use != USE_STARTING)
        return; /* what became of it is reported already */
    pool_event(o, p, JOB_POD_FAILED, ERR_CANCELLED, "Untaken", "it is wanted no more");
    p->job[0] = '\0';
    /* Without grace the cluster keeps the next pod from a node that could not make this one. */
    pool_stop(o, p->name, a->value && is_made_for_long(p) ? 0 : POD_GRACE_MS);
}

void pool_take_function(job_manager *o, take_waiter *w)
{
    err e = ERR_INIT;
    link_pod *p = find_generic(o, POD_FUNCTION, USE_WARM, NULL, -1);
    bool warm = p != NULL;
    if (!p)
        p = find_generic(o, POD_FUNCTION, USE_STARTING, NULL, -1);
    if (!p)
        p = pool_start(o, POD_FUNCTION, -1, &e);
    if (!p) {
        pthread_mutex_lock(&o->lock);
        w->why = e;
        w->done = true;
        pthread_cond_broadcast(&o->taken);
        pthread_mutex_unlock(&o->lock);
        return;
    }
    p->waiter = w;
    if (warm) {
        pool_use(p, USE_SERVE);
        waiter_done(o, p, NULL);
    }
}

void pool_stop(job_manager *o, const char *name, int grace_ms)
{
    link_pod *p = pool_find(o, name);
    if (p) {
        pool_use(p, USE_STOPPING);
        p->dial_ms = INT64_MAX;
        /* a pod that still sent `welcome` would be given away */
        if (p->talk == TALK_WELCOME || p->dialled)
            pool_hang_up(p);
    }
    err e = ERR_INIT;
    if (o->cluster->ops->stop(o->cluster, name, grace_ms, &e))
        log_error("pod %s cannot be stopped: %s", name, e.message);
}

/* ---- welcome --------------------------------------------------------------------------------- */

/* Gives a warm pod to a job whose pod is still being made, or leaves it in the pool. */
static void give_or_keep(job_manager *o, link_pod *p)
{
    link_pod *late = NULL;
    for (link_pod *other = o->pods; other; other = other->next)
        if (other->role == p->role && other->use == USE_STARTING && other->job[0] &&
            suits(o, p, other->job, other->function))
            late = other;
    if (!late) {
        pool_use(p, USE_WARM);
        pool_send_autotuned(o, p);
        return;
    }
    reserve(p, late->job, late->function, late->incarnation);
    late->job[0] = '\0';
    give(o, p);
}

/* The pod came on a GPU without room for its function: the pool gets it. */
static void refuse(job_manager *o, link_pod *p)
{
    char text[ERR_MESSAGE_BYTES];
    gpu_state gpus[GPU_COUNT_MAX];
    jobs_gpu_states(o->machine, gpus);
    const gpu_state *g = &gpus[p->gpu];
    uint64_t left = g->taken_bytes < g->memory_bytes ? g->memory_bytes - g->taken_bytes : 0;
    snprintf(
        text, sizeof text,
        "function %d's pod came on GPU %s, of which %.1f of %.1f GiB are free; another is tried",
        p->function, o->gpu[p->gpu].id, (double)left / 0x1p30, (double)g->memory_bytes / 0x1p30);
    pool_event(o, p, JOB_POD_UNPLACED, ERR_NONE, "NoGpuMemory", text);
    p->job[0] = '\0';
    give_or_keep(o, p);
}

void pool_welcome(job_manager *o, link_pod *p, const json_t *m)
{
    if (strcmp(wire_type(m), "welcome") != 0) {
        const char *message = json_string_value(json_object_get(m, "message"));
        log_error("pod %s says \"%s\" instead of welcome: %s", p->name, wire_type(m),
                  message ? message : "");
        err e = ERR_INIT;
        err_set(&e, ERR_INVALID, "no welcome");
        pool_broken(o, p, &e);
        return;
    }
    p->talk = TALK_NONE;
    forget_failures(o);
    if (o->gpus_elsewhere && p->role == POD_FUNCTION && p->gpu < 0)
        p->gpu = pool_gpu_told(o, json_object_get(m, "gpu"));
    if (p->attach) {
        const job *j = jobs_find(o->machine, p->job);
        int after = j ? j->epochs - 1 : -1; /* the history may have one more */
        p->attach = false;
        p->talk = TALK_ACCEPTED;
        pool_send(o, p, json_pack("{s:s, s:s, s:i}", "type", "attach", "id", p->job, "after_epoch",
                                     after));
    } else if (p->waiter) {
        pool_use(p, USE_SERVE);
        waiter_done(o, p, NULL);
    } else if (p->job[0] && o->gpus_elsewhere && !suits(o, p, p->job, p->function)) {
        refuse(o, p);
    } else if (p->job[0]) {
        give(o, p);
    } else {
        give_or_keep(o, p);
    }
}

/* ---- dialling -------------------------------------------------------------------------------- */

/* Whether a node does not answer. A node that lives refuses a connection at once where nobody
 * listens yet. */
static bool node_is_silent(const err *why)
{
    return why->code == ERR_TIMEOUT || why->os_errno == EHOSTUNREACH ||
           why->os_errno == ENETUNREACH;
}

static void reached(job_manager *o, link_pod *p)
{
    p->wire = steal_ptr(p->dialled);
    p->dial_ms = INT64_MAX;
    p->silent_ms = INT64_MAX;
    p->talk = TALK_WELCOME;
    wire_watch_peer(p->wire, POD_DEAD_MS);
    pool_send(o, p, json_pack("{s:s, s:s}", "type", "hello", "token", o->pool_token));
}

/* `since_ms`: when it was dialled. */
static void not_reached(job_manager *o, link_pod *p, int64_t since_ms, err *why)
{
    pool_hang_up(p);
    p->dial_ms = INT64_MAX;
    if (!node_is_silent(why))
        p->silent_ms = INT64_MAX;
    else if (p->silent_ms == INT64_MAX)
        p->silent_ms = since_ms;
    if (p->use == USE_JOB && p->attach) {
        bool answered = why->os_errno == ECONNREFUSED; /* by its node */
        p->attach = false;
        err_wrap(why, "%s", p->address);
        pool_event(o, p, JOB_PS_CLOSED, answered ? ERR_UNAVAILABLE : ERR_TIMEOUT, NULL,
                   why->message);
        return;
    }
    p->dial_wait_ms = p->dial_wait_ms * 5 / 4 + 1;
    if (p->dial_wait_ms > POD_DIAL_MS_MAX)
        p->dial_wait_ms = POD_DIAL_MS_MAX;
    p->dial_ms = since_ms + p->dial_wait_ms;
}

void pool_dialled(job_manager *o, link_pod *p, int64_t now_ms)
{
    err e = ERR_INIT;
    int status = wire_dialled(p->dialled, &e);
    if (status == 0 && p->dial_ms <= now_ms)
        status = err_set(&e, ERR_TIMEOUT, "no answer by the deadline");
    if (status > 0)
        reached(o, p);
    else if (status < 0)
        not_reached(o, p, p->dial_ms - POD_DIAL_MS_MAX, &e);
}

/* Does not wait: an address where nobody answers must not delay other pods. */
static void dial(job_manager *o, link_pod *p, int64_t now_ms)
{
    err e = ERR_INIT;
    p->dialled = wire_dial_begin(p->address, &e);
    p->dial_ms = now_ms + POD_DIAL_MS_MAX;
    if (p->dialled)
        pool_dialled(o, p, now_ms);
    else
        not_reached(o, p, now_ms, &e);
}

/* Whether Kubernetes names what the pod waits for (space, an image). Another pod would wait for the
 * same. */
bool pool_waits_for_room(const link_pod *p)
{
    return p->waits_reason[0] && strcmp(p->waits_reason, "ContainerCreating") != 0;
}

/* When a pod that starts counts as stuck:
 * - Kubernetes still places pods on a node that has just lost its power, and keeps them there. A
 *   node that lives accepts them at once, and then takes its time to pull their image.
 * - A pod made on such a node before has an address, at which nothing answers.
 * - The node answers, but the program may never listen. Once it does, it may take its time: it
 *   makes a GPU ready before it sends `welcome`. */
static int64_t stuck_at(const job_manager *o, const link_pod *p)
{
    int64_t taken = (int64_t)STUCK_MS * o->patience, silent = (int64_t)POD_DEAD_MS * o->patience;
    if (p->use != USE_STARTING)
        return INT64_MAX;
    if (p->kept_back || strcmp(p->waits_reason, CLUSTER_NODE_SILENT) == 0)
        return p->since_ms;
    if (pool_waits_for_room(p))
        return INT64_MAX;
    if (!p->address[0] && p->untaken)
        return p->since_ms + (taken < STUCK_MS_MAX ? taken : STUCK_MS_MAX);
    if (!p->address[0])
        return p->since_ms + MADE_MS;
    if (p->wire)
        return INT64_MAX;
    int64_t hello_ms = p->since_ms + POD_HELLO_MS;
    bool sooner = p->silent_ms != INT64_MAX && p->silent_ms + silent < hello_ms;
    return sooner ? p->silent_ms + silent : hello_ms;
}

/* Starts another pod in place of a stuck one, for the same job or call. Stops the old one first, so
 * that the cluster keeps new pods from its node. */
static void replace(job_manager *o, link_pod *old)
{
    err e = ERR_INIT;
    const char *why = old->kept_back                ? "avoids nodes, and no other takes it"
                      : !old->address[0]            ? "is not made"
                      : old->silent_ms == INT64_MAX ? "takes no connection"
                                                    : "is on a node that answers nothing";
    pool_stop(o, old->name, 0);
    link_pod *p = start(o, old->role, old->gpu, old->kept_back, &e);
    if (p) {
        log_warn("pod %s %s: pod %s starts in its place", old->name, why, p->name);
        reserve(p, old->job, old->function, old->incarnation);
        p->waiter = old->waiter;
        old->waiter = NULL;
    } else {
        log_error("pod %s %s, and no other starts: %s", old->name, why, e.message);
        if (old->waiter)
            waiter_done(o, old, &e);
        if (old->job[0])
            pool_event(o, old, JOB_POD_FAILED, e.code, "PodNotStarted", e.message);
    }
    old->job[0] = '\0';
}

void pool_listened(job_manager *o, int64_t polled_ms)
{
    int64_t since = polled_ms - o->polled_ms;
    o->listened_ms += since < POD_LISTEN_MS ? since : POD_LISTEN_MS;
    o->polled_ms = polled_ms;
}

/* Whether a kubeml-ps stands still: its connection stays open, and its job would wait for ever. */
static bool is_hung(const job_manager *o, const link_pod *p)
{
    return p->role == POD_PS && p->use == USE_JOB && p->talk == TALK_LIVE &&
           o->listened_ms - p->heard_ms >= POD_HUNG_MS;
}

static void give_up_hung(job_manager *o, link_pod *p)
{
    char text[64];
    snprintf(text, sizeof text, "it said nothing for %d s", POD_HUNG_MS / 1000);
    log_warn("kubeml-ps %s of job %s is killed: %s", p->name, p->job, text);
    pool_hang_up(p);
    pool_event(o, p, JOB_PS_SILENT, ERR_TIMEOUT, NULL, text);
}

void pool_timers(job_manager *o, int64_t now_ms)
{
    bool stuck = false;
    for (link_pod *p = o->pods, *next; p; p = next) {
        next = p->next;
        if (stuck_at(o, p) <= now_ms) {
            replace(o, p);
            stuck = stuck || !p->kept_back;
        } else if (p->dial_ms <= now_ms && p->dialled) {
            pool_dialled(o, p, now_ms);
        } else if (p->dial_ms <= now_ms) {
            dial(o, p, now_ms);
        } else if (is_hung(o, p)) {
            give_up_hung(o, p);
        }
    }
    if (stuck && o->patience < PATIENCE_MAX)
        o->patience *= 2;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Copies the last lines of a pod's log that fit into `bytes`, newlines as they are. */
static void log_evidence(job_manager *o, const char *name, char *out, size_t bytes)
{
    cluster_log log;
    out[0] = '\0';
    if (o->cluster->ops->log_tail(o->cluster, name, LOG_EVIDENCE_BYTES, &log, NULL))
        return;
    cleanup_free char *text = log.text;
    size_t len = log.len;
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        text[--len] = '\0';
    const char *from = len >= bytes ? text + len - (bytes - 1) : text;
    const char *newline = strchr(from, '\n'), *space = strchr(from, ' ');
    if (from != text && from[-1] != '\n' && newline)
        from = newline + 1; /* whole lines where there are some */
    else if (from != text && from[-1] != '\n' && from[-1] != ' ' && space)
        from = space + 1; /* else whole words */
    snprintf(out, bytes, "%s", from);
}

/* ---- changes --------------------------------------------------------------------------------- */

void pool_changed(job_manager *o, const pod *now)
{
    link_pod *p = pool_find(o, now->name);
    if (!p || p->use != USE_STARTING)
        return;
    bool waited = pool_waits_for_room(p), placed = !p->untaken && now->untaken;
    if (strcmp(p->waits_reason, now->reason) != 0 && now->reason[0])
        log_warn("pod %s waits: %s", p->name, now->message);
    if (p->job[0] && waited && !now->reason[0])
        pool_event(o, p, JOB_POD_WAITING, ERR_NONE, "PoolEmpty",
                   "there is room for its pod now, which is being made");
    snprintf(p->waits_reason, sizeof p->waits_reason, "%s", now->reason);
    snprintf(p->waits_message, sizeof p->waits_message, "%s", now->message);
    p->untaken = now->untaken;
    p->kept_back = now->kept_back;
    if (placed || (waited && !pool_waits_for_room(p)))
        pool_use(p, USE_STARTING); /* STUCK_MS counts from here */
    if (p->job[0])
        tell_waiting(o, p);
    if (now->address[0] && strcmp(p->address, now->address) != 0) {
        snprintf(p->address, sizeof p->address, "%s", now->address);
        pool_hang_up(p);           /* the old address is another pod's now */
        pool_use(p, USE_STARTING); /* POD_HELLO_MS counts from here */
        p->silent_ms = INT64_MAX;
        p->dial_wait_ms = POD_DIAL_MS;
        p->dial_ms = clock_monotonic_ms();
    }
}

void pool_ended(job_manager *o, const pod *ended)
{
    pool_hear_out(o, ended->name);
    link_pod *p = pool_find(o, ended->name);
    if (!p)
        return;
    char evidence[140], message[ERR_MESSAGE_BYTES];
    bool well = ended->exit_status == 0 || (p->use == USE_STOPPING && !ended->by_itself);
    evidence[0] = '\0';
    if (!well)
        log_evidence(o, ended->name, evidence, sizeof evidence);
    text_print(message, sizeof message, "%.90s%s%.140s", ended->message,
               evidence[0] ? "; its log ends: " : "", evidence);
    bool asked = p->use == USE_STOPPING;
    bool generic = p->use == USE_STARTING || p->use == USE_WARM;
    if (!well)
        log_warn("pod %s %s", p->name, message);
    if (p->waiter) {
        err why = ERR_INIT;
        err_set(&why, ERR_CRASHED, "the runtime ended: %s", message);
        waiter_done(o, p, &why);
    }
    if (p->use == USE_STARTING && p->job[0])
        pool_event(o, p, JOB_POD_FAILED, ERR_CRASHED, ended->reason, message);
    else if (p->job[0])
        pool_event(o, p, JOB_POD_ENDED, ERR_CRASHED, ended->reason, message);
    /* A warm pod that the cluster takes away had started well: another may start at once. */
    bool taken = p->use == USE_WARM && exit_cause_is_disruption(ended->reason);
    if (generic && !asked && !taken)
        pool_retry_later(o);
    const job *j = jobs_find(o->machine, p->job);
    if (p->job[0] && (!j || j->done_told))
        log_reader_archive(o, p->job, false);
    /* Nobody reads its log any more. The log of a pod that did not start may say why, and stays. */
    if (!p->job[0] && p->use != USE_STARTING)
        o->cluster->ops->stop(o->cluster, ended->name, 0, NULL);
    if (p->job[0] && p->gpu >= 0)
        o->look_ms = o->look_wait_ms = 0; /* there is room again, perhaps on a GPU not known yet */
    drop(o, p);
}

int64_t pool_deadline(const job_manager *o)
{
    int64_t first = o->pool_retry_ms > clock_monotonic_ms() ? o->pool_retry_ms : INT64_MAX;
    if (o->look_ms > clock_monotonic_ms() && o->look_ms < first)
        first = o->look_ms;
    for (const link_pod *p = o->pods; p; p = p->next) {
        first = p->dial_ms < first ? p->dial_ms : first;
        first = stuck_at(o, p) < first ? stuck_at(o, p) : first;
        if (p->talk == TALK_LIVE && o->polled_ms + POD_LISTEN_MS < first)
            first = o->polled_ms + POD_LISTEN_MS;
        if (p->use == USE_WARM &&
            p->since_ms + JOB_MANAGER_POOL_IDLE_MS + 1 > clock_monotonic_ms() &&
            p->since_ms + JOB_MANAGER_POOL_IDLE_MS + 1 < first)
            first = p->since_ms + JOB_MANAGER_POOL_IDLE_MS + 1;
    }
    return first;
}

/* ---- after a restart ------------------------------------------------------------------------- */

static void found(job_manager *o, const pod *from)
{
    link_pod *p = add(o, from);
    if (!p)
        return;
    pool_use(p, from->job[0] ? USE_JOB : USE_STARTING);
    p->gpu = o->gpus_elsewhere && from->job[0] ? pool_gpu_shown(o, &from->gpu) : -1;
    if (!from->job[0]) {
        /* Only its labels say that it is generic. It may have served a model, and its connection
         * was the old controller's, so it must not be used again. */
        pool_stop(o, p->name, POD_GRACE_MS);
        return;
    }
    job_manager_event(o, &(job_event){.type = JOB_POD_FOUND,
                                      .job = p->job,
                                      .pod = p->name,
                                      .function = p->function,
                                      .incarnation = p->incarnation,
                                      .value = o->gpus_elsewhere ? p->gpu + 1 : 0});
}

void pool_find_all(job_manager *o)
{
    size_t count = 0;
    cleanup_free pod *all = NULL;
    err e = ERR_INIT;
    forget_failures(o);
    if (cluster_list(o->cluster, &all, &count, &e)) {
        log_error("the pods of before cannot be listed: %s", e.message);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (all[i].phase != POD_ENDED)
            found(o, &all[i]);
    /* Drops the ends that happened before: the machine notices a missing pod of a job that goes
     * on. */
    pod ended;
    while (o->cluster->ops->next_event(o->cluster, &ended, &e) > 0)
        ;
    for (size_t i = 0; i < count; i++)
        if (all[i].phase == POD_ENDED && all[i].job[0] && !jobs_find(o->machine, all[i].job))
            log_reader_archive(o, all[i].job, false);
        else if (all[i].phase == POD_ENDED && !all[i].job[0])
            o->cluster->ops->stop(o->cluster, all[i].name, 0, NULL);
}
