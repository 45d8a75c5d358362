/* fs.h: files that are whole or not there.
 *
 * A file is written to a temporary name in the same folder, synced and renamed, and the folder is
 * synced: after a crash at any point there is the old file or the new file. All functions block on
 * the disk. Errors name the path and the cause (ERR_IO, ERR_NOT_FOUND); a full disk or quota is
 * ERR_IO with os_errno ENOSPC, EDQUOT or EFBIG. */
#ifndef KUBEML_FS_H
#define KUBEML_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "buf.h"
#include "err.h"

enum { FS_PATH_BYTES = 1024 }; /* with the NUL; longer paths are ERR_LIMIT */

/* Prints a path into `out`, which holds FS_PATH_BYTES. ERR_LIMIT. */
int fs_path(char *out, err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

int fs_mkdirs(const char *path, mode_t mode, err *e); /* mkdir -p; 0 if the folder exists */
/* rm -r without following links; 0 if there is nothing. */
int fs_remove_tree(const char *path, err *e);
bool fs_exists(const char *path);
/* Finds an executable file as execlp does: in PATH, unless there is a slash in its name. False:
 * there is none. */
bool fs_find_program(const char *name, char path[FS_PATH_BYTES]);

/* Appends the whole file to `out`, whose maximum is the limit (ERR_LIMIT names the path). */
int fs_read_file(const char *path, buf *out, err *e);
int fs_write_file(const char *path, const void *bytes, size_t len, mode_t mode, err *e);
/* A file that the user named, for writing in pieces. A regular or new file is written beside its
 * path and gets its name when it is whole. Until then it has no name, where the file system allows
 * that, so that nothing remains when the process dies. If the path is a link, its target is
 * replaced and the link stays. A device or a pipe is written directly. */
typedef struct fs_output {
    FILE *file;
    char path[FS_PATH_BYTES]; /* the file's final path */
    char part[FS_PATH_BYTES]; /* its path until it is whole; "" for a device or a pipe */
    bool nameless;            /* it has no name until it is whole, then `part` for a moment */
} fs_output;
int fs_output_open(fs_output *o, const char *path, err *e);
/* Whether the file can be opened now, for a caller that works long before it has a result. */
int fs_output_check(const char *path, err *e);
int fs_output_write(fs_output *o, const void *bytes, size_t len, err *e);
/* `whole`: syncs the file and gives it its name; otherwise removes it. Closes in any case. */
int fs_output_close(fs_output *o, bool whole, err *e);

/* Makes a rename, link or unlink in the folder durable. */
int fs_sync_dir(const char *path, err *e);

/* Whole reads and writes, across EINTR and short counts. `what` names the file in the message. */
int fs_write_all(int fd, const void *bytes, size_t len, const char *what, err *e);
int fs_pwrite_all(int fd, const void *bytes, size_t len, uint64_t offset, const char *what, err *e);
/* ERR_CORRUPT when the file ends before `len` bytes. */
int fs_pread_all(int fd, void *out, size_t len, uint64_t offset, const char *what, err *e);

/* Reads as many of the `len` bytes as there are; `*got` is less only at the end of the file. */
int fs_pread_some(int fd, void *out, size_t len, uint64_t offset, size_t *got, const char *what,
                  err *e);

/* A nameless file in `dir`, open for reading and writing; gone when it is closed or the process
 * dies. */
int fs_scratch_file(const char *dir, int *fd, err *e);
/* The kernel's ID of this boot of the machine, padded with zeros; zeros alone without /proc. */
enum { FS_BOOT_BYTES = 40 };
void fs_boot_id(char out[FS_BOOT_BYTES]);
/* Bytes that an ordinary user may still write to the file system of `path`, and the file system's
 * size in `all` (may be NULL). */
int fs_free_bytes(const char *path, uint64_t *out, uint64_t *all, err *e);

#endif
