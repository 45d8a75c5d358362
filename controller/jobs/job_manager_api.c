/* job_manager_api.c: calls of job_manager.h that begin and end jobs; see job_manager_call.h. */
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/name.h"
#include "common/dataset/dataset.h"
#include "common/store/model_blob.h"
#include "controller/ha/store_watch.h"
#include "job_manager_call.h"

int job_manager_call_end(job_manager_call *c, err *e)
{
    if (c->status && e)
        *e = c->why;
    return c->status;
}

static int unknown(const char *id, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no job \"%.40s\"", id);
}

static int check_id(const char *id, err *e)
{
    if (strlen(id) < JOB_ID_BYTES && name_check("job", id, NULL) == 0)
        return 0;
    return unknown(id, e);
}

int job_query_record(job_manager *o, const char *id, json_t **out, err *e)
{
    if (check_id(id, e))
        return -1;
    err why = ERR_INIT;
    json_t *unsaved = json_object_get(o->unsaved, id);
    if (unsaved && (*out = json_deep_copy(unsaved)))
        return 0;
    if (store_watch_up(o->controller->watch, &why) &&
        store_get(o->controller->store, "jobs", id, out, NULL, &why) == 0)
        return 0;
    if (e)
        *e = why;
    return why.code == ERR_NOT_FOUND ? unknown(id, e) : -1;
}

/* ---- ended jobs whose pods still run --------------------------------------------------------- */

/* Or that are being stopped, for which kubeml-ps has a bounded time. Suspending has no bound. */
static void run_draining(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    const job *j = jobs_find(o->machine, c->id);
    c->status = j && (job_ended(j) || (j->verdict && j->verdict_state == JOB_CANCELLED));
}

void job_delete_wait_drained(job_manager *o, const char *id)
{
    int64_t deadline = clock_deadline_ms(JOB_MANAGER_DRAIN_MS);
    for (bool over = false; !over;) {
        job_manager_call c = {.id = id};
        pthread_mutex_lock(&o->lock);
        uint64_t seen = o->jobs_done;
        pthread_mutex_unlock(&o->lock);
        job_manager_run(o, run_draining, &c);
        if (!c.status)
            return;
        pthread_mutex_lock(&o->lock);
        while (o->jobs_done == seen && !o->stopping && !over)
            over = !clock_cond_wait(&o->taken, &o->lock, deadline);
        over |= o->stopping;
        pthread_mutex_unlock(&o->lock);
    }
}

/* ---- submit, stop, resume -------------------------------------------------------------------- */

/* Whether there is the model, as kubeml-ps looks for it: a job's final model or newest checkpoint,
 * or a blob. */
static bool model_exists(job_manager *o, const char *init, const char *id)
{
    char name[STORE_KEY_BYTES];
    snprintf(name, sizeof name, "models/%s/final", id);
    bool of_job = strcmp(init, id) == 0 || strcmp(init, name) == 0;
    return (of_job && model_blob_find(o->controller->store, id, name, NULL) == 0) ||
           store_blob_find(o->controller->store, init, NULL, NULL) == 0;
}

/* Refuses more static functions than there will ever be slots: the job would wait for ever. */
static int check_slots(const job_manager *o, const request *r, err *e)
{
    if (!o->cluster->ops->slots_stay || !r->static_parallelism ||
        r->default_parallelism <= o->slots)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "options.default_parallelism: %d static functions, and there are %d slots here "
                   "(kubeml up --slots N)",
                   r->default_parallelism, o->slots);
}

/* Refuses tf32 on a CPU, where the request names the CPU or the machine has nothing else. In pods
 * the device is not known yet. */
static int check_precision(const job_manager *o, const request *r, err *e)
{
    bool nothing_else = o->cluster->ops->gpus && o->gpus == 0 && r->device == DEVICE_AUTO;
    if (r->precision != GPU_TF32 || (r->device != DEVICE_CPU && !nothing_else))
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "options.gpu.precision: the cpu backend computes in fp32 or bf16, not in tf32");
}

