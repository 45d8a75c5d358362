/* test_function_member.c: the real kubeml-function under a kubeml-ps made of a few lines:
 * specialise, ready, init, train, validate, stop, over a real redis-server; killed at every phase
 * and replaced. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/modelstore/layout.h"
#include "common/modelstore/modelstore.h"
#include "common/modelstore/shm.h"
#include "common/net/wire.h"
#include "function_fixture.h"
#include "modelstore_fixture.h"
#include "small_disk.h"

#include "ps/redis/redis_server.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { FUNCTIONS = 2, EPOCHS = 2, SLOTS = 64, WAIT_MS = 15000 };

static const char secret[] = "the-job's-secret", token[] = "the-pool's-token";
extern char **environ;

/* ---- one runtime ----------------------------------------------------------------------------- */

typedef struct runtime {
    pid_t pid;
    char address[300], log[300];
    wire *control, *ps;
    int function, incarnation;
    bool begun; /* it has said that it trained a batch */
    bool needs_losses;
} runtime;

typedef struct platform {
    char locator[STORE_LOCATOR_BYTES], object[300], ps_address[300], request[512];
    redis_server *redis;
    modelstore *owner;
    modelstore_access member_access;
    int listen_fd;
    bool created;
    int64_t version;
    layout layout;
    int slot, replaced;
    const char *failpoint; /* of the next runtime that is started; then forgotten */
    runtime functions[FUNCTIONS];
} platform;

static int started;

static int64_t soon(void)
{
    return clock_deadline_ms(WAIT_MS * (SANITIZED ? 4 : 1));
}

static void start_runtime(runtime *r, const char *failpoint)
{
    static char point[128], marker[300], token_file[330];
    posix_spawn_file_actions_t actions;
    char program[400], path[300];
    const char *build = getenv("BUILD");
    snprintf(program, sizeof program, "%s/bin/kubeml-function", build ? build : "build/release");
    snprintf(r->address, sizeof r->address, "unix:%s/f%d.sock", test_tmp(), started);
    snprintf(r->log, sizeof r->log, "%s/f%d.log", test_tmp(), started++);
    snprintf(path, sizeof path, "%s/pool-token", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f && fprintf(f, "%s\n", token) > 0 && fclose(f) == 0);
    snprintf(token_file, sizeof token_file, "%s", path);
    snprintf(point, sizeof point, "%s", failpoint ? failpoint : "");
    snprintf(marker, sizeof marker, "%s/fired", test_tmp());
    CHECK(setenv("KUBEML_POOL_TOKEN_FILE", token_file, 1) == 0);
    CHECK(setenv("KUBEML_FAILPOINT", point, 1) == 0);
    CHECK(setenv("KUBEML_FAILPOINT_FILE", marker, 1) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, r->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    char *argv[] = {program, (char *)"--listen", r->address, NULL};
    int code = posix_spawn(&r->pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", program, strerror(code));
}

static json_t *receive(wire *w)
{
    json_t *m;
    err e = ERR_INIT;
    return wire_receive_wait(w, &m, soon(), &e) == 0 ? m : NULL;
}

static wire *dial_runtime(const runtime *r)
{
    err e = ERR_INIT;
    wire *w;
    int64_t deadline = soon();
    while (!(w = wire_dial(r->address, deadline, &e)) && clock_left_ms(deadline) > 0)
        poll(NULL, 0, 5); /* it has not begun to listen yet */
    if (!w)
        test_fail(__FILE__, __LINE__, "%s: %s", r->address, e.message);
    return w;
}

static void greet(runtime *r)
{
    err e = ERR_INIT;
    r->control = dial_runtime(r);
    CHECK_OK(wire_sendf(r->control, &e, "{s:s,s:s}", "type", "hello", "token", token), e);
    cleanup_json json_t *m = receive(r->control);
    CHECK_STR(m ? wire_type(m) : NULL, "welcome");
    CHECK_STR(json_string_value(json_object_get(m, "role")), "function");
    CHECK_INT(json_integer_value(json_object_get(m, "pid")), r->pid);
}

static int wait_end(runtime *r)
{
    int status = 0;
    int64_t deadline = soon();
    pid_t got;
    while ((got = waitpid(r->pid, &status, WNOHANG)) == 0 && clock_left_ms(deadline) > 0)
        poll(NULL, 0, 2);
    if (got != r->pid)
        kill(r->pid, SIGKILL);
    CHECK_INT(got, r->pid);
    wire_close(r->control);
    wire_close(r->ps);
    r->control = r->ps = NULL;
    r->pid = 0;
    return status;
}

static void check_log(const runtime *r, const char *part)
{
    char text[16384];
    FILE *f = fopen(r->log, "r");
    CHECK(f);
    size_t len = fread(text, 1, sizeof text - 1, f);
    text[len] = '\0';
    fclose(f);
    CHECK_CONTAINS(text, part);
}

/* ---- the platform around it ------------------------------------------------------------------ */

static void open_platform(platform *p, const char *object, const char *text, const char *options)
{
    err e = ERR_INIT;
    char folder[300];
    memset(p, 0, sizeof *p);
    p->version = -1;
    make_blobs(2, p->locator);
    if (text)
        make_object("function", text, p->object);
    snprintf(
        p->request, sizeof p->request,
        "{\"function_name\":\"f\",\"dataset\":\"blobs\",\"epochs\":%d,\"batch_size\":32,\"lr\":0.01,"
        "\"options\":{\"seed\":3%s}}",
        EPOCHS, options);
    (void)object;
    snprintf(p->ps_address, sizeof p->ps_address, "unix:%s/ps.sock", test_tmp());
    p->listen_fd = wire_listen(p->ps_address, &e);
    if (p->listen_fd < 0)
        test_fail(__FILE__, __LINE__, "%s", e.message);
    snprintf(folder, sizeof folder, "%s/redis", test_tmp());
    redis_server_spec spec = {.folder = folder};
    CHECK_OK(redis_server_start(&spec, soon(), &p->redis, &e), e);
    modelstore_access a = {.kind = "server", .job = "job1", .tensor_path = "shm"};
    snprintf(a.address, sizeof a.address, "%s", redis_server_address(p->redis));
    snprintf(a.segment_dir, sizeof a.segment_dir, "%s", test_tmp());
    p->member_access = a;
    snprintf(a.user, sizeof a.user, "default");
    snprintf(a.password, sizeof a.password, "%s", redis_server_password(p->redis));
    snprintf(p->member_access.user, sizeof p->member_access.user, "member");
    snprintf(p->member_access.password, sizeof p->member_access.password, "member-password");
    CHECK_OK(redis_server_user(p->redis, "member", "member-password", "job1", false, soon(), &e),
             e);
    CHECK_OK(modelstore_open(&a, MODELSTORE_OWNER, soon(), &p->owner, &e), e);
}

static void close_platform(platform *p)
{
    err e = ERR_INIT;
    CHECK_OK(modelstore_drop(p->owner, soon(), &e), e);
    modelstore_close(p->owner);
    redis_server_stop(p->redis);
    layout_free(&p->layout);
    close(p->listen_fd);
}

static json_t *specialise_message(platform *p, const runtime *r)
{
    return json_pack("{s:s,s:s,s:s,s:i,s:i,s:{s:s,s:o},s:s,s:s,s:{s:s},s:o,s:i,s:s}", "type",
                     "specialise", "job", "job1", "secret", secret, "function", r->function,
                     "incarnation", r->incarnation, "access", "address", p->ps_address, "model",
                     modelstore_access_json(&p->member_access), "object_path", p->object, "object",
                     "functions/f/1", "dataset", "locator", p->locator, "request",
                     json_loads(p->request, 0, NULL), "threads", 1, "backend", "cpu");
}

/* The runtime's answer, or NULL when it died. */
static json_t *specialise(platform *p, runtime *r)
{
    err e = ERR_INIT;
    greet(r);
    cleanup_json json_t *m = specialise_message(p, r);
    CHECK(m);
    if (strstr(p->request, "shared"))
        json_object_set_new(m, "functions", json_integer(FUNCTIONS));
    CHECK_OK(wire_send_wait(r->control, m, soon(), &e), e);
    return receive(r->control);
}

/* Takes its call: hello, welcome. Gives the message after it. */
static json_t *admit(platform *p, runtime *r)
{
    err e = ERR_INIT;
    int64_t deadline = soon();
    while (!(r->ps = wire_accept(p->listen_fd, &e)) && e.code == ERR_NONE &&
           clock_left_ms(deadline) > 0) {
        struct pollfd fd = {p->listen_fd, POLLIN, 0};
        poll(&fd, 1, 50);
        if (kill(r->pid, 0) != 0)
            break;
    }
    CHECK(r->ps);
    cleanup_json json_t *hello = receive(r->ps);
    CHECK_STR(hello ? wire_type(hello) : NULL, "hello");
    CHECK_STR(json_string_value(json_object_get(hello, "token")), secret);
    CHECK_INT(json_integer_value(json_object_get(hello, "function")), r->function);
    CHECK_INT(json_integer_value(json_object_get(hello, "incarnation")), r->incarnation);
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "welcome"), e);
    return receive(r->ps);
}

