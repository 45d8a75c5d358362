/* store_lmdb.c: the LMDB store's environment and records. See store.h and store_lmdb.h.
 *
 * Invariants:
 *  1. There is one environment for a folder and process, whatever the number of handles: LMDB's
 * file
 *     locks belong to the process, and closing a second environment would release the first's.
 *  2. Every transaction is inside one function and under `map` taken for reading. The map is
 * resized,
 *     and a broken environment reopened, under `map` taken for writing: never under a transaction.
 *  3. The map doubles when a write finds it full; other processes see this at their next
 * transaction
 *     (MDB_MAP_RESIZED) and adopt the size.
 *  4. A writer takes the writers' lock (store_lmdb_writer.h), which has a deadline, before `map`
 * and
 *     before LMDB's lock, which has no deadline.
 *  5. A record's version is the count of all writes, so that a deleted and rewritten record never
 *     has an old version again.
 *
 * A record's key is collection NUL key; its value is the version (8 bytes, this machine's order)
 * and the text. The write counter is under a single NUL, which is no collection's name. */
#include "store_lmdb.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "store_lmdb_writer.h"

enum {
    /* wait for the writers' lock: a write takes milliseconds, or seconds on a disk that syncs for
     * others */
    TURN_MS = 5000,
    MAP_BYTES = 64 << 20, /* at first */
    MAP_BYTES_MIN = 1 << 16,
    READERS_MAX = 1024,
    TRIES_MAX = 64, /* of one operation, each after the map has grown or readers were cleared */
};
#define MAP_BYTES_MAX ((size_t)1 << 40)

typedef struct lmdb_records {
    char path[FS_PATH_BYTES];
    pid_t pid; /* a forked child must not use its parent's environment */
    unsigned users;
    struct lmdb_records *next;
    MDB_env *env; /* `map` guards */
    MDB_dbi dbi;
    pthread_rwlock_t map;
    lmdb_writer *writer;
} lmdb_records;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER; /* guards open_records and users */
static lmdb_records *open_records;

/* LMDB reports a short write as EIO; the usual cause is a full disk. */
static int cause_of(int status, const char *path)
{
    uint64_t left;
    return status == EIO && fs_free_bytes(path, &left, NULL, NULL) == 0 && left < 1 << 20 ? ENOSPC
                                                                                          : status;
}

int lmdb_error(err *e, int status, const char *what)
{
    switch (status) {
    case MDB_NOTFOUND: return err_set(e, ERR_NOT_FOUND, "%s: not found", what);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH: return err_set(e, ERR_CORRUPT, "%s: %s", what, mdb_strerror(status));
    case MDB_MAP_FULL:
        return err_set(e, ERR_LIMIT, "%s: the store's map cannot grow any more", what);
    case MDB_READERS_FULL:
        return err_set(e, ERR_UNAVAILABLE, "%s: %d readers at once", what, READERS_MAX);
    default:
        if (status > 0)
            return err_set_errno(e, cause_of(status, what), "%s", what);
        return err_set(e, ERR_IO, "%s: %s", what, mdb_strerror(status));
    }
}

int lmdb_try_lock(int fd)
{
    struct stat st;
    return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0;
}

int lmdb_own(err *e)
{
    if (e && e->code == ERR_NOT_FOUND)
        e->code = ERR_IO;
    return -1;
}

int lmdb_making(const char *folder, err *e)
{
    cleanup_close int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 ? -1 : flock(fd, LOCK_SH);
    while (failed && fd >= 0 && errno == EINTR)
        failed = flock(fd, LOCK_SH);
    if (!failed)
        return steal_fd(fd);
    err_set_errno(e, errno, "cannot lock %s", folder);
    return lmdb_own(e);
}

int lmdb_sweep_left(const char *folder, size_t *removed, err *e)
{
    char path[FS_PATH_BYTES];
    struct dirent *entry;
    DIR *dir = opendir(folder);
    if (!dir)
        return err_set_errno(e, errno, "cannot read %s", folder);
    if (flock(dirfd(dir), LOCK_EX | LOCK_NB) == 0)
        while ((entry = readdir(dir)))
            if (strncmp(entry->d_name, LMDB_NEW, strlen(LMDB_NEW)) == 0 &&
                fs_path(path, NULL, "%s/%s", folder, entry->d_name) == 0 &&
                fs_remove_tree(path, NULL) == 0)
                ++*removed;
    closedir(dir);
    return 0;
}

