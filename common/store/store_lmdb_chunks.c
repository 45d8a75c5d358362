/* store_lmdb_chunks.c: a chunk set of the LMDB store is an environment of its own: a single file,
 * which is only read once it is sealed. See store_lmdb.h.
 *
 * The writer commits every few MiB (a transaction has its pages in memory until then) without
 * syncing, and syncs once when it seals the set: there is no reader before. The map has room for
 * the next chunk before a transaction needs it, so that no transaction fails with a full map.
 *
 * LMDB stores a value longer than half a page on pages of its own, 16 bytes after the begin of a
 * page; a shorter value may be anywhere. LMDB's pages are the system's, up to 32 KiB. Chunks are
 * padded to half of the largest page, so that each view is aligned to 16 bytes. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "store_lmdb.h"

enum {
    BATCH_BYTES = 8 << 20, /* a transaction */
    SPARE_BYTES = 4 << 20, /* branch pages, and pages that a transaction frees */
    ALIGNMENT = 16,
    CHUNK_BYTES_MIN = 16 << 10,
    KEY_BYTES = 8,
    SWEPT_AT_ONCE = 64, /* sets; each needs an open descriptor */
};

static const char info_key[] = "info";

/* Split and index, both big-endian: LMDB's order of keys is the order of the chunks. */
static void chunk_key(uint32_t split, uint32_t index, uint8_t out[KEY_BYTES])
{
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(split >> (24 - 8 * i));
        out[4 + i] = (uint8_t)(index >> (24 - 8 * i));
    }
}

static MDB_val val(const void *bytes, size_t len)
{
    return (MDB_val){len, (void *)(uintptr_t)bytes};
}

/* ---- writing ------------------------------------------------------------------------------- */

typedef struct env_writer {
    chunk_writer base;
    char dir[FS_PATH_BYTES], path[FS_PATH_BYTES];
    int lock; /* the chunk set's lock file, locked */
    MDB_env *env;
    MDB_txn *txn; /* NULL between two batches */
    MDB_dbi dbi;
    size_t batch_bytes;
    bool sealed;
} env_writer;

static int set_dir(const store *s, const char *id, char out[FS_PATH_BYTES], err *e)
{
    return fs_path(out, e, "%s/datasets/%s", ((const lmdb_store *)s)->dir, id);
}

/* Opens the folder's lock file, making it if need be, and takes the lock. 1: locked; 0: another
 * process has the lock, or the folder is gone; -1: error. */
static int lock_dir(const char *dir, int *fd, err *e)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, e, "%s/lock", dir) != 0)
        return -1;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (*fd < 0)
        return err_set_errno(e, errno, "cannot lock %s", dir);
    if (lmdb_try_lock(*fd))
        return 1;
    close(*fd);
    *fd = -1;
    return 0;
}

static int lock_new(env_writer *w, const char *made, err *e)
{
    int locked = lock_dir(made, &w->lock, e);
    if (locked <= 0)
        return locked < 0 ? -1 : err_set(e, ERR_INTERNAL, "the new folder %s is locked", made);
    if (rename(made, w->dir) == 0)
        return 0;
    err_set_errno(e, errno, "cannot make folder %s", w->dir);
    close(w->lock);
    w->lock = -1;
    return lmdb_own(e);
}

/* Makes the set's folder under a new name, locks it, then renames it: the lock is on a file in the
 * folder, and stays through the rename. */
static int make_set(env_writer *w, char *id, err *e)
{
    char datasets[FS_PATH_BYTES], made[FS_PATH_BYTES];
    store_new_id(id);
    if (set_dir(w->base.store, id, w->dir, e) != 0 ||
        fs_path(w->path, e, "%s/data.mdb", w->dir) != 0 ||
        fs_path(datasets, e, "%s/datasets", ((lmdb_store *)w->base.store)->dir) != 0 ||
        fs_path(made, e, "%s/" LMDB_NEW "%s", datasets, id) != 0)
        return -1;
    cleanup_close int making = lmdb_making(datasets, e);
    if (making < 0)
        return -1;
    if (mkdir(made, 0700) != 0) {
        err_set_errno(e, errno, "cannot make folder %s", made);
        return lmdb_own(e);
    }
    failpoint("store-made");
    if (lock_new(w, made, e) == 0)
        return 0;
    fs_remove_tree(made, NULL);
    return -1;
}

