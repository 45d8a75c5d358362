/* test_modelstore_trouble.c: what is left of a job when Redis dies, or who writes to it. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/modelstore/redis_link.h"
#include "common/modelstore/shm.h"
#include "modelstore_job.h"

/* ---- Redis in trouble ---------------------------------------------------------------------- */

IN_EVERY_REDIS(redis_killed_is_put_back, 30)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    modelstore_status status;
    const modelstore_part part = {0, 1, 3};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 3, 71, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", &merged, &e), e);
    block kept = fixture_block(f.layout.shape);
    CHECK_OK(modelstore_fetch(m, 1, kept, fixture_deadline(), NULL, &e), e);
    CHECK_OK(publish(m, 0, 2, 1, 0, 1, 3, 72, &f, &e), e); /* is lost */
    pid_t redis = redis_server_pid(f.server);
    siginfo_t ended;
    kill(redis, SIGKILL);
    CHECK(waitid(P_PID, (id_t)redis, &ended, WEXITED | WNOWAIT) == 0); /* a busy machine is slow */
    CHECK_ERR(modelstore_status_get(f.owner, clock_deadline_ms(50), &status, &e), e,
              ERR_UNAVAILABLE, "redis");
    char how[256];
    CHECK(!redis_server_alive(f.server));
    redis_server_epitaph(f.server, how, sizeof how);
    CHECK_CONTAINS(how, "signal 9");
    CHECK_OK(redis_server_restart(f.server, fixture_deadline(), &e), e);
    CHECK_ERR(publish(m, 0, 2, 1, 0, 1, 3, 72, &f, &e), e, ERR_NOT_FOUND, "no such job");
    bool mapped = strcmp(tensor_path, "shm") == 0;
    CHECK_OK(modelstore_create(f.owner, &f.layout, &merged.state, 16, mapped ? NULL : &kept,
                               "[{},{}]", fixture_deadline(), &e),
             e);
    check_fetched(&f, 1, (uint64_t[][2]){{71, 3}}, 1);
    CHECK_OK(publish(m, 0, 2, 1, 0, 1, 3, 72, &f, &e), e); /* with the handle of before */
    CHECK_OK(merge(&f, 0, 2, 1, &part, 1, "{}", &merged, &e), e);
    check_fetched(&f, 2, (uint64_t[][2]){{72, 3}}, 1);
    modelstore_close(m);
    fixture_free(&f);
}

/* A model of one chunk: its next publication is announced to Redis as soon as the last one is
 * there. What comes in between (refusals, another layout, a Redis that dies) must not meet the
 * announcement. */
static void announced_publications(const char *tensor_path)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    const modelstore_part part = {0, 1, 3};
    fixture_init(&f, "database", tensor_path, 1000);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    for (int round = 1; round <= 4; round++) {
        CHECK_OK(publish(m, 0, round, round - 1, 0, 1, 3, (uint64_t)round, &f, &e), e);
        CHECK_OK(publish(m, 0, round, round - 1, 0, 1, 3, (uint64_t)round, &f, &e), e);
        CHECK_ERR(publish(m, 0, round - 1, round - 2, 0, 1, 3, 5, &f, &e), e, ERR_STALE, "over");
        CHECK_ERR(publish(m, 0, round, round - 1, 0, 1, 3, 99, &f, &e), e, ERR_CONFLICT,
                  "function 0");
        CHECK_OK(merge(&f, 0, round, round - 1, &part, 1, "{}", &merged, &e), e);
        check_fetched(&f, round, (uint64_t[][2]){{(uint64_t)round, 3}}, 1);
    }
    block kept = fixture_block(f.layout.shape);
    CHECK_OK(modelstore_fetch(m, 4, kept, fixture_deadline(), NULL, &e), e);
    kill(redis_server_pid(f.server), SIGKILL);
    CHECK_OK(redis_server_restart(f.server, fixture_deadline(), &e), e);
    CHECK_OK(modelstore_create(f.owner, &f.layout, &merged.state, 16, &kept, "[]",
                               fixture_deadline(), &e),
             e);
    CHECK_OK(publish(m, 0, 5, 4, 0, 1, 3, 55, &f, &e), e); /* the announcement died with Redis */
    CHECK_OK(merge(&f, 0, 5, 4, &part, 1, "{}", &merged, &e), e);
    check_fetched(&f, 5, (uint64_t[][2]){{55, 3}}, 1);
    layout_free(&f.layout);
    fixture_layout(1234, &f.layout); /* what is announced has another length */
    create_empty(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    CHECK_OK(publish(m, 0, 0, -1, 0, 1, 3, 66, &f, &e), e);
    CHECK_OK(merge(&f, 0, 0, -1, &part, 1, "{}", &merged, &e), e);
    check_fetched(&f, 0, (uint64_t[][2]){{66, 3}}, 1);
    modelstore_close(m);
    fixture_free(&f);
}