/* ---- the environment ----------------------------------------------------------------------- */

static int open_env(lmdb_records *r, size_t map_bytes, err *e)
{
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    int status = mdb_env_create(&env);
    if (status == 0)
        status = mdb_env_set_maxreaders(env, READERS_MAX);
    if (status == 0)
        status = mdb_env_set_mapsize(env, map_bytes);
    if (status == 0)
        status = mdb_env_open(env, r->path, MDB_NOSUBDIR | MDB_NOTLS, 0600);
    if (status == 0)
        status = mdb_env_set_mapsize(env, 0); /* another process may have grown it */
    int dead;
    if (status == 0)
        status = mdb_reader_check(env, &dead);
    if (status == 0)
        status = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
    if (status == 0)
        status = mdb_dbi_open(txn, NULL, 0, &r->dbi);
    if (txn)
        mdb_txn_abort(txn);
    if (status != 0) {
        if (env)
            mdb_env_close(env);
        return lmdb_error(e, status, r->path);
    }
    r->env = env;
    return 0;
}

/* Opens DIR/records.writer, beside DIR/records.mdb. */
static lmdb_writer *open_writer(const char *records, err *e)
{
    char path[FS_PATH_BYTES];
    const char *dot = strrchr(records, '.');
    return fs_path(path, e, "%.*s.writer", (int)(dot - records), records) == 0
               ? lmdb_writer_open(path, e)
               : NULL;
}

static lmdb_records *records_new(const char *path, size_t map_bytes, err *e)
{
    lmdb_records *r = calloc(1, sizeof *r);
    if (!r) {
        err_set(e, ERR_NOMEM, "no memory for store %s", path);
        return NULL;
    }
    r->pid = getpid();
    r->users = 1;
    if (fs_path(r->path, e, "%s", path) != 0 || !(r->writer = open_writer(path, e)) ||
        open_env(r, map_bytes, e) != 0) {
        lmdb_writer_close(r->writer);
        free(r);
        return NULL;
    }
    pthread_rwlock_init(&r->map, NULL);
    return r;
}

static lmdb_records *records_use(const char *path, size_t map_bytes, err *e)
{
    pthread_mutex_lock(&open_lock);
    lmdb_records *r = open_records;
    while (r && (r->pid != getpid() || strcmp(r->path, path) != 0))
        r = r->next;
    if (r) {
        r->users++;
    } else if ((r = records_new(path, map_bytes, e))) {
        r->next = open_records;
        open_records = r;
    }
    pthread_mutex_unlock(&open_lock);
    return r;
}

static void records_drop(lmdb_records *r)
{
    pthread_mutex_lock(&open_lock);
    if (--r->users == 0) {
        lmdb_records **at = &open_records;
        while (*at != r)
            at = &(*at)->next;
        *at = r->next;
        if (r->pid == getpid() && r->env)
            mdb_env_close(r->env);
        pthread_rwlock_destroy(&r->map);
        lmdb_writer_close(r->writer);
        free(r);
    }
    pthread_mutex_unlock(&open_lock);
}

/* ---- transactions -------------------------------------------------------------------------- */

static int adopt_map(lmdb_records *r)
{
    return mdb_env_set_mapsize(r->env, 0);
}

/* Doubles the larger of this process's size and the size on disk, which another process may have
 * grown: this process's size is on disk only after a commit. */
static int grow_map(lmdb_records *r)
{
    MDB_envinfo ours, adopted;
    int status = mdb_env_info(r->env, &ours);
    if (status == 0)
        status = mdb_env_set_mapsize(r->env, 0);
    if (status == 0)
        status = mdb_env_info(r->env, &adopted);
    if (status != 0)
        return status;
    size_t size = ours.me_mapsize > adopted.me_mapsize ? ours.me_mapsize : adopted.me_mapsize;
    return size >= MAP_BYTES_MAX ? MDB_MAP_FULL : mdb_env_set_mapsize(r->env, 2 * size);
}

static int reopen(lmdb_records *r, err *e)
{
    if (r->env)
        mdb_env_close(r->env);
    r->env = NULL;
    return open_env(r, MAP_BYTES, e);
}

static int clear_readers(lmdb_records *r)
{
    int dead = 0, status = mdb_reader_check(r->env, &dead);
    return status != 0 ? status : dead > 0 ? 0 : MDB_READERS_FULL;
}

