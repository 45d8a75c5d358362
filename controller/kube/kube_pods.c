/* kube_pods.c: see kube_pods.h. */
#include "kube_pods.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/contract/exit_cause.h"

enum { TEMPLATE_BYTES_MAX = 1 << 20, TEMPLATE_DEPTH_MAX = 32 };

const char *kube_object_text(const json_t *object, const char *key)
{
    return text_of(json_object_get(object, "metadata"), key);
}

const char *kube_object_label(const json_t *object, const char *key)
{
    return text_of(json_object_get(json_object_get(object, "metadata"), "labels"), key);
}

/* ---- templates ------------------------------------------------------------------------------- */

static int check_containers(const json_t *spec, const char *list, const char *what, err *e)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(spec, list), i, one) {
        const json_t *security = json_object_get(one, "securityContext");
        if (!*text_of(one, "name") || !*text_of(one, "image"))
            return err_set(e, ERR_INVALID, "%s.spec.%s[%zu] has no name or no image", what, list,
                           i);
        if (json_is_true(json_object_get(security, "privileged")) ||
            json_is_true(json_object_get(security, "allowPrivilegeEscalation")))
            return err_set(e, ERR_INVALID, "%s.spec.%s[%zu] asks for privileges", what, list, i);
    }
    return 0;
}

static int check_template(const json_t *template, const char *what, err *e)
{
    static const char *const host[] = {"hostNetwork", "hostPID", "hostIPC"};
    const json_t *spec = json_object_get(template, "spec"),
                 *security = json_object_get(spec, "securityContext");
    json_t *volume;
    size_t i;
    if (json_array_size(json_object_get(spec, "containers")) == 0)
        return err_set(e, ERR_INVALID, "%s.spec.containers is missing", what);
    for (i = 0; i < sizeof host / sizeof *host; i++)
        if (json_is_true(json_object_get(spec, host[i])))
            return err_set(e, ERR_INVALID, "%s.spec.%s: a pod of ours has no part in its host",
                           what, host[i]);
    json_array_foreach(json_object_get(spec, "volumes"), i, volume) {
        if (json_object_get(volume, "hostPath"))
            return err_set(e, ERR_INVALID, "%s.spec.volumes[%zu] is a hostPath", what, i);
    }
    const json_t *user = json_object_get(security, "runAsUser");
    if (user && json_integer_value(user) == 0)
        return err_set(e, ERR_INVALID, "%s.spec.securityContext.runAsUser is root", what);
    return check_containers(spec, "containers", what, e) ||
                   check_containers(spec, "initContainers", what, e)
               ? -1
               : 0;
}

static int take_template(const json_t *all, const char *key, pod_role role, json_t **out,
                         kube_templates *t, err *e)
{
    const json_t *template = json_object_get(all, key);
    if (!json_is_object(template))
        return err_set(e, ERR_INVALID, "the pod template \"%s\" is missing", key);
    if (check_template(template, key, e))
        return -1;
    const json_t *first =
        json_array_get(json_object_get(json_object_get(template, "spec"), "containers"), 0);
    snprintf(t->container[role], sizeof t->container[role], "%s", text_of(first, "name"));
    *out = json_deep_copy(template);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for the pod templates");
}

static int take_rank_ports(const json_t *ports, kube_templates *t, err *e)
{
    if (!ports)
        return 0;
    t->first_rank_port = (int)json_integer_value(json_object_get(ports, "first"));
    t->last_rank_port = (int)json_integer_value(json_object_get(ports, "last"));
    if (t->first_rank_port < 1024 || t->last_rank_port < t->first_rank_port ||
        t->last_rank_port > 65535)
        return err_set(e, ERR_INVALID, "\"rank_ports\" is no range of ports from 1024 on");
    if (t->first_rank_port <= t->port && t->port <= t->last_rank_port)
        return err_set(e, ERR_INVALID, "\"rank_ports\" has the pods' own port %d among them",
                       t->port);
    return 0;
}

