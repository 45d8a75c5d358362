/* fs.c: see fs.h. */
#include "fs.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cleanup.h"

int fs_path(char *out, err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(out, FS_PATH_BYTES, fmt, args);
    va_end(args);
    if (len < 0 || len >= FS_PATH_BYTES)
        return err_set(e, ERR_LIMIT, "path \"%.60s...\" is longer than %d bytes", out,
                       FS_PATH_BYTES - 1);
    return 0;
}

int fs_mkdirs(const char *path, mode_t mode, err *e)
{
    char part[FS_PATH_BYTES];
    if (fs_path(part, e, "%s", path) != 0)
        return -1;
    for (char *at = part + 1;; at++) {
        at = strchrnul(at, '/');
        char here = *at;
        *at = '\0';
        if (mkdir(part, mode) != 0 && errno != EEXIST)
            return err_set_errno(e, errno, "cannot make folder %s", part);
        if (!here)
            break;
        *at = here;
    }
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set_errno(e, errno, "cannot make folder %s", path);
    if (!S_ISDIR(st.st_mode))
        return err_set_errno(e, ENOTDIR, "cannot make folder %s", path);
    return 0;
}

/* Removes the folder's contents; takes over `fd`. Our trees are two or three deep; the depth is
 * bounded so that no tree made by others can exhaust the stack. */
static int empty_dir(int fd, const char *path, int depth, err *e)
{
    if (depth > 64) {
        close(fd);
        return err_set(e, ERR_LIMIT, "%s: folders are nested too deep", path);
    }
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int saved = errno;
        close(fd);
        return err_set_errno(e, saved, "cannot read folder %s", path);
    }
    int result = 0;
    struct dirent *entry;
    while (result == 0 && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0 || errno == ENOENT)
            continue;
        int inner =
            openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0)
            result = errno == ENOENT
                         ? 0
                         : err_set_errno(e, errno, "cannot remove %s/%s", path, entry->d_name);
        else if ((result = empty_dir(inner, path, depth + 1, e)) == 0 &&
                 unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR) != 0 && errno != ENOENT)
            result = err_set_errno(e, errno, "cannot remove %s/%s", path, entry->d_name);
    }
    closedir(dir);
    return result;
}

int fs_remove_tree(const char *path, err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
        if (unlink(path) != 0 && errno != ENOENT)
            return err_set_errno(e, errno, "cannot remove %s", path);
        return 0;
    }
    if (fd < 0)
        return err_set_errno(e, errno, "cannot remove %s", path);
    if (empty_dir(fd, path, 0, e) != 0)
        return -1;
    if (rmdir(path) != 0 && errno != ENOENT)
        return err_set_errno(e, errno, "cannot remove %s", path);
    return 0;
}

bool fs_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int fs_read_file(const char *path, buf *out, err *e)
{
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "cannot read %s", path);
    for (;;) {
        /* At the buffer's maximum, reads one byte more to see whether the file ends there. */
        size_t room = out->max - out->len < 65536 ? out->max - out->len : 65536;
        char extra;
        ssize_t got;
        if (room == 0) {
            got = read(fd, &extra, 1);
            if (got > 0)
                return err_set(e, ERR_LIMIT, "%s is larger than %zu bytes", path, out->max);
        } else {
            if (buf_reserve(out, room, e) != 0)
                return err_wrap(e, "%s", path);
            got = read(fd, out->bytes + out->len, room);
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set_errno(e, errno, "cannot read %s", path);
        if (got == 0)
            return buf_append(out, "", 0, e); /* the NUL behind the contents */
        out->len += (size_t)got;
    }
}

int fs_write_file(const char *path, const void *bytes, size_t len, mode_t mode, err *e)
{
    char temporary[FS_PATH_BYTES], dir[FS_PATH_BYTES];
    if (fs_path(temporary, e, "%s.XXXXXX", path) != 0 || fs_path(dir, e, "%s", path) != 0)
        return -1;
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "cannot write %s", path);
    if (fs_write_all(fd, bytes, len, path, e) != 0)
        goto undo;
    if (fchmod(fd, mode) != 0 || fsync(fd) != 0 || rename(temporary, path) != 0) {
        err_set_errno(e, errno, "cannot write %s", path);
        goto undo;
    }
    close(fd);
    return fs_sync_dir(slash ? dir : ".", e);
undo:
    close(fd);
    unlink(temporary);
    return -1;
}

int fs_sync_dir(const char *path, err *e)
{
    cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        return err_set_errno(e, errno, "cannot sync folder %s", path);
    return 0;
}

int fs_write_all(int fd, const void *bytes, size_t len, const char *what, err *e)
{
    const char *p = bytes;
    while (len > 0) {
        ssize_t put = write(fd, p, len);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set_errno(e, errno, "cannot write %s", what);
        p += put;
        len -= (size_t)put;
    }
    return 0;
}

int fs_pwrite_all(int fd, const void *bytes, size_t len, uint64_t offset, const char *what, err *e)
{
    const char *p = bytes;
    while (len > 0) {
        ssize_t put = pwrite(fd, p, len, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_set_errno(e, errno, "cannot write %s", what);
        p += put;
        offset += (uint64_t)put;
        len -= (size_t)put;
    }
    return 0;
}

int fs_pread_some(int fd, void *out, size_t len, uint64_t offset, size_t *got, const char *what,
                  err *e)
{
    char *p = out;
    *got = 0;
    while (*got < len) {
        ssize_t n = pread(fd, p + *got, len - *got, (off_t)(offset + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(e, errno, "cannot read %s", what);
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return 0;
}

int fs_pread_all(int fd, void *out, size_t len, uint64_t offset, const char *what, err *e)
{
    size_t got;
    if (fs_pread_some(fd, out, len, offset, &got, what, e) != 0)
        return -1;
    if (got < len)
        return err_set(e, ERR_CORRUPT, "%s ends at byte %llu, %llu were expected", what,
                       (unsigned long long)(offset + got), (unsigned long long)(offset + len));
    return 0;
}

int fs_scratch_file(const char *dir, int *fd, err *e)
{
    char path[FS_PATH_BYTES];
    /* Without a name from the start, where the file system allows that; else unlinked at once. */
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0)
        return 0;
    if (fs_path(path, e, "%s/scratch.XXXXXX", dir) != 0)
        return -1;
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0)
        return err_set_errno(e, errno, "cannot make a scratch file in %s", dir);
    unlink(path);
    return 0;
}

void fs_boot_id(char out[FS_BOOT_BYTES])
{
    memset(out, 0, FS_BOOT_BYTES);
    cleanup_buf buf text;
    buf_init(&text, 64);
    err none = ERR_INIT;
    if (fs_read_file("/proc/sys/kernel/random/boot_id", &text, &none) == 0)
        memcpy(out, text.bytes, text.len < FS_BOOT_BYTES - 1 ? text.len : FS_BOOT_BYTES - 1);
}

int fs_free_bytes(const char *path, uint64_t *out, uint64_t *all, err *e)
{
    struct statvfs st;
    if (statvfs(path, &st) != 0)
        return err_set_errno(e, errno, "cannot see how much room %s has", path);
    *out = (uint64_t)st.f_bavail * st.f_frsize;
    if (all)
        *all = (uint64_t)st.f_blocks * st.f_frsize;
    return 0;
}