static void take_layout(platform *p, const json_t *ready)
{
    char digest[20];
    err e = ERR_INIT;
    modelstore_state begin = {.version = -1, .epoch = -1, .round = 0};
    if (p->created)
        return;
    CHECK_OK(layout_parse(json_object_get(ready, "layout"), &p->layout, &e), e);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)p->layout.digest);
    CHECK_STR(json_string_value(json_object_get(ready, "layout_digest")), digest);
    CHECK_OK(modelstore_create(p->owner, &p->layout, &begin, SLOTS, NULL, NULL, soon(), &e), e);
    p->created = true;
}

/* Starts a runtime and makes it a member; with a failpoint it may die on the way. */
static bool join(platform *p, runtime *r)
{
    start_runtime(r, p->failpoint);
    p->failpoint = NULL;
    cleanup_json json_t *answer = specialise(p, r);
    if (!answer)
        return false;
    if (strcmp(wire_type(answer), "specialised") != 0)
        test_fail(__FILE__, __LINE__, "%s", json_string_value(json_object_get(answer, "message")));
    cleanup_json json_t *ready = admit(p, r);
    if (!ready)
        return false;
    CHECK_STR(wire_type(ready), "ready");
    r->needs_losses = json_is_true(json_object_get(ready, "needs_losses"));
    take_layout(p, ready);
    return true;
}

static void replace(platform *p, runtime *r)
{
    int status = wait_end(r);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    r->incarnation++;
    r->begun = false;
    p->replaced++;
    CHECK(join(p, r));
}

static json_t *next_report(runtime *r)
{
    json_t *m;
    while ((m = receive(r->ps)) && strcmp(wire_type(m), "heartbeat") == 0) {
        r->begun |= json_is_true(json_object_get(m, "begun"));
        json_decref(m);
    }
    return m;
}