static int open_set(env_writer *w, uint64_t bytes_hint, err *e)
{
    uint64_t map = bytes_hint + bytes_hint / 8 + BATCH_BYTES + 2 * SPARE_BYTES;
    int status = mdb_env_create(&w->env);
    if (status == 0)
        status = mdb_env_set_mapsize(w->env, (size_t)map & ~(size_t)65535);
    if (status == 0)
        status = mdb_env_open(w->env, w->path, MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0600);
    if (status == 0)
        status = mdb_txn_begin(w->env, NULL, 0, &w->txn);
    if (status == 0)
        status = mdb_dbi_open(w->txn, NULL, 0, &w->dbi);
    return status == 0 ? 0 : lmdb_error(e, status, w->path);
}

int lmdb_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e)
{
    if (bytes_hint > (uint64_t)1 << 44)
        return err_set(e, ERR_LIMIT, "%llu bytes are more than a dataset may have",
                       (unsigned long long)bytes_hint);
    env_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for a chunk set");
    w->base.store = s;
    w->lock = -1;
    if (make_set(w, id, e) != 0 || open_set(w, bytes_hint, e) != 0) {
        lmdb_chunk_abort(&w->base);
        return -1;
    }
    *out = &w->base;
    return 0;
}

static int end_batch(env_writer *w)
{
    if (!w->txn)
        return 0;
    int status = mdb_txn_commit(w->txn);
    w->txn = NULL;
    w->batch_bytes = 0;
    return status;
}

/* Makes sure of an open transaction and of a map with room for `len` more bytes. */
static int make_room(env_writer *w, size_t len)
{
    int status = 0;
    MDB_envinfo info;
    MDB_stat stat;
    if (w->batch_bytes + len > BATCH_BYTES)
        status = end_batch(w);
    if (status == 0 && !w->txn) {
        mdb_env_info(w->env, &info);
        mdb_env_stat(w->env, &stat);
        size_t used = (info.me_last_pgno + 1) * stat.ms_psize;
        size_t need = used + (len > BATCH_BYTES ? len : BATCH_BYTES) + 2 * SPARE_BYTES;
        if (need > info.me_mapsize)
            status = mdb_env_set_mapsize(w->env, 2 * need);
        if (status == 0)
            status = mdb_txn_begin(w->env, NULL, 0, &w->txn);
    }
    w->batch_bytes += len;
    return status;
}

static int put(env_writer *w, const void *key_bytes, size_t key_len, const void *bytes, size_t len,
               size_t padded, err *e)
{
    int status = make_room(w, padded + CHUNK_BYTES_MIN);
    if (status == 0) {
        MDB_val key = val(key_bytes, key_len), value = val(NULL, padded);
        status = mdb_put(w->txn, w->dbi, &key, &value, MDB_RESERVE | MDB_NOOVERWRITE);
        if (status == 0) {
            memcpy(value.mv_data, bytes, len);
            memset((char *)value.mv_data + len, 0, padded - len);
        }
    }
    if (status == MDB_KEYEXIST)
        return err_set(e, ERR_INTERNAL, "a chunk was put twice");
    return status == 0 ? 0 : lmdb_error(e, status, w->path);
}

int lmdb_chunk_put(chunk_writer *base, uint32_t split, uint32_t index, const void *bytes,
                   size_t len, err *e)
{
    uint8_t key[KEY_BYTES];
    chunk_key(split, index, key);
    return put((env_writer *)base, key, sizeof key, bytes, len,
               len < CHUNK_BYTES_MIN ? CHUNK_BYTES_MIN : len, e);
}

int lmdb_chunk_put_info(chunk_writer *base, const char *text, size_t len, err *e)
{
    return put((env_writer *)base, info_key, strlen(info_key), text, len, len, e);
}

