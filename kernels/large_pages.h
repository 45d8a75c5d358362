/* large_pages.h: memory for large arrays.
 *
 * Large blocks lie in large pages, where the system gives these on request. Neighbours of one
 * channel lie a page of 4 KiB apart as soon as a concat has a thousand channels, and so do a
 * weight's rows in many linear layers: walking page tables then takes 3 to 9 % of a step. */
#ifndef KUBEML_LARGE_PAGES_H
#define KUBEML_LARGE_PAGES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE_PAGE = 2 << 20 };

/* Zeroed, 64-byte aligned memory; release with free(). NULL: there is no memory. */
static inline void *large_pages_alloc(size_t bytes)
{
    void *b = NULL;
    if (posix_memalign(&b, bytes >= LARGE_PAGE ? LARGE_PAGE : 64, bytes) != 0)
        return NULL;
    if (bytes >= LARGE_PAGE)
        (void)madvise(b, bytes, MADV_HUGEPAGE); /* a request: small pages also work */
    return memset(b, 0, bytes);
}

/* The same, but a large block takes memory only where it is written to; release with
 * large_pages_unmap. */
static inline void *large_pages_map(size_t bytes)
{
    if (bytes < LARGE_PAGE)
        return large_pages_alloc(bytes);
    size_t room = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE, all = room + LARGE_PAGE;
    char *from =
        (char *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED)
        return NULL;
    size_t before = (LARGE_PAGE - (uintptr_t)from % LARGE_PAGE) % LARGE_PAGE;
    if (before)
        munmap(from, before);
    munmap(from + before + room, all - before - room);
    (void)madvise(from + before, room, MADV_HUGEPAGE);
    return from + before;
}

/* p may be NULL. */
static inline void large_pages_unmap(void *p, size_t bytes)
{
    if (bytes < LARGE_PAGE)
        free(p);
    else if (p)
        munmap(p, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
}

#endif
