/* job_delete.c: calls of job_manager.h that delete functions, datasets and what is left of jobs:
 * nothing that a job uses, and nothing that a job can begin to use meanwhile; see
 * job_manager_call.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/dataset/dataset.h"
#include "job_manager_call.h"

enum { HELD_BYTES = NAME_BYTES + 16 };

/* The name of a function or a dataset in `held`. */
static void held_name(char out[HELD_BYTES], const char *kind, const char *name)
{
    snprintf(out, HELD_BYTES, "%s/%s", kind, name); /* a job's id has no slash */
}

int held_check(const job_manager *o, const char *kind, const char *name, err *e)
{
    char held[HELD_BYTES];
    held_name(held, kind, name);
    return json_object_get(o->held, held)
               ? err_set(e, ERR_CONFLICT, "%s \"%s\" is being deleted", kind, name)
               : 0;
}

/* Refuses the dataset of a suspended job, which goes on with it. The job's function may be deleted:
 * the job has its object. */
static int check_not_suspended(void *context, const char *id, json_t *record, err *e)
{
    const json_t *inner = json_object_get(record, "job");
    const char *state = json_string_value(json_object_get(inner, "state")),
               *name =
                   json_string_value(json_object_get(json_object_get(inner, "request"), "dataset"));
    if (!state || strcmp(state, "suspended") != 0 || !name || strcmp(name, context) != 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "job %s, which is suspended, uses dataset \"%s\"", id, name);
}

/* The same for jobs whose newest record is not in the store yet. */
static int check_unsaved(job_manager *o, const char *name, err *e)
{
    const char *id;
    json_t *record;
    json_object_foreach (o->unsaved, id, record)
        if (check_not_suspended((void *)(uintptr_t)name, id, record, e))
            return -1;
    return 0;
}

static void run_hold_unused(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    const char *kind = c->function ? "function" : "dataset";
    const char *name = c->function ? c->function : c->dataset;
    char held[HELD_BYTES];
    c->status = held_check(o, kind, name, &c->why);
    for (size_t i = 0; i < jobs_count(o->machine); i++) {
        const job *j = jobs_at(o->machine, i);
        if (job_ended(j))
            continue;
        if (c->function && strcmp(c->function, j->request.function_name) == 0)
            c->status =
                err_set(&c->why, ERR_CONFLICT, "job %s uses function \"%s\"", j->id, c->function);
        if (c->dataset && strcmp(c->dataset, j->request.dataset) == 0)
            c->status =
                err_set(&c->why, ERR_CONFLICT, "job %s uses dataset \"%s\"", j->id, c->dataset);
    }
    if (c->status == 0 && c->dataset)
        c->status = check_unsaved(o, c->dataset, &c->why);
    held_name(held, kind, name);
    if (c->status == 0 && json_object_set_new(o->held, held, json_true()))
        c->status = err_set(&c->why, ERR_NOMEM, "no memory to hold %s \"%s\"", kind, name);
}

static void run_let_go(job_manager *o, void *arg)
{
    json_object_del(o->held, ((job_manager_call *)arg)->id);
}

static void release(job_manager *o, const char *kind, const char *name)
{
    char held[HELD_BYTES];
    job_manager_call c = {.id = held};
    held_name(held, kind, name);
    job_manager_run(o, run_let_go, &c);
}

/* Deletes the function or the dataset that the call names, while no job can begin to use it. */
static int delete_unused(job_manager *o, job_manager_call *c, err *e)
{
    store *s = o->controller->store;
    const char *name = c->function ? c->function : c->dataset;
    job_manager_run(o, run_hold_unused, c);
    if (c->status)
        return job_manager_call_end(c, e);
    failpoint(c->function ? "controller.delete-function" : "controller.delete-dataset");
    int status = c->function ? store_delete(s, "functions", name, STORE_ANY, e)
                 : store_walk(s, "jobs", check_not_suspended, (void *)(uintptr_t)name, e)
                     ? -1
                     : dataset_delete(s, name, e);
    release(o, c->function ? "function" : "dataset", name);
    return status;
}

int job_delete_function(job_manager *o, const char *name, err *e)
{
    return delete_unused(o, &(job_manager_call){.function = name}, e);
}

int job_delete_dataset(job_manager *o, const char *name, err *e)
{
    return delete_unused(o, &(job_manager_call){.dataset = name}, e);
}

static void run_check_ended(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    if (jobs_find(o->machine, c->id))
        c->status = err_set(&c->why, ERR_CONFLICT, "job %s has not ended", c->id);
}

