/* test_pool.c: pods that start and cannot be talked to, and those that were there before. The test
 * is the owner's thread, and its clock runs ahead. */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "controller/jobs/job_manager_internal.h"
#include "test.h"

static const job asking = {.id = "0123456789ab"};
static char address[CLUSTER_ADDRESS_BYTES];
static char last_started[CLUSTER_NAME_BYTES], last_stopped[CLUSTER_NAME_BYTES];
static int started, stopped, last_grace_ms;
static bool anywhere; /* the last that started */

static int start(cluster *c, const pod_spec *spec, pod *out, err *e)
{
    (void)c, (void)e;
    *out = (pod){.role = spec->role, .function = -1, .incarnation = -1};
    snprintf(out->name, sizeof out->name, "%s", spec->name);
    snprintf(out->address, sizeof out->address, "%s", address);
    snprintf(last_started, sizeof last_started, "%s", spec->name);
    anywhere = spec->anywhere;
    started++;
    return 0;
}

static int stop(cluster *c, const char *name, int grace_ms, err *e)
{
    (void)c, (void)e;
    last_grace_ms = grace_ms;
    snprintf(last_stopped, sizeof last_stopped, "%s", name);
    stopped++;
    return 0;
}

/* Of a controller before: the job's kubeml-ps, again and again. */
static size_t there;

static int list(cluster *c, pod *out, size_t max, size_t *count, err *e)
{
    (void)c, (void)e;
    *count = there;
    for (size_t i = 0; i < there && i < max; i++) {
        out[i] = (pod){.role = POD_PS, .phase = POD_RUNNING, .function = -1, .incarnation = (int)i};
        snprintf(out[i].name, sizeof out[i].name, "ps-%zu", i);
        snprintf(out[i].job, sizeof out[i].job, "%s", asking.id);
        snprintf(out[i].address, sizeof out[i].address, "%s", address);
    }
    return 0;
}

static int next_event(cluster *c, pod *out, err *e)
{
    (void)c, (void)out, (void)e;
    return 0;
}

static const cluster_ops ops = {
    .name = "fake", .start = start, .stop = stop, .list = list, .next_event = next_event};
static cluster fake = {.ops = &ops};
static controller platform;
static job_manager o = {
    .controller = &platform, .cluster = &fake, .events_end = &o.events, .patience = 1};

static void open_world(const char *where)
{
    err e = ERR_INIT;
    job_limits limits;
    job_limits_default(&limits);
    snprintf(address, sizeof address, "%s", where);
    CHECK_OK(jobs_open(&limits, 1, &o.machine, &e), e);
}

static void close_world(void)
{
    pool_close(&o);
    jobs_close(o.machine);
    while (o.events) {
        event *v = o.events;
        o.events = v->next;
        free(v);
    }
    o.events_end = &o.events;
}

/* Another one starts for whom it was meant for when a pod has had its time, and only then. */
static void is_replaced(const char *first, int64_t since_ms)
{
    pool_timers(&o, since_ms + POD_HELLO_MS / 2);
    CHECK_INT(stopped, 0);
    o.pool_retry_ms = 0;
    CHECK(pool_deadline(&o) <= since_ms + POD_HELLO_MS + POD_DIAL_MS_MAX);
    pool_timers(&o, since_ms + POD_HELLO_MS + POD_DIAL_MS_MAX);
    CHECK_INT(stopped, 1);
    CHECK_STR(last_stopped, first);
    CHECK_INT(started, 2);
    const link_pod *next = pool_of(&o, asking.id, 0, 3);
    CHECK(next);
    CHECK_STR(next->name, last_started);
    CHECK_STR(pool_find(&o, first)->job, "");
}

static link_pod *take(void)
{
    pool_take(&o, &(job_action){.type = JOB_TAKE, .job = &asking, .function = 0, .incarnation = 3});
    CHECK_INT(started, 1);
    return pool_find(&o, last_started);
}

/* Its connection, which is begun, is made. */
static void connects(link_pod *p, int64_t now_ms)
{
    struct pollfd waits = {.events = POLLOUT};
    if (p->dialled) {
        waits.fd = wire_fd(p->dialled);
        CHECK_INT(poll(&waits, 1, 30000), 1);
        pool_dialled(&o, p, now_ms);
    }
    CHECK(p->wire && !p->dialled);
    CHECK_INT(p->talk, TALK_WELCOME);
}

