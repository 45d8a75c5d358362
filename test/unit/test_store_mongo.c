/* test_store_mongo.c: what is MongoDB's alone: a server that is gone and comes back, leases,
 * GridFS's and the documents' form, users, locators. Runs against MONGODB_URI or the stand-in. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "ingest.h"
#include "stores.h"

static store *open_at(const char *locator)
{
    err e = ERR_INIT;
    store *s = store_open(locator, &e);
    if (!s)
        test_fail(__FILE__, __LINE__, "%s", e.message);
    return s;
}

static int put(store *s, const char *key, int value, uint64_t expected, err *e)
{
    json_t *json = json_pack("{s:i}", "value", value);
    int result = store_put(s, "things", key, json, expected, NULL, e);
    json_decref(json);
    return result;
}

/* ---- a line that can be cut ---------------------------------------------------------------- */

/* Forwards connections to the server; `open` says whether it takes them, and closing it ends those
 * that are there. */
typedef struct line {
    int listener, port;
    uint16_t to;
    char host[64];
    pthread_t thread;
    int wake[2];
    bool open, ending; /* read and written atomically */
    /* Read and written atomically: these commands on this collection end their connection, before
     * the server has them (`deaf`) or when it has answered. NULL: none. */
    const char *command, *lose;
    bool deaf;
    /* messages that write; those that do not ask for a majority and its journals */
    unsigned writes, lax;
    size_t given; /* bytes of the server's answers */
} line;

enum { PAIRS = 32 };

static int dial(const line *l)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(l->to)};
    CHECK_INT(inet_pton(AF_INET, l->host, &at.sin_addr), 1);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A message that begins here: OP_MSG, its flags, and the command's document, whose first field is
 * its name. */
static void look_at(line *l, const char *bytes, size_t len)
{
    static const char *const writers[] = {"insert", "update", "delete", "findAndModify"};
    int32_t code;
    if (len < 48)
        return;
    memcpy(&code, bytes + 12, sizeof code);
    for (size_t i = 0; code == 2013 && i < sizeof writers / sizeof *writers; i++)
        if (strncmp(bytes + 26, writers[i], len - 26) == 0) {
            bool good = memmem(bytes, len, "w\0\x09\0\0\0majority", 14) &&
                        memmem(bytes, len, "\x08j\0\x01", 4);
            __atomic_add_fetch(&l->writes, 1, __ATOMIC_RELAXED);
            __atomic_add_fetch(&l->lax, !good, __ATOMIC_RELAXED);
        }
}

/* Is it the command that is to be lost? */
static bool is_lost(const line *l, const char *bytes, size_t len)
{
    enum { COMMAND = 26 };
    const char *lose = __atomic_load_n(&l->lose, __ATOMIC_ACQUIRE);
    if (!lose)
        return false;
    const char *command = __atomic_load_n(&l->command, __ATOMIC_ACQUIRE);
    size_t name = strlen(command) + 1;
    size_t collection = COMMAND + name + 4; /* behind a length */
    return len > collection + strlen(lose) && memcmp(bytes + COMMAND, command, name) == 0 &&
           memcmp(bytes + collection, lose, strlen(lose) + 1) == 0;
}

static bool forward(line *l, bool asks, int from, int to)
{
    static __thread char bytes[1 << 16];
    ssize_t len = read(from, bytes, sizeof bytes);
    if (asks && len > 0)
        look_at(l, bytes, (size_t)len);
    bool lost = asks && len > 0 && is_lost(l, bytes, (size_t)len);
    if (lost && __atomic_load_n(&l->deaf, __ATOMIC_ACQUIRE))
        return false;
    if (!asks && len > 0)
        __atomic_add_fetch(&l->given, (size_t)len, __ATOMIC_RELAXED);
    for (ssize_t at = 0, part; at < len; at += part)
        if ((part = write(to, bytes + at, (size_t)(len - at))) <= 0)
            return false;
    if (lost)
        return read(to, bytes, sizeof bytes) < 0; /* it is done, and nobody hears of it */
    return len > 0;
}