/* Repairs the cause of a status that a second try may cure. 0: try again; else -1 and `e` set. */
static int recover(lmdb_records *r, int status, const char *what, err *e)
{
    int result;
    pthread_rwlock_wrlock(&r->map);
    if (!r->env || status == MDB_PANIC)
        result = reopen(r, e) == 0 ? 0 : -1;
    else {
        int again = status == MDB_MAP_RESIZED    ? adopt_map(r)
                    : status == MDB_MAP_FULL     ? grow_map(r)
                    : status == MDB_READERS_FULL ? clear_readers(r)
                                                 : status;
        result = again == 0 ? 0 : lmdb_error(e, again, what);
    }
    pthread_rwlock_unlock(&r->map);
    return result;
}

/* An operation inside one transaction. Returns LMDB's status. Sets *refused where `e` is set and
 * the transaction must not be committed. */
typedef int (*operation)(MDB_txn *txn, MDB_dbi dbi, void *arg, bool *refused, err *e);

static int run_once(lmdb_records *r, unsigned flags, operation op, void *arg, bool *refused, err *e)
{
    MDB_txn *txn;
    int status = r->env ? mdb_txn_begin(r->env, NULL, flags, &txn) : MDB_PANIC;
    if (status != 0)
        return status;
    status = op(txn, r->dbi, arg, refused, e);
    if (!(flags & MDB_RDONLY))
        failpoint("store-write");
    if (status != 0 || *refused || flags & MDB_RDONLY) {
        mdb_txn_abort(txn);
        return status;
    }
    return mdb_txn_commit(txn);
}

static int run_until_done(lmdb_records *r, bool write, operation op, void *arg, const char *what,
                          err *e)
{
    for (int tries = 0;; tries++) {
        bool refused = false;
        pthread_rwlock_rdlock(&r->map);
        int status = run_once(r, write ? 0 : MDB_RDONLY, op, arg, &refused, e);
        pthread_rwlock_unlock(&r->map);
        if (refused)
            return -1;
        if (status == 0)
            return 0;
        if (tries == TRIES_MAX)
            return lmdb_error(e, status, what);
        if (recover(r, status, what, e) != 0)
            return -1;
    }
}

static int run(store *s, bool write, operation op, void *arg, const char *what, err *e)
{
    lmdb_records *r = ((lmdb_store *)s)->records;
    assert(r->pid == getpid()); /* a forked child opens the store itself */
    if (!write)
        return run_until_done(r, false, op, arg, what, e);
    if (lmdb_writer_lock(r->writer, clock_deadline_ms(TURN_MS), e) != 0)
        return -1;
    int result = run_until_done(r, true, op, arg, what, e);
    lmdb_writer_unlock(r->writer);
    return result;
}

/* ---- records ------------------------------------------------------------------------------- */

typedef struct record_op {
    const char *collection, *key;
    char full[STORE_COLLECTION_BYTES + STORE_KEY_BYTES];
    size_t full_len;
    const char *text;
    size_t len;
    uint64_t expected, version;
    buf *out;
} record_op;

static void record_key(record_op *op)
{
    size_t collection = strlen(op->collection) + 1, key = strlen(op->key);
    memcpy(op->full, op->collection, collection);
    memcpy(op->full + collection, op->key, key);
    op->full_len = collection + key;
}

static MDB_val val(const void *bytes, size_t len)
{
    /* LMDB has one type for input and output; it never writes through an input. */
    return (MDB_val){len, (void *)(uintptr_t)bytes};
}

/* Splits a value into version and text; MDB_CORRUPTED when it is too short to have a version. */
static int split_value(const MDB_val *value, uint64_t *version, const char **text, size_t *len)
{
    if (value->mv_size < sizeof *version)
        return MDB_CORRUPTED;
    memcpy(version, value->mv_data, sizeof *version);
    *text = (const char *)value->mv_data + sizeof *version;
    *len = value->mv_size - sizeof *version;
    return 0;
}

static int next_version(MDB_txn *txn, MDB_dbi dbi, uint64_t *version)
{
    MDB_val key = val("", 1), value;
    *version = 0;
    int status = mdb_get(txn, dbi, &key, &value);
    if (status == 0 && value.mv_size != sizeof *version)
        return MDB_CORRUPTED;
    if (status == 0)
        memcpy(version, value.mv_data, sizeof *version);
    else if (status != MDB_NOTFOUND)
        return status;
    ++*version;
    value = val(version, sizeof *version);
    return mdb_put(txn, dbi, &key, &value, 0);
}