TEST(a_pod_where_nobody_listens_is_replaced)
{
    char nowhere[WIRE_ADDRESS_BYTES];
    snprintf(nowhere, sizeof nowhere, "tcp:127.0.0.1:%d", test_free_port());
    open_world(nowhere);
    const link_pod *p = take();
    is_replaced(p->name, p->since_ms);
    close_world();
}

TEST(a_pod_that_makes_itself_ready_is_waited_for_while_it_keeps_its_connection)
{
    err e = ERR_INIT, gone = ERR_INIT;
    char here[WIRE_ADDRESS_BYTES] = "tcp:127.0.0.1:0";
    int fd = wire_listen(here, &e);
    CHECK_OK(fd < 0 ? -1 : 0, e);
    CHECK_OK(wire_address(fd, here, &e), e);
    open_world(here);
    link_pod *p = take();
    int64_t since_ms = p->since_ms;
    pool_timers(&o, since_ms + POD_HELLO_MS / 2);
    connects(p, since_ms + POD_HELLO_MS / 2);
    pool_timers(&o, since_ms + 2 * POD_HELLO_MS);
    CHECK_INT(stopped, 0);
    close(fd);
    err_set(&gone, ERR_UNAVAILABLE, "closed");
    pool_broken(&o, p, &gone);
    is_replaced(p->name, since_ms);
    close_world();
}

/* ---- what has no address yet ------------------------------------------------------------------
 */

/* What the cluster says of a pod that is not made yet. */
static void says(const link_pod *p, bool untaken, const char *reason)
{
    pod now = {.role = p->role,
               .phase = POD_PENDING,
               .function = -1,
               .incarnation = -1,
               .untaken = untaken};
    snprintf(now.name, sizeof now.name, "%s", p->name);
    snprintf(now.reason, sizeof now.reason, "%s", reason);
    pool_changed(&o, &now);
}

/* However long it has waited: its node has its time from when there is one. */
TEST(a_pod_that_has_waited_for_room_has_its_time_from_then_on)
{
    open_world("");
    link_pod *p = take();
    says(p, false, "Unschedulable");
    p->since_ms -= 120000;
    int64_t now_ms = clock_monotonic_ms();
    pool_timers(&o, now_ms);
    CHECK_INT(stopped, 0);
    says(p, true, "");
    now_ms = clock_monotonic_ms();
    pool_timers(&o, now_ms + 9000);
    CHECK_INT(stopped, 0);
    pool_timers(&o, now_ms + 10000);
    CHECK_INT(stopped, 1);
    CHECK_STR(last_stopped, p->name);
    CHECK_STR(pool_of(&o, asking.id, 0, 3)->name, last_started);
    close_world();
}

/* Where no scheduler answers another one would wait too. */
TEST(a_pod_has_its_time_from_when_it_is_placed)
{
    open_world("");
    link_pod *p = take();
    p->since_ms -= 120000;
    pool_timers(&o, clock_monotonic_ms());
    CHECK_INT(stopped, 0);
    says(p, true, "");
    int64_t now_ms = clock_monotonic_ms();
    pool_timers(&o, now_ms + 9000);
    CHECK_INT(stopped, 0);
    pool_timers(&o, now_ms + 10000);
    CHECK_INT(stopped, 1);
    close_world();
}

/* Its image may be large; a node that is gone never said that it makes it. Others that were stuck
 * change nothing of its time, which is long enough. */
TEST(a_pod_that_its_node_makes_may_take_its_time)
{
    open_world("");
    link_pod *p = take();
    says(p, true, "");
    says(p, false, "");
    int64_t now_ms = clock_monotonic_ms();
    pool_timers(&o, now_ms + 300000);
    CHECK_INT(stopped, 0);
    says(p, false, "ContainerCreating");
    o.patience = 8;
    pool_timers(&o, now_ms + 300000);
    CHECK_INT(stopped, 0);
    pool_timers(&o, now_ms + 600000);
    CHECK_INT(stopped, 1);
    CHECK_STR(last_stopped, p->name);
    close_world();
}

static void untake(bool late)
{
    pool_untake(
        &o,
        &(job_action){
            .type = JOB_UNTAKE, .job = &asking, .function = 0, .incarnation = 3, .value = late});
}

