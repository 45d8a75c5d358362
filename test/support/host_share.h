/* host_share.h: a share whose rows lie one after the other in the host's memory. It counts the
 * reads, and one of them may fail. */
#ifndef KUBEML_HOST_SHARE_H
#define KUBEML_HOST_SHARE_H

#include <stddef.h>

#include "kernels/backend.h"

typedef struct host_share {
    const void *x;
    size_t sample_bytes;
    const int32_t *labels; /* or */
    const float *targets;
    size_t outputs;
    const uint64_t *keys;
    int reads, fails; /* reads so far; the read that fails, from 1 on */
} host_share;

static inline int host_share_read(void *from, uint32_t first, backend_rows *out, err *e)
{
    host_share *h = (host_share *)from;
    size_t at = first;
    if (__atomic_add_fetch(&h->reads, 1, __ATOMIC_RELAXED) == h->fails)
        return err_set(e, ERR_UNAVAILABLE, "row %u does not come", first);
    out->x = (const char *)h->x + at * h->sample_bytes;
    out->labels = h->labels ? h->labels + at : NULL;
    out->targets = h->targets ? h->targets + at * h->outputs : NULL;
    out->sample = h->keys + at;
    return 0;
}

#endif
