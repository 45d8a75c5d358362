/* test_cluster_kubernetes.c: pods of Kubernetes behind cluster.h, against a scripted API server:
 * none is lost or doubled whatever answer is lost, and each wait and end has its reason in
 * words. */
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "../../controller/cluster.h"
#include "../../controller/cluster_kubernetes.h"
#include "../../controller/kube_end.h"
#include "../../controller/kube_pods.h"
#include "clock.h"
#include "fake_kube.h"
#include "fs.h"
#include "json_read.h"
#include "test.h"

enum { WAIT_MS = 15000 };

#define SETTINGS "\"install\": \"here\", \"namespace\": \"test\", \"slots\": 6, \"port\": 4000,"
#define PODS                                                                                       \
    " \"function\": {\"metadata\": {\"labels\": {\"app\": \"x\"}}, \"spec\": {\"containers\": ["   \
    "{\"name\": \"function\", \"image\": \"localhost/f:1\"}]}},"                                   \
    " \"ps\": {\"spec\": {\"containers\": [{\"name\": \"ps\", \"image\": \"localhost/p:1\"}]}}"

static const char templates[] = "{" SETTINGS PODS "}";
static const char templates_with_ranks[] =
    "{" SETTINGS "\"rank_ports\": {\"first\": 50000, \"last\": 50999}," PODS "}";

typedef struct world {
    fake_kube *server;
    kube_config access;
    cluster *c;
    int late_ms; /* of the configuration */
} world;

static void open_cluster_of(world *w, const char *texts)
{
    char path[600];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/pods.json", test_tmp());
    CHECK_OK(fs_write_file(path, texts, strlen(texts), 0600, &e), e);
    cluster_kubernetes_config config = {
        .templates = path, .access = &w->access, .slots = 3, .late_ms = w->late_ms};
    CHECK_OK(cluster_open("kubernetes", &config, &w->c, &e), e);
}

static void open_cluster(world *w)
{
    open_cluster_of(w, templates);
}

static void open_world_of(world *w, const char *texts)
{
    *w = (world){.server = fake_kube_start()};
    w->access.server = strdup(fake_kube_url(w->server));
    open_cluster_of(w, texts);
}

static void open_world(world *w)
{
    open_world_of(w, templates);
}

static void close_world(world *w)
{
    w->c->ops->close(w->c, false);
    fake_kube_stop(w->server);
    kube_config_free(&w->access);
}

static void start(world *w, const char *name, pod_role role)
{
    pod_spec spec = {.role = role};
    pod p;
    err e = ERR_INIT;
    snprintf(spec.name, sizeof spec.name, "%s", name);
    CHECK_OK(w->c->ops->start(w->c, &spec, &p, &e), e);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK_STR(p.address, "");
}

static pod next_event(world *w)
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
static json_t *wait_pod(world *w, const char *name, bool there)
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

static void drop_pod(json_t *object)
{
    json_decref(object);
}

static void runs(world *w, const char *name)
{
    drop_pod(wait_pod(w, name, true));
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:s, s:s}}", "status", "phase", "Running", "podIP", "10.1.2.3"));
    pod p = next_event(w);
    CHECK_STR(p.name, name);
    CHECK_INT(p.phase, POD_RUNNING);
    CHECK_STR(p.address, "tcp:10.1.2.3:4000");
}

static void start_running(world *w, const char *name, pod_role role)
{
    start(w, name, role);
    runs(w, name);
}

static void open_with(world *w, const char *name, pod_role role)
{
    open_world(w);
    start_running(w, name, role);
}

/* With kubeml-ps's pod, which is job7's. */
static void open_with_ps(world *w, const char *texts)
{
    err e = ERR_INIT;
    open_world_of(w, texts);
    start_running(w, "ps-1", POD_PS);
    CHECK_OK(w->c->ops->assign(w->c, "ps-1", "job7", -1, 0, NULL, &e), e);
}

static json_t *dig(const json_t *from, const char *path)
{
    char copy[200], *rest = copy, *part;
    json_t *at = (json_t *)(uintptr_t)from;
    snprintf(copy, sizeof copy, "%s", path);
    while ((part = strsep(&rest, "|")))
        at = json_is_array(at) ? json_array_get(at, (size_t)atol(part)) : json_object_get(at, part);
    return at;
}

TEST(a_pod_is_made_hardened_and_answers_with_its_address)
{
    world w;
    open_with(&w, "function-1", POD_FUNCTION);
    cleanup_json json_t *made = wait_pod(&w, "function-1", true);
    CHECK_STR(json_string_value(dig(made, "metadata|labels|kubeml.dev/state")), "warm");
    CHECK_STR(json_string_value(dig(made, "metadata|labels|app")), "x");
    CHECK_STR(json_string_value(dig(made, "spec|restartPolicy")), "Never");
    CHECK(json_is_false(dig(made, "spec|automountServiceAccountToken")));
    CHECK_STR(json_string_value(dig(made, "spec|securityContext|seccompProfile|type")),
              "RuntimeDefault");
    CHECK(json_is_true(dig(made, "spec|containers|0|securityContext|readOnlyRootFilesystem")));
    CHECK_STR(json_string_value(dig(made, "spec|containers|0|securityContext|capabilities|drop|0")),
              "ALL");
    int slots = 0;
    err e = ERR_INIT;
    CHECK_OK(w.c->ops->slots(w.c, &slots, &e), e);
    CHECK_INT(slots, 6);
    close_world(&w);
}

TEST(a_lost_answer_doubles_nothing)
{
    world w;
    open_world(&w);
    fake_kube_leave_out_events(w.server, true); /* the watch does not save us */
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_DONE_DROP, 0, 0, 1);
    start(&w, "function-1", POD_FUNCTION);
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (fake_kube_requests(w.server, FAKE_CREATE) < 2) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK_STR(p.reason, "ApiServerUnavailable");
    cleanup_json json_t *all = fake_kube_copy(w.server);
    CHECK_INT(json_object_size(all), 1);
    pod list[4];
    size_t count = 0;
    err e = ERR_INIT;
    CHECK_OK(w.c->ops->list(w.c, list, 4, &count, &e), e);
    CHECK_INT(count, 1);
    close_world(&w);
}

TEST(a_spent_quota_is_waited_for)
{
    world w;
    open_world(&w);
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_QUOTA, 0, 0, 2);
    start(&w, "function-1", POD_FUNCTION);
    pod p = next_event(&w); /* while it is tried again */
    CHECK_INT(p.phase, POD_PENDING);
    CHECK_STR(p.reason, "QuotaExceeded");
    CHECK_CONTAINS(p.message, "exceeded quota: small");
    drop_pod(wait_pod(&w, "function-1", true));
    CHECK_INT(fake_kube_requests(w.server, FAKE_CREATE), 3);
    close_world(&w);
}

