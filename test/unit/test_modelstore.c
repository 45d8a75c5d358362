/* test_modelstore.c: one set of cases for every implementation and carrier of modelstore.h. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/modelstore/merge.h"
#include "common/modelstore/redis_link.h"
#include "common/modelstore/shm.h"
#include "modelstore_job.h"

IN_EVERY_STORE(rounds_merge_what_was_published, 20)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    modelstore_status status;
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    check_fetched(&f, 0, (uint64_t[][2]){{7, 1}}, 1);
    modelstore *m[3];
    const modelstore_part parts[3] = {{0, 1, 100}, {1, 1, 250}, {2, 1, 0}};
    for (int i = 0; i < 3; i++)
        m[i] = attached_member(&f);
    for (int r = 1; r <= 3; r++) {
        for (int i = 2; i >= 0; i--) /* the order of arrival does not count */
            CHECK_OK(
                publish(m[i], 0, r, r - 1, i, 1, parts[i].samples, (uint64_t)(10 * r + i), &f, &e),
                e);
        CHECK_OK(modelstore_status_get(f.owner, fixture_deadline(), &status, &e), e);
        CHECK_INT(status.count, 3);
        CHECK_INT(status.published[1].samples, 250);
        CHECK_INT(status.state.version, r - 1);
        char ledger[64];
        snprintf(ledger, sizeof ledger, "{\"version\":%d}", r);
        CHECK_OK(merge(&f, 0, r, r - 1, parts, 3, ledger, &merged, &e), e);
        CHECK_INT(merged.state.version, r);
        CHECK_INT(merged.state.round, r + 1);
        CHECK_INT(merged.bad_function, -1);
        check_fetched(&f, r,
                      (uint64_t[][2]){{(uint64_t)(10 * r), 100}, {(uint64_t)(10 * r + 1), 250}}, 2);
    }
    CHECK_OK(modelstore_status_get(f.owner, fixture_deadline(), &status, &e), e);
    CHECK_INT(status.count, 0);
    CHECK_INT(status.state.checksum, merged.state.checksum);
    char *ledger;
    size_t len;
    CHECK_OK(modelstore_ledger(f.owner, fixture_deadline(), &ledger, &len, &e), e);
    CHECK_STR(ledger, "[{\"version\":0},{\"version\":1},{\"version\":2},{\"version\":3}]");
    CHECK_INT(len, strlen(ledger));
    free(ledger);
    for (int i = 0; i < 3; i++)
        modelstore_close(m[i]);
    CHECK_OK(modelstore_drop(f.owner, fixture_deadline(), &e), e);
    CHECK_ERR(modelstore_status_get(f.owner, fixture_deadline(), &status, &e), e, ERR_NOT_FOUND,
              "no such job");
    CHECK_OK(modelstore_drop(f.owner, fixture_deadline(), &e), e);
    fixture_free(&f);
}

