/* test_kube_lease.c: which of several controllers leads, and what one that does not leaves alone. */
#include "common/base/clock.h"
#include "controller/kube/kube_lease.h"
#include "fake_kube.h"
#include "test.h"

/* Two replicas before one API server. */
typedef struct replicas {
    fake_kube *server;
    kube_config access;
    kube_lease *a, *b;
} replicas;

static void open_replicas(replicas *r)
{
    err e = ERR_INIT;
    r->server = fake_kube_start();
    r->access = (kube_config){.server = strdup(fake_kube_url(r->server)), .namespace_name = "test"};
    CHECK_OK(kube_lease_open(&r->access, "kubeml", "a", "http://a", &r->a, &e), e);
    CHECK_OK(kube_lease_open(&r->access, "kubeml", "b", "http://b", &r->b, &e), e);
}

static void close_replicas(replicas *r)
{
    kube_lease_close(r->a, false);
    kube_lease_close(r->b, false);
    fake_kube_stop(r->server);
    kube_config_free(&r->access);
}

static void check_try(kube_lease *l, int64_t now_ms, int leads)
{
    err e = ERR_INIT;
    CHECK_INT(kube_lease_try(l, now_ms, &e), leads);
}

static void check_renew(kube_lease *l, int64_t now_ms, int leads)
{
    err e = ERR_INIT;
    CHECK_INT(kube_lease_renew(l, now_ms, &e), leads);
}

/* `l` looks as often as it does, and finds that another holds it. */
static void stand_by(kube_lease *l, int64_t from_ms, int64_t to_ms)
{
    for (int64_t at = from_ms; at <= to_ms; at += KUBE_LEASE_RENEW_MS)
        check_try(l, at, 0);
}

TEST(one_of_two_leads)
{
    replicas r;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    check_try(r.b, 1000, 0);
    CHECK_STR(kube_lease_leader(r.b), "http://a");
    CHECK_STR(kube_lease_leader(r.a), "");
    check_renew(r.a, 1500, 1);
    CHECK(kube_lease_held(r.a, 3699) && !kube_lease_held(r.a, 3700));
    CHECK(!kube_lease_held(r.b, 1500));
    /* a is gone: nobody takes over before its time is up, as b sees it. */
    stand_by(r.b, 1600, 4100);
    CHECK_INT(kube_lease_next_ms(r.b, 3600), 4100);
    CHECK_INT(kube_lease_next_ms(r.b, 4200), 4600); /* sooner than it looks */
    check_try(r.b, 4599, 0);
    check_try(r.b, 4600, 1);
    CHECK_INT(kube_lease_next_ms(r.b, 4600), 5100);
    CHECK_STR(kube_lease_leader(r.b), "");
    check_renew(r.a, 4700, 0);
    CHECK_STR(kube_lease_leader(r.a), "http://b");
    CHECK(!kube_lease_held(r.a, 4700));
    /* An orderly end lets go, and a third need not wait. */
    kube_lease_close(r.b, true);
    err e = ERR_INIT;
    CHECK_OK(kube_lease_open(&r.access, "kubeml", "c", "http://c", &r.b, &e), e);
    check_try(r.b, 5000, 1);
    close_replicas(&r);
}

TEST(of_two_that_stand_by_one_takes_over)
{
    replicas r;
    kube_lease *c;
    err e = ERR_INIT;
    open_replicas(&r);
    CHECK_OK(kube_lease_open(&r.access, "kubeml", "c", "http://c", &c, &e), e);
    check_try(c, 1000, 1);
    for (int64_t at = 1100; at <= 3600; at += 500) {
        check_try(r.a, at, 0);
        check_try(r.b, at, 0);
    }
    check_try(r.a, 4100, 1);
    check_try(r.b, 4100, 0); /* it is a's, and new */
    CHECK_STR(kube_lease_leader(r.b), "http://a");
    stand_by(r.b, 4600, 6600);
    kube_lease_close(c, false);
    close_replicas(&r);
}

/* The server comes back for both at once: who leads has time to renew. */
TEST(what_a_standby_could_not_see_is_not_counted)
{
    replicas r;
    err e = ERR_INIT;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    stand_by(r.b, 1000, 2000);
    fake_kube_fault(r.server, FAKE_GET, FAULT_STATUS, 503, -1, 1);
    CHECK_ERR(kube_lease_try(r.b, 2500, &e), e, ERR_UNAVAILABLE, "test says");
    check_try(r.b, 2600, 0);  /* 1600 ms before its eyes */
    check_try(r.b, 90000, 0); /* and one second more */
    check_try(r.b, 90399, 0);
    check_renew(r.a, 90399, 1);
    check_try(r.b, 90400, 0);
    stand_by(r.b, 90900, 92900);
    check_try(r.b, 93400, 1);
    close_replicas(&r);
}