TEST(a_template_that_the_server_refuses_ends_the_pod)
{
    world w;
    open_world(&w);
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_STATUS, 422, -1, 1);
    start(&w, "function-1", POD_FUNCTION);
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_STR(p.reason, "PodRefused");
    CHECK_CONTAINS(p.message, "as the test says");
    close_world(&w);
}

static void put_status(world *w, const char *name, json_t *status)
{
    fake_kube_put(w->server, name, json_pack("{s:o}", "status", status));
}

TEST(a_pod_that_is_slow_to_be_made_says_so)
{
    world w;
    open_world(&w);
    start(&w, "function-1", POD_FUNCTION);
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK_STR(p.reason, "ContainerCreating");
    CHECK_CONTAINS(p.message, "localhost/f:1");
    close_world(&w);
}

TEST(each_wait_has_its_reason)
{
    world w;
    open_world(&w);
    start(&w, "function-1", POD_FUNCTION);
    drop_pod(wait_pod(&w, "function-1", true));
    put_status(
        &w, "function-1",
        json_pack("{s:[{s:s, s:s, s:s, s:s}]}", "conditions", "type", "PodScheduled", "status",
                  "False", "reason", "Unschedulable", "message",
                  "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes "
                  "are available: 1 No preemption victims found for incoming pod."));
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK_STR(p.reason, "Unschedulable");
    CHECK_STR(p.message,
              "no node takes the pod: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu");
    put_status(&w, "function-1",
               json_pack("{s:[], s:[{s:s, s:s, s:{s:{s:s, s:s}}}]}", "conditions",
                         "containerStatuses", "name", "function", "image", "nowhere/f:1", "state",
                         "waiting", "reason", "ErrImagePull", "message", "no such host"));
    p = next_event(&w);
    CHECK_STR(p.reason, "ImageNotPulled");
    CHECK_CONTAINS(p.message, "nowhere/f:1 cannot be pulled: no such host");
    put_status(&w, "function-1",
               json_pack("{s:[], s:[{s:s, s:s, s:{s:{s:s, s:s}}}]}", "conditions",
                         "containerStatuses", "name", "function", "image", "nowhere/f:1", "state",
                         "waiting", "reason", "ErrImagePull", "message",
                         "rpc error: code = NotFound desc = failed to pull and unpack image "
                         "\"nowhere/f:1\": failed to resolve reference \"nowhere/f:1\": failed to "
                         "authorize: failed to fetch anonymous token: 403 Forbidden"));
    p = next_event(&w);
    CHECK_CONTAINS(p.message, "nowhere/f:1 cannot be pulled: ");
    CHECK_CONTAINS(p.message, "anonymous token: 403 Forbidden"); /* the cause comes last */
    put_status(&w, "function-1",
               json_pack("{s:s, s:s, s:[{s:s, s:b, s:{s:{}}}], s:[{s:s, s:s}]}", "phase", "Running",
                         "podIP", "10.0.0.1", "containerStatuses", "name", "function", "ready", 1,
                         "state", "running", "conditions", "type", "Ready", "status", "True"));
    p = next_event(&w);
    CHECK_INT(p.phase, POD_RUNNING);
    CHECK_STR(p.reason, "");
    put_status(&w, "function-1",
               json_pack("{s:[{s:s, s:s}]}", "conditions", "type", "Ready", "status", "False"));
    p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_STR(p.reason, "NodeLost");
    close_world(&w);
}

TEST(a_container_beside_the_others_may_end_and_come_back)
{
    world w;
    open_with(&w, "ps-1", POD_PS);
    fake_kube_put(w.server, "ps-1",
                  json_pack("{s:{s:[{s:s, s:s, s:s}]}, s:{s:[{s:s, s:{s:{s:i, s:s}}}]}}", "spec",
                            "initContainers", "name", "redis", "image", "localhost/p:1",
                            "restartPolicy", "Always", "status", "initContainerStatuses", "name",
                            "redis", "state", "terminated", "exitCode", 137, "reason", "Error"));
    put_status(&w, "ps-1",
               json_pack("{s:[{s:s, s:{s:{s:s, s:s}}}]}", "initContainerStatuses", "name", "redis",
                         "state", "waiting", "reason", "CrashLoopBackOff", "message",
                         "back-off 10s"));
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_RUNNING);
    CHECK_STR(p.reason, "CrashLoopBackOff");
    put_status(&w, "ps-1",
               json_pack("{s:[{s:s, s:{s:{s:i, s:s}}}]}", "containerStatuses", "name", "ps",
                         "state", "terminated", "exitCode", 1, "reason", "Error"));
    p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_CONTAINS(p.message, "container ps exited");
    close_world(&w);
}

static void ends(world *w, const char *name, int status, const char *reason)
{
    put_status(w, name,
               json_pack("{s:s, s:[{s:s, s:{s:{s:i, s:s}}}]}", "phase", "Failed",
                         "containerStatuses", "name", "function", "state", "terminated", "exitCode",
                         status, "reason", reason));
}

TEST(each_end_has_its_reason)
{
    static const struct {
        int status, signal;
        const char *said, *reason, *words;
    } known[] = {{3, 0, "Error", "Crashed", "status 3"},
                 {137, 9, "OOMKilled", "OutOfMemory", "over its limit"},
                 {143, 15, "Error", "Killed", "SIGTERM"},
                 {139, 11, "Error", "Crashed", "SIGSEGV"},
                 {75, 0, "Error", "Exited", "status 75"},
                 {128, 0, "StartError", "Exited", "status 128"}};
    world w;
    char name[24];
    open_world(&w);
    for (int i = 0; i < (int)(sizeof known / sizeof *known); i++) {
        snprintf(name, sizeof name, "function-%d", i);
        start_running(&w, name, POD_FUNCTION);
        ends(&w, name, known[i].status, known[i].said);
        pod p = next_event(&w);
        CHECK_STR(p.name, name);
        CHECK_INT(p.phase, POD_ENDED);
        CHECK_INT(p.exit_status, known[i].status);
        CHECK_INT(p.signal, known[i].signal);
        CHECK_STR(p.reason, known[i].reason);
        CHECK_CONTAINS(p.message, known[i].words);
        err e = ERR_INIT;
        CHECK_OK(w.c->ops->stop(w.c, name, 0, &e), e); /* forgets it */
        drop_pod(wait_pod(&w, name, false));
    }
    close_world(&w);
}

