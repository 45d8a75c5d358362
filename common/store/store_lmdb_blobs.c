/* store_lmdb_blobs.c: blobs of the LMDB store are files: written under tmp/, synced, then linked to
 * their name, which link(2) refuses when there is a blob; or renamed, which replaces that blob. See
 * store_lmdb.h. */
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

typedef struct file_writer {
    blob_writer base;
    int fd; /* locked until the blob has its name */
    char name[STORE_KEY_BYTES];
    char temporary[FS_PATH_BYTES];
} file_writer;

typedef struct file_blob {
    blob base;
    int fd;
    char path[FS_PATH_BYTES];
} file_blob;

/* '+' is in no blob's name, so that collect can turn it back into '/'. */
static void to_file_name(const char *name, char out[STORE_KEY_BYTES])
{
    snprintf(out, STORE_KEY_BYTES, "%s", name);
    for (char *p = out; *p; p++)
        if (*p == '/')
            *p = '+';
}

static int blob_file(const store *s, const char *name, char out[FS_PATH_BYTES], err *e)
{
    char file[STORE_KEY_BYTES];
    to_file_name(name, file);
    return fs_path(out, e, "%s/blobs/%s", ((const lmdb_store *)s)->dir, file);
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Makes a file under tmp/ and locks it. */
static int new_locked_file(const lmdb_store *s, char path[FS_PATH_BYTES], int *fd, err *e)
{
    char made[FS_PATH_BYTES];
    cleanup_close int making = lmdb_making(s->tmp_dir, e);
    if (making < 0 || fs_path(made, e, "%s/" LMDB_NEW "XXXXXX", s->tmp_dir) != 0)
        return -1;
    *fd = mkostemp(made, O_CLOEXEC);
    if (*fd < 0) {
        err_set_errno(e, errno, "cannot make a file in %s", s->tmp_dir);
        return lmdb_own(e);
    }
    failpoint("store-made");
    /* link(2), not rename(2): it refuses a name that another file has. */
    if (lmdb_try_lock(*fd) &&
        fs_path(path, e, "%s/blob.%s", s->tmp_dir, made + strlen(made) - 6) == 0 &&
        link(made, path) == 0) {
        unlink(made);
        return 0;
    }
    err_set_errno(e, errno, "cannot lock %s", made);
    unlink(made);
    close(*fd);
    return lmdb_own(e);
}

int lmdb_blob_begin(store *s, const char *name, blob_writer **out, err *e)
{
    file_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for blob %s", name);
    w->base.store = s;
    snprintf(w->name, sizeof w->name, "%s", name);
    if (new_locked_file((lmdb_store *)s, w->temporary, &w->fd, e) != 0) {
        free(w);
        return -1;
    }
    *out = &w->base;
    return 0;
}

int lmdb_blob_write(blob_writer *base, const void *bytes, size_t len, err *e)
{
    file_writer *w = (file_writer *)base;
    if (fs_write_all(w->fd, bytes, len, w->temporary, e) != 0)
        return err_wrap(e, "blob %s", w->name);
    return 0;
}

void lmdb_blob_abort(blob_writer *base)
{
    file_writer *w = (file_writer *)base;
    unlink(w->temporary);
    close(w->fd);
    free(w);
}

static int publish_file(const file_writer *w, bool over, err *e)
{
    char path[FS_PATH_BYTES], dir[FS_PATH_BYTES];
    const lmdb_store *s = (const lmdb_store *)w->base.store;
    if (blob_file(w->base.store, w->name, path, e) != 0 || fs_path(dir, e, "%s/blobs", s->dir) != 0)
        return -1;
    if (fchmod(w->fd, 0400) != 0 || fsync(w->fd) != 0)
        return err_set_errno(e, errno, "cannot write blob %s", w->name);
    if ((over ? rename(w->temporary, path) : link(w->temporary, path)) != 0) {
        if (!over && errno == EEXIST)
            return err_set(e, ERR_EXISTS, "blob %s exists", w->name);
        err_set_errno(e, errno, "blob %s: cannot %s %s to its place", w->name,
                      over ? "rename" : "link", w->temporary);
        return lmdb_own(e);
    }
    return fs_sync_dir(dir, e);
}

int lmdb_blob_commit(blob_writer *base, bool over, err *e)
{
    file_writer *w = (file_writer *)base;
    int result = publish_file(w, over, e);
    if (over && result == 0)
        *w->temporary = '\0'; /* renamed: another writer may have the name by now */
    lmdb_blob_abort(base); /* removes the temporary name alone, not the blob's name */
    return result;
}

/* ---- reading ------------------------------------------------------------------------------- */

int lmdb_blob_open(store *s, const char *name, blob **out, err *e)
{
    file_blob *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_NOMEM, "no memory for blob %s", name);
    struct stat st;
    b->base.store = s;
    b->fd = -1;
    if (blob_file(s, name, b->path, e) != 0)
        goto undo;
    b->fd = open(b->path, O_RDONLY | O_CLOEXEC);
    if (b->fd < 0 && errno == ENOENT) {
        err_set(e, ERR_NOT_FOUND, "no blob %s", name);
        goto undo;
    }
    if (b->fd < 0 || fstat(b->fd, &st) != 0) {
        err_set_errno(e, errno, "cannot open blob %s", name);
        goto undo;
    }
    b->base.bytes = (uint64_t)st.st_size;
    *out = &b->base;
    return 0;
undo:
    lmdb_blob_close(&b->base);
    return -1;
}

