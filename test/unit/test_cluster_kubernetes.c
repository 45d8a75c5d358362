/* test_cluster_kubernetes.c: pods of Kubernetes behind cluster.h, against a scripted API server:
 * none is lost or doubled whatever answer is lost, and each wait and end has its reason in
 * words. */
#include <signal.h>

#include "controller/kube/kube_end.h"
#include "kubernetes_fixture.h"

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
    CHECK_CONTAINS(p.message, "its network");
    close_world(&w);
}

/* Placed is not taken: only a kubelet that lives gives a pod its start. */
TEST(a_pod_is_untaken_until_its_node_says_that_it_makes_it)
{
    world w;
    open_world(&w);
    start(&w, "function-1", POD_FUNCTION);
    drop_pod(wait_pod(&w, "function-1", true));
    fake_kube_put(w.server, "function-1",
                  json_pack("{s:{s:s}, s:{s:s, s:[{s:s, s:s}]}}", "spec", "nodeName", "node7",
                            "status", "phase", "Pending", "conditions", "type", "PodScheduled",
                            "status", "True"));
    pod p = next_event(&w);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK(p.untaken);
    put_status(&w, "function-1",
               json_pack("{s:s, s:[{s:s, s:{s:{s:s}}}]}", "startTime", "2026-01-01T00:00:00Z",
                         "containerStatuses", "name", "function", "state", "waiting", "reason",
                         "ContainerCreating"));
    p = next_event(&w);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK(!p.untaken);
    CHECK_STR(p.reason, "");
    runs(&w, "function-1");
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