TEST(a_disruption_is_the_reason_and_not_its_signal)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    CHECK_OK(w.c->ops->assign(w.c, "function-1", "job7", 0, 0, NULL, &e), e);
    put_status(&w, "function-1",
               json_pack("{s:s, s:[{s:s, s:{s:{s:i, s:s}}}], s:[{s:s, s:s, s:s, s:s}]}", "phase",
                         "Failed", "containerStatuses", "name", "function", "state", "terminated",
                         "exitCode", 143, "reason", "Error", "conditions", "type",
                         "DisruptionTarget", "status", "True", "reason", "EvictionByEvictionAPI",
                         "message", "Eviction API: evicting"));
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_STR(p.reason, "EvictionByEvictionAPI");
    CHECK_CONTAINS(p.message, "evicting");
    CHECK_INT(p.signal, SIGTERM);
    close_world(&w);
}

/* By its labels a controller that comes later knows where the pod is. */
TEST(a_pod_is_given_with_its_gpu)
{
    world w;
    err e = ERR_INIT;
    pod found[4];
    size_t count = 0;
    const cluster_gpu gpu = {"GPU-4f5a6b7c-0000-1111-2222-333344445555", 8589934592, true};
    const cluster_gpu no_label = {.id = "MIG-GPU-4f5a/1/0", .memory_bytes = 1};
    open_with(&w, "function-1", POD_FUNCTION);
    start_running(&w, "function-2", POD_FUNCTION);
    CHECK_OK(w.c->ops->assign(w.c, "function-1", "job7", 0, 0, &gpu, &e), e);
    CHECK_OK(w.c->ops->assign(w.c, "function-2", "job7", 1, 0, &no_label, &e), e);
    w.c->ops->close(w.c, false);
    open_cluster(&w);
    CHECK_OK(w.c->ops->list(w.c, found, 4, &count, &e), e);
    CHECK_INT(count, 2);
    for (size_t i = 0; i < count; i++) {
        bool first = strcmp(found[i].name, "function-1") == 0;
        CHECK_STR(found[i].gpu.id, first ? gpu.id : "");
        CHECK_INT(found[i].gpu.memory_bytes, first ? gpu.memory_bytes : 0);
        CHECK(found[i].gpu.mps == first);
        CHECK_INT(found[i].function, first ? 0 : 1);
    }
    close_world(&w);
}

TEST(a_pod_is_given_once)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    /* done, and the answer is lost */
    fake_kube_fault(w.server, FAKE_PATCH, FAULT_DONE_DROP, 0, 0, 1);
    CHECK_OK(w.c->ops->assign(w.c, "function-1", "job7", 2, 1, NULL, &e), e);
    cleanup_json json_t *made = wait_pod(&w, "function-1", true);
    CHECK_STR(json_string_value(dig(made, "metadata|labels|kubeml.dev/job")), "job7");
    CHECK_STR(json_string_value(dig(made, "metadata|labels|kubeml.dev/function")), "2");
    CHECK_ERR(w.c->ops->assign(w.c, "function-1", "job8", 0, 0, NULL, &e), e, ERR_CONFLICT,
              "given away");
    CHECK_ERR(w.c->ops->assign(w.c, "nobody", "job8", 0, 0, NULL, &e), e, ERR_UNAVAILABLE,
              "nobody");
    fake_kube_leave_out_events(w.server, true); /* nor one of which nobody here has heard that it ended */
    fake_kube_remove(w.server, "function-1");
    CHECK_ERR(w.c->ops->assign(w.c, "function-1", "job7", 0, 0, NULL, &e), e, ERR_UNAVAILABLE,
              "function-1");
    close_world(&w);
}

#define TRAINJOBS "/apis/kubeml.dev/v1alpha1/namespaces/test/trainjobs"

/* The TrainJob of job7, with that uid. */
static void put_train_job(world *w, const char *uid)
{
    fake_kube_set(w->server, TRAINJOBS,
                  json_pack("{s:[{s:{s:s, s:s, s:{s:s}}}]}", "items", "metadata", "name",
                            "job-job7", "uid", uid, "labels", KUBE_LABEL_JOB, "job7"));
}

/* The owner of a fresh pod that is given to job7; false: none. */
static bool gets_owner(world *w, int number, char uid[40])
{
    char name[24];
    err e = ERR_INIT;
    snprintf(name, sizeof name, "function-%d", number);
    start_running(w, name, POD_FUNCTION);
    CHECK_OK(w->c->ops->assign(w->c, name, "job7", number, 0, NULL, &e), e);
    cleanup_json json_t *made = wait_pod(w, name, true);
    const json_t *owner = dig(made, "metadata|ownerReferences|0");
    CHECK(!owner || json_is_true(json_object_get(owner, "controller")));
    const char *found = json_string_value(dig(made, "metadata|ownerReferences|0|uid"));
    snprintf(uid, 40, "%s", found ? found : "");
    return found != NULL;
}

/* A job of the API gets its TrainJob a moment after its first pods, and another one when it is
 * resumed after that was deleted: an owner that is no more would take the pod along. */
TEST(a_pod_is_owned_by_the_train_job_that_is_there)
{
    world w;
    char uid[40];
    int number = 0;
    open_world(&w);
    CHECK(!gets_owner(&w, number++, uid));
    put_train_job(&w, "first");
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (!gets_owner(&w, number++, uid)) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 20);
    }
    CHECK_STR(uid, "first");
    put_train_job(&w, "second");
    do {
        CHECK(gets_owner(&w, number++, uid));
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 20);
    } while (strcmp(uid, "second") != 0);
    close_world(&w);
}

TEST(a_train_job_that_is_not_told_at_once_is_asked_for_again)
{
    world w;
    char uid[40];
    open_world(&w);
    put_train_job(&w, "first");
    fake_kube_fault(w.server, FAKE_GET, FAULT_STATUS, 500, -1, 1);
    CHECK(gets_owner(&w, 0, uid));
    CHECK_INT(fake_kube_pending_faults(w.server), 0);
    close_world(&w);
}

static json_t *being_deleted(void)
{
    return json_pack("{s:{s:s}}", "metadata", "deletionTimestamp", "2026-01-01T00:00:00Z");
}

/* As by a drain of its node: its process may take all of its grace to end. */
TEST(a_warm_pod_that_is_being_deleted_has_ended)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    fake_kube_put(w.server, "function-1", being_deleted());
    pod p = next_event(&w);
    CHECK_STR(p.name, "function-1");
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_STR(p.reason, "Deleted");
    CHECK_ERR(w.c->ops->assign(w.c, "function-1", "job7", 0, 0, NULL, &e), e, ERR_UNAVAILABLE,
              "function-1");
    close_world(&w);
}

TEST(a_pod_that_is_being_deleted_is_given_to_no_job)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    fake_kube_leave_out_events(w.server, true); /* nobody here has heard of it yet */
    fake_kube_put(w.server, "function-1", being_deleted());
    CHECK_ERR(w.c->ops->assign(w.c, "function-1", "job7", 0, 0, NULL, &e), e, ERR_CONFLICT,
              "being deleted");
    close_world(&w);
}

