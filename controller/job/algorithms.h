/* algorithms.h: measurements of functions on GPUs, which the platform stores for later functions:
 * "key<TAB>winner" lines (kernels/cuda/cuda_autotune.c). The key names machine type, libraries and
 * shape; the winner is one of the ways to compute it, which all compute the same. Pure.
 *
 * Functions run users' code: only lines of that form are taken from them, and a line never replaces
 * a known one. */
#ifndef KUBEML_ALGORITHMS_H
#define KUBEML_ALGORITHMS_H

#include "common/base/err.h"

enum {
    ALGORITHMS_KEY_BYTES = 384,   /* with the NUL */
    ALGORITHMS_WINNER_BYTES = 32, /* with the NUL */
    ALGORITHMS_TOLD_MAX = 512,    /* new lines of one function */
    ALGORITHMS_MAX = 2048,        /* known lines; beyond, the oldest are dropped */
};

/* Writes to *out (the caller frees it) the lines of `known`, then the lines of `told` whose key
 * `known` does not have. *added: the number of new lines. Skips lines of another form, and all
 * lines after ALGORITHMS_TOLD_MAX new ones or after ALGORITHMS_MAX. ERR_NOMEM. */
int algorithms_add(const char *known, const char *told, char **out, int *added, err *e);

#endif