/* Without grace, which keeps the next one from its node. */
TEST(a_pod_that_its_node_could_not_make_in_a_jobs_time_is_given_up)
{
    open_world("");
    link_pod *p = take();
    says(p, false, "");
    p->since_ms -= 290000;
    untake(true);
    CHECK_STR(last_stopped, p->name);
    CHECK_INT(last_grace_ms, 0);
    close_world();
}

static int log_tail(cluster *c, const char *name, size_t bytes_max, cluster_log *out, err *e)
{
    (void)c, (void)name, (void)bytes_max, (void)out;
    return err_set(e, ERR_NOT_FOUND, "none");
}

/* Nor does what it has written, which may be long: of a job's pods the log is kept first. */
TEST(a_pod_of_no_job_that_had_started_does_not_outlive_its_end)
{
    cluster_ops with_logs = ops;
    with_logs.log_tail = log_tail;
    fake.ops = &with_logs;
    static const pod_use uses[] = {USE_STARTING, USE_WARM, USE_SERVE};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        stopped = started = 0;
        open_world("");
        link_pod *p = take();
        p->job[0] = '\0';
        pool_use(p, uses[i]);
        pod ended = {.phase = POD_ENDED, .signal = SIGKILL, .reason = "Killed"};
        snprintf(ended.name, sizeof ended.name, "%s", last_started);
        pool_ended(&o, &ended);
        CHECK(!pool_find(&o, last_started));
        CHECK_INT(stopped, uses[i] == USE_STARTING ? 0 : 1);
        close_world();
    }
    fake.ops = &ops;
}

TEST(a_pod_that_is_wanted_no_more_says_nothing_against_its_node)
{
    open_world("");
    link_pod *p = take();
    says(p, false, "");
    p->since_ms -= 290000;
    untake(false);
    CHECK_INT(last_grace_ms, POD_GRACE_MS);
    close_world();
}

TEST(a_pod_that_waited_for_its_image_says_nothing_against_its_node)
{
    open_world("");
    link_pod *p = take();
    says(p, false, "ImagePullBackOff");
    p->since_ms -= 290000;
    untake(true);
    CHECK_INT(last_grace_ms, POD_GRACE_MS);
    close_world();
}

/* Whichever is there first is the job's. */
TEST(a_job_does_not_count_on_a_pod_that_is_made_for_long)
{
    err e = ERR_INIT;
    open_world("");
    link_pod *old = pool_start(&o, POD_FUNCTION, -1, &e);
    CHECK(old);
    says(old, false, "");
    old->since_ms -= 10000;
    job_action a = {.type = JOB_TAKE, .job = &asking, .function = 0, .incarnation = 3};
    pool_take(&o, &a);
    CHECK_INT(started, 2);
    CHECK_STR(pool_of(&o, asking.id, 0, 3)->name, last_started);
    link_pod *new = pool_start(&o, POD_FUNCTION, -1, &e);
    a.function = 1;
    pool_take(&o, &a);
    CHECK_INT(started, 3);
    CHECK(pool_of(&o, asking.id, 1, 3) == new);
    close_world();
}

TEST(what_is_made_on_a_node_that_fell_silent_is_replaced_at_once)
{
    open_world("");
    link_pod *p = take();
    says(p, false, "");
    says(p, false, CLUSTER_NODE_SILENT);
    pool_timers(&o, clock_monotonic_ms());
    CHECK_INT(stopped, 1);
    CHECK_STR(last_stopped, p->name);
    close_world();
}

/* Its successor waits for a node like any other. */
TEST(a_pod_that_avoids_nodes_in_vain_is_replaced_by_one_that_does_not)
{
    open_world("");
    link_pod *p = take();
    CHECK(!anywhere);
    pod now = {.role = p->role,
               .phase = POD_PENDING,
               .function = -1,
               .incarnation = -1,
               .reason = "Unschedulable",
               .kept_back = true};
    snprintf(now.name, sizeof now.name, "%s", p->name);
    pool_changed(&o, &now);
    pool_timers(&o, clock_monotonic_ms());
    CHECK_INT(stopped, 1);
    CHECK_STR(last_stopped, p->name);
    CHECK_INT(started, 2);
    CHECK(anywhere);
    CHECK_INT(o.patience, 1);
    link_pod *next = pool_of(&o, asking.id, 0, 3);
    CHECK_STR(next->name, last_started);
    says(next, false, "Unschedulable");
    pool_timers(&o, clock_monotonic_ms() + 3600 * 1000);
    CHECK_INT(stopped, 1);
    close_world();
}