TEST_LIMIT(announced_publications_socket, 30)
{
    announced_publications("socket");
}

TEST_LIMIT(announced_publications_tcp, 30)
{
    announced_publications("tcp");
}

IN_EVERY_REDIS(another_owner_goes_on_with_a_job, 30)
{
    fixture f;
    err e = ERR_INIT;
    layout l;
    modelstore_merged merged;
    modelstore_status status;
    const modelstore_part part = {0, 1, 3};
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 3, 81, &f, &e), e);
    modelstore_close(f.owner);
    CHECK_OK(modelstore_open(&f.owner_access, MODELSTORE_OWNER, fixture_deadline(), &f.owner, &e),
             e);
    CHECK_OK(modelstore_attach(f.owner, &l, fixture_deadline(), &e), e);
    CHECK(l.digest == f.layout.digest);
    layout_free(&l);
    CHECK_OK(modelstore_status_get(f.owner, fixture_deadline(), &status, &e), e);
    CHECK_INT(status.count, 1);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", &merged, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{81, 3}}, 1);
    if (strcmp(tensor_path, "shm") == 0) { /* which outlives Redis */
        CHECK_OK(redis_server_restart(f.server, fixture_deadline(), &e), e);
        CHECK_OK(modelstore_create(f.owner, &f.layout, &merged.state, 16, NULL, "[]",
                                   fixture_deadline(), &e),
                 e);
        check_fetched(&f, 1, (uint64_t[][2]){{81, 3}}, 1);
        merged.state.checksum ^= 1;
        CHECK_ERR(modelstore_create(f.owner, &f.layout, &merged.state, 16, NULL, "[]",
                                    fixture_deadline(), &e),
                  e, ERR_CORRUPT, "version 1");
    }
    modelstore_close(m);
    fixture_free(&f);
}

/* ---- writers that die ---------------------------------------------------------------------- */

/* A child that publishes the same models over and over until it is killed; tells when it has begun.
 */
static pid_t start_writer(fixture *f, int incarnation, int tell)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    modelstore *m = attached_member(f);
    block slot;
    err e = ERR_INIT;
    CHECK_OK(modelstore_slot(m, incarnation % 2, &slot, &e), e);
    CHECK(write(tell, "x", 1) == 1);
    for (uint64_t i = 0;; i++) {
        memset(slot.floats, (int)(i & 0x3f), f->layout.shape.floats * sizeof(float) / 2);
        publish(m, 0, 1, 0, 0, incarnation, 3, 90 + i % 2, f, NULL);
    }
}

