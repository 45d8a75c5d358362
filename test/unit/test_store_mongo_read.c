/* test_store_mongo_read.c: readers of a dataset in MongoDB: what they fetch ahead, how much, and
 * what they say where the line is cut. Runs against MONGODB_URI or the stand-in. */
#include <sys/resource.h>

#include "common/base/clock.h"
#include "mongo_fixture.h"

enum { CHUNKS = 400, CHUNK_LEN = 50000 };

/* Chunks in a random order, announced and not, by two threads at once; nothing comes twice or
 * wrong. */
static void *view_all(void *arg)
{
    err e = ERR_INIT;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        uint32_t index = i * 67 % CHUNKS;
        const void *bytes;
        size_t len;
        CHECK_OK(chunk_view(arg, 0, index, &bytes, &len, &e), e);
        CHECK_INT(len, CHUNK_LEN);
        CHECK_INT((uintptr_t)bytes % 64, 16); /* as in LMDB's pages, see dataset_layout_of */
        CHECK(((const uint8_t *)bytes)[0] == (uint8_t)index &&
              ((const uint8_t *)bytes)[CHUNK_LEN - 1] == (uint8_t)index);
        chunk_view_release(arg, 0, index);
    }
    return NULL;
}

static void write_chunks(store *s, char locator[STORE_LOCATOR_BYTES], chunk_writer **w)
{
    err e = ERR_INIT;
    char id[STORE_ID_BYTES];
    static uint8_t bytes[CHUNK_LEN];
    CHECK_OK(store_chunks_begin(s, 0, id, w, &e), e);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        memset(bytes, (int)i, sizeof bytes);
        CHECK_OK(chunk_put(*w, 0, i, bytes, sizeof bytes, &e), e);
    }
    CHECK_OK(chunk_put_info(*w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(*w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
}

TEST_LIMIT(chunks_are_fetched_ahead, 60)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    store *s = test_store("");
    char locator[STORE_LOCATOR_BYTES];
    chunk_writer *w;
    chunk_reader *r;
    uint32_t order[CHUNKS + 1];
    write_chunks(s, locator, &w);
    for (uint32_t i = 0; i < CHUNKS; i++)
        order[i] = i * 67 % CHUNKS;
    order[CHUNKS] = 100000; /* one that is not there is passed over */
    for (int announced = 0; announced < 2; announced++) {
        pthread_t threads[2];
        CHECK_OK(chunk_reader_open(locator, &r, &e), e);
        CHECK(chunk_prefetches(r));
        if (announced)
            chunk_prefetch(r, 0, order, CHUNKS + 1);
        for (int i = 0; i < 2; i++)
            CHECK_INT(pthread_create(&threads[i], NULL, view_all, r), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        chunk_reader_close(r);
    }
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    chunk_prefetch(r, 0, order, CHUNKS);
    chunk_prefetch(r, 0, order + 100, 50); /* another list, of what was announced before */
    chunk_reader_close(r);                 /* and an end comes at any time */
    chunk_abort(w);
    store_close(s);
}

typedef struct share {
    chunk_reader *r;
    pthread_barrier_t *start;
    uint32_t first;
} share;

static void *announce_share(void *arg)
{
    const share *s = arg;
    uint32_t mine[CHUNKS / 2];
    for (uint32_t i = 0; i < CHUNKS / 2; i++)
        mine[i] = s->first + i;
    pthread_barrier_wait(s->start);
    chunk_prefetch(s->r, 0, mine, CHUNKS / 2);
    return NULL;
}

/* Functions that share a process share a reader: one's share is fetched ahead though another
 * announces its own. Nobody views a chunk here. */
TEST_LIMIT(each_threads_share_is_fetched_ahead, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800], locator[STORE_LOCATOR_BYTES];
    chunk_writer *w;
    chunk_reader *r;
    pthread_barrier_t start;
    pthread_t threads[2];
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=10000", through);
    store *s = open_at(through);
    write_chunks(s, locator, &w);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_INT(pthread_barrier_init(&start, NULL, 2), 0);
    share shares[2] = {{r, &start, 0}, {r, &start, CHUNKS / 2}};
    size_t before = __atomic_load_n(&l.given, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, announce_share, &shares[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    int64_t limit = clock_deadline_ms(30000);
    while (__atomic_load_n(&l.given, __ATOMIC_RELAXED) - before < (size_t)CHUNKS * CHUNK_LEN) {
        CHECK(clock_left_ms(limit) > 0);
        usleep(10000);
    }
    chunk_reader_close(r);
    pthread_barrier_destroy(&start);
    chunk_abort(w);
    store_close(s);
    end_line(&l);
}

/* What a function is dealt comes over the line, and not one chunk more: announced in any order,
 * announced as a range, and without a word. */
TEST_LIMIT(a_reader_fetches_its_chunks_and_no_others, 60)
{
    enum { MINE = 100 };
    static const struct {
        uint32_t first, step;
        bool announced;
    } ways[] = {{0, 67, true}, {150, 1, true}, {0, 67, false}};
    err e = ERR_INIT;
    line l;
    char through[800], locator[STORE_LOCATOR_BYTES];
    chunk_writer *w;
    chunk_reader *r;
    const void *bytes;
    size_t len;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=10000", through);
    store *s = open_at(through);
    write_chunks(s, locator, &w);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        uint32_t mine[MINE];
        for (uint32_t i = 0; i < MINE; i++)
            mine[i] = (ways[way].first + i * ways[way].step) % CHUNKS;
        size_t before = __atomic_load_n(&l.given, __ATOMIC_RELAXED);
        CHECK_OK(chunk_reader_open(locator, &r, &e), e);
        if (ways[way].announced)
            chunk_prefetch(r, 0, mine, MINE);
        for (int i = 0; i < MINE; i++) {
            CHECK_OK(chunk_view(r, 0, mine[i], &bytes, &len, &e), e);
            CHECK_INT(((const uint8_t *)bytes)[len - 1], (uint8_t)mine[i]);
        }
        chunk_reader_close(r); /* what is on its way has come */
        size_t given = __atomic_load_n(&l.given, __ATOMIC_RELAXED) - before;
        if (given < (size_t)MINE * CHUNK_LEN || given >= (size_t)(MINE + 1) * CHUNK_LEN)
            test_fail(__FILE__, __LINE__, "%zu bytes came for %d chunks of %d", given, MINE,
                      CHUNK_LEN);
    }
    chunk_abort(w);
    store_close(s);
    end_line(&l);
}

/* A function's files have a limit: what it fetches must be known before. */
TEST_LIMIT(a_reader_says_how_long_its_file_becomes, 60)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    store *s = test_store("");
    char locator[STORE_LOCATOR_BYTES];
    const void *bytes;
    size_t len;
    uint32_t viewed = 0;
    chunk_writer *w;
    chunk_reader *r;
    struct rlimit limit;
    write_chunks(s, locator, &w);
    signal(SIGXFSZ, SIG_IGN);
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    uint64_t said = chunk_reader_scratch_bytes(r);
    CHECK(said >= (uint64_t)CHUNKS * CHUNK_LEN);
    limit.rlim_cur = (rlim_t)said;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (; viewed < CHUNKS; viewed++)
        CHECK_OK(chunk_view(r, 0, viewed, &bytes, &len, &e), e);
    chunk_reader_close(r);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    limit.rlim_cur = (rlim_t)said / 2; /* what holds less is an error */
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (viewed = 0; chunk_view(r, 0, viewed, &bytes, &len, &e) == 0; viewed++)
        CHECK(viewed < CHUNKS);
    CHECK_CONTAINS(e.message, "scratch file of a dataset");
    chunk_reader_close(r);
    chunk_abort(w);
    store_close(s);
}

typedef struct viewer {
    chunk_reader *r;
    uint32_t index;
    err e;
    int result;
    bool done; /* read and written atomically */
} viewer;

static void *view_one(void *arg)
{
    viewer *v = arg;
    const void *bytes;
    size_t len;
    v->result = chunk_view(v->r, 0, v->index, &bytes, &len, &v->e);
    __atomic_store_n(&v->done, true, __ATOMIC_RELEASE);
    return NULL;
}

/* A job's functions wait longer than other operations do, and can say so meanwhile. */
TEST_LIMIT(a_reader_outlasts_a_line_that_is_cut_and_says_that_it_waits, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800], locator[STORE_LOCATOR_BYTES], why[300];
    const void *bytes;
    size_t len;
    chunk_writer *w;
    pthread_t thread;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.lease_ms=60000", through);
    if (strstr(through, "kubeml.patience_ms"))
        test_skip("MONGODB_URI says how long a reader waits");
    store *s = open_at(through);
    write_chunks(s, locator, &w);
    viewer v = {.index = 8, .e = ERR_INIT};
    CHECK_OK(chunk_reader_open(locator, &v.r, &e), e);
    CHECK_OK(chunk_view(v.r, 0, 7, &bytes, &len, &e), e);
    CHECK(!chunk_reader_waits(v.r, why, sizeof why));
    CHECK_STR(why, "");
    set_line(&l, false);
    int64_t longer = clock_deadline_ms(11000), limit = clock_deadline_ms(10000);
    CHECK_INT(pthread_create(&thread, NULL, view_one, &v), 0);
    while (!chunk_reader_waits(v.r, why, sizeof why) && clock_left_ms(limit))
        usleep(10000);
    CHECK_CONTAINS(why, "store mongodb://127.0.0.1:");
    CHECK_CONTAINS(why, "No suitable servers found");
    CHECK(!strchr(why, '@'));
    while (!__atomic_load_n(&v.done, __ATOMIC_ACQUIRE) && clock_left_ms(longer))
        usleep(10000);
    CHECK(!__atomic_load_n(&v.done, __ATOMIC_ACQUIRE));
    set_line(&l, true);
    pthread_join(thread, NULL);
    CHECK_INT(v.result, 0);
    CHECK(!chunk_reader_waits(v.r, why, sizeof why));
    chunk_reader_close(v.r);
    chunk_abort(w);
    store_close(s);
    end_line(&l);
}

TEST_LIMIT(a_reader_says_when_the_line_is_cut, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800], locator[STORE_LOCATOR_BYTES];
    const void *bytes;
    size_t len;
    uint32_t order[CHUNKS];
    chunk_writer *w;
    chunk_reader *r;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=1500", through);
    store *s = open_at(through);
    write_chunks(s, locator, &w);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 7, &bytes, &len, &e), e);
    set_line(&l, false);
    for (uint32_t i = 0; i < CHUNKS; i++)
        order[i] = i;
    chunk_prefetch(r, 0, order, CHUNKS);
    CHECK_OK(chunk_view(r, 0, 7, &bytes, &len, &e), e); /* what was fetched stays */
    CHECK_ERR(chunk_view(r, 0, 8, &bytes, &len, &e), e, ERR_UNAVAILABLE, "reading chunks");
    set_line(&l, true);
    CHECK_OK(chunk_view(r, 0, 8, &bytes, &len, &e), e);
    chunk_reader_close(r);
    chunk_abort(w);
    store_close(s);
    end_line(&l);
}