/* ---- where nobody answers -------------------------------------------------------------------- */

/* A listener whose backlog is full: who connects gets no answer. `fills` fill it. */
static int listen_silently(char at[WIRE_ADDRESS_BYTES], wire *fills[2])
{
    err e = ERR_INIT;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 && listen(fd, 0) == 0);
    CHECK_OK(wire_address(fd, at, &e), e);
    for (int i = 0; i < 2; i++)
        CHECK((fills[i] = wire_dial_begin(at, &e)));
    return fd;
}

static int events_of(job_event_type type)
{
    int count = 0;
    for (const event *v = o.events; v; v = v->next)
        count += v->e.type == type;
    return count;
}

/* Their time is over together, and not one's after the other's. */
TEST(pods_where_nobody_answers_are_dialled_side_by_side)
{
    char nowhere[WIRE_ADDRESS_BYTES];
    wire *fills[2];
    int fd = listen_silently(nowhere, fills);
    open_world(nowhere);
    there = 3;
    pool_find_all(&o);
    for (link_pod *p = o.pods; p; p = p->next) {
        job_action attach = {.type = JOB_ATTACH, .job = &asking, .function = JOB_KUBEML_PS};
        snprintf(attach.pod, sizeof attach.pod, "%s", p->name);
        pool_attach(&o, &attach);
    }
    int64_t now_ms = clock_monotonic_ms();
    pool_timers(&o, now_ms);
    CHECK_INT(events_of(JOB_PS_CLOSED), 0);
    CHECK(pool_deadline(&o) <= now_ms + POD_DIAL_MS_MAX);
    pool_timers(&o, now_ms + POD_DIAL_MS_MAX);
    CHECK_INT(events_of(JOB_PS_CLOSED), 3);
    close_world();
    wire_close(fills[0]);
    wire_close(fills[1]);
    close(fd);
}

/* Not at once, but before its time is over. */
TEST(a_pod_that_answers_late_is_talked_to)
{
    char here[WIRE_ADDRESS_BYTES];
    wire *fills[2];
    int fd = listen_silently(here, fills);
    open_world(here);
    link_pod *p = take();
    int64_t now_ms = p->dial_ms;
    pool_timers(&o, now_ms);
    CHECK(!p->wire && p->dialled);
    wire_close(fills[1]);
    close(accept(fd, NULL, NULL)); /* there is room for one */
    connects(p, now_ms);
    close_world();
    wire_close(fills[0]);
    close(fd);
}

/* ---- a kubeml-ps that stands still ----------------------------------------------------------- */

static int64_t looked_ms;

/* The job's kubeml-ps, which has accepted it; `other`: its end. */
static link_pod *accepted(wire **other)
{
    err e = ERR_INIT;
    int fd[2];
    open_world("unix:/nowhere");
    there = 1;
    pool_find_all(&o);
    link_pod *p = pool_find(&o, "ps-0");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    CHECK(p && (p->wire = wire_adopt(fd[0], &e)) && (*other = wire_adopt(fd[1], &e)));
    p->talk = TALK_ACCEPTED;
    looked_ms = 1000;
    pool_listened(&o, looked_ms);
    CHECK_OK(wire_sendf(*other, &e, "{s:s}", "type", "accepted"), e);
    pool_readable(&o, p);
    CHECK_INT(events_of(JOB_PS_ACCEPTED), 1);
    return p;
}

/* So often a turn comes after so long, in which nothing can be read. */
static void look(int times, int64_t after_ms)
{
    for (int i = 0; i < times; i++) {
        looked_ms += after_ms;
        pool_listened(&o, looked_ms);
        pool_timers(&o, looked_ms);
    }
}

TEST(a_kubeml_ps_that_says_nothing_is_found_by_that)
{
    wire *other;
    err e = ERR_INIT;
    link_pod *p = accepted(&other);
    CHECK(pool_deadline(&o) <= looked_ms + POD_LISTEN_MS);
    look(POD_HUNG_MS / 1000 - 1, 1000);
    CHECK_OK(wire_sendf(other, &e, "{s:s,s:[]}", "type", "usage", "functions"), e);
    pool_readable(&o, p);
    look(POD_HUNG_MS / 1000 - 1, 1000);
    CHECK_INT(events_of(JOB_PS_SILENT), 0);
    look(5, 1000);
    CHECK_INT(events_of(JOB_PS_SILENT), 1);
    CHECK(!p->wire);
    wire_close(other);
    close_world();
}