static int take_settings(const json_t *all, kube_templates *t, err *e)
{
    const json_t *port = json_object_get(all, "port"), *slots = json_object_get(all, "slots");
    const char *install = text_of(all, "install");
    if (!*install || strlen(install) >= sizeof t->install)
        return err_set(
            e, ERR_INVALID,
            "\"install\", the name that tells installations apart, is missing or too long");
    snprintf(t->install, sizeof t->install, "%s", install);
    snprintf(t->namespace_name, sizeof t->namespace_name, "%s", text_of(all, "namespace"));
    snprintf(t->slots_resource, sizeof t->slots_resource, "%s", text_of(all, "slots_resource"));
    snprintf(t->gpu_resource, sizeof t->gpu_resource, "%s", text_of(all, "gpu_resource"));
    t->port = port ? (int)json_integer_value(port) : KUBE_PODS_PORT;
    t->slots = (int)json_integer_value(slots);
    if (t->port < 1 || t->port > 65535)
        return err_set(e, ERR_INVALID, "\"port\" is not one");
    if ((slots && !json_is_integer(slots)) || t->slots < 0)
        return err_set(e, ERR_INVALID, "\"slots\" is not a number of functions");
    if (take_rank_ports(json_object_get(all, "rank_ports"), t, e))
        return -1;
    json_t *owner = json_object_get(all, "owner");
    if (owner && (!*text_of(owner, "apiVersion") || !*text_of(owner, "kind") ||
                  !*text_of(owner, "plural") || !*text_of(owner, "name")))
        return err_set(e, ERR_INVALID, "\"owner\" needs apiVersion, kind, plural and name");
    t->owner = json_incref(owner);
    return 0;
}

int kube_templates_read(const char *path, kube_templates *out, err *e)
{
    static const char *const known[] = {"install",        "namespace",    "port",       "slots",
                                        "slots_resource", "gpu_resource", "rank_ports", "owner",
                                        "function",       "ps",           NULL};
    cleanup_buf buf text;
    cleanup_json json_t *all = NULL;
    *out = (kube_templates){0};
    buf_init(&text, TEMPLATE_BYTES_MAX);
    if (fs_read_file(path, &text, e))
        return -1;
    if (json_read(text.bytes ? text.bytes : "", text.len, TEMPLATE_DEPTH_MAX, &all, e) ||
        json_read_known(all, known, e) || take_settings(all, out, e) ||
        take_template(all, "function", POD_FUNCTION, &out->function, out, e) ||
        take_template(all, "ps", POD_PS, &out->ps, out, e)) {
        kube_templates_free(out);
        return err_wrap(e, "%.120s", path);
    }
    return 0;
}

void kube_templates_free(kube_templates *t)
{
    json_decref(t->function);
    json_decref(t->ps);
    json_decref(t->owner);
    *t = (kube_templates){0};
}

static bool is_gpu(const kube_templates *t, const char *resource)
{
    if (t->gpu_resource[0])
        return strcmp(resource, t->gpu_resource) == 0;
    return (t->slots_resource[0] && strcmp(resource, t->slots_resource) == 0) ||
           strstr(resource, "/gpu") || strstr(resource, "/mig-");
}

/* "requests" or "limits" of the program's container; NULL: none. */
static json_t *resources_of(const json_t *template, const char *which)
{
    const json_t *first =
        json_array_get(json_object_get(json_object_get(template, "spec"), "containers"), 0);
    return json_object_get(json_object_get(first, "resources"), which);
}

int kube_templates_gpu(const kube_templates *t, char *resource, size_t bytes)
{
    const char *key;
    json_t *value;
    snprintf(resource, bytes, "%s", "");
    json_object_foreach (resources_of(t->function, "limits"), key, value) {
        const char *text = json_string_value(value);
        long count = json_is_integer(value) ? (long)json_integer_value(value)
                     : text                 ? strtol(text, NULL, 10)
                                            : 0;
        if (!is_gpu(t, key) || count < 1)
            continue;
        snprintf(resource, bytes, "%s", key);
        return count < INT32_MAX ? (int)count : INT32_MAX;
    }
    return 0;
}