/* Its process is asked to end, and what it does until then counts. */
TEST(a_pod_of_a_job_that_is_being_deleted_goes_on_until_it_ends)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    CHECK_OK(w.c->ops->assign(w.c, "function-1", "job7", 0, 0, NULL, &e), e);
    fake_kube_put(w.server, "function-1", being_deleted());
    ends(&w, "function-1", 75, "Error");
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_INT(p.exit_status, 75);
    close_world(&w);
}

/* `deleted`: when somebody else has deleted it, or NULL. */
static void runs_on(world *w, const char *name, const char *node, const char *deleted)
{
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:s*}, s:{s:s}, s:{s:s, s:s}}", "metadata", "deletionTimestamp",
                            deleted, "spec", "nodeName", node, "status", "phase", "Running",
                            "podIP", "10.1.2.3"));
    CHECK_INT(next_event(w).phase, POD_RUNNING);
}

static void give_up(world *w, const char *name, const char *node, const char *deleted)
{
    err e = ERR_INIT;
    start(w, name, POD_FUNCTION);
    drop_pod(wait_pod(w, name, true));
    CHECK_OK(w->c->ops->assign(w->c, name, "job7", 0, 0, NULL, &e), e);
    runs_on(w, name, node, deleted);
    CHECK_OK(w->c->ops->stop(w->c, name, 0, &e), e);
    CHECK_INT(next_event(w).phase, POD_ENDED);
}

#define AVOIDED                                                                                    \
    "spec|affinity|nodeAffinity|preferredDuringSchedulingIgnoredDuringExecution|0|preference|matchFields"

TEST(a_pod_that_is_given_up_is_deleted_at_once_and_its_node_avoided)
{
    world w;
    open_world(&w);
    give_up(&w, "ps-1", "node7", NULL);
    start(&w, "ps-2", POD_PS);
    cleanup_json json_t *made = wait_pod(&w, "ps-2", true);
    CHECK_STR(json_string_value(dig(made, AVOIDED "|0|values|0")), "node7");
    close_world(&w);
}

/* Each is a requirement of its own: the API server refuses one with two values, and every pod with
 * it. */
TEST(several_nodes_are_avoided)
{
    world w;
    open_world(&w);
    give_up(&w, "ps-1", "node7", NULL);
    give_up(&w, "ps-2", "node8", NULL);
    give_up(&w, "ps-3", "node7", NULL);
    start(&w, "ps-4", POD_PS);
    cleanup_json json_t *made = wait_pod(&w, "ps-4", true);
    CHECK_INT(json_array_size(dig(made, AVOIDED)), 2);
    CHECK_STR(json_string_value(dig(made, AVOIDED "|0|values|0")), "node7");
    CHECK_STR(json_string_value(dig(made, AVOIDED "|1|values|0")), "node8");
    close_world(&w);
}

static void place(world *w, const char *name, const char *node)
{
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:s}, s:{s:s}}", "spec", "nodeName", node, "status", "phase",
                            "Pending"));
}

static void placed(world *w, const char *name, const char *node)
{
    start(w, name, POD_FUNCTION);
    drop_pod(wait_pod(w, name, true));
    place(w, name, node);
}

TEST(what_is_being_made_on_a_silent_node_is_said_to_be)
{
    world w;
    err e = ERR_INIT;
    open_world(&w);
    placed(&w, "function-1", "node7");
    placed(&w, "function-2", "node8");
    start(&w, "ps-1", POD_PS);
    drop_pod(wait_pod(&w, "ps-1", true));
    runs_on(&w, "ps-1", "node7", NULL);
    CHECK_OK(w.c->ops->stop(w.c, "ps-1", 0, &e), e);
    pod first = next_event(&w), second = next_event(&w);
    const pod *doubted = first.phase == POD_ENDED ? &second : &first;
    CHECK_STR(doubted->name, "function-1");
    CHECK_INT(doubted->phase, POD_PENDING);
    CHECK_STR(doubted->reason, CLUSTER_NODE_SILENT);
    close_world(&w);
}

/* One that was made later is kept from that node; where it lands there all the same there is no
 * other, and it is waited for. */
TEST(what_was_made_before_a_node_fell_silent_is_doubted_when_it_is_placed_there)
{
    world w;
    open_world(&w);
    start(&w, "function-1", POD_FUNCTION);
    drop_pod(wait_pod(&w, "function-1", true));
    give_up(&w, "ps-1", "node7", NULL);
    start(&w, "function-2", POD_FUNCTION);
    drop_pod(wait_pod(&w, "function-2", true));
    place(&w, "function-2", "node7");
    place(&w, "function-1", "node7");
    pod doubted = next_event(&w);
    CHECK_STR(doubted.name, "function-1");
    CHECK_STR(doubted.reason, CLUSTER_NODE_SILENT);
    close_world(&w);
}

TEST(a_pod_that_is_never_made_is_given_up_and_its_node_avoided)
{
    world w;
    err e = ERR_INIT;
    open_world(&w);
    placed(&w, "function-1", "node7");
    start(&w, "ps-1", POD_PS); /* what is seen of it is seen after that */
    drop_pod(wait_pod(&w, "ps-1", true));
    runs_on(&w, "ps-1", "node8", NULL);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 0, &e), e);
    start(&w, "ps-2", POD_PS);
    cleanup_json json_t *made = wait_pod(&w, "ps-2", true);
    CHECK_STR(json_string_value(dig(made, AVOIDED "|0|values|0")), "node7");
    close_world(&w);
}

TEST(a_pod_that_somebody_deleted_says_nothing_of_its_node)
{
    world w;
    open_world(&w);
    give_up(&w, "ps-1", "node7", "2026-01-01T00:00:00Z");
    start(&w, "ps-2", POD_PS);
    cleanup_json json_t *made = wait_pod(&w, "ps-2", true);
    CHECK(!dig(made, AVOIDED));
    close_world(&w);
}