/* Gives the task and waits for the report; a runtime that dies is replaced, and asked again. */
static json_t *do_task(platform *p, runtime *r, json_t *task, const char *want)
{
    for (;;) {
        err e = ERR_INIT;
        json_t *m = NULL;
        if (json_object_get(task, "slot"))
            json_object_set_new(task, "slot", json_integer(p->slot++));
        if (wire_send_wait(r->ps, task, soon(), &e) == 0)
            m = next_report(r);
        if (m) {
            if (strcmp(wire_type(m), want) != 0)
                test_fail(__FILE__, __LINE__, "%s instead of %s: %s", wire_type(m), want,
                          json_string_value(json_object_get(m, "message")));
            json_decref(task);
            return m;
        }
        replace(p, r);
    }
}

static void merge(platform *p, int64_t epoch, int64_t round, int64_t next_epoch, int64_t next_round,
                  const modelstore_part *parts, size_t count)
{
    modelstore_round r = {.epoch = epoch, .round = round, .version = p->version,
                          .next_epoch = next_epoch, .next_round = next_round, .rule = "mean",
                          .parts = parts, .count = count, .ledger = "{}"};
    modelstore_merged out;
    err e = ERR_INIT;
    CHECK_OK(modelstore_merge(p->owner, &r, soon(), &out, &e), e);
    p->version = out.state.version;
}

static void init_model(platform *p)
{
    runtime *r = &p->functions[0];
    json_decref(do_task(p, r,
                        json_pack("{s:s,s:i,s:i,s:i,s:i}", "type", "init", "seed", 3, "epoch", -1,
                                  "round", 0, "slot", 0),
                        "initialised"));
    CHECK(!r->begun);
    modelstore_part part = {0, r->incarnation, 1};
    merge(p, -1, 0, 0, 0, &part, 1);
    CHECK_INT(p->version, 0);
}

/* Two rounds an epoch, 5 batches each. That a batch is trained was told before the report, however
 * soon that came. */
static void train_round(platform *p, int epoch, int round)
{
    modelstore_part parts[FUNCTIONS];
    for (int f = 0; f < FUNCTIONS; f++) {
        json_t *m =
            do_task(p, &p->functions[f],
                    json_pack("{s:s,s:i,s:i,s:I,s:i,s:i,s:i,s:i,s:f,s:i}", "type", "train", "epoch",
                              epoch, "round", round, "version", (json_int_t)p->version,
                              "parallelism", FUNCTIONS, "function", f, "batch_begin", 5 * round,
                              "batch_count", 5, "lr", 0.01, "slot", 0),
                    "published");
        CHECK(p->functions[f].begun);
        CHECK_INT(json_integer_value(json_object_get(m, "samples")), 160);
        CHECK_INT(json_integer_value(json_object_get(m, "sample_begin")), 160 * round);
        CHECK_INT(json_integer_value(json_object_get(m, "sample_end")), 160 * (round + 1));
        CHECK_INT(json_integer_value(json_object_get(m, "batches")), 5);
        CHECK(json_real_value(json_object_get(m, "loss_sum")) > 0);
        json_decref(m);
        parts[f] = (modelstore_part){f, p->functions[f].incarnation, 160};
    }
    merge(p, epoch, round, round ? epoch + 1 : epoch, round ? 0 : 1, parts, FUNCTIONS);
}

static int64_t validate(platform *p, int epoch)
{
    int64_t tested = 0, correct = 0;
    for (int f = 0; f < FUNCTIONS; f++) {
        json_t *m = do_task(p, &p->functions[f],
                            json_pack("{s:s,s:i,s:I,s:i,s:i}", "type", "validate", "epoch", epoch,
                                      "version", (json_int_t)p->version, "parallelism", FUNCTIONS,
                                      "function", f),
                            "validated");
        tested += json_integer_value(json_object_get(m, "samples"));
        correct += json_integer_value(json_object_get(m, "correct"));
        json_decref(m);
    }
    CHECK_INT(tested, BLOB_TEST);
    return correct;
}

static void stop_all(platform *p)
{
    err e = ERR_INIT;
    for (int f = 0; f < FUNCTIONS; f++) {
        wire_sendf(p->functions[f].ps, &e, "{s:s}", "type", "stop");
        int status = wait_end(&p->functions[f]);
        if (p->functions[f].pid == 0 && WIFSIGNALED(status))
            CHECK_INT(WTERMSIG(status), SIGKILL); /* a failpoint after its last report */
        else
            CHECK_INT(WEXITSTATUS(status), 0);
    }
}

/* A whole job; the reference's checksum at its end. */
static uint64_t run_job(const char *failpoint, int victim, int *replaced, int64_t *correct)
{
    platform p;
    err e = ERR_INIT;
    modelstore_status status;
    open_platform(&p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_AUGMENTED), "");
    for (int f = 0; f < FUNCTIONS; f++) {
        runtime *r = &p.functions[f];
        r->function = f;
        p.failpoint = f == victim ? failpoint : NULL;
        if (!join(&p, r))
            replace(&p, r);
    }
    init_model(&p);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        train_round(&p, epoch, 0);
        train_round(&p, epoch, 1);
        *correct = validate(&p, epoch);
    }
    CHECK_OK(modelstore_status_get(p.owner, soon(), &status, &e), e);
    CHECK_INT(status.state.version, 2 * EPOCHS);
    stop_all(&p);
    *replaced = p.replaced;
    close_platform(&p);
    return status.state.checksum;
}