static int check_kept(const job_manager *o, const request *r, err *e)
{
    if (held_check(o, "function", r->function_name, e) || held_check(o, "dataset", r->dataset, e))
        return -1;
    char id[REQUEST_NAME_BYTES];
    request_init_id(r->init, id);
    return json_object_get(o->held, id)
               ? err_set(e, ERR_CONFLICT, "init: model \"%s\" is being deleted", r->init)
               : 0;
}

/* Checks that the model exists and its job does not run. A job that was resumed keeps the model of
 * its previous end until its next checkpoint. */
static int check_init(job_manager *o, const request *r, err *e)
{
    char id[REQUEST_NAME_BYTES];
    if (!r->init[0])
        return 0;
    request_init_id(r->init, id);
    if (job_query_trains(o, id))
        return err_set(e, ERR_CONFLICT,
                       "init: job %s still runs; its model is there once it has ended", id);
    return model_exists(o, r->init, id)
               ? 0
               : err_set(e, ERR_NOT_FOUND, "init: there is no model \"%s\"", r->init);
}

/* Refuses a job that cannot run here, where the cluster knows that beforehand. */
static int check_can_run(const job_manager *o, err *e)
{
    return o->cluster->ops->can_run ? o->cluster->ops->can_run(o->cluster, e) : 0;
}

static void run_submit(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    char id[JOB_ID_BYTES];
    cleanup_json json_t *record = NULL;
    job_manager_random_hex(id, 13);
    c->status = -1;
    if (!store_watch_writable(o->controller->watch, &c->why))
        return;
    if (c->id)
        snprintf(id, sizeof id, "%s", c->id);
    if (c->id && (jobs_find(o->machine, id) || job_query_record(o, id, &record, NULL) == 0)) {
        err_set(&c->why, ERR_EXISTS, "there is a job %s already", id);
        return;
    }
    job_context *s = job_context_new(o, id);
    if (!s) {
        err_set(&c->why, ERR_NOMEM, "no memory for the job");
        return;
    }
    snprintf(s->user, sizeof s->user, "%s", c->user);
    if (check_slots(o, c->request, &c->why) || check_precision(o, c->request, &c->why) ||
        check_kept(o, c->request, &c->why) || job_context_resolve(o, s, c->request, &c->why) ||
        check_can_run(o, &c->why) ||
        jobs_submit(o->machine, id, c->request, false, clock_wall_ms(), &c->why)) {
        job_context_drop(o, id);
        return;
    }
    job_context_tell_chunks(o, s);
    if (jobs_save_new(o, jobs_find(o->machine, id), &c->why)) {
        jobs_forget(o->machine, id, NULL);
        job_context_drop(o, id);
        return;
    }
    snprintf(c->new_id, JOB_ID_BYTES, "%s", id);
    cleanup_json json_t *asked = request_json(c->request),
                        *note = job_context_note(s->dataset, asked);
    log_context(id, -1, -1);
    if (s->user[0])
        log_info("asked for by %s", s->user);
    if (json_is_string(note))
        log_warn("%s", json_string_value(note));
    log_context(NULL, -1, -1);
    if (c->out)
        *c->out = json_incref(note);
    if (o->news && !c->id)
        json_array_append_new(o->news, json_string(id));
    job_manager_event(o, &(job_event){.type = JOB_TICK}); /* starts the job where there is room */
    c->status = 0;
}

int job_manager_submit(job_manager *o, const request *r, const char *user, char id[40],
                       json_t **note, err *e)
{
    if (check_init(o, r, e) || job_context_shape_check(o, r, e))
        return -1;
    job_manager_call c = {.request = r, .user = user, .new_id = id, .out = note};
    job_manager_run(o, run_submit, &c);
    return job_manager_call_end(&c, e);
}

