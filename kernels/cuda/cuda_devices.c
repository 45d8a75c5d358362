/* cuda_devices.c: see cuda_devices.h. */
#include "cuda_devices.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct kept {
    int ordinal;
    device *dev;
    struct kept *next;
} kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *list; /* under the lock */

static kept *take(int ordinal)
{
    pthread_mutex_lock(&lock);
    kept **at = &list;
    while (*at && (*at)->ordinal != ordinal)
        at = &(*at)->next;
    kept *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

static bool any(int ordinal)
{
    pthread_mutex_lock(&lock);
    const kept *at = list;
    while (at && at->ordinal != ordinal)
        at = at->next;
    pthread_mutex_unlock(&lock);
    return at;
}

int cuda_device_open(const driver *d, int ordinal, device **out, err *e)
{
    kept *warm = take(ordinal);
    if (!warm)
        return d->open(ordinal, out, e);
    *out = warm->dev;
    free(warm);
    d->stream(*out); /* makes it this thread's present device */
    return 0;
}

void cuda_device_close(const driver *d, int ordinal, device *dev)
{
    if (!dev)
        return;
    kept *k = d->wait(dev, NULL) == 0 ? malloc(sizeof *k) : NULL;
    if (!k) {
        d->close(dev);
        return;
    }
    pthread_mutex_lock(&lock);
    *k = (kept){ordinal, dev, list};
    list = k;
    pthread_mutex_unlock(&lock);
}

int cuda_device_warm(const driver *d, int ordinal, err *e)
{
    device *dev;
    if (any(ordinal))
        return 0;
    if (d->open(ordinal, &dev, e))
        return -1;
    cuda_device_close(d, ordinal, dev);
    return 0;
}

void cuda_devices_forget(const driver *d)
{
    while (list) {
        kept *gone = list;
        list = gone->next;
        d->close(gone->dev);
        free(gone);
    }
}