TEST_LIMIT(a_job_from_start_to_end, 90)
{
    int replaced;
    int64_t correct;
    uint64_t a = run_job(NULL, -1, &replaced, &correct), b = run_job(NULL, -1, &replaced, &correct);
    CHECK_INT(replaced, 0);
    CHECK(correct > BLOB_TEST * 85 / 100);
    CHECK(a == b);
}

/* Killed at the count-th passage of a phase: the job ends with the same bits. */
static void kill_at(const char *phase, const int *counts, size_t n)
{
    char point[64], marker[300];
    int replaced;
    int64_t want_correct, correct;
    uint64_t want = run_job(NULL, -1, &replaced, &want_correct);
    snprintf(marker, sizeof marker, "%s/fired", test_tmp());
    for (size_t i = 0; i < n; i++) {
        snprintf(point, sizeof point, "function.%s:%d", phase, counts[i]);
        uint64_t got = run_job(point, (int)(i % FUNCTIONS), &replaced, &correct);
        CHECK_INT(unlink(marker), 0); /* it did fire */
        CHECK_INT(correct, want_correct);
        if (got != want)
            test_fail(__FILE__, __LINE__, "killed at %s: %016llx, not %016llx", point,
                      (unsigned long long)got, (unsigned long long)want);
        if (strcmp(phase, "wait") != 0)
            CHECK_INT(replaced, 1);
    }
}

TEST_LIMIT(killed_while_it_loads, 120)
{
    kill_at("load", (int[]){1, 1}, 2);
}
TEST_LIMIT(killed_while_it_fetches, 120)
{
    kill_at("fetch", (int[]){1, 2, 6}, 3);
}
TEST_LIMIT(killed_while_it_trains, 120)
{
    kill_at("train", (int[]){1, 4, 5, 13, 20}, 5);
}
TEST_LIMIT(killed_half_way_through_a_publish, 120)
{
    kill_at("publish", (int[]){1, 2, 4}, 3);
}
TEST_LIMIT(killed_while_it_waits, 120)
{
    kill_at("wait", (int[]){1, 3, 4}, 3);
}
TEST_LIMIT(killed_while_it_validates, 120)
{
    kill_at("validate", (int[]){1, 4, 5}, 3);
}

/* ---- a shared process ------------------------------------------------------------------------ */

static void open_shared(platform *p)
{
    open_platform(p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS),
                  ",\"process\":\"shared\",\"static_parallelism\":true,\"default_parallelism\":2");
    CHECK(join(p, &p->functions[0]));
    init_model(p);
}

static void close_shared(platform *p)
{
    err e = ERR_INIT;
    wire_sendf(p->functions[0].ps, &e, "{s:s}", "type", "stop");
    CHECK_INT(WEXITSTATUS(wait_end(&p->functions[0])), 0);
    close_platform(p);
}

/* Both functions train 5 batches, and their mean is merged. The reference's checksum. */
static uint64_t shared_round(platform *p, int epoch, int round, int batch)
{
    err e = ERR_INIT;
    modelstore_state state;
    json_t *task =
        json_pack("{s:s,s:i,s:i,s:I,s:i,s:f,s:i,s:[[i,i,i],[i,i,i]]}", "type", "train", "epoch",
                  epoch, "round", round, "version", (json_int_t)p->version, "parallelism",
                  FUNCTIONS, "lr", 0.01, "slot", 0, "shares", 0, batch, 5, 1, batch, 5);
    json_decref(do_task(p, &p->functions[0], task, "published"));
    CHECK(p->functions[0].begun);
    modelstore_part part = {0, p->functions[0].incarnation, 320};
    merge(p, epoch, round, round ? epoch + 1 : epoch, round ? 0 : 1, &part, 1);
    CHECK_OK(modelstore_state_get(p->owner, soon(), &state, &e), e);
    return state.checksum;
}

static void shared_validate(platform *p, int epoch)
{
    json_decref(do_task(p, &p->functions[0],
                        json_pack("{s:s,s:i,s:I,s:i,s:[i,i]}", "type", "validate", "epoch", epoch,
                                  "version", (json_int_t)p->version, "parallelism", FUNCTIONS,
                                  "functions", 0, 1),
                        "validated"));
}

/* Whoever reads it now finds that it does not match its checksum. */
static void spoil_reference(const platform *p)
{
    char name[SHM_NAME_BYTES];
    shm *s;
    err e = ERR_INIT;
    fixture_segment("job1", name);
    CHECK_OK(shm_open_segment(test_tmp(), name, true, &s, &e), e);
    shm_reference(s, p->version).floats[0] += 1;
    shm_close(s);
}

TEST_LIMIT(a_shared_process_does_not_fetch_what_it_published, 90)
{
    uint64_t last[2];
    for (int spoiled = 0; spoiled < 2; spoiled++) {
        platform p;
        open_shared(&p);
        for (int epoch = 0; epoch < EPOCHS; epoch++) {
            for (int round = 0; round < 2; round++) {
                last[spoiled] = shared_round(&p, epoch, round, 5 * round);
                if (spoiled)
                    spoil_reference(&p);
            }
            shared_validate(&p, epoch);
        }
        close_shared(&p);
    }
    CHECK(last[0] == last[1]);
}

