/* pool_talk.c: frames to and from pods: frames of protocol.md to events of the machine and back.
 * pool.c decides which pod is whose. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "controller/ha/store_watch.h"
#include "job_manager_internal.h"

enum {
    LAST_WORDS_MAX = 64, /* messages read from a pod that has ended */
    A_TURN_MAX = 64,     /* of any other, before the next pod's are read */
};

/* The kubeml-ps of a job. */
static link_pod *ps_of(job_manager *o, const char *id)
{
    for (link_pod *p = o->pods; p; p = p->next)
        if (p->role == POD_PS && p->use == USE_JOB && strcmp(p->job, id) == 0)
            return p;
    return NULL;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Whether a peer fell silent. Where it closed the connection, its process has ended and its node
 * lives. */
static bool is_silent(const err *why)
{
    return why->code == ERR_TIMEOUT || why->code == ERR_IO;
}

void pool_broken(job_manager *o, link_pod *p, const err *why)
{
    pod_talk talk = p->talk;
    pool_hang_up(p);
    if (p->use == USE_STARTING) {
        p->dial_ms = clock_deadline_ms(p->dial_wait_ms); /* once more, until POD_HELLO_MS */
        if (why->code == ERR_TIMEOUT)                    /* wire_watch_peer's */
            p->silent_ms = clock_monotonic_ms() - POD_DEAD_MS;
    } else if (p->use == USE_WARM) {
        log_warn("pod %s hung up while it was warm: %s", p->name, why->message);
        pool_stop(o, p->name, is_silent(why) ? 0 : POD_GRACE_MS);
    } else if (p->use == USE_JOB && p->role == POD_PS) {
        pool_event(o, p, JOB_PS_CLOSED, ERR_UNAVAILABLE, NULL, why->message);
    } else if (p->use == USE_JOB && (talk == TALK_SPECIALISED || talk == TALK_TURN)) {
        /* Another process of the same code would send the same nonsense. */
        bool nonsense = why->code == ERR_CORRUPT;
        pool_event(o, p, JOB_UNSPECIALISED, nonsense ? ERR_CORRUPT : ERR_UNAVAILABLE,
                   nonsense ? NULL : "ConnectionLost", why->message);
    }
}

void pool_send(job_manager *o, link_pod *p, json_t *message)
{
    err e = ERR_INIT;
    if (!message)
        err_set(&e, ERR_NOMEM, "no memory for a message");
    else if (p->wire)
        wire_send(p->wire, message, &e);
    json_decref(message);
    if (e.code != ERR_NONE)
        pool_broken(o, p, &e);
}

void pool_tell(job_manager *o, const char *id, json_t *message)
{
    link_pod *p = ps_of(o, id);
    if (p && p->wire)
        pool_send(o, p, message);
    else
        json_decref(message); /* the machine knows that there is no connection */
}

void pool_send_job(job_manager *o, const job_action *a)
{
    link_pod *p = pool_find(o, a->pod);
    job_context *s = job_context_find(o, a->job->id);
    if (!p || !p->wire || !s) {
        job_manager_event(o, &(job_event){.type = JOB_PS_CLOSED,
                                          .job = a->job->id,
                                          .code = ERR_UNAVAILABLE,
                                          .message = "the pod is gone"});
        return;
    }
    err e = ERR_INIT;
    if (job_context_access(o, s, a->job, &e)) {
        /* A store that is away is a reason of its own (StoreDown): the job tries again. */
        job_manager_event(
            o, &(job_event){.type = err_retry_may_help(e.code) ? JOB_PS_CLOSED : JOB_PS_REFUSED,
                            .job = a->job->id,
                            .code = e.code,
                            .reason = "StoreAccess",
                            .message = e.message});
        return;
    }
    json_decref(s->access);
    s->access = NULL;
    p->talk = TALK_ACCEPTED;
    json_t *message = json_pack(
        "{s:s, s:s, s:s, s:o, s:O, s:O, s:s, s:s, s:b, s:i, s:i, s:i, s:O*}", "type", "job", "id",
        s->id, "secret", s->secret, "request", request_json(&a->job->request), "function",
        s->function, "dataset", s->dataset, "store", s->locator, "shm_dir", JOB_MANAGER_SEGMENT_DIR,
        "resume", a->job->resumed, "parallelism", a->job->parallelism, "slots_max",
        a->job->functions_max, "generation", a->job->generation, "plan", s->plan);
    pool_send(o, p, message);
}

void pool_attach(job_manager *o, const job_action *a)
{
    link_pod *p = pool_find(o, a->pod);
    if (!p) {
        job_manager_event(o, &(job_event){.type = JOB_PS_CLOSED,
                                          .job = a->job->id,
                                          .code = ERR_UNAVAILABLE,
                                          .message = "the pod is gone"});
        return;
    }
    pool_hang_up(p);
    pool_use(p, USE_JOB);
    p->attach = true;
    p->dial_wait_ms = POD_DIAL_MS;
    p->dial_ms = clock_monotonic_ms();
}

/* The object's bytes in base64, for the message: pods elsewhere do not have our files, and an
 * object from a database is no file. So function pods, where user code runs, need no more of the
 * store than their dataset. NULL on error. */
static json_t *object_text(job_context *s, err *e)
{
    int fd;
    uint64_t len = blob_size(s->object);
    if (len > BUILDER_OBJECT_BYTES_MAX) {
        err_set(e, ERR_LIMIT, "an object of %llu bytes", (unsigned long long)len);
        return NULL;
    }
    if (blob_fd(s->object, &fd, e))
        return NULL;
    cleanup_free unsigned char *text = malloc((size_t)len / 3 * 4 + 5);
    void *bytes = mmap(NULL, (size_t)len, PROT_READ, MAP_PRIVATE, fd, 0);
    json_t *out = NULL;
    if (text && bytes != MAP_FAILED) {
        int chars = EVP_EncodeBlock(text, bytes, (int)len);
        out = json_stringn_nocheck((const char *)text, (size_t)chars);
    }
    if (bytes != MAP_FAILED)
        munmap(bytes, (size_t)len);
    if (!out)
        err_set(e, ERR_NOMEM, "no memory for the function's object");
    return out;
}

/* The backend: the GPU on which the function is placed, or its pod's own, or the CPU. */
static const char *backend_of(const job_manager *o, const job *j, int function)
{
    bool gpu = job_gpu(j, function) >= 0 || pool_pods_have_gpus(o);
    if (j->request.device == DEVICE_CUDA)
        return "cuda";
    return gpu && j->request.device == DEVICE_AUTO ? "auto" : "cpu";
}

/* The memory that the function is booked with on its GPU, which is its limit; NULL: it is on no GPU
 * that the controller places. */
static json_t *booked_on(const job_manager *o, const job *j, int gpu)
{
    gpu_state all = {.memory_bytes = gpu < 0 ? 0 : o->gpu[gpu].memory_bytes};
    return gpu < 0 ? NULL : json_integer((json_int_t)gpu_share_bytes(&all, j->request.gpu));
}

static int specialise_message(job_manager *o, const job_action *a, job_context *s, json_t **out,
                              err *e)
{
    bool local = strcmp(o->controller->config.cluster, "local") == 0 &&
                 !store_watch_is_far(o->controller->watch);
    int functions = a->job->parallelism > 0 ? a->job->parallelism : 1;
    int gpu = job_gpu(a->job, a->function);
    json_t *bytes = NULL;
    if (!local && s->object && !(bytes = object_text(s, e)))
        return -1;
    const char *on = backend_of(o, a->job, a->function);
    json_t *algorithms = strcmp(on, "cpu") == 0 ? NULL : algorithms_text(o);
    json_t *shared = a->job->request.process == PROCESS_SHARED ? json_integer(functions) : NULL;
    *out = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:O, s:s*, s:o*, s:O, s:O, s:o, s:i, s:s, s:s*, s:o*, s:o*, s:o*}",
        "type", "specialise", "job", s->id, "secret", s->secret, "function", a->function,
        "incarnation", a->incarnation, "access", s->access, "object_path",
        local ? s->object_path : NULL, "object_bytes", bytes, "object",
        json_object_get(s->function, "object"), "dataset", s->dataset, "request",
        request_json(&a->job->request), "threads", a->job->threads, "backend", on, "gpu",
        gpu >= 0 && !o->gpus_elsewhere ? o->gpu[gpu].id : NULL, "gpu_memory",
        booked_on(o, a->job, gpu), "functions", shared, "algorithms", algorithms);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for a message");
}

