/* cleanup.h: attributes that release a local when it leaves its scope, for early returns. */
#ifndef KUBEML_CLEANUP_H
#define KUBEML_CLEANUP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close_(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void cleanup_fclose_(FILE **f)
{
    if (*f)
        fclose(*f);
}

#define cleanup_free   __attribute__((cleanup(cleanup_free_)))
#define cleanup_close  __attribute__((cleanup(cleanup_close_)))
#define cleanup_fclose __attribute__((cleanup(cleanup_fclose_)))

/* Gives the value away: returns it and leaves `empty` behind, so that the cleanup does nothing. */
#define steal_ptr(p)                                                                               \
    __extension__({                                                                                \
        __typeof__(p) stolen_ = (p);                                                               \
        (p) = NULL;                                                                                \
        stolen_;                                                                                   \
    })
#define steal_fd(fd)                                                                               \
    __extension__({                                                                                \
        int stolen_ = (fd);                                                                        \
        (fd) = -1;                                                                                 \
        stolen_;                                                                                   \
    })

#endif