void lmdb_blob_close(blob *base)
{
    file_blob *b = (file_blob *)base;
    if (b->fd >= 0)
        close(b->fd);
    free(b);
}

int lmdb_blob_read_at(blob *base, uint64_t offset, void *out, size_t len, err *e)
{
    const file_blob *b = (const file_blob *)base;
    return fs_pread_all(b->fd, out, len, offset, b->path, e);
}

int lmdb_blob_fd(blob *base, int *fd, err *e)
{
    (void)e;
    *fd = ((file_blob *)base)->fd;
    return 0;
}

int lmdb_blob_path(blob *base, char out[FS_PATH_BYTES], err *e)
{
    return fs_path(out, e, "%s", ((file_blob *)base)->path);
}

/* ---- names --------------------------------------------------------------------------------- */

int lmdb_blob_delete(store *s, const char *name, err *e)
{
    char path[FS_PATH_BYTES], dir[FS_PATH_BYTES];
    if (blob_file(s, name, path, e) != 0 ||
        fs_path(dir, e, "%s/blobs", ((lmdb_store *)s)->dir) != 0)
        return -1;
    if (unlink(path) != 0) {
        if (errno == ENOENT)
            return err_set(e, ERR_NOT_FOUND, "no blob %s", name);
        return err_set_errno(e, errno, "cannot delete blob %s", name);
    }
    return fs_sync_dir(dir, e);
}

typedef struct blob_names {
    blob_entry *entries;
    size_t count, room;
} blob_names;

static int add_name(blob_names *names, const char *name, uint64_t bytes, err *e)
{
    if (names->count == names->room) {
        size_t room = names->room ? 2 * names->room : 64;
        blob_entry *grown = realloc(names->entries, room * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "no memory for a list of blobs");
        names->entries = grown;
        names->room = room;
    }
    blob_entry *entry = &names->entries[names->count++];
    memcpy(entry->name, name, strlen(name) + 1); /* shorter than STORE_KEY_BYTES */
    entry->bytes = bytes;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const blob_entry *)a)->name, ((const blob_entry *)b)->name);
}

static int collect(DIR *dir, const char *prefix, const char *after, blob_names *names, err *e)
{
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        char name[sizeof entry->d_name];
        snprintf(name, sizeof name, "%s", entry->d_name);
        for (char *p = name; *p; p++)
            if (*p == '+')
                *p = '/';
        struct stat st;
        name[STORE_KEY_BYTES] = '\0'; /* no blob's name is longer */
        if (name[0] == '.' || strlen(name) >= STORE_KEY_BYTES ||
            strncmp(name, prefix, strlen(prefix)) != 0 || (after && strcmp(name, after) <= 0))
            continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue; /* deleted meanwhile */
        if (S_ISREG(st.st_mode) && add_name(names, name, (uint64_t)st.st_size, e) != 0)
            return -1;
    }
    return 0;
}

int lmdb_blob_list(store *s, const char *prefix, const char *after, size_t limit, blob_entry **out,
                   size_t *count, err *e)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, e, "%s/blobs", ((lmdb_store *)s)->dir) != 0)
        return -1;
    DIR *dir = opendir(path);
    if (!dir)
        return err_set_errno(e, errno, "cannot read %s", path);
    blob_names names = {0};
    int result = collect(dir, prefix, after, &names, e);
    closedir(dir);
    if (result != 0) {
        free(names.entries);
        return -1;
    }
    if (names.count > 1)
        qsort(names.entries, names.count, sizeof *names.entries, by_name);
    *out = names.entries;
    *count = names.count < limit ? names.count : limit;
    return 0;
}

int lmdb_sweep_blobs(lmdb_store *s, size_t *removed, err *e)
{
    if (lmdb_sweep_left(s->tmp_dir, removed, e) != 0)
        return -1;
    DIR *dir = opendir(s->tmp_dir);
    if (!dir)
        return err_set_errno(e, errno, "cannot read %s", s->tmp_dir);
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (strncmp(entry->d_name, "blob.", 5) != 0)
            continue;
        cleanup_close int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && lmdb_try_lock(fd) && unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            ++*removed;
    }
    closedir(dir);
    return 0;
}
