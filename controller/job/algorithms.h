/* algorithms.h: what functions have measured on GPUs, kept by the platform for those that come
 * after: "key<TAB>winner" lines (kernels/cuda/cuda_autotune.c). The key names machine type,
 * libraries and shape, the winner one of the ways to compute it, which all compute the same. Pure.
 *
 * Functions run others' code: what they tell is cut to lines of that form, and never replaces what
 * is known. */
#ifndef KUBEML_ALGORITHMS_H
#define KUBEML_ALGORITHMS_H

#include "common/base/err.h"

enum {
    ALGORITHMS_KEY_BYTES = 384,   /* with the NUL */
    ALGORITHMS_WINNER_BYTES = 32, /* with the NUL */
    ALGORITHMS_TOLD_MAX = 512,    /* new lines of one function */
    ALGORITHMS_MAX = 2048,        /* lines that are known; the oldest go */
};

/* `known` and behind it the lines of `told` whose key it does not have, in *out (the caller's to
 * free). `added`: how many those are; lines of another form, all after ALGORITHMS_TOLD_MAX new ones
 * and all after ALGORITHMS_MAX are passed over. ERR_NOMEM. */
int algorithms_add(const char *known, const char *told, char **out, int *added, err *e);

#endif
