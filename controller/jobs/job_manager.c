/* job_manager.c: the job manager's thread: calls, events, actions. See job_manager.h and
 * job_manager_internal.h. */
#include "job_manager.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/modelstore/shm.h"
#include "controller/cluster/cluster_kubernetes.h"
#include "controller/cluster/cluster_local.h"
#include "controller/ha/leading.h"
#include "job_manager_internal.h"

enum {
    POLL_MAX = 2 + CLUSTER_KUBERNETES_PODS_MAX, /* wake_fd, the cluster's, and each pod's */
    HOLD_LOOK_MS = 20,
};

void job_manager_random_hex(char *out, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char random[64];
    size_t n = bytes - 1 < sizeof random ? bytes - 1 : sizeof random;
    while (getrandom(random, n, 0) != (ssize_t)n)
        ; /* only a signal can cut it short */
    for (size_t i = 0; i < n; i++)
        out[i] = digits[random[i] & 15];
    out[n] = '\0';
}

/* ---- events and actions ---------------------------------------------------------------------- */

/* Copies a text that goes to the machine, cut to `bytes`: records, frames and the API show it. */
static const char *keep(char *to, size_t bytes, const char *from)
{
    text_print(to, bytes, "%s", from ? from : "");
    return to;
}

void job_manager_event(job_manager *o, const job_event *from)
{
    event *v = calloc(1, sizeof *v);
    if (!v) {
        log_error("no memory for an event; it is lost");
        return;
    }
    v->e = *from;
    v->e.job = keep(v->job, sizeof v->job, from->job);
    v->e.pod = keep(v->pod, sizeof v->pod, from->pod);
    v->e.phase = keep(v->phase, sizeof v->phase, from->phase);
    v->e.name = keep(v->name, sizeof v->name, from->name);
    v->e.reason = keep(v->reason, sizeof v->reason, from->reason);
    v->e.message = keep(v->message, sizeof v->message, from->message);
    *o->events_end = v;
    o->events_end = &v->next;
}

static void drop_series(job_manager *o, const job *j)
{
    controller_metrics *m = &o->controller->metrics;
    metric_drop(m->validation_loss, j->id);
    metric_drop(m->accuracy, j->id);
    metric_drop(m->train_loss, j->id);
    metric_drop(m->parallelism, j->id);
    metric_drop(m->epoch_seconds, j->id);
    metric_drop(m->stage_seconds, j->id);
    metric_drop(m->averaging, j->id);
    usage_drop(o, j->id);
}

static void end_in_history(job_manager *o, const job *j)
{
    if (j->state != JOB_SUCCEEDED) /* only kubeml-ps reports success, and writes it itself */
        history_end(o, j->id, &(job_ending){j->state, j->reason, j->message});
}

/* Counts a job's end and writes it into the history, before the record and the followers get it. A
 * client that hears of the end then finds it in the history, and a controller that is killed in
 * between ends the job by the history. */
static void note_end(job_manager *o, const job *j)
{
    job_context *s = job_context_find(o, j->id);
    if (!s || s->ended || !job_ended(j))
        return;
    s->ended = true;
    metric_add(o->controller->metrics.jobs_total, 1, job_state_name(j->state), NULL, NULL);
    end_in_history(o, j);
}

/* The job's pods have ended. The history is written again, since a kubeml-ps that did not end in
 * time may have written to it after the end was reported. The job stays in the machine, and its
 * event streams open, until its log is in the store, where clients look for it after the job's
 * end. */
static void job_done(job_manager *o, const job *j)
{
    const char *id = j->id;
    log_context(id, -1, -1);
    log_info("%s: %s %s", job_state_name(j->state), j->reason, j->message);
    log_context(NULL, -1, -1);
    drop_series(o, j);
    end_in_history(o, j);
    log_reader_archive(o, id, true);
}