int job_manager_submit_as(job_manager *o, const request *r, const char *id, err *e)
{
    char same[JOB_ID_BYTES];
    /* Without a store check_init would report a missing model. The API refuses such requests
     * before. */
    if (!store_watch_up(o->controller->watch, e) || check_init(o, r, e) ||
        job_context_shape_check(o, r, e))
        return -1;
    job_manager_call c = {.request = r, .id = id, .user = "", .new_id = same};
    job_manager_run(o, run_submit, &c);
    return job_manager_call_end(&c, e);
}

#define STOPPED "it was stopped through the API"

/* Stops a job that only its record and its history know: a suspended job, or an unfinished job that
 * could not be restored at start. Its last checkpoint is its model already, and the history's
 * `open` only serves to resume. The history is written first: where writing the record fails, the
 * job can be stopped again. */
static int cancel_recorded(job_manager *o, const char *id, json_t *record, err *e)
{
    static const job_ending ending = {JOB_CANCELLED, "Cancelled", STOPPED};
    if (json_object_get(o->held, id))
        return err_set(e, ERR_CONFLICT, "what job %s left is being deleted", id);
    if (!store_watch_writable(o->controller->watch, e))
        return -1;
    json_t *inner = json_object_get(record, "job");
    job_ending_set(&ending, inner);
    json_object_set_new(inner, "finished_ms", json_integer(clock_wall_ms()));
    history_end(o, id, &ending);
    jobs_save_record(o, id, record);
    metric_add(o->controller->metrics.jobs_total, 1, job_state_name(JOB_CANCELLED), NULL, NULL);
    return 0;
}

static int recorded_state(job_manager *o, const char *id, json_t **record, job_state *out, err *e)
{
    if (job_query_record(o, id, record, e))
        return -1;
    return jobs_record_state(*record, out)
               ? 0
               : err_set(e, ERR_CORRUPT, "the record of job %s says nothing of its state", id);
}

static void run_cancel(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, c->id);
    if (j && !job_ended(j)) {
        job_manager_event(o, &(job_event){.type = JOB_CANCEL, .job = c->id, .message = STOPPED});
        return;
    }
    c->drains = j && j->state == JOB_SUSPENDED;
    job_state state = j ? j->state : JOB_CANCELLED;
    if (c->drains)
        c->status = err_set(&c->why, ERR_CONFLICT, "the pods of job %s have not ended", c->id);
    else if (!j)
        c->status = recorded_state(o, c->id, &record, &state, &c->why);
    if (c->status)
        return;
    if (!j && (state == JOB_SUSPENDED || state < JOB_SUCCEEDED))
        c->status = cancel_recorded(o, c->id, record, &c->why);
    else
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s has ended already: %s", c->id,
                            job_state_name(state));
}

int job_manager_cancel(job_manager *o, const char *id, err *e)
{
    job_manager_call c = {.id = id}, again = {.id = id};
    job_manager_run(o, run_cancel, &c);
    if (!c.drains)
        return job_manager_call_end(&c, e);
    job_delete_wait_drained(o, id);
    job_manager_run(o, run_cancel, &again);
    return job_manager_call_end(&again, e);
}

static void run_suspend(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, c->id);
    if (j && !job_ended(j)) {
        job_manager_event(
            o, &(job_event){
                   .type = JOB_SUSPEND,
                   .job = c->id,
                   .message = "it was asked to stop at its next merge; resume goes on from there"});
        return;
    }
    job_state state = j ? j->state : JOB_CANCELLED;
    c->status = j ? 0 : recorded_state(o, c->id, &record, &state, &c->why);
    if (c->status || state == JOB_SUSPENDED)
        return;
    if (state >= JOB_SUCCEEDED)
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s has ended already: %s", c->id,
                            job_state_name(state));
    else
        c->status = err_set(&c->why, ERR_CONFLICT,
                            "job %s is %s by its record alone, and nothing runs it: it can be "
                            "resumed or stopped",
                            c->id, job_state_name(state));
}