IN_EVERY_REDIS(a_half_written_block_is_never_merged, 60)
{
    fixture f;
    err e = ERR_INIT;
    int ends[2];
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    modelstore *m = attached_member(&f);
    int merged_whole = 0, refused = 0, kills = 0;
    enum { KILLS = 25 };
    int64_t before = clock_monotonic_ns(); /* how long a publication takes here */
    CHECK_OK(publish(m, 0, 1, 0, 0, 0, 3, 90, &f, &e), e);
    useconds_t span = (useconds_t)((clock_monotonic_ns() - before) / 1000 * 4 + 1);
    /* A writer may be slower than that one was: until one has published. */
    for (; kills < KILLS || (merged_whole + refused == 0 && kills < 8 * KILLS); kills++) {
        char x;
        int i = kills + 1;
        pid_t child = start_writer(&f, i, ends[1]);
        CHECK(read(ends[0], &x, 1) == 1);
        usleep((span << kills / KILLS) / KILLS * (useconds_t)(i * 7 % KILLS));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        /* Whatever it left: merged is what one of its publications said, or nothing. */
        const modelstore_part part = {0, i, 3};
        modelstore_merged merged;
        err why = ERR_INIT;
        modelstore_status status;
        CHECK_OK(modelstore_status_get(f.owner, fixture_deadline(), &status, &e), e);
        if (status.count == 1 && status.published[0].incarnation == i &&
            merge(&f, 0, 1, 0, &part, 1, "{}", &merged, &why) == 0) {
            block got = fixture_block(f.layout.shape);
            CHECK_OK(modelstore_fetch(m, 1, got, fixture_deadline(), NULL, &e), e);
            block want = fixture_block(f.layout.shape);
            fixture_fill(f.layout.shape, want, 90);
            if (got.floats[0] != want.floats[0])
                fixture_fill(f.layout.shape, want, 91);
            CHECK(memcmp(got.floats, want.floats, f.layout.shape.floats * sizeof(float)) == 0);
            merged_whole++;
            begin_job(&f); /* a fresh store for the next */
            modelstore_close(m);
            m = attached_member(&f);
        } else if (why.code != ERR_NONE) {
            CHECK_INT(why.code, ERR_CORRUPT);
            CHECK_INT(merged.bad_function, 0);
            CHECK_CONTAINS(why.message, "function 0");
            refused++;
        }
    }
    printf("%d kills: %d merged whole, %d refused as corrupt\n", kills, merged_whole, refused);
    CHECK(merged_whole + refused > 0);
    const modelstore_part part = {0, kills + 1, 3};
    CHECK_OK(publish(m, 0, 1, 0, 0, kills + 1, 3, 99, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, &part, 1, "{}", NULL, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{99, 3}}, 1);
    modelstore_close(m);
    fixture_free(&f);
}

static void flipped_in_segment(const char *kind)
{
    fixture f;
    err e = ERR_INIT;
    block slot;
    modelstore_merged merged;
    const modelstore_part parts[] = {{0, 1, 10}, {3, 1, 5}};
    fixture_init(&f, kind, "shm", FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 10, 31, &f, &e), e);
    CHECK_OK(publish(m, 0, 1, 0, 3, 1, 5, 32, &f, &e), e);
    CHECK_OK(modelstore_slot(m, 7, &slot, &e), e);
    ((unsigned char *)slot.floats)[123456] ^= 0x20;
    CHECK_ERR(merge(&f, 0, 1, 0, parts, 2, "{}", &merged, &e), e, ERR_CORRUPT,
              "function 3 (incarnation 1) published bytes that do not match");
    CHECK_INT(merged.bad_function, 3);
    check_fetched(&f, 0, (uint64_t[][2]){{7, 1}}, 1);
    CHECK_OK(publish(m, 0, 1, 0, 3, 1, 5, 32, &f, &e), e); /* forgotten: may be published again */
    CHECK_OK(merge(&f, 0, 1, 0, parts, 2, "{}", &merged, &e), e);
    check_fetched(&f, 1, (uint64_t[][2]){{31, 10}, {32, 5}}, 2);
    modelstore_close(m);
    fixture_free(&f);
}

TEST(a_flipped_byte_is_named_database_shm)
{
    flipped_in_segment("database");
}

TEST(a_flipped_byte_is_named_server_shm)
{
    flipped_in_segment("server");
}

