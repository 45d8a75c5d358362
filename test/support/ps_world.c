/* ps_world.c: see ps_world.h. */
#include "ps_world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/contract/shard_plan.h"
#include "fake_function.h"
#include "test.h"

#define TOKEN  "the-pool-token-of-this-test"
#define SECRET "the-job-secret-of-this-test"

static void defaults(world_options *o)
{
    o->job = o->job ? o->job : "job";
    o->functions = o->functions ? o->functions : 3;
    o->epochs = o->epochs ? o->epochs : 2;
    o->k = o->k ? o->k : 2;
    o->batch_size = o->batch_size ? o->batch_size : 4;
    o->samples = o->samples ? o->samples : 100;
    o->floats = o->floats ? o->floats : 50;
    o->merge = o->merge ? o->merge : "database";
    o->tensor_path = o->tensor_path ? o->tensor_path : "shm";
}

/* ---- kubeml-ps ----------------------------------------------------------------------------- */

static void write_token(const world *w)
{
    char path[300];
    snprintf(path, sizeof path, "%s/token", w->folder);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(TOKEN "\n", f);
    fclose(f);
    setenv("KUBEML_POOL_TOKEN_FILE", path, 1);
}

static void find_program(char out[512])
{
    const char *build = getenv("BUILD");
    snprintf(out, 512, "%s/bin/kubeml-ps", build ? build : "build/release");
}

/* Does for the container of Redis what a kubelet does: starts it, and again whenever it ends. */
static void be_kubelet(const world *w)
{
    char program[512], folder[300];
    find_program(program);
    snprintf(folder, sizeof folder, "%s/redis", w->folder);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            execl(program, program, "--serve-redis", folder, "--redis-listen", w->redis_address,
                  "--shm-dir", w->shm_dir, (char *)NULL);
            _exit(127);
        }
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
}

static void exec_ps(const world *w)
{
    char program[512], run_dir[300], redis[300];
    find_program(program);
    snprintf(run_dir, sizeof run_dir, "%s/run", w->folder);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsetenv("KUBEML_FAILPOINT");
    if (w->o.failpoint)
        setenv("KUBEML_FAILPOINT", w->o.failpoint, 1);
    const char *args[20] = {program,     "--listen", w->address,  "--run-dir",     run_dir,
                            "--shm-dir", w->shm_dir, "--carrier", w->o.tensor_path};
    size_t count = 9;
    if (w->o.redis) {
        args[count++] = "--redis-server";
        args[count++] = w->o.redis;
    }
    if (w->o.tcp) {
        args[count++] = "--redis-listen";
        args[count++] = w->redis_address;
    }
    if (w->o.container) {
        snprintf(redis, sizeof redis, "%s/redis", w->folder);
        args[count++] = "--redis-folder";
        args[count++] = redis;
    }
    execv(program, (char *const *)args);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    _exit(127);
}

void world_start_ps(world *w)
{
    fflush(NULL);
    if (w->o.container && !w->kubelet) {
        w->kubelet = fork();
        CHECK(w->kubelet >= 0);
        if (w->kubelet == 0)
            be_kubelet(w);
    }
    w->ps = fork();
    CHECK(w->ps >= 0);
    if (w->ps == 0)
        exec_ps(w);
}

void world_dial(world *w)
{
    int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS);
    err e = ERR_INIT;
    wire_close(w->wire);
    while (!(w->wire = wire_dial(w->address, deadline, &e))) {
        CHECK(waitpid(w->ps, NULL, WNOHANG) == 0);
        CHECK(clock_monotonic_ms() < deadline);
        err_clear(&e);
        usleep(5000); /* it does not listen yet: nothing tells when it will */
    }
    json_t *m = json_pack("{s:s,s:s}", "type", "hello", "token", TOKEN), *answer = NULL;
    CHECK_OK(wire_send_wait(w->wire, m, deadline, &e), e);
    CHECK_OK(wire_receive_wait(w->wire, &answer, deadline, &e), e);
    CHECK_STR(wire_type(answer), "welcome");
    json_decref(m);
    json_decref(answer);
}

