/* operator_start.c: see operator_start.h. */
#include "operator_start.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/contract/request.h"
#include "controller/jobs/job_manager.h"
#include "controller/kube/kube_pods.h"
#include "function_reconciler.h"
#include "kube_jobs.h"

#define TRAINJOBS "trainjobs" /* a collection of the store */

struct operator
{
    kube_config access;
    kube_jobs *jobs;
    function_reconciler *reconciler;
};

static job_manager *job_manager_of(void *context)
{
    return ((controller *)context)->job_manager;
}

static int submit(void *context, const json_t *body, const char *id, err *e)
{
    request r;
    return request_parse(body, &r, e) ? -1 : job_manager_submit_as(job_manager_of(context), &r, id, e);
}

static int cancel(void *context, const char *id, err *e)
{
    return job_manager_cancel(job_manager_of(context), id, e);
}

static int suspend(void *context, const char *id, err *e)
{
    return job_manager_suspend(job_manager_of(context), id, e);
}

static int resume(void *context, const char *id, err *e)
{
    return job_manager_resume(job_manager_of(context), id, e);
}

static int task(void *context, const char *id, json_t **out, err *e)
{
    return job_query_task(job_manager_of(context), id, out, e);
}

static bool is_listed(const json_t *list, const char *id)
{
    const json_t *one;
    size_t i;
    json_array_foreach (list, i, one) {
        const char *other = json_string_value(json_object_get(one, "id"));
        if (other && strcmp(other, id) == 0)
            return true;
    }
    return false;
}

static int current(void *context, json_t **out, err *e)
{
    job_manager *o = job_manager_of(context);
    /* asked before the list, since a job that ends between the two would be in neither */
    cleanup_json json_t *news = job_query_news(o);
    json_t *one;
    size_t i;
    if (job_query_tasks(o, true, false, NULL, out, e))
        return -1;
    json_array_foreach (news, i, one) {
        const char *id = json_string_value(one);
        json_t *ended = NULL;
        if (!is_listed(*out, id) && job_query_task(o, id, &ended, NULL) == 0)
            json_array_append_new(*out, ended);
    }
    return 0;
}

/* Remembers which jobs have a TrainJob: a TrainJob that is deleted while no controller runs is
 * noticed then. */
static void link_job(void *context, const char *id, json_t *mark)
{
    store *st = ((controller *)context)->store;
    err e = ERR_INIT;
    int status = mark ? store_put(st, TRAINJOBS, id, mark, STORE_ANY, NULL, &e)
                      : store_delete(st, TRAINJOBS, id, STORE_ANY, &e);
    if (status && e.code != ERR_NOT_FOUND)
        log_warn("that job %s %s a TrainJob cannot be noted: %s", id, mark ? "has" : "has no more",
                 e.message);
}

static int linked(void *context, const char *id, err *e)
{
    cleanup_json json_t *mark = NULL;
    return store_get(((controller *)context)->store, TRAINJOBS, id, &mark, NULL, e);
}

static int take_link(void *context, const char *id, json_t *mark, err *e)
{
    return json_object_set(context, id, mark) ? err_set(e, ERR_NOMEM, "no memory for ids") : 0;
}

static int links(void *context, json_t **out, err *e)
{
    cleanup_json json_t *ids = json_object();
    if (!ids)
        return err_set(e, ERR_NOMEM, "no memory for ids");
    if (store_walk(((controller *)context)->store, TRAINJOBS, take_link, ids, e))
        return -1;
    *out = json_incref(ids);
    return 0;
}

static void looks(void *context, const err *why)
{
    atomic_store(&((controller *)context)->unseen, (int)(why ? why->code : ERR_NONE));
}

int operator_access(const controller *c, kube_config *out, err *e)
{
    kube_templates t;
    if (kube_templates_read(c->config.pods_file, &t, e))
        return -1;
    int status = kube_config_find(c->config.context, out, e);
    if (status == 0 && t.namespace_name[0])
        snprintf(out->namespace_name, sizeof out->namespace_name, "%s", t.namespace_name);
    kube_templates_free(&t);
    return status;
}

static int start(operator* m, controller *c, bool (*may_write)(const void *c), err *e)
{
    kube_templates t;
    kube_jobs_host host = {.submit = submit,
                           .cancel = cancel,
                           .suspend = suspend,
                           .resume = resume,
                           .task = task,
                           .current = current,
                           .link = link_job,
                           .links = links,
                           .linked = linked,
                           .looks = looks,
                           .lacking = &c->lacking,
                           .context = c};
    if (operator_access(c, &m->access, e))
        return -1;
    m->access.may_write = may_write;
    m->access.writer = c;
    if (kube_templates_read(c->config.pods_file, &t, e))
        return -1;
    snprintf(host.install, sizeof host.install, "%s", t.install);
    host.gpu.count = kube_templates_gpu(&t, host.gpu.resource, sizeof host.gpu.resource);
    kube_templates_free(&t);
    return kube_jobs_start(&m->access, &host, &m->jobs, e) ||
                   function_reconciler_start(&m->access, host.install, c, &m->reconciler, e)
               ? -1
               : 0;
}

operator* operator_start(controller *c, bool (*may_write)(const void *c))
{
    err e = ERR_INIT;
    operator* m = calloc(1, sizeof *m);
    if (!m)
        err_set(&e, ERR_NOMEM, "no memory");
    if (m && start(m, c, may_write, &e) == 0)
        return m;
    log_warn("jobs do not show as TrainJobs: %s", e.message);
    operator_stop(m);
    return NULL;
}

void operator_stop(operator* m)
{
    if (!m)
        return;
    function_reconciler_stop(m->reconciler);
    kube_jobs_stop(m->jobs);
    kube_config_free(&m->access);
    free(m);
}