IN_EVERY_STORE(what_is_stale_or_doubled_is_refused, 20)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    const modelstore_part one = {0, 3, 10}, wrong = {0, 3, 11}, missing[] = {{0, 3, 10}, {1, 1, 5}};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_ERR(publish(m, 0, 0, -1, 0, 1, 1, 7, &f, &e), e, ERR_STALE, "epoch 0, round 0 is over");
    CHECK_ERR(publish(m, 0, 2, 0, 0, 1, 1, 7, &f, &e), e, ERR_CONFLICT, "not open yet");
    CHECK_ERR(publish(m, 0, 1, -1, 0, 1, 1, 7, &f, &e), e, ERR_STALE, "version -1");
    CHECK_OK(publish(m, 0, 1, 0, 0, 2, 10, 21, &f, &e), e);
    CHECK_OK(publish(m, 0, 1, 0, 0, 2, 10, 21, &f, &e), e); /* again: no difference */
    CHECK_ERR(publish(m, 0, 1, 0, 0, 2, 10, 22, &f, &e), e, ERR_CONFLICT, "other bytes before");
    CHECK_ERR(publish(m, 0, 1, 0, 0, 1, 10, 21, &f, &e), e, ERR_STALE, "incarnation 1 is over");
    CHECK_OK(publish(m, 0, 1, 0, 0, 3, 10, 23, &f, &e), e); /* replaces */
    CHECK_ERR(publish(m, 0, 1, 0, 0, 2, 10, 21, &f, &e), e, ERR_STALE, "incarnation 2 is over");
    CHECK_ERR(merge(&f, 0, 1, 0, &wrong, 1, "{}", &merged, &e), e, ERR_CONFLICT, "10 samples");
    CHECK_ERR(merge(&f, 0, 1, 0, missing, 2, "{}", &merged, &e), e, ERR_CONFLICT,
              "function 1 (incarnation 1) has not published");
    CHECK_ERR(merge(&f, 0, 1, 1, &one, 1, "{}", &merged, &e), e, ERR_CONFLICT, "version 1");
    CHECK_OK(merge(&f, 0, 1, 0, &one, 1, "{\"v\":1}", &merged, &e), e);
    CHECK_ERR(merge(&f, 0, 1, 0, &one, 1, "{\"v\":1}", &merged, &e), e, ERR_STALE, "is over");
    CHECK_INT(merged.state.version, 1);
    CHECK_ERR(publish(m, 0, 1, 0, 0, 4, 10, 21, &f, &e), e, ERR_STALE, "is over");
    check_fetched(&f, 1, (uint64_t[][2]){{23, 10}}, 1);
    char *ledger;
    CHECK_OK(modelstore_ledger(f.owner, fixture_deadline(), &ledger, NULL, &e), e);
    CHECK_STR(ledger, "[{\"version\":0},{\"v\":1}]");
    free(ledger);
    modelstore_close(m);
    fixture_free(&f);
}

typedef struct asking {
    modelstore *owner;
    int round;
    modelstore_merged merged;
    err e;
    int rc;
} asking;

static void *ask_for_merge(void *arg)
{
    asking *a = arg;
    const modelstore_part part = {0, 1, 10};
    const modelstore_round r = {.round = a->round,
                                .version = a->round - 1,
                                .next_round = a->round + 1,
                                .rule = "mean",
                                .parts = &part,
                                .count = 1};
    a->e = (err)ERR_INIT;
    a->rc = modelstore_merge(a->owner, &r, fixture_deadline(), &a->merged, &a->e);
    return NULL;
}

/* Whose answer is lost asks again, maybe while the first merge is under way in Redis. */
static void ask_for_merges_twice(const char *tensor_path)
{
    fixture f;
    err e = ERR_INIT;
    asking ask[2] = {{.round = 0}};
    fixture_init(&f, "database", tensor_path, 3 << 20);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(modelstore_open(&f.owner_access, MODELSTORE_OWNER, fixture_deadline(),
                                 &ask[i].owner, &e),
                 e);
        CHECK_OK(modelstore_attach(ask[i].owner, NULL, fixture_deadline(), &e), e);
    }
    for (int round = 1; round <= 5; round++) {
        pthread_t thread[2];
        CHECK_OK(publish(m, 0, round, round - 1, 0, 1, 10, (uint64_t)round, &f, &e), e);
        for (int i = 0; i < 2; i++) {
            ask[i].round = round;
            CHECK(pthread_create(&thread[i], NULL, ask_for_merge, &ask[i]) == 0);
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(thread[i], NULL);
            if (ask[i].rc != 0)
                CHECK_ERR(ask[i].rc, ask[i].e, ERR_STALE, "is over");
            CHECK_INT(ask[i].merged.state.version, round);
        }
    }
    check_fetched(&f, 5, (uint64_t[][2]){{5, 10}}, 1);
    for (int i = 0; i < 2; i++)
        modelstore_close(ask[i].owner);
    modelstore_close(m);
    fixture_free(&f);
}