/* 2, "1.5", "2500m"; 0: an unknown form. */
static double cpus_of(const json_t *quantity)
{
    const char *text = json_string_value(quantity);
    char *end;
    if (!text)
        return json_number_value(quantity);
    double n = strtod(text, &end);
    return strcmp(end, "m") == 0 ? n / 1000 : *end ? 0 : n;
}

int kube_templates_cpus(const kube_templates *t)
{
    const json_t *cpu = json_object_get(resources_of(t->function, "limits"), "cpu");
    double n = cpus_of(cpu ? cpu : json_object_get(resources_of(t->function, "requests"), "cpu"));
    return !(n >= 1) ? 1 : n < INT32_MAX ? (int)n : INT32_MAX;
}

/* ---- making ---------------------------------------------------------------------------------- */

static json_t *child(json_t *object, const char *key)
{
    json_t *inner = json_object_get(object, key);
    if (!json_is_object(inner)) {
        inner = json_object();
        json_object_set_new(object, key, inner);
    }
    return json_object_get(object, key);
}

static void harden_containers(json_t *spec, const char *list)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(spec, list), i, one) {
        json_t *security = child(one, "securityContext");
        json_object_set_new(security, "allowPrivilegeEscalation", json_false());
        json_object_set_new(security, "readOnlyRootFilesystem", json_true());
        json_object_set_new(security, "runAsNonRoot", json_true());
        json_object_set_new(security, "capabilities", json_pack("{s:[s]}", "drop", "ALL"));
        if (!json_object_get(one, "terminationMessagePolicy"))
            json_object_set_new(one, "terminationMessagePolicy",
                                json_string("FallbackToLogsOnError"));
    }
}

static void harden(json_t *spec)
{
    json_t *security = child(spec, "securityContext");
    json_object_set_new(security, "runAsNonRoot", json_true());
    json_object_set_new(security, "seccompProfile", json_pack("{s:s}", "type", "RuntimeDefault"));
    json_object_set_new(spec, "automountServiceAccountToken", json_false());
    json_object_set_new(spec, "enableServiceLinks", json_false());
    json_object_set_new(spec, "restartPolicy", json_string("Never"));
    harden_containers(spec, "containers");
    harden_containers(spec, "initContainers");
}

json_t *kube_owner_reference(const char *version, const char *kind, const char *name,
                             const char *uid)
{
    return json_pack("[{s:s, s:s, s:s, s:s, s:b}]", "apiVersion", version, "kind", kind, "name",
                     name, "uid", uid, "controller", 1);
}

json_t *kube_pod_build(const kube_templates *t, const char *name, pod_role role,
                       const char *owner_uid)
{
    json_t *object = json_deep_copy(role == POD_PS ? t->ps : t->function);
    if (!object)
        return NULL;
    json_t *meta = child(object, "metadata"), *labels = child(meta, "labels");
    json_object_set_new(object, "apiVersion", json_string("v1"));
    json_object_set_new(object, "kind", json_string("Pod"));
    json_object_set_new(meta, "name", json_string(name));
    json_object_set_new(labels, "app.kubernetes.io/managed-by", json_string("kubeml"));
    json_object_set_new(labels, KUBE_LABEL_INSTALL, json_string(t->install));
    json_object_set_new(labels, KUBE_LABEL_ROLE, json_string(role == POD_PS ? "ps" : "function"));
    json_object_set_new(labels, KUBE_LABEL_STATE, json_string("warm"));
    if (t->owner && *owner_uid)
        json_object_set_new(meta, "ownerReferences",
                            kube_owner_reference(text_of(t->owner, "apiVersion"),
                                                 text_of(t->owner, "kind"),
                                                 text_of(t->owner, "name"), owner_uid));
    harden(child(object, "spec"));
    return object;
}