TEST(a_flipped_byte_is_named_server_socket)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_merged merged;
    const modelstore_part parts[] = {{0, 1, 10}};
    fixture_init(&f, "server", "socket", FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    CHECK_OK(publish(m, 0, 1, 0, 0, 1, 10, 31, &f, &e), e);
    redis_link *l = fixture_redis(f.owner_access.address, f.owner_access.password);
    CHECK_OK(fixture_call(l, "SETRANGE kubeml:{job1}:pub:0:1:0:1:1 77 \x7f", NULL, &e), e);
    redis_link_close(l);
    CHECK_ERR(merge(&f, 0, 1, 0, parts, 1, "{}", &merged, &e), e, ERR_CORRUPT, "function 0");
    CHECK_INT(merged.bad_function, 0);
    check_fetched(&f, 0, (uint64_t[][2]){{7, 1}}, 1);
    modelstore_close(m);
    fixture_free(&f);
}

static int64_t keys_of(const fixture *f)
{
    cleanup_reply redisReply *reply = NULL;
    err e = ERR_INIT;
    redis_link *l = fixture_redis(f->owner_access.address, f->owner_access.password);
    CHECK_OK(fixture_call(l, "DBSIZE", &reply, &e), e);
    redis_link_close(l);
    return reply->integer;
}

/* A function that is killed when a chunk has left, where there are chunks. */
static void die_publishing(const fixture *f, int64_t round)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        err e = ERR_INIT;
        CHECK_INT(setenv("KUBEML_FAILPOINT", "chunk-sent", 1), 0);
        failpoint_open(NULL);
        publish(attached_member(f), 0, round, round - 1, 1, 2, 3, 97, f, &e);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
}

/* A function that had published, wholly or in part, and was replaced before the merge. */
IN_EVERY_REDIS(what_replaced_functions_published_goes_with_the_round, 30)
{
    fixture f;
    err e = ERR_INIT;
    fixture_init(&f, kind, tensor_path, FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    int64_t before = 0;
    for (int round = 1; round <= 4; round++) {
        const modelstore_part part = {0, 2 * round + 1, 3};
        CHECK_OK(publish(m, 0, round, round - 1, 0, 2 * round, 3, 98, &f, &e), e);
        die_publishing(&f, round);
        CHECK_OK(publish(m, 0, round, round - 1, 0, 2 * round + 1, 3, 99, &f, &e), e);
        CHECK_OK(merge(&f, 0, round, round - 1, &part, 1, "{}", NULL, &e), e);
        if (round > 1)
            CHECK_INT(keys_of(&f), before);
        before = keys_of(&f);
    }
    check_fetched(&f, 4, (uint64_t[][2]){{99, 3}}, 1);
    modelstore_close(m);
    fixture_free(&f);
}

static int publish_all(modelstore **m, int count, int round, const fixture *f, err *e)
{
    for (int i = 0; i < count; i++)
        if (publish(m[i], 0, round, round - 1, i, 1, 1, (uint64_t)(10 * round + i), f, e))
            return -1;
    return 0;
}

static void limit_memory(const fixture *f, uint64_t bytes)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    fixture_limit_memory(f->server, text);
}

/* The least memory in which there is said to be room for three is enough for them and their merge,
 * and without one model of it, which takes a quarter more than it has bytes, is not. */
static void there_is_room_for_what_fits(const char *kind)
{
    enum { MODEL = 32 << 20, STEP = MODEL / 32 };
    fixture f;
    err e = ERR_INIT;
    const modelstore_part parts[] = {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}};
    modelstore *m[3];
    uint64_t least = 1 << 20;
    fixture_init(&f, kind, "socket", MODEL / sizeof(float));
    begin_job(&f);
    for (int i = 0; i < 3; i++)
        m[i] = attached_member(&f);
    CHECK_OK(modelstore_room(f.owner, 0, 1000, fixture_deadline(), &e), e); /* no limit */
    CHECK_OK(publish_all(m, 3, 1, &f, &e), e);
    CHECK_OK(merge(&f, 0, 1, 0, parts, 3, "{}", NULL, &e), e);
    for (limit_memory(&f, least); modelstore_room(f.owner, 0, 3, fixture_deadline(), &e) != 0;) {
        CHECK_INT(e.code, ERR_NOMEM);
        err_clear(&e);
        limit_memory(&f, least += STEP);
    }
    CHECK_ERR(modelstore_room(f.owner, 0, 4, fixture_deadline(), &e), e, ERR_NOMEM, "maxmemory");
    CHECK_OK(publish_all(m, 3, 2, &f, &e), e);
    CHECK_OK(merge(&f, 0, 2, 1, parts, 3, "{}", NULL, &e), e);
    limit_memory(&f, least - (uint64_t)MODEL * 5 / 4 * (strcmp(kind, "server") == 0 ? 2 : 1));
    CHECK_ERR(publish_all(m, 3, 3, &f, &e), e, ERR_NOMEM, "maxmemory");
    for (int i = 0; i < 3; i++)
        modelstore_close(m[i]);
    fixture_free(&f);
}