TEST_LIMIT(a_merge_that_is_asked_for_twice_is_done_once_shm, 30)
{
    ask_for_merges_twice("shm");
}

TEST_LIMIT(a_merge_that_is_asked_for_twice_is_done_once_socket, 30)
{
    ask_for_merges_twice("socket");
}

/* The answer to the merge was lost, and with it the owner's turn to say in the segment what is
 * there: it does when it asks again. */
TEST_LIMIT(a_repeated_merge_shows_the_reference_server_shm, 20)
{
    fixture f;
    err e = ERR_INIT;
    char name[SHM_NAME_BYTES];
    shm *segment;
    modelstore_merged merged;
    const modelstore_part part = {0, 1, 10};
    fixture_init(&f, "server", "shm", FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    fixture_segment("job1", name);
    CHECK_OK(shm_open_segment(f.owner_access.segment_dir, name, true, &segment, &e), e);
    shm_state before = shm_state_get(segment);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 10, 23, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", &merged, &e), e);
    shm_state_set(segment, before);
    CHECK_ERR(merge(&f, 0, 1, 0, &part, 1, "{}", &merged, &e), e, ERR_STALE, "is over");
    CHECK_INT(merged.state.version, 1);
    check_fetched(&f, 1, (uint64_t[][2]){{23, 10}}, 1);
    shm_close(segment);
    modelstore_close(m);
    fixture_free(&f);
}

IN_EVERY_STORE(numbers_that_are_none_never_enter, 20)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    const modelstore_part parts[] = {{0, 1, 10}, {1, 1, 5}}, again[] = {{0, 1, 10}, {1, 2, 5}};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    block b = fixture_block(f.layout.shape);
    fixture_fill(f.layout.shape, b, 5);
    b.floats[FLOATS - 1] = NAN;
    const modelstore_publication p = {.epoch = 0,
                                      .round = 1,
                                      .version = 0,
                                      .function = 1,
                                      .incarnation = 1,
                                      .samples = 5,
                                      .slot = 9};
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 10, 31, &f, &e), e);
    CHECK_OK(modelstore_publish(m, &p, &b, fixture_deadline(), NULL, &e), e);
    CHECK_ERR(merge(&f, 0, 1, 0, parts, 2, "{}", &merged, &e), e, ERR_INVALID,
              "function 1 (incarnation 1) published numbers that are NaN");
    CHECK_INT(merged.bad_function, 1);
    check_fetched(&f, 0, (uint64_t[][2]){{7, 1}}, 1); /* as before */
    CHECK_OK(publish(m, 0, 1, 0, 1, 2, 5, 32, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, again, 2, "{}", &merged, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{31, 10}, {32, 5}}, 2);
    modelstore_close(m);
    fixture_free(&f);
}

IN_EVERY_STORE(fetch_waits_until_its_deadline, 20)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_state state;
    fixture_init(&f, kind, tensor_path, 64);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    block got = fixture_block(f.layout.shape);
    int64_t before = clock_monotonic_ms();
    CHECK_ERR(modelstore_fetch(m, 1, got, clock_deadline_ms(60), &state, &e), e, ERR_TIMEOUT,
              "version 1");
    CHECK(clock_monotonic_ms() - before >= 60);
    modelstore_close(m);
    fixture_free(&f);
}

typedef struct waiter {
    fixture *f;
    atomic_bool waiting;
} waiter;

static void *wait_for_version_1(void *arg)
{
    waiter *w = arg;
    err e = ERR_INIT;
    modelstore_state state;
    modelstore *m = attached_member(w->f);
    block got = fixture_block(w->f->layout.shape);
    atomic_store(&w->waiting, true);
    CHECK_OK(modelstore_fetch(m, 1, got, fixture_deadline(), &state, &e), e);
    check_reference(w->f, got, (uint64_t[][2]){{41, 3}}, 1);
    modelstore_close(m);
    return NULL;
}