/* Compares the present version with the expected one; MDB_NOTFOUND when there is no record and none
 * was expected. */
static int check_expected(MDB_txn *txn, MDB_dbi dbi, const record_op *op, bool *refused, err *e)
{
    MDB_val key = val(op->full, op->full_len), value;
    int status = mdb_get(txn, dbi, &key, &value);
    if (status == MDB_NOTFOUND) {
        if (op->expected != STORE_NEW && op->expected != STORE_ANY) {
            *refused = true;
            err_set(e, ERR_NOT_FOUND, "%s/%s is gone", op->collection, op->key);
        }
        return status;
    }
    uint64_t version;
    const char *text;
    size_t len;
    if (status != 0 || (status = split_value(&value, &version, &text, &len)) != 0)
        return status;
    if (op->expected == STORE_NEW) {
        *refused = true;
        err_set(e, ERR_EXISTS, "%s/%s exists", op->collection, op->key);
    } else if (op->expected != STORE_ANY && op->expected != version) {
        *refused = true;
        err_set(e, ERR_CONFLICT, "%s/%s has version %" PRIu64 ", not %" PRIu64, op->collection,
                op->key, version, op->expected);
    }
    return 0;
}

static int put_in(MDB_txn *txn, MDB_dbi dbi, void *arg, bool *refused, err *e)
{
    record_op *op = arg;
    int status = check_expected(txn, dbi, op, refused, e);
    if (*refused || (status != 0 && status != MDB_NOTFOUND))
        return status;
    if ((status = next_version(txn, dbi, &op->version)) != 0)
        return status;
    MDB_val key = val(op->full, op->full_len), value = val(NULL, sizeof op->version + op->len);
    if ((status = mdb_put(txn, dbi, &key, &value, MDB_RESERVE)) != 0)
        return status;
    memcpy(value.mv_data, &op->version, sizeof op->version);
    memcpy((char *)value.mv_data + sizeof op->version, op->text, op->len);
    return 0;
}

static int lmdb_put(store *s, const char *collection, const char *key, const char *text, size_t len,
                    uint64_t expected, uint64_t *version, err *e)
{
    record_op op = {
        .collection = collection, .key = key, .text = text, .len = len, .expected = expected};
    record_key(&op);
    if (run(s, true, put_in, &op, ((lmdb_store *)s)->records->path, e) != 0)
        return -1;
    *version = op.version;
    return 0;
}

static int get_in(MDB_txn *txn, MDB_dbi dbi, void *arg, bool *refused, err *e)
{
    record_op *op = arg;
    MDB_val key = val(op->full, op->full_len), value;
    int status = mdb_get(txn, dbi, &key, &value);
    if (status == MDB_NOTFOUND) {
        *refused = true;
        err_set(e, ERR_NOT_FOUND, "no %s/%s", op->collection, op->key);
        return status;
    }
    const char *text;
    size_t len;
    if (status != 0 || (status = split_value(&value, &op->version, &text, &len)) != 0)
        return status;
    if (buf_append(op->out, text, len, e) != 0)
        *refused = true;
    return 0;
}

static int lmdb_get(store *s, const char *collection, const char *key, buf *out, uint64_t *version,
                    err *e)
{
    record_op op = {.collection = collection, .key = key, .out = out};
    record_key(&op);
    if (run(s, false, get_in, &op, ((lmdb_store *)s)->records->path, e) != 0)
        return -1;
    *version = op.version;
    return 0;
}

static int remove_in(MDB_txn *txn, MDB_dbi dbi, void *arg, bool *refused, err *e)
{
    record_op *op = arg;
    int status = check_expected(txn, dbi, op, refused, e);
    if (status == MDB_NOTFOUND && !*refused) {
        *refused = true;
        err_set(e, ERR_NOT_FOUND, "no %s/%s", op->collection, op->key);
    }
    if (*refused || status != 0)
        return status;
    MDB_val key = val(op->full, op->full_len);
    return mdb_del(txn, dbi, &key, NULL);
}

static int lmdb_remove(store *s, const char *collection, const char *key, uint64_t expected, err *e)
{
    record_op op = {.collection = collection, .key = key, .expected = expected};
    record_key(&op);
    return run(s, true, remove_in, &op, ((lmdb_store *)s)->records->path, e);
}

