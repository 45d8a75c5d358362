/* test_storage_worker.c: checkpoints, and the keeper's tasks one after the other, with a Redis and
 * a store of the test's own. */
#include "ps/storage/storage_worker.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/modelstore/shm.h"
#include "modelstore_fixture.h"
#include "stores.h"

static storage_worker *k;

static task *make(task_kind kind)
{
    task *t = task_new(k, kind);
    CHECK(t);
    snprintf(t->job, sizeof t->job, "job1");
    return t;
}

/* Frees the task. */
static err outcome(task *t)
{
    t->work.run(&t->work);
    err e = t->e;
    task_free(t);
    return e;
}

static void done(task *t)
{
    err e = outcome(t);
    CHECK_OK(e.code ? -1 : 0, e);
}

static void begin(const fixture *f)
{
    err e = ERR_INIT;
    k = storage_worker_new(8, &e);
    CHECK_OK(k ? 0 : -1, e);
    task *t = make(TASK_OPEN);
    t->access = f->owner_access;
    snprintf(t->store, sizeof t->store, "%s", test_store_locator(""));
    done(t);
    t = make(TASK_CREATE);
    t->layout = strdup(f->layout.text);
    done(t);
}

static void publish(modelstore *m, const fixture *f, int epoch, int round, int64_t version,
                    uint64_t samples)
{
    err e = ERR_INIT;
    block b = fixture_block(f->layout.shape);
    const modelstore_publication p = {
        .epoch = epoch, .round = round, .version = version, .samples = samples};
    CHECK_OK(modelstore_publish(m, &p, &b, fixture_deadline(), NULL, &e), e);
}

/* Function 0 made version 0. */
static void initialise(const fixture *f, modelstore *m)
{
    publish(m, f, STORAGE_WORKER_INIT_EPOCH, 0, -1, 1);
    task *t = make(TASK_INITIAL);
    t->ledger = strdup("{}");
    done(t);
}

static task *merge_task(int r, size_t ledger_bytes)
{
    task *t = make(TASK_MERGE);
    t->rows = calloc(1, sizeof *t->rows);
    t->ledger = malloc(ledger_bytes + 1);
    CHECK(t->rows && t->ledger);
    t->rows[0].samples = 10;
    t->merge = (round_merge){.round = r,
                             .base_version = r,
                             .next_round = r + 1,
                             .samples = 10,
                             .count = 1,
                             .rows = t->rows};
    memset(t->ledger, ' ', ledger_bytes);
    strcpy(t->ledger + ledger_bytes - 2, "{}");
    return t;
}

/* A round of the first epoch, version r + 1, whose element of the ledger has so many bytes. */
static void merge(const fixture *f, modelstore *m, int r, size_t ledger_bytes)
{
    publish(m, f, 0, r, r, 10);
    done(merge_task(r, ledger_bytes));
}

static void check_ledger(const fixture *f, const char *want)
{
    err e = ERR_INIT;
    char *ledger;
    CHECK_OK(modelstore_ledger(f->owner, fixture_deadline(), &ledger, NULL, &e), e);
    CHECK_STR(ledger, want);
    free(ledger);
}