TEST_LIMIT(there_is_room_for_what_fits_database, 30)
{
    there_is_room_for_what_fits("database");
}

TEST_LIMIT(there_is_room_for_what_fits_server, 30)
{
    there_is_room_for_what_fits("server");
}

TEST(a_reference_that_changed_is_not_fetched)
{
    fixture f;
    err e = ERR_INIT;
    char name[SHM_NAME_BYTES];
    shm *s;
    fixture_init(&f, "database", "shm", FLOATS);
    begin_job(&f);
    modelstore *m = attached_member(&f);
    fixture_segment("job1", name);
    CHECK_OK(shm_open_segment(test_tmp(), name, true, &s, &e), e);
    shm_reference(s, 0).floats[99] += 1;
    block got = fixture_block(f.layout.shape);
    CHECK_ERR(modelstore_fetch(m, 0, got, fixture_deadline(), NULL, &e), e, ERR_CORRUPT,
              "version 0");
    shm_close(s);
    modelstore_close(m);
    fixture_free(&f);
}

typedef struct racer {
    fixture *f;
    int incarnation;
} racer;

static void *race(void *arg)
{
    racer *r = arg;
    err e = ERR_INIT;
    modelstore *m = attached_member(r->f);
    if (publish(m, 0, 1, 0, 0, r->incarnation, 3, 90, r->f, &e))
        CHECK_INT(e.code, ERR_STALE);
    modelstore_close(m);
    return NULL;
}

/* A zombie and its replacement publish at the same instant: the replacement's stands. */
IN_EVERY_STORE(a_zombie_never_replaces_its_replacement, 60)
{
    fixture f;
    err e = ERR_INIT;
    modelstore_status status;
    fixture_init(&f, kind, tensor_path, 64);
    begin_job(&f);
    for (int i = 0; i < 150; i++) {
        racer r[2] = {{&f, 2 * i}, {&f, 2 * i + 1}};
        pthread_t thread[2];
        for (int k = 0; k < 2; k++)
            CHECK(pthread_create(&thread[k], NULL, race, &r[(k + i) % 2]) == 0);
        for (int k = 0; k < 2; k++)
            pthread_join(thread[k], NULL);
        CHECK_OK(modelstore_status_get(f.owner, fixture_deadline(), &status, &e), e);
        CHECK_INT(status.published[0].incarnation, 2 * i + 1);
    }
    fixture_free(&f);
}

typedef struct returner {
    fixture *f;
    atomic_int begun;
    int64_t round;
    err_code end;
} returner;

/* A function in the middle of its work when the store went: it publishes until it is heard. */
static void *publish_until_heard(void *arg)
{
    returner *r = arg;
    err e = ERR_INIT;
    modelstore *m = attached_member(r->f);
    atomic_store(&r->begun, 1);
    for (int64_t deadline = fixture_deadline(); clock_left_ms(deadline) > 0; err_clear(&e))
        if (publish(m, 4, r->round, 36 + r->round, 0, 1, 3, 90, r->f, &e) == 0 ||
            e.code != ERR_NOT_FOUND)
            break;
    r->end = e.code;
    modelstore_close(m);
    return NULL;
}

static void put_back(fixture *f, const modelstore_state *state, block b)
{
    err e = ERR_INIT;
    CHECK_OK(modelstore_create(f->owner, &f->layout, state, 16, &b, "[]", fixture_deadline(), &e),
             e);
}