static void *run_line(void *arg)
{
    line *l = arg;
    struct pollfd fds[2 + 2 * PAIRS];
    int ends[2 * PAIRS], pairs = 0;
    while (!__atomic_load_n(&l->ending, __ATOMIC_ACQUIRE)) {
        fds[0] = (struct pollfd){l->listener, POLLIN, 0};
        fds[1] = (struct pollfd){l->wake[0], POLLIN, 0};
        for (int i = 0; i < 2 * pairs; i++)
            fds[2 + i] = (struct pollfd){ends[i], POLLIN, 0};
        poll(fds, (nfds_t)(2 + 2 * pairs), -1);
        bool open = __atomic_load_n(&l->open, __ATOMIC_ACQUIRE);
        char c;
        if (fds[1].revents && read(l->wake[0], &c, 1) != 1)
            break;
        int had = pairs;
        if (fds[0].revents) {
            int in = accept(l->listener, NULL, NULL), out = open && pairs < PAIRS ? dial(l) : -1;
            if (in >= 0 && out >= 0) {
                ends[2 * pairs] = in;
                ends[2 * pairs++ + 1] = out;
            } else {
                close(in);
            }
        }
        for (int i = had - 1; i >= 0; i--) {
            bool good = open;
            for (int k = 0; k < 2 && good; k++)
                if (fds[2 + 2 * i + k].revents)
                    good = forward(l, k == 0, ends[2 * i + k], ends[2 * i + 1 - k]);
            if (!good) {
                close(ends[2 * i]);
                close(ends[2 * i + 1]);
                pairs--;
                ends[2 * i] = ends[2 * pairs];
                ends[2 * i + 1] = ends[2 * pairs + 1];
            }
        }
    }
    for (int i = 0; i < 2 * pairs; i++)
        close(ends[i]);
    return NULL;
}

static void set_line(line *l, bool open)
{
    __atomic_store_n(&l->open, open, __ATOMIC_RELEASE);
    CHECK_INT(write(l->wake[1], "x", 1), 1);
}

/* Opens a line to the server under test and gives the locator that goes through it. */
static void make_line(line *l, const char *locator, const char *options, char out[800])
{
    *l = (line){.open = true};
    char rest[400];
    unsigned port;
    const char *begin = locator + strlen("mongodb://"), *at_sign = strchr(begin, '@');
    const char *hosts = at_sign ? at_sign + 1 : begin;
    if (sscanf(hosts, "%63[0-9.]:%u/%399[^\n]", l->host, &port, rest) != 3)
        test_skip("the line needs a server at one address of IPv4");
    l->to = (uint16_t)port;
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK_INT(bind(l->listener, (struct sockaddr *)&at, len), 0);
    CHECK_INT(listen(l->listener, 16), 0);
    CHECK_INT(getsockname(l->listener, (struct sockaddr *)&at, &len), 0);
    CHECK_INT(pipe(l->wake), 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK_INT(pthread_create(&l->thread, NULL, run_line, l), 0);
    snprintf(out, 800, "mongodb://%.*s127.0.0.1:%d/%s&serverSelectionTimeoutMS=300&%s",
             (int)(hosts - begin), begin, ntohs(at.sin_port), rest, options);
}

static void end_line(line *l)
{
    __atomic_store_n(&l->ending, true, __ATOMIC_RELEASE);
    set_line(l, false);
    pthread_join(l->thread, NULL);
    close(l->listener);
    close(l->wake[0]);
    close(l->wake[1]);
}

/* ---- servers that are gone ----------------------------------------------------------------- */

/* With the usual patience, 10 s, it would wait for longer than the case may take; of options that
 * come twice the last one counts. */
TEST_LIMIT(no_server_is_an_error_that_names_the_store, 9)
{
    err e = ERR_INIT;
    test_mongo_uri("x"); /* leaves the case out where there is no driver */
    CHECK(!store_open("mongodb://u:secret@127.0.0.1:1/kubeml?serverSelectionTimeoutMS=200"
                      "&kubeml.patience_ms=60000&connectTimeoutMS=200&kubeml.patience_ms=1000",
                      &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK_CONTAINS(e.message, "store mongodb://127.0.0.1:1/kubeml: looking for the server");
    CHECK(!strstr(e.message, "secret"));
}

TEST(locators_are_checked)
{
    err e = ERR_INIT;
    static const char *const bad[] = {
        "mongodb:",
        "mongodb://",
        "mongodb://h:99999/x",
        "mongodb://127.0.0.1:1/kubeml?kubeml.lease_ms=x",
        "mongodb://127.0.0.1:1/kubeml?kubeml.lease_ms=0",
        "mongodb://127.0.0.1:1/kubeml?kubeml.lease_ms=0&kubeml.lease_ms=1000",
    };
    test_mongo_uri("x");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!store_open(bad[i], &e));
        CHECK_INT(e.code, ERR_INVALID);
    }
    char text[STORE_LOCATOR_BYTES];
    store_redact("mongodb://user:p%40ss@h1:1,h2:2/db?x=a@b", text);
    CHECK_STR(text, "mongodb://h1:1,h2:2/db?x=a@b");
    store_redact("lmdb:/a/b", text);
    CHECK_STR(text, "lmdb:/a/b");
}

/* What an operator may have meant to be a URI: no error, and so no log, has any of its password. */
TEST(a_wrong_locator_is_not_told_with_its_password)
{
    static const char *const bad[] = {
        "mongo://kubeml:topsecret@db.example/kubeml",
        "\"mongodb://kubeml:topsecret@db.example/kubeml\"",
        " mongodb://kubeml:topsecret@db.example/kubeml",
        "kubeml:topsecret@db.example",
        "topsecret:x@db.example",
        "mongodb://kubeml:top:secret@db.example/kubeml",
        "mongodb://kubeml:top%secret@db.example/kubeml",
        "mongodb://kubeml:top@secret@db.example/kubeml",
        "mongodb://kubeml@secret:x@db.example/kubeml",
        "mongodb://kubeml:top/secret@db.example/kubeml",
        "mongodb://kubeml:top?secret@db.example/kubeml",
        "mongodb+srv://kubeml:top:secret@db.example/kubeml",
    };
    test_mongo_uri("x");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = ERR_INIT;
        CHECK(!store_open(bad[i], &e));
        CHECK_INT(e.code, strncmp(bad[i], "mongodb", 7) ? ERR_UNSUPPORTED : ERR_INVALID);
        if (strstr(e.message, "secret"))
            test_fail(__FILE__, __LINE__, "%s: %s", bad[i], e.message);
    }
}