IN_EVERY_STORE(fetch_sees_the_merge_it_waits_for, 20)
{
    fixture f;
    err e = ERR_INIT;
    pthread_t thread;
    const modelstore_part part = {0, 1, 3};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    waiter w = {.f = &f};
    CHECK(pthread_create(&thread, NULL, wait_for_version_1, &w) == 0);
    while (!atomic_load(&w.waiting))
        usleep(100);
    modelstore *m = attached_member(&f);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 3, 41, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", NULL, &e), e);
    pthread_join(thread, NULL);
    modelstore_close(m);
    fixture_free(&f);
}

/* Who asks for an older version than there is gets the newest, and the connection stays in step. */
IN_EVERY_STORE(fetch_takes_a_newer_version, 20)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    modelstore_state state;
    const modelstore_part part = {0, 1, 10};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    block got = fixture_block(f.layout.shape);
    for (int round = 1; round <= 3; round++) {
        CHECK_OK(publish(m, 0, round, round - 1, 0, 1, 10, 40 + (uint64_t)round, &f, &e), e);
        CHECK_OK(merge(&f, 0, round, round - 1, &part, 1, "{}", &merged, &e), e);
        CHECK_OK(modelstore_fetch(m, round - 1, got, fixture_deadline(), &state, &e), e);
        CHECK_INT(state.version, round);
        CHECK_OK(modelstore_fetch(m, -1, got, fixture_deadline(), &state, &e), e);
        CHECK_INT(state.version, round);
        check_fetched(&f, round, (uint64_t[][2]){{40 + (uint64_t)round, 10}}, 1);
    }
    munmap(got.floats, block_bytes(f.layout.shape));
    modelstore_close(m);
    fixture_free(&f);
}

/* So whoever published it has the reference already, and sees that by its checksum. */
IN_EVERY_STORE(one_contribution_alone_becomes_the_reference, 20)
{
    fixture f;
    err e = ERR_INIT;
    block b;
    modelstore_state state;
    uint64_t checksum = 0;
    const modelstore_part parts[2] = {{0, 1, 3}, {1, 1, 5}};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    for (int alone = 1; alone >= 0; alone--) {
        modelstore_publication p = {
            .round = 2 - alone, .version = 1 - alone, .incarnation = 1, .samples = 3, .slot = 5};
        CHECK_OK(modelstore_slot(m, 5, &b, &e), e);
        fixture_fill(f.layout.shape, b, 51);
        CHECK_OK(modelstore_publish(m, &p, NULL, fixture_deadline(), &checksum, &e), e);
        if (!alone)
            CHECK_OK(publish(f.owner, 0, 2, 1, 1, 1, 5, 52, &f, &e), e);
        CHECK_OK(merge(&f, 0, p.round, p.version, parts, alone ? 1 : 2, "{}", NULL, &e), e);
        CHECK_OK(modelstore_state_get(m, fixture_deadline(), &state, &e), e);
        CHECK_INT(state.version, p.version + 1);
        CHECK_INT(state.round, p.round + 1);
        CHECK((state.checksum == checksum) == (alone == 1));
    }
    modelstore_close(m);
    fixture_free(&f);
}

