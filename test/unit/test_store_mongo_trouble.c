/* test_store_mongo_trouble.c: a server that is gone and comes back, answers that are lost, and
 * writers that die or sleep: what they wrote goes with a sweep, and what a name stands for stays.
 * Runs against MONGODB_URI or the stand-in. */
#include <sys/wait.h>

#include "common/base/clock.h"
#include "common/dataset/ingest.h"
#include "mongo_fixture.h"

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