/* Stopped, or frozen together with it, or held up in each turn: but where that goes on, it is found
 * all the same. */
TEST(a_kubeml_ps_is_not_called_silent_for_our_own_pause)
{
    wire *other;
    accepted(&other);
    look(1, 10 * POD_HUNG_MS);
    look(POD_HUNG_MS / POD_LISTEN_MS - 2, 60000);
    CHECK_INT(events_of(JOB_PS_SILENT), 0);
    look(1, 60000);
    CHECK_INT(events_of(JOB_PS_SILENT), 1);
    wire_close(other);
    close_world();
}

/* ---- what talks without end ------------------------------------------------------------------ */

/* Frames that are all there at once, as many as the socket takes. */
static int flood(wire *w, const char *type)
{
    err e = ERR_INIT;
    int count = 0;
    for (; !wire_wants_write(w); count++)
        CHECK_OK(wire_sendf(w, &e, "{s:s}", "type", type), e);
    return count;
}

/* User code does so on the connection that it finds while it is loaded. */
TEST(a_function_that_says_what_nobody_asked_for_is_hung_up_on)
{
    err e = ERR_INIT;
    int fd[2];
    open_world("unix:/nowhere");
    link_pod *p = take();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    wire *code = wire_adopt(fd[1], &e);
    CHECK(code && (p->wire = wire_adopt(fd[0], &e)));
    pool_use(p, USE_JOB);
    p->talk = TALK_SPECIALISED;
    CHECK(flood(code, "x") > 100);
    pool_readable(&o, p);
    CHECK(!p->wire);
    CHECK_INT(events_of(JOB_UNSPECIALISED), 1);
    const event *v = o.events;
    while (v->e.type != JOB_UNSPECIALISED)
        v = v->next;
    CHECK_INT(v->e.code, ERR_CORRUPT); /* its job ends: the next one would say it, too */
    CHECK_STR(v->message, "it says \"x\", which nobody asked for");
    wire_close(code);
    close_world();
}

/* Others are heard in between, and what is read already is not forgotten. */
TEST(a_kubeml_ps_that_talks_without_end_has_its_share_of_a_turn)
{
    wire *other;
    link_pod *p = accepted(&other);
    int said = flood(other, "need"), turns = 0;
    CHECK(said > 3 * 64);
    do {
        pool_readable(&o, p);
        CHECK(events_of(JOB_PS_NEED) <= 64 * ++turns);
    } while (p->more);
    CHECK(events_of(JOB_PS_NEED) >= said - 1); /* the last one is not whole */
    wire_close(other);
    close_world();
}

/* ---- of a controller before ------------------------------------------------------------------ */

TEST(however_many_pods_there_are_all_are_found)
{
    open_world("unix:/nowhere");
    there = 3000;
    pool_find_all(&o);
    CHECK_INT(events_of(JOB_POD_FOUND), 3000);
    close_world();
}

TEST(a_function_is_told_how_many_threads_its_job_has)
{
    static const job grown = {.id = "0123456789ab", .parallelism = 5, .threads = 3};
    err e = ERR_INIT;
    int fd[2];
    platform.config.cluster = "kubernetes";
    open_world("unix:nowhere");
    link_pod *p = take();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    p->wire = wire_adopt(fd[0], &e);
    wire *function = wire_adopt(fd[1], &e);
    CHECK(p->wire && function);
    job_context *s = job_context_new(&o, grown.id);
    s->access = json_object();
    s->dataset = json_object();
    s->function = json_pack("{s:s}", "object", "zoo:mlp");
    job_action order = {.type = JOB_SPECIALISE, .job = &grown, .function = 4};
    snprintf(order.pod, sizeof order.pod, "%s", p->name);
    pool_specialise(&o, &order);
    json_t *told = NULL;
    CHECK_OK(wire_receive_wait(function, &told, clock_deadline_ms(10000), &e), e);
    CHECK_STR(wire_type(told), "specialise");
    CHECK_INT(json_integer_value(json_object_get(told, "threads")), 3);
    json_decref(told);
    wire_close(function);
    job_context_drop(&o, grown.id);
    close_world();
}
