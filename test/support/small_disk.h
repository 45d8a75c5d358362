/* small_disk.h: a file system with little room, for this process and the processes that it starts
 * from then on. */
#ifndef KUBEML_TEST_SMALL_DISK_H
#define KUBEML_TEST_SMALL_DISK_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "test.h"

/* Mounts it over an empty folder; `size` as for tmpfs, "1m". Skips the case where this process may
 * not mount. */
static inline void small_disk_mount(const char *folder, const char *size)
{
    char options[32];
    snprintf(options, sizeof options, "size=%s", size);
    if ((unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, options) != 0)
        test_skip("a small disk: no file system may be mounted here");
}

/* Fills the file system of `path` with the file `path`. */
static inline void small_disk_fill(const char *path)
{
    static const char zeros[4096];
    cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
    CHECK_INT(errno, ENOSPC);
}

#endif