static void lose_all(const fixture *f)
{
    err e = ERR_INIT;
    redis_link *l = fixture_redis(f->owner_access.address, f->owner_access.password);
    CHECK_OK(fixture_call(l, "FLUSHALL", NULL, &e), e);
    redis_link_close(l);
}

/* The model is put back beside a function that publishes for the open round: until the reference is
 * there it hears that there is none, no other refusal, and is taken then. */
IN_EVERY_REDIS(publishing_waits_for_a_model_that_is_put_back, 60)
{
    fixture f;
    err e = ERR_INIT;
    const modelstore_part part = {0, 1, 3};
    fixture_init(&f, kind, tensor_path, FLOATS);
    block b = fixture_block(f.layout.shape);
    fixture_fill(f.layout.shape, b, 5);
    for (int64_t round = 1; round < 11; round++) {
        const modelstore_state state = {.version = 36 + round, .epoch = 4, .round = round};
        returner mine = {.f = &f, .round = round}, late = {.f = &f, .round = round - 1};
        pthread_t thread[2];
        put_back(&f, &state, b); /* there is something to attach to */
        CHECK(pthread_create(&thread[0], NULL, publish_until_heard, &mine) == 0);
        CHECK(pthread_create(&thread[1], NULL, publish_until_heard, &late) == 0);
        while (!atomic_load(&mine.begun) || !atomic_load(&late.begun))
            sched_yield();
        lose_all(&f);
        put_back(&f, &state, b);
        for (int i = 0; i < 2; i++)
            CHECK(pthread_join(thread[i], NULL) == 0);
        CHECK_INT(mine.end, ERR_NONE);
        CHECK_INT(late.end, ERR_STALE);
        modelstore *m = attached_member(&f);
        CHECK_OK(publish(m, 4, round, 36 + round, 0, 1, 3, 90, &f, &e), e);
        CHECK_OK(merge(&f, 4, round, 36 + round, &part, 1, "{}", NULL, &e), e);
        check_fetched(&f, 37 + round, (uint64_t[][2]){{90, 3}}, 1);
        modelstore_close(m);
    }
    fixture_free(&f);
}

/* ---- a slow line ----------------------------------------------------------------------------- */

/* Between a member and Redis: after every mebibyte, whichever way, it pauses; after `stops` of
 * them, if that is not 0, nothing passes any more. */
enum { SLOW_LINES = 4, SLOW_BYTES = 1 << 20, SLOW_PAUSE_MS = 200 };
typedef struct slow_line {
    const char *to;
    char at[120];
    int listener, stops, passed;
    size_t bytes;                          /* since the last pause */
    struct pollfd end[2 * SLOW_LINES + 1]; /* a member's, Redis's, ...; the listener */
    int lines;
    atomic_bool closing;
    pthread_t thread;
} slow_line;

static void accept_line(slow_line *s)
{
    err e = ERR_INIT;
    CHECK(s->lines < SLOW_LINES);
    int near = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    int far = address_dial(s->to, fixture_deadline(), &e);
    CHECK(near >= 0 && far >= 0);
    CHECK(fcntl(far, F_SETFL, fcntl(far, F_GETFL) & ~O_NONBLOCK) == 0);
    s->end[2 * s->lines] = (struct pollfd){near, POLLIN, 0};
    s->end[2 * s->lines + 1] = (struct pollfd){far, POLLIN, 0};
    s->lines++;
}

