/* large_pages.h: memory for large arrays.
 *
 * Large blocks lie in large pages, where the system gives them to who asks: neighbours of one
 * channel lie a page of 4 KiB apart as soon as a concat has a thousand, a weight's rows in many
 * linear layers, and walking page tables takes 3 to 9 % of a step. */
#ifndef KUBEML_LARGE_PAGES_H
#define KUBEML_LARGE_PAGES_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE_PAGE = 2 << 20 };

/* Zeroed, 64-byte aligned, for free(). NULL: there is no memory. */
static inline void *large_pages_alloc(size_t bytes)
{
    void *b = NULL;
    if (posix_memalign(&b, bytes >= LARGE_PAGE ? LARGE_PAGE : 64, bytes) != 0)
        return NULL;
    if (bytes >= LARGE_PAGE)
        (void)madvise(b, bytes, MADV_HUGEPAGE); /* a wish: without them all is as before */
    return memset(b, 0, bytes);
}

#endif