void kube_pod_avoid(json_t *object, json_t *nodes)
{
    json_t *affinity = child(child(child(object, "spec"), "affinity"), "nodeAffinity");
    json_t *list = json_object_get(affinity, "preferredDuringSchedulingIgnoredDuringExecution");
    if (!json_array_size(nodes))
        return;
    if (!list) {
        list = json_array();
        json_object_set_new(affinity, "preferredDuringSchedulingIgnoredDuringExecution", list);
    }
    /* One requirement for each node: the API server allows one value in a requirement on a
     * field. */
    json_t *fields = json_array(), *node;
    size_t i;
    json_array_foreach(nodes, i, node)
        json_array_append_new(fields, json_pack("{s:s, s:s, s:[O]}", "key", "metadata.name",
                                                "operator", "NotIn", "values", node));
    json_array_append_new(
        list, json_pack("{s:i, s:{s:o}}", "weight", 100, "preference", "matchFields", fields));
}

const char *kube_pod_node(const json_t *object)
{
    return text_of(json_object_get(object, "spec"), "nodeName");
}

static void patch_add(json_t *patch, const char *op, const char *path, json_t *value)
{
    json_array_append_new(patch,
                          json_pack("{s:s, s:s, s:o}", "op", op, "path", path, "value", value));
}

/* Whether a text can be a label's value. Older names of MIG slices cannot. */
static bool is_label(const char *text)
{
    static const char ends[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t len = strlen(text);
    return len > 0 && len < 64 && strchr(ends, text[0]) && strchr(ends, text[len - 1]) &&
           strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_.") == len;
}

static void add_gpu(json_t *patch, const cluster_gpu *gpu)
{
    if (!gpu || !is_label(gpu->id))
        return;
    patch_add(patch, "add", "/metadata/labels/kubeml.dev~1gpu", json_string(gpu->id));
    patch_add(patch, "add", "/metadata/labels/kubeml.dev~1gpu-bytes",
              json_sprintf("%" PRIu64, gpu->memory_bytes));
    if (gpu->mps)
        patch_add(patch, "add", "/metadata/labels/kubeml.dev~1gpu-mps", json_string("true"));
}

json_t *kube_pod_assignment(const char *job, int function, int incarnation, const cluster_gpu *gpu,
                            const json_t *owner)
{
    json_t *patch = json_array();
    if (!patch)
        return NULL;
    patch_add(patch, "test", "/metadata/labels/kubeml.dev~1state", json_string("warm"));
    patch_add(patch, "test", "/metadata/deletionTimestamp", json_null());
    patch_add(patch, "replace", "/metadata/labels/kubeml.dev~1state", json_string("job"));
    patch_add(patch, "add", "/metadata/labels/kubeml.dev~1job", json_string(job));
    if (function >= 0)
        patch_add(patch, "add", "/metadata/labels/kubeml.dev~1function",
                  json_sprintf("%d", function));
    patch_add(patch, "add", "/metadata/labels/kubeml.dev~1incarnation",
              json_sprintf("%d", incarnation));
    add_gpu(patch, gpu);
    if (owner)
        patch_add(patch, "add", "/metadata/ownerReferences", json_deep_copy(owner));
    return patch;
}

static int label_number(const json_t *object, const char *key, int otherwise)
{
    const char *text = kube_object_label(object, key);
    char *end;
    long n = strtol(text, &end, 10);
    return end == text || *end || n < 0 || n > INT32_MAX ? otherwise : (int)n;
}

bool kube_pod_is_given(const json_t *object, const char *job, int function, int incarnation)
{
    return strcmp(kube_object_label(object, KUBE_LABEL_JOB), job) == 0 &&
           label_number(object, KUBE_LABEL_FUNCTION, -1) == (function < 0 ? -1 : function) &&
           label_number(object, KUBE_LABEL_INCARNATION, -1) == incarnation;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void because(pod *out, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void because(pod *out, const char *reason, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out->message, sizeof out->message, fmt, args);
    va_end(args);
    snprintf(out->reason, sizeof out->reason, "%.*s", (int)sizeof out->reason - 1, reason);
}

static const json_t *condition(const json_t *status, const char *type)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(status, "conditions"), i, one) {
        if (strcmp(text_of(one, "type"), type) == 0)
            return one;
    }
    return NULL;
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The end of the container runtime's message: the cause comes last, after how it got there. */
static const char *cause_of(const char *message)
{
    enum { SHOWN = 150 };
    size_t len = strlen(message);
    const char *from = len > SHOWN ? message + len - SHOWN : message;
    const char *word = from == message ? NULL : strchr(from, ' ');
    return word ? word + 1 : from;
}

/* Why a container is not running yet; ContainerCreating is no reason. */
static void read_waiting(const json_t *container, pod *out)
{
    const json_t *waiting = json_object_get(json_object_get(container, "state"), "waiting");
    const char *reason = text_of(waiting, "reason"), *message = text_of(waiting, "message");
    if (!waiting || !*reason || strcmp(reason, "ContainerCreating") == 0 ||
        strcmp(reason, "PodInitializing") == 0)
        return;
    if (starts(reason, "ErrImage") || starts(reason, "ImagePull") ||
        strcmp(reason, "InvalidImageName") == 0)
        because(out, "ImageNotPulled", "the image %.80s cannot be pulled: %.150s",
                text_of(container, "image"), *message ? cause_of(message) : reason);
    else
        because(out, reason, "container %.40s waits: %s %.150s", text_of(container, "name"), reason,
                message);
}

static void read_end(const json_t *container, pod *out)
{
    const json_t *end = json_object_get(json_object_get(container, "state"), "terminated");
    int status = (int)json_integer_value(json_object_get(end, "exitCode"));
    const char *name = text_of(container, "name"), *reason = text_of(end, "reason");
    if (!end || (out->phase == POD_ENDED && status == 0))
        return;
    out->phase = POD_ENDED;
    out->exit_status = status;
    out->signal = status > 128 && status < 128 + 65 ? status - 128 : 0;
    const char *signal_name = out->signal ? sigabbrev_np(out->signal) : NULL;
    const char *what = exit_cause_reason(status, out->signal, out->role == POD_FUNCTION);
    if (strcmp(reason, "OOMKilled") == 0)
        because(out, "OutOfMemory", "container %.40s was killed for memory: it is over its limit",
                name);
    else if (out->signal)
        because(out, what, "container %.40s ended by SIG%s", name, signal_name ? signal_name : "?");
    else
        because(out, what, "container %.40s exited with status %d", name, status);
}

/* Whether a container is a sidecar, which the kubelet restarts: its end is not the pod's. */
static bool is_beside(const json_t *object, const char *name)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(object, "spec"), "initContainers"), i, one) {
        if (strcmp(text_of(one, "name"), name) == 0)
            return strcmp(text_of(one, "restartPolicy"), "Always") == 0;
    }
    return false;
}

