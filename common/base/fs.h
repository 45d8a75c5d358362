/* fs.h: files that are whole or not there.
 *
 * A file is written to a temporary name in the same folder, synced, renamed and the folder synced:
 * after a crash at any point there is the old file or the new one. All functions block on the disk;
 * errors name the path and the cause (ERR_IO, ERR_NOT_FOUND; a full disk or quota is ERR_IO with
 * os_errno ENOSPC, EDQUOT or EFBIG). */
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

/* Joins into `out`, which holds FS_PATH_BYTES. */
int fs_path(char *out, err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

int fs_mkdirs(const char *path, mode_t mode, err *e); /* mkdir -p; fine where it exists */
/* rm -r without following links; fine where nothing is. */
int fs_remove_tree(const char *path, err *e);
bool fs_exists(const char *path);
/* A program that can be run, looked for as execlp does: in PATH, where there is no slash in its
 * name. False: there is none. */
bool fs_find_program(const char *name, char path[FS_PATH_BYTES]);

/* Appends the whole file to `out`, whose maximum is the limit (ERR_LIMIT names the path). */
int fs_read_file(const char *path, buf *out, err *e);
int fs_write_file(const char *path, const void *bytes, size_t len, mode_t mode, err *e);
/* A file that somebody named, for writing in pieces. What is a file, or is not there yet, is
 * written beside, without a name where the file system can, so that nothing is left of it when the
 * process dies, and gets its name when it is whole; a link's target is meant, and stays a link's. A
 * device or a pipe is written as it is. */
typedef struct fs_output {
    FILE *file;
    char path[FS_PATH_BYTES]; /* where it goes */
    char part[FS_PATH_BYTES]; /* where it is until then; "" for a device or a pipe */
    bool nameless;            /* until it is whole, and at `part` for a moment then */
} fs_output;
int fs_output_open(fs_output *o, const char *path, err *e);
/* Whether it could be opened now, for who has long to work until there is something to write. */
int fs_output_check(const char *path, err *e);
int fs_output_write(fs_output *o, const void *bytes, size_t len, err *e);
/* `whole`: it gets its name, synced; otherwise it goes. Closes in any case. */
int fs_output_close(fs_output *o, bool whole, err *e);

/* Makes a rename, link or unlink in the folder durable. */
int fs_sync_dir(const char *path, err *e);

/* Whole reads and writes, across EINTR and short counts. `what` names the file in the message. */
int fs_write_all(int fd, const void *bytes, size_t len, const char *what, err *e);
int fs_pwrite_all(int fd, const void *bytes, size_t len, uint64_t offset, const char *what, err *e);
/* ERR_CORRUPT when the file ends before. */
int fs_pread_all(int fd, void *out, size_t len, uint64_t offset, const char *what, err *e);

/* As many of the `len` bytes as there are; `*got` is less only at the end of the file. */
int fs_pread_some(int fd, void *out, size_t len, uint64_t offset, size_t *got, const char *what,
                  err *e);

/* A nameless file in `dir`, read and written; gone when it is closed or the process dies. */
int fs_scratch_file(const char *dir, int *fd, err *e);
/* The kernel's line that tells one boot of this machine from all others, and zeros; without /proc
 * zeros alone. */
enum { FS_BOOT_BYTES = 40 };
void fs_boot_id(char out[FS_BOOT_BYTES]);
/* Bytes that an ordinary user may still write where `path` is; of `all` that the file system has
 * (may be NULL). */
int fs_free_bytes(const char *path, uint64_t *out, uint64_t *all, err *e);

#endif
