/* modelstore_job.h: cases for every implementation and carrier of modelstore.h, and a job's life in
 * a few words. */
#ifndef KUBEML_MODELSTORE_JOB_H
#define KUBEML_MODELSTORE_JOB_H

#include <sys/mman.h>

#include "modelstore_fixture.h"
#include "test.h"

/* More than one chunk, no multiple of anything. */
enum { FLOATS = 300007 };

#define IN_EVERY_STORE(name, seconds)                                                              \
    static void name(const char *kind, const char *tensor_path);                                   \
    TEST_LIMIT(name##_memory, seconds)                                                             \
    {                                                                                              \
        name("memory", "socket");                                                                  \
    }                                                                                              \
    IN_EVERY_REDIS_TESTS(name, seconds)                                                            \
    static void name(const char *kind, const char *tensor_path)
#define IN_EVERY_REDIS(name, seconds)                                                              \
    static void name(const char *kind, const char *tensor_path);                                   \
    IN_EVERY_REDIS_TESTS(name, seconds)                                                            \
    static void name(const char *kind, const char *tensor_path)
#define IN_EVERY_REDIS_TESTS(name, seconds)                                                        \
    TEST_LIMIT(name##_database_shm, seconds)                                                       \
    {                                                                                              \
        name("database", "shm");                                                                   \
    }                                                                                              \
    TEST_LIMIT(name##_database_socket, seconds)                                                    \
    {                                                                                              \
        name("database", "socket");                                                                \
    }                                                                                              \
    TEST_LIMIT(name##_server_shm, seconds)                                                         \
    {                                                                                              \
        name("server", "shm");                                                                     \
    }                                                                                              \
    TEST_LIMIT(name##_server_socket, seconds)                                                      \
    {                                                                                              \
        name("server", "socket");                                                                  \
    }

static inline void create_empty(fixture *f)
{
    err e = ERR_INIT;
    const modelstore_state start = {.version = -1, .epoch = 0, .round = 0};
    CHECK_OK(
        modelstore_create(f->owner, &f->layout, &start, 16, NULL, NULL, fixture_deadline(), &e), e);
}

static inline modelstore *attached_member(const fixture *f)
{
    err e = ERR_INIT;
    modelstore *m = fixture_member(f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    return m;
}

static inline int publish(modelstore *m, int64_t epoch, int64_t round, int64_t version,
                          int function, int incarnation, uint64_t samples, uint64_t seed,
                          const fixture *f, err *e)
{
    block b = fixture_block(f->layout.shape);
    fixture_fill(f->layout.shape, b, seed);
    const modelstore_publication p = {.epoch = epoch,
                                      .round = round,
                                      .version = version,
                                      .function = function,
                                      .incarnation = incarnation,
                                      .samples = samples,
                                      .slot = function * 2 + incarnation % 2};
    int rc = modelstore_publish(m, &p, &b, fixture_deadline(), NULL, e);
    munmap(b.floats, block_bytes(f->layout.shape));
    return rc;
}

static inline int merge(fixture *f, int64_t epoch, int64_t round, int64_t version,
                        const modelstore_part *parts, size_t count, const char *ledger,
                        modelstore_merged *out, err *e)
{
    const modelstore_round r = {.epoch = epoch,
                                .round = round,
                                .version = version,
                                .next_epoch = epoch,
                                .next_round = round + 1,
                                .rule = "mean",
                                .parts = parts,
                                .count = count,
                                .ledger = ledger};
    return modelstore_merge(f->owner, &r, fixture_deadline(), out, e);
}

/* Function 0 publishes the first model (seed 7), which becomes version 0; open is round (0, 1). */
static inline void begin_job(fixture *f)
{
    err e = ERR_INIT;
    modelstore_merged merged;
    const modelstore_part part = {0, 1, 1};
    create_empty(f);
    modelstore *m = attached_member(f);
    CHECK_OK(publish(m, 0, 0, -1, 0, 1, 1, 7, f, &e), e);
    CHECK_OK(merge(f, 0, 0, -1, &part, 1, "{\"version\":0}", &merged, &e), e);
    CHECK_INT(merged.state.version, 0);
    modelstore_close(m);
}

/* What the merge of (seed, samples) pairs must be: computed here once more, in plain words. */
static inline void check_reference(const fixture *f, block got, const uint64_t (*part)[2], int n)
{
    block_shape s = f->layout.shape;
    block x[8];
    double total = 0;
    CHECK(n <= 8);
    for (int k = 0; k < n; k++) {
        x[k] = fixture_block(s);
        fixture_fill(s, x[k], part[k][0]);
        total += (double)part[k][1];
    }
    for (uint64_t i = 0; i < s.floats; i++) {
        double sum = 0;
        for (int k = 0; k < n; k++) {
            double product = (double)part[k][1] / total * (double)x[k].floats[i];
            sum = k == 0 ? product : sum + product;
        }
        if (got.floats[i] != (float)sum)
            test_fail(__FILE__, __LINE__, "number %llu is %a, not %a", (unsigned long long)i,
                      got.floats[i], (float)sum);
    }
    for (uint64_t i = 0; i < s.counters; i++) {
        int64_t largest = INT64_MIN;
        for (int k = 0; k < n; k++)
            largest = x[k].counters[i] > largest ? x[k].counters[i] : largest;
        CHECK_INT(got.counters[i], largest);
    }
}

static inline void check_fetched(fixture *f, int64_t version, const uint64_t (*part)[2], int n)
{
    err e = ERR_INIT;
    modelstore *m = attached_member(f);
    modelstore_state state;
    block got = fixture_block(f->layout.shape);
    CHECK_OK(modelstore_fetch(m, version, got, fixture_deadline(), &state, &e), e);
    CHECK_INT(state.version, version);
    check_reference(f, got, part, n);
    modelstore_close(m);
}

#endif