TEST_LIMIT(a_line_that_is_cut_is_an_error_and_mends, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800];
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=1500", through);
    store *s = open_at(through);
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    set_line(&l, false);
    CHECK_ERR(put(s, "a", 2, STORE_ANY, &e), e, ERR_UNAVAILABLE, "tried again until");
    CHECK_CONTAINS(e.message, "store mongodb://127.0.0.1:");
    CHECK_ERR(store_ping(s, &e), e, ERR_UNAVAILABLE, "reading");
    set_line(&l, true);
    e = (err)ERR_INIT;
    CHECK_OK(put(s, "a", 3, STORE_ANY, &e), e);
    CHECK_OK(store_ping(s, &e), e);
    store_close(s);
    end_line(&l);
}

TEST_LIMIT(every_write_waits_for_a_majority_and_its_journals, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800], id[STORE_ID_BYTES];
    chunk_writer *w;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=5000", through);
    store *s = open_at(through);
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    CHECK_OK(put(s, "a", 2, STORE_ANY, &e), e);
    CHECK_OK(store_delete(s, "things", "a", STORE_ANY, &e), e);
    CHECK_OK(store_blob_put(s, "models/a", "one", 3, &e), e);
    CHECK_OK(store_blob_delete(s, "models/a", &e), e);
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    chunk_abort(w);
    store_close(s);
    end_line(&l);
    CHECK(l.writes >= 10); /* schema, versions, records, uploads, leases, chunks */
    CHECK_INT(l.lax, 0);
}

static void *mend_soon(void *arg)
{
    usleep(700000); /* the outage's length */
    set_line(arg, true);
    return NULL;
}

TEST_LIMIT(a_short_outage_is_waited_out, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800];
    pthread_t mender;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=20000", through);
    store *s = open_at(through);
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    set_line(&l, false);
    CHECK_INT(pthread_create(&mender, NULL, mend_soon, &l), 0);
    CHECK_OK(put(s, "b", 2, STORE_NEW, &e), e);
    /* once, not twice */
    CHECK_ERR(put(s, "b", 2, STORE_NEW, &e), e, ERR_EXISTS, "things/b exists");
    pthread_join(mender, NULL);
    store_close(s);
    end_line(&l);
}

static void lose(line *l, const char *command, const char *collection, bool deaf)
{
    __atomic_store_n(&l->deaf, deaf, __ATOMIC_RELEASE);
    __atomic_store_n(&l->command, command, __ATOMIC_RELEASE);
    __atomic_store_n(&l->lose, collection, __ATOMIC_RELEASE);
}

static void lose_nothing(line *l)
{
    __atomic_store_n(&l->lose, NULL, __ATOMIC_RELEASE);
}

static void check_blob(store *s, const char *name, const char *text);