typedef struct list_op {
    record_op at; /* collection and prefix */
    char begin[STORE_COLLECTION_BYTES + STORE_KEY_BYTES];
    size_t begin_len;
    bool skip_first; /* the list begins after `begin` */
    size_t limit, given, bytes;
    store_each each;
    void *arg;
    bool more;
} list_op;

/* Gives one record of the list; MDB_NOTFOUND after the last. */
static int list_one(list_op *op, const MDB_val *key, const MDB_val *value, bool *refused, err *e)
{
    const record_op *at = &op->at;
    if (key->mv_size < at->full_len || memcmp(key->mv_data, at->full, at->full_len) != 0)
        return MDB_NOTFOUND;
    size_t collection = strlen(at->collection) + 1, len = key->mv_size - collection;
    char name[STORE_KEY_BYTES];
    if (len >= sizeof name)
        return MDB_CORRUPTED;
    memcpy(name, (const char *)key->mv_data + collection, len);
    name[len] = '\0';
    if (op->skip_first && key->mv_size == op->begin_len &&
        memcmp(key->mv_data, op->begin, op->begin_len) == 0)
        return 0;
    if (op->given == op->limit || op->bytes >= STORE_LIST_BYTES) {
        op->more = true;
        return MDB_NOTFOUND;
    }
    uint64_t version;
    const char *text;
    size_t text_len;
    int status = split_value(value, &version, &text, &text_len);
    if (status != 0)
        return status;
    op->given++;
    op->bytes += text_len;
    if (op->each(op->arg, name, text, text_len, version, e) != 0)
        *refused = true;
    return 0;
}

static int list_in(MDB_txn *txn, MDB_dbi dbi, void *arg, bool *refused, err *e)
{
    list_op *op = arg;
    MDB_cursor *cursor;
    int status = mdb_cursor_open(txn, dbi, &cursor);
    if (status != 0)
        return status;
    MDB_val key = val(op->begin, op->begin_len), value;
    status = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    while (status == 0 && !*refused) {
        status = list_one(op, &key, &value, refused, e);
        if (status == 0 && !*refused)
            status = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return status == MDB_NOTFOUND ? 0 : status;
}

static int lmdb_list(store *s, const char *collection, const char *prefix, const char *after,
                     size_t limit, store_each each, void *arg, bool *more, err *e)
{
    list_op op = {
        .at = {.collection = collection, .key = prefix}, .limit = limit, .each = each, .arg = arg};
    record_key(&op.at);
    record_op begin = {.collection = collection,
                       .key = after && strcmp(after, prefix) > 0 ? after : prefix};
    record_key(&begin);
    memcpy(op.begin, begin.full, begin.full_len);
    op.begin_len = begin.full_len;
    op.skip_first = after && strcmp(after, begin.key) == 0;
    if (run(s, false, list_in, &op, ((lmdb_store *)s)->records->path, e) != 0)
        return -1;
    *more = op.more;
    return 0;
}

/* ---- the store ----------------------------------------------------------------------------- */

/* Parses "DIR?map_bytes=N"; the option may be missing. */
static int parse_locator(const char *rest, char *dir, size_t *map_bytes, err *e)
{
    static const char option[] = "?map_bytes=";
    *map_bytes = MAP_BYTES;
    if (fs_path(dir, e, "%s", rest) != 0)
        return -1;
    char *question = strchr(dir, '?');
    if (question) {
        char *end;
        errno = 0;
        unsigned long long value =
            strncmp(question, option, strlen(option)) == 0 && question[strlen(option)] != '-'
                ? strtoull(question + strlen(option), &end, 10)
                : 0;
        if (value < MAP_BYTES_MIN || value > MAP_BYTES_MAX || errno != 0 || *end != '\0')
            return err_set(e, ERR_INVALID, "store lmdb:%s: %s is not ?map_bytes=%d to %zu", rest,
                           question, MAP_BYTES_MIN, MAP_BYTES_MAX);
        *map_bytes = (size_t)value;
        *question = '\0';
    }
    return *dir ? 0 : err_set(e, ERR_INVALID, "store lmdb: names no folder");
}

static int make_dirs(lmdb_store *s, const char *dir, err *e)
{
    static const char *const parts[] = {"blobs", "datasets", "tmp"};
    char path[FS_PATH_BYTES], real[PATH_MAX];
    if (fs_mkdirs(dir, 0700, e) != 0)
        return -1;
    if (!realpath(dir, real))
        return err_set_errno(e, errno, "store folder %s", dir);
    if (fs_path(s->dir, e, "%s", real) != 0 || fs_path(s->tmp_dir, e, "%s/tmp", real) != 0)
        return -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (fs_path(path, e, "%s/%s", real, parts[i]) != 0 || fs_mkdirs(path, 0700, e) != 0)
            return -1;
    return fs_sync_dir(real, e);
}

static store *lmdb_open(const char *rest, err *e)
{
    char dir[FS_PATH_BYTES], path[FS_PATH_BYTES];
    size_t map_bytes;
    if (parse_locator(rest, dir, &map_bytes, e) != 0)
        return NULL;
    lmdb_store *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(e, ERR_NOMEM, "no memory for store %s", dir);
        return NULL;
    }
    s->base.driver = &store_lmdb;
    if (make_dirs(s, dir, e) != 0 || fs_path(path, e, "%s/records.mdb", s->dir) != 0 ||
        !(s->records = records_use(path, map_bytes, e))) {
        free(s);
        return NULL;
    }
    return &s->base;
}

