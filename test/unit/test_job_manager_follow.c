/* test_job_manager_follow.c: a job's event stream, over a real socket: a past longer than what a
 * stream holds, for a client that reads slowly. The test is the owner's thread. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "controller/ha/store_watch.h"
#include "controller/jobs/job_manager_internal.h"
#include "test.h"
#include "store_memory.h"

enum { EPOCHS = 40000, TEXT_BYTES_MAX = 32 << 20, READ_BYTES = 16 << 10, GIVE_UP_MS = 15000 };

static controller platform;
static job_manager o = {.controller = &platform};
static http_server *server;
static http_stream *opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void open_stream(http_request *r, void *context)
{
    (void)context;
    http_stream *s = http_response_stream(r, "text/event-stream");
    pthread_mutex_lock(&lock);
    opened = s;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void open_world(void)
{
    static const http_route routes[] = {
        {.method = "GET", .pattern = "/", .handle = open_stream, .gives = "text/event-stream"}};
    http_config c = {.host = "127.0.0.1", .routes = routes, .route_count = 1};
    err e = ERR_INIT;
    CHECK_OK(http_server_start(&c, &server, &e), e);
    platform.store = store_open(store_memory_locator(), &e);
    CHECK_OK(platform.store ? 0 : -1, e);
    platform.watch = store_watch_new(&platform, job_manager_store_back);
    CHECK_OK(store_watch_start(platform.watch, &e), e);
    job_limits limits;
    job_limits_default(&limits);
    CHECK_OK(jobs_open(&limits, 1, &o.machine, &e), e);
}

static void close_world(void)
{
    follow_close(&o);
    CHECK_INT(atomic_load(&o.follower_count), 0);
    while (o.contexts)
        job_context_drop(&o, o.contexts->id);
    jobs_close(o.machine);
    CHECK(http_server_stop(server, 2000));
    store_watch_stop(platform.watch);
    store_watch_free(platform.watch);
    store_close(platform.store);
}

/* A client with a small window: little lies between it and the server. HTTP/1.0: no chunks. */
static int follow(const char *id)
{
    static const char ask[] = "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";
    int fd = socket(AF_INET, SOCK_STREAM, 0), window = 16384;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    CHECK_INT(send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL), sizeof ask - 1);
    follower *f = NULL;
    err e = ERR_INIT;
    CHECK_OK(follow_place(&o, id, false, &f, &e), e);
    pthread_mutex_lock(&lock);
    while (!opened)
        pthread_cond_wait(&changed, &lock);
    f->stream = opened;
    opened = NULL;
    pthread_mutex_unlock(&lock);
    follow_begin(&o, f);
    return fd;
}

static int wait_ms(void)
{
    int left = clock_left_ms(follow_deadline(&o));
    return left < 0 || left > 100 ? 100 : left;
}

/* All that the client hears, a little at a time, until its end. */
static char *hear(int fd)
{
    char *text = calloc(TEXT_BYTES_MAX, 1);
    size_t len = 0;
    int64_t give_up_ms = clock_deadline_ms(GIVE_UP_MS);
    CHECK(text);
    for (;;) {
        CHECK(clock_left_ms(give_up_ms) > 0 && len + READ_BYTES < TEXT_BYTES_MAX);
        follow_timers(&o, clock_monotonic_ms());
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, wait_ms()) == 0)
            continue;
        ssize_t got = recv(fd, text + len, READ_BYTES, 0);
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    close(fd);
    return text;
}

/* The next event: its name, and its epoch or state, as "epoch 1"; false: there is none. By lines,
 * and with strchr, which stops where it finds something: the sanitizers' strstr measures all the
 * text at each call. */
static bool next_event(const char **at, char *out, size_t bytes)
{
    const char *name = *at, *data, *end;
    while (strncmp(name, "event: ", 7) != 0) { /* the answer's head, and empty lines */
        if (!(name = strchr(name, '\n')))
            return false;
        name++;
    }
    data = strchr(name, '\n');
    end = data ? strchr(data + 1, '\n') : NULL;
    if (!end || strncmp(data, "\ndata: ", 7) != 0)
        return false;
    json_t *value = json_loadb(data + 7, (size_t)(end - data - 7), 0, NULL);
    CHECK(value);
    if (strncmp(name, "event: epoch\n", 13) == 0)
        snprintf(out, bytes, "epoch %lld",
                 (long long)json_integer_value(json_object_get(value, "epoch")));
    else
        snprintf(out, bytes, "state %s", json_string_value(json_object_get(value, "state")));
    json_decref(value);
    *at = end + 1;
    return true;
}

static void check_next(const char **at, const char *want)
{
    char got[80] = "(the stream ended)";
    next_event(at, got, sizeof got);
    CHECK_STR(got, want);
}

static void check_epochs(const char **at, int first, int last)
{
    for (int i = first; i <= last; i++) {
        char want[40];
        snprintf(want, sizeof want, "epoch %d", i);
        check_next(at, want);
    }
}