/* The pod runs what was measured once, while it waits: its job finds it loaded. */
void pool_send_autotuned(job_manager *o, link_pod *p)
{
    bool gpu = p->gpu >= 0 || pool_pods_have_gpus(o);
    json_t *known = gpu && pool_is_generic(p, POD_FUNCTION, USE_WARM) ? algorithms_text(o) : NULL;
    if (known)
        pool_send(o, p, json_pack("{s:s, s:o}", "type", "known", "algorithms", known));
}

/* Whether another function of the job is measuring what this function would measure: on a GPU,
 * where no function of this kind has measured yet. Functions that share a process count as one. */
static bool is_measured_now(const job_manager *o, const job_action *a, const job_context *s)
{
    if (a->job->request.process == PROCESS_SHARED ||
        strcmp(backend_of(o, a->job, a->function), "cpu") == 0 || algorithms_measured(o, s, a->job))
        return false;
    for (const link_pod *p = o->pods; p; p = p->next)
        if (p->role == POD_FUNCTION && p->use == USE_JOB && p->talk == TALK_SPECIALISED &&
            strcmp(p->job, a->job->id) == 0)
            return true;
    return false;
}

void pool_specialise(job_manager *o, const job_action *a)
{
    link_pod *p = pool_find(o, a->pod);
    job_context *s = job_context_find(o, a->job->id);
    job_event failed = {.type = JOB_UNSPECIALISED, .job = a->job->id, .function = a->function,
                        .incarnation = a->incarnation, .code = ERR_UNAVAILABLE,
                        .reason = "ConnectionLost", .message = "the pod is gone"};
    err e = ERR_INIT;
    if (!p || !p->wire || !s || !s->access) {
        job_manager_event(o, &failed);
        return;
    }
    if (is_measured_now(o, a, s)) {
        p->talk = TALK_TURN;
        return;
    }
    json_t *message;
    if (job_context_open_object(o, s, &e) || specialise_message(o, a, s, &message, &e)) {
        failed.code = e.code;
        failed.reason = "ObjectMissing";
        failed.message = e.message;
        job_manager_event(o, &failed);
        return;
    }
    p->talk = TALK_SPECIALISED;
    pool_send(o, p, message);
}

