/* test_pool.c: pods that start and cannot be talked to. The test is the owner's thread, and its
 * clock runs ahead. */
#include <stdio.h>
#include <unistd.h>

#include "../../controller/owner_internal.h"
#include "clock.h"
#include "test.h"

static const job asking = {.id = "0123456789ab"};
static char address[CLUSTER_ADDRESS_BYTES];
static char last_started[CLUSTER_NAME_BYTES], last_stopped[CLUSTER_NAME_BYTES];
static int started, stopped;

static int start(cluster *c, const pod_spec *spec, pod *out, err *e)
{
    (void)c, (void)e;
    *out = (pod){.role = spec->role, .function = -1, .incarnation = -1};
    snprintf(out->name, sizeof out->name, "%s", spec->name);
    snprintf(out->address, sizeof out->address, "%s", address);
    snprintf(last_started, sizeof last_started, "%s", spec->name);
    started++;
    return 0;
}

static int stop(cluster *c, const char *name, int grace_ms, err *e)
{
    (void)c, (void)grace_ms, (void)e;
    snprintf(last_stopped, sizeof last_stopped, "%s", name);
    stopped++;
    return 0;
}

static const cluster_ops ops = {.name = "fake", .start = start, .stop = stop};
static cluster fake = {.ops = &ops};
static controller platform;
static owner o = {
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
    CHECK(p->wire);
    pool_timers(&o, since_ms + 2 * POD_HELLO_MS);
    CHECK_INT(stopped, 0);
    close(fd);
    err_set(&gone, ERR_UNAVAILABLE, "closed");
    pool_broken(&o, p, &gone);
    is_replaced(p->name, since_ms);
    close_world();
}
