/* test_store_processes.c: the LMDB store between processes: growth, kill -9, sweeping, a full disk.
 *
 * A child process gets its end through a pipe or by SIGKILL; nothing sleeps to wait. */
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "common/base/fs.h"
#include "common/base/rng.h"
#include "common/store/store.h"
#include "common/store/store_lmdb.h"
#include "test.h"

static char locator[600];

static store *must_open(const char *options)
{
    err e = ERR_INIT;
    snprintf(locator, sizeof locator, "lmdb:%s/store%s", test_tmp(), options);
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

static int value_of(store *s, const char *key)
{
    err e = ERR_INIT;
    json_t *json;
    CHECK_OK(store_get(s, "things", key, &json, NULL, &e), e);
    int value = (int)json_integer_value(json_object_get(json, "value"));
    json_decref(json);
    return value;
}

typedef struct child {
    pid_t pid;
    int from; /* what it writes */
} child;

/* Runs `body` in a child with a pipe to its parent. */
static child spawn(void (*body)(int to_parent))
{
    int ends[2];
    CHECK_INT(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a case that failed is over at once */
        close(ends[0]);
        body(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    return (child){pid, ends[0]};
}

static void expect(child *c, char want)
{
    char got = '?';
    CHECK_INT(read(c->from, &got, 1), 1);
    CHECK_INT(got, want);
}

static void say(int to, char c)
{
    CHECK_INT(write(to, &c, 1), 1);
}

static void kill_child(child *c)
{
    kill(c->pid, SIGKILL);
    int status;
    CHECK_INT(waitpid(c->pid, &status, 0), c->pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(c->from);
}

static void join_child(child *c)
{
    int status;
    CHECK_INT(waitpid(c->pid, &status, 0), c->pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(c->from);
}

/* ---- growth -------------------------------------------------------------------------------- */

static void add_many(int to)
{
    err e = ERR_INIT;
    store *s = must_open("?map_bytes=65536");
    char text[500];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    say(to, 'o');
    for (int i = 0; i < 400; i++) {
        char key[32];
        snprintf(key, sizeof key, "%d.%d", (int)getpid(), i);
        json_t *json = json_pack("{s:i, s:s}", "value", i, "text", text);
        CHECK_OK(store_put(s, "things", key, json, STORE_NEW, NULL, &e), e);
        json_decref(json);
    }
    store_close(s);
}

TEST_LIMIT(two_processes_grow_the_map, 60)
{
    store *s = must_open("?map_bytes=65536");
    child a = spawn(add_many), b = spawn(add_many);
    expect(&a, 'o');
    expect(&b, 'o');
    join_child(&a);
    join_child(&b);
    /* This process opened the store when it was small, and sees all of it. */
    for (int i = 0; i < 400; i++) {
        char key[32];
        snprintf(key, sizeof key, "%d.%d", (int)a.pid, i);
        CHECK_INT(value_of(s, key), i);
        snprintf(key, sizeof key, "%d.%d", (int)b.pid, i);
        CHECK_INT(value_of(s, key), i);
    }
    err e = ERR_INIT;
    CHECK_OK(put(s, "mine", 1, STORE_NEW, &e), e);
    store_close(s);
}

/* ---- kill -9 ------------------------------------------------------------------------------- */

/* Writes pairs of records, the second after the first, and says when a pair is acknowledged. */
static void write_forever(int to)
{
    store *s = must_open("?map_bytes=65536");
    err e = ERR_INIT;
    for (int i = 0;; i++) {
        char key[32];
        snprintf(key, sizeof key, "%d", i);
        CHECK_OK(put(s, key, i, STORE_NEW, &e), e);
        CHECK_OK(put(s, "last", i, STORE_ANY, &e), e);
        say(to, 'w');
    }
}

/* The writer is killed after a random number of acknowledgements and then some instants, each time
 * on the same store: what was acknowledged is there, and others go on without waiting. */
TEST_LIMIT(a_killed_writer_loses_nothing_and_blocks_nobody, 60)
{
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    store *s = must_open("?map_bytes=65536");
    for (int round = 0; round < 12; round++) {
        child c = spawn(write_forever);
        int acknowledged = 0, want = 1 + (int)rng_below(&r, 20);
        while (acknowledged < want) {
            expect(&c, 'w');
            acknowledged++;
        }
        usleep((useconds_t)rng_below(&r, 3000)); /* where in its next write it dies is chance */
        kill_child(&c);
        err e = ERR_INIT;
        CHECK(value_of(s, "last") >= acknowledged - 1);
        for (int i = 0; i < acknowledged; i++) {
            char key[32];
            snprintf(key, sizeof key, "%d", i);
            CHECK_INT(value_of(s, key), i);
        }
        CHECK_OK(put(s, "after", round, STORE_ANY, &e), e);
        bool more = true;
        while (more) { /* a quick writer fills more than a page */
            store_page page;
            CHECK_OK(store_list(s, "things", NULL, NULL, 0, &page, &e), e);
            for (size_t i = 0; i < page.count; i++)
                CHECK_OK(store_delete(s, "things", page.records[i].key, STORE_ANY, &e), e);
            more = page.count > 0;
            store_page_free(&page);
        }
    }
    store_close(s);
}

/* Stops itself in the middle of a write, and goes on with others when it is told to. */
static void write_and_stop(int to)
{
    err e = ERR_INIT;
    store *s = must_open("");
    setenv("KUBEML_FAILPOINT", "store-write:1:stop", 1);
    failpoint_open(NULL);
    CHECK_OK(put(s, "stopped", 1, STORE_NEW, &e), e);
    say(to, 'w');
    pause();
}

TEST_LIMIT(a_stopped_writer_holds_up_others_to_a_deadline, 60)
{
    err e = ERR_INIT;
    store *s = must_open("");
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    child c = spawn(write_and_stop);
    int status;
    CHECK_INT(waitpid(c.pid, &status, WUNTRACED), c.pid);
    CHECK(WIFSTOPPED(status));
    CHECK_INT(put(s, "a", 2, STORE_ANY, &e), -1);
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    char process[32];
    snprintf(process, sizeof process, "process %d ", (int)c.pid);
    CHECK(strstr(e.message, process));
    CHECK_INT(value_of(s, "a"), 1); /* reading needs no turn */
    CHECK_INT(kill(c.pid, SIGCONT), 0);
    expect(&c, 'w');
    e = (err)ERR_INIT;
    CHECK_OK(put(s, "a", 3, STORE_ANY, &e), e);
    CHECK_INT(value_of(s, "stopped"), 1);
    kill_child(&c);
    store_close(s);
}

TEST_LIMIT(a_writer_killed_while_it_is_stopped_gives_up_its_turn, 60)
{
    err e = ERR_INIT;
    store *s = must_open("");
    child c = spawn(write_and_stop);
    int status;
    CHECK_INT(waitpid(c.pid, &status, WUNTRACED), c.pid);
    CHECK(WIFSTOPPED(status));
    kill_child(&c);
    CHECK_OK(put(s, "a", 2, STORE_NEW, &e), e);
    CHECK_INT(store_get(s, "things", "stopped", &(json_t *){NULL}, NULL, &e), -1);
    CHECK_INT(e.code, ERR_NOT_FOUND);
    store_close(s);
}

/* A boot ago somebody held the turn, and cannot give it up any more. */
TEST(the_turn_of_an_earlier_boot_is_nobodys)
{
    err e = ERR_INIT;
    char path[600];
    store *s = must_open("");
    child c = spawn(write_and_stop);
    int status;
    CHECK_INT(waitpid(c.pid, &status, WUNTRACED), c.pid);
    snprintf(path, sizeof path, "%s/store/records.writer", test_tmp());
    store_close(s);
    cleanup_buf buf file;
    buf_init(&file, 4096);
    CHECK_OK(fs_read_file(path, &file, &e), e);
    kill_child(&c);
    file.bytes[0] ^= 1; /* its boot id */
    CHECK_OK(fs_write_file(path, file.bytes, file.len, 0600, &e), e);
    s = must_open("");
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    CHECK_INT(value_of(s, "a"), 1);
    store_close(s);
}

/* Readers that die in a transaction keep their slots, and old pages with them, until they are
 * cleared. */
static void read_forever(int to)
{
    char path[600];
    MDB_env *env;
    MDB_txn *txn;
    snprintf(path, sizeof path, "%s/store/records.mdb", test_tmp());
    CHECK_INT(mdb_env_create(&env), 0);
    CHECK_INT(mdb_env_set_maxreaders(env, 1024), 0);
    CHECK_INT(mdb_env_open(env, path, MDB_NOSUBDIR | MDB_NOTLS, 0600), 0);
    int begun = 0;
    while (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0) /* until no slot is free */
        begun++;
    CHECK(begun > 1000);
    say(to, 'r');
    pause();
}

TEST_LIMIT(dead_readers_are_cleared, 60)
{
    err e = ERR_INIT;
    store *s = must_open("");
    child c = spawn(read_forever);
    expect(&c, 'r');
    kill_child(&c);
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    CHECK_INT(value_of(s, "a"), 1);
    c = spawn(read_forever);
    expect(&c, 'r');
    kill_child(&c);
    size_t removed = 0;
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK(removed > 1000);
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    store_close(s);
}

/* ---- sweeping ------------------------------------------------------------------------------ */

static size_t files_in(const char *part)
{
    char command[700];
    snprintf(command, sizeof command, "find '%s/store/%s' -type f | wc -l", test_tmp(), part);
    FILE *f = popen(command, "r");
    int count = -1;
    CHECK(f && fscanf(f, "%d", &count) == 1);
    pclose(f);
    return (size_t)count;
}

static void half_write(int to)
{
    err e = ERR_INIT;
    store *s = must_open("");
    blob_writer *b;
    chunk_writer *c;
    char id[STORE_ID_BYTES];
    static uint8_t bytes[100000];
    CHECK_OK(store_blob_begin(s, "models/half", &b, &e), e);
    CHECK_OK(blob_write(b, bytes, sizeof bytes, &e), e);
    CHECK_OK(store_chunks_begin(s, 1 << 20, id, &c, &e), e);
    CHECK_OK(chunk_put(c, 0, 0, bytes, sizeof bytes, &e), e);
    CHECK_OK(chunk_put_info(c, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(c, &e), e); /* sealed, but no record names it */
    say(to, 'h');
    pause();
}

TEST(what_the_living_write_stays_and_what_the_dead_wrote_goes)
{
    err e = ERR_INIT;
    store *s = must_open("");
    size_t removed;
    child c = spawn(half_write);
    expect(&c, 'h');
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    CHECK_INT(files_in("tmp"), 1);
    kill_child(&c);
    blob *b;
    CHECK_ERR(store_blob_open(s, "models/half", &b, &e), e, ERR_NOT_FOUND, "models/half");
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 2);
    CHECK_INT(files_in("tmp") + files_in("datasets") + files_in("blobs"), 0);
    store_close(s);
}

/* A chunk set that a record names stays, whoever wrote it. */
TEST(a_named_chunk_set_is_not_swept)
{
    err e = ERR_INIT;
    store *s = must_open("");
    chunk_writer *w;
    char id[STORE_ID_BYTES];
    size_t removed;
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    json_t *record = json_pack("{s:s}", "upload", id);
    CHECK_OK(store_put(s, STORE_DATASETS, "d", record, STORE_NEW, NULL, &e), e);
    json_decref(record);
    chunk_release(w);
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    CHECK_OK(store_delete(s, STORE_DATASETS, "d", STORE_ANY, &e), e);
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 1);
    store_close(s);
}

/* A writer that died before it had its lock left a folder, or a file. One that lives may have made
 * them as long as somebody holds the folder that they are in. */
TEST(what_was_made_and_never_locked_goes_when_nobody_makes_anything)
{
    err e = ERR_INIT;
    store *s = must_open("");
    const char *const made[] = {"datasets/.new.0123456789abcdef", "tmp/.new.abcdef"};
    const char *const folders[] = {"datasets", "tmp"};
    char path[2][400], folder[2][400];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/store/%s", test_tmp(), made[i]);
        snprintf(folder[i], sizeof folder[i], "%s/store/%s", test_tmp(), folders[i]);
    }
    CHECK_INT(mkdir(path[0], 0700), 0);
    CHECK_OK(fs_write_file(path[1], "x", 1, 0600, &e), e);
    for (int i = 0; i < 2; i++) {
        size_t removed;
        int making = lmdb_making(folder[i], &e);
        CHECK(making >= 0);
        CHECK_OK(store_sweep(s, &removed, &e), e);
        CHECK_INT(removed, 1); /* the other one's */
        CHECK_INT(access(path[i], F_OK), 0);
        CHECK(access(path[1 - i], F_OK) != 0);
        close(making);
        CHECK_OK(store_sweep(s, &removed, &e), e);
        CHECK_INT(removed, 1);
        CHECK(access(path[i], F_OK) != 0);
        CHECK_INT(mkdir(path[0], 0700), 0);
        CHECK_OK(fs_write_file(path[1], "x", 1, 0600, &e), e);
    }
    store_close(s);
}

static int lists;

static int count_list(store *s, const char *collection, const char *prefix, const char *after,
                      size_t limit, store_each each, void *arg, bool *more, err *e)
{
    lists++;
    return store_lmdb.list(s, collection, prefix, after, limit, each, arg, more, e);
}

/* A sealed chunk set; with a `name` a record names it. */
static void make_set(store *s, const char *name, char locator_of_it[STORE_LOCATOR_BYTES])
{
    err e = ERR_INIT;
    chunk_writer *w;
    char id[STORE_ID_BYTES];
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator_of_it, &e), e);
    json_t *record = json_pack("{s:s}", "upload", id);
    if (name)
        CHECK_OK(store_put(s, STORE_DATASETS, name, record, STORE_NEW, NULL, &e), e);
    json_decref(record);
    chunk_release(w);
}

/* The records, each of which may be long, are read a few times in all and not once for each set. */
TEST_LIMIT(a_sweep_of_many_sets_reads_the_records_once, 60)
{
    enum { NAMED = 20, ORPHANS = 150 };
    err e = ERR_INIT;
    size_t removed;
    char named[NAMED][STORE_LOCATOR_BYTES], left[STORE_LOCATOR_BYTES], path[FS_PATH_BYTES],
        id[STORE_ID_BYTES];
    chunk_reader *r;
    chunk_writer *w;
    store *s = must_open("");
    store_driver counting = store_lmdb;
    counting.list = count_list;
    s->driver = &counting;
    for (int i = 0; i < NAMED; i++) {
        snprintf(id, sizeof id, "d%d", i);
        make_set(s, id, named[i]);
    }
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, 0);
    CHECK_INT(lists, 1);
    /* More than are locked at once, with room for so many descriptors and no more. */
    make_set(s, NULL, left);
    for (int i = 1; i < ORPHANS; i++) {
        CHECK_OK(fs_path(path, &e, "%s/store/datasets/%016x", test_tmp(), i), e);
        CHECK_INT(mkdir(path, 0700), 0);
    }
    struct rlimit files = {100, 100};
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &files), 0);
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e); /* of a living writer */
    lists = 0;
    CHECK_OK(store_sweep(s, &removed, &e), e);
    CHECK_INT(removed, ORPHANS);
    CHECK(lists <= 4);
    CHECK_INT(chunk_reader_open(left, &r, &e), -1);
    e = (err)ERR_INIT;
    for (int i = 0; i < NAMED; i++) {
        CHECK_OK(chunk_reader_open(named[i], &r, &e), e);
        chunk_reader_close(r);
    }
    CHECK_OK(chunk_put(w, 0, 0, "bytes", 5, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    chunk_abort(w);
    s->driver = &store_lmdb;
    store_close(s);
}

/* One process makes and gives up chunk sets and blobs while another sweeps: no writer loses what it
 * is writing. */
static void sweep_forever(int to)
{
    err e = ERR_INIT;
    store *s = must_open("");
    say(to, 's');
    for (;;)
        CHECK_OK(store_sweep(s, NULL, &e), e);
}

TEST_LIMIT(a_sweep_never_takes_from_a_writer, 60)
{
    err e = ERR_INIT;
    store *s = must_open("");
    child c = spawn(sweep_forever);
    expect(&c, 's');
    for (int i = 0; i < 60; i++) {
        blob_writer *b;
        chunk_writer *w;
        char id[STORE_ID_BYTES], name[32], where[STORE_LOCATOR_BYTES];
        snprintf(name, sizeof name, "b/%d", i);
        CHECK_OK(store_blob_begin(s, name, &b, &e), e);
        CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
        CHECK_OK(blob_write(b, "x", 1, &e), e);
        CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
        CHECK_OK(blob_commit(b, &e), e);
        CHECK_OK(chunk_seal(w, &e), e);
        json_t *record = json_pack("{s:s}", "upload", id);
        CHECK_OK(store_put(s, STORE_DATASETS, "d", record, STORE_ANY, NULL, &e), e);
        json_decref(record);
        chunk_release(w);
        chunk_reader *r;
        CHECK_OK(store_chunks_locator(s, id, where, &e), e);
        CHECK_OK(chunk_reader_open(where, &r, &e), e);
        chunk_reader_close(r);
    }
    blob_entry *entries;
    size_t count;
    CHECK_OK(store_blob_list(s, "b/", NULL, 0, &entries, &count, &e), e);
    CHECK_INT(count, 60);
    free(entries);
    kill_child(&c);
    store_close(s);
}

/* ---- a full disk --------------------------------------------------------------------------- */

/* A limit on file sizes stands for it: the write fails half-way with EFBIG. */
static void limit_files(rlim_t bytes)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_full_disk_is_said_and_leaves_what_was_there)
{
    err e = ERR_INIT;
    store *s = must_open("");
    CHECK_OK(put(s, "a", 1, STORE_NEW, &e), e);
    static char bytes[1 << 20];
    limit_files(200000);
    CHECK_ERR(store_blob_put(s, "models/1", bytes, sizeof bytes, &e), e, ERR_IO, "blob models/1");
    CHECK_INT(e.os_errno, EFBIG);
    memset(bytes, 'x', sizeof bytes - 1);
    json_t *large = json_pack("{s:s}", "text", bytes);
    CHECK_ERR(store_put(s, "things", "large", large, STORE_NEW, NULL, &e), e, ERR_IO,
              "records.mdb");
    CHECK_INT(value_of(s, "a"), 1);
    chunk_writer *w;
    char id[STORE_ID_BYTES];
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    int result = chunk_put(w, 0, 0, bytes, sizeof bytes, &e);
    if (result == 0)
        result = chunk_seal(w, &e);
    CHECK_INT(result, -1);
    CHECK_INT(e.code, ERR_IO);
    chunk_abort(w);
    CHECK_INT(files_in("tmp") + files_in("datasets") + files_in("blobs"), 0);
    blob_writer *over;
    CHECK_OK(store_blob_put(s, "models/2", "whole", 5, &e), e);
    CHECK_OK(store_blob_begin(s, "models/2", &over, &e), e);
    CHECK_ERR(blob_write(over, bytes, sizeof bytes, &e), e, ERR_IO, "blob models/2");
    blob_abort(over);
    uint64_t left = 0;
    CHECK_OK(store_blob_find(s, "models/2", &left, &e), e);
    CHECK_INT(left, 5);
    limit_files(RLIM_INFINITY);
    CHECK_OK(store_put(s, "things", "large", large, STORE_NEW, NULL, &e), e); /* room again */
    json_decref(large);
    CHECK_OK(store_blob_put(s, "models/1", bytes, sizeof bytes, &e), e);
    CHECK_INT(value_of(s, "a"), 1);
    store_close(s);
}
