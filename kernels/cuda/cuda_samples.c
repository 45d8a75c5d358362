/* cuda_samples.c: see cuda_samples.h. */
#include "cuda_samples.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_memory.h"

typedef enum block_state { ABSENT, COMING, PRESENT } block_state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a block's state */
static cuda_samples *all;                                 /* under the lock */

/* ---- the sets of this process ---------------------------------------------------------------- */

static cuda_samples *find(const driver *d, int ordinal, const backend_share *s,
                          const cuda_samples_form *form)
{
    for (cuda_samples *h = all; h; h = h->next)
        if (s->set && h->d == d && h->ordinal == ordinal && h->rows == s->rows &&
            h->rows_each == s->rows_each && h->sample_bytes == form->sample_bytes &&
            h->outputs == form->outputs && strcmp(h->name, s->set) == 0)
            return h;
    return NULL;
}

static int place(cuda_samples *h, device *dev, size_t rest, err *e)
{
    size_t n = h->rows, x = cuda_aligned(n * h->sample_bytes);
    size_t each = h->outputs ? (size_t)h->outputs * sizeof(float) : sizeof(int32_t);
    size_t labels = cuda_aligned(n * each), bytes = x + labels + cuda_aligned(n * sizeof(uint64_t));
    void *memory;
    if (cuda_memory_take_spare(h->d, dev, bytes, rest, "the share's samples", &memory, e))
        return -1;
    h->memory = memory;
    h->bytes = bytes;
    h->at.x = memory;
    if (h->outputs)
        h->at.targets = (float *)(void *)(h->memory + x);
    else
        h->at.labels = (int32_t *)(void *)(h->memory + x);
    h->at.keys = (uint64_t *)(void *)(h->memory + x + labels);
    return 0;
}

static cuda_samples *make(const driver *d, device *dev, int ordinal, const backend_share *s,
                          const cuda_samples_form *form, err *e)
{
    cuda_samples *h = calloc(1, sizeof *h);
    uint8_t *blocks = calloc((s->rows - 1) / s->rows_each + 1, sizeof *blocks);
    if (!h || !blocks) {
        free(h);
        free(blocks);
        err_set(e, ERR_NOMEM, "no memory for the share's samples");
        return NULL;
    }
    *h = (cuda_samples){.d = d,
                        .ordinal = ordinal,
                        .rows = s->rows,
                        .rows_each = s->rows_each,
                        .sample_bytes = form->sample_bytes,
                        .outputs = form->outputs,
                        .blocks = blocks};
    snprintf(h->name, sizeof h->name, "%s", s->set ? s->set : "");
    if (place(h, dev, form->rest, e) == 0) {
        h->next = all;
        all = h;
        return h;
    }
    free(blocks);
    free(h);
    return NULL;
}

int cuda_samples_take(const driver *d, device *dev, int ordinal, const backend_share *s,
                      const cuda_samples_form *form, cuda_samples **out, err *e)
{
    pthread_mutex_lock(&lock);
    cuda_samples *h = find(d, ordinal, s, form);
    if (!h)
        h = make(d, dev, ordinal, s, form, e);
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
        free(h->blocks);
        free(h);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- their blocks ---------------------------------------------------------------------------- */

static bool present(const cuda_samples *h, uint32_t block)
{
    return __atomic_load_n(&h->blocks[block], __ATOMIC_ACQUIRE) == PRESENT;
}

static void set_state(cuda_samples *h, uint32_t block, block_state state)
{
    __atomic_store_n(&h->blocks[block], (uint8_t)state, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&changed);
}

/* Whether this thread is to read the block. Waits while another thread reads it; that thread gives
 * up when the store does. */
static bool begin_block(cuda_samples *h, uint32_t block)
{
    pthread_mutex_lock(&lock);
    while (h->blocks[block] == COMING)
        pthread_cond_wait(&changed, &lock);
    bool ours = h->blocks[block] == ABSENT;
    if (ours)
        set_state(h, block, COMING);
    pthread_mutex_unlock(&lock);
    return ours;
}

static void end_block(cuda_samples *h, uint32_t block, bool came)
{
    pthread_mutex_lock(&lock);
    set_state(h, block, came ? PRESENT : ABSENT);
    pthread_mutex_unlock(&lock);
}

static int copy_block(cuda_samples *h, device *dev, const backend_reader *from, uint32_t block,
                      err *e)
{
    backend_rows r;
    uint32_t first = block * h->rows_each, left = h->rows - first;
    size_t at = first, n = left < h->rows_each ? left : h->rows_each;
    size_t outputs = (size_t)h->outputs;
    const driver *d = h->d;
    if (from->read(from->from, first, &r, e) ||
        d->copy(dev, (char *)h->at.x + at * h->sample_bytes, r.x, n * h->sample_bytes, COPY_IN,
                e) ||
        d->copy(dev, h->at.keys + at, r.sample, n * sizeof *r.sample, COPY_IN, e))
        return -1;
    if (outputs ? d->copy(dev, h->at.targets + at * outputs, r.targets,
                          n * outputs * sizeof *r.targets, COPY_IN, e)
                : d->copy(dev, h->at.labels + at, r.labels, n * sizeof *r.labels, COPY_IN, e))
        return -1;
    return d->wait(dev, e); /* the next block may take r's place; other streams read this */
}

int cuda_samples_bring(cuda_samples *h, device *dev, const backend_reader *from,
                       const uint32_t *order, uint32_t rows, err *e)
{
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t block = order[i] / h->rows_each;
        if (present(h, block) || !begin_block(h, block))
            continue;
        int failed = copy_block(h, dev, from, block, e);
        end_block(h, block, !failed);
        if (failed)
            return -1;
    }
    return 0;
}

int cuda_samples_have(const cuda_samples *h, const uint32_t *order, uint32_t rows, err *e)
{
    for (uint32_t i = 0; i < rows; i++)
        if (!present(h, order[i] / h->rows_each))
            return err_set(e, ERR_INVALID, "row %u of the share was not brought", order[i]);
    return 0;
}