IN_EVERY_STORE(publishing_from_the_slot_itself, 20)
{
    fixture f;
    err e = ERR_INIT;
    block b;
    const modelstore_part part = {0, 1, 3};
    const modelstore_publication p = {
        .epoch = 0, .round = 1, .version = 0, .incarnation = 1, .samples = 3, .slot = 5};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_OK(modelstore_slot(m, 5, &b, &e), e);
    CHECK(((uintptr_t)b.floats & 63) == 0 && ((uintptr_t)b.counters & 63) == 0);
    CHECK_OK(modelstore_fetch(m, 0, b, fixture_deadline(), NULL, &e), e);
    fixture_fill(f.layout.shape, b, 51);
    CHECK_OK(modelstore_publish(m, &p, NULL, fixture_deadline(), NULL, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", NULL, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{51, 3}}, 1);
    CHECK_ERR(modelstore_slot(m, MODELSTORE_SLOTS_MAX, &b, &e), e, ERR_INVALID, "out of range");
    modelstore_close(m);
    fixture_free(&f);
}

/* A function died behind its publication, before kubeml-ps heard of it, and another one joined only
 * then: it may be given the slot, and what the dead one published counts for nothing. */
IN_EVERY_STORE(a_dead_functions_slot_is_another_ones, 20)
{
    fixture f;
    err e = ERR_INIT;
    block b;
    const modelstore_part parts[] = {{1, 1, 5}, {2, 2, 3}};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    for (int function = 2; function >= 1; function--) {
        const modelstore_publication p = {
            .round = 1, .function = function, .incarnation = 1, .samples = 5, .slot = 9};
        CHECK_OK(modelstore_slot(m, 9, &b, &e), e);
        fixture_fill(f.layout.shape, b, 50 + (uint64_t)function);
        CHECK_OK(modelstore_publish(m, &p, NULL, fixture_deadline(), NULL, &e), e);
    }
    CHECK_OK(publish(m, 0, 1, 0, 2, 2, 3, 53, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, parts, 2, "{}", NULL, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{51, 5}, {53, 3}}, 2);
    modelstore_close(m);
    fixture_free(&f);
}

IN_EVERY_STORE(a_resumed_job_goes_on_from_its_checkpoint, 20)
{
    fixture f;
    err e = ERR_INIT;
    const modelstore_state start = {.version = 41, .epoch = 6, .round = 2};
    const modelstore_part part = {0, 1, 3};
    modelstore_merged merged;
    fixture_init(&f, kind, tensor_path, FLOATS);
    block b = fixture_block(f.layout.shape);
    fixture_fill(f.layout.shape, b, 61);
    CHECK_OK(modelstore_create(f.owner, &f.layout, &start, 4, &b, "[{\"old\":1}]",
                               fixture_deadline(), &e),
             e);
    check_fetched(&f, 41, (uint64_t[][2]){{61, 1}}, 1);
    modelstore *m = attached_member(&f);
    layout l;
    CHECK_OK(modelstore_attach(m, &l, fixture_deadline(), &e), e);
    CHECK(l.digest == f.layout.digest);
    layout_free(&l);
    CHECK_ERR(publish(m, 6, 1, 41, 0, 1, 3, 62, &f, &e), e, ERR_STALE, "is over");
    CHECK_OK(publish(m, 6, 2, 41, 0, 1, 3, 62, &f, &e), e);
    CHECK_OK(merge(&f, 6, 2, 41, &part, 1, "{\"new\":1}", &merged, &e), e);
    CHECK_INT(merged.state.version, 42);
    char *ledger;
    CHECK_OK(modelstore_ledger(f.owner, fixture_deadline(), &ledger, NULL, &e), e);
    CHECK_STR(ledger, "[{\"old\":1},{\"new\":1}]");
    free(ledger);
    modelstore_close(m);
    fixture_free(&f);
}

/* However many rounds an epoch has. */
IN_EVERY_STORE(a_full_ledger_begins_anew, 40)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    const modelstore_part part = {0, 1, 3};
    const modelstore_state start = {.version = 0, .round = 1};
    char *full = malloc(MODELSTORE_LEDGER_BYTES_MAX + 1), *ledger;
    CHECK(full);
    memset(full, ' ', MODELSTORE_LEDGER_BYTES_MAX);
    strcpy(full + MODELSTORE_LEDGER_BYTES_MAX - 3, "{}]");
    full[0] = '[';
    fixture_init(&f, kind, tensor_path, 64);
    block b = fixture_block(f.layout.shape);
    CHECK_OK(modelstore_create(f.owner, &f.layout, &start, 4, &b, full, fixture_deadline(), &e), e);
    modelstore *m = attached_member(&f);
    for (int r = 1; r <= 2; r++) {
        CHECK_OK(publish(m, 0, r, r - 1, 0, 1, 3, 62, &f, &e), e);
        CHECK_OK(merge(&f, 0, r, r - 1, &part, 1, r == 1 ? "{\"v\":1}" : "{\"v\":2}", &merged, &e),
                 e);
    }
    CHECK_OK(modelstore_ledger(f.owner, fixture_deadline(), &ledger, NULL, &e), e);
    CHECK_STR(ledger, "[{\"v\":1},{\"v\":2}]");
    free(ledger);
    free(full);
    modelstore_close(m);
    fixture_free(&f);
}

IN_EVERY_STORE(another_layout_is_refused, 20)
{
    fixture f;
    err e = ERR_INIT;
    fixture_init(&f, kind, tensor_path, 64);
    begin_job(&f);
    modelstore *m = fixture_member(&f);
    modelstore_state state = {.version = -1};
    if (f.server) {
        block b;
        CHECK_ERR(modelstore_slot(m, 0, &b, &e), e, ERR_CONFLICT, "not attached");
    }
    CHECK_ERR(modelstore_create(m, &f.layout, &state, 4, NULL, NULL, fixture_deadline(), &e), e,
              ERR_FORBIDDEN, "owner");
    const modelstore_part part = {0, 1, 3};
    const modelstore_round r = {.next_round = 1, .rule = "mean", .parts = &part, .count = 1};
    CHECK_ERR(modelstore_merge(m, &r, fixture_deadline(), NULL, &e), e, ERR_FORBIDDEN, "owner");
    CHECK_ERR(modelstore_create(f.owner, &f.layout, &state, 0, NULL, NULL, fixture_deadline(), &e),
              e, ERR_INVALID, "0 slots");
    CHECK_ERR(modelstore_create(f.owner, &f.layout, &state, 4, NULL, "{}", fixture_deadline(), &e),
              e, ERR_INVALID, "ledger");
    modelstore_close(m);
    fixture_free(&f);
}

TEST(tcp_carries_as_well)
{
    fixture f;
    err e = ERR_INIT;
    const modelstore_part part = {0, 1, 3};
    fixture_init(&f, "database", "tcp", FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 3, 11, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", NULL, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{11, 3}}, 1);
    modelstore_close(m);
    fixture_free(&f);
}

IN_EVERY_REDIS(a_member_may_no_more_than_it_needs, 20)
{
    fixture f;
    err e = ERR_INIT;
    redis_link *l;
    static const char *const forbidden[] = {
        "FLUSHALL",
        "KEYS *",
        "CONFIG GET requirepass",
        "ACL LIST",
        "EVAL return 0",
        "SET kubeml:{job1}:state x",
        "SET kubeml:{job1}:ref:0:0 x",
        "GET kubeml:{job2}:state",
        "SET kubeml:{job2}:pub:0 x",
        "GET other",
        "SHUTDOWN NOSAVE",
        "DUMP kubeml:{job1}:model",
        /* what functions write where the module does not merge: as much as they like */
        "SET kubeml:{job1}:pub:0 x",
        "GET kubeml:{job1}:state",
        "MULTI",
    };
    const size_t plain = strcmp(kind, "database") == 0 ? 0 : 3;
    fixture_init(&f, kind, tensor_path, 64);
    begin_job(&f);
    CHECK_OK(redis_link_dial(f.member_access.address, f.member_access.user,
                             f.member_access.password, fixture_deadline(), &l, &e),
             e);
    for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0] - plain; i++)
        CHECK_ERR(fixture_call(l, forbidden[i], NULL, &e), e, ERR_FORBIDDEN, "NOPERM");
    redis_link_close(l);
    CHECK_ERR(
        redis_link_dial(f.member_access.address, "function", "wrong", fixture_deadline(), &l, &e),
        e, ERR_UNAUTHORIZED, "WRONGPASS");
    fixture_free(&f);
}

