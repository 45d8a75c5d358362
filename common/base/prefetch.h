/* prefetch.h: asks for memory that will be read, or written, soon.
 *
 * Samples are read in shuffled order: each sample is a miss of the caches, and too short for the
 * processor to guess what follows. A prefetch is only a hint: any address is allowed. */
#ifndef KUBEML_PREFETCH_H
#define KUBEML_PREFETCH_H

#include <stddef.h>

enum { PREFETCH_LINE = 64 };

static inline void prefetch_bytes(const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PREFETCH_LINE)
        __builtin_prefetch((const char *)from + at);
}

static inline void prefetch_to_write(const void *to, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PREFETCH_LINE)
        __builtin_prefetch((const char *)to + at, 1);
}

#endif