TEST(slots_are_counted_on_the_nodes)
{
    static const char counted[] =
        "{\"install\": \"here\", \"namespace\": \"test\", \"slots_resource\": \"nvidia.com/gpu\","
        " \"function\": {\"spec\": {\"containers\": [{\"name\": \"f\", \"image\": \"f\","
        " \"resources\": {\"limits\": {\"nvidia.com/gpu\": \"2\"}}}]}},"
        " \"ps\": {\"spec\": {\"containers\": [{\"name\": \"ps\", \"image\": \"p\"}]}}}";
    world w = {.server = fake_kube_start()};
    char path[600];
    int slots = 0;
    err e = ERR_INIT;
    w.access.server = strdup(fake_kube_url(w.server));
    snprintf(path, sizeof path, "%s/counted.json", test_tmp());
    CHECK_OK(fs_write_file(path, counted, strlen(counted), 0600, &e), e);
    cluster_kubernetes_config config = {.templates = path, .access = &w.access, .slots = 3,
                                        .slots_every_ms = 20};
    CHECK_OK(cluster_open("kubernetes", &config, &w.c, &e), e);
    CHECK_ERR(w.c->ops->slots(w.c, &slots, &e), e, ERR_NOT_FOUND, "slots from nvidia.com/gpu need");
    /* One shares its two GPUs four times, one has none, one is drained; a function takes two shares
     * of one node. */
    fake_kube_set(w.server, "/api/v1/nodes",
                  json_pack("{s:[{s:{s:{s:s}}}, {s:{s:{s:s}}}, {s:{s:b}, s:{s:{s:s}}}]}", "items",
                            "status", "allocatable", "nvidia.com/gpu", "9", "status", "allocatable",
                            "cpu", "4", "spec", "unschedulable", 1, "status", "allocatable",
                            "nvidia.com/gpu", "4"));
    err_clear(&e);
    CHECK_OK(w.c->ops->slots(w.c, &slots, &e), e);
    CHECK_INT(slots, 4);
    /* Another node joins. */
    fake_kube_set(w.server, "/api/v1/nodes",
                  json_pack("{s:[{s:{s:{s:s}}}, {s:{s:{s:s}}}]}", "items", "status", "allocatable",
                            "nvidia.com/gpu", "9", "status", "allocatable", "nvidia.com/gpu", "3"));
    pod none;
    struct pollfd wait = {.fd = w.c->ops->event_fd(w.c), .events = POLLIN};
    CHECK(poll(&wait, 1, WAIT_MS) == 1);
    CHECK_INT(w.c->ops->next_event(w.c, &none, &e), 0);
    CHECK_OK(w.c->ops->slots(w.c, &slots, &e), e);
    CHECK_INT(slots, 5);
    CHECK(!w.c->ops->gpus); /* the device plugin places */
    CHECK_INT(w.c->ops->pod_gpus(w.c), 2);
    close_world(&w);
}

static int cpus_of(const char *resources)
{
    char path[600], text[1000];
    kube_templates t;
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/cpus.json", test_tmp());
    snprintf(text, sizeof text,
             "{\"install\": \"here\", \"function\": {\"spec\": {\"containers\": [{\"name\": \"f\","
             " \"image\": \"f\", \"resources\": %s}, {\"name\": \"beside\", \"image\": \"b\","
             " \"resources\": {\"limits\": {\"cpu\": \"9\"}}}]}},"
             " \"ps\": {\"spec\": {\"containers\": [{\"name\": \"ps\", \"image\": \"p\"}]}}}",
             resources);
    CHECK_OK(fs_write_file(path, text, strlen(text), 0600, &e), e);
    CHECK_OK(kube_templates_read(path, &t, &e), e);
    int cpus = kube_templates_cpus(&t);
    kube_templates_free(&t);
    return cpus;
}

/* Not of the node that the controller is on. */
TEST(the_cpus_of_a_function_are_its_pods)
{
    CHECK_INT(cpus_of("{\"requests\": {\"cpu\": \"500m\"}, \"limits\": {\"cpu\": \"2\"}}"), 2);
    CHECK_INT(cpus_of("{\"limits\": {\"cpu\": 3}}"), 3);
    CHECK_INT(cpus_of("{\"limits\": {\"cpu\": 1.5}}"), 1);
    CHECK_INT(cpus_of("{\"limits\": {\"cpu\": \"3.9\"}}"), 3);
    CHECK_INT(cpus_of("{\"limits\": {\"cpu\": \"2900m\"}}"), 2);
    CHECK_INT(cpus_of("{\"limits\": {\"cpu\": \"100m\"}}"), 1);
    CHECK_INT(cpus_of("{\"requests\": {\"cpu\": \"4\"}, \"limits\": {\"memory\": \"2Gi\"}}"), 4);
    CHECK_INT(cpus_of("{\"requests\": {\"cpu\": \"250m\"}}"), 1);
    CHECK_INT(cpus_of("{}"), 1);
    CHECK_INT(cpus_of("{\"limits\": {\"cpu\": \"many\"}}"), 1);
    world w;
    open_world_of(&w, templates);
    CHECK_INT(w.c->ops->cpus(w.c), 1);
    CHECK(w.c->ops->pods_own_cpus);
    close_world(&w);
}

TEST(a_ps_gets_its_policy)
{
    world w;
    open_with_ps(&w, templates);
    cleanup_json json_t *policy = fake_kube_object(
        w.server, "/apis/networking.k8s.io/v1/namespaces/test/networkpolicies/here-ps-1");
    CHECK(policy);
    CHECK_STR(json_string_value(dig(policy, "metadata|ownerReferences|0|name")), "ps-1");
    CHECK_STR(json_string_value(
                  dig(policy, "spec|ingress|0|from|0|podSelector|matchLabels|kubeml.dev/job")),
              "job7");
    CHECK_INT(json_integer_value(dig(policy, "spec|ingress|0|ports|1|port")), 6379);
    /* Redis is not the controller's */
    CHECK_INT(json_array_size(dig(policy, "spec|ingress|1|ports")), 1);
    cleanup_json json_t *service =
        fake_kube_object(w.server, "/api/v1/namespaces/test/services/here-ps-1");
    CHECK_STR(json_string_value(dig(service, "spec|selector|kubeml.dev/job")), "job7");
    CHECK_STR(json_string_value(dig(service, "metadata|ownerReferences|0|name")), "ps-1");

    static const char at[] = "/api/v1/namespaces/test/secrets/here-ps-1";
    cleanup_json json_t *access =
        json_pack("{s:s, s:s, s:s, s:s}", "kind", "redis", "address", "tcp:10.0.0.7:6379", "user",
                  "function", "password", "sesame");
    CHECK(fake_kube_object(w.server, at) == NULL);
    /* done, and not heard: it is there already */
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_DONE_DROP, 0, 0, 1);
    w.c->ops->publish(w.c, "ps-1", "job7", access);
    w.c->ops->publish(w.c, "ps-1", "job7", access);
    cleanup_json json_t *secret = fake_kube_object(w.server, at);
    CHECK_STR(json_string_value(dig(secret, "kind")), "Secret");
    CHECK_STR(json_string_value(dig(secret, "metadata|labels|kubeml.dev/job")), "job7");
    CHECK_STR(json_string_value(dig(secret, "metadata|ownerReferences|0|name")), "ps-1");
    CHECK_STR(json_string_value(dig(secret, "stringData|address")), "10.0.0.7:6379");
    CHECK_STR(json_string_value(dig(secret, "stringData|user")), "function");
    CHECK_STR(json_string_value(dig(secret, "stringData|password")), "sesame");
    CHECK_STR(json_string_value(dig(secret, "stringData|url")),
              "redis://function:sesame@10.0.0.7:6379");
    w.c->ops->publish(w.c, "ps-0", "job7", access); /* no such pod: nothing is made */
    CHECK(fake_kube_object(w.server, "/api/v1/namespaces/test/secrets/here-ps-0") == NULL);
    close_world(&w);
}