/* The owner puts the user back as soon as Redis has refused it once. */
static void *put_user_back(void *arg)
{
    fixture *f = arg;
    err e = ERR_INIT;
    size_t refused = 0;
    redis_link *l = fixture_redis(f->owner_access.address, f->owner_access.password);
    for (int64_t deadline = fixture_deadline(); refused == 0 && clock_left_ms(deadline) > 0;) {
        cleanup_reply redisReply *reply = NULL;
        CHECK_OK(fixture_call(l, "ACL LOG", &reply, &e), e);
        refused = reply->elements;
    }
    redis_link_close(l);
    CHECK(refused > 0);
    CHECK_OK(redis_server_user(f->server, "function", f->member_access.password, "job1", true,
                               fixture_deadline(), &e),
             e);
    return NULL;
}

TEST(a_user_that_is_gone_for_a_while_is_waited_for)
{
    fixture f;
    static modelstore_status status;
    err e = ERR_INIT;
    pthread_t owner;
    fixture_init(&f, "database", "socket", FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    redis_link *l = fixture_redis(f.owner_access.address, f.owner_access.password);
    CHECK_OK(fixture_call(l, "ACL DELUSER function", NULL, &e), e);
    redis_link_close(l);
    CHECK(pthread_create(&owner, NULL, put_user_back, &f) == 0);
    CHECK_OK(modelstore_status_get(m, fixture_deadline(), &status, &e), e);
    CHECK_INT(status.state.version, 0);
    CHECK(pthread_join(owner, NULL) == 0);
    modelstore_close(m);
    fixture_free(&f);
}

TEST(opening_says_what_is_missing)
{
    fixture f;
    err e = ERR_INIT;
    modelstore *m;
    fixture_init(&f, "server", "socket", 64);
    modelstore_access a = f.owner_access;
    snprintf(a.kind, sizeof a.kind, "database");
    CHECK_ERR(modelstore_open(&a, MODELSTORE_OWNER, fixture_deadline(), &m, &e), e, ERR_UNSUPPORTED,
              "kubeml-redis.so");
    snprintf(a.kind, sizeof a.kind, "mongo");
    CHECK_ERR(modelstore_open(&a, MODELSTORE_OWNER, fixture_deadline(), &m, &e), e, ERR_UNSUPPORTED,
              "mongo");
    a = f.owner_access;
    snprintf(a.tensor_path, sizeof a.tensor_path, "pigeon");
    CHECK_ERR(modelstore_open(&a, MODELSTORE_OWNER, fixture_deadline(), &m, &e), e, ERR_UNSUPPORTED,
              "pigeon");
    a = f.owner_access;
    snprintf(a.address, sizeof a.address, "unix:%s/nobody.sock", test_tmp());
    CHECK_ERR(modelstore_open(&a, MODELSTORE_OWNER, clock_deadline_ms(30), &m, &e), e,
              ERR_UNAVAILABLE, "nobody listens");
    a = f.owner_access;
    snprintf(a.password, sizeof a.password, "guess");
    CHECK_ERR(modelstore_open(&a, MODELSTORE_OWNER, fixture_deadline(), &m, &e), e,
              ERR_UNAUTHORIZED, "WRONGPASS");
    fixture_free(&f);
}

TEST(access_travels_as_json)
{
    err e = ERR_INIT;
    modelstore_access a = {.kind = "database",
                           .address = "unix:/x",
                           .password = "p",
                           .job = "j",
                           .tensor_path = "shm"},
                      b;
    json_t *j = modelstore_access_json(&a);
    CHECK_OK(modelstore_access_parse(j, &b, &e), e);
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    json_object_set_new(j, "extra", json_true());
    CHECK_ERR(modelstore_access_parse(j, &b, &e), e, ERR_INVALID, "extra");
    json_object_del(j, "extra");
    json_object_del(j, "job");
    CHECK_ERR(modelstore_access_parse(j, &b, &e), e, ERR_INVALID, "job");
    json_decref(j);
}