int lmdb_chunk_seal(chunk_writer *base, err *e)
{
    env_writer *w = (env_writer *)base;
    assert(!w->sealed);
    int status = end_batch(w);
    if (status == 0)
        status = mdb_env_sync(w->env, 1);
    if (status != 0)
        return lmdb_error(e, status, w->path);
    mdb_env_close(w->env);
    w->env = NULL;
    /* Readable for a process that is handed a descriptor; the folders above are closed to
     * others. */
    if (chmod(w->path, 0444) != 0)
        return err_set_errno(e, errno, "cannot seal %s", w->path);
    cleanup_close int fd = open(w->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        return err_set_errno(e, errno, "cannot sync %s", w->path);
    char parent[FS_PATH_BYTES];
    if (fs_path(parent, e, "%s/datasets", ((lmdb_store *)w->base.store)->dir) != 0 ||
        fs_sync_dir(w->dir, e) != 0 || fs_sync_dir(parent, e) != 0)
        return -1;
    w->sealed = true;
    return 0;
}

static void free_writer(env_writer *w)
{
    if (w->txn)
        mdb_txn_abort(w->txn);
    if (w->env)
        mdb_env_close(w->env);
    if (w->lock >= 0)
        close(w->lock);
    free(w);
}

void lmdb_chunk_release(chunk_writer *base)
{
    assert(((env_writer *)base)->sealed);
    free_writer((env_writer *)base);
}

void lmdb_chunk_abort(chunk_writer *base)
{
    env_writer *w = (env_writer *)base;
    if (w->lock >= 0)
        fs_remove_tree(w->dir, NULL); /* on error, the next sweep removes the rest */
    free_writer(w);
}

/* ---- sets ---------------------------------------------------------------------------------- */

int lmdb_chunks_delete(store *s, const char *id, err *e)
{
    char dir[FS_PATH_BYTES];
    if (set_dir(s, id, dir, e) != 0)
        return -1;
    if (!fs_exists(dir))
        return err_set(e, ERR_NOT_FOUND, "no chunk set %s", id);
    return fs_remove_tree(dir, e);
}

int lmdb_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e)
{
    char dir[FS_PATH_BYTES];
    if (set_dir(s, id, dir, e) != 0)
        return -1;
    if (snprintf(out, STORE_LOCATOR_BYTES, "lmdb:%s/data.mdb", dir) >= STORE_LOCATOR_BYTES)
        return err_set(e, ERR_LIMIT, "the store's path is longer than %d bytes",
                       STORE_LOCATOR_BYTES - 1);
    return 0;
}

typedef struct locked_sets {
    char ids[SWEPT_AT_ONCE][STORE_ID_BYTES];
    int locks[SWEPT_AT_ONCE];
    size_t count;
} locked_sets;

/* Locks the set and adds it to `sets`; does nothing if another process has the lock. */
static int lock_set(lmdb_store *s, locked_sets *sets, const char *id, err *e)
{
    char dir[FS_PATH_BYTES];
    assert(strlen(id) < STORE_ID_BYTES);
    if (set_dir(&s->base, id, dir, e) != 0)
        return -1;
    int locked = lock_dir(dir, &sets->locks[sets->count], e);
    if (locked <= 0)
        return locked;
    memcpy(sets->ids[sets->count++], id, strlen(id) + 1);
    return 0;
}

/* Removes a set that this process has locked. */
static int remove_set(lmdb_store *s, const char *id, size_t *removed, err *e)
{
    char dir[FS_PATH_BYTES];
    if (set_dir(&s->base, id, dir, e) != 0)
        return -1;
    if (fs_remove_tree(dir, e) == 0) {
        ++*removed;
        return 0;
    }
    /* Another sweep may have made its lock file in the folder meanwhile: it removes the rest. */
    cleanup_close int again = -1;
    if (lock_dir(dir, &again, NULL) != 0)
        return -1;
    err_clear(e);
    return 0;
}

/* Removes the locked sets that no record names. The locks are taken before the records are read: a
 * living writer holds its lock until its record is written, so that no record can name these sets
 * later. */
static int sweep_locked(lmdb_store *s, locked_sets *sets, size_t *removed, err *e)
{
    store_ids named = {0};
    int result = sets->count ? store_named_chunks(&s->base, &named, e) : 0;
    for (size_t i = 0; i < sets->count; i++) {
        if (result == 0 && !store_ids_have(&named, sets->ids[i]))
            result = remove_set(s, sets->ids[i], removed, e);
        close(sets->locks[i]);
    }
    sets->count = 0;
    store_ids_free(&named);
    return result;
}

/* Sweeps the folder. Records name most sets, so one read of all records comes first: a set that is
 * named then is skipped, and goes when its record is deleted. */
static int sweep_folder(lmdb_store *s, DIR *dir, size_t *removed, err *e)
{
    store_ids named;
    struct dirent *entry;
    cleanup_free locked_sets *sets = calloc(1, sizeof *sets);
    if (!sets)
        return err_set(e, ERR_NOMEM, "no memory for a sweep");
    if (store_named_chunks(&s->base, &named, e) != 0)
        return -1;
    int result = 0;
    while (result == 0 && (entry = readdir(dir))) {
        const char *id = entry->d_name;
        if (id[0] == '.' || strlen(id) >= STORE_ID_BYTES || store_ids_have(&named, id))
            continue;
        result = lock_set(s, sets, id, e);
        if (result == 0 && sets->count == SWEPT_AT_ONCE)
            result = sweep_locked(s, sets, removed, e);
    }
    err unsaid = ERR_INIT; /* after an error too, sweep_locked releases the locks */
    if (sweep_locked(s, sets, removed, result == 0 ? e : &unsaid) != 0)
        result = -1;
    store_ids_free(&named);
    return result;
}