#define POLICY  "/apis/networking.k8s.io/v1/namespaces/test/networkpolicies/here-ps-1"
#define SERVICE "/api/v1/namespaces/test/services/here-ps-1"

static bool is_there(world *w, const char *path)
{
    cleanup_json json_t *object = fake_kube_object(w->server, path);
    return object != NULL;
}

static void wait_object(world *w, const char *path)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (!is_there(w, path)) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
}

/* Without its policy nobody reaches a kubeml-ps where policies are enforced: it is made however
 * long the API server refuses to, and holds the owner's thread up no longer than any other call. */
TEST(a_policy_that_could_not_be_made_is_made_later)
{
    world w;
    err e = ERR_INIT;
    open_world(&w);
    start_running(&w, "ps-1", POD_PS);
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_STATUS, 503, -1, 8);
    CHECK_OK(w.c->ops->assign(w.c, "ps-1", "job7", -1, 0, NULL, &e), e);
    CHECK(!is_there(&w, POLICY));
    wait_object(&w, POLICY);
    wait_object(&w, SERVICE);
    close_world(&w);
}

TEST(a_policy_is_made_of_which_nothing_was_heard)
{
    world w;
    err e = ERR_INIT;
    open_world(&w);
    start_running(&w, "ps-1", POD_PS);
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_SILENT, 0, 0, 1);
    CHECK_OK(w.c->ops->assign(w.c, "ps-1", "job7", -1, 0, NULL, &e), e);
    wait_object(&w, POLICY);
    wait_object(&w, SERVICE);
    close_world(&w);
}

TEST(what_a_cluster_forbids_is_not_asked_for_again)
{
    world w;
    err e = ERR_INIT;
    open_world(&w);
    start_running(&w, "ps-1", POD_PS);
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_STATUS, 403, -1, 1);
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_STATUS, 503, -1, 8);
    CHECK_OK(w.c->ops->assign(w.c, "ps-1", "job7", -1, 0, NULL, &e), e);
    wait_object(&w, SERVICE);
    CHECK(!is_there(&w, POLICY));
    close_world(&w);
}

/* It died between the pod's label and the policy. */
TEST(a_ps_of_an_earlier_leader_gets_what_it_lacks)
{
    world w;
    cleanup_json json_t *access =
        json_pack("{s:s, s:s, s:s, s:s}", "kind", "redis", "address", "tcp:10.0.0.7:6379", "user",
                  "function", "password", "sesame");
    open_with_ps(&w, templates);
    w.c->ops->close(w.c, false);
    fake_kube_set(w.server, POLICY, NULL);
    open_cluster(&w);
    w.c->ops->publish(w.c, "ps-1", "job7", access);
    cleanup_json json_t *policy = fake_kube_object(w.server, POLICY);
    CHECK_STR(json_string_value(dig(policy, "metadata|ownerReferences|0|name")), "ps-1");
    int made = fake_kube_requests(w.server, FAKE_CREATE);
    w.c->ops->publish(w.c, "ps-1", "job7", access); /* only the Secret, which may be another's */
    CHECK_INT(fake_kube_requests(w.server, FAKE_CREATE), made + 1);
    close_world(&w);
}

#define RANKS_POLICY "/apis/networking.k8s.io/v1/namespaces/test/networkpolicies/here-ps-1-ranks"

static void check_peers(const json_t *policy, const char *side, const char *whom)
{
    char path[80];
    const json_t *rules = dig(policy, side), *labels = NULL;
    CHECK_INT(json_array_size(rules), 1);
    const json_t *rule = json_array_get(rules, 0);
    CHECK_INT(json_array_size(json_object_get(rule, whom)), 1);
    snprintf(path, sizeof path, "%s|0|podSelector|matchLabels", whom);
    labels = dig(rule, path);
    CHECK_STR(json_string_value(json_object_get(labels, "kubeml.dev/install")), "here");
    CHECK_STR(json_string_value(json_object_get(labels, "kubeml.dev/job")), "job7");
    CHECK_STR(json_string_value(json_object_get(labels, "kubeml.dev/role")), "function");
    CHECK(json_equal(labels, dig(policy, "spec|podSelector|matchLabels")));
    CHECK_INT(json_array_size(json_object_get(rule, "ports")), 1);
    CHECK_STR(json_string_value(dig(rule, "ports|0|protocol")), "TCP");
    CHECK_INT(json_integer_value(dig(rule, "ports|0|port")), 50000);
    CHECK_INT(json_integer_value(dig(rule, "ports|0|endPort")), 50999);
}

/* The functions of one job, to each other, on those ports: nothing wider. */
TEST(functions_that_are_ranks_are_let_meet)
{
    world w;
    open_with_ps(&w, templates_with_ranks);
    CHECK(fake_kube_object(w.server, RANKS_POLICY) == NULL); /* not unasked */
    fake_kube_fault(w.server, FAKE_CREATE, FAULT_DONE_DROP, 0, 0, 1);
    w.c->ops->let_meet(w.c, "ps-1", "job7");
    w.c->ops->let_meet(w.c, "ps-1", "job7");
    cleanup_json json_t *policy = fake_kube_object(w.server, RANKS_POLICY);
    CHECK_STR(json_string_value(dig(policy, "kind")), "NetworkPolicy");
    CHECK_STR(json_string_value(dig(policy, "metadata|ownerReferences|0|name")), "ps-1");
    CHECK_INT(json_array_size(dig(policy, "spec|policyTypes")), 2);
    check_peers(policy, "spec|ingress", "from");
    check_peers(policy, "spec|egress", "to");
    w.c->ops->let_meet(w.c, "ps-0", "job7"); /* no such pod: nothing is made */
    CHECK(fake_kube_object(
              w.server,
              "/apis/networking.k8s.io/v1/namespaces/test/networkpolicies/here-ps-0-ranks") ==
          NULL);
    close_world(&w);
}

/* Where the chart makes no policies, one that lets functions meet would be the one that shuts them
 * off. */
TEST(without_ports_of_ranks_no_policy_is_made)
{
    world w;
    open_with_ps(&w, templates);
    w.c->ops->let_meet(w.c, "ps-1", "job7");
    CHECK(fake_kube_object(w.server, RANKS_POLICY) == NULL);
    close_world(&w);
}

