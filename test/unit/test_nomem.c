/* test_nomem.c: the k-th allocation fails, for every k: an upload, a record, a blob, a request and
 * a model file end with an error or do what they should, and leave nothing half done. So do the
 * decisions of a controller and of a kubeml-ps, and a connection to Redis.
 *
 * This program's malloc stands before the C library's, for the libraries too. Under a sanitizer,
 * which has a malloc of its own, it is left out. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "arrays.h"
#include "common/dataset/ingest.h"
#include "common/base/clock.h"
#include "common/formats/safetensors.h"
#include "common/modelstore/redis_link.h"
#include "common/net/http_client.h"
#include "common/net/http_server.h"
#include "common/round/round.h"
#include "controller/job/job.h"
#include "test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

TEST(each_allocation_fails_once)
{
    test_skip("the sanitizer has a malloc of its own");
}

#else

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

/* allocations until the one that fails; 0: none does; a thread counts its own */
static _Thread_local long countdown;

static bool fails(void)
{
    return countdown > 0 && --countdown == 0;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    return fails() ? (errno = ENOMEM, NULL) : __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
    return fails() ? (errno = ENOMEM, NULL) : __libc_calloc(count, size);
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size)
{
    return fails() ? (errno = ENOMEM, NULL) : __libc_realloc(old, size);
}

static uint8_t images[40 * 3 * 8 * 8], labels[40];

static int upload(store *s, bytes npz, err *e)
{
    ingest *i;
    if (ingest_begin(s, "d", NULL, &i, e) != 0)
        return -1;
    if (ingest_part(i, "x-train", "all.npz", e) != 0 ||
        ingest_bytes(i, "x-train", npz.at, npz.len, e) != 0) {
        ingest_abort(i);
        return -1;
    }
    return ingest_end(i, NULL, e);
}

static int to_nothing(void *arg, const void *at, size_t len, err *e)
{
    (void)arg;
    (void)at;
    (void)len;
    (void)e;
    return 0;
}

static int write_and_read_model(store *s, err *e)
{
    static const char file[] =
        "\x36\0\0\0\0\0\0\0"
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}1234";
    safetensors *t;
    safetensors_writer *w;
    (void)s;
    if (safetensors_open_memory(file, sizeof file - 1, &t, e) != 0)
        return -1;
    safetensors_close(t);
    if (safetensors_writer_new(&w, e) != 0)
        return -1;
    int result = safetensors_writer_metadata(w, "k", "v", e);
    if (result == 0)
        result = safetensors_writer_add(w, "a", SAFETENSORS_F32, 1, (uint64_t[]){4}, e);
    if (result == 0)
        result = safetensors_writer_begin(w, to_nothing, NULL, e);
    safetensors_writer_free(w);
    return result;
}

static int put_get_list(store *s, err *e)
{
    json_t *value = json_pack("{s:i}", "value", 1), *got = NULL;
    int result = value ? store_put(s, "things", "a", value, STORE_ANY, NULL, e)
                       : err_set(e, ERR_NOMEM, "in the test");
    json_decref(value);
    if (result == 0)
        result = store_get(s, "things", "a", &got, NULL, e);
    json_decref(got);
    store_page page = {0};
    if (result == 0)
        result = store_list(s, "things", NULL, NULL, 0, &page, e);
    store_page_free(&page);
    return result;
}

static int blob_round(store *s, err *e)
{
    blob_entry *entries = NULL;
    size_t count;
    buf text;
    buf_init(&text, 100);
    int result = store_blob_put(s, "b", "hello", 5, e);
    if (result == 0)
        result = store_blob_read(s, "b", &text, e);
    if (result == 0)
        result = store_blob_list(s, NULL, NULL, 0, &entries, &count, e);
    free(entries);
    buf_free(&text);
    return result;
}

static bytes all_in_one(void)
{
    for (size_t i = 0; i < sizeof labels; i++)
        labels[i] = (uint8_t)(i % 3);
    bytes x = make_npy(ARRAY_U8, SHAPE(40, 3, 8, 8), images),
          y = make_npy(ARRAY_U8, SHAPE(40), labels);
    bytes npz = make_npz((const char *[]){"x_train", "y_train", "x_test", "y_test"},
                         (bytes[]){x, y, x, y}, 4, true);
    bytes_free(&x);
    bytes_free(&y);
    return npz;
}

static int count_files(void)
{
    char command[700];
    snprintf(command, sizeof command, "find '%s/store' -mindepth 2 | wc -l", test_tmp());
    FILE *f = popen(command, "r");
    int files = -1;
    CHECK(f && fscanf(f, "%d", &files) == 1);
    pclose(f);
    return files;
}