int job_manager_suspend(job_manager *o, const char *id, err *e)
{
    job_manager_call c = {.id = id};
    job_manager_run(o, run_suspend, &c);
    return job_manager_call_end(&c, e);
}

/* Checks that the dataset is still the upload on which the job trains. Its samples were deleted
 * with it, and a new dataset of the same name has others. */
static int check_data(const job_manager *o, const request *r, const json_t *record, err *e)
{
    const char *upload =
        json_string_value(json_object_get(json_object_get(record, "dataset_info"), "upload"));
    dataset_info now;
    err why = ERR_INIT;
    bool there = dataset_find(o->controller->store, r->dataset, &now, NULL, &why) == 0;
    if (!there && why.code != ERR_NOT_FOUND)
        return err_set(e, why.code, "%s", why.message);
    bool same = there && upload && strcmp(now.upload, upload) == 0;
    if (there)
        dataset_info_free(&now);
    if (same)
        return 0;
    return err_set(e, ERR_CONFLICT, "dataset \"%s\", on which the job trains, was deleted%s",
                   r->dataset, there ? "; the one of that name is another" : "");
}

/* Turns the record of an ended job into that of a queued job. */
static int resume(job_manager *o, const char *id, const json_t *record, err *e)
{
    const json_t *inner = json_object_get(record, "job");
    request r;
    job_context *s = NULL;
    if (request_parse(json_object_get(inner, "request"), &r, e))
        return err_wrap(e, "the record of job %s", id);
    if (check_kept(o, &r, e) || check_data(o, &r, record, e) || check_can_run(o, e) ||
        job_context_restore(o, record, &s, e))
        return -1;
    job_context_revoke(o, s); /* mostly done at its end; it gets new ones */
    s->times = (job_times){.submitted = clock_monotonic_ms()};
    json_decref(s->start_ms);
    s->start_ms = NULL;
    int generation = (int)json_integer_value(json_object_get(inner, "generation"));
    int epochs = (int)json_integer_value(json_object_get(inner, "epochs"));
    int threads = (int)json_integer_value(json_object_get(inner, "threads"));
    int64_t created = json_integer_value(json_object_get(inner, "created_ms"));
    if (jobs_resubmit(o->machine, id, &r, generation, epochs, threads, created, e) == 0) {
        jobs_recall(o->machine, id, inner);
        job_context_tell_chunks(o, s);
        if (jobs_save_new(o, jobs_find(o->machine, id), e) == 0) {
            job_context_show(o, s, 0);
            return 0;
        }
        jobs_forget(o->machine, id, NULL);
    }
    job_context_drop(o, id);
    return -1;
}

static void run_resume(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    cleanup_json json_t *record = NULL;
    const job *j = jobs_find(o->machine, c->id);
    if (j) {
        bool stops = !job_ended(j) && j->verdict && j->verdict_state == JOB_SUSPENDED;
        c->status =
            err_set(&c->why, ERR_CONFLICT, "job %s %s", c->id,
                    stops ? "stops at its next merge: it can be resumed then" : "has not ended");
        return;
    }
    if (json_object_get(o->held, c->id)) {
        c->status = err_set(&c->why, ERR_CONFLICT, "what job %s left is being deleted", c->id);
        return;
    }
    c->status = job_query_record(o, c->id, &record, &c->why);
    if (c->status)
        return;
    const char *state = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    if (state && strcmp(state, "succeeded") == 0)
        c->status = err_set(&c->why, ERR_CONFLICT,
                            "job %s has succeeded: there is nothing left to do", c->id);
    else
        c->status = resume(o, c->id, record, &c->why);
    if (c->status == 0)
        job_manager_event(o, &(job_event){.type = JOB_TICK});
}

int job_manager_resume(job_manager *o, const char *id, err *e)
{
    job_manager_call c = {.id = id};
    job_delete_wait_drained(o, id);
    job_manager_run(o, run_resume, &c);
    return job_manager_call_end(&c, e);
}