static json_t *job_message(const world *w)
{
    const world_options *o = &w->o;
    json_t *request =
        json_pack("{s:s,s:s,s:i,s:i,s:f,s:{s:i,s:b,s:i,s:s,s:i,s:f,s:s}}", "function_name",
                  "adding", "dataset", "numbers", "epochs", o->epochs, "batch_size", o->batch_size,
                  "lr", 0.5, "options", "default_parallelism", o->functions, "static_parallelism",
                  !o->elastic, "k", o->k, "merge", o->merge, "seed", 7, "goal_accuracy",
                  o->goal > 0 ? o->goal : 100.0, "on_loss", o->on_loss ? o->on_loss : "recompute");
    if (o->init)
        json_object_set_new(request, "init", json_string(o->init));
    if (o->init_without)
        json_object_set_new(request, "init_without", json_string(o->init_without));
    json_t *dataset =
        json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:i}", "name", "numbers", "digest", "none",
                  "locator", "none", "train_samples", o->samples, "train_chunks",
                  (int)shard_plan_chunks((uint64_t)o->samples, FAKE_CHUNK_SAMPLES), "test_samples",
                  FAKE_TEST_SAMPLES, "test_chunks", FAKE_TEST_SAMPLES / FAKE_CHUNK_SAMPLES,
                  "chunk_samples", FAKE_CHUNK_SAMPLES);
    return json_pack("{s:s,s:s,s:s,s:o,s:{s:s,s:i,s:s},s:o,s:s,s:s,s:b,s:i,s:i,s:i,s:O*}", "type",
                     "job", "id", o->job, "secret", SECRET, "request", request, "function", "name",
                     "adding", "version", 1, "object", "zoo:adding", "dataset", dataset, "store",
                     w->locator, "shm_dir", w->shm_dir, "resume", o->resume, "parallelism",
                     o->functions, "slots_max", o->functions + (o->elastic ? 2 : 0), "generation",
                     o->generation, "plan", o->plan);
}

void world_send_job(world *w, json_t **answer)
{
    err e = ERR_INIT;
    json_t *m = job_message(w);
    CHECK(m != NULL);
    CHECK_OK(wire_send_wait(w->wire, m, clock_deadline_ms(WORLD_WAIT_MS), &e), e);
    CHECK_OK(wire_receive_wait(w->wire, answer, clock_deadline_ms(WORLD_WAIT_MS), &e), e);
    json_decref(m);
}

static void begin(world *w)
{
    json_t *answer = NULL;
    world_start_ps(w);
    world_dial(w);
    if (w->o.no_job)
        return;
    world_send_job(w, &answer);
    if (strcmp(wire_type(answer), "accepted") != 0)
        test_fail(__FILE__, __LINE__, "the job was not accepted: %s",
                  json_string_value(json_object_get(answer, "message")));
    json_decref(answer);
}

void world_start(world *w, const world_options *o)
{
    char path[300];
    memset(w, 0, sizeof *w);
    w->o = *o;
    defaults(&w->o);
    snprintf(w->folder, sizeof w->folder, "%.200s/%.40s", test_tmp(), w->o.job);
    snprintf(w->address, sizeof w->address, "unix:%.200s/ps.sock", w->folder);
    if (w->o.tcp) {
        snprintf(w->address, sizeof w->address, "tcp:127.0.0.1:%d", test_free_port());
        snprintf(w->redis_address, sizeof w->redis_address, "127.0.0.1:%d", test_free_port());
    }
    snprintf(w->locator, sizeof w->locator, "lmdb:%.200s/store", test_tmp());
    snprintf(w->shm_dir, sizeof w->shm_dir, "%.200s/shm", w->folder);
    snprintf(path, sizeof path, "%s/shm", w->folder);
    CHECK(mkdir(w->folder, 0700) == 0 || errno == EEXIST);
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    write_token(w);
    w->told = json_array();
    begin(w);
}