/* Nobody knows whether the name is there: what it would name stays until that is seen. */
TEST_LIMIT(a_commit_without_an_answer_takes_nothing_away, 60)
{
    err e = ERR_INIT;
    line l;
    char through[800];
    size_t removed;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=1500", through);
    store *s = open_at(through);
    blob *b;
    for (int deaf = 0; deaf < 2; deaf++) {
        const char *name = deaf ? "models/unheard" : "models/done";
        e = (err)ERR_INIT;
        lose(&l, "insert", "blobs.files", deaf);
        CHECK_ERR(store_blob_put(s, name, "0123456789", 10, &e), e, ERR_UNAVAILABLE,
                  "naming a blob");
        lose_nothing(&l);
        CHECK_OK(store_sweep(s, &removed, &e), e);
        CHECK_INT(removed, deaf); /* what nobody names goes */
    }
    check_blob(s, "models/done", "0123456789");
    CHECK_ERR(store_blob_open(s, "models/unheard", &b, &e), e, ERR_NOT_FOUND, "unheard");
    e = (err)ERR_INIT;
    CHECK_ERR(store_blob_put(s, "models/done", "other", 5, &e), e, ERR_EXISTS, "models/done");
    check_blob(s, "models/done", "0123456789");
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    store_close(s);
    end_line(&l);
}

static int upload_four(store *s, const char *name, err *e)
{
    /* IDX: four images of 2 x 2, and their labels */
    static const uint8_t images[16 + 16] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 2, 7},
                                     labels[8 + 4] = {0, 0, 8, 1, 0, 0, 0, 4};
    static const char *const fields[] = {"x-train", "y-train", "x-test", "y-test"};
    ingest *i;
    CHECK_OK(ingest_begin(s, name, NULL, &i, e), *e);
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        CHECK_OK(ingest_part(i, fields[f], NULL, e), *e);
        CHECK_OK(ingest_bytes(i, fields[f], f % 2 ? labels : images,
                              f % 2 ? sizeof labels : sizeof images, e),
                 *e);
    }
    return ingest_end(i, NULL, e);
}

static void check_dataset(store *s, const char *name)
{
    err e = ERR_INIT;
    char locator[STORE_LOCATOR_BYTES];
    dataset_info info;
    dataset *d;
    dataset_chunk chunk;
    CHECK_OK(dataset_find(s, name, &info, NULL, &e), e);
    CHECK_OK(dataset_locator(s, &info, locator, &e), e);
    CHECK_OK(dataset_open(locator, &d, &e), e);
    CHECK_OK(dataset_view(d, DATASET_TEST, 0, &chunk, &e), e);
    CHECK_INT(*(const uint8_t *)chunk.data, 7);
    dataset_close(d);
    dataset_info_free(&info);
}

TEST_LIMIT(a_dataset_without_an_answer_keeps_its_chunks, 60)
{
    line l;
    char through[800];
    size_t removed;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=1500", through);
    store *s = open_at(through);
    for (int deaf = 0; deaf < 2; deaf++) {
        err e = ERR_INIT;
        dataset_info info;
        const char *name = deaf ? "unheard" : "done";
        lose(&l, "insert", "records.datasets", deaf);
        CHECK_ERR(upload_four(s, name, &e), e, ERR_UNAVAILABLE, "writing a record");
        lose_nothing(&l);
        CHECK_OK(store_sweep(s, &removed, &e), e);
        CHECK_INT(removed, deaf);
        if (deaf)
            CHECK_ERR(dataset_find(s, name, &info, NULL, &e), e, ERR_NOT_FOUND, name);
        else
            check_dataset(s, name);
    }
    store_close(s);
    end_line(&l);
}

/* A sweep may have taken its writer for dead: nobody is told that it is published. */
TEST_LIMIT(a_dataset_whose_writer_may_have_been_swept_is_not_said_to_be_there, 60)
{
    line l;
    char through[800];
    size_t removed;
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    make_line(&l, test_store_locator(""), "kubeml.patience_ms=1500", through);
    store *s = open_at(through);
    lose(&l, "find", "uploads", true);
    CHECK_ERR(upload_four(s, "unsure", &e), e, ERR_UNAVAILABLE, "reading an upload's state");
    lose_nothing(&l);
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    check_dataset(s, "unsure");
    store_close(s);
    end_line(&l);
}

/* ---- deleting ------------------------------------------------------------------------------ */

