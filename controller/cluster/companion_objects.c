/* companion_objects.c: see companion_objects.h. */
#include "companion_objects.h"

#include <stdio.h>
#include <string.h>

#include "common/base/json_read.h"
#include "common/base/log.h"

enum { PATH_BYTES = 300 };

/* `part` distinguishes objects of one kind. Steals `value`. */
static json_t *beside_as(const kube_templates *t, const char *version, const char *kind,
                         const char *part, const char *job, const char *ps_pod, const char *ps_uid,
                         const char *key, json_t *value)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:{s:o, s:{s:s, s:s, s:s}, s:o}}", "apiVersion", version, "kind", kind,
        "metadata", "name", json_sprintf("%s-%s%s", t->install, ps_pod, part), "labels",
        "app.kubernetes.io/managed-by", "kubeml", KUBE_LABEL_INSTALL, t->install, KUBE_LABEL_JOB,
        job, "ownerReferences", kube_owner_reference("v1", "Pod", ps_pod, ps_uid));
    int status = json_object_set_new(object, key, value);
    if (status == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *beside(const kube_templates *t, const char *version, const char *kind,
                      const char *job, const char *ps_pod, const char *ps_uid, const char *key,
                      json_t *value)
{
    return beside_as(t, version, kind, "", job, ps_pod, ps_uid, key, value);
}

static json_t *labels_of(const kube_templates *t, const char *job, const char *role)
{
    return json_pack("{s:s, s:s, s:s}", KUBE_LABEL_INSTALL, t->install, KUBE_LABEL_JOB, job,
                     KUBE_LABEL_ROLE, role);
}

static json_t *ps_labels(const kube_templates *t, const char *job)
{
    return labels_of(t, job, "ps");
}

json_t *kube_policy_build(const kube_templates *t, const char *job, const char *ps_pod,
                          const char *ps_uid)
{
    json_t *functions =
        json_pack("{s:[{s:{s:o}}], s:[{s:i}, {s:i}]}", "from", "podSelector", "matchLabels",
                  labels_of(t, job, "function"), "ports", "port", t->port, "port", KUBE_REDIS_PORT);
    json_t *controller =
        json_pack("{s:[{s:{s:{s:s, s:s}}}], s:[{s:i}]}", "from", "podSelector", "matchLabels",
                  "app.kubernetes.io/instance", t->install, "app.kubernetes.io/component",
                  "controller", "ports", "port", t->port);
    json_t *spec =
        json_pack("{s:{s:o}, s:[s], s:[o, o]}", "podSelector", "matchLabels", ps_labels(t, job),
                  "policyTypes", "Ingress", "ingress", functions, controller);
    return beside(t, "networking.k8s.io/v1", "NetworkPolicy", job, ps_pod, ps_uid, "spec", spec);
}

static json_t *ranks_peer(const kube_templates *t, const char *job, const char *side)
{
    return json_pack("[{s:[{s:{s:o}}], s:[{s:s, s:i, s:i}]}]", side, "podSelector", "matchLabels",
                     labels_of(t, job, "function"), "ports", "protocol", "TCP", "port",
                     t->first_rank_port, "endPort", t->last_rank_port);
}

json_t *kube_ranks_policy_build(const kube_templates *t, const char *job, const char *ps_pod,
                                const char *ps_uid)
{
    if (!t->first_rank_port)
        return NULL;
    json_t *spec =
        json_pack("{s:{s:o}, s:[s, s], s:o, s:o}", "podSelector", "matchLabels",
                  labels_of(t, job, "function"), "policyTypes", "Ingress", "Egress", "ingress",
                  ranks_peer(t, job, "from"), "egress", ranks_peer(t, job, "to"));
    return beside_as(t, "networking.k8s.io/v1", "NetworkPolicy", "-ranks", job, ps_pod, ps_uid,
                     "spec", spec);
}

json_t *kube_service_build(const kube_templates *t, const char *job, const char *ps_pod,
                           const char *ps_uid)
{
    json_t *spec = json_pack("{s:s, s:o, s:[{s:s, s:i}, {s:s, s:i}]}", "clusterIP", "None",
                             "selector", ps_labels(t, job), "ports", "name", "control", "port",
                             t->port, "name", "redis", "port", KUBE_REDIS_PORT);
    return beside(t, "v1", "Service", job, ps_pod, ps_uid, "spec", spec);
}

json_t *kube_secret_build(const kube_templates *t, const char *job, const char *ps_pod,
                          const char *ps_uid, const json_t *access)
{
    const char *address = text_of(access, "address"), *user = text_of(access, "user");
    const char *password = text_of(access, "password");
    if (strncmp(address, "tcp:", 4) == 0)
        address += 4;
    json_t *data = json_pack("{s:s, s:s, s:s, s:s, s:o}", "job", job, "address", address, "user",
                             user, "password", password, "url",
                             json_sprintf("redis://%s:%s@%s", user, password, address));
    json_t *secret = beside(t, "v1", "Secret", job, ps_pod, ps_uid, "stringData", data);
    if (secret)
        json_object_set_new(secret, "immutable", json_true());
    return secret;
}

/* Whether to try again after this failure: not where the cluster forbids the object. */
static bool is_owed(const err *e)
{
    return e->code != ERR_NONE && e->code != ERR_EXISTS && kube_may_pass(e->code);
}

/* Steals `object`. */
static void make(const companion_objects *b, const char *path, json_t *object, const char *what)
{
    err e = ERR_INIT;
    if (!object)
        err_set(&e, ERR_NOMEM, "no memory");
    else
        kube_create(b->client, path, object, b->deadline_ms, NULL, &e);
    if (e.code != ERR_NONE && e.code != ERR_EXISTS)
        log_warn("job %s has no %s%s: %s", b->job, what, is_owed(&e) ? " yet" : "", e.message);
    if (object && is_owed(&e))
        json_array_append_new(b->owed,
                              json_pack("{s:s, s:s, s:s, s:s, s:O}", "path", path, "job", b->job,
                                        "pod", b->ps_pod, "what", what, "object", object));
    json_decref(object);
}

static void policies_path(const companion_objects *b, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",
             b->namespace_name);
}