/* ---- functions ----------------------------------------------------------------------------- */

static void start_function(world *w, int function, int incarnation)
{
    const world_options *o = &w->o;
    fake_function f = {.access = w->access,
                       .job = o->job,
                       .secret = SECRET,
                       .function = function,
                       .incarnation = incarnation,
                       .seed = 7,
                       .train_samples = (uint64_t)o->samples,
                       .batch_size = o->batch_size,
                       .floats = o->floats,
                       .device = o->device ? w->folder : NULL,
                       .nccl = o->nccl,
                       .needs_losses = o->needs_losses,
                       .ps = w->ps};
    bool first = incarnation % 10000 == 0 && w->o.generation == 0;
    if (first && o->fault && function == o->fault_function) {
        f.fault = o->fault;
        f.fault_epoch = o->fault_epoch;
        f.fault_round = o->fault_round;
    }
    CHECK(w->count < WORLD_FUNCTIONS_MAX);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(wire_fd(w->wire));
        _exit(fake_function_run(&f));
    }
    w->children[w->count++] = (world_child){pid, function, incarnation};
}

static void report(world *w, const world_child *c, int status)
{
    err e = ERR_INIT;
    char text[64];
    w->deaths += WIFSIGNALED(status);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fprintf(stderr, "function %d ended with status %d\n", c->function, WEXITSTATUS(status));
    snprintf(text, sizeof text, "ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    if (w->wire)
        wire_sendf(w->wire, &e, "{s:s,s:i,s:i,s:s,s:s}", "type", "lost", "function", c->function,
                   "incarnation", c->incarnation, "reason",
                   WIFSIGNALED(status) ? "Killed" : "Exited", "message", text);
    if (w->o.fault && w->ps > 0)
        kill(w->ps, SIGCONT); /* a function with last words stopped it */
}

static void reap(world *w)
{
    for (int i = 0; i < w->count; i++) {
        int status;
        if (waitpid(w->children[i].pid, &status, WNOHANG) != w->children[i].pid)
            continue;
        world_child gone = w->children[i];
        w->children[i--] = w->children[--w->count];
        report(w, &gone, status);
    }
}

/* A pod that is released is stopped, whether it listens or not. */
static void kill_function(world *w, int function, int incarnation)
{
    for (int i = 0; i < w->count; i++)
        if (w->children[i].function == function && w->children[i].incarnation == incarnation &&
            w->o.fault && strncmp(w->o.fault, "freeze", 6) == 0 &&
            function == w->o.fault_function && incarnation == 0)
            kill(w->children[i].pid, SIGKILL);
}

/* ---- messages ------------------------------------------------------------------------------ */

static void take(world *w, json_t *m)
{
    const char *type = wire_type(m);
    int function = -1, incarnation = -1, epoch = 0, parallelism = 0;
    err e = ERR_INIT;
    json_unpack(m, "{s?i,s?i,s?i,s?i}", "function", &function, "incarnation", &incarnation, "epoch",
                &epoch, "parallelism", &parallelism);
    if (strcmp(type, "access") == 0) {
        json_decref(w->access);
        w->access = json_incref(m);
    } else if (strcmp(type, "need") == 0 && !w->o.deaf) {
        start_function(w, function, incarnation);
    } else if (strcmp(type, "release") == 0) {
        kill_function(w, function, incarnation);
    } else if (strcmp(type, "ask") == 0) {
        wire_sendf(w->wire, &e, "{s:s,s:i,s:i}", "type", "parallelism", "epoch", epoch, "value",
                   epoch % 2 == 0 ? w->o.functions + 1 : w->o.functions - 1);
    }
    json_array_append(w->told, m);
}

/* 1 when a message came, 0 at the deadline of a short wait, -1 when kubeml-ps went. */
static int hear(world *w)
{
    json_t *m = NULL;
    err e = ERR_INIT;
    int got = wire_receive_wait(w->wire, &m, clock_deadline_ms(20), &e);
    reap(w);
    if (got == 0) {
        take(w, m);
        json_decref(m);
        return 1;
    }
    return e.code == ERR_TIMEOUT ? 0 : -1;
}

json_t *world_wait(world *w, const char *type)
{
    int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS);
    for (;;) {
        while (w->waited < json_array_size(w->told)) {
            json_t *m = json_array_get(w->told, w->waited++);
            if (strcmp(wire_type(m), type) == 0)
                return m;
            if (strcmp(wire_type(m), "finished") == 0)
                test_fail(__FILE__, __LINE__, "finished before \"%s\" came: %s", type,
                          json_dumps(m, 0));
        }
        if (hear(w) < 0)
            test_fail(__FILE__, __LINE__, "kubeml-ps went before \"%s\" came", type);
        if (clock_monotonic_ms() > deadline)
            test_fail(__FILE__, __LINE__, "no \"%s\" within %d ms", type, WORLD_WAIT_MS);
    }
}