TEST(who_could_not_renew_leads_on_when_nobody_else_has_led)
{
    replicas r;
    err e = ERR_INIT;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    fake_kube_fault(r.server, FAKE_PATCH, FAULT_STATUS, 503, -1, 1);
    CHECK_ERR(kube_lease_renew(r.a, 1500, &e), e, ERR_UNAVAILABLE, "test says");
    CHECK(!kube_lease_held(r.a, 9000));
    check_renew(r.a, 9000, 1);
    CHECK(kube_lease_held(r.a, 11199));
    /* Its answer is lost, and the next write meets another version: that was its own. */
    fake_kube_fault(r.server, FAKE_PATCH, FAULT_DONE_DROP, 0, 0, 1);
    check_renew(r.a, 20000, 1);
    check_renew(r.a, 20500, 1);
    close_replicas(&r);
}

TEST(who_was_followed_by_another_does_not_lead_again)
{
    replicas r;
    open_replicas(&r);
    check_try(r.a, 1000, 1);
    stand_by(r.b, 1000, 3500);
    check_try(r.b, 4000, 1);
    check_renew(r.a, 4100, 0);
    CHECK_STR(kube_lease_leader(r.a), "http://b");
    /* Not even where that one has let go of it, */
    kube_lease_close(r.b, true);
    check_renew(r.a, 4200, 0);
    /* or it was taken under the same name: another process, as far as anybody knows. */
    err e = ERR_INIT;
    CHECK_OK(kube_lease_open(&r.access, "kubeml", "a", "http://a", &r.b, &e), e);
    check_try(r.b, 4300, 1);
    check_renew(r.a, 4400, 0);
    close_replicas(&r);
}

TEST(a_write_that_comes_second_does_not_lead)
{
    replicas r;
    open_replicas(&r);
    fake_kube_fault(r.server, FAKE_CREATE, FAULT_STATUS, 409, -1, 1);
    check_try(r.a, 1000, 0);
    CHECK(!kube_lease_held(r.a, 1000));
    close_replicas(&r);
}

static bool says(const void *yes)
{
    return *(const bool *)yes;
}

/* As long as another may lead, nothing is changed; what is there can be read. */
TEST(who_may_not_write_reads)
{
    fake_kube *server = fake_kube_start();
    bool leads = false;
    kube_config access = {.server = strdup(fake_kube_url(server)),
                          .namespace_name = "test",
                          .may_write = says,
                          .writer = &leads};
    kube_client *c;
    json_t *object = json_pack("{s:{s:s}}", "metadata", "name", "x");
    err e = ERR_INIT;
    CHECK_OK(kube_client_open(&access, &c, &e), e);
    fake_kube_put(server, "y", json_object());
    CHECK_ERR(kube_create(c, FAKE_KUBE_PODS, object, clock_deadline_ms(300), NULL, &e), e,
              ERR_UNAVAILABLE, "does not lead");
    CHECK_INT(fake_kube_requests(server, FAKE_KINDS), 0);
    err_clear(&e);
    CHECK_OK(kube_get(c, FAKE_KUBE_PODS "/y", NULL, clock_deadline_ms(10000), NULL, &e), e);
    leads = true;
    CHECK_OK(kube_create(c, FAKE_KUBE_PODS, object, clock_deadline_ms(10000), NULL, &e), e);
    json_decref(object);
    kube_client_close(c);
    fake_kube_stop(server);
    kube_config_free(&access);
}

/* By the chart's Role: it may write this one, and make none. */
TEST(a_lease_that_was_deleted_is_said_to_be)
{
    replicas r;
    err e = ERR_INIT;
    open_replicas(&r);
    fake_kube_fault(r.server, FAKE_CREATE, FAULT_STATUS, 403, -1, 1);
    CHECK_ERR(kube_lease_try(r.a, 1000, &e), e, ERR_FORBIDDEN, "helm upgrade");
    CHECK_CONTAINS(e.message, "the Lease kubeml is not there");
    check_try(r.a, 1500, 1);
    close_replicas(&r);
}