void companion_objects_let_meet(const companion_objects *b)
{
    char path[PATH_BYTES];
    policies_path(b, path);
    if (b->templates->first_rank_port)
        make(b, path, kube_ranks_policy_build(b->templates, b->job, b->ps_pod, b->ps_uid),
             "NetworkPolicy between its functions");
}

void companion_objects_make(const companion_objects *b)
{
    char path[PATH_BYTES];
    policies_path(b, path);
    make(b, path, kube_policy_build(b->templates, b->job, b->ps_pod, b->ps_uid), "NetworkPolicy");
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/services", b->namespace_name);
    make(b, path, kube_service_build(b->templates, b->job, b->ps_pod, b->ps_uid), "Service");
}

void companion_objects_publish(const companion_objects *b, const json_t *access)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/secrets", b->namespace_name);
    make(b, path, kube_secret_build(b->templates, b->job, b->ps_pod, b->ps_uid, access), "Secret");
}

const char *companion_objects_pod(const json_t *owed)
{
    return text_of(owed, "pod");
}

bool companion_objects_make_owed(kube_client *c, const json_t *owed, int64_t deadline_ms,
                                 int64_t *wait_ms)
{
    const char *job = text_of(owed, "job"), *what = text_of(owed, "what");
    kube_request r = {.method = "POST",
                      .path = text_of(owed, "path"),
                      .body = json_object_get(owed, "object"),
                      .query = "fieldManager=" KUBE_FIELD_MANAGER};
    kube_outcome o;
    err e = ERR_INIT;
    if (kube_try(c, &r, deadline_ms, NULL, &o, &e) == 0 || e.code == ERR_EXISTS) {
        log_info("job %s has its %s now", job, what);
        return true;
    }
    *wait_ms = o.retry_after_ms > 0 ? (int64_t)o.retry_after_ms : 0;
    if (!is_owed(&e) && e.code != ERR_CANCELLED)
        log_warn("job %s has no %s: %s", job, what, e.message);
    return !is_owed(&e);
}
