/* cuda_samples.c: see cuda_samples.h. */
#include "cuda/cuda_samples.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_memory.h"

/* Held also while one copies: who wants the same set waits for it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_samples *all;

static cuda_samples *find(const driver *d, int ordinal, const backend_share *s, size_t sample_bytes)
{
    for (cuda_samples *h = all; h; h = h->next)
        if (s->set && h->d == d && h->ordinal == ordinal && h->rows == s->rows &&
            h->sample_bytes == sample_bytes && strcmp(h->name, s->set) == 0)
            return h;
    return NULL;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static int place(cuda_samples *h, device *dev, err *e)
{
    size_t n = h->rows, x = aligned(n * h->sample_bytes), labels = aligned(n * sizeof *h->labels);
    size_t bytes = x + labels + aligned(n * sizeof *h->keys);
    void *memory;
    if (cuda_memory_take(h->d, dev, bytes, "the share's samples", &memory, e))
        return -1;
    h->memory = memory;
    h->bytes = bytes;
    h->x = memory;
    h->labels = (int32_t *)(void *)(h->memory + x);
    h->keys = (uint64_t *)(void *)(h->memory + x + labels);
    return 0;
}

static int copy_in(cuda_samples *h, device *dev, const backend_share *s, err *e)
{
    size_t each = h->sample_bytes;
    /* Rows that lie one after the other, as in a dataset's chunks, travel together. */
    for (uint32_t i = 0, n; i < s->rows; i += n) {
        for (n = 1; i + n < s->rows && s->x[i + n] == s->x[i] + n * each;)
            n++;
        if (h->d->copy(dev, h->x + i * each, s->x[i], n * each, COPY_IN, e))
            return -1;
    }
    if (h->d->copy(dev, h->labels, s->labels, s->rows * sizeof *s->labels, COPY_IN, e) ||
        h->d->copy(dev, h->keys, s->sample, s->rows * sizeof *s->sample, COPY_IN, e))
        return -1;
    return h->d->wait(dev, e); /* before another stream reads them */
}

static cuda_samples *make(const driver *d, device *dev, int ordinal, const backend_share *s,
                          size_t sample_bytes, err *e)
{
    cuda_samples *h = calloc(1, sizeof *h);
    if (!h) {
        err_set(e, ERR_NOMEM, "no memory for the share's samples");
        return NULL;
    }
    h->d = d;
    h->ordinal = ordinal;
    h->rows = s->rows;
    h->sample_bytes = sample_bytes;
    snprintf(h->name, sizeof h->name, "%s", s->set ? s->set : "");
    if (place(h, dev, e) == 0 && copy_in(h, dev, s, e) == 0) {
        h->next = all;
        all = h;
        return h;
    }
    cuda_memory_give(d, dev, h->memory, h->bytes);
    free(h);
    return NULL;
}

int cuda_samples_take(const driver *d, device *dev, int ordinal, const backend_share *s,
                      size_t sample_bytes, cuda_samples **out, err *e)
{
    pthread_mutex_lock(&lock);
    cuda_samples *h = find(d, ordinal, s, sample_bytes);
    if (!h)
        h = make(d, dev, ordinal, s, sample_bytes, e);
    if (h)
        h->holders++;
    pthread_mutex_unlock(&lock);
    *out = h;
    return h ? 0 : -1;
}

void cuda_samples_give(device *dev, cuda_samples *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&lock);
    if (--h->holders == 0) {
        cuda_samples **at = &all;
        while (*at != h)
            at = &(*at)->next;
        *at = h->next;
        cuda_memory_give(h->d, dev, h->memory, h->bytes);
        free(h);
    }
    pthread_mutex_unlock(&lock);
}