static void put_ended(const char *id)
{
    static const char *const names[] = {"train_loss", "validation_loss", "accuracy", "parallelism",
                                        "epoch_duration"};
    json_t *data = json_object();
    err e = ERR_INIT;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        json_t *values = json_array();
        for (int i = 0; i < EPOCHS; i++)
            json_array_append_new(values, json_real(0.25 + i));
        json_object_set_new(data, names[k], values);
    }
    json_t *history = json_pack("{s:o}", "data", data);
    json_t *record = json_pack("{s:{s:s, s:s}}", "job", "id", id, "state", "succeeded");
    CHECK_OK(store_put(platform.store, "history", id, history, STORE_ANY, NULL, &e), e);
    CHECK_OK(store_put(platform.store, "jobs", id, record, STORE_ANY, NULL, &e), e);
    json_decref(history);
    json_decref(record);
}

TEST_LIMIT(a_long_past_goes_as_its_client_reads, 60)
{
    open_world();
    put_ended("j");
    char *text = hear(follow("j"));
    const char *at = strstr(text, "\r\n\r\n");
    CHECK(at && strlen(at) > 2 * HTTP_STREAM_BYTES_MAX);
    check_epochs(&at, 1, EPOCHS);
    check_next(&at, "state succeeded");
    free(text);
    CHECK(!o.followers);
    close_world();
}

/* A job of the machine, with so many epochs by now. */
static job_context *put_running(const char *id, int epochs)
{
    request r = {.function_name = "f",
                 .dataset = "d",
                 .epochs = REQUEST_EPOCHS_MAX,
                 .batch_size = 8,
                 .lr = 0.1,
                 .default_parallelism = 1,
                 .k = -1,
                 .validate_every = 1,
                 .goal_accuracy = 100};
    err e = ERR_INIT;
    CHECK_OK(jobs_submit(o.machine, id, &r, false, 1, &e), e);
    job_context *s = job_context_new(&o, id);
    s->function = json_object();
    s->dataset = json_object();
    for (int i = 1; i <= epochs; i++)
        json_array_append_new(s->epochs, json_pack("{s:i, s:f, s:f}", "epoch", i, "train_loss",
                                                   1.0 / i, "accuracy", 99.0));
    return s;
}

static void add_epoch(job_context *s)
{
    json_int_t number = (json_int_t)json_array_size(s->epochs) + 1;
    json_array_append_new(s->epochs, json_pack("{s:I}", "epoch", number));
}

static void stop_job(const char *id)
{
    const job_action *actions;
    jobs_step(o.machine, &(job_event){.type = JOB_CANCEL, .job = id}, &actions);
    follow_state(&o, id);
}

TEST_LIMIT(what_comes_meanwhile_comes_after_the_past, 60)
{
    open_world();
    job_context *s = put_running("j", EPOCHS);
    int fd = follow("j");
    for (int turn = 0; turn < 100; turn++) /* until there is no room */
        follow_timers(&o, clock_monotonic_ms());
    CHECK(o.followers->told > 0 && o.followers->told < EPOCHS);
    add_epoch(s);
    stop_job("j");
    add_epoch(s);
    follow_end(&o, "j");
    job_context_drop(&o, "j");
    char *text = hear(fd);
    const char *at = text;
    check_epochs(&at, 1, EPOCHS);
    check_next(&at, "state queued");
    check_next(&at, "epoch 40001");
    check_next(&at, "state cancelled");
    check_next(&at, "epoch 40002");
    check_next(&at, "(the stream ended)");
    free(text);
    close_world();
}

TEST(a_client_that_takes_nothing_is_let_go)
{
    open_world();
    put_running("j", REQUEST_EPOCHS_MAX);
    int fd = follow("j");
    follower *f = o.followers;
    while (!f->pending.len) /* it has no room any more */
        follow_timers(&o, clock_monotonic_ms());
    CHECK(clock_left_ms(f->stuck_ms) > HTTP_STREAM_STUCK_MS / 2);
    f->stuck_ms = 1; /* that long ago */
    f->push_ms = 0;
    follow_timers(&o, clock_monotonic_ms());
    CHECK(!o.followers);
    close(fd);
    close_world();
}

TEST_LIMIT(pasts_on_their_way_have_a_limit, 60)
{
    open_world();
    put_ended("j");
    follower *f[JOB_MANAGER_PASTS_EPOCHS_MAX / EPOCHS + 1];
    err e = ERR_INIT;
    int count = 0;
    do {
        CHECK_OK(follow_place(&o, "j", false, &f[count], &e), e);
    } while (follow_recall(&o, f[count++], &e) == 0);
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK_INT(count, JOB_MANAGER_PASTS_EPOCHS_MAX / EPOCHS + 1);
    while (count)
        follow_free(&o, f[--count]);
    CHECK_INT(atomic_load(&o.pasts_epochs), 0);
    close_world();
}
