/* test_cluster_local.c: pods as processes: start, end, kill, groups, adoption, logs. The programs
 * are stand-ins: shell scripts in a folder of the test's own. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "controller/cluster/cluster.h"
#include "controller/cluster/cluster_local.h"
#include "common/base/parallel.h"
#include "test.h"

enum { WAIT_MS = 10000 };

static void script(const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "w");
    CHECK(f);
    fprintf(f, "#!/bin/sh\n%s\n", text);
    CHECK(fchmod(fileno(f), 0755) == 0);
    CHECK(fclose(f) == 0);
}

static cluster *open_cluster(void)
{
    static char token[600];
    snprintf(token, sizeof token, "%s/pool-token", test_tmp());
    cluster_local_config config = {.home = test_tmp(), .bin_dir = test_tmp(), .token_file = token,
                                   .slots = 4};
    cluster *c = NULL;
    err e = ERR_INIT;
    CHECK_OK(cluster_open("local", &config, &c, &e), e);
    return c;
}

static pod start(cluster *c, const char *name, pod_role role)
{
    pod_spec spec = {.role = role};
    pod p;
    err e = ERR_INIT;
    snprintf(spec.name, sizeof spec.name, "%s", name);
    CHECK_OK(c->ops->start(c, &spec, &p, &e), e);
    return p;
}

static pod next_end(cluster *c)
{
    pod p;
    err e = ERR_INIT;
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (c->ops->next_event(c, &p, &e) == 0) {
        struct pollfd wait = {.fd = c->ops->event_fd(c), .events = POLLIN};
        CHECK(poll(&wait, 1, clock_left_ms(deadline)) > 0);
    }
    CHECK_INT(p.phase, POD_ENDED);
    return p;
}

/* The log, once it holds `part`. */
static void wait_log(cluster *c, const char *name, const char *part)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    for (;;) {
        cluster_log log = {0};
        err e = ERR_INIT;
        int status = c->ops->log_tail(c, name, 4096, &log, &e);
        bool found = status == 0 && strstr(log.text, part);
        free(log.text);
        if (found)
            return;
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
}

static pid_t pid_in_log(cluster *c, const char *name)
{
    cluster_log log;
    err e = ERR_INIT;
    wait_log(c, name, "child ");
    CHECK_OK(c->ops->log_tail(c, name, 4096, &log, &e), e);
    pid_t pid = (pid_t)strtol(strstr(log.text, "child ") + 6, NULL, 10);
    free(log.text);
    CHECK(pid > 1);
    return pid;
}

static bool is_gone(pid_t pid)
{
    char path[64], state[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    size_t len = f ? fread(state, 1, sizeof state - 1, f) : 0;
    state[len] = '\0';
    if (f)
        fclose(f);
    char *at = strrchr(state, ')');
    return !at || at[2] == 'Z' || at[2] == 'X';
}

static void wait_gone(pid_t pid)
{
    int64_t deadline = clock_deadline_ms(WAIT_MS);
    while (!is_gone(pid)) {
        CHECK(clock_monotonic_ms() < deadline);
        poll(NULL, 0, 5);
    }
}

TEST(a_pod_of_a_gpu_sees_that_one_alone)
{
    script("kubeml-function",
           "echo gpu $CUDA_VISIBLE_DEVICES warm $KUBEML_WARM_GPU mps $CUDA_MPS_PIPE_DIRECTORY nccl "
           "$NCCL_DEBUG $NCCL_COMM_ID cuda $CUDA_MODULE_LOADING $CUDA_CACHE_PATH .");
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1); /* the controller's own: what it may place on */
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/pipe", 1);
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_COMM_ID", "127.0.0.1:1", 1); /* of all jobs: nobody's */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_CACHE_PATH", "/cache", 1);
    cluster *c = open_cluster();
    pod p;
    err e = ERR_INIT;
    pod_spec spec = {.name = "two", .role = POD_FUNCTION, .gpu = "GPU-1"};
    start(c, "one", POD_FUNCTION);
    wait_log(c, "one", "gpu warm mps /pipe nccl INFO cuda EAGER /cache .");
    CHECK_OK(c->ops->start(c, &spec, &p, &e), e);
    wait_log(c, "two", "gpu GPU-1 warm 1 mps /pipe nccl INFO cuda EAGER /cache .");
    c->ops->close(c, true);
}

