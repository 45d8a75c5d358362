/* test_cluster_kubernetes_assign.c: what a pod of Kubernetes gets as it is given to a job: labels,
 * its GPU, its owner, and kubeml-ps its policies, Service and Secret, whatever answer is lost. */
#include "kubernetes_fixture.h"

static const char templates_with_ranks[] =
    "{" SETTINGS "\"rank_ports\": {\"first\": 50000, \"last\": 50999}," PODS "}";

/* With kubeml-ps's pod, which is job7's. */
static void open_with_ps(world *w, const char *texts)
{
    err e = ERR_INIT;
    open_world_of(w, texts);
    start_running(w, "ps-1", POD_PS);
    CHECK_OK(w->c->ops->assign(w->c, "ps-1", "job7", -1, 0, NULL, &e), e);
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
