/* fs_output.c: files that the user named, written in pieces. See fs.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "fs.h"

/* Resolves the path through links; the path itself if nothing exists there. */
static int follow(fs_output *o, const char *path, struct stat *st, err *e)
{
    cleanup_free char *real = realpath(path, NULL);
    if (fs_path(o->path, e, "%s", real ? real : path) != 0)
        return -1;
    if (stat(o->path, st) != 0)
        st->st_mode = S_IFREG;
    return S_ISDIR(st->st_mode) ? err_set(e, ERR_INVALID, "%s: is a folder, not a file", path) : 0;
}

/* Opens a file without a name. -1 where the file system cannot; opening `part` then reports any
 * error of the folder. */
static int open_nameless(const fs_output *o)
{
    char folder[FS_PATH_BYTES];
    const char *slash = strrchr(o->path, '/');
    if (access(o->part, F_OK) == 0 || errno != ENOENT)
        return -1;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash + 1 - o->path) : 1,
             slash ? o->path : ".");
    return open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

static FILE *open_part(fs_output *o)
{
    int fd = open_nameless(o);
    o->nameless = fd >= 0;
    if (fd < 0)
        return fopen(o->part, "we");
    FILE *file = fdopen(fd, "w");
    if (!file)
        close(fd);
    return file;
}

int fs_output_open(fs_output *o, const char *path, err *e)
{
    struct stat st;
    *o = (fs_output){0};
    if (follow(o, path, &st, e) != 0)
        return -1;
    if (S_ISREG(st.st_mode) && fs_path(o->part, e, "%s.part-%d", o->path, (int)getpid()) != 0)
        return -1;
    o->file = o->part[0] ? open_part(o) : fopen(o->path, "we");
    return o->file ? 0 : err_set_errno(e, errno, "%s", o->path);
}

int fs_output_check(const char *path, err *e)
{
    fs_output o = {0};
    struct stat st;
    if (follow(&o, path, &st, e) != 0)
        return -1;
    if (!S_ISREG(st.st_mode)) /* opening a pipe waits for its reader, and closing ends the reader */
        return access(o.path, W_OK) == 0 ? 0 : err_set_errno(e, errno, "%s", o.path);
    return fs_output_open(&o, path, e) != 0 ? -1 : fs_output_close(&o, false, e);
}

int fs_output_write(fs_output *o, const void *bytes, size_t len, err *e)
{
    return fwrite(bytes, 1, len, o->file) == len ? 0 : err_set_errno(e, errno, "%s", o->path);
}

static int give_name(const fs_output *o)
{
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fileno(o->file));
    return linkat(AT_FDCWD, self, AT_FDCWD, o->part, AT_SYMLINK_FOLLOW);
}

int fs_output_close(fs_output *o, bool whole, err *e)
{
    bool synced = whole && fflush(o->file) == 0 && (!o->part[0] || fsync(fileno(o->file)) == 0) &&
                  (!o->nameless || give_name(o) == 0);
    int why = errno;
    if (fclose(o->file) != 0 && synced)
        why = errno, synced = false;
    o->file = NULL;
    if (synced && o->part[0] && rename(o->part, o->path) != 0)
        why = errno, synced = false;
    if (!synced && o->part[0])
        unlink(o->part);
    return synced || !whole ? 0 : err_set_errno(e, why, "%s", o->path);
}
