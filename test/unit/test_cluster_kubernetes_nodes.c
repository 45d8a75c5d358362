/* test_cluster_kubernetes_nodes.c: the nodes of Kubernetes' pods: which are avoided, what they have
 * room for, and the logs that come from them. */
#include <sched.h>

#include "kubernetes_fixture.h"

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

static pod place(world *w, const char *name, const char *node)
{
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:s}, s:{s:s}}", "spec", "nodeName", node, "status", "phase",
                            "Pending"));
    pod p = next_event(w);
    CHECK_STR(p.name, name);
    CHECK_INT(p.phase, POD_PENDING);
    CHECK(p.untaken);
    return p;
}

static void placed(world *w, const char *name, const char *node)
{
    start(w, name, POD_FUNCTION);
    drop_pod(wait_pod(w, name, true));
    CHECK_STR(place(w, name, node).reason, "");
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
    CHECK_STR(place(&w, "function-2", "node7").reason, "");
    CHECK_STR(place(&w, "function-1", "node7").reason, CLUSTER_NODE_SILENT);
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

static pod no_node_takes(world *w, const char *name)
{
    fake_kube_put(w->server, name,
                  json_pack("{s:{s:[{s:s, s:s, s:s, s:s}]}}", "status", "conditions", "type",
                            "PodScheduled", "status", "False", "reason", "Unschedulable", "message",
                            "0/1 nodes are available: 1 Insufficient cpu."));
    pod p = next_event(w);
    CHECK_STR(p.name, name);
    CHECK_STR(p.reason, "Unschedulable");
    return p;
}

/* Some autoscalers add no node for a pod that is to avoid one by its name. */
TEST(a_pod_that_avoids_nodes_and_gets_none_is_kept_back_by_that)
{
    world w;
    pod p;
    err e = ERR_INIT;
    open_world(&w);
    start(&w, "ps-2", POD_PS);
    drop_pod(wait_pod(&w, "ps-2", true));
    CHECK(!no_node_takes(&w, "ps-2").kept_back);
    give_up(&w, "ps-1", "node7", NULL);
    start(&w, "ps-3", POD_PS);
    drop_pod(wait_pod(&w, "ps-3", true));
    CHECK(no_node_takes(&w, "ps-3").kept_back);
    pod_spec spec = {.name = "ps-4", .role = POD_PS, .anywhere = true};
    CHECK_OK(w.c->ops->start(w.c, &spec, &p, &e), e);
    cleanup_json json_t *made = wait_pod(&w, "ps-4", true);
    CHECK(!dig(made, AVOIDED));
    CHECK(!no_node_takes(&w, "ps-4").kept_back);
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

static void read_templates(kube_templates *t, const char *settings, const char *resources)
{
    char path[600], text[1000];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/read.json", test_tmp());
    snprintf(
        text, sizeof text,
        "{\"install\": \"here\", %s\"function\": {\"spec\": {\"containers\": [{\"name\": \"f\","
        " \"image\": \"f\", \"resources\": %s}, {\"name\": \"beside\", \"image\": \"b\","
        " \"resources\": {\"limits\": {\"cpu\": \"9\"}}}]}},"
        " \"ps\": {\"spec\": {\"containers\": [{\"name\": \"ps\", \"image\": \"p\"}]}}}",
        settings, resources);
    CHECK_OK(fs_write_file(path, text, strlen(text), 0600, &e), e);
    CHECK_OK(kube_templates_read(path, t, &e), e);
}

/* Of any name, where the templates say which; otherwise of those that GPUs have. */
TEST(the_gpus_of_a_function_are_those_of_its_resource)
{
    static const struct {
        const char *settings, *limits, *resource;
        int count;
    } known[] = {
        {"\"gpu_resource\": \"volcano.sh/vgpu-number\", ",
         "{\"volcano.sh/vgpu-memory\": 3, \"volcano.sh/vgpu-number\": \"1\"}",
         "volcano.sh/vgpu-number", 1},
        {"\"gpu_resource\": \"nvidia.com/gpu\", ",
         "{\"nvidia.com/gpucores\": 25, \"nvidia.com/gpu\": \"2\"}", "nvidia.com/gpu", 2},
        {"\"gpu_resource\": \"nvidia.com/gpu\", ", "{\"cpu\": \"2\"}", "", 0},
        {"", "{\"volcano.sh/vgpu-number\": \"1\"}", "", 0},
        {"", "{\"nvidia.com/mig-1g.10gb\": \"1\"}", "nvidia.com/mig-1g.10gb", 1},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char resources[200], resource[128];
        kube_templates t;
        snprintf(resources, sizeof resources, "{\"limits\": %s}", known[i].limits);
        read_templates(&t, known[i].settings, resources);
        CHECK_INT(kube_templates_gpu(&t, resource, sizeof resource), known[i].count);
        CHECK_STR(resource, known[i].resource);
        kube_templates_free(&t);
    }
}

static int cpus_of(const char *resources)
{
    kube_templates t;
    read_templates(&t, "", resources);
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
