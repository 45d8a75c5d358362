/* cuda_memory.c: see cuda_memory.h. */
#include "cuda_memory.h"

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

/* Counts the bytes as held, if the cap then leaves `rest` bytes. */
static int promise(size_t bytes, size_t rest, const char *what, err *e)
{
    pthread_mutex_lock(&lock);
    size_t now = held, most = cap;
    bool fits = !cap || (held <= cap && bytes <= cap - held && rest <= cap - held - bytes);
    if (fits)
        held += bytes;
    pthread_mutex_unlock(&lock);
    if (fits)
        return 0;
    return err_set(e, ERR_LIMIT,
                   "%s: %.1f MiB of GPU memory are needed, %.1f MiB are held, the cap is %.1f MiB",
                   what, (double)(bytes + rest) / 0x1p20, (double)now / 0x1p20,
                   (double)most / 0x1p20);
}

static void forget(size_t bytes)
{
    pthread_mutex_lock(&lock);
    assert(held >= bytes);
    held -= bytes;
    pthread_mutex_unlock(&lock);
}

static int take(const driver *d, device *dev, size_t bytes, size_t rest, const char *what,
                void **out, err *e)
{
    if (promise(bytes, rest, what, e))
        return -1;
    if (d->alloc(dev, bytes, out, e) == 0)
        return 0;
    forget(bytes);
    return err_wrap(e, "%s: %.1f MiB of GPU memory", what, (double)bytes / 0x1p20);
}

int cuda_memory_take(const driver *d, device *dev, size_t bytes, const char *what, void **out,
                     err *e)
{
    return take(d, dev, bytes, 0, what, out, e);
}

static int leaves_half(const driver *d, device *dev, size_t bytes, const char *what, err *e)
{
    device_facts f;
    if (d->facts(dev, &f, e))
        return -1;
    size_t half = f.memory_bytes / 2;
    if (f.free_bytes >= half && bytes <= f.free_bytes - half)
        return 0;
    return err_set(e, ERR_NOMEM,
                   "%s: %.1f MiB of GPU memory; %.1f MiB of %.1f MiB are free, of which half stays "
                   "so without a cap",
                   what, (double)bytes / 0x1p20, (double)f.free_bytes / 0x1p20,
                   (double)f.memory_bytes / 0x1p20);
}

/* Looks again after taking: of processes that take at once, the last one sees what all took. */
int cuda_memory_take_spare(const driver *d, device *dev, size_t bytes, size_t rest,
                           const char *what, void **out, err *e)
{
    if (cuda_memory_left() != SIZE_MAX)
        return take(d, dev, bytes, rest, what, out, e);
    if (leaves_half(d, dev, bytes, what, e) || take(d, dev, bytes, 0, what, out, e))
        return -1;
    if (leaves_half(d, dev, 0, what, e) == 0)
        return 0;
    cuda_memory_give(d, dev, *out, bytes);
    return -1;
}

void cuda_memory_give(const driver *d, device *dev, void *p, size_t bytes)
{
    if (!p)
        return;
    d->free(dev, p);
    forget(bytes);
}