void pool_specialise_waiting(job_manager *o)
{
    for (link_pod *p = o->pods, *next; p; p = next) {
        next = p->next;
        const job *j =
            p->use == USE_JOB && p->talk == TALK_TURN ? jobs_find(o->machine, p->job) : NULL;
        if (!j)
            continue;
        job_action again = {.type = JOB_SPECIALISE, .job = j, .function = p->function,
                            .incarnation = p->incarnation};
        snprintf(again.pod, sizeof again.pod, "%s", p->name);
        pool_specialise(o, &again);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

static int number_of(const json_t *m, const char *key)
{
    return (int)json_integer_value(json_object_get(m, key));
}

static double real_of(const json_t *m, const char *key)
{
    return json_number_value(json_object_get(m, key));
}

static void note(int64_t *time)
{
    if (!*time)
        *time = clock_monotonic_ms();
}

/* User code that is being loaded can reach the connection: its first frame, whatever it is, is the
 * last one read. */
static void on_function(job_manager *o, link_pod *p, const json_t *m)
{
    bool done = strcmp(wire_type(m), "specialised") == 0;
    if (p->talk != TALK_SPECIALISED || (!done && strcmp(wire_type(m), "failed") != 0)) {
        err e = ERR_INIT;
        err_set(&e, ERR_CORRUPT, "it says \"%.32s\", which nobody asked for", wire_type(m));
        pool_broken(o, p, &e);
        return;
    }
    job_context *s = job_context_find(o, p->job);
    if (done && s && !s->times.training)
        s->times.functions = clock_monotonic_ms(); /* the last function's counts */
    if (done && s && text_of(m, "averaging")[0])
        text_print(s->averaging, sizeof s->averaging, "its functions share one process; %s",
                   text_of(m, "averaging"));
    const job *j = done ? jobs_find(o->machine, p->job) : NULL;
    if (done)
        algorithms_take(o, text_of(m, "algorithms"));
    if (s && j && strcmp(backend_of(o, j, p->function), "cpu") != 0)
        algorithms_note(o, s, j);
    /* From now on it talks to kubeml-ps alone. */
    pool_hang_up(p);
    const char *no_gpu = text_of(m, "no_gpu");
    if (done && no_gpu[0])
        log_warn("job %s: function %d: %s", p->job, p->function, no_gpu);
    if (done)
        pool_event(o, p, JOB_SPECIALISED, ERR_NONE, NULL, no_gpu);
    else
        pool_event(o, p, JOB_UNSPECIALISED, err_from_name(text_of(m, "code")), text_of(m, "reason"),
                   text_of(m, "message"));
}

/* An epoch as the API shows it: counted from 1. */
static json_t *epoch_json(const json_t *m)
{
    static const char *const copied[] = {"train_loss", "validation_loss", "accuracy", "parallelism",
                                         "seconds", "version", "samples"};
    json_t *out = json_object();
    json_object_set_new(out, "epoch", json_integer(number_of(m, "epoch") + 1));
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        json_t *value = json_object_get(m, copied[i]);
        json_object_set(out, copied[i], value ? value : json_null());
    }
    return out;
}

/* Sets where the epoch's time went, including how long functions waited for data. */
static void set_stages(controller_metrics *g, const char *id, const json_t *m)
{
    static const char *const stages[] = {"fetch",   "load",  "convert",  "train",
                                         "publish", "merge", "validate", "checkpoint"};
    const json_t *seconds = json_object_get(m, "stages");
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        metric_set(g->stage_seconds, json_number_value(json_object_get(seconds, stages[i])), id,
                   stages[i], NULL);
}

/* Adds epochs from the history that another kubeml-ps committed while the controller could not hear
 * it; not more than `epochs`, since the next epoch is reported by itself. */
static void catch_up(job_manager *o, job_context *s, int epochs)
{
    size_t had = json_array_size(s->epochs), i;
    cleanup_json json_t *all = NULL;
    json_t *epoch;
    if ((size_t)epochs <= had)
        return;
    all = epochs_of_history(o->controller->store, s->id);
    json_array_foreach(all, i, epoch) {
        if (i >= had && i < (size_t)epochs)
            json_array_append(s->epochs, epoch);
    }
    job_context_show(o, s, had);
}

/* An epoch may be reported again after an attach, where the last controller's record may lack
 * it. */
static void on_epoch(job_manager *o, link_pod *p, const json_t *m)
{
    job_context *s = job_context_find(o, p->job);
    int epoch = number_of(m, "epoch");
    if (!s)
        return;
    catch_up(o, s, epoch);
    if (epoch == (int)json_array_size(s->epochs)) {      /* false: no history */
        json_array_append_new(s->epochs, epoch_json(m)); /* sent at the turn's end */
        job_context_show(o, s, json_array_size(s->epochs) - 1);
        set_stages(&o->controller->metrics, p->job, m);
    }
    job_manager_event(o, &(job_event){.type = JOB_PS_EPOCH,
                                      .job = p->job,
                                      .epoch = epoch,
                                      .value = number_of(m, "parallelism"),
                                      .seconds = real_of(m, "seconds")});
}

static void on_finished(job_manager *o, link_pod *p, const json_t *m)
{
    job_context *s = job_context_find(o, p->job);
    job_event v = {.type = JOB_PS_FINISHED, .job = p->job, .reason = text_of(m, "reason"),
                   .message = text_of(m, "message"), .value = number_of(m, "epochs"),
                   .state = JOB_FAILED};
    if (!job_state_from_name(text_of(m, "state"), &v.state))
        log_error("kubeml-ps of job %s finished as \"%s\"", p->job, text_of(m, "state"));
    if (s) {
        snprintf(s->sha256, sizeof s->sha256, "%s", text_of(m, "sha256"));
        catch_up(o, s, v.value);
    }
    job_manager_event(o, &v);
}

static void on_accepted(job_manager *o, link_pod *p)
{
    job_context *s = job_context_find(o, p->job);
    if (s) {
        note(&s->times.ps);
        s->sha256[0] = '\0'; /* from here on it has other weights */
    }
    p->talk = TALK_LIVE;
    pool_event(o, p, JOB_PS_ACCEPTED, ERR_NONE, NULL, NULL);
}

static void note_averaging(job_manager *o, job_context *s, const char *path, const char *text)
{
    metric *gauge = o->controller->metrics.averaging;
    text_print(s->averaging, sizeof s->averaging, "%s", text);
    metric_drop(gauge, s->id);
    metric_set(gauge, 1, s->id, path, NULL);
}

/* Where each function is a process of its own, the tensor path decides where models are averaged. A
 * shared process reports it itself. */
static void decide_averaging(job_manager *o, job_context *s)
{
    reduce_placement choice;
    const job *j = jobs_find(o->machine, s->id);
    if (j && j->request.process == PROCESS_SHARED)
        return;
    reduce_facts facts = {.functions = 1,
                          .tensor_path = text_of(json_object_get(s->access, "model"), "carrier")};
    if (reduce_placement_choose(&facts, &choice, NULL) == 0)
        note_averaging(o, s, reduce_path_name(choice.path), choice.text);
}

static void on_access(job_manager *o, link_pod *p, const json_t *m)
{
    job_context *s = job_context_find(o, p->job);
    if (!s)
        return;
    json_decref(s->access);
    s->access = json_deep_copy(m);
    json_object_del(s->access, "type");
    decide_averaging(o, s);
    job_manager_event(o, &(job_event){.type = JOB_PS_ACCESS, .job = p->job});
    if (o->cluster->ops->publish)
        o->cluster->ops->publish(o->cluster, p->name, p->job, json_object_get(s->access, "model"));
    const job *j = jobs_find(o->machine, s->id);
    if (o->cluster->ops->let_meet && j && j->request.merge == MERGE_NCCL)
        o->cluster->ops->let_meet(o->cluster, p->name, p->job);
}

static void observe(job_manager *o, const char *part, int64_t from, int64_t to)
{
    if (from && to >= from)
        metric_observe(o->controller->metrics.start_seconds, (double)(to - from) / 1000.0, part,
                       NULL, NULL);
}

/* The first batch is trained: observes where the time of the start went. A later controller does
 * not know when the job was submitted, and keeps the record's figures. */
static void on_begun(job_manager *o, const link_pod *p)
{
    job_context *s = job_context_find(o, p->job);
    if (!s || s->times.training || s->start_ms)
        return;
    job_times *t = &s->times;
    note(&t->training);
    if (!t->functions) /* kubeml-ps was heard before the function's answer */
        t->functions = t->training;
    observe(o, "queued", t->submitted, t->granted);
    observe(o, "ps", t->granted, t->ps);
    observe(o, "functions", t->ps, t->functions);
    observe(o, "training", t->functions, t->training);
    observe(o, "total", t->submitted, t->training);
}

static void on_phase(job_manager *o, const link_pod *p, const json_t *m)
{
    job_manager_event(o, &(job_event){.type = JOB_PS_PHASE,
                                      .job = p->job,
                                      .phase = text_of(m, "phase"),
                                      .epoch = number_of(m, "epoch"),
                                      .round = number_of(m, "round")});
}

static void on_averaging(job_manager *o, const link_pod *p, const json_t *m)
{
    job_context *s = job_context_find(o, p->job);
    const job *j = jobs_find(o->machine, p->job);
    if (!s || !j)
        return;
    note_averaging(o, s, text_of(m, "path"), text_of(m, "text"));
    jobs_save(o, j);
}

static void on_ps(job_manager *o, link_pod *p, const json_t *m)
{
    const char *type = wire_type(m);
    job_event v = {.job = p->job, .function = number_of(m, "function"),
                   .incarnation = number_of(m, "incarnation"), .reason = text_of(m, "reason"),
                   .message = text_of(m, "message"), .name = text_of(m, "name")};
    if (strcmp(type, "refused") == 0 && p->talk == TALK_ACCEPTED) {
        v.type = JOB_PS_REFUSED;
        v.code = err_from_name(text_of(m, "code"));
        job_manager_event(o, &v);
        return;
    }
    /* The first report after `attach` is its answer. */
    if (p->talk == TALK_ACCEPTED)
        on_accepted(o, p);
    if (strcmp(type, "access") == 0) {
        on_access(o, p, m);
    } else if (strcmp(type, "need") == 0 || strcmp(type, "release") == 0) {
        v.type = type[0] == 'n' ? JOB_PS_NEED : JOB_PS_RELEASE;
        job_manager_event(o, &v);
    } else if (strcmp(type, "phase") == 0) {
        on_phase(o, p, m);
    } else if (strcmp(type, "begun") == 0) {
        on_begun(o, p);
    } else if (strcmp(type, "epoch") == 0) {
        on_epoch(o, p, m);
    } else if (strcmp(type, "ask") == 0) {
        job_manager_event(o, &(job_event){.type = JOB_PS_ASK,
                                          .job = p->job,
                                          .epoch = number_of(m, "epoch"),
                                          .value = number_of(m, "parallelism"),
                                          .seconds = real_of(m, "seconds")});
    } else if (strcmp(type, "condition") == 0) {
        const json_t *status = json_object_get(m, "status");
        v.type = JOB_PS_CONDITION;
        v.status = json_is_string(status) ? strcmp(json_string_value(status), "True") == 0
                                          : json_is_true(status);
        job_manager_event(o, &v);
    } else if (strcmp(type, "averaging") == 0) {
        on_averaging(o, p, m);
    } else if (strcmp(type, "usage") == 0) {
        usage_take(o, p->job, json_object_get(m, "functions"));
    } else if (strcmp(type, "finished") == 0) {
        on_finished(o, p, m);
    } else if (strcmp(type, "accepted") != 0) {
        log_warn("kubeml-ps of job %s says \"%s\", which is not known", p->job, type);
    }
}

static void on_message(job_manager *o, link_pod *p, const json_t *m)
{
    if (p->talk == TALK_WELCOME)
        pool_welcome(o, p, m);
    else if (p->role == POD_FUNCTION)
        on_function(o, p, m);
    else if (p->job[0] && p->use != USE_WARM && p->use != USE_STOPPING)
        on_ps(o, p, m);
}

/* Reads one message: wire_receive's 1, 0 or -1. The message may close the connection (specialised)
 * or free the pod's entry. */
static int take_message(job_manager *o, link_pod *p, err *e)
{
    cleanup_json json_t *m = NULL;
    int got = wire_receive(p->wire, &m, e);
    if (got > 0)
        on_message(o, p, m);
    return got;
}

void pool_readable(job_manager *o, link_pod *p)
{
    err e = ERR_INIT;
    p->more = false;
    p->heard_ms = o->listened_ms;
    if (wire_wants_write(p->wire) && wire_flush(p->wire, &e)) {
        pool_broken(o, p, &e);
        return;
    }
    for (int i = 0; i < A_TURN_MAX && p->wire; i++) {
        int got = take_message(o, p, &e);
        if (got < 0)
            pool_broken(o, p, &e);
        if (got <= 0)
            return;
    }
    p->more = p->wire != NULL;
}

void pool_hear_out(job_manager *o, const char *name)
{
    err e = ERR_INIT;
    link_pod *p = pool_find(o, name);
    /* A lost pod that still talks somewhere must not hold up the job manager. */
    for (int i = 0; i < LAST_WORDS_MAX && p && p->wire && p->use == USE_JOB; i++) {
        if (take_message(o, p, &e) <= 0)
            return;
        p = pool_find(o, name);
    }
}