/* After a model store that was put back to an older state the numbers of versions come again. */
TEST_LIMIT(a_shared_process_fetches_another_reference_of_the_same_version, 90)
{
    platform p;
    err e = ERR_INIT;
    open_shared(&p);
    block first = {malloc(p.layout.shape.floats * 4), calloc(p.layout.shape.counters + 1, 8)};
    CHECK_OK(modelstore_fetch(p.owner, 0, first, soon(), NULL, &e), e);
    uint64_t want = shared_round(&p, 0, 0, 0);
    modelstore_state back = {.version = p.version, .epoch = 0, .round = 1};
    CHECK_OK(modelstore_create(p.owner, &p.layout, &back, SLOTS, &first, NULL, soon(), &e), e);
    CHECK(shared_round(&p, 0, 1, 0) == want);
    free(first.floats), free(first.counters);
    close_shared(&p);
}

/* ---- the rest of its life -------------------------------------------------------------------- */

TEST(a_wrong_token_is_turned_away)
{
    runtime r = {0};
    err e = ERR_INIT;
    json_t *m;
    start_runtime(&r, NULL);
    wire *w = dial_runtime(&r);
    CHECK_OK(wire_sendf(w, &e, "{s:s,s:s}", "type", "hello", "token", "the-pool's-tokem"), e);
    CHECK_ERR(wire_receive_wait(w, &m, soon(), &e), e, ERR_UNAVAILABLE, "");
    wire_close(w);
    w = dial_runtime(&r);
    CHECK_OK(wire_sendf(w, &e, "{s:s,s:s}", "type", "specialise", "job", "x"), e);
    CHECK_ERR(wire_receive_wait(w, &m, soon(), &e), e, ERR_UNAVAILABLE, "");
    wire_close(w);
    greet(&r); /* the right one is still welcome */
    kill(r.pid, SIGTERM);
    CHECK(WIFSIGNALED(wait_end(&r)));
}

/* It may be told what is known as often as there is news, before its order. */
TEST(a_warm_runtime_is_told_what_is_known)
{
    runtime r = {0};
    err e = ERR_INIT;
    json_t *m;
    start_runtime(&r, NULL);
    wire *w = dial_runtime(&r);
    CHECK_OK(wire_sendf(w, &e, "{s:s,s:s}", "type", "known", "algorithms", ""), e);
    /* not without a hello */
    CHECK_ERR(wire_receive_wait(w, &m, soon(), &e), e, ERR_UNAVAILABLE, "");
    wire_close(w);
    greet(&r);
    for (int i = 0; i < 2; i++)
        CHECK_OK(wire_sendf(r.control, &e, "{s:s,s:s}", "type", "known", "algorithms",
                            "some machine|forward\tdirect\n"),
                 e);
    CHECK_OK(wire_sendf(r.control, &e, "{s:s}", "type", "known"), e);
    CHECK_OK(wire_sendf(r.control, &e, "{s:s}", "type", "specialise"), e);
    m = receive(r.control); /* its order comes after all that */
    CHECK_STR(m ? wire_type(m) : NULL, "failed");
    json_decref(m);
    wait_end(&r);
}

static long private_kib(pid_t pid)
{
    char path[64], line[256];
    long kib = 0, n;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Private_Clean: %ld", &n) == 1 ||
            sscanf(line, "Private_Dirty: %ld", &n) == 1)
            kib += n;
    fclose(f);
    return kib;
}

TEST(a_warm_runtime_is_small)
{
    runtime r = {0};
    if (SANITIZED)
        test_skip("a sanitizer's shadow memory counts as private");
    start_runtime(&r, NULL);
    greet(&r);
    long kib = private_kib(r.pid);
    printf("private memory of a warm runtime: %ld KiB\n", kib);
    CHECK(kib > 100 && kib <= 12 << 10);
    kill(r.pid, SIGTERM);
    wait_end(&r);
}

TEST(heartbeats_come_and_ps_may_come_back)
{
    platform p;
    err e = ERR_INIT;
    open_platform(&p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), "");
    runtime *r = &p.functions[0];
    CHECK(join(&p, r));
    int64_t began = clock_monotonic_ms();
    for (int i = 0; i < 3; i++) {
        cleanup_json json_t *m = receive(r->ps);
        CHECK_STR(m ? wire_type(m) : NULL, "heartbeat");
        CHECK_STR(json_string_value(json_object_get(m, "phase")), "wait");
    }
    int64_t took = clock_monotonic_ms() - began;
    CHECK(took >= 900); /* two pauses of 500 ms lie between three */
    wire_close(r->ps); /* kubeml-ps died; another listens at the same place */
    cleanup_json json_t *ready = admit(&p, r);
    CHECK_STR(ready ? wire_type(ready) : NULL, "ready");
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "stop"), e);
    CHECK_INT(WEXITSTATUS(wait_end(r)), 0);
    close_platform(&p);
}

static void reopen_owner(platform *p)
{
    err e = ERR_INIT;
    modelstore_access a = p->member_access;
    snprintf(a.user, sizeof a.user, "default");
    snprintf(a.password, sizeof a.password, "%s", redis_server_password(p->redis));
    modelstore_close(p->owner);
    CHECK_OK(modelstore_open(&a, MODELSTORE_OWNER, soon(), &p->owner, &e), e);
}

static void carry_by_socket(platform *p)
{
    snprintf(p->member_access.tensor_path, sizeof p->member_access.tensor_path, "socket");
    reopen_owner(p);
}