/* Whoever deletes a dataset may die when its record is gone, and before its chunks are. */
TEST_LIMIT(a_dataset_of_which_the_record_alone_went_goes_with_a_sweep, 60)
{
    err e = ERR_INIT;
    dataset_info info;
    uint64_t version;
    size_t removed;
    test_store_use(ON_MONGO);
    test_store_mongo_option("kubeml.keep_ms=1");
    store *s = test_store("");
    CHECK_OK(upload_four(s, "four", &e), e);
    CHECK_OK(dataset_find(s, "four", &info, &version, &e), e);
    /* What a record names stays, whoever meant to delete it. */
    CHECK_ERR(store_delete(s, STORE_DATASETS, "four", version + 1000, &e), e, ERR_CONFLICT, "four");
    e = (err)ERR_INIT;
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    check_dataset(s, "four");
    CHECK_OK(store_delete(s, STORE_DATASETS, "four", version, &e), e);
    int64_t limit = clock_deadline_ms(20000); /* the millisecond is over by the server's clock */
    for (removed = 0; removed == 0;) {
        CHECK(clock_left_ms(limit) > 0);
        CHECK_OK(store_sweep(s, &removed, &e), e);
    }
    CHECK_ERR(store_chunks_delete(s, info.upload, &e), e, ERR_NOT_FOUND, info.upload);
    dataset_info_free(&info);
    store_close(s);
}

/* ---- leases -------------------------------------------------------------------------------- */

static void half_write(int to)
{
    err e = ERR_INIT;
    store *s = test_store("");
    blob_writer *b;
    chunk_writer *c;
    char id[STORE_ID_BYTES];
    static uint8_t bytes[6 << 20];
    CHECK_OK(store_blob_begin(s, "models/half", &b, &e), e);
    CHECK_OK(blob_write(b, bytes, sizeof bytes, &e), e);
    CHECK_OK(store_chunks_begin(s, 1 << 20, id, &c, &e), e);
    CHECK_OK(chunk_put(c, 0, 0, bytes, 100000, &e), e);
    CHECK_OK(chunk_put_info(c, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(c, &e), e); /* sealed, but no record names it */
    CHECK_INT(write(to, "h", 1), 1);
    pause();
}

TEST_LIMIT(what_the_living_write_stays_and_what_the_dead_wrote_goes, 60)
{
    err e = ERR_INIT;
    int ends[2], status;
    char c;
    size_t removed;
    test_store_use(ON_MONGO);
    test_store_mongo_option("kubeml.lease_ms=1000");
    test_store_locator("");
    CHECK_INT(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        half_write(ends[1]);
        _exit(0);
    }
    close(ends[1]); /* a child that fails is an end */
    CHECK_INT(read(ends[0], &c, 1), 1);
    store *s = test_store("");
    int64_t until = clock_deadline_ms(2500); /* more than two leases: it does renew */
    while (clock_left_ms(until) > 0) {
        CHECK_OK(store_sweep(s, &removed, &e), e);
        CHECK_INT(removed, 0);
    }
    kill(pid, SIGKILL);
    CHECK_INT(waitpid(pid, &status, 0), pid);
    size_t all = 0;
    until = clock_deadline_ms(20000);
    while (all < 2) {
        CHECK(clock_left_ms(until) > 0);
        CHECK_OK(store_sweep(s, &removed, &e), e);
        all += removed;
    }
    CHECK_INT(all, 2);
    blob *b;
    CHECK_ERR(store_blob_open(s, "models/half", &b, &e), e, ERR_NOT_FOUND, "models/half");
    store_close(s);
}

/* A writer that was stopped for longer than its lease finds that it was taken for dead: of its
 * three uploads one was yet to get chunks. */
static void write_slowly(int to, int from)
{
    err e = ERR_INIT;
    store *s = test_store("");
    blob_writer *b;
    chunk_writer *w, *half;
    char id[STORE_ID_BYTES], half_id[STORE_ID_BYTES], c;
    static uint8_t bytes[5 << 20];
    CHECK_OK(store_blob_begin(s, "models/slow", &b, &e), e);
    CHECK_OK(blob_write(b, bytes, sizeof bytes, &e), e);
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, bytes, 100, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_begin(s, 0, half_id, &half, &e), e);
    for (uint32_t i = 0; i < 2; i++) /* more than one insert takes: the first is written */
        CHECK_OK(chunk_put(half, 0, i, bytes, sizeof bytes, &e), e);
    CHECK_INT(write(to, "w", 1), 1);
    CHECK_INT(read(from, &c, 1), 1);
    CHECK_ERR(blob_commit(b, &e), e, ERR_CANCELLED, "models/slow: an upload was taken for dead");
    e = (err)ERR_INIT;
    CHECK_OK(chunk_put_info(half, "{}", 2, &e), e);
    CHECK_ERR(chunk_seal(half, &e), e, ERR_CANCELLED, "an upload was taken for dead");
    chunk_abort(half);
    CHECK_ERR(store_chunks_delete(s, half_id, &e), e, ERR_NOT_FOUND, half_id);
    json_t *record = json_pack("{s:s}", "upload", id);
    CHECK_ERR(store_put(s, STORE_DATASETS, "slow", record, STORE_NEW, NULL, &e), e, ERR_CANCELLED,
              "datasets/slow: its writer was gone");
    json_decref(record);
    chunk_abort(w);
    store_close(s);
}

