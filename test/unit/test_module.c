/* test_module.c: the Redis module's logic in a host of this test's own (under the sanitizers), and
 * the module in a real redis-server: dumps, transactions, memory that is gone, others being served.
 */
#include "ps/module/kml_arguments.c"
#include "ps/module/kml_logic.c"
#include "ps/module/kml_merge.c"
#include "ps/module/kml_save.c"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/modelstore/redis_link.h"
#include "modelstore_fixture.h"
#include "ps/redis/redis_serve.h"
#include "test.h"

/* ---- a host without Redis ------------------------------------------------------------------ */

static int retained, allocated, allocations_until_failure = -1;

static void *test_alloc(size_t bytes)
{
    if (allocations_until_failure == 0)
        return NULL;
    if (allocations_until_failure > 0)
        allocations_until_failure--;
    allocated++;
    return malloc(bytes);
}

static void test_free(void *p)
{
    allocated--;
    free(p);
}

static void test_retain(void *owner)
{
    (void)owner;
    retained++;
}

static void test_release(void *owner)
{
    (void)owner;
    retained--;
}

/* Where an owner's bytes are now: an owner is that place itself. */
static const char *test_text(void *owner)
{
    return owner;
}

static logic_host test_host = {.alloc = test_alloc,
                               .free = test_free,
                               .retain = test_retain,
                               .release = test_release,
                               .text = test_text,
                               .threads = 2};

enum { N = 300007, C = 3, ARGS = 32 };
static const block_shape shape = {N, C};

/* "a b c" as arguments. */
typedef struct words {
    char text[1024];
    logic_arg arg[ARGS];
    int argc;
} words;