void job_archived(job_manager *o, const char *id)
{
    failpoint("controller.job-done");
    /* A kubeml-ps that was killed, and not replaced because the job was given up, leaves its
     * segment. */
    if (shm_sweep(JOB_MANAGER_SEGMENT_DIR, id) > 0)
        log_info("a segment of job %s was left behind and is removed", id);
    follow_state(o, id);
    follow_end(o, id);
    job_context *ended = job_context_find(o, id);
    if (ended)
        job_context_revoke(o, ended);
    err e = ERR_INIT;
    if (jobs_forget(o->machine, id, &e))
        log_error("job %s cannot be let go: %s", id, e.message);
    job_context_drop(o, id);
    pthread_mutex_lock(&o->lock);
    o->jobs_done++;
    pthread_cond_broadcast(&o->taken);
    pthread_mutex_unlock(&o->lock);
}

static void note_grant(job_manager *o, const job *j)
{
    job_context *s = job_context_find(o, j->id);
    if (s && !s->times.granted && j->state != JOB_QUEUED)
        s->times.granted = clock_monotonic_ms();
    if (s && s->usage && j->state == JOB_QUEUED) /* it waits again */
        usage_drop(o, j->id);
}

static void act(job_manager *o, const job_action *a)
{
    switch (a->type) {
    case JOB_SAVE:
        note_grant(o, a->job);
        note_end(o, a->job);
        jobs_save(o, a->job);
        break;
    case JOB_TAKE: pool_take(o, a); break;
    case JOB_UNTAKE: pool_untake(o, a); break;
    case JOB_SEND: pool_send_job(o, a); break;
    case JOB_ATTACH: pool_attach(o, a); break;
    case JOB_SPECIALISE: pool_specialise(o, a); break;
    case JOB_TELL_LOST:
        pool_tell(o, a->job->id,
                  json_pack("{s:s, s:i, s:i, s:s, s:s}", "type", "lost", "function", a->function,
                            "incarnation", a->incarnation, "reason", a->reason, "message",
                            a->message));
        break;
    case JOB_TELL_PARALLELISM:
        pool_tell(o, a->job->id,
                  json_pack("{s:s, s:i, s:i}", "type", "parallelism", "epoch", a->epoch, "value",
                            a->value));
        break;
    case JOB_TELL_STOP:
        pool_tell(o, a->job->id,
                  json_pack("{s:s, s:s, s:b}", "type", "stop", "reason",
                            a->value ? a->message : a->reason, "suspend", a->value));
        break;
    case JOB_TELL_BYE: pool_tell(o, a->job->id, json_pack("{s:s}", "type", "bye")); break;
    case JOB_STOP: pool_stop(o, a->pod, a->value); break;
    case JOB_CHANGED: follow_state(o, a->job->id); break;
    case JOB_DONE: job_done(o, a->job); break;
    }
}

/* Runs all queued events. Actions may queue further events but never step the machine: the loop
 * walks the machine's own list of actions. */
void job_manager_pump(job_manager *o)
{
    if (o->pumping)
        return;
    o->pumping = true;
    while (o->events) {
        event *v = o->events;
        o->events = v->next;
        if (!o->events)
            o->events_end = &o->events;
        v->e.now_ms = clock_monotonic_ms();
        v->e.wall_ms = clock_wall_ms();
        const job_action *actions = NULL;
        size_t count = jobs_step(o->machine, &v->e, &actions);
        for (size_t i = 0; i < count; i++)
            act(o, &actions[i]);
        free(v);
    }
    o->pumping = false;
}

/* ---- calls of other threads ------------------------------------------------------------------ */

static void wake(job_manager *o)
{
    uint64_t one = 1;
    ssize_t n = write(o->wake_fd, &one, sizeof one);
    (void)n; /* a full counter means that the thread is awake already */
}

void job_manager_run(job_manager *o, void (*run)(job_manager *, void *), void *arg)
{
    call c = {.run = run, .arg = arg};
    pthread_cond_init(&c.changed, NULL);
    pthread_mutex_lock(&o->lock);
    *o->calls_end = &c;
    o->calls_end = &c.next;
    wake(o);
    while (!c.done)
        pthread_cond_wait(&c.changed, &o->lock);
    pthread_mutex_unlock(&o->lock);
    pthread_cond_destroy(&c.changed);
}

static void run_store_back(job_manager *o, void *arg)
{
    (void)arg;
    jobs_save_unsaved(o);
    job_context_revoke_others(o);
}

void job_manager_store_back(job_manager *o)
{
    job_manager_run(o, run_store_back, NULL);
}