TEST_LIMIT(a_writer_that_slept_too_long_publishes_nothing, 60)
{
    err e = ERR_INIT;
    int from[2], to[2], status;
    char c;
    size_t removed = 0, all = 0;
    test_store_use(ON_MONGO);
    test_store_mongo_option("kubeml.lease_ms=500");
    test_store_locator("");
    CHECK_INT(pipe(from), 0);
    CHECK_INT(pipe(to), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        write_slowly(from[1], to[0]);
        _exit(0);
    }
    close(from[1]); /* a child that fails is an end */
    CHECK_INT(read(from[0], &c, 1), 1);
    kill(pid, SIGSTOP);
    store *s = test_store("");
    int64_t until = clock_deadline_ms(20000);
    while (all < 3) {
        CHECK(clock_left_ms(until) > 0);
        CHECK_OK(store_sweep(s, &removed, &e), e);
        all += removed;
    }
    CHECK_INT(write(to[1], "g", 1), 1);
    kill(pid, SIGCONT);
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    blob *b;
    json_t *record;
    CHECK_ERR(store_blob_open(s, "models/slow", &b, &e), e, ERR_NOT_FOUND, "models/slow");
    CHECK_ERR(store_get(s, STORE_DATASETS, "slow", &record, NULL, &e), e, ERR_NOT_FOUND, "slow");
    store_close(s);
}

/* ---- form ---------------------------------------------------------------------------------- */

TEST(records_of_every_form_come_back)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    store *s = test_store("");
    static const char *const texts[] = {
        "{}",
        "{\"a.b\": 1, \"$set\": {\"$oid\": \"x\"}, \"%\": 2, \"\": 3, \"a%2Eb\": 4, \"c$\": 5}",
        "{\"i\": [-9223372036854775808, 9223372036854775807, 0, -1], \"t\": [true, false, null]}",
        "{\"r\": [0.1, -0.0, 1.0, 1e300, 4.9406564584124654e-324, 1.7976931348623157e308]}",
        "{\"s\": [\"\", \"\\u0000 inside\", \"\\u00e9\\u20ac\\ud83d\\ude00\", \"\\\"\\\\\"]}",
        "{\"empty\": [[], {}, [[]], {\"\": {}}], \"_id\": 7, \"version\": \"x\"}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *value = json_loads(texts[i], JSON_ALLOW_NUL, NULL), *got;
        CHECK(value);
        CHECK_OK(store_put(s, "things", "k", value, STORE_ANY, NULL, &e), e);
        CHECK_OK(store_get(s, "things", "k", &got, NULL, &e), e);
        if (!json_equal(value, got))
            test_fail(__FILE__, __LINE__, "%s came back as %s", texts[i], json_dumps(got, 0));
        json_decref(value);
        json_decref(got);
    }
    json_t *deep = json_object();
    for (int i = 0; i < 200; i++)
        deep = json_pack("{s:o}", "d", deep);
    CHECK_ERR(store_put(s, "things", "deep", deep, STORE_NEW, NULL, &e), e, ERR_LIMIT,
              "things/deep: it is nested deeper than 90");
    json_decref(deep);
    store_close(s);
}

/* A program that opened no MongoDB store has none of its library. */
TEST(the_driver_is_loaded_by_those_who_ask)
{
    err e = ERR_INIT;
    test_mongo_uri("x");
    CHECK(!dlsym(RTLD_DEFAULT, "mongoc_init"));
    char text[256];
    bool loaded = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(text, sizeof text, maps))
        loaded = loaded || strstr(text, "libmongoc") || strstr(text, "kubeml-mongo");
    fclose(maps);
    CHECK(!loaded);
    store *s = store_open("memory:", &e);
    CHECK(s);
    store_close(s);
}

/* ---- users --------------------------------------------------------------------------------- */