static void read_containers(const json_t *object, const char *list, bool ends, pod *out)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(object, "status"), list), i, one) {
        const json_t *end = json_object_get(json_object_get(one, "state"), "terminated");
        read_waiting(one, out);
        /* an init container that exits with 0 has not failed */
        bool failed = end && json_integer_value(json_object_get(end, "exitCode")) != 0;
        if (end && (ends || (failed && !is_beside(object, text_of(one, "name")))))
            read_end(one, out);
    }
}

/* Whether the node controller has lost the node: the pod is not ready although its containers, as
 * last heard, are. */
static bool node_is_lost(const json_t *status)
{
    const json_t *ready = condition(status, "Ready");
    json_t *one;
    size_t i, up = 0, count = json_array_size(json_object_get(status, "containerStatuses"));
    json_array_foreach(json_object_get(status, "containerStatuses"), i, one) {
        up += json_is_true(json_object_get(one, "ready"));
    }
    return ready && strcmp(text_of(ready, "status"), "True") != 0 && count && up == count &&
           !*text_of(ready, "reason");
}

/* Of "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 ..." takes the first sentence;
 * the rest is about other pods. */
static void not_scheduled(const json_t *scheduled, pod *out)
{
    const char *reason = text_of(scheduled, "reason"), *message = text_of(scheduled, "message");
    const char *end = strstr(message, ". ");
    int len = end && end - message < 200 ? (int)(end - message) : 200;
    because(out, *reason ? reason : "Unschedulable", "no node takes the pod: %.*s", len, message);
}

