/* kube_jobs_fixture.h: the operator's TrainJobs against a scripted API server and a fake platform,
 * which records what it is asked to do and has the jobs that the case gives it. */
#ifndef KUBEML_KUBE_JOBS_FIXTURE_H
#define KUBEML_KUBE_JOBS_FIXTURE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "controller/kube/kube_pods.h"
#include "controller/operator/kube_jobs.h"
#include "fake_kube.h"
#include "test.h"

#define TRAINJOBS_PATH "/apis/" KUBE_RESOURCES "/namespaces/test/trainjobs"

typedef struct platform {
    fake_kube *server;
    kube_config access;
    kube_jobs *jobs;
    pthread_mutex_t lock;
    json_t *submitted; /* ids */
    json_t *looks;     /* err_codes */
    json_t *linked;    /* marks by the jobs' ids, null: noted as one without a TrainJob */
    int cancels, cancels_unlinked; /* those before the job was noted as one without a TrainJob */
    bool told, deleted;
    atomic_bool resumed;
} platform;

static inline json_t *task(const char *state)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "id", "j1", "state", state,
                     "reason", "", "message", "", "epoch", 3, "parallelism", 4, "accuracy", 98.765,
                     "validation_loss", 0.01234);
}

static inline int none_current(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_array();
    return 0;
}

static inline int no_links(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_object();
    return 0;
}

static inline int take(void *context, const json_t *asked, const char *id, err *e)
{
    platform *p = context;
    (void)asked;
    (void)e;
    pthread_mutex_lock(&p->lock);
    json_array_append_new(p->submitted, json_string(id));
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* It knows one job, which has ended. */
static inline int old_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    if (strcmp(id, "aaaaaaaaaaaa") == 0) {
        *out = task("succeeded");
        return 0;
    }
    return err_set(e, ERR_NOT_FOUND, "there is no job %s", id);
}

static inline void no_link(void *context, const char *id, json_t *mark)
{
    (void)context;
    (void)id;
    (void)mark;
}

static inline int is_linked(void *context, const char *id, err *e)
{
    (void)context;
    (void)id;
    (void)e;
    return 0;
}

/* A TrainJob with those labels, NULL where it has not the one. */
static inline void put_train_job(platform *p, const char *name, const char *uid, const char *job,
                                 const char *install)
{
    fake_kube_put(p->server, name,
                  json_pack("{s:{s:s, s:i, s:{s:s*, s:s*}}, s:{s:s}}", "metadata", "uid", uid,
                            "generation", 1, "labels", KUBE_LABEL_JOB, job, KUBE_LABEL_INSTALL,
                            install, "spec", "function", "lenet"));
}

static inline void open_platform(platform *p)
{
    *p = (platform){.server = fake_kube_start(),
                    .submitted = json_array(),
                    .looks = json_array(),
                    .linked = json_object()};
    p->access = (kube_config){.server = strdup(fake_kube_url(p->server)), .namespace_name = "test"};
    pthread_mutex_init(&p->lock, NULL);
    fake_kube_collection(p->server, TRAINJOBS_PATH);
}

static inline void run_platform(platform *p)
{
    kube_jobs_host host = {.submit = take,
                           .task = old_task,
                           .current = none_current,
                           .link = no_link,
                           .links = no_links,
                           .context = p,
                           .install = "here"};
    err e = ERR_INIT;
    CHECK_OK(kube_jobs_start(&p->access, &host, &p->jobs, &e), e);
}

static inline void close_platform(platform *p)
{
    kube_jobs_stop(p->jobs);
    fake_kube_stop(p->server);
    kube_config_free(&p->access);
    json_decref(p->submitted);
    json_decref(p->looks);
    json_decref(p->linked);
    pthread_mutex_destroy(&p->lock);
}

static inline size_t submitted(platform *p)
{
    pthread_mutex_lock(&p->lock);
    size_t n = json_array_size(p->submitted);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static inline void wait_submitted(platform *p, size_t count)
{
    int64_t until = clock_deadline_ms(10000);
    while (submitted(p) < count) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
}

static inline void wait_patches(platform *p, int count)
{
    int64_t until = clock_deadline_ms(10000);
    while (fake_kube_requests(p->server, FAKE_PATCH) < count) {
        CHECK(clock_left_ms(until) > 0);
        poll(NULL, 0, 2);
    }
}

static inline json_t *labels_now(platform *p, const char *name)
{
    cleanup_json json_t *all = fake_kube_copy(p->server);
    const json_t *meta = json_object_get(json_object_get(all, name), "metadata");
    return json_incref(json_object_get(meta, "labels"));
}

/* One job of the API that runs, and got its pod before there was a TrainJob. */
static inline int running_current(void *context, json_t **out, err *e)
{
    (void)context;
    (void)e;
    *out = json_array();
    json_t *one = task("running");
    json_object_set_new(one, "id", json_string("aaaaaaaaaaaa"));
    json_object_set_new(one, "request", json_object());
    return json_array_append_new(*out, one);
}

static inline int running_task(void *context, const char *id, json_t **out, err *e)
{
    (void)context;
    (void)id;
    (void)e;
    *out = task("running");
    return 0;
}

static inline int note_resume(void *context, const char *id, err *e)
{
    (void)id;
    (void)e;
    ((platform *)context)->resumed = true;
    return 0;
}

/* The watch tells of the TrainJob that went, too. */
static inline int cancel_deleted(void *context, const char *id, err *e)
{
    (void)context;
    return err_set(e, ERR_NOT_FOUND, "there is no job %s", id);
}

static inline bool has_train_job(platform *p, const char *name)
{
    cleanup_json json_t *objects = fake_kube_copy(p->server);
    return json_object_get(objects, name) != NULL;
}

static inline int note_cancel(void *context, const char *id, err *e)
{
    platform *p = context;
    (void)e;
    CHECK_STR(id, "dddddddddddd");
    pthread_mutex_lock(&p->lock);
    p->cancels++;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static inline void wait_status(platform *p, const char *name)
{
    int64_t until = clock_deadline_ms(10000);
    for (bool there = false; !there; poll(NULL, 0, 2)) {
        cleanup_json json_t *objects = fake_kube_copy(p->server);
        const json_t *status = json_object_get(json_object_get(objects, name), "status");
        there = strcmp(text_of(status, "state"), "running") == 0;
        CHECK(clock_left_ms(until) > 0);
    }
}

#endif