TEST(a_locator_reads_its_dataset_and_nothing_else)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    store *s = test_store("");
    char ids[2][STORE_ID_BYTES], mine[STORE_LOCATOR_BYTES], other[STORE_LOCATOR_BYTES];
    for (int i = 0; i < 2; i++) {
        chunk_writer *w;
        CHECK_OK(store_chunks_begin(s, 0, ids[i], &w, &e), e);
        CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
        CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
        CHECK_OK(chunk_seal(w, &e), e);
        chunk_release(w);
    }
    chunk_reader *r;
    const void *bytes;
    size_t len;
    CHECK_OK(store_chunks_locator(s, ids[0], mine, &e), e);
    CHECK_OK(chunk_reader_open(mine, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    chunk_reader_close(r);
    /* The other dataset's database, with the first one's user. */
    snprintf(other, sizeof other, "%s", mine);
    char *id = strchr(strrchr(other, '@'), '/');
    id = strstr(id, ids[0]);
    CHECK(id);
    memcpy(id, ids[1], strlen(ids[1]));
    CHECK_INT(chunk_reader_open(other, &r, &e), -1);
    CHECK_INT(e.code, ERR_FORBIDDEN);
    CHECK_OK(store_revoke(s, mine, &e), e);
    CHECK_INT(chunk_reader_open(mine, &r, &e), -1);
    CHECK_INT(e.code, ERR_FORBIDDEN);
    store_close(s);
}

/* A process of another's: its user reads, and is shut out on the connection it has. */
TEST(who_is_revoked_is_shut_out_at_once)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    store *s = test_store("");
    chunk_writer *w;
    chunk_reader *r;
    const void *bytes;
    size_t len;
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES], kept[STORE_LOCATOR_BYTES];
    const char *keep[] = {kept};
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_OK(chunk_put(w, 0, i, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK_OK(store_chunks_locator(s, id, kept, &e), e);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    size_t revoked = 0;
    CHECK_OK(store_revoke_others(s, keep, 1, &revoked, &e), e);
    CHECK_INT(revoked, 1);
    CHECK_ERR(chunk_view(r, 0, 1, &bytes, &len, &e), e, ERR_FORBIDDEN, "not authorized");
    chunk_reader_close(r);
    e = (err)ERR_INIT;
    CHECK_OK(chunk_reader_open(kept, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 2, &bytes, &len, &e), e);
    chunk_reader_close(r);
    CHECK_OK(store_revoke(s, kept, &e), e);
    CHECK_OK(store_revoke(s, kept, &e), e); /* once more is fine */
    CHECK_INT(chunk_reader_open(kept, &r, &e), -1);
    CHECK_INT(e.code, ERR_FORBIDDEN);
    e = (err)ERR_INIT;
    CHECK_OK(store_revoke(s, test_store_locator(""), &e), e); /* no user of ours: stays */
    CHECK_OK(store_ping(s, &e), e);
    CHECK_OK(store_revoke_others(s, NULL, 0, &revoked, &e), e);
    CHECK_INT(revoked, 0);
    chunk_abort(w);
    store_close(s);
}

/* Two installations on one server whose databases' names begin alike. */
TEST(the_users_of_another_installation_stay)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    const char *locator = test_store_locator(""), *query = strchr(locator, '?');
    char beside[800], job[STORE_LOCATOR_BYTES], reads[STORE_LOCATOR_BYTES], id[STORE_ID_BYTES];
    CHECK(query);
    snprintf(beside, sizeof beside, "%.*s_staging%s", (int)(query - locator), locator, query);
    store *s = test_store(""), *other = open_at(beside);
    chunk_writer *w;
    chunk_reader *r;
    CHECK_OK(store_locator(other, STORE_USE_JOB, job, &e), e);
    CHECK_OK(store_chunks_begin(other, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(other, id, reads, &e), e);
    size_t revoked = 0;
    CHECK_OK(store_revoke_others(s, NULL, 0, &revoked, &e), e);
    CHECK_INT(revoked, 0);
    CHECK_OK(store_revoke(s, job, &e), e);
    CHECK_OK(chunk_reader_open(reads, &r, &e), e);
    chunk_reader_close(r);
    store_close(open_at(job));
    CHECK_OK(store_revoke_others(other, NULL, 0, &revoked, &e), e);
    CHECK_INT(revoked, 2);
    chunk_abort(w);
    CHECK_OK(store_drop(other, &e), e);
    store_close(other);
    store_close(s);
}

static void check_blob(store *s, const char *name, const char *text)
{
    err e = ERR_INIT;
    cleanup_buf buf bytes;
    buf_init(&bytes, 1000);
    CHECK_OK(store_blob_read(s, name, &bytes, &e), e);
    CHECK_INT(bytes.len, strlen(text));
    CHECK(memcmp(bytes.bytes, text, bytes.len) == 0);
}

TEST(a_jobs_locator_writes_models_and_histories_and_nothing_else)
{
    err e = ERR_INIT;
    test_store_use(ON_MONGO);
    if (!strchr(test_store_locator(""), '@'))
        test_skip("users of one job: MONGODB_URI names no user");
    char locator[STORE_LOCATOR_BYTES], other[STORE_LOCATOR_BYTES], id[STORE_ID_BYTES];
    json_t *value = json_pack("{s:s}", "secret", "x"), *got;
    chunk_writer *w;
    store *s = test_store("");
    CHECK_OK(store_put(s, "jobs", "a", value, STORE_NEW, NULL, &e), e);
    CHECK_OK(store_locator(s, STORE_USE_JOB, locator, &e), e);
    store *job = open_at(locator);
    CHECK_OK(store_put(job, "history", "a", value, STORE_NEW, NULL, &e), e);
    CHECK_OK(store_put(job, "history", "a", value, STORE_ANY, NULL, &e), e);
    CHECK_OK(store_get(job, "history", "a", &got, NULL, &e), e);
    json_decref(got);
    CHECK_OK(store_blob_put(job, "models/a/1", "one", 3, &e), e);
    CHECK_OK(store_blob_put(job, "models/a/2", "two", 3, &e), e);
    check_blob(job, "models/a/1", "one");
    CHECK_OK(store_blob_delete(job, "models/a/1", &e), e);
    check_blob(s, "models/a/2", "two");
    CHECK_ERR(store_get(job, "jobs", "a", &got, NULL, &e), e, ERR_FORBIDDEN, "not authorized");
    CHECK_ERR(store_put(job, "jobs", "a", value, STORE_ANY, NULL, &e), e, ERR_FORBIDDEN, "");
    CHECK_ERR(store_put(job, "datasets", "d", value, STORE_NEW, NULL, &e), e, ERR_FORBIDDEN, "");
    /* writes down that it is there, no more */
    CHECK_INT(store_chunks_begin(job, 0, id, &w, &e), 0);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_ERR(chunk_seal(w, &e), e, ERR_FORBIDDEN, "");
    chunk_abort(w);
    CHECK_ERR(store_locator(job, STORE_USE_JOB, other, &e), e, ERR_FORBIDDEN, "");
    store_close(job);
    CHECK_OK(store_revoke(s, locator, &e), e);
    CHECK(!store_open(locator, &e));
    CHECK_INT(e.code, ERR_FORBIDDEN);

    CHECK_OK(store_locator(s, STORE_USE_READ, locator, &e), e);
    job = open_at(locator);
    check_blob(job, "models/a/2", "two");
    CHECK_ERR(store_blob_put(job, "models/a/3", "x", 1, &e), e, ERR_FORBIDDEN, "");
    CHECK_ERR(store_get(job, "history", "a", &got, NULL, &e), e, ERR_FORBIDDEN, "");
    store_close(job);
    json_decref(value);
    store_close(s);
}

TEST(a_store_without_users_gives_locators_without_passwords)
{
    err e = ERR_INIT;
    test_store_mongo_server("open");
    test_store_use(ON_MONGO);
    store *s = test_store("");
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES];
    chunk_writer *w;
    chunk_reader *r;
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK(!strchr(locator, '@'));
    CHECK_CONTAINS(locator, id);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(store_revoke(s, locator, &e), e);
    chunk_reader_close(r);
    chunk_abort(w);
    store_close(s);
}