static void take_calls(job_manager *o)
{
    uint64_t times;
    ssize_t n = read(o->wake_fd, &times, sizeof times);
    (void)n;
    pthread_mutex_lock(&o->lock);
    while (o->calls) {
        call *c = o->calls;
        o->calls = c->next;
        if (!o->calls)
            o->calls_end = &o->calls;
        pthread_mutex_unlock(&o->lock);
        c->run(o, c->arg);
        job_manager_pump(o);
        pthread_mutex_lock(&o->lock);
        c->done = true;
        pthread_cond_signal(&c->changed);
    }
    pthread_mutex_unlock(&o->lock);
}

void job_manager_hold_if_fenced(const job_manager *o)
{
    const leader *l = o->controller->leader;
    if (!l || leader_is_us(l))
        return;
    log_warn("the lease is not renewed: nothing is done until it is");
    while (!leader_is_us(l)) {
        if (leader_lost(l)) {
            log_error("the lease is lost: another controller may lead");
            _exit(1);
        }
        poll(NULL, 0, HOLD_LOOK_MS);
    }
    log_info("the lease is renewed, and was nobody else's: leads on");
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Takes the number of function slots anew: nodes with GPUs come and go. */
static void look_at_slots(job_manager *o)
{
    int slots = o->slots;
    if (o->cluster->ops->slots(o->cluster, &slots, NULL) || slots == o->slots)
        return;
    log_info("%d function slots; there were %d", slots, o->slots);
    o->slots = slots;
    job_manager_event(o, &(job_event){.type = JOB_SLOTS, .value = slots});
}

static void take_cluster_events(job_manager *o)
{
    pod p;
    err e = ERR_INIT;
    int got;
    while ((got = o->cluster->ops->next_event(o->cluster, &p, &e)) > 0)
        if (p.phase == POD_ENDED)
            pool_ended(o, &p);
        else
            pool_changed(o, &p);
    if (got < 0)
        log_error("the cluster: %s", e.message);
    look_at_slots(o);
}

static int64_t next_deadline(const job_manager *o)
{
    int64_t first = jobs_deadline(o->machine), pods = pool_deadline(o), follow = follow_deadline(o);
    first = pods < first ? pods : first;
    return follow < first ? follow : first;
}

static size_t poll_list(job_manager *o, struct pollfd *list, link_pod **of)
{
    size_t n = 0;
    list[n++] = (struct pollfd){.fd = o->wake_fd, .events = POLLIN};
    list[n++] = (struct pollfd){.fd = o->cluster->ops->event_fd(o->cluster), .events = POLLIN};
    for (link_pod *p = o->pods; p && n < POLL_MAX; p = p->next) {
        if (!p->wire && !p->dialled)
            continue;
        short events = p->dialled ? POLLOUT : wire_wants_write(p->wire) ? POLLIN | POLLOUT : POLLIN;
        of[n] = p;
        list[n++] =
            (struct pollfd){.fd = wire_fd(p->dialled ? p->dialled : p->wire), .events = events};
    }
    return n;
}

static bool holds_more(const link_pod *p)
{
    return p->wire && p->more;
}

static bool any_more(link_pod *const *of, size_t n)
{
    for (size_t i = 2; i < n; i++)
        if (holds_more(of[i]))
            return true;
    return false;
}

static bool still_there(const job_manager *o, const link_pod *p)
{
    for (const link_pod *at = o->pods; at; at = at->next)
        if (at == p)
            return true;
    return false;
}

static void on_ready(job_manager *o, link_pod *p, int fd)
{
    if (p->wire && wire_fd(p->wire) == fd)
        pool_readable(o, p);
    else if (p->dialled && wire_fd(p->dialled) == fd)
        pool_dialled(o, p, clock_monotonic_ms());
}

static void turn(job_manager *o, struct pollfd *list, link_pod **of)
{
    size_t n = poll_list(o, list, of);
    int ready = poll(list, (nfds_t)n, any_more(of, n) ? 0 : clock_left_ms(next_deadline(o)));
    if (ready < 0 && errno != EINTR)
        log_error("poll: %s", strerror(errno));
    for (size_t i = 2; i < n; i++)
        if (holds_more(of[i]))
            list[i].revents = POLLIN;
    if (ready >= 0)
        pool_listened(o, clock_monotonic_ms());
    job_manager_hold_if_fenced(o);
    if (list[0].revents)
        take_calls(o);
    if (list[1].revents)
        take_cluster_events(o);
    for (size_t i = 2; i < n; i++)
        if (list[i].revents && still_there(o, of[i]))
            on_ready(o, of[i], list[i].fd);
    int64_t now = clock_monotonic_ms();
    pool_timers(o, now);
    pool_specialise_waiting(o);
    if (jobs_deadline(o->machine) <= now)
        job_manager_event(o, &(job_event){.type = JOB_TICK});
    job_manager_pump(o);
    history_try_again(o);
    pool_fill(o);
    follow_timers(o, now);
}

static void *run(void *arg)
{
    job_manager *o = arg;
    static struct pollfd list[POLL_MAX];
    static link_pod *of[POLL_MAX];
    for (;;) {
        pthread_mutex_lock(&o->lock);
        bool stopping = o->stopping && !o->calls;
        pthread_mutex_unlock(&o->lock);
        if (stopping)
            return NULL;
        turn(o, list, of);
    }
}

/* ---- start and end --------------------------------------------------------------------------- */

/* Reads or makes the token that warm pods know. It is kept in a file, so that a restarted
 * controller can talk to them. */
static int pool_token(job_manager *o, char path[FS_PATH_BYTES], err *e)
{
    const char *path_given = o->controller->config.pool_token_file;
    bool given = path_given[0];
    if (given ? fs_path(path, e, "%s", path_given)
              : fs_path(path, e, "%s/run/pool-token", o->controller->config.home))
        return -1;
    cleanup_buf buf text;
    buf_init(&text, 4096);
    if (given || fs_exists(path)) {
        if (fs_read_file(path, &text, e))
            return -1;
        if (text.len == POOL_TOKEN_BYTES - 1) {
            memcpy(o->pool_token, text.bytes, POOL_TOKEN_BYTES);
            return 0;
        }
        if (given)
            return err_set(e, ERR_INVALID, "%.150s is no pool token: it must be %d characters",
                           path, POOL_TOKEN_BYTES - 1);
    }
    job_manager_random_hex(o->pool_token, sizeof o->pool_token);
    return fs_write_file(path, o->pool_token, strlen(o->pool_token), 0600, e);
}

static int restore_job(void *context, const char *key, json_t *record, err *e)
{
    job_manager *o = context;
    json_t *inner = json_object_get(record, "job");
    job_state state;
    const char *name = json_string_value(json_object_get(inner, "state"));
    if (!name || !job_state_from_name(name, &state)) {
        log_error("the record of job %s is not one; it is left out", key);
        return 0;
    }
    held_note(o, key, inner);
    if (state != JOB_QUEUED && state != JOB_STARTING && state != JOB_RUNNING)
        return 0;
    job_context *s = NULL;
    err why = ERR_INIT;
    job_context_find_gpus(o, record);
    if (jobs_restore(o->machine, inner, &why) || job_context_restore(o, record, &s, &why)) {
        log_error("job %s cannot be taken up again: %s", key, why.message);
    } else {
        job_context_tell_chunks(o, s);
        job_context_show(o, s, 0);
    }
    return why.code == ERR_NOMEM ? err_set(e, ERR_NOMEM, "no memory for the jobs in the store") : 0;
}

static int restore_jobs(job_manager *o, err *e)
{
    return store_walk(o->controller->store, "jobs", restore_job, o, e)
               ? err_wrap(e, "the jobs in the store")
               : 0;
}

/* Whether functions are placed on GPUs. Without the engine's shared object they compute on the CPU,
 * and must not wait for a GPU. */
static bool wants_gpus(const controller_config *config)
{
    char engine[FS_PATH_BYTES];
    return config->gpus == GPUS_ALL ||
           (config->gpus == GPUS_AUTO &&
            fs_path(engine, NULL, "%s/../lib/kubeml-cuda.so", config->bin_dir) == 0 &&
            fs_exists(engine));
}

static int open_gpus(job_manager *o, err *e)
{
    uint64_t bytes[GPU_COUNT_MAX];
    o->gpus_elsewhere = !o->cluster->ops->gpus;
    if (o->gpus_elsewhere) {
        jobs_gpus_elsewhere(o->machine, o->controller->config.gpu_policy);
        return 0;
    }
    if (o->cluster->ops->gpus(o->cluster, o->gpu, GPU_COUNT_MAX, &o->gpus, e))
        return -1;
    for (int i = 0; i < o->gpus; i++) {
        bytes[i] = o->gpu[i].memory_bytes;
        log_info("GPU %d: %s, %.1f GiB", i, o->gpu[i].id, (double)bytes[i] / 0x1p30);
    }
    o->mps = o->gpus && gpu_mps_runs();
    if (o->gpus && o->controller->config.function_memory)
        log_warn(
            "--function-memory is not set on functions: CUDA takes more addresses than any such limit");
    jobs_gpus(o->machine, o->controller->config.gpu_policy, o->mps, bytes, o->gpus);
    return 0;
}

static int open_parts(job_manager *o, err *e)
{
    controller_config *config = &o->controller->config;
    char token_path[FS_PATH_BYTES];
    cluster_local_config local = {.home = config->home,
                                  .bin_dir = config->bin_dir,
                                  .token_file = token_path,
                                  .slots = config->slots,
                                  .gpus = wants_gpus(config),
                                  .gpus_must = config->gpus == GPUS_ALL};
    cluster_kubernetes_config kubernetes = {.templates = config->pods_file,
                                            .context = config->context,
                                            .slots = config->slots,
                                            .may_write = controller_may_act,
                                            .writer = o->controller};
    bool is_local = strcmp(config->cluster, "local") == 0;
    if (pool_token(o, token_path, e) ||
        cluster_open(config->cluster, is_local ? (void *)&local : (void *)&kubernetes, &o->cluster,
                     e) ||
        o->cluster->ops->slots(o->cluster, &o->slots, e))
        return -1;
    job_limits limits;
    job_limits_default(&limits);
    /* A pod's node may be gone. The next kubeml-ps has a greater generation, which fences the old
     * one. */
    if (strcmp(o->controller->config.cluster, "kubernetes") == 0) {
        limits.attach_ms = POD_LOST_MS;
        limits.adopt_ms = POD_ADOPT_MS;
    }
    o->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (o->wake_fd < 0)
        return err_set_errno(e, errno, "eventfd");
    if (jobs_open(&limits, o->slots, &o->machine, e) || open_gpus(o, e))
        return -1;
    jobs_cpus(o->machine, o->cluster->ops->cpus(o->cluster), o->cluster->ops->pods_own_cpus);
    return restore_jobs(o, e);
}

static void job_manager_free(job_manager *o)
{
    pool_close(o);
    follow_close(o);
    log_reader_close(o);
    while (o->contexts)
        job_context_drop(o, o->contexts->id);
    for (event *v = o->events, *next; v; v = next) {
        next = v->next;
        free(v);
    }
    if (o->machine)
        jobs_close(o->machine);
    json_decref(o->held);
    json_decref(o->beginners);
    json_decref(o->unsaved);
    json_decref(o->unrecorded_ends);
    json_decref(o->news);
    json_decref(o->algorithms);
    if (o->cluster)
        o->cluster->ops->close(o->cluster, o->stop_pods);
    if (o->wake_fd >= 0)
        close(o->wake_fd);
    pthread_cond_destroy(&o->taken);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* Whether a kubeml-ps of a later try than `writer` exists: the history will be, or is, its own. */
static bool later_ps_found(const job_manager *o, const char *id, json_int_t writer)
{
    for (const link_pod *p = o->pods; p; p = p->next)
        if (p->function == JOB_KUBEML_PS && p->incarnation > writer && strcmp(p->job, id) == 0)
            return true;
    return false;
}

/* Gives the machine what a job's history knows and its record may not, before it adopts anything,
 * so that it does not start such a job again. A record that could not be written may lack the job's
 * last kubeml-ps. A job may also have ended without a controller: kubeml-ps waits a while to report
 * that, then leaves only the history. */
static void tell_history(job_manager *o, const job *j)
{
    cleanup_json json_t *history = NULL;
    job_event v = {.type = JOB_PS_FINISHED, .job = j->id};
    if (store_get(o->controller->store, "history", j->id, &history, NULL, NULL))
        return;
    const json_t *writer = json_object_get(history, "generation");
    if (json_is_integer(writer))
        job_manager_event(o, &(job_event){.type = JOB_PS_BEFORE,
                                          .job = j->id,
                                          .incarnation = (int)json_integer_value(writer)});
    const char *state = json_string_value(json_object_get(history, "state"));
    if (!state || !job_state_from_name(state, &v.state) || v.state < JOB_SUCCEEDED)
        return;
    /* Ignores the end of an earlier try: it stays in the history until the kubeml-ps of the present
     * try has begun. The record may be of the earlier try too, where it could not be written. */
    if (json_integer_value(writer) < j->generation ||
        later_ps_found(o, j->id, json_integer_value(writer)))
        return;
    job_context *s = job_context_find(o, j->id);
    const char *sha256 = json_string_value(json_object_get(history, "sha256"));
    if (s && sha256)
        snprintf(s->sha256, sizeof s->sha256, "%s", sha256);
    v.reason = json_string_value(json_object_get(history, "reason"));
    v.message = json_string_value(json_object_get(history, "message"));
    v.value =
        (int)json_array_size(json_object_get(json_object_get(history, "data"), "epoch_duration"));
    job_manager_event(o, &v);
}

static void tell_histories(job_manager *o)
{
    for (size_t i = 0; i < jobs_count(o->machine); i++)
        tell_history(o, jobs_at(o->machine, i));
}

/* Removes the segment of an ended job. A killed kubeml-ps leaves one, and a controller may be
 * killed after it has saved the job's end and before it removes the segment. */
static void sweep_ended(const char *id, void *user)
{
    job_manager *o = user;
    cleanup_json json_t *record = NULL;
    if (store_get(o->controller->store, "jobs", id, &record, NULL, NULL) != 0)
        return; /* a job of another platform */
    if (jobs_find(o->machine, id) || !jobs_record_ended(record))
        return;
    if (shm_sweep(JOB_MANAGER_SEGMENT_DIR, id) > 0)
        log_info("a segment of job %s, which has ended, was left behind and is removed", id);
}

int job_manager_start(controller *c, job_manager **out, err *e)
{
    job_manager *o = calloc(1, sizeof *o);
    if (!o)
        return err_set(e, ERR_NOMEM, "no memory for the jobs");
    o->controller = c;
    o->held = json_object();
    o->beginners = json_object();
    o->unsaved = json_object();
    o->unrecorded_ends = json_object();
    o->wake_fd = -1;
    o->events_end = &o->events;
    o->calls_end = &o->calls;
    pthread_mutex_init(&o->lock, NULL);
    clock_cond_init(&o->taken);
    if (log_reader_open(o, e) || open_parts(o, e)) {
        job_manager_free(o);
        return -1;
    }
    c->job_manager = o;
    job_context_revoke_others(o);
    shm_each_job(JOB_MANAGER_SEGMENT_DIR, sweep_ended, o);
    pool_find_all(o);
    tell_histories(o);
    job_manager_event(o, &(job_event){.type = JOB_ADOPT});
    job_manager_pump(o);
    pool_fill(o);
    if (pthread_create(&o->thread, NULL, run, o)) {
        job_manager_free(o);
        return err_set(e, ERR_NOMEM, "no thread for the jobs");
    }
    o->running = true;
    if (log_reader_start(o, e)) {
        c->job_manager = NULL;
        job_manager_stop(o, false);
        return -1;
    }
    *out = o;
    return 0;
}

static void join(job_manager *o)
{
    log_reader_stop(o);
    pthread_mutex_lock(&o->lock);
    o->stopping = true;
    pthread_cond_broadcast(&o->taken);
    wake(o);
    pthread_mutex_unlock(&o->lock);
    if (o->running)
        pthread_join(o->thread, NULL);
    o->running = false;
}

void job_manager_leave(job_manager *o)
{
    if (!o)
        return;
    join(o);
    o->cluster->ops->close(o->cluster, true);
    o->cluster = NULL;
}

void job_manager_stop(job_manager *o, bool stop_pods)
{
    if (!o)
        return;
    join(o);
    o->stop_pods = stop_pods;
    job_manager_free(o);
}