/* Kubernetes ends the pod: a drain, an eviction, or a pod of higher priority. */
static void disrupted(const json_t *target, const char *node, pod *out)
{
    because(out, text_of(target, "reason"), "node %.80s: %.150s", node, text_of(target, "message"));
}

/* Whether the node's kubelet has accepted the pod, which it reports before it pulls an image. A
 * lost node does not. */
static bool is_taken(const json_t *status)
{
    return *text_of(status, "startTime") ||
           json_array_size(json_object_get(status, "containerStatuses")) > 0 ||
           json_array_size(json_object_get(status, "initContainerStatuses")) > 0;
}

static void read_phase(const json_t *object, pod *out)
{
    const json_t *status = json_object_get(object, "status"),
                 *scheduled = condition(status, "PodScheduled");
    const json_t *target = condition(status, "DisruptionTarget");
    const char *phase = text_of(status, "phase"),
               *node = text_of(json_object_get(object, "spec"), "nodeName");
    out->phase = strcmp(phase, "Running") == 0 ? POD_RUNNING : POD_PENDING;
    out->untaken = out->phase == POD_PENDING && *node && !is_taken(status);
    if (scheduled && strcmp(text_of(scheduled, "status"), "False") == 0)
        not_scheduled(scheduled, out);
    read_containers(object, "initContainerStatuses", false, out);
    read_containers(object, "containerStatuses", true, out);
    if (strcmp(phase, "Failed") == 0 || strcmp(phase, "Succeeded") == 0) {
        const char *reason = text_of(status, "reason");
        out->phase = POD_ENDED;
        if (*reason)
            because(out, reason, "%s: %.200s", reason, text_of(status, "message"));
        else if (!out->reason[0])
            because(out, "Exited", "the pod is over: %s", phase);
    } else if (out->phase == POD_RUNNING && node_is_lost(status)) {
        out->phase = POD_ENDED;
        because(out, "NodeLost", "node %.100s does not answer any more", node);
    } else if (target && out->phase == POD_RUNNING &&
               *kube_object_text(object, "deletionTimestamp")) {
        disrupted(target, node, out);
    }
    /* the signal only carried the disruption out */
    if (target && (out->signal == SIGTERM || out->signal == SIGKILL))
        disrupted(target, node, out);
}

static void read_gpu(const json_t *object, cluster_gpu *out)
{
    const char *id = kube_object_label(object, KUBE_LABEL_GPU);
    const char *bytes = kube_object_label(object, KUBE_LABEL_GPU_BYTES);
    char *end;
    unsigned long long n = strtoull(bytes, &end, 10);
    if (!*id || end == bytes || *end || n == 0 || strlen(id) >= sizeof out->id)
        return;
    snprintf(out->id, sizeof out->id, "%s", id);
    out->memory_bytes = n;
    out->mps = strcmp(kube_object_label(object, KUBE_LABEL_GPU_MPS), "true") == 0;
}

int kube_pod_read(const json_t *object, int port, pod *out, err *e)
{
    const char *name = kube_object_text(object, "name");
    const char *role = kube_object_label(object, KUBE_LABEL_ROLE);
    const char *ip = text_of(json_object_get(object, "status"), "podIP");
    *out = (pod){.exit_status = -1, .role = strcmp(role, "ps") == 0 ? POD_PS : POD_FUNCTION};
    if (!*name || strlen(name) >= sizeof out->name ||
        (out->role == POD_FUNCTION && strcmp(role, "function") != 0))
        return err_set(e, ERR_INVALID, "pod %.100s is none of ours", name);
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->job, sizeof out->job, "%.*s", (int)sizeof out->job - 1,
             kube_object_label(object, KUBE_LABEL_JOB));
    out->function = label_number(object, KUBE_LABEL_FUNCTION, -1);
    out->incarnation = label_number(object, KUBE_LABEL_INCARNATION, -1);
    read_gpu(object, &out->gpu);
    read_phase(object, out);
    if (*ip && out->phase == POD_RUNNING)
        snprintf(out->address, sizeof out->address,
                 strchr(ip, ':') ? "tcp:[%.60s]:%d" : "tcp:%.60s:%d", ip, port);
    return 0;
}