TEST_LIMIT(each_allocation_fails_once, 120)
{
    err e = ERR_INIT;
    char locator[600];
    snprintf(locator, sizeof locator, "lmdb:%s/store", test_tmp());
    store *s = store_open(locator, &e);
    CHECK(s);
    bytes npz = all_in_one();
    long failed[4] = {0};
    bool done = false;
    for (long k = 1; !done; k++) {
        done = true;
        for (int what = 0; what < 4; what++) {
            err inner = ERR_INIT;
            countdown = k;
            int result = what == 0   ? upload(s, npz, &inner)
                         : what == 1 ? put_get_list(s, &inner)
                         : what == 2 ? blob_round(s, &inner)
                                     : write_and_read_model(s, &inner);
            bool fired = countdown == 0;
            countdown = 0;
            CHECK(result == 0 ||
                  (inner.code != ERR_NONE && inner.message[0] && inner.code != ERR_EXISTS));
            if (!fired && result != 0)
                test_fail(__FILE__, __LINE__, "step %d, allocation %ld: %s", what, k,
                          inner.message);
            failed[what] += result != 0;
            done = done && !fired;
            if (what == 0 && result != 0)
                CHECK_INT(count_files(), 0);
            if (what == 0 && result == 0)
                CHECK_OK(dataset_delete(s, "d", &e), e);
            if (what == 2)
                store_blob_delete(s, "b", NULL);
        }
        CHECK(k < 20000);
    }
    for (int what = 0; what < 4; what++)
        CHECK(failed[what] > 0);
    printf("failures: upload %ld, records %ld, blobs %ld, models %ld\n", failed[0], failed[1],
           failed[2], failed[3]);
    bytes_free(&npz);
    store_close(s);
}

/* ---- decisions ------------------------------------------------------------------------------- */

/* Jobs that were taken start, if not in this step, then in the next. False: no allocation was the
 * k-th. */
static bool queue_jobs(long k)
{
    enum { SLOTS = 40, JOBS = 20 };
    static const request r = {
        .epochs = 1, .batch_size = 1, .default_parallelism = 1, .static_parallelism = true};
    static const job_event tick = {.type = JOB_TICK, .now_ms = 1000, .wall_ms = 1700000000000};
    job_limits l;
    err e = ERR_INIT;
    jobs *m = NULL;
    const job_action *actions;
    size_t taken = 0;
    job_limits_default(&l);
    countdown = k;
    if (jobs_open(&l, SLOTS, &m, &e) == 0) {
        for (int i = 0; i < JOBS; i++) {
            char id[8];
            snprintf(id, sizeof id, "j%d", i);
            e = (err)ERR_INIT;
            if (jobs_submit(m, id, &r, false, 1, &e) == 0)
                taken++;
            else
                CHECK_INT(e.code, ERR_NOMEM);
        }
        jobs_step(m, &tick, &actions);
    } else {
        CHECK_INT(e.code, ERR_NOMEM);
    }
    bool fired = countdown == 0;
    countdown = 0;
    if (!m)
        return fired;
    CHECK_INT(jobs_count(m), taken);
    CHECK(taken == JOBS || (fired && taken == JOBS - 1));
    jobs_step(m, &tick, &actions);
    for (size_t i = 0; i < taken; i++)
        CHECK_INT(jobs_at(m, i)->state, JOB_STARTING);
    CHECK_INT(jobs_slots_free(m), SLOTS - (int)taken);
    jobs_close(m);
    return fired;
}

/* A round begins, or the job has failed. */
static bool begin_round(long k)
{
    static const int plan[] = {1};
    static const round_config config = {.request = {.epochs = 1, .batch_size = 1, .k = -1},
                                        .parallelism = 1,
                                        .functions_max = 1,
                                        .plan = plan,
                                        .plan_epochs = 1,
                                        .train_samples = 100,
                                        .chunk_samples = 10};
    static const round_event events[] = {{.type = ROUND_START},
                                         {.type = ROUND_HELLO},
                                         {.type = ROUND_READY, .layout = "l", .algorithms = "a"},
                                         {.type = ROUND_INITIALISED}};
    round_config c = config;
    round_machine *m = NULL;
    err e = ERR_INIT;
    const round_action *actions;
    size_t count = 0;
    round_limits_default(&c.limits);
    countdown = k;
    if (round_open(&c, &m, &e) == 0)
        for (size_t i = 0; i < sizeof events / sizeof *events; i++)
            count = round_step(m, &events[i], &actions);
    bool fired = countdown == 0;
    countdown = 0;
    if (!m) {
        CHECK(fired && e.code == ERR_NOMEM);
        return true;
    }
    CHECK_INT(round_finished(m), fired);
    const round_action *last = &actions[count - 1];
    CHECK_INT(last->type, fired ? ROUND_FINISHED : ROUND_TRAIN);
    if (fired)
        CHECK_STR(last->reason, "NoMemory");
    round_close(m);
    return fired;
}

TEST(decisions_outlive_an_allocation_that_fails)
{
    long k = 1, more = 1;
    while (queue_jobs(k))
        k++;
    while (begin_round(more))
        more++;
    CHECK(k > 40 && more > 8);
    printf("allocations: jobs %ld, a round %ld\n", k - 1, more - 1);
}