bool job_query_runs(job_manager *o, const char *id)
{
    job_manager_call c = {.id = id};
    job_manager_run(o, run_check_ended, &c);
    return c.status != 0;
}

static void run_trains(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    const job *j = jobs_find(o->machine, c->id);
    c->status = j && !job_ended(j);
}

bool job_query_trains(job_manager *o, const char *id)
{
    job_manager_call c = {.id = id};
    job_manager_run(o, run_trains, &c);
    return c.status != 0;
}

/* Refuses a suspended job, which goes on with its history and its newest checkpoint. */
static int check_not_to_go_on(job_manager *o, const char *id, err *e)
{
    cleanup_json json_t *record = NULL;
    err why = ERR_INIT;
    if (job_query_record(o, id, &record, &why)) {
        if (why.code == ERR_NOT_FOUND) /* an uploaded model, perhaps */
            return 0;
        *e = why;
        return -1;
    }
    const char *state = json_string_value(json_object_get(json_object_get(record, "job"), "state"));
    if (!state || strcmp(state, job_state_name(JOB_SUSPENDED)) != 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "job %s is suspended and may go on: stop it first", id);
}

/* A suspended job without a checkpoint will begin with its initial model again. */
void held_note(job_manager *o, const char *id, const json_t *saved)
{
    char init[REQUEST_NAME_BYTES];
    request_init_id(json_string_value(json_object_get(json_object_get(saved, "request"), "init")),
                    init);
    const char *state = json_string_value(json_object_get(saved, "state"));
    if (*init && state && strcmp(state, job_state_name(JOB_SUSPENDED)) == 0 &&
        json_integer_value(json_object_get(saved, "epochs")) == 0)
        json_object_set_new(o->beginners, id, json_string(init));
    else
        json_object_del(o->beginners, id);
}

/* Refuses the model with which a job begins. The job reads it when it starts, and again where it
 * has to restart before its first checkpoint. */
static int check_no_job_begins_with(const job_manager *o, const char *id, err *e)
{
    char init[REQUEST_NAME_BYTES];
    for (size_t i = 0; i < jobs_count(o->machine); i++) {
        const job *j = jobs_at(o->machine, i);
        request_init_id(j->request.init, init);
        if (!job_ended(j) && strcmp(init, id) == 0)
            return err_set(e, ERR_CONFLICT, "job %s begins with model \"%s\"", j->id, id);
    }
    const char *suspended;
    json_t *model;
    json_object_foreach (o->beginners, suspended, model)
        if (strcmp(json_string_value(model), id) == 0)
            return err_set(e, ERR_CONFLICT, "job %s, which is suspended, begins with model \"%s\"",
                           suspended, id);
    return 0;
}

static void run_hold(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    run_check_ended(o, arg);
    if (c->status == 0)
        c->status = check_no_job_begins_with(o, c->id, &c->why);
    if (c->status == 0)
        c->status = check_not_to_go_on(o, c->id, &c->why);
    if (c->status == 0 && json_object_get(o->held, c->id))
        c->status = err_set(&c->why, ERR_CONFLICT, "what job %s left is being deleted", c->id);
    if (c->status == 0 && json_object_set_new(o->held, c->id, json_true()))
        c->status = err_set(&c->why, ERR_NOMEM, "no memory to hold job %s", c->id);
}

int job_delete_hold(job_manager *o, const char *id, err *e)
{
    job_manager_call c = {.id = id};
    job_delete_wait_drained(o, id);
    job_manager_run(o, run_hold, &c);
    return job_manager_call_end(&c, e);
}

void job_delete_let_go(job_manager *o, const char *id)
{
    job_manager_call c = {.id = id};
    job_manager_run(o, run_let_go, &c);
}

/* The record goes last: while it is there, the deletion can be asked for again. */
static void run_forget(job_manager *o, void *arg)
{
    job_manager_call *c = arg;
    err why = ERR_INIT;
    run_check_ended(o, arg);
    if (c->status)
        return;
    job_manager_hold_if_fenced(o);
    c->status = logs_delete(o, c->id, &c->why);
    if (c->status)
        return;
    failpoint("controller.forget");
    if (store_delete(o->controller->store, "jobs", c->id, STORE_ANY, &why) &&
        why.code != ERR_NOT_FOUND) {
        c->why = why;
        c->status = -1;
        return;
    }
    json_object_del(o->unsaved, c->id);
    json_object_del(o->unrecorded_ends, c->id);
}

int job_delete_forget(job_manager *o, const char *id, err *e)
{
    job_manager_call c = {.id = id};
    job_manager_run(o, run_forget, &c);
    return job_manager_call_end(&c, e);
}