void world_hold(world *w)
{
    int status;
    for (int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS);;) {
        pid_t pid = waitpid(w->ps, &status, WNOHANG | WUNTRACED);
        CHECK(pid >= 0);
        if (pid > 0)
            break;
        hear(w); /* that it went says waitpid */
        CHECK(clock_monotonic_ms() < deadline);
    }
    if (!WIFSTOPPED(status))
        test_fail(__FILE__, __LINE__, "kubeml-ps ended before \"%s\" stopped it", w->o.failpoint);
}

void world_go_on(const world *w)
{
    CHECK_INT(kill(w->ps, SIGCONT), 0);
}

bool world_told_condition(const world *w, const char *name)
{
    size_t i;
    json_t *m;
    json_array_foreach (w->told, i, m) {
        const char *told = json_string_value(json_object_get(m, "name"));
        if (strcmp(wire_type(m), "condition") == 0 && told && strcmp(told, name) == 0)
            return true;
    }
    return false;
}

static int await_exit(pid_t pid)
{
    int64_t deadline = clock_deadline_ms(20000);
    int status = -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_monotonic_ms() > deadline)
            test_fail(__FILE__, __LINE__, "process %d does not end", (int)pid);
        usleep(2000);
    }
    return status;
}

static int files_in(const char *path)
{
    int count = 0;
    DIR *d = opendir(path);
    for (struct dirent *at; d && (at = readdir(d));)
        count += at->d_name[0] != '.';
    if (d)
        closedir(d);
    return count;
}

static void forget_children(world *w)
{
    for (; w->count > 0; w->count--)
        await_exit(w->children[w->count - 1].pid);
}

void world_finish(world *w, const char *state, char *sha256)
{
    err e = ERR_INIT;
    json_t *m = world_wait(w, "finished");
    if (strcmp(json_string_value(json_object_get(m, "state")), state) != 0)
        test_fail(__FILE__, __LINE__, "not %s: %s", state, json_dumps(m, 0));
    if (sha256)
        snprintf(sha256, 65, "%s", json_string_value(json_object_get(m, "sha256")));
    pid_t redis = world_redis(w);
    CHECK_OK(wire_sendf(w->wire, &e, "{s:s}", "type", "bye"), e);
    world_ended(w, redis);
}

/* The pod is over. Redis, whose parent it was, is somebody else's child now: it ends by itself. */
static void end_kubelet(world *w, pid_t redis)
{
    int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS);
    if (!w->kubelet)
        return;
    kill(w->kubelet, SIGKILL);
    await_exit(w->kubelet);
    w->kubelet = 0;
    while (redis > 0 && kill(redis, 0) == 0) {
        CHECK(clock_monotonic_ms() < deadline);
        usleep(2000);
    }
}

void world_ended(world *w, pid_t redis)
{
    char path[300];
    CHECK_INT(await_exit(w->ps), 0);
    wire_close(w->wire);
    w->wire = NULL;
    forget_children(w);
    end_kubelet(w, redis);
    CHECK(redis < 0 || kill(redis, 0) != 0);
    CHECK_INT(files_in(w->shm_dir), 0);
    snprintf(path, sizeof path, "%s/run", w->folder);
    CHECK(access(path, F_OK) != 0);
    CHECK(access(w->address + 5, F_OK) != 0);
}