/* ---- Redis ----------------------------------------------------------------------------------- */

/* A pipeline: two commands, a long argument, their replies, and a bulk that is read to its place. */
static int pipeline(redis_link *l, err *e)
{
    static char argument[1000], bulk[1000];
    const char *const words[] = {"GET", "key"};
    const int64_t soon = clock_deadline_ms(5000);
    cleanup_command redis_command c = {NULL, 0};
    cleanup_reply redisReply *first = NULL, *second = NULL;
    return redis_command_format(&c, e, "KUBEML.STATUS %s %d", "key", 7) ||
                   redis_link_append(l, &c, soon, e) ||
                   redis_command_words(&c, 2, words, NULL, e) ||
                   redis_link_announce(l, &c, sizeof argument, 2, soon, e) ||
                   redis_command_format(&c, e, "%d %016llx", 1, 2ULL) ||
                   redis_link_send_long(l, argument, sizeof argument, &c, soon, e) ||
                   redis_link_receive(l, &first, soon, e) ||
                   redis_link_call(l, &c, &second, soon, e) ||
                   redis_link_receive_long(l, bulk, sizeof bulk, soon, e)
               ? -1
               : 0;
}

/* False: no allocation was the k-th. */
static bool redis_once(long k)
{
    static const char replies[] = "*3\r\n:1\r\n$2\r\nab\r\n*1\r\n$-1\r\n+OK\r\n$1000\r\n";
    static const char bulk[1002] = {[1000] = '\r', [1001] = '\n'};
    int pair[2];
    err e = ERR_INIT;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    CHECK(write(pair[1], replies, sizeof replies - 1) == (ssize_t)sizeof replies - 1);
    CHECK(write(pair[1], bulk, sizeof bulk) == (ssize_t)sizeof bulk);
    countdown = k;
    redis_link *l = redis_link_adopt(pair[0]);
    int result = l ? pipeline(l, &e) : err_set(&e, ERR_NOMEM, "no connection");
    bool fired = countdown == 0;
    countdown = 0;
    CHECK_INT(e.code, fired ? ERR_NOMEM : ERR_NONE);
    CHECK_INT(result, fired ? -1 : 0);
    redis_link_close(l);
    if (!l)
        close(pair[0]);
    close(pair[1]);
    return fired;
}

TEST(a_connection_to_redis_fails_with_each_allocation)
{
    long k = 1;
    while (redis_once(k))
        k++;
    CHECK(k > 20);
    printf("allocations: %ld\n", k - 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void say_ok(http_request *r, void *context)
{
    (void)context;
    http_response_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

/* What went out was whole: with less than all of it the server says 401, 404, 405 or 415. */
static bool request_once(http_call *call, long k)
{
    err e = ERR_INIT;
    http_reply reply;
    countdown = k;
    int result = http_call_run(call, &reply, &e);
    bool fired = countdown == 0;
    countdown = 0;
    if (reply.status != 0 && reply.status != 200)
        test_fail(__FILE__, __LINE__, "allocation %ld: %s was answered with %ld", k, call->method,
                  reply.status);
    CHECK(result == 0 || (fired && e.code != ERR_NONE && e.message[0]));
    http_reply_free(&reply);
    return fired;
}

TEST_LIMIT(a_request_goes_out_whole_or_not_at_all, 120)
{
    err e = ERR_INIT;
    static const http_route routes[] = {
        {.method = "DELETE", .pattern = "/thing", .handle = say_ok},
        {.method = "POST", .pattern = "/form", .handle = say_ok, .body = HTTP_BODY_WHOLE,
         .takes = "multipart/form-data"},
    };
    tokens *known = tokens_new(&e);
    CHECK_OK(tokens_add(known, "", "open-sesame-please", &e), e);
    http_server *server = NULL;
    CHECK_OK(http_server_start(&(http_config){.host = "127.0.0.1", .routes = routes,
                                              .route_count = 2, .tokens = known},
                               &server, &e),
             e);
    char thing[64], form[64];
    snprintf(thing, sizeof thing, "http://127.0.0.1:%u/thing", http_server_port(server));
    snprintf(form, sizeof form, "http://127.0.0.1:%u/form", http_server_port(server));
    const http_part part = {.field = "code", .filename = "a.c", .bytes = "int a;", .len = 6};
    http_call calls[] = {
        {.method = "DELETE", .url = thing, .token = "open-sesame-please"},
        {.method = "POST", .url = form, .token = "open-sesame-please", .parts = &part,
         .part_count = 1},
    };
    for (size_t i = 0; i < 2; i++) {
        request_once(&calls[i], 0); /* what libcurl sets up once may fail: it is another matter */
        for (long k = 1; request_once(&calls[i], k); k++)
            CHECK(k < 20000);
    }
    CHECK(http_server_stop(server, 2000));
    tokens_free(known);
}

#endif