static void works_on(world *w, const char *name, int function, const char *node)
{
    err e = ERR_INIT;
    start(w, name, POD_FUNCTION);
    drop_pod(wait_pod(w, name, true));
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:s}, s:{s:s, s:s}}", "spec", "nodeName", node, "status", "phase",
                            "Running", "podIP", "10.1.2.3"));
    CHECK_INT(next_event(w).phase, POD_RUNNING);
    CHECK_OK(w->c->ops->assign(w->c, name, "job7", function, 0, NULL, &e), e);
}

/* The API server has a pod's log from its node. Where that does not answer, the first pod's is
 * waited for, the others are deleted without; who waits for a new pod comes before them. */
TEST(a_node_that_gives_no_logs_holds_nobody_up)
{
    world w;
    err e = ERR_INIT;
    cluster_log log;
    open_world(&w);
    works_on(&w, "function-1", 0, "node7");
    works_on(&w, "function-2", 1, "node7");
    works_on(&w, "function-3", 2, "node7");
    int before = fake_kube_requests(w.server, FAKE_GET);
    fake_kube_fault(w.server, FAKE_GET, FAULT_SILENT, 0, 0, 10);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 2000, &e), e);
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    /* the worker asks for the first one's log */
    while (fake_kube_requests(w.server, FAKE_GET) == before) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 2);
    }
    CHECK_OK(w.c->ops->stop(w.c, "function-2", 2000, &e), e);
    CHECK_OK(w.c->ops->stop(w.c, "function-3", 2000, &e), e);
    start(&w, "function-4", POD_FUNCTION);
    for (int i = 0; i < 3; i++)
        CHECK_INT(next_event(&w).phase, POD_ENDED);
    drop_pod(wait_pod(&w, "function-4", true));
    CHECK_INT(fake_kube_requests(w.server, FAKE_GET), before + 1);
    CHECK(w.c->ops->log_tail(w.c, "function-2", 100, &log, &e));
    works_on(&w, "function-5", 0, "node7");
    err_clear(&e);
    CHECK_ERR(w.c->ops->log_tail(w.c, "function-5", 100, &log, &e), e, ERR_UNAVAILABLE, "node7");
    close_world(&w);
}

/* Of a function whose node is gone the next one is asked for first, although it is wanted after. */
TEST(who_replaces_a_pod_does_not_wait_for_its_log)
{
    world w;
    err e = ERR_INIT;
    open_world(&w);
    works_on(&w, "function-1", 0, "node7");
    fake_kube_fault(w.server, FAKE_GET, FAULT_SILENT, 0, 0, 10);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 2000, &e), e);
    sched_yield(); /* the worker takes what it may */
    start(&w, "function-2", POD_FUNCTION);
    drop_pod(wait_pod(&w, "function-2", true));
    CHECK_INT(fake_kube_requests(w.server, FAKE_DELETE), 0);
    CHECK_INT(next_event(&w).phase, POD_ENDED);
    CHECK_INT(fake_kube_requests(w.server, FAKE_DELETE), 1);
    close_world(&w);
}

/* Between the end of a pod's containers and the word of it the API server has `instead` to give of
 * its log. */
static void goes_with_log(json_t *instead)
{
    world w;
    err e = ERR_INIT;
    cluster_log log;
    open_world(&w);
    works_on(&w, "function-1", 0, "node7");
    fake_kube_set(w.server, FAKE_KUBE_PODS "/function-1/log", json_string("its last words"));
    fake_kube_leave_out_events(w.server, true);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 2000, &e), e);
    drop_pod(wait_pod(&w, "function-1", false));
    fake_kube_set(w.server, FAKE_KUBE_PODS "/function-1/log", instead);
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    /* the worker has yet to hear that it is deleted */
    while (w.c->ops->log_tail(w.c, "function-1", 100, &log, &e)) {
        CHECK_ERR(-1, e, ERR_NOT_FOUND, "");
        CHECK(clock_monotonic_ms() < deadline);
        err_clear(&e);
        poll(NULL, 0, 2);
    }
    CHECK_STR(log.text, "its last words");
    free(log.text);
    close_world(&w);
}

TEST(the_log_of_a_pod_that_is_going_is_the_one_that_was_taken)
{
    goes_with_log(NULL);
    goes_with_log(json_string("unable to retrieve container logs for containerd://03702d4387a0"));
}

/* What a function says is its log, whatever it is. */
TEST(a_log_that_speaks_of_logs_is_one)
{
    static const char said[] = "unable to retrieve container logs for me\nbut they came\n";
    world w;
    err e = ERR_INIT;
    cluster_log log;
    open_world(&w);
    works_on(&w, "function-1", 0, "node7");
    fake_kube_set(w.server, FAKE_KUBE_PODS "/function-1/log", json_string(said));
    CHECK_OK(w.c->ops->log_tail(w.c, "function-1", 100, &log, &e), e);
    CHECK_STR(log.text, said);
    free(log.text);
    close_world(&w);
}

/* The API server is asked for so many lines: where it gives as many there may be more before. */
TEST(a_tail_of_a_log_says_what_was_written_before_it_where_that_is_known)
{
    world w;
    err e = ERR_INIT;
    cluster_log log;
    open_world(&w);
    works_on(&w, "function-1", 0, "node7");
    fake_kube_set(w.server, FAKE_KUBE_PODS "/function-1/log", json_string("one\ntwo\nthree"));
    CHECK_OK(w.c->ops->log_tail(w.c, "function-1", 100, &log, &e), e);
    CHECK_INT(log.from, 0);
    free(log.text);
    CHECK_OK(w.c->ops->log_tail(w.c, "function-1", 50, &log, &e), e); /* 4 lines */
    CHECK_INT(log.from, 0);
    free(log.text);
    CHECK_OK(w.c->ops->log_tail(w.c, "function-1", 47, &log, &e), e); /* 3 lines */
    CHECK(log.from == CLUSTER_LOG_FROM_UNKNOWN);
    CHECK_INT(log.len, 13);
    free(log.text);
    fake_kube_set(w.server, FAKE_KUBE_PODS "/function-1/log", json_string("one, two and three\n"));
    CHECK_OK(w.c->ops->log_tail(w.c, "function-1", 16, &log, &e), e); /* 2 lines */
    CHECK_INT(log.from, 3);
    CHECK_STR(log.text, ", two and three\n");
    free(log.text);
    close_world(&w);
}

TEST(a_stopped_pod_is_deleted)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    fake_kube_fault(w.server, FAKE_DELETE, FAULT_STATUS, 500, -1, 1);
    fake_kube_fault(w.server, FAKE_DELETE, FAULT_DONE_DROP, 0, 0, 1);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 2000, &e), e);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 2000, &e), e);
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_STR(p.reason, "Stopped");
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 0, &e), e);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 0, &e), e); /* is not there: no error */
    close_world(&w);
}