static words *split(words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static words *split(words *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(w->text, sizeof w->text, format, args);
    va_end(args);
    w->argc = 0;
    char *rest = w->text;
    for (char *word; (word = strsep(&rest, " ")) && w->argc < ARGS;) {
        const char *text = strcmp(word, "''") == 0 ? "" : word;
        w->arg[w->argc++] = (logic_arg){text, strlen(text), w};
    }
    return w;
}

static logic_job *new_job(void)
{
    words w;
    err e = ERR_INIT;
    logic_job *j = NULL;
    split(&w, "layout %d %d 00000000000000aa -1 0 0 0000000000000000 0 '' []", N, C);
    CHECK_OK(logic_create(&test_host, w.argc, w.arg, &j, &e), e);
    return j;
}

static void write_all_chunks(logic_job *j, int round, int function, int incarnation, block b)
{
    err e = ERR_INIT;
    words w;
    static char during[LOGIC_CHUNK_BYTES]; /* Redis may move an argument when its command is over */
    for (size_t i = 0; i < logic_chunks(shape); i++) {
        size_t len;
        char *at = logic_chunk_at(shape, b, i, &len);
        split(&w, "bytes 0 %d %d %d %zu", round, function, incarnation, i);
        memcpy(during, at, len);
        w.arg[0] = (logic_arg){during, len, at};
        CHECK_OK(logic_write(j, w.argc, w.arg, &e), e);
        memset(during, 0x5A, len);
    }
}

static int publish(logic_job *j, int round, int function, int incarnation, block b, err *e)
{
    words w;
    uint64_t checksum = 0;
    CHECK_OK(block_checksum(shape, b, 1, &checksum, e), *e);
    split(&w, "0 %d %d %d %d 10 %016llx 00000000000000aa -1", round, round - 1, function,
          incarnation, (unsigned long long)checksum);
    return logic_publish(j, w.argc, w.arg, e);
}

static int merge_now(logic_job *j, int round, const char *parts, err *e)
{
    words w;
    logic_merge *m = NULL;
    split(&w, "0 %d %d 0 %d mean {} %s", round, round - 1, round + 1, parts);
    if (logic_merge_begin(j, w.argc, w.arg, &m, e))
        return -1;
    logic_merge_run(m);
    return logic_merge_end(m, NULL, e);
}

TEST(logic_life_of_a_round)
{
    err e = ERR_INIT;
    logic_job *j = new_job();
    block b[2] = {fixture_block(shape), fixture_block(shape)};
    for (int i = 0; i < 2; i++) {
        fixture_fill(shape, b[i], (uint64_t)i);
        write_all_chunks(j, 0, i, 0, b[i]);
        CHECK_OK(publish(j, 0, i, 0, b[i], &e), e);
    }
    CHECK_INT(retained, 2 * (int)logic_chunks(shape));
    CHECK_OK(merge_now(j, 0, "2 0 0 10 1 0 10", &e), e);
    CHECK_INT(retained, 0);
    CHECK_INT(j->version, 0);
    CHECK(j->ledger_len == 2 && memcmp(j->ledger, "{}", 2) == 0);
    block r = logic_reference(j, 0);
    for (size_t i = 0; i < N; i++)
        CHECK(r.floats[i] == (float)(0.5 * (double)b[0].floats[i] + 0.5 * (double)b[1].floats[i]));
    CHECK_ERR(merge_now(j, 0, "2 0 0 10 1 0 10", &e), e, ERR_STALE, "is over");
    logic_free(j);
    CHECK_INT(allocated, 0);
}

TEST(logic_names_a_flipped_byte_and_takes_it_again)
{
    err e = ERR_INIT;
    logic_job *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(j, 0, 4, 1, b);
    CHECK_OK(publish(j, 0, 4, 1, b, &e), e);
    b.floats[N - 1] += 1;
    CHECK_ERR(merge_now(j, 0, "1 4 1 10", &e), e, ERR_CORRUPT, "@4 function 4 (incarnation 1)");
    CHECK_INT(retained, 0);
    CHECK(!j->present);
    write_all_chunks(j, 0, 4, 1, b);
    CHECK_OK(publish(j, 0, 4, 1, b, &e), e);
    CHECK_OK(merge_now(j, 0, "1 4 1 10", &e), e);
    logic_free(j);
}

/* They went to a model that was lost before it was put back: who wrote them is to do so once more,
 * and not to give up. */
TEST(logic_asks_for_chunks_again_that_are_not_there)
{
    err e = ERR_INIT;
    logic_job *lost = new_job(), *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(lost, 0, 0, 0, b);
    CHECK_ERR(publish(j, 0, 0, 0, b, &e), e, ERR_UNAVAILABLE, "0 of 3 chunks are here");
    write_all_chunks(j, 0, 0, 0, b);
    CHECK_OK(publish(j, 0, 0, 0, b, &e), e);
    logic_free(lost);
    logic_free(j);
}

TEST(logic_refuses_wrong_arguments)
{
    static const char *const create[] = {
        "layout 0 0 00000000000000aa -1 0 0 0000000000000000 0 '' []",
        "layout -1 0 00000000000000aa -1 0 0 0000000000000000 0 '' []",
        "layout 99999999999999999999 0 00000000000000aa -1 0 0 0000000000000000 0 '' []",
        "layout 9 0 aa -1 0 0 0000000000000000 0 '' []",
        "layout 9 0 00000000000000aa -2 0 0 0000000000000000 0 '' []",
        "layout 9 0 00000000000000aa 0 0 0 0000000000000000 1 '' []",
        "layout 9 0 00000000000000aa -1 0 0 0000000000000000 0 ../etc/passwd []",
        ("layout 9 0 00000000000000aa -1 0 0 0000000000000000 0 "
         "kubeml-x-00000000000000000000000000000000 []"),
        "layout 9 0 00000000000000aa -1 0 0 0000000000000000 0 '' x",
        "layout 9 0 00000000000000aa -1 0 0",
    };
    static const char *const publications[] = {
        "0 0 -1 256 0 1 0000000000000000 00000000000000aa -1",
        "0 0 -1 0 -1 1 0000000000000000 00000000000000aa -1",
        "0 0 -1 0 0 -1 0000000000000000 00000000000000aa -1",
        "0 0 -1 0 0 1 0000000000000000 00000000000000ab -1",
        "0 0 -1 0 0 1 0000000000000000 00000000000000aa 0",
        "0 0 -1 0 0 1 0000000000000000 00000000000000aa -1",
        "0 0 -1 0 0 1",
        "x 0 -1 0 0 1 0000000000000000 00000000000000aa -1",
    };
    static const char *const merges[] = {
        "0 0 -1 0 1 mean {} 1 0 0 10",  "0 0 -1 0 0 mean {} 1 0 0 10",
        "0 0 -1 0 1 krum {} 1 0 0 10",  "0 0 -1 0 1 mean {} 2 0 0 10",
        "0 0 -1 0 1 mean {} 0",         "0 0 -1 0 1 mean {} -1",
        "0 0 -1 0 1 mean {} 999999999", "0 0 -1 0 1 mean {} 1 999 0 10",
        "0 1 -1 0 2 mean {} 1 0 0 10",
    };
    words w;
    test_host.segment_dir = test_tmp();
    for (size_t i = 0; i < sizeof create / sizeof create[0]; i++) {
        err e = ERR_INIT;
        logic_job *j = NULL;
        split(&w, "%s", create[i]);
        if (logic_create(&test_host, w.argc, w.arg, &j, &e) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", create[i]);
        CHECK(e.code != ERR_NONE && e.code != ERR_INTERNAL);
    }
    logic_job *j = new_job();
    for (size_t i = 0; i < sizeof publications / sizeof publications[0]; i++) {
        err e = ERR_INIT;
        split(&w, "%s", publications[i]);
        if (logic_publish(j, w.argc, w.arg, &e) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", publications[i]);
    }
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        err e = ERR_INIT;
        logic_merge *m;
        split(&w, "%s", merges[i]);
        if (logic_merge_begin(j, w.argc, w.arg, &m, &e) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", merges[i]);
    }
    CHECK(!j->merging);
    logic_free(j);
    CHECK_INT(allocated, 0);
}

TEST(logic_out_of_memory_is_an_error)
{
    for (int k = 0; k < 2; k++) {
        words w;
        err e = ERR_INIT;
        logic_job *j = NULL;
        allocations_until_failure = k;
        split(&w, "layout %d %d 00000000000000aa -1 0 0 0000000000000000 0 '' []", N, C);
        CHECK_ERR(logic_create(&test_host, w.argc, w.arg, &j, &e), e, ERR_NOMEM, "no memory");
        CHECK_INT(allocated, 0);
    }
}

/* A merge on a thread of its own, while the main thread goes on reading and is asked to change
 * things. */
static void *run_merge(void *m)
{
    logic_merge_run(m);
    return NULL;
}

static void ignore_bytes(void *user, const void *bytes, size_t len)
{
    *(uint64_t *)user += XXH3_64bits(bytes, len);
}

static void ignore_integer(void *user, int64_t n)
{
    *(uint64_t *)user += (uint64_t)n;
}

static void ignore_array(void *user, size_t n)
{
    *(uint64_t *)user += n;
}

TEST(logic_merges_beside_readers)
{
    err e = ERR_INIT;
    uint64_t sum = 0;
    const logic_reply ignore = {ignore_array, ignore_integer, ignore_bytes, &sum};
    logic_job *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(j, 0, 0, 0, b);
    CHECK_OK(publish(j, 0, 0, 0, b, &e), e);
    CHECK_OK(merge_now(j, 0, "1 0 0 10", &e), e);
    for (int round = 1; round < 12; round++) {
        words w;
        logic_merge *m;
        pthread_t thread;
        write_all_chunks(j, round, 0, 0, b);
        CHECK_OK(publish(j, round, 0, 0, b, &e), e);
        split(&w, "0 %d %d 0 %d mean {} 1 0 0 10", round, round - 1, round + 1);
        CHECK_OK(logic_merge_begin(j, w.argc, w.arg, &m, &e), e);
        CHECK(pthread_create(&thread, NULL, run_merge, m) == 0);
        CHECK_OK(publish(j, round, 0, 0, b, &e), e); /* the same again */
        CHECK_ERR(publish(j, round, 0, 1, b, &e), e, ERR_CONFLICT, "being merged");
        split(&w, "%d 0", round - 1);
        CHECK_OK(logic_read(j, w.argc, w.arg, &ignore, &e), e);
        CHECK_OK(logic_status(j, 0, NULL, &ignore, &e), e);
        bool remove = round == 11;
        if (remove)
            logic_free(j); /* the key is deleted meanwhile */
        pthread_join(thread, NULL);
        if (remove)
            CHECK_ERR(logic_merge_end(m, &ignore, &e), e, ERR_NOT_FOUND, "removed");
        else
            CHECK_OK(logic_merge_end(m, &ignore, &e), e);
    }
    CHECK_INT(retained, 0);
    CHECK_INT(allocated, 0);
}

/* Beyond it lies other memory of Redis. */
TEST(logic_knows_its_last_chunk)
{
    static char bytes[LOGIC_CHUNK_BYTES];
    err e = ERR_INIT;
    words w;
    uint64_t sum = 0;
    const logic_reply ignore = {ignore_array, ignore_integer, ignore_bytes, &sum};
    logic_job *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(j, 0, 0, 0, b);
    CHECK_OK(publish(j, 0, 0, 0, b, &e), e);
    CHECK_OK(merge_now(j, 0, "1 0 0 10", &e), e);
    split(&w, "0 %zu", logic_chunks(shape) - 1);
    CHECK_OK(logic_read(j, w.argc, w.arg, &ignore, &e), e);
    split(&w, "0 %zu", logic_chunks(shape));
    CHECK_ERR(logic_read(j, w.argc, w.arg, &ignore, &e), e, ERR_INVALID, "chunk");
    split(&w, "bytes 0 1 0 0 %zu", logic_chunks(shape));
    w.arg[0] = (logic_arg){bytes, sizeof bytes, bytes};
    CHECK_ERR(logic_write(j, w.argc, w.arg, &e), e, ERR_INVALID, "chunk");
    CHECK_INT(retained, 0);
    logic_free(j);
}

/* One that is too long for any ledger is refused before anything is merged. */
TEST(logic_a_ledger_holds_what_fits)
{
    static char element[LOGIC_LEDGER_BYTES_MAX];
    err e = ERR_INIT;
    words w;
    logic_merge *m;
    logic_job *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(j, 0, 0, 0, b);
    CHECK_OK(publish(j, 0, 0, 0, b, &e), e);
    split(&w, "0 0 -1 0 1 mean {} 1 0 0 10");
    w.arg[6] = (logic_arg){element, LOGIC_LEDGER_BYTES_MAX - 1, element};
    CHECK_ERR(logic_merge_begin(j, w.argc, w.arg, &m, &e), e, ERR_LIMIT, "for the ledger");
    CHECK(!j->merging);
    w.arg[6].len--; /* the two brackets */
    CHECK_OK(logic_merge_begin(j, w.argc, w.arg, &m, &e), e);
    logic_merge_run(m);
    CHECK_OK(logic_merge_end(m, NULL, &e), e);
    CHECK_INT(j->ledger_len, LOGIC_LEDGER_BYTES_MAX - 2);
    logic_free(j);
    CHECK_INT(allocated, 0);
}

/* Asked for again, because its answer was lost on the way: what was published is there, and need
 * not be trained again. */
TEST(logic_a_merge_that_is_under_way_is_waited_for)
{
    err e = ERR_INIT;
    words w;
    logic_merge *m, *again;
    logic_job *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(j, 0, 0, 0, b);
    CHECK_OK(publish(j, 0, 0, 0, b, &e), e);
    split(&w, "0 0 -1 0 1 mean {} 1 0 0 10");
    CHECK_OK(logic_merge_begin(j, w.argc, w.arg, &m, &e), e);
    CHECK_ERR(logic_merge_begin(j, w.argc, w.arg, &again, &e), e, ERR_UNAVAILABLE, "being merged");
    logic_merge_run(m);
    CHECK_OK(logic_merge_end(m, NULL, &e), e);
    CHECK_ERR(logic_merge_begin(j, w.argc, w.arg, &again, &e), e, ERR_STALE, "is over");
    logic_free(j);
    CHECK_INT(allocated, 0);
}

/* ---- payloads ------------------------------------------------------------------------------ */

typedef struct tape {
    unsigned char *bytes;
    size_t len, cap, at;
} tape;

static void tape_put(void *user, const void *bytes, size_t len)
{
    tape *t = user;
    if (t->len + len + 8 > t->cap) {
        t->cap = (t->len + len + 8) * 2;
        t->bytes = realloc(t->bytes, t->cap);
        CHECK(t->bytes);
    }
    uint64_t n = len;
    memcpy(t->bytes + t->len, &n, 8);
    memcpy(t->bytes + t->len + 8, bytes, len);
    t->len += len + 8;
}

static void tape_put_u64(void *user, uint64_t n)
{
    tape_put(user, &n, 8);
}

static int tape_get(void *user, char **out, size_t *len)
{
    tape *t = user;
    uint64_t n;
    if (t->len - t->at < 8)
        return -1;
    memcpy(&n, t->bytes + t->at, 8);
    if (n > t->len - t->at - 8)
        return -1;
    *out = malloc(n + 1);
    CHECK(*out);
    memcpy(*out, t->bytes + t->at + 8, n);
    *len = n;
    t->at += n + 8;
    return 0;
}

static int tape_get_u64(void *user, uint64_t *out)
{
    char *bytes;
    size_t len;
    if (tape_get(user, &bytes, &len))
        return -1;
    int rc = len == 8 ? 0 : -1;
    if (rc == 0)
        memcpy(out, bytes, 8);
    free(bytes);
    return rc;
}

static void tape_drop(char *bytes)
{
    free(bytes);
}

static logic_job *saved_job(tape *t)
{
    err e = ERR_INIT;
    logic_job *j = new_job();
    block b = fixture_block(shape);
    fixture_fill(shape, b, 3);
    write_all_chunks(j, 0, 0, 0, b);
    CHECK_OK(publish(j, 0, 0, 0, b, &e), e);
    CHECK_OK(merge_now(j, 0, "1 0 0 10", &e), e);
    const logic_sink sink = {tape_put_u64, tape_put, t};
    logic_save(j, &sink);
    return j;
}

TEST_LIMIT(logic_loads_what_it_saved_and_nothing_else, 60)
{
    tape t = {NULL, 0, 0, 0};
    err e = ERR_INIT;
    rng r;
    logic_job *j = saved_job(&t), *copy = NULL;
    const logic_source source = {tape_get_u64, tape_get, tape_drop, &t};
    CHECK_OK(logic_load(&test_host, &source, &copy, &e), e);
    CHECK(logic_fingerprint(copy) == logic_fingerprint(j));
    CHECK_INT(t.at, t.len);
    logic_free(copy);
    rng_init(&r, 1, RNG_TEST, 2, 3);
    int refused = 0;
    for (int i = 0; i < 300; i++) {
        size_t len = t.len;
        /* Half of the flips in the head, where the numbers stand. */
        size_t at = (size_t)rng_below(&r, i % 2 ? t.len : 200);
        unsigned char flip = (unsigned char)(1 + rng_below(&r, 255));
        if (i % 5 == 0)
            t.len = at;
        t.bytes[at] ^= flip;
        t.at = 0;
        copy = NULL;
        if (logic_load(&test_host, &source, &copy, &e) == 0) {
            CHECK(i % 5 != 0); /* not of one that was cut */
            logic_free(copy);  /* a number that nothing depends on, e.g. the epoch's */
        } else {
            refused++;
        }
        t.bytes[at] ^= flip;
        t.len = len;
    }
    printf("%d of 300 damaged payloads refused\n", refused);
    CHECK(refused > 200);
    logic_free(j);
    CHECK_INT(allocated, 0);
    free(t.bytes);
}

/* As Redis's own copy does after a restart: one that has no reference yet, or its first one. */
TEST(logic_goes_on_with_what_it_loaded)
{
    static char element[5000];
    block b = fixture_block(shape);
    fixture_fill(shape, b, 4);
    memset(element, ' ', sizeof element);
    for (int merges = 0; merges < 2; merges++) {
        tape t = {NULL, 0, 0, 0};
        err e = ERR_INIT;
        words w;
        logic_merge *m;
        logic_job *j = merges ? saved_job(&t) : new_job(), *copy = NULL;
        const logic_source source = {tape_get_u64, tape_get, tape_drop, &t};
        if (!merges)
            logic_save(j, &(logic_sink){tape_put_u64, tape_put, &t});
        CHECK_OK(logic_load(&test_host, &source, &copy, &e), e);
        logic_free(j);
        write_all_chunks(copy, merges, 0, 0, b);
        CHECK_OK(publish(copy, merges, 0, 0, b, &e), e);
        uint64_t before = logic_fingerprint(copy);
        split(&w, "0 %d %d 0 %d mean {} 1 0 0 10", merges, merges - 1, merges + 1);
        w.arg[6] = (logic_arg){element, sizeof element, element};
        CHECK_OK(logic_merge_begin(copy, w.argc, w.arg, &m, &e), e);
        logic_merge_run(m);
        CHECK_OK(logic_merge_end(m, NULL, &e), e);
        CHECK_INT(copy->version, merges);
        CHECK_INT(copy->ledger_len, (merges ? 3 : 0) + sizeof element);
        CHECK(memcmp(copy->ledger, merges ? "{}, " : "    ", 4) == 0);
        CHECK(memcmp(logic_reference(copy, merges).floats, b.floats, N * sizeof(float)) == 0);
        CHECK(logic_fingerprint(copy) != before);
        logic_free(copy);
        CHECK_INT(allocated, 0);
        free(t.bytes);
    }
}

/* ---- in a real Redis ----------------------------------------------------------------------- */

static redis_link *dial(const fixture *f)
{
    return fixture_redis(f->owner_access.address, f->owner_access.password);
}

/* Version 0 of a job, published by function 0. */
static void begin_job(fixture *f)
{
    err e = ERR_INIT;
    const modelstore_state start = {.version = 0, .round = 1};
    block b = fixture_block(f->layout.shape);
    fixture_fill(f->layout.shape, b, 3);
    CHECK_OK(modelstore_create(f->owner, &f->layout, &start, 8, &b, "[{\"a\":1}]",
                               fixture_deadline(), &e),
             e);
}

#define KEY "kubeml:{job1}:model"

TEST(merge_refuses_transactions_and_scripts)
{
    fixture f;
    err e = ERR_INIT;
    cleanup_reply redisReply *reply = NULL;
    cleanup_command redis_command eval = {NULL, 0};
    fixture_init(&f, "database", "socket", 64);
    begin_job(&f);
    redis_link *l = dial(&f);
    CHECK_OK(fixture_call(l, "MULTI", NULL, &e), e);
    CHECK_OK(fixture_call(l, "KUBEML.MERGE " KEY " 0 1 0 0 2 mean {} 1 0 0 10", NULL, &e), e);
    CHECK_OK(fixture_call(l, "EXEC", &reply, &e), e);
    CHECK_INT(reply->elements, 1);
    CHECK_INT(reply->element[0]->type, REDIS_REPLY_ERROR);
    CHECK_CONTAINS(reply->element[0]->str, "KML-UNSUPPORTED KUBEML.MERGE waits");
    CHECK_OK(redis_command_format(
                 &eval, &e, "EVAL %s 1 " KEY,
                 "return redis.call('KUBEML.MERGE',KEYS[1],0,1,0,0,2,'mean','{}',1,0,0,10)"),
             e);
    CHECK_ERR(redis_link_call(l, &eval, NULL, fixture_deadline(), &e), e, ERR_UNSUPPORTED,
              "inside MULTI or a script");
    CHECK_OK(fixture_call(l, "PING", NULL, &e), e);
    redis_link_close(l);
    fixture_free(&f);
}

/* Redis's own checksum of payloads: CRC-64 "Jones", reflected. */
static uint64_t crc64(const unsigned char *bytes, size_t len)
{
    uint64_t crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc & 1 ? crc >> 1 ^ UINT64_C(0x95ac9329ac4bc9b5) : crc >> 1;
    }
    return crc;
}

static int restore(redis_link *l, const char *key, const redisReply *payload, err *e)
{
    const char *const argument[] = {"RESTORE", key, "0", payload->str};
    const size_t len[] = {strlen("RESTORE"), strlen(key), 1, payload->len};
    cleanup_command redis_command c = {NULL, 0};
    return redis_command_words(&c, 4, argument, len, e) ||
                   redis_link_call(l, &c, NULL, fixture_deadline(), e)
               ? -1
               : 0;
}

TEST_LIMIT(dump_and_restore, 60)
{
    fixture f;
    err e = ERR_INIT;
    redisReply *payload, *a, *b;
    fixture_init(&f, "database", "shm", 5000);
    begin_job(&f);
    redis_link *l = dial(&f);
    CHECK_OK(fixture_call(l, "DUMP " KEY, &payload, &e), e);
    CHECK_OK(restore(l, "kubeml:{job2}:model", payload, &e), e);
    CHECK_OK(fixture_call(l, "KUBEML.READ " KEY " 0 0", &a, &e), e);
    CHECK_OK(fixture_call(l, "KUBEML.READ kubeml:{job2}:model 0 0", &b, &e), e);
    CHECK(a->len == 20000 && a->len == b->len && memcmp(a->str, b->str, a->len) == 0);
    redis_reply_free(&a);
    redis_reply_free(&b);
    CHECK_OK(fixture_call(l, "KUBEML.LEDGER kubeml:{job2}:model", &b, &e), e);
    CHECK_STR(b->str, "[{\"a\":1}]");
    redis_reply_free(&b);
    CHECK_OK(fixture_call(l, "MEMORY USAGE kubeml:{job2}:model", &b, &e), e);
    CHECK(b->integer > 20000);
    redis_reply_free(&b);
    /* Damaged, with a checksum of Redis's that fits: ours must see it. */
    unsigned char *bytes = (unsigned char *)payload->str;
    uint64_t signature, ours = crc64(bytes, payload->len - 8);
    memcpy(&signature, bytes + payload->len - 8, 8);
    CHECK(signature == ours);
    rng r;
    rng_init(&r, 5, RNG_TEST, 1, 1);
    int refused = 0;
    for (int i = 0; i < 200; i++) {
        size_t at = (size_t)rng_below(&r, payload->len - 10);
        if (i == 0)
            at = payload->len - 400; /* surely in the numbers */
        unsigned char was = bytes[at];
        bytes[at] ^= (unsigned char)(1 + rng_below(&r, 255));
        uint64_t crc = crc64(bytes, payload->len - 8);
        memcpy(bytes + payload->len - 8, &crc, 8);
        CHECK_OK(fixture_call(l, "DEL kubeml:{job3}:model", NULL, &e), e);
        int rc = restore(l, "kubeml:{job3}:model", payload, &e);
        refused += rc != 0;
        if (i == 0)
            CHECK(rc != 0);
        bytes[at] = was;
        CHECK_OK(fixture_call(l, "PING", NULL, &e), e);
    }
    printf("%d of 200 damaged payloads refused, Redis alive\n", refused);
    CHECK(refused > 150);
    CHECK(redis_server_alive(f.server));
    redis_reply_free(&payload);
    redis_link_close(l);
    fixture_free(&f);
}

TEST(wrong_commands_are_refused)
{
    static const char *const wrong[] = {
        "KUBEML.CREATE",
        "KUBEML.CREATE " KEY,
        "KUBEML.WRITE " KEY " x 0 1 0 0 999999",
        "KUBEML.WRITE " KEY " short 0 1 0 0 0",
        "KUBEML.PUBLISH " KEY " 1 2 3",
        "KUBEML.MERGE " KEY " 0 1 0 0 2 mean {} 1 0 0 10",
        "KUBEML.MERGE " KEY,
        "KUBEML.READ " KEY " 7 0",
        "KUBEML.READ " KEY " 0 99",
        "KUBEML.STATUS " KEY " extra",
        "KUBEML.STATUS nothing",
        "KUBEML.LEDGER other",
        "KUBEML.MERGE other 0 1 0 0 2 mean {} 1 0 0 10",
        "GET " KEY,
        "APPEND " KEY " x",
    };
    fixture f;
    err e = ERR_INIT;
    fixture_init(&f, "database", "socket", 64);
    begin_job(&f);
    redis_link *l = dial(&f);
    CHECK_OK(fixture_call(l, "SET other x", NULL, &e), e);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (fixture_call(l, wrong[i], NULL, &e) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", wrong[i]);
    CHECK_OK(fixture_call(l, "PING", NULL, &e), e);
    redis_link_close(l);
    fixture_free(&f);
}

static long long memory_used(redis_link *l)
{
    static const char field[] = "\nused_memory:";
    err e = ERR_INIT;
    redisReply *reply;
    CHECK_OK(fixture_call(l, "INFO memory", &reply, &e), e);
    const char *at = strstr(reply->str, field);
    CHECK(at);
    long long used = strtoll(at + sizeof field - 1, NULL, 10);
    redis_reply_free(&reply);
    return used;
}

TEST(a_model_that_is_removed_gives_its_memory_back)
{
    enum { NUMBERS = 1 << 20 };
    fixture f;
    err e = ERR_INIT;
    fixture_init(&f, "database", "socket", NUMBERS);
    redis_link *l = dial(&f);
    long long before = memory_used(l);
    begin_job(&f);
    CHECK(memory_used(l) >= before + 2 * NUMBERS * (long long)sizeof(float));
    CHECK_OK(fixture_call(l, "DEL " KEY, NULL, &e), e);
    CHECK(memory_used(l) < before + NUMBERS * (long long)sizeof(float));
    redis_link_close(l);
    fixture_free(&f);
}

static void send_only(redis_link *l, const redis_command *c)
{
    err e = ERR_INIT;
    CHECK_OK(redis_link_append(l, c, fixture_deadline(), &e), e);
    CHECK_OK(redis_link_flush(l, fixture_deadline(), &e), e);
}

/* MERGE of a big block is sent and not waited for; PING on another connection is answered first. */
TEST_LIMIT(others_are_served_during_a_merge, 60)
{
    enum { FLOATS = 24000000, FUNCTIONS = 3, TRIES = 5 };
    fixture f;
    err e = ERR_INIT;
    fixture_init(&f, "database", "shm", FLOATS);
    begin_job(&f);
    modelstore *m = fixture_member(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    redis_link *merging = dial(&f), *other = dial(&f);
    int first = 0;
    for (int round = 1; round <= TRIES && first == 0; round++) {
        for (int i = 0; i < FUNCTIONS; i++) {
            const modelstore_publication p = {
                .round = round, .version = round - 1, .function = i, .samples = 10, .slot = i};
            CHECK_OK(modelstore_publish(m, &p, NULL, fixture_deadline(), NULL, &e), e);
        }
        cleanup_command redis_command merge = {NULL, 0};
        CHECK_OK(redis_command_format(
                     &merge, &e, "KUBEML.MERGE " KEY " 0 %d %d 0 %d mean {} 3 0 0 10 1 0 10 2 0 10",
                     round, round - 1, round + 1),
                 e);
        send_only(merging, &merge);
        CHECK_OK(fixture_call(other, "PING", NULL, &e), e);
        redisReply *reply;
        CHECK_OK(fixture_call(other, "KUBEML.STATUS " KEY, &reply, &e), e);
        first += reply->element[0]->integer == round - 1; /* the merge has not ended yet */
        redis_reply_free(&reply);
        CHECK_OK(redis_link_receive(merging, &reply, fixture_deadline(), &e), e);
        CHECK_INT(reply->type, REDIS_REPLY_ARRAY);
        CHECK_INT(reply->element[0]->integer, round);
        redis_reply_free(&reply);
    }
    CHECK(first > 0);
    redis_link_close(merging);
    redis_link_close(other);
    modelstore_close(m);
    fixture_free(&f);
}

/* The key goes away, or its client does, while a merge runs. */
TEST_LIMIT(a_merge_outlives_its_key_and_its_client, 60)
{
    enum { FLOATS = 8000000 };
    fixture f;
    err e = ERR_INIT;
    fixture_init(&f, "database", "shm", FLOATS);
    for (int i = 0; i < 6; i++) {
        begin_job(&f);
        modelstore *m = fixture_member(&f);
        CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
        const modelstore_publication p = {.round = 1, .samples = 10};
        CHECK_OK(modelstore_publish(m, &p, NULL, fixture_deadline(), NULL, &e), e);
        redis_link *merging = dial(&f), *other = dial(&f);
        cleanup_command redis_command merge = {NULL, 0};
        CHECK_OK(
            redis_command_format(&merge, &e, "KUBEML.MERGE " KEY " 0 1 0 0 2 mean {} 1 0 0 10"), e);
        send_only(merging, &merge);
        if (i % 3 == 0)
            CHECK_OK(fixture_call(other, "DEL " KEY, NULL, &e), e);
        else if (i % 3 == 1)
            CHECK_OK(fixture_call(other, "FLUSHALL ASYNC", NULL, &e), e);
        redis_link_close(merging); /* without the answer */
        CHECK_OK(fixture_call(other, "PING", NULL, &e), e);
        redis_link_close(other);
        modelstore_close(m);
    }
    CHECK(redis_server_alive(f.server));
    fixture_free(&f);
}

TEST_LIMIT(memory_that_is_gone_is_an_error, 60)
{
    char folder[300];
    err e = ERR_INIT;
    fixture f;
    fixture_init(&f, "database", "socket", 4000000); /* 16 MB */
    redis_server_stop(f.server);
    snprintf(folder, sizeof folder, "%s/redis", test_tmp());
    redis_server_spec spec = {
        .folder = folder, .module = fixture_module(), .memory_bytes = 42 << 20};
    CHECK_OK(redis_server_start(&spec, fixture_deadline(), &f.server, &e), e);
    snprintf(f.owner_access.password, sizeof f.owner_access.password, "%s",
             redis_server_password(f.server));
    f.member_access = f.owner_access;
    modelstore_close(f.owner);
    CHECK_OK(modelstore_open(&f.owner_access, MODELSTORE_OWNER, fixture_deadline(), &f.owner, &e),
             e);
    const modelstore_state start = {.version = -1};
    CHECK_OK(modelstore_create(f.owner, &f.layout, &start, 8, NULL, NULL, fixture_deadline(), &e),
             e);
    modelstore *m = fixture_member(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    const modelstore_publication p = {.version = -1, .samples = 10};
    CHECK_ERR(modelstore_publish(m, &p, NULL, fixture_deadline(), NULL, &e), e, ERR_NOMEM, "OOM");
    CHECK(redis_server_alive(f.server));
    redis_server_stop(f.server);
    spec = (redis_server_spec){
        .folder = folder, .module = fixture_module(), .address_space_bytes = 400 << 20};
    CHECK_OK(redis_server_start(&spec, fixture_deadline(), &f.server, &e), e);
    snprintf(f.owner_access.password, sizeof f.owner_access.password, "%s",
             redis_server_password(f.server));
    redis_link *l = dial(&f);
    CHECK_ERR(fixture_call(l,
                           "KUBEML.CREATE " KEY " l 2000000000 0 00000000000000aa -1 0 0 "
                           "0000000000000000 0  []",
                           NULL, &e),
              e, ERR_NOMEM, "no memory");
    CHECK_OK(fixture_call(l, "PING", NULL, &e), e);
    CHECK(redis_server_alive(f.server));
    redis_link_close(l);
    modelstore_close(m);
    fixture_free(&f);
}

TEST(a_container_leaves_redis_most_of_its_memory)
{
    static const struct {
        const char *limit;
        uint64_t bytes;
    } cases[] = {{"4294967296\n", UINT64_C(3865470561)}, {"max\n", 0}, {"", 0}};
    char path[300];
    snprintf(path, sizeof path, "%s/memory.max", test_tmp());
    CHECK_INT(redis_serve_memory(NULL, path), 0);
    CHECK_INT(redis_serve_memory("4294967296", path), UINT64_C(3865470561)); /* no memory.max */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(cases[i].limit, f) >= 0 && fclose(f) == 0);
        CHECK_INT(redis_serve_memory(NULL, path), cases[i].bytes);
        CHECK_INT(redis_serve_memory("", path), cases[i].bytes);
        CHECK_INT(redis_serve_memory("1000", path), 900);
    }
}

/* A port-forward comes from the loopback of the pod, whatever the pod's address is. */
TEST(a_server_answers_on_its_address_and_on_the_loopback)
{
    static const char *const hosts[] = {"127.0.0.2", "127.0.0.1", "0.0.0.0"};
    char folder[300], listen[64], address[64];
    for (int i = 0; i < 3; i++) {
        err e = ERR_INIT;
        redis_server *server;
        int port = test_free_port();
        snprintf(folder, sizeof folder, "%s/redis%d", test_tmp(), i);
        snprintf(listen, sizeof listen, "%s:%d", hosts[i], port);
        redis_server_spec spec = {.folder = folder, .listen = listen};
        if (redis_server_start(&spec, fixture_deadline(), &server, &e) && e.code == ERR_NOT_FOUND)
            test_skip("redis-server is not installed");
        CHECK_STR(e.message, "");
        for (int k = 0; k < 2; k++) {
            snprintf(address, sizeof address, "tcp:%s:%d", k == 0 ? hosts[i] : "127.0.0.1", port);
            redis_link_close(fixture_redis(address, redis_server_password(server)));
        }
        redis_server_stop(server);
    }
}

TEST(the_module_refuses_wrong_options_and_segments)
{
    char folder[300];
    err e = ERR_INIT;
    redis_server *server;
    snprintf(folder, sizeof folder, "%s/redis2", test_tmp());
    redis_server_spec spec = {
        .folder = folder, .module = fixture_module(), .segment_dir = "relative"};
    if (redis_server_start(&spec, fixture_deadline(), &server, &e) == 0)
        test_fail(__FILE__, __LINE__, "started with a relative segment folder");
    if (e.code == ERR_NOT_FOUND)
        test_skip("redis-server is not installed");
    CHECK_INT(e.code, ERR_CRASHED);
    CHECK_CONTAINS(e.message, "did not start");
    spec.segment_dir = NULL;
    spec.module = "/no/such/module.so";
    CHECK_ERR(redis_server_start(&spec, fixture_deadline(), &server, &e), e, ERR_CRASHED, "module");
    spec.module = NULL;
    spec.program = "no-such-redis-server";
    CHECK_ERR(redis_server_start(&spec, fixture_deadline(), &server, &e), e, ERR_NOT_FOUND,
              "no-such-redis-server is not installed");
}