/* An epoch may have more rounds than the ledger has room for. */
static void merge_beyond_the_ledger(const char *tensor_path)
{
    fixture f;
    err e = ERR_INIT;
    test_store_use(ON_LMDB);
    fixture_init(&f, "database", tensor_path, 64);
    begin(&f);
    modelstore *m = fixture_member(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    initialise(&f, m);
    merge(&f, m, 0, STORAGE_WORKER_LEDGER_BYTES_MAX - 6);
    for (int r = 1; r <= 3; r++)
        merge(&f, m, r, 2);
    check_ledger(&f, "[{},{},{}]");
    done(make(TASK_RESTORE));
    check_ledger(&f, "[{},{},{}]");
    merge(&f, m, 4, 2);
    check_ledger(&f, "[{},{},{},{}]");
    modelstore_close(m);
    storage_worker_free(k, true);
    fixture_free(&f);
}

TEST_LIMIT(a_full_ledger_begins_anew, 60)
{
    merge_beyond_the_ledger("shm");
}
TEST_LIMIT(a_full_ledger_begins_anew_with_our_copy, 60)
{
    merge_beyond_the_ledger("socket");
}

/* ---- a model store that is in trouble ------------------------------------------------------ */

/* Stands between the keeper and Redis. */
typedef struct relay {
    struct sockaddr_un own, redis;
    int listener;
    pthread_t thread;
    atomic_bool spoils; /* a byte of the next model of 64 floats that Redis sends */
} relay;

static void spoil(relay *r, char *bytes, size_t len)
{
    static const char head[] = "$256\r\n";
    char *at = memmem(bytes, len, head, strlen(head));
    if (at && at + strlen(head) < bytes + len && atomic_exchange(&r->spoils, false))
        at[strlen(head)] ^= 1;
}

/* Until either end closes. */
static void carry(relay *r, int storage_worker_fd, int redis_fd)
{
    static char bytes[1 << 16];
    struct pollfd list[] = {{.fd = storage_worker_fd, .events = POLLIN},
                            {.fd = redis_fd, .events = POLLIN}};
    while (poll(list, 2, -1) > 0)
        for (int i = 0; i < 2; i++) {
            ssize_t len = list[i].revents ? read(list[i].fd, bytes, sizeof bytes) : -1;
            if (list[i].revents && len <= 0)
                return;
            if (i == 1 && len > 0)
                spoil(r, bytes, (size_t)len);
            if (len > 0)
                CHECK_INT(write(list[1 - i].fd, bytes, (size_t)len), len);
        }
}

static void *relay_run(void *arg)
{
    relay *r = arg;
    for (int fd; (fd = accept(r->listener, NULL, NULL)) >= 0; close(fd)) {
        int redis_fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK_INT(connect(redis_fd, (struct sockaddr *)&r->redis, sizeof r->redis), 0);
        carry(r, fd, redis_fd);
        close(redis_fd);
    }
    return NULL;
}

/* The owner's way to Redis goes through it from now on. */
static void relay_begin(relay *r, modelstore_access *a)
{
    *r = (relay){.own = {.sun_family = AF_UNIX}, .redis = {.sun_family = AF_UNIX}};
    snprintf(r->redis.sun_path, sizeof r->redis.sun_path, "%s", a->address + strlen("unix:"));
    snprintf(r->own.sun_path, sizeof r->own.sun_path, "%s/relay", test_tmp());
    snprintf(a->address, sizeof a->address, "unix:%s", r->own.sun_path);
    r->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_INT(bind(r->listener, (struct sockaddr *)&r->own, sizeof r->own), 0);
    CHECK_INT(listen(r->listener, 4), 0);
    CHECK_INT(pthread_create(&r->thread, NULL, relay_run, r), 0);
}

static void relay_end(relay *r)
{
    shutdown(r->listener, SHUT_RDWR);
    pthread_join(r->thread, NULL);
    close(r->listener);
}

/* It is merged: to train the round again would be to wait for a version that is over. */
TEST_LIMIT(a_merge_whose_copy_is_damaged_on_its_way_is_copied_again, 60)
{
    fixture f;
    relay r;
    err e = ERR_INIT;
    test_store_use(ON_LMDB);
    fixture_init(&f, "database", "socket", 64);
    relay_begin(&r, &f.owner_access);
    begin(&f);
    modelstore *m = fixture_member(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    initialise(&f, m);
    publish(m, &f, 0, 0, 0, 10);
    atomic_store(&r.spoils, true);
    e = outcome(merge_task(0, 2));
    CHECK(!atomic_load(&r.spoils));
    CHECK_ERR(-1, e, ERR_UNAVAILABLE, "checksum");
    done(merge_task(0, 2));
    merge(&f, m, 1, 2);
    check_ledger(&f, "[{},{},{}]");
    modelstore_close(m);
    storage_worker_free(k, true);
    relay_end(&r);
    fixture_free(&f);
}

static void commit(int epochs)
{
    task *t = make(TASK_COMMIT);
    t->record = json_pack("{s:[]}", "versions");
    t->info.epochs = epochs;
    done(t);
}

static void spoil_segment(const fixture *f, int64_t version)
{
    char name[SHM_NAME_BYTES];
    shm *s;
    err e = ERR_INIT;
    fixture_segment("job1", name);
    CHECK_OK(shm_open_segment(f->owner_access.segment_dir, name, true, &s, &e), e);
    shm_reference(s, version).floats[0] += 1;
    shm_close(s);
}

/* Whichever try it is that puts the checkpoint back. */
TEST_LIMIT(an_older_state_that_is_put_back_is_told_as_one, 60)
{
    fixture f;
    err e = ERR_INIT;
    test_store_use(ON_LMDB);
    fixture_init(&f, "database", "shm", 64);
    begin(&f);
    modelstore *m = fixture_member(&f);
    CHECK_OK(modelstore_attach(m, NULL, fixture_deadline(), &e), e);
    initialise(&f, m);
    merge(&f, m, 0, 2);
    commit(1);
    merge(&f, m, 1, 2);
    spoil_segment(&f, 2);
    fixture_limit_memory(f.server, "1");
    e = outcome(make(TASK_RESTORE));
    CHECK_ERR(-1, e, ERR_NOMEM, "OOM");
    fixture_limit_memory(f.server, "0");
    task *t = make(TASK_RESTORE);
    t->work.run(&t->work);
    CHECK_OK(t->status, t->e);
    CHECK_INT(t->version, 1);
    CHECK(t->resumed);
    task_free(t);
    modelstore_close(m);
    storage_worker_free(k, true);
    fixture_free(&f);
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static void write_checkpoint(store *s, const layout *l, int epochs)
{
    err e = ERR_INIT;
    model m;
    char name[STORE_KEY_BYTES];
    checkpoint_info info = {.job = "job1", .epochs = epochs, .version = epochs};
    CHECK_OK(model_new(&m, l->text, &e), e);
    CHECK_OK(checkpoint_name(name, "job1", epochs, &e), e);
    CHECK_OK(checkpoint_write(s, name, &info, &m, &e), e);
    model_free(&m);
}

static int newest_of(store *s, bool last, err *e)
{
    model m;
    checkpoint_info info;
    if (checkpoint_newest(s, "job1", 9, last, &info, &m, e))
        return -1;
    model_free(&m);
    return info.epochs;
}

static int newest(store *s, err *e)
{
    return newest_of(s, false, e);
}

/* A job goes on from an older one only where the newest is damaged. */
TEST(a_store_that_is_away_for_a_moment_costs_no_epoch)
{
    err e = ERR_INIT;
    layout l;
    test_store_use(ON_MEMORY);
    store *s = test_store("");
    fixture_layout(64, &l);
    write_checkpoint(s, &l, 1);
    write_checkpoint(s, &l, 2);
    CHECK_INT(newest(s, &e), 2);
    store_memory_fail(s, 2, ERR_UNAVAILABLE); /* the list is read */
    CHECK_ERR(newest(s, &e) < 0 ? -1 : 0, e, ERR_UNAVAILABLE, "epoch-000002");
    err_clear(&e);
    store_memory_fail(s, 2, ERR_IO); /* a disk whose mount is lost comes back too */
    CHECK_ERR(newest(s, &e) < 0 ? -1 : 0, e, ERR_IO, "epoch-000002");
    static const err_code damage[] = {ERR_CORRUPT, ERR_NOT_FOUND, ERR_INVALID};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        store_memory_fail(s, 2, damage[i]);
        CHECK_INT(newest(s, &e), 1);
    }
    err_clear(&e);
    store_memory_fail(s, 2, ERR_UNAVAILABLE);
    CHECK_ERR(newest_of(s, true, &e) < 0 ? -1 : 0, e, ERR_UNAVAILABLE, "epoch-000002");
    store_memory_fail(s, 2, ERR_IO); /* that it never comes back costs an epoch, and no job */
    CHECK_INT(newest_of(s, true, &e), 1);
    layout_free(&l);
    store_close(s);
}

static bool is_there(store *s, int name_of(char *, const char *, int, err *), int number)
{
    char name[STORE_KEY_BYTES];
    uint64_t bytes;
    err e = ERR_INIT;
    CHECK_OK(name_of(name, "job1", number, &e), e);
    return store_blob_find(s, name, &bytes, &e) == 0;
}

static void put(store *s, int name_of(char *, const char *, int, err *), int number)
{
    char name[STORE_KEY_BYTES];
    err e = ERR_INIT;
    CHECK_OK(name_of(name, "job1", number, &e), e);
    CHECK_OK(store_blob_put(s, name, "x", 1, &e), e);
}

static int final_name(char *out, const char *job, int number, err *e)
{
    (void)number;
    return checkpoint_final_name(out, job, e);
}

/* What is beyond the epochs that are ours is another kubeml-ps's. */
TEST(checkpoints_go_that_are_not_needed_any_more)
{
    err e = ERR_INIT;
    bool any;
    test_store_use(ON_MEMORY);
    store *s = test_store("");
    for (int n = 1; n <= 6; n++)
        put(s, checkpoint_name, n);
    CHECK_OK(checkpoint_prune(s, "job1", 5, 2, &e), e);
    for (int n = 1; n <= 6; n++)
        CHECK(is_there(s, checkpoint_name, n) == (n >= 4));
    CHECK_OK(checkpoint_beyond(s, "job1", 5, &any, &e), e);
    CHECK(any);
    CHECK_OK(checkpoint_beyond(s, "job1", 6, &any, &e), e);
    CHECK(!any);
    CHECK_OK(checkpoint_prune(s, "job1", 5, 0, &e), e);
    for (int n = 1; n <= 6; n++)
        CHECK(is_there(s, checkpoint_name, n) == (n == 6));

    for (int n = 0; n < 3; n++)
        put(s, checkpoint_suspended_name, n);
    put(s, final_name, 0);
    CHECK_OK(checkpoint_prune_suspended(s, "job1", 1, &e), e);
    for (int n = 0; n < 3; n++)
        CHECK(is_there(s, checkpoint_suspended_name, n) == (n == 1));
    CHECK_OK(checkpoint_prune_suspended(s, "job1", -1, &e), e);
    CHECK(!is_there(s, checkpoint_suspended_name, 1) && is_there(s, final_name, 0));
    for (int time = 0; time < 2; time++) { /* the second finds none */
        CHECK_OK(checkpoint_drop_final(s, "job1", &e), e);
        CHECK(!is_there(s, final_name, 0) && is_there(s, checkpoint_name, 6));
    }
    store_close(s);
}

/* Its SHA-256 is of all of its numbers. */
TEST(every_number_is_in_a_models_digest)
{
    err e = ERR_INIT;
    layout l;
    model m;
    char sum[4][DIGEST_HEX_BYTES];
    fixture_layout(64, &l);
    CHECK_OK(model_new(&m, l.text, &e), e);
    CHECK(l.shape.counters > 0);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(model_digest(&m, sum[i], &e), e);
        for (int before = 0; before < i; before++)
            CHECK(strcmp(sum[i], sum[before]) != 0);
        if (i == 0)
            m.block.floats[0] = 1;
        else if (i == 1)
            m.block.floats[l.shape.floats - 1] = 1;
        else
            m.block.counters[l.shape.counters - 1] = 1;
    }
    model_free(&m);
    layout_free(&l);
}