/* Its node went in order: the pod's connections were closed, so that it was stopped as one that can
 * still end by itself. */
TEST(a_stopped_pod_that_does_not_end_is_deleted_without_grace)
{
    world w = {.server = fake_kube_start()};
    err e = ERR_INIT;
    w.access.server = strdup(fake_kube_url(w.server));
    w.late_ms = 100;
    open_cluster(&w);
    start_running(&w, "function-1", POD_FUNCTION);
    fake_kube_stop_kubelet(w.server);
    CHECK_OK(w.c->ops->stop(w.c, "function-1", 1000, &e), e);
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_ENDED);
    CHECK_STR(p.reason, "Stopped");
    drop_pod(wait_pod(&w, "function-1", false));
    CHECK_INT(fake_kube_requests(w.server, FAKE_DELETE), 2);
    close_world(&w);
}

TEST(pods_are_found_again_and_echoes_are_not_kept)
{
    world w;
    err e = ERR_INIT;
    open_with(&w, "function-1", POD_FUNCTION);
    CHECK_OK(w.c->ops->assign(w.c, "function-1", "job7", 0, 3, NULL, &e), e);
    w.c->ops->close(w.c, true);
    open_cluster(&w);
    pod list[4];
    size_t count = 0;
    CHECK_OK(w.c->ops->list(w.c, list, 4, &count, &e), e);
    CHECK_INT(count, 1);
    CHECK_STR(list[0].job, "job7");
    CHECK_INT(list[0].incarnation, 3);
    CHECK_STR(list[0].address, "tcp:10.1.2.3:4000");
    /* A create of ours that was thought lost comes through later. */
    fake_kube_put(w.server, "function-9",
                  json_pack("{s:{s:{s:s, s:s}}}", "metadata", "labels", KUBE_LABEL_ROLE, "function",
                            KUBE_LABEL_STATE, "warm"));
    drop_pod(wait_pod(&w, "function-9", false));
    drop_pod(wait_pod(&w, "function-1", true));
    close_world(&w);
}

/* The watch is cut and gone while pods come and end: every end is told once. */
TEST(no_end_is_lost_or_told_twice)
{
    world w;
    char name[24];
    int told[8] = {0};
    open_world(&w);
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "function-%d", i);
        start_running(&w, name, POD_FUNCTION);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "function-%d", i);
        fake_kube_leave_out_events(w.server, i % 2 == 0);
        fake_kube_remove(w.server, name);
        if (i % 4 == 1)
            fake_kube_cut(w.server);
        if (i % 2 == 0)
            fake_kube_compact(w.server);
    }
    fake_kube_leave_out_events(w.server, false);
    fake_kube_compact(w.server);
    for (int i = 0; i < 8; i++) {
        pod p = next_event(&w);
        CHECK_INT(p.phase, POD_ENDED);
        CHECK_STR(p.reason, "Deleted");
        told[p.name[9] - '0']++;
    }
    for (int i = 0; i < 8; i++)
        CHECK_INT(told[i], 1);
    struct pollfd wait = {.fd = w.c->ops->event_fd(w.c), .events = POLLIN};
    pod none;
    err e = ERR_INIT;
    poll(&wait, 1, 300);
    CHECK_INT(w.c->ops->next_event(w.c, &none, &e), 0);
    close_world(&w);
}

TEST(what_an_installation_left_is_ended)
{
    world w = {.server = fake_kube_start()};
    err e = ERR_INIT;
    int count = -1;
    w.access.server = strdup(fake_kube_url(w.server));
    snprintf(w.access.namespace_name, sizeof w.access.namespace_name, "test");
    fake_kube_put(w.server, "function-1", json_object());
    fake_kube_put(w.server, "ps-1", json_object());
    fake_kube_fault(w.server, FAKE_DELETE, FAULT_STATUS, 500, -1, 1);
    fake_kube_fault(w.server, FAKE_DELETE, FAULT_DONE_DROP, 0, 0, 1);
    CHECK_OK(kube_end_pods(&w.access, "here", clock_deadline_ms(WAIT_MS),
                           clock_deadline_ms(WAIT_MS), &count, &e), e);
    CHECK_INT(count, 2);
    cleanup_json json_t *left = fake_kube_copy(w.server);
    CHECK_INT(json_object_size(left), 0);
    CHECK_OK(kube_end_pods(&w.access, "here", clock_deadline_ms(WAIT_MS),
                           clock_deadline_ms(WAIT_MS), &count, &e), e);
    CHECK_INT(count, 0);
    /* On a node that is gone it stays, unless it is deleted without grace. */
    fake_kube_stop_kubelet(w.server);
    fake_kube_put(w.server, "ps-2", json_object());
    CHECK_ERR(kube_end_pods(&w.access, "here", clock_deadline_ms(WAIT_MS), clock_deadline_ms(2000),
                            &count, &e),
              e, ERR_TIMEOUT, "ps-2");
    CHECK_OK(kube_end_pods(&w.access, "here", clock_deadline_ms(1000), clock_deadline_ms(WAIT_MS),
                           &count, &e),
             e);
    CHECK_INT(count, 1);
    fake_kube_stop(w.server);
    kube_config_free(&w.access);
}

TEST(bad_templates_are_refused)
{
    static const struct {
        const char *text, *says;
    } known[] = {
        {"{", "line 1"},
        {"{\"function\": {}}", "install"},
        {"{\"install\": \"x\", \"what\": 1}", "what"},
        {"{\"install\": \"x\", \"rank_ports\": {\"first\": 80, \"last\": 90}}", "rank_ports"},
        {"{\"install\": \"x\", \"rank_ports\": {\"first\": 60000, \"last\": 50000}}", "rank_ports"},
        {"{\"install\": \"x\", \"rank_ports\": {\"first\": 10000, \"last\": 20000}}", "10200"},
        {"{\"install\": \"x\", \"function\": {\"spec\": {}}}", "containers"},
        {"{\"install\": \"x\", \"function\": {\"spec\": {\"hostNetwork\": true, \"containers\": [{\"name\": \"a\", "
         "\"image\": \"b\"}]}}}",
         "hostNetwork"},
        {"{\"install\": \"x\", \"function\": {\"spec\": {\"containers\": [{\"name\": \"a\", \"image\": \"b\", "
         "\"securityContext\": {\"privileged\": true}}]}}}",
         "privileges"},
    };
    char path[600];
    snprintf(path, sizeof path, "%s/pods.json", test_tmp());
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        err e = ERR_INIT;
        kube_templates t;
        CHECK_OK(fs_write_file(path, known[i].text, strlen(known[i].text), 0600, &e), e);
        CHECK_ERR(kube_templates_read(path, &t, &e), e, ERR_INVALID, known[i].says);
    }
}