TEST(functions_share_the_cpus_that_the_controller_may_use)
{
    cluster *c = open_cluster();
    CHECK_INT(c->ops->cpus(c), parallel_cores());
    CHECK(!c->ops->pods_own_cpus);
    c->ops->close(c, true);
}

TEST(the_gpus_of_this_machine_are_those_of_nvml)
{
    char path[600];
    cluster_gpu gpus[4];
    int count = -1;
    err e = ERR_INIT;
    const char *build = getenv("BUILD");
    cluster *c = open_cluster(); /* not asked for */
    CHECK_OK(c->ops->gpus(c, gpus, 4, &count, &e), e);
    CHECK_INT(count, 0);
    c->ops->close(c, true);
    snprintf(path, sizeof path, "%s/testlib/fake-nvml.so", build ? build : "build/release");
    setenv("KUBEML_NVML", path, 1);
    cluster_local_config config = {.home = test_tmp(), .bin_dir = test_tmp(), .token_file = "t",
                                   .slots = 4, .gpus = true};
    CHECK_OK(cluster_open("local", &config, &c, &e), e);
    CHECK_OK(c->ops->gpus(c, gpus, 4, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_STR(gpus[1].id, "GPU-1");
    CHECK_INT(gpus[1].memory_bytes >> 30, 8);
    setenv("FAKE_NVML", "lost", 1);
    CHECK_OK(c->ops->gpus(c, gpus, 4, &count, &e), e); /* the other is used */
    CHECK_INT(count, 1);
    CHECK_STR(gpus[0].id, "GPU-1");
    setenv("KUBEML_NVML", "/nowhere", 1);
    CHECK_OK(c->ops->gpus(c, gpus, 4, &count, &e), e); /* a machine without a driver */
    CHECK_INT(count, 0);
    c->ops->close(c, true);
}

TEST(who_asks_for_all_gpus_has_all_or_none)
{
    char path[600];
    cluster_gpu gpus[4];
    int count = -1;
    err e = ERR_INIT;
    const char *build = getenv("BUILD");
    cluster_local_config config = {.home = test_tmp(),
                                   .bin_dir = test_tmp(),
                                   .token_file = "t",
                                   .slots = 4,
                                   .gpus = true,
                                   .gpus_must = true};
    cluster *c = NULL;
    CHECK_OK(cluster_open("local", &config, &c, &e), e);
    snprintf(path, sizeof path, "%s/testlib/fake-nvml.so", build ? build : "build/release");
    setenv("KUBEML_NVML", path, 1);
    CHECK_OK(c->ops->gpus(c, gpus, 4, &count, &e), e);
    CHECK_INT(count, 2);
    setenv("FAKE_NVML", "old", 1); /* nothing of ours runs on the first */
    CHECK_OK(c->ops->gpus(c, gpus, 4, &count, &e), e);
    CHECK_INT(count, 1);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    CHECK_ERR(c->ops->gpus(c, gpus, 4, &count, &e), e, ERR_UNAVAILABLE, "can be used");
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("FAKE_NVML", "lost", 1);
    CHECK_ERR(c->ops->gpus(c, gpus, 4, &count, &e), e, ERR_UNAVAILABLE,
              "--gpus all: GPU 0: GPU \"0\" does not answer (NVML's error 15)");
    setenv("KUBEML_NVML", "/nowhere", 1);
    CHECK_ERR(c->ops->gpus(c, gpus, 4, &count, &e), e, ERR_NOT_FOUND, "there is no NVML");
    c->ops->close(c, true);
}

TEST(a_pod_that_exits)
{
    script("kubeml-function",
           "echo args $1 $2; echo token $KUBEML_POOL_TOKEN_FILE; echo secret $SECRET; exit 3");
    setenv("SECRET", "s3cret", 1);
    cluster *c = open_cluster();
    pod p = start(c, "one", POD_FUNCTION);
    CHECK_INT(p.phase, POD_RUNNING);
    CHECK_CONTAINS(p.address, "unix:/");
    pod_spec twice = {.name = "one"};
    err e = ERR_INIT;
    CHECK_ERR(c->ops->start(c, &twice, &p, &e), e, ERR_EXISTS, "one");
    p = next_end(c);
    CHECK_STR(p.name, "one");
    CHECK_INT(p.exit_status, 3);
    CHECK_STR(p.reason, "Crashed"); /* by the code that it runs */
    CHECK_STR(p.message, "exited with status 3");
    cluster_log all, tail;
    CHECK_OK(c->ops->log_tail(c, "one", 4096, &all, &e), e);
    CHECK_CONTAINS(all.text, "args --listen unix:");
    CHECK_CONTAINS(all.text, "/pool-token");
    CHECK(!strstr(all.text, "s3cret"));
    CHECK_INT(all.from, 0);
    CHECK_OK(c->ops->log_tail(c, "one", 5, &tail, &e), e);
    CHECK_INT(tail.len, 5);
    CHECK_INT(tail.from, all.len - 5);
    CHECK_STR(tail.text, all.text + all.len - 5);
    free(tail.text);
    free(all.text);
    /* Stopping what has ended forgets it. */
    CHECK_OK(c->ops->stop(c, "one", 0, &e), e);
    CHECK_ERR(c->ops->log_tail(c, "one", 5, &tail, &e), e, ERR_NOT_FOUND, "one");
    c->ops->close(c, true);
}

TEST(a_pod_that_is_killed)
{
    script("kubeml-function", "sleep 100 & echo child $!; kill -9 $$");
    cluster *c = open_cluster();
    start(c, "one", POD_FUNCTION);
    pod p = next_end(c);
    CHECK_INT(p.signal, SIGKILL);
    CHECK_STR(p.reason, "Killed");
    CHECK_CONTAINS(p.message, "signal 9 (SIGKILL)");
    wait_gone(pid_in_log(c, "one")); /* its group went with it */
    c->ops->close(c, true);
}

TEST(a_pod_that_crashes)
{
    static const struct {
        const char *script, *reason;
    } known[] = {{"kill -SEGV $$", "Crashed"}, {"kill -ABRT $$", "Crashed"},
                 {"kill -XFSZ $$", "Crashed"}, {"kill -TERM $$", "Killed"},
                 {"exit 3", "Crashed"},        {"exit 1", "Crashed"},
                 {"exit 75", "Exited"},        {"exit 0", "Exited"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        script("kubeml-function", known[i].script);
        cluster *c = open_cluster();
        start(c, "one", POD_FUNCTION);
        CHECK_STR(next_end(c).reason, known[i].reason);
        c->ops->close(c, true);
    }
    script("kubeml-ps", "exit 1"); /* no code of a user runs there */
    cluster *c = open_cluster();
    start(c, "two", POD_PS);
    CHECK_STR(next_end(c).reason, "Exited");
    c->ops->close(c, true);
}

TEST(stop_asks_then_kills)
{
    script("kubeml-function", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    script("kubeml-ps",
           "trap '' TERM; echo $3; sleep 100 & echo child $!; while :; do sleep 0.01; done");
    cluster *c = open_cluster();
    err e = ERR_INIT;
    start(c, "polite", POD_FUNCTION);
    wait_log(c, "polite", "ready");
    CHECK_OK(c->ops->stop(c, "polite", WAIT_MS, &e), e);
    pod p = next_end(c);
    CHECK_INT(p.exit_status, 0);
    CHECK_CONTAINS(p.message, "as it was asked to");
    start(c, "stubborn", POD_PS);
    wait_log(c, "stubborn", "--run-dir");
    pid_t child = pid_in_log(c, "stubborn");
    CHECK_OK(c->ops->stop(c, "stubborn", 50, &e), e);
    p = next_end(c);
    CHECK_INT(p.signal, SIGKILL);
    wait_gone(child);
    CHECK_OK(c->ops->stop(c, "nobody", 50, &e), e);
    c->ops->close(c, true);
}

/* Its end was there before it was asked, but not heard yet: what it says of itself is not lost. */
TEST(an_end_that_nobody_asked_for)
{
    script("kubeml-function", "echo child $$; exit 3");
    script("kubeml-ps", "echo child $$; exec sleep 100");
    cluster *c = open_cluster();
    err e = ERR_INIT;
    start(c, "one", POD_FUNCTION);
    wait_gone(pid_in_log(c, "one"));
    CHECK_OK(c->ops->stop(c, "one", 0, &e), e);
    pod p = next_end(c);
    CHECK_INT(p.exit_status, 3);
    CHECK(p.by_itself);
    CHECK_STR(p.message, "exited with status 3");
    start(c, "two", POD_PS);
    pid_in_log(c, "two");
    CHECK_OK(c->ops->stop(c, "two", 0, &e), e);
    p = next_end(c);
    CHECK_INT(p.signal, SIGKILL);
    CHECK(!p.by_itself);
    CHECK_CONTAINS(p.message, "as it was asked to");
    c->ops->close(c, true);
}

/* It was asked to end since its connection had, and the kill was there before. */
TEST(a_kill_from_outside_is_not_the_stops_own)
{
    script("kubeml-function", "trap '' TERM; echo child $$; while :; do sleep 100; done");
    cluster *c = open_cluster();
    err e = ERR_INIT;
    start(c, "one", POD_FUNCTION);
    pid_t pid = pid_in_log(c, "one");
    CHECK_OK(c->ops->stop(c, "one", WAIT_MS, &e), e);
    CHECK(kill(pid, SIGKILL) == 0);
    pod p = next_end(c);
    CHECK_INT(p.signal, SIGKILL);
    CHECK(p.by_itself);
    CHECK_STR(p.message, "ended by signal 9 (SIGKILL)");
    c->ops->close(c, true);
}

TEST(a_program_that_is_not_there)
{
    cluster *c = open_cluster();
    pod_spec spec = {.name = "one", .role = POD_PS};
    pod p;
    err e = ERR_INIT;
    size_t count = 7;
    CHECK_ERR(c->ops->start(c, &spec, &p, &e), e, ERR_NOT_FOUND, "kubeml-ps");
    CHECK_OK(c->ops->list(c, &p, 1, &count, &e), e);
    CHECK_INT(count, 0);
    c->ops->close(c, true);
    err_clear(&e);
    CHECK_ERR(cluster_open("moon", NULL, &c, &e), e, ERR_UNSUPPORTED, "moon");
}

/* A controller that is gone without a word: here in a process of its own. */
static void start_and_vanish(void)
{
    fflush(NULL);
    pid_t other = fork();
    if (other == 0) {
        cluster *c = open_cluster();
        err e = ERR_INIT;
        start(c, "kept", POD_FUNCTION);
        CHECK_OK(c->ops->assign(c, "kept", "job1", 2, 5, NULL, &e), e);
        start(c, "lost", POD_FUNCTION);
        start(c, "other", POD_PS);
        wait_log(c, "kept", "ready");
        wait_log(c, "lost", "ready");
        wait_log(c, "other", "ready");
        _exit(0);
    }
    int status = 1;
    waitpid(other, &status, 0);
    CHECK_INT(status, 0);
}

static pid_t pid_of(const char *name)
{
    char path[600], text[1024] = "";
    snprintf(path, sizeof path, "%s/run/pods/%s.json", test_tmp(), name);
    FILE *f = fopen(path, "r");
    CHECK(f && fgets(text, sizeof text, f));
    fclose(f);
    return (pid_t)strtol(strstr(text, "\"pid\":") + 6, NULL, 10);
}

TEST(pods_are_adopted)
{
    script("kubeml-function", "echo ready; while :; do sleep 0.01; done");
    script("kubeml-ps", "echo ready; while :; do sleep 0.01; done");
    start_and_vanish();
    pid_t lost = pid_of("lost");
    kill(-lost, SIGKILL);
    wait_gone(lost);
    /* A file that is no record, and one half written, are left out. */
    char path[600];
    snprintf(path, sizeof path, "%s/run/pods/bad.json", test_tmp());
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/run/pods/half.json.new", test_tmp());
    fclose(fopen(path, "w"));
    cluster *c = open_cluster();
    pod pods[8];
    size_t count = 0;
    err e = ERR_INIT;
    CHECK_OK(c->ops->list(c, pods, 8, &count, &e), e);
    CHECK_INT(count, 3);
    int living = 0;
    for (size_t i = 0; i < count; i++) {
        living += pods[i].phase == POD_RUNNING;
        if (strcmp(pods[i].name, "kept") == 0) {
            CHECK_STR(pods[i].job, "job1");
            CHECK_INT(pods[i].function, 2);
            CHECK_INT(pods[i].incarnation, 5);
        }
        CHECK_INT(pods[i].role, strcmp(pods[i].name, "other") == 0 ? POD_PS : POD_FUNCTION);
    }
    CHECK_INT(living, 2);
    pod p;
    CHECK_INT(c->ops->next_event(c, &p, &e), 1); /* without waiting: it ended before we came */
    CHECK_STR(p.name, "lost");
    kill(pid_of("kept"), SIGKILL);
    p = next_end(c);
    CHECK_STR(p.name, "kept");
    CHECK_STR(p.job, "job1");
    CHECK_INT(p.exit_status, -1);
    pid_t other = pid_of("other");
    c->ops->close(c, true);
    wait_gone(other);
}

/* A pid that somebody else has now is no pod. */
TEST(a_pid_that_was_used_again)
{
    char path[600];
    cluster *c = open_cluster();
    c->ops->close(c, false);
    snprintf(path, sizeof path, "%s/run/pods/ghost.json", test_tmp());
    FILE *f = fopen(path, "w");
    fprintf(
        f,
        "{\"name\":\"ghost\",\"role\":\"function\",\"pid\":%d,\"started\":12345,\"address\":\"unix:/x\","
        "\"job\":\"\",\"function\":-1,\"incarnation\":-1}",
        (int)getpid());
    fclose(f);
    c = open_cluster();
    pod p;
    err e = ERR_INIT;
    CHECK_INT(c->ops->next_event(c, &p, &e), 1);
    CHECK_STR(p.name, "ghost");
    CHECK_INT(p.phase, POD_ENDED);
    c->ops->close(c, true); /* and this process still runs */
}

/* A pod of a controller that is gone, and so is its leader, perhaps; its record is of another boot,
 * perhaps, which makes the numbers in it somebody else's. */
static void find_again(const char *name, bool ended, bool booted)
{
    char path[600];
    cleanup_buf buf text;
    err e = ERR_INIT;
    pod p;
    fflush(NULL);
    pid_t other = fork();
    if (other == 0) {
        cluster *c = open_cluster();
        start(c, name, POD_FUNCTION);
        wait_log(c, name, "child ");
        _exit(0);
    }
    int status = 1;
    waitpid(other, &status, 0);
    CHECK_INT(status, 0);
    pid_t leader = pid_of(name);
    if (ended) {
        kill(leader, SIGKILL);
        wait_gone(leader);
    }
    buf_init(&text, 4096);
    snprintf(path, sizeof path, "%s/run/pods/%s.json", test_tmp(), name);
    CHECK_OK(fs_read_file(path, &text, &e), e);
    char *boot = strstr(text.bytes, "\"boot\":\"");
    CHECK(boot);
    if (booted)
        boot[8] = boot[8] == '0' ? '1' : '0';
    CHECK_OK(fs_write_file(path, text.bytes, text.len, 0600, &e), e);
    cluster *c = open_cluster();
    pid_t child = pid_in_log(c, name);
    CHECK_INT(c->ops->next_event(c, &p, &e), ended || booted);
    c->ops->close(c, true);
    if (!booted)
        wait_gone(child);
    CHECK_INT(is_gone(child), !booted);
    kill(-leader, SIGKILL);
}

TEST(what_another_boots_pods_were_is_not_killed)
{
    script("kubeml-function", "sleep 100 &\necho child $!\nwait");
    find_again("alive", false, false);
    find_again("rest", true, false);
    find_again("alive-before", false, true);
    find_again("rest-before", true, true);
}

TEST(limits_are_set)
{
    script("kubeml-function",
           "ulimit -f; ulimit -v; ulimit -c; cat /proc/self/oom_score_adj; echo end");
    cluster *c = open_cluster();
    pod_spec spec = {
        .name = "one",
        .limits = {.memory_bytes = (uint64_t)4 << 30, .file_bytes = 1 << 20, .goes_first = true}};
    pod p;
    err e = ERR_INIT;
    CHECK_OK(c->ops->start(c, &spec, &p, &e), e);
    next_end(c);
    cluster_log log;
    CHECK_OK(c->ops->log_tail(c, "one", 4096, &log, &e), e);
    CHECK_STR(log.text, "2048\n4194304\n0\n500\nend\n");
    free(log.text);
    c->ops->close(c, true);
}
