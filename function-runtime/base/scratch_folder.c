/* scratch_folder.c: see scratch_folder.h. A signal handler cannot remove a tree, and nothing runs
 * after kill -9. So a child process removes the folder: it reads from a pipe until the other end is
 * closed. */
#include "scratch_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"

/* A program that the process had started, such as a compiler, may still write for a moment. */
enum { TRIES = 100, TRY_MS = 20 };

__attribute__((noreturn)) static void keep(const char *path, int line)
{
    char none;
    setsid(); /* a signal to the process's group must not end the child */
    while (read(line, &none, 1) < 0 && errno == EINTR)
        ;
    int status = fs_remove_tree(path, NULL);
    for (int i = 1; i < TRIES && status; i++) {
        nanosleep(&(struct timespec){.tv_nsec = TRY_MS * 1000000L}, NULL);
        status = fs_remove_tree(path, NULL);
    }
    _exit(status ? 1 : 0);
}

/* Signals of a terminal reach the child too: it blocks all signals from the beginning. */
static pid_t start_keeper(const char *path, const int ends[2])
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        keep(path, ends[0]);
    }
    int saved = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return pid;
}

int scratch_folder_open(scratch_folder *f, const char *name, err *e)
{
    const char *tmp = getenv("TMPDIR");
    int ends[2];
    if (fs_path(f->path, e, "%s/%sXXXXXX", tmp && *tmp ? tmp : "/tmp", name) != 0)
        return -1;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_set_errno(e, errno, "a pipe");
    cleanup_close int theirs = ends[0], ours = ends[1];
    (void)theirs; /* clang 14 counts its cleanup as no use */
    if (!mkdtemp(f->path))
        return err_set_errno(e, errno, "%s", f->path);
    f->keeper = start_keeper(f->path, ends);
    if (f->keeper < 0) {
        err_set_errno(e, errno, "a process beside %s", f->path);
        rmdir(f->path);
        return -1;
    }
    f->line = steal_fd(ours);
    return 0;
}

int scratch_folder_close(scratch_folder *f, err *e)
{
    close(f->line);
    while (waitpid(f->keeper, NULL, 0) < 0 && errno == EINTR)
        ;
    return fs_remove_tree(f->path,
                          e); /* reports what the child could not remove, or removes it */
}