static void carry(slow_line *s, int i)
{
    static char bytes[1 << 16];
    ssize_t n = read(s->end[i].fd, bytes, sizeof bytes);
    for (ssize_t at = 0, put = 0; at < n && put >= 0; at += put)
        put = send(s->end[i ^ 1].fd, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
    if (n <= 0)
        s->end[i].events = 0, shutdown(s->end[i ^ 1].fd, SHUT_WR);
    else
        s->bytes += (size_t)n;
    if (s->bytes < SLOW_BYTES)
        return;
    s->bytes = 0;
    s->passed++;
    poll(NULL, 0, SLOW_PAUSE_MS);
}

static void *run_line(void *of)
{
    slow_line *s = of;
    while (!atomic_load(&s->closing) && (s->stops == 0 || s->passed < s->stops)) {
        s->end[2 * s->lines] = (struct pollfd){s->listener, POLLIN, 0};
        CHECK(poll(s->end, (nfds_t)(2 * s->lines + 1), 20) >= 0);
        if (s->end[2 * s->lines].revents)
            accept_line(s);
        else
            for (int i = 0; i < 2 * s->lines; i++)
                if (s->end[i].revents && s->end[i].events)
                    carry(s, i);
    }
    return NULL;
}

static void open_line(slow_line *s, const char *to, int stops)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    *s = (slow_line){.to = to, .stops = stops};
    snprintf(at.sun_path, sizeof at.sun_path, "%.90s/slow", test_tmp());
    snprintf(s->at, sizeof s->at, "unix:%s", at.sun_path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(s->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(s->listener, 4) == 0);
    CHECK(pthread_create(&s->thread, NULL, run_line, s) == 0);
}

static void close_line(slow_line *s)
{
    atomic_store(&s->closing, true);
    CHECK(pthread_join(s->thread, NULL) == 0);
    for (int i = 0; i < 2 * s->lines; i++)
        close(s->end[i].fd);
    close(s->listener);
    CHECK(unlink(s->at + strlen("unix:")) == 0);
}

static modelstore *slow_member(fixture *f, slow_line *s, int stops, _Atomic uint32_t *carried)
{
    err e = ERR_INIT;
    modelstore *m;
    modelstore_access a = f->member_access;
    open_line(s, f->member_access.address, stops);
    snprintf(a.address, sizeof a.address, "%s", s->at);
    a.carried = carried;
    CHECK_OK(modelstore_open(&a, MODELSTORE_MEMBER, fixture_deadline(), &m, &e), e);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    return m;
}

/* Each chunk takes an eighth of what the call has, all of them more. */
static void slow_line_carries(const char *kind)
{
    enum { CHUNKS = 12, CALL_MS = 8 * SLOW_PAUSE_MS };
    fixture f;
    slow_line s;
    err e = ERR_INIT;
    _Atomic uint32_t carried = 0;
    modelstore_state state;
    modelstore_publication p = {.round = 1, .incarnation = 1, .samples = 3};
    fixture_init(&f, kind, "socket", CHUNKS * (SLOW_BYTES / sizeof(float)) - 5);
    begin_job(&f);
    modelstore *m = slow_member(&f, &s, 0, &carried);
    block b = fixture_block(f.layout.shape);
    CHECK_OK(modelstore_fetch(m, 0, b, clock_deadline_ms(CALL_MS), &state, &e), e);
    CHECK_INT(carried, CHUNKS + 1); /* of floats, and the counters */
    check_reference(&f, b, (uint64_t[][2]){{7, 1}}, 1);
    CHECK_OK(modelstore_publish(m, &p, &b, clock_deadline_ms(CALL_MS), NULL, &e), e);
    CHECK_INT(carried, 2 * (CHUNKS + 1));
    modelstore_close(m);
    close_line(&s);
    m = slow_member(&f, &s, 3, NULL);
    CHECK_ERR(modelstore_fetch(m, 0, b, clock_deadline_ms(CALL_MS), &state, &e), e, ERR_TIMEOUT,
              "no answer in time");
    modelstore_close(m);
    close_line(&s);
    m = slow_member(&f, &s, 3, NULL);
    p.incarnation = 2;
    CHECK_ERR(modelstore_publish(m, &p, &b, clock_deadline_ms(CALL_MS), NULL, &e), e, ERR_TIMEOUT,
              "no answer in time");
    modelstore_close(m);
    close_line(&s);
    fixture_free(&f);
}

TEST_LIMIT(a_slow_line_is_late_only_when_it_stands_database, 60)
{
    slow_line_carries("database");
}

TEST_LIMIT(a_slow_line_is_late_only_when_it_stands_server, 60)
{
    slow_line_carries("server");
}
