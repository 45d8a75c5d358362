/* bench_bulk.c: a model's bytes to Redis and back, by hiredis alone and by redis_link's long
 * arguments and replies (redis_bulk.h), in the same chunks of 1 MiB, eight ahead of their replies.
 *
 * hiredis alone: redisAppendCommandArgv, redisBufferWrite, redisGetReply, and the reply copied to
 * its place. Both in turn, one connection each over a Unix socket; medians of TURNS turns: the time
 * that passes, and this process's processor time (the rest is Redis's own). */
#include <sys/resource.h>

#include "common/base/clock.h"
#include "modelstore_fixture.h"
#include "test.h"

enum { TURNS = 11, CHUNK = 1 << 20, AHEAD = 8, CHUNKS_MAX = 128 };

typedef struct cost {
    double wall_ms, cpu_ms;
} cost;

typedef struct bulk {
    redisContext *alone;
    redis_link *link;
    char *bytes;
    size_t len;
} bulk;

static size_t chunks(const bulk *b)
{
    return (b->len + CHUNK - 1) / CHUNK;
}

static size_t chunk_len(const bulk *b, size_t i)
{
    return b->len - i * CHUNK < CHUNK ? b->len - i * CHUNK : CHUNK;
}

/* ---- hiredis alone --------------------------------------------------------------------------- */

static redisReply *take_reply(redisContext *c)
{
    void *reply = NULL;
    CHECK(redisGetReply(c, &reply) == REDIS_OK && reply);
    return reply;
}

static void set_alone(const bulk *b)
{
    for (size_t i = 0; i < chunks(b) + AHEAD; i++) {
        char key[32];
        if (i < chunks(b)) {
            int done = 0, len = snprintf(key, sizeof key, "chunk:%zu", i);
            const char *word[] = {"SET", key, b->bytes + i * CHUNK};
            const size_t bytes[] = {3, (size_t)len, chunk_len(b, i)};
            CHECK(redisAppendCommandArgv(b->alone, 3, word, bytes) == REDIS_OK);
            while (!done)
                CHECK(redisBufferWrite(b->alone, &done) == REDIS_OK);
        }
        if (i >= AHEAD)
            freeReplyObject(take_reply(b->alone));
    }
}

static void get_alone(const bulk *b)
{
    for (size_t i = 0; i < chunks(b) + AHEAD; i++) {
        if (i < chunks(b))
            CHECK(redisAppendCommand(b->alone, "GET chunk:%d", (int)i) == REDIS_OK);
        if (i < AHEAD)
            continue;
        redisReply *reply = take_reply(b->alone);
        CHECK_INT(reply->len, chunk_len(b, i - AHEAD));
        memcpy(b->bytes + (i - AHEAD) * CHUNK, reply->str, reply->len);
        freeReplyObject(reply);
    }
}

/* ---- redis_link ------------------------------------------------------------------------------ */

static void set_linked(const bulk *b)
{
    err e = ERR_INIT;
    cleanup_command redis_command c = {NULL, 0};
    for (size_t i = 0; i < chunks(b) + AHEAD; i++) {
        if (i < chunks(b)) {
            size_t len = chunk_len(b, i);
            CHECK_OK(redis_command_format(&c, &e, "SET chunk:%d", (int)i), e);
            CHECK_OK(redis_link_announce(b->link, &c, len, 0, fixture_deadline(), &e), e);
            CHECK_OK(redis_link_send_long(b->link, b->bytes + i * CHUNK, len, NULL,
                                          fixture_deadline(), &e),
                     e);
        }
        if (i >= AHEAD) {
            cleanup_reply redisReply *reply = NULL;
            CHECK_OK(redis_link_receive(b->link, &reply, fixture_deadline(), &e), e);
        }
    }
}

static void get_linked(const bulk *b)
{
    err e = ERR_INIT;
    cleanup_command redis_command c = {NULL, 0};
    for (size_t i = 0; i < chunks(b) + AHEAD; i++) {
        if (i < chunks(b)) {
            CHECK_OK(redis_command_format(&c, &e, "GET chunk:%d", (int)i), e);
            CHECK_OK(redis_link_append(b->link, &c, fixture_deadline(), &e), e);
        }
        if (i >= AHEAD)
            CHECK_OK(redis_link_receive_long(b->link, b->bytes + (i - AHEAD) * CHUNK,
                                             chunk_len(b, i - AHEAD), fixture_deadline(), &e),
                     e);
    }
}

/* ---- figures --------------------------------------------------------------------------------- */

static double cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

static cost time_of(void (*run)(const bulk *), const bulk *b)
{
    double wall = (double)clock_monotonic_ns() / 1e6, cpu = cpu_ms();
    run(b);
    return (cost){(double)clock_monotonic_ns() / 1e6 - wall, cpu_ms() - cpu};
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static cost median(const cost *all)
{
    double wall[TURNS], cpu[TURNS];
    for (int i = 0; i < TURNS; i++) {
        wall[i] = all[i].wall_ms;
        cpu[i] = all[i].cpu_ms;
    }
    qsort(wall, TURNS, sizeof *wall, by_size);
    qsort(cpu, TURNS, sizeof *cpu, by_size);
    return (cost){wall[TURNS / 2], cpu[TURNS / 2]};
}

static void measure(const bulk *b)
{
    static void (*const ways[])(const bulk *) = {set_alone, set_linked, get_alone, get_linked};
    static const char *const names[] = {"SET, hiredis alone", "SET, redis_bulk",
                                        "GET, hiredis alone", "GET, redis_bulk"};
    static cost all[4][TURNS];
    for (int i = -1; i < TURNS; i++) /* the first touches every page */
        for (int k = 0; k < 4; k++) {
            cost c = time_of(ways[k], b);
            if (i >= 0)
                all[k][i] = c;
        }
    printf("%.1f MB to and from Redis in chunks of 1 MiB, medians of %d\n", (double)b->len / 1e6,
           TURNS);
    for (int k = 0; k < 4; k++) {
        cost c = median(all[k]);
        printf("  %-20s %7.1f ms, %7.1f ms of this process's processor\n", names[k], c.wall_ms,
               c.cpu_ms);
    }
    fflush(stdout);
}

TEST_LIMIT(run, 300)
{
    static const size_t floats[] = {11181642, 21282000}; /* ResNet-18, ResNet-34 */
    fixture f;
    fixture_init(&f, "server", "socket", 64);
    bulk b = {.alone = redisConnectUnix(f.owner_access.address + strlen("unix:")),
              .link = fixture_redis(f.owner_access.address, f.owner_access.password),
              .bytes = calloc(CHUNKS_MAX, CHUNK)};
    CHECK(b.alone && b.alone->err == 0 && b.bytes);
    redisReply *in = redisCommand(b.alone, "AUTH %s", f.owner_access.password);
    CHECK(in && in->type == REDIS_REPLY_STATUS);
    freeReplyObject(in);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        b.len = floats[i] * sizeof(float);
        CHECK(chunks(&b) <= CHUNKS_MAX);
        measure(&b);
    }
    redisFree(b.alone);
    redis_link_close(b.link);
    free(b.bytes);
    fixture_free(&f);
}