/* Who waits for a function that moves a large model sees that it gets on. */
TEST(chunks_of_the_model_are_progress)
{
    platform p;
    err e = ERR_INIT;
    open_platform(&p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), "");
    carry_by_socket(&p);
    runtime *r = &p.functions[0];
    CHECK(join(&p, r));
    init_model(&p);
    cleanup_json json_t *m = receive(r->ps);
    CHECK_STR(m ? wire_type(m) : NULL, "heartbeat");
    CHECK_INT(json_integer_value(json_object_get(m, "batches")), 2); /* floats, and counters */
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "stop"), e);
    CHECK_INT(WEXITSTATUS(wait_end(r)), 0);
    close_platform(&p);
}

/* kubeml-ps has merged it, and asks once more because it could not copy it. */
TEST(a_model_that_was_made_is_told_of_again)
{
    platform p;
    err e = ERR_INIT;
    open_platform(&p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), "");
    runtime *r = &p.functions[0];
    CHECK(join(&p, r));
    init_model(&p);
    json_decref(do_task(&p, r,
                        json_pack("{s:s,s:i,s:i,s:i,s:i}", "type", "init", "seed", 3, "epoch", -1,
                                  "round", 0, "slot", 0),
                        "initialised"));
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "stop"), e);
    CHECK_INT(WEXITSTATUS(wait_end(r)), 0);
    close_platform(&p);
}

/* Another function in its place would find it as full. */
TEST(a_model_store_that_stays_full_ends_the_job_with_that_reason)
{
    platform p;
    err e = ERR_INIT;
    open_platform(&p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), "");
    runtime *r = &p.functions[0];
    CHECK(join(&p, r));
    fixture_limit_memory(p.redis, "1");
    cleanup_json json_t *m = do_task(&p, r,
                                     json_pack("{s:s,s:i,s:i,s:i,s:i}", "type", "init", "seed", 3,
                                               "epoch", -1, "round", 0, "slot", 0),
                                     "failed");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "ModelStoreFull");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "maxmemory");
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "stop"), e);
    CHECK_INT(WEXITSTATUS(wait_end(r)), 0);
    close_platform(&p);
}

/* Nothing is trained that could not be published. */
TEST(a_folder_without_room_ends_the_job_before_it_is_trained)
{
    platform p;
    err e = ERR_INIT;
    char folder[300], others[320];
    snprintf(folder, sizeof folder, "%s/small", test_tmp());
    snprintf(others, sizeof others, "%s/others", folder);
    CHECK(mkdir(folder, 0700) == 0);
    small_disk_mount(folder, "1m"); /* for segments */
    open_platform(&p, "f", BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), "");
    snprintf(p.member_access.segment_dir, sizeof p.member_access.segment_dir, "%.*s",
             (int)sizeof p.member_access.segment_dir - 1, folder);
    reopen_owner(&p);
    runtime *r = &p.functions[0];
    CHECK(join(&p, r));
    init_model(&p);
    small_disk_fill(others);
    cleanup_json json_t *m =
        do_task(&p, r,
                json_pack("{s:s,s:i,s:i,s:I,s:i,s:i,s:i,s:i,s:f,s:i}", "type", "train", "epoch", 0,
                          "round", 0, "version", (json_int_t)p.version, "parallelism", FUNCTIONS,
                          "function", 0, "batch_begin", 0, "batch_count", 5, "lr", 0.01, "slot", 0),
                "failed");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "ModelStoreFull");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "No space left on device");
    CHECK(!r->begun);
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "stop"), e);
    CHECK_INT(WEXITSTATUS(wait_end(r)), 0);
    close_platform(&p);
}

/* The answer of a runtime whose code is at fault, told to the controller and to kubeml-ps. */
static void expect_failure(platform *p, const char *reason, const char *part)
{
    runtime *r = &p->functions[0];
    start_runtime(r, NULL);
    json_t *answers[2] = {specialise(p, r), NULL};
    answers[1] = admit(p, r);
    for (int i = 0; i < 2; i++) {
        CHECK_STR(answers[i] ? wire_type(answers[i]) : NULL, "failed");
        CHECK_STR(json_string_value(json_object_get(answers[i], "reason")), reason);
        CHECK_CONTAINS(json_string_value(json_object_get(answers[i], "message")), part);
        json_decref(answers[i]);
    }
    err e = ERR_INIT;
    wire_sendf(r->ps, &e, "{s:s}", "type", "stop");
    wait_end(r);
    close_platform(p);
}

static void expect_failed(const char *text, const char *reason, const char *part)
{
    platform p;
    open_platform(&p, "f", text, "");
    expect_failure(&p, reason, part);
}

TEST(a_model_that_does_not_fit_the_images)
{
    expect_failed(
        BLOB_MODEL("    x = kml_conv2d(g, x, .filters = 4, .kernel = 9, .name = \"big\");\n"
                   "    return kml_linear(g, kml_flatten(g, x), 2);\n",
                   ""),
        "ShapeMismatch", "big");
}

/* What it says may be in any encoding: kubeml-ps is told all the same. */
TEST(a_model_that_says_in_latin1_what_it_cannot)
{
    expect_failed(
        BLOB_MODEL("    return kml_fail(g, \"Gr\\xf6\\xdf\" \"e zu gro\\xdf\" \"!\");\n", ""),
        "ShapeMismatch", "Gr??e zu gro?!");
}

TEST(labels_beyond_the_outputs)
{
    expect_failed(BLOB_MODEL("    return kml_linear(g, kml_flatten(g, x), 1);\n", ""),
                  "ShapeMismatch", "labels up to 1, the model has 1 outputs");
}

