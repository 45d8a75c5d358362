/* kubernetes_fixture.h: the pods of a Kubernetes cluster (cluster.h) against a scripted API server.
 */
#ifndef KUBEML_KUBERNETES_FIXTURE_H
#define KUBEML_KUBERNETES_FIXTURE_H

#include <poll.h>

#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "controller/cluster/cluster.h"
#include "controller/cluster/cluster_kubernetes.h"
#include "controller/kube/kube_pods.h"
#include "fake_kube.h"
#include "test.h"

enum { WAIT_MS = 15000 };

#define SETTINGS "\"install\": \"here\", \"namespace\": \"test\", \"slots\": 6, \"port\": 4000,"
#define PODS                                                                                       \
    " \"function\": {\"metadata\": {\"labels\": {\"app\": \"x\"}}, \"spec\": {\"containers\": ["   \
    "{\"name\": \"function\", \"image\": \"localhost/f:1\"}]}},"                                   \
    " \"ps\": {\"spec\": {\"containers\": [{\"name\": \"ps\", \"image\": \"localhost/p:1\"}]}}"

static const char templates[] = "{" SETTINGS PODS "}";

typedef struct world {
    fake_kube *server;
    kube_config access;
    cluster *c;
    int late_ms; /* of the configuration */
} world;

static inline void open_cluster_of(world *w, const char *texts)
{
    char path[600];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/pods.json", test_tmp());
    CHECK_OK(fs_write_file(path, texts, strlen(texts), 0600, &e), e);
    cluster_kubernetes_config config = {
        .templates = path, .access = &w->access, .slots = 3, .late_ms = w->late_ms};
    CHECK_OK(cluster_open("kubernetes", &config, &w->c, &e), e);
}

static inline void open_cluster(world *w)
{
    open_cluster_of(w, templates);
}

static inline void open_world_of(world *w, const char *texts)
{
    *w = (world){.server = fake_kube_start()};
    w->access.server = strdup(fake_kube_url(w->server));
    open_cluster_of(w, texts);
}

static inline void open_world(world *w)
{
    open_world_of(w, templates);
}

static inline void close_world(world *w)
{
    w->c->ops->close(w->c, false);
    fake_kube_stop(w->server);
    kube_config_free(&w->access);
}

static inline void start(world *w, const char *name, pod_role role)
{
    pod_spec spec = {.role = role};
    pod p;
    err e = ERR_INIT;
    snprintf(spec.name, sizeof spec.name, "%s", name);
    CHECK_OK(w->c->ops->start(w->c, &spec, &p, &e), e);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK_STR(p.address, "");
}

static inline pod next_event(world *w)
{
    pod p;
    err e = ERR_INIT;
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (w->c->ops->next_event(w->c, &p, &e) == 0) {
        struct pollfd wait = {.fd = w->c->ops->event_fd(w->c), .events = POLLIN};
        CHECK(poll(&wait, 1, clock_left_ms(deadline)) > 0);
    }
    return p;
}

/* The server's pod, once it is there, or is there no more. */
static inline json_t *wait_pod(world *w, const char *name, bool there)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    for (;;) {
        cleanup_json json_t *all = fake_kube_copy(w->server);
        json_t *one = json_object_get(all, name);
        if ((one != NULL) == there)
            return json_incref(one);
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 2);
    }
}

static inline void drop_pod(json_t *object)
{
    json_decref(object);
}

static inline void runs(world *w, const char *name)
{
    drop_pod(wait_pod(w, name, true));
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:s, s:s}}", "status", "phase", "Running", "podIP", "10.1.2.3"));
    pod p = next_event(w);
    CHECK_STR(p.name, name);
    CHECK_INT(p.phase, POD_RUNNING);
    CHECK_STR(p.address, "tcp:10.1.2.3:4000");
}

static inline void start_running(world *w, const char *name, pod_role role)
{
    start(w, name, role);
    runs(w, name);
}

static inline void open_with(world *w, const char *name, pod_role role)
{
    open_world(w);
    start_running(w, name, role);
}

static inline json_t *dig(const json_t *from, const char *path)
{
    char copy[200], *rest = copy, *part;
    json_t *at = (json_t *)(uintptr_t)from;
    snprintf(copy, sizeof copy, "%s", path);
    while ((part = strsep(&rest, "|")))
        at = json_is_array(at) ? json_array_get(at, (size_t)atol(part)) : json_object_get(at, part);
    return at;
}

#endif