/* ---- TLS ----------------------------------------------------------------------------------- */

TEST_LIMIT(tls_is_the_locators_matter, 60)
{
    err e = ERR_INIT;
    test_store_mongo_server("tls");
    test_store_use(ON_MONGO);
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES], plain[800];
    store *s = test_store("");
    chunk_writer *w;
    chunk_reader *r;
    const void *bytes;
    size_t len;
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK_CONTAINS(locator, "tls=true");
    CHECK_CONTAINS(locator, "tlsCAFile=");
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    CHECK_OK(chunk_view(r, 0, 0, &bytes, &len, &e), e);
    chunk_reader_close(r);
    chunk_abort(w);
    store_close(s);
    /* In the clear it does not talk, and a server that others signed is not believed. */
    snprintf(plain, sizeof plain, "%s", test_store_locator(""));
    char *tls = strstr(plain, "&tls=true");
    CHECK(tls);
    snprintf(tls, 60, "&kubeml.patience_ms=1000&serverSelectionTimeoutMS=500");
    CHECK(!store_open(plain, &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    snprintf(tls, 80, "&tls=true&kubeml.patience_ms=10000&serverSelectionTimeoutMS=5000");
    CHECK(!store_open(plain, &e));
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK_CONTAINS(e.message, "TLS handshake failed");
}

/* ---- reading ahead ------------------------------------------------------------------------- */

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
        CHECK_INT((uintptr_t)bytes % 16, 0);
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