/* What user code tries, and must not be able to do, comes back in the message. */
TEST(the_walls_stand_before_user_code_runs)
{
    char text[3000];
    snprintf(
        text, sizeof text,
        "#define _GNU_SOURCE\n#include <kubeml.h>\n#include <errno.h>\n#include <fcntl.h>\n#include <signal.h>\n"
        "#include <sys/prctl.h>\n#include <sys/resource.h>\n#include <unistd.h>\n"
        "static kml_tensor model(kml_graph *g, kml_tensor x)\n{\n"
        "    (void)x;\n"
        "    int shadow = open(\"/etc/hostname\", O_RDONLY), made = open(\"%s/made\", O_CREAT | O_RDWR, 0600);\n"
        "    int child = (int)fork(); if (child == 0) _exit(0);\n"
        "    int killed = kill(getppid(), 0), ran = execl(\"/bin/true\", \"true\", (char *)0);\n"
        "    struct rlimit l; int limits = prlimit(getppid(), RLIMIT_NOFILE, NULL, &l), own = getrlimit(RLIMIT_NOFILE, &l);\n"
        "    return kml_fail(g, \"open %%d make %%d fork %%d kill %%d exec %%d limits %%d own %%d privs %%d dump %%d\", shadow,\n"
        "                    made, child, killed, ran, limits, own, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));\n"
        "}\nKUBEML_FUNCTION(.model = model);\n",
        "/tmp");
    expect_failed(text, "ShapeMismatch",
                  "open -1 make -1 fork -1 kill -1 exec -1 limits -1 own 0 privs 1 dump 0");
}

static const char asks_for_a_unix_socket[] =
    "#include <kubeml.h>\n#include <sys/socket.h>\n"
    "static kml_tensor model(kml_graph *g, kml_tensor x)\n{\n    (void)x;\n"
    "    return kml_fail(g, \"unix %d\", socket(AF_UNIX, SOCK_STREAM, 0) >= 0);\n}\n"
    "KUBEML_FUNCTION(.model = model);\n";

TEST(a_unix_socket_where_its_addresses_are_such)
{
    expect_failed(asks_for_a_unix_socket, "ShapeMismatch", "unix 1");
}

/* As in a cluster. */
TEST(no_unix_socket_where_its_addresses_are_tcp)
{
    platform p;
    err e = ERR_INIT;
    open_platform(&p, "f", asks_for_a_unix_socket, "");
    close(p.listen_fd);
    p.listen_fd = wire_listen("tcp:127.0.0.1:0", &e);
    CHECK(p.listen_fd >= 0);
    char at[WIRE_ADDRESS_BYTES];
    CHECK_OK(wire_address(p.listen_fd, at, &e), e);
    snprintf(p.ps_address, sizeof p.ps_address, "%s", at);
    /* never dialled: its model comes first */
    snprintf(p.member_access.address, sizeof p.member_access.address, "tcp:127.0.0.1:6379");
    expect_failure(&p, "ShapeMismatch", "unix 0");
}

static void check_crash(const char *code, int number, const char *name)
{
    platform p;
    open_platform(&p, "f", code, "");
    runtime *r = &p.functions[0];
    start_runtime(r, NULL);
    cleanup_json json_t *answer = specialise(&p, r);
    CHECK(!answer);
    int status = wait_end(r);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number);
    check_log(r, "function 0 of job job1 crashed with SIG");
    check_log(r, name);
    check_log(r, "make the model");
    close_platform(&p);
}

TEST(a_crash_while_it_loads_leaves_its_line)
{
    check_crash(BLOB_MODEL("    *(volatile int *)8 = 1;\n    return x;\n", ""), SIGSEGV, "SIGSEGV");
}

/* What it raises is the processor's. */
TEST(a_trap_leaves_its_line)
{
#if defined(__x86_64__)
    const int number = SIGILL;
#else
    const int number = SIGTRAP;
#endif
    check_crash(BLOB_MODEL("    __builtin_trap();\n    return x;\n", ""), number, "__builtin_trap");
}

/* A file that it writes, its log here, would be longer than it may be. */
TEST(a_file_beyond_its_limit_leaves_its_line)
{
    platform p;
    open_platform(&p, "f",
                  "#include <kubeml.h>\n#include <unistd.h>\n"
                  "static kml_tensor model(kml_graph *g, kml_tensor x)\n"
                  "{ (void)g; return ftruncate(2, 1L << 40) ? x : x; }\n"
                  "KUBEML_FUNCTION(.model = model);\n",
                  "");
    runtime *r = &p.functions[0];
    start_runtime(r, NULL);
    cleanup_json json_t *answer = specialise(&p, r);
    CHECK(!answer);
    int status = wait_end(r);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    check_log(r, "function 0 of job job1 crashed with SIGXFSZ (a file larger than it may be)");
    close_platform(&p);
}

static void expect_end(const char *text, double lr, const char *reason, const char *part,
                       const char *log)
{
    platform p;
    err e = ERR_INIT;
    open_platform(&p, "f", text, "");
    runtime *r = &p.functions[0];
    CHECK(join(&p, r));
    init_model(&p);
    CHECK_OK(wire_sendf(r->ps, &e, "{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:i}", "type", "train",
                        "epoch", 0, "round", 0, "version", 0, "parallelism", 1, "function", 0,
                        "batch_begin", 0, "batch_count", 20, "lr", lr, "slot", 1),
             e);
    CHECK_INT(r->needs_losses, strstr(text, "kml_plateau") != NULL);
    cleanup_json json_t *m = next_report(r);
    if (reason) {
        CHECK_STR(m ? wire_type(m) : NULL, "failed");
        CHECK_STR(json_string_value(json_object_get(m, "reason")), reason);
        CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), part);
        CHECK_OK(wire_sendf(r->ps, &e, "{s:s}", "type", "stop"), e);
        CHECK_INT(WEXITSTATUS(wait_end(r)), 0);
    } else {
        CHECK(!m);
        CHECK(WIFSIGNALED(wait_end(r)));
    }
    check_log(r, log);
    close_platform(&p);
}