void world_await_death(world *w)
{
    int64_t deadline = clock_deadline_ms(WORLD_WAIT_MS);
    while (hear(w) >= 0)
        CHECK(clock_monotonic_ms() < deadline);
    int status = await_exit(w->ps);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    wire_close(w->wire);
    w->wire = NULL;
    for (int i = 0; i < w->count; i++) /* as the controller stops the pods of a lost kubeml-ps */
        kill(w->children[i].pid, SIGKILL);
    forget_children(w);
}

void world_restart_at(world *w, const char *failpoint)
{
    w->o.failpoint = failpoint;
    w->o.resume = true;
    w->o.generation++;
    begin(w);
}

void world_restart(world *w)
{
    world_restart_at(w, NULL);
}

void world_end(world *w)
{
    for (int i = 0; i < w->count; i++)
        kill(w->children[i].pid, SIGKILL);
    json_decref(w->access);
    json_decref(w->told);
    wire_close(w->wire);
    w->access = w->told = NULL;
    w->wire = NULL;
}

/* `thread` NULL: the first one. */
static pid_t redis_among_children(pid_t ps, const char *thread)
{
    char path[300], name[64];
    if (thread)
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)ps, thread);
    else
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)ps, (int)ps);
    FILE *f = fopen(path, "r");
    int pid, found = -1;
    while (f && fscanf(f, "%d", &pid) == 1) {
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        FILE *comm = fopen(path, "r");
        if (comm && fgets(name, sizeof name, comm) && strncmp(name, "redis-server", 12) == 0)
            found = pid;
        if (comm)
            fclose(comm);
    }
    if (f)
        fclose(f);
    return found;
}

pid_t world_redis(const world *w)
{
    char path[64];
    pid_t found = -1;
    if (w->kubelet)
        return redis_among_children(w->kubelet, NULL);
    snprintf(path, sizeof path, "/proc/%d/task", (int)w->ps);
    DIR *d = opendir(path);
    for (struct dirent *at; d && found < 0 && (at = readdir(d));)
        if (at->d_name[0] != '.')
            found = redis_among_children(w->ps, at->d_name);
    if (d)
        closedir(d);
    return found;
}

int world_ping_redis(const world *w)
{
    char program[512], folder[300];
    int status = -1;
    find_program(program);
    snprintf(folder, sizeof folder, "%s/redis", w->folder);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        execl(program, program, "--ping-redis", folder, (char *)NULL);
        _exit(127);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

json_t *world_history(const world *w)
{
    err e = ERR_INIT;
    json_t *record = NULL;
    store *s = store_open(w->locator, &e);
    if (!s || store_get(s, "history", w->o.job, &record, NULL, &e))
        test_fail(__FILE__, __LINE__, "history: %s", e.message);
    store_close(s);
    return record;
}

void world_check_shares(const json_t *record, int epochs, int samples)
{
    CHECK_INT(json_array_size(json_object_get(record, "shares")), epochs);
    for (int epoch = 0; epoch < epochs; epoch++) {
        const json_t *shares = json_array_get(json_object_get(record, "shares"), (size_t)epoch),
                     *one;
        size_t i;
        json_int_t sum = 0;
        json_array_foreach (shares, i, one) {
            sum += json_integer_value(json_array_get(one, 3)) -
                   json_integer_value(json_array_get(one, 2));
        }
        CHECK_INT(sum, samples);
    }
}

void world_calm(const world_options *like, char sha256[65])
{
    world w;
    world_options o = *like;
    o.job = "calm";
    o.fault = o.failpoint = NULL;
    world_start(&w, &o);
    world_finish(&w, "succeeded", sha256);
    CHECK_INT(w.deaths, 0);
    world_end(&w);
}
