/* cuda_memory.c: see cuda_memory.h. */
#include "cuda/cuda_memory.h"

#include <assert.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t cap, held; /* under the lock */

void cuda_memory_cap(size_t bytes)
{
    pthread_mutex_lock(&lock);
    cap = bytes;
    pthread_mutex_unlock(&lock);
}

size_t cuda_memory_held(void)
{
    pthread_mutex_lock(&lock);
    size_t now = held;
    pthread_mutex_unlock(&lock);
    return now;
}

size_t cuda_memory_left(void)
{
    pthread_mutex_lock(&lock);
    size_t left = !cap ? SIZE_MAX : held < cap ? cap - held : 0;
    pthread_mutex_unlock(&lock);
    return left;
}

static int promise(size_t bytes, const char *what, err *e)
{
    pthread_mutex_lock(&lock);
    size_t now = held, most = cap;
    bool fits = !cap || (bytes <= cap && held <= cap - bytes);
    if (fits)
        held += bytes;
    pthread_mutex_unlock(&lock);
    if (fits)
        return 0;
    return err_set(e, ERR_NOMEM,
                   "%s: %.1f MiB of GPU memory are needed, %.1f MiB are held, the cap is %.1f MiB",
                   what, (double)bytes / 0x1p20, (double)now / 0x1p20, (double)most / 0x1p20);
}

static void forget(size_t bytes)
{
    pthread_mutex_lock(&lock);
    assert(held >= bytes);
    held -= bytes;
    pthread_mutex_unlock(&lock);
}

int cuda_memory_take(const driver *d, device *dev, size_t bytes, const char *what, void **out,
                     err *e)
{
    if (promise(bytes, what, e))
        return -1;
    if (d->alloc(dev, bytes, out, e) == 0)
        return 0;
    forget(bytes);
    return err_wrap(e, "%s: %.1f MiB of GPU memory", what, (double)bytes / 0x1p20);
}

void cuda_memory_give(const driver *d, device *dev, void *p, size_t bytes)
{
    if (!p)
        return;
    d->free(dev, p);
    forget(bytes);
}