TEST(a_loss_that_is_no_number)
{
    expect_end(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), 1e30, "NaNLoss", "in epoch 1, batch ",
               "NaNLoss");
}

/* Code that was uploaded when nobody refused it, where one of its functions is replaced. */
TEST(an_option_that_its_kind_does_not_have_is_passed_over)
{
    expect_end(BLOB_MODEL(BLOB_LAYERS, ", .optimizer = kml_sgd(.momentum = 0.9, .beta1 = 0.9)"),
               1e30, "NaNLoss", "in epoch 1, batch ",
               "passing over an option of the code: kml_sgd has no .beta1");
}

TEST(a_crash_while_it_trains_leaves_its_line)
{
    expect_end("#include <kubeml.h>\n"
               "static kml_tensor model(kml_graph *g, kml_tensor x)\n"
               "{ return kml_linear(g, kml_flatten(g, x), 2); }\n"
               "static int step(kml_step *s) { return *(volatile int *)8 + kml_gradients(s); }\n"
               "KUBEML_FUNCTION(.model = model, .step = step);\n",
               0.01, NULL, NULL,
               "SIGSEGV (it used memory that is not its own) while it did: train, epoch 1");
}

TEST(a_schedule_without_its_history)
{
    expect_end(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS ", .schedule = kml_plateau(.patience = 2)"),
               0.01, "Unsupported", "goes by the validation losses", "Unsupported");
}

/* ---- serving --------------------------------------------------------------------------------- */

static json_t *dataset_record(const char *locator)
{
    dataset *d;
    err e = ERR_INIT;
    CHECK_OK(dataset_open(locator, &d, &e), e);
    json_t *record = dataset_info_json(dataset_get_info(d));
    dataset_close(d);
    return record;
}

TEST_LIMIT(a_trained_model_answers, 60)
{
    char locator[STORE_LOCATOR_BYTES], object[300], model[300], source[300], command[2000];
    const char *tmp = test_tmp(), *build = getenv("BUILD");
    runtime r = {0};
    err e = ERR_INIT;
    make_blobs(2, locator);
    make_object("function",
                BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS ", .schedule = kml_constant(.gamma = 0.5)"),
                object);
    snprintf(model, sizeof model, "%s/model.safetensors", tmp);
    snprintf(source, sizeof source, "%s/blobs.c", tmp);
    FILE *f = fopen(source, "w");
    CHECK(f && fputs(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS), f) >= 0 && fclose(f) == 0);
    snprintf(command, sizeof command,
             "KUBEML_INCLUDE=function-runtime/include %s/bin/kubeml-function run %s -e 2 --lr 0.01 "
             "--traindata %s/xtrain.npy --trainlabels %s/ytrain.npy --testdata %s/xtest.npy "
             "--testlabels %s/ytest.npy --save %s --threads 1 > %s/run.log 2>&1",
             build ? build : "build/release", source, tmp, tmp, tmp, tmp, model, tmp);
    CHECK_INT(system(command), 0);
    start_runtime(&r, NULL);
    greet(&r);
    CHECK_OK(wire_sendf(r.control, &e, "{s:s,s:s,s:s,s:s,s:i,s:o}", "type", "serve", "object", "f",
                        "object_path", object, "model_path", model, "classes", 2, "dataset",
                        dataset_record(locator)), e);
    cleanup_json json_t *serving = receive(r.control);
    CHECK_STR(serving ? wire_type(serving) : NULL, "serving");
    json_t *batch = json_array();
    for (int n = 0; n < 4; n++) { /* bright above: 1; bright below: 0 */
        json_t *image = json_array();
        for (int y = 0; y < BLOB_SIDE; y++) {
            json_t *row = json_array();
            for (int x = 0; x < BLOB_SIDE; x++)
                json_array_append_new(row,
                                      json_integer((y < BLOB_SIDE / 2) == (n & 1) ? 147 : 107));
            json_array_append_new(image, row);
        }
        json_array_append_new(batch, image);
    }
    CHECK_OK(wire_sendf(r.control, &e, "{s:s,s:o}", "type", "infer", "data", batch), e);
    cleanup_json json_t *answer = receive(r.control);
    CHECK_STR(answer ? wire_type(answer) : NULL, "predictions");
    const json_t *data = json_object_get(answer, "data");
    for (size_t n = 0; n < 4; n++)
        CHECK_INT(json_integer_value(json_array_get(json_object_get(data, "predictions"), n)),
                  n & 1);
    CHECK_INT(json_array_size(json_array_get(json_object_get(data, "logits"), 3)), 2);
    CHECK_OK(wire_sendf(r.control, &e, "{s:s,s:[i,i]}", "type", "infer", "data", 1, 2), e);
    cleanup_json json_t *bad = receive(r.control);
    CHECK_STR(bad ? wire_type(bad) : NULL, "failed");
    CHECK_CONTAINS(json_string_value(json_object_get(bad, "message")), "the model takes (1, 8, 8)");
    wire_close(r.control);
    r.control = NULL;
    CHECK_INT(WEXITSTATUS(wait_end(&r)), 0);
}
