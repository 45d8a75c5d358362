/* bench_round.c: times a round (publish, merge, fetch; 4 function processes) of a model store, and
 * the same bytes as raw SET and GET to the same Redis. Driven by bench_round.py.
 *
 * bench_round KIND CARRIER FLOATS, then lines on standard input, one answer in seconds each:
 *   "round N"  median of N rounds: from the word to go until every function has the new reference
 *   "raw N"    median of N times: every function SETs one value of the block's bytes, then GETs it
 *   "parts N"  medians of publish, merge and fetch
 * The functions' models lie in the store's slot memory, as the engine's do. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/modelstore/merge.h"
#include "common/modelstore/redis_link.h"
#include "modelstore_fixture.h"
#include "test.h"

enum { FUNCTIONS = 4, ROUNDS_MAX = 10000 };

typedef struct order {
    char what; /* 'p' publish, 'f' fetch, 's' SET, 'g' GET, 'q' end */
    int64_t round, version;
} order;

typedef struct worker {
    pid_t pid;
    int to, from;
} worker;

static worker workers[FUNCTIONS];
static fixture f;
static int64_t round_now, version_now;

static void raw_set_get(redis_link *l, const order *o, int function, void *bytes, size_t len)
{
    err e = ERR_INIT;
    cleanup_command redis_command c = {NULL, 0};
    const char *what = o->what == 's' ? "SET" : "GET";
    CHECK_OK(redis_command_format(&c, &e, "%s kubeml:{job1}:pub:%d", what, function), e);
    if (o->what == 's') {
        cleanup_reply redisReply *reply = NULL;
        CHECK_OK(redis_link_announce(l, &c, len, 0, fixture_deadline(), &e), e);
        CHECK_OK(redis_link_send_long(l, bytes, len, NULL, fixture_deadline(), &e), e);
        CHECK_OK(redis_link_receive(l, &reply, fixture_deadline(), &e), e);
        CHECK_STR(reply->str, "OK");
    } else {
        CHECK_OK(redis_link_append(l, &c, fixture_deadline(), &e), e);
        CHECK_OK(redis_link_receive_long(l, bytes, len, fixture_deadline(), &e), e);
    }
}

static void work(int function, int from, int to)
{
    err e = ERR_INIT;
    order o;
    block b;
    modelstore *m = fixture_member(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    CHECK_OK(modelstore_slot(m, function, &b, &e), e);
    /* Redis's own user: a function's user may not SET where the module merges. */
    redis_link *l = fixture_redis(f.owner_access.address, f.owner_access.password);
    fixture_fill(f.layout.shape, b, (uint64_t)function);
    while (read(from, &o, sizeof o) == (ssize_t)sizeof o && o.what != 'q') {
        const modelstore_publication p = {.round = o.round,
                                          .version = o.version,
                                          .function = function,
                                          .samples = 100,
                                          .slot = function};
        if (o.what == 'p')
            CHECK_OK(modelstore_publish(m, &p, NULL, fixture_deadline(), NULL, &e), e);
        else if (o.what == 'f')
            CHECK_OK(modelstore_fetch(m, o.version, b, fixture_deadline(), NULL, &e), e);
        else
            raw_set_get(l, &o, function, b.floats, f.layout.shape.floats * sizeof(float));
        CHECK(write(to, "k", 1) == 1);
    }
    _exit(0);
}

static void start_workers(void)
{
    for (int i = 0; i < FUNCTIONS; i++) {
        int there[2], back[2];
        CHECK(pipe(there) == 0 && pipe(back) == 0);
        fflush(NULL);
        workers[i] = (worker){fork(), there[1], back[0]};
        if (workers[i].pid == 0)
            work(i, there[0], back[1]);
        close(there[0]);
        close(back[1]);
    }
}

static void all(char what)
{
    const order o = {what, round_now, version_now};
    char done;
    for (int i = 0; i < FUNCTIONS; i++)
        CHECK(write(workers[i].to, &o, sizeof o) == (ssize_t)sizeof o);
    for (int i = 0; what != 'q' && i < FUNCTIONS; i++)
        if (read(workers[i].from, &done, 1) != 1)
            test_fail(__FILE__, __LINE__, "function %d died", i);
}

static double seconds(void)
{
    return (double)clock_monotonic_ns() / 1e9;
}

static void one_round(double part[3])
{
    err e = ERR_INIT;
    const modelstore_part parts[FUNCTIONS] = {{0, 0, 100}, {1, 0, 100}, {2, 0, 100}, {3, 0, 100}};
    double at = seconds();
    all('p');
    part[0] = seconds() - at;
    const modelstore_round r = {.round = round_now,
                                .version = version_now,
                                .next_round = round_now + 1,
                                .rule = merge_rule_default()->name,
                                .parts = parts,
                                .count = FUNCTIONS,
                                .ledger = "{}"};
    CHECK_OK(modelstore_merge(f.owner, &r, fixture_deadline(), NULL, &e), e);
    part[1] = seconds() - at - part[0];
    round_now++;
    version_now++;
    all('f');
    part[2] = seconds() - at - part[0] - part[1];
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

static void answer(const char *what, int n)
{
    static double total[ROUNDS_MAX], part[3][ROUNDS_MAX];
    for (int i = 0; i < n; i++) {
        double at = seconds(), p[3] = {0, 0, 0};
        if (strcmp(what, "raw") == 0) {
            all('s');
            all('g');
        } else {
            one_round(p);
        }
        total[i] = seconds() - at;
        for (int k = 0; k < 3; k++)
            part[k][i] = p[k];
    }
    if (strcmp(what, "parts") == 0)
        printf("%.6f %.6f %.6f\n", median(part[0], n), median(part[1], n), median(part[2], n));
    else
        printf("%.6f\n", median(total, n));
    fflush(stdout);
}

TEST(serve)
{
    const char *kind = getenv("BENCH_KIND"), *tensor_path = getenv("BENCH_CARRIER");
    const char *floats = getenv("BENCH_FLOATS");
    char what[16];
    int n;
    err e = ERR_INIT;
    const modelstore_state start = {.version = 0};
    CHECK(kind && tensor_path && floats);
    fixture_init(&f, kind, tensor_path, strtoull(floats, NULL, 10));
    block first = fixture_block(f.layout.shape);
    CHECK_OK(modelstore_create(f.owner, &f.layout, &start, FUNCTIONS, &first, NULL,
                               fixture_deadline(), &e),
             e);
    start_workers();
    printf("ready\n");
    fflush(stdout);
    while (scanf("%15s %d", what, &n) == 2 && n > 0 && n <= ROUNDS_MAX)
        answer(what, n);
    all('q');
    for (int i = 0; i < FUNCTIONS; i++)
        waitpid(workers[i].pid, NULL, 0);
    modelstore_drop(f.owner, fixture_deadline(), &e);
    fixture_free(&f);
}