static void lmdb_close(store *base)
{
    lmdb_store *s = (lmdb_store *)base;
    records_drop(s->records);
    free(s);
}

static int nothing_in(MDB_txn *txn, MDB_dbi dbi, void *arg, bool *refused, err *e)
{
    (void)arg;
    (void)refused;
    (void)e;
    MDB_stat stat;
    return mdb_stat(txn, dbi, &stat);
}

/* Takes the writers' lock too: a store that cannot be written does not answer. */
static int lmdb_ping(store *s, err *e)
{
    lmdb_writer *writer = ((lmdb_store *)s)->records->writer;
    if (lmdb_writer_lock(writer, clock_deadline_ms(TURN_MS), e) != 0)
        return -1;
    lmdb_writer_unlock(writer);
    return run(s, false, nothing_in, NULL, ((lmdb_store *)s)->records->path, e);
}

static int lmdb_sweep(store *base, size_t *removed, err *e)
{
    lmdb_store *s = (lmdb_store *)base;
    int dead = 0;
    pthread_rwlock_rdlock(&s->records->map);
    int status = s->records->env ? mdb_reader_check(s->records->env, &dead) : 0;
    pthread_rwlock_unlock(&s->records->map);
    if (status != 0)
        return lmdb_error(e, status, s->records->path);
    *removed += (size_t)dead;
    if (lmdb_sweep_blobs(s, removed, e) != 0)
        return -1;
    return lmdb_sweep_chunks(s, removed, e);
}

static const char *lmdb_scratch_dir(const store *s)
{
    return ((const lmdb_store *)s)->tmp_dir;
}

const store_driver store_lmdb = {
    .scheme = "lmdb:",
    .open = lmdb_open,
    .close = lmdb_close,
    .ping = lmdb_ping,
    .sweep = lmdb_sweep,
    .scratch_dir = lmdb_scratch_dir,
    .put = lmdb_put,
    .get = lmdb_get,
    .remove = lmdb_remove,
    .list = lmdb_list,
    .blob_begin = lmdb_blob_begin,
    .blob_write = lmdb_blob_write,
    .blob_commit = lmdb_blob_commit,
    .blob_abort = lmdb_blob_abort,
    .blob_open = lmdb_blob_open,
    .blob_close = lmdb_blob_close,
    .blob_read_at = lmdb_blob_read_at,
    .blob_fd = lmdb_blob_fd,
    .blob_path = lmdb_blob_path,
    .blob_delete = lmdb_blob_delete,
    .blob_list = lmdb_blob_list,
    .chunks_begin = lmdb_chunks_begin,
    .chunk_put = lmdb_chunk_put,
    .chunk_put_info = lmdb_chunk_put_info,
    .chunk_seal = lmdb_chunk_seal,
    .chunk_release = lmdb_chunk_release,
    .chunk_abort = lmdb_chunk_abort,
    .chunks_delete = lmdb_chunks_delete,
    .chunks_locator = lmdb_chunks_locator,
    .reader_open = lmdb_reader_open,
    .reader_close = lmdb_reader_close,
    .reader_view = lmdb_reader_view,
    .reader_info = lmdb_reader_info,
};
