/* store_lmdb_writer.c: see store_lmdb_writer.h. */
#include "store_lmdb_writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"

/* The file's content. The file gets its name when the content is complete. */
typedef struct shared_turn {
    char boot[FS_BOOT_BYTES]; /* an owner of another boot is gone, though the mutex is locked */
    pthread_mutex_t lock;
    atomic_int owner; /* for the message: the process, in its own namespace */
} shared_turn;

struct lmdb_writer {
    shared_turn *shared;
    char path[FS_PATH_BYTES];
};

static int init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attr;
    int status = pthread_mutexattr_init(&attr);
    if (status)
        return status;
    status = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (!status)
        status = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (!status)
        status = pthread_mutex_init(lock, &attr);
    pthread_mutexattr_destroy(&attr);
    return status;
}

/* Makes the file. If two processes do so at once, the last file stays, and processes that mapped
 * the other file wait at LMDB's lock instead: only the deadline is lost, and programs start one
 * after the other. */
static int make_file(const char *path, const char *boot, err *e)
{
    shared_turn turn;
    memset(&turn, 0, sizeof turn);
    memcpy(turn.boot, boot, sizeof turn.boot);
    int status = init_lock(&turn.lock);
    if (status)
        return err_set_errno(e, status, "a lock for %s", path);
    return fs_write_file(path, &turn, sizeof turn, 0600, e);
}

/* Maps the file. 1: there is no file, or it is of another boot or version. */
static int map_file(lmdb_writer *w, const char *boot, err *e)
{
    cleanup_close int fd = open(w->path, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0 && errno == ENOENT)
        return 1;
    if (fd < 0 || fstat(fd, &st) != 0)
        return err_set_errno(e, errno, "%s", w->path);
    if (st.st_size != sizeof *w->shared)
        return 1;
    void *map = mmap(NULL, sizeof *w->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return err_set_errno(e, errno, "%s", w->path);
    w->shared = map;
    if (memcmp(w->shared->boot, boot, sizeof w->shared->boot) == 0)
        return 0;
    munmap(map, sizeof *w->shared);
    w->shared = NULL;
    return 1;
}

lmdb_writer *lmdb_writer_open(const char *path, err *e)
{
    lmdb_writer *w = calloc(1, sizeof *w);
    if (!w) {
        err_set(e, ERR_NOMEM, "no memory for %s", path);
        return NULL;
    }
    char boot[FS_BOOT_BYTES];
    fs_boot_id(boot);
    int status = fs_path(w->path, e, "%s", path);
    if (status == 0 && (status = map_file(w, boot, e)) == 1 &&
        (status = make_file(path, boot, e)) == 0 && (status = map_file(w, boot, e)) == 1)
        status = err_set(e, ERR_IO, "%s is replaced again and again", path);
    if (status) {
        free(w);
        return NULL;
    }
    return w;
}

void lmdb_writer_close(lmdb_writer *w)
{
    if (!w)
        return;
    munmap(w->shared, sizeof *w->shared);
    free(w);
}

#if defined __SANITIZE_THREAD__
/* Older runtimes of ThreadSanitizer do not see pthread_mutex_clocklock, and report the unlock as an
 * error. */
static int lock_until(pthread_mutex_t *lock, int64_t deadline_ms)
{
    int status;
    while ((status = pthread_mutex_trylock(lock)) == EBUSY)
        if (clock_monotonic_ms() >= deadline_ms)
            return ETIMEDOUT;
        else
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return status;
}
#else
static int lock_until(pthread_mutex_t *lock, int64_t deadline_ms)
{
    struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    return pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, &until);
}
#endif

int lmdb_writer_lock(lmdb_writer *w, int64_t deadline_ms, err *e)
{
    int status = lock_until(&w->shared->lock, deadline_ms);
    if (status == EOWNERDEAD) /* LMDB drops the dead process's uncommitted writes */
        status = pthread_mutex_consistent(&w->shared->lock);
    if (status == ETIMEDOUT)
        return err_set(e, ERR_UNAVAILABLE,
                       "%s: process %d is writing and does not come to an end; is it stopped?",
                       w->path, atomic_load(&w->shared->owner));
    if (status)
        return err_set_errno(e, status, "%s", w->path);
    atomic_store(&w->shared->owner, (int)getpid());
    return 0;
}

void lmdb_writer_unlock(lmdb_writer *w)
{
    int status = pthread_mutex_unlock(&w->shared->lock);
    assert(status == 0);
    (void)status;
}