int lmdb_sweep_chunks(lmdb_store *s, size_t *removed, err *e)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, e, "%s/datasets", s->dir) != 0 || lmdb_sweep_left(path, removed, e) != 0)
        return -1;
    DIR *dir = opendir(path);
    if (!dir)
        return err_set_errno(e, errno, "cannot read %s", path);
    int result = sweep_folder(s, dir, removed, e);
    closedir(dir);
    return result;
}

/* ---- reading ------------------------------------------------------------------------------- */

typedef struct env_reader {
    chunk_reader base;
    MDB_env *env;
    MDB_txn *txn; /* open as long as the reader: the file never changes */
    MDB_dbi dbi;
    pthread_mutex_t lock; /* guards the transaction, which is for one thread at a time */
} env_reader;

/* Checks the file's length: the map of a truncated file would end the process with SIGBUS. */
static int check_length(const env_reader *r, const char *path, const struct stat *st, err *e)
{
    MDB_envinfo info;
    MDB_stat stat;
    mdb_env_info(r->env, &info);
    mdb_env_stat(r->env, &stat);
    uint64_t need = (uint64_t)(info.me_last_pgno + 1) * stat.ms_psize;
    if ((uint64_t)st->st_size < need)
        return err_set(e, ERR_CORRUPT, "dataset %s has %llu bytes and should have %llu", path,
                       (unsigned long long)st->st_size, (unsigned long long)need);
    return 0;
}

static int open_reader(env_reader *r, const char *path, err *e)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set_errno(e, errno, "cannot open dataset %s", path);
    int status = mdb_env_create(&r->env);
    if (status == 0)
        status = mdb_env_set_mapsize(r->env, (size_t)st.st_size);
    if (status == 0)
        status = mdb_env_open(r->env, path, MDB_RDONLY | MDB_NOLOCK | MDB_NOSUBDIR | MDB_NOTLS, 0);
    if (status == 0 && check_length(r, path, &st, e) != 0)
        return -1;
    if (status == 0)
        status = mdb_txn_begin(r->env, NULL, MDB_RDONLY, &r->txn);
    if (status == 0)
        status = mdb_dbi_open(r->txn, NULL, 0, &r->dbi);
    if (status != 0) {
        lmdb_error(e, status, path);
        return err_wrap(e, "cannot open dataset");
    }
    return 0;
}

int lmdb_reader_open(const char *rest, chunk_reader **out, err *e)
{
    env_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for dataset %s", rest);
    r->base.driver = &store_lmdb;
    pthread_mutex_init(&r->lock, NULL);
    if (open_reader(r, rest, e) != 0) {
        lmdb_reader_close(&r->base);
        return -1;
    }
    *out = &r->base;
    return 0;
}

void lmdb_reader_close(chunk_reader *base)
{
    env_reader *r = (env_reader *)base;
    if (r->txn)
        mdb_txn_abort(r->txn);
    if (r->env)
        mdb_env_close(r->env);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static int view(env_reader *r, const void *key_bytes, size_t key_len, MDB_val *value)
{
    MDB_val key = val(key_bytes, key_len);
    pthread_mutex_lock(&r->lock);
    int status = mdb_get(r->txn, r->dbi, &key, value);
    pthread_mutex_unlock(&r->lock);
    return status;
}

int lmdb_reader_view(chunk_reader *base, uint32_t split, uint32_t index, const void **bytes,
                     size_t *len, err *e)
{
    uint8_t key[KEY_BYTES];
    MDB_val value;
    chunk_key(split, index, key);
    int status = view((env_reader *)base, key, sizeof key, &value);
    if (status == MDB_NOTFOUND)
        return err_set(e, ERR_NOT_FOUND, "no chunk %u in split %u", index, split);
    if (status != 0)
        return lmdb_error(e, status, "dataset");
    if ((uintptr_t)value.mv_data % ALIGNMENT != 0)
        return err_set(e, ERR_CORRUPT, "chunk %u of split %u is not aligned", index, split);
    *bytes = value.mv_data;
    *len = value.mv_size;
    return 0;
}

int lmdb_reader_info(chunk_reader *base, const char **text, size_t *len, err *e)
{
    MDB_val value;
    int status = view((env_reader *)base, info_key, strlen(info_key), &value);
    if (status != 0)
        return lmdb_error(e, status, "dataset");
    *text = value.mv_data;
    *len = value.mv_size;
    return 0;
}
